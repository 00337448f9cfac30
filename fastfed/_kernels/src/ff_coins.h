/* Coins: losses of 0 or 1 of d experts at many silos.
 *
 * Definition. G = max(1, floor(128 / d)) silos form a group: silo i belongs to group floor(i / G).
 * The coins of a group in one round are a string of bits. Expert n of silo i has bit (i mod G) d +
 * n. Bits 128 j .. 128 j + 127 of the string are block j. A coin with chance c / 2^31 is 1 if a
 * uniform integer U of 31 bits is below c. Bit 30 - p of all the U of a block is *plane* p, for p =
 * 0..30: Philox block number S p + j of the stream (seed, FF_CONTEXT, replicate, silo = group,
 * index = round). S is the number of blocks, rounded up to a power of two, or above 16 to a
 * multiple of 16. Bit b of a block is bit b mod 32 of word floor(b / 32).
 *
 * So every coin is a function of its key, and does not depend on the number of silos. U is compared
 * with c one plane after the other. Planes that no undecided coin needs are not computed: a fair
 * coin needs one plane, other coins two on average. */
#ifndef FF_COINS_H
#define FF_COINS_H

#include "ff_random.h"

/* Probabilities are whole multiples of 2^-FF_CHANCE_BITS; there are as many planes. */
#define FF_CHANCE_BITS 31

/* The chances of d experts, as masks of the string of a group. */
typedef struct {
    int64_t experts;       /* d */
    int64_t stride;        /* S */
    const uint64_t *masks; /* ff_coins_masks(d) numbers */
} ff_coins;

/* Return the number of 64-bit integers in ff_coins.masks. */
int64_t ff_coins_masks(int64_t experts);

/* Return coins that are 1 with probabilities chance[n] / 2^31 for n < d, chance[n] <= 2^31, and
 * write their masks, which must live as long as the coins. */
ff_coins ff_coins_make(const uint32_t *chance, int64_t experts, uint64_t *masks);

/* Write the coins (d) of one silo and round; *s is the stream of silo 0 with index 0. */
void ff_coins_row(const ff_coins *c, const ff_stream *s, int64_t silo, int64_t round,
                  uint32_t *restrict row);

/* Add the numbers of ones at one silo in n rounds, listed in `rounds` (n), to counts (d). */
void ff_coins_count(const ff_coins *c, const ff_stream *s, int64_t silo, const int64_t *rounds,
                    int64_t n, int64_t *restrict counts);

/* Number of rounds whose coins are drawn together. */
#define FF_COIN_ROUNDS FF_PHILOX_LANES

/* Add the coins of silos 0..silos-1 in n <= FF_COIN_ROUNDS rounds, from round `first` on, to to[0],
 * .., to[n - 1] (d each). Entries of `to` may be equal; equal ones are neighbours. The coins are
 * added `times` times: 1, or the number of silos if silo 0 stands for all of them. */
void ff_coins_add(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first, int64_t n,
                  int64_t times, int64_t *const *to);

/* Write sums by expert: columns[k][l] is `times` the number of ones of expert k at all silos in
 * round first + l, for d <= FF_COLUMNS and times * silos < 2^15. */
#define FF_COLUMNS 128
void ff_coins_columns(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first,
                      int64_t times, int16_t (*restrict columns)[FF_COIN_ROUNDS]);

#endif
