"""ROBIN's constants and the bounds of its paper: against the oracle, by hand, what is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from arguments import check_refusals, formulas
from oracle import huang_2023 as oracle

from fastfed.bandits import robin_bounds as bounds
from fastfed.bandits import robin_bounds as theory
from fastfed.bandits.problem import ProblemSpec
from fastfed.protocols.serverless import last_round, phases_of

# T, M, d
SIZES = list(product((1, 2, 6, 7, 2**14, 10**9), (1, 50, 3200), (1, 5, 128)))
BUDGETS = list(product((1e-4, 0.1, 0.69, 8.0), (1e-9, 0.3)))
# lambda_0, C_0, beta
LAWS = list(product((1e-6, 0.0994, 1.0), (0.01, 6.7), (0.9, 0.05)))
LOWER: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
    "4.5": (bounds.theorem_4_5, oracle.theorem_4_5),
    "5.3": (bounds.theorem_5_3, oracle.theorem_5_3),
    "5.5": (bounds.corollary_5_5, oracle.corollary_5_5),
}


def agree(ours: float, theirs: float) -> None:
    assert math.isclose(ours, theirs, rel_tol=1e-12), (ours, theirs)


def setting(T: int, M: int, d: int) -> ProblemSpec:
    return ProblemSpec(silos=M, horizon=T, dimension=d)


# -- Constants of the algorithm --------------------------------------------------------------------


def test_phases_are_the_oracles() -> None:
    for T in (*range(1, 200), 2**14, 10**9):
        assert phases_of(T) == oracle.number_of_phases(T)


def test_constants_are_the_oracles() -> None:
    for (T, M, d), (spread, margin, beta) in product(SIZES, LAWS):
        P, at = oracle.number_of_phases(T), setting(T, M, d)
        c_1 = oracle.concentration_c1(M, P, d, beta, spread)
        agree(theory.concentration(at, spread, beta), c_1)
        U = theory.initial_phases(at, spread, margin, beta)
        assert oracle.initial_phases(M, P, d, beta, spread, margin) == U


def test_constants_on_the_sphere() -> None:
    """T = 2^14, beta = .05; lambda_0 and C_0 of 20 arms in 5 and of 2 arms in 2 dimensions."""
    for d, spread, margin, M, c_1, U in [
        (5, 0.0994, 6.7, 50, 475, 43),
        (5, 0.0994, 6.7, 3200, 541, 43),
        (2, 0.498, 1.8, 50, 58, 28),
    ]:
        at = setting(2**14, M, d)
        assert theory.concentration(at, spread, 0.05) == pytest.approx(c_1, rel=0.01)
        assert theory.initial_phases(at, spread, margin, 0.05) == U


def test_sharing_pays_is_the_oracles() -> None:
    for T, M, d in SIZES:
        edge = math.sqrt(d) * math.log(T) ** 1.5 / M
        for epsilon in (1e-4, edge * (1 - 1e-9), edge, edge * (1 + 1e-9), 8.0):
            shared = theory.sharing_pays(setting(T, M, d), epsilon)
            assert shared == oracle.shares(epsilon, M, d, T)
            assert shared == (epsilon >= edge)


# -- Bounds against the oracle ---------------------------------------------------------------------


def test_upper_bounds_are_the_oracles() -> None:
    for (T, M, d), (epsilon, delta), (spread, margin, beta) in product(SIZES, BUDGETS, LAWS):
        common = {"M": M, "T": T, "d": d, "beta": beta, "epsilon": epsilon, "delta": delta}
        at = (T, M, d, epsilon, delta, spread, margin, beta)
        theirs = oracle.theorem_3_3(**common, lambda_0=spread, C_0=margin)  # type: ignore[arg-type]
        agree(bounds.theorem_3_3(*at, constant=0.7), 0.7 * theirs)
        ours = bounds.proposition_c_3(*at)
        found = oracle.proposition_c3(**common, lambda_0=spread, C_0=margin)  # type: ignore[arg-type]
        assert (ours.phases, ours.initial_phases) == (found.P, found.U)
        for a, b in [
            (ours.epsilon_0, found.budget.epsilon0),
            (ours.delta_0, found.budget.delta0),
            (ours.c_1, found.c1),
            (ours.c_2, found.c2),
            (ours.silos_needed, found.clients),
        ]:
            agree(a, b)


def test_regret_of_known_phases_is_the_oracles() -> None:
    for (T, M, _), margin, c_2 in product(SIZES, (0.01, 6.7), (3.0, 4e5)):
        P = phases_of(T)
        for U in {1, max(1, P - 1), P, P + 3}:
            printed = bounds.theorem_c_6(T, M, U, margin, c_2, printed=True)
            agree(printed, oracle.theorem_c6_explicit(M, P, U, margin, c_2))
            mended = bounds.theorem_c_6(T, M, U, margin, c_2)
            whole = oracle.theorem_c6_mended(M, P, U, margin, c_2)
            # No more initial rounds than there are rounds.
            agree(mended, whole - 2.0 * M * max(last_round(U) - T, 0))
            assert U < P or mended == 2 * M * T


def test_lower_bounds_are_the_oracles() -> None:
    for (T, M, d), (epsilon, delta), margin in product(SIZES, BUDGETS, (0.01, 6.7)):
        for printed in (False, True):
            agree(
                bounds.theorem_4_2(T, M, d, epsilon, margin, printed=printed, constant=0.7),
                0.7 * oracle.theorem_4_2(M, T, d, epsilon, margin, mended=not printed),
            )
        for ours, theirs in LOWER.values():
            for c_0 in (None, margin):
                agree(
                    ours(T, M, d, epsilon, c_0, constant=0.7), 0.7 * theirs(M, T, d, epsilon, c_0)
                )
        agree(
            bounds.proposition_d_1(T, epsilon, delta),
            oracle.proposition_d1_mended(T, epsilon, delta),
        )
        agree(
            bounds.proposition_d_1(T, epsilon, delta, printed=True),
            oracle.proposition_d1(T, epsilon, delta),
        )


def test_error_of_the_winsorized_mean_is_the_oracles() -> None:
    for (_, M, d), (epsilon, delta) in product(SIZES[:9], BUDGETS):
        for beta, r, B in product((0.9, 1e-4), (1e-3, 0.7), (1.0, 3.0)):
            ours = bounds.corollary_b_5(r, M, d, epsilon, delta, beta, bound=B)
            theirs = oracle.corollary_b5(r, M, d, beta, epsilon, delta, B)
            agree(ours.distance, theirs[0])
            agree(ours.probability, theirs[1])


# -- By hand ---------------------------------------------------------------------------------------


def test_by_hand() -> None:
    L = math.log(1000)
    e = [math.exp(-k) for k in range(7)]
    # 2 L 2 / (10 / 4) is above 1; at epsilon = 100 the first term is left.
    assert bounds.theorem_3_3(1000, 10, 2, 0.5, e[2], 0.5, 3.0, e[1]) == pytest.approx(
        1.6 * L * 24 * L
    )
    assert bounds.theorem_3_3(1000, 10, 2, 100.0, e[2], 0.5, 3.0, e[1]) == pytest.approx(24 * L)
    assert bounds.theorem_4_2(1000, 50, 4, 0.1, 3.0) == pytest.approx(24 * L + e[5] * 50_000 / 3)
    assert bounds.theorem_4_5(1000, 50, 4, 0.01, 3.0) == pytest.approx(600 * L)
    assert bounds.theorem_4_5(1000, 50, 4, 0.1, 3.0) == pytest.approx(24 * L)
    assert bounds.theorem_4_5(1000, 50, 4, 0.05, None) == pytest.approx(20 * math.sqrt(4000))
    assert bounds.theorem_5_3(1000, 50, 4, 0.1, 3.0) == pytest.approx(120 * L)
    assert bounds.theorem_5_3(1000, 50, 4, 0.5, None) == pytest.approx(10 * math.sqrt(4000))
    assert bounds.corollary_5_5(1000, 50, 4, 0.5, 3.0) == pytest.approx(48 * L)
    assert bounds.corollary_5_5(1000, 49, 4, 0.5, None) == pytest.approx(14 * math.sqrt(4000))
    # 126 rounds are 6 phases, 14 of them in the first 3.
    assert bounds.theorem_c_6(126, 10, 3, 2.0, 5.0) == 8 * 2 * 25 * 3 + 2 * 10 * 14
    assert bounds.theorem_c_6(126, 10, 3, 2.0, 5.0, printed=True) == 8 * 2 * 25 * 6 + 10 * 8
    # ln(1/delta) = 6 and d = 1: epsilon over epsilon' is 6.
    distance, probability = bounds.corollary_b_5(0.02, 48, 1, 1.0, e[6], 48 * e[4], bound=2.0)
    assert distance == pytest.approx(80 * 0.02 * (4 - math.log(48)) * 6 * 2 / 48)
    assert probability == pytest.approx(144 * e[4] + 2 / 0.4 * e[1])
    assert bounds.proposition_d_1(100, math.log(3), 0.2) == pytest.approx(20)
    assert bounds.proposition_d_1(100, math.log(3), 0.02, printed=True) == pytest.approx(10)


def test_small_budgets_do_no_harm() -> None:
    tiny = 1e-310  # 1 / tiny is infinite
    for lower, _ in LOWER.values():
        for margin in (None, 2.0):
            alone = lower(1000, 7, 4, tiny, margin)
            assert alone == pytest.approx(7 * lower(1000, 1, 4, 1.0, margin))
    assert bounds.theorem_4_2(1, 7, 4, tiny, 2.0) == pytest.approx(3.5)
    assert bounds.theorem_3_3(1000, 7, 4, tiny, 0.1, 0.1, 2.0, 0.1) == math.inf
    assert math.isfinite(bounds.theorem_3_3(1000, 7, 4, 1.0, tiny, 0.1, 2.0, tiny))
    assert math.isfinite(bounds.proposition_c_3(1000, 7, 4, 1.0, tiny, 0.1, 2.0, 0.1).c_2)
    assert math.isfinite(bounds.corollary_b_5(0.1, 7, 4, 1.0, tiny, tiny).distance)
    assert bounds.proposition_d_1(1000, 1e4, tiny) == 0.0


# -- What is proven, and what is not ---------------------------------------------------------------


def test_kinds_of_privacy_are_in_order() -> None:
    """Central <= local <= pure local <= alone, and pure local is central at epsilon / sqrt M."""
    T, d = 500, 4
    for M, epsilon, margin in product((1, 7, 100), (0.01, 0.2, 0.69), (None, 4.0)):
        at = (T, M, d, epsilon, margin)
        chain = [lower(*at) for lower, _ in LOWER.values()]
        plain = math.sqrt(d * T) if margin is None else margin * d * math.log(T)
        for low, high in zip(chain, [*chain[1:], M * plain], strict=True):
            assert low <= high * (1 + 1e-12)
        assert chain[2] == pytest.approx(
            bounds.theorem_4_5(T, M, d, epsilon / math.sqrt(M), margin)
        )


def test_beyond_ln_2_lower_bounds_are_those_without_privacy() -> None:
    for M, epsilon in product((1, 7, 100), (math.log(2), 3.0, 50.0)):
        for lower, _ in LOWER.values():
            plain = 4.0 * 4 * math.log(500)
            assert lower(500, M, 4, epsilon, 4.0) <= 2.1 * plain
            assert lower(500, M, 4, epsilon, None) <= 1.45 * math.sqrt(4 * M * 500)
        assert bounds.theorem_4_5(500, M, 4, epsilon, 4.0) >= plain
    assert bounds.theorem_5_3(500, 7, 4, 50.0, 4.0) < 0.03 * plain
    assert bounds.corollary_5_5(500, 7, 4, 50.0, 4.0) < 0.03 * plain


@pytest.mark.parametrize("dimension", [2, 8])
def test_orders_follow_from_errors(dimension: int) -> None:
    """The regret that the proofs sum up, on instances whose margin is known, is of the order."""
    T, d = 10**5, dimension
    t = np.arange(1, T + 1)
    for r, M, share in product((1 / math.sqrt(d), 0.1), (2, 50, 1000), (1e-3, 0.1, 0.69)):
        _, margin = oracle.hard_constants(d, r)
        assert margin >= 1.38 * math.sqrt(d)
        epsilon = share / math.sqrt(M)  # beyond, the bound without privacy leads
        errors: Any = oracle.error_4_5(t, M=M, d=d, epsilon=epsilon, r=r)  # type: ignore[arg-type]
        regret = oracle.corollary_e2(errors, M, r)
        assert regret > 0.008 * bounds.theorem_4_5(T, M, d, epsilon, margin)
        # The local error falls as d / ((t - 1) max(1, M epsilon)), which sums to Theorem 5.3.
        for round in (10**4, 10**6):
            error = oracle.error_5_3(round, M=M, d=d, epsilon=share, delta=0.0, r=r)
            assert 0.1 < error * (round - 1) * max(1, M * share) / d < 0.5


def test_theorem_4_2_as_printed_exceeds_what_there_is_to_lose() -> None:
    """No gap of the instance exceeds r. The first term does it too, at a budget near 0."""
    M, T, d, r = 50, 10_000, 4, 0.1
    _, margin = oracle.hard_constants(d, r)
    whole, plain = M * T * r, margin * d * math.log(T)
    alone = math.exp(-M * 0.15) * whole
    assert bounds.theorem_4_2(T, M, d, 0.15, margin, printed=True) - plain > 100 * alone
    assert plain < bounds.theorem_4_2(T, M, d, 0.15, margin) < plain + alone
    assert bounds.theorem_4_2(T, M, d, 1e-6, margin) > 1e6 * whole


def test_theorem_3_3_loses_a_logarithm_and_the_initial_rounds() -> None:
    """As delta falls c_2^2 grows as ln^2(1/delta), as M grows the initial rounds cost M."""
    at = (0.1, 3.0, 0.05)
    grown, printed = [], []
    for delta in (1e-75, 1e-150, 1e-300):
        grown.append(bounds.proposition_c_3(2**14, 50, 5, 1e-3, delta, *at).c_2 ** 2)
        printed.append(bounds.theorem_3_3(2**14, 50, 5, 1e-3, delta, *at))
    assert grown[1:] == pytest.approx([4 * grown[0], 16 * grown[0]], rel=0.06)
    assert printed[1:] == pytest.approx([2 * printed[0], 4 * printed[0]])
    few, many = (bounds.theorem_c_6(2**14, M, 8, 3.0, 2.0) for M in (10**6, 2 * 10**6))
    assert many == pytest.approx(2 * few, rel=1e-3)
    few, many = (bounds.theorem_3_3(2**14, M, 5, 1.0, 1e-3, *at) for M in (10**7, 2 * 10**7))
    assert few == many


def test_proposition_c_3_makes_corollary_b_5_small() -> None:
    """c_2 is B.5's distance and the mean's own error; the first M leaves beta / (2 P) in all."""
    M, beta = 500, 0.1
    found = bounds.proposition_c_3(1000, M, 5, 1.0, 1e-5, 0.1, 1e-9, beta)
    P, beta_1 = found.phases, beta / (16 * found.phases)
    r = found.c_1 / math.sqrt(2**P)
    b_5 = bounds.corollary_b_5(r, M, 5, found.epsilon_0, found.delta_0, beta_1)
    assert found.c_2 / math.sqrt(M * 2**P) == pytest.approx(b_5.distance + r / math.sqrt(M))
    # M inside the logarithm stays; the exponent takes the M asked for.
    enough = found.epsilon_0 * found.silos_needed / M
    b_5 = bounds.corollary_b_5(r, M, 5, enough, found.delta_0, beta_1)
    assert b_5.probability + beta_1 == pytest.approx(beta / (2 * P))


def test_corollary_b_5_covers_the_noise() -> None:
    """Laplace noise of every coordinate: it may exceed the distance in beta = 20 % of draws.

    5 binomial standard deviations above that: a false alarm in fewer than 1e-5 of seeds.
    """
    r, M, d, beta, epsilon, delta, draws = 0.03, 200, 8, 0.2, 0.5, 1e-4, 5000
    coordinate = epsilon / math.sqrt(6 * d * math.log(1 / delta))
    scale = oracle.laplace_scale(oracle.rotated_radius(r, d, M, beta), M, coordinate)
    rng = np.random.default_rng(20230613)
    noise = np.linalg.norm(rng.laplace(scale=scale, size=(draws, d)), axis=1)
    far = np.mean(noise >= bounds.corollary_b_5(r, M, d, epsilon, delta, beta).distance)
    assert far <= beta + 5 * math.sqrt(beta * (1 - beta) / draws)


def test_proposition_d_1_is_randomised_response() -> None:
    """Its error is attained; the paper's is above it below ln 9, above a coin's below ln 1.8."""
    delta = 1e-12
    for epsilon in (0.05, 0.5, 2.0, 9.0):
        truth = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
        assert truth == pytest.approx(math.exp(epsilon) * (1 - truth) + delta)
        assert bounds.proposition_d_1(100, epsilon, delta) == pytest.approx(100 * (1 - truth))
    for edge, error in [(9.0, None), (1.8, 50.0)]:
        for epsilon, above in [(math.log(edge) - 1e-6, True), (math.log(edge) + 1e-6, False)]:
            printed = bounds.proposition_d_1(100, epsilon, delta, printed=True)
            limit = bounds.proposition_d_1(100, epsilon, delta) if error is None else error
            assert (printed > limit) == above


# -- Bad values ------------------------------------------------------------------------------------

# By argument: a good value, bad ones just outside, and the sentence up to the value.
ARGUMENTS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "horizon": (1000, (0,), "horizon must be an integer >= 1"),
    "silos": (8, (0,), "silos must be an integer >= 1"),
    "dimension": (5, (0,), "dimension must be an integer >= 1"),
    "initial_phases": (4, (0, 201), "initial_phases must be an integer >= 1 and <= 200"),
    "epsilon": (0.5, (0, -1, math.nan), "epsilon must be > 0"),
    "delta": (0.1, (0, 1), "delta must be > 0 and < 1"),
    "diversity": (0.1, (0, -1), "diversity must be > 0"),
    "margin": (3.0, (0, math.inf), "margin must be > 0"),
    "failure_probability": (0.1, (0, 1), "failure_probability must be > 0 and < 1"),
    "radius": (0.1, (0,), "radius must be > 0"),
    "bound": (1.0, (0,), "bound must be > 0"),
    "c_2": (50.0, (0,), "c_2 must be > 0"),
    "printed": (True, (1, "yes"), "printed must be true or false"),
    "constant": (1.0, (0, -1, math.nan), "constant must be > 0"),
}


def test_every_argument_is_checked() -> None:
    functions = formulas(bounds)
    assert len(functions) == 9
    check_refusals(functions, ARGUMENTS)
