"""Noise on the leaves of DP-FW trees, and its account for one loss function.

Setting (one phase of one client; gao-2024, Algorithm 3, after Asi et al. 2021). T1 binary trees, of
depths j = 1..T1, are visited depth first, left before right. Tree j's root has b losses of its own
and v = their mean gradient; a left child takes over v of its parent; a right child s at depth h,
with b / 2^h losses of its own, adds to its parent's v their mean of grad(x_s) - grad(x_parent). At
each leaf all d coordinates of v, the scores of the d experts, get Laplace noise of scale lambda_j;
the least one is the expert w that the leaf chooses, and x <- (1 - eta_k) x + eta_k w with eta_k =
2/(k + 1) for the k-th leaf of the phase, counted over all trees.

Sets are disjoint and chosen without looking at the losses. So one loss is in one set, of one phase
and one client: sets, trees, phases and clients compose in parallel, and a total is a maximum.

1. Change of a leaf's scores when one loss of its sets is replaced, given all experts so far, which
   fix every x. All coordinates of all gradients lie in one interval of length `spread`, and
   gradients are beta-Lipschitz from L1 to L-infinity.
   Root: the mean of b gradients at one x moves by at most spread/b in each coordinate.
   Right child: grad l(x_s) - grad l(x_parent) has coordinates of size min(spread, beta D) at most,
   D = ||x_s - x_parent||_1, and so has that of the new loss: v moves by at most
   (2^h/b) 2 min(spread, beta D). The factor 2 is needed, also for convex losses and for two
   coordinates that move apart: for l(x) = (beta/2) <u, x>^2, u in {-1, 1}^d, the difference is
   beta u <u, x_s - x_parent>. Where x_s and x_parent differ let u agree with the sign, so that
   <u, x_s - x_parent> = D; elsewhere u may have any signs, and be the opposite for the new loss.
   All leaves below move by the same vector: 2^j of the root, 2^(j-h) of a right child.
2. D. x_s is x_parent after the n = 2^(j-h) leaves in between, whose first has number a, say: by
   induction x_s = P x_parent + (1 - P) w for some w in the simplex and P = prod (1 - eta_k) =
   prod (k - 1)/(k + 1) = (a - 1) a / ((a + n - 1) (a + n)). So D <= 2 (1 - P). P grows with a: the
   first right child of each depth, with a = 2^j - 1, is the worst.
3. Experts. Each leaf's argmin is (2 change/lambda_j, 0)-private (`NoisyArgmin`, also for the sum
   of all clients' noises), and the leaves below compose adaptively. With all d scores each leaf
   would tell more, so the account of messages holds as well: the lesser of both is taken.
4. Messages of one client: d scores at every leaf below, all of which may move, each a Laplace
   mechanism.
"""

from __future__ import annotations

import math

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.accounting.privacy_loss import composed_epsilon, largest_share
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.sensitivity import Budget

CALIBRATIONS = ("exact", "corrected", "printed")
PROTECTED = ("experts", "messages")

# d Laplace mechanisms of e cost about d e^2, an argmin taken as (2 e, 0)-private 4 e^2.
_FEW = 4

#: Of each calibration.
SOURCES = {
    "exact": "gao-2024, Algorithm 3, with the least noise whose proven composition over the leaves "
    "below each set of losses gives the budget",
    "corrected": "gao-2024, Lemma C.6, with the factor that its proof leaves out: 2 for an argmin "
    "of scores that move both ways, d for messages of d scores",
    "printed": "gao-2024, Lemma C.6 as printed: lambda_j = 4 alpha 2^j / (b epsilon)",
}


class VertexSet(msgspec.Struct, frozen=True):
    """The worst set of losses at one depth of one tree.

    tree: j, from 1. depth: h, 0 for the root. leaves: number of leaves below that use it. change:
    the most that one of its losses, replaced, moves any score of each of them.
    """

    tree: int
    depth: int
    leaves: int
    change: float


def vertex_sets(batch: int, trees: int, spread: float, smoothness: float) -> tuple[VertexSet, ...]:
    """List the sets of T1 = trees trees, the worst one of each depth, root first.

    batch: b, a power of two, at least 2^trees. spread: > 0, length of the interval that all
    coordinates of all gradients lie in (2 alpha for alpha-Lipschitz losses). smoothness: beta >= 0
    with respect to the L1 norm, 0 for linear losses, math.inf if unknown.
    """
    b, count = integer("batch", batch, at_least=1), integer("trees", trees, at_least=0)
    if b & (b - 1):
        raise InputError(f"batch must be a power of two, got {b}")
    if b < 2**count:
        raise InputError(f"batch must be at least 2^trees = {2**count}, got {b}")
    width = number("spread", spread, above=0)
    beta = smoothness if smoothness == math.inf else number("smoothness", smoothness, at_least=0)
    found = []
    for j in range(1, count + 1):
        found.append(VertexSet(j, 0, 2**j, width / b))
        for h in range(1, j + 1):
            distance = max_change(2**j - 1, 2 ** (j - h))
            size = 2.0 * min(width, beta * distance)
            found.append(VertexSet(j, h, 2 ** (j - h), size * 2**h / b))
    return tuple(found)


def max_change(first: int, leaves: int) -> float:
    """Largest L1 move of x over so many leaves: 2 (1 - prod (1 - eta_k)), eta_k = 2/(k + 1).

    The product is over leaves k = first, first + 1, ....
    """
    a, n = integer("first", first, at_least=1), integer("leaves", leaves, at_least=0)
    if n == 0:
        return 0.0
    return 2.0 * (1.0 - ((a - 1) * a) / ((a + n - 1) * (a + n)))


class VertexNoise(msgspec.Struct, frozen=True, kw_only=True):
    """Laplace noise for the leaves of one phase of DP-FW trees.

    With local noise every client adds Lap(lambda_j) to each of its scores. With central noise the
    server adds Lap(lambda_j / m) to each average over m clients: same account for the experts, and
    messages that are not protected.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for.
    batch, trees, spread, smoothness : int, int, float, float
        As in `vertex_sets`.
    experts : int
        d.
    scales : tuple of float
        lambda_1..lambda_T1, of the noise on each score of one client at a leaf of tree j.
    protect : {"experts", "messages"}
        The outputs that the budget is for.
    calibration : {"exact", "corrected", "printed"}
        The rule that chose the scales.
    source : str
        Author-year of the rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the experts of the
    phase are together (exact(), budget.delta)-private, and with local noise that client's messages
    (exact_messages(), budget.delta)-private. Over phases and clients the largest of their values
    holds. The proof stands at the top of this module.
    Source: gao-2024, Algorithm 3; Asi et al. 2021.
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
        """Check every field."""
        vertex_sets(self.batch, self.trees, self.spread, self.smoothness)
        integer("experts", self.experts, at_least=2)
        choice("protect", self.protect, PROTECTED)
        choice("calibration", self.calibration, CALIBRATIONS)
        if len(self.scales) != self.trees:
            raise InputError(f"scales must be {self.trees}, one a tree, got {len(self.scales)}")
        for j, scale in enumerate(self.scales, start=1):
            number(f"scales of tree {j}", scale, above=0)

    @property
    def sets(self) -> tuple[VertexSet, ...]:
        """The worst set of each depth of each tree."""
        return vertex_sets(self.batch, self.trees, self.spread, self.smoothness)

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for the sequence of experts at delta (default: the budget's)."""
        return self._worst(self.experts, "experts", delta)

    def exact_messages(self, experts: int | None = None, *, delta: float | None = None) -> float:
        """The epsilon proven for one client's messages with local noise, d scores at each leaf."""
        d = self.experts if experts is None else integer("experts", experts, at_least=1)
        return self._worst(d, "messages", delta)

    def _worst(self, experts: int, protect: str, delta: float | None) -> float:
        """Epsilon of the set that costs most."""
        at = self.budget.delta if delta is None else number("delta", delta, at_least=0, below=1)
        # Costs grow with leaves and with relative changes: sets that another covers are left out.
        sizes = {(s.leaves, s.change / self.scales[s.tree - 1]) for s in self.sets}
        worst, largest = 0.0, -1.0
        for leaves, change in sorted(sizes, reverse=True):
            if change > largest:
                largest = change
                ways = _ways(leaves, experts, protect)
                cost = min(
                    composed_epsilon([(kind, factor * change, count)], at)
                    for kind, factor, count in ways
                )
                worst = max(worst, cost)
        return worst

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviation sqrt(2) lambda_j of the noise in one client's score, by tree."""
        return {f"tree {j}": math.sqrt(2.0) * s for j, s in enumerate(self.scales, start=1)}

    def conditions(self) -> list[Condition]:
        """The claim, computed, and the assumptions that are taken on trust."""
        budget = self.budget
        found = self.exact() if self.protect == "experts" else self.exact_messages()
        what = "the experts" if self.protect == "experts" else "one client's messages"
        smooth = "" if self.smoothness == math.inf else f", {self.smoothness:g}-Lipschitz in x"
        return [
            Condition("a loss is in one set of one tree of one phase", True),
            Condition("sets, batches and numbers of trees do not depend on losses", True),
            Condition(
                f"coordinates of gradients are in an interval of length {self.spread:g}{smooth}",
                True,
            ),
            ClaimCondition(
                f"the proven epsilon of {what}, {rounded_up(found)} at delta {budget.delta:g} "
                f"under replacement of one loss, is at most {budget.epsilon:g} (computed)",
                found <= budget.epsilon,
            ),
        ]


def _ways(leaves: int, experts: int, protect: str) -> list[tuple[str, float, int]]:
    """List the accounts of a set with so many leaves below; each of them holds.

    Each is (kind, its epsilon over change/lambda, number of mechanisms).
    """
    found = []
    if protect == "experts":
        found.append(("randomized-response", 2.0, leaves))
    # Of more than a few experts all scores always tell more than the argmin.
    if protect == "messages" or experts <= _FEW:
        found.append(("laplace", 1.0, experts * leaves))
    return found


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
        Unit "user": one loss function of one client in one round, for replacement, which covers
        "zero-out" if zero is a loss.
    batch, trees : int
        b and T1 >= 0.
    lipschitz : float
        alpha > 0 with respect to the L1 norm, the bound on every coordinate's size.
    spread : float, optional
        In (0, 2 alpha], default 2 alpha.
    smoothness : float
        beta; math.inf if there is none.
    experts : int
        d >= 2.
    protect : {"experts", "messages"}
        The outputs that the budget is for.
    calibration : {"exact", "corrected", "printed"}
        "exact": the least lambda_j for which the experts, or one client's messages, are proven
        (epsilon, delta). "printed": 4 alpha 2^j / (b epsilon) (gao-2024, Lemma C.6), which gives
        the experts up to 2 epsilon and messages up to d epsilon. "corrected": 8 alpha 2^j / (b
        epsilon) for experts and 4 alpha d 2^j / (b epsilon) for messages. Both take no account of
        delta, of spread and of smoothness; exact() does.

    Returns
    -------
    VertexNoise

    Raises
    ------
    InputError
        For another unit and for values out of range.
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("protect", protect, PROTECTED)
    choice("unit", budget.unit, ("user",))
    alpha = number("lipschitz", lipschitz, above=0)
    d = integer("experts", experts, at_least=2)
    width = 2.0 * alpha if spread is None else number("spread", spread, above=0, at_most=2 * alpha)
    sets = vertex_sets(batch, trees, width, smoothness)
    if calibration == "exact":
        made = tuple(
            max(_least(budget, s, d, protect) for s in sets if s.tree == j)
            for j in range(1, trees + 1)
        )
    else:
        factor = 4.0
        if calibration == "corrected":
            factor = 8.0 if protect == "experts" else 4.0 * d
        made = tuple(factor * alpha * 2**j / (batch * budget.epsilon) for j in range(1, trees + 1))
    return VertexNoise(
        budget=budget,
        batch=batch,
        trees=trees,
        spread=width,
        smoothness=float(smoothness),
        experts=d,
        scales=made,
        protect=protect,
        calibration=calibration,
        source=SOURCES[calibration],
    )


def _least(budget: Budget, s: VertexSet, experts: int, protect: str) -> float:
    """Find the least scale for one set."""
    if s.change == 0.0:
        return 0.0
    found = []
    for kind, factor, count in _ways(s.leaves, experts, protect):
        each = largest_share(budget.epsilon, budget.delta, kind, count)
        scale = factor * s.change / each
        # A quotient may be rounded to the wrong side.
        while factor * s.change / scale > each:
            scale *= 1.0 + 2.0**-51
        found.append(scale)
    return min(found)
