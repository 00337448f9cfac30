/* The trigger of a silo: it requests a synchronisation once the determinant of the silo's V has
 * grown enough (dubey-pentland-2020, Algorithm 1; the private rule: zhou-chowdhury-2024, Appendix
 * D.2). */
#ifndef FF_TRIGGER_H
#define FF_TRIGGER_H

#include "ff_aggregation.h"
#include "ff_linalg.h"

/* Kinds of triggers; FF_FIXED: none, a fixed schedule. */
enum { FF_FIXED = 0, FF_DETERMINANT = 1, FF_PRIVATE_DETERMINANT = 2 };

/* Up to this dimension FF_DETERMINANT recomputes the determinant, but only in rounds in which it
 * may fire. Above it, every data point updates a factor, which costs less than a few
 * determinants. */
#define FF_RECOMPUTE_MAX 24

/* A bound on the growth of the determinant, so that the determinant need not be computed in every
 * round. The rule cannot fire in round n of a batch as long as
 *   mass < most_mass, n < next, and base + slope mass < threshold / n,
 * where base + slope mass bounds the growth. Above FF_RECOMPUTE_MAX, base is the growth itself. */
typedef struct {
    /* mass: sum of ||x||^2 since the last determinant; most_mass: its largest value for which the
     * bound is valid; next: the round (of the batch) for which it is no longer valid */
    double base, slope, mass, most_mass, next;
} ff_skip_bound;

/* The bound of the private rule, for all silos. In round n of a batch with sum ||x||^2 = mass,
 *   tr(S^{-1} V) <= base + slope mass + noise (nodes of prefix n)
 *                   + rounding (n + d + 20) (size + mass).
 * The last term covers rounding error. See ff_trigger.c. */
typedef struct {
    double base, slope, noise, rounding, size;
} ff_trace_bound;

/* A trigger, with n the number of rounds since the last synchronisation, this one included. It
 * fires if
 *   FF_DETERMINANT:          ln det(S + Q + extra I) - ln det S >= threshold / n
 *   FF_PRIVATE_DETERMINANT:  ln det(S + Q + N) - ln det S > threshold / n
 * Here S is V after the last synchronisation, Q the covariance of the silo's batch, and N the noise
 * of prefix n in a tree over single rounds, redrawn after every synchronisation. */
typedef struct {
    /* Plan */
    int64_t kind;            /* FF_DETERMINANT or FF_PRIVATE_DETERMINANT */
    int64_t delay;           /* rounds between the one in which it fires and the synchronisation */
    double threshold, extra; /* see above */
    ff_noise_std std;        /* of the noise of tree nodes in N; the bias part is not used */
    int64_t levels;          /* levels of the tree over single rounds */
    /* State */
    double before;             /* ln det S */
    double ridge;              /* multiple of I that was added to the total to give S */
    int64_t last;              /* round of the last synchronisation */
    int64_t due;               /* round after which the next synchronisation is due; 0: none is
                                * requested */
    ff_skip_bound *skip_bound; /* (M); FF_DETERMINANT only */
    double *aggregate_factor;  /* (M, d, d): inverse factor of S + Q + extra I; FF_DETERMINANT
                                * above FF_RECOMPUTE_MAX only */
    /* Private rule only */
    double *nodes;               /* (M, levels, s): standard normals of the nodes of N */
    int64_t *node_rounds;        /* (M, levels): the round in which each stored node ends, or 0;
                                  * a node is drawn when it is first needed */
    double *inverse;             /* (s): S^{-1}, packed, from entry d on; entries off the
                                  * diagonal are doubled */
    double *mass;                /* (M): sum of ||x||^2 since the last synchronisation */
    ff_trace_bound *trace_bound; /* (1): the bound for all silos */
    /* Both rules */
    int64_t *fired;   /* (M): first round of the present chunk in which the trigger fired or the
                       * silo failed; or 0 */
    double *snapshot; /* (M, ff_snapshot_size): the silos at the beginning of the chunk */
} ff_trigger;

/* Return the number of doubles of scratch that the functions below need. */
int64_t ff_trigger_scratch(int64_t d);

/* Restart the trigger after a synchronisation. total: the statistic from which S = covariance +
 * ridge I was computed; w: the inverse factor of S. */
void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                        int64_t silos, int64_t d, double *scratch);

/* Add the silo's features x of a round to the bound. rounds: rounds since the last synchronisation,
 * this one included. Returns 1 if the trigger cannot fire in this round. */
int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d);

/* Return 1 if the trigger fires. batch: the silo's statistic including this round. noise: the
 * silo's random stream of this round; its index changes by `stride` from round to round. normals:
 * ff_noise_capacity(d) doubles of scratch. */
int ff_trigger_fires(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, const ff_stream *noise,
                     int64_t stride, int64_t d, double *normals, double *scratch);

#endif
