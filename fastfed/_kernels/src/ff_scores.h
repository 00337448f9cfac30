/* Scores (upper confidence bounds) of a set of actions, and the action with the largest score.
 *
 * The search for the largest score is exact. Cheap screening (ff_screen_f32.h, ff_screen_i16.h)
 * discards actions that provably cannot win, and the remaining actions are scored in float64. In
 * these files K is the number of actions. */
#ifndef FF_SCORES_H
#define FF_SCORES_H

#include "ff_base.h"

/* Memory that will be read soon. It is prefetched one cache line at a time between arithmetic on
 * other data, so that arithmetic need not wait for it. */
typedef struct {
    const char *at, *end; /* first byte not yet prefetched, and the end */
    int64_t query;        /* the query of a pool whose actions lie there */
} ff_ahead;

/* The actions of one silo in one round, and how they lie in memory. */
typedef struct {
    const void *x;          /* entry (a, j) at x[a * action_stride + j * feature_stride] */
    int64_t is_double;      /* 1: float64, 0: float32 */
    int64_t action_stride;  /* in entries, see x */
    int64_t feature_stride; /* in entries, see x */
    int64_t actions;        /* K >= 1 */
    const double *mean;     /* (K): expected reward of each action; the scores do not read it */
    double best;            /* the largest expected reward */
    const void *quantised;  /* the actions in 16 bits (ff_screen_i16.h), or NULL */
    int64_t query, first;   /* of a pool: number of the query, and its first row */
    int64_t silo;           /* the silo that the actions are offered to; only an exact mean
                             * (ff_mean) reads it */
    ff_ahead *ahead;        /* memory that the silo's next round reads, or NULL */
} ff_actions;

/* Return the number of doubles of scratch that ff_scores and ff_select need for at most K
 * actions. */
int64_t ff_score_scratch(int64_t d, int64_t actions);

/* Compute score_a = <x_a, theta> + beta ||x_a||_{V^-1} + gamma ||V^{-1} x_a|| of all actions, into
 * scores (K). V is given by its inverse factor w (see ff_linalg.h). */
void ff_scores(const ff_actions *actions, const double *restrict w, const double *restrict theta,
               double beta, double gamma, int64_t d, double *restrict scratch,
               double *restrict scores);

/* Return the diagonal entry of W if W is a multiple of I, as before any data; otherwise 0. */
FF_INLINE double ff_multiple_of_identity(const double *restrict w, int64_t d)
{
    if (d > 1 && (w[d] != 0.0 || w[d + 1] != w[0]))
        return 0.0;
    for (int64_t i = 1; i < d; i++) {
        double nonzero = 0.0;
        for (int64_t j = 0; j < i; j++)
            nonzero += w[i * d + j] != 0.0;
        if (nonzero != 0.0 || w[i * d + i] != w[0])
            return 0.0;
    }
    return w[0];
}

/* Return the action with the largest score, the lowest index if several tie, and write its features
 * to x (d). */
int64_t ff_select(const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x);

/* Which actions may be chosen without changing a proven regret bound, and their ranking
 * (docs/radius.md). With b = beta ||x||_{V^-1} + gamma ||V^{-1} x|| and U = <x, theta> + b, an
 * action passes if <x, theta> + (2 slack - 1) b is at least min(limit, the largest U). */
typedef struct {
    double limit;   /* the largest mean reward */
    double slack;   /* >= 1: an action may have `slack` times the regret that the bound counts */
    double ranking; /* among actions that pass, the largest <x, theta> + ranking b is chosen */
} ff_sieve;

/* Results of screening with a sieve. */
typedef struct {
    int64_t count;   /* actions that may be chosen, listed in `candidates` */
    int64_t largest; /* if not certain and not at_limit: actions that may have the largest score,
                      * listed from candidates + K on */
    int certain;     /* 1: all actions that may be chosen pass the sieve */
    int at_limit;    /* 1: the largest score is certainly at least the limit */
} ff_sieved;

/* Return the best action by the ranking of a sieve among those that pass it, and write its features
 * to x (d). */
int64_t ff_select_sieved(const ff_actions *actions, const double *restrict w,
                         const double *restrict theta, double beta, double gamma,
                         const ff_sieve *sieve, int64_t d, double *restrict scratch,
                         double *restrict x);

/* Return the action with the largest <x, theta> + beta ||x||_{V^-1} among those that pass the sieve
 * of a different model (local_w, local_theta, local_beta), whose scores have no bonus
 * gamma ||V^{-1} x||. Writes its features to x (d). */
int64_t ff_select_passing(const ff_actions *actions, const double *restrict w,
                          const double *restrict theta, double beta,
                          const double *restrict local_w, const double *restrict local_theta,
                          double local_beta, double limit, double slack, int64_t d,
                          double *restrict scratch, double *restrict x);

/* Return the action with the best ranking among those that screening has listed in candidates (2 K)
 * and that pass the sieve, by exact scores. Writes its features to x (d). */
int64_t ff_best_sieved(const ff_actions *actions, ff_sieved sieved, int64_t *restrict candidates,
                       const double *restrict w, const double *restrict theta, double beta,
                       double gamma, const ff_sieve *sieve, int64_t d, double *restrict scratch,
                       double *restrict x);

/* Return the action with the largest min(score, other score), the lowest index if several tie, and
 * write its features to x (d). The other score uses other_w, other_theta and other_beta, and has no
 * bonus gamma ||V^{-1} x||. */
int64_t ff_select_max_min(const ff_actions *actions, const double *restrict w,
                          const double *restrict theta, double beta, double gamma,
                          const double *restrict other_w, const double *restrict other_theta,
                          double other_beta, int64_t d, double *restrict scratch,
                          double *restrict x);

/* Return the action with the largest score among the n >= 1 actions listed in `indices` (in
 * ascending order), and write its score to *score. */
int64_t ff_best_of(const ff_actions *actions, const int64_t *restrict indices, int64_t n,
                   const double *restrict w, const double *restrict theta, double beta,
                   double gamma, int64_t d, double *restrict scratch, double *restrict score);

/* A user's score function (numba.cfunc): writes the scores of K actions x (K, d) and returns K. It
 * gets copies of all arrays, including its state, so it may write to them without any effect on
 * later calls. */
typedef int64_t (*ff_score)(void *state, uint64_t key, int64_t round, int64_t actions,
                            int64_t dimension, double *x, double *w, double *theta, double beta,
                            double gamma, double *scores);

/* Return the number of doubles of scratch that ff_scored needs for at most K actions and state_size
 * doubles of state. */
int64_t ff_scored_scratch(int64_t d, int64_t actions, int64_t state_size);

/* Do the same as ff_select, with the scores of a user's function. Returns -1 if the function did
 * not return K or if a score is not finite. state: state_size doubles, copied for the call; or
 * NULL. sieve: NULL: any action may be chosen; otherwise only actions that pass it, and the
 * function gets beta and gamma multiplied by the ranking of the sieve. */
int64_t ff_scored(ff_score score, const double *state, int64_t state_size, uint64_t key,
                  int64_t round, const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, const ff_sieve *sieve,
                  int64_t d, double *restrict scratch, double *restrict x);

/* Write the features of action a, as float64, to x (d). */
void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *restrict x);

#endif
