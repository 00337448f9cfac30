/* Symbols (ff_estimate.h): d features; V is the regularised Gram matrix, L its Cholesky factor, W =
 * L^-1, theta the estimate. */
#include "ff_refresh_small.h"

#include <math.h>

#if defined(__GNUC__)
/* The dimension with unrolled code: that of the papers' figures with one agent. */
#define DIMENSION 5
#define ENTRIES (DIMENSION * (DIMENSION + 1) / 2)
#define UNROLLED _Pragma("GCC unroll 16")

/* Eight matrices are factored side by side, one in each entry of two vectors. The first vector has
 * the tests of four multiples of full / 8, the second V for the last three of them, and one of them
 * again. */
typedef double four __attribute__((vector_size(32)));
typedef int64_t four_masks __attribute__((vector_size(32)));

/* Return the square roots of a vector. */
FF_INLINE four roots_of(four squares)
{
    double root[4];
    memcpy(root, &squares, sizeof root);
    for (int l = 0; l < 4; l++)
        root[l] = sqrt(root[l]);
    memcpy(&squares, root, sizeof root);
    return squares;
}

/* Return the index of entry (i, j) of a packed symmetric matrix. */
FF_INLINE int packed(int i, int j) { return i < j ? j * (j + 1) / 2 + i : i * (i + 1) / 2 + j; }

/* Replace the packed matrices v by their Cholesky factors, with the steps of ff_factor in the same
 * order. inverse: receives 1 / L_jj. positive: receives masks of the matrices that are positive
 * definite. */
FF_INLINE void factor(four (*restrict v)[2], four (*restrict inverse)[2],
                      four_masks *restrict positive)
{
    positive[0] = positive[1] = (four_masks){0} - 1;
    UNROLLED for (int j = 0; j < DIMENSION; j++)
        UNROLLED for (int h = 0; h < 2; h++)
        {
            const four pivot = v[packed(j, j)][h];
            positive[h] &= (pivot > 0.0) & (pivot < INFINITY);
            inverse[j][h] = 1.0 / roots_of(pivot);
            UNROLLED for (int i = j + 1; i < DIMENSION; i++)
                v[packed(i, j)][h] *= inverse[j][h];
            UNROLLED for (int i = j + 1; i < DIMENSION; i++)
                UNROLLED for (int k = i; k < DIMENSION; k++)
                    v[packed(k, i)][h] -= v[packed(i, j)][h] * v[packed(k, j)][h];
        }
}

/* Compute W (d, d) from a factor and the inverses of its diagonal, as ff_factor does. */
FF_INLINE void invert(const double *restrict factor, const double *restrict inverse,
                      double *restrict w)
{
    UNROLLED for (int i = 0; i < DIMENSION; i++)
    {
        UNROLLED for (int j = 0; j < i; j++)
        {
            double sum = 0.0;
            UNROLLED for (int k = j; k < i; k++)
                sum += -factor[packed(i, k)] * w[k * DIMENSION + j];
            w[i * DIMENSION + j] = sum * inverse[i];
        }
        w[i * DIMENSION + i] = inverse[i];
        UNROLLED for (int j = i + 1; j < DIMENSION; j++)
            w[i * DIMENSION + j] = 0.0;
    }
}

/* Return sum a_i b_i, with the bits of ff_dot. */
FF_INLINE double dot(const double *restrict a, const double *restrict b)
{
    double term[8] = {0};
    UNROLLED for (int j = 0; j < DIMENSION; j++)
        term[j] += a[j] * b[j];
    return ((term[0] + term[4]) + (term[2] + term[6])) +
           ((term[1] + term[5]) + (term[3] + term[7]));
}

/* Compute theta = W'(W u), as ff_solve does. */
FF_INLINE void solve(const double *restrict w, const double *restrict u, double *restrict theta)
{
    double z[DIMENSION];
    UNROLLED for (int i = 0; i < DIMENSION; i++)
        z[i] = dot(w + i * DIMENSION, u);
    UNROLLED for (int j = 0; j < DIMENSION; j++)
    {
        double sum = 0.0;
        UNROLLED for (int i = 0; i < DIMENSION; i++)
            sum += z[i] * w[i * DIMENSION + j];
        theta[j] = sum;
    }
}

/* Compute the square of a packed symmetric matrix. */
FF_INLINE void square_of(const double *restrict a, double *restrict out)
{
    UNROLLED for (int i = 0; i < DIMENSION; i++)
        UNROLLED for (int j = 0; j <= i; j++)
        {
            double sum = 0.0;
            UNROLLED for (int k = 0; k < DIMENSION; k++)
                sum += a[packed(i, k)] * a[packed(k, j)];
            out[packed(i, j)] = sum;
        }
}

/* Return an upper bound on the largest eigenvalue of V^-1 = W'W, as ff_inverse_norm does. */
FF_INLINE double inverse_norm(const double *restrict w)
{
    double a[ENTRIES], b[ENTRIES], scale = 0.0, square = 0.0;
    UNROLLED for (int i = 0; i < DIMENSION; i++)
        UNROLLED for (int j = 0; j <= i; j++)
        {
            double sum = 0.0;
            UNROLLED for (int k = i; k < DIMENSION; k++)
                sum += w[k * DIMENSION + i] * w[k * DIMENSION + j];
            a[packed(i, j)] = sum;
        }
    UNROLLED for (int i = 0; i < DIMENSION; i++)
        scale += a[packed(i, i)];
    const double by = 1.0 / scale;
    UNROLLED for (int e = 0; e < ENTRIES; e++)
        a[e] *= by;
    square_of(a, b);
    square_of(b, a);
    UNROLLED for (int i = 0; i < DIMENSION; i++)
    {
        double row[DIMENSION];
        UNROLLED for (int j = 0; j < DIMENSION; j++)
            row[j] = a[packed(i, j)];
        square += dot(row, row);
    }
    return scale * sqrt(sqrt(sqrt(square))) * (1.0 + 1e-9);
}

/* Compute a model from a statistic and return 1, or return 0 if lambda is not near the guess (see
 * ff_refresh_small.h).
 *
 * lambda is the smallest of the multiples 0, full / 8, .., full that passes a test: it must raise
 * the least eigenvalue to the floor. ff_choose_regularizer finds it by bisection, up to four tests
 * one after the other. But from one release to the next it seldom changes by more than full / 8. So
 * this function tests the last multiple, its two neighbours and the one below them together, and
 * computes the factor of V for the upper three, in little more time than one factor. If a multiple
 * passes, so do all larger ones, except where the least eigenvalue is within rounding error of the
 * floor. So bisection and this function find the same multiple. */
int ff_refresh_small(const double *restrict statistic, double full, double floor, int64_t step,
                     int64_t d, double *restrict w, double *restrict theta,
                     double *restrict lambda, double *restrict inverse)
{
    if (d != DIMENSION)
        return 0;
    /* Test the multiples first, .., first + 3 of full / 8. Without a test, a multiple of -1 counts
     * as too small, and 8 as large enough. */
    const int64_t first = (step < 1 ? 1 : step > 7 ? 7 : step) - 2;
    double tried[4];
    four shift[2], v[ENTRIES][2], inverses[DIMENSION][2];
    for (int i = 0; i < 4; i++)
        tried[i] = full * (double)(first + i) / 8.0;
    for (int i = 0; i < 4; i++) {
        shift[0][i] = tried[i] - floor;
        shift[1][i] = tried[i < 3 ? i + 1 : i];
    }
    UNROLLED for (int i = 0; i < DIMENSION; i++)
        UNROLLED for (int j = 0; j <= i; j++)
            UNROLLED for (int h = 0; h < 2; h++)
            {
                const double x = statistic[DIMENSION + packed(i, j)];
                const four entry = {x, x, x, x};
                v[packed(i, j)][h] = i == j ? entry + shift[h] : entry;
            }
    four_masks is_positive[2];
    factor(v, inverses, is_positive);
    int passed = 0;
    for (int i = 0; i < 4; i++)
        passed |= (first + i == 8 || (floor > 0.0 && first + i >= 0 && is_positive[0][i])) << i;
    /* Bit i of `passed` is test i. The smallest multiple that passes is that of test 1, 2 or 3. It
     * is unknown if no test passes, or if test 0 does: then a smaller multiple might pass too. */
    if (passed == 0 || passed & 1)
        return 0;
    const int lane = passed & 2 ? 0 : passed & 4 ? 1 : 2;
    if (!is_positive[1][lane])
        return 0;
    double model[ENTRIES], diagonal[DIMENSION];
    UNROLLED for (int e = 0; e < ENTRIES; e++)
        model[e] = v[e][1][lane];
    UNROLLED for (int j = 0; j < DIMENSION; j++)
        diagonal[j] = inverses[j][1][lane];
    *lambda = tried[lane + 1];
    invert(model, diagonal, w);
    solve(w, statistic, theta);
    *inverse = inverse_norm(w);
    return 1;
}
#else
/* Return 0, so that the caller uses the general functions: this compiler has no vector types, so
 * there is no unrolled code. */
int ff_refresh_small(const double *restrict statistic, double full, double floor, int64_t step,
                     int64_t d, double *restrict w, double *restrict theta,
                     double *restrict lambda, double *restrict inverse)
{
    return 0;
}
#endif
