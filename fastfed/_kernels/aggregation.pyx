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
    """Return the level of the tree node that release k >= 1 completes: index of its lowest 1."""
    return ff_node_level(k)


def touched_levels(int64_t leaf, int64_t releases):
    """Return the levels of the tree nodes that contain a leaf, lowest first."""
    cdef int64_t[64] levels
    cdef int64_t count = ff_touched_levels(leaf, releases, &levels[0])
    return [levels[i] for i in range(count)]


def psum(double[:, ::1] sums, const double[::1] leaf, int64_t level):
    """Set sums[level], in place, to the p-sum of the tree node that this leaf completes."""
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
    """Return a statistic plus noise: its standard deviations times the normals."""
    cdef ff_noise_std std
    std.bias, std.off_diagonal, std.diagonal = bias, off_diagonal, diagonal
    cdef double[::1] out = np.empty(statistic.shape[0])
    ff_add_noise(&statistic[0], &normals[0], &std, d, &out[0])
    return np.asarray(out)


def round_noisy(const double[::1] values, const double[::1] noise, const double[::1] std,
                const double[::1] grid, double error):
    """Return values + std noise, rounded to the grid, and a list of the entries whose rounding is
    not certain."""
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
    """Replace ``estimate``, the estimate of one child, by Honaker's estimate of a node, in place.

    node: the noise of the node; sibling: the estimate of the other child.
    """
    ff_honaker(&estimate[0], &node[0], &sibling[0], level, estimate.shape[0])


def honaker_number(int64_t k):
    """Return the number of the level-0 node that Honaker's tree releases at k."""
    return ff_honaker_number(k)


def buffered(const double[::1] z, const double[::1] coefficients, double[:, ::1] buffers):
    """Return the noise of the next prefix (s,) from buffers (q, s), which are updated."""
    cdef double[::1] out = np.empty(z.shape[0])
    ff_buffered(&z[0], &coefficients[0], coefficients.shape[0] // 2, z.shape[0],
                &buffers[0, 0] if buffers.shape[0] else NULL, &out[0])
    return np.asarray(out)


def buffered_column(const double[::1] coefficients, int64_t n):
    """Return the first n coefficients of 1 / ((1 - x) b(x)), b the power series of `buffered`."""
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
    """Round a point's entries at random to fixed point, subtract g, and add them to sums."""
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
