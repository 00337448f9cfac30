#include "ff_sync.h"

#ifdef _WIN32

/* Do nothing: syncs in threads exist on POSIX systems only. */
void ff_sync_files(int requests, int answers) { (void)requests, (void)answers; }

#else

#include <errno.h>
#include <time.h>
#include <unistd.h>

/* Return the seconds on a clock that never runs backwards. */
static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Sync a file's content, but not its times if the system can leave them out; return errno or 0. */
static int sync_content(int file)
{
    int failed;
    do {
#if defined(_POSIX_SYNCHRONIZED_IO) && _POSIX_SYNCHRONIZED_IO > 0
        failed = fdatasync(file);
#else
        failed = fsync(file);
#endif
    } while (failed && errno == EINTR);
    return failed ? errno : 0;
}

/* Sync the files whose descriptors come from the pipe `requests`, and write the result of each sync
 * to the pipe `answers`, until a pipe is closed. */
void ff_sync_files(int requests, int answers)
{
    for (;;) {
        ff_synced synced;
        ssize_t size;
        do
            size = read(requests, &synced.file, sizeof synced.file);
        while (size < 0 && errno == EINTR);
        if (size != (ssize_t)sizeof synced.file)
            return;
        double start = seconds_now();
        synced.error = sync_content(synced.file);
        synced.seconds = seconds_now() - start;
        do
            size = write(answers, &synced, sizeof synced);
        while (size < 0 && errno == EINTR);
        if (size != (ssize_t)sizeof synced)
            return;
    }
}

#endif
