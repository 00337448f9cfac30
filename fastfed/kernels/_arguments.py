"""Checks of arguments that need conversion: they are converted, or InputError names the
argument."""

from __future__ import annotations

import numpy as np

from fastfed._validate import InputError, array, axes, reward_number, show, unmasked

#: Numbers below this have products so small that adding them to a finite sum never overflows.
_MAX_MODERATE = 2.0**480


def target(
    name: str, value: object, shape: tuple[int | None, ...], finite: bool = True
) -> np.ndarray:
    """Return the argument ``value``, an array that the caller updates in place.

    It is never converted. Raises InputError if it is unsuitable.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(
            f"{name} must be a float64 array, because it is updated in place, got {kind}"
        )
    target_array: np.ndarray = unmasked(name, value)
    if not (
        target_array.flags.c_contiguous
        and target_array.flags.aligned
        and target_array.flags.writeable
    ):
        raise InputError(
            f"{name} must be writable and C-contiguous, at an aligned address, because it is "
            f"updated in place, got writeable {target_array.flags.writeable}, strides "
            f"{target_array.strides} for shape {target_array.shape}, aligned "
            f"{target_array.flags.aligned}"
        )
    return array(name, target_array, shape=shape, finite=finite)


def rows(x: object, d: int, *targets: np.ndarray) -> np.ndarray:
    """Return finite rows (n, d) from x (d,) or (n, d).

    They are copied if they share memory with one of ``targets``, which are updated in place.
    """
    is_stack = axes("x", x) == 2
    checked = array("x", x, shape=(None, d) if is_stack else (d,))
    return unshared(checked.reshape(-1, d), *targets)


def rewards(y: object, x: object, n: int, *targets: np.ndarray) -> np.ndarray:
    """Return the finite rewards (n,) of n rows x, or of the single row x (d,).

    They are copied if they share memory with one of ``targets``, which are updated in place.
    """
    if axes("x", x) == 2:
        return unshared(array("y", y, shape=(n,)), *targets)
    return np.array([reward_number("y", y)])


def unshared(value: np.ndarray, *targets: np.ndarray) -> np.ndarray:
    """Return the array, copied if it shares memory with a target of an update."""
    return value.copy() if any(np.may_share_memory(value, t) for t in targets) else value


def square(name: str, value: np.ndarray) -> int:
    """Return d of a matrix (d, d); raise InputError if it is not square."""
    if value.shape[0] != value.shape[1] or not value.shape[0]:
        raise InputError(f"{name} must have shape (d, d) with d >= 1, got {value.shape}")
    return value.shape[0]


def symmetric(name: str, value: np.ndarray) -> None:
    """Raise InputError unless a matrix is symmetric to a relative 1e-8."""
    # The result of a general inversion is symmetric only up to rounding.
    difference = np.abs(value - value.T)
    if difference.max() > 1e-8 * np.abs(value).max():
        i, j = (int(k) for k in np.unravel_index(difference.argmax(), difference.shape))
        raise InputError(
            f"{name} must be symmetric, got {value[i, j]} at ({i}, {j}) "
            f"and {value[j, i]} at ({j}, {i})"
        )


def triangular(w: np.ndarray) -> None:
    """Raise InputError unless w, (d, d) or a stack (m, d, d), holds inverse factors."""
    i = np.arange(w.shape[-1])
    if (w * (i[:, None] < i)).any() or not w.diagonal(axis1=-2, axis2=-1).min() > 0.0:
        raise InputError(
            "factor must be lower triangular with a positive diagonal, as inverse_factor(V) gives, "
            f"got {show(w.tolist())}"
        )


def action_sets(value: object, dimension: int) -> np.ndarray:
    """Return finite actions as an array (K, d) or (n, K, d), with n >= 1 and K >= 1.

    Aligned float32 and float64 arrays are not copied.
    """
    value = unmasked("actions", value)
    keeps_dtype = (
        isinstance(value, np.ndarray)
        and value.dtype in (np.float32, np.float64)
        and value.flags.aligned
    )
    if keeps_dtype:
        actions = np.asarray(value)
        fits = actions.ndim in (2, 3) and actions.shape[-1] == dimension and 0 not in actions.shape
        if fits and np.isfinite(actions).all():
            return actions
    kind = value.dtype if keeps_dtype else np.float64  # type: ignore[attr-defined]
    is_stack = axes("actions", value) == 3
    shape = (None, None, dimension) if is_stack else (None, dimension)
    checked = array("actions", value, shape=shape, dtype=kind)
    if 0 in checked.shape:
        missing = "set" if not len(checked) and checked.ndim == 3 else "action"
        raise InputError(f"actions must hold at least one {missing}, got shape {checked.shape}")
    return checked


def is_moderate(values: np.ndarray) -> bool:
    """Return True if no product of two of these numbers can overflow float64."""
    return bool(np.abs(values).max(initial=0.0) < _MAX_MODERATE)


def check_finite(name: str, values: np.ndarray, problem: str = "their scores overflow") -> None:
    """Raise InputError if values that were computed from finite arguments are not finite.

    ``name`` is the argument to blame, and ``problem`` says what overflows.
    """
    if not np.isfinite(values).all():
        raise InputError(f"{name} must be smaller: {problem} a float64; scale all numbers down")
