#include "ff_scores.h"

#include <math.h>

/* Actions are scored sixteen at a time: a panel holds feature j of sixteen actions side by
 * side, so each action's arithmetic is its own lane and does not depend on K or on layout. */
#define PANEL 16
/* Rows of W taken together, so that every panel load serves that many products. */
#define ROWS 6

/* Rows of the float32 matrix [W; theta; zeros], a whole number of ROWS groups. */
FF_INLINE int64_t sieve_rows(int64_t d) { return (d + 1 + ROWS - 1) / ROWS * ROWS; }

int64_t ff_score_scratch(int64_t d, int64_t actions)
{
    const int64_t panels = (actions + PANEL - 1) / PANEL;
    /* Exact panel and W x of it; float panel, float [W; theta] (halves); score and bound of every
     * action (halves), the candidates; 64-byte alignment. */
    return 2 * PANEL * d + PANEL * d / 2 + (sieve_rows(d) * d + 1) / 2 + 2 * PANEL * panels + 64;
}

FF_INLINE double *aligned(double *p)
{
    return (double *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

/* ---- exact scores, float64 ------------------------------------------------------------------ */

/* Sixteen consecutive actions from `first`, zeros past the last one. */
FF_INLINE void pack(const ff_actions *actions, int64_t first, int64_t d, double *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    const int64_t left = actions->actions - first;
    const int64_t n = left < PANEL ? left : PANEL;
    if (n < PANEL)
        memset(panel, 0, (size_t)(PANEL * d) * sizeof(double));
    if (actions->is_double) {
        const double *x = (const double *)actions->x + first * as;
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = x[a * as + j * fs];
    } else {
        const float *x = (const float *)actions->x + first * as;
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = (double)x[a * as + j * fs];
    }
}

/* The actions named in `which`, zeros past the n-th. */
FF_INLINE void gather(const ff_actions *actions, const int64_t *restrict which, int64_t n,
                      int64_t d, double *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    memset(panel, 0, (size_t)(PANEL * d) * sizeof(double));
    for (int64_t a = 0; a < n; a++) {
        const int64_t offset = which[a] * as;
        if (actions->is_double)
            for (int64_t j = 0; j < d; j++)
                panel[j * PANEL + a] = ((const double *)actions->x)[offset + j * fs];
        else
            for (int64_t j = 0; j < d; j++)
                panel[j * PANEL + a] = (double)((const float *)actions->x)[offset + j * fs];
    }
}

#if defined(__GNUC__)
typedef double lanes __attribute__((vector_size(64)));
typedef float lanes32 __attribute__((vector_size(64)));
#define VECTORS 2
#else
typedef double lanes;
typedef float lanes32;
#define VECTORS PANEL
#endif
#define VECTORS32 (PANEL * (int)sizeof(float) / (int)sizeof(lanes32))

/* sum[r] = rows r of W (ld apart) times the panel. The columns past a row's own diagonal are
 * zeros of W and add exactly nothing. One definition for every element type and row count. */
#define PRODUCT(name, element, vector, vectors, n)                                             \
    FF_INLINE void name(const element *restrict w, int64_t ld, int64_t columns,                \
                        const element *restrict panel, vector *restrict sum)                   \
    {                                                                                          \
        const vector *restrict p = (const vector *)panel;                                      \
        vector acc[n][vectors];                                                                \
        memset(acc, 0, sizeof acc);                                                            \
        for (int64_t j = 0; j < columns; j++)                                                  \
            for (int r = 0; r < n; r++)                                                        \
                for (int v = 0; v < vectors; v++)                                              \
                    acc[r][v] += w[r * ld + j] * p[j * vectors + v];                           \
        memcpy(sum, acc, sizeof acc);                                                          \
    }
PRODUCT(product_6, double, lanes, VECTORS, 6)
PRODUCT(product_1, double, lanes, VECTORS, 1)
PRODUCT(product32_6, float, lanes32, VECTORS32, 6)

/* gamma ||V^{-1} x|| of a panel, from z = W x: V^{-1} x = W' z. */
FF_INLINE void second_bonus(const double *restrict w, const double *restrict z, double gamma,
                            int64_t d, double *restrict out)
{
    double square[PANEL] = {0};
    for (int64_t j = 0; j < d; j++) {
        double g[PANEL] = {0};
        for (int64_t k = j; k < d; k++)
            for (int a = 0; a < PANEL; a++)
                g[a] += w[k * d + j] * z[k * PANEL + a];
        for (int a = 0; a < PANEL; a++)
            square[a] += g[a] * g[a];
    }
    for (int a = 0; a < PANEL; a++)
        out[a] += gamma * sqrt(square[a]);
}

/* The exact scores of one panel; z (PANEL d) is filled only when the second bonus needs it. */
FF_INLINE void score_panel(const double *restrict panel, const double *restrict w,
                           const double *restrict theta, double beta, double gamma, int64_t d,
                           double *restrict z, double *restrict out)
{
    lanes mean[VECTORS], square[VECTORS], rows[ROWS * VECTORS];
    memset(square, 0, sizeof square);
    product_1(theta, 0, d, panel, mean);
    for (int64_t i = 0; i < d;) {
        const int n = i + ROWS <= d ? ROWS : 1;
        if (n == ROWS)
            product_6(w + i * d, d, i + ROWS, panel, rows);
        else
            product_1(w + i * d, d, i + 1, panel, rows);
        for (int r = 0; r < n; r++)
            for (int v = 0; v < VECTORS; v++)
                square[v] += rows[r * VECTORS + v] * rows[r * VECTORS + v];
        if (gamma != 0.0)
            memcpy(z + i * PANEL, rows, (size_t)n * VECTORS * sizeof(lanes));
        i += n;
    }
    double m[PANEL], q[PANEL];
    memcpy(m, mean, sizeof m);
    memcpy(q, square, sizeof q);
    for (int a = 0; a < PANEL; a++)
        out[a] = m[a] + beta * sqrt(q[a]);
    if (gamma != 0.0)
        second_bonus(w, z, gamma, d, out);
}

FF_CLONES
void ff_scores(const ff_actions *actions, const double *restrict w, const double *restrict theta,
               double beta, double gamma, int64_t d, double *restrict scratch,
               double *restrict scores)
{
    double *panel = aligned(scratch), *z = panel + PANEL * d;
    double block[PANEL];
    for (int64_t first = 0; first < actions->actions; first += PANEL) {
        int64_t left = actions->actions - first;
        pack(actions, first, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, block);
        memcpy(scores + first, block, (size_t)(left < PANEL ? left : PANEL) * sizeof(double));
    }
}

/* ---- the argmax: a float32 sieve, then exact scores of what it leaves ------------------------ */

/* Sixteen approximate scores and, for each, a bound on its distance from the exact score.
 *
 * With u = 2^-24, every dot product of n terms taken in float32, in any order, fused or not, of
 * operands already rounded to float32, is within g sum |a_j b_j| of the exact one, where
 * g = (n + 3) u / (1 - (n + 3) u) (Higham 2002, Section 3.1). Over the rows of W that gives
 * ||z^ - z|| <= g ||W||_F ||x||, so the width is off by at most that, and by g of itself for the
 * norm's own rounding; the mean by at most g ||theta|| ||x||. `slack` = 2 g covers the rounding
 * of the bound itself and of the exact float64 score. */
FF_INLINE void sieve_panel(const float *restrict panel, const float *restrict w, float beta,
                           float slack, float w_norm, float theta_norm, int64_t d,
                           float *restrict approx, float *restrict error)
{
    const int64_t rows = sieve_rows(d);
    lanes32 square[2][VECTORS32], norm[4][VECTORS32], z[ROWS][VECTORS32];
    lanes32 mean[VECTORS32];
    const lanes32 *restrict p = (const lanes32 *)panel;
    memset(square, 0, sizeof square);
    memset(norm, 0, sizeof norm);
    memset(mean, 0, sizeof mean);
    /* Independent partial sums: one chain of additions would wait for its own latency. */
    for (int64_t j = 0; j < d; j++)
        for (int v = 0; v < VECTORS32; v++)
            norm[j & 3][v] += p[j * VECTORS32 + v] * p[j * VECTORS32 + v];
    for (int64_t i = 0; i < rows; i += ROWS) {
        product32_6(w + i * d, d, i + ROWS < d ? i + ROWS : d, panel, &z[0][0]);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS32; v++) {
                if (i + r < d)
                    square[r & 1][v] += z[r][v] * z[r][v];
                else if (i + r == d)
                    mean[v] = z[r][v];
            }
    }
    float m[PANEL], q[PANEL], x[PANEL];
    for (int v = 0; v < VECTORS32; v++) {
        square[0][v] += square[1][v];
        norm[0][v] = (norm[0][v] + norm[1][v]) + (norm[2][v] + norm[3][v]);
    }
    memcpy(m, mean, sizeof m);
    memcpy(q, square[0], sizeof q);
    memcpy(x, norm[0], sizeof x);
    for (int a = 0; a < PANEL; a++) {
        float width = sqrtf(q[a]), length = sqrtf(x[a]);
        approx[a] = m[a] + beta * width;
        error[a] = slack * ((beta * w_norm + theta_norm) * length + beta * width);
    }
}

FF_INLINE void pack32(const ff_actions *actions, int64_t first, int64_t d, float *restrict panel)
{
    const int64_t as = actions->action_stride, fs = actions->feature_stride;
    const int64_t left = actions->actions - first;
    const int64_t n = left < PANEL ? left : PANEL;
    if (n < PANEL)
        memset(panel, 0, (size_t)(PANEL * d) * sizeof(float));
    if (actions->is_double) {
        const double *x = (const double *)actions->x + first * as;
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = (float)x[a * as + j * fs];
    } else if (as == 1 && n == PANEL) {
        const float *x = (const float *)actions->x + first;
        for (int64_t j = 0; j < d; j++)
            memcpy(panel + j * PANEL, x + j * fs, PANEL * sizeof(float));
    } else {
        const float *x = (const float *)actions->x + first * as;
        for (int64_t j = 0; j < d; j++)
            for (int64_t a = 0; a < n; a++)
                panel[j * PANEL + a] = x[a * as + j * fs];
    }
}

/* Copy n doubles as floats; returns their Euclidean norm. */
FF_INLINE double narrow(const double *restrict from, int64_t n, float *restrict to)
{
    double sum[PANEL] = {0}, total = 0.0;
    int64_t i = 0;
    for (; i + PANEL <= n; i += PANEL)
        for (int l = 0; l < PANEL; l++) {
            to[i + l] = (float)from[i + l];
            sum[l] += from[i + l] * from[i + l];
        }
    for (; i < n; i++) {
        to[i] = (float)from[i];
        total += from[i] * from[i];
    }
    for (int l = 0; l < PANEL; l++)
        total += sum[l];
    return sqrt(total);
}

/* The candidates: every action whose score may be the largest. All of them when float32 cannot
 * tell (overflow, or a bound that is not finite). Ascending order. */
FF_INLINE int64_t sieve(const ff_actions *actions, const double *restrict w,
                        const double *restrict theta, double beta, int64_t d,
                        float *restrict panel, float *restrict w32, float *restrict approx,
                        float *restrict error, int64_t *restrict candidates)
{
    const int64_t count = actions->actions;
    const double n = (double)(d + 3);
    const float slack = (float)(2.0 * n * 0x1p-24 / (1.0 - n * 0x1p-24));
    const float w_norm = (float)narrow(w, d * d, w32);
    const float theta_norm = (float)narrow(theta, d, w32 + d * d);
    memset(w32 + (d + 1) * d, 0, (size_t)((sieve_rows(d) - d - 1) * d) * sizeof(float));

    float low[PANEL], floor = -INFINITY;
    for (int a = 0; a < PANEL; a++)
        low[a] = -INFINITY;
    for (int64_t first = 0; first < count; first += PANEL) {
        pack32(actions, first, d, panel);
        sieve_panel(panel, w32, (float)beta, slack, w_norm, theta_norm, d, approx + first,
                    error + first);
        for (int64_t a = count - first; a < PANEL; a++)
            approx[first + a] = -INFINITY;
        for (int a = 0; a < PANEL; a++) {
            const float l = approx[first + a] - error[first + a];
            low[a] = l > low[a] ? l : low[a];
        }
    }
    for (int a = 0; a < PANEL; a++)
        floor = low[a] > floor ? low[a] : floor;

    const int sound = floor > -INFINITY && floor < INFINITY;
    int64_t kept = 0;
    for (int64_t first = 0; first < count; first += PANEL) {
        int any = !sound;
        for (int a = 0; a < PANEL; a++)
            any |= !(approx[first + a] + error[first + a] < floor);
        const int64_t end = count < first + PANEL ? count : first + PANEL;
        for (int64_t a = first; any && a < end; a++)
            if (!sound || !(approx[a] + error[a] < floor))
                candidates[kept++] = a;
    }
    return kept;
}

FF_CLONES
int64_t ff_select(const ff_actions *actions, const double *restrict w,
                  const double *restrict theta, double beta, double gamma, int64_t d,
                  double *restrict scratch, double *restrict x)
{
    const int64_t padded = (actions->actions + PANEL - 1) / PANEL * PANEL;
    double *panel = aligned(scratch), *z = panel + PANEL * d;
    float *panel32 = (float *)(z + PANEL * d), *w32 = panel32 + PANEL * d;
    double *tail = aligned(z + PANEL * d + PANEL * d / 2 + (sieve_rows(d) * d + 1) / 2);
    float *approx = (float *)tail, *error = approx + padded;
    int64_t *candidates = (int64_t *)(tail + padded);

    int64_t kept = actions->actions;
    if (gamma == 0.0)
        kept = sieve(actions, w, theta, beta, d, panel32, w32, approx, error, candidates);
    else
        for (int64_t a = 0; a < kept; a++)
            candidates[a] = a;

    double best = -INFINITY, block[PANEL];
    int64_t chosen = candidates[0];
    for (int64_t first = 0; kept > 1 && first < kept; first += PANEL) {
        const int64_t n = kept - first < PANEL ? kept - first : PANEL;
        gather(actions, candidates + first, n, d, panel);
        score_panel(panel, w, theta, beta, gamma, d, z, block);
        for (int64_t a = 0; a < n; a++) {
            if (block[a] > best) {
                best = block[a];
                chosen = candidates[first + a];
            }
        }
    }
    ff_features(actions, chosen, d, x);
    return chosen;
}

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
