"""Toeplitz noise from a few buffers: prefix sums whose noise costs the same at every release.

Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, "Efficient and near-optimal noise
generation for streaming differential privacy" (buffered linear Toeplitz matrices).

Of the factorisation A = B C of prefix sums (`prefix_sums`) B is Toeplitz with coefficients
    b_0 = w_0 + w_1 + ... + w_q,  b_k = sum_i w_i t_i^k,  0 < t_i < 1, w_i > 0,
so that the noise of prefix k, row k of B z, is w_0 z_k + sum_i w_i s_i with s_i <- t_i s_i + z_k: q
buffers, where the square-root factor needs all earlier z. C = B^-1 A is Toeplitz and lower
triangular too, and everything that `prefix_sums` says about a factorisation holds of it: one leaf
costs as much as a Gaussian mechanism of squared sensitivity sum_{k<K} c_k^2, the squared norm of
C's first column, with c the series of 1 / ((1 - x) b(x)). That is computed from these very w and t:
how well b approximates anything is a matter of accuracy alone, never of privacy.

Which. The square root's coefficients are f_k = 1/pi times the integral of t^k / sqrt(t (1 - t))
over (0, 1). With t = 1 / (1 + e^-u) it is that of t^k sqrt(t (1 - t)) du, which the trapezoid rule
does well with few points. They reach from u = 0 to ln K + 3, beyond which t^k hardly changes
within K releases, at most 2.5 apart; w_0 makes b_0 = 1. The error, the root of the largest prefix
variance times the squared sensitivity, is then within 0.5 % of the square root's own, from 100
releases on within 0.25 %.

c is positive and falls: b is the transform of a positive measure on [0, 1), so 1/b(x) = (1 - sum_i
a_i x / (1 - p_i x)) / b_0 with a_i > 0 and 0 <= p_i < 1 between the t_i; its series is negative but
for the first term, and adds up to 1/b(1) > 0. Hence the first leaves are the worst for users who
take part several times, by the proof for "toeplitz" in `participation`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fastfed._kernels import aggregation

#: Largest distance of two points, and how far they reach beyond ln K.
SPACING, REACH = 2.5, 3.0
#: Bits of the numbers that the buffers run with: machines whose exponentials differ agree on them.
BITS = 26


def _rounded(values: np.ndarray) -> np.ndarray:
    """Values (q,) rounded to BITS significant bits."""
    mantissa, exponent = np.frexp(values)
    result: np.ndarray = np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS)
    return result


@lru_cache(maxsize=64)
def buffers(releases: int) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Decays t (q,), weights w (q,) and w_0 of the buffers for K >= 0 releases.

    A function of K alone; q is about (ln K + 3) / 2.5 + 2.
    """
    if releases == 0:
        return (), (), 1.0
    last = math.log(releases) + REACH
    u = np.linspace(0.0, last, math.ceil(last / SPACING) + 1)
    away = _rounded(1.0 / (1.0 + np.exp(u)))  # 1 - t
    weights = _rounded((u[1] - u[0]) / math.pi * np.sqrt(away * (1.0 - away)))
    return tuple((1.0 - away).tolist()), tuple(weights.tolist()), 1.0 - float(weights.sum())


def packed(releases: int) -> np.ndarray:
    """What kernels take: w_0, then t and w of each buffer in turn, (2 q + 1,)."""
    decays, weights, direct = buffers(releases)
    return np.array([direct, *(x for pair in zip(decays, weights, strict=True) for x in pair)])


@lru_cache(maxsize=16)
def buffered_coefficients(releases: int) -> np.ndarray:
    """Coefficients b_0, ..., b_{K-1} (K,) of the factor B."""
    decays, weights, direct = buffers(releases)
    found = np.zeros(releases)
    lags = np.arange(releases)
    for decay, weight in zip(decays, weights, strict=True):
        found += weight * np.power(decay, lags)
    found[:1] += direct
    found.flags.writeable = False
    return found


@lru_cache(maxsize=16)
def buffered_column(releases: int) -> np.ndarray:
    """Coefficients c_0, ..., c_{K-1} (K,) of C = B^-1 A: the first column, the longest."""
    found = aggregation.buffered_column(packed(releases), releases)
    found.flags.writeable = False
    return found


def buffered_prefix_variances(releases: int) -> np.ndarray:
    """Variances of the noise in prefixes 1, ..., K (K,), in units of noise_std^2."""
    result: np.ndarray = np.cumsum(buffered_coefficients(releases) ** 2)
    return result


def buffered_sensitivity_squared(releases: int, returning: int = 1) -> float:
    """Squared sensitivity to a user of ``returning`` leaves, as much above what is computed as
    rounding could take away.

    The squared norm of C n, with n one in the first leaves, and zero in the others.
    """
    if releases == 0:
        return 0.0
    rows, count = buffered_column(releases), min(returning, releases)
    if count > 1:
        rows = np.cumsum(rows)
        rows[count:] -= rows[:-count].copy()
    return float(rows @ rows) * (1.0 + 2.0**-40)
