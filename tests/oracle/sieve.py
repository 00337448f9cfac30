"""The sieve of docs/radius.md in plain NumPy, from its proof alone; imports nothing of ours.

After a release V = lambda I + G + N, theta_hat = V^-1 b, A = G + c I,
w(x) = beta ||x||_{V^-1} + gamma ||V^-1 x|| and U(x) = <x, theta_hat> + w(x).
"""

from __future__ import annotations

import math

import numpy as np

#: q is raised and s is lowered by this relative amount. s never falls below 1.
ROUNDING = 1e-9


def largest_inverse_eigenvalue(v: np.ndarray) -> float:
    """Return q = tr(V^-8)^(1/8), between the largest eigenvalue of V^-1 and d^(1/8) times it."""
    inverse = 1.0 / np.linalg.eigvalsh(v)
    largest = float(inverse.max())
    return largest * float(((inverse / largest) ** 8).sum()) ** 0.125 * (1.0 + ROUNDING)


def slack(
    v: np.ndarray, beta: float, gamma: float, inflation: float, width: float, share: float = 0.0
) -> float:
    """Return s = (1 + share) max(1, C / g) with g = sqrt(f) (beta + gamma sqrt(q)).

    `width` is C and `inflation` is f, with A <= f V.
    """
    q = largest_inverse_eigenvalue(v)
    g = math.sqrt(inflation) * (beta + gamma * math.sqrt(q))
    return (1.0 + share) * max(1.0, width / g * (1.0 - ROUNDING))


def row_width(
    rows: float, d: int, c: float, tau: float, scale: float, base: float, multiplier: float
) -> float:
    """Return C for a silo that learns alone: its bonus is at most C ||x||_{V^-1}.

    V is c I plus `rows` rows. Its determinant is at most (c + rows / d)^d, and
    ||V^-1 x|| <= ||x||_{V^-1} / sqrt(c).
    """
    beta = scale * math.sqrt(base + d * math.log((c + rows / d) / c))
    return multiplier * (beta + tau * c / math.sqrt(c))


def bonuses(x: np.ndarray, v: np.ndarray, beta: float, gamma: float) -> np.ndarray:
    """Return w(x) of each row."""
    solved = np.linalg.solve(v, x.T).T
    first = np.sqrt(np.einsum("ad,ad->a", x, solved))
    width: np.ndarray = beta * first + gamma * np.linalg.norm(solved, axis=1)
    return width


def passes(mean: np.ndarray, bonus: np.ndarray, s: float, limit: float) -> np.ndarray:
    """Return which actions pass: mean + (2 s - 1) bonus >= min(limit, the largest score)."""
    upper = mean + bonus
    passing: np.ndarray = mean + (2.0 * s - 1.0) * bonus >= min(limit, float(upper.max()))
    passing[upper.argmax()] = True
    return passing


def choice(mean: np.ndarray, bonus: np.ndarray, s: float, ranking: float, limit: float) -> int:
    """Return the first action of the largest mean + ranking x bonus among those that pass."""
    passing = passes(mean, bonus, s, limit)
    return int(np.where(passing, mean + ranking * bonus, -np.inf).argmax())
