# cython: language_level=3
"""Segments of rounds of experts' systems (``src/ff_experts.h``).

Thin wrappers that do not check their arguments. ``sums`` (n, d) are the losses of each of d experts
in n segments of rounds, added up over all clients (silos), in whole multiples of a unit. Messages
are exchanged before segment i if ``asks[i]`` is 1. ``lost`` (d,) is what every expert lost before
the first segment, and on return what it lost before the last segment.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

from fastfed._kernels.headers cimport *


def total(const double[::1] values):
    """Return the sum of values (n,), in the order of NumPy's sum."""
    return ff_pairwise(&values[0], values.shape[0]) if values.shape[0] else 0.0


def follow(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost, int64_t expert):
    """Follow the leader: return the chosen expert of each segment (n,), and the number of changes.

    ``expert`` is the choice before the first segment. ``sums`` (n, d) are the losses of the d
    experts in each segment. A segment whose ``asks`` is 1 begins with an exchange, at which the
    server chooses the expert with the smallest loss so far. ``lost`` (d,): see the top of this
    file.
    """
    cdef int64_t n = sums.shape[0], switches
    cdef int64_t[::1] chosen = np.empty(n, np.int64)
    with nogil:
        switches = ff_follow(&sums[0, 0], &asks[0], n, sums.shape[1], &lost[0], &expert,
                             &chosen[0])
    return np.asarray(chosen), switches


def hedge(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost, double unit,
          double silos, double rate, double[:, ::1] rows):
    """Write the exponents of Hedge after each exchange to rows (exchanges, d).

    The exponent of an expert is rate (loss - least loss) / silos. Both losses are those before the
    exchange, added up over silos; the least loss is that of the best expert. ``sums`` (segments, d)
    are the losses of the d experts in each segment of rounds, added up over silos, in multiples of
    ``unit``. An exchange precedes each segment whose ``asks`` is 1. ``lost`` (d,) are the losses
    before the first segment, and on return those before the last one.
    """
    with nogil:
        ff_hedge(&sums[0, 0], &asks[0], sums.shape[0], sums.shape[1], &lost[0], unit, silos, rate,
                 &rows[0, 0] if rows.shape[0] else NULL)


def hedge_exponents(int64_t first, double[::1] exponents, double unit, double silos, double rate):
    """Write the exponents of Hedge (see `hedge`) to exponents (n,). Entry j is the exponent of an
    expert whose loss, added up over silos, is first + j units above the best expert's."""
    if exponents.shape[0]:
        with nogil:
            ff_hedge_exponents(first, exponents.shape[0], unit, silos, rate, &exponents[0])


def hedge_spread(const int64_t[:, ::1] sums, const int64_t[::1] lost):
    """Return an upper bound on the loss of any expert minus that of the best expert.

    The bound holds at the start of every segment of rounds. ``sums`` (segments, experts) are the
    losses in each segment, and ``lost`` (experts,) are those before the first segment. All three
    are added up over silos, in multiples of one unit.
    """
    return ff_hedge_spread(&sums[0, 0], sums.shape[0], sums.shape[1], &lost[0])


def hedge_weights(const int64_t[:, ::1] sums, const uint8_t[::1] asks, int64_t[::1] lost,
                  const double[::1] table, double[:, ::1] rows):
    """Write the weights of Hedge after each exchange to rows (exchanges, d).

    ``table[j]`` is the exponential for an expert whose loss is j units above the best expert's.
    Weights are exponentials divided by their sum. The other arguments are those of `hedge`.
    """
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
    """Keep the current expert until the noisy query of an exchange exceeds the threshold.

    Begin at segment ``start``; ``decided`` is true if its exchange has already taken place. Return
    (stop, exchanges). stop is the segment before which the query exceeds the threshold, or n, the
    number of segments, if no query does; exchanges is the number of exchanges so far. ``chosen``
    (n,) receives the expert of the segments from ``start`` to stop - 1. ``sums`` and ``asks``: see
    the top of this file. If stop is below n, ``lost`` becomes the losses before segment stop,
    otherwise those before the last segment. The other arguments are the fields of ff_sparse in
    ``src/ff_experts.h``.
    """
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
    """Add n segments of rounds to the sums for group regret.

    Return three numbers after these segments: ``lost``, the loss of all decisions; ``rounds``, the
    number of rounds whose losses are not yet in ``lost`` and ``total``; and ``at``, the number of
    checkpoints reached. ``total`` and ``open`` (d,), the losses of every expert in rounds that are
    in ``total`` and in those that are not yet, are updated in place. ``found`` (checkpoints,)
    receives the regret at each checkpoint. Segment i is rounds edges[i] + 1 .. edges[i + 1], with
    the decision which[i]: an expert or, unless ``weights`` is None, a row of ``weights``. Open
    rounds are settled, which moves their losses to ``lost`` and ``total``, if settles[i] is 1 and
    at checkpoints. ``gaps``, if not None, holds the expected loss of each decision minus that of
    the best expert, for each client and round; ``sums`` may then be None.
    """
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
