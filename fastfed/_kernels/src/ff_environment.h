/* The one interface of environments: hand out the actions of (replicate, silo, round).
 *
 * `fill` writes K actions and their expected rewards into the caller's buffers; `borrow` points
 * at rows the environment owns. Built-in environments and a user's compiled callback fill the
 * same struct. Every answer is a function of (seed, replicate, silo, round) alone. */
#ifndef FF_ENVIRONMENT_H
#define FF_ENVIRONMENT_H

#include "ff_base.h"
#include "ff_directions.h"
#include "ff_scores.h"
#include "ff_screen_i16.h"

/* Writes x (layout as the environment declares) and the K expected rewards; returns K, or a
 * negative status. Signature of a user's numba.cfunc too (x is double* when is_double). */
typedef int64_t (*ff_fill)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                           int64_t round, void *x, double *mean);

/* The expected reward of action a of those that fill wrote for a silo. */
typedef double (*ff_mean)(const void *state, int64_t silo, const void *x, int64_t a);

/* Fills every field of `out` but `ahead`, which is set, from memory of its own; returns 0 or a
 * negative status.
 * known: what `ff_borrow_ahead` said of this round, or NULL. room: of the caller, for
 * ff_fill_capacity() floats, 64-byte aligned; what it holds then belongs to `out` too. */
typedef int64_t (*ff_borrow)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                             int64_t round, const ff_ahead *known, void *room, ff_actions *out);

/* The memory that `borrow` will read of a round. */
typedef ff_ahead (*ff_borrow_ahead)(const void *state, uint64_t seed, int64_t replicate,
                                    int64_t silo, int64_t round);

/* Reward distributions: y given the expected reward of the chosen action. */
enum { FF_REWARD_NONE = 0, FF_REWARD_BERNOULLI = 1, FF_REWARD_GAUSSIAN = 2 };

typedef struct {
    ff_fill fill;      /* exactly one of fill and borrow is set */
    ff_borrow borrow;
    ff_borrow_ahead ahead; /* with borrow, or NULL */
    ff_mean mean;      /* or NULL: the means that fill writes are exact, not within mean_error */
    double mean_error;
    void *state;
    int64_t dimension;
    int64_t actions;   /* the most actions of any round */
    int64_t is_double; /* of what fill writes */
    int64_t stride;    /* feature-major, x[j * stride + a]; 0: x[a * dimension + j] */
    int64_t reward_kind;
    double reward_std;
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

/* Items (floats or doubles) fill may write: features, and what the built-in ones make them of; or
 * features in 16 bits. */
int64_t ff_fill_capacity(int64_t actions, int64_t dimension);

/* The stride of sphere and gap: where x begins with a whole vector, so does every feature. Vectors
 * across two cache lines cost twice. */
int64_t ff_stride(int64_t actions);

/* The actions of one round, into `out`; x (64-byte aligned) and mean are the caller's buffers for
 * fill, `known` as of ff_borrow; next: what the silo's next round reads, or NULL. */
int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_ahead *known, ff_ahead *next, void *x,
                      double *mean, ff_actions *out);

/* The expected reward of action a of them. */
FF_INLINE double ff_mean_of(const ff_environment *env, const ff_actions *actions, int64_t a)
{
    return env->mean ? env->mean(env->state, actions->silo, actions->x, a) : actions->mean[a];
}

/* The reward of an action of expected reward `mean` in that round. */
double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                    int64_t round, double mean);

/* ---- the sphere (zhou-chowdhury-2024, Section 6; Vaswani et al. 2020); of silos that differ, one
 * theta for each ---- */
typedef struct {
    const double *theta;  /* (d), or one for each silo, (M, d) */
    int64_t theta_stride; /* from one silo's theta to the next: 0 or d */
    int64_t dimension, actions;
    int64_t basis_actions; /* how many leading actions are fixed: 0 or d */
    int64_t shared;        /* 1: the same contexts in every replicate */
    double constant;       /* the last feature */
} ff_sphere;
int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, void *x, double *mean);
double ff_sphere_mean(const void *state, int64_t silo, const void *x, int64_t a);

/* ---- one best action, a gap above all others (dubey-pentland-2020, Section 4.4) ---- */
typedef struct {
    const double *theta; /* (d), of norm 1 */
    int64_t dimension, actions;
    double inferior; /* least expected reward of the others */
    double best;     /* least expected reward of the best */
    double width;    /* of both intervals */
} ff_gap;
int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                    void *x, double *mean);
double ff_gap_mean(const void *state, int64_t silo, const void *x, int64_t a);

/* mean_error of sphere and gap in d dimensions: their means are sums of at most a few (d + 8)
 * roundings of float32, of terms whose sizes sum to at most 1; features shortened into the unit
 * ball lose as much again. */
double ff_mean_error(int64_t d);

/* ---- a context in one block of two coordinates (huang-2023, Appendix E.1) ---- */
typedef struct {
    const double *theta; /* (d), d even */
    int64_t dimension;
} ff_hard;
int64_t ff_hard_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                     void *x, double *mean);

/* ---- pools: finite queries, each a block of rows ---- */
enum { FF_WITH_REPLACEMENT = 0, FF_WITHOUT_REPLACEMENT = 1, FF_IN_ORDER = 2 };
typedef struct {
    const void *values;
    int64_t is_double, feature_major, dimension;
    const double *means, *best;
    const int64_t *starts;      /* query -> first row */
    const int64_t *silo_starts; /* silo -> first query */
    const int64_t *order;       /* without replacement: the queries of each silo, shuffled */
    int64_t sampling;
    ff_quantised_store quantised; /* of every query; starts NULL: none are kept */
    const ff_directions *directions; /* or NULL */
} ff_pool;
int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, const ff_ahead *known, void *room, ff_actions *out);
ff_ahead ff_pool_ahead(const void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round);
/* Which query a silo meets in a round. */
int64_t ff_pool_query(const ff_pool *pool, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round);

#endif
