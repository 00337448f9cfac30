"""Composition of pure DP mechanisms by privacy loss distributions, and equal shares of a budget.

`composed_epsilon` returns the epsilon of a composition, and `largest_share` the largest epsilon of
each of several equal mechanisms that together meet a budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from fastfed._roots import brentq
from fastfed._validate import InputError, choice, integer, number, show

# ---- composition of many pure mechanisms, by the privacy-loss distribution -----------------------
# A pair of distributions (P, Q) dominates a mechanism if H(a) = sup_S P(S) - a Q(S) is at least the
# mechanism's value on any two neighbouring datasets, for every a > 0. Products of dominating pairs
# dominate adaptive compositions (Zhu, Dong & Wang 2022, Theorem 10). (epsilon, delta) holds if
# delta >= H(e^epsilon) = E(1 - e^(epsilon - L))_+, where L = ln(P/Q) under P is the privacy loss.
#
# 1. Pairs. All losses are in [-e, e], where e is the epsilon of the mechanism.
# "randomized-response": L = e with probability 1/(1 + e^-e), else -e. It dominates every
# (e, 0)-private mechanism (Kairouz, Oh & Viswanath 2015).
# "bounded-range": on two neighbours, the losses of a mechanism of range e are in some [t - e, t],
# 0 <= t <= e. Under Q the ratio Y = e^L has mean 1, and (Y - a)_+ is convex, so (Y - a)_+ has the
# largest mean if Y has only the two end values. With s = e^t, k = e^-e and a between the ends, this
# mean is (1 + k a - a/s - k s)/(1 - k). As a function of s it is largest at s = sqrt(a/k):
# H(a) = (1 - sqrt(k a))^2 / (1 - k) for k <= a <= 1/k. H is convex, equals 1 - a at k with slope
# -1, and 0 at 1/k with slope 0. Hence it is the curve of a pair, and from H'' the density of L is
# proportional to e^(L/2) on [-e, e]. Exchanging the datasets gives the same pair.
# "laplace": noise of scale 1/e and shift 1 (a smaller shift is dominated, because the density is
# log-concave): L = e with probability 1/2, -e with probability e^-e/2, and in between the density
# is e^((L - e)/2)/4. So this pair is a mixture of the first pair, with weight (1 + k)/2, and of the
# second pair, with weight (1 - k)/2.
# 2. Grid. A loss between two grid points is split over both so that its masses under P and under Q
# are preserved ("connecting the dots", Doroshenko et al. 2022). H is then replaced by its
# interpolation between grid points, which is an upper bound for a convex function, without drift.
# 3. Tilting. Masses are multiplied by e^(theta L) and normalised, which centres the sum S near the
# epsilon in question. With K(theta) = ln E e^(theta S),
# H(e^epsilon) = E_theta e^(K - theta S) (1 - e^(epsilon - S))_+. Fourier transforms give the sum's
# distribution modulo a window. Mass outside the window is counted inside too, which only increases
# the result. Mass above the window is counted again as infinite loss, by Chernoff's bound.
# 4. Rounding. The transform of N numbers has an L2 error of at most 8 u log2(N) (Higham 2002,
# Theorem 24.2, u = 2^-53). The error of a product of n transforms of modulus <= 1 is at most the
# sum of their errors plus 8 u n. A vector's L1 norm is at most sqrt(N) times its L2 norm. An L1
# error w of the tilted masses costs at most w e^(K - theta epsilon) max_x e^(-theta x) (1 - e^-x).


KINDS = ("randomized-response", "laplace", "bounded-range")

#: Several equal mechanisms as a tuple: their kind, the epsilon of each of them, and their number.
Part = tuple[str, float, int]

_UNIT_ROUNDOFF = 2.0**-53
# The window excludes about e^-36 of the tilted mass at each end.
_TAIL = 36.0
# The grid has this number times sqrt(n) points for n mechanisms. The splitting of losses over grid
# points adds (grid step)^2/6 to the variance of each loss: about 2e-4 of the total variance.
_POINTS_PER_ROOT = 480.0
_SMALLEST_GRID, _LARGEST_GRID = 2**14, 2**20
# The grid step is at least the largest epsilon of a mechanism divided by this number.
_MAX_STEPS_PER_EPSILON = 2**18
# An epsilon below _MIN_LOSS is rounded up to it. If an epsilon is above _MAX_LOSS, the result is
# the sum of all epsilons. So no exponential overflows.
_MIN_LOSS, _MAX_LOSS = 1e-100, 1e6
# For more mechanisms than this, one grid cell would be much longer than the losses of one
# mechanism. The result is then the Renyi bound.
_MAX_TABULATED = 10**12


def composed_epsilon(parts: Iterable[Part], delta: float) -> float:
    """Compute a proven epsilon, at delta, of an adaptive composition of pure DP mechanisms.

    Parameters
    ----------
    parts : iterable of (kind, epsilon, count)
        ``count`` mechanisms, each (epsilon, 0)-private. Their number and epsilon are fixed in
        advance; apart from this, each mechanism may depend on earlier outputs. kind is "laplace"
        (one number of sensitivity 1 plus noise of scale 1/epsilon), "bounded-range" (the
        exponential mechanism with eta = epsilon) or "randomized-response", which covers all
        (epsilon, 0)-private mechanisms.
    delta : float
        In [0, 1); at 0 the result is the sum of the epsilons.

    Returns
    -------
    float
        An upper bound. It is at most about 0.01 % above the exact epsilon of the composition of the
        dominating pairs: pairs of distributions that are worst cases of each kind of mechanism (see
        Notes). It is less tight for more than about 10^8 mechanisms (then a bound by Renyi
        divergences), and if the epsilon of a mechanism is above 10^6 (then the sum of the
        epsilons).

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The proof, which also defines the dominating pairs, is at the top of this module.

    Examples
    --------
    >>> round(composed_epsilon([("laplace", 0.1, 100)], 1e-6), 2)
    4.69
    """
    delta = number("delta", delta, at_least=0, below=1)
    counts = _counted(parts)
    total = math.fsum(count * epsilon for (_, epsilon), count in counts.items())
    if delta == 0.0 or total == 0.0 or max(e for _, e in counts) > _MAX_LOSS:
        return total
    return _Sum(counts, total, delta).epsilon()


def _counted(parts: Iterable[Part]) -> dict[tuple[str, float], int]:
    """Return {(kind, epsilon): count} for the parts with epsilon > 0, after a check of the parts.

    Parts with the same kind and epsilon are counted together. An epsilon below `_MIN_LOSS` is
    rounded up to it.
    """
    counts: dict[tuple[str, float], int] = {}
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 3:
            raise InputError(f"parts must be triples (kind, epsilon, count), got {show(part)}")
        kind = choice("kind", part[0], KINDS)
        epsilon = number("epsilon", part[1], at_least=0)
        count = integer("count", part[2], at_least=0, at_most=2**53)
        if epsilon > 0.0 and count > 0:
            epsilon = max(epsilon, _MIN_LOSS)
            counts[kind, epsilon] = counts.get((kind, epsilon), 0) + count
    return counts


class _Sum:
    """The privacy loss S of a composition, tabulated for one delta in (0, 1).

    S is the sum of the losses of all mechanisms. It is tilted and tabulated in a window, as steps 2
    and 3 of the proof above explain. The attribute ``target`` is ln delta, ``theta`` the tilt, and
    ``renyi`` a bound on epsilon by Renyi divergences.
    """

    def __init__(self, parts: dict[tuple[str, float], int], total: float, delta: float) -> None:
        """Choose the tilt theta for the sum S of losses, and tabulate the tilted distribution of S.

        For more than `_MAX_TABULATED` mechanisms nothing is tabulated. ``parts`` is
        {(kind, epsilon): count}, and ``total`` the sum of the epsilons of all mechanisms.
        """
        self.parts, self.total, self.target = parts, total, math.log(delta)
        self.count = sum(parts.values())
        self.theta, self.renyi = self._tilt()
        if self.count <= _MAX_TABULATED:
            self._tabulate(*self._window())

    # ---- tilt and window, from the exact cumulants ---------------------------------------------

    def _cumulant(self, theta: np.ndarray) -> np.ndarray:
        """Return K(theta) = ln E e^(theta S) of the sum S of losses, at each theta (n,)."""
        values = [count * _cumulant(*part, theta) for part, count in self.parts.items()]
        result: np.ndarray = np.sum(values, axis=0)
        return result

    def _scales(self) -> np.ndarray:
        """Return a grid of 400 values > 0 for the tilt theta, from negligible to extreme values."""
        smallest = min(epsilon for _, epsilon in self.parts)
        return np.geomspace(1e-3 * min(1.0, 1.0 / self.total), 100.0 / smallest, 400)

    def _tilt(self) -> tuple[float, float]:
        """Return the tilt theta with the smallest Renyi bound of epsilon, and this bound.

        The bound is the one of Canonne, Kamath & Steinke 2020 for the Renyi order 1 + theta.
        """

        def bounds(theta: np.ndarray) -> np.ndarray:
            """Return the Renyi bound of epsilon for each theta."""
            cumulant = self._cumulant(theta)
            # A bound on the cumulant's rounding error. For 10^15 mechanisms it exceeds the cumulant
            # at small theta, where the bound of epsilon would be far too small without it.
            error = 16.0 * _UNIT_ROUNDOFF * (np.abs(cumulant) + self.count + self.total + 64.0)
            result: np.ndarray = (cumulant + error + _log_peak(theta) - self.target) / theta
            return result

        # Search on a coarse grid, then on a fine grid around its best point.
        grid = self._scales()
        index = int(bounds(grid).argmin())
        fine = np.geomspace(grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)], 41)
        upper_bound = bounds(fine)
        best_index = int(upper_bound.argmin())
        return float(fine[best_index]), float(upper_bound[best_index])

    def _window(self) -> tuple[float, float, float]:
        """Return (low, high, extra tilt) of a window [low, high] for the sum S of losses.

        The window excludes about e^-36 of the tilted mass at each end, by Chernoff's bound. The
        bound needs a tilt in addition to theta. The extra tilt is the one, of the grid `_scales`,
        for which the upper end of the window is the lowest.
        """
        steps = self._scales()
        cumulant_at_theta = self._cumulant(np.array([self.theta]))[0]
        upper_ends = (self._cumulant(self.theta + steps) - cumulant_at_theta + _TAIL) / steps
        lower_ends = (cumulant_at_theta - self._cumulant(self.theta - steps) - _TAIL) / steps
        index = int(upper_ends.argmin())
        low = max(float(lower_ends.max()), -self.total)
        return low, min(float(upper_ends[index]), self.total), float(steps[index])

    # ---- the distribution of the sum on a grid --------------------------------------------------

    def _tabulate(self, low: float, high: float, extra_tilt: float) -> None:
        """Compute the tilted distribution of the sum S of losses on a grid over [low, high].

        The mechanisms' losses are added by multiplying their Fourier transforms. Afterwards
        ``mass[i]`` is the tilted probability of the grid point ``step * (first + i)``, and
        ``missing`` bounds the probability, without tilt, that S is above the window. `_window`
        explains ``extra_tilt``.
        """
        size = 1 << math.ceil(
            math.log2(max(_SMALLEST_GRID, _POINTS_PER_ROOT * math.sqrt(self.count)))
        )
        self.size = size = min(size, _LARGEST_GRID)
        largest = max(epsilon for _, epsilon in self.parts)
        step = max((high - low) / (size - 8), largest / _MAX_STEPS_PER_EPSILON)
        # Choose a step that divides the epsilon of the mechanisms with the largest variance, so
        # that their losses are grid points and need not be split.
        main_epsilon = max(self.parts, key=lambda part: self.parts[part] * part[1] ** 2)[1]
        self.step = step = (
            main_epsilon / max(math.floor(main_epsilon / step), 1) if main_epsilon > step else step
        )
        self.first = math.floor(low / step) - 2

        transformed = np.ones(size // 2 + 1, dtype=np.complex128)
        self.cumulant = log_tail = 0.0
        largest_index = 0
        for (kind, epsilon), count in self.parts.items():
            mass, start = _on_grid(kind, epsilon, step)
            loss = step * np.arange(start, start + len(mass))
            tilted, cumulant = _tilted(mass, loss, self.theta)
            index = np.arange(start, start + len(mass)) % size
            transformed *= np.fft.rfft(np.bincount(index, tilted, minlength=size)) ** count
            self.cumulant += count * cumulant
            log_tail += count * _tilted(mass, loss, self.theta + extra_tilt)[1]
            largest_index += count * -start  # the largest loss of a mechanism is -start * step
        mass = np.roll(np.fft.irfft(transformed, size), -self.first)
        self.mass = np.maximum(mass, 0.0)
        error = 8.0 * _UNIT_ROUNDOFF * math.sqrt(size) * (self.count + 1) * (math.log2(size) + 1.0)
        self.log_error = math.log(error) + float(_log_peak(np.array(self.theta)))
        end = self.first + size
        # Chernoff bound of the probability that S is above the window; 0 if that is impossible.
        log_missing = log_tail - (self.theta + extra_tilt) * step * end
        self.missing = math.exp(min(log_missing, 0.0)) if end <= largest_index else 0.0
        # Bound on the relative rounding errors of masses, of their products and of exponents.
        largest_exponent = self.theta * step * max(abs(self.first), abs(end))
        self.slack = (
            16.0 * _UNIT_ROUNDOFF * (abs(self.cumulant) + largest_exponent + self.count + 64.0)
        )

    def _sums(self, index: int) -> tuple[float, float]:
        """Return two sums over the grid points S >= s, where s is the grid point of this index.

        Each sum adds up the tilted probabilities ``mass`` times a function of S: in the first sum
        e^(-theta (S - s)) (1 - e^-(S - s)), in the second sum e^(-theta (S - s)) e^-(S - s).
        `_log_delta` computes delta from both sums.
        """
        x = self.step * np.arange(self.size - index)
        mass = self.mass[index:] * np.exp(-self.theta * x)
        return float(np.sum(mass * -np.expm1(-x))), float(np.sum(mass * np.exp(-x)))

    def _log_delta(self, sums: tuple[float, float], index: int, below: float) -> float:
        """Return the logarithm of the proven delta at epsilon = s - below, 0 <= below <= step.

        Here s is the grid point of this index, and ``sums`` is ``_sums(index)``. With x = S - s,
        delta is the tilted mean of e^(K - theta S) (1 - e^(-x - below)) over S >= s, plus bounds on
        errors. Here K is ``cumulant``.
        """
        # 1 - e^(-x - below) = (1 - e^-x) + e^-x (1 - e^-below).
        shift = self.cumulant - self.theta * self.step * (self.first + index)
        delta_part = sums[0] + sums[1] * -math.expm1(-below)
        with np.errstate(divide="ignore"):
            upper_bound = np.log(delta_part) + shift
            upper_bound = np.logaddexp(upper_bound, self.log_error + self.theta * below + shift)
            return float(np.logaddexp(upper_bound, np.log(self.missing))) + self.slack

    def epsilon(self) -> float:
        """Return the least epsilon >= 0 in the window whose proven delta is small enough.

        The proven delta must be at most the given delta. The result is at most the fallback: the
        smaller of the sum of the mechanisms' epsilons and the Renyi bound on epsilon. It is the
        fallback if the window has no such epsilon, or if there are too many mechanisms to tabulate.
        """
        fallback = min(self.total, max(self.renyi, 0.0) * (1.0 + 1e-9))
        if self.count > _MAX_TABULATED:
            return fallback
        low, high = max(-self.first, 0), self.size - 1  # indices of epsilon 0 and of the last point
        if low > high or self._log_delta(self._sums(high), high, 0.0) > self.target:
            return fallback
        # Bisect for the first grid point with a small enough delta, then within the cell below it.
        while low < high:
            middle = (low + high) // 2
            if self._log_delta(self._sums(middle), middle, 0.0) <= self.target:
                high = middle
            else:
                low = middle + 1
        point = self.step * (self.first + high)
        if high == 0 or point <= 0.0:
            return min(max(point, 0.0), fallback)
        sums, below, above_limit = self._sums(high), 0.0, min(self.step, point)
        for _ in range(50):
            middle_below = (below + above_limit) / 2.0
            if self._log_delta(sums, high, middle_below) <= self.target:
                below = middle_below
            else:
                above_limit = middle_below
        # Add the rounding error of a grid point.
        return min(point - below + 1e-13 * self.total, fallback)


def _log_peak(theta: np.ndarray) -> np.ndarray:
    """Return the logarithm of the maximum over x of e^(-theta x) (1 - e^-x), for theta > 0."""
    result: np.ndarray = -theta * np.log1p(1.0 / theta) - np.log1p(theta)
    return result


def _log_sinhc(x: np.ndarray) -> np.ndarray:
    """Return ln(sinh(x)/x) for each x.

    The Taylor series replaces the formula for small x, where the formula would lose all digits.
    """
    magnitude = np.abs(x)
    large = np.maximum(magnitude, 1e-2)
    log_large = large - math.log(2.0) + np.log1p(-np.exp(-2.0 * large)) - np.log(large)
    square = magnitude * magnitude
    log_small = square / 6.0 - square * square / 180.0 + square**3 / 2835.0
    result: np.ndarray = np.where(magnitude < 1e-2, log_small, log_large)
    return result


def _weights(kind: str, epsilon: float) -> tuple[float, float]:
    """Return the weights of the two parts of the distribution of a privacy loss L.

    The first part is a distribution on the two points -epsilon and epsilon. The second has a
    density proportional to e^(L/2) in between (step 1 of the proof at the top of this module).
    """
    if kind == "laplace":
        ratio = math.exp(-epsilon)
        return (1.0 + ratio) / 2.0, -math.expm1(-epsilon) / 2.0
    return (1.0, 0.0) if kind == "randomized-response" else (0.0, 1.0)


def _cumulant(kind: str, epsilon: float, theta: np.ndarray) -> np.ndarray:
    """Return ln E e^(theta L) of the privacy loss L of one mechanism, at each theta (n,).

    E e^(theta L) is the weighted mean of its values on the two parts of `_weights`.
    """
    log_points = np.logaddexp(theta * epsilon, -(1.0 + theta) * epsilon) - math.log1p(
        math.exp(-epsilon)
    )
    log_density = _log_sinhc((theta + 0.5) * epsilon) - float(_log_sinhc(np.array(0.5 * epsilon)))
    with np.errstate(divide="ignore"):
        log_weights = np.log(_weights(kind, epsilon))
    result: np.ndarray = np.logaddexp(log_weights[0] + log_points, log_weights[1] + log_density)
    return result


def _on_grid(kind: str, epsilon: float, step: float) -> tuple[np.ndarray, int]:
    """Return the distribution of one mechanism's privacy loss on a grid of multiples of ``step``.

    The loss has two points and a density, see `_weights`. Losses between grid points are split as
    in step 2 of the proof at the top of this module.

    Returns
    -------
    mass : ndarray
        Probabilities of the loss at consecutive multiples of ``step``.
    start : int
        The first of these multiples is ``start * step``.
    """
    # If epsilon is a multiple of the step up to rounding, use that multiple.
    cells = max(math.ceil(epsilon / step * (1.0 - 1e-14)), 1)
    start = -cells
    points_weight, density_weight = _weights(kind, epsilon)
    mass = np.zeros(2 * cells + 1)
    # Distance of epsilon from the lower end of its grid cell, which is the last one. It is also the
    # distance of -epsilon from the upper end of its cell, which is the first one.
    offset = min(max(epsilon - (cells - 1) * step, 0.0), step)
    for index, distance, probability in (
        (2 * cells - 1, offset, 1.0 / (1.0 + math.exp(-epsilon))),
        (0, step - offset, math.exp(-epsilon) / (1.0 + math.exp(-epsilon))),
    ):
        # Shares of the probability for the upper and for the lower end of the cell.
        upper = math.expm1(-distance) / math.expm1(-step)
        lower = math.exp(-distance) * math.expm1(-(step - distance)) / math.expm1(-step)
        mass[index] += points_weight * probability * lower
        mass[index + 1] += points_weight * probability * upper
    if density_weight > 0.0:
        # In each cell [x, x + step] the density covers [x + begin, x + end]. A loss in the cell is
        # split into a share for the upper and a share for the lower grid point. The masses are the
        # integrals of the density times these shares.
        x = step * np.arange(start, cells)
        begin, end = np.zeros(2 * cells), np.full(2 * cells, step)
        begin[0], end[-1] = step - offset, offset
        scale = 4.0 * density_weight * np.exp((x - epsilon) / 2.0)
        scale /= math.expm1(-epsilon) * math.expm1(-step)
        width = np.sinh((end - begin) / 4.0)
        mass[1:] += scale * np.sinh((begin + end) / 4.0) * width
        left = np.sinh((2.0 * step - begin - end) / 4.0)
        mass[:-1] += scale * math.exp(-step / 2.0) * left * width
    return mass, start


def _tilted(mass: np.ndarray, loss: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
    """Return masses multiplied by e^(theta loss) and divided by their sum; and ln of this sum."""
    weighted = mass * np.exp(theta * (loss - loss[-1]))
    total = float(weighted.sum())
    return weighted / total, theta * float(loss[-1]) + math.log(total)


# ---- equal shares of a budget --------------------------------------------------------------------

_TOLERANCE = 1e-8  # relative tolerance of the search for the largest epsilon


def largest_share(
    epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...] = ()
) -> float:
    """Return the largest epsilon that each of ``count`` equal mechanisms may have in a budget.

    The composition of these mechanisms with the ``given`` mechanisms is (epsilon, delta)-private,
    as `composed_epsilon` proves. The result is at most a relative 1e-7 too small.

    Parameters
    ----------
    epsilon : float
        Epsilon > 0 of the budget for all mechanisms together.
    delta : float
        Delta of the budget, in [0, 1).
    kind : {"laplace", "bounded-range", "randomized-response"}
        The kind of the equal mechanisms, see `composed_epsilon`.
    count : int
        The number >= 1 of equal mechanisms.
    given : tuple of parts
        Further mechanisms that the budget must cover.

    Returns
    -------
    float
        The epsilon of one mechanism.

    Raises
    ------
    InputError
        For values out of range, and if the given mechanisms alone use up the budget.

    Examples
    --------
    >>> largest_share(1.0, 0.0, "bounded-range", 10, (("randomized-response", 0.5, 1),))
    0.05
    """
    budget = number("epsilon", epsilon, above=0), number("delta", delta, at_least=0, below=1)
    kind, count = choice("kind", kind, KINDS), integer("count", count, at_least=1)
    return _cached_largest_share(*budget, kind, count, tuple(given))


@lru_cache(maxsize=4096)
def _cached_largest_share(
    epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...]
) -> float:
    """Return the result of `largest_share`, without a check of the ranges of the arguments.

    In the comments, the share is the epsilon of each of the ``count`` equal mechanisms.
    """

    def total(epsilon_each: float) -> float:
        """Return the composed epsilon of all mechanisms, for equal ones with ``epsilon_each``."""
        return composed_epsilon([*given, (kind, epsilon_each, count)], delta)

    if composed_epsilon(given, delta) >= epsilon:
        raise InputError(f"given must cost less than epsilon {epsilon:g}, got {given!r}")
    # The share for which all epsilons add up to the budget. It is within the budget, so it is a
    # lower bound.
    epsilon_each = (epsilon - sum(n * e for _, e, n in given)) / count
    if delta > 0.0:
        # For many mechanisms, the share is about proportional to 1 / sqrt(count): start there.
        low = max(
            epsilon_each, epsilon / math.sqrt(count * (2.0 * epsilon - 8.0 * math.log(delta)))
        )
        while total(low) > epsilon:  # the starting value ignores `given`, so it may be too large
            low /= 2.0
        high = 1.5 * low
        while total(high) <= epsilon:
            low, high = high, 1.5 * high
        if total(low) < epsilon:
            low = float(
                brentq(lambda e: total(e) - epsilon, low, high, xtol=1e-300, rtol=_TOLERANCE)
            )
        # Leave a margin, because the computed epsilon is not a smooth function of the share.
        epsilon_each = low * (1.0 - _TOLERANCE)
    # Because of rounding, the composed epsilon may still be slightly above the budget.
    while total(epsilon_each) > epsilon:
        epsilon_each *= 1.0 - (_TOLERANCE if delta > 0.0 else 2.0**-52)
    return epsilon_each
