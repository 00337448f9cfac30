"""A refutation of binomial noise: a lower bound of the true delta of one vector sum.

What two concrete neighbouring records make of the noise is compared, roundings included; where
their divergence at the claimed epsilon is above the claimed delta, the claim is false.
"""

from __future__ import annotations

import math

import numpy as np

from fastfed.privacy.binomial_noise import masses

# Beyond this no lower bound is computed: the tables would grow with sqrt(trials).
_MOST_TRIALS = 2**28
# Cells for the privacy losses of one coordinate, each loss rounded down to its cell.
_CELLS = 2**14
# What the Fourier transforms of a composition may be wrong by, with a wide margin.
_FOURIER = 1e-12
# Ratios of probabilities below exp(-this) are not tabulated, see `binomial_noise.masses`.
_LOG_SMALLEST = 745.0

#: One coordinate's encoded value before and after a record changes, in levels.
Move = tuple[float, float]
#: What `binomial_noise.masses` returns.
Masses = tuple[int, np.ndarray, np.ndarray]


def least_delta(
    trials: int, g: tuple[int, int], dimension: int, relation: str, epsilon: float
) -> float:
    """A lower bound of delta at epsilon of Bin(trials, 1/4) noise in every coordinate.

    g: encoding levels per unit of the bias and of the covariance stream. The worst of a few pairs
    of records; 0 beyond 2^28 trials, where nothing is computed.
    """
    if trials > _MOST_TRIALS:
        return 0.0
    noise = masses(trials)
    return max(_divergence(trials, noise, m, epsilon) for m in _pairs(relation, dimension, g))


def _pairs(relation: str, dimension: int, g: tuple[int, int]) -> list[list[Move]]:
    """Changes that allowed neighbouring records can make, all with y = 1, up to direction."""
    bias, covariance = float(g[0]), float(g[1])
    if relation == "zero-out":
        return [[(bias, 0.0), (covariance, 0.0)]]
    found = [[(bias, -bias)]]  # x = e_1 becomes -e_1
    if dimension == 1:
        # x = 1 becomes -q: where the sensitivity of the line has its inner maximum.
        if (left := 1.0 - 2.0 * (bias / covariance) ** 2) >= 0.0:
            q = (1.0 - math.sqrt(left)) / 2.0
            found.append([(bias, -q * bias), (covariance, q * q * covariance)])
        return found
    # x = (cos u, -sin u) becomes (-sin u, cos u): t = sin 2u = 0 stays on the grid, the other
    # is where the sensitivity has its maximum (`fastfed.privacy.sensitivity`).
    for t in (0.0, min(1.0, 0.5 * (bias / covariance) ** 2)):
        u = math.asin(t) / 2.0
        c, s = math.cos(u), math.sin(u)
        high, low = covariance * c * c, covariance * s * s
        found.append([(bias * c, -bias * s), (-bias * s, bias * c), (high, low), (low, high)])
    return found


def _divergence(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    """A lower bound of the hockey-stick divergence at epsilon, the larger of both directions."""
    back = [(after, before) for before, after in moves]
    return max(_one_way(trials, noise, way, epsilon) for way in (moves, back))


def _one_way(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    losses = [_losses(trials, noise, *move) for move in moves if move[0] != move[1]]
    if len(losses) == 1:
        ((mass, loss),) = losses
        return _beyond(mass, loss, epsilon)
    # Every loss is rounded down and small masses are dropped, so the result can only be too small.
    finite = [(m[keep], x[keep]) for m, x in losses for keep in [np.isfinite(x) & (m > 1e-18)]]
    told = 1.0 - math.prod(1.0 - float(m[np.isinf(x)].sum()) for m, x in losses)
    if not all(m.size for m, _ in finite):
        return max(told - _FOURIER, 0.0)
    start = sum(float(x.min()) for _, x in finite)
    width = max(float(np.ptp(x)) for _, x in finite) / _CELLS or 1.0
    cells = [
        np.bincount(((x - x.min()) / width).astype(np.int64), m, minlength=_CELLS + 1)
        for m, x in finite
    ]
    length = len(cells) * (_CELLS + 1)
    transformed = np.prod([np.fft.rfft(c, length) for c in cells], axis=0)
    mass = np.maximum(np.fft.irfft(transformed, length), 0.0)
    loss = start + width * np.arange(length)
    return max(told + _beyond(mass, loss, epsilon) - _FOURIER, 0.0)


def _beyond(mass: np.ndarray, loss: np.ndarray, epsilon: float) -> float:
    """E(1 - e^(epsilon - loss))_+, infinite losses included."""
    over = loss > epsilon
    return min(float(np.sum(mass[over] * -np.expm1(epsilon - loss[over]))), 1.0)


def _losses(
    trials: int, noise: Masses, before: float, after: float
) -> tuple[np.ndarray, np.ndarray]:
    """Masses of noise + the value `before`, rounded at random, and losses against `after`."""
    first, mass, log_ratio = noise
    low = math.floor(before)
    k = np.arange(low + first, low + first + mass.size + 1)

    def log_law(value: float) -> np.ndarray:
        down = math.floor(value)
        part = value - down
        stays = _log_ratios(first, log_ratio, trials, k - down)
        if part == 0.0:
            return stays
        moves = _log_ratios(first, log_ratio, trials, k - down - 1)
        return np.logaddexp(math.log1p(-part) + stays, math.log(part) + moves)

    here = log_law(before)
    outcomes = here > -math.inf
    here, there = here[outcomes], log_law(after)[outcomes]
    return np.exp(here) * mass.max(), here - there


def _log_ratios(first: int, log_ratio: np.ndarray, trials: int, ones: np.ndarray) -> np.ndarray:
    """ln(P(X = ones)/P(X = mode)), from above where the table has underflowed."""
    out = np.where((ones >= 0) & (ones <= trials), -_LOG_SMALLEST, -math.inf)
    known = (ones >= first) & (ones < first + log_ratio.size)
    out[known] = log_ratio[ones[known] - first]
    return out
