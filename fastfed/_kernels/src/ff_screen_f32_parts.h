/* Shared by screening in float32 for any dimension and for small ones: error bounds, conversion to
 * float32, and the list of remaining actions. */
#ifndef FF_SCREEN_F32_PARTS_H
#define FF_SCREEN_F32_PARTS_H

#include <math.h>

#include "ff_panel.h"
#include "ff_scores.h"

/* Up to this dimension W is converted to float32 as a whole, zeros included. */
#define SMALL 24

/* Return a bound on the error of the approximate score of any action. length: an upper bound on
 * ||x|| for all actions; width, second: the largest approximate ||W x|| and ||V^-1 x||.
 *
 * Proof. With u = 2^-24, every dot product of d terms in float32, in any order, fused or not, with
 * operands first rounded to float32, is within sum |a_j b_j| (d + 2) u / (1 - (d + 2) u) of the
 * exact one (Higham 2002, Section 3.1). Let g be this factor with d + 8 in place of d + 2: the six
 * further roundings cover beta and gamma, the sum of mean and bonuses, and the comparison with the
 * threshold. Over the rows of W this gives ||z^ - z|| <= g || |W| |x| || <= g w_norm ||x|| for any
 * w_norm >= || |W| ||_2. So the width has at most that error, plus g relatively for the rounding of
 * the norm; the mean has an error of at most g ||theta|| ||x||. Likewise ||W' z|| has an error of g
 * w_norm ||z||, plus g relatively, plus w_norm ||z^ - z||. `slack` is 1.01 g: the factor 1.01
 * covers the rounding of the bound itself and of the exact float64 score, which are of the order of
 * u g and d 2^-53.
 *
 * Underflow adds up to 2^-150 to each operand and product, so sqrt(d) 2^-75 to a root. Lengths from
 * 2^64 on overflow and have no bound, so an operand's loss reaches a score as sqrt(d) 2^-86 at
 * most. The constants that are added to `length` and to the result exceed all these errors and are
 * too small to matter. */
FF_INLINE double error_of(double beta, double gamma, double slack, double theta_norm,
                          double w_norm, double length, double width, double second)
{
    return slack * (w_norm * (beta + gamma * w_norm) * length + theta_norm * length +
                    beta * width + gamma * (w_norm * width + second)) +
           (beta + gamma * (1.0 + w_norm)) * 0x1p-60 + 0x1p-75;
}

/* Copy n doubles as floats, and add their squares to the eight partial sums lane (8). */
FF_INLINE void to_float32(const double *restrict from, int64_t n, float *restrict to,
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

/* Return the sum of eight partial sums. */
FF_INLINE double sum_of(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Copy the rows of W as floats. Returns a bound on || |W| ||_2. */
FF_INLINE double factor_to_float32(const double *restrict w, int64_t d, float *restrict w32)
{
    double lane[8] FF_ALIGNED = {0}, diagonal = 0.0, largest = 0.0;
    /* Small matrices are copied with all their zeros, because short rows cost most at their
     * ends. */
    const int small = d <= SMALL;
    if (small)
        to_float32(w, d * d, w32, lane);
    for (int64_t i = 0; i < d; i++) {
        /* The columns that products with the group of this row read, rounded up to whole vectors;
         * the extra ones are zero. */
        const int64_t group = ((i / ROWS + 1) * ROWS + 7) & ~(int64_t)7;
        const int64_t columns = group < d ? group : d;
        const double entry = fabs(w[i * d + i]);
        if (!small)
            to_float32(w + i * d, columns, w32 + i * d, lane);
        diagonal += entry * entry;
        largest = entry > largest ? entry : largest;
    }
    return norm_bound(sum_of(lane), diagonal, largest, d);
}

/* Return 1 if panels can be read in place as whole vectors of floats. Return 0 if features are far
 * apart, because then every row of a panel lies on a different page (measured: a third slower at K
 * = 908, a tenth faster at 120). */
FF_INLINE int is_readable_in_place(const ff_actions *actions)
{
    return !actions->is_double && actions->action_stride == 1 &&
           actions->feature_stride <= 256 && actions->actions >= SCREEN_PANEL;
}

#if defined(__GNUC__)
typedef int32_t masks32 __attribute__((vector_size(FF_BYTES)));

/* Return the sum of the lanes of v. */
FF_INLINE int64_t sum_of_lanes(masks32 v)
{
    int32_t lane[WIDTH32] FF_ALIGNED;
    memcpy(lane, &v, sizeof lane);
    for (int n = WIDTH32 / 2; n > 0; n /= 2)
        for (int a = 0; a < n; a++)
            lane[a] += lane[a + n];
    return lane[0];
}
#endif

/* List the actions whose score is not below `least`, or all actions if `least` is not finite.
 * Returns their number. Scores are read to the end of their last panel. */
FF_INLINE int64_t list_survivors(const float *restrict score, float least, int64_t count,
                                 int64_t *restrict candidates)
{
    const int sound = least > -INFINITY && least < INFINITY;
    int64_t survivor_count = 0;
#if defined(__GNUC__)
    /* Usually one action remains. Then its index is the sum of the remaining indices, which needs
     * no branches. A lane of `survives` is -1 if its action remains, otherwise 0. */
    masks32 counts = {0}, sums = {0}, index;
    for (int a = 0; a < WIDTH32; a++)
        index[a] = a;
    for (int64_t first = 0; first < count; first += WIDTH32, index += WIDTH32) {
        const masks32 survives = ~(*(const loose32 *)(score + first) < least);
        counts -= survives;
        sums += index & survives;
    }
    if (sound && sum_of_lanes(counts) == 1) {
        candidates[0] = sum_of_lanes(sums);
        return 1;
    }
#endif
    for (int64_t first = 0; first < count; first += WIDTH32) {
#if defined(__GNUC__)
        const masks32 survives = ~(*(const loose32 *)(score + first) < least);
        if (sound && sum_of_lanes(survives) == 0)
            continue;
#endif
        for (int64_t a = first; a < first + WIDTH32 && a < count; a++)
            if (!sound | !(score[a] < least))
                candidates[survivor_count++] = a;
    }
    return survivor_count;
}

/* Return `slack`, the relative error of a dot product of d terms, see error_of. Lengths are below
 * 2^64. If partial sums of <x, theta> could exceed the largest float, return NaN; then no action is
 * discarded. */
FF_INLINE double slack_of(int64_t d, double theta_norm)
{
    const double n = (double)(d + 8);
    return theta_norm < 0x1p61 ? 1.01 * n * 0x1p-24 / (1.0 - n * 0x1p-24) : NAN;
}

#endif
