#include "ff_bonus_bounds.h"

#ifdef FF_WIDE
#include <math.h>

/* Vectors that QUAD integers fill, and groups of rows that are multiplied by them at a time: a sum
 * would wait for itself, and registers have to suffice. */
#define QUAD_VECTORS (QUAD / LANES)
#define GROUPS (FF_WIDE == 64 ? 2 : 1)

/* Doubles that the rows of few products take, and space to align them. */
FF_INLINE int64_t few_size(int64_t d) { return FF_FEW_ROWS * row_of(d) / 4 + 8; }

int64_t ff_bonus_bounds_size(int64_t d)
{
    return (int64_t)(sizeof(ff_bonus_bounds) / sizeof(double)) + 1 + ff_quantised_factor_size(d) +
           few_size(d);
}

int64_t ff_bonus_bounds_kept(int64_t d) { return (ff_columns_size(d) + 1) / 2 + 8; }

void ff_bonus_bounds_keep(const double *restrict w, int64_t d, ff_bonus_bounds *k)
{
    /* Beyond, entries could leave the range of float32 (ff_norm_error). */
    if (!(k->model.frobenius > 0x1p-100) || !(k->model.frobenius < 0x1p100))
        return;
    float *columns = (float *)aligned((double *)k + ff_bonus_bounds_size(d));
    ff_columns_make(w, d, columns);
    k->columns = columns;
}

int ff_bonus_bounds_make(const double *restrict w, double beta, double gamma,
                         const double *restrict sample, int64_t samples, int sooner,
                         const ff_directions *pool, int64_t d, double *scratch,
                         ff_bonus_bounds *k)
{
    const double *r = w;
    k->columns = NULL;
    k->model = (ff_bonus_factor){0.0, 0.0, 0.0};
    if (gamma != 0.0) {
        const double c = ff_bonus_factor_weight(w, beta, gamma, sample, samples, d, scratch);
        if (c > 0.0 && c < INFINITY)
            k->model = ff_bonus_factor_make(w, c, d, scratch, scratch + d * d);
        if (k->model.c == 0.0) {
            k->model.c = NAN;
            return 0;
        }
        r = scratch + d * d;
    }
    double *end = (double *)(k + 1);
    k->factor = ff_quantise_factor(r, NULL, d, end);
    if (gamma == 0.0)
        k->model.frobenius = k->factor.frobenius;
    k->few.rest = 0.0;
    if (!sooner)
        return 1;
    int16_t *rows = (int16_t *)aligned(end + ff_quantised_factor_size(d));
    k->few = ff_bonus_few_make(r, pool, d, scratch, scratch + 2 * d * d, rows);
    k->rows = rows;
    return 1;
}

/* Errors of ||R x||, in units of the factor: per length of an action, and per length that rounding
 * took from it; as in `scoring` of ff_screen_i16.c.
 *
 * The W that is scored is the factor's, updated by ff_observe in float64, from data points
 * one by one. With u = 2^-53, row i of the next W is kept W_i - taken sum_k z_k W_k, kept <= 1 and
 * taken ||z_<i|| <= 1, each good to (d + 8) u: so it is off by at most 2 (d + 8) u (||W_i|| +
 * ||W||_F), and all rows by 4 (d + 8) sqrt(d) u ||W||_F, whatever z was. MOST_POINTS of that are
 * added: `drift` ||x|| to a, and so at most 2.01 ||W||_F drift ||x|| to b, which by the inequality
 * of ff_bonus_factor.h is what sqrt(1 + c (2.01 ||W||_F)^2) drift ||x|| is to ||R x||. What R
 * itself is off by is its `lost`. */
typedef struct {
    float slack, slope, slope_lost;
} scale;

/* What rounding may have added to a so far, a unit of length. */
FF_INLINE double drift_of(double frobenius, int64_t d)
{
    return MOST_POINTS * 8.0 * (double)(d + 16) * sqrt((double)d) * 0x1p-53 * frobenius;
}

FF_INLINE scale scale_of(const ff_bonus_bounds *k, int64_t d)
{
    const quantised_factor *m = &k->factor;
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double frobenius = k->model.frobenius;
    const double drift = drift_of(frobenius, d);
    const double both = drift * sqrt(1.0 + 4.05 * k->model.c * frobenius * frobenius);
    const double slope = (m->lost + both + k->model.lost) / m->unit;
    return (scale){(float)(1.0 + 1.01 * g), (float)(1.01 * slope + 0x1p-20),
                   (float)(1.01 * (m->lost / m->unit + m->norm / m->unit))};
}

void ff_bound_all(const ff_bonus_bounds *k, const ff_actions *actions, int64_t d,
                  float *restrict bound)
{
    const quantised_factor *m = &k->factor;
    const int64_t count = actions->actions, vectors = vectors_of(count);
    const measured *known = (const measured *)actions->quantised;
    const i32s *panels = (const i32s *)(known + vectors);
    const scale s = scale_of(k, d);
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const i32s *panel = panels + first * pairs_of(d);
        const int64_t width = vectors - first < PANEL_VECTORS ? 2 : PANEL_VECTORS;
        f32s square[PANEL_VECTORS];
        squares_i16(m, d, panel, width, actions, square);
        for (int64_t v = first; v < first + width; v++) {
            const f32s own = f32_mul(f32_sqrt(square[v - first]), f32_load(known[v].unit));
            const f32s error = f32_fma(f32_load(known[v].length), f32_set(s.slope),
                                       f32_mul(f32_load(known[v].lost), f32_set(s.slope_lost)));
            f32_store_left(bound + LANES * v, count - LANES * v,
                           f32_fma(own, f32_set(s.slack), error));
        }
    }
}

/* Roundings of a score in float32, of mean and bonus alike. */
FF_INLINE float slack_of(int64_t d)
{
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    return (float)(1.01 * g);
}

/* In 16 bits x is y, ||x - y|| <= lost, so ||R x|| <= ||R y|| + ||R||_2 lost, and y is no longer
 * than ||x|| + lost. Sums in float32 are off by `rounding` of what they can be, which is below
 * norm^2 times that squared. */
void ff_bound_by_few(const ff_bonus_bounds *k, const ff_actions *actions, int64_t d,
                     float *restrict bound)
{
    const quantised_factor *m = &k->factor;
    const ff_bonus_few *few = &k->few;
    const int16_t *entries = k->rows;
    const int64_t count = actions->actions, vectors = vectors_of(count), ld = row_of(d);
    const int64_t pairs = pairs_of(d);
    const measured *known = (const measured *)actions->quantised;
    const i32s *panels = (const i32s *)(known + vectors);
    const scale s = scale_of(k, d);
    const double unit = 1.000001 / m->unit, rounding = 0x1p-17, square_of = unit * unit;
    const f32s whole = f32_set((float)(square_of * (few->rest + rounding * few->norm * few->norm)));
    const f32s kept = f32_set((float)(square_of * few->unit * few->unit));
    const f32s lost = f32_set((float)(unit * few->norm));
    const f32s slope = f32_set(s.slope), slack = f32_set(s.slack * 1.000001f);
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const i32s *panel = panels + first * pairs;
        const int64_t width = vectors - first < PANEL_VECTORS ? 2 : PANEL_VECTORS;
        f32s square[PANEL_VECTORS];
        i32s acc[ROWS][PANEL_VECTORS];
        for (int v = 0; v < PANEL_VECTORS; v++)
            square[v] = f32_set(0.0f);
        for (int64_t i = 0; i < few->rows; i += ROWS) {
            const char *ahead = lines_ahead(actions, pairs, panel);
            if (width == PANEL_VECTORS)
                product_i16(entries + i * ld, ld, pairs, panel, PANEL_VECTORS, ahead, acc);
            else
                product_i16(entries + i * ld, ld, pairs, panel, 2, ahead, acc);
            for (int r = 0; r < ROWS; r++) {
                const f32s relative = f32_set(few->squares[i + r]);
                for (int64_t v = 0; v < width; v++) {
                    const f32s z = f32_of(acc[r][v]);
                    square[v] = f32_fma(f32_mul(z, z), relative, square[v]);
                }
            }
        }
        for (int64_t v = first; v < first + width; v++) {
            const f32s length = f32_load(known[v].length), error = f32_load(known[v].lost);
            const f32s x = f32_add(length, error), y = f32_load(known[v].unit);
            const f32s told = f32_mul(f32_mul(f32_mul(square[v - first], y), y), kept);
            const f32s most = f32_fma(f32_mul(x, x), whole, f32_told(told));
            /* What is not a number stays: the other way round it would not. */
            const f32s root = f32_sqrt(f32_max(f32_set(0.0f), most));
            const f32s own = f32_mul(f32_fma(error, lost, root), slack);
            f32_store_left(bound + LANES * v, count - LANES * v, f32_fma(length, slope, own));
        }
    }
}

/* Terms of the bound on a mean, as of `scoring` in ff_screen_i16.c. */
typedef struct {
    float mean, norm, slack, slope, slope_lost;
} mean_scale;

FF_INLINE mean_scale mean_scale_of(quantised_row t, double factor, int64_t d)
{
    return (mean_scale){(float)t.unit, (float)t.norm, slack_of(d),
                        (float)(1.01 * t.lost + (1.0 + factor) * 0x1p-80),
                        (float)(1.01 * (t.lost + t.norm))};
}

/* n <= TOGETHER actions in 16 bits side by side, four features by four of each. */
static void gather(const ff_actions *actions, const int64_t *restrict which, int64_t n, int64_t d,
                   int32_t *restrict together)
{
    const int64_t vectors = vectors_of(actions->actions), pairs = pairs_of(d);
    const i32s *panels = (const i32s *)((const measured *)actions->quantised + vectors);
    memset(together, 0, (size_t)(QUAD * quads_of(d)) * sizeof(int32_t));
    for (int64_t a = 0; a < n; a++) {
        const int64_t v = which[a] / LANES, first = v - v % PANEL_VECTORS;
        const int64_t width = vectors - first < PANEL_VECTORS ? 2 : PANEL_VECTORS;
        const int32_t *from =
            (const int32_t *)(panels + first * pairs + v - first) + which[a] % LANES;
        int32_t *to = together + 2 * a;
        int64_t j = 0;
        for (; j + 2 <= pairs; j += 2) {
            to[j * TOGETHER] = from[LANES * j * width];
            to[j * TOGETHER + 1] = from[LANES * (j + 1) * width];
        }
        if (j < pairs)
            to[j * TOGETHER] = from[LANES * j * width];
    }
}

/* sum += ROWS rows times four features of TOGETHER actions. */
FF_INLINE void add_quad(const int16_t *restrict rows, int64_t ld, const i32s *restrict x,
                        i32s (*restrict sum)[QUAD_VECTORS])
{
    for (int r = 0; r < ROWS; r++) {
        const i32s entries = i32_set_two(rows + r * ld);
        for (int v = 0; v < QUAD_VECTORS; v++)
            MULTIPLY(sum[r][v], entries, x[v]);
    }
}

/* square += `by` the squares of sums over ROWS rows: of half of them in even lanes, of the others in
 * odd ones. */
FF_INLINE void add_squares(i32s (*restrict sum)[QUAD_VECTORS], float by, f32s *restrict square)
{
    for (int v = 0; v < QUAD_VECTORS; v++) {
        f32s part = f32_set(0.0f);
        for (int r = 0; r < ROWS; r += 2) {
            const f32s z = f32_of(i32_add_neighbours(sum[r][v], sum[r + 1][v]));
            part = f32_fma(z, z, part);
        }
        square[v] = f32_fma(part, f32_set(by), square[v]);
    }
}

/* ||R x|| of actions side by side, as of squares_i16. */
static void widths_of(const quantised_factor *m, const ff_actions *actions,
                      const int32_t *restrict together, int64_t d, float *restrict width)
{
    const int64_t ld = row_of(d), groups = (d + ROWS - 1) / ROWS, all = quads_of(d);
    f32s square[QUAD_VECTORS];
    for (int v = 0; v < QUAD_VECTORS; v++)
        square[v] = f32_set(0.0f);
    for (int64_t g = 0; g < groups; g += GROUPS) {
        const int16_t *rows = m->rows + g * ROWS * ld;
        const int more = GROUPS > 1 && g + 1 < groups;
        /* Of a row what is past its group's last column, but for a whole quad, is not written. */
        const int64_t end = quads_of((g + 1) * ROWS), own = end < all ? end : all;
        const int64_t far = more ? quads_of((g + 2) * ROWS) : 0, last = far < all ? far : all;
        i32s sum[GROUPS][ROWS][QUAD_VECTORS], x[QUAD_VECTORS];
        for (int r = 0; r < GROUPS * ROWS * QUAD_VECTORS; r++)
            (&sum[0][0][0])[r] = i32_set(0);
        const int16_t *next = rows + (more ? ROWS * ld : 0);
        const char *ahead = lines_ahead(actions, own, together);
        for (int64_t j = 0; j < own; j++) {
            _mm_prefetch(ahead + 64 * j, _MM_HINT_T1);
            for (int v = 0; v < QUAD_VECTORS; v++)
                x[v] = i32_load(together + j * QUAD + LANES * v);
            add_quad(rows + 4 * j, ld, x, sum[0]);
            if (GROUPS > 1)
                add_quad(next + 4 * j, ld, x, sum[GROUPS - 1]);
        }
        for (int64_t j = own; j < last; j++) {
            for (int v = 0; v < QUAD_VECTORS; v++)
                x[v] = i32_load(together + j * QUAD + LANES * v);
            add_quad(next + 4 * j, ld, x, sum[GROUPS - 1]);
        }
        add_squares(sum[0], m->squares[g], square);
        if (more)
            add_squares(sum[GROUPS - 1], m->squares[g + 1], square);
    }
    float both[QUAD];
    for (int v = 0; v < QUAD_VECTORS; v++)
        f32_store(both + LANES * v, square[v]);
    for (int a = 0; a < TOGETHER; a++)
        width[a] = sqrtf(both[2 * a] + both[2 * a + 1]);
}

void ff_bound_some(const ff_bonus_bounds *k, const ff_actions *actions,
                   const int64_t *restrict which, int64_t n, int64_t d, double *restrict room,
                   float *restrict bound)
{
    const measured *known = (const measured *)actions->quantised;
    int32_t *together = (int32_t *)aligned(room);
    gather(actions, which, n, d, together);
    float width[TOGETHER];
    widths_of(&k->factor, actions, together, d, width);
    const scale s = scale_of(k, d);
    for (int64_t i = 0; i < n; i++) {
        const measured *its = known + which[i] / LANES;
        const int64_t lane = which[i] % LANES;
        const float own = width[i] * its->unit[lane];
        bound[which[i]] =
            -(own * s.slack + (its->length[lane] * s.slope + its->lost[lane] * s.slope_lost));
    }
}

/* Actions of a vector that have no bound by R and whose upper bound is not below `from`. */
FF_INLINE unsigned open_from(const float *restrict upper, const float *restrict bound, f32s from,
                             int64_t first, int64_t count)
{
    const mask32 in = lanes_of(count - first);
    return bits_of(count - first) & f32_at_least(f32_load_some(in, upper + first), from) &
           f32_at_least(f32_load_some(in, bound + first), f32_set(0.0f));
}

int64_t ff_bound_largest(const ff_bonus_bounds *k, const ff_actions *actions,
                         const float *restrict upper, float top, int64_t d, double *restrict room,
                         float *restrict bound)
{
    int64_t which[TOGETHER];
    const int64_t count = actions->actions;
    f32s least = f32_set(top);
    for (int64_t first = 0; first < count; first += LANES)
        least = f32_min_some(lanes_of(count - first), least, f32_load(upper + first));
    float low = f32_least(least), high = top;
    /* Down to a bound that fills the lanes: one action takes as long as TOGETHER. */
    for (int i = 0; i < 10; i++) {
        const float middle = 0.5f * (low + high);
        const f32s from = f32_set(middle);
        int64_t reach = 0;
        for (int64_t first = 0; first < count; first += LANES)
            reach += __builtin_popcount(open_from(upper, bound, from, first, count));
        if (reach > TOGETHER)
            low = middle;
        else
            high = middle;
        if (reach == TOGETHER || reach == TOGETHER - 1)
            break;
    }
    int64_t n = 0;
    const f32s from = f32_set(high);
    for (int64_t first = 0; first < count && n < TOGETHER; first += LANES)
        for (unsigned open = open_from(upper, bound, from, first, count); open && n < TOGETHER;
             open &= open - 1)
            which[n++] = first + __builtin_ctz(open);
    if (n)
        ff_bound_some(k, actions, which, n, d, room, bound);
    return n;
}

/* The bounds on means of a panel of `width` vectors. */
FF_INLINE void bound_means(const i32s *panel, const int16_t *restrict row, int64_t pairs,
                           const int width, mean_scale m, const measured *known,
                           float *restrict upper)
{
    const f32s slack = f32_set(m.slack), mean = f32_set(m.mean);
    const f32s norm = f32_set(m.norm), slope = f32_set(m.slope);
    const f32s slope_lost = f32_set(m.slope_lost);
    /* Two sums of each: one would wait for itself. */
    i32s even[PANEL_VECTORS], odd[PANEL_VECTORS];
    UNROLLED
    for (int v = 0; v < width; v++)
        even[v] = odd[v] = i32_set(0);
    int64_t j = 0;
    for (; j + 2 <= pairs; j += 2) {
        int32_t entries[2];
        memcpy(entries, row + 2 * j, sizeof entries);
        const i32s low = i32_set(entries[0]), high = i32_set(entries[1]);
        UNROLLED
        for (int v = 0; v < width; v++) {
            MULTIPLY(even[v], low, panel[j * width + v]);
            MULTIPLY(odd[v], high, panel[(j + 1) * width + v]);
        }
    }
    int32_t last;
    memcpy(&last, row + 2 * (pairs - 1), sizeof last);
    UNROLLED
    for (int v = 0; j < pairs && v < width; v++)
        MULTIPLY(even[v], i32_set(last), panel[j * width + v]);
    UNROLLED
    for (int v = 0; v < width; v++) {
        const f32s length = f32_load(known[v].length);
        const f32s lost = f32_load(known[v].lost);
        const f32s whole = f32_of(i32_add(even[v], odd[v]));
        const f32s product = f32_mul(whole, f32_load(known[v].unit));
        const f32s size = f32_mul(norm, length);
        const f32s own = f32_fma(size, slack, f32_set(0x1p-60f));
        const f32s error = f32_fma(slope, length, f32_fma(slope_lost, lost, own));
        f32_store(upper + LANES * v, f32_told(f32_add(f32_mul(product, mean), error)));
    }
}

void ff_bound_means(const ff_actions *actions, const int16_t *restrict row, quantised_row t,
                    double factor, int64_t d, float *restrict upper)
{
    const int64_t vectors = vectors_of(actions->actions), pairs = pairs_of(d);
    const measured *known = (const measured *)actions->quantised;
    const i32s *panels = (const i32s *)(known + vectors);
    const mean_scale m = mean_scale_of(t, factor, d);
    int64_t v = 0;
    for (; v + PANEL_VECTORS <= vectors; v += PANEL_VECTORS)
        bound_means(panels + v * pairs, row, pairs, PANEL_VECTORS, m, known + v, upper + LANES * v);
    if (v < vectors)
        bound_means(panels + v * pairs, row, pairs, 2, m, known + v, upper + LANES * v);
}

float ff_bound_scores(const ff_bonus_bounds *k, const float *restrict mean,
                      const float *restrict bound, double factor, int64_t count, int64_t d,
                      float *restrict upper)
{
    const f32s slack = f32_set(slack_of(d));
    const f32s bonus = f32_set((float)(factor * k->factor.unit));
    f32s top = f32_set(-INFINITY);
    for (int64_t first = 0; first < LANES * vectors_of(count); first += LANES) {
        const mask32 in = lanes_of(count - first);
        const f32s size = f32_abs(f32_load_some(in, bound + first));
        const f32s wide = f32_mul(size, bonus);
        const f32s score = f32_add(f32_fma(wide, slack, wide), f32_load(mean + first));
        const f32s held = f32_select(in, f32_set(-INFINITY), score);
        f32_store(upper + first, held);
        top = f32_max(top, held);
    }
    return f32_largest(top);
}

int64_t ff_not_below(const float *restrict upper, float least, int64_t count,
                     int64_t *restrict which)
{
    int64_t n = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        unsigned may = bits_of(count - first) & ~f32_less(f32_load(upper + first), f32_set(least));
        for (; may; may &= may - 1)
            which[n++] = first + __builtin_ctz(may);
    }
    return n;
}

int64_t ff_bound_open(const ff_bonus_bounds *k, const ff_actions *actions,
                      const int64_t *restrict which, int64_t n, int64_t most, int64_t d,
                      double *restrict room, float *restrict bound)
{
    int64_t open = 0, held_now = 0, together[TOGETHER];
    for (int64_t i = 0; i < n; i++)
        open += bound[which[i]] >= 0.0f;
    if (open > most)
        return open;
    for (int64_t i = 0; i < n; i++) {
        if (bound[which[i]] >= 0.0f)
            together[held_now++] = which[i];
        if (held_now && (held_now == TOGETHER || i == n - 1)) {
            ff_bound_some(k, actions, together, held_now, d, room, bound);
            held_now = 0;
        }
    }
    return open;
}

/* At least r = sqrt(a^2 + c b^2) of an action when R was made, by its bound: bounds are above r by
 * at most twice what was added to them. */
FF_INLINE double least_norm(const ff_bonus_bounds *k, const measured *restrict its, int64_t lane,
                            float bound, int64_t d)
{
    const scale s = scale_of(k, d);
    const double size = fabs((double)bound), g = (double)slack_of(d);
    const double added = 1.01 * (size * ((double)s.slack - 1.0 + g) +
                                 1.0001 * (double)its->length[lane] * (double)s.slope +
                                 (double)its->lost[lane] * (double)s.slope_lost);
    return k->factor.unit * (size - 2.0 * added);
}

/* With a of now, which has fallen since R was made by at most the root of `grown` and by what
 * rounding of W has taken, r of then leaves so much for b of then, which has fallen by at most
 * moved a and rounding. */
float ff_score_at_least_with(const ff_bonus_bounds *k, const measured *restrict known,
                             int64_t action, float bound, double mean, double a, double error,
                             double beta, double gamma, double moved, double grown, int64_t d)
{
    const measured *its = known + action / LANES;
    const double length = 1.0001 * (double)its->length[action % LANES],
                 frobenius = k->model.frobenius;
    const int fresh = grown == 1.0 && moved == 0.0;
    const double drift = fresh ? 0.0 : drift_of(frobenius, d) * length;
    double second = 0.0;
    if (gamma != 0.0) {
        const double r = least_norm(k, its, action % LANES, bound, d);
        const double then = 1.000001 * sqrt(grown) * (a + error / beta + drift);
        const double square = (r * r - then * then) / k->model.c;
        second = r > 0.0 && square > 0.0 ? sqrt(square) - moved * then : 0.0;
        second = second > 0.0 ? second : 0.0;
    }
    const double bonus = beta * a + gamma * second;
    const double least = mean + bonus - error - (2.0 * beta + 4.2 * gamma * frobenius) * drift -
                         1e-6 * (fabs(mean) + bonus);
    return ff_float_below(least);
}

/* With a = r cos p, sqrt(c) b = r sin p, r = ||R x||, a bonus first a + gamma b, first > 0, is F r
 * cos(p - p*), where F^2 = first^2 + gamma^2 / c and tan p* = gamma / (sqrt(c) first). By
 * Cauchy-Schwarz a^2 = x'V^-1 x <= ||x|| b, so q cos^2 p <= sin p for q = sqrt(c) r / ||x||: p is
 * between the one where these are equal and a right angle, and the cosine is least at one of the
 * ends. Without a second bonus it is 1.
 *
 * A data point with x'V^-1 x = s - 1 adds at most (s - 1) V to V, so a^2 falls to at least a^2 / s,
 * and to a^2 / grown in all; b falls by at most as much as it may grow, moved a, for the bound of
 * ff_bonus_cache_observe is one on its change. So first is beta / sqrt(grown) - gamma moved. The
 * millionth pays for the rounding of `grown`, MOST_POINTS (d + 8) u. What rounding of W has taken
 * from a is `drift` ||x||, and from b 2.01 ||W||_F times that, as of `scale_of`; twice that is
 * taken off, for a point moves b by `moved` of the a that rounding has left.
 *
 * The bound on the mean is above it by at most twice what was added to it, and the exact score is
 * off by what `tell` says. */
float ff_score_at_least(const ff_bonus_bounds *k, const measured *restrict known, int64_t a,
                        float upper_mean, float bound, const double *restrict theta, double beta,
                        double gamma, double moved, double grown, int64_t d)
{
    const measured *its = known + a / LANES;
    const double length = 1.0001 * (double)its->length[a % LANES],
                 lost = (double)its->lost[a % LANES];
    const double g = (double)slack_of(d), frobenius = k->model.frobenius, c = k->model.c;
    const double r = least_norm(k, its, a % LANES, bound, d);
    const double norm = 1.0001 * sqrt(f64_dot(theta, theta, d));
    /* theta in 16 bits has lost as much as `bound_means` knows: at most this. */
    const double theta_lost = norm * sqrt((double)d) / LENGTH;
    const double error = 1.02 * (theta_lost * length + (theta_lost + norm) * lost +
                                 g * norm * length) + 0x1p-50;
    double first = beta, upper = beta, drift = 0.0, turned = 1.0;
    if (grown != 1.0 || moved != 0.0) {
        first = 0.999999 * beta / sqrt(grown) - gamma * moved;
        drift = (beta + 2.1 * gamma * frobenius) * drift_of(frobenius, d) * length;
        if (!(first > 0.0))
            return -INFINITY;
    }
    double most = first;
    if (gamma != 0.0) {
        const double second = gamma / sqrt(c);
        most = hypot(first, second);
        upper = hypot(beta + gamma * moved, second);
        /* Of the p where they are equal, the cosine squared. */
        const double q = sqrt(c) * r / length, cosine = 2.0 / (1.0 + sqrt(1.0 + 4.0 * q * q));
        const double sine = q * cosine;
        const double low = (sqrt(cosine) * first + sine * second) / most, high = second / most;
        turned = 0.999999 * (low < high ? low : high);
    }
    const double exact = 8.0 * (double)(d + 16) * 0x1p-53 *
                         (norm + (beta + 2.0 * gamma * frobenius) * frobenius) * length;
    const double mean = (double)upper_mean - 2.0 * (error + 0x1p-79 * (1.0 + upper) * length);
    const double least = mean + turned * most * r - exact - 2.0 * drift -
                         1e-6 * (fabs(mean) + most * fabs(r));
    return r > 0.0 ? ff_float_below(least) : -INFINITY;
}

#endif
