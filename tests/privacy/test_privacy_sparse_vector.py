"""AboveThreshold: crossing probabilities by other means, and what a pass costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from fastfed._validate import InputError
from fastfed.privacy.mechanisms.sparse_vector import AboveThreshold, minimal_scales

ALARM = 1e-6  # of each statistical test here, before its seed was fixed


def adaptive(queries: list[float], threshold: float, a: float, b: float) -> list[float]:
    """Return crossing probabilities by adaptive quadrature between the kinks."""

    def integrand(r: float, k: int) -> float:
        """Return the density at threshold noise r of the event that query k is the first above."""
        value = float(stats.laplace.pdf(r, 0, a))
        for q in queries[:k]:
            value *= float(stats.laplace.cdf(threshold + r - q, 0, b))
        if k < len(queries):
            value *= float(stats.laplace.sf(threshold + r - queries[k], 0, b))
        return value

    kinks = sorted({0.0, *(q - threshold for q in queries)})
    cuts = [kinks[0] - 40 * (a + b), kinks[0] - 5 * a, *kinks, kinks[-1] + 5 * a]
    cuts.append(kinks[-1] + 40 * (a + b))
    return [
        sum(
            integrate.quad(integrand, lo, hi, args=(k,), epsabs=0, epsrel=1e-10, limit=200)[0]
            for lo, hi in pairwise(cuts)
        )
        for k in range(len(queries) + 1)
    ]


@pytest.mark.parametrize(
    ("a", "b", "queries"),
    [
        (4.0, 8.0, [0.0, 3.0, -2.0]),
        (2.0, 2.0, [-5.0, 1.0, 1.0]),
        (0.2, 3.0, [0.5, 2.0]),
        (5.0, 0.2, [-1.0, 0.3]),
        (1.0, 1.0, [12.0]),
    ],
)
def test_crossing_probabilities(a: float, b: float, queries: list[float]) -> None:
    actual = AboveThreshold(a, b).crossing_probabilities(queries, 1.0)
    np.testing.assert_allclose(actual, adaptive(queries, 1.0, a, b), rtol=1e-8)


def test_probability_of_one_query_has_a_closed_form() -> None:
    """P(gamma - rho > g) for two Laplace noises of one scale: (1 + g/2) e^{-g} / 2, g >= 0."""
    for g in (0.0, 0.4, 3.0, 30.0, 300.0):
        cross, none = AboveThreshold(1.0, 1.0).crossing_probabilities([0.0], g)
        assert cross == pytest.approx((0.5 + g / 4) * math.exp(-g), rel=1e-12, abs=0)
        assert none == pytest.approx(1.0 - cross, rel=1e-13)


def test_crossing_probabilities_sum_to_one() -> None:
    draw = np.random.default_rng(6)
    for n in (1, 4, 60):
        a, b = 10 ** draw.uniform(-2, 2, size=2)
        p = AboveThreshold(a, b).crossing_probabilities(draw.normal(0, 4, size=n), 2.0)
        assert p.shape == (n + 1,) and (p >= 0).all()
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert AboveThreshold(1.0, 1.0).crossing_probabilities([], 0.0).tolist() == [1.0]
    # A constant added to queries and threshold alike changes nothing.
    mechanism = AboveThreshold(1.5, 0.7)
    np.testing.assert_allclose(
        mechanism.crossing_probabilities([1.0, -2.0], 0.5),
        mechanism.crossing_probabilities([1025.0, 1022.0], 1024.5),
        rtol=1e-12,
    )


def test_log_probabilities_do_not_underflow() -> None:
    logs = AboveThreshold(1.0, 2.0).log_crossing_probabilities([-4000.0, 4000.0], 0.0)
    assert logs[1] == pytest.approx(0.0, abs=1e-12)
    # One of the two noises must make up the gap: 2000 query scales are cheaper than 4000.
    assert -2001.0 < logs[0] < -1999.0 and -2001.0 < logs[2] < -1999.0


def test_simulated_runs_have_the_calculated_probabilities() -> None:
    mechanism, queries, n = AboveThreshold(2.0, 3.0), [-2.0, 0.0, 1.0, -4.0], 40_000
    uniforms = np.random.default_rng(4).uniform(size=(n, 5))
    actual = [mechanism.first_above(queries, 1.0, u) for u in uniforms]
    counts = np.bincount([4 if k is None else k for k in actual], minlength=5)
    expected = n * mechanism.crossing_probabilities(queries, 1.0)
    assert stats.chisquare(counts, expected).pvalue > ALARM


def test_above_is_strict() -> None:
    mechanism = AboveThreshold(1.0, 1.0)
    assert mechanism.first_above([1.0], 1.0, [0.5, 0.5]) is None
    assert mechanism.first_above([0.9, np.nextafter(1.0, 2.0)], 1.0, [0.5] * 3) == 1


# ---- what it costs ------------------------------------------------------------------------------


def largest_ratio(mechanism: AboveThreshold, pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return largest |ln P(outcome) / Q(outcome)| over pairs of queries."""
    return max(
        float(
            np.abs(
                mechanism.log_crossing_probabilities(p, 0.0)
                - mechanism.log_crossing_probabilities(q, 0.0)
            ).max()
        )
        for p, q in pairs
    )


def shifts(n: int, rounds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of queries and of the same queries with 1 added from some time on."""
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(rounds):
        base = draw.normal(0, 12, size=n)
        pairs.append((base, base + (np.arange(n) >= draw.integers(n))))
    far_below = np.full(n, -60.0)  # whether a query crosses depends on its noise
    far_above = np.full(n, 25.0)  # whether none crosses depends on the threshold's noise
    return [*pairs, (far_below, far_below + 1.0), (far_above, far_above + 1.0)]


@pytest.mark.parametrize(("a", "b"), [(4.0, 8.0), (2.0, 2.0), (8.0, 2.0), (1.0, 5.0)])
def test_epsilon_for_common_shifts_is_the_larger_of_both(a: float, b: float) -> None:
    mechanism = AboveThreshold(a, b, common_shift=True)
    assert mechanism.epsilon == max(1 / a, 1 / b)
    worst = largest_ratio(mechanism, shifts(5, 40, 7))
    assert worst <= mechanism.epsilon * (1 + 1e-10)
    assert worst >= 0.95 * mechanism.epsilon, "the stated cost is not attained"


def test_epsilon_for_any_changes_is_the_sum() -> None:
    """Let queries move by at most 1 each way; the loss approaches the sum."""
    mechanism = AboveThreshold(4.0, 8.0)
    assert mechanism.epsilon == pytest.approx(0.5)
    draw = np.random.default_rng(9)
    pairs = []
    for _ in range(40):
        base = draw.normal(0, 10, size=6)
        pairs.append((base, base + draw.choice([-1.0, 0.0, 1.0], size=6)))
    # Many queries at the threshold go down and the one far below it goes up.
    base = np.append(np.zeros(60), -40.0)
    pairs.append((base, base + np.append(-np.ones(60), 1.0)))
    worst = largest_ratio(mechanism, pairs)
    common_epsilon = AboveThreshold(4.0, 8.0, common_shift=True).epsilon
    assert common_epsilon < 0.7 * mechanism.epsilon < worst <= mechanism.epsilon * (1 + 1e-10)


def test_epsilon_of_published_and_smallest_scales() -> None:
    """Check fed-svt at epsilon = 1, where the printed Lap(4) and Lap(8) cost only a quarter."""
    printed = AboveThreshold(4.0, 8.0, common_shift=True)
    assert printed.epsilon == pytest.approx(0.25)
    assert AboveThreshold(4.0, 8.0).epsilon == pytest.approx(0.5)
    assert minimal_scales(0.5, common_shift=True) == (2.0, 2.0)
    assert AboveThreshold(2.0, 2.0, common_shift=True).epsilon == 0.5


def test_least_scales_meet_the_budget_with_the_least_variance() -> None:
    a, b = minimal_scales(0.7, 3.0)
    assert AboveThreshold(a, b, 3.0).epsilon == pytest.approx(0.7, rel=1e-12)
    for other in np.linspace(0.8, 1.25, 10) * a:
        paired = 2.0 / (0.7 / 3.0 - 1.0 / other)
        assert other**2 + paired**2 >= (a**2 + b**2) * (1 - 1e-12)
    assert minimal_scales(0.7, 3.0, common_shift=True) == pytest.approx((3 / 0.7, 3 / 0.7))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AboveThreshold(0.0, 1.0), "threshold_scale must be > 0, got 0.0"),
        (lambda: AboveThreshold(1.0, -1.0), "query_scale must be > 0, got -1.0"),
        (lambda: AboveThreshold(1.0, 1.0, 0.0), "sensitivity must be > 0, got 0.0"),
        (lambda: minimal_scales(0.0), "epsilon must be > 0, got 0.0"),
        (
            lambda: AboveThreshold(1.0, 1.0).first_above([1.0], 0.0, [0.5]),
            r"uniforms must have shape \(2,\)",
        ),
        (
            lambda: AboveThreshold(1.0, 1.0).crossing_probabilities([math.nan], 0.0),
            "queries must be finite",
        ),
        (
            lambda: AboveThreshold(1.0, 1.0).crossing_probabilities([0.0], math.inf),
            "threshold must be finite",
        ),
        (
            lambda: AboveThreshold(1.0, 1.0).crossing_probabilities([1e308, -1e308], 0.0),
            "queries must be of finite spread",
        ),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
