"""Fed-SVT as plain data, and its server: an expert is kept until it has lost too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._random import CHOICE, QUERY, THRESHOLD, IdealSource, NoiseSource, is_exact
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import Decider, start_expert
from fastfed.experts.sums import SumsPlan
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, Described, of_record, released
from fastfed.privacy.laplace import standard_laplace
from fastfed.privacy.sparse_switching import SparseSwitching


@dataclass(frozen=True, kw_only=True)
class SparseVectorPlan(SumsPlan):
    """One curve of Fed-SVT."""

    noise: SparseSwitching
    threshold: float  # L, of the sum of all clients' losses
    floor: float  # m L*: losses below it count as it

    def decider(self, noise: NoiseSource) -> Decider:
        return ExactSparseVector(self, noise) if is_exact(noise) else SparseVector(self, noise)


@released.register
def _(plan: SparseVectorPlan) -> tuple[Described, ...]:
    return (of_record(plan.noise, plan.privacy or Claim(source="none")),)


class SparseVector:
    """Algorithm 5 of gao-2024, corrected as the module ``fed_svt`` says; decisions in float64, from
    uniforms of 53 bits, as simulations make them."""

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self.switches = 0  # k
        self._release = 0
        self._expert = 0
        self._total = np.zeros(plan.experts)
        self._before = 0.0  # what the expert had lost when it was chosen
        self._drawn: dict[tuple[int, int], Any] = {}
        self._limit = self._threshold(0)
        self._drawn = {}

    def _draw(self, purpose: int, release: int) -> Any:
        """A draw of this exchange: kept until it is over, for a source that fails midway."""
        key = purpose, release
        if key not in self._drawn:
            self._drawn[key] = self._source(purpose, release)
        return self._drawn[key]

    def _source(self, purpose: int, release: int) -> Any:
        return self.noise.uniform(purpose, release)

    def _threshold(self, switches: int) -> Any:
        """L plus noise, fresh for every expert."""
        drawn = standard_laplace(self._draw(THRESHOLD, switches + 1))
        return self.plan.threshold + self.plan.noise.threshold_scale * drawn

    def _above(self, query: float, release: int) -> bool:
        """Whether the query with its noise is above the threshold with its own."""
        drawn = standard_laplace(self._draw(QUERY, release))
        return bool(query + self.plan.noise.query_scale * drawn > self._limit)

    def _choose(self, costs: np.ndarray, release: int) -> int:
        """The next expert."""
        return self.plan.noise.choices.choose(costs, self._draw(CHOICE, release))

    def start(self) -> ExpertChoice:
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        plan, release = self.plan, self._release + 1
        lost = self._total + total
        expert, before, limit, switches = self._expert, self._before, self._limit, self.switches
        if switches < plan.noise.switches and self._above(lost[expert] - before, release):
            expert = self._choose(np.maximum(lost, plan.floor), release)
            limit = self._threshold(switches + 1)
            before, switches = float(lost[expert]), switches + 1
        choice = ExpertChoice(release, expert)
        # Everything is computed: from here on nothing can fail.
        self._total, self._release, self._drawn = lost, release, {}
        self._expert, self._before, self._limit, self.switches = expert, before, limit, switches
        return choice

    @property
    def events(self) -> dict[str, int]:
        return {
            "switches": self.switches,
            "switches_spent": int(self.switches == self.plan.noise.switches),
        }


class ExactSparseVector(SparseVector):
    """The same with decisions as for real numbers, from ideal draws (fastfed.privacy.exact).

    Losses are multiples of a unit u, so that one that is replaced moves a sum by 1 + u at most:
    noise is larger, and the choice's range smaller, by more than that factor.
    """

    noise: IdealSource

    def __init__(self, plan: SparseVectorPlan, noise: IdealSource) -> None:
        self._unit = exact.quantum(plan.silos * plan.horizon)
        self._moved = 1.0 + 2.0 * self._unit + 2.0**-48
        super().__init__(plan, noise)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        exact.check_fixed(total, self._unit, "the sum of the reports")
        return super().decide(total)

    def _source(self, purpose: int, release: int) -> Any:
        if purpose == CHOICE:
            return self.noise.ideal_uniforms(purpose, release, 1)
        return self.noise.ideal_draws(purpose, release, 1)

    def _threshold(self, switches: int) -> Any:
        return self._draw(THRESHOLD, switches + 1)

    def _above(self, query: float, release: int) -> bool:
        noise, larger = self.plan.noise, self._moved
        return exact.above(
            float(query),
            noise.query_scale * larger,
            self._draw(QUERY, release),
            self.plan.threshold,
            noise.threshold_scale * larger,
            self._limit,
        )

    def _choose(self, costs: np.ndarray, release: int) -> int:
        choices = self.plan.noise.choices
        rate = choices.eta / (2.0 * choices.sensitivity * self._moved)
        ones = np.ones(len(costs), dtype=np.int64)
        at, _ = exact.choose(costs, rate, ones, self._draw(CHOICE, release))
        return at
