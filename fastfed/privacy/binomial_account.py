"""A proven bound on the privacy of vector sums with binomial noise, in closed form.

Setting. Node j of the release adds, to every coordinate i of an integer vector, its own noise
X ~ Bin(N_j, 1/4). One record is encoded in fixed point, w = g x rounded at random to one of the
two neighbouring integers with mean w, independently in each coordinate and node. Replacing the
record moves w by a real vector D_j with ||D_j||_2 <= S_j; all else is the same in both worlds,
and later nodes may depend on what earlier ones showed.

Claim. Let B > 0 and tail = 1 - (1 - B)^(1/C), C the number of pairs (node, coordinate) that may
change. With mu_j from `node_mu` and mu^2 = sum_j mu_j^2, everything released is
(epsilon, delta)-private for every epsilon >= 0 and
    delta = 1 - (1 - B) (1 - delta_of(epsilon, mu)).

Proof. Trade-off functions as in Dong, Roth & Su 2022: f(alpha) is the least error of the second
kind of a test at level alpha; a larger f is more private, and G_m is that of N(0, 1) against
N(m, 1).
1. One coordinate, condition on all other records (they add a constant). The two worlds release
   X + r and X + r', r = floor(w) + Ber(frac w), r' the same of w' = w + t, say t >= 0. With
   F(u) the distribution function of X interpolated linearly between integers,
   P(X + r <= k) = (1 - frac w) F(k - floor w) + frac w F(k - floor w - 1) = F(k - w).
2. r is below r' in the likelihood ratio order, and X has a log-concave mass function, so X + r is
   below X + r' in that order: best tests compare the outcome with a threshold k (Neyman-Pearson).
   Hence f is the convex polygon with the corners (1 - F(u), F(u - t)), u = k - w; a convex
   function that is below f at its corners is below f.
3. Let x(u) = Phi^-1 F(u), [a, b] integers with F(a + V) <= tail and 1 - F(b - V) <= tail,
   V an integer >= t. If x(u) - x(u - t) <= m whenever u - t >= a and u <= b, then
   f >= f_m, the trade-off function of (G_m with probability 1 - tail, full disclosure else):
   f_m(alpha) = (1 - tail) G_m(alpha / (1 - tail)), 0 for alpha >= 1 - tail, is convex. At a corner:
   (i) u <= a + V: F(u) <= tail, alpha >= 1 - tail, f_m = 0.
   (ii) u - t >= b - V: F(u - t) >= 1 - tail >= f_m.
   (iii) else u - t > a and u < b, so x(u) - x(u - t) <= m. Then
   F(u - t) = Phi(x(u - t)) >= Phi(x(u) - m) = G_m(alpha) >= f_m(alpha), the last because whoever
   is told everything can still draw from N(0, 1) or N(m, 1), so the second pair simulates G_m.
   f_m is symmetric, so the same holds with the two worlds exchanged, and for t < 0.
4. x is increasing and between integers concave where x < 0, convex where x > 0 (Phi^-1 is, and F
   is linear). Three bounds on its steps inside the window, computed in
   `fastfed.privacy.binomial_noise.Probits`: mean, the largest x(k) - x(k - 1); slope, the largest
   derivative, P(X = k) / min phi at both ends; and bend, for x against the polygon through its
   values at integers: a chord of a function with |x''| <= c deviates by at most c/8 over a unit
   interval, and x'' = x'^2 x. Left of 0 x lies above the polygon and right of 0 below it, so in
   x(u) - x(u - t) only one deviation counts against us, except both ends in the interval around 0,
   whose bend is counted twice. Therefore
       x(u) - x(u - t) <= min(slope t, mean t + bend),    and <= mean t if u and t are integers.
5. In node j the coordinates are independent: f is at least the product of their f_m, and
   G_m x G_m' = G_hypot(m, m'). By Cauchy-Schwarz
       hypot over i <= mu_j = min(slope S_j, mean S_j + bend sqrt(s)),   V = ceil(S_j).
   Rounding therefore costs nothing but bend, which vanishes like 1/N: it is noise like other noise.
   (Coupling the rounding of both worlds instead would cost sqrt(s) on top of S_j.)
6. Nodes compose adaptively (their Theorem 4): the parts told with probability `tail` add up to a
   disclosure with probability 1 - (1 - tail)^C = B, the Gaussian parts to G_mu. That pair is
   (epsilon, delta)-private for the delta of the claim. What the bound conditions on (other
   records, their roundings) is independent of the changed record, and telling it costs privacy,
   so leaving it out is covered.
   One user behind several records: nodes of the same noise in which c_i records change, c_i = 0 or
   c_i >= 1, by at most c_i S <= V together, have mu_i <= c_i mu(S), the mu(S) of step 5 in that
   window V: for c >= 1 both slope c S and mean c S + bend sqrt(s) are at most c times their values
   at c = 1. So they add at most (sum_i c_i^2) mu(S)^2, and C counts those with c_i > 0. Step 1 is
   about one rounded vector: where a node holds several of the user's records, c_i S must be what
   is left when the roundings of all but one are told.                                       QED
Large N: mean = (1 + O(1/sqrt(N))) / sqrt(3 N/16), so mu^2 -> sum_j 16 S_j^2 / (3 N_j).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastfed._validate import InputError, boolean, integer, number
from fastfed.privacy.binomial_noise import Probits
from fastfed.privacy.gaussian import delta_of, epsilon_of

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
    """Ratio mu_j of one node (steps 3 to 5), infinite where nothing is proven.

    norm: S_j. coordinates: how many may change. tail: mass that each coordinate's window may lose
    at each end. integers: the changes are integer vectors, with no rounding in between. reach: the
    window is made for changes up to it (default: norm).
    """
    steps = probits.steps(tail, math.ceil(norm if reach is None else reach))
    if integers:
        return steps.mean * norm
    return min(steps.slope * norm, steps.mean * norm + steps.bend * math.sqrt(coordinates))


def changing(norm: float, coordinates: int, integers: bool) -> int:
    """How many coordinates of one node may change: an integer vector has at most norm^2 of them."""
    return min(coordinates, int(norm * norm)) if integers else coordinates


def tail_of(total: float, count: int) -> float:
    """The mass per coordinate and node that adds up to `total` over count of them."""
    return -math.expm1(math.log1p(-total) / count)


def _checked(given: tuple[int, float] | Node) -> Node:
    """A pair or a Node as a checked Node."""
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
    """Privacy of a release of vector sums with binomial noise, for every change within the norms.

    nodes: pairs (N_j, S_j): the noise bits of each coordinate of node j, and the largest L2 norm of
    one record's change of that node's encoded vector, in encoding levels; or a `Node` for several
    nodes and records of one user. coordinates: s, the length of the vectors. integers: the changes
    are integer vectors, nothing is rounded at random.

    Guarantee: proven for all changes with these norms, adaptively composed; the proof stands at
    the top of this module. Infinite epsilon where nothing is proven (too little noise for a
    window, delta = 0).
    """

    def __init__(
        self,
        nodes: Sequence[tuple[int, float] | Node],
        coordinates: int,
        *,
        integers: bool = False,
    ) -> None:
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
        return changing(node.window, self.coordinates, self.integers)

    def mu(self, tails: float) -> float:
        """The ratio mu of the Gaussian part when all windows together lose at most `tails`."""
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
        """A delta in [0, 1] that is proven at epsilon >= 0."""
        epsilon = number("epsilon", epsilon, at_least=0)
        if not self.nodes:
            return 0.0
        best = 1.0
        for tails in np.geomspace(1e-60, 0.5, 240).tolist():
            mu = self.mu(tails)
            if math.isfinite(mu):
                best = min(best, tails + (1.0 - tails) * delta_of(epsilon, mu))
        return best

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0 that is proven at delta in [0, 1); infinite when there is none."""
        delta = number("delta", delta, at_least=0, below=1)
        if not self.nodes:
            return 0.0
        best = math.inf
        for share in TAIL_SHARES if delta > 0 else ():
            mu = self.mu(delta * share)
            if math.isfinite(mu):
                rest = delta * (1.0 - share) / (1.0 - delta * share)
                best = min(best, epsilon_of(mu, rest))
        return best
