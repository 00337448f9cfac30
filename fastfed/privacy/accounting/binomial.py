"""Accounting of binomial noise: exact losses, a proven closed form, and a lower bound.

Sums of shuffled bits come first, then the fair coins of secure sums, as Gaussian noise of a little
less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fastfed._validate import InputError, boolean, integer, number
from fastfed.privacy.accounting.gdp import gaussian_delta, gaussian_epsilon

# ---- exact privacy losses, and the probit scale --------------------------------------------------
# The noise is X ~ Bin(trials, 1/4); the release is X plus an integer that depends on the data.

#: Probability of a one in the noise bits (zhou-chowdhury-2024, Appendix F.2, p).
ONES = 0.25
#: Most trials for which every probability is computed; above, closed bounds take over.
TABLE_TRIALS = 2**24
# exp underflows from here on: probabilities that far below the largest one count as zero.
_LOG_SMALLEST = 745.0
# A step of the probit scale is a difference of two values with about 13 correct digits, and at
# TABLE_TRIALS a step is 6e-4; seven digits are left with a wide margin.
_ROUNDING = 1e-7


def masses(trials: int, p: float = ONES) -> tuple[int, np.ndarray, np.ndarray]:
    """Tabulate (first, mass, log_ratio): P(X = first + i) = mass[i] wherever it does not underflow.

    log_ratio[i] = ln(P(X = first + i) / P(X = mode)). Built outwards from the mode by the ratio of
    neighbours, so that no factorial is formed, and normalised by its sum.
    """
    mode = min(int((trials + 1) * p), trials)
    reach = math.ceil(39.0 * math.sqrt(trials * p * (1.0 - p)) + 800.0)
    first, last = max(mode - reach, 0), min(mode + reach, trials)
    up = np.arange(mode + 1, last + 1, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    odds = p / (1.0 - p)
    above = np.cumsum(np.log((trials - up + 1.0) * odds / up))
    below = np.cumsum(np.log(down / ((trials - down + 1.0) * odds)))
    log_ratio = np.concatenate([below[::-1], [0.0], above])
    keep = log_ratio > -_LOG_SMALLEST
    first += int(np.argmax(keep))
    log_ratio = log_ratio[keep]
    mass = np.exp(log_ratio)
    return first, mass / mass.sum(), log_ratio


def _upwards(trials: int, shift: int, epsilon: float, p: float) -> float:
    """Sum (P(X + shift = k) - e^epsilon P(X = k))_+ over k, every term positive."""
    _, mass, log_ratio = masses(trials, p)
    # mass[i] is P(X + shift = k) of some k, and P(X = k) is mass[i + shift], or zero.
    loss = np.full(mass.size, np.inf)
    if shift < mass.size:
        loss[: mass.size - shift] = log_ratio[: mass.size - shift] - log_ratio[shift:]
    over = loss > epsilon
    return float(np.sum(mass[over] * -np.expm1(epsilon - loss[over])))


def shifted_binomial_delta(trials: int, shift: int, epsilon: float, p: float = ONES) -> float:
    """Compute delta at epsilon between X ~ Bin(trials, p) and X + shift, the larger direction.

    trials >= 0, shift an integer of either sign, epsilon >= 0, 0 < p < 1. Outputs that only one of
    the two can release (the supports are finite) count in delta. Exact, by summing the hockey-stick
    divergence, up to trials = 2^24; above (then p must be 1/4) the proven upper bound of
    `VectorSumAccount`.
    """
    trials = integer("trials", trials, at_least=0)
    shift = abs(integer("shift", shift))
    epsilon = number("epsilon", epsilon, at_least=0)
    p = number("p", p, above=0, below=1)
    if shift == 0:
        return 0.0
    if shift > trials:
        return 1.0
    if trials > TABLE_TRIALS:
        if p != ONES:
            raise InputError(f"p must be 0.25 when trials > {TABLE_TRIALS}, got {p:g}")
        return VectorSumAccount([(trials, shift)], 1, integers=True).delta(epsilon)
    # X - shift against X is trials - X + shift against trials - X, which is Bin(trials, 1 - p).
    return min(1.0, max(_upwards(trials, shift, epsilon, q) for q in (p, 1.0 - p)))


def pld_delta(
    nodes: Sequence[tuple[int, Sequence[int]]],
    epsilon: float,
    interval: float = 1e-4,
    upper: bool = True,
) -> float:
    """Compute delta at epsilon of one concrete vector sum by a PLD; needs dp-accounting.

    nodes: for each node its trials and the integer change of every coordinate. interval: width to
    which privacy losses are rounded, up for an upper bound and down for a lower one (upper false);
    either is accurate to about 1e-14. The larger of both directions.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    epsilon = number("epsilon", epsilon, at_least=0)
    counts = Counter(
        (integer("trials", trials, at_least=1), integer("shift", shift))
        for trials, shifts in nodes
        for shift in shifts
        if shift
    )
    total = None
    for (trials, shift), count in counts.items():
        first, mass, _ = masses(trials)
        # Probabilities that underflow to zero are left out; they are below 1e-300 in all.
        logs = {first + int(i): math.log(mass[i]) for i in np.flatnonzero(mass)}
        part = pld.from_two_probability_mass_functions(
            logs,
            {k + shift: value for k, value in logs.items()},
            pessimistic_estimate=upper,
            value_discretization_interval=interval,
            symmetric=False,
        )
        part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    return 0.0 if total is None else float(total.get_delta_for_epsilon(epsilon))


@dataclass(frozen=True)
class Steps:
    """Bounds on the probit scale of binomial noise inside a window that loses mass `tail`.

    mean: largest difference of neighbouring probits. slope: largest slope of the interpolated
    scale. bend: how far that scale strays from the straight interpolation of its probits.
    All three infinite where no window exists.
    """

    mean: float
    slope: float
    bend: float


_NOWHERE = Steps(math.inf, math.inf, math.inf)


class Probits:
    """Bounds on the steps of Phi^-1(P(X <= k)), X ~ Bin(trials, 1/4).

    Up to TABLE_TRIALS from all probabilities, above from closed bounds; the proof below uses them.
    """

    def __init__(self, trials: int) -> None:
        """Tabulate the scale where it is small enough."""
        self.trials = trials
        self._table = 0 < trials <= TABLE_TRIALS
        if self._table:
            self._tabulate()

    def _tabulate(self) -> None:
        """Tabulate probits, their steps, slopes and bends."""
        from scipy.special import ndtri

        first, mass, _ = masses(self.trials)
        below = np.cumsum(mass)
        above = np.concatenate([np.cumsum(mass[:0:-1])[::-1], [0.0]])
        # Where a tail is below 1e-290 neither side is accurate, and no window is ever that wide.
        keep = (below > 1e-290) & (above > 1e-290)
        self._first = first + int(np.argmax(keep))
        self._below, self._above, mass = below[keep], above[keep], mass[keep]
        probit = np.where(
            self._below < self._above,
            ndtri(np.minimum(self._below, 0.5)),
            -ndtri(np.minimum(self._above, 0.5)),
        )
        far = np.maximum(np.abs(probit[1:]), np.abs(probit[:-1]))
        self._mean = np.diff(probit)
        with np.errstate(over="ignore"):
            self._slope = mass[1:] * math.sqrt(2.0 * math.pi) * np.exp(far * far / 2.0)
        centre = (probit[1:] > 0.0) & (probit[:-1] < 0.0)
        self._bend = self._slope**2 * far / 8.0 * np.where(centre, 2.0, 1.0)

    def steps(self, tail: float, largest: int) -> Steps:
        """Bounds for shifts up to `largest`, outside a window whose each end keeps mass <= tail."""
        if self._table:
            return self._steps_from_table(tail, largest)
        return self._steps_in_closed_form(tail, largest)

    def _steps_from_table(self, tail: float, largest: int) -> Steps:
        """Bounds from all probabilities."""
        # tail >= F(a + largest) and tail >= 1 - F(b - largest), with a, b as far in as possible.
        a = int(np.searchsorted(self._below, tail, side="right")) - 1 - largest
        b = int(np.searchsorted(-self._above, -tail, side="left")) + largest
        if a < 0 or b >= self._below.size or b <= a:
            return _NOWHERE
        up = 1.0 + _ROUNDING
        return Steps(
            float(self._mean[a:b].max()) * up,
            float(self._slope[a:b].max()) * up,
            float(self._bend[a:b].max()) * up,
        )

    def _steps_in_closed_form(self, tail: float, largest: int) -> Steps:
        """Bounds in closed form."""
        from scipy.special import ndtri

        # With h(k) = sgn(k/n - p) sqrt(2 n H(k/n)), H the relative entropy of (k/n, p):
        #   (Z) h(k) <= Phi^-1 P(X <= k) <= h(k + 1)    (Zubkov & Serov 2013, Theorem 1)
        #   (S) P(X = k) <= exp(-n H(k/n)) / sqrt(2 pi k (n - k) / n)    (Stirling's bounds)
        # and for the log-concave normal density phi the integral over an interval is at least
        # length x logarithmic mean >= length x geometric mean of phi at its two ends. So
        #   mean step  P(X = k) / mean phi <= exp((|x|^2 + |x'|^2)/4 - n H(k/n)) sqrt(n/(k (n-k)))
        # with x, x' the probits of k - 1 and k, and for the slope the larger of both in place of
        # the mean. (Z) and H' then leave, to the left of the mean (k + 1 <= n p, k > a),
        #   e^{n H((k-1)/n) - n H(k/n)} <= p (n - a) / (q a),
        # to the right (k - 1 >= n p, k <= b) the same with (k + 1), and for the two or three k in
        # between |x|^2 <= 2 n H <= 2 (2^2) / (n p q). On the left k (n - k) >= a (n - a).
        n, p, q = float(self.trials), ONES, 1.0 - ONES
        if not 0.0 < tail < 0.5 or self.trials < TABLE_TRIALS:
            return _NOWHERE
        s, z = math.sqrt(n * p * q), -float(ndtri(tail))
        # By (Z) and H'' = 1/(t (1 - t)): P(X <= n p - u) <= tail from u = z s + 1 on, and
        # P(X > n p + u) <= tail from u = z s + z^2 on.
        a = n * p - z * s - largest - 2.0
        b = n * p + z * s + z * z + largest + 2.0
        if a <= 1.0 or b >= n / 2.0:
            return _NOWHERE
        left, right = p * (n - a) / (q * a), q * (b + 1.0) / (p * (n - b - 1.0))
        thin = math.sqrt(n / (a * (n - a)))
        middle = math.exp(4.0 / s**2) * math.sqrt(n / ((n * p - 1.0) * (n * q - 1.0)))
        # sqrt((k + 1)/(n - k - 1) n/(k (n - k))), largest at k = b but for the factor (k + 1)/k.
        wide = math.sqrt(q / p * n * (1.0 + 1.0 / (n * p))) / (n - b - 1.0)
        slope = max(left * thin, right / s, middle)
        far = max((n * p - a) * thin, (b + 1.0 - n * p) / s, 4.0 * math.sqrt(2.0) / s)
        up = 1.0 + _ROUNDING
        return Steps(
            max(math.sqrt(left) * thin, wide, middle) * up,
            slope * up,
            slope * slope * far / 8.0 * up,
        )


# ---- a proven bound for vector sums, in closed form ----------------------------------------------
# Setting. Node j of the release adds, to every coordinate i of an integer vector, its own noise
# X ~ Bin(N_j, 1/4). One record is encoded in fixed point, w = g x rounded at random to one of the
# two neighbouring integers with mean w, independently in each coordinate and node. Replacing the
# record moves w by a real vector D_j with ||D_j||_2 <= S_j; all else is the same in both worlds,
# and later nodes may depend on what earlier ones showed.
#
# Claim. Let B > 0 and tail = 1 - (1 - B)^(1/C), C the number of pairs (node, coordinate) that may
# change. With mu_j from `node_mu` and mu^2 = sum_j mu_j^2, everything released is
# (epsilon, delta)-private for every epsilon >= 0 and
#     delta = 1 - (1 - B) (1 - delta_of(epsilon, mu)).
#
# Proof. Trade-off functions as in Dong, Roth & Su 2022: f(alpha) is the least error of the second
# kind of a test at level alpha; a larger f is more private, and G_m is that of N(0, 1) against N(m,
# 1).
# 1. One coordinate, condition on all other records (they add a constant). The two worlds release X
# + r and X + r', r = floor(w) + Ber(frac w), r' the same of w' = w + t, say t >= 0. With F(u) the
# distribution function of X interpolated linearly between integers, P(X + r <= k) = (1 - frac w)
# F(k - floor w) + frac w F(k - floor w - 1) = F(k - w).
# 2. r is below r' in the likelihood ratio order, and X has a log-concave mass function, so X + r is
# below X + r' in that order: best tests compare the outcome with a threshold k (Neyman-Pearson).
# Hence f is the convex polygon with the corners (1 - F(u), F(u - t)), u = k - w; a convex function
# that is below f at its corners is below f.
# 3. Let x(u) = Phi^-1 F(u), [a, b] integers with F(a + V) <= tail and 1 - F(b - V) <= tail, V an
# integer >= t. If x(u) - x(u - t) <= m whenever u - t >= a and u <= b, then f >= f_m, the trade-off
# function of (G_m with probability 1 - tail, full disclosure else): f_m(alpha) = (1 - tail)
# G_m(alpha / (1 - tail)), 0 for alpha >= 1 - tail, is convex. At a corner: (i) u <= a + V: F(u) <=
# tail, alpha >= 1 - tail, f_m = 0. (ii) u - t >= b - V: F(u - t) >= 1 - tail >= f_m. (iii) else u -
# t > a and u < b, so x(u) - x(u - t) <= m. Then F(u - t) = Phi(x(u - t)) >= Phi(x(u) - m) =
# G_m(alpha) >= f_m(alpha), the last because whoever is told everything can still draw from N(0, 1)
# or N(m, 1), so the second pair simulates G_m. f_m is symmetric, so the same holds with the two
# worlds exchanged, and for t < 0.
# 4. x is increasing and between integers concave where x < 0, convex where x > 0 (Phi^-1 is, and F
# is linear). Three bounds on its steps inside the window, computed in
# `Probits`: mean, the largest x(k) - x(k - 1); slope, the largest
# derivative, P(X = k) / min phi at both ends; and bend, for x against the polygon through its
# values at integers: a chord of a function with |x''| <= c deviates by at most c/8 over a unit
# interval, and x'' = x'^2 x. Left of 0 x lies above the polygon and right of 0 below it, so in x(u)
# - x(u - t) only one deviation counts against us, except both ends in the interval around 0, whose
# bend is counted twice. Therefore x(u) - x(u - t) <= min(slope t, mean t + bend),    and <= mean t
# if u and t are integers.
# 5. In node j the coordinates are independent: f is at least the product of their f_m, and G_m x
# G_m' = G_hypot(m, m'). By Cauchy-Schwarz hypot over i <= mu_j = min(slope S_j, mean S_j + bend
# sqrt(s)),   V = ceil(S_j). Rounding therefore costs nothing but bend, which vanishes like 1/N: it
# is noise like other noise. (Coupling the rounding of both worlds instead would cost sqrt(s) on top
# of S_j.)
# 6. Nodes compose adaptively (their Theorem 4): the parts told with probability `tail` add up to a
# disclosure with probability 1 - (1 - tail)^C = B, the Gaussian parts to G_mu. That pair is
# (epsilon, delta)-private for the delta of the claim. What the bound conditions on (other records,
# their roundings) is independent of the changed record, and telling it costs privacy, so leaving it
# out is covered. One user behind several records: nodes of the same noise in which c_i records
# change, c_i = 0 or c_i >= 1, by at most c_i S <= V together, have mu_i <= c_i mu(S), the mu(S) of
# step 5 in that window V: for c >= 1 both slope c S and mean c S + bend sqrt(s) are at most c times
# their values at c = 1. So they add at most (sum_i c_i^2) mu(S)^2, and C counts those with c_i > 0.
# Step 1 is about one rounded vector: where a node holds several of the user's records, c_i S must
# be what is left when the roundings of all but one are told.
# QED Large N: mean = (1 + O(1/sqrt(N))) / sqrt(3 N/16), so mu^2 -> sum_j 16 S_j^2 / (3 N_j).


# Shares of delta that are tried for the window's tails; every one gives a valid bound.
TAIL_SHARES = tuple(10.0 ** (-i / 3.0) for i in range(1, 28))


class Node(NamedTuple):
    """Nodes of a release that one user's records may change, all with the same noise.

    trials: N, the noise bits of each coordinate. norm: S, the largest L2 norm of one record's
    change of the encoded vector, in encoding levels. squares, count: c_i records of the user, a
    whole number, are in node i; at most count nodes have c_i > 0, and sum c_i^2 <= squares.
    reach: bounds every c_i S, the whole change of one node (default: norm, so all c_i <= 1).
    """

    trials: int
    norm: float
    squares: float = 1.0
    count: int = 1  # type: ignore[assignment]  # in place of the method of tuples
    reach: float | None = None

    @property
    def window(self) -> float:
        """The largest change of one of these nodes, in levels."""
        return self.norm if self.reach is None else self.reach


def node_mu(
    probits: Probits,
    norm: float,
    coordinates: int,
    tail: float,
    integers: bool,
    reach: float | None = None,
) -> float:
    """GDP parameter mu_j of one node (steps 3 to 5), infinite where nothing is proven.

    norm: S_j. coordinates: how many may change. tail: mass that each coordinate's window may lose
    at each end. integers: the changes are integer vectors, with no rounding in between. reach: the
    window is made for changes up to it (default: norm).
    """
    steps = probits.steps(tail, math.ceil(norm if reach is None else reach))
    if integers:
        return steps.mean * norm
    return min(steps.slope * norm, steps.mean * norm + steps.bend * math.sqrt(coordinates))


def changing(norm: float, coordinates: int, integers: bool) -> int:
    """Coordinates of one node that may change: at most norm^2 for an integer vector."""
    return min(coordinates, int(norm * norm)) if integers else coordinates


def tail_of(total: float, count: int) -> float:
    """Mass per coordinate and node that adds up to `total` over count of them."""
    return -math.expm1(math.log1p(-total) / count)


def _checked(given: tuple[int, float] | Node) -> Node:
    """Check a pair or a Node; return a Node."""
    if isinstance(given, Node):
        node = given
    elif isinstance(given, (tuple, list)) and len(given) == 2:
        node = Node(*given)
    else:
        raise InputError("nodes must be pairs (trials, norm) or Node values")
    norm = number("norm", node.norm, at_least=0)
    return Node(
        integer("trials", node.trials, at_least=0),
        norm,
        number("squares", node.squares, at_least=1),
        integer("count", node.count, at_least=1),
        None if node.reach is None else number("reach", node.reach, at_least=norm),
    )


class VectorSumAccount:
    """Privacy account of vector sums with binomial noise, for every change within the norms.

    Parameters
    ----------
    nodes : sequence of (int, float) or Node
        Pairs (N_j, S_j): the noise bits of each coordinate of node j, and the largest L2 norm of
        one record's change of that node's encoded vector, in encoding levels; or a `Node` for
        several nodes and records of one user.
    coordinates : int
        s, the length of the vectors.
    integers : bool
        True if the changes are integer vectors, nothing being rounded at random.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: proven for all changes with these norms, adaptively composed; the proof stands above
    `Node`. Infinite epsilon where nothing is proven (too little noise for a window, delta = 0).
    """

    def __init__(
        self,
        nodes: Sequence[tuple[int, float] | Node],
        coordinates: int,
        *,
        integers: bool = False,
    ) -> None:
        """Check the arguments and prepare the probit scales."""
        self.coordinates = integer("coordinates", coordinates, at_least=1)
        self.integers = boolean("integers", integers)
        checked = [_checked(node) for node in nodes]
        # An integer vector shorter than 1 is zero, and what does not change costs nothing.
        self.nodes = tuple(
            node for node in checked if node.norm > 0.0 and (node.window >= 1.0 or not integers)
        )
        self._probits = {node.trials: Probits(node.trials) for node in self.nodes}
        self._count = sum(node.count * self._changing(node) for node in self.nodes)

    def _changing(self, node: Node) -> int:
        """Coordinates of a node that may change."""
        return changing(node.window, self.coordinates, self.integers)

    def mu(self, tails: float) -> float:
        """GDP parameter of the Gaussian part when all windows together lose at most `tails`."""
        if not self.nodes:
            return 0.0
        tail = tail_of(tails, self._count)
        return math.hypot(
            *(
                math.sqrt(node.squares)
                * node_mu(
                    self._probits[node.trials],
                    node.norm,
                    self._changing(node),
                    tail,
                    self.integers,
                    node.window,
                )
                for node in self.nodes
            )
        )

    def delta(self, epsilon: float) -> float:
        """Compute a delta in [0, 1] that is proven at epsilon >= 0."""
        epsilon = number("epsilon", epsilon, at_least=0)
        if not self.nodes:
            return 0.0
        best = 1.0
        for tails in np.geomspace(1e-60, 0.5, 240).tolist():
            mu = self.mu(tails)
            if math.isfinite(mu):
                best = min(best, tails + (1.0 - tails) * gaussian_delta(epsilon, mu))
        return best

    def epsilon(self, delta: float) -> float:
        """Compute an epsilon >= 0 that is proven at delta in [0, 1), or infinity."""
        delta = number("delta", delta, at_least=0, below=1)
        if not self.nodes:
            return 0.0
        best = math.inf
        for share in TAIL_SHARES if delta > 0 else ():
            mu = self.mu(delta * share)
            if math.isfinite(mu):
                rest = delta * (1.0 - share) / (1.0 - delta * share)
                best = min(best, gaussian_epsilon(mu, rest))
        return best


# ---- a lower bound of the true delta of one vector sum -------------------------------------------
# The distributions of two concrete neighbouring records are compared, roundings included; where
# their divergence at the claimed epsilon is above the claimed delta, the claim is false.

# Beyond this no lower bound is computed: the tables would grow with sqrt(trials).
_MOST_TRIALS = 2**28
# Cells for the privacy losses of one coordinate, each loss rounded down to its cell.
_CELLS = 2**14
# What the Fourier transforms of a composition may be wrong by, with a wide margin.
_FOURIER = 1e-12
# Ratios of probabilities below exp(-this) are not tabulated, see `masses`.

#: One coordinate's encoded value before and after a record changes, in levels.
Move = tuple[float, float]
#: The result of `masses`.
Masses = tuple[int, np.ndarray, np.ndarray]


def hockey_stick_lower_bound(
    trials: int, g: tuple[int, int], dimension: int, relation: str, epsilon: float
) -> float:
    """Lower bound of delta at epsilon of Bin(trials, 1/4) noise in every coordinate.

    g: encoding levels per unit of the bias and of the covariance stream. The worst of a few pairs
    of records; 0 beyond 2^28 trials, where nothing is computed.
    """
    if trials > _MOST_TRIALS:
        return 0.0
    noise = masses(trials)
    return max(_divergence(trials, noise, m, epsilon) for m in _pairs(relation, dimension, g))


def _pairs(relation: str, dimension: int, g: tuple[int, int]) -> list[list[Move]]:
    """Changes that allowed neighbouring records can make, all with y = 1, up to direction."""
    bias, covariance = float(g[0]), float(g[1])
    if relation == "zero-out":
        return [[(bias, 0.0), (covariance, 0.0)]]
    found = [[(bias, -bias)]]  # x = e_1 becomes -e_1
    if dimension == 1:
        # x = 1 becomes -q: where the sensitivity of the line has its inner maximum.
        if (left := 1.0 - 2.0 * (bias / covariance) ** 2) >= 0.0:
            q = (1.0 - math.sqrt(left)) / 2.0
            found.append([(bias, -q * bias), (covariance, q * q * covariance)])
        return found
    # x = (cos u, -sin u) becomes (-sin u, cos u): t = sin 2u = 0 stays on the grid, the other
    # is where the sensitivity has its maximum (`fastfed.privacy.sensitivity`).
    for t in (0.0, min(1.0, 0.5 * (bias / covariance) ** 2)):
        u = math.asin(t) / 2.0
        c, s = math.cos(u), math.sin(u)
        high, low = covariance * c * c, covariance * s * s
        found.append([(bias * c, -bias * s), (-bias * s, bias * c), (high, low), (low, high)])
    return found


def _divergence(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    """Lower bound of the hockey-stick divergence at epsilon, the larger of both directions."""
    back = [(after, before) for before, after in moves]
    return max(_one_way(trials, noise, way, epsilon) for way in (moves, back))


def _one_way(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    """Lower bound of the hockey-stick divergence in one direction."""
    losses = [_losses(trials, noise, *move) for move in moves if move[0] != move[1]]
    if len(losses) == 1:
        ((mass, loss),) = losses
        return _beyond(mass, loss, epsilon)
    # Every loss is rounded down and small masses are dropped, so the result can only be too small.
    finite = [(m[keep], x[keep]) for m, x in losses for keep in [np.isfinite(x) & (m > 1e-18)]]
    told = 1.0 - math.prod(1.0 - float(m[np.isinf(x)].sum()) for m, x in losses)
    if not all(m.size for m, _ in finite):
        return max(told - _FOURIER, 0.0)
    start = sum(float(x.min()) for _, x in finite)
    width = max(float(np.ptp(x)) for _, x in finite) / _CELLS or 1.0
    cells = [
        np.bincount(((x - x.min()) / width).astype(np.int64), m, minlength=_CELLS + 1)
        for m, x in finite
    ]
    length = len(cells) * (_CELLS + 1)
    transformed = np.prod([np.fft.rfft(c, length) for c in cells], axis=0)
    mass = np.maximum(np.fft.irfft(transformed, length), 0.0)
    loss = start + width * np.arange(length)
    return max(told + _beyond(mass, loss, epsilon) - _FOURIER, 0.0)


def _beyond(mass: np.ndarray, loss: np.ndarray, epsilon: float) -> float:
    """Compute E(1 - e^(epsilon - loss))_+, infinite losses included."""
    over = loss > epsilon
    return min(float(np.sum(mass[over] * -np.expm1(epsilon - loss[over]))), 1.0)


def _losses(
    trials: int, noise: Masses, before: float, after: float
) -> tuple[np.ndarray, np.ndarray]:
    """Masses of noise + the value `before`, rounded at random, and losses against `after`."""
    first, mass, log_ratio = noise
    low = math.floor(before)
    k = np.arange(low + first, low + first + mass.size + 1)

    def log_mass(value: float) -> np.ndarray:
        """Compute ln of the masses of noise + value, rounded at random."""
        down = math.floor(value)
        part = value - down
        stays = _log_ratios(first, log_ratio, trials, k - down)
        if part == 0.0:
            return stays
        moves = _log_ratios(first, log_ratio, trials, k - down - 1)
        return np.logaddexp(math.log1p(-part) + stays, math.log(part) + moves)

    here = log_mass(before)
    outcomes = here > -math.inf
    here, there = here[outcomes], log_mass(after)[outcomes]
    return np.exp(here) * mass.max(), here - there


def _log_ratios(first: int, log_ratio: np.ndarray, trials: int, ones: np.ndarray) -> np.ndarray:
    """Compute ln(P(X = ones)/P(X = mode)), from above where the table has underflowed."""
    out = np.where((ones >= 0) & (ones <= trials), -_LOG_SMALLEST, -math.inf)
    known = (ones >= first) & (ones < first + log_ratio.size)
    out[known] = log_ratio[ones[known] - first]
    return out


# ---- Fair coins: integers plus Bin(n, 1/2), by Gaussian noise of a little less -------------------
#
# The lemma, proven in docs/secure-sum.md. Let n be even, S ~ Bin(n, 1/2), V >= t >= 0 integers and
# 0 < tail < 1/2. With
#
#     y = sqrt(n ln(1 / tail) / 2),    a <= n/2 - y - V an integer, a >= 1 and a <= n/2 - 2,
#
# telling S from S + t, in either direction, is at least as hard as telling N(0, 1) from
# N(t / (a / sqrt(n)), 1) where with probability ``tail`` all is told. So S hides a shift as
# Gaussian noise of standard deviation
#
#     a / sqrt(n) = sqrt(n)/2 - sqrt(ln(1 / tail) / 2) - V / sqrt(n),    rounded down,
#
# does: some units less than its own standard deviation sqrt(n)/2, whatever n is.

# Far above the rounding of the few float64 operations behind a result, and far below what matters.
_LOG_ROUNDING = 1e-12


def effective_std(trials: int, reach: int, tail: float) -> float:
    """Compute the standard deviation of the Gaussian noise that Bin(trials, 1/2) is as good as.

    Parameters
    ----------
    trials : int
        n >= 0, even.
    reach : int
        V >= 0, the largest shift.
    tail : float
        In (0, 1/2): the probability with which all is told.

    Returns
    -------
    float
        In units of the integers; 0 where nothing is proven.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The lemma at the top of this module.
    """
    trials = integer("trials", trials, at_least=0)
    reach = integer("reach", reach, at_least=0)
    tail = number("tail", tail, above=0, below=0.5)
    if trials % 2:
        trials -= 1  # one coin less hides no more
    return std_of_coins(trials, reach, tail)


def std_of_coins(trials: int, reach: int, tail: float) -> float:
    """Compute `effective_std` for arguments that were checked before."""
    if tail <= 0.0:  # a part of delta that underflowed: nothing is proven
        return 0.0
    # y^2 <= n ln(1/tail) / 2, in integers: n may be far above 2^53.
    nats = math.ceil(-math.log(tail) * (1.0 + _LOG_ROUNDING) * 2**20)
    y = math.isqrt(trials * nats >> 21) + 1
    least = min(trials // 2 - y - reach, trials // 2 - 2)
    if least < 1:
        return 0.0
    return least / math.sqrt(trials) * (1.0 - _LOG_ROUNDING)
