#include "ff_environment.h"

#include <math.h>

#include "ff_panel.h"
#include "ff_random.h"

/* Number of floats in a cache line. No vector has more, so rows have the same layout at every
 * vector width. */
#define LINE 16

/* Return the number of actions rounded up to whole cache lines. */
int64_t ff_stride(int64_t actions)
{
    return (actions + LINE - 1) & ~(int64_t)(LINE - 1);
}

/* Return the number of floats (or doubles, if is_double) that an environment may write into the
 * buffer of one round. */
int64_t ff_fill_capacity(int64_t actions, int64_t dimension)
{
    /* An environment that fills the buffer (see `parts` below): features; three numbers for each
     * action; theta; normals, and one stride more, because whole vectors read past the last one. */
    const int64_t stride = ff_stride(actions);
    const int64_t filled = stride * (dimension + 4) + ff_stride(dimension) +
                           ff_normal_capacity_f32(actions * (dimension + 1));
    /* A pool writes only the actions in 16 bits. */
    const int64_t in_16_bits = ff_quantised_bytes(dimension, actions) / (int64_t)sizeof(float);
    return filled > in_16_bits ? filled : in_16_bits;
}

/* Range of the means. If the sum is not finite, a user's function wrote NaN or infinity. */
typedef struct {
    double smallest, largest, sum;
} extent;

/* Return the range of k means. Eight lanes, because a single chain of comparisons would be limited
 * by latency. */
static extent extent_of(const double *restrict mean, int64_t k)
{
    double smallest[8] FF_ALIGNED, largest[8] FF_ALIGNED, sum[8] FF_ALIGNED = {0};
    for (int l = 0; l < 8; l++)
        smallest[l] = largest[l] = mean[0];
    for (int64_t a = 0; a < k; a += 8) {
        double next[8] FF_ALIGNED;
        for (int l = 0; l < 8; l++)
            next[l] = a + 8 <= k || a + l < k ? mean[a + l] : mean[0];
        for (int l = 0; l < 8; l++) {
            smallest[l] = next[l] < smallest[l] ? next[l] : smallest[l];
            largest[l] = next[l] > largest[l] ? next[l] : largest[l];
            sum[l] += next[l];
        }
    }
    extent range = {smallest[0], largest[0], sum[0]};
    for (int l = 1; l < 8; l++) {
        range.smallest = smallest[l] < range.smallest ? smallest[l] : range.smallest;
        range.largest = largest[l] > range.largest ? largest[l] : range.largest;
        range.sum += sum[l];
    }
    return range;
}

/* Return the exact largest mean, for approximate means in `actions`: the actions that may be the
 * best are evaluated exactly. If only one may be the best, the sum of the indices of such actions
 * is its index. */
static double best_of(const ff_environment *env, const ff_actions *actions)
{
    const double *mean = actions->mean;
    const near_top top_means = near_top_of(mean, actions->actions, 2.0 * env->mean_error, 0.0);
    if (top_means.count == 1)
        return ff_mean_of(env, actions, top_means.index_sum);
    double best = -INFINITY;
    for (int64_t a = 0; a < actions->actions; a++) {
        const double exact = mean[a] >= top_means.smallest ? ff_mean_of(env, actions, a) : best;
        best = exact > best ? exact : best;
    }
    return best;
}

/* Write the actions of one round to `out`: a view of stored rows (`borrow`), or features that the
 * environment computes (`fill`). The number of actions that it computes is checked; their expected
 * rewards are checked unless the environment has a function `mean`, which only built-in ones have.
 * Returns FF_OK or a negative status. */
int64_t ff_actions_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                      int64_t round, const ff_ahead *prefetched, ff_ahead *next_ahead, void *x,
                      double *mean, ff_actions *out)
{
    out->ahead = next_ahead;
    if (env->borrow)
        return env->borrow(env->state, seed, replicate, silo, round, prefetched, x, out);
    /* The environment fills the caller's buffers. */
    const int64_t k = env->fill(env->state, seed, replicate, silo, round, x, mean);
    if (k < 0)
        return k;
    if (k == 0 || k > env->actions)
        return FF_NO_ACTIONS;
    out->x = x;
    out->is_double = env->is_double;
    out->action_stride = env->stride ? 1 : env->dimension;
    out->feature_stride = env->stride ? env->stride : 1;
    out->actions = k;
    out->mean = mean;
    out->quantised = NULL;
    out->silo = silo;
    if (env->mean) {
        out->best = best_of(env, out);
        return FF_OK;
    }
    const extent range = extent_of(mean, k);
    out->best = range.largest;
    if (!isfinite(range.sum))
        return FF_NOT_FINITE;
    const double rounding = 1e-6;
    /* Means of Bernoulli rewards must be probabilities. */
    if (env->reward_kind == FF_REWARD_BERNOULLI &&
        (range.smallest < -rounding || range.largest > 1.0 + rounding))
        return FF_NOT_FINITE;
    return FF_OK;
}

/* Draw the reward of an action with expected reward `mean`. */
double ff_reward_of(const ff_environment *env, uint64_t seed, int64_t replicate, int64_t silo,
                    int64_t round, double mean)
{
    if (env->reward_kind == FF_REWARD_NONE)
        return mean;
    const ff_stream s = ff_stream_open(seed, FF_REWARD, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    if (env->reward_kind == FF_REWARD_BERNOULLI)
        return ff_uniform(&s, 0) < mean ? 1.0 : 0.0;
    return mean + env->reward_std * ff_normal(&s);
}

/* Call step(n, first, ...) for all groups of n vectors of actions, `first` being the first action:
 * groups of two, then of one. n is a constant, so sums stay in registers. Lanes past the last
 * action hold undefined numbers that are not used. */
#define FOR_VECTORS(stride, step, ...)                                                         \
    {                                                                                          \
        int64_t first = 0;                                                                     \
        for (; first + 2 * WIDTH32 <= (stride); first += 2 * WIDTH32)                          \
            step(2, first, __VA_ARGS__);                                                       \
        for (; first < (stride); first += WIDTH32)                                             \
            step(1, first, __VA_ARGS__);                                                       \
    }
#define LOAD32(p) (*(const loose32 *)(p))
#define STORE32(p) (*(loose32 *)(p))

/* The buffer of a fill, cut into its parts: features; three numbers for each action (square:
 * squared length of its normals, then the scale of its features; along: <g, theta> or the mean;
 * target: m), in rows of `stride` floats; theta; normals in rows of K, as they are drawn. */
typedef struct {
    int64_t stride;          /* distance between rows */
    /* (d, stride); three rows of `stride`; (d) */
    float *restrict x, *restrict square, *restrict along, *restrict target, *restrict theta;
    float *restrict normals; /* (., K) */
} parts;

/* Return pointers to the parts of the buffer of k actions, with theta (d) converted to float32. */
FF_INLINE parts cut(void *buffer, int64_t k, int64_t d, const double *theta)
{
    const int64_t stride = ff_stride(k);
    float *x = (float *)buffer, *square = x + stride * d, *theta32 = square + 3 * stride;
    for (int64_t j = 0; j < d; j++)
        theta32[j] = (float)theta[j];
    return (parts){stride, x, square, square + stride, square + 2 * stride, theta32,
                   theta32 + ff_stride(d)};
}

/* ---- sphere ---------------------------------------------------------------------------------- */

/* Compute the squared lengths of the normals of n vectors of actions, into `square`. */
FF_INLINE void sphere_squares(int n, int64_t first, const ff_sphere *sphere, const parts *p)
{
    lanes32 square[2] = {(lanes32){0}, (lanes32){0}};
    for (int64_t j = 0; j < sphere->dimension - 1; j++)
        for (int v = 0; v < n; v++) {
            const lanes32 g = LOAD32(p->normals + j * sphere->actions + first + v * WIDTH32);
            square[v] += g * g;
        }
    for (int v = 0; v < n; v++)
        STORE32(p->square + first + v * WIDTH32) = square[v];
}

/* Compute the features (normals times the scales, which have replaced `square`), and the means into
 * `along`. */
FF_INLINE void sphere_features(int n, int64_t first, const ff_sphere *sphere, const parts *p)
{
    const int64_t free = sphere->dimension - 1;
    const float constant = (float)sphere->constant, last = p->theta[free] * constant;
    lanes32 scale[2], product[2];
    for (int v = 0; v < n; v++) {
        scale[v] = LOAD32(p->square + first + v * WIDTH32);
        product[v] = (lanes32){0} + last;
        STORE32(p->x + free * p->stride + first + v * WIDTH32) = (lanes32){0} + constant;
    }
    for (int64_t j = 0; j < free; j++) {
        const float t = p->theta[j];
        for (int v = 0; v < n; v++) {
            const lanes32 x =
                scale[v] * LOAD32(p->normals + j * sphere->actions + first + v * WIDTH32);
            STORE32(p->x + j * p->stride + first + v * WIDTH32) = x;
            product[v] += t * x;
        }
    }
    for (int v = 0; v < n; v++)
        STORE32(p->along + first + v * WIDTH32) = product[v];
}

/* Return <x_a, theta>; x is feature-major. */
FF_INLINE double mean_of(const double *restrict theta, const float *restrict x, int64_t stride,
                         int64_t d, int64_t a)
{
    double product = 0.0;
    for (int64_t j = 0; j < d; j++)
        product += theta[j] * (double)x[j * stride + a];
    return product;
}

/* Return a bound on the float32 rounding error of each mean that the environments sphere and gap
 * write. */
double ff_mean_error(int64_t d) { return 8.0 * (double)(d + 8) * 0x1p-24; }

/* Return the theta (d) of a silo. */
FF_INLINE const double *sphere_theta(const ff_sphere *sphere, int64_t silo)
{
    return sphere->theta + silo * sphere->theta_stride;
}

/* Return the expected reward of action a in the sphere environment. */
double ff_sphere_mean(const void *state, int64_t silo, const void *x, int64_t a)
{
    const ff_sphere *sphere = (const ff_sphere *)state;
    return mean_of(sphere_theta(sphere, silo), (const float *)x, ff_stride(sphere->actions),
                   sphere->dimension, a);
}

/* Write the K actions and their means, and return K. An action is x = (u / sqrt 2, constant), with
 * u uniform on the unit sphere in d - 1 dimensions, drawn for every (round, silo). The first
 * `basis_actions` actions (0 or d) are fixed instead. */
int64_t ff_sphere_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round, void *restrict buffer, double *restrict mean)
{
    const ff_sphere *sphere = (const ff_sphere *)state;
    const int64_t d = sphere->dimension, k = sphere->actions, free = d - 1;
    const parts p = cut(buffer, k, d, sphere_theta(sphere, silo));
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, sphere->shared ? 0u : (uint32_t)replicate,
                                       (uint32_t)silo, (uint32_t)round);
    if (free > 0)
        ff_normals_f32(&s, k * free, p.normals);
    /* One pass for the sums, one for the roots, one for the features: in a single pass every
     * feature would wait for the square root of its action. */
    FOR_VECTORS(p.stride, sphere_squares, sphere, &p)
    for (int64_t a = 0; a < p.stride; a++)
        p.square[a] = 0.70710678f / sqrtf(p.square[a] + 1e-30f);
    FOR_VECTORS(p.stride, sphere_features, sphere, &p)
    for (int64_t a = 0; a < k; a++)
        mean[a] = (double)p.along[a];
    /* The fixed actions, as in the code published with zhou-chowdhury-2024: (e_j, 1) / sqrt 2 for
     * j < d, then (0, 1). */
    for (int64_t a = 0; a < sphere->basis_actions && a < k; a++) {
        const float root_half = 0.70710678f;
        for (int64_t j = 0; j < d; j++)
            p.x[j * p.stride + a] = a < free ? (j == a || j == free ? root_half : 0.0f)
                                             : (j == free ? 1.0f : 0.0f);
        mean[a] = ff_sphere_mean(sphere, silo, p.x, a);
    }
    return k;
}

/* ---- gap ------------------------------------------------------------------------------------- */

/* Draw m, the expected reward of every action, into `mean`. random: K words of scratch. Other
 * streams of these purposes, for an instance or an order of queries, have index 0. Rounds begin
 * with 1, so no stream is used twice. */
FF_INLINE void gap_targets(const ff_gap *gap, uint64_t seed, uint32_t replicate, uint32_t silo,
                           uint32_t round, uint32_t *restrict random, double *restrict mean)
{
    const int64_t k = gap->actions;
    const ff_stream uniforms = ff_stream_open(seed, FF_INSTANCE, replicate, silo, round);
    const ff_stream position = ff_stream_open(seed, FF_PERMUTATION, replicate, silo, round);
    const double unit = gap->width * 4.656612873077393e-10; /* 2^-31 */
    const double low = gap->inferior;
    ff_random_u32(&uniforms, k, random);
    for (int64_t a = 0; a < k; a++)
        mean[a] = low + unit * ((double)(int32_t)(random[a] >> 1) + 0.5);
    const int64_t best = ff_uniform_int(&position, k);
    mean[best] = gap->best + unit * ((double)(int32_t)(random[best] >> 1) + 0.5);
}

/* Scale action a until its float32 features have norm <= 1. */
static void gap_inside(const ff_gap *gap, const parts *p, int64_t a)
{
    for (;;) {
        double square = 0.0;
        for (int64_t j = 0; j < gap->dimension; j++) {
            const double v = p->x[j * p->stride + a];
            square += v * v;
        }
        if (square <= 1.0)
            return;
        for (int64_t j = 0; j < gap->dimension; j++)
            p->x[j * p->stride + a] *= 0.9999998f;
    }
}

/* With normals (g, h) for each action: compute ||g||^2 + h^2 into `square` and <g, theta> into
 * `along`. */
FF_INLINE void gap_sums(int n, int64_t first, const ff_gap *gap, const parts *p)
{
    const int64_t d = gap->dimension, k = gap->actions;
    lanes32 square[2] = {(lanes32){0}, (lanes32){0}}, along[2] = {(lanes32){0}, (lanes32){0}};
    for (int64_t j = 0; j < d; j++) {
        const float t = p->theta[j];
        for (int v = 0; v < n; v++) {
            const lanes32 g = LOAD32(p->normals + j * k + first + v * WIDTH32);
            square[v] += g * g;
            along[v] += g * t;
        }
    }
    for (int v = 0; v < n; v++) {
        const lanes32 h = LOAD32(p->normals + d * k + first + v * WIDTH32);
        STORE32(p->square + first + v * WIDTH32) = square[v] + h * h;
        STORE32(p->along + first + v * WIDTH32) = along[v];
    }
}

/* Compute the features from the normals, the scales (which have replaced `square`) and `along`. */
FF_INLINE void gap_features(int n, int64_t first, const ff_gap *gap, const parts *p)
{
    lanes32 scale[2], along[2];
    for (int v = 0; v < n; v++) {
        scale[v] = LOAD32(p->square + first + v * WIDTH32);
        along[v] = LOAD32(p->along + first + v * WIDTH32);
    }
    for (int64_t j = 0; j < gap->dimension; j++) {
        const float t = p->theta[j];
        for (int v = 0; v < n; v++)
            STORE32(p->x + j * p->stride + first + v * WIDTH32) =
                scale[v] * LOAD32(p->normals + j * gap->actions + first + v * WIDTH32) +
                along[v] * t;
    }
}

/* Write the K actions and their means m, and return K: x = m theta + sqrt(1 - m^2) b, with b
 * uniform in the unit ball orthogonal to theta. The first n coordinates of a uniform point on the
 * sphere in n + 2 dimensions are uniform in the n-ball. Here n = d - 1, the point is (g, h)
 * normalised (d + 1 normals), and the two omitted coordinates are <g, theta> and h. So neither a
 * radius nor a power is needed. */
int64_t ff_gap_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                    void *restrict buffer, double *restrict mean)
{
    const ff_gap *gap = (const ff_gap *)state;
    const int64_t d = gap->dimension, k = gap->actions;
    const parts p = cut(buffer, k, d, gap->theta);
    gap_targets(gap, seed, (uint32_t)replicate, (uint32_t)silo, (uint32_t)round,
                (uint32_t *)p.x, mean);
    if (d == 1) {
        for (int64_t a = 0; a < k; a++)
            p.x[a] = (float)(mean[a] * gap->theta[0]);
        return k;
    }
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    ff_normals_f32(&s, k * (d + 1), p.normals);
    memset(p.target + p.stride - LINE, 0, LINE * sizeof(float));
    for (int64_t a = 0; a < k; a++)
        p.target[a] = (float)mean[a];
    /* Three passes as for the sphere. |x|^2 is 1 - scale^2 (<g, theta>^2 + h^2) up to rounding
     * error of at most (3 d + 32) 2^-24, which may make it exceed 1. If |x|^2 of any action exceeds
     * 1 minus about five times that error, gap_inside checks all actions. */
    const float margin = (float)(d + 8) * 9.5367432e-7f;
    FOR_VECTORS(p.stride, gap_sums, gap, &p)
    for (int64_t a = 0; a < p.stride; a++) {
        const float m = p.target[a], g = p.along[a], h = p.normals[d * k + a];
        const float remainder = 1.0f - m * m, square = p.square[a] + 1e-30f;
        const float scale = sqrtf(remainder / square);
        p.along[a] = m - scale * g;
        p.square[a] = scale;
        /* From here on `target` is above 0 if 1 - |x|^2 is above the margin. */
        p.target[a] = remainder * (g * g + h * h) - margin * square;
    }
    FOR_VECTORS(p.stride, gap_features, gap, &p)
    int any_outside = 0;
    for (int64_t a = 0; a < k; a++)
        any_outside |= !(p.target[a] > 0.0f);
    for (int64_t a = 0; any_outside && a < k; a++)
        gap_inside(gap, &p, a);
    return k;
}

/* Return the expected reward of action a in the gap environment. */
double ff_gap_mean(const void *state, int64_t silo, const void *x, int64_t a)
{
    (void)silo;
    const ff_gap *gap = (const ff_gap *)state;
    return mean_of(gap->theta, (const float *)x, ff_stride(gap->actions), gap->dimension, a);
}

/* ---- hard instance --------------------------------------------------------------------------- */

/* ceil(2^53 exp(-1/2)): for 53-bit integers from here on, the radius of Box-Muller is at most 1. */
#define HARD_FIRST 5463142506141194LL

/* Draw the two actions of the hard instance. Action 0 has z ~ N(0, I_2), truncated to the unit
 * disc, in one of d/2 blocks; action 1 is zero. Returns 2. z is drawn by Box-Muller. Its first
 * uniform is restricted to [exp(-1/2), 1], which truncates z to the disc. x is feature-major. */
int64_t ff_hard_fill(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                     void *restrict buffer, double *restrict mean)
{
    const ff_hard *hard = (const ff_hard *)state;
    float *restrict x = (float *)buffer;
    const ff_stream s = ff_stream_open(seed, FF_CONTEXT, (uint32_t)replicate, (uint32_t)silo,
                                       (uint32_t)round);
    const ff_stream position = ff_stream_open(seed, FF_PERMUTATION, (uint32_t)replicate,
                                              (uint32_t)silo, (uint32_t)round);
    const int64_t first = 2 * ff_uniform_int(&position, hard->dimension / 2);
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
        /* Rounding to float32 lengthens z by at most 2^-24; scaling by 1 - 2^-23 keeps its norm
         * below 1. */
        x[2 * (first + j)] = (float)(z[j] * (1.0 - 1.1920928955078125e-07));
        mean[0] += hard->theta[first + j] * (double)x[2 * (first + j)];
    }
    return 2;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* Return the index of the stored query that a silo is offered in a round. */
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
    return first + ff_uniform_int(&s, n);
}

/* Point `out` to the stored rows of a round's query, without a copy. prefetched: what ff_pool_ahead
 * returned for this round, or NULL. Returns FF_OK. */
int64_t ff_pool_borrow(void *state, uint64_t seed, int64_t replicate, int64_t silo, int64_t round,
                       const ff_ahead *prefetched, void *buffer, ff_actions *out)
{
    const ff_pool *pool = (const ff_pool *)state;
    const int64_t query =
        prefetched ? prefetched->query : ff_pool_query(pool, seed, replicate, silo, round);
    const int64_t start = pool->starts[query], k = pool->starts[query + 1] - start;
    const int64_t offset = start * pool->dimension;
    out->x = pool->is_double ? (const void *)((const double *)pool->values + offset)
                             : (const void *)((const float *)pool->values + offset);
    out->is_double = pool->is_double;
    out->action_stride = pool->feature_major ? 1 : pool->dimension;
    out->feature_stride = pool->feature_major ? k : 1;
    out->actions = k;
    out->mean = pool->means + start;
    out->best = pool->best[query];
    out->query = query;
    out->first = start;
    out->quantised = pool->quantised.starts
                         ? ff_quantised_block(&pool->quantised, query, out, pool->dimension, buffer)
                         : NULL;
    return FF_OK;
}

/* Return which memory the query of a later round occupies, so that it can be prefetched. */
ff_ahead ff_pool_ahead(const void *state, uint64_t seed, int64_t replicate, int64_t silo,
                       int64_t round)
{
    const ff_pool *pool = (const ff_pool *)state;
    const int64_t query = ff_pool_query(pool, seed, replicate, silo, round);
    const int64_t k = pool->starts[query + 1] - pool->starts[query], d = pool->dimension;
    const ff_quantised_store *store = &pool->quantised;
    const int64_t size = pool->is_double ? sizeof(double) : sizeof(float);
    const char *values = (const char *)pool->values + pool->starts[query] * d * size;
    ff_ahead ahead = {values, values + k * d * size, query};
    FF_PREFETCH(pool->best + query);
    if (store->starts &&
        __atomic_load_n(store->made + query, __ATOMIC_ACQUIRE) == FF_QUANTISED_MADE) {
        ahead.at = store->buffer + store->starts[query];
        ahead.end = ahead.at + ff_quantised_bytes(d, k);
    }
    return ahead;
}
