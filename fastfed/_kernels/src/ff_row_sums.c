#include "ff_row_sums.h"

#ifdef FF_AVX512
#include <immintrin.h>
#include <math.h>

/* Results side by side, and vectors of eight columns of each, whose sums stay in registers: a row of
 * m is loaded once for all. */
#define RESULTS 3
#define ABREAST 8

/* ff_sum_rows of `results` results and `vectors` vectors of columns, the last as far as `in` says. */
INLINE void sum_block(const double *m, int64_t d, const double *by, int64_t row, int64_t step,
                      const int results, int64_t from, int64_t to, const int vectors, __mmask8 in,
                      const double *start, double sign, double *out)
{
    __m512d sum[RESULTS][ABREAST];
    for (int r = 0; r < results; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = start ? _mm512_maskz_loadu_pd(v == vectors - 1 ? in : (__mmask8)0xff,
                                                      start + r * d + 8 * v)
                              : _mm512_setzero_pd();
    for (int64_t k = from; k < to; k++) {
        __m512d factor[RESULTS];
        for (int r = 0; r < results; r++)
            factor[r] = _mm512_set1_pd(sign * by[r * row + k * step]);
        for (int v = 0; v < vectors; v++) {
            const double *at = m + k * d + 8 * v;
            const __m512d x = v == vectors - 1 ? _mm512_maskz_loadu_pd(in, at) : _mm512_loadu_pd(at);
            for (int r = 0; r < results; r++)
                sum[r][v] = _mm512_fmadd_pd(factor[r], x, sum[r][v]);
        }
    }
    for (int r = 0; r < results; r++)
        for (int v = 0; v < vectors; v++)
            _mm512_mask_storeu_pd(out + r * d + 8 * v, v == vectors - 1 ? in : (__mmask8)0xff,
                                  sum[r][v]);
}

/* The same for n columns. */
INLINE void sum_results(const double *m, int64_t d, const double *by, int64_t row, int64_t step,
                        const int results, int64_t from, int64_t to, int64_t n,
                        const double *start, double sign, double *out)
{
    int64_t first = 0;
    while (first < n) {
        const int64_t vectors = (n - first + 7) / 8;
        const int64_t now = vectors >= 8 ? 8 : vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
        const int64_t last = n - first - 8 * (now - 1);
        const __mmask8 in = last >= 8 ? (__mmask8)0xff : (__mmask8)((1u << last) - 1);
        const double *own = start ? start + first : NULL;
        if (now == 8)
            sum_block(m + first, d, by, row, step, results, from, to, 8, in, own, sign, out + first);
        else if (now == 4)
            sum_block(m + first, d, by, row, step, results, from, to, 4, in, own, sign, out + first);
        else if (now == 2)
            sum_block(m + first, d, by, row, step, results, from, to, 2, in, own, sign, out + first);
        else
            sum_block(m + first, d, by, row, step, results, from, to, 1, in, own, sign, out + first);
        first += 8 * now;
    }
}

AVX512 void ff_sum_rows(const double *m, int64_t d, const double *by, int64_t row, int64_t step,
                        int64_t rows, int64_t from, int64_t to, int64_t n, const double *start,
                        double sign, double *out)
{
    int64_t r = 0;
    for (; r + RESULTS <= rows; r += RESULTS) {
        const double *own = start ? start + r * d : NULL;
        sum_results(m, d, by + r * row, row, step, RESULTS, from, to, n, own, sign, out + r * d);
    }
    for (; r < rows; r++) {
        const double *own = start ? start + r * d : NULL;
        sum_results(m, d, by + r * row, row, step, 1, from, to, n, own, sign, out + r * d);
    }
}

double ff_gram_of_lower(const double *restrict r, int64_t d, double *restrict m)
{
    double trace = 0.0;
    for (int64_t i = 0; i < d; i += RESULTS) {
        const int64_t rows = d - i < RESULTS ? d - i : RESULTS;
        ff_sum_rows(r, d, r + i, 1, d, rows, i, d, i + rows, NULL, 1.0, m + i * d);
    }
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < i; j++)
            m[j * d + i] = m[i * d + j];
        trace += m[i * d + i];
    }
    return trace;
}

int ff_factor_from_below(double *restrict s, int64_t d)
{
    for (int64_t end = d; end > 0; end -= RESULTS) {
        const int64_t begin = end < RESULTS ? 0 : end - RESULTS;
        double *block = s + begin * d;
        ff_sum_rows(s, d, s + begin, 1, d, end - begin, end, d, end, block, -1.0, block);
        for (int64_t i = end - 1; i >= begin; i--) {
            double *row = s + i * d;
            if (!(row[i] > 0.0) || !(row[i] < INFINITY))
                return 0;
            const double scale = 1.0 / sqrt(row[i]);
            for (int64_t j = 0; j <= i; j++)
                row[j] *= scale;
            memset(row + i + 1, 0, (size_t)(d - i - 1) * sizeof(double));
            for (int64_t k = begin; k < i; k++)
                for (int64_t j = 0; j <= k; j++)
                    s[k * d + j] -= row[k] * row[j];
        }
    }
    return 1;
}
#endif
