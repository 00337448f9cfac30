/* What one core of this machine can do at most: reads from each level of memory, fused
 * multiply-adds, square roots, 16-bit products. peaks.py compiles this for the processor that it
 * runs on, and times it.
 *
 * Nothing here waits: each loop has as many independent sums as hide the latency of an
 * instruction, all in registers. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#define SUMS 20
#elif defined(__AVX2__)
#define BYTES 32
#define SUMS 12
#else
#define BYTES 16
#define SUMS 12
#endif

typedef float vf32 __attribute__((vector_size(BYTES)));
typedef double vf64 __attribute__((vector_size(BYTES)));
typedef int64_t vi64 __attribute__((vector_size(BYTES)));

/* Each function returns something that depends on all its work, so that none is left out. */

#define FMA(name, vector, scalar)                                                   \
    double name(int64_t times, scalar factor, scalar term)                          \
    {                                                                               \
        vector sums[SUMS], a = (vector){0} + factor, b = (vector){0} + term;        \
        scalar all = 0;                                                             \
        _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)                     \
            sums[i] = (vector){0} + (scalar)i;                                      \
        for (int64_t t = 0; t < times; t++)                                         \
            _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)                 \
                sums[i] = sums[i] * a + b;                                          \
        _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)                     \
            all += sums[i][0];                                                      \
        return all;                                                                 \
    }

FMA(fma_f32, vf32, float)
FMA(fma_f64, vf64, double)

/* Operations of one pass: a multiplication and an addition in each lane. */
int64_t fma_f32_operations(void) { return 2 * SUMS * (BYTES / 4); }
int64_t fma_f64_operations(void) { return 2 * SUMS * (BYTES / 8); }

#if defined(__AVX512F__)
#define ROOT(v) ((vf32)_mm512_sqrt_ps((__m512)(v)))
#elif defined(__AVX2__)
#define ROOT(v) ((vf32)_mm256_sqrt_ps((__m256)(v)))
#elif defined(__x86_64__)
#define ROOT(v) ((vf32)_mm_sqrt_ps((__m128)(v)))
#endif

#if defined(ROOT)
double root_f32(int64_t times, float first)
{
    vf32 values[SUMS];
    float all = 0;
    _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)
        values[i] = (vf32){0} + first + (float)i;
    for (int64_t t = 0; t < times; t++)
        _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)
            values[i] = ROOT(values[i]);
    _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++)
        all += values[i][0];
    return all;
}
int64_t root_f32_operations(void) { return SUMS * (BYTES / 4); }
#else
double root_f32(int64_t times, float first) { return times * first; }
int64_t root_f32_operations(void) { return 0; }
#endif

/* By name: compilers keep the sums of such products in memory, or make equal products once. */
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
typedef __m512i vi16;
#define DOT(sum) __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#elif defined(__AVX2__)
typedef __m256i vi16;
#define DOT(sum)                                                              \
    do {                                                                      \
        __m256i product;                                                      \
        __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(a), "x"(b)); \
        sum = _mm256_add_epi32(sum, product);                                 \
    } while (0)
#endif

#if defined(__AVX2__)
int64_t dot_i16(int64_t times, int factor)
{
    vi16 sums[SUMS], a, b;
    int64_t all = 0;
    memset(&a, factor, sizeof a);
    memset(&b, factor + 1, sizeof b);
    _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++) sums[i] = (vi16){0};
    for (int64_t t = 0; t < times; t++)
        _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++) DOT(sums[i]);
    _Pragma("GCC unroll 32") for (int i = 0; i < SUMS; i++) all += sums[i][0];
    return all;
}
int64_t dot_i16_operations(void) { return 2 * SUMS * (int64_t)(sizeof(vi16) / 2); }
#else
int64_t dot_i16(int64_t times, int factor) { return times * factor; }
int64_t dot_i16_operations(void) { return 0; }
#endif

/* Reads bytes (a multiple of 8 vectors) again and again, one load for each vector. */
int64_t read_all(const void *memory, int64_t bytes, int64_t times)
{
    vi64 sums[8];
    int64_t all = 0;
    memset(sums, 0, sizeof sums);
    for (int64_t t = 0; t < times; t++) {
        const char *at = memory, *end = at + bytes;
        for (; at < end; at += 8 * BYTES)
            _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
                sums[i] += *(const vi64 *)(at + i * BYTES);
        /* Or the passes could be made one. */
        __asm__ volatile("" ::"r"(memory) : "memory");
    }
    for (int i = 0; i < 8; i++)
        all += sums[i][0];
    return all;
}
