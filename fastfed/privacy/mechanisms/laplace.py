"""The Laplace mechanism, the exponential mechanism, and what both make of numbers: a private range.

Sources: Dwork, McSherry, Nissim & Smith 2006; McSherry & Talwar 2007; bounded range: Durfee &
Rogers 2019; private range: huang-2023. Guarantees are for real numbers; a release without given
uniforms keeps them (`fastfed.privacy.exact`), one in float64 only up to rounding (Mironov 2012).
"""

from __future__ import annotations

import math
from typing import Any

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


# ---- A private range of numbers, and their winsorized mean in it ---------------------------------
#
# When most numbers lie close together, a private range of a few radii is found first, and the noise
# is for that range instead of the whole line. Source: huang-2023, Algorithms 2 and 3, after Feldman
# & Steinke 2017 and Levy et al. 2021. Correction: midpoints are -B + (2k + 1) r, fixed in advance.

# More bins than this have no midpoints of their own in float64.
_MOST_BINS = 2**50


def bin_count(radius: float, bound: float) -> int:
    """Compute ell = ceil(bound / radius), the bins of width 2 radius that cover [-bound, bound].

    Raises InputError unless both are > 0 and ell is at most 2^50.
    """
    ratio = number("bound", bound, above=0) / number("radius", radius, above=0)
    if ratio > _MOST_BINS:
        raise InputError(f"radius must be at least bound / 2^50, got {radius:g} of {bound:g}")
    return math.ceil(ratio)


def private_range(
    values: object,
    epsilon: float,
    radius: float,
    bound: float,
    uniform: float | None = None,
) -> tuple[float, float]:
    """Choose an interval of length 4 radius where most of the values are, if any is.

    Every value goes to the nearest of ell = ceil(bound / radius) midpoints -bound + (2k + 1) radius
    (the lower of two), which do not depend on the values; one out of range goes to the last, one
    that is not finite counts as 0. A midpoint with b values strictly below it and a above costs
    max(a, b); it is chosen with probability proportional to exp(-epsilon cost / 2), by inverting
    the cdf at `uniform`, and returned -+ 2 radius. Takes O(M log M), however many midpoints there
    are.

    Parameters
    ----------
    values : array_like (M,)
        M >= 1.
    epsilon, radius, bound : float
        > 0.
    uniform : float, optional
        In (0, 1), for simulations. By default it is the operating system's, and the choice is
        exact.

    Returns
    -------
    tuple of float
        Ends of the interval.

    Notes
    -----
    Guarantee: (epsilon, 0) for one value replaced by any other, and the range of the privacy loss
    is bounded by epsilon, since no cost changes by more than 1.
    Source: huang-2023, Algorithm 2; Feldman & Steinke 2017.
    """
    x, each = _values(values), number("epsilon", epsilon, above=0)
    if uniform is None:
        middle = _middle(x, each, radius, bound, Uniforms(1))
        return middle - 2.0 * radius, middle + 2.0 * radius
    return _range(x, each, radius, bound, number("uniform", uniform, above=0, below=1))


def range_distribution(
    values: object, epsilon: float, radius: float, bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Midpoints (ell,) that private_range chooses from and their log probabilities (ell,).

    Written out for every midpoint, so for moderate bound / radius only.
    """
    x = _values(values)
    bins = bin_count(radius, bound)
    own = _bins(x, radius, bound, bins)
    at = np.arange(bins)[:, None]
    costs = np.maximum((own < at).sum(axis=1), (own > at).sum(axis=1))
    midpoints = _midpoint(np.arange(bins), radius, bound)
    return midpoints, Exponential(number("epsilon", epsilon, above=0)).log_probabilities(costs)


def winsorized_mean_1d(
    values: object,
    epsilon: float,
    radius: float,
    bound: float,
    range_uniform: float | None = None,
    laplace_uniform: float | None = None,
) -> float:
    """Mean of values, moved into a private range, plus Laplace noise.

    Half of epsilon is for private_range, the other half for noise of scale 8 radius / (M epsilon),
    which is the sensitivity 4 radius / M over epsilon / 2. Values that are not finite count as 0.
    Near the mean when all values are within `radius` of each other and of [-bound, bound], and M
    epsilon / 8 is well above ln(bound / radius).

    Parameters
    ----------
    values : array_like (M,)
        M >= 1.
    epsilon, radius, bound : float
        > 0.
    range_uniform, laplace_uniform : float, optional
        In (0, 1), never used again, for simulations. By default randomness is the operating
        system's, and the release is exact.

    Returns
    -------
    float

    Notes
    -----
    Guarantee: (epsilon, 0) for one value replaced by any other.
    Source: huang-2023, Algorithm 3; Levy et al. 2021.
    """
    x, each = _values(values), number("epsilon", epsilon, above=0)
    if (range_uniform is None) != (laplace_uniform is None):
        raise InputError("range_uniform and laplace_uniform must both be given, or neither")
    if range_uniform is None or laplace_uniform is None:
        return float(exact_means(x[None], each, radius, bound, Uniforms(1), Laplaces(1))[0])
    uniforms = (
        number("range_uniform", range_uniform, above=0, below=1),
        number("laplace_uniform", laplace_uniform, above=0, below=1),
    )
    return seeded_mean(x, each, radius, bound, *uniforms)


def _values(values: object) -> np.ndarray:
    """Values (M,) with 0 for what is not finite: an error would tell something about the data."""
    x = array("values", values, shape=(None,), finite=False)
    if not len(x):
        raise InputError("values must hold at least one value, got shape (0,)")
    return finite(x)


def finite(x: np.ndarray) -> np.ndarray:
    """Replace what is not finite by 0."""
    return np.where(np.isfinite(x), x, 0.0)


def _midpoint(k: Any, radius: float, bound: float) -> Any:
    """Midpoint of bin k."""
    return (2 * k + 1) * radius - bound


def _bins(x: np.ndarray, radius: float, bound: float, bins: int) -> np.ndarray:
    """The bin (M,) of the midpoint nearest to each value, the lower of two."""
    clipped = np.clip(x, -bound, bound)
    guess = np.floor((clipped + bound) / (2.0 * radius)).astype(np.int64)
    # The quotient may be rounded across an edge, so its neighbours are looked at too.
    near = np.clip(guess + np.array([-1, 0, 1])[:, None], 0, bins - 1)
    best = np.abs(clipped - _midpoint(near, radius, bound)).argmin(axis=0)
    found: np.ndarray = near[best, np.arange(len(x))]
    return found


def _segments(
    x: np.ndarray, radius: float, bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First bins, numbers of bins and costs of the runs of bins that cost the same."""
    bins = bin_count(radius, bound)
    taken, counts = np.unique(_bins(x, radius, bound, bins), return_counts=True)
    # Costs are constant on segments: the gap before each taken bin, the bin, and the last gap.
    m = len(taken)
    starts = np.empty(2 * m + 1, dtype=np.int64)
    starts[0], starts[1::2], starts[2::2] = 0, taken, taken + 1
    lengths = np.diff(starts, append=bins)
    below = np.concatenate([[0], np.cumsum(counts)])
    above = len(x) - below
    costs = np.empty(2 * m + 1, dtype=np.int64)
    costs[0::2] = np.maximum(below, above)
    costs[1::2] = np.maximum(below[:-1], above[1:])
    return starts, lengths, costs


def _range(
    x: np.ndarray, epsilon: float, radius: float, bound: float, u: float
) -> tuple[float, float]:
    """Compute private_range of finite values, in float64 at a given uniform."""
    starts, lengths, costs = _segments(x, radius, bound)
    least = costs[lengths > 0].min()
    each = np.exp((least - costs) * (0.5 * epsilon), where=lengths > 0, out=np.zeros(len(costs)))
    ends = np.cumsum(each * lengths)
    target = u * ends[-1]
    at = int(np.searchsorted(ends, target, side="left"))
    before = float(ends[at - 1]) if at else 0.0
    # The last of the segment, where rounding would lead beyond it.
    inside = min(int((target - before) / each[at]), int(lengths[at]) - 1)
    middle = float(_midpoint(int(starts[at]) + inside, radius, bound))
    return middle - 2.0 * radius, middle + 2.0 * radius


def _middle(
    x: np.ndarray, epsilon: float, radius: float, bound: float, draw: Uniforms, index: int = 0
) -> float:
    """Choose the midpoint of private_range, as with real weights."""
    starts, lengths, costs = _segments(x, radius, bound)
    at, place = exact.choose(costs.astype(np.float64), 0.5 * epsilon, lengths, draw, index)
    return float(_midpoint(int(starts[at]) + place, radius, bound))


def seeded_mean(
    x: np.ndarray, epsilon: float, radius: float, bound: float, u: float, noise: float
) -> float:
    """Compute winsorized_mean_1d of finite values, in float64 at given uniforms."""
    low, high = _range(x, epsilon / 2.0, radius, bound, u)
    # About the middle, which is released already: sums of the values themselves would round away
    # noise that is small beside them. One after the other, as a compiled loop adds.
    middle = 0.5 * (low + high)
    total = float(np.cumsum(np.clip(x, low, high) - middle)[-1])
    drawn = laplace_scale(len(x), epsilon, radius) * float(laplace_quantile(noise))
    return middle + (total / len(x) + drawn)


def exact_means(
    columns: np.ndarray,
    epsilon: float,
    radius: float,
    bound: float,
    ranges: Uniforms,
    noises: Laplaces,
) -> np.ndarray:
    """Compute winsorized_mean_1d of each row (n,) of ``columns`` (k, n), released exactly.

    Each value enters the sum about the middle as a multiple of a unit, so that sums are exact; the
    noise pays for the addition to the sensitivity 4 radius.
    """
    k, n = columns.shape
    unit = 2.0 ** math.ceil(math.log2(2.0 * radius)) * exact.quantum(n)
    middles, totals = np.empty(k), np.empty(k)
    for i, x in enumerate(columns):
        middles[i] = _middle(x, epsilon / 2.0, radius, bound, ranges, i)
        inside = np.clip(x - middles[i], -2.0 * radius, 2.0 * radius)
        totals[i] = exact.quantise(inside, unit).sum()
    larger = 1.0 + unit / (4.0 * radius) + 2.0**-48
    scale = n * laplace_scale(n, epsilon, radius) * larger
    return middles + exact.add_laplace(totals, np.full(k, scale), noises) / n


def laplace_scale(count: int, epsilon: float, radius: float) -> float:
    """Scale of the Laplace noise on a mean."""
    return 8.0 * radius / (count * epsilon)
