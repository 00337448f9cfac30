/* One triangular factor for both bonuses of a score.
 *
 * With a = ||W x|| and b = ||W'W x||, the bonus beta a + gamma b is at most, by Cauchy-Schwarz,
 *     sqrt(beta^2 + gamma^2 / c) sqrt(a^2 + c b^2)    for any c > 0,
 * and equal to it where beta c b = gamma a. The second root is ||R x||, R being the triangular
 * factor of W'W + c (W'W)^2 = R'R: half a product, as W x is. What the bound is above the bonus is
 * of second order in how far an action's b / a is from the one that c was made for. */
#ifndef FF_BONUS_FACTOR_H
#define FF_BONUS_FACTOR_H

#include "ff_base.h"

/* What a bound by R needs to know of it. */
typedef struct {
    double c;         /* 0: R is W, and there is no second bonus */
    double frobenius; /* of W */
    double lost;      /* sqrt(a^2 + c b^2) <= ||R x|| + lost ||x||, whatever the rounding of R */
} ff_bonus_factor;

/* R (d x d, lower triangular, zero above) of W and c > 0. inverse: d x d of scratch. Its c is 0
 * where rounding leaves no factor. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r);

/* c for factors beta and gamma and actions like these: count rows x of d. Where all are zero it is
 * the one of coordinates. scratch: 2 d. */
double ff_bonus_factor_weight(const double *restrict w, double beta, double gamma,
                              const double *restrict x, int64_t count, int64_t d,
                              double *restrict scratch);

/* The columns of W (d x d, lower triangular, zero above) in float32, for ff_norm_by_columns: so
 * many floats. */
int64_t ff_columns_size(int64_t d);
void ff_columns_make(const double *restrict w, int64_t d, float *restrict columns);

/* ||W x||, and what it may be off by, a unit of ||W||_F ||x||. */
double ff_norm_by_columns(const float *restrict columns, const float *restrict x, int64_t d);
double ff_norm_error(int64_t d);

/* ||W x||^2, and with `both` ||W'W x||^2 (else 0), in an order of its own, W read once. room: d. */
typedef struct {
    double first, second;
} ff_squares;
ff_squares ff_squares_of(const double *restrict w, const double *restrict x, int both, int64_t d,
                         double *restrict room);

/* out = W'z. */
void ff_bonus_factor_back(const double *restrict w, const double *restrict z, int64_t d,
                          double *restrict out);

#endif
