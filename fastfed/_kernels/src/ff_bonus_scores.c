#include "ff_bonus_scores.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_linalg.h"

/* Symbols: W (d, d) is the inverse factor of V (ff_linalg.h), and R the triangular factor that
 * bounds bonuses (ff_bonus_factor.h). A bound on ||R x|| is cheap (ff_bonus_few.h), or "by R",
 * which is tighter and costs more. */

/* Up to this many candidates, score one by one: it is faster than a panel. */
#define SINGLE_MAX 16
/* The largest number of actions that get bounds by R one by one. If more need them, all actions get
 * bounds by R. */
#define MOST_REFINED(actions) (2 * GATHERED + (actions) / 3)
/* Number of times that GATHERED further actions with the largest upper bounds get bounds by R. */
#define REFINEMENTS 2

/* Return the interval around the score mean + bonus of an action. theta_square: ||theta||^2;
 * frobenius: ||W||_F; length: ||x||. */
FF_INLINE ff_interval interval_of(double mean, double bonus, double theta_square, double beta,
                                  double gamma, double frobenius, double length, int64_t d)
{
    const double largest_norm = sqrt(theta_square) + (beta + 2.0 * gamma * frobenius) * frobenius;
    return (ff_interval){mean + bonus, 8.0 * (double)(d + 16) * 0x1p-53 * largest_norm * length};
}

/* Return the interval around the score of x (d), from W x in `known`. If x was clipped there, the
 * bonus is scaled by the ratio of the lengths. back: d doubles of scratch. */
static ff_interval interval_from_whitened(const double *restrict x, const ff_whitened *known,
                                          const double *restrict w, const double *restrict theta,
                                          double beta, double gamma, double frobenius, int64_t d,
                                          double *restrict back)
{
    const double mean = f64_dot(theta, x, d), theta_square = f64_dot(theta, theta, d);
    const double x_square = f64_dot(x, x, d), clipped_square = f64_dot(known->x, known->x, d);
    const double square = f64_dot(known->whitened, known->whitened, d);
    double second = 0.0;
    if (gamma != 0.0) {
        ff_bonus_factor_back(w, known->whitened, d, back);
        second = f64_dot(back, back, d);
    }
    const double length = sqrt(x_square),
                 ratio = x_square > 0.0 ? length / sqrt(clipped_square) : 0.0;
    const double bonus = (beta * sqrt(square) + gamma * sqrt(second)) * ratio;
    return interval_of(mean, bonus, theta_square, beta, gamma, frobenius, length, d);
}

/* Return the interval around the score of action a, without storing W x. x (d) receives its
 * features; scratch: d doubles. */
static ff_interval interval_of_action(const ff_query *q, int64_t a, double *restrict x,
                                      double *restrict scratch)
{
    const int64_t d = q->d;
    ff_features(q->actions, a, d, x);
    const double mean = f64_dot(q->theta, x, d), x_square = f64_dot(x, x, d);
    const double theta_square = f64_dot(q->theta, q->theta, d);
    const ff_squares square = ff_squares_of(q->w, x, q->gamma != 0.0, d, scratch);
    const double bonus = q->beta * sqrt(square.first) + q->gamma * sqrt(square.second);
    return interval_of(mean, bonus, theta_square, q->beta, q->gamma, q->frobenius, sqrt(x_square),
                       d);
}

/* Store the features of action a in q->x, its clipped features and their W x in q->known, unless
 * they are there already. */
static void whiten_action(ff_query *q, int64_t a)
{
    if (q->taken == a)
        return;
    ff_features(q->actions, a, q->d, q->x);
    memcpy(q->known->x, q->x, (size_t)q->d * sizeof(double));
    if (q->feature_bound > 0.0)
        ff_clip_norm(q->known->x, q->d, q->feature_bound);
    ff_whiten(q->w, q->known->x, q->d, q->known->whitened);
    q->taken = a;
}

/* Return the interval around the score of action a. If the silo learns, W x is stored in
 * q->known. */
ff_interval ff_score_with_error(ff_query *q, int64_t a)
{
    if (!q->learns && q->taken != a) {
        q->known->x[0] = NAN;
        q->taken = -1;
        return interval_of_action(q, a, q->x, q->back);
    }
    whiten_action(q, a);
    return interval_from_whitened(q->x, q->known, q->w, q->theta, q->beta, q->gamma, q->frobenius,
                                  q->d, q->back);
}

/* Return the largest float that is not above the lower end of an interval. */
FF_INLINE float lower_end(ff_interval interval)
{
    return ff_float_below(interval.score - interval.error);
}

/* Return a lower bound on the score of action a, from its <x, theta> and ||W x|| in float64 and
 * from `bound`, its bound on ||R x|| by R (not a cheap one). */
float ff_least_by_factor(ff_query *q, const ff_bonus_bounds *bounds,
                         const action_norms *restrict norms, int64_t a, float bound, double moved,
                         double grown)
{
    whiten_action(q, a);
    const double mean = f64_dot(q->theta, q->x, q->d),
                 theta_square = f64_dot(q->theta, q->theta, q->d);
    const double length = sqrt(f64_dot(q->x, q->x, q->d)), frobenius = q->frobenius;
    /* With a gamma of 0 the score is <x, theta> + beta ||W x||, which gives ||W x||. */
    const double norm = (interval_from_whitened(q->x, q->known, q->w, q->theta, q->beta, 0.0,
                                                frobenius, q->d, q->back)
                             .score -
                         mean) /
                        q->beta;
    const double largest_norm =
        sqrt(theta_square) + (q->beta + 2.0 * q->gamma * frobenius) * frobenius;
    const double error = 8.0 * (double)(q->d + 16) * 0x1p-53 * largest_norm * length;
    return ff_score_at_least_with(bounds, norms, a, bound, mean, norm, error, q->beta, q->gamma,
                                  moved, grown, q->d);
}

/* Return the action with the largest score among the n listed ones and `first`, scored one by one
 * with error bounds. Returns -1 if n exceeds SINGLE_MAX or if the interval of the largest score
 * overlaps that of another action. best: the interval of action `first`, which is known already. */
int64_t ff_best_by_intervals(const ff_query *q, const int64_t *restrict indices, int64_t n,
                             int64_t first, ff_interval best, double *restrict scratch)
{
    const int64_t d = q->d;
    if (n > SINGLE_MAX)
        return -1;
    int64_t chosen = first;
    double largest_of_others = -INFINITY; /* upper ends of intervals, without that of `best` */
    for (int64_t i = 0; i < n; i++) {
        if (indices[i] == first)
            continue;
        const ff_interval interval = interval_of_action(q, indices[i], scratch, scratch + d);
        const int is_better = interval.score > best.score;
        const ff_interval beaten = is_better ? best : interval;
        const double upper_end = beaten.score + beaten.error;
        largest_of_others = upper_end > largest_of_others ? upper_end : largest_of_others;
        if (is_better) {
            best = interval;
            chosen = indices[i];
        }
    }
    return best.score - best.error > largest_of_others ? chosen : -1;
}

/* Return the first action whose upper bound is at least `top`; the last action if there is none. */
static int64_t first_at_top(const float *restrict upper, float top, int64_t count)
{
    for (int64_t first = 0; first < count; first += LANES) {
        const f32s u = f32_load(upper + first);
        const unsigned at_top = bits_of(count - first) & f32_at_least(u, f32_set(top));
        if (at_top)
            return first + __builtin_ctz(at_top);
    }
    return count - 1;
}

/* Return the action with the largest upper bound on its score among those that have a bound on
 * ||R x|| by R, stored with a minus sign (cheap bounds are not); 0 if there are none. */
static int64_t highest_by_factor(const float *restrict upper, const float *restrict bound,
                                 int64_t count)
{
    float top = -INFINITY;
    int64_t best = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const f32s bounds = f32_load_some(lanes_of(count - first), bound + first);
        unsigned candidates =
            f32_less(bounds, f32_set(0.0f)) & ~f32_at_least(f32_set(top), f32_load(upper + first));
        /* After the first vector few actions exceed `top`, so this loop is short. */
        for (; candidates; candidates &= candidates - 1) {
            const int64_t a = first + __builtin_ctz(candidates);
            if (upper[a] > top) {
                top = upper[a];
                best = a;
            }
        }
    }
    return best;
}

/* Compute upper bounds on all scores from the bounds on means and bonuses. */
FF_INLINE void update_upper(ff_score_bounds *b)
{
    b->top = ff_bound_scores(b->bounds, b->mean, b->bound, b->factor, b->count, b->d, b->upper);
}

/* Return the action with the largest upper bound. */
FF_INLINE int64_t highest(const ff_score_bounds *b)
{
    return first_at_top(b->upper, b->top, b->count);
}

/* Return 1 if action a has a bound on ||R x|| by R, not only a cheap one. */
FF_INLINE int by_factor(const ff_score_bounds *b, int64_t a)
{
    return b->stage == BY_FACTOR || b->bound[a] < 0.0f;
}

/* Return the norms of the actions, which precede their features in 16 bits. */
FF_INLINE const action_norms *lengths_of(const ff_score_bounds *b)
{
    return (const action_norms *)b->view.quantised;
}

/* List the actions whose upper bound is not below lower_bound into b->indices. Returns their
 * number. */
FF_INLINE int64_t not_below(const ff_score_bounds *b, float lower_bound)
{
    return ff_not_below(b->upper, lower_bound, b->count, b->indices);
}

/* Compute bounds by R for those of the n actions in b->indices that have only cheap bounds; see
 * ff_bound_missing. */
FF_INLINE int64_t bound_missing(const ff_score_bounds *b, int64_t n, int64_t limit)
{
    return ff_bound_missing(b->bounds, &b->view, b->indices, n, limit, b->d, b->scratch, b->bound);
}

/* Compute bounds by R for the actions with the largest upper bounds. Returns their number; see
 * ff_bound_largest. */
FF_INLINE int64_t bound_largest(const ff_score_bounds *b)
{
    return ff_bound_largest(b->bounds, &b->view, b->upper, b->top, b->d, b->scratch, b->bound);
}

/* Compute upper bounds on the scores of all actions. If exists is 1, their bounds on bonuses are
 * reused; otherwise they are computed: cheap bounds if `stage` is CHEAP and there are such bounds
 * (few.rest > 0), else bounds by R. buffer: see ff_bonus_scores.h. */
void ff_compute_bounds(ff_score_bounds *b, int64_t stage, int exists, const double *restrict theta,
                       void *restrict buffer)
{
    if (!b->view.quantised) {
        ff_quantise_i16(&b->view, b->d, buffer);
        b->view.quantised = buffer;
    }
    if (!exists) {
        b->stage = b->bounds->few.rest > 0.0 ? stage : BY_FACTOR;
        if (b->stage == CHEAP)
            ff_bound_by_few(b->bounds, &b->view, b->d, b->bound);
        else
            ff_bound_all(b->bounds, &b->view, b->d, b->bound);
    }
    const quantised_row t = ff_quantise_row(theta, b->d, b->row);
    ff_bound_means(&b->view, b->row, t, b->factor, b->d, b->mean);
    update_upper(b);
    if (b->stage == CHEAP && bound_largest(b))
        update_upper(b);
}

/* Return the action with the largest upper bound on its score: among all actions, or only among
 * those whose ||R x|| is bounded by R and not by a cheap bound. */
int64_t ff_most_promising(const ff_score_bounds *b, int bounded_by_factor)
{
    return bounded_by_factor ? highest_by_factor(b->upper, b->bound, b->count) : highest(b);
}

/* Return 1 if bounds on scores prove that the most promising action, the one with the largest upper
 * bound, is the best one: its lower bound exceeds the upper bounds of all others. Cheap bounds on
 * ||R x|| that are too loose are replaced by bounds by R, which are tighter. *best receives the
 * most promising action. */
int ff_bounds_decide(ff_score_bounds *b, const double *restrict theta, double beta, double gamma,
                     int64_t *restrict best)
{
    for (int pass = 0; pass < 2; pass++) {
        /* Only actions with a bound by R have a lower bound on their score. If the most promising
         * action is not among them after REFINEMENTS calls of bound_largest, the cheap bounds are
         * too loose here. */
        for (int i = 0; !by_factor(b, *best) && i < REFINEMENTS; i++) {
            bound_largest(b);
            update_upper(b);
            *best = highest(b);
        }
        if (!by_factor(b, *best))
            return 0;
        const float lower_bound =
            ff_score_at_least(b->bounds, lengths_of(b), *best, b->mean[*best], b->bound[*best],
                              theta, beta, gamma, b->moved, b->grown, b->d);
        const int64_t n = not_below(b, lower_bound);
        if (b->stage != CHEAP || n <= 1 || pass)
            return n == 1 && b->indices[0] == *best;
        const int64_t limit = MOST_REFINED(b->count);
        if (bound_missing(b, n, limit) > limit)
            return 0;
        update_upper(b);
        *best = highest(b);
    }
    return 0;
}

/* Return a lower bound on <x, theta> plus `times` the bonus of an action; -INFINITY if the action
 * has only a cheap bound on ||R x||, and none by R. */
double ff_bounded_at_least(const ff_score_bounds *b, int64_t a, const double *restrict theta,
                           double beta, double gamma, double times)
{
    if (!by_factor(b, a))
        return -INFINITY;
    return (double)ff_score_at_least(b->bounds, lengths_of(b), a, b->mean[a], b->bound[a], theta,
                                     times * beta, times * gamma, b->moved, b->grown, b->d);
}

/* Return a lower bound on the score of an action; q->x then holds its features. */
static float least_score(const ff_score_bounds *b, ff_query *q, int64_t a)
{
    return by_factor(b, a)
               ? ff_least_by_factor(q, b->bounds, lengths_of(b), a, b->bound[a], b->moved, b->grown)
               : lower_end(ff_score_with_error(q, a));
}

/* List the actions whose upper bounds are not below the lower end of a score's interval, and return
 * their number. */
int64_t ff_not_below_score(const ff_score_bounds *b, ff_interval score)
{
    return not_below(b, lower_end(score));
}

/* List the actions whose upper bounds are not below a lower bound on the score of *best. Before
 * that, replace the cheap bounds on ||R x|| of such actions by bounds by R, which are tighter.
 * Returns their number. */
int64_t ff_list_candidates(ff_score_bounds *b, ff_query *q, int64_t *restrict best)
{
    float lower_bound = least_score(b, q, *best);
    const int64_t n = not_below(b, lower_bound), limit = MOST_REFINED(b->count);
    const int64_t missing = b->stage == CHEAP ? bound_missing(b, n, limit) : 0;
    if (!missing)
        return n;
    if (missing > limit) {
        b->stage = BY_FACTOR;
        ff_bound_all(b->bounds, &b->view, b->d, b->bound);
    }
    update_upper(b);
    const int64_t promising = highest(b);
    if (promising != *best) {
        *best = promising;
        lower_bound = least_score(b, q, promising);
    }
    return not_below(b, lower_bound);
}

#endif
