"""Exact privacy of a Gaussian release that a record enters by a secret coin, by integration.

There are three distributions, in units of the noise. The record is absent, N(0, I); it is x and
enters, N(a, I); or it is x' and enters, N(b, I). The observer sees P = (1 - p) N(0, I) + p N(a, I)
or Q, the same with b. Only the plane of 0, a and b matters. Nothing here assumes any bound: the
hockey-stick divergence is a sum over a fine grid of the plane.
"""

from __future__ import annotations

import math

import numpy as np


def divergence(
    epsilon: float, p: float, a: np.ndarray, b: np.ndarray, *, step: float = 0.02, tail: float = 9.0
) -> float:
    """Return the integral of max(0, P - e^epsilon Q) over the plane, for a and b of shape (2,).

    It uses the trapezoidal rule on a grid that ends ``tail`` beyond the three centres. Its error
    comes only from the kink and is of order step^2.
    """
    centres = np.array([[0.0, 0.0], a, b], dtype=float)
    low, high = centres.min(axis=0) - tail, centres.max(axis=0) + tail
    x, y = (np.arange(low[i], high[i] + step, step) for i in (0, 1))
    normal = [
        np.exp(-((x - c[0]) ** 2) / 2)[:, None] * np.exp(-((y - c[1]) ** 2) / 2)[None, :]
        for c in centres
    ]
    absent = (1.0 - p) * normal[0]
    difference = absent + p * normal[1] - math.exp(epsilon) * (absent + p * normal[2])
    return float(np.maximum(difference, 0.0).sum()) * step**2 / (2.0 * math.pi)


def placed(length_a: float, length_b: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors a and b with these lengths and this angle between them."""
    a = np.array([length_a, 0.0])
    return a, length_b * np.array([math.cos(angle), math.sin(angle)])


def largest(
    epsilon: float, p: float, zeta: float, mu: float, *, points: int = 9, step: float = 0.04
) -> float:
    """Return the largest divergence found with |a|, |b| <= zeta mu and |a - b| <= mu.

    Any (a, b) is a contraction of one with two of the three limits attained (docs/own-rounds.md).
    So three families with one free number each are searched: |a| = |b| = zeta mu; |a| = zeta mu and
    |a - b| = mu; |b| = zeta mu and |a - b| = mu. The result is a lower bound of the largest
    divergence.
    """
    z = zeta * mu
    largest_found = 0.0
    # The third side of the triangle 0, a, b as a share of its range.
    for share in np.linspace(0.0, 1.0, points):
        distance = share * min(mu, 2.0 * z)
        angle = 2.0 * math.asin(min(1.0, distance / (2.0 * z)))
        triangles = [placed(z, z, angle)]
        third = abs(mu - z) + share * (min(z, mu + z) - abs(mu - z))
        if third > 0.0 and z > 0.0 and mu <= third + z:
            cosine = (z**2 + third**2 - mu**2) / (2.0 * z * third)
            angle = math.acos(max(-1.0, min(1.0, cosine)))
            triangles += [placed(z, third, angle), placed(third, z, angle)]
        for a, b in triangles:
            largest_found = max(largest_found, divergence(epsilon, p, a, b, step=step))
    return largest_found
