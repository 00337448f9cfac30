"""Check amplification by a secret coin: compare the bound with integrals over three
distributions."""

import math

import numpy as np
import pytest
from oracle import sampled_gaussian as oracle
from scipy import stats

from fastfed._validate import InputError
from fastfed.privacy.accounting.gdp import (
    delta_of,
    epsilon_of,
    mu_of,
    sampled_delta,
    sampled_epsilon,
    sampled_mu,
)

#: For x y and x x' in layout goe2, absence changes the sums by sqrt(1.5) and replacement by 2.
USUAL_ZETA = math.sqrt(1.5) / 2.0
#: Relative error of the oracle's sum.
ERROR = 2e-3


def test_oracle_without_a_coin_equals_the_gaussian_mechanism():
    for epsilon, mu in ((0.0, 0.5), (1.0, 0.4), (1.0, 2.0), (4.0, 1.5)):
        a, b = oracle.placed(mu / 2, mu / 2, math.pi)
        assert oracle.divergence(epsilon, 1.0, a, b) == pytest.approx(
            delta_of(epsilon, mu), rel=ERROR
        )


def test_oracle_on_a_line_equals_an_integral():
    """Check a = 0, where the record's x adds nothing, so that only N(0) and N(b) occur."""
    p, m, epsilon = 0.4, 1.1, 0.3
    x = np.linspace(-10, 12, 400001)
    density = stats.norm.pdf(x)
    mixture = (1 - p) * density + p * stats.norm.pdf(x - m)
    exact = np.maximum(density - math.exp(epsilon) * mixture, 0).sum() * (x[1] - x[0])
    delta = oracle.divergence(epsilon, p, np.zeros(2), np.array([0.6 * m, 0.8 * m]))
    assert delta == pytest.approx(exact, rel=ERROR)


CASES = [
    (1.0, 0.5, USUAL_ZETA, 0.7),
    (1.0, 0.9, USUAL_ZETA, 0.5),
    (1.0, 0.1, USUAL_ZETA, 3.0),
    (0.2, 0.3, 1.0, 0.6),
    (3.0, 0.5, 0.5, 2.0),
    (5.0, 0.7, 0.8, 2.5),
    (0.5, 0.5, 1.5, 0.8),
]
FAST_CASES = CASES[::3]


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in FAST_CASES else pytest.mark.slow) for c in CASES]
)
def test_no_pair_of_records_exceeds_the_bound(case):
    bound = sampled_delta(*case)
    largest_divergence = oracle.largest(*case)
    assert largest_divergence <= bound * (1 + ERROR)
    # The gap to the largest divergence arises since advanced joint convexity ignores where absence
    # lies.
    assert largest_divergence > 0.02 * bound


@pytest.mark.slow
def test_no_random_pair_of_records_exceeds_the_bound():
    rng = np.random.default_rng(4)
    largest_ratio = 0.0
    for _ in range(300):
        epsilon, p = rng.choice([0.1, 1.0, 2.5]), rng.uniform(0.05, 1.0)
        a, b = oracle.placed(*rng.uniform(0.05, 3.0, 2), rng.uniform(0.0, math.pi))
        mu = float(np.linalg.norm(a - b))
        zeta = max(0.5, float(max(np.linalg.norm(a), np.linalg.norm(b))) / mu)
        divergence = oracle.divergence(epsilon, p, a, b, step=0.04)
        bound = sampled_delta(epsilon, p, zeta, mu)
        assert divergence <= bound * (1 + ERROR) + 1e-12
        largest_ratio = max(largest_ratio, divergence / bound)
    assert largest_ratio > 0.9


def test_smaller_bounds_are_exceeded():
    """Check three bounds that are too small: some pair of records exceeds each of them.

    A record is included with probability p, by a coin. In standard deviations of the noise, mu is
    the distance of two records x and x', and zeta mu that of a record from no record.
    """
    epsilon, p, zeta, mu = 0.1, 0.5, USUAL_ZETA, 0.8
    inner_epsilon = math.log(1 + (math.exp(epsilon) - 1) / p)
    largest_divergence = oracle.largest(epsilon, p, zeta, mu)
    # First bound: x and x' are as far apart as a record and no record. Second bound: the factor p
    # of the coin is applied to delta twice.
    assert largest_divergence > p * delta_of(inner_epsilon, zeta * mu) * (1 + ERROR)
    assert largest_divergence > p * p * delta_of(epsilon, mu) * (1 + ERROR)
    # Third bound: the record is scaled by p instead of being included with probability p.
    assert oracle.largest(3.0, 0.5, USUAL_ZETA, 2.0) > delta_of(3.0, 0.5 * 2.0) * (1 + ERROR)


def test_bound_has_its_limits():
    for epsilon, mu in ((0.0, 0.7), (0.3, 0.5), (1.0, 2.0), (50.0, 9.0)):
        for zeta in (0.5, 1.0, 2.0):
            assert sampled_delta(epsilon, 1.0, zeta, mu) == delta_of(epsilon, mu)
            deltas = [sampled_delta(epsilon, p, zeta, mu) for p in (0.01, 0.1, 0.5, 0.9, 1.0)]
            assert deltas == sorted(deltas)
            for p, thinned_delta in zip((0.01, 0.1, 0.5, 0.9, 1.0), deltas, strict=True):
                assert thinned_delta <= p * delta_of(epsilon, mu)
    assert sampled_delta(1.0, 0.3, 0.6, 0.0) == 0.0
    # Results for large arguments are finite.
    assert sampled_delta(800.0, 0.5, 0.7, 30.0) > 0.0
    assert sampled_delta(1e-12, 0.5, 0.7, 1e-3) == pytest.approx(
        0.5 * delta_of(0.0, 1e-3), rel=1e-6
    )
    # The bound is continuous where the formula of the inner epsilon changes.
    below, above = (sampled_delta(e, 0.4, 0.7, 1.3) for e in (1.0 - 1e-12, 1.0))
    assert below == pytest.approx(above, rel=1e-9)


@pytest.mark.parametrize("zeta", [0.5, USUAL_ZETA, 1.0, 1.7])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.8, 1.0])
def test_inverse_functions_nearly_attain_the_bound(p, zeta):
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-3), (5.0, 1e-5), (20.0, 1e-12)):
        mu = sampled_mu(epsilon, delta, p, zeta)
        assert mu >= mu_of(epsilon, delta)
        assert sampled_delta(epsilon, p, zeta, mu) <= delta
        assert sampled_delta(epsilon, p, zeta, mu * (1 + 1e-9)) > delta or p == 1.0
        epsilon_again = sampled_epsilon(delta, p, zeta, mu)
        assert sampled_delta(epsilon_again, p, zeta, mu) <= delta
        assert epsilon_again <= epsilon * (1 + 1e-9)
        assert epsilon_again <= epsilon_of(mu, delta)
        if zeta <= 1.0:
            assert epsilon_again == pytest.approx(epsilon, rel=1e-6)


def test_signal_to_noise_ratios_of_coins():
    """Check p mu(p) / mu(1), the ratio of signal to noise at the same guarantee, to two digits."""
    expected_ratios = {
        (1.0, 1e-3): {0.7: 0.89, 0.5: 0.79, 0.3: 0.65},
        (5.0, 1e-5): {0.7: 0.77, 0.5: 0.60, 0.3: 0.40},
    }
    for budget, ratios in expected_ratios.items():
        for p, expected in ratios.items():
            ratio = p * sampled_mu(*budget, p, USUAL_ZETA) / mu_of(*budget)
            assert ratio == pytest.approx(expected, abs=0.006)


def test_inverse_functions_at_their_limits():
    assert sampled_epsilon(0.4, 0.4, 0.7, 100.0) == 0.0
    assert sampled_mu(1.0, 0.4, 0.4, 0.7) == math.inf
    assert sampled_epsilon(0.0, 0.4, 0.7, 1.0) == math.inf
    assert sampled_epsilon(0.0, 0.4, 0.7, 0.0) == 0.0
    assert sampled_mu(1.0, 0.0, 0.4, 0.7) == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1.0, 0.5, 0.7, 1.0), "epsilon must be >= 0"),
        ((1.0, 0.0, 0.7, 1.0), "p must be > 0 and <= 1, got 0"),
        ((1.0, 1.1, 0.7, 1.0), "p must be > 0 and <= 1, got 1.1"),
        ((1.0, 0.5, 0.4, 1.0), "zeta must be >= 0.5, got 0.4"),
        ((1.0, 0.5, 0.7, -1.0), "mu must be >= 0"),
    ],
)
def test_errors_name_the_bad_argument(values, message):
    with pytest.raises(InputError, match=message):
        sampled_delta(*values)
    with pytest.raises(InputError, match="delta must be >= 0 and < 1"):
        sampled_epsilon(1.0, 0.5, 0.7, 1.0)
    with pytest.raises(InputError, match="delta must be >= 0 and < 1"):
        sampled_mu(1.0, -0.1, 0.5, 0.7)
