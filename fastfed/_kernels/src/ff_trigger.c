#include "ff_trigger.h"

#include <math.h>

#include "ff_panel.h"

int64_t ff_trigger_scratch(int64_t d) { return 2 * ff_statistic(d) + d * d; }

/* Scratch, cut into its parts: a statistic, the one that is compared with S, its factor. */
typedef struct {
    double *sum, *v, *w;
} parts;

static parts cut(double *scratch, int64_t d)
{
    const int64_t s = ff_statistic(d);
    return (parts){scratch, scratch + s, scratch + 2 * s};
}

static void add_ridge(double *v, double ridge, int64_t d)
{
    for (int64_t i = 0; i < d; i++)
        v[d + i * (i + 1) / 2 + i] += ridge;
}

/* Growth of ln det, of V = v + ridge I against S. A matrix that is not positive definite has not
 * grown: the private rule may only use what is private. */
static double growth_of(const ff_trigger *trigger, double ridge, int64_t d, const parts *p)
{
    add_ridge(p->v, ridge, d);
    return ff_factor(p->v + d, d, p->w) == 0 ? ff_log_det(p->w, d) - trigger->before : -INFINITY;
}

/* ---- FF_DETERMINANT -------------------------------------------------------------------------- */

/* Over any further rounds ln det V grows by at most sum x' V^{-1} x <= ||W||^2 sum ||x||^2, of the
 * V and W of now, for V only grows. That much is exact; with u = 2^-53, k more rounds, and a trace
 * of V that at most doubles, rounding changes it so:
 * - Every entry of V is off by u of itself for each data point and each of the last two sums,
 *   and Cholesky adds (d + 2) u (Higham 2002, Theorem 10.3), all relative to diagonal entries: a
 *   matrix E with ||E||_F <= 4 u (k + d + 8) size at both ends together, where `size` is the trace
 *   and d times what was added to the diagonal, which may have cancelled.
 * - ln det(V + E) is off by tr(V^{-1} E) and second-order terms, so by 10 u (k + d + 8) size
 *   ||W||_F^2 where that is below 1/16, and ||W||^2 by as much of itself.
 * - The logarithms, each below 745, and their sum add d (d + 4) 2^-42.
 * The next determinant comes after as many rounds again, so k <= n + 64. */
static ff_skip_bound skip_bound_of(double growth, double ridge, int64_t rounds, int64_t d,
                                   const parts *p)
{
    double trace = 0.0, total = 0.0, diagonal = 0.0, largest = 0.0;
    for (int64_t i = 0; i < d; i++) {
        const double entry = p->w[i * d + i];
        trace += p->v[d + i * (i + 1) / 2 + i];
        for (int64_t j = 0; j <= i; j++)
            total += p->w[i * d + j] * p->w[i * d + j];
        diagonal += entry * entry;
        largest = entry > largest ? entry : largest;
    }
    const double norm = norm_bound(total, diagonal, largest, d);
    const double size = trace + (double)d * fabs(ridge);
    const double error = 10.0 * 0x1p-53 * (double)(rounds + 64 + d + 8) * size * total;
    /* Not where the matrix is no longer known well; nor is that one which has no factor. */
    if (!(growth > -INFINITY) || !(error < 0.0625))
        return (ff_skip_bound){0};
    return (ff_skip_bound){
        .base = growth + error + (double)(d * (d + 4)) * 0x1p-42 + fabs(growth) * 0x1p-50,
        .slope = norm * norm * (1.0001 + 2.0 * error),
        .most_mass = trace,
        .next = (double)(2 * rounds + 64),
    };
}

static int skips(ff_trigger *trigger, int64_t silo, int64_t rounds, double square)
{
    ff_skip_bound *bound = trigger->skip_bound + silo;
    bound->mass += square;
    return (double)rounds < bound->next && bound->mass < bound->most_mass &&
           bound->base + bound->slope * bound->mass < trigger->threshold / (double)rounds;
}

static int has_grown(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, int64_t d, const parts *p)
{
    if (d > FF_RECOMPUTE_MAX) {
        double *w = trigger->aggregate_factor + silo * d * d;
        double *grown = &trigger->skip_bound[silo].base;
        *grown += ff_log(ff_observe(w, NULL, x, 0.0, d, p->sum));
        return *grown >= trigger->threshold / (double)rounds;
    }
    const double ridge = trigger->ridge + trigger->extra;
    memcpy(p->v, total, (size_t)ff_statistic(d) * sizeof(double));
    ff_add(p->v, batch, ff_statistic(d));
    const double growth = growth_of(trigger, ridge, d, p);
    trigger->skip_bound[silo] = skip_bound_of(growth, ridge, rounds, d, p);
    return growth >= trigger->threshold / (double)rounds;
}

/* ---- FF_PRIVATE_DETERMINANT ------------------------------------------------------------------ */

/* By the means of eigenvalues, the geometric and the arithmetic one: with W of S, and V positive
 * definite,
 *     ln det V - ln det S = ln det(W V W') <= d ln(tr(W V W') / d) = d ln(<A, V> / d),  A = W'W,
 * for any W whatever: `before` is -2 sum ln W_ii, so nothing rests on how well W belongs to S. As
 * <A, V> is linear in V = S + Q + N, a dot product tells it, and before N is drawn its largest value
 * is known: <A, Q> <= ||W||^2 sum ||x||^2, and no normal of ours is beyond NORMAL. What rounding does,
 * u = 2^-53:
 * - Cholesky factors V + E, |E_ij| <= (d + 2) u sqrt(V_ii V_jj) (Higham 2002, Theorem 10.5), if it
 *   ends at all, and then |V_ij| is below sqrt(V_ii V_jj), but for as little. A's entries are sums of d
 *   products: off by (d + 1) u sqrt(A_ii A_jj). A dot product of n terms is off by n u of the sum of
 *   their magnitudes. All three are multiples of (sum_i sqrt(A_ii V_ii))^2 <= d sum_i A_ii V_ii.
 * - Before V is there: its entries are sums of four numbers, of which Q has n + 2 terms. ||.||_F of what
 *   that makes, with E, is below u (n + d + 20) times `size` + sum ||x||^2, where `size` is at least d
 *   times the norms of the total and the ridge, and the sum of magnitudes of all noise; A's is below
 *   tr A.
 * - The logarithms are as above, twice. */

/* sqrt(-2 ln 2^-54) = 8.652 is the radius of Box and Muller's largest pair of 53 bits. */
#define NORMAL 8.7

/* The most that a determinant can have grown by where <A, V> is at most `trace`. */
static double most_growth(const ff_trigger *trigger, double trace, int64_t d)
{
    if (!(trace > 0.0) || !(trace < INFINITY))
        return INFINITY;
    const double n = (double)d, growth = n * ff_log(trace / n);
    return growth + (double)(d * (d + 4)) * 0x1p-40 +
           (fabs(growth) + fabs(trigger->before)) * 0x1p-48;
}

/* At least <A, v + E> where Cholesky's of v ends; NaN where its diagonal says that it does not. */
static double trace_with(const double *inverse, const double *v, int64_t d)
{
    const int64_t packed = ff_packed(d);
    double part[8] = {0.0}, sum = 0.0, diagonal = 0.0;
    for (int64_t i = 0; i < d; i++) {
        const int64_t e = i * (i + 1) / 2 + i;
        if (!(v[e] > 0.0))
            return NAN;
        diagonal += inverse[e] * v[e];
    }
    int64_t e = 0;
    for (; e + 8 <= packed; e += 8)
        for (int l = 0; l < 8; l++)
            part[l] += inverse[e + l] * v[e + l];
    for (; e < packed; e++)
        sum += inverse[e] * v[e];
    for (int l = 0; l < 8; l++)
        sum += part[l];
    return sum + 0x1p-52 * (double)(d * (d * d + 4 * d + 64)) * diagonal;
}

static void bound_trace(ff_trigger *trigger, const double *total, const double *w, int64_t silos,
                        int64_t d, const parts *p)
{
    double *inverse = trigger->inverse + d, diagonal = 0.0, squares = 0.0, largest = 0.0;
    double trace = 0.0, off = 0.0, norm = 0.0;
    const int64_t packed = ff_packed(d);
    memset(inverse, 0, (size_t)packed * sizeof(double));
    for (int64_t k = 0; k < d; k++) {
        const double *row = w + k * d;
        for (int64_t i = 0; i <= k; i++) {
            double *restrict a = inverse + i * (i + 1) / 2;
            for (int64_t j = 0; j <= i; j++)
                a[j] += row[i] * row[j];
            squares += row[i] * row[i];
        }
        diagonal += row[k] * row[k];
        largest = row[k] > largest ? row[k] : largest;
    }
    for (int64_t i = 0; i < d; i++) {
        double *a = inverse + i * (i + 1) / 2;
        for (int64_t j = 0; j < i; j++) {
            a[j] *= 2.0;
            off += fabs(a[j]);
        }
        trace += a[i];
    }
    memcpy(p->v, total, (size_t)ff_statistic(d) * sizeof(double));
    add_ridge(p->v, trigger->ridge, d);
    for (int64_t e = 0; e < packed; e++)
        norm += total[d + e] * total[d + e];
    const double n = (double)d, width = norm_bound(squares, diagonal, largest, d);
    const double std = fmax(trigger->std.diagonal, trigger->std.off_diagonal);
    /* Sums of squares off the diagonal count twice in a norm: 1.5 is above sqrt(2). */
    *trigger->trace_bound = (ff_trace_bound){
        .base = trace_with(inverse, p->v + d, d),
        .slope = width * width * 1.0001,
        .noise = NORMAL * (trigger->std.diagonal * trace + trigger->std.off_diagonal * off +
                           0x1p-50 * n * n * std * trace) * 1.0001,
        .rounding = 0x1p-51 * trace,
        .size = n * (1.5 * sqrt(norm) + fabs(trigger->ridge)) +
                NORMAL * (double)trigger->levels * n * n * std,
    };
    memset(trigger->mass, 0, (size_t)silos * sizeof(double));
}

static int skips_privately(ff_trigger *trigger, int64_t silo, int64_t rounds, double square, int64_t d)
{
    const ff_trace_bound *b = trigger->trace_bound;
    const double mass = trigger->mass[silo] += square;
    int64_t nodes = 0;
    for (int64_t left = rounds; left; left &= left - 1)
        nodes++;
    const double trace = b->base + b->slope * mass + b->noise * (double)nodes +
                         b->rounding * (double)(rounds + d + 20) * (b->size + mass);
    return most_growth(trigger, trace, d) < trigger->threshold / (double)rounds;
}

/* Standard normals of prefix n. */
static void prefix_noise(ff_trigger *trigger, int64_t silo, int64_t rounds, const ff_stream *noise,
                         int64_t stride, int64_t d, double *normals)
{
    const int64_t s = ff_statistic(d);
    double *nodes = trigger->nodes + silo * trigger->levels * s;
    int64_t *drawn = trigger->node_rounds + silo * trigger->levels;
    for (int64_t level = 0; rounds >> level; level++) {
        if (!((rounds >> level) & 1))
            continue;
        /* The node ends with this round of the batch. */
        const int64_t last = rounds >> level << level, at = trigger->last + last;
        if (drawn[level] == at)
            continue;
        ff_stream stream = *noise;
        stream.index -= (uint32_t)((rounds - last) * stride);
        ff_normals_f64(&stream, ff_packed(d), normals);
        memset(nodes + level * s, 0, (size_t)d * sizeof(double));
        memcpy(nodes + level * s + d, normals, (size_t)ff_packed(d) * sizeof(double));
        drawn[level] = at;
    }
    ff_prefix(nodes, rounds, s, normals);
}

static int has_grown_privately(ff_trigger *trigger, int64_t silo, int64_t rounds,
                               const double *total, const double *batch, const ff_stream *noise,
                               int64_t stride, int64_t d, double *normals, const parts *p)
{
    const int64_t s = ff_statistic(d);
    const double bar = trigger->threshold / (double)rounds;
    prefix_noise(trigger, silo, rounds, noise, stride, d, normals);
    memcpy(p->sum, total, (size_t)s * sizeof(double));
    ff_add(p->sum, batch, s);
    ff_add_noise(p->sum, normals, &trigger->std, d, p->v);
    add_ridge(p->v, trigger->ridge, d);
    if (most_growth(trigger, trace_with(trigger->inverse + d, p->v + d, d), d) < bar)
        return 0;
    return ff_factor_diagonal(p->v + d, d, p->w) == 0 &&
           ff_log_det(p->w, d) - trigger->before > bar;
}

/* ---- both ------------------------------------------------------------------------------------ */

void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                        int64_t silos, int64_t d, double *scratch)
{
    trigger->before = ff_log_det(w, d);
    trigger->ridge = ridge;
    const parts p = cut(scratch, d);
    if (trigger->kind != FF_DETERMINANT) {
        bound_trace(trigger, total, w, silos, d, &p);
        return;
    }
    memcpy(p.v, total, (size_t)ff_statistic(d) * sizeof(double));
    const double growth = growth_of(trigger, ridge + trigger->extra, d, &p);
    const ff_skip_bound bound = d > FF_RECOMPUTE_MAX
                                    ? (ff_skip_bound){.base = growth}
                                    : skip_bound_of(growth, ridge + trigger->extra, 0, d, &p);
    for (int64_t i = 0; i < silos; i++) {
        trigger->skip_bound[i] = bound;
        if (d > FF_RECOMPUTE_MAX)
            memcpy(trigger->aggregate_factor + i * d * d, p.w, (size_t)(d * d) * sizeof(double));
    }
}

int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d)
{
    if (trigger->kind == FF_DETERMINANT && d > FF_RECOMPUTE_MAX)
        return 0;
    const double square = ff_dot(x, x, d);
    return trigger->kind == FF_DETERMINANT ? skips(trigger, silo, rounds, square)
                                           : skips_privately(trigger, silo, rounds, square, d);
}

int ff_trigger_fires(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, const ff_stream *noise,
                     int64_t stride, int64_t d, double *normals, double *scratch)
{
    const parts p = cut(scratch, d);
    if (trigger->kind == FF_DETERMINANT)
        return has_grown(trigger, silo, rounds, x, total, batch, d, &p);
    return has_grown_privately(trigger, silo, rounds, total, batch, noise, stride, d, normals,
                               &p);
}
