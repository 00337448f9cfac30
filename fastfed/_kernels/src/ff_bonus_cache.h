/* Choose actions by cached upper bounds on their bonuses, which are valid until the next
 * synchronisation.
 *
 * Between two synchronisations V only grows. So the norm a = ||W x|| = ||x||_{V^-1} for the W of
 * the last release, which all silos share, is an upper bound on every later a. b = ||V^{-1} x|| may
 * grow; its growth is bounded by a multiple of a that is updated with every data point. If there is
 * a second bonus, a and b together are bounded by ||R x|| for one triangular factor R
 * (ff_bonus_bounds.h); otherwise R is W. The bounds of a query's actions are computed when a silo
 * is first offered that query. A lower bound on the score of the most promising action then rules
 * out nearly all others. */
#ifndef FF_BONUS_CACHE_H
#define FF_BONUS_CACHE_H

#include "ff_base.h"
#include "ff_directions.h"
#include "ff_scores.h"

/* Number of silos whose last choices serve as typical actions at a release. */
#define FF_SAMPLES 4

/* The bounds that one silo uses. */
typedef struct {
    int64_t version;        /* number of the factor that the bounds belong to; bounds of other
                             * versions are invalid. 0: none */
    const double *factor;   /* an ff_bonus_bounds: of the release, or of the silo's own W since
                             * then */
    int64_t first_stage;    /* how the bounds of a query are computed first: CHEAP or BY_FACTOR */
    int64_t cheap_failures; /* recent failures of cheap bounds, less successes */
    int64_t made_at;        /* data points that had entered V since the release when the factor
                             * was computed */
    int64_t made;           /* number of factors of the silo's own W since the release */
    double moved;           /* since the factor was computed, b has grown by at most moved a .. */
    double moved_in_all;    /* .. and since the release by at most moved_in_all a */
    double grown;           /* V is at most grown times V at that time .. */
    double grown_in_all;    /* .. and grown_in_all times V at the release; both only if there is
                             * a second bonus */
    int64_t work;           /* work that the bounds have failed to save since the factor was
                             * computed, in exact scores */
    int64_t patience;       /* a new factor is computed once `work` exceeds this multiple of its
                             * cost */
    int64_t retry_at;       /* 0; or, after new bounds ruled out too little, the number of data
                             * points in V at which to retry */
} ff_bonus_silo;

/* The cache of a curve. The caller owns the arrays. */
typedef struct {
    ff_bonus_silo *silo; /* (M): state of each silo; NULL: no cache */
    float *bound;        /* (rows of the pool): bounds on ||R x||, in units of the factor; or
                          * NULL */
    int64_t *made;       /* (queries): version of the bounds of each query, plus their stage */
    int64_t choices;     /* queries times the largest number of actions */
    double *sample;      /* (M, d): features of the last choices; zeros: none yet */
    double *factor;      /* an ff_bonus_bounds of the release: ff_bonus_cache_size() doubles */
    double *own;         /* M bounds of this size if silos' W differ, else NULL */
    int64_t version;     /* version of `factor` */
    const ff_directions *directions; /* principal directions of the pool's actions, or NULL */
} ff_bonus_cache;

/* Return the number of doubles in `factor`, and in the part of `own` for one silo. */
int64_t ff_bonus_cache_size(int64_t d);

/* Compute the bounds for the W of a release, and reset all silos. beta, gamma: factors of the
 * bonuses until the next release, approximately. choices: number of actions in all choices until
 * then. scratch: 3 d^2 + d doubles. */
void ff_bonus_cache_refresh(ff_bonus_cache *cache, const double *restrict w, int64_t released,
                            double beta, double gamma, double choices, int64_t silos, int64_t d,
                            double *restrict scratch);

/* Reset a silo whose V has been rewound to an earlier state since the release: it uses the bounds
 * of the release again. */
void ff_bonus_cache_rewind(ff_bonus_cache *cache, int64_t silo);

/* The features x of a choice, clipped to the bound on their norm, and W x, whose squared norm is x'
 * V^-1 x. x[0] is NaN if x and W x are not known, as before the first call. */
typedef struct {
    double *x, *whitened; /* (d), (d) */
} ff_whitened;

/* Return the action with the largest <x, theta> + r (beta ||W x|| + gamma ||W'W x||), where r > 0
 * is the `ranking` of the sieve; the lowest index if several tie; -1 if the bounds do not decide.
 * Its features are written to x (d). *largest receives -INFINITY if the action certainly passes the
 * sieve (the chosen action passes if r is 1), otherwise an upper bound on all scores. points_count:
 * number of data points that entered V since the release. scratch: as for ff_select;
 * bounds_scratch: 3 d^2 + d doubles. */
int64_t ff_bonus_cache_choose(ff_bonus_cache *cache, int64_t silo, int64_t points_count,
                              const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              const ff_sieve *sieve, double feature_bound, int64_t d,
                              double *restrict scratch, double *restrict bounds_scratch,
                              double *restrict x, const ff_whitened *whitened_x,
                              double *restrict largest);

/* For tests: compute bounds on the scores of all actions into `results` (5, K). The rows are:
 * 1. upper bounds from the cheap bounds (ff_bonus_few.h);
 * 2. upper bounds from ||R x||, computed for all actions together;
 * 3. upper bounds from ||R x||, computed for one action at a time;
 * 4. lower bounds from ||R x||;
 * 5. lower bounds from ||R x|| and ||W x||.
 * The bounds are computed from w. They are valid for updated_w (d x d), which receives w after
 * `points_count` points (., d) have entered V. Returns 0 if there are no cheap bounds, or if the
 * actions do not fit 16 bits. scratch: that of a cache, of screening a panel, and 3 d^2 + d
 * doubles. */
int64_t ff_bonus_cache_test_bounds(const ff_actions *actions, const ff_directions *directions,
                                   const double *restrict w, const double *restrict theta,
                                   double beta, double gamma, const double *restrict points,
                                   int64_t points_count, double *restrict updated_w, int64_t d,
                                   double *restrict scratch, float *restrict results);

/* Update the bounds after a data point entered a silo's V. v: V^{-1} x for the previous V; s: the
 * result of ff_observe. */
void ff_bonus_cache_observe(ff_bonus_cache *cache, int64_t silo, const double *restrict v, double s,
                            int64_t d);

#endif
