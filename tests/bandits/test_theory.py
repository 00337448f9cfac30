"""Radius, regularizer and the events they rest on; certificates of systems."""

import math

import numpy as np
import pytest

import fastfed
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.certify import SAME_SILO
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import ANCHOR, FLOOR
from fastfed.privacy.certificate import Condition, Guarantee
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes
from fastfed.privacy.sensitivity import layout_stds
from fastfed.protocols.plan import NoiseStd
from fastfed.simulation.systems import make_system

SETTING = ProblemSpec(silos=100, horizon=10_000, dimension=10)


def private(setting=SETTING, **keys):
    defaults = {"batch_size": 25, "epsilon": 1.0, "delta": 1e-5, "release": "tree"}
    return ALGORITHMS["private-fedlinucb"].make({**defaults, **keys}, setting)


def noise_matrices(layout, count, d, rng):
    off, diagonal = layout_stds(layout, 1.0)
    lower = np.tril(rng.normal(size=(count, d, d)), -1) * off
    return lower + lower.transpose(0, 2, 1) + np.eye(d) * rng.normal(size=(count, 1, d)) * diagonal


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("d", [1, 2, 10, 40])
def test_the_operator_norm_bound_holds_with_its_probability(layout, d):
    """2 000 draws at failure probability 0.05: more than 150 failures once in 10^8 runs."""
    off, diagonal = layout_stds(layout, 1.0)
    law = NoiseDistribution(NoiseStd(1.0, off, diagonal), 1, np.array([0.0, 1.0]))
    rng = np.random.default_rng(0)
    norms = np.abs(np.linalg.eigvalsh(noise_matrices(layout, 2000, d, rng))).max(axis=1)
    none, bound = law.operator_norms(d, 0.05)
    assert none == 0.0
    assert (norms > bound).sum() <= 150
    # And it is nearly attained where the matrix is a GOE one.
    assert bound < (1.05 if layout != "iid" else 1.7) * np.quantile(norms, 0.95)


@pytest.mark.parametrize("d", [1, 3, 30])
def test_the_vector_norm_bound_holds_with_its_probability(d):
    """It is exact: 200 failures of 4 000 expected, and outside 130 to 270 once in 10^6 runs."""
    law = NoiseDistribution(NoiseStd(2.0, 1.0, 1.0), noises=3, variances=np.array([0.0, 2.0]))
    h = np.random.default_rng(1).normal(size=(4000, d)) * 2.0 * math.sqrt(6)
    assert 130 <= (np.linalg.norm(h, axis=1) > law.vector_norms(d, 0.05)[1]).sum() <= 270


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("d", [1, 3, 30])
def test_the_error_bound_holds_with_its_probability(layout, d):
    """||N theta - h||, ||theta|| = 1: as above; exact for the GOE layouts."""
    off, diagonal = layout_stds(layout, 0.7)
    law = NoiseDistribution(NoiseStd(1.0, off, diagonal), 4, np.array([0.0, 0.5]))
    rng = np.random.default_rng(2)
    theta = rng.normal(size=d)
    theta /= np.linalg.norm(theta)
    noise = 0.7 * noise_matrices(layout, 4000, d, rng) @ theta - rng.normal(size=(4000, d))
    exceeded = (math.sqrt(2.0) * np.linalg.norm(noise, axis=1) > law.errors(d, 0.05)[1]).sum()
    assert exceeded <= 270
    assert layout == "iid" or exceeded >= 130


def test_all_releases_share_one_probability():
    """The union over releases, each with its own variance."""
    one = NoiseDistribution(NoiseStd(1.0, 1.0, math.sqrt(2.0)), 1, np.array([0.0, 1.0]))
    many = NoiseDistribution(NoiseStd(1.0, 1.0, math.sqrt(2.0)), 1, np.array([0.0, 1.0, 4.0, 9.0]))
    for name in ("operator_norms", "vector_norms", "errors"):
        unit = getattr(one, name)(5, 0.02)[1]
        assert getattr(many, name)(5, 0.06) == pytest.approx([0.0, unit, 2 * unit, 3 * unit])


def test_regularity_of_lemma_c2_over_a_whole_tree():
    """lambda_min <= H_k <= lambda_max and ||h_k|| <= nu at every release, for 300 whole runs."""
    system = make_system(
        "private-fedlinucb", silos=3, horizon=64, dimension=4, batch_size=1, epsilon=1.0,
        delta=1e-5, failure_probability=0.2, radius="lemma-c2", release="tree",
    )  # fmt: skip
    plan, theory = system.plan, system.theory
    rng = np.random.default_rng(3)
    off, diagonal = plan.noise_std.off_diagonal, plan.noise_std.diagonal
    failures = 0
    for _ in range(300):
        lower = np.tril(rng.normal(size=(65, 4, 4)), -1) * off * math.sqrt(3)
        spread = rng.normal(size=(65, 1, 4)) * diagonal * math.sqrt(3)
        nodes = lower + lower.transpose(0, 2, 1) + np.eye(4) * spread
        vectors = rng.normal(size=(65, 4)) * plan.noise_std.bias * math.sqrt(3)
        ok = True
        for k in range(1, 65):
            chosen, rest = [], k
            while rest:
                chosen.append(rest)
                rest -= rest & -rest
            h_matrix = theory.regularizer[k] * np.eye(4) + nodes[chosen].sum(axis=0)
            values = np.linalg.eigvalsh(h_matrix)
            h = vectors[chosen].sum(axis=0)
            ok &= values[0] >= theory.lambda_min[k]
            ok &= values[-1] <= theory.lambda_max[k]
            ok &= h @ np.linalg.solve(h_matrix, h) <= theory.nu[k] ** 2
        failures += not ok
    assert failures <= 0.1 * 300  # alpha / 2 is the noise's share


def test_confidence_sets_cover_in_a_whole_run():
    """theta* stays inside every confidence set: 60 runs, failure probability 0.2."""
    from fastfed.environments import Sphere
    from fastfed.simulation import server
    from fastfed.simulation.systems import problem_spec

    sphere = Sphere(dimension=3, actions=5)
    setting = problem_spec(sphere.facts(2, 60), 2, 60)
    system = private(setting, batch_size=5, epsilon=8.0, failure_probability=0.2, radius="lemma-c2")
    plan, outside = system.plan, 0
    for replicate in range(60):
        opened = sphere.open(0, replicate, 2)
        theta = sphere.theta(0, replicate)
        (played,) = server.run_steps(opened, [plan], np.array([60]))
        d, k = 3, plan.releases
        v = np.zeros((d, d))
        v[np.tril_indices(d)] = played.total[d:]
        v = v + np.tril(v, -1).T + plan.regularizer[k] * np.eye(d)
        error = theta - np.linalg.solve(v, played.total[:d])
        outside += error @ v @ error > plan.radius.at(k, plan.rows(k, 60), d) ** 2
    assert outside <= 0.2 * 60


def test_lemma_c2_radius_is_the_printed_formula():
    """At release 7, three nodes: half of alpha for rewards, once for each lambda_min there is."""
    system = private(radius="lemma-c2")
    theory, plan = system.theory, system.plan
    assert theory.proven
    lam, low, nu = theory.regularizer[7], theory.lambda_min[7], theory.nu[7]
    assert lam == pytest.approx(2 * low)
    assert theory.lambda_max[7] == pytest.approx(1.5 * lam)
    assert theory.regularizer[8] == pytest.approx(lam / math.sqrt(3))
    t = 100 * 7 * 25
    # Prefixes of 400 releases have 0 to 8 nodes.
    log_union = math.log(9 * 2 / 0.01)
    expected = (
        0.5 * math.sqrt(2 * log_union + 10 * math.log(1 + t / (10 * low)))
        + math.sqrt(1.5 * lam) + nu
    )  # fmt: skip
    assert plan.radius.at(7, plan.rows(7, 180), 10) == pytest.approx(expected, rel=1e-12)


def test_lemma_c2_for_one_lambda_is_without_a_union():
    """No noise: one lambda_min, all of alpha for rewards; eager play of 100 silos has 100."""
    plain = ALGORITHMS["fedlinucb"].make({"batch_size": 25, "radius": "lemma-c2"}, SETTING)
    assert plain.plan.radius.base == pytest.approx(2 * math.log(1 / 0.01))
    eager = private(radius="lemma-c2", lazy=False)
    assert eager.plan.radius.base == pytest.approx(2 * math.log(100 * 9 * 2 / 0.01))


def test_lemma_c4_is_as_printed_and_unproven():
    system = private(radius="lemma-c4")
    lam = system.theory.regularizer[1]
    expected = 0.5 * math.sqrt(
        2 * math.log(200) + 10 * math.log(1 + 2500 / (10 * lam))
    ) + math.sqrt(lam)
    assert system.plan.radius.at(1, system.plan.rows(1, 30), 10) == pytest.approx(expected)
    assert not system.theory.proven
    assert any("regret bound is unproven" in c for c in system.certificate.caveats)


@pytest.mark.parametrize("lazy", [True, False])
def test_the_direct_radius_is_the_default_and_its_formula(lazy):
    """lambda = n + c, c a tenth of the largest n; beta from det V and f; E from the law."""
    system = private(lazy=lazy)
    plan, theory = system.plan, system.theory
    assert theory.proven
    stds, nodes = plan.noise_std, np.array([k.bit_count() for k in range(401)])
    law = NoiseDistribution(stds, 100, nodes.astype(float))
    n = law.operator_norms(10, 0.01 / 4)
    anchor = ANCHOR * n.max()
    assert plan.radius.direct
    assert plan.radius.anchor == pytest.approx(anchor)
    assert plan.regularizer == pytest.approx(n + anchor)
    assert plan.radius.floor[1:] == pytest.approx(FLOOR * plan.regularizer[1:])
    assert plan.radius.error_bound == pytest.approx(law.errors(10, 0.01 / 4))
    assert theory.lambda_min == pytest.approx(np.full(401, anchor))
    log_det, f = 123.0, 1.7
    base = 2 * math.log((1 if lazy else 100) * 2 / 0.01)
    expected = 0.5 * math.sqrt(f * (base + log_det + 10 * math.log(f / anchor)))
    assert plan.radius.of(0, f, log_det, 10) == pytest.approx(expected, rel=1e-12)


def test_a_given_lambda_of_the_direct_radius_never_falls():
    """What n leaves of it is c, where something is left; else the radius is unproven."""
    most = float((private().theory.lambda_max - private().theory.regularizer).max())
    enough = private(regularizer=1.5 * most)
    assert enough.theory.proven
    assert enough.plan.radius.anchor == pytest.approx(0.5 * most)
    assert (enough.plan.regularizer == enough.plan.regularizer[0]).all()
    assert not enough.plan.radius.floor.any()
    assert not private(regularizer=0.5 * most).theory.proven


def test_without_noise_the_direct_radius_is_the_determinants():
    """Abbasi-Yadkori et al. 2011, Theorem 2 with lambda = 1: sqrt(lambda) ||x||_{V^-1} there,
    lambda ||V^-1 x|| here, which is never more."""
    plain = ALGORITHMS["fedlinucb"].make({"batch_size": 25}, SETTING)
    radius = plain.plan.radius
    assert (plain.plan.regularizer == 1.0).all()
    assert not radius.error_bound.any()
    assert not radius.floor.any()
    assert radius.of(0, 1.0, 20.0, 10) == pytest.approx(0.5 * math.sqrt(2 * math.log(100) + 20.0))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.1), (5.0, 0.001)])
def test_published_code_constants(epsilon, delta):
    """EXPERIMENTS: s, Lambda and the radius of the published code at T = 10^4, M = 100, B = 25."""
    system = private(
        epsilon=epsilon, delta=delta, calibration="published-code", radius="published-code",
        lazy=False, failure_probability=0.01,
    )  # fmt: skip
    n, m, d = 9, 100, 10
    s = math.sqrt(n * (math.log(1 / delta) + epsilon)) / epsilon
    lam = math.sqrt(m * n) * s * (math.sqrt(n + math.log(100)) + math.sqrt(d))
    assert system.plan.noise_std.bias == pytest.approx(s)
    assert system.plan.noise_std.off_diagonal == pytest.approx(s / math.sqrt(2))
    assert system.theory.regularizer == pytest.approx(np.full(401, lam))
    t = 333
    beta = math.sqrt(lam) * math.sqrt(d) + 0.5 * math.sqrt(
        d * math.log(1 + t * m / (d * lam)) + math.log(100)
    )
    assert system.plan.radius.at(13, system.plan.rows(13, t), d) == pytest.approx(beta)
    assert system.plan.clip is None
    plain = ALGORITHMS["fedlinucb"].make(
        {"batch_size": 25, "radius": "published-code", "lazy": False}, SETTING
    )
    assert plain.theory.regularizer == pytest.approx(np.full(401, 10.0))


@pytest.mark.parametrize(
    ("keys", "exact"),
    [
        ({"epsilon": 1.0, "delta": 0.001, "calibration": "theorem"}, 0.608),
        ({"epsilon": 5.0, "delta": 0.1, "calibration": "published-code", "clip": True}, 11.88),
        ({"epsilon": 1.0, "delta": 0.01}, 1.0),
    ],
)
def test_exact_privacy_of_the_tables(keys, exact):
    certificate = private(**keys).certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon == pytest.approx(exact, rel=1e-3)


def test_exact_noise_at_400_releases():
    certificate = private(epsilon=1.0, delta=0.01, covariance_ratio=1.0).certificate
    assert certificate.noise_std["bias"] == pytest.approx(11.3, abs=0.05)


def test_an_eager_run_is_unproven_for_users_and_proven_for_realised_pairs():
    certificate = private(lazy=False).certificate
    assert (certificate.status, certificate.exact, certificate.unit) == ("unproven", None, "user")
    (side,) = certificate.also
    assert (side.unit, side.status) == ("item", "proven")
    assert side.exact.epsilon == pytest.approx(1.0)
    # With B = 1 nothing raw is ever left over, so the eager run is as good as the lazy one.
    assert private(lazy=False, batch_size=1).certificate.status == "proven"


def test_a_lazy_run_also_protects_users_of_one_silo_from_each_other():
    models = [s.model for s in private().certificate.also]
    assert models == ["joint differential privacy against users of the same silo"]
    assert [s.model for s in private(protocol="central").certificate.also] == models


def test_unbounded_rewards_leave_the_value_only_under_an_assumption():
    setting = ProblemSpec(100, 10_000, 10, reward_scale=0.5, reward_range=None)
    certificate = private(setting, calibration="published-code", epsilon=5.0, delta=0.1).certificate
    assert certificate.status == "unproven"
    failed = [c.text for c in certificate.conditions if not c.holds]
    assert any(text.startswith("rewards bounded") for text in failed)
    side = certificate.also[0]
    assert side.exact.epsilon == pytest.approx(11.88, rel=1e-3)
    assert (side.unit, side.status) == ("user", "conditional")
    (failed,) = [c.text for c in side.conditions if not c.holds and type(c) is Condition]
    assert failed.startswith("rewards bounded")
    clipped = private(setting, clip=True).certificate
    assert clipped.status == "proven"
    assert any("clipping does not move their mean" in c for c in clipped.caveats)


def test_nothing_private_says_none():
    certificate = ALGORITHMS["fedlinucb"].make({"batch_size": 25}, SETTING).certificate
    assert certificate.status == "none"
    assert certificate.claimed is certificate.exact is None
    assert certificate.caveats[0] == "no privacy"


def test_what_sends_nothing_has_epsilon_zero():
    """A silo that learns alone tells server and other silos nothing; its own users it does not
    protect, and says so as every eager silo-level system does."""
    alone = ALGORITHMS["local-linucb"].make({}, SETTING).certificate
    eager = private(lazy=False).certificate
    assert (alone.unit, alone.relation, alone.model) == ("user", "replace", eager.model)
    assert (alone.claimed, alone.exact, alone.status) == (None, Guarantee(0.0, 0.0), "proven")
    assert SAME_SILO in alone.caveats and SAME_SILO in eager.caveats
    chance = ALGORITHMS["random"].make({}, SETTING).certificate
    assert (chance.claimed, chance.exact, chance.status) == (None, Guarantee(0.0, 0.0), "proven")


def test_the_batch_rule():
    """Corollary 5.2: B = sqrt(T / M)."""
    assert private(batch_size="theorem").plan.batch_size == 10
    assert private(batch_size="theorem").plan.releases == 1000


def test_a_last_short_batch_is_never_released():
    setting = ProblemSpec(3, 103, 4)
    plan = private(setting, batch_size=10).plan
    assert plan.releases == 10
    assert plan.bits_up_of(plan.releases) == 64 * 14 * 3 * 10


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0, got 0"),
        ({"epsilon": float("nan")}, "epsilon must be > 0, got nan"),
        ({"epsilon": "one"}, "epsilon must be a number"),
        ({"delta": 0.0}, "delta must be > 0 and < 1, got 0"),
        ({"delta": 1.0}, "delta must be > 0 and < 1, got 1"),
        ({"batch_size": 10_001}, r"batch_size must be <= horizon \(10000\), got 10001"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"batch_first": 10**9}, 'batch_first belongs to batch_size "growing"'),
        ({"batch_size": "theorm"}, 'did you mean "theorem"'),
        ({"protocol": "silo-dp"}, 'did you mean "silo-ldp"'),
        ({"calibration": "exakt"}, 'did you mean "exact"'),
        ({"relation": "swap"}, "relation must be one of"),
        ({"layout": "goe"}, "layout must be one of"),
        ({"radius": "lemma"}, "radius must be one of"),
        ({"radius_multiplier": 0}, "radius_multiplier must be > 0"),
        ({"failure_probability": 1.0}, "failure_probability must be >= 1e-30 and < 1"),
        ({"regularizer": -1.0}, "regularizer must be > 0"),
        (
            {"batchsize": 25},
            'unknown key "batchsize" for private-fedlinucb; did you mean "batch_size"',
        ),
    ],
)
def test_bad_keys_are_one_clear_sentence(keys, sentence):
    with pytest.raises(fastfed.InputError, match=sentence):
        private(**keys)


def test_prefix_sizes_reach_the_noise_law():
    assert max_prefix_nodes(400) == 8
    radius, setting = private().plan.radius, ProblemSpec(1, 10_000, 10)
    # 255 is the first prefix of 8 nodes, and 400 = 256 + 128 + 16 has 3.
    errors = radius.error_bound
    assert errors.argmax() == 255
    assert errors[[255, 400]] == pytest.approx(errors[1] * np.sqrt([8.0, 3.0]))
    # Every silo adds its own noise: 100 silos have 10 times one silo's.
    assert errors == pytest.approx(10.0 * private(setting).plan.radius.error_bound)


def test_nothing_unclipped_is_proven_on_anybodys_word():
    """Features that nobody bounds, rewards that nobody bounds: no exact value at the top."""
    for keys in ({"clip": False}, {"calibration": "published-code"}):
        system = make_system(
            "private-fedlinucb", silos=3, horizon=100, dimension=2, batch_size=10, epsilon=1.0,
            delta=1e-3, **keys,
        )  # fmt: skip
        assert system.plan.clip is None
        assert system.certificate.status == "unproven"
        failed = " ".join(c.text for c in system.certificate.conditions if not c.holds)
        assert "feature norms" in failed
        assert "rewards bounded" in failed
    wild = fastfed.environments.Python(
        function=lambda *key: (100 * np.eye(2), [0, 1]), dimension=2, actions=2
    )
    r = fastfed.simulate(
        wild, "private-fedlinucb", silos=2, horizon=20, batch_size=5, epsilon=1.0, delta=1e-3,
        clip=False,
    )  # fmt: skip
    assert r.curves[0].certificate["status"] == "unproven"


def test_a_silo_alone_pays_for_being_one_of_many():
    """Each of M silos keeps its own confidence sets: ln(M / alpha), as in eager play."""
    base = ALGORITHMS["local-linucb"].make({}, SETTING).plan.radius.base
    assert base == pytest.approx(2 * math.log(100 / 0.01))


def test_noise_of_a_wrong_shape_never_reaches_a_report():
    system = make_system(
        "private-fedlinucb", silos=1, horizon=10, dimension=3, batch_size=1, epsilon=1.0, delta=1e-3
    )

    class Short:
        def node(self, silo, node, dimension):
            return np.zeros(2)

    silo = fastfed.parties.Silo(system.plan, 0, Short())
    silo.select(np.eye(3))
    silo.observe(1.0)
    with pytest.raises(fastfed.InputError, match=r"noise must have shape \(9,\)"):
        silo.report()
    with pytest.raises(fastfed.InputError, match=r"plan must be a Plan, such as system\.plan"):
        fastfed.parties.Silo(system)


def test_noise_that_would_not_fit_is_refused_with_the_way_out():
    from fastfed.environments import Sphere
    from fastfed.simulation.experiment import make_experiment

    def planned(**keys):
        curve = {"label": "x", "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5,
                 "batch_size": 25, "release": "toeplitz", **keys}  # fmt: skip
        return make_experiment(
            name="x", environment=Sphere(dimension=57), curves=[curve], horizon=25_000, silos=1000
        )

    setting = ProblemSpec(silos=1000, horizon=25_000, dimension=57)
    with pytest.raises(fastfed.InputError, match=r'13\.7 GB of noise.* or "honaker"'):
        planned()
    assert planned(release="honaker").curves[0].system.plan.release == "honaker"
    assert planned(protocol="central").curves[0].system.plan.release == "toeplitz"
    # A deployed silo keeps its own noise only.
    assert private(setting, release="toeplitz").plan.release == "toeplitz"
