#include "ff_candidates.h"

#include <math.h>

#include "ff_linalg.h"

/* Rounds after which all actions are screened again in any case. */
#define LIFETIME 1024
/* If ||W x||^2 exceeds this, the set is given up, because rounding error is no longer bounded. */
#define LARGEST_WIDTH_SQUARE 1e6

/* Fill a candidate set with the actions of the largest upper bounds, and remember the largest upper
 * bound of the other actions. */
void ff_candidates_make(ff_candidates *set, const ff_bounds *bounds, int64_t actions,
                        const double *restrict w, double beta, int64_t released, int64_t d)
{
    float top[MAX_CANDIDATES];
    double others_bound = -INFINITY;
    int64_t n = 0;
    set->count = 0;
    if (!(bounds->width < INFINITY && bounds->length < INFINITY))
        return;
    /* Sort the largest upper bounds in descending order. The largest one that drops out bounds all
     * other actions. */
    for (int64_t a = 0; a < actions; a++) {
        const float upper = bounds->upper[a];
        if (!(upper < INFINITY))
            return;
        if (n == MAX_CANDIDATES && !(upper > top[n - 1])) {
            others_bound = upper > others_bound ? upper : others_bound;
            continue;
        }
        if (n == MAX_CANDIDATES)
            others_bound = top[n - 1] > others_bound ? top[n - 1] : others_bound;
        int64_t position = n < MAX_CANDIDATES ? n++ : n - 1;
        for (; position > 0 && upper > top[position - 1]; position--) {
            top[position] = top[position - 1];
            set->member[position] = set->member[position - 1];
        }
        top[position] = upper;
        set->member[position] = a;
    }
    /* Sort the members by index. */
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && set->member[j] < set->member[j - 1]; j--) {
            const int64_t a = set->member[j];
            set->member[j] = set->member[j - 1];
            set->member[j - 1] = a;
        }
    set->released = released;
    set->count = n;
    set->rounds_left = LIFETIME;
    set->others_bound = others_bound;
    set->growth = 0.0;
    set->beta = beta;
    set->width = bounds->width;
    set->width_rounding = 0.0;
    set->length = bounds->length;
    set->inverse = 1.001 * sqrt(ff_dot(w, w, d * d));
}

/* Choose among the members of a candidate set; return -1 if an action outside the set may be
 * better. */
int64_t ff_candidates_choose(const ff_candidates *set, const ff_actions *actions,
                             const double *restrict w, const double *restrict theta, double beta,
                             double gamma, int64_t d, double *restrict scratch, double *restrict x)
{
    double score;
    const int64_t a =
        ff_best_of(actions, set->member, set->count, w, theta, beta, gamma, d, scratch, &score);
    const double width_effect =
        beta * set->width_rounding + (beta > set->beta ? (beta - set->beta) * set->width : 0.0);
    /* The factor 1.01 covers the rounding error of the bound itself. A comparison with NaN decides
     * nothing. */
    const double bound = set->others_bound + 1.01 * (set->growth + width_effect);
    const int all_members = set->count == actions->actions && score > -INFINITY;
    if (!all_members && !(bound + 1e-12 * (fabs(bound) + fabs(score)) < score))
        return -1;
    ff_features(actions, a, d, x);
    return a;
}

/* Claim: with v = V^-1 x, r^2 = x'v = s - 1 and e = (y - <x, theta>) / s, a data point changes
 * theta by e v and V^-1 by -v v' / s. For any action a, |<x_a, v>| <= width r (Cauchy-Schwarz in
 * the norm of V^-1) and ||v|| <= inverse r. So
 *   the mean grows by at most width r |e|, the width ||W x_a|| does not grow, and
 *   ||V^-1 x_a|| grows by at most inverse r width r / s.
 *
 * Rounding, u = 2^-53: scores are those of the W that ff_observe has computed. Its z = W x may have
 * any rounding error: V grows for any z, and s belongs to that z. Row i of the new W is kept W_i -
 * taken sum_k z_k W_k with kept, taken <= 1, each accurate to (d + 8) u. So its error is at most 4
 * (d + 8) u (|W_i| + |z_i| sum_k |z_k| |W_k|), in all 4 (d + 8) u inverse (1 + r^2); the error of
 * theta is 4 (d + 8) u (||theta|| + (|e| + |y| + ||theta|| length) r inverse). Twice these bounds
 * also covers terms of second order in u. In LIFETIME rounds ||W||_F grows by much less than the
 * factor 1.001 in `inverse` allows. */
void ff_candidates_observe(ff_candidates *set, double prediction, double theta_norm, double y,
                           double s, double gamma, int64_t d)
{
    /* s - 1 has lost the digits below the last digit of s. */
    const double square = s - 1.0 + (double)(d + 8) * 0x1p-52;
    if (!set->count)
        return;
    if (!(square < LARGEST_WIDTH_SQUARE) || !(prediction < INFINITY && prediction > -INFINITY) ||
        !set->rounds_left--) {
        set->count = 0;
        return;
    }
    const double r = sqrt(square), e = fabs(y - prediction) / s;
    const double u = 8.0 * (double)(d + 8) * 0x1p-53 * set->length;
    const double rounding = u * set->inverse * (1.0 + square);
    set->growth += set->width * r * e + gamma * set->inverse * square * set->width / s;
    set->growth += 2.0 * gamma * set->inverse * rounding +
                u * (theta_norm + (e + fabs(y) + theta_norm * set->length) * r * set->inverse);
    set->width += rounding;
    set->width_rounding += rounding;
}
