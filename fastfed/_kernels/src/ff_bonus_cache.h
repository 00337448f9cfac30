/* Choosing by cached upper bounds on the bonuses of a pool's actions, which hold until the next
 * synchronisation.
 *
 * V only grows between two synchronisations, so the norm a = ||W x|| = ||x||_{V^-1} under the W of
 * the last release, the same for all silos, bounds every later one from above. b = ||V^{-1} x|| may
 * grow, by at most so much of a as is followed with every data point. Where there is a second bonus
 * both are bounded by ||R x||, of one triangular factor (ff_bonus_bounds.h), else R is W.
 * The bound of an action is computed when a silo first meets one of its query. The exact score of
 * the action whose own upper bound is largest then rules out nearly all others. */
#ifndef FF_BONUS_CACHE_H
#define FF_BONUS_CACHE_H

#include "ff_base.h"
#include "ff_directions.h"
#include "ff_scores.h"

/* Silos whose last choices tell at a release what actions are like. */
#define FF_SAMPLES 4

/* What a silo bounds its bonuses by. */
typedef struct {
    int64_t version;       /* of the factor; bounds of another one do not hold. 0: none */
    const double *factor;  /* ff_bonus_bounds, by R: the release's, or the silo's own, made since */
    int64_t begin;         /* how bounds of a query are begun, sooner or by R .. */
    int64_t failed;        /* .. and how often the sooner ones have lately told too little */
    int64_t from;          /* data points that had entered V since the release when it was made */
    int64_t made;          /* factors of its own so far */
    double moved;          /* b has grown by at most so much of a, since the factor was made .. */
    double moved_in_all;   /* .. and since the release */
    double grown;          /* V is at most so many times what it was then, .. */
    double grown_in_all;   /* .. and at the release; both where there is a second bonus */
    int64_t work;          /* what bounds have left to do since then, in exact scores */
    int64_t patience;      /* how much of it is borne until a factor is made anew */
    int64_t quiet;         /* new bounds told nothing: none until so many points are in V */
} ff_bonus_silo;

/* Arrays belong to the caller. */
typedef struct {
    ff_bonus_silo *silo; /* (M); NULL: no cache */
    float *bound;        /* (rows of the pool): on ||R x||, in units of the factor; or NULL */
    int64_t *made;       /* (queries): the version of its bounds */
    int64_t choices;     /* of one meeting of every query: their number times the most actions */
    double *sample;      /* (M, d): features of the last choices; zeros: none yet */
    double *factor;      /* bounds by R (ff_bonus_bounds.h): ff_bonus_cache_lazy_size() doubles, .. */
    double *own;         /* .. or ff_bonus_cache_size() and M of these: where silos' W differ; or NULL */
    int64_t version;     /* of `factor` */
    const ff_directions *directions; /* of the pool's actions, or NULL */
} ff_bonus_cache;

int64_t ff_bonus_cache_size(int64_t d);
int64_t ff_bonus_cache_lazy_size(int64_t d);

/* Starts over with the W of a release, for bonuses with about these factors. choices: actions that
 * are to be chosen among until the next one. scratch: 3 d^2 + d. */
void ff_bonus_cache_refresh(ff_bonus_cache *k, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch);

/* A silo's V is again what it was at some time since the release. */
void ff_bonus_cache_rewind(ff_bonus_cache *k, int64_t silo);

/* The features x of a choice, clipped to the bound on their norm, and W x, whose squared norm is
 * x' V^-1 x. x[0] is NaN where they are not known, before and after a call. */
typedef struct {
    double *x, *whitened; /* (d), (d) */
} ff_whitened;

/* The action of the largest score <x, theta> + beta ||W x|| + gamma ||W'W x||, ties to the lowest
 * index, its features into x; -1 where the bounds do not decide. seen: data points that entered V
 * since the release. scratch as of ff_select, room: 3 d^2 + d. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *k, int64_t silo, int64_t seen,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              double feature_bound, int64_t d, double *restrict scratch,
                              double *restrict room, double *restrict x, const ff_whitened *known);

/* For tests: of each action upper bounds on its score by few products, by R and by R of it alone,
 * and what it is at least, by R, by ||W x|| too, and by that in float32 where no point has entered
 * V: 6 rows of K. They are made of w, and hold for `now` (d x d), which is w once `seen` points of d
 * have entered V. Returns 0 where there is nothing but R. scratch: that of a lazy cache, of a
 * panel's screening and 3 d^2 + d. */
int64_t ff_bonus_cache_ends(const ff_actions *actions, const ff_directions *directions,
                            const double *restrict w, const double *restrict theta, double beta,
                            double gamma, const double *restrict points, int64_t seen,
                            double *restrict now, int64_t d, double *restrict scratch,
                            float *restrict ends);

/* A data point entered a silo's V: v = V^{-1} x of the V before it, s the result of ff_observe. */
void ff_bonus_cache_observe(ff_bonus_cache *k, int64_t silo, const double *restrict v, double s,
                            int64_t d);

#endif
