/* A group of silos that are offered the same arms (action a is e_a) and learn from their own
 * rewards: a round of all of them is computed at once, one silo in each lane of a vector. The
 * results are those of ff_fixed.h, bit by bit. */
#ifndef FF_GROUP_H
#define FF_GROUP_H

#include "ff_base.h"
#include "ff_estimate.h"
#include "ff_scores.h"

/* Number of silos in a group. */
#define FF_GROUP 16

/* A group. Arrays are by silo, with FF_GROUP entries, or (K, FF_GROUP) where K is named. */
typedef struct {
    /* What all silos share until the next synchronisation. */
    int64_t arms;                     /* K */
    ff_radius radius;                 /* the confidence radius, with determinant */
    double offset, inflation, log_inflation, gamma; /* see ff_determinant_radius; second bonus */
    ff_sieve sieve;                   /* as in ff_fixed_choose; its ranking is 1 without a sieve */
    double growth;                    /* factor on the slack of silos that learn alone; 0: the slack
                                       * is that of `sieve` */
    /* The silos. */
    double *mean, *root, *width;      /* (K): estimates, 1 / sqrt(V_aa) and 1 / V_aa */
    const double *expected[FF_GROUP]; /* (K): expected rewards */
    double best[FF_GROUP] FF_ALIGNED; /* the largest expected reward */
    double log_det[FF_GROUP] FF_ALIGNED;      /* ln of the largest entry of V so far */
    double root_inverse[FF_GROUP] FF_ALIGNED; /* root of the bound on the eigenvalues of V^-1 */
    double regret[FF_GROUP] FF_ALIGNED;       /* regret so far */
    /* Of the last round. */
    double chosen[FF_GROUP] FF_ALIGNED, reward[FF_GROUP] FF_ALIGNED; /* action; drawn reward */
} ff_group;

/* Simulate one round of all silos: they choose, get rewards of 0 or 1, and learn. uniform: a number
 * in (0, 1) for each silo, below which an expected reward gives the reward 1. learned: (2,
 * FF_GROUP), what silos learn from the rewards 0 and 1, or NULL: the reward. cap: C of the round
 * (ff_row_width), if `growth` is not 0. */
void ff_group_round(ff_group *g, const double *uniform, const double *learned, double cap);

#endif
