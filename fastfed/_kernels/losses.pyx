# cython: language_level=3
"""Losses of experts (``src/ff_losses.h``): one replicate of an adversary, or of a user's function.

Thin wrappers that do not check their arguments.
"""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

cimport cython

import numpy as np

from fastfed._kernels.headers cimport *

#: Probabilities are whole multiples of 1 / CHANCES; losses, except coins, of 1 / PARTS.
CHANCES = (<int64_t>1) << FF_CHANCE_BITS
PARTS = (<int64_t>1) << FF_LOSS_BITS
#: Who adds noise to scores.
NOISES = {"none": FF_NOISE_NONE, "silos": FF_NOISE_SILOS, "server": FF_NOISE_SERVER}
#: The algorithms of `Coins.course` by name, and its largest numbers of experts and of silos.
COURSES = {"leader": FF_COURSE_LEADER, "hedge": FF_COURSE_HEDGE, "sparse": FF_COURSE_SPARSE}
COURSE_EXPERTS, COURSE_SILOS = FF_COLUMNS, FF_COURSE_SILOS
#: The largest number of threads of one call.
MOST_THREADS = 64


class LossError(RuntimeError):
    """A user's function of losses failed."""


def loss_error(status):
    """Return the exception for a status of the C code. FF_NOT_FINITE also means a loss outside
    [0, 1]."""
    return LossError(
        "the function of the losses returned a number outside [0, 1]"
        if status == FF_NOT_FINITE
        else "the function of the losses reported a failure"
    )


def square_gradient(const double[::1] g, const double[::1] x):
    """Return g <g, x> (d,), the gradient of <g, x>^2 / 2."""
    cdef double[::1] out = np.empty(g.shape[0])
    ff_square_gradient(&g[0], &x[0], g.shape[0], &out[0])
    return np.asarray(out)


cdef class Losses:
    """One replicate of an adversary: the losses of m silos, or their gradients."""

    cdef ff_losses c
    cdef ff_losses_scratch scratch[64]
    cdef readonly uint64_t seed
    cdef readonly int64_t replicate
    cdef object keep, rows, doubles, sums_of

    def __init__(self, uint64_t seed, int64_t replicate, int64_t silos, int64_t experts,
                 *, bint common=False, bint quadratic=False):
        self.seed, self.replicate = seed, replicate
        self.c.silos, self.c.experts = silos, experts
        self.c.common, self.c.quadratic = common, quadratic
        self.c.planned = -1
        self.rows, self.doubles, self.sums_of = [], [], []

    @property
    def silos(self):
        """Number of silos, m."""
        return self.c.silos

    @property
    def experts(self):
        """Number of experts, d."""
        return self.c.experts

    @property
    def quadratic(self):
        """Whether the loss of a row g is <g, x>^2 / 2."""
        return bool(self.c.quadratic)

    @property
    def unit(self):
        """The unit that losses are whole multiples of."""
        return 1.0 if self.c.kind == FF_LOSS_COINS else 1.0 / PARTS

    @property
    def has_rows(self):
        """Whether the losses of a round are d numbers, one for each expert, not a gradient."""
        return self.c.kind != FF_LOSS_GRADIENT

    def error(self):
        """Return the exception behind a failure, or None."""
        return None

    cdef int64_t prepare(self, int64_t threads) except -1:
        """Allocate the scratch of the threads. Returns their number."""
        cdef uint32_t[::1] row
        cdef double[::1] called
        cdef int64_t[::1] sums
        threads = min(max(threads, 1), MOST_THREADS)
        while len(self.rows) < threads:
            row = np.zeros(self.c.experts, np.uint32)
            called = np.zeros(3 * self.c.experts)
            sums = np.zeros(2 * self.c.experts, np.int64)
            self.scratch[len(self.rows)].row = &row[0]
            self.scratch[len(self.rows)].called = &called[0]
            self.scratch[len(self.rows)].sums = &sums[0]
            self.rows.append(row)
            self.doubles.append(called)
            self.sums_of.append(sums)
        return threads

    cdef void check_place(self, int64_t silo, int64_t round) except *:
        """Raise IndexError unless there are losses of this silo in this round."""
        cdef int64_t rounds = self.c.rounds if self.c.kind == FF_LOSS_TABLE else 0xffffffff
        if not 0 <= silo < self.c.silos:
            raise IndexError(f"silo must be in [0, {self.c.silos}), got {silo}")
        if not 1 <= round <= rounds:
            raise IndexError(f"round must be in [1, {rounds}], got {round}")

    def row(self, int64_t silo, int64_t round):
        """Return the loss of every expert at one silo in one round, (d,)."""
        cdef int64_t status
        self.check_place(silo, round)
        if not self.has_rows:
            raise TypeError("these losses are given as gradients: use value(silo, round, x)")
        self.prepare(1)
        with nogil:
            status = ff_losses_row(&self.c, self.seed, self.replicate, silo, round,
                                   &self.scratch[0])
        if status < 0:
            raise self.error() or loss_error(status)
        return self.unit * np.asarray(self.rows[0])[: self.c.experts]

    def sums(self, const int64_t[::1] edges, int64_t threads=1, buffer=None):
        """Add up losses over all silos and rounds edges[i] + 1 .. edges[i + 1]: (segments, d) whole
        units, in the first rows of ``buffer`` (., d) if it is given."""
        cdef int64_t status, segments = edges.shape[0] - 1
        if buffer is None:
            buffer = np.empty((segments, self.c.experts), np.int64)
        result = buffer[:segments]
        cdef int64_t[:, ::1] totals = result
        threads = self.prepare(threads)
        with nogil:
            status = ff_losses_sums(&self.c, self.seed, self.replicate, &edges[0], segments,
                                    threads, &self.scratch[0], &totals[0, 0])
        if status < 0:
            raise self.error() or loss_error(status)
        return result

    def gradients(self, const int64_t[:, ::1] rounds, const double[::1] x, int64_t threads=1,
                  const double[::1] parent=None, bounds=(-np.inf, np.inf, np.inf)):
        """Return sums (m, d) of the gradients at x of each silo over its ``rounds`` (m, n), minus
        the gradients at ``parent`` if it is given. ``bounds``: (low, high, most) of
        ff_gradient_bounds."""
        cdef int64_t status, n = rounds.shape[1]
        cdef double[:, ::1] totals = np.zeros((self.c.silos, self.c.experts))
        cdef ff_gradient_bounds clip
        cdef const double *parent_address = NULL
        clip.low, clip.high, clip.most = bounds
        if parent is not None:
            parent_address = &parent[0]
        threads = self.prepare(threads)
        with nogil:
            status = ff_losses_gradients(&self.c, self.seed, self.replicate, &rounds[0, 0], n, n,
                                         &x[0], parent_address, &clip, threads, &self.scratch[0],
                                         &totals[0, 0])
        if status < 0:
            raise self.error() or loss_error(status)
        return np.asarray(totals)

    def walk(self, const int64_t[:, ::1] rounds, leaves, int64_t release, double[::1] x,
             double[:, :, ::1] v, double[:, ::1] points, bounds, *, bint linear, str noise_by,
             int64_t threads=1):
        """Perform the exchanges ``release``, ``release`` + 1, ... of a phase of private Frank-Wolfe
        (ff_walk_leaves), one for each leaf. Each moves x (d,) towards one expert, in place. Returns
        these experts (count,).

        ``leaves`` (count, 6): rows (tree, depth, start, stop, step, scale), as in ff_leaf.
        ``rounds`` (m, used): the rounds that each silo uses in the phase. ``v`` (depths, m, d) and
        ``points`` (depths, d): the gradient estimates on the path to a leaf, and the points x of
        these estimates; both are updated. ``bounds``: (low, high, smoothness) of ff_walk.
        """
        cdef int64_t status, i, count = len(leaves), m = self.c.silos, d = self.c.experts
        cdef ff_walk w
        cdef const double[:, ::1] rows = leaves
        cdef uint8_t[::1] leaf_bytes = np.empty(max(1, count) * sizeof(ff_leaf), np.uint8)
        cdef ff_leaf *path = <ff_leaf *>&leaf_bytes[0]
        cdef double[::1] sums = np.empty(m * d), total = np.empty(d)
        cdef double[::1] drawn = np.empty(max(1, ff_laplace_capacity(d)))
        cdef int64_t[::1] targets = np.empty(max(1, count), np.int64)
        for i in range(count):
            path[i].tree, path[i].depth = <int64_t>rows[i, 0], <int64_t>rows[i, 1]
            path[i].start, path[i].stop = <int64_t>rows[i, 2], <int64_t>rows[i, 3]
            path[i].step, path[i].scale = rows[i, 4], rows[i, 5]
        w.losses, w.seed, w.replicate = &self.c, self.seed, self.replicate
        w.used, w.rounds = rounds.shape[1], &rounds[0, 0]
        w.linear, w.noise_by = linear, NOISES[noise_by]
        w.low, w.high, w.smoothness = bounds
        w.v, w.points, w.sums = &v[0, 0, 0], &points[0, 0], &sums[0]
        w.drawn, w.total = &drawn[0], &total[0]
        threads = self.prepare(threads)
        with nogil:
            status = ff_walk_leaves(&w, path, count, release, threads, &self.scratch[0], &x[0],
                                    &targets[0])
        if status < 0:
            raise self.error() or loss_error(status)
        return np.asarray(targets)[:count]

    def excess(self, int64_t first, int64_t last, const double[::1] x,
               const double[::1] optimum, double lost):
        """Return ``lost`` plus the sum of (loss at x - loss at ``optimum``) over rounds first..last
        and all silos, added in this order, for losses given as gradients."""
        self.prepare(1)
        with nogil:
            lost = ff_losses_excess(&self.c, self.seed, self.replicate, first, last, &x[0],
                                    &optimum[0], lost, &self.scratch[0])
        if not isfinite(lost):
            raise self.error() or loss_error(FF_CALLBACK_FAILED)
        return lost

    def value(self, int64_t silo, int64_t round, const double[::1] x):
        """Return (loss, gradient (d,)) at x of a loss that is given as a gradient."""
        cdef double[::1] gradient = np.zeros(self.c.experts)
        cdef double value
        self.check_place(silo, round)
        if self.has_rows:
            raise TypeError("these losses are numbers of each expert: use row(silo, round)")
        if x.shape[0] != self.c.experts:
            raise ValueError(f"x must have shape ({self.c.experts},), got ({x.shape[0]},)")
        with nogil:
            value = ff_losses_value(&self.c, self.seed, self.replicate, silo, round, &x[0],
                                    &gradient[0])
        if not isfinite(value):
            raise self.error() or loss_error(FF_CALLBACK_FAILED)
        return value, np.asarray(gradient)


cdef class Coins(Losses):
    """Losses of 0 or 1 by independent coins; see ff_losses."""

    def __init__(self, uint64_t seed, int64_t replicate, int64_t silos,
                 const uint32_t[::1] chance, *, bint common=False, bint quadratic=False,
                 last=None, int64_t planned=-1, int64_t lost=0):
        Losses.__init__(self, seed, replicate, silos, chance.shape[0], common=common,
                        quadratic=quadratic)
        cdef uint64_t[::1] masks = np.empty(ff_coins_masks(chance.shape[0]), np.uint64)
        cdef uint32_t[::1] random = np.array(chance)
        if planned >= 0:
            random[planned] = 0
        self.keep = masks
        self.c.kind = FF_LOSS_COINS
        self.c.coins = ff_coins_make(&random[0], chance.shape[0], &masks[0])
        self.c.last = (1 << 62) if last is None else last
        self.c.planned, self.c.lost = planned, lost

    def course(self, str decides, int64_t first, int64_t last, bint asks, int64_t[::1] lost,
               int64_t[::1] latest, decided, const double[::1] table, int64_t alone,
               double[::1] regret, double sum, int64_t at, const int64_t[::1] checkpoints):
        """Run rounds first + 1, ..., last by ff_course_run, which stops earlier before a decision
        that it cannot make. Returns (last round that was run, expert, exchanges, changes, sum, at).

        ``decided``: the state (expert, number of exchanges, changes of the leader, spent, before,
        limit, query_scale); the last four are those of ff_sparse. ``regret`` (C,) receives the
        regret at each of ``checkpoints``, of which ``at`` are reached; ``sum`` is the loss of the
        decisions so far. The other arguments are those of ff_course_run and fields of ff_course.
        """
        cdef ff_course c
        cdef ff_sparse s
        cdef ff_regret r
        c.losses, c.seed, c.replicate = &self.c, self.seed, self.replicate
        c.decides, c.lost, c.latest = COURSES[decides], &lost[0], &latest[0]
        c.sparse, c.regret = &s, &r
        s.seed, s.replicate, s.unit = self.seed, self.replicate, 1.0
        s.expert, s.release, c.switches, s.spent, s.before, s.limit, s.query_scale = decided
        c.table = &table[0] if table.shape[0] else NULL
        c.known, c.alone = table.shape[0], alone
        r.lost, r.at, r.count = sum, at, checkpoints.shape[0]
        r.checkpoints = &checkpoints[0] if checkpoints.shape[0] else NULL
        r.regret = &regret[0] if checkpoints.shape[0] else NULL
        with nogil:
            last = ff_course_run(&c, first, last, asks)
        return last, s.expert, s.release, c.switches, r.lost, r.at


cdef class Table(Losses):
    """Losses (1 or m, T, d) in multiples of 1 / PARTS."""

    def __init__(self, uint64_t seed, int64_t replicate, int64_t silos,
                 const uint32_t[:, :, ::1] table, *, bint quadratic=False):
        Losses.__init__(self, seed, replicate, silos, table.shape[2],
                        common=table.shape[0] == 1, quadratic=quadratic)
        self.keep = table
        self.c.kind, self.c.table, self.c.rounds = FF_LOSS_TABLE, &table[0, 0, 0], table.shape[1]


cdef class Compiled(Losses):
    """A user's numba.cfunc with ``losses_signature()`` or ``gradient_signature()``."""

    def __init__(self, uint64_t seed, int64_t replicate, int64_t silos, int64_t experts, function,
                 state, *, bint common=False, bint gradient=False):
        cdef uintptr_t address = function.address
        Losses.__init__(self, seed, replicate, silos, experts, common=common)
        self.keep = function, state
        if gradient:
            self.c.kind, self.c.gradient = FF_LOSS_GRADIENT, <ff_gradient_call>address
        else:
            self.c.kind, self.c.call = FF_LOSS_CALLED, <ff_loss_call>address
        if state is not None:
            address = state.__array_interface__["data"][0]
            self.c.state = <void *>address


#: How the note on an exception of a user's function begins.
IN_FUNCTION = "in the environment's function"


cdef object note(Called losses, BaseException error, replicate, silo, round):
    """Add to an exception of a user's function the round in which it was raised, and store the
    first such exception."""
    error.add_note(f"{IN_FUNCTION} (replicate {replicate}, silo {silo}, round {round})")
    # Other threads continue to the end of the call; the first failure is reported.
    with cython.critical_section(losses):
        if losses.failure is None:
            losses.failure = error


cdef int64_t call_losses(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                         int64_t round, double *loss) noexcept with gil:
    """Call a user's Python function (ff_loss_call); keep its exception if it fails."""
    cdef Called losses = <Called>state
    cdef const double[::1] values
    cdef int64_t n
    try:
        values = losses.check(losses.function(seed, replicate, silo, round))
        for n in range(losses.c.experts):
            loss[n] = values[n]
        return 0
    except BaseException as error:
        note(losses, error, replicate, silo, round)
        return FF_CALLBACK_FAILED


cdef double call_gradient(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                          int64_t round, const double *x, double *gradient) noexcept with gil:
    """Call a user's Python function (ff_gradient_call); keep its exception if it fails."""
    cdef Called losses = <Called>state
    cdef const double[::1] values
    cdef int64_t n, d = losses.c.experts
    try:
        point = np.array(<const double[:d]>x)
        value, values = losses.check(losses.function(seed, replicate, silo, round, point))
        for n in range(d):
            gradient[n] = values[n]
        return value
    except BaseException as error:
        note(losses, error, replicate, silo, round)
        return float("nan")


cdef class Called(Losses):
    """A plain Python function: (seed, replicate, silo, round) -> losses (d,), or with a fifth
    argument x (d,) -> (loss, gradient (d,)). ``check`` validates the returned value."""

    cdef object function, check, failure

    def __init__(self, uint64_t seed, int64_t replicate, int64_t silos, int64_t experts, function,
                 check, *, bint common=False, bint gradient=False):
        Losses.__init__(self, seed, replicate, silos, experts, common=common)
        self.function, self.check = function, check
        self.c.state = <void *>self
        if gradient:
            self.c.kind, self.c.gradient = FF_LOSS_GRADIENT, call_gradient
        else:
            self.c.kind, self.c.call = FF_LOSS_CALLED, call_losses

    def error(self):
        """Return the first exception of the function and forget it; None if there was none."""
        with cython.critical_section(self):
            failure, self.failure = self.failure, None
        return failure
