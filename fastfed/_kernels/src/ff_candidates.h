/* Candidate set: the few actions that can have the largest score while the same rows are offered
 * round after round and V only grows. These actions are scored exactly. All other scores stay below
 * a bound that grows with every data point. Once the bound no longer decides, all actions are
 * screened again. */
#ifndef FF_CANDIDATES_H
#define FF_CANDIDATES_H

#include "ff_base.h"
#include "ff_scores.h"

#define MAX_CANDIDATES 8

/* The candidate set of one silo. (For an action a, the width is ||W x_a||.) */
typedef struct {
    const void *x;         /* the rows that were offered last */
    int64_t times;         /* number of consecutive rounds before in which they were offered */
    int64_t released;      /* synchronisations when the set was made */
    int64_t count;         /* number of members; 0: there is no set */
    int64_t rounds_left;   /* rounds for which the set may still be used */
    int64_t member[MAX_CANDIDATES]; /* members in ascending order */
    double others_bound;   /* the score of any other action is at most this, plus `growth` .. */
    double growth;         /* .. plus the effect of a larger beta */
    double beta;           /* beta when the set was made */
    double width;          /* bound on every ||W x|| */
    double width_rounding; /* part of `width` that covers rounding since the set was made */
    double length;         /* bound on every ||x|| */
    double inverse;        /* bound on ||W||_F */
} ff_candidates;

/* Make the set from the bounds of screening. It stays empty if those are not finite. */
void ff_candidates_make(ff_candidates *set, const ff_bounds *bounds, int64_t actions,
                        const double *restrict w, double beta, int64_t released, int64_t d);

/* Return the action with the largest score among the members, and write its features to x (d); -1
 * if another action may have a larger score. */
int64_t ff_candidates_choose(const ff_candidates *set, const ff_actions *actions,
                             const double *restrict w, const double *restrict theta, double beta,
                             double gamma, int64_t d, double *restrict scratch, double *restrict x);

/* Raise the bound on all other scores after the data point (x, y) of a round. prediction: <x,
 * theta> for the previous theta, whose norm is theta_norm; s: the result of ff_observe. */
void ff_candidates_observe(ff_candidates *set, double prediction, double theta_norm, double y,
                           double s, double gamma, int64_t d);

#endif
