/* Cached upper bounds on the bonuses of a pool's actions, valid until the next synchronisation.
 *
 * V only grows between two synchronisations, so the norm a = ||W x|| = ||x||_{V^-1} under the W of
 * the last release, the same for all silos, bounds every later one from above. b = ||V^{-1} x|| may
 * grow, by at most so much of a as is followed with every data point. Where there is a second bonus
 * both are bounded by ||R x||, of one triangular factor (ff_bonus_factor.h), else R is W.
 * The bound of an action is computed when a silo first meets one of its query. The exact score of
 * the action whose own upper bound is largest then rules out nearly all others. */
#ifndef FF_BONUS_CACHE_H
#define FF_BONUS_CACHE_H

#include "ff_base.h"
#include "ff_bonus_factor.h"
#include "ff_scores.h"

/* Silos whose last choices tell what actions are like. */
#define FF_SAMPLES 4

/* Arrays belong to the caller. */
typedef struct {
    float *bound;     /* (rows of the pool): on ||R x||, in units of the factor; NULL: no cache */
    int64_t *made;    /* (queries): the release of its bounds, see below */
    int64_t *useless; /* (M): the release whose bounds excluded next to nothing for a silo */
    int64_t *misses;  /* (M): how often they did of late */
    double *moved;    /* (M): b has grown since the release by at most so much of a */
    double *sample;   /* (FF_SAMPLES, d): features of the last choices; zeros: none yet */
    double *factor;   /* ff_bonus_cache_size() doubles: R in 16 bits */
    ff_bonus_factor model;
    int64_t release;  /* releases so far, plus one; 0: no bounds */
} ff_bonus_cache;

int64_t ff_bonus_cache_size(int64_t d);

/* Starts over with the W of a release, for bonuses with about these factors. choices: actions that
 * are to be chosen among until the next one. scratch: 2 d^2 + d. */
void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch);

/* The features x of a choice, clipped to the bound on their norm, and W x, whose squared norm is
 * x' V^-1 x. x[0] is NaN where they are not known, before and after a call. */
typedef struct {
    double *x, *whitened; /* (d), (d) */
} ff_whitened;

/* The action of the largest score <x, theta> + beta ||W x|| + gamma ||W'W x||, ties to the lowest
 * index, its features into x; -1 where the bounds do not decide. seen: data points that entered V
 * since the release. scratch as of ff_select. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              double feature_bound, int64_t d, double *restrict scratch,
                              double *restrict x, const ff_whitened *known);

/* A data point entered a silo's V: v = V^{-1} x of the V before it, s the result of ff_observe. */
void ff_bonus_cache_observe(ff_bonus_cache *k, int64_t silo, const double *restrict v, double s,
                            int64_t d);

#endif
