/* Upper bounds on the widths of a pool's actions, good for a whole release. */
#ifndef FF_BONUS_CACHE_H
#define FF_BONUS_CACHE_H

#include "ff_base.h"
#include "ff_scores.h"

/* V only grows between two synchronisations, so ||W x|| of the last release's W, the same for all
 * silos, bounds it from above until the next one. The bound of an action is made when one of
 * its query is first asked for. The score of the action whose own bound is largest then
 * rules out nearly all others. Arrays belong to the caller. */
typedef struct {
    float *bound;     /* (rows of the pool), in units of the model; NULL: no widths are kept */
    int64_t *made;    /* (queries): for which release, see below */
    int64_t *useless; /* (M): the release for which they told a silo next to nothing */
    double *factor;   /* ff_bonus_cache_size() doubles: W in 16 bits */
    int64_t release;  /* releases so far and one; 0: none is ready */
} ff_bonus_cache;

int64_t ff_bonus_cache_size(int64_t d);

/* The W of a release. */
void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released, int64_t d);

/* The features of a choice, clipped to the bound on their norm, and W times these. Where there are
 * none the first is NaN, before and after. */
typedef struct {
    double *x, *whitened; /* (d), (d) */
} ff_whitened;

/* The action of the largest score <x, theta> + beta ||W x||, ties to the lowest index, its
 * features into x; -1 where bounds do not tell. seen: of all points that have entered V since the
 * release. scratch as of ff_select. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen, const ff_actions *actions,
                         const double *restrict w, const double *restrict theta, double beta,
                         double feature_bound, int64_t d, double *restrict scratch,
                         double *restrict x, const ff_whitened *known);

#endif
