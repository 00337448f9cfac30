"""Check exact draws of the number of fair coins, and their privacy, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from oracle import secure_sum as oracle
from scipy import stats
from scipy.special import ndtri

from fastfed import _sampling as sampling
from fastfed._random import SeededNoise, SystemNoise, entries
from fastfed._validate import InputError
from fastfed.privacy.accounting.binomial import std_of_coins
from fastfed.privacy.accounting.gdp import delta_of

MANY_COINS = 2**73


def seeded_bytes(seed: int):
    """Return a function that draws bytes from a seeded generator."""
    return np.random.default_rng(seed).bytes


def chi_square_p_value(draws: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p value of draws from 0..n, with rare outcomes pooled."""
    count = np.bincount(draws, minlength=len(probabilities))
    is_frequent = probabilities * len(draws) >= 5.0
    observed = np.append(count[is_frequent], count[~is_frequent].sum())
    expected = np.append(probabilities[is_frequent], probabilities[~is_frequent].sum()) * len(draws)
    if expected[-1] == 0.0:
        observed, expected = observed[:-1], expected[:-1]
    return float(stats.chisquare(observed, expected * (observed.sum() / expected.sum())).pvalue)


# ---- Draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 6, 40])
def test_rejection_sampling_has_the_binomial_distribution(n: int) -> None:
    """Check small n, for which the correction R matters most.

    For 2 coins the proposal has another distribution.
    """
    entropy = seeded_bytes(n)
    draws = np.array([sampling.rejected_binomial(n, entropy) for _ in range(4000)])
    probabilities = np.array([float(p) for p in oracle.masses(n)])
    assert chi_square_p_value(draws + n // 2, probabilities) > 1e-3


def test_chi_square_test_rejects_the_uncorrected_proposal() -> None:
    """Check that the test detects what R corrects."""
    entropy, n = seeded_bytes(1), 6
    draws = np.array([sampling._discrete_gaussian(n + 1, entropy) for _ in range(4000)])
    probabilities = np.array([float(p) for p in oracle.masses(n)])
    assert chi_square_p_value(draws[np.abs(draws) <= 3] + 3, probabilities) < 1e-4


def test_numbers_of_tossed_coins_have_the_binomial_distribution() -> None:
    entropy = seeded_bytes(4)
    draws = np.array(sampling.fair_binomials([100] * 5000, entropy))
    assert chi_square_p_value(draws + 50, np.array([float(p) for p in oracle.masses(100)])) > 1e-3
    assert sampling.fair_binomial(0) == 0


def test_tossing_and_rejection_sampling_agree_at_the_change() -> None:
    n, entropy = sampling.TOSSED, seeded_bytes(5)
    tossed = [sampling.fair_binomial(n, entropy) for _ in range(4000)]
    by_rejection = [sampling.fair_binomial(n + 2, entropy) for _ in range(4000)]
    assert stats.ks_2samp(tossed, by_rejection).pvalue > 1e-3


def test_numbers_of_many_coins_are_nearly_normal() -> None:
    """Check draws from the operating system, whose lowest bits are uniform."""
    draws = sampling.fair_binomials([MANY_COINS] * 4000)
    standardised = np.array(draws, dtype=np.float64) / math.sqrt(MANY_COINS / 4)
    assert stats.kstest(standardised, "norm").pvalue > 1e-6
    low_bits = np.bincount([k % 16 for k in draws], minlength=16)
    assert stats.chisquare(low_bits).pvalue > 1e-6


def test_sums_of_odd_powers() -> None:
    for power in (3, 5, 7, 21, 41):
        for count in (0, 1, 2, 9, 30):
            expected = sum((2 * i - 1) ** power for i in range(1, count + 1))
            assert sampling.odd_powers(count, power) == expected


@pytest.mark.parametrize("n", [2, 8, 60])
def test_bounds_of_the_excess_enclose_it(n: int) -> None:
    """Check R(k) = -ln(P(k)/P(0)) - 2 k^2/(n + 1) for several numbers of terms.

    More terms give closer bounds.
    """
    for k in range(n // 2 + 1):
        ratio = Fraction(math.comb(n, n // 2 + k), math.comb(n, n // 2))
        expected = -math.log(ratio) - 2.0 * k * k / (n + 1)
        widths = []
        for terms in (0, 1, 4, 40):
            low, high = sampling._excess(k, n, terms)
            assert float(low) - 1e-12 <= expected <= float(high) + 1e-12
            widths.append(high - low)
        assert widths == sorted(widths, reverse=True)


def test_comparisons_that_64_bits_do_not_decide_are_exact() -> None:
    """Check uniforms that begin with the bits of R.

    The bits after these decide, as for real numbers.
    """
    n, k = 1_000_000, 300
    low, high = sampling._excess(k, n, 20)
    assert high - low < Fraction(1, 1 << 240)
    digits = math.floor(low / 4 * (1 << 192))
    for last, expected in ((-1, True), (1, False)):
        words = (digits + last).to_bytes(24, "big")
        remaining_words = iter([words[i : i + 8] for i in range(0, 24, 8)])
        is_below = sampling._uniform_below(
            k, n, 4, lambda size, source=remaining_words: next(source)
        )
        assert is_below is expected
        assert not list(remaining_words)  # all 192 bits were needed


def test_noise_sources_draw_the_entries_of_a_node() -> None:
    assert entries(3, (1, 2, 3)) == [1, 1, 1, 3, 2, 3, 2, 2, 3]
    noise = SystemNoise()
    draws = noise.coins(0, 1, 2, (4, 8, 0)).view(np.int64)
    assert draws.shape == (5,) and (np.abs(draws) <= [2, 2, 0, 4, 0]).all()
    with pytest.raises(InputError, match="drawn already"):
        noise.coins(0, 1, 2, (4, 8, 0))
    repeated = [SeededNoise(3).coins(1, 2, 4, (2**70, 2**72, 2**73)) for _ in range(2)]
    np.testing.assert_array_equal(*repeated)
    of_other_nodes = [
        SeededNoise(3).coins(*key, 4, (2**70, 2**72, 2**73)) for key in ((1, 3), (2, 2))
    ]
    assert not any((of_other_node == repeated[0]).any() for of_other_node in of_other_nodes)
    normals = SeededNoise(3).node(1, 2, 4)
    stds = np.sqrt(np.array(entries(4, (2**70, 2**72, 2**73)), dtype=np.float64)) / 2.0
    np.testing.assert_allclose(repeated[0].view(np.int64), stds * normals, rtol=1e-9)


# ---- Lemma about the effective standard deviation ------------------------------------------------


@cache
def normal_quantiles(n: int) -> np.ndarray:
    """Return Phi^-1 P(S <= k) for k = 0..n - 1, from exact sums."""
    probabilities, total = [], Fraction(0)
    for p in oracle.masses(n)[: n // 2]:
        total += p
        probabilities.append(float(total))
    lower_half = ndtri(np.array(probabilities))
    return np.concatenate([lower_half, -lower_half[::-1]])


@pytest.mark.parametrize("n", [40, 200, 3000])
@pytest.mark.parametrize("tail", [0.4, 1e-2, 1e-6])
@pytest.mark.parametrize("reach", [0, 3])
def test_normal_quantiles_inside_the_window_differ_by_at_most_the_bound(n, tail, reach) -> None:
    std = std_of_coins(n, reach, tail)
    if std == 0.0:
        assert n / 2 - math.sqrt(n * math.log(1 / tail) / 2) - reach < 3
        return
    window_start = round(std * math.sqrt(n))
    assert std == pytest.approx(window_start / math.sqrt(n), rel=1e-11)
    # x(k) - x(k - 1) for least < k <= n - least - 1.
    differences = np.diff(normal_quantiles(n)[window_start : n - window_start])
    assert differences.size and differences.max() <= 1.0 / std
    # The window omits at most the allowed tail probability.
    assert float(sum(oracle.masses(n)[: window_start + reach + 1])) <= tail


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("shift", [1, 4])
def test_bound_on_delta_holds_and_is_nearly_tight(n: int, shift: int) -> None:
    """Check that the delta of the lemma is never below the true one."""
    ratios = []
    for epsilon in (0.0, 0.3, 1.0):
        exact = oracle.shifted_delta(n, shift, epsilon)
        deltas = []
        for tail in np.geomspace(1e-12, 0.3, 40).tolist():
            std = std_of_coins(n, shift, tail)
            if std > 0.0:
                deltas.append(tail + (1.0 - tail) * delta_of(epsilon, shift / std))
        assert min(deltas) >= exact
        ratios.append(min(deltas) / max(exact, 1e-300))
    assert ratios[0] < (2.0 if n == 100 else 1.6)


def test_binomial_noise_is_weaker_than_gaussian_noise_of_equal_variance() -> None:
    """The reason: the number of coins is bounded."""
    n, shift, epsilon = 20, 2, 1.6
    assert oracle.shifted_delta(n, shift, epsilon) > delta_of(epsilon, shift / math.sqrt(n / 4))


def test_effective_std_of_many_coins_is_nearly_their_std() -> None:
    full_std = math.sqrt(MANY_COINS) / 2.0
    std = std_of_coins(MANY_COINS, 2**37, 1e-12)
    assert 0.0 < full_std - std < 10.0 + 1e-11 * full_std
    # With a thousandth fewer coins the bound falls in proportion.
    fewer = std_of_coins(MANY_COINS * 999 // 1000, 2**37, 1e-12)
    assert fewer / std == pytest.approx(math.sqrt(0.999), rel=1e-9)


def test_too_few_coins_have_effective_std_zero() -> None:
    assert std_of_coins(0, 0, 0.1) == std_of_coins(8, 5, 1e-6) == 0.0
