"""The kernels inside ``@numba.njit``: overloads that call the same compiled code.

Installed packages need nothing: numba finds `register` by its entry point ``numba_extensions``.
Call it yourself if fastfed is imported from a source tree. Results have the same bits as plain
calls. Shapes and values are checked as in plain calls, but with shorter messages, because messages
in numba must be constants.

Arrays updated in place must be C-contiguous float64 arrays. Other arrays of numbers are copied if
they are not contiguous float64 (actions: float32 or float64). Lists are not accepted. ``normals``
draws float64 only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.extending import get_cython_function_address, overload, register_jitable

from fastfed import kernels
from fastfed._validate import InputError

__all__ = ["register"]

#: C types in the signatures of compiled functions.
_TYPES = {
    "double": types.float64,
    "float": types.float32,
    "int32_t": types.int32,
    "int64_t": types.int64,
    "uint64_t": types.uint64,
}


def _numba_type(c: str) -> Any:
    """Return the numba type of a C value or pointer, such as ``double const *``."""
    value = _TYPES[c.split()[0]]
    return types.CPointer(value) if c.endswith("*") else value


def _signature(capsule: Any) -> Any:
    """Return the numba signature of a compiled function from its capsule.

    The name of the capsule is the C signature, as Cython writes it.
    """
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    result, _, parameters = name_of(capsule).decode().rstrip(")").partition(" (")
    return _numba_type(result)(*map(_numba_type, parameters.split(", ")))


def _external(name: str, capsule: Any) -> Any:
    """Return the compiled function ``name`` as numba calls it.

    The function gets a symbol, by which cached code of numba finds it in a different process.
    """
    symbol = f"fastfed_kernels_{name}"
    address = get_cython_function_address("fastfed._kernels.checked", name)
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, _signature(capsule))


_C = {name: _external(name, capsule) for name, capsule in kernels.__pyx_capi__.items()}


# ---- types of arguments --------------------------------------------------------------------------


def _is_array(value: Any, *ndim: int) -> bool:
    """Return True for the type of an array with one of these numbers of axes."""
    return isinstance(value, types.Array) and value.ndim in ndim


def _target(name: str, value: Any, ndim: int) -> None:
    """Raise TypingError unless an array of this type can be updated in place."""
    fits = _is_array(value, ndim) and value.dtype == types.float64
    if not fits or value.layout != "C" or not value.mutable:
        raise TypingError(
            f"{name} must be a writable C-contiguous float64 array of {ndim} axes, because it is "
            f"updated in place, got {value}"
        )


def _numbers(name: str, value: Any, *ndim: int) -> None:
    """Raise TypingError unless a type is an array of numbers."""
    axes = " or ".join(map(str, ndim))
    if not _is_array(value, *ndim) or not isinstance(value.dtype, (types.Float, types.Integer)):
        raise TypingError(f"{name} must be an array of numbers of {axes} axes, got {value}")


def _contiguous(value: Any, *dtypes: Any) -> Callable[[Any], Any]:
    """Return a function that converts arrays of type ``value`` to contiguous ones.

    The result has the same dtype if it is one of ``dtypes``, else float64.
    """
    if value.dtype in dtypes and value.layout == "C":
        return register_jitable(lambda a: a)
    if value.dtype in dtypes:
        return register_jitable(lambda a: np.ascontiguousarray(a))
    return register_jitable(lambda a: np.ascontiguousarray(a.astype(np.float64)))


@register_jitable
def _shared(a: Any, b: Any) -> Any:
    """Return True if two contiguous arrays share memory."""
    first, second = a.ctypes.data, b.ctypes.data
    return first < second + b.size * b.itemsize and second < first + a.size * a.itemsize


@register_jitable
def _unshared(rows: Any, first: Any, second: Any) -> Any:
    """Return ``rows``, copied if they share memory with ``first`` or ``second``."""
    return rows.copy() if _shared(rows, first) or _shared(rows, second) else rows


def _row_parts(x: Any, y: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two functions that make arguments of types x and y contiguous: rows, and rewards.

    x is the type of one row or of many.
    """
    _numbers("x", x, 1, 2)
    features = _contiguous(x, types.float64)
    if x.ndim == 1:
        if not isinstance(y, (types.Float, types.Integer)):
            raise TypingError(f"y must be a number where x has one axis, got {y}")
        return features, register_jitable(lambda a: np.full(1, np.float64(a)))
    _numbers("y", y, 1)
    return features, _contiguous(y, types.float64)


@register_jitable
def _raise_if_no_memory(status: Any) -> None:
    """Raise MemoryError if a kernel's return code says that it had no memory."""
    if status == 3:
        raise MemoryError("no memory for the kernel's scratch")


# ---- rows ----------------------------------------------------------------------------------------


def _rank_one_update(gram: Any, bias: Any, x: Any, y: Any, trusted: Any = False) -> Any:
    """Return the numba version of `rank_one_update` for these types."""
    _target("gram", gram, 2)
    _target("bias", bias, 1)
    rows_of, rewards_of = _row_parts(x, y)
    run = _C["rank_one_update"]

    def impl(gram: Any, bias: Any, x: Any, y: Any, trusted: Any = False) -> Any:
        """Run the compiled `rank_one_update` on checked arguments."""
        d = gram.shape[0]
        rows, rewards = rows_of(x), rewards_of(y)
        n = rewards.size
        if gram.shape[1] != d or d == 0 or bias.size != d:
            raise InputError("gram must have shape (d, d) with d >= 1, and bias (d,)")
        if rows.shape[-1] != d or rows.size != n * d:
            raise InputError("x must have shape (d,) with a number y, or (n, d) with y (n,)")
        if _shared(gram, bias):
            raise InputError("gram and bias must not share memory")
        rows, rewards = _unshared(rows, gram, bias), _unshared(rewards, gram, bias)
        status = run(gram.ctypes, bias.ctypes, rows.ctypes, rewards.ctypes, n, d, trusted)
        if status == 1:
            raise InputError("gram and bias must be finite")
        _raise_if_no_memory(status)
        if status:
            raise InputError("x and y must be finite")
        return gram, bias

    return impl


def _sherman_morrison(inverse: Any, x: Any, trusted: Any = False) -> Any:
    """Return the numba version of `sherman_morrison` for these types."""
    _target("inverse", inverse, 2)
    _numbers("x", x, 1, 2)
    rows_of, run = _contiguous(x, types.float64), _C["sherman_morrison"]

    def impl(inverse: Any, x: Any, trusted: Any = False) -> Any:
        """Run the compiled `sherman_morrison` on checked arguments."""
        d = inverse.shape[0]
        rows = rows_of(x)
        if inverse.shape[1] != d or d == 0:
            raise InputError("inverse must have shape (d, d) with d >= 1")
        if rows.shape[-1] != d:
            raise InputError("x must have shape (d,) or (n, d)")
        rows = _unshared(rows, inverse, inverse)
        status = run(inverse.ctypes, rows.ctypes, rows.size // d, d, trusted)
        if status == 1:
            raise InputError("inverse must be finite and symmetric")
        _raise_if_no_memory(status)
        if status:
            raise InputError("x must be finite, and x' inverse x >= 0 and finite")
        return inverse

    return impl


def _factor_update(factor: Any, theta: Any, x: Any, y: Any, trusted: Any = False) -> Any:
    """Return the numba version of `factor_update` for these types."""
    _target("factor", factor, 2)
    _target("theta", theta, 1)
    rows_of, rewards_of = _row_parts(x, y)
    run = _C["factor_update"]

    def impl(factor: Any, theta: Any, x: Any, y: Any, trusted: Any = False) -> Any:
        """Run the compiled `factor_update` on checked arguments."""
        d = factor.shape[0]
        rows, rewards = rows_of(x), rewards_of(y)
        n = rewards.size
        if factor.shape[1] != d or d == 0 or theta.size != d:
            raise InputError("factor must have shape (d, d) with d >= 1, and theta (d,)")
        if rows.shape[-1] != d or rows.size != n * d:
            raise InputError("x must have shape (d,) with a number y, or (n, d) with y (n,)")
        if _shared(factor, theta):
            raise InputError("factor and theta must not share memory")
        rows, rewards = _unshared(rows, factor, theta), _unshared(rewards, factor, theta)
        status = run(factor.ctypes, theta.ctypes, rows.ctypes, rewards.ctypes, n, d, trusted)
        if status == 1:
            raise InputError(
                "factor must be lower triangular with a positive diagonal, as inverse_factor(V) "
                "gives, and theta finite"
            )
        _raise_if_no_memory(status)
        if status:
            raise InputError("x and y must be finite, and ||x||_{V^-1} at most 1e75")
        return factor, theta

    return impl


def _inverse_factor(V: Any, trusted: Any = False) -> Any:
    """Return the numba version of `inverse_factor` for these types."""
    _numbers("V", V, 2, 3)
    prepare, run = _contiguous(V, types.float64), _C["inverse_factor"]

    def impl(V: Any, trusted: Any = False) -> Any:
        """Run the compiled `inverse_factor` on checked arguments."""
        matrix = prepare(V)
        d = matrix.shape[-1]
        if matrix.shape[-2] != d or d == 0:
            raise InputError("V must have shape (d, d) with d >= 1, or (m, d, d)")
        factor = np.empty(matrix.shape)
        status = run(matrix.ctypes, matrix.size // (d * d), d, factor.ctypes, trusted)
        _raise_if_no_memory(status)
        if status:
            raise InputError("V must be finite, symmetric and positive definite")
        return factor

    return impl


def _solve(factor: Any, u: Any, trusted: Any = False) -> Any:
    """Return the numba version of `solve` for these types."""
    _numbers("factor", factor, 2)
    _numbers("u", u, 1, 2)
    w_of, rows_of = _contiguous(factor, types.float64), _contiguous(u, types.float64)
    run = _C["solve"]

    def impl(factor: Any, u: Any, trusted: Any = False) -> Any:
        """Run the compiled `solve` on checked arguments."""
        w, rows = w_of(factor), rows_of(u)
        d = w.shape[0]
        if w.shape[1] != d or d == 0:
            raise InputError("factor must have shape (d, d) with d >= 1")
        if rows.shape[-1] != d:
            raise InputError("u must have shape (d,) or (n, d)")
        theta = np.empty(rows.shape)
        status = run(w.ctypes, rows.ctypes, rows.size // d, d, theta.ctypes, trusted)
        if status == 1:
            raise InputError(
                "factor must be lower triangular with a positive diagonal, as inverse_factor(V) "
                "gives"
            )
        _raise_if_no_memory(status)
        if status:
            raise InputError("u must be finite")
        return theta

    return impl


# ---- scores --------------------------------------------------------------------------------------


def _score_parts(kernel: str, actions: Any, factor: Any, theta: Any) -> tuple[Any, ...]:
    """Return four functions for these types of arguments.

    The first three make actions, factor and theta contiguous; the last is the compiled ``kernel``.
    """
    _numbers("actions", actions, 2, 3)
    _numbers("factor", factor, 2, 3)
    _numbers("theta", theta, factor.ndim - 1)
    name = f"{kernel}_f32" if actions.dtype == types.float32 else kernel
    actions_of = _contiguous(actions, types.float32, types.float64)
    return (
        actions_of,
        _contiguous(factor, types.float64),
        _contiguous(theta, types.float64),
        _C[name],
    )


@register_jitable
def _check_scores(x: Any, w: Any, theta: Any, radius: Any, second_radius: Any) -> Any:
    """Return the number of models; raise InputError for wrong shapes and negative radii.

    x are actions (..., K, d), w inverse factors (d, d) or (m, d, d), and theta (d,) or (m, d).
    """
    d = x.shape[-1]
    if w.shape[-1] != d or w.shape[-2] != d or theta.shape[-1] != d or d == 0:
        raise InputError("factor must have shape (d, d), theta (d,) and actions (K, d), d >= 1")
    models = w.size // (d * d)
    if theta.size != models * d:
        raise InputError("factor (m, d, d) and theta (m, d) must hold as many models")
    if x.size == 0 or models == 0:
        raise InputError("there must be at least one action and one model")
    if not (0.0 <= radius < np.inf and 0.0 <= second_radius < np.inf):
        raise InputError("radius and second_radius must be >= 0")
    return models


@register_jitable
def _raise_for_status(status: Any) -> None:
    """Raise an exception if the return code of `ucb_scores` or `ucb_argmax` is not 0.

    The codes are those of ff_batch.h: 1 for an unusable model, 2 for actions that are not finite,
    and 3 if there is not enough memory.
    """
    if status == 1:
        raise InputError(
            "factor must be lower triangular with a positive diagonal, as inverse_factor(V) gives, "
            "and theta finite"
        )
    _raise_if_no_memory(status)
    if status:
        raise InputError("actions must be finite")


def _ucb_scores(
    actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
    trusted: Any = False,
) -> Any:  # fmt: skip
    """Return the numba version of `ucb_scores` for these types."""
    x_of, w_of, theta_of, run = _score_parts("ucb_scores", actions, factor, theta)
    sets_axis, stack = actions.ndim == 3, factor.ndim == 3

    def impl(
        actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
        trusted: Any = False,
    ) -> Any:  # fmt: skip
        """Return the scores (n, K) of n sets of K actions, or of one set under n models.

        With several sets, a stack of factors (``stack``) has one model for each set.
        """
        x, w, estimate = x_of(actions), w_of(factor), theta_of(theta)
        models = _check_scores(x, w, estimate, radius, second_radius)
        K, d = x.shape[-2], x.shape[-1]
        sets = x.size // (K * d)
        if sets_axis and stack and sets != models:
            raise InputError(
                "a stack of factors must hold one for each set of actions; "
                "a single factor serves all sets"
            )
        scores = np.empty((max(sets, models), K))
        _raise_for_status(
            run(
                x.ctypes, sets, K, d, w.ctypes, estimate.ctypes, models, radius, second_radius,
                scores.ctypes, trusted,
            )
        )  # fmt: skip
        return scores

    if sets_axis or stack:
        return impl

    def impl_single(
        actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
        trusted: Any = False,
    ) -> Any:  # fmt: skip
        """Return the scores (K,) of the K actions of one set, under one model."""
        x, w, estimate = x_of(actions), w_of(factor), theta_of(theta)
        _check_scores(x, w, estimate, radius, second_radius)
        K, d = x.shape
        scores = np.empty(K)
        _raise_for_status(
            run(
                x.ctypes, 1, K, d, w.ctypes, estimate.ctypes, 1, radius, second_radius,
                scores.ctypes, trusted,
            )
        )  # fmt: skip
        return scores

    return impl_single


def _ucb_argmax(
    actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
    trusted: Any = False,
) -> Any:  # fmt: skip
    """Return the numba version of `ucb_argmax` for these types."""
    x_of, w_of, theta_of, run = _score_parts("ucb_argmax", actions, factor, theta)
    sets_axis, stack = actions.ndim == 3, factor.ndim == 3
    if stack and not sets_axis:
        raise TypingError(f"factor must have two axes for one set of actions, got {factor}")

    def impl(
        actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
        trusted: Any = False,
    ) -> Any:  # fmt: skip
        """Return the index (n,) of the action with the largest score in each of n sets.

        All sets share one model, or a stack of factors (``stack``) has one model for each set.
        """
        x, w, estimate = x_of(actions), w_of(factor), theta_of(theta)
        models = _check_scores(x, w, estimate, radius, second_radius)
        K, d = x.shape[-2], x.shape[-1]
        sets = x.size // (K * d)
        if stack and sets != models:
            raise InputError(
                "a stack of factors must hold one for each set of actions; "
                "a single factor serves all sets"
            )
        index = np.empty(sets, np.int64)
        _raise_for_status(
            run(
                x.ctypes, sets, K, d, w.ctypes, estimate.ctypes, models, radius, second_radius,
                index.ctypes, trusted,
            )
        )  # fmt: skip
        return index

    if sets_axis:
        return impl

    def impl_single(
        actions: Any, factor: Any, theta: Any, radius: Any, second_radius: Any = 0.0,
        trusted: Any = False,
    ) -> Any:  # fmt: skip
        """Return the index of the action with the largest score in one set, under one model."""
        x, w, estimate = x_of(actions), w_of(factor), theta_of(theta)
        _check_scores(x, w, estimate, radius, second_radius)
        K, d = x.shape
        index = np.empty(1, np.int64)
        _raise_for_status(
            run(
                x.ctypes, 1, K, d, w.ctypes, estimate.ctypes, 1, radius, second_radius,
                index.ctypes, trusted,
            )
        )  # fmt: skip
        return index[0]

    return impl_single


# ---- noise ---------------------------------------------------------------------------------------


def _normals(
    seed: Any, count: Any, purpose: Any = 0, replicate: Any = 0, silo: Any = 0, index: Any = 0,
    dtype: Any = "float64",
) -> Any:  # fmt: skip
    """Return the numba version of `normals` for these types."""
    kind = getattr(dtype, "literal_value", getattr(dtype, "value", dtype))
    if kind != "float64":
        raise TypingError("normals inside numba.njit draws float64: leave dtype out")
    for name, value in (
        ("seed", seed), ("count", count), ("purpose", purpose), ("replicate", replicate),
        ("silo", silo), ("index", index),
    ):  # fmt: skip
        # A default value is a plain number here, or an object with the number as its value.
        if not isinstance(getattr(value, "value", value), (int, types.Integer)):
            raise TypingError(f"{name} must be an integer, got {value}")
    run = _C["normals"]

    def impl(
        seed: Any, count: Any, purpose: Any = 0, replicate: Any = 0, silo: Any = 0, index: Any = 0,
        dtype: Any = "float64",
    ) -> Any:  # fmt: skip
        """Run the compiled `normals` on checked arguments."""
        if count < 0 or min(purpose, replicate, silo, index) < 0:
            raise InputError("count and the parts of a key must be >= 0")
        if np.uint64(seed) > np.uint64(9223372036854775807):
            raise InputError("seed must lie in [0, 2^63)")
        if max(count, purpose, replicate, silo, index) > 4294967295:
            raise InputError("count and the parts of a key must be below 2^32")
        values = np.empty(count)
        if run(seed, purpose, replicate, silo, index, count, values.ctypes):
            raise MemoryError("no memory for the draws")
        return values

    return impl


_registered = False


def register() -> None:
    """Make the kernels known to numba. A second call does nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    overload(kernels.rank_one_update)(_rank_one_update)
    overload(kernels.sherman_morrison)(_sherman_morrison)
    overload(kernels.factor_update)(_factor_update)
    overload(kernels.inverse_factor)(_inverse_factor)
    overload(kernels.solve)(_solve)
    overload(kernels.ucb_scores)(_ucb_scores)
    overload(kernels.ucb_argmax)(_ucb_argmax)
    overload(kernels.normals)(_normals)
