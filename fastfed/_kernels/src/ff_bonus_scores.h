/* Upper bounds on the scores of a query's actions, and a lower bound on the score of the best
 * action, until few actions remain that may be the best.
 *
 * All scores are bounded from above (ff_bonus_bounds.h). Actions whose bounds are below the score
 * of the most promising action are discarded; the remaining actions get tighter bounds. */
#ifndef FF_BONUS_SCORES_H
#define FF_BONUS_SCORES_H

#include "ff_bonus_cache.h"

#ifdef FF_WIDE
#include "ff_bonus_bounds.h"

/* Stages of the bounds of a query on ||R x||: cheap bounds (ff_bonus_few.h), or bounds by R. In the
 * cheap stage, single actions that are not ruled out get bounds by R, which have a minus sign. If
 * these are many, all actions get bounds by R, which is the second stage. */
enum { CHEAP = 0, BY_FACTOR = 1, STAGES = 2 };

/* An interval around a score: score +- error contains the score that ff_best_of computes. The two
 * scores sum z = W x (of x, or of x after clipping) and W'z in different orders. So their terms
 * differ by less than (d + 8) u times the largest possible products and roots, and the scores
 * differ by less than twice that. */
typedef struct {
    double score, error;
} ff_interval;

/* A request for scores of single actions: the model, and what is known so far. */
typedef struct {
    const ff_actions *actions; /* the actions of the round */
    const double *w, *theta;   /* the model: (d, d), (d) */
    double beta, gamma, frobenius, feature_bound; /* feature_bound: bound on the norm of
                                                   * features; 0: none */
    int64_t d;
    double *x, *back;          /* (d): features of the last scored action; (d): scratch */
    const ff_whitened *known;  /* x and W x of action `taken` */
    int64_t taken;             /* the action that `known` belongs to; -1: none */
    int learns;                /* 1: the silo updates V by the choice, so its W x is stored in
                                * `known` */
} ff_query;

/* The bounds of a query's actions in one round. */
typedef struct {
    const ff_bonus_bounds *bounds; /* the bounds on bonuses */
    double moved, grown;         /* change of V since the bounds were computed, see ff_bonus_silo */
    ff_actions view;             /* the actions, also in 16 bits */
    int64_t count, d, stage;     /* number of actions; d; CHEAP or BY_FACTOR */
    int64_t *indices;            /* (count): actions that may be the best */
    float *upper, *mean, *bound; /* upper bounds on scores and on means; bounds on ||R x|| */
    float top;                   /* the largest entry of `upper` */
    int16_t *row;                /* theta in 16 bits */
    double factor;               /* a bonus is at most factor ||R x|| */
    double *scratch;             /* scratch of the functions of ff_bonus_bounds.h */
} ff_score_bounds;

/* Compute bounds on the scores of all actions. stage: which bounds on bonuses to compute, unless
 * they exist already (exists). buffer: memory for the actions in 16 bits, if they are not
 * available. */
void ff_compute_bounds(ff_score_bounds *b, int64_t stage, int exists, const double *restrict theta,
                       void *restrict buffer);

/* Return the most promising action: the one with the largest upper bound, among all actions or
 * among those that have a bound on ||R x|| by R. */
int64_t ff_most_promising(const ff_score_bounds *b, int bounded_by_factor);

/* Return 1 if bounds alone prove that *best is the best action. *best receives the most promising
 * action in any case. */
int ff_bounds_decide(ff_score_bounds *b, const double *restrict theta, double beta, double gamma,
                     int64_t *restrict best);

/* Return a lower bound on <x, theta> + times (beta ||W x|| + gamma ||W'W x||) of an action, by R;
 * -INFINITY if it has no bound by R. */
double ff_bounded_at_least(const ff_score_bounds *b, int64_t a, const double *restrict theta,
                           double beta, double gamma, double times);

/* List the actions whose upper bounds are not below a lower bound on the score of *best, into
 * b->indices. The features of *best are then in q->x. In the cheap stage, these actions get bounds
 * by R one by one; if they are many, all actions do (the stage becomes BY_FACTOR). *best receives
 * the action that is the most promising after that. Returns the number of actions. */
int64_t ff_list_candidates(ff_score_bounds *b, ff_query *q, int64_t *restrict best);

/* List the actions whose upper bounds are not below the lower end of a score's interval. Returns
 * their number. */
int64_t ff_not_below_score(const ff_score_bounds *b, ff_interval score);

/* ff_score_with_error: return the score of action a with its error; W x is stored in `known` if the
 * silo learns. ff_least_by_factor: return a lower bound on the score of an action that has a
 * bound on ||R x|| by R. It needs half as many products, because it does not compute W'W x. */
ff_interval ff_score_with_error(ff_query *q, int64_t a);
float ff_least_by_factor(ff_query *q, const ff_bonus_bounds *bounds,
                         const action_norms *restrict norms, int64_t a, float bound, double moved,
                         double grown);

/* Return the action with the largest score among the n actions in `indices`, given the score of
 * action `first`; -1 if they are too many for single scores, or if rounding leaves doubt. scratch:
 * 2 d doubles. */
int64_t ff_best_by_intervals(const ff_query *q, const int64_t *restrict indices, int64_t n,
                             int64_t first, ff_interval best, double *restrict scratch);
#endif

#endif
