#include "ff_coins.h"

#include "ff_vectors.h"

#define ROUNDS FF_COIN_ROUNDS
#define LANES FF_PHILOX_LANES
/* Number of bits, and of words of 32 bits, in a block. */
#define BLOCK_BITS 128
#define WORDS 4
/* Largest numbers of binary digits: of the number of all silos times FF_COIN_ROUNDS; and of the
 * number of silos in a group (at most 128), plus one digit. */
#define DIGITS 48
#define DIGITS_OF_GROUP 9

#if defined(__GNUC__)
/* A vector of counts that need not be aligned to vectors. */
typedef int64_t loose_counts __attribute__((vector_size(FF_BYTES), aligned(8)));
#endif

/* Return G, the number of silos in a group. */
FF_INLINE int64_t group_size(int64_t d) { return d > BLOCK_BITS / 2 ? 1 : BLOCK_BITS / d; }

/* Return the number of blocks in the string of a group: one, unless d is above 128. */
FF_INLINE int64_t block_count(int64_t d) { return (d + BLOCK_BITS - 1) / BLOCK_BITS; }

/* Return S, the number of Philox blocks from one plane to the next: the number of blocks rounded up
 * to a power of two, or to a multiple of LANES. So a call that computes LANES Philox blocks
 * computes whole planes, or LANES blocks of one plane. */
FF_INLINE int64_t plane_stride(int64_t d)
{
    const int64_t blocks = block_count(d);
    int64_t stride = 1;
    while (stride < blocks && stride < LANES)
        stride *= 2;
    return blocks <= LANES ? stride : (blocks + LANES - 1) / LANES * LANES;
}

/* Rows of the masks (MASKS = 64, WORDS, plane_stride(d)): the coins with chance 1 (SURE); for every
 * plane p, its bits of the chances (BITS + p); for every plane p, the coins that it or a later
 * plane may still set to 1 (OPEN + p): those whose chance, below 1, has a 1 in these planes. */
enum { SURE = 0, BITS = 1, OPEN = BITS + FF_CHANCE_BITS, MASKS = OPEN + FF_CHANCE_BITS + 1 };

/* Return the number of 64-bit integers that the masks fill. */
int64_t ff_coins_masks(int64_t experts) { return MASKS * WORDS * plane_stride(experts) / 2; }

/* Return the address of word w of a row of the masks, for block 0; the words of other blocks
 * follow. */
FF_INLINE const uint32_t *masks_of(const ff_coins *c, int64_t row, int64_t w)
{
    return (const uint32_t *)c->masks + (row * WORDS + w) * c->stride;
}

/* Return coins that are 1 with probabilities chance[k] / 2^31 for each expert k < d, and write
 * their masks: for each bit of the string of a group, its part of the rows SURE, BITS + p and
 * OPEN + p. */
ff_coins ff_coins_make(const uint32_t *chance, int64_t experts, uint64_t *masks)
{
    const int64_t size = group_size(experts), stride = plane_stride(experts);
    const ff_coins coins = {experts, stride, masks};
    memset(masks, 0, (size_t)ff_coins_masks(experts) * sizeof *masks);
    for (int64_t bit = 0; bit < size * experts; bit++) {
        const uint32_t c = chance[bit % experts], mask = 1u << bit % 32;
        /* The word with this bit in row SURE = 0; it is the same word of every other row. */
        uint32_t *word = (uint32_t *)masks + bit % BLOCK_BITS / 32 * stride + bit / BLOCK_BITS;
        word[SURE * WORDS * stride] |= c >> FF_CHANCE_BITS ? mask : 0;
        for (int p = 0; p < FF_CHANCE_BITS; p++) {
            /* The bits of the chance that plane p and later planes are compared with, plane p's
             * first (highest). */
            const uint32_t from_here = c << (32 - FF_CHANCE_BITS) << p;
            word[(BITS + p) * WORDS * stride] |= from_here >> 31 ? mask : 0;
            word[(OPEN + p) * WORDS * stride] |= from_here ? mask : 0;
        }
    }
    return coins;
}

/* Return a mask of word w of a block: ones at bits from, .., to - 1 of the block, as far as they
 * lie in this word. */
FF_INLINE uint32_t bits_of_word(int64_t from, int64_t to, int64_t w)
{
    const int64_t low = from - 32 * w > 0 ? from - 32 * w : 0;
    const int64_t high = to - 32 * w < 32 ? to - 32 * w : 32;
    return high > low ? (uint32_t)((1ull << high) - (1ull << low)) : 0;
}

#if defined(__GNUC__)
typedef uint32_t words_of_rounds __attribute__((vector_size(FF_BYTES)));
typedef uint16_t counts_of_rounds __attribute__((vector_size(FF_BYTES < 32 ? FF_BYTES : 32)));
#else
typedef uint32_t words_of_rounds;
typedef uint16_t counts_of_rounds;
#endif
/* Number of vectors that one word, or one count of 16 bits, takes in all rounds. */
#define PARTS ((int)(sizeof(uint32_t) * ROUNDS / sizeof(words_of_rounds)))
#define PARTS16 ((int)(sizeof(uint16_t) * ROUNDS / sizeof(counts_of_rounds)))

/* Decide 32 coins, or those of every lane of a vector, by one plane: U is below c if their first
 * different bit is 1 in c. random: the bits of U; bits: those of c; later: the coins that later
 * planes may set to 1. Sets bits of `ones`, and clears the bits of decided coins in `open`. */
#define DECIDE(ones, open, random, bits, later)                                                    \
    ((ones) |= (open) & (bits) & ~(random), (open) &= ~((bits) ^ (random)) & (later))

/* Draw the coins of bits `from` to `to` - 1 of a block in ROUNDS rounds: ones[w] receives the coins
 * of word w, and its other bits are 0. `rounds` lists the ROUNDS rounds. If it is NULL, they are
 * s->index, s->index + 1, ...; this is faster: with a list instead, a run of follow-the-leader with
 * one client would take 1.09 times as long. */
static void draw_rounds(const ff_coins *c, const ff_stream *s, const uint32_t *rounds,
                        int64_t block, int64_t from, int64_t to,
                        words_of_rounds (*restrict ones)[PARTS])
{
    words_of_rounds open[WORDS][PARTS], random[WORDS][PARTS];
    const int64_t begin = from / 32, end = (to + 31) / 32, stride = c->stride;
    for (int64_t w = 0; w < WORDS; w++)
        for (int i = 0; i < PARTS; i++) {
            const uint32_t within = bits_of_word(from, to, w);
            ones[w][i] = (words_of_rounds){0} + (masks_of(c, SURE, w)[block] & within);
            open[w][i] = (words_of_rounds){0} + (masks_of(c, OPEN, w)[block] & within);
        }
    /* One plane after the other, until no coin is open. */
    for (int p = 0; p < FF_CHANCE_BITS; p++) {
        if (rounds)
            ff_philox_listed(s, (uint32_t)(stride * p + block), rounds,
                             (uint32_t(*)[ROUNDS])random);
        else
            ff_philox_indices(s, (uint32_t)(stride * p + block), (uint32_t(*)[ROUNDS])random);
        words_of_rounds any = {0};
        for (int64_t w = begin; w < end; w++) {
            const uint32_t bits = masks_of(c, BITS + p, w)[block];
            const uint32_t later = masks_of(c, OPEN + p + 1, w)[block];
            for (int i = 0; i < PARTS; i++) {
                DECIDE(ones[w][i], open[w][i], random[w][i], bits, later);
                any |= open[w][i];
            }
        }
        const words_of_rounds none = {0};
        if (memcmp(&any, &none, sizeof any) == 0)
            return;
    }
}

/* Draw the coins of bits `from` to `to` - 1 of the string of a group that has only one block, in
 * round s->index: ones[w] receives the coins of word w. Its other bits are not specified. */
static void draw_block(const ff_coins *c, const ff_stream *s, int64_t from, int64_t to,
                       uint32_t *restrict ones)
{
    uint32_t open[WORDS], random[WORDS][LANES];
    const int64_t begin = from / 32, end = (to + 31) / 32;
    for (int64_t w = begin; w < end; w++) {
        ones[w] = *masks_of(c, SURE, w);
        open[w] = *masks_of(c, OPEN, w) & bits_of_word(from, to, w);
    }
    for (int p = 0; p < FF_CHANCE_BITS; p++) {
        /* One call computes LANES planes: with one block, each plane is one Philox block. */
        const int lane = p % LANES;
        if (lane == 0)
            ff_philox_blocks(s, (uint32_t)p, random);
        uint32_t any = 0;
        for (int64_t w = begin; w < end; w++) {
            DECIDE(ones[w], open[w], random[w][lane], *masks_of(c, BITS + p, w),
                   *masks_of(c, OPEN + p + 1, w));
            any |= open[w];
        }
        if (!any)
            return;
    }
}

/* Draw the coins of up to LANES blocks, from block `first` on, in round s->index: ones[w][j]
 * receives the coins of word w of block first + j. */
static void draw_blocks(const ff_coins *c, const ff_stream *s, int64_t first,
                        uint32_t (*restrict ones)[LANES])
{
    uint32_t open[WORDS][LANES], random[WORDS][LANES];
    const int64_t stride = c->stride, count = stride < LANES ? stride : LANES;
    for (int64_t w = 0; w < WORDS; w++)
        for (int64_t j = 0; j < count; j++) {
            ones[w][j] = masks_of(c, SURE, w)[first + j];
            open[w][j] = masks_of(c, OPEN, w)[first + j];
        }
    for (int64_t p = 0; p < FF_CHANCE_BITS; p++) {
        /* One call computes LANES Philox blocks: LANES blocks of plane p, or, if a plane has only
         * `count` < LANES of them, LANES / count planes. Plane p begins in lane `lane`. */
        const int64_t lane = p * count % LANES;
        if (lane == 0)
            ff_philox_blocks(s, (uint32_t)(stride * p + first), random);
        uint32_t any = 0;
        for (int64_t w = 0; w < WORDS; w++) {
            const uint32_t *bits = masks_of(c, BITS + p, w) + first;
            const uint32_t *later = masks_of(c, OPEN + p + 1, w) + first;
            for (int64_t j = 0; j < count; j++) {
                DECIDE(ones[w][j], open[w][j], random[w][lane + j], bits[j], later[j]);
                any |= open[w][j];
            }
        }
        if (!any)
            return;
    }
}

/* Write bits low, .., high - 1 of a word to row[low], .., row[high - 1]. */
FF_INLINE void write_bits(uint32_t bits, int64_t low, int64_t high, uint32_t *restrict row)
{
    if (low == 0 && high == 32)
        for (int i = 0; i < 32; i++)
            row[i] = bits >> i & 1;
    else
        for (int64_t i = low; i < high; i++)
            row[i] = bits >> i & 1;
}

/* Write the coins of one silo and round to row (d). *s: the stream of silo 0 with index 0. The
 * silo's coins are bits `from` to from + d - 1 of the string of its group of `size` silos. If the
 * string has several blocks, the group is one silo, and `from` is 0. */
void ff_coins_row(const ff_coins *c, const ff_stream *s, int64_t silo, int64_t round,
                  uint32_t *restrict row)
{
    const int64_t d = c->experts, size = group_size(d), from = silo % size * d;
    const int64_t blocks = block_count(d);
    ff_stream stream = *s;
    stream.silo = (uint32_t)(silo / size);
    stream.index = (uint32_t)round;
    if (blocks == 1) {
        uint32_t ones[WORDS];
        draw_block(c, &stream, from, from + d, ones);
        for (int64_t w = from / 32; 32 * w < from + d; w++) {
            /* Bit i of the word is the coin of expert base + i, if that is in 0..d-1. */
            const int64_t base = 32 * w - from;
            write_bits(ones[w], base < 0 ? -base : 0, d - base < 32 ? d - base : 32, row + base);
        }
        return;
    }
    for (int64_t first = 0; first < blocks; first += LANES) {
        uint32_t ones[WORDS][LANES];
        draw_blocks(c, &stream, first, ones);
        for (int64_t j = 0; j < LANES; j++)
            for (int64_t w = 0; w < WORDS; w++) {
                const int64_t base = (first + j) * BLOCK_BITS + 32 * w;
                if (base < d)
                    write_bits(ones[w][j], 0, d - base < 32 ? d - base : 32, row + base);
            }
    }
}

/* A word of 32 bits for each word of a block and each round. The bits are coins or, if silos are
 * added up, one binary digit of the number of ones of each expert. In digit[p] this is the digit of
 * value 2^p. */
typedef words_of_rounds block_words[WORDS][PARTS];

/* Add the bits `sum`, `other` and `carry` in each place: `sum` receives the lower digit of the
 * result, `carry` the higher one. */
#define ADD_BITS(type, sum, other, carry)                                                          \
    do {                                                                                           \
        const type both = (sum) & (other), either = (sum) ^ (other);                               \
        (sum) = either ^ (carry);                                                                  \
        (carry) = both | (either & (carry));                                                       \
    } while (0)

/* Return the number of binary digits of n. */
FF_INLINE int64_t digits_of(int64_t n)
{
    int64_t digits = 0;
    while (n >> digits)
        digits++;
    return digits;
}

/* Return part i of the 32 bits of a block from bit `from` on, in each round. */
FF_INLINE words_of_rounds bits_from(const block_words words, int64_t from, int i)
{
    const int64_t w = from / 32, shift = from % 32;
    const words_of_rounds low = words[w][i] >> (uint32_t)shift;
    return shift && w + 1 < WORDS ? low | words[w + 1][i] << (uint32_t)(32 - shift) : low;
}

/* Add up the coins of `silos` silos of a group, in place. digit[0] holds the coins, d bits for each
 * silo, one silo after the other. Afterwards the first d bits of digit[p] are binary digit p of the
 * d sums; other bits are not specified. Each turn of the outer loop adds the second half of the
 * silos to the first half. */
static void add_silos(block_words *restrict digit, int64_t silos, int64_t d)
{
    for (int64_t digits = 1; silos > 1; digits++) {
        const int64_t half = (silos + 1) / 2, half_bits = half * d;
        for (int64_t w = 0; 32 * w < half_bits; w++) {
            const uint32_t within = bits_of_word(0, silos * d - half_bits, w);
            for (int i = 0; i < PARTS; i++) {
                words_of_rounds carry = {0};
                for (int64_t p = 0; within && p < digits; p++) {
                    const words_of_rounds other =
                        bits_from(digit[p], half_bits + 32 * w, i) & within;
                    ADD_BITS(words_of_rounds, digit[p][w][i], other, carry);
                }
                digit[digits][w][i] = carry;
            }
        }
        silos = half;
    }
}

/* For the experts of one block, count how many silos have a 1, in each of ROUNDS rounds. The block
 * has the experts BLOCK_BITS block + k with 0 <= k < BLOCK_BITS. Binary digit p of the count of
 * such an expert goes to bit k of digit[p], that is to bit k mod 32 of word floor(k / 32). Other
 * bits are not specified. `digit` has space for DIGITS digits; the counts have digits_of(silos)
 * digits. */
static void count_coins(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t block,
                        block_words *restrict digit)
{
    /* If bit p of `waits` is 1, waiting[p] holds bits of value 2^p that are not yet added to
     * `digit`. They are added together with the next bits of the same value, so only few digits
     * change for each group. */
    block_words waiting[DIGITS], group[DIGITS_OF_GROUP];
    const int64_t coins = c->experts - BLOCK_BITS * block, digits = digits_of(silos);
    const int64_t width = coins < BLOCK_BITS ? coins : BLOCK_BITS, words = (width + 31) / 32;
    const int64_t size = group_size(c->experts);
    ff_stream stream = *s;
    uint64_t waits = 0;
    if (silos <= size) {
        draw_rounds(c, &stream, NULL, block, 0, silos * width, digit[0]);
        add_silos(digit, silos, width);
        return;
    }
    /* One digit more than the counts have. The loop below works as if every digit of the groups'
     * sums could be 1, so it may also add bits of value 2^digits, which are always 0. */
    memset(digit, 0, (size_t)(digits + 1) * sizeof *digit);
    for (int64_t silo = 0; silo < silos; silo += size) {
        const int64_t count = silos - silo < size ? silos - silo : size;
        stream.silo = (uint32_t)(silo / size);
        draw_rounds(c, &stream, NULL, block, 0, count * width, group[0]);
        add_silos(group, count, width);
        /* Add digit q of the group's sum. The carry of an addition replaces it in group[q]. */
        for (int64_t q = 0; count >> q; q++) {
            int64_t p = q;
            for (; waits >> p & 1; waits ^= 1ull << p++)
                for (int64_t w = 0; w < words; w++)
                    for (int i = 0; i < PARTS; i++)
                        ADD_BITS(words_of_rounds, digit[p][w][i], waiting[p][w][i],
                                 group[q][w][i]);
            memcpy(waiting[p], group[q], (size_t)words * sizeof *group[q]);
            waits |= 1ull << p;
        }
    }
    for (int64_t w = 0; w < words; w++)
        for (int i = 0; i < PARTS; i++) {
            words_of_rounds carry = {0};
            for (int64_t p = 0; p < digits; p++) {
                const words_of_rounds none = {0}, other = waits >> p & 1 ? waiting[p][w][i] : none;
                ADD_BITS(words_of_rounds, digit[p][w][i], other, carry);
            }
        }
}

/* Return 64 bits of a block in round l: words 2 h and 2 h + 1, its lower or upper half (h = 0 or
 * 1). */
FF_INLINE uint64_t half_of(const block_words words, int64_t h, int64_t l)
{
    const uint32_t *low = (const uint32_t *)words[2 * h];
    const uint32_t *high = (const uint32_t *)words[2 * h + 1];
    return low[l] | (uint64_t)high[l] << 32;
}

/* total[k] += times (bit k of `bits`), for k < n. */
FF_INLINE void add_bits(uint64_t bits, int64_t n, int64_t times, int64_t *restrict total)
{
    int64_t k = 0;
#if defined(__GNUC__)
    masks bit;
    for (int j = 0; j < WIDTH; j++)
        bit[j] = (int64_t)1 << j;
    for (; k + WIDTH <= n; k += WIDTH, bits >>= WIDTH) {
        const masks is_one = ((int64_t)bits & bit) == bit; /* -1 or 0 */
        *(loose_counts *)(total + k) += is_one & times;
    }
#endif
    for (; k < n; k++, bits >>= 1)
        total[k] += times & -(int64_t)(bits & 1);
}

/* For each i < n, count how many silos have a 1 in round first + i, for each of the d experts, and
 * add `times` times the counts to the array to[i] (d). */
void ff_coins_add(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first, int64_t n,
                  int64_t times, int64_t *const *to)
{
    const int64_t d = c->experts, digits = digits_of(silos);
    block_words digit[DIGITS];
    ff_stream stream = *s;
    stream.index = (uint32_t)first;
    for (int64_t start = 0; start < d; start += BLOCK_BITS) {
        count_coins(c, &stream, silos, start / BLOCK_BITS, digit);
        /* If neighbouring rounds from, .., end - 1 have the same target array, first add up their
         * counts in binary digits, 64 experts at a time (half h of the block). */
        for (int64_t from = 0, end; from < n; from = end) {
            for (end = from + 1; end < n && to[end] == to[from];)
                end++;
            const int64_t all_digits = digits_of(silos * (end - from));
            for (int64_t h = 0; 64 * h < d - start && 64 * h < BLOCK_BITS; h++) {
                const int64_t width = d - start - 64 * h < 64 ? d - start - 64 * h : 64;
                uint64_t sum[DIGITS];
                for (int64_t p = 0; p < all_digits; p++)
                    sum[p] = p < digits ? half_of(digit[p], h, from) : 0;
                for (int64_t l = from + 1; l < end; l++) {
                    uint64_t carry = 0;
                    for (int64_t p = 0; p < all_digits && (p < digits || carry); p++) {
                        const uint64_t other = p < digits ? half_of(digit[p], h, l) : 0;
                        ADD_BITS(uint64_t, sum[p], other, carry);
                    }
                }
                for (int64_t p = 0; p < all_digits; p++)
                    add_bits(sum[p], width, times << p, to[from] + start + 64 * h);
            }
        }
    }
}

/* Set columns[k][l] to the number of silos at which expert k has a 1 in round first + l, multiplied
 * by `times`. Rounds are the lanes of vectors. */
void ff_coins_columns(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first,
                      int64_t times, int16_t (*restrict columns)[ROUNDS])
{
    const int64_t d = c->experts, digits = digits_of(silos);
    block_words digit[DIGITS];
    ff_stream stream = *s;
    stream.index = (uint32_t)first;
    count_coins(c, &stream, silos, 0, digit);
    for (int64_t start = 0; start < d; start += 16) {
        /* The digits of 16 experts in 16 bits for each round, so that vectors have twice as many
         * lanes. */
        counts_of_rounds digit16[DIGITS][PARTS16];
        for (int64_t p = 0; p < digits; p++) {
            const uint32_t *words = (const uint32_t *)digit[p][start / 32];
            uint16_t *bits = (uint16_t *)digit16[p];
            for (int l = 0; l < ROUNDS; l++)
                bits[l] = (uint16_t)(words[l] >> start % 32);
        }
        for (int64_t k = start; k < d && k < start + 16; k++)
            for (int i = 0; i < PARTS16; i++) {
                counts_of_rounds sum = {0};
                for (int64_t p = digits - 1; p >= 0; p--)
                    sum = sum + sum + (digit16[p][i] >> (uint16_t)(k - start) & 1);
                sum *= (uint16_t)times;
                memcpy((char *)columns[k] + (size_t)i * sizeof sum, &sum, sizeof sum);
            }
    }
}

/* For each of the d experts, add the number of ones at one silo in n rounds to counts (d). Rounds
 * are the lanes of vectors: each lane counts the ones of every ROUNDS-th round, in binary digits.
 * The lanes are added up at the end. */
void ff_coins_count(const ff_coins *c, const ff_stream *s, int64_t silo, const int64_t *rounds,
                    int64_t n, int64_t *restrict counts)
{
    const int64_t d = c->experts, size = group_size(d);
    const int64_t digits = digits_of((n + ROUNDS - 1) / ROUNDS);
    ff_stream stream = *s;
    stream.silo = (uint32_t)(silo / size);
    for (int64_t start = 0; start < d; start += BLOCK_BITS) {
        block_words digit[DIGITS], ones;
        const int64_t width = d - start < BLOCK_BITS ? d - start : BLOCK_BITS;
        /* The silo's first bit in the block; 0 if there are several blocks, because size is 1
         * then. */
        const int64_t from = silo % size * d;
        memset(digit, 0, (size_t)digits * sizeof *digit);
        for (int64_t base = 0; base < n; base += ROUNDS) {
            uint32_t index[ROUNDS];
            for (int64_t l = 0; l < ROUNDS; l++)
                index[l] = (uint32_t)rounds[base + l < n ? base + l : n - 1];
            draw_rounds(c, &stream, index, start / BLOCK_BITS, from, from + width, ones);
            /* Lanes past the last round do not count. */
            for (int64_t w = 0; w < WORDS; w++)
                for (int64_t l = n - base; l < ROUNDS; l++)
                    ((uint32_t *)ones[w])[l] = 0;
            for (int64_t w = from / 32; 32 * w < from + width; w++)
                for (int i = 0; i < PARTS; i++) {
                    /* Adding 0 or 1 to a number is a carry into its lowest digit. */
                    words_of_rounds carry = ones[w][i];
                    const words_of_rounds none = {0};
                    for (int64_t p = 0; p < digits; p++)
                        ADD_BITS(words_of_rounds, digit[p][w][i], none, carry);
                }
        }
        for (int64_t p = 0; p < digits; p++) {
            /* Digit p, shifted so that bit 0 is the silo's first expert. */
            block_words aligned;
            for (int64_t w = 0; w < WORDS; w++)
                for (int i = 0; i < PARTS; i++)
                    aligned[w][i] = 32 * w < width ? bits_from(digit[p], from + 32 * w, i)
                                                   : (words_of_rounds){0};
            for (int64_t l = 0; l < ROUNDS; l++)
                for (int64_t h = 0; 64 * h < width; h++)
                    add_bits(half_of(aligned, h, l), width - 64 * h < 64 ? width - 64 * h : 64,
                             (int64_t)1 << p, counts + start + 64 * h);
        }
    }
}
