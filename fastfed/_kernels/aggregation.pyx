# cython: language_level=3
"""Sums of statistics as protocols release them: tree nodes, prefix sums, noise, fixed-point bits.

A statistic is (bias (d,), packed covariance (d (d + 1) / 2,)). Thin wrappers that do not check
their arguments; see ``src/ff_aggregation.h``, ``src/ff_release.h`` and ``src/ff_bits.h``.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy as np

from fastfed._kernels.headers cimport *


# ---- sums, trees and noise -----------------------------------------------------------------------

def node_level(int64_t k):
    """Return the level of the largest tree node that release k >= 1 completes.

    It is the index of the lowest 1 in the binary representation of k.
    """
    return ff_node_level(k)


def touched_levels(int64_t leaf, int64_t releases):
    """Return the levels of the tree nodes that contain a leaf, lowest first."""
    cdef int64_t[64] levels
    cdef int64_t count = ff_touched_levels(leaf, releases, &levels[0])
    return [levels[i] for i in range(count)]


def psum(double[:, ::1] sums, const double[::1] leaf, int64_t level):
    """Set sums[level], in place, to the sum over all leaves of the node that this leaf completes.

    level: the level of the node. Its sum (p-sum) is sums[0] + ... + sums[level - 1] + leaf.
    """
    ff_psum(&sums[0, 0], &leaf[0], level, leaf.shape[0])


def prefix(const double[:, ::1] nodes, int64_t k):
    """Return the sum of nodes[j] over the set bits j of k, lowest first."""
    cdef double[::1] out = np.empty(nodes.shape[1])
    ff_prefix(&nodes[0, 0], k, nodes.shape[1], &out[0])
    return np.asarray(out)


def add(double[::1] into, const double[::1] other):
    """Add `other` to `into`, in place."""
    ff_add(&into[0], &other[0], into.shape[0])


def scale(const double[::1] statistic, double factor):
    """Return factor times a statistic."""
    cdef double[::1] out = np.empty(statistic.shape[0])
    ff_scale(&statistic[0], factor, statistic.shape[0], &out[0])
    return np.asarray(out)


def add_noise(const double[::1] statistic, const double[::1] normals, int64_t d, double bias,
              double off_diagonal, double diagonal):
    """Return a statistic plus noise: in each entry, a standard normal times a standard deviation.

    bias, off_diagonal, diagonal: the standard deviations of the noise of bias entries, and of
    off-diagonal and diagonal covariance entries.
    """
    cdef ff_noise_std std
    std.bias, std.off_diagonal, std.diagonal = bias, off_diagonal, diagonal
    cdef double[::1] out = np.empty(statistic.shape[0])
    ff_add_noise(&statistic[0], &normals[0], &std, d, &out[0])
    return np.asarray(out)


def round_noisy(const double[::1] values, const double[::1] noise, const double[::1] std,
                const double[::1] grid, double error):
    """Return values + std noise, rounded to multiples of grid, and a list of doubtful entries.

    Each entry of noise has an error of at most ``error``. The list has the indices of the entries
    for which this error may change the rounding.
    """
    cdef int64_t s = values.shape[0]
    cdef double[::1] out = np.empty(s)
    cdef uint8_t[::1] doubtful = np.empty(s, dtype=np.uint8)
    if s == 0 or not ff_round_noisy(&values[0], &noise[0], &std[0], &grid[0], error, s, &out[0],
                                    &doubtful[0]):
        return np.asarray(out), []
    return np.asarray(out), np.flatnonzero(np.asarray(doubtful)).tolist()


# ---- noise of prefixes ---------------------------------------------------------------------------

def honaker(double[::1] estimate, const double[::1] node, const double[::1] sibling,
            int64_t level):
    """Compute Honaker's estimate of the noise of a node from its draw and its children's estimates.

    estimate: the estimate of one child, replaced by that of the node; sibling: the estimate of the
    other child; node: the draw of the node; level: the level of the node, at least 1.
    """
    ff_honaker(&estimate[0], &node[0], &sibling[0], level, estimate.shape[0])


def honaker_number(int64_t k):
    """Return the number of leaf k, the node of level 0 that release k adds to Honaker's tree.

    Nodes are numbered from 1 in the order in which they are completed; the node of level j that
    release k completes has the number of leaf k plus j.
    """
    return ff_honaker_number(k)


def buffered(const double[::1] z, const double[::1] coefficients, double[:, ::1] buffers):
    """Return the noise of the next prefix (s,) from its new draw z (s,) and buffers (q, s).

    Each buffer is updated to its decay times itself plus z. The noise is w_0 z plus the weighted
    sum of the updated buffers. coefficients: w_0, then decay and weight of each buffer.
    """
    cdef double[::1] out = np.empty(z.shape[0])
    ff_buffered(&z[0], &coefficients[0], coefficients.shape[0] // 2, z.shape[0],
                &buffers[0, 0] if buffers.shape[0] else NULL, &out[0])
    return np.asarray(out)


def buffered_column(const double[::1] coefficients, int64_t n):
    """Return the first n coefficients of the power series 1 / ((1 - x) b(x)).

    b has the coefficients b_j for which `buffered`, with the same ``coefficients``, returns
    sum_j b_j z_(k - j) at prefix k, where z_k is the draw of prefix k.
    """
    cdef double[::1] out = np.empty(max(1, n)), state = np.empty(max(1, coefficients.shape[0]))
    ff_buffered_column(&coefficients[0], coefficients.shape[0] // 2, n, &state[0], &out[0])
    return np.asarray(out)[:n]


def toeplitz(const double[:, ::1] history, const double[::1] f, int64_t k):
    """Return the noise of prefix k (s,): the sum of f[k - 1 - i] times row i < k of history, whose
    rows are draws."""
    cdef double[::1] out = np.zeros(history.shape[1])
    ff_add_weighted(&history[0, 0], &f[k - 1], -1, k, history.shape[1], &out[0])
    return np.asarray(out)


def weighted_sum(const double[:, ::1] rows, const double[::1] weights):
    """Return the sum of weights[i] rows[i] (s,), over as many rows as there are weights."""
    cdef double[::1] out = np.zeros(rows.shape[1])
    ff_add_weighted(&rows[0, 0], &weights[0], 1, weights.shape[0], rows.shape[1], &out[0])
    return np.asarray(out)


# ---- fixed point and bits ------------------------------------------------------------------------

def round_point(const double[::1] point, double g, bint clamped, const uint32_t[::1] random,
                double[::1] sums):
    """For each entry x of a point, round (x + 1) g at random and add the result minus g to sums.

    The result is a whole number, in 0..2g if ``clamped``.
    """
    ff_round_point(&point[0], point.shape[0], g, clamped, &random[0], &sums[0])


def round_points(const double[:, ::1] points, double g, bint clamped,
                 const uint32_t[:, ::1] random, double[::1] sums):
    """Call ``round_point`` for each row."""
    cdef int64_t i
    for i in range(points.shape[0]):
        ff_round_point(&points[i, 0], points.shape[1], g, clamped, &random[i, 0], &sums[0])


def encode_bits(const int64_t[::1] ones, int64_t length):
    """Return messages (entries, length): ones[j] ones, then zeros, one bit in each byte."""
    cdef int64_t j
    cdef uint8_t[:, ::1] out = np.empty((ones.shape[0], length), np.uint8)
    for j in range(ones.shape[0] if length else 0):
        ff_encode_bits(ones[j], length, &out[j, 0])
    return np.asarray(out)
