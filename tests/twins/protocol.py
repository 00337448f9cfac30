"""Protocol arithmetic: p-sums, noisy nodes, prefixes, V from what was released."""

from __future__ import annotations

import numpy as np

from twins.linalg import dot, factor, solve
from twins.random import Array, log, normals_f64


def node_level(k: int) -> int:
    """Return the index of the lowest set bit of k >= 1."""
    return (k & -k).bit_length() - 1


def psum(sums: Array, leaf: Array, level: int) -> None:
    """Set sums[level] to sums[0] + ... + sums[level - 1] + leaf, in place."""
    total = np.zeros_like(leaf)
    for lower in sums[:level]:
        total = total + lower
    sums[level] = total + leaf


def prefix(nodes: Array, k: int) -> Array:
    """Return the sum of nodes[j] over the set bits j of k, lowest first."""
    total = np.zeros(nodes.shape[1])
    for j in range(k.bit_length()):
        if k >> j & 1:
            total += nodes[j]
    return total


def add(into: Array, other: Array) -> None:
    """Add other to into, in place."""
    into += other


def scale(statistic: Array, factor: float) -> Array:
    """Return factor times statistic."""
    return factor * statistic


def add_noise(
    statistic: Array, normals: Array, d: int, bias: float, off_diagonal: float, diagonal: float
) -> Array:
    """Return statistic + noise of these standard deviations, entry by entry."""
    rows, columns = np.tril_indices(d)
    std = np.where(rows == columns, diagonal, off_diagonal)
    return statistic + np.concatenate([np.full(d, bias), std]) * normals


def round_noisy(
    values: Array, noise: Array, std: Array, grid: Array, error: float
) -> tuple[Array, list[int]]:
    """Return values + std noise on the grid, and the entries whose rounding is not certain."""
    steps, ratio = values / grid, std / grid
    whole_steps = np.floor(steps)
    noisy_fraction = (steps - whole_steps) + ratio * noise
    nearest = np.rint(noisy_fraction)
    unsure = ratio * error + (np.abs(noisy_fraction) + 1.0) * 2.0**-51
    doubtful = ~(np.abs(noisy_fraction - nearest) + unsure < 0.5)
    return (whole_steps + nearest) * grid, np.flatnonzero(doubtful).tolist()


def node_normals(seed: int, replicate: int, silo: int, node: int, d: int) -> Array:
    """Return the d + d (d + 1) / 2 standard normals of one node (purposes 3 and 4)."""
    return np.concatenate(
        [
            normals_f64(seed, 3, replicate, silo, node, d),
            normals_f64(seed, 4, replicate, silo, node, d * (d + 1) // 2),
        ]
    )


def sum_normals(seed: int, replicate: int, silos: int, node: int, d: int) -> Array:
    """Return normals for a sum over silos, ordered as in `node_normals` (purposes 22 and 23)."""
    return np.concatenate(
        [
            normals_f64(seed, 22, replicate, silos, node, d),
            normals_f64(seed, 23, replicate, silos, node, d * (d + 1) // 2),
        ]
    )


def refresh(statistic: Array, regularizer: float, w: Array, theta: Array) -> float:
    """Compute W and theta of V = lambda I + covariance in place.

    Returns the multiple of I that was added to make V positive definite, or -1 if none of 200
    was enough.
    """
    d = len(theta)
    diagonal = np.cumsum(np.arange(1, d + 1)) - 1
    shift = 0.0
    for _ in range(200):
        v = statistic[d:].copy()
        v[diagonal] += regularizer + shift
        new_factor = factor(v, d)
        if new_factor is not None:
            w[...] = new_factor
            theta[...] = solve(w, statistic[:d])
            return shift
        shift = 2.0 * shift if shift > 0.0 else regularizer if regularizer > 0.0 else 1.0
    return -1.0


def radius_at(
    multiplier: float, scale: float, base: float, offset: float, lam: float, count: float, d: int
) -> float:
    """Return multiplier (offset + scale sqrt(base + d ln(1 + count / (d lambda))))."""
    grown = 1.0 + count / (d * lam)
    return multiplier * (offset + scale * float(np.sqrt(base + d * log(grown))))


def choose_regularizer(statistic: Array, full: float, floor: float, d: int) -> float:
    """Return the least full j / 8 with which every eigenvalue of V exceeds floor, or full."""
    diagonal = np.cumsum(np.arange(1, d + 1)) - 1
    low, high = -1, 8
    while floor > 0.0 and high - low > 1:
        middle = (low + high) // 2
        v = statistic[d:].copy()
        v[diagonal] += full * middle / 8.0 - floor
        low, high = (middle, high) if factor(v, d) is None else (low, middle)
    return full * high / 8.0


def inverse_norm(w: Array) -> float:
    """Return tr((W'W)^8)^(1/8), at least the largest eigenvalue of W'W."""
    d = len(w)
    a = np.zeros((d, d))
    for k in range(d):
        a[: k + 1, : k + 1] += np.outer(w[k, : k + 1], w[k, : k + 1])
    scale = 0.0
    for i in range(d):
        scale += a[i, i]
    a = a * (1.0 / scale)
    for _ in range(2):
        b = np.zeros((d, d))
        for k in range(d):
            b += np.outer(a[:, k], a[k])
        a = b
    # The trace of A^8 is the sum of the squared entries of A^4.
    square = 0.0
    for row in a:
        square += dot(row, row)
    return scale * float(np.sqrt(np.sqrt(np.sqrt(square)))) * (1.0 + 1e-9)


def row_width(
    multiplier: float,
    scale: float,
    base: float,
    anchor: float,
    gamma: float,
    rows: float,
    d: int,
) -> float:
    """Return multiplier scale sqrt(base + d ln(1 + rows / (d anchor))) + gamma / sqrt(anchor)."""
    grown = d * log(1.0 + rows / (d * anchor))
    return multiplier * scale * float(np.sqrt(base + grown)) + gamma / float(np.sqrt(anchor))


def slack(width: float, beta: float, gamma: float, inflation: float, inverse: float) -> float:
    """Return max(1, (1 - 1e-9) width / (sqrt(inflation) (beta + gamma sqrt(inverse))))."""
    own_width = float(np.sqrt(inflation)) * (beta + gamma * float(np.sqrt(inverse)))
    return max(1.0, width / own_width * (1.0 - 1e-9))


def determinant_radius(
    multiplier: float,
    scale: float,
    base: float,
    offset: float,
    anchor: float,
    inflation: float,
    log_det: float,
    d: int,
) -> float:
    """Return multiplier (offset + scale sqrt(f (base + max(0, ln det V + d ln(f / anchor))))).

    f is `inflation`, and `log_det` is ln det V.
    """
    grown = max(log_det + d * log(inflation / anchor), 0.0)
    return multiplier * (offset + scale * float(np.sqrt(inflation * (base + grown))))


def honaker(estimate: Array, node: Array, sibling: Array, level: int) -> None:
    """Update in place the estimate of a node from its noise and its children's estimates."""
    v = 1.0 / (2.0 - 0.5**level)
    estimate[...] = v * node + (1.0 - v) * (sibling + estimate)


def honaker_number(k: int) -> int:
    """Return the key of the first node that Honaker's tree releases at k."""
    return 2 * (k - 1) - (k - 1).bit_count() + 1


def weighted_sum(rows: Array, weights: Array) -> Array:
    """Return the sum of weights[i] rows[i], added in the order of i."""
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights, rows, strict=False):
        total += weight * row
    return total


def toeplitz(history: Array, f: Array, k: int) -> Array:
    """Return noise of prefix k: sum of f[k - j] times row j."""
    total = np.zeros(history.shape[1])
    for i in range(k):
        total += f[k - 1 - i] * history[i]
    return total


def tree(seed, releases, d, std, off_diagonal, diagonal, prefixes, replicate, silo):
    """Return noise (n, d) and (n, d, d) of the node that each release closes, or with ``prefixes``
    of the prefix sum at each release."""

    def node(number):
        """Return the noise of a node."""
        draws = node_normals(seed, replicate, silo, number, d)
        return add_noise(np.zeros_like(draws), draws, d, std, off_diagonal, diagonal)

    biases, covariances = [], []
    for k in map(int, releases):
        values = node(k)
        if prefixes:
            nodes, prefix_end = np.zeros((k.bit_length(), len(values))), k
            while prefix_end:
                # Release `prefix_end` closes the node of its lowest set bit.
                nodes[node_level(prefix_end)] = node(prefix_end)
                prefix_end &= prefix_end - 1
            values = prefix(nodes, k)
        lower = np.zeros((d, d))
        lower[np.tril_indices(d)] = values[d:]
        biases.append(values[:d])
        covariances.append(lower + np.tril(lower, -1).T)
    return np.array(biases).reshape(-1, d), np.array(covariances).reshape(-1, d, d)
