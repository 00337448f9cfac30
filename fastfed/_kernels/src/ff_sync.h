/* Syncs of files to disk in threads that need no Python: a thread of Python would have to wait for
 * Python's lock before and after each sync. */
#ifndef FF_SYNC_H
#define FF_SYNC_H

#include <stdint.h>

/* One sync that has ended. */
typedef struct {
    int32_t file;   /* the descriptor that was synced */
    int32_t error;  /* errno, or 0 */
    double seconds; /* how long the sync took */
} ff_synced;

/* Read descriptors (int32_t) from the pipe `requests`, sync the content of each, and write an
 * ff_synced to the pipe `answers`, until the other end of a pipe is closed.
 *
 * Several threads may share the pipes: the system moves messages of this size whole. */
void ff_sync_files(int requests, int answers);

#endif
