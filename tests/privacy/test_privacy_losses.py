"""Tests of composition by privacy losses: closed forms, exact binomial sums, other libraries and
adaptive choices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from fastfed._validate import InputError
from fastfed.privacy import Guarantee, mu_of
from fastfed.privacy.accounting import privacy_loss
from fastfed.privacy.accounting.gdp import advanced
from fastfed.privacy.accounting.privacy_loss import KINDS, Part, composed_epsilon
from fastfed.privacy.mechanisms.laplace import Laplace

TIGHT = 2e-4  # allowed relative excess; below the exact value, only rounding is allowed
ROUNDING = 1e-12


def assert_just_above(actual: float, exact: float, case: object) -> None:
    """Check that the result is at least the exact value and at most slightly larger."""
    assert exact * (1 - ROUNDING) <= actual <= exact * (1 + TIGHT), (actual, exact, case)


# ---- one mechanism in closed form ---------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-3, 0.1, 0.9])
def test_epsilon_of_one_mechanism_has_its_closed_form(epsilon: float, delta: float) -> None:
    truth_probability = 1.0 / (1.0 + math.exp(-epsilon))
    exact_by_kind = {
        "randomized-response": epsilon + math.log1p(-delta / truth_probability)
        if delta < truth_probability
        else 0.0,
        "laplace": Laplace(1.0, epsilon).exact(delta),
        "bounded-range": epsilon + 2.0 * math.log1p(-math.sqrt(-delta * math.expm1(-epsilon))),
    }
    for kind, exact in exact_by_kind.items():
        exact = max(exact, 0.0)
        assert_just_above(composed_epsilon([(kind, epsilon, 1)], delta), exact, kind)


def test_bounded_range_equals_the_worst_two_point_mechanism() -> None:
    """Try losses t and t - e, with masses so that both distributions sum to 1, for many t."""
    for e, epsilon in itertools.product([0.2, 1.0, 4.0], [0.01, 0.1, 0.7, 3.0]):
        if epsilon >= e:
            continue
        losses = np.linspace(1e-9, e - 1e-9, 200_001)
        mass = -np.expm1(losses - e) / -np.expm1(-e)  # probability of this loss under P
        # P(t) + P(t - e) = 1 and P(t) e^-t + P(t - e) e^(e - t) = 1.
        assert np.allclose(mass * np.exp(-losses) + (1 - mass) * np.exp(e - losses), 1.0)
        delta = float((mass * np.maximum(-np.expm1(epsilon - losses), 0.0)).max())
        if delta == 0.0:
            continue
        assert_just_above(composed_epsilon([("bounded-range", e, 1)], delta), epsilon, (e, epsilon))


# ---- several mechanisms -------------------------------------------------------------------------


def many_responses(count: int, epsilon: float, delta: float) -> float:
    """Compute epsilon exactly from the binomial distribution of the number of truthful answers."""
    k = np.arange(count + 1)
    logs = stats.binom.logpmf(k, count, 1.0 / (1.0 + math.exp(-epsilon)))
    sums = epsilon * (2 * k - count)

    def excess(x: float) -> float:
        """Return ln(delta at epsilon x) minus ln(delta allowed)."""
        exceeds = sums > x
        if not exceeds.any():
            return -1e5
        log = special.logsumexp(logs[exceeds] + np.log(-np.expm1(x - sums[exceeds])))
        return max(float(log), -1e5) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, count * epsilon, xtol=1e-300, rtol=1e-14))


@pytest.mark.parametrize("count", [1, 2, 7, 100, 3000, 10_000])
def test_composed_randomized_response_equals_the_binomial_sum(count: int) -> None:
    for epsilon in (1e-4, 1e-2, 0.3, 2.0, 10.0, 100.0):
        for delta in (0.3, 1e-2, 1e-5, 1e-9, 1e-40):
            own_epsilon = composed_epsilon([("randomized-response", epsilon, count)], delta)
            assert_just_above(own_epsilon, many_responses(count, epsilon, delta), (epsilon, delta))


def test_composition_of_two_kinds_equals_enumeration() -> None:
    """Combine two randomized responses with the privacy curve of a Laplace mechanism."""
    e, laplace_epsilon = 0.7, 1.3
    truth_probability = 1.0 / (1.0 + math.exp(-e))

    def curve(x: float) -> float:
        """Return the privacy curve of the Laplace mechanism at any real x."""
        if x >= laplace_epsilon:
            return 0.0
        return -math.expm1((x - laplace_epsilon) / 2.0) if x > -laplace_epsilon else -math.expm1(x)

    def delta(x: float) -> float:
        """Return delta at x of the composition, by enumeration."""
        signs = itertools.product([(truth_probability, e), (1.0 - truth_probability, -e)], repeat=2)
        return math.fsum(p * q * curve(x - s - t) for (p, s), (q, t) in signs)

    for epsilon in (0.05, 0.4, 1.0, 2.0, 2.6):
        own_epsilon = composed_epsilon(
            [("laplace", laplace_epsilon, 1), ("randomized-response", e, 2)], delta(epsilon)
        )
        assert_just_above(own_epsilon, epsilon, epsilon)


@pytest.mark.parametrize(
    ("kind", "epsilon", "count"),
    [("laplace", 0.1, 60), ("laplace", 2.0, 8), ("randomized-response", 0.25, 40)],
)
def test_composition_agrees_with_dp_accounting(kind: str, epsilon: float, count: int) -> None:
    """Check that epsilon lies between the library's lower and upper bound."""
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    def library_epsilon(pessimistic: bool, delta: float) -> float:
        """Return epsilon at delta by the library, rounded up or down."""
        shared = {"value_discretization_interval": 1e-4, "pessimistic_estimate": pessimistic}
        if kind == "laplace":
            single = library.from_laplace_mechanism(1.0 / epsilon, use_connect_dots=False, **shared)
        else:
            # An answer is unchanged with probability 1 - p + p/2, so e^epsilon = (2 - p)/p.
            single = library.from_randomized_response(2.0 / (1.0 + math.exp(epsilon)), 2, **shared)
        return float(single.self_compose(count).get_epsilon_for_delta(delta))

    for delta in (1e-3, 1e-6):
        own_epsilon = composed_epsilon([(kind, epsilon, count)], delta)
        assert library_epsilon(False, delta) <= own_epsilon * (1 + 1e-9)
        assert own_epsilon <= library_epsilon(True, delta) * (1 + TIGHT)


def adaptive_delta(epsilon: float, count: int, target: float) -> float:
    """Return the largest delta at epsilon = target for adaptively chosen two-point mechanisms.

    Each of ``count`` mechanisms of bounded range is chosen given all losses so far.
    """
    losses = np.linspace(0.0, epsilon, 61)[1:-1]
    mass = -np.expm1(losses - epsilon) / -np.expm1(-epsilon)
    grid = np.linspace(target - count * epsilon, target + count * epsilon, 4001)
    delta_by_remaining = np.maximum(
        -np.expm1(grid), 0.0
    )  # delta without a mechanism, by the remaining epsilon
    for _ in range(count):
        up = np.interp(grid[:, None] - losses, grid, delta_by_remaining, left=1.0)
        down = np.interp(grid[:, None] - losses + epsilon, grid, delta_by_remaining, right=0.0)
        delta_by_remaining = (mass * up + (1.0 - mass) * down).max(axis=1)
    return float(np.interp(target, grid, delta_by_remaining))


@pytest.mark.parametrize("count", [2, 5, 12])
def test_bounded_range_covers_adaptive_choices(count: int) -> None:
    for epsilon in (0.1, 1.0):
        for target in np.array([0.1, 0.5, 1.0]) * epsilon * math.sqrt(count):
            delta = adaptive_delta(epsilon, count, float(target))
            # Interpolation in `adaptive_delta` is accurate to 1e-3.
            assert composed_epsilon([("bounded-range", epsilon, count)], delta) >= target * 0.999


def test_epsilons_of_the_kinds_are_ordered() -> None:
    """Check that randomized response is worst among pure mechanisms and that many are nearly
    Gaussian."""
    for count, epsilon, delta in ((3, 1.0, 1e-3), (200, 0.02, 1e-6), (10_000, 1e-3, 1e-9)):
        by_kind = {k: composed_epsilon([(k, epsilon, count)], delta) for k in KINDS}
        assert by_kind["bounded-range"] < by_kind["laplace"] < by_kind["randomized-response"]
        bound = advanced(Guarantee(epsilon, 0.0), count, delta).epsilon
        assert by_kind["randomized-response"] < min(bound, count * epsilon)
    # The variance of the loss is e^2, and a third of it for bounded range.
    mu = mu_of(1.0, 1e-5)
    for kind, variance in (("laplace", 1.0), ("bounded-range", 1.0 / 3.0)):
        epsilon_per_use = mu / math.sqrt(10_000 * variance)
        assert composed_epsilon([(kind, epsilon_per_use, 10_000)], 1e-5) == pytest.approx(
            1.0, rel=0.01
        )


def test_epsilon_does_not_depend_on_the_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[list[Part], float]] = [
        (
            [("laplace", 0.37, 13), ("randomized-response", 0.11, 500), ("bounded-range", 2, 3)],
            1e-6,
        ),
        ([("laplace", 1e-4, 10_000), ("bounded-range", 0.02, 2)], 1e-5),
        ([("laplace", 100.0, 1), ("randomized-response", 1e-4, 10_000)], 1e-3),
        ([("bounded-range", 100.0, 10_000), ("laplace", 100.0, 10_000)], 1e-9),
        ([("laplace", 0.03, 80), ("bounded-range", 0.03, 80)], 0.1),
    ]
    coarse_epsilons = [composed_epsilon(*case) for case in cases]
    monkeypatch.setattr(privacy_loss, "_SMALLEST_GRID", 2**18)
    monkeypatch.setattr(privacy_loss, "_POINTS_PER_ROOT", 8 * privacy_loss._POINTS_PER_ROOT)
    for coarse_epsilon, case in zip(coarse_epsilons, cases, strict=True):
        fine_epsilon = composed_epsilon(*case)
        assert fine_epsilon * (1 - 1e-9) <= coarse_epsilon <= fine_epsilon * (1 + TIGHT), case


def test_a_narrow_window_only_increases_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that mass outside the window counts as infinite loss."""
    monkeypatch.setattr(privacy_loss, "_TAIL", 2.0)
    for count, epsilon, delta in ((200, 0.1, 1e-4), (3000, 0.01, 0.01), (50, 1.0, 1e-9)):
        exact = many_responses(count, epsilon, delta)
        assert composed_epsilon([("randomized-response", epsilon, count)], delta) > exact


def test_masses_on_the_grid_sum_to_one_under_both_distributions() -> None:
    for kind in KINDS:
        for epsilon, step in ((1.0, 0.3), (1.0, 0.125), (1e-4, 1e-6), (1e-4, 1e-3), (30.0, 0.07)):
            mass, start = privacy_loss._on_grid(kind, epsilon, step)
            loss = step * np.arange(start, start + len(mass))
            assert mass.min() >= 0.0
            assert mass.sum() == pytest.approx(1.0, rel=1e-13)
            assert mass @ np.exp(-loss) == pytest.approx(1.0, rel=1e-13)
            exponents = np.array([0.0, 0.3, 2.0])
            # The curve on the grid is above the exact one, here by moments of the loss.
            moments = np.log([mass @ np.exp(t * loss) for t in exponents])
            assert (moments >= privacy_loss._cumulant(kind, epsilon, exponents) - 1e-12).all()


# ---- ends of the ranges -------------------------------------------------------------------------


def test_epsilon_of_pure_mechanisms_and_of_no_mechanism() -> None:
    assert composed_epsilon([], 0.1) == 0.0
    assert composed_epsilon([("laplace", 0.0, 5), ("bounded-range", 1.0, 0)], 0.0) == 0.0
    assert composed_epsilon([("laplace", 0.5, 4), ("bounded-range", 1.0, 3)], 0.0) == 5.0
    assert composed_epsilon([("laplace", 0.1, 3)], 0.9) == 0.0
    split: list[Part] = [("laplace", 0.1, 30), ("laplace", 0.1, 70)]
    assert composed_epsilon(split, 1e-6) == composed_epsilon([("laplace", 0.1, 100)], 1e-6)


def test_epsilon_of_extreme_arguments_is_an_upper_bound() -> None:
    assert composed_epsilon([("laplace", 1e9, 3)], 0.1) == 3e9
    assert composed_epsilon([("laplace", 1e-300, 3)], 1e-30) == 0.0
    actual = composed_epsilon([("laplace", 1e-6, 1), ("laplace", 100.0, 1)], 1e-30)
    assert 100.0 < actual <= 100.000001
    # 10^12 responses are too many for Fourier transforms, so the account uses Renyi divergences.
    # The result exceeds that of 10^4 responses with the same Gaussian limit by a few per cent.
    by_renyi = composed_epsilon([("randomized-response", 1e-6, 10**12)], 1e-5)
    assert 1.0 < by_renyi / composed_epsilon([("randomized-response", 1e-2, 10**4)], 1e-5) < 1.1


@pytest.mark.parametrize("kind", ["laplace", "bounded-range", "randomized-response"])
@pytest.mark.parametrize("epsilon", [1e-9, 0.18650395070425227, 3.0])
def test_more_mechanisms_never_cost_less_up_to_the_largest_count(kind: str, epsilon: float) -> None:
    """For 10^15 mechanisms rounding errors of cumulants are large, and must count as a loss."""
    counts = [10**k for k in range(6, 16)] + [6 * 10**15, 8 * 10**15, 2**53 - 1, 2**53]
    actual = [composed_epsilon([(kind, epsilon, count)], 1e-3) for count in counts]
    assert all(b >= a * (1.0 - 1e-6) for a, b in itertools.pairwise(actual)), actual
    for count, value in zip(counts, actual, strict=True):
        # No less than the mean of the losses, unless delta covers all of them.
        mean = epsilon * math.tanh(epsilon / 2.0) * (1.0 if kind == "randomized-response" else 0.0)
        assert value >= 0.99 * count * mean or count * mean < 1.0
        assert value <= count * epsilon * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("parts", "delta", "message"),
    [
        ([("gaussian", 1.0, 1)], 0.1, "kind must be one of"),
        ([("laplace", -1.0, 1)], 0.1, "epsilon must be >= 0, got -1.0"),
        ([("laplace", math.inf, 1)], 0.1, "epsilon must be >= 0"),
        ([("laplace", 1.0, 1.5)], 0.1, "count must be an integer"),
        ([("laplace", 1.0)], 0.1, "parts must be triples"),
        ([("laplace", 1.0, 1)], 1.0, "delta must be >= 0 and < 1"),
    ],
)
def test_refusals(parts: list, delta: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        composed_epsilon(parts, delta)
