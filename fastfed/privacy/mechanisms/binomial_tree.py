"""Shuffled vector sums in a tree: sums of fixed-point encoded records with binomial noise.

Each user sends bits that encode their record in fixed point, and noise bits. A `BinomialTree`
computes its privacy from the number of noise bits, whatever rule chose this number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec

from fastfed._cache import cached
from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.accounting.binomial import (
    COIN_P,
    TAIL_SHARES,
    Node,
    Probits,
    VectorSumAccount,
    node_mu,
    pld_delta,
    probits_of,
    shifted_binomial_delta,
    tail_of,
)
from fastfed.privacy.accounting.gdp import gaussian_mu
from fastfed.privacy.certificate import Condition, noise_claim
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, check_single_participation
from fastfed.privacy.releases.participation import level_squares, participation_conditions
from fastfed.privacy.releases.prefix_sums import tree_levels
from fastfed.privacy.sensitivity import (
    STREAMS,
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
#: Variance of one noise bit.
VARIANCE = COIN_P * (1.0 - COIN_P)
# Calibration "exact" raises g, the number of encoding levels per unit, until the noise std is at
# least this number of levels. The skewness of the binomial then requires less than 2 % more noise
# at every usual budget.
EXACT_LEVELS = 150.0
# If a user takes part in several batches, calibration "exact" also raises g until the rounding of
# the user's records requires at most this fraction of additional noise.
_EXACT_ROUNDING = 0.02


class BinomialTree(msgspec.Struct, frozen=True):
    """The tree of sums of x y and x x^T whose nodes are shuffled vector sums with binomial noise.

    Parameters
    ----------
    releases : int
        Number of released nodes (T / B); with 0 nothing is released.
    batch_points : int
        n of a leaf, the number of users of all silos in one batch (M B). A node of level j sums the
        records of n_j = n 2^j users.
    dimension : int
        d; a node has s = d + d (d + 1)/2 coordinates (the matrix on and above its diagonal).
    g, b : tuple of int
        For each level of the tree: g_j, the number of encoding levels per unit, and b_j, the number
        of noise bits that each user adds to each coordinate. A coordinate of a node of level j has
        noise Bin(n_j b_j, 1/4).
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose g and b.
    budget : Budget
        The requested budget.
    source : str
        Authors and year of the paper that states the noise rule.
    vector_scale : float
        The factor of the published code, for calibration "published-code".
    honest_fraction : float
        h; the account counts the noise bits of floor(h n_j) users of a node only.
    returning : int
        M0, the largest number of batches that one user takes part in, at most once in each batch
        and at times that do not depend on earlier releases.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: consider one user's records (x, y) with ||x||_2 <= 1 and |y| <= 1, in at most
    ``returning`` leaves and at most one record per leaf. All released nodes of both streams
    together are (exact(), budget.delta)-private for every observer of shuffled messages. The proof
    is in `fastfed.privacy.accounting.binomial`. A message has 2 g + b bits per coordinate, and only
    the sum of a coordinate's bits is visible. Source: zhou-chowdhury-2024, Algorithms 5 to 7.
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
        """Check every field. Raise InputError for a value out of range."""
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
        """Return the relation of the budget, which is the default ``relation`` of all methods."""
        return self.budget.relation

    @property
    def depth(self) -> int:
        """Return kappa, the number of levels of the tree. One record enters at most kappa nodes."""
        return tree_levels(self.releases)

    @property
    def coordinates(self) -> int:
        """Return s = d + d (d + 1)/2, the number of coordinates of a node."""
        return coordinates_of(self.dimension)

    def users(self, level: int) -> int:
        """Return n_j = batch_points 2^level, the number of users in a node of this level."""
        return self.batch_points << integer("level", level, at_least=0)

    def trials(self, level: int) -> int:
        """Return the number n of noise bits of a node's coordinate, whose noise is Bin(n, 1/4)."""
        return self.users(level) * self.b[level]

    def counted(self, level: int) -> int:
        """Return the number of noise bits that the account counts for a coordinate of a node.

        It is the number of bits of floor(h n_j) users, with h = `honest_fraction` and the n_j users
        of a node of this level.
        """
        return counted_users(self.honest_fraction, self.users(level)) * self.b[level]

    def noise_std(self, level: int) -> float:
        """Return the std of the noise in a coordinate of a node, in units of the sum."""
        return math.sqrt(VARIANCE * self.trials(level)) / self.g[level]

    def rounding_std(self, level: int) -> float:
        """Return the largest std that the users' randomised rounding adds to a coordinate."""
        return math.sqrt(self.users(level)) / (2.0 * self.g[level])

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the largest noise std of each stream, for the certificate.

        The error of rounding is not included.
        """
        largest = max((self.noise_std(j) for j in range(self.depth)), default=0.0)
        return dict.fromkeys(STREAMS, largest)

    @property
    def published_std(self) -> float:
        """Return the number s that the published code uses as noise std in its regularizer.

        It differs from the std of the noise (`noise_std`). With kappa = ``depth`` levels,
        s = sqrt(kappa ln(1/delta)) ln(kappa d^2/delta) / epsilon.
        """
        if self.depth == 0:
            return 0.0
        epsilon, log_delta = self.budget.epsilon, math.log(self.budget.delta)
        inner = math.log(self.depth * self.dimension**2) - log_delta
        return math.sqrt(self.depth * -log_delta) * inner / epsilon

    def _sensitivity(self, relation: str | None) -> float:
        """Return the joint L2 sensitivity of x y and x x^T to one record (x, y)."""
        relation = named_relation(relation, self.budget)
        return joint_sensitivity(relation, "iid", self.dimension)

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of Gaussian noise with the variance of the binomial noise.

        This is only an approximation. `exact` returns the proven epsilon. mu^2 is the sum over
        levels j of R_j g_j^2 D^2 / (3 N_j / 16). D is the joint sensitivity, g_j the number of
        encoding levels per unit, and N_j the number of counted noise bits, each of variance 3/16.
        R_j is the largest sum over the nodes of the level of the squared number of one user's
        records in the node (`participation.level_squares`). It is 1 for a user of one batch.
        """
        record_sensitivity = self._sensitivity(relation)
        if any(self.counted(j) == 0 for j in range(self.depth)):
            return math.inf
        return math.hypot(
            *(
                math.sqrt(level_squares(self.releases, self.returning, j)[0])
                * (record_sensitivity * g / math.sqrt(VARIANCE * self.counted(j)))
                for j, g in enumerate(self.g)
            )
        )

    def account(self, relation: str | None = None) -> VectorSumAccount:
        """Return the proven account of the whole release.

        It has one `Node` per level. With returning > 1, this `Node` describes all nodes of the
        level that one user can change (see `_level_nodes`).
        """
        record_sensitivity = self._sensitivity(relation)
        nodes = [
            _level_nodes(
                level_squares(self.releases, self.returning, j),
                self.counted(j),
                record_sensitivity * g,
                self.coordinates,
            )
            for j, g in enumerate(self.g)
        ]
        return VectorSumAccount(nodes, self.coordinates)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon of all releases, at delta (default: the budget's).

        The result is infinite if no finite epsilon is proven.
        """
        return self.account(relation).epsilon(self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        budget = self.budget
        note = ""
        if self.calibration == "theorem" and self.depth:
            epsilon0, delta0 = _per_node(budget, self.depth)
            note = (
                f"computed; Theorem 5.5 needs epsilon_0 = {epsilon0:.4g} <= 15 and delta_0 = "
                f"{delta0:.4g} < 1/2 for each node: {'met' if epsilon0 <= 15.0 else 'not met'}"
            )
        if self.calibration == "published-code":
            note = "computed; no theorem states these constants"
        trust_text = (
            "all users of every node add their noise bits, and none tells the server which bits "
            "are noise (taken on trust; honest_fraction < 1 assumes fewer users)"
            if self.honest_fraction == 1.0
            else f"at least the fraction {self.honest_fraction:g} of the users of every node add "
            "their noise bits, and do not tell the server which (taken on trust)"
        )
        unproven = f"{unproven_text(budget)} (none is proven, the noise is too small)"
        claim = noise_claim(budget, self.exact(), "proven", note, unproven)
        return [Condition(trust_text, True), *participation_conditions(self.returning), claim]


def unproven_text(budget: Budget) -> str:
    """Return the text of the condition that fails if no epsilon is proven for the noise bits."""
    return (
        f"an epsilon at most {budget.epsilon:g} is proven for this noise at delta "
        f"{budget.delta:g} under {budget.relation}"
    )


def coordinates_of(dimension: int) -> int:
    """Return s = d + d (d + 1)/2, the number of coordinates of a vector of sums."""
    return dimension + dimension * (dimension + 1) // 2


def counted_users(fraction: float, users: int) -> int:
    """Return floor(fraction * users), the number of users whose noise bits the account counts."""
    return users if fraction == 1.0 else math.floor(fraction * users)


def _level_nodes(effect: tuple[int, int, int], trials: int, norm: float, coordinates: int) -> Node:
    """Return the account's `Node` for all nodes of one level that one user may change.

    ``effect`` is the result of `level_squares` for the level: a bound on the sum of c^2 over its
    nodes, where c is the number of the user's records in a node; a bound on the number of nodes
    with c > 0; and c_max, a bound on c. ``trials`` is the number of counted noise bits of a
    coordinate, and ``norm`` is S, the largest change of the encoded vector by one record.

    Consider a node with c records of the user and s = ``coordinates`` coordinates. Each record is
    rounded separately, but the account is about one rounded vector. So assume that the observer
    knows the uniform U that rounds each of the other c - 1 records. Let a coordinate of such a
    record change from w to w + t. Then its rounded value changes from floor(w + U) to
    floor(w + t + U), and this change differs from t by less than 1. In total, the one remaining
    vector changes by at most c S + (c - 1) sqrt(s) <= c (S + (1 - 1/c_max) sqrt(s)).
    """
    squares, count, c_max = effect
    norm += (1.0 - 1.0 / c_max) * math.sqrt(coordinates)
    return Node(trials, norm, squares, count, c_max * norm)


def _per_node(budget: Budget, kappa: int) -> tuple[float, float]:
    """Return the budget (epsilon_0, delta_0) of one stream in one node, by advanced composition.

    Each of the two streams (sums of x y and of x x^T) gets half of the budget. A stream composes
    ``kappa`` nodes, one for each level of the tree.
    """
    epsilon, delta = budget.epsilon / 2.0, budget.delta / 2.0
    return epsilon / (2.0 * math.sqrt(2.0 * kappa * math.log(2.0 / delta))), delta / (2.0 * kappa)


def usual_levels(users: int, dimension: int) -> int:
    """Return the published number of encoding levels for n users, max(ceil(2 sqrt n), d, 4).

    Source: zhou-chowdhury-2024, Appendix F.2.
    """
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
        The requested budget, with delta > 0 and unit "user" or "item".
    releases : int
        K, the number of releases.
    batch_points : int
        n, the number of users of a leaf, over all silos.
    dimension : int
        d, the length of a feature vector.
    calibration : {"exact", "theorem", "published-code"}
        The rule, with n_j = batch_points 2^j users, kappa levels, and
        g_j = max(ceil(2 sqrt n_j), d, 4):

        - "theorem": b_j = ceil(24e4 g_j^2 ln(4 (d^2 + 1)/delta_0)^2 / (epsilon_0^2 n_j)), with
          epsilon_0 = (epsilon/2) / (2 sqrt(2 kappa ln(4/delta))) and delta_0 = delta / (4 kappa)
          (zhou-chowdhury-2024, Theorem 5.5, for two streams).
        - "published-code": b_j = ceil(vector_scale g_j^2 ln(d^2/delta)^2 / (epsilon^2 n_j)),
          without composition over nodes. It often does not meet the budget; see ``conditions()``.
        - "exact": the smallest b_j for which the budget is proven, if all nodes have equal shares
          mu^2 / kappa of mu^2, where mu is the GDP parameter that the budget allows. g_j is
          raised if needed, so that the noise std is at least 150 levels and the skewness of coarse
          encodings is negligible. A larger g does not change the noise in units of the sum, only
          the message length 2 g + b, where b grows like g^2. With returning > 1, one record in a
          node has the share mu^2 / sum_j R_j, where R_j are the squares of
          `participation.level_squares`, and g_j is raised until rounding the user's other records
          costs at most 2 % of noise.
    vector_scale : float
        For "published-code" only.
    honest_fraction : float
        h in (0, 1]. The account counts the noise of floor(h n_j) users only, and "exact" adds noise
        to make up for the others.
    returning : int
        The largest number of batches of one user, see `BinomialTree`. Above 1 for "exact" only.

    Returns
    -------
    BinomialTree
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", for a vector_scale or returning that the calibration
        does not allow, and if honest_fraction leaves no user.
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
    # For each level j: n_j users, g_j encoding levels, and b_j bits by the rule.
    kappa = tree_levels(releases)
    users = tuple(batch_points << j for j in range(kappa))
    levels = tuple(usual_levels(n, d) for n in users)
    bits: tuple[int, ...] = ()
    if calibration == "exact":
        effects = tuple(level_squares(releases, returning, j) for j in range(kappa))
        if kappa:
            levels, bits = _least_noise(budget, users, levels, d, honest_fraction, effects)
    else:
        if calibration == "theorem":
            epsilon, node_delta = _per_node(budget, kappa) if kappa else (1.0, 1.0)
            factor = 24e4 * (math.log(4 * (d * d + 1)) - math.log(node_delta)) ** 2 / epsilon**2
        else:
            factor = (
                vector_scale * (math.log(d * d) - math.log(budget.delta)) ** 2 / budget.epsilon**2
            )
        bits = tuple(
            max(math.ceil(factor * g * g / n), 1) for g, n in zip(levels, users, strict=True)
        )
    return BinomialTree(
        releases,
        batch_points,
        d,
        levels,
        bits,
        calibration,
        budget,
        _SOURCE[calibration],
        vector_scale,
        honest_fraction,
        returning,
    )


@cached
def _least_noise(
    budget: Budget,
    users: tuple[int, ...],
    default_levels: tuple[int, ...],
    dimension: int,
    honest_fraction: float,
    effects: tuple[tuple[int, int, int], ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return encoding levels g_j and the least noise bits b_j of every level j of the tree.

    All nodes together are proven to meet the budget. For each level, ``users`` holds the users of a
    node, ``default_levels`` the published number of encoding levels, and ``effects`` the result of
    `level_squares`.

    The account is Gaussian as long as the noise of every coordinate is in a window. A share of
    delta covers the tails outside of the windows, and the rest the Gaussian part. The same share is
    used for all levels. It is chosen so that the noise is smallest at the level at which one user
    can have most records in a node, where windows are widest.
    """
    coordinates = coordinates_of(dimension)
    record_sensitivity = joint_sensitivity(budget.relation, "iid", dimension)
    honest = [counted_users(honest_fraction, n) for n in users]
    if honest[0] == 0:
        raise InputError(
            f"honest_fraction must leave at least 1 of {users[0]} users, got {honest_fraction:g}"
        )
    sqrt_squares = math.sqrt(sum(squares for squares, _, _ in effects))
    mu_per_record = gaussian_mu(budget.epsilon, budget.delta) / sqrt_squares
    least_levels = math.ceil(EXACT_LEVELS * mu_per_record / record_sensitivity)
    rounding_norms = [
        (1.0 - 1.0 / largest_count) * math.sqrt(coordinates) for _, _, largest_count in effects
    ]
    levels = [
        max(g, least_levels, math.ceil(rounding_norm / (_EXACT_ROUNDING * record_sensitivity)))
        for g, rounding_norm in zip(default_levels, rounding_norms, strict=True)
    ]

    def mu_and_tail(share_of_delta: float) -> tuple[float, float]:
        """Return the mu that one record may have in a node, and the tail probability.

        The tail probability is that of the noise of one coordinate beyond each end of its window,
        as in `node_mu`. ``share_of_delta`` is the share of delta for the tails of all coordinates.
        """
        remaining_delta = (
            budget.delta * (1.0 - share_of_delta) / (1.0 - budget.delta * share_of_delta)
        )
        count = sum(nodes for _, nodes, _ in effects)
        tail = tail_of(budget.delta * share_of_delta, count * coordinates)
        return gaussian_mu(budget.epsilon, remaining_delta) / sqrt_squares, tail

    def node(j: int, trials: int) -> Node:
        """Return the account's node of level j with ``trials`` noise bits per coordinate."""
        return _level_nodes(effects[j], trials, record_sensitivity * levels[j], coordinates)

    def proven_mu_with(j: int, b: int) -> float:
        """Return the proven mu of one record in a node of level j with b noise bits per user."""
        level_node = node(j, honest[j] * b)
        return node_mu(
            probits_of(level_node.trials),
            level_node.norm,
            coordinates,
            tail,
            False,
            level_node.window,
        )

    # Choose the share of delta at the level whose windows are widest relative to the noise.
    widest_level = max(range(len(users)), key=lambda j: effects[j][2])
    widest_node = node(widest_level, 0)
    probits = Probits(math.ceil((widest_node.norm / mu_per_record) ** 2 / VARIANCE))
    candidates = []
    for share_of_delta in TAIL_SHARES:
        mu, tail = mu_and_tail(share_of_delta)
        proven_mu = node_mu(probits, widest_node.norm, coordinates, tail, False, widest_node.window)
        candidates.append((proven_mu / mu if mu > 0 else math.inf, mu, tail))
    _, mu, tail = min(candidates)
    bits = []
    for j, n in enumerate(honest):
        approximate_bits = (node(j, 0).norm / mu) ** 2 / VARIANCE / n
        bits.append(smallest_bits(approximate_bits, mu, partial(proven_mu_with, j)))
    return tuple(levels), tuple(bits)


def smallest_bits(first_guess: float, limit: float, value_at: Callable[[int], float]) -> int:
    """Return the smallest integer b >= 1 with value_at(b) <= limit.

    A result from 2^41 on also satisfies the limit, but may exceed the smallest b by a fraction
    2^-40. ``value_at`` must decrease in b. It is assumed to be roughly proportional to 1/sqrt(b),
    by which the search extrapolates. For other functions the search only takes more steps.
    """
    low, high = 0, max(math.ceil(first_guess), 1)  # invariant: value_at(low) > limit
    while not (high_value := value_at(high)) <= limit:
        low = high
        next_guess = high * (high_value / limit) ** 2 if math.isfinite(high_value) else 2.0 * high
        high = max(math.ceil(next_guess), high + 1)
    step = 1
    while high - low > max(1, high >> 40):
        # Extrapolation by 1/sqrt(b) comes within a few units of the answer; then use steps of
        # doubling size, then bisection.
        extrapolated = min(math.ceil(high * (high_value / limit) ** 2), high)
        middle = max(extrapolated - step, (low + high) // 2)
        middle_value = value_at(middle)
        if middle_value <= limit:
            high, high_value = middle, middle_value
        else:
            low = middle
        step *= 2
    return high
