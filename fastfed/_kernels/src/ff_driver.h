/* The compiled driver: simulates rounds of a run, synchronisations included, without Python.
 *
 * Between two synchronisations silos do not communicate, so each simulates its rounds on its own
 * and threads share the silos. The schedule is fixed (every batch_size rounds) or up to the data
 * (ff_trigger.h). */
#ifndef FF_DRIVER_H
#define FF_DRIVER_H

#include "ff_run.h"

/* Makes W and theta of every curve before the first round. */
int64_t ff_run_initialise(ff_run *run);

/* Simulates rounds first..last (1-based, inclusive). Returns FF_OK or the first silo's status. */
int64_t ff_run_rounds(ff_run *run, int64_t first, int64_t last);

#endif
