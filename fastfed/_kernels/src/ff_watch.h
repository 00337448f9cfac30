/* Watches that need no Python: they end a process whose Python is held by a function that never returns.
 *
 * Each is run by a thread of its own that has let go of Python's lock, and reads a pipe. */
#ifndef FF_WATCH_H
#define FF_WATCH_H

#include <stddef.h>

enum {
    FF_WATCH_CLOSED = 0, /* the pipe has been closed, or told so */
    FF_WATCH_NONE = 1    /* there are no such watches on this system */
};

/* Read numbers of signals, as Python's signal.set_wakeup_fd writes them, until the pipe says 0.
 *
 * After one that ends a program, a further byte has to come within `grace` milliseconds: FF_WATCH_HEARD from
 * a program that ends by itself. Without it, or at a second such signal, `message` is written to standard
 * error and the process ends with exit code 128 + signal, as a shell calls it. */
int ff_watch_signals(int pipe, int grace, const char *message, size_t size);

/* The byte that says "heard"; no signal has this number. */
#define FF_WATCH_HEARD 255

/* End this process once the other end of a pipe is closed, by its owner or with it. */
int ff_watch_owner(int pipe);

#endif
