"""Vector sums by shuffling: the p-sum tree with binomial noise in fixed-point encoded sums.

A mechanism and its accounting are one object, as for the Gaussian tree: whatever formula chose the
noise bits, their privacy is computed from the bits themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.accounting.binomial import (
    ONES,
    TAIL_SHARES,
    Node,
    Probits,
    VectorSumAccount,
    node_mu,
    pld_delta,
    shifted_binomial_delta,
    tail_of,
)
from fastfed.privacy.accounting.gdp import gaussian_mu
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, check_single_participation
from fastfed.privacy.releases.participation import level_squares, participation_conditions
from fastfed.privacy.releases.prefix_sums import tree_levels
from fastfed.privacy.sensitivity import (
    Budget,
    check_gaussian_budget,
    joint_sensitivity,
    named_relation,
)

__all__ = [
    "BinomialTree",
    "VectorSumAccount",
    "calibrate_vector_sum",
    "pld_delta",
    "shifted_binomial_delta",
]

_SOURCE = {
    "exact": "proven accounting of binomial noise (zhou-chowdhury-2024, Algorithms 5 to 7, with "
    "the least noise bits that give the budget)",
    "theorem": "zhou-chowdhury-2024, Theorem 5.5 and Appendix F.2 (constants of "
    "chowdhury-zhou-2022, Theorem C.1), half the budget for each stream, logarithm read as log2",
    "published-code": "constants of the published experiment code of zhou-chowdhury-2024, no "
    "composition over nodes",
}
VARIANCE = ONES * (1.0 - ONES)
# "exact" raises g until the noise has at least this many levels of standard deviation: with it the
# skewness of the binomial costs below two per cent of noise at every usual budget.
EXACT_LEVELS = 150.0
# For several batches of a user "exact" also raises g until their roundings cost at most this part
# of noise.
_EXACT_ROUNDING = 0.02


class BinomialTree(msgspec.Struct, frozen=True):
    """The p-sum tree over two streams, x y and x x^T, every node a vector sum by shuffling.

    Parameters
    ----------
    releases : int
        Number of released nodes (T / B); 0 releases nothing.
    batch_points : int
        n of a leaf, the users of all silos in one batch (M B); a node of level j sums n_j = n 2^j
        users.
    dimension : int
        d; a node has s = d + d (d + 1)/2 coordinates (the matrix on and above its diagonal).
    g, b : tuple of int
        For each level, the encoding levels per unit and the noise bits that each user adds to each
        coordinate, so a coordinate carries Bin(n_j b_j, 1/4).
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose them.
    budget : Budget
        The budget that was asked for.
    source : str
        Author-year of the rule.
    vector_scale : float
        The factor of the published code.
    honest_fraction : float
        h; only floor(h n_j) users' noise is counted on.
    returning : int
        M0, the most batches that one user takes part in, at most once in each and at times that do
        not depend on what was released.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user's records (x, y), ||x||_2 <= 1 and |y| <= 1, entering one leaf each,
    `returning` leaves at most, all released nodes of both streams together are
    (exact(), budget.delta)-private towards everyone who sees shuffled messages; proven in
    `fastfed.privacy.accounting.binomial`. A message has 2 g + b bits, and only the sum of a
    coordinate's bits is seen.
    Source: zhou-chowdhury-2024, Algorithms 5 to 7.
    """

    releases: int
    batch_points: int
    dimension: int
    g: tuple[int, ...]
    b: tuple[int, ...]
    calibration: str
    budget: Budget
    source: str
    vector_scale: float = 1.0
    honest_fraction: float = 1.0
    returning: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        integer("releases", self.releases, at_least=0)
        integer("batch_points", self.batch_points, at_least=1)
        integer("dimension", self.dimension, at_least=1)
        choice("calibration", self.calibration, CALIBRATIONS)
        number("vector_scale", self.vector_scale, above=0)
        number("honest_fraction", self.honest_fraction, above=0, at_most=1)
        integer("returning", self.returning, at_least=1)
        for name in ("g", "b"):
            values = tuple(integer(name, v, at_least=1) for v in getattr(self, name))
            if len(values) != self.depth:
                raise InputError(
                    f"{name} must have one value for each of the {self.depth} levels, "
                    f"got {len(values)}"
                )
            msgspec.structs.force_setattr(self, name, values)

    @property
    def relation(self) -> str:
        """The relation of the budget, used wherever none is named."""
        return self.budget.relation

    @property
    def depth(self) -> int:
        """kappa, the number of levels and the largest number of nodes that one record enters."""
        return tree_levels(self.releases)

    @property
    def coordinates(self) -> int:
        """s = d + d (d + 1)/2, the length of a node's vector."""
        return self.dimension + self.dimension * (self.dimension + 1) // 2

    def users(self, level: int) -> int:
        """n_j, the users whose records a node of this level sums."""
        return self.batch_points << integer("level", level, at_least=0)

    def trials(self, level: int) -> int:
        """n_j b_j: a coordinate of a node of this level carries Bin(n_j b_j, 1/4)."""
        return self.users(level) * self.b[level]

    def counted(self, level: int) -> int:
        """The noise bits of a coordinate that the accounting relies on: floor(h n_j) b_j."""
        return counted_users(self.honest_fraction, self.users(level)) * self.b[level]

    def noise_std(self, level: int) -> float:
        """Standard deviation of a coordinate's binomial noise, in units of the sum."""
        return math.sqrt(VARIANCE * self.trials(level)) / self.g[level]

    def rounding_std(self, level: int) -> float:
        """Largest standard deviation of a coordinate's rounding, sqrt(n_j)/(2 g_j)."""
        return math.sqrt(self.users(level)) / (2.0 * self.g[level])

    @property
    def noise_stds(self) -> dict[str, float]:
        """Largest standard deviations by stream, without rounding, as a certificate lists them."""
        largest = max((self.noise_std(j) for j in range(self.depth)), default=0.0)
        return dict.fromkeys(("bias", "covariance", "covariance_diagonal"), largest)

    @property
    def published_std(self) -> float:
        """s in the regularizer of the published code, which is not the noise's standard deviation.

        s = sqrt(kappa ln(1/delta)) ln(kappa d^2/delta) / epsilon.
        """
        if self.depth == 0:
            return 0.0
        epsilon, log_delta = self.budget.epsilon, math.log(self.budget.delta)
        inner = math.log(self.depth * self.dimension**2) - log_delta
        return math.sqrt(self.depth * -log_delta) * inner / epsilon

    def _sensitivity(self, relation: str | None) -> float:
        """Joint sensitivity of one record."""
        relation = named_relation(relation, self.budget)
        return joint_sensitivity(relation, "iid", self.dimension)

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of Gaussian noise of the same variance.

        For orientation: exact() is the proof. mu^2 = sum_j 16 R_j g_j^2 D^2 / (3 N_j), D the joint
        sensitivity, N_j the counted bits and R_j the sum of squares of
        `participation.level_squares`, 1 for one batch.
        """
        d = self._sensitivity(relation)
        if any(self.counted(j) == 0 for j in range(self.depth)):
            return math.inf
        return math.hypot(
            *(
                math.sqrt(level_squares(self.releases, self.returning, j)[0])
                * (d * g / math.sqrt(VARIANCE * self.counted(j)))
                for j, g in enumerate(self.g)
            )
        )

    def account(self, relation: str | None = None) -> VectorSumAccount:
        """The proven account of the whole release: one node of each level.

        With returning > 1 all nodes of a level that one user may change, see `_level`.
        """
        d = self._sensitivity(relation)
        nodes = [
            _level(
                level_squares(self.releases, self.returning, j),
                self.counted(j),
                d * g,
                self.coordinates,
            )
            for j, g in enumerate(self.g)
        ]
        return VectorSumAccount(nodes, self.coordinates)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """The epsilon proven for everything released, at delta (default: the budget's).

        Infinite where none is proven.
        """
        return self.account(relation).epsilon(self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """The claim under its relation, by the proven account, and what is taken on trust."""
        budget = self.budget
        found = self.exact()
        what = (
            f"the proven epsilon of this noise, {rounded_up(found)} at delta {budget.delta:g} "
            f"under {budget.relation}, is at most {budget.epsilon:g}"
        )
        if found == math.inf:
            what = (
                f"an epsilon at most {budget.epsilon:g} is proven for this noise at delta "
                f"{budget.delta:g} under {budget.relation} (none is, it is too little)"
            )
        if self.calibration == "theorem" and self.depth:
            epsilon0, delta0 = _per_node(budget, self.depth)
            what += (
                f" (computed; Theorem 5.5 needs epsilon_0 = {epsilon0:.4g} <= 15 and delta_0 = "
                f"{delta0:.4g} < 1/2 for each node: {'met' if epsilon0 <= 15.0 else 'not met'})"
            )
        if self.calibration == "published-code":
            what += " (computed; no theorem states these constants)"
        if self.honest_fraction == 1.0:
            who = "all users of every node add their noise bits, and none tells the server which "
            who += "(taken on trust; honest_fraction < 1 counts on fewer)"
        else:
            who = f"at least the fraction {self.honest_fraction:g} of the users of every node add "
            who += "their noise bits, and do not tell the server which (taken on trust)"
        claim = ClaimCondition(what, found <= budget.epsilon)
        return [Condition(who, True), *participation_conditions(self.returning), claim]


def counted_users(fraction: float, users: int) -> int:
    """Number of users whose noise is counted on."""
    return users if fraction == 1.0 else math.floor(fraction * users)


def _level(changed: tuple[int, int, int], trials: int, norm: float, coordinates: int) -> Node:
    """All nodes of one level that one user may change, for the account.

    changed: of `level_squares`. norm: S, the most that one record moves its encoded vector. Of c
    records in a node each is rounded by itself, while the account moves one real vector. So tell
    how all but one are rounded: with r = floor(w + U) and r' = floor(w + t + U), U uniform and
    told, r' - r is within 1 of t in each coordinate. The rest is one record whose vector moves by
    at most c S + (c - 1) sqrt(s) <= c (S + (1 - 1/most) sqrt(s)).
    """
    squares, count, most = changed
    norm += (1.0 - 1.0 / most) * math.sqrt(coordinates)
    return Node(trials, norm, squares, count, most * norm)


def _per_node(budget: Budget, kappa: int) -> tuple[float, float]:
    """Budget (epsilon_0, delta_0) of one node and stream: half of it, advanced composition."""
    epsilon, delta = budget.epsilon / 2.0, budget.delta / 2.0
    return epsilon / (2.0 * math.sqrt(2.0 * kappa * math.log(2.0 / delta))), delta / (2.0 * kappa)


def usual_levels(users: int, dimension: int) -> int:
    """Compute max(ceil(2 sqrt n), d, 4) (zhou-chowdhury-2024, Appendix F.2) in integers."""
    return max(math.isqrt(4 * users - 1) + 1, dimension, 4)


def calibrate_vector_sum(
    budget: Budget,
    releases: int,
    batch_points: int,
    dimension: int,
    calibration: str = "exact",
    vector_scale: float = 1.0,
    honest_fraction: float = 1.0,
    returning: int = 1,
) -> BinomialTree:
    """Calibrate the vector-sum tree: encoding levels g_j and noise bits b_j of every level.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        K.
    batch_points : int
        n of a leaf.
    dimension : int
        d.
    calibration : {"exact", "theorem", "published-code"}
        With n_j = batch_points 2^j users, kappa levels, and g_j = max(ceil(2 sqrt n_j), d, 4):
        "theorem": b_j = ceil(24e4 g_j^2 ln(4 (d^2 + 1)/delta_0)^2 / (epsilon_0^2 n_j)), with
        epsilon_0 = (epsilon/2) / (2 sqrt(2 kappa ln(4/delta))), delta_0 = delta / (4 kappa)
        (zhou-chowdhury-2024, Theorem 5.5, for two streams).
        "published-code": b_j = ceil(vector_scale g_j^2 ln(d^2/delta)^2 / (epsilon^2 n_j)), without
        composition over the nodes; it often does not give the budget, see conditions().
        "exact": the smallest b_j for which the budget is proven with equal shares mu^2 / kappa of
        the nodes; g_j is raised where needed so that the noise has a standard deviation of at
        least 150 levels, which makes a coarse encoding's skewness negligible. A larger g changes
        no noise in units of the sum, only the length 2 g + b of a message, b growing like g^2.
        With returning > 1 one record in a node has the share mu^2 / sum_j R_j, R_j the squares of
        `participation.level_squares`, and g_j is raised until the roundings of the user's other
        records cost at most two per cent of noise.
    vector_scale : float
        Only for "published-code".
    honest_fraction : float
        h in (0, 1]; only floor(h n_j) users' noise is counted on, and "exact" makes the others'
        share up.
    returning : int
        The most batches of one user, see `BinomialTree`; more than 1 only for "exact".

    Returns
    -------
    BinomialTree

    Raises
    ------
    InputError
        For delta = 0, the unit "silo", a vector_scale or returning other than 1 elsewhere, and if
        nobody's noise can be counted on.
    """
    releases = integer("releases", releases, at_least=0)
    batch_points = integer("batch_points", batch_points, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    choice("calibration", calibration, CALIBRATIONS)
    vector_scale = number("vector_scale", vector_scale, above=0)
    honest_fraction = number("honest_fraction", honest_fraction, above=0, at_most=1)
    if calibration != "published-code" and vector_scale != 1.0:
        raise InputError(
            f'vector_scale must be 1 when calibration is "{calibration}", got {vector_scale:g}'
        )
    returning = integer("returning", returning, at_least=1)
    if calibration != "exact":
        check_single_participation(calibration, returning)
    check_gaussian_budget(budget)
    kappa = tree_levels(releases)
    users = [batch_points << j for j in range(kappa)]
    levels = [usual_levels(n, d) for n in users]
    if calibration == "exact":
        changed = [level_squares(releases, returning, j) for j in range(kappa)]
        levels, bits = (
            _exact(budget, users, levels, d, honest_fraction, changed) if kappa else ([], [])
        )
    else:
        if calibration == "theorem":
            epsilon, small = _per_node(budget, kappa) if kappa else (1.0, 1.0)
            factor = 24e4 * (math.log(4 * (d * d + 1)) - math.log(small)) ** 2 / epsilon**2
        else:
            factor = (
                vector_scale * (math.log(d * d) - math.log(budget.delta)) ** 2 / budget.epsilon**2
            )
        bits = [max(math.ceil(factor * g * g / n), 1) for g, n in zip(levels, users, strict=True)]
    return BinomialTree(
        releases,
        batch_points,
        d,
        tuple(levels),
        tuple(bits),
        calibration,
        budget,
        _SOURCE[calibration],
        vector_scale,
        honest_fraction,
        returning,
    )


def _exact(
    budget: Budget,
    users: list[int],
    levels: list[int],
    dimension: int,
    honest_fraction: float,
    changed: list[tuple[int, int, int]],
) -> tuple[list[int], list[int]]:
    """Find g_j and the smallest b_j, for the best share of delta for the windows."""
    coordinates = dimension + dimension * (dimension + 1) // 2
    joint = joint_sensitivity(budget.relation, "iid", dimension)
    honest = [counted_users(honest_fraction, n) for n in users]
    if honest[0] == 0:
        raise InputError(
            f"honest_fraction must leave at least 1 of {users[0]} users, got {honest_fraction:g}"
        )
    parts = math.sqrt(sum(squares for squares, _, _ in changed))
    share = gaussian_mu(budget.epsilon, budget.delta) / parts
    least = math.ceil(EXACT_LEVELS * share / joint)
    others = [(1.0 - 1.0 / most) * math.sqrt(coordinates) for _, _, most in changed]
    levels = [
        max(g, least, math.ceil(extra / (_EXACT_ROUNDING * joint)))
        for g, extra in zip(levels, others, strict=True)
    ]

    def wanted(part: float) -> tuple[float, float]:
        """Ratio of a record in a node and tail of a coordinate, as the account computes them."""
        rest = budget.delta * (1.0 - part) / (1.0 - budget.delta * part)
        count = sum(nodes for _, nodes, _ in changed)
        tail = tail_of(budget.delta * part, count * coordinates)
        return gaussian_mu(budget.epsilon, rest) / parts, tail

    def node(j: int, trials: int) -> Node:
        """The nodes of a level with so many noise bits."""
        return _level(changed[j], trials, joint * levels[j], coordinates)

    def ratio(j: int, b: int) -> float:
        """mu of a node of a level with b bits a user."""
        made = node(j, honest[j] * b)
        return node_mu(Probits(made.trials), made.norm, coordinates, tail, False, made.window)

    # The share of the windows is chosen where they are widest for their noise.
    widest = max(range(len(users)), key=lambda j: changed[j][2])
    first = node(widest, 0)
    probits = Probits(math.ceil((first.norm / share) ** 2 / VARIANCE))
    loss = []
    for part in TAIL_SHARES:
        mu, tail = wanted(part)
        found = node_mu(probits, first.norm, coordinates, tail, False, first.window)
        loss.append((found / mu if mu > 0 else math.inf, mu, tail))
    _, mu, tail = min(loss)
    bits = []
    for j, n in enumerate(honest):
        need = (node(j, 0).norm / mu) ** 2 / VARIANCE / n
        bits.append(smallest_bits(need, mu, partial(ratio, j)))
    return levels, bits


def smallest_bits(need: float, mu: float, ratio: Callable[[int], float]) -> int:
    """Find the smallest b with ratio(b) <= mu (to one part in 2^40), ratio like 1/sqrt(b)."""
    low, high = 0, max(math.ceil(need), 1)  # low fails
    while not (found := ratio(high)) <= mu:
        low = high
        grown = high * (found / mu) ** 2 if math.isfinite(found) else 2.0 * high
        high = max(math.ceil(grown), high + 1)
    step = 1
    while high - low > max(1, high >> 40):
        # The rule leads to within a few units of the answer; from there by doubled steps, then
        # by halving.
        middle = max(min(math.ceil(high * (found / mu) ** 2), high) - step, (low + high) // 2)
        value = ratio(middle)
        if value <= mu:
            high, found = middle, value
        else:
            low = middle
        step *= 2
    return high
