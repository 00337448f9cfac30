"""Ridge regression: sums, inverses, inverse factors and estimates, row by row."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fastfed._kernels import checked, linalg
from fastfed._validate import InputError, array, axes
from fastfed.kernels._arguments import (
    check_finite,
    is_moderate,
    rewards,
    rows,
    square,
    symmetric,
    target,
    triangular,
)


def rank_one_update(
    gram: np.ndarray, bias: np.ndarray, x: ArrayLike, y: ArrayLike, *, trusted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Add rows to the sufficient statistics of ridge regression, in place.

    gram += x x' and bias += x y, row by row. A symmetric gram stays exactly symmetric.

    Parameters
    ----------
    gram : ndarray, shape (d, d)
        Updated in place.
    bias : ndarray, shape (d,)
        Updated in place.
    x : array_like, shape (d,) or (n, d)
        Features of one row, or of n rows.
    y : array_like, shape (n,), or float
        Reward of each row.
    trusted : bool
        Skip the check of values; see the docstring of ``fastfed.kernels``.

    Returns
    -------
    gram, bias : ndarray
        The arguments.

    Raises
    ------
    InputError
        For a gram or bias that cannot be updated in place, shapes that do not agree, values that
        are not finite and sums that overflow. Both are then unchanged.

    Notes
    -----
    Source: Abbasi-Yadkori et al. 2011, Section 3.
    """
    if checked.rank_one(gram, bias, x, y, trusted):
        return gram, bias
    gram = target("gram", gram, (None, None), finite=not trusted)
    d = square("gram", gram)
    bias = target("bias", bias, (d,), finite=not trusted)
    if np.may_share_memory(gram, bias):
        raise InputError("gram and bias must not share memory")
    features = rows(x, d, gram, bias)
    row_rewards = rewards(y, x, len(features), gram, bias)
    new_gram, new_bias = gram, bias
    may_overflow = not (is_moderate(features) and is_moderate(row_rewards))
    if may_overflow:
        new_gram, new_bias = gram.copy(), bias.copy()
    for row, reward in zip(features, row_rewards, strict=True):
        linalg.rank_one(new_gram, new_bias, row, float(reward))
    if may_overflow:
        if not (np.isfinite(new_gram).all() and np.isfinite(new_bias).all()):
            raise InputError(
                "x and y must be smaller: the sums gram + x x' or bias + x y overflow a float64"
            )
        gram[:], bias[:] = new_gram, new_bias
    return gram, bias


def sherman_morrison(inverse: np.ndarray, x: ArrayLike, *, trusted: bool = False) -> np.ndarray:
    """Update V^{-1} to (V + x x')^{-1} in place, in O(d^2) for each row x.

    Over 10^5 updates of V = lambda I, lambda >= 1e-3, the relative error stays below 1e-12. For a
    smaller lambda, ``factor_update`` keeps more digits: it updates the inverse factor of V instead.

    Parameters
    ----------
    inverse : ndarray, shape (d, d)
        V^{-1}, symmetric and positive definite, updated in place.
    x : array_like, shape (d,) or (n, d)
        Features of one row, or of n rows.
    trusted : bool
        Skip the check of values; see the docstring of ``fastfed.kernels``.

    Returns
    -------
    ndarray
        The argument inverse.

    Raises
    ------
    InputError
        For an inverse that cannot be updated in place, is not symmetric (1e-8, relative) or has
        x' inverse x < 0, and for values that are not finite. The inverse is then unchanged.

    Notes
    -----
    Source: Sherman and Morrison 1950.
    """
    if checked.sherman(inverse, x, trusted):
        return inverse
    inverse = target("inverse", inverse, (None, None), finite=not trusted)
    d = square("inverse", inverse)
    features = rows(x, d, inverse)
    if not trusted:
        symmetric("inverse", inverse)
        with np.errstate(over="ignore", invalid="ignore"):
            quadratic_forms = np.einsum("ni,ij,nj->n", features, inverse, features)
        if not ((quadratic_forms >= 0.0) & (quadratic_forms < np.inf)).all():
            value = quadratic_forms[~((quadratic_forms >= 0.0) & (quadratic_forms < np.inf))][0]
            raise InputError(
                f"inverse must be positive definite and of finite scale, got x' inverse x = {value}"
            )
    for row in features:
        linalg.sherman_morrison(inverse, row)
    return inverse


def inverse_factor(V: ArrayLike, *, trusted: bool = False) -> np.ndarray:
    """Return the inverse W = L^{-1} of the Cholesky factor of V = L L'.

    Neither BLAS nor LAPACK is used, so the bits depend on V only.

    Parameters
    ----------
    V : array_like, shape (d, d) or (m, d, d)
        A symmetric positive definite matrix, or a stack of such; the lower triangle is used.
    trusted : bool
        Do not check that the upper triangle equals the lower one.

    Returns
    -------
    ndarray, shape (d, d) or (m, d, d)
        W, lower triangular.

    Raises
    ------
    InputError
        For a V that is not symmetric (1e-8, relative) or not numerically positive definite.
    """
    compiled: np.ndarray | None = checked.factors(V, trusted)
    if compiled is not None:
        return compiled
    if axes("V", V) == 3:
        stack = array("V", V)
        if stack.shape[1] != stack.shape[2] or not stack.shape[1]:
            raise InputError(f"V must have shape (m, d, d) with d >= 1, got {stack.shape}")
        factors = [inverse_factor(matrix, trusted=trusted) for matrix in stack]
        return np.stack(factors) if factors else np.empty(stack.shape)
    matrix = array("V", V, ndim=2)
    d = square("V", matrix)
    if not trusted:
        symmetric("V", matrix)
    packed = np.ascontiguousarray(matrix[np.tril_indices(d)])
    factor = linalg.factor(packed, d)
    if factor is None:
        raise InputError(
            f"V must be positive definite, got a matrix with smallest eigenvalue "
            f"{np.linalg.eigvalsh(matrix)[0]:g}"
        )
    result: np.ndarray = factor
    return result


def solve(factor: ArrayLike, u: ArrayLike, *, trusted: bool = False) -> np.ndarray:
    """Solve V theta = u with the inverse factor of V, for one u or several.

    Parameters
    ----------
    factor : array_like, shape (d, d)
        The inverse factor W of V, as returned by inverse_factor: V^{-1} = W'W.
    u : array_like, shape (d,) or (n, d)
        Right-hand sides, such as the bias of ridge regression.
    trusted : bool
        Skip the check of values; see the docstring of ``fastfed.kernels``.

    Returns
    -------
    ndarray, shape (d,) or (n, d)
        V^{-1} u of each row.

    Raises
    ------
    InputError
        For shapes that do not agree, values that are not finite, a factor that is not lower
        triangular with a positive diagonal, and a solution that overflows.
    """
    compiled: np.ndarray | None = checked.solves(factor, u, trusted)
    if compiled is not None:
        return compiled
    w = array("factor", factor, shape=(None, None), finite=not trusted)
    d = square("factor", w)
    if not trusted:
        triangular(w)
    if axes("u", u) == 2:
        right = array("u", u, shape=(None, d))
        result = np.array([linalg.solve(w, row) for row in right]).reshape(right.shape)
    else:
        result = linalg.solve(w, array("u", u, shape=(d,)))
    if not trusted:
        check_finite("u", result, "the solution overflows")
    return result


def factor_update(
    factor: np.ndarray, theta: np.ndarray, x: ArrayLike, y: ArrayLike, *, trusted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Add rows (x, y) to a ridge regression, in place, in O(d^2) for each row.

    This is recursive least squares on the inverse factor W of V, where V^{-1} = W'W. Each row adds
    x x' to V, and V stays positive definite.

    Parameters
    ----------
    factor : ndarray, shape (d, d)
        W, as returned by inverse_factor; updated in place.
    theta : ndarray, shape (d,)
        The estimate V^{-1} u, where each row adds x y to the bias u; zeros before the first row.
        Updated in place.
    x : array_like, shape (d,) or (n, d)
        Features of one row, or of n rows.
    y : array_like, shape (n,), or float
        Reward of each row.
    trusted : bool
        Skip the check of values; see the docstring of ``fastfed.kernels``.

    Returns
    -------
    factor, theta : ndarray
        The arguments.

    Raises
    ------
    InputError
        For arrays that cannot be updated in place, shapes that do not agree, values that are not
        finite, a factor that is not lower triangular with a positive diagonal, and an x with
        ||x||_{V^-1} above 1e75. Factor and theta are then unchanged.
    """
    if checked.update(factor, theta, x, y, trusted):
        return factor, theta
    w = target("factor", factor, (None, None), finite=not trusted)
    d = square("factor", w)
    if not trusted:
        triangular(w)
    estimate = target("theta", theta, (d,), finite=not trusted)
    if np.may_share_memory(w, estimate):
        raise InputError("factor and theta must not share memory")
    features = rows(x, d, w, estimate)
    row_rewards = rewards(y, x, len(features), w, estimate)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = ((features @ w.T) ** 2).sum(axis=1)
    if not (squares <= 1e150).all():  # its square enters the update
        bad_square = squares[~(squares <= 1e150)][0]
        raise InputError(
            f"x must have a width ||x||_{{V^-1}} of at most 1e75, got {math.sqrt(bad_square):g}"
        )
    for row, reward in zip(features, row_rewards, strict=True):
        linalg.observe(w, estimate, row, float(reward))
    return w, estimate
