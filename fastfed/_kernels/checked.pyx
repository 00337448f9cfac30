# cython: language_level=3, cdivision=True
"""Kernels whose arguments are checked in C, which takes a fraction of a microsecond.

Each Python function runs if its arguments need no conversion (arrays of exactly the type, shape and
layout of the kernel, with valid values). Otherwise it does nothing and returns None; then
``fastfed.kernels`` converts the arguments or raises an error. The functions in ``checked.pxd`` take
pointers; numba and other extensions call them. See ``src/ff_batch.h``.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

import numpy as np

from fastfed._kernels.headers cimport *


# ---- functions that take pointers ----------------------------------------------------------------

cdef int32_t rank_one_update(double *gram, double *bias, const double *x, const double *y,
                             int64_t n, int64_t d, int32_t trusted) noexcept nogil:
    return ff_rank_one_rows(gram, bias, x, y, n, d, trusted)


cdef int32_t sherman_morrison(double *inverse, const double *x, int64_t n, int64_t d,
                              int32_t trusted) noexcept nogil:
    return ff_sherman_morrison_rows(inverse, x, n, d, trusted)


cdef int32_t inverse_factor(const double *V, int64_t m, int64_t d, double *factor,
                            int32_t trusted) noexcept nogil:
    return ff_inverse_factors(V, m, d, factor, trusted)


cdef int32_t factor_update(double *factor, double *theta, const double *x, const double *y,
                           int64_t n, int64_t d, int32_t trusted) noexcept nogil:
    return ff_factor_rows(factor, theta, x, y, n, d, trusted)


cdef int32_t solve(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                   int32_t trusted) noexcept nogil:
    return ff_solve_rows(factor, u, n, d, theta, trusted)


cdef inline ff_sets contiguous_sets(const void *x, int64_t is_double, int64_t sets, int64_t K,
                                    int64_t d) noexcept nogil:
    """Return a description of contiguous sets of actions (sets, K, d)."""
    cdef ff_sets described
    described.x, described.is_double = x, is_double
    described.sets, described.actions, described.dimension = sets, K, d
    described.set_stride, described.action_stride, described.feature_stride = K * d, d, 1
    return described


cdef int32_t ucb_scores(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, double *scores, int32_t trusted) noexcept nogil:
    cdef ff_sets described = contiguous_sets(actions, 1, sets, K, d)
    return ff_score_sets(&described, factor, theta, models, radius, second_radius, trusted, scores)


cdef int32_t ucb_scores_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, double *scores,
                            int32_t trusted) noexcept nogil:
    cdef ff_sets described = contiguous_sets(actions, 0, sets, K, d)
    return ff_score_sets(&described, factor, theta, models, radius, second_radius, trusted, scores)


cdef int32_t ucb_argmax(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, int64_t *index, int32_t trusted) noexcept nogil:
    cdef ff_sets described = contiguous_sets(actions, 1, sets, K, d)
    return ff_argmax_sets(&described, factor, theta, models, radius, second_radius, trusted, index)


cdef int32_t ucb_argmax_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, int64_t *index,
                            int32_t trusted) noexcept nogil:
    cdef ff_sets described = contiguous_sets(actions, 0, sets, K, d)
    return ff_argmax_sets(&described, factor, theta, models, radius, second_radius, trusted, index)


cdef int32_t normals(uint64_t seed, int64_t purpose, int64_t replicate, int64_t silo,
                     int64_t index, int64_t count, double *values) noexcept nogil:
    cdef ff_stream s = ff_stream_open(seed, purpose, replicate, silo, index)
    cdef double *drawn = <double *>malloc(ff_normal_capacity_f64(count) * sizeof(double) + 1)
    if drawn == NULL:
        return FF_NO_MEMORY
    ff_normals_f64(&s, count, drawn)
    memcpy(values, drawn, count * sizeof(double))
    free(drawn)
    return FF_FINE


# ---- arguments that need no conversion -----------------------------------------------------------

cdef extern from "string.h" nogil:
    void *memcpy(void *to, const void *source, size_t size)

cdef extern from "Python.h":
    enum:
        PyBUF_STRIDES
        PyBUF_C_CONTIGUOUS
        PyBUF_WRITABLE
    int get_buffer "PyObject_GetBuffer"(object value, Py_buffer *buffer, int flags)
    void release_buffer "PyBuffer_Release"(Py_buffer *buffer)
    void PyErr_Clear()
    double as_double "PyFloat_AsDouble"(object value)
    long long as_integer "PyLong_AsLongLongAndOverflow"(object value, int *overflow)

cdef object ndarray = np.ndarray
# Arrays of a built-in type share one dtype object.
cdef object float64 = np.dtype(np.float64), float32 = np.dtype(np.float32)
cdef object int64 = np.dtype(np.int64), uint8 = np.dtype(np.uint8)
cdef object empty = np.empty

# The buffers that a call holds until it releases them, in the order in which it took them. A kernel
# has at most five arrays.
cdef struct held_arrays:
    Py_buffer at[5]
    int count


cdef inline Py_buffer *take_buffer(held_arrays *held, value, kind, int flags) noexcept:
    """Return the buffer of an array with exactly this dtype; NULL if it needs conversion."""
    cdef Py_buffer *buffer = &held.at[held.count]
    if type(value) is not ndarray or value.dtype is not kind:
        return NULL
    if get_buffer(value, buffer, flags):
        PyErr_Clear()
        return NULL
    held.count += 1
    return NULL if <uintptr_t>buffer.buf % <uintptr_t>buffer.itemsize else buffer


cdef inline Py_buffer *target_buffer(held_arrays *held, value) noexcept:
    """Return the buffer of an array to be updated in place; NULL if it needs conversion."""
    return take_buffer(held, value, float64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)


cdef inline Py_buffer *input_buffer(held_arrays *held, value) noexcept:
    """Return the buffer of an array to be read; NULL if it needs conversion."""
    return take_buffer(held, value, float64, PyBUF_C_CONTIGUOUS)


cdef inline void release(held_arrays *held) noexcept:
    """Release all buffers."""
    cdef int i
    for i in range(held.count):
        release_buffer(&held.at[i])


cdef inline bint is_square(const Py_buffer *a) noexcept:
    """Return True if ``a`` is a matrix (d, d) with d >= 1."""
    return a != NULL and a.ndim == 2 and a.shape[0] == a.shape[1] and a.shape[0] > 0


cdef inline bint is_vector(const Py_buffer *a, int64_t d) noexcept:
    """Return True if ``a`` is a vector (d,)."""
    return a != NULL and a.ndim == 1 and a.shape[0] == d


cdef inline bint are_disjoint(const Py_buffer *a, const Py_buffer *b) noexcept:
    """Return True if two contiguous arrays share no memory."""
    cdef uintptr_t first = <uintptr_t>a.buf, second = <uintptr_t>b.buf
    return first + a.len <= second or second + b.len <= first


cdef inline bint read_number(value, double *number) noexcept:
    """Write a float, or an integer of 64 bits, to number[0]. Return False for other values."""
    cdef int overflow = 0
    if isinstance(value, float):
        number[0] = as_double(value)
        return True
    if type(value) is int:
        number[0] = <double>as_integer(value, &overflow)
        return overflow == 0
    return False


cdef inline bint read_radius(value, double *number) noexcept:
    """Store a finite number >= 0 in number[0]. Return False for other values."""
    return read_number(value, number) and 0.0 <= number[0] and number[0] - number[0] == 0.0


cdef inline bint read_word(value, int64_t most, int64_t *number) noexcept:
    """Store an integer in [0, most] in number[0]. Return False for other values."""
    cdef int overflow = 0
    if type(value) is not int:
        return False
    number[0] = as_integer(value, &overflow)
    return overflow == 0 and 0 <= number[0] <= most


cdef inline bint read_rows(held_arrays *held, x, y, int64_t d, double *single,
                           const Py_buffer **features, const double **rewards, int64_t *n) noexcept:
    """Read x (d,) with a number y, which is written to single[0], or x (n, d) with y (n,).

    Return False if x or y needs conversion.
    """
    cdef const Py_buffer *many_rewards
    cdef const Py_buffer *buffer = input_buffer(held, x)
    features[0] = buffer
    if buffer == NULL or not 1 <= buffer.ndim <= 2 or buffer.shape[buffer.ndim - 1] != d:
        return False
    if buffer.ndim == 1:
        n[0], rewards[0] = 1, single
        return read_number(y, single)
    n[0] = buffer.shape[0]
    many_rewards = input_buffer(held, y)
    if not is_vector(many_rewards, n[0]):
        return False
    rewards[0] = <const double *>many_rewards.buf
    return True


# ---- rows ----------------------------------------------------------------------------------------

def rank_one(gram, bias, x, y, bint trusted):
    """Add x x' to gram (d, d) and x y to bias (d,), for each of n rows x (n, d) with rewards y
    (n,), or for one row x (d,) with a number y. Returns True, or None if arguments need
    conversion."""
    cdef held_arrays held
    cdef const Py_buffer *features
    cdef const double *rewards
    cdef double single_reward
    cdef int64_t n
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *g = target_buffer(&held, gram)
    cdef Py_buffer *b = target_buffer(&held, bias) if is_square(g) else NULL
    # If y is an array, its buffer is held.at[3], after gram, bias and x.
    if (b != NULL and is_vector(b, g.shape[0])
            and read_rows(&held, x, y, g.shape[0], &single_reward, &features, &rewards, &n)
            and are_disjoint(g, b) and are_disjoint(g, features) and are_disjoint(b, features)
            and (rewards == &single_reward
                 or are_disjoint(g, &held.at[3]) and are_disjoint(b, &held.at[3]))):
        with nogil:
            status = ff_rank_one_rows(<double *>g.buf, <double *>b.buf,
                                      <const double *>features.buf, rewards, n, g.shape[0],
                                      trusted)
    release(&held)
    return True if status == FF_FINE else None


def sherman(inverse, x, bint trusted):
    """Update inverse (d, d) from V^{-1} to (V + x x')^{-1}, for x (d,) or for each row of x (n, d).
    Returns True, or None if arguments need conversion."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *v = target_buffer(&held, inverse)
    cdef Py_buffer *f = input_buffer(&held, x) if is_square(v) else NULL
    if (f != NULL and 1 <= f.ndim <= 2 and f.shape[f.ndim - 1] == v.shape[0]
            and are_disjoint(v, f)):
        with nogil:
            status = ff_sherman_morrison_rows(<double *>v.buf, <const double *>f.buf,
                                              1 if f.ndim == 1 else f.shape[0], v.shape[0],
                                              trusted)
    release(&held)
    return True if status == FF_FINE else None


def update(factor, theta, x, y, bint trusted):
    """Update factor (d, d) and theta (d,) by n data points: rows x (n, d) with rewards y (n,), or
    one row x (d,) with a number y. Returns True, or None if arguments need conversion."""
    cdef held_arrays held
    cdef const Py_buffer *features
    cdef const double *rewards
    cdef double single_reward
    cdef int64_t n
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *w = target_buffer(&held, factor)
    cdef Py_buffer *t = target_buffer(&held, theta) if is_square(w) else NULL
    # If y is an array, its buffer is held.at[3], after factor, theta and x.
    if (t != NULL and is_vector(t, w.shape[0])
            and read_rows(&held, x, y, w.shape[0], &single_reward, &features, &rewards, &n)
            and are_disjoint(w, t) and are_disjoint(w, features) and are_disjoint(t, features)
            and (rewards == &single_reward
                 or are_disjoint(w, &held.at[3]) and are_disjoint(t, &held.at[3]))):
        with nogil:
            status = ff_factor_rows(<double *>w.buf, <double *>t.buf,
                                    <const double *>features.buf, rewards, n, w.shape[0], trusted)
    release(&held)
    return True if status == FF_FINE else None


cdef object new_array(held_arrays *held, shape, dtype=float64):
    """Return a new array; release all buffers if there is no memory for it."""
    try:
        return empty(shape, dtype)
    except BaseException:
        release(held)
        raise


def factors(V, bint trusted):
    """Return the inverse factor W (W'W = V^{-1}) of V (d, d), or of each matrix of a stack V
    (m, d, d); None if V needs conversion."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *v = input_buffer(&held, V)
    cdef Py_buffer *w
    result = None
    if v != NULL and 2 <= v.ndim <= 3 and v.shape[v.ndim - 1] == v.shape[v.ndim - 2] > 0:
        result = new_array(&held, V.shape)
        w = target_buffer(&held, result)
        if w != NULL:
            with nogil:
                status = ff_inverse_factors(<const double *>v.buf,
                                            1 if v.ndim == 2 else v.shape[0], v.shape[v.ndim - 1],
                                            <double *>w.buf, trusted)
    release(&held)
    return result if status == FF_FINE else None


def solves(factor, u, bint trusted):
    """Return V^{-1} u for u (d,), or for each row of u (n, d); None if arguments need
    conversion."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *w = input_buffer(&held, factor)
    cdef Py_buffer *b = input_buffer(&held, u) if is_square(w) else NULL
    cdef Py_buffer *t
    result = None
    if b != NULL and 1 <= b.ndim <= 2 and b.shape[b.ndim - 1] == w.shape[0]:
        result = new_array(&held, u.shape)
        t = target_buffer(&held, result)
        if t != NULL:
            with nogil:
                status = ff_solve_rows(<const double *>w.buf, <const double *>b.buf,
                                       1 if b.ndim == 1 else b.shape[0], w.shape[0],
                                       <double *>t.buf, trusted)
    release(&held)
    return result if status == FF_FINE else None


# ---- sets of actions -----------------------------------------------------------------------------

cdef inline bint read_sets(held_arrays *held, actions, ff_sets *sets) noexcept:
    """Describe actions (K, d) or sets (n, K, d), float32 or float64, with any strides, in *sets.

    Return False if the actions need conversion.
    """
    cdef Py_buffer *x = take_buffer(held, actions, float64, PyBUF_STRIDES)
    cdef int last, i
    if x == NULL and held.count == 0:
        x = take_buffer(held, actions, float32, PyBUF_STRIDES)
    if x == NULL or not 2 <= x.ndim <= 3:
        return False
    last = x.ndim - 1
    for i in range(x.ndim):
        if x.shape[i] < 1 or x.strides[i] % x.itemsize:
            return False
    sets.x, sets.is_double = x.buf, x.itemsize == 8
    sets.sets = x.shape[0] if last == 2 else 1
    sets.actions, sets.dimension = x.shape[last - 1], x.shape[last]
    sets.set_stride = x.strides[0] // x.itemsize if last == 2 else 0
    sets.action_stride = x.strides[last - 1] // x.itemsize
    sets.feature_stride = x.strides[last] // x.itemsize
    return True


cdef inline bint read_model(held_arrays *held, factor, theta, const ff_sets *sets,
                            const Py_buffer **w, const Py_buffer **t, int64_t *models) noexcept:
    """Read a model, factor (d, d) and theta (d,), or a stack of m models, (m, d, d) and (m, d).

    *w and *t receive the buffers of factor and theta, and *models the number of models. Return
    False if factor or theta needs conversion. The caller checks the number of models: for several
    sets there must be one model, or one for each set.
    """
    cdef int64_t d = sets.dimension
    cdef int stack  # 1 for a stack, where the first axis counts models
    w[0] = input_buffer(held, factor)
    if w[0] == NULL or not 2 <= w[0].ndim <= 3:
        return False
    stack = w[0].ndim == 3
    t[0] = input_buffer(held, theta)
    if t[0] == NULL or t[0].ndim != 1 + stack:
        return False
    models[0] = w[0].shape[0] if stack else 1
    return (w[0].shape[stack] == w[0].shape[stack + 1] == t[0].shape[stack] == d
            and (not stack or t[0].shape[0] == models[0] and models[0] > 0))


def scores(actions, factor, theta, radius_, second, bint trusted):
    """Return scores (K,), or (n, K) for n sets, or (m, K) for m models; None if arguments need
    conversion."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *out
    cdef double beta, gamma
    cdef int64_t models
    held.count = 0
    cdef int status = FF_BAD_STATE
    result = None
    if (read_sets(&held, actions, &sets)
            and read_model(&held, factor, theta, &sets, &w, &t, &models)
            and read_radius(radius_, &beta) and read_radius(second, &gamma)
            and (w.ndim == 2 or held.at[0].ndim == 2 or models == sets.sets)):
        if w.ndim == 2 and held.at[0].ndim == 2:
            result = new_array(&held, sets.actions)
        else:
            result = new_array(&held, (max(sets.sets, models), sets.actions))
        out = target_buffer(&held, result)
        if out != NULL:
            with nogil:
                status = ff_score_sets(&sets, <const double *>w.buf, <const double *>t.buf, models,
                                       beta, gamma, trusted, <double *>out.buf)
    release(&held)
    return result if status == FF_FINE else None


def argmax(actions, factor, theta, radius_, second, bint trusted):
    """Return the index of the largest score, or indices (n,) for n sets, with one model or one for
    each set; None if arguments need conversion."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *out
    cdef double beta, gamma
    cdef int64_t models, index
    held.count = 0
    cdef int status = FF_BAD_STATE
    result = None
    if (read_sets(&held, actions, &sets)
            and read_model(&held, factor, theta, &sets, &w, &t, &models)
            and read_radius(radius_, &beta) and read_radius(second, &gamma)
            and (w.ndim == 2 or held.at[0].ndim == 3 and models == sets.sets)):
        if held.at[0].ndim == 2:
            with nogil:
                status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf, 1,
                                        beta, gamma, trusted, &index)
            if status == FF_FINE:
                result = index
        else:
            result = new_array(&held, sets.sets, int64)
            out = take_buffer(&held, result, int64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            if out != NULL:
                with nogil:
                    status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf,
                                            models, beta, gamma, trusted, <int64_t *>out.buf)
    release(&held)
    return result if status == FF_FINE else None


def choose(actions, factor, theta, double beta, chosen):
    """Return the index of the best of actions (K, d) under a trusted model, and write its features
    to chosen (d,); None if arguments need conversion."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef ff_actions set_
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *x
    cdef int64_t models, index = -1
    cdef int status
    held.count = 0
    if read_sets(&held, actions, &sets) and held.at[0].ndim == 2:
        if read_model(&held, factor, theta, &sets, &w, &t, &models):
            x = target_buffer(&held, chosen)
            if w.ndim == 2 and is_vector(x, sets.dimension):
                with nogil:
                    status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf, 1,
                                            beta, 0.0, 1, &index)
                    if status == FF_FINE:
                        set_ = ff_one_set(&sets, 0)
                        ff_features(&set_, index, sets.dimension, <double *>x.buf)
                    else:
                        index = -1
    release(&held)
    return index if index >= 0 else None


# ---- noise ---------------------------------------------------------------------------------------

def gaussians(seed, count, purpose, replicate, silo, index, bint single):
    """Return standard normals of a stream, float64 or float32; None if arguments need
    conversion."""
    cdef int64_t s, n, p, r, m, i
    cdef held_arrays held
    cdef ff_stream stream
    cdef Py_buffer *out
    held.count = 0
    if not (read_word(seed, 0x7fffffffffffffff, &s) and read_word(count, 0xffffffff, &n)
            and read_word(purpose, 0xffffffff, &p) and read_word(replicate, 0xffffffff, &r)
            and read_word(silo, 0xffffffff, &m) and read_word(index, 0xffffffff, &i)):
        return None
    stream = ff_stream_open(s, p, r, m, i)
    values = empty(max(1, ff_normal_capacity_f32(n) if single else ff_normal_capacity_f64(n)),
                   float32 if single else float64)
    out = take_buffer(&held, values, float32 if single else float64,
                      PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    if out != NULL:
        with nogil:
            if single:
                ff_normals_f32(&stream, n, <float *>out.buf)
            else:
                ff_normals_f64(&stream, n, <double *>out.buf)
    release(&held)
    return values[:n]


def tree(uint64_t seed, const int64_t[::1] releases, int64_t d, double std, double off_diagonal,
         double diagonal, bint prefixes, int64_t replicate, int64_t silo):
    """Return the noise that the tree adds at each of n ``releases`` (n,), in bias (n, d) and
    covariance (n, d, d). Without ``prefixes`` it is the noise of the node that the release
    completes, otherwise that of the prefix sum after the release. ``std`` is the standard deviation
    of the noise in bias. Does not check arguments."""
    cdef int64_t n = releases.shape[0], s = d + d * (d + 1) // 2, row, i, j, end, level
    cdef ff_noise_std stds
    stds.bias, stds.off_diagonal, stds.diagonal = std, off_diagonal, diagonal
    cdef double[:, ::1] bias = empty((n, d))
    cdef double[:, :, ::1] covariance = empty((n, d, d))
    # Normals; zeros (s); the latest node of each level 0, .., 32 (33, s); the noise to return (s).
    cdef double *drawn = <double *>malloc((ff_noise_capacity(d) + 35 * s) * sizeof(double))
    cdef double *zeros = drawn + ff_noise_capacity(d)
    cdef double *nodes = zeros + s
    cdef double *total = nodes + 33 * s
    if drawn == NULL:
        raise MemoryError
    with nogil:
        for i in range(s):
            zeros[i] = 0.0
        for row in range(n):
            end = releases[row]
            if prefixes:
                while end:
                    # The prefix sum after release `end` is the node that this release completes,
                    # plus the prefix sum after release end & (end - 1).
                    level = ff_node_level(end)
                    ff_node_normals(seed, replicate, silo, end, d, drawn)
                    ff_add_noise(zeros, drawn, &stds, d, nodes + level * s)
                    end &= end - 1
                ff_prefix(nodes, releases[row], s, total)
            else:
                ff_node_normals(seed, replicate, silo, end, d, drawn)
                ff_add_noise(zeros, drawn, &stds, d, total)
            for i in range(d):
                bias[row, i] = total[i]
                for j in range(i + 1):
                    covariance[row, i, j] = covariance[row, j, i] = total[d + i * (i + 1) // 2 + j]
    free(drawn)
    return np.asarray(bias), np.asarray(covariance)
