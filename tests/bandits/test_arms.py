"""Arms without contexts: choices against an oracle, both drivers, privacy and coverage.

Statistical tests fail below p = 1e-6 (seeds are fixed).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from oracle import arms as oracle
from scipy import stats
from test_drivers import assert_same_bits, outcomes_of_both_drivers

from fastfed import advice
from fastfed._kernels import linalg
from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.radius import direct_regret_bound
from fastfed.bandits.silo import Silo
from fastfed.deployment.kinds import check_supported
from fastfed.environments import Arms, Sphere
from fastfed.privacy.sensitivity import DIAGONAL, joint_sensitivity
from fastfed.protocols.account import FOR_ARMS
from fastfed.protocols.plan import check_plan
from fastfed.protocols.randomizer import Shuffler
from fastfed.protocols.server import Server
from fastfed.simulation import compiled
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import problem_spec

RARE = 1e-6
MEANS = (0.3, 0.7, 0.5, 0.65)
PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 4.0, "delta": 1e-5}
BITS = {
    "algorithm": "private-fedlinucb",
    "epsilon": 2.0,
    "protocol": "user-bit",
    "protects": "reward",
}
CURVES: dict[str, dict[str, Any]] = {
    "federated": {"algorithm": "fedlinucb"},
    "federated, no sieve": {"algorithm": "fedlinucb", "sieve": 1.0},
    "federated, bonus": {"algorithm": "fedlinucb", "bonus": 0.5},
    "federated, eager": {"algorithm": "fedlinucb", "lazy": False},
    "every round": {"algorithm": "fedlinucb", "batch_size": 1},
    "alone": {"algorithm": "local-linucb"},
    "alone, no sieve": {"algorithm": "local-linucb", "sieve": 1.0},
    "thompson": {"algorithm": "thompson"},
    "thompson, lazy": {"algorithm": "thompson", "lazy": True, "batch_size": 7},
    "bits": BITS,
    "bits, eager": {**BITS, "lazy": False},
    "bits, returning": {**BITS, "returning": 3, "batch_size": 10},
    "bits, counted": {**BITS, "shuffled": True, "delta": 1e-3, "batch_size": 7},
    "bits, counted, growing": {**BITS, "shuffled": True, "delta": 1e-3, "epsilon": 0.5},
    "rewards, silo": {**PRIVATE, "protects": "reward"},
    "rewards, server": {**PRIVATE, "protects": "reward", "protocol": "central"},
    "silo": PRIVATE,
    "silo, tree": {**PRIVATE, "release": "tree", "batch_size": 6},
    "silo, no sieve": {**PRIVATE, "sieve": 1.0},
    "silo, eager": {**PRIVATE, "lazy": False},
    "silo, little noise": {**PRIVATE, "epsilon": 400.0},
    "silos of two budgets": {**PRIVATE, "epsilon": None, "silo_epsilon": [4.0, 9.0, 4.0]},
    "server": {**PRIVATE, "protocol": "central"},
    "prefix": {**PRIVATE, "protocol": "silo-ldp-prefix"},
    "drawn once": {**PRIVATE, "noise_draws": "sum"},
    "returning": {**PRIVATE, "returning": 2},
    "zero-out": {**PRIVATE, "relation": "zero-out"},
    "random": {"algorithm": "random"},
}


def experiment(
    curve: dict[str, Any], silos: int = 3, horizon: int = 120, environment: Any = None
) -> Any:
    """Return an experiment of one curve on arms."""
    table = {key: value for key, value in curve.items() if value is not None}
    return make_experiment(
        name="arms",
        environment=environment or Arms(means=MEANS),
        curves=[{"label": "x", **table}],
        horizon=horizon,
        silos=silos,
        seed=7,
        checkpoints=5,
    )


def system(curve: dict[str, Any], silos: int = 3, horizon: int = 120, **keys: Any) -> Any:
    """Return the system of a curve on arms."""
    table = {k: v for k, v in {**curve, **keys}.items() if v is not None and k != "algorithm"}
    environment_facts = Arms(means=MEANS).facts(silos, horizon)
    problem = problem_spec(environment_facts, silos, horizon)
    return ALGORITHMS[curve["algorithm"]].make(table, problem)


# ---- both drivers --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_the_two_drivers_agree_bit_for_bit(name: str) -> None:
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(CURVES[name]))
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("name", ["federated", "federated, eager", "thompson", "silo", "bits"])
@pytest.mark.parametrize(
    ("silos", "horizon", "arms"), [(1, 1, 2), (1, 90, 2), (2, 64, 9), (5, 33, 17)]
)
def test_the_two_drivers_agree_at_corner_sizes(
    name: str, silos: int, horizon: int, arms: int
) -> None:
    e = experiment(CURVES[name], silos, horizon, Arms(actions=arms))
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("arms", [2, 11])
@pytest.mark.parametrize(
    "name", [n for n in CURVES if n.endswith("eager")] + ["alone", "alone, no sieve"]
)
@pytest.mark.parametrize("silos", [4, 17, 40])
def test_the_two_drivers_agree_where_silos_are_simulated_in_groups(
    name: str, silos: int, arms: int
) -> None:
    """Use groups of 16 silos, the last of which is not full (src/ff_groups.c)."""
    e = experiment(CURVES[name], silos, 90, Arms(actions=arms))
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e, rounds_per_call=37)
    assert_same_bits(compiled_outcome, step_outcome)


def test_curves_in_groups_and_others_agree_with_the_step_driver() -> None:
    """One run has curves in groups, curves silo by silo, and several schedules."""
    names = ("alone", "federated", "federated, eager", "every round", "bits, eager", "thompson")
    e = make_experiment(
        name="arms",
        environment=Arms(means=MEANS),
        curves=[{"label": name, **CURVES[name]} for name in names],
        horizon=60,
        silos=18,
        checkpoints=7,
    )
    for threads in (1, 2):
        for ours, theirs in zip(*outcomes_of_both_drivers(e, threads=threads), strict=True):
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize("regularizer", [1e-3, 2.0])
def test_the_two_drivers_agree_where_a_noisy_count_is_negative(regularizer: float) -> None:
    """With a regularizer far below the noise, both drivers shift V and count the shifts."""
    curve = {**PRIVATE, "epsilon": 0.3, "regularizer": regularizer, "batch_size": 4}
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(curve))
    assert compiled_outcome.events["indefinite"] > 0
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("keys", [{}, {"batch_size": 7}])
def test_the_two_drivers_agree_for_one_agent(keys: dict[str, Any]) -> None:
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        experiment({"algorithm": "linucb", **keys}, 1)
    )
    assert_same_bits(compiled_outcome, step_outcome)


# ---- choices against the oracle ------------------------------------------------------------------


class KeyRecordingSilo(Silo):
    """A silo that records the key of its last draw of a score."""

    key = 0

    def _score_key(self) -> int:
        """Draw the key of the score function, and record it."""
        self.key = super()._score_key()
        return self.key


def bounds_of(deployment: Any) -> oracle.Bounds:
    """Return the numbers from which the oracle's confidence bounds are computed."""
    plan, theory = deployment.plan, deployment.theory
    arms = plan.dimension
    union = 1 if plan.lazy or plan.batch_size == 1 else plan.silos
    alpha = 0.01 if not plan.noise_std.bias else 0.005
    return oracle.Bounds(
        n=theory.lambda_max - theory.regularizer,
        e=plan.radius.error_bound,
        failure=alpha / (arms * union),
        private=plan.noise_std.bias > 0.0,
        scale=plan.radius.scale,
        anchor=plan.radius.anchor,
    )


def replay(deployment: Any, seed: int = 5, replicate: int = 0) -> list[np.ndarray]:
    """Run a plan by its parties, compare every choice with the oracle's, and return releases."""
    plan, bounds = deployment.plan, bounds_of(deployment)
    arms, noise = plan.dimension, SeededNoise(seed, replicate)
    world = Arms(means=MEANS).open(seed, replicate, plan.silos)
    silos, server = (
        [KeyRecordingSilo(plan, i, noise) for i in range(plan.silos)],
        Server(plan, noise),
    )
    shuffler = Shuffler(plan, noise)
    diagonal = [arms + a * (a + 1) // 2 + a for a in range(arms)]
    total, release = np.zeros(plan.statistic_size), 0
    points: list[list[tuple[int, float]]] = [[] for _ in silos]
    releases = []
    for t in range(1, plan.horizon + 1):
        for i, silo in enumerate(silos):
            counts, sums = total[diagonal].copy(), total[:arms].copy()
            for a, y in [] if plan.lazy else points[i]:
                counts[a] += 1.0
                sums[a] += y
            means, bonus = bounds.at(release, counts, sums, total[diagonal])
            rows, expected = world.round(i, t)
            chosen = silo.select(np.asfortranarray(rows))
            if deployment.algorithm == "thompson":
                # Without noise the sums are whole numbers.
                values = oracle.thompson(silo.key, sums, counts - sums)
            elif plan.ranking == 1.0:
                values = means + bonus
            else:
                sieve = silo._slack, plan.ranking, plan.reward_limit
                key = silo.key if plan.score is not None else None
                values = oracle.sieved(means, bonus, *sieve, key)
            # Equal values may differ in rounding.
            assert values[chosen] >= values.max() - 1e-10 * bonus.max()
            reward = world.reward(i, t, expected[chosen])
            silo.observe(reward)
            y = reward
            if plan.flips:
                to_bit, to_flip = (
                    SeededNoise(seed, replicate).random_u32(i, t, 4).view(np.uint64) >> 11
                )
                bit = int(float(to_bit) < reward * 2.0**53) ^ int(int(to_flip) < plan.flips)
                q = plan.flips / 2.0**53
                y = (bit - q) / (1.0 - 2.0 * q)
            points[i].append((chosen, y))
        if silos[0].due:
            messages = [silo.report() for silo in silos]
            if plan.protocol.shuffled:
                messages = shuffler.shuffle(messages)
            broadcast = server.combine(messages)
            for silo in silos:
                silo.receive(broadcast)
            total, release = broadcast.values, broadcast.release
            releases.append(total)
            points = [[] for _ in silos]
    return releases


REPLAYED = [name for name in CURVES if name not in ("random", "drawn once")]


@pytest.mark.parametrize("name", REPLAYED)
def test_the_oracle_repeats_every_choice(name: str) -> None:
    """The oracle adds up counts and sums again, also from users' bits; released sums are given."""
    releases = replay(system(CURVES[name]))
    off_diagonal = [4 + i * (i + 1) // 2 + j for i in range(4) for j in range(i)]
    for total in releases:
        assert (total[off_diagonal] == 0.0).all()


def test_the_oracle_detects_a_changed_radius() -> None:
    deployment = system(CURVES["federated, no sieve"])
    radius = dataclasses.replace(deployment.plan.radius, multiplier=0.2)
    wrong = dataclasses.replace(
        deployment, plan=dataclasses.replace(deployment.plan, radius=radius)
    )
    with pytest.raises(AssertionError):
        replay(wrong)


def test_counts_add_up_to_the_number_of_rounds() -> None:
    """Without noise the counts of a release are those of the rounds before it."""
    deployment = system(CURVES["federated"])
    diagonal = [4 + a * (a + 1) // 2 + a for a in range(4)]
    for total, end in zip(replay(deployment), deployment.plan.ends, strict=True):
        assert total[diagonal].sum() == 3 * end
        assert (total[:4] <= total[diagonal]).all()


# ---- kernels -------------------------------------------------------------------------------------


def test_the_model_of_arms_equals_its_definition() -> None:
    rng = np.random.default_rng(1)
    for arms in (2, 7, 8, 9, 40):
        v, u = rng.uniform(0.5, 3.0, arms), rng.normal(size=arms)
        rows = np.asfortranarray(np.eye(arms), np.float32)
        model = linalg.FixedModel(rows, np.diag(v**-0.5), u / v, np.inf)
        for _ in range(200):
            beta, gamma = rng.uniform(0.1, 2.0, 2)
            a, y = model.select(beta, gamma), float(rng.integers(2))
            values = u / v + beta / np.sqrt(v) + gamma / v
            assert values[a] >= values.max() - 1e-12
            assert model.observe(y) == pytest.approx(1.0 + 1.0 / v[a], rel=1e-12)
            v[a], u[a] = v[a] + 1.0, u[a] + y
            assert model.log_entry() == pytest.approx(math.log(v[a]), rel=1e-12)
            np.testing.assert_allclose(model.parts()[:3], [u / v, 1.0 / v, v**-2.0], rtol=1e-11)
        assert 1.0 / v.min() <= model.inverse_norm() <= (1.0 + 1e-11) / v.min()


def test_updates_of_arms_equal_those_of_other_features() -> None:
    rng = np.random.default_rng(2)
    w, theta = np.diag(rng.uniform(0.3, 1.0, 5)), rng.normal(size=5)
    other_w, other_theta = w.copy(), theta.copy()
    for _ in range(50):
        x, y = np.eye(5)[rng.integers(5)], float(rng.normal())
        s = linalg.arms_observe(w, theta, x, y)
        assert s == pytest.approx(linalg.observe(other_w, other_theta, x, y), rel=1e-12)
        np.testing.assert_allclose(w, other_w, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(theta, other_theta, rtol=1e-12, atol=1e-15)
    largest = math.log(float((np.diag(w) ** -2.0).max()))
    assert linalg.log_volume(w, True) == pytest.approx(largest, rel=1e-12)
    assert linalg.log_volume(w, False) == pytest.approx(linalg.log_det(w), rel=1e-15)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (0, 9), (3, 1), (40, 60)])
def test_draws_of_thompson_sampling_have_the_posterior_of_each_mean(wins: int, losses: int) -> None:
    """Test the oracle's draws of two arms. Another test shows that the kernel's are equal."""
    counts = np.array([wins, 1]), np.array([losses, 2])
    first, second = np.array([oracle.thompson(k * k + 17, *counts) for k in range(3000)]).T
    assert stats.kstest(first, stats.beta(1 + wins, 1 + losses).cdf).pvalue > RARE
    assert stats.kstest(second, stats.beta(2, 3).cdf).pvalue > RARE


# ---- privacy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 0.9, 1.0, 1.7])
def test_the_sensitivity_of_arms_equals_the_largest_change_by_a_record(ratio: float) -> None:
    """Compare with an enumeration, which is smaller if counts have more noise than sums."""
    assert oracle.largest_mu(2.0, 2.0 * ratio) <= (1.0 + 1e-12) * joint_sensitivity(
        "replace", DIAGONAL, bias_std=2.0, cov_std=2.0 * ratio
    )
    if ratio <= 1.0:
        assert oracle.largest_mu(2.0, 2.0 * ratio) == pytest.approx(
            joint_sensitivity("replace", DIAGONAL, bias_std=2.0, cov_std=2.0 * ratio), rel=1e-12
        )
    zero_out_by_hand = math.hypot(1.0 / 2.0, 1.0 / (2.0 * ratio))
    zero_out = joint_sensitivity("zero-out", DIAGONAL, bias_std=2.0, cov_std=2.0 * ratio)
    assert zero_out == pytest.approx(zero_out_by_hand, rel=1e-12)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    upper = stats.norm.cdf(mu / 2.0 - epsilon / mu)
    return float(upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2.0 - epsilon / mu))


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix", "central"])
def test_the_certificate_of_arms_follows_from_their_noise(protocol: str) -> None:
    """One user enters floor(log2 K) + 1 nodes of the tree, in the worst case all of them."""
    deployment = system(PRIVATE, protocol=protocol, release="tree", batch_size=15)
    std = deployment.plan.noise_std
    assert std.off_diagonal == 0.0 and std.bias == std.diagonal > 0.0
    nodes = deployment.plan.releases.bit_length()
    mu = math.sqrt(nodes) * oracle.largest_mu(std.bias, std.diagonal)
    assert deployment.certificate.status == "proven"
    assert gaussian_delta(mu, deployment.certificate.exact.epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert deployment.certificate.exact.epsilon <= 4.0


def test_arms_need_less_noise_than_contexts() -> None:
    """For d >= 2 the noise of contexts is larger, and it is on K (K + 1) / 2 entries."""
    arms = system(PRIVATE, release="tree", batch_size=15)
    facts = Sphere(dimension=4, actions=4).facts(3, 120)
    keys = {"epsilon": 4.0, "delta": 1e-5, "release": "tree", "batch_size": 15}
    contexts = ALGORITHMS["private-fedlinucb"].make(
        {**keys, "covariance_ratio": 1.0, "layout": "iid"}, problem_spec(facts, 3, 120)
    )
    assert arms.plan.noise_std.bias < contexts.plan.noise_std.bias
    assert contexts.plan.noise_std.off_diagonal > 0.0


def test_only_rewards_are_protected_with_exact_counts() -> None:
    deployment = system(CURVES["rewards, silo"])
    assert deployment.plan.noise_std.diagonal == deployment.plan.noise_std.off_diagonal == 0.0
    diagonal = [4 + a * (a + 1) // 2 + a for a in range(4)]
    for total, end in zip(replay(deployment), deployment.plan.ends, strict=True):
        assert total[diagonal].sum() == 3 * end


def test_a_plan_without_arms_has_no_account_of_diagonal_noise() -> None:
    plan = system(CURVES["silo, no sieve"]).plan
    assert check_plan(plan) is plan
    with pytest.raises(InputError, match="epsilon"):
        check_plan(dataclasses.replace(plan, arms=False))
    std = dataclasses.replace(plan.noise_std, diagonal=0.9 * plan.noise_std.diagonal)
    with pytest.raises(InputError, match="epsilon"):
        check_plan(dataclasses.replace(plan, noise_std=std))


def test_a_score_for_the_diagonal_is_refused_without_arms() -> None:
    facts = Sphere(dimension=4, actions=4).facts(3, 120)
    plan = ALGORITHMS["fedlinucb"].make({"sieve": 1.0}, problem_spec(facts, 3, 120)).plan
    score = system(CURVES["thompson"]).plan.score
    with pytest.raises(InputError, match="arms if its score is for the diagonal"):
        check_plan(dataclasses.replace(plan, score=score))


def test_an_environment_whose_features_are_not_unit_vectors_fails() -> None:
    e = experiment(CURVES["thompson"])
    plan = e.curves[0].system.plan
    world = Sphere(dimension=4, actions=3).open(0, 0, 3)
    with pytest.raises(RuntimeError):
        compiled.run(world, [plan], e.checkpoints)


def test_a_silo_refuses_features_that_are_no_arm() -> None:
    """The reason: entries off the diagonal have no noise, so such features would be exposed."""
    silo = Silo(system(CURVES["silo"]).plan, 0, SeededNoise(1, 0))
    for actions in (np.full((1, 4), 0.5), np.full((4, 4), 0.5), np.eye(4)[:3], np.eye(4)[::-1]):
        with pytest.raises(InputError, match=r"actions must be the unit vectors numpy.eye\(4\)"):
            silo.select(actions)
    silo.select(np.eye(4))


def test_the_condition_of_unit_vectors_fails_for_other_problems() -> None:
    from fastfed.bandits import account

    plan = system(CURVES["silo"]).plan
    problem = problem_spec(Sphere(dimension=4, actions=4).facts(3, 120), 3, 120)
    certificate = account(plan, problem)
    assert certificate.status == "conditional"
    assert any("unit vector" in c.text and not c.holds for c in certificate.conditions)


def test_deployments_refuse_arms() -> None:
    with pytest.raises(InputError, match="deployments do not run plans with arms without contexts"):
        check_supported(system(CURVES["silo, no sieve"]).plan)


# ---- confidence sets -----------------------------------------------------------------------------


def covered(curve: dict[str, Any], runs: int, multiplier: float = 1.0) -> int:
    """Return in how many runs every mean was in its confidence set whenever a silo chose."""
    deployment = system(curve, silos=2, horizon=40, failure_probability=0.2, sieve=1.0)
    plan, covered_runs = deployment.plan, 0
    rows = np.asfortranarray(np.eye(4), np.float32)
    for replicate in range(runs):
        noise = SeededNoise(11, replicate)
        world = Arms(means=MEANS).open(11, replicate, 2)
        silos, server = [Silo(plan, i, noise) for i in range(2)], Server(plan, noise)
        holds = True
        for t in range(1, plan.horizon + 1):
            for i, silo in enumerate(silos):
                root = np.diag(silo._estimate.w)
                width = silo._radius() * root + silo._second_bonus * root**2
                error = np.abs(silo._estimate.theta - MEANS)
                holds &= bool((error <= multiplier * width * (1.0 + 1e-9)).all())
                silo.observe(world.reward(i, t, MEANS[silo.select(rows)]))
            if silos[0].due:
                broadcast = server.combine([silo.report() for silo in silos])
                for silo in silos:
                    silo.receive(broadcast)
        covered_runs += holds
    return covered_runs


COVERED = {
    "federated": {"algorithm": "fedlinucb", "batch_size": 5},
    "eager": {"algorithm": "fedlinucb", "batch_size": 5, "lazy": False},
    "silo": {**PRIVATE, "batch_size": 5, "release": "tree"},
    "little noise": {**PRIVATE, "batch_size": 5, "epsilon": 100.0},
    "rewards": {**PRIVATE, "batch_size": 5, "protects": "reward"},
    "bits": {**BITS, "batch_size": 5},
}


@pytest.mark.parametrize("name", COVERED)
def test_confidence_sets_hold(name: str) -> None:
    """The sets hold in 4/5 of the runs at least, although ||theta*|| is above 1."""
    assert np.linalg.norm(MEANS) > 1.0
    assert covered(COVERED[name], 100) >= 80


def test_much_smaller_confidence_sets_fail() -> None:
    assert covered(COVERED["federated"], 100, multiplier=0.3) < 50


@pytest.mark.slow
@pytest.mark.parametrize("name", COVERED)
def test_confidence_sets_hold_in_a_thousand_runs(name: str) -> None:
    assert covered(COVERED[name], 1000) >= 800


def test_noise_bounds_have_their_probability() -> None:
    """A normal tail for each arm and release, computed from the noise alone."""
    deployment = system(PRIVATE, failure_probability=0.2)
    plan, alpha = deployment.plan, 0.2
    tree = np.sqrt(3.0 * np.array(plan.factor.variances if plan.factor is not None else []))
    n = (deployment.theory.lambda_max - deployment.theory.regularizer)[1:]
    counts = plan.noise_std.diagonal * tree
    assert 4.0 * stats.norm.sf(n / counts).sum() <= alpha / 4.0
    errors = math.hypot(plan.noise_std.bias, plan.noise_std.diagonal) * tree
    tails = stats.norm.sf(plan.radius.error_bound[1:] / errors)
    assert 8.0 * tails.sum() <= alpha / 4.0 * (1.0 + 1e-6)


def test_regret_is_below_its_bound() -> None:
    e = experiment({"algorithm": "fedlinucb"}, 3, 20_000)
    curve = e.curves[0]
    bound = direct_regret_bound(curve.system.plan, curve.system.theory)
    assert bound is not None
    (outcome,), _ = outcomes_of_both_drivers(experiment({"algorithm": "fedlinucb"}, 3, 400))
    assert outcome.group_regret[-1] < bound


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        ({"algorithm": "feducb", "epsilon": 1.0, "delta": 1e-5}, "feducb needs contexts"),
        ({"algorithm": "linucb-jdp", "epsilon": 1.0, "delta": 1e-5}, "linucb-jdp needs contexts"),
        ({**PRIVATE, "protocol": "shuffle-vector"}, "protocol must be one of silo-ldp"),
        ({**PRIVATE, "protocol": "secure-sum"}, "protocol must be one of silo-ldp"),
        ({"algorithm": "fedlinucb", "radius": "lemma-c2"}, 'radius must be "direct" for arms'),
        ({**PRIVATE, "layout": "goe2"}, "layout must be left out for arms"),
        ({**PRIVATE, "release": "tree", "calibration": "theorem"}, 'calibration must be "exact"'),
        ({"algorithm": "fedlinucb", "share": {"until": 20}}, "share must be left out for arms"),
        ({"algorithm": "fedlinucb", "reward_centre": 0.5}, "reward_centre must be left out"),
        ({"algorithm": "fedlinucb", "regularizer": "published-code"}, 'regularizer must be "from'),
        (
            {"algorithm": "fedlinucb", "delay": {"kind": "geometric", "mean": 3, "deadline": 9}},
            "delay must be left out for arms",
        ),
        ({"algorithm": "fedlinucb", "clock": {"rates": [0.3]}}, "clock must be left out for arms"),
        ({"algorithm": "thompson", "sieve": 0.5}, "sieve below 1 needs"),
        ({"algorithm": "thompson", "radius_multiplier": 2.0}, "radius_multiplier has no meaning"),
        ({"algorithm": "thompson", "epsilon": 1.0}, 'unknown key "epsilon" for thompson'),
    ],
)
def test_keys_that_arms_do_not_allow_are_refused(curve: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(curve)


def test_thompson_needs_arms() -> None:
    with pytest.raises(InputError, match="thompson needs arms without contexts"):
        experiment({"algorithm": "thompson"}, environment=Sphere(dimension=3, actions=4))


@pytest.mark.parametrize("protocol", ["shuffle-vector", "secure-sum", "shuffle-amplified"])
def test_other_protocols_have_no_account_for_arms(protocol: str) -> None:
    assert protocol not in FOR_ARMS
    facts = Sphere(dimension=4, actions=4).facts(3, 120)
    keys = {"epsilon": 4.0, "delta": 1e-5, "protocol": protocol}
    plan = ALGORITHMS["private-fedlinucb"].make(keys, problem_spec(facts, 3, 120)).plan
    with pytest.raises(InputError, match="no arms, or one of the protocols"):
        check_plan(dataclasses.replace(plan, arms=True))


# ---- widths of the sieve, and advice -------------------------------------------------------------


def test_widths_of_arms_equal_widths_in_one_dimension() -> None:
    """C of docs/radius.md without noise (n = E = 0, lambda = c = 1), for rows of one arm."""
    plan = system(CURVES["federated"]).plan
    alpha = 0.01 / 4.0
    for k, width in enumerate(plan.widths):
        rows = 3 * plan.end(k)
        beta = 0.5 * math.sqrt(2.0 * math.log(1.0 / alpha) + math.log(1.0 + rows))
        assert width == pytest.approx(beta + 1.0, rel=1e-12)


def test_messages_are_counts_and_sums() -> None:
    plan = system(CURVES["silo"]).plan
    assert plan.bits_up_of(2) == plan.bits_down_of(2) == 2 * 64 * (4 + 4) * 3


def test_advice_on_arms_compares_only_protocols_for_arms() -> None:
    keys = {"silos": 3, "horizon": 60, "epsilon": 4.0, "delta": 1e-5, "seconds": 0.05}
    answer = advice.plan(environment=Arms(means=MEANS), **keys)
    assert {verdict.trust for verdict in answer.verdicts} == {"silo-ldp", "central"}
    assert {c.protocol for c in answer.candidates} == {"silo-ldp", "central"}
    with pytest.raises(InputError, match="trust must be one of silo-ldp, central for arms"):
        advice.plan(environment=Arms(means=MEANS), trust="shuffle", **keys)
