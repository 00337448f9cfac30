# cython: language_level=3
"""The kernels for other Cython code, without Python in between: ``from fastfed cimport kernels``.

They are found when the module that cimports them loads; neither headers nor a library are needed.
All arrays are C-contiguous and must have the sizes named here, which nothing checks. Each function
returns 0, or why no model has changed and results are of no use: 1 for a matrix or vector of the
model that is not what it should be, 2 for rows, rewards or actions that are not finite or too long,
3 for memory.
``trusted`` leaves out the look at the model's values. What each computes stands in the docstring of
the function of the same name. None of them needs the GIL.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

# gram (d, d) and bias (d,) take n rows x (n, d), y (n,).
cdef int32_t rank_one_update(double *gram, double *bias, const double *x, const double *y,
                             int64_t n, int64_t d, int32_t trusted) noexcept nogil
# inverse (d, d) takes n rows x (n, d).
cdef int32_t sherman_morrison(double *inverse, const double *x, int64_t n, int64_t d,
                              int32_t trusted) noexcept nogil
# V (m, d, d), factor (m, d, d).
cdef int32_t inverse_factor(const double *V, int64_t m, int64_t d, double *factor,
                            int32_t trusted) noexcept nogil
# factor (d, d) and theta (d,) take n rows x (n, d), y (n,).
cdef int32_t factor_update(double *factor, double *theta, const double *x, const double *y,
                           int64_t n, int64_t d, int32_t trusted) noexcept nogil
# factor (d, d), u (n, d), theta (n, d).
cdef int32_t solve(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                   int32_t trusted) noexcept nogil
# actions (sets, K, d), factor (models, d, d), theta (models, d); scores (jobs, K) or index (jobs,).
# One of sets and models is 1, or they are equal; jobs is the larger. Radii are >= 0.
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
# values (count,); seed < 2^63, the other parts < 2^32.
cdef int32_t normals(uint64_t seed, int64_t purpose, int64_t replicate, int64_t silo,
                     int64_t index, int64_t count, double *values) noexcept nogil
