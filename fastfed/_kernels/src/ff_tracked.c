#include "ff_tracked.h"

#include <math.h>

#include "ff_linalg.h"
#include "ff_panel.h"
#include "ff_sieve.h"

/* Rounds after which all scores are recomputed. */
#define LIFETIME 512
/* Rounds without tracking after too many actions could not be discarded. */
#define PAUSE 32
/* The largest number of actions that are scored exactly. */
#define FEW(actions) (8 + (actions) / 8)
/* If ||W x||^2 exceeds this, tracking stops, because rounding error is no longer bounded. */
#define LARGEST_WIDTH_SQUARE 1e6

/* The arrays by action: means, ||W x||^2, ||V^{-1} x||^2, and two arrays of scratch, which hold
 * products with two vectors, or rankings and bonuses. */
typedef struct {
    double *restrict mean, *restrict width, *restrict second, *restrict along, *restrict across;
} parts;

/* Cut the values of n actions into arrays. */
FF_INLINE parts cut(double *values, int64_t n)
{
    return (parts){values, values + n, values + 2 * n, values + 3 * n, values + 4 * n};
}

/* Return (d + 8) u, u = 2^-53. */
FF_INLINE double unit_of(int64_t d) { return (double)(d + 8) * 0x1p-53; }

/* Rows or columns of W whose products with a panel are summed together, so that chains of additions
 * overlap. */
#define SUMS_AT_ONCE 4

/* Compute rows i.. of z = W x of a panel, and add their squares to width. Zeros of W past the
 * diagonal do not change the sums. */
FF_INLINE void whiten_panel(const double *restrict w, const double *restrict panel, int64_t d,
                           int64_t i, const int rows, double *restrict z, double *restrict width)
{
    double sum[SUMS_AT_ONCE][PANEL] FF_ALIGNED = {{0}};
    for (int64_t j = 0; j < i + rows; j++)
        for (int r = 0; r < rows; r++)
            for (int a = 0; a < PANEL; a++)
                sum[r][a] += w[(i + r) * d + j] * panel[j * PANEL + a];
    for (int r = 0; r < rows; r++)
        for (int a = 0; a < PANEL; a++) {
            width[a] += sum[r][a] * sum[r][a];
            z[(i + r) * PANEL + a] = sum[r][a];
        }
}

/* Add the squares of entries j.. of W'z to second. */
FF_INLINE void square_columns(const double *restrict w, const double *restrict z, int64_t d,
                              int64_t j, const int columns, double *restrict second)
{
    double sum[SUMS_AT_ONCE][PANEL] FF_ALIGNED = {{0}};
    for (int64_t i = j; i < d; i++)
        for (int c = 0; c < columns; c++)
            for (int a = 0; a < PANEL; a++)
                sum[c][a] += w[i * d + j + c] * z[i * PANEL + a];
    for (int c = 0; c < columns; c++)
        for (int a = 0; a < PANEL; a++)
            second[a] += sum[c][a] * sum[c][a];
}

/* Compute the scores of all actions, a panel at a time; lanes past the last action are zero.
 * *longest receives the largest ||x||^2. */
static void compute_all(const ff_actions *actions, const double *restrict w,
                        const double *restrict theta, int has_second, int64_t d,
                        double *restrict panel, parts p, double *restrict longest)
{
    const float *x = (const float *)actions->x;
    const int64_t count = actions->actions, stride = actions->feature_stride;
    double *restrict z = panel + PANEL * d;
    for (int64_t first = 0; first < count; first += PANEL) {
        const int64_t n = count - first < PANEL ? count - first : PANEL;
        double mean[PANEL] = {0}, length[PANEL] = {0}, width[PANEL] = {0}, second[PANEL] = {0};
        /* The panel in float64, with means and squared lengths. */
        for (int64_t j = 0; j < d; j++) {
            double *restrict row = panel + j * PANEL;
            for (int64_t a = 0; a < PANEL; a++)
                row[a] = a < n ? (double)x[j * stride + first + a] : 0.0;
            for (int64_t a = 0; a < PANEL; a++) {
                mean[a] += theta[j] * row[a];
                length[a] += row[a] * row[a];
            }
        }
        int64_t i = 0, j = 0;
        for (; i + SUMS_AT_ONCE <= d; i += SUMS_AT_ONCE)
            whiten_panel(w, panel, d, i, SUMS_AT_ONCE, z, width);
        for (; i < d; i++)
            whiten_panel(w, panel, d, i, 1, z, width);
        for (; has_second && j + SUMS_AT_ONCE <= d; j += SUMS_AT_ONCE)
            square_columns(w, z, d, j, SUMS_AT_ONCE, second);
        for (; has_second && j < d; j++)
            square_columns(w, z, d, j, 1, second);
        for (int64_t a = 0; a < n; a++) {
            p.mean[first + a] = mean[a];
            p.width[first + a] = width[a];
            p.second[first + a] = second[a];
            *longest = length[a] > *longest ? length[a] : *longest;
        }
    }
}

/* Compute the scores of all actions, which later data points then update. */
void ff_tracked_make(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                     const double *restrict w, const double *restrict theta, double gamma,
                     int64_t released, int64_t d, double *restrict scratch)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    const double theta_square = ff_dot(theta, theta, d), total = ff_dot(w, w, d * d);
    double longest = 0.0, width = 0.0, second = 0.0;
    compute_all(actions, w, theta, gamma != 0.0, d, aligned(scratch), p, &longest);
    for (int64_t a = 0; a < count; a++) {
        width = p.width[a] > width ? p.width[a] : width;
        second = p.second[a] > second ? p.second[a] : second;
    }
    const double u = unit_of(d);
    tracked->x = actions->x;
    tracked->released = released;
    tracked->rounds_left = LIFETIME;
    tracked->length = 1.001 * sqrt(longest);
    /* `inverse` grows by rounding only, in LIFETIME rounds by much less than the factor 1.001. */
    tracked->inverse = 1.001 * sqrt(total);
    tracked->width = 1.001 * sqrt(width) + 2.0 * u * tracked->inverse * tracked->length;
    tracked->second =
        1.001 * sqrt(second) + 4.0 * u * tracked->inverse * tracked->inverse * tracked->length;
    tracked->mean_error = u * sqrt(theta_square) * tracked->length;
    tracked->width_error = 4.0 * u * tracked->width * tracked->inverse * tracked->length;
    tracked->second_error =
        8.0 * u * tracked->second * tracked->inverse * tracked->inverse * tracked->length;
}

/* Add `factor` times the square root of each square to `low` and `high` as lower and upper bounds,
 * if the squares have errors of at most `error`. The roots of q - e and q + e differ by at most
 * e / root(q - e), so one root for each action is enough. */
FF_INLINE void add_bonus(const double *restrict square, int64_t n, double factor, double error,
                         double *restrict low, double *restrict high)
{
    /* Nonnegative doubles have the order of their bits, and compilers vectorise the minimum of
     * integers. */
    int64_t smallest_bits = INT64_MAX;
    for (int64_t a = 0; a < n; a++) {
        const double lower_square = square[a] - error;
        const double root = sqrt(lower_square > 0.0 ? lower_square : 0.0);
        int64_t bits;
        memcpy(&bits, &root, sizeof bits);
        smallest_bits = bits < smallest_bits ? bits : smallest_bits;
        low[a] += factor * root;
        high[a] += factor * root;
    }
    double smallest;
    memcpy(&smallest, &smallest_bits, sizeof smallest);
    const double difference = 1.001 * factor * error / smallest;
    if (difference < INFINITY)
        for (int64_t a = 0; a < n; a++)
            high[a] += difference;
    else
        for (int64_t a = 0; a < n; a++) {
            const double lower_square = square[a] - error;
            high[a] +=
                factor * (sqrt(square[a] + error) - sqrt(lower_square > 0.0 ? lower_square : 0.0));
        }
}

/* Compute an upper bound on every score, into `upper`. Returns the largest lower bound: actions
 * with upper bounds below it cannot be best. */
static double bound_all(parts p, int64_t n, double beta, double gamma, double mean_error,
                        double width_error, double second_error, double *restrict upper)
{
    double threshold = -INFINITY;
    for (int64_t a = 0; a < n; a++) {
        p.across[a] = 0.0;
        upper[a] = p.mean[a] + mean_error;
    }
    if (gamma != 0.0)
        add_bonus(p.second, n, gamma, second_error, p.across, upper);
    add_bonus(p.width, n, beta, width_error, p.across, upper);
    /* Several lanes, because a single chain of comparisons would be limited by latency. */
    double top[PANEL] FF_ALIGNED;
    for (int l = 0; l < PANEL; l++)
        top[l] = -INFINITY;
    int64_t a = 0;
    for (; a + PANEL <= n; a += PANEL)
        for (int l = 0; l < PANEL; l++) {
            const double low = p.mean[a + l] - mean_error + p.across[a + l];
            top[l] = low > top[l] ? low : top[l];
        }
    for (; a < n; a++) {
        const double low = p.mean[a] - mean_error + p.across[a];
        threshold = low > threshold ? low : threshold;
    }
    for (int l = 0; l < PANEL; l++)
        threshold = top[l] > threshold ? top[l] : threshold;
    return threshold;
}

/* Return 1 if a panel of upper bounds is below the threshold. */
FF_INLINE int all_below(const double *restrict upper, double threshold)
{
    int64_t any_not_below = 0;
    for (int l = 0; l < PANEL; l++)
        any_not_below |= !(upper[l] < threshold);
    return !any_not_below;
}

/* List the indices of those of n upper bounds that are not below the threshold (few). Returns their
 * number. */
FF_INLINE int64_t list_contenders(const double *restrict upper, double threshold, int64_t n,
                                  int64_t *restrict which)
{
    int64_t count = 0, a = 0;
    while (a < n)
        if (a + PANEL <= n && all_below(upper + a, threshold))
            a += PANEL;
        else if (upper[a] < threshold)
            a++;
        else
            which[count++] = a++;
    return count;
}

/* Return the rounding error of an exact score and of the sums here. */
static double rounding_of(const ff_tracked *tracked, const double *restrict theta, double beta,
                          double gamma, int64_t d)
{
    const double score_scale = sqrt(ff_dot(theta, theta, d)) +
                               (beta + 2.0 * gamma * tracked->inverse) * tracked->inverse;
    return 8.0 * unit_of(d) * score_scale * tracked->length;
}

/* Choose the action with the largest score by the tracked scores and their error bounds; return -1
 * if too many actions may be best. */
int64_t ff_tracked_choose(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                          const double *restrict w, const double *restrict theta, double beta,
                          double gamma, int64_t d, double *restrict scratch, double *restrict x)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    /* Exact panels come first in the scratch, see ff_best_of. */
    int64_t *contenders = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    const double rounding = rounding_of(tracked, theta, beta, gamma, d);
    const double threshold = bound_all(p, count, beta, gamma, tracked->mean_error + rounding,
                                       tracked->width_error, tracked->second_error, p.along);
    const int64_t n = list_contenders(p.along, threshold, count, contenders);
    if (n == 0 || n > FEW(count) || !(threshold > -INFINITY && threshold < INFINITY)) {
        tracked->rounds_left = -PAUSE;
        return -1;
    }
    double score;
    const int64_t chosen =
        n == 1 ? contenders[0]
               : ff_best_of(actions, contenders, n, w, theta, beta, gamma, d, scratch, &score);
    ff_features(actions, chosen, d, x);
    return chosen;
}

LIST_PASSING(list_passing, double)

/* Compute the rankings (p.along) and bonuses (p.across) of all actions from the tracked scores.
 * Returns bounds on what passes the sieve; *rank receives the largest ranking. */
static ff_sieve_bounds bound_sieve(parts p, int64_t n, double beta, double gamma,
                                   const ff_sieve *sieve, double mean_error, double width_error,
                                   double second_error, double *restrict rank)
{
    double score[PANEL] FF_ALIGNED, ranking[PANEL] FF_ALIGNED, least[PANEL] FF_ALIGNED,
        least_second[PANEL] FF_ALIGNED;
    for (int l = 0; l < PANEL; l++) {
        score[l] = ranking[l] = -INFINITY;
        least[l] = least_second[l] = INFINITY;
    }
    for (int64_t first = 0; first < n; first += PANEL)
        for (int64_t l = 0; l < PANEL && first + l < n; l++) {
            const int64_t a = first + l;
            const double low = p.width[a] - width_error, low_second = p.second[a] - second_error;
            const double width = sqrt(low > 0.0 ? low : 0.0);
            const double second = sqrt(low_second > 0.0 ? low_second : 0.0);
            const double bonus = beta * width + gamma * second;
            p.across[a] = bonus;
            p.along[a] = p.mean[a] + sieve->ranking * bonus;
            least[l] = width < least[l] ? width : least[l];
            least_second[l] = second < least_second[l] ? second : least_second[l];
            ranking[l] = p.along[a] > ranking[l] ? p.along[a] : ranking[l];
            score[l] = p.mean[a] + bonus > score[l] ? p.mean[a] + bonus : score[l];
        }
    for (int l = 1; l < PANEL; l++) {
        score[0] = score[l] > score[0] ? score[l] : score[0];
        ranking[0] = ranking[l] > ranking[0] ? ranking[l] : ranking[0];
        least[0] = least[l] < least[0] ? least[l] : least[0];
        least_second[0] = least_second[l] < least_second[0] ? least_second[l] : least_second[0];
    }
    *rank = ranking[0];
    /* The roots of q - e and q + e differ by at most e / root(q - e). */
    const double error = mean_error + 1.001 * (beta * width_error / least[0] +
                                               (gamma > 0.0 ? gamma * second_error / least_second[0]
                                                            : 0.0));
    return ff_sieve_bounds_of(sieve, score[0], error);
}

/* Choose by the tracked scores and their error bounds under a sieve; return -1 if too many actions
 * may be best. */
int64_t ff_tracked_choose_sieved(ff_tracked *tracked, double *restrict values,
                                 const ff_actions *actions, const double *restrict w,
                                 const double *restrict theta, double beta, double gamma,
                                 const ff_sieve *sieve, int64_t d, double *restrict scratch,
                                 double *restrict x)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    int64_t *candidates = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    const double rounding = rounding_of(tracked, theta, beta, gamma, d);
    double rank;
    const ff_sieve_bounds bounds =
        bound_sieve(p, count, beta, gamma, sieve, tracked->mean_error + rounding,
                    tracked->width_error, tracked->second_error, &rank);
    ff_sieved sieved = {0, 0, 1, 0};
    if (!(bounds.rank_error < INFINITY)) {
        tracked->rounds_left = -PAUSE;
        return -1;
    }
    sieved.count = list_contenders(p.along, rank - 2.0 * bounds.rank_error, count, candidates);
    for (int64_t i = 0; i < sieved.count; i++) {
        const int64_t a = candidates[i];
        sieved.certain &= p.along[a] + bounds.factor * p.across[a] >= bounds.certain;
    }
    if (!sieved.certain)
        sieved = list_passing(p.along, p.across, count, &bounds, candidates);
    if (sieved.count > FEW(count) || sieved.largest > FEW(count)) {
        tracked->rounds_left = -PAUSE;
        return -1;
    }
    return ff_best_sieved(actions, sieved, candidates, w, theta, beta, gamma, sieve, d, scratch,
                          x);
}

/* Compute <x_a, v> of all actions into along and, if u is not NULL, <x_a, u> into across. */
static void products(const float *restrict x, int64_t stride, int64_t n,
                     const double *restrict v, const double *restrict u, int64_t d,
                     double *restrict along, double *restrict across)
{
    for (int64_t a = 0; a < n; a++)
        along[a] = across[a] = 0.0;
    int64_t j = 0;
    /* Four features at a time: one pass over `along` and `across` for all four. */
    for (; u && j + 4 <= d; j += 4) {
        const float *restrict row = x + j * stride;
        for (int64_t a = 0; a < n; a++) {
            const double p = (double)row[a], q = (double)row[stride + a];
            const double r = (double)row[2 * stride + a], t = (double)row[3 * stride + a];
            along[a] += (v[j] * p + v[j + 1] * q) + (v[j + 2] * r + v[j + 3] * t);
            across[a] += (u[j] * p + u[j + 1] * q) + (u[j + 2] * r + u[j + 3] * t);
        }
    }
    for (; !u && j + 4 <= d; j += 4) {
        const float *restrict row = x + j * stride;
        for (int64_t a = 0; a < n; a++)
            along[a] += (v[j] * (double)row[a] + v[j + 1] * (double)row[stride + a]) +
                        (v[j + 2] * (double)row[2 * stride + a] +
                         v[j + 3] * (double)row[3 * stride + a]);
    }
    for (; j < d; j++) {
        const float *restrict row = x + j * stride;
        for (int64_t a = 0; a < n; a++) {
            along[a] += v[j] * (double)row[a];
            across[a] += u ? u[j] * (double)row[a] : 0.0;
        }
    }
}

/* Update means, ||W x||^2 and (if has_second) ||V^{-1} x||^2 of n actions by the formulas below. */
static void update_all(parts p, int64_t n, double e, double s, double square, int has_second)
{
    for (int64_t a = 0; a < n; a++) {
        const double c_over_s = p.along[a] / s;
        p.mean[a] += e * p.along[a];
        p.width[a] -= p.along[a] * c_over_s;
        p.across[a] = c_over_s * (c_over_s * square - 2.0 * p.across[a]);
    }
    for (int64_t a = 0; has_second && a < n; a++)
        p.second[a] += p.across[a];
}

/* Claim: let z^ be W x as rounded, s = 1 + ||z^||^2 and v = W'z^. A data point subtracts v v' / s
 * from V^{-1} = W'W and adds e v to theta, e = (y - <x, theta>) / s. With c = <x_a, v> and
 * u = V^{-1} v for the previous V,
 *   <x_a, theta> grows by e c,
 *   ||W x_a||^2 by -c^2 / s,
 *   ||V^{-1} x_a||^2 by -2 (c / s) <x_a, u> + (c / s)^2 ||v||^2.
 * u is computed with the new W: the new V^{-1} v, plus v ||v||^2 / s.
 *
 * Rounding. Let n = (d + 8) 2^-53. Let L, I, B and C bound all ||x_a||, ||W||_F, ||V^{-1} x_a|| and
 * ||W x_a||, and r^2 = s - 1. So ||v|| <= I r, |c| <= r C and |<x_a, u>| <= ||v|| B.
 * - The W that is scored differs from the one above by at most D = 8 n I (1 + r^2) in norm, and
 *   theta by 4 n (||theta|| + |e| ||v||) (ff_candidates.c). The squares differ by 2 C D L and 4.02
 *   B I D L.
 * - v is accurate to n I r, so c to 2 n L I r. u, computed with a W that is off by D, is accurate
 *   to n (2 I^2 ||v|| + I^3 r) + 2.01 I D ||v||, so <x_a, u> to 24 n L I^3 r (1 + r^2).
 * - e is accurate to 2 n (|e| + ||theta|| L).
 * So the error grows in a round by at most: for means 4 n L (|e| (||v|| + I r) + ||theta|| (1 + r
 * C)), for ||W x_a||^2 (2 C D L + 4 r C n L I r / s + 4 n C^2 r^2 / s), and for ||V^{-1} x_a||^2
 * (4.02 B I D L + (48 r^2 C n L I^3 (1 + r^2) + 4 ||v|| B n L I r + 8 n r C ||v|| B) / s). Twice
 * these bounds also covers terms of second order in n, and rounding of the bounds. */
void ff_tracked_observe(ff_tracked *tracked, double *restrict values, const ff_actions *actions,
                        const double *restrict w, const double *restrict v, double prediction,
                        double theta_norm, double y, double s, double gamma, int64_t d,
                        double *restrict scratch)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    const double n = unit_of(d), squared = s - 1.0 + 2.0 * n, r = sqrt(squared);
    const double v_square = ff_dot(v, v, d);
    if (!(squared < LARGEST_WIDTH_SQUARE) || !(prediction < INFINITY && prediction > -INFINITY)) {
        tracked->x = NULL;
        return;
    }
    const int has_second = gamma != 0.0;
    double *restrict u = NULL;
    if (has_second) {
        u = scratch + d;
        ff_whiten_back(w, v, d, scratch, u);
        for (int64_t j = 0; j < d; j++)
            u[j] += v[j] * (v_square / s);
    }
    products((const float *)actions->x, actions->feature_stride, count, v, u, d, p.along, p.across);
    const double e = (y - prediction) / s;
    update_all(p, count, e, s, v_square, has_second);
    const double L = tracked->length, I = tracked->inverse, B = tracked->second, C = tracked->width;
    const double length = sqrt(v_square), D = 8.0 * n * I * (1.0 + squared);
    tracked->mean_error += 8.0 * n * L * (fabs(e) * (length + I * r) + theta_norm * (1.0 + r * C));
    tracked->width_error += 2.0 * (2.0 * C * D * L + 4.0 * n * C * squared / s * (L * I + C));
    tracked->second_error +=
        2.0 * (4.02 * B * I * D * L + (48.0 * squared * C * n * L * I * I * I * (1.0 + squared) +
                                       4.0 * n * length * B * r * (L * I + 2.0 * C)) /
                                          s);
    /* ||V^{-1} x_a|| may grow, by at most ||v|| |c| / s. */
    tracked->second += 1.001 * length * r * C / s;
    tracked->rounds_left--;
}
