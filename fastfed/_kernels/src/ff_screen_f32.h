/* The float32 sieve: which actions may have the largest score.
 *
 * Compiled with contraction allowed, unlike every other kernel: its rounding may differ from one
 * processor to the next, the exact scores of what it keeps may not, and it keeps the best. */
#ifndef FF_SCREEN_F32_H
#define FF_SCREEN_F32_H

#include "ff_base.h"
#include "ff_scores.h"

/* Doubles of scratch for at most K actions. */
int64_t ff_screen_f32_scratch(int64_t d, int64_t actions);

/* Every action whose score <x, theta> + beta ||W x|| + gamma ||W'W x|| may be the largest,
 * ascending, into candidates (K); returns how many, at least 1. All of them when float32 cannot
 * tell. bounds: NULL, or what was seen of all actions. */
int64_t ff_screen_f32(const ff_actions *actions, const double *restrict w,
                 const double *restrict theta, double beta, double gamma, int64_t d,
                 double *restrict scratch, int64_t *restrict candidates, ff_bounds *bounds);

#endif
