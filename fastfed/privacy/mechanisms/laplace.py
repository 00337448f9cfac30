"""The Laplace and exponential mechanisms, and two uses of them: private ranges, winsorized means.

Sources: Dwork, McSherry, Nissim & Smith 2006; McSherry & Talwar 2007; bounded range: Durfee &
Rogers 2019; private range: huang-2023. Guarantees are for noise in real numbers. Without given
uniforms, a release draws random bits from the operating system and meets its guarantee exactly
(`fastfed.privacy.exact`). A release from given uniforms is computed in float64, and meets its
guarantee only up to rounding (Mironov 2012).
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
    """Compute standard Laplace noise from uniforms, by inverting the cdf.

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
    # 1 - u is computed without error if it is small, so both tails have full relative accuracy.
    magnitude = -np.log(2.0 * np.minimum(u, 1.0 - u))
    result: np.ndarray = np.where(u < 0.5, -magnitude, magnitude)
    return result


def standard_laplace(uniform: float) -> float:
    """Return standard Laplace noise computed from one uniform number in (0, 1).

    The result has the same bits on every processor.
    """
    magnitude = -linalg.log(2.0 * min(uniform, 1.0 - uniform))
    return -magnitude if uniform < 0.5 else magnitude


def log_cdf(x: object) -> np.ndarray:
    """Return ln P(noise <= x) of standard Laplace noise for each x, accurate in both tails."""
    values = np.asarray(x, dtype=np.float64)
    log_lower_half = np.minimum(values, 0.0) - math.log(2.0)
    log_upper_half = np.log1p(-0.5 * np.exp(-np.maximum(values, 0.0)))
    result: np.ndarray = np.where(values < 0.0, log_lower_half, log_upper_half)
    return result


class Laplace(msgspec.Struct, frozen=True):
    """The Laplace mechanism: noise of scale sensitivity / epsilon on every entry of a statistic.

    Parameters
    ----------
    sensitivity : float
        > 0, the largest L1 change of the statistic between neighbouring datasets, in its units.
    epsilon : float
        > 0.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (epsilon, 0) for the unit and relation of the sensitivity. If the statistic is a
    single number, delta() and exact() return the smallest delta at an epsilon, and the smallest
    epsilon at a delta. Source: Dwork, McSherry, Nissim & Smith 2006.
    """

    sensitivity: float
    epsilon: float

    def __post_init__(self) -> None:
        """Check both numbers."""
        number("sensitivity", self.sensitivity, above=0)
        number("epsilon", self.epsilon, above=0)

    @property
    def scale(self) -> float:
        """Return the scale b of the noise, with density exp(-|x| / b) / (2 b)."""
        return self.sensitivity / self.epsilon

    @property
    def noise_std(self) -> float:
        """Return the standard deviation sqrt(2) b of the noise."""
        return math.sqrt(2.0) * self.scale

    def release(self, value: object, uniforms: object = None) -> np.ndarray:
        """Return value + noise, entry by entry.

        Parameters
        ----------
        value : array_like
            The statistic. It is not clipped, so it must have the stated sensitivity.
        uniforms : array_like, optional
            For simulations: one number in (0, 1) per entry; do not use them again. By default the
            noise is sampled exactly, from the operating system, and the sum is rounded to a grid.

        Returns
        -------
        ndarray
            The noisy statistic, of the value's shape.
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
        """Return the smallest delta at ``epsilon``, for the release of one number.

        It is 1 - e^{(epsilon - self.epsilon)/2}, and 0 for epsilon >= self.epsilon.
        """
        epsilon = number("epsilon", epsilon, at_least=0)
        return max(0.0, -math.expm1((epsilon - self.epsilon) / 2.0))

    def exact(self, delta: float = 0.0) -> float:
        """Return the smallest epsilon >= 0 at ``delta``, for the release of one number."""
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
        > 0, the largest change of any cost between neighbouring datasets.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (eta, 0) for the unit and relation of the sensitivity. More precisely, the range is
    bounded by eta: ln(P(i)/Q(i)) - ln(P(j)/Q(j)) <= eta for all i, j. This implies eta^2/8-zCDP, a
    quarter of the rho that eta-DP alone implies (Cesar & Rogers 2021; `gdp.rho_of_bounded_range`).
    Source: McSherry & Talwar 2007; Durfee & Rogers 2019.
    """

    eta: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        """Check both numbers."""
        number("eta", self.eta, above=0)
        number("sensitivity", self.sensitivity, above=0)

    def log_probabilities(self, costs: object) -> np.ndarray:
        """Return the logarithm of the probability of each of n candidates, (n,).

        ``costs`` (n,) are finite, n >= 1. The result is accurate even if a probability underflows.
        """
        cost = array("costs", costs, ndim=1)
        if not len(cost):
            raise InputError("costs must hold at least one candidate, got shape (0,)")
        # Subtract the minimum first: large costs would lose accuracy in the products.
        weights = (cost.min() - cost) * (self.eta / (2.0 * self.sensitivity))
        result: np.ndarray = weights - np.log(np.exp(weights).sum())
        return result

    def probabilities(self, costs: object) -> np.ndarray:
        """Return the probability of each of n candidates, (n,), from their ``costs`` (n,)."""
        result: np.ndarray = np.exp(self.log_probabilities(costs))
        return result

    def choose(self, costs: object, uniform: float | None = None) -> int:
        """Return the index of a random candidate, given the cost of each candidate.

        The index is found by inverting the cdf at a uniform number in (0, 1). By default the random
        bits of this number come from the operating system, and the candidates have exactly the
        probabilities of the mechanism. A given ``uniform`` is for simulations.
        """
        if uniform is None:
            return self.choose_exactly(costs, Uniforms(1))
        u = number("uniform", uniform, above=0, below=1)
        cdf = np.cumsum(self.probabilities(costs))
        # The last entry of the cdf is 1 up to rounding; scaling by it keeps the index in range.
        return int(np.searchsorted(cdf, u * cdf[-1], side="left"))

    def choose_exactly(self, costs: object, draw: Uniforms) -> int:
        """Return the index of a random candidate, with exactly the mechanism's probabilities.

        ``draw`` provides as many random bits as the choice needs.
        """
        cost = array("costs", costs, ndim=1)
        rate = self.eta / (2.0 * self.sensitivity)
        index, _ = exact.choose(cost, rate, np.ones(len(cost), dtype=np.int64), draw)
        return index

    def choose_gumbel(self, costs: object, uniforms: object) -> int:
        """Return the index of a random candidate, sampled from n uniforms by the Gumbel-max trick.

        The index has the same distribution as the index of `choose`. Only logarithms of
        probabilities are computed, so candidates whose probability underflows keep their order.
        """
        logs = self.log_probabilities(costs)
        u = array("uniforms", uniforms, shape=logs.shape)
        if not ((u > 0.0) & (u < 1.0)).all():
            raise InputError(f"uniforms must be > 0 and < 1, got {u.min()} to {u.max()}")
        return int(np.argmax(logs - np.log(-np.log(u))))


# ---- A private range of numbers, and their winsorized mean in it ---------------------------------
#
# If most numbers are close together, a private range of a few radii is chosen first, and
# the noise is scaled to this range instead of to [-B, B]. Source: huang-2023, Algorithms 2
# and 3, after Feldman & Steinke 2017 and Levy et al. 2021. Correction: midpoints are -B +
# (2k + 1) r, fixed in advance.

# With more bins than this, their midpoints would not all differ in float64.
_MAX_BINS = 2**50


def bin_count(radius: float, bound: float) -> int:
    """Return the number ell = ceil(bound / radius) of bins of width 2 radius in [-bound, bound].

    Raises InputError unless ``radius`` and ``bound`` are > 0 and ell is at most 2^50.
    """
    ratio = number("bound", bound, above=0) / number("radius", radius, above=0)
    if ratio > _MAX_BINS:
        raise InputError(f"radius must be at least bound / 2^50, got {radius:g} of {bound:g}")
    return math.ceil(ratio)


def private_range(
    values: object, epsilon: float, radius: float, bound: float, uniform: float | None = None
) -> tuple[float, float]:
    """Choose an interval of length 4 radius that contains most values, if such an interval exists.

    The candidates are intervals around ell = ceil(bound / radius) midpoints, which do not depend on
    the values: -bound + (2k + 1) radius for k = 0..ell - 1. Each value is assigned to the nearest
    midpoint (the lower of two). Values out of range are assigned to the first or last midpoint, and
    values that are not finite count as 0. The cost of a midpoint is the larger of two counts: the
    values assigned to higher midpoints, and the values assigned to lower midpoints. A midpoint is
    chosen with probability proportional to exp(-epsilon cost / 2), by inverting the cdf at
    `uniform`. The time is O(M log M), for any number of midpoints.

    Parameters
    ----------
    values : array_like (M,)
        The values, M >= 1.
    epsilon, radius, bound : float
        > 0.
    uniform : float, optional
        In (0, 1), for simulations. By default the choice is exactly distributed, with random bits
        of the operating system.

    Returns
    -------
    tuple of float
        Ends of the interval: the chosen midpoint -+ 2 radius.

    Notes
    -----
    Guarantee: (epsilon, 0) if one value is replaced by any other. The range of the privacy loss
    (see `Exponential`) is bounded by epsilon, because no cost changes by more than 1. Source:
    huang-2023, Algorithm 2; Feldman & Steinke 2017.
    """
    x, checked_epsilon = _checked_values(values), number("epsilon", epsilon, above=0)
    if uniform is None:
        middle = _exact_middle(x, checked_epsilon, radius, bound, Uniforms(1))
        return middle - 2.0 * radius, middle + 2.0 * radius
    return _seeded_range(
        x, checked_epsilon, radius, bound, number("uniform", uniform, above=0, below=1)
    )


def range_distribution(
    values: object, epsilon: float, radius: float, bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the midpoints (ell,) of `private_range` and their log probabilities (ell,).

    ell = ceil(bound / radius) is the number of midpoints. Every midpoint is listed, so use this
    function for moderate ell only.
    """
    x = _checked_values(values)
    bins = bin_count(radius, bound)
    value_bins = _nearest_bins(x, radius, bound, bins)
    bins_column = np.arange(bins)[:, None]
    costs = np.maximum(
        (value_bins < bins_column).sum(axis=1), (value_bins > bins_column).sum(axis=1)
    )
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
    """Compute the private mean of values that are clipped to a private range.

    Half of epsilon is for `private_range`. The other half is for Laplace noise of scale
    8 radius / (M epsilon): sensitivity 4 radius / M over epsilon / 2. Values that are not finite
    count as 0. The result is accurate if all values are within `radius` of each other and in
    [-bound, bound], and M epsilon / 8 is well above ln(bound / radius).

    Parameters
    ----------
    values : array_like (M,)
        The values, M >= 1.
    epsilon, radius, bound : float
        > 0.
    range_uniform, laplace_uniform : float, optional
        In (0, 1), for simulations; do not use them again. By default the release is exact, with
        random bits of the operating system.

    Returns
    -------
    float
        The private mean.

    Notes
    -----
    Guarantee: (epsilon, 0) if one value is replaced by any other. Source: huang-2023, Algorithm 3;
    Levy et al. 2021.
    """
    x, checked_epsilon = _checked_values(values), number("epsilon", epsilon, above=0)
    if (range_uniform is None) != (laplace_uniform is None):
        raise InputError("range_uniform and laplace_uniform must both be given, or neither")
    if range_uniform is None or laplace_uniform is None:
        return float(
            exact_means(x[None], checked_epsilon, radius, bound, Uniforms(1), Laplaces(1))[0]
        )
    uniforms = (
        number("range_uniform", range_uniform, above=0, below=1),
        number("laplace_uniform", laplace_uniform, above=0, below=1),
    )
    return seeded_mean(x, checked_epsilon, radius, bound, *uniforms)


def _checked_values(values: object) -> np.ndarray:
    """Return values (M,), M >= 1, with 0 for non-finite ones.

    Non-finite values raise no error, because an error would reveal something about the data.
    """
    x = array("values", values, shape=(None,), finite=False)
    if not len(x):
        raise InputError("values must hold at least one value, got shape (0,)")
    return finite(x)


def finite(x: np.ndarray) -> np.ndarray:
    """Return the values with 0 for those that are not finite."""
    return np.where(np.isfinite(x), x, 0.0)


def _midpoint(k: Any, radius: float, bound: float) -> Any:
    """Return the midpoint of bin k, or an array of midpoints; bins have width 2 radius."""
    return (2 * k + 1) * radius - bound


def _nearest_bins(x: np.ndarray, radius: float, bound: float, bins: int) -> np.ndarray:
    """Return the index (M,) of the bin whose midpoint is nearest to each of the values x (M,).

    There are ``bins`` bins in [-bound, bound]. Of two equally near midpoints the lower one counts.
    """
    clipped = np.clip(x, -bound, bound)
    guess = np.floor((clipped + bound) / (2.0 * radius)).astype(np.int64)
    # Because of rounding, the guess may be one bin off, so compare with both neighbours.
    candidates = np.clip(guess + np.array([-1, 0, 1])[:, None], 0, bins - 1)
    nearest = np.abs(clipped - _midpoint(candidates, radius, bound)).argmin(axis=0)
    nearest_bins: np.ndarray = candidates[nearest, np.arange(len(x))]
    return nearest_bins


def _cost_segments(
    x: np.ndarray, radius: float, bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the costs of all bins of `private_range`, as segments of bins with equal cost.

    The cost of a bin is the larger of two counts: the values in lower bins, and the values in
    higher bins, where ``x`` (M,) are the values. There may be 2^50 bins, but there are at most
    2 M + 1 segments of consecutive bins. The result has three arrays: the first bin of each
    segment, its number of bins (which may be 0), and its cost.
    """
    bins = bin_count(radius, bound)
    occupied, counts = np.unique(_nearest_bins(x, radius, bound, bins), return_counts=True)
    # The segments are: the gap before each occupied bin, the bin, and the last gap.
    m = len(occupied)
    starts = np.empty(2 * m + 1, dtype=np.int64)
    starts[0], starts[1::2], starts[2::2] = 0, occupied, occupied + 1
    lengths = np.diff(starts, append=bins)
    below = np.concatenate([[0], np.cumsum(counts)])
    above = len(x) - below
    costs = np.empty(2 * m + 1, dtype=np.int64)
    costs[0::2] = np.maximum(below, above)
    costs[1::2] = np.maximum(below[:-1], above[1:])
    return starts, lengths, costs


def _seeded_range(
    x: np.ndarray, epsilon: float, radius: float, bound: float, u: float
) -> tuple[float, float]:
    """Return the ends of the interval of `private_range` for finite values x, in float64.

    The midpoint is chosen by inverting the cdf at the uniform number ``u``.
    """
    starts, lengths, costs = _cost_segments(x, radius, bound)
    least_cost = costs[lengths > 0].min()
    weights = np.exp(
        (least_cost - costs) * (0.5 * epsilon), where=lengths > 0, out=np.zeros(len(costs))
    )
    ends = np.cumsum(weights * lengths)
    target = u * ends[-1]
    segment = int(np.searchsorted(ends, target, side="left"))
    weight_before = float(ends[segment - 1]) if segment else 0.0
    # Because of rounding, the target may be beyond the segment: then take the segment's last bin.
    bin_in_segment = int((target - weight_before) / weights[segment])
    bin_in_segment = min(bin_in_segment, int(lengths[segment]) - 1)
    middle = float(_midpoint(int(starts[segment]) + bin_in_segment, radius, bound))
    return middle - 2.0 * radius, middle + 2.0 * radius


def _exact_middle(
    x: np.ndarray, epsilon: float, radius: float, bound: float, draw: Uniforms, index: int = 0
) -> float:
    """Choose a midpoint as `private_range` does, with exact probabilities, and return it.

    The random bits come from entry ``index`` of ``draw``.
    """
    starts, lengths, costs = _cost_segments(x, radius, bound)
    segment, bin_in_segment = exact.choose(
        costs.astype(np.float64), 0.5 * epsilon, lengths, draw, index
    )
    return float(_midpoint(int(starts[segment]) + bin_in_segment, radius, bound))


def seeded_mean(
    x: np.ndarray, epsilon: float, radius: float, bound: float, u: float, noise: float
) -> float:
    """Return `winsorized_mean_1d` of finite values x, computed in float64 from two given uniforms.

    ``u`` is the uniform number for the choice of the range, and ``noise`` that for the Laplace
    noise.
    """
    low, high = _seeded_range(x, epsilon / 2.0, radius, bound, u)
    # Sum the differences to the middle of the range, so that small noise is not lost by rounding in
    # a large sum of values. cumsum adds in order, as a compiled loop does.
    middle = 0.5 * (low + high)
    total = float(np.cumsum(np.clip(x, low, high) - middle)[-1])
    noise_value = laplace_scale(len(x), epsilon, radius) * float(laplace_quantile(noise))
    return middle + (total / len(x) + noise_value)


def exact_means(
    samples: np.ndarray,
    epsilon: float,
    radius: float,
    bound: float,
    ranges: Uniforms,
    noises: Laplaces,
) -> np.ndarray:
    """Return the means (k,) by `winsorized_mean_1d` of the rows (n,) of ``samples`` (k, n).

    Random numbers are sampled exactly: ``ranges`` chooses the range of each row, and ``noises`` are
    the Laplace noises of the means. The differences between a row's values and the middle of its
    range are rounded to multiples of a unit, so that sums of these differences are exact. Without
    rounding, the sensitivity of such a sum would be 4 radius. Rounding increases the sensitivity,
    so the noise is increased by the same factor.
    """
    k, n = samples.shape
    unit = 2.0 ** math.ceil(math.log2(2.0 * radius)) * exact.quantum(n)
    middles, totals = np.empty(k), np.empty(k)
    for i, x in enumerate(samples):
        middles[i] = _exact_middle(x, epsilon / 2.0, radius, bound, ranges, i)
        centred = np.clip(x - middles[i], -2.0 * radius, 2.0 * radius)
        totals[i] = exact.quantise(centred, unit).sum()
    inflation = 1.0 + unit / (4.0 * radius) + 2.0**-48
    scale = n * laplace_scale(n, epsilon, radius) * inflation
    return middles + exact.add_laplace(totals, np.full(k, scale), noises) / n


def laplace_scale(count: int, epsilon: float, radius: float) -> float:
    """Return the scale of the Laplace noise on a winsorized mean of ``count`` numbers.

    The noise gets half of epsilon, and the mean has the sensitivity 4 radius / count, so the scale
    is (4 radius / count) / (epsilon / 2).
    """
    return 8.0 * radius / (count * epsilon)
