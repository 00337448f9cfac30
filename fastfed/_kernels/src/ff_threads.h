/* Threads that share the silos of a run, or the blocks of a sum, and wait for each other briefly.
 *
 * A team is made for one call and ends with it, so nothing outlives a call or a fork. Its first
 * thread is the caller, who starts at once; the others help where they come in time. So that a
 * busy neighbour costs little:
 *   - work that takes less than a wake-up is the caller's alone (ff_pace);
 *   - every thread takes the items of its own part one by one, then what is left of the others',
 *     from the end: only an item that has begun is waited for, never a thread that has not;
 *   - waiting spins for some microseconds, then sleeps, so that the system may use the processor,
 *     also for the very thread that is waited for;
 *   - where several threads turn out slower than one, one goes on alone for a while.
 * Which thread does an item changes no result: each writes memory of its own, and what follows
 * items in their order may write what they share. */
#ifndef FF_THREADS_H
#define FF_THREADS_H

#include "ff_base.h"

/* What several items may write. */
#ifdef FF_THREADS
#define FF_ATOMIC_READ(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define FF_ATOMIC_WRITE(p, value) __atomic_store_n((p), (value), __ATOMIC_RELAXED)
#define FF_ATOMIC_ADD(p, value) ((void)__atomic_fetch_add((p), (value), __ATOMIC_RELAXED))
#else
#define FF_ATOMIC_READ(p) (*(p))
#define FF_ATOMIC_WRITE(p, value) ((void)(*(p) = (value)))
#define FF_ATOMIC_ADD(p, value) ((void)(*(p) += (value)))
#endif

/* Item `index` of a piece of work; `thread` counts from 0 and says whose scratch to use. */
typedef void (*ff_item)(void *work, int64_t index, int64_t thread);

typedef struct ff_team ff_team;

/* Work of less seconds in all is not shared; below zero all is, whatever it costs (for tests). */
extern double ff_least_shared;

/* How long one kind of work takes, as far as it is known; all zeros at first. */
typedef struct {
    double alone;    /* seconds of a unit on one thread, as last seen there */
    double together; /* seconds of a unit on all of them */
    double own;      /* of a unit that the caller did while others did theirs */
    int64_t lone;    /* whole pieces of work behind `alone` */
    int64_t seen;    /* those behind `together` and `own` */
    int64_t hold;    /* pieces of work still to be done alone */
    int64_t back;    /* how many are next time */
} ff_pace;

/* NULL where one thread is asked for: all work is then the caller's. The others are made when there
 * is work for them. */
ff_team *ff_team_open(int64_t threads);
void ff_team_close(ff_team *team);

/* Does items 0..count-1, `units` of work each, and returns when all are done. The first item of a
 * kind of work is the caller's: it tells what the others will take. `follow`, if there is one, is
 * called of every item too, after it, in the order of the items and one at a time, mostly by the
 * thread that did the item: for sums of what items leave, whose bits hang on their order. */
void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work);

#endif
