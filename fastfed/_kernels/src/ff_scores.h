/* Upper confidence bounds (scores) of a set of actions, and the action of the largest one.
 *
 * Finding the largest is exact: cheap screening (ff_screen_f32.h, ff_screen_i16.h) discards actions
 * that provably cannot win, and those that are left are scored in float64. */
#ifndef FF_SCORES_H
#define FF_SCORES_H

#include "ff_base.h"

/* Memory that is read soon. It is asked for line by line between products of what is read now, which
 * then need not wait for it. */
typedef struct {
    const char *at, *end; /* these lines */
    int64_t query;        /* of a pool, whose actions these are */
} ff_ahead;

/* The actions of one silo in one round, as they lie in memory. */
typedef struct {
    const void *x;          /* entry (a, j) at x[a * action_stride + j * feature_stride] */
    int64_t is_double;      /* 1: float64, 0: float32 */
    int64_t action_stride;
    int64_t feature_stride;
    int64_t actions;        /* K >= 1 */
    const double *mean;     /* expected reward of each action; the scores do not read it */
    double best;            /* the largest of them */
    const void *quantised;  /* the actions in 16 bits (ff_screen_i16.h), or NULL */
    int64_t query, first;   /* of a pool: which query, and its first row */
    int64_t silo;           /* whose they are; only an exact mean (ff_mean) reads it */
    ff_ahead *ahead;        /* what the silo's next round reads, or NULL */
} ff_actions;

/* Doubles of scratch that ff_scores and ff_select need for at most K actions. */
int64_t ff_score_scratch(int64_t d, int64_t actions);

/* score_a = <x_a, theta> + beta ||x_a||_{V^-1} + gamma ||V^{-1} x_a||, for all actions;
 * V by its inverse factor w (see ff_linalg.h). */
void ff_scores(const ff_actions *actions, const double *restrict w, const double *restrict theta,
               double beta, double gamma, int64_t d, double *restrict scratch,
               double *restrict scores);

/* Results of screening all actions: an upper bound on each score (K, in the scratch), and bounds on
 * every ||W x|| and ||x||; not finite where float32 cannot tell. */
typedef struct {
    const float *upper;
    double width, length;
} ff_bounds;

/* The diagonal entry of a W that is a multiple of I, as before any data; else 0. */
FF_INLINE double ff_multiple_of_identity(const double *restrict w, int64_t d)
{
    if (d > 1 && (w[d] != 0.0 || w[d + 1] != w[0]))
        return 0.0;
    for (int64_t i = 1; i < d; i++) {
        double rest = 0.0;
        for (int64_t j = 0; j < i; j++)
            rest += w[i * d + j] != 0.0;
        if (rest != 0.0 || w[i * d + i] != w[0])
            return 0.0;
    }
    return w[0];
}

/* The action of the largest score, ties to the lowest index; its features into x (d). bounds: NULL,
 * or receives the results of screening. */
int64_t ff_select(const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x, ff_bounds *bounds);

/* As ff_select, but all scores of at least `limit` are equal, and among them the action with the
 * largest <x, theta> + tie (beta ||x||_{V^-1} + gamma ||V^{-1} x||) is chosen, 0 <= tie < 1. */
int64_t ff_select_tied(const ff_actions *actions, const double *restrict w,
                       const double *restrict theta, double beta, double gamma, double limit,
                       double tie, int64_t d, double *restrict scratch, double *restrict x);

/* The action of the largest of min(score, other score), ties to the lowest index; its features into
 * x (d). The other score is that of other_w, other_theta and other_beta, without second bonus. */
int64_t ff_select_least(const ff_actions *actions, const double *restrict w,
                        const double *restrict theta, double beta, double gamma,
                        const double *restrict other_w, const double *restrict other_theta,
                        double other_beta, int64_t d, double *restrict scratch,
                        double *restrict x);

/* The action of the largest score among n >= 1 of them, named in ascending order, and its score. */
int64_t ff_best_of(const ff_actions *actions, const int64_t *restrict which, int64_t n,
                   const double *restrict w, const double *restrict theta, double beta,
                   double gamma, int64_t d, double *restrict scratch, double *restrict score);

/* A user's score function (numba.cfunc): writes a score for each of K actions x (K, d) and returns
 * K. It gets copies, of its state too, so it may write to all of them and nothing lasts. */
typedef int64_t (*ff_score)(void *state, uint64_t key, int64_t round, int64_t actions,
                            int64_t dimension, double *x, double *w, double *theta, double beta,
                            double gamma, double *scores);

/* Doubles of scratch that ff_scored needs for at most K actions and a state of so many doubles. */
int64_t ff_scored_scratch(int64_t d, int64_t actions, int64_t state_size);

/* As ff_select, by a user's scores; -1 where it returned another number or scores that are not
 * finite. state: state_size doubles, copied for the call; or NULL. */
int64_t ff_scored(ff_score score, const double *state, int64_t state_size, uint64_t key,
                  int64_t round, const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x);

/* Row a of the actions, as float64. */
void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *restrict x);

#endif
