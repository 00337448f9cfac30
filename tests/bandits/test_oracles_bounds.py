"""Tests of the bandit oracles: radii, batch rules, bounds and hard instances against values by
hand."""

from __future__ import annotations

from itertools import product
from math import e, exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import chowdhury_zhou_2022 as chowdhury
from oracle import dubey_pentland_2020 as dubey
from oracle import huang_2023 as huang
from oracle import zhou_chowdhury_2024 as zhou
from pytest import approx

# Chowdhury and Zhou (2022).


def test_chowdhury_radius() -> None:
    arguments: dict[str, Any] = {"T": 100, "B": 10, "d": 4}
    assert chowdhury.regularizer(0.0, alpha=0.1, **arguments) == 1.0
    actual = chowdhury.regularizer(3.0, alpha=10 * exp(-9), constant=2.0, **arguments)
    assert actual == approx(6 * (2 + 3))
    arguments = {"d": 3, "alpha": 0.02}
    root = sqrt(2 * log(100) + 3 * log(2))
    assert chowdhury.beta(12, lam=4.0, **arguments) == approx(root + 2)
    assert chowdhury.beta(0, lam=4.0, R=0.5, **arguments) == approx(sqrt(log(100) / 2) + 2)
    actual = chowdhury.beta_proven(12, lam_min=4.0, lam_max=9.0, nu=0.25, R=0.5, **arguments)
    assert actual == approx(0.5 * root + 3.25)
    actual = chowdhury.lemma_a4(4.0, T=100, B=5, d=16, alpha=1.0, constant=3.0)
    assert actual == approx(3 * (80 + 160 + 20 * 8 * log(100)) * log(100))
    grown = log(1 + 120 / 6)
    by_hand = 3 * 40 / (2 * log(2)) * grown + 4 * 2 * sqrt(2 * 3 * 120 * grown)
    assert chowdhury.lemma_a2(2.0, T=120, B=40, d=3, lam_min=2.0) == approx(by_hand)


# d^(3/4) / sqrt eps, and log T log(T / alpha).
POWER, LOGS = 4**1.25, log(1e4) * log(1e6)


@pytest.mark.parametrize(
    ("result", "by_hand"),
    [
        ("3.2", 400 * log(1e4) + 10**2.5 * sqrt(log(1e4)) * POWER * log(1e6) ** 2),
        ("B.1", 400 * log(1e4) + 10**2.5 * (log(1e4) * log(200)) ** 0.25 * POWER * LOGS),
        ("C.1", 400 * log(1e4) + 10**2.5 * sqrt(log(1600)) * POWER * LOGS),
        ("E.3", 400 * log(1e4) + 1000 * log(1e6) ** 0.25 * log(200) ** 0.5 * POWER * LOGS),
        ("E.5", 400 * log(1e4) + 1000 * log(1.6e5) ** 0.75 * POWER * LOGS),
        ("E.7", 300 * log(100) ** 0.25 * POWER),
        ("F.1", 400 + 1000 * log(100) ** 0.25 * POWER * log(1e6)),
        ("F.3", 400 + 100 * log(100) ** 0.25 * POWER * log(1e6)),
    ],
)
def test_chowdhury_regret_bounds(result: str, by_hand: float) -> None:
    """Use T = 1e4, B = 100, d = 4, alpha = delta = 0.01, eps = 1/4 and M0 = 9."""
    sizes: dict[str, Any] = {"T": 10_000, "B": 100, "d": 4, "alpha": 0.01, "M0": 9}
    sizes |= {"epsilon": 0.25, "delta": 0.01}
    assert chowdhury.regret_bound(result, **sizes) == approx(by_hand)
    assert chowdhury.regret_bound(result, **sizes, constant=2.0) == approx(2 * by_hand)


def test_chowdhury_batch_rules() -> None:
    sizes: dict[str, Any] = {"T": 10**4, "d": 16, "epsilon": 0.25, "delta": 0.01}
    unique = 16**-0.2 * 10**2.4 * 4**0.4
    returning = 16 ** (-1 / 6) * 10 ** (8 / 3) * 4 ** (1 / 3)
    rules = {
        "3.3": 10**2.4,
        "B.2": unique * (log(1e6) * log(200)) ** 0.2,
        "B.3": 1000 * log(100) ** 0.25,
        "C.2": unique * log(25600) ** 0.4,
        "C.3": 1000 * log(25600) ** 0.5,
        "E.4": returning * log(1e6) ** 0.5,
        "E.6": returning * log(256e6) ** 0.5,
        "F.2": 1000,
        "F.4": 100,
    }
    assert rules.keys() == set(chowdhury.BATCH_RULES)
    for rule, ideal in rules.items():
        assert chowdhury.ideal_batch(rule, **sizes) == approx(ideal)
        if rule not in ("3.3", "F.2", "F.4"):
            assert chowdhury.corollary_bound(rule, **sizes, constant=3.0) == approx(48 * ideal)
    actual = [chowdhury.batch_size("F.4", **sizes, constant=c) for c in (1.0, 1e-9, 1e9)]
    assert actual == [100, 1, 10**4]
    assert chowdhury.batch_size("3.3", **sizes) == 252
    for c in ({}, {"constant": 3.0}):
        actual = chowdhury.corollary_bound("3.3", **sizes, **c)
        assert actual == approx(c.get("constant", 1) * 2 * 10**2.4 * log(1e6) ** 0.5)


def test_chowdhury_published_constants() -> None:
    figure: dict[str, Any] = {"T": 20_000, "d": 5, "delta": 0.1, "epsilon": 0.2}
    run = {name: chowdhury.published(name, **figure) for name in chowdhury.SYSTEMS}
    plain, jdp, ldp, amp, vec = (run[name] for name in chowdhury.SYSTEMS)
    assert (plain.gamma, plain.ridge, plain.noise_std) == (1.0, 1e-4, 0.0)
    assert plain.width == approx(sqrt(5) + 0.5 * sqrt(5 * log(40_001 * 20_000)))
    assert ldp.noise_std == approx(5 * sqrt(log(25)))
    assert ldp.gamma == approx(ldp.noise_std * sqrt(1e5))
    assert ldp.ridge == 2 * ldp.gamma
    grown = log((1 + 40_000 / ldp.gamma) * 20_000)
    assert ldp.width == approx(sqrt(5 * ldp.gamma) + 0.5 * sqrt(5 * grown))
    assert amp.noise_std == approx(sqrt(log(500)) / (0.2 * sqrt(20)))
    assert jdp.noise_std == approx(5 * sqrt(log(20_000)) * log(25))
    assert jdp.gamma == approx(jdp.noise_std * sqrt(5 * log(20_000)))
    assert vec.gamma == approx(log(50) / (4 * 0.2 * sqrt(20)) * sqrt(1e5))
    assert vec.encoding == chowdhury.Encoding(9, 1550, sqrt(2))
    assert [run[name].batch_size for name in chowdhury.SYSTEMS] == [1, 1, 1, 20, 20]
    assert [chowdhury.published_draws(t) for t in (1, 2, 3, 20_000)] == [1, 1, 2, 10]
    assert jdp.draws == 10


# The direct radius of this package, in the oracle of Zhou and Chowdhury (2024).


def direct_rule(**changes: Any) -> zhou.Direct:
    """Return a direct radius with simple constants."""
    constants: dict[str, Any] = {
        "full": lambda k: 8.0,
        "floor": lambda k: 4.0,
        "error": lambda k: 0.5,
    }
    return zhou.Direct(**constants | {"anchor": 1.0, "base": 2.0, "scale": 0.5} | changes)


@pytest.mark.parametrize(
    ("eigenvalues", "lam", "nearest"),
    [
        # The smallest eigenvalue of V is the total's plus 0, 1, ..., 7. It must be above 4.
        ([4.5, 6.0], 0.0, 0.5 / 6.0),
        ([-0.75, 9.0], 5.0, 0.25 / 14.0),
        ([4.0, 6.0], 1.0, 0.0),
        ([-2.5, 0.0], 7.0, 0.5 / 7.0),
        ([-4.0, 6.0], 8.0, 1.0 / 13.0),
    ],
)
def test_direct_regularizer(eigenvalues: list[float], lam: float, nearest: float) -> None:
    total = np.diag(eigenvalues)
    assert zhou.chosen_regularizer(direct_rule(), 1, total) == (lam, approx(nearest))
    assert zhou.chosen_regularizer(direct_rule(floor=lambda k: 0.0), 1, total) == (8.0, np.inf)


def test_direct_bonuses_by_hand() -> None:
    V = np.array([[5.0, 3.0], [3.0, 5.0]])  # the determinant is 16
    assert zhou.direct_bonuses(direct_rule(), 1, 8.0, V) == approx((sqrt(2 + log(16)) / 2, 8.5))
    # lambda = 6: f = 1 + 2/4, and the determinant of V at full is at most f^2 times V's.
    under_root = 1.5 * (2 + log(16) + 2 * log(1.5 / 2.0))
    rule = direct_rule(anchor=2.0, multiplier=0.1)
    assert zhou.direct_bonuses(rule, 1, 6.0, V) == approx((0.05 * sqrt(under_root), 0.65))
    # A determinant below the anchor's does not reduce the radius.
    assert zhou.direct_bonuses(direct_rule(anchor=9.0), 1, 8.0, V)[0] == approx(sqrt(2) / 2)
    with pytest.raises(ValueError, match="positive definite"):
        zhou.direct_bonuses(direct_rule(), 1, 8.0, np.diag([1.0, -1.0]))


@pytest.mark.parametrize("lazy", [False, True])
def test_direct_radius_in_one_dimension(lazy: bool) -> None:
    """Compare the direct radius with one computed by hand for x = +-1, where V is known."""
    phi = np.array([[1.0], [-1.0]])
    noises = [0.25, 0.25, -4.5, 0.25, 0.25]  # noise of the node of release k = 1, 2, ...
    rule = direct_rule(
        full=lambda k: 3.0 if k == 0 else 8.0, floor=lambda k: 0.0 if k == 0 else 4.0
    )
    arguments: dict[str, Any] = {
        "contexts": lambda t, i: phi,
        "means": lambda t, i: phi[:, 0],
        "actions": np.array([[0] * 8 + [1, 1]]),
        "rewards": np.ones((1, 10)),
        "batch_size": 2,
        "protocol": "silo-ldp",
        "lazy": lazy,
        "noise": lambda i, k: (np.zeros(1), np.array([[noises[k - 1]]])),
    }
    # The noisy sums of x x' at releases 1 to 4 are 2.25, 4.25, 1.75 and 8.25. With lambda, V is
    # 4.25, 4.25, 4.75 and 8.25, each larger than the floor, which is 4.
    lambdas, totals = [3.0, 2.0, 0.0, 3.0, 0.0, 0.0], [0.0, 2.25, 4.25, 1.75, 8.25]

    def bonus(t: int, k: int) -> float:
        """Return the bonus in round t after k releases, by hand."""
        V = lambdas[k] + totals[k] + (0 if lazy else (t - 1) % 2)
        least = max(4.0, (lambdas[k] + totals[k]) / (1.0 + 1e-9))
        f = 1.0 if k == 0 else 1.0 + (8.0 - lambdas[k]) / least
        return 0.5 * sqrt(f * (2.0 + log(V * f))) + (lambdas[k] + 0.5) / sqrt(V)

    by_rule = zhou.replay(**arguments, direct=rule)
    by_hand = zhou.replay(**arguments, radius=bonus, regularizer=lambda k: lambdas[k])
    assert by_rule.regularizers == by_hand.regularizers == lambdas
    assert (by_rule.nearest_floor, by_hand.nearest_floor) == (approx(0.25 / 4.25), np.inf)
    assert by_rule.worst_gap == approx(by_hand.worst_gap, rel=1e-12)
    assert by_rule.worst_gap > 0.1


# Dubey and Pentland (2020).


def test_dubey_beta() -> None:
    V = np.diag([4.0, 9.0])
    constants: dict[str, Any] = {"sigma": 2.0, "alpha": 0.02, "norm": 3.0, "M": 5, "kappa": 0.7}
    constants |= {"rho_min": 0.4, "rho_max": 1.2}
    bias_terms = 3 * sqrt(6.0) + 0.7 * sqrt(5)
    for anchor, floor in ((None, 2.0), (2, 0.8)):
        by_hand = 2 * sqrt(2 * log(100) + log(36) - 2 * log(floor)) + bias_terms
        assert dubey.beta(V, anchor=anchor, **constants) == approx(by_hand)
    grown = 2 * log(3 + 1 / 0.8)
    actual = dubey.beta_bar(T=1, d=2, L=1.0, **constants)
    assert actual == approx(2 * sqrt(2 * log(100) + grown) + bias_terms)
    # At delta = 1e-5 the printed kappa is too small for its noise, while Lambda is large enough.
    d, n, M, alpha, delta = 10, 10**5, 100, 0.01, 1e-5
    m = dubey.levels(n)
    std = dubey.node_noise_std(1.0, delta, m, 1.0)
    big = dubey.big_lambda(1.0, delta, m, 1.0, d, n, M, alpha)
    assert big > dubey.lambda_from_noise(std, m, d, n, M, alpha)
    needed = dubey.kappa_from_noise(std, m, big, d, n, M, alpha)
    assert dubey.kappa_printed(1.0, m, 1.0, d, n, M, alpha) < needed


def test_dubey_thresholds() -> None:
    sizes: dict[str, Any] = {"T": 1000, "d": 5, "L": 2.0, "rho_min": 2.0, "rho_max": 6.0}
    grown = log(3 + 4000 / 10)
    assert dubey.threshold("log-T", M=7, **sizes) == approx(10000 / (grown + 1))
    assert dubey.threshold("M1.5", M=7, **sizes) == approx(1000 * log(7000) / 35)
    assert dubey.threshold("MT", M=7, **sizes) == 0.0
    with pytest.raises(ValueError, match="communication"):
        dubey.threshold("MlogT", M=7, **sizes)
    actual = dubey.decentralised_threshold(gamma=4, **sizes)
    assert actual == approx(2500 / (log(3 + 4000 / 40) + 1))


def test_dubey_bounds() -> None:
    sizes: dict[str, Any] = {"T": 100, "d": 2, "L": 1.0, "rho_min": 1.0, "rho_max": 3.0}
    grown = log(53)
    assert dubey.log_growth(**sizes) == approx(grown)
    bounds = dubey.proposition_1(8.0, **sizes)
    assert bounds["main-text"] == approx(10 * grown + 4)
    assert bounds["appendix"] == approx(10 * sqrt(grown) + 4)
    assert bounds["derived"] == approx(10 * sqrt(grown) + grown / 4 + 2)
    constants: dict[str, Any] = {"sigma": 0.5, "alpha": 0.01, "norm": 2.0, "M": 4, "kappa": 0.25}
    noise_terms = sqrt(log(200)) + 2 * sqrt(12) + 0.5
    bound = dubey.theorem_1(**constants, **sizes, constant=3.0)
    assert bound == approx(1.5 * sqrt(800) * (grown + noise_terms))
    assert dubey.theorem_1(**constants, **sizes) == approx(bound / 3)
    bound = dubey.theorem_2(**constants, **sizes, cliques=3, gamma=2, constant=3.0)
    assert bound == approx(1.5 * sqrt(4800) * (log(28) + noise_terms))
    own_sizes: dict[str, Any] = {"T": 100, "d": 2, "grown": 3.5}
    bound = dubey.theorem_1_two_terms(8.0, 5.0, M=4, **own_sizes)
    assert bound == approx(10 * e * (sqrt(5600) + 4 * sqrt(8) * 8))
    # One clique of all silos with gamma = 1 gives the centralised bound.
    assert dubey.theorem_2_two_terms(8.0, 5.0, sizes=[4], gamma=1, **own_sizes) == approx(bound)
    bound = dubey.theorem_2_two_terms(8.0, 5.0, sizes=[3, 1], gamma=2, **own_sizes)
    terms = sqrt(2100) + sqrt(700) + 4 * sqrt(8) * 8
    assert bound == approx(20 * e * terms)
    assert dubey.theorem_1_explicit(5.0, M=4, **own_sizes) == approx(4 * e * 5 * 60 * sqrt(2))


# Huang et al. (2023). E# numbers a correction of section 8 of the text next to the oracle.


def test_huang_radii() -> None:
    # 16 d (M+1) P / beta = 16 * 2 * 4 * 5 / .5 = 1280.
    assert huang.concentration_c1(3, 5, 2, 0.5, 0.1) == approx(80 * sqrt(log(1280)))
    actual = huang.concentration_c1_corrected(3, 5, 2, 0.5, 0.04)
    assert actual == approx(20 * sqrt(log(2560)))
    assert huang.concentration_radius(80.0, 4, 0.5) == approx(10.0)
    assert huang.rotated_radius(0.01, 8, 50, 0.02) == approx(0.1 * sqrt(log(2e4) / 8))
    assert huang.rotated_radius(5.0, 8, 50, 0.02) == approx(sqrt(8))
    assert huang.rotated_radius(5.0, 8, 50, 0.02, B=2.0) == approx(2 * sqrt(8))
    assert huang.call_beta(0.8, 10) == approx(0.005)
    assert huang.laplace_scale(0.1, 50, 0.5) == approx(0.032)
    root = sqrt(2 * log(50) + 3 * log(4))
    assert huang.linucb_alpha(5, 3, 0.1, 4) == approx(1 + root)
    assert huang.linucb_alpha_corrected(5, 3, 0.1, 9) == approx(1 + root)
    edge = sqrt(5) * log(1000) ** 1.5 / 200
    assert huang.shares(edge, 200, 5, 1000) and not huang.shares(0.999 * edge, 200, 5, 1000)
    assert huang.shares(0.501 * edge, 200, 5, 1000, constant=0.5)


def test_huang_initial_phases() -> None:
    """Check a sphere with d = 5, 20 arms and 14 phases; Lemma C.2 needs five more phases (E8)."""
    assert huang.initial_phases(50, 14, 5, 0.05, 0.0994, 6.67) == 43
    assert huang.initial_phases_corrected(50, 14, 5, 0.05, 0.0994, 6.67) == 48
    holds = [huang.lemma_c2_condition(U, 50, 5, 0.05, 0.0994, 6.67) for U in (47, 48)]
    assert holds == [False, True]
    # Slightly above the first bound, 64 log(200) / 0.25^2 = 5425 rounds.
    assert huang.initial_phases(50, 1, 2, 1.0, 0.25, -0.2499) == 13


def test_huang_concentration() -> None:
    M, P, d, beta, eps0, delta0, p = 400, 9, 5, 0.1, 0.05, 1e-6, 7
    r = huang.concentration_radius(huang.concentration_c1(M, P, d, beta, 0.08), p)
    distance, _ = huang.corollary_b5(r, M, d, huang.call_beta(beta, P), eps0, delta0)
    c2 = huang.estimation_c2(M, P, d, beta, 0.08, eps0, delta0)
    assert c2 / sqrt(M * huang.phase_length(p)) == approx(distance + r / sqrt(M))
    root = sqrt(6 * 2 * log(20) * 4)
    distance, missed = huang.corollary_b5(0.5, 10, 2, 1.0, 0.3, exp(-4), B=3.0)
    assert distance == approx(40 * log(2) * root / 3)
    chance = 12 / (5 * sqrt(log(20))) * exp(-3 / (8 * sqrt(48)))
    assert missed == approx(3 + chance)
    # At the required M, four beta_1 and the missed range together give beta / (2P).
    arguments: dict[str, Any] = {"M": 500, "T": 1000, "d": d, "beta": beta, "delta": 1e-5}
    actual = huang.proposition_c3(**arguments, epsilon=1.0, lambda_0=0.1, C_0=1e-9)
    P, budget, beta_1 = actual.P, actual.budget, huang.call_beta(beta, actual.P)
    r = huang.concentration_radius(actual.c1, P)
    at_clients = budget.epsilon0 * actual.clients / 500
    _, chance = huang.corollary_b5(r, 500, d, beta_1, at_clients, budget.delta0)
    assert chance + beta_1 == approx(beta / (2 * P))
    assert actual.error(P, 500) == approx(actual.c2 / sqrt(500 * huang.phase_length(P - 1)))


def test_huang_regret_bounds() -> None:
    arguments: dict[str, Any] = {"M": 10, "T": 1000, "d": 2, "beta": exp(-2), "delta": exp(-2)}
    without_privacy = 3.0 * 2 * 2 * log(1000) / 0.25
    actual = huang.theorem_3_3(epsilon=100.0, C_0=3.0, lambda_0=0.5, **arguments)
    assert actual == approx(without_privacy)
    actual = huang.theorem_3_3(epsilon=0.5, C_0=3.0, lambda_0=0.5, **arguments)
    assert actual == approx(without_privacy * 2 * log(1000) * 2 * 8 / 2.5)
    assert huang.theorem_c6_explicit(10, 6, 3, 2.0, 5.0) == 8 * 2 * 25 * 6 + 80
    assert huang.theorem_c6_corrected(10, 6, 3, 2.0, 5.0) == 8 * 2 * 25 * 3 + 20 * 14
    assert huang.theorem_c6_corrected(10, 3, 5, 2.0, 5.0) == 20 * 62


def test_huang_lower_bounds() -> None:
    L = 12 * log(1000)
    assert huang.theorem_4_5(50, 1000, 4, 0.01, 3.0) == approx(50 * L)
    assert huang.theorem_4_5(50, 1000, 4, 0.1, 3.0) == approx(2 * L)
    assert huang.theorem_4_5(50, 1000, 4, 0.05, None) == approx(20 * sqrt(4000))
    assert huang.theorem_5_3(50, 1000, 4, 0.1, 3.0) == approx(10 * L)
    assert huang.theorem_5_3(50, 1000, 4, 0.5, None) == approx(10 * sqrt(4000))
    assert huang.corollary_5_5(49, 500, 4, 0.2, 4.0) == approx(25 * 16 * log(500))
    assert huang.corollary_5_5(49, 1000, 4, 0.25, None) == approx(28 * sqrt(4000))
    assert huang.theorem_4_2(50, 1000, 4, 0.1, 3.0) == approx(2 * L + exp(-5) * 150_000)
    assert huang.corollary_e2([0.1, 0.3], 5, 0.5) == approx(2.0)
    # r^2 <= e + 2 r^2 A sqrt(2 (t-1) e / d): the smallest such e is at least the closed form.
    for t, r, M, memory in product((1, 5, 400), (0.05, 0.4), (1, 60), (True, False)):
        arguments: dict[str, Any] = {"M": M, "d": 4, "epsilon": 0.3, "r": r, "memory": memory}
        bound = huang.error_4_5(t, **arguments)
        A = 0.3 * (M - 1) + 1 if memory else 0.3 * M
        assert bound == approx(r**2 / (2 * r**2 * A**2 * (t - 1) + 4))
        half = r**2 * A * sqrt((t - 1) / 2)
        assert bound <= (sqrt(half**2 + r**2) - half) ** 2 + 1e-15
        assert huang.error_4_5(t, corrected=True, **arguments) <= bound
    # eps' = 0.2: M eps' < 1 < r^2 (t-1) / d gives (2 - sqrt(M eps')) d / (12 (t-1)), 12 lost.
    arguments = {"M": 2, "d": 4, "epsilon": -log(1 - 0.2), "delta": 0.0, "r": 0.3}
    actual = huang.error_5_3(401, **arguments)
    assert (2 - sqrt(0.4)) * 4 / 4800 <= actual < 8 / 400
    assert huang.error_5_3(1, **arguments) == approx(0.045)
    # E16: the printed bound is better than a coin. Randomised response attains the corrected bound.
    assert huang.proposition_d1(100, 0.1, 0.001) == approx(90 * exp(-0.1) - 1)
    assert huang.proposition_d1_corrected(100, 0.1, 0.001) == approx(99.9 / (1 + exp(0.1)))
    # p and q are probabilities of an answer on two data sets; keep the pairs that are (0.4,
    # 0.01)-DP.
    p, q = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    pairs = ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p))
    private = np.all([a <= exp(0.4) * b + 0.01 for a, b in pairs], axis=0)
    least = np.min((1 - p + q)[private]) / 2
    assert least == approx(huang.proposition_d1_corrected(1, 0.4, 0.01), abs=3e-3)


# Hard instances, and the constants of a distribution of contexts.


def test_hard_instance() -> None:
    d, r, n = 4, 0.4, 20_000
    theta = huang.hard_parameter(np.array([0.3, 4.0]), r)
    assert np.linalg.norm(theta.reshape(-1, 2), axis=1) == approx(r)
    rng = np.random.default_rng(18)
    z, blocks = huang.truncated_normal(rng.random(n), rng.random(n)), rng.integers(2, size=n)
    draws = [huang.hard_features(int(s), v, d) for s, v in zip(blocks, z, strict=True)]
    contexts = np.array(draws)
    assert np.max(np.linalg.norm(contexts, axis=2)) <= 1
    assert not contexts[:, 1].any()
    lambda_0, C_0 = huang.hard_constants(d, r)
    # Standard deviations of the estimates are below 2 %.
    assert huang.diversity(contexts, theta) == approx(lambda_0, rel=0.08)
    assert huang.margin_constant(huang.margins(contexts, theta), 1000) == approx(C_0, rel=0.15)
    z = huang.truncated_normal(np.array([0.0, 1.0, 0.5]), np.array([0.3, 0.25, 0.0]))
    half = sqrt(-2 * log((1 + exp(-0.5)) / 2))
    assert z == approx(np.array([[0.0, 0.0], [0.0, 1.0], [half, 0.0]]), abs=1e-9)


def test_proposition_d1_instance() -> None:
    """Check that every gap is 1, so C_0 = 1, and that no single client has lambda_0 > 0."""
    for theta, client in product(huang.proposition_d1_parameters(), (0, 1, 5)):
        phi = np.array([huang.proposition_d1_features(client)])
        assert huang.margins(phi, theta).tolist() == [1.0]
        assert huang.diversity(phi, theta) == approx(0.0)
    for client, side in ((0, 0.5), (3, -0.5)):
        means = huang.proposition_d1_features(client) @ [1.0, -1.0]
        assert means.tolist() == [side, -side]


def test_diversity_and_margins_by_hand() -> None:
    """Use two contexts of three arms, with best arms e1 and 0.6 e2."""
    contexts = np.array([[[1, 0], [0, 0.5], [0.2, 0]], [[0.1, 0], [0, 0.6], [0, 0.5]]])
    theta = np.array([1.0, 1.0])
    assert huang.diversity(contexts, theta) == approx(0.36 / 2)
    assert huang.margins(contexts, theta) == approx([0.5, 0.1])
    assert huang.margins(contexts, theta, every=True) == approx([0.8, 0.5])
    assert huang.margin_constant(huang.margins(contexts, theta)) == approx(0.5 / 0.1)
    assert huang.margin_constant(huang.margins(contexts, theta), 2) == approx(1 / 0.5)
