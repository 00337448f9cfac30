"""Fed-DP-OPE-Stoch as plain data, its clients' gradients and its server's noisy argmin."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastfed._kernels import native
from fastfed._random import NoiseSource
from fastfed._validate import array
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import Collector, Decider, ExpertPlan, Gradient
from fastfed.experts.vertices import Bounds, Gradients, Phase, Walk
from fastfed.privacy.account import (
    Claim,
    Described,
    Nothing,
    RawData,
    VertexScores,
    of_record,
    released,
)
from fastfed.privacy.vertex_sets import VertexNoise


@dataclass(frozen=True, kw_only=True)
class FrankWolfePlan(ExpertPlan):
    """One curve of Fed-DP-OPE-Stoch (gao-2024, Algorithms 1-3)."""

    phases: tuple[Phase, ...]  # those that learn
    bounds: Bounds

    def walk(self, phase: Phase, rows: int, gradients: Gradients) -> Walk:
        """The way of so many clients through the trees of a phase."""
        return Walk(phase, rows, self.experts, gradients, self.bounds, self.linear)

    @cached_property
    def _first_rounds(self) -> list[int]:
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
        return self._exchanges[-1]

    def exchanges_before(self, round: int) -> int:
        return self._exchanges[bisect_right(self._first_rounds, round)]

    def asking_rounds(self, last: int) -> np.ndarray:
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

    def move(self, x: np.ndarray | None, choice: ExpertChoice) -> np.ndarray:
        """x <- (1 - eta) x + eta e_w (gao-2024, Equation 2); x_1 is uniform."""
        if x is None or choice.expert is None:
            return np.full(self.experts, 1.0 / self.experts)
        step = self.step(choice.release)
        moved = (1.0 - step) * x
        moved[choice.expert] += step
        return moved

    def memory(self) -> int:
        """Gradients by depth of the way to a leaf, those being added up, and the losses' rounds."""
        if not self.phases:
            return 0
        depths = 1 if self.linear else 1 + max(phase.trees for phase in self.phases)
        rounds = 3 * max(phase.used for phase in self.phases)
        return 8 * self.silos * ((depths + 3) * self.experts + rounds)

    def sends_weights(self, release: int) -> bool:
        return release == 0

    def bits_down(self, exchanges: int) -> float:
        """An expert each time; all know the uniform start."""
        return 64.0 * self.silos * exchanges

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        return GradientCollector(self, index, noise)

    def decider(self, noise: NoiseSource) -> Decider:
        return NoisyLeast(self, noise)


@released.register
def _(plan: FrankWolfePlan) -> tuple[Described, ...]:
    """What is played, and with local noise what a client sends; first what the claim is about."""
    if not plan.phases:
        return (Nothing(),)
    claim = plan.privacy or Claim(source="none")
    local = plan.protocol.noise_by == "silos"
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
    found: list[Described] = [of_record(VertexScores(noises=noises), claim)]
    if local:
        found.append(of_record(VertexScores(noises=noises, protect="messages"), claim))
    if claim.protect == "messages":
        found.reverse()
    return tuple(found)


class GradientCollector:
    """The losses that one client may still look at, and its place in the current trees."""

    def __init__(self, plan: FrankWolfePlan, index: int, noise: NoiseSource) -> None:
        self.plan, self.index, self.noise = plan, index, noise
        self._losses: list[np.ndarray | Gradient] = []
        self._taken: list[np.ndarray | Gradient] = []
        self._walk: Walk | None = None
        self._scores: np.ndarray | None = None
        self._waiting = iter(plan.phases)
        self._next: Phase | None = next(self._waiting, None)

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        if self._next is not None and round in self._next.samples:
            self._losses.append(loss)

    def _begin(self, phase: Phase) -> Walk:
        order = self.noise.sample(self.index, phase.number, len(phase.samples))
        self._taken = [self._losses[i] for i in order[: phase.used]]
        # Another phase looks at other losses.
        self._losses = []
        self._next = next(self._waiting, None)
        return self.plan.walk(phase, 1, self._sum)

    def _sum(
        self, start: int, stop: int, x: np.ndarray, parent: np.ndarray | None, most: float
    ) -> np.ndarray:
        total = np.zeros(self.plan.experts)
        for loss in self._taken[start:stop]:
            taken = self._clipped(loss, x)
            if parent is not None:
                taken = np.clip(taken - self._clipped(loss, parent), -most, most)
            native.add(total, taken)
        return total[None]

    def _clipped(self, loss: np.ndarray | Gradient, x: np.ndarray) -> np.ndarray:
        """The gradient at x, checked, for it is a user's function, and clipped."""
        found = loss if isinstance(loss, np.ndarray) else array("gradient", loss(x), shape=x.shape)
        return np.clip(found, self.plan.bounds.low, self.plan.bounds.high)

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        phase = self.plan.phase_of(release)
        if self._walk is None or self._walk.phase is not phase:
            self._walk = self._begin(phase)
        # Kept until the noise is there: a source that fails may be asked again.
        if self._scores is None:
            (self._scores,) = self._walk.leaf(x)
        scores = self._scores
        if self.plan.protocol.noise_by == "silos":
            drawn = self.noise.laplace(self.index, release, self.plan.experts)
            scores = scores + self.plan.scale(release) * drawn
        self._scores = None
        return scores


class NoisyLeast:
    """The expert of least mean score, with noise of the server's where it is central."""

    events: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, plan: FrankWolfePlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._release = 0

    def start(self) -> ExpertChoice:
        d = self.plan.experts
        return ExpertChoice(0, None, np.full(d, 1.0 / d))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        plan = self.plan
        release = self._release + 1
        mean = total / plan.silos
        if plan.protocol.noise_by == "server":
            drawn = self.noise.laplace(plan.silos, release, plan.experts)
            mean = mean + plan.scale(release) / plan.silos * drawn
        self._release = release
        return ExpertChoice(release, int(mean.argmin()))
