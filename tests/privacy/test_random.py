"""Keyed randomness: known answers, distributions, and independence of neighbouring streams.

Every statistical test here has a fixed seed, so it passes or fails for ever, and was allowed a
false alarm of ALARM before it was first run: some four hundred checks, 4e-4 for the file. The one
exception draws from the operating system and fails by chance once in 10^9 runs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import twins
from problems import ordinary_cases
from scipy import stats
from twins import compiled, random

from fastfed import _random
from fastfed._random import SeededNoise, SystemNoise
from fastfed._validate import InputError

ALARM = 1e-6
Z = float(stats.norm.isf(ALARM / 2.0))
BOTH = pytest.mark.parametrize("draw", [compiled.normals_f32, compiled.normals_f64])


# ---- known answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter, key, words):
    """The vectors for philox4x32-10 of Random123 (Salmon et al. 2011)."""
    c, k, w = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert twins.philox_block(np.array(c), (k[0], k[1])).tolist() == w


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 17, 2**63 - 1])
def test_streams_are_philox_of_key_and_counter(seed):
    key = twins.stream_key(seed, 3)
    for block in (0, 1, 2**32 - 1):
        for replicate, silo, index in ((0, 0, 0), (7, 8, 9), (2**32 - 1, 2**32 - 1, 2**32 - 1)):
            words = twins.philox_block(np.array([block, index, silo, replicate]), key)
            assert (
                compiled.philox(seed, 3, replicate, silo, index, block).tolist() == words.tolist()
            )


def test_keys_are_splitmix64():
    """Check its first output from state 0."""
    assert random._mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_xoshiro_known_answers():
    """The first words of xoshiro128++ from the state (1, 2, 3, 4)."""
    words = random._xoshiro(np.array([[1], [2], [3], [4]], np.uint32), 10)[:, 0]
    assert words.tolist() == [
        *(641, 1573767, 3222811527, 3517856514, 836907274),
        *(4247214768, 3867114732, 1355841295, 495546011, 621204420),
    ]


def test_purposes_are_distinct_and_their_keys_too():
    purposes = [
        getattr(_random, name)
        for name in ("CONTEXT", "REWARD", "BIAS_NOISE", "COV_NOISE", "INSTANCE", "PERMUTATION")
    ]
    assert purposes == [1, 2, 3, 4, 5, 6]
    keys = {twins.stream_key(seed, p) for seed in range(2000) for p in purposes}
    assert len(keys) == 2000 * len(purposes)


# ---- the distribution of one stream -------------------------------------------------------------


def long_stream(draw, n=2_000_000):
    """Return n numbers of one stream."""
    return draw(20, 1, 0, 0, 0, n).astype(np.float64)


@BOTH
def test_draws_have_their_moments(draw):
    """Mean, variance, skewness, kurtosis: each estimate is nearly normal around its value."""
    x = long_stream(draw)
    moment = np.ones_like(x)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        moment *= x
        assert abs(moment.mean() - mean) < Z * math.sqrt(variance / len(x)), power


@BOTH
def test_draws_are_normal(draw):
    assert stats.kstest(long_stream(draw), stats.norm.cdf).pvalue > ALARM


@BOTH
def test_draws_have_normal_tails(draw):
    x = long_stream(draw, 4_000_000)
    for threshold in (2.5, 3.0, 3.5, 4.0, 4.5):
        for side in (x, -x):
            count = int(np.sum(side > threshold))
            p = float(stats.norm.sf(threshold))
            assert stats.binomtest(count, len(x), p).pvalue > ALARM, threshold
    # The least uniforms are 2^-25 and 2^-54: no normal is larger than these.
    bits = 25 if draw is compiled.normals_f32 else 54
    assert np.abs(x).max() <= math.sqrt(2.0 * bits * math.log(2.0)) * (1.0 + 1e-6)


@BOTH
def test_the_two_halves_of_box_muller_are_uncorrelated(draw):
    """Check cosines and sines, which share a radius: values, squares and signs."""
    n = 1 << 20
    x = long_stream(draw, n)
    if draw is compiled.normals_f32:  # cosines and sines lie in alternating runs of sixteen
        a, b = x.reshape(-1, 2, 16)[:, 0].ravel(), x.reshape(-1, 2, 16)[:, 1].ravel()
    else:
        a, b = x[: n // 2], x[n // 2 :]
    for f in (np.asarray, np.square, np.sign, np.abs):
        assert abs(np.corrcoef(f(a), f(b))[0, 1]) < Z / math.sqrt(n // 2)
    angle = np.arctan2(b, a) / (2.0 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > ALARM
    assert stats.kstest((a * a + b * b) / 2.0, "expon").pvalue > ALARM


@BOTH
def test_draws_of_a_stream_are_uncorrelated(draw):
    x = long_stream(draw)
    for f in (np.asarray, np.square):
        y = f(x)
        for lag in (1, 2, 15, 16, 17, 32, 64, 1000):
            assert abs(np.corrcoef(y[lag:], y[:-lag])[0, 1]) < Z / math.sqrt(len(y) - lag), lag


def test_private_noise_has_53_random_bits():
    """The last bit of the uniform behind a draw is as random as the first."""
    u = np.array([compiled.uniform(4, 2, 0, 0, i) for i in range(40_000)])
    assert u.min() > 0.0 and u.max() <= 1.0
    assert stats.kstest(u, "uniform").pvalue > ALARM
    numbers = (u[u < 0.5] * 2.0**54).astype(np.int64)
    assert (numbers % 2 == 1).all()  # (a + 1/2) 2^-53
    for bit in range(1, 53):
        ones = int(np.sum(numbers >> bit & 1))
        assert stats.binomtest(ones, len(numbers)).pvalue > ALARM, bit


@pytest.mark.parametrize("d", [2, *(pytest.param(d, marks=pytest.mark.slow) for d in (3, 10))])
@BOTH
def test_directions_are_uniform(draw, d):
    """<u, e>^2 of a uniform direction is Beta(1/2, (d - 1)/2), whatever e is."""
    x = long_stream(draw, 300_000 * d).reshape(-1, d)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    axes = [*np.eye(d)[: min(d, 3)], np.full(d, d**-0.5)]
    for e in axes:
        assert stats.kstest((u @ e) ** 2, stats.beta(0.5, (d - 1) / 2.0).cdf).pvalue > ALARM
        assert abs(np.sign(u @ e).mean()) < Z / math.sqrt(len(u))


# ---- neighbouring streams -----------------------------------------------------------------------

PARTS = ("seed", "purpose", "replicate", "silo", "index")


def neighbours(draw, part, streams, n):
    """Return streams (streams, n) whose keys differ in one part only, by one each."""
    base = [100, 1, 5, 6, 7]
    rows = []
    for k in range(streams):
        key = list(base)
        key[PARTS.index(part)] += k
        rows.append(draw(*key, n))
    return np.array(rows, np.float64)


@BOTH
@pytest.mark.parametrize("part", PARTS)
def test_neighbouring_streams_are_independent(draw, part):
    x = neighbours(draw, part, 400, 1024)
    for f in (np.asarray, np.square):
        y = f(x)
        y = (y - y.mean(axis=1, keepdims=True)) / y.std(axis=1, keepdims=True)
        for gap in (1, 2, 16):
            # All pairs this far apart, and any one of them.
            pairs = np.mean(y[gap:] * y[:-gap], axis=1) * math.sqrt(y.shape[1])
            assert abs(pairs.mean()) * math.sqrt(len(pairs)) < Z
            assert np.abs(pairs).max() < stats.norm.isf(ALARM / (2 * len(pairs))) * 1.1
        # The same place in all streams.
        places = y.mean(axis=0) * math.sqrt(len(y))
        assert np.abs(places).max() < stats.norm.isf(ALARM / (2 * y.shape[1])) * 1.1


@BOTH
@pytest.mark.parametrize("part", ordinary_cases(PARTS, lambda part: part in ("seed", "index")))
def test_the_first_draws_of_neighbouring_streams_are_normal(draw, part):
    x = neighbours(draw, part, 20_000, 2)
    for column in x.T:
        assert stats.kstest(column, stats.norm.cdf).pvalue > ALARM


def test_no_two_streams_share_a_block():
    """Compare the first two blocks of 400 neighbouring streams of every kind."""
    blocks = []
    for part in PARTS:
        for k in range(1, 400):
            key = [100, 1, 5, 6, 7]
            key[PARTS.index(part)] += k
            blocks += [compiled.philox(*key, block).tobytes() for block in (0, 1)]
    assert len(set(blocks)) == len(blocks)


# ---- integers and permutations ------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 10, 37])
def test_uniform_int_is_uniform(n):
    counts = np.bincount(
        [compiled.uniform_int(3, 1, 0, 0, i, n) for i in range(n * 2000)], minlength=n
    )
    assert len(counts) == n and stats.chisquare(counts).pvalue > ALARM


def test_below_has_no_modulo_bias():
    """n = 3 2^30: w mod n would give the first third of the range half of the draws."""
    n = 3 * 2**30 // 2
    draws = np.array([compiled.uniform_int(5, 1, 0, 0, i, n) for i in range(60_000)])
    assert stats.chisquare(np.bincount(draws * 12 // n, minlength=12)).pvalue > ALARM


def test_permutations_are_uniform():
    """Count all 24 orders of four, and every value in every place of eleven."""
    orders = [tuple(compiled.permutation(8, 6, 0, s, 0, 4)) for s in range(24_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > ALARM
    draws = np.array([compiled.permutation(8, 6, 1, s, 0, 11) for s in range(11_000)])
    assert (np.sort(draws, axis=1) == np.arange(11)).all()
    for position in range(11):
        assert stats.chisquare(np.bincount(draws[:, position], minlength=11)).pvalue > ALARM


# ---- where noise comes from ---------------------------------------------------------------------


def test_noise_of_the_operating_system_is_normal_and_never_repeats():
    source = SystemNoise()
    x = source.node(0, 1, 446)
    assert x.shape == (446 + 446 * 447 // 2,) and len(np.unique(x)) == len(x)
    assert stats.kstest(x, stats.norm.cdf).pvalue > 1e-9
    assert source.node(0, 2, 1).shape == (2,)
    assert source.trigger(0, 1, 1).shape == (1,)
    assert not np.isin(source.node(0, 3, 9), x).any()


def test_a_node_of_system_noise_is_drawn_once():
    """Refuse a second draw: two systems could cancel each other's noise with it."""
    noise = SystemNoise()
    first = noise.node(3, 7, 4)
    assert first.shape == (14,)
    for silo, node in ((3, 8), (4, 7)):
        assert not np.isin(noise.node(silo, node, 4), first).any()
    assert not np.isin(SystemNoise().node(3, 7, 4), first).any()
    with pytest.raises(InputError, match="noise of node 7 of silo 3 was drawn already"):
        noise.node(3, 7, 4)


def test_seeded_noise_is_a_function_of_its_key():
    x = SeededNoise(5, 2).node(3, 7, 4)
    assert np.array_equal(x, SeededNoise(5, 2).node(3, 7, 4))
    for other in (SeededNoise(6, 2).node(3, 7, 4), SeededNoise(5, 3).node(3, 7, 4),
                  SeededNoise(5, 2).node(4, 7, 4), SeededNoise(5, 2).node(3, 8, 4)):  # fmt: skip
        assert not np.isin(other, x).any()
    # The two streams of a node differ, and so does noise from contexts and rewards.
    assert np.array_equal(x[:4], compiled.normals_f64(5, _random.BIAS_NOISE, 2, 3, 7, 4))
    assert np.array_equal(x[4:], compiled.normals_f64(5, _random.COV_NOISE, 2, 3, 7, 10))


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1"])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InputError, match="seed must be an integer"):
        SeededNoise(seed)
