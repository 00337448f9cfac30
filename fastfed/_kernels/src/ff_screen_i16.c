#include "ff_screen_i16.h"

#ifdef FF_WIDE
#include <math.h>

#include "ff_screen_i16_parts.h"

int64_t ff_screen_i16_scratch(int64_t d, int64_t actions)
{
    /* The factor; the actions; upper bounds on scores, bonuses and means (ff_bonus_cache.c); space
     * for alignment. */
    return ff_quantised_factor_size(d) + ff_quantised_bytes(d, actions) / 8 +
           3 * LANES / 2 * vectors_of(actions) + 24;
}

/* The terms of the bounds, in float32. Proof: let hats mark results of quantised numbers. Products
 * are exact in 32 bits, so the only errors are those of quantisation, which were measured while
 * rounding: W^ = W + E, x^ = x + e, and
 *   | ||W^ x^|| - ||W x|| | <= ||E||_F (||x|| + ||e||) + ||W||_2 ||e||,
 * and the same for theta. This gives `slope` for each unit of ||x||, and `slope_lost` for each unit
 * of ||e||. In float32, from z^2 (a sum of d squares) to the score there are less than d + 16
 * roundings. With g = (d + 16) u / (1 - (d + 16) u), u = 2^-24, mean and width have relative errors
 * of at most g, which is `slack`. The factor 1.01 covers the rounding of the bounds and of the
 * exact float64 score. Underflow costs a square 2^-126, a root 2^-63, and a length times anything
 * less; the added constants exceed that and are too small to matter. */
typedef struct {
    const int16_t *rows;  /* [W; theta; zeros] in 16 bits */
    const float *squares; /* squared units of the groups of rows */
    float bonus, mean;    /* factors from products with an action of unit 1 to bonus and mean */
    float slack, theta_norm, slope, slope_lost;
} score_terms;

/* Compute the terms. */
FF_INLINE score_terms score_terms_of(const quantised_factor *model, double beta, int64_t d)
{
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double slope = beta * model->lost + model->theta.lost;
    return (score_terms){model->rows,
                         model->squares,
                         (float)(beta * model->unit),
                         (float)model->theta.unit,
                         (float)(1.01 * g),
                         (float)model->theta.norm,
                         (float)(1.01 * slope + (1.0 + beta) * 0x1p-80),
                         (float)(1.01 * (slope + beta * model->norm + model->theta.norm))};
}

/* Compute upper bounds on the exact scores of a panel into `upper`, and update the largest lower
 * bounds by lane in `floor`. valid: number of actions from this panel on. */
FF_INLINE void bound_panel(const i32s *restrict panel, const action_norms *restrict norms,
                           const int width, int64_t valid, const score_terms *s, int64_t d,
                           float *restrict upper, f32s *restrict floor)
{
    const int64_t ld = row_of(d);
    f32s square[PANEL_VECTORS], mean[PANEL_VECTORS];
    i32s acc[ROWS][PANEL_VECTORS];
    for (int v = 0; v < width; v++)
        square[v] = mean[v] = f32_set(0.0f);
    for (int64_t i = 0; i <= d; i += ROWS) {
        const int last = i + ROWS > d;
        product_i16(s->rows + i * ld, ld, last ? pairs_of(d) : (i + ROWS + 1) / 2, panel, width,
                    (const char *)panel, acc);
        const f32s unit = f32_set(s->squares[i / ROWS]);
        for (int v = 0; v < width; v++) {
            f32s sum = f32_set(0.0f);
            for (int r = 0; r < ROWS; r++) {
                const f32s z = f32_of(acc[r][v]);
                if (!last || i + r < d)
                    sum = f32_fma(z, z, sum);
                else if (i + r == d)
                    mean[v] = z;
            }
            square[v] = f32_fma(sum, unit, square[v]);
        }
    }
    for (int v = 0; v < width; v++) {
        const f32s length = f32_load(norms[v].length);
        const f32s unit = f32_load(norms[v].unit);
        const f32s lost = f32_load(norms[v].lost);
        const f32s bonus = f32_mul(f32_mul(f32_sqrt(square[v]), unit), f32_set(s->bonus));
        const f32s score =
            f32_nan_if_infinite(f32_fma(f32_mul(mean[v], unit), f32_set(s->mean), bonus));
        const f32s magnitude = f32_fma(f32_set(s->theta_norm), length, bonus);
        const f32s rounding = f32_fma(magnitude, f32_set(s->slack), f32_set(0x1p-60f));
        const f32s error =
            f32_fma(f32_set(s->slope), length, f32_fma(f32_set(s->slope_lost), lost, rounding));
        const f32s low = f32_sub(score, error);
        f32_store(upper + LANES * v, f32_add(score, error));
        /* NaN proves nothing. */
        *floor = f32_select(lanes_of(valid - LANES * v), *floor, f32_max(low, *floor));
    }
}

/* Return 1 if the bounds of the first panel rule out next to nothing, as while V is a multiple of
 * I. Then those of other panels will not either. */
FF_INLINE int rules_out_little(const float *restrict upper, f32s floors, int64_t count)
{
    const f32s floor = f32_set(f32_largest(floors));
    const int64_t held = count < LANES * PANEL_VECTORS ? count : LANES * PANEL_VECTORS;
    int64_t below = 0;
    for (int64_t first = 0; first < held; first += LANES)
        below +=
            __builtin_popcount(bits_of(held - first) & f32_less(f32_load(upper + first), floor));
    return 2 * below + 2 < held;
}

int64_t ff_screen_i16(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    const quantised_factor model = ff_quantise_factor(w, theta, d, scratch);
    const score_terms terms = score_terms_of(&model, beta, d);
    float *upper = (float *)(scratch + ff_quantised_factor_size(d));
    const void *quantised = actions->quantised;
    if (!quantised) {
        void *buffer = aligned((double *)(upper + LANES * vectors));
        ff_quantise_i16(actions, d, buffer);
        quantised = buffer;
    }
    const action_norms *norms = (const action_norms *)quantised;
    const i32s *panels = (const i32s *)(norms + vectors);
    f32s floors = f32_set(-INFINITY);
    /* Bound all panels. */
    for (int64_t v = 0; v < vectors; v += PANEL_VECTORS) {
        const i32s *panel = panels + v * pairs_of(d);
        const int64_t valid = count - LANES * v;
        if (v + PANEL_VECTORS <= vectors)
            bound_panel(panel, norms + v, PANEL_VECTORS, valid, &terms, d, upper + LANES * v,
                        &floors);
        else
            bound_panel(panel, norms + v, 2, valid, &terms, d, upper + LANES * v, &floors);
        if (v == 0 && rules_out_little(upper, floors, count))
            return -1;
    }
    const float floor = f32_largest(floors);
    const int sound = floor > -INFINITY && floor < INFINITY;
    /* List the actions whose upper bound is not below the largest lower bound. */
    int64_t candidate_count = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        const unsigned below = f32_less(f32_load(upper + first), f32_set(floor));
        unsigned not_below = bits_of(count - first) & ~(sound ? below : 0u);
        for (; not_below; not_below &= not_below - 1)
            candidates[candidate_count++] = first + __builtin_ctz(not_below);
    }
    return candidate_count;
}

#else
int64_t ff_screen_i16_scratch(int64_t d, int64_t actions)
{
    (void)d, (void)actions;
    return 0;
}

int64_t ff_screen_i16(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates)
{
    (void)actions, (void)w, (void)theta, (void)beta, (void)d, (void)scratch, (void)candidates;
    return -1;
}
#endif
