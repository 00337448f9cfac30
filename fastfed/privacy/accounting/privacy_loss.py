"""Composition by the privacy-loss distribution (PLD), and the largest equal share of a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from fastfed._roots import brentq
from fastfed._validate import InputError, choice, integer, number, show

# ---- composition of many pure mechanisms, by the privacy-loss distribution -----------------------
# A pair of distributions (P, Q) dominates a mechanism when H(a) = sup_S P(S) - a Q(S) is at least
# that of its outputs on any two neighbouring datasets, for every a > 0. Products of dominating
# pairs dominate adaptive compositions (Zhu, Dong & Wang 2022, Theorem 10), and (epsilon, delta)
# holds when delta >= H(e^epsilon) = E(1 - e^(epsilon - L))_+, where L = ln(P/Q) under P is the
# loss.
#
# 1. Pairs. All losses lie in [-e, e] for e the mechanism's own epsilon. "randomized-response": L =
# e with probability 1/(1 + e^-e), else -e. It dominates every (e, 0)-private mechanism (Kairouz, Oh
# & Viswanath 2015). "bounded-range": on two neighbours the losses of a mechanism of range e lie in
# some [t - e, t], 0 <= t <= e. Under Q the ratio Y = e^L has mean 1, and (Y - a)_+ is convex, so
# its mean is at most that of the distribution on the two ends. With s = e^t, k = e^-e and a between
# the ends this is (1 + k a - a/s - k s)/(1 - k), largest at s = sqrt(a/k): H(a) = (1 - sqrt(k a))^2
# / (1 - k), k <= a <= 1/k. H is convex, 1 - a at k with slope -1 and 0 at 1/k with slope 0, hence
# the curve of one pair; from H'', the density of L is proportional to e^(L/2) on [-e, e].
# Exchanging the datasets gives the same. "laplace": noise of scale 1/e, shift 1 (a smaller shift is
# dominated, the density being log-concave): L = e with probability 1/2, -e with e^-e/2, and in
# between the density e^((L - e)/2)/4. So it is a mixture of the other two, of weights (1 + k)/2 and
# (1 - k)/2. 2. Grid. A loss between two grid points is split over them so that its masses under P
# and under Q are both kept ("connecting the dots", Doroshenko et al. 2022). H becomes its
# interpolation between grid points, which for a convex function is above it; there is no drift.
# 3. Tilting. Masses are multiplied by e^(theta L) and normalised, which centres the sum S at the
# epsilon sought; with K(theta) = ln E e^(theta S), H(e^epsilon) = E_theta e^(K - theta S) (1 -
# e^(epsilon - S))_+. The sum's distribution is found modulo a window by Fourier transforms.
# Whatever lies outside the window is counted inside as well, which only adds; what lies above it is
# added once more as infinite loss, by Chernoff's bound.
# 4. Rounding. A transform of N numbers errs by at most 8 u log2(N) in L2 (Higham 2002, Theorem
# 24.2, u = 2^-53). A product of n transforms of modulus <= 1 has an error of at most the sum of
# theirs and 8 u n, and a vector's L1 norm is at most sqrt(N) times its L2 norm. An error of the
# tilted masses of w in L1 costs at most w e^(K - theta epsilon) max_x e^(-theta x) (1 - e^-x).


KINDS = ("randomized-response", "laplace", "bounded-range")

#: A kind, the epsilon of one mechanism, and how many of them there are.
Part = tuple[str, float, int]

_UNIT = 2.0**-53
# The tilted mass that the window may miss at either end is about e^-36.
_TAIL = 36.0
# Splitting losses over grid points adds h^2/6 to each variance: with this many points for the root
# of the number of mechanisms that is about 2e-4 of the whole.
_POINTS = 480.0
_FEWEST, _MOST = 2**14, 2**20
# No grid is finer than the largest epsilon over this.
_FINEST = 2**18
# Smaller epsilons are raised to the one, larger ones are only added up: no exponential overflows.
_LEAST_LOSS, _MOST_LOSS = 1e-100, 1e6


def composed_epsilon(parts: Iterable[Part], delta: float) -> float:
    """Compute an epsilon that is proven at delta for all these mechanisms, adaptively composed.

    Parameters
    ----------
    parts : iterable of (kind, epsilon, count)
        `count` mechanisms of (epsilon, 0) each, chosen in advance in number and epsilon but
        otherwise in view of each other's outputs. kind: "laplace" (one number of sensitivity 1
        plus noise of scale 1/epsilon), "bounded-range" (the exponential mechanism of eta =
        epsilon) or "randomized-response", which covers any (epsilon, 0)-private mechanism.
    delta : float
        In [0, 1); at 0 the result is the sum of the epsilons.

    Returns
    -------
    float
        Never below the least epsilon of the pairs that stand for the mechanisms, and above it by
        about 1e-4 of it. Less tight where it matters less: beyond some 10^8 mechanisms it is a
        bound by Renyi divergences, and with an epsilon above 10^6 the sum.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The proof stands at the top of this module.

    Examples
    --------
    >>> round(composed_epsilon([("laplace", 0.1, 100)], 1e-6), 2)
    4.69
    """
    delta = number("delta", delta, at_least=0, below=1)
    found = _checked(parts)
    total = math.fsum(count * epsilon for (_, epsilon), count in found.items())
    if delta == 0.0 or total == 0.0 or max(e for _, e in found) > _MOST_LOSS:
        return total
    return _Sum(found, total, delta).epsilon()


def _checked(parts: Iterable[Part]) -> dict[tuple[str, float], int]:
    """Count mechanisms by kind and epsilon, without those that cost nothing."""
    found: dict[tuple[str, float], int] = {}
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 3:
            raise InputError(f"parts must be triples (kind, epsilon, count), got {show(part)}")
        kind = choice("kind", part[0], KINDS)
        epsilon = number("epsilon", part[1], at_least=0)
        count = integer("count", part[2], at_least=0, at_most=2**53)
        if epsilon > 0.0 and count > 0:
            epsilon = max(epsilon, _LEAST_LOSS)
            found[kind, epsilon] = found.get((kind, epsilon), 0) + count
    return found


class _Sum:
    """Privacy loss of all parts together, prepared for one delta in (0, 1)."""

    def __init__(self, parts: dict[tuple[str, float], int], total: float, delta: float) -> None:
        """Tilt the sum and tabulate it in its window."""
        self.parts, self.total, self.target = parts, total, math.log(delta)
        self.count = sum(parts.values())
        self.theta, self.renyi = self._tilt()
        self._tabulate(*self._window())

    # ---- where to look: the exact cumulants, no grid yet ---------------------------------------

    def _cumulant(self, theta: np.ndarray) -> np.ndarray:
        """Compute K at each theta (n,), of the pairs themselves."""
        values = [count * _cumulant(*part, theta) for part, count in self.parts.items()]
        result: np.ndarray = np.sum(values, axis=0)
        return result

    def _scales(self) -> np.ndarray:
        """Tilts from negligible to extreme."""
        smallest = min(epsilon for _, epsilon in self.parts)
        return np.geomspace(1e-3 * min(1.0, 1.0 / self.total), 100.0 / smallest, 400)

    def _tilt(self) -> tuple[float, float]:
        """Find the theta with the least bound of epsilon by E e^(theta S), and that bound.

        It is the one of Canonne, Kamath & Steinke 2020 for the Renyi order 1 + theta.
        """

        def bounds(theta: np.ndarray) -> np.ndarray:
            """Bounds of epsilon, one for each theta."""
            result: np.ndarray = (self._cumulant(theta) + _log_peak(theta) - self.target) / theta
            return result

        grid = self._scales()
        at = int(bounds(grid).argmin())
        fine = np.geomspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], 41)
        found = bounds(fine)
        best = int(found.argmin())
        return float(fine[best]), float(found[best])

    def _window(self) -> tuple[float, float, float]:
        """Ends that hold all but e^-36 of the tilted distribution, and a larger tilt.

        The last is the additional tilt for the bound at the upper end.
        """
        steps = self._scales()
        here = self._cumulant(np.array([self.theta]))[0]
        above = (self._cumulant(self.theta + steps) - here + _TAIL) / steps
        below = (here - self._cumulant(self.theta - steps) - _TAIL) / steps
        at = int(above.argmin())
        low = max(float(below.max()), -self.total)
        return low, min(float(above[at]), self.total), float(steps[at])

    # ---- the distribution of the sum on a grid --------------------------------------------------

    def _tabulate(self, low: float, high: float, more: float) -> None:
        """Compute the distribution of the tilted sum on a grid."""
        size = 1 << math.ceil(math.log2(max(_FEWEST, _POINTS * math.sqrt(self.count))))
        self.size = size = min(size, _MOST)
        largest = max(epsilon for _, epsilon in self.parts)
        step = max((high - low) / (size - 8), largest / _FINEST)
        # The mechanisms that matter most have their ends on the grid, where nothing is split.
        main = max(self.parts, key=lambda part: self.parts[part] * part[1] ** 2)[1]
        self.step = step = main / max(math.floor(main / step), 1) if main > step else step
        self.first = math.floor(low / step) - 2

        transformed = np.ones(size // 2 + 1, dtype=np.complex128)
        self.cumulant = beyond = 0.0
        last = 0
        for (kind, epsilon), count in self.parts.items():
            mass, start = _on_grid(kind, epsilon, step)
            loss = step * np.arange(start, start + len(mass))
            tilted, cumulant = _tilted(mass, loss, self.theta)
            at = np.arange(start, start + len(mass)) % size
            transformed *= np.fft.rfft(np.bincount(at, tilted, minlength=size)) ** count
            self.cumulant += count * cumulant
            beyond += count * _tilted(mass, loss, self.theta + more)[1]
            last += count * -start
        mass = np.roll(np.fft.irfft(transformed, size), -self.first)
        self.mass = np.maximum(mass, 0.0)
        error = 8.0 * _UNIT * math.sqrt(size) * (self.count + 1) * (math.log2(size) + 1.0)
        self.log_error = math.log(error) + float(_log_peak(np.array(self.theta)))
        end = self.first + size
        # Chernoff's bound of what the window cannot show, none when the sum cannot get there.
        outside = beyond - (self.theta + more) * step * end
        self.missing = math.exp(min(outside, 0.0)) if end <= last else 0.0
        # Relative rounding of masses, of their products and of the exponents.
        reach = self.theta * step * max(abs(self.first), abs(end))
        self.slack = 16.0 * _UNIT * (abs(self.cumulant) + reach + self.count + 64.0)

    def _sums(self, at: int) -> tuple[float, float]:
        """Compute two sums for epsilon up to grid point s = at, over S >= s.

        They are of e^(-theta (S - s)) (1 - e^-(S - s)) and of e^(-theta (S - s)) e^-(S - s).
        """
        x = self.step * np.arange(self.size - at)
        mass = self.mass[at:] * np.exp(-self.theta * x)
        return float(np.sum(mass * -np.expm1(-x))), float(np.sum(mass * np.exp(-x)))

    def _log_delta(self, sums: tuple[float, float], at: int, less: float) -> float:
        """Compute ln of the proven delta at epsilon = grid point `at` - less, 0 <= less <= step."""
        shift = self.cumulant - self.theta * self.step * (self.first + at)
        inside = sums[0] + sums[1] * -math.expm1(-less)
        with np.errstate(divide="ignore"):
            found = np.log(inside) + shift
            found = np.logaddexp(found, self.log_error + self.theta * less + shift)
            return float(np.logaddexp(found, np.log(self.missing))) + self.slack

    def epsilon(self) -> float:
        """Find the least epsilon >= 0 of the window whose proven delta is small enough."""
        fallback = min(self.total, max(self.renyi, 0.0) * (1.0 + 1e-9))
        low, high = max(-self.first, 0), self.size - 1  # grid points 0 and the last
        if low > high or self._log_delta(self._sums(high), high, 0.0) > self.target:
            return fallback
        # The first grid point that is large enough, then the place in the cell below it.
        while low < high:
            middle = (low + high) // 2
            if self._log_delta(self._sums(middle), middle, 0.0) <= self.target:
                high = middle
            else:
                low = middle + 1
        point = self.step * (self.first + high)
        if high == 0 or point <= 0.0:
            return min(max(point, 0.0), fallback)
        sums, less, most = self._sums(high), 0.0, min(self.step, point)
        for _ in range(50):
            between = (less + most) / 2.0
            if self._log_delta(sums, high, between) <= self.target:
                less = between
            else:
                most = between
        # A grid point may be off by the rounding of the step.
        return min(point - less + 1e-13 * self.total, fallback)


def _log_peak(theta: np.ndarray) -> np.ndarray:
    """Compute ln max_x e^(-theta x) (1 - e^-x), theta > 0."""
    result: np.ndarray = -theta * np.log1p(1.0 / theta) - np.log1p(theta)
    return result


def _log_sinhc(x: np.ndarray) -> np.ndarray:
    """Compute ln(sinh(x)/x)."""
    size = np.abs(x)
    large = np.maximum(size, 1e-2)
    far = large - math.log(2.0) + np.log1p(-np.exp(-2.0 * large)) - np.log(large)
    square = size * size
    near = square / 6.0 - square * square / 180.0 + square**3 / 2835.0
    result: np.ndarray = np.where(size < 1e-2, near, far)
    return result


def _weights(kind: str, epsilon: float) -> tuple[float, float]:
    """Shares of the two-point distribution and of the density e^(L/2) in a kind's loss."""
    if kind == "laplace":
        both = math.exp(-epsilon)
        return (1.0 + both) / 2.0, -math.expm1(-epsilon) / 2.0
    return (1.0, 0.0) if kind == "randomized-response" else (0.0, 1.0)


def _cumulant(kind: str, epsilon: float, theta: np.ndarray) -> np.ndarray:
    """Compute ln E e^(theta L) of one mechanism, at each theta (n,)."""
    points = np.logaddexp(theta * epsilon, -(1.0 + theta) * epsilon) - math.log1p(
        math.exp(-epsilon)
    )
    between = _log_sinhc((theta + 0.5) * epsilon) - float(_log_sinhc(np.array(0.5 * epsilon)))
    with np.errstate(divide="ignore"):
        shares = np.log(_weights(kind, epsilon))
    result: np.ndarray = np.logaddexp(shares[0] + points, shares[1] + between)
    return result


def _on_grid(kind: str, epsilon: float, step: float) -> tuple[np.ndarray, int]:
    """Masses of one mechanism's loss on multiples of step, and the number of the first (step 2)."""
    # A multiple of the step but for rounding is one.
    cells = max(math.ceil(epsilon / step * (1.0 - 1e-14)), 1)
    start = -cells
    points, between = _weights(kind, epsilon)
    mass = np.zeros(2 * cells + 1)
    # Where in its cell e lies, from below; -e lies as far from the upper end of its own.
    inside = min(max(epsilon - (cells - 1) * step, 0.0), step)
    for at, part, share in (
        (2 * cells - 1, inside, 1.0 / (1.0 + math.exp(-epsilon))),
        (0, step - inside, math.exp(-epsilon) / (1.0 + math.exp(-epsilon))),
    ):
        upper = math.expm1(-part) / math.expm1(-step)
        lower = math.exp(-part) * math.expm1(-(step - part)) / math.expm1(-step)
        mass[at] += points * share * lower
        mass[at + 1] += points * share * upper
    if between > 0.0:
        # Cells [x, x + step], of which the density covers x + from to x + to.
        x = step * np.arange(start, cells)
        begin, end = np.zeros(2 * cells), np.full(2 * cells, step)
        begin[0], end[-1] = step - inside, inside
        scale = 4.0 * between * np.exp((x - epsilon) / 2.0)
        scale /= math.expm1(-epsilon) * math.expm1(-step)
        width = np.sinh((end - begin) / 4.0)
        mass[1:] += scale * np.sinh((begin + end) / 4.0) * width
        left = np.sinh((2.0 * step - begin - end) / 4.0)
        mass[:-1] += scale * math.exp(-step / 2.0) * left * width
    return mass, start


def _tilted(mass: np.ndarray, loss: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
    """Tilt masses by e^(theta loss) to a sum of 1; also the logarithm of their sum before."""
    weighted = mass * np.exp(theta * (loss - loss[-1]))
    total = float(weighted.sum())
    return weighted / total, theta * float(loss[-1]) + math.log(total)


# ---- equal shares of a budget --------------------------------------------------------------------

_CLOSE = 1e-8  # how near to the largest epsilon the search ends, relatively


def largest_share(
    epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...] = ()
) -> float:
    """Largest epsilon of each of `count` mechanisms that fit in a budget together.

    Together with the given ones they are proven (epsilon, delta) by `composed_epsilon`, to a
    relative 1e-7 from below.

    Parameters
    ----------
    epsilon : float
        > 0.
    delta : float
        In [0, 1).
    kind : str
        As in `composed_epsilon`.
    count : int
        >= 1.
    given : tuple of parts
        Mechanisms that are paid for first.

    Returns
    -------
    float

    Raises
    ------
    InputError
        For values out of range, and if the given parts alone exceed the budget.

    Examples
    --------
    >>> largest_share(1.0, 0.0, "bounded-range", 10, (("randomized-response", 0.5, 1),))
    0.05
    """
    budget = number("epsilon", epsilon, above=0), number("delta", delta, at_least=0, below=1)
    kind, count = choice("kind", kind, KINDS), integer("count", count, at_least=1)
    return _largest(*budget, kind, count, tuple(given))


@lru_cache(maxsize=4096)
def _largest(epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...]) -> float:
    """Compute `largest_share` for arguments that were checked before."""

    def total(each: float) -> float:
        """Epsilon of all mechanisms together."""
        return composed_epsilon([*given, (kind, each, count)], delta)

    if composed_epsilon(given, delta) >= epsilon:
        raise InputError(f"given must cost less than epsilon {epsilon:g}, got {given!r}")
    # Basic composition is within the budget.
    each = (epsilon - sum(n * e for _, e, n in given)) / count
    if delta > 0.0:
        # Many of them add up like the root of their number.
        low = max(each, epsilon / math.sqrt(count * (2.0 * epsilon - 8.0 * math.log(delta))))
        while total(low) > epsilon:  # the given parts may cost less together than one by one
            low /= 2.0
        high = 1.5 * low
        while total(high) <= epsilon:
            low, high = high, 1.5 * high
        if total(low) < epsilon:
            low = float(brentq(lambda e: total(e) - epsilon, low, high, xtol=1e-300, rtol=_CLOSE))
        # Room for an account that is not quite smooth, where the caller rounds.
        each = low * (1.0 - _CLOSE)
    # One that rounding has put above the budget.
    while total(each) > epsilon:
        each *= 1.0 - (_CLOSE if delta > 0.0 else 2.0**-52)
    return each
