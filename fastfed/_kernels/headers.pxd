# cython: language_level=3
"""Declarations of the C kernels for the bindings; the comments in ``src/*.h`` say what each
does."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

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
    int64_t ff_uniform_int(const ff_stream *s, int64_t n)
    void ff_permutation(const ff_stream *s, int64_t n, int64_t *out)
    void ff_philox(const ff_stream *s, uint32_t block, uint32_t *out)
    uint64_t ff_key(const ff_stream *s)
    int64_t ff_laplace_capacity(int64_t n)
    void ff_laplace(const ff_stream *s, int64_t n, double *out)
    void ff_laplace_from_bits(const uint64_t *a, int64_t n, double *out)
    int64_t ff_ideal_normals(const uint64_t *words, int64_t half, double *out)
    int64_t ff_ideal_laplace(const uint64_t *words, int64_t n, double *out)
    double ff_log(double x)
    int64_t ff_random_u32_capacity(int64_t n)
    void ff_random_u32(const ff_stream *s, int64_t n, uint32_t *out)

cdef extern from "ff_letor.h" nogil:
    enum:
        FF_LETOR_READ
        FF_LETOR_WIDER
        FF_LETOR_UNUSUAL
    ctypedef struct ff_letor_table:
        int64_t width
        float *values
        int32_t *relevance
        int64_t *qid
        int64_t *hard
        int64_t rows
        int64_t largest
        int64_t hards
    int ff_letor_parse(const char *text, int64_t size, int64_t limit, ff_letor_table *table)

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
    int64_t ff_inverse_norm_scratch(int64_t d)
    double ff_inverse_norm(const double *w, int64_t d, double *scratch)

cdef extern from "ff_scores.h" nogil:
    ctypedef struct ff_ahead:
        pass
    ctypedef struct ff_actions:
        const void *x
        int64_t is_double
        int64_t action_stride
        int64_t feature_stride
        int64_t actions
        const double *mean
        double best
        const void *quantised
        ff_ahead *ahead
    int64_t ff_score_scratch(int64_t d, int64_t actions)
    void ff_scores(const ff_actions *actions, const double *w, const double *theta, double beta,
                   double gamma, int64_t d, double *scratch, double *scores)
    ctypedef struct ff_sieve:
        double limit
        double slack
        double ranking
    int64_t ff_select_sieved(const ff_actions *actions, const double *w, const double *theta,
                             double beta, double gamma, const ff_sieve *sieve, int64_t d,
                             double *scratch, double *x)
    int64_t ff_select(const ff_actions *actions, const double *w, const double *theta,
                      double beta, double gamma, int64_t d, double *scratch, double *x)
    int64_t ff_select_max_min(const ff_actions *actions, const double *w, const double *theta,
                              double beta, double gamma, const double *other_w,
                              const double *other_theta, double other_beta, int64_t d,
                              double *scratch, double *x)
    int64_t ff_select_passing(const ff_actions *actions, const double *w, const double *theta,
                              double beta, const double *local_w, const double *local_theta,
                              double local_beta, double limit, double slack, int64_t d,
                              double *scratch, double *x)
    void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *x)
    ctypedef int64_t (*ff_score)(void *state, uint64_t key, int64_t round, int64_t actions,
                                 int64_t dimension, double *x, double *w, double *theta,
                                 double beta, double gamma, double *scores) noexcept nogil
    int64_t ff_scored_scratch(int64_t d, int64_t actions, int64_t state_size)
    int64_t ff_scored(ff_score score, const double *state, int64_t state_size, uint64_t key,
                      int64_t round, const ff_actions *actions, const double *w,
                      const double *theta, double beta, double gamma, const ff_sieve *sieve,
                      int64_t d, double *scratch, double *x)

cdef extern from "ff_arms.h" nogil:
    double ff_arms_observe(double *w, double *theta, const double *x, double y, int64_t d)
    int64_t ff_arms_scratch(int64_t d)
    int64_t ff_arms_scored(ff_score score, uint64_t key, int64_t round, const double *w,
                           const double *theta, double beta, double gamma, const ff_sieve *sieve,
                           int64_t d, double *scratch, double *x)

cdef extern from "ff_draws.h" nogil:
    int64_t ff_beta_draws(void *state, uint64_t key, int64_t round, int64_t actions,
                          int64_t dimension, double *x, double *w, double *theta, double beta,
                          double gamma, double *scores)
    int64_t ff_normal_draws(void *state, uint64_t key, int64_t round, int64_t actions,
                            int64_t dimension, double *x, double *w, double *theta, double beta,
                            double gamma, double *scores)

cdef extern from "ff_directions.h" nogil:
    enum: FF_MOST_DIRECTIONS
    ctypedef struct ff_directions:
        const double *rows
        int64_t count

cdef extern from "ff_screen_i16.h" nogil:
    ctypedef struct ff_quantised_store:
        char *buffer
        const int64_t *starts
        uint8_t *made
    int64_t ff_screen_i16_available()
    int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d)
    int64_t ff_quantised_bytes(int64_t d, int64_t actions)

cdef extern from "ff_fixed.h" nogil:
    int64_t ff_fixed_size(int64_t actions, int64_t d)
    void ff_fixed_make(double *model, const ff_actions *actions, const double *w,
                       const double *theta, double bound, int64_t released, int64_t d,
                       double *scratch)
    int64_t ff_fixed_choose(double *model, double beta, double gamma, double ranking)
    int64_t ff_fixed_choose_passing(double *model, double beta, double gamma,
                                    const ff_sieve *sieve)
    double ff_fixed_observe(double *model, double y)
    double ff_fixed_log_entry(const double *model)
    double ff_fixed_inverse_norm(const double *model, const ff_actions *actions,
                                 const double *w, int64_t d, double *scratch)

cdef extern from "ff_bonus_factor.h" nogil:
    ctypedef struct ff_bonus_factor:
        double c, frobenius, lost
    ff_bonus_factor ff_bonus_factor_make(const double *w, double c, int64_t d, double *inverse,
                                         double *r)

cdef extern from "ff_bonus_cache.h" nogil:
    ctypedef struct ff_bonus_silo:
        int64_t made
        double moved
    ctypedef struct ff_bonus_cache:
        ff_bonus_silo *silo
        float *bound
        int64_t *made
        int64_t choices
        double *sample
        double *factor
        double *own
        int64_t version
        const ff_directions *directions
    int64_t ff_bonus_cache_size(int64_t d)
    int64_t ff_bonus_cache_test_bounds(const ff_actions *actions, const ff_directions *directions,
                                       const double *w, const double *theta, double beta,
                                       double gamma, const double *points, int64_t points_count,
                                       double *now, int64_t d, double *scratch, float *results)

cdef extern from "ff_mean.h" nogil:
    int ff_least_squares(const double *statistic, int64_t d, double *scratch, double *theta)
    void ff_hadamard(double *values, int64_t n)

cdef extern from "ff_environment.h" nogil:
    ctypedef int64_t (*ff_fill)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                int64_t round, void *x, double *mean) noexcept nogil
    ctypedef int64_t (*ff_borrow)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                  int64_t round, const ff_ahead *known, void *room,
                                  ff_actions *out) noexcept nogil
    ctypedef ff_ahead (*ff_borrow_ahead)(const void *state, uint64_t seed, int64_t replicate,
                                         int64_t silo, int64_t round) noexcept nogil
    ctypedef double (*ff_mean)(const void *state, int64_t silo, const void *x,
                               int64_t a) noexcept nogil
    ctypedef struct ff_environment:
        ff_fill fill
        ff_borrow borrow
        ff_borrow_ahead ahead
        ff_mean mean
        double mean_error
        void *state
        int64_t dimension
        int64_t actions
        int64_t is_double
        int64_t stride
        int64_t reward_kind
        double reward_std
    enum:
        FF_CONTEXT
        FF_CALLBACK_FAILED
        FF_NOT_POSITIVE_DEFINITE
        FF_NO_ACTIONS
        FF_NOT_FINITE
        FF_SCORE_FAILED
        FF_WITH_REPLACEMENT
        FF_WITHOUT_REPLACEMENT
    int64_t ff_fill_capacity(int64_t actions, int64_t dimension)
    int64_t ff_stride(int64_t actions)
    int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate,
                          int64_t silo, int64_t round, const ff_ahead *known, ff_ahead *next,
                          void *x, double *mean, ff_actions *out)
    double ff_mean_of(const ff_environment *env, const ff_actions *actions, int64_t a)
    double ff_mean_error(int64_t d)
    double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate,
                        int64_t silo, int64_t round, double mean)
    ctypedef struct ff_sphere:
        const double *theta
        int64_t theta_stride
        int64_t dimension
        int64_t actions
        int64_t basis_actions
        int64_t shared
        double constant
    int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, void *x, double *mean) noexcept
    double ff_sphere_mean(const void *state, int64_t silo, const void *x, int64_t a) noexcept
    ctypedef struct ff_gap:
        const double *theta
        int64_t dimension
        int64_t actions
        double inferior
        double best
        double width
    int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                        int64_t round, void *x, double *mean) noexcept
    double ff_gap_mean(const void *state, int64_t silo, const void *x, int64_t a) noexcept
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
        ff_quantised_store quantised
        const ff_directions *directions
    int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, const ff_ahead *known, void *room,
                           ff_actions *out) noexcept
    ff_ahead ff_pool_ahead(const void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round) noexcept
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

cdef extern from "ff_aggregation.h" nogil:
    ctypedef struct ff_noise_std:
        double bias
        double off_diagonal
        double diagonal
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
    void ff_sum_normals(uint64_t seed, int64_t replicate, int64_t silos, int64_t node, int64_t d,
                        double *normals)

cdef extern from "ff_estimate.h" nogil:
    ctypedef struct ff_radius:
        double multiplier
        double scale
        double base
        int64_t determinant
        double anchor
        int64_t arms
    double ff_refresh(const double *statistic, double lam, int64_t d, double *w, double *theta,
                      double *scratch)
    double ff_radius_at(const ff_radius *radius, double offset, double lam, double count,
                        int64_t d)
    double ff_log_inflation(const ff_radius *radius, double inflation)
    double ff_log_volume(const ff_radius *radius, const double *w, int64_t d)
    double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                                 double log_inflation, double log_det, int64_t d)
    double ff_row_width(const ff_radius *radius, double gamma, double rows, int64_t d)
    double ff_inflation(double lowered, double floor, double inverse)
    double ff_slack(double width, double beta, double gamma, double inflation, double inverse)
    double ff_choose_regularizer(const double *statistic, double full, double floor, int64_t d,
                                 double *w, double *scratch)

cdef extern from "ff_belief.h" nogil:
    enum:
        FF_MAX_GRID
    ctypedef struct ff_belief_model:
        int64_t count
        double *spread
        double *ridge
        double scale2
        double prior
    int64_t ff_belief_scratch(int64_t d)
    int ff_belief(const ff_belief_model *model, const double *rest, const double *own, int64_t d,
                  double *w, double *theta, double *weights, double *scratch)

cdef extern from "ff_release.h" nogil:
    void ff_honaker(double *estimate, const double *node, const double *sibling, int64_t level,
                    int64_t s)
    int64_t ff_honaker_number(int64_t k)
    void ff_buffered(const double *z, const double *coefficients, int64_t q, int64_t s,
                     double *buffers, double *out)
    void ff_buffered_column(const double *coefficients, int64_t q, int64_t n, double *state,
                            double *out)
    void ff_add_weighted(const double *rows, const double *weights, int64_t step, int64_t k, int64_t s,
                         double *out)
    int64_t ff_round_noisy(const double *values, const double *noise, const double *std,
                           const double *grid, double error, int64_t s, double *out,
                           uint8_t *doubtful)

cdef extern from "ff_trigger.h" nogil:
    int64_t ff_trigger_scratch(int64_t d)
    enum:
        FF_RECOMPUTE_MAX
    ctypedef struct ff_skip_bound:
        double base
    ctypedef struct ff_trace_bound:
        double base

cdef extern from "ff_groups.h" nogil:
    int64_t ff_groups_scratch(int64_t d)

cdef extern from "ff_run.h" nogil:
    enum:
        FF_MAX_CURVES
        FF_VIEW_NUMBERS
    ctypedef struct ff_choice:
        pass
    ctypedef struct ff_curve:  # driver.pyx has a table of the fields that Python sets
        ff_score score
        const double *score_state
        int64_t score_state_size
        int64_t score_diagonal
        ff_belief_model belief
        ff_choice *choice
        ff_bonus_cache bonus_cache
        int64_t *chosen
    ctypedef struct ff_run:
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
        int64_t belief_scratch
        int64_t fill_scratch
        int64_t score_scratch
        int64_t noise_scratch
        int64_t trigger_scratch
        int64_t scratch_size
        int64_t *status
    int64_t ff_run_scratch(int64_t actions, int64_t dimension, int64_t levels, int64_t curves)

cdef extern from "ff_driver.h" nogil:
    int64_t ff_run_initialise(ff_run *run)
    int64_t ff_run_rounds(ff_run *run, int64_t first, int64_t last)

cdef extern from "ff_threads.h" nogil:
    double ff_least_shared

cdef extern from "ff_rewind.h" nogil:
    int64_t ff_snapshot_size(int64_t dimension)

cdef extern from "ff_coins.h" nogil:
    enum:
        FF_CHANCE_BITS
        FF_COLUMNS
    ctypedef struct ff_coins:
        int64_t experts
    int64_t ff_coins_masks(int64_t experts)
    ff_coins ff_coins_make(const uint32_t *chance, int64_t experts, uint64_t *masks)

cdef extern from "ff_losses.h" nogil:
    enum:
        FF_LOSS_COINS
        FF_LOSS_TABLE
        FF_LOSS_CALLED
        FF_LOSS_GRADIENT
        FF_LOSS_BITS
    ctypedef int64_t (*ff_loss_call)(void *, uint64_t, int64_t, int64_t, int64_t, double *)
    ctypedef double (*ff_gradient_call)(void *, uint64_t, int64_t, int64_t, int64_t,
                                        const double *, double *)
    ctypedef struct ff_losses:
        int64_t kind
        int64_t experts
        int64_t silos
        int64_t common
        int64_t quadratic
        ff_coins coins
        int64_t last
        int64_t planned
        int64_t lost
        const uint32_t *table
        int64_t rounds
        ff_loss_call call
        ff_gradient_call gradient
        void *state
    ctypedef struct ff_losses_scratch:
        uint32_t *row
        double *called
        int64_t *sums
    int64_t ff_losses_row(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                          int64_t round, const ff_losses_scratch *scratch)
    int64_t ff_losses_sums(const ff_losses *l, uint64_t seed, int64_t replicate,
                           const int64_t *edges, int64_t segments, int64_t threads,
                           const ff_losses_scratch *scratch, int64_t *totals)
    ctypedef struct ff_gradient_bounds:
        double low
        double high
        double most
    int64_t ff_losses_gradients(const ff_losses *l, uint64_t seed, int64_t replicate,
                                const int64_t *rounds, int64_t stride, int64_t n,
                                const double *x, const double *parent,
                                const ff_gradient_bounds *bounds,
                                int64_t threads, const ff_losses_scratch *scratch,
                                double *totals)
    double ff_losses_excess(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t first,
                            int64_t last, const double *x, const double *optimum, double lost,
                            const ff_losses_scratch *scratch)
    double ff_losses_value(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, const double *x, double *gradient)
    double ff_square_gradient(const double *g, const double *x, int64_t d, double *out)

cdef extern from "ff_experts.h" nogil:
    double ff_pairwise(const double *a, int64_t n)
    int64_t ff_follow(const int64_t *sums, const uint8_t *asks, int64_t n, int64_t d,
                      int64_t *lost, int64_t *expert, int64_t *chosen)
    void ff_hedge(const int64_t *sums, const uint8_t *asks, int64_t n, int64_t d, int64_t *lost,
                  double unit, double silos, double rate, double *rows)
    void ff_hedge_exponents(int64_t first, int64_t n, double unit, double silos, double rate,
                            double *exponents)
    int64_t ff_hedge_spread(const int64_t *sums, int64_t n, int64_t d, const int64_t *lost)
    void ff_hedge_weights(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d,
                          int64_t *lost, const double *table, double *rows)
    void ff_to_weights(int64_t n, int64_t d, double *rows)
    ctypedef struct ff_sparse:
        uint64_t seed
        int64_t replicate
        int64_t expert
        int64_t release
        int64_t spent
        double unit
        double before
        double limit
        double query_scale
    int64_t ff_sparse_run(ff_sparse *s, const int64_t *sums, const uint8_t *asks, int64_t start,
                          int64_t decided, int64_t n, int64_t d, int64_t *lost, int64_t *chosen)
    enum:
        FF_SEGMENTS_TOGETHER
    ctypedef struct ff_regret:
        double lost
        double *total
        double *open
        int64_t *counts
        double *products
        int64_t rounds
        int64_t at
        const int64_t *checkpoints
        int64_t count
        double *regret
    void ff_regret_add(ff_regret *r, const int64_t *sums, const int64_t *edges,
                       const uint8_t *settles, const int64_t *which, const double *weights,
                       const double *gaps, int64_t silos, double unit, int64_t n, int64_t d)
    enum:
        FF_NOISE_NONE
        FF_NOISE_SILOS
        FF_NOISE_SERVER
    ctypedef struct ff_leaf:
        int64_t tree
        int64_t depth
        int64_t start
        int64_t stop
        double step
        double scale
    ctypedef struct ff_walk:
        const ff_losses *losses
        uint64_t seed
        int64_t replicate
        int64_t used
        const int64_t *rounds
        int64_t linear
        int64_t noise_by
        double low
        double high
        double smoothness
        double *v
        double *points
        double *sums
        double *drawn
        double *total
    int64_t ff_walk_leaves(const ff_walk *w, const ff_leaf *leaves, int64_t count,
                           int64_t release, int64_t threads, const ff_losses_scratch *scratch,
                           double *x, int64_t *least)

cdef extern from "ff_course.h" nogil:
    enum:
        FF_COURSE_SILOS
        FF_COURSE_LEADER
        FF_COURSE_HEDGE
        FF_COURSE_SPARSE
    ctypedef struct ff_course:
        const ff_losses *losses
        uint64_t seed
        int64_t replicate
        int64_t decides
        int64_t *lost
        int64_t *latest
        ff_sparse *sparse
        int64_t switches
        const double *table
        int64_t known
        int64_t alone
        ff_regret *regret
    int64_t ff_course_run(ff_course *c, int64_t first, int64_t last, int64_t asks)


cdef extern from "ff_batch.h" nogil:
    enum:
        FF_FINE
        FF_BAD_STATE
        FF_BAD_ROW
        FF_NO_MEMORY
    ctypedef struct ff_sets:
        const void *x
        int64_t is_double
        int64_t sets
        int64_t actions
        int64_t dimension
        int64_t set_stride
        int64_t action_stride
        int64_t feature_stride
    ff_actions ff_one_set(const ff_sets *sets, int64_t i)
    int ff_rank_one_rows(double *gram, double *bias, const double *x, const double *y, int64_t n,
                         int64_t d, int64_t trusted)
    int ff_sherman_morrison_rows(double *inverse, const double *x, int64_t n, int64_t d,
                                 int64_t trusted)
    int ff_factor_rows(double *factor, double *theta, const double *x, const double *y, int64_t n,
                       int64_t d, int64_t trusted)
    int ff_inverse_factors(const double *v, int64_t m, int64_t d, double *factor, int64_t trusted)
    int ff_solve_rows(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                      int64_t trusted)
    int ff_score_sets(const ff_sets *sets, const double *factor, const double *theta,
                      int64_t models, double radius, double second_radius, int64_t trusted,
                      double *out)
    int ff_argmax_sets(const ff_sets *sets, const double *factor, const double *theta,
                       int64_t models, double radius, double second_radius, int64_t trusted,
                       int64_t *out)


cdef inline void *address_of(array) except? NULL:
    """Return the address of the first byte of an array; NULL for None."""
    if array is None:
        return NULL
    cdef uintptr_t address = array.__array_interface__["data"][0]
    return <void *>address


cdef inline int fill_belief(ff_belief_model *m, model) except -1:
    """Copy a model (R^2, prior, spreads, ridges) of local rounds into the C struct."""
    scale2, prior, spreads, ridges = model
    if not 1 <= len(spreads) == len(ridges) <= FF_MAX_GRID:
        raise ValueError(f"a belief has 1 to {FF_MAX_GRID} deviations, got {len(spreads)}")
    m.scale2, m.prior, m.count = scale2, prior, len(spreads)
    cdef int64_t i
    for i in range(m.count):
        m.spread[i], m.ridge[i] = spreads[i], ridges[i]
    return 0
