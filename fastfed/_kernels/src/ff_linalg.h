/* Small dense linear algebra: the leaf functions that decide an argmax. No BLAS, no LAPACK.
 *
 * A positive definite V (d x d) is held as its inverse factor W = L^{-1}, V = L L', so that
 * V^{-1} = W'W, ||x||_{V^-1} = ||W x||, and ln det V = -2 sum ln W_ii. W is row-major, d x d,
 * zero above the diagonal. Symmetric statistics are packed: the lower triangle row by row,
 * entry (i, j <= i) at i (i + 1) / 2 + j. */
#ifndef FF_LINALG_H
#define FF_LINALG_H

#include "ff_base.h"

FF_INLINE int64_t ff_packed(int64_t d) { return d * (d + 1) / 2; }

/* The sum of n products: eight partial sums, then a fixed tree. */
double ff_dot(const double *a, const double *b, int64_t n);

/* W from the packed V. Returns 0, or 1 when V is not (numerically) positive definite. */
int ff_factor(const double *restrict packed, int64_t d, double *restrict w);

/* The diagonal of W alone, for ff_log_det; what stands beside it is of no use. Returns as ff_factor,
 * with the same bits. */
int ff_factor_diagonal(const double *restrict packed, int64_t d, double *restrict w);

/* theta = V^{-1} u = W'(W u); scratch d. */
void ff_solve(const double *restrict w, const double *restrict u, int64_t d,
              double *restrict scratch, double *restrict theta);

/* ln det V. */
double ff_log_det(const double *w, int64_t d);

/* V <- V + x x' and, when theta is given, theta <- V^{-1}(u + x y): one recursive
 * least-squares step on the factor. scratch 4 d, of which the second d are V^{-1} x of the old V
 * then. Returns 1 + ||x||^2_{V^-1} of the old V, the
 * ratio of the determinants. */
double ff_observe(double *restrict w, double *restrict theta, const double *restrict x, double y,
                  int64_t d, double *restrict scratch);

/* z = W x. */
void ff_whiten(const double *restrict w, const double *restrict x, int64_t d, double *restrict z);

/* The same, and back = W'z = V^{-1} x, in one pass over W. */
void ff_whiten_back(const double *restrict w, const double *restrict x, int64_t d,
                    double *restrict z, double *restrict back);

/* ff_observe where W x stands in the first d of the scratch already. */
double ff_observe_whitened(double *restrict w, double *restrict theta, const double *restrict x,
                        double y, int64_t d, double *restrict scratch);

/* gram += x x' (packed), bias += x y. */
void ff_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                   double y, int64_t d);

/* The same of n points, one after the other: point p is x (d) and y at points + p (d + 1). What
 * follows the last one is read, 8 doubles far, and does not count. */
void ff_accumulate_many(double *restrict gram, double *restrict bias,
                        const double *restrict points, int64_t n, int64_t d);

/* The same on a whole matrix: gram (d x d) += x x', bias += x y. */
void ff_rank_one(double *restrict gram, double *restrict bias, const double *restrict x,
                 double y, int64_t d);

/* inverse <- (V + x x')^{-1} from V^{-1} (d x d, symmetric), Sherman-Morrison; scratch d. */
void ff_sherman_morrison(double *restrict inverse, const double *restrict x, int64_t d,
                         double *restrict scratch);

/* Scale x to norm <= bound; returns 1 when it was above by more than rounding. */
int ff_clip_norm(double *restrict x, int64_t d, double bound);

#endif
