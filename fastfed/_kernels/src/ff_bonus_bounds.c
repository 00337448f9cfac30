#include "ff_bonus_bounds.h"

#ifdef FF_WIDE
#include <math.h>

/* Symbols: W (d, d) is the inverse factor of V (ff_linalg.h). Of an action x, a = ||W x|| and
 * b = ||V^-1 x||. Its bonus beta a + gamma b is at most a multiple of ||R x|| for the triangular
 * factor R (ff_bonus_factor.h), and ||R x||^2 = a^2 + c b^2. K is the number of actions. */

/* Number of vectors that QUAD integers fill, and number of groups of rows that are multiplied by
 * them together. With fewer sums, additions would wait for each other; more sums would not fit into
 * the registers. */
#define QUAD_VECTORS (QUAD / LANES)
#define GROUPS (FF_WIDE == 64 ? 2 : 1)

/* Return the number of doubles in the rows of the cheap bounds, with space for alignment. */
FF_INLINE int64_t few_size(int64_t d) { return FF_FEW_ROWS * row_of(d) / 4 + 8; }

/* Return the number of doubles of an ff_bonus_bounds, including the rows that follow it in memory:
 * R in 16 bits, and the rows of the cheap bounds. */
int64_t ff_bonus_bounds_size(int64_t d)
{
    return (int64_t)(sizeof(ff_bonus_bounds) / sizeof(double)) + 1 + ff_quantised_factor_size(d) +
           few_size(d);
}

/* Compute the factor R of ff_bonus_factor.h from W (d, d), and R in 16 bits. If `cheap` is 1, also
 * compute the rows of the cheap bounds on ||R x|| (ff_bonus_few.h). Returns 0 if there is no R,
 * else 1. */
int ff_bonus_bounds_make(const double *restrict w, double beta, double gamma,
                         const double *restrict sample, int64_t samples, int cheap,
                         const ff_directions *pool, int64_t d, double *scratch,
                         ff_bonus_bounds *bounds)
{
    const double *r = w;
    bounds->model = (ff_bonus_factor){0.0, 0.0, 0.0};
    /* With a second bonus gamma b, R is the factor for both bonuses. Without one, R is W. */
    if (gamma != 0.0) {
        const double c = ff_bonus_factor_weight(w, beta, gamma, sample, samples, d, scratch);
        if (c > 0.0 && c < INFINITY)
            bounds->model = ff_bonus_factor_make(w, c, d, scratch, scratch + d * d);
        if (bounds->model.c == 0.0) {
            bounds->model.c = NAN;
            return 0;
        }
        r = scratch + d * d;
    }
    double *end = (double *)(bounds + 1);
    bounds->factor = ff_quantise_factor(r, NULL, d, end);
    if (gamma == 0.0)
        bounds->model.frobenius = bounds->factor.frobenius;
    /* Cheap bounds, if they are requested. */
    bounds->few.rest = 0.0;
    if (!cheap)
        return 1;
    int16_t *rows = (int16_t *)aligned(end + ff_quantised_factor_size(d));
    bounds->few = ff_bonus_few_make(r, pool, d, scratch, scratch + 2 * d * d, rows);
    bounds->rows = rows;
    return 1;
}

/* Errors of a bound on ||R x||, in units of the factor: relative error (slack), error for each unit
 * of ||x|| (slope), and for each unit of the length that quantisation took from x (slope_lost).
 *
 * Proof: let hats mark results of quantised numbers. Products are exact in 32 bits, so the only
 * errors are those of quantisation, which were measured while rounding: R^ = R + E, x^ = x + e, and
 *   | ||R^ x^|| - ||R x|| | <= ||E||_F (||x|| + ||e||) + ||R||_2 ||e||,
 * and the same for theta. In float32, from z^2 (a sum of d squares) to the bound there are less
 * than d + 16 roundings. With g = (d + 16) u / (1 - (d + 16) u), u = 2^-24, a mean and a norm have
 * relative errors of at most g. The factor 1.01 covers the rounding of the bounds and of the exact
 * float64 score. Underflow changes a square by at most 2^-126, a root by 2^-63, and a multiple of a
 * length by less. The added constants exceed these changes and are too small to matter.
 *
 * The W of the exact scores is the W that R was computed from, updated by ff_observe in float64,
 * one data point at a time. With u = 2^-53, row i of the next W is p W_i - q sum_{k<i} z_k W_k with
 * factors p <= 1 and q ||z_<i|| <= 1, each accurate to (d + 8) u (update_factor in ff_linalg.c). So
 * it has an error of at most 2 (d + 8) u (||W_i|| + ||W||_F), and all rows together of 4 (d + 8)
 * sqrt(d) u ||W||_F, whatever z was. MOST_POINTS such errors add `drift` ||x|| to a = ||W x||, so
 * at most 2.01 ||W||_F drift ||x|| to b = ||W'W x||. By the inequality of ff_bonus_factor.h this
 * changes ||R x|| by at most sqrt(1 + c (2.01 ||W||_F)^2) drift ||x||. The error of R itself is
 * model.lost. */
typedef struct {
    float slack, slope, slope_lost;
} error_terms;

/* Return a bound on the change of a = ||W x|| by rounding while MOST_POINTS data points enter V,
 * for each unit of ||x||. frobenius: ||W||_F. See error_terms. */
FF_INLINE double drift_of(double frobenius, int64_t d)
{
    return MOST_POINTS * 8.0 * (double)(d + 16) * sqrt((double)d) * 0x1p-53 * frobenius;
}

/* Return the error terms of bounds on ||R x|| by R. */
FF_INLINE error_terms error_terms_of(const ff_bonus_bounds *bounds, int64_t d)
{
    const quantised_factor *m = &bounds->factor;
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double frobenius = bounds->model.frobenius;
    const double drift = drift_of(frobenius, d);
    const double drift_r = drift * sqrt(1.0 + 4.05 * bounds->model.c * frobenius * frobenius);
    const double slope = (m->lost + drift_r + bounds->model.lost) / m->unit;
    return (error_terms){(float)(1.0 + 1.01 * g), (float)(1.01 * slope + 0x1p-20),
                         (float)(1.01 * (m->lost / m->unit + m->norm / m->unit))};
}

/* Return the number of vectors of actions in the panel that begins with vector `first` of
 * `vectors`: PANEL_VECTORS, or 2 if the last panel is shorter. */
FF_INLINE int64_t width_of_panel(int64_t vectors, int64_t first)
{
    return vectors - first < PANEL_VECTORS ? 2 : PANEL_VECTORS;
}

/* For every action x, compute an upper bound on ||R x|| into bound (K), in units of R in 16 bits,
 * one panel of actions at a time. */
void ff_bound_all(const ff_bonus_bounds *bounds, const ff_actions *actions, int64_t d,
                  float *restrict bound)
{
    const quantised_factor *m = &bounds->factor;
    const int64_t count = actions->actions, vectors = vectors_of(count);
    const action_norms *norms = (const action_norms *)actions->quantised;
    const i32s *panels = (const i32s *)(norms + vectors);
    const error_terms s = error_terms_of(bounds, d);
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const i32s *panel = panels + first * pairs_of(d);
        const int64_t width = width_of_panel(vectors, first);
        f32s square[PANEL_VECTORS];
        squares_i16(m, d, panel, width, actions, square);
        for (int64_t v = first; v < first + width; v++) {
            const f32s norm = f32_mul(f32_sqrt(square[v - first]), f32_load(norms[v].unit));
            const f32s error = f32_fma(f32_load(norms[v].length), f32_set(s.slope),
                                       f32_mul(f32_load(norms[v].lost), f32_set(s.slope_lost)));
            f32_store_left(bound + LANES * v, count - LANES * v,
                           f32_fma(norm, f32_set(s.slack), error));
        }
    }
}

/* Return the bound 1.01 g of error_terms on the relative rounding error of a mean or a bonus in
 * float32. */
FF_INLINE float slack_of(int64_t d)
{
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    return (float)(1.01 * g);
}

/* Store a cheap upper bound on ||R x|| for each of the K actions x in bound (K). The unit is one
 * step of the 16-bit copy of R. The bounds are computed from H x and G x, where the matrices H and
 * G have few rows: by the theorem in ff_bonus_few.h,
 *   ||R x||^2 <= rest ||x||^2 + ||H x||^2 - ||G x||^2.
 *
 * Proof for actions in 16 bits: let y be x in 16 bits, with ||x - y|| <= lost. The theorem bounds
 * ||R y||. Then ||R x|| <= ||R y|| + ||R||_2 lost, and ||y|| <= ||x|| + lost. Sums in float32 have
 * an error of at most `rounding` times their largest possible value, which is below
 * norm^2 (||x|| + lost)^2, where norm = few.norm is at least ||R||_2. */
void ff_bound_by_few(const ff_bonus_bounds *bounds, const ff_actions *actions, int64_t d,
                     float *restrict bound)
{
    const quantised_factor *m = &bounds->factor;
    const ff_bonus_few *few = &bounds->few;
    const int16_t *entries = bounds->rows;
    const int64_t count = actions->actions, vectors = vectors_of(count), ld = row_of(d);
    const int64_t pairs = pairs_of(d);
    const action_norms *norms = (const action_norms *)actions->quantised;
    const i32s *panels = (const i32s *)(norms + vectors);
    const error_terms s = error_terms_of(bounds, d);
    const double unit = 1.000001 / m->unit, rounding = 0x1p-17, square_of = unit * unit;
    const f32s rest_square =
        f32_set((float)(square_of * (few->rest + rounding * few->norm * few->norm)));
    const f32s unit_square = f32_set((float)(square_of * few->unit * few->unit));
    const f32s norm_of_r = f32_set((float)(unit * few->norm));
    const f32s slope = f32_set(s.slope), slack = f32_set(s.slack * 1.000001f);
    for (int64_t first = 0; first < vectors; first += PANEL_VECTORS) {
        const i32s *panel = panels + first * pairs;
        const int64_t width = width_of_panel(vectors, first);
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
            const f32s length = f32_load(norms[v].length), lost = f32_load(norms[v].lost);
            const f32s most = f32_add(length, lost), scale = f32_load(norms[v].unit);
            /* ||H y||^2 - ||G y||^2. */
            const f32s products =
                f32_mul(f32_mul(f32_mul(square[v - first], scale), scale), unit_square);
            const f32s square_bound =
                f32_fma(f32_mul(most, most), rest_square, f32_nan_if_infinite(products));
            /* NaN stays NaN; with the arguments of max exchanged it would not. */
            const f32s root = f32_sqrt(f32_max(f32_set(0.0f), square_bound));
            const f32s norm = f32_mul(f32_fma(lost, norm_of_r, root), slack);
            f32_store_left(bound + LANES * v, count - LANES * v, f32_fma(length, slope, norm));
        }
    }
}

/* Terms of the upper bounds on means <x, theta>, as in error_terms: unit of theta in 16 bits
 * (mean), ||theta|| (norm), and the errors. */
typedef struct {
    float mean, norm, slack, slope, slope_lost;
} mean_terms;

/* Return the terms for theta in 16 bits (t). factor: a bonus is at most factor ||R x||. */
FF_INLINE mean_terms mean_terms_of(quantised_row t, double factor, int64_t d)
{
    return (mean_terms){(float)t.unit, (float)t.norm, slack_of(d),
                        (float)(1.01 * t.lost + (1.0 + factor) * 0x1p-80),
                        (float)(1.01 * (t.lost + t.norm))};
}

/* Copy the n <= GATHERED actions in `indices` from their panels to `gathered`, (quads, GATHERED, 4)
 * numbers of 16 bits: four features of every action, then the next four. Unused places are 0. */
static void gather(const ff_actions *actions, const int64_t *restrict indices, int64_t n, int64_t d,
                   int32_t *restrict gathered)
{
    const int64_t vectors = vectors_of(actions->actions), pairs = pairs_of(d);
    const i32s *panels = (const i32s *)((const action_norms *)actions->quantised + vectors);
    memset(gathered, 0, (size_t)(QUAD * quads_of(d)) * sizeof(int32_t));
    for (int64_t a = 0; a < n; a++) {
        const int64_t v = indices[a] / LANES, first = v - v % PANEL_VECTORS;
        const int64_t width = width_of_panel(vectors, first);
        const int32_t *source =
            (const int32_t *)(panels + first * pairs + v - first) + indices[a] % LANES;
        int32_t *target = gathered + 2 * a;
        int64_t j = 0;
        for (; j + 2 <= pairs; j += 2) {
            target[j * GATHERED] = source[LANES * j * width];
            target[j * GATHERED + 1] = source[LANES * (j + 1) * width];
        }
        if (j < pairs)
            target[j * GATHERED] = source[LANES * j * width];
    }
}

/* sum += ROWS rows times four features x of GATHERED actions. Each action has two lanes: the
 * products with its first two features, and with the other two. */
FF_INLINE void add_quad(const int16_t *restrict rows, int64_t ld, const i32s *restrict x,
                        i32s (*restrict sum)[QUAD_VECTORS])
{
    for (int r = 0; r < ROWS; r++) {
        const i32s entries = i32_set_two(rows + r * ld);
        for (int v = 0; v < QUAD_VECTORS; v++)
            MULTIPLY(sum[r][v], entries, x[v]);
    }
}

/* square += unit times the squared products of ROWS rows with each action, where a product is the
 * sum of the two lanes of the action. Even lanes of `square` receive every second row, odd lanes
 * the others. */
FF_INLINE void add_squares(i32s (*restrict sum)[QUAD_VECTORS], float unit, f32s *restrict square)
{
    for (int v = 0; v < QUAD_VECTORS; v++) {
        f32s sum_squares = f32_set(0.0f);
        for (int r = 0; r < ROWS; r += 2) {
            const f32s z = f32_of(i32_add_neighbours(sum[r][v], sum[r + 1][v]));
            sum_squares = f32_fma(z, z, sum_squares);
        }
        square[v] = f32_fma(sum_squares, f32_set(unit), square[v]);
    }
}

/* Compute ||R x|| of the gathered actions into norm (GATHERED), as squares_i16 does for panels. The
 * numbers in 16 bits are multiplied as integers, so each norm is in units of R times the unit of
 * its action. m: R in 16 bits. */
static void norms_of_gathered(const quantised_factor *m, const ff_actions *actions,
                              const int32_t *restrict gathered, int64_t d, float *restrict norm)
{
    const int64_t ld = row_of(d), groups = (d + ROWS - 1) / ROWS, quads = quads_of(d);
    f32s square[QUAD_VECTORS];
    for (int v = 0; v < QUAD_VECTORS; v++)
        square[v] = f32_set(0.0f);
    for (int64_t g = 0; g < groups; g += GROUPS) {
        const int16_t *rows = m->rows + g * ROWS * ld;
        const int more = GROUPS > 1 && g + 1 < groups;
        /* R is lower triangular, so the rows of group g end at column (g + 1) ROWS - 1. Later
         * entries are undefined, but those in the same quad (four columns) are 0. */
        const int64_t end = quads_of((g + 1) * ROWS), group_quads = end < quads ? end : quads;
        const int64_t next_quads = more ? quads_of((g + 2) * ROWS) : 0,
                      last = next_quads < quads ? next_quads : quads;
        i32s sum[GROUPS][ROWS][QUAD_VECTORS], x[QUAD_VECTORS];
        for (int r = 0; r < GROUPS * ROWS * QUAD_VECTORS; r++)
            (&sum[0][0][0])[r] = i32_set(0);
        const int16_t *next = rows + (more ? ROWS * ld : 0);
        const char *ahead = lines_ahead(actions, group_quads, gathered);
        for (int64_t j = 0; j < group_quads; j++) {
            _mm_prefetch(ahead + 64 * j, _MM_HINT_T1);
            for (int v = 0; v < QUAD_VECTORS; v++)
                x[v] = i32_load(gathered + j * QUAD + LANES * v);
            add_quad(rows + 4 * j, ld, x, sum[0]);
            if (GROUPS > 1)
                add_quad(next + 4 * j, ld, x, sum[GROUPS - 1]);
        }
        for (int64_t j = group_quads; j < last; j++) {
            for (int v = 0; v < QUAD_VECTORS; v++)
                x[v] = i32_load(gathered + j * QUAD + LANES * v);
            add_quad(next + 4 * j, ld, x, sum[GROUPS - 1]);
        }
        add_squares(sum[0], m->squares[g], square);
        if (more)
            add_squares(sum[GROUPS - 1], m->squares[g + 1], square);
    }
    float squares[QUAD];
    for (int v = 0; v < QUAD_VECTORS; v++)
        f32_store(squares + LANES * v, square[v]);
    for (int a = 0; a < GATHERED; a++)
        norm[a] = sqrtf(squares[2 * a] + squares[2 * a + 1]);
}

/* For the n actions x that are listed in `indices`, compute upper bounds on ||R x|| from R in 16
 * bits, and store each in the action's entry of bound (K). A minus sign distinguishes these bounds
 * by R from cheap bounds. */
void ff_bound_listed(const ff_bonus_bounds *bounds, const ff_actions *actions,
                     const int64_t *restrict indices, int64_t n, int64_t d,
                     double *restrict scratch, float *restrict bound)
{
    const action_norms *norms = (const action_norms *)actions->quantised;
    int32_t *gathered = (int32_t *)aligned(scratch);
    gather(actions, indices, n, d, gathered);
    float norm[GATHERED];
    norms_of_gathered(&bounds->factor, actions, gathered, d, norm);
    const error_terms s = error_terms_of(bounds, d);
    for (int64_t i = 0; i < n; i++) {
        const action_norms *norms_a = norms + indices[i] / LANES;
        const int64_t lane = indices[i] % LANES;
        const float norm_x = norm[i] * norms_a->unit[lane];
        bound[indices[i]] = -(norm_x * s.slack +
                            (norms_a->length[lane] * s.slope + norms_a->lost[lane] * s.slope_lost));
    }
}

/* Return a mask of the actions first, first + 1, .. of one vector that have a cheap bound, not one
 * by R, and whose upper bound on the score is at least `from`. */
FF_INLINE unsigned missing_from(const float *restrict upper, const float *restrict bound, f32s from,
                                int64_t first, int64_t count)
{
    const mask32 in = lanes_of(count - first);
    return bits_of(count - first) & f32_at_least(f32_load_some(in, upper + first), from) &
           f32_at_least(f32_load_some(in, bound + first), f32_set(0.0f));
}

/* Among the actions that have only a cheap bound on ||R x||, choose those with the largest upper
 * bounds on scores, at most GATHERED, and compute their bounds from R. upper (K): the upper bounds
 * on scores; top: the largest of them. Returns the number of actions chosen. */
int64_t ff_bound_largest(const ff_bonus_bounds *bounds, const ff_actions *actions,
                         const float *restrict upper, float top, int64_t d,
                         double *restrict scratch, float *restrict bound)
{
    int64_t indices[GATHERED];
    const int64_t count = actions->actions;
    f32s least = f32_set(top);
    for (int64_t first = 0; first < count; first += LANES)
        least = f32_min_some(lanes_of(count - first), least, f32_load(upper + first));
    float low = f32_least(least), high = top;
    /* Bisect for a threshold on upper bounds that GATHERED actions reach, or one less: the bounds
     * of GATHERED actions take as long to compute as that of one action. */
    for (int i = 0; i < 10; i++) {
        const float middle = 0.5f * (low + high);
        const f32s from = f32_set(middle);
        int64_t count_from = 0;
        for (int64_t first = 0; first < count; first += LANES)
            count_from += __builtin_popcount(missing_from(upper, bound, from, first, count));
        if (count_from > GATHERED)
            low = middle;
        else
            high = middle;
        if (count_from == GATHERED || count_from == GATHERED - 1)
            break;
    }
    int64_t n = 0;
    const f32s from = f32_set(high);
    for (int64_t first = 0; first < count && n < GATHERED; first += LANES)
        for (unsigned missing = missing_from(upper, bound, from, first, count);
             missing && n < GATHERED; missing &= missing - 1)
            indices[n++] = first + __builtin_ctz(missing);
    if (n)
        ff_bound_listed(bounds, actions, indices, n, d, scratch, bound);
    return n;
}

/* Compute upper bounds on the means of the `width` vectors of actions of a panel. row: theta in 16
 * bits; pairs: number of pairs of features. */
FF_INLINE void bound_means(const i32s *panel, const int16_t *restrict row, int64_t pairs,
                           const int width, mean_terms m, const action_norms *norms,
                           float *restrict upper)
{
    const f32s slack = f32_set(m.slack), mean = f32_set(m.mean);
    const f32s norm = f32_set(m.norm), slope = f32_set(m.slope);
    const f32s slope_lost = f32_set(m.slope_lost);
    /* Two sums, so that chains of additions overlap. */
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
        const f32s length = f32_load(norms[v].length);
        const f32s lost = f32_load(norms[v].lost);
        const f32s sums = f32_of(i32_add(even[v], odd[v]));
        const f32s product = f32_mul(sums, f32_load(norms[v].unit));
        const f32s size = f32_mul(norm, length);
        const f32s rounding = f32_fma(size, slack, f32_set(0x1p-60f));
        const f32s error = f32_fma(slope, length, f32_fma(slope_lost, lost, rounding));
        f32_store(upper + LANES * v, f32_nan_if_infinite(f32_add(f32_mul(product, mean), error)));
    }
}

/* Compute an upper bound on <x, theta> for every action x into `upper`, from products of 16-bit
 * numbers. `upper` has K entries, rounded up to whole vectors. row: theta in 16 bits; t: its unit,
 * length and error. The bounds also cover the rounding error of a bonus of at most factor ||R x||,
 * except for the part slack_of(d) of the bonus. */
void ff_bound_means(const ff_actions *actions, const int16_t *restrict row, quantised_row t,
                    double factor, int64_t d, float *restrict upper)
{
    const int64_t vectors = vectors_of(actions->actions), pairs = pairs_of(d);
    const action_norms *norms = (const action_norms *)actions->quantised;
    const i32s *panels = (const i32s *)(norms + vectors);
    const mean_terms m = mean_terms_of(t, factor, d);
    int64_t v = 0;
    for (; v + PANEL_VECTORS <= vectors; v += PANEL_VECTORS)
        bound_means(panels + v * pairs, row, pairs, PANEL_VECTORS, m, norms + v, upper + LANES * v);
    if (v < vectors)
        bound_means(panels + v * pairs, row, pairs, 2, m, norms + v, upper + LANES * v);
}

/* Compute upper bounds on the scores of all actions into `upper`: the upper bound on the mean plus
 * `factor` times the upper bound on ||R x||. mean (K): the bounds on means; bound (K): those on
 * ||R x||, in units of R in 16 bits, negative if by R. Returns the largest bound on a score. */
float ff_bound_scores(const ff_bonus_bounds *bounds, const float *restrict mean,
                      const float *restrict bound, double factor, int64_t count, int64_t d,
                      float *restrict upper)
{
    const f32s slack = f32_set(slack_of(d));
    const f32s bonus = f32_set((float)(factor * bounds->factor.unit));
    f32s top = f32_set(-INFINITY);
    for (int64_t first = 0; first < LANES * vectors_of(count); first += LANES) {
        const mask32 in = lanes_of(count - first);
        const f32s norm = f32_abs(f32_load_some(in, bound + first));
        const f32s bonus_bound = f32_mul(norm, bonus);
        const f32s score =
            f32_add(f32_fma(bonus_bound, slack, bonus_bound), f32_load(mean + first));
        const f32s masked = f32_select(in, f32_set(-INFINITY), score);
        f32_store(upper + first, masked);
        top = f32_max(top, masked);
    }
    return f32_largest(top);
}

/* List the actions whose upper bound is not below `least` (or is NaN) into `indices`, and return
 * their number. */
int64_t ff_not_below(const float *restrict upper, float least, int64_t count,
                     int64_t *restrict indices)
{
    int64_t n = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        unsigned not_below =
            bits_of(count - first) & ~f32_less(f32_load(upper + first), f32_set(least));
        for (; not_below; not_below &= not_below - 1)
            indices[n++] = first + __builtin_ctz(not_below);
    }
    return n;
}

/* Compute bounds on ||R x|| from R for those of the n actions in `indices` that have only a cheap
 * bound: their entry of `bound` is >= 0. If there are more than `limit` such actions, compute
 * nothing. Returns the number of such actions. */
int64_t ff_bound_missing(const ff_bonus_bounds *bounds, const ff_actions *actions,
                         const int64_t *restrict indices, int64_t n, int64_t limit, int64_t d,
                         double *restrict scratch, float *restrict bound)
{
    int64_t missing = 0, count = 0, gathered[GATHERED];
    for (int64_t i = 0; i < n; i++)
        missing += bound[indices[i]] >= 0.0f;
    if (missing > limit)
        return missing;
    for (int64_t i = 0; i < n; i++) {
        if (bound[indices[i]] >= 0.0f)
            gathered[count++] = indices[i];
        if (count && (count == GATHERED || i == n - 1)) {
            ff_bound_listed(bounds, actions, gathered, count, d, scratch, bound);
            count = 0;
        }
    }
    return missing;
}

/* Return a lower bound on r = sqrt(a^2 + c b^2) of an action at the time R was computed, given its
 * upper bound. An upper bound exceeds r by at most twice the error terms added to it. */
FF_INLINE double least_norm(const ff_bonus_bounds *bounds, const action_norms *restrict norms_a,
                            int64_t lane, float bound, int64_t d)
{
    const error_terms s = error_terms_of(bounds, d);
    const double magnitude = fabs((double)bound), g = (double)slack_of(d);
    const double added = 1.01 * (magnitude * ((double)s.slack - 1.0 + g) +
                                 1.0001 * (double)norms_a->length[lane] * (double)s.slope +
                                 (double)norms_a->lost[lane] * (double)s.slope_lost);
    return bounds->factor.unit * (magnitude - 2.0 * added);
}

/* Return a lower bound on the score mean + beta a + gamma b of an action, given its mean and its
 * present a = ||W x|| in float64. V is at most `grown` times the V that R was computed from. Since
 * then b = ||V^-1 x|| has changed by at most `moved` times the a of that time.
 *
 * Proof. When R was computed, a was at most sqrt(grown) times the present a, plus rounding of W:
 * this is a_then. At that time r = ||R x|| was sqrt(a^2 + c b^2), so a lower bound on r and the
 * upper bound a_then on a give a lower bound on b. Since then b has fallen by at most moved a_then
 * and rounding. */
float ff_score_at_least_with(const ff_bonus_bounds *bounds, const action_norms *restrict norms,
                             int64_t action, float bound, double mean, double a, double error,
                             double beta, double gamma, double moved, double grown, int64_t d)
{
    const action_norms *norms_a = norms + action / LANES;
    const double length = 1.0001 * (double)norms_a->length[action % LANES],
                 frobenius = bounds->model.frobenius;
    const int unchanged = grown == 1.0 && moved == 0.0;
    const double drift = unchanged ? 0.0 : drift_of(frobenius, d) * length;
    double second = 0.0;
    if (gamma != 0.0) {
        const double r = least_norm(bounds, norms_a, action % LANES, bound, d);
        const double a_then = 1.000001 * sqrt(grown) * (a + error / beta + drift);
        const double square = (r * r - a_then * a_then) / bounds->model.c;
        second = r > 0.0 && square > 0.0 ? sqrt(square) - moved * a_then : 0.0;
        second = second > 0.0 ? second : 0.0;
    }
    const double bonus = beta * a + gamma * second;
    const double least = mean + bonus - error - (2.0 * beta + 4.2 * gamma * frobenius) * drift -
                         1e-6 * (fabs(mean) + bonus);
    return ff_float_below(least);
}

/* Return a lower bound on the score mean + beta a + gamma b of an action, from its upper bounds on
 * the mean and on r = ||R x||. Here a = ||W x|| and b = ||V^-1 x||. V is at most `grown` times the
 * V that R was computed from. Since then b has changed by at most `moved` times the a of that time.
 *
 * Proof while V is that of R. r^2 = a^2 + c b^2, so a = r cos p and sqrt(c) b = r sin p for an
 * angle p. With `first` = beta, the bonus first a + gamma b equals F r cos(p - p*), where F^2 =
 * first^2 + gamma^2 / c and tan p* = gamma / (sqrt(c) first). By Cauchy-Schwarz a^2 = x'V^-1 x <=
 * ||x|| b, so q cos^2 p <= sin p for q = sqrt(c) r / ||x||. So p lies between the angle at which
 * equality holds and a right angle, and cos(p - p*) is smallest at one of these two angles. Without
 * a second bonus the cosine is 1.
 *
 * Proof for a V that has grown. A data point x with x'V^-1 x = s - 1 adds at most (s - 1) V to V,
 * so the a^2 of every action falls to no less than a^2 / s, and to no less than a^2 / grown in all.
 * b falls by at most moved a, because ff_bonus_cache_observe bounds the absolute change of b. So
 * the bonus is at least first a + gamma b with first = beta / sqrt(grown) - gamma moved and the a
 * and b of the V of R. The proof above holds for this `first` too if it is above 0. The factor
 * 0.999999 covers the rounding error of `grown`, MOST_POINTS (d + 8) u. Rounding of W changes a by
 * at most drift_of() ||x||, and b by 2.01 ||W||_F times as much (see error_terms). `drift` is the
 * change of the bonus. Twice `drift` is subtracted, because b moves by `moved` times the a that
 * includes rounding.
 *
 * The upper bound on the mean exceeds the mean by at most twice the error terms added to it. The
 * error of the exact score is that of `interval_of` in ff_bonus_scores.c. */
float ff_score_at_least(const ff_bonus_bounds *bounds, const action_norms *restrict norms,
                        int64_t action, float upper_mean, float bound,
                        const double *restrict theta, double beta, double gamma, double moved,
                        double grown, int64_t d)
{
    const action_norms *norms_a = norms + action / LANES;
    const double length = 1.0001 * (double)norms_a->length[action % LANES],
                 lost = (double)norms_a->lost[action % LANES];
    const double g = (double)slack_of(d), frobenius = bounds->model.frobenius, c = bounds->model.c;
    const double r = least_norm(bounds, norms_a, action % LANES, bound, d);
    const double norm = 1.0001 * sqrt(f64_dot(theta, theta, d));
    /* theta in 16 bits has lost at most this much length. */
    const double theta_lost = norm * sqrt((double)d) / LENGTH;
    const double error = 1.02 * (theta_lost * length + (theta_lost + norm) * lost +
                                 g * norm * length) + 0x1p-50;
    double first = beta, upper = beta, drift = 0.0, cosine_bound = 1.0;
    if (grown != 1.0 || moved != 0.0) {
        first = 0.999999 * beta / sqrt(grown) - gamma * moved;
        drift = (beta + 2.1 * gamma * frobenius) * drift_of(frobenius, d) * length;
        if (!(first > 0.0))
            return -INFINITY;
    }
    double bonus_factor = first;
    if (gamma != 0.0) {
        const double second = gamma / sqrt(c);
        bonus_factor = hypot(first, second);
        upper = hypot(beta + gamma * moved, second);
        /* The squared cosine of the angle p with equality. */
        const double q = sqrt(c) * r / length;
        const double cosine_square = 2.0 / (1.0 + sqrt(1.0 + 4.0 * q * q));
        const double sine = q * cosine_square;
        const double low = (sqrt(cosine_square) * first + sine * second) / bonus_factor,
                     high = second / bonus_factor;
        cosine_bound = 0.999999 * (low < high ? low : high);
    }
    const double exact_error = 8.0 * (double)(d + 16) * 0x1p-53 *
                               (norm + (beta + 2.0 * gamma * frobenius) * frobenius) * length;
    const double mean = (double)upper_mean - 2.0 * (error + 0x1p-79 * (1.0 + upper) * length);
    const double least = mean + cosine_bound * bonus_factor * r - exact_error - 2.0 * drift -
                         1e-6 * (fabs(mean) + bonus_factor * fabs(r));
    return r > 0.0 ? ff_float_below(least) : -INFINITY;
}

#endif
