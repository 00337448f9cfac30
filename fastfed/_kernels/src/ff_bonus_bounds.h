/* Upper bounds on the bonuses and scores of a query's actions in 16 bits, and a lower one on a
 * score.
 *
 * Bonuses are bounded by ||R x||, of one triangular factor (ff_bonus_factor.h), in units of its
 * quantised form; and ||R x|| first by less, where that tells enough: by few products
 * (ff_bonus_few.h). */
#ifndef FF_BONUS_BOUNDS_H
#define FF_BONUS_BOUNDS_H

#include "ff_base.h"

#ifdef FF_WIDE
#include <float.h>
#include <math.h>

#include "ff_bonus_factor.h"
#include "ff_bonus_few.h"
#include "ff_screen_i16_parts.h"

/* Data points that may enter V before rounding could matter; see `scale_of`. */
#define MOST_POINTS 65536

/* A finite float not above x; -inf for what is not a number. */
FF_INLINE float ff_float_below(double x)
{
    const float rounded = (float)x;
    if (!(x >= -FLT_MAX))
        return -INFINITY;
    return rounded > FLT_MAX || (double)rounded > x ? nextafterf(rounded, -INFINITY) : rounded;
}

/* R in 16 bits, and few products that bound ||R x|| sooner. Their rows follow. */
typedef struct {
    quantised_factor factor;
    ff_bonus_factor model; /* its c is NaN where there is no R */
    ff_bonus_few few;
    const int16_t *rows;   /* of `few` */
    const float *columns;  /* of W in float32, if ff_bonus_bounds_keep() was called; or NULL */
} ff_bonus_bounds;

/* Doubles that these take, rows included. */
int64_t ff_bonus_bounds_size(int64_t d);

/* Of W, for bonuses with these factors; returns 0 where there is no R. sooner: whether few products
 * are worth making. pool: what its actions are made of, or NULL. sample: so many rows that are like
 * the actions. scratch: 3 d^2. */
int ff_bonus_bounds_make(const double *restrict w, double beta, double gamma,
                         const double *restrict sample, int64_t samples, int sooner,
                         const ff_directions *pool, int64_t d, double *scratch,
                         ff_bonus_bounds *k);

/* That the W of these bounds stays what it is until they are made anew: a norm by it is then taken
 * sooner (ff_norm_by_columns). Takes so many doubles more, after the others. */
int64_t ff_bonus_bounds_kept(int64_t d);
void ff_bonus_bounds_keep(const double *restrict w, int64_t d, ff_bonus_bounds *k);

/* Bounds on ||R x|| of all actions, by R and by few products. */
void ff_bound_all(const ff_bonus_bounds *k, const ff_actions *actions, int64_t d,
                  float *restrict bound);
void ff_bound_by_few(const ff_bonus_bounds *k, const ff_actions *actions, int64_t d,
                     float *restrict bound);

/* Bounds by R have a minus sign where the others are by less. Those of `n` <= TOGETHER actions.
 * room: 2 d + 16 doubles, here and below. */
void ff_bound_some(const ff_bonus_bounds *k, const ff_actions *actions,
                   const int64_t *restrict which, int64_t n, int64_t d, double *restrict room,
                   float *restrict bound);

/* Of the actions that have none by R those of the largest upper bounds on scores, at most TOGETHER,
 * with that of the one at `top` if it has none. Returns how many. */
int64_t ff_bound_largest(const ff_bonus_bounds *k, const ff_actions *actions,
                         const float *restrict upper, float top, int64_t d, double *restrict room,
                         float *restrict bound);

/* Of those among n actions that have none by R; returns how many there are, and where there are
 * more than `most` does nothing else. */
int64_t ff_bound_open(const ff_bonus_bounds *k, const ff_actions *actions,
                      const int64_t *restrict which, int64_t n, int64_t most, int64_t d,
                      double *restrict room, float *restrict bound);

/* Upper bounds on all means, and what a score whose bonus is `factor` ||R x|| may lose by rounding
 * but for `slack_of` that bonus. theta in 16 bits: row, t. */
void ff_bound_means(const ff_actions *actions, const int16_t *restrict row, quantised_row t,
                    double factor, int64_t d, float *restrict upper);

/* Upper bounds on all scores of those on means and bonuses, -inf past the last one; returns the
 * largest. */
float ff_bound_scores(const ff_bonus_bounds *k, const float *restrict mean,
                      const float *restrict bound, double factor, int64_t count, int64_t d,
                      float *restrict upper);

/* The actions whose upper bound is not below `least`, ascending; returns how many. */
int64_t ff_not_below(const float *restrict upper, float least, int64_t count,
                     int64_t *restrict which);

/* A float that the exact score of an action is not below, by its bounds on the mean and, by R, on
 * ||R x||. known: of the query. moved and grown: what data points have made of V since R was made
 * (ff_bonus_cache.h). */
float ff_score_at_least(const ff_bonus_bounds *k, const measured *restrict known, int64_t a,
                        float upper_mean, float bound, const double *restrict theta, double beta,
                        double gamma, double moved, double grown, int64_t d);

/* The same with its mean and a = ||W x|| in float64, beta > 0; error: what the exact score is off
 * by. */
float ff_score_at_least_with(const ff_bonus_bounds *k, const measured *restrict known,
                             int64_t action, float bound, double mean, double a, double error,
                             double beta, double gamma, double moved, double grown, int64_t d);
#endif

#endif
