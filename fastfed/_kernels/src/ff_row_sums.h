/* Sums of the rows of a matrix, each times a number, and what is made of them: products and factors.
 * By ff_wide.h and in whatever order is fastest, so they serve bounds, and nothing that is chosen or
 * released. */
#ifndef FF_ROW_SUMS_H
#define FF_ROW_SUMS_H

#include "ff_base.h"

#ifdef FF_WIDE
/* out[r][j] = start[r][j] (NULL: 0) + sign times the sum of by[r row + k step] m[k][j] over
 * k = from..to-1, j < n. Rows of m, start and out are d apart; start may be out. */
void ff_sum_rows(const double *m, int64_t d, const double *by, int64_t row, int64_t step,
                 int64_t rows, int64_t from, int64_t to, int64_t n, const double *start,
                 double sign, double *out);

/* M = R'R, whole, of a lower triangular R with zeros above; returns its trace. */
double ff_gram_of_lower(const double *restrict r, int64_t d, double *restrict m);

/* S, of which the lower triangle is read, -> the lower triangular R, zeros above, with R'R = S; returns
 * 0 where there is none. Row by row from the last one up: what is left of a row once those below have
 * been taken off, divided by the root of its diagonal entry. */
int ff_factor_from_below(double *restrict s, int64_t d);
#endif

#endif
