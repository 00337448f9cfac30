/* Segments of rounds of experts' systems: what the server decides from sums of losses, what the
 * decisions cost, and Frank-Wolfe steps on gradients.
 *
 * sums (n, d) are the losses of every expert, added over all clients and the rounds of each of n
 * segments, in whole units. Before segment i messages are exchanged if exchanges[i] is 1. `lost`
 * (d) is what every expert lost before the first segment, and on return what it lost before the
 * last one (what the server knows if the last segment begins with an exchange). All results equal
 * those of the steps in Python bit for bit. */
#ifndef FF_EXPERTS_H
#define FF_EXPERTS_H

#include "ff_base.h"
#include "ff_losses.h"

/* In a loop: compute one entry after the other. Reading a table by vectors of indices is slower. */
#if defined(__GNUC__)
#define FF_ONE_BY_ONE __asm__ volatile("")
#else
#define FF_ONE_BY_ONE
#endif

/* Return the sum of n numbers in the order of NumPy's sum: pairwise, eight at a time. */
double ff_pairwise(const double *a, int64_t n);

/* Follow the leader. chosen[i] receives the expert of segment i. *expert: the expert before the
 * first segment, and on return the expert of the last segment. Returns the number of changes. */
int64_t ff_follow(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d,
                  int64_t *lost, int64_t *expert, int64_t *chosen);

/* Compute the exponents of Hedge after each exchange into rows (exchanges, d): for every expert,
 * rate times the amount by which its loss so far, averaged over the clients, exceeds that of the
 * best expert. */
void ff_hedge(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d, int64_t *lost,
              double unit, double silos, double rate, double *rows);

/* Compute exponents[j] for j < n, for a loss of first + j units more than the best expert's. */
void ff_hedge_exponents(int64_t first, int64_t n, double unit, double silos, double rate,
                        double *exponents);

/* Return an upper bound on any expert's loss less that of the best expert, in units, at the start
 * of every segment. */
int64_t ff_hedge_spread(const int64_t *sums, int64_t n, int64_t d, const int64_t *lost);

/* Compute the weights of Hedge after each exchange into rows (exchanges, d). table[j] is the
 * weight, before rows are divided by their sums, of an expert that has lost j units more than the
 * best, for j up to ff_hedge_spread. */
void ff_hedge_weights(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d,
                      int64_t *lost, const double *table, double *rows);

/* Divide every row (n, d) by its sum. */
void ff_to_weights(int64_t n, int64_t d, double *rows);

/* Fed-SVT between two changes of the expert: the comparisons of the sparse vector technique
 * (SVT). */
typedef struct {
    uint64_t seed;
    int64_t replicate;
    int64_t expert;     /* the present expert */
    int64_t release;    /* number of exchanges so far */
    int64_t spent;      /* 1: no switch is left, so nothing is compared */
    double unit;        /* value of one unit of loss */
    double before;      /* loss of the expert when it was chosen */
    double limit;       /* the threshold with its noise */
    double query_scale; /* scale of the Laplace noise of a query */
} ff_sparse;

/* Return the first segment from `from` on at whose exchange a query exceeds the threshold (`lost`
 * then holds the losses before that segment), or n. decided: 1 if the exchange of segment `from`
 * has already taken place. */
int64_t ff_sparse_run(ff_sparse *s, const int64_t *sums, const uint8_t *exchanges, int64_t from,
                      int64_t decided, int64_t n, int64_t d, int64_t *lost, int64_t *chosen);

/* Number of segments that are computed together. */
#define FF_SEGMENTS_TOGETHER 32

/* Sums for group regret. */
typedef struct {
    double lost;                /* loss of the decisions so far */
    double *total;              /* (d): loss of every expert in settled rounds */
    double *open;               /* (d): loss of every expert in rounds that are not settled yet */
    int64_t *counts;            /* (d): scratch */
    double *products;           /* (FF_SEGMENTS_TOGETHER, d): scratch */
    int64_t rounds;             /* number of rounds that are not settled */
    int64_t at;                 /* number of checkpoints reached */
    const int64_t *checkpoints; /* (count): rounds in ascending order */
    int64_t count;              /* number of checkpoints */
    double *regret;             /* (count): group regret at each checkpoint */
} ff_regret;

/* Add segments edges[i] + 1 .. edges[i + 1], with decision decisions[i]: an expert, or a row of
 * `weights` (., d) if that is not NULL. Rounds are settled (their losses are added to the sums) if
 * settles[i] is 1, and at checkpoints. gaps: if not NULL, gaps[i] is the expected loss of decision
 * i for each client and round, less that of the best; sums are then not read. */
void ff_regret_add(ff_regret *r, const int64_t *sums, const int64_t *edges,
                   const uint8_t *settles, const int64_t *decisions, const double *weights,
                   const double *gaps, int64_t silos, double unit, int64_t n, int64_t d);

/* A leaf of the trees of a phase; see frank_wolfe.py. */
typedef struct {
    int64_t tree, depth, start, stop; /* number of the tree, which is its depth; depth of the
                                       * leaf; its rounds are start..stop - 1 of the phase */
    double step, scale; /* step length; scale of the Laplace noise */
} ff_leaf;

/* Who adds noise to scores. */
enum { FF_NOISE_NONE = 0, FF_NOISE_SILOS = 1, FF_NOISE_SERVER = 2 };

/* A phase of Frank-Wolfe steps on the gradients of all clients. */
typedef struct {
    const ff_losses *losses;
    uint64_t seed;
    int64_t replicate;
    int64_t used;                 /* number of rounds that each client uses */
    const int64_t *rounds;        /* (m, used) */
    int64_t linear;               /* 1: gradients do not depend on x, so leaves of depth > 0
                                   * reuse the estimate */
    int64_t noise_by;             /* FF_NOISE_* */
    double low, high, smoothness; /* bounds on gradients; their Lipschitz constant */
    double *v;                    /* (depths, m, d): gradient estimates on the path to the leaf */
    double *points;               /* (depths, d): the points x of those estimates */
    double *sums;                 /* (m, d): scratch */
    double *drawn;                /* ff_laplace_capacity(d): scratch */
    double *total;                /* (d): scratch */
} ff_walk;

/* Perform exchanges release, release + 1, ... for leaves[0..count-1]. Each moves x (d) towards one
 * expert; targets (count) receives these experts. Returns 0 or a negative status. */
int64_t ff_walk_leaves(const ff_walk *w, const ff_leaf *leaves, int64_t count, int64_t release,
                       int64_t threads, const ff_losses_scratch *scratch, double *x,
                       int64_t *targets);

#endif
