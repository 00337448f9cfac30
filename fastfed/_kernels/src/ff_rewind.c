/* Symbols (ff_run.h): c is a curve, p the scratch of a thread, k counts releases; M silos,
 * d features; a statistic has s numbers. V is the regularised Gram matrix of a model, W its inverse
 * factor, and theta its estimate. */
#include "ff_rewind.h"

/* Return the number of doubles in the snapshot of one silo: W, theta, the batch, ln det V, the
 * regret, and two counts of clipping. */
int64_t ff_snapshot_size(int64_t d) { return d * d + d + ff_statistic(d) + 4; }

/* Copy the part of a silo's state that rounds change to its snapshot (restore = 0), or from it
 * (restore = 1). Counts have 8 bytes, like doubles. */
static void copy(const ff_run *run, ff_curve *c, int64_t silo, int64_t restore)
{
    const int64_t d = run->dimension, s = ff_statistic(d);
    struct {
        void *at;
        int64_t doubles;
    } parts[] = {
        {c->w + ff_slot(c, silo) * d * d, ff_learns(c) ? d * d : 0},
        {c->theta + ff_slot(c, silo) * d, ff_learns(c) ? d : 0},
        {c->log_dets + ff_slot(c, silo), ff_learns(c) ? 1 : 0},
        {c->batch + silo * s, s},
        {c->regret + silo, 1},
        {c->clipped + 2 * silo, 2},
    };
    double *saved = c->trigger.snapshot + silo * ff_snapshot_size(d);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t bytes = (size_t)parts[i].doubles * sizeof(double);
        memcpy(restore ? parts[i].at : saved, restore ? saved : parts[i].at, bytes);
        saved += parts[i].doubles;
    }
}

/* Save a silo's state to its snapshot. */
void ff_snapshot(const ff_run *run, ff_curve *c, int64_t silo) { copy(run, c, silo, 0); }

/* Restore a silo's state from its snapshot. */
void ff_rewind(const ff_run *run, ff_curve *c, int64_t silo) { copy(run, c, silo, 1); }
