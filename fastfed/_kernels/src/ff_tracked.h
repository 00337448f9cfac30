/* Tracked scores: means and squared bonuses of all actions of a fixed set, updated in O(K d).
 *
 * While the same K rows are offered round after round and V changes by single data points, the
 * changes of <x_a, theta>, ||W x_a||^2 and ||V^{-1} x_a||^2 follow from two products with the rows.
 * Tracked scores are only used for screening. They come with a bound on their rounding error,
 * actions that may be best are scored exactly, and all scores are recomputed after some rounds. */
#ifndef FF_TRACKED_H
#define FF_TRACKED_H

#include "ff_base.h"
#include "ff_scores.h"

/* The smallest dimension for which scores are tracked; below it candidates (ff_candidates.h) are
 * faster. */
#define FF_TRACKED_LEAST 12

/* The tracked scores of one silo. */
typedef struct {
    const void *x;        /* the rows, or NULL: nothing is tracked */
    int64_t released;     /* synchronisations when the scores were computed */
    int64_t rounds_left;  /* rounds for which they may still be used; below 0: -rounds to wait */
    double mean_error, width_error, second_error; /* bounds on the rounding errors of the means,
                                                   * of ||W x||^2, and of ||V^{-1} x||^2 */
    double length;        /* bound on every ||x|| */
    double inverse;       /* bound on ||W||_F */
    double width, second; /* bounds on every ||W x|| and ||V^{-1} x|| */
} ff_tracked;

/* Return the doubles that the scores of K actions take, in addition to ff_tracked. */
FF_INLINE int64_t ff_tracked_size(int64_t actions) { return 5 * actions; }

/* Return 1 if scores of these rows can be tracked: float32, feature-major, large enough
 * dimension. */
FF_INLINE int ff_tracked_fits(const ff_actions *actions, int64_t d)
{
    return d >= FF_TRACKED_LEAST && !actions->is_double && actions->action_stride == 1;
}

/* Compute all scores. values: ff_tracked_size() doubles; scratch: as for ff_select. */
void ff_tracked_make(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                     const double *restrict w, const double *restrict theta, double gamma,
                     int64_t released, int64_t d, double *restrict scratch);

/* Return the action with the largest score, and write its features to x (d); -1 if too many actions
 * may be best. */
int64_t ff_tracked_choose(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                          const double *restrict w, const double *restrict theta, double beta,
                          double gamma, int64_t d, double *restrict scratch, double *restrict x);

/* Do the same with a sieve. */
int64_t ff_tracked_choose_sieved(ff_tracked *tracked, double *restrict values,
                                 const ff_actions *actions, const double *restrict w,
                                 const double *restrict theta, double beta, double gamma,
                                 const ff_sieve *sieve, int64_t d, double *restrict scratch,
                                 double *restrict x);

/* Update the scores after a data point (x, y) changed V and theta. w: after the change; v = V^{-1}
 * x and prediction = <x, theta>: before it; theta_norm: norm of the previous theta; s: the result
 * of ff_observe. scratch: 3 d doubles. */
void ff_tracked_observe(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                        const double *restrict w, const double *restrict v, double prediction,
                        double theta_norm, double y, double s, double gamma, int64_t d,
                        double *restrict scratch);

#endif
