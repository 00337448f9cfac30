"""Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), buffered linear Toeplitz factors.

Matrices are dense and sums follow the definition; there is no recursion.
"""

from __future__ import annotations

import math

import numpy as np


def points(releases: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (t, w, w_0) of a trapezoid rule for 1/pi times the integral of t^k / sqrt(t (1 - t))
    dt.

    The rule's variable is u with t = 1 / (1 + e^-u). Its points go from 0 to ln K + 3 in steps of
    at most 2.5. w_0 is chosen so that b_0 = 1.
    """
    last = math.log(releases) + 3.0
    steps = math.ceil(last / 2.5)
    u = [last * i / steps for i in range(steps + 1)]
    t = np.array([1.0 / (1.0 + math.exp(-x)) for x in u])
    w = np.array([last / steps * math.sqrt(x * (1.0 - x)) / math.pi for x in t])
    return t, w, 1.0 - float(w.sum())


def decoder(t: np.ndarray, w: np.ndarray, direct: float, releases: int) -> np.ndarray:
    """Return B (K, K): b_0 = w_0 + sum w on the diagonal, sum_i w_i t_i^lag below."""
    i = np.arange(releases)
    lag = i[:, None] - i
    powers = np.where(lag >= 0, t[:, None, None] ** np.maximum(lag, 0), 0.0)
    return np.tensordot(w, powers, axes=1) + direct * np.eye(releases)


def encoder(decoder: np.ndarray) -> np.ndarray:
    """Return C = B^-1 A (K, K), with A the prefix sums."""
    factor: np.ndarray = np.linalg.solve(decoder, np.tri(len(decoder)))
    return factor


def square_root(releases: int) -> np.ndarray:
    """Return the exact factor (K, K), which is both encoder and decoder."""
    f = [math.comb(2 * k, k) / 4.0**k for k in range(releases)]
    return np.array(
        [[f[i - j] if i >= j else 0.0 for j in range(releases)] for i in range(releases)]
    )


def error(left: np.ndarray, right: np.ndarray) -> float:
    """Return the largest standard deviation of a prefix, for noise with mu = 1 for one leaf."""
    rows, columns = (left**2).sum(axis=1), (right**2).sum(axis=0)
    return math.sqrt(rows.max() * columns.max())
