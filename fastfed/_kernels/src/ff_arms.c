#include "ff_arms.h"

#include <math.h>

/* Return the index of the entry of x that is not 0. */
FF_INLINE int64_t arm_of(const double *restrict x, int64_t d)
{
    int64_t a = 0;
    while (a < d - 1 && x[a] == 0.0)
        a++;
    return a;
}

/* Add the data point (x, y), x a multiple of a unit vector, to the packed gram and to bias (d). */
void ff_arms_accumulate(double *restrict gram, double *restrict bias, const double *restrict x,
                        double y, int64_t d)
{
    const int64_t a = arm_of(x, d);
    gram[a * (a + 1) / 2 + a] += x[a] * x[a];
    bias[a] += x[a] * y;
}

/* Update the diagonal of W (d, d) and theta (d) by the data point (x, y), x a multiple of a unit
 * vector. Returns 1 + ||x||^2_{V^-1} for the old V. */
double ff_arms_observe(double *restrict w, double *restrict theta, const double *restrict x,
                       double y, int64_t d)
{
    const int64_t a = arm_of(x, d);
    double *root = w + a * d + a;
    const double width = *root * *root, s = 1.0 + x[a] * x[a] * width;
    theta[a] += x[a] * width / s * (y - x[a] * theta[a]);
    *root /= sqrt(s);
    return s;
}

/* Return the number of doubles of scratch that ff_arms_scored needs. */
int64_t ff_arms_scratch(int64_t d) { return 4 * d; }

/* Among the arms that pass the sieve, return the one with the largest score, and write its unit
 * vector to x (d). `score` is a function that computes scores, such as those of ff_draws.h. Returns
 * -1 if the function fails. w (d, d) is diagonal and holds the roots of the entries of V^-1; theta
 * (d): estimates. With U = estimate + bonus, an arm passes if its estimate + (2 slack - 1) bonus
 * (`reached`) is at least min(limit of the sieve, largest U). If sieve is NULL, every arm
 * passes. */
int64_t ff_arms_scored(ff_score score, uint64_t key, int64_t round, const double *restrict w,
                       const double *restrict theta, double beta, double gamma,
                       const ff_sieve *sieve, int64_t d, double *restrict scratch,
                       double *restrict x)
{
    double *scores = scratch, *roots = scratch + d, *estimates = scratch + 2 * d,
           *reached = scratch + 3 * d;
    double largest_u = -INFINITY;
    const double sieve_factor = sieve ? 2.0 * sieve->slack - 1.0 : 0.0;
    const double ranking = sieve ? sieve->ranking : 1.0;
    for (int64_t a = 0; a < d; a++) {
        const double root = w[a * d + a], bonus = beta * root + gamma * (root * root);
        scores[a] = 0.0;
        roots[a] = root;
        estimates[a] = theta[a];
        reached[a] = theta[a] + sieve_factor * bonus;
        largest_u = theta[a] + bonus > largest_u ? theta[a] + bonus : largest_u;
    }
    if (score(NULL, key, round, d, d, NULL, roots, estimates, ranking * beta, ranking * gamma,
              scores) != d)
        return -1;
    const double threshold = sieve && sieve->limit < largest_u ? sieve->limit : largest_u;
    int64_t chosen = -1;
    for (int64_t a = 0; a < d; a++) {
        if (!isfinite(scores[a]))
            return -1;
        if ((!sieve || reached[a] >= threshold) && (chosen < 0 || scores[a] > scores[chosen]))
            chosen = a;
    }
    memset(x, 0, (size_t)d * sizeof(double));
    if (chosen >= 0)
        x[chosen] = 1.0;
    return chosen;
}
