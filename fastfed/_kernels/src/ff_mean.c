#include "ff_mean.h"

#include <math.h>

#include "ff_aggregation.h"

/* The largest number of sweeps over all pairs p < q, and the multiple of the largest eigenvalue up
 * to which eigenvalues count as 0. */
#define SWEEPS 40
#define RANK 1e-10

/* Rotate rows and columns p < q of the symmetric A (d, d), so that A_pq becomes 0, and rotate rows
 * p and q of `rows` (d, d) by the same angle. After all rotations the rows are eigenvectors of the
 * original A. t, the tangent of the angle, is the root of t^2 + 2 tau t = 1 with the smaller
 * absolute value. */
static void rotate(double *restrict a, double *restrict rows, int64_t p, int64_t q, int64_t d)
{
    const double off_diagonal = a[p * d + q];
    if (off_diagonal == 0.0)
        return;
    const double tau = (a[q * d + q] - a[p * d + p]) / (2.0 * off_diagonal);
    const double t = (tau >= 0.0 ? 1.0 : -1.0) / (fabs(tau) + sqrt(1.0 + tau * tau));
    const double c = 1.0 / sqrt(1.0 + t * t), s = t * c;
    for (int64_t k = 0; k < d; k++) {
        const double x = a[k * d + p], y = a[k * d + q];
        a[k * d + p] = c * x - s * y;
        a[k * d + q] = s * x + c * y;
    }
    for (int64_t k = 0; k < d; k++) {
        const double x = a[p * d + k], y = a[q * d + k];
        a[p * d + k] = c * x - s * y;
        a[q * d + k] = s * x + c * y;
    }
    a[p * d + q] = a[q * d + p] = 0.0;
    for (int64_t k = 0; k < d; k++) {
        const double x = rows[p * d + k], y = rows[q * d + k];
        rows[p * d + k] = c * x - s * y;
        rows[q * d + k] = s * x + c * y;
    }
}

/* Compute theta (d) = V^+ u of a statistic (u, packed V) by the eigenvectors of V (Jacobi
 * rotations); eigenvalues near 0 are dropped. Returns 1, or 0 and theta = 0 if a number is not
 * finite. */
int ff_least_squares(const double *restrict statistic, int64_t d, double *restrict scratch,
                     double *restrict theta)
{
    double *a = scratch, *rows = scratch + d * d, largest = 0.0, largest_entry = 0.0;
    memset(theta, 0, (size_t)d * sizeof(double));
    for (int64_t j = 0; j < ff_statistic(d); j++) {
        if (!isfinite(statistic[j]))
            return 0;
        largest_entry =
            j >= d && fabs(statistic[j]) > largest_entry ? fabs(statistic[j]) : largest_entry;
    }
    /* Scale V by a power of two near its largest entry, so that squares neither overflow nor
     * underflow. */
    int power = 0;
    frexp(largest_entry, &power);
    memset(rows, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t i = 0, e = d; i < d; i++) {
        rows[i * d + i] = 1.0;
        for (int64_t j = 0; j <= i; j++, e++)
            a[i * d + j] = a[j * d + i] = ldexp(statistic[e], -power);
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off_diagonal = 0.0, on_diagonal = 0.0;
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) {
                const double square = a[i * d + j] * a[i * d + j];
                if (i == j)
                    on_diagonal += square;
                else
                    off_diagonal += square;
            }
        /* Relative to the diagonal, the other entries are below 2^-52 in norm. */
        if (off_diagonal <= 0x1p-104 * on_diagonal)
            break;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = p + 1; q < d; q++)
                rotate(a, rows, p, q, d);
    }
    for (int64_t i = 0; i < d; i++)
        largest = a[i * d + i] > largest ? a[i * d + i] : largest;
    for (int64_t i = 0; i < d; i++) {
        const double value = a[i * d + i];
        if (!(value > RANK * largest))
            continue;
        double product = 0.0;
        for (int64_t k = 0; k < d; k++)
            product += rows[i * d + k] * statistic[k];
        for (int64_t k = 0; k < d; k++)
            theta[k] += product / value * rows[i * d + k];
    }
    for (int64_t k = 0; k < d; k++)
        theta[k] = ldexp(theta[k], -power);
    for (int64_t k = 0; k < d; k++)
        if (!isfinite(theta[k])) {
            memset(theta, 0, (size_t)d * sizeof(double));
            return 0;
        }
    return 1;
}

/* Multiply values (n), n a power of two, by the Hadamard matrix (n, n), in place: sums and
 * differences of entries h apart, for h = 1, 2, 4, .. */
void ff_hadamard(double *restrict values, int64_t n)
{
    for (int64_t h = 1; h < n; h *= 2)
        for (int64_t i = 0; i < n; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                const double x = values[j], y = values[j + h];
                values[j] = x + y;
                values[j + h] = x - y;
            }
}
