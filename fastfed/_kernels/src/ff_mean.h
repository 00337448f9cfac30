/* Private means of local estimates (huang-2023): least squares without a regularizer, and the
 * rotation that spreads a vector over its coordinates. */
#ifndef FF_MEAN_H
#define FF_MEAN_H

#include "ff_base.h"

/* Compute theta <- V^+ u for a statistic (u, packed V), V positive semidefinite. The pseudo-inverse
 * uses cyclic Jacobi rotations. Eigenvalues up to 1e-10 times the largest count as 0, because they
 * come from rounding, not from data. Returns 1, or 0 (and theta = 0) if the statistic is not
 * finite. scratch: 2 d^2 + d doubles. */
int ff_least_squares(const double *restrict statistic, int64_t d, double *restrict scratch,
                     double *restrict theta);

/* values <- H values in place, with H the Hadamard matrix of n = 2^k rows in Sylvester's order (H
 * H = n I). Takes n log2(n) additions. */
void ff_hadamard(double *restrict values, int64_t n);

#endif
