/* Every item of every piece of work is done once and followed in order, by teams that come and go
 * (test_threads.py).
 * Arguments: what is shared from (seconds), the number of teams. */
#include <stdio.h>
#include <stdlib.h>

#include "ff_threads.h"

#define MOST_ITEMS 1500
#define MOST_THREADS 8

typedef struct {
    int64_t *times, *own; /* how often each item was done; a line of memory for each thread */
    int64_t sum;
    int takes;
    int64_t followed; /* not atomic: only one at a time may write it */
    int wrong;
} work;

static void item(void *made, int64_t i, int64_t thread)
{
    work *w = made;
    w->times[i]++;
    w->own[thread * 16] += i;
    FF_ATOMIC_ADD(&w->sum, i);
    volatile int waits = 0;
    for (int n = 0; n < w->takes; n++)
        waits += n;
}

static void follow(void *made, int64_t i, int64_t thread)
{
    work *w = made;
    (void)thread;
    w->wrong |= i != w->followed++ || w->times[i] != 1;
}

int main(int count, char **arguments)
{
    static int64_t times[MOST_ITEMS], own[MOST_THREADS * 16];
    if (count != 3)
        return 2;
    ff_least_shared = atof(arguments[1]);
    srand(1);
    for (int team_number = 0; team_number < atoi(arguments[2]); team_number++) {
        ff_team *team = ff_team_open(1 + rand() % MOST_THREADS);
        ff_pace pace = {0};
        for (int piece = 0; piece < 200; piece++) {
            const int64_t items = 1 + rand() % (rand() % 10 ? 20 : MOST_ITEMS);
            work w = {times, own, 0, rand() % 200, 0, 0};
            const int follows = rand() % 3;
            memset(times, 0, sizeof times);
            memset(own, 0, sizeof own);
            ff_team_each(team, &pace, items, 1.0, item, follows ? follow : NULL, &w);
            int64_t of_threads = 0;
            for (int t = 0; t < MOST_THREADS; t++)
                of_threads += own[t * 16];
            for (int64_t i = 0; i < items; i++)
                if (times[i] != 1)
                    return printf("item %d of %d was done %d times\n", (int)i, (int)items,
                                  (int)times[i]), 1;
            if (w.wrong || w.followed != (follows ? items : 0))
                return printf("%d items were not followed in order\n", (int)items), 1;
            if (w.sum != items * (items - 1) / 2 || of_threads != w.sum)
                return printf("a sum over %d items is wrong\n", (int)items), 1;
        }
        ff_team_close(team);
    }
    return puts("every item once") < 0;
}
