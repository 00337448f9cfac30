"""Correlated noise of prefix sums from a few buffers ("buffered linear Toeplitz" matrices).

Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, "Efficient and near-optimal noise
generation for streaming differential privacy".

In the factorisation A = B C of prefix sums (see `prefix_sums`), let B be Toeplitz with coefficients
    b_0 = w_0 + w_1 + ... + w_q,  b_k = sum_i w_i t_i^k,  0 < t_i < 1, w_i > 0.
The noise of prefix k, row k of B z, is then w_0 z_k + sum_i w_i s_i with s_i <- t_i s_i + z_k. It
needs only the q buffers s_i, while the square-root factor needs all earlier z. C = B^-1 A is also
Toeplitz and lower triangular, so the statements about factorisations in `prefix_sums` hold: one
leaf costs as much as a Gaussian mechanism of squared sensitivity sum_{k<K} c_k^2, the squared norm
of C's first column, where c is the series of 1 / ((1 - x) b(x)). The sensitivity is computed from
the actual w and t. So how well b approximates the square root affects accuracy, but not privacy.

Choice of w and t. The square root has f_k = 1/pi times the integral of t^k / sqrt(t (1 - t)) over
(0, 1). Substituting t = 1 / (1 + e^-u) gives the integral of t^k sqrt(t (1 - t)) du, which the
trapezoid rule approximates well with few points. The points are at most 2.5 apart. They reach from
u = 0 to ln K + 3, beyond which t^k hardly changes within K releases. w_0 is chosen so that b_0 = 1.
Measure the error by the square root of (largest prefix variance times squared sensitivity). It is
at most 0.5 % larger than with the square-root factor, and at most 0.25 % for 100 releases or more.

c is positive and decreasing. Proof: b is the transform of a positive measure on [0, 1), so
1/b(x) = (1 - sum_i a_i x / (1 - p_i x)) / b_0 with a_i > 0 and with 0 <= p_i < 1 between the t_i.
This series is negative except for its first term, and its sum is 1/b(1) > 0. Hence, for users who
take part several times, the sensitivity is largest if they are in the first leaves, by the proof
for "toeplitz" in `participation`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fastfed._kernels import aggregation

#: The largest distance of two neighbouring points u of the trapezoid rule, and the distance of the
#: last point from ln K.
SPACING, REACH = 2.5, 3.0
#: Significant bits of w and t, so that machines with different exp functions use the same numbers.
BITS = 26


def _round_to_bits(values: np.ndarray) -> np.ndarray:
    """Return values (q,) rounded to `BITS` significant bits."""
    mantissa, exponent = np.frexp(values)
    result: np.ndarray = np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS)
    return result


@lru_cache(maxsize=64)
def buffers(releases: int) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Return decays t (q,) and weights w (q,) of the q buffers, and w_0, the newest draw's weight.

    w_0 is the weight of the newest noise z_k outside the buffers, see the top of this module. All
    depend only on the number K of releases. q is about (ln K + 3) / 2.5 + 2.
    """
    if releases == 0:
        return (), (), 1.0
    # Points u on [0, ln K + REACH] of the trapezoid rule for f_k; t = 1 / (1 + e^-u) at each point.
    last = math.log(releases) + REACH
    u = np.linspace(0.0, last, math.ceil(last / SPACING) + 1)
    one_minus_t = _round_to_bits(1.0 / (1.0 + np.exp(u)))
    weights = _round_to_bits((u[1] - u[0]) / math.pi * np.sqrt(one_minus_t * (1.0 - one_minus_t)))
    return tuple((1.0 - one_minus_t).tolist()), tuple(weights.tolist()), 1.0 - float(weights.sum())


def packed(releases: int) -> np.ndarray:
    """Return the parameters of the q buffers in one array for kernels, (2 q + 1,).

    The array holds w_0, followed by the decay t and the weight w of each buffer (see `buffers`).
    """
    decays, weights, direct = buffers(releases)
    return np.array([direct, *(x for pair in zip(decays, weights, strict=True) for x in pair)])


@lru_cache(maxsize=16)
def buffered_coefficients(releases: int) -> np.ndarray:
    """Return the coefficients b_0, ..., b_{K-1} (K,) of the Toeplitz factor B of prefix sums."""
    decays, weights, direct = buffers(releases)
    coefficients = np.zeros(releases)
    lags = np.arange(releases)
    for decay, weight in zip(decays, weights, strict=True):
        coefficients += weight * np.power(decay, lags)
    coefficients[:1] += direct
    coefficients.flags.writeable = False
    return coefficients


@lru_cache(maxsize=16)
def buffered_column(releases: int) -> np.ndarray:
    """Return the first column (K,) of the Toeplitz matrix C, the column with the largest norm.

    C = B^-1 A, where A is the matrix of prefix sums and B the factor of `buffered_coefficients`.
    """
    column = aggregation.buffered_column(packed(releases), releases)
    column.flags.writeable = False
    return column


def buffered_prefix_variances(releases: int) -> np.ndarray:
    """Return the noise variances of prefixes 1, ..., K (K,), in units of noise_std^2."""
    result: np.ndarray = np.cumsum(buffered_coefficients(releases) ** 2)
    return result


def buffered_sensitivity_squared(releases: int, returning: int = 1) -> float:
    """Return the squared sensitivity of all releases to a user who has data in several leaves.

    ``returning`` is the number of these leaves (batches). The unit is the squared sensitivity of
    one leaf to one record. The result is the squared norm of C n, increased slightly to cover
    rounding. C is the matrix of `buffered_column`, and the vector n is 1 in the first ``returning``
    leaves and 0 in the others.
    """
    if releases == 0:
        return 0.0
    # The vector C n: if n has a single 1, the first column of C.
    product, count = buffered_column(releases), min(returning, releases)
    if count > 1:
        # With the column c_0, c_1, ... of C, entry k of C n is c_{k-1} + ... + c_{k-count}: a
        # difference of two sums of the first entries of the column.
        product = np.cumsum(product)
        product[count:] -= product[:-count].copy()
    return float(product @ product) * (1.0 + 2.0**-40)
