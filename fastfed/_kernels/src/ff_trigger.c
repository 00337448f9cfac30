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

/* Growth of ln det, of V = v + ridge I against S. A matrix that is not positive definite has not
 * grown: the private rule may only use what is private. */
static double growth_of(const ff_trigger *trigger, double ridge, int64_t d, const parts *p)
{
    for (int64_t i = 0; i < d; i++)
        p->v[d + i * (i + 1) / 2 + i] += ridge;
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

int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d)
{
    if (trigger->kind != FF_DETERMINANT || d > FF_RECOMPUTE_MAX)
        return 0;
    ff_skip_bound *bound = trigger->skip_bound + silo;
    double square = 0.0;
    for (int64_t j = 0; j < d; j++)
        square += x[j] * x[j];
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

static int has_grown_privately(ff_trigger *trigger, int64_t silo, int64_t rounds,
                               const double *total, const double *batch, const ff_stream *noise,
                               int64_t d, double *normals, const parts *p)
{
    const int64_t s = ff_statistic(d), level = ff_node_level(rounds);
    double *nodes = trigger->nodes + silo * trigger->levels * s, *node = nodes + level * s;
    ff_normals_f64(noise, ff_packed(d), normals);
    memset(node, 0, (size_t)d * sizeof(double));
    memcpy(node + d, normals, (size_t)ff_packed(d) * sizeof(double));
    ff_prefix(nodes, rounds, s, normals);
    memcpy(p->sum, total, (size_t)s * sizeof(double));
    ff_add(p->sum, batch, s);
    ff_add_noise(p->sum, normals, &trigger->std, d, p->v);
    return growth_of(trigger, trigger->ridge, d, p) > trigger->threshold / (double)rounds;
}

/* ---- both ------------------------------------------------------------------------------------ */

void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                        int64_t silos, int64_t d, double *scratch)
{
    trigger->before = ff_log_det(w, d);
    trigger->ridge = ridge;
    if (trigger->kind != FF_DETERMINANT)
        return;
    const parts p = cut(scratch, d);
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

int ff_trigger_fires(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, const ff_stream *noise, int64_t d,
                     double *normals, double *scratch)
{
    const parts p = cut(scratch, d);
    if (trigger->kind == FF_DETERMINANT)
        return has_grown(trigger, silo, rounds, x, total, batch, d, &p);
    return has_grown_privately(trigger, silo, rounds, total, batch, noise, d, normals, &p);
}
