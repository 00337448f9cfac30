/* Vectors of floats, doubles and integers by instructions of the processor. They are for bounds,
 * whose last bits do not matter: vectors are as wide as the registers, and the width changes the
 * order of sums. All other loops are written so that compilers vectorise them (ff_vectors.h).
 *
 * Files that include this are compiled with AVX-512 VNNI, with AVX2, and with neither. In the last
 * case they contain only stubs (FF_WIDE of ff_base.h). */
#ifndef FF_WIDE_H
#define FF_WIDE_H

#include "ff_base.h"

#ifdef FF_WIDE
#include <immintrin.h>

#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Number of lanes: floats or 32-bit integers; doubles. */
#define LANES (FF_WIDE / 4)
#define LANES64 (FF_WIDE / 8)

/* Return a bit for each of the first n lanes. */
FF_INLINE unsigned bits_of(int64_t n)
{
    return n >= LANES ? (1u << LANES) - 1 : n > 0 ? (1u << n) - 1 : 0u;
}

#if FF_WIDE == 64
typedef __m512 f32s;
typedef __m512d f64s;
typedef __m512i i32s;
/* Masks: selected lanes. */
typedef __mmask16 mask32;
typedef __mmask8 mask64;

/* sum += products of pairs of 16-bit integers, added within each pair; for i32s and __m256i. Inline
 * assembly, because gcc copies every sum at every turn if the intrinsic is used. */
#define MULTIPLY(sum, pairs, panel)                                                                \
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(pairs), "v"(panel))

/* Return the mask of the first n lanes. */
FF_INLINE mask32 lanes_of(int64_t n) { return (mask32)bits_of(n); }
FF_INLINE mask64 lanes64_of(int64_t n) { return n >= LANES64 ? (mask64)0xff : (mask64)bits_of(n); }

/* float32: set all lanes to x; load and store at any address. */
FF_INLINE f32s f32_set(float x) { return _mm512_set1_ps(x); }
FF_INLINE f32s f32_load(const float *at) { return _mm512_loadu_ps(at); }
FF_INLINE void f32_store(float *to, f32s x) { _mm512_storeu_ps(to, x); }
/* Load selected lanes; other lanes are zero and their memory is not read. */
FF_INLINE f32s f32_load_some(mask32 in, const float *at) { return _mm512_maskz_loadu_ps(in, at); }
FF_INLINE void f32_store_left(float *to, int64_t n, f32s x)
{
    _mm512_mask_storeu_ps(to, lanes_of(n), x);
}
/* Lane by lane. */
FF_INLINE f32s f32_add(f32s a, f32s b) { return _mm512_add_ps(a, b); }
FF_INLINE f32s f32_sub(f32s a, f32s b) { return _mm512_sub_ps(a, b); }
FF_INLINE f32s f32_mul(f32s a, f32s b) { return _mm512_mul_ps(a, b); }
FF_INLINE f32s f32_div(f32s a, f32s b) { return _mm512_div_ps(a, b); }
/* a b + c and a b - c, with one rounding. */
FF_INLINE f32s f32_fma(f32s a, f32s b, f32s c) { return _mm512_fmadd_ps(a, b, c); }
FF_INLINE f32s f32_fms(f32s a, f32s b, f32s c) { return _mm512_fmsub_ps(a, b, c); }
FF_INLINE f32s f32_sqrt(f32s x) { return _mm512_sqrt_ps(x); }
FF_INLINE f32s f32_abs(f32s x) { return _mm512_abs_ps(x); }
/* The larger; b if either is NaN. */
FF_INLINE f32s f32_max(f32s a, f32s b) { return _mm512_max_ps(a, b); }
/* b in lanes of the mask, else a. */
FF_INLINE f32s f32_select(mask32 in, f32s a, f32s b) { return _mm512_mask_mov_ps(a, in, b); }
/* In lanes of the mask the smaller (b if either is NaN); elsewhere a. */
FF_INLINE f32s f32_min_some(mask32 in, f32s a, f32s b) { return _mm512_mask_min_ps(a, in, a, b); }
/* The largest lane; the smallest lane. */
FF_INLINE float f32_largest(f32s x) { return _mm512_reduce_max_ps(x); }
FF_INLINE float f32_least(f32s x) { return _mm512_reduce_min_ps(x); }
/* A bit for each lane: a < b; a >= b. 0 if either is NaN. */
FF_INLINE unsigned f32_less(f32s a, f32s b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
FF_INLINE unsigned f32_at_least(f32s a, f32s b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

/* int32: set all lanes to x; load from any address. */
FF_INLINE i32s i32_set(int32_t x) { return _mm512_set1_epi32(x); }
FF_INLINE i32s i32_load(const int32_t *at) { return _mm512_loadu_si512(at); }
/* Repeat the eight bytes at `at`. */
FF_INLINE i32s i32_set_two(const void *at)
{
    int64_t pair;
    memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi64(pair);
}
/* Even lanes: a plus the next lane of a. Odd lanes: b plus the previous lane of b. */
FF_INLINE i32s i32_add_neighbours(i32s a, i32s b)
{
    const i32s first = _mm512_mask_blend_epi32(0xaaaa, a, b);
    const i32s second = _mm512_mask_blend_epi32(0xaaaa, b, a);
    return _mm512_add_epi32(first, _mm512_shuffle_epi32(second, _MM_PERM_CDAB));
}
/* Store to memory, bypassing the caches. */
FF_INLINE void i32_store_past(i32s *to, i32s x) { _mm512_stream_si512(to, x); }
/* Lane by lane; convert to float32. */
FF_INLINE i32s i32_add(i32s a, i32s b) { return _mm512_add_epi32(a, b); }
FF_INLINE f32s f32_of(i32s x) { return _mm512_cvtepi32_ps(x); }
/* Reinterpret the bits. */
FF_INLINE i32s i32_bits(f32s x) { return _mm512_castps_si512(x); }
/* In each lane: the lower 16 bits of `low`, and those of `high` above them. */
FF_INLINE i32s i32_pairs(i32s low, i32s high)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

/* float64: set all lanes to x. */
FF_INLINE f64s f64_set(double x) { return _mm512_set1_pd(x); }
/* Convert the lower half of the lanes; the upper half. */
FF_INLINE f64s f64_of_low(f32s x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
FF_INLINE f64s f64_of_high(f32s x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
/* Load and store at any address; all lanes or selected ones. */
FF_INLINE f64s f64_load(const double *at) { return _mm512_loadu_pd(at); }
FF_INLINE void f64_store(double *to, f64s x) { _mm512_storeu_pd(to, x); }
FF_INLINE f64s f64_load_some(mask64 in, const double *at) { return _mm512_maskz_loadu_pd(in, at); }
FF_INLINE void f64_store_some(double *to, mask64 in, f64s x) { _mm512_mask_storeu_pd(to, in, x); }
/* Lane by lane. */
FF_INLINE f64s f64_add(f64s a, f64s b) { return _mm512_add_pd(a, b); }
FF_INLINE f64s f64_sub(f64s a, f64s b) { return _mm512_sub_pd(a, b); }
FF_INLINE f64s f64_fma(f64s a, f64s b, f64s c) { return _mm512_fmadd_pd(a, b, c); }
FF_INLINE f64s f64_fms(f64s a, f64s b, f64s c) { return _mm512_fmsub_pd(a, b, c); }
/* The sum of the lanes. */
FF_INLINE double f64_sum(f64s x) { return _mm512_reduce_add_pd(x); }
/* Store the last 16 bits of each lane. */
FF_INLINE void f64_store_last16(int16_t *to, f64s x)
{
    _mm_store_si128((__m128i *)to, _mm512_cvtepi64_epi16(_mm512_castpd_si512(x)));
}

#else
/* The same with AVX2. */
typedef __m256 f32s;
typedef __m256d f64s;
typedef __m256i i32s;
typedef __m256i mask32;
typedef __m256i mask64;

/* Inline assembly, because gcc would compute all products first, for which there are not enough
 * registers. */
#define MULTIPLY(sum, pairs, panel)                                                                \
    do {                                                                                           \
        i32s product;                                                                              \
        __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"                                         \
                : "+x"(sum), "=&x"(product)                                                        \
                : "x"(pairs), "x"(panel));                                                         \
    } while (0)

FF_INLINE mask32 lanes_of(int64_t n)
{
    const int32_t count = n >= LANES ? LANES : n > 0 ? (int32_t)n : 0;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FF_INLINE mask64 lanes64_of(int64_t n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

FF_INLINE f32s f32_set(float x) { return _mm256_set1_ps(x); }
FF_INLINE f32s f32_load(const float *at) { return _mm256_loadu_ps(at); }
FF_INLINE void f32_store(float *to, f32s x) { _mm256_storeu_ps(to, x); }
FF_INLINE f32s f32_load_some(mask32 in, const float *at) { return _mm256_maskload_ps(at, in); }
FF_INLINE void f32_store_left(float *to, int64_t n, f32s x)
{
    /* Masked stores take dozens of cycles on some processors. */
    if (n >= LANES)
        _mm256_storeu_ps(to, x);
    else
        _mm256_maskstore_ps(to, lanes_of(n), x);
}
FF_INLINE f32s f32_add(f32s a, f32s b) { return _mm256_add_ps(a, b); }
FF_INLINE f32s f32_sub(f32s a, f32s b) { return _mm256_sub_ps(a, b); }
FF_INLINE f32s f32_mul(f32s a, f32s b) { return _mm256_mul_ps(a, b); }
FF_INLINE f32s f32_div(f32s a, f32s b) { return _mm256_div_ps(a, b); }
FF_INLINE f32s f32_fma(f32s a, f32s b, f32s c) { return _mm256_fmadd_ps(a, b, c); }
FF_INLINE f32s f32_fms(f32s a, f32s b, f32s c) { return _mm256_fmsub_ps(a, b, c); }
FF_INLINE f32s f32_sqrt(f32s x) { return _mm256_sqrt_ps(x); }
FF_INLINE f32s f32_abs(f32s x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
FF_INLINE f32s f32_max(f32s a, f32s b) { return _mm256_max_ps(a, b); }
FF_INLINE f32s f32_select(mask32 in, f32s a, f32s b)
{
    return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(in));
}
FF_INLINE f32s f32_min_some(mask32 in, f32s a, f32s b)
{
    return f32_select(in, a, _mm256_min_ps(a, b));
}
FF_INLINE float f32_largest(f32s x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
FF_INLINE float f32_least(f32s x)
{
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}
FF_INLINE unsigned f32_less(f32s a, f32s b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
FF_INLINE unsigned f32_at_least(f32s a, f32s b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

FF_INLINE i32s i32_set(int32_t x) { return _mm256_set1_epi32(x); }
FF_INLINE i32s i32_load(const int32_t *at) { return _mm256_loadu_si256((const i32s *)at); }
FF_INLINE i32s i32_set_two(const void *at)
{
    int64_t pair;
    memcpy(&pair, at, sizeof pair);
    return _mm256_set1_epi64x(pair);
}
FF_INLINE i32s i32_add_neighbours(i32s a, i32s b)
{
    const i32s first = _mm256_blend_epi32(a, b, 0xaa), second = _mm256_blend_epi32(b, a, 0xaa);
    return _mm256_add_epi32(first, _mm256_shuffle_epi32(second, 0xb1));
}
FF_INLINE void i32_store_past(i32s *to, i32s x) { _mm256_stream_si256(to, x); }
FF_INLINE i32s i32_add(i32s a, i32s b) { return _mm256_add_epi32(a, b); }
FF_INLINE f32s f32_of(i32s x) { return _mm256_cvtepi32_ps(x); }
FF_INLINE i32s i32_bits(f32s x) { return _mm256_castps_si256(x); }
FF_INLINE i32s i32_pairs(i32s low, i32s high)
{
    return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
}

FF_INLINE f64s f64_set(double x) { return _mm256_set1_pd(x); }
FF_INLINE f64s f64_of_low(f32s x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
FF_INLINE f64s f64_of_high(f32s x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
FF_INLINE f64s f64_load(const double *at) { return _mm256_loadu_pd(at); }
FF_INLINE void f64_store(double *to, f64s x) { _mm256_storeu_pd(to, x); }
FF_INLINE f64s f64_load_some(mask64 in, const double *at) { return _mm256_maskload_pd(at, in); }
FF_INLINE void f64_store_some(double *to, mask64 in, f64s x) { _mm256_maskstore_pd(to, in, x); }
FF_INLINE f64s f64_add(f64s a, f64s b) { return _mm256_add_pd(a, b); }
FF_INLINE f64s f64_sub(f64s a, f64s b) { return _mm256_sub_pd(a, b); }
FF_INLINE f64s f64_fma(f64s a, f64s b, f64s c) { return _mm256_fmadd_pd(a, b, c); }
FF_INLINE f64s f64_fms(f64s a, f64s b, f64s c) { return _mm256_fmsub_pd(a, b, c); }
FF_INLINE double f64_sum(f64s x)
{
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
FF_INLINE void f64_store_last16(int16_t *to, f64s x)
{
    /* Select the two results of each half, then join the halves. */
    const __m128i from = _mm_setr_epi8(0, 1, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i all = _mm256_castpd_si256(x);
    const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(all), from);
    const __m128i high = _mm_shuffle_epi8(_mm256_extracti128_si256(all, 1), from);
    _mm_storel_epi64((__m128i *)to, _mm_unpacklo_epi32(low, high));
}
#endif

/* Return the sum of n products, with two vectors of partial sums, so that their chains of additions
 * overlap. */
FF_INLINE double f64_dot(const double *a, const double *b, int64_t n)
{
    f64s sum = f64_set(0.0), second = sum;
    int64_t j = 0;
    for (; j + 2 * LANES64 <= n; j += 2 * LANES64) {
        sum = f64_fma(f64_load(a + j), f64_load(b + j), sum);
        second = f64_fma(f64_load(a + j + LANES64), f64_load(b + j + LANES64), second);
    }
    for (; j < n; j += LANES64) {
        const mask64 in = lanes64_of(n - j);
        sum = f64_fma(f64_load_some(in, a + j), f64_load_some(in, b + j), sum);
    }
    return f64_sum(f64_add(sum, second));
}

/* Return x, but NaN if x is infinite: an overflowed value proves nothing, whatever its sign. */
FF_INLINE f32s f32_nan_if_infinite(f32s x) { return f32_fma(x, f32_set(0.0f), x); }

#endif
#endif
