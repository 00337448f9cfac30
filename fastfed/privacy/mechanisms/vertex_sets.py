"""Noise on the leaves of DP-FW trees (private Frank-Wolfe), and its account for one loss function.

Setting: one phase of one client (gao-2024, Algorithm 3, after Asi et al. 2021). There are T1 binary
trees, of depths j = 1..T1, visited depth first and left before right. Every vertex has a vector v.
The root of tree j has a set of b losses, and v is their mean gradient. A left child has the same v
as its parent. A right child s at depth h has a set of b / 2^h losses. Its v is the parent's v plus
the mean of grad(x_s) - grad(x_parent) over this set. At each leaf, all d coordinates of v, the
scores of the d experts, get Laplace noise of scale lambda_j. The leaf chooses the expert w with the
smallest noisy score, and x <- (1 - eta_k) x + eta_k w with eta_k = 2/(k + 1) for the k-th leaf of
the phase, counted over all trees.

Sets are disjoint and chosen without looking at the losses. So each loss is in one set, of one phase
and one client. Sets, trees, phases and clients therefore compose in parallel: the epsilon of all is
the largest epsilon of one.

1. How much a leaf's scores change if one loss of a set is replaced, given all earlier experts,
   which fix every x. All coordinates of all gradients are in one interval of length `spread`, and
   gradients are beta-Lipschitz from L1 to L-infinity.
   Root: the mean of b gradients at one x changes by at most spread/b in each coordinate.
   Right child: let D = ||x_s - x_parent||_1. Each coordinate of grad l(x_s) - grad l(x_parent) is
   at most min(spread, beta D) in size, for the old and for the new loss. So v changes by at most
   (2^h/b) 2 min(spread, beta D). The factor 2 is needed, even for convex losses and for two
   coordinates that move apart: for l(x) = (beta/2) <u, x>^2, u in {-1, 1}^d, the difference is
   beta u <u, x_s - x_parent>. Let u agree with the sign of x_s - x_parent where it is not 0, so
   that <u, x_s - x_parent> = D. Elsewhere u may have any signs, and opposite ones for the new loss.
   All leaves below change by the same vector: 2^j leaves of the root, 2^(j-h) of a right child.
2. Bound on D. x_s is x_parent after the n = 2^(j-h) leaves in between. Let the first of these have
   number a. By induction x_s = P x_parent + (1 - P) w for some w in the simplex and P =
   prod (1 - eta_k) = prod (k - 1)/(k + 1) = (a - 1) a / ((a + n - 1) (a + n)). So D <= 2 (1 - P). P
   increases with a: the first right child of each depth, with a = 2^j - 1, is the worst.
3. Account of the chosen experts. Each leaf's argmin is (2 change/lambda_j, 0)-private
   (`NoisyArgmin`, which also covers the sum of all clients' noises), and the leaves below a set
   compose adaptively. Releasing all d scores would reveal more, so account 4 of messages also holds
   for experts. The smaller epsilon is used.
4. Account of the messages of one client: d scores at every leaf below a set. All scores may change,
   and each is a Laplace mechanism.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.accounting.privacy_loss import composed_epsilon, largest_share
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.sparse_vector import loss_claim
from fastfed.privacy.sensitivity import Budget, named_delta

CALIBRATIONS = ("exact", "corrected", "printed")
PROTECTED = ("experts", "messages")

# For experts, account 4 (all scores) can give a smaller epsilon than account 3 (the argmin) only if
# d <= 4. The release of all d scores costs about d e^2 (d Laplace mechanisms of epsilon e), and the
# argmin, which is (2 e, 0)-private, costs 4 e^2.
_FEW_EXPERTS = 4

#: The source of each calibration, as certificates cite it.
SOURCES = {
    "exact": "gao-2024, Algorithm 3, with the least noise whose proven composition over the leaves "
    "below each set of losses gives the budget",
    "corrected": "gao-2024, Lemma C.6, with the factor that its proof leaves out: 2 for an argmin "
    "of scores that move both ways, d for messages of d scores",
    "printed": "gao-2024, Lemma C.6 as printed: lambda_j = 4 alpha 2^j / (b epsilon)",
}


class VertexSet(msgspec.Struct, frozen=True):
    """Of all sets of losses at one depth of one tree, the set with the largest effect on scores.

    Parameters
    ----------
    tree : int
        j, the number of the tree, from 1.
    depth : int
        h, the depth of the set's vertex; 0 for the root.
    leaves : int
        Number of leaves whose scores depend on the set.
    change : float
        The largest change of any of these scores if one loss of the set is replaced.
    """

    tree: int
    depth: int
    leaves: int
    change: float


def vertex_sets(batch: int, trees: int, spread: float, smoothness: float) -> tuple[VertexSet, ...]:
    """Return the set of losses with the largest effect for each depth of each tree, root first.

    Roots and right children have sets of losses. The effect of a set is how much the experts'
    scores change if one loss of the set is replaced.

    Parameters
    ----------
    batch : int
        b, the number of losses of a root: a power of two, at least 2^trees.
    trees : int
        T1 >= 0, the number of trees.
    spread : float
        > 0, length of an interval that contains all coordinates of all gradients (2 alpha for
        alpha-Lipschitz losses).
    smoothness : float
        beta >= 0 with respect to the L1 norm: 0 for linear losses, math.inf if unknown.

    Returns
    -------
    tuple of VertexSet
        The sets, tree by tree.
    """
    b, count = integer("batch", batch, at_least=1), integer("trees", trees, at_least=0)
    if b & (b - 1):
        raise InputError(f"batch must be a power of two, got {b}")
    if b < 2**count:
        raise InputError(f"batch must be at least 2^trees = {2**count}, got {b}")
    gradient_range = number("spread", spread, above=0)
    beta = smoothness if smoothness == math.inf else number("smoothness", smoothness, at_least=0)
    return _checked_sets(b, count, gradient_range, beta)


@lru_cache(maxsize=256)
def _checked_sets(
    batch: int, trees: int, spread: float, smoothness: float
) -> tuple[VertexSet, ...]:
    """Return the result of `vertex_sets` for valid arguments.

    It is cached, because every run asks for it once for each phase of its plan. In the code, j is
    the number of the tree, and h the depth of the set's vertex in this tree.
    """
    sets = []
    for j in range(1, trees + 1):
        sets.append(VertexSet(j, 0, 2**j, spread / batch))
        for h in range(1, j + 1):
            distance = max_change(2**j - 1, 2 ** (j - h))
            change = 2.0 * min(spread, smoothness * distance)
            sets.append(VertexSet(j, h, 2 ** (j - h), change * 2**h / batch))
    return tuple(sets)


def max_change(first: int, leaves: int) -> float:
    """Return a bound on the L1 change of the Frank-Wolfe iterate x over n = ``leaves`` steps.

    The bound is 2 (1 - prod (1 - eta_k)) over k = first, ..., first + n - 1 with the step sizes
    eta_k = 2/(k + 1); see step 2 of the proof at the top of this module.
    """
    a, n = integer("first", first, at_least=1), integer("leaves", leaves, at_least=0)
    if n == 0:
        return 0.0
    return 2.0 * (1.0 - ((a - 1) * a) / ((a + n - 1) * (a + n)))


class VertexNoise(msgspec.Struct, frozen=True, kw_only=True):
    """Laplace noise for the leaves of one phase of DP-FW trees.

    With local noise every client adds Lap(lambda_j) to each of its scores. With central noise the
    server adds Lap(lambda_j / m) to each average over m clients; experts then have the same
    account, and messages are not protected.

    Parameters
    ----------
    budget : Budget
        The requested budget.
    batch, trees, spread, smoothness : int, int, float, float
        See `vertex_sets`.
    experts : int
        d, the number of experts.
    scales : tuple of float
        lambda_1..lambda_T1: lambda_j is the scale of noise on each score of a client in tree j.
    protect : {"experts", "messages"}
        The outputs that the budget is for.
    calibration : {"exact", "corrected", "printed"}
        The rule that chose the scales.
    source : str
        Authors and year of the paper that states the noise rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: let one loss function of one client in one round become any other. Then all
    experts of the phase are (exact(), budget.delta)-private, and with local noise that
    client's messages are (exact_messages(), budget.delta)-private. Over several phases and
    clients, the largest epsilon holds. The proof is at the top of this module. Source:
    gao-2024, Algorithm 3; Asi et al. 2021.
    """

    budget: Budget
    batch: int
    trees: int
    spread: float
    smoothness: float
    experts: int
    scales: tuple[float, ...]
    protect: str
    calibration: str
    source: str

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        vertex_sets(self.batch, self.trees, self.spread, self.smoothness)
        integer("experts", self.experts, at_least=2)
        choice("protect", self.protect, PROTECTED)
        choice("calibration", self.calibration, CALIBRATIONS)
        if len(self.scales) != self.trees:
            raise InputError(f"scales must be {self.trees}, one per tree, got {len(self.scales)}")
        for j, scale in enumerate(self.scales, start=1):
            number(f"scales of tree {j}", scale, above=0)

    @property
    def sets(self) -> tuple[VertexSet, ...]:
        """Return the set with the largest effect for each depth of each tree."""
        return vertex_sets(self.batch, self.trees, self.spread, self.smoothness)

    def exact(self, delta: float | None = None) -> float:
        """Return the proven epsilon of the sequence of experts, at delta (default: budget's)."""
        return self._largest_epsilon(self.experts, "experts", delta)

    def exact_messages(self, experts: int | None = None, *, delta: float | None = None) -> float:
        """Return the proven epsilon of one client's messages: noisy scores for every leaf.

        A leaf has ``experts`` scores; the default is the mechanism's number of experts. The default
        of ``delta`` is the delta of the budget.
        """
        score_count = self.experts if experts is None else integer("experts", experts, at_least=1)
        return self._largest_epsilon(score_count, "messages", delta)

    def _largest_epsilon(self, experts: int, protect: str, delta: float | None) -> float:
        """Return the proven epsilon for one replaced loss, the largest over all sets of losses.

        ``protect`` names the outputs: "experts", or "messages" with ``experts`` scores per leaf. If
        two accounts hold for a set, the smaller epsilon is used.
        """
        target_delta = named_delta(delta, self.budget)
        # A pair (leaves, change) for each set: how many leaves have scores that depend on the set,
        # and the largest change of such a score, in units of the noise scale. Epsilon increases
        # with both. So skip a set if another set has at least as many leaves and as much change.
        sets = {(s.leaves, s.change / self.scales[s.tree - 1]) for s in self.sets}
        largest_epsilon, largest_change = 0.0, -1.0
        for leaves, change in sorted(sets, reverse=True):
            if change > largest_change:
                largest_change = change
                accounts = valid_accounts(leaves, experts, protect)
                set_epsilon = min(
                    composed_epsilon([(kind, factor * change, count)], target_delta)
                    for kind, factor, count in accounts
                )
                largest_epsilon = max(largest_epsilon, set_epsilon)
        return largest_epsilon

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the std of the noise on a client's score in each tree: sqrt(2) times its scale."""
        return {f"tree {j}": math.sqrt(2.0) * s for j, s in enumerate(self.scales, start=1)}

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        epsilon = self.exact() if self.protect == "experts" else self.exact_messages()
        output = "the experts" if self.protect == "experts" else "one client's messages"
        lipschitz = "" if self.smoothness == math.inf else f", {self.smoothness:g}-Lipschitz in x"
        return [
            Condition("each loss is in one set of one tree of one phase", True),
            Condition("sets, batches and numbers of trees do not depend on losses", True),
            Condition(
                f"coordinates of gradients are in an interval of length {self.spread:g}{lipschitz}",
                True,
            ),
            loss_claim(self.budget, epsilon, output),
        ]


def valid_accounts(leaves: int, experts: int, protect: str) -> list[tuple[str, float, int]]:
    """Return the valid privacy accounts of one loss in a set that affects ``leaves`` leaves.

    ``protect`` names the outputs: "experts" or "messages". An account is a composition of equal
    mechanisms, given as (kind, factor, number of mechanisms). The epsilon of one mechanism is the
    factor times the largest change of a score, divided by the noise scale.
    """
    accounts = []
    if protect == "experts":
        accounts.append(("randomized-response", 2.0, leaves))
    # The account of all scores also holds for experts. With more than `_FEW_EXPERTS` experts it
    # always gives a larger epsilon than the account of the argmins above.
    if protect == "messages" or experts <= _FEW_EXPERTS:
        accounts.append(("laplace", 1.0, experts * leaves))
    return accounts


def calibrate_vertices(
    budget: Budget,
    *,
    batch: int,
    trees: int,
    lipschitz: float,
    spread: float | None = None,
    smoothness: float = math.inf,
    experts: int,
    protect: str = "experts",
    calibration: str = "exact",
) -> VertexNoise:
    """Calibrate the noise of one phase to a budget.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round. The account is for replacement,
        which covers "zero-out" if zero is a possible loss.
    batch, trees : int
        b, the number of losses of a tree's root, and T1 >= 0, the number of trees of the phase.
    lipschitz : float
        alpha > 0 with respect to the L1 norm: a bound on the absolute coordinates of gradients.
    spread : float, optional
        Length of an interval that contains all coordinates of all gradients, in (0, 2 alpha]. The
        default is 2 alpha.
    smoothness : float
        beta, the smoothness of losses with respect to the L1 norm; math.inf if unknown.
    experts : int
        d >= 2, the number of experts.
    protect : {"experts", "messages"}
        The outputs that the budget is for.
    calibration : {"exact", "corrected", "printed"}
        The rule for lambda_j, the noise scale in tree j = 1..T1. "exact": the least lambda_j for
        which the experts, or one client's messages, are proven (epsilon, delta)-private.
        "printed": 4 alpha 2^j / (b epsilon) (gao-2024, Lemma C.6). With this noise, the epsilon of
        the experts can be up to 2 epsilon, and that of messages up to d epsilon. "corrected":
        8 alpha 2^j / (b epsilon) for experts and 4 alpha d 2^j / (b epsilon) for messages.
        "printed" and "corrected" ignore delta, spread and smoothness, but `VertexNoise.exact` uses
        them.

    Returns
    -------
    VertexNoise
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a different unit, and for values out of range.
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("protect", protect, PROTECTED)
    choice("unit", budget.unit, ("user",))
    alpha = number("lipschitz", lipschitz, above=0)
    d = integer("experts", experts, at_least=2)
    gradient_range = (
        2.0 * alpha if spread is None else number("spread", spread, above=0, at_most=2 * alpha)
    )
    sets = vertex_sets(batch, trees, gradient_range, smoothness)
    if calibration == "exact":
        scales = tuple(
            max(_least_scale(budget, s, d, protect) for s in sets if s.tree == j)
            for j in range(1, trees + 1)
        )
    else:
        factor = 4.0
        if calibration == "corrected":
            factor = 8.0 if protect == "experts" else 4.0 * d
        scales = tuple(
            factor * alpha * 2**j / (batch * budget.epsilon) for j in range(1, trees + 1)
        )
    return VertexNoise(
        budget=budget,
        batch=batch,
        trees=trees,
        spread=gradient_range,
        smoothness=float(smoothness),
        experts=d,
        scales=scales,
        protect=protect,
        calibration=calibration,
        source=SOURCES[calibration],
    )


def _least_scale(budget: Budget, vertex_set: VertexSet, experts: int, protect: str) -> float:
    """Return the least noise scale with which replacing one loss of a set meets the budget.

    ``vertex_set.change`` is the largest change of a score by such a replacement. ``protect`` names
    the outputs that the budget is for, see `VertexNoise`.
    """
    if vertex_set.change == 0.0:
        return 0.0
    scales = []
    for kind, factor, count in valid_accounts(vertex_set.leaves, experts, protect):
        epsilon_per_mechanism = largest_share(budget.epsilon, budget.delta, kind, count)
        scale = factor * vertex_set.change / epsilon_per_mechanism
        # The scale may have been rounded down.
        while factor * vertex_set.change / scale > epsilon_per_mechanism:
            scale *= 1.0 + 2.0**-51
        scales.append(scale)
    return min(scales)
