# cython: language_level=3
"""The compiled driver (``src/ff_driver.h``): simulates rounds of a run without Python."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memset

cimport cython

import numpy as np

from fastfed._kernels.environments import status_error

from fastfed._kernels.environments cimport Environment
from fastfed._kernels.headers cimport *

cdef extern from *:
    """
    #ifdef FF_THREADS
    #define FF_HAS_THREADS 1
    #else
    #define FF_HAS_THREADS 0
    #endif
    """
    int FF_HAS_THREADS

#: Doubles of the bound that shows until when a silo's determinant trigger cannot fire.
SKIP_BOUND_SIZE = sizeof(ff_skip_bound) // sizeof(double)
#: Doubles of the bound of the private determinant trigger, for all silos together.
TRACE_BOUND_SIZE = sizeof(ff_trace_bound) // sizeof(double)
#: Up to this dimension the determinant trigger recomputes determinants; above, it updates a factor.
RECOMPUTE_MAX = FF_RECOMPUTE_MAX
#: Number of doubles in the view of one silo with its own clock, without W and theta.
VIEW_NUMBERS = FF_VIEW_NUMBERS


def share_from(double seconds):
    """Share work of more than this many seconds among threads; below zero share all work. Return
    the previous value. Results are the same. Tests of threads set it, because their work is
    small."""
    global ff_least_shared
    before, ff_least_shared = ff_least_shared, seconds
    return before


def snapshot_size(int64_t d):
    """Return the number of doubles in the snapshot of one silo, for a curve with a trigger."""
    return ff_snapshot_size(d)


def bonus_factor(const double[:, ::1] w, double c):
    """Return (R, lost) with ||W x||^2 + c ||W'W x||^2 <= (||R x|| + lost ||x||)^2 for all x (see
    ``src/ff_bonus_factor.h``); None if rounding leaves no R, or this processor lacks the
    instructions."""
    cdef int64_t d = w.shape[0]
    cdef double[:, ::1] inverse = np.empty((d, d)), r = np.empty((d, d))
    cdef ff_bonus_factor factor
    if not ff_screen_i16_available():
        return None
    factor = ff_bonus_factor_make(&w[0, 0], c, d, &inverse[0, 0], &r[0, 0])
    return (np.asarray(r), factor.lost) if factor.c else None


def fixed_size(int64_t actions, int64_t d):
    """Return the number of doubles in a silo's model of a fixed set of at most ``actions`` actions."""
    return ff_fixed_size(actions, d)


def bonus_cache_size(int64_t d):
    """Return the number of doubles in a bonus cache: a factor of V^-1 that bounds all bonuses."""
    return ff_bonus_cache_size(d)


cdef double *pointer(array) except? NULL:
    return <double *>address_of(array)


cdef class Run:
    """One replicate of one or several curves over one environment (see ``src/ff_run.h``).

    Each curve is a mapping with the numbers of the plan and the arrays of the state, named as in
    ff_curve. A run may be a part of a larger run: its silos are ``names`` there, and its rounds are
    those equal to ``phase`` modulo ``stride``. A curve with a trigger must be the only curve.
    """

    cdef ff_run c
    cdef ff_curve curves[FF_MAX_CURVES]
    cdef object keep, caches
    cdef Environment environment
    cdef bint busy

    def __init__(self, Environment environment, int64_t silos, int64_t horizon,
                 const int64_t[::1] checkpoints, curves, int64_t threads,
                 const int64_t[::1] names=None, int64_t phase=0, int64_t stride=1):
        cdef int64_t d = environment.c.dimension, i
        cdef double[::1] scratch
        cdef int64_t[::1] status = np.zeros(silos, np.int64)
        cdef ff_curve *c
        if len(curves) > FF_MAX_CURVES:
            raise ValueError(f"a run has at most {FF_MAX_CURVES} curves, got {len(curves)}")
        if len(curves) > 1 and any(curve["trigger"] is not None for curve in curves):
            raise ValueError("a curve with a trigger runs alone")
        self.environment = environment
        self.c.environment = &environment.c
        self.c.seed, self.c.replicate = environment.seed, environment.replicate
        self.c.silos, self.c.dimension, self.c.horizon = silos, d, horizon
        self.c.names = NULL
        if names is not None:
            self.c.names = &names[0]
        self.c.phase, self.c.stride = phase, stride
        self.c.checkpoints = &checkpoints[0] if checkpoints.shape[0] else NULL
        self.c.checkpoint_count = checkpoints.shape[0]
        self.c.curves, self.c.curve_count = &self.curves[0], len(curves)
        self.c.threads = min(threads, silos) if FF_HAS_THREADS else 1
        # Aligned and padded, so that vectors lie in one cache line and threads share no line.
        most = max(curve["levels"] for curve in curves)
        self.c.fill_scratch = ff_fill_capacity(environment.c.actions, d)
        self.c.score_scratch = ff_score_scratch(d, environment.c.actions)
        self.c.scratch_size = ff_run_scratch(environment.c.actions, d, most, len(curves))
        if any(curve["share_until"] for curve in curves):
            self.c.belief_scratch = ff_belief_scratch(d)
            self.c.scratch_size += self.c.belief_scratch
        scored = [curve["score"] for curve in curves if curve["score"] is not None]
        if scored:
            state = max(0 if score.state is None else score.state.size for score in scored)
            self.c.scratch_size += ff_scored_scratch(d, environment.c.actions, state)
        if any(curve["arms"] and curve["fixed"] is not None for curve in curves):
            self.c.scratch_size += ff_groups_scratch(d)
        self.c.scratch_size = (self.c.scratch_size + 63) // 64 * 64
        scratch = np.empty(self.c.threads * self.c.scratch_size + 8)
        self.c.scratch = <double *>((<uintptr_t>&scratch[0] + 63) // 64 * 64)
        self.c.status = &status[0]
        self.keep = (checkpoints, scratch, status, curves, names)
        self.caches = []
        for i, curve in enumerate(curves):
            self.describe(&self.curves[i], curve)
            # The caches of silos that learn within a batch expect one data point in each round.
            late = curve["arrivals"] is not None and not curve["lazy"]
            # Cached bounds are for one W, and silos with their own clocks have several.
            clocked = curve["sends"] is not None
            chooses = not curve["random"] and curve["score"] is None and not late and not clocked
            self.caches.append(None)
            if chooses and curve["fixed"] is None and self.bounds_pay():
                self.caches[i] = self.bonus_cache(i, curve["lazy"])

    def bonus_bounds(self):
        """Return the state of the bonus bounds, one tuple for each curve that has them: for each
        query the number of releases (plus one) of its cached bounds; for each silo the number of
        its own factors since the last release; and for each silo the bound on the growth of
        ||V^{-1} x||, in units of ||W x||."""
        cdef ff_bonus_silo *silo
        bounds = []
        for i in range(self.c.curve_count):
            silo = self.curves[i].bonus_cache.silo
            if silo != NULL:
                factors = [silo[j].made for j in range(self.c.silos)]
                moved = [silo[j].moved for j in range(self.c.silos)]
                bounds.append(
                    (np.array(self.caches[i][0]) >> 30, np.array(factors), np.array(moved)))
        return bounds

    cdef bint bounds_pay(self):
        """Return whether bounds pay: for rows of a pool, or for large enough dimensions and
        sets."""
        cdef const ff_environment *c = self.c.environment
        if self.environment.rows:
            return True
        return not self.environment.fixed and not c.is_double and c.dimension >= 32 and c.actions >= 16

    cdef tuple bonus_cache(self, int64_t curve, bint lazy):
        """Allocate the bonus cache of a curve, which refers to it from now on."""
        cdef ff_bonus_cache *cache = &self.curves[curve].bonus_cache
        cdef int64_t size = max(1, ff_bonus_cache_size(self.c.dimension)), silos = self.c.silos
        # The operating system gives memory to pages only when they are written.
        cdef float[::1] bound = np.zeros(max(1, self.environment.rows), np.float32)
        cdef int64_t[::1] made = np.zeros(max(1, self.environment.queries), np.int64)
        cdef uint8_t[::1] silo = np.zeros(silos * sizeof(ff_bonus_silo), np.uint8)
        cdef double[::1] sample = np.zeros(silos * self.c.dimension)
        cdef double[::1] factor = np.zeros(size)
        cdef double[::1] own = np.zeros(1 if lazy else silos * size)
        cache.bound, cache.made = &bound[0], &made[0]
        cache.choices = self.environment.queries * self.environment.c.actions
        cache.silo = <ff_bonus_silo *>&silo[0]
        cache.sample, cache.factor = &sample[0], &factor[0]
        cache.directions = self.environment.directions
        cdef int64_t[::1] chosen = np.zeros(max(1, self.environment.queries) if lazy else 1, np.int64)
        cache.own = NULL
        self.curves[curve].chosen = NULL
        if lazy:
            self.curves[curve].chosen = &chosen[0]
        else:
            cache.own = &own[0]
        return made, bound, silo, sample, factor, own, chosen

    cdef void describe(self, ff_curve *c, curve) except *:
        memset(c, 0, sizeof(ff_curve))
        c.batch_size, c.lazy = curve["batch_size"], curve["lazy"]
        c.releases, c.by_release = curve["releases"], curve["by_release"]
        if curve["ends"] is not None:
            c.ends = <const int64_t *>pointer(curve["ends"])
        if curve["release_scale"] is not None:
            c.release_scale = pointer(curve["release_scale"])
        c.random = curve["random"]
        cdef uintptr_t function
        if curve["score"] is not None:
            function = curve["score"].function.address
            c.score = <ff_score>function
            c.score_diagonal = curve["score"].diagonal
            if curve["score"].state is not None:
                c.score_state = <const double *>address_of(curve["score"].state)
                c.score_state_size = curve["score"].state.size
        c.randomizer, c.analyzer = curve["randomizer"], curve["analyzer"]
        c.noise_std.bias, c.noise_std.off_diagonal, c.noise_std.diagonal = curve["noise_std"]
        c.radius.multiplier, c.radius.scale, c.radius.base = curve["radius"]
        c.radius.determinant, c.radius.anchor = curve["determinant"], curve["anchor"]
        c.radius.arms = curve["arms"]
        c.direct, c.inflation = curve["direct"], 1.0
        c.sieve.limit, c.sieve.slack, c.sieve.ranking = curve["sieve"]
        c.sieve_growth = curve["sieve_growth"]
        if curve["widths"] is not None:
            c.widths = pointer(curve["widths"])
        if "inverses" in curve:
            c.inverses = pointer(curve["inverses"])
        c.radius_count = curve["radius_count"]
        c.last_entry = len(curve["regularizer"]) - 1
        c.error_bound, c.floor = pointer(curve["error_bound"]), pointer(curve["floor"])
        c.release, c.coefficients = curve["release"], pointer(curve["coefficients"])
        c.buffers = curve["buffers"]
        c.history = pointer(curve["history"])
        c.share_until = curve["share_until"]
        if c.share_until:
            if curve["share_rule"] is not None:
                c.share_rule = <const uint8_t *>pointer(curve["share_rule"])
            if curve["share_threshold"] is not None:
                c.share_coin, c.share_threshold = 1, curve["share_threshold"]
            c.own_w, c.own_theta = pointer(curve["own_w"]), pointer(curve["own_theta"])
            if curve["own_bound"] is not None:
                (c.own_radius.multiplier, c.own_radius.scale, c.own_radius.base,
                 c.own_offset) = curve["own_bound"]
                c.own_radius.determinant, c.own_radius.anchor = 1, 1.0
            c.own_sieve_width = curve["own_sieve_width"]
            if c.own_sieve_width:
                c.local_w, c.local_theta = pointer(curve["local_w"]), pointer(curve["local_theta"])
            c.own_least = curve["belief"] is None
            if not c.own_least:
                fill_belief(&c.belief, curve["belief"])
                c.own_ridges, c.own_bonus = pointer(curve["own_ridges"]), curve["own_bonus"]
                c.own_sums, c.own_rest = pointer(curve["own_sums"]), pointer(curve["own_rest"])
                c.own_shared = pointer(curve["own_shared"])
        if curve["arrivals"] is not None:
            c.arrivals, c.arrival_count = pointer(curve["arrivals"]), len(curve["arrivals"])
            c.late = pointer(curve["late"])
            c.late_next = <int64_t *>pointer(curve["late_next"])
            c.late_ends = <int64_t *>pointer(curve["late_ends"])
        if curve["sends"] is not None:
            c.serves = <const uint8_t *>pointer(curve["serves"])
            c.sends, c.exchanges = <const uint8_t *>pointer(curve["sends"]), len(curve["sends"])
            c.reported = <int64_t *>pointer(curve["reported"])
            c.views = pointer(curve["views"])
            c.view_w, c.view_theta = pointer(curve["view_w"]), pointer(curve["view_theta"])
        c.noise_scale, c.drawn_once = pointer(curve["noise_scale"]), curve["drawn_once"]
        c.regularizer = pointer(curve["regularizer"])
        c.radius_offset = pointer(curve["radius_offset"])
        c.radius_lambda = pointer(curve["radius_lambda"])
        c.clip = curve["clip"]
        c.feature_bound = curve["feature_bound"]
        c.public_constant = curve["public_constant"]
        c.constant, c.reward_centre = curve["constant"], curve["reward_centre"]
        c.tau = curve["tau"]
        c.reward_low, c.reward_high = curve["reward_range"]
        c.flips = curve["flips"]
        c.bit_values[0], c.bit_values[1] = curve["bit_values"]
        c.count_values[0], c.count_values[1] = curve["count_values"]
        c.levels, c.shuffled = curve["levels"], curve["shuffled"]
        c.bit_levels = <int64_t *>pointer(curve["bit_levels"])
        c.noise_bits = <int64_t *>pointer(curve["noise_bits"])
        c.unit = pointer(curve["unit"])
        c.choice = <ff_choice *>pointer(curve["choice"])
        if curve["fixed"] is not None:
            c.fixed, c.fixed_size = pointer(curve["fixed"]), curve["fixed"].shape[1]
        c.order = <int64_t *>pointer(curve["order"])
        c.w, c.theta = pointer(curve["w"]), pointer(curve["theta"])
        c.log_dets = pointer(curve["log_dets"])
        c.batch, c.sums = pointer(curve["batch"]), pointer(curve["sums"])
        c.nodes, c.messages = pointer(curve["nodes"]), pointer(curve["messages"])
        c.total, c.regret = pointer(curve["total"]), pointer(curve["regret"])
        c.curve = pointer(curve["curve"])
        c.clipped = <int64_t *>pointer(curve["clipped"])
        c.indefinite = <int64_t *>pointer(curve["indefinite"])
        c.synchronised = <int64_t *>pointer(curve["synchronised"])
        if curve["actions"] is not None:
            c.actions = <int32_t *>pointer(curve["actions"])
            c.rewards = pointer(curve["rewards"])
        if curve["trigger"] is not None:
            self.describe_trigger(&c.trigger, curve["trigger"])
        if curve["requested"] is not None:
            c.requested = <uint8_t *>pointer(curve["requested"])
            c.synchronised_rounds = <uint8_t *>pointer(curve["synchronised_rounds"])

    cdef void describe_trigger(self, ff_trigger *trigger, state) except *:
        trigger.kind, trigger.delay = state["kind"], state["delay"]
        trigger.threshold, trigger.extra = state["threshold"], state["extra"]
        trigger.std.off_diagonal, trigger.std.diagonal = state["std"]
        trigger.levels = state["levels"]
        trigger.skip_bound = <ff_skip_bound *>pointer(state["skip_bound"])
        trigger.aggregate_factor = pointer(state["aggregate_factor"])
        trigger.nodes, trigger.snapshot = pointer(state["nodes"]), pointer(state["snapshot"])
        trigger.node_rounds = <int64_t *>pointer(state["node_rounds"])
        trigger.inverse, trigger.mass = pointer(state["inverse"]), pointer(state["mass"])
        trigger.trace_bound = <ff_trace_bound *>pointer(state["trace_bound"])
        trigger.fired = <int64_t *>pointer(state["fired"])

    def initialise(self):
        """Compute the estimates that hold before the first round."""
        self.raise_if(ff_run_initialise(&self.c))

    def simulate(self, int64_t first, int64_t last):
        """Simulate rounds first..last (counted from 1, both included), without the GIL. Only one
        thread at a time may call this; a second one gets a RuntimeError."""
        cdef int64_t status
        cdef bint busy
        with cython.critical_section(self):
            busy, self.busy = self.busy, True
        if busy:
            raise RuntimeError("a run simulates in one thread at a time: another one is at it")
        with nogil:
            status = ff_run_rounds(&self.c, first, last)
        self.busy = False
        self.raise_if(status)

    def numbers(self):
        """Return the numbers of the curves' state that are not in arrays, (curves, n). Together
        with the arrays, `resume` needs nothing else to continue."""
        cdef int64_t i, g
        rows = []
        for i in range(self.c.curve_count):
            c = &self.curves[i]
            rows.append([
                c.released, c.second_bonus, c.inflation, c.sieve.slack, c.log_inflation,
                c.log_det, c.trigger.before, c.trigger.ridge, c.trigger.last, c.trigger.due, c.alike,
                *[c.belief.ridge[g] for g in range(FF_MAX_GRID)],
            ])
        return np.array(rows, np.float64)

    def resume(self, const double[:, ::1] numbers):
        """Continue from the state that `numbers` returned, with the arrays of that time. Call it
        after `initialise`."""
        cdef int64_t i, g, j
        cdef ff_curve *c
        for i in range(self.c.curve_count):
            c = &self.curves[i]
            c.released = <int64_t>numbers[i, 0]
            c.second_bonus, c.inflation, c.sieve.slack = numbers[i, 1], numbers[i, 2], numbers[i, 3]
            c.log_inflation, c.log_det = numbers[i, 4], numbers[i, 5]
            c.trigger.before, c.trigger.ridge = numbers[i, 6], numbers[i, 7]
            c.trigger.last, c.trigger.due = <int64_t>numbers[i, 8], <int64_t>numbers[i, 9]
            c.alike = <int64_t>numbers[i, 10]
            for g in range(FF_MAX_GRID):
                c.belief.ridge[g] = numbers[i, 11 + g]
            # Cached bounds may be for another W than that of the last release: use none until the
            # next release.
            c.bonus_cache.version = 0
            for j in range(self.c.silos if c.bonus_cache.silo != NULL else 0):
                c.bonus_cache.silo[j].version = 0
        self.forget()

    def forget(self):
        """Forget remembered choices, for models that change without a release."""
        cdef int64_t i
        for i in range(self.c.curve_count):
            if self.curves[i].choice != NULL:
                memset(self.curves[i].choice, 0, self.c.silos * sizeof(ff_choice))
            if self.curves[i].chosen != NULL:
                memset(self.curves[i].chosen, 0, self.environment.queries * sizeof(int64_t))

    cdef raise_if(self, int64_t status):
        if status:
            raise self.environment.error() or status_error(status)
