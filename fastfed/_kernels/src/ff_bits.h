/* The vector sum by shuffled bits (zhou-chowdhury-2024, Algorithms 5-7, after Cheu et al. 2021):
 * fixed-point rounding, Bin(b, 1/4) noise, bit messages.
 *
 * Sums are kept centred: rounded values less g, binomials less their mean n / 4. Both are public
 * constants, and the centred numbers stay exact in float64 where the raw counts would not. */
#ifndef FF_BITS_H
#define FF_BITS_H

#include "ff_base.h"
#include "ff_random.h"

/* sums <- sums + (x^ - g) for one data point with entries in [-1, 1]: x^ is (x + 1) g rounded up or
 * down at random, up with the fraction's probability. `clamped` holds x^ to 0..2g, the most a
 * message of 2g + b bits can say. One word of 32 bits decides each entry. */
void ff_round_point(const double *restrict point, int64_t s, double g, int64_t clamped,
                    const uint32_t *restrict random, double *restrict sums);

/* Tree nodes that hold leaf `leaf` out of `releases` leaves: their levels, lowest first. */
int64_t ff_touched_levels(int64_t leaf, int64_t releases, int64_t levels[64]);

/* One try at Bin(n, 1/4) - n / 4 from four random random; 0 when the try is rejected. */
int64_t ff_binomial_try(const uint32_t random[4], int64_t n, double *out);

/* `count` independent draws of Bin(n, 1/4) - n / 4 from a stream, n < 2^62. */
void ff_binomials(const ff_stream *stream, int64_t n, int64_t count, double *restrict out);

/* The message of one entry: `ones` ones, then zeros, `length` bits of one byte each. */
void ff_encode_bits(int64_t ones, int64_t length, uint8_t *restrict bits);

/* A uniform random permutation of `n` < 2^32 bits in place. */
void ff_shuffle_bits(const ff_stream *stream, uint8_t *restrict bits, int64_t n);

#endif
