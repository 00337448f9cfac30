"""Secure sums in plain Python integers, the optimal factor of prefix sums, and exact binomials.

The mechanism: silos i = 0..M-1 have integer leaf vectors gamma_ij. The sum of release k is sum_i
(sum_{j <= k} C_kj gamma_ij + z_ik) with z_ik = Bin(n, 1/2) - n/2. Nothing here is modular, masked
or rounded.

The factor is a lower triangular C with columns of length at most 1 and B C = A (ones on and below
the diagonal). Of all these it has the smallest sum_k weights_k |row k of B|^2. With X = C'C the
problem is min tr(W X^-1) over X with diag X <= 1, W = A' diag(weights) A. The minimiser is X =
v^-1/2 (v^1/2 W v^1/2)^1/2 v^-1/2 for multipliers v (a diagonal matrix). The iteration v <- v
diag(X) finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def growing(releases: int, horizon: int, first: int = 1) -> list[int]:
    """Return times 1 <= t_1 < ... < t_K = horizon, geometric as far as integers allow it."""
    low, high = 1.0, float(horizon)
    while high - low > 1e-12:
        ratio = (low + high) / 2.0
        times = [first]
        while times[-1] < horizon:
            times.append(max(times[-1] + 1, math.ceil(times[-1] * ratio)))
        if len(times) > releases:
            low = ratio
        else:
            high = ratio
    times = [first]
    while times[-1] < horizon:
        times.append(max(times[-1] + 1, math.ceil(times[-1] * high)))
    while len(times) < releases:
        gap = max(range(1, len(times)), key=lambda k: times[k] - times[k - 1])
        times.insert(gap, (times[gap] + times[gap - 1]) // 2)
    return [*times[:-1], horizon]


def optimal_factor(times: Sequence[int], steps: int = 2000) -> np.ndarray:
    """Return C (K, K) for prefixes at these times, weighted by the number of their rounds over
    n^2."""
    n = np.array(times, dtype=np.float64)
    serves = np.diff(np.append(n, 2.0 * n[-1] - n[-2] if len(n) > 1 else 2.0 * n[-1]))
    size = len(n)
    lower_ones = np.tri(size)
    w = lower_ones.T @ np.diag(serves / n**2) @ lower_ones
    v = np.full(size, w.trace())
    for _ in range(steps):
        x = _multiplied(w, v)
        v = v * np.diag(x)
    # X = C'C with C lower triangular: Cholesky from the last row up.
    x = _multiplied(w, v)
    lower = np.linalg.cholesky(x[::-1, ::-1])
    c = lower.T[::-1, ::-1]
    return np.tril(c / np.sqrt((c**2).sum(axis=0).max()))


def _multiplied(w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return X = v^-1/2 (v^1/2 W v^1/2)^1/2 v^-1/2 for multipliers v (K,)."""
    root = np.sqrt(v)
    values, vectors = np.linalg.eigh(root[:, None] * w * root)
    middle = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return middle / root[:, None] / root


def secure_sums(
    factor: Sequence[Sequence[int]],
    leaves: Sequence[Sequence[Sequence[int]]],
    shares: Sequence[Sequence[Sequence[int]]],
) -> list[list[int]]:
    """Return the sums of all releases, integers [K][s], of leaves and shares [M][K][s]."""
    size = len(leaves[0][0])
    collected = []
    for k, row in enumerate(factor):
        entries = [0] * size
        for silo_leaves, silo_shares in zip(leaves, shares, strict=True):
            for e in range(size):
                entries[e] += sum(c * silo_leaves[j][e] for j, c in enumerate(row[: k + 1]))
                entries[e] += silo_shares[k][e]
        collected.append(entries)
    return collected


def exact_inverse(factor: Sequence[Sequence[int]]) -> list[list[Fraction]]:
    """Return B with B C = A, in fractions, by rows."""
    size = len(factor)
    b = [[Fraction(0)] * size for _ in range(size)]
    for k in range(size):
        for j in range(k, -1, -1):
            numerator = 1 - sum((b[k][i] * factor[i][j] for i in range(j + 1, k + 1)), Fraction(0))
            b[k][j] = numerator / factor[j][j]
    return b


# ---- binomials of fair coins ---------------------------------------------------------------------


def masses(n: int) -> list[Fraction]:
    """Return P(Bin(n, 1/2) = k), k = 0..n."""
    return [Fraction(math.comb(n, k), 1 << n) for k in range(n + 1)]


def shifted_delta(n: int, shift: int, epsilon: float) -> float:
    """Return the hockey-stick divergence of Bin(n, 1/2) and Bin(n, 1/2) + shift, in fractions;
    symmetric."""
    p, factor, total = masses(n), Fraction(math.exp(epsilon)), Fraction(0)
    for k in range(n + 1 + shift):
        here = p[k] if k <= n else Fraction(0)
        there = p[k - shift] if k >= shift else Fraction(0)
        total += max(here - factor * there, Fraction(0))
    return float(total)


def losses(n: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return masses of Bin(n, 1/2) and privacy losses against itself plus a shift, by
    log-gammas."""
    from scipy.special import gammaln

    k = np.arange(n + 1)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) - n * math.log(2.0)
    other = np.full(n + 1, -np.inf)
    other[shift:] = logs[: n + 1 - shift]
    return np.exp(logs), logs - other


def composed_delta(parts: Sequence[tuple[int, int]], epsilon: float, width: float) -> float:
    """Return the hockey-stick divergence of independent coordinates (n, shift), from below.

    Losses are rounded down to multiples of `width` and convolved; infinite ones count fully.
    """
    grid, start, revealed = np.ones(1), 0, 1.0
    for n, shift in parts:
        mass, loss = losses(n, shift)
        finite = np.isfinite(loss) & (mass > 1e-18)
        revealed *= 1.0 - float(mass[np.isinf(loss)].sum())
        cells = np.floor(loss[finite] / width).astype(np.int64)
        part = np.bincount(cells - cells.min(), mass[finite])
        grid, start = np.convolve(grid, part), start + int(cells.min())
    loss = width * (start + np.arange(len(grid)))
    is_above = loss > epsilon
    return 1.0 - revealed + float((grid[is_above] * -np.expm1(epsilon - loss[is_above])).sum())


# ---- records -------------------------------------------------------------------------------------


def statistic(x: np.ndarray, y: float, unit: float) -> np.ndarray:
    """Return x y and the lower triangle of x x', rounded to integers in a unit, (s,)."""
    entries = [float(v) * y for v in x]
    entries += [float(x[i] * x[j]) for i in range(len(x)) for j in range(i + 1)]
    return np.array([round(v / unit) for v in entries], dtype=np.int64)


def gaussian_mu(
    factor: Sequence[Sequence[int]], change: np.ndarray, stds: np.ndarray, leaf: int
) -> float:
    """Return mu of Gaussian noise of these stds (s,) for one leaf's change (s,), all in
    integers."""
    column = math.sqrt(sum(row[leaf] ** 2 for row in factor[leaf:]))
    return column * float(np.sqrt(((change / stds) ** 2).sum()))
