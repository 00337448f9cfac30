"""Fed-DP-OPE-Stoch: trees of DP-FW over disjoint sets of losses, and Frank-Wolfe steps on them.

gao-2024, Algorithm 3 (after Asi et al. 2021): T1 binary trees of depth 1..T1, visited depth first.
Between two leaves exactly one vertex is new to the right of its parent, so every leaf has one set
of losses of its own: the root's b for a tree's first leaf, and b / 2^h for a leaf whose new right
vertex is at depth h. A phase uses b (T1 + T1 (T1 + 1) / 4) losses of each client, none twice.
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

#: Rules for b: "paper" as Theorem C.5 has it, rounded so that it exists; "largest" the most
#: losses that a phase has for T1 trees.
BATCHES = ("paper", "largest")


class Leaf(NamedTuple):
    """One exchange of messages: the losses it uses, and the step of x after it.

    Attributes
    ----------
    tree : int
        j, from 1.
    depth : int
        h of the new right vertex; 0 for the tree's root.
    start, stop : int
        Its losses start..stop - 1, in the client's order of samples.
    step : float
        eta = 2 / (k + 1).
    """

    tree: int
    depth: int
    start: int
    stop: int
    step: float


@dataclass(frozen=True)
class Phase:
    """One phase that learns, before its rounds 2^(p-1)..2^p - 1, from the rounds of the last.

    Parameters
    ----------
    number : int
        p >= 2.
    batch : int
        b, losses at a tree's root.
    scales : tuple of float
        lambda_j, the Laplace scale of each client's scores, by tree; 0 for no noise.
    offset : int, default 0
        Exchanges before this phase.
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
        """The first round that uses what the phase learned."""
        return first_round(self.number)

    @property
    def samples(self) -> range:
        """Rounds whose losses the phase learns from."""
        return range(first_round(self.number - 1), self.first)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Leaves in the order of the walk."""
        found: list[Leaf] = []
        at = 0
        for tree in range(1, self.trees + 1):
            for leaf in range(2**tree):
                # The path to a leaf turns right for the last time at its lowest 1.
                depth = tree - (leaf & -leaf).bit_length() + 1 if leaf else 0
                size = self.batch >> depth
                found.append(Leaf(tree, depth, at, at + size, 2.0 / (len(found) + 2.0)))
                at += size
        return tuple(found)

    @property
    def used(self) -> int:
        """Losses of each client that the phase uses."""
        return self.leaves[-1].stop


#: Most trees of a phase: beyond, the steps of the last leaves are below 10^-6.
MAX_TREES = 20


def first_round(phase: int) -> int:
    """2^(p-1), the first round of phase p."""
    return 1 << (phase - 1)


def phases_of(horizon: int) -> int:
    """P, the phases that start within so many rounds."""
    return horizon.bit_length()


def needed(batch: int, trees: int) -> float:
    """Losses that T1 trees of batch b use: b (T1 + T1 (T1 + 1) / 4)."""
    return batch * (trees + trees * (trees + 1) / 4.0)


def max_trees(phase: int, batch: int, wanted: float) -> int:
    """The largest T1 <= wanted that fits: 2^T1 divides b, and the last phase has enough losses."""
    have = first_round(phase - 1)
    most = math.floor(min(max(wanted, 0.0), MAX_TREES))
    fits = (t for t in range(most, 0, -1) if batch % 2**t == 0 and needed(batch, t) <= have)
    return next(fits, 0)


def theorem_trees(
    batch: int, gain: float, experts: int, epsilon: float, lipschitz: float, smoothness: float
) -> float:
    """T1 of Theorem C.5: log2(b eps beta gain / (alpha ln d)) / 2; infinite without privacy.

    ``gain`` is the factor by which m clients reduce the noise of the mean scores: sqrt(m) where it
    is local.
    """
    if math.isinf(epsilon):
        return math.inf
    worth = batch * epsilon * smoothness * gain / (lipschitz * math.log(experts))
    return 0.5 * math.log2(worth) if worth > 0.0 else -math.inf


def shape(phase: int, rule: str, trees_wanted: Callable[[int], float]) -> tuple[int, int]:
    """(b, T1) of a phase p >= 2; T1 = 0 where it keeps the last decision.

    ``trees_wanted`` gives the number of trees for a batch of b, before rounding.
    """
    choice("batch", rule, BATCHES)
    if rule == "paper":
        batch = 1 << max(0, math.floor(math.log2(first_round(phase) / (phase - 1) ** 2)))
        return batch, max_trees(phase, batch, trees_wanted(batch))
    for power in range(phase - 1, 0, -1):
        batch, want = 1 << power, min(float(power), MAX_TREES, trees_wanted(1 << power))
        trees = math.floor(want) if want >= 1.0 else 0
        if trees and needed(batch, trees) <= first_round(phase - 1):
            return batch, trees
    return 1, 0


class Bounds(NamedTuple):
    """Bounds that clients clip gradients to, so that the noise suffices whatever the losses are.

    Every coordinate of a gradient is clipped to [low, high], and of a difference of two gradients
    to what beta-smooth losses allow. Losses that keep their guarantees are not changed.

    Attributes
    ----------
    low, high : float
        The interval.
    smoothness : float
        beta.
    """

    low: float
    high: float
    smoothness: float

    @property
    def spread(self) -> float:
        """Length of the interval that holds all coordinates of gradients."""
        return self.high - self.low

    def most(self, x: np.ndarray, parent: np.ndarray) -> float:
        """The bound on differences between gradients at x and at parent."""
        return min(self.high - self.low, self.smoothness * float(np.abs(x - parent).sum()))


#: Sums (r, d) of r clients' clipped gradients at x over their losses start..stop - 1, less those at
#: the parent, if there is one, each difference clipped to [-most, most].
Gradients = Callable[[int, int, np.ndarray, np.ndarray | None, float], np.ndarray]


class Walk:
    """Gradient estimates of some clients along the path to the current leaf, depth by depth.

    With linear losses a right vertex has its parent's estimate, the root's: no other losses are
    used, and one row serves all depths.
    """

    #: What exchanges change, for snapshots of simulations.
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
        #: Estimates (depths, r, d) on the path, the points (depths, d) they are of, leaves walked.
        self.estimates = np.zeros((depths, rows, experts))
        self.points = np.zeros((depths, experts))
        self.done = 0

    def leaf(self, x: np.ndarray) -> np.ndarray:
        """v of the next leaf, shape (r, d), at the current decision x (d,)."""
        if self.done == len(self.phase.leaves):
            raise InputError(f"the phase has {self.done} leaves, asked for one more")
        tree, h, start, stop, _ = self.phase.leaves[self.done]
        if h == 0:
            v = self._gradients(start, stop, x, None, 0.0) / (stop - start)
        elif self._linear:
            v = self.estimates[0]
        else:
            parent = self.points[h - 1]
            most = self._bounds.most(x, parent)
            v = self.estimates[h - 1] + self._gradients(start, stop, x, parent, most) / (
                stop - start
            )
        # Left children below take over both.
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
        """Bytes of gradients that a simulation of all clients keeps at once."""
        depths = 1 if self.linear else 1 + max((p.trees for p in self.phases), default=0)
        return 8 * (depths + 3) * self.silos * self.experts

    def walk(self, phase: Phase, rows: int, gradients: Gradients) -> Walk:
        """The walk of ``rows`` clients through the trees of a phase."""
        return Walk(phase, rows, self.experts, gradients, self.bounds, self.linear)

    @cached_property
    def _first_rounds(self) -> list[int]:
        """The first round of each of these phases."""
        return [phase.first for phase in self.phases]

    @cached_property
    def _exchanges(self) -> list[int]:
        """Exchanges before each of these phases, and after the last."""
        total, found = 0, [0]
        for phase in self.phases:
            total += len(phase.leaves)
            found.append(total)
        return found

    @property
    def exchanges(self) -> int:
        """The number of exchanges: all leaves."""
        return self._exchanges[-1]

    def exchanges_before(self, round: int) -> int:
        """Exchanges that must have been completed before a round."""
        return self._exchanges[bisect_right(self._first_rounds, round)]

    def asking_rounds(self, last: int) -> np.ndarray:
        """The rounds up to ``last`` before which messages are exchanged, ascending."""
        return np.array([first for first in self._first_rounds if first <= last], np.int64)

    def phase_of(self, release: int) -> Phase:
        """The phase that exchange 1, 2, ... belongs to."""
        return self.phases[bisect_right(self._exchanges, release - 1) - 1]

    def step(self, release: int) -> float:
        """eta of an exchange."""
        phase = self.phase_of(release)
        return phase.leaves[release - phase.offset - 1].step

    def scale(self, release: int) -> float:
        """lambda of an exchange."""
        phase = self.phase_of(release)
        return phase.scales[phase.leaves[release - phase.offset - 1].tree - 1]

    def unit(self, phase: Phase) -> float:
        """The unit that clipped gradients are rounded to multiples of, where noise is exact.

        Sums over clients and along a path are then exact: they stay below (1 + 2 T1) m b times the
        bound on a coordinate, in units of 1/b.
        """
        most = max(abs(self.bounds.low), abs(self.bounds.high), self.bounds.high - self.bounds.low)
        terms = (1 + 2 * phase.trees) * self.silos * phase.batch
        return 2.0 ** math.ceil(math.log2(most)) * exact.quantum(terms)

    def inflation(self, phase: Phase) -> float:
        """The factor on the noise that covers rounded gradients.

        Two rounded gradients move a leaf's scores by unit / n at most, n the losses of its set,
        beside what one loss may. Moves of x are rounded too, each by 2^-52 of it: the distance of x
        and its parent grows by as much for each.
        """
        unit = self.unit(phase)
        width = self.bounds.high - self.bounds.low
        sets = vertex_sets(phase.batch, phase.trees, width, self.bounds.smoothness)
        changes = [s.change * phase.batch / 2**s.depth for s in sets if s.change > 0.0]
        return 1.0 + unit / min(changes) + (self.experts + len(phase.leaves)) * 2.0**-48

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """x <- (1 - eta) x + eta e_w (gao-2024, Equation 2); x_1 is uniform."""
        if x is None or choice.expert is None:
            return np.full(self.experts, 1.0 / self.experts)
        step = self.step(choice.release)
        moved = (1.0 - step) * x
        moved[choice.expert] += step
        return moved

    def memory(self) -> int:
        """Bytes of gradients by depth, of those being added up, and of the losses' rounds."""
        if not self.phases:
            return 0
        depths = 1 if self.linear else 1 + max(phase.trees for phase in self.phases)
        rounds = 3 * max(phase.used for phase in self.phases)
        return 8 * self.silos * ((depths + 3) * self.experts + rounds)

    def sends_weights(self, release: int) -> bool:
        """True at the start alone."""
        return release == 0

    def bits_down(self, exchanges: int) -> float:
        """An expert each time; all know the uniform start."""
        return 64.0 * self.silos * exchanges

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Make the state of a client."""
        return GradientCollector(self, index, noise)

    def decider(self, noise: NoiseSource) -> Decider:
        """Make the state of the server."""
        return NoisyLeast(self, noise)


def check_phases(plan: FrankWolfePlan) -> None:
    """Refuse phases that share losses, or whose exchanges are not counted one after the other.

    A loss is looked at in one set of one phase: numbers increase, and no phase uses more losses
    than its rounds have. Raises InputError.
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
        if phase.offset != offset or needed(phase.batch, phase.trees) > len(phase.samples):
            raise InputError(
                f"phase {phase.number} must begin after {offset} exchanges and use at most "
                f"{len(phase.samples)} losses, got {phase.offset} and "
                f"{needed(phase.batch, phase.trees):g}"
            )
        last, offset = phase.number, offset + 2 ** (phase.trees + 1) - 2


@released.register
def _(plan: FrankWolfePlan) -> tuple[PrivacyEvent, ...]:
    """Decisions, and with local noise messages; first the one that the claim is about."""
    check_protocol(plan, LOCAL_SCORES, CENTRAL_SCORES, PLAIN_SCORES)
    check_phases(plan)
    if not plan.phases:
        return (NoRelease(),)
    claim = plan.privacy or Claim(source="none")
    local = plan.protocol.noise_by == "silos"
    if claim.protect == "messages" and not local:
        raise InputError('protect "messages" needs noise of clients: a server sees the others')
    if plan.protocol.noise_by == "none" or not all(s > 0.0 for p in plan.phases for s in p.scales):
        return (RawData(claim.budget),) * (2 if local else 1)
    shapes = {(p.batch, p.scales) for p in plan.phases}
    noises = tuple(
        VertexNoise(
            budget=claim.asked,
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
    found: list[PrivacyEvent] = [per_record(VertexScores(noises=noises), claim)]
    if local:
        found.append(per_record(VertexScores(noises=noises, protect="messages"), claim))
    if claim.protect == "messages":
        found.reverse()
    return tuple(found)


class GradientCollector:
    """State of one client: losses it may still use, and its place in the current trees."""

    def __init__(self, plan: FrankWolfePlan, index: int, noise: NoiseSource) -> None:
        self.plan, self.index, self.noise = plan, index, noise
        self._losses: list[np.ndarray | Gradient] = []
        self._taken: list[np.ndarray | Gradient] = []
        self._walk: Walk | None = None
        self._scores: np.ndarray | None = None
        self._ideal = noise if is_exact(noise) else None
        self._drawn: Laplaces | None = None
        self._waiting = iter(plan.phases)
        self._next: Phase | None = next(self._waiting, None)

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        """Store the loss of a round that the next phase learns from."""
        if self._next is not None and round in self._next.samples:
            self._losses.append(loss)

    def _begin(self, phase: Phase) -> Walk:
        """Start a phase: draw its losses, and forget the others."""
        order = self.noise.sample(self.index, phase.number, len(phase.samples))
        self._taken = [self._losses[i] for i in order[: phase.used]]
        # The next phase uses other losses.
        self._losses = []
        self._next = next(self._waiting, None)
        return self.plan.walk(phase, 1, self._sum)

    def _sum(
        self, start: int, stop: int, x: np.ndarray, parent: np.ndarray | None, most: float
    ) -> np.ndarray:
        """Sum of clipped gradients at x, or of their differences to those at the parent."""
        total = np.zeros(self.plan.experts)
        unit = self.plan.unit(self._walk.phase) if self._ideal is not None and self._walk else None
        for loss in self._taken[start:stop]:
            taken = self._clipped(loss, x)
            if parent is not None:
                taken = np.clip(taken - self._clipped(loss, parent), -most, most)
            aggregation.add(total, taken if unit is None else exact.quantise(taken, unit))
        return total[None]

    def _clipped(self, loss: np.ndarray | Gradient, x: np.ndarray) -> np.ndarray:
        """The clipped gradient at x; checked, for it may come from a user's function."""
        found = loss if isinstance(loss, np.ndarray) else array("gradient", loss(x), shape=x.shape)
        return np.clip(found, self.plan.bounds.low, self.plan.bounds.high)

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        """Noisy scores (d,) of the next leaf."""
        phase = self.plan.phase_of(release)
        if self._walk is None or self._walk.phase is not phase:
            self._walk = self._begin(phase)
        # Stored until the noise is drawn: a source that fails may be called again.
        if self._scores is None:
            (self._scores,) = self._walk.leaf(x)
        scores, plan = self._scores, self.plan
        if plan.protocol.noise_by == "silos" and self._ideal is not None:
            if self._drawn is None:
                self._drawn = self._ideal.ideal_laplace(self.index, release, plan.experts)
            scale = plan.scale(release) * plan.inflation(phase)
            scores = exact.add_laplace(scores, np.full(plan.experts, scale), self._drawn)
        elif plan.protocol.noise_by == "silos":
            drawn = self.noise.laplace(self.index, release, plan.experts)
            scores = scores + plan.scale(release) * drawn
        self._scores = self._drawn = None
        return scores


class NoisyLeast:
    """State of the server: it chooses the expert of least mean score, with central noise if any."""

    events: dict[str, int] = {}  # noqa: RUF012

    #: What exchanges change, for snapshots of simulations.
    KEPT = ("_release",)

    def __init__(self, plan: FrankWolfePlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._release = 0
        self._drawn: Laplaces | None = None

    def start(self) -> ExpertChoice:
        """The uniform weights."""
        d = self.plan.experts
        return ExpertChoice(0, None, np.full(d, 1.0 / d))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """The expert of least noisy mean score, from the sums (d,)."""
        plan = self.plan
        release = self._release + 1
        if plan.protocol.noise_by == "server" and is_exact(self.noise):
            # The least of the sums, as for real numbers: that of the means.
            phase = plan.phase_of(release)
            unit = plan.unit(phase) / phase.batch
            exact.check_fixed(total, unit, "the sum of the reports")
            if self._drawn is None:
                self._drawn = self.noise.ideal_laplace(plan.silos, release, plan.experts)
            scale = plan.scale(release) * plan.inflation(phase)
            choice = ExpertChoice(release, exact.least(total, scale, self._drawn))
        else:
            mean = total / plan.silos
            if plan.protocol.noise_by == "server":
                drawn = self.noise.laplace(plan.silos, release, plan.experts)
                mean = mean + plan.scale(release) / plan.silos * drawn
            choice = ExpertChoice(release, int(mean.argmin()))
        self._release, self._drawn = release, None
        return choice
