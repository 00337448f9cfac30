/* Whole stretches of rounds of experts' systems: what the server decides from sums of losses, what
 * that costs, and Frank-Wolfe steps on gradients.
 *
 * sums (n, d) are what every expert loses at all clients in each of n stretches of rounds, in whole
 * units; before stretch i messages are exchanged where asks[i] is 1. `lost` (d) is what every expert
 * had lost before the first stretch, and on return before the last: what the server knew then, if
 * the last stretch begins with an exchange. All bits are those of the steps in Python. */
#ifndef FF_EXPERTS_H
#define FF_EXPERTS_H

#include "ff_base.h"
#include "ff_losses.h"

/* Sum of n numbers in the order of NumPy's sum: pairwise, eight at a time. */
double ff_pairwise(const double *a, int64_t n);

/* Follow the leader: chosen[i] is the expert of stretch i; returns how often it changes. */
int64_t ff_follow(const int64_t *sums, const uint8_t *asks, int64_t n, int64_t d, int64_t *lost,
                  int64_t *expert, int64_t *chosen);

/* What Hedge takes the exponentials of after each exchange: rate times what every expert has lost
 * more than the best, by client; rows (exchanges, d). */
void ff_hedge(const int64_t *sums, const uint8_t *asks, int64_t n, int64_t d, int64_t *lost,
              double unit, double silos, double rate, double *rows);

/* Every row (n, d) over its sum. */
void ff_to_weights(int64_t n, int64_t d, double *rows);

/* The comparisons of Fed-SVT between two switches. */
typedef struct {
    uint64_t seed;
    int64_t replicate;
    int64_t expert;   /* the one that is played */
    int64_t release;  /* exchanges so far */
    int64_t spent;    /* 1: no switch is left, and nothing is compared */
    double unit;
    double before;    /* what the expert had lost when it was chosen */
    double limit;     /* the threshold with its noise */
    double query_scale;
} ff_sparse;

/* Returns the first stretch from `from` whose exchange finds a query above the threshold (`lost` is
 * then what was lost before it), or n. `decided`: the exchange of stretch `from` has been held. */
int64_t ff_sparse_run(ff_sparse *s, const int64_t *sums, const uint8_t *asks, int64_t from,
                      int64_t decided, int64_t n, int64_t d, int64_t *lost, int64_t *chosen);

/* Group regret as it adds up. */
typedef struct {
    double lost;             /* what the decisions have lost */
    double *total;           /* (d): what every expert has, in settled rounds */
    double *open;            /* (d): the same of rounds that are not settled yet */
    double *products;        /* (d): scratch */
    int64_t rounds;          /* how many these are */
    int64_t at;              /* checkpoints reached */
    const int64_t *checkpoints;
    int64_t count;
    double *regret;          /* (count) */
} ff_regret;

/* Stretches edges[i] + 1 .. edges[i + 1] in which decision which[i] was played: an expert, or where
 * `weights` is not NULL, one of its rows (., d). They are settled where settles[i] is 1 and at
 * checkpoints. `gaps`: where not NULL, what decision which[i] loses more than the best in expectation,
 * by client and round; sums are then not read. */
void ff_regret_add(ff_regret *r, const int64_t *sums, const int64_t *edges,
                   const uint8_t *settles, const int64_t *which, const double *weights,
                   const double *gaps, int64_t silos, double unit, int64_t n, int64_t d);

/* A leaf of a phase's trees; see frank_wolfe.py. */
typedef struct {
    int64_t tree, depth, start, stop;
    double step, scale;
} ff_leaf;

enum { FF_NOISE_NONE = 0, FF_NOISE_SILOS = 1, FF_NOISE_SERVER = 2 };

/* A phase of Frank-Wolfe steps on the gradients of all clients. */
typedef struct {
    const ff_losses *losses;
    uint64_t seed;
    int64_t replicate;
    int64_t used;            /* rounds of each client */
    const int64_t *rounds;   /* (m, used) */
    int64_t linear;
    int64_t noise_by;
    double low, high, smoothness;
    double *v;               /* (depths, m, d): estimates on the path to the leaf */
    double *points;          /* (depths, d): where they were made */
    double *sums;            /* (m, d) */
    double *drawn;           /* ff_laplace_capacity(d) */
    double *total;           /* (d) */
} ff_walk;

/* Exchanges release, release + 1, ... for leaves[0..count-1]: x (d) is moved by each, and least
 * (count) holds the experts that it is moved to. 0, or a negative status. */
int64_t ff_walk_leaves(const ff_walk *w, const ff_leaf *leaves, int64_t count, int64_t release,
                       int64_t threads, const ff_losses_scratch *scratch, double *x,
                       int64_t *least);

#endif
