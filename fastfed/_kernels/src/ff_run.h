/* The state of a run. A run simulates one replicate of one or several curves over one environment.
 *
 * A curve is one federation: its plan (schedule, policy, protocol, noise, radius) and the state
 * that the simulation has reached. The caller owns all arrays. The driver (ff_driver.h) advances a
 * run. It uses the policy (ff_policy.h), the protocol (ff_protocol.h) and snapshots (ff_rewind.h).
 * All of them call the same leaf functions in the same order as the step driver in Python, so both
 * drivers give the same bits.
 *
 * Symbols in comments: M silos, T rounds (the horizon), d features, K releases in this file (in
 * files about scores K is the number of actions), s = ff_statistic(d) doubles of a statistic.
 * Throughout the C files `c` is a curve, `p` the scratch of a thread (ff_parts), and `k` counts
 * releases. A release is the total that the server publishes at a synchronisation. */
#ifndef FF_RUN_H
#define FF_RUN_H

#include "ff_aggregation.h"
#include "ff_base.h"
#include "ff_belief.h"
#include "ff_bonus_cache.h"
#include "ff_fixed.h"
#include "ff_environment.h"
#include "ff_arms.h"
#include "ff_estimate.h"
#include "ff_linalg.h"
#include "ff_random.h"
#include "ff_scores.h"
#include "ff_threads.h"
#include "ff_trigger.h"

/* The randomizer: what a silo sends at a synchronisation. The "noisy" ones contain the silo's own
 * noise. */
enum {
    FF_SEND_BATCH = 0,        /* the statistic of the batch */
    FF_SEND_NODE = 1,         /* the p-sum of the tree node that the batch completes */
    FF_SEND_NOISY_NODE = 2,   /* that p-sum with noise */
    FF_SEND_NOISY_PREFIX = 3, /* the prefix sum (over all batches so far), as a sum of noisy
                               * nodes */
    FF_SEND_BITS = 4,         /* the centred number of ones in each entry, for bits */
    FF_SEND_NOISY_SUM = 5,    /* the prefix sum with noise by the mechanism `release` */
    FF_SEND_NOISY_BATCH = 6   /* the statistic of the batch with fresh noise */
};
/* The analyzer: how the server computes the total from the sum of the messages. FF_ADD adds the sum
 * to the total. FF_TREE stores it as a tree node and adds up nodes; FF_NOISY_TREE does so after
 * adding noise to the node. FF_REPLACE takes the sum as the new total. FF_NOISY_ADD adds the sum to
 * a raw prefix sum and releases that sum with noise by the mechanism `release`. */
enum { FF_ADD = 0, FF_TREE = 1, FF_NOISY_TREE = 2, FF_REPLACE = 3, FF_NOISY_ADD = 4 };

/* The mechanism that makes the noise of a prefix sum (fastfed/privacy/releases): the noise of tree
 * nodes as they are, Honaker's estimates of them, a Toeplitz or another factorisation of the matrix
 * of prefix sums, decaying buffers, or nested sums of draws. The numbers are those of RELEASES in
 * fastfed/protocols/release.py. */
enum {
    FF_TREE_RELEASE = 0,
    FF_HONAKER = 1,
    FF_TOEPLITZ = 2,
    FF_FACTORISED = 3,
    FF_BUFFERED = 4,
    FF_NESTED = 5
};

/* Number of doubles of `views` for each silo with its own clock. */
#define FF_VIEW_NUMBERS 6

/* The last choice of a silo whose policy is lazy (acts on released statistics only). Until the
 * next synchronisation the silo chooses the same action whenever the environment offers the same
 * rows. */
typedef struct {
    const void *x;            /* address of the offered actions */
    int64_t released, action; /* releases so far when the choice was made; the chosen action */
} ff_choice;

/* One curve. The first half is its plan, which a run does not change. The second half is its state.
 * Fields have the names of the keys of fastfed/simulation/compiled.py:state. "own" in a name means:
 * of local rounds, in which a silo shares nothing. */
typedef struct {
    /* Plan */
    int64_t batch_size;          /* largest number of rounds between synchronisations; 0: never
                                  * synchronise; 1 with a trigger */
    int64_t releases;            /* K, the largest number of releases */
    const int64_t *ends;         /* (K): the rounds after which silos synchronise; NULL: every
                                  * batch_size rounds */
    const double *release_scale; /* (K): factor on the noise of a user in each batch, in units of
                                  * noise_std; or NULL: all are 1 */
    int64_t by_release;          /* 1: bits are encoded by release; 0: by level of the tree */
    ff_trigger trigger;          /* when to synchronise, if that depends on the data */
    int64_t lazy;                /* 1: actions depend on released statistics only (feducb Alg. 8) */
    int64_t random;              /* 1: choose a uniformly random action in each round */
    ff_score score;              /* a user's score function, or NULL: choose by upper confidence
                                  * bounds */
    const double *score_state;   /* (score_state_size): state of the score function, copied for
                                  * every call; or NULL */
    int64_t score_state_size;    /* number of doubles in score_state */
    int64_t score_diagonal;      /* 1: the function is called by ff_arms_scored */
    int64_t randomizer, analyzer, release; /* numbers of the enumerations above */
    const double *coefficients;  /* FF_TOEPLITZ: f (K). FF_FACTORISED: the factor (K, K).
                                  * FF_BUFFERED: coefficients of the buffers */
    int64_t buffers;             /* number of buffers of FF_BUFFERED */
    ff_noise_std noise_std;      /* standard deviations of the noise in the entries of a
                                  * statistic */
    const double *noise_scale;   /* (M): factor on noise_std for each silo */
    int64_t drawn_once;          /* 1: one draw by the server stands for the sum of all silos'
                                  * noises */
    ff_radius radius;            /* the confidence radius beta */
    int64_t direct;              /* 1: the radius is direct: lambda may fall below the
                                  * regularizer, and there is a second bonus */
    double radius_count;         /* rows that one round adds to V: M, or 1 if each silo learns
                                  * alone */
    int64_t last_entry;          /* last index of the arrays below that are indexed by release;
                                  * its entries hold for all later releases */
    const double *regularizer;   /* (last_entry + 1): lambda after k releases */
    const double *radius_offset; /* (last_entry + 1): offset of the radius after k releases */
    const double *radius_lambda; /* (last_entry + 1): lambda in the logarithm of the radius */
    double tau;                  /* bound on ||theta||; direct radius only */
    const double *error_bound;   /* (last_entry + 1): error bound after k releases; direct radius
                                  * only */
    const double *floor;         /* (last_entry + 1): least eigenvalue required of V; direct
                                  * radius only */
    double sieve_growth;         /* factor on the slack of the sieve; 0: the slack is 1 */
    const double *widths;        /* (last_entry + 1): C of docs/radius.md after k releases; NULL if
                                  * silos never synchronise */
    int64_t clip;                /* 1: clip features and rewards to the bounds below */
    int64_t public_constant;     /* 1: the last entry of a statistic is a public number and gets
                                  * no noise */
    double constant;             /* value of the last feature if the code writes it; 0: an
                                  * ordinary feature */
    double reward_centre;        /* subtracted from every reward */
    double feature_bound, reward_low, reward_high; /* largest norm of the features without the
                                                    * constant one; range of rewards */
    uint64_t flips;              /* users send bits, flipped with probability flips / 2^53; 0:
                                  * no bits */
    double bit_values[2];        /* what bits 0 and 1 add to sums in place of the reward */
    double count_values[2];      /* if sums have numbers of ones: the values of bits 0 and 1 */
    int64_t levels;              /* levels of the tree */
    int64_t shuffled;            /* 1: a shuffler passes messages to the server in random order */
    /* Bits only; the first index is the level, or the release if by_release. */
    const int64_t *bit_levels, *noise_bits; /* (., 2): steps g of bias and covariance entries;
                                             * (.): noise bits b for each data point */
    const double *unit; /* (., s): value of a 1 in the sum of the messages */
    /* Local rounds: nothing of them enters a batch. All rounds after share_until are local. Up to
     * share_until, a rule or a secret coin decides. */
    int64_t share_until;       /* the last shared round; 0: all rounds are shared */
    const uint8_t *share_rule; /* (share_until): 1 if the round is shared; NULL: all are, or
                                * coins decide */
    int64_t share_coin;        /* 1: a coin decides for each user of rounds up to share_until */
    uint64_t share_threshold;  /* the round is shared if the coin's 64 bits are below it */
    int64_t own_least;         /* rule of local rounds; 1: the smaller of two bounds; 0: the
                                * silo's posterior ("belief") */
    ff_radius own_radius;      /* own_least or a sieve: radius of the bound that the silo computes
                                * from its data */
    double own_offset;         /* offset of that radius */
    double own_sieve_width;    /* the largest of these radii, if the posterior ranks the actions
                                * that pass a sieve; 0: it ranks all actions */
    ff_belief_model belief;    /* the model of the posterior */
    const double *own_ridges;  /* (K + 1, count): ridges of that model after k releases */
    double own_bonus;          /* factor on ||x||_{V^-1} in local rounds */
    /* Rewards that arrive late; the queue below holds the data points on their way. */
    const double *arrivals;    /* (arrival_count): 2^53 P(delay <= k), k = 0, 1, ..; NULL: all
                                * rewards are known at once */
    int64_t arrival_count;     /* longest possible delay plus one */
    /* Silos on their own clocks. Rounds are ticks, synchronisations are exchanges, and `released`
     * counts exchanges; `releases` is the largest number of reports of a silo. */
    const uint8_t *serves; /* (M, T): 1 if the silo serves a user in the tick; NULL: no clocks */
    const uint8_t *sends;  /* (V, M): 1 if the silo reports in the exchange; NULL: no clocks */
    int64_t exchanges;     /* V, the number of exchanges */
    /* State */
    int64_t released;             /* synchronisations so far */
    int64_t *synchronised;        /* (checkpoints): synchronisations since the previous
                                   * checkpoint */
    uint8_t *requested;           /* (T, M): 1 if the silo's trigger fired in the round; or NULL */
    uint8_t *synchronised_rounds; /* (T): 1 if the silos synchronised after the round; or NULL */
    double second_bonus;          /* gamma, the factor on ||V^-1 x||; 0 unless the radius is
                                   * direct */
    double inflation;             /* factor of the direct radius for a lambda below the
                                   * regularizer; otherwise 1 */
    ff_sieve sieve;               /* the sieve until the next synchronisation; its ranking is 1 if
                                   * the action with the largest score is chosen */
    double *inverses;             /* (M): bounds on the largest eigenvalue of V^{-1}, if silos never
                                   * synchronise and have a sieve */
    double log_inflation;         /* ln(inflation / anchor), see ff_log_inflation */
    double log_det;               /* ln det V at the last synchronisation */
    ff_choice *choice;            /* (M): last choices; lazy policy only */
    double *fixed;                /* (M, fixed_size): models of an eager policy if each silo has one
                                   * fixed set of actions (ff_fixed.h); or NULL */
    int64_t fixed_size;
    ff_bonus_cache bonus_cache;   /* cached bounds on bonuses */
    int64_t *chosen;              /* (queries of a pool): (releases + 1) << 32 | action that a
                                   * lazy policy chose; or NULL */
    double *history;              /* (M or 1, K, s): standard normals of past prefixes, which
                                   * later prefixes use, and partial sums of later prefixes
                                   * (ff_protocol.c) */
    int64_t lambda_step;          /* lambda of the last release, in eighths of the regularizer: the
                                   * guess for the next one. No result depends on it. */
    int64_t alike;                /* 1: V of the last release is a multiple of I */
    double *w, *theta;            /* (M or 1, d, d), (M or 1, d): inverse factor of V
                                   * (ff_linalg.h) and estimate */
    double *log_dets;             /* (M or 1): ln det V of each silo, if silos learn within a
                                   * batch */
    double *batch;                /* (M, s): the statistic of the current batch */
    double *sums;                 /* (M, levels, s): p-sums; raw, or with each data point rounded */
    double *nodes;                /* (M or 1, levels or buffers, s): noisy p-sums, Honaker's
                                   * estimates, or buffers */
    double *messages;             /* (M, s): messages of the current synchronisation */
    double *own_w, *own_theta;    /* (M, d, d), (M, d): W and theta for local rounds */
    double *local_w, *local_theta; /* (M, d, d), (M, d): LinUCB's model of all rounds of each silo,
                                    * for a sieve in local rounds */
    double *own_sums;             /* (M, s): the raw statistic of a silo's rounds, shared and
                                   * local */
    double *own_shared;           /* (M, s): the raw statistic of shared rounds, if local rounds
                                   * come between them; or NULL */
    double *own_rest;             /* (M, s): first a silo's contribution to the total, then the
                                   * total without it */
    double *late;                 /* (M, arrival_count, d + 1): data points on their way, features
                                   * and reward; the point of round t is in slot t modulo
                                   * arrival_count */
    int64_t *late_next;           /* (M, arrival_count): after each slot, the next slot (plus one)
                                   * whose point arrives in the same round; 0: none */
    int64_t *late_ends;           /* (M, arrival_count, 2): the first and the last slot (plus one)
                                   * that arrives in round t, at t modulo arrival_count; 0: none */
    int64_t *reported;            /* (M): number of reports of each silo with its own clock */
    double *views;                /* (M, FF_VIEW_NUMBERS): numbers of each silo's view, ff_view.h */
    double *view_w, *view_theta;  /* (M, d, d), (M, d): W and theta of each silo's view */
    int64_t *order;               /* (M): order in which the shuffler passes on messages */
    double *total;                /* (s): the released statistic, sum over all silos and batches */
    double *regret;               /* (M): regret so far */
    double *curve;                /* (M, checkpoints): regret at each checkpoint */
    int64_t *clipped;             /* (M, 2): numbers of clipped features and of clipped rewards */
    int64_t *indefinite;          /* (1): number of synchronisations at which V had to be shifted */
    int32_t *actions;             /* (M, T): chosen actions; or NULL */
    double *rewards;              /* (M, T): rewards; or NULL */
} ff_curve;

/* A run: the environment, the sizes, the curves and the scratch of all threads. */
typedef struct {
    const ff_environment *environment;
    uint64_t seed; /* seed of all random streams */
    int64_t replicate, silos, dimension, horizon; /* number of the replicate; M; d; T */
    /* If this run is a part of a larger one: its silo i is silo names[i] of the larger run (NULL:
     * i), and its rounds are those t of the larger run with t = phase modulo stride (phase 0,
     * stride 1: all). */
    const int64_t *names;
    int64_t phase, stride;
    const int64_t *checkpoints;   /* rounds in ascending order, after which regret is recorded */
    int64_t checkpoint_count;
    ff_curve *curves;             /* (curve_count) */
    int64_t curve_count;
    int64_t threads;              /* number of threads */
    double *scratch;              /* (threads, scratch_size) */
    /* Doubles: ff_fill_capacity() and ff_score_scratch() of the environment, ff_noise_capacity(d),
     * ff_trigger_scratch(d). Calling these functions in every round would take 3 % of the shortest
     * rounds with a release. */
    int64_t fill_scratch, score_scratch, noise_scratch, trigger_scratch;
    int64_t belief_scratch;       /* doubles: ff_belief_scratch() if a curve has local rounds,
                                   * else 0 */
    int64_t scratch_size;         /* number of doubles for each thread */
    int64_t *status;              /* (M): status of each silo, FF_OK or a failure */
    ff_team *team;                /* the threads of one call of ff_run_rounds, or NULL */
    ff_pace rounds, groups, reports, own; /* measured times of: rounds, rounds of groups, reports,
                                           * first posteriors of local rounds */
} ff_run;

/* The largest number of curves in a run. */
#define FF_MAX_CURVES 64

/* Number of data points that are buffered for each silo and curve before they are added to the
 * batch together. */
#define PENDING 16

/* The scratch of one thread, cut into its parts (pointers to doubles unless stated otherwise). */
typedef struct {
    void *x; /* the actions of the round, ff_fill_capacity() doubles */
    /* mean (K actions), score (score_scratch), feature (d: the chosen action's), observe (5 d),
     * normals (noise_scratch), packed (ff_packed(d) + 2 d), trigger (trigger_scratch),
     * point (s), bound (d^2 and the scratch of ff_inverse_norm), belief (belief_scratch) */
    double *mean, *score, *feature, *observe, *normals, *packed, *trigger, *point, *bound, *belief;
    double *pending;   /* (curve_count, PENDING, d + 1) */
    ff_whitened known; /* x and W x of the chosen action if the bonus cache computed them; in
                        * `observe`, where ff_observe_whitened reads W x */
    uint32_t *random;  /* words of random bits for rounding */
} ff_parts;

/* The buffered data points of one curve and silo. */
typedef struct {
    double *points; /* (PENDING, d + 1): features, then the reward */
    int64_t count;  /* number of points in the buffer */
} ff_pending;

/* Return pointers to the parts of the scratch of one thread. */
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
    p.packed = p.normals + run->noise_scratch;
    p.trigger = p.packed + ff_packed(d) + 2 * d;
    p.point = p.trigger + run->trigger_scratch;
    p.bound = p.point + ff_statistic(d);
    p.belief = p.bound + d * d + ff_inverse_norm_scratch(d);
    p.pending = p.belief + run->belief_scratch;
    p.random = (uint32_t *)(p.pending + run->curve_count * PENDING * (d + 1) + 8);
    return p;
}

/* Return the number of doubles of scratch that one thread needs. Add ff_scored_scratch() if a curve
 * has a user's score function, and belief_scratch if a curve has local rounds. levels: the largest
 * number of tree levels of any curve that sends bits. */
FF_INLINE int64_t ff_run_scratch(int64_t actions, int64_t d, int64_t levels, int64_t curves)
{
    return ff_fill_capacity(actions, d) + actions + ff_score_scratch(d, actions) + 6 * d +
           ff_noise_capacity(d) + ff_packed(d) + 2 * d + ff_trigger_scratch(d) + ff_statistic(d) +
           d * d + ff_inverse_norm_scratch(d) +
           curves * PENDING * (d + 1) + 8 +
           ff_random_u32_capacity(levels * ff_statistic(d)) / 2 + 16;
}

/* Return the index for the present release into arrays indexed by release. */
FF_INLINE int64_t ff_entry(const ff_curve *c)
{
    return c->released < c->last_entry ? c->released : c->last_entry;
}

/* Return the round after which the k-th synchronisation is due under a fixed schedule; 0 for
 * k = 0. */
FF_INLINE int64_t ff_end_of(const ff_curve *c, int64_t k)
{
    return c->ends && k ? c->ends[k - 1] : k * c->batch_size;
}

/* Return the round after which the next synchronisation is due, or INT64_MAX if there is none. */
FF_INLINE int64_t ff_next_end(const ff_curve *c)
{
    const int64_t count = c->sends ? c->exchanges : c->releases;
    return c->released < count ? ff_end_of(c, c->released + 1) : INT64_MAX;
}

/* Return 1 if a silo sends a message at the k-th synchronisation. */
FF_INLINE int ff_sends(const ff_run *run, const ff_curve *c, int64_t silo, int64_t k)
{
    return !c->sends || c->sends[(k - 1) * run->silos + silo];
}

/* Return 1 if silos learn within a batch. In batches of one round they need not: the next release
 * replaces what they would learn before they act on it. */
FF_INLINE int ff_learns(const ff_curve *c)
{
    return !c->lazy && (c->trigger.kind || c->share_until ||
                        ff_next_end(c) != ff_end_of(c, c->released) + 1);
}

/* Return the index of the W and theta that a silo decides with: its own if silos learn within a
 * batch, otherwise 0, the shared one. */
FF_INLINE int64_t ff_slot(const ff_curve *c, int64_t silo) { return ff_learns(c) ? silo : 0; }

/* Return 1 if local rounds come between shared ones, not only after them. */
FF_INLINE int ff_mixed(const ff_curve *c) { return c->share_rule != NULL || c->share_coin; }

/* Return the number of a silo in the larger run, if this run is a part of one (see ff_run). Random
 * streams are named by the numbers of the larger run. */
FF_INLINE int64_t ff_name_of(const ff_run *run, int64_t silo)
{
    return run->names ? run->names[silo] : silo;
}
/* Return the number of a round in the larger run. */
FF_INLINE int64_t ff_time_of(const ff_run *run, int64_t round)
{
    return (run->phase ? run->phase : run->stride) + (round - 1) * run->stride;
}
/* Return the number of a tree node in the larger run. */
FF_INLINE int64_t ff_key_of(const ff_run *run, int64_t node)
{
    return (node - 1) * run->stride + run->phase + 1;
}

/* Open the random stream of a purpose for one silo and round. */
FF_INLINE ff_stream ff_stream_of(const ff_run *run, uint64_t purpose, int64_t silo, int64_t round)
{
    return ff_stream_open(run->seed, purpose, (uint32_t)run->replicate,
                          (uint32_t)ff_name_of(run, silo), (uint32_t)ff_time_of(run, round));
}

#endif
