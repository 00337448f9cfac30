#include "ff_coins.h"

#include "ff_vectors.h"

#define ROUNDS FF_COIN_ROUNDS
#define LANES FF_PHILOX_LANES
/* Number of bits, and of words of 32 bits, in a block. */
#define BLOCK_BITS 128
#define WORDS 4
/* Number of blocks that are drawn before their coins are added. */
#define BLOCKS_TOGETHER 16
/* Largest number of coins that a byte can count. */
#define MOST_IN_BYTE 255

#if defined(__GNUC__)
/* A vector of counts that need not be aligned to vectors. */
typedef int64_t loose_counts __attribute__((vector_size(FF_BYTES), aligned(8)));
#endif

/* bytes_of[b]: a number of 64 bits whose byte i is bit i of b. Adding such numbers counts eight
 * coins at once. */
#define BIT(b, i) ((uint64_t)((b) >> (i) & 1) << 8 * (i))
#define BYTES(b)                                                                                   \
    (BIT(b, 0) | BIT(b, 1) | BIT(b, 2) | BIT(b, 3) | BIT(b, 4) | BIT(b, 5) | BIT(b, 6) | BIT(b, 7))
#define BYTES4(b) BYTES(b), BYTES((b) + 1), BYTES((b) + 2), BYTES((b) + 3)
#define BYTES16(b) BYTES4(b), BYTES4((b) + 4), BYTES4((b) + 8), BYTES4((b) + 12)
#define BYTES64(b) BYTES16(b), BYTES16((b) + 16), BYTES16((b) + 32), BYTES16((b) + 48)
static const uint64_t bytes_of[256] = {BYTES64(0), BYTES64(64), BYTES64(128), BYTES64(192)};

/* Return the number of ones in x. */
FF_INLINE int64_t count_ones(uint64_t x)
{
#if defined(__POPCNT__)
    return __builtin_popcountll(x);
#else
    /* Counts for every 2, 4 and 8 bits; the product adds the counts of all bytes in the highest
     * byte. */
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
    return (int64_t)(x * 0x0101010101010101ull >> 56);
#endif
}

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

/* The masks of all blocks. */
typedef struct {
    /* The coins of expert k at all silos of a group, if there is more than one: every d-th bit. */
    uint64_t column[BLOCK_BITS / 2][2];
    /* Masks (MASKS = 64, WORDS, plane_stride(d)), in rows: the coins with chance 1 (SURE); for
     * every plane, its bits of the chances (BITS); for every plane, the coins that it or a later
     * plane may still set to 1 (OPEN): those whose chance, below 1, has a 1 in these planes. */
    uint32_t masks[];
} all_masks;

/* Rows of the masks: BITS + p and OPEN + p are those of plane p. */
enum { SURE = 0, BITS = 1, OPEN = BITS + FF_CHANCE_BITS, MASKS = OPEN + FF_CHANCE_BITS + 1 };

/* Return the number of 64-bit integers in all_masks. */
int64_t ff_coins_masks(int64_t experts)
{
    const size_t masks = (size_t)(MASKS * WORDS * plane_stride(experts));
    return (int64_t)((sizeof(all_masks) + masks * sizeof(uint32_t)) / sizeof(uint64_t));
}

/* Return the address of word w of a row of the masks, for block 0; that of other blocks follows. */
FF_INLINE const uint32_t *masks_of(const ff_coins *c, int64_t row, int64_t w)
{
    return ((const all_masks *)c->masks)->masks + (row * WORDS + w) * c->stride;
}

/* Return the coins with these chances (d), and write their masks. */
ff_coins ff_coins_make(const uint32_t *chance, int64_t experts, uint64_t *masks)
{
    all_masks *all = (all_masks *)masks;
    const int64_t size = group_size(experts), stride = plane_stride(experts);
    const ff_coins coins = {experts, stride, masks};
    memset(masks, 0, (size_t)ff_coins_masks(experts) * sizeof *masks);
    for (int64_t bit = 0; bit < size * experts; bit++) {
        const uint32_t c = chance[bit % experts], mask = 1u << bit % 32;
        uint32_t *word =
            all->masks + bit % BLOCK_BITS / 32 * stride + bit / BLOCK_BITS;
        word[SURE * WORDS * stride] |= c >> FF_CHANCE_BITS ? mask : 0;
        for (int p = 0; p < FF_CHANCE_BITS; p++) {
            const uint32_t from_here = c << (32 - FF_CHANCE_BITS) << p;
            word[(BITS + p) * WORDS * stride] |= from_here >> 31 ? mask : 0;
            word[(OPEN + p) * WORDS * stride] |= from_here ? mask : 0;
        }
        if (size > 1)
            all->column[bit % experts][bit / 64] |= 1ull << bit % 64;
    }
    return coins;
}

/* Return a mask of word w of a block, with ones at those of bits from, .., to - 1 of the block that
 * are in this word. */
FF_INLINE uint32_t bits_of_word(int64_t from, int64_t to, int64_t w)
{
    const int64_t low = from - 32 * w > 0 ? from - 32 * w : 0;
    const int64_t high = to - 32 * w < 32 ? to - 32 * w : 32;
    return high > low ? (uint32_t)((1ull << high) - (1ull << low)) : 0;
}

/* Decide 32 coins by one plane: U is below c if their first different bit is 1 in c. random: the
 * bits of U; bits: those of c; later: the coins that later planes may set to 1. Sets coins in
 * *ones, and returns the coins that stay open. */
FF_INLINE uint32_t decide(uint32_t *ones, uint32_t open, uint32_t random, uint32_t bits,
                          uint32_t later)
{
    *ones |= open & bits & ~random;
    return open & ~(bits ^ random) & later;
}

/* Draw the first `end` coins of a block in ROUNDS rounds: ones[w][l] are those of word w in round
 * s->index + l. Other bits are 0. */
static void draw_rounds(const ff_coins *c, const ff_stream *s, int64_t block, int64_t end,
                        uint32_t (*restrict ones)[ROUNDS])
{
    uint32_t open[WORDS][ROUNDS], random[WORDS][ROUNDS];
    const int64_t words = (end + 31) / 32, stride = c->stride;
    for (int64_t w = 0; w < WORDS; w++) {
        const uint32_t sure = masks_of(c, SURE, w)[block] & bits_of_word(0, end, w);
        const uint32_t first = masks_of(c, OPEN, w)[block] & bits_of_word(0, end, w);
        for (int l = 0; l < ROUNDS; l++) {
            ones[w][l] = sure;
            open[w][l] = first;
        }
    }
    for (int p = 0; p < FF_CHANCE_BITS; p++) {
        ff_philox_indices(s, (uint32_t)(stride * p + block), random);
        uint32_t any = 0;
        for (int64_t w = 0; w < words; w++) {
            const uint32_t bits = masks_of(c, BITS + p, w)[block];
            const uint32_t later = masks_of(c, OPEN + p + 1, w)[block];
            for (int l = 0; l < ROUNDS; l++) {
                open[w][l] = decide(&ones[w][l], open[w][l], random[w][l], bits, later);
                any |= open[w][l];
            }
        }
        if (!any)
            return;
    }
}

/* Draw coins from, .., to - 1 of the only block in round s->index: ones[w] are those of word w.
 * Other bits are not specified. */
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
        const int lane = p % LANES;
        if (lane == 0)
            ff_philox_blocks(s, (uint32_t)p, random);
        uint32_t any = 0;
        for (int64_t w = begin; w < end; w++) {
            open[w] = decide(&ones[w], open[w], random[w][lane], *masks_of(c, BITS + p, w),
                             *masks_of(c, OPEN + p + 1, w));
            any |= open[w];
        }
        if (!any)
            return;
    }
}

/* Draw the coins of up to LANES blocks, from block `first` on, in round s->index: ones[w][j] are
 * those of word w of block first + j. */
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
        /* One call computes several planes of fewer than LANES blocks. */
        const int64_t lane = p * count % LANES;
        if (lane == 0)
            ff_philox_blocks(s, (uint32_t)(stride * p + first), random);
        uint32_t any = 0;
        for (int64_t w = 0; w < WORDS; w++) {
            const uint32_t *bits = masks_of(c, BITS + p, w) + first;
            const uint32_t *later = masks_of(c, OPEN + p + 1, w) + first;
            for (int64_t j = 0; j < count; j++) {
                open[w][j] =
                    decide(&ones[w][j], open[w][j], random[w][lane + j], bits[j], later[j]);
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

/* Write the coins of one silo and round to row (d). */
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
            /* Bit i of the word is expert base + i. */
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

/* The coins of a block in ROUNDS rounds, as words of 32 bits. */
typedef uint32_t drawn_block[WORDS][ROUNDS];

/* Return bits 64 h, .., 64 h + 63 of a block in round l. */
FF_INLINE uint64_t half_of(drawn_block drawn, int h, int64_t l)
{
    return drawn[2 * h][l] | (uint64_t)drawn[2 * h + 1][l] << 32;
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

/* Add `times` the coins of rounds from, .., to - 1 to total (width), from `count` blocks that hold
 * the coins of one silo each. Bytes count the coins, eight experts in a number of 64 bits, until a
 * byte may be full. */
static void add_rows(drawn_block *drawn, int64_t count, int64_t from, int64_t to, int64_t width,
                     int64_t times, int64_t *restrict total)
{
    uint64_t bytes[BLOCK_BITS / 8] = {0};
    int64_t counted = 0;
    for (int64_t l = from; l < to; l++)
        for (int64_t i = 0; i < count; i++) {
            const uint64_t low = half_of(drawn[i], 0, l), high = half_of(drawn[i], 1, l);
            for (int64_t k = 0; k < 8 && 8 * k < width; k++)
                bytes[k] += bytes_of[low >> 8 * k & 255];
            for (int64_t k = 0; 64 + 8 * k < width; k++)
                bytes[8 + k] += bytes_of[high >> 8 * k & 255];
            counted++;
            if (counted == MOST_IN_BYTE || (l == to - 1 && i == count - 1)) {
                for (int64_t k = 0; k < width; k++)
                    total[k] += times * (int64_t)(bytes[k / 8] >> k % 8 * 8 & 255);
                memset(bytes, 0, sizeof bytes);
                counted = 0;
            }
        }
}

/* Add the coins of rounds from, .., to - 1 to total (width), from `count` blocks that hold the
 * coins of several silos each. The coins of expert k are every width-th bit of a block, from bit k
 * on: the bits in column[k]. */
static void add_groups(drawn_block *drawn, int64_t count, int64_t from, int64_t to, int64_t width,
                       const uint64_t (*restrict column)[2], int64_t *restrict total)
{
    for (int64_t l = from; l < to; l++)
        for (int64_t i = 0; i < count; i++) {
            const uint64_t low = half_of(drawn[i], 0, l), high = half_of(drawn[i], 1, l);
            int64_t k = 0;
            for (; k + 2 <= width; k += 2) {
                total[k] += count_ones(low & column[k][0]) + count_ones(high & column[k][1]);
                total[k + 1] +=
                    count_ones(low & column[k + 1][0]) + count_ones(high & column[k + 1][1]);
            }
            if (k < width)
                total[k] += count_ones(low & column[k][0]) + count_ones(high & column[k][1]);
        }
}

/* Add the coins of n rounds at all silos to to[0], .., to[n - 1] (d each). */
void ff_coins_add(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first, int64_t n,
                  int64_t times, int64_t *const *to)
{
    const int64_t d = c->experts, size = group_size(d), groups = (silos + size - 1) / size;
    drawn_block drawn[BLOCKS_TOGETHER];
    ff_stream stream = *s;
    stream.index = (uint32_t)first;
    for (int64_t start = 0; start < d; start += BLOCK_BITS) {
        const int64_t width = d - start < BLOCK_BITS ? d - start : BLOCK_BITS;
        const int64_t block = start / BLOCK_BITS;
        for (int64_t base = 0; base < groups; base += BLOCKS_TOGETHER) {
            const int64_t count = groups - base < BLOCKS_TOGETHER ? groups - base : BLOCKS_TOGETHER;
            for (int64_t i = 0; i < count; i++) {
                const int64_t rest = silos - (base + i) * size, rows = rest < size ? rest : size;
                stream.silo = (uint32_t)(base + i);
                draw_rounds(c, &stream, block, rows * width, drawn[i]);
            }
            /* Add up rounds with the same target together. */
            for (int64_t from = 0, end; from < n; from = end) {
                int64_t *total = to[from] + start;
                for (end = from + 1; end < n && to[end] == to[from];)
                    end++;
                if (size > 1 && silos > 1)
                    add_groups(drawn, count, from, end, width,
                               ((const all_masks *)c->masks)->column, total);
                else if (count == 1 && end == from + 1)
                    for (int h = 0; 64 * h < width; h++)
                        add_bits(half_of(drawn[0], h, from), width - 64 * h < 64 ? width - 64 * h : 64,
                                 times, total + 64 * h);
                else
                    add_rows(drawn, count, from, end, width, times, total);
            }
        }
    }
}

#if defined(__GNUC__)
typedef uint32_t words_of_rounds __attribute__((vector_size(FF_BYTES)));
#else
typedef uint32_t words_of_rounds;
#endif
/* Number of vectors that one word takes in all rounds. */
#define PARTS ((int)(sizeof(uint32_t) * ROUNDS / sizeof(words_of_rounds)))

/* Write the number of ones among bits from, from + step, .. below `end` of a block in each round to
 * count (ROUNDS). */
FF_INLINE void count_column(drawn_block drawn, uint32_t from, uint32_t end, uint32_t step,
                            uint32_t *restrict count)
{
    words_of_rounds sum[PARTS] = {0};
    for (uint32_t bit = from; bit < end; bit += step)
        for (int i = 0; i < PARTS; i++) {
            words_of_rounds word;
            memcpy(&word, (const char *)drawn[bit / 32] + (size_t)i * sizeof word, sizeof word);
            sum[i] += word >> bit % 32 & 1;
        }
    memcpy(count, sum, sizeof sum);
}

/* Write columns[k][l], `times` the sum of the coins of expert k at all silos in round first + l.
 * Rounds are the lanes of vectors. */
void ff_coins_columns(const ff_coins *c, const ff_stream *s, int64_t silos, int64_t first,
                      int64_t times, int16_t (*restrict columns)[ROUNDS])
{
    const int64_t d = c->experts, size = group_size(d);
    ff_stream stream = *s;
    stream.index = (uint32_t)first;
    for (int64_t silo = 0; silo < silos; silo += size) {
        drawn_block drawn;
        const int64_t end = (silos - silo < size ? silos - silo : size) * d;
        stream.silo = (uint32_t)(silo / size);
        draw_rounds(c, &stream, 0, end, drawn);
        for (int64_t k = 0; k < d; k++) {
            uint32_t count[ROUNDS] FF_ALIGNED;
            count_column(drawn, (uint32_t)k, (uint32_t)end, (uint32_t)d, count);
            for (int l = 0; l < ROUNDS; l++)
                columns[k][l] =
                    (int16_t)((silo ? columns[k][l] : 0) + (int16_t)times * (int16_t)count[l]);
        }
    }
}
