"""Environments: the laws of their draws, through the one C interface."""

import numpy as np
import pytest

import fastfed
from fastfed.environments import (
    Classification,
    Letor,
    Python,
    Replay,
    RewardDistribution,
    Sphere,
    environment_from_spec,
    environment_signature,
)
from fastfed.simulation.experiment import make_experiment


class TestSphere:
    def test_actions_and_means_are_as_the_paper_says(self):
        sphere = Sphere(dimension=6, actions=37)
        opened_environment = sphere.open(3, 1, silos=2)
        theta = sphere.theta(3, 1)
        assert np.linalg.norm(theta) == pytest.approx(1.0)
        assert theta[-1] == pytest.approx(np.sqrt(0.5))
        for silo, t in ((0, 1), (1, 1), (0, 2)):
            x, mean = opened_environment.round(silo, t)
            assert x.shape == (37, 6)
            np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, atol=1e-6)
            np.testing.assert_allclose(x[:, -1], np.sqrt(0.5), rtol=1e-6)
            np.testing.assert_allclose(mean, x.astype(float) @ theta, atol=1e-12)
            assert mean.min() >= -1e-6
            assert mean.max() <= 1 + 1e-6

    def test_rounds_silos_and_replicates_differ_and_repeat(self):
        def first(replicate, silo, t, seed=0):
            return Sphere(dimension=4, actions=3).open(seed, replicate, 2).round(silo, t)[0]

        reference = first(0, 0, 1)
        np.testing.assert_array_equal(reference, first(0, 0, 1))
        for other in (first(1, 0, 1), first(0, 1, 1), first(0, 0, 2), first(0, 0, 1, seed=1)):
            assert (other[:, :-1] != reference[:, :-1]).all()

    def test_directions_are_uniform(self):
        """Check that coordinates of u have mean 0, variance 1/(d - 1), and are uncorrelated."""
        opened_environment = Sphere(dimension=5, actions=100).open(0, 0, 1)
        u = np.concatenate(
            [opened_environment.round(0, t)[0][:, :4] for t in range(1, 201)]
        ) * np.sqrt(2)
        n = len(u)
        # Five standard errors: a false alarm about once in a million runs of these 14 numbers.
        assert np.abs(u.mean(axis=0)).max() < 5 * np.sqrt(0.25 / n)
        covariance = u.T @ u / n
        assert np.abs(covariance - np.eye(4) / 4).max() < 5 * np.sqrt(0.125 / n)

    def test_shared_contexts_and_basis_actions(self):
        sphere = Sphere(dimension=3, actions=5, basis_actions=True, contexts="shared")
        one, other = (sphere.open(0, r, 1).round(0, 1)[0] for r in (0, 1))
        np.testing.assert_array_equal(one, other)
        h = np.sqrt(0.5)
        np.testing.assert_allclose(one[:3], [[h, 0, h], [0, h, h], [0, 0, 1]], rtol=1e-6)

    def test_bernoulli_rewards_have_the_mean(self):
        opened_environment = Sphere(dimension=3, actions=4).open(0, 0, 1)
        draws = np.array([opened_environment.reward(0, t, 0.3) for t in range(1, 20001)])
        assert set(draws) == {0.0, 1.0}
        assert abs(draws.mean() - 0.3) < 5 * np.sqrt(0.21 / len(draws))

    def test_gaussian_rewards_have_mean_and_std(self):
        opened_environment = Sphere(
            dimension=3, actions=4, reward=RewardDistribution("gaussian", 0.5)
        ).open(0, 0, 1)
        draws = np.array([opened_environment.reward(0, t, 0.3) for t in range(1, 20001)])
        assert abs(draws.mean() - 0.3) < 5 * 0.5 / np.sqrt(len(draws))
        assert abs(draws.std() - 0.5) < 5 * 0.5 / np.sqrt(2 * len(draws))

    @pytest.mark.parametrize(
        ("keys", "sentence"),
        [
            ({"dimension": 0}, "dimension must be an integer >= 1 .*, got 0"),
            ({"actions": 0}, "actions must be an integer >= 1 .*, got 0"),
            ({"contexts": "share"}, 'did you mean "shared"'),
            ({"dimension": 9, "actions": 5, "basis_actions": True}, "actions >= dimension"),
        ],
    )
    def test_bad_sizes_are_refused(self, keys, sentence):
        with pytest.raises(fastfed.InputError, match=sentence):
            Sphere(**keys)


class TestReplay:
    def test_rounds_are_the_recorded_ones(self, recorded):
        contexts, rewards = recorded
        opened_environment = Replay.from_arrays(contexts, rewards, sampling="in-order").open(
            0, 0, 3
        )
        x, mean = opened_environment.round(2, 7)
        np.testing.assert_array_equal(x, contexts[2, 6].astype(np.float32))
        np.testing.assert_array_equal(mean, rewards[2, 6])

    def test_without_replacement_uses_every_round_once_in_random_order(self, recorded):
        opened_environment = Replay.from_arrays(*recorded).open(0, 0, 3)
        queries = [opened_environment.query(1, t) for t in range(1, 25)]
        assert sorted(queries) == list(range(24, 48))
        assert queries != sorted(queries)
        again = Replay.from_arrays(*recorded).open(0, 1, 3)
        assert queries != [again.query(1, t) for t in range(1, 25)]

    def test_a_horizon_beyond_the_data_names_the_largest(self, recorded):
        with pytest.raises(fastfed.InputError, match="horizon must be <= 24"):
            Replay.from_arrays(*recorded).facts(3, 25)

    def test_nan_and_large_norms_are_refused(self, recorded):
        contexts, rewards = recorded
        with pytest.raises(fastfed.InputError, match=r"contexts must be finite, got nan at index"):
            Replay.from_arrays(np.where(contexts > 0.9, np.nan, contexts), rewards)
        with pytest.raises(fastfed.InputError, match=r"norms <= 1, got 1\.9998"):
            Replay.from_arrays(2 * contexts, rewards)
        with pytest.raises(fastfed.InputError, match="rewards must have shape"):
            Replay.from_arrays(contexts, rewards[:, :, :2])

    def test_a_spec_names_an_npz(self, recorded, tmp_path):
        contexts, rewards = recorded
        np.savez(tmp_path / "r.npz", contexts=contexts, rewards=rewards)
        replay = environment_from_spec({"kind": "replay", "path": str(tmp_path / "r.npz")})
        assert replay.natural_silos() == 3
        (tmp_path / "bad.npz").write_text("nothing")
        with pytest.raises(fastfed.InputError, match="file with the arrays contexts and rewards"):
            Replay(path=str(tmp_path / "bad.npz"))

    @pytest.fixture
    def unequal(self, recorded):
        """Return contexts, rewards, rounds and a mask; entries that do not count are NaN."""
        contexts, rewards = recorded
        rng = np.random.default_rng(8)
        rounds = np.array([24, 7, 13])
        mask = rng.random(rewards.shape) < 0.6
        mask[..., 2] |= ~mask.any(axis=2)
        counts = mask & (np.arange(24) < rounds[:, None])[..., None]
        contexts = np.where(counts[..., None], contexts, np.nan)
        return contexts, np.where(counts, rewards, np.nan), rounds, mask

    def test_unequal_silos_and_masked_actions_equal_plain_indexing(self, unequal):
        contexts, rewards, rounds, mask = unequal
        replay = Replay.from_arrays(
            contexts, rewards, "in-order", (0.0, 1.0), rounds=rounds, mask=mask
        )
        opened, pool = replay.open(0, 0, 3), replay.pool(3)
        assert np.diff(pool.silo_starts).tolist() == rounds.tolist()
        sizes = set()
        for silo in range(3):
            for t in range(rounds[silo]):
                actions = [a for a in range(4) if mask[silo, t, a]]
                features, means = opened.round(silo, t + 1)
                expected = [contexts[silo, t, a].astype(np.float32) for a in actions]
                np.testing.assert_array_equal(features, expected)
                assert means.tolist() == [rewards[silo, t, a] for a in actions]
                query = sum(rounds[:silo]) + t
                assert pool.best[query] == max(rewards[silo, t, a] for a in actions)
                sizes.add(len(actions))
        assert sizes == {1, 2, 3, 4}

    @pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
    def test_both_drivers_agree_on_unequal_silos(self, unequal, sampling):
        contexts, rewards, rounds, mask = unequal
        replay = Replay.from_arrays(contexts, rewards, sampling, rounds=rounds, mask=mask)
        horizon = 60 if sampling == "with-replacement" else 7
        keys = {"horizon": horizon, "batch_size": 3, "seed": 5, "checkpoints": horizon}
        fast = fastfed.simulate(replay, "fedlinucb", threads=2, **keys)
        step = fastfed.simulate(replay, "fedlinucb", driver="step", **keys)
        np.testing.assert_array_equal(fast.curves[0].group_regret, step.curves[0].group_regret)
        assert fast.curves[0].group_regret[0, -1] > 0

    def test_the_smallest_silo_limits_the_horizon(self, unequal):
        contexts, rewards, rounds, mask = unequal
        replay = Replay.from_arrays(contexts, rewards, rounds=rounds, mask=mask)
        with pytest.raises(fastfed.InputError, match="horizon must be <= 7"):
            replay.facts(3, 8)
        assert replay.facts(3, 7).actions == 4

    def test_a_mask_is_part_of_the_identity_and_what_it_hides_is_not(self, recorded, unequal):
        contexts, rewards, rounds, mask = unequal
        plain = Replay.from_arrays(*recorded).describe()
        masked = Replay.from_arrays(contexts, rewards, rounds=rounds, mask=mask).describe()
        full = Replay.from_arrays(*recorded, rounds=[24] * 3, mask=np.ones((3, 24, 4), bool))
        assert full.describe() == plain
        other = Replay.from_arrays(*recorded, rounds=rounds, mask=mask.astype(int)).describe()
        assert other == masked != plain
        filled = np.nan_to_num(contexts), np.where(np.isnan(rewards), 0.0, rewards)
        assert Replay.from_arrays(*filled).describe() != masked

    def test_a_spec_reads_rounds_and_mask(self, unequal, tmp_path):
        names = ("contexts", "rewards", "rounds", "mask")
        np.savez(tmp_path / "r.npz", **dict(zip(names, unequal, strict=True)))
        replay = environment_from_spec({"kind": "replay", "path": str(tmp_path / "r.npz")})
        contexts, rewards, rounds, mask = unequal
        direct = Replay.from_arrays(contexts, rewards, rounds=rounds, mask=mask)
        assert replay.describe() == direct.describe()

    def test_rounds_and_masks_are_checked(self, recorded, unequal):
        contexts, rewards, rounds, mask = unequal
        empty = mask.copy()
        empty[1, 3] = False
        for given, sentence in (
            ({"rounds": [24, 0, 13]}, "rounds must be integers from 1 to 24, .* got 0 for silo 1"),
            ({"rounds": [24, 7, 25]}, "rounds must be integers .* got 25 for silo 2"),
            ({"rounds": [24, 7.5, 3]}, "rounds must be integers .* got 7.5 for silo 1"),
            ({"rounds": [24, 7]}, r"rounds must have shape \(3,\), got \(2,\)"),
            ({"mask": mask[:, :, :3]}, r"mask must have shape \(3, 24, 4\)"),
            ({"mask": 2 * mask}, "mask must hold True .* got 2"),
            ({"mask": empty}, "mask must offer an action in every round, got none in round 4 of"),
        ):
            with pytest.raises(fastfed.InputError, match=sentence):
                Replay.from_arrays(*recorded, **given)
        # Only rounds that a silo has need an action.
        Replay.from_arrays(*recorded, rounds=[24, 3, 24], mask=empty)
        # Entries that count must still be finite and in the range.
        with pytest.raises(fastfed.InputError, match="contexts must be finite, got nan at index"):
            Replay.from_arrays(contexts, rewards, mask=mask)
        with pytest.raises(fastfed.InputError, match="rewards must be finite, got nan at index"):
            Replay.from_arrays(recorded[0], rewards, mask=mask)
        with pytest.raises(fastfed.InputError, match="rewards must lie in reward_range"):
            Replay.from_arrays(contexts, rewards, reward_range=(0.0, 0.5), rounds=rounds, mask=mask)
        with pytest.raises(fastfed.InputError, match=r"either path or arrays, .* path and mask"):
            Replay(path="r.npz", mask=mask)


def constant_round(seed, replicate, silo, round):
    """Return the same four actions in every round."""
    return np.eye(3)[[0, 1, 2, 0]], np.full(4, 0.5)


class TestPython:
    @staticmethod
    def draw(seed, replicate, silo, t):
        """Return 1 to 4 random actions and their expected rewards."""
        generator = np.random.default_rng([seed, replicate, silo, t])
        x = generator.normal(size=(1 + t % 4, 3))
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        return x, 0.5 + 0.5 * x[:, 0]

    def test_a_plain_function_plays_the_same_in_both_drivers(self):
        environment = Python(function=self.draw, dimension=3, actions=4)
        keys = {"horizon": 20, "silos": 2, "batch_size": 4, "seed": 5}
        fast = fastfed.simulate(environment, "fedlinucb", threads=2, **keys)
        step = fastfed.simulate(environment, "fedlinucb", driver="step", **keys)
        np.testing.assert_array_equal(fast.curves[0].group_regret, step.curves[0].group_regret)
        assert fast.curves[0].group_regret[0, -1] > 0

    def test_exceptions_and_bad_returns_of_a_function_are_reported(self):
        def failing(seed, replicate, silo, t):
            if t == 3:
                raise KeyError("no such user")
            return TestPython.draw(seed, replicate, silo, t)

        keys = {"algorithm": "fedlinucb", "horizon": 20, "silos": 2, "batch_size": 4}
        with pytest.raises(KeyError, match="no such user"):
            fastfed.simulate(Python(function=failing, dimension=3, actions=4), **keys)
        with pytest.raises(fastfed.InputError, match=r"features must have shape \(any, 2\)"):
            fastfed.simulate(Python(function=self.draw, dimension=2, actions=4), **keys)
        with pytest.raises(fastfed.InputError, match="features must hold 1 to 2 actions, got 3"):
            fastfed.simulate(Python(function=self.draw, dimension=3, actions=2), **keys)
        with pytest.raises(fastfed.InputError, match="must be finite"):
            nan = Python(
                function=lambda *k: (np.full((2, 3), np.nan), [0, 0]), dimension=3, actions=4
            )
            fastfed.simulate(nan, **keys)

    def test_a_compiled_function_equals_the_plain_one(self):
        import numba

        @numba.cfunc(environment_signature())
        def compiled(state, seed, replicate, silo, t, x, mean):
            features = numba.carray(x, (3, 2))
            means = numba.carray(mean, (3,))
            scale = numba.carray(state, (1,))[0]
            for a in range(3):
                angle = 0.1 * a + 0.01 * t + silo + replicate
                features[a, 0] = np.cos(angle) * scale
                features[a, 1] = np.sin(angle) * scale
                means[a] = 0.5 + 0.5 * features[a, 0]
            return 3

        def plain(seed, replicate, silo, t):
            angle = np.array([0.1 * a + 0.01 * t + silo + replicate for a in range(3)])
            x = np.column_stack([np.cos(angle) * 0.9, np.sin(angle) * 0.9])
            return x, 0.5 + 0.5 * x[:, 0]

        state = np.array([0.9])
        fast = Python(function=compiled, dimension=2, actions=3, state=state).open(0, 1, 2)
        slow = Python(function=plain, dimension=2, actions=3).open(0, 1, 2)
        for silo, t in ((0, 1), (1, 9)):
            for a, b in zip(fast.round(silo, t), slow.round(silo, t), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)

    def test_a_compiled_failure_status_is_an_error(self):
        import numba

        @numba.cfunc(environment_signature())
        def failing(state, seed, replicate, silo, t, x, mean):
            return -7

        with pytest.raises(RuntimeError, match="status -7"):
            fastfed.simulate(
                Python(function=failing, dimension=2, actions=3), "fedlinucb",
                horizon=4, silos=1, batch_size=2,
            )  # fmt: skip

    def test_a_spec_names_a_function(self):
        environment = environment_from_spec(
            {
                "kind": "python",
                "function": "test_environments:constant_round",
                "dimension": 3,
                "actions": 4,
            }
        )
        assert environment.kind == "python"
        for text, sentence in (
            ("nowhere", 'function must be "module:name"'),
            ("no_such_module:f", "cannot be imported"),
            ("math:nonsense", 'module "math" has no "nonsense"'),
        ):
            with pytest.raises(fastfed.InputError, match=sentence):
                Python(function=text, dimension=3, actions=4)


class TestClassification:
    def test_digits_reward_the_right_digit_and_use_an_image_at_most_once(self):
        pytest.importorskip("sklearn")
        environment = Classification(data="digits", dimension=12)
        facts = environment.facts(10, 175)
        assert (facts.actions, facts.dimension, facts.multiplicity) == (10, 12, 1)
        opened_environment = environment.open(0, 0, 10)
        x, mean = opened_environment.round(3, 5)
        assert sorted(mean) == [0.0] * 9 + [1.0]
        assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-6
        with pytest.raises(fastfed.InputError, match="horizon must be <= 179"):
            environment.facts(10, 180)

    def test_learning_on_digits_beats_chance(self):
        pytest.importorskip("sklearn")
        r = fastfed.simulate(
            {"kind": "classification", "data": "digits"}, "fedlinucb", horizon=175, silos=10,
            batch_size=5, radius_multiplier=0.1, replicates=2,
        )  # fmt: skip
        assert r.curves[0].final()["mean"] < 0.8 * 0.9 * 1750

    def test_four_hospitals(self, heart):
        environment = environment_from_spec(
            {"kind": "classification", "data": str(heart), "label": "num", "silo": "site"}
        )
        assert environment.natural_silos() == 4
        r = fastfed.simulate(
            environment, "private-fedlinucb", horizon=100, batch_size=10, epsilon=5.0, delta=1e-4
        )
        assert r.silos == 4
        # The ranges of columns are read from the data.
        assert r.curves[0].certificate["status"] == "conditional"


class TestLetor:
    def test_curves_on_mslr_rows_learn_and_note_repeated_queries(self, mslr):
        environment = Letor(path=str(mslr), features="anchor-url")
        facts = environment.facts(10, 500)
        assert facts.dimension == 57
        assert facts.multiplicity == 500
        r = fastfed.simulate(
            environment, silos=10, horizon=500, curves=[
                {"label": "plain", "algorithm": "fedlinucb", "batch_size": 25,
                 "radius_multiplier": 0.1},
                {"label": "private", "algorithm": "private-fedlinucb", "batch_size": 25,
                 "epsilon": 1.0, "delta": 1e-5},
            ],
        )  # fmt: skip
        assert r["plain"].final()["mean"] < r["private"].final()["mean"]
        certificate = r["private"].certificate
        assert certificate["status"] == "unproven"
        assert certificate["exact"] is None
        assert any("served up to 500 times" in c for c in certificate["caveats"])
        assert certificate["also"][0]["exact"]["epsilon"] == pytest.approx(1.0)

    def test_both_drivers_agree_on_letor_rows(self, mslr):
        keys = {"horizon": 12, "silos": 3, "batch_size": 4, "seed": 2}
        environment = Letor(path=str(mslr / "vali.txt"), features="text", scaling="row")
        a = fastfed.simulate(environment, "fedlinucb", lazy=False, **keys)
        b = fastfed.simulate(environment, "fedlinucb", lazy=False, driver="step", **keys)
        np.testing.assert_array_equal(a.curves[0].group_regret, b.curves[0].group_regret)

    def test_fewer_queries_than_silos(self, mslr):
        with pytest.raises(fastfed.InputError, match="silos must be at most the 18 queries"):
            Letor(path=str(mslr / "vali.txt")).facts(19, 10)

    def test_a_missing_path_is_refused(self):
        with pytest.raises(fastfed.InputError, match="path must be an existing file or folder"):
            Letor(path="/nowhere/at/all")


def test_a_query_identifier_in_several_files_is_one_record(tmp_path):
    pytest.importorskip("sklearn")
    for part in range(6):  # the same two queries in each of six files
        lines = [f"{i % 3} qid:{1 + (i // 2) % 2} 1:{i}.5 2:{i % 5}" for i in range(part, part + 4)]
        lines.sort(key=lambda line: line.split()[1])
        (tmp_path / f"{part}.txt").write_text("\n".join(lines) + "\n")
    environment = Letor(path=str(tmp_path), sampling="without-replacement")
    assert environment.facts(2, 3).multiplicity == 6


def test_a_compiled_function_that_writes_nan_or_no_probability_is_stopped():
    import numba

    @numba.cfunc(environment_signature())
    def wild(state, seed, replicate, silo, t, x, mean):
        features, means = numba.carray(x, (2, 2)), numba.carray(mean, (2,))
        features[:] = 0.5 if t != 3 or state[0] != 0 else np.nan
        means[:] = 0.5 if t != 3 or state[0] != 1 else np.nan
        if t == 3 and state[0] == 2:
            means[0] = 1.7
        return 2

    for fault in range(3):
        environment = Python(function=wild, dimension=2, actions=2, state=np.array([fault]))
        with pytest.raises(RuntimeError, match="not finite"):
            fastfed.simulate(environment, "local-linucb", silos=1, horizon=5)


def test_read_only_arrays_from_a_function_are_accepted():
    x, means = np.eye(2), np.array([0.2, 0.8])
    x.flags.writeable = means.flags.writeable = False
    environment = Python(function=lambda *key: (x, means), dimension=2, actions=2)
    assert fastfed.simulate(environment, "local-linucb", silos=1, horizon=5).curves[0].final()


def certificate_of(environment, **keys):
    """Return the certificate of a private system in an environment."""
    curve = {"algorithm": "private-fedlinucb", "batch_size": 5, "epsilon": 1.0, "delta": 1e-6}
    (experiment,) = make_experiment(
        name="x", environment=environment, curves=[{**curve, **keys}], silos=3, horizon=20
    ).curves
    return experiment.system.certificate


def failed_conditions(certificate):
    """Return the texts of the conditions that do not hold."""
    return [c.text for c in certificate.conditions if not c.holds]


class TestDeclared:
    """Certificates must not depend on the values of records, which differ between neighbours."""

    @pytest.mark.parametrize("clip", [True, False])
    @pytest.mark.parametrize("reward_range", [None, (0.0, 1.0), (-50.0, 50.0)])
    def test_one_reward_does_not_decide_about_a_replay(self, recorded, clip, reward_range):
        """Check that the status does not depend on whether a reward is 1 or 50."""
        contexts, rewards = recorded
        certificates = []
        for reward in (1.0, 50.0):
            rewards[0, 0, 0] = reward
            if reward_range == (0.0, 1.0) and reward == 50.0:
                with pytest.raises(fastfed.InputError, match="rewards must lie in reward_range"):
                    Replay.from_arrays(contexts, rewards, reward_range=reward_range)
                continue
            environment = Replay.from_arrays(contexts, rewards, reward_range=reward_range)
            certificates.append(certificate_of(environment, clip=clip))
        assert all(c.to_builtins() == certificates[0].to_builtins() for c in certificates)
        proven = clip or reward_range == (0.0, 1.0)
        assert certificates[0].status == ("proven" if proven else "unproven")
        if not proven:
            assert failed_conditions(certificates[0]) == [
                "rewards bounded by 1 in absolute value (as the environment gives them)"
            ]
            assert certificates[0].also[0].status == "conditional"

    def test_a_declared_range_is_two_numbers(self, recorded):
        for given, sentence in (
            (1.0, "reward_range must be two numbers"),
            ((1.0, 0.0), r"reward_range must be \[low, high\] with low < high, got \(1.0, 0.0\)"),
            ((0.0, "x"), "reward_range must be a number"),
        ):
            with pytest.raises(fastfed.InputError, match=sentence):
                Replay.from_arrays(*recorded, reward_range=given)

    @staticmethod
    def table(path, age=55):
        """Write a table of 62 records, one of this age, and return the keys that read it."""
        draw = np.random.default_rng(0)
        rows = [f"{draw.integers(20, 80)},{draw.choice(['f', 'm'])},{i % 2}" for i in range(60)]
        path.write_text("\n".join(["age,sex,ill", *rows, f"{age},?,1", ",f,0"]) + "\n")
        return {"data": str(path), "label": "ill", "dimension": 5}

    KNOWN = {"age": [0, 120], "sex": ["f", "m"]}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("keys", "holds"),
        [
            ({}, False),
            ({"norm": 1.0}, False),
            ({"ranges": {"age": [0, 120]}}, False),  # the categories of sex are taken from the data
            ({"ranges": KNOWN}, True),
            ({"ranges": KNOWN, "norm": 1.0}, True),
            ({"ranges": {"age": [0, 120]}, "columns": ["age"]}, True),
        ],
    )
    def test_ranges_of_columns_are_declared_or_a_failed_condition(self, tmp_path, keys, holds):
        certificate = certificate_of(Classification(**self.table(tmp_path / "a.csv"), **keys))
        assert certificate.status == ("proven" if holds else "conditional")
        assert certificate.exact.epsilon == pytest.approx(1.0)
        scaled = "features are scaled by declared ranges, not by ranges of these data"
        assert failed_conditions(certificate) == ([] if holds else [scaled])
        assert {claim.status for claim in certificate.also} == {certificate.status}
        assert ("declared ranges" in " ".join(certificate.caveats)) == ("ranges" in keys and holds)

    def test_with_declared_ranges_a_record_changes_no_other(self, tmp_path):
        for keys, moved in ({"ranges": self.KNOWN}, False), ({}, True):
            rows = []
            for age in (55, 1e6):
                environment = Classification(**self.table(tmp_path / "a.csv", age), **keys)
                pool = environment.pool(3)
                rows.append(np.concatenate([pool.rows(q) for q in range(60)]))
                assert np.linalg.norm(pool.rows(60), axis=1).max() <= 1.0
            assert (not np.array_equal(*rows)) == moved

    def test_bad_ranges_are_refused(self, tmp_path):
        given = self.table(tmp_path / "a.csv")
        for ranges, sentence in (
            ({"ages": [0, 1]}, 'ranges must be a column of .*; did you mean "age"'),
            ({"age": [1, 0]}, r"ranges\.age must be \[low, high\] with low < high, got \[1, 0\]"),
            ({"age": 3}, r"ranges\.age must be \[low, high\] or a list of texts, got 3"),
            ({"sex": ["f", "f"]}, r"ranges\.sex must name each category once"),
            (
                {"sex": [0, 1]},
                "column 'sex' must hold numbers, as its entry in ranges is an interval, got '",
            ),
            ({"ill": [0, 1]}, "ranges must be of feature columns, got 'ill'"),
            (3, "ranges must be a table of columns"),
        ):
            with pytest.raises(fastfed.InputError, match=sentence):
                Classification(**given, ranges=ranges).facts(3, 5)
        with pytest.raises(fastfed.InputError, match="norm must be > 0"):
            Classification(**given, norm=0.0)

    def test_arrays_and_digits_need_a_norm(self):
        draw = np.random.default_rng(1)
        x, y = draw.normal(size=(60, 3)), np.arange(60) % 2
        for norm in (None, 2.0):
            certificate = certificate_of(Classification.from_arrays(x, y, norm=norm))
            assert certificate.status == ("conditional" if norm is None else "proven")
        pytest.importorskip("sklearn")
        for norm in (None, 8.0):
            certificate = certificate_of(Classification(data="digits", norm=norm))
            assert certificate.status == ("conditional" if norm is None else "proven")

    @pytest.mark.parametrize("scaling", ["row", "column"])
    def test_rewards_by_a_fit_to_all_records_are_conditional(self, tmp_path, scaling):
        pytest.importorskip("sklearn")
        lines = [f"{i % 3} qid:{i // 2} 1:{i}.5 2:{i % 5}" for i in range(160)]
        (tmp_path / "rows.txt").write_text("\n".join(lines) + "\n")
        environment = Letor(
            path=str(tmp_path / "rows.txt"), scaling=scaling, sampling="without-replacement"
        )
        certificate = certificate_of(environment)
        assert certificate.status == "conditional" and certificate.exact.epsilon == pytest.approx(
            1.0
        )
        fitted = "contexts and rewards of a user do not depend on other users' raw data"
        scaled = "features are scaled by declared ranges, not by ranges of these data"
        assert failed_conditions(certificate) == ([scaled] if scaling == "column" else []) + [
            fitted
        ]
        assert certificate_of(environment, clip=False).status == (
            "conditional" if scaling == "column" else "unproven"
        )

    def test_functions_with_state_must_be_declared_independent(self):
        kept = []

        def closed(seed, replicate, silo, t):
            kept.append(t)
            return TestPython.draw(seed, replicate, silo, t)

        for function, independent, holds in (
            (TestPython.draw, None, True),
            (closed, None, False),
            (closed, True, True),
            (TestPython.draw, False, False),
        ):
            certificate = certificate_of(
                Python(function=function, dimension=3, actions=4, independent=independent)
            )
            assert certificate.status == ("proven" if holds else "conditional")
            text = "do not depend on other users' raw data (taken on trust)"
            assert [c.holds for c in certificate.conditions if c.text.endswith(text)] == [holds]

    def test_local_linucb_and_robin_need_declared_ranges_too(self, tmp_path):
        given = self.table(tmp_path / "a.csv")
        robin = {
            "algorithm": "robin", "batch_size": None, "clip": True, "diversity": 0.1,
            "initial_phases": 2,
        }  # fmt: skip
        local = {"algorithm": "local-linucb"}
        for keys in (robin, local):
            statuses = []
            for ranges in ({}, {"ranges": self.KNOWN}):
                table = {"epsilon": 1.0, "delta": 1e-6, **keys} if keys is robin else keys
                table = {k: v for k, v in table.items() if v is not None}
                (experiment,) = make_experiment(
                    name="x", environment=Classification(**given, **ranges), curves=[table],
                    silos=3, horizon=20,
                ).curves  # fmt: skip
                statuses.append(experiment.system.certificate.status)
            assert statuses == ["conditional", "proven"]
