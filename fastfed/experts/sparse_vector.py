"""Fed-SVT as plain data, and its server: an expert is kept until it has lost too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._random import CHOICE, QUERY, THRESHOLD, NoiseSource, is_exact
from fastfed._sampling import Laplaces
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import Decider, start_expert
from fastfed.experts.sums import SumsPlan
from fastfed.privacy import exact
from fastfed.privacy.laplace import standard_laplace
from fastfed.privacy.sparse_switching import SparseSwitching


@dataclass(frozen=True, kw_only=True)
class SparseVectorPlan(SumsPlan):
    """One curve of Fed-SVT."""

    noise: SparseSwitching
    threshold: float  # L, of the sum of all clients' losses
    floor: float  # m L*: losses below it count as it

    def decider(self, noise: NoiseSource) -> Decider:
        return SparseVector(self, noise)


class SparseVector:
    """Algorithm 5 of gao-2024, corrected as the module ``fed_svt`` says."""

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        self.plan = plan
        self._decisions = (ExactDecisions if is_exact(noise) else FloatDecisions)(plan, noise)
        self.noise = noise
        self.switches = 0  # k
        self._release = 0
        self._expert = 0
        self._total = np.zeros(plan.experts)
        self._before = 0.0  # what the expert had lost when it was chosen
        self._limit = self._decisions.threshold(0)

    def start(self) -> ExpertChoice:
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        plan, release = self.plan, self._release + 1
        lost = self._total + total
        expert, before, limit, switches = self._expert, self._before, self._limit, self.switches
        if switches < plan.noise.switches:
            if self._decisions.above(lost[expert] - before, limit, release):
                expert = self._decisions.chosen(np.maximum(lost, plan.floor), release)
                limit = self._decisions.threshold(switches + 1)
                before, switches = float(lost[expert]), switches + 1
            self._decisions.done()
        choice = ExpertChoice(release, expert)
        self._total, self._release = lost, release
        self._expert, self._before, self._limit, self.switches = expert, before, limit, switches
        return choice

    @property
    def events(self) -> dict[str, int]:
        return {
            "switches": self.switches,
            "switches_spent": int(self.switches == self.plan.noise.switches),
        }


class FloatDecisions:
    """Comparisons and choices in float64, from uniforms of 53 bits: those of simulations."""

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._drawn: dict[tuple[int, int], float] = {}

    def _uniform(self, purpose: int, release: int) -> float:
        """A draw of this exchange: kept until it is over, for a source that fails midway."""
        key = purpose, release
        if key not in self._drawn:
            self._drawn[key] = self.noise.uniform(purpose, release)
        return self._drawn[key]

    def threshold(self, switches: int) -> float:
        """L plus noise, fresh for every expert."""
        drawn = standard_laplace(self._uniform(THRESHOLD, switches + 1))
        return self.plan.threshold + self.plan.noise.threshold_scale * drawn

    def above(self, query: float, limit: float, release: int) -> bool:
        """Whether the query with its noise is above the limit."""
        drawn = standard_laplace(self._uniform(QUERY, release))
        return bool(query + self.plan.noise.query_scale * drawn > limit)

    def chosen(self, costs: np.ndarray, release: int) -> int:
        """The next expert."""
        return self.plan.noise.choices.choose(costs, self._uniform(CHOICE, release))

    def done(self) -> None:
        """The exchange is over: its draws are not asked for again."""
        self._drawn = {}


class ExactDecisions:
    """The same as for real numbers, from ideal draws (fastfed.privacy.exact).

    Losses are multiples of a unit u, so that one that is replaced moves a sum by 1 + u at most:
    noise is larger, and the choice's range smaller, by that factor.
    """

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._moved = 1.0 + 2.0 * exact.quantum(plan.silos * plan.horizon) + 2.0**-48
        self._kept: dict[tuple[int, int], Any] = {}

    def _draw(self, purpose: int, release: int) -> Any:
        key = purpose, release
        if key not in self._kept:
            source = self.noise.ideal_uniforms if purpose == CHOICE else self.noise.ideal_draws
            self._kept[key] = source(purpose, release, 1)
        return self._kept[key]

    def threshold(self, switches: int) -> Laplaces:
        """The noise on L, fresh for every expert."""
        drawn: Laplaces = self._draw(THRESHOLD, switches + 1)
        return drawn

    def above(self, query: float, limit: Laplaces, release: int) -> bool:
        """Whether the query with its noise is above the limit with its own."""
        noise, larger = self.plan.noise, self._moved
        return exact.above(
            float(query),
            noise.query_scale * larger,
            self._draw(QUERY, release),
            self.plan.threshold,
            noise.threshold_scale * larger,
            limit,
        )

    def chosen(self, costs: np.ndarray, release: int) -> int:
        """The next expert."""
        choices = self.plan.noise.choices
        rate = choices.eta / (2.0 * choices.sensitivity * self._moved)
        ones = np.ones(len(costs), dtype=np.int64)
        at, _ = exact.choose(costs, rate, ones, self._draw(CHOICE, release))
        return at

    def done(self) -> None:
        """The exchange is over: its draws are not asked for again."""
        self._kept = {}
