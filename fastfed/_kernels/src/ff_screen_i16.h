/* Screening in 16-bit integers, which processors with AVX2, or AVX-512 VNNI, multiply fastest.
 *
 * Actions, W and theta are quantised to int16 (ff_quantise_i16.c, ff_screen_i16_factor.c).
 * Products are exact in 32 bits, so only quantisation and a few float32 operations cost accuracy,
 * and their error is bounded (ff_screen_i16.c). */
#ifndef FF_SCREEN_I16_H
#define FF_SCREEN_I16_H

#include "ff_base.h"
#include "ff_scores.h"

/* 1 if this build and this processor have the instructions. */
int64_t ff_screen_i16_available(void);

/* 1 if this processor has the instructions, and these actions the layout (float32, features side by
 * side) and the dimension for it. */
int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d);

/* Bytes that K actions take in 16 bits; a multiple of 64. */
int64_t ff_quantised_bytes(int64_t d, int64_t actions);

/* Quantises actions, each scaled to the same length, into `quantised` (64-byte aligned). */
void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised);

/* Actions in 16 bits, kept from their second use on: those of block q stand at buffer + starts[q]
 * once made[q] is FF_QUANTISED_MADE. */
#define FF_QUANTISED_MADE 1
typedef struct {
    char *buffer; /* 64-byte aligned */
    const int64_t *starts;
    uint8_t *made;
} ff_quantised_store;

/* Block q, whose actions these are, in 16 bits; NULL where they do not fit, or another thread makes
 * it. Until it is kept it stands in `room`, which has space for it and is 64-byte aligned. */
const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict room);

/* Doubles of scratch for at most K actions, those in 16 bits among them. */
int64_t ff_screen_i16_scratch(int64_t d, int64_t actions);

/* As ff_screen_f32 without a second bonus: every action whose score <x, theta> + beta ||W x|| may
 * be the largest, ascending, into candidates (K); returns how many. It keeps more of them, for its
 * bounds are off by some 1e-3 of a bonus. -1: it cannot tell. */
int64_t ff_screen_i16(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates);

#endif
