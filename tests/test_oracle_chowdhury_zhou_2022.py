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


def test_lemma_a4_by_hand() -> None:
    value = lemma_a4(4.0, T=100, B=5, d=16, alpha=1.0, constant=3.0)
    assert value == pytest.approx(3 * (80 + 160 + 20 * 8 * log(100)) * log(100))


SIZES: dict[str, Any] = {"T": 10_000, "B": 100, "d": 4, "alpha": 0.01}


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


def test_prefix_noise_is_there_before_the_data() -> None:
    """The published JDP starts from noise: V is lambda I + noise(0) in the first round."""
    arguments = case("linucb-jdp", 2, 1, 2, 1, node_noise=None, radius=lambda t, m: 0.0)
    arguments["contexts"] = lambda t: np.array([[1.0], [-1.0]])
    arguments["regularizer"] = lambda m: 5.0
    noise = lambda sign: lambda m: (np.array([sign]), np.zeros((1, 1)))  # noqa: E731
    arguments |= {"actions": np.zeros(2, dtype=int), "rewards": np.zeros(2)}
    assert replay(**arguments, prefix_noise=noise(9.0)).worst_gap == 0.0
    assert replay(**arguments, prefix_noise=noise(-9.0)).worst_gap == 2.0


def test_bounds_and_budgets_by_hand() -> None:
    for layout, shrunk in [("iid", 1.0), ("goe1", sqrt(2)), ("goe2", 1.0)]:
        norm, vector = noise_bounds(1.5, layout=layout, d=4, releases=1, alpha=0.4)
        assert norm * shrunk == pytest.approx(1.5 * (4 + 2 * sqrt(log(20))))
        assert vector == pytest.approx(1.5 * (2 + sqrt(2 * log(10))))
    grown = log(1 + 120 / 3)
    by_hand = 3 * 40 / (2 * log(2)) * grown + 4 * 2 * sqrt(2 * 3 * 120 * grown)
    assert lemma_a2(2.0, T=120, B=40, d=3, lam_min=1.0) == pytest.approx(by_hand)
    # The budgets per batch of Theorem E.5 add up to eps until eps = 11.54.
    for epsilon, holds in [(1.0, True), (11.53, True), (11.56, False)]:
        one, _ = per_batch_budget(epsilon, 0.1, 1000)
        assert (composed_epsilon(one, 1000, 0.05) <= epsilon) == holds
    # At 1 000 users the lemma costs more than plain local privacy; at 10 000 half as much.
    assert amp_inverted_noise_std(0.2, 0.1, 20) is None
    few, many = (amp_inverted_noise_std(0.02, 1e-3, B) for B in (1000, 10_000))
    plain = tight_noise_std(0.02, 1e-3)
    assert few is not None and many is not None
    assert many < 0.5 * plain < plain < few
