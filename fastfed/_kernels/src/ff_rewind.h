/* Snapshots of silos, for curves whose data decide when to synchronise.
 *
 * Silos simulate a chunk of rounds independently, before anybody knows which trigger fires first.
 * Those that went past that round are rewound to the beginning of the chunk and rerun up to it. */
#ifndef FF_REWIND_H
#define FF_REWIND_H

#include "ff_run.h"

/* Doubles of the snapshot of one silo. */
int64_t ff_snapshot_size(int64_t dimension);

/* Copies what a round changes of a silo. The trigger's own state needs no copy: it begins anew at
 * the synchronisation for which rounds are rerun. */
void ff_snapshot(const ff_run *run, ff_curve *c, int64_t silo);

/* Puts a silo back to its snapshot. */
void ff_rewind(const ff_run *run, ff_curve *c, int64_t silo);

#endif
