"""Upper confidence bounds of actions, and the action with the largest one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fastfed._kernels import checked, linalg
from fastfed._validate import InputError, array, axes, number
from fastfed.kernels._arguments import (
    action_sets,
    check_finite,
    square,
    triangular,
)


def ucb_scores(
    actions: ArrayLike,
    factor: ArrayLike,
    theta: ArrayLike,
    radius: float,
    *,
    second_radius: float = 0.0,
    trusted: bool = False,
) -> np.ndarray:
    """Compute UCB scores <x, theta> + radius ||x||_{V^-1} + second_radius ||V^{-1} x||.

    An action's score has the same bits for all K, n, m and strides.

    Parameters
    ----------
    actions : array_like, shape (K, d) or (n, K, d)
        Features of a set of actions, or of n sets; float32 and float64 arrays are not copied.
    factor : array_like, shape (d, d) or (m, d, d)
        The inverse factor W of V, as returned by inverse_factor (V^-1 = W'W), or a stack of the
        factors of m models.
    theta : array_like, shape (d,) or (m, d)
        Estimate of each model.
    radius, second_radius : float
        Radii of the two bonuses, >= 0.
    trusted : bool
        Skip the check of values; see the docstring of ``fastfed.kernels``.

    Returns
    -------
    ndarray, shape (K,), (m, K) or (n, K)
        Scores of all actions: for one set; for one set under each of m models; or for n sets,
        under one model or each under its own model (m = n).

    Raises
    ------
    InputError
        For shapes that do not agree, values that are not finite, a factor that is not lower
        triangular with a positive diagonal, no actions, a negative radius, or scores that
        overflow.

    Notes
    -----
    Source: Abbasi-Yadkori et al. 2011, Section 3, which has no second bonus (second_radius = 0).
    """
    compiled: np.ndarray | None = checked.scores(
        actions, factor, theta, radius, second_radius, trusted
    )
    if compiled is not None:
        return compiled
    sets, w, estimate, *radii = _checked_arguments(
        actions, factor, theta, radius, second_radius, trusted
    )
    result: np.ndarray
    if sets.ndim == w.ndim == 2:
        result = linalg.scores(sets, w, estimate, *radii)
    else:
        result = np.array(
            [linalg.scores(*job, *radii) for job in _sets_and_models(sets, w, estimate)]
        )
    if not trusted:
        check_finite("actions", result)
    return result


def ucb_argmax(
    actions: ArrayLike,
    factor: ArrayLike,
    theta: ArrayLike,
    radius: float,
    *,
    second_radius: float = 0.0,
    trusted: bool = False,
) -> int | np.ndarray:
    """Return the index of the largest of ucb_scores; ties go to the lowest index.

    Screening by float32 scores with a proven error bound discards most actions. The result is that
    of the float64 scores.

    Parameters
    ----------
    actions, factor, theta, radius, second_radius, trusted
        See ``ucb_scores``. One set of actions takes one model only.

    Returns
    -------
    int, or ndarray of int64, shape (n,)
        The index, or the index for each of n sets.

    Raises
    ------
    InputError
        As ``ucb_scores``.
    """
    compiled = checked.argmax(actions, factor, theta, radius, second_radius, trusted)
    if compiled is not None:
        return compiled
    sets, w, estimate, *radii = _checked_arguments(
        actions, factor, theta, radius, second_radius, trusted, shared=False
    )
    # An action whose score overflows would be chosen, whatever the scores of the others.
    for job in _sets_and_models(sets, w, estimate) if sets.ndim == 3 else [(sets, w, estimate)]:
        check_finite("actions", linalg.scores(*job, *radii))
    if sets.ndim == 2:
        return int(linalg.select(sets, w, estimate, *radii)[0])
    indices = [linalg.select(*job, *radii)[0] for job in _sets_and_models(sets, w, estimate)]
    return np.array(indices, dtype=np.int64)


def _sets_and_models(
    sets: np.ndarray, w: np.ndarray, theta: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (actions (K, d), factor (d, d), theta (d,)) for each row of the result.

    If there are several sets and several models, row i uses set i and model i. A single set or
    model is used for all rows.
    """
    n = len(sets) if sets.ndim == 3 else len(w)
    return [
        (
            sets[i] if sets.ndim == 3 else sets,
            w[i] if w.ndim == 3 else w,
            theta[i] if w.ndim == 3 else theta,
        )
        for i in range(n)
    ]


def _checked_arguments(
    actions: ArrayLike,
    factor: ArrayLike,
    theta: ArrayLike,
    radius: object,
    second_radius: object,
    trusted: bool,
    shared: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    """Return the arguments of `ucb_scores`, checked and converted to arrays and floats.

    The result is (actions, factor, theta, radius, second_radius). With ``shared``, one set of
    actions may be scored under several models.
    """
    if not isinstance(factor, np.ndarray):
        factor = array("factor", factor, finite=False)
    is_stack = factor.ndim == 3 and (shared or axes("actions", actions) == 3)
    if factor.ndim == 3 and not is_stack:
        raise InputError(
            f"actions must hold a set for each of {len(factor)} models, ({len(factor)}, K, d), got "
            f"shape {np.shape(actions)}: ucb_scores takes one set under several models"
        )
    # The shape of the stack of models: (m,), or () for one model.
    stack_shape = factor.shape[:-2] if is_stack else ()
    w = array("factor", factor, shape=(*stack_shape, None, None), finite=not trusted)
    if 0 in stack_shape:
        raise InputError(f"factor must hold at least one model, got shape {w.shape}")
    d = square("factor", w[0] if stack_shape else w)
    if not trusted:
        triangular(w)
    sets = action_sets(actions, d)
    if stack_shape and sets.ndim == 3 and len(sets) != stack_shape[0]:
        raise InputError(
            f"actions of {stack_shape[0]} models must be one set, (K, d), or {stack_shape[0]} "
            f"sets, got shape {sets.shape}"
        )
    return (
        sets,
        w,
        array("theta", theta, shape=(*stack_shape, d), finite=not trusted),
        number("radius", radius, at_least=0),
        number("second_radius", second_radius, at_least=0),
    )
