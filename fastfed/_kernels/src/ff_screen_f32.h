/* Screening in float32: which actions may have the largest score.
 *
 * Approximate scores with a proven error bound discard actions that cannot win. Unlike every other
 * kernel these files are compiled with contraction allowed: rounding may differ from one processor
 * to the next, but the best action is always kept, and what is kept is scored exactly. */
#ifndef FF_SCREEN_F32_H
#define FF_SCREEN_F32_H

#include "ff_base.h"
#include "ff_scores.h"

/* Doubles of scratch for at most K actions. */
int64_t ff_screen_f32_scratch(int64_t d, int64_t actions);

/* Every action whose score <x, theta> + beta ||W x|| + gamma ||W'W x|| may be the largest,
 * ascending, into candidates (K); returns how many, at least 1. All of them when float32 cannot
 * tell. bounds: NULL, or receives bounds over all actions. */
int64_t ff_screen_f32(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, double gamma, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates, ff_bounds *bounds);

#endif
