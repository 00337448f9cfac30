/* Symbols (ff_linalg.h, ff_scores.h): K actions x of d features. V is the regularised Gram matrix,
 * W its inverse factor, theta the estimate. beta and gamma are the factors of ||W x|| and of
 * ||V^-1 x|| in a score. */
#include "ff_screen_f32.h"

#include <math.h>

#include "ff_screen_f32_parts.h"
#include "ff_screen_f32_small.h"
#include "ff_sieve.h"

/* Compute z: ROWS rows of w (ld apart) times features 0..columns - 1 of a panel, whose features are
 * `stride` floats apart. */
FF_INLINE void product32(const float *restrict w, int64_t ld, int64_t columns,
                         const float *restrict panel, int64_t stride,
                         lanes32 (*restrict z)[VECTORS32])
{
    lanes32 acc[ROWS][VECTORS32];
    /* Element by element: a memset of this size is slow and prevents the use of registers. */
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS32; v++)
            acc[r][v] = (lanes32){0};
    for (int64_t j = 0; j < columns; j++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS32; v++)
                acc[r][v] += w[r * ld + j] * *(const loose32 *)(panel + j * stride + v * WIDTH32);
    memcpy(z, acc, sizeof acc);
}

/* Return the number of rows of the float32 matrix [W; theta; zeros]: d + 1 rounded up to whole
 * groups of ROWS. */
FF_INLINE int64_t padded_rows(int64_t d) { return (d + 1 + ROWS - 1) / ROWS * ROWS; }

/* Compute ||V^{-1} x||^2 of a panel approximately into square (SCREEN_PANEL), by V^{-1} x = W' z.
 * transposed: W' and zeros; z (d, SCREEN_PANEL): W x. */
FF_INLINE void second_panel(const float *restrict transposed, const float *restrict z, int64_t d,
                            float *restrict square)
{
    lanes32 sum[2][VECTORS32], g[ROWS][VECTORS32];
    memset(sum, 0, sizeof sum);
    for (int64_t j = 0; j < d; j += ROWS) {
        product32(transposed + j * d + j, d, d - j, z + j * SCREEN_PANEL, SCREEN_PANEL, g);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS32; v++)
                sum[r & 1][v] += g[r][v] * g[r][v];
    }
    for (int v = 0; v < VECTORS32; v++)
        sum[0][v] += sum[1][v];
    memcpy(square, sum[0], sizeof sum[0]);
}

/* The model in float32. */
typedef struct {
    const float *w, *transposed; /* [W; theta; zeros]; and [W'; zeros] if gamma is not 0 */
    float beta, gamma;           /* factors of the bonuses */
    int has_second;              /* 1: gamma is not 0 as a double; it may be 0 as a float */
    float ranking;               /* factor on the bonuses in a ranking */
} model32;

/* For each lane, the largest values of the panels so far: of approximate scores and rankings, and
 * of ||W x||^2, ||V^-1 x||^2 and ||x||^2. */
typedef struct {
    float score[SCREEN_PANEL] FF_ALIGNED, width[SCREEN_PANEL] FF_ALIGNED;
    float rank[SCREEN_PANEL] FF_ALIGNED; /* only if rankings are computed */
    float second[SCREEN_PANEL] FF_ALIGNED, length[SCREEN_PANEL] FF_ALIGNED;
} extremes;

/* Compute the approximate scores of a panel into `score`, and update the extremes. bonus: NULL, or
 * receives the bonuses; `score` then receives the ranking <x, theta> + model->ranking times the
 * bonus. valid: number of actions from this panel on; wx: scratch for W x. */
FF_INLINE void screen_panel(const float *restrict panel, int64_t stride, const model32 *model,
                            int64_t d, int64_t valid, float *restrict wx, float *restrict score,
                            float *restrict bonus, extremes *restrict so_far)
{
    const float *restrict w = model->w;
    /* Several partial sums, because a single chain of additions would be limited by latency. */
    lanes32 square[2][VECTORS32], norm[2][VECTORS32], z[ROWS][VECTORS32], mean[VECTORS32];
    for (int v = 0; v < VECTORS32; v++) {
        square[0][v] = square[1][v] = norm[0][v] = norm[1][v] = mean[v] = (lanes32){0};
    }
    int64_t j = 0;
    for (; j + 2 <= d; j += 2)
        for (int i = 0; i < 2; i++)
            for (int v = 0; v < VECTORS32; v++) {
                const lanes32 lengths = *(const loose32 *)(panel + (j + i) * stride + v * WIDTH32);
                norm[i][v] += lengths * lengths;
            }
    for (int v = 0; j < d && v < VECTORS32; v++) {
        const lanes32 lengths = *(const loose32 *)(panel + j * stride + v * WIDTH32);
        norm[0][v] += lengths * lengths;
    }
    int64_t i = 0;
    for (; i + ROWS <= d; i += ROWS) {
        product32(w + i * d, d, i + ROWS, panel, stride, z);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS32; v++)
                square[r & 1][v] += z[r][v] * z[r][v];
        if (model->has_second)
            memcpy(wx + i * SCREEN_PANEL, z, sizeof z);
    }
    /* The last rows of W, then theta and zeros. */
    product32(w + i * d, d, d, panel, stride, z);
    if (model->has_second)
        memcpy(wx + i * SCREEN_PANEL, z, (size_t)((d - i) * SCREEN_PANEL) * sizeof(float));
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS32; v++) {
            if (i + r < d)
                square[r & 1][v] += z[r][v] * z[r][v];
            else if (i + r == d)
                mean[v] = z[r][v];
        }
    float means[SCREEN_PANEL] FF_ALIGNED, squares[SCREEN_PANEL] FF_ALIGNED,
        lengths[SCREEN_PANEL] FF_ALIGNED;
    float second[SCREEN_PANEL] FF_ALIGNED = {0}, scores[SCREEN_PANEL] FF_ALIGNED;
    float bonuses[SCREEN_PANEL] FF_ALIGNED = {0};
    for (int v = 0; v < VECTORS32; v++) {
        square[0][v] += square[1][v];
        norm[0][v] += norm[1][v];
    }
    memcpy(means, mean, sizeof means);
    memcpy(squares, square[0], sizeof squares);
    memcpy(lengths, norm[0], sizeof lengths);
    const float beta = model->beta, gamma = model->gamma;
    if (model->has_second) {
        second_panel(model->transposed, wx, d, second);
        for (int a = 0; a < SCREEN_PANEL; a++) {
            so_far->second[a] = second[a] > so_far->second[a] ? second[a] : so_far->second[a];
            bonuses[a] = gamma * sqrtf(second[a]);
        }
    }
    for (int a = 0; a < SCREEN_PANEL; a++) {
        bonuses[a] += beta * sqrtf(squares[a]);
        scores[a] = means[a] + bonuses[a];
        /* The padding of a short panel is not an action, and has length zero. NaN is not counted as
         * largest. */
        so_far->score[a] =
            ((a < valid) & (scores[a] > so_far->score[a])) ? scores[a] : so_far->score[a];
        so_far->width[a] = squares[a] > so_far->width[a] ? squares[a] : so_far->width[a];
        so_far->length[a] = lengths[a] > so_far->length[a] ? lengths[a] : so_far->length[a];
    }
    if (bonus) {
        memcpy(bonus, bonuses, sizeof bonuses);
        for (int a = 0; a < SCREEN_PANEL; a++) {
            scores[a] = means[a] + model->ranking * bonuses[a];
            so_far->rank[a] =
                ((a < valid) & (scores[a] > so_far->rank[a])) ? scores[a] : so_far->rank[a];
        }
    }
    memcpy(score, scores, sizeof scores);
}

/* Return the largest of SCREEN_PANEL numbers. */
FF_INLINE double largest_of(const float *restrict lane)
{
    float top[SCREEN_PANEL] FF_ALIGNED;
    memcpy(top, lane, sizeof top);
    for (int n = SCREEN_PANEL / 2; n > 0; n /= 2)
        for (int a = 0; a < n; a++)
            top[a] = top[a + n] > top[a] ? top[a + n] : top[a];
    return (double)top[0];
}

/* Number of features of one action that are copied together. */
#define SIDE_BY_SIDE 8

/* Copy n actions into a panel. Feature j of action a is x[a as + j fs]: `as` is the action stride
 * and `fs` the feature stride. */
#define PACK(x)                                                                                    \
    {                                                                                              \
        int64_t j = 0;                                                                             \
        for (; fs == 1 && j + SIDE_BY_SIDE <= d; j += SIDE_BY_SIDE)                                \
            for (int64_t a = 0; a < n; a++)                                                        \
                for (int c = 0; c < SIDE_BY_SIDE; c++)                                             \
                    panel[(j + c) * SCREEN_PANEL + a] = (float)(x)[a * as + j + c];                \
        for (; j < d; j++)                                                                         \
            for (int64_t a = 0; a < n; a++)                                                        \
                panel[j * SCREEN_PANEL + a] = (float)(x)[a * as + j * fs];                         \
    }

/* Copy the actions from `first` on into a float32 panel; padding is zero. */
FF_INLINE void pack32(const ff_actions *actions, int64_t first, int64_t d, float *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    const int64_t remaining = actions->actions - first;
    const int64_t n = remaining < SCREEN_PANEL ? remaining : SCREEN_PANEL;
    if (n < SCREEN_PANEL)
        memset(panel, 0, (size_t)(SCREEN_PANEL * d) * sizeof(float));
    if (actions->is_double) {
        const double *x = (const double *)actions->x + first * as;
        PACK(x)
    } else if (as == 1) {
        const float *x = (const float *)actions->x + first;
        for (int64_t j = 0; j < d; j++)
            memcpy(panel + j * SCREEN_PANEL, x + j * fs, (size_t)n * sizeof(float));
    } else {
        const float *x = (const float *)actions->x + first * as;
        PACK(x)
    }
}

/* Return the number of doubles of scratch that screening in float32 needs. */
int64_t ff_screen_f32_scratch(int64_t d, int64_t actions)
{
    const int64_t padded = (actions + SCREEN_PANEL - 1) / SCREEN_PANEL * SCREEN_PANEL;
    /* Two floats in each double: scores (or rankings) and bonuses of all actions; a panel and its
     * W x; [W; theta; zeros] and [W'; zeros]. The rest is room for alignment. */
    return padded + SCREEN_PANEL * d + padded_rows(d) * d + 1 + 16;
}

/* Write W' to `transposed` in whole groups of rows, with zeros before the diagonal of each group
 * and past the last row. */
FF_INLINE void transpose(const float *restrict w32, int64_t d, float *restrict transposed)
{
    const int64_t rows = (d + ROWS - 1) / ROWS * ROWS;
    for (int64_t j = 0; j < rows; j++)
        for (int64_t k = j / ROWS * ROWS; k < d; k++)
            transposed[j * d + k] = j < d && k >= j ? w32[k * d + j] : 0.0f;
}

/* Score all actions panel by panel. score, bonus: see screen_panel. Returns the extremes. */
FF_INLINE ff_extremes_f32 screen_panels(const ff_actions *actions, const model32 *model, int64_t d,
                                        float *restrict panel, float *restrict wx,
                                        float *restrict score, float *restrict bonus)
{
    const int in_place = is_readable_in_place(actions);
    const int64_t count = actions->actions;
    extremes so_far;
    for (int a = 0; a < SCREEN_PANEL; a++) {
        so_far.score[a] = so_far.rank[a] = -INFINITY;
        so_far.width[a] = so_far.second[a] = so_far.length[a] = 0.0f;
    }
    for (int64_t from = 0; from < count; from += SCREEN_PANEL) {
        /* If actions are read in place, the last panel overlaps the previous one instead of running
         * past the end. */
        const int64_t last = count - SCREEN_PANEL, first = in_place && from > last ? last : from;
        const float *x = (const float *)actions->x + first;
        if (!in_place) {
            pack32(actions, first, d, panel);
            x = panel;
        }
        screen_panel(x, in_place ? actions->feature_stride : SCREEN_PANEL, model, d, count - first,
                     wx, score + first, bonus ? bonus + first : NULL, &so_far);
    }
    return (ff_extremes_f32){largest_of(so_far.score), largest_of(so_far.rank),
                             largest_of(so_far.width), largest_of(so_far.second),
                             largest_of(so_far.length)};
}

/* Approximate scores of all actions. */
typedef struct {
    float *score, *bonus; /* (padded), see screen_panel */
    double largest, rank; /* the largest approximate score and ranking */
    double error;         /* bound on the error of every approximate score */
} approximation;

/* Compute the approximate scores of all actions. If has_bonus is 1, compute instead their
 * bonuses and rankings, <x, theta> plus `ranking` times the bonus. */
static approximation approximate(const ff_actions *actions, const double *restrict w,
                                 const double *restrict theta, double beta, double gamma,
                                 double ranking, int has_bonus, int64_t d,
                                 double *restrict scratch)
{
    const int64_t count = actions->actions, rows = padded_rows(d);
    const int64_t padded = (count + SCREEN_PANEL - 1) / SCREEN_PANEL * SCREEN_PANEL;
    /* The scratch: scores or rankings, bonuses, a panel, its W x, [W; theta; zeros] (w32), and
     * [W'; zeros] (transposed). */
    float *score = (float *)aligned(scratch), *bonus = has_bonus ? score + padded : NULL;
    float *panel = score + (has_bonus ? 2 : 1) * padded;
    float *wx = panel + SCREEN_PANEL * d, *w32 = wx + SCREEN_PANEL * d;
    float *transposed = w32 + rows * d;
    const double w_norm = factor_to_float32(w, d, w32);
    double lane[8] FF_ALIGNED = {0};
    to_float32(theta, d, w32 + d * d, lane);
    const double theta_norm = sqrt(sum_of(lane)), slack = slack_of(d, theta_norm);
    ff_extremes_f32 all;
    if (ff_screen_f32_small_fits(actions, d))
        all = ff_screen_f32_small(actions, w32, (float)beta, (float)gamma, (float)ranking, d, score,
                                  bonus);
    else {
        memset(w32 + (d + 1) * d, 0, (size_t)((rows - d - 1) * d) * sizeof(float));
        if (gamma != 0.0)
            transpose(w32, d, transposed);
        const model32 model = {w32, transposed, (float)beta, (float)gamma, gamma != 0.0,
                               (float)ranking};
        all = screen_panels(actions, &model, d, panel, wx, score, bonus);
    }
    for (int64_t a = count; a < padded; a++)
        score[a] = -INFINITY;
    const double length = sqrt(all.length) * (1.0 + slack) + 0x1p-60;
    const double error = error_of(beta, gamma, slack, theta_norm, w_norm, length, sqrt(all.width),
                                  sqrt(all.second));
    return (approximation){score, bonus, all.score, all.rank, error};
}

/* List the actions that may have the largest score. Scores are computed approximately, in float32,
 * with a bound on their errors. */
int64_t ff_screen_f32(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, double gamma, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    const approximation all = approximate(actions, w, theta, beta, gamma, 1.0, 0, d, scratch);
    /* An action may be the best unless its score is below the largest one by more than the errors
     * of both scores. 1 percent is for rounding. */
    return list_survivors(all.score, (float)(all.largest - 2.02 * all.error), count, candidates);
}

LIST_PASSING(list_passing_f32, float)

/* List the actions that may be chosen with a sieve: those that may pass it, and may have the
 * largest ranking among actions that pass. Rankings and bonuses are computed approximately, in
 * float32, with a bound on their errors. */
ff_sieved ff_screen_f32_sieve(const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              const ff_sieve *sieve, int64_t d, double *restrict scratch,
                              int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    const approximation all =
        approximate(actions, w, theta, beta, gamma, sieve->ranking, 1, d, scratch);
    const double error = 1.01 * all.error;
    ff_sieved result = {.certain = 1};
    result.count =
        list_survivors(all.score, (float)(all.rank - 2.01 * error), count, candidates);
    const ff_sieve_bounds bounds = ff_sieve_bounds_of(sieve, all.largest, error);
    for (int64_t i = 0; i < result.count; i++) {
        const int64_t a = candidates[i];
        result.certain &= all.score[a] + bounds.factor * all.bonus[a] >= bounds.certain;
    }
    /* Usually all actions that may have the largest ranking certainly pass the sieve. */
    return result.certain ? result
                          : list_passing_f32(all.score, all.bonus, count, &bounds, candidates);
}
