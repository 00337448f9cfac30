/* Symbols (ff_linalg.h, ff_scores.h): K actions x of d features. V is the regularised Gram matrix,
 * W its inverse factor, theta the estimate. beta and gamma are the factors of ||W x|| and of
 * ||V^-1 x|| in a score. */
#include "ff_fixed.h"

#include <math.h>

#include "ff_linalg.h"
#include "ff_random.h"
#include "ff_reals.h"

/* Arrays are padded to multiples of this many numbers. */
#define LANES 8
#define VECTORS (LANES / WIDTH)
/* Sums of TILE to less than 2 TILE numbers stay in registers while their terms are added. */
#define TILE (4 * WIDTH > LANES ? 4 * WIDTH : LANES)
#define TILE_VECTORS (2 * TILE / WIDTH)
/* Number of data points that are queued before all are subtracted from X V^{-1} X' and X V^{-2} X'
 * in one pass over these matrices. */
#define QUEUE 16
/* Number of rows of X V^{-1} X' or X V^{-2} X' from which the queue is subtracted together, and
 * number of these matrices. LANES columns of the rows fit into the registers, and are enough sums
 * for additions not to wait for each other. */
#define ROWS_AT_ONCE (WIDTH == 8 ? 8 : 4)
#define MATRICES_AT_ONCE (WIDTH == 8 ? 2 : 1)

/* Return the largest K for which updating X V^{-1} X' and X V^{-2} X' is faster than updating
 * V^{-1}. */
FF_INLINE int64_t pairs_up_to(int64_t d) { return 2 * d; }

/* The least root r of a bound, because a root of 0 would give an infinite slope. */
#define SMALLEST_ROOT 1e-150

/* Indices of the numbers at the start of a model: synchronisations so far (plus one) when it was
 * computed; number of different actions; d; the action that was chosen last; number of queued data
 * points; 1 for arms; 1 if products of pairs of actions are stored; the bonus of the last choice.
 * HEAD is the length of that part. */
enum { MADE, ACTIONS, DIMENSION, CHOSEN, QUEUED, ARMS, PAIRS, BONUS, HEAD };

/* Return n rounded up to a multiple of LANES. */
FF_INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* A model, cut into its arrays. */
typedef struct {
    int64_t n, np, d, dp; /* number of different actions, padded; d, padded */
    int arms;             /* 1: action a is the unit vector e_a, and V is diagonal */
    int by_pairs;         /* 1: X V^-1 X' and X V^-2 X' are stored; 0: V^-1 (neither for arms) */
    /* Arrays by action, (np) each. */
    double *mean;                 /* <x, theta>; -INFINITY past K */
    double *width, *second;       /* ||x||^2_{V^-1} and ||V^-1 x||^2 */
    double *half, *second_half;   /* r / 2, for the last computed root r of width and of second; */
    double *slope, *second_slope; /* 1 / (2 r). See compute_bounds */
    double *upper, *rank;         /* upper bounds on scores and rankings of this round */
    double *factor;               /* clipping multiplies a row by it when the row is learned */
    double *clipped;              /* 1 if that counts as clipping */
    double *weight;               /* sum of the squared factors with which the row was learned */
    double *z, *u;                /* what a data point changes, see ff_fixed_observe */
    double *offered;              /* index of the action among all offered actions */
    /* by_pairs: products g = X V^-1 X' and h = X V^-2 X' (n, np), in which entries (k, j) with
     * j < k - k % LANES are not updated, and the queue: (QUEUE, np) each. */
    double *g, *h, *queue_z, *queue_u;
    /* Otherwise: V^-1 (d, dp), four vectors of scratch (dp), and rows (d, np) by feature. */
    double *inverse, *x, *v, *along, *across;
    float *rows;
} parts;

/* Return the number of doubles in a model of exactly n actions. */
static int64_t size_of(int64_t n, int64_t d)
{
    const int64_t np = padded(n), dp = padded(d);
    const int64_t by_pairs = 2 * (n + QUEUE) * np, by_rows = d * dp + 4 * dp + (d * np + 1) / 2;
    return HEAD + 15 * np + (n <= pairs_up_to(d) ? by_pairs : by_rows);
}

/* Return the number of doubles in a model of at most `actions` actions. */
int64_t ff_fixed_size(int64_t actions, int64_t d)
{
    /* A model that stores products of pairs of actions may be larger than a model of more actions
     * that does not. */
    const int64_t pairs = actions < pairs_up_to(d) ? actions : pairs_up_to(d);
    const int64_t of_pairs = size_of(pairs, d), of_all = size_of(actions, d);
    return padded(of_pairs > of_all ? of_pairs : of_all);
}

/* Return the sizes of a model and pointers to its arrays. */
FF_INLINE parts cut(double *model)
{
    parts m;
    m.n = (int64_t)model[ACTIONS];
    m.d = (int64_t)model[DIMENSION];
    m.np = padded(m.n);
    m.dp = padded(m.d);
    m.arms = model[ARMS] != 0.0;
    m.by_pairs = model[PAIRS] != 0.0;
    m.mean = model + HEAD;
    m.width = m.mean + m.np;
    m.second = m.width + m.np;
    m.half = m.second + m.np;
    m.second_half = m.half + m.np;
    m.slope = m.second_half + m.np;
    m.second_slope = m.slope + m.np;
    m.upper = m.second_slope + m.np;
    m.rank = m.upper + m.np;
    m.factor = m.rank + m.np;
    m.clipped = m.factor + m.np;
    m.weight = m.clipped + m.np;
    m.z = m.weight + m.np;
    m.u = m.z + m.np;
    m.offered = m.u + m.np;
    /* The remaining arrays are those by pairs, or those of V^-1; both begin here. */
    double *const next = m.offered + m.np;
    m.g = m.inverse = next;
    m.h = next + m.n * m.np;
    m.queue_z = m.h + m.n * m.np;
    m.queue_u = m.queue_z + QUEUE * m.np;
    m.x = next + m.d * m.dp;
    m.v = m.x + m.dp;
    m.along = m.v + m.dp;
    m.across = m.along + m.dp;
    m.rows = (float *)(m.across + m.dp);
    return m;
}

/* Square roots are bounded by tangents: sqrt(w) <= r / 2 + w / (2 r) for every r > 0. The bound is
 * tight while w is near r^2. */

/* Compute the bounds r / 2 and 1 / (2 r) of a vector of squares, at their roots. */
FF_INLINE void compute_bounds(const double *square, double *half, double *slope)
{
    const loose r = larger(root_of(larger(LOAD(square), all(0.0))), all(SMALLEST_ROOT));
    STORE(half, all(0.5) * r);
    STORE(slope, all(0.5) / r);
}

/* Return the root of a square (of 0 if rounding has made it negative), and compute the bounds at
 * it. */
FF_INLINE double root_with_bounds(double square, double *half, double *slope)
{
    const double root = sqrt(square > 0.0 ? square : 0.0);
    const double r = root > SMALLEST_ROOT ? root : SMALLEST_ROOT;
    *half = 0.5 * r;
    *slope = 0.5 / r;
    return root;
}

/* Call f(.., first, vectors) for all of n (padded) numbers, a tile at a time. `vectors` is a
 * constant in every call, so that the sums of f are registers. */
#define BY_TILES(n, f, ...)                                                                        \
    do {                                                                                           \
        int64_t first = 0;                                                                         \
        for (; first + 2 * TILE <= (n); first += TILE)                                             \
            f(__VA_ARGS__, first, TILE / WIDTH);                                                   \
        switch (((n) - first) / LANES) {                                                           \
            IN_TILE(1, f, __VA_ARGS__)                                                             \
            IN_TILE(2, f, __VA_ARGS__)                                                             \
            IN_TILE(3, f, __VA_ARGS__)                                                             \
            IN_TILE(4, f, __VA_ARGS__)                                                             \
            IN_TILE(5, f, __VA_ARGS__)                                                             \
            IN_TILE(6, f, __VA_ARGS__)                                                             \
            IN_TILE(7, f, __VA_ARGS__)                                                             \
        }                                                                                          \
    } while (0)
#define IN_TILE(i, f, ...)                                                                         \
    case i:                                                                                        \
        if (i * LANES < 2 * TILE)                                                                  \
            f(__VA_ARGS__, first, i * LANES < 2 * TILE ? i * VECTORS : 1);                         \
        break;

/* ---- making ---------------------------------------------------------------------------------- */

/* Return 1 if K = d, action a is the unit vector e_a for every a, and W (d, d) is diagonal. */
static int are_arms(const ff_actions *actions, const double *w, int64_t d)
{
    const float *x = (const float *)actions->x;
    if (actions->actions != d || actions->is_double)
        return 0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++)
            if (x[i * actions->feature_stride + j] != (i == j ? 1.0f : 0.0f) ||
                (j < i && w[i * d + j] != 0.0))
                return 0;
    return 1;
}

/* Compute the model of arms (action a is the unit vector e_a) from a diagonal W (d, d) and theta
 * (d). bound: the norm to which features are clipped when they are learned. */
static void make_arms(const parts *m, const double *w, const double *theta, double bound)
{
    for (int64_t a = 0; a < m->n; a++) {
        const double z = w[a * m->d + a], u = z * z;
        m->mean[a] = theta[a];
        m->width[a] = u;
        m->second[a] = u * u;
        m->factor[a] = bound < 1.0 ? bound : 1.0;
        m->clipped[a] = bound < 1.0;
    }
}

/* Compute m->inverse (d, dp), V^{-1} = W'W, from W (d, d). multiple: the diagonal entry of W if W
 * is a multiple of I, else 0. */
static void fill_inverse(const parts *m, const double *restrict w, double multiple)
{
    const int64_t d = m->d;
    memset(m->inverse, 0, (size_t)(d * m->dp) * sizeof(double));
    for (int64_t i = 0; i < d; i++) {
        double *restrict row = m->inverse + i * m->dp;
        if (multiple != 0.0) {
            row[i] = multiple * multiple;
            continue;
        }
        for (int64_t k = i; k < d; k++) {
            const double factor = w[k * d + i];
            for (int64_t j = 0; j <= i; j++)
                row[j] += factor * w[k * d + j];
        }
    }
    for (int64_t i = 0; i < d && multiple == 0.0; i++)
        for (int64_t j = 0; j < i; j++)
            m->inverse[j * m->dp + i] = m->inverse[i * m->dp + j];
}

/* Compute z = W x and u = W'z = V^{-1} x, (d) each. multiple: as for fill_inverse. */
static void whiten(const double *restrict w, double multiple, const double *restrict x, int64_t d,
                   double *restrict z, double *restrict u)
{
    if (multiple == 0.0) {
        ff_whiten_back(w, x, d, z, u);
        return;
    }
    for (int64_t i = 0; i < d; i++) {
        z[i] = multiple * x[i];
        u[i] = multiple * z[i];
    }
}

/* Compute <x_b, v> of actions b = column, column + 1, .. (`vectors` vectors) into out + column. */
FF_INLINE void multiply_columns(const float *x, int64_t stride, const double *v, int64_t d,
                                double *out, int64_t column, const int vectors)
{
    loose sum[TILE_VECTORS];
    for (int i = 0; i < vectors; i++)
        sum[i] = all(0.0);
    for (int64_t j = 0; j < d; j++)
        for (int i = 0; i < vectors; i++)
            sum[i] = fused(all(v[j]), widened(x + j * stride + column + i * WIDTH), sum[i]);
    for (int i = 0; i < vectors; i++)
        STORE(out + column + i * WIDTH, sum[i]);
}

/* Compute <x_b, v> of actions b = from..np - 1 into out (np). Entries past the last of the K
 * actions become 0. `from` is a multiple of LANES. last_actions (d, LANES): the features of the
 * last K modulo LANES actions, then zeros. */
static void multiply_actions(const ff_actions *actions, const double *v, int64_t d, int64_t from,
                             const float *last_actions, double *out)
{
    const float *x = (const float *)actions->x + from;
    const int64_t whole = actions->actions / LANES * LANES;
    if (from < whole)
        BY_TILES(whole - from, multiply_columns, x, actions->feature_stride, v, d, out + from);
    if (whole < actions->actions)
        multiply_columns(last_actions, LANES, v, d, out + whole, 0, VECTORS);
}

/* Return a hash of the features of action a. */
static uint64_t hash_of(const ff_actions *actions, int64_t a, int64_t d)
{
    uint64_t hash = 0;
    for (int64_t j = 0; j < d; j++) {
        uint32_t bits;
        memcpy(&bits, (const float *)actions->x + j * actions->feature_stride + a, sizeof bits);
        hash = (hash ^ bits) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Return 1 if two actions have the same features. */
static int are_equal(const ff_actions *actions, int64_t a, int64_t b, int64_t d)
{
    const float *x = (const float *)actions->x;
    for (int64_t j = 0; j < d; j++, x += actions->feature_stride)
        if (memcmp(x + a, x + b, sizeof *x) != 0)
            return 0;
    return 1;
}

/* Begin a model: store its sizes, and list which of the offered actions it contains. An action that
 * repeats an earlier one always has the same score, so it is never chosen, and the model leaves it
 * out. But a model that stores products of pairs of actions contains all actions: the stored
 * products of two equal actions, and so their scores, may differ by rounding. */
static void begin(double *model, const ff_actions *actions, int64_t d)
{
    const int64_t count = actions->actions;
    model[ACTIONS] = (double)count;
    model[DIMENSION] = (double)d;
    model[PAIRS] = count <= pairs_up_to(d);
    const parts m = cut(model);
    if (m.by_pairs) {
        for (int64_t a = 0; a < count; a++)
            m.offered[a] = (double)a;
        return;
    }
    /* The hash table of indices and the list use the memory of arrays that are computed later. */
    const int64_t slots = 2 * m.np;
    double *table = m.mean, *list = table + slots;
    int64_t different = 0;
    for (int64_t i = 0; i < slots; i++)
        table[i] = -1.0;
    for (int64_t a = 0; a < count; a++) {
        int64_t slot = (int64_t)(hash_of(actions, a, d) % (uint64_t)slots);
        while (table[slot] >= 0.0 && !are_equal(actions, a, (int64_t)table[slot], d))
            slot = slot + 1 < slots ? slot + 1 : 0;
        if (table[slot] < 0.0) {
            table[slot] = (double)a;
            list[different++] = (double)a;
        }
    }
    model[ACTIONS] = (double)different;
    memmove(cut(model).offered, list, (size_t)different * sizeof(double));
}

/* Compute the model of actions that are not arms. Arguments: as for ff_fixed_make. */
static void make_rows(const parts *m, const ff_actions *actions, const double *w,
                      const double *theta, double bound, double *scratch)
{
    const int64_t d = m->d;
    const double multiple = ff_multiple_of_identity(w, d);
    double *z = scratch, *u = scratch + d, *x = scratch + 2 * d;
    float *last_actions = (float *)(scratch + 3 * d);
    if (!m->by_pairs) {
        fill_inverse(m, w, multiple);
        memset(m->rows, 0, (size_t)(d * m->np) * sizeof(float));
    }
    /* multiply_actions needs the features of the last K modulo LANES actions, then zeros. */
    const int64_t whole = m->n / LANES * LANES;
    for (int64_t j = 0; j < d && m->by_pairs; j++)
        for (int64_t a = whole; a < whole + LANES; a++)
            last_actions[j * LANES + a - whole] =
                a < m->n ? ((const float *)actions->x)[j * actions->feature_stride + a] : 0.0f;
    for (int64_t a = 0; a < m->n; a++) {
        ff_features(actions, (int64_t)m->offered[a], d, x);
        /* z = W x and u = V^{-1} x. */
        whiten(w, multiple, x, d, z, u);
        const double square = ff_dot(x, x, d);
        m->mean[a] = ff_dot(x, theta, d);
        m->width[a] = ff_dot(z, z, d);
        m->second[a] = ff_dot(u, u, d);
        /* The factor by which ff_clip_norm scales x. */
        m->factor[a] = square <= bound * bound ? 1.0 : bound / sqrt(square);
        for (int64_t j = 0; j < d && !m->by_pairs; j++)
            m->rows[j * m->np + a] = (float)x[j];
        m->clipped[a] = ff_clip_norm(x, d, bound);
        if (!m->by_pairs)
            continue;
        /* Row a of g, x_b' V^{-1} x_a = <x_b, u>, and row a of h, x_b' V^{-2} x_a. For h, x is
         * overwritten by V^{-1} u = V^{-2} x_a, unless V is a multiple of I. */
        multiply_actions(actions, u, d, a - a % LANES, last_actions, m->g + a * m->np);
        if (multiple == 0.0) {
            whiten(w, multiple, u, d, z, x);
            multiply_actions(actions, x, d, a - a % LANES, last_actions, m->h + a * m->np);
        }
        for (int64_t b = a - a % LANES; b < m->np && multiple != 0.0; b++)
            m->h[a * m->np + b] = multiple * multiple * m->g[a * m->np + b];
    }
}

/* Compute the model from W (d, d) and theta (d). bound: features are clipped to this norm when they
 * are learned. */
void ff_fixed_make(double *model, const ff_actions *actions, const double *w, const double *theta,
                   double bound, int64_t released, int64_t d, double *scratch)
{
    if (model[MADE] == 0.0)
        begin(model, actions, d);
    model[MADE] = (double)(released + 1);
    model[CHOSEN] = model[QUEUED] = 0.0;
    model[ARMS] = are_arms(actions, w, d);
    const parts m = cut(model);
    for (int64_t a = 0; a < m.np; a++) {
        m.mean[a] = -INFINITY;
        m.width[a] = m.second[a] = m.weight[a] = m.clipped[a] = 0.0;
        m.factor[a] = 1.0;
    }
    if (m.arms)
        make_arms(&m, w, theta, bound);
    else
        make_rows(&m, actions, w, theta, bound, scratch);
    for (int64_t a = 0; a < m.np; a += WIDTH) {
        compute_bounds(m.width + a, m.half + a, m.slope + a);
        compute_bounds(m.second + a, m.second_half + a, m.second_slope + a);
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The factors beta and gamma of a bonus. */
typedef struct {
    double beta, gamma;
} factors;

/* Return the largest of n (padded) values. */
FF_INLINE double largest_of(const double *values, int64_t n)
{
    loose top[VECTORS];
    double entries[LANES] FF_ALIGNED;
    for (int v = 0; v < VECTORS; v++)
        top[v] = LOAD(values + v * WIDTH);
    for (int64_t a = LANES; a < n; a += LANES)
        for (int v = 0; v < VECTORS; v++)
            top[v] = larger(LOAD(values + a + v * WIDTH), top[v]);
    memcpy(entries, top, sizeof entries);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            entries[l] = entries[l] > entries[l + half] ? entries[l] : entries[l + half];
    return entries[0];
}

/* Return a mask of LANES bits: bit i is 1 if values[i] is at least the limit. */
FF_INLINE unsigned reaching(const double *values, loose limit)
{
    unsigned bits = 0;
    for (int v = 0; v < VECTORS; v++)
        bits |= reaches(LOAD(values + v * WIDTH), limit) << (v * WIDTH);
    return bits;
}

/* Return the index of the first of n (padded) values that is at least the limit; 0 if there is
 * none. */
FF_INLINE int64_t first_reaching(const double *values, double limit, int64_t n)
{
    for (int64_t a = 0; a < n; a += LANES)
        if (reaching(values + a, all(limit)))
            for (;; a++)
                if (values[a] >= limit)
                    return a;
    return 0;
}

/* Compute upper bounds on <x, theta> + factor times the bonus of all actions into `values`. The
 * factor 1 + 2^-48 covers rounding: the bound and the bonus have at most ten roundings each. */
FF_INLINE void bound_all(const parts *m, factors f, double factor, double *values)
{
    const loose beta = all(factor * f.beta * (1.0 + 0x1p-48));
    const loose gamma = all(factor * f.gamma * (1.0 + 0x1p-48));
    for (int64_t a = 0; a < m->np; a += WIDTH) {
        const loose root = fused(LOAD(m->width + a), LOAD(m->slope + a), LOAD(m->half + a));
        const loose second =
            fused(LOAD(m->second + a), LOAD(m->second_slope + a), LOAD(m->second_half + a));
        STORE(values + a, LOAD(m->mean + a) + fused(beta, root, gamma * second));
    }
}

/* Return the exact bonus of action a, beta ||x||_{V^-1} + gamma ||V^-1 x||. */
FF_INLINE double bonus_of(const parts *m, factors f, int64_t a)
{
    const double root = root_with_bounds(m->width[a], m->half + a, m->slope + a);
    const double second = root_with_bounds(m->second[a], m->second_half + a, m->second_slope + a);
    return f.beta * root + f.gamma * second;
}

/* An action, its exact value, and its bonus. */
typedef struct {
    int64_t action;
    double value, bonus;
} valued;

/* Return the exact value of action a, <x, theta> + factor times the bonus. */
FF_INLINE valued value_of(const parts *m, factors f, double factor, int64_t a)
{
    const double bonus = bonus_of(m, f, a);
    return (valued){a, m->mean[a] + factor * bonus, bonus};
}

/* Return 1 if p is preferred to q: its value is larger, or equal and its index is lower. */
FF_INLINE int is_better(valued p, valued q)
{
    return p.value > q.value || (p.value == q.value && p.action < q.action);
}

/* Return the action with the largest exact <x, theta> + factor times the bonus, the lowest index if
 * several tie. bounds (np): upper bounds on these values. The action with the largest bound is
 * computed exactly, then every action with a bound that reaches the largest exact value so far. */
FF_INLINE valued find_largest(const parts *m, factors f, double factor, const double *bounds)
{
    const int64_t first = first_reaching(bounds, largest_of(bounds, m->np), m->np);
    valued best = value_of(m, f, factor, first);
    for (int64_t block = 0; block < m->np; block += LANES) {
        unsigned remaining = reaching(bounds + block, all(best.value));
        for (int64_t a = block; remaining; a++, remaining >>= 1) {
            if (!(remaining & 1) || a == first || bounds[a] < best.value)
                continue;
            const valued next = value_of(m, f, factor, a);
            best = is_better(next, best) ? next : best;
        }
    }
    return best;
}

/* Store the choice in the model, and return its index among the offered actions. */
FF_INLINE int64_t store_choice(double *model, const parts *m, valued choice)
{
    model[CHOSEN] = (double)choice.action;
    model[BONUS] = choice.bonus;
    return (int64_t)m->offered[choice.action];
}

/* Return the action with the largest sum of <x, theta> and `ranking` times its bonus. */
int64_t ff_fixed_choose(double *model, double beta, double gamma, double ranking)
{
    const parts m = cut(model);
    const factors f = {beta, gamma};
    bound_all(&m, f, ranking, m.rank);
    return store_choice(model, &m, find_largest(&m, f, ranking, m.rank));
}

/* Return 1 if the last choice passes a sieve with this slack because of the limit alone: its mean
 * plus (2 slack - 1) times its bonus is at least the limit. */
int ff_fixed_reaches(const double *model, double slack, double limit)
{
    const parts m = cut((double *)model);
    return m.mean[(int64_t)model[CHOSEN]] + (2.0 * slack - 1.0) * model[BONUS] >= limit;
}

/* Return the last choice if it passes the sieve, otherwise the best action by the ranking among
 * those that pass. An action passes if its mean plus (2 slack - 1) times its bonus is at least the
 * threshold, which is the smaller of the limit and the largest score. */
int64_t ff_fixed_choose_passing(double *model, double beta, double gamma, const ff_sieve *sieve)
{
    const parts m = cut(model);
    const factors f = {beta, gamma};
    const int64_t last = (int64_t)model[CHOSEN];
    const double reach = 2.0 * sieve->slack - 1.0, reached = m.mean[last] + reach * model[BONUS];
    if (reached >= sieve->limit)
        return (int64_t)m.offered[last];
    bound_all(&m, f, 1.0, m.upper);
    const valued largest = find_largest(&m, f, 1.0, m.upper);
    const double threshold = largest.value < sieve->limit ? largest.value : sieve->limit;
    if (reached >= threshold)
        return (int64_t)m.offered[last];
    /* The action with the largest score passes, so only larger rankings matter. */
    valued best = value_of(&m, f, sieve->ranking, largest.action);
    bound_all(&m, f, reach, m.upper);
    for (int64_t block = 0; block < m.np; block += LANES) {
        unsigned remaining = reaching(m.rank + block, all(best.value)) &
                             reaching(m.upper + block, all(threshold));
        for (int64_t a = block; remaining; a++, remaining >>= 1) {
            if (!(remaining & 1))
                continue;
            const valued next = value_of(&m, f, sieve->ranking, a);
            if (m.mean[a] + reach * next.bonus >= threshold && is_better(next, best))
                best = next;
        }
    }
    return store_choice(model, &m, best);
}

/* ---- learning -------------------------------------------------------------------------------- */

/* Copy row k of the symmetric matrix g or h to out (np). Entries (k, j) with j < k - k % LANES are
 * read from column k, because those of row k are not updated. */
FF_INLINE void read_row(const double *restrict matrix, const parts *m, int64_t k,
                        double *restrict out)
{
    const int64_t first = k - k % LANES;
    for (int64_t j = 0; j < first; j++)
        out[j] = matrix[j * m->np + k];
    for (int64_t j = first; j < m->np; j++)
        out[j] = matrix[k * m->np + j];
}

/* Subtract z z' from g (if with_g) and z u' + u z' from h (if with_h) for every queued data point,
 * in rows k..k + rows - 1 and in LANES columns from j on. */
FF_INLINE void subtract_block(const parts *m, int64_t queued, int64_t k, const int rows, int64_t j,
                              const int with_g, const int with_h)
{
    const int64_t np = m->np;
    loose g[ROWS_AT_ONCE][VECTORS], h[ROWS_AT_ONCE][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) {
            g[r][v] = with_g ? LOAD(m->g + (k + r) * np + j + v * WIDTH) : all(0.0);
            h[r][v] = with_h ? LOAD(m->h + (k + r) * np + j + v * WIDTH) : all(0.0);
        }
    /* The addresses of z; those of u are at a constant distance. */
    const double *row_z = m->queue_z + k, *column_z = m->queue_z + j;
    const double *const end = row_z + queued * np;
    const int64_t to_u = m->queue_u - m->queue_z;
    for (; row_z < end; row_z += np, column_z += np) {
        loose zs[VECTORS], us[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            zs[v] = LOAD(column_z + v * WIDTH);
            us[v] = LOAD(column_z + to_u + v * WIDTH);
        }
        for (int r = 0; r < rows; r++) {
            const loose by_z = all(row_z[r]), by_u = all(row_z[to_u + r]);
            for (int v = 0; v < VECTORS; v++) {
                g[r][v] = with_g ? fused_less(by_z, zs[v], g[r][v]) : g[r][v];
                h[r][v] = with_h ? fused_less(by_z, us[v], h[r][v]) : h[r][v];
                h[r][v] = with_h ? fused_less(by_u, zs[v], h[r][v]) : h[r][v];
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) {
            if (with_g)
                STORE(m->g + (k + r) * np + j + v * WIDTH, g[r][v]);
            if (with_h)
                STORE(m->h + (k + r) * np + j + v * WIDTH, h[r][v]);
        }
}

/* Subtract all queued data points from rows k..k + rows - 1 of g and h, in columns from
 * k - k % LANES on; earlier columns are never read (read_row). */
FF_INLINE void subtract_rows(const parts *m, int64_t queued, int64_t k, const int rows)
{
    for (int64_t j = k - k % LANES; j < m->np; j += LANES) {
        subtract_block(m, queued, k, rows, j, 1, MATRICES_AT_ONCE > 1);
        if (MATRICES_AT_ONCE == 1)
            subtract_block(m, queued, k, rows, j, 0, 1);
    }
}

/* Subtract all queued data points from g and h, except from their entries (k, j) with
 * j < k - k % LANES, which are never read, because g and h are symmetric. */
static void subtract_queue(const parts *m, int64_t queued)
{
    int64_t k = 0;
    for (; k + ROWS_AT_ONCE <= m->n; k += ROWS_AT_ONCE)
        subtract_rows(m, queued, k, ROWS_AT_ONCE);
    for (; k < m->n; k++)
        subtract_rows(m, queued, k, 1);
}

/* Subtract the queued data points from row k of g and of h, which are in z and u, at actions a,
 * a + 1, .. (`vectors` vectors). */
FF_INLINE void subtract_points(const parts *m, int64_t k, int64_t queued, int64_t a,
                               const int vectors)
{
    loose z[TILE_VECTORS], u[TILE_VECTORS];
    for (int v = 0; v < vectors; v++) {
        z[v] = LOAD(m->z + a + v * WIDTH);
        u[v] = LOAD(m->u + a + v * WIDTH);
    }
    for (int64_t q = 0; q < queued; q++) {
        const double *of_z = m->queue_z + q * m->np, *of_u = m->queue_u + q * m->np;
        const loose by_z = all(of_z[k]), by_u = all(of_u[k]);
        for (int v = 0; v < vectors; v++) {
            const loose zs = LOAD(of_z + a + v * WIDTH);
            z[v] = fused_less(by_z, zs, z[v]);
            u[v] = fused_less(by_u, zs, fused_less(by_z, LOAD(of_u + a + v * WIDTH), u[v]));
        }
    }
    for (int v = 0; v < vectors; v++) {
        STORE(m->z + a + v * WIDTH, z[v]);
        STORE(m->u + a + v * WIDTH, u[v]);
    }
}

/* Compute X V^{-1} x_k into z and X V^{-2} x_k into u, (np) each, where the rows of X are the
 * actions: copy row k of g and of h, and subtract the queued data points from these copies. */
static void read_products(const parts *m, int64_t k, int64_t queued)
{
    read_row(m->g, m, k, m->z);
    read_row(m->h, m, k, m->u);
    BY_TILES(m->np, subtract_points, m, k, queued);
}

/* Update the means and squared widths of a vector of actions by z and u. by: factor of z in the
 * means. */
FF_INLINE void update_actions(const parts *m, int64_t a, loose z, loose u, double by)
{
    STORE(m->mean + a, LOAD(m->mean + a) + by * z);
    STORE(m->width + a, LOAD(m->width + a) - z * z);
    STORE(m->second + a, LOAD(m->second + a) - (z + z) * u);
}

/* Compute z and u of actions a, a + 1, .. (`vectors` vectors), their products with `along` and
 * `across`, and update the actions by them. */
FF_INLINE void update_rows(const parts *m, double by, int64_t a, const int vectors)
{
    loose z[TILE_VECTORS], u[TILE_VECTORS];
    for (int v = 0; v < vectors; v++)
        z[v] = u[v] = (loose){0};
    for (int64_t j = 0; j < m->d; j++) {
        const float *row = m->rows + j * m->np + a;
        const loose along = all(m->along[j]), across = all(m->across[j]);
        for (int v = 0; v < vectors; v++) {
            const loose x = widened(row + v * WIDTH);
            z[v] = fused(along, x, z[v]);
            u[v] = fused(across, x, u[v]);
        }
    }
    for (int v = 0; v < vectors; v++)
        update_actions(m, a + v * WIDTH, z[v], u[v], by);
}

/* Compute entries j, j + 1, .. (`vectors` vectors) of V^{-1} x into v. */
FF_INLINE void multiply_inverse(const parts *m, int64_t j, const int vectors)
{
    loose sum[TILE_VECTORS];
    for (int v = 0; v < vectors; v++)
        sum[v] = (loose){0};
    for (int64_t i = 0; i < m->d; i++) {
        const loose factor = all(m->x[i]);
        for (int v = 0; v < vectors; v++)
            sum[v] = fused(factor, LOAD(m->inverse + i * m->dp + j + v * WIDTH), sum[v]);
    }
    for (int v = 0; v < vectors; v++)
        STORE(m->v + j + v * WIDTH, sum[v]);
}

/* Subtract along along' from columns j, j + 1, .. (`vectors` vectors) of V^{-1}. Before that, write
 * the same entries of V^{-1} along to `across`. */
FF_INLINE void update_inverse(const parts *m, int64_t j, const int vectors)
{
    loose sum[TILE_VECTORS], along[TILE_VECTORS];
    for (int v = 0; v < vectors; v++) {
        sum[v] = (loose){0};
        along[v] = LOAD(m->along + j + v * WIDTH);
    }
    for (int64_t i = 0; i < m->d; i++) {
        double *row = m->inverse + i * m->dp + j;
        const loose factor = all(m->along[i]);
        for (int v = 0; v < vectors; v++) {
            const loose before = LOAD(row + v * WIDTH);
            sum[v] = fused(factor, before, sum[v]);
            STORE(row + v * WIDTH, fused_less(factor, along[v], before));
        }
    }
    for (int v = 0; v < vectors; v++)
        STORE(m->across + j + v * WIDTH, sum[v]);
}

/* Learn x = f x_k, where k is the action that was chosen last, and f the factor of clipping. The
 * rows of X are the actions. Let V be the Gram matrix before x is learned, P = V^{-1}, v = P x,
 * s = 1 + <x, v> and r = 1 / sqrt(s). The data point subtracts r v (r v)' from P. With z = X r v,
 * q = ||r v||^2 and u = X (P r v - q r v / 2),
 *   X P X' loses z z',  X P^2 X' loses z u' + u z',  <x_a, theta> grows by r (y - <x, theta>) z_a.
 * Returns s. In the code, along = r v, half = q / 2, and across = P along - half along. */
double ff_fixed_observe(double *model, double y)
{
    const parts m = cut(model);
    const int64_t k = (int64_t)model[CHOSEN], d = m.d, dp = m.dp, np = m.np;
    int64_t queued = (int64_t)model[QUEUED];
    const double f = m.factor[k], residual = y - f * m.mean[k];
    double s, r;
    m.weight[k] += f * f;
    if (m.arms) {
        /* V is diagonal, and V_kk becomes V_kk + f^2. */
        s = 1.0 + f * f * m.width[k];
        m.mean[k] += f * m.width[k] / s * residual;
        m.width[k] /= s;
        m.second[k] = m.width[k] * m.width[k];
        return s;
    }
    if (m.by_pairs) {
        read_products(&m, k, queued);
        s = 1.0 + f * f * m.z[k];
        r = 1.0 / sqrt(s);
        const double half = 0.5 * f * f * m.u[k] / s, scale = r * f;
        double *restrict z = m.queue_z + queued * np, *restrict u = m.queue_u + queued * np;
        for (int64_t a = 0; a < np; a += WIDTH) {
            const loose by_z = scale * LOAD(m.z + a), by_u = scale * LOAD(m.u + a) - half * by_z;
            STORE(z + a, by_z);
            STORE(u + a, by_u);
            update_actions(&m, a, by_z, by_u, r * residual);
        }
        model[QUEUED] = (double)++queued;
        if (queued == QUEUE) {
            subtract_queue(&m, queued);
            model[QUEUED] = 0.0;
        }
    } else {
        for (int64_t i = 0; i < d; i++)
            m.x[i] = f * (double)m.rows[i * np + k];
        BY_TILES(dp, multiply_inverse, &m);
        s = 1.0 + ff_dot(m.x, m.v, d);
        r = 1.0 / sqrt(s);
        for (int64_t j = 0; j < dp; j++)
            m.along[j] = r * m.v[j];
        BY_TILES(dp, update_inverse, &m);
        const double half = 0.5 * ff_dot(m.along, m.along, d);
        for (int64_t j = 0; j < dp; j++)
            m.across[j] -= half * m.along[j];
        BY_TILES(np, update_rows, &m, r * residual);
    }
    return s;
}

/* Return -ln ||x||^2_{V^-1} of the action x that was chosen last. If x is unit vector a and V is
 * diagonal, this is ln V_aa. */
double ff_fixed_log_entry(const double *model)
{
    return -ff_log(cut((double *)model).width[(int64_t)model[CHOSEN]]);
}

/* Return 1 if actions are the unit vectors (arms), otherwise 0. *mean and *width receive the
 * addresses of theta and of the diagonal of V^{-1}. */
int ff_fixed_arms(const double *model, const double **mean, const double **width)
{
    const parts m = cut((double *)model);
    *mean = m.mean;
    *width = m.width;
    return m.arms;
}

/* Set theta and the diagonal of V^{-1} at an arm. */
void ff_fixed_set_arm(double *model, int64_t a, double mean, double width)
{
    const parts m = cut(model);
    m.mean[a] = mean;
    m.width[a] = width;
    m.second[a] = width * width;
}

/* Return 1 if the features of the action that was chosen last exceed the bound on their norm by
 * more than rounding, so that learning them counts as clipping (ff_clip_norm). */
int ff_fixed_is_clipped(const double *model)
{
    return cut((double *)model).clipped[(int64_t)model[CHOSEN]] != 0.0;
}

/* Return an upper bound on the largest eigenvalue of V^{-1}. w: the W from which the model was
 * made. If it is a multiple of I, V was one at that time, and has since grown by weight x x' for
 * every action x. If it is not, or if K < d, returns INFINITY, except for arms. */
double ff_fixed_inverse_norm(const double *model, const ff_actions *actions, const double *w,
                             int64_t d, double *scratch)
{
    const parts m = cut((double *)model);
    if (m.arms)
        return largest_of(m.width, m.np) * (1.0 + 0x1p-50);
    const double multiple = ff_multiple_of_identity(w, d);
    if (actions->actions < d || multiple == 0.0)
        return INFINITY;
    /* When the model was made, V was I / multiple^2. */
    double *packed = scratch + d * d, *x = packed + ff_packed(d);
    memset(packed, 0, (size_t)ff_packed(d) * sizeof(double));
    for (int64_t i = 0; i < d; i++)
        packed[ff_packed(i) + i] = 1.0 / (multiple * multiple);
    for (int64_t a = 0; a < m.n; a++) {
        ff_features(actions, (int64_t)m.offered[a], d, x);
        for (int64_t i = 0; m.weight[a] > 0.0 && i < d; i++)
            for (int64_t j = 0; j <= i; j++)
                packed[ff_packed(i) + j] += m.weight[a] * (x[i] * x[j]);
    }
    return ff_factor(packed, d, scratch) ? INFINITY : ff_inverse_norm(scratch, d, scratch + d * d);
}
