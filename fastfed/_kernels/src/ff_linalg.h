/* Small dense linear algebra: the leaf functions that decide which action is chosen. They use
 * neither BLAS nor LAPACK, so results do not depend on a library.
 *
 * A positive definite V (d x d) is stored as its inverse factor W = L^{-1}, where V = L L'. So
 * V^{-1} = W'W, ||x||_{V^-1} = ||W x||, and ln det V = -2 sum ln W_ii. W is row-major, d x d, with
 * zeros above the diagonal. Symmetric statistics are packed: the lower triangle row by row, with
 * entry (i, j <= i) at i (i + 1) / 2 + j. */
#ifndef FF_LINALG_H
#define FF_LINALG_H

#include "ff_base.h"

/* Return the number of entries of a packed symmetric matrix (d, d). */
FF_INLINE int64_t ff_packed(int64_t d) { return d * (d + 1) / 2; }

/* Return sum a_i b_i of n terms: eight partial sums, added in a fixed order. */
double ff_dot(const double *a, const double *b, int64_t n);

/* Compute W (d, d) from the packed V. Returns 0, or 1 if V is not (numerically) positive
 * definite. */
int ff_factor(const double *restrict packed, int64_t d, double *restrict w);

/* Compute only the diagonal of W, for ff_log_det; the other entries of w are undefined. Returns the
 * same value as ff_factor, and the diagonal has the same bits. */
int ff_factor_diagonal(const double *restrict packed, int64_t d, double *restrict w);

/* Compute theta = V^{-1} u = W'(W u). scratch: d doubles. */
void ff_solve(const double *restrict w, const double *restrict u, int64_t d,
              double *restrict scratch, double *restrict theta);

/* Return ln det V from W. */
double ff_log_det(const double *w, int64_t d);

/* Update W for V <- V + x x' and, if theta is not NULL, theta <- V^{-1}(u + x y): one recursive
 * least-squares step on the factor. scratch: 4 d doubles; the second d of them receive V^{-1} x of
 * the old V. Returns 1 + ||x||^2_{V^-1} for the old V, the ratio of the new determinant to the old
 * one. */
double ff_observe(double *restrict w, double *restrict theta, const double *restrict x, double y,
                  int64_t d, double *restrict scratch);

/* Compute z = W x. */
void ff_whiten(const double *restrict w, const double *restrict x, int64_t d, double *restrict z);

/* Compute z = W x and back = W'z = V^{-1} x in one pass over W. */
void ff_whiten_back(const double *restrict w, const double *restrict x, int64_t d,
                    double *restrict z, double *restrict back);

/* Do the same as ff_observe, if the first d doubles of the scratch hold W x already. */
double ff_observe_whitened(double *restrict w, double *restrict theta, const double *restrict x,
                        double y, int64_t d, double *restrict scratch);

/* gram (packed) += x x' and bias (d) += x y. */
void ff_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                   double y, int64_t d);

/* Do the same as ff_accumulate for n points, one after the other: point p is x (d) and y at points
 * + p (d + 1). Up to 8 doubles after the last point are read, but not used. */
void ff_accumulate_many(double *restrict gram, double *restrict bias,
                        const double *restrict points, int64_t n, int64_t d);

/* gram (d, d) += x x' and bias (d) += x y, for a whole matrix. */
void ff_rank_one(double *restrict gram, double *restrict bias, const double *restrict x,
                 double y, int64_t d);

/* inverse <- (V + x x')^{-1} from inverse = V^{-1} (d x d, symmetric), by the Sherman-Morrison
 * formula. scratch: d doubles. */
void ff_sherman_morrison(double *restrict inverse, const double *restrict x, int64_t d,
                         double *restrict scratch);

/* Scale x (d) to norm <= bound. Returns 1 if the norm exceeded the bound by more than rounding. */
int ff_clip_norm(double *restrict x, int64_t d, double bound);

/* Return the number of doubles of scratch of ff_inverse_norm. */
FF_INLINE int64_t ff_inverse_norm_scratch(int64_t d) { return 2 * (d + 7) * (d + 7) + 8; }

/* Return an upper bound on the largest eigenvalue of V^{-1} = W'W: the eighth root of the trace of
 * its eighth power. */
double ff_inverse_norm(const double *w, int64_t d, double *scratch);

#endif
