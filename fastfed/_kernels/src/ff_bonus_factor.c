#include "ff_bonus_factor.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_linalg.h"
#include "ff_row_sums.h"
#include "ff_wide.h"

/* Rows of a square that are computed together. */
#define SQUARE_ROWS 6
/* Vectors of columns whose sums stay in registers. */
#define VECTORS_AT_ONCE 8
/* The same for floats; and the number of products that are added in float32 before the sum is added
 * to a total, to keep rounding errors few. */
#define VECTORS_AT_ONCE32 3
#define BLOCK 32
/* Rows of W whose products are summed together. */
#define ROWS_AT_ONCE 8

/* Compute R with R'R = W'W + c (W'W)^2, and a bound `lost` on its rounding error.
 *
 * Proof of `lost`: rounding, u = 2^-53, n = d + 2, F = ||W||_F^2 and G = F + c F^2. In any order,
 * fused or not, the computed A of W'W has an error of n u F in norm; its square has an error of n u
 * F^2 and, through A, 2 n u F^2; so Q = A + c A^2 has 4 n u G. R'R differs from the computed Q by n
 * u ||R||_F^2 <= 1.01 n u G (Higham 2002, Theorem 10.3). In all at most 6 n u G, whose square root
 * is `lost`. The factor 16 also covers terms of second order in u and the rounding of G. */
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

/* The rows of W are stored in lots. A lot has LOT rows; entries of one column are side by side, and
 * columns follow each other, up to the last one that is not zero. */
#define LOT (LANES * VECTORS_AT_ONCE32)
/* Return the number of columns of the lot that begins with row `first`. */
FF_INLINE int64_t columns_of_lot(int64_t first, int64_t d)
{
    return first + LOT < d ? first + LOT : d;
}

int64_t ff_columns_size(int64_t d)
{
    int64_t size = 0;
    for (int64_t first = 0; first < d; first += LOT)
        size += LOT * columns_of_lot(first, d);
    return size;
}

void ff_columns_make(const double *restrict w, int64_t d, float *restrict columns)
{
    memset(columns, 0, (size_t)ff_columns_size(d) * sizeof(float));
    for (int64_t first = 0; first < d; first += LOT) {
        const int64_t count = columns_of_lot(first, d);
        for (int64_t i = first; i < count; i++)
            for (int64_t j = 0; j <= i; j++)
                columns[j * LOT + i - first] = (float)w[i * d + j];
        columns += LOT * count;
    }
}

/* sum (LOT) += the first `count` columns of a lot, times x[j]. */
FF_INLINE void add_columns(const float *restrict columns, const float *restrict x, int64_t count,
                           f32s *restrict sum)
{
    f32s even[VECTORS_AT_ONCE32], odd[VECTORS_AT_ONCE32];
    for (int v = 0; v < VECTORS_AT_ONCE32; v++)
        even[v] = odd[v] = f32_set(0.0f);
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
        const f32s x_even = f32_set(x[j]), x_odd = f32_set(x[j + 1]);
        for (int v = 0; v < VECTORS_AT_ONCE32; v++) {
            even[v] = f32_fma(x_even, f32_load(columns + LOT * j + LANES * v), even[v]);
            odd[v] = f32_fma(x_odd, f32_load(columns + LOT * (j + 1) + LANES * v), odd[v]);
        }
    }
    for (; j < count; j++)
        for (int v = 0; v < VECTORS_AT_ONCE32; v++)
            even[v] = f32_fma(f32_set(x[j]), f32_load(columns + LOT * j + LANES * v), even[v]);
    for (int v = 0; v < VECTORS_AT_ONCE32; v++)
        sum[v] = f32_add(sum[v], f32_add(even[v], odd[v]));
}

double ff_norm_by_columns(const float *restrict columns, const float *restrict x, int64_t d)
{
    f64s square = f64_set(0.0);
    for (int64_t first = 0; first < d; first += LOT) {
        const int64_t count = columns_of_lot(first, d);
        f32s sum[VECTORS_AT_ONCE32];
        for (int v = 0; v < VECTORS_AT_ONCE32; v++)
            sum[v] = f32_set(0.0f);
        for (int64_t j = 0; j < count; j += BLOCK) {
            const int64_t block = count - j < BLOCK ? count - j : BLOCK;
            add_columns(columns + LOT * j, x + j, block, sum);
        }
        columns += LOT * count;
        for (int v = 0; v < VECTORS_AT_ONCE32; v++) {
            const f64s low = f64_of_low(sum[v]), high = f64_of_high(sum[v]);
            square = f64_fma(low, low, f64_fma(high, high, square));
        }
    }
    return sqrt(f64_sum(square));
}

/* Proof: with u = 2^-24, float32 changes an entry of W by u relatively; products and sums of a
 * block have BLOCK / 2 + 1 roundings, and sums of blocks one for each block. In all k u sum_j
 * |W_ij| |x_j|, which as a vector is at most k u ||W||_F ||x|| by Cauchy-Schwarz. If
 * ||W||_F > 2^-100, underflow of entries is much smaller; underflow of products costs at most d
 * 2^-149 in each of d sums, which is covered by 2^-120 (see ff_bonus_scores.c). */
double ff_norm_error(int64_t d)
{
    return 1.01 * (double)(BLOCK / 2 + d / BLOCK + 5) * 0x1p-24;
}

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

/* Return the sum of squares of the products of `rows` rows of W (from row i on) with x. If `back`
 * is not NULL, add each row times its product to it. */
FF_INLINE double add_row_products(const double *restrict w, const double *restrict x, int64_t d,
                                  int64_t i, const int rows, double *restrict back)
{
    const double *rows_w = w + i * d;
    /* Vectors up to the last one that is not zero; that one may be cut. */
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

/* Return ||W x||^2 and, if requested, ||W'W x||^2. */
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
/* Built without these instructions: there is no factor. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r)
{
    (void)w, (void)c, (void)d, (void)inverse, (void)r;
    return (ff_bonus_factor){0.0, 0.0, 0.0};
}
#endif
