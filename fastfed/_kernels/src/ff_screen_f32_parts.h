/* Shared by screening in float32 for any dimension and for small ones: error bounds, conversion to
 * float32, and the list of actions that survive. */
#ifndef FF_SCREEN_F32_PARTS_H
#define FF_SCREEN_F32_PARTS_H

#include <math.h>

#include "ff_panel.h"
#include "ff_scores.h"

/* Up to here a factor is small. */
#define SMALL 24

/* What an approximate score of any of the actions is off by at most.
 *
 * With u = 2^-24, every dot product of d terms taken in float32, in any order, fused or not, of
 * operands rounded to float32 first, is within sum |a_j b_j| (d + 2) u / (1 - (d + 2) u) of the
 * exact one (Higham 2002, Section 3.1). g is the same with d + 8: six roundings more pay for beta
 * and gamma, for the sum of mean and bonuses, and for the comparison with the floor. Over the rows
 * of W that gives ||z^ - z|| <= g || |W| |x| || <= g w_norm ||x|| for any w_norm >= || |W| ||_2,
 * so the width is off by at most that, and by g of itself for the norm's own rounding; the mean by
 * at most g ||theta|| ||x||. Likewise ||W' z|| is off by g w_norm ||z|| and g of itself, and by
 * w_norm ||z^ - z|| more. `slack` is 1.01 g: a hundredth covers the rounding of the bound itself
 * and of the exact float64 score, both of the order of u g and d 2^-53.
 *
 * Underflow adds up to 2^-150 to each operand and product, so sqrt(d) 2^-75 to a root. Lengths
 * from 2^64 on overflow and have no bound, so an operand's loss reaches a score as sqrt(d) 2^-86
 * at most: the constants added to length and the sum are above all that, and far below what
 * matters. */
FF_INLINE double error_of(double beta, double gamma, double slack, double theta_norm,
                          double w_norm, double length, double width, double second)
{
    return slack * (w_norm * (beta + gamma * w_norm) * length + theta_norm * length +
                    beta * width + gamma * (w_norm * width + second)) +
           (beta + gamma * (1.0 + w_norm)) * 0x1p-60 + 0x1p-75;
}

/* Copy n doubles as floats, their squares added to eight partial sums. */
FF_INLINE void narrow(const double *restrict from, int64_t n, float *restrict to,
                      double *restrict lane)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) {
            to[i + l] = (float)from[i + l];
            lane[l] += from[i + l] * from[i + l];
        }
    for (int l = 0; i < n; i++, l++) {
        to[i] = (float)from[i];
        lane[l] += from[i] * from[i];
    }
}

FF_INLINE double sum_of(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Copy the rows of W as floats; returns a bound on || |W| ||_2. */
FF_INLINE double narrow_factor(const double *restrict w, int64_t d, float *restrict w32)
{
    double lane[8] FF_ALIGNED = {0}, diagonal = 0.0, largest = 0.0;
    /* Few columns are copied with all their zeros: rows so short are mostly tails. */
    const int small = d <= SMALL;
    if (small)
        narrow(w, d * d, w32, lane);
    for (int64_t i = 0; i < d; i++) {
        /* As far as its group's product reads, and on to whole vectors: zeros, but no tails. */
        const int64_t group = ((i / ROWS + 1) * ROWS + 7) & ~(int64_t)7;
        const int64_t columns = group < d ? group : d;
        const double entry = fabs(w[i * d + i]);
        if (!small)
            narrow(w + i * d, columns, w32 + i * d, lane);
        diagonal += entry * entry;
        largest = entry > largest ? entry : largest;
    }
    return norm_bound(sum_of(lane), diagonal, largest, d);
}

/* Whether panels can be read where the actions lie: whole vectors of floats. Not where features
 * are far apart, for then every row of a panel is a page of its own (measured: a third slower at
 * K = 908, a tenth faster at 120). */
FF_INLINE int lies_ready(const ff_actions *actions)
{
    return !actions->is_double && actions->action_stride == 1 &&
           actions->feature_stride <= 256 && actions->actions >= SCREEN_PANEL;
}

/* The actions whose score is not below `least`; all of them when that is not finite. Scores are
 * read to the end of their last panel. */
FF_INLINE int64_t survivors(const float *restrict score, float least, int64_t count,
                            int64_t *restrict candidates)
{
    const int sound = least > -INFINITY && least < INFINITY;
    int many[SCREEN_PANEL] FF_ALIGNED, which[SCREEN_PANEL] FF_ALIGNED, own[SCREEN_PANEL] FF_ALIGNED;
    int sum = 0, named = 0;
    for (int a = 0; a < SCREEN_PANEL; a++) {
        many[a] = which[a] = 0;
        own[a] = a;
    }
    for (int64_t first = 0; first < count; first += SCREEN_PANEL)
        for (int a = 0; a < SCREEN_PANEL; a++) {
            const int may = score[first + a] < least ? 0 : -1;
            many[a] -= may;
            which[a] += may & (own[a] + (int)first);
        }
    for (int a = 0; a < SCREEN_PANEL; a++) {
        sum += many[a];
        named += which[a];
    }
    /* Mostly there is one, and no search for it. */
    if (sound && sum == 1) {
        candidates[0] = named;
        return 1;
    }
    int64_t kept = 0;
    for (int64_t first = 0; first < count; first += SCREEN_PANEL) {
        int may[SCREEN_PANEL] FF_ALIGNED, any = 0;
        for (int a = 0; a < SCREEN_PANEL; a++)
            may[a] = !sound | !(score[first + a] < least);
        for (int a = 0; a < SCREEN_PANEL; a++)
            any |= may[a];
        for (int64_t a = 0; any && a < SCREEN_PANEL && first + a < count; a++)
            if (may[a])
                candidates[kept++] = first + a;
    }
    return kept;
}

/* How far the relative error of a dot product of d terms goes, see error_of. Lengths are below
 * 2^64: where sums of <x, theta> could leave the range of floats on their way it is not a number,
 * and then every action is kept. */
FF_INLINE double slack_of(int64_t d, double theta_norm)
{
    const double n = (double)(d + 8);
    return theta_norm < 0x1p61 ? 1.01 * n * 0x1p-24 / (1.0 - n * 0x1p-24) : NAN;
}

#endif
