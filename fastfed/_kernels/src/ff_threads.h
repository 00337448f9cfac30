/* Threads that share the silos of a run, or the blocks of a sum, and wait for each other only
 * briefly.
 *
 * A team exists during one call, so nothing outlives a call or a fork. Its first thread is the
 * caller, who starts at once; the other threads help if they arrive in time. To lose little time
 * when other programs use the processors:
 * - Work that takes less time than waking a thread is done by the caller alone (ff_pace).
 * - Every thread takes the items of the part that is assigned to it one by one, then remaining
 *   items of other parts, from their ends. So the caller waits only for items that have begun,
 *   never for a thread that has not started.
 * - A waiting thread spins for some microseconds, then sleeps, so that the system can use its
 *   processor, also for the thread that it waits for.
 * - If several threads turn out to be slower than one, one thread works alone for a while.
 * Which thread does an item does not change any result: each item writes separate memory, and
 * `follow` functions, which run in the order of the items, may write shared memory. */
#ifndef FF_THREADS_H
#define FF_THREADS_H

#include "ff_base.h"

/* Access to memory that several items may write. */
#ifdef FF_THREADS
#define FF_ATOMIC_READ(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define FF_ATOMIC_WRITE(p, value) __atomic_store_n((p), (value), __ATOMIC_RELAXED)
#define FF_ATOMIC_ADD(p, value) ((void)__atomic_fetch_add((p), (value), __ATOMIC_RELAXED))
#else
#define FF_ATOMIC_READ(p) (*(p))
#define FF_ATOMIC_WRITE(p, value) ((void)(*(p) = (value)))
#define FF_ATOMIC_ADD(p, value) ((void)(*(p) += (value)))
#endif

/* Do item `index` of a piece of work. `thread` counts from 0 and selects the scratch. */
typedef void (*ff_item)(void *work, int64_t index, int64_t thread);

/* The threads of one call; see ff_threads.c. */
typedef struct ff_team ff_team;

/* Work that takes less than this many seconds is not shared; below zero all work is shared (for
 * tests). */
extern double ff_least_shared;

/* Measured times of one kind of work; all zeros at first. A piece of work is one call of
 * ff_team_each. */
typedef struct {
    double alone;    /* seconds for a unit on one thread, as last measured */
    double together; /* seconds for a unit on all threads */
    double own;      /* seconds for a unit of the caller while other threads worked */
    int64_t lone;    /* number of pieces of work that `alone` was measured from */
    int64_t seen;    /* number of pieces of work that `together` and `own` were measured from */
    int64_t hold;    /* number of pieces of work that are still to be done by one thread */
    int64_t back;    /* first value of `hold` when several threads were last found slower than
                      * one; doubled the next time */
} ff_pace;

/* Return a team, or NULL if threads is 1: then the caller does all work. The other threads start
 * when there is work for them. */
ff_team *ff_team_open(int64_t threads);
/* End the other threads of a team and free it; nothing if team is NULL. */
void ff_team_close(ff_team *team);

/* Do items 0..count-1, `units` units of work each; return when all are done. The caller does the
 * first item of a kind of work, which shows how long the others will take. `follow`, if not NULL,
 * is also called for every item, after the item, in the order of the items and one at a time,
 * usually by the thread that did the item. It is for sums over items, whose bits depend on the
 * order. */
void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work);

#endif
