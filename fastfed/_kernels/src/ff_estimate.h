/* The ridge estimate from a released statistic, and the confidence radius around it. */
#ifndef FF_ESTIMATE_H
#define FF_ESTIMATE_H

#include "ff_base.h"

/* Compute W (d, d) and theta (d) of V = lambda I + covariance and u = bias, where statistic (s) is
 * u, then the packed covariance. While V is not positive definite, it is shifted by lambda, 2
 * lambda, 4 lambda, ... Returns the shift (0 if none was needed), or -1 if no shift helps because
 * the statistic is not finite. scratch: ff_packed(d) + d doubles. */
double ff_refresh(const double *restrict statistic, double lambda, int64_t d, double *restrict w,
                  double *restrict theta, double *restrict scratch);

/* Return the smallest lambda = full j / 8, j = 0..7, for which every eigenvalue of
 * covariance + lambda I is above `floor`, or `full` if there is none. w: d x d, is overwritten;
 * scratch: ff_packed(d) doubles. */
double ff_choose_regularizer(const double *restrict statistic, double full, double floor,
                             int64_t d, double *restrict w, double *restrict scratch);

/* A confidence radius: multiplier (offset + scale sqrt(width)). Without `determinant`, width is
 * base + d ln(1 + count / (d lambda)). With it, width is inflation (base + ln det V + d
 * ln(inflation / anchor)). With `arms` V is diagonal: the largest entry of V replaces det V, and 1
 * replaces d. See bandits/radius.py. */
typedef struct {
    double multiplier, scale, base; /* factors of the radius; constant part of the width */
    int64_t determinant; /* 1: the width uses ln det V */
    double anchor;       /* the lambda for which ln det V counts from 0 */
    int64_t arms;        /* 1: V is diagonal */
} ff_radius;
/* Return the radius without determinant. count: rows in V. */
double ff_radius_at(const ff_radius *radius, double offset, double lambda, double count,
                    int64_t d);
/* Return the inflation of the direct radius if lambda was lowered by `lowered`. Every eigenvalue of
 * V is at least floor; inverse: an upper bound on those of V^{-1}, ff_inverse_norm(). */
double ff_inflation(double lowered, double floor, double inverse);

/* Return ln(inflation / anchor), which is constant between synchronisations. */
double ff_log_inflation(const ff_radius *radius, double inflation);
/* Return ln det V from W or, with `arms`, the logarithm of the largest entry of V. */
double ff_log_volume(const ff_radius *radius, const double *w, int64_t d);
/* Return the radius with determinant. log_inflation: ff_log_inflation(); log_det:
 * ff_log_volume(). */
double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                             double log_inflation, double log_det, int64_t d);

/* Return C of docs/radius.md for a silo that adds its rows one by one: its bonus beta ||x||_{V^-1}
 * + gamma ||V^{-1} x|| is at most C ||x||_{V^-1} while V = anchor I + sum x x' has `rows` rows. */
double ff_row_width(const ff_radius *radius, double gamma, double rows, int64_t d);
/* Return the slack of a sieve (ff_scores.h): a lower bound on the ratio of the bonus that the
 * regret bound counts for an action, C ||x||_{A^-1}, to the bonus in the score of that action, or 1
 * if that is larger. width: C; inflation: V >= A / inflation; inverse: ff_inverse_norm(). */
double ff_slack(double width, double beta, double gamma, double inflation, double inverse);

#endif
