"""Private Frank-Wolfe (DP-FW) for Fed-DP-OPE-Stoch: trees over disjoint sets of losses.

A phase of gao-2024, Algorithm 3 (after Asi et al. 2021) walks through T1 binary trees of depth
1..T1, depth first. Each leaf is one exchange and one Frank-Wolfe step. On the way from one leaf to
the next, exactly one right child is new, so every leaf uses a new set of losses: the root's b
losses for a tree's first leaf, and b / 2^h losses for a leaf whose new right child is at depth h.
A phase uses b (T1 + T1 (T1 + 1) / 4) losses of each client, each loss once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource, is_exact
from fastfed._sampling import Laplaces
from fastfed._validate import InputError, array, choice
from fastfed.experts.plan import (
    CENTRAL_SCORES,
    LOCAL_SCORES,
    PLAIN_SCORES,
    Collector,
    Decider,
    ExpertChoice,
    ExpertPlan,
    Gradient,
    check_protocol,
)
from fastfed.privacy import exact
from fastfed.privacy.account import (
    Claim,
    NoRelease,
    PrivacyEvent,
    RawData,
    VertexScores,
    per_record,
    released,
)
from fastfed.privacy.mechanisms.vertex_sets import VertexNoise, vertex_sets

# ---- Phases, trees and leaves --------------------------------------------------------------------

#: Rules for b: "paper" is the formula of Theorem C.5, rounded down to a power of two; "largest" is
#: the largest power of two for which a phase has enough losses.
BATCHES = ("paper", "largest")


class Leaf(NamedTuple):
    """One leaf of a tree, which is one exchange: the losses it uses, and the step size of x.

    Attributes
    ----------
    tree : int
        j, the number of the tree, from 1.
    depth : int
        h, the depth of the new right child; 0 for the root (the tree's first leaf).
    start, stop : int
        The leaf uses losses start..stop - 1, in the random order that each client has drawn.
    step : float
        eta = 2 / (k + 1) at the k-th leaf of the phase.
    """

    tree: int
    depth: int
    start: int
    stop: int
    step: float


@dataclass(frozen=True)
class Phase:
    """Phase p, which updates x before rounds 2^(p-1)..2^p - 1 from the previous phase's losses.

    Parameters
    ----------
    number : int
        p >= 2, the number of the phase.
    batch : int
        b, the number of losses at a tree's root.
    scales : tuple of float
        lambda_j, the Laplace scale of each client's scores in tree j; 0 for no noise.
    offset : int, default 0
        The number of exchanges before this phase.
    """

    number: int
    batch: int
    scales: tuple[float, ...]
    offset: int = 0

    @property
    def trees(self) -> int:
        """T1, the number of trees."""
        return len(self.scales)

    @property
    def first(self) -> int:
        """The first round in which clients use the decision that this phase computes."""
        return first_round(self.number)

    @property
    def samples(self) -> range:
        """The rounds whose losses the phase uses: all rounds of the previous phase."""
        return range(first_round(self.number - 1), self.first)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of all trees, in the order in which they are visited."""
        leaves: list[Leaf] = []
        start = 0
        for tree in range(1, self.trees + 1):
            for leaf in range(2**tree):
                # The new vertex is the last right child on the path from the root to the leaf. The
                # binary digits of the leaf's number are the path, 1 for a right child, so the
                # lowest 1 is the last right child.
                depth = tree - (leaf & -leaf).bit_length() + 1 if leaf else 0
                size = self.batch >> depth
                leaves.append(Leaf(tree, depth, start, start + size, 2.0 / (len(leaves) + 2.0)))
                start += size
        return tuple(leaves)

    @cached_property
    def leaf_rows(self) -> np.ndarray:
        """The leaves as rows (tree, depth, start, stop, step, scale of the noise)."""
        return np.array([(*leaf, self.scales[leaf.tree - 1]) for leaf in self.leaves])

    @property
    def used(self) -> int:
        """The number of losses of each client that the phase uses."""
        return self.leaves[-1].stop


#: The largest number of trees in a phase. More trees would make steps smaller than 10^-6.
MAX_TREES = 20


def first_round(phase: int) -> int:
    """Return 2^(p-1), the first round of phase p."""
    return 1 << (phase - 1)


def phases_of(horizon: int) -> int:
    """Return P, the number of phases that start within ``horizon`` rounds."""
    return horizon.bit_length()


def losses_needed(batch: int, trees: int) -> float:
    """Return the number of losses that a phase needs: b (T1 + T1 (T1 + 1) / 4).

    b is ``batch``, the number of losses at a tree's root, and T1 is ``trees``. Tree j needs
    b (1 + j / 2) losses: b at its root, and b / 2 at the right children of each depth 1..j.
    """
    return batch * (trees + trees * (trees + 1) / 4.0)


def max_trees(phase: int, batch: int, requested: float) -> int:
    """Return the largest feasible number of trees T1 <= ``requested``, or 0 if there is none.

    T1 is feasible if 2^T1 divides b = ``batch`` and the previous phase has enough losses for T1
    trees.
    """
    # Phase p starts in round 2^(p-1) and has as many rounds.
    losses_available = first_round(phase - 1)
    largest_wanted = math.floor(min(max(requested, 0.0), MAX_TREES))
    feasible = (
        trees
        for trees in range(largest_wanted, 0, -1)
        if batch % 2**trees == 0 and losses_needed(batch, trees) <= losses_available
    )
    return next(feasible, 0)


def theorem_trees(
    batch: int, gain: float, experts: int, epsilon: float, lipschitz: float, smoothness: float
) -> float:
    """Return the number of trees T1 of gao-2024, Theorem C.5, not rounded; inf without privacy.

    T1 = log2(b epsilon beta gain / (alpha ln d)) / 2, where b = ``batch``, beta = ``smoothness``,
    alpha = ``lipschitz`` and d = ``experts``. Without privacy, ``epsilon`` is inf. ``gain`` is the
    factor by which m clients reduce the noise of the mean scores: sqrt(m) for local noise, m for
    central noise.
    """
    if math.isinf(epsilon):
        return math.inf
    ratio = batch * epsilon * smoothness * gain / (lipschitz * math.log(experts))
    return 0.5 * math.log2(ratio) if ratio > 0.0 else -math.inf


def batch_and_trees(phase: int, rule: str, trees_wanted: Callable[[int], float]) -> tuple[int, int]:
    """Return the batch size b and the number of trees T1 of phase p = ``phase`` >= 2.

    T1 = 0 means that the phase does not change the decision. ``trees_wanted`` maps a batch size to
    the wanted number of trees, before rounding. ``rule`` is one of `BATCHES`. With "paper", b is
    2^(p-1) / (p - 1)^2, rounded down to a power of two, and T1 is the largest feasible number up to
    the wanted one (see `max_trees`). With "largest", b is the largest power of two for which the
    previous phase has enough losses for the wanted number of trees, rounded down; T1 is at most
    log2(b). If there is no such b, the result is (1, 0).
    """
    choice("batch", rule, BATCHES)
    if rule == "paper":
        batch = 1 << max(0, math.floor(math.log2(first_round(phase) / (phase - 1) ** 2)))
        return batch, max_trees(phase, batch, trees_wanted(batch))
    for power in range(phase - 1, 0, -1):
        batch, trees_limit = 1 << power, min(float(power), MAX_TREES, trees_wanted(1 << power))
        trees = math.floor(trees_limit) if trees_limit >= 1.0 else 0
        if trees and losses_needed(batch, trees) <= first_round(phase - 1):
            return batch, trees
    return 1, 0


class Bounds(NamedTuple):
    """Bounds to which clients clip gradients, so that the noise suffices for any losses.

    Every coordinate of a gradient is clipped to [low, high]. Differences of two gradients are
    clipped to the largest value that beta-smooth losses allow. Clipping does not change losses that
    satisfy their guarantees.

    Attributes
    ----------
    low, high : float
        The interval that holds every coordinate of a gradient.
    smoothness : float
        beta, the Lipschitz constant of gradients.
    """

    low: float
    high: float
    smoothness: float

    @property
    def spread(self) -> float:
        """Length of the interval that holds all coordinates of gradients."""
        return self.high - self.low

    def difference_limit(self, x: np.ndarray, parent: np.ndarray) -> float:
        """Return the bound on each coordinate of the difference between two gradients of one loss.

        The gradients are at x (d,) and at ``parent`` (d,).
        """
        return min(self.high - self.low, self.smoothness * float(np.abs(x - parent).sum()))


#: Function (start, stop, x, parent, limit) -> sums (r, d) of r clients' clipped gradients at x over
#: losses start..stop - 1. With a parent, the sums are of differences between the gradients at x and
#: at the parent, each clipped to [-limit, limit].
Gradients = Callable[[int, int, np.ndarray, np.ndarray | None, float], np.ndarray]


class Walk:
    """Visits the leaves of a phase's trees in order, and estimates ``rows`` clients' gradients.

    The estimates at each depth of the path to the current leaf are stored. The gradient of a linear
    loss is constant. Every vertex of a tree then has the estimate of the root, only the losses of
    the root are used, and one entry serves all depths.
    """

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("estimates", "points", "done")

    def __init__(
        self,
        phase: Phase,
        rows: int,
        experts: int,
        gradients: Gradients,
        bounds: Bounds,
        linear: bool,
    ) -> None:
        self.phase, self._gradients = phase, gradients
        self._bounds, self._linear = bounds, linear
        depths = 1 if linear else phase.trees + 1
        #: Estimates (depths, r, d) on the path, their points (depths, d), leaves visited so far.
        self.estimates = np.zeros((depths, rows, experts))
        self.points = np.zeros((depths, experts))
        self.done = 0

    def leaf(self, x: np.ndarray) -> np.ndarray:
        """Visit the next leaf, and return the gradient estimates there, (clients, d).

        ``x`` (d,) is the current decision. There is one row for each client of the walk.
        """
        if self.done == len(self.phase.leaves):
            raise InputError(f"the phase has {self.done} leaves, and one more was requested")
        # On the path from the root to this leaf, the vertex at depth h is the first that was not on
        # the path to the previous leaf. It is the root (h = 0) or a right child, and the only
        # vertex that uses new losses.
        tree, h, start, stop, _ = self.phase.leaves[self.done]
        if h == 0:
            v = self._gradients(start, stop, x, None, 0.0) / (stop - start)
        elif self._linear:
            # The gradient of a linear loss is constant, so v is the estimate of the root.
            v = self.estimates[0]
        else:
            parent = self.points[h - 1]
            limit = self._bounds.difference_limit(x, parent)
            v = self.estimates[h - 1] + self._gradients(start, stop, x, parent, limit) / (
                stop - start
            )
        # On the path, all vertices below depth h are left children. A left child has the point and
        # the estimate of its parent.
        self.estimates[h : tree + 1] = v
        self.points[h : tree + 1] = x
        self.done += 1
        return v


# ---- Plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FrankWolfePlan(ExpertPlan):
    """Plan of one fed-dp-ope-stoch curve (gao-2024, Algorithms 1-3).

    Parameters
    ----------
    phases : tuple of Phase
        The phases that learn.
    bounds : Bounds
        Bounds that clients clip gradients to.
    """

    sends: ClassVar[str] = "scores"
    phases: tuple[Phase, ...]
    bounds: Bounds

    def gradient_memory(self) -> int:
        """Return the bytes of gradients that a simulation of all clients holds at a time."""
        depths = 1 if self.linear else 1 + max((p.trees for p in self.phases), default=0)
        return 8 * (depths + 3) * self.silos * self.experts

    def walk(self, phase: Phase, rows: int, gradients: Gradients) -> Walk:
        """Return a new walk of ``rows`` clients through the trees of a phase."""
        return Walk(phase, rows, self.experts, gradients, self.bounds, self.linear)

    @cached_property
    def _first_rounds(self) -> list[int]:
        """The first round of each phase in ``phases``."""
        return [phase.first for phase in self.phases]

    @cached_property
    def _exchanges(self) -> list[int]:
        """The number of exchanges before each phase in ``phases``, and after the last one."""
        total, counts = 0, [0]
        for phase in self.phases:
            total += len(phase.leaves)
            counts.append(total)
        return counts

    @property
    def exchanges(self) -> int:
        """Total number of exchanges, one for each leaf."""
        return self._exchanges[-1]

    def exchanges_before(self, round: int) -> int:
        """Return the number of exchanges that must be completed before a round."""
        return self._exchanges[bisect_right(self._first_rounds, round)]

    def asking_rounds(self, last: int) -> np.ndarray:
        """Return the rounds up to ``last`` that begin with an exchange, ascending."""
        return np.array([first for first in self._first_rounds if first <= last], np.int64)

    def phase_of(self, release: int) -> Phase:
        """Return the phase that exchange ``release`` = 1, 2, ... belongs to."""
        return self.phases[bisect_right(self._exchanges, release - 1) - 1]

    def step(self, release: int) -> float:
        """Return eta, the step size of exchange ``release``."""
        phase = self.phase_of(release)
        return phase.leaves[release - phase.offset - 1].step

    def scale(self, release: int) -> float:
        """Return lambda, the noise scale of exchange ``release``."""
        phase = self.phase_of(release)
        return phase.scales[phase.leaves[release - phase.offset - 1].tree - 1]

    def unit(self, phase: Phase) -> float:
        """Return the unit to whose multiples clipped gradients are rounded if noise is exact.

        Sums of estimates over clients and along the path from a root to a leaf are then exact in
        float64. For, with b losses at a root, T1 trees and m clients, b times such a sum is a
        multiple of the unit below (1 + 2 T1) m b times the bound on a coordinate.
        """
        limit = max(abs(self.bounds.low), abs(self.bounds.high), self.bounds.high - self.bounds.low)
        terms = (1 + 2 * phase.trees) * self.silos * phase.batch
        return 2.0 ** math.ceil(math.log2(limit)) * exact.quantum(terms)

    def inflation(self, phase: Phase) -> float:
        """Return the factor on the noise scale that covers the rounding of gradients.

        If one of the n losses of a vertex is replaced, the scores below it change by at most
        `VertexSet.change`. Rounding the old and the new gradient adds at most unit / n to this.
        Steps of x are rounded too, each by a relative 2^-52, which can increase the distance
        between x and the point of the parent vertex. The term with 2^-48 covers this.
        """
        unit = self.unit(phase)
        width = self.bounds.high - self.bounds.low
        sets = vertex_sets(phase.batch, phase.trees, width, self.bounds.smoothness)
        # n times the change of the scores is the change of the sum of n gradients.
        sum_changes = [s.change * phase.batch / 2**s.depth for s in sets if s.change > 0.0]
        return 1.0 + unit / min(sum_changes) + (self.experts + len(phase.leaves)) * 2.0**-48

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """Return the decision after x: (1 - eta) x + eta e_w (gao-2024, Equation 2).

        eta is the step size of the exchange of ``choice``, and w the expert that ``choice`` names.
        Before the first exchange, ``x`` is None or ``choice`` names no expert, and the decision is
        uniform.
        """
        if x is None or choice.expert is None:
            return np.full(self.experts, 1.0 / self.experts)
        step = self.step(choice.release)
        x_next = (1.0 - step) * x
        x_next[choice.expert] += step
        return x_next

    def memory(self) -> int:
        """Return the bytes of the clients' state: gradients at each depth, sums, stored losses."""
        if not self.phases:
            return 0
        depths = 1 if self.linear else 1 + max(phase.trees for phase in self.phases)
        rounds = 3 * max(phase.used for phase in self.phases)
        return 8 * self.silos * ((depths + 3) * self.experts + rounds)

    def sends_weights(self, release: int) -> bool:
        """Return True for the start (release 0) only; later answers name one expert."""
        return release == 0

    def bits_down(self, exchanges: np.ndarray) -> np.ndarray:
        """Return the bits of one expert in each exchange; the uniform start is not sent."""
        return 64.0 * self.silos * exchanges

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Return the initial state of client ``index``."""
        return GradientCollector(self, index, noise)

    def decider(self, noise: NoiseSource) -> Decider:
        """Return a server in its initial state."""
        return NoisyLeast(self, noise)


def check_phases(plan: FrankWolfePlan) -> None:
    """Raise InputError if a loss could be used twice, or if exchanges are not numbered 1, 2, ...

    A phase uses losses of the previous phase's rounds. So no two phases use the same loss if phase
    numbers increase. And the sets of one phase's vertices can be disjoint if together they have at
    most as many losses as the previous phase has rounds.
    """
    last, offset = 1, 0
    for phase in plan.phases:
        if not last < phase.number <= phases_of(plan.horizon):
            raise InputError(
                f"phases must have increasing numbers from 2 to {phases_of(plan.horizon)}, got "
                f"{[p.number for p in plan.phases]}"
            )
        if not 1 <= phase.trees <= MAX_TREES or phase.batch % 2**phase.trees:
            raise InputError(
                f"phase {phase.number} must have 1 to {MAX_TREES} trees, and a batch that 2 to "
                f"that power divides, got {phase.trees} and {phase.batch}"
            )
        if phase.offset != offset or losses_needed(phase.batch, phase.trees) > len(phase.samples):
            raise InputError(
                f"phase {phase.number} must begin after {offset} exchanges and use at most "
                f"{len(phase.samples)} losses, got {phase.offset} and "
                f"{losses_needed(phase.batch, phase.trees):g}"
            )
        last, offset = phase.number, offset + 2 ** (phase.trees + 1) - 2


@released.register
def _(plan: FrankWolfePlan) -> tuple[PrivacyEvent, ...]:
    """Return the privacy events of a plan: for the decisions and, with local noise, the messages.

    The messages are the noisy scores that each client sends to the server. The event that the
    plan's claim is about comes first. If the scores of any tree get no noise, every event is
    `RawData`.
    """
    check_protocol(plan, LOCAL_SCORES, CENTRAL_SCORES, PLAIN_SCORES)
    check_phases(plan)
    if not plan.phases:
        return (NoRelease(),)
    claim = plan.privacy or Claim(source="none")
    local = plan.protocol.noise_by == "silos"
    if claim.protect == "messages" and not local:
        raise InputError(
            'protect "messages" needs noise of clients: without it the server gets raw messages'
        )
    if plan.protocol.noise_by == "none" or not all(s > 0.0 for p in plan.phases for s in p.scales):
        return (RawData(claim.budget),) * (2 if local else 1)
    shapes = {(p.batch, p.scales) for p in plan.phases}
    noises = tuple(
        VertexNoise(
            budget=claim.required_budget,
            batch=batch,
            trees=len(scales),
            spread=plan.bounds.spread,
            smoothness=plan.bounds.smoothness,
            experts=plan.experts,
            scales=scales,
            protect=claim.protect,
            calibration=claim.calibration,
            source=claim.source,
        )
        for batch, scales in sorted(shapes)
    )
    events: list[PrivacyEvent] = [per_record(VertexScores(noises=noises), claim)]
    if local:
        events.append(per_record(VertexScores(noises=noises, protect="messages"), claim))
    if claim.protect == "messages":
        events.reverse()
    return tuple(events)


class GradientCollector:
    """State of one client: losses stored for the next phase, and the walk of the current phase."""

    def __init__(self, plan: FrankWolfePlan, index: int, noise: NoiseSource) -> None:
        self.plan, self.index, self.noise = plan, index, noise
        #: Losses stored for the next phase, and the losses that the current phase uses.
        self._losses: list[np.ndarray | Gradient] = []
        self._sampled_losses: list[np.ndarray | Gradient] = []
        self._walk: Walk | None = None
        self._scores: np.ndarray | None = None
        #: With exact noise: its source, and the draws of the current exchange until it succeeds.
        self._ideal = noise if is_exact(noise) else None
        self._draws: Laplaces | None = None
        self._later_phases = iter(plan.phases)
        self._next_phase: Phase | None = next(self._later_phases, None)

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Store the loss of a round if the next phase uses it."""
        if self._next_phase is not None and round in self._next_phase.samples:
            self._losses.append(loss)

    def _begin(self, phase: Phase) -> Walk:
        """Start a phase, and return a new walk of this client through its trees.

        The losses that the phase uses are sampled from the stored ones; the others are discarded.
        """
        order = self.noise.sample(self.index, phase.number, len(phase.samples))
        self._sampled_losses = [self._losses[i] for i in order[: phase.used]]
        # No later phase uses these losses.
        self._losses = []
        self._next_phase = next(self._later_phases, None)
        return self.plan.walk(phase, 1, self._sum)

    def _sum(
        self, start: int, stop: int, x: np.ndarray, parent: np.ndarray | None, limit: float
    ) -> np.ndarray:
        """Return the sum of this client's clipped gradients at x, (1, d).

        The sum is over the sampled losses start..stop - 1. With ``parent`` (d,) it sums the
        differences from the gradients at ``parent``, each clipped to [-limit, limit]. With exact
        noise, each term of the sum is first rounded to a multiple of `FrankWolfePlan.unit`.
        """
        total = np.zeros(self.plan.experts)
        unit = self.plan.unit(self._walk.phase) if self._ideal is not None and self._walk else None
        for loss in self._sampled_losses[start:stop]:
            gradient = self._clipped(loss, x)
            if parent is not None:
                gradient = np.clip(gradient - self._clipped(loss, parent), -limit, limit)
            aggregation.add(total, gradient if unit is None else exact.quantise(gradient, unit))
        return total[None]

    def _clipped(self, loss: np.ndarray | Gradient, x: np.ndarray) -> np.ndarray:
        """Return the gradient (d,) of a loss at x, clipped to the plan's bounds.

        The result of a user's gradient function is checked first.
        """
        raw_gradient = (
            loss if isinstance(loss, np.ndarray) else array("gradient", loss(x), shape=x.shape)
        )
        return np.clip(raw_gradient, self.plan.bounds.low, self.plan.bounds.high)

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """Return the client's scores (d,) for exchange ``release``, with noise if clients add it.

        The scores are the client's gradient estimate at the next leaf, for the decision x (d,).
        """
        phase = self.plan.phase_of(release)
        if self._walk is None or self._walk.phase is not phase:
            self._walk = self._begin(phase)
        # The scores are stored until their noise is drawn. If that fails, the caller can repeat the
        # call, which must not visit a further leaf.
        if self._scores is None:
            (self._scores,) = self._walk.leaf(x)
        scores, plan = self._scores, self.plan
        if plan.protocol.noise_by == "silos" and self._ideal is not None:
            # Exact noise. Its scale is inflated to cover the rounding of gradients.
            if self._draws is None:
                self._draws = self._ideal.ideal_laplace(self.index, release, plan.experts)
            scale = plan.scale(release) * plan.inflation(phase)
            scores = exact.add_laplace(scores, np.full(plan.experts, scale), self._draws)
        elif plan.protocol.noise_by == "silos":
            noise_draws = self.noise.laplace(self.index, release, plan.experts)
            scores = scores + plan.scale(release) * noise_draws
        self._scores = self._draws = None
        return scores


class NoisyLeast:
    """State of the server, which chooses the expert of least (noisy) mean score."""

    events: dict[str, int] = {}  # noqa: RUF012

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release",)

    def __init__(self, plan: FrankWolfePlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._release = 0
        self._draws: Laplaces | None = None

    def start(self) -> ExpertChoice:
        """Return uniform weights."""
        d = self.plan.experts
        return ExpertChoice(0, None, np.full(d, 1.0 / d))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Choose the expert of least (noisy) mean score, given the sums (d,) of all scores."""
        plan = self.plan
        release = self._release + 1
        if plan.protocol.noise_by == "server" and is_exact(self.noise):
            # Compare sums instead of means, which would be rounded when divided by the number of
            # clients.
            phase = plan.phase_of(release)
            unit = plan.unit(phase) / phase.batch
            exact.check_fixed(total, unit, "the sum of the reports")
            if self._draws is None:
                self._draws = self.noise.ideal_laplace(plan.silos, release, plan.experts)
            scale = plan.scale(release) * plan.inflation(phase)
            choice = ExpertChoice(release, exact.least(total, scale, self._draws))
        else:
            mean = total / plan.silos
            if plan.protocol.noise_by == "server":
                noise_draws = self.noise.laplace(plan.silos, release, plan.experts)
                mean = mean + plan.scale(release) / plan.silos * noise_draws
            choice = ExpertChoice(release, int(mean.argmin()))
        self._release, self._draws = release, None
        return choice
