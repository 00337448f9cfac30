/* Losses of experts in (replicate, silo, round), and their gradients.
 *
 * A row holds d losses in [0, 1] as whole multiples of a unit, so sums are exact and do not depend
 * on order or threads. Every answer is a function of (seed, replicate, silo, round) alone. */
#ifndef FF_LOSSES_H
#define FF_LOSSES_H

#include "ff_base.h"

enum { FF_LOSS_COINS = 0, FF_LOSS_TABLE = 1, FF_LOSS_CALLED = 2, FF_LOSS_GRADIENT = 3 };

/* Units: of coins 1, of everything else 2^-24. */
#define FF_LOSS_BITS 24
/* Chances are whole multiples of 2^-31. */
#define FF_CHANCE_BITS 31

/* Signatures of a user's numba.cfunc. The first writes d losses and returns 0; the second writes
 * the gradient (d) at x (d) and returns the loss there. A negative status, or NaN, is a failure. */
typedef int64_t (*ff_loss_call)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                int64_t round, double *loss);
typedef double (*ff_gradient_call)(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                                   int64_t round, const double *x, double *gradient);

typedef struct {
    int64_t kind;
    int64_t experts;  /* d */
    int64_t silos;    /* m */
    int64_t common;   /* 1: one row a round for all silos */
    int64_t quadratic; /* 1: a row g stands for the loss <g, x>^2 / 2, not <g, x> */
    /* coins: expert n loses 1 with this chance, and 0 otherwise; all lose 0 after round `last`. With
     * zeros behind, ff_losses_row_capacity(d) numbers. */
    const uint32_t *chance;
    int64_t last;
    /* ... but expert `planned` (-1: none), which loses 1 in rounds 2, 4, ..., 2 lost */
    int64_t planned, lost;
    /* table (1 or m, T, d) */
    const uint32_t *table;
    int64_t rounds;
    /* a user's */
    ff_loss_call call;
    ff_gradient_call gradient;
    void *state;
} ff_losses;

/* Scratch of a thread: room for two rows, 3 d doubles, d sums. */
typedef struct {
    uint32_t *row;
    double *called;
    int64_t *sums;
} ff_losses_scratch;

/* Numbers of `row`: d, rounded up to what the generator writes. */
int64_t ff_losses_row_capacity(int64_t experts);

/* The row (d) of one silo in one round, in units, into scratch->row; 0 or a negative status. */
int64_t ff_losses_row(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_losses_scratch *scratch);

/* totals (segments, d): the rows of all silos in rounds edges[i] + 1 .. edges[i + 1] added up. */
int64_t ff_losses_sums(const ff_losses *l, uint64_t seed, int64_t replicate, const int64_t *edges,
                       int64_t segments, int64_t threads, const ff_losses_scratch *scratch,
                       int64_t *totals);

/* What gradients are clipped to: every coordinate to [low, high], every coordinate of a difference
 * of two of them to [-most, most]. */
typedef struct {
    double low, high, most;
} ff_gradient_bounds;

/* totals (m, d) += gradients at x of the losses of each silo in its n rounds, one after the other;
 * where parent (d) is not NULL, less the gradients there. A silo's rounds begin `stride` numbers
 * after those of the one before. */
int64_t ff_losses_gradients(const ff_losses *l, uint64_t seed, int64_t replicate,
                            const int64_t *rounds, int64_t stride, int64_t n, const double *x,
                            const double *parent, const ff_gradient_bounds *bounds,
                            int64_t threads, const ff_losses_scratch *scratch, double *totals);

/* lost + sum over rounds first..last and silos, in this order, of the loss at x less that at
 * `optimum`, of losses given as gradients; NaN for a failure. */
double ff_losses_excess(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t first,
                        int64_t last, const double *x, const double *optimum, double lost,
                        const ff_losses_scratch *scratch);

/* Of one loss given as a gradient: its value at x, which is NaN for a failure, and the gradient. */
double ff_losses_value(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, const double *x, double *gradient);

/* The gradient g <g, x> (d) of <g, x>^2 / 2, sums in index order; returns <g, x>. */
double ff_square_gradient(const double *g, const double *x, int64_t d, double *out);

#endif
