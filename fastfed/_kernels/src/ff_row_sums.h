/* Weighted sums of the rows of a matrix, and products and factors computed from them. They use
 * ff_wide.h and the fastest order of additions, so they serve bounds only, never a choice or a
 * release. */
#ifndef FF_ROW_SUMS_H
#define FF_ROW_SUMS_H

#include "ff_base.h"

#ifdef FF_WIDE
/* For r < rows and j < n, compute out[r][j] = start[r][j] (0 if start is NULL) plus sign times the
 * sum of weights[r * row_step + k * step] m[k][j] over k = from..to - 1. Rows of m, start and out
 * are d apart; start may be out. */
void ff_sum_rows(const double *m, int64_t d, const double *weights, int64_t row_step, int64_t step,
                 int64_t rows, int64_t from, int64_t to, int64_t n, const double *start,
                 double sign, double *out);

/* Compute M = R'R in full, for a lower triangular R with zeros above. Returns its trace. */
double ff_gram_of_lower(const double *restrict r, int64_t d, double *restrict m);

/* Replace S (only its lower triangle is read) by the lower triangular R, zeros above, with R'R = S.
 * Returns 0 if there is none. Works row by row from the last row up: each row, after the rows below
 * have been subtracted, is divided by the root of its diagonal entry. */
int ff_factor_from_below(double *restrict s, int64_t d);
#endif

#endif
