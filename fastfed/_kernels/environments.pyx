# cython: language_level=3
"""Environments: one replicate each, behind the C interface of ``src/ff_environment.h``.

Contexts and rewards depend on (seed, replicate, silo, round) only.
"""

from libc.float cimport FLT_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t

cimport cython

import numpy as np

from fastfed._kernels.headers cimport *


class SimulationError(RuntimeError):
    """The compiled driver or an environment failed."""


def status_error(status):
    """Return the exception for a status of the C code."""
    return SimulationError({
        FF_CALLBACK_FAILED: "the environment's function reported a failure",
        FF_NOT_POSITIVE_DEFINITE: "the synchronised statistics are not finite",
        FF_NO_ACTIONS: "the environment's function returned no actions, or more than declared",
        FF_NOT_FINITE: "the environment's function returned features or rewards that are not "
                       "finite, or a probability outside [0, 1]",
        FF_SCORE_FAILED: "the score function reported a failure, or scores that are not finite",
    }.get(status, f"the environment's function returned status {status}"))


cdef class Environment:
    """One replicate of an environment behind the C interface of ff_environment.h."""

    cdef void describe(self, int64_t dimension, int64_t actions, int64_t is_double,
                       int64_t stride, reward) except *:
        """Set the sizes, the layout and the reward (kind, standard deviation) of ff_environment."""
        self.c.dimension, self.c.actions = dimension, actions
        self.c.is_double, self.c.stride = is_double, stride
        self.c.reward_kind, self.c.reward_std = reward

    def error(self):
        """Return the exception behind the status FF_CALLBACK_FAILED, or None."""
        return None

    @property
    def dimension(self):
        """Number of features, d."""
        return self.c.dimension

    @property
    def actions(self):
        """The largest number of actions of any round."""
        return self.c.actions

    cdef void check_place(self, int64_t silo, int64_t round) except *:
        """Raise IndexError unless silo and round are valid; random streams use 32 bits of each."""
        cdef int64_t silos = self.silos or 0xffffffff
        if not 0 <= silo < silos:
            raise IndexError(f"silo must be below {silos} and not negative, got {silo}")
        if not 0 <= round <= 0xffffffff:
            raise IndexError(f"round must be in [0, 2^32), got {round}")

    def round(self, int64_t silo, int64_t round):
        """Return copies of (features (K, d), expected rewards (K,)) of one silo in one round."""
        cdef int64_t d = self.c.dimension, k = self.c.actions, status
        self.check_place(silo, round)
        cdef object buffer = np.empty(ff_fill_capacity(k, d) + 16,
                                      np.float64 if self.c.is_double else np.float32)
        cdef uintptr_t start = buffer.__array_interface__["data"][0]
        cdef uintptr_t address = (start + 63) & ~<uintptr_t>63
        cdef double[::1] mean = np.empty(k)
        cdef ff_actions view
        cdef void *x = <void *>address
        with nogil:
            status = ff_actions_of(&self.c, self.seed, self.replicate, silo, round, NULL, NULL, x,
                                   &mean[0], &view)
        if status:
            raise self.error() or status_error(status)
        k = view.actions
        out = np.empty((k, d), np.float64 if view.is_double else np.float32)
        means = np.empty(k)
        cdef double[::1] m = means
        cdef double[::1] row = np.empty(d)
        for a in range(k):
            ff_features(&view, a, d, &row[0])
            out[a] = row
            m[a] = ff_mean_of(&self.c, &view, a)
        return out, means

    def reward(self, int64_t silo, int64_t round, double mean):
        """Return the reward of an action with expected reward ``mean`` at one silo in one round."""
        return ff_reward_of(&self.c, self.seed, self.replicate, silo, round, mean)


cdef class Sphere(Environment):
    """Fresh contexts on a sphere (zhou-chowdhury-2024, Section 6).

    theta (1, d) is for any number of silos; theta (M, d) has one row for each silo. The first
    ``basis_actions`` (0 or d) actions are fixed. If ``shared`` is true, contexts are the same in
    every replicate. ``constant`` is the value of the last feature.
    """

    cdef ff_sphere state

    def __init__(self, seed, replicate, const double[:, ::1] theta, actions, basis_actions, shared,
                 reward, constant=0.5**0.5):
        cdef int64_t d = theta.shape[1]
        self.seed, self.replicate, self.keep = seed, replicate, theta
        self.state.theta = &theta[0, 0]
        if theta.shape[0] > 1:
            self.silos, self.state.theta_stride = theta.shape[0], d
        self.state.dimension, self.state.actions = d, actions
        self.state.basis_actions, self.state.shared = basis_actions, shared
        self.state.constant = constant
        self.describe(d, actions, 0, ff_stride(actions), reward)
        self.c.fill, self.c.state = ff_sphere_fill, &self.state
        self.c.mean, self.c.mean_error = ff_sphere_mean, ff_mean_error(d)


cdef class Gap(Environment):
    """One best action, with a gap to all others (dubey-pentland-2020, Section 4.4).

    Expected rewards of the best action lie between ``best`` and ``best + width``, those of all
    others between ``inferior`` and ``inferior + width``.
    """

    cdef ff_gap state

    def __init__(self, seed, replicate, const double[::1] theta, actions, inferior, best, width,
                 reward):
        self.seed, self.replicate, self.keep = seed, replicate, theta
        self.state.theta = &theta[0]
        self.state.dimension, self.state.actions = theta.shape[0], actions
        self.state.inferior, self.state.best, self.state.width = inferior, best, width
        self.describe(theta.shape[0], actions, 0, ff_stride(actions), reward)
        self.c.fill, self.c.state = ff_gap_fill, &self.state
        self.c.mean, self.c.mean_error = ff_gap_mean, ff_mean_error(theta.shape[0])


cdef class HardInstance(Environment):
    """The hard instance of huang-2023, Appendix E.1, with two actions in each round.

    One has two nonzero features, which form one of d/2 blocks; the other is zero.
    """

    cdef ff_hard state

    def __init__(self, seed, replicate, const double[::1] theta, reward):
        self.seed, self.replicate, self.keep = seed, replicate, theta
        self.state.theta, self.state.dimension = &theta[0], theta.shape[0]
        self.describe(theta.shape[0], 2, 0, 2, reward)
        self.c.fill, self.c.state = ff_hard_fill, &self.state


cdef class QuantisedActions:
    """The actions of a pool in 16 bits. A query is stored when it is offered for the second time.

    Replicates over one pool share this store. Its size is 0 if the processor has no screening in 16
    bits. The argument ``starts`` has the first row of each query in the pool. The attribute
    ``starts`` has the first byte of each query in ``buffer``, and ``made`` is 1 for stored queries.
    """

    cdef readonly object buffer, starts, made
    cdef readonly int64_t size  # bytes

    def __init__(self, const int64_t[::1] starts, int64_t dimension):
        cdef int64_t q
        cdef int64_t[::1] places = np.zeros(starts.shape[0], np.int64)
        for q in range(starts.shape[0] - 1):
            places[q + 1] = places[q] + ff_quantised_bytes(dimension, starts[q + 1] - starts[q])
        self.size = places[starts.shape[0] - 1]
        self.starts, self.made = np.asarray(places), np.zeros(starts.shape[0] - 1, np.uint8)
        self.buffer = None

    cdef ff_quantised_store store(self) except *:
        """Return the store of ff_screen_i16.h. The first call allocates its buffer."""
        cdef ff_quantised_store store
        cdef uint8_t[::1] buffer, made = self.made
        cdef const int64_t[::1] starts = self.starts
        cdef object new_buffer, buffer_object
        with cython.critical_section(self):
            buffer_object = self.buffer
        if buffer_object is None:
            # The operating system gives memory to pages only when they are written.
            new_buffer = np.empty(self.size + 63, np.uint8)
            # If several threads come here, the first one's buffer is used by all.
            with cython.critical_section(self):
                if self.buffer is None:
                    self.buffer = new_buffer
                buffer_object = self.buffer
        buffer = buffer_object
        store.buffer = <char *>((<uintptr_t>&buffer[0] + 63) & ~<uintptr_t>63)
        store.starts, store.made = &starts[0], &made[0]
        return store


cdef class Directions:
    """The first principal directions of a pool's actions: orthonormal rows (count, d)."""

    cdef readonly object rows
    cdef ff_directions c

    def __init__(self, rows):
        cdef const double[:, ::1] contiguous = np.ascontiguousarray(rows, np.float64)
        self.rows = np.asarray(contiguous)
        self.c.rows, self.c.count = &contiguous[0, 0], contiguous.shape[0]
        if not 0 < self.c.count <= FF_MOST_DIRECTIONS or self.c.count % 6:
            raise ValueError(
                f"rows must be a multiple of 6 up to {FF_MOST_DIRECTIONS}, got {self.c.count}")
        error = np.abs(self.rows @ self.rows.T - np.eye(self.c.count)).sum(axis=1).max()
        if not error < 2.0**-40:
            raise ValueError(f"rows must be orthonormal, they are off by {error:g}")


cdef class Pool(Environment):
    """A finite set of queries, each with a block of rows."""

    cdef ff_pool state
    cdef bint once  # each query of a silo is offered once

    def __init__(self, seed, replicate, values, dimension, feature_major,
                 const double[::1] means, const double[::1] best, const int64_t[::1] starts,
                 const int64_t[::1] silo_starts, sampling, order, reward,
                 QuantisedActions quantised=None, Directions directions=None):
        cdef uintptr_t address = values.__array_interface__["data"][0]
        cdef const int64_t[::1] shuffled
        self.seed, self.replicate = seed, replicate
        self.keep = (values, means, best, starts, silo_starts, order, quantised, directions)
        self.state.values = <const void *>address
        self.state.is_double, self.state.feature_major = values.itemsize == 8, feature_major
        self.state.dimension, self.state.sampling = dimension, sampling
        self.state.means, self.state.best = &means[0], &best[0]
        self.state.starts, self.state.silo_starts = &starts[0], &silo_starts[0]
        self.state.order = NULL
        if order is not None:
            shuffled = order
            self.state.order = &shuffled[0]
        self.silos = silo_starts.shape[0] - 1
        self.once = sampling != FF_WITH_REPLACEMENT
        self.state.quantised.starts = NULL
        if quantised is not None and quantised.size:
            self.state.quantised = quantised.store()
            self.queries = starts.shape[0] - 1
            self.rows = starts[self.queries]
        # Each silo has one query, and its features are float32, feature-major (ff_fixed.h).
        self.fixed = (starts.shape[0] == silo_starts.shape[0] and not self.rows
                      and feature_major and not self.state.is_double)
        self.directions = NULL if directions is None else &directions.c
        self.state.directions = self.directions
        self.describe(dimension, int(np.diff(np.asarray(starts)).max()),
                      self.state.is_double, 0, reward)
        self.c.borrow, self.c.ahead = ff_pool_borrow, ff_pool_ahead
        self.c.state = &self.state

    cdef void check_place(self, int64_t silo, int64_t round) except *:
        """Raise IndexError unless silo and round are valid and the round has a query."""
        cdef int64_t rounds
        Environment.check_place(self, silo, round)
        if self.once:
            rounds = self.state.silo_starts[silo + 1] - self.state.silo_starts[silo]
            if not 1 <= round <= rounds:
                raise IndexError(f"round must be in [1, {rounds}] at silo {silo}, got {round}")

    def query(self, int64_t silo, int64_t round):
        """Return the query that a silo is offered in a round."""
        self.check_place(silo, round)
        return ff_pool_query(&self.state, self.seed, self.replicate, silo, round)


cdef class Compiled(Environment):
    """A user's compiled callback (numba.cfunc); see fastfed.environments.python."""

    def __init__(self, seed, replicate, callback, state, dimension, actions, reward):
        cdef uintptr_t function = callback.address
        self.seed, self.replicate, self.keep = seed, replicate, (callback, state)
        self.describe(dimension, actions, 1, 0, reward)
        self.c.fill, self.c.state = <ff_fill>function, address_of(state)


#: How the note on an exception of a user's function begins.
IN_FUNCTION = "in the environment's function"


cdef int64_t call_python(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                         int64_t round, void *x, double *mean) noexcept with gil:
    """Call a user's Python function on behalf of the C code, which calls this as an ff_fill. Keep
    the exception of the function if it fails."""
    cdef Called env = <Called>state
    cdef int64_t k = env.c.actions, d = env.c.dimension
    cdef int64_t n
    cdef const double[:, ::1] features
    cdef const double[::1] means
    try:
        result = env.function(seed, replicate, silo, round)
        features, means = env.check(result)
        n = features.shape[0]
        (<double[:n, :d]>(<double *>x))[...] = features
        (<double[:n]>mean)[...] = means
        return n
    except BaseException as error:
        error.add_note(f"{IN_FUNCTION} (replicate {replicate}, silo {silo}, round {round})")
        # Other silos continue until the present call of the driver ends. Then the first failure is
        # reported.
        with cython.critical_section(env):
            if env.failure is None:
                env.failure = error
        return FF_CALLBACK_FAILED


cdef class Called(Environment):
    """A plain Python callable: (seed, replicate, silo, round) -> (features, expected rewards)."""

    cdef object function, check, failure

    def __init__(self, seed, replicate, function, check, dimension, actions, reward):
        self.seed, self.replicate = seed, replicate
        self.function, self.check = function, check
        self.describe(dimension, actions, 1, 0, reward)
        self.c.fill, self.c.state = <ff_fill>call_python, <void *>self

    def error(self):
        """Return the first exception of the function and forget it; None if there was none."""
        with cython.critical_section(self):
            failure, self.failure = self.failure, None
        return failure


def parse_letor(bytes text, int64_t limit, float[:, ::1] values, int32_t[::1] relevance,
                int64_t[::1] qid):
    """Read whole lines of learning-to-rank text into arrays. Each has one row for every line.

    The caller fills ``values`` with zeros. ``limit`` is the largest allowed index of a feature.
    Returns (number of rows read, largest index in the text); (None, largest index) if an index is
    larger than the width of ``values``; None if the text needs the exact parser, which may refuse
    it.
    """
    cdef const char *data = text
    cdef int64_t size = len(text)
    # Triples (begin, end, cell of values) of the numbers that Python's float has to round.
    cdef int64_t[::1] hard = np.empty(3 * (size // 6 + 1), np.int64)
    cdef ff_letor_table table
    cdef int status
    cdef int64_t i
    if not size or not len(qid) or not values.shape[1]:
        return None
    table.width = values.shape[1]
    table.values = &values[0, 0]
    table.relevance = &relevance[0]
    table.qid = &qid[0]
    table.hard = &hard[0]
    with nogil:
        status = ff_letor_parse(data, size, limit, &table)
    if status == FF_LETOR_UNUSUAL:
        return None
    if status == FF_LETOR_WIDER:
        return None, table.largest
    for i in range(table.hards):
        number = float(text[hard[3 * i] : hard[3 * i + 1]])
        if not abs(number) <= FLT_MAX:
            return None
        table.values[hard[3 * i + 2]] = number
    return table.rows, table.largest
