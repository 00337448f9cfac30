/* Symbols: d experts, m clients (silos), n segments of rounds, T rounds. Losses are whole multiples
 * of a unit (ff_losses.h). */
#include "ff_experts.h"

#include <math.h>

#include "ff_environment.h"
#include "ff_random.h"

/* Number of segments (rows), or of columns, that are computed together. Rows of weights are read
 * only after all TOGETHER rows are written, see ff_hedge_weights. */
#define TOGETHER FF_SEGMENTS_TOGETHER

/* ---- Sums ---------------------------------------------------------------------------------- */

/* Return the sum of n numbers in the same order of additions as NumPy; inline for n <= 128. */
FF_INLINE double pairwise(const double *a, int64_t n)
{
    if (n < 8) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++)
            sum += a[i];
        return sum;
    }
    if (n > 128)
        return ff_pairwise(a, n);
    double r0 = a[0], r1 = a[1], r2 = a[2], r3 = a[3], r4 = a[4], r5 = a[5], r6 = a[6], r7 = a[7];
    int64_t i = 8;
    for (; i < n - n % 8; i += 8) {
        r0 += a[i];
        r1 += a[i + 1];
        r2 += a[i + 2];
        r3 += a[i + 3];
        r4 += a[i + 4];
        r5 += a[i + 5];
        r6 += a[i + 6];
        r7 += a[i + 7];
    }
    double sum = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7));
    for (; i < n; i++)
        sum += a[i];
    return sum;
}

/* Return the sum of n numbers in the same order of additions as NumPy. */
double ff_pairwise(const double *a, int64_t n)
{
    if (n <= 128)
        return pairwise(a, n);
    const int64_t half = n / 2 - n / 2 % 8;
    return ff_pairwise(a, half) + ff_pairwise(a + half, n - half);
}

/* lost (d) += row (d). */
static void add_sums(const int64_t *restrict row, int64_t d, int64_t *restrict lost)
{
    for (int64_t k = 0; k < d; k++)
        lost[k] += row[k];
}

/* Return the smallest entry of lost (d). */
static int64_t least_of(const int64_t *lost, int64_t d)
{
    int64_t smallest = lost[0];
    for (int64_t k = 1; k < d; k++)
        smallest = lost[k] < smallest ? lost[k] : smallest;
    return smallest;
}

/* ---- What the server decides ----------------------------------------------------------------- */

/* lost (d) += row (d). Returns the smallest entry of the new `lost`. */
static int64_t add_and_least(const int64_t *restrict row, int64_t d, int64_t *restrict lost)
{
    int64_t smallest = INT64_MAX;
    for (int64_t k = 0; k < d; k++) {
        const int64_t sum = lost[k] + row[k];
        lost[k] = sum;
        smallest = sum < smallest ? sum : smallest;
    }
    return smallest;
}

/* Choose the expert of each of n segments and write it to chosen (n). If exchanges[i] is 1, the
 * expert of segment i is the leader: the expert that has lost least (`lost`) before segment i.
 * Otherwise it is the expert of the segment before. Returns the number of changes. */
int64_t ff_follow(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d,
                  int64_t *lost, int64_t *expert, int64_t *chosen)
{
    int64_t switches = 0, smallest = least_of(lost, d);
    for (int64_t i = 0; i < n; i++) {
        if (exchanges[i]) {
            int64_t leader = 0;
            while (lost[leader] != smallest) /* the first of equals */
                leader++;
            switches += leader != *expert;
            *expert = leader;
        }
        chosen[i] = *expert;
        if (i + 1 < n)
            smallest = add_and_least(sums + i * d, d, lost);
    }
    return switches;
}

/* Compute n exponents of Hedge: exponent j is for an expert whose loss exceeds the best expert's
 * loss by `first` + j units. */
void ff_hedge_exponents(int64_t first, int64_t n, double unit, double silos, double rate,
                        double *exponents)
{
    for (int64_t j = 0; j < n; j++)
        exponents[j] = rate * (unit * (double)(first + j) / silos);
}

/* Compute the exponents of Hedge after each exchange, one row of d numbers: for every expert, rate
 * times the amount by which its loss so far, averaged over the clients, exceeds that of the best
 * expert. */
void ff_hedge(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d, int64_t *lost,
              double unit, double silos, double rate, double *rows)
{
    int64_t smallest = least_of(lost, d);
    for (int64_t i = 0; i < n; i++) {
        if (exchanges[i]) {
            for (int64_t k = 0; k < d; k++)
                rows[k] = rate * (unit * (double)(lost[k] - smallest) / silos);
            rows += d;
        }
        if (i + 1 < n)
            smallest = add_and_least(sums + i * d, d, lost);
    }
}

/* Return an upper bound on any expert's loss minus the best one's (whole units of loss), at the
 * start of any segment: the largest loss before the last segment minus the smallest loss before the
 * first. This holds because losses only grow from segment to segment. */
int64_t ff_hedge_spread(const int64_t *sums, int64_t n, int64_t d, const int64_t *lost)
{
    int64_t totals[TOGETHER], largest = 0;
    for (int64_t base = 0; base < d; base += TOGETHER) {
        const int64_t width = d - base < TOGETHER ? d - base : TOGETHER;
        memcpy(totals, lost + base, (size_t)width * sizeof *totals);
        for (int64_t i = 0; i + 1 < n; i++)
            add_sums(sums + i * d + base, width, totals);
        for (int64_t k = 0; k < width; k++)
            largest = totals[k] > largest ? totals[k] : largest;
    }
    return largest - least_of(lost, d);
}

/* Divide each of n rows by its sum. */
void ff_to_weights(int64_t n, int64_t d, double *rows)
{
    for (int64_t i = 0; i < n; i++, rows += d) {
        const double sum = pairwise(rows, d);
        for (int64_t k = 0; k < d; k++)
            rows[k] /= sum;
    }
}

/* Compute the weights of Hedge after each exchange, one row of d numbers. table[j] is the weight,
 * before rows are divided by their sums, of an expert that has lost j units more than the best. */
void ff_hedge_weights(const int64_t *sums, const uint8_t *exchanges, int64_t n, int64_t d,
                      int64_t *lost, const double *table, double *rows)
{
    int64_t smallest = least_of(lost, d), count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (exchanges[i]) {
            double *row = rows + count * d;
            for (int64_t k = 0; k < d; k++) {
                row[k] = table[lost[k] - smallest];
                FF_ONE_BY_ONE;
            }
            count++;
        }
        if (i + 1 < n)
            smallest = add_and_least(sums + i * d, d, lost);
        /* Rows are divided by their sums only when TOGETHER rows are written, or at the end: a
         * vector load from memory whose entries were just stored one by one would stall. */
        if (count == TOGETHER || i + 1 == n) {
            ff_to_weights(count, d, rows);
            rows += count * d;
            count = 0;
        }
    }
}

/* Number of Laplace numbers that are drawn by one call. */
#define NOISES 64

/* Fed-SVT: keep the current expert until the noisy query of an exchange exceeds the threshold. The
 * query is the expert's loss since it was chosen. Returns the segment that begins with that
 * exchange, or n if no query exceeds the threshold. decided: 1 if the exchange of segment `from`
 * has already taken place. chosen[i] receives the expert of segment i. */
int64_t ff_sparse_run(ff_sparse *s, const int64_t *sums, const uint8_t *exchanges, int64_t from,
                      int64_t decided, int64_t n, int64_t d, int64_t *lost, int64_t *chosen)
{
    double noise[NOISES];
    int64_t first = -NOISES; /* number of the exchange that noise[0] belongs to */
    for (int64_t i = from; i < n; i++) {
        if (exchanges[i] && !(decided && i == from)) {
            if (!s->spent) { /* a switch is still allowed, so compare */
                const int64_t number = s->release + 1;
                if (number - first >= NOISES) {
                    const ff_stream stream = ff_stream_open(
                        s->seed, FF_QUERY, (uint32_t)s->replicate, 0, (uint32_t)number);
                    ff_laplaces(&stream, NOISES, noise);
                    first = number;
                }
                const double query = s->unit * (double)lost[s->expert] - s->before;
                if (query + s->query_scale * noise[number - first] > s->limit)
                    return i;
            }
            s->release++;
        }
        chosen[i] = s->expert;
        if (i + 1 < n)
            add_sums(sums + i * d, d, lost);
    }
    return n;
}

/* ---- Regret ---------------------------------------------------------------------------------- */

/* Return <losses, x>, the loss of a decision with weights x (d) for the losses of all experts (d).
 * If a weight is 1, return the loss of this expert exactly. products: d doubles of scratch. */
static double weighted_loss(const double *restrict losses, const double *restrict x, int64_t d,
                            double *restrict products)
{
    int64_t is_vertex = 0;
    for (int64_t k = 0; k < d; k++) {
        products[k] = losses[k] * x[k];
        is_vertex |= x[k] == 1.0;
    }
    if (!is_vertex)
        return ff_pairwise(products, d);
    int64_t vertex = 0;
    while (x[vertex] != 1.0)
        vertex++;
    return losses[vertex];
}

/* The arguments of ff_regret_add that describe the segments. */
typedef struct {
    const int64_t *sums, *edges;
    const uint8_t *settles;
    const int64_t *decisions;
    const double *weights;
    double unit;
    int64_t n, d;
} ff_segments;

/* Return 1 if segment i ends at the next checkpoint. */
FF_INLINE int reaches(const ff_regret *r, const ff_segments *g, int64_t i)
{
    return r->at < r->count && g->edges[i + 1] == r->checkpoints[r->at];
}

/* Return the number of segments from i on, at most TOGETHER, whose losses can be added together:
 * - the losses of each one enter the regret at its end, because settles[.] is 1 or because it ends
 *   at a checkpoint;
 * - only the last one may end at a checkpoint;
 * - if decisions have weights, these are in consecutive rows. */
static int64_t settled_run(const ff_regret *r, const ff_segments *g, int64_t i)
{
    int64_t run = 0;
    const int64_t most = g->n - i < TOGETHER ? g->n - i : TOGETHER;
    while (run < most) {
        if (g->weights && g->decisions[i + run] != g->decisions[i] + run)
            return run;
        if (reaches(r, g, i + run))
            return run + 1;
        if (!g->settles[i + run])
            return run;
        run++;
    }
    return run;
}

/* Add the losses of segments i..i + run - 1 (see settled_run): those of all experts to r->counts
 * (d), in whole units, and those of the decisions to r->lost. g->decisions[i] is the expert of
 * segment i or, with weights, the row of its weights; segments i, i + 1, .. have consecutive
 * rows. */
static void add_settled(ff_regret *r, const ff_segments *g, int64_t i, int64_t run)
{
    const int64_t d = g->d, *rows = g->sums + i * d;
    for (int64_t s = 0; s < run; s++)
        add_sums(rows + s * d, d, r->counts);
    if (!g->weights) {
        for (int64_t s = 0; s < run; s++)
            r->lost += g->unit * (double)rows[s * d + g->decisions[i + s]];
        return;
    }
    const double *restrict x = g->weights + g->decisions[i] * d;
    double *restrict products = r->products;
    int64_t any_one = 0;
    for (int64_t k = 0; k < run * d; k++) {
        products[k] = g->unit * (double)rows[k] * x[k];
        any_one |= x[k] == 1.0;
    }
    for (int64_t s = 0; s < run; s++) {
        int64_t only = d;
        if (any_one)
            for (only = 0; only < d && x[s * d + only] != 1.0;)
                only++;
        /* If the weight of an expert is 1, add exactly the loss of this expert. */
        r->lost += only < d ? g->unit * (double)rows[s * d + only] : pairwise(products + s * d, d);
    }
}

/* Add the losses in r->counts (d), in whole units, to the losses r->total (d), and set the counts
 * to 0. unit: value of one unit of loss. */
static void add_counts(ff_regret *r, double unit, int64_t d)
{
    for (int64_t k = 0; k < d; k++)
        r->total[k] += unit * (double)r->counts[k];
    memset(r->counts, 0, (size_t)d * sizeof *r->counts);
}

/* Add the losses of n segments of rounds to the sums r. At each checkpoint, store the regret: the
 * loss of the decisions minus the loss of the best expert so far. The losses of rounds that are not
 * settled are in r->open; they enter the sums when a segment with settles[i] = 1 or a checkpoint
 * settles them. gaps: NULL, or (n) the expected loss of decision i minus that of the best expert
 * for each client and round; then sums are not read. */
void ff_regret_add(ff_regret *r, const int64_t *sums, const int64_t *edges,
                   const uint8_t *settles, const int64_t *decisions, const double *weights,
                   const double *gaps, int64_t silos, double unit, int64_t n, int64_t d)
{
    const ff_segments segments = {sums, edges, settles, decisions, weights, unit, n, d};
    double *restrict total = r->total, *restrict open = r->open;
    memset(r->counts, 0, (size_t)d * sizeof *r->counts);
    for (int64_t i = 0, done = 1; i < n; i += done) {
        /* Number of segments that are added together, because they are settled at their ends and
         * no earlier rounds are open; 0: add segment i alone. */
        const int64_t run = !gaps && r->rounds == 0 ? settled_run(r, &segments, i) : 0;
        done = run ? run : 1;
        const int reached = reaches(r, &segments, i + done - 1);
        if (run) {
            add_settled(r, &segments, i, run);
        } else {
            r->rounds += edges[i + 1] - edges[i];
            for (int64_t k = 0; !gaps && k < d; k++)
                open[k] += unit * (double)sums[i * d + k];
        }
        if (!run && (settles[i] || reached)) {
            if (gaps)
                r->lost += (double)(silos * r->rounds) * gaps[i];
            else
                r->lost +=
                    weights ? weighted_loss(open, weights + decisions[i] * d, d, r->products)
                            : open[decisions[i]];
            for (int64_t k = 0; !gaps && k < d; k++) {
                total[k] += open[k];
                open[k] = 0.0;
            }
            r->rounds = 0;
        }
        if (reached) {
            add_counts(r, unit, d);
            double best = gaps ? 0.0 : total[0];
            for (int64_t k = 1; !gaps && k < d; k++)
                best = total[k] < best ? total[k] : best;
            r->regret[r->at++] = r->lost - best;
        }
    }
    add_counts(r, unit, d);
}

/* ---- Frank-Wolfe steps ----------------------------------------------------------------------- */

/* Return an upper bound on the absolute entries of (gradient at x) - (gradient at parent), for
 * points x and parent (d): the Lipschitz constant times ||x - parent||_1, or the range of gradients
 * if that is smaller. difference (d) is scratch. */
static double gradient_change_bound(const ff_walk *w, const double *x, const double *parent,
                                    int64_t d, double *difference)
{
    for (int64_t k = 0; k < d; k++)
        difference[k] = fabs(x[k] - parent[k]);
    const double range = w->high - w->low, smooth = w->smoothness * ff_pairwise(difference, d);
    return smooth < range ? smooth : range;
}

/* Compute the gradient estimates (m, d) of all clients for a leaf of a tree, at the point x (d). *v
 * receives their address in w->v. If losses are linear, they are stored at depth 0 of w->v, and
 * computed for the leaf of depth 0 only, because gradients do not depend on x. Otherwise they are
 * stored at every depth from that of the leaf to that of the tree. Returns FF_OK or a negative
 * status. */
static int64_t estimate_leaf(const ff_walk *w, const ff_leaf *leaf, int64_t threads,
                             const ff_losses_scratch *scratch, const double *x, const double **v)
{
    const int64_t m = w->losses->silos, d = w->losses->experts, h = leaf->depth, size = m * d;
    const double n = (double)(leaf->stop - leaf->start);
    double *estimates = w->v + (w->linear ? 0 : h) * size;
    *v = estimates;
    if (h == 0 || !w->linear) {
        const double *parent = h ? w->points + (h - 1) * d : NULL;
        const ff_gradient_bounds bounds = {
            w->low, w->high, parent ? gradient_change_bound(w, x, parent, d, w->total) : 0.0};
        memset(w->sums, 0, (size_t)size * sizeof *w->sums);
        const int64_t status = ff_losses_gradients(
            w->losses, w->seed, w->replicate, w->rounds + leaf->start, w->used,
            leaf->stop - leaf->start, x, parent, &bounds, threads, scratch, w->sums);
        if (status < 0)
            return status;
        for (int64_t j = 0; j < size; j++)
            estimates[j] = parent ? estimates[j - size] + w->sums[j] / n : w->sums[j] / n;
    }
    /* The left children below this node have the same estimates and the same point. */
    if (!w->linear)
        for (int64_t depth = h; depth <= leaf->tree; depth++) {
            if (depth > h)
                memcpy(w->v + depth * size, estimates, (size_t)size * sizeof *estimates);
            memcpy(w->points + depth * d, x, (size_t)d * sizeof *x);
        }
    return FF_OK;
}

/* Perform one exchange for each of `count` leaves: average the gradient estimates of all clients
 * (silos), with Laplace noise, and move x (d) towards the expert with the smallest entry of this
 * average (Frank-Wolfe). targets (count) receives these experts. Returns FF_OK or a negative
 * status. */
int64_t ff_walk_leaves(const ff_walk *w, const ff_leaf *leaves, int64_t count, int64_t release,
                       int64_t threads, const ff_losses_scratch *scratch, double *x,
                       int64_t *targets)
{
    const int64_t m = w->losses->silos, d = w->losses->experts;
    const uint32_t replicate = (uint32_t)w->replicate;
    double *total = w->total;
    for (int64_t i = 0; i < count; i++) {
        const ff_leaf *leaf = leaves + i;
        const double *v;
        const uint32_t number = (uint32_t)(release + i);
        const int64_t status = estimate_leaf(w, leaf, threads, scratch, x, &v);
        if (status < 0)
            return status;
        /* The sum of all silos' estimates. With FF_NOISE_SILOS every silo adds noise to its own. */
        memset(total, 0, (size_t)d * sizeof *total);
        for (int64_t silo = 0; silo < m; silo++) {
            if (w->noise_by == FF_NOISE_SILOS) {
                const ff_stream s =
                    ff_stream_open(w->seed, FF_SCORE_NOISE, replicate, (uint32_t)silo, number);
                ff_laplace(&s, d, w->drawn);
                for (int64_t k = 0; k < d; k++)
                    total[k] += v[silo * d + k] + leaf->scale * w->drawn[k];
            } else {
                for (int64_t k = 0; k < d; k++)
                    total[k] += v[silo * d + k];
            }
        }
        for (int64_t k = 0; k < d; k++)
            total[k] /= (double)m;
        /* With FF_NOISE_SERVER the server adds noise to the sum, once; here it is divided by m. */
        if (w->noise_by == FF_NOISE_SERVER) {
            const ff_stream s =
                ff_stream_open(w->seed, FF_SCORE_NOISE, replicate, (uint32_t)m, number);
            ff_laplace(&s, d, w->drawn);
            for (int64_t k = 0; k < d; k++)
                total[k] += leaf->scale / (double)m * w->drawn[k];
        }
        /* Frank-Wolfe: move x towards the expert with the smallest entry. */
        int64_t best = 0;
        for (int64_t k = 1; k < d; k++)
            best = total[k] < total[best] ? k : best;
        targets[i] = best;
        for (int64_t k = 0; k < d; k++)
            x[k] *= 1.0 - leaf->step;
        x[best] += leaf->step;
    }
    return FF_OK;
}
