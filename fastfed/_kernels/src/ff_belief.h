/* What a silo believes of its own theta in own rounds (docs/own-rounds.md): other silos' released
 * sums as a prior, of a spread that its own rewards choose, and its own raw sums. */
#ifndef FF_BELIEF_H
#define FF_BELIEF_H

#include "ff_aggregation.h"
#include "ff_base.h"

/* The most deviations Delta on the grid. */
#define FF_MAX_GRID 8

typedef struct {
    int64_t count;        /* deviations on the grid */
    double spread[FF_MAX_GRID]; /* Delta^2 (1 + 1/(M - 1)) */
    double ridge[FF_MAX_GRID];  /* sigma^2, raised so that Mat is positive definite */
    double scale2, prior; /* R^2, and the precision that P has at least */
} ff_belief_model;

/* Doubles of scratch for ff_belief. */
FF_INLINE int64_t ff_belief_scratch(int64_t d)
{
    return 3 * d * d + 2 * (d * (d + 1) / 2) + FF_MAX_GRID * (ff_statistic(d) + 1) + 4 * d;
}

/* W and theta of V = R^2 sum_g weight_g P_g + G and b = R^2 sum_g weight_g q_g + u, where `rest`
 * (s) holds the others' sums as released and `own` (s) the silo's raw ones. Precisions are in units
 * of 1 / R^2 throughout, so that a data point is a rank-one update of V by x x'. weights: count, or
 * NULL. Returns 0, or 1 where a matrix is not finite. */
int ff_belief(const ff_belief_model *model, const double *rest, const double *own, int64_t d,
              double *w, double *theta, double *weights, double *scratch);

#endif
