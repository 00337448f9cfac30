/* The model of an eager silo that is offered the same K actions in every round.
 *
 * It holds <x_a, theta>, ||x_a||^2_{V^{-1}} and ||V^{-1} x_a||^2 of all actions, and the matrices
 * that update them: V^{-1} (d, d), or, if K is not much larger than d, X V^{-1} X' and X V^{-2} X'
 * (K, K), with the actions as rows of X. A data point then takes O(K d) or O(K^2) operations, and a
 * choice O(K). If the actions are the unit vectors and V is diagonal, the model holds no matrix,
 * and a data point takes O(1). Such a silo never computes the inverse factor W of V (ff_linalg.h)
 * between two synchronisations. */
#ifndef FF_FIXED_H
#define FF_FIXED_H

#include "ff_base.h"
#include "ff_scores.h"

/* Return the number of doubles in the model of at most K actions in dimension d. All are 0 at
 * first. */
int64_t ff_fixed_size(int64_t actions, int64_t d);

/* Return 1 if the model was computed after exactly `released` synchronisations. */
FF_INLINE int ff_fixed_is_of(const double *model, int64_t released)
{
    return model[0] == (double)(released + 1);
}

/* Compute the model from W and theta. actions: float32, feature-major, always the same for one
 * model. bound: features are clipped to this norm when they are learned; INFINITY: they are not.
 * scratch: 7 d doubles. */
void ff_fixed_make(double *model, const ff_actions *actions, const double *w, const double *theta,
                   double bound, int64_t released, int64_t d, double *scratch);

/* Return the action with the largest <x, theta> + ranking (beta ||x||_{V^-1} + gamma ||V^-1 x||),
 * the lowest index if several tie. A ranking of 1 gives the largest score. */
int64_t ff_fixed_choose(double *model, double beta, double gamma, double ranking);

/* Return 1 if the last choice reaches the limit of a sieve (ff_scores.h) with this slack. Then it
 * passes the sieve, also with a larger slack. */
int ff_fixed_reaches(const double *model, double slack, double limit);

/* Return the last choice, which was made by the ranking of the sieve, if it passes the sieve;
 * otherwise choose the best action by the ranking among those that pass. */
int64_t ff_fixed_choose_passing(double *model, double beta, double gamma, const ff_sieve *sieve);

/* Learn the reward y of the action that was chosen last. Returns the factor by which det V
 * grows. */
double ff_fixed_observe(double *model, double y);

/* Return -ln ||x||^2_{V^-1} of the action that was chosen last: ln of its entry of V, if the
 * actions are the unit vectors and V is diagonal. */
double ff_fixed_log_entry(const double *model);

/* Return 1 if the actions are the unit vectors and V is diagonal. Then *mean and *width (K) are
 * theta and the diagonal of V^{-1}. */
int ff_fixed_arms(const double *model, const double **mean, const double **width);

/* Set theta and the diagonal of V^{-1} of such a model at arm a. */
void ff_fixed_set_arm(double *model, int64_t a, double mean, double width);

/* Return 1 if learning the action that was chosen last counts as clipping (ff_clip_norm). */
int ff_fixed_is_clipped(const double *model);

/* Return an upper bound on the largest eigenvalue of V^{-1} (ff_inverse_norm). w: the W of
 * ff_fixed_make. Returns INFINITY if K < d, since V does not grow outside the span of the actions,
 * and if W is not a multiple of I. scratch: d^2 doubles, and those of ff_inverse_norm. */
double ff_fixed_inverse_norm(const double *model, const ff_actions *actions, const double *w,
                             int64_t d, double *scratch);

#endif
