#include "ff_candidates.h"

#include <math.h>

#include "ff_linalg.h"

/* Rounds after which all actions are screened again in any case. */
#define LIFETIME 1024
/* Beyond this ||W x||^2 rounding is not followed any more. */
#define STEEPEST 1e6

void ff_candidates_make(ff_candidates *k, const ff_bounds *bounds, int64_t actions,
                        const double *restrict w, double beta, int64_t released, int64_t d)
{
    float top[MAX_CANDIDATES];
    double outside = -INFINITY;
    int64_t n = 0;
    k->count = 0;
    if (!(bounds->width < INFINITY && bounds->length < INFINITY))
        return;
    /* The largest upper bounds, in falling order; whatever falls out bounds the others. */
    for (int64_t a = 0; a < actions; a++) {
        const float u = bounds->upper[a];
        if (!(u < INFINITY))
            return;
        if (n == MAX_CANDIDATES && !(u > top[n - 1])) {
            outside = u > outside ? u : outside;
            continue;
        }
        if (n == MAX_CANDIDATES)
            outside = top[n - 1] > outside ? top[n - 1] : outside;
        int64_t at = n < MAX_CANDIDATES ? n++ : n - 1;
        for (; at > 0 && u > top[at - 1]; at--) {
            top[at] = top[at - 1];
            k->member[at] = k->member[at - 1];
        }
        top[at] = u;
        k->member[at] = a;
    }
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && k->member[j] < k->member[j - 1]; j--) {
            const int64_t a = k->member[j];
            k->member[j] = k->member[j - 1];
            k->member[j - 1] = a;
        }
    k->released = released;
    k->count = n;
    k->left = LIFETIME;
    k->outside = outside;
    k->grown = 0.0;
    k->beta = beta;
    k->width = bounds->width;
    k->widened = 0.0;
    k->length = bounds->length;
    k->inverse = 1.001 * sqrt(ff_dot(w, w, d * d));
}

int64_t ff_candidates_choose(const ff_candidates *k, const ff_actions *actions,
                             const double *restrict w, const double *restrict theta, double beta,
                             double gamma, int64_t d, double *restrict scratch, double *restrict x)
{
    double score;
    const int64_t a = ff_best_of(actions, k->member, k->count, w, theta, beta, gamma, d, scratch,
                                 &score);
    const double wider = beta * k->widened + (beta > k->beta ? (beta - k->beta) * k->width : 0.0);
    /* A hundredth for the rounding of the bound itself; a comparison with NaN decides nothing. */
    const double bound = k->outside + 1.01 * (k->grown + wider);
    const int alone = k->count == actions->actions && score > -INFINITY;
    if (!alone && !(bound + 1e-12 * (fabs(bound) + fabs(score)) < score))
        return -1;
    ff_features(actions, a, d, x);
    return a;
}

/* With v = V^-1 x, r^2 = x'v = s - 1 and e = (y - <x, theta>) / s, a data point moves theta by e v
 * and V^-1 by -v v' / s. For any action a, in the norm of V^-1, |<x_a, v>| <= width r and
 * ||v|| <= inverse r, so
 *   the mean grows by at most width r |e|, the width ||W x_a|| not at all, and
 *   ||V^-1 x_a|| by at most inverse r width r / s.
 *
 * Rounding, u = 2^-53: W is what ff_observe has made of it, and these are the scores of that W.
 * Its z = W x may be rounded as it likes: any z makes V grow, and s is that z's. Row i of the new
 * W is kept W_i - taken sum_k z_k W_k with kept, taken <= 1, each good to (d + 8) u, so it is off
 * by at most 4 (d + 8) u (|W_i| + |z_i| sum_k |z_k| |W_k|), in all 4 (d + 8) u inverse (1 + r^2);
 * theta by 4 (d + 8) u (||theta|| + (|e| + |y| + ||theta|| length) r inverse). Twice that pays for
 * what is of the order of u times itself. In LIFETIME rounds `inverse` moves by far less than the
 * thousandth it has been given. */
void ff_candidates_observe(ff_candidates *k, double prediction, double theta_norm, double y,
                           double s, double gamma, int64_t d)
{
    /* s - 1 has lost what was below the last digit of s. */
    const double square = s - 1.0 + (double)(d + 8) * 0x1p-52;
    if (!k->count)
        return;
    if (!(square < STEEPEST) || !(prediction < INFINITY && prediction > -INFINITY) || !k->left--) {
        k->count = 0;
        return;
    }
    const double r = sqrt(square), e = fabs(y - prediction) / s;
    const double u = 8.0 * (double)(d + 8) * 0x1p-53 * k->length;
    const double wide = u * k->inverse * (1.0 + square);
    k->grown += k->width * r * e + gamma * k->inverse * square * k->width / s;
    k->grown += 2.0 * gamma * k->inverse * wide +
                u * (theta_norm + (e + fabs(y) + theta_norm * k->length) * r * k->inverse);
    k->width += wide;
    k->widened += wide;
}
