/* One triangular factor for both bonuses of a score.
 *
 * Let a = ||W x|| and b = ||W'W x||. By Cauchy-Schwarz the bonus beta a + gamma b is at most
 *   sqrt(beta^2 + gamma^2 / c) sqrt(a^2 + c b^2)    for any c > 0,
 * with equality if beta c b = gamma a. The second root is ||R x|| for the triangular factor R of
 * W'W + c (W'W)^2 = R'R, so it costs half a matrix product, like W x. The difference between bound
 * and bonus is of second order in the difference between an action's b / a and the ratio that c was
 * chosen for. */
#ifndef FF_BONUS_FACTOR_H
#define FF_BONUS_FACTOR_H

#include "ff_base.h"

/* Properties of R that bounds need. */
typedef struct {
    double c;         /* 0: R is W, and there is no second bonus */
    double frobenius; /* ||W||_F */
    double lost;      /* covers all rounding: sqrt(a^2 + c b^2) <= ||R x|| + lost ||x|| */
} ff_bonus_factor;

/* Compute R (d x d, lower triangular, zero above) from W and c > 0. inverse: d x d doubles of
 * scratch. The c of the result is 0 if rounding leaves no factor. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r);

/* Return c for the factors beta and gamma and typical actions x (count, d). If all are zero, unit
 * vectors are used instead. scratch: 2 d doubles. */
double ff_bonus_factor_weight(const double *restrict w, double beta, double gamma,
                              const double *restrict x, int64_t count, int64_t d,
                              double *restrict scratch);

/* Return ||W x||^2, and ||W'W x||^2 if with_second (else 0), in one pass over W. The order of
 * additions differs from that of ff_whiten. scratch: d doubles. */
typedef struct {
    double first, second;
} ff_squares;
ff_squares ff_squares_of(const double *restrict w, const double *restrict x, int with_second,
                         int64_t d, double *restrict scratch);

/* out (d) = W'z, for W (d, d) and z (d). */
void ff_bonus_factor_back(const double *restrict w, const double *restrict z, int64_t d,
                          double *restrict out);

#endif
