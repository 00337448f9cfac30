/* Runs of experts' systems whose losses are coins, with an exchange before every round but the
 * first: coins, decisions and regret of FF_COIN_ROUNDS rounds at a time, with rounds as lanes.
 *
 * All results equal those of ff_losses_sums, ff_follow, ff_hedge, ff_sparse_run and ff_regret_add
 * bit for bit. */
#ifndef FF_COURSE_H
#define FF_COURSE_H

#include "ff_experts.h"

/* Largest number of clients. The losses of all clients in 2 FF_COIN_ROUNDS = 32 rounds, at most
 * 32 000 for each expert, fit 16 bits with a sign. */
#define FF_COURSE_SILOS 1000

/* The algorithm that chooses experts: follow the leader, Hedge, or Fed-SVT (the sparse vector
 * technique). */
enum { FF_COURSE_LEADER = 0, FF_COURSE_HEDGE = 1, FF_COURSE_SPARSE = 2 };

/* The state of a run. */
typedef struct {
    const ff_losses *losses; /* coins; d <= FF_COLUMNS, m <= FF_COURSE_SILOS */
    uint64_t seed;
    int64_t replicate;
    int64_t decides;         /* the algorithm: FF_COURSE_* */
    int64_t *lost;           /* (d): loss of every expert so far */
    int64_t *latest;         /* (d): receives the losses of the last round */
    ff_sparse *sparse;       /* its `expert` is the decision so far, also of the leader */
    int64_t switches;        /* changes of the leader */
    const double *table;     /* Hedge: the exponential for a loss of j units more than the best's */
    int64_t known;           /* length of the table */
    int64_t alone;           /* if all other experts have lost at least this many units more than
                              * the best, the weight of the best is 1 */
    ff_regret *regret;
} ff_course;

/* Run rounds from + 1, .., to. asks: 0 if no exchange comes before round from + 1, or if that
 * exchange has already taken place. Returns the number of the last round that was run: `to`; or an
 * earlier one, if Hedge needs a longer table for the next round, or if the query of the next
 * exchange exceeds the threshold. */
int64_t ff_course_run(ff_course *c, int64_t from, int64_t to, int64_t asks);

#endif
