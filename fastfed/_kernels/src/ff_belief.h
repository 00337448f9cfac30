/* The posterior ("belief") of a silo about its theta, for local rounds (docs/own-rounds.md). Its
 * prior is fitted to the sums that other silos released; how much the prior counts depends on how
 * well it predicts the silo's own rewards. The silo's raw sums are the data. */
#ifndef FF_BELIEF_H
#define FF_BELIEF_H

#include "ff_aggregation.h"
#include "ff_base.h"

/* The largest number of deviations Delta on the grid. */
#define FF_MAX_GRID 8

/* The model of the posterior. A silo's theta differs from the other silos' theta by a normal vector
 * of standard deviation Delta in each entry; Delta is on a grid. */
typedef struct {
    int64_t count;              /* number of deviations on the grid */
    double spread[FF_MAX_GRID]; /* Delta^2 (1 + 1/(M - 1)) */
    double ridge[FF_MAX_GRID];  /* sigma^2, raised so that Mat (see ff_belief.c) is positive
                                 * definite */
    double scale2, prior;       /* R^2; the least precision of the prior */
} ff_belief_model;

/* Return the number of doubles of scratch that ff_belief needs. */
FF_INLINE int64_t ff_belief_scratch(int64_t d)
{
    return 3 * d * d + 2 * (d * (d + 1) / 2) + FF_MAX_GRID * (ff_statistic(d) + 1) + 4 * d;
}

/* Compute the posterior: W (d, d) and theta (d) of V = R^2 sum_g weight_g P_g + G and b = R^2 sum_g
 * weight_g q_g + u. `others` (s) is the released sums of the other silos, `local` (s) the silo's
 * raw sums u and G. Precisions are in units of 1 / R^2, so that a data point x changes V by x x'.
 * weights: receives the weights of the deviations (count), or NULL. Returns 0, or 1 if a matrix is
 * not finite. */
int ff_belief(const ff_belief_model *model, const double *others, const double *local, int64_t d,
              double *w, double *theta, double *weights, double *scratch);

#endif
