"""The shuffle protocol for vector sums, P_Vec and P_1D of Cheu et al. (2021).

It is restated by Zhou and Chowdhury (2024), "On Differentially Private Federated Linear Contextual
Bandits", Appendix F.2, Algorithms 6 and 7. Every bit that a user sends is built, shuffled and
counted; `vector_sum_counts` calculates the same sum without the bits. Comments have the paper's
line numbers, "6.4" for line 4 of Algorithm 6. All random numbers are arguments: rounding uniforms
in [0, 1), numbers of noise ones in 0..b, permutations.

Two errors of the paper are corrected. Algorithm 6 shifts [-L, L] to [0, 2L]. So Algorithm 7,
written for [0, L], gives hat x up to 2g, and its messages of g + b bits would overflow: they have
2g + b bits here. The parameters g and b are rounded up to integers.

The paper's symbols: n users, D coordinates, |x| <= L per coordinate; g the steps per L, b the noise
bits per user and coordinate, p their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def g_of(n: int, d: int) -> int:
    """Return g = max(2 sqrt n, d, 4) (Appendix F.2), rounded up: ceil(2 sqrt n) in integers."""
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    return max(math.isqrt(4 * n - 1) + 1, d, 4)


def b_theorem(g: int, n: int, d: int, epsilon: float, delta: float) -> int:
    """Return b of Appendix F.2 with its constant 24 10^4, rounded up."""
    return math.ceil(24e4 * g**2 * math.log(4 * (d**2 + 1) / delta) ** 2 / (epsilon**2 * n))


def b_published(g: int, n: int, d: int, epsilon: float, delta: float, scale: float) -> int:
    """Return b of the form scale g^2 log^2(d^2/delta) / (epsilon^2 n), rounded up."""
    return math.ceil(scale * g**2 * math.log(d**2 / delta) ** 2 / (epsilon**2 * n))


def fixed_point(
    x: np.ndarray, g: int, L: float, uniforms: np.ndarray, clamp: bool = True
) -> np.ndarray:
    """Return hat x, the entries of x in fixed point, as integers of the shape of x.

    They are within 0..2g if `clamp`, as a message of 2g + b bits needs; any integers if not.
    """
    x, uniforms = np.asarray(x, dtype=np.float64), np.asarray(uniforms, dtype=np.float64)
    if x.shape != uniforms.shape:
        raise ValueError(f"x and uniforms have shapes {x.shape} and {uniforms.shape}")
    if not ((uniforms >= 0) & (uniforms < 1)).all():
        raise ValueError("a rounding uniform is not in [0, 1)")
    # 6.4: from [-L, L] to [0, 2L].
    w = x + L
    steps = w * g / L
    if not (np.abs(steps) < 2.0**53).all():
        raise ValueError("an entry is not finite, or too large for an exact integer")
    # 7.3-7.5: round down, then one up with the probability that makes the mean w g / L.
    xbar = np.floor(steps)
    hat_x = (xbar + (uniforms < steps - xbar)).astype(np.int64)
    return np.clip(hat_x, 0, 2 * g) if clamp else hat_x


def message(hat_x: int, noise_ones: int, g: int, b: int) -> np.ndarray:
    """Return the 2g + b bits of one coordinate of one user, ones first (7.7), uint8."""
    if not 0 <= hat_x <= 2 * g:
        raise ValueError(f"hat_x must be in 0..{2 * g}, got {hat_x}")
    if not 0 <= noise_ones <= b:
        raise ValueError(f"noise_ones must be in 0..{b}, got {noise_ones}")
    bits = np.zeros(2 * g + b, dtype=np.uint8)
    bits[: hat_x + noise_ones] = 1
    return bits


def shuffle(bits_of_all_users: np.ndarray, permutation: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return all users' bits of one coordinate, (n, 2g + b) or flat, as one flat permuted row."""
    bits = np.ravel(bits_of_all_users)
    if not np.array_equal(np.sort(permutation), np.arange(len(bits))):
        raise ValueError(f"not a permutation of {len(bits)} bits")
    return bits[np.asarray(permutation)]


def debias(ones: np.ndarray, n: int, g: int, b: int, L: float, p: float) -> np.ndarray:
    """Return sums of n values in [-L, L] from the numbers of ones per coordinate."""
    # 7.10, then 6.12: subtract the noise's mean, convert steps to units, subtract n shifts.
    return (L / g) * (ones - p * b * n) - n * L


def analyze_scalar(bits: np.ndarray, n: int, g: int, b: int, L: float, p: float = 1 / 4) -> float:
    """Return the sum of one coordinate over n users from all their bits (7.10 and 6.12)."""
    bits = np.asarray(bits)
    if bits.size != n * (2 * g + b):
        raise ValueError(f"{n} users send {n * (2 * g + b)} bits, got {bits.size}")
    return float(debias(np.asarray(np.sum(bits, dtype=np.int64)), n, g, b, L, p))


def analyze_vector(
    bits: Sequence[np.ndarray], n: int, g: int, b: int, L: float, p: float = 1 / 4
) -> np.ndarray:
    """Return the vector of sums from each coordinate's bits; messages are labelled (6.7,
    6.10-6.14)."""
    return np.array([analyze_scalar(of_coordinate, n, g, b, L, p) for of_coordinate in bits])


def checked(
    points: np.ndarray, uniforms: np.ndarray, noise: np.ndarray, b: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return points and noise; refuse them unless all are (n, D) and the noise integers in 0..b."""
    points, noise = np.asarray(points, dtype=np.float64), np.asarray(noise)
    if points.ndim != 2 or not points.shape == np.shape(uniforms) == noise.shape:
        shapes = f"{points.shape}, {np.shape(uniforms)} and {noise.shape}"
        raise ValueError(f"points, uniforms and noise have shapes {shapes}")
    if not np.issubdtype(noise.dtype, np.integer) or not ((noise >= 0) & (noise <= b)).all():
        raise ValueError(f"noise must be integers in 0..{b}")
    return points, noise


def vector_sum(
    points: np.ndarray,
    g: int,
    b: int,
    L: float,
    uniforms: np.ndarray,
    noise: np.ndarray,
    permutations: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Return the noisy sum (D,) of points (n, D) through messages, shuffler and analyzer.

    `uniforms` (n, D) are for rounding, and `noise` (n, D) are numbers of ones in 0..b.
    `permutations` has one permutation of n(2g + b) bits per coordinate, the identity if None.
    Points are clamped to [-L, L]. The subtracted noise mean is that of Bin(b, 1/4).
    """
    points, noise = checked(points, uniforms, noise, b)
    n, dimension = points.shape
    hat_x = fixed_point(points, g, L, uniforms)
    shuffled = []
    for j in range(dimension):
        # 6.3-6.6 for one coordinate of all users.
        bits = np.array([message(int(hat_x[u, j]), int(noise[u, j]), g, b) for u in range(n)])
        order = np.arange(bits.size) if permutations is None else permutations[j]
        shuffled.append(shuffle(bits, order))
    return analyze_vector(shuffled, n, g, b, L)


def vector_sum_counts(
    points: np.ndarray,
    g: int,
    b: int,
    L: float,
    uniforms: np.ndarray,
    noise: np.ndarray,
    clamp: bool = True,
) -> np.ndarray:
    """Return the same sum as `vector_sum`, from the numbers of ones instead of all bits."""
    points, noise = checked(points, uniforms, noise, b)
    ones: np.ndarray = np.sum(fixed_point(points, g, L, uniforms, clamp) + noise, axis=0)
    return debias(ones, len(points), g, b, L, 1 / 4)


def lower_triangle(matrix: np.ndarray) -> np.ndarray:
    """Return the entries j <= i of a symmetric matrix, row by row: (i, j) at i(i + 1)/2 + j."""
    return np.array([matrix[i, j] for i in range(len(matrix)) for j in range(i + 1)])


def symmetric(packed: np.ndarray) -> np.ndarray:
    """Return the matrix of a packed lower triangle, mirrored: each entry was summed, and noised,
    once."""
    d = (math.isqrt(8 * len(packed) + 1) - 1) // 2
    if d * (d + 1) // 2 != len(packed):
        raise ValueError(f"no triangle has {len(packed)} entries")
    matrix = np.zeros((d, d))
    for i in range(d):
        for j in range(i + 1):
            matrix[i, j] = matrix[j, i] = packed[i * (i + 1) // 2 + j]
    return matrix
