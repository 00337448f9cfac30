# cython: language_level=3
"""Python's door to the C kernels: thin, trusting wrappers. Public, validated doors are in
``fastfed.kernels``; the reasons behind each routine stand in ``src/*.h``."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

import numpy as np

cdef extern from "ff_random.h" nogil:
    ctypedef struct ff_stream:
        pass
    ff_stream ff_stream_open(uint64_t seed, uint64_t purpose, uint32_t replicate, uint32_t silo,
                             uint32_t index)
    int64_t ff_normal_capacity_f32(int64_t n)
    int64_t ff_normal_capacity_f64(int64_t n)
    void ff_normals_f32(const ff_stream *s, int64_t n, float *out)
    void ff_normals_f64(const ff_stream *s, int64_t n, double *out)
    void ff_normals_from_bits(const uint64_t *a, const uint64_t *b, int64_t half, double *out)
    double ff_uniform(const ff_stream *s, uint32_t block)
    int64_t ff_below(const ff_stream *s, int64_t n)
    void ff_permutation(const ff_stream *s, int64_t n, int64_t *out)
    void ff_philox(const ff_stream *s, uint32_t block, uint32_t *out)
    uint64_t ff_key(const ff_stream *s)
    int64_t ff_laplace_capacity(int64_t n)
    void ff_laplace(const ff_stream *s, int64_t n, double *out)
    void ff_laplace_from_bits(const uint64_t *a, int64_t n, double *out)
    int64_t ff_ideal_normals(const uint64_t *words, int64_t half, double *out)
    int64_t ff_ideal_laplace(const uint64_t *words, int64_t n, double *out)
    double ff_log(double x)
    int64_t ff_word_capacity(int64_t n)
    void ff_words(const ff_stream *s, int64_t n, uint32_t *out)

cdef extern from "ff_linalg.h" nogil:
    int ff_factor(const double *packed, int64_t d, double *w)
    void ff_solve(const double *w, const double *u, int64_t d, double *scratch, double *theta)
    double ff_log_det(const double *w, int64_t d)
    double ff_observe(double *w, double *theta, const double *x, double y, int64_t d,
                      double *scratch)
    void ff_accumulate(double *gram, double *bias, const double *x, double y, int64_t d)
    void ff_rank_one(double *gram, double *bias, const double *x, double y, int64_t d)
    void ff_sherman_morrison(double *inverse, const double *x, int64_t d, double *scratch)
    int ff_clip_norm(double *x, int64_t d, double bound)

cdef extern from "ff_scores.h" nogil:
    ctypedef struct ff_actions:
        const void *x
        int64_t is_double
        int64_t action_stride
        int64_t feature_stride
        int64_t actions
        const double *mean
        double best
        const void *shorts
    int64_t ff_score_scratch(int64_t d, int64_t actions)
    void ff_scores(const ff_actions *actions, const double *w, const double *theta, double beta,
                   double gamma, int64_t d, double *scratch, double *scores)
    ctypedef struct ff_reach:
        const float *upper
    int64_t ff_select(const ff_actions *actions, const double *w, const double *theta,
                      double beta, double gamma, int64_t d, double *scratch, double *x,
                      ff_reach *reach)
    void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *x)
    ctypedef int64_t (*ff_score)(void *state, uint64_t key, int64_t round, int64_t actions,
                                 int64_t dimension, double *x, double *w, double *theta,
                                 double beta, double gamma, double *scores) noexcept nogil
    int64_t ff_scored_scratch(int64_t d, int64_t actions, int64_t state_size)
    int64_t ff_scored(ff_score score, const double *state, int64_t state_size, uint64_t key,
                      int64_t round, const ff_actions *actions, const double *w,
                      const double *theta, double beta, double gamma, int64_t d,
                      double *scratch, double *x)

cdef extern from "ff_short.h" nogil:
    ctypedef struct ff_short_store:
        char *room
        const int64_t *starts
        uint8_t *made
    int64_t ff_short_fits(const ff_actions *actions, int64_t d)
    int64_t ff_short_bytes(int64_t d, int64_t actions)
    int64_t ff_short_sieve(const ff_actions *actions, const double *w, const double *theta,
                           double beta, int64_t d, double *scratch, int64_t *candidates)

cdef extern from "ff_widths.h" nogil:
    ctypedef struct ff_widths:
        float *bound
        int64_t *made
        int64_t *useless
        double *room
    int64_t ff_widths_room(int64_t d)

cdef extern from "ff_mean.h" nogil:
    int ff_least_squares(const double *statistic, int64_t d, double *scratch, double *theta)
    void ff_hadamard(double *values, int64_t n)

cdef extern from "ff_environment.h" nogil:
    ctypedef int64_t (*ff_fill)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                int64_t round, void *x, double *mean) noexcept nogil
    ctypedef int64_t (*ff_borrow)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                  int64_t round, ff_actions *out) noexcept nogil
    ctypedef double (*ff_mean)(const void *state, const void *x, int64_t a) noexcept nogil
    ctypedef struct ff_environment:
        ff_fill fill
        ff_borrow borrow
        ff_mean mean
        double mean_error
        void *state
        int64_t dimension
        int64_t actions
        int64_t is_double
        int64_t stride
        int64_t reward_law
        double reward_std
    enum:
        FF_CONTEXT
        FF_CALLBACK_FAILED
        FF_NOT_POSITIVE_DEFINITE
        FF_NO_ACTIONS
        FF_NOT_FINITE
        FF_SCORE_FAILED
        FF_WITHOUT_REPLACEMENT
    int64_t ff_fill_capacity(int64_t actions, int64_t dimension)
    int64_t ff_stride(int64_t actions)
    int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate,
                          int64_t silo, int64_t round, void *x, double *mean, ff_actions *out)
    double ff_mean_of(const ff_environment *env, const ff_actions *actions, int64_t a)
    double ff_mean_error(int64_t d)
    double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate,
                        int64_t silo, int64_t round, double mean)
    ctypedef struct ff_sphere:
        const double *theta
        int64_t dimension
        int64_t actions
        int64_t basis_actions
        int64_t shared
    int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, void *x, double *mean) noexcept
    double ff_sphere_mean(const void *state, const void *x, int64_t a) noexcept
    ctypedef struct ff_gap:
        const double *theta
        int64_t dimension
        int64_t actions
        double inferior
        double best
        double width
    int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                        int64_t round, void *x, double *mean) noexcept
    double ff_gap_mean(const void *state, const void *x, int64_t a) noexcept
    ctypedef struct ff_hard:
        const double *theta
        int64_t dimension
    int64_t ff_hard_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                         int64_t round, void *x, double *mean) noexcept
    ctypedef struct ff_pool:
        const void *values
        int64_t is_double
        int64_t feature_major
        int64_t dimension
        const double *means
        const double *best
        const int64_t *starts
        const int64_t *silo_starts
        const int64_t *order
        int64_t sampling
        ff_short_store shorts
    int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, ff_actions *out) noexcept
    int64_t ff_pool_query(const ff_pool *pool, uint64_t seed, int64_t replicate, int64_t silo,
                          int64_t round)

cdef extern from "ff_bits.h" nogil:
    void ff_round_point(const double *point, int64_t s, double g, int64_t clamped,
                        const uint32_t *words, double *sums)
    int64_t ff_touched_levels(int64_t leaf, int64_t releases, int64_t *levels)
    int64_t ff_binomial_try(const uint32_t *words, int64_t n, double *out)
    void ff_binomials(const ff_stream *stream, int64_t n, int64_t count, double *out)
    void ff_encode_bits(int64_t ones, int64_t length, uint8_t *bits)
    void ff_shuffle_bits(const ff_stream *stream, uint8_t *bits, int64_t n)

cdef extern from "ff_protocol.h" nogil:
    ctypedef struct ff_noise_std:
        double bias
        double off_diagonal
        double diagonal
    ctypedef struct ff_radius:
        double multiplier
        double scale
        double base
        int64_t determinant
        double anchor
    int64_t ff_node_level(int64_t k)
    void ff_psum(double *sums, const double *leaf, int64_t level, int64_t s)
    void ff_prefix(const double *nodes, int64_t k, int64_t s, double *out)
    void ff_add(double *into, const double *other, int64_t s)
    void ff_scale(const double *statistic, double factor, int64_t s, double *out)
    void ff_add_noise(const double *statistic, const double *normals, const ff_noise_std *std,
                      int64_t d, double *out)
    int64_t ff_noise_capacity(int64_t d)
    void ff_node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d,
                         double *normals)
    double ff_refresh(const double *statistic, double lam, int64_t d, double *w, double *theta,
                      double *scratch)
    double ff_radius_at(const ff_radius *radius, double offset, double lam, double count,
                        int64_t d)
    double ff_log_inflation(const ff_radius *radius, double inflation)
    double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                                 double log_inflation, double log_det, int64_t d)
    double ff_choose_regularizer(const double *statistic, double full, double floor, int64_t d,
                                 double *w, double *scratch)

cdef extern from "ff_release.h" nogil:
    void ff_honaker(double *estimate, const double *node, const double *sibling, int64_t level,
                    int64_t s)
    int64_t ff_honaker_number(int64_t k)
    void ff_toeplitz(const double *history, const double *f, int64_t k, int64_t s, double *out)
    int64_t ff_round_noisy(const double *values, const double *noise, const double *std,
                           const double *grid, double error, int64_t s, double *out,
                           uint8_t *doubtful)

cdef extern from "ff_clock.h" nogil:
    enum:
        FF_ANEW
    ctypedef struct ff_rest:
        double base
    ctypedef struct ff_clock:
        int64_t kind
        int64_t delay
        double threshold
        double extra
        ff_noise_std std
        int64_t levels
        ff_rest *rest
        double *wide
        double *nodes
        int64_t *fired
        double *saved

cdef extern from "ff_play.h" nogil:
    enum:
        FF_MOST_CURVES
    ctypedef struct ff_contenders:
        const void *x
    ctypedef struct ff_choice:
        const void *x
        int64_t released
        int64_t action
    ctypedef struct ff_curve:
        int64_t batch_size
        ff_clock clock
        int64_t lazy
        int64_t random
        ff_score score
        const double *score_state
        int64_t score_state_size
        int64_t randomizer
        int64_t analyzer
        int64_t release
        const double *coefficients
        const double *noise_scale
        ff_noise_std noise_std
        ff_radius radius
        int64_t direct
        double radius_count
        int64_t last_entry
        const double *regularizer
        const double *radius_offset
        const double *radius_lambda
        const double *error_bound
        const double *floor
        int64_t clip
        double feature_bound
        double reward_low
        double reward_high
        int64_t levels
        int64_t shuffled
        const int64_t *bit_levels
        const int64_t *noise_bits
        const double *unit
        int64_t *synchronised
        uint8_t *asked
        uint8_t *met
        double second_bonus
        double inflation
        ff_choice *choice
        ff_contenders *contend
        ff_widths widths
        double *history
        double *w
        double *theta
        double *batch
        double *sums
        double *nodes
        double *messages
        int64_t *order
        double *total
        double *regret
        double *curve
        int64_t *clipped
        int64_t *indefinite
        int32_t *actions
        double *rewards
    ctypedef struct ff_pass:
        const ff_environment *environment
        uint64_t seed
        int64_t replicate
        int64_t silos
        int64_t dimension
        int64_t horizon
        const int64_t *names
        int64_t phase
        int64_t stride
        const int64_t *checkpoints
        int64_t checkpoint_count
        ff_curve *curves
        int64_t curve_count
        int64_t threads
        double *scratch
        int64_t scratch_size
        int64_t *status
    int64_t ff_play_scratch(int64_t actions, int64_t dimension, int64_t levels, int64_t curves)
    int64_t ff_play_saved(int64_t dimension)
    int64_t ff_begin(ff_pass *p)
    int64_t ff_play(ff_pass *p, int64_t first, int64_t last)

cdef extern from *:
    """
    #ifdef FF_TARGET_CLONES
    #define FF_HAS_CLONES 1
    #else
    #define FF_HAS_CLONES 0
    #endif
    #ifdef _OPENMP
    #define FF_HAS_OPENMP 1
    #else
    #define FF_HAS_OPENMP 0
    #endif
    """
    int FF_HAS_CLONES
    int FF_HAS_OPENMP

#: How the extension was built, for ``fastfed doctor``.
HAS_TARGET_CLONES = bool(FF_HAS_CLONES)
HAS_OPENMP = bool(FF_HAS_OPENMP)


# ---- keyed randomness ---------------------------------------------------------------------------

def philox(seed, purpose, replicate, silo, index, block):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef uint32_t[::1] out = np.empty(4, np.uint32)
    ff_philox(&s, block, &out[0])
    return np.asarray(out)


def key(seed, purpose, replicate, silo, index):
    """64 uniform bits of a stream."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_key(&s)


def normals_f32(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef float[::1] out = np.empty(max(1, ff_normal_capacity_f32(n)), np.float32)
    ff_normals_f32(&s, n, &out[0])
    return np.asarray(out)[:n]


def normals_f64(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, ff_normal_capacity_f64(n)))
    ff_normals_f64(&s, n, &out[0])
    return np.asarray(out)[:n]


def normals_from_bits(const uint64_t[::1] a, const uint64_t[::1] b):
    cdef int64_t half = a.shape[0]
    cdef double[::1] out = np.empty(2 * half)
    if half:
        ff_normals_from_bits(&a[0], &b[0], half, &out[0])
    return np.asarray(out)


def uniform(seed, purpose, replicate, silo, index):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_uniform(&s, 0)


def below(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    return ff_below(&s, n)


def permutation(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef int64_t[::1] out = np.empty(max(1, n), np.int64)
    ff_permutation(&s, n, &out[0])
    return np.asarray(out)[:n]


def words(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef uint32_t[::1] out = np.empty(max(1, ff_word_capacity(n)), np.uint32)
    ff_words(&s, n, &out[0])
    return np.asarray(out)[:n]


def laplace(seed, purpose, replicate, silo, index, int64_t n):
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, ff_laplace_capacity(n)))
    ff_laplace(&s, n, &out[0])
    return np.asarray(out)[:n]


def laplace_rows(seed, purpose, replicate, int64_t silos, index, int64_t n):
    """laplace() of silos 0..silos-1, (silos, n)."""
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
    cdef double[::1] out = np.empty(max(1, bits.shape[0]))
    if bits.shape[0]:
        ff_laplace_from_bits(&bits[0], bits.shape[0], &out[0])
    return np.asarray(out)[: bits.shape[0]]


def ideal_normals(const uint64_t[::1] words):
    """Normals of radii and turns (2 half,), and how many radii 64 bits do not settle."""
    cdef int64_t half = words.shape[0] // 2
    cdef double[::1] out = np.empty(2 * half)
    if half == 0:
        return np.asarray(out), 0
    cdef int64_t unsure = ff_ideal_normals(&words[0], half, &out[0])
    return np.asarray(out), unsure


def ideal_laplace(const uint64_t[::1] words):
    """Laplace draws (n,), and how many of them 64 bits do not settle."""
    cdef double[::1] out = np.empty(words.shape[0])
    if words.shape[0] == 0:
        return np.asarray(out), 0
    cdef int64_t unsure = ff_ideal_laplace(&words[0], words.shape[0], &out[0])
    return np.asarray(out), unsure


def log(double x):
    return ff_log(x)


# ---- linear algebra -----------------------------------------------------------------------------

def factor(const double[::1] packed, int64_t d):
    """W, or None when V is not positive definite."""
    cdef double[:, ::1] w = np.empty((d, d))
    if ff_factor(&packed[0], d, &w[0, 0]):
        return None
    return np.asarray(w)


def solve(const double[:, ::1] w, const double[::1] u):
    cdef int64_t d = w.shape[0]
    cdef double[::1] theta = np.empty(d), scratch = np.empty(d)
    ff_solve(&w[0, 0], &u[0], d, &scratch[0], &theta[0])
    return np.asarray(theta)


def least_squares(const double[:, ::1] statistics, int64_t d):
    """V^+ u of every row (M, s) as (M, d); 0 where a statistic is not finite."""
    cdef double[:, ::1] theta = np.zeros((statistics.shape[0], d))
    cdef double[::1] scratch = np.empty(2 * d * d + d)
    cdef int64_t i
    for i in range(statistics.shape[0]):
        ff_least_squares(&statistics[i, 0], d, &scratch[0], &theta[i, 0])
    return np.asarray(theta)


def hadamard(values):
    """H v of every row v of a (M, 2^k) array."""
    made = np.array(values, dtype=np.float64, order="C", ndmin=2)
    cdef double[:, ::1] rows = made
    cdef int64_t i
    for i in range(rows.shape[0]):
        ff_hadamard(&rows[i, 0], rows.shape[1])
    return made


def log_det(const double[:, ::1] w):
    return ff_log_det(&w[0, 0], w.shape[0])


def observe(double[:, ::1] w, double[::1] theta, const double[::1] x, double y):
    """In place; theta may be None."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] scratch = np.empty(4 * d)
    cdef double *t = NULL
    if theta is not None:
        t = &theta[0]
    return ff_observe(&w[0, 0], t, &x[0], y, d, &scratch[0])


def accumulate(double[::1] statistic, const double[::1] x, double y):
    """In place: statistic is (bias, packed covariance)."""
    cdef int64_t d = x.shape[0]
    ff_accumulate(&statistic[0] + d, &statistic[0], &x[0], y, d)


def rank_one(double[:, ::1] gram, double[::1] bias, const double[::1] x, double y):
    """In place: gram is (d, d)."""
    ff_rank_one(&gram[0, 0], &bias[0], &x[0], y, x.shape[0])


def sherman_morrison(double[:, ::1] inverse, const double[::1] x):
    cdef int64_t d = x.shape[0]
    cdef double[::1] scratch = np.empty(d)
    ff_sherman_morrison(&inverse[0, 0], &x[0], d, &scratch[0])


def clip_norm(double[::1] x, double bound):
    """In place; True when x was above the bound by more than rounding."""
    return bool(ff_clip_norm(&x[0], x.shape[0], bound))


# ---- scores -------------------------------------------------------------------------------------

cdef ff_actions view_of(actions) except *:
    """Actions (K, d) of float32 or float64, any positive strides."""
    cdef ff_actions view
    cdef int64_t size = actions.itemsize
    cdef uintptr_t address = actions.__array_interface__["data"][0]
    view.x = <const void *>address
    view.is_double = size == 8
    view.action_stride = actions.strides[0] // size
    view.feature_stride = actions.strides[1] // size
    view.actions = actions.shape[0]
    view.mean = NULL
    view.best = 0.0
    view.shorts = NULL
    return view


def scores(actions, const double[:, ::1] w, const double[::1] theta, double beta, double gamma):
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] out = np.empty(view.actions)
    ff_scores(&view, &w[0, 0], &theta[0], beta, gamma, d, &scratch[0], &out[0])
    return np.asarray(out)


def select(actions, const double[:, ::1] w, const double[::1] theta, double beta, double gamma):
    """(index, features) of the best action."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] x = np.empty(d)
    cdef int64_t a = ff_select(&view, &w[0, 0], &theta[0], beta, gamma, d, &scratch[0], &x[0], NULL)
    return a, np.asarray(x)


cdef void *state_of(array) except? NULL:
    """Where a user's state lies; NULL for none."""
    if array is None:
        return NULL
    cdef uintptr_t address = array.__array_interface__["data"][0]
    return <void *>address


def scored(score, uint64_t key, int64_t round, actions, const double[:, ::1] w,
           const double[::1] theta, double beta, double gamma):
    """(index, features) of the best action by a user's scores (function, state)."""
    cdef int64_t d = w.shape[0], a
    cdef ff_actions view = view_of(actions)
    cdef uintptr_t function = score.function.address
    cdef const double *state = <const double *>state_of(score.state)
    cdef int64_t size = 0 if score.state is None else score.state.size
    cdef double[::1] scratch = np.empty(ff_scored_scratch(d, view.actions, size))
    cdef double[::1] x = np.empty(d)
    with nogil:
        a = ff_scored(<ff_score>function, state, size, key, round, &view, &w[0, 0], &theta[0],
                      beta, gamma, d, &scratch[0], &x[0])
    if a < 0:
        raise status_error(FF_SCORE_FAILED)
    return a, np.asarray(x)


def has_short_sieve():
    """Whether this build and this processor have the 16-bit sieve."""
    cdef ff_actions view
    view.is_double, view.action_stride = 0, 1
    return bool(ff_short_fits(&view, 1))


def short_candidates(actions, const double[:, ::1] w, const double[::1] theta, double beta):
    """What the 16-bit sieve keeps, indices ascending; None where it does not fit or cannot tell."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef int64_t[::1] out = np.empty(view.actions, np.int64)
    if not ff_short_fits(&view, d):
        return None
    cdef int64_t kept = ff_short_sieve(&view, &w[0, 0], &theta[0], beta, d, &scratch[0], &out[0])
    return None if kept < 0 else np.asarray(out)[:kept]


# ---- protocol arithmetic ------------------------------------------------------------------------

def node_level(int64_t k):
    return ff_node_level(k)


def psum(double[:, ::1] sums, const double[::1] leaf, int64_t level):
    """In place: sums[level] becomes the p-sum that ends with this leaf."""
    ff_psum(&sums[0, 0], &leaf[0], level, leaf.shape[0])


def prefix(const double[:, ::1] nodes, int64_t k):
    cdef double[::1] out = np.empty(nodes.shape[1])
    ff_prefix(&nodes[0, 0], k, nodes.shape[1], &out[0])
    return np.asarray(out)


def add(double[::1] into, const double[::1] other):
    ff_add(&into[0], &other[0], into.shape[0])


def scale(const double[::1] statistic, double factor):
    cdef double[::1] out = np.empty(statistic.shape[0])
    ff_scale(&statistic[0], factor, statistic.shape[0], &out[0])
    return np.asarray(out)


def add_noise(const double[::1] statistic, const double[::1] normals, int64_t d, double bias,
              double off_diagonal, double diagonal):
    cdef ff_noise_std std
    std.bias, std.off_diagonal, std.diagonal = bias, off_diagonal, diagonal
    cdef double[::1] out = np.empty(statistic.shape[0])
    ff_add_noise(&statistic[0], &normals[0], &std, d, &out[0])
    return np.asarray(out)


def round_noisy(const double[::1] values, const double[::1] noise, const double[::1] std,
                const double[::1] grid, double error):
    """(values + std noise on the grid, the entries whose rounding is not certain)."""
    cdef int64_t s = values.shape[0]
    cdef double[::1] out = np.empty(s)
    cdef uint8_t[::1] doubtful = np.empty(s, dtype=np.uint8)
    if s == 0 or not ff_round_noisy(&values[0], &noise[0], &std[0], &grid[0], error, s, &out[0],
                                    &doubtful[0]):
        return np.asarray(out), []
    return np.asarray(out), np.flatnonzero(np.asarray(doubtful)).tolist()


def node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d):
    cdef double[::1] out = np.empty(ff_noise_capacity(d))
    ff_node_normals(seed, replicate, silo, node, d, &out[0])
    return np.asarray(out)[:d + d * (d + 1) // 2]


def refresh(const double[::1] statistic, double regularizer, double[:, ::1] w, double[::1] theta):
    """In place: W and theta of V = lambda I + covariance; the shift V needed, -1 if hopeless."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] scratch = np.empty(d * (d + 1) // 2 + d)
    return ff_refresh(&statistic[0], regularizer, d, &w[0, 0], &theta[0], &scratch[0])


def choose_regularizer(const double[::1] statistic, double full, double floor, int64_t d):
    """The least full j / 8 that leaves every eigenvalue of V above floor, or full."""
    cdef double[:, ::1] w = np.empty((d, d))
    cdef double[::1] scratch = np.empty(d * (d + 1) // 2)
    return ff_choose_regularizer(&statistic[0], full, floor, d, &w[0, 0], &scratch[0])


def radius_at(double multiplier, double scale, double base, double offset, double lam,
              double count, int64_t d):
    cdef ff_radius radius
    radius.multiplier, radius.scale, radius.base = multiplier, scale, base
    return ff_radius_at(&radius, offset, lam, count, d)


def determinant_radius(double multiplier, double scale, double base, double offset, double anchor,
                       double inflation, double log_det, int64_t d):
    cdef ff_radius radius
    radius.multiplier, radius.scale, radius.base = multiplier, scale, base
    radius.anchor = anchor
    return ff_determinant_radius(&radius, offset, inflation,
                                 ff_log_inflation(&radius, inflation), log_det, d)


# ---- releases -----------------------------------------------------------------------------------

def honaker(double[::1] estimate, const double[::1] node, const double[::1] sibling,
            int64_t level):
    """In place: the estimate of a node from its own noise and its children's estimates."""
    ff_honaker(&estimate[0], &node[0], &sibling[0], level, estimate.shape[0])


def honaker_number(int64_t k):
    return ff_honaker_number(k)


def toeplitz(const double[:, ::1] history, const double[::1] f, int64_t k):
    """Noise of prefix k from the rows of history, (s,)."""
    cdef double[::1] out = np.empty(history.shape[1])
    ff_toeplitz(&history[0, 0], &f[0], k, history.shape[1], &out[0])
    return np.asarray(out)


# ---- bits ---------------------------------------------------------------------------------------

def touched_levels(int64_t leaf, int64_t releases):
    """Levels of the tree nodes that hold a leaf, lowest first."""
    cdef int64_t[64] levels
    cdef int64_t count = ff_touched_levels(leaf, releases, &levels[0])
    return [levels[i] for i in range(count)]


def round_point(const double[::1] point, double g, bint clamped, const uint32_t[::1] random,
                double[::1] sums):
    """In place: sums gains the point's entries in fixed point, rounded at random, less g."""
    ff_round_point(&point[0], point.shape[0], g, clamped, &random[0], &sums[0])


def round_points(const double[:, ::1] points, double g, bint clamped,
                 const uint32_t[:, ::1] random, double[::1] sums):
    """``round_point`` for each row."""
    cdef int64_t i
    for i in range(points.shape[0]):
        ff_round_point(&points[i, 0], points.shape[1], g, clamped, &random[i, 0], &sums[0])


def binomials(seed, purpose, replicate, silo, index, int64_t n, int64_t count):
    """Draws of Bin(n, 1/4) - n / 4, (count,)."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double[::1] out = np.empty(max(1, count))
    ff_binomials(&s, n, count, &out[0])
    return np.asarray(out)[:count]


def binomials_from_words(const uint32_t[:, ::1] random, int64_t n):
    """One try for each row of four words: Bin(n, 1/4) - n / 4, NaN where the try is rejected."""
    cdef int64_t j
    cdef double[::1] out = np.full(max(1, random.shape[0]), np.nan)
    cdef double drawn
    for j in range(random.shape[0]):
        if ff_binomial_try(&random[j, 0], n, &drawn):
            out[j] = drawn
    return np.asarray(out)[:random.shape[0]]


def encode_bits(const int64_t[::1] ones, int64_t length):
    """Messages of `length` bits with so many ones each, one byte a bit: (entries, length)."""
    cdef int64_t j
    cdef uint8_t[:, ::1] out = np.empty((ones.shape[0], length), np.uint8)
    for j in range(ones.shape[0] if length else 0):
        ff_encode_bits(ones[j], length, &out[j, 0])
    return np.asarray(out)


def shuffle_bits(seed, purpose, replicate, silo, index, uint8_t[::1] bits):
    """In place: a uniform random permutation."""
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    if bits.shape[0]:
        ff_shuffle_bits(&s, &bits[0], bits.shape[0])


# ---- environments -------------------------------------------------------------------------------

cdef class Environment:
    """One replicate of an environment behind the C interface of ff_environment.h."""

    cdef ff_environment c
    cdef readonly uint64_t seed
    cdef readonly int64_t replicate
    cdef int64_t queries, rows  # of a pool that keeps its actions in 16 bits, else 0
    cdef object keep  # whatever the C side points at

    cdef void describe(self, int64_t dimension, int64_t actions, int64_t is_double,
                       int64_t stride, reward) except *:
        self.c.dimension, self.c.actions = dimension, actions
        self.c.is_double, self.c.stride = is_double, stride
        self.c.reward_law, self.c.reward_std = reward

    def error(self):
        """The exception behind a FF_CALLBACK_FAILED status, if there is one."""
        return None

    @property
    def dimension(self):
        return self.c.dimension

    @property
    def actions(self):
        return self.c.actions

    def round(self, int64_t silo, int64_t round):
        """(features (K, d), expected rewards (K,)) of one silo in one round; copies."""
        cdef int64_t d = self.c.dimension, k = self.c.actions, status
        cdef object buffer = np.empty(ff_fill_capacity(k, d),
                                      np.float64 if self.c.is_double else np.float32)
        cdef uintptr_t address = buffer.__array_interface__["data"][0]
        cdef double[::1] mean = np.empty(k)
        cdef ff_actions view
        cdef void *x = <void *>address
        with nogil:
            status = ff_actions_of(&self.c, self.seed, self.replicate, silo, round, x,
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
        return ff_reward_of(&self.c, self.seed, self.replicate, silo, round, mean)


cdef class Sphere(Environment):
    cdef ff_sphere state

    def __init__(self, seed, replicate, const double[::1] theta, actions, basis_actions, shared,
                 reward):
        self.seed, self.replicate, self.keep = seed, replicate, theta
        self.state.theta = &theta[0]
        self.state.dimension, self.state.actions = theta.shape[0], actions
        self.state.basis_actions, self.state.shared = basis_actions, shared
        self.describe(theta.shape[0], actions, 0, ff_stride(actions), reward)
        self.c.fill, self.c.state = ff_sphere_fill, &self.state
        self.c.mean, self.c.mean_error = ff_sphere_mean, ff_mean_error(theta.shape[0])


cdef class Gap(Environment):
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
    cdef ff_hard state

    def __init__(self, seed, replicate, const double[::1] theta, reward):
        self.seed, self.replicate, self.keep = seed, replicate, theta
        self.state.theta, self.state.dimension = &theta[0], theta.shape[0]
        self.describe(theta.shape[0], 2, 0, 2, reward)
        self.c.fill, self.c.state = ff_hard_fill, &self.state


cdef class Shorts:
    """Room for the actions of all queries in 16 bits, each made when first met.

    Shared by the replicates that play one pool; nothing where the processor does without.
    """

    cdef readonly object room, starts, made
    cdef readonly int64_t size  # bytes

    def __init__(self, const int64_t[::1] starts, int64_t dimension):
        cdef int64_t q
        cdef int64_t[::1] places = np.zeros(starts.shape[0], np.int64)
        for q in range(starts.shape[0] - 1):
            places[q + 1] = places[q] + ff_short_bytes(dimension, starts[q + 1] - starts[q])
        self.size = places[starts.shape[0] - 1]
        self.starts, self.made = np.asarray(places), np.zeros(starts.shape[0] - 1, np.uint8)
        self.room = None

    cdef ff_short_store store(self) except *:
        cdef ff_short_store store
        cdef uint8_t[::1] room, made = self.made
        cdef const int64_t[::1] starts = self.starts
        if self.room is None:
            # Memory that nobody writes is not taken.
            room = np.empty(self.size + 63, np.uint8)
            self.room = np.asarray(room)
        room = self.room
        store.room = <char *>((<uintptr_t>&room[0] + 63) & ~<uintptr_t>63)
        store.starts, store.made = &starts[0], &made[0]
        return store


cdef class Pool(Environment):
    cdef ff_pool state

    def __init__(self, seed, replicate, values, dimension, feature_major,
                 const double[::1] means, const double[::1] best, const int64_t[::1] starts,
                 const int64_t[::1] silo_starts, sampling, order, reward, Shorts shorts=None):
        cdef uintptr_t address = values.__array_interface__["data"][0]
        cdef const int64_t[::1] shuffled
        self.seed, self.replicate = seed, replicate
        self.keep = (values, means, best, starts, silo_starts, order, shorts)
        self.state.values = <const void *>address
        self.state.is_double, self.state.feature_major = values.itemsize == 8, feature_major
        self.state.dimension, self.state.sampling = dimension, sampling
        self.state.means, self.state.best = &means[0], &best[0]
        self.state.starts, self.state.silo_starts = &starts[0], &silo_starts[0]
        self.state.order = NULL
        if order is not None:
            shuffled = order
            self.state.order = &shuffled[0]
        self.state.shorts.starts = NULL
        if shorts is not None and shorts.size:
            self.state.shorts = shorts.store()
            self.queries = starts.shape[0] - 1
            self.rows = starts[self.queries]
        self.describe(dimension, int(np.diff(np.asarray(starts)).max()),
                      self.state.is_double, 0, reward)
        self.c.borrow, self.c.state = ff_pool_borrow, &self.state

    def query(self, int64_t silo, int64_t round):
        return ff_pool_query(&self.state, self.seed, self.replicate, silo, round)


cdef class Compiled(Environment):
    """A user's compiled callback (numba.cfunc): see fastfed.environments.python."""

    def __init__(self, seed, replicate, callback, state, dimension, actions, reward):
        cdef uintptr_t function = callback.address
        self.seed, self.replicate, self.keep = seed, replicate, (callback, state)
        self.describe(dimension, actions, 1, 0, reward)
        self.c.fill, self.c.state = <ff_fill>function, state_of(state)


#: How the note on an exception of a user's function begins.
IN_FUNCTION = "in the environment's function"


cdef int64_t call_python(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                         int64_t round, void *x, double *mean) noexcept with gil:
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
        # The silos play on to the end of the segment; the first failure is the one to show.
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
        failure, self.failure = self.failure, None
        return failure


class PlayError(RuntimeError):
    """The compiled driver stopped."""


def status_error(status):
    return PlayError({
        FF_CALLBACK_FAILED: "the environment's function reported a failure",
        FF_NOT_POSITIVE_DEFINITE: "the synchronised statistics are not finite",
        FF_NO_ACTIONS: "the environment's function returned no actions, or more than declared",
        FF_NOT_FINITE: "the environment's function returned features or rewards that are not finite, "
                       "or a probability outside [0, 1]",
        FF_SCORE_FAILED: "the score function reported a failure, or scores that are not finite",
    }.get(status, f"the environment's function returned status {status}"))


# ---- the compiled driver ------------------------------------------------------------------------

cdef double *pointer(array) except? NULL:
    cdef uintptr_t address = array.__array_interface__["data"][0]
    return <double *>address


#: Bytes of what a silo remembers of its best actions.
CONTENDERS_SIZE = sizeof(ff_contenders)
#: Numbers that say until when a silo's determinant rule cannot fire.
REST_SIZE = sizeof(ff_rest) // sizeof(double)
#: The dimension up to which the determinant rule takes determinants anew.
ANEW = FF_ANEW


def saved_size(int64_t d):
    """Doubles of one silo that a curve with a clock keeps."""
    return ff_play_saved(d)


cdef class Pass:
    """One replicate of one or several curves over one environment (see ff_play.h).

    Each curve is a mapping with the plan's numbers and the state arrays, named as in ff_curve. A
    pass may be a part of a larger play: its silos are ``names`` there, and its rounds those of
    ``phase`` modulo ``stride``. A curve with a clock plays alone.
    """

    cdef ff_pass c
    cdef ff_curve curves[FF_MOST_CURVES]
    cdef object keep, widths
    cdef Environment environment

    def __init__(self, Environment environment, int64_t silos, int64_t horizon,
                 const int64_t[::1] checkpoints, curves, int64_t threads,
                 const int64_t[::1] names=None, int64_t phase=0, int64_t stride=1):
        cdef int64_t d = environment.c.dimension, i
        cdef double[::1] scratch
        cdef int64_t[::1] status = np.zeros(silos, np.int64)
        cdef ff_curve *c
        if len(curves) > FF_MOST_CURVES:
            raise ValueError(f"a pass plays at most {FF_MOST_CURVES} curves")
        if len(curves) > 1 and any(curve["clock"] is not None for curve in curves):
            raise ValueError("a curve with a clock plays alone")
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
        self.c.threads = min(threads, silos) if FF_HAS_OPENMP else 1
        # Begun and padded so that vectors lie in one cache line, and no two threads share one.
        most = max(curve["levels"] for curve in curves)
        self.c.scratch_size = ff_play_scratch(environment.c.actions, d, most, len(curves))
        scored = [curve["score"] for curve in curves if curve["score"] is not None]
        if scored:
            state = max(0 if score.state is None else score.state.size for score in scored)
            self.c.scratch_size += ff_scored_scratch(d, environment.c.actions, state)
        self.c.scratch_size = (self.c.scratch_size + 63) // 64 * 64
        scratch = np.empty(self.c.threads * self.c.scratch_size + 8)
        self.c.scratch = <double *>((<uintptr_t>&scratch[0] + 63) // 64 * 64)
        self.c.status = &status[0]
        self.keep = (checkpoints, scratch, status, curves, names)
        self.widths = []
        for i, curve in enumerate(curves):
            self.describe(&self.curves[i], curve)
            if environment.rows and not curve["random"]:
                self.keep_widths(&self.curves[i].widths)

    def kept_widths(self):
        """Of every curve that keeps widths: by query the release, plus one, that its bounds are of, and
        by silo the last one for which they told it next to nothing."""
        return [(np.array(made), np.array(useless)) for _, made, useless, _ in self.widths]

    cdef void keep_widths(self, ff_widths *k) except *:
        # Zeros that nobody writes take no memory.
        cdef float[::1] bound = np.zeros(self.environment.rows, np.float32)
        cdef int64_t[::1] made = np.zeros(self.environment.queries, np.int64)
        cdef int64_t[::1] useless = np.zeros(self.c.silos, np.int64)
        cdef double[::1] room = np.zeros(max(1, ff_widths_room(self.c.dimension)))
        k.bound, k.made, k.useless, k.room = &bound[0], &made[0], &useless[0], &room[0]
        self.widths.append((bound, made, useless, room))

    cdef void describe(self, ff_curve *c, curve) except *:
        memset(c, 0, sizeof(ff_curve))
        c.batch_size, c.lazy = curve["batch_size"], curve["lazy"]
        c.random = curve["random"]
        cdef uintptr_t function
        if curve["score"] is not None:
            function = curve["score"].function.address
            c.score = <ff_score>function
            if curve["score"].state is not None:
                c.score_state = <const double *>state_of(curve["score"].state)
                c.score_state_size = curve["score"].state.size
        c.randomizer, c.analyzer = curve["randomizer"], curve["analyzer"]
        c.noise_std.bias, c.noise_std.off_diagonal, c.noise_std.diagonal = curve["noise_std"]
        c.radius.multiplier, c.radius.scale, c.radius.base = curve["radius"]
        c.radius.determinant, c.radius.anchor = curve["determinant"], curve["anchor"]
        c.direct, c.inflation = curve["direct"], 1.0
        c.radius_count = curve["radius_count"]
        c.last_entry = len(curve["regularizer"]) - 1
        c.error_bound, c.floor = pointer(curve["error_bound"]), pointer(curve["floor"])
        c.release, c.coefficients = curve["release"], pointer(curve["coefficients"])
        c.history = pointer(curve["history"])
        c.noise_scale = pointer(curve["noise_scale"])
        c.regularizer = pointer(curve["regularizer"])
        c.radius_offset = pointer(curve["radius_offset"])
        c.radius_lambda = pointer(curve["radius_lambda"])
        c.clip = curve["clip"]
        c.feature_bound = curve["feature_bound"]
        c.reward_low, c.reward_high = curve["reward_range"]
        c.levels, c.shuffled = curve["levels"], curve["shuffled"]
        c.bit_levels = <int64_t *>pointer(curve["bit_levels"])
        c.noise_bits = <int64_t *>pointer(curve["noise_bits"])
        c.unit = pointer(curve["unit"])
        c.choice = <ff_choice *>pointer(curve["choice"])
        c.contend = <ff_contenders *>pointer(curve["contend"])
        c.order = <int64_t *>pointer(curve["order"])
        c.w, c.theta = pointer(curve["w"]), pointer(curve["theta"])
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
        if curve["clock"] is not None:
            self.wind(&c.clock, curve["clock"])
        if curve["met"] is not None:
            c.asked = <uint8_t *>pointer(curve["asked"])
            c.met = <uint8_t *>pointer(curve["met"])

    cdef void wind(self, ff_clock *clock, given) except *:
        clock.kind, clock.delay = given["kind"], given["delay"]
        clock.threshold, clock.extra = given["threshold"], given["extra"]
        clock.std.off_diagonal, clock.std.diagonal = given["std"]
        clock.levels = given["levels"]
        clock.rest = <ff_rest *>pointer(given["rest"])
        clock.wide = pointer(given["wide"])
        clock.nodes, clock.saved = pointer(given["nodes"]), pointer(given["saved"])
        clock.fired = <int64_t *>pointer(given["fired"])

    def begin(self):
        self.raise_if(ff_begin(&self.c))

    def play(self, int64_t first, int64_t last):
        """Rounds first..last, 1-based and inclusive, without the GIL."""
        cdef int64_t status
        with nogil:
            status = ff_play(&self.c, first, last)
        self.raise_if(status)

    cdef raise_if(self, int64_t status):
        if status:
            raise self.environment.error() or status_error(status)
