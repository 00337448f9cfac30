/* A new model after a release, in a small dimension: lambda, W, theta and the bound on V^-1 in one
 * pass. If releases follow every round, this takes most of a round. The general functions
 * (ff_estimate.h, ff_linalg.h) wait at every step for the step before. */
#ifndef FF_REFRESH_SMALL_H
#define FF_REFRESH_SMALL_H

#include "ff_base.h"

/* Try to compute what ff_choose_regularizer, ff_refresh and ff_inverse_norm compute, with the same
 * bits: lambda = full step / 8 into *lambda, W (d, d), theta (d), and the bound on the largest
 * eigenvalue of V^-1 into *inverse. step: a guess, the step of the previous release. Returns 0,
 * with undefined results, if the guess is wrong, if V is not positive definite, or if there is no
 * code for dimension d. */
int ff_refresh_small(const double *restrict statistic, double full, double floor, int64_t step,
                     int64_t d, double *restrict w, double *restrict theta,
                     double *restrict lambda, double *restrict inverse);

#endif
