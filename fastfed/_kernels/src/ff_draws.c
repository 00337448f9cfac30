#include "ff_draws.h"

#include <math.h>

/* Attempts reserved for one gamma variable. An attempt fails with probability below 0.05. */
enum { ATTEMPTS = 256 };

/* Return a uniform number in (0, 1], of 53 bits: draw i of a key, as fastfed.counter_rng draws
 * it. */
static double uniform(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

/* Return a standard normal (Box-Muller), from draws 2 i and 2 i + 1 of a key. */
static double normal(uint64_t key, uint64_t i)
{
    const double radius = sqrt(-2.0 * log(uniform(key, 2 * i)));
    return radius * cos(6.283185307179586 * uniform(key, 2 * i + 1));
}

/* Return a gamma variable of a shape >= 1 and scale 1 (Marsaglia and Tsang 2000). `attempt` is the
 * number of the first attempt. Attempt i uses draws 4 i to 4 i + 2 of the key. */
static double gamma_draw(uint64_t key, uint64_t attempt, double shape)
{
    const double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;; attempt++) {
        const double z = normal(key, 2 * attempt), u = uniform(key, 4 * attempt + 2);
        double v = 1.0 + c * z;
        if (v <= 0.0)
            continue;
        v = v * v * v;
        if (log(u) < 0.5 * z * z + d - d * v + d * log(v))
            return d * v;
    }
}

/* scores[a] <- a draw from the Beta posterior of the mean of arm a. w[a] is the root of entry a of
 * V^-1, and theta[a] the estimate. With a regularizer of 1, an arm with n rewards of sum s has
 * 1 / w[a]^2 = 1 + n and theta[a] = s / (1 + n). The draw g / (g + h) of Beta(1 + s, 1 + n - s) is
 * made of gamma variables g and h of these two shapes. */
int64_t ff_beta_draws(void *state, uint64_t key, int64_t round, int64_t actions, int64_t dimension,
                      double *x, double *w, double *theta, double beta, double gamma,
                      double *scores)
{
    (void)state, (void)round, (void)dimension, (void)x, (void)beta, (void)gamma;
    for (int64_t a = 0; a < actions; a++) {
        /* v = 1 + n and wins = s. */
        const double v = 1.0 / (w[a] * w[a]), wins = fmax(theta[a] * v, 0.0);
        const uint64_t first = 2 * (uint64_t)a * ATTEMPTS;
        const double g = gamma_draw(key, first, 1.0 + wins);
        const double h = gamma_draw(key, first + ATTEMPTS, 1.0 + fmax(v - 1.0 - wins, 0.0));
        scores[a] = g / (g + h);
    }
    return actions;
}

/* scores[a] <- a normal draw with the estimate theta[a] as mean, and the bonus of arm a as standard
 * deviation: beta w[a] + gamma w[a]^2, where w[a] is the root of entry a of V^-1. */
int64_t ff_normal_draws(void *state, uint64_t key, int64_t round, int64_t actions,
                        int64_t dimension, double *x, double *w, double *theta, double beta,
                        double gamma, double *scores)
{
    (void)state, (void)round, (void)dimension, (void)x;
    for (int64_t a = 0; a < actions; a++)
        scores[a] = theta[a] + (beta * w[a] + gamma * w[a] * w[a]) * normal(key, (uint64_t)a);
    return actions;
}
