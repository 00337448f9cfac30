/* Sums of the rows of a matrix, each times a number: loops of factors, in AVX-512. */
#ifndef FF_ROW_SUMS_H
#define FF_ROW_SUMS_H

#include <immintrin.h>

#include "ff_base.h"

#ifndef AVX512
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INLINE AVX512 static inline __attribute__((always_inline))
#endif
/* Vectors of eight columns side by side, whose sums stay in registers. */
#define ABREAST 8

/* out[j] = start[j] (NULL: 0) + sign sum over rows k = from..d-1 of by[k step] m[k][j], for
 * `vectors` vectors of columns from `first` on, the last of them as far as `in` says. */
INLINE void take_rows(const double *restrict m, int64_t d, const double *by, int64_t step,
                      int64_t from, const double *start, double sign, int64_t first,
                      const int vectors, __mmask8 in, double *restrict out)
{
    __m512d sum[ABREAST];
    for (int v = 0; v < vectors; v++) {
        const __mmask8 own = v == vectors - 1 ? in : (__mmask8)0xff;
        sum[v] = start ? _mm512_maskz_loadu_pd(own, start + first + 8 * v) : _mm512_setzero_pd();
    }
    for (int64_t k = from; k < d; k++) {
        const __m512d factor = _mm512_set1_pd(sign * by[k * step]);
        for (int v = 0; v < vectors; v++) {
            const double *at = m + k * d + first + 8 * v;
            const __m512d x = v == vectors - 1 ? _mm512_maskz_loadu_pd(in, at) : _mm512_loadu_pd(at);
            sum[v] = _mm512_fmadd_pd(factor, x, sum[v]);
        }
    }
    for (int v = 0; v < vectors; v++)
        _mm512_mask_storeu_pd(out + first + 8 * v, v == vectors - 1 ? in : (__mmask8)0xff, sum[v]);
}

/* The same of columns 0..n-1. */
INLINE void sum_rows(const double *restrict m, int64_t d, const double *by, int64_t step,
                     int64_t from, int64_t n, const double *start, double sign, double *restrict out)
{
    for (int64_t first = 0; first < n; first += 8 * ABREAST) {
        const int64_t left = (n - first + 7) / 8, over = n % 8;
        const __mmask8 in = over ? (__mmask8)((1u << over) - 1) : (__mmask8)0xff;
        switch (left < ABREAST ? left : ABREAST) {
        case 1: take_rows(m, d, by, step, from, start, sign, first, 1, in, out); break;
        case 2: take_rows(m, d, by, step, from, start, sign, first, 2, in, out); break;
        case 3: take_rows(m, d, by, step, from, start, sign, first, 3, in, out); break;
        case 4: take_rows(m, d, by, step, from, start, sign, first, 4, in, out); break;
        case 5: take_rows(m, d, by, step, from, start, sign, first, 5, in, out); break;
        case 6: take_rows(m, d, by, step, from, start, sign, first, 6, in, out); break;
        case 7: take_rows(m, d, by, step, from, start, sign, first, 7, in, out); break;
        default:
            take_rows(m, d, by, step, from, start, sign, first, 8,
                      left == ABREAST ? in : (__mmask8)0xff, out);
        }
    }
}

#endif
