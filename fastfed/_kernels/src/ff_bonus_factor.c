#include "ff_bonus_factor.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_linalg.h"
#include "ff_row_sums.h"
#include "ff_wide.h"

/* Number of rows of (W'W)^2 that are computed together. */
#define SQUARE_ROWS 6
/* Number of vectors of columns of W whose sums W'z stay in registers. */
#define VECTORS_AT_ONCE 8
/* Number of rows of W that are multiplied by x together. */
#define ROWS_AT_ONCE 8

/* Compute R with R'R = W'W + c (W'W)^2, and a bound `lost` on its rounding error.
 *
 * Proof of `lost`. Let u = 2^-53, n = d + 2, F = ||W||_F^2, G = F + c F^2, A = W'W and
 * Q = A + c A^2. Errors are upper bounds in norm; they hold for any order of the sums, with or
 * without fused instructions.
 * - The computed A has an error of n u F.
 * - The computed A^2 has an error of n u F^2 from the product and 2 n u F^2 from the error of A.
 * - So the computed Q has an error of 4 n u G.
 * - R'R differs from the computed Q by n u ||R||_F^2 <= 1.01 n u G (Higham 2002, Theorem 10.3).
 * So R'R has an error of at most 6 n u G, and ||R x|| has an error of at most sqrt(6 n u G) ||x||.
 * `lost` has the factor 16 instead of 6: this also covers terms of second order in u and the
 * rounding of G. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r)
{
    const double total = ff_gram_of_lower(w, d, inverse);
    const ff_bonus_factor none = {0.0, sqrt(total), 0.0};
    /* Outside this range underflow of squares is not covered by the proof. */
    if (!(total > 0x1p-400) || !(total < 0x1p400))
        return none;
    for (int64_t i = 0; i < d; i += SQUARE_ROWS) {
        const int64_t rows = d - i < SQUARE_ROWS ? d - i : SQUARE_ROWS;
        ff_sum_rows(inverse, d, inverse + i, 1, d, rows, 0, d, i + rows, NULL, 1.0, r + i * d);
    }
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++)
            r[i * d + j] = inverse[i * d + j] + c * r[i * d + j];
    if (!ff_factor_from_below(r, d))
        return none;
    const double size = total + c * total * total;
    const double lost = sqrt(16.0 * (double)(d + 2) * 0x1p-53 * size);
    return lost < INFINITY ? (ff_bonus_factor){c, sqrt(total), lost} : none;
}

/* Compute out (d) = W'z, one block of columns of W at a time. */
void ff_bonus_factor_back(const double *restrict w, const double *restrict z, int64_t d,
                          double *restrict out)
{
    for (int64_t first = 0; first < d; first += LANES64 * VECTORS_AT_ONCE) {
        const int64_t vectors = (d - first + LANES64 - 1) / LANES64 < VECTORS_AT_ONCE
                                    ? (d - first + LANES64 - 1) / LANES64
                                    : VECTORS_AT_ONCE;
        const int64_t tail = d - first - LANES64 * (vectors - 1);
        const mask64 in = lanes64_of(tail);
        f64s sum[VECTORS_AT_ONCE];
        for (int v = 0; v < VECTORS_AT_ONCE; v++)
            sum[v] = f64_set(0.0);
        for (int64_t k = first; k < d; k++) {
            const double *row = w + k * d + first;
            const f64s factor = f64_set(z[k]);
            /* Entries past the diagonal are zero. */
            const int64_t used =
                (k - first) / LANES64 + 1 < vectors ? (k - first) / LANES64 + 1 : vectors;
            if (used == VECTORS_AT_ONCE && tail >= LANES64) {
                for (int v = 0; v < VECTORS_AT_ONCE; v++)
                    sum[v] = f64_fma(factor, f64_load(row + LANES64 * v), sum[v]);
                continue;
            }
            for (int v = 0; v < VECTORS_AT_ONCE; v++)
                if (v < used)
                    sum[v] = f64_fma(factor,
                                     v == vectors - 1 ? f64_load_some(in, row + LANES64 * v)
                                                      : f64_load(row + LANES64 * v),
                                     sum[v]);
        }
        for (int v = 0; v < VECTORS_AT_ONCE; v++)
            if (v < vectors - 1)
                f64_store(out + first + LANES64 * v, sum[v]);
            else if (v == vectors - 1)
                f64_store_some(out + first + LANES64 * v, in, sum[v]);
    }
}

/* Return sum_k <W_k, x>^2 over the rows k = i, .., i + rows - 1 of W (d, d). If back (d) is not
 * NULL, add sum_k <W_k, x> W_k to it, which gives W'W x after all rows. */
FF_INLINE double add_row_products(const double *restrict w, const double *restrict x, int64_t d,
                                  int64_t i, const int rows, double *restrict back)
{
    const double *rows_w = w + i * d;
    /* Vectors up to the last one that is not zero. The end of the row may cut that one. */
    const int64_t used = (i + rows - 1) / LANES64 + 1, cut = LANES64 * used > d;
    const int64_t end = LANES64 * (used - cut);
    const mask64 in = lanes64_of(d - end);
    f64s sum[ROWS_AT_ONCE];
    double square = 0.0;
    for (int r = 0; r < rows; r++)
        sum[r] = f64_set(0.0);
    for (int64_t j = 0; j < end; j += LANES64) {
        const f64s x_part = f64_load(x + j);
        for (int r = 0; r < rows; r++)
            sum[r] = f64_fma(f64_load(rows_w + r * d + j), x_part, sum[r]);
    }
    if (cut) {
        const f64s x_part = f64_load_some(in, x + end);
        for (int r = 0; r < rows; r++)
            sum[r] = f64_fma(f64_load_some(in, rows_w + r * d + end), x_part, sum[r]);
    }
    for (int r = 0; r < rows; r++) {
        const double z = f64_sum(sum[r]);
        square += z * z;
        sum[r] = f64_set(z);
    }
    for (int64_t j = 0; back && j < end; j += LANES64) {
        f64s out = f64_load(back + j);
        for (int r = 0; r < rows; r++)
            out = f64_fma(sum[r], f64_load(rows_w + r * d + j), out);
        f64_store(back + j, out);
    }
    if (back && cut) {
        f64s out = f64_load_some(in, back + end);
        for (int r = 0; r < rows; r++)
            out = f64_fma(sum[r], f64_load_some(in, rows_w + r * d + end), out);
        f64_store_some(back + end, in, out);
    }
    return square;
}

/* Return ||W x||^2 and, if with_second is 1, ||W'W x||^2. */
ff_squares ff_squares_of(const double *restrict w, const double *restrict x, int with_second,
                         int64_t d, double *restrict scratch)
{
    ff_squares square = {0.0, 0.0};
    double *back = with_second ? scratch : NULL;
    if (with_second)
        memset(scratch, 0, (size_t)d * sizeof(double));
    int64_t i = 0;
    for (; i + ROWS_AT_ONCE <= d; i += ROWS_AT_ONCE)
        square.first += add_row_products(w, x, d, i, ROWS_AT_ONCE, back);
    for (; i < d; i++)
        square.first += add_row_products(w, x, d, i, 1, back);
    for (int64_t j = 0; with_second && j < d; j++)
        square.second += scratch[j] * scratch[j];
    return square;
}

/* Return c = gamma a / (beta b), where a^2 and b^2 are the sums of ||W x||^2 and ||W'W x||^2 over
 * the actions x (count, d). For an action with this ratio a / b, the bound of ff_bonus_factor.h
 * equals the bonus. If all a are 0, the d unit vectors are used as actions. */
double ff_bonus_factor_weight(const double *restrict w, double beta, double gamma,
                              const double *restrict x, int64_t count, int64_t d,
                              double *restrict scratch)
{
    double first = 0.0, second = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const ff_squares squares = ff_squares_of(w, x + i * d, 1, d, scratch);
        first += squares.first;
        second += squares.second;
    }
    const int all_zero = !(first > 0.0);
    for (int64_t i = 0; all_zero && i < d; i++) {
        double *unit = scratch + d;
        memset(unit, 0, (size_t)d * sizeof(double));
        unit[i] = 1.0;
        const ff_squares squares = ff_squares_of(w, unit, 1, d, scratch);
        first += squares.first;
        second += squares.second;
    }
    return gamma / beta * sqrt(first / second);
}

#else
/* Return a factor whose c is 0, which means that there is no R: this build lacks the instructions
 * of ff_wide.h. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r)
{
    (void)w, (void)c, (void)d, (void)inverse, (void)r;
    return (ff_bonus_factor){0.0, 0.0, 0.0};
}
#endif
