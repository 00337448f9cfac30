"""Bounds and batch rules of private LinUCB: against the oracle, and what is proven of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from arguments import check_refusals, formulas
from oracle import chowdhury_zhou_2022 as oracle

from fastfed.bandits import linucb_bounds as bounds

Bound = Callable[..., float]
# By the oracle's name: T, d, B, epsilon, delta, alpha.
THEOREMS: dict[str, Bound] = {
    "3.2": bounds.theorem_3_2,
    "B.1": bounds.theorem_b_1,
    "C.1": bounds.theorem_c_1,
    "E.3": lambda *at, **key: bounds.theorem_e_3(*at, printed=True, **key),
    "E.3-mended": bounds.theorem_e_3,
    "E.5": bounds.theorem_e_5,
    "F.1": bounds.proposition_f_1,
    "F.3": bounds.proposition_f_3,
}
# T, d, epsilon, delta; and T alone.
RULES: dict[str, Callable[..., int]] = {
    "B.2": bounds.batch_size_b_2,
    "B.3": bounds.batch_size_b_3,
    "C.2": bounds.batch_size_c_2,
    "C.3": bounds.batch_size_c_3,
    "E.4": bounds.batch_size_e_4,
    "E.6": bounds.batch_size_e_6,
}
FREE: dict[str, Callable[..., int]] = {
    "3.3": bounds.batch_size_3_3,
    "F.2": bounds.batch_size_f_2,
    "F.4": bounds.batch_size_f_4,
}
SIZES = list(product((1, 30, 20_000, 10**9), (1, 5, 300), (1e-3, 0.2, 1.0, 15.0), (0.4, 1e-9)))
ALPHAS = (1.0, 1e-3)


def batches(horizon: int) -> list[int]:
    return sorted({1, math.ceil(math.sqrt(horizon)), horizon})


def agree(ours: float, theirs: float) -> None:
    assert math.isclose(ours, theirs, rel_tol=1e-12), (ours, theirs)


# -- Against the oracle ----------------------------------------------------------------------------


@pytest.mark.parametrize("result", THEOREMS)
def test_theorems_are_the_oracles(result: str) -> None:
    for (T, d, epsilon, delta), alpha in product(SIZES, ALPHAS):
        for B in batches(T):
            sizes = {"T": T, "B": B, "d": d, "epsilon": epsilon, "delta": delta, "alpha": alpha}
            agree(
                THEOREMS[result](T, d, B, epsilon, delta, alpha, constant=0.7),
                oracle.regret_bound(result, **sizes, constant=0.7),
            )


def test_returning_users_of_the_central_model_are_the_oracles() -> None:
    for T, d, epsilon, delta in SIZES:
        for M0 in batches(T):
            budget = {"epsilon": epsilon, "delta": delta, "alpha": 0.1}
            agree(
                bounds.proposition_e_7(T, d, epsilon, delta, M0, constant=3.0),
                oracle.regret_bound("E.7", T=T, B=1, d=d, M0=M0, **budget, constant=3.0),
            )


def test_lemmas_are_the_oracles() -> None:
    for T, d, scale, _ in SIZES:
        for B, alpha in product(batches(T), ALPHAS):
            agree(
                bounds.lemma_a_2(T, d, B, 1.0 + scale, scale),
                oracle.lemma_a2(1.0 + scale, T=T, B=B, d=d, lam_min=scale),
            )
            for sigma in (0.0, scale):
                agree(
                    bounds.lemma_a_4(T, d, B, sigma, alpha, constant=0.7),
                    oracle.lemma_a4(sigma, T=T, B=B, d=d, alpha=alpha, constant=0.7),
                )


def test_batch_rules_are_the_oracles() -> None:
    for T, d, epsilon, delta in SIZES:
        sizes: dict[str, Any] = {"T": T, "d": d, "epsilon": epsilon, "delta": delta}
        for constant in (0.01, 1.0, 40.0):
            for rule, ours in RULES.items():
                B = ours(T, d, epsilon, delta, constant=constant)
                assert oracle.batch_size(rule, **sizes, constant=constant) == B, rule
            for rule, free in FREE.items():
                assert free(T, constant=constant) == oracle.batch_size(
                    rule, **sizes, constant=constant
                )
        for rule in ("3.3", *RULES):
            agree(
                bounds.corollary_bound(rule, *sizes.values(), constant=0.7),
                oracle.corollary_bound(rule, **sizes, constant=0.7),
            )


# -- By hand ---------------------------------------------------------------------------------------


def test_by_hand() -> None:
    at = (10_000, 16, 100, 0.25, 0.01, 0.01)  # d^(3/4) / sqrt(epsilon) = 16
    logs = math.log(1e4) * math.log(1e6)
    first = 1600 * math.log(1e4)
    mended = (math.log(1e6) * math.log(1e4) * math.log(200)) ** 0.25
    assert bounds.theorem_e_3(*at) == pytest.approx(first + 16_000 * mended * logs)
    assert bounds.theorem_c_1(*at) == pytest.approx(
        first + 16 * 10**2.5 * math.log(25_600) ** 0.5 * logs
    )
    assert bounds.proposition_f_3(*at) == pytest.approx(
        1600 + 1600 * math.log(100) ** 0.25 * math.log(1e6)
    )
    lemma = bounds.lemma_a_2(30, 2, 4, 1.5, 5.0)  # G = ln 4
    assert lemma == pytest.approx(8 + 6 * math.sqrt(240 * math.log(2)))
    # Powers of T alone are exact, and 1000^(3/5) = 63.1.
    assert [free(6**4) for free in (bounds.batch_size_f_2, bounds.batch_size_f_4)] == [216, 36]
    assert [bounds.batch_size_3_3(T) for T in (1, 1000, 3**5, 10**10)] == [1, 64, 27, 10**6]


def test_what_cannot_be_divided_is_still_finite() -> None:
    tiny = 1e-310  # 1 / tiny is infinite
    for bound in THEOREMS.values():
        assert math.isfinite(bound(100, 3, 10, 1.0, tiny, tiny))
    for rule in RULES.values():
        assert rule(100, 3, 5e-324, tiny) == 100


# -- What is proven --------------------------------------------------------------------------------


@pytest.mark.parametrize("result", THEOREMS)
def test_bounds_are_monotone(result: str) -> None:
    bound = THEOREMS[result]
    for (T, d, epsilon, delta), alpha in product(SIZES[len(SIZES) // 4 :], ALPHAS):
        for B in batches(T):
            value = bound(T, d, B, epsilon, delta, alpha)
            assert bound(2 * T, d, B, epsilon, delta, alpha) > value
            assert bound(T, 2 * d, B, epsilon, delta, alpha) > value
            assert bound(T, d, B, 2 * epsilon, delta, alpha) < value
            assert bound(T, d, B, epsilon, 1.1 * delta, alpha) < value
            assert bound(T, d, B, epsilon, delta, 0.5 * alpha) > value


def test_other_bounds_are_monotone() -> None:
    value = bounds.proposition_e_7(1000, 5, 0.5, 0.1, 10)
    assert bounds.proposition_e_7(1000, 5, 0.5, 0.1, 40) == pytest.approx(2 * value)
    assert bounds.proposition_e_7(4000, 5, 0.5, 0.1, 10) == pytest.approx(2 * value)
    assert bounds.proposition_e_7(1000, 80, 2.0, 0.1, 10) == pytest.approx(4 * value)
    assert bounds.proposition_e_7(1000, 5, 0.5, 0.01, 10) == pytest.approx(2**0.25 * value)
    for lemma in (bounds.lemma_a_2, bounds.lemma_a_4):
        value = lemma(1000, 5, 10, 3.0, 0.5)
        for larger in [(2000, 5, 10, 3.0), (1000, 6, 10, 3.0), (1000, 5, 11, 3.0)]:
            assert lemma(*larger, 0.5) > value
        assert lemma(1000, 5, 10, 4.0, 0.5) > value > lemma(1000, 5, 10, 3.0, 0.6)


def test_batch_rules_are_monotone() -> None:
    for rule in RULES.values():
        B = rule(10**7, 5, 0.3, 0.01)
        assert rule(2 * 10**7, 5, 0.3, 0.01) > B
        assert rule(10**7, 5, 0.2, 0.01) > B > rule(10**7, 5, 0.3, 0.02)
        assert rule(10**7, 50, 0.3, 0.01) < B or rule is bounds.batch_size_c_2
        assert rule(10**7, 5, 0.3, 0.01, constant=2.0) in (2 * B, 2 * B - 1)


@pytest.mark.parametrize("result", ["B.1", "C.1", "E.3", "E.3-mended", "E.5", "F.1"])
def test_the_dropped_term_does_no_harm(result: str) -> None:
    """Where d sqrt(T) ln(T/alpha) is above the second term, the first is above T."""
    found = 0
    for T, d, epsilon, delta, alpha in product(
        (30, 10**4, 10**9), (1, 10**4, 10**8, 10**12), (0.1, 1.0), (0.1, 1e-5), ALPHAS
    ):
        dropped = d * math.sqrt(T) * math.log(T / alpha)
        for B in batches(T):
            bound = THEOREMS[result](T, d, B, epsilon, delta, alpha)
            first = d * B * (1.0 if result == "F.1" else math.log(T))
            if bound - first < dropped:
                found += 1
                assert first >= T
    assert found


def test_in_the_central_model_it_does() -> None:
    """From d epsilon^2 = ln(1/delta) on the dropped term leads F.3, whatever T."""
    delta, epsilon, alpha = math.exp(-4.0), 0.5, 1e-3
    for T, d in product((10**4, 10**12), (15, 17)):
        second = bounds.proposition_f_3(T, d, 1, epsilon, delta, alpha) - d
        dropped = d * math.sqrt(T) * math.log(T / alpha)
        assert (dropped > second) == (d > 16)


def test_lemma_a_4_gives_the_bounds() -> None:
    """Second terms at the noise of the theorems, here where constants in logarithms are nothing."""
    T, d, B, delta = 10_000, 4, 100, 1e-290
    for result, sigma, known in [
        ("B.1", oracle.amp_noise_std(0.01, delta, B) * 100, 32**0.25),
        ("E.3-mended", oracle.amp_returning_noise_std(0.01, delta, B, 100) * 100, 16**0.5),
        ("E.3", oracle.amp_returning_noise_std_printed(0.01, delta, B, T) * 100, 16**0.5),
        ("C.1", math.sqrt(3 / 16 * 24e4) * math.log(1 / delta) / 0.01 * 10, 45_000**0.25),
    ]:
        first = d * B * math.log(T)
        second = THEOREMS[result](T, d, B, 0.01, delta, 0.1) - first
        plain = bounds.lemma_a_4(T, d, B, 0.0, 0.1)
        template = bounds.lemma_a_4(T, d, B, sigma, 0.1) - plain
        assert template / second == pytest.approx(known, rel=0.01), result


def test_mended_and_looser_logarithms() -> None:
    for T, d, epsilon, delta in SIZES[len(SIZES) // 4 :]:
        for B in batches(T)[1:]:
            at = (T, d, B, epsilon, delta, 0.1)
            assert bounds.theorem_3_2(*at) > bounds.theorem_b_1(*at)
        one = (T, d, 1, epsilon, delta, 0.1)
        assert bounds.theorem_e_3(*one) > bounds.theorem_e_3(*one, printed=True)


# -- Batch rules balance the bounds ----------------------------------------------------------------


def balance(bound: Bound, T: int, d: int, B: int, epsilon: float, delta: float) -> float:
    """The second term over d B, without ln T and ln(T/alpha)."""
    both = [bound(T, d, B, epsilon, delta, alpha) for alpha in (1.0, math.exp(-1.0))]
    logs = 1.0 if bound is bounds.proposition_f_1 else math.log(T)
    return (both[1] - both[0]) / logs / (d * B)


@pytest.mark.parametrize(("epsilon", "delta", "d"), [(0.1, 0.1, 5), (2.0, 1e-5, 20)])
def test_rules_balance(epsilon: float, delta: float, d: int) -> None:
    """Both terms are equal, but for what the rules round up in logarithms; T makes ceil small."""
    T = 10**12
    at = (d, epsilon, delta)
    B = {name: rule(T, *at) for name, rule in RULES.items()}
    ln = {name: math.log(x / delta) for name, x in [("1", 1), ("2", 2), ("T", T), ("dd", d * d)]}
    expected: list[tuple[Bound, str, float, float]] = [
        (bounds.theorem_c_1, "C.2", epsilon, 1.0),
        (bounds.theorem_b_1, "B.2", epsilon, (math.log(B["B.2"] / delta) / ln["T"]) ** 0.25),
        (bounds.proposition_f_1, "B.3", epsilon, 1.0),
        # One user's bits at epsilon are a batch at epsilon / sqrt(B).
        (bounds.theorem_c_1, "C.3", epsilon / math.sqrt(B["C.3"]), 1.0),
        (THEOREMS["E.3"], "E.4", epsilon, math.sqrt(ln["2"] / ln["T"])),
        (
            bounds.theorem_e_3,
            "E.4",
            epsilon,
            (math.log(T / B["E.4"] / delta) * ln["2"] / ln["T"] ** 2) ** 0.25,
        ),
        (
            bounds.theorem_e_5,
            "E.6",
            epsilon,
            (math.log(d * d * T / B["E.6"] / delta) / math.log(T * d * d / delta)) ** 0.75,
        ),
    ]
    for bound, rule, budget, ratio in expected:
        assert ratio <= 1
        found = balance(bound, T, d, B[rule], budget, delta)
        assert found == pytest.approx(ratio, rel=1e-5), rule
        # The rule's own regret is d B.
        whole = bounds.corollary_bound(rule, T, *at)
        assert d * (B[rule] - 1) <= whole <= d * B[rule]


def test_rules_without_budget_keep_the_growth_in_t() -> None:
    """The privacy cost over d B is the same at all T, at 3.3 that of C.1."""
    for bound, rule in [
        (bounds.proposition_f_1, bounds.batch_size_f_2),
        (lambda *at: bounds.proposition_f_3(*at) * math.log(at[0]), bounds.batch_size_f_4),
        (bounds.theorem_c_1, bounds.batch_size_3_3),
    ]:
        ratios = [balance(bound, T, 5, rule(T), 0.5, 0.1) for T in (10**12, 10**16, 10**20)]
        assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-6)


def test_rules_break_conditions_of_their_theorems() -> None:
    """At T = 20 000, d = 5, delta = .1, as the docstrings say."""
    T, d, delta = 20_000, 5, 0.1
    edge = d**0.125 * T**-0.375 * math.log(20) ** 0.5 * math.log(T / delta) ** -0.125
    assert edge == pytest.approx(0.038, abs=5e-4)
    assert bounds.batch_size_b_2(T, d, 0.2, delta) == 1080
    for epsilon, holds in [(0.99 * edge, True), (1.01 * edge, False)]:
        B = bounds.batch_size_b_2(T, d, epsilon, delta)
        assert oracle.amp_conditions(epsilon, delta, B)["theorem"] == holds
    for condition, last in [("printed", 0.44), ("theorem", 0.765)]:
        for epsilon, holds in [(last, True), (last + 0.01, False)]:
            B = bounds.batch_size_e_4(T, d, epsilon, delta)
            assert oracle.amp_returning_conditions(epsilon, delta, B, T // B)[condition] == holds


# -- Bad values ------------------------------------------------------------------------------------

# By argument: a good value, bad ones just outside, and the sentence up to the value.
ARGUMENTS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "horizon": (1000, (0,), "horizon must be an integer >= 1"),
    "dimension": (5, (0,), "dimension must be an integer >= 1"),
    "batch_size": (20, (0, 1001), "batch_size must be an integer >= 1 and <= 1000"),
    "rounds_per_user": (9, (0, 1001), "rounds_per_user must be an integer >= 1 and <= 1000"),
    "epsilon": (1.0, (0, -1, math.nan), "epsilon must be > 0"),
    "delta": (0.1, (0, 1), "delta must be > 0 and < 1"),
    "failure_probability": (0.1, (0, 1.5), "failure_probability must be > 0 and <= 1"),
    "noise_std": (3.0, (-1, math.inf), "noise_std must be >= 0"),
    "beta": (2.0, (0.5,), "beta must be >= 1"),
    "lambda_min": (2.0, (0,), "lambda_min must be > 0"),
    "printed": (False, (1, "yes"), "printed must be true or false"),
    "corollary": ("B.2", ("B.1", "F.2"), 'corollary must be one of "3.3", "B.2"'),
    "constant": (1.0, (0, -1, math.nan), "constant must be > 0"),
}


def test_every_argument_is_checked() -> None:
    functions = formulas(bounds)
    assert len(functions) == 20
    check_refusals(functions, ARGUMENTS)
