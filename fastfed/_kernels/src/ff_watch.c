#include "ff_watch.h"

#ifdef _WIN32

/* Return FF_WATCH_NONE: on Windows nothing watches for a blocked Python. */
int ff_watch_signals(int pipe, int grace, const char *message, size_t size)
{
    (void)pipe, (void)grace, (void)message, (void)size;
    return FF_WATCH_NONE;
}

/* Return FF_WATCH_NONE: on Windows nothing watches whether the owner still runs. */
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

/* Return the next byte of a pipe; -1 if the pipe is closed, -2 if no byte comes within
 * `milliseconds` (below 0: no limit). */
static int next_byte(int pipe, int milliseconds)
{
    unsigned char byte;
    for (;;) {
        struct pollfd descriptor = {pipe, POLLIN, 0};
        int ready = poll(&descriptor, 1, milliseconds);
        if (ready == 0)
            return -2;
        if (ready < 0 && errno != EINTR)
            return -1;
        if (ready < 0)
            continue;
        ssize_t bytes_read = read(pipe, &byte, 1);
        if (bytes_read == 1)
            return byte;
        if (bytes_read == 0 || (errno != EINTR && errno != EAGAIN))
            return -1;
    }
}

/* Read signal numbers from a pipe until it is closed or gives 0, then return FF_WATCH_CLOSED. End
 * the process if Python does not react to a signal in time. grace, message: see ff_watch.h. */
int ff_watch_signals(int pipe, int grace, const char *message, size_t size)
{
    int pending = 0, timeout = -1;
    for (;;) {
        int byte = next_byte(pipe, timeout);
        int is_ending = byte == SIGINT || byte == SIGTERM || byte == SIGHUP;
        if (byte == -1 || byte == 0)
            return FF_WATCH_CLOSED;
        if (byte == FF_WATCH_HEARD) {
            /* Python has reacted and will end the program: wait for further signals only. */
            timeout = -1;
        } else if (byte == -2 || (is_ending && pending && timeout >= 0)) {
            if (write(STDERR_FILENO, message, size) < 0) {
                /* Writing failed; there is nobody to report that to. */
            }
            _exit(128 + (is_ending ? byte : pending));
        } else if (is_ending) {
            pending = byte;
            timeout = grace;
        }
    }
}

/* End this process once its owner has closed the pipe or ended. Returns FF_WATCH_CLOSED only if
 * waiting fails. */
int ff_watch_owner(int pipe)
{
    struct pollfd descriptor = {pipe, POLLIN, 0};
    int ready;
    do
        ready = poll(&descriptor, 1, -1);
    while (ready == 0 || (ready < 0 && errno == EINTR));
    if (ready < 0)
        return FF_WATCH_CLOSED;
    _exit(1);
}

#endif
