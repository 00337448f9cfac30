"""Fed-SVT as plain data, and its server: an expert is kept until it has lost too much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed._random import CHOICE, QUERY, THRESHOLD, NoiseSource
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import Decider, start_expert
from fastfed.experts.sums import SumsPlan
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
        return SparseVector(self, noise)


@released.register
def _(plan: SparseVectorPlan) -> tuple[Described, ...]:
    return (of_record(plan.noise, plan.privacy or Claim(source="none")),)


class SparseVector:
    """Algorithm 5 of gao-2024, corrected as the module ``fed_svt`` says."""

    def __init__(self, plan: SparseVectorPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self.switches = 0  # k
        self._release = 0
        self._expert = 0
        self._total = np.zeros(plan.experts)
        self._before = 0.0  # what the expert had lost when it was chosen
        self._drawn: dict[int, float] = {}
        self._limit = self._threshold(0)
        self._drawn = {}

    def _uniform(self, purpose: int, release: int) -> float:
        """A draw of this exchange: kept until it is over, for a source that fails midway."""
        if purpose not in self._drawn:
            self._drawn[purpose] = self.noise.uniform(purpose, release)
        return self._drawn[purpose]

    def _laplace(self, purpose: int, release: int) -> float:
        return standard_laplace(self._uniform(purpose, release))

    def _threshold(self, switches: int) -> float:
        """L plus noise, fresh for every expert."""
        drawn = self._laplace(THRESHOLD, switches + 1)
        return self.plan.threshold + self.plan.noise.threshold_scale * drawn

    def start(self) -> ExpertChoice:
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        plan, mechanism, release = self.plan, self.plan.noise, self._release + 1
        lost = self._total + total
        if self.switches < mechanism.switches:
            query = lost[self._expert] - self._before
            if query + mechanism.query_scale * self._laplace(QUERY, release) > self._limit:
                costs = np.maximum(lost, plan.floor)
                chosen = mechanism.choices.choose(costs, self._uniform(CHOICE, release))
                self._limit = self._threshold(self.switches + 1)
                self._expert, self._before = chosen, float(lost[chosen])
                self.switches += 1
            self._drawn = {}
        self._total, self._release = lost, release
        return ExpertChoice(release, self._expert)

    @property
    def events(self) -> dict[str, int]:
        return {
            "switches": self.switches,
            "switches_spent": int(self.switches == self.plan.noise.switches),
        }
