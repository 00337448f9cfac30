/* Cached upper bounds on the bonuses of a pool's actions, valid until the next synchronisation.
 *
 * V only grows between two synchronisations, so the norm ||W x|| = ||x||_{V^-1} under the W of the
 * last release, the same for all silos, bounds every later one from above. The bound of an action
 * is computed when a silo first meets one of its query. The exact score of the action whose own
 * upper bound is largest then rules out nearly all others. */
#ifndef FF_BONUS_CACHE_H
#define FF_BONUS_CACHE_H

#include "ff_base.h"
#include "ff_scores.h"

/* Arrays belong to the caller. */
typedef struct {
    float *bound;     /* (rows of the pool), in units of the factor; NULL: no cache */
    int64_t *made;    /* (queries): the release of its bounds, see below */
    int64_t *useless; /* (M): the release whose bounds excluded next to nothing for a silo */
    double *factor;   /* ff_bonus_cache_size() doubles: W in 16 bits */
    int64_t release;  /* releases so far, plus one; 0: no bounds yet */
} ff_bonus_cache;

int64_t ff_bonus_cache_size(int64_t d);

/* Starts over with the W of a release. */
void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            int64_t d);

/* The features x of a choice, clipped to the bound on their norm, and W x, whose squared norm is
 * x' V^-1 x. x[0] is NaN where they are not known, before and after a call. */
typedef struct {
    double *x, *whitened; /* (d), (d) */
} ff_whitened;

/* The action of the largest score <x, theta> + beta ||W x||, ties to the lowest index, its
 * features into x; -1 where the bounds do not decide. seen: data points that entered V since the
 * release. scratch as of ff_select. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double feature_bound,
                              int64_t d, double *restrict scratch, double *restrict x,
                              const ff_whitened *known);

#endif
