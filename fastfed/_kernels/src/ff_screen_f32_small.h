/* Screening in float32 for small dimensions that are compile-time constants. */
#ifndef FF_SCREEN_F32_SMALL_H
#define FF_SCREEN_F32_SMALL_H

#include "ff_base.h"
#include "ff_scores.h"

/* Return 1 if these actions have such a dimension, and a layout that can be read in place. */
int ff_screen_f32_small_fits(const ff_actions *actions, int64_t d);

/* As ff_screen_f32 with gamma 0. */
int64_t ff_screen_f32_small(const ff_actions *actions, const double *restrict w,
                            const double *restrict theta, double beta, int64_t d,
                            double *restrict scratch, int64_t *restrict candidates);

#endif
