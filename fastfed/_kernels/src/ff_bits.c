#include "ff_bits.h"

#include <math.h>

/* Round each of the s entries of a data point, in [-1, 1], at random to a multiple of 1 / g, and
 * add g times the multiple to sums (s). If `clamped`, the multiple is in [-1, 1] too. One word of
 * `random` decides each entry. */
void ff_round_point(const double *restrict point, int64_t s, double g, int64_t clamped,
                    const uint32_t *restrict random, double *restrict sums)
{
    /* Adding and subtracting 1.5 2^52 rounds to the nearest integer, in the same way on every
     * processor. */
    const double magic = 6755399441055744.0, beyond = 1125899906842624.0;
    const double low = clamped ? 0.0 : -beyond, high = clamped ? 2.0 * g : beyond;
    for (int64_t j = 0; j < s; j++) {
        double v = (point[j] + 1.0) * g;
        v = v < low ? low : v;
        v = v > high ? high : v;
        double down = (v + magic) - magic;
        down -= down > v ? 1.0 : 0.0;
        /* random[j] 2^-32, through a signed integer, because AVX2 cannot convert unsigned ones. */
        const double u = (double)(int32_t)(random[j] ^ 0x80000000u) * 2.3283064365386963e-10 + 0.5;
        down += u < v - down ? 1.0 : 0.0;
        sums[j] += down - g;
    }
}

/* List the levels of the tree nodes that contain a leaf, lowest first, and return their number. */
int64_t ff_touched_levels(int64_t leaf, int64_t releases, int64_t levels[64])
{
    int64_t count = 0;
    for (int64_t node = leaf; node <= releases; node += node & -node) {
        int64_t level = 0;
        while (!((node >> level) & 1))
            level++;
        levels[count++] = level;
    }
    return count;
}

/* ---- binomial with p = 1/4 ------------------------------------------------------------------ */

/* ln k! - ((k + 1/2) ln k - k + ln(2 pi) / 2) for k = 1..15 (Loader 2000). */
static const double STIRLING[16] = {
    0.0,
    0.08106146679532726,
    0.04134069595540929,
    0.02767792568499834,
    0.02079067210376509,
    0.01664469118982119,
    0.01387612882307075,
    0.01189670994589177,
    0.01041126526197209,
    0.009255462182712733,
    0.008330563433362871,
    0.007573675487951841,
    0.006942840107209530,
    0.006408994188004207,
    0.005951370112758848,
    0.005554733551962801,
};

/* Return the error of Stirling's formula for ln k!, k >= 1: from the table, or by its series. */
static double stirling(int64_t k)
{
    if (k < 16)
        return STIRLING[k];
    const double x = 1.0 / (double)k, z = x * x;
    return x * (1.0 / 12.0 -
                z * (1.0 / 360.0 - z * (1.0 / 1260.0 - z * (1.0 / 1680.0 - z / 1188.0))));
}

/* Return x ln(x / mean) + mean - x, where excess = x - mean is known exactly (Loader 2000). */
static double deviance(double x, double mean, double excess)
{
    if (fabs(excess) >= 0.1 * (x + mean))
        return x * ff_log(x / mean) - excess;
    const double v = excess / (x + mean), z = v * v;
    double sum = excess * v, term = 2.0 * x * v;
    for (int j = 1; j < 200; j++) {
        term *= z;
        const double next_sum = sum + term / (double)(2 * j + 1);
        if (next_sum == sum)
            break;
        sum = next_sum;
    }
    return sum;
}

/* Return ln P(Bin(n, 1/4) = k), minus a constant that depends on n only. excess: k - n / 4. */
static double log_pmf(int64_t k, int64_t n, double excess)
{
    const double x = (double)k, y = (double)(n - k), all = (double)n;
    if (k == 0)
        return all * ff_log(0.75) + 0.5 * ff_log(6.283185307179586) - stirling(n);
    if (k == n)
        return all * ff_log(0.25) + 0.5 * ff_log(6.283185307179586) - stirling(n);
    return -stirling(k) - stirling(n - k) - deviance(x, 0.25 * all, excess) -
           deviance(y, 0.75 * all, -excess) - 0.5 * ff_log(x * (y / all));
}

/* Return k - n / 4 for the smallest k with P(Bin(n, 1/4) <= k) >= u, by sequential search, for
 * small n. */
static double invert_small(double u, int64_t n)
{
    double probability = 1.0;
    for (int64_t i = 0; i < n; i++)
        probability *= 0.75;
    int64_t k = 0;
    while (k < n && u > probability) {
        u -= probability;
        probability *= (double)(n - k) / (double)(3 * (k + 1));
        k++;
    }
    return (double)k - 0.25 * (double)n;
}

#define SMALL 40 /* for smaller n, n / 4 < 10: the rejection method's constants are not proven */

/* Try to draw Bin(n, 1/4) - n / 4 from four random words; return 0 if the try is rejected. */
int64_t ff_binomial_try(const uint32_t random[4], int64_t n, double *out)
{
    const double first = ff_unit(random[0], random[1]);
    if (n < SMALL) {
        *out = invert_small(first, n);
        return 1;
    }
    /* Transformed rejection with squeeze (Hoermann 1993, algorithm BTRS, with the names used
     * there), around the mean: k is `quarter` + `offset`. */
    const int64_t quarter = n >> 2, remainder = n & 3;
    const double p = 0.25, std = sqrt((double)n * (p * (1.0 - p)));
    const double b = 1.15 + 2.53 * std, a = -0.0873 + 0.0248 * b + 0.01 * p;
    const double u = first - 0.5, us = 0.5 - fabs(u), fraction = 0.25 * (double)remainder;
    double v = ff_unit(random[2], random[3]);
    const double offset = floor((2.0 * a / us + b) * u + fraction + 0.5);
    if (us >= 0.07 && v <= 0.92 - 4.2 / b) {
        *out = offset - fraction;
        return 1;
    }
    if (!(fabs(offset) < 2305843009213693952.0))
        return 0;
    const int64_t k = quarter + (int64_t)offset;
    if (k < 0 || k > n)
        return 0;
    const int64_t step = remainder == 3, mode = quarter + step;
    v = v * ((2.83 + 5.1 / b) * std) / (a / (us * us) + b);
    if (ff_log(v) > log_pmf(k, n, offset - fraction) - log_pmf(mode, n, (double)step - fraction))
        return 0;
    *out = offset - fraction;
    return 1;
}

/* Draw `count` independent numbers from Bin(n, 1/4) - n / 4 by rejection. */
void ff_binomials(const ff_stream *stream, int64_t n, int64_t count, double *restrict out)
{
    for (int64_t j = 0; j < count; j++) {
        uint32_t random[4], block = (uint32_t)j;
        for (;;) {
            ff_philox(stream, block, random);
            if (ff_binomial_try(random, n, &out[j]))
                break;
            block += (uint32_t)count; /* try i of entry j uses block j + i count */
        }
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Write a message of `length` bits, of which the first `ones` are 1. */
void ff_encode_bits(int64_t ones, int64_t length, uint8_t *restrict bits)
{
    memset(bits, 1, (size_t)ones);
    memset(bits + ones, 0, (size_t)(length - ones));
}

/* A position in a stream: the current block and the number of its words that are used. */
typedef struct {
    const ff_stream *stream;
    uint32_t block, used, random[4];
} cursor;

/* Return the next word of the stream. */
FF_INLINE uint32_t next_word(cursor *c)
{
    if (c->used == 4) {
        ff_philox(c->stream, c->block++, c->random);
        c->used = 0;
    }
    return c->random[c->used++];
}

/* Permute n bits uniformly at random, in place (Fisher-Yates). */
void ff_shuffle_bits(const ff_stream *stream, uint8_t *restrict bits, int64_t n)
{
    cursor c = {stream, 0, 4, {0, 0, 0, 0}};
    for (int64_t i = n - 1; i > 0; i--) {
        /* Lemire's multiply-and-reject. The remainder is needed for few words only. */
        const uint32_t range = (uint32_t)(i + 1);
        uint64_t product = (uint64_t)next_word(&c) * range;
        if ((uint32_t)product < range)
            for (const uint32_t threshold = (0u - range) % range; (uint32_t)product < threshold;)
                product = (uint64_t)next_word(&c) * range;
        const int64_t j = (int64_t)(product >> 32);
        const uint8_t swapped = bits[i];
        bits[i] = bits[j];
        bits[j] = swapped;
    }
}
