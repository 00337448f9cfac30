# cython: language_level=3
from libc.stdint cimport int64_t, uint64_t

from fastfed._kernels.headers cimport ff_directions, ff_environment


cdef class Environment:
    cdef ff_environment c
    cdef readonly uint64_t seed
    cdef readonly int64_t replicate
    cdef int64_t silos  # number of silos; 0: any silo number is valid
    cdef int64_t queries, rows  # of a pool that stores its actions in 16 bits, else 0
    cdef const ff_directions *directions  # of a pool with strongly correlated features, else NULL
    # Every silo is offered the same rows in every round, and they are stored as ff_fixed.h wants.
    cdef readonly bint fixed
    cdef object keep  # objects whose memory the C side uses
    cdef void check_place(self, int64_t silo, int64_t round) except *
    cdef void describe(self, int64_t dimension, int64_t actions, int64_t is_double,
                       int64_t stride, reward) except *
