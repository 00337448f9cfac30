"""Factors of V, rank-one steps, and the scores made of them."""

from __future__ import annotations

import numpy as np

from twins.random import Array, _log_f64


def dot(a: Array, b: Array) -> float:
    """Return sum a_i b_i: eight partial sums, added in the order of ff_dot."""
    s = np.zeros(8)
    for first in range(0, len(a), 8):
        terms = a[first : first + 8] * b[first : first + 8]
        s[: len(terms)] += terms
    return float(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))


def _unpacked(packed: Array, d: int) -> Array:
    """Return the lower triangle (d, d) of a symmetric matrix packed row by row."""
    full = np.zeros((d, d))
    full[np.tril_indices(d)] = packed
    return full


def factor(packed: Array, d: int) -> Array | None:
    """Return W = L^{-1} of the packed V = L L', or None when V is not positive definite."""
    v = _unpacked(packed, d)
    try:
        lower = np.linalg.cholesky(v)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(lower).all():
        return None
    w = np.zeros((d, d))
    for i in range(d):
        w[i, i] = 1.0 / lower[i, i]
        w[i, :i] = -(lower[i, :i] @ w[:i, :i]) * w[i, i]
    return w


def solve(w: Array, u: Array) -> Array:
    """Return V^{-1} u = W'(W u)."""
    return w.T @ (w @ u)


def log_det(w: Array) -> float:
    """Return ln det V."""
    return -2.0 * float(np.sum(_log_f64(np.diagonal(w).copy())))


def observe(w: Array, theta: Array | None, x: Array, y: float) -> float:
    """Update the factor for V <- V + x x' in place, and theta by one least-squares step.

    Returns 1 + ||x||^2 in the norm of the old V^{-1}.
    """
    z = w @ x
    direction = w.T @ z
    s = 1.0 + np.cumsum(z * z)  # s_i of ff_linalg.c
    before = np.concatenate([[1.0], s[:-1]])
    # Row i of `partial` is the sum of z_k W_k over the rows k < i.
    partial = np.zeros_like(w)
    partial[1:] = np.cumsum(z[:, None] * w, axis=0)[:-1]
    root = 1.0 / np.sqrt(before * s)
    w[...] = (before * root)[:, None] * w - (z * root)[:, None] * partial
    grown = float(s[-1])
    if theta is not None:
        theta += (y - theta @ x) / grown * direction
    return grown


def accumulate(statistic: Array, x: Array, y: float) -> None:
    """Add (x y, x x') to a statistic (bias, packed covariance), in place."""
    d = len(x)
    statistic[:d] += x * y
    statistic[d:] += np.outer(x, x)[np.tril_indices(d)]


def rank_one(gram: Array, bias: Array, x: Array, y: float) -> None:
    """Add x x' to gram (d, d) and x y to bias, in place."""
    gram += np.outer(x, x)
    bias += x * y


def sherman_morrison(inverse: Array, x: Array) -> None:
    """Update inverse from V^{-1} to (V + x x')^{-1}, in place."""
    g = inverse @ x
    inverse -= np.outer(g, g) * (1.0 / (1.0 + g @ x))


def clip_norm(x: Array, bound: float) -> bool:
    """Scale x to norm <= bound, in place; True when it was above by more than rounding."""
    with np.errstate(over="ignore"):
        square = float(x @ x)
    if square <= bound * bound:
        return False
    largest = 1.0
    if square == np.inf:
        # The sum of squares overflowed: take the norm in units of the largest entry.
        largest = float(np.max(np.abs(x)))
        x /= largest
        square = float(x @ x)
    x *= bound / np.sqrt(square)
    return largest > 1.0 or square > bound * bound * (1.0 + 1e-6)


def least_squares(statistics: Array, d: int) -> Array:
    """Return V^+ u of every row (M, s) as (M, d); 0 where a statistic is not finite."""
    theta = np.zeros((len(statistics), d))
    for row, statistic in zip(theta, statistics, strict=True):
        if np.isfinite(statistic).all():
            v = np.zeros((d, d))
            v[np.tril_indices(d)] = statistic[d:]
            v += np.tril(v, -1).T
            row[:] = np.linalg.pinv(v, rcond=1e-10, hermitian=True) @ statistic[:d]
    return theta


def hadamard(values: Array) -> Array:
    """Return H v of every row v of a (M, 2^k) array, H in Sylvester's order."""
    result = np.array(values, dtype=np.float64, ndmin=2)
    n, h = result.shape[1], 1
    while h < n:
        pairs = result.reshape(len(result), n // (2 * h), 2, h)
        result = np.stack(
            [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2
        )
        result, h = result.reshape(-1, n), 2 * h
    return result


def scores(actions: Array, w: Array, theta: Array, beta: float, gamma: float) -> Array:
    """Return <x, theta> + beta ||x||_{V^-1} + gamma ||V^{-1} x|| of each action, (K,)."""
    x = actions.astype(np.float64)
    z = x @ w.T
    result = x @ theta + beta * np.sqrt(np.sum(z * z, axis=1))
    if gamma != 0.0:
        result += gamma * np.sqrt(np.sum((z @ w) ** 2, axis=1))
    return result


def select(actions: Array, w: Array, theta: Array, beta: float, gamma: float) -> tuple[int, Array]:
    """Return (index, features) of the best action: the lowest index of the largest score."""
    values = scores(actions, w, theta, beta, gamma)
    # A score that is not a number is never the largest.
    a = int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
    return a, actions[a].astype(np.float64)
