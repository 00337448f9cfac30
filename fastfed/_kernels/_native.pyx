# cython: language_level=3
"""The shared object of all kernels, and how it was built."""

cdef extern from *:
    """
    #ifdef FF_TARGET_CLONES
    #define FF_HAS_CLONES 1
    #else
    #define FF_HAS_CLONES 0
    #endif
    #ifdef FF_THREADS
    #define FF_HAS_THREADS 1
    #else
    #define FF_HAS_THREADS 0
    #endif
    """
    int FF_HAS_CLONES
    int FF_HAS_THREADS

HAS_TARGET_CLONES = bool(FF_HAS_CLONES)
HAS_THREADS = bool(FF_HAS_THREADS)
