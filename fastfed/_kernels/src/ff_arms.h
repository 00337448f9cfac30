/* Arms: every feature vector is a unit vector e_a, so V and its factor W are diagonal. The
 * functions do in O(d) what those for other features do in O(d^2). */
#ifndef FF_ARMS_H
#define FF_ARMS_H

#include "ff_base.h"
#include "ff_scores.h"

/* Add a data point as ff_accumulate does. */
void ff_arms_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                        double y, int64_t d);

/* Learn a data point as ff_observe does. Only the diagonal of W (d, d) is read and written. */
double ff_arms_observe(double *restrict w, double *restrict theta, const double *restrict x,
                       double y, int64_t d);

/* Return the number of doubles of scratch that ff_arms_scored needs. */
int64_t ff_arms_scratch(int64_t d);

/* Choose an arm as ff_scored chooses an action. The function `score` receives no features (x is
 * NULL) and no state, and only the d diagonal entries of W. */
int64_t ff_arms_scored(ff_score score, uint64_t key, int64_t round, const double *restrict w,
                       const double *restrict theta, double beta, double gamma,
                       const ff_sieve *sieve, int64_t d, double *restrict scratch,
                       double *restrict x);

#endif
