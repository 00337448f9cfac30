"""Tail of the largest eigenvalue of a Gaussian symmetric matrix, and of a Gaussian vector's norm.

Numbers a confidence radius rests on: every function here gives an upper bound that is proven and,
in the far tail where it is used, nearly attained.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

#: Above this dimension the table costs more than it is worth; the closed bound is used alone.
MOST_EXACT = 500
STEP = 2e-3


@cache
def _expected_above(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Grid x > 0 and ln of the expected number of eigenvalues above x.

    For the GOE with diagonal variance 1 and off-diagonal variance 1/2 the density of eigenvalues
    at x is, with phi_k the orthonormal Hermite functions (Mehta 2004, Section 7.2),
        sum_{k<d} phi_k(x)^2 + sqrt(d / 2) phi_{d-1}(x) int sgn(x - y) phi_d(y) dy / 2
        + [d odd] phi_{d-1}(x) / int phi_{d-1}.
    """
    d = dimension
    reach = math.sqrt(2.0 * d) + 18.0
    x = np.arange(0.0, reach, STEP)
    # phi_k e^-scale by the recurrence: phi_0 itself underflows where phi_{d-1} still matters.
    scale = -0.5 * x * x
    before, phi = np.zeros_like(x), np.full_like(x, math.pi**-0.25)
    squares = np.square(phi * np.exp(scale))
    for k in range(1, d):
        before, phi = phi, math.sqrt(2.0 / k) * x * phi - math.sqrt((k - 1.0) / k) * before
        size = np.maximum(np.abs(phi), 1.0)
        before, phi, scale = before / size, phi / size, scale + np.log(size)
        squares = squares + np.square(phi * np.exp(scale))
    last = phi * np.exp(scale)  # phi_{d-1}
    above = math.sqrt(2.0 / d) * x * phi - math.sqrt((d - 1.0) / d) * before  # phi_d
    above = above * np.exp(scale)
    # Odd functions integrate to 0; of even ones the half line counts twice.
    tail = _right_sums(above)
    signed = (tail[0] - tail) if d % 2 == 0 else -tail
    # int sgn(x - y) f(y) dy / 2 = (total / 2) - tail(x), total = 2 tail(0) when f is even.
    density = squares + math.sqrt(d / 2.0) * last * signed
    if d % 2 == 1:
        density = density + last / (2.0 * _right_sums(last)[0])
    expected = _right_sums(np.maximum(density, 0.0))
    return x, np.log(np.maximum(expected, 1e-300))


def _right_sums(values: np.ndarray) -> np.ndarray:
    """Integral from every grid point to the end; trapezoids lie above a convex tail."""
    pieces = 0.5 * STEP * (values[1:] + values[:-1])
    return np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]])


def largest_eigenvalue(dimension: int, probability: float) -> float:
    """t with P(lambda_max > t) <= probability, off-diagonal variance 1, diagonal variance 2.

    The smaller of two bounds: the expected number of eigenvalues above t, which is at least the
    probability that there is one; and 2 sqrt d + 2 sqrt(ln(1 / p)), from E lambda_max <=
    2 E ||g|| <= 2 sqrt d (Sudakov-Fernique: for unit u, v the increments of u'Nu have variance
    4 (1 - <u, v>^2), at most those of 2 <g, u>) and the concentration of a sqrt 2-Lipschitz
    function of standard normals.
    """
    closed = 2.0 * (math.sqrt(dimension) + math.sqrt(-math.log(probability)))
    if dimension > MOST_EXACT or probability < 1e-60:
        return closed
    x, log_expected = _expected_above(dimension)
    # One grid step to the safe side is worth far more than the error of the trapezoids.
    where = int(np.searchsorted(-log_expected, -math.log(probability)))
    if where + 1 >= len(x):
        return closed
    return min(closed, math.sqrt(2.0) * float(x[where] + STEP))


@cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def norm_quantile(dimension: int, common: float, extra: float, probability: float) -> float:
    """t with P(||X|| > t) <= probability for X ~ N(0, common I + extra u u'), ||u|| = 1.

    ||X||^2 = common chi^2_{d-1} + (common + extra) z^2: one integral over z, with z = a sin(s) so
    that the integrand is smooth at its end, where the chi-square has nothing left.
    """
    from scipy.optimize import brentq
    from scipy.special import gammaincc, ndtr, ndtri

    if common == 0.0:
        return -math.sqrt(extra) * float(ndtri(0.5 * probability))
    nodes, weights = _nodes()
    sine, cosine = np.sin(0.25 * math.pi * (nodes + 1.0)), np.cos(0.25 * math.pi * (nodes + 1.0))
    weights = 0.25 * math.pi * cosine * weights

    def tail(square: float) -> float:
        last = math.sqrt(square / (common + extra))
        outside = 2.0 * float(ndtr(-last))
        if dimension == 1:
            return outside
        density = np.exp(-0.5 * np.square(last * sine)) * math.sqrt(2.0 / math.pi)
        rest = square * np.square(cosine) / common
        inside = gammaincc(0.5 * (dimension - 1), 0.5 * rest) * density
        return outside + last * float(weights @ inside)

    high = common * dimension + extra
    while tail(high) > probability:
        high *= 2.0
    low = high
    while tail(low) <= probability:
        low *= 0.5
    # Far out the tail of many dimensions is no longer a positive float64: there its sign will do.
    least = math.ulp(0.0)
    root = float(
        brentq(lambda q: math.log(max(tail(q), least) / probability), low, high, rtol=1e-12)
    )
    # Quadrature and root are good to ten digits and more.
    return math.sqrt(root) * (1.0 + 1e-9)
