#include "ff_watch.h"

#ifdef _WIN32

int ff_watch_signals(int pipe, int grace, const char *message, size_t size)
{
    (void)pipe, (void)grace, (void)message, (void)size;
    return FF_WATCH_NONE;
}

int ff_watch_owner(int pipe)
{
    (void)pipe;
    return FF_WATCH_NONE;
}

#else

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

/* The next byte of a pipe; -1 where it is closed, -2 where none comes within so many milliseconds (below 0: for
 * ever). */
static int next_byte(int pipe, int milliseconds)
{
    unsigned char byte;
    for (;;) {
        struct pollfd one = {pipe, POLLIN, 0};
        int ready = poll(&one, 1, milliseconds);
        if (ready == 0)
            return -2;
        if (ready < 0 && errno != EINTR)
            return -1;
        if (ready < 0)
            continue;
        ssize_t got = read(pipe, &byte, 1);
        if (got == 1)
            return byte;
        if (got == 0 || (errno != EINTR && errno != EAGAIN))
            return -1;
    }
}

int ff_watch_signals(int pipe, int grace, const char *message, size_t size)
{
    int pending = 0, patience = -1;
    for (;;) {
        int byte = next_byte(pipe, patience);
        int ends = byte == SIGINT || byte == SIGTERM || byte == SIGHUP;
        if (byte == -1 || byte == 0)
            return FF_WATCH_CLOSED;
        if (byte == FF_WATCH_HEARD) {
            /* The program ends by itself, unless it is told once more. */
            patience = -1;
        } else if (byte == -2 || (ends && pending && patience >= 0)) {
            if (write(STDERR_FILENO, message, size) < 0) {
                /* Nobody listens, and there is nobody to tell. */
            }
            _exit(128 + (ends ? byte : pending));
        } else if (ends) {
            pending = byte;
            patience = grace;
        }
    }
}

int ff_watch_owner(int pipe)
{
    struct pollfd one = {pipe, POLLIN, 0};
    int ready;
    do
        ready = poll(&one, 1, -1);
    while (ready == 0 || (ready < 0 && errno == EINTR));
    if (ready < 0)
        return FF_WATCH_CLOSED;
    _exit(1);
}

#endif
