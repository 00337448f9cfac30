"""Oracle for factorised prefix sums A = B C (A: lower triangle of ones), by definition."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

Rows = list[list[Fraction]]


def encoder(matrix: ArrayLike) -> Rows:
    """Return C with B C = A, by forward substitution: exact, as every entry of B is a binary
    fraction."""
    b = [[Fraction(float(v)) for v in row] for row in np.asarray(matrix, dtype=float)]
    c: Rows = []
    for i, row in enumerate(b):
        numerators = [
            Fraction(int(j <= i)) - sum((row[m] * c[m][j] for m in range(i)), Fraction(0))
            for j in range(len(b))
        ]
        c.append([v / row[i] for v in numerators])
    return c


def squared_sensitivity(matrix: ArrayLike, returning: int) -> float:
    """Return the largest change of C gamma by a user of this many leaves, over all sets of leaves
    and signs.

    A record changes its leaf by a number in [-1, 1]. The square is convex, so -1 and 1 suffice. For
    vector records, inner products in [-1, 1] take the place of products of signs.
    """
    c = encoder(matrix)
    size = len(c)
    worst = Fraction(0)
    for leaves in combinations(range(size), min(returning, size)):
        for signs in product((1, -1), repeat=len(leaves) - 1):
            change = [
                sum((s * row[j] for s, j in zip((1, *signs), leaves, strict=True)), Fraction(0))
                for row in c
            ]
            worst = max(worst, sum((m * m for m in change), Fraction(0)))
    return float(worst)


def released_squares(matrix: ArrayLike, leaves: tuple[int, ...]) -> float:
    """Return the squared GDP ratio of noisy prefixes A gamma + B z for a record of 1 in each of
    these leaves.

    It uses only the released numbers: a' (B B')^-1 a with a the change of the prefixes.
    """
    b = np.asarray(matrix, dtype=float)
    change = np.tri(len(b))[:, list(leaves)].sum(axis=1)
    return float(change @ np.linalg.solve(b @ b.T, change))


def cost(matrix: ArrayLike, weights: ArrayLike) -> float:
    """Return the variance sum_k weight_k ||B_k||^2, per squared sensitivity to one leaf."""
    rows = (np.asarray(matrix, dtype=float) ** 2).sum(axis=1)
    return float(np.asarray(weights) @ rows) * squared_sensitivity(matrix, 1)


def least_cost(weights: ArrayLike, starts: int, seed: int) -> float:
    """Return the smallest cost over all lower triangular C, by a search from several starts."""
    w = np.asarray(weights, dtype=float)
    k = len(w)
    where, rng = np.tril_indices(k), np.random.default_rng(seed)

    def value(entries: np.ndarray) -> float:
        """Return the weighted error of the factor with these free entries."""
        c = np.zeros((k, k))
        c[where] = entries
        np.fill_diagonal(c, np.exp(np.diag(c)))
        c /= np.sqrt((c**2).sum(axis=0))  # now every leaf has sensitivity 1
        b = np.linalg.solve(c.T, np.tri(k).T).T
        return float(w @ (b**2).sum(axis=1))

    costs = [
        minimize(value, rng.normal(size=len(where[0])), method="BFGS", options={"gtol": 1e-9}).fun
        for _ in range(starts)
    ]
    return min(costs)


def dual_bound(weights: ArrayLike, multipliers: ArrayLike) -> float:
    """Return a lower bound on the cost of every factorisation, from any multipliers v > 0.

    It is 2 tr((v^1/2 W v^1/2)^1/2) - sum v, W = A' diag(weights) A, by singular values.
    """
    v, w = np.asarray(multipliers, dtype=float), np.asarray(weights, dtype=float)
    root = np.sqrt(v)[:, None] * np.tri(len(w)).T * np.sqrt(w)
    return float(2.0 * np.linalg.svd(root, compute_uv=False).sum() - v.sum())
