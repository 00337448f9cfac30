#include "ff_environment.h"

#include <math.h>

#include "ff_random.h"

int64_t ff_fill_capacity(int64_t actions, int64_t dimension)
{
    return ff_normal_capacity_f32(actions * (dimension + 1)) + 64;
}

/* A sum that is not finite tells of NaN or infinity among what a user's function wrote. */
typedef struct {
    double least, most, sum;
} extent;

/* In eight lanes: one chain of comparisons would wait for its own latency. */
FF_CLONES
static extent extent_of(const double *restrict mean, int64_t k)
{
    double least[8] FF_ALIGNED, most[8] FF_ALIGNED, sum[8] FF_ALIGNED = {0};
    for (int l = 0; l < 8; l++)
        least[l] = most[l] = mean[0];
    for (int64_t a = 0; a < k; a += 8) {
        double next[8] FF_ALIGNED;
        for (int l = 0; l < 8; l++)
            next[l] = a + 8 <= k || a + l < k ? mean[a + l] : mean[0];
        for (int l = 0; l < 8; l++) {
            least[l] = next[l] < least[l] ? next[l] : least[l];
            most[l] = next[l] > most[l] ? next[l] : most[l];
            sum[l] += next[l];
        }
    }
    extent seen = {least[0], most[0], sum[0]};
    for (int l = 1; l < 8; l++) {
        seen.least = least[l] < seen.least ? least[l] : seen.least;
        seen.most = most[l] > seen.most ? most[l] : seen.most;
        seen.sum += sum[l];
    }
    return seen;
}

/* The largest mean where those told are inexact: the exact ones of all that it may be. */
FF_CLONES
static double best_of(const ff_environment *env, const ff_actions *actions)
{
    const double *mean = actions->mean;
    const double least = extent_of(mean, actions->actions).most - 2.0 * env->mean_error;
    double best = -INFINITY;
    for (int64_t first = 0; first < actions->actions; first += 8) {
        const int64_t n = actions->actions - first < 8 ? actions->actions - first : 8;
        int any = 0;
        for (int64_t a = 0; a < n; a++)
            any |= mean[first + a] >= least;
        for (int64_t a = first; any && a < first + n; a++) {
            const double exact = mean[a] >= least ? ff_mean_of(env, actions, a) : best;
            best = exact > best ? exact : best;
        }
    }
    return best;
}

int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, void *x, double *mean, ff_actions *out)
{
    if (env->borrow)
        return env->borrow(env->state, seed, replicate, silo, round, out);
    const int64_t k = env->fill(env->state, seed, replicate, silo, round, x, mean);
    if (k < 0)
        return k;
    if (k == 0 || k > env->actions)
        return FF_NO_ACTIONS;
    out->x = x;
    out->is_double = env->is_double;
    out->action_stride = env->feature_major ? 1 : env->dimension;
    out->feature_stride = env->feature_major ? env->actions : 1;
    out->actions = k;
    out->mean = mean;
    out->shorts = NULL;
    if (env->mean) {
        out->best = best_of(env, out);
        return FF_OK;
    }
    const extent seen = extent_of(mean, k);
    out->best = seen.most;
    if (!isfinite(seen.sum))
        return FF_NOT_FINITE;
    const double rounding = 1e-6;
    if (env->reward_law == FF_REWARD_BERNOULLI &&
        (seen.least < -rounding || seen.most > 1.0 + rounding))
        return FF_NOT_FINITE;
    return FF_OK;
}

double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                    int64_t round, double mean)
{
    if (env->reward_law == FF_REWARD_NONE)
        return mean;
    const ff_stream s = ff_stream_open(seed, FF_REWARD, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    if (env->reward_law == FF_REWARD_BERNOULLI)
        return ff_uniform(&s, 0) < mean ? 1.0 : 0.0;
    return mean + env->reward_std * ff_normal(&s);
}

/* So many actions at a time, then fewer: a number known to the compiler keeps sums in registers. */
#define STRIP 32
#define IN_STRIPS(k, strip, state, ...)                                                        \
    {                                                                                          \
        int64_t first = 0;                                                                     \
        for (; first + 32 <= (k); first += 32)                                                 \
            strip(state, 32, first, __VA_ARGS__);                                              \
        for (; first + 8 <= (k); first += 8)                                                   \
            strip(state, 8, first, __VA_ARGS__);                                               \
        for (; first + 4 <= (k); first += 4)                                                   \
            strip(state, 4, first, __VA_ARGS__);                                               \
        for (; first < (k); first++)                                                           \
            strip(state, 1, first, __VA_ARGS__);                                               \
    }

/* ---- sphere ---------------------------------------------------------------------------------- */

/* The squared lengths of the normals of n <= STRIP actions, where their last feature will stand. */
FF_INLINE void sphere_squares(const ff_sphere *sphere, int64_t n, int64_t first, float *restrict x)
{
    const int64_t k = sphere->actions, free = sphere->dimension - 1;
    float square[STRIP] FF_ALIGNED = {0};
    for (int64_t j = 0; j < free; j++)
        for (int64_t a = 0; a < n; a++)
            square[a] += x[j * k + first + a] * x[j * k + first + a];
    for (int64_t a = 0; a < n; a++)
        x[free * k + first + a] = square[a];
}

/* Turns these normals into features, by the scales that stand there now, and fills in the means. */
FF_INLINE void sphere_features(const ff_sphere *sphere, int64_t n, int64_t first,
                               float *restrict x, double *restrict mean)
{
    const int64_t d = sphere->dimension, k = sphere->actions, free = d - 1;
    const float root_half = 0.70710678f;
    float scale[STRIP] FF_ALIGNED, product[STRIP] FF_ALIGNED = {0};
    for (int64_t a = 0; a < n; a++)
        scale[a] = x[free * k + first + a];
    for (int64_t j = 0; j < free; j++)
        for (int64_t a = 0; a < n; a++)
            x[j * k + first + a] *= scale[a];
    for (int64_t a = 0; a < n; a++)
        x[free * k + first + a] = root_half;
    /* The published code's fixed actions: (e_j, 1) / sqrt 2 for j < d, then (0, 1). */
    for (int64_t a = first; a < first + n && a < sphere->basis_actions; a++)
        for (int64_t j = 0; j < d; j++)
            x[j * k + a] = a < free ? (j == a || j == free ? root_half : 0.0f)
                                    : (j == free ? 1.0f : 0.0f);
    for (int64_t j = 0; j < d; j++) {
        const float t = (float)sphere->theta[j];
        for (int64_t a = 0; a < n; a++)
            product[a] += t * x[j * k + first + a];
    }
    for (int64_t a = 0; a < n; a++)
        mean[first + a] = (double)product[a];
}

/* <x_a, theta> of K actions, feature-major. */
FF_INLINE double mean_of(const double *restrict theta, const float *restrict x, int64_t k,
                         int64_t d, int64_t a)
{
    double product = 0.0;
    for (int64_t j = 0; j < d; j++)
        product += theta[j] * (double)x[j * k + a];
    return product;
}

double ff_mean_error(int64_t d) { return 8.0 * (double)(d + 8) * 0x1p-24; }

double ff_sphere_mean(const void *state, const void *x, int64_t a)
{
    const ff_sphere *sphere = (const ff_sphere *)state;
    return mean_of(sphere->theta, (const float *)x, sphere->actions, sphere->dimension, a);
}

/* x = (u / sqrt 2, 1 / sqrt 2), u uniform on the (d - 1)-sphere, fresh for every (round, silo).
 * Feature-major, so that every step below runs along the actions. */
FF_CLONES
int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, void *restrict buffer, double *restrict mean)
{
    const ff_sphere *sphere = (const ff_sphere *)state;
    const int64_t k = sphere->actions, free = sphere->dimension - 1;
    float *restrict x = (float *)buffer;
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, sphere->shared ? 0u : (uint32_t)replicate,
                                       (uint32_t)silo, (uint32_t)round);
    if (free > 0)
        ff_normals_f32(&s, k * free, x);
    IN_STRIPS(k, sphere_squares, sphere, x)
    /* All roots at once, and whole vectors of them: in short strips gcc takes them one by one. The
     * buffer goes on, see ff_fill_capacity. */
    float *restrict scale = x + free * k;
    for (int64_t a = 0; a < ((k + 15) & ~(int64_t)15); a++)
        scale[a] = 0.70710678f / sqrtf(scale[a] + 1e-30f);
    IN_STRIPS(k, sphere_features, sphere, x, mean)
    return k;
}

/* ---- gap --------------------------------------------------------------------------------------- */

/* m of every action into `mean`; `words` is room for the generator. Streams of these purposes
 * have index 0 where an instance or an order is drawn, and rounds begin with 1: they never meet. */
FF_INLINE void gap_targets(const ff_gap *gap, uint64_t seed, uint32_t replicate, uint32_t silo,
                           uint32_t round, uint32_t *restrict words, double *restrict mean)
{
    const int64_t k = gap->actions;
    const ff_stream uniforms = ff_stream_open(seed, FF_INSTANCE, replicate, silo, round);
    const ff_stream position = ff_stream_open(seed, FF_PERMUTATION, replicate, silo, round);
    const double unit = gap->width * 4.656612873077393e-10; /* 2^-31 */
    const double low = gap->inferior;
    ff_words(&uniforms, k, words);
    for (int64_t a = 0; a < k; a++)
        mean[a] = low + unit * ((double)(int32_t)(words[a] >> 1) + 0.5);
    const int64_t best = ff_below(&position, k);
    mean[best] = gap->best + unit * ((double)(int32_t)(words[best] >> 1) + 0.5);
}

/* Scales action a until its float32 features have norm <= 1. */
static void gap_inside(const ff_gap *gap, float *x, int64_t a)
{
    for (;;) {
        double square = 0.0;
        for (int64_t j = 0; j < gap->dimension; j++) {
            const double v = x[j * gap->actions + a];
            square += v * v;
        }
        if (square <= 1.0)
            return;
        for (int64_t j = 0; j < gap->dimension; j++)
            x[j * gap->actions + a] *= 0.9999998f;
    }
}

/* The squared lengths of the normals of n <= STRIP actions, h included, where h stands. */
FF_INLINE void gap_squares(const ff_gap *gap, int64_t n, int64_t first, float *restrict x)
{
    const int64_t d = gap->dimension, k = gap->actions;
    float square[STRIP] FF_ALIGNED = {0};
    for (int64_t j = 0; j <= d; j++)
        for (int64_t a = 0; a < n; a++)
            square[a] += x[j * k + first + a] * x[j * k + first + a];
    for (int64_t a = 0; a < n; a++)
        x[d * k + first + a] = square[a];
}

/* Turns these normals into features, by the scales that stand there now. */
FF_INLINE void gap_features(const ff_gap *gap, int64_t n, int64_t first, float *restrict x,
                            const double *restrict mean)
{
    const int64_t d = gap->dimension, k = gap->actions;
    const double *restrict theta = gap->theta;
    float scale[STRIP] FF_ALIGNED, along[STRIP] FF_ALIGNED = {0}, square[STRIP] FF_ALIGNED = {0};
    for (int64_t j = 0; j < d; j++) {
        const float t = (float)theta[j];
        for (int64_t a = 0; a < n; a++)
            along[a] += x[j * k + first + a] * t;
    }
    for (int64_t a = 0; a < n; a++) {
        scale[a] = x[d * k + first + a];
        along[a] = (float)mean[first + a] - scale[a] * along[a];
    }
    for (int64_t j = 0; j < d; j++) {
        const float t = (float)theta[j];
        for (int64_t a = 0; a < n; a++) {
            const float v = scale[a] * x[j * k + first + a] + along[a] * t;
            x[j * k + first + a] = v;
            square[a] += v * v;
        }
    }
    /* Rounding carries a point near the sphere over it. Which are near is told in float32, with
     * room for its rounding; where one is, all are looked at in float64. */
    const float near = 1.0f - (float)(d + 4) * 1.1920929e-7f;
    int64_t outside = 0;
    for (int64_t a = 0; a < n; a++)
        outside += !(square[a] < near);
    for (int64_t a = 0; outside && a < n; a++)
        gap_inside(gap, x, first + a);
}

/* x = m theta + sqrt(1 - m^2) b, b uniform in the unit ball orthogonal to theta. The first n
 * coordinates of a uniform point on the sphere in n + 2 dimensions are uniform in the n-ball:
 * here n = d - 1, the point is (g, h) normalised, of d + 1 normals, and the two coordinates left
 * out are <g, theta> and h. No radius is drawn, and no power taken. Feature-major. */
FF_CLONES
int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                    void *restrict buffer, double *restrict mean)
{
    const ff_gap *gap = (const ff_gap *)state;
    const int64_t d = gap->dimension, k = gap->actions;
    float *restrict x = (float *)buffer;
    gap_targets(gap, seed, (uint32_t)replicate, (uint32_t)silo, (uint32_t)round,
                (uint32_t *)buffer, mean);
    if (d == 1) {
        for (int64_t a = 0; a < k; a++)
            x[a] = (float)(mean[a] * gap->theta[0]);
        return k;
    }
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    ff_normals_f32(&s, k * (d + 1), x);
    IN_STRIPS(k, gap_squares, gap, x)
    /* As of the sphere. */
    float *restrict scale = x + d * k;
    for (int64_t a = 0; a < k; a++) {
        const float m = (float)mean[a];
        scale[a] = (1.0f - m * m) / (scale[a] + 1e-30f);
    }
    for (int64_t a = 0; a < ((k + 15) & ~(int64_t)15); a++)
        scale[a] = sqrtf(scale[a]);
    IN_STRIPS(k, gap_features, gap, x, mean)
    return k;
}

double ff_gap_mean(const void *state, const void *x, int64_t a)
{
    const ff_gap *gap = (const ff_gap *)state;
    return mean_of(gap->theta, (const float *)x, gap->actions, gap->dimension, a);
}

/* ---- hard instance ---------------------------------------------------------------------------- */

/* ceil(2^53 exp(-1/2)): Box-Muller's radius is at most 1 for the 53-bit integers from here on. */
#define HARD_FIRST 5463142506141194LL

/* Action 0 has z ~ N(0, I_2) truncated to the unit disc in one of d/2 blocks, action 1 is zero.
 * Box-Muller makes z; its first uniform is restricted to [exp(-1/2), 1], which is the truncation.
 * Feature-major. */
int64_t ff_hard_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                     void *restrict buffer, double *restrict mean)
{
    const ff_hard *hard = (const ff_hard *)state;
    float *restrict x = (float *)buffer;
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    const ff_stream position = ff_stream_open(seed, FF_PERMUTATION, (uint32_t)replicate,
                                              (uint32_t)silo, (uint32_t)round);
    const int64_t first = 2 * ff_below(&position, hard->dimension / 2);
    uint32_t w[4];
    ff_philox(&s, 0, w);
    const double span = (double)((1LL << 53) - HARD_FIRST);
    const uint64_t radius = HARD_FIRST + (uint64_t)(int64_t)(span * ff_unit(w[0], w[1]));
    const uint64_t angle = (((uint64_t)w[2] << 32) | w[3]) >> 11;
    double z[2];
    ff_normals_from_bits(&radius, &angle, 1, z);
    memset(x, 0, sizeof(float) * 2 * (size_t)hard->dimension);
    mean[0] = mean[1] = 0.0;
    for (int64_t j = 0; j < 2; j++) {
        /* Rounding to float32 lengthens by 2^-24 at most: shorter by 2^-23, no norm reaches 1. */
        x[2 * (first + j)] = (float)(z[j] * (1.0 - 1.1920928955078125e-07));
        mean[0] += hard->theta[first + j] * (double)x[2 * (first + j)];
    }
    return 2;
}

/* ---- pools ------------------------------------------------------------------------------------ */

int64_t ff_pool_query(const ff_pool *pool, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round)
{
    const int64_t first = pool->silo_starts[silo], n = pool->silo_starts[silo + 1] - first;
    if (pool->sampling == FF_IN_ORDER)
        return first + round - 1;
    if (n == 1)
        return first;
    if (pool->sampling == FF_WITHOUT_REPLACEMENT)
        return pool->order[first + round - 1];
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    return first + ff_below(&s, n);
}

int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, ff_actions *out)
{
    const ff_pool *pool = (const ff_pool *)state;
    const int64_t q = ff_pool_query(pool, seed, replicate, silo, round);
    const int64_t start = pool->starts[q], k = pool->starts[q + 1] - start;
    const int64_t offset = start * pool->dimension;
    out->x = pool->is_double ? (const void *)((const double *)pool->values + offset)
                             : (const void *)((const float *)pool->values + offset);
    out->is_double = pool->is_double;
    out->action_stride = pool->feature_major ? 1 : pool->dimension;
    out->feature_stride = pool->feature_major ? k : 1;
    out->actions = k;
    out->mean = pool->means + start;
    out->best = pool->best[q];
    out->query = q;
    out->first = start;
    out->shorts =
        pool->shorts.starts ? ff_short_kept(&pool->shorts, q, out, pool->dimension) : NULL;
    return FF_OK;
}
