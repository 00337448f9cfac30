# cython: language_level=3
"""The shared object of all kernels: how it was built, which level of instructions runs, watches,
and syncs."""

import os

cdef extern from "ff_processor.h":
    enum:
        FF_LEVEL_BASE
        FF_LEVEL_V3
        FF_LEVEL_V4
    int ff_processor_level()
    int ff_processor_vnni()
    int ff_levels_choose(int most)

cdef extern from *:
    """
    #ifdef FF_THREADS
    #define FF_HAS_THREADS 1
    #else
    #define FF_HAS_THREADS 0
    #endif
    #if defined(__clang__)
    #define FF_COMPILER "clang " __clang_version__
    #elif defined(__GNUC__)
    #define FF_COMPILER "gcc " __VERSION__
    #elif defined(_MSC_VER)
    #define FF_COMPILER "MSVC"
    #else
    #define FF_COMPILER "unknown"
    #endif
    """
    int FF_HAS_THREADS
    const char *FF_COMPILER

HAS_THREADS = bool(FF_HAS_THREADS)
COMPILER = FF_COMPILER.decode().strip()
#: Levels of instructions by name; "v3" and "v4" are for x86-64.
LEVELS = {"base": FF_LEVEL_BASE, "v3": FF_LEVEL_V3, "v4": FF_LEVEL_V4}
#: The highest level that this processor supports.
PROCESSOR = {value: name for name, value in LEVELS.items()}[ff_processor_level()]
#: Whether the processor has AVX-512 VNNI; without it, screening in 16 bits runs at v3.
HAS_VNNI = bool(ff_processor_vnni())
#: The highest level that may run: the environment variable FASTFED_LEVEL, or "v4" for any.
MOST = os.environ.get("FASTFED_LEVEL") or "v4"

if MOST not in LEVELS:
    raise ImportError(f"FASTFED_LEVEL must be one of {', '.join(LEVELS)}, got {MOST!r}")

# Choose the level at which all kernels run, up to MOST. The result is -1 if this build has only one
# level.
cdef int chosen = ff_levels_choose(LEVELS[MOST])
#: Whether this build has all levels.
HAS_LEVELS = chosen >= 0
#: The level that runs.
LEVEL = {value: name for name, value in LEVELS.items()}[max(chosen, 0)]

# ---- Watches: they end a process whose Python is blocked -----------------------------------------

cdef extern from "ff_watch.h":
    enum:
        FF_WATCH_HEARD
    int ff_watch_signals(int pipe, int grace, const char *message, size_t size) nogil
    int ff_watch_owner(int pipe) nogil

#: The byte by which a program tells `watch_signals` that it has received a signal and is ending.
HEARD = FF_WATCH_HEARD


def watch_signals(int pipe, int grace, bytes message):
    """Run ff_watch_signals (src/ff_watch.h) in the calling thread, which should do nothing else."""
    cdef const char *text = message
    cdef size_t size = len(message)
    with nogil:
        ff_watch_signals(pipe, grace, text, size)


def watch_owner(int pipe):
    """Run ff_watch_owner (src/ff_watch.h) in the calling thread, which should do nothing else."""
    with nogil:
        ff_watch_owner(pipe)

# ---- Syncs of files ------------------------------------------------------------------------------

cdef extern from "ff_sync.h":
    void ff_sync_files(int requests, int answers) nogil


def sync_files(int requests, int answers):
    """Run ff_sync_files (src/ff_sync.h) in the calling thread, which should do nothing else."""
    with nogil:
        ff_sync_files(requests, answers)
