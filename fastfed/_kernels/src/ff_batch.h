/* Kernels over many rows, sets of actions or models, which first check their arguments.
 * fastfed.kernels, numba and other extensions call them. Rows are processed in order, each exactly
 * as by the function for one row, so the results have the bits of one call for each row.
 *
 * All return one of the status codes below. Unless it is FF_FINE, no model has changed, and results
 * are undefined. With `trusted`, gram, bias, inverse, factor and theta are not checked, because
 * checking takes longer than using them; rows, actions and rewards are always checked. */
#ifndef FF_BATCH_H
#define FF_BATCH_H

#include "ff_base.h"
#include "ff_scores.h"

/* Status codes. */
enum {
    FF_FINE = 0,
    FF_BAD_STATE = 1, /* a matrix or vector is not as required */
    FF_BAD_ROW = 2,   /* rows, rewards or actions are not finite, or a row cannot be added to the
                       * matrix */
    FF_NO_MEMORY = 3, /* out of memory */
};

/* Return 1 if all n numbers are finite. */
int ff_all_finite(const double *x, int64_t n);
/* Return 1 if a (d, d) is finite and |a_ij - a_ji| <= 1e-8 max |a|. */
int ff_is_symmetric(const double *a, int64_t d);
/* Return 1 if w (d, d) is finite, zero above the diagonal and positive on it. */
int ff_is_inverse_factor(const double *w, int64_t d);

/* gram (d, d) += x x' and bias (d) += x y, for n rows x (n, d) and rewards y (n). */
int ff_rank_one_rows(double *gram, double *bias, const double *x, const double *y, int64_t n,
                     int64_t d, int64_t trusted);

/* Update inverse (d, d) from V^{-1} to (V + x x')^{-1}, for n rows. */
int ff_sherman_morrison_rows(double *inverse, const double *x, int64_t n, int64_t d,
                             int64_t trusted);

/* Update factor (d, d) and theta (d) by n rows, one recursive least-squares step each. */
int ff_factor_rows(double *factor, double *theta, const double *x, const double *y, int64_t n,
                   int64_t d, int64_t trusted);

/* Compute W (m, d, d) of each V (m, d, d). */
int ff_inverse_factors(const double *v, int64_t m, int64_t d, double *factor, int64_t trusted);

/* Compute V^{-1} u for n rows u (n, d), into theta (n, d). */
int ff_solve_rows(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                  int64_t trusted);

/* n sets of K actions: entry (a, j) of set i is x[i set_stride + a action_stride + j
 * feature_stride]. */
typedef struct {
    const void *x; /* features, in float64 if is_double, else float32 */
    int64_t is_double, sets, actions, dimension; /* layout; n; K; d */
    int64_t set_stride, action_stride, feature_stride; /* in entries */
} ff_sets;

/* Return the i-th set. */
ff_actions ff_one_set(const ff_sets *sets, int64_t i);

/* Compute the scores of each set under each of its models, factor (m, d, d) and theta (m, d). A
 * single set is scored under all m models, and a single model scores all sets; otherwise the i-th
 * model scores the i-th set. out: (jobs, K), where jobs is the larger of n and m. */
int ff_score_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                  double radius, double second_radius, int64_t trusted, double *out);

/* Write the index of the largest score of each job to out (jobs); jobs as in ff_score_sets. */
int ff_argmax_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                   double radius, double second_radius, int64_t trusted, int64_t *out);

#endif
