/* Symbols: d features; a statistic has s = d + d (d + 1) / 2 numbers (ff_aggregation.h). V is the
 * regularised Gram matrix, W its inverse factor (ff_linalg.h), theta the estimate. */
#include "ff_trigger.h"

#include <math.h>

#include "ff_panel.h"

/* Return the number of doubles of scratch that ff_trigger_restart and ff_trigger_fires need. */
int64_t ff_trigger_scratch(int64_t d) { return 2 * ff_statistic(d) + d * d; }

/* The scratch, cut into arrays. sum (s) is a statistic. v (s) is another one; adding the ridge in
 * place to its covariance part, which begins at v + d, gives a matrix V. w (d, d) is the inverse
 * factor of this V. */
typedef struct {
    double *sum, *v, *w;
} parts;

/* Return pointers to the arrays in the scratch. */
static parts cut(double *scratch, int64_t d)
{
    const int64_t s = ff_statistic(d);
    return (parts){scratch, scratch + s, scratch + 2 * s};
}

/* Add `ridge` to the diagonal of the covariance in a statistic v. The covariance is the packed
 * lower triangle that follows the d bias entries. */
static void add_ridge(double *v, double ridge, int64_t d)
{
    for (int64_t i = 0; i < d; i++)
        v[d + i * (i + 1) / 2 + i] += ridge;
}

/* Return ln det(C + ridge I) - ln det S for the covariance C in p->v and the S of ff_trigger.h (V
 * after the last synchronisation). Returns -INFINITY if C + ridge I is not positive definite, so
 * that the trigger does not fire. Adds the ridge to p->v, and writes the inverse factor to p->w. */
static double growth_of(const ff_trigger *trigger, double ridge, int64_t d, const parts *p)
{
    add_ridge(p->v, ridge, d);
    return ff_factor(p->v + d, d, p->w) == 0 ? ff_log_det(p->w, d) - trigger->before : -INFINITY;
}

/* ---- FF_DETERMINANT -------------------------------------------------------------------------- */

/* Return the skip bound for the rounds after the present one. In the present round the determinant
 * was computed. growth: the growth of ln det V since the last synchronisation; p->v, p->w: V and W.
 * ridge: the number that was added to the diagonal of V. rounds: n, the number of rounds since the
 * last synchronisation.
 *
 * Claim: over any further rounds ln det V grows by at most sum x' V^{-1} x <= ||W||^2 sum ||x||^2,
 * with V and W at the present round, because V only grows. This is exact. Rounding, with u = 2^-53,
 * k further rounds, and a trace of V that at most doubles, has these effects:
 * - Every entry of V gets a relative error u for each data point, and u for each of the last two
 *   additions (of total and batch, and of the ridge). Cholesky adds (d + 2) u (Higham 2002, Theorem
 *   10.3). All are relative to diagonal entries. Together, for the first and the last determinant,
 *   these errors form a matrix E with ||E||_F <= 4 u (k + d + 8) size. Here `size` is the trace of
 *   V plus d |ridge|, which also covers a ridge below 0 that cancels a part of the trace.
 * - ln det(V + E) differs from ln det V by tr(V^{-1} E) and second-order terms, so by at most 10 u
 *   (k + d + 8) size ||W||_F^2 if that is below 1/16. ||W||^2 has the same relative error.
 * - The logarithms, each below 745, and their sum add d (d + 4) 2^-42.
 * The next determinant is computed in round 2 n + 64 at the latest, so k <= n + 64. */
static ff_skip_bound skip_bound_of(double growth, double ridge, int64_t rounds, int64_t d,
                                   const parts *p)
{
    double trace = 0.0, w_square = 0.0, diagonal = 0.0, largest = 0.0;
    for (int64_t i = 0; i < d; i++) {
        const double entry = p->w[i * d + i];
        trace += p->v[d + i * (i + 1) / 2 + i];
        for (int64_t j = 0; j <= i; j++)
            w_square += p->w[i * d + j] * p->w[i * d + j];
        diagonal += entry * entry;
        largest = entry > largest ? entry : largest;
    }
    const double norm = norm_bound(w_square, diagonal, largest, d);
    const double size = trace + (double)d * fabs(ridge);
    const double error = 10.0 * 0x1p-53 * (double)(rounds + 64 + d + 8) * size * w_square;
    /* No bound if rounding error is not small, or if the matrix has no factor. */
    if (!(growth > -INFINITY) || !(error < 0.0625))
        return (ff_skip_bound){0};
    return (ff_skip_bound){
        .base = growth + error + (double)(d * (d + 4)) * 0x1p-42 + fabs(growth) * 0x1p-50,
        .slope = norm * norm * (1.0001 + 2.0 * error),
        .most_mass = trace,
        .next = (double)(2 * rounds + 64),
    };
}

/* Add a data point with ||x||^2 = square to the silo's skip bound, which bounds the growth of
 * ln det V. Returns 1 if the bound proves that the trigger does not fire in round `rounds` of the
 * batch. For FF_DETERMINANT with d <= FF_RECOMPUTE_MAX. */
static int skips_determinant(ff_trigger *trigger, int64_t silo, int64_t rounds, double square)
{
    ff_skip_bound *bound = trigger->skip_bound + silo;
    bound->mass += square;
    return (double)rounds < bound->next && bound->mass < bound->most_mass &&
           bound->base + bound->slope * bound->mass < trigger->threshold / (double)rounds;
}

/* FF_DETERMINANT: return 1 if ln det V has grown by at least threshold / rounds since the last
 * synchronisation, `rounds` rounds ago. Above FF_RECOMPUTE_MAX features, x (d) updates the silo's
 * inverse factor of V (aggregate_factor), and the growth that is stored in skip_bound.base.
 * Otherwise the determinant is computed from total + batch, and with it a new skip bound. */
static int has_grown(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x,
                     const double *total, const double *batch, int64_t d, const parts *p)
{
    if (d > FF_RECOMPUTE_MAX) {
        double *w = trigger->aggregate_factor + silo * d * d;
        double *stored_growth = &trigger->skip_bound[silo].base;
        *stored_growth += ff_log(ff_observe(w, NULL, x, 0.0, d, p->sum));
        return *stored_growth >= trigger->threshold / (double)rounds;
    }
    const double ridge = trigger->ridge + trigger->extra;
    memcpy(p->v, total, (size_t)ff_statistic(d) * sizeof(double));
    ff_add(p->v, batch, ff_statistic(d));
    const double growth = growth_of(trigger, ridge, d, p);
    trigger->skip_bound[silo] = skip_bound_of(growth, ridge, rounds, d, p);
    return growth >= trigger->threshold / (double)rounds;
}

/* ---- FF_PRIVATE_DETERMINANT ------------------------------------------------------------------ */

/* Theorem behind the bound: by the inequality of arithmetic and geometric means for eigenvalues,
 * with W the inverse factor of S, A = W'W, and V positive definite,
 *   ln det V - ln det S = ln det(W V W') <= d ln(tr(W V W') / d) = d ln(<A, V> / d).
 * This holds for any W: `before` is -2 sum ln W_ii, so the bound does not depend on how accurate W
 * is. <A, V> is linear in V = S + Q + N, so it is a dot product. Its largest value is known before
 * N is drawn: <A, Q> <= ||W||^2 sum ||x||^2, and no normal that we draw exceeds NORMAL. Rounding,
 * u = 2^-53:
 * - If Cholesky succeeds, it factors V + E, |E_ij| <= (d + 2) u sqrt(V_ii V_jj) (Higham 2002,
 *   Theorem 10.5), and |V_ij| <= sqrt(V_ii V_jj) up to the same error. Entries of A are sums of d
 *   products, with error (d + 1) u sqrt(A_ii A_jj). A dot product of n terms has error n u times
 *   the sum of their magnitudes. All three are multiples of (sum_i sqrt(A_ii V_ii))^2 <= d sum_i
 *   A_ii V_ii.
 * - Before V is computed: its entries are sums of four numbers, of which Q has n + 2 terms. The
 *   resulting error, with E, has ||.||_F below u (n + d + 20) (size + sum ||x||^2). Here `size` is
 *   at least d times the norms of the total and the ridge, plus the sum of magnitudes of all noise.
 *   ||A||_F is below tr A.
 * - Logarithms contribute twice the error stated for skip_bound_of. */

/* The radius of the largest pair that Box-Muller makes of 53 bits is sqrt(-2 ln 2^-54) = 8.652. */
#define NORMAL 8.7

/* Return the upper bound d ln(trace / d) on ln det V - ln det S of the theorem above, plus a bound
 * on rounding errors. tr(S^{-1} V) must be at most `trace`. */
static double growth_bound(const ff_trigger *trigger, double trace, int64_t d)
{
    if (!(trace > 0.0) || !(trace < INFINITY))
        return INFINITY;
    const double growth = (double)d * ff_log(trace / (double)d);
    return growth + (double)(d * (d + 4)) * 0x1p-40 +
           (fabs(growth) + fabs(trigger->before)) * 0x1p-48;
}

/* Return an upper bound on tr(A (V + E)), where A = S^{-1} and E is the rounding error of the
 * Cholesky factor of V. The bound holds if V has a factor. Returns NaN if a diagonal entry of V is
 * not above 0, so that V has none. inverse: A, packed, with doubled entries off the diagonal; v: V,
 * packed. */
static double trace_bound_of(const double *inverse, const double *v, int64_t d)
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

/* Private rule, after a synchronisation: compute *trigger->trace_bound, the bound on tr(S^-1 V)
 * that makes most determinants unnecessary. S is the V of the synchronisation, w its inverse
 * factor. Also write A = S^-1 = W'W, packed, from trigger->inverse + d on.
 * - base bounds tr(A S). slope bounds the eigenvalues of A, so slope times the sum of ||x||^2
 *   bounds tr(A Q), with Q the covariance of the silo's batch.
 * - noise bounds tr(A times the noise of one tree node); the normals of a node are at most NORMAL.
 * - rounding and size bound the rounding errors, see the theorem above NORMAL.
 * Factors of 1.0001 cover the rounding errors of these numbers. */
static void set_trace_bound(ff_trigger *trigger, const double *total, const double *w,
                            int64_t silos, int64_t d, const parts *p)
{
    double *inverse = trigger->inverse + d, diagonal = 0.0, squares = 0.0, largest = 0.0;
    double trace = 0.0, off_diagonal = 0.0, norm = 0.0;
    const int64_t packed = ff_packed(d);
    /* A = W'W, packed. */
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
    /* Double the entries off the diagonal, so that <A, V> is a dot product of packed matrices. */
    for (int64_t i = 0; i < d; i++) {
        double *a = inverse + i * (i + 1) / 2;
        for (int64_t j = 0; j < i; j++) {
            a[j] *= 2.0;
            off_diagonal += fabs(a[j]);
        }
        trace += a[i];
    }
    memcpy(p->v, total, (size_t)ff_statistic(d) * sizeof(double));
    add_ridge(p->v, trigger->ridge, d);
    for (int64_t e = 0; e < packed; e++)
        norm += total[d + e] * total[d + e];
    const double n = (double)d, width = norm_bound(squares, diagonal, largest, d);
    const double std = fmax(trigger->std.diagonal, trigger->std.off_diagonal);
    /* Entries off the diagonal count twice in the squared norm; 1.5 > sqrt(2). */
    *trigger->trace_bound = (ff_trace_bound){
        .base = trace_bound_of(inverse, p->v + d, d),
        .slope = width * width * 1.0001,
        .noise = NORMAL *
                 (trigger->std.diagonal * trace + trigger->std.off_diagonal * off_diagonal +
                  0x1p-50 * n * n * std * trace) *
                 1.0001,
        .rounding = 0x1p-51 * trace,
        .size = n * (1.5 * sqrt(norm) + fabs(trigger->ridge)) +
                NORMAL * (double)trigger->levels * n * n * std,
    };
    memset(trigger->mass, 0, (size_t)silos * sizeof(double));
}

/* Private rule: add ||x||^2 = square to the silo's mass, the sum of ||x||^2 since the last
 * synchronisation. Returns 1 if the bound of ff_trace_bound proves that the trigger does not fire
 * in round `rounds` of the batch. */
static int skips_privately(ff_trigger *trigger, int64_t silo, int64_t rounds, double square,
                           int64_t d)
{
    const ff_trace_bound *bound = trigger->trace_bound;
    const double mass = trigger->mass[silo] += square;
    /* The noise of the prefix of n = `rounds` rounds is the sum of the noises of one tree node for
     * each 1 in the binary representation of n. */
    int64_t nodes = 0;
    for (int64_t bits = rounds; bits; bits &= bits - 1)
        nodes++;
    const double trace = bound->base + bound->slope * mass + bound->noise * (double)nodes +
                         bound->rounding * (double)(rounds + d + 20) * (bound->size + mass);
    return growth_bound(trigger, trace, d) < trigger->threshold / (double)rounds;
}

/* Write to `normals` (s) the sum of the standard normals of the tree nodes that make up the prefix
 * of `rounds` rounds. Nodes that were not drawn before are drawn now, from the stream of the round
 * in which they end: `noise` is the stream of the present round, and `stride` the change of its
 * index from one round to the next. */
static void prefix_noise(ff_trigger *trigger, int64_t silo, int64_t rounds, const ff_stream *noise,
                         int64_t stride, int64_t d, double *normals)
{
    const int64_t s = ff_statistic(d);
    double *nodes = trigger->nodes + silo * trigger->levels * s;
    int64_t *drawn = trigger->node_rounds + silo * trigger->levels;
    for (int64_t level = 0; rounds >> level; level++) {
        if (!((rounds >> level) & 1))
            continue;
        /* The node ends in round node_end of the batch, which is round end_round of the run. */
        const int64_t node_end = rounds >> level << level, end_round = trigger->last + node_end;
        if (drawn[level] == end_round)
            continue;
        /* The stream of the round in which the node ends; `normals` serves as scratch. */
        ff_stream stream = *noise;
        stream.index -= (uint32_t)((rounds - node_end) * stride);
        ff_normals_f64(&stream, ff_packed(d), normals);
        memset(nodes + level * s, 0, (size_t)d * sizeof(double));
        memcpy(nodes + level * s + d, normals, (size_t)ff_packed(d) * sizeof(double));
        drawn[level] = end_round;
    }
    ff_prefix(nodes, rounds, s, normals);
}

/* Private rule: return 1 if ln det(S + Q + N) - ln det S exceeds threshold / rounds. S is V after
 * the last synchronisation, Q the covariance of the silo's batch, N the noise of the prefix of
 * `rounds` rounds. The determinant is computed only if the bound of growth_bound reaches threshold
 * / rounds. */
static int has_grown_privately(ff_trigger *trigger, int64_t silo, int64_t rounds,
                               const double *total, const double *batch, const ff_stream *noise,
                               int64_t stride, int64_t d, double *normals, const parts *p)
{
    const int64_t s = ff_statistic(d);
    const double growth_needed = trigger->threshold / (double)rounds;
    prefix_noise(trigger, silo, rounds, noise, stride, d, normals);
    memcpy(p->sum, total, (size_t)s * sizeof(double));
    ff_add(p->sum, batch, s);
    ff_add_noise(p->sum, normals, &trigger->std, d, p->v);
    add_ridge(p->v, trigger->ridge, d);
    if (growth_bound(trigger, trace_bound_of(trigger->inverse + d, p->v + d, d), d) < growth_needed)
        return 0;
    return ff_factor_diagonal(p->v + d, d, p->w) == 0 &&
           ff_log_det(p->w, d) - trigger->before > growth_needed;
}

/* ---- both rules ------------------------------------------------------------------------------ */

/* Restart the trigger after a synchronisation. S is V after it, and w the inverse factor of S.
 * Store ln det S, and compute the bounds on later growth. */
void ff_trigger_restart(ff_trigger *trigger, const double *total, double ridge, const double *w,
                        int64_t silos, int64_t d, double *scratch)
{
    trigger->before = ff_log_det(w, d);
    trigger->ridge = ridge;
    const parts p = cut(scratch, d);
    if (trigger->kind != FF_DETERMINANT) {
        set_trace_bound(trigger, total, w, silos, d, &p);
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

/* Return 1 if a cheap bound on the growth of ln det V shows that the trigger cannot fire now. For
 * FF_DETERMINANT above FF_RECOMPUTE_MAX features, return 0: the determinant itself is updated in
 * every round. */
int ff_trigger_skips(ff_trigger *trigger, int64_t silo, int64_t rounds, const double *x, int64_t d)
{
    if (trigger->kind == FF_DETERMINANT && d > FF_RECOMPUTE_MAX)
        return 0;
    const double square = ff_dot(x, x, d);
    return trigger->kind == FF_DETERMINANT ? skips_determinant(trigger, silo, rounds, square)
                                           : skips_privately(trigger, silo, rounds, square, d);
}

/* Return 1 if the trigger fires: ln det V of the silo (with noise under the private rule) has grown
 * enough since the last synchronisation. */
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
