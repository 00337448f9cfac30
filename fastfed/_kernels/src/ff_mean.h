/* Private means of local estimates (huang-2023): least squares without a regularizer, and the
 * rotation that spreads a vector over its coordinates. */
#ifndef FF_MEAN_H
#define FF_MEAN_H

#include "ff_base.h"

/* theta <- V^+ u for a statistic (u, packed V), V positive semidefinite: the pseudo-inverse by
 * cyclic Jacobi rotations. Eigenvalues up to 1e-10 of the largest count as 0: rounding of sums of
 * rows, no data. Returns 1, or 0 (and theta = 0) where the statistic is not finite. scratch:
 * 2 d^2 + d. */
int ff_least_squares(const double *restrict statistic, int64_t d, double *restrict scratch,
                     double *restrict theta);

/* values <- H values in place, H the Hadamard matrix of n = 2^k rows in Sylvester's order (its own
 * inverse but for the factor n): n log2(n) additions. */
void ff_hadamard(double *restrict values, int64_t n);

#endif
