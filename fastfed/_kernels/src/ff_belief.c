#include "ff_belief.h"

#include <math.h>

#include "ff_linalg.h"

/* e^x for x <= 0 with the same bits on every processor, unlike the C library's. */
static double exponential(double x)
{
    if (x < -700.0)
        return 0.0;
    const double k = floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = 1.0;
    for (int n = 17; n > 0; n--)
        sum = 1.0 + r / (double)n * sum;
    return ldexp(sum, (int)k);
}

/* 1/2 of ln det V^-1 + b' V^-1 b / R^2, of packed V and b; V's factor into w. 1: not finite. */
static int half_evidence(const double *v, const double *b, double scale2, int64_t d, double *w,
                         double *z, double *found)
{
    if (ff_factor(v, d, w))
        return 1;
    ff_whiten(w, b, d, z);
    double square = 0.0;
    for (int64_t i = 0; i < d; i++)
        square += z[i] * z[i];
    *found = 0.5 * (square / scale2 - ff_log_det(w, d));
    return 0;
}

/* R^2 (P, q) of one deviation into `out`, laid out as a statistic: q, then packed P. */
static int information(const ff_belief_model *model, int64_t g, const double *a,
                       const double *square, const double *rest, int64_t d, double *w, double *y,
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
        /* Rounding alone leads here: a larger ridge says less than is known, never more. */
        ridge *= 2.0;
        if (tries == 200)
            return 1;
    }
    /* Y = W A and z = W h, so that P = Y'Y and q = Y'z. */
    memset(y, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t i = 0; i < d; i++)
        for (int64_t k = 0; k <= i; k++)
            for (int64_t j = 0; j < d; j++)
                y[i * d + j] += w[i * d + k] * a[k * d + j];
    ff_whiten(w, rest, d, z);
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

int ff_belief(const ff_belief_model *model, const double *rest, const double *own, int64_t d,
              double *w, double *theta, double *weights, double *scratch)
{
    const int64_t s = ff_statistic(d), packed = ff_packed(d);
    double *a = scratch, *factor = a + d * d, *y = factor + d * d, *square = y + d * d;
    double *mat = square + packed, *each = mat + packed, *evidence = each + FF_MAX_GRID * s;
    double *z = evidence + FF_MAX_GRID, *b = z + d, *rows = b + d, most = -INFINITY, sum = 0.0;
    for (int64_t i = 0, e = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++, e++)
            a[i * d + j] = a[j * d + i] = rest[d + e];
    for (int64_t i = 0, e = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++, e++) {
            square[e] = 0.0;
            for (int64_t k = 0; k < d; k++)
                square[e] += a[i * d + k] * a[k * d + j];
        }
    for (int64_t g = 0; g < model->count; g++) {
        double *made = each + g * s, before, after;
        if (information(model, g, a, square, rest, d, factor, y, mat, z, made))
            return 1;
        if (half_evidence(made + d, made, model->scale2, d, factor, z, &before))
            return 1;
        for (int64_t e = 0; e < packed; e++)
            mat[e] = made[d + e] + own[d + e];
        for (int64_t i = 0; i < d; i++)
            b[i] = made[i] + own[i];
        if (half_evidence(mat, b, model->scale2, d, factor, z, &after))
            return 1;
        evidence[g] = after - before;
        if (!isfinite(evidence[g]))
            return 1;
        most = evidence[g] > most ? evidence[g] : most;
    }
    for (int64_t g = 0; g < model->count; g++) {
        evidence[g] = exponential(evidence[g] - most);
        sum += evidence[g];
    }
    memcpy(b, own, (size_t)d * sizeof(double));
    memcpy(mat, own + d, (size_t)packed * sizeof(double));
    for (int64_t g = 0; g < model->count; g++) {
        const double weight = evidence[g] / sum, *made = each + g * s;
        if (weights)
            weights[g] = weight;
        for (int64_t i = 0; i < d; i++)
            b[i] += weight * made[i];
        for (int64_t e = 0; e < packed; e++)
            mat[e] += weight * made[d + e];
    }
    if (ff_factor(mat, d, w))
        return 1;
    ff_solve(w, b, d, rows, theta);
    return 0;
}
