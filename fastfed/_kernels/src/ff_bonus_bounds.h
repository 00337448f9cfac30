/* Upper bounds on the bonuses and scores of the actions of a query (in 16 bits), and lower bounds
 * on single scores.
 *
 * Bonuses are bounded by ||R x|| for one triangular factor R (ff_bonus_factor.h), in units of the
 * quantised R. Where it pays, ||R x|| is bounded first by few products (ff_bonus_few.h): the cheap
 * bounds. */
#ifndef FF_BONUS_BOUNDS_H
#define FF_BONUS_BOUNDS_H

#include "ff_base.h"

#ifdef FF_WIDE
#include <float.h>
#include <math.h>

#include "ff_bonus_factor.h"
#include "ff_bonus_few.h"
#include "ff_screen_i16_parts.h"

/* The largest number of data points that may enter V before rounding error could matter; see
 * `error_terms_of`. */
#define MOST_POINTS 65536

/* Return the largest finite float that is at most x; -inf for NaN. */
FF_INLINE float ff_float_below(double x)
{
    const float rounded = (float)x;
    if (!(x >= -FLT_MAX))
        return -INFINITY;
    return rounded > FLT_MAX || (double)rounded > x ? nextafterf(rounded, -INFINITY) : rounded;
}

/* R in 16 bits, and the few products of the cheap bounds. The rows of both follow this struct in
 * memory. */
typedef struct {
    quantised_factor factor; /* R in 16 bits */
    ff_bonus_factor model;   /* R; model.c is NaN if there is no R */
    ff_bonus_few few;        /* the cheap bounds; few.rest is 0 if there are none */
    const int16_t *rows;     /* rows of `few` */
} ff_bonus_bounds;

/* Return the number of doubles of an ff_bonus_bounds, rows included. */
int64_t ff_bonus_bounds_size(int64_t d);

/* Compute the bounds for W and the factors beta and gamma. Returns 0 if there is no R. cheap:
 * whether cheap bounds are worth computing. pool: principal directions of the actions, or NULL.
 * sample: typical actions (samples, d). scratch: 3 d^2 doubles. */
int ff_bonus_bounds_make(const double *restrict w, double beta, double gamma,
                         const double *restrict sample, int64_t samples, int cheap,
                         const ff_directions *pool, int64_t d, double *scratch,
                         ff_bonus_bounds *bounds);

/* Compute upper bounds on ||R x|| of all actions into bound (K), in units of the factor: by R, or
 * by few products. */
void ff_bound_all(const ff_bonus_bounds *bounds, const ff_actions *actions, int64_t d,
                  float *restrict bound);
void ff_bound_by_few(const ff_bonus_bounds *bounds, const ff_actions *actions, int64_t d,
                     float *restrict bound);

/* Compute bounds by R for the n <= GATHERED actions in `indices` (n), into their entries of bound
 * (K), with a minus sign that distinguishes them from cheap bounds. scratch: 2 d + 16 doubles, here
 * and below. */
void ff_bound_listed(const ff_bonus_bounds *bounds, const ff_actions *actions,
                     const int64_t *restrict indices, int64_t n, int64_t d,
                     double *restrict scratch, float *restrict bound);

/* Compute bounds by R for the actions with the largest upper bounds on scores among those that have
 * only cheap bounds: at most GATHERED, including one whose upper bound is `top`, if it has only a
 * cheap bound. Returns their number. */
int64_t ff_bound_largest(const ff_bonus_bounds *bounds, const ff_actions *actions,
                         const float *restrict upper, float top, int64_t d,
                         double *restrict scratch, float *restrict bound);

/* Compute bounds by R for those of the n actions in `indices` that have only cheap bounds, unless
 * there are more than `limit` such actions. Returns the number of such actions. */
int64_t ff_bound_missing(const ff_bonus_bounds *bounds, const ff_actions *actions,
                         const int64_t *restrict indices, int64_t n, int64_t limit, int64_t d,
                         double *restrict scratch, float *restrict bound);

/* Compute upper bounds on all means. They cover the rounding error of a score whose bonus is
 * `factor` ||R x||, except for the part slack_of(d) of the bonus. row, t: theta in 16 bits. */
void ff_bound_means(const ff_actions *actions, const int16_t *restrict row, quantised_row t,
                    double factor, int64_t d, float *restrict upper);

/* Compute upper bounds on all scores from the bounds on means and bonuses, into `upper`; -inf past
 * the last action. Returns the largest. */
float ff_bound_scores(const ff_bonus_bounds *bounds, const float *restrict mean,
                      const float *restrict bound, double factor, int64_t count, int64_t d,
                      float *restrict upper);

/* List the actions whose upper bound is not below `least`, in ascending order, into `indices`.
 * Returns their number. */
int64_t ff_not_below(const float *restrict upper, float least, int64_t count,
                     int64_t *restrict indices);

/* Return a lower bound on the exact score of an action, given its upper bounds on the mean and (by
 * R) on ||R x||. norms: the lengths, units and errors of all actions of the query. moved, grown:
 * how V has changed since R was computed (ff_bonus_cache.h). */
float ff_score_at_least(const ff_bonus_bounds *bounds, const action_norms *restrict norms,
                        int64_t action, float upper_mean, float bound,
                        const double *restrict theta, double beta, double gamma, double moved,
                        double grown, int64_t d);

/* Return a lower bound on the exact score of an action, given its mean <x, theta> and a = ||W x||
 * in float64, for beta > 0. error: bound on the rounding error of the score computed from them. */
float ff_score_at_least_with(const ff_bonus_bounds *bounds, const action_norms *restrict norms,
                             int64_t action, float bound, double mean, double a, double error,
                             double beta, double gamma, double moved, double grown, int64_t d);
#endif

#endif
