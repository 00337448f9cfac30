/* Snapshots of silos, for curves with a trigger.
 *
 * Silos simulate a chunk of rounds independently, before it is known in which round the first
 * trigger fires. Silos that went beyond that round are restored to the beginning of the chunk and
 * rerun up to it. */
#ifndef FF_REWIND_H
#define FF_REWIND_H

#include "ff_run.h"

/* Return the number of doubles in the snapshot of one silo. */
int64_t ff_snapshot_size(int64_t dimension);

/* Save the part of a silo's state that rounds change. The state of the trigger is not saved: it is
 * reset at the synchronisation for which rounds are rerun. */
void ff_snapshot(const ff_run *run, ff_curve *c, int64_t silo);

/* Restore a silo from its snapshot. */
void ff_rewind(const ff_run *run, ff_curve *c, int64_t silo);

#endif
