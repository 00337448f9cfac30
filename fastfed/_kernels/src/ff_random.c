#include "ff_random.h"

#include <math.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

/* splitmix64's finaliser (Steele, Lea, Flood 2014): spreads nearby seeds over all bits. */
FF_INLINE uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

ff_stream ff_stream_open(uint64_t seed, uint64_t purpose, uint32_t replicate, uint32_t silo,
                         uint32_t index)
{
    uint64_t key = mix64(mix64(seed + 0x9E3779B97F4A7C15ull) + purpose * 0x9E3779B97F4A7C15ull);
    ff_stream s = {(uint32_t)key, (uint32_t)(key >> 32), replicate, silo, index};
    return s;
}

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

FF_INLINE void philox_block(uint32_t k0, uint32_t k1, uint32_t block, uint32_t replicate,
                            uint32_t silo, uint32_t index, uint32_t *w0, uint32_t *w1,
                            uint32_t *w2, uint32_t *w3)
{
    uint32_t c0 = block, c1 = index, c2 = silo, c3 = replicate;
    /* Written out: a loop here would keep the caller's loop over blocks from vectorising. */
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

void ff_philox(const ff_stream *s, uint32_t block, uint32_t out[4])
{
    philox_block(s->key0, s->key1, block, s->replicate, s->silo, s->index, &out[0], &out[1],
                 &out[2], &out[3]);
}

uint64_t ff_key(const ff_stream *s)
{
    uint32_t w[4];
    ff_philox(s, 0, w);
    return (uint64_t)w[1] << 32 | w[0];
}

/* ---- float32: Box-Muller with polynomials of our own ------------------------------------ */

/* Box-Muller's radius sqrt(-2 ln u) for u = (a + 1/2) 2^-24, a of 24 bits: never 0 nor above 1.
 * ln u by its exponent's bits and ln m = 2 atanh s, s = (m - 1)/(m + 1). First s, and the part of
 * -2 ln u that is the exponent's; the factors 2^-24, 2 and -2 are folded into constants: powers of
 * two round nothing. */
FF_INLINE void start_radius(uint32_t a, float *s, float *whole)
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
    *whole = (float)e * (-2.0f * 0.69314718056f);
}

FF_INLINE float end_radius(float s, float whole)
{
    const float z = s * s;
    const float p =
        z * (z * (z * (-4.0f * (1.0f / 7.0f)) + -4.0f * (1.0f / 5.0f)) + -4.0f * (1.0f / 3.0f)) +
        -4.0f;
    return sqrtf(whole + s * p);
}

/* x, its sign changed where the top bit of `sign` is set. */
FF_INLINE float flipped(float x, uint32_t sign)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits ^= sign & 0x80000000u;
    memcpy(&x, &bits, 4);
    return x;
}

/* cos and sin of 2 pi w / 2^32: Taylor on [-pi/4, pi/4] of what lies beyond the nearest quarter
 * turn; the two top bits of `turned` count quarters. */
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

#define LANES 16

int64_t ff_normal_capacity_f32(int64_t n)
{
    return (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
}

/* Sixteen xoshiro128++ generators side by side (Blackman and Vigna 2021), each started from its
 * own Philox block of the stream: a third of Philox's cost a word, and still a function of the
 * key. For contexts and fixed-point rounding; privacy noise takes every word from Philox. */
#if defined(__GNUC__)
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * LANES)));
#else
typedef uint32_t lanes_u32[LANES];
#endif

typedef struct {
    uint32_t s[4][LANES];
} xoshiro;

/* The same, where it can stay in registers. */
typedef struct {
    lanes_u32 s0, s1, s2, s3;
} generators;

#if defined(__AVX512F__) && defined(__GNUC__)
#include <immintrin.h>

/* Every block of xoshiro_start side by side, eight counters of 32 bits in the lower halves of a
 * vector's lanes: one instruction multiplies eight pairs to 64 bits, and compilers do not find it.
 * What stands in the upper halves is not read. */
static void start_wide(const ff_stream *s, xoshiro *x)
{
    const __m512i m0 = _mm512_set1_epi64(PHILOX_M0), m1 = _mm512_set1_epi64(PHILOX_M1);
    __m512i c0[2], c1[2], c2[2], c3[2];
    for (int half = 0; half < 2; half++) {
        c0[half] = _mm512_add_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0),
                                    _mm512_set1_epi64(8 * half));
        c1[half] = _mm512_set1_epi64(s->index);
        c2[half] = _mm512_set1_epi64(s->silo);
        c3[half] = _mm512_set1_epi64(s->replicate);
    }
    uint32_t k0 = s->key0, k1 = s->key1;
    for (int round = 0; round < 10; round++, k0 += PHILOX_W0, k1 += PHILOX_W1)
        for (int half = 0; half < 2; half++) {
            const __m512i p0 = _mm512_mul_epu32(m0, c0[half]), p1 = _mm512_mul_epu32(m1, c2[half]);
            const __m512i h0 = _mm512_srli_epi64(p0, 32), h1 = _mm512_srli_epi64(p1, 32);
            c0[half] = _mm512_xor_si512(_mm512_xor_si512(h1, c1[half]), _mm512_set1_epi64(k0));
            c2[half] = _mm512_xor_si512(_mm512_xor_si512(h0, c3[half]), _mm512_set1_epi64(k1));
            c1[half] = p1;
            c3[half] = p0;
        }
    /* Whole vectors, as they are read: two halves would have to be written first. */
    const __m512i c[4][2] = {{c0[0], c0[1]}, {c1[0], c1[1]}, {c2[0], c2[1]}, {c3[0], c3[1]}};
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(x->s[i], _mm512_inserti64x4(_mm512_castsi256_si512(
                                                            _mm512_cvtepi64_epi32(c[i][0])),
                                                        _mm512_cvtepi64_epi32(c[i][1]), 1));
}
#endif

FF_INLINE void xoshiro_start(const ff_stream *s, xoshiro *x)
{
#if defined(__AVX512F__) && defined(__GNUC__)
    start_wide(s, x);
#else
    for (int l = 0; l < LANES; l++)
        philox_block(s->key0, s->key1, (uint32_t)l, s->replicate, s->silo, s->index, &x->s[0][l],
                     &x->s[1][l], &x->s[2][l], &x->s[3][l]);
#endif
}

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

/* Vectors of pairs that are made side by side: one after the other, each would wait for its own
 * chain of operations. */
#define TOGETHER 4

/* The next n <= TOGETHER vectors of pairs, cosines before sines. The turns, which wait for nothing,
 * come between the divisions and what waits for them. */
FF_INLINE void normal_pairs(generators *g, int n, float *restrict out)
{
    uint32_t radius[TOGETHER * LANES] FF_ALIGNED, angle[TOGETHER * LANES] FF_ALIGNED;
    float s[TOGETHER * LANES] FF_ALIGNED, whole[TOGETHER * LANES] FF_ALIGNED;
    float x[TOGETHER * LANES] FF_ALIGNED, y[TOGETHER * LANES] FF_ALIGNED;
    for (int i = 0; i < n; i++) {
        next_u32(g, radius + i * LANES);
        next_u32(g, angle + i * LANES);
    }
    for (int l = 0; l < n * LANES; l++)
        start_radius(radius[l] >> 8, s + l, whole + l);
    for (int l = 0; l < n * LANES; l++)
        turn_f32(angle[l], x + l, y + l);
    for (int l = 0; l < n * LANES; l++)
        s[l] = end_radius(s[l], whole[l]);
    for (int i = 0; i < n; i++, out += 2 * LANES)
        for (int l = 0; l < LANES; l++) {
            out[l] = s[i * LANES + l] * x[i * LANES + l];
            out[LANES + l] = s[i * LANES + l] * y[i * LANES + l];
        }
}

void ff_normals_f32(const ff_stream *s, int64_t n, float *restrict out)
{
    const int64_t capacity = ff_normal_capacity_f32(n);
    xoshiro x;
    generators g;
    xoshiro_start(s, &x);
    memcpy(&g, &x, sizeof g);
    int64_t base = 0;
    for (; base + 2 * TOGETHER * LANES <= capacity; base += 2 * TOGETHER * LANES)
        normal_pairs(&g, TOGETHER, out + base);
    for (; base < capacity; base += 2 * LANES)
        normal_pairs(&g, 1, out + base);
}

int64_t ff_random_u32_capacity(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

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

/* ---- float64: the same shape, 53 bits ----------------------------------------------------- */

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

/* sin and cos of 2 pi w / 2^53. */
FF_INLINE void sincos_f64(uint64_t w, double *sine, double *cosine)
{
    uint64_t turned = w + (1ull << 50);
    uint64_t quadrant = turned >> 51;
    /* The remainder is below 2^51, so the float conversion by the 2^52 trick is exact. */
    uint64_t rest = (turned & ((1ull << 51) - 1)) | 0x4330000000000000ull;
    double shifted;
    memcpy(&shifted, &rest, 8);
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

/* ((a + 1/2) 2^-53) for a 53-bit a: split so that both halves convert exactly. */
FF_INLINE double unit_f64(uint64_t a)
{
    double high = (double)(int32_t)(a >> 26);
    double low = (double)(int32_t)(a & 0x3FFFFFFu);
    return (high * 67108864.0 + low + 0.5) * 1.1102230246251565e-16;
}

FF_INLINE void box_muller_f64(uint64_t a, uint64_t b, double *x, double *y)
{
    double r = sqrt(-2.0 * log_f64(unit_f64(a)));
    double s, c;
    sincos_f64(b, &s, &c);
    *x = r * c;
    *y = r * s;
}

FF_INLINE uint64_t bits53(uint32_t high, uint32_t low)
{
    return (((uint64_t)high << 32) | low) >> 11;
}

int64_t ff_normal_capacity_f64(int64_t n)
{
    int64_t blocks = (n + 1) / 2;
    return 2 * ((blocks + LANES - 1) / LANES * LANES);
}

void ff_normals_from_bits(const uint64_t *restrict a, const uint64_t *restrict b, int64_t half,
                          double *restrict out)
{
    double *restrict cosines = out, *restrict sines = out + half;
    for (int64_t l = 0; l < half; l++)
        box_muller_f64(a[l], b[l], &cosines[l], &sines[l]);
}

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

/* The 53-bit a as a point of the cdf, inverted from the nearer tail: a + 1/2 is exact there. */
FF_INLINE double laplace_f64(uint64_t a)
{
    uint64_t upper = a >> 52;
    uint64_t tail = upper ? (1ull << 53) - 1 - a : a;
    double size = -log_f64(2.0 * unit_f64(tail));
    return upper ? size : -size;
}

int64_t ff_laplace_capacity(int64_t n) { return ff_normal_capacity_f64(n); }

void ff_laplace_from_bits(const uint64_t *restrict a, int64_t n, double *restrict out)
{
    for (int64_t l = 0; l < n; l++)
        out[l] = laplace_f64(a[l]);
}

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

/* ---- ideal draws: the first 64 bits of uniforms that go on for ever ----------------------- */

/* a 2^-64 for a 64-bit a, rounded once: the halves of a stand in the mantissas of 2^84 and 2^52. */
FF_INLINE double unit_of_word(uint64_t a)
{
    const uint64_t upper = (a >> 32) | 0x4530000000000000ull;
    const uint64_t lower = (a & 0xFFFFFFFFull) | 0x4330000000000000ull;
    double high, low;
    memcpy(&high, &upper, 8);
    memcpy(&low, &lower, 8);
    return (high - 19342813118337666422669312.0 + low) * 5.421010862427522e-20;
}

/* Too near 0 or 1 for 64 bits to tell the logarithm well: 2^-20 of either. */
FF_INLINE int at_the_ends(uint64_t a)
{
    return a + (1ull << 44) < (2ull << 44);
}

int64_t ff_ideal_normals(const uint64_t *restrict words, int64_t half, double *restrict out)
{
    const uint64_t *restrict turns = words + half;
    double *restrict cosines = out, *restrict sines = out + half;
    int64_t unsure = 0;
    for (int64_t l = 0; l < half; l++) {
        const double r = sqrt(-2.0 * log_f64(unit_of_word(words[l])));
        double s, c;
        sincos_f64(turns[l] >> 11, &s, &c);
        cosines[l] = r * c;
        sines[l] = r * s;
        unsure += at_the_ends(words[l]);
    }
    return unsure;
}

int64_t ff_ideal_laplace(const uint64_t *restrict words, int64_t n, double *restrict out)
{
    int64_t unsure = 0;
    for (int64_t l = 0; l < n; l++) {
        /* The top bit is the sign, the others are the uniform's first 63. */
        const uint64_t a = words[l] << 1;
        const double size = -log_f64(unit_of_word(a));
        out[l] = words[l] >> 63 ? size : -size;
        unsure += at_the_ends(a);
    }
    return unsure;
}

/* ---- single draws --------------------------------------------------------------------------- */

double ff_uniform(const ff_stream *s, uint32_t block)
{
    uint32_t w[4];
    ff_philox(s, block, w);
    return unit_f64(bits53(w[0], w[1]));
}

void ff_laplaces(const ff_stream *s, int64_t n, double *restrict out)
{
    const uint32_t k0 = s->key0, k1 = s->key1;
    const uint32_t rep = s->replicate, silo = s->silo, index = s->index;
    for (int64_t base = 0; base < n; base += LANES) {
        uint64_t a[LANES];
        double drawn[LANES];
        for (uint32_t l = 0; l < LANES; l++) {
            uint32_t w0, w1, w2, w3;
            philox_block(k0, k1, 0, rep, silo, index + (uint32_t)base + l, &w0, &w1, &w2, &w3);
            a[l] = bits53(w0, w1);
        }
        for (int l = 0; l < LANES; l++) {
            const double below_one = 1.0 - 0x1p-53, unit = unit_f64(a[l]);
            const double u = unit < below_one ? unit : below_one, rest = 1.0 - u;
            const double size = -log_f64(2.0 * (rest < u ? rest : u));
            drawn[l] = u < 0.5 ? -size : size;
        }
        memcpy(out + base, drawn, (size_t)(n - base < LANES ? n - base : LANES) * sizeof *out);
    }
}

double ff_normal(const ff_stream *s)
{
    uint32_t w[4];
    double x, y;
    ff_philox(s, 0, w);
    box_muller_f64(bits53(w[0], w[1]), bits53(w[2], w[3]), &x, &y);
    return x;
}

double ff_unit(uint32_t high, uint32_t low) { return unit_f64(bits53(high, low)); }

double ff_log(double x) { return log_f64(x); }

void ff_logs(const double *restrict x, int64_t n, double *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = log_f64(x[i]);
}

/* Lemire's multiply-and-reject; `block` runs on while words are rejected. */
FF_INLINE int64_t below(const ff_stream *s, uint32_t n, uint32_t *block)
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

int64_t ff_uniform_int(const ff_stream *s, int64_t n)
{
    uint32_t block = 0;
    return below(s, (uint32_t)n, &block);
}

/* Blocks of words that are made side by side. */
#define AHEAD 64

typedef struct {
    uint32_t w[4][AHEAD];
    uint32_t first; /* the number of the first of them */
} blocks_ahead;

static void make_ahead(const ff_stream *s, uint32_t first, blocks_ahead *a)
{
    a->first = first;
    for (uint32_t l = 0; l < AHEAD; l++)
        philox_block(s->key0, s->key1, first + l, s->replicate, s->silo, s->index, &a->w[0][l],
                     &a->w[1][l], &a->w[2][l], &a->w[3][l]);
}

/* below() from blocks that have been made, and the same number. */
FF_INLINE int64_t below_ahead(const ff_stream *s, uint32_t n, uint32_t *block, blocks_ahead *a)
{
    for (;;) {
        uint32_t at = *block - a->first;
        if (at >= AHEAD) {
            make_ahead(s, *block, a);
            at = 0;
        }
        *block += 1;
        for (int j = 0; j < 4; j++) {
            const uint64_t product = (uint64_t)a->w[j][at] * n;
            /* What is rejected is less than (2^32 - n) mod n, so less than n. */
            if ((uint32_t)product >= n || (uint32_t)product >= (0u - n) % n)
                return (int64_t)(product >> 32);
        }
    }
}

void ff_permutation(const ff_stream *s, int64_t n, int64_t *restrict out)
{
    uint32_t block = 0;
    blocks_ahead ahead;
    make_ahead(s, 0, &ahead);
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = below_ahead(s, (uint32_t)(i + 1), &block, &ahead);
        int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}
