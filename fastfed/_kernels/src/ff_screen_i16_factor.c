/* Quantise W and theta to 16-bit integers, for screening (ff_screen_i16.h) and the bonus cache. */
#include "ff_base.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_screen_i16_parts.h"

/* Return the number of doubles that W and theta take in 16 bits. */
int64_t ff_quantised_factor_size(int64_t d)
{
    /* Units, squares, rows; and space for alignment. */
    const int64_t groups = groups_of(d);
    return groups + (groups + 1) / 2 + ROWS * groups * row_of(d) / 4 + 8;
}

/* Return LANES64 entries of a row (d) from entry j on; 0 past the end, unless `whole` says that all
 * exist. */
FF_INLINE f64s entries(const double *restrict row, int64_t j, int64_t d, int whole)
{
    return whole ? f64_load(row + j) : f64_load_some(lanes64_of(d - j), row + j);
}

/* Return 1 if the group of rows that ends before row n has ROWS rows, and its first n columns,
 * rounded up to whole vectors, are within the d columns of W. */
FF_INLINE int whole_rows(int64_t n, int64_t d)
{
    return n % ROWS == 0 && ((n + LANES64 - 1) & ~(int64_t)(LANES64 - 1)) <= d;
}

/* Return the largest squared length among `count` <= ROWS rows of n entries (d apart), and add all
 * squared lengths to *sum. whole: see `entries`. The rows share one loop, because short loops cost
 * most at their ends. */
FF_INLINE double largest_square(const double *restrict rows, const int count, int64_t n, int64_t d,
                                int whole, double *restrict sum)
{
    f64s square[ROWS];
    double largest = 0.0;
    for (int r = 0; r < count; r++)
        square[r] = f64_set(0.0);
    for (int64_t j = 0; j < n; j += LANES64)
        for (int r = 0; r < count; r++) {
            const f64s x = entries(rows + r * d, j, d, whole);
            square[r] = f64_fma(x, x, square[r]);
        }
    for (int r = 0; r < count; r++) {
        const double row_square = f64_sum(square[r]);
        /* NaN stays NaN. */
        largest = row_square <= largest ? largest : row_square;
        *sum += row_square;
    }
    return largest;
}

/* Multiply `count` <= ROWS rows of n entries (d apart) by `scale` and round them to 16 bits, into
 * rows of `to` (row_of(d) apart). Returns the sum of the squared rounding errors. */
FF_INLINE double quantise_rows(const double *restrict rows, const int count, int64_t n, int64_t d,
                               int whole, double scale, int16_t *restrict to)
{
    /* Adding 1.5 2^52 rounds, because doubles from 2^52 to 2^53 are whole numbers, and the last 16
     * bits of the sum are the rounded value. So one fused instruction scales and rounds. */
    const f64s factor = f64_set(scale), shift = f64_set(0x1.8p52);
    f64s even = f64_set(0.0), odd = even;
    for (int64_t j = 0; j < n; j += LANES64)
        for (int r = 0; r < count; r++) {
            const f64s x = entries(rows + r * d, j, d, whole);
            const f64s q = f64_fma(x, factor, shift);
            const f64s error = f64_fms(x, factor, f64_sub(q, shift));
            if (r & 1)
                odd = f64_fma(error, error, odd);
            else
                even = f64_fma(error, error, even);
            f64_store_last16(to + r * row_of(d) + j, q);
        }
    return f64_sum(f64_add(even, odd));
}

/* Round a row (d) to 16 bits. The value of 1 (the unit) is ||row|| / LENGTH, so the rounded row has
 * about the length LENGTH. Returns ||row||, the unit, and the length of the rounding errors. */
quantised_row ff_quantise_row(const double *restrict row, int64_t d, int16_t *restrict to)
{
    double square = 0.0;
    largest_square(row, 1, d, d, 0, &square);
    /* The unit of a row of zeros must not be 0. */
    const double norm = sqrt(square), unit = (norm + 0x1p-500) / LENGTH;
    return (quantised_row){norm, unit, unit * sqrt(quantise_rows(row, 1, d, d, 0, 1.0 / unit, to))};
}

/* Round W (d, d) and theta (d, or NULL) to 16 bits, into `buffer`, with one unit (value of 1) for
 * each group of ROWS rows of W. Returns the units, norms and rounding errors. */
quantised_factor ff_quantise_factor(const double *restrict w, const double *restrict theta,
                                    int64_t d, double *restrict buffer)
{
    const int64_t ld = row_of(d), used = (d + ROWS - 1) / ROWS, groups = groups_of(d);
    double *restrict units = buffer;
    float *restrict squares = (float *)(units + groups);
    int16_t *restrict rows = (int16_t *)aligned(units + groups + (groups + 1) / 2);
    /* total, diagonal, lost: squared Frobenius norms of W, of its diagonal and of the rounding
     * errors. largest: the largest diagonal entry. */
    double total = 0.0, diagonal = 0.0, lost = 0.0, largest = 0.0, largest_unit = 0.0;
    /* First, units[g] is the largest squared length among the rows of group g. All these lengths
     * come before the units, so their square roots run as vectors. */
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        units[i / ROWS] = whole_rows(n, d) ? largest_square(group, ROWS, n, d, 1, &total)
                                           : largest_square(group, count, n, d, 0, &total);
        for (int64_t r = i; r < n; r++) {
            const double entry = fabs(w[r * d + r]);
            diagonal += entry * entry;
            largest = entry > largest ? entry : largest;
        }
    }
    for (int64_t g = 0; g < used; g++)
        units[g] = (sqrt(units[g]) + 0x1p-500) * (1.0 / LENGTH);
    for (int64_t g = 0; g < used; g++)
        largest_unit = units[g] > largest_unit ? units[g] : largest_unit;
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        const double group_unit = units[i / ROWS], scale = 1.0 / group_unit;
        lost += group_unit * group_unit *
                (whole_rows(n, d) ? quantise_rows(group, ROWS, n, d, 1, scale, rows + i * ld)
                                  : quantise_rows(group, count, n, d, 0, scale, rows + i * ld));
        const float relative = (float)(group_unit / largest_unit);
        squares[i / ROWS] = relative * relative;
    }
    if (used < groups)
        squares[used] = 0.0f;
    memset(rows + d * ld, 0, (size_t)((groups * ROWS - d) * ld) * sizeof *rows);
    const quantised_row no_theta = {0.0, 0.0, 0.0};
    return (quantised_factor){largest_unit,
                              norm_bound(total, diagonal, largest, d),
                              sqrt(total),
                              sqrt(lost),
                              squares,
                              rows,
                              theta ? ff_quantise_row(theta, d, rows + d * ld) : no_theta};
}
#endif
