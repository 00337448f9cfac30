/* What the scores of a query's actions are at most, and what the best of them is at least, until
 * few are left that may be the best.
 *
 * All are bounded from above (ff_bonus_bounds.h), the score of the likeliest is told, and those
 * whose bounds are below it are out; of the rest, closer bounds are made. */
#ifndef FF_BONUS_SCORES_H
#define FF_BONUS_SCORES_H

#include "ff_bonus_cache.h"

#ifdef FF_WIDE
#include "ff_bonus_bounds.h"

/* How bounds of a query's actions on ||R x|| were made: sooner, by few products (ff_bonus_few.h),
 * or by R. What is in doubt after that is bounded by R: these bounds have a minus sign. Where that
 * is much, all are. */
enum { SOONER = 0, BY_FACTOR = 1, STAGES = 2 };

/* A score, and what the exact one of ff_best_of may differ from it by: z = W x (of x, or of the x
 * that it was clipped to) and W'z are summed in an order of their own; all are off by less than
 * (d + 8) u of the largest that products and roots can be, twice that for the score itself. */
typedef struct {
    double score, error;
} ff_told;

/* What scores of single actions are told of. x: of the one that may be chosen. known: of the one
 * that is `taken`, -1: none. back: d. */
typedef struct {
    const ff_actions *actions;
    const double *w, *theta;
    double beta, gamma, frobenius, feature_bound;
    int64_t d;
    double *x, *back;
    const ff_whitened *known;
    int64_t taken;
    int learns; /* by W x of the choice, which is then kept */
} ff_asked;

/* What is known of a query's actions in a round. */
typedef struct {
    const ff_bonus_bounds *bounds;
    double moved, grown; /* of V since these were made, see ff_bonus_silo */
    ff_actions view;     /* the actions, in 16 bits too */
    int64_t count, d, stage;
    int64_t *which; /* (count): those that may be the best */
    float *upper, *mean, *bound;
    float top;    /* the largest of `upper` */
    int16_t *row; /* room for theta in 16 bits */
    double factor; /* of ||R x|| */
    double *room;
} ff_bounded;

/* Bounds on the scores of all actions. stage: how those on bonuses are begun, unless they are
 * there. own: room for the actions in 16 bits, if they are not in them. */
void ff_begin_bounds(ff_bounded *b, int64_t stage, int there, const double *restrict theta,
                     void *restrict own);

/* The likeliest action, of those that R bounds if not of all. */
int64_t ff_likeliest(const ff_bounded *b, int bounded_by_factor);

/* Whether bounds alone decide for `best`, which is the likeliest action in any case. */
int ff_decided(ff_bounded *b, const double *restrict theta, double beta, double gamma,
               int64_t *restrict best);

/* The actions whose bounds are not below the score of `best`, whose features are in x: their
 * number, and which. Where bounds were made sooner those of R are made of them, one by one, or of
 * all where these are many (then the stage is BY_FACTOR); and `best` is what is the likeliest then. */
int64_t ff_may_be_best(ff_bounded *b, ff_asked *q, int64_t *restrict best);

/* Those not below a score. */
int64_t ff_not_below_score(const ff_bounded *b, ff_told score);

/* The score of an action, which is taken if the silo learns; and a float that it is not below, where
 * R bounds it: by half the products, or by them in float32 where W stays (then it is not taken). */
ff_told ff_tell(ff_asked *q, int64_t a);
float ff_least_by_factor(ff_asked *q, const ff_bonus_bounds *k, const measured *restrict known,
                         int64_t a, float bound, double moved, double grown);

/* The action of the largest score of n, of which `first` has been told; -1 if they are too
 * many to be told one by one, or rounding leaves doubt. room: 2 d. */
int64_t ff_best_told(const ff_asked *q, const int64_t *restrict which, int64_t n, int64_t first,
                     ff_told best, double *restrict room);
#endif

#endif
