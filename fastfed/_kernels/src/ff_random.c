#include "ff_random.h"

#include <math.h>

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

/* One round of Philox4x32 on counter words c0..c3 with key words k0, k1. */
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

/* The radius of Box-Muller is sqrt(-2 ln u) for u = (a + 1/2) 2^-24, where a has 24 bits; so u is
 * never 0 and never above 1. ln u is computed from the exponent of u and ln m = 2 atanh s, s = (m -
 * 1)/(m + 1). start_radius computes s and the exponent's part of -2 ln u. The factors 2^-24, 2 and
 * -2 are folded into constants; powers of two do not round. */
FF_INLINE void start_radius(uint32_t a, float *s, float *exponent_part)
{
    const float x = (float)(int32_t)a + 0.5f;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    /* m in [sqrt(1/2), sqrt(2)): subtracting the pattern of sqrt(1/2) moves the cut. */
    const uint32_t shifted = bits - (0x3F3504F3u + (24u << 23));
    const int32_t e = (int32_t)shifted >> 23;
    const uint32_t mbits = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    float m;
    memcpy(&m, &mbits, 4);
    *s = (m - 1.0f) / (m + 1.0f);
    *exponent_part = (float)e * (-2.0f * 0.69314718056f);
}

/* Finish the radius from s and the exponent's part. */
FF_INLINE float end_radius(float s, float exponent_part)
{
    const float z = s * s;
    const float p =
        z * (z * (z * (-4.0f * (1.0f / 7.0f)) + -4.0f * (1.0f / 5.0f)) + -4.0f * (1.0f / 3.0f)) +
        -4.0f;
    return sqrtf(exponent_part + s * p);
}

/* Return x with its sign changed if the top bit of `sign` is set. */
FF_INLINE float flipped(float x, uint32_t sign)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits ^= sign & 0x80000000u;
    memcpy(&x, &bits, 4);
    return x;
}

/* Compute cos and sin of 2 pi w / 2^32 by Taylor series on [-pi/4, pi/4] around the nearest quarter
 * turn. The two top bits of `turned` count quarter turns. */
FF_INLINE void turn_f32(uint32_t w, float *x, float *y)
{
    const uint32_t turned = w + 0x20000000u;
    const float a = (float)(int32_t)(w << 2) * (0.25f * 1.4629180792671596e-09f); /* 2 pi / 2^32 */
    const float z = a * a;
    const float s = a * (z * (z * (z * (-1.0f / 5040.0f) + 1.0f / 120.0f) + -1.0f / 6.0f) + 1.0f);
    const float c =
        z * (z * (z * (z * (1.0f / 40320.0f) + -1.0f / 720.0f) + 1.0f / 24.0f) + -0.5f) + 1.0f;
    const int odd = (turned & 0x40000000u) != 0;
    *x = flipped(odd ? s : c, turned + 0x40000000u);
    *y = flipped(odd ? c : s, turned);
}

#define LANES FF_PHILOX_LANES

/* Return the floats that the normal generator writes for n values: whole vectors. */
int64_t ff_normal_capacity_f32(int64_t n)
{
    return (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
}

/* Sixteen xoshiro128++ generators side by side (Blackman and Vigna 2021), each started from its own
 * Philox block of the stream. A word costs a third of a Philox word and is still a function of the
 * key. Used for contexts and fixed-point rounding; privacy noise takes every word from Philox. */
#if defined(__GNUC__)
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * LANES)));
#else
typedef uint32_t lanes_u32[LANES];
#endif

/* The state of the generators. */
typedef struct {
    uint32_t s[4][LANES]; /* word i of the state of every generator */
} xoshiro;

/* The same state as vectors, which can stay in registers. */
typedef struct {
    lanes_u32 s0, s1, s2, s3;
} generators;

#if defined(__GNUC__) && (defined(__AVX512F__) || defined(__AVX2__))
#include <immintrin.h>

/* Vectors of 64-bit lanes for philox_lanes, and operations on them. */
#if defined(__AVX512F__)
typedef __m512i counters;
#define COUNTERS 8 /* lanes of a vector */
#define OVERLAPPED 2 /* vectors whose chains of operations overlap */
#define SET(x) _mm512_set1_epi64((int64_t)(x))
#define MULTIPLY(x, y) _mm512_mul_epu32(x, y)
#define UPPER(x) _mm512_srli_epi64(x, 32)
#define XOR3(x, y, z) _mm512_ternarylogic_epi64(x, y, z, 0x96)
#else
typedef __m256i counters;
#define COUNTERS 4
#define OVERLAPPED 2
#define SET(x) _mm256_set1_epi64x((int64_t)(x))
#define MULTIPLY(x, y) _mm256_mul_epu32(x, y)
#define UPPER(x) _mm256_srli_epi64(x, 32)
#define XOR3(x, y, z) _mm256_xor_si256(_mm256_xor_si256(x, y), z)
#endif

/* Store the lower halves of the lanes of two vectors, which hold the numbers that `offsets` gives
 * them. Whole vectors are stored as they are loaded later; loads of a vector stored in two halves
 * would stall. */
FF_INLINE void store_lower(counters first, counters second, uint32_t *to)
{
#if defined(__AVX512F__)
    _mm512_storeu_si512(to, _mm512_inserti64x4(
                                _mm512_castsi256_si512(_mm512_cvtepi64_epi32(first)),
                                _mm512_cvtepi64_epi32(second), 1));
#else
    _mm256_storeu_ps((float *)to, _mm256_shuffle_ps(_mm256_castsi256_ps(first),
                                                    _mm256_castsi256_ps(second), 0x88));
#endif
}

/* Return the numbers 0..15 of the lanes of vector i; store_lower restores their order. */
FF_INLINE counters offsets(int i)
{
#if defined(__AVX512F__)
    return _mm512_add_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), SET(8 * i));
#else
    const __m256i even = _mm256_set_epi64x(5, 4, 1, 0);
    return _mm256_add_epi64(even, SET(i / 2 * 8 + i % 2 * 2));
#endif
}

/* Compute LANES Philox blocks side by side, with 32-bit counters in the lower halves of 64-bit
 * lanes. One instruction multiplies all lanes to 64 bits, which compilers do not find by
 * themselves. The upper halves are not used. The lanes differ in their block number or, if
 * `indices` is 1, in their index. */
static void philox_lanes(const ff_stream *s, uint32_t block, int indices,
                         uint32_t (*restrict out)[LANES])
{
    const counters m0 = SET(PHILOX_M0), m1 = SET(PHILOX_M1), zero = SET(0);
    for (int base = 0; base < LANES / COUNTERS; base += OVERLAPPED) {
        counters c0[OVERLAPPED], c1[OVERLAPPED], c2[OVERLAPPED], c3[OVERLAPPED];
        for (int i = 0; i < OVERLAPPED; i++) {
            const counters number = offsets(base + i);
            c0[i] = SET(block) + (indices ? zero : number);
            c1[i] = SET(s->index) + (indices ? number : zero);
            c2[i] = SET(s->silo);
            c3[i] = SET(s->replicate);
        }
        uint32_t k0 = s->key0, k1 = s->key1;
        for (int round = 0; round < 10; round++, k0 += PHILOX_W0, k1 += PHILOX_W1)
            for (int i = 0; i < OVERLAPPED; i++) {
                const counters p0 = MULTIPLY(m0, c0[i]), p1 = MULTIPLY(m1, c2[i]);
                c0[i] = XOR3(UPPER(p1), c1[i], SET(k0));
                c2[i] = XOR3(UPPER(p0), c3[i], SET(k1));
                c1[i] = p1;
                c3[i] = p0;
            }
        uint32_t *to = &out[0][base * COUNTERS];
        store_lower(c0[0], c0[1], to);
        store_lower(c1[0], c1[1], to + LANES);
        store_lower(c2[0], c2[1], to + 2 * LANES);
        store_lower(c3[0], c3[1], to + 3 * LANES);
    }
}
#else
/* Compute LANES Philox blocks. */
static void philox_lanes(const ff_stream *s, uint32_t block, int indices,
                         uint32_t (*restrict out)[LANES])
{
    const uint32_t by_block = indices ? 0 : 1, by_index = indices ? 1 : 0;
    for (uint32_t l = 0; l < LANES; l++)
        philox_block(s->key0, s->key1, block + by_block * l, s->replicate, s->silo,
                     s->index + by_index * l, &out[0][l], &out[1][l], &out[2][l], &out[3][l]);
}
#endif

/* Compute consecutive blocks of a stream. */
void ff_philox_blocks(const ff_stream *s, uint32_t first, uint32_t (*restrict out)[LANES])
{
    philox_lanes(s, first, 0, out);
}

/* Compute one block of each of several streams with consecutive indices. */
void ff_philox_indices(const ff_stream *s, uint32_t block, uint32_t (*restrict out)[LANES])
{
    philox_lanes(s, block, 1, out);
}

/* Start the generators of a stream. */
FF_INLINE void xoshiro_start(const ff_stream *s, xoshiro *x) { philox_lanes(s, 0, 0, x->s); }

#define ROTATE(v, k) (((v) << (k)) | ((v) >> (32 - (k))))
#define XOSHIRO_STEP(out, s0, s1, s2, s3, t)                                                   \
    do {                                                                                       \
        out = ROTATE(s0 + s3, 7) + s0;                                                         \
        t = s1 << 9;                                                                           \
        s2 ^= s0;                                                                              \
        s3 ^= s1;                                                                              \
        s1 ^= s2;                                                                              \
        s0 ^= s3;                                                                              \
        s2 ^= t;                                                                               \
        s3 = ROTATE(s3, 11);                                                                   \
    } while (0)

/* Draw the next sixteen words. */
FF_INLINE void next_u32(generators *g, uint32_t *restrict out)
{
#if defined(__GNUC__)
    lanes_u32 drawn, t;
    XOSHIRO_STEP(drawn, g->s0, g->s1, g->s2, g->s3, t);
    memcpy(out, &drawn, sizeof drawn);
#else
    for (int l = 0; l < LANES; l++) {
        uint32_t t;
        XOSHIRO_STEP(out[l], g->s0[l], g->s1[l], g->s2[l], g->s3[l], t);
    }
#endif
}

/* Vectors of pairs that are computed together, so that their chains of operations overlap. */
#define PAIR_VECTORS 4

/* Draw the next n <= TOGETHER vectors of pairs, cosines before sines. The angles depend on nothing
 * else, so they are computed while the divisions of the radii are in flight. */
FF_INLINE void normal_pairs(generators *g, int n, float *restrict out)
{
    uint32_t radius[PAIR_VECTORS * LANES] FF_ALIGNED, angle[PAIR_VECTORS * LANES] FF_ALIGNED;
    float s[PAIR_VECTORS * LANES] FF_ALIGNED, exponent_part[PAIR_VECTORS * LANES] FF_ALIGNED;
    float x[PAIR_VECTORS * LANES] FF_ALIGNED, y[PAIR_VECTORS * LANES] FF_ALIGNED;
    for (int i = 0; i < n; i++) {
        next_u32(g, radius + i * LANES);
        next_u32(g, angle + i * LANES);
    }
    for (int l = 0; l < n * LANES; l++)
        start_radius(radius[l] >> 8, s + l, exponent_part + l);
    for (int l = 0; l < n * LANES; l++)
        turn_f32(angle[l], x + l, y + l);
    for (int l = 0; l < n * LANES; l++)
        s[l] = end_radius(s[l], exponent_part[l]);
    for (int i = 0; i < n; i++, out += 2 * LANES)
        for (int l = 0; l < LANES; l++) {
            out[l] = s[i * LANES + l] * x[i * LANES + l];
            out[LANES + l] = s[i * LANES + l] * y[i * LANES + l];
        }
}

/* Draw n standard normals in float32, one vector at a time. */
void ff_normals_f32(const ff_stream *s, int64_t n, float *restrict out)
{
    const int64_t capacity = ff_normal_capacity_f32(n);
    xoshiro x;
    generators g;
    xoshiro_start(s, &x);
    memcpy(&g, &x, sizeof g);
    int64_t base = 0;
    for (; base + 2 * PAIR_VECTORS * LANES <= capacity; base += 2 * PAIR_VECTORS * LANES)
        normal_pairs(&g, PAIR_VECTORS, out + base);
    for (; base < capacity; base += 2 * LANES)
        normal_pairs(&g, 1, out + base);
}

/* Return the words that ff_random_u32 writes for n values: whole vectors. */
int64_t ff_random_u32_capacity(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Draw n uniform integers of 32 bits. */
void ff_random_u32(const ff_stream *s, int64_t n, uint32_t *restrict out)
{
    const int64_t capacity = ff_random_u32_capacity(n);
    xoshiro x;
    generators g;
    xoshiro_start(s, &x);
    memcpy(&g, &x, sizeof g);
    for (int64_t base = 0; base < capacity; base += LANES)
        next_u32(&g, out + base);
}

/* ---- float64: the same algorithms with 53 bits --------------------------------------------- */

/* Inline version of ff_log. */
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

/* Compute sin and cos of 2 pi w / 2^53. */
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

/* Return the doubles that the normal generator writes for n values: whole vectors. */
int64_t ff_normal_capacity_f64(int64_t n)
{
    int64_t blocks = (n + 1) / 2;
    return 2 * ((blocks + LANES - 1) / LANES * LANES);
}

/* Turn uniform integers of 53 bits into standard normals by Box-Muller. */
void ff_normals_from_bits(const uint64_t *restrict a, const uint64_t *restrict b, int64_t half,
                          double *restrict out)
{
    double *restrict cosines = out, *restrict sines = out + half;
    for (int64_t l = 0; l < half; l++)
        box_muller_f64(a[l], b[l], &cosines[l], &sines[l]);
}

/* Draw n standard normals in float64. */
void ff_normals_f64(const ff_stream *s, int64_t n, double *restrict out)
{
    const int64_t blocks = ff_normal_capacity_f64(n) / 2;
    const uint32_t k0 = s->key0, k1 = s->key1;
    const uint32_t rep = s->replicate, silo = s->silo, index = s->index;
    double *restrict o0 = out, *restrict o1 = out + blocks;
    for (int64_t base = 0; base < blocks; base += LANES) {
        uint64_t a[LANES], b[LANES];
        for (int l = 0; l < LANES; l++) {
            uint32_t w0, w1, w2, w3;
            philox_block(k0, k1, (uint32_t)(base + l), rep, silo, index, &w0, &w1, &w2, &w3);
            a[l] = bits53(w0, w1);
            b[l] = bits53(w2, w3);
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

/* Return the doubles that the Laplace generator writes for n values. */
int64_t ff_laplace_capacity(int64_t n) { return ff_normal_capacity_f64(n); }

/* Turn n uniform integers of 53 bits into Laplace draws. */
void ff_laplace_from_bits(const uint64_t *restrict a, int64_t n, double *restrict out)
{
    for (int64_t l = 0; l < n; l++)
        out[l] = laplace_f64(a[l]);
}

/* Draw n numbers from the standard Laplace distribution. */
void ff_laplace(const ff_stream *s, int64_t n, double *restrict out)
{
    const int64_t blocks = ff_laplace_capacity(n) / 2;
    const uint32_t k0 = s->key0, k1 = s->key1;
    const uint32_t rep = s->replicate, silo = s->silo, index = s->index;
    double *restrict o0 = out, *restrict o1 = out + blocks;
    for (int64_t base = 0; base < blocks; base += LANES) {
        uint64_t a[LANES], b[LANES];
        for (int l = 0; l < LANES; l++) {
            uint32_t w0, w1, w2, w3;
            philox_block(k0, k1, (uint32_t)(base + l), rep, silo, index, &w0, &w1, &w2, &w3);
            a[l] = bits53(w0, w1);
            b[l] = bits53(w2, w3);
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

/* Approximate exact normals, whose bits come from `words`, to within 2^-40. */
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

/* Approximate n exact Laplace draws, whose bits come from `words`. */
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
            const double below_one = 1.0 - 0x1p-53, drawn_unit = unit_f64(bits53(words[0][l], words[1][l]));
            const double u = drawn_unit < below_one ? drawn_unit : below_one, complement = 1.0 - u;
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

double ff_log(double x) { return log_f64(x); }

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
    uint32_t w[4][CACHED_BLOCKS]; /* the words of AHEAD consecutive blocks */
    uint32_t first;               /* number of the first block */
} block_cache;

/* Compute AHEAD blocks from number `first` on. */
static void fill_cache(const ff_stream *s, uint32_t first, block_cache *cache)
{
    cache->first = first;
    for (uint32_t l = 0; l < CACHED_BLOCKS; l++)
        philox_block(s->key0, s->key1, first + l, s->replicate, s->silo, s->index, &cache->w[0][l],
                     &cache->w[1][l], &cache->w[2][l], &cache->w[3][l]);
}

/* As below(), from blocks computed in advance; returns the same number. */
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
