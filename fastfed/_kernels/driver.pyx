# cython: language_level=3
"""The compiled driver (``src/ff_driver.h``): simulates rounds of a run without Python."""

from libc.stdint cimport int64_t, uint64_t, uintptr_t
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
    the previous value. Results do not depend on it. Tests of threads call this, because the work of
    tests is small."""
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
    """Return the number of doubles in a silo's model of a fixed set of at most ``actions`` actions
    (``src/ff_fixed.h``)."""
    return ff_fixed_size(actions, d)


def bonus_cache_size(int64_t d):
    """Return the number of doubles in the bounds that a bonus cache makes for one V: a factor in 16
    bits from which bounds on the bonuses of all actions follow."""
    return ff_bonus_cache_size(d)


cdef extern from *:
    """
    /* The fields of ff_curve that Python sets by name. INTEGER: 64 bits; REAL: a double or the
     * first of several; ARRAY: a pointer. */
    enum { FF_INTEGER, FF_REAL, FF_ARRAY };
    typedef struct { const char *name; size_t offset; int kind; } ff_field;
    #define FF_FIELD(field, kind) {#field, offsetof(ff_curve, field), kind},
    #define INTEGER(field) FF_FIELD(field, FF_INTEGER)
    #define REAL(field) FF_FIELD(field, FF_REAL)
    #define ARRAY(field) FF_FIELD(field, FF_ARRAY)
    static const ff_field ff_fields[] = {
        INTEGER(batch_size) INTEGER(releases) INTEGER(by_release) INTEGER(lazy) INTEGER(random)
        INTEGER(randomizer) INTEGER(analyzer) INTEGER(release) INTEGER(buffers) INTEGER(drawn_once)
        INTEGER(radius.determinant) INTEGER(radius.arms) INTEGER(direct) INTEGER(last_entry)
        INTEGER(clip) INTEGER(public_constant) INTEGER(flips) INTEGER(levels) INTEGER(shuffled)
        INTEGER(share_until) INTEGER(share_coin) INTEGER(share_threshold) INTEGER(own_least)
        INTEGER(own_radius.determinant) INTEGER(arrival_count) INTEGER(exchanges) INTEGER(released)
        INTEGER(alike) INTEGER(fixed_size) INTEGER(trigger.kind) INTEGER(trigger.delay)
        INTEGER(trigger.levels) INTEGER(trigger.last) INTEGER(trigger.due)
        REAL(noise_std) REAL(radius) REAL(radius.anchor) REAL(radius_count) REAL(tau)
        REAL(sieve) REAL(sieve.slack) REAL(sieve_growth) REAL(constant) REAL(reward_centre)
        REAL(feature_bound) REAL(reward_low) REAL(reward_high) REAL(bit_values) REAL(count_values)
        REAL(own_radius) REAL(own_radius.anchor) REAL(own_offset) REAL(own_sieve_width)
        REAL(own_bonus) REAL(second_bonus) REAL(inflation) REAL(log_inflation) REAL(log_det)
        REAL(trigger.threshold) REAL(trigger.extra) REAL(trigger.std.off_diagonal)
        REAL(trigger.before) REAL(trigger.ridge)
        ARRAY(ends) ARRAY(release_scale) ARRAY(coefficients) ARRAY(noise_scale) ARRAY(regularizer)
        ARRAY(radius_offset) ARRAY(radius_lambda) ARRAY(error_bound) ARRAY(floor) ARRAY(widths)
        ARRAY(bit_levels) ARRAY(noise_bits) ARRAY(unit) ARRAY(share_rule) ARRAY(own_ridges)
        ARRAY(arrivals) ARRAY(serves) ARRAY(sends) ARRAY(synchronised) ARRAY(requested)
        ARRAY(synchronised_rounds) ARRAY(inverses) ARRAY(choice) ARRAY(fixed) ARRAY(history)
        ARRAY(w) ARRAY(theta) ARRAY(log_dets) ARRAY(batch) ARRAY(sums) ARRAY(nodes)
        ARRAY(messages) ARRAY(own_w) ARRAY(own_theta) ARRAY(local_w) ARRAY(local_theta)
        ARRAY(own_sums) ARRAY(own_shared) ARRAY(own_rest) ARRAY(late) ARRAY(late_next)
        ARRAY(late_ends) ARRAY(reported) ARRAY(views) ARRAY(view_w) ARRAY(view_theta) ARRAY(order)
        ARRAY(total) ARRAY(regret) ARRAY(curve) ARRAY(clipped) ARRAY(indefinite) ARRAY(actions)
        ARRAY(rewards) ARRAY(trigger.skip_bound) ARRAY(trigger.aggregate_factor)
        ARRAY(trigger.nodes) ARRAY(trigger.snapshot) ARRAY(trigger.node_rounds)
        ARRAY(trigger.inverse) ARRAY(trigger.mass) ARRAY(trigger.trace_bound) ARRAY(trigger.fired)
    };
    """
    enum: FF_INTEGER, FF_REAL, FF_ARRAY
    ctypedef struct ff_field:
        const char *name
        size_t offset
        int kind
    const ff_field ff_fields[1]

FIELDS = {ff_fields[i].name.decode(): i for i in range(sizeof(ff_fields) // sizeof(ff_field))}
#: The names of the numbers of a curve's state. In `Run.numbers` the ridges of its model of local
#: rounds follow them.
NUMBERS = ("released", "second_bonus", "inflation", "sieve.slack", "log_inflation", "log_det",
           "trigger.before", "trigger.ridge", "trigger.last", "trigger.due", "alike")


cdef void put(ff_curve *c, str name, value) except *:
    """Set a field of a curve: a number, a tuple of doubles, or the address of an array."""
    cdef const ff_field *field = &ff_fields[FIELDS[name]]
    cdef char *place = <char *>c + field.offset
    if field.kind == FF_INTEGER:
        if value < 0:
            (<int64_t *>place)[0] = int(value)
        else:
            (<uint64_t *>place)[0] = int(value)
    elif field.kind == FF_ARRAY:
        (<void **>place)[0] = address_of(value)
    else:
        for i, number in enumerate(value if isinstance(value, tuple) else (value,)):
            (<double *>place)[i] = number


cdef get(ff_curve *c, str name):
    """Return the number in a field of a curve."""
    cdef const ff_field *field = &ff_fields[FIELDS[name]]
    cdef char *place = <char *>c + field.offset
    return (<double *>place)[0] if field.kind == FF_REAL else (<int64_t *>place)[0]


cdef class Run:
    """One replicate of one or several curves over one environment (see ``src/ff_run.h``).

    Each curve is a mapping with the numbers of the plan and the arrays of the state, named as in
    ff_curve; None leaves a field zero. A run may be a part of a larger run: silo i of this run is
    then silo ``names[i]`` of the larger run, and the rounds of this run are those of the larger run
    that equal ``phase`` modulo ``stride``. A curve with a trigger must be the only curve.
    """

    cdef ff_run c
    cdef ff_curve curves[FF_MAX_CURVES]
    cdef list keep
    cdef Environment environment
    cdef bint busy

    def __init__(self, Environment environment, int64_t silos, int64_t horizon,
                 const int64_t[::1] checkpoints, curves, int64_t threads,
                 const int64_t[::1] names=None, int64_t phase=0, int64_t stride=1):
        cdef int64_t d = environment.c.dimension, i
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
        self.c.noise_scratch, self.c.trigger_scratch = ff_noise_capacity(d), ff_trigger_scratch(d)
        self.c.scratch_size = ff_run_scratch(environment.c.actions, d, most, len(curves))
        if any(curve["share_until"] for curve in curves):
            self.c.belief_scratch = ff_belief_scratch(d)
            self.c.scratch_size += self.c.belief_scratch
        scored = [curve["score"] for curve in curves if curve["score"] is not None]
        if scored:
            state = max(0 if score.state is None else score.state.size for score in scored)
            self.c.scratch_size += ff_scored_scratch(d, environment.c.actions, state)
        if any(curve["radius.arms"] and curve["fixed"] is not None for curve in curves):
            self.c.scratch_size += ff_groups_scratch(d)
        self.c.scratch_size = (self.c.scratch_size + 63) // 64 * 64
        scratch = np.empty(self.c.threads * self.c.scratch_size + 8)
        self.c.scratch = <double *>((<uintptr_t>address_of(scratch) + 63) // 64 * 64)
        self.keep = [checkpoints, scratch, curves, names]
        self.c.status = <int64_t *>self.zeros(silos, np.int64)
        for i, curve in enumerate(curves):
            self.describe(&self.curves[i], curve)
            # The bonus cache of a silo that learns within a batch relies on one data point in each
            # round. Rewards that arrive late bring none or several.
            late = curve["arrivals"] is not None and not curve["lazy"]
            # Cached bounds are made for the W that all silos adopt at a release. Silos with their
            # own clocks adopt several.
            clocked = curve["sends"] is not None
            chooses = not curve["random"] and curve["score"] is None and not late and not clocked
            if chooses and curve["fixed"] is None and self.bounds_pay():
                self.bonus_cache(&self.curves[i], curve["lazy"])

    def bonus_bounds(self):
        """Return the state of the bonus bounds: three arrays for each curve that has a bonus cache.

        The first array holds, for each query, one plus the number of releases when its bounds were
        cached; 0: no bounds. The second holds, for each silo, how often it has made new bounds from
        its W since the last release. The third holds, for each silo, a bound on the growth of
        ||V^{-1} x|| since its bounds were made, in units of ||W x||.
        """
        cdef ff_bonus_cache *cache
        bounds = []
        for i in range(self.c.curve_count):
            cache = &self.curves[i].bonus_cache
            if cache.silo != NULL:
                # The version of a query's bounds; its upper bits are one plus the releases.
                releases = [cache.made[j] >> 30 for j in range(self.environment.queries)]
                factors = [cache.silo[j].made for j in range(self.c.silos)]
                moved = [cache.silo[j].moved for j in range(self.c.silos)]
                bounds.append((np.array(releases), np.array(factors), np.array(moved)))
        return bounds

    cdef bint bounds_pay(self):
        """Return whether cached bounds on bonuses save time.

        They do if a pool stores its actions in 16 bits. Without such a pool they do if dimension
        and sets are large enough, the features are float32, and the sets change.
        """
        cdef const ff_environment *c = self.c.environment
        if self.environment.rows:
            return True
        return (not self.environment.fixed and not c.is_double and c.dimension >= 32
                and c.actions >= 16)

    cdef void *zeros(self, int64_t count, dtype) except NULL:
        """Return the address of ``count`` zeros, at least one, which live as long as the run. The
        operating system gives memory to pages only when they are written."""
        array = np.zeros(max(1, count), dtype)
        self.keep.append(array)
        return address_of(array)

    cdef void bonus_cache(self, ff_curve *c, bint lazy) except *:
        """Allocate the bonus cache of a curve, which refers to it from now on."""
        cdef ff_bonus_cache *cache = &c.bonus_cache
        cdef int64_t size = ff_bonus_cache_size(self.c.dimension), silos = self.c.silos
        cdef int64_t queries = self.environment.queries
        cache.bound = <float *>self.zeros(self.environment.rows, np.float32)
        cache.made = <int64_t *>self.zeros(queries, np.int64)
        cache.choices = queries * self.environment.c.actions
        cache.silo = <ff_bonus_silo *>self.zeros(silos * sizeof(ff_bonus_silo), np.uint8)
        cache.sample = <double *>self.zeros(silos * self.c.dimension, np.float64)
        cache.factor = <double *>self.zeros(size, np.float64)
        cache.directions = self.environment.directions
        if lazy:
            c.chosen = <int64_t *>self.zeros(queries, np.int64)
        else:
            cache.own = <double *>self.zeros(silos * size, np.float64)

    cdef void describe(self, ff_curve *c, curve) except *:
        """Set the fields of a curve from its mapping."""
        cdef uintptr_t function
        memset(c, 0, sizeof(ff_curve))
        for name, value in curve.items():
            if name == "trigger":
                for part, value in (value or {}).items():
                    put(c, f"trigger.{part}", value)
            elif name == "belief" and value is not None:
                fill_belief(&c.belief, value)
            elif name == "score" and value is not None:
                function = value.function.address
                c.score, c.score_diagonal = <ff_score>function, value.diagonal
                if value.state is not None:
                    c.score_state = <const double *>address_of(value.state)
                    c.score_state_size = value.state.size
            elif value is not None:
                put(c, name, value)
        if curve["fixed"] is not None:
            put(c, "fixed_size", curve["fixed"].shape[1])

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
        """Return the numbers of the curves' state that are not in arrays, (curves, n).
        `resume` needs only these numbers and the arrays to continue."""
        cdef int64_t i, g
        rows = []
        for i in range(self.c.curve_count):
            rows.append([*[get(&self.curves[i], name) for name in NUMBERS],
                         *[self.curves[i].belief.ridge[g] for g in range(FF_MAX_GRID)]])
        return np.array(rows, np.float64)

    def resume(self, const double[:, ::1] numbers):
        """Continue from the state that `numbers` returned, with the arrays of that time. Call it
        after `initialise`."""
        cdef int64_t i, g, j
        cdef ff_curve *c
        for i in range(self.c.curve_count):
            c = &self.curves[i]
            for j, name in enumerate(NUMBERS):
                put(c, name, numbers[i, j])
            for g in range(FF_MAX_GRID):
                c.belief.ridge[g] = numbers[i, len(NUMBERS) + g]
            # Cached bounds may be for another W than that of the last release: use none until the
            # next release.
            c.bonus_cache.version = 0
            for j in range(self.c.silos if c.bonus_cache.silo != NULL else 0):
                c.bonus_cache.silo[j].version = 0
        self.forget()

    def forget(self):
        """Discard the stored choices of silos, for models that change without a release."""
        cdef int64_t i
        for i in range(self.c.curve_count):
            if self.curves[i].choice != NULL:
                memset(self.curves[i].choice, 0, self.c.silos * sizeof(ff_choice))
            if self.curves[i].chosen != NULL:
                memset(self.curves[i].chosen, 0, self.environment.queries * sizeof(int64_t))

    cdef raise_if(self, int64_t status):
        """Raise the exception for a status of the C code, unless it is 0."""
        if status:
            raise self.environment.error() or status_error(status)
