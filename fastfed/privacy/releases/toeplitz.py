"""The square-root Toeplitz factor of prefix sums: correlated noise that a prefix mostly cancels.

Source: Fichtenberger, Henzinger & Upadhyay 2023, "Constant matters". With gamma the (K, s)
leaves and A the lower triangular matrix of ones, A = C C for the Toeplitz matrix
C_ij = f_{i-j}, i >= j, where sum_k f_k x^k = (1 - x)^{-1/2}. Released is
    A gamma + C z = C (C gamma + z),  z of independent N(0, noise_std^2) rows,
so one leaf costs as much as a Gaussian mechanism of squared sensitivity S_K = sum_{k<K} f_k^2, the
squared norm of C's first column, and prefix k has variance S_k noise_std^2.

Later leaves may depend on what was released: C is invertible, so seeing k prefixes is seeing the
first k rows of C gamma + z, and C is lower triangular, so row k is a Gaussian mechanism of leaves
1..k with noise of its own. These compose adaptively, mu^2 adding up to the column's norm (the
general statement: Denisov et al. 2022, Theorem 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastfed._validate import array, integer


def coefficients(releases: int) -> np.ndarray:
    """Coefficients f_0, ..., f_{K-1} (K,) of (1 - x)^{-1/2}.

    f_0 = 1, f_k = f_{k-1} (2 k - 1) / (2 k) = binom(2k, k) / 4^k.
    """
    releases = integer("releases", releases, at_least=0, at_most=2**27)
    k = np.arange(1.0, max(releases, 1))
    return np.concatenate([np.ones(1), np.cumprod((2.0 * k - 1.0) / (2.0 * k))])[:releases]


def factor(releases: int) -> np.ndarray:
    """Matrix C (K, K), lower triangular, C C = the lower triangular matrix of ones; for small K."""
    f = coefficients(releases)
    i = np.arange(len(f))
    lag = i[:, None] - i
    return np.where(lag >= 0, f[lag], 0.0)


def prefix_variances(releases: int) -> np.ndarray:
    """Variances S_1, ..., S_K (K,) of the noise in each prefix, in units of noise_std^2."""
    result: np.ndarray = np.cumsum(coefficients(releases) ** 2)
    return result


def sensitivity_squared(releases: int) -> float:
    """Squared sensitivity S_K = sum_{k<K} f_k^2, about (ln K + 0.577 + ln 16) / pi.

    0 when nothing is released. The squared norm of C's longest column, which is that of the first
    leaf.
    """
    f = coefficients(releases)
    return float(f @ f)


def group_sensitivity_squared(leaves: Iterable[int], releases: int) -> float:
    """Squared sensitivity for records in these leaves, per unit of one record's sensitivity.

    ||C n||^2 with n the number of the group's records in each leaf: the bound by the triangle
    inequality in each row of C, attained when all records change by the same amount. Name a leaf
    as often as it holds a record of the group.
    """
    releases = integer("releases", releases, at_least=0)
    counts = np.zeros(releases)
    for leaf in leaves:
        counts[integer("leaf", leaf, at_least=1, at_most=releases) - 1] += 1.0
    if not counts.any():
        return 0.0
    rows = np.convolve(coefficients(releases), counts)[:releases]
    return float(rows @ rows)


def prefix_noise(normals: object) -> np.ndarray:
    """Noise of prefix k, (s,), from z_1, ..., z_k (k, s): row k of C z, sum_j f_{k-j} z_j.

    Rows must be drawn once and kept (or drawn again from their keys): every later prefix uses them.
    """
    z = array("normals", normals, ndim=2)
    result: np.ndarray = coefficients(len(z))[::-1] @ z
    return result
