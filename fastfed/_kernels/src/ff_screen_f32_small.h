/* Screening in float32 for small dimensions that are compile-time constants. */
#ifndef FF_SCREEN_F32_SMALL_H
#define FF_SCREEN_F32_SMALL_H

#include "ff_base.h"
#include "ff_scores.h"

/* Return 1 if these actions have such a dimension, and a layout that can be read in place. */
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d);

/* The largest approximate score and ranking of all actions, and their largest ||W x||^2, ||V^{-1}
 * x||^2 and ||x||^2. */
typedef struct {
    double score, rank, width, second, length;
} ff_extremes_f32;

/* Compute approximate scores <x, theta> + b with the bonus b = beta ||W x|| + gamma ||W'W x|| of
 * all actions into score (K); or, if bonus (K) is not NULL, the rankings <x, theta> + ranking b,
 * and b into bonus. w: the rows of W, then theta. */
ff_extremes_f32 ff_screen_f32_small(const ff_actions *actions, const float *w, float beta,
                                    float gamma, float ranking, int64_t d, float *restrict score,
                                    float *restrict bonus);

#endif
