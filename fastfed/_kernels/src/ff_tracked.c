#include "ff_tracked.h"

#include <math.h>

#include "ff_linalg.h"
#include "ff_panel.h"

/* Rounds after which all are made anew. */
#define LIFETIME 512
/* Rounds without, after too many actions were left to tell apart. */
#define PAUSE 32
/* So many are scored exactly. */
#define FEW(actions) (8 + (actions) / 8)
/* Beyond this ||W x||^2 rounding is not followed any more. */
#define STEEPEST 1e6

/* The arrays by action: means, squared widths, squares of the second bonus, products. */
typedef struct {
    double *restrict mean, *restrict width, *restrict second, *restrict along, *restrict across;
} parts;

FF_INLINE parts cut(double *values, int64_t n)
{
    return (parts){values, values + n, values + 2 * n, values + 3 * n, values + 4 * n};
}

/* (d + 8) u. */
FF_INLINE double unit_of(int64_t d) { return (double)(d + 8) * 0x1p-53; }

/* Rows of W whose products with a panel are summed at once, and columns of it: alone, each sum would
 * wait for its last addition. */
#define AT_ONCE 4

/* Rows i.. of z = W x of a panel, whose squares are added to width; zeros past the diagonal of W count
 * for nothing. */
FF_INLINE void whiten_panel(const double *restrict w, const double *restrict panel, int64_t d,
                           int64_t i, const int rows, double *restrict z, double *restrict width)
{
    double sum[AT_ONCE][PANEL] FF_ALIGNED = {{0}};
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

/* The squares of entries j.. of W'z are added to second. */
FF_INLINE void square_columns(const double *restrict w, const double *restrict z, int64_t d,
                              int64_t j, const int columns, double *restrict second)
{
    double sum[AT_ONCE][PANEL] FF_ALIGNED = {{0}};
    for (int64_t i = j; i < d; i++)
        for (int c = 0; c < columns; c++)
            for (int a = 0; a < PANEL; a++)
                sum[c][a] += w[i * d + j + c] * z[i * PANEL + a];
    for (int c = 0; c < columns; c++)
        for (int a = 0; a < PANEL; a++)
            second[a] += sum[c][a] * sum[c][a];
}

/* Eight actions at a time, side by side; zeros past the last one. */
static void make_all(const ff_actions *actions, const double *restrict w,
                     const double *restrict theta, int twice, int64_t d,
                     double *restrict panel, parts p, double *restrict longest)
{
    const float *x = (const float *)actions->x;
    const int64_t count = actions->actions, stride = actions->feature_stride;
    double *restrict z = panel + PANEL * d;
    for (int64_t first = 0; first < count; first += PANEL) {
        const int64_t n = count - first < PANEL ? count - first : PANEL;
        double mean[PANEL] = {0}, length[PANEL] = {0}, width[PANEL] = {0}, second[PANEL] = {0};
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
        for (; i + AT_ONCE <= d; i += AT_ONCE)
            whiten_panel(w, panel, d, i, AT_ONCE, z, width);
        for (; i < d; i++)
            whiten_panel(w, panel, d, i, 1, z, width);
        for (; twice && j + AT_ONCE <= d; j += AT_ONCE)
            square_columns(w, z, d, j, AT_ONCE, second);
        for (; twice && j < d; j++)
            square_columns(w, z, d, j, 1, second);
        for (int64_t a = 0; a < n; a++) {
            p.mean[first + a] = mean[a];
            p.width[first + a] = width[a];
            p.second[first + a] = second[a];
            *longest = length[a] > *longest ? length[a] : *longest;
        }
    }
}

void ff_tracked_make(ff_tracked *k, double *restrict values, const ff_actions *actions,
                     const double *restrict w, const double *restrict theta, double gamma,
                     int64_t released, int64_t d, double *restrict scratch)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    const double size = ff_dot(theta, theta, d), total = ff_dot(w, w, d * d);
    double longest = 0.0, width = 0.0, second = 0.0;
    make_all(actions, w, theta, gamma != 0.0, d, aligned(scratch), p, &longest);
    for (int64_t a = 0; a < count; a++) {
        width = p.width[a] > width ? p.width[a] : width;
        second = p.second[a] > second ? p.second[a] : second;
    }
    const double u = unit_of(d);
    k->x = actions->x;
    k->released = released;
    k->left = LIFETIME;
    k->length = 1.001 * sqrt(longest);
    /* `inverse` grows by rounding alone, in LIFETIME rounds by far less than a thousandth. */
    k->inverse = 1.001 * sqrt(total);
    k->width = 1.001 * sqrt(width) + 2.0 * u * k->inverse * k->length;
    k->second = 1.001 * sqrt(second) + 4.0 * u * k->inverse * k->inverse * k->length;
    k->mean_error = u * sqrt(size) * k->length;
    k->width_error = 4.0 * u * k->width * k->inverse * k->length;
    k->second_error = 8.0 * u * k->second * k->inverse * k->inverse * k->length;
}

/* `factor` times the roots of squares that are off by `error`: at least that into `low`, at most into
 * `high`. The roots of q - e and q + e are at most e / root(q - e) apart, so one root for each is enough. */
FF_INLINE void add_bonus(const double *restrict square, int64_t n, double factor, double error,
                         double *restrict low, double *restrict high)
{
    /* The bits of numbers that are not negative have their order; of whole numbers compilers find the
     * least side by side. */
    int64_t least_bits = INT64_MAX;
    for (int64_t a = 0; a < n; a++) {
        const double below = square[a] - error;
        const double root = sqrt(below > 0.0 ? below : 0.0);
        int64_t bits;
        memcpy(&bits, &root, sizeof bits);
        least_bits = bits < least_bits ? bits : least_bits;
        low[a] += factor * root;
        high[a] += factor * root;
    }
    double least;
    memcpy(&least, &least_bits, sizeof least);
    const double apart = 1.001 * factor * error / least;
    if (apart < INFINITY)
        for (int64_t a = 0; a < n; a++)
            high[a] += apart;
    else
        for (int64_t a = 0; a < n; a++) {
            const double below = square[a] - error;
            high[a] += factor * (sqrt(square[a] + error) - sqrt(below > 0.0 ? below : 0.0));
        }
}

/* The largest number that all scores but an action's own are not needed for: bounds from below, and
 * each from above into `upper`. */
static double bound_all(parts p, int64_t n, double beta, double gamma, double mean_error,
                        double width_error, double second_error, double *restrict upper)
{
    double floor = -INFINITY;
    for (int64_t a = 0; a < n; a++) {
        p.across[a] = 0.0;
        upper[a] = p.mean[a] + mean_error;
    }
    if (gamma != 0.0)
        add_bonus(p.second, n, gamma, second_error, p.across, upper);
    add_bonus(p.width, n, beta, width_error, p.across, upper);
    /* Side by side, for one after the other each comparison waits for the last. */
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
        floor = low > floor ? low : floor;
    }
    for (int l = 0; l < PANEL; l++)
        floor = top[l] > floor ? top[l] : floor;
    return floor;
}

/* Whether a panel of them is below the floor. */
FF_INLINE int all_below(const double *restrict upper, double floor)
{
    int64_t other = 0;
    for (int l = 0; l < PANEL; l++)
        other |= !(upper[l] < floor);
    return !other;
}

/* Which of n are not below the floor, and how many: few are. */
FF_INLINE int64_t not_below(const double *restrict upper, double floor, int64_t n,
                            int64_t *restrict which)
{
    int64_t found = 0, a = 0;
    while (a < n)
        if (a + PANEL <= n && all_below(upper + a, floor))
            a += PANEL;
        else if (upper[a] < floor)
            a++;
        else
            which[found++] = a++;
    return found;
}

int64_t ff_tracked_choose(ff_tracked *k, double *restrict values, const ff_actions *actions,
                          const double *restrict w, const double *restrict theta, double beta,
                          double gamma, int64_t d, double *restrict scratch, double *restrict x)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    /* Exact panels come first, see ff_best_of. */
    int64_t *which = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    const double size = ff_dot(theta, theta, d);
    /* The exact score's own rounding, and that of the sums here. */
    const double most = sqrt(size) + (beta + 2.0 * gamma * k->inverse) * k->inverse;
    const double rounding = 8.0 * unit_of(d) * most * k->length;
    const double floor = bound_all(p, count, beta, gamma, k->mean_error + rounding, k->width_error,
                                   k->second_error, p.along);
    const int64_t n = not_below(p.along, floor, count, which);
    if (n == 0 || n > FEW(count) || !(floor > -INFINITY && floor < INFINITY)) {
        k->left = -PAUSE;
        return -1;
    }
    double score;
    const int64_t chosen =
        n == 1 ? which[0]
               : ff_best_of(actions, which, n, w, theta, beta, gamma, d, scratch, &score);
    ff_features(actions, chosen, d, x);
    return chosen;
}

/* <x_a, v> of all actions into along, and <x_a, u> into across where u is not NULL. */
static void products(const float *restrict x, int64_t stride, int64_t n,
                     const double *restrict v, const double *restrict u, int64_t d,
                     double *restrict along, double *restrict across)
{
    for (int64_t a = 0; a < n; a++)
        along[a] = across[a] = 0.0;
    int64_t j = 0;
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

static void move_all(parts p, int64_t n, double e, double s, double square, int twice)
{
    for (int64_t a = 0; a < n; a++) {
        const double share = p.along[a] / s;
        p.mean[a] += e * p.along[a];
        p.width[a] -= p.along[a] * share;
        p.across[a] = share * (share * square - 2.0 * p.across[a]);
    }
    for (int64_t a = 0; twice && a < n; a++)
        p.second[a] += p.across[a];
}

/* With the z^ that W x was rounded to, s = 1 + ||z^||^2 and v = W'z^, a data point takes v v' / s
 * from V^{-1} = W'W and moves theta by e v, e = (y - <x, theta>) / s. With c = <x_a, v> and
 * u = V^{-1} v of the V before,
 *     <x_a, theta> grows by e c,
 *     ||W x_a||^2 by -c^2 / s,
 *     ||V^{-1} x_a||^2 by -2 (c / s) <x_a, u> + (c / s)^2 ||v||^2.
 * u is taken of the W after: V^{-1} v of then, and v ||v||^2 / s more.
 *
 * Rounding. Let n = (d + 8) 2^-53, L, I, B and C bound all ||x_a||, ||W||_F, ||V^{-1} x_a|| and
 * ||W x_a||, and r^2 = s - 1; so ||v|| <= I r, |c| <= r C and |<x_a, u>| <= ||v|| B.
 * - The W that is scored is off from the one above by at most D = 8 n I (1 + r^2) in norm, and theta
 *   by 4 n (||theta|| + |e| ||v||) (ff_candidates.c): squares by 2 C D L and 4.02 B I D L.
 * - v is good to n I r, so c to 2 n L I r; u, of a W that is off by D, to
 *   n (2 I^2 ||v|| + I^3 r) + 2.01 I D ||v||, so <x_a, u> to 24 n L I^3 r (1 + r^2).
 * - e is good to 2 n (|e| + ||theta|| L).
 * So a round adds at most what is added here: to means 4 n L (|e| (||v|| + I r) + ||theta|| (1 +
 * r C)), to ||W x_a||^2 (2 C D L + 4 r C n L I r / s + 4 n C^2 r^2 / s), to the other square (4.02 B
 * I D L + (48 r^2 C n L I^3 (1 + r^2) + 4 ||v|| B n L I r + 8 n r C ||v|| B) / s). Twice that pays
 * for what is of the order of n times itself, and for rounding here. */
void ff_tracked_observe(ff_tracked *k, double *restrict values, const ff_actions *actions,
                        const double *restrict w, const double *restrict v, double prediction,
                        double theta_norm, double y, double s, double gamma, int64_t d,
                        double *restrict scratch)
{
    const int64_t count = actions->actions;
    const parts p = cut(values, count);
    const double n = unit_of(d), squared = s - 1.0 + 2.0 * n, r = sqrt(squared);
    const double own = ff_dot(v, v, d);
    if (!(squared < STEEPEST) || !(prediction < INFINITY && prediction > -INFINITY)) {
        k->x = NULL;
        return;
    }
    const int twice = gamma != 0.0;
    double *restrict u = NULL;
    if (twice) {
        u = scratch + d;
        ff_whiten_back(w, v, d, scratch, u);
        for (int64_t j = 0; j < d; j++)
            u[j] += v[j] * (own / s);
    }
    products((const float *)actions->x, actions->feature_stride, count, v, u, d, p.along, p.across);
    const double e = (y - prediction) / s;
    move_all(p, count, e, s, own, twice);
    const double L = k->length, I = k->inverse, B = k->second, C = k->width;
    const double length = sqrt(own), D = 8.0 * n * I * (1.0 + squared);
    k->mean_error +=
        8.0 * n * L * (fabs(e) * (length + I * r) + theta_norm * (1.0 + r * C));
    k->width_error +=
        2.0 * (2.0 * C * D * L + 4.0 * n * C * squared / s * (L * I + C));
    k->second_error += 2.0 * (4.02 * B * I * D * L +
                              (48.0 * squared * C * n * L * I * I * I * (1.0 + squared) +
                               4.0 * n * length * B * r * (L * I + 2.0 * C)) / s);
    /* ||V^{-1} x|| may grow, by at most ||v|| |c| / s. */
    k->second += 1.001 * length * r * C / s;
    k->left--;
}
