/* Curves on arms whose silos are simulated in groups (ff_group.h). */
#ifndef FF_GROUPS_H
#define FF_GROUPS_H

#include "ff_group.h"
#include "ff_run.h"

/* Return the number of doubles of scratch that a thread needs. */
int64_t ff_groups_scratch(int64_t d);

/* Return 1 if the silos of a curve may be simulated in groups: they learn in every round, from
 * rewards of 0 or 1, by a model of arms (ff_fixed.h). */
int ff_groups_suit(const ff_run *run, const ff_curve *c);

/* Simulate rounds first..last of group number `group`, silos FF_GROUP group, FF_GROUP group + 1, ..
 * of a suitable curve. Returns 1. If the environment offers no unit vectors, or if a model is
 * otherwise unsuitable, simulates no round and returns 0. scratch: the thread's. */
int ff_groups_run(const ff_run *run, ff_curve *c, int64_t group, int64_t first, int64_t last,
                  double *scratch);

#endif
