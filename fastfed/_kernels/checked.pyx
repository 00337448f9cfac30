# cython: language_level=3, cdivision=True
"""Kernels whose arguments are looked at in C, which takes a fraction of a microsecond.

Each function of Python runs if its arguments are ready for the kernel (arrays of exactly the type,
shape and layout that it takes, with good values) and otherwise does nothing and returns None:
``fastfed.kernels`` then converts them, or says what is wrong. The functions of ``checked.pxd`` take
pointers; numba and other extensions call them. See ``src/ff_batch.h``.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

import numpy as np

from fastfed._kernels.headers cimport *


# ---- functions of pointers -----------------------------------------------------------------------

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


cdef inline ff_sets whole(const void *x, int64_t is_double, int64_t sets, int64_t K,
                          int64_t d) noexcept nogil:
    """Sets that lie one after the other, row by row."""
    cdef ff_sets made
    made.x, made.is_double = x, is_double
    made.sets, made.actions, made.dimension = sets, K, d
    made.set_stride, made.action_stride, made.feature_stride = K * d, d, 1
    return made


cdef int32_t ucb_scores(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, double *scores, int32_t trusted) noexcept nogil:
    cdef ff_sets given = whole(actions, 1, sets, K, d)
    return ff_score_sets(&given, factor, theta, models, radius, second_radius, trusted, scores)


cdef int32_t ucb_scores_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, double *scores,
                            int32_t trusted) noexcept nogil:
    cdef ff_sets given = whole(actions, 0, sets, K, d)
    return ff_score_sets(&given, factor, theta, models, radius, second_radius, trusted, scores)


cdef int32_t ucb_argmax(const double *actions, int64_t sets, int64_t K, int64_t d,
                        const double *factor, const double *theta, int64_t models, double radius,
                        double second_radius, int64_t *index, int32_t trusted) noexcept nogil:
    cdef ff_sets given = whole(actions, 1, sets, K, d)
    return ff_argmax_sets(&given, factor, theta, models, radius, second_radius, trusted, index)


cdef int32_t ucb_argmax_f32(const float *actions, int64_t sets, int64_t K, int64_t d,
                            const double *factor, const double *theta, int64_t models,
                            double radius, double second_radius, int64_t *index,
                            int32_t trusted) noexcept nogil:
    cdef ff_sets given = whole(actions, 0, sets, K, d)
    return ff_argmax_sets(&given, factor, theta, models, radius, second_radius, trusted, index)


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


# ---- what is ready -------------------------------------------------------------------------------

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
# Arrays of the built-in types share one dtype object each.
cdef object float64 = np.dtype(np.float64), float32 = np.dtype(np.float32)
cdef object int64 = np.dtype(np.int64), uint8 = np.dtype(np.uint8)
cdef object empty = np.empty

# A kernel has at most five arrays.
cdef struct held_arrays:
    Py_buffer at[5]
    int count


cdef inline Py_buffer *take(held_arrays *held, value, kind, int flags) noexcept:
    """The buffer of an array of exactly this dtype; NULL if it is not ready."""
    cdef Py_buffer *made = &held.at[held.count]
    if type(value) is not ndarray or value.dtype is not kind:
        return NULL
    if get_buffer(value, made, flags):
        PyErr_Clear()
        return NULL
    held.count += 1
    return NULL if <uintptr_t>made.buf % <uintptr_t>made.itemsize else made


cdef inline Py_buffer *target(held_arrays *held, value) noexcept:
    return take(held, value, float64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)


cdef inline Py_buffer *given(held_arrays *held, value) noexcept:
    return take(held, value, float64, PyBUF_C_CONTIGUOUS)


cdef inline void release(held_arrays *held) noexcept:
    cdef int i
    for i in range(held.count):
        release_buffer(&held.at[i])


cdef inline bint square(const Py_buffer *a) noexcept:
    return a != NULL and a.ndim == 2 and a.shape[0] == a.shape[1] and a.shape[0] > 0


cdef inline bint vector(const Py_buffer *a, int64_t d) noexcept:
    return a != NULL and a.ndim == 1 and a.shape[0] == d


cdef inline bint apart(const Py_buffer *a, const Py_buffer *b) noexcept:
    """True if two contiguous arrays share no memory."""
    cdef uintptr_t first = <uintptr_t>a.buf, second = <uintptr_t>b.buf
    return first + a.len <= second or second + b.len <= first


cdef inline bint real(value, double *number) noexcept:
    """A float, or a small integer."""
    cdef int overflow = 0
    if isinstance(value, float):
        number[0] = as_double(value)
        return True
    if type(value) is int:
        number[0] = <double>as_integer(value, &overflow)
        return overflow == 0
    return False


cdef inline bint radius(value, double *number) noexcept:
    return real(value, number) and 0.0 <= number[0] and number[0] - number[0] == 0.0


cdef inline bint word(value, int64_t most, int64_t *number) noexcept:
    """An integer from 0 to most."""
    cdef int overflow = 0
    if type(value) is not int:
        return False
    number[0] = as_integer(value, &overflow)
    return overflow == 0 and 0 <= number[0] <= most


cdef inline bint rows(held_arrays *held, x, y, int64_t d, double *one, const Py_buffer **features,
                      const double **rewards, int64_t *n) noexcept:
    """x (d,) with a number y, or x (n, d) with y (n,)."""
    cdef const Py_buffer *many
    cdef const Py_buffer *found = given(held, x)
    features[0] = found
    if found == NULL or not 1 <= found.ndim <= 2 or found.shape[found.ndim - 1] != d:
        return False
    if found.ndim == 1:
        n[0], rewards[0] = 1, one
        return real(y, one)
    n[0] = found.shape[0]
    many = given(held, y)
    if not vector(many, n[0]):
        return False
    rewards[0] = <const double *>many.buf
    return True


# ---- rows ----------------------------------------------------------------------------------------

def rank_one(gram, bias, x, y, bint trusted):
    """True if gram and bias have taken the rows."""
    cdef held_arrays held
    cdef const Py_buffer *features
    cdef const double *rewards
    cdef double one
    cdef int64_t n
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *g = target(&held, gram)
    cdef Py_buffer *b = target(&held, bias) if square(g) else NULL
    if (b != NULL and vector(b, g.shape[0])
            and rows(&held, x, y, g.shape[0], &one, &features, &rewards, &n)
            and apart(g, b) and apart(g, features) and apart(b, features)
            and (rewards == &one or apart(g, &held.at[3]) and apart(b, &held.at[3]))):
        with nogil:
            status = ff_rank_one_rows(<double *>g.buf, <double *>b.buf,
                                      <const double *>features.buf, rewards, n, g.shape[0],
                                      trusted)
    release(&held)
    return True if status == FF_FINE else None


def sherman(inverse, x, bint trusted):
    """True if the inverse has taken the rows."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *v = target(&held, inverse)
    cdef Py_buffer *f = given(&held, x) if square(v) else NULL
    if (f != NULL and 1 <= f.ndim <= 2 and f.shape[f.ndim - 1] == v.shape[0]
            and apart(v, f)):
        with nogil:
            status = ff_sherman_morrison_rows(<double *>v.buf, <const double *>f.buf,
                                              1 if f.ndim == 1 else f.shape[0], v.shape[0],
                                              trusted)
    release(&held)
    return True if status == FF_FINE else None


def update(factor, theta, x, y, bint trusted):
    """True if factor and theta have taken the rows."""
    cdef held_arrays held
    cdef const Py_buffer *features
    cdef const double *rewards
    cdef double one
    cdef int64_t n
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *w = target(&held, factor)
    cdef Py_buffer *t = target(&held, theta) if square(w) else NULL
    if (t != NULL and vector(t, w.shape[0])
            and rows(&held, x, y, w.shape[0], &one, &features, &rewards, &n)
            and apart(w, t) and apart(w, features) and apart(t, features)
            and (rewards == &one or apart(w, &held.at[3]) and apart(t, &held.at[3]))):
        with nogil:
            status = ff_factor_rows(<double *>w.buf, <double *>t.buf,
                                    <const double *>features.buf, rewards, n, w.shape[0], trusted)
    release(&held)
    return True if status == FF_FINE else None


cdef object room(held_arrays *held, shape, dtype=float64):
    """A new array; no buffer stays taken where there is no memory for it."""
    try:
        return empty(shape, dtype)
    except BaseException:
        release(held)
        raise


def factors(V, bint trusted):
    """W of V (d, d), or of each of a stack (m, d, d)."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *v = given(&held, V)
    cdef Py_buffer *w
    made = None
    if v != NULL and 2 <= v.ndim <= 3 and v.shape[v.ndim - 1] == v.shape[v.ndim - 2] > 0:
        made = room(&held, V.shape)
        w = target(&held, made)
        if w != NULL:
            with nogil:
                status = ff_inverse_factors(<const double *>v.buf,
                                            1 if v.ndim == 2 else v.shape[0], v.shape[v.ndim - 1],
                                            <double *>w.buf, trusted)
    release(&held)
    return made if status == FF_FINE else None


def solves(factor, u, bint trusted):
    """V^{-1} u of u (d,) or of each row of u (n, d)."""
    cdef held_arrays held
    held.count = 0
    cdef int status = FF_BAD_STATE
    cdef Py_buffer *w = given(&held, factor)
    cdef Py_buffer *b = given(&held, u) if square(w) else NULL
    cdef Py_buffer *t
    made = None
    if b != NULL and 1 <= b.ndim <= 2 and b.shape[b.ndim - 1] == w.shape[0]:
        made = room(&held, u.shape)
        t = target(&held, made)
        if t != NULL:
            with nogil:
                status = ff_solve_rows(<const double *>w.buf, <const double *>b.buf,
                                       1 if b.ndim == 1 else b.shape[0], w.shape[0],
                                       <double *>t.buf, trusted)
    release(&held)
    return made if status == FF_FINE else None


# ---- sets of actions -----------------------------------------------------------------------------

cdef inline bint lie(held_arrays *held, actions, ff_sets *made) noexcept:
    """Actions (K, d) or sets (n, K, d), float32 or float64, of any strides."""
    cdef Py_buffer *x = take(held, actions, float64, PyBUF_STRIDES)
    cdef int last, i
    if x == NULL and held.count == 0:
        x = take(held, actions, float32, PyBUF_STRIDES)
    if x == NULL or not 2 <= x.ndim <= 3:
        return False
    last = x.ndim - 1
    for i in range(x.ndim):
        if x.shape[i] < 1 or x.strides[i] % x.itemsize:
            return False
    made.x, made.is_double = x.buf, x.itemsize == 8
    made.sets = x.shape[0] if last == 2 else 1
    made.actions, made.dimension = x.shape[last - 1], x.shape[last]
    made.set_stride = x.strides[0] // x.itemsize if last == 2 else 0
    made.action_stride = x.strides[last - 1] // x.itemsize
    made.feature_stride = x.strides[last] // x.itemsize
    return True


cdef inline bint model(held_arrays *held, factor, theta, const ff_sets *sets,
                       const Py_buffer **w, const Py_buffer **t, int64_t *models) noexcept:
    """A model, or a stack of as many as there are sets; of any number where there is one set."""
    cdef int64_t d = sets.dimension
    cdef int stack
    w[0] = given(held, factor)
    if w[0] == NULL or not 2 <= w[0].ndim <= 3:
        return False
    stack = w[0].ndim == 3
    t[0] = given(held, theta)
    if t[0] == NULL or t[0].ndim != 1 + stack:
        return False
    models[0] = w[0].shape[0] if stack else 1
    return (w[0].shape[stack] == w[0].shape[stack + 1] == t[0].shape[stack] == d
            and (not stack or t[0].shape[0] == models[0] and models[0] > 0))


def scores(actions, factor, theta, radius_, second, bint trusted):
    """Scores (K,), or (n, K) of n sets, or (m, K) under m models."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *out
    cdef double beta, gamma
    cdef int64_t models
    held.count = 0
    cdef int status = FF_BAD_STATE
    made = None
    if (lie(&held, actions, &sets) and model(&held, factor, theta, &sets, &w, &t, &models)
            and radius(radius_, &beta) and radius(second, &gamma)
            and (w.ndim == 2 or held.at[0].ndim == 2 or models == sets.sets)):
        if w.ndim == 2 and held.at[0].ndim == 2:
            made = room(&held, sets.actions)
        else:
            made = room(&held, (max(sets.sets, models), sets.actions))
        out = target(&held, made)
        if out != NULL:
            with nogil:
                status = ff_score_sets(&sets, <const double *>w.buf, <const double *>t.buf, models,
                                       beta, gamma, trusted, <double *>out.buf)
    release(&held)
    return made if status == FF_FINE else None


def argmax(actions, factor, theta, radius_, second, bint trusted):
    """Index of the largest score; (n,) of n sets, each with its own model if there are n."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *out
    cdef double beta, gamma
    cdef int64_t models, one
    held.count = 0
    cdef int status = FF_BAD_STATE
    made = None
    if (lie(&held, actions, &sets) and model(&held, factor, theta, &sets, &w, &t, &models)
            and radius(radius_, &beta) and radius(second, &gamma)
            and (w.ndim == 2 or held.at[0].ndim == 3 and models == sets.sets)):
        if held.at[0].ndim == 2:
            with nogil:
                status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf, 1,
                                        beta, gamma, trusted, &one)
            if status == FF_FINE:
                made = one
        else:
            made = room(&held, sets.sets, int64)
            out = take(&held, made, int64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            if out != NULL:
                with nogil:
                    status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf,
                                            models, beta, gamma, trusted, <int64_t *>out.buf)
    release(&held)
    return made if status == FF_FINE else None


def choose(actions, factor, theta, double beta, chosen):
    """Index of the best of actions (K, d) under a trusted model; its features into chosen (d,)."""
    cdef held_arrays held
    cdef ff_sets sets
    cdef ff_actions one
    cdef const Py_buffer *w
    cdef const Py_buffer *t
    cdef Py_buffer *x
    cdef int64_t models, index = -1
    cdef int status
    held.count = 0
    if lie(&held, actions, &sets) and held.at[0].ndim == 2:
        if model(&held, factor, theta, &sets, &w, &t, &models):
            x = target(&held, chosen)
            if w.ndim == 2 and vector(x, sets.dimension):
                with nogil:
                    status = ff_argmax_sets(&sets, <const double *>w.buf, <const double *>t.buf, 1,
                                            beta, 0.0, 1, &index)
                    if status == FF_FINE:
                        one = ff_one_set(&sets, 0)
                        ff_features(&one, index, sets.dimension, <double *>x.buf)
                    else:
                        index = -1
    release(&held)
    return index if index >= 0 else None


# ---- noise ---------------------------------------------------------------------------------------

def gaussians(seed, count, purpose, replicate, silo, index, bint single):
    """Standard normals of a stream, float64 or float32."""
    cdef int64_t s, n, p, r, m, i
    cdef held_arrays held
    cdef ff_stream stream
    cdef Py_buffer *out
    held.count = 0
    if not (word(seed, 0x7fffffffffffffff, &s) and word(count, 0xffffffff, &n)
            and word(purpose, 0xffffffff, &p) and word(replicate, 0xffffffff, &r)
            and word(silo, 0xffffffff, &m) and word(index, 0xffffffff, &i)):
        return None
    stream = ff_stream_open(s, p, r, m, i)
    made = empty(max(1, ff_normal_capacity_f32(n) if single else ff_normal_capacity_f64(n)),
                 float32 if single else float64)
    out = take(&held, made, float32 if single else float64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    if out != NULL:
        with nogil:
            if single:
                ff_normals_f32(&stream, n, <float *>out.buf)
            else:
                ff_normals_f64(&stream, n, <double *>out.buf)
    release(&held)
    return made[:n]


def tree(uint64_t seed, const int64_t[::1] releases, int64_t d, double std, double off_diagonal,
         double diagonal, bint prefixes, int64_t replicate, int64_t silo):
    """Noise of nodes or prefixes: bias (n, d) and covariance (n, d, d); arguments are trusted."""
    cdef int64_t n = releases.shape[0], s = d + d * (d + 1) // 2, row, i, j, end, level
    cdef ff_noise_std stds
    stds.bias, stds.off_diagonal, stds.diagonal = std, off_diagonal, diagonal
    cdef double[:, ::1] bias = empty((n, d))
    cdef double[:, :, ::1] covariance = empty((n, d, d))
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
                    # Release `end` closes the node of its lowest set bit; the rest is the prefix
                    # before.
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
