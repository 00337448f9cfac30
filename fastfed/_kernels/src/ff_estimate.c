/* Symbols: d features; a statistic has s = d + d (d + 1) / 2 numbers (ff_aggregation.h). V is the
 * regularised Gram matrix, W its inverse factor (ff_linalg.h), theta the estimate. */
#include "ff_estimate.h"

#include <math.h>

#include "ff_linalg.h"
#include "ff_random.h"

/* Compute W (d, d) and theta (d) from a statistic (s). If noise has made V indefinite, add a
 * growing multiple of I until it is positive definite. Returns the multiple, or -1 if none
 * helps. */
double ff_refresh(const double *restrict statistic, double lambda, int64_t d, double *restrict w,
                  double *restrict theta, double *restrict scratch)
{
    const int64_t p = ff_packed(d);
    double *v = scratch, *scratch_d = scratch + p;
    double shift = 0.0;
    for (int tries = 0; tries < 200; tries++) {
        memcpy(v, statistic + d, (size_t)p * sizeof(double));
        for (int64_t i = 0; i < d; i++)
            v[i * (i + 1) / 2 + i] += lambda + shift;
        if (ff_factor(v, d, w) == 0) {
            ff_solve(w, statistic, d, scratch_d, theta);
            return shift;
        }
        shift = shift > 0.0 ? 2.0 * shift : (lambda > 0.0 ? lambda : 1.0);
    }
    return -1.0;
}

/* Return the smallest lambda among full j / 8, j = 0..8, for which all eigenvalues of
 * covariance + lambda I are above `floor`. j is found by bisection. A value is large enough if the
 * Cholesky factorisation of covariance + (lambda - floor) I succeeds. The value j = 8, `full`, is
 * not tested but assumed to be large enough; it is also returned if floor is 0. */
double ff_choose_regularizer(const double *restrict statistic, double full, double floor,
                             int64_t d, double *restrict w, double *restrict scratch)
{
    const int64_t p = ff_packed(d);
    int64_t low = -1, high = 8; /* full low / 8 is too small, full high / 8 is not */
    while (floor > 0.0 && high - low > 1) {
        const int64_t middle = (low + high) / 2;
        const double lambda = full * (double)middle / 8.0;
        memcpy(scratch, statistic + d, (size_t)p * sizeof(double));
        for (int64_t i = 0; i < d; i++)
            scratch[i * (i + 1) / 2 + i] += lambda - floor;
        if (ff_factor_diagonal(scratch, d, w) == 0)
            high = middle;
        else
            low = middle;
    }
    return full * (double)high / 8.0;
}

/* Return the confidence radius by the bound that depends on `count`, the number of data points that
 * V contains, and not on det V. */
double ff_radius_at(const ff_radius *radius, double offset, double lambda, double count,
                    int64_t d)
{
    const double growth = 1.0 + count / ((double)d * lambda);
    return radius->multiplier *
           (offset + radius->scale * sqrt(radius->base + (double)d * ff_log(growth)));
}

/* Return the inflation f = 1 + lowered min(inverse, 1 / floor) of the direct radius, or 1 if lambda
 * was not lowered. Proof that V + lowered I <= f V: all eigenvalues of V are at least `floor`, and
 * all eigenvalues of V^{-1} are at most `inverse`. */
double ff_inflation(double lowered, double floor, double inverse)
{
    return lowered > 0.0 ? 1.0 + lowered * (inverse * floor < 1.0 ? inverse : 1.0 / floor) : 1.0;
}

/* Return ln(inflation / anchor), which ff_determinant_radius needs. */
double ff_log_inflation(const ff_radius *radius, double inflation)
{
    return ff_log(inflation / radius->anchor);
}

/* Return the dimension of a confidence set: d, or 1 with arms, where every arm has a separate
 * set. */
FF_INLINE double coordinates(const ff_radius *radius, int64_t d)
{
    return radius->arms ? 1.0 : (double)d;
}

/* Return ln det V from W (d, d) or, with arms, the logarithm of the largest entry of V, which is -2
 * ln of the smallest diagonal entry of W. */
double ff_log_volume(const ff_radius *radius, const double *w, int64_t d)
{
    if (!radius->arms)
        return ff_log_det(w, d);
    double least = w[0];
    for (int64_t i = 1; i < d; i++)
        least = w[i * d + i] < least ? w[i * d + i] : least;
    return -2.0 * ff_log(least);
}

/* Return the confidence radius by the bound that depends on det V. log_det: ff_log_volume(), which
 * is ln det V without arms; log_inflation: ff_log_inflation(), which is ln(inflation / anchor). */
double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                             double log_inflation, double log_det, int64_t d)
{
    const double growth = log_det + coordinates(radius, d) * log_inflation;
    const double width = inflation * (radius->base + (growth > 0.0 ? growth : 0.0));
    return radius->multiplier * (offset + radius->scale * sqrt(width));
}

/* Return C of docs/radius.md: the bonus of an action x is at most C ||x||_{V^-1} while V is anchor
 * I plus at most `rows` rank-one terms, the rows of a silo that adds them one by one. */
double ff_row_width(const ff_radius *radius, double gamma, double rows, int64_t d)
{
    const double n = coordinates(radius, d);
    const double growth = n * ff_log(1.0 + rows / (n * radius->anchor));
    return radius->multiplier * radius->scale * sqrt(radius->base + growth) +
           gamma / sqrt(radius->anchor);
}

/* Return the slack of a sieve: 1 or, if that is larger, a lower bound on the ratio of two bonuses
 * of an action x. The first is C ||x||_{A^-1}, which the regret bound counts (width: C). The second
 * is the bonus in the score, beta ||x||_{V^-1} + gamma ||V^{-1} x||. Here V >= A / inflation, and
 * all eigenvalues of V^{-1} are at most `inverse`. */
double ff_slack(double width, double beta, double gamma, double inflation, double inverse)
{
    /* The last factor covers rounding error. */
    const double slack =
        width / (sqrt(inflation) * (beta + gamma * sqrt(inverse))) * (1.0 - 1e-9);
    return slack > 1.0 ? slack : 1.0;
}
