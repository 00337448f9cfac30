#include "ff_bonus_cache.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_bonus_scores.h"
#include "ff_linalg.h"

/* Symbols: W (d, d) is the inverse factor of V (ff_linalg.h). Of an action x, a = ||W x|| and
 * b = ||V^-1 x||. Its bonus beta a + gamma b is at most a multiple of ||R x|| for the triangular
 * factor R (ff_bonus_factor.h). A query is a stored set of actions. */

/* The largest number of actions that are scored exactly; if more may be the best, the bounds do not
 * decide. */
#define FEW(actions) (16 + (actions) / 8)
/* If R is not recomputed between releases: a choice that the bounds do not decide counts as MISS
 * choices that they decide, and a silo stops using bounds when the balance exceeds MOST_MISSES. */
#define MISS 8
#define MOST_MISSES 32
/* The largest `patience` of a silo. */
#define MOST_PATIENCE 32
/* The smallest dimension for which quantising actions in every round pays. */
#define WIDE 32
/* Number of low bits of a version that count a silo's own factors between two releases, and the
 * stages of bounds; the high bits count releases. */
#define VERSIONS 30
/* After MOST_FAILURES failures of cheap bounds, queries start with bounds by R. A failure counts as
 * FAILURE successes. */
#define FAILURE 2
#define MOST_FAILURES 32
/* If eager silos are expected to be offered each query more than AGAIN times until the next
 * release, all of its actions are bounded by R at once, because these bounds stay valid. Narrow
 * vectors make products with R more expensive. */
#define AGAIN (FF_WIDE == 64 ? 0.5 : 1.0)
/* If the silo's previous factor was used for more than this number of data points, cheap bounds are
 * worth computing with the next one. */
#define LASTING 64

/* Return the number of doubles of an ff_bonus_bounds. */
int64_t ff_bonus_cache_size(int64_t d) { return ff_bonus_bounds_size(d); }

/* Return the ff_bonus_bounds that are stored in a buffer of doubles. */
FF_INLINE const ff_bonus_bounds *bounds_of(const double *factor)
{
    return (const ff_bonus_bounds *)factor;
}

/* Return 1 if there are cheap bounds. */
FF_INLINE int has_cheap_bounds(const ff_bonus_bounds *bounds) { return bounds->few.rest > 0.0; }

/* Return the cost of computing R and the bounds of one query, as the number of exact scores of an
 * action that take as long. */
FF_INLINE int64_t cost_of(double gamma, int64_t actions, int64_t d)
{
    return (gamma != 0.0 ? d : 4) + actions / 8;
}

/* Let a silo use the bounds of the release, with the growth of V since the release. */
static void use_release(const ff_bonus_cache *cache, ff_bonus_silo *state)
{
    state->version = cache->version;
    state->factor = cache->factor;
    state->made_at = state->work = state->retry_at = 0;
    state->moved = state->moved_in_all;
    state->grown = state->grown_in_all;
}

/* Return 1 if cheap bounds are worth computing for the next batch.
 *
 * Making them costs about d^3 products of numbers, as much as bounding 2 d actions by R, but most
 * actions then need no bound by R. If most silos began their queries with bounds by R in the last
 * batch, because cheap bounds failed or were not made, cheap bounds are made in one of 32 batches.
 * They do not pay if eager silos (cache->own is set) are expected to be offered each query more
 * than AGAIN times. Lazy silos choose only once for each query. choices: number of actions in all
 * choices of the batch. */
static int cheap_pays(const ff_bonus_cache *cache, int64_t released, double choices, int64_t silos,
                      int64_t d)
{
    int64_t by_factor_count = 0;
    if (cache->own && cache->choices && choices > AGAIN * (double)cache->choices)
        return 0;
    for (int64_t i = 0; i < silos; i++)
        by_factor_count += cache->silo[i].first_stage == BY_FACTOR;
    return d >= WIDE && choices > 8.0 * (double)d &&
           (2 * by_factor_count <= silos || released % 32 == 0);
}

/* Restart the cache after a release: compute bounds for the new W if enough choices follow, and
 * reset the state of every silo. */
void ff_bonus_cache_refresh(ff_bonus_cache *cache, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch)
{
    if (!cache->silo || !ff_screen_i16_available())
        return;
    cache->version = 0;
    /* With a second bonus (gamma > 0), bounds need R. They are not made if screening all choices
     * costs less than computing R. */
    if (gamma == 0.0 || choices > 2.0 * (double)d) {
        if (ff_bonus_bounds_make(w, beta, gamma, cache->sample,
                                 silos < FF_SAMPLES ? silos : FF_SAMPLES,
                                 cheap_pays(cache, released, choices, silos, d), cache->directions,
                                 d, scratch, (ff_bonus_bounds *)cache->factor))
            cache->version = (released + 1) << VERSIONS;
    }
    for (int64_t i = 0; i < silos; i++) {
        ff_bonus_silo *state = cache->silo + i;
        state->moved_in_all = 0.0;
        state->grown_in_all = 1.0;
        state->made = 0;
        state->patience = 1;
        state->first_stage = has_cheap_bounds(bounds_of(cache->factor)) ? CHEAP : BY_FACTOR;
        /* Allow one more failure of cheap bounds. */
        if (state->cheap_failures > MOST_FAILURES - FAILURE)
            state->cheap_failures = MOST_FAILURES - FAILURE;
        use_release(cache, state);
    }
}

/* Let a silo whose V has been rewound use the bounds of the release again. */
void ff_bonus_cache_rewind(ff_bonus_cache *cache, int64_t silo)
{
    if (cache->silo)
        use_release(cache, cache->silo + silo);
}

/* Compute R for the silo's present W. It replaces the R that the silo used before. If that previous
 * R lasted more than 16 data points, the silo's `patience` is halved, otherwise doubled: a silo
 * with more patience loses more work before it computes the next R. Cheap bounds are made along
 * with R if the previous R lasted more than LASTING data points and the silo's queries begin with
 * cheap bounds. */
static void compute_own_factor(ff_bonus_cache *cache, int64_t silo, int64_t points_count,
                               const double *restrict w, double beta, double gamma, int64_t d,
                               double *restrict bounds_scratch)
{
    ff_bonus_silo *state = cache->silo + silo;
    double *factor = cache->own + silo * ff_bonus_cache_size(d);
    const int64_t lasted = points_count - state->made_at;
    state->patience = lasted > 16 ? (state->patience + 1) / 2 : 2 * state->patience;
    if (state->patience > MOST_PATIENCE)
        state->patience = MOST_PATIENCE;
    const int with_cheap = lasted > LASTING && state->first_stage == CHEAP &&
                           has_cheap_bounds(bounds_of(cache->factor));
    const int has_factor =
        ff_bonus_bounds_make(w, beta, gamma, cache->sample + silo * d, 1, with_cheap,
                             cache->directions, d, bounds_scratch, (ff_bonus_bounds *)factor);
    state->factor = factor;
    state->version = has_factor ? cache->version + STAGES * ++state->made : 0;
    state->made_at = points_count;
    state->moved = 0.0;
    state->grown = 1.0;
    state->work = state->retry_at = 0;
}

/* Return f such that every bonus beta a + gamma b is at most f ||R x|| now: a has not grown since R
 * was computed, and b by at most moved a. */
FF_INLINE double bonus_of(const ff_bonus_silo *state, double beta, double gamma)
{
    if (gamma == 0.0)
        return beta;
    const double first = beta + gamma * state->moved;
    return hypot(first, gamma / sqrt(bounds_of(state->factor)->model.c));
}

/* A data point x enters the silo's V: raise the bounds on how far the silo's bonuses have moved,
 * since the release and since the silo's R was computed.
 *
 * Proof: for the V before the point, let v = V^-1 x, r^2 = x'v and s = 1 + r^2. The point subtracts
 * v v' / s from V^-1. For an action x_a with a = ||x_a||_{V^-1}, this changes V^-1 x_a by at most
 * ||v|| |<x_a, v>| / s <= ||v|| r a / s. This holds for any rounding of W x, because the same
 * rounded W x updated W (ff_observe_whitened). The argument v is W' times the rounded W x, with an
 * error of at most (d + 8) u ||W||_F r, where u = 2^-53. The digits of r^2 below the last digit of
 * s are lost in s - 1: adding `precision` s covers them. The factor 1.01 covers the rounding of the
 * computation below. */
void ff_bonus_cache_observe(ff_bonus_cache *cache, int64_t silo, const double *restrict v, double s,
                            int64_t d)
{
    ff_bonus_silo *state = cache->silo + silo;
    const double precision = (double)(d + 8) * 0x1p-52, r = sqrt(s - 1.0 + precision * s);
    const double frobenius = bounds_of(cache->factor)->model.frobenius;
    const double square = f64_dot(v, v, d);
    const double moved = 1.01 * (sqrt(square) + precision * frobenius * r) * r / s;
    state->moved += moved;
    state->moved_in_all += moved;
    state->grown *= s;
    state->grown_in_all *= s;
}

/* Compute R for the silo's present W, if the present bounds have failed to save enough work, or may
 * become invalid by rounding. */
FF_INLINE void compute_own_factor_if_due(ff_bonus_cache *cache, int64_t silo, int64_t points_count,
                                         int64_t actions, const double *restrict w, double beta,
                                         double gamma, int64_t d, double *restrict bounds_scratch)
{
    const ff_bonus_silo *state = cache->silo + silo;
    if (cache->own && points_count > state->made_at &&
        (state->work > state->patience * cost_of(gamma, actions, d) || state->retry_at ||
         points_count - state->made_at > MOST_POINTS))
        compute_own_factor(cache, silo, points_count, w, beta, gamma, d, bounds_scratch);
}

/* Store the version and stage of the bounds of a query, if they have changed (release order:
 * threads that read them also see the bounds). */
FF_INLINE void record_bounds(int64_t *query_version, int64_t found_version, int64_t version)
{
    if (query_version && found_version != version)
        __atomic_store_n(query_version, version, __ATOMIC_RELEASE);
}

/* Return -INFINITY if the chosen action a certainly passes the sieve, otherwise an upper bound on
 * the scores of all actions. With a ranking of 1 action a has the largest score, so it passes.
 * factor: every bonus is at most factor ||R x||; the 1.001 covers rounding. */
static double largest_unless_passing(const ff_score_bounds *b, const ff_sieve *sieve, int64_t a,
                                     const double *theta, double beta, double gamma,
                                     double factor)
{
    if (sieve->ranking == 1.0)
        return -INFINITY;
    const double least =
        ff_bounded_at_least(b, a, theta, beta, gamma, 2.0 * sieve->slack - 1.0);
    /* If the action passes whatever the largest score is, save the pass over all actions. */
    if (least >= sieve->limit)
        return -INFINITY;
    const double largest = (double)ff_bound_scores(b->bounds, b->mean, b->bound, 1.001 * factor,
                                                   b->count, b->d, b->upper);
    return least >= largest ? -INFINITY : largest;
}

/* Return the action with the largest <x, theta> + r (beta ||W x|| + gamma ||V^-1 x||), where r is
 * the ranking of the sieve; see ff_bonus_cache.h. The bounds of the query rule out most actions. If
 * several remain, these are scored exactly. Returns -1 if there are no bounds, or if too many
 * actions remain. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *cache, int64_t silo, int64_t points_count,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              const ff_sieve *sieve, double feature_bound, int64_t d,
                              double *restrict scratch, double *restrict bounds_scratch,
                              double *restrict x, const ff_whitened *whitened_x,
                              double *restrict largest)
{
    ff_bonus_silo *state = cache->silo ? cache->silo + silo : NULL;
    if (!state || !state->version || (!cache->own && state->work > MOST_MISSES) ||
        points_count < state->retry_at)
        return -1;
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!actions->quantised && (d < WIDE || !ff_screen_i16_fits(actions, d)))
        return -1;
    compute_own_factor_if_due(cache, silo, points_count, count, w, beta, gamma, d, bounds_scratch);
    if (!state->version || points_count - state->made_at > MOST_POINTS)
        return -1;
    /* Exact panels come first in the scratch, see ff_best_of. */
    ff_score_bounds b = {.bounds = bounds_of(state->factor),
                         .moved = state->moved,
                         .grown = state->grown,
                         .view = *actions,
                         .count = count,
                         .d = d};
    b.indices = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    b.upper = (float *)aligned((double *)(b.indices + count));
    b.mean = b.upper + LANES * vectors;
    b.bound = b.mean + LANES * vectors;
    b.row = (int16_t *)(b.bound + LANES * vectors);
    double *back = (double *)(b.row + row_of(d));
    b.scratch = bounds_scratch;
    const double full_beta = beta, full_gamma = gamma;
    const double full_factor = bonus_of(state, beta, gamma);
    beta *= sieve->ranking;
    gamma *= sieve->ranking;
    b.factor = bonus_of(state, beta, gamma);
    int64_t found_version = 0, *query_version = NULL;
    if (actions->quantised) {
        b.bound = cache->bound + actions->first;
        query_version = cache->made + actions->query;
        if (actions->ahead)
            FF_PREFETCH(cache->made + actions->ahead->query);
        found_version = __atomic_load_n(query_version, __ATOMIC_ACQUIRE);
    }
    /* Two silos that are offered the same query may both compute its bounds; either result is
     * valid. */
    b.stage = found_version - state->version;
    const int exists = b.stage >= 0 && b.stage < STAGES;
    ff_compute_bounds(&b, state->first_stage, exists, theta, aligned(back + d));
    /* With principal directions, few cheap bounds reach the exact score of the most promising
     * action, but many reach a lower bound on that score by R. So its exact score is used. */
    const int use_score = b.stage == CHEAP && cache->directions;
    int64_t best = ff_most_promising(&b, use_score);
    /* After the choice, the expected reward (mean) of the chosen action is read, from memory that
     * nothing else reads. Prefetch that of the most promising action. */
    if (actions->mean)
        FF_PREFETCH(actions->mean + best);
    /* Usually bounds alone decide. For an eager silo they need the growth of V, which is tracked
     * only with a second bonus (gamma > 0). */
    if (!use_score && (!cache->own || gamma != 0.0) &&
        ff_bounds_decide(&b, theta, beta, gamma, &best)) {
        record_bounds(query_version, found_version, state->version + b.stage);
        state->work -= state->work > 0;
        if (b.stage == CHEAP)
            state->cheap_failures -= state->cheap_failures > 0;
        ff_features(actions, best, d, x);
        if (gamma != 0.0 && (cache->own || silo < FF_SAMPLES))
            memcpy(cache->sample + silo * d, x, (size_t)d * sizeof(double));
        *largest = largest_unless_passing(&b, sieve, best, theta, full_beta, full_gamma,
                                          full_factor);
        return best;
    }
    ff_query q = {&b.view, w, theta, beta, gamma, b.bounds->model.frobenius,
                  feature_bound, d, x, back, whitened_x, -1, cache->own != NULL};
    const int was_cheap = b.stage == CHEAP;
    int64_t n = ff_list_candidates(&b, &q, &best);
    if (was_cheap) {
        state->cheap_failures += b.stage == BY_FACTOR ? FAILURE : -(state->cheap_failures > 0);
        state->first_stage = state->cheap_failures > MOST_FAILURES ? BY_FACTOR : CHEAP;
    }
    ff_interval best_score = {0.0, 0.0};
    if (n != 1 || b.indices[0] != best) {
        best_score = ff_score_with_error(&q, best);
        n = ff_not_below_score(&b, best_score);
    }
    record_bounds(query_version, found_version, state->version + b.stage);
    if (n == 0 || n > FEW(count)) {
        whitened_x->x[0] = NAN;
        state->work += cache->own ? count / 2 : MISS;
        /* Bounds for the present W ruled out too little. That happens in the first batch, where V
         * is a multiple of I except for the silo's own points. Use no bounds until V has twice as
         * many points, but for at most MOST_PATIENCE further points; then compute R again. */
        if (cache->own && points_count == state->made_at)
            state->retry_at =
                points_count + (points_count < MOST_PATIENCE ? points_count : MOST_PATIENCE);
        return -1;
    }
    state->work += cache->own ? n - 1 : -(state->work > 0);
    int64_t chosen = best;
    if (n > 1 || b.indices[0] != best) {
        double score;
        chosen = ff_best_by_intervals(&q, b.indices, n, best, best_score, bounds_scratch);
        if (chosen < 0)
            chosen = ff_best_of(actions, b.indices, n, w, theta, beta, gamma, d, scratch, &score);
    }
    if (chosen != best) {
        whitened_x->x[0] = NAN;
        ff_features(actions, chosen, d, x);
    }
    if (gamma != 0.0 && (cache->own || silo < FF_SAMPLES))
        memcpy(cache->sample + silo * d, x, (size_t)d * sizeof(double));
    *largest = largest_unless_passing(&b, sieve, chosen, theta, full_beta, full_gamma,
                                      full_factor);
    return chosen;
}

/* For tests: compute all five kinds of bounds on the scores of all actions into results (5, K), see
 * ff_bonus_cache.h. Returns 1, or 0 if there are no cheap bounds or the actions do not fit 16
 * bits. */
int64_t ff_bonus_cache_test_bounds(const ff_actions *actions, const ff_directions *directions,
                                   const double *restrict w, const double *restrict theta,
                                   double beta, double gamma, const double *restrict points,
                                   int64_t points_count, double *restrict updated_w, int64_t d,
                                   double *restrict scratch, float *restrict results)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    if (!ff_screen_i16_fits(actions, d))
        return 0;
    ff_bonus_bounds *bounds = (ff_bonus_bounds *)scratch;
    double *bounds_scratch = scratch + ff_bonus_cache_size(d);
    float *mean = (float *)aligned(bounds_scratch + 3 * d * d + d), *bound = mean + LANES * vectors;
    int16_t *row = (int16_t *)(bound + LANES * vectors);
    action_norms *quantised = (action_norms *)aligned((double *)(row + row_of(d)));
    memset(bounds_scratch, 0, (size_t)d * sizeof(double));
    if (!ff_bonus_bounds_make(w, beta, gamma, bounds_scratch + 3 * d * d, 0, 1, directions, d,
                              bounds_scratch, bounds) ||
        !has_cheap_bounds(bounds))
        return 0;
    /* Set updated_w to W after the data points, and record in `state` how V changes. */
    ff_bonus_silo state = {.factor = scratch, .grown = 1.0};
    ff_bonus_cache cache = {.silo = &state, .factor = scratch};
    memcpy(updated_w, w, (size_t)(d * d) * sizeof(double));
    for (int64_t i = 0; i < points_count; i++) {
        const double s = ff_observe(updated_w, NULL, points + i * d, 0.0, d, bounds_scratch);
        ff_bonus_cache_observe(&cache, 0, bounds_scratch + d, s, d);
    }
    ff_actions view = *actions;
    ff_quantise_i16(actions, d, quantised);
    view.quantised = quantised;
    /* Three kinds of upper bounds. */
    const double bonus_factor = bonus_of(&state, beta, gamma);
    const quantised_row t = ff_quantise_row(theta, d, row);
    ff_bound_by_few(bounds, &view, d, bound);
    ff_bound_means(&view, row, t, bonus_factor, d, mean);
    ff_bound_scores(bounds, mean, bound, bonus_factor, count, d, (float *)bounds_scratch);
    memcpy(results, bounds_scratch, (size_t)count * sizeof(float));
    ff_bound_all(bounds, &view, d, bound);
    ff_bound_scores(bounds, mean, bound, bonus_factor, count, d, (float *)bounds_scratch);
    memcpy(results + count, bounds_scratch, (size_t)count * sizeof(float));
    for (int64_t a = 0; a < count; a++)
        ff_bound_listed(bounds, &view, &a, 1, d, bounds_scratch, bound);
    ff_bound_scores(bounds, mean, bound, bonus_factor, count, d, (float *)bounds_scratch);
    memcpy(results + 2 * count, bounds_scratch, (size_t)count * sizeof(float));
    /* Two kinds of lower bounds. */
    double *x = (double *)(aligned(bounds_scratch + 3 * d)), *z = x + d, *back = z + d;
    const ff_whitened whitened_x = {back + d, z};
    ff_query q = {&view, updated_w,  theta,       beta, gamma, bounds->model.frobenius, 0.0, d,
                  x,     back, &whitened_x, -1,   1};
    for (int64_t a = 0; a < count; a++) {
        results[3 * count + a] = ff_score_at_least(bounds, quantised, a, mean[a], bound[a], theta,
                                                   beta, gamma, state.moved, state.grown, d);
        q.taken = -1;
        results[4 * count + a] =
            ff_least_by_factor(&q, bounds, quantised, a, bound[a], state.moved, state.grown);
    }
    return 1;
}

#else
/* Without the instructions of ff_wide.h (FF_WIDE is not defined) there are no bounds. So all
 * functions below do nothing, and ff_bonus_cache_choose leaves every choice to screening. */

/* Return 0: without FF_WIDE there are no cheap bounds. */
int64_t ff_bonus_cache_test_bounds(const ff_actions *actions, const ff_directions *directions,
                                   const double *restrict w, const double *restrict theta,
                                   double beta, double gamma, const double *restrict points,
                                   int64_t points_count, double *restrict updated_w, int64_t d,
                                   double *restrict scratch, float *restrict results)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)gamma, (void)d, (void)scratch;
    (void)points, (void)points_count, (void)updated_w, (void)results, (void)directions;
    return 0;
}

/* Return 0: without FF_WIDE there are no bounds to store. */
int64_t ff_bonus_cache_size(int64_t d)
{
    (void)d;
    return 0;
}

/* Do nothing: without FF_WIDE there are no bounds to compute. */
void ff_bonus_cache_refresh(ff_bonus_cache *cache, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch)
{
    (void)cache, (void)w, (void)released, (void)beta, (void)gamma, (void)choices, (void)silos;
    (void)d, (void)scratch;
}

/* Return -1: without FF_WIDE there are no bounds, so screening must choose. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *cache, int64_t silo, int64_t points_count,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              const ff_sieve *sieve, double feature_bound, int64_t d,
                              double *restrict scratch, double *restrict bounds_scratch,
                              double *restrict x, const ff_whitened *whitened_x,
                              double *restrict largest)
{
    (void)sieve, (void)largest;
    (void)cache, (void)silo, (void)points_count, (void)actions, (void)w, (void)theta, (void)beta,
        (void)gamma;
    (void)feature_bound, (void)d, (void)scratch, (void)bounds_scratch, (void)x, (void)whitened_x;
    return -1;
}

/* Do nothing: without FF_WIDE there are no bounds to reset. */
void ff_bonus_cache_rewind(ff_bonus_cache *cache, int64_t silo) { (void)cache, (void)silo; }

/* Do nothing: without FF_WIDE there are no bounds to update. */
void ff_bonus_cache_observe(ff_bonus_cache *cache, int64_t silo, const double *restrict v, double s,
                            int64_t d)
{
    (void)cache, (void)silo, (void)v, (void)s, (void)d;
}
#endif
