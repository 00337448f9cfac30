/* Tracked scores: means and squared bonuses of a fixed set's actions, by O(K d) updates.
 *
 * While the same K rows are offered round after round and V changes by data points one at a time,
 * <x_a, theta>, ||W x_a||^2 and ||V^{-1} x_a||^2 change by what two products of the rows tell. They
 * only screen: a bound on what rounding has done to them is kept, actions that may be best by it are
 * scored exactly, and after some rounds all are made anew. */
#ifndef FF_TRACKED_H
#define FF_TRACKED_H

#include "ff_base.h"
#include "ff_scores.h"

/* From this dimension on; below it candidates (ff_candidates.h) take less. */
#define FF_TRACKED_LEAST 12

typedef struct {
    const void *x;    /* the rows, or NULL: nothing is tracked */
    int64_t released; /* synchronisations when they were made */
    int64_t left;     /* rounds for which they may be used; below 0: to wait until they are made */
    double mean_error, width_error, second_error; /* of the means and of the squares */
    double length;    /* at least every ||x|| */
    double inverse;   /* at least ||W||_F */
    double width, second; /* at least every ||W x|| and ||V^{-1} x|| */
} ff_tracked;

/* Doubles that K actions take, beside ff_tracked. */
FF_INLINE int64_t ff_tracked_size(int64_t actions) { return 5 * actions; }

/* 1 if these rows have the layout, and enough dimensions. */
FF_INLINE int ff_tracked_fits(const ff_actions *actions, int64_t d)
{
    return d >= FF_TRACKED_LEAST && !actions->is_double && actions->action_stride == 1;
}

/* Makes all anew. values: ff_tracked_size(); scratch: as of ff_select. */
void ff_tracked_make(ff_tracked *k, double *restrict values, const ff_actions *actions,
                     const double *restrict w, const double *restrict theta, double gamma,
                     int64_t released, int64_t d, double *restrict scratch);

/* The action of the largest score, its features into x (d); -1 where too many may be best. */
int64_t ff_tracked_choose(ff_tracked *k, double *restrict values, const ff_actions *actions,
                          const double *restrict w, const double *restrict theta, double beta,
                          double gamma, int64_t d, double *restrict scratch, double *restrict x);

/* A data point (x, y) entered V and theta. w: after it; v = V^{-1} x and prediction = <x, theta>
 * before it, theta_norm: the norm of that theta; s: the result of ff_observe. scratch: 3 d. */
void ff_tracked_observe(ff_tracked *k, double *restrict values, const ff_actions *actions,
                        const double *restrict w, const double *restrict v, double prediction,
                        double theta_norm, double y, double s, double gamma, int64_t d,
                        double *restrict scratch);

#endif
