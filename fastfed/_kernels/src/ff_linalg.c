#include "ff_linalg.h"

#include <math.h>

#include "ff_random.h"

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
            double f = column[i];
            for (int64_t k = j + 1; k <= i; k++)
                row[k] -= f * column[k];
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
            for (int64_t j = 0; j <= k; j++)
                row[j] -= f * above[j];
        }
        for (int64_t j = 0; j < i; j++)
            row[j] *= inverse;
        row[i] = inverse;
    }
    return 0;
}

/* Lanes of a dot product: eight partial sums, then a fixed tree, the same at every SIMD width. */
FF_INLINE double dot(const double *restrict a, const double *restrict b, int64_t n)
{
    double s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            s[l] += a[i + l] * b[i + l];
    for (int l = 0; i < n; i++, l++)
        s[l] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

FF_CLONES
void ff_solve(const double *restrict w, const double *restrict u, int64_t d,
              double *restrict scratch, double *restrict theta)
{
    for (int64_t i = 0; i < d; i++)
        scratch[i] = dot(w + i * d, u, i + 1);
    memset(theta, 0, (size_t)d * sizeof(double));
    for (int64_t i = 0; i < d; i++) {
        const double *restrict row = w + i * d;
        double f = scratch[i];
        for (int64_t j = 0; j <= i; j++)
            theta[j] += f * row[j];
    }
}

double ff_log_det(const double *w, int64_t d)
{
    double sum = 0.0;
    for (int64_t i = 0; i < d; i++)
        sum += ff_log(w[i * d + i]);
    return -2.0 * sum;
}

/* With z = W x and V + x x' = L (I + z z') L', the Cholesky factor C of I + z z' has a closed
 * inverse: with s_0 = 1, s_i = s_{i-1} + z_i^2, row i of C^{-1} W is
 *     sqrt(s_{i-1}/s_i) W_i - z_i / sqrt(s_{i-1} s_i) sum_{k<i} z_k W_k. */
FF_CLONES
double ff_observe(double *restrict w, double *restrict theta, const double *restrict x, double y,
                  int64_t d, double *restrict scratch)
{
    double *restrict z = scratch, *restrict partial = scratch + d;
    for (int64_t i = 0; i < d; i++)
        z[i] = dot(w + i * d, x, i + 1);
    memset(partial, 0, (size_t)d * sizeof(double));
    double s = 1.0;
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = w + i * d;
        double zi = z[i], next = s + zi * zi;
        double root = 1.0 / sqrt(s * next);
        double keep = s * root, take = zi * root;
        for (int64_t j = 0; j <= i; j++) {
            double old = row[j], sum = partial[j];
            row[j] = keep * old - take * sum;
            partial[j] = sum + zi * old;
        }
        s = next;
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
void ff_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                   double y, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = gram + i * (i + 1) / 2;
        double f = x[i];
        for (int64_t j = 0; j <= i; j++)
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
    double square = dot(x, x, d);
    if (square <= bound * bound)
        return 0;
    /* Float32 contexts of norm 1 may lie 1e-7 above it: scaled all the same, not counted. */
    double scale = bound / sqrt(square);
    for (int64_t j = 0; j < d; j++)
        x[j] *= scale;
    return square > bound * bound * (1.0 + 1e-6);
}
