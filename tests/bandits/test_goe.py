"""Check tails of the largest eigenvalue of Gaussian symmetric matrices, and of norms."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from fastfed.bandits.noise_distributions import (
    EIGENVALUE_STEP,
    MAX_EXACT_DIMENSION,
    _expected_above,
    largest_eigenvalue,
    norm_quantile,
)

FALSE_ALARM = 1e-6


def draw_matrices(d: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (A + A') / sqrt 2, with off-diagonal variance 1 and diagonal variance 2."""
    a = rng.normal(size=(count, d, d))
    return (a + a.transpose(0, 2, 1)) / math.sqrt(2.0)


@cache
def simulated_eigenvalues(d: int) -> np.ndarray:
    """Return the eigenvalues (count, d) of drawn matrices, in ascending order."""
    count = 40_000 if d < 50 else 3_000
    return np.linalg.eigvalsh(draw_matrices(d, count, np.random.default_rng(d)))


@pytest.mark.parametrize("d", [1, 2, 3, 4, 10, 11, 57, 200, 500])
def test_density_integrates_to_the_number_of_eigenvalues(d):
    """Check that half of d eigenvalues are above 0, since the density is even."""
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
def test_expected_number_above_agrees_with_simulated_matrices(d):
    """Check counts at five points within 5 standard errors.

    A false alarm has a probability below 3 in 10^6 for each d.
    """
    x, log_expected = _expected_above(d)
    values = simulated_eigenvalues(d) / math.sqrt(2.0)
    for share in (0.5, 0.3, 0.1, 0.02, 0.004):
        index = int(np.searchsorted(-log_expected, -math.log(share * d / 2.0)))
        counts = (values > x[index]).sum(axis=1)
        standard_deviation = counts.std() / math.sqrt(len(counts))
        assert abs(counts.mean() - math.exp(log_expected[index])) <= 5.0 * standard_deviation


@pytest.mark.parametrize("d", [1, 2, 3, 10, 11, 57])
@pytest.mark.parametrize("probability", [0.2, 0.02])
def test_quantile_of_the_largest_eigenvalue_has_its_probability(d, probability):
    """Count exceedances.

    The limit is exceeded once in 10^6 if the probability is the stated one.
    """
    largest = simulated_eigenvalues(d)[:, -1]
    count = len(largest)
    exceeded = int((largest > largest_eigenvalue(d, probability)).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
    # The bound is nearly attained, since two eigenvalues are rarely above it.
    assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, 0.8 * probability)


def test_quantile_in_one_dimension_is_that_of_a_normal():
    for probability in (0.3, 1e-3, 1e-10, 1e-40):
        exact = math.sqrt(2.0) * stats.norm.isf(probability)
        quantile = largest_eigenvalue(1, probability)
        assert exact <= quantile <= exact + 3.0 * EIGENVALUE_STEP * math.sqrt(2.0)


def test_quantile_in_two_dimensions_agrees_with_an_integral():
    """Check the top eigenvalue m + r, with m ~ N(0, 1) and r Rayleigh.

    Their joint distribution gives P(top > t) by one integral.
    """
    m, weight = np.polynomial.hermite_e.hermegauss(120)
    weight = weight / math.sqrt(2.0 * math.pi)
    for t in (3.0, 4.5, 6.0):  # for smaller t, both eigenvalues may be above t
        # Half the difference of the diagonal entries has variance 1, as the off-diagonal entry.
        exact = float(weight @ np.exp(-0.5 * np.square(np.maximum(t - m, 0.0))))
        assert largest_eigenvalue(2, exact * 1.02) <= t + 3.0 * EIGENVALUE_STEP * math.sqrt(2.0)
        assert largest_eigenvalue(2, exact * 0.98) >= t - 0.02


@pytest.mark.parametrize(
    "d", [1, 2, 3, 10, 11, 57, 499, MAX_EXACT_DIMENSION, MAX_EXACT_DIMENSION + 1]
)
def test_quantile_is_monotone_and_at_most_the_closed_bound(d):
    probabilities = 10.0 ** -np.linspace(0.4, 70.0, 120)
    quantiles = np.array([largest_eigenvalue(d, probability) for probability in probabilities])
    closed_bound = 2.0 * (math.sqrt(d) + np.sqrt(-np.log(probabilities)))
    assert (quantiles <= closed_bound).all()
    # The quantiles increase strictly at these probabilities.
    assert (np.diff(quantiles) > 0.0).all()


@pytest.mark.parametrize("probability", [0.1, 1e-5, 1e-20, 1e-50])
def test_quantile_grows_with_the_dimension(probability):
    """The reason: a matrix contains its corners.

    At d = 500 the tail at 10^-50 lies where phi_0 is below 10^-308.
    """
    quantiles = [largest_eigenvalue(d, probability) for d in (1, 2, 3, 10, 11, 57, 200, 400, 500)]
    assert (np.diff(quantiles) > 0.0).all()


@pytest.mark.parametrize("d", [200, 500])
def test_far_tail_agrees_with_large_deviations(d):
    """Check ln P(lambda_max > x sqrt 2) = -int_edge^x sqrt(y^2 - 2 d) dy (1 + small).

    Two points, each far beyond the edge, agree within 3 per cent.
    """
    x, log_expected = _expected_above(d)
    edge = math.sqrt(2.0 * d)

    def rate(y: float) -> float:
        """Return the antiderivative of sqrt(y^2 - 2 d) that is 0 at the edge."""
        return 0.5 * (y * math.sqrt(y * y - 2 * d) - 2 * d * math.acosh(y / edge))

    first, last = np.searchsorted(x, [edge + 5.0, edge + 9.0])
    measured = log_expected[first] - log_expected[last]
    assert measured == pytest.approx(rate(x[last]) - rate(x[first]), rel=0.03)


# ---- Norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 10, 57, 300])
@pytest.mark.parametrize("probability", [0.3, 1e-3, 1e-8, 1e-35])
def test_norm_quantile_of_equal_variances_is_chi_square(d, probability):
    exact = math.sqrt(2.5 * stats.chi2.isf(probability, d))
    assert exact <= norm_quantile(d, 2.5, 0.0, probability) <= exact * (1.0 + 3e-9)


@pytest.mark.parametrize("probability", [0.3, 1e-8])
def test_norm_quantile_in_one_direction_is_that_of_a_normal(probability):
    exact = math.sqrt(3.0) * stats.norm.isf(probability / 2.0)
    assert norm_quantile(1, 2.0, 1.0, probability) == pytest.approx(exact, rel=3e-9)
    assert norm_quantile(7, 0.0, 3.0, probability) == pytest.approx(exact, rel=3e-9)
    assert norm_quantile(7, 0.0, 0.0, probability) == 0.0


def test_norm_quantile_in_three_dimensions_agrees_with_an_integral():
    """Check one direction with a hundred times the common variance, which has a closed form.

    P(||X||^2 > q) = 2 Phi(-a) + int exp(-(q - s z^2) / (2 c)) dPhi(z).
    """
    common_variance, largest_variance = 1.0, 100.0
    for q in (50.0, 400.0, 3000.0):
        a = math.sqrt(q / largest_variance)
        z = np.linspace(-a, a, 400_001)
        density = np.exp(
            -0.5 * (q - largest_variance * z * z) / common_variance - 0.5 * z * z
        ) / math.sqrt(2.0 * math.pi)
        probability = 2.0 * stats.norm.sf(a) + float(np.trapezoid(density, z))
        assert norm_quantile(
            3, common_variance, largest_variance - common_variance, probability
        ) == pytest.approx(math.sqrt(q), rel=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 11, 57])
@pytest.mark.parametrize("probability", [0.2, 0.01])
def test_norm_quantile_agrees_with_simulated_vectors(d, probability):
    """Count exceedances of an exact quantile on both sides: a false alarm occurs once in 5 x
    10^5."""
    rng, count = np.random.default_rng(d), 40_000
    x = rng.normal(size=(count, d)) * math.sqrt(2.0)
    x[:, 0] = rng.normal(size=count) * math.sqrt(2.0 + 1.5)
    exceeded = int((np.linalg.norm(x, axis=1) > norm_quantile(d, 2.0, 1.5, probability)).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
    assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, probability)


def test_norm_quantile_grows_with_all_arguments():
    quantiles = [norm_quantile(10, 2.0, 1.0, p) for p in (0.5, 0.1, 1e-3, 1e-10, 1e-40)]
    assert (np.diff(quantiles) > 0.0).all()
    assert norm_quantile(11, 2.0, 1.0, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
    assert norm_quantile(10, 2.1, 1.0, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
    assert norm_quantile(10, 2.0, 1.1, 0.1) > norm_quantile(10, 2.0, 1.0, 0.1)
