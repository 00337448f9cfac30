/* Cheap bounds: a bound on ||R x|| from few products, for the R of ff_bonus_factor.h. Theorem:
 *   ||R x||^2 <= rest ||x||^2 + ||H x||^2 - ||G x||^2
 * if N - G'G >= 0, where N = rest I + H'H - R'R. A Cholesky factor of N - G'G proves this, whatever
 * H and G are. The best H with few rows consists of eigenvectors of the largest eigenvalues of R'R,
 * where noise has left V small; here they are approximated. If the features of actions are strongly
 * correlated, actions are nearly Z y for few columns Z (ff_directions.h). Then G subtracts N along
 * Z: G'G = N Z (Z'N Z)^-1 Z'N, the largest G'G <= N that N Z determines. For other actions there is
 * no G. */
#ifndef FF_BONUS_FEW_H
#define FF_BONUS_FEW_H

#include "ff_directions.h"

/* The largest number of rows of H and G, in groups of 6 (ROWS of ff_panel.h). */
#define FF_FEW_ROWS 30

/* The bound, without the rows of H and G. */
typedef struct {
    double rest;                /* see above; 0: there is no such bound */
    double norm;                /* upper bound on ||R||_2 */
    double unit;                /* largest unit of the rows in 16 bits */
    int64_t rows;               /* rows of H and G, whole groups */
    float squares[FF_FEW_ROWS]; /* squared units of the rows, relative to the largest; negative
                                 * for rows of G */
} ff_bonus_few;

/* Compute the bound for R (d x d, lower triangular). pool: principal directions of the actions, or
 * NULL. H and G are written to `entries` in 16 bits: FF_FEW_ROWS rows as long as those of R in 16
 * bits, 64-byte aligned. m and rows: d^2 doubles of scratch each. */
ff_bonus_few ff_bonus_few_make(const double *restrict r, const ff_directions *pool, int64_t d,
                               double *restrict m, double *restrict rows,
                               int16_t *restrict entries);

#endif
