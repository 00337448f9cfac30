/* Noise of prefix sums from independent draws: releases with less noise than the tree of p-sums.
 * All functions work on standard normals; standard deviations are applied afterwards. */
#ifndef FF_RELEASE_H
#define FF_RELEASE_H

#include "ff_base.h"

/* Compute Honaker's estimate of a node of level `level` >= 1 (privacy/releases/prefix_sums.py):
 * estimate <- v node + (1 - v) (sibling + estimate), v = 1 / (2 - 2^-level). */
void ff_honaker(double *restrict estimate, const double *restrict node,
                const double *restrict sibling, int64_t level, int64_t s);

/* Return the number of leaf k of Honaker's tree, whose nodes are numbered in the order of their
 * release. A node of level j that leaf k completes has a number that is higher by j. */
int64_t ff_honaker_number(int64_t k);

/* Return how many draws the published code of chowdhury-zhou-2022 adds up in prefix k; 0 for
 * k = 0. */
int64_t ff_nested_draws(int64_t k);

/* out += sum_i weights[i * step] rows[i] over k rows, in order. If the rows are draws, the sum is
 * the noise of a prefix (privacy/releases/prefix_sums.py). */
void ff_add_weighted(const double *restrict rows, const double *restrict weights, int64_t step,
                     int64_t k, int64_t s, double *restrict out);

/* Compute `count` sums like that of ff_add_weighted over the same k rows, which are read only once.
 * Sum j has the weights from weights[j * next] on; it is stored in row k + j. */
void ff_weighted_sums(double *rows, int64_t k, int64_t count, const double *restrict weights,
                      int64_t next, int64_t step, int64_t s);

/* out[j] <- values[j] + std[j] Z_j, rounded to the nearest multiple of grid[j] (a power of two),
 * where Z_j is within `error` of noise[j]. doubtful[j] is 1 if the rounding is not certain, so
 * out[j] is one of two neighbours. Returns how many are doubtful. */
int64_t ff_round_noisy(const double *restrict values, const double *restrict noise,
                       const double *restrict std, const double *restrict grid, double error,
                       int64_t s, double *restrict out, uint8_t *restrict doubtful);

/* Compute the noise of the next prefix from q buffers (q, s). Each buffer becomes decay times
 * itself plus z, and out <- w_0 z + the weighted sum of the buffers. coefficients: w_0, then decay
 * and weight of each buffer (privacy/releases/buffered.py). */
void ff_buffered(const double *restrict z, const double *restrict coefficients, int64_t q,
                 int64_t s, double *restrict buffers, double *restrict out);

/* Compute the first n coefficients of 1 / ((1 - x) b(x)), where b(x) is the power series by which
 * ff_buffered turns draws z into noise: that of prefix k is sum_j b_j z_{k-j}. state: q doubles of
 * scratch. */
void ff_buffered_column(const double *restrict coefficients, int64_t q, int64_t n,
                        double *restrict state, double *restrict out);

#endif
