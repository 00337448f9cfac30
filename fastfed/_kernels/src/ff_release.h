/* Noise of prefixes from the noise of nodes: releases with less noise than the p-sum tree.
 * All of it works on standard normals; the standard deviations come afterwards. */
#ifndef FF_RELEASE_H
#define FF_RELEASE_H

#include "ff_base.h"

/* Honaker's estimate of a node of level `level` >= 1 (privacy/releases/prefix_sums.py):
 * estimate <- v node + (1 - v) (sibling + estimate), v = 1 / (2 - 2^-level). */
void ff_honaker(double *restrict estimate, const double *restrict node,
                const double *restrict sibling, int64_t level, int64_t s);

/* The key of the level-0 node that Honaker's tree releases at k; level j stands j further. */
int64_t ff_honaker_number(int64_t k);

/* How many draws the published code of chowdhury-zhou-2022 adds up in prefix k; none for k = 0. */
int64_t ff_nested_draws(int64_t k);

/* out += sum_i weights[i * step] rows[i] over k rows, one after the other: of draws, the noise of a
 * prefix (privacy/releases/prefix_sums.py). */
void ff_add_weighted(const double *restrict rows, const double *restrict weights, int64_t step,
                     int64_t k, int64_t s, double *restrict out);

/* Begins `count` such sums at once, over k rows, which are then read once: sum j, of the weights from
 * weights[j * next] on, stands where row k + j is to be written. */
void ff_begin_weighted(double *rows, int64_t k, int64_t count, const double *restrict weights,
                       int64_t next, int64_t step, int64_t s);

/* out[j] <- values[j] + std[j] Z_j, rounded to the nearest multiple of grid[j], a power of two,
 * where Z_j is known to within `error` of noise[j]. doubtful[j]: that the rounding is not certain,
 * and out[j] one of two neighbours. Returns how many are. */
int64_t ff_round_noisy(const double *restrict values, const double *restrict noise,
                       const double *restrict std, const double *restrict grid, double error,
                       int64_t s, double *restrict out, uint8_t *restrict doubtful);

/* Noise of the next prefix from q buffers (q, s): each becomes its decay times itself plus z, and out
 * <- w_0 z + the sum of weights times buffers. coefficients: w_0, then decay and weight of each
 * (privacy/releases/buffered.py). */
void ff_buffered(const double *restrict z, const double *restrict coefficients, int64_t q,
                 int64_t s, double *restrict buffers, double *restrict out);

/* The first n coefficients of 1 / ((1 - x) b(x)), b the series of those buffers; state: (q). */
void ff_buffered_column(const double *restrict coefficients, int64_t q, int64_t n,
                        double *restrict state, double *restrict out);

#endif
