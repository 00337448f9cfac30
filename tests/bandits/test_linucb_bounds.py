"""Check bounds and batch rules of private LinUCB against the oracle, and check what is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from oracle import chowdhury_zhou_2022 as oracle

from fastfed._validate import InputError
from fastfed.bandits import linucb_bounds as bounds
from fastfed.bandits.problem import BoundSetting

Bound = Callable[..., float]


def setting_of(
    T: int,
    d: int = 1,
    B: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    alpha: float | None = None,
    constant: float = 1.0,
) -> BoundSetting:
    """Return a setting by the oracle's names."""
    return BoundSetting(
        horizon=T,
        dimension=d,
        batch_size=B,
        epsilon=epsilon,
        delta=delta,
        failure_probability=alpha,
        constant=constant,
    )


def theorem(bound: Callable[..., float], **keys: Any) -> Bound:
    """Return a bound as a function of T, d, B, epsilon, delta, alpha."""
    return lambda *sizes, **constant: bound(setting_of(*sizes, **constant), **keys)


def rule_of(name: str) -> Callable[..., int]:
    """Return a batch rule as a function of T, d, epsilon, delta."""
    return lambda T, d=1, epsilon=None, delta=None, constant=1.0: bounds.batch_size(
        name, setting_of(T, d, 1, epsilon, delta, constant=constant)
    )


THEOREMS: dict[str, Bound] = {
    "3.2": theorem(bounds.theorem_3_2),
    "B.1": theorem(bounds.theorem_b_1),
    "C.1": theorem(bounds.theorem_c_1),
    "E.3": theorem(bounds.theorem_e_3, printed=True),
    "E.3-corrected": theorem(bounds.theorem_e_3),
    "E.5": theorem(bounds.theorem_e_5),
    "F.1": theorem(bounds.proposition_f_1),
    "F.3": theorem(bounds.proposition_f_3),
}
RULES = {name: rule_of(name) for name in ("B.2", "B.3", "C.2", "C.3", "E.4", "E.6")}
RULES_OF_T = {name: rule_of(name) for name in ("3.3", "F.2", "F.4")}
SIZES = list(product((1, 30, 20_000, 10**9), (1, 5, 300), (1e-3, 0.2, 1.0, 15.0), (0.4, 1e-9)))
ALPHAS = (1.0, 1e-3)


def batch_sizes(horizon: int) -> list[int]:
    """Return the smallest batch, that of the root of the horizon, and the largest."""
    return sorted({1, math.ceil(math.sqrt(horizon)), horizon})


def check_equal(actual: float, expected: float) -> None:
    """Check that two numbers are equal up to rounding."""
    assert math.isclose(actual, expected, rel_tol=1e-12), (actual, expected)


# -- Comparison with the oracle --------------------------------------------------------------------


@pytest.mark.parametrize("result", THEOREMS)
def test_theorems_equal_the_oracles_theorems(result: str) -> None:
    for (T, d, epsilon, delta), alpha in product(SIZES, ALPHAS):
        for B in batch_sizes(T):
            sizes = {"T": T, "B": B, "d": d, "epsilon": epsilon, "delta": delta, "alpha": alpha}
            check_equal(
                THEOREMS[result](T, d, B, epsilon, delta, alpha, constant=0.7),
                oracle.regret_bound(result, **sizes, constant=0.7),
            )


def test_bound_of_returning_users_equals_the_oracles_bound() -> None:
    for T, d, epsilon, delta in SIZES:
        for M0 in batch_sizes(T):
            budget = {"epsilon": epsilon, "delta": delta, "alpha": 0.1}
            check_equal(
                bounds.proposition_e_7(setting_of(T, d, 1, epsilon, delta, constant=3.0), M0),
                oracle.regret_bound("E.7", T=T, B=1, d=d, M0=M0, **budget, constant=3.0),
            )


def test_lemmas_equal_the_oracles_lemmas() -> None:
    for T, d, scale, _ in SIZES:
        for B, alpha in product(batch_sizes(T), ALPHAS):
            check_equal(
                bounds.lemma_a_2(setting_of(T, d, B), 1.0 + scale, scale),
                oracle.lemma_a2(1.0 + scale, T=T, B=B, d=d, lam_min=scale),
            )
            for sigma in (0.0, scale):
                check_equal(
                    bounds.lemma_a_4(setting_of(T, d, B, alpha=alpha, constant=0.7), sigma),
                    oracle.lemma_a4(sigma, T=T, B=B, d=d, alpha=alpha, constant=0.7),
                )


def test_batch_rules_equal_the_oracles_rules() -> None:
    for T, d, epsilon, delta in SIZES:
        sizes: dict[str, Any] = {"T": T, "d": d, "epsilon": epsilon, "delta": delta}
        for constant in (0.01, 1.0, 40.0):
            for rule, package_rule in RULES.items():
                B = package_rule(T, d, epsilon, delta, constant=constant)
                assert oracle.batch_size(rule, **sizes, constant=constant) == B, rule
            for rule, rule_of_T in RULES_OF_T.items():
                assert rule_of_T(T, constant=constant) == oracle.batch_size(
                    rule, **sizes, constant=constant
                )
        for rule in ("3.3", *RULES):
            check_equal(
                bounds.corollary_bound(rule, setting_of(**sizes, constant=0.7)),
                oracle.corollary_bound(rule, **sizes, constant=0.7),
            )


# -- Values calculated by hand ---------------------------------------------------------------------


def test_bounds_have_values_calculated_by_hand() -> None:
    arguments = (10_000, 16, 100, 0.25, 0.01, 0.01)  # d^(3/4) / sqrt(epsilon) = 16
    logs = math.log(1e4) * math.log(1e6)
    first_term = 1600 * math.log(1e4)
    corrected = (math.log(1e6) * math.log(1e4) * math.log(200)) ** 0.25
    assert THEOREMS["E.3-corrected"](*arguments) == pytest.approx(
        first_term + 16_000 * corrected * logs
    )
    assert THEOREMS["C.1"](*arguments) == pytest.approx(
        first_term + 16 * 10**2.5 * math.log(25_600) ** 0.5 * logs
    )
    assert THEOREMS["F.3"](*arguments) == pytest.approx(
        1600 + 1600 * math.log(100) ** 0.25 * math.log(1e6)
    )
    bound_of_lemma = bounds.lemma_a_2(setting_of(30, 2, 4), 1.5, 5.0)  # G = ln 4
    assert bound_of_lemma == pytest.approx(8 + 6 * math.sqrt(240 * math.log(2)))
    # Powers of T alone are exact, and 1000^(3/5) = 63.1.
    assert [RULES_OF_T[name](6**4) for name in ("F.2", "F.4")] == [216, 36]
    assert [RULES_OF_T["3.3"](T) for T in (1, 1000, 3**5, 10**10)] == [1, 64, 27, 10**6]


def test_bounds_of_tiny_budgets_are_finite() -> None:
    tiny = 1e-310  # 1 / tiny is infinite
    for bound in THEOREMS.values():
        assert math.isfinite(bound(100, 3, 10, 1.0, tiny, tiny))
    for rule in RULES.values():
        assert rule(100, 3, 5e-324, tiny) == 100


# -- Proven properties -----------------------------------------------------------------------------


@pytest.mark.parametrize("result", THEOREMS)
def test_bounds_are_monotone(result: str) -> None:
    bound = THEOREMS[result]
    for (T, d, epsilon, delta), alpha in product(SIZES[len(SIZES) // 4 :], ALPHAS):
        for B in batch_sizes(T):
            value = bound(T, d, B, epsilon, delta, alpha)
            assert bound(2 * T, d, B, epsilon, delta, alpha) > value
            assert bound(T, 2 * d, B, epsilon, delta, alpha) > value
            assert bound(T, d, B, 2 * epsilon, delta, alpha) < value
            assert bound(T, d, B, epsilon, 1.1 * delta, alpha) < value
            assert bound(T, d, B, epsilon, delta, 0.5 * alpha) > value


def test_other_bounds_are_monotone() -> None:
    def cost(T: int, d: int, epsilon: float, delta: float, M0: int) -> float:
        """Return the bound of Proposition E.7 for a user of M0 rounds."""
        return bounds.proposition_e_7(setting_of(T, d, 1, epsilon, delta), M0)

    value = cost(1000, 5, 0.5, 0.1, 10)
    assert cost(1000, 5, 0.5, 0.1, 40) == pytest.approx(2 * value)
    assert cost(4000, 5, 0.5, 0.1, 10) == pytest.approx(2 * value)
    assert cost(1000, 80, 2.0, 0.1, 10) == pytest.approx(4 * value)
    assert cost(1000, 5, 0.5, 0.01, 10) == pytest.approx(2**0.25 * value)
    lemmas: list[Callable[..., float]] = [
        lambda T, d, B, noise, low: bounds.lemma_a_2(setting_of(T, d, B), noise, low),
        lambda T, d, B, noise, alpha: bounds.lemma_a_4(setting_of(T, d, B, alpha=alpha), noise),
    ]
    for lemma in lemmas:
        value = lemma(1000, 5, 10, 3.0, 0.5)
        for larger in [(2000, 5, 10, 3.0), (1000, 6, 10, 3.0), (1000, 5, 11, 3.0)]:
            assert lemma(*larger, 0.5) > value
        assert lemma(1000, 5, 10, 4.0, 0.5) > value > lemma(1000, 5, 10, 3.0, 0.6)


def test_batch_rules_are_monotone() -> None:
    for rule in RULES.values():
        B = rule(10**7, 5, 0.3, 0.01)
        assert rule(2 * 10**7, 5, 0.3, 0.01) > B
        assert rule(10**7, 5, 0.2, 0.01) > B > rule(10**7, 5, 0.3, 0.02)
        assert rule(10**7, 50, 0.3, 0.01) < B or rule is RULES["C.2"]
        assert rule(10**7, 5, 0.3, 0.01, constant=2.0) in (2 * B, 2 * B - 1)


@pytest.mark.parametrize("result", ["B.1", "C.1", "E.3", "E.3-corrected", "E.5", "F.1"])
def test_bounds_without_the_dropped_term_still_hold(result: str) -> None:
    """Check that the first term exceeds T if d sqrt(T) ln(T/alpha) exceeds the second term."""
    count = 0
    for T, d, epsilon, delta, alpha in product(
        (30, 10**4, 10**9), (1, 10**4, 10**8, 10**12), (0.1, 1.0), (0.1, 1e-5), ALPHAS
    ):
        dropped = d * math.sqrt(T) * math.log(T / alpha)
        for B in batch_sizes(T):
            bound = THEOREMS[result](T, d, B, epsilon, delta, alpha)
            first_term = d * B * (1.0 if result == "F.1" else math.log(T))
            if bound - first_term < dropped:
                count += 1
                assert first_term >= T
    assert count


def test_central_bound_fails_without_the_dropped_term() -> None:
    """Check F.3: from d epsilon^2 = ln(1/delta) on, the dropped term is the largest for every T."""
    delta, epsilon, alpha = math.exp(-4.0), 0.5, 1e-3
    for T, d in product((10**4, 10**12), (15, 17)):
        second_term = THEOREMS["F.3"](T, d, 1, epsilon, delta, alpha) - d
        dropped = d * math.sqrt(T) * math.log(T / alpha)
        assert (dropped > second_term) == (d > 16)


def test_lemma_a_4_implies_the_bounds() -> None:
    """Compare second terms at the noise of the theorems.

    Here constants in logarithms are negligible.
    """
    T, d, B, delta = 10_000, 4, 100, 1e-290
    for result, sigma, ratio in [
        ("B.1", oracle.amp_noise_std(0.01, delta, B) * 100, 32**0.25),
        ("E.3-corrected", oracle.amp_returning_noise_std(0.01, delta, B, 100) * 100, 16**0.5),
        ("E.3", oracle.amp_returning_noise_std_printed(0.01, delta, B, T) * 100, 16**0.5),
        ("C.1", math.sqrt(3 / 16 * 24e4) * math.log(1 / delta) / 0.01 * 10, 45_000**0.25),
    ]:
        first_term = d * B * math.log(T)
        second_term = THEOREMS[result](T, d, B, 0.01, delta, 0.1) - first_term
        without_noise = bounds.lemma_a_4(setting_of(T, d, B, alpha=0.1), 0.0)
        noise_term = bounds.lemma_a_4(setting_of(T, d, B, alpha=0.1), sigma) - without_noise
        assert noise_term / second_term == pytest.approx(ratio, rel=0.01), result


def test_corrected_bounds_exceed_the_printed_ones() -> None:
    for T, d, epsilon, delta in SIZES[len(SIZES) // 4 :]:
        for B in batch_sizes(T)[1:]:
            arguments = (T, d, B, epsilon, delta, 0.1)
            assert THEOREMS["3.2"](*arguments) > THEOREMS["B.1"](*arguments)
        with_batches_of_one = (T, d, 1, epsilon, delta, 0.1)
        printed = THEOREMS["E.3"](*with_batches_of_one)
        assert THEOREMS["E.3-corrected"](*with_batches_of_one) > printed


# -- Batch rules make both terms of a bound equal --------------------------------------------------


def ratio_of_terms(bound: Bound, T: int, d: int, B: int, epsilon: float, delta: float) -> float:
    """Return the second term over d B, without ln T and ln(T/alpha)."""
    values = [bound(T, d, B, epsilon, delta, alpha) for alpha in (1.0, math.exp(-1.0))]
    log_T = 1.0 if bound is THEOREMS["F.1"] else math.log(T)
    return (values[1] - values[0]) / log_T / (d * B)


@pytest.mark.parametrize(("epsilon", "delta", "d"), [(0.1, 0.1, 5), (2.0, 1e-5, 20)])
def test_batch_rules_make_both_terms_equal(epsilon: float, delta: float, d: int) -> None:
    """The terms are equal except for what the rules round up in logarithms.

    T is large, so that rounding up the batch size changes little.
    """
    T = 10**12
    arguments = (d, epsilon, delta)
    B = {name: rule(T, *arguments) for name, rule in RULES.items()}
    logarithms = {
        name: math.log(x / delta) for name, x in [("1", 1), ("2", 2), ("T", T), ("dd", d * d)]
    }
    expected: list[tuple[Bound, str, float, float]] = [
        (THEOREMS["C.1"], "C.2", epsilon, 1.0),
        (
            THEOREMS["B.1"],
            "B.2",
            epsilon,
            (math.log(B["B.2"] / delta) / logarithms["T"]) ** 0.25,
        ),
        (THEOREMS["F.1"], "B.3", epsilon, 1.0),
        # One user's bits at epsilon equal a batch at epsilon / sqrt(B).
        (THEOREMS["C.1"], "C.3", epsilon / math.sqrt(B["C.3"]), 1.0),
        (THEOREMS["E.3"], "E.4", epsilon, math.sqrt(logarithms["2"] / logarithms["T"])),
        (
            THEOREMS["E.3-corrected"],
            "E.4",
            epsilon,
            (math.log(T / B["E.4"] / delta) * logarithms["2"] / logarithms["T"] ** 2) ** 0.25,
        ),
        (
            THEOREMS["E.5"],
            "E.6",
            epsilon,
            (math.log(d * d * T / B["E.6"] / delta) / math.log(T * d * d / delta)) ** 0.75,
        ),
    ]
    for bound, rule, budget, ratio in expected:
        assert ratio <= 1
        actual = ratio_of_terms(bound, T, d, B[rule], budget, delta)
        assert actual == pytest.approx(ratio, rel=1e-5), rule
        # The rule's own regret is d B.
        regret = bounds.corollary_bound(rule, setting_of(T, d, 1, epsilon, delta))
        assert d * (B[rule] - 1) <= regret <= d * B[rule]


def test_rules_without_budget_have_the_right_growth_in_t() -> None:
    """Check that the privacy term over d B is the same for all T.

    For 3.3 it is that of C.1.
    """
    for bound, rule in [
        (THEOREMS["F.1"], RULES_OF_T["F.2"]),
        (lambda *sizes: THEOREMS["F.3"](*sizes) * math.log(sizes[0]), RULES_OF_T["F.4"]),
        (THEOREMS["C.1"], RULES_OF_T["3.3"]),
    ]:
        ratios = [ratio_of_terms(bound, T, 5, rule(T), 0.5, 0.1) for T in (10**12, 10**16, 10**20)]
        assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-6)


def test_batch_rules_can_violate_conditions_of_their_theorems() -> None:
    """Use T = 20 000, d = 5 and delta = 0.1, as the docstrings say."""
    T, d, delta = 20_000, 5, 0.1
    threshold = d**0.125 * T**-0.375 * math.log(20) ** 0.5 * math.log(T / delta) ** -0.125
    assert threshold == pytest.approx(0.038, abs=5e-4)
    assert RULES["B.2"](T, d, 0.2, delta) == 1080
    for epsilon, holds in [(0.99 * threshold, True), (1.01 * threshold, False)]:
        B = RULES["B.2"](T, d, epsilon, delta)
        assert oracle.amp_conditions(epsilon, delta, B)["theorem"] == holds
    for condition, largest_epsilon in [("printed", 0.44), ("theorem", 0.765)]:
        for epsilon, holds in [(largest_epsilon, True), (largest_epsilon + 0.01, False)]:
            B = RULES["E.4"](T, d, epsilon, delta)
            assert oracle.amp_returning_conditions(epsilon, delta, B, T // B)[condition] == holds


# -- Invalid arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "bad_values", "message"),
    [
        ("horizon", (0,), "horizon must be an integer >= 1"),
        ("silos", (0,), "silos must be an integer >= 1"),
        ("dimension", (0,), "dimension must be an integer >= 1"),
        ("batch_size", (0, 1001), "batch_size must be an integer >= 1 and <= 1000"),
        ("epsilon", (0, -1, math.nan), "epsilon must be > 0"),
        ("delta", (0, 1), "delta must be > 0 and < 1"),
        ("failure_probability", (0, 1.5), "failure_probability must be > 0 and <= 1"),
        ("constant", (0, -1, math.nan), "constant must be > 0"),
    ],
)
def test_settings_are_checked(key: str, bad_values: tuple[Any, ...], message: str) -> None:
    for bad_value in bad_values:
        with pytest.raises(InputError, match=f"^{message}, got {bad_value!r}"):
            BoundSetting(**{"horizon": 1000, key: bad_value})


def test_bounds_check_their_arguments_and_name_what_they_need() -> None:
    complete = setting_of(1000, 5, 20, 1.0, 0.1, 0.1)
    refused: list[tuple[Callable[[], float], str]] = [
        (lambda: bounds.proposition_e_7(complete, 1001), "rounds_per_user must be an integer >= 1"),
        (lambda: bounds.lemma_a_4(complete, -1), "noise_std must be >= 0, got -1"),
        (lambda: bounds.lemma_a_2(complete, 0.5, 2.0), "beta must be >= 1, got 0.5"),
        (lambda: bounds.lemma_a_2(complete, 2.0, 0), "lambda_min must be > 0, got 0"),
        (lambda: bounds.theorem_e_3(complete, printed=1), "printed must be true or false"),  # type: ignore[arg-type]
        (lambda: bounds.batch_size("B.1", complete), 'rule must be one of "3.3", "F.2"'),
        (lambda: bounds.corollary_bound("F.2", complete), 'corollary must be one of "3.3", "B.2"'),
        (lambda: bounds.batch_size("B.2", setting_of(1000)), "this bound needs delta"),
        (lambda: bounds.lemma_a_4(setting_of(1000), 1.0), "this bound needs failure_probability"),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()
