"""Tails of the largest eigenvalue of Gaussian symmetric matrices, and of norms."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from fastfed.bandits.noise_distributions import (
    MAX_EXACT_DIMENSION,
    STEP,
    _expected_above,
    largest_eigenvalue,
    norm_quantile,
)

FALSE_ALARM = 1e-6


def matrices(d: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """(A + A') / sqrt 2: off-diagonal variance 1, diagonal variance 2."""
    a = rng.normal(size=(count, d, d))
    return (a + a.transpose(0, 2, 1)) / math.sqrt(2.0)


@cache
def simulated(d: int) -> np.ndarray:
    """Eigenvalues (count, d) of matrices, in ascending order."""
    count = 40_000 if d < 50 else 3_000
    return np.linalg.eigvalsh(matrices(d, count, np.random.default_rng(d)))


@pytest.mark.parametrize("d", [1, 2, 3, 4, 10, 11, 57, 200, 500])
def test_the_density_counts_all_eigenvalues(d):
    """It is even, so half of d eigenvalues lie above 0."""
    _, log_expected = _expected_above(d)
    assert math.exp(log_expected[0]) == pytest.approx(0.5 * d, rel=1e-6)
    assert (np.diff(log_expected) <= 0.0).all()


@pytest.mark.parametrize(
    "d",
    [
        1,
        2,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (3, 10)),
        11,
        pytest.param(57, marks=pytest.mark.slow),
    ],
)
def test_the_expected_number_above_is_that_of_simulated_matrices(d):
    """Counts at five points within 5 standard errors: a false alarm below 3 in 10^6 for each d."""
    x, log_expected = _expected_above(d)
    values = simulated(d) / math.sqrt(2.0)
    for share in (0.5, 0.3, 0.1, 0.02, 0.004):
        where = int(np.searchsorted(-log_expected, -math.log(share * d / 2.0)))
        above = (values > x[where]).sum(axis=1)
        spread = above.std() / math.sqrt(len(above))
        assert abs(above.mean() - math.exp(log_expected[where])) <= 5.0 * spread


@pytest.mark.parametrize("d", [1, 2, 3, 10, 11, 57])
@pytest.mark.parametrize("probability", [0.2, 0.02])
def test_the_quantile_holds_with_its_probability(d, probability):
    """Too many exceedances once in 10^6 were the probability no smaller than stated."""
    largest = simulated(d)[:, -1]
    count = len(largest)
    exceeded = int((largest > largest_eigenvalue(d, probability)).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
    # And it is nearly attained: an eigenvalue above is hardly ever one of two.
    assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, 0.8 * probability)


def test_one_dimension_is_a_normal():
    for probability in (0.3, 1e-3, 1e-10, 1e-40):
        exact = math.sqrt(2.0) * stats.norm.isf(probability)
        found = largest_eigenvalue(1, probability)
        assert exact <= found <= exact + 3.0 * STEP * math.sqrt(2.0)


def test_two_dimensions_are_known_in_closed_form():
    """Top = m + r, m ~ N(0, 1), r Rayleigh: their joint law gives P(top > t) by one integral."""
    m, weight = np.polynomial.hermite_e.hermegauss(120)
    weight = weight / math.sqrt(2.0 * math.pi)
    for t in (3.0, 4.5, 6.0):  # below, both eigenvalues may be above
        # Half the difference of the diagonal has variance 1, as the entry off it.
        exact = float(weight @ np.exp(-0.5 * np.square(np.maximum(t - m, 0.0))))
        assert largest_eigenvalue(2, exact * 1.02) <= t + 3.0 * STEP * math.sqrt(2.0)
        assert largest_eigenvalue(2, exact * 0.98) >= t - 0.02


@pytest.mark.parametrize(
    "d", [1, 2, 3, 10, 11, 57, 499, MAX_EXACT_DIMENSION, MAX_EXACT_DIMENSION + 1]
)
def test_monotone_and_never_above_the_closed_bound(d):
    probabilities = 10.0 ** -np.linspace(0.4, 70.0, 120)
    found = np.array([largest_eigenvalue(d, p) for p in probabilities])
    closed = 2.0 * (math.sqrt(d) + np.sqrt(-np.log(probabilities)))
    assert (found <= closed).all()
    # Non-decreasing, strictly where a grid step is not what decides.
    assert (np.diff(found) > 0.0).all()


@pytest.mark.parametrize("probability", [0.1, 1e-5, 1e-20, 1e-50])
def test_larger_matrices_have_larger_eigenvalues(probability):
    """A matrix contains its corners; at d = 500 the tail at 10^-50 lies where phi_0 is below
    10^-308."""
    found = [largest_eigenvalue(d, probability) for d in (1, 2, 3, 10, 11, 57, 200, 400, 500)]
    assert (np.diff(found) > 0.0).all()


@pytest.mark.parametrize("d", [200, 500])
def test_the_far_tail_falls_as_the_large_deviations_say(d):
    """ln P(lambda_max > x sqrt 2) = -int_edge^x sqrt(y^2 - 2 d) dy (1 + small): two points apart,
    each far beyond the edge, within 3 per cent."""
    x, log_expected = _expected_above(d)
    edge = math.sqrt(2.0 * d)

    def rate(y: float) -> float:
        return 0.5 * (y * math.sqrt(y * y - 2 * d) - 2 * d * math.acosh(y / edge))

    first, last = np.searchsorted(x, [edge + 5.0, edge + 9.0])
    measured = log_expected[first] - log_expected[last]
    assert measured == pytest.approx(rate(x[last]) - rate(x[first]), rel=0.03)


# ---- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 10, 57, 300])
@pytest.mark.parametrize("probability", [0.3, 1e-3, 1e-8, 1e-35])
def test_without_a_direction_of_its_own_it_is_chi_square(d, probability):
    exact = math.sqrt(2.5 * stats.chi2.isf(probability, d))
    assert exact <= norm_quantile(d, 2.5, 0.0, probability) <= exact * (1.0 + 3e-9)


@pytest.mark.parametrize("probability", [0.3, 1e-8])
def test_one_direction_only_is_a_normal(probability):
    exact = math.sqrt(3.0) * stats.norm.isf(probability / 2.0)
    assert norm_quantile(1, 2.0, 1.0, probability) == pytest.approx(exact, rel=3e-9)
    assert norm_quantile(7, 0.0, 3.0, probability) == pytest.approx(exact, rel=3e-9)
    assert norm_quantile(7, 0.0, 0.0, probability) == 0.0


def test_a_hundred_times_the_common_variance_in_three_dimensions():
    """d = 3: P(||X||^2 > q) = 2 Phi(-a) + int exp(-(q - s z^2) / (2 c)) dPhi(z), a closed form."""
    c, s = 1.0, 100.0
    for q in (50.0, 400.0, 3000.0):
        a = math.sqrt(q / s)
        z = np.linspace(-a, a, 400_001)
        inside = np.exp(-0.5 * (q - s * z * z) / c - 0.5 * z * z) / math.sqrt(2.0 * math.pi)
        probability = 2.0 * stats.norm.sf(a) + float(np.trapezoid(inside, z))
        assert norm_quantile(3, c, s - c, probability) == pytest.approx(math.sqrt(q), rel=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 11, 57])
@pytest.mark.parametrize("probability", [0.2, 0.01])
def test_the_norm_quantile_is_that_of_simulated_vectors(d, probability):
    """Exceedances of an exact quantile: two-sided, a false alarm once in 5 x 10^5."""
    rng, count = np.random.default_rng(d), 40_000
    x = rng.normal(size=(count, d)) * math.sqrt(2.0)
    x[:, 0] = rng.normal(size=count) * math.sqrt(2.0 + 1.5)
    exceeded = int((np.linalg.norm(x, axis=1) > norm_quantile(d, 2.0, 1.5, probability)).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
    assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, probability)


def test_norms_grow_with_everything():
    quantiles = [norm_quantile(10, 2.0, 1.0, p) for p in (0.5, 0.1, 1e-3, 1e-10, 1e-40)]
    assert (np.diff(quantiles) > 0.0).all()
    assert norm_quantile(11, 2.0, 1.0, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
    assert norm_quantile(10, 2.1, 1.0, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
    assert norm_quantile(10, 2.0, 1.1, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
