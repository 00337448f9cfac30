# cython: language_level=3
"""Segments of rounds of experts' systems (``src/ff_experts.h``).

Thin wrappers that do not check their arguments. ``sums`` (n, d) are the losses of every expert at
all clients in n segments of rounds, in whole units. Messages are exchanged before segment i if
``asks[i]`` is 1. ``lost`` (d,) is what every expert lost before the first segment, and on return
what it lost before the last segment.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

from fastfed._kernels.headers cimport *


def total(const double[::1] values):
    """Return the sum of values (n,), in the order of NumPy's sum."""
    return ff_pairwise(&values[0], values.shape[0]) if values.shape[0] else 0.0


def follow(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost, int64_t expert):
    """Return (the expert of each segment (n,) by follow the leader, number of changes)."""
    cdef int64_t n = sums.shape[0], switches
    cdef int64_t[::1] chosen = np.empty(n, np.int64)
    with nogil:
        switches = ff_follow(&sums[0, 0], &asks[0], n, sums.shape[1], &lost[0], &expert,
                             &chosen[0])
    return np.asarray(chosen), switches


def hedge(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost, double unit,
          double silos, double rate, double[:, ::1] rows):
    """Write the exponents of Hedge after each exchange to rows (exchanges, d).

    An exponent is rate times the mean loss for each client of an expert, minus that of the best
    expert. ``sums`` (segments, d) are the losses of the d experts in each segment of rounds, added
    up over silos, in multiples of ``unit``. An exchange precedes each segment whose ``asks`` is 1.
    ``lost`` (d,) are the losses before the first segment, and on return those before the last one.
    """
    with nogil:
        ff_hedge(&sums[0, 0], &asks[0], sums.shape[0], sums.shape[1], &lost[0], unit, silos, rate,
                 &rows[0, 0] if rows.shape[0] else NULL)


def hedge_exponents(int64_t first, double[::1] exponents, double unit, double silos, double rate):
    """Write exponents (n,): rate times the loss per client, for losses that exceed that of the best
    expert by first, first + 1, .. units."""
    if exponents.shape[0]:
        with nogil:
            ff_hedge_exponents(first, exponents.shape[0], unit, silos, rate, &exponents[0])


def hedge_spread(const int64_t[:, ::1] sums, const int64_t[::1] lost):
    """Return an upper bound on the loss of any expert minus that of the best expert, in loss units.

    It holds at the start of every segment of rounds. ``sums`` (segments, experts) are the losses in
    each segment, and ``lost`` (experts,) are those before the first segment.
    """
    return ff_hedge_spread(&sums[0, 0], sums.shape[0], sums.shape[1], &lost[0])


def hedge_weights(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost,
                  const double[::1] table, double[:, ::1] rows):
    """Write the weights after each exchange to rows (exchanges, d). ``table[j]`` is the exponential
    for a loss of j units more than the best expert's."""
    with nogil:
        ff_hedge_weights(&sums[0, 0], &asks[0], sums.shape[0], sums.shape[1], &lost[0], &table[0],
                         &rows[0, 0] if rows.shape[0] else NULL)


def to_weights(double[:, ::1] rows):
    """Divide every row by its sum, in place."""
    if rows.shape[0]:
        with nogil:
            ff_to_weights(rows.shape[0], rows.shape[1], &rows[0, 0])


def sparse(seed, replicate, expert, release, spent, unit, before, limit, query_scale,
           const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t start, bint decided,
           int64_t[::1] lost, int64_t[::1] chosen):
    """Return (segment whose query exceeds the threshold, or n; number of exchanges so far).
    Arguments are the fields of ff_sparse."""
    cdef ff_sparse s
    cdef int64_t stop
    s.seed, s.replicate, s.expert, s.release, s.spent = seed, replicate, expert, release, spent
    s.unit, s.before, s.limit, s.query_scale = unit, before, limit, query_scale
    with nogil:
        stop = ff_sparse_run(&s, &sums[0, 0], &asks[0], start, decided, sums.shape[0],
                             sums.shape[1], &lost[0], &chosen[0])
    return stop, s.release


def regret(double lost, double[::1] total, double[::1] open, int64_t rounds, int64_t at,
           const int64_t[::1] checkpoints, double[::1] found, const int64_t[:, ::1] sums,
           const int64_t[::1] edges, const uint8_t[::1] settles, const int64_t[::1] which,
           const double[:, ::1] weights, const double[::1] gaps, int64_t silos, double unit):
    """Return (lost, rounds, at) of ff_regret after more segments; weights, gaps or sums may be
    None."""
    cdef ff_regret r
    cdef double[::1] products = np.empty(FF_SEGMENTS_TOGETHER * total.shape[0])
    cdef int64_t[::1] counts = np.empty(total.shape[0], np.int64)
    r.lost, r.rounds, r.at, r.count = lost, rounds, at, checkpoints.shape[0]
    r.total, r.open = &total[0], &open[0]
    r.counts, r.products = &counts[0], &products[0]
    r.checkpoints = &checkpoints[0] if checkpoints.shape[0] else NULL
    r.regret = &found[0] if checkpoints.shape[0] else NULL
    with nogil:
        ff_regret_add(&r, &sums[0, 0] if sums is not None else NULL, &edges[0], &settles[0],
                      &which[0], &weights[0, 0] if weights is not None else NULL,
                      &gaps[0] if gaps is not None else NULL, silos, unit, which.shape[0],
                      total.shape[0])
    return r.lost, r.rounds, r.at
