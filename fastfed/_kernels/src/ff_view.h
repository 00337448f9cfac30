/* Views of silos with their own clocks (docs/clocks.md). All silos that report in an exchange
 * receive the same view and keep it until their next exchange, so each silo has its own W, theta
 * and radius. A curve holds the last view; views of silos are copies of it. */
#ifndef FF_VIEW_H
#define FF_VIEW_H

#include <string.h>

#include "ff_run.h"

/* Copy the curve's W, theta and numbers into the view of a silo. */
FF_INLINE void ff_view_store(const ff_run *run, ff_curve *c, int64_t silo)
{
    const int64_t d = run->dimension;
    const double numbers[FF_VIEW_NUMBERS] = {(double)c->released, c->second_bonus, c->inflation,
                                             c->sieve.slack, c->log_inflation, c->log_det};
    memcpy(c->views + silo * FF_VIEW_NUMBERS, numbers, sizeof numbers);
    memcpy(c->view_w + silo * d * d, c->w, (size_t)(d * d) * sizeof(double));
    memcpy(c->view_theta + silo * d, c->theta, (size_t)d * sizeof(double));
}

/* Return a copy of the curve with the W, theta and numbers of the silo's view. */
FF_INLINE ff_curve ff_view_of(const ff_run *run, const ff_curve *c, int64_t silo)
{
    const int64_t d = run->dimension;
    const double *numbers = c->views + silo * FF_VIEW_NUMBERS;
    ff_curve view = *c;
    view.w = c->view_w + silo * d * d;
    view.theta = c->view_theta + silo * d;
    view.released = (int64_t)numbers[0];
    view.second_bonus = numbers[1];
    view.inflation = numbers[2];
    view.sieve.slack = numbers[3];
    view.log_inflation = numbers[4];
    view.log_det = numbers[5];
    return view;
}

#endif
