"""Check ROBIN's constants and the bounds of its paper against the oracle and by hand, and check
what is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle import huang_2023 as oracle

from fastfed._validate import InputError
from fastfed.bandits import robin_bounds as bounds
from fastfed.bandits import robin_bounds as theory
from fastfed.bandits.problem import BoundSetting, ProblemSpec
from fastfed.protocols.serverless import last_round, phases_of

# T, M, d
SIZES = list(product((1, 2, 6, 7, 2**14, 10**9), (1, 50, 3200), (1, 5, 128)))
BUDGETS = list(product((1e-4, 0.1, 0.69, 8.0), (1e-9, 0.3)))
# lambda_0, C_0, beta
DISTRIBUTIONS = list(product((1e-6, 0.0994, 1.0), (0.01, 6.7), (0.9, 0.05)))


def setting_of(
    T: int,
    M: int = 1,
    d: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    beta: float | None = None,
    constant: float = 1.0,
) -> BoundSetting:
    """Return a setting by the oracle's names."""
    return BoundSetting(
        horizon=T,
        silos=M,
        dimension=d,
        epsilon=epsilon,
        delta=delta,
        failure_probability=beta,
        constant=constant,
    )


def lower(bound: Callable[..., float]) -> Callable[..., float]:
    """Return a lower bound as a function of T, M, d, epsilon and the margin."""
    return lambda T, M, d, epsilon, margin, **keys: bound(
        setting_of(T, M, d, epsilon, **keys), margin
    )


theorem_4_5, theorem_5_3 = lower(bounds.theorem_4_5), lower(bounds.theorem_5_3)
corollary_5_5 = lower(bounds.corollary_5_5)
LOWER_BOUNDS: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
    "4.5": (theorem_4_5, oracle.theorem_4_5),
    "5.3": (theorem_5_3, oracle.theorem_5_3),
    "5.5": (corollary_5_5, oracle.corollary_5_5),
}


def check_equal(actual: float, expected: float) -> None:
    """Check that two numbers are equal up to rounding."""
    assert math.isclose(actual, expected, rel_tol=1e-12), (actual, expected)


def problem(T: int, M: int, d: int) -> ProblemSpec:
    """Return a problem of T rounds, M silos and d features."""
    return ProblemSpec(silos=M, horizon=T, dimension=d)


# -- Constants of the algorithm --------------------------------------------------------------------


def test_phases_equal_the_oracles_phases() -> None:
    for T in (*range(1, 200), 2**14, 10**9):
        assert phases_of(T) == oracle.number_of_phases(T)


def test_constants_equal_the_oracles_constants() -> None:
    for (T, M, d), (lambda_0, margin, beta) in product(SIZES, DISTRIBUTIONS):
        P, problem_spec = oracle.number_of_phases(T), problem(T, M, d)
        c_1 = oracle.concentration_c1(M, P, d, beta, lambda_0)
        check_equal(theory.concentration(problem_spec, lambda_0, beta), c_1)
        U = theory.initial_phases(problem_spec, lambda_0, margin, beta)
        assert oracle.initial_phases(M, P, d, beta, lambda_0, margin) == U


def test_constants_on_the_sphere_have_their_known_values() -> None:
    """Use T = 2^14 and beta = 0.05, with 20 actions in 5 dimensions and 2 actions in 2
    dimensions."""
    for d, lambda_0, margin, M, c_1, U in [
        (5, 0.0994, 6.7, 50, 475, 43),
        (5, 0.0994, 6.7, 3200, 541, 43),
        (2, 0.498, 1.8, 50, 58, 28),
    ]:
        problem_spec = problem(2**14, M, d)
        assert theory.concentration(problem_spec, lambda_0, 0.05) == pytest.approx(c_1, rel=0.01)
        assert theory.initial_phases(problem_spec, lambda_0, margin, 0.05) == U


def test_decision_to_share_equals_the_oracles_decision() -> None:
    for T, M, d in SIZES:
        threshold = math.sqrt(d) * math.log(T) ** 1.5 / M
        for epsilon in (1e-4, threshold * (1 - 1e-9), threshold, threshold * (1 + 1e-9), 8.0):
            shared = theory.sharing_pays(problem(T, M, d), epsilon)
            assert shared == oracle.shares(epsilon, M, d, T)
            assert shared == (epsilon >= threshold)


# -- Bounds against the oracle ---------------------------------------------------------------------


def test_upper_bounds_equal_the_oracles_bounds() -> None:
    for (T, M, d), (epsilon, delta), (lambda_0, margin, beta) in product(
        SIZES, BUDGETS, DISTRIBUTIONS
    ):
        common_keys = {"M": M, "T": T, "d": d, "beta": beta, "epsilon": epsilon, "delta": delta}
        setting = setting_of(T, M, d, epsilon, delta, beta)
        oracle_bound = oracle.theorem_3_3(**common_keys, lambda_0=lambda_0, C_0=margin)  # type: ignore[arg-type]
        check_equal(
            bounds.theorem_3_3(msgspec.structs.replace(setting, constant=0.7), lambda_0, margin),
            0.7 * oracle_bound,
        )
        actual = bounds.proposition_c_3(setting, lambda_0, margin)
        expected = oracle.proposition_c3(**common_keys, lambda_0=lambda_0, C_0=margin)  # type: ignore[arg-type]
        assert (actual.phases, actual.initial_phases) == (expected.P, expected.U)
        for value, expected_value in [
            (actual.epsilon_0, expected.budget.epsilon0),
            (actual.delta_0, expected.budget.delta0),
            (actual.c_1, expected.c1),
            (actual.c_2, expected.c2),
            (actual.silos_needed, expected.clients),
        ]:
            check_equal(value, expected_value)


def test_regret_of_known_phases_equals_the_oracles_regret() -> None:
    for (T, M, _), margin, c_2 in product(SIZES, (0.01, 6.7), (3.0, 4e5)):
        P = phases_of(T)
        for U in {1, max(1, P - 1), P, P + 3}:
            printed = bounds.theorem_c_6(setting_of(T, M), U, margin, c_2, printed=True)
            check_equal(printed, oracle.theorem_c6_explicit(M, P, U, margin, c_2))
            corrected = bounds.theorem_c_6(setting_of(T, M), U, margin, c_2)
            oracle_regret = oracle.theorem_c6_corrected(M, P, U, margin, c_2)
            # There are at most as many initial rounds as rounds.
            check_equal(corrected, oracle_regret - 2.0 * M * max(last_round(U) - T, 0))
            assert U < P or corrected == 2 * M * T


def test_lower_bounds_equal_the_oracles_bounds() -> None:
    for (T, M, d), (epsilon, delta), margin in product(SIZES, BUDGETS, (0.01, 6.7)):
        for printed in (False, True):
            check_equal(
                bounds.theorem_4_2(
                    setting_of(T, M, d, epsilon, constant=0.7), margin, printed=printed
                ),
                0.7 * oracle.theorem_4_2(M, T, d, epsilon, margin, corrected=not printed),
            )
        for bound, oracle_bound in LOWER_BOUNDS.values():
            for margin_or_none in (None, margin):
                check_equal(
                    bound(T, M, d, epsilon, margin_or_none, constant=0.7),
                    0.7 * oracle_bound(M, T, d, epsilon, margin_or_none),
                )
        check_equal(
            bounds.proposition_d_1(setting_of(T, 1, 1, epsilon, delta)),
            oracle.proposition_d1_corrected(T, epsilon, delta),
        )
        check_equal(
            bounds.proposition_d_1(setting_of(T, 1, 1, epsilon, delta), printed=True),
            oracle.proposition_d1(T, epsilon, delta),
        )


# -- Values calculated by hand ---------------------------------------------------------------------


def test_bounds_have_values_calculated_by_hand() -> None:
    log_1000 = math.log(1000)
    powers_of_e = [math.exp(-k) for k in range(7)]
    # 2 L 2 / (10 / 4) exceeds 1; for epsilon = 100 only the first term remains.
    assert bounds.theorem_3_3(
        setting_of(1000, 10, 2, 0.5, powers_of_e[2], powers_of_e[1]), 0.5, 3.0
    ) == pytest.approx(1.6 * log_1000 * 24 * log_1000)
    assert bounds.theorem_3_3(
        setting_of(1000, 10, 2, 100.0, powers_of_e[2], powers_of_e[1]), 0.5, 3.0
    ) == pytest.approx(24 * log_1000)
    assert bounds.theorem_4_2(setting_of(1000, 50, 4, 0.1), 3.0) == pytest.approx(
        24 * log_1000 + powers_of_e[5] * 50_000 / 3
    )
    assert theorem_4_5(1000, 50, 4, 0.01, 3.0) == pytest.approx(600 * log_1000)
    assert theorem_4_5(1000, 50, 4, 0.1, 3.0) == pytest.approx(24 * log_1000)
    assert theorem_4_5(1000, 50, 4, 0.05, None) == pytest.approx(20 * math.sqrt(4000))
    assert theorem_5_3(1000, 50, 4, 0.1, 3.0) == pytest.approx(120 * log_1000)
    assert theorem_5_3(1000, 50, 4, 0.5, None) == pytest.approx(10 * math.sqrt(4000))
    assert corollary_5_5(1000, 50, 4, 0.5, 3.0) == pytest.approx(48 * log_1000)
    assert corollary_5_5(1000, 49, 4, 0.5, None) == pytest.approx(14 * math.sqrt(4000))
    # 126 rounds make 6 phases, and the first 3 have 14 rounds.
    assert bounds.theorem_c_6(setting_of(126, 10), 3, 2.0, 5.0) == 8 * 2 * 25 * 3 + 2 * 10 * 14
    assert (
        bounds.theorem_c_6(setting_of(126, 10), 3, 2.0, 5.0, printed=True)
        == 8 * 2 * 25 * 6 + 10 * 8
    )
    # ln(1/delta) = 6 and d = 1: epsilon over epsilon' is 6.
    distance, probability = oracle.corollary_b5(
        0.02, 48, 1, 48 * powers_of_e[4], 1.0, powers_of_e[6], 2.0
    )
    assert distance == pytest.approx(80 * 0.02 * (4 - math.log(48)) * 6 * 2 / 48)
    assert probability == pytest.approx(144 * powers_of_e[4] + 2 / 0.4 * powers_of_e[1])
    assert bounds.proposition_d_1(setting_of(100, 1, 1, math.log(3), 0.2)) == pytest.approx(20)
    assert bounds.proposition_d_1(
        setting_of(100, 1, 1, math.log(3), 0.02), printed=True
    ) == pytest.approx(10)


def test_bounds_of_tiny_budgets_are_not_nan_and_do_not_overflow() -> None:
    tiny = 1e-310  # 1 / tiny is infinite
    for lower, _ in LOWER_BOUNDS.values():
        for margin in (None, 2.0):
            local = lower(1000, 7, 4, tiny, margin)
            assert local == pytest.approx(7 * lower(1000, 1, 4, 1.0, margin))
    assert bounds.theorem_4_2(setting_of(1, 7, 4, tiny), 2.0) == pytest.approx(3.5)
    assert bounds.theorem_3_3(setting_of(1000, 7, 4, tiny, 0.1, 0.1), 0.1, 2.0) == math.inf
    assert math.isfinite(bounds.theorem_3_3(setting_of(1000, 7, 4, 1.0, tiny, tiny), 0.1, 2.0))
    assert math.isfinite(
        bounds.proposition_c_3(setting_of(1000, 7, 4, 1.0, tiny, 0.1), 0.1, 2.0).c_2
    )
    assert bounds.proposition_d_1(setting_of(1000, 1, 1, 1e4, tiny)) == 0.0


# -- Proven and unproven bounds --------------------------------------------------------------------


def test_lower_bounds_of_privacy_models_are_ordered() -> None:
    """Check central <= local <= pure local <= no sharing.

    Pure local also equals central at epsilon / sqrt M.
    """
    T, d = 500, 4
    for M, epsilon, margin in product((1, 7, 100), (0.01, 0.2, 0.69), (None, 4.0)):
        arguments = (T, M, d, epsilon, margin)
        bounds_in_order = [lower(*arguments) for lower, _ in LOWER_BOUNDS.values()]
        without_privacy = math.sqrt(d * T) if margin is None else margin * d * math.log(T)
        for low, high in zip(
            bounds_in_order, [*bounds_in_order[1:], M * without_privacy], strict=True
        ):
            assert low <= high * (1 + 1e-12)
        assert bounds_in_order[2] == pytest.approx(
            theorem_4_5(T, M, d, epsilon / math.sqrt(M), margin)
        )


def test_lower_bounds_beyond_epsilon_ln_2_are_those_without_privacy() -> None:
    for M, epsilon in product((1, 7, 100), (math.log(2), 3.0, 50.0)):
        for lower, _ in LOWER_BOUNDS.values():
            without_privacy = 4.0 * 4 * math.log(500)
            assert lower(500, M, 4, epsilon, 4.0) <= 2.1 * without_privacy
            assert lower(500, M, 4, epsilon, None) <= 1.45 * math.sqrt(4 * M * 500)
        assert theorem_4_5(500, M, 4, epsilon, 4.0) >= without_privacy
    assert theorem_5_3(500, 7, 4, 50.0, 4.0) < 0.03 * without_privacy
    assert corollary_5_5(500, 7, 4, 50.0, 4.0) < 0.03 * without_privacy


@pytest.mark.parametrize("dimension", [2, 8])
def test_bounds_have_the_order_of_the_summed_errors(dimension: int) -> None:
    """Sum the regret as the proofs do, on instances whose margin is known."""
    T, d = 10**5, dimension
    t = np.arange(1, T + 1)
    for r, M, scaled_epsilon in product((1 / math.sqrt(d), 0.1), (2, 50, 1000), (1e-3, 0.1, 0.69)):
        _, margin = oracle.hard_constants(d, r)
        assert margin >= 1.38 * math.sqrt(d)
        epsilon = scaled_epsilon / math.sqrt(
            M
        )  # for larger epsilon the bound without privacy is the largest
        errors: Any = oracle.error_4_5(t, M=M, d=d, epsilon=epsilon, r=r)  # type: ignore[arg-type]
        regret = oracle.corollary_e2(errors, M, r)
        assert regret > 0.008 * theorem_4_5(T, M, d, epsilon, margin)
        # The local error falls as d / ((t - 1) max(1, M epsilon)), which sums to Theorem 5.3.
        for round in (10**4, 10**6):
            error = oracle.error_5_3(round, M=M, d=d, epsilon=scaled_epsilon, delta=0.0, r=r)
            assert 0.1 < error * (round - 1) * max(1, M * scaled_epsilon) / d < 0.5


def test_theorem_4_2_as_printed_exceeds_the_largest_possible_regret() -> None:
    """The reason: no gap of the instance exceeds r.

    The first term also exceeds it for a budget near 0.
    """
    M, T, d, r = 50, 10_000, 4, 0.1
    _, margin = oracle.hard_constants(d, r)
    largest_regret, without_privacy = M * T * r, margin * d * math.log(T)
    second_term = math.exp(-M * 0.15) * largest_regret
    assert (
        bounds.theorem_4_2(setting_of(T, M, d, 0.15), margin, printed=True) - without_privacy
        > 100 * second_term
    )
    assert (
        without_privacy
        < bounds.theorem_4_2(setting_of(T, M, d, 0.15), margin)
        < without_privacy + second_term
    )
    assert bounds.theorem_4_2(setting_of(T, M, d, 1e-6), margin) > 1e6 * largest_regret


def test_theorem_3_3_omits_a_logarithm_and_the_initial_rounds() -> None:
    """Check growth in delta and in M.

    As delta falls, c_2^2 grows as ln^2(1/delta); as M grows, the initial rounds cost M.
    """
    corrected, printed = [], []
    for delta in (1e-75, 1e-150, 1e-300):
        setting = setting_of(2**14, 50, 5, 1e-3, delta, 0.05)
        corrected.append(bounds.proposition_c_3(setting, 0.1, 3.0).c_2 ** 2)
        printed.append(bounds.theorem_3_3(setting, 0.1, 3.0))
    assert corrected[1:] == pytest.approx([4 * corrected[0], 16 * corrected[0]], rel=0.06)
    assert printed[1:] == pytest.approx([2 * printed[0], 4 * printed[0]])
    with_m_silos, with_2m_silos = (
        bounds.theorem_c_6(setting_of(2**14, M), 8, 3.0, 2.0) for M in (10**6, 2 * 10**6)
    )
    assert with_2m_silos == pytest.approx(2 * with_m_silos, rel=1e-3)
    with_m_silos, with_2m_silos = (
        bounds.theorem_3_3(setting_of(2**14, M, 5, 1.0, 1e-3, 0.05), 0.1, 3.0)
        for M in (10**7, 2 * 10**7)
    )
    assert with_m_silos == with_2m_silos


def test_proposition_c_3_keeps_the_error_of_corollary_b_5() -> None:
    """Check that c_2 is the sum of the distance of B.5 and the mean's own error.

    The first M of the silos leave a total failure probability of beta / (2 P).
    """
    M, beta = 500, 0.1
    constants = bounds.proposition_c_3(setting_of(1000, M, 5, 1.0, 1e-5, beta), 0.1, 1e-9)
    P, beta_1 = constants.phases, beta / (16 * constants.phases)
    r = constants.c_1 / math.sqrt(2**P)
    distance, _ = oracle.corollary_b5(r, M, 5, beta_1, constants.epsilon_0, constants.delta_0)
    assert constants.c_2 / math.sqrt(M * 2**P) == pytest.approx(distance + r / math.sqrt(M))
    # The M inside the logarithm is kept; the exponent uses the required number of silos.
    sufficient_epsilon = constants.epsilon_0 * constants.silos_needed / M
    _, probability = oracle.corollary_b5(r, M, 5, beta_1, sufficient_epsilon, constants.delta_0)
    assert probability + beta_1 == pytest.approx(beta / (2 * P))


def test_distance_of_corollary_b_5_covers_the_noise() -> None:
    """Draw Laplace noise of every coordinate, which may exceed the distance in beta = 20 % of
    draws.

    The limit is 5 binomial standard deviations above that: a false alarm for fewer than 1e-5 of
    seeds.
    """
    r, M, d, beta, epsilon, delta, draws = 0.03, 200, 8, 0.2, 0.5, 1e-4, 5000
    coordinate_epsilon = epsilon / math.sqrt(6 * d * math.log(1 / delta))
    scale = oracle.laplace_scale(oracle.rotated_radius(r, d, M, beta), M, coordinate_epsilon)
    rng = np.random.default_rng(20230613)
    noise = np.linalg.norm(rng.laplace(scale=scale, size=(draws, d)), axis=1)
    share_beyond = np.mean(noise >= oracle.corollary_b5(r, M, d, beta, epsilon, delta)[0])
    assert share_beyond <= beta + 5 * math.sqrt(beta * (1 - beta) / draws)


def test_proposition_d_1_is_the_error_of_randomised_response() -> None:
    """Check that its error is attained.

    The printed error exceeds it for epsilon below ln 9, and exceeds the error of a coin for epsilon
    below ln 1.8.
    """
    delta = 1e-12
    for epsilon in (0.05, 0.5, 2.0, 9.0):
        true_answer_probability = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
        assert true_answer_probability == pytest.approx(
            math.exp(epsilon) * (1 - true_answer_probability) + delta
        )
        assert bounds.proposition_d_1(setting_of(100, 1, 1, epsilon, delta)) == pytest.approx(
            100 * (1 - true_answer_probability)
        )
    for threshold, error in [(9.0, None), (1.8, 50.0)]:
        for epsilon, exceeds in [
            (math.log(threshold) - 1e-6, True),
            (math.log(threshold) + 1e-6, False),
        ]:
            setting = setting_of(100, 1, 1, epsilon, delta)
            printed = bounds.proposition_d_1(setting, printed=True)
            limit = bounds.proposition_d_1(setting) if error is None else error
            assert (printed > limit) == exceeds


# -- Invalid arguments -----------------------------------------------------------------------------


def test_bounds_check_their_arguments_and_name_what_they_need() -> None:
    complete = setting_of(1000, 8, 5, 0.5, 0.1, 0.1)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: bounds.theorem_c_6(complete, 201, 3.0, 50.0), "initial_phases must be an integer"),
        (lambda: bounds.theorem_c_6(complete, 4, 3.0, 0), "c_2 must be > 0, got 0"),
        (lambda: bounds.theorem_3_3(complete, 0, 3.0), "diversity must be > 0, got 0"),
        (lambda: bounds.proposition_c_3(complete, -1, 3.0), "diversity must be > 0, got -1"),
        (
            lambda: bounds.theorem_3_3(setting_of(9, 8, 5, 1.0, 0.1, 1.0), 0.1, 3.0),
            "must be > 0 and < 1",
        ),
        (lambda: bounds.theorem_4_2(complete, 3.0, printed=1), "printed must be true or false"),  # type: ignore[arg-type]
        (lambda: bounds.proposition_d_1(setting_of(9, epsilon=1.0)), "this bound needs delta"),
    ]
    refused += [
        (lambda bound=bound: bound(complete, math.inf), "margin must be")  # type: ignore[misc]
        for bound in (bounds.theorem_4_2, bounds.theorem_4_5, bounds.theorem_5_3)
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()
