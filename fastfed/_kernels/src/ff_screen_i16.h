/* Screening in 16-bit integers, which processors with AVX2 or AVX-512 VNNI multiply fastest.
 *
 * Actions, W and theta are quantised to int16 (ff_quantise_i16.c, ff_screen_i16_factor.c). Products
 * are exact in 32 bits, so only quantisation and a few float32 operations cause errors, which are
 * bounded (ff_bonus_bounds.c). */
#ifndef FF_SCREEN_I16_H
#define FF_SCREEN_I16_H

#include "ff_base.h"
#include "ff_scores.h"

/* Return 1 if this build and this processor have the instructions. */
int64_t ff_screen_i16_available(void);

/* Return 1 if this processor has the instructions, and these actions have a suitable layout
 * (float32, feature-major) and dimension. */
int64_t ff_screen_i16_fits(const ff_actions *actions, int64_t d);

/* Return the number of bytes that K actions take in 16 bits; a multiple of 64. */
int64_t ff_quantised_bytes(int64_t d, int64_t actions);

/* Quantise actions, each scaled to the same length, into `quantised` (64-byte aligned). */
void ff_quantise_i16(const ff_actions *actions, int64_t d, void *restrict quantised);

/* Actions in 16 bits, stored from their second use on. Those of block q are at buffer + starts[q]
 * once made[q] is FF_QUANTISED_MADE. */
#define FF_QUANTISED_MADE 1
typedef struct {
    char *buffer;          /* 64-byte aligned */
    const int64_t *starts; /* (blocks + 1): byte offsets */
    uint8_t *made;         /* (blocks): state of each block */
} ff_quantised_store;

/* Return block q, which holds these actions, in 16 bits; NULL if they are unsuitable or another
 * thread is storing the block. Until the block is stored, it is quantised into `buffer` (64-byte
 * aligned). */
const void *ff_quantised_block(const ff_quantised_store *store, int64_t q,
                               const ff_actions *actions, int64_t d, void *restrict buffer);

/* Return the number of doubles of scratch for at most K actions, including the actions in 16
 * bits. */
int64_t ff_screen_i16_scratch(int64_t d, int64_t actions);

#endif
