#include "ff_threads.h"

/* Do items first..count-1 in this thread, and call `follow`, if not NULL, after each. */
static void run_alone(int64_t first, int64_t count, ff_item item, ff_item follow, void *work)
{
    for (int64_t i = first; i < count; i++) {
        item(work, i, 0);
        if (follow)
            follow(work, i, 0);
    }
}

double ff_least_shared = 40e-6;

#ifndef FF_THREADS

/* Return NULL: in a build without threads the caller does all work, and there are no teams. */
ff_team *ff_team_open(int64_t threads)
{
    (void)threads;
    return NULL;
}

/* Do nothing: there are no teams. */
void ff_team_close(ff_team *team) { (void)team; }

/* Do all items in the caller's thread. */
void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work)
{
    (void)team, (void)pace, (void)units;
    run_alone(0, count, item, follow, work);
}

#else

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE __asm__ __volatile__("isb")
#else
#define PAUSE
#endif

/* Number of pauses for which a waiting thread spins before it sleeps: 10 to 50 microseconds, about
 * the time of waking it. */
#define SPINS 1000
/* Number of pauses for which only the thread of a part may close it, if there is a `follow`
 * function. */
#define PATIENCE 64
_Static_assert(PATIENCE <= SPINS, "a thread must wait PATIENCE pauses before it gives up");
/* Number of pieces of work after which the times of several threads are compared with that of one.
 * If several are slower, one thread does the next HOLD_MIN to HOLD_MAX pieces alone. */
#define PIECES_TO_JUDGE 8
/* If a piece takes this many times as long as on one thread, the times are compared at once: a
 * thread has lost its processor while it held an item, and would lose it again. */
#define STALLED 4.0
#define HOLD_MIN 16
#define HOLD_MAX 4096
/* After each FORGIVEN pieces on several threads without a hold, the next hold is half as long. */
#define FORGIVEN 1024
/* Beside other threads the caller's units take longer, because threads share caches and perhaps a
 * core. If the caller's time for a unit differs by more than DIFFERS from `alone`, MEASURED_AGAIN
 * pieces measure `alone` again, at most once in BETWEEN pieces: the times may really differ, or the
 * work may have changed. */
#define DIFFERS .125
#define MEASURED_AGAIN 4
#define BETWEEN 256
/* From this many seconds on, one piece measures well enough; several would cost too much. */
#define LONG .0005
/* Least weight of the newest piece of work in the measured times. The n-th piece has weight 1 / n
 * if that is more. */
#define NEWEST .25

/* The part of a thread, in a separate cache line. */
typedef struct {
    _Alignas(64) _Atomic uint64_t left; /* remaining items low..high-1, as (high << 32) | low */
    _Atomic int64_t open; /* number of items that are not done */
    int64_t next, last;   /* items without `follow` so far: next..last-1 */
} part;

/* Progress of a piece of work. Parts are closed one after the other, each when all its items are
 * done and followed. progress = (number of the piece << 32) | number of the first open part times
 * PART | flags. */
#define TAKEN 1u   /* flag: a thread is calling `follow` for this part */
#define ORDERED 2u /* flag: there is a `follow` function */
#define PART 4u

struct ff_team {
    int64_t requested, threads; /* threads requested; threads started (0: none yet) */
    part *parts;                /* (requested) */
    /* The present piece of work. Written while no thread holds an item or follows a part; threads
     * that do may read it. */
    ff_item item, follow;
    void *work;
    _Alignas(64) _Atomic uint64_t progress; /* see TAKEN, ORDERED and PART */
    _Alignas(64) _Atomic uint64_t turn; /* number of pieces of work so far */
    _Atomic int closing, sleeping, waiting; /* 1: the other threads must end; number of sleeping
                                             * threads; 1: the caller sleeps */
    pthread_mutex_t lock;
    pthread_cond_t more, all_done; /* signals: a new piece of work, or the end; the last part is
                                    * closed */
    pthread_t *handles;          /* (requested): the other threads */
    _Atomic int64_t next_thread; /* number of the next thread that starts */
};

/* Return the seconds on a clock that never runs backwards. */
static double time_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Take one remaining item from a part: the first (from_start) or the last. Returns the index of the
 * item, or -1 if none remains. */
static int64_t take_item(part *p, int from_start)
{
    uint64_t range = atomic_load_explicit(&p->left, memory_order_relaxed);
    for (;;) {
        const uint64_t low = range & 0xffffffffu, high = range >> 32;
        if (low >= high)
            return -1;
        const uint64_t remaining = from_start ? (high << 32 | (low + 1)) : ((high - 1) << 32 | low);
        if (atomic_compare_exchange_weak_explicit(&p->left, &range, remaining, memory_order_acquire,
                                                  memory_order_relaxed))
            return (int64_t)(from_start ? low : high - 1);
    }
}

/* Do remaining items, first those of the thread's own part, then those of the other parts, until
 * none remains. Returns the number of items that this thread did. */
static int64_t run_items(ff_team *team, int64_t thread)
{
    int64_t total = 0;
    for (int64_t n = 0; n < team->threads; n++) {
        const int64_t part_index = (thread + n) % team->threads;
        part *p = &team->parts[part_index];
        int64_t finished = 0, i;
        while ((i = take_item(p, n == 0)) >= 0) {
            team->item(team->work, i, thread);
            finished++;
            /* `follow` must be called on all items in order. Part 0 has the first items, so its
             * thread, the caller, calls `follow` on each item that it has just done. Other items
             * wait for close_parts. */
            if (team->follow && n == 0 && part_index == 0 && i == p->next) {
                team->follow(team->work, i, thread);
                p->next++;
            }
        }
        if (finished)
            atomic_fetch_sub(&p->open, finished);
        total += finished;
    }
    return total;
}

/* Return the index of the first open part, or the number of parts if all are closed. */
static int64_t part_of(uint64_t progress) { return (int64_t)((progress & 0xffffffffu) / PART); }

/* Close parts in order: a part is closed once all its items are done and `follow` has been called
 * on each. Return when all parts are closed, or give up after SPINS pauses in which this thread
 * could close none. With a `follow` function, a thread closes its own part at once and other parts
 * after PATIENCE pauses. In the end all parts are closed even if threads give up, because the
 * thread that does the last item of a part calls this function afterwards. */
static void close_parts(ff_team *team, int64_t thread)
{
    uint64_t progress = atomic_load(&team->progress);
    const uint64_t piece = progress >> 32;
    for (int idle = 0; progress >> 32 == piece && part_of(progress) < team->threads;
         progress = atomic_load(&team->progress)) {
        const int64_t n = part_of(progress);
        part *p = &team->parts[n];
        const int may_close = !(progress & ORDERED) || n == thread || idle >= PATIENCE;
        if (!(progress & TAKEN) && may_close && atomic_load(&p->open) == 0) {
            /* Only one thread succeeds in setting TAKEN; it closes the part. */
            if (!atomic_compare_exchange_strong(&team->progress, &progress, progress | TAKEN))
                continue;
            if (progress & ORDERED)
                for (; p->next < p->last; p->next++)
                    team->follow(team->work, p->next, thread);
            const int last = n + 1 == team->threads;
            atomic_store(&team->progress, progress + PART);
            if (last && atomic_load(&team->waiting)) {
                pthread_mutex_lock(&team->lock);
                pthread_cond_signal(&team->all_done);
                pthread_mutex_unlock(&team->lock);
            }
            /* If the thread of this part did not come, those of the next parts may not come
             * either: do not wait for PATIENCE pauses again. */
            idle = idle < PATIENCE ? 0 : PATIENCE;
        } else if (idle++ == SPINS) {
            return;
        } else {
            PAUSE;
        }
    }
}

/* Run a thread other than the caller: wait for a piece of work and take part in it, until the team
 * closes. argument: the team. Returns NULL. */
static void *serve(void *argument)
{
    ff_team *team = argument;
    const int64_t thread = atomic_fetch_add(&team->next_thread, 1);
    uint64_t last_turn = 0;
    for (;;) {
        for (int n = 0; n < SPINS && atomic_load(&team->turn) == last_turn; n++)
            PAUSE;
        if (atomic_load(&team->turn) == last_turn) {
            pthread_mutex_lock(&team->lock);
            atomic_fetch_add(&team->sleeping, 1);
            while (atomic_load(&team->turn) == last_turn)
                pthread_cond_wait(&team->more, &team->lock);
            atomic_fetch_sub(&team->sleeping, 1);
            pthread_mutex_unlock(&team->lock);
        }
        last_turn = atomic_load(&team->turn);
        if (atomic_load(&team->closing))
            return NULL;
        run_items(team, thread);
        close_parts(team, thread);
    }
}

/* Announce a new piece of work, or the end, to the other threads. */
static void wake_others(ff_team *team)
{
    atomic_fetch_add(&team->turn, 1);
    if (atomic_load(&team->sleeping)) {
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->more);
        pthread_mutex_unlock(&team->lock);
    }
}

/* Return 1 if all parts of the present piece of work are closed. */
static int all_closed(ff_team *team)
{
    return part_of(atomic_load(&team->progress)) == team->threads;
}

/* Do items first..count-1 with all threads. Returns the mean number of seconds that the caller took
 * for one of the items that it did. */
static double run_together(ff_team *team, int64_t first, int64_t count, ff_item item,
                           ff_item follow, void *work)
{
    const int64_t items = count - first;
    const double begin = time_now();
    team->item = item;
    team->follow = follow;
    team->work = work;
    /* Neighbouring silos share cache lines, so a part is a range of consecutive items. */
    for (int64_t n = 0; n < team->threads; n++) {
        part *p = &team->parts[n];
        p->next = first + items * n / team->threads;
        p->last = first + items * (n + 1) / team->threads;
        atomic_store(&p->open, p->last - p->next);
    }
    const uint64_t piece = (atomic_load(&team->turn) + 1) & 0xffffffffu;
    atomic_store(&team->progress, piece << 32 | (follow ? ORDERED : 0));
    /* `left` comes last: from then on a thread may take items, and reads all of the above. */
    for (int64_t n = 0; n < team->threads; n++) {
        part *p = &team->parts[n];
        const uint64_t low = (uint64_t)p->next, high = (uint64_t)p->last;
        atomic_store_explicit(&p->left, high << 32 | low, memory_order_release);
    }
    wake_others(team);
    const int64_t own_items = run_items(team, 0);
    const double seconds = (time_now() - begin) / (double)(own_items ? own_items : 1);
    close_parts(team, 0);
    if (!all_closed(team)) {
        pthread_mutex_lock(&team->lock);
        atomic_store(&team->waiting, 1);
        while (!all_closed(team))
            pthread_cond_wait(&team->all_done, &team->lock);
        atomic_store(&team->waiting, 0);
        pthread_mutex_unlock(&team->lock);
    }
    return seconds;
}

/* Start the threads other than the caller, unless they have been started. Returns 1 if there is at
 * least one such thread. */
static int start_threads(ff_team *team)
{
    if (team->threads)
        return team->threads > 1;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->more, NULL);
    pthread_cond_init(&team->all_done, NULL);
    /* The new threads inherit the mask and block all signals, so that Python's threads receive
     * them. */
    sigset_t all_signals, previous_mask;
    sigfillset(&all_signals);
    pthread_sigmask(SIG_SETMASK, &all_signals, &previous_mask);
    int64_t started = 1;
    while (started < team->requested &&
           pthread_create(&team->handles[started], NULL, serve, team) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &previous_mask, NULL);
    /* The other threads read team->threads only after the first piece of work is announced. */
    team->threads = started;
    return started > 1;
}

/* Return the running mean of measured times, updated by the newest one. pieces: number of earlier
 * measurements. */
static double updated_mean(double mean, int64_t pieces, double newest)
{
    const double equal_weight = 1.0 / (double)(pieces + 1);
    return mean + (equal_weight > NEWEST ? equal_weight : NEWEST) * (newest - mean);
}

/* Return 1 if all threads should share a piece of work of `units` units. */
static int is_shared(const ff_pace *pace, double units)
{
    return ff_least_shared < 0.0 || (pace->hold == 0 && pace->alone * units >= ff_least_shared);
}

/* Record the seconds that a unit took in a piece of work that one thread did. pace->hold, the
 * number of pieces that one thread still has to do, falls by 1 unless it is 0. */
static void record_alone(ff_pace *pace, double seconds)
{
    pace->alone = updated_mean(pace->alone, pace->lone++, seconds);
    pace->hold -= pace->hold > 0;
}

/* Let one thread do the next `pieces` pieces, and measure `alone` from them only. */
static void hold_alone(ff_pace *pace, int64_t pieces)
{
    pace->hold = pieces;
    pace->lone = 0;
}

/* Record the seconds for a unit in a piece of `units` units that all threads shared: of the whole
 * piece (seconds), and of the caller's own items (own_seconds). If several threads turn out to be
 * slower than one, or pace->alone seems outdated, let one thread do the next pieces. */
static void record_together(ff_pace *pace, double units, double seconds, double own_seconds)
{
    pace->own = updated_mean(pace->own, pace->seen, own_seconds);
    pace->together = updated_mean(pace->together, pace->seen, seconds);
    if (++pace->seen < PIECES_TO_JUDGE && seconds < STALLED * pace->alone)
        return;
    if (pace->together > pace->alone) {
        /* Several threads are slower: one thread does twice as many pieces as the last
         * time. */
        pace->back = 2 * pace->back < HOLD_MIN   ? HOLD_MIN
                     : 2 * pace->back < HOLD_MAX ? 2 * pace->back
                                                 : HOLD_MAX;
        hold_alone(pace, pace->back);
        pace->seen = 0;
        return;
    }
    if (pace->seen % FORGIVEN == 0)
        pace->back /= 2;
    /* If `lone` is 0, `alone` was measured on the first item only, when the caches were cold. */
    const int doubtful = pace->lone == 0 || fabs(pace->own - pace->alone) > DIFFERS * pace->alone;
    if (doubtful && (pace->seen == PIECES_TO_JUDGE || pace->seen % BETWEEN == 0))
        hold_alone(pace, pace->alone * units < LONG ? MEASURED_AGAIN : 1);
}

/* Do `count` items of `units` units of work each, shared among the threads if that is expected to
 * be faster. */
void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work)
{
    if (!team || count < 2 || count > INT32_MAX) {
        run_alone(0, count, item, follow, work);
        return;
    }
    int64_t first = 0;
    double begin = time_now();
    /* The first item of a new kind of work shows how long a unit takes. */
    if (pace->alone <= 0.0) {
        run_alone(0, 1, item, follow, work);
        first = 1;
        const double end = time_now();
        pace->alone = (end - begin) / units;
        begin = end;
    }
    const double all_units = (double)(count - first) * units;
    if (is_shared(pace, all_units) && start_threads(team)) {
        const double own_seconds = run_together(team, first, count, item, follow, work) / units;
        record_together(pace, all_units, (time_now() - begin) / all_units, own_seconds);
    } else {
        run_alone(first, count, item, follow, work);
        record_alone(pace, (time_now() - begin) / all_units);
    }
}

/* Return a team of threads. It is NULL if threads < 2 or memory is exhausted: the caller then works
 * in its own thread. */
ff_team *ff_team_open(int64_t threads)
{
    if (threads < 2)
        return NULL;
    ff_team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    part *parts = aligned_alloc(64, (size_t)threads * sizeof *parts);
    pthread_t *handles = malloc((size_t)threads * sizeof *handles);
    if (!team || !parts || !handles) {
        free(team), free(parts), free(handles);
        return NULL;
    }
    memset(team, 0, sizeof *team);
    memset(parts, 0, (size_t)threads * sizeof *parts);
    team->requested = threads;
    team->parts = parts;
    team->handles = handles;
    atomic_store(&team->next_thread, 1);
    return team;
}

/* End the threads of a team. */
void ff_team_close(ff_team *team)
{
    if (!team)
        return;
    if (team->threads) {
        atomic_store(&team->closing, 1);
        wake_others(team);
        for (int64_t n = 1; n < team->threads; n++)
            pthread_join(team->handles[n], NULL);
        pthread_cond_destroy(&team->all_done);
        pthread_cond_destroy(&team->more);
        pthread_mutex_destroy(&team->lock);
    }
    free(team->handles);
    free(team->parts);
    free(team);
}

#endif
