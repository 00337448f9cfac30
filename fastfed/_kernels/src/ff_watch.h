/* Watches that end a process whose Python is blocked by a function that never returns. They need no
 * Python.
 *
 * Each watch runs in its own thread, which has released Python's lock, and reads a pipe. */
#ifndef FF_WATCH_H
#define FF_WATCH_H

#include <stddef.h>

/* What the watches return. */
enum {
    FF_WATCH_CLOSED = 0, /* the pipe has been closed, or 0 was written to it */
    FF_WATCH_NONE = 1    /* there are no watches on this system (Windows) */
};

/* Read numbers of signals from `pipe`, as Python's signal.set_wakeup_fd writes them, until the pipe
 * is closed or gives 0.
 *
 * After a signal that ends a program, a further byte has to come within `grace` milliseconds:
 * FF_WATCH_HEARD, by which the program says that it is ending. Without it, or after a second such
 * signal, `message` is written to standard error and the process exits with 128 + signal, as a
 * shell reports it. */
int ff_watch_signals(int pipe, int grace, const char *message, size_t size);

/* The byte that acknowledges a signal; no signal has this number. */
#define FF_WATCH_HEARD 255

/* End this process once the other end of the pipe is closed, by its owner or because the owner has
 * ended. */
int ff_watch_owner(int pipe);

#endif
