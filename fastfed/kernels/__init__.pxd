# cython: language_level=3
"""The kernels for other Cython code, without Python in between: ``from fastfed cimport kernels``.

The functions are found when the module that cimports them is loaded; neither headers nor a library
are needed. All arrays are C-contiguous and must have the sizes stated here, which are not checked.
Each function returns 0, or a status; then no model has changed and results are undefined: 1 if a
matrix or vector of the model is invalid, 2 if rows, rewards or actions are not finite or too long,
3 if memory is exhausted. ``trusted`` skips the check of the model's values. The docstring of the
Python function of the same name says what each function computes. No function needs the GIL.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

# Update gram (d, d) and bias (d,) by n rows x (n, d), y (n,).
cdef int32_t rank_one_update(double *gram, double *bias, const double *x, const double *y,
                             int64_t n, int64_t d, int32_t trusted) noexcept nogil
# Update inverse (d, d) by n rows x (n, d).
cdef int32_t sherman_morrison(double *inverse, const double *x, int64_t n, int64_t d,
                              int32_t trusted) noexcept nogil
# V (m, d, d), factor (m, d, d).
cdef int32_t inverse_factor(const double *V, int64_t m, int64_t d, double *factor,
                            int32_t trusted) noexcept nogil
# Update factor (d, d) and theta (d,) by n rows x (n, d), y (n,).
cdef int32_t factor_update(double *factor, double *theta, const double *x, const double *y,
                           int64_t n, int64_t d, int32_t trusted) noexcept nogil
# factor (d, d), u (n, d), theta (n, d).
cdef int32_t solve(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                   int32_t trusted) noexcept nogil
# actions (sets, K, d), factor (models, d, d), theta (models, d); scores (jobs, K) or index (jobs,).
# sets or models is 1, or they are equal; jobs is the larger of them. Radii are >= 0.
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
