/* The state of a run: one replicate of one or several curves over one environment.
 *
 * A curve is one federation: a plan (schedule, policy, protocol, noise, radius) and the state that
 * it has reached. Arrays belong to the caller. The driver (ff_driver.h) advances a run; policy
 * (ff_policy.h), protocol (ff_protocol.h) and rewind (ff_rewind.h) are its parts. They call the
 * same leaf functions in the same order as the step driver in Python, so both agree bit for bit. */
#ifndef FF_RUN_H
#define FF_RUN_H

#include "ff_aggregation.h"
#include "ff_base.h"
#include "ff_belief.h"
#include "ff_bonus_cache.h"
#include "ff_candidates.h"
#include "ff_environment.h"
#include "ff_estimate.h"
#include "ff_linalg.h"
#include "ff_random.h"
#include "ff_scores.h"
#include "ff_threads.h"
#include "ff_tracked.h"
#include "ff_trigger.h"

/* What a silo sends at a synchronisation (the randomizer), and how the server combines it (the
 * analyzer). */
enum {
    FF_SEND_BATCH = 0,
    FF_SEND_NODE = 1,
    FF_SEND_NOISY_NODE = 2,
    FF_SEND_NOISY_PREFIX = 3,
    FF_SEND_BITS = 4,       /* counted: the centred number of ones of each entry */
    FF_SEND_NOISY_SUM = 5,  /* the prefix sum with the noise of `release` */
    FF_SEND_NOISY_BATCH = 6 /* the batch with noise of its own */
};
enum { FF_ADD = 0, FF_TREE = 1, FF_NOISY_TREE = 2, FF_REPLACE = 3, FF_NOISY_ADD = 4 };

/* The mechanism that makes the noise of a prefix. */
enum {
    FF_TREE_RELEASE = 0,
    FF_HONAKER = 1,
    FF_TOEPLITZ = 2,
    FF_FACTORISED = 3,
    FF_BUFFERED = 4,
    FF_NESTED = 5
};

/* The last choice of a silo that acts on released statistics only. Until the next synchronisation
 * it chooses the same action whenever the environment offers the same rows. */
typedef struct {
    const void *x;
    int64_t released, action;
} ff_choice;

typedef struct {
    /* plan */
    int64_t batch_size; /* rounds between synchronisations, at most; 0: never, 1 with a trigger */
    int64_t releases;   /* K, the most of them */
    const int64_t *ends; /* (K): the rounds after which silos synchronise; NULL: all batches alike */
    const double *release_scale; /* (K): users' noise in a batch, in units of noise_std, or NULL */
    int64_t by_release; /* 1: bits are encoded by release, not by level of the tree */
    ff_trigger trigger; /* when to synchronise, where the data decide */
    int64_t lazy;       /* 1: actions from released statistics only (Alg. 8) */
    int64_t random;     /* 1: a uniformly random action each round */
    ff_score score;     /* a user's score function, or NULL: upper confidence bounds */
    const double *score_state; /* (score_state_size) copied for every call, or NULL */
    int64_t score_state_size;
    int64_t randomizer, analyzer, release;
    const double *coefficients; /* f of the Toeplitz factor, rows (K, K) of another, or buffers' */
    int64_t buffers;            /* how many, of FF_BUFFERED */
    ff_noise_std noise_std;
    const double *noise_scale; /* (M): each silo's noise, in units of noise_std */
    int64_t drawn_once;        /* 1: the server's noise stands for the sum of all silos' noises */
    ff_radius radius;
    int64_t direct;                /* 1: lambda may fall, and there is a second bonus */
    double radius_count;           /* rows of V that a round adds: M, or 1 for a silo alone */
    int64_t last_entry;            /* of the arrays by release; it stands for all later ones */
    const double *regularizer;     /* lambda after k releases, k = 0..releases */
    const double *radius_offset;   /* after k releases */
    const double *radius_lambda;   /* after k releases */
    double tau;                    /* bound on ||theta||; direct radius only */
    const double *error_bound;     /* after k releases; direct radius only */
    const double *floor;           /* required least eigenvalue of V; direct radius only */
    double least_bonus;            /* m, the factor on the bonuses where the ledger allows it */
    const double *allowance;       /* (K + 1): most of the ledger after the batch; NULL: m is 1 */
    double tie_bonus;              /* factor on the bonuses between scores of at least.. */
    double reward_limit;           /* .. the largest mean reward, which tie; 1: none do */
    int64_t clip;
    int64_t public_constant; /* 1: the last entry of a statistic is a public number, without noise */
    double constant;      /* the last feature, which the code writes; 0: an ordinary feature */
    double reward_centre; /* what rewards are released less of */
    double feature_bound, reward_low, reward_high; /* of the others, where one is constant */
    int64_t levels;
    int64_t shuffled;           /* 1: messages reach the server in random order */
    /* Bits only, by level or by release: g of bias and covariance entries (., 2); b, the noise bits
     * of a data point; the value of a 1 in a summed message (., s). */
    const int64_t *bit_levels, *noise_bits;
    const double *unit;
    /* Own rounds, of which nothing enters a batch: those after share_until, and before it those
     * that a rule or a secret coin names. */
    int64_t share_until;        /* the last shared round; 0: all rounds are shared */
    const uint8_t *share_rule;  /* (share_until): 1 where a round is shared; NULL: all, or coins */
    int64_t share_coin;         /* 1: a coin decides of each user, below share_until */
    uint64_t share_threshold;   /* a coin's 64 bits are below it where the user is shared */
    int64_t own_least;          /* 1: own rounds by the least of two bounds, 0: by a belief */
    ff_radius own_radius;       /* of the silo's own bound */
    double own_offset;
    ff_belief_model belief;
    const double *own_ridges;   /* (K + 1, count): ridges of the belief after k releases */
    double own_bonus;           /* factor on ||x||_{V^-1} in own rounds */
    /* state */
    int64_t released;            /* synchronisations so far */
    int64_t *synchronised;       /* (checkpoints): synchronisations since the one before */
    uint8_t *requested;          /* (T, M): 1 where the silo's trigger fired; or NULL */
    uint8_t *synchronised_rounds; /* (T): 1 where the silos synchronised after the round; or NULL */
    double second_bonus;         /* gamma: of the direct radius, else 0 */
    double inflation;            /* of the direct radius */
    double bonus;                /* factor on both bonuses until the next synchronisation */
    double ledger;               /* regret that factors below 1 may have added so far */
    double log_inflation;        /* see ff_log_inflation */
    double log_det;              /* ln det V of what is synchronised */
    ff_choice *choice;           /* (M): lazy policy only */
    ff_candidates *candidates;   /* (M): eager policy over rows that come again */
    ff_tracked *tracked;         /* (M): eager policy over one fixed set each; or NULL */
    double *tracked_values;      /* (M, ff_tracked_size) */
    ff_bonus_cache bonus_cache;
    int64_t *chosen;  /* lazy, of a pool's queries: the release, plus one, and the action, or NULL */
    double *history;             /* (M or 1, K, s): standard normals that later prefixes use, and
                                    what prefixes to come use of them (ff_protocol.c) */
    int64_t alike;               /* 1: the released V is a multiple of I */
    double *w, *theta;           /* (M or 1, d, d), (M or 1, d) */
    double *log_dets;            /* (M or 1): ln det V of silos that learn within the batch */
    double *batch;               /* (M, s): the statistic of the current batch */
    double *sums;                /* (M, levels, s): p-sums, raw or rounded point by point */
    double *nodes;               /* (M or 1, levels or buffers, s): noisy p-sums, Honaker's
                                    estimates, or buffers */
    double *messages;            /* (M, s) */
    double *own_w, *own_theta;   /* (M, d, d), (M, d): own rounds only */
    double *own_sums;            /* (M, s): the raw statistic of all of a silo's rounds */
    double *own_shared;          /* (M, s): the same of shared rounds, where they are mixed; or NULL */
    double *own_rest;            /* (M, s): what others released, the silo's own taken off */
    int64_t *order;              /* (M): the order in which the shuffler passes messages on */
    double *total;               /* (s): the synchronised statistic */
    double *regret;              /* (M): so far */
    double *curve;               /* (M, checkpoints) */
    int64_t *clipped;            /* (M, 2): features, rewards */
    int64_t *indefinite;         /* (1): synchronisations whose V had to be shifted */
    int32_t *actions;            /* (M, T) or NULL */
    double *rewards;             /* (M, T) or NULL */
} ff_curve;

typedef struct {
    const ff_environment *environment;
    uint64_t seed;
    int64_t replicate, silos, dimension, horizon;
    /* Where this run is a part of a larger one: silo i is silo names[i] there (NULL: i), and its
     * rounds are those t = phase modulo stride (0 and 1: all). */
    const int64_t *names;
    int64_t phase, stride;
    const int64_t *checkpoints; /* ascending rounds */
    int64_t checkpoint_count;
    ff_curve *curves;
    int64_t curve_count;
    int64_t threads;
    double *scratch; /* threads x ff_run_scratch() */
    int64_t fill_scratch, score_scratch; /* ff_fill_capacity() and ff_score_scratch() of it .. */
    int64_t belief_scratch;              /* .. and for own rounds */
    int64_t scratch_size;
    int64_t *status; /* (M) */
    ff_team *team;   /* of one call, or NULL */
    ff_pace rounds, reports, own; /* of silos' rounds, their reports, the beginnings of own rounds */
} ff_run;

/* The most curves of a run. */
#define FF_MAX_CURVES 64

/* Data points of a silo that are buffered before they enter its batch together. */
#define PENDING 16

/* The scratch of one thread, cut into its parts. */
typedef struct {
    void *x;
    double *mean, *score, *feature, *observe, *normals, *packed, *trigger, *point, *bound, *belief;
    double *pending;
    ff_whitened known; /* its W x stands where ff_observe wants it */
    uint32_t *random;
} ff_parts;

/* The buffered data points of one curve: PENDING x (d + 1), features and reward. */
typedef struct {
    double *points;
    int64_t count;
} ff_pending;

FF_INLINE ff_parts ff_cut(double *scratch, const ff_run *run)
{
    const int64_t actions = run->environment->actions, d = run->dimension;
    ff_parts p;
    p.x = scratch;
    p.mean = scratch + run->fill_scratch;
    p.score = p.mean + actions;
    p.feature = p.score + run->score_scratch;
    p.observe = p.feature + d;
    p.known = (ff_whitened){p.observe + 4 * d, p.observe};
    p.normals = p.observe + 5 * d;
    p.packed = p.normals + ff_noise_capacity(d);
    p.trigger = p.packed + ff_packed(d) + 2 * d;
    p.point = p.trigger + ff_trigger_scratch(d);
    p.bound = p.point + ff_statistic(d);
    p.belief = p.bound + 3 * d * d + d;
    p.pending = p.belief + run->belief_scratch;
    p.random = (uint32_t *)(p.pending + run->curve_count * PENDING * (d + 1) + 8);
    return p;
}

/* Doubles of scratch that one thread needs. Where a curve has a user's score function,
 * ff_scored_scratch() more at the end; where one has own rounds, belief_scratch more. levels: the
 * most of any curve that sends bits. */
FF_INLINE int64_t ff_run_scratch(int64_t actions, int64_t d, int64_t levels, int64_t curves)
{
    return ff_fill_capacity(actions, d) + actions + ff_score_scratch(d, actions) + 6 * d +
           ff_noise_capacity(d) + ff_packed(d) + 2 * d + ff_trigger_scratch(d) + ff_statistic(d) +
           3 * d * d + d +
           curves * PENDING * (d + 1) + 8 +
           ff_random_u32_capacity(levels * ff_statistic(d)) / 2 + 16;
}

/* The entry of the arrays by release that holds now. */
FF_INLINE int64_t ff_entry(const ff_curve *c)
{
    return c->released < c->last_entry ? c->released : c->last_entry;
}

/* The round after which the k-th synchronisation is due, where rounds are fixed; 0 for k = 0. */
FF_INLINE int64_t ff_end_of(const ff_curve *c, int64_t k)
{
    return c->ends && k ? c->ends[k - 1] : k * c->batch_size;
}

/* The round after which the next synchronisation is due, or INT64_MAX. */
FF_INLINE int64_t ff_next_end(const ff_curve *c)
{
    return c->released < c->releases ? ff_end_of(c, c->released + 1) : INT64_MAX;
}

/* 1 if silos learn within a batch. What they would learn in a batch of one round nobody acts on. */
FF_INLINE int ff_learns(const ff_curve *c)
{
    return !c->lazy && (c->trigger.kind || c->share_until ||
                        ff_next_end(c) != ff_end_of(c, c->released) + 1);
}

/* The factor that a silo decides with: its own where silos learn, the shared one otherwise. */
FF_INLINE int64_t ff_slot(const ff_curve *c, int64_t silo) { return ff_learns(c) ? silo : 0; }

/* 1 if own rounds come between shared ones, not only after them. */
FF_INLINE int ff_mixed(const ff_curve *c) { return c->share_rule != NULL || c->share_coin; }

/* Silo, round and tree node as the random streams know them. */
FF_INLINE int64_t ff_name_of(const ff_run *run, int64_t silo)
{
    return run->names ? run->names[silo] : silo;
}
FF_INLINE int64_t ff_time_of(const ff_run *run, int64_t round)
{
    return (run->phase ? run->phase : run->stride) + (round - 1) * run->stride;
}
FF_INLINE int64_t ff_key_of(const ff_run *run, int64_t node)
{
    return (node - 1) * run->stride + run->phase + 1;
}

FF_INLINE ff_stream ff_stream_of(const ff_run *run, uint64_t purpose, int64_t silo, int64_t round)
{
    return ff_stream_open(run->seed, purpose, (uint32_t)run->replicate,
                          (uint32_t)ff_name_of(run, silo), (uint32_t)ff_time_of(run, round));
}

#endif
