#include "ff_row_sums.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_wide.h"

/* Number of rows of out (results), and of vectors of columns of each, that are summed together in
 * registers, so that a row of m is loaded once for all. With 32 registers there are twice as many
 * results, or vectors. */
#define MOST_RESULTS (FF_WIDE == 64 ? 6 : 3)
#define RESULTS 3
#define MOST_VECTORS (FF_WIDE == 64 ? 8 : 4)
#define VECTORS_FOR(results) ((results) > 3 ? 4 : MOST_VECTORS)

/* Compute the first `results` rows and `vectors` vectors of columns of the result of ff_sum_rows.
 * `in` masks the last vector. */
FF_INLINE void sum_block(const double *m, int64_t d, const double *weights, int64_t row_step,
                         int64_t step, const int results, int64_t from, int64_t to,
                         const int vectors, mask64 in, const double *start, double sign,
                         double *out)
{
    f64s sum[MOST_RESULTS][MOST_VECTORS];
    for (int r = 0; r < results; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = !start             ? f64_set(0.0)
                        : v == vectors - 1 ? f64_load_some(in, start + r * d + LANES64 * v)
                                           : f64_load(start + r * d + LANES64 * v);
    for (int64_t k = from; k < to; k++) {
        f64s factor[MOST_RESULTS];
        for (int r = 0; r < results; r++)
            factor[r] = f64_set(sign * weights[r * row_step + k * step]);
        for (int v = 0; v < vectors; v++) {
            const double *source = m + k * d + LANES64 * v;
            const f64s x = v == vectors - 1 ? f64_load_some(in, source) : f64_load(source);
            for (int r = 0; r < results; r++)
                sum[r][v] = f64_fma(factor[r], x, sum[r][v]);
        }
    }
    for (int r = 0; r < results; r++) {
        for (int v = 0; v < vectors - 1; v++)
            f64_store(out + r * d + LANES64 * v, sum[r][v]);
        f64_store_some(out + r * d + LANES64 * (vectors - 1), in, sum[r][vectors - 1]);
    }
}

/* Compute the first `results` rows and n columns of the result of ff_sum_rows, in blocks of
 * columns. */
FF_INLINE void sum_results(const double *m, int64_t d, const double *weights, int64_t row_step,
                           int64_t step, const int results, int64_t from, int64_t to, int64_t n,
                           const double *start, double sign, double *out)
{
    int64_t first = 0;
    while (first < n) {
        const int64_t vectors = (n - first + LANES64 - 1) / LANES64;
        const int64_t widest = VECTORS_FOR(results);
        const int64_t width = vectors >= widest ? widest : vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
        const mask64 in = lanes64_of(n - first - LANES64 * (width - 1));
        const double *start_part = start ? start + first : NULL;
        if (width == widest)
            sum_block(m + first, d, weights, row_step, step, results, from, to,
                      VECTORS_FOR(results), in, start_part, sign, out + first);
        else if (width == 4)
            sum_block(m + first, d, weights, row_step, step, results, from, to, 4, in, start_part,
                      sign, out + first);
        else if (width == 2)
            sum_block(m + first, d, weights, row_step, step, results, from, to, 2, in, start_part,
                      sign, out + first);
        else
            sum_block(m + first, d, weights, row_step, step, results, from, to, 1, in, start_part,
                      sign, out + first);
        first += LANES64 * width;
    }
}

/* Compute out[r][j] = start[r][j] + sign times the sum of weights[r * row_step + k * step] m[k][j]
 * over k = from..to - 1, for r < rows and j < n (see ff_row_sums.h). As many rows of out as the
 * registers allow are computed together. */
void ff_sum_rows(const double *m, int64_t d, const double *weights, int64_t row_step, int64_t step,
                 int64_t rows, int64_t from, int64_t to, int64_t n, const double *start,
                 double sign, double *out)
{
    int64_t r = 0;
    for (; MOST_RESULTS > RESULTS && r + MOST_RESULTS <= rows; r += MOST_RESULTS) {
        const double *start_part = start ? start + r * d : NULL;
        sum_results(m, d, weights + r * row_step, row_step, step, MOST_RESULTS, from, to, n,
                    start_part, sign, out + r * d);
    }
    for (; r + RESULTS <= rows; r += RESULTS) {
        const double *start_part = start ? start + r * d : NULL;
        sum_results(m, d, weights + r * row_step, row_step, step, RESULTS, from, to, n, start_part,
                    sign, out + r * d);
    }
    for (; r < rows; r++) {
        const double *start_part = start ? start + r * d : NULL;
        sum_results(m, d, weights + r * row_step, row_step, step, 1, from, to, n, start_part, sign,
                    out + r * d);
    }
}

/* Compute M = R'R (d, d) for a lower triangular R (d, d), and return the trace of M. */
double ff_gram_of_lower(const double *restrict r, int64_t d, double *restrict m)
{
    double trace = 0.0;
    for (int64_t i = 0; i < d; i += MOST_RESULTS) {
        const int64_t rows = d - i < MOST_RESULTS ? d - i : MOST_RESULTS;
        ff_sum_rows(r, d, r + i, 1, d, rows, i, d, i + rows, NULL, 1.0, m + i * d);
    }
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < i; j++)
            m[j * d + i] = m[i * d + j];
        trace += m[i * d + i];
    }
    return trace;
}

/* Replace S (d, d) by the lower triangular R with S = R'R, from the last row up. Returns 1, or 0 if
 * S has no such factor. */
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
