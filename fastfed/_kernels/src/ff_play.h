/* The compiled driver: plays rounds of one replicate of one or several curves, synchronisations
 * included, without Python. It calls the same leaf functions, in the same order, as the step
 * driver (simulation/step.py), so the two agree bit for bit. */
#ifndef FF_PLAY_H
#define FF_PLAY_H

#include "ff_bits.h"
#include "ff_clock.h"
#include "ff_contend.h"
#include "ff_environment.h"
#include "ff_linalg.h"
#include "ff_protocol.h"
#include "ff_release.h"
#include "ff_scores.h"
#include "ff_widths.h"

/* What a silo sends at a synchronisation (the randomizer), and what the server makes of it. */
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

/* How the noise of a prefix is made. */
enum { FF_TREE_RELEASE = 0, FF_HONAKER = 1, FF_TOEPLITZ = 2, FF_NESTED = 3 };

/* What a silo chose from rows that the environment owns: until the next synchronisation it chooses
 * the same whenever it meets the same rows. */
typedef struct {
    const void *x;
    int64_t released, action;
} ff_choice;

/* One curve: a plan, and the state it has reached. Arrays belong to the caller. */
typedef struct {
    /* plan */
    int64_t batch_size; /* rounds between synchronisations; 0: never, 1 with a clock */
    ff_clock clock;     /* when to synchronise, where the data decide */
    int64_t lazy;       /* 1: actions from what was released only (Alg. 8) */
    int64_t random;     /* 1: a uniformly random action each round */
    ff_score score;     /* a user's own, or NULL: by upper confidence */
    const double *score_state; /* (score_state_size) copied for every call, or NULL */
    int64_t score_state_size;
    int64_t randomizer, analyzer, release;
    const double *coefficients; /* f of the Toeplitz factor */
    ff_noise_std noise_std;
    const double *noise_scale; /* (M): of each silo's noise, in units of noise_std */
    ff_radius radius;
    int64_t direct;                /* 1: lambda may fall, and there is a second bonus */
    double radius_count;           /* rows of V a round adds: M, or 1 when a silo is alone */
    int64_t last_entry;            /* of the arrays by release; it stands for all later ones */
    const double *regularizer;     /* lambda after k releases, k = 0..releases */
    const double *radius_offset;   /* after k releases */
    const double *radius_lambda;   /* after k releases */
    const double *error_bound;     /* after k releases; direct radius only */
    const double *floor;           /* least eigenvalue of V asked for; direct radius only */
    int64_t clip;
    double feature_bound, reward_low, reward_high;
    int64_t levels;
    int64_t shuffled;           /* 1: messages reach the server in random order */
    const int64_t *bit_levels;  /* (levels, 2): g of bias and covariance entries; bits only */
    const int64_t *noise_bits;  /* (levels): b, the noise bits of a data point; bits only */
    const double *unit;         /* (levels, s): what a 1 in a summed message stands for; bits only */
    /* state */
    int64_t released;       /* synchronisations so far */
    int64_t *synchronised;  /* (checkpoints): synchronisations since the one before */
    uint8_t *asked;         /* (T, M): whose trigger fired in which round; or NULL */
    uint8_t *met;           /* (T): rounds at whose end all synchronised; or NULL */
    double second_bonus;    /* gamma: of the direct radius, else 0 */
    double inflation;       /* of the direct radius */
    double log_inflation;   /* see ff_log_inflation */
    double log_det;         /* ln det V of what is synchronised */
    ff_choice *choice;      /* (M): of lazy play, what was chosen last and from what */
    ff_contenders *contend; /* (M): of eager play, over rows that come again */
    ff_widths widths;       /* of the actions of a pool */
    double *history;        /* (M or 1, K, s): standard normals of a Toeplitz release */
    double *w, *theta;      /* (M or 1, d, d), (M or 1, d) */
    double *batch;          /* (M, s): this batch's statistic */
    double *sums;           /* (M, levels, s): p-sums, raw or rounded point by point */
    double *nodes;          /* (M or 1, levels, s): noisy p-sums, or Honaker's estimates */
    double *messages;       /* (M, s) */
    int64_t *order;         /* (M): the order in which the shuffler passes messages on */
    double *total;          /* (s): what is synchronised */
    double *regret;         /* (M): so far */
    double *curve;          /* (M, checkpoints) */
    int64_t *clipped;       /* (M, 2): features, rewards */
    int64_t *indefinite;    /* (1): synchronisations whose V had to be shifted */
    int32_t *actions;       /* (M, T) or NULL */
    double *rewards;        /* (M, T) or NULL */
} ff_curve;

typedef struct {
    const ff_environment *environment;
    uint64_t seed;
    int64_t replicate, silos, dimension, horizon;
    /* Where this pass is a part of a larger play: silo i is silo names[i] there (NULL: i), and its
     * rounds are those t = phase modulo stride (0 and 1: all). */
    const int64_t *names;
    int64_t phase, stride;
    const int64_t *checkpoints; /* ascending rounds */
    int64_t checkpoint_count;
    ff_curve *curves;
    int64_t curve_count;
    int64_t threads;
    double *scratch; /* threads x ff_play_scratch() */
    int64_t scratch_size;
    int64_t *status; /* (M) */
} ff_pass;

/* The most curves of a pass. */
#define FF_MOST_CURVES 64

/* Doubles of scratch one thread needs, and ff_scored_scratch() at its end where a curve has scores
 * of its user; levels: the most of any curve that sends bits. */
int64_t ff_play_scratch(int64_t actions, int64_t dimension, int64_t levels, int64_t curves);

/* Doubles of one silo that a clock keeps to play a chunk again. */
int64_t ff_play_saved(int64_t dimension);

/* W and theta before the first round. */
int64_t ff_begin(ff_pass *pass);

/* Play rounds first..last (1-based, inclusive). Returns FF_OK or the first silo's status. */
int64_t ff_play(ff_pass *pass, int64_t first, int64_t last);

#endif
