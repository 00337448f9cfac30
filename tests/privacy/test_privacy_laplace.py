"""Check the Laplace mechanism: its noise, its exact curve, and the scales that papers print."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.mechanisms.laplace import Exponential, Laplace, laplace_quantile, log_cdf

FALSE_ALARM = 1e-6  # false-alarm probability of each statistical test for a random seed


def test_quantile_inverts_the_cdf() -> None:
    u = np.array([2.0**-60, 1e-9, 0.1, 0.5, 0.7, 1 - 2.0**-40, 1 - 2.0**-53])
    x = laplace_quantile(u)
    np.testing.assert_allclose(x, stats.laplace.ppf(u), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(np.exp(log_cdf(x)), u, rtol=1e-13)
    assert x[3] == 0.0
    tails = laplace_quantile([2.0**-50, 1 - 2.0**-50])
    assert tails[0] == -tails[1], "both tails are equally long"


def test_log_cdf_is_precise_in_the_tails() -> None:
    assert float(log_cdf(-800.0)) == pytest.approx(-800.0 - math.log(2))
    assert float(log_cdf(40.0)) == pytest.approx(-0.5 * math.exp(-40), rel=1e-12)
    grid = np.linspace(-30, 30, 301)
    laplace = stats.laplace
    expected = np.where(grid < 0.0, np.log(laplace.cdf(grid)), np.log1p(-laplace.sf(grid)))
    np.testing.assert_allclose(log_cdf(grid), expected, rtol=1e-12)


def test_noise_has_the_laplace_distribution() -> None:
    mechanism = Laplace(sensitivity=3.0, epsilon=0.5)
    uniforms = np.random.default_rng(1).uniform(size=200_000)
    released = mechanism.release(np.full(200_000, 7.0), uniforms)
    assert stats.kstest(released, stats.laplace(7.0, 6.0).cdf).pvalue > FALSE_ALARM
    assert mechanism.scale == 6.0
    # The standard deviation's own relative error is sqrt(5 / (4 n)), 0.25 %.
    assert released.std() == pytest.approx(mechanism.noise_std, rel=0.0125)


def test_log_ratio_is_bounded_by_epsilon_and_attained() -> None:
    mechanism = Laplace(sensitivity=2.0, epsilon=0.7)
    x = np.linspace(-40, 40, 2001)
    first = stats.laplace.logpdf(x, 0.0, mechanism.scale)
    second = stats.laplace.logpdf(x, mechanism.sensitivity, mechanism.scale)
    assert np.abs(first - second).max() == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("mechanism_epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0, 1.5])
def test_delta_equals_the_hockey_stick_divergence(mechanism_epsilon: float, share: float) -> None:
    mechanism = Laplace(sensitivity=1.0, epsilon=mechanism_epsilon)
    epsilon, b = share * mechanism_epsilon, mechanism.scale

    def excess(x: float) -> float:
        """Return the positive part of p(x) - e^epsilon q(x)."""
        p, q = stats.laplace.pdf(x, 0.0, b), stats.laplace.pdf(x, 1.0, b)
        return max(0.0, p - math.exp(epsilon) * q)

    crossing = (1.0 - epsilon * b) / 2.0
    cuts = [-45 * b, 0.0, max(0.0, crossing)]
    divergence = sum(
        integrate.quad(excess, low, high, epsabs=1e-13)[0]
        for low, high in pairwise(cuts)
        if share < 1.0
    )
    assert mechanism.delta(epsilon) == pytest.approx(divergence, abs=1e-10)
    if mechanism.delta(epsilon) > 0.0:
        assert mechanism.exact(mechanism.delta(epsilon)) == pytest.approx(epsilon, abs=1e-12)
    assert mechanism.exact() == mechanism_epsilon and mechanism.exact(0.999) == 0.0


@pytest.mark.parametrize(
    ("sensitivity", "epsilon", "scale"),
    [
        (4 * 0.1 / 50, 0.5 / 2, 0.032),  # mean of 50 in an interval of width 4 r, half the budget
        (4 * 1 * 2**2 / 16, 1.0, 1.0),  # one tree of gradients, 4 alpha 2^j / b
        (4 * 1 * 2**2 / (16 * 10), 0.5, 0.2),  # averaged over 10 clients, argmin both ways
    ],
)
def test_published_mechanisms_have_their_scales(
    sensitivity: float, epsilon: float, scale: float
) -> None:
    assert Laplace(sensitivity, epsilon).scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Laplace(0.0, 1.0), "sensitivity must be > 0, got 0.0"),
        (lambda: Laplace(1.0, -1.0), "epsilon must be > 0, got -1.0"),
        (lambda: Laplace(1.0, 1.0).release([1.0, 2.0], [0.5]), r"uniforms must have shape \(2,\)"),
        (lambda: Laplace(1.0, 1.0).release(0.0, 0.0), "uniforms must be > 0 and < 1"),
        (lambda: Laplace(1.0, 1.0).release([0.0], [1.0]), "uniforms must be > 0 and < 1"),
        (lambda: Laplace(1.0, 1.0).release([math.nan], [0.5]), "value must be finite"),
        (lambda: Laplace(1.0, 1.0).delta(-1), "epsilon must be >= 0, got -1"),
        (lambda: Laplace(1.0, 1.0).exact(1.0), "delta must be >= 0 and < 1, got 1.0"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


# ---- Calibrations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases"), [(1.0, 0.0, 1), (0.5, 0.0, 7), (2.0, 1e-6, 20)]
)
def test_calibrated_noise_uses_the_whole_budget(
    epsilon: float, delta: float, releases: int
) -> None:
    """Check that the stated scale, composed as often as stated, is within the budget and uses it
    up."""
    budget = Budget(epsilon, delta)
    calibration = calibrate("laplace", budget, releases, sensitivity=3.0)
    epsilon_per_release = 3.0 * math.sqrt(2.0) / calibration.noise_std
    assert composed_epsilon([("laplace", epsilon_per_release, releases)], delta) <= epsilon * (
        1 + 1e-12
    )
    assert composed_epsilon([("laplace", epsilon_per_release * 1.0001, releases)], delta) > epsilon
    if delta == 0.0:
        assert epsilon_per_release == pytest.approx(epsilon / releases, rel=1e-12)


def test_calibrated_choices_have_the_distribution_of_gumbel_noise() -> None:
    """Check that the argmin with noise of this std is the exponential mechanism's choice."""
    calibration = calibrate("exponential", Budget(1.5, 0.0), sensitivity=2.0)
    scale = calibration.noise_std * math.sqrt(6.0) / math.pi
    costs, rng = np.array([0.0, 3.0, 7.0]), np.random.default_rng(8)
    chosen = (costs - scale * rng.gumbel(size=(100_000, 3))).argmin(axis=1)
    expected = np.exp(Exponential(1.5).log_probabilities(costs / 2.0))
    frequencies = np.bincount(chosen, minlength=3) / 100_000
    assert np.abs(frequencies - expected).max() < 5.0 * np.sqrt(0.25 / 100_000)
    with pytest.raises(InputError, match="releases must be an integer >= 1"):
        calibrate("exponential", Budget(1.5, 0.0), 0)
