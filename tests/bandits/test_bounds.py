"""Regret bounds: hand-computed values, and the scalings that the paper proves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fastfed._validate import InputError
from fastfed.bandits import bounds
from fastfed.bandits.problem import BoundSetting

T, M, D, B = 10_000, 100, 10, 25
EPSILON, DELTA, ALPHA = 0.5, 1e-4, 0.01
KAPPA = 9  # floor(log2(400)) + 1
NON_PRIVATE = 10 * 100 * 25 * math.log(1e4) + 10 * 1e3 * math.log(1e8)
UNION = math.log(40_000) ** 0.25  # T / (B alpha)
THEOREMS = [bounds.theorem_5_1, bounds.theorem_5_3, bounds.theorem_5_5]
TABLE = [bounds.privacy_cost_central_jdp, bounds.privacy_cost_silo_ldp]
BUDGETED = [*TABLE, bounds.corollary_5_2, bounds.corollary_5_4, bounds.single_agent_central]


SETTING = BoundSetting(
    horizon=T,
    silos=M,
    dimension=D,
    batch_size=B,
    epsilon=EPSILON,
    delta=DELTA,
    failure_probability=ALPHA,
)


def setting_of(**changed: Any) -> BoundSetting:
    """Return the default setting with some fields changed."""
    return msgspec.structs.replace(SETTING, **changed)


def test_rows_of_table_1_follow_their_formulas() -> None:
    central = 1000 * 10**0.75 * math.log(1e4) ** 0.25 / math.sqrt(0.5)
    assert bounds.privacy_cost_central_jdp(SETTING) == pytest.approx(central)
    ldp = 100 * 1000**0.75 * math.log(1e4) ** 0.25 / math.sqrt(0.5)
    assert bounds.privacy_cost_silo_ldp(SETTING) == pytest.approx(ldp)
    assert ldp / central == pytest.approx(M**0.25)


def test_theorems_follow_their_formulas() -> None:
    assert bounds.non_private_regret(SETTING) == pytest.approx(NON_PRIVATE)
    ldp = 100 * 1000**0.75 * math.log(1e4) ** 0.25 / math.sqrt(0.5)
    assert bounds.theorem_5_1(SETTING) == pytest.approx(NON_PRIVATE + ldp * UNION)
    scale = 10**0.75 * 1000 / math.sqrt(0.5)
    amplified = scale * math.log(100 * KAPPA / 1e-4) ** 0.75
    assert bounds.theorem_5_3(SETTING) == pytest.approx(NON_PRIVATE + amplified * UNION)
    vector = scale * math.log(KAPPA * 100 / 1e-4) ** 0.75
    assert bounds.theorem_5_5(SETTING) == pytest.approx(NON_PRIVATE + vector * UNION)


def test_ranges_of_the_theorems() -> None:
    epsilon, delta = bounds.theorem_5_3_largest_budget(SETTING)
    assert epsilon == pytest.approx(3.0e-5)
    assert delta == pytest.approx(9e-4)
    smaller = bounds.theorem_5_3_largest_budget(SETTING, c1=2, c2=3)
    assert smaller[0] == pytest.approx(1.5e-5)
    assert smaller[1] == pytest.approx(3e-4)
    # T = 25000: kappa = 10.
    assert bounds.theorem_5_3_largest_budget(setting_of(horizon=25_000))[0] == pytest.approx(
        1.26e-5, rel=0.01
    )
    assert bounds.theorem_5_5_largest_epsilon(setting_of(delta=0.1)) == pytest.approx(
        60 * math.sqrt(18 * math.log(20))
    )


def test_bounds_of_appendix_c_follow_their_formulas() -> None:
    low, high, nu = 3.0, 9.0, 1.5
    growth = math.log(1 + 1e6 / 30)
    beta = math.sqrt(2 * math.log(200) + 10 * growth) + 3.0 + 1.5
    assert bounds.lemma_c2_beta(SETTING, low, high, nu) == pytest.approx(beta)
    regret = beta * math.sqrt(10 * 1e6 * growth) + 100 * 25 * 10 * growth
    assert bounds.lemma_c2_regret(SETTING, low, high, nu) == pytest.approx(regret)
    noise = math.sqrt(7.0 * 1e6 * math.log(1e6)) * 10**0.75 * UNION
    assert bounds.lemma_c4_regret(SETTING, 7.0) == pytest.approx(NON_PRIVATE + noise)
    assert bounds.lemma_c4_regret(SETTING, 0) == pytest.approx(NON_PRIVATE)


def test_theorem_5_1_is_lemma_c4_at_its_noise() -> None:
    """Privacy terms agree in every argument, up to the hidden logarithms."""

    def ratio(t: int, m: int, d: int, epsilon: float, delta: float) -> float:
        """Return the private part of Lemma C.4 divided by that of Theorem 5.1, without its
        logarithms."""
        kappa = (t // B).bit_length()
        node = math.sqrt(8 * kappa * (math.log(2 / delta) + epsilon)) / epsilon
        total = math.sqrt(m * kappa) * node
        setting = setting_of(horizon=t, silos=m, dimension=d, epsilon=epsilon, delta=delta)
        base = bounds.non_private_regret(setting)
        lemma = bounds.lemma_c4_regret(setting, total) - base
        theorem = bounds.theorem_5_1(setting) - base
        return lemma / theorem / math.sqrt(kappa * math.log(m * t))

    reference = ratio(T, M, D, 1e-3, 1e-8)
    for changed in (
        (100 * T, M, D, 1e-3, 1e-8),
        (T, 81 * M, D, 1e-3, 1e-8),
        (T, M, 16 * D, 1e-3, 1e-8),
        (T, M, D, 1e-6, 1e-8),
    ):
        assert ratio(*changed) == pytest.approx(reference, rel=1e-3)


@pytest.mark.parametrize("bound", BUDGETED)
def test_budgeted_bounds_fall_with_epsilon_and_delta(bound: Callable[..., float]) -> None:
    value = bound(SETTING)
    assert bound(setting_of(epsilon=2 * EPSILON)) < value
    assert bound(setting_of(delta=10 * DELTA)) < value
    assert bound(setting_of(constant=3.0)) == pytest.approx(3 * value)


@pytest.mark.parametrize("bound", TABLE)
def test_costs_scale_as_stated(bound: Callable[..., float]) -> None:
    value = bound(SETTING)
    assert bound(setting_of(horizon=4 * T)) == pytest.approx(2 * value)
    assert bound(setting_of(dimension=16 * D)) == pytest.approx(8 * value)
    assert bound(setting_of(epsilon=4 * EPSILON)) == pytest.approx(value / 2)
    power = 0.75 if bound is bounds.privacy_cost_silo_ldp else 0.5
    assert bound(setting_of(silos=16 * M)) == pytest.approx(16**power * value)


@pytest.mark.parametrize("theorem", THEOREMS)
def test_theorems_take_a_constant_and_name_what_they_need(theorem: Callable[..., float]) -> None:
    value = theorem(SETTING)
    assert theorem(setting_of(constant=0.5)) == pytest.approx(value / 2)
    tiny = {"horizon": 1, "silos": 1, "dimension": 1, "batch_size": 1, "failure_probability": 1.0}
    assert math.isfinite(theorem(setting_of(**tiny)))
    assert math.isfinite(theorem(setting_of(horizon=10, silos=3, dimension=2, batch_size=10)))
    for name in ("epsilon", "delta", "failure_probability"):
        with pytest.raises(InputError, match=f"this bound needs {name}"):
            theorem(setting_of(**{name: None}))


def test_corollaries_follow_their_formulas() -> None:
    ldp = bounds.privacy_cost_silo_ldp(SETTING)
    assert bounds.corollary_5_2(SETTING) == pytest.approx(10_000 + ldp)
    central = bounds.privacy_cost_central_jdp(SETTING)
    assert bounds.single_agent_central(SETTING) == pytest.approx(10_000 + central)
    kappa = 10  # 1000 synchronisations
    shuffled = 10**0.75 * 1000 * math.log(100 * kappa / 1e-4) ** 0.75 / math.sqrt(0.5)
    assert bounds.corollary_5_4(SETTING) == pytest.approx(10_000 + shuffled)


@pytest.mark.parametrize(
    ("horizon", "silos", "batch_size", "synchronisations"),
    [
        (10_000, 100, 10, 1000),
        (10_000, 1, 100, 100),
        (25_000, 10, 50, 500),
        (10, 1000, 1, 10),
        (1, 1, 1, 1),
        (7, 2, 2, 3),
        (6, 1, 2, 3),
        (13, 2, 3, 4),
    ],
)
def test_batch_size_and_synchronisations_of_corollary_5_2(
    horizon: int, silos: int, batch_size: int, synchronisations: int
) -> None:
    assert bounds.batch_size_corollary_5_2(horizon, silos) == batch_size
    assert bounds.synchronisations_corollary_5_2(horizon, silos) == synchronisations
    if horizon == silos * batch_size**2:
        assert synchronisations == math.sqrt(silos * horizon)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="silos must be an integer >= 1, got 0"):
        bounds.batch_size_corollary_5_2(100, 0)
    with pytest.raises(InputError, match="lambda_max must be >= 2, got 1"):
        bounds.lemma_c2_beta(SETTING, 2, 1, 0)
    with pytest.raises(InputError, match="noise_std must be >= 0, got -1"):
        bounds.lemma_c4_regret(SETTING, -1)


def test_lower_bounds_of_appendix_g_1() -> None:
    """By hand: sqrt(100 x 10 000) = 1 000 and 1 / 0.5 = 2, ten times as much under silo-ldp."""
    assert bounds.lower_bound_central_jdp(SETTING) == pytest.approx(1002.0, rel=1e-14)
    assert bounds.lower_bound_silo_ldp(SETTING) == pytest.approx(1020.0, rel=1e-14)
    assert bounds.lower_bound_silo_ldp(
        setting_of(horizon=400, silos=9, epsilon=0.01, batch_size=1, constant=2.0)
    ) == pytest.approx(2.0 * (60.0 + 300.0))
    single = setting_of(horizon=64, silos=1, epsilon=0.25)
    central_bound = bounds.lower_bound_central_jdp(single)
    assert central_bound == bounds.lower_bound_silo_ldp(single) == pytest.approx(12.0)
    # No lower bound exceeds the upper bound of its trust model.
    for epsilon in (0.1, 1.0, 10.0):
        setting = setting_of(dimension=1, epsilon=epsilon)
        assert bounds.lower_bound_central_jdp(setting) <= bounds.single_agent_central(setting)
        assert bounds.lower_bound_silo_ldp(setting) <= bounds.corollary_5_2(setting)
