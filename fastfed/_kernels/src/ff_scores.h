/* UCB scores of a set of actions, and the action of the largest one. */
#ifndef FF_SCORES_H
#define FF_SCORES_H

#include "ff_base.h"

/* The actions of one silo in one round, as they lie in memory. */
typedef struct {
    const void *x;          /* entry (a, j) at x[a * action_stride + j * feature_stride] */
    int64_t is_double;      /* 1: float64, 0: float32 */
    int64_t action_stride;
    int64_t feature_stride;
    int64_t actions;        /* K >= 1 */
    const double *mean;     /* expected reward of each action; the scores do not read it */
    double best;            /* the largest of them */
} ff_actions;

/* Doubles of scratch that ff_scores and ff_select need for at most K actions. */
int64_t ff_score_scratch(int64_t d, int64_t actions);

/* score_a = <x_a, theta> + beta ||x_a||_{V^-1} + gamma ||V^{-1} x_a||, for all actions;
 * V by its inverse factor w (see ff_linalg.h). */
void ff_scores(const ff_actions *actions, const double *restrict w, const double *restrict theta,
               double beta, double gamma, int64_t d, double *restrict scratch,
               double *restrict scores);

/* The action of the largest score, ties to the lowest index; its features into x (d). */
int64_t ff_select(const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x);

/* Row a of the actions, as float64. */
void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *restrict x);

#endif
