#include "ff_random.h"

#include <math.h>

#include "ff_vectors.h"

/* The two multipliers and the two increments of the key of Philox4x32 (Salmon et al. 2011). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

/* Mix the bits of z: the finaliser of splitmix64 (Steele, Lea, Flood 2014). It spreads nearby seeds
 * over all bits. */
FF_INLINE uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Open the random stream of a purpose, replicate, silo and index. */
ff_stream ff_stream_open(uint64_t seed, uint64_t purpose, uint32_t replicate, uint32_t silo,
                         uint32_t index)
{
    uint64_t key = mix64(mix64(seed + 0x9E3779B97F4A7C15ull) + purpose * 0x9E3779B97F4A7C15ull);
    ff_stream s = {(uint32_t)key, (uint32_t)(key >> 32), replicate, silo, index};
    return s;
}

/* Perform one round of Philox4x32 on counter words c0..c3 with key words k0, k1. */
FF_INLINE void philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                            uint32_t k1)
{
    uint32_t h0 = (uint32_t)(((uint64_t)PHILOX_M0 * *c0) >> 32), l0 = PHILOX_M0 * *c0;
    uint32_t h1 = (uint32_t)(((uint64_t)PHILOX_M1 * *c2) >> 32), l1 = PHILOX_M1 * *c2;
    *c0 = h1 ^ *c1 ^ k0;
    *c1 = l1;
    *c2 = h0 ^ *c3 ^ k1;
    *c3 = l0;
}

/* Compute the four words of one Philox block. */
FF_INLINE void philox_block(uint32_t k0, uint32_t k1, uint32_t block, uint32_t replicate,
                            uint32_t silo, uint32_t index, uint32_t *w0, uint32_t *w1,
                            uint32_t *w2, uint32_t *w3)
{
    uint32_t c0 = block, c1 = index, c2 = silo, c3 = replicate;
    /* Unrolled: a loop here would prevent the caller's loop over blocks from being vectorised. */
#define ROUND(i) philox_round(&c0, &c1, &c2, &c3, k0 + (i)*PHILOX_W0, k1 + (i)*PHILOX_W1)
    ROUND(0u);
    ROUND(1u);
    ROUND(2u);
    ROUND(3u);
    ROUND(4u);
    ROUND(5u);
    ROUND(6u);
    ROUND(7u);
    ROUND(8u);
    ROUND(9u);
#undef ROUND
    *w0 = c0;
    *w1 = c1;
    *w2 = c2;
    *w3 = c3;
}

/* Compute four random words from a key and a counter (Philox 4x32-10). */
void ff_philox(const ff_stream *s, uint32_t block, uint32_t out[4])
{
    philox_block(s->key0, s->key1, block, s->replicate, s->silo, s->index, &out[0], &out[1],
                 &out[2], &out[3]);
}

/* Return 64 random bits that may seed a user's generator. */
uint64_t ff_key(const ff_stream *s)
{
    uint32_t w[4];
    ff_philox(s, 0, w);
    return (uint64_t)w[1] << 32 | w[0];
}

/* ---- float32: Box-Muller with our own polynomials ----------------------------------------- */

/* Vectors of words and signed integers, as wide as lanes32. */
#if defined(__GNUC__)
typedef uint32_t words __attribute__((vector_size(FF_BYTES)));
typedef int32_t integers __attribute__((vector_size(FF_BYTES)));
#define TO_FLOATS(v) __builtin_convertvector(v, lanes32)
#else
typedef uint32_t words;
typedef int32_t integers;
#define TO_FLOATS(v) ((float)(v))
#endif

/* Define a function that returns the same bits as a different type. */
#define SAME_BITS(name, from, to)                                                              \
    FF_INLINE to name(from v)                                                                  \
    {                                                                                          \
        to bits;                                                                               \
        memcpy(&bits, &v, sizeof bits);                                                        \
        return bits;                                                                           \
    }
SAME_BITS(words_of_floats, lanes32, words)
SAME_BITS(floats_of_words, words, lanes32)
SAME_BITS(signed_words, words, integers)
SAME_BITS(unsigned_words, integers, words)

/* The radius of Box-Muller is sqrt(-2 ln u) for u = (a + 1/2) 2^-24, where a has 24 bits; so u is
 * never 0 and never above 1. ln u is computed from the exponent of u and ln m = 2 atanh s, s = (m -
 * 1)/(m + 1). start_radii computes s and the exponent's part of -2 ln u. The factors 2^-24, 2 and
 * -2 are folded into constants; powers of two do not round. */
FF_INLINE void start_radii(words a, lanes32 *s, lanes32 *exponent_part)
{
    const words bits = words_of_floats(TO_FLOATS(signed_words(a)) + 0.5f);
    /* m is in [sqrt(1/2), sqrt(2)), because the bits of sqrt(1/2) are subtracted before the
     * exponent is split off. */
    const words shifted = bits - (0x3F3504F3u + (24u << 23));
    const lanes32 m = floats_of_words((shifted & 0x007FFFFFu) + 0x3F3504F3u);
    *s = (m - 1.0f) / (m + 1.0f);
    *exponent_part = TO_FLOATS(signed_words(shifted) >> 23) * (-2.0f * 0.69314718056f);
}

/* Return the radii sqrt(-2 ln u) from s and the exponent's part of -2 ln u, see start_radii. */
FF_INLINE lanes32 end_radii(lanes32 s, lanes32 exponent_part)
{
    const lanes32 z = s * s;
    const lanes32 p =
        z * (z * (z * (-4.0f * (1.0f / 7.0f)) + -4.0f * (1.0f / 5.0f)) + -4.0f * (1.0f / 3.0f)) +
        -4.0f;
    return roots_of(exponent_part + s * p);
}

/* Compute cos and sin of 2 pi w / 2^32 by Taylor series on [-pi/4, pi/4] around the nearest quarter
 * turn. The two top bits of `turned` count quarter turns. */
FF_INLINE void turn_f32(words w, lanes32 *x, lanes32 *y)
{
    const words turned = w + 0x20000000u;
    const lanes32 a = TO_FLOATS(signed_words(w << 2)) * /* 2 pi / 2^32 */
                      (0.25f * 1.4629180792671596e-09f);
    const lanes32 z = a * a;
    const lanes32 s = a * (z * (z * (z * (-1.0f / 5040.0f) + 1.0f / 120.0f) + -1.0f / 6.0f) + 1.0f);
    const lanes32 c =
        z * (z * (z * (z * (1.0f / 40320.0f) + -1.0f / 720.0f) + 1.0f / 24.0f) + -0.5f) + 1.0f;
    const words sines = words_of_floats(s), cosines = words_of_floats(c);
    /* In odd quarters sine and cosine change places. The other bits are signs. */
    const words is_odd = unsigned_words(signed_words(turned << 1) >> 31);
    const words swapped = (sines ^ cosines) & is_odd;
    *x = floats_of_words(cosines ^ swapped ^ ((turned + 0x40000000u) & 0x80000000u));
    *y = floats_of_words(sines ^ swapped ^ (turned & 0x80000000u));
}

#define LANES FF_PHILOX_LANES
#if defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define UNROLLED
#endif

/* Return the number of floats that the normal generator writes for n values: whole vectors. */
int64_t ff_normal_capacity_f32(int64_t n)
{
    return (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
}

/* Sixteen xoshiro128++ generators side by side (Blackman and Vigna 2021), each started from its own
 * Philox block of the stream. A word costs a third of a Philox word and is still a function of the
 * key. Used for contexts and fixed-point rounding; privacy noise takes every word from Philox. */
typedef struct {
    uint32_t s[4][LANES] FF_ALIGNED; /* word i of the state of every generator */
} xoshiro;

/* The state of as many generators as a vector has lanes. */
typedef struct {
    words s0, s1, s2, s3;
} generators;

#if defined(__GNUC__) && defined(__SSE2__)
#if FF_BYTES == 16
#include <emmintrin.h> /* a tenth of immintrin.h, which takes longer than this file */
#else
#include <immintrin.h>
#endif

typedef uint64_t pairs __attribute__((vector_size(FF_BYTES)));

/* Return the products of the lower halves of the lanes: one instruction, which compilers do not
 * find. */
FF_INLINE pairs products_of(pairs a, pairs b)
{
#if FF_BYTES == 64
    return (pairs)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif FF_BYTES == 32
    return (pairs)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (pairs)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

/* Compute LANES Philox blocks side by side: even lanes in one vector, odd lanes in the other, with
 * counters in the lower halves of the lanes. The upper halves are not used. The lanes differ in
 * their block number or, if index is not NULL, in their index (LANES). */
FF_INLINE void philox_lanes(const ff_stream *s, uint32_t block, const uint32_t *restrict index,
                            uint32_t (*restrict out)[LANES])
{
    const pairs m0 = (pairs){0} + PHILOX_M0, m1 = (pairs){0} + PHILOX_M1, zero = {0};
    for (int first = 0; first < LANES; first += WIDTH32) {
        pairs c[4][2];
        for (int odd = 0; odd < 2; odd++) {
            uint64_t lane[WIDTH] FF_ALIGNED;
            for (int l = 0; l < WIDTH; l++)
                lane[l] = index ? index[first + 2 * l + odd] : (uint64_t)(first + 2 * l + odd);
            pairs number;
            memcpy(&number, lane, sizeof lane);
            c[0][odd] = (index ? zero : number) + block;
            c[1][odd] = index ? number : zero + s->index;
            c[2][odd] = zero + s->silo;
            c[3][odd] = zero + s->replicate;
        }
        uint32_t k0 = s->key0, k1 = s->key1;
        for (int round = 0; round < 10; round++, k0 += PHILOX_W0, k1 += PHILOX_W1)
            for (int odd = 0; odd < 2; odd++) {
                const pairs p0 = products_of(m0, c[0][odd]), p1 = products_of(m1, c[2][odd]);
                c[0][odd] = (p1 >> 32) ^ c[1][odd] ^ k0;
                c[2][odd] = (p0 >> 32) ^ c[3][odd] ^ k1;
                c[1][odd] = p1;
                c[3][odd] = p0;
            }
        for (int i = 0; i < 4; i++) {
            const pairs both = (c[i][0] & 0xFFFFFFFFull) | (c[i][1] << 32);
            memcpy(out[i] + first, &both, sizeof both);
        }
    }
}
#else
/* Compute LANES Philox blocks that differ in their block number or, if index is not NULL, in their
 * index (LANES). */
FF_INLINE void philox_lanes(const ff_stream *s, uint32_t block, const uint32_t *restrict index,
                            uint32_t (*restrict out)[LANES])
{
    for (uint32_t l = 0; l < LANES; l++)
        philox_block(s->key0, s->key1, index ? block : block + l, s->replicate, s->silo,
                     index ? index[l] : s->index, &out[0][l], &out[1][l], &out[2][l], &out[3][l]);
}
#endif

/* Compute LANES consecutive blocks of a stream: out[i][l] receives word i of block first + l. */
void ff_philox_blocks(const ff_stream *s, uint32_t first, uint32_t (*restrict out)[LANES])
{
    philox_lanes(s, first, NULL, out);
}

/* Write LANES consecutive numbers from `first` on. */
FF_INLINE void consecutive(uint32_t first, uint32_t out[LANES])
{
    for (uint32_t l = 0; l < LANES; l++)
        out[l] = first + l;
}

/* Compute one block of each of LANES streams with consecutive indices: out[i][l] receives word i of
 * the stream with index s->index + l. */
void ff_philox_indices(const ff_stream *s, uint32_t block, uint32_t (*restrict out)[LANES])
{
    uint32_t index[LANES];
    consecutive(s->index, index);
    philox_lanes(s, block, index, out);
}

/* Compute one block of each of LANES streams, which have the listed indices. */
void ff_philox_listed(const ff_stream *s, uint32_t block, const uint32_t *restrict index,
                      uint32_t (*restrict out)[LANES])
{
    philox_lanes(s, block, index, out);
}

/* Start the generators of a stream. */
FF_INLINE void xoshiro_start(const ff_stream *s, xoshiro *x) { philox_lanes(s, 0, NULL, x->s); }

/* Return the generators from `first` on. */
FF_INLINE generators generators_from(const xoshiro *x, int first)
{
    generators g;
    memcpy(&g.s0, x->s[0] + first, sizeof g.s0);
    memcpy(&g.s1, x->s[1] + first, sizeof g.s1);
    memcpy(&g.s2, x->s[2] + first, sizeof g.s2);
    memcpy(&g.s3, x->s[3] + first, sizeof g.s3);
    return g;
}

#define ROTATE(v, k) (((v) << (k)) | ((v) >> (32 - (k))))

/* Draw the next word of each generator. */
FF_INLINE words next_words(generators *g)
{
    const words drawn = ROTATE(g->s0 + g->s3, 7) + g->s0, t = g->s1 << 9;
    g->s2 ^= g->s0;
    g->s3 ^= g->s1;
    g->s1 ^= g->s2;
    g->s0 ^= g->s3;
    g->s2 ^= t;
    g->s3 = ROTATE(g->s3, 11);
    return drawn;
}

/* Vectors of pairs that are computed together, so that their chains of operations overlap. */
#define TOGETHER 4

/* Draw the next n <= TOGETHER vectors of pairs, cosines before sines. The angles depend on nothing
 * else, so they are computed while the divisions of the radii are in flight. */
FF_INLINE void normal_pairs(generators *g, const int n, float *restrict out)
{
    words angle[TOGETHER];
    lanes32 s[TOGETHER], exponent_part[TOGETHER], x[TOGETHER], y[TOGETHER];
    UNROLLED for (int i = 0; i < n; i++)
    {
        const words radius = next_words(g) >> 8;
        angle[i] = next_words(g);
        start_radii(radius, s + i, exponent_part + i);
    }
    UNROLLED for (int i = 0; i < n; i++)
        turn_f32(angle[i], x + i, y + i);
    UNROLLED for (int i = 0; i < n; i++)
        s[i] = end_radii(s[i], exponent_part[i]);
    UNROLLED for (int i = 0; i < n; i++)
    {
        x[i] *= s[i];
        y[i] *= s[i];
        memcpy(out + 2 * i * LANES, x + i, sizeof x[i]);
        memcpy(out + (2 * i + 1) * LANES, y + i, sizeof y[i]);
    }
}

/* Draw n standard normals in float32. One vector of generators makes all its numbers before the
 * next vector of generators makes any, so that the state of one vector stays in registers. */
void ff_normals_f32(const ff_stream *s, int64_t n, float *restrict out)
{
    const int64_t capacity = ff_normal_capacity_f32(n);
    xoshiro x;
    xoshiro_start(s, &x);
    for (int first = 0; first < LANES; first += WIDTH32) {
        generators g = generators_from(&x, first);
        float *to = out + first, *end = out + capacity;
        for (; to + 2 * TOGETHER * LANES <= end + first; to += 2 * TOGETHER * LANES)
            normal_pairs(&g, TOGETHER, to);
        for (; to < end; to += 2 * LANES)
            normal_pairs(&g, 1, to);
    }
}

/* Return the number of words that ff_random_u32 writes for n values: whole vectors. */
int64_t ff_random_u32_capacity(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Draw n uniform integers of 32 bits. */
void ff_random_u32(const ff_stream *s, int64_t n, uint32_t *restrict out)
{
    const int64_t capacity = ff_random_u32_capacity(n);
    xoshiro x;
    xoshiro_start(s, &x);
    for (int first = 0; first < LANES; first += WIDTH32) {
        generators g = generators_from(&x, first);
        for (int64_t base = first; base < capacity; base += LANES) {
            const words drawn = next_words(&g);
            memcpy(out + base, &drawn, sizeof drawn);
        }
    }
}

/* ---- float64: the same algorithms with 53 bits --------------------------------------------- */

/* Return ln x for finite x > 0 (ff_log): e ln 2 + ln m for x = 2^e m with m in [sqrt(1/2),
 * sqrt(2)), and ln m = 2 atanh s, s = (m - 1)/(m + 1), by its series. The constant is the bits of
 * sqrt(1/2). */
FF_INLINE double log_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    uint64_t shifted = bits - 0x3FE6A09E667F3BCDull;
    int64_t e = (int64_t)shifted >> 52;
    uint64_t mbits = (shifted & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull;
    double m;
    memcpy(&m, &mbits, 8);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double p = 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return (double)(int32_t)e * 0.6931471805599453 + 2.0 * (s * p);
}

/* Compute sin and cos of 2 pi w / 2^53 for w < 2^53, by Taylor series on [-pi/4, pi/4] around the
 * nearest quarter turn. */
FF_INLINE void sincos_f64(uint64_t w, double *sine, double *cosine)
{
    uint64_t turned = w + (1ull << 50);
    uint64_t quadrant = turned >> 51;
    /* The remainder is below 2^51, so converting it by adding 2^52 is exact. */
    uint64_t remainder = (turned & ((1ull << 51) - 1)) | 0x4330000000000000ull;
    double shifted;
    memcpy(&shifted, &remainder, 8);
    double a = (shifted - 4503599627370496.0 - 1125899906842624.0) * 6.975736996017264e-16;
    double z = a * a;
    double s = 1.0 / 355687428096000.0;
    s = s * z + -1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z + -1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z + -1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z + -1.0 / 6.0;
    s = s * z + 1.0;
    s = s * a;
    double c = 1.0 / 20922789888000.0;
    c = c * z + -1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z + -1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z + -1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z + -0.5;
    c = c * z + 1.0;
    double u = (quadrant & 1u) ? c : s;
    double v = (quadrant & 1u) ? s : c;
    *sine = (quadrant & 2u) ? -u : u;
    *cosine = ((quadrant + 1u) & 2u) ? -v : v;
}

/* Return (a + 1/2) 2^-53 for a 53-bit a. Split into halves that convert exactly. */
FF_INLINE double unit_f64(uint64_t a)
{
    double high = (double)(int32_t)(a >> 26);
    double low = (double)(int32_t)(a & 0x3FFFFFFu);
    return (high * 67108864.0 + low + 0.5) * 1.1102230246251565e-16;
}

/* Compute two standard normals from 53-bit integers a (radius) and b (angle). */
FF_INLINE void box_muller_f64(uint64_t a, uint64_t b, double *x, double *y)
{
    double r = sqrt(-2.0 * log_f64(unit_f64(a)));
    double s, c;
    sincos_f64(b, &s, &c);
    *x = r * c;
    *y = r * s;
}

/* Return the upper 53 of 64 bits. */
FF_INLINE uint64_t bits53(uint32_t high, uint32_t low)
{
    return (((uint64_t)high << 32) | low) >> 11;
}

/* Return the number of doubles that the normal generator writes for n values: whole vectors. */
int64_t ff_normal_capacity_f64(int64_t n)
{
    int64_t blocks = (n + 1) / 2;
    return 2 * ((blocks + LANES - 1) / LANES * LANES);
}

/* Turn uniform integers of 53 bits into 2 * half standard normals by Box-Muller: a (half) gives the
 * radii, b (half) the angles. */
void ff_normals_from_bits(const uint64_t *restrict a, const uint64_t *restrict b, int64_t half,
                          double *restrict out)
{
    double *restrict cosines = out, *restrict sines = out + half;
    for (int64_t l = 0; l < half; l++)
        box_muller_f64(a[l], b[l], &cosines[l], &sines[l]);
}

/* Draw n standard normals in float64 by Box-Muller. Each Philox block gives one draw from a cosine,
 * in the first half of `out`, and one from a sine, in the second half. */
void ff_normals_f64(const ff_stream *s, int64_t n, double *restrict out)
{
    const int64_t blocks = ff_normal_capacity_f64(n) / 2;
    double *restrict o0 = out, *restrict o1 = out + blocks;
    for (int64_t base = 0; base < blocks; base += LANES) {
        uint32_t words[4][LANES] FF_ALIGNED;
        uint64_t a[LANES], b[LANES];
        philox_lanes(s, (uint32_t)base, NULL, words);
        for (int l = 0; l < LANES; l++) {
            a[l] = bits53(words[0][l], words[1][l]);
            b[l] = bits53(words[2][l], words[3][l]);
        }
        for (int l = 0; l < LANES; l++)
            box_muller_f64(a[l], b[l], &o0[base + l], &o1[base + l]);
    }
}

/* Return the Laplace quantile of a 53-bit a. The nearer tail is inverted, where a + 1/2 is
 * exact. */
FF_INLINE double laplace_f64(uint64_t a)
{
    uint64_t upper = a >> 52;
    uint64_t tail = upper ? (1ull << 53) - 1 - a : a;
    double magnitude = -log_f64(2.0 * unit_f64(tail));
    return upper ? magnitude : -magnitude;
}

/* Return the number of doubles that the Laplace generator writes for n values. */
int64_t ff_laplace_capacity(int64_t n) { return ff_normal_capacity_f64(n); }

/* Turn n uniform integers of 53 bits into Laplace draws. */
void ff_laplace_from_bits(const uint64_t *restrict a, int64_t n, double *restrict out)
{
    for (int64_t l = 0; l < n; l++)
        out[l] = laplace_f64(a[l]);
}

/* Draw n numbers from the standard Laplace distribution. Each Philox block gives one draw in the
 * first half of `out` and one in the second half. */
void ff_laplace(const ff_stream *s, int64_t n, double *restrict out)
{
    const int64_t blocks = ff_laplace_capacity(n) / 2;
    double *restrict o0 = out, *restrict o1 = out + blocks;
    for (int64_t base = 0; base < blocks; base += LANES) {
        uint32_t words[4][LANES] FF_ALIGNED;
        uint64_t a[LANES], b[LANES];
        philox_lanes(s, (uint32_t)base, NULL, words);
        for (int l = 0; l < LANES; l++) {
            a[l] = bits53(words[0][l], words[1][l]);
            b[l] = bits53(words[2][l], words[3][l]);
        }
        for (int l = 0; l < LANES; l++) {
            o0[base + l] = laplace_f64(a[l]);
            o1[base + l] = laplace_f64(b[l]);
        }
    }
}

/* ---- exact draws: the first 64 bits of uniforms with unlimited bits ------------------------- */

/* Return a 2^-64 for a 64-bit a, rounded once. The halves of a become mantissas of 2^84 and
 * 2^52. */
FF_INLINE double unit_of_word(uint64_t a)
{
    const uint64_t upper = (a >> 32) | 0x4530000000000000ull;
    const uint64_t lower = (a & 0xFFFFFFFFull) | 0x4330000000000000ull;
    double high, low;
    memcpy(&high, &upper, 8);
    memcpy(&low, &lower, 8);
    return (high - 19342813118337666422669312.0 + low) * 5.421010862427522e-20;
}

/* Return 1 if the uniform is within 2^-20 of 0 or 1, where 64 bits do not determine the logarithm
 * to the stated error. */
FF_INLINE int near_0_or_1(uint64_t a) { return a + (1ull << 44) < (2ull << 44); }

/* Approximate 2 * half exact standard normals, with an error of at most 2^-40. The uniforms of
 * exact draws have unlimited bits, and `words` holds the first 64 of each: words 0..half - 1 are
 * for the radii, the next `half` words for the angles. Returns the number of radii for which 64
 * bits do not suffice for that error. */
int64_t ff_ideal_normals(const uint64_t *restrict words, int64_t half, double *restrict out)
{
    const uint64_t *restrict turns = words + half;
    double *restrict cosines = out, *restrict sines = out + half;
    int64_t unsettled = 0;
    for (int64_t l = 0; l < half; l++) {
        const double r = sqrt(-2.0 * log_f64(unit_of_word(words[l])));
        double s, c;
        sincos_f64(turns[l] >> 11, &s, &c);
        cosines[l] = r * c;
        sines[l] = r * s;
        unsettled += near_0_or_1(words[l]);
    }
    return unsettled;
}

/* Approximate n exact Laplace draws in the same way, with an error of at most 2^-40. Each word of
 * `words` (n) holds the sign of an exact draw and the first 63 bits of its uniform. Returns the
 * number of draws for which these bits do not suffice for that error. */
int64_t ff_ideal_laplace(const uint64_t *restrict words, int64_t n, double *restrict out)
{
    int64_t unsettled = 0;
    for (int64_t l = 0; l < n; l++) {
        /* The top bit is the sign; the others are the first 63 bits of the uniform. */
        const uint64_t a = words[l] << 1;
        const double magnitude = -log_f64(unit_of_word(a));
        out[l] = words[l] >> 63 ? magnitude : -magnitude;
        unsettled += near_0_or_1(a);
    }
    return unsettled;
}

/* ---- single draws --------------------------------------------------------------------------- */

/* Return a uniform number in (0, 1) from one block of the stream. */
double ff_uniform(const ff_stream *s, uint32_t block)
{
    uint32_t w[4];
    ff_philox(s, block, w);
    return unit_f64(bits53(w[0], w[1]));
}

/* Draw a uniform number from each of LANES consecutive streams. */
void ff_uniforms(const ff_stream *s, double out[LANES])
{
    uint32_t words[4][LANES];
    ff_philox_indices(s, 0, words);
    for (int l = 0; l < LANES; l++)
        out[l] = unit_f64(bits53(words[0][l], words[1][l]));
}

/* Draw one Laplace number from each of n consecutive streams. */
void ff_laplaces(const ff_stream *s, int64_t n, double *restrict out)
{
    ff_stream lanes = *s;
    for (int64_t base = 0; base < n; base += LANES) {
        uint32_t words[4][LANES];
        double drawn[LANES];
        lanes.index = s->index + (uint32_t)base;
        ff_philox_indices(&lanes, 0, words);
        for (int l = 0; l < LANES; l++) {
            const double below_one = 1.0 - 0x1p-53;
            const double uniform = unit_f64(bits53(words[0][l], words[1][l]));
            const double u = uniform < below_one ? uniform : below_one, complement = 1.0 - u;
            const double magnitude = -log_f64(2.0 * (complement < u ? complement : u));
            drawn[l] = u < 0.5 ? -magnitude : magnitude;
        }
        memcpy(out + base, drawn, (size_t)(n - base < LANES ? n - base : LANES) * sizeof *out);
    }
}

/* Return one standard normal. */
double ff_normal(const ff_stream *s)
{
    uint32_t w[4];
    double x, y;
    ff_philox(s, 0, w);
    box_muller_f64(bits53(w[0], w[1]), bits53(w[2], w[3]), &x, &y);
    return x;
}

/* Turn two random words into a uniform number in (0, 1). */
double ff_unit(uint32_t high, uint32_t low) { return unit_f64(bits53(high, low)); }

/* Return ln x, with the same bits on every processor. */
double ff_log(double x) { return log_f64(x); }

/* Compute ln x of n numbers. */
void ff_logs(const double *restrict x, int64_t n, double *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = log_f64(x[i]);
}

/* Return a uniform integer in [0, n) by Lemire's multiply-and-reject. *block is advanced past the
 * words used. */
FF_INLINE int64_t uniform_below(const ff_stream *s, uint32_t n, uint32_t *block)
{
    uint32_t threshold = (0u - n) % n;
    for (;;) {
        uint32_t w[4];
        ff_philox(s, (*block)++, w);
        for (int j = 0; j < 4; j++) {
            uint64_t product = (uint64_t)w[j] * n;
            if ((uint32_t)product >= threshold)
                return (int64_t)(product >> 32);
        }
    }
}

/* Return a uniform integer in [0, n) by Lemire's multiply-and-reject. */
int64_t ff_uniform_int(const ff_stream *s, int64_t n)
{
    uint32_t block = 0;
    return uniform_below(s, (uint32_t)n, &block);
}

/* Blocks that are computed together. */
#define CACHED_BLOCKS 64

/* Blocks of a stream that are computed in advance. */
typedef struct {
    uint32_t w[4][CACHED_BLOCKS]; /* word i of each of CACHED_BLOCKS blocks */
    uint32_t first;               /* number of the first block */
} block_cache;

/* Compute CACHED_BLOCKS consecutive blocks from number `first` on. */
static void fill_cache(const ff_stream *s, uint32_t first, block_cache *cache)
{
    cache->first = first;
    for (uint32_t l = 0; l < CACHED_BLOCKS; l += LANES) {
        uint32_t words[4][LANES] FF_ALIGNED;
        philox_lanes(s, first + l, NULL, words);
        for (int i = 0; i < 4; i++)
            memcpy(cache->w[i] + l, words[i], sizeof words[i]);
    }
}

/* Return the same number as uniform_below, from blocks that are computed in advance. */
FF_INLINE int64_t uniform_below_cached(const ff_stream *s, uint32_t n, uint32_t *block,
                                       block_cache *cache)
{
    for (;;) {
        uint32_t position = *block - cache->first;
        if (position >= CACHED_BLOCKS) {
            fill_cache(s, *block, cache);
            position = 0;
        }
        *block += 1;
        for (int j = 0; j < 4; j++) {
            const uint64_t product = (uint64_t)cache->w[j][position] * n;
            /* Rejection needs a product below (2^32 - n) mod n, which is below n. */
            if ((uint32_t)product >= n || (uint32_t)product >= (0u - n) % n)
                return (int64_t)(product >> 32);
        }
    }
}

/* Write a uniformly random permutation of 0..n-1. */
void ff_permutation(const ff_stream *s, int64_t n, int64_t *restrict out)
{
    uint32_t block = 0;
    block_cache cache;
    fill_cache(s, 0, &cache);
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = uniform_below_cached(s, (uint32_t)(i + 1), &block, &cache);
        int64_t swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
}
