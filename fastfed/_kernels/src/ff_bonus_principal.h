/* A bound on ||R x||, for the R of ff_bonus_factor.h, by the principal coordinates z = Q x of an
 * action (ff_principal.h):
 *     ||R x||^2 <= ||L z||^2 + rest (||x||^2 - ||z||^2)
 * wherever  Q'L'L Q + rest (I - Q'Q) - R'R >= 0, and that this is so is told by a Cholesky factor
 * of it. For rows Q that are orthonormal and any `rest` above the largest eigenvalue of R'R on what
 * is orthogonal to them, the least L'L is rest I - (Q (rest I - R'R)^-1 Q')^-1. */
#ifndef FF_BONUS_PRINCIPAL_H
#define FF_BONUS_PRINCIPAL_H

#include "ff_base.h"

#ifdef FF_WIDE
#include "ff_principal_parts.h"

/* Rows of L in 16 bits follow. */
typedef struct {
    double rest; /* 0: there is no such bound */
    int64_t rank;
    quantised_factor factor; /* of L */
} ff_bonus_principal;

/* Doubles that the rows take. */
int64_t ff_bonus_principal_size(void);

/* Of R, d x d, lower triangular. room: 3 d^2, of which R may be the second one. */
ff_bonus_principal ff_bonus_principal_make(const ff_principal *k, const double *r, int64_t d,
                                           double *room, double *restrict rows);

/* Upper bounds on ||R x|| + slope ||x||, times `slack` and `scale`, of all actions of a query. */
void ff_principal_bounds(const ff_bonus_principal *p, const ff_actions *actions, const char *block,
                         double scale, double slope, double slack, float *restrict bound);

/* Upper bounds on all means. */
void ff_principal_means(const ff_principal *k, const ff_actions *actions, const char *block,
                        const double *restrict theta, int64_t d, float *restrict upper);
#endif

#endif
