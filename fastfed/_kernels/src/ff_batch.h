/* Kernels over many rows, sets of actions or models, which look at values first: what
 * fastfed.kernels, numba and other extensions call. Every row is taken as the leaf functions would
 * take it alone, in order, so the bits are those of one call for each.
 *
 * All return one of the reasons below; unless it is FF_FINE no model has changed, and what was
 * written to results is of no use. `trusted` leaves out the look at gram, bias, inverse, factor and
 * theta, which takes longer than their use; rows, actions and rewards are looked at in any case. */
#ifndef FF_BATCH_H
#define FF_BATCH_H

#include "ff_base.h"
#include "ff_scores.h"

enum {
    FF_FINE = 0,
    FF_BAD_STATE = 1, /* a matrix or vector that is not what it should be */
    FF_BAD_ROW = 2,   /* rows, rewards, actions: not finite; or a row of no use to the matrix */
    FF_NO_ROOM = 3,   /* no memory */
};

int ff_all_finite(const double *x, int64_t n);
/* Finite, and |a_ij - a_ji| <= 1e-8 max |a|. */
int ff_is_symmetric(const double *a, int64_t d);
/* Finite, zero above the diagonal, positive on it. */
int ff_is_inverse_factor(const double *w, int64_t d);

/* gram (d, d) += x x' and bias (d) += x y, for n rows x (n, d), y (n). */
int ff_rank_one_rows(double *gram, double *bias, const double *x, const double *y, int64_t n,
                     int64_t d, int64_t trusted);

/* inverse (d, d) becomes that of V + x x', for n rows. */
int ff_sherman_morrison_rows(double *inverse, const double *x, int64_t n, int64_t d,
                             int64_t trusted);

/* factor (d, d) and theta (d) take n rows, one recursive least-squares step each. */
int ff_factor_rows(double *factor, double *theta, const double *x, const double *y, int64_t n,
                   int64_t d, int64_t trusted);

/* W (m, d, d) of each V (m, d, d). */
int ff_inverse_factors(const double *v, int64_t m, int64_t d, double *factor, int64_t trusted);

/* V^{-1} u for n rows u (n, d). */
int ff_solve_rows(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                  int64_t trusted);

/* n sets of K actions: entry (a, j) of set i at x[i set_stride + a action_stride +
 * j feature_stride], in entries. */
typedef struct {
    const void *x;
    int64_t is_double, sets, actions, dimension;
    int64_t set_stride, action_stride, feature_stride;
} ff_sets;

/* The i-th of them. */
ff_actions ff_one_set(const ff_sets *sets, int64_t i);

/* Scores of each set under each model it meets, factor (m, d, d) and theta (m, d): one set meets
 * all models; else all meet the one model, or the i-th the i-th. out: (jobs, K), where jobs is the
 * larger of n and m. */
int ff_score_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                  double radius, double second_radius, int64_t trusted, double *out);

/* As ff_score_sets, but the index of the largest score: out (jobs). */
int ff_argmax_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                   double radius, double second_radius, int64_t trusted, int64_t *out);

#endif
