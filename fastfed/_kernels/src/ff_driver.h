/* The compiled driver: simulates the rounds of a run, including synchronisations, without Python.
 *
 * Between two synchronisations silos do not communicate, so each silo's rounds are simulated
 * independently and the silos are divided among threads. Synchronisations follow a fixed schedule
 * (every batch_size rounds, or after given rounds) or a trigger that depends on the data
 * (ff_trigger.h). */
#ifndef FF_DRIVER_H
#define FF_DRIVER_H

#include "ff_run.h"

/* Compute W and theta of every curve before the first round. Returns FF_OK or a status. */
int64_t ff_run_initialise(ff_run *run);

/* Simulate rounds first..last (counted from 1, both included). Returns FF_OK, or the status of the
 * first silo (by index) that failed. */
int64_t ff_run_rounds(ff_run *run, int64_t first, int64_t last);

#endif
