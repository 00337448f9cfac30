#include "ff_threads.h"

static void each_alone(int64_t first, int64_t count, ff_item item, ff_item follow, void *work)
{
    for (int64_t i = first; i < count; i++) {
        item(work, i, 0);
        if (follow)
            follow(work, i, 0);
    }
}

double ff_least_shared = 40e-6;

#ifndef FF_THREADS

ff_team *ff_team_open(int64_t threads)
{
    (void)threads;
    return NULL;
}

void ff_team_close(ff_team *team) { (void)team; }

void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work)
{
    (void)team, (void)pace, (void)units;
    each_alone(0, count, item, follow, work);
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

/* Pauses before a thread sleeps: 10 to 50 microseconds, about what waking it takes. */
#define SPINS 1000
/* Of these, pauses in which a part that is to be followed is left to its own thread. */
#define PATIENCE 64
_Static_assert(PATIENCE <= SPINS, "who leaves a part to its thread must come to close it");
/* Pieces of work before several threads are judged, and the fewest and most that are done alone
 * after a judgement against them. */
#define JUDGED 8
/* One that takes so many times as long as alone is judged at once: a thread has lost its processor
 * with an item in hand, and would again. */
#define STALLED 4.0
#define FEWEST 16
#define MOST 4096
/* Pieces of work that go well before the next judgement weighs half. */
#define FORGIVEN 1024
/* Beside others the caller's own units take longer than alone: they change caches, and may share its
 * processor. So where they differ by more than an eighth from what a thread takes alone, that is seen
 * anew by a few pieces, now and then: it may be so, or the work may have changed. */
#define DIFFERS .125
#define SEEN_ANEW 4
#define BETWEEN 256
/* A piece of so many seconds tells enough by itself: several alone would cost too much. */
#define LONG .0005
/* Weight of the newest piece of work in what is known of its kind; more where few are. */
#define NEWEST .25

/* A thread's part, in a cache line of its own. */
typedef struct {
    _Alignas(64) _Atomic uint64_t left; /* items low..high-1, as (high << 32) | low */
    _Atomic int64_t open;               /* items that are not done */
    int64_t next, last;                 /* items that are not followed: next..last-1 */
} part;

/* How far a piece of work has come: parts are closed one after the other, each when all its items are
 * done and followed. The number of the piece stands above, so that one is never taken for another. */
#define TAKEN 1u   /* somebody follows the items of this part now */
#define ORDERED 2u /* there is something to follow with */
#define PART 4u

struct ff_team {
    int64_t asked, threads; /* none yet: 0 */
    part *parts;
    /* One piece of work. Written while nobody holds an item or follows a part; whoever does may
     * read it. */
    ff_item item, follow;
    void *work;
    _Alignas(64) _Atomic uint64_t progress;
    _Alignas(64) _Atomic uint64_t turn; /* how many pieces of work there have been */
    _Atomic int closing, sleeping, waiting;
    pthread_mutex_t lock;
    pthread_cond_t more, all_done;
    pthread_t *others;
    _Atomic int64_t named;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* An item of a part, from its beginning (own) or its end; -1 if none is left. */
static int64_t take(part *p, int own)
{
    uint64_t left = atomic_load_explicit(&p->left, memory_order_relaxed);
    for (;;) {
        const uint64_t low = left & 0xffffffffu, high = left >> 32;
        if (low >= high)
            return -1;
        const uint64_t rest = own ? (high << 32 | (low + 1)) : ((high - 1) << 32 | low);
        if (atomic_compare_exchange_weak_explicit(&p->left, &left, rest, memory_order_acquire,
                                                  memory_order_relaxed))
            return (int64_t)(own ? low : high - 1);
    }
}

/* Takes and does items until none is left. Returns how many. */
static int64_t help(ff_team *team, int64_t thread)
{
    int64_t all = 0;
    for (int64_t n = 0; n < team->threads; n++) {
        const int64_t of = (thread + n) % team->threads;
        part *p = &team->parts[of];
        int64_t finished = 0, i;
        while ((i = take(p, n == 0)) >= 0) {
            team->item(team->work, i, thread);
            finished++;
            /* The first part waits for no other. */
            if (team->follow && n == 0 && of == 0 && i == p->next) {
                team->follow(team->work, i, thread);
                p->next++;
            }
        }
        if (finished)
            atomic_fetch_sub(&p->open, finished);
        all += finished;
    }
    return all;
}

static int64_t part_of(uint64_t progress) { return (int64_t)((progress & 0xffffffffu) / PART); }

/* Closes parts, in their order, as long as there are any to close: a thread its own, and others that
 * their threads leave. Who finished the last item of a part comes here, so every part is closed. */
static void close_parts(ff_team *team, int64_t thread)
{
    uint64_t progress = atomic_load(&team->progress);
    const uint64_t piece = progress >> 32;
    for (int idle = 0; progress >> 32 == piece && part_of(progress) < team->threads;
         progress = atomic_load(&team->progress)) {
        const int64_t n = part_of(progress);
        part *p = &team->parts[n];
        const int ours = !(progress & ORDERED) || n == thread || idle >= PATIENCE;
        if (!(progress & TAKEN) && ours && atomic_load(&p->open) == 0) {
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
            /* Where one thread is not there, others may not be either. */
            idle = idle < PATIENCE ? 0 : PATIENCE;
        } else if (idle++ == SPINS) {
            return;
        } else {
            PAUSE;
        }
    }
}

static void *serve(void *argument)
{
    ff_team *team = argument;
    const int64_t thread = atomic_fetch_add(&team->named, 1);
    uint64_t seen = 0;
    for (;;) {
        for (int n = 0; n < SPINS && atomic_load(&team->turn) == seen; n++)
            PAUSE;
        if (atomic_load(&team->turn) == seen) {
            pthread_mutex_lock(&team->lock);
            atomic_fetch_add(&team->sleeping, 1);
            while (atomic_load(&team->turn) == seen)
                pthread_cond_wait(&team->more, &team->lock);
            atomic_fetch_sub(&team->sleeping, 1);
            pthread_mutex_unlock(&team->lock);
        }
        seen = atomic_load(&team->turn);
        if (atomic_load(&team->closing))
            return NULL;
        help(team, thread);
        close_parts(team, thread);
    }
}

/* Shows the others that there is something new. */
static void call(ff_team *team)
{
    atomic_fetch_add(&team->turn, 1);
    if (atomic_load(&team->sleeping)) {
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->more);
        pthread_mutex_unlock(&team->lock);
    }
}

static int all_closed(ff_team *team)
{
    return part_of(atomic_load(&team->progress)) == team->threads;
}

/* Returns how long the caller took for an item. */
static double each_together(ff_team *team, int64_t first, int64_t count, ff_item item,
                            ff_item follow, void *work)
{
    const int64_t left = count - first;
    const double begin = now();
    team->item = item;
    team->follow = follow;
    team->work = work;
    /* Neighbouring silos have cache lines in common: so a part is a stretch of them. */
    for (int64_t n = 0; n < team->threads; n++) {
        part *p = &team->parts[n];
        p->next = first + left * n / team->threads;
        p->last = first + left * (n + 1) / team->threads;
        atomic_store(&p->open, p->last - p->next);
    }
    const uint64_t piece = (atomic_load(&team->turn) + 1) & 0xffffffffu;
    atomic_store(&team->progress, piece << 32 | (follow ? ORDERED : 0));
    for (int64_t n = 0; n < team->threads; n++) {
        part *p = &team->parts[n];
        const uint64_t low = (uint64_t)p->next, high = (uint64_t)p->last;
        atomic_store_explicit(&p->left, high << 32 | low, memory_order_release);
    }
    call(team);
    const int64_t own = help(team, 0);
    const double took = (now() - begin) / (double)(own ? own : 1);
    close_parts(team, 0);
    if (!all_closed(team)) {
        pthread_mutex_lock(&team->lock);
        atomic_store(&team->waiting, 1);
        while (!all_closed(team))
            pthread_cond_wait(&team->all_done, &team->lock);
        atomic_store(&team->waiting, 0);
        pthread_mutex_unlock(&team->lock);
    }
    return took;
}

/* Makes the other threads, if that has not been done. 0 if there can be none. */
static int started(ff_team *team)
{
    if (team->threads)
        return team->threads > 1;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->more, NULL);
    pthread_cond_init(&team->all_done, NULL);
    /* Signals are for Python's threads. */
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int64_t made = 1;
    while (made < team->asked && pthread_create(&team->others[made], NULL, serve, team) == 0)
        made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* The others read it after the first call only. */
    team->threads = made;
    return made > 1;
}

/* What is known by `pieces` pieces of work, and one more. */
static double mixed(double known, int64_t pieces, double newest)
{
    const double even = 1.0 / (double)(pieces + 1);
    return known + (even > NEWEST ? even : NEWEST) * (newest - known);
}

/* Whether all threads do a piece of `all` units. */
static int is_shared(const ff_pace *pace, double all)
{
    return ff_least_shared < 0.0 || (pace->hold == 0 && pace->alone * all >= ff_least_shared);
}

/* What a unit took alone. */
static void saw_alone(ff_pace *pace, double took)
{
    pace->alone = mixed(pace->alone, pace->lone++, took);
    pace->hold -= pace->hold > 0;
}

/* The next pieces, so many, are done alone, and what they take is all that is known of that. */
static void hold(ff_pace *pace, int64_t pieces)
{
    pace->hold = pieces;
    pace->lone = 0;
}

/* What a unit took all threads, and the caller for its own; `all` units were one piece of work. */
static void saw_together(ff_pace *pace, double all, double took, double own)
{
    pace->own = mixed(pace->own, pace->seen, own);
    pace->together = mixed(pace->together, pace->seen, took);
    if (++pace->seen < JUDGED && took < STALLED * pace->alone)
        return;
    if (pace->together > pace->alone) {
        pace->back = 2 * pace->back < FEWEST ? FEWEST : 2 * pace->back < MOST ? 2 * pace->back : MOST;
        hold(pace, pace->back);
        pace->seen = 0;
        return;
    }
    if (pace->seen % FORGIVEN == 0)
        pace->back /= 2;
    /* No whole piece was done alone as yet, only the first item, which finds nothing in the caches. */
    const int unknown = pace->lone == 0 || fabs(pace->own - pace->alone) > DIFFERS * pace->alone;
    if (unknown && (pace->seen == JUDGED || pace->seen % BETWEEN == 0))
        hold(pace, pace->alone * all < LONG ? SEEN_ANEW : 1);
}

void ff_team_each(ff_team *team, ff_pace *pace, int64_t count, double units, ff_item item,
                  ff_item follow, void *work)
{
    if (!team || count < 2 || count > INT32_MAX) {
        each_alone(0, count, item, follow, work);
        return;
    }
    int64_t first = 0;
    double begin = now();
    if (pace->alone <= 0.0) {
        each_alone(0, 1, item, follow, work);
        first = 1;
        const double end = now();
        pace->alone = (end - begin) / units;
        begin = end;
    }
    const double all = (double)(count - first) * units;
    if (is_shared(pace, all) && started(team)) {
        const double own = each_together(team, first, count, item, follow, work) / units;
        saw_together(pace, all, (now() - begin) / all, own);
    } else {
        each_alone(first, count, item, follow, work);
        saw_alone(pace, (now() - begin) / all);
    }
}

ff_team *ff_team_open(int64_t threads)
{
    if (threads < 2)
        return NULL;
    ff_team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    part *parts = aligned_alloc(64, (size_t)threads * sizeof *parts);
    pthread_t *others = malloc((size_t)threads * sizeof *others);
    if (!team || !parts || !others) {
        free(team), free(parts), free(others);
        return NULL;
    }
    memset(team, 0, sizeof *team);
    memset(parts, 0, (size_t)threads * sizeof *parts);
    team->asked = threads;
    team->parts = parts;
    team->others = others;
    atomic_store(&team->named, 1);
    return team;
}

void ff_team_close(ff_team *team)
{
    if (!team)
        return;
    if (team->threads) {
        atomic_store(&team->closing, 1);
        call(team);
        for (int64_t n = 1; n < team->threads; n++)
            pthread_join(team->others[n], NULL);
        pthread_cond_destroy(&team->all_done);
        pthread_cond_destroy(&team->more);
        pthread_mutex_destroy(&team->lock);
    }
    free(team->others);
    free(team->parts);
    free(team);
}

#endif
