/* Symbols (ff_linalg.h, ff_scores.h): K actions x of d features. V is the regularised Gram matrix,
 * W its inverse factor, theta the estimate. beta and gamma are the factors of ||W x|| and of
 * ||V^-1 x|| in a score. */
#include "ff_scores.h"

#include <math.h>

#include "ff_linalg.h"
#include "ff_panel.h"
#include "ff_screen_f32.h"
#include "ff_screen_i16.h"

/* Number of rows of W that are multiplied together: their sums fit into the registers (sixteen or
 * more). */
#define GROUP (VECTORS == 4 ? ROWS / 2 : ROWS)

/* Number of columns of W that are multiplied together, chosen in the same way. */
#define COLUMNS (VECTORS == 1 ? 8 : VECTORS == 2 ? 4 : 2)

PRODUCT(product_group, double, lanes, VECTORS, GROUP)
PRODUCT(product_1, double, lanes, VECTORS, 1)

/* Return the number of doubles of scratch for choosing among at most K actions. */
int64_t ff_score_scratch(int64_t d, int64_t actions)
{
    const int64_t f32 = ff_screen_f32_scratch(d, actions);
    const int64_t i16 = ff_screen_i16_scratch(d, actions);
    const int64_t screening = f32 > i16 ? f32 : i16;
    /* A panel and its W x, two lists of candidates, the scratch of screening, and space for
     * alignment. */
    return 2 * PANEL * d + 2 * actions + (screening > actions ? screening : actions) + 16;
}

/* Copy PANEL consecutive actions from `first` on into a panel (d, PANEL); columns past the last
 * action are zero. A panel holds one action in each column, so that vectors run over actions. */
static void pack(const ff_actions *actions, int64_t first, int64_t d, double *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    const int64_t remaining = actions->actions - first;
    const int64_t n = remaining < PANEL ? remaining : PANEL;
    if (n < PANEL)
        memset(panel, 0, (size_t)(PANEL * d) * sizeof(double));
    if (actions->is_double) {
        const double *x = (const double *)actions->x + first * as;
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = x[a * as + j * fs];
    } else {
        const float *x = (const float *)actions->x + first * as;
        if (n == PANEL && as == 1) {
            for (int64_t j = 0; j < d; j++)
                for (int64_t a = 0; a < PANEL; a++)
                    panel[j * PANEL + a] = (double)x[a + j * fs];
            return;
        }
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = (double)x[a * as + j * fs];
    }
}

/* Copy the n actions listed in `indices` into a panel (d, PANEL); further columns are zero. */
FF_INLINE void gather(const ff_actions *actions, const int64_t *restrict indices, int64_t n,
                      int64_t d, double *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    memset(panel, 0, (size_t)(PANEL * d) * sizeof(double));
    for (int64_t a = 0; a < n; a++) {
        const int64_t offset = indices[a] * as;
        if (actions->is_double)
            for (int64_t j = 0; j < d; j++)
                panel[j * PANEL + a] = ((const double *)actions->x)[offset + j * fs];
        else
            for (int64_t j = 0; j < d; j++)
                panel[j * PANEL + a] = (double)((const float *)actions->x)[offset + j * fs];
    }
}

/* Add the squares of entries first..first + n - 1 of V^{-1} x = W'z to square (PANEL), for the
 * panel whose z = W x is given. Each entry is summed down a column of W, starting at the diagonal.
 * The n columns are taken together, because their entries are adjacent in memory. */
FF_INLINE void second_columns(const double *restrict w, const double *restrict z, int64_t d,
                              int64_t first, const int n, lanes *restrict square)
{
    const lanes *restrict rows = (const lanes *)z;
    lanes sum[COLUMNS][VECTORS];
    for (int j = 0; j < n; j++)
        for (int v = 0; v < VECTORS; v++)
            sum[j][v] = (lanes){0};
    for (int64_t k = first; k < first + n; k++)
        for (int64_t j = 0; first + j <= k; j++)
            for (int v = 0; v < VECTORS; v++)
                sum[j][v] += w[k * d + first + j] * rows[k * VECTORS + v];
    for (int64_t k = first + n; k < d; k++)
        for (int j = 0; j < n; j++)
            for (int v = 0; v < VECTORS; v++)
                sum[j][v] += w[k * d + first + j] * rows[k * VECTORS + v];
    for (int j = 0; j < n; j++)
        for (int v = 0; v < VECTORS; v++)
            square[v] += sum[j][v] * sum[j][v];
}

/* Add gamma ||V^{-1} x|| to out (PANEL) for a panel, using V^{-1} x = W'z with z = W x. */
FF_INLINE void second_bonus(const double *restrict w, const double *restrict z, double gamma,
                            int64_t d, double *restrict out)
{
    lanes sum[VECTORS];
    double square[PANEL];
    for (int v = 0; v < VECTORS; v++)
        sum[v] = (lanes){0};
    int64_t j = 0;
    for (; j + COLUMNS <= d; j += COLUMNS)
        second_columns(w, z, d, j, COLUMNS, sum);
    for (; j < d; j++)
        second_columns(w, z, d, j, 1, sum);
    memcpy(square, sum, sizeof square);
    for (int a = 0; a < PANEL; a++)
        out[a] += gamma * sqrt(square[a]);
}

/* Compute the exact scores of one panel into out (PANEL). z (d, PANEL) is scratch: it receives W x
 * if gamma is not 0, for the second bonus gamma ||V^-1 x||. */
static void score_panel(const double *restrict panel, const double *restrict w,
                        const double *restrict theta, double beta, double gamma, int64_t d,
                        double *restrict z, double *restrict out)
{
    lanes mean[VECTORS], square[VECTORS], rows[GROUP * VECTORS];
    for (int v = 0; v < VECTORS; v++)
        square[v] = (lanes){0};
    product_1(theta, 0, d, panel, mean);
    /* W x in groups of rows, then the sums of their squares. */
    for (int64_t i = 0; i < d;) {
        const int n = i + GROUP <= d ? GROUP : 1;
        if (n == GROUP)
            product_group(w + i * d, d, i + GROUP, panel, rows);
        else
            product_1(w + i * d, d, i + 1, panel, rows);
        for (int r = 0; r < n; r++)
            for (int v = 0; v < VECTORS; v++)
                square[v] += rows[r * VECTORS + v] * rows[r * VECTORS + v];
        if (gamma != 0.0)
            memcpy(z + i * PANEL, rows, (size_t)n * VECTORS * sizeof(lanes));
        i += n;
    }
    double means[PANEL], squares[PANEL];
    memcpy(means, mean, sizeof means);
    memcpy(squares, square, sizeof squares);
    for (int a = 0; a < PANEL; a++)
        out[a] = means[a] + beta * sqrt(squares[a]);
    if (gamma != 0.0)
        second_bonus(w, z, gamma, d, out);
}

/* Compute the scores of all actions, one panel at a time. */
void ff_scores(const ff_actions *actions, const double *restrict w, const double *restrict theta,
               double beta, double gamma, int64_t d, double *restrict scratch,
               double *restrict scores)
{
    double *panel = aligned(scratch), *z = panel + PANEL * d;
    double panel_scores[PANEL];
    for (int64_t first = 0; first < actions->actions; first += PANEL) {
        int64_t remaining = actions->actions - first;
        pack(actions, first, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, panel_scores);
        memcpy(scores + first, panel_scores,
               (size_t)(remaining < PANEL ? remaining : PANEL) * sizeof(double));
    }
}

/* Score every action under two models, and return the action for which the smaller of its two
 * scores is the largest. Its features are written to x (d). The other model (other_w, other_theta,
 * other_beta) has no bonus gamma ||V^-1 x||. */
int64_t ff_select_max_min(const ff_actions *actions, const double *restrict w,
                          const double *restrict theta, double beta, double gamma,
                          const double *restrict other_w, const double *restrict other_theta,
                          double other_beta, int64_t d, double *restrict scratch,
                          double *restrict x)
{
    double *panel = aligned(scratch), *z = panel + PANEL * d;
    double best = -INFINITY, panel_scores[PANEL], other_scores[PANEL];
    int64_t chosen = 0;
    for (int64_t first = 0; first < actions->actions; first += PANEL) {
        const int64_t remaining = actions->actions - first;
        pack(actions, first, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, panel_scores);
        score_panel(panel, other_w, other_theta, other_beta, 0.0, d, z, other_scores);
        for (int64_t a = 0; a < (remaining < PANEL ? remaining : PANEL); a++) {
            const double smaller =
                panel_scores[a] < other_scores[a] ? panel_scores[a] : other_scores[a];
            if (smaller > best) {
                best = smaller;
                chosen = first + a;
            }
        }
    }
    ff_features(actions, chosen, d, x);
    return chosen;
}

/* Return the action with the largest exact score among the n actions in `indices`, and write its
 * score to *score. */
int64_t ff_best_of(const ff_actions *actions, const int64_t *restrict indices, int64_t n,
                   const double *restrict w, const double *restrict theta, double beta,
                   double gamma, int64_t d, double *restrict scratch, double *restrict score)
{
    double *panel = aligned(scratch), *z = panel + PANEL * d;
    double best = -INFINITY, panel_scores[PANEL];
    int64_t chosen = indices[0];
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t columns = n - first < PANEL ? n - first : PANEL;
        gather(actions, indices + first, columns, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, panel_scores);
        for (int64_t a = 0; a < columns; a++) {
            if (panel_scores[a] > best) {
                best = panel_scores[a];
                chosen = indices[first + a];
            }
        }
    }
    *score = best;
    return chosen;
}

/* Return 1 if all n numbers are zero. */
FF_INLINE int all_zero(const double *restrict numbers, int64_t n)
{
    int64_t nonzero = 0;
    for (int64_t i = 0; i < n; i++)
        nonzero += numbers[i] != 0.0;
    return nonzero == 0;
}

/* List the actions that may have the largest score in `candidates` (K). W is `scale` I and theta is
 * 0, as long as there are no data. Returns their number. square: K doubles of scratch, for the
 * squared norms of the actions.
 *
 * The score is b ||x|| for b = beta scale + gamma scale^2, so the largest norm wins. Let u = 2^-53.
 * An action is discarded if its squared norm is below the largest squared norm S by more than 32 (d
 * + 16) u S. Proof: then its norm is below the largest norm by a relative 14 (d + 16) u. That is
 * more than the errors of both scores: the squared norms computed here have a relative error of at
 * most (d + 2) u, and the scores computed by ff_best_of one of at most (d + 8) u, because every
 * entry of W x is one product, and each sum has at most d terms. Underflow changes a root by at
 * most 2^-511. Screening in float32 would not do: the scores of all actions of norm 1 would be
 * equal up to rounding. */
static int64_t screen_norms(const ff_actions *actions, double scale, double beta, double gamma,
                            int64_t d, double *restrict panel, double *restrict square,
                            int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    for (int64_t first = 0; first < count; first += PANEL) {
        lanes sum[VECTORS];
        const lanes *restrict x = (const lanes *)panel;
        const int64_t remaining = count - first;
        pack(actions, first, d, panel);
        for (int v = 0; v < VECTORS; v++)
            sum[v] = (lanes){0};
        for (int64_t j = 0; j < d; j++)
            for (int v = 0; v < VECTORS; v++)
                sum[v] += x[j * VECTORS + v] * x[j * VECTORS + v];
        memcpy(square + first, sum,
               (size_t)(remaining < PANEL ? remaining : PANEL) * sizeof(double));
    }
    /* found.smallest: the largest squared norm less that margin. found.count: how many reach it. */
    const near_top found = near_top_of(square, count, 0.0, 32.0 * (double)(d + 16) * 0x1p-53);
    /* If a square could overflow, or underflow could matter, no action is discarded. */
    const double bonus = beta * scale + gamma * scale * scale, scale_square = scale * scale;
    const int sound =
        2.0 * found.smallest * scale_square * (1.0 + scale_square) < 0x1p1000 &&
        bonus * sqrt(found.smallest) > (1.0 + beta + gamma) * 0x1p-447;
    if (sound && found.count == 1) {
        candidates[0] = found.index_sum;
        return 1;
    }
    int64_t candidate_count = 0;
    for (int64_t a = 0; a < count; a++)
        if (!sound || !(square[a] < found.smallest))
            candidates[candidate_count++] = a;
    return candidate_count;
}

/* Return the action with the largest score. Screening leaves a few candidates, which are scored
 * exactly. Actions are screened in float32 or, before any data, by their norms. */
int64_t ff_select(const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x)
{
    /* A panel and its W x come first in the scratch, as ff_best_of expects. */
    int64_t *candidates = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    double *screen_scratch = (double *)(candidates + actions->actions);
    int64_t candidate_count;
    const double scale = fabs(ff_multiple_of_identity(w, d));
    if (scale != 0.0 && all_zero(theta, d))
        candidate_count = screen_norms(actions, scale, beta, gamma, d, aligned(scratch),
                                       screen_scratch, candidates);
    else
        candidate_count =
            ff_screen_f32(actions, w, theta, beta, gamma, d, screen_scratch, candidates);
    double score;
    const int64_t chosen = candidate_count > 1 ? ff_best_of(actions, candidates, candidate_count, w,
                                                            theta, beta, gamma, d, scratch, &score)
                                               : candidates[0];
    ff_features(actions, chosen, d, x);
    return chosen;
}

/* Remove the actions with exact scores below `least` from the list `indices` (n). Returns the
 * number of actions that remain. */
static int64_t keep_at_least(const ff_actions *actions, int64_t *restrict indices, int64_t n,
                             const double *restrict w, const double *restrict theta, double beta,
                             double gamma, double least, int64_t d, double *restrict scratch)
{
    double *panel = aligned(scratch), *z = panel + PANEL * d, panel_scores[PANEL];
    int64_t kept = 0;
    for (int64_t first = 0; first < n; first += PANEL) {
        const int64_t columns = n - first < PANEL ? n - first : PANEL;
        gather(actions, indices + first, columns, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, panel_scores);
        for (int64_t a = 0; a < columns; a++)
            if (panel_scores[a] >= least)
                indices[kept++] = indices[first + a];
    }
    return kept;
}

/* Return the action with the largest <x, theta> + ranking b among the candidates that pass the
 * sieve (ff_sieve), b = beta ||x||_{V^-1} + gamma ||V^-1 x||, and write its features to x (d).
 * `sieved` is the result of screening. If it is not certain which candidates pass, exact scores
 * decide. This may need the largest score of all actions. The actions that may have it are the
 * sieved.largest entries of `candidates` from entry K on. */
int64_t ff_best_sieved(const ff_actions *actions, ff_sieved sieved, int64_t *restrict candidates,
                       const double *restrict w, const double *restrict theta, double beta,
                       double gamma, const ff_sieve *sieve, int64_t d, double *restrict scratch,
                       double *restrict x)
{
    int64_t count = sieved.count;
    double score;
    if (!sieved.certain) {
        double limit = sieve->limit;
        if (!sieved.at_limit) {
            ff_best_of(actions, candidates + actions->actions, sieved.largest, w, theta, beta,
                       gamma, d, scratch, &score);
            limit = score < limit ? score : limit;
        }
        const double factor = 2.0 * sieve->slack - 1.0;
        count = keep_at_least(actions, candidates, count, w, theta, factor * beta, factor * gamma,
                              limit, d, scratch);
    }
    const int64_t chosen =
        count > 1 ? ff_best_of(actions, candidates, count, w, theta, sieve->ranking * beta,
                               sieve->ranking * gamma, d, scratch, &score)
                  : candidates[0];
    ff_features(actions, chosen, d, x);
    return chosen;
}

/* Return the action with the largest <x, theta> + ranking b among those that pass the sieve
 * (ff_sieve), b = beta ||x||_{V^-1} + gamma ||V^-1 x||. */
int64_t ff_select_sieved(const ff_actions *actions, const double *restrict w,
                         const double *restrict theta, double beta, double gamma,
                         const ff_sieve *sieve, int64_t d, double *restrict scratch,
                         double *restrict x)
{
    /* A panel and its W x come first in the scratch, as ff_best_of expects. */
    int64_t *candidates = (int64_t *)(aligned(scratch) + 2 * PANEL * d);
    double *screen_scratch = (double *)(candidates + 2 * actions->actions);
    const ff_sieved sieved = ff_screen_f32_sieve(actions, w, theta, beta, gamma, sieve, d,
                                                 screen_scratch, candidates);
    return ff_best_sieved(actions, sieved, candidates, w, theta, beta, gamma, sieve, d, scratch,
                          x);
}

/* Write the features of action a to x, as float64. */
void ff_features(const ff_actions *actions, int64_t a, int64_t d, double *restrict x)
{
    const int64_t offset = a * actions->action_stride, fs = actions->feature_stride;
    if (actions->is_double) {
        const double *row = (const double *)actions->x + offset;
        for (int64_t j = 0; j < d; j++)
            x[j] = row[j * fs];
    } else {
        const float *row = (const float *)actions->x + offset;
        for (int64_t j = 0; j < d; j++)
            x[j] = (double)row[j * fs];
    }
}

/* Return the number of doubles of scratch that ff_scored needs: copies of the actions' features, W,
 * theta and the user's state, two values of each action, and the scratch of the scores. */
int64_t ff_scored_scratch(int64_t d, int64_t actions, int64_t state_size)
{
    return actions * (d + 2) + d * d + d + state_size + ff_score_scratch(d, actions);
}

/* Return the threshold of the sieve: the smaller of sieve->limit and the largest score <x, theta> +
 * b, b = beta ||x||_{V^-1} + gamma ||V^-1 x||. values (K) receives <x, theta> + (2 slack - 1) b of
 * every action. An action passes if its value is at least the threshold. */
static double sieve_values(const ff_actions *actions, const double *restrict w,
                           const double *restrict theta, double beta, double gamma,
                           const ff_sieve *sieve, int64_t d, double *restrict scratch,
                           double *restrict values)
{
    const double factor = 2.0 * sieve->slack - 1.0;
    double largest = -INFINITY;
    ff_scores(actions, w, theta, beta, gamma, d, scratch, values);
    for (int64_t a = 0; a < actions->actions; a++)
        largest = values[a] > largest ? values[a] : largest;
    ff_scores(actions, w, theta, factor * beta, factor * gamma, d, scratch, values);
    return largest < sieve->limit ? largest : sieve->limit;
}

/* Return the action with the largest score under one model among those that pass the sieve of a
 * second model. */
int64_t ff_select_passing(const ff_actions *actions, const double *restrict w,
                          const double *restrict theta, double beta,
                          const double *restrict local_w, const double *restrict local_theta,
                          double local_beta, double limit, double slack, int64_t d,
                          double *restrict scratch, double *restrict x)
{
    const int64_t count = actions->actions;
    /* A panel and its W x come first in the scratch. */
    double *values = aligned(scratch) + 2 * PANEL * d, *scores = values + count;
    const ff_sieve sieve = {limit, slack, 1.0};
    const double threshold = sieve_values(actions, local_w, local_theta, local_beta, 0.0, &sieve,
                                          d, scratch, values);
    ff_scores(actions, w, theta, beta, 0.0, d, scratch, scores);
    int64_t chosen = -1;
    for (int64_t a = 0; a < count; a++)
        if (values[a] >= threshold && (chosen < 0 || scores[a] > scores[chosen]))
            chosen = a;
    chosen = chosen < 0 ? 0 : chosen;
    ff_features(actions, chosen, d, x);
    return chosen;
}

/* Return the action with the largest score by a user's function; -1 if the function fails. It gets
 * copies of the model and features. With a sieve, only actions that pass may be chosen, and the
 * function gets beta and gamma times the ranking of the sieve. */
int64_t ff_scored(ff_score score, const double *state, int64_t state_size, uint64_t key,
                  int64_t round, const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, const ff_sieve *sieve,
                  int64_t d, double *restrict scratch, double *restrict x)
{
    const int64_t n = actions->actions;
    double *x_rows = scratch, *scores = x_rows + n * d, *w_copy = scores + n,
           *theta_copy = w_copy + d * d, *values = theta_copy + d;
    double *state_copy = state ? values + n : NULL;
    for (int64_t a = 0; a < n; a++)
        ff_features(actions, a, d, x_rows + a * d);
    memcpy(w_copy, w, (size_t)(d * d) * sizeof(double));
    memcpy(theta_copy, theta, (size_t)d * sizeof(double));
    /* One user's data must not affect another user's scores, neither through the state nor through
     * values that an earlier call left in the output array. */
    if (state)
        memcpy(state_copy, state, (size_t)state_size * sizeof(double));
    memset(scores, 0, (size_t)n * sizeof(double));
    const double ranking = sieve ? sieve->ranking : 1.0;
    if (score(state_copy, key, round, n, d, x_rows, w_copy, theta_copy, ranking * beta,
              ranking * gamma, scores) != n)
        return -1;
    const double threshold = sieve ? sieve_values(actions, w, theta, beta, gamma, sieve, d,
                                                  values + n + state_size, values)
                                   : 0.0;
    int64_t chosen = -1;
    for (int64_t a = 0; a < n; a++) {
        if (!isfinite(scores[a]))
            return -1;
        if ((!sieve || values[a] >= threshold) && (chosen < 0 || scores[a] > scores[chosen]))
            chosen = a;
    }
    if (chosen >= 0)
        ff_features(actions, chosen, d, x);
    return chosen;
}
