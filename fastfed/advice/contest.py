"""Short simulations of many plans over the same contexts: how long, how many silos, how often."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from fastfed._kernels import environments
from fastfed.advice.result import Regret, mean_and_stderr
from fastfed.advice.scale import (
    release_cost,
    round_cost,
    scalable,
    scaled_environment,
    scaled_plan,
)
from fastfed.environments import Environment
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.simulation import drive, memory
from fastfed.simulation.outcome import checkpoint_rounds

#: Checkpoints of a short run; the pace at its end is that of the last quarter of what was played.
CHECKPOINTS = 64
#: Fewest silos that stand for more, where d is not more, and the most replicates of a stage. With
#: fewer than d a batch of few rounds does not show all directions, and learning is far too slow.
LEAST_SILOS, MOST_REPLICATES = 4, 32
#: Fewest replicates of all silos that are worth more than many of few.
LEAST_EXACT = 4

Heard = Callable[[str], None]


@dataclass(frozen=True)
class Entrant:
    """A plan that is played, with its privacy noise (None: it has none).

    ``federated`` plans share, so few silos stand for many by scaling; others are silos alone, any
    few of which are a sample of all.
    """

    name: str
    plan: Plan
    node: NoiseStd | None = None
    federated: bool = True


@dataclass(frozen=True)
class Size:
    """How a stage is played."""

    silos: int
    rounds: int
    replicates: int


@dataclass
class Contest:
    """Plays entrants, stage after stage, each on replicates of its own."""

    environment: Environment
    silos: int
    horizon: int
    actions: int
    seed: int
    threads: int
    on_stage: Heard | None = None
    replicate: int = 0  # the next one that is unused
    #: Regret of one silo by name, (R,), of the last stage that played it.
    played: dict[str, np.ndarray] = field(default_factory=dict)
    regrets: dict[str, Regret] = field(default_factory=dict)

    def least_silos(self, dimension: int) -> int:
        """Fewest silos that may stand for all."""
        return min(self.silos, max(LEAST_SILOS, dimension))

    @property
    def marks(self) -> np.ndarray:
        """Rounds at which regret is kept, (C,)."""
        return checkpoint_rounds(self.horizon, CHECKPOINTS)

    def size(self, entrants: Sequence[Entrant], seconds: float, replicates: int) -> Size:
        """The largest stage for so many nominal seconds of one core.

        All silos where ``LEAST_EXACT`` replicates of them fit, and then as many replicates as do;
        otherwise ``replicates`` of as few silos as fit, d and four at least. Where silos
        cannot be scaled, all of them for as many rounds as fit.
        """
        whole = sum(
            self.silos * self.horizon * round_cost(self.actions, e.plan.dimension) for e in entrants
        )
        fixed = sum(release_cost(e.plan) for e in entrants)
        fitting = int(seconds / (whole + fixed))
        if fitting >= LEAST_EXACT:
            return Size(self.silos, self.horizon, min(fitting, MOST_REPLICATES))
        share = max(seconds / replicates - fixed, 0.0) / whole
        if not scalable(self.environment):
            marks = self.marks
            at = int(np.searchsorted(marks, self.horizon * share, side="right")) - 1
            return Size(self.silos, int(marks[max(at, 0)]), replicates)
        least = self.least_silos(entrants[0].plan.dimension)
        few = min(self.silos, max(least, int(self.silos * share)))
        return Size(few, self.horizon, replicates)

    def play(self, stage: str, entrants: Sequence[Entrant], size: Size) -> None:
        """Play a stage and keep its regrets; the same arguments and seed, the same regrets."""
        if self.on_stage is not None:
            self.on_stage(self.announce(stage, len(entrants), size))
        finals = self.finals(entrants, size, bits=stage == "final")
        for entrant, column in zip(entrants, finals.T, strict=True):
            mean, stderr = mean_and_stderr(column)
            self.played[entrant.name] = column
            self.regrets[entrant.name] = Regret(
                mean, stderr, size.replicates, size.silos, size.rounds, stage
            )

    def finals(self, entrants: Sequence[Entrant], size: Size, bits: bool = False) -> np.ndarray:
        """Regret of one silo at the end of the horizon, (R, entrants); ``bits``: `scaled_plan`."""
        first, self.replicate = self.replicate, self.replicate + size.replicates
        marks = self.marks
        at = int(np.searchsorted(marks, size.rounds))
        groups = [
            [i for i, e in enumerate(entrants) if e.federated is kind] for kind in (True, False)
        ]
        times = self.silos / size.silos
        worlds = [scaled_environment(self.environment, times), self.environment]
        plans = [
            scaled_plan(e.plan, e.node, size.silos, bits=bits)
            if e.federated
            else replace(e.plan, silos=size.silos)  # a sample of all
            for e in entrants
        ]

        def job(work: tuple[int, int]) -> tuple[int, int, list[float]]:
            replicate, kind = work
            world = worlds[kind].open(self.seed, first + replicate, size.silos)
            assert isinstance(world, environments.Environment)
            chosen = [plans[i] for i in groups[kind]]
            outcomes = drive.play(world, chosen, marks, threads=inner, last=size.rounds)
            curves = [o.group_regret / size.silos for o in outcomes]
            return replicate, kind, [_extended(c, marks, at, self.horizon) for c in curves]

        works = [(r, kind) for r in range(size.replicates) for kind in (0, 1) if groups[kind]]
        inner = max(1, self.threads // len(works))
        finals = np.zeros((size.replicates, len(entrants)))
        facts = self.environment.facts(size.silos, self.horizon)
        terms = [
            memory.of_pass(worlds[kind], facts, [plans[i] for i in group], len(marks), inner)
            for kind, group in enumerate(groups)
            if group
        ]
        workers = memory.that_fit(max(terms, key=memory.total), min(self.threads, len(works)))
        with ThreadPoolExecutor(workers) as pool:
            for replicate, kind, found in pool.map(job, works):
                finals[replicate, groups[kind]] = found
        return finals

    def difference(self, a: str, b: str) -> tuple[float, float]:
        """Mean and standard error of a - b, regret of one silo, paired; of one stage."""
        return mean_and_stderr(self.played[a] - self.played[b])

    def announce(self, stage: str, count: int, size: Size) -> str:
        """A stage in a sentence."""
        silos = f"all {self.silos} silos"
        if size.silos < self.silos:
            silos = f"{size.silos} silos for all {self.silos}"
        rounds = "" if size.rounds >= self.horizon else f", the first {size.rounds} rounds"
        times = f"{size.replicates} replicate{'s' if size.replicates > 1 else ''}"
        return f"{stage}: {count} systems, {times} of {silos}{rounds}"


def _extended(curve: np.ndarray, marks: np.ndarray, at: int, horizon: int) -> float:
    """Regret at the end, from the curve up to checkpoint ``at``, at the pace it had there.

    The pace of a learner falls, so this is rather too much than too little.
    """
    if at == len(marks) - 1:
        return float(curve[-1])
    before = min(3 * at // 4, at - 1)
    start, round_ = (0.0, 0) if before < 0 else (curve[before], int(marks[before]))
    pace = (curve[at] - start) / (int(marks[at]) - round_)
    return float(curve[at] + pace * (horizon - int(marks[at])))


def level(difference: tuple[float, float]) -> bool:
    """Whether a paired difference is within two standard errors of 0, or has none."""
    mean, stderr = difference
    return math.isnan(stderr) or abs(mean) <= 2.0 * stderr
