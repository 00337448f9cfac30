/* The vector sum by shuffled bits (zhou-chowdhury-2024, Algorithms 5-7, after Cheu et al. 2021):
 * fixed-point rounding, Bin(b, 1/4) noise, messages of bits.
 *
 * Sums are stored centred: rounded values minus g, binomials minus their mean n / 4. Both are
 * public constants, and the centred numbers stay exact in float64 where the raw counts would
 * not. */
#ifndef FF_BITS_H
#define FF_BITS_H

#include "ff_base.h"
#include "ff_random.h"

/* sums <- sums + (x^ - g) for one data point with entries in [-1, 1]. x^ is (x + 1) g, rounded up
 * or down at random; the probability of rounding up is the fraction. `clamped` restricts x^ to
 * 0..2g, because a message has 2g + b bits. One word of 32 random bits decides each entry. */
void ff_round_point(const double *restrict point, int64_t s, double g, int64_t clamped,
                    const uint32_t *restrict random, double *restrict sums);

/* Write the levels of the tree nodes that contain leaf `leaf`, out of `releases` leaves, lowest
 * first. Returns their number. */
int64_t ff_touched_levels(int64_t leaf, int64_t releases, int64_t levels[64]);

/* Try to draw Bin(n, 1/4) - n / 4 from four random words. Returns 0 if the try is rejected. */
int64_t ff_binomial_try(const uint32_t random[4], int64_t n, double *out);

/* Draw `count` independent numbers from Bin(n, 1/4) - n / 4, n < 2^62. */
void ff_binomials(const ff_stream *stream, int64_t n, int64_t count, double *restrict out);

/* Write the message of one entry: `ones` ones, then zeros; `length` bits in one byte each. */
void ff_encode_bits(int64_t ones, int64_t length, uint8_t *restrict bits);

/* Permute n < 2^32 bits uniformly at random, in place. */
void ff_shuffle_bits(const ff_stream *stream, uint8_t *restrict bits, int64_t n);

#endif
