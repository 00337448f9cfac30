"""The exponential mechanism: exact probabilities, both samplers, and its bounded range."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fastfed._validate import InputError
from fastfed.privacy.mechanisms.laplace import Exponential

ALARM = 1e-6  # of each statistical test here, before its seed was fixed
RANGE = [0.07232948812851327, 0.19661193324148185, 0.5344466453885229, 0.19661193324148185]


def range_costs(x: np.ndarray, midpoints: np.ndarray) -> np.ndarray:
    """Return the cost of each midpoint: the larger number of data strictly on one side of it.

    Every datum is moved to its nearest midpoint first (huang-2023-robin, private range).
    """
    rounded_data = midpoints[np.abs(x[:, None] - midpoints).argmin(axis=1)]
    below = (rounded_data[:, None] < midpoints).sum(axis=0)
    above = (rounded_data[:, None] > midpoints).sum(axis=0)
    result: np.ndarray = np.maximum(below, above)
    return result


def test_probabilities_of_a_private_range() -> None:
    x, midpoints = np.array([-1.0, -0.3, 0.2, 0.9, 0.9]), np.array([-0.75, -0.25, 0.25, 0.75])
    costs = range_costs(x, midpoints)
    assert costs.tolist() == [4, 3, 2, 3]
    np.testing.assert_allclose(Exponential(2.0).probabilities(costs), RANGE, rtol=1e-12)


def test_probabilities_are_exact_at_any_size() -> None:
    mechanism = Exponential(1.0, sensitivity=0.5)
    np.testing.assert_allclose(mechanism.log_probabilities([0.0, 5000.0]), [0.0, -5000.0])
    base = mechanism.probabilities([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(base, mechanism.probabilities([2.0**40 + i for i in (1, 2, 3)]))
    assert mechanism.probabilities([7.0]).tolist() == [1.0]
    weights = np.exp([-1.0, -2.0, -3.0])
    np.testing.assert_allclose(base, weights / weights.sum(), rtol=1e-14)


def test_inverse_cdf_draws_have_the_distribution() -> None:
    """Use a grid of uniforms; no count may be off by more than the ends of its interval."""
    mechanism, costs, n = Exponential(2.0), [4, 3, 2, 3], 5000
    chosen = [mechanism.choose(costs, (i + 0.5) / n) for i in range(n)]
    counts = np.bincount(chosen, minlength=4)
    assert np.abs(counts - n * mechanism.probabilities(costs)).max() <= 1.0


def test_gumbel_max_draws_have_the_distribution() -> None:
    mechanism, costs, n = Exponential(2.0), [4, 3, 2, 3], 50_000
    uniforms = np.random.default_rng(3).uniform(size=(n, 4))
    counts = np.bincount([mechanism.choose_gumbel(costs, u) for u in uniforms], minlength=4)
    assert stats.chisquare(counts, n * mechanism.probabilities(costs)).pvalue > ALARM


def test_inverse_cdf_never_exceeds_the_last_index() -> None:
    mechanism = Exponential(1.0)
    costs = [0.1 * i for i in range(7)]
    assert mechanism.choose(costs, 1 - 2.0**-53) == 6
    assert mechanism.choose(costs, 2.0**-60) == 0
    # A candidate of probability 0 in float64 is not chosen, wherever it stands.
    assert mechanism.choose([4000.0, 0.0, 4000.0], 2.0**-60) == 1
    assert mechanism.choose([4000.0, 0.0, 4000.0], 1 - 2.0**-53) == 1


def test_epsilon_covers_every_change() -> None:
    """Compute the range of the log ratio over all allowed changes of costs."""
    mechanism = Exponential(1.2, sensitivity=2.0)
    draw = np.random.default_rng(5)
    widest = largest = 0.0
    for _ in range(40):
        costs = draw.uniform(0, 30, size=4)
        logs = mechanism.log_probabilities(costs)
        for change in product([-2.0, 0.0, 2.0], repeat=4):
            ratio = mechanism.log_probabilities(costs + np.array(change)) - logs
            widest = max(widest, float(np.ptp(ratio)))
            largest = max(largest, float(np.abs(ratio).max()))
    assert widest == pytest.approx(1.2, rel=1e-12)
    assert 1.1 < largest <= 1.2 * (1 + 1e-12)


def test_private_range_under_replacement() -> None:
    """Brute force: replacing one value changes each log probability by at most epsilon."""
    mechanism, midpoints = Exponential(1.0), np.array([-0.75, -0.25, 0.25, 0.75])
    values = [-1.0, -0.5, 0.0, 0.5, 1.0]
    log_probabilities_of = {}
    for data in product(values, repeat=4):
        log_probabilities_of[data] = mechanism.log_probabilities(
            range_costs(np.array(data), midpoints)
        )
    worst = 0.0
    for data, logs in log_probabilities_of.items():
        for i, other in product(range(4), values):
            changed = log_probabilities_of[(*data[:i], other, *data[i + 1 :])]
            worst = max(worst, float(np.abs(changed - logs).max()))
    assert 0.5 < worst <= 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Exponential(0.0), "eta must be > 0, got 0.0"),
        (lambda: Exponential(1.0, 0.0), "sensitivity must be > 0, got 0.0"),
        (lambda: Exponential(1.0).probabilities([]), "costs must hold at least one candidate"),
        (lambda: Exponential(1.0).probabilities([0.0, math.inf]), "costs must be finite"),
        (lambda: Exponential(1.0).choose([0.0], 0.0), "uniform must be > 0 and < 1, got 0.0"),
        (lambda: Exponential(1.0).choose_gumbel([0.0], [1.0]), "uniforms must be > 0 and < 1"),
        (lambda: Exponential(1.0).choose_gumbel([0.0, 1.0], [0.5]), "uniforms must have shape"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
