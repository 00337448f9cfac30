/* Screening in float32: find the actions that may have the largest score.
 *
 * Approximate scores with a proven error bound discard actions that cannot win. Unlike other
 * kernels, these files are compiled with contraction (fused multiply-add) allowed. So rounding may
 * differ between processors, but the best action is never discarded, and the remaining actions are
 * scored exactly. */
#ifndef FF_SCREEN_F32_H
#define FF_SCREEN_F32_H

#include "ff_base.h"
#include "ff_scores.h"

/* Return the number of doubles of scratch for at most K actions. */
int64_t ff_screen_f32_scratch(int64_t d, int64_t actions);

/* Write every action whose score <x, theta> + beta ||W x|| + gamma ||W'W x|| may be the largest to
 * `candidates` (K), in ascending order. Returns their number, at least 1; all actions if float32
 * overflows. */
int64_t ff_screen_f32(const ff_actions *actions, const double *restrict w,
                      const double *restrict theta, double beta, double gamma, int64_t d,
                      double *restrict scratch, int64_t *restrict candidates);

/* List the actions that ff_select_sieved may choose, in candidates (2 K), in ascending order. */
ff_sieved ff_screen_f32_sieve(const ff_actions *actions, const double *restrict w,
                              const double *restrict theta, double beta, double gamma,
                              const ff_sieve *sieve, int64_t d, double *restrict scratch,
                              int64_t *restrict candidates);

#endif
