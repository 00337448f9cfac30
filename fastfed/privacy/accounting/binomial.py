"""Accounting of binomial noise: exact privacy losses, a proven closed form, and a lower bound.

The first sections are about the noise bits of a vector sum in the shuffle model, each 1 with
probability 1/4. The last section is about fair coins, the noise of secure sums. A sum of fair coins
hides data as well as Gaussian noise of a slightly smaller standard deviation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from fastfed._cache import cached
from fastfed._validate import InputError, boolean, integer, number
from fastfed.privacy.accounting.gdp import gaussian_delta, gaussian_epsilon

# ---- exact privacy losses, and the probit scale --------------------------------------------------
# The noise is X ~ Bin(trials, 1/4). The release is X plus an integer that depends on the data.

#: Probability of a one in the noise bits (zhou-chowdhury-2024, Appendix F.2, p).
COIN_P = 0.25
#: Up to this number of trials, all probabilities are tabulated; above, closed-form bounds are used.
TABLE_TRIALS = 2**24
# exp(-745) underflows: probabilities smaller than the largest one by this factor count as zero.
_LOG_SMALLEST = 745.0
# Bound on the relative error of a step of the probit scale (see `Probits`), with a wide margin. A
# step is a difference of two values with about 13 correct digits, and is at least 6e-4.
_ROUNDING = 1e-7


def masses(trials: int, p: float = COIN_P) -> tuple[int, np.ndarray, np.ndarray]:
    """Return a table of the distribution of X ~ Bin(trials, p).

    The table is built from the mode outwards by ratios of neighbouring probabilities, so that no
    factorial is computed. It is normalised by its sum. Probabilities that underflow are left out.

    Parameters
    ----------
    trials : int
        The number of coins, >= 0.
    p : float, default 1/4
        The probability that a coin is 1.

    Returns
    -------
    first : int
        The smallest value in the table.
    mass : ndarray
        mass[i] = P(X = first + i).
    log_ratio : ndarray
        log_ratio[i] = ln(P(X = first + i) / P(X = mode)).
    """
    mode = min(int((trials + 1) * p), trials)
    # Farther from the mode than this, all probabilities underflow.
    half_width = math.ceil(39.0 * math.sqrt(trials * p * (1.0 - p)) + 800.0)
    first, last = max(mode - half_width, 0), min(mode + half_width, trials)
    counts_above = np.arange(mode + 1, last + 1, dtype=np.float64)
    counts_below = np.arange(mode, first, -1, dtype=np.float64)
    odds = p / (1.0 - p)
    log_above = np.cumsum(np.log((trials - counts_above + 1.0) * odds / counts_above))
    log_below = np.cumsum(np.log(counts_below / ((trials - counts_below + 1.0) * odds)))
    log_ratio = np.concatenate([log_below[::-1], [0.0], log_above])
    is_positive = log_ratio > -_LOG_SMALLEST
    first += int(np.argmax(is_positive))
    log_ratio = log_ratio[is_positive]
    mass = np.exp(log_ratio)
    return first, mass / mass.sum(), log_ratio


def _one_sided_delta(trials: int, shift: int, epsilon: float, p: float) -> float:
    """Compute the hockey-stick divergence of X + shift from X at epsilon, X ~ Bin(trials, p).

    It is the sum over k of (P(X + shift = k) - e^epsilon P(X = k))_+.
    """
    _, mass, log_ratio = masses(trials, p)
    # mass[i] is P(X + shift = k) for k = first + i + shift. P(X = k) is mass[i + shift], or zero.
    loss = np.full(mass.size, np.inf)
    if shift < mass.size:
        loss[: mass.size - shift] = log_ratio[: mass.size - shift] - log_ratio[shift:]
    is_above = loss > epsilon
    return float(np.sum(mass[is_above] * -np.expm1(epsilon - loss[is_above])))


def shifted_binomial_delta(trials: int, shift: int, epsilon: float, p: float = COIN_P) -> float:
    """Return the delta at epsilon with which binomial noise X hides a shift of its value.

    An observer sees X or X + shift, where X ~ Bin(trials, p) with trials >= 0 and 0 < p < 1. The
    shift is an integer of either sign, and epsilon >= 0. The result is the larger hockey-stick
    divergence of the two directions. It includes outputs that only one of X and X + shift can have.
    Up to 2^24 trials it is exact. For more trials, p must be 1/4, and the result is the proven
    upper bound of `VectorSumAccount`.
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
        if p != COIN_P:
            raise InputError(f"p must be 0.25 when trials > {TABLE_TRIALS}, got {p:g}")
        return VectorSumAccount([(trials, shift)], 1, integers=True).delta(epsilon)
    # X - shift against X is Y + shift against Y for Y = trials - X, which is Bin(trials, 1 - p).
    return min(1.0, max(_one_sided_delta(trials, shift, epsilon, q) for q in (p, 1.0 - p)))


def pld_delta(
    nodes: Sequence[tuple[int, Sequence[int]]],
    epsilon: float,
    interval: float = 1e-4,
    upper: bool = True,
) -> float:
    """Return delta at epsilon of one given change of a vector sum, by a privacy loss distribution.

    Requires the package dp-accounting. Every coordinate has noise Bin(trials, 1/4).

    Parameters
    ----------
    nodes : sequence of (int, sequence of int)
        For each node of the release: its number of noise bits (trials), and the integer change of
        every coordinate.
    epsilon : float
        >= 0.
    interval : float
        Privacy losses are rounded to multiples of this number.
    upper : bool
        True rounds losses up, for an upper bound on delta; False rounds down, for a lower bound.

    Returns
    -------
    float
        The larger delta of the two directions. Apart from the rounding of losses, it is accurate to
        about 1e-14.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    epsilon = number("epsilon", epsilon, at_least=0)
    counts = Counter(
        (integer("trials", trials, at_least=1), integer("shift", shift))
        for trials, shifts in nodes
        for shift in shifts
        if shift
    )
    composed = None
    for (trials, shift), count in counts.items():
        first, mass, _ = masses(trials)
        # Probabilities that underflow to zero are left out; they sum to less than 1e-300.
        log_masses = {first + int(i): math.log(mass[i]) for i in np.flatnonzero(mass)}
        node_pld = pld.from_two_probability_mass_functions(
            log_masses,
            {k + shift: value for k, value in log_masses.items()},
            pessimistic_estimate=upper,
            value_discretization_interval=interval,
            symmetric=False,
        )
        node_pld = node_pld.self_compose(count) if count > 1 else node_pld
        composed = node_pld if composed is None else composed.compose(node_pld)
    return 0.0 if composed is None else float(composed.get_delta_for_epsilon(epsilon))


@dataclass(frozen=True)
class Steps:
    """Bounds on the probit scale of binomial noise X in a window of integers.

    They are used in step 4 of the proof below. The probit scale is x(k) = Phi^-1(P(X <= k)).
    ``mean`` bounds the difference x(k) - x(k - 1) of neighbouring integers. For real arguments, P
    is interpolated linearly: ``slope`` bounds the slope of x, and ``bend`` its distance from the
    polygon through its values at integers. All three are infinite if no window exists.
    """

    mean: float
    slope: float
    bend: float


_NO_WINDOW = Steps(math.inf, math.inf, math.inf)


class Probits:
    """The probit scale x(k) = Phi^-1(P(X <= k)) of X ~ Bin(trials, 1/4), and bounds on its steps.

    Up to TABLE_TRIALS trials, the bounds are computed from all probabilities. For more trials they
    are closed forms. The proof below ("a proven bound for vector sums") uses the bounds.
    """

    def __init__(self, trials: int) -> None:
        """Tabulate the probit scale of Bin(trials, 1/4) if trials <= `TABLE_TRIALS`."""
        self.trials = trials
        self._table = 0 < trials <= TABLE_TRIALS
        if self._table:
            self._tabulate()

    def _tabulate(self) -> None:
        """Store both tails of X, and the three bounds of `Steps` on each interval [k - 1, k]."""
        from scipy.special import ndtri

        _, mass, _ = masses(self.trials)
        lower_tail = np.cumsum(mass)
        upper_tail = np.concatenate([np.cumsum(mass[:0:-1])[::-1], [0.0]])
        # Where one tail is below 1e-290, it is inaccurate and the other tail is rounded to 1, so no
        # accurate probit exists. The table ends there; a window beyond it counts as missing.
        in_table = (lower_tail > 1e-290) & (upper_tail > 1e-290)
        self._below, self._above, mass = lower_tail[in_table], upper_tail[in_table], mass[in_table]
        probit = np.where(
            self._below < self._above,
            ndtri(np.minimum(self._below, 0.5)),
            -ndtri(np.minimum(self._above, 0.5)),
        )
        larger_probit = np.maximum(np.abs(probit[1:]), np.abs(probit[:-1]))
        self._mean = np.diff(probit)
        with np.errstate(over="ignore"):
            self._slope = (
                mass[1:] * math.sqrt(2.0 * math.pi) * np.exp(larger_probit * larger_probit / 2.0)
            )
        crosses_zero = (probit[1:] > 0.0) & (probit[:-1] < 0.0)
        self._bend = self._slope**2 * larger_probit / 8.0 * np.where(crosses_zero, 2.0, 1.0)

    def steps(self, tail: float, largest: int) -> Steps:
        """Return bounds on the steps of the probit scale, for shifts of X up to ``largest``.

        The bounds hold in a window that excludes at most probability ``tail`` of X at each end.
        """
        if self._table:
            return self._steps_from_table(tail, largest)
        return self._steps_in_closed_form(tail, largest)

    def _steps_from_table(self, tail: float, largest: int) -> Steps:
        """Return the bounds of `steps`, computed from all probabilities."""
        # The narrowest window [a, b] with F(a + largest) <= tail and 1 - F(b - largest) <= tail,
        # where F is the distribution function of X.
        a = int(np.searchsorted(self._below, tail, side="right")) - 1 - largest
        b = int(np.searchsorted(-self._above, -tail, side="left")) + largest
        if a < 0 or b >= self._below.size or b <= a:
            return _NO_WINDOW
        rounding_factor = 1.0 + _ROUNDING
        return Steps(
            float(self._mean[a:b].max()) * rounding_factor,
            float(self._slope[a:b].max()) * rounding_factor,
            float(self._bend[a:b].max()) * rounding_factor,
        )

    def _steps_in_closed_form(self, tail: float, largest: int) -> Steps:
        """Return the bounds of `steps` in closed form, for more than `TABLE_TRIALS` trials."""
        from scipy.special import ndtri

        # Let h(k) = sgn(k/n - p) sqrt(2 n H(k/n)), with H the relative entropy of (k/n, p). Then
        #   (Z) h(k) <= Phi^-1 P(X <= k) <= h(k + 1)    (Zubkov & Serov 2013, Theorem 1)
        #   (S) P(X = k) <= exp(-n H(k/n)) / sqrt(2 pi k (n - k) / n)    (Stirling's bounds).
        # For the log-concave normal density phi, the integral over an interval is at least
        # length x logarithmic mean >= length x geometric mean of phi at its two ends. So
        #   mean step  P(X = k) / mean phi <= exp((|x|^2 + |x'|^2)/4 - n H(k/n)) sqrt(n/(k (n-k)))
        # with x, x' the probits of k - 1 and k. For the slope, the larger of |x|^2 and |x'|^2
        # replaces their mean. By (Z) and H', to the left of the mean n p (k + 1 <= n p, k > a),
        #   e^{n H((k-1)/n) - n H(k/n)} <= p (n - a) / (q a),
        # and k (n - k) >= a (n - a). To the right of the mean (k - 1 >= n p, k <= b),
        #   e^{n H((k+1)/n) - n H(k/n)} <= q (b + 1) / (p (n - b - 1)).
        # For the two or three k in between, k - 1 and k + 1 are within 2 of n p. There
        # |x|^2 <= 2 n H <= 2 (2^2) / (n p q), since H is at most the chi-square divergence.
        n, p, q = float(self.trials), COIN_P, 1.0 - COIN_P
        if not 0.0 < tail < 0.5 or self.trials < TABLE_TRIALS:
            return _NO_WINDOW
        s, z = math.sqrt(n * p * q), -float(ndtri(tail))  # the std of X, and a normal quantile
        # By (Z) and H'' = 1/(t (1 - t)): P(X <= n p - u) <= tail for u >= z s + 1, and
        # P(X > n p + u) <= tail for u >= z s + z^2.
        a = n * p - z * s - largest - 2.0
        b = n * p + z * s + z * z + largest + 2.0
        if a <= 1.0 or b >= n / 2.0:
            return _NO_WINDOW
        left_ratio, right_ratio = p * (n - a) / (q * a), q * (b + 1.0) / (p * (n - b - 1.0))
        left_density = math.sqrt(n / (a * (n - a)))
        middle = math.exp(4.0 / s**2) * math.sqrt(n / ((n * p - 1.0) * (n * q - 1.0)))
        # sqrt((k + 1)/(n - k - 1) n/(k (n - k))) is largest at k = b, up to the factor (k + 1)/k.
        right_mean = math.sqrt(q / p * n * (1.0 + 1.0 / (n * p))) / (n - b - 1.0)
        slope = max(left_ratio * left_density, right_ratio / s, middle)
        larger_probit = max(
            (n * p - a) * left_density, (b + 1.0 - n * p) / s, 4.0 * math.sqrt(2.0) / s
        )
        rounding_factor = 1.0 + _ROUNDING
        return Steps(
            max(math.sqrt(left_ratio) * left_density, right_mean, middle) * rounding_factor,
            slope * rounding_factor,
            slope * slope * larger_probit / 8.0 * rounding_factor,
        )


# ---- a proven bound for vector sums, in closed form ----------------------------------------------
# Setting. Node j of the release adds independent noise X ~ Bin(N_j, 1/4) to every coordinate i of
# an integer vector of s coordinates. One record x is encoded in fixed point, g levels per unit:
# w = g x is rounded at random to one of the two neighbouring integers, with mean w, independently
# in each coordinate and node. Replacing the record changes w by a real vector D_j with
# ||D_j||_2 <= S_j. Everything else is equal in both worlds (before and after the replacement), and
# later nodes may depend on what earlier nodes released.
#
# Claim. Let B > 0 and tail = 1 - (1 - B)^(1/C), where C is the number of pairs (node, coordinate)
# that may change. With mu_j from `node_mu` and mu^2 = sum_j mu_j^2, all releases together are
# (epsilon, delta)-private for every epsilon >= 0 and
#     delta = 1 - (1 - B) (1 - delta_of(epsilon, mu)).
#
# Proof. Use trade-off functions as in Dong, Roth & Su 2022: f(alpha) is the least type II error of
# a test at level alpha. A larger f is more private. G_m is the trade-off function of N(0, 1)
# against N(m, 1).
# 1. Consider one coordinate, and condition on all other records (they add a constant). The two
# worlds release X + r and X + r', with r = floor(w) + Ber(frac w) and r' the same for w' = w + t,
# say t >= 0. Let F(u) be the distribution function of X, interpolated linearly between integers.
# Then P(X + r <= k) = (1 - frac w) F(k - floor w) + frac w F(k - floor w - 1) = F(k - w).
# 2. r is smaller than r' in the likelihood ratio order, and X has a log-concave mass function. So
# X + r is smaller than X + r' in that order, and the best tests compare the outcome with a
# threshold k (Neyman-Pearson). Hence f is the convex polygon with corners (1 - F(u), F(u - t)), u =
# k - w. A convex function that is below f at the corners is below f everywhere.
# 3. Let x(u) = Phi^-1 F(u), and let [a, b] be integers with F(a + V) <= tail and
# 1 - F(b - V) <= tail, V an integer >= t. If x(u) - x(u - t) <= m whenever u - t >= a and u <= b,
# then f >= f_m. Here f_m is the trade-off function of G_m with probability 1 - tail and of full
# disclosure otherwise: f_m(alpha) = (1 - tail) G_m(alpha / (1 - tail)), and 0 for
# alpha >= 1 - tail. It is convex. At a corner: (i) u <= a + V: F(u) <= tail, alpha >= 1 - tail, and
# f_m = 0. (ii) u - t >= b - V: F(u - t) >= 1 - tail >= f_m. (iii) Otherwise u - t > a and u < b, so
# x(u) - x(u - t) <= m. Then F(u - t) = Phi(x(u - t)) >= Phi(x(u) - m) = G_m(alpha) >= f_m(alpha).
# The last step holds because an observer to whom all is disclosed can still draw from N(0, 1) or
# N(m, 1), so the second pair simulates G_m. f_m is symmetric, so the same holds with the two worlds
# exchanged, and for t < 0.
# 4. Between integers x is increasing, concave where x < 0 and convex where x > 0 (because Phi^-1
# is, and F is linear). `Probits` computes three bounds inside the window: mean, the largest
# x(k) - x(k - 1); slope, the largest derivative, P(X = k) / min phi at both ends; and bend, the
# largest distance of x from the polygon through its values at integers. For bend: a chord of a
# function with |x''| <= c deviates by at most c/8 over a unit interval, and x'' = x'^2 x. To the
# left of 0, x is above the polygon, and to the right of 0 below it. So in x(u) - x(u - t) only one
# of the two deviations increases the difference, unless both ends are in the interval around 0,
# whose bend is counted twice. Therefore x(u) - x(u - t) <= min(slope t, mean t + bend), and
# <= mean t if u and t are integers.
# 5. In node j the coordinates are independent: f is at least the product of their f_m, and
# G_m x G_m' = G_hypot(m, m'). By Cauchy-Schwarz, the hypot of the m of all coordinates is at most
#     mu_j = min(slope S_j, mean S_j + bend sqrt(s)),   with V = ceil(S_j).
# So rounding costs nothing but bend, which decreases like 1/N: rounding is noise too. (Coupling the
# rounding of both worlds instead would add sqrt(s) to S_j.)
# 6. Nodes compose adaptively (Dong, Roth & Su 2022, Theorem 4). The disclosures of probability
# `tail` add up to one of probability 1 - (1 - tail)^C = B, and the Gaussian parts to G_mu. A
# disclosure of probability B together with G_mu is (epsilon, delta)-private for the delta of the
# claim. The bound conditions on other records and their rounding. They are independent of the
# changed record, so an observer who does not know them has no more information, and the bound
# covers this observer too.
# 7. One user with several records: consider nodes of equal noise, where node i holds c_i of the
# records, and changes by at most c_i S <= V. Then mu_i <= c_i mu(S), with mu(S) of step 5 for the
# window V, since for c >= 1 both slope c S and mean c S + bend sqrt(s) are at most c times their
# values at c = 1. So these nodes add at most (sum_i c_i^2) mu(S)^2, and C counts the nodes with
# c_i > 0. Step 1 is about one rounded vector. If a node holds several of the user's records,
# disclose how all but one are rounded; c_i S must bound the change that remains.
# QED. For large N, mean = (1 + O(1/sqrt(N))) / sqrt(3 N/16), so mu^2 -> sum_j 16 S_j^2 / (3 N_j).


# Shares of delta that are tried for B, the probability outside of all windows. Each share gives a
# valid bound, and the best bound is used.
TAIL_SHARES = tuple(10.0 ** (-i / 3.0) for i in range(1, 28))


class Node(NamedTuple):
    """Several nodes of equal noise whose vector sums contain records of one user.

    See step 7 of the proof above.

    Parameters
    ----------
    trials : int
        N, the number of noise bits of each coordinate.
    norm : float
        S, the largest L2 change of the encoded vector by one record, in encoding levels.
    squares : float
        Bound on sum_i c_i^2, where node i contains c_i of the user's records.
    count : int
        Bound on the number of nodes with c_i > 0.
    reach : float, optional
        Bound on c_i S for every i: the whole change of one node. Default: norm, so all c_i <= 1.
    """

    trials: int
    norm: float
    squares: float = 1.0
    count: int = 1  # type: ignore[assignment]  # replaces tuple.count
    reach: float | None = None

    @property
    def window(self) -> float:
        """The largest L2 change of the vector of one of these nodes, in encoding levels."""
        return self.norm if self.reach is None else self.reach


def node_mu(
    probits: Probits,
    norm: float,
    coordinates: int,
    tail: float,
    integers: bool,
    reach: float | None = None,
) -> float:
    """Return the GDP parameter mu_j that is proven for one node (steps 3 to 5 of the proof above).

    It is infinite if no mu_j is proven.

    Parameters
    ----------
    probits : Probits
        The probit scale of the node's noise.
    norm : float
        S_j, the largest L2 change of the node's vector by one record, in encoding levels.
    coordinates : int
        Number of coordinates that may change.
    tail : float
        The largest probability that the noise of one coordinate is below its window. The same
        number bounds the probability that it is above the window.
    integers : bool
        True if changes are integer vectors, without random rounding.
    reach : float, optional
        The largest change for which the window must be valid. Default: norm.
    """
    steps = probits.steps(tail, math.ceil(norm if reach is None else reach))
    if integers:
        return steps.mean * norm
    return min(steps.slope * norm, steps.mean * norm + steps.bend * math.sqrt(coordinates))


def changing(norm: float, coordinates: int, integers: bool) -> int:
    """Return the largest number of coordinates, out of ``coordinates``, that a change affects.

    ``norm`` is the L2 norm of the change. If ``integers`` is true, the change is an integer vector,
    which affects at most norm^2 coordinates.
    """
    return min(coordinates, int(norm * norm)) if integers else coordinates


def tail_of(total: float, count: int) -> float:
    """Return the probability t of each of ``count`` independent events of equal probability.

    ``total`` is the probability that at least one event occurs: 1 - (1 - t)^count = total.
    """
    return -math.expm1(math.log1p(-total) / count)


def _checked_node(pair_or_node: tuple[int, float] | Node) -> Node:
    """Return a `Node` with checked values, from a pair (trials, norm) or from a `Node`."""
    if isinstance(pair_or_node, Node):
        node = pair_or_node
    elif isinstance(pair_or_node, (tuple, list)) and len(pair_or_node) == 2:
        node = Node(*pair_or_node)
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


@lru_cache(maxsize=4)
def probits_of(trials: int) -> Probits:
    """Return the probit scale of Bin(trials, 1/4).

    The last few results are cached, because a calibration and its account need the same result.
    """
    return Probits(trials)


class VectorSumAccount:
    """The privacy account of vector sums with binomial noise, for changes within given norms.

    Parameters
    ----------
    nodes : sequence of (int, float) or Node
        Pairs (N_j, S_j): the number of noise bits of each coordinate of node j, and the largest L2
        change of that node's encoded vector by one record, in encoding levels. A `Node` describes
        several nodes and records of one user.
    coordinates : int
        s, the number of coordinates of each vector.
    integers : bool
        True if changes are integer vectors, without random rounding.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: proven for all changes with these norms, adaptively composed; the proof is above
    `Node`. Epsilon is infinite if nothing is proven (too little noise for a window, or delta = 0).
    """

    def __init__(
        self, nodes: Sequence[tuple[int, float] | Node], coordinates: int, *, integers: bool = False
    ) -> None:
        """Check the arguments, and leave out nodes that cannot change."""
        self.coordinates = integer("coordinates", coordinates, at_least=1)
        self.integers = boolean("integers", integers)
        checked_nodes = [_checked_node(node) for node in nodes]
        # `window` bounds the length of a node's change. An integer change shorter than 1 is zero,
        # and a node that does not change costs nothing.
        self.nodes = tuple(
            node
            for node in checked_nodes
            if node.norm > 0.0 and (node.window >= 1.0 or not integers)
        )
        self._count = sum(node.count * self._changing_coordinates(node) for node in self.nodes)

    @cached_property
    def _probits(self) -> dict[int, Probits]:
        """The `Probits` of the noise of each node, by its number of noise bits."""
        return {node.trials: probits_of(node.trials) for node in self.nodes}

    def _changing_coordinates(self, node: Node) -> int:
        """Return the largest number of coordinates of a node's vector that one user may change."""
        return changing(node.window, self.coordinates, self.integers)

    def mu(self, tails: float) -> float:
        """Return the GDP parameter mu that is proven for all nodes together.

        It is proven except with probability ``tails``: the probability that the noise is outside of
        a window, which the proof above calls B.
        """
        if not self.nodes:
            return 0.0
        tail = tail_of(tails, self._count)
        return math.hypot(
            *(
                math.sqrt(node.squares)
                * node_mu(
                    self._probits[node.trials],
                    node.norm,
                    self._changing_coordinates(node),
                    tail,
                    self.integers,
                    node.window,
                )
                for node in self.nodes
            )
        )

    def delta(self, epsilon: float) -> float:
        """Return a delta in [0, 1] that is proven at epsilon >= 0."""
        epsilon = number("epsilon", epsilon, at_least=0)
        if not self.nodes:
            return 0.0
        least_delta = 1.0
        # Each probability ``tails`` of `mu` gives a valid delta. Take the smallest over a grid.
        for tails in np.geomspace(1e-60, 0.5, 240).tolist():
            mu = self.mu(tails)
            if math.isfinite(mu):
                least_delta = min(least_delta, tails + (1.0 - tails) * gaussian_delta(epsilon, mu))
        return least_delta

    def epsilon(self, delta: float) -> float:
        """Return an epsilon >= 0 that is proven at delta in [0, 1), or infinity."""
        delta = number("delta", delta, at_least=0, below=1)
        return _least_epsilon(self.nodes, self.coordinates, self.integers, delta)


@cached
def _least_epsilon(
    nodes: tuple[Node, ...], coordinates: int, integers: bool, delta: float
) -> float:
    """Return the least epsilon that a `VectorSumAccount` of these nodes proves at delta."""
    account = VectorSumAccount(nodes, coordinates, integers=integers)
    least_epsilon = math.inf if account.nodes else 0.0
    # A share of delta covers the tails of the noise, the rest is for the Gaussian mechanism.
    for share in TAIL_SHARES if account.nodes and delta > 0.0 else ():
        mu = account.mu(delta * share)
        if math.isfinite(mu):
            remaining_delta = delta * (1.0 - share) / (1.0 - delta * share)
            least_epsilon = min(least_epsilon, gaussian_epsilon(mu, remaining_delta))
    return least_epsilon


# ---- a lower bound of the true delta of one vector sum -------------------------------------------
# Compare the output distributions of two given neighbouring records, including rounding. If their
# divergence at the claimed epsilon is above the claimed delta, the claim is false.

# No lower bound is computed for more noise bits than this, because the tables would be too large.
_MAX_TRIALS = 2**28
# Number of cells of the grid for the privacy losses of one coordinate. Each loss is rounded down to
# the start of its cell.
_LOSS_CELLS = 2**14
# Bound on the error of the Fourier transforms of a composition, with a wide margin.
_FOURIER_ERROR = 1e-12

#: The encoded value of one coordinate before and after a record changes, in encoding levels.
Move = tuple[float, float]
#: The type of the result of `masses`.
Masses = tuple[int, np.ndarray, np.ndarray]


def hockey_stick_lower_bound(
    trials: int, g: tuple[int, int], dimension: int, relation: str, epsilon: float
) -> float:
    """Return a lower bound of the true delta, at epsilon, of one vector sum.

    Every coordinate has Bin(trials, 1/4) noise. ``g`` has the encoding levels per unit of the bias
    stream (x y) and of the covariance stream (x x^T). The result is the maximum over a few pairs of
    neighbouring records. It is 0 for more than 2^28 trials, where nothing is computed.
    """
    if trials > _MAX_TRIALS:
        return 0.0
    noise = masses(trials)
    return max(
        _divergence(trials, noise, m, epsilon) for m in _neighbouring_pairs(relation, dimension, g)
    )


def _neighbouring_pairs(relation: str, dimension: int, g: tuple[int, int]) -> list[list[Move]]:
    """Return a few pairs of neighbouring records with reward y = 1, as changes of coordinates.

    A pair of records is a list of tuples (value before, value after), in encoding levels, one for
    each coordinate that changes. ``relation`` is "zero-out" or "replace". ``g`` holds the encoding
    levels per unit of x y and of x x^T.
    """
    bias, covariance = float(g[0]), float(g[1])
    if relation == "zero-out":
        return [[(bias, 0.0), (covariance, 0.0)]]
    pairs = [[(bias, -bias)]]  # x = e_1 becomes -e_1
    if dimension == 1:
        # x = 1 becomes -q, where the sensitivity of `_replacement_line` has its inner maximum.
        if (discriminant := 1.0 - 2.0 * (bias / covariance) ** 2) >= 0.0:
            q = (1.0 - math.sqrt(discriminant)) / 2.0
            pairs.append([(bias, -q * bias), (covariance, q * q * covariance)])
        return pairs
    # x = (cos u, -sin u) becomes (-sin u, cos u). Let t = sin 2u. The first pair has t = 0, where
    # all values are whole levels. The second has the t at which the sensitivity has its maximum
    # (`_replacement` in `fastfed.privacy.sensitivity`).
    for t in (0.0, min(1.0, 0.5 * (bias / covariance) ** 2)):
        u = math.asin(t) / 2.0
        c, s = math.cos(u), math.sin(u)
        high, low = covariance * c * c, covariance * s * s
        pairs.append([(bias * c, -bias * s), (-bias * s, bias * c), (high, low), (low, high)])
    return pairs


def _divergence(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    """Return a lower bound of the hockey-stick divergence of two neighbouring records at epsilon.

    ``moves`` has (value before, value after) of each coordinate that changes, and ``noise`` the
    `masses` of Bin(trials, 1/4). The result is the larger of the bounds for the two directions.
    """
    reversed_moves = [(after, before) for before, after in moves]
    return max(
        _one_sided_divergence(trials, noise, direction, epsilon)
        for direction in (moves, reversed_moves)
    )


def _one_sided_divergence(trials: int, noise: Masses, moves: list[Move], epsilon: float) -> float:
    """Return a lower bound of the hockey-stick divergence of the first record from the second.

    ``moves`` has the value of each coordinate in the first and in the second record, and ``noise``
    the `masses` of Bin(trials, 1/4).
    """
    losses = [_masses_and_losses(trials, noise, *move) for move in moves if move[0] != move[1]]
    if len(losses) == 1:
        ((mass, loss),) = losses
        return _hockey_stick(mass, loss, epsilon)
    # Compose the coordinates by Fourier transforms on a grid. Losses are rounded down and small
    # masses dropped, so the result can only be too small. An infinite loss means that the output is
    # possible for the first record only, which discloses this record.
    finite = [(m[kept], x[kept]) for m, x in losses for kept in [np.isfinite(x) & (m > 1e-18)]]
    disclosure_probability = 1.0 - math.prod(1.0 - float(m[np.isinf(x)].sum()) for m, x in losses)
    if not all(m.size for m, _ in finite):
        return max(disclosure_probability - _FOURIER_ERROR, 0.0)
    smallest_sum = sum(float(x.min()) for _, x in finite)
    width = max(float(np.ptp(x)) for _, x in finite) / _LOSS_CELLS or 1.0
    cells = [
        np.bincount(((x - x.min()) / width).astype(np.int64), m, minlength=_LOSS_CELLS + 1)
        for m, x in finite
    ]
    length = len(cells) * (_LOSS_CELLS + 1)
    transformed = np.prod([np.fft.rfft(c, length) for c in cells], axis=0)
    mass = np.maximum(np.fft.irfft(transformed, length), 0.0)
    loss = smallest_sum + width * np.arange(length)
    return max(disclosure_probability + _hockey_stick(mass, loss, epsilon) - _FOURIER_ERROR, 0.0)


def _hockey_stick(mass: np.ndarray, loss: np.ndarray, epsilon: float) -> float:
    """Return E(1 - e^(epsilon - loss))_+, the hockey-stick divergence of a privacy loss.

    ``mass`` holds the probabilities of the values in ``loss``, which may be infinite.
    """
    is_above = loss > epsilon
    return min(float(np.sum(mass[is_above] * -np.expm1(epsilon - loss[is_above]))), 1.0)


def _masses_and_losses(
    trials: int, noise: Masses, before: float, after: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output distribution of one coordinate, and the privacy loss of each output.

    The output is noise plus the value ``before``, rounded at random to an integer. Its privacy loss
    is the log ratio of its probabilities for the values ``before`` and ``after``. ``noise`` has the
    `masses` of Bin(trials, 1/4).
    """
    first, mass, log_ratio = noise
    low = math.floor(before)
    k = np.arange(low + first, low + first + mass.size + 1)

    def log_mass(value: float) -> np.ndarray:
        """Return ln P(noise + rounded value = k) for all k, if ``value`` is rounded at random."""
        floor = math.floor(value)
        fraction = value - floor
        log_stays = _log_ratios(first, log_ratio, trials, k - floor)
        if fraction == 0.0:
            return log_stays
        log_moves = _log_ratios(first, log_ratio, trials, k - floor - 1)
        return np.logaddexp(math.log1p(-fraction) + log_stays, math.log(fraction) + log_moves)

    log_before = log_mass(before)
    is_possible = log_before > -math.inf
    log_before, log_after = log_before[is_possible], log_mass(after)[is_possible]
    return np.exp(log_before) * mass.max(), log_before - log_after


def _log_ratios(first: int, log_ratio: np.ndarray, trials: int, ones: np.ndarray) -> np.ndarray:
    """Return ln(P(X = k) / P(X = mode)) for X ~ Bin(trials, 1/4) and each k in the array ``ones``.

    ``first`` and ``log_ratio`` are the table that `masses` returns. For a k outside of the table
    the result is an upper bound.
    """
    log_ratios = np.where((ones >= 0) & (ones <= trials), -_LOG_SMALLEST, -math.inf)
    tabulated = (ones >= first) & (ones < first + log_ratio.size)
    log_ratios[tabulated] = log_ratio[ones[tabulated] - first]
    return log_ratios


# ---- Fair coins: integers plus Bin(n, 1/2), accounted for as Gaussian noise ----------------------
#
# The lemma, proven in docs/secure-sum.md. Let n be even, S ~ Bin(n, 1/2), V >= t >= 0 integers and
# 0 < tail < 1/2. Let
#
#     y = sqrt(n ln(1 / tail) / 2),    a <= n/2 - y - V an integer, a >= 1 and a <= n/2 - 2.
#
# Distinguishing S from S + t, in either direction, is at least as hard as distinguishing N(0, 1)
# from N(t / (a / sqrt(n)), 1) when, in addition, everything is disclosed with probability ``tail``.
# So, except with this probability, S hides a shift as well as Gaussian noise of standard deviation
#
#     a / sqrt(n) = sqrt(n)/2 - sqrt(ln(1 / tail) / 2) - V / sqrt(n),    rounded down,
#
# which is a few units less than the standard deviation sqrt(n)/2 of S, for any n.

# Bound on the relative error of the few float64 operations behind a result, with a wide margin.
_LOG_ROUNDING = 1e-12


def std_of_coins(trials: int, reach: int, tail: float) -> float:
    """Return the std of Gaussian noise that hides shifts no better than Bin(trials, 1/2) does.

    So the account of this Gaussian noise is valid for the binomial noise. With n = trials and
    V = reach the std is a / sqrt(n), where a is n/2 - sqrt(n ln(1/tail) / 2) - V, rounded down,
    but at most n/2 - 2.

    Parameters
    ----------
    trials : int
        n >= 0, even.
    reach : int
        V >= 0, the largest shift.
    tail : float
        In [0, 1/2): the probability with which the Gaussian guarantee does not hold.

    Returns
    -------
    float
        Standard deviation, in the units of Bin(trials, 1/2); 0 if nothing is proven.

    Notes
    -----
    See the lemma above this function. The arguments are not checked.
    """
    if tail <= 0.0:  # the caller's share of delta has underflowed, so nothing is proven
        return 0.0
    # y >= sqrt(n ln(1/tail) / 2), computed in integers because n may be far above 2^53.
    log_in_2_20ths = math.ceil(-math.log(tail) * (1.0 + _LOG_ROUNDING) * 2**20)
    y = math.isqrt(trials * log_in_2_20ths >> 21) + 1
    a = min(trials // 2 - y - reach, trials // 2 - 2)
    if a < 1:
        return 0.0
    return a / math.sqrt(trials) * (1.0 - _LOG_ROUNDING)
