/* When a silo asks for a synchronisation: the determinant of what it knows has grown enough
 * (dubey-pentland-2020, Algorithm 1; the private rule: zhou-chowdhury-2024, Appendix D.2). */
#ifndef FF_TRIGGER_H
#define FF_TRIGGER_H

#include "ff_linalg.h"
#include "ff_aggregation.h"

enum { FF_FIXED = 0, FF_DETERMINANT = 1, FF_PRIVATE_DETERMINANT = 2 };

/* Up to this dimension FF_DETERMINANT takes the determinant anew, and only in rounds in which it may
 * fire; above it, every data point updates a factor, which is less than a few determinants. */
#define FF_RECOMPUTE_MAX 24

/* Until when the rule cannot fire: as long as `mass`, the sum of ||x||^2 since the silo's last look
 * at its determinant, is below `most_mass`, n below `next`, and what the determinant has grown by
 * at most, base + slope mass, below threshold / n. Above FF_RECOMPUTE_MAX, base is the growth itself. */
typedef struct {
    double base, slope, mass, most_mass, next;
} ff_skip_bound;

/* Fires in a round, n rounds after the last synchronisation and this one counted, when
 *   FF_DETERMINANT:          ln det(S + Q + extra I) - ln det S >= threshold / n
 *   FF_PRIVATE_DETERMINANT:  ln det(S + Q + N) - ln det S > threshold / n
 * S: what is synchronised, Q: the silo's batch, N: the noise of prefix n in a tree of single
 * rounds, anew after every synchronisation. */
typedef struct {
    /* plan */
    int64_t kind;
    int64_t delay; /* rounds that are still played after the one in which it fires */
    double threshold, extra;
    ff_noise_std std; /* of N's nodes; no bias part */
    int64_t levels;   /* of the tree of single rounds */
    /* state */
    double before;  /* ln det S */
    double ridge;   /* what was added to the diagonal of the total to make S */
    int64_t last;   /* round of the last synchronisation */
    int64_t due;    /* round at whose end the next one is; 0: nobody has asked */
    ff_skip_bound *skip_bound;  /* (M); FF_DETERMINANT only */
    double *aggregate_factor;   /* (M, d, d): factor of S + Q + extra I; FF_DETERMINANT above FF_RECOMPUTE_MAX only */
    double *nodes;  /* (M, levels, s): standard normals of N's nodes; private rule only */
    int64_t *fired; /* (M): first round in which it fired, or the silo failed, since the chunk
                     * began; or 0 */
    double *snapshot;  /* (M, ff_play_saved): the silos as they were when it began */
} ff_trigger;

/* Doubles of scratch, for what takes it. */
int64_t ff_trigger_scratch(int64_t d);

/* A synchronisation has just made S = total + ridge I, of factor w. */
void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                      int64_t silos, int64_t d, double *scratch);

/* The silo's features of a round; whether the rule cannot fire in it, so that nobody need look. */
int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d);

/* Whether the rule fires. `batch`: the silo's statistic, this round included; `noise`: its stream of
 * this round. normals: ff_noise_capacity(d). */
int ff_trigger_fires(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                   const double *total, const double *batch, const ff_stream *noise, int64_t d,
                   double *normals, double *scratch);

#endif
