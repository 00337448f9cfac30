/* When several threads share a piece of work, by what pieces took (test_threads.py): no clock, no
 * threads. Prints how many of 10 000 pieces were shared, and their time over that of one thread.
 * Arguments: seconds of a piece alone, of one that is shared, and of all of it at the caller's pace
 * then; the piece from which on these are others, and the others. */
#include <stdio.h>

#include "ff_threads.c"

int main(int count, char **arguments)
{
    const int64_t pieces = 10000;
    if (count != 8)
        return 2;
    double given[7];
    for (int n = 0; n < 7; n++)
        given[n] = atof(arguments[n + 1]);
    /* The first item finds nothing in the caches, and takes as long as beside others. */
    ff_pace pace = {.alone = given[2]};
    double took = 0.0, lone = 0.0;
    int64_t shared = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
        const double *now = piece < (int64_t)given[3] ? given : given + 4;
        const int together = is_shared(&pace, 1.0);
        if (together)
            saw_together(&pace, 1.0, now[1], now[2]);
        else
            saw_alone(&pace, now[0]);
        shared += together;
        took += now[together];
        lone += now[0];
    }
    return printf("%d %.4f\n", (int)shared, took / lone) < 0;
}
