# cython: language_level=3
"""Keyed random streams: every draw is a function of (seed, purpose, replicate, silo, index).

Thin wrappers that do not check their arguments; see ``src/ff_random.h`` and ``src/ff_bits.h``.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import numpy as np

from fastfed._kernels.headers cimport *


def philox(seed, purpose, replicate, silo, index, block):
    """Return the four 32-bit words of one block of a stream."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef uint32_t[::1] out = np.empty(4, np.uint32)
    ff_philox(&s, block, &out[0])
    return np.asarray(out)


def key(seed, purpose, replicate, silo, index):
    """Return 64 uniform bits of a stream."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_key(&s)


def normals_f32(seed, purpose, replicate, silo, index, int64_t n):
    """Draw n standard normals in float32, for contexts."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef float[::1] out = np.empty(max(1, ff_normal_capacity_f32(n)), np.float32)
    ff_normals_f32(&s, n, &out[0])
    return np.asarray(out)[:n]


def normals_f64(seed, purpose, replicate, silo, index, int64_t n):
    """Draw n standard normals in float64, with all bits from Philox."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, ff_normal_capacity_f64(n)))
    ff_normals_f64(&s, n, &out[0])
    return np.asarray(out)[:n]


def normals_from_bits(const uint64_t[::1] a, const uint64_t[::1] b):
    """Return standard normals (2 half,) from 53-bit integers a and b (half,) by Box-Muller."""
    cdef int64_t half = a.shape[0]
    cdef double[::1] out = np.empty(2 * half)
    if half:
        ff_normals_from_bits(&a[0], &b[0], half, &out[0])
    return np.asarray(out)


def uniform(seed, purpose, replicate, silo, index):
    """Draw a uniform number with 53 bits, never 0."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_uniform(&s, 0)


def uniform_int(seed, purpose, replicate, silo, index, int64_t n):
    """Draw a uniform integer in [0, n), n < 2^31."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_uniform_int(&s, n)


def permutation(seed, purpose, replicate, silo, index, int64_t n):
    """Draw a uniformly random permutation of 0..n-1."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef int64_t[::1] out = np.empty(max(1, n), np.int64)
    ff_permutation(&s, n, &out[0])
    return np.asarray(out)[:n]


def permutation_rows(seed, purpose, replicate, int64_t silos, index, int64_t n, int64_t used):
    """Return the first ``used`` entries of permutation() for silos 0..silos-1, (silos, used)."""
    cdef ff_stream s
    cdef int64_t[::1] drawn = np.empty(max(1, n), np.int64)
    cdef int64_t[:, ::1] out = np.empty((silos, used), np.int64)
    cdef int64_t i
    for i in range(silos):
        s = ff_stream_open(seed, purpose, replicate, i, index)
        ff_permutation(&s, n, &drawn[0])
        out[i] = drawn[:used]
        PyErr_CheckSignals()  # many clients take long, and Ctrl-C must work
    return np.asarray(out)


def random_u32(seed, purpose, replicate, silo, index, int64_t n):
    """Draw n uniform integers of 32 bits."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef uint32_t[::1] out = np.empty(max(1, ff_random_u32_capacity(n)), np.uint32)
    ff_random_u32(&s, n, &out[0])
    return np.asarray(out)[:n]


def laplace(seed, purpose, replicate, silo, index, int64_t n):
    """Draw n numbers from the standard Laplace distribution."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, ff_laplace_capacity(n)))
    ff_laplace(&s, n, &out[0])
    return np.asarray(out)[:n]


def laplace_rows(seed, purpose, replicate, int64_t silos, index, int64_t n):
    """Return laplace() for silos 0..silos-1, (silos, n)."""
    cdef ff_stream s
    cdef double[::1] drawn = np.empty(max(1, ff_laplace_capacity(n)))
    cdef double[:, ::1] out = np.empty((silos, n))
    cdef int64_t i
    for i in range(silos):
        s = ff_stream_open(seed, purpose, replicate, i, index)
        ff_laplace(&s, n, &drawn[0])
        if n:
            out[i] = drawn[:n]
    return np.asarray(out)


def laplace_from_bits(const uint64_t[::1] bits):
    """Return Laplace draws (n,) from 53-bit integers (n,)."""
    cdef double[::1] out = np.empty(max(1, bits.shape[0]))
    if bits.shape[0]:
        ff_laplace_from_bits(&bits[0], bits.shape[0], &out[0])
    return np.asarray(out)[: bits.shape[0]]


def ideal_normals(const uint64_t[::1] words):
    """Return (normals, unsure) from 64-bit words (n,), n even: normals (n,) by Box-Muller, and the
    number of radii that need more than 64 bits. The first n / 2 words give the radii, the others
    the angles."""
    cdef int64_t half = words.shape[0] // 2
    cdef double[::1] out = np.empty(2 * half)
    if half == 0:
        return np.asarray(out), 0
    cdef int64_t unsure = ff_ideal_normals(&words[0], half, &out[0])
    return np.asarray(out), unsure


def ideal_laplace(const uint64_t[::1] words):
    """Return (draws, unsure) from 64-bit words (n,): Laplace draws (n,), and the number of draws
    that need more than 64 bits."""
    cdef double[::1] out = np.empty(words.shape[0])
    if words.shape[0] == 0:
        return np.asarray(out), 0
    cdef int64_t unsure = ff_ideal_laplace(&words[0], words.shape[0], &out[0])
    return np.asarray(out), unsure


def node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d):
    """Draw the standard normals (s,) of a silo's noise for tree node (or release) ``node``: one for
    each of the s = d + d (d + 1) / 2 entries of a statistic."""
    cdef double[::1] out = np.empty(ff_noise_capacity(d))
    ff_node_normals(seed, replicate, silo, node, d, &out[0])
    return np.asarray(out)[:d + d * (d + 1) // 2]


def sum_normals(uint64_t seed, int64_t replicate, int64_t silos, int64_t node, int64_t d):
    """Draw the standard normals (s,) that stand for the sum of all silos' noises for tree node (or
    release) ``node``; s = d + d (d + 1) / 2. They are drawn once, not for each silo."""
    cdef double[::1] out = np.empty(ff_noise_capacity(d))
    ff_sum_normals(seed, replicate, silos, node, d, &out[0])
    return np.asarray(out)[:d + d * (d + 1) // 2]


def binomials(seed, purpose, replicate, silo, index, int64_t n, int64_t count):
    """Draw ``count`` independent numbers from Bin(n, 1/4) - n / 4."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, count))
    ff_binomials(&s, n, count, &out[0])
    return np.asarray(out)[:count]


def binomials_from_words(const uint32_t[:, ::1] random, int64_t n):
    """Draw from Bin(n, 1/4) - n / 4 by rejection: one try for each row of ``random``, which holds
    the four 32-bit words of that try. Returns the draws; NaN where the try is rejected."""
    cdef int64_t j
    cdef double[::1] out = np.full(max(1, random.shape[0]), np.nan)
    cdef double drawn
    for j in range(random.shape[0]):
        if ff_binomial_try(&random[j, 0], n, &drawn):
            out[j] = drawn
    return np.asarray(out)[:random.shape[0]]


def shuffle_bits(seed, purpose, replicate, silo, index, uint8_t[::1] bits):
    """Permute the bits uniformly at random, in place."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    if bits.shape[0]:
        ff_shuffle_bits(&s, &bits[0], bits.shape[0])
