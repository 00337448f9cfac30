#include "ff_screen_i16.h"

#ifdef FF_AVX512
#include <math.h>

#include "ff_screen_i16_parts.h"

int64_t ff_screen_i16_scratch(int64_t d, int64_t actions)
{
    /* The factor, the actions, upper bounds, and those of bonuses and means (ff_bonus_cache.c); and
     * space to align. */
    return ff_quantised_factor_size(d) + ff_quantised_bytes(d, actions) / 8 +
           24 * vectors_of(actions) + 24;
}

/* The terms of the bounds, in float32. Hats mark results of quantised numbers. Their products
 * are exact in 32, so up to there only those numbers are off, by what was measured as they were
 * rounded: W^ = W + E, x^ = x + e, and
 *     | ||W^ x^|| - ||W x|| | <= ||E||_F (||x|| + ||e||) + ||W||_2 ||e||,
 * the same for theta: `slope` times ||x||, and `slope_lost` times ||e||. Float32: to z^2 = a sum
 * over d squares, and on to the score, there are less than d + 16 roundings; with g = (d + 16) u /
 * (1 - (d + 16) u), u = 2^-24, mean and width are off by g of themselves at most, which is
 * `slack`. A hundredth pays for the rounding of bounds and of the exact float64 score. Underflow
 * costs a square 2^-126, a root 2^-63, and a length times anything less: the constants are above
 * that, and far below what matters. */
typedef struct {
    const int16_t *rows;
    const float *squares;
    float bonus, mean; /* make scores of products with an action of unit 1 */
    float slack, theta_norm, slope, slope_lost;
} scoring;

INLINE scoring scoring_of(const quantised_factor *model, double beta, int64_t d)
{
    const double n = (double)(d + 16), g = n * 0x1p-24 / (1.0 - n * 0x1p-24);
    const double slope = beta * model->lost + model->theta.lost;
    return (scoring){model->rows,
                     model->squares,
                     (float)(beta * model->unit),
                     (float)model->theta.unit,
                     (float)(1.01 * g),
                     (float)model->theta.norm,
                     (float)(1.01 * slope + (1.0 + beta) * 0x1p-80),
                     (float)(1.01 * (slope + beta * model->norm + model->theta.norm))};
}

/* Upper bounds on the exact scores of a panel into upper, the largest lower bounds so far into
 * floor. */
INLINE void bound_panel(const __m512i *restrict panel, const known16 *restrict known,
                        const int width, int64_t held, const scoring *s, int64_t d,
                        float *restrict upper, __m512 *restrict floor)
{
    const int64_t ld = row_of(d);
    __m512 square[VECTORS16], mean[VECTORS16];
    __m512i acc[ROWS][VECTORS16];
    for (int v = 0; v < width; v++)
        square[v] = mean[v] = _mm512_setzero_ps();
    for (int64_t i = 0; i <= d; i += ROWS) {
        const int last = i + ROWS > d;
        product_i16(s->rows + i * ld, ld, last ? pairs_of(d) : (i + ROWS + 1) / 2, panel, width,
                    (const char *)panel, 0, acc);
        const __m512 unit = _mm512_set1_ps(s->squares[i / ROWS]);
        for (int v = 0; v < width; v++) {
            __m512 sum = _mm512_setzero_ps();
            for (int r = 0; r < ROWS; r++) {
                const __m512 z = _mm512_cvtepi32_ps(acc[r][v]);
                if (!last || i + r < d)
                    sum = _mm512_fmadd_ps(z, z, sum);
                else if (i + r == d)
                    mean[v] = z;
            }
            square[v] = _mm512_fmadd_ps(sum, unit, square[v]);
        }
    }
    for (int v = 0; v < width; v++) {
        const __m512 length = _mm512_loadu_ps(known[v].length);
        const __m512 unit = _mm512_loadu_ps(known[v].unit);
        const __m512 lost = _mm512_loadu_ps(known[v].lost);
        const __m512 bonus = _mm512_mul_ps(_mm512_mul_ps(_mm512_sqrt_ps(square[v]), unit),
                                           _mm512_set1_ps(s->bonus));
        const __m512 score =
            _mm512_fmadd_ps(_mm512_mul_ps(mean[v], unit), _mm512_set1_ps(s->mean), bonus);
        const __m512 size = _mm512_fmadd_ps(_mm512_set1_ps(s->theta_norm), length, bonus);
        const __m512 own =
            _mm512_fmadd_ps(size, _mm512_set1_ps(s->slack), _mm512_set1_ps(0x1p-60f));
        const __m512 error =
            _mm512_fmadd_ps(_mm512_set1_ps(s->slope), length,
                            _mm512_fmadd_ps(_mm512_set1_ps(s->slope_lost), lost, own));
        const __m512 low = _mm512_sub_ps(score, error);
        _mm512_storeu_ps(upper + 16 * v, _mm512_add_ps(score, error));
        /* What is not a number proves nothing. */
        const __mmask16 better =
            _mm512_mask_cmp_ps_mask(lanes_of(held - 16 * v), low, *floor, _CMP_GT_OQ);
        *floor = _mm512_mask_mov_ps(*floor, better, low);
    }
}

/* Whether the bounds of the first panel tell next to nothing, as while V is a multiple of I: then
 * those of the others will not either. */
INLINE int alike(const float *restrict upper, __m512 floors, int64_t count)
{
    const __m512 floor = _mm512_set1_ps(_mm512_reduce_max_ps(floors));
    const int64_t held = count < 16 * VECTORS16 ? count : 16 * VECTORS16;
    int64_t below = 0;
    for (int64_t first = 0; first < held; first += 16)
        below += __builtin_popcount(
            lanes_of(held - first) &
            _mm512_cmp_ps_mask(_mm512_loadu_ps(upper + first), floor, _CMP_LT_OQ));
    return 2 * below + 2 < held;
}

AVX512 int64_t ff_screen_i16(const ff_actions *actions, const double *restrict w,
                             const double *restrict theta, double beta, int64_t d,
                             double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions, vectors = vectors_of(count);
    const quantised_factor model = ff_quantise_factor(w, theta, d, scratch);
    const scoring made = scoring_of(&model, beta, d);
    float *upper = (float *)(scratch + ff_quantised_factor_size(d));
    const void *quantised = actions->quantised;
    if (!quantised) {
        void *own = aligned((double *)(upper + 16 * vectors));
        ff_quantise_i16(actions, d, own);
        quantised = own;
    }
    const known16 *known = (const known16 *)quantised;
    const __m512i *panels = (const __m512i *)(known + vectors);
    __m512 floors = _mm512_set1_ps(-INFINITY);
    for (int64_t v = 0; v < vectors; v += VECTORS16) {
        const __m512i *panel = panels + v * pairs_of(d);
        const int64_t held = count - 16 * v;
        if (v + VECTORS16 <= vectors)
            bound_panel(panel, known + v, VECTORS16, held, &made, d, upper + 16 * v, &floors);
        else
            bound_panel(panel, known + v, 2, held, &made, d, upper + 16 * v, &floors);
        if (v == 0 && alike(upper, floors, count))
            return -1;
    }
    const float floor = _mm512_reduce_max_ps(floors);
    const int sound = floor > -INFINITY && floor < INFINITY;
    int64_t kept = 0;
    for (int64_t first = 0; first < count; first += 16) {
        const __mmask16 below = _mm512_cmp_ps_mask(_mm512_loadu_ps(upper + first),
                                                   _mm512_set1_ps(floor), _CMP_LT_OQ);
        unsigned may = lanes_of(count - first) & ~(sound ? (unsigned)below : 0u);
        for (; may; may &= may - 1)
            candidates[kept++] = first + __builtin_ctz(may);
    }
    return kept;
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
