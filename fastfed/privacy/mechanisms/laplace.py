"""The Laplace mechanism and the exponential mechanism.

Sources: Dwork, McSherry, Nissim & Smith 2006; McSherry & Talwar 2007; bounded range: Durfee &
Rogers 2019. Guarantees are for real numbers; a release without given uniforms keeps them
(`fastfed.privacy.exact`), one in float64 only up to rounding (Mironov 2012).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._kernels import linalg
from fastfed._sampling import Laplaces, Uniforms
from fastfed._validate import InputError, array, number
from fastfed.privacy import exact

# ---- the Laplace mechanism -----------------------------------------------------------------------


def laplace_quantile(uniforms: object) -> np.ndarray:
    """Standard Laplace noise from uniforms, by inverting the cdf.

    Parameters
    ----------
    uniforms : array_like
        In (0, 1), any shape.

    Returns
    -------
    ndarray
        Noise of the same shape.

    Raises
    ------
    InputError
        For values outside (0, 1).
    """
    u = array("uniforms", uniforms)
    if not ((u > 0.0) & (u < 1.0)).all():
        raise InputError(f"uniforms must be > 0 and < 1, got values from {u.min()} to {u.max()}")
    # 1 - u is exact where it is small, so both tails keep their digits.
    size = -np.log(2.0 * np.minimum(u, 1.0 - u))
    result: np.ndarray = np.where(u < 0.5, -size, size)
    return result


def standard_laplace(uniform: float) -> float:
    """Standard Laplace noise from one uniform, of equal bits on every processor."""
    size = -linalg.log(2.0 * min(uniform, 1.0 - uniform))
    return -size if uniform < 0.5 else size


def log_cdf(x: object) -> np.ndarray:
    """Compute ln P(noise <= x) of standard Laplace noise, accurate in both tails."""
    values = np.asarray(x, dtype=np.float64)
    near = np.minimum(values, 0.0) - math.log(2.0)
    far = np.log1p(-0.5 * np.exp(-np.maximum(values, 0.0)))
    result: np.ndarray = np.where(values < 0.0, near, far)
    return result


class Laplace(msgspec.Struct, frozen=True):
    """The Laplace mechanism: noise of scale sensitivity / epsilon on every entry of a statistic.

    Parameters
    ----------
    sensitivity : float
        > 0, the most that neighbouring datasets change the statistic, summed over its entries (L1),
        in its units.
    epsilon : float
        > 0.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (epsilon, 0) for whatever unit and relation the sensitivity is of. For a single
    number delta() and exact() give the whole curve of pairs, which is attained.
    Source: Dwork, McSherry, Nissim & Smith 2006.
    """

    sensitivity: float
    epsilon: float

    def __post_init__(self) -> None:
        """Check both numbers."""
        number("sensitivity", self.sensitivity, above=0)
        number("epsilon", self.epsilon, above=0)

    @property
    def scale(self) -> float:
        """Scale b of the noise, density exp(-|x| / b) / (2 b), in the statistic's units."""
        return self.sensitivity / self.epsilon

    @property
    def noise_std(self) -> float:
        """Standard deviation sqrt(2) scale of the noise."""
        return math.sqrt(2.0) * self.scale

    def release(self, value: object, uniforms: object = None) -> np.ndarray:
        """Release value + noise, entry by entry.

        Parameters
        ----------
        value : array_like
            The statistic. It counts as it is, so it must have this sensitivity.
        uniforms : array_like, optional
            For simulations: in (0, 1), one an entry, never used again. By default the noise is
            ideal, from the operating system, and the sum is rounded to a grid.

        Returns
        -------
        ndarray
            Of the value's shape.
        """
        values = array("value", value)
        if uniforms is None:
            flat = np.ascontiguousarray(values).reshape(-1)
            scale = np.full(len(flat), self.scale)
            return exact.add_laplace(flat, scale, Laplaces(len(flat))).reshape(values.shape)
        return values + self.scale * laplace_quantile(
            array("uniforms", uniforms, shape=values.shape)
        )

    def delta(self, epsilon: float) -> float:
        """Smallest delta of the release of one number at this epsilon.

        1 - e^{(epsilon - own)/2}, and 0 from the own epsilon on.
        """
        epsilon = number("epsilon", epsilon, at_least=0)
        return max(0.0, -math.expm1((epsilon - self.epsilon) / 2.0))

    def exact(self, delta: float = 0.0) -> float:
        """Smallest epsilon >= 0 of the release of one number at this delta."""
        delta = number("delta", delta, at_least=0, below=1)
        return max(0.0, self.epsilon + 2.0 * math.log1p(-delta))


# ---- the exponential mechanism -------------------------------------------------------------------


class Exponential(msgspec.Struct, frozen=True):
    """The exponential mechanism.

    It chooses candidate i with probability proportional to exp(-eta cost_i / (2 sensitivity)).

    Parameters
    ----------
    eta : float
        > 0.
    sensitivity : float
        > 0, the most that neighbouring datasets change any cost.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (eta, 0), for the unit and relation that the sensitivity is of; more precisely, range
    bounded by eta: ln(P(i)/Q(i)) - ln(P(j)/Q(j)) <= eta for all i, j. That is worth eta^2/8-zCDP, a
    quarter of the value of eta-DP alone (Cesar & Rogers 2021; see `gdp.rho_of_bounded_range`).
    Source: McSherry & Talwar 2007; Durfee & Rogers 2019.
    """

    eta: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        """Check both numbers."""
        number("eta", self.eta, above=0)
        number("sensitivity", self.sensitivity, above=0)

    def log_probabilities(self, costs: object) -> np.ndarray:
        """Compute ln P(i) (n,) of n >= 1 finite costs, also where P(i) itself underflows."""
        cost = array("costs", costs, ndim=1)
        if not len(cost):
            raise InputError("costs must hold at least one candidate, got shape (0,)")
        # Differences first: a large common part of the costs must not cost digits.
        weights = (cost.min() - cost) * (self.eta / (2.0 * self.sensitivity))
        result: np.ndarray = weights - np.log(np.exp(weights).sum())
        return result

    def probabilities(self, costs: object) -> np.ndarray:
        """Compute P(i) (n,) of n >= 1 finite costs."""
        result: np.ndarray = np.exp(self.log_probabilities(costs))
        return result

    def choose(self, costs: object, uniform: float | None = None) -> int:
        """Choose a candidate, by inverting the cdf at one uniform in (0, 1); return its index.

        By default the uniform is the operating system's, of as many bits as it takes to choose as
        with real weights; a given one is for simulations.
        """
        if uniform is None:
            return self.choose_exactly(costs, Uniforms(1))
        u = number("uniform", uniform, above=0, below=1)
        cdf = np.cumsum(self.probabilities(costs))
        # Rescaled by its last entry, 1 but for rounding: no uniform falls off the end.
        return int(np.searchsorted(cdf, u * cdf[-1], side="left"))

    def choose_exactly(self, costs: object, draw: Uniforms) -> int:
        """Choose a candidate from a uniform whose bits go on for ever; return its index."""
        cost = array("costs", costs, ndim=1)
        rate = self.eta / (2.0 * self.sensitivity)
        at, _ = exact.choose(cost, rate, np.ones(len(cost), dtype=np.int64), draw)
        return at

    def choose_gumbel(self, costs: object, uniforms: object) -> int:
        """Choose as the largest of noisy scores (Gumbel-max), from n uniforms in (0, 1).

        The same distribution. Never forms a probability, so candidates whose own underflows keep
        their order.
        """
        logs = self.log_probabilities(costs)
        u = array("uniforms", uniforms, shape=logs.shape)
        if not ((u > 0.0) & (u < 1.0)).all():
            raise InputError(f"uniforms must be > 0 and < 1, got {u.min()} to {u.max()}")
        return int(np.argmax(logs - np.log(-np.log(u))))
