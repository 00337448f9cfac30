"""Compare systems with a single agent with the paper's pseudocode on the same draws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import problems
import pytest
from oracle import zhou_chowdhury_2024
from oracle.chowdhury_zhou_2022 import (
    PUBLISHED_NORM,
    Encoding,
    beta,
    beta_proven,
    noise_bounds,
    published,
    published_draws,
    regularizer,
    replay,
    total_noise_std,
    vec_noise_std,
)
from oracle.vector_sum import debias, fixed_point, lower_triangle, symmetric
from oracle.zhou_chowdhury_2024 import Direct, chosen_regularizer, direct_bonuses, scores
from test_drivers import experiment as experiment_of

from fastfed._kernels import rng
from fastfed._random import SHUFFLE, SeededNoise
from fastfed.environments import FixedSet, Replay, RewardDistribution, Sphere
from fastfed.simulation import dispatch
from fastfed.simulation.systems import make_system

AGENTS = dict(problems.agents())


def experiment(environment, sizes, **keys):
    """Return an experiment by the papers' rule: the action with the largest bound is chosen."""
    return experiment_of(environment, sizes, **{"sieve": 1.0, **keys})


PUBLISHED = {"calibration": "published-code", "radius": "published-code"}
R = 0.5


class OracleDraws:
    """The draws of the package's seeded source, in the form that the oracle needs."""

    def __init__(self, plan, seed, stds=None):
        self.plan, self.seed, self.source = plan, seed, SeededNoise(seed, 0)
        self.stds = stds or plan.noise_std.parts
        self.size = plan.dimension * (plan.dimension + 3) // 2

    def gaussian(self, silo, number, factor=1.0):
        """Return noise of x y and of x x' for a numbered draw, scaled by ``factor``."""
        d, (bias, off_diagonal, diagonal) = self.plan.dimension, (factor * s for s in self.stds)
        z = self.source.node(silo, number, d)
        covariance = np.array(symmetric(z[d:])) * off_diagonal
        np.fill_diagonal(covariance, np.diag(symmetric(z[d:])) * diagonal)
        return z[:d] * bias, covariance

    def uniforms(self, t):
        """Return the uniform numbers that round the data point of user t."""
        return self.source.random_u32(0, t, self.size) * 2.0**-32

    def ones_of_batch(self, m):
        """Return the ones among a batch's noise bits, in each entry."""
        trials = self.plan.batch_size * self.plan.encoding.noise_bits[0]
        return self.whole(self.source.binomials(0, m, self.size, trials) + trials / 4)

    def ones_of_user(self, t):
        """Return the ones among the noise bits of user t, in each entry."""
        b = self.plan.encoding.noise_bits[0]
        return self.whole(self.source.point_binomials(0, t, 0, self.size, b) + b / 4)

    @staticmethod
    def whole(ones):
        """Return these numbers as integers; they must already be whole."""
        assert (ones == np.rint(ones)).all()
        return np.rint(ones).astype(np.int64)

    def order(self, m):
        """Return the two permutations of a batch's users that the shuffler draws."""
        users = self.plan.batch_size
        return self.source.permutation(m, users), self.source.permutation(m, users, 1)

    def permutations(self, m):
        """Return the source position of each shuffled bit.

        The shuffler moves the binary digits of the positions, one digit at a time.
        """
        bits = self.plan.batch_size * self.plan.encoding.message_bits(0)
        positions = np.zeros((self.size, bits), np.int64)
        for label in range(self.size):
            for digit in range(bits.bit_length()):
                plane = (np.arange(bits) >> digit & 1).astype(np.uint8)
                rng.shuffle_bits(self.seed, SHUFFLE, 0, label + 1, m, plane)
                positions[label] |= plane.astype(np.int64) << digit
        return list(positions)


def prefix_noise(plan, draws):
    """Return a function of m that draws the noise of the prefix of m batches.

    The prefix of no batch has no noise.
    """

    def prefix(m):
        """Return the noise (bias, covariance) of the sum of the first m batches."""
        no_noise = np.zeros(plan.dimension), np.zeros((plan.dimension, plan.dimension))
        if m == 0:
            return no_noise
        if plan.release == "nested":
            given_draws = [draws.gaussian(1, i) for i in range(1, published_draws(m + 1) + 1)]
            return tuple(np.sum(parts, axis=0) for parts in zip(*given_draws, strict=True))
        return tuple(
            zhou_chowdhury_2024.prefix_noise(
                plan.release, m, lambda number, part=part: draws.gaussian(1, number)[part]
            )
            for part in (0, 1)
        )

    return prefix


def noise_of_two_encodings(plan, draws, points, units=(1.0, 1.0)):
    """Return a function of m: what Algorithms 5 to 7 add to the plain sums of batch m.

    The two streams differ in g. ``units`` L are the values of g steps of x y and of x x'.
    """
    d, b, size = plan.dimension, plan.encoding.noise_bits[0], draws.size
    sizes = (d, size - d)
    g, L = (np.repeat(part, sizes) for part in (plan.encoding.steps(0), units))

    def noise(m):
        """Return how much the decoded sum of batch m differs from the exact sum."""
        users = range((m - 1) * plan.batch_size + 1, m * plan.batch_size + 1)
        data = [
            np.append(x * y, lower_triangle(np.outer(x, x))) for x, y in (points(t) for t in users)
        ]
        user_ones = [draws.ones_of_user(t) for t in users] if plan.individual else []
        ones = np.sum(user_ones, axis=0) if user_ones else draws.ones_of_batch(m)
        sums = np.zeros(size)
        for j in range(size):
            column = np.array([[point[j]] for point in data])
            uniforms = np.array([[draws.uniforms(t)[j]] for t in users])
            steps = fixed_point(column, int(g[j]), L[j], uniforms, plan.clip is not None)
            counted = steps.sum(axis=0) + ones[j]
            (sums[j],) = debias(counted, len(data), int(g[j]), b, L[j], 1 / 4)
        sums -= np.sum(data, axis=0)
        return sums[:d], symmetric(sums[d:])

    return noise


def noise_arguments(system, plan, draws, points, units=(1.0, 1.0)):
    """Return the system and the oracle's arguments for the plan's draws."""
    if system == "linucb":
        return system, {}
    if system == "linucb-jdp":
        if plan.release == "tree":
            return system, {"node_noise": lambda n: draws.gaussian(1, n)}
        return system, {"prefix_noise": prefix_noise(plan, draws)}
    if plan.encoding is None:
        if not plan.individual:
            return system, {"batch_noise": lambda m: draws.gaussian(0, m)}
        user_scale = 1.0 / math.sqrt(plan.batch_size)
        arguments = {"user_noise": lambda t: draws.gaussian(0, t, user_scale)}
        return system, arguments | ({"order": draws.order} if system == "linucb-sdp-amp" else {})
    bias_steps, covariance_steps = plan.encoding.steps(0)
    if bias_steps != covariance_steps:
        return "linucb-ldp", {"batch_noise": noise_of_two_encodings(plan, draws, points, units)}
    arguments = {
        "encoding": Encoding(bias_steps, plan.encoding.noise_bits[0]),
        "uniforms": draws.uniforms,
    }
    if not plan.individual:
        return "linucb-sdp-vec", arguments | {"batch_ones": draws.ones_of_batch}
    if plan.protocol.shuffled:
        arguments["permutations"] = draws.permutations
    return "linucb-sdp-vec", arguments | {"user_ones": draws.ones_of_user}


def regularizer_and_width(e, sizes):
    """Return lambda(m) and beta(t, m) by the oracle's formulas.

    The radius is a lemma or the published code.
    """
    curve = e.curves[0]
    system, plan, keys = curve.system, curve.system.plan, curve.keys
    d, T, B = plan.dimension, e.horizon, plan.batch_size or 1
    M, alpha = T // B, keys["failure_probability"]

    def observed_rounds(t, m):
        """Return the number of rounds that the radius of round t counts after m releases."""
        # With releases in every round and no noise, the package also counts the current round.
        return m * B if plan.batch_size else t

    if keys["radius"] == "published-code":
        budget = {"epsilon": keys.get("epsilon", 1.0), "delta": keys.get("delta", 0.1)}
        constants = published(sizes["protocol"], T=T, d=d, B=B, **budget)
        return lambda m: constants.ridge / 2, lambda t, m: constants.width
    if keys["radius"] == "lemma-a4":
        bias = plan.noise_std.bias
        if plan.encoding is not None:
            bias = vec_noise_std(plan.encoding.precision[0], plan.encoding.noise_bits[0], B)
        batches = "linucb-sdp-vec" if not plan.protocol.tree else "linucb-jdp"
        # The plan's ``noise_std`` belongs to a batch of users; each batch adds one draw.
        sigma = total_noise_std("linucb" if bias == 0 else batches, bias, batches=M, B=B)
        lam = regularizer(sigma, T=M * B, B=B, d=d, alpha=alpha) if bias else 1.0
        return lambda m: lam, lambda t, m: beta(
            observed_rounds(t, m), d=d, lam=lam, alpha=alpha, R=R
        )
    assert keys["radius"] == "lemma-a2"
    theory = system.theory
    lam_min, lam_max, nu = theory.lambda_min, theory.lambda_max, theory.nu
    # There is one self-normalised bound for each lambda_min, and all must hold together. Without
    # noise, all of alpha covers the rewards.
    share = alpha / len(set(lam_min)) if lam_max[-1] > lam_min[-1] else 2.0 * alpha

    def proven(t, m):
        """Return the proven radius in round t after m releases."""
        k = min(m, len(lam_min) - 1)
        return beta_proven(
            observed_rounds(t, m),
            d=d,
            lam_min=lam_min[k],
            lam_max=lam_max[k],
            nu=nu[k],
            alpha=share,
            R=R,
        )

    return lambda m: plan.regularizer[min(m, len(lam_min) - 1)], proven


def direct_radius(plan):
    """Return the plan's direct radius in the oracle's form; other tests check its constants."""
    radius = plan.radius
    return Direct(
        full=lambda k: plan.regularizer[k],
        floor=lambda k: radius.floor[k],
        error=lambda k: radius.error_bound[k],
        anchor=radius.anchor,
        base=radius.base,
        scale=radius.scale,
        multiplier=radius.multiplier,
    )


def direct_gap(direct, plan, contexts, actions, totals):
    """Return the largest shortfall of the chosen actions under the direct radius, by definition."""
    d, max_gap = plan.dimension, 0.0
    B = plan.batch_size or 1
    for t, a in enumerate(actions, start=1):
        m = (t - 1) // B
        W, u = totals[m - 1] if m else (np.zeros((d, d)), np.zeros(d))
        k = m if plan.batch_size else 0
        lam, nearest = chosen_regularizer(direct, k, W)
        # Closer than this, rounding could change lambda; choose another seed then.
        assert nearest > 1e-12
        V = lam * np.eye(d) + W
        score, scale = scores(contexts(t), V, u, *direct_bonuses(direct, k, lam, V))
        max_gap = max(max_gap, (score.max() - score[a]) / scale if scale > 0 else 0.0)
    return max_gap


def replay_run(e, outcome, sizes, change=lambda direct: direct, rule=None):
    """Return the oracle's replay of the outcome and the worst gap."""
    plan, clip = e.curves[0].system.plan, e.curves[0].system.plan.clip
    environment, draws = e.environment.open(e.seed, 0, 1), OracleDraws(plan, e.seed)
    (actions,), (rewards,) = outcome.actions, outcome.rewards

    def contexts(t):
        """Return the features of the actions of round t."""
        return environment.round(0, t)[0].astype(float)

    def points(t):
        """Return the data point (x, y) of user t, clipped."""
        x, y = contexts(t)[actions[t - 1]], rewards[t - 1]
        if clip is None:
            return x, y
        return x / max(1.0, np.linalg.norm(x)), min(max(y, clip.low), clip.high)

    system, arguments = noise_arguments(sizes["protocol"], plan, draws, points)
    radius = e.curves[0].keys["radius"]
    if radius == "direct":
        # The replay only computes totals. Since lambda depends on V, direct_gap measures the gap
        # below.
        lambda_of, width = (lambda m: 1e12), (lambda t, m: 1.0)
    else:
        lambda_of, width = rule or regularizer_and_width(e, sizes)
    replayed = replay(
        system=system,
        contexts=contexts,
        means=lambda t: environment.round(0, t)[1],
        actions=actions,
        rewards=rewards,
        batch_size=plan.batch_size or 1,
        regularizer=lambda_of,
        radius=width,
        clip=None if clip is None else (clip.feature, clip.low, clip.high),
        **arguments,
    )
    gap = replayed.worst_gap
    if radius == "direct":
        gap = direct_gap(change(direct_radius(plan)), plan, contexts, actions, replayed.totals)
    return replayed, gap


def check_total(total, replayed, d):
    """Compare the package's packed total with the oracle's pair, relative to the largest sum."""
    V, u = replayed.totals[-1]
    for values, expected in ((total[:d], u), (total[d:], V[np.tril_indices(d)])):
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * np.abs(V).max())


def check_against_paper(environment, sizes, **keys):
    """Run the dispatcher and compare the outcome with the replayed pseudocode."""
    e = experiment(environment, sizes, **keys)
    plan = e.curves[0].system.plan
    environment_ = e.environment.open(e.seed, 0, 1)
    checkpoints = np.arange(1, e.horizon + 1)
    (outcome,) = dispatch.run(environment_, [plan], checkpoints, record=True)
    assert outcome.events["indefinite"] == 0
    replayed, gap = replay_run(e, outcome, sizes)
    assert gap < 1e-9
    np.testing.assert_allclose(outcome.group_regret, replayed.regret, rtol=1e-9, atol=1e-9)
    if plan.batch_size:
        assert len(replayed.totals) == outcome.synchronisations[-1] == plan.releases
        check_total(outcome.total, replayed, plan.dimension)
    return e, outcome, replayed


def sphere(sizes, **keys):
    """Return a sphere of the problem's sizes."""
    return Sphere(dimension=sizes["dimension"], actions=sizes["actions"], **keys)


@pytest.mark.parametrize("name", AGENTS)
def test_runs_follow_the_papers_pseudocode(name):
    check_against_paper(sphere(AGENTS[name]), AGENTS[name])


SLOW = pytest.mark.slow
INDIVIDUAL = [
    f"{size}, {system}"
    for size in ("every round", "short last batch", "one of everything", "low noise")
    for system in ("linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec")
    # With little noise, messages of bits are long.
    if (size, system) != ("low noise", "linucb-sdp-vec")
] + [f"{size}, linucb-ldp, mechanism vector-sum" for size in ("every round", "short last batch")]


@pytest.mark.parametrize(
    ("name", "ratio"),
    problems.ordinary_cases(
        [(name, ratio) for name in INDIVIDUAL for ratio in (None, 1.0)],
        # At a small epsilon, messages of bits are long; "one of everything" is short.
        lambda name, ratio: ratio is None or "linucb-sdp-vec" not in name or "everything" in name,
    ),
)
def test_runs_with_individual_messages_follow_the_papers_pseudocode(name, ratio):
    """Use the default ratio, where g differs between the streams, and ratio 1, where every bit is
    sent."""
    sizes = AGENTS[name]
    if ratio and sizes.get("mechanism", sizes["protocol"]) in ("linucb-sdp-vec", "vector-sum"):
        sizes = sizes | {"epsilon": 1.0}
    e, _, _ = check_against_paper(
        sphere(sizes), sizes, messages="individual", covariance_ratio=ratio
    )
    assert e.curves[0].system.plan.individual


@pytest.mark.parametrize(
    "name", ["short last batch, linucb-sdp-vec", "2^k - 1 releases, linucb-jdp, release toeplitz"]
)
def test_runs_on_fixed_sets_and_recorded_rounds_follow_the_pseudocode(name):
    sizes = AGENTS[name]
    check_against_paper(FixedSet(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)
    rng = np.random.default_rng(2)
    contexts = rng.normal(size=(1, 40, 4, 3))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
    pool = Replay.from_arrays(contexts, 3.0 * rng.uniform(size=(1, 40, 4)) - 1.0)
    _, outcome, _ = check_against_paper(pool, sizes)
    assert outcome.events["clipped_rewards"] > 0


def test_users_clip_rewards_outside_the_unit_interval():
    sizes = AGENTS["short last batch, linucb-sdp-amp"] | {"messages": "individual"}
    e, outcome, _ = check_against_paper(
        sphere(sizes, reward=RewardDistribution("gaussian", 0.5)), sizes
    )
    assert outcome.events["clipped_rewards"] > 0 and e.curves[0].system.plan.individual


@pytest.mark.parametrize("ratio", [None, 1.0])
@pytest.mark.parametrize("protocol", ["linucb-ldp", "linucb-sdp-vec"])
def test_rewards_are_not_clipped_if_clip_is_false(protocol, ratio):
    sizes = AGENTS[f"short last batch, {protocol}"]
    environment = sphere(sizes, reward=RewardDistribution("gaussian", 2.0))
    _, outcome, _ = check_against_paper(environment, sizes, clip=False, covariance_ratio=ratio)
    assert np.abs(outcome.rewards).max() > 2.0


# -- The comparisons detect planted faults ---------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "short last batch, linucb, radius lemma-a4",
        "low noise, linucb-jdp",
        "low noise, linucb-ldp",
        "low noise, linucb-sdp-vec",
        "short last batch, linucb-sdp-amp, radius lemma-a2",
        "short last batch, linucb-sdp-vec, calibration published-code, radius published-code",
    ],
)
def test_replay_detects_a_wrong_action(name):
    sizes = AGENTS[name]
    e, outcome, _ = check_against_paper(sphere(sizes), sizes)
    outcome.actions[0, 10] = (outcome.actions[0, 10] + 1) % sizes["actions"]
    assert replay_run(e, outcome, sizes)[1] > 1e-6


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(lambda direct: {"floor": lambda k: 0.0}, id="floor 0"),
        pytest.param(
            lambda direct: {"full": lambda k: 1.1 * direct.full(k)}, id="full", marks=SLOW
        ),
        pytest.param(
            lambda direct: {"error": lambda k: 0.8 * direct.error(k)}, id="error", marks=SLOW
        ),
        pytest.param(lambda direct: {"anchor": 1.3 * direct.anchor}, id="anchor", marks=SLOW),
        pytest.param(lambda direct: {"scale": 0.9 * direct.scale}, id="scale"),
    ],
)
def test_replay_detects_a_wrong_direct_radius(changes):
    """Check several cases; a single case may not show the fault."""
    gaps = []
    for name in ("low noise, linucb-jdp", "low noise, linucb-ldp", "low noise, linucb-sdp-amp"):
        sizes = AGENTS[name] | {"horizon": 120, "actions": 40}
        e, outcome, _ = check_against_paper(sphere(sizes), sizes)
        gaps.append(
            replay_run(e, outcome, sizes, lambda direct: replace(direct, **changes(direct)))[1]
        )
    assert max(gaps) > 1e-6


@pytest.mark.parametrize("radius", ["lemma-a2", "lemma-a4", "published-code"])
def test_replay_detects_a_wrong_width(radius):
    gaps = []
    for protocol in problems.AGENTS:
        sizes = AGENTS[f"short last batch, {protocol}"] | {"radius": radius, "actions": 40}
        if radius == "published-code" and protocol != "linucb":
            sizes["calibration"] = radius
        e, outcome, _ = check_against_paper(sphere(sizes), sizes)
        lambda_of, width = regularizer_and_width(e, sizes)
        wider = lambda t, m, width=width: 1.02 * width(t, m)  # noqa: E731
        gaps.append(replay_run(e, outcome, sizes, rule=(lambda_of, wider))[1])
    assert max(gaps) > 1e-6


# -- Regularizers and radii ------------------------------------------------------------------------

NOT_DIRECT = [n for n, s in AGENTS.items() if s.get("radius", "direct") != "direct"]


@pytest.mark.parametrize("name", NOT_DIRECT)
def test_regularizer_and_width_equal_the_oracles_values(name):
    """Compare all digits in every round; a replay detects only differences that change a choice."""
    sizes = AGENTS[name]
    for alpha in (0.01, 0.3):
        e = experiment(sphere(sizes), sizes, failure_probability=alpha)
        plan = e.curves[0].system.plan
        lambda_of, width = regularizer_and_width(e, sizes)
        for t in range(1, e.horizon + 1):
            m = (t - 1) // (plan.batch_size or 1)
            release = m if plan.batch_size else 0
            k = plan.entry(release)
            assert plan.regularizer[k] == pytest.approx(lambda_of(m), rel=1e-12)
            radius = plan.radius.at(k, plan.rows(release, t), plan.dimension)
            assert radius == pytest.approx(width(t, m), rel=1e-12)


@pytest.mark.parametrize("layout", ["iid", "goe2"])
@pytest.mark.parametrize("protocol", ["linucb-jdp", "linucb-ldp", "linucb-sdp-amp"])
def test_noise_bounds_are_slightly_below_the_oracles_bounds(protocol, layout):
    """Compare bounds on ||N|| and ||h|| at the release with the most noise.

    The package uses quantiles, the oracle means and tails. lambda = 2 ||N|| and lambda_max = 3
    ||N||.
    """
    B, M, d, alpha = 5, 31, 6, 0.01
    keys = {"epsilon": 1.0, "delta": 0.01, "layout": layout, "radius": "lemma-a2"}
    release_key = (
        {"release": "tree"} if protocol == "linucb-jdp" else {}
    )  # the only release with this oracle
    system = make_system(protocol, horizon=B * M, dimension=d, batch_size=B, **keys, **release_key)
    theory, user_std = system.theory, system.certificate.noise_std["bias"]
    sigma = total_noise_std(protocol, user_std, batches=M, B=B)
    norm, length = noise_bounds(sigma, layout=layout, d=d, releases=M, alpha=alpha)
    norm_bound = (theory.lambda_max - theory.regularizer).max()
    assert 0.7 * norm < norm_bound <= norm
    assert theory.regularizer.max() == pytest.approx(2 * norm_bound)
    assert theory.lambda_min.max() == pytest.approx(norm_bound)
    assert 0.7 * length < (theory.nu * np.sqrt(theory.lambda_min)).max() <= length
    assert all(c.holds for c in theory.conditions[-2:])


def test_noise_bounds_hold():
    """Sample 1000 totals of noise; with alpha = 1/2 each bound may fail in 1/8 of them.

    A bound that just holds fails this test with probability 10^-5.
    """
    B, M, d = 4, 3, 3
    for protocol in ("linucb-ldp", "linucb-sdp-vec"):
        keys = {"epsilon": 4.0, "delta": 0.01, "radius": "lemma-a2", "failure_probability": 0.5}
        system = make_system(protocol, horizon=B * M, dimension=d, batch_size=B, **keys)
        plan = replace(system.plan, individual=False)
        theory, failed = system.theory, np.zeros(2, int)
        bounds = (
            theory.lambda_max - theory.regularizer,
            theory.nu * np.sqrt(theory.lambda_min),
        )
        for seed in range(1000):
            draws, events, total = OracleDraws(plan, seed), np.zeros(2, bool), np.zeros(9)
            for m in range(1, M + 1):
                if plan.encoding is None:
                    bias, covariance = draws.gaussian(0, m)
                    total += np.append(bias, lower_triangle(covariance))
                else:
                    g = np.repeat(plan.encoding.steps(0), (3, 6))
                    trials = B * plan.encoding.noise_bits[0]
                    total += (draws.ones_of_batch(m) - trials / 4) / g
                norms = np.linalg.norm(symmetric(total[3:]), 2), np.linalg.norm(total[:3])
                events |= [norm > bound[m] for norm, bound in zip(norms, bounds, strict=True)]
            failed += events
        # The mean is at most 1000 / 8 = 125; 45 is 4.3 binomial standard deviations.
        assert (failed < 125 + 45).all(), protocol
        # The bounds are not trivial: if they were half as large, they would fail often.
        assert failed.sum() > 0 or protocol == "linucb-sdp-vec"


@pytest.mark.parametrize(("epsilon", "scale"), [(0.2, 1.0), (1.0, 10.0), (10.0, 10.0)])
@pytest.mark.parametrize("protocol", problems.AGENTS)
def test_constants_equal_those_of_the_published_code(protocol, epsilon, scale):
    """Compare in features scaled by 1/sqrt 2: ridge / 2, the same width, noise s / sqrt 2 and s /
    2."""
    T, d, delta = 20_000, 5, 0.1
    B = 20 if "sdp" in protocol else 1
    constants = published(protocol, T=T, d=d, epsilon=epsilon, delta=delta, B=B, scale=scale)
    assert constants.batch_size == B
    keys = {"epsilon": epsilon, "delta": delta, "batch_size": B, **PUBLISHED}
    if protocol == "linucb":
        keys = {"radius": "published-code"}
    if protocol == "linucb-sdp-vec":
        # Batches of millions of bits are only counted, not simulated.
        keys |= {"vector_scale": scale}
    e = experiment(
        FixedSet(dimension=d, actions=8),
        {"silos": 1, "horizon": T, "protocol": protocol, **keys},
    )
    plan = e.curves[0].system.plan
    assert plan.regularizer.tolist() == [pytest.approx(constants.ridge / 2)]
    for k, t in ((0, 1), (7, 8 * B), (900, T)):
        width = plan.radius.at(plan.entry(k), plan.rows(k, t), d)
        assert width == pytest.approx(constants.width, rel=1e-12)
    assert plan.radius.multiplier == 1.0 and not plan.radius.direct
    std = constants.noise_std
    if protocol == "linucb-sdp-vec":
        assert constants.encoding is not None
        g, b, L = constants.encoding.g, constants.encoding.b, constants.encoding.L
        assert (plan.encoding.precision, plan.encoding.noise_bits) == ((g,), (b,))
        # In the published code g levels stand for sqrt 2. Here x x' is halved, so one level is sqrt
        # 2 g of them.
        (covariance_levels,) = plan.encoding.covariance_precision
        assert covariance_levels == math.ceil(PUBLISHED_NORM * g)
        assert L / g / 2 >= 1 / covariance_levels > L / (g + 1) / 2
    else:
        # The noise of one user or draw has the layout "goe1", (A + A') / 2, halved.
        user_parts = plan.noise_std.times(1.0 / math.sqrt(B)).parts
        assert user_parts == pytest.approx(
            (std / math.sqrt(2), std / 2 / math.sqrt(2), std / 2), rel=1e-12
        )


@pytest.mark.parametrize("name", [n for n in NOT_DIRECT if "published-code" in n])
def test_runs_equal_the_published_code_in_its_features(name):
    """Use features (u, 1) of norm sqrt 2 with the published ridge, width and noise.

    The actions are the same and the Gram matrix is twice as large.
    """
    sizes, epsilon = AGENTS[name], 5.0
    protocol, B = sizes["protocol"], sizes["batch_size"]
    budget = {} if protocol == "linucb" else {"epsilon": epsilon}
    e = experiment(FixedSet(dimension=3, actions=30), sizes, **budget)
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, 1)
    (outcome,) = dispatch.run(environment, [plan], e.checkpoints, record=True)
    assert outcome.events["indefinite"] == 0
    constants = published(protocol, T=e.horizon, d=3, B=B, epsilon=epsilon, delta=0.01)
    noise_std = constants.noise_std * (math.sqrt(B) if protocol == "linucb-sdp-amp" else 1.0)
    if protocol == "linucb-ldp":
        # The published code has no batches; a batch has the sum of its users' noises.
        noise_std *= math.sqrt(B)
    # In (A + A') / 2, off-diagonal entries have half the variance.
    draws = OracleDraws(plan, e.seed, stds=(noise_std, noise_std / math.sqrt(2), noise_std))
    (actions,), (rewards,) = outcome.actions, outcome.rewards

    def contexts(t):
        """Return the features of the actions of round t."""
        return PUBLISHED_NORM * environment.round(0, t)[0].astype(float)

    def points(t):
        """Return the data point (x, y) of user t, clipped to the published norm."""
        x = contexts(t)[actions[t - 1]]
        return x * min(1.0, PUBLISHED_NORM / np.linalg.norm(x)), rewards[t - 1]

    units = (1.0, 1.0)
    if protocol == "linucb-sdp-vec":
        units = (PUBLISHED_NORM, 2.0)  # the values of g and g' levels in these features
    system, arguments = noise_arguments(protocol, plan, draws, points, units)
    replayed = replay(
        system=system,
        contexts=contexts,
        means=lambda t: environment.round(0, t)[1],
        actions=actions,
        rewards=rewards,
        batch_size=B,
        regularizer=lambda m: constants.ridge,
        radius=lambda t, m: constants.width,
        clip=(PUBLISHED_NORM, 0.0, 1.0),
        **arguments,
    )
    assert replayed.worst_gap < 1e-9
    if plan.batch_size:
        total = outcome.total * np.repeat([PUBLISHED_NORM, 2.0], (3, 6))
        check_total(total, replayed, 3)
