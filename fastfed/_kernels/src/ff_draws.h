/* Scores of arms that are random draws: for Thompson sampling, and for draws in place of a
 * ranking. Both are of type ff_score, see ff_arms_scored. */
#ifndef FF_DRAWS_H
#define FF_DRAWS_H

#include "ff_base.h"

/* Set the score of each arm to a draw from the posterior of its mean. With a regularizer of 1, an
 * arm with n rewards of sum s has the entry 1 + n of V and the estimate s / (1 + n). The posterior
 * under a uniform prior is Beta(1 + s, 1 + n - s). w: the d roots of the diagonal of V^-1. */
int64_t ff_beta_draws(void *state, uint64_t key, int64_t round, int64_t actions, int64_t dimension,
                      double *x, double *w, double *theta, double beta, double gamma,
                      double *scores);

/* Set the score of each arm to a normal draw with the estimate as mean and the bonus as standard
 * deviation. With a sieve, beta and gamma are already multiplied by its ranking. */
int64_t ff_normal_draws(void *state, uint64_t key, int64_t round, int64_t actions,
                        int64_t dimension, double *x, double *w, double *theta, double beta,
                        double gamma, double *scores);

#endif
