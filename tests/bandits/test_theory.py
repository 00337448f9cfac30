"""Tests of radius, regularizer and the events behind them, and of certificates of systems."""

import math

import numpy as np
import pytest

import fastfed
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.certify import SAME_SILO_CAVEAT
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import ANCHOR_SHARE, FLOOR
from fastfed.privacy.certificate import Condition, Guarantee
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes
from fastfed.privacy.sensitivity import layout_stds
from fastfed.protocols.plan import NoiseStd
from fastfed.simulation.systems import make_system

SETTING = ProblemSpec(silos=100, horizon=10_000, dimension=10)


def private_system(problem=SETTING, **keys):
    """Make a private system with this problem and keys."""
    defaults = {"batch_size": 25, "epsilon": 1.0, "delta": 1e-5, "release": "tree"}
    return ALGORITHMS["private-fedlinucb"].make({**defaults, **keys}, problem)


def noise_matrices(layout, count, d, rng):
    """Draw symmetric noise matrices of a layout."""
    off, diagonal = layout_stds(layout, 1.0)
    lower = np.tril(rng.normal(size=(count, d, d)), -1) * off
    return lower + lower.transpose(0, 2, 1) + np.eye(d) * rng.normal(size=(count, 1, d)) * diagonal


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("d", [1, 2, 10, 40])
def test_operator_norm_bound_has_its_probability(layout, d):
    """Draw 2000 matrices at failure probability 0.05; a correct bound fails more than 150 times
    once in 10^8 runs."""
    off, diagonal = layout_stds(layout, 1.0)
    distribution = NoiseDistribution(NoiseStd(1.0, off, diagonal), 1, np.array([0.0, 1.0]))
    rng = np.random.default_rng(0)
    norms = np.abs(np.linalg.eigvalsh(noise_matrices(layout, 2000, d, rng))).max(axis=1)
    first_bound, bound = distribution.operator_norms(d, 0.05)
    assert first_bound == 0.0
    assert (norms > bound).sum() <= 150
    # For GOE matrices the bound is nearly attained.
    assert bound < (1.05 if layout != "iid" else 1.7) * np.quantile(norms, 0.95)


@pytest.mark.parametrize("d", [1, 3, 30])
def test_vector_norm_bound_has_its_probability(d):
    """Expect 200 failures of 4000, since the bound is exact; outside 130 to 270 once in 10^6
    runs."""
    distribution = NoiseDistribution(
        NoiseStd(2.0, 1.0, 1.0), noises=3, variances=np.array([0.0, 2.0])
    )
    h = np.random.default_rng(1).normal(size=(4000, d)) * 2.0 * math.sqrt(6)
    assert 130 <= (np.linalg.norm(h, axis=1) > distribution.vector_norms(d, 0.05)[1]).sum() <= 270


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("d", [1, 3, 30])
def test_error_bound_has_its_probability(layout, d):
    """Check ||N theta - h|| with ||theta|| = 1; the bound is exact for GOE layouts."""
    off, diagonal = layout_stds(layout, 0.7)
    distribution = NoiseDistribution(NoiseStd(1.0, off, diagonal), 4, np.array([0.0, 0.5]))
    rng = np.random.default_rng(2)
    theta = rng.normal(size=d)
    theta /= np.linalg.norm(theta)
    noise = 0.7 * noise_matrices(layout, 4000, d, rng) @ theta - rng.normal(size=(4000, d))
    exceeded_count = (
        math.sqrt(2.0) * np.linalg.norm(noise, axis=1) > distribution.errors(d, 0.05)[1]
    ).sum()
    assert exceeded_count <= 270
    assert layout == "iid" or exceeded_count >= 130


def test_the_failure_probability_is_divided_among_releases():
    """Check the union bound over releases with different variances."""
    single_release = NoiseDistribution(NoiseStd(1.0, 1.0, math.sqrt(2.0)), 1, np.array([0.0, 1.0]))
    three_releases = NoiseDistribution(
        NoiseStd(1.0, 1.0, math.sqrt(2.0)), 1, np.array([0.0, 1.0, 4.0, 9.0])
    )
    for name in ("operator_norms", "vector_norms", "errors"):
        bound = getattr(single_release, name)(5, 0.02)[1]
        assert getattr(three_releases, name)(5, 0.06) == pytest.approx(
            [0.0, bound, 2 * bound, 3 * bound]
        )


def test_regularity_of_lemma_c2_over_a_whole_tree():
    """Check lambda_min <= H_k <= lambda_max and ||h_k|| <= nu at every release of 300 runs."""
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
    assert failures <= 0.1 * 300  # alpha / 2 is the share of the noise


def test_the_last_confidence_set_of_a_run_contains_theta():
    """Check the last confidence set of 60 runs; at most 20 %, its failure probability, may fail."""
    from fastfed.environments import Sphere
    from fastfed.simulation import server
    from fastfed.simulation.systems import problem_spec

    sphere = Sphere(dimension=3, actions=5)
    problem = problem_spec(sphere.facts(2, 60), 2, 60)
    system = private_system(
        problem, batch_size=5, epsilon=8.0, failure_probability=0.2, radius="lemma-c2"
    )
    plan, outside_count = system.plan, 0
    for replicate in range(60):
        environment = sphere.open(0, replicate, 2)
        theta = sphere.theta(0, replicate)
        (outcome,) = server.run_steps(environment, [plan], np.array([60]))
        d, k = 3, plan.releases
        v = np.zeros((d, d))
        v[np.tril_indices(d)] = outcome.total[d:]
        v = v + np.tril(v, -1).T + plan.regularizer[k] * np.eye(d)
        error = theta - np.linalg.solve(v, outcome.total[:d])
        outside_count += error @ v @ error > plan.radius.at(k, plan.rows(k, 60), d) ** 2
    assert outside_count <= 0.2 * 60


def test_radius_of_lemma_c2_follows_its_formula():
    """Check release 7, which has three nodes. The bound on the noise of rewards gets half of alpha,
    split evenly over the distinct values of lambda_min."""
    system = private_system(radius="lemma-c2")
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


def test_radius_of_lemma_c2_without_noise_needs_no_union_bound():
    """Check one lambda_min, with all of alpha for rewards, and eager play with 100 orders of
    events."""
    plain = ALGORITHMS["fedlinucb"].make({"batch_size": 25, "radius": "lemma-c2"}, SETTING)
    assert plain.plan.radius.base == pytest.approx(2 * math.log(1 / 0.01))
    eager = private_system(radius="lemma-c2", lazy=False)
    assert eager.plan.radius.base == pytest.approx(2 * math.log(100 * 9 * 2 / 0.01))


def test_radius_of_lemma_c4_follows_its_formula_and_is_unproven():
    system = private_system(radius="lemma-c4")
    lam = system.theory.regularizer[1]
    expected = 0.5 * math.sqrt(
        2 * math.log(200) + 10 * math.log(1 + 2500 / (10 * lam))
    ) + math.sqrt(lam)
    assert system.plan.radius.at(1, system.plan.rows(1, 30), 10) == pytest.approx(expected)
    assert not system.theory.proven
    assert any("regret bound is unproven" in c for c in system.certificate.caveats)


@pytest.mark.parametrize("lazy", [True, False])
def test_default_radius_is_the_direct_radius(lazy):
    """Check lambda = n + c with c a tenth of the largest n, beta from det V and f, and E."""
    system = private_system(lazy=lazy)
    plan, theory = system.plan, system.theory
    assert theory.proven
    stds, nodes = plan.noise_std, np.array([k.bit_count() for k in range(401)])
    distribution = NoiseDistribution(stds, 100, nodes.astype(float))
    n = distribution.operator_norms(10, 0.01 / 4)
    anchor = ANCHOR_SHARE * n.max()
    assert plan.radius.direct
    assert plan.radius.anchor == pytest.approx(anchor)
    assert plan.regularizer == pytest.approx(n + anchor)
    assert plan.radius.floor[1:] == pytest.approx(FLOOR * plan.regularizer[1:])
    assert plan.radius.error_bound == pytest.approx(distribution.errors(10, 0.01 / 4))
    assert theory.lambda_min == pytest.approx(np.full(401, anchor))
    log_det, f = 123.0, 1.7
    base = 2 * math.log((1 if lazy else 100) * 2 / 0.01)
    expected = 0.5 * math.sqrt(f * (base + log_det + 10 * math.log(f / anchor)))
    assert plan.radius.of(0, f, log_det, 10) == pytest.approx(expected, rel=1e-12)


def test_a_given_lambda_of_the_direct_radius_is_constant():
    """Check that c is what n leaves of lambda; if nothing is left, the radius is unproven."""
    max_norm = float(
        (private_system().theory.lambda_max - private_system().theory.regularizer).max()
    )
    large_lambda = private_system(regularizer=1.5 * max_norm)
    assert large_lambda.theory.proven
    assert large_lambda.plan.radius.anchor == pytest.approx(0.5 * max_norm)
    assert (large_lambda.plan.regularizer == large_lambda.plan.regularizer[0]).all()
    assert not large_lambda.plan.radius.floor.any()
    assert not private_system(regularizer=0.5 * max_norm).theory.proven


def test_direct_radius_without_noise_is_the_determinant_radius():
    """Compare with Theorem 2 of Abbasi-Yadkori et al. (2011) for lambda = 1.

    Their term sqrt(lambda) ||x||_{V^-1} is lambda ||V^-1 x|| here, which is never larger.
    """
    plain = ALGORITHMS["fedlinucb"].make({"batch_size": 25}, SETTING)
    radius = plain.plan.radius
    assert (plain.plan.regularizer == 1.0).all()
    assert not radius.error_bound.any()
    assert not radius.floor.any()
    assert radius.of(0, 1.0, 20.0, 10) == pytest.approx(0.5 * math.sqrt(2 * math.log(100) + 20.0))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.1), (5.0, 0.001)])
def test_published_code_constants(epsilon, delta):
    """Check s, Lambda and the radius of the published code at T = 10^4, M = 100 and B = 25."""
    system = private_system(
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
def test_exact_epsilon_of_the_published_tables(keys, exact):
    certificate = private_system(**keys).certificate
    assert certificate.status == "proven"
    assert certificate.exact.epsilon == pytest.approx(exact, rel=1e-3)


def test_exact_noise_of_400_releases():
    certificate = private_system(epsilon=1.0, delta=0.01, covariance_ratio=1.0).certificate
    assert certificate.noise_std["bias"] == pytest.approx(11.3, abs=0.05)


def test_certificate_of_eager_play_proves_only_item_privacy():
    certificate = private_system(lazy=False).certificate
    assert (certificate.status, certificate.exact, certificate.unit) == ("unproven", None, "user")
    (side,) = certificate.also
    assert (side.unit, side.status) == ("item", "proven")
    assert side.exact.epsilon == pytest.approx(1.0)
    # With B = 1 no raw data remain between releases, so eager play is as private as lazy play.
    assert private_system(lazy=False, batch_size=1).certificate.status == "proven"


def test_lazy_play_also_protects_users_of_a_silo_from_each_other():
    models = [s.model for s in private_system().certificate.also]
    assert models == ["joint differential privacy against users of the same silo"]
    assert [s.model for s in private_system(protocol="central").certificate.also] == models


def test_epsilon_is_conditional_if_rewards_are_unbounded():
    problem = ProblemSpec(100, 10_000, 10, reward_scale=0.5, reward_range=None)
    certificate = private_system(
        problem, calibration="published-code", epsilon=5.0, delta=0.1
    ).certificate
    assert certificate.status == "unproven"
    failed = [condition.text for condition in certificate.conditions if not condition.holds]
    assert any(text.startswith("rewards bounded") for text in failed)
    side = certificate.also[0]
    assert side.exact.epsilon == pytest.approx(11.88, rel=1e-3)
    assert (side.unit, side.status) == ("user", "conditional")
    (failed,) = [
        condition.text
        for condition in side.conditions
        if not condition.holds and type(condition) is Condition
    ]
    assert failed.startswith("rewards bounded")
    clipped = private_system(problem, clip=True).certificate
    assert clipped.status == "proven"
    assert any("clipping does not move their mean" in condition for condition in clipped.caveats)


def test_certificate_without_privacy_has_status_none():
    certificate = ALGORITHMS["fedlinucb"].make({"batch_size": 25}, SETTING).certificate
    assert certificate.status == "none"
    assert certificate.claimed is certificate.exact is None
    assert certificate.caveats[0] == "no privacy"


def test_systems_that_send_nothing_have_epsilon_zero():
    """Check local LinUCB and random choices.

    A silo that learns alone reveals nothing to the server and other silos. It does not protect
    users of the same silo, and its certificate says so.
    """
    local_certificate = ALGORITHMS["local-linucb"].make({}, SETTING).certificate
    eager_certificate = private_system(lazy=False).certificate
    assert (local_certificate.unit, local_certificate.relation, local_certificate.model) == (
        "user",
        "replace",
        eager_certificate.model,
    )
    assert (local_certificate.claimed, local_certificate.exact, local_certificate.status) == (
        None,
        Guarantee(0.0, 0.0),
        "proven",
    )
    assert (
        SAME_SILO_CAVEAT in local_certificate.caveats
        and SAME_SILO_CAVEAT in eager_certificate.caveats
    )
    random_certificate = ALGORITHMS["random"].make({}, SETTING).certificate
    assert (random_certificate.claimed, random_certificate.exact, random_certificate.status) == (
        None,
        Guarantee(0.0, 0.0),
        "proven",
    )


def test_batch_size_of_the_theorem():
    """Check Corollary 5.2: B = sqrt(T / M)."""
    assert private_system(batch_size="theorem").plan.batch_size == 10
    assert private_system(batch_size="theorem").plan.releases == 1000


def test_a_last_short_batch_is_never_released():
    problem = ProblemSpec(3, 103, 4)
    plan = private_system(problem, batch_size=10).plan
    assert plan.releases == 10
    assert plan.bits_up_of(plan.releases) == 64 * 14 * 3 * 10


@pytest.mark.parametrize(
    ("keys", "message"),
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
def test_errors_about_bad_keys_are_one_sentence(keys, message):
    with pytest.raises(fastfed.InputError, match=message):
        private_system(**keys)


def test_noise_distribution_follows_the_sizes_of_prefixes():
    assert max_prefix_nodes(400) == 8
    radius, problem = private_system().plan.radius, ProblemSpec(1, 10_000, 10)
    # 255 is the first prefix of 8 nodes, and 400 = 256 + 128 + 16 has 3.
    errors = radius.error_bound
    assert errors.argmax() == 255
    assert errors[[255, 400]] == pytest.approx(errors[1] * np.sqrt([8.0, 3.0]))
    # Every silo adds noise: 100 silos have 10 times the noise of one silo.
    assert errors == pytest.approx(10.0 * private_system(problem).plan.radius.error_bound)


def test_systems_without_clipping_are_unproven_for_unbounded_data():
    """Check that no exact epsilon is stated if features and rewards may be unbounded."""
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
    unbounded_environment = fastfed.environments.Python(
        function=lambda *key: (100 * np.eye(2), [0, 1]), dimension=2, actions=2
    )
    results = fastfed.simulate(
        unbounded_environment, "private-fedlinucb", silos=2, horizon=20, batch_size=5,
        epsilon=1.0, delta=1e-3, clip=False,
    )  # fmt: skip
    assert results.curves[0].certificate["status"] == "unproven"


def test_radius_of_local_linucb_has_a_union_bound_over_silos():
    """Check ln(M / alpha), since each of M silos has its own confidence sets."""
    base = ALGORITHMS["local-linucb"].make({}, SETTING).plan.radius.base
    assert base == pytest.approx(2 * math.log(100 / 0.01))


def test_noise_of_a_wrong_shape_raises_an_error():
    system = make_system(
        "private-fedlinucb", silos=1, horizon=10, dimension=3, batch_size=1, epsilon=1.0, delta=1e-3
    )

    class Short:
        """A source whose noise is too short."""

        def node(self, silo, node, dimension):
            """Return two numbers, fewer than a statistic has."""
            return np.zeros(2)

    silo = fastfed.parties.Silo(system.plan, 0, Short())
    silo.select(np.eye(3))
    silo.observe(1.0)
    with pytest.raises(fastfed.InputError, match=r"noise must have shape \(9,\)"):
        silo.report()
    with pytest.raises(fastfed.InputError, match=r"plan must be a Plan, such as system\.plan"):
        fastfed.parties.Silo(system)


def test_error_about_too_much_noise_memory_names_an_alternative():
    from fastfed.environments import Sphere
    from fastfed.simulation.experiment import make_experiment

    def planned(**keys):
        """Return an experiment with Toeplitz noise and these keys changed."""
        curve = {"label": "x", "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5,
                 "batch_size": 25, "release": "toeplitz", **keys}  # fmt: skip
        return make_experiment(
            name="x", environment=Sphere(dimension=57), curves=[curve], horizon=25_000, silos=1000
        )

    problem = ProblemSpec(silos=1000, horizon=25_000, dimension=57)
    with pytest.raises(fastfed.InputError, match=r'13\.7 GB of noise.* or "honaker"'):
        planned()
    assert planned(release="honaker").curves[0].system.plan.release == "honaker"
    assert planned(protocol="central").curves[0].system.plan.release == "toeplitz"
    # A deployed silo stores only its own noise.
    assert private_system(problem, release="toeplitz").plan.release == "toeplitz"
