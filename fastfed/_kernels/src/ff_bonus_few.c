#include "ff_bonus_few.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_screen_i16_parts.h"
#include "ff_row_sums.h"

/* Symbols: R (d, d) is the triangular factor that bounds bonuses (ff_bonus_factor.h). H and G are
 * the few rows of the cheap bound (ff_bonus_few.h). M is R'R, or rest I - R'R in `complement`. Rows
 * are stored one after the other, d numbers each. */

/* Number of steps of the Lanczos method, after which its largest eigenvalue is usually less than 1
 * percent too small; the result is multiplied by MARGIN. (A factorisation proves the bound.) */
#define STEPS 24
#define MARGIN 1.01
/* H is multiplied by LONGER, G by SHORTER and `rest` by HIGHER, so that the bound holds after
 * rounding H and G to 16 bits. */
#define LONGER 1.002
#define SHORTER 0.9996
#define HIGHER 1.0002
/* The largest number of rows of H if there is no G, and the smallest if there is one. */
#define ROWS_WITHOUT_G 18
#define ROWS_WITH_G 4
/* H consists of directions with eigenvalues above this multiple of the mean eigenvalue of R'R. */
#define BULK 1.5

/* Return 1.0 or -1.0, a pseudo-random sign that depends only on i: the highest bit of
 * SplitMix64. */
FF_INLINE double sign_of(int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z >> 63) ? 1.0 : -1.0;
}

/* Multiply each row of x (count, d) by the symmetric M (d, d), into out (count, d). */
FF_INLINE void multiply_rows(const double *restrict m, const double *x, int64_t count, int64_t d,
                             double *restrict out)
{
    ff_sum_rows(m, d, x, d, 1, count, 0, d, d, NULL, 1.0, out);
}

/* M -= H'H, for M (d, d) and H (count, d). */
FF_INLINE void subtract_gram(double *restrict m, const double *restrict h, int64_t count, int64_t d)
{
    ff_sum_rows(h, d, h, 1, d, d, 0, count, d, m, -1.0, m);
}

/* Return <x, y> for x and y (d). */
static double dot(const double *restrict x, const double *restrict y, int64_t d)
{
    f64s sum = f64_set(0.0);
    for (int64_t j = 0; j < d; j += LANES64) {
        const mask64 in = lanes64_of(d - j);
        sum = f64_fma(f64_load_some(in, x + j), f64_load_some(in, y + j), sum);
    }
    return f64_sum(sum);
}

/* x (d) += factor y (d). */
FF_INLINE void add_scaled(double *restrict x, double factor, const double *restrict y, int64_t d)
{
    for (int64_t j = 0; j < d; j++)
        x[j] += factor * y[j];
}

/* Return an approximation of the largest eigenvalue of M (d, d): the largest eigenvalue of the
 * tridiagonal matrix T of the Lanczos method, which is never above that of M except for rounding.
 * scratch: 3 d doubles. */
static double largest_eigenvalue(const double *restrict m, int64_t d, double *restrict scratch)
{
    double diagonal[STEPS], off_diagonal[STEPS], high = 0.0;
    double *previous = scratch, *current = scratch + d, *following = current + d;
    const int64_t steps_max = d < STEPS ? d : STEPS;
    int64_t steps = 0;
    for (int64_t j = 0; j < d; j++) {
        previous[j] = 0.0;
        current[j] = sign_of(j) / sqrt((double)d);
    }
    double last_norm = 0.0;
    /* Lanczos steps. `high` bounds the eigenvalues of T by its rows (Gershgorin). */
    while (steps < steps_max) {
        multiply_rows(m, current, 1, d, following);
        const double diagonal_entry = dot(following, current, d);
        add_scaled(following, -diagonal_entry, current, d);
        add_scaled(following, -last_norm, previous, d);
        const double norm = sqrt(dot(following, following, d));
        diagonal[steps] = diagonal_entry;
        off_diagonal[steps++] = norm;
        high = fabs(diagonal_entry) + norm + last_norm > high
                   ? fabs(diagonal_entry) + norm + last_norm
                   : high;
        if (!(norm > 1e-8 * high))
            break;
        double *reused = previous;
        previous = current;
        current = following;
        following = reused;
        for (int64_t j = 0; j < d; j++)
            current[j] *= 1.0 / norm;
        last_norm = norm;
    }
    /* Bisection: if all pivots of T - t I are below zero, t is above every eigenvalue of T. */
    double low = 0.0;
    for (int i = 0; i < 30; i++) {
        const double t = 0.5 * (low + high);
        int above = 1;
        double pivot = diagonal[0] - t;
        for (int64_t j = 1; above && j < steps; j++) {
            above = pivot < 0.0;
            pivot = diagonal[j] - t - off_diagonal[j - 1] * off_diagonal[j - 1] / pivot;
        }
        if (above && pivot < 0.0)
            high = t;
        else
            low = t;
    }
    return high;
}

/* Compute 2 M x / high - x for each row of x (count, d), into out (count, d). This multiplies an
 * eigenvector of M with an eigenvalue in [0, high] by a number in [-1, 1]. */
static void scaled_product(const double *restrict m, const double *restrict x, double high,
                           int64_t count, int64_t d, double *restrict out)
{
    multiply_rows(m, x, count, d, out);
    const double scale = 2.0 / high;
    for (int64_t j = 0; j < count * d; j++)
        out[j] = scale * out[j] - x[j];
}

/* Compute `count` unit rows that lie mostly in the eigenspace of M with eigenvalues above `high`,
 * by the Chebyshev polynomial of degree three, which grows steeply outside of [0, high]. scratch: 2
 * count d doubles. */
static void largest_directions(const double *restrict m, int64_t count, double high, int64_t d,
                               double *restrict rows, double *restrict scratch)
{
    for (int64_t r = 0; r < count; r++)
        for (int64_t j = 0; j < d; j++)
            rows[r * d + j] = sign_of((r + 1) * d + j);
    double *once = scratch, *twice = scratch + count * d;
    scaled_product(m, rows, high, count, d, once);
    scaled_product(m, once, high, count, d, twice);
    for (int64_t j = 0; j < count * d; j++)
        twice[j] = 2.0 * twice[j] - rows[j];
    scaled_product(m, twice, high, count, d, rows);
    for (int64_t j = 0; j < count * d; j++)
        rows[j] = 2.0 * rows[j] - once[j];
    for (int64_t r = 0; r < count; r++) {
        double *z = rows + r * d;
        const double scale = 1.0 / sqrt(dot(z, z, d));
        for (int64_t j = 0; j < d; j++)
            z[j] *= scale;
    }
}

/* Replace `rows` (count, d), the columns of Z, by the rows of H with
 *   H'H = M Z (Z'M Z)^-1 Z'M <= M.
 * Of all matrices M Z S Z'M that are at most M, this is the largest one. A row that depends
 * linearly on earlier rows becomes zero. scratch: count d doubles. */
static void largest_part(const double *restrict m, int64_t count, int64_t d, double *restrict rows,
                         double *restrict scratch)
{
    double c[FF_FEW_ROWS][FF_FEW_ROWS];
    multiply_rows(m, rows, count, d, scratch);
    /* First c is Z'M Z. Then it is replaced by its Cholesky factor, row by row, and the inverse of
     * this factor is applied to Z'M (scratch), which gives H. */
    for (int64_t r = 0; r < count; r++)
        for (int64_t s = 0; s <= r; s++)
            c[r][s] = dot(rows + r * d, scratch + s * d, d);
    for (int64_t r = 0; r < count; r++) {
        const double diagonal = c[r][r];
        double *h = rows + r * d;
        memcpy(h, scratch + r * d, (size_t)d * sizeof(double));
        for (int64_t s = 0; s < r; s++) {
            double entry = c[r][s];
            for (int64_t t = 0; t < s; t++)
                entry -= c[r][t] * c[s][t];
            c[r][s] = c[s][s] > 0.0 ? entry / c[s][s] : 0.0;
            add_scaled(h, -c[r][s], rows + s * d, d);
            c[r][r] -= c[r][s] * c[r][s];
        }
        const int independent = c[r][r] > 1e-9 * diagonal;
        c[r][r] = independent ? sqrt(c[r][r]) : 0.0;
        for (int64_t j = 0; j < d; j++)
            h[j] = independent ? h[j] / c[r][r] : 0.0;
    }
}

/* Return the number of rows in `groups` groups of ROWS rows, but at least one group and at most
 * rows_max rows. */
FF_INLINE int64_t groups_up_to(int64_t groups, int64_t rows_max)
{
    const int64_t rows = ROWS * (groups < 1 ? 1 : groups);
    return rows < rows_max ? rows : rows_max;
}

/* Multiply rows first..first + count - 1 of `rows` (., d) by `factor` and round them to 16 bits,
 * into `entries`, with one unit for each row, into `units`. The rows receive the rounded values.
 * Returns the sum of the squares of their entries. */
static double quantise_range(double *restrict rows, double factor, int64_t first, int64_t count,
                             int64_t d, double *restrict units, int16_t *restrict entries)
{
    double total = 0.0;
    for (int64_t k = first; k < first + count; k++) {
        double *row = rows + k * d;
        int16_t *target = entries + k * row_of(d);
        for (int64_t j = 0; j < d; j++)
            row[j] *= factor;
        units[k] = ff_quantise_row(row, d, target).unit;
        for (int64_t j = 0; j < d; j++)
            row[j] = units[k] * (double)target[j];
        total += dot(row, row, d);
    }
    return total;
}

/* Replace M (d, d) by rest I - M. */
static void complement(double *restrict m, double rest, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < d; j++)
            m[i * d + j] = -m[i * d + j];
        m[i * d + i] += rest;
    }
}

/* Compute the cheap bound of ff_bonus_few.h: H, G and the scalar `rest` with
 * R'R <= rest I + H'H - G'G. If there is no such bound, the result has no rows.
 *
 * H and G are the values after rounding to 16 bits. Rounding errors of doubles: let u = 2^-53,
 * n = d + rows + 16, where `rows` counts the rows of H and G, and T = trace R'R. M is the computed
 * R'R, and differs from R'R by at most n u T in norm. The computed S = rest I + H'H - G'G - M has
 * an error of n u (d rest + ||H||_F^2 + ||G||_F^2 + T). S is factored to show that it is positive
 * definite: the square of its Cholesky factor is within 1.01 n u trace S of S (Higham 2002, Theorem
 * 10.3), and trace S is at most d rest + ||H||_F^2. At last `rest` is raised by more than three
 * times the sum of these errors. */
ff_bonus_few ff_bonus_few_make(const double *restrict r, const ff_directions *pool, int64_t d,
                               double *restrict m, double *restrict rows,
                               int16_t *restrict entries)
{
    ff_bonus_few few = {0};
    /* Whole groups of ROWS (6) rows: about d / 11 rows if there is no G, or about 2 d / 9 rows of H
     * and G together. These numbers were tuned at d = 57, 78 and 135. */
    const int64_t rows_without_g = groups_up_to((d + 22) / 67, ROWS_WITHOUT_G);
    const int64_t directions = pool ? pool->count : 0;
    const int64_t rows_max = directions + ROWS < FF_FEW_ROWS ? directions + ROWS : FF_FEW_ROWS;
    const int64_t count = pool ? groups_up_to((d + 13) / 27, rows_max) : rows_without_g;
    const int64_t rows_g = directions < count - ROWS_WITH_G ? directions : count - ROWS_WITH_G;
    const int64_t rows_h = count - rows_g;
    /* The rows and two products with them must fit into d^2 doubles. */
    if (3 * count > d)
        return few;
    /* H: directions of large eigenvalues of R'R. */
    const double trace = ff_gram_of_lower(r, d, m);
    double *scratch = rows + count * d, units[FF_FEW_ROWS];
    largest_directions(m, rows_h, BULK * trace / (double)d, d, rows, scratch);
    largest_part(m, rows_h, d, rows, scratch);
    const double h_square = quantise_range(rows, LONGER, 0, rows_h, d, units, entries);
    subtract_gram(m, rows, rows_h, d);
    /* A first `rest`, slightly above the largest eigenvalue of R'R - H'H. The factorisation below
     * proves that it suffices. */
    const double rest = HIGHER * MARGIN * largest_eigenvalue(m, d, scratch);
    if (!(rest > 0.0) || !(rest < INFINITY) || !(h_square < INFINITY))
        return few;
    complement(m, rest, d);
    /* G: the directions of the pool. */
    double g_square = 0.0;
    if (rows_g) {
        double *g = rows + rows_h * d;
        memcpy(g, pool->rows, (size_t)(rows_g * d) * sizeof(double));
        largest_part(m, rows_g, d, g, scratch);
        g_square = quantise_range(rows, SHORTER, rows_h, rows_g, d, units, entries);
        subtract_gram(m, g, rows_g, d);
    }
    if (!(g_square < INFINITY) || !ff_factor_from_below(m, d))
        return few;
    for (int64_t k = 0; k < count; k++)
        few.unit = units[k] > few.unit ? units[k] : few.unit;
    for (int64_t k = 0; k < count; k++) {
        const float relative = (float)(units[k] / few.unit);
        few.squares[k] = k < rows_h ? relative * relative : -relative * relative;
    }
    const double n = (double)(d + count + 16);
    few.rest = rest + 8.0 * n * 0x1p-53 * ((double)d * rest + h_square + g_square + trace);
    few.norm = 1.000001 * sqrt(few.rest + h_square);
    few.rows = count;
    return few;
}
#endif
