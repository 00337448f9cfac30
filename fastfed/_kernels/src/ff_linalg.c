/* Symbols: V (d, d) is positive definite, V = L L' with L lower triangular. W = L^-1 is the inverse
 * factor of V, and U = L'. "Packed" is the lower triangle, row by row (ff_linalg.h). */
#include "ff_linalg.h"

#include <math.h>

#include "ff_panel.h"
#include "ff_random.h"
#include "ff_vectors.h"

#if defined(__GNUC__)
typedef double four __attribute__((vector_size(32)));
typedef double two __attribute__((vector_size(16)));
#endif
/* Unaligned loads and stores of one vector. */
#define LOAD(p) (*(const loose *)(p))
#define STORE(p, v) (*(loose *)(p) = (v))

/* Number of vectors that hold the eight partial sums of a sum over columns; the same eight at every
 * vector width. */
#define PARTS (8 / WIDTH)
/* Number of rows, or of vectors of columns, that are computed together. Their sums fit into the
 * registers (16, or 32 of the widest). */
#define ROWS_AT_ONCE (PARTS == 1 ? 8 : PARTS == 2 ? 4 : 2)
#define POINT_ROWS (PARTS > 2 ? 2 : 4)
#define UPDATE_VECTORS (PARTS == 1 ? 2 : 4)
/* Number of vectors of entries of W'z whose sums are in registers at the same time. */
#define SOLVE_VECTORS 8

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && defined(__GNUC__)
#define SHUFFLES
#endif
#endif

/* Return the sum of eight partial sums, added in an order that is the same at every SIMD width. */
FF_INLINE double tree(const double *restrict s)
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Return the sum of eight partial sums in PARTS vectors, in the order of `tree`. The sums stay in
 * registers if the compiler has vector shuffles. */
FF_INLINE double fold(const loose *restrict sum)
{
#ifdef SHUFFLES
#if FF_BYTES == 64
    const four half = __builtin_shufflevector(sum[0], sum[0], 0, 1, 2, 3) +
                      __builtin_shufflevector(sum[0], sum[0], 4, 5, 6, 7);
#elif FF_BYTES == 32
    const four half = sum[0] + sum[1];
#endif
#if FF_BYTES == 16
    const two quarter = (sum[0] + sum[2]) + (sum[1] + sum[3]);
#else
    const two quarter = __builtin_shufflevector(half, half, 0, 1) +
                        __builtin_shufflevector(half, half, 2, 3);
#endif
    return quarter[0] + quarter[1];
#else
    double s[8];
    memcpy(s, sum, sizeof s);
    return tree(s);
#endif
}

/* Return sum a_i b_i of n terms (ff_dot): eight partial sums, added in the order of `tree`. */
FF_INLINE double dot(const double *restrict a, const double *restrict b, int64_t n)
{
    double s[8];
    int64_t i = 0;
    loose sum[PARTS];
    for (int v = 0; v < PARTS; v++)
        sum[v] = (loose){0};
    for (; i + 8 <= n; i += 8)
        for (int v = 0; v < PARTS; v++)
            sum[v] += LOAD(a + i + v * WIDTH) * LOAD(b + i + v * WIDTH);
    if (i == n)
        return fold(sum);
    memcpy(s, sum, sizeof s);
    for (int l = 0; i < n; i++, l++)
        s[l] += a[i] * b[i];
    return tree(s);
}

/* Return sum a_i b_i of n terms. */
double ff_dot(const double *a, const double *b, int64_t n) { return dot(a, b, n); }

/* y (n) += f x (n); the name is that of BLAS. */
FF_INLINE void axpy(double f, const double *restrict x, double *restrict y, int64_t n)
{
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        STORE(y + i, LOAD(y + i) + f * LOAD(x + i));
    for (; i < n; i++)
        y[i] += f * x[i];
}

/* ---- the factor ------------------------------------------------------------------------- */

/* Two ways to compute the factors: row by row, or in blocks of rows whose sums stay in registers.
 * Each entry is the same sum in the same order in both, so the bits are equal. Blocks are used from
 * this dimension on. */
#define BLOCKS_FROM 16
/* Number of rows of L' that are computed together, and of vectors of their columns. */
#define PANEL_ROWS 4
#define PANEL_VECTORS (PARTS == 1 ? 4 : 2)
/* Number of rows of W that are computed together. */
#define BLOCK_ROWS 8

/* Subtract from PANEL_ROWS rows of U = L', starting at row `first`, the contributions of all rows
 * above; n columns from `column` on, held in `vectors` vectors. A vector may read beyond the end of
 * a row above; it then reads the next row, and these entries are not used. */
FF_INLINE void subtract_rows_above(double *restrict w, int64_t d, int64_t first, int64_t column,
                                   int64_t n, const int vectors)
{
    double edge[PANEL_ROWS * WIDTH] = {0};
    loose sum[PANEL_ROWS][PANEL_VECTORS];
    const int whole = n >= vectors * WIDTH;
    for (int r = 0; r < PANEL_ROWS; r++) {
        const double *source = w + (first + r) * d + column;
        if (!whole)
            source = memcpy(edge + r * WIDTH, source, (size_t)n * sizeof(double));
        for (int v = 0; v < vectors; v++)
            sum[r][v] = LOAD(source + v * WIDTH);
    }
    for (int64_t k = 0; k < first; k++) {
        const double *restrict row_above = w + k * d;
        for (int v = 0; v < vectors; v++) {
            const loose x = LOAD(row_above + column + v * WIDTH);
            for (int r = 0; r < PANEL_ROWS; r++)
                sum[r][v] -= row_above[first + r] * x;
        }
    }
    for (int r = 0; r < PANEL_ROWS; r++) {
        double *target = w + (first + r) * d + column;
        for (int v = 0; v < vectors; v++)
            STORE(whole ? target + v * WIDTH : edge + r * WIDTH, sum[r][v]);
        if (!whole)
            memcpy(target, edge + r * WIDTH, (size_t)n * sizeof(double));
    }
}

/* Divide row j of U (from the diagonal on) by the root of its diagonal entry, after the rows above
 * have been subtracted. Returns 1 if V is not positive definite, else 0. */
FF_INLINE int divide_by_root(double *restrict row, int64_t j, int64_t d)
{
    const double pivot = row[j];
    if (!(pivot > 0.0) || !(pivot < INFINITY))
        return 1;
    const double root = sqrt(pivot), inverse = 1.0 / root;
    row[j] = root;
    for (int64_t i = j + 1; i < d; i++)
        row[i] *= inverse;
    return 0;
}

/* Compute PANEL_ROWS rows of U = L', starting at row `first`, from the rows above. Returns 1 if V
 * is not positive definite, else 0. */
FF_INLINE int compute_rows(double *restrict w, int64_t d, int64_t first)
{
    int64_t column = first;
    for (; column + PANEL_VECTORS * WIDTH <= d; column += PANEL_VECTORS * WIDTH)
        subtract_rows_above(w, d, first, column, PANEL_VECTORS * WIDTH, PANEL_VECTORS);
    for (; column < d; column += WIDTH)
        subtract_rows_above(w, d, first, column, d - column < WIDTH ? d - column : WIDTH, 1);
    for (int64_t j = first; j < first + PANEL_ROWS; j++) {
        double *restrict row = w + j * d;
        if (divide_by_root(row, j, d))
            return 1;
        for (int64_t i = j + 1; i < first + PANEL_ROWS; i++)
            axpy(-row[i], row + i, w + i * d + i, d - i);
    }
    return 0;
}

/* Compute U = L', where V = L L' is packed, into the upper triangle of w (d, d); the lower triangle
 * is undefined. Returns 1 if V is not positive definite, else 0. */
static int cholesky(const double *restrict packed, int64_t d, double *restrict w)
{
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++)
            w[j * d + i] = *packed++;
    int64_t first = 0;
    for (; d >= BLOCKS_FROM && first + PANEL_ROWS <= d; first += PANEL_ROWS)
        if (compute_rows(w, d, first))
            return 1;
    /* The remaining rows, from `first` on: subtract from them every row of U above, as soon as that
     * row is computed. */
    for (int64_t j = 0; j < d; j++) {
        double *restrict row = w + j * d;
        if (j >= first && divide_by_root(row, j, d))
            return 1;
        for (int64_t i = j < first ? first : j + 1; i < d; i++)
            axpy(-row[i], row + i, w + i * d + i, d - i);
    }
    return 0;
}

/* Compute only the diagonal of W, which is enough for the determinant; return 1 if V is not
 * positive definite. */
int ff_factor_diagonal(const double *restrict packed, int64_t d, double *restrict w)
{
    if (cholesky(packed, d, w))
        return 1;
    for (int64_t i = 0; i < d; i++)
        w[i * (d + 1)] = 1.0 / w[i * (d + 1)];
    return 0;
}

#if defined(__GNUC__)
/* Compute the contribution of the rows above, -sum_{k < first} U_ki W_k, to columns c..c + 7 of
 * rows i = row, .., row + rows - 1 of W. To the right of its diagonal, a row of w still holds U. */
FF_INLINE void sum_rows_above(double *restrict w, int64_t d, int64_t first, int64_t row, int64_t c,
                              const int rows)
{
    static const int64_t lane[8] FF_ALIGNED = {0, 1, 2, 3, 4, 5, 6, 7};
    loose sum[ROWS_AT_ONCE][PARTS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PARTS; v++)
            sum[r][v] = (loose){0};
    /* Rows c..c + 7 end within these columns; their further entries are of U, and are masked. */
    int64_t k = c;
    for (; k < c + 8; k++)
        for (int v = 0; v < PARTS; v++) {
            const masks used = *(const masks *)(lane + v * WIDTH) <= k - c;
            const loose x = (loose)((masks)LOAD(w + k * d + c + v * WIDTH) & used);
            for (int r = 0; r < rows; r++)
                sum[r][v] += -w[k * d + row + r] * x;
        }
    for (; k < first; k++)
        for (int v = 0; v < PARTS; v++) {
            const loose x = LOAD(w + k * d + c + v * WIDTH);
            for (int r = 0; r < rows; r++)
                sum[r][v] += -w[k * d + row + r] * x;
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PARTS; v++)
            STORE(w + (row + r) * d + c + v * WIDTH, sum[r][v]);
}
#endif

/* Compute row i of W: -(1/L_ii) sum_{k<i} L_ik W_k, with 1/L_ii on the diagonal. Works in place,
 * for rows in ascending order. The contributions of rows before `from` are already in the row. */
FF_INLINE void finish_row(double *restrict w, int64_t d, int64_t i, int64_t from)
{
    double *restrict row = w + i * d;
    const double inverse = 1.0 / row[i];
    memset(row + from, 0, (size_t)(i - from) * sizeof(double));
    for (int64_t k = from; k < i; k++)
        axpy(-w[k * d + i], w + k * d, row, k + 1);
    for (int64_t j = 0; j < i; j++)
        row[j] *= inverse;
    row[i] = inverse;
}

/* Return 1 if the packed V (d, d) is diagonal, as before any data. */
static int is_diagonal(const double *restrict packed, int64_t d)
{
    for (int64_t i = 0; i < d; i++, packed++)
        for (int64_t j = 0; j < i; j++)
            if (*packed++ != 0.0)
                return 0;
    return 1;
}

/* Compute the inverse factor W = L^-1 (d, d) of the packed V = L L'. Returns 1 if V is not positive
 * definite, else 0. */
int ff_factor(const double *restrict packed, int64_t d, double *restrict w)
{
    if (is_diagonal(packed, d)) {
        memset(w, 0, (size_t)(d * d) * sizeof(double));
        /* In the packed triangle, the diagonal entry after that of row i is i + 2 further on. */
        for (int64_t i = 0; i < d; packed += ++i + 1) {
            if (!(*packed > 0.0 && *packed < INFINITY))
                return 1;
            w[i * (d + 1)] = 1.0 / sqrt(*packed);
        }
        return 0;
    }
    /* The upper triangle of w becomes L'. Then the lower triangle becomes W, row by row. At last
     * the entries above the diagonal become zero. */
    if (cholesky(packed, d, w))
        return 1;
    int64_t first = 0;
#if defined(__GNUC__)
    for (; d >= BLOCKS_FROM && first + BLOCK_ROWS <= d; first += BLOCK_ROWS) {
        for (int64_t row = first; row < first + BLOCK_ROWS; row += ROWS_AT_ONCE)
            for (int64_t c = 0; c < first; c += 8)
                sum_rows_above(w, d, first, row, c, ROWS_AT_ONCE);
        for (int64_t i = first; i < first + BLOCK_ROWS; i++)
            finish_row(w, d, i, first);
    }
#endif
    for (int64_t i = first; i < d; i++)
        finish_row(w, d, i, 0);
    for (int64_t i = 0; i < d; i++)
        memset(w + i * d + i + 1, 0, (size_t)(d - i - 1) * sizeof(double));
    return 0;
}

/* Return the number of columns to process in row i of W: i + 1 rounded up to a multiple of 8, at
 * most d. The extra columns hold zeros of W, which do not change sums. Skipping them would need a
 * scalar loop, which costs more. */
FF_INLINE int64_t columns_of(int64_t i, int64_t d)
{
    const int64_t whole = (i + 8) & ~(int64_t)7;
    return whole < d ? whole : d;
}

/* Compute entries i, .., i + ROWS_AT_ONCE - 1 of z = W x. Short loops cost most at their ends, so
 * the rows share one loop. */
FF_INLINE void product_rows(const double *restrict w, const double *restrict x, int64_t d,
                            int64_t i, double *restrict z)
{
    const double *restrict rows = w + i * d;
    loose sum[ROWS_AT_ONCE][PARTS];
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        for (int v = 0; v < PARTS; v++)
            sum[r][v] = (loose){0};
    for (int64_t j = 0; j < columns_of(i, d); j += 8)
        for (int v = 0; v < PARTS; v++) {
            const loose x_part = LOAD(x + j + v * WIDTH);
            for (int r = 0; r < ROWS_AT_ONCE; r++)
                sum[r][v] += LOAD(rows + r * d + j + v * WIDTH) * x_part;
        }
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        z[i + r] = fold(sum[r]);
}

/* Return 1 if ROWS_AT_ONCE rows from row i on have the same number of columns (columns_of), a
 * multiple of 8. The last rows of W do not. */
FF_INLINE int same_length(int64_t i, int64_t d) { return i + 8 <= d || (i & 7); }

/* Compute z = W x (d), each entry with the bits of `dot`. */
FF_INLINE void product(const double *restrict w, const double *restrict x, int64_t d,
                       double *restrict z)
{
    int64_t i = 0;
    for (; same_length(i, d); i += ROWS_AT_ONCE)
        product_rows(w, x, d, i, z);
    for (; i < d; i++)
        z[i] = dot(w + i * d, x, columns_of(i, d));
}

/* Compute n vectors of entries of W'z from entry `first` on into `out`, down the rows of W. The
 * sums stay in registers, so the time does not depend on the alignment of `out`. */
FF_INLINE void back_columns(const double *restrict w, const double *restrict z, int64_t d,
                            int64_t first, const int n, double *restrict out)
{
    loose sum[SOLVE_VECTORS];
    for (int v = 0; v < n; v++)
        sum[v] = (loose){0};
    for (int64_t i = first; i < d; i++)
        for (int v = 0; v < n; v++)
            sum[v] += z[i] * LOAD(w + i * d + first + v * WIDTH);
    for (int v = 0; v < n; v++)
        STORE(out + first + v * WIDTH, sum[v]);
}

/* Compute theta = W'(W u), which solves V theta = u. */
void ff_solve(const double *restrict w, const double *restrict u, int64_t d,
              double *restrict scratch, double *restrict theta)
{
    product(w, u, d, scratch);
    int64_t first = 0;
    for (; first + SOLVE_VECTORS * WIDTH <= d; first += SOLVE_VECTORS * WIDTH)
        back_columns(w, scratch, d, first, SOLVE_VECTORS, theta);
    const int64_t vectors_left = (d - first) / WIDTH;
    switch (vectors_left) { /* constants, so that the compiler unrolls the loops */
    case 1: back_columns(w, scratch, d, first, 1, theta); break;
    case 2: back_columns(w, scratch, d, first, 2, theta); break;
    case 3: back_columns(w, scratch, d, first, 3, theta); break;
    case 4: back_columns(w, scratch, d, first, 4, theta); break;
    case 5: back_columns(w, scratch, d, first, 5, theta); break;
    case 6: back_columns(w, scratch, d, first, 6, theta); break;
    case 7: back_columns(w, scratch, d, first, 7, theta); break;
    }
    first += vectors_left * WIDTH;
    for (int64_t j = first; j < d; j++)
        theta[j] = 0.0;
    for (int64_t i = first; i < d; i++)
        for (int64_t j = first; j < d; j++)
            theta[j] += scratch[i] * w[i * d + j];
}

/* Return ln det V = -2 sum ln W_ii from W (d, d). Chunks are padded by ones to a multiple of 8, so
 * that the loop of ff_logs has whole vectors only. */
double ff_log_det(const double *w, int64_t d)
{
    enum { CHUNK = 64 };
    double sum = 0.0, logs[CHUNK], diagonal[CHUNK];
    for (int64_t first = 0; first < d; first += CHUNK) {
        const int64_t n = d - first < CHUNK ? d - first : CHUNK, whole = (n + 7) & ~(int64_t)7;
        for (int64_t i = 0; i < n; i++)
            diagonal[i] = w[(first + i) * (d + 1)];
        for (int64_t i = n; i < whole; i++)
            diagonal[i] = 1.0;
        ff_logs(diagonal, whole, logs);
        for (int64_t i = 0; i < n; i++)
            sum += logs[i];
    }
    return -2.0 * sum;
}

/* Update n vectors of columns of W from column `first` on (see update_factor), down the rows, so
 * that the sums over rows stay in registers. The entries of W'z are written to `partial`. Zeros
 * above the diagonal stay zeros. */
FF_INLINE void update_columns(double *restrict w, const double *restrict z,
                              const double *restrict old_weight, const double *restrict sum_weight,
                              int64_t d, int64_t first, const int n, double *restrict partial)
{
    loose sum[UPDATE_VECTORS];
    for (int v = 0; v < n; v++)
        sum[v] = (loose){0};
    for (int64_t i = first; i < d; i++)
        for (int v = 0; v < n; v++) {
            double *restrict entries = w + i * d + first + v * WIDTH;
            const loose old = LOAD(entries);
            STORE(entries, old_weight[i] * old - sum_weight[i] * sum[v]);
            sum[v] += z[i] * old;
        }
    for (int v = 0; v < n; v++)
        STORE(partial + first + v * WIDTH, sum[v]);
}

/* Update W and theta (may be NULL) by the data point (x, y), with z = W x in the first d doubles of
 * the scratch. As V = L L' and W = L^{-1}, V + x x' = L (I + z z') L'. So the new W is C^{-1} W for
 * the Cholesky factor C of I + z z', whose inverse has a closed form. With s_0 = 1,
 * s_i = s_{i-1} + z_i^2 and row W_i of the old W, i = 1..d, row i of the new W is
 *   sqrt(s_{i-1}/s_i) W_i - z_i / sqrt(s_{i-1} s_i) sum_{k<i} z_k W_k.
 * Returns s_d. */
static double update_factor(double *restrict w, double *restrict theta, const double *restrict x,
                            double y, int64_t d, double *restrict scratch)
{
    double *restrict z = scratch, *restrict partial = scratch + d;
    memset(partial, 0, (size_t)d * sizeof(double));
    /* old_weight holds s_{i-1}, then the factor of W_i. sum_weight holds s_i, then the factor of
     * the sum over k < i. The s_i come first, so that the square roots run as vectors and the rows
     * need not wait for them. */
    double *restrict old_weight = scratch + 2 * d, *restrict sum_weight = scratch + 3 * d;
    double s = 1.0;
    for (int64_t i = 0; i < d; i++) {
        old_weight[i] = s;
        s += z[i] * z[i];
        sum_weight[i] = s;
    }
    for (int64_t i = 0; i < d; i++) {
        const double root = 1.0 / sqrt(old_weight[i] * sum_weight[i]);
        old_weight[i] *= root;
        sum_weight[i] = z[i] * root;
    }
    int64_t first = 0;
    for (; first + UPDATE_VECTORS * WIDTH <= d; first += UPDATE_VECTORS * WIDTH)
        update_columns(w, z, old_weight, sum_weight, d, first, UPDATE_VECTORS, partial);
    for (; WIDTH > 1 && first + WIDTH <= d; first += WIDTH)
        update_columns(w, z, old_weight, sum_weight, d, first, 1, partial);
    for (int64_t i = first; i < d; i++) {
        double *restrict row = w + i * d;
        for (int64_t j = first; j <= i; j++) {
            const double old = row[j], sum = partial[j];
            row[j] = old_weight[i] * old - sum_weight[i] * sum;
            partial[j] = sum + z[i] * old;
        }
    }
    if (theta) {
        /* partial is now W'z = V^{-1} x for the old V. */
        double error = (y - dot(theta, x, d)) / s;
        for (int64_t j = 0; j < d; j++)
            theta[j] += error * partial[j];
    }
    return s;
}

/* Add the data point (x, y) to W, the triangular factor of V^-1 = W'W, and to the estimate theta.
 * Return 1 + ||x||^2_{V^-1} for the old V. */
double ff_observe(double *restrict w, double *restrict theta, const double *restrict x, double y,
                  int64_t d, double *restrict scratch)
{
    product(w, x, d, scratch);
    return update_factor(w, theta, x, y, d, scratch);
}

/* Do the same as ff_observe, if W x is in the first d doubles of the scratch already. */
double ff_observe_whitened(double *restrict w, double *restrict theta, const double *restrict x,
                        double y, int64_t d, double *restrict scratch)
{
    return update_factor(w, theta, x, y, d, scratch);
}

/* Compute z = W x. */
void ff_whiten(const double *restrict w, const double *restrict x, int64_t d, double *restrict z)
{
    product(w, x, d, z);
}

/* back (d) += sum_r z_r W_r over rows r = i, .., i + ROWS_AT_ONCE - 1. */
FF_INLINE void add_rows(const double *restrict w, const double *restrict z, int64_t d, int64_t i,
                        double *restrict back)
{
    const double *restrict rows = w + i * d;
    for (int64_t j = 0; j < columns_of(i, d); j += 8)
        for (int v = 0; v < PARTS; v++) {
            loose out = LOAD(back + j + v * WIDTH);
            for (int r = 0; r < ROWS_AT_ONCE; r++)
                out += z[i + r] * LOAD(rows + r * d + j + v * WIDTH);
            STORE(back + j + v * WIDTH, out);
        }
}

/* Compute z = W x and back = W'z in one pass over W. */
void ff_whiten_back(const double *restrict w, const double *restrict x, int64_t d,
                    double *restrict z, double *restrict back)
{
    int64_t i = 0;
    memset(back, 0, (size_t)d * sizeof(double));
    for (; same_length(i, d); i += ROWS_AT_ONCE) {
        product_rows(w, x, d, i, z);
        add_rows(w, z, d, i, back);
    }
    for (; i < d; i++) {
        z[i] = dot(w + i * d, x, columns_of(i, d));
        axpy(z[i], w + i * d, back, columns_of(i, d));
    }
}

/* Add the data point (x, y) to the packed gram and to bias (d). */
void ff_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                   double y, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = gram + i * (i + 1) / 2;
        axpy(x[i], x, row, i + 1);
        bias[i] += x[i] * y;
    }
}

#if defined(__GNUC__)
/* Add x x' of n points to columns j..j+7 of `rows` rows of a packed matrix, starting at row i. */
FF_INLINE void add_points(double *restrict gram, const double *restrict points, int64_t n,
                          int64_t d, int64_t i, int64_t j, const int rows)
{
    static const int64_t lane[8] FF_ALIGNED = {0, 1, 2, 3, 4, 5, 6, 7};
    loose sum[POINT_ROWS][PARTS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PARTS; v++)
            sum[r][v] = LOAD(gram + (i + r) * (i + r + 1) / 2 + j + v * WIDTH);
    for (int64_t p = 0; p < n; p++) {
        const double *restrict x = points + p * (d + 1);
        for (int v = 0; v < PARTS; v++) {
            const loose x_part = LOAD(x + j + v * WIDTH);
            for (int r = 0; r < rows; r++)
                sum[r][v] += x[i + r] * x_part;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PARTS; v++) {
            double *entries = gram + (i + r) * (i + r + 1) / 2 + j + v * WIDTH;
            const int64_t last = i + r - j;
            /* Entries past the end of a row belong to the next row and keep their value. */
            const masks used = *(const masks *)(lane + v * WIDTH) <= last;
            STORE(entries, (loose)(((masks)sum[r][v] & used) | ((masks)LOAD(entries) & ~used)));
        }
}
#endif

/* Add n data points (n, d + 1) to the packed gram and to bias (d). Each entry is the same sum in
 * the same order as for single points, but is loaded and stored once. */
void ff_accumulate_many(double *restrict gram, double *restrict bias,
                        const double *restrict points, int64_t n, int64_t d)
{
    int64_t i = 0;
#if defined(__GNUC__)
    /* Several rows share the loads of a point. The last rows are single, because vectors would
     * reach beyond the end of the matrix. */
    for (; i + POINT_ROWS + 8 <= d; i += POINT_ROWS)
        for (int64_t j = 0; j < i + POINT_ROWS; j += 8)
            add_points(gram, points, n, d, i, j, POINT_ROWS);
#endif
    for (; i < d; i++) {
        double *restrict row = gram + i * (i + 1) / 2;
        int64_t j = 0;
#if defined(__GNUC__)
        for (; j + 8 <= i + 1; j += 8)
            add_points(gram, points, n, d, i, j, 1);
#endif
        for (; j <= i; j++)
            for (int64_t p = 0; p < n; p++)
                row[j] += points[p * (d + 1) + i] * points[p * (d + 1) + j];
    }
    for (int64_t p = 0; p < n; p++)
        axpy(points[p * (d + 1) + d], points + p * (d + 1), bias, d);
}

/* Add the data point (x, y) to gram (d, d), in both triangles, and to bias (d). */
void ff_rank_one(double *restrict gram, double *restrict bias, const double *restrict x,
                 double y, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = gram + i * d;
        double f = x[i];
        for (int64_t j = 0; j < d; j++)
            row[j] += f * x[j];
        bias[i] += f * y;
    }
}

/* Replace inverse (d, d), which is V^{-1}, by (V + x x')^{-1}. */
void ff_sherman_morrison(double *restrict inverse, const double *restrict x, int64_t d,
                         double *restrict scratch)
{
    for (int64_t i = 0; i < d; i++)
        scratch[i] = dot(inverse + i * d, x, d);
    double scale = 1.0 / (1.0 + dot(scratch, x, d));
    /* Both triangles get the same products, so the result is exactly symmetric. */
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = inverse + i * d;
        for (int64_t j = 0; j < d; j++)
            row[j] -= scratch[i] * scratch[j] * scale;
    }
}

/* Scale x down to norm `bound` if it is longer; return 1 if it was longer by more than rounding. */
int ff_clip_norm(double *restrict x, int64_t d, double bound)
{
    double square = dot(x, x, d), largest = 0.0;
    if (square <= bound * bound)
        return 0;
    if (square == INFINITY) {
        /* The squares overflowed, although the norm may be finite: scale by the largest entry
         * first. */
        for (int64_t j = 0; j < d; j++)
            largest = fabs(x[j]) > largest ? fabs(x[j]) : largest;
        for (int64_t j = 0; j < d; j++)
            x[j] /= largest;
        square = dot(x, x, d);
    }
    /* float32 contexts of norm 1 may be 1e-7 longer. They are scaled too, but not reported. */
    double scale = bound / sqrt(square);
    for (int64_t j = 0; j < d; j++)
        x[j] *= scale;
    return largest > 0.0 || square > bound * bound * (1.0 + 1e-6);
}

/* Number of rows of a tile: its sums fill eight registers. A tile has PANEL columns. */
#define TILE (PANEL / VECTORS)

/* Compute X Y, which is symmetric, into `out`. All matrices are (n, n) and aligned; n is a multiple
 * of PANEL. Rows and columns from d on are zero. Entry (i, k) of X is x[i row_step + k
 * column_step]. With `upper`, X is upper triangular. */
static void symmetric_product(const double *restrict x, int64_t row_step, int64_t column_step,
                              int upper, const double *restrict y, int64_t d, int64_t n,
                              double *restrict out)
{
    for (int64_t first = 0; first < n; first += PANEL)
        for (int64_t i = first; i < n; i += TILE) {
            lanes sum[TILE][VECTORS];
            for (int r = 0; r < TILE; r++)
                for (int v = 0; v < VECTORS; v++)
                    sum[r][v] = (lanes){0};
            for (int64_t k = upper ? i : 0; k < d; k++) {
                const double *left = x + i * row_step + k * column_step;
                const lanes *right = (const lanes *)(y + k * n + first);
                for (int r = 0; r < TILE; r++)
                    for (int v = 0; v < VECTORS; v++)
                        sum[r][v] += left[r * row_step] * right[v];
            }
            for (int r = 0; r < TILE; r++)
                memcpy(out + (i + r) * n + first, sum[r], sizeof sum[r]);
        }
    /* Copy the lower triangle to the upper one. The square of the first PANEL rows and columns is
     * complete already. */
    for (int64_t i = PANEL; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            out[j * n + i] = out[i * n + j];
}

/* Return an upper bound on the largest eigenvalue of A = V^{-1} = W'W: (trace A^8)^(1/8). */
double ff_inverse_norm(const double *restrict w, int64_t d, double *restrict scratch)
{
    /* Matrices are padded with zeros to n rows and columns. */
    const int64_t n = (d + PANEL - 1) / PANEL * PANEL;
    double *a = aligned(scratch), *b = a + n * n, scale = 0.0, square = 0.0;
    memset(b, 0, (size_t)(n * n) * sizeof(double));
    for (int64_t i = 0; i < d; i++)
        memcpy(b + i * n, w + i * d, (size_t)(i + 1) * sizeof(double));
    symmetric_product(b, 1, n, 1, b, d, n, a);
    /* Divide A by its trace, so that the powers do not underflow. */
    for (int64_t i = 0; i < d; i++)
        scale += a[i * n + i];
    const double by = 1.0 / scale;
    for (int64_t i = 0; i < d * n; i++)
        a[i] *= by;
    symmetric_product(a, n, 1, 0, a, d, n, b);
    symmetric_product(b, n, 1, 0, b, d, n, a);
    /* The trace of A^8 is the sum of the squared entries of A^4. */
    for (int64_t i = 0; i < d; i++)
        square += dot(a + i * n, a + i * n, d);
    /* The last factor covers rounding error. */
    return scale * sqrt(sqrt(sqrt(square))) * (1.0 + 1e-9);
}
