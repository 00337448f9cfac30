"""Fair coins: exact draws of their number, and what they hide, against exact fractions."""

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
from fastfed.privacy.accounting.binomial import effective_std
from fastfed.privacy.accounting.gdp import delta_of

BIG = 2**73


def seeded(seed: int):
    return np.random.default_rng(seed).bytes


def fits(found: np.ndarray, mass: np.ndarray) -> float:
    """Chi-square p value of draws 0..n, rare outcomes joined."""
    count = np.bincount(found, minlength=len(mass))
    often = mass * len(found) >= 5.0
    seen = np.append(count[often], count[~often].sum())
    expected = np.append(mass[often], mass[~often].sum()) * len(found)
    if expected[-1] == 0.0:
        seen, expected = seen[:-1], expected[:-1]
    return float(stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue)


# ---- draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 6, 40])
def test_rejection_has_the_law_of_coins(n: int) -> None:
    """Where the correction R matters most; 2 coins, whose proposal has another law."""
    entropy = seeded(n)
    found = np.array([sampling.rejected_binomial(n, entropy) for _ in range(4000)])
    mass = np.array([float(p) for p in oracle.masses(n)])
    assert fits(found + n // 2, mass) > 1e-3


def test_without_its_correction_the_proposal_is_told_apart() -> None:
    """The chi-square test sees what R corrects."""
    entropy, n = seeded(1), 6
    found = np.array([sampling._discrete_gaussian(n + 1, entropy) for _ in range(4000)])
    mass = np.array([float(p) for p in oracle.masses(n)])
    assert fits(found[np.abs(found) <= 3] + 3, mass) < 1e-4


def test_tossed_coins_are_counted() -> None:
    entropy = seeded(4)
    found = np.array(sampling.fair_binomials([100] * 5000, entropy))
    assert fits(found + 50, np.array([float(p) for p in oracle.masses(100)])) > 1e-3
    assert sampling.fair_binomial(0) == 0


def test_both_ways_of_drawing_agree_where_they_meet() -> None:
    n, entropy = sampling.TOSSED, seeded(5)
    first = [sampling.fair_binomial(n, entropy) for _ in range(4000)]
    second = [sampling.fair_binomial(n + 2, entropy) for _ in range(4000)]
    assert stats.ks_2samp(first, second).pvalue > 1e-3


def test_many_coins_are_normal() -> None:
    """Drawn from the operating system; the last bits are uniform."""
    found = sampling.fair_binomials([BIG] * 4000)
    normal = np.array(found, dtype=np.float64) / math.sqrt(BIG / 4)
    assert stats.kstest(normal, "norm").pvalue > 1e-6
    low = np.bincount([k % 16 for k in found], minlength=16)
    assert stats.chisquare(low).pvalue > 1e-6


def test_odd_powers() -> None:
    for power in (3, 5, 7, 21, 41):
        for count in (0, 1, 2, 9, 30):
            wanted = sum((2 * i - 1) ** power for i in range(1, count + 1))
            assert sampling.odd_powers(count, power) == wanted


@pytest.mark.parametrize("n", [2, 8, 60])
def test_the_excess_is_enclosed(n: int) -> None:
    """R(k) = -ln(P(k)/P(0)) - 2 k^2/(n + 1), at every number of terms, and more are narrower."""
    for k in range(n // 2 + 1):
        ratio = Fraction(math.comb(n, n // 2 + k), math.comb(n, n // 2))
        wanted = -math.log(ratio) - 2.0 * k * k / (n + 1)
        widths = []
        for terms in (0, 1, 4, 40):
            low, high = sampling._excess(k, n, terms)
            assert float(low) - 1e-12 <= wanted <= float(high) + 1e-12
            widths.append(high - low)
        assert widths == sorted(widths, reverse=True)


def test_a_comparison_that_64_bits_leave_open_is_exact() -> None:
    """Uniforms that begin with the bits of R: those after them decide, as for real numbers."""
    n, k = 1_000_000, 300
    low, high = sampling._excess(k, n, 20)
    assert high - low < Fraction(1, 1 << 240)
    digits = math.floor(low / 4 * (1 << 192))
    for last, below in ((-1, True), (1, False)):
        words = (digits + last).to_bytes(24, "big")
        given = iter([words[i : i + 8] for i in range(0, 24, 8)])
        found = sampling._uniform_below(k, n, 4, lambda size, g=given: next(g))
        assert found is below
        assert not list(given)  # all 192 bits were needed


def test_a_source_draws_the_entries_of_a_node() -> None:
    assert entries(3, (1, 2, 3)) == [1, 1, 1, 3, 2, 3, 2, 2, 3]
    noise = SystemNoise()
    drawn = noise.coins(0, 1, 2, (4, 8, 0)).view(np.int64)
    assert drawn.shape == (5,) and (np.abs(drawn) <= [2, 2, 0, 4, 0]).all()
    with pytest.raises(InputError, match="drawn already"):
        noise.coins(0, 1, 2, (4, 8, 0))
    same = [SeededNoise(3).coins(1, 2, 4, (2**70, 2**72, 2**73)) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    others = [SeededNoise(3).coins(*key, 4, (2**70, 2**72, 2**73)) for key in ((1, 3), (2, 2))]
    assert not any((other == same[0]).any() for other in others)
    normals = SeededNoise(3).node(1, 2, 4)
    stds = np.sqrt(np.array(entries(4, (2**70, 2**72, 2**73)), dtype=np.float64)) / 2.0
    np.testing.assert_allclose(same[0].view(np.int64), stds * normals, rtol=1e-9)


# ---- the lemma -----------------------------------------------------------------------------------


@cache
def probits(n: int) -> np.ndarray:
    """Phi^-1 P(S <= k), k = 0..n - 1, from exact sums."""
    below, total = [], Fraction(0)
    for p in oracle.masses(n)[: n // 2]:
        total += p
        below.append(float(total))
    left = ndtri(np.array(below))
    return np.concatenate([left, -left[::-1]])


@pytest.mark.parametrize("n", [40, 200, 3000])
@pytest.mark.parametrize("tail", [0.4, 1e-2, 1e-6])
@pytest.mark.parametrize("reach", [0, 3])
def test_steps_inside_of_the_window_are_as_short_as_claimed(n, tail, reach) -> None:
    std = effective_std(n, reach, tail)
    if std == 0.0:
        assert n / 2 - math.sqrt(n * math.log(1 / tail) / 2) - reach < 3
        return
    least = round(std * math.sqrt(n))
    assert std == pytest.approx(least / math.sqrt(n), rel=1e-11)
    # x(k) - x(k - 1) for least < k <= n - least - 1.
    inside = np.diff(probits(n)[least : n - least])
    assert inside.size and inside.max() <= 1.0 / std
    # The window leaves out no more than it may.
    assert float(sum(oracle.masses(n)[: least + reach + 1])) <= tail


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("shift", [1, 4])
def test_the_bound_holds_and_gets_tight(n: int, shift: int) -> None:
    """delta of the pair of the lemma is never below the true one."""
    ratios = []
    for epsilon in (0.0, 0.3, 1.0):
        true = oracle.shifted_delta(n, shift, epsilon)
        found = []
        for tail in np.geomspace(1e-12, 0.3, 40).tolist():
            std = effective_std(n, shift, tail)
            if std > 0.0:
                found.append(tail + (1.0 - tail) * delta_of(epsilon, shift / std))
        assert min(found) >= true
        ratios.append(min(found) / max(true, 1e-300))
    assert ratios[0] < (2.0 if n == 100 else 1.6)


def test_the_full_standard_deviation_would_claim_too_much() -> None:
    """Coins have ends: noise of sqrt(n)/2 is not as good as Gaussian noise of the same."""
    n, shift, epsilon = 20, 2, 1.6
    assert oracle.shifted_delta(n, shift, epsilon) > delta_of(epsilon, shift / math.sqrt(n / 4))


def test_many_coins_lose_a_few_units() -> None:
    full = math.sqrt(BIG) / 2.0
    std = effective_std(BIG, 2**37, 1e-12)
    assert 0.0 < full - std < 10.0 + 1e-11 * full
    assert effective_std(BIG + 1, 2**37, 1e-12) == std
    # One coin in a thousand less, and the bound is less by its part.
    fewer = effective_std(BIG * 999 // 1000, 2**37, 1e-12)
    assert fewer / std == pytest.approx(math.sqrt(0.999), rel=1e-9)


def test_too_few_coins_prove_nothing() -> None:
    assert effective_std(0, 0, 0.1) == effective_std(8, 5, 1e-6) == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((-1, 0, 0.1), "trials must be an integer >= 0"),
        ((10, -1, 0.1), "reach must be an integer >= 0"),
        ((10, 0, 0.0), "tail must be > 0 and < 0.5"),
        ((10, 0, 0.5), "tail must be > 0 and < 0.5"),
    ],
)
def test_bad_input_is_one_clear_sentence(given, message) -> None:
    with pytest.raises(InputError, match=message):
        effective_std(*given)
