#include "ff_bonus_factor.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_linalg.h"
#include "ff_row_sums.h"
#include "ff_wide.h"

/* Rows of a square that are made together. */
#define TOGETHER 6
/* Vectors of columns side by side, whose sums stay in registers. */
#define ABREAST 8

/* Rounding, u = 2^-53, n = d + 2, F = ||W||_F^2 and G = F + c F^2. In any order, fused or not, the
 * computed A of W'W is off by n u F in norm, its square by n u F^2 and, through A, 2 n u F^2, so
 * Q = A + c A^2 by 4 n u G; R'R is off from the computed Q by n u ||R||_F^2 <= 1.01 n u G (Higham
 * 2002, Theorem 10.3). In all 6 n u G at most, of which the square root is `lost`; 16 pays for
 * what is of the order of u times that, and for the rounding of G. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r)
{
    const double total = ff_gram_of_lower(w, d, inverse);
    const ff_bonus_factor none = {0.0, sqrt(total), 0.0};
    /* What squares of it would lose below the least numbers is not counted. */
    if (!(total > 0x1p-400) || !(total < 0x1p400))
        return none;
    for (int64_t i = 0; i < d; i += TOGETHER) {
        const int64_t rows = d - i < TOGETHER ? d - i : TOGETHER;
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

void ff_bonus_factor_back(const double *restrict w, const double *restrict z, int64_t d,
                          double *restrict out)
{
    for (int64_t first = 0; first < d; first += LANES64 * ABREAST) {
        const int64_t vectors = (d - first + LANES64 - 1) / LANES64 < ABREAST
                                    ? (d - first + LANES64 - 1) / LANES64
                                    : ABREAST;
        const int64_t over = d - first - LANES64 * (vectors - 1);
        const mask64 in = lanes64_of(over);
        f64s sum[ABREAST];
        for (int v = 0; v < ABREAST; v++)
            sum[v] = f64_set(0.0);
        for (int64_t k = first; k < d; k++) {
            const double *row = w + k * d + first;
            const f64s factor = f64_set(z[k]);
            /* Past the diagonal there are zeros. */
            const int64_t used =
                (k - first) / LANES64 + 1 < vectors ? (k - first) / LANES64 + 1 : vectors;
            if (used == ABREAST && over >= LANES64) {
                for (int v = 0; v < ABREAST; v++)
                    sum[v] = f64_fma(factor, f64_load(row + LANES64 * v), sum[v]);
                continue;
            }
            for (int v = 0; v < ABREAST; v++)
                if (v < used)
                    sum[v] = f64_fma(factor,
                                     v == vectors - 1 ? f64_load_some(in, row + LANES64 * v)
                                                      : f64_load(row + LANES64 * v),
                                     sum[v]);
        }
        for (int v = 0; v < ABREAST; v++)
            if (v < vectors - 1)
                f64_store(out + first + LANES64 * v, sum[v]);
            else if (v == vectors - 1)
                f64_store_some(out + first + LANES64 * v, in, sum[v]);
    }
}

/* ||W x||^2 and ||W'W x||^2. */
static void squares(const double *restrict w, const double *restrict x, int64_t d,
                    double *restrict scratch, double *restrict square)
{
    double *restrict z = scratch, *restrict back = scratch + d;
    ff_whiten(w, x, d, z);
    ff_bonus_factor_back(w, z, d, back);
    for (int64_t i = 0; i < d; i++) {
        square[0] += z[i] * z[i];
        square[1] += back[i] * back[i];
    }
}

double ff_bonus_factor_weight(const double *restrict w, double beta, double gamma,
                              const double *restrict x, int64_t count, int64_t d,
                              double *restrict scratch)
{
    double square[2] = {0.0, 0.0};
    for (int64_t i = 0; i < count; i++)
        squares(w, x + i * d, d, scratch, square);
    if (!(square[0] > 0.0))
        for (int64_t i = 0; i < d; i++) {
            double *unit = scratch + 2 * d;
            memset(unit, 0, (size_t)d * sizeof(double));
            unit[i] = 1.0;
            squares(w, unit, d, scratch, square);
        }
    return gamma / beta * sqrt(square[0] / square[1]);
}

#else
/* Built without: there is no factor. */
ff_bonus_factor ff_bonus_factor_make(const double *restrict w, double c, int64_t d,
                                     double *restrict inverse, double *restrict r)
{
    (void)w, (void)c, (void)d, (void)inverse, (void)r;
    return (ff_bonus_factor){0.0, 0.0, 0.0};
}
#endif
