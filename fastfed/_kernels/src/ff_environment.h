/* The interface of environments: they give the actions of (replicate, silo, round).
 *
 * An environment has one of two functions. `fill` writes K actions and their expected rewards into
 * buffers of the caller. `borrow` points to rows that the environment owns. Built-in environments
 * and a user's compiled function fill the same struct. Every answer depends on (seed, replicate,
 * silo, round) only. */
#ifndef FF_ENVIRONMENT_H
#define FF_ENVIRONMENT_H

#include "ff_base.h"
#include "ff_directions.h"
#include "ff_scores.h"
#include "ff_screen_i16.h"

/* Write x (laid out as the environment declares) and the K expected rewards. Returns K, or a
 * negative status. Also the signature of a user's numba.cfunc (x is double* if is_double). */
typedef int64_t (*ff_fill)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, void *x, double *mean);

/* Return the expected reward of action a among those that `fill` wrote for a silo. */
typedef double (*ff_mean)(const void *state, int64_t silo, const void *x, int64_t a);

/* Fill all fields of `out` except `ahead` with memory that the environment owns. Returns 0 or a
 * negative status. prefetched: what ff_borrow_ahead returned for this round, or NULL. buffer:
 * memory of the caller for ff_fill_capacity() floats, aligned to 64 bytes; `out` may point into
 * it. */
typedef int64_t (*ff_borrow)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                             int64_t round, const ff_ahead *prefetched, void *buffer,
                             ff_actions *out);

/* Return the memory that `borrow` will read in a round. */
typedef ff_ahead (*ff_borrow_ahead)(const void *state, uint64_t seed, int64_t replicate,
                                    int64_t silo, int64_t round);

/* Distributions of the reward y, given the expected reward of the chosen action. */
enum { FF_REWARD_NONE = 0, FF_REWARD_BERNOULLI = 1, FF_REWARD_GAUSSIAN = 2 };

/* An environment. */
typedef struct {
    ff_fill fill;          /* exactly one of fill and borrow is not NULL */
    ff_borrow borrow;
    ff_borrow_ahead ahead; /* may be NULL; only with borrow */
    ff_mean mean;          /* the exact mean of an action; NULL: the means that fill writes are
                            * exact. Otherwise .. */
    double mean_error;     /* .. the means that fill writes are exact to within this error */
    void *state;           /* first argument of the functions above */
    int64_t dimension;     /* d */
    int64_t actions;       /* the largest K of any round */
    int64_t is_double;     /* 1: fill writes float64; 0: float32 */
    int64_t stride;        /* x[j * stride + a] (feature-major); 0: x[a * dimension + j] */
    int64_t reward_kind;   /* FF_REWARD_* */
    double reward_std;     /* standard deviation of Gaussian rewards */
} ff_environment;

/* Statuses */
enum {
    FF_OK = 0,
    FF_CALLBACK_FAILED = -1,
    FF_NOT_POSITIVE_DEFINITE = -2,
    FF_NO_ACTIONS = -3,
    FF_NOT_FINITE = -4,
    FF_SCORE_FAILED = -5
};

/* Return how many numbers (floats or doubles) fill may write: the features and the scratch of
 * built-in environments, or the features in 16 bits. */
int64_t ff_fill_capacity(int64_t actions, int64_t dimension);

/* Return the stride of sphere and gap: if x begins at a vector boundary, so does every feature.
 * (Vectors that cross a cache line cost twice.) */
int64_t ff_stride(int64_t actions);

/* Write the actions of one round to `out`. x (aligned to 64 bytes) and mean are the buffers of the
 * caller for fill; prefetched: see ff_borrow; next_ahead: what the silo's next round reads, or
 * NULL. Returns FF_OK or a negative status. */
int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_ahead *prefetched, ff_ahead *next_ahead, void *x,
                      double *mean, ff_actions *out);

/* Return the expected reward of action a. */
FF_INLINE double ff_mean_of(const ff_environment *env, const ff_actions *actions, int64_t a)
{
    return env->mean ? env->mean(env->state, actions->silo, actions->x, a) : actions->mean[a];
}

/* Return the reward in that round of an action with expected reward `mean`. */
double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                    int64_t round, double mean);

/* ---- sphere: unit vectors (zhou-chowdhury-2024, Section 6; Vaswani et al. 2020). If silos differ,
 * each has its own theta. ---- */
typedef struct {
    const double *theta;   /* (d), or (M, d) with one theta for each silo */
    int64_t theta_stride;  /* distance between the thetas of two silos: 0 or d */
    int64_t dimension, actions;
    int64_t basis_actions; /* number of leading actions that are fixed: 0 or d */
    int64_t shared;        /* 1: the same contexts in every replicate */
    double constant;       /* value of the last feature */
} ff_sphere;
int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, void *x, double *mean);
double ff_sphere_mean(const void *state, int64_t silo, const void *x, int64_t a);

/* ---- gap: one best action, with a gap to all others (dubey-pentland-2020, Section 4.4) ---- */
typedef struct {
    const double *theta; /* (d), of norm 1 */
    int64_t dimension, actions;
    double inferior;     /* smallest expected reward of the other actions */
    double best;         /* smallest expected reward of the best action */
    double width;        /* width of the interval of expected rewards, for both */
} ff_gap;
int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                    void *x, double *mean);
double ff_gap_mean(const void *state, int64_t silo, const void *x, int64_t a);

/* Return mean_error of sphere and gap in d dimensions. A mean is a sum with at most about d + 8
 * float32 roundings, of terms whose magnitudes sum to at most 1. Scaling features into the unit
 * ball adds as much again. */
double ff_mean_error(int64_t d);

/* ---- hard: a context with one block of two nonzero coordinates (huang-2023, Appendix E.1) ---- */
typedef struct {
    const double *theta; /* (d), d even */
    int64_t dimension;
} ff_hard;
int64_t ff_hard_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                     void *x, double *mean);

/* ---- pools: finite sets of queries; each query has a block of rows, its actions ---- */
enum { FF_WITH_REPLACEMENT = 0, FF_WITHOUT_REPLACEMENT = 1, FF_IN_ORDER = 2 };
/* A pool. Row r belongs to the query q with starts[q] <= r < starts[q + 1]. */
typedef struct {
    const void *values;           /* features of all rows */
    int64_t is_double, feature_major, dimension; /* layout, see ff_actions; d */
    const double *means, *best;   /* (rows): expected rewards; (queries): the largest of each
                                   * query */
    const int64_t *starts;        /* (queries + 1): first row of each query */
    const int64_t *silo_starts;   /* (M + 1): first query of each silo */
    const int64_t *order;         /* FF_WITHOUT_REPLACEMENT: the queries of each silo, shuffled */
    int64_t sampling;             /* FF_WITH_REPLACEMENT, ... */
    ff_quantised_store quantised; /* features of all queries in 16 bits; starts NULL: none are
                                   * stored */
    const ff_directions *directions; /* principal directions of the features, or NULL */
} ff_pool;
int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                       const ff_ahead *prefetched, void *buffer, ff_actions *out);
ff_ahead ff_pool_ahead(const void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round);
/* Return the query that a silo is offered in a round. */
int64_t ff_pool_query(const ff_pool *pool, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round);

#endif
