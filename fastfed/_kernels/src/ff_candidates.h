/* Candidate set: the few actions that can have the largest score while the same rows are offered
 * round after round and V only grows. These few are scored exactly; all other scores stay below a
 * bound that grows with every data point. Once the bound no longer decides, all actions are
 * screened again. */
#ifndef FF_CANDIDATES_H
#define FF_CANDIDATES_H

#include "ff_base.h"
#include "ff_scores.h"

#define MAX_CANDIDATES 8

typedef struct {
    const void *x;    /* the rows that were offered last */
    int64_t times;    /* in a row before that */
    int64_t released; /* synchronisations when the set was made */
    int64_t count;    /* of members; 0: there is no set */
    int64_t left;     /* rounds for which the set may be used */
    int64_t member[MAX_CANDIDATES]; /* ascending */
    double outside;   /* no other action's score is above this plus `grown` */
    double grown;     /* but for what beta has grown */
    double beta;      /* then */
    double width;     /* bounds every ||W x|| */
    double widened;   /* part of that for rounding since then */
    double length;    /* bounds every ||x|| */
    double inverse;   /* bounds ||W||_F */
} ff_candidates;

/* Makes the set from the bounds of screening; empty where those are not finite. */
void ff_candidates_make(ff_candidates *k, const ff_bounds *bounds, int64_t actions,
                        const double *restrict w, double beta, int64_t released, int64_t d);

/* The action of the largest score among the members, its features into x (d); -1 where another
 * action may have a larger one. */
int64_t ff_candidates_choose(const ff_candidates *k, const ff_actions *actions,
                             const double *restrict w, const double *restrict theta, double beta,
                             double gamma, int64_t d, double *restrict scratch, double *restrict x);

/* Raises the bound on all other scores after a round's data point (x, y). prediction: <x, theta> of
 * the theta before it, theta_norm its norm; s: the result of ff_observe. */
void ff_candidates_observe(ff_candidates *k, double prediction, double theta_norm, double y,
                           double s, double gamma, int64_t d);

#endif
