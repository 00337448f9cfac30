#include "ff_linalg.h"

#include <math.h>

#include "ff_random.h"

/* Eight doubles at any address; elsewhere the same eight one by one. */
#if defined(__GNUC__)
typedef double eight __attribute__((vector_size(64), aligned(8)));
typedef int64_t mask8 __attribute__((vector_size(64)));
typedef double four __attribute__((vector_size(32)));
typedef double two __attribute__((vector_size(16)));
#define LOAD(p) (*(const eight *)(p))
#define STORE(p, v) (*(eight *)(p) = (v))
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && defined(LOAD)
#define SHUFFLES
#endif
#endif

/* Eight partial sums, then a fixed tree: the same at every SIMD width. */
FF_INLINE double tree(const double *restrict s)
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

#if defined(__GNUC__)
/* The same of a vector, without a way through memory where the compiler knows how. */
FF_INLINE double fold(eight sum)
{
#ifdef SHUFFLES
    const four half = __builtin_shufflevector(sum, sum, 0, 1, 2, 3) +
                      __builtin_shufflevector(sum, sum, 4, 5, 6, 7);
    const two quarter = __builtin_shufflevector(half, half, 0, 1) +
                        __builtin_shufflevector(half, half, 2, 3);
    return quarter[0] + quarter[1];
#else
    double s[8];
    memcpy(s, &sum, sizeof s);
    return tree(s);
#endif
}
#endif

FF_INLINE double dot(const double *restrict a, const double *restrict b, int64_t n)
{
    double s[8] = {0};
    int64_t i = 0;
#if defined(__GNUC__)
    eight sum = {0};
    for (; i + 8 <= n; i += 8)
        sum += LOAD(a + i) * LOAD(b + i);
    if (i == n)
        return fold(sum);
    memcpy(s, &sum, sizeof s);
#else
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            s[l] += a[i + l] * b[i + l];
#endif
    for (int l = 0; i < n; i++, l++)
        s[l] += a[i] * b[i];
    return tree(s);
}

/* y += f x */
FF_INLINE void axpy(double f, const double *restrict x, double *restrict y, int64_t n)
{
    int64_t i = 0;
#if defined(__GNUC__)
    for (; i + 8 <= n; i += 8)
        STORE(y + i, LOAD(y + i) + f * LOAD(x + i));
#endif
    for (; i < n; i++)
        y[i] += f * x[i];
}

/* ---- the factor ------------------------------------------------------------------------- */

/* Row-oriented Cholesky into w, then the triangular inverse in place, row by row from the top:
 * row i of W is -(1/L_ii) sum_{k<i} L_ik W_k, with 1/L_ii on the diagonal. */
FF_CLONES
int ff_factor(const double *restrict packed, int64_t d, double *restrict w)
{
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = w + i * d;
        memcpy(row, packed + i * (i + 1) / 2, (size_t)(i + 1) * sizeof(double));
        memset(row + i + 1, 0, (size_t)(d - i - 1) * sizeof(double));
    }
    /* Left-looking by columns of the transposed update: column j of L, then subtract its outer
     * product from the rows below. Inner loops run over contiguous row tails. */
    for (int64_t j = 0; j < d; j++) {
        double pivot = w[j * d + j];
        if (!(pivot > 0.0) || !(pivot < INFINITY))
            return 1;
        double root = sqrt(pivot), inverse = 1.0 / root;
        w[j * d + j] = root;
        for (int64_t i = j + 1; i < d; i++)
            w[i * d + j] *= inverse;
        /* The upper triangle is free: keep column j there as a contiguous row. */
        for (int64_t i = j + 1; i < d; i++)
            w[j * d + i] = w[i * d + j];
        const double *restrict column = w + j * d;
        for (int64_t i = j + 1; i < d; i++) {
            double *restrict row = w + i * d;
            axpy(-column[i], column + j + 1, row + j + 1, i - j);
        }
    }
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = w + i * d;
        memset(row + i + 1, 0, (size_t)(d - i - 1) * sizeof(double));
        double inverse = 1.0 / row[i];
        row[i] = 0.0;
        for (int64_t k = 0; k < i; k++) {
            double f = row[k];
            const double *restrict above = w + k * d;
            row[k] = 0.0;
            axpy(-f, above, row, k + 1);
        }
        for (int64_t j = 0; j < i; j++)
            row[j] *= inverse;
        row[i] = inverse;
    }
    return 0;
}

/* Columns to run over in row i: up to whole vectors, for past the diagonal W holds zeros, which
 * add exactly nothing, and a loop's scalar tail would cost more than they do. */
FF_INLINE int64_t columns_of(int64_t i, int64_t d)
{
    const int64_t whole = (i + 8) & ~(int64_t)7;
    return whole < d ? whole : d;
}

/* z = W x, row by row a dot. */
FF_INLINE void product(const double *restrict w, const double *restrict x, int64_t d,
                       double *restrict z)
{
    int64_t i = 0;
#if defined(__GNUC__)
    /* Eight rows of one length side by side: loops so short cost most where they end. */
    for (; i + 8 <= d; i += 8) {
        const double *restrict rows = w + i * d;
        eight sum[8];
        for (int r = 0; r < 8; r++)
            sum[r] = (eight){0};
        for (int64_t j = 0; j < i + 8; j += 8) {
            const eight shared = LOAD(x + j);
            for (int r = 0; r < 8; r++)
                sum[r] += LOAD(rows + r * d + j) * shared;
        }
        for (int r = 0; r < 8; r++)
            z[i + r] = fold(sum[r]);
    }
#endif
    for (; i < d; i++)
        z[i] = dot(w + i * d, x, columns_of(i, d));
}

FF_CLONES
void ff_solve(const double *restrict w, const double *restrict u, int64_t d,
              double *restrict scratch, double *restrict theta)
{
    product(w, u, d, scratch);
    memset(theta, 0, (size_t)d * sizeof(double));
    for (int64_t i = 0; i < d; i++) {
        const double *restrict row = w + i * d;
        axpy(scratch[i], row, theta, columns_of(i, d));
    }
}

double ff_log_det(const double *w, int64_t d)
{
    double sum = 0.0, logs[16], diagonal[16];
    for (int64_t first = 0; first < d; first += 16) {
        const int64_t n = d - first < 16 ? d - first : 16;
        for (int64_t i = 0; i < 16; i++)
            diagonal[i] = i < n ? w[(first + i) * (d + 1)] : 1.0;
        ff_logs(diagonal, 16, logs);
        for (int64_t i = 0; i < n; i++)
            sum += logs[i];
    }
    return -2.0 * sum;
}

/* With z = W x and V + x x' = L (I + z z') L', the Cholesky factor C of I + z z' has a closed
 * inverse: with s_0 = 1, s_i = s_{i-1} + z_i^2, row i of C^{-1} W is
 *     sqrt(s_{i-1}/s_i) W_i - z_i / sqrt(s_{i-1} s_i) sum_{k<i} z_k W_k. */
FF_INLINE double enter(double *restrict w, double *restrict theta, const double *restrict x,
                       double y, int64_t d, double *restrict scratch)
{
    double *restrict z = scratch, *restrict partial = scratch + d;
    memset(partial, 0, (size_t)d * sizeof(double));
    /* s_i into take first: the roots then run as vectors, and the rows need not wait for them. */
    double *restrict keep = scratch + 2 * d, *restrict take = scratch + 3 * d;
    double s = 1.0;
    for (int64_t i = 0; i < d; i++) {
        keep[i] = s;
        s += z[i] * z[i];
        take[i] = s;
    }
    for (int64_t i = 0; i < d; i++) {
        const double root = 1.0 / sqrt(keep[i] * take[i]);
        keep[i] *= root;
        take[i] = z[i] * root;
    }
    int64_t first = 0;
#if defined(__GNUC__)
    /* Sixteen columns at a time, down the rows: their sums then stay in registers. Above the
     * diagonal this turns zeros into zeros. */
    for (; first + 16 <= d; first += 16) {
        eight low = {0}, high = {0};
        for (int64_t i = first; i < d; i++) {
            double *restrict at = w + i * d + first;
            const eight a = LOAD(at), b = LOAD(at + 8);
            STORE(at, keep[i] * a - take[i] * low);
            STORE(at + 8, keep[i] * b - take[i] * high);
            low += z[i] * a;
            high += z[i] * b;
        }
        STORE(partial + first, low);
        STORE(partial + first + 8, high);
    }
    for (; first + 8 <= d; first += 8) {
        eight low = {0};
        for (int64_t i = first; i < d; i++) {
            double *restrict at = w + i * d + first;
            const eight a = LOAD(at);
            STORE(at, keep[i] * a - take[i] * low);
            low += z[i] * a;
        }
        STORE(partial + first, low);
    }
#endif
    for (int64_t i = first; i < d; i++) {
        double *restrict row = w + i * d;
        for (int64_t j = first; j <= i; j++) {
            const double old = row[j], sum = partial[j];
            row[j] = keep[i] * old - take[i] * sum;
            partial[j] = sum + z[i] * old;
        }
    }
    if (theta) {
        /* partial is now W'z = V^{-1} x of the old V. */
        double error = (y - dot(theta, x, d)) / s;
        for (int64_t j = 0; j < d; j++)
            theta[j] += error * partial[j];
    }
    return s;
}

FF_CLONES
double ff_observe(double *restrict w, double *restrict theta, const double *restrict x, double y,
                  int64_t d, double *restrict scratch)
{
    product(w, x, d, scratch);
    return enter(w, theta, x, y, d, scratch);
}

FF_CLONES
double ff_observe_image(double *restrict w, double *restrict theta, const double *restrict x,
                        double y, int64_t d, double *restrict scratch)
{
    return enter(w, theta, x, y, d, scratch);
}

FF_CLONES
void ff_image(const double *restrict w, const double *restrict x, int64_t d, double *restrict z)
{
    product(w, x, d, z);
}

FF_CLONES
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
/* Columns j..j+7 of `rows` rows from the i-th of a packed matrix take n points. */
FF_INLINE void take_points(double *restrict gram, const double *restrict points, int64_t n,
                           int64_t d, int64_t i, int64_t j, const int rows)
{
    eight sum[4];
    for (int r = 0; r < rows; r++)
        sum[r] = LOAD(gram + (i + r) * (i + r + 1) / 2 + j);
    for (int64_t p = 0; p < n; p++) {
        const double *restrict x = points + p * (d + 1);
        const eight shared = LOAD(x + j);
        for (int r = 0; r < rows; r++)
            sum[r] += x[i + r] * shared;
    }
    for (int r = 0; r < rows; r++) {
        double *at = gram + (i + r) * (i + r + 1) / 2 + j;
        const int64_t last = i + r - j;
        /* What is past a row's end belongs to the next one, and stays as it is by now. */
        const mask8 in = (mask8){0, 1, 2, 3, 4, 5, 6, 7} <= last;
        STORE(at, (eight)(((mask8)sum[r] & in) | ((mask8)LOAD(at) & ~in)));
    }
}
#endif

/* Every entry takes the points in their order, as if they came one by one, but is loaded and stored
 * once. */
FF_CLONES
void ff_accumulate_many(double *restrict gram, double *restrict bias,
                        const double *restrict points, int64_t n, int64_t d)
{
    int64_t i = 0;
#if defined(__GNUC__)
    /* Four rows share what is loaded of a point; the last ones would run over the matrix' end. */
    for (; i + 4 + 8 <= d; i += 4)
        for (int64_t j = 0; j < i + 4; j += 8)
            take_points(gram, points, n, d, i, j, 4);
#endif
    for (; i < d; i++) {
        double *restrict row = gram + i * (i + 1) / 2;
        int64_t j = 0;
#if defined(__GNUC__)
        for (; j + 8 <= i + 1; j += 8)
            take_points(gram, points, n, d, i, j, 1);
#endif
        for (; j <= i; j++)
            for (int64_t p = 0; p < n; p++)
                row[j] += points[p * (d + 1) + i] * points[p * (d + 1) + j];
    }
    for (int64_t p = 0; p < n; p++)
        axpy(points[p * (d + 1) + d], points + p * (d + 1), bias, d);
}

FF_CLONES
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

FF_CLONES
void ff_sherman_morrison(double *restrict inverse, const double *restrict x, int64_t d,
                         double *restrict scratch)
{
    for (int64_t i = 0; i < d; i++)
        scratch[i] = dot(inverse + i * d, x, d);
    double scale = 1.0 / (1.0 + dot(scratch, x, d));
    /* Both triangles get the same products, so the result stays exactly symmetric. */
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = inverse + i * d;
        for (int64_t j = 0; j < d; j++)
            row[j] -= scratch[i] * scratch[j] * scale;
    }
}

FF_CLONES
int ff_clip_norm(double *restrict x, int64_t d, double bound)
{
    double square = dot(x, x, d), largest = 0.0;
    if (square <= bound * bound)
        return 0;
    if (square == INFINITY) {
        /* The squares overflowed, the norm need not: take it in units of the largest entry. */
        for (int64_t j = 0; j < d; j++)
            largest = fabs(x[j]) > largest ? fabs(x[j]) : largest;
        for (int64_t j = 0; j < d; j++)
            x[j] /= largest;
        square = dot(x, x, d);
    }
    /* Float32 contexts of norm 1 may lie 1e-7 above it: scaled all the same, not counted. */
    double scale = bound / sqrt(square);
    for (int64_t j = 0; j < d; j++)
        x[j] *= scale;
    return largest > 0.0 || square > bound * bound * (1.0 + 1e-6);
}
