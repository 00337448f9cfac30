# cython: language_level=3
"""Functions of ``checked`` that numba and other extensions call. ``fastfed/kernels/__init__.pxd``
repeats and documents them."""

from libc.stdint cimport int32_t, int64_t, uint64_t

cdef int32_t rank_one_update(double *gram, double *bias, const double *x, const double *y,
                             int64_t n, int64_t d, int32_t trusted) noexcept nogil
cdef int32_t sherman_morrison(double *inverse, const double *x, int64_t n, int64_t d,
                              int32_t trusted) noexcept nogil
cdef int32_t inverse_factor(const double *V, int64_t m, int64_t d, double *factor,
                            int32_t trusted) noexcept nogil
cdef int32_t factor_update(double *factor, double *theta, const double *x, const double *y,
                           int64_t n, int64_t d, int32_t trusted) noexcept nogil
cdef int32_t solve(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                   int32_t trusted) noexcept nogil
cdef int32_t ucb_scores(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, double *scores, int32_t trusted) noexcept nogil
cdef int32_t ucb_scores_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, double *scores,
                            int32_t trusted) noexcept nogil
cdef int32_t ucb_argmax(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, int64_t *index, int32_t trusted) noexcept nogil
cdef int32_t ucb_argmax_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, int64_t *index,
                            int32_t trusted) noexcept nogil
cdef int32_t normals(uint64_t seed, int64_t purpose, int64_t replicate, int64_t silo,
                     int64_t index, int64_t count, double *values) noexcept nogil
