/* Symbols (ff_run.h): c is a curve, p the scratch of a thread, k counts releases; M silos,
 * d features; a statistic has s numbers. V is the regularised Gram matrix of a model, W its inverse
 * factor, and theta its estimate. */
#include "ff_protocol.h"

#include "ff_bits.h"
#include "ff_policy.h"
#include "ff_refresh_small.h"
#include "ff_release.h"

/* Add the buffered data points to the silo's batch, and empty the buffer. */
void ff_protocol_flush(const ff_run *run, ff_curve *c, int64_t silo, ff_pending *pending)
{
    const int64_t d = run->dimension;
    double *batch = c->batch + silo * ff_statistic(d);
    for (int64_t p = 0; c->radius.arms && p < pending->count; p++)
        ff_arms_accumulate(batch + d, batch, pending->points + p * (d + 1),
                           pending->points[p * (d + 1) + d], d);
    if (c->radius.arms)
        pending->count = 0;
    if (pending->count == 1)
        ff_accumulate(batch + d, batch, pending->points, pending->points[d], d);
    else if (pending->count)
        ff_accumulate_many(batch + d, batch, pending->points, pending->count, d);
    pending->count = 0;
}

/* Bits: add the data point (p->feature, y) to the silo's sum for every tree node that contains the
 * present batch. The point is rounded at random, independently for each node. */
void ff_protocol_accumulate_bits(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                 double y, const ff_parts *p)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    int64_t levels[64] = {0};
    /* The present batch is a leaf. With a tree, the nodes that contain it are a path of the tree.
     * Without a tree (FF_ADD), the only node is the batch; after the last release there is none. */
    const int64_t leaf = c->released + 1;
    const int64_t nodes = c->analyzer == FF_ADD ? leaf <= c->releases
                                                : ff_touched_levels(leaf, c->releases, levels);
    const ff_stream stream = ff_stream_of(run, FF_ROUNDING, silo, round);
    ff_random_u32(&stream, nodes * s, p->random);
    memset(p->point, 0, (size_t)s * sizeof(double));
    ff_accumulate(p->point + d, p->point, p->feature, y, d);
    for (int64_t i = 0; i < nodes; i++) {
        /* The steps g of ff_round_point: for bias entries, then for covariance entries. */
        const int64_t *steps = c->bit_levels + 2 * (c->by_release ? leaf - 1 : levels[i]);
        double *sums = c->sums + (silo * c->levels + levels[i]) * s;
        const uint32_t *random = p->random + i * s;
        ff_round_point(p->point, d, (double)steps[0], c->clip, random, sums);
        ff_round_point(p->point + d, s - d, (double)steps[1], c->clip, random + d, sums + d);
    }
}

/* Draw the standard normals of one draw of noise into `normals` (s). A tree has one draw for each
 * node. owner: the silo that adds the noise, or M for the server. key: number of the draw. If
 * c->drawn_once, the draw is the server's and stands for the sum of all silos' noises. It then
 * comes from other random streams. */
static void draw_normals(const ff_run *run, const ff_curve *c, int64_t owner, int64_t key,
                         double *normals)
{
    if (c->drawn_once)
        ff_sum_normals(run->seed, run->replicate, owner, key, run->dimension, normals);
    else
        ff_node_normals(run->seed, run->replicate, owner, key, run->dimension, normals);
}

/* Number of prefixes in a lot. The contributions of all earlier draws to the prefixes of a lot are
 * summed in one pass. */
#define LOT 8

/* Compute the noise of prefix k (the sum of batches 1..k) for FF_TOEPLITZ and FF_FACTORISED, into
 * p->normals (s): a weighted sum of draws 1..k. `history` has c->releases rows of s numbers. Row
 * i - 1 holds draw i once it is drawn. Before that, the row holds a part of the noise of prefix i:
 * the weighted sum of the draws from before i's lot (of LOT prefixes). */
static void shared_noise(const ff_run *run, const ff_curve *c, int64_t owner, double *history,
                         int64_t k, const ff_parts *p)
{
    const int64_t s = ff_statistic(run->dimension), lot_start = (k - 1) / LOT * LOT;
    /* weights[(i - 1) step] is the weight of draw i in prefix k: coefficient k - i of FF_TOEPLITZ
     * (counted from 0), or entry i of row k of the factor of FF_FACTORISED (counted from 1). The
     * weights of prefix k + 1 begin `next` numbers later. */
    const int toeplitz = c->release == FF_TOEPLITZ;
    const int64_t next = toeplitz ? 1 : c->releases, step = toeplitz ? -1 : 1;
    const double *weights = c->coefficients + (k - 1) * next;
    double *own_row = history + (k - 1) * s;
    if (lot_start == k - 1) {
        const int64_t remaining = c->releases - lot_start;
        ff_weighted_sums(history, lot_start, remaining < LOT ? remaining : LOT, weights, next,
                         step, s);
    }
    draw_normals(run, c, owner, ff_key_of(run, k), p->normals);
    for (int64_t j = 0; j < s; j++) {
        const double earlier = own_row[j];
        own_row[j] = p->normals[j];
        p->normals[j] = earlier;
    }
    ff_add_weighted(history + lot_start * s, weights + lot_start * step, step, k - lot_start, s,
                    p->normals);
}

/* Compute the noise of prefix k (the sum of batches 1..k) by the mechanism c->release, into
 * p->normals (s). The noise is in units of its standard deviations, which add_noise applies. owner:
 * the silo that adds the noise, or M for the server. slot: the owner's index into c->nodes or
 * c->history. */
static void release_noise(const ff_run *run, ff_curve *c, int64_t owner, int64_t slot, int64_t k,
                          const ff_parts *p)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    if (c->release == FF_TOEPLITZ || c->release == FF_FACTORISED) {
        shared_noise(run, c, owner, c->history + slot * c->releases * s, k, p);
        return;
    }
    /* A new draw updates the buffers. The noise is a weighted sum of the draw and the buffers. */
    if (c->release == FF_BUFFERED) {
        draw_normals(run, c, owner, ff_key_of(run, k), p->normals);
        memcpy(p->point, p->normals, (size_t)s * sizeof(double));
        ff_buffered(p->point, c->coefficients, c->buffers, s, c->nodes + slot * c->buffers * s,
                    p->normals);
        return;
    }
    double *estimates = c->nodes + slot * c->levels * s;
    /* The noise of prefix k is the sum of the first ff_nested_draws(k) draws. */
    if (c->release == FF_NESTED) {
        for (int64_t i = ff_nested_draws(k - 1) + 1; i <= ff_nested_draws(k); i++) {
            draw_normals(run, c, owner, ff_key_of(run, i), p->normals);
            ff_add(estimates, p->normals, s);
        }
        memcpy(p->normals, estimates, (size_t)s * sizeof(double));
        return;
    }
    /* Honaker's tree. Leaf k completes one node of each level 0, .., `level`. The estimate of a
     * node is a weighted mean of two numbers: the node's draw, and the sum of its children's
     * estimates. The noise of the prefix is a sum of estimates. p->point holds the estimate of one
     * level after the other. */
    const int64_t level = ff_node_level(k), leaf_draw = ff_honaker_number(k);
    draw_normals(run, c, owner, ff_key_of(run, leaf_draw), p->normals);
    memcpy(p->point, p->normals, (size_t)s * sizeof(double));
    for (int64_t j = 1; j <= level; j++) {
        draw_normals(run, c, owner, ff_key_of(run, leaf_draw + j), p->normals);
        ff_honaker(p->point, p->normals, estimates + (j - 1) * s, j, s);
    }
    memcpy(estimates + level * s, p->point, (size_t)s * sizeof(double));
    ff_prefix(estimates, k, s, p->normals);
}

/* out (s) <- values (s) + noise, which is std times normals (s). If c->public_constant, the last
 * entry (the sum of squares of the constant feature) is a public number and gets no noise. (With a
 * secret coin this number is not public.) */
FF_INLINE void add_noise(const ff_curve *c, const double *values, const double *normals,
                         const ff_noise_std *std, int64_t d, double *out)
{
    const int64_t last = ff_statistic(d) - 1;
    const double count = values[last];
    ff_add_noise(values, normals, std, d, out);
    if (c->public_constant)
        out[last] = count;
}

/* Return the level of the tree node that the k-th synchronisation completes; 0 without a tree. */
FF_INLINE int64_t level_of(const ff_curve *c, int64_t k)
{
    return c->analyzer == FF_ADD ? 0 : ff_node_level(k);
}

/* Compute the message that a silo sends after its k-th batch, by the curve's randomizer. */
void ff_protocol_report(const ff_run *run, ff_curve *c, int64_t silo, int64_t k, double *scratch)
{
    const int64_t d = run->dimension, s = ff_statistic(d), level = level_of(c, k);
    double *batch = c->batch + silo * s, *message = c->messages + silo * s;
    const double scale = c->noise_scale[silo] * (c->release_scale ? c->release_scale[k - 1] : 1.0);
    const ff_noise_std std = {scale * c->noise_std.bias, scale * c->noise_std.off_diagonal,
                              scale * c->noise_std.diagonal};
    /* The sum of the rounded points in the node that this batch completes, plus centred binomial
     * noise. The sum for the next node of this level starts from zero. */
    if (c->randomizer == FF_SEND_BITS) {
        double *sum = c->sums + (silo * c->levels + level) * s;
        const ff_stream stream = ff_stream_open(run->seed, FF_BIT_NOISE,
                                                (uint32_t)run->replicate,
                                                (uint32_t)ff_name_of(run, silo),
                                                (uint32_t)ff_key_of(run, k));
        const int64_t points = c->ends ? ff_end_of(c, k) - ff_end_of(c, k - 1)
                                       : c->batch_size << level;
        ff_binomials(&stream, points * c->noise_bits[c->by_release ? k - 1 : level], s, message);
        ff_add(message, sum, s);
        memset(sum, 0, (size_t)s * sizeof(double));
        return;
    }
    if (c->randomizer == FF_SEND_BATCH) {
        memcpy(message, batch, (size_t)s * sizeof(double));
    } else if (c->randomizer == FF_SEND_NOISY_BATCH) {
        const ff_parts p = ff_cut(scratch, run);
        ff_node_normals(run->seed, run->replicate, ff_name_of(run, silo), ff_key_of(run, k), d,
                        p.normals);
        add_noise(c, batch, p.normals, &std, d, message);
    } else if (c->randomizer == FF_SEND_NOISY_SUM) {
        /* The sum of all batches so far, with the noise of a prefix. */
        const ff_parts p = ff_cut(scratch, run);
        double *sum = c->sums + silo * c->levels * s;
        ff_add(sum, batch, s);
        release_noise(run, c, ff_name_of(run, silo), silo, k, &p);
        add_noise(c, sum, p.normals, &std, d, message);
    } else {
        /* The p-sum (sum over the batches of a tree node) of the node that this batch completes, or
         * a sum of noisy p-sums. */
        double *sums = c->sums + silo * c->levels * s, *sum = sums + level * s;
        ff_psum(sums, batch, level, s);
        if (c->randomizer == FF_SEND_NODE) {
            memcpy(message, sum, (size_t)s * sizeof(double));
        } else {
            const ff_parts p = ff_cut(scratch, run);
            ff_node_normals(run->seed, run->replicate, ff_name_of(run, silo), ff_key_of(run, k), d,
                            p.normals);
            if (c->randomizer == FF_SEND_NOISY_NODE) {
                add_noise(c, sum, p.normals, &std, d, message);
            } else {
                double *nodes = c->nodes + silo * c->levels * s;
                add_noise(c, sum, p.normals, &std, d, nodes + level * s);
                ff_prefix(nodes, k, s, message);
            }
        }
    }
    memset(batch, 0, (size_t)s * sizeof(double));
    /* Local rounds, in which a silo shares nothing, start from the total without this silo's
     * contribution. Store the contribution here; begin_own (ff_driver.c) subtracts it from the
     * total. It is the message if the total is the sum of the last messages (FF_REPLACE), otherwise
     * the raw statistic of the silo's shared rounds. Local rounds follow every release if they come
     * between shared rounds (ff_mixed), otherwise only the last release. The rule own_least uses
     * the whole total, so it needs no contribution. */
    if (c->share_until && !c->own_least && (ff_mixed(c) || k == c->releases)) {
        const double *raw = (ff_mixed(c) ? c->own_shared : c->own_sums) + silo * s;
        memcpy(c->own_rest + silo * s, c->analyzer == FF_REPLACE ? message : raw,
               (size_t)s * sizeof(double));
    }
}

/* Add a silo's message to the sum of the messages of earlier silos, which is in the row of silo 0.
 * With a shuffler, or silos with their own clocks, ff_protocol_combine adds up the messages
 * instead. */
void ff_protocol_add(const ff_run *run, ff_curve *c, int64_t silo)
{
    const int64_t s = ff_statistic(run->dimension);
    if (silo > 0 && !c->shuffled && !c->sends)
        ff_add(c->messages, c->messages + silo * s, s);
}

/* Update the total in exchange k of silos with their own clocks. With FF_ADD, add the batches of
 * the silos that report now. Otherwise replace the total by the sum of the latest reports of all
 * silos that have reported. */
static void combine_reports(const ff_run *run, ff_curve *c, int64_t k)
{
    const int64_t s = ff_statistic(run->dimension);
    double *sum = NULL;
    for (int64_t i = 0; i < run->silos; i++) {
        double *message = c->messages + i * s;
        if (c->analyzer == FF_ADD ? !ff_sends(run, c, i, k) : !c->reported[i])
            continue;
        if (sum) {
            ff_add(sum, message, s);
        } else if (c->analyzer == FF_ADD) {
            sum = message;
        } else {
            /* Later exchanges need this report again, so the sum is stored elsewhere. */
            sum = c->total;
            memcpy(sum, message, (size_t)s * sizeof(double));
        }
    }
    if (sum && c->analyzer == FF_ADD)
        ff_add(c->total, sum, s);
}

/* Update the total from the sum of the messages, as the server does. */
void ff_protocol_combine(const ff_run *run, ff_curve *c, int64_t k, double *scratch)
{
    if (c->sends) {
        combine_reports(run, c, k);
        return;
    }
    const int64_t d = run->dimension, s = ff_statistic(d), level = level_of(c, k);
    double *sum = c->messages;
    /* Without a shuffler, ff_protocol_add has added up the messages in row 0. With a shuffler, add
     * them up here in its order, in the row of the first one. */
    if (c->shuffled) {
        const ff_stream stream = ff_stream_open(run->seed, FF_SHUFFLE, (uint32_t)run->replicate,
                                                0, (uint32_t)ff_key_of(run, k));
        ff_permutation(&stream, run->silos, c->order);
        sum += c->order[0] * s;
        for (int64_t i = 1; i < run->silos; i++)
            ff_add(sum, c->messages + c->order[i] * s, s);
    }
    /* Bits: convert the sum of ones to the units of the statistic. */
    if (c->randomizer == FF_SEND_BITS)
        ff_multiply(sum, c->unit + (c->by_release ? k - 1 : level) * s, s);
    /* If the sums hold counts (otherwise zero = one = 0): the bias entry of an arm is the number of
     * its users whose bit is 1, and the diagonal covariance entry is the number of all its users.
     * Replace the bias entry by a sum over these users: `one` for a bit 1, `zero` for a bit 0. */
    const double zero = c->count_values[0], one = c->count_values[1];
    for (int64_t a = 0; one > zero && a < d; a++)
        sum[a] = zero * sum[d + a * (a + 1) / 2 + a] + (one - zero) * sum[a];
    if (c->analyzer == FF_ADD) {
        ff_add(c->total, sum, s);
    } else if (c->analyzer == FF_REPLACE) {
        memcpy(c->total, sum, (size_t)s * sizeof(double));
    } else if (c->analyzer == FF_NOISY_ADD) {
        const ff_parts p = ff_cut(scratch, run);
        ff_add(c->sums, sum, s);
        release_noise(run, c, run->silos, 0, k, &p);
        add_noise(c, c->sums, p.normals, &c->noise_std, d, c->total);
    } else {
        double *node = c->nodes + level * s;
        if (c->analyzer == FF_NOISY_TREE) {
            const ff_parts p = ff_cut(scratch, run);
            draw_normals(run, c, run->silos, k, p.normals);
            add_noise(c, sum, p.normals, &c->noise_std, d, node);
        } else {
            memcpy(node, sum, (size_t)s * sizeof(double));
        }
        ff_prefix(c->nodes, k, s, c->total);
    }
}

/* Compute W, theta and the radius that all silos use until the next synchronisation, from the
 * total. Restart the bonus cache and the trigger. Returns a status. */
int64_t ff_protocol_refresh(const ff_run *run, ff_curve *c, double *scratch)
{
    const int64_t d = run->dimension, k = ff_entry(c);
    const ff_parts p = ff_cut(scratch, run);
    const double full_lambda = c->regularizer[k];
    const double floor = c->direct ? c->floor[k] : 0.0;
    /* V = (lambda + shift) I + covariance. inverse: bound on the largest eigenvalue of V^-1. */
    double lambda = full_lambda, inverse = 0.0, shift = 0.0;
    int slack_later = 0;
    /* ff_refresh_small returns 0 if its guess of lambda is wrong, if V is not positive definite, or
     * if d is too large for it. Then the general functions compute the model. */
    if (!ff_refresh_small(c->total, full_lambda, floor, c->lambda_step, d, c->w, c->theta, &lambda,
                          &inverse)) {
        /* Direct radius: lower lambda as far as every eigenvalue of V stays above `floor`. */
        lambda = ff_choose_regularizer(c->total, full_lambda, floor, d, c->w, p.packed);
        shift = ff_refresh(c->total, lambda, d, c->w, c->theta, p.packed);
        if (shift < 0.0)
            return FF_NOT_POSITIVE_DEFINITE;
        *c->indefinite += shift > 0.0;
        /* Many choices by bounds on bonuses need no slack. It is computed at its first use. */
        slack_later = c->lazy && c->bonus_cache.silo && !c->score && !c->serves &&
                      lambda == full_lambda && shift == 0.0;
        if (lambda < full_lambda || (c->widths && !slack_later))
            inverse = ff_inverse_norm(c->w, d, p.bound);
    }
    /* The guess for the next release: lambda in eighths of full_lambda. */
    c->lambda_step = lambda < full_lambda ? (int64_t)(8.0 * lambda / full_lambda + 0.5) : 8;
    if (c->direct) {
        c->inflation = ff_inflation(full_lambda - lambda, c->floor[k], inverse);
        c->second_bonus =
            c->radius.multiplier * (c->tau * (lambda + shift) + c->error_bound[k]);
    }
    if (c->radius.determinant) {
        c->log_det = ff_log_volume(&c->radius, c->w, d);
        c->log_inflation = ff_log_inflation(&c->radius, c->inflation);
    }
    if (c->widths)
        c->sieve.slack = slack_later    ? FF_SLACK_LATER
                         : shift == 0.0 ? ff_policy_slack(c, inverse, d)
                                        : 1.0;
    c->alike = ff_multiple_of_identity(c->w, d) != 0.0;
    if (c->bonus_cache.silo) {
        /* All silos will choose in the rounds after last_end, up to next_end or the horizon. */
        const int64_t last_end = c->trigger.last, next_end = ff_next_end(c);
        const double rounds =
            (double)((next_end < run->horizon ? next_end : run->horizon) - last_end);
        ff_bonus_cache_refresh(&c->bonus_cache, c->w, c->released,
                               ff_policy_radius(c, c->log_det, last_end + 1, d), c->second_bonus,
                               rounds * (double)(run->silos * run->environment->actions),
                               run->silos, d, p.bound);
    }
    if (c->trigger.kind)
        ff_trigger_restart(&c->trigger, c->total, lambda + shift, c->w, run->silos, d, p.trigger);
    for (int64_t i = 0; ff_learns(c) && i < run->silos; i++)
        c->log_dets[i] = c->log_det;
    /* Silos learn separately from here on, so each gets a copy of W and theta. */
    for (int64_t i = 1; ff_learns(c) && i < run->silos; i++) {
        /* Entries above the diagonal are zero already. */
        for (int64_t j = 0; j < d; j++)
            memcpy(c->w + i * d * d + j * d, c->w + j * d, (size_t)(j + 1) * sizeof(double));
        memcpy(c->theta + i * d, c->theta, (size_t)d * sizeof(double));
    }
    return FF_OK;
}
