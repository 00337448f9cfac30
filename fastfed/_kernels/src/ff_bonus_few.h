/* A bound on ||R x|| that costs few products, for the R of ff_bonus_factor.h:
 *     ||R x||^2 <= rest ||x||^2 + ||H x||^2 - ||G x||^2
 * wherever N - G'G >= 0, N = rest I + H'H - R'R, and that this is so is told by a Cholesky factor
 * of it, whatever H and G are. The best H of few rows is made of the eigenvectors of the largest
 * eigenvalues of R'R, where noise has left V small; here they are approximated. Of actions that
 * hang together, so that they are nearly Z y for few columns Z (ff_directions.h), G takes off what
 * N is along these: G'G = N Z (Z'N Z)^-1 Z'N, for N >= 0 the most that N Z tells. Other actions
 * have no G. */
#ifndef FF_BONUS_FEW_H
#define FF_BONUS_FEW_H

#include "ff_directions.h"

/* The most rows of H and G, in groups of 6 (ROWS of ff_panel.h). */
#define FF_FEW_ROWS 30

typedef struct {
    double rest; /* 0: there is no such bound */
    double norm; /* at least ||R||_2 */
    double unit; /* the largest of the rows' units */
    int64_t rows; /* of H and G, whole groups */
    float squares[FF_FEW_ROWS]; /* of the rows' units, the largest being 1; of G's less than zero */
} ff_bonus_few;

/* Of R, d x d, lower triangular. pool: what actions are made of, or NULL. H and G go into `entries`
 * in 16 bits: FF_FEW_ROWS rows of as many as those of R in 16 bits have, 64-byte aligned. m and
 * rows: d^2 of scratch each. */
ff_bonus_few ff_bonus_few_make(const double *restrict r, const ff_directions *pool, int64_t d,
                               double *restrict m, double *restrict rows,
                               int16_t *restrict entries);

#endif
