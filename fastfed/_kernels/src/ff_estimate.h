/* The ridge estimate from an aggregated statistic, and the confidence radius around it. */
#ifndef FF_ESTIMATE_H
#define FF_ESTIMATE_H

#include "ff_base.h"

/* W and theta of V = lambda I + covariance, u = bias. While V is not positive definite it is
 * shifted by lambda, 2 lambda, 4 lambda, ... more; returns the shift (0 when none was needed),
 * or -1 when no shift helps (the statistic is not finite). scratch: packed V and d more. */
double ff_refresh(const double *restrict statistic, double lambda, int64_t d, double *restrict w,
                  double *restrict theta, double *restrict scratch);

/* The least lambda of full j / 8, j = 0..7, that leaves every eigenvalue of covariance + lambda I
 * above `floor`, else `full`. w: d x d, scratch: packed V. */
double ff_choose_regularizer(const double *restrict statistic, double full, double floor,
                             int64_t d, double *restrict w, double *restrict scratch);

/* Confidence radii: multiplier (offset + scale sqrt(width)), where `width` is base + d ln(1 +
 * count / (d lambda)), or with `determinant` inflation (base + ln det V + d ln(inflation /
 * anchor)); see bandits/radius.py. */
typedef struct {
    double multiplier, scale, base;
    int64_t determinant;
    double anchor;
} ff_radius;
double ff_radius_at(const ff_radius *radius, double offset, double lambda, double count,
                    int64_t d);
/* ln(inflation / anchor), which stays from one synchronisation to the next. */
double ff_log_inflation(const ff_radius *radius, double inflation);
double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                             double log_inflation, double log_det, int64_t d);

/* A bound on what a round's regret may gain where both bonuses are multiplied by m < 1, with a
 * largest reward of 1: min(1, (1 - m) (beta sqrt(q) + gamma q)), where q bounds the largest
 * eigenvalue of V^{-1} = W'W, as the eighth root of the trace of its eighth power.
 * scratch: 2 d^2. */
double ff_missing_bonus(const double *w, double beta, double gamma, double m, int64_t d,
                        double *scratch);

#endif
