"""Compare compiled rounding, binomial noise and bit messages with readable twins and with their
distributions.

The tests of distributions have fixed seeds. Each chi-square test has a false alarm once in 10^5.
"""

from __future__ import annotations

import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from twins import compiled

from fastfed._random import system_binomials

FALSE_ALARM = 1e-5
SEED = st.integers(0, 2**63 - 1)
WORD = st.integers(0, 2**32 - 1)


def repeated(examples=60):
    """Return settings of hypothesis: always the same examples, without a deadline."""
    return settings(max_examples=examples, deadline=None, derandomize=True)


@repeated()
@given(SEED, st.integers(1, 90), WORD, WORD, WORD, st.integers(0, 300))
def test_random_words_equal_their_twin(seed, purpose, replicate, silo, index, n):
    key = seed, purpose, replicate, silo, index, n
    assert np.array_equal(compiled.random_u32(*key), twins.random_u32(*key))


@repeated()
@given(st.integers(1, 5000), st.integers(0, 5000))
def test_touched_levels_are_the_nodes_that_contain_a_leaf(leaf, releases):
    levels = compiled.touched_levels(leaf, releases)
    assert levels == twins.touched_levels(leaf, releases)
    nodes_with_leaf = [k for k in range(1, releases + 1) if k - (k & -k) < leaf <= k]
    assert levels == [(k & -k).bit_length() - 1 for k in nodes_with_leaf]


@repeated()
@given(SEED, st.integers(1, 200), st.integers(1, 10**6), st.booleans(), st.floats(0.0, 3.0))
def test_rounding_equals_its_twin(seed, s, g, clamped, size):
    rng = np.random.default_rng(seed)
    point = rng.uniform(-size, size, size=s)
    words = rng.integers(0, 2**32, size=s, dtype=np.uint32)
    rounded, twin_rounded = np.zeros(s), np.zeros(s)
    compiled.round_point(point, g, clamped, words, rounded)
    twins.round_point(point, g, clamped, words, twin_rounded)
    assert np.array_equal(rounded, twin_rounded)
    assert np.array_equal(rounded, np.rint(rounded))
    if clamped:
        assert np.abs(rounded).max() <= g
        point = np.clip(point, -1.0, 1.0)
    assert np.abs(rounded - point * g).max() <= 1.0 + 1e-6


def test_rounding_of_many_points_equals_rounding_of_each():
    rng = np.random.default_rng(4)
    points = rng.uniform(-1, 1, size=(7, 5))
    words = rng.integers(0, 2**32, size=(7, 5), dtype=np.uint32)
    sums = [np.zeros(5) for _ in range(3)]
    compiled.round_points(points, 20, True, words, sums[0])
    twins.round_points(points, 20, True, words, sums[1])
    for point, row in zip(points, words, strict=True):
        compiled.round_point(point, 20, True, row, sums[2])
    assert np.array_equal(sums[0], sums[1]) and np.array_equal(sums[0], sums[2])


def test_rounding_at_the_limits_stays_within_the_message():
    point = np.array([1.0, 1.0 + 2e-16, -1.0, -1.0 - 2e-16] * 500)
    sums = np.zeros(2000)
    compiled.round_point(point, 1e6, True, np.zeros(2000, np.uint32), sums)
    assert sums.max() == 1e6 and sums.min() == -1e6


def test_rounding_is_unbiased_for_every_fraction():
    # Use every word of a grid once: the mean over the grid is the fraction to 2^-12.
    fractions = np.linspace(0.0, 1.0, 97)[:-1]
    words = (np.arange(4096, dtype=np.uint64) * 2**20).astype(np.uint32)
    for fraction in fractions:
        sums = np.zeros(4096)
        compiled.round_point(np.full(4096, (3.0 + fraction) / 10.0 - 1.0), 10.0, True, words, sums)
        assert abs(sums.mean() + 10.0 - 3.0 - fraction) <= 2.0**-12 + 1e-9


@repeated(40)
@given(SEED, WORD, WORD, st.integers(0, 3000))
def test_binomials_equal_their_twin(seed, silo, node, n):
    key = seed, 8, 0, silo, node, n, 12
    assert np.array_equal(compiled.binomials(*key), twins.binomials(*key))


@pytest.mark.parametrize("n", [10**6 + 1, 10**9 + 2, 10**14 + 3, 2**61])
def test_large_binomials_equal_their_twin(n):
    key = 5, 8, 1, 2, 3, n, 40
    draws, twin_draws = compiled.binomials(*key), twins.binomials(*key)
    assert np.array_equal(draws, twin_draws)
    assert np.abs(draws).max() < 8 * np.sqrt(0.1875 * n)
    assert np.array_equal((4 * draws) % 4, (-n % 4) * np.ones(40))


def chi_square(counts, probabilities):
    """Return the p-value after pooling cells with fewer than 10 expected draws."""
    expected = probabilities * counts.sum()
    small = expected < 10.0
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < 1.0:
        counts, expected = counts[:-1], expected[:-1] / expected[:-1].sum() * counts[:-1].sum()
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("n", [1, 2, 3, 7, 39, 40, 41, 42, 43, 64, 200, 1001])
def test_binomials_have_their_distribution(n):
    """Check both sides of the change of method at n = 40, with every remainder of n by 4."""
    draws = compiled.binomials(77, 8, 0, 0, n, n, 200_000) + n / 4
    counts = np.bincount(np.rint(draws).astype(int), minlength=n + 1)
    assert chi_square(counts, stats.binom.pmf(np.arange(n + 1), n, 0.25)) > FALSE_ALARM


@pytest.mark.parametrize("n", [119_300, 3 * 10**7, 10**12 + 3])
def test_large_binomials_have_their_distribution(n):
    draws = compiled.binomials(78, 8, 0, 0, 1, n, 200_000)
    edges = np.sqrt(0.1875 * n) * np.linspace(-4.0, 4.0, 81)
    cdf = np.concatenate([[0.0], stats.binom.cdf(np.floor(edges + n / 4), n, 0.25), [1.0]])
    counts = np.histogram(draws, np.concatenate([[-np.inf], np.floor(edges + n / 4) - n / 4 + 0.5,
                                                 [np.inf]]))[0]  # fmt: skip
    assert chi_square(counts, np.diff(cdf)) > FALSE_ALARM


def test_chi_square_test_detects_a_wrong_binomial():
    draws = compiled.binomials(77, 8, 0, 0, 200, 201, 200_000) + 201 / 4
    counts = np.bincount(np.rint(draws).astype(int), minlength=201)[:201]
    assert chi_square(counts, stats.binom.pmf(np.arange(201), 200, 0.25)) < FALSE_ALARM


def test_binomials_of_the_operating_system_have_their_distribution():
    draws = np.rint(system_binomials(20_000, 60) + 15).astype(int)
    assert chi_square(np.bincount(draws, minlength=61), stats.binom.pmf(np.arange(61), 60, 0.25))
    words = np.zeros((2, 4), np.uint32)
    assert np.array_equal(
        compiled.binomials_from_words(words, 60), twins.binomials_from_words(words, 60), True
    )


@repeated()
@given(SEED, st.integers(1, 8), st.integers(0, 70))
def test_messages_contain_their_ones(seed, entries, length):
    counts_of_ones = np.random.default_rng(seed).integers(0, length + 1, size=entries)
    bits = compiled.encode_bits(counts_of_ones, length)
    assert np.array_equal(bits, twins.encode_bits(counts_of_ones, length))
    assert bits.shape == (entries, length) and np.array_equal(bits.sum(axis=1), counts_of_ones)


@repeated(30)
@given(SEED, WORD, st.integers(0, 200))
def test_shuffles_equal_their_twin(seed, index, n):
    bits = (np.arange(n) % 3 == 0).astype(np.uint8)
    shuffled, twin_shuffled = bits.copy(), bits.copy()
    compiled.shuffle_bits(seed, 9, 0, 1, index, shuffled)
    twins.shuffle_bits(seed, 9, 0, 1, index, twin_shuffled)
    assert np.array_equal(shuffled, twin_shuffled)
    assert shuffled.sum() == bits.sum()


def test_every_order_is_equally_likely():
    """Obtain a permutation of 0..4 from five shuffles of one bit with the same key."""
    orders: dict[bytes, int] = {}
    for index in range(12_000):
        places = []
        for j in range(5):
            bits = np.zeros(5, np.uint8)
            bits[j] = 1
            compiled.shuffle_bits(3, 9, 0, 1, index, bits)
            places.append(int(bits.argmax()))
        assert sorted(places) == list(range(5))
        orders[bytes(places)] = orders.get(bytes(places), 0) + 1
    assert len(orders) == 120
    assert stats.chisquare(list(orders.values())).pvalue > FALSE_ALARM
