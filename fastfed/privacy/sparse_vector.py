"""The sparse vector technique: which query is the first to cross a threshold, and nothing else.

Source: Dwork & Roth 2014, Algorithm 1 (AboveThreshold); Lyu, Su & Li 2017 for its variants.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._validate import InputError, array, boolean, number
from fastfed.privacy.laplace import laplace_quantile, log_cdf


def minimal_scales(
    epsilon: float, sensitivity: float = 1.0, *, common_shift: bool = False
) -> tuple[float, float]:
    """Least (threshold, query) scales for which AboveThreshold costs epsilon.

    In general 1/a + 2/b = epsilon/sensitivity leaves one choice, made for the least variance of
    threshold and query noise together: b = 2^{1/3} a. With common_shift a = b =
    sensitivity/epsilon, both least at once.
    """
    epsilon = number("epsilon", epsilon, above=0)
    size = number("sensitivity", sensitivity, above=0)
    if boolean("common_shift", common_shift):
        return size / epsilon, size / epsilon
    root = 2.0 ** (1.0 / 3.0)
    return (1.0 + root**2) * size / epsilon, (root + 2.0) * size / epsilon


class AboveThreshold(msgspec.Struct, frozen=True):
    """One threshold with Lap(threshold_scale), and fresh Lap(query_scale) on each query, until the
    first query is strictly above.

    sensitivity: the most that neighbouring datasets change any query. common_shift: neighbouring
    datasets leave the queries up to some time alone and change all later ones by one and the same
    amount, as sums over time do when one summand is replaced.

    Guarantee: (epsilon, 0) for the index of the first query above, or none; the threshold's noise
    must not be used again after it. epsilon = sensitivity (1/a + 2/b) for scales a, b; with
    common_shift it is only sensitivity max(1/a, 1/b).
    """

    threshold_scale: float
    query_scale: float
    sensitivity: float = 1.0
    common_shift: bool = False

    # With common_shift, let D' have c in (0, sensitivity] more on every query from time t0 on, and
    # let k >= t0 be the first crossing (earlier ones have equal probability on both).
    #   P_D(k) <= e^{c/a} P_D'(k): raise the threshold's noise by c under D'. Comparisons from t0 on
    #     are then those of D, earlier ones are more easily below; the density changes by e^{c/a}.
    #   P_D'(k) <= e^{c/b} P_D(k): keep the threshold. Under D earlier queries are more easily
    #     below, and query k crosses if its own noise is raised by c.
    # The same two lines without a crossing query cover the outcome "none".

    def __post_init__(self) -> None:
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("common_shift", self.common_shift)

    @property
    def epsilon(self) -> float:
        """What one pass costs."""
        a, b = self.threshold_scale, self.query_scale
        if self.common_shift:
            return self.sensitivity * max(1.0 / a, 1.0 / b)
        return self.sensitivity * (1.0 / a + 2.0 / b)

    def first_above(self, queries: object, threshold: float, uniforms: object) -> int | None:
        """Index from 0 of the first noisy query above the noisy threshold; None if there is none.

        queries: (n,). uniforms: (n + 1,) in (0, 1), the threshold's first, none used again.
        """
        q = array("queries", queries, ndim=1)
        level = number("threshold", threshold)
        noise = laplace_quantile(array("uniforms", uniforms, shape=(len(q) + 1,)))
        limit = level + self.threshold_scale * noise[0]
        above = np.flatnonzero(q + self.query_scale * noise[1:] > limit)
        return int(above[0]) if len(above) else None

    def log_crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """ln of crossing_probabilities, also where they underflow."""
        q = array("queries", queries, ndim=1)
        level = number("threshold", threshold)
        if not len(q):
            return np.zeros(1)
        a, b = self.threshold_scale, self.query_scale
        spread = max(float(q.max()), level) - min(float(q.min()), level)
        if not math.isfinite(3.0 * spread + 90.0 * (a + b)):
            raise InputError(
                f"queries must be of finite spread about the threshold, got {q.min()} to {q.max()}"
            )
        gaps = level - q
        r, log_weights = _quadrature(np.unique(np.append(-gaps, 0.0)), a, b, len(gaps))
        logs = log_weights - np.abs(r) / a - math.log(2.0 * a)
        found = []
        for gap in gaps:
            z = (gap + r) / b
            found.append(_log_sum(logs + log_cdf(-z)))
            logs = logs + log_cdf(z)
        return np.array([*found, _log_sum(logs)])

    def crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """P(first crossing is query k) for each of the n queries, and last P(none), (n + 1,).

        The queries' noises are independent once the threshold's is given, so each probability is
        one integral over it, by Gauss-Legendre; relative accuracy about 1e-12. O(n^2).
        """
        result: np.ndarray = np.exp(self.log_crossing_probabilities(queries, threshold))
        return result


def _quadrature(kinks: np.ndarray, a: float, b: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights for integrands that are smooth but at the kinks.

    Between kinks the integrand is a product of exponentials of rate up to 1/a + count/b, steepest
    away from them, so panels start that small at each kink and double in width with the distance.
    """
    from numpy.polynomial.legendre import leggauss

    # Beyond the last kink densities fall like exp(-|r| / a), to below 1e-17 of what was there.
    reach = 45.0 * a + 45.0 * b
    low, high = float(kinks[0]) - reach, float(kinks[-1]) + reach
    start = 1.0 / (1.0 / a + count / b)
    steps = start * 2.0 ** np.arange(math.ceil(math.log2((high - low) / start)) + 1)
    edges = np.unique(
        np.concatenate([kinks, *(kinks + s for s in steps), *(kinks - s for s in steps)])
    )
    edges = np.concatenate([[low], edges[(edges > low) & (edges < high)], [high]])
    u, w = leggauss(20)
    half = np.diff(edges)[:, None] / 2.0
    nodes = edges[:-1, None] + half * (1.0 + u)
    return nodes.ravel(), (np.log(half) + np.log(w)).ravel()


def _log_sum(logs: np.ndarray) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum())) if math.isfinite(top) else -math.inf
