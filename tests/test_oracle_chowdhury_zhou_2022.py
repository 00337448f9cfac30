"""The oracle of Chowdhury-Zhou 2022 against itself: definitions, closed forms, a second player."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import zhou_chowdhury_2024
from oracle.chowdhury_zhou_2022 import (
    BATCH_RULES,
    LAYOUTS,
    SYSTEMS,
    Encoding,
    Noise,
    amp_conditions,
    amp_inverted_noise_std,
    amp_local_budget,
    amp_noise_std,
    amp_returning_conditions,
    amp_returning_noise_std,
    amp_returning_noise_std_printed,
    amp_true_budget,
    batch_size,
    beta,
    beta_proven,
    binomial_delta,
    composed_epsilon,
    corollary_bound,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    ideal_batch,
    jdp_noise_std,
    joint_sensitivity,
    largest,
    ldp_noise_std,
    lemma_a2,
    lemma_a4,
    noise_bounds,
    per_batch_budget,
    published,
    published_draws,
    published_sensitivity,
    regret_bound,
    regularizer,
    replay,
    shuffled_budget,
    shuffling_condition,
    tight_noise_std,
    total_noise_std,
    tree_group_sensitivity2,
    vec_b,
    vec_g,
    vec_local,
    vec_local_budget,
    vec_mu,
    vec_noise_std,
    vec_returning_b,
    vec_returning_b_printed,
)
from oracle.dubey_pentland_2020 import tree_nodes
from oracle.vector_sum import lower_triangle, symmetric

# cz22-fig1 at full size.
FIGURE: dict[str, Any] = {"T": 20_000, "d": 5, "delta": 0.1}
G, BITS = 9, 20


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([20220716, *key])


def unit_contexts(d: int, K: int) -> Callable[[int], np.ndarray]:
    def contexts(t: int) -> np.ndarray:
        rows = keyed(1, t).standard_normal((K, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    return contexts


def pair_noise(d: int, std: float, stream: int) -> Callable[[int], Noise]:
    """Noise by number: of a user, a batch or a node."""

    def noise(number: int) -> Noise:
        rng = keyed(2, stream, number)
        square = std * rng.standard_normal((d, d))
        return std * rng.standard_normal(d), np.triu(square) + np.triu(square, 1).T

    return noise


def sources(system: str, d: int, std: float = 0.4) -> dict[str, Any]:
    """The randomness of a system, as arguments of a replay."""
    size = d + d * (d + 1) // 2
    of_system: dict[str, dict[str, Any]] = {
        "linucb": {},
        "linucb-jdp": {"node_noise": pair_noise(d, std, 1)},
        "linucb-ldp": {"user_noise": pair_noise(d, std, 2)},
        "linucb-sdp-amp": {"user_noise": pair_noise(d, std, 3)},
        "linucb-sdp-vec": {
            "encoding": Encoding(G, BITS),
            "uniforms": lambda t: keyed(3, t).random(size),
            "user_ones": lambda t: keyed(4, t).binomial(BITS, 0.25, size),
        },
    }
    return of_system[system]


def case(system: str, T: int, d: int, K: int, B: int, /, **changes: Any) -> dict[str, Any]:
    """Arguments of a replay of arbitrary (not best) actions, with any of them changed."""
    contexts = unit_contexts(d, K)
    theta = keyed(5).standard_normal(d) / sqrt(d)
    rng = keyed(6)
    arguments: dict[str, Any] = {
        "system": system,
        "contexts": contexts,
        "means": lambda t: contexts(t) @ theta,
        "actions": rng.integers(K, size=T),
        "rewards": rng.integers(2, size=T).astype(float),
        "batch_size": B,
        "regularizer": lambda m: 40.0 + m,
        "radius": lambda t, m: 0.5 + 0.1 * m,
        **sources(system, d),
    }
    return arguments | changes


def plain_sums(arguments: dict[str, Any], until: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.array(
        [arguments["contexts"](t)[arguments["actions"][t - 1]] for t in range(1, until + 1)]
    )
    return x.T @ x, x.T @ arguments["rewards"][:until]


# Accounting.


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [
        (1.0, 0.5, 0.006829594983114591),
        (0.2, 1.0, 0.322376349989183),
        (5.0, 2.0, 0.032281984750072865),
        (0.0, 0.3, 0.11923538474048499),
    ],
)
def test_gaussian_delta(epsilon: float, mu: float, delta: float) -> None:
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-12)
    assert gaussian_epsilon(delta, mu) == pytest.approx(epsilon, abs=1e-9)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)


def test_gaussian_epsilon_below_the_total_variation() -> None:
    """mu <= 0.2513 hides at delta = 0.1 without any epsilon."""
    assert gaussian_epsilon(0.1, 0.2513) == 0.0
    assert gaussian_epsilon(0.1, 0.2514) > 0.0


def change(x: np.ndarray, y: float, z: np.ndarray, w: float, layout: str) -> float:
    """Squared change of both streams in units of s, each coordinate weighed by its variance."""
    dS = np.outer(x, x) - np.outer(z, z)
    below = np.sum(np.tril(dS, -1) ** 2)
    on = np.sum(np.diag(dS) ** 2)
    matrix = {"iid": below + on, "goe1": 2 * below + on, "goe2": below + on / 2}[layout]
    return float(np.sum((x * y - z * w) ** 2) + matrix)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sensitivities_by_search(layout: str) -> None:
    rng = keyed(7)
    seen = {"replace": 0.0, "zero-out": 0.0, "published": 0.0}
    for _ in range(1200):
        d = int(rng.integers(2, 4))
        u = rng.standard_normal((2, d))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        y = rng.integers(2, size=2) * rng.choice([1, 1, -1], size=2)
        found = change(u[0], y[0], u[1], y[1], layout)
        seen["replace"] = max(seen["replace"], found)
        gone = change(u[0], y[0], np.zeros(d), 0.0, layout)
        seen["zero-out"] = max(seen["zero-out"], gone)
        both = np.hstack([u, np.ones((2, 1))])
        own = change(both[0], abs(y[0]), both[1], abs(y[1]), layout)
        seen["published"] = max(seen["published"], own)
    limits = {
        "replace": joint_sensitivity(layout) ** 2,
        "zero-out": joint_sensitivity(layout, "zero-out") ** 2,
        "published": published_sensitivity(layout) ** 2,
    }
    for name, limit in limits.items():
        assert 0.97 * limit < seen[name] <= limit * (1 + 1e-12), name
    e, x = np.array([0.6, 0.8, 1.0]), np.array([-0.6, -0.8, 1.0])
    assert change(e, 1.0, x, 1.0, layout) == pytest.approx(limits["published"])


# P_Amp.


@pytest.mark.parametrize(
    ("B", "epsilon", "delta", "std", "epsilon0", "delta0", "given"),
    [
        (20, 0.2, 0.1, 27.289046922113897, 0.5167654792614027, 0.005, (0.87346447, 0.49077208)),
        (20, 1.0, 0.1, 5.45780938442278, 2.5838273963070137, 0.005, (2.84906507, 1.94612414)),
        (1000, 0.02, 1e-3, 94.646705027663, 0.22940211413494158, 1e-6, (0.09375097, 0.0034323642)),
    ],
)
def test_amplification(
    B: int,
    epsilon: float,
    delta: float,
    std: float,
    epsilon0: float,
    delta0: float,
    given: tuple[float, float],
) -> None:
    assert amp_noise_std(epsilon, delta, B) == pytest.approx(std, rel=1e-12)
    assert amp_local_budget(epsilon, delta, B) == pytest.approx((epsilon0, delta0), rel=1e-12)
    # The noise is that of local privacy at the amplified budget.
    assert ldp_noise_std(epsilon0, delta0) == pytest.approx(std, rel=1e-12)
    assert amp_true_budget(epsilon, delta, B) == pytest.approx(given, rel=1e-7)


def test_amplification_by_hand() -> None:
    """n = 64, e^eps0 = 4, inner = 4 / e^4: tanh is 3/5, the roots are 4 and 8."""
    epsilon, delta = shuffled_budget(log(4), 0.001, 64, 4 * exp(-4))
    assert epsilon == pytest.approx(log(1 + 0.6 * (8 * 4 / 8 + 8 * 4 / 64)))
    assert delta == pytest.approx(4 * exp(-4) + (exp(epsilon) + 1) * 1.125 * 0.064)


def test_conditions_of_the_figures() -> None:
    """Lemma B.4 wants more than 59 users at delta = 0.1: the figures have 20."""
    both = {epsilon: amp_conditions(epsilon, 0.1, 20) for epsilon in (0.2, 1.0, 10.0)}
    assert [both[epsilon]["theorem"] for epsilon in (0.2, 1.0, 10.0)] == [True, False, False]
    assert not any(conditions["lemma"] for conditions in both.values())
    assert not shuffling_condition(0.0, 59, 0.05)
    assert shuffling_condition(0.0, 60, 0.05)
    assert shuffling_condition(1.0, 161, 0.05)
    assert not shuffling_condition(1.0, 160, 0.05)


@pytest.mark.parametrize(
    ("B", "epsilon", "delta", "true"),
    [
        (20, 0.2, 0.1, 0.0),
        (1000, 0.05, 0.1, 0.0),
        (20, 1.0, 0.1, 0.143),
        (20, 10.0, 0.1, 11.7),
        (1000, 0.02, 1e-3, 0.0295),
        (10_000, 0.02, 1e-3, 0.119),
    ],
)
def test_local_privacy_of_the_theorems_noise(
    B: int, epsilon: float, delta: float, true: float
) -> None:
    mu = joint_sensitivity("iid") / amp_noise_std(epsilon, delta, B)
    assert gaussian_epsilon(delta, mu) == pytest.approx(true, rel=5e-3)


def test_the_theorems_o_is_not_one() -> None:
    """What Lemma B.4 gives is 4.7 to 6.2 times epsilon, 3.1 to 3.4 times delta."""
    assert amp_true_budget(0.02, 1e-3, 1000) == pytest.approx((0.094, 3.4e-3), rel=0.01)
    assert amp_true_budget(0.05, 0.1, 1000) == pytest.approx((0.31, 0.33), rel=0.02)
    for B, epsilon, delta in [(1000, 0.02, 1e-3), (1000, 0.05, 0.1), (10_000, 0.02, 1e-3)]:
        assert all(amp_conditions(epsilon, delta, B).values())
        given = amp_true_budget(epsilon, delta, B)
        assert 4.6 < given[0] / epsilon < 6.3
        assert 3.1 < given[1] / delta < 3.45


def test_inverted_amplification() -> None:
    assert amp_inverted_noise_std(0.2, 0.1, 20) is None
    # At 1 000 users the lemma costs more than plain local privacy; at 10 000 half as much.
    few, many = (amp_inverted_noise_std(0.02, 1e-3, B) for B in (1000, 10_000))
    assert few is not None
    assert many is not None
    plain = tight_noise_std(0.02, 1e-3)
    assert many < 0.5 * plain < plain < few
    # What it found does give the budget: mu = 2 / s is (eps0, delta0) for every eps0.
    best = np.inf
    for epsilon0 in np.linspace(0.05, 0.2, 401):
        delta0 = gaussian_delta(epsilon0, joint_sensitivity("goe2") / many)
        for inner in 1e-3 * np.geomspace(1e-4, 0.98, 48):
            epsilon, delta = shuffled_budget(epsilon0, delta0, 10_000, inner)
            if epsilon <= 0.02 and shuffling_condition(epsilon0, 10_000, inner):
                best = min(best, delta)
    assert best == pytest.approx(1e-3, rel=0.03)


@pytest.mark.parametrize(
    ("epsilon", "delta", "true", "tight", "std"),
    [
        (1.0, 1e-3, 0.281, 5.15, 15.8),
        (5.0, 1e-3, 1.925, 1.38, 3.16),
        (0.2, 0.1, 0.0, 4.6, 50.7),
        (10.0, 0.1, 4.10, 0.564, 1.015),
    ],
)
def test_local_noise(epsilon: float, delta: float, true: float, tight: float, std: float) -> None:
    s = ldp_noise_std(epsilon, delta)
    assert s == pytest.approx(std, rel=2e-3)
    mu = joint_sensitivity("iid") / s
    assert gaussian_epsilon(delta, mu) == pytest.approx(true, rel=2e-3)
    assert tight_noise_std(epsilon, delta) == pytest.approx(tight, rel=2e-3)


@pytest.mark.parametrize(("delta", "until"), [(0.1, 34), (1e-3, 66)])
def test_local_noise_holds_far_beyond_one(delta: float, until: int) -> None:
    for epsilon, holds in [(until, True), (until + 1, False)]:
        mu = joint_sensitivity("iid") / ldp_noise_std(epsilon, delta)
        assert (gaussian_epsilon(delta, mu) <= epsilon) == holds


# P_Vec.


def test_vector_sum_constants() -> None:
    assert [vec_g(B, 5) for B in (1, 4, 6, 7, 20, 2500)] == [5, 5, 5, 6, 9, 100]
    assert vec_g(1, 2) == 4
    assert vec_b(0.2, 0.1, 2500, 10, 100) == pytest.approx(1654953972.4229734, rel=1e-12)
    assert vec_b(1.0, 1e-3, 20, 5, sqrt(80)) == pytest.approx(128113998.06790426, rel=1e-12)
    # The noise of a batch depends on neither g nor B.
    stds = [vec_noise_std(g, vec_b(1.0, 0.1, B, 5, g), B) for g, B in [(9, 20), (64, 1000)]]
    assert stds == pytest.approx([sqrt(3 / 16 * 24e4) * log(4 * 26 / 0.1)] * 2)
    # Corollary C.3 is one user's batch; Remark 3.7 compares the two.
    g, b = vec_local(1.0, 0.1, 5)
    assert (g, b) == (5, vec_b(1.0, 0.1, 1, 5, 5))
    epsilon0, delta0 = vec_local_budget(0.25, 0.1, 16)
    assert (epsilon0, delta0) == (1.0, 0.1)
    assert vec_b(0.25, 0.1, 16, 5, 8) / 8**2 == pytest.approx(b / g**2)


def test_privacy_of_few_bits() -> None:
    """B = 20, eps = 10 with scale 1: 40 bits of noise against a change of 2g = 18 steps."""
    assert max(binomial_delta(40, 18, 10.0)) == pytest.approx(0.9953485319203083, rel=1e-9)
    assert max(binomial_delta(1000, 8, 1.0)) == pytest.approx(0.018438438494949153, rel=1e-9)
    # One bit, one step: (0, 3, 1)/4 against twice (3, 1, 0)/4.
    assert binomial_delta(1, 1, log(2)) == pytest.approx((0.5, 0.75))
    # Many bits are nearly Gaussian: one user, 40 steps against 4 000 bits.
    exact, mu = max(binomial_delta(4000, 40, 0.5)), vec_mu(20, 4000, 1, 2.0)
    assert exact == pytest.approx(0.41846478336362636, rel=1e-9)
    assert gaussian_delta(0.5, mu) == pytest.approx(exact, rel=0.01)
    assert vec_mu(20, 4000, 1, 2.0, 4) == pytest.approx(mu * 42 / 40)
    assert vec_mu(20, 1000, 4, 2.0) == pytest.approx(mu)
    # eps = 1 with scale 1 and the theorem's logarithm: true epsilon 0.60.
    b = vec_b(1.0, 0.1, 20, 5, sqrt(80)) / 24e4
    assert gaussian_epsilon(0.1, vec_mu(sqrt(80), np.ceil(b), 20, sqrt(4.5))) == pytest.approx(
        0.60, abs=5e-3
    )


# Central model, returning users.


def test_central_noise() -> None:
    assert jdp_noise_std(1.0, 1e-3, 1) == ldp_noise_std(1.0, 1e-3)
    assert jdp_noise_std(1.0, 1e-3, 1000) == pytest.approx(sqrt(10) * 15.823067728711816)
    # 9 nodes of K = 400; the tight values of the layouts.
    assert tight_noise_std(0.2, 0.1, 9) == pytest.approx(13.794158072537362)
    assert tight_noise_std(0.2, 0.1, 9, "iid") == pytest.approx(14.630914070775487)


@pytest.mark.parametrize(("K", "one", "eight", "bound"), [(400, 9, 412, 576), (1000, 10, 476, 640)])
def test_group_of_leaves(K: int, one: int, eight: int, bound: int) -> None:
    assert tree_group_sensitivity2([1], K) == one == K.bit_length()
    assert tree_group_sensitivity2(range(1, 9), K) == eight
    assert eight <= 8**2 * one == bound
    # Two rounds in one leaf count twice: here the bound is attained.
    assert tree_group_sensitivity2([1] * 8, K) == bound
    spread = tree_group_sensitivity2([1 + j * K // 8 for j in range(8)], K)
    assert spread < eight / 3


def test_returning_users() -> None:
    T, B, epsilon, delta = 20_000, 20, 0.2, 0.1
    M = T // B
    assert per_batch_budget(epsilon, delta, M) == pytest.approx((0.0012919136981535068, 5e-5))
    plugged = amp_returning_noise_std(epsilon, delta, B, M)
    assert plugged == pytest.approx(11846.605871134392, rel=1e-12)
    closed = 16 * sqrt(T * log(5 * T / delta) * log(4 * M / delta) * log(2 / delta))
    assert plugged == pytest.approx(closed / (epsilon * B), rel=1e-12)
    printed = amp_returning_noise_std_printed(epsilon, delta, B, T)
    assert printed == pytest.approx(6298.852764919991, rel=1e-12)
    assert plugged / printed == pytest.approx(1.88, abs=1e-3)
    # The condition of one batch, in closed form; the printed one lies below it.
    largest_epsilon = 2 * sqrt(2 * M * log(2 / delta) * log(4 * M / delta) / B)
    for factor, holds in [(0.999, True), (1.001, False)]:
        conditions = amp_returning_conditions(factor * largest_epsilon, delta, B, M)
        assert conditions["theorem"] == holds
        assert not conditions["printed"]
    stricter = 2 * log(2 / delta) * sqrt(2 * T) / B
    assert amp_returning_conditions(0.999 * stricter, delta, B, M)["printed"]
    assert not amp_returning_conditions(1.001 * stricter, delta, B, M)["printed"]
    assert not amp_returning_conditions(1e-6, delta, B, M)["lemma"]


def test_returning_vectors() -> None:
    T, B, d = 20_000, 20, 5
    plugged = vec_returning_b(0.2, 0.1, B, d, T // B, 9)
    printed = vec_returning_b_printed(0.2, 0.1, B, d, T, 9)
    assert printed / plugged == pytest.approx(1e7 / 1.92e6, rel=1e-12)
    assert printed / plugged == pytest.approx(5.2, abs=0.01)


def test_advanced_composition() -> None:
    """The budgets per batch add up for eps <= 1, and not for all eps <= 15 of Theorem E.5."""
    for delta in (0.49, 0.1, 1e-3):
        for M in (2, 1000, 10**6):

            def total(epsilon: float, delta: float = delta, M: int = M) -> float:
                return composed_epsilon(per_batch_budget(epsilon, delta, M)[0], M, delta / 2)

            assert total(1.0) <= 1.0
            assert (total(15.0) <= 15.0) == (delta == 1e-3 and M > 2)
    edge = largest(
        lambda epsilon: (
            composed_epsilon(per_batch_budget(epsilon, 0.1, 1000)[0], 1000, 0.05) <= epsilon
        ),
        1e-3,
        100.0,
    )
    assert edge == pytest.approx(11.54, abs=0.01)


# Regularizer, radius, bounds.


def test_total_noise() -> None:
    assert total_noise_std("linucb", 3.0, batches=7, B=4) == 0.0
    assert total_noise_std("linucb-ldp", 3.0, batches=7, B=4) == pytest.approx(3 * sqrt(28))
    assert total_noise_std("linucb-sdp-amp", 3.0, batches=7, B=4) == pytest.approx(3 * sqrt(28))
    assert total_noise_std("linucb-sdp-vec", 3.0, batches=7, B=4) == pytest.approx(3 * sqrt(7))
    for batches in range(1, 40):
        worst = max(len(tree_nodes(m)) for m in range(1, batches + 1))
        got = total_noise_std("linucb-jdp", 3.0, batches=batches, B=4)
        assert got == pytest.approx(3 * sqrt(worst))


def test_regularizer_and_radius_by_hand() -> None:
    assert regularizer(0.0, T=100, B=10, d=4, alpha=0.1) == 1.0
    lam = regularizer(3.0, T=100, B=10, d=4, alpha=10 * exp(-9), constant=2.0)
    assert lam == pytest.approx(6 * (2 + 3))
    assert beta(12, d=3, lam=4.0, alpha=0.02) == pytest.approx(sqrt(2 * log(100) + 3 * log(2)) + 2)
    assert beta(0, d=3, lam=4.0, alpha=0.02, R=0.5) == pytest.approx(sqrt(log(100) / 2) + 2)
    proven = beta_proven(12, d=3, lam_min=4.0, lam_max=9.0, nu=0.25, alpha=0.02, R=0.5)
    assert proven == pytest.approx(0.5 * sqrt(2 * log(100) + 3 * log(2)) + 3.25)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_noise_stays_in_its_bounds(layout: str) -> None:
    """Each bound is exceeded in at most alpha/4 of draws, and is not idle."""
    d, draws, alpha, sigma = 4, 4000, 0.4, 1.5
    norm_bound, vector_bound = noise_bounds(sigma, layout=layout, d=d, releases=1, alpha=alpha)
    rng = keyed(8)
    A = sigma * rng.standard_normal((draws, d, d))
    noise = {
        "iid": np.triu(A) + np.triu(A, 1).transpose(0, 2, 1),
        "goe1": (A + A.transpose(0, 2, 1)) / 2,
        "goe2": (A + A.transpose(0, 2, 1)) / sqrt(2),
    }[layout]
    norms = np.abs(np.linalg.eigvalsh(noise)).max(axis=1)
    lengths = np.linalg.norm(sigma * rng.standard_normal((draws, d)), axis=1)
    # 5 standard deviations above alpha/4.
    limit = alpha / 4 + 5 * sqrt(alpha / 4 / draws)
    assert np.mean(norms > norm_bound) <= limit
    assert np.mean(lengths > vector_bound) <= limit
    assert norms.mean() > 0.35 * norm_bound
    assert lengths.mean() > 0.4 * vector_bound
    shrunk = sqrt(2) if layout == "goe1" else 1.0
    assert norm_bound * shrunk == pytest.approx(1.5 * (4 + 2 * sqrt(log(20))))
    assert vector_bound == pytest.approx(1.5 * (2 + sqrt(2 * log(10))))
    later = noise_bounds(sigma, layout=layout, d=d, releases=3, alpha=3 * alpha)
    assert later == pytest.approx((norm_bound, vector_bound))


def test_lemma_a4_by_hand() -> None:
    value = lemma_a4(4.0, T=100, B=5, d=16, alpha=1.0, constant=3.0)
    assert value == pytest.approx(3 * (80 + 160 + 20 * 8 * log(100)) * log(100))


SIZES: dict[str, Any] = {"T": 10_000, "B": 100, "d": 4, "alpha": 0.01}


@pytest.mark.parametrize(
    ("result", "sigma"),
    [
        ("B.1", lambda e, d: amp_noise_std(e, d, 100) * 100),
        ("C.1", lambda e, d: vec_noise_std(20, vec_b(e, d, 100, 4, 20), 100) * 10),
        ("E.3", lambda e, d: amp_returning_noise_std_printed(e, d, 100, 10_000) * 100),
        ("E.3-mended", lambda e, d: amp_returning_noise_std(e, d, 100, 100) * 100),
        ("E.5", lambda e, d: vec_noise_std(20, vec_returning_b(e, d, 100, 4, 100, 20), 100) * 10),
        ("F.1", lambda e, d: ldp_noise_std(e, d) * 100),
        ("F.3", lambda e, d: jdp_noise_std(e, d, 100)),
    ],
)
def test_bounds_come_from_lemma_a4(result: str, sigma: Callable[..., float]) -> None:
    """The second term is that of Lemma A.4 at the total noise, up to constants.

    The constants stand in logarithms too, so that the ratio is compared where those are large.
    """
    ratios = []
    for epsilon, delta in [(1e-2, 1e-200), (1e-4, 1e-250), (0.3, 1e-290)]:
        empty = SIZES | {"B": 0}
        whole = regret_bound(result, **SIZES, epsilon=epsilon, delta=delta)
        first = SIZES["d"] * SIZES["B"] * (1.0 if result[0] == "F" else log(SIZES["T"]))
        template = lemma_a4(sigma(epsilon, delta), **empty) - lemma_a4(0.0, **empty)
        ratios.append((whole - first) / template)
    if result[0] == "F":  # these two print no log T
        ratios = [ratio * log(SIZES["T"]) for ratio in ratios]
    # E.5 prints log(d^2 M/delta)^(3/4), its noise has log(2/delta)^(1/4) of it.
    assert max(ratios) / min(ratios) < 1.01
    assert 0.01 < ratios[0] < 1


def test_bounds_by_hand() -> None:
    sizes = SIZES | {"epsilon": 0.25, "delta": 0.01, "constant": 2.0}
    logs = log(1e4) * log(1e6)
    power = 4**0.75 / 0.5
    assert regret_bound("B.1", **sizes) == pytest.approx(
        2 * (400 * log(1e4) + 10**2.5 * (log(1e4) * log(200)) ** 0.25 * power * logs)
    )
    assert regret_bound("3.2", **sizes) == pytest.approx(
        2 * (400 * log(1e4) + 10**2.5 * sqrt(log(1e4)) * power * log(1e6) ** 2)
    )
    assert regret_bound("C.1", **sizes) == pytest.approx(
        2 * (400 * log(1e4) + 10**2.5 * sqrt(log(1600)) * power * logs)
    )
    assert regret_bound("E.5", **sizes) == pytest.approx(
        2 * (400 * log(1e4) + 1000 * log(1.6e5) ** 0.75 * power * logs)
    )
    assert regret_bound("F.1", **sizes) == pytest.approx(
        2 * (400 + 1000 * log(100) ** 0.25 * power * log(1e6))
    )
    assert regret_bound("F.3", **sizes) == pytest.approx(
        2 * (400 + 100 * log(100) ** 0.25 * power * log(1e6))
    )
    assert regret_bound("E.7", M0=9, **sizes) == pytest.approx(600 * log(100) ** 0.25 * power)


def without_logs(result: str, B: float, **sizes: Any) -> float:
    """The second term of a bound over d B, but for log T and log(T/alpha)."""
    T, d = sizes["T"], sizes["d"]
    both = [regret_bound(result, **sizes, B=B, alpha=T / np.exp(c)) for c in (1, 2)]
    return (both[1] - both[0]) / log(T) / (d * B)


def test_batch_rules_balance_the_bound() -> None:
    """At the printed B both terms are equal, but for what the rules round up in logarithms."""
    for T, epsilon, delta, d in [(10**4, 0.1, 0.1, 5), (10**6, 2.0, 1e-5, 20)]:
        sizes: dict[str, Any] = {"T": T, "d": d, "epsilon": epsilon, "delta": delta}
        B = {rule: ideal_batch(rule, **sizes) for rule in BATCH_RULES}
        assert without_logs("C.1", B["C.2"], **sizes) == pytest.approx(1)
        loose = log(B["B.2"] / delta) / log(T / delta)
        assert without_logs("B.1", B["B.2"], **sizes) == pytest.approx(loose**0.25)
        loose = log(2 / delta) / log(T / delta)
        assert without_logs("E.3", B["E.4"], **sizes) == pytest.approx(loose**0.5)
        loose = log(d**2 * T / B["E.6"] / delta) / log(T * d**2 / delta)
        assert without_logs("E.5", B["E.6"], **sizes) == pytest.approx(loose**0.75)
        for rule in ("B.2", "B.3", "C.2", "C.3", "E.4", "E.6"):
            bound = corollary_bound(rule, **sizes, constant=3.0)
            assert bound == pytest.approx(3 * d * B[rule])


def test_batch_rules() -> None:
    sizes: dict[str, Any] = {"T": 10**4, "d": 16, "epsilon": 0.25, "delta": 0.01}
    assert ideal_batch("3.3", **sizes) == pytest.approx(10**2.4)
    assert ideal_batch("B.3", **sizes) == pytest.approx(1000 * log(100) ** 0.25)
    assert ideal_batch("C.3", **sizes) == pytest.approx(1000 * log(25600) ** 0.5)
    assert ideal_batch("F.2", **sizes) == 1000
    assert batch_size("F.4", **sizes) == 100
    assert batch_size("F.4", **sizes, constant=1e-9) == 1
    assert batch_size("F.4", **sizes, constant=1e9) == 10**4
    assert batch_size("3.3", **sizes) == 252
    assert corollary_bound("B.3", **sizes) == pytest.approx(16 * 1000 * log(100) ** 0.25)
    assert corollary_bound("3.3", **sizes) == pytest.approx(2 * 10**2.4 * log(1e6) ** 0.5)
    for rule in BATCH_RULES:
        assert 1 <= batch_size(rule, **sizes) <= 10**4
    # B.3 and C.3 make d B the bound of Proposition F.1 without its logarithms.
    whole = regret_bound("F.1", **sizes, B=1, alpha=10**4 / np.e)
    assert whole - 16 == pytest.approx(corollary_bound("B.3", **sizes))


def test_the_batch_rule_breaks_its_own_condition() -> None:
    """Corollary B.2 at the figures' T, d, delta: Theorem B.1's condition fails from eps = 0.038."""
    sizes = FIGURE
    for epsilon, holds in [(0.037, True), (0.038, False), (0.2, False)]:
        B = batch_size("B.2", **sizes, epsilon=epsilon)
        assert amp_conditions(epsilon, 0.1, B)["theorem"] == holds


# Published code.


def test_published_constants() -> None:
    run = {name: published(name, **FIGURE, epsilon=0.2) for name in SYSTEMS}
    assert (run["linucb"].gamma, run["linucb"].ridge, run["linucb"].noise_std) == (1.0, 1e-4, 0.0)
    assert run["linucb"].width == pytest.approx(sqrt(5) + 0.5 * sqrt(5 * log(40_001 * 20_000)))
    ldp = run["linucb-ldp"]
    assert ldp.noise_std == pytest.approx(5 * sqrt(log(25)))
    assert ldp.gamma == pytest.approx(5 * sqrt(log(25)) * sqrt(1e5))
    assert ldp.ridge == 2 * ldp.gamma
    grown = log((1 + 40_000 / ldp.gamma) * 20_000)
    assert ldp.width == pytest.approx(sqrt(5 * ldp.gamma) + 0.5 * sqrt(5 * grown))
    amp = run["linucb-sdp-amp"]
    assert amp.noise_std == pytest.approx(sqrt(log(500)) / (0.2 * sqrt(20)))
    assert amp.gamma == pytest.approx(amp.noise_std * sqrt(1e5))
    jdp = run["linucb-jdp"]
    assert jdp.noise_std == pytest.approx(5 * sqrt(log(20_000)) * log(25))
    assert jdp.gamma == pytest.approx(jdp.noise_std * sqrt(5 * log(20_000)))
    vec = run["linucb-sdp-vec"]
    assert vec.gamma == pytest.approx(log(50) / (4 * 0.2 * sqrt(20)) * sqrt(1e5))
    assert vec.encoding == Encoding(9, 1550, sqrt(2))
    assert [run[name].batch_size for name in SYSTEMS] == [1, 1, 1, 20, 20]
    # Their noise is far below the theorems': 5.7 times, and 9.8 times.
    assert ldp_noise_std(0.2, 0.1) / ldp.noise_std == pytest.approx(4 * sqrt(2))
    assert amp_noise_std(0.2, 0.1, 20) / amp.noise_std == pytest.approx(4 * sqrt(2 * log(20)))


def test_published_draws() -> None:
    counts = [published_draws(t) for t in range(1, 20_001)]
    assert counts[:3] == [1, 1, 2]
    assert counts[-1] == published("linucb-jdp", **FIGURE, epsilon=1.0).draws == 10
    assert sorted(set(counts)) == list(range(1, 11))


@pytest.mark.parametrize(
    ("epsilon", "scale", "bits", "drift"), [(0.2, 1, 1530, 0.31), (1.0, 10, 612, 0.12)]
)
def test_published_bits_as_run(epsilon: float, scale: int, bits: int, drift: float) -> None:
    """The code cuts b off for the draws, not for the mean it takes off: each batch is biased."""
    run = published("linucb-sdp-vec", **FIGURE, epsilon=epsilon, scale=scale, as_run=True)
    encoding = run.encoding
    assert encoding is not None
    assert encoding.mean is not None
    assert (encoding.g, encoding.b) == (sqrt(80), bits)
    bias = encoding.L / encoding.g * 20 * (encoding.mean - encoding.b / 4)
    assert bias == pytest.approx(drift, abs=5e-3)
    # A run with exactly b/4 ones per user: what is left is that bias, and the rounding.
    d, size = 2, 5
    points = case("linucb", 20, d, 2, 20)
    changes = points | {
        "system": "linucb-sdp-vec",
        "encoding": encoding,
        "uniforms": lambda t: keyed(3, t).random(size),
        "batch_ones": lambda m: np.full(size, 5 * bits),
    }
    W, U = plain_sums(points, 20)
    V, u = replay(**changes).totals[0]
    quantum = encoding.L / encoding.g
    for got, raw in [(V, W), (u, U)]:
        assert np.abs(got - raw + bias).max() < quantum * 20
    # Without `mean` the same draws have no bias, but at the fractional g only the rest of them.
    exact = replay(**changes | {"encoding": Encoding(encoding.g, bits, encoding.L, bits / 4)})
    np.testing.assert_allclose(exact.totals[0][0] - V, bias, rtol=1e-9)


def test_true_epsilon_of_the_published_noise() -> None:
    """On the published instances, local: 0.14, 3.59, 210 for 0.2, 1, 10, at delta = 0.1."""
    for epsilon, true in [(0.2, 0.140), (1.0, 3.589), (10.0, 210.2)]:
        s = published("linucb-ldp", **FIGURE, epsilon=epsilon).noise_std
        found = gaussian_epsilon(0.1, published_sensitivity("goe1") / s)
        assert found == pytest.approx(true, rel=1e-3)


# Algorithm 1.


@pytest.mark.parametrize("B", [1, 3, 4])
@pytest.mark.parametrize("system", SYSTEMS[:4])
def test_totals_by_definition(system: str, B: int) -> None:
    T, d = 26, 3
    arguments = case(system, T, d, 4, B)
    out = replay(**arguments)
    assert out.batches == list(range(B, T + 1, B))
    assert len(out.totals) == T // B
    for m, (V, u) in enumerate(out.totals, start=1):
        W, U = plain_sums(arguments, m * B)
        if system == "linucb-jdp":
            drawn = [arguments["node_noise"](n) for n in tree_nodes(m)]
        elif system == "linucb":
            drawn = []
        else:
            drawn = [arguments["user_noise"](t) for t in range(1, m * B + 1)]
        for bias, covariance in drawn:
            W, U = W + covariance, U + bias
        np.testing.assert_allclose(V, W, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(u, U, rtol=1e-12, atol=1e-12)
    assert out.realised_regret is None


def ones_of(d: int) -> Noise:
    return np.ones(d), np.ones((d, d))


@pytest.mark.parametrize("B", [1, 4])
def test_constant_noise_counts(B: int) -> None:
    """Noise 1 everywhere: m B of it from users, m from batches, popcount(m) from a tree."""
    T, d = 30, 3
    plain = replay(**case("linucb", T, d, 2, B)).totals
    one = ones_of(d)
    size = d + d * (d + 1) // 2
    runs: dict[str, tuple[str, dict[str, Any], Callable[[int], int]]] = {
        "users": ("linucb-ldp", {"user_noise": lambda t: one}, lambda m: m * B),
        "shuffled": ("linucb-sdp-amp", {"user_noise": lambda t: one}, lambda m: m * B),
        "batches": ("linucb-ldp", {"user_noise": None, "batch_noise": lambda m: one}, lambda m: m),
        "nodes": ("linucb-jdp", {"node_noise": lambda n: one}, lambda m: m.bit_count()),
        "prefixes": (
            "linucb-jdp",
            {"node_noise": None, "prefix_noise": lambda m: (m * one[0], m * one[1])},
            lambda m: m,
        ),
    }
    for name, (system, given, count) in runs.items():
        out = replay(**case(system, T, d, 2, B, **given))
        for m, ((V, u), (V0, u0)) in enumerate(zip(out.totals, plain, strict=True), start=1):
            np.testing.assert_allclose(V - V0, count(m), rtol=1e-11, err_msg=name)
            np.testing.assert_allclose(u - u0, count(m), rtol=1e-11, err_msg=name)
    # Bits: two more ones per user than their mean are m B 2 / g.
    quiet = {"uniforms": lambda t: keyed(3, t).random(size)}
    level, above = (
        replay(
            **case(
                "linucb-sdp-vec",
                T,
                d,
                2,
                B,
                **quiet,
                user_ones=lambda t, ones=ones: np.full(size, ones),
            )
        ).totals
        for ones in (BITS // 4, BITS // 4 + 2)
    )
    for m, ((V, u), (V0, u0)) in enumerate(zip(above, level, strict=True), start=1):
        np.testing.assert_allclose(V - V0, 2 * m * B / G, rtol=1e-11)
        np.testing.assert_allclose(u - u0, 2 * m * B / G, rtol=1e-11)


def test_noise_is_asked_for_once_and_when_due() -> None:
    for system, name, wanted in [
        ("linucb-jdp", "node_noise", list(range(1, 7))),
        ("linucb-jdp", "prefix_noise", list(range(7))),
        ("linucb-ldp", "user_noise", list(range(1, 25))),
        ("linucb-ldp", "batch_noise", list(range(1, 7))),
    ]:
        asked: list[int] = []

        def noise(number: int, asked: list[int] = asked) -> Noise:
            asked.append(number)
            return np.zeros(2), np.zeros((2, 2))

        none = dict.fromkeys(sources(system, 2))
        replay(**case(system, 27, 2, 2, 4, **none | {name: noise}))
        assert asked == wanted


def test_user_noise_adds_its_variance_per_batch() -> None:
    """B s^2 per batch and entry, 400 batches; 5 standard deviations of a variance."""
    T, B, d, s = 800, 2, 2, 0.3
    arguments = case("linucb-ldp", T, d, 2, B, user_noise=pair_noise(d, s, 9))
    arguments["contexts"] = lambda t: np.zeros((2, d))
    totals = replay(**arguments | {"means": lambda t: np.zeros(2)}).totals
    steps = np.diff([np.concatenate([u, lower_triangle(V)]) for V, u in totals], axis=0)
    draws = steps.size
    assert np.mean(steps**2) == pytest.approx(B * s**2, rel=5 * sqrt(2 / draws))
    assert abs(steps.mean()) < 5 * s * sqrt(B / draws)


@pytest.mark.parametrize("system", SYSTEMS)
def test_policy_is_frozen_within_a_batch(system: str) -> None:
    """A reward is felt in the batches after its own, and only there."""
    T, B, d = 17, 5, 3
    arguments = case(system, T, d, 3, B)
    changed = arguments | {"rewards": np.where(np.arange(T) == 6, 1 - arguments["rewards"], 0.25)}
    arguments = arguments | {"rewards": np.where(np.arange(T) == 6, arguments["rewards"], 0.25)}
    before, after = replay(**arguments).totals, replay(**changed).totals
    same = [np.array_equal(a[1], b[1]) for a, b in zip(before, after, strict=True)]
    assert same == [True, False, False]
    short = {name: arguments[name][:9] for name in ("actions", "rewards")}
    other = {name: changed[name][:9] for name in ("actions", "rewards")}
    assert replay(**arguments | short).worst_gap == replay(**changed | other).worst_gap


class Player:
    """Algorithm 1 forwards: running sums and inverses, its own best actions.

    Statistics are updated in every round, and a copy of the policy is renewed at a batch's end:
    the eager order, which for B = 1 is the sequential algorithm.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        B, T = arguments["batch_size"], len(arguments["actions"])
        d = arguments["contexts"](1).shape[1]
        plain: dict[int, np.ndarray] = {}
        drawn: dict[int, np.ndarray] = {}
        total = np.zeros((d, d + 1))
        raw, noisy, kept = np.zeros((d, d + 1)), np.zeros((d, d + 1)), np.zeros((d, d + 1))
        self.best = np.zeros(T, dtype=int)
        self.totals: list[np.ndarray] = []
        m = 0
        for t in range(1, T + 1):
            phi = arguments["contexts"](t)
            inverse = np.linalg.inv(total[:, :d] + arguments["regularizer"](m) * np.eye(d))
            widths = np.sqrt(np.einsum("kd,de,ke->k", phi, inverse, phi))
            score = phi @ (inverse @ total[:, d]) + arguments["radius"](t, m) * widths
            self.best[t - 1] = np.argmax(score)
            x = phi[self.best[t - 1]]
            message = np.column_stack([np.outer(x, x), x * arguments["rewards"][t - 1]])
            raw += message
            noisy += self.sent(arguments, t, message)
            if t % B:
                continue
            m += 1
            if "node_noise" in arguments:
                # Chan, Shi, Song: partial sums by level; the finished one takes the lower ones in.
                level = (m & -m).bit_length() - 1
                lower = sum((plain.pop(j) for j in range(level)), np.zeros((d, d + 1)))
                plain[level], kept = raw - kept + lower, raw.copy()
                bias, covariance = arguments["node_noise"](m)
                drawn = {j: noise for j, noise in drawn.items() if j > level}
                drawn[level] = np.column_stack([covariance, bias])
                total = np.sum([*plain.values(), *drawn.values()], axis=0)
            else:
                total = noisy.copy()
            self.totals.append(total)

    @staticmethod
    def sent(arguments: dict[str, Any], t: int, message: np.ndarray) -> np.ndarray:
        d = len(message)
        if "user_noise" in arguments:
            bias, covariance = arguments["user_noise"](t)
            return message + np.column_stack([covariance, bias])
        if "encoding" in arguments:
            encoding = arguments["encoding"]
            data = np.append(message[:, d], lower_triangle(message[:, :d]))
            data = data * encoding.g / encoding.L
            steps = np.floor(data)
            steps += arguments["uniforms"](t) < data - steps
            steps = (steps + arguments["user_ones"](t) - encoding.b / 4) * encoding.L / encoding.g
            return np.column_stack([symmetric(steps[d:]), steps[:d]])
        return message


@pytest.mark.parametrize("B", [1, 4])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_second_player_agrees(system: str, B: int) -> None:
    arguments = case(system, 30, 3, 6, B)
    player = Player(arguments)
    out = replay(**arguments | {"actions": player.best})
    assert out.worst_gap < 1e-12
    for (V, u), total in zip(out.totals, player.totals, strict=True):
        np.testing.assert_allclose(V, total[:, :3], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(u, total[:, 3], rtol=1e-9, atol=1e-9)
    wrong = player.best.copy()
    wrong[25] = (wrong[25] + 1) % 6
    assert replay(**arguments | {"actions": wrong}).worst_gap > 1e-6


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("lazy", [True, False])
def test_one_silo_of_the_other_paper(B: int, lazy: bool) -> None:
    """Zhou-Chowdhury with one silo, lazily: the central tree. Eager is the same if B = 1."""
    d, T = 3, 22
    ours = case("linucb-jdp", T, d, 4, B, regularizer=lambda m: 60.0)
    out = replay(**ours)
    other = zhou_chowdhury_2024.replay(
        contexts=lambda t, i: ours["contexts"](t),
        means=lambda t, i: ours["means"](t),
        actions=ours["actions"][None],
        rewards=ours["rewards"][None],
        batch_size=B,
        protocol="silo-ldp",
        lazy=lazy,
        noise=lambda i, k: ours["node_noise"](k),
        regularizer=ours["regularizer"],
        radius=ours["radius"],
    )
    same = lazy or B == 1
    assert (out.worst_gap == pytest.approx(other.worst_gap, rel=1e-9)) == same
    np.testing.assert_allclose(out.regret, other.group_regret, rtol=1e-13)
    for (V, u), (W, U) in zip(out.totals, other.totals, strict=True):
        np.testing.assert_allclose(V, W, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(u, U, rtol=1e-10, atol=1e-12)


def test_two_users_by_hand() -> None:
    """d = 1, B = 2, lambda = 2; x = 1, 1/2, rewards 1, 1; then theta = 1.5 / 3.25 and a choice."""
    arguments: dict[str, Any] = {
        "system": "linucb",
        "contexts": lambda t: np.array([[1.0], [0.5]]) * (-1.0 if t == 3 else 1.0),
        "means": lambda t: np.array([0.7, 0.2]),
        "actions": np.array([0, 1, 0]),
        "rewards": np.array([1.0, 1.0, 0.0]),
        "batch_size": 2,
        "regularizer": lambda m: 2.0,
        "radius": lambda t, m: 0.1 if m else 1.0,
        "best_rewards": np.array([1.0, 0.0, 1.0]),
    }
    out = replay(**arguments)
    (V, u), theta = out.totals[0], 1.5 / 3.25
    assert (V.tolist(), u.tolist(), out.batches) == ([[1.25]], [1.5], [2])
    np.testing.assert_allclose(out.regret, [0.0, 0.5, 0.5])
    # Round 2 loses: 1 was drawn, the best action would have given 0.
    assert out.realised_regret is not None
    np.testing.assert_allclose(out.realised_regret, [0.0, -1.0, -1.0])
    # Round 2 is played at V = 2: scores 1/sqrt 2 and half of it. Round 3 is the worst one:
    # scores -theta + 0.1 / sqrt 3.25 and half of each.
    wide = 0.1 / sqrt(3.25)
    assert out.worst_gap == pytest.approx(max(0.5, 0.5 * (theta - wide) / (theta + wide)))
    better = replay(**arguments | {"actions": np.array([0, 0, 1])})
    assert better.worst_gap == 0.0


def test_lemma_a2_holds_without_noise() -> None:
    """Exact rewards and beta = sqrt lambda = 1 leave nothing to chance; one instance per B."""
    d, K, T = 3, 5, 120
    theta = np.array([0.6, 0.0, -0.8])
    for B in (1, 8, 40):
        arguments = case("linucb", T, d, K, B, regularizer=lambda m: 1.0, radius=lambda t, m: 1.0)
        contexts = arguments["contexts"]
        arguments["means"] = lambda t, contexts=contexts: contexts(t) @ theta / 2
        for _ in range(T // B + 1):  # the actions of a batch settle when those before it have
            chosen = [contexts(t)[a] for t, a in enumerate(arguments["actions"], start=1)]
            arguments["rewards"] = np.array(chosen) @ theta / 2
            best = Player(arguments).best
            if np.array_equal(best, arguments["actions"]):
                break
            arguments["actions"] = best
        out = replay(**arguments)
        assert out.worst_gap < 1e-12
        assert 0.3 < out.regret[-1] <= lemma_a2(1.0, T=T, B=B, d=d, lam_min=1.0)
    grown = log(1 + 120 / 3)
    by_hand = 3 * 40 / (2 * log(2)) * grown + 4 * 2 * sqrt(2 * 3 * 120 * grown)
    assert lemma_a2(2.0, T=120, B=40, d=3, lam_min=1.0) == pytest.approx(by_hand)


def test_order_of_users_shows_in_the_last_digits_only() -> None:
    B = 6
    arguments = case("linucb-sdp-amp", 24, 3, 3, B)
    orders = {m: (keyed(10, m).permutation(B), keyed(11, m).permutation(B)) for m in range(1, 5)}
    mixed = replay(**arguments, order=lambda m: orders[m]).totals
    plain = replay(**arguments).totals
    for (V, u), (V0, u0) in zip(mixed, plain, strict=True):
        np.testing.assert_allclose(V, V0, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(u, u0, rtol=1e-12, atol=1e-12)
    # Each stream in its own order, to the last digit.
    messages = []
    for t in range(1, B + 1):
        x = arguments["contexts"](t)[arguments["actions"][t - 1]]
        bias, covariance = arguments["user_noise"](t)
        messages.append((x * arguments["rewards"][t - 1] + bias, np.outer(x, x) + covariance))
    for part, stream in [(1, 0), (0, 1)]:
        summed = np.sum([messages[i][stream] for i in orders[1][stream]], axis=0)
        assert np.array_equal(mixed[0][part], summed)
        assert not np.array_equal(plain[0][part], summed)
    with pytest.raises(ValueError, match="permutation"):
        replay(**arguments, order=lambda m: (range(B), [0, 0, 1, 2, 3, 4]))


def test_bits_and_counts_agree() -> None:
    d, B = 2, 3
    size, sent = d + d * (d + 1) // 2, B * (2 * G + BITS)
    arguments = case("linucb-sdp-vec", 12, d, 3, B)
    counted = replay(**arguments)
    bits = replay(
        **arguments, permutations=lambda m: [keyed(12, m, j).permutation(sent) for j in range(size)]
    )
    by_batch = replay(
        **arguments
        | {
            "user_ones": None,
            "batch_ones": lambda m: sum(
                arguments["user_ones"](t) for t in range((m - 1) * B + 1, m * B + 1)
            ),
        }
    )
    for got in (bits, by_batch):
        for (V, u), (V0, u0) in zip(got.totals, counted.totals, strict=True):
            np.testing.assert_array_equal(V, V0)
            np.testing.assert_array_equal(u, u0)


def test_rounding_is_unbiased_and_small() -> None:
    """Noise of exactly b/4 ones: the sum is right to n L / g, and on average exactly."""
    d, B, size = 2, 4, 5
    arguments = case("linucb-sdp-vec", B, d, 2, B, user_ones=lambda t: np.full(size, BITS // 4))
    W, U = plain_sums(arguments, B)
    grid = (np.arange(100) + 0.5) / 100
    mean_V, mean_u = np.zeros((d, d)), np.zeros(d)
    for uniform in grid:
        out = replay(**arguments | {"uniforms": lambda t, uniform=uniform: np.full(size, uniform)})
        V, u = out.totals[0]
        assert max(np.abs(V - W).max(), np.abs(u - U).max()) < B / G
        mean_V, mean_u = mean_V + V / 100, mean_u + u / 100
    np.testing.assert_allclose(mean_V, W, atol=B / G / 100)
    np.testing.assert_allclose(mean_u, U, atol=B / G / 100)


def test_clipping_reaches_the_statistics_only() -> None:
    arguments: dict[str, Any] = {
        "contexts": lambda t: np.array([[3.0, 4.0]]),
        "means": lambda t: np.zeros(1),
        "actions": np.zeros(3, dtype=int),
        "rewards": np.full(3, 7.0),
        "batch_size": 1,
        "regularizer": lambda m: 1.0,
        "radius": lambda t, m: 1.0,
    }
    out = replay(system="linucb", **arguments, clip=(1.0, 0.0, 1.0))
    np.testing.assert_allclose(out.totals[-1][0], 3 * np.outer([0.6, 0.8], [0.6, 0.8]))
    np.testing.assert_allclose(out.totals[-1][1], [1.8, 2.4])
    short = arguments | {"contexts": lambda t: np.array([[0.3, 0.4]])}
    out = replay(system="linucb", **short, clip=(1.0, 0.0, 1.0))
    np.testing.assert_allclose(out.totals[-1][1], [0.9, 1.2])
    # Bits beyond +-L are cut with a clip, and sent as they are without.
    given = sources("linucb-sdp-vec", 2) | {"user_ones": lambda t: np.full(5, BITS // 4)}
    cut = replay(system="linucb-sdp-vec", **arguments, **given, clip=(5.0, 0.0, 1.0))
    whole = replay(system="linucb-sdp-vec", **arguments, **given)
    np.testing.assert_allclose(cut.totals[-1][0], 3.0)
    np.testing.assert_allclose(whole.totals[-1][0], 3 * np.outer([3, 4], [3, 4]), rtol=1e-12)


def test_prefix_noise_is_there_before_the_data() -> None:
    """The published JDP starts from noise: V is lambda I + noise(0) in the first round."""
    arguments = case("linucb-jdp", 2, 1, 2, 1, node_noise=None, radius=lambda t, m: 0.0)
    arguments["contexts"] = lambda t: np.array([[1.0], [-1.0]])
    arguments["regularizer"] = lambda m: 5.0
    noise = lambda sign: lambda m: (np.array([sign]), np.zeros((1, 1)))  # noqa: E731
    arguments |= {"actions": np.zeros(2, dtype=int), "rewards": np.zeros(2)}
    assert replay(**arguments, prefix_noise=noise(9.0)).worst_gap == 0.0
    assert replay(**arguments, prefix_noise=noise(-9.0)).worst_gap == 2.0


def test_what_is_refused() -> None:
    arguments = case("linucb-ldp", 6, 2, 2, 2)
    with pytest.raises(ValueError, match="system must be one of"):
        replay(**arguments | {"system": "linucb-sdp"})
    with pytest.raises(ValueError, match=r"linucb-jdp takes node_noise or prefix_noise"):
        replay(**arguments | {"system": "linucb-jdp"})
    with pytest.raises(ValueError, match="linucb takes nothing"):
        replay(**arguments | {"system": "linucb"})
    with pytest.raises(ValueError, match="batch_size must be >= 1"):
        replay(**arguments | {"batch_size": 0})
    with pytest.raises(ValueError, match="not finite"):
        replay(**arguments | {"rewards": np.full(6, np.nan)})
    with pytest.raises(ValueError, match="shapes"):
        replay(**arguments | {"rewards": np.zeros(5)})
    with pytest.raises(ValueError, match="symmetric"):
        replay(**arguments | {"user_noise": lambda t: (np.zeros(2), np.arange(4.0).reshape(2, 2))})
    with pytest.raises(ValueError, match="not positive definite"):
        replay(**arguments | {"user_noise": lambda t: (np.zeros(2), -99 * np.eye(2))})
    vectors = case("linucb-sdp-vec", 6, 2, 2, 2)
    for ones in (np.full(5, BITS + 1), np.full(5, -1)):
        with pytest.raises(ValueError, match="ones must be in"):
            replay(**vectors | {"user_ones": lambda t, ones=ones: ones})
    with pytest.raises(ValueError, match="integers"):
        replay(**vectors | {"user_ones": lambda t: np.full(5, 5.5)})
    with pytest.raises(ValueError, match="uniforms"):
        replay(**vectors | {"uniforms": lambda t: np.full(4, 0.5)})
