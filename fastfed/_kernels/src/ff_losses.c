#include "ff_losses.h"

#include <math.h>

#include "ff_environment.h"
#include "ff_random.h"
#include "ff_threads.h"

/* Number of rows that are one item of work for a thread, and number of rounds if losses are
 * coins. */
#define BLOCK_ROWS 256
#define BLOCK_COIN_ROUNDS (16 * FF_COIN_ROUNDS)

/* Return the unit of the losses. */
FF_INLINE double unit_of(const ff_losses *l)
{
    return l->kind == FF_LOSS_COINS ? 1.0 : 1.0 / (double)(1 << FF_LOSS_BITS);
}

/* total (d) += times row (d). */
static void add_row(const uint32_t *restrict row, int64_t d, int64_t times,
                    int64_t *restrict total)
{
    for (int64_t n = 0; n < d; n++)
        total[n] += times * (int64_t)row[n];
}

/* Compute the losses (d) of all experts at one silo in one round, in units, into scratch->row.
 * Returns FF_OK or a negative status. */
int64_t ff_losses_row(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_losses_scratch *scratch)
{
    const int64_t d = l->experts, key = l->common ? 0 : silo;
    uint32_t *row = scratch->row;
    if (l->kind == FF_LOSS_COINS) {
        if (round > l->last) {
            memset(row, 0, (size_t)d * sizeof *row);
        } else {
            const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, 0, 0);
            ff_coins_row(&l->coins, &s, key, round, row);
        }
        if (l->planned >= 0)
            row[l->planned] = (uint32_t)ff_planned_loses(l, round);
        return FF_OK;
    }
    if (l->kind == FF_LOSS_TABLE) {
        memcpy(row, l->table + (key * l->rounds + round - 1) * d, (size_t)d * sizeof *row);
        return FF_OK;
    }
    /* A user's function; its losses are rounded to units. */
    const double *loss = scratch->called;
    int64_t status = l->call(l->state, seed, replicate, key, round, scratch->called);
    if (status < 0)
        return status;
    for (int64_t n = 0; n < d; n++) {
        if (!(loss[n] >= 0.0 && loss[n] <= 1.0))
            return FF_NOT_FINITE;
        row[n] = (uint32_t)llrint(loss[n] * (double)(1 << FF_LOSS_BITS));
    }
    return FF_OK;
}

/* Add up the losses of each expert over all silos in rounds first..last, into sums (d), if the
 * losses come from a table or a user's function. Returns FF_OK or a negative status. */
static int64_t sum_rows(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t first,
                        int64_t last, const ff_losses_scratch *scratch, int64_t *restrict sums)
{
    const int64_t d = l->experts;
    const int64_t rows = l->common ? 1 : l->silos, times = l->common ? l->silos : 1;
    memset(sums, 0, (size_t)d * sizeof *sums);
    for (int64_t round = first; round <= last; round++)
        for (int64_t silo = 0; silo < rows; silo++) {
            int64_t status = ff_losses_row(l, seed, replicate, silo, round, scratch);
            if (status < 0)
                return status;
            add_row(scratch->row, d, times, sums);
        }
    return FF_OK;
}

/* The arguments of sum_block, for a block of consecutive rounds. */
typedef struct {
    const ff_losses *l;
    uint64_t seed;
    int64_t replicate, block, rounds, segments; /* block: number of rounds in a block; rounds,
                                                 * segments: their total numbers */
    const int64_t *edges; /* (segments + 1): segment i has the rounds edges[i] + 1..edges[i + 1] */
    ff_stream coin;       /* the stream of silo 0 with index 0 */
    const ff_losses_scratch *scratch;
    int64_t *totals;      /* (segments, d): integers, so the order of additions does not matter */
    int64_t failed;       /* FF_OK, or the status of a failure */
} ff_blocks;

/* Add the coins of rounds from + 1..end to the totals of their segments. segment: the segment of
 * round from + 1. */
static void add_coins(const ff_blocks *blocks, int64_t from, int64_t end, int64_t segment,
                      const ff_losses_scratch *scratch)
{
    const ff_losses *l = blocks->l;
    const int64_t d = l->experts, *edges = blocks->edges;
    const int64_t rows = l->common ? 1 : l->silos, times = l->common ? l->silos : 1;
    /* A segment that begins before these rounds (head) or ends after them (tail) also gets sums
     * from other threads. So its sums here go to the thread's scratch first. */
    const int64_t head = edges[segment] < from ? segment : -1;
    int64_t tail = -1;
    memset(scratch->sums, 0, (size_t)(2 * d) * sizeof *scratch->sums);
    for (int64_t base = from; base < end; base += FF_COIN_ROUNDS) {
        const int64_t n = end - base < FF_COIN_ROUNDS ? end - base : FF_COIN_ROUNDS;
        int64_t *to[FF_COIN_ROUNDS];
        for (int64_t i = 0; i < n; i++) {
            while (edges[segment + 1] <= base + i)
                segment++;
            if (segment == head) {
                to[i] = scratch->sums;
            } else if (edges[segment + 1] > end) {
                to[i] = scratch->sums + d;
                tail = segment;
            } else {
                to[i] = blocks->totals + segment * d;
            }
            if (l->planned >= 0)
                to[i][l->planned] += l->silos * ff_planned_loses(l, base + i + 1);
        }
        const int64_t random_rounds = l->last - base < n ? l->last - base : n;
        if (random_rounds > 0)
            ff_coins_add(&l->coins, &blocks->coin, rows, base + 1, random_rounds, times,
                         to);
    }
    for (int64_t n = 0; n < d; n++) {
        if (head >= 0)
            FF_ATOMIC_ADD(&blocks->totals[head * d + n], scratch->sums[n]);
        if (tail >= 0)
            FF_ATOMIC_ADD(&blocks->totals[tail * d + n], scratch->sums[d + n]);
    }
}

/* Task: add up the losses of all silos in one block of rounds, and add the sums to the totals of
 * the segments that the rounds belong to. */
static void sum_block(void *work, int64_t index, int64_t thread)
{
    ff_blocks *blocks = work;
    /* Stop calling a function that has failed. */
    if (FF_ATOMIC_READ(&blocks->failed) != FF_OK)
        return;
    const ff_losses_scratch *thread_scratch = &blocks->scratch[thread];
    const int64_t d = blocks->l->experts, first_index = index * blocks->block,
                  *edges = blocks->edges;
    const int64_t end_index =
        first_index + blocks->block < blocks->rounds ? first_index + blocks->block : blocks->rounds;
    const int64_t from = edges[0] + first_index, end = edges[0] + end_index;
    /* Find the segment of the first round of the block, by bisection. */
    int64_t segment = 0, later = blocks->segments;
    while (later - segment > 1) {
        int64_t middle = (segment + later) / 2;
        if (edges[middle] <= from)
            segment = middle;
        else
            later = middle;
    }
    if (blocks->l->kind == FF_LOSS_COINS) {
        add_coins(blocks, from, end, segment, thread_scratch);
        return;
    }
    for (int64_t last_done = from; last_done < end; segment++) {
        const int64_t last = edges[segment + 1] < end ? edges[segment + 1] : end;
        if (last <= last_done)
            continue;
        /* If a segment lies inside the block, no other thread adds to it. */
        const int whole = edges[segment] >= from && edges[segment + 1] <= end;
        int64_t *sums = whole ? blocks->totals + segment * d : thread_scratch->sums;
        const int64_t status = sum_rows(blocks->l, blocks->seed, blocks->replicate, last_done + 1,
                                        last, thread_scratch, sums);
        if (status < 0) {
            FF_ATOMIC_WRITE(&blocks->failed, status);
            return;
        }
        last_done = last;
        for (int64_t n = 0; !whole && n < d; n++)
            FF_ATOMIC_ADD(&blocks->totals[segment * d + n], thread_scratch->sums[n]);
    }
}

/* Add up the losses of all silos in each segment of rounds, into totals (segments, d). Threads
 * share the blocks of rounds. Returns FF_OK or a negative status. */
int64_t ff_losses_sums(const ff_losses *l, uint64_t seed, int64_t replicate, const int64_t *edges,
                       int64_t segments, int64_t threads, const ff_losses_scratch *scratch,
                       int64_t *totals)
{
    const int64_t rounds = edges[segments] - edges[0], rows = l->common ? 1 : l->silos;
    ff_blocks blocks = {.l = l, .seed = seed, .replicate = replicate, .rounds = rounds,
                        .segments = segments, .edges = edges, .scratch = scratch,
                        .totals = totals};
    blocks.coin = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, 0, 0);
    blocks.block = rows < BLOCK_ROWS ? BLOCK_ROWS / rows : 1;
    if (l->kind == FF_LOSS_COINS)
        blocks.block = blocks.block < FF_COIN_ROUNDS ? FF_COIN_ROUNDS : BLOCK_COIN_ROUNDS;
    memset(totals, 0, (size_t)(segments * l->experts) * sizeof *totals);
    ff_pace pace = {0};
    ff_team *team = ff_team_open(threads);
    ff_team_each(team, &pace, (rounds + blocks.block - 1) / blocks.block, 1.0, sum_block, NULL,
                 &blocks);
    ff_team_close(team);
    return blocks.failed;
}

/* Write the gradient g <g, x> of <g, x>^2 / 2 at x to out (d), and return <g, x>. */
double ff_square_gradient(const double *g, const double *x, int64_t d, double *out)
{
    double inner = 0.0;
    for (int64_t n = 0; n < d; n++)
        inner += g[n] * x[n];
    for (int64_t n = 0; n < d; n++)
        out[n] = g[n] * inner;
    return inner;
}

/* Compute the clipped gradient, at x, of the loss of one silo in one round into out (d). If the
 * losses have rows, g (d) holds the row of the round; otherwise a user's function gives the
 * gradient. Returns FF_OK or a negative status. */
static int64_t clipped_gradient(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                                int64_t round, const double *x, const ff_gradient_bounds *bounds,
                                const double *restrict g, double *restrict out)
{
    const int64_t d = l->experts;
    if (l->kind == FF_LOSS_GRADIENT) {
        double value = ff_losses_value(l, seed, replicate, silo, round, x, out);
        for (int64_t k = 0; k < d; k++)
            value += 0.0 * out[k]; /* the value becomes NaN if an entry is not finite */
        if (!isfinite(value))
            return FF_CALLBACK_FAILED;
    } else if (l->quadratic) {
        ff_square_gradient(g, x, d, out);
    } else {
        memcpy(out, g, (size_t)d * sizeof *g);
    }
    for (int64_t k = 0; k < d; k++) {
        const double raised = out[k] < bounds->low ? bounds->low : out[k];
        out[k] = raised > bounds->high ? bounds->high : raised;
    }
    return FF_OK;
}

/* Return 1 if coins can be counted instead of adding gradients. That is correct if the losses are
 * coins and linear, no expert is `planned`, no gradients are subtracted (parent), clipping does not
 * change 0 or 1, `total` starts from 0, and all n rounds have losses. The sum of a silo's gradients
 * is then the number of its coins that are 1, for each expert. */
static int are_counts(const ff_losses *l, const int64_t *rounds, int64_t n, const double *parent,
                      const ff_gradient_bounds *bounds, const double *total)
{
    if (l->kind != FF_LOSS_COINS || l->quadratic || l->planned >= 0 || parent ||
        !(bounds->low <= 0.0 && bounds->high >= 1.0))
        return 0;
    for (int64_t k = 0; k < l->experts; k++)
        if (total[k] != 0.0)
            return 0;
    for (int64_t i = 0; i < n; i++)
        if (rounds[i] > l->last)
            return 0;
    return 1;
}

/* Add to total (d) the clipped gradients at x of one silo's losses in n rounds or, if parent is not
 * NULL, the clipped differences from the gradients at parent. Returns FF_OK or a negative
 * status. */
static int64_t add_gradients(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                             const int64_t *rounds, int64_t n, const double *x,
                             const double *parent, const ff_gradient_bounds *bounds,
                             const ff_losses_scratch *scratch, double *total)
{
    const int64_t d = l->experts;
    const double unit = unit_of(l), most = bounds->most;
    double *g = scratch->called, *gradient = g + d, *parent_gradient = gradient + d;
    if (are_counts(l, rounds, n, parent, bounds, total)) {
        const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, 0, 0);
        memset(scratch->sums, 0, (size_t)d * sizeof *scratch->sums);
        ff_coins_count(&l->coins, &s, l->common ? 0 : silo, rounds, n, scratch->sums);
        for (int64_t k = 0; k < d; k++)
            total[k] = (double)scratch->sums[k];
        return FF_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t status = FF_OK;
        if (l->kind != FF_LOSS_GRADIENT) {
            status = ff_losses_row(l, seed, replicate, silo, rounds[i], scratch);
            for (int64_t k = 0; status == FF_OK && k < d; k++)
                g[k] = unit * (double)scratch->row[k];
        }
        if (status == FF_OK)
            status = clipped_gradient(l, seed, replicate, silo, rounds[i], x, bounds, g, gradient);
        if (status == FF_OK && parent)
            status = clipped_gradient(l, seed, replicate, silo, rounds[i], parent, bounds, g,
                                      parent_gradient);
        if (status < 0)
            return status;
        /* Clip the differences of gradients. */
        for (int64_t k = 0; parent && k < d; k++) {
            const double difference = gradient[k] - parent_gradient[k];
            const double raised = difference < -most ? -most : difference;
            gradient[k] = raised > most ? most : raised;
        }
        for (int64_t k = 0; k < d; k++)
            total[k] += gradient[k];
    }
    return FF_OK;
}

/* The arguments of gradients_of. */
typedef struct {
    const ff_losses *l;
    uint64_t seed;
    int64_t replicate, stride, n;
    const int64_t *rounds;    /* (m, stride); n of each row are used */
    const double *x, *parent; /* where to take gradients; see ff_losses_gradients */
    const ff_gradient_bounds *bounds;
    const ff_losses_scratch *scratch;
    double *totals;           /* (m, d) */
    int64_t failed;           /* FF_OK, or the status of a failure */
} ff_gradients;

/* Task: add the gradients of one silo. */
static void gradients_of(void *work, int64_t silo, int64_t thread)
{
    ff_gradients *task = work;
    if (FF_ATOMIC_READ(&task->failed) != FF_OK)
        return;
    const int64_t status =
        add_gradients(task->l, task->seed, task->replicate, silo,
                      task->rounds + silo * task->stride, task->n, task->x, task->parent,
                      task->bounds, &task->scratch[thread], task->totals + silo * task->l->experts);
    if (status < 0)
        FF_ATOMIC_WRITE(&task->failed, status);
}

/* Add to totals (m, d) the gradients of each silo's losses at x, minus those at `parent` (NULL:
 * none). Threads share the silos. Returns FF_OK or a negative status. */
int64_t ff_losses_gradients(const ff_losses *l, uint64_t seed, int64_t replicate,
                            const int64_t *rounds, int64_t stride, int64_t n, const double *x,
                            const double *parent, const ff_gradient_bounds *bounds,
                            int64_t threads, const ff_losses_scratch *scratch, double *totals)
{
    ff_gradients gradients = {.l = l, .seed = seed, .replicate = replicate, .stride = stride,
                              .n = n, .rounds = rounds, .x = x, .parent = parent,
                              .bounds = bounds, .scratch = scratch, .totals = totals};
    ff_pace pace = {0};
    ff_team *team = ff_team_open(threads);
    ff_team_each(team, &pace, l->silos, 1.0, gradients_of, NULL, &gradients);
    ff_team_close(team);
    return gradients.failed;
}

/* Return `lost` plus the sum of the losses at x minus those at the optimum, in rounds first..last;
 * NaN if a function failed. */
double ff_losses_excess(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t first,
                        int64_t last, const double *x, const double *optimum, double lost,
                        const ff_losses_scratch *scratch)
{
    double *gradient = scratch->called;
    for (int64_t round = first; round <= last; round++)
        for (int64_t silo = 0; silo < l->silos; silo++) {
            const double value = ff_losses_value(l, seed, replicate, silo, round, x, gradient);
            const double best_value =
                ff_losses_value(l, seed, replicate, silo, round, optimum, gradient);
            lost += value - best_value;
            if (!isfinite(lost))
                return NAN;
        }
    return lost;
}

/* Return the loss at x of one silo in one round, and write its gradient (d) at x, for losses that
 * come from a user's function of gradients. */
double ff_losses_value(const ff_losses *l, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, const double *x, double *gradient)
{
    return l->gradient(l->state, seed, replicate, l->common ? 0 : silo, round, x, gradient);
}
