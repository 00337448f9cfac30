/* The trigger of a silo: it requests a synchronisation once the determinant of its V has grown
 * enough (dubey-pentland-2020, Algorithm 1; the private rule: zhou-chowdhury-2024, Appendix D.2). */
#ifndef FF_TRIGGER_H
#define FF_TRIGGER_H

#include "ff_aggregation.h"
#include "ff_linalg.h"

enum { FF_FIXED = 0, FF_DETERMINANT = 1, FF_PRIVATE_DETERMINANT = 2 };

/* Up to this dimension FF_DETERMINANT recomputes the determinant, and only in rounds in which it
 * may fire; above it, every data point updates a factor, which costs less than a few determinants. */
#define FF_RECOMPUTE_MAX 24

/* Bound on the growth of the determinant, so that it need not be computed in every round. The rule
 * cannot fire as long as `mass`, the sum of ||x||^2 since the last determinant, is below
 * `most_mass`, n is below `next`, and the largest possible growth, base + slope mass, is below
 * threshold / n. Above FF_RECOMPUTE_MAX, base is the growth itself. */
typedef struct {
    double base, slope, mass, most_mass, next;
} ff_skip_bound;

/* The same of the private rule, for all silos: in round n of a batch whose ||x||^2 sum up to `mass`,
 * tr(S^{-1} V) is at most base + slope mass + noise times the nodes of prefix n, and rounding adds
 * rounding (n + d) (size + mass). See ff_trigger.c. */
typedef struct {
    double base, slope, noise, rounding, size;
} ff_trace_bound;

/* Fires in a round, n rounds after the last synchronisation and this one counted, when
 *   FF_DETERMINANT:          ln det(S + Q + extra I) - ln det S >= threshold / n
 *   FF_PRIVATE_DETERMINANT:  ln det(S + Q + N) - ln det S > threshold / n
 * S: what is synchronised, Q: the silo's batch, N: the noise of prefix n in a tree of single
 * rounds, anew after every synchronisation. */
typedef struct {
    /* plan */
    int64_t kind;
    int64_t delay; /* rounds between the one in which it fires and the synchronisation */
    double threshold, extra;
    ff_noise_std std; /* of N's nodes; no bias part */
    int64_t levels;   /* of the tree of single rounds */
    /* state */
    double before;  /* ln det S */
    double ridge;   /* what was added to the diagonal of the total to make S */
    int64_t last;   /* round of the last synchronisation */
    int64_t due;    /* round at whose end the next one is; 0: none is requested */
    ff_skip_bound *skip_bound; /* (M); FF_DETERMINANT only */
    double *aggregate_factor;  /* (M, d, d): factor of S + Q + extra I; FF_DETERMINANT above
                                * FF_RECOMPUTE_MAX only */
    /* Private rule only. */
    double *nodes;        /* (M, levels, s): standard normals of N's nodes */
    int64_t *node_rounds; /* (M, levels): the round that each is of, or 0; one is drawn when it is
                           * first needed */
    double *inverse;      /* (s): S^{-1} from its d-th entry on, off the diagonal twice */
    double *mass;         /* (M): the sum of ||x||^2 since the last synchronisation */
    ff_trace_bound *trace_bound; /* (1) */
    /* Both. */
    int64_t *fired; /* (M): first round in which it fired, or the silo failed, since the chunk
                     * began; or 0 */
    double *snapshot; /* (M, ff_snapshot_size): the silos as they were when it began */
} ff_trigger;

/* Doubles of scratch. */
int64_t ff_trigger_scratch(int64_t d);

/* Starts over after a synchronisation that made S = total + ridge I, of factor w. */
void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                        int64_t silos, int64_t d, double *scratch);

/* Accounts for the silo's features x of a round. Returns 1 if the rule cannot fire in it. */
int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d);

/* Returns 1 if the rule fires. batch: the silo's statistic, this round included; noise: its random
 * stream of this round, whose indices are `stride` apart from round to round; normals:
 * ff_noise_capacity(d). */
int ff_trigger_fires(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, const ff_stream *noise,
                     int64_t stride, int64_t d, double *normals, double *scratch);

#endif
