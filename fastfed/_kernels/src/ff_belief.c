/* Symbols: d features; a statistic has s = d + d (d + 1) / 2 numbers (ff_aggregation.h). V is the
 * regularised Gram matrix, W its inverse factor (ff_linalg.h), theta the estimate. */
#include "ff_belief.h"

#include <math.h>

#include "ff_linalg.h"

/* Return e^x for x <= 0, with the same bits on every processor (unlike the C library's exp). */
static double exponential(double x)
{
    if (x < -700.0)
        return 0.0;
    /* e^x = 2^k e^r with |r| <= ln(2) / 2; ln 2 is subtracted in two parts. */
    const double k = floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    /* The Taylor series of e^r by Horner's rule. */
    double sum = 1.0;
    for (int n = 17; n > 0; n--)
        sum = 1.0 + r / (double)n * sum;
    return ldexp(sum, (int)k);
}

/* Write (b' V^-1 b / R^2 - ln det V) / 2 to *half, where V is packed and scale2 is R^2. The log
 * evidence of data is, up to a constant, the change of this value when the data enter V and b.
 * w (d, d) receives the factor of V, z (d) is scratch. Returns 0, or 1 if V is not positive
 * definite. */
static int half_evidence(const double *v, const double *b, double scale2, int64_t d, double *w,
                         double *z, double *half)
{
    if (ff_factor(v, d, w))
        return 1;
    ff_whiten(w, b, d, z);
    double square = 0.0;
    for (int64_t i = 0; i < d; i++)
        square += z[i] * z[i];
    *half = 0.5 * (square / scale2 - ff_log_det(w, d));
    return 0;
}

/* Compute the prior of a silo's theta that belongs to deviation g (ff_belief_model): a normal
 * distribution with precision P and mean P^-1 q. It follows from the released sums of the other
 * silos, h (bias) and A (covariance):
 *   Mat = ridge I + R^2 A + spread A^2,  P = A Mat^-1 A + prior I,  q = A Mat^-1 h,
 * where R is the sub-Gaussian scale of rewards; see docs/own-rounds.md, generalised least squares.
 * `out` (s) receives R^2 q, then R^2 P, packed. others: begins with h; a: A in full; square: A^2,
 * packed; w, y (d, d), mat (packed) and z (d): scratch. Returns 0, or 1 if Mat is not finite. */
static int prior_of(const ff_belief_model *model, int64_t g, const double *a,
                    const double *square, const double *others, int64_t d, double *w, double *y,
                    double *mat, double *z, double *out)
{
    double ridge = model->ridge[g];
    for (int tries = 0;; tries++) {
        for (int64_t i = 0, e = 0; i < d; i++)
            for (int64_t j = 0; j <= i; j++, e++)
                mat[e] = model->scale2 * a[i * d + j] + model->spread[g] * square[e] +
                         (i == j ? ridge : 0.0);
        if (ff_factor(mat, d, w) == 0)
            break;
        /* Without rounding, Mat would be positive definite. A larger ridge makes the prior weaker,
         * never stronger. */
        ridge *= 2.0;
        if (tries == 200)
            return 1;
    }
    /* Y = W A and z = W h, where W'W = Mat^-1. So P = Y'Y and q = Y'z. */
    memset(y, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t i = 0; i < d; i++)
        for (int64_t k = 0; k <= i; k++)
            for (int64_t j = 0; j < d; j++)
                y[i * d + j] += w[i * d + k] * a[k * d + j];
    ff_whiten(w, others, d, z);
    double *p = out + d;
    memset(out, 0, (size_t)ff_statistic(d) * sizeof(double));
    for (int64_t k = 0; k < d; k++)
        ff_accumulate(p, out, y + k * d, z[k], d);
    for (int64_t i = 0; i < d; i++)
        p[i * (i + 1) / 2 + i] += model->prior;
    for (int64_t e = 0; e < ff_statistic(d); e++)
        out[e] *= model->scale2;
    return 0;
}

/* Compute W (d, d) and theta (d) of a silo's posterior. For each possible deviation of the silo
 * from the others, the released sums of the others give a prior (prior_of). Each prior is weighted
 * by how well it predicts the silo's data, the raw sums `local`. Returns 0, or 1 if a matrix is not
 * finite. */
int ff_belief(const ff_belief_model *model, const double *others, const double *local, int64_t d,
              double *w, double *theta, double *weights, double *scratch)
{
    const int64_t s = ff_statistic(d), packed = ff_packed(d);
    double *a = scratch, *factor = a + d * d, *y = factor + d * d, *square = y + d * d;
    double *mat = square + packed, *priors = mat + packed, *evidence = priors + FF_MAX_GRID * s;
    double *z = evidence + FF_MAX_GRID, *b = z + d, *solve_scratch = b + d;
    double largest = -INFINITY, sum = 0.0;
    /* A, the covariance of the other silos, in full; in `others` it is packed. */
    for (int64_t i = 0, e = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++, e++)
            a[i * d + j] = a[j * d + i] = others[d + e];
    /* A^2, packed. */
    for (int64_t i = 0, e = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++, e++) {
            square[e] = 0.0;
            for (int64_t k = 0; k < d; k++)
                square[e] += a[i * d + k] * a[k * d + j];
        }
    /* For each deviation: R^2 q and R^2 P of its prior, and ln p(silo's data | deviation) up to a
     * constant, which is half_evidence with the silo's data minus half_evidence without them. */
    for (int64_t g = 0; g < model->count; g++) {
        double *prior = priors + g * s, before, after;
        if (prior_of(model, g, a, square, others, d, factor, y, mat, z, prior))
            return 1;
        if (half_evidence(prior + d, prior, model->scale2, d, factor, z, &before))
            return 1;
        for (int64_t e = 0; e < packed; e++)
            mat[e] = prior[d + e] + local[d + e];
        for (int64_t i = 0; i < d; i++)
            b[i] = prior[i] + local[i];
        if (half_evidence(mat, b, model->scale2, d, factor, z, &after))
            return 1;
        evidence[g] = after - before;
        if (!isfinite(evidence[g]))
            return 1;
        largest = evidence[g] > largest ? evidence[g] : largest;
    }
    /* Weights proportional to e^evidence. The largest evidence is subtracted to avoid overflow. */
    for (int64_t g = 0; g < model->count; g++) {
        evidence[g] = exponential(evidence[g] - largest);
        sum += evidence[g];
    }
    /* V (in `mat`) and b = V theta of the posterior: the silo's raw sums plus the weighted mean of
     * the priors. */
    memcpy(b, local, (size_t)d * sizeof(double));
    memcpy(mat, local + d, (size_t)packed * sizeof(double));
    for (int64_t g = 0; g < model->count; g++) {
        const double weight = evidence[g] / sum, *prior = priors + g * s;
        if (weights)
            weights[g] = weight;
        for (int64_t i = 0; i < d; i++)
            b[i] += weight * prior[i];
        for (int64_t e = 0; e < packed; e++)
            mat[e] += weight * prior[d + e];
    }
    if (ff_factor(mat, d, w))
        return 1;
    ff_solve(w, b, d, solve_scratch, theta);
    return 0;
}
