/* W and theta in 16-bit integers, for screening (ff_screen_i16.h) and the bonus cache. */
#include "ff_base.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_screen_i16_parts.h"

int64_t ff_quantised_factor_size(int64_t d)
{
    /* Units, squares, rows; and space to align these. */
    const int64_t groups = groups_of(d);
    return groups + (groups + 1) / 2 + ROWS * groups * row_of(d) / 4 + 8;
}

/* The entries of a row from the j-th; past the d-th they are zero. */
FF_INLINE f64s entries(const double *restrict row, int64_t j, int64_t d, int whole)
{
    return whole ? f64_load(row + j) : f64_load_some(lanes64_of(d - j), row + j);
}

/* Whether the group of rows that ends with the n-th has all of them, and whole vectors in each. */
FF_INLINE int whole_rows(int64_t n, int64_t d)
{
    return n % ROWS == 0 && ((n + LANES64 - 1) & ~(int64_t)(LANES64 - 1)) <= d;
}

/* The largest squared length among `count` <= ROWS rows of n entries, d apart; their sum too. All
 * rows side by side: loops so short cost most where they end. */
FF_INLINE double longest(const double *restrict rows, const int count, int64_t n, int64_t d,
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
        const double one = f64_sum(square[r]);
        /* What is not a number stays. */
        largest = one <= largest ? largest : one;
        *sum += one;
    }
    return largest;
}

/* Rows as above, times `scale`, in 16 bits; returns what rounding has changed, squared. */
FF_INLINE double quantise_rows(const double *restrict rows, const int count, int64_t n, int64_t d,
                               int whole, double scale, int16_t *restrict to)
{
    /* Past 2^52 doubles are whole numbers, whose last bits these are: so one instruction scales
     * and rounds. */
    const f64s by = f64_set(scale), far = f64_set(0x1.8p52);
    f64s even = f64_set(0.0), odd = even;
    for (int64_t j = 0; j < n; j += LANES64)
        for (int r = 0; r < count; r++) {
            const f64s x = entries(rows + r * d, j, d, whole);
            const f64s q = f64_fma(x, by, far);
            const f64s rest = f64_fms(x, by, f64_sub(q, far));
            if (r & 1)
                odd = f64_fma(rest, rest, odd);
            else
                even = f64_fma(rest, rest, even);
            f64_store_last16(to + r * row_of(d) + j, q);
        }
    return f64_sum(f64_add(even, odd));
}

quantised_row ff_quantise_row(const double *restrict row, int64_t d, int16_t *restrict to)
{
    double square = 0.0;
    longest(row, 1, d, d, 0, &square);
    const double norm = sqrt(square), unit = (norm + 0x1p-500) / LENGTH;
    return (quantised_row){norm, unit, unit * sqrt(quantise_rows(row, 1, d, d, 0, 1.0 / unit, to))};
}

quantised_factor ff_quantise_factor(const double *restrict w, const double *restrict theta,
                                    int64_t d, double *restrict buffer)
{
    const int64_t ld = row_of(d), used = (d + ROWS - 1) / ROWS, groups = groups_of(d);
    double *restrict units = buffer;
    float *restrict squares = (float *)(units + groups);
    int16_t *restrict rows = (int16_t *)aligned(units + groups + (groups + 1) / 2);
    double total = 0.0, diagonal = 0.0, largest = 0.0, lost = 0.0, unit = 0.0;
    /* All lengths first: their roots then run as vectors, and no row waits for its own. */
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        units[i / ROWS] = whole_rows(n, d) ? longest(group, ROWS, n, d, 1, &total)
                                           : longest(group, count, n, d, 0, &total);
        for (int64_t r = i; r < n; r++) {
            const double entry = fabs(w[r * d + r]);
            diagonal += entry * entry;
            largest = entry > largest ? entry : largest;
        }
    }
    for (int64_t g = 0; g < used; g++)
        units[g] = (sqrt(units[g]) + 0x1p-500) * (1.0 / LENGTH);
    for (int64_t g = 0; g < used; g++)
        unit = units[g] > unit ? units[g] : unit;
    for (int64_t i = 0; i < d; i += ROWS) {
        const int count = d - i < ROWS ? (int)(d - i) : ROWS;
        const int64_t n = i + count;
        const double *group = w + i * d;
        const double own = units[i / ROWS], scale = 1.0 / own;
        lost += own * own *
                (whole_rows(n, d) ? quantise_rows(group, ROWS, n, d, 1, scale, rows + i * ld)
                                  : quantise_rows(group, count, n, d, 0, scale, rows + i * ld));
        const float relative = (float)(own / unit);
        squares[i / ROWS] = relative * relative;
    }
    if (used < groups)
        squares[used] = 0.0f;
    memset(rows + d * ld, 0, (size_t)((groups * ROWS - d) * ld) * sizeof *rows);
    const quantised_row none = {0.0, 0.0, 0.0};
    return (quantised_factor){unit,
                         norm_bound(total, diagonal, largest, d),
                         sqrt(total),
                         sqrt(lost),
                         squares,
                         rows,
                         theta ? ff_quantise_row(theta, d, rows + d * ld) : none};
}
#endif
