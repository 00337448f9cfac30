/* Losses of experts in (replicate, silo, round), and their gradients.
 *
 * A row holds the losses of d experts, in [0, 1], as whole multiples of a unit. So sums are exact
 * and do not depend on the order or on threads. Every answer depends on (seed, replicate, silo,
 * round) only. */
#ifndef FF_LOSSES_H
#define FF_LOSSES_H

#include "ff_base.h"
#include "ff_coins.h"

/* Kinds of losses: independent coins, a table, a user's function of losses, a user's function of
 * gradients. */
enum { FF_LOSS_COINS = 0, FF_LOSS_TABLE = 1, FF_LOSS_CALLED = 2, FF_LOSS_GRADIENT = 3 };

/* The unit of a loss is 1 for coins and 2^-24 for all other kinds. */
#define FF_LOSS_BITS 24

/* Signatures of a user's numba.cfunc. The first writes d losses and returns 0. The second writes
 * the gradient (d) at x (d) and returns the loss at x. A negative status, or NaN, reports a
 * failure. */
typedef int64_t (*ff_loss_call)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                int64_t round, double *loss);
typedef double (*ff_gradient_call)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                   int64_t round, const double *x, double *gradient);

/* The losses of a system. */
typedef struct {
    int64_t kind;      /* FF_LOSS_* */
    int64_t experts;   /* d */
    int64_t silos;     /* m */
    int64_t common;    /* 1: all silos have the same row in a round */
    int64_t quadratic; /* 1: the loss of a row g is <g, x>^2 / 2; 0: it is <g, x> */
    /* Coins: expert n loses 1 with its probability, otherwise 0; after round `last` all lose 0. */
    ff_coins coins;
    int64_t last; /* last round with losses */
    /* The exception is expert `planned` (-1: none), which loses 1 in rounds 2, 4, ..., 2 lost. */
    int64_t planned, lost;
    /* Table (1 or m, T, d), in units. */
    const uint32_t *table;
    int64_t rounds; /* T */
    /* A user's functions. */
    ff_loss_call call;
    ff_gradient_call gradient;
    void *state; /* first argument of the functions */
} ff_losses;

/* Return 1 if the planned expert loses in this round: in rounds 2, 4, ... until it has lost `lost`
 * times. */
FF_INLINE int64_t ff_planned_loses(const ff_losses *l, int64_t round)
{
    return round % 2 == 0 && round / 2 <= l->lost;
}

/* Scratch of a thread. */
typedef struct {
    uint32_t *row;  /* d */
    double *called; /* 3 d */
    int64_t *sums;  /* 2 d */
} ff_losses_scratch;

/* Compute the row (d) of one silo in one round, in units, into scratch->row. Returns 0 or a
 * negative status. */
int64_t ff_losses_row(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_losses_scratch *scratch);

/* Add up the rows of all silos in rounds edges[i] + 1 .. edges[i + 1], into totals (segments, d).
 * Returns 0 or a negative status. */
int64_t ff_losses_sums(const ff_losses *l, uint64_t seed, int64_t replicate, const int64_t *edges,
                       int64_t segments, int64_t threads, const ff_losses_scratch *scratch,
                       int64_t *totals);

/* Bounds for clipping: every coordinate of a gradient is clipped to [low, high], and every
 * coordinate of a difference of two gradients to [-most, most]. */
typedef struct {
    double low, high, most;
} ff_gradient_bounds;

/* Add to totals (m, d) the gradients at x of each silo's losses in its n rounds, one after the
 * other; if parent (d) is not NULL, minus the gradients at parent. The rounds of a silo begin
 * `stride` numbers after those of the previous silo. Returns 0 or a negative status. */
int64_t ff_losses_gradients(const ff_losses *l, uint64_t seed, int64_t replicate,
                            const int64_t *rounds, int64_t stride, int64_t n, const double *x,
                            const double *parent, const ff_gradient_bounds *bounds,
                            int64_t threads, const ff_losses_scratch *scratch, double *totals);

/* Return lost + the sum over rounds first..last and silos, in this order, of the loss at x minus
 * the loss at `optimum`, for losses of kind FF_LOSS_GRADIENT; NaN if a function failed. */
double ff_losses_excess(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t first,
                        int64_t last, const double *x, const double *optimum, double lost,
                        const ff_losses_scratch *scratch);

/* Return the loss at x of one silo in one round, NaN if the function failed, and write its gradient
 * at x, for losses of kind FF_LOSS_GRADIENT. */
double ff_losses_value(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, const double *x, double *gradient);

/* Write the gradient g <g, x> (d) of <g, x>^2 / 2; sums are in index order. Returns <g, x>. */
double ff_square_gradient(const double *g, const double *x, int64_t d, double *out);

#endif
