"""Fed-SVT as plain data, and its server: an expert is kept until it has lost too much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed._random import CHOICE, QUERY, THRESHOLD, NoiseSource
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import Decider
from fastfed.experts.sums import SumsPlan
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
        self.plan, self.noise = plan, noise
        self.switches = 0  # k
        self._release = 0
        self._expert = 0
        self._total = np.zeros(plan.experts)
        self._before = 0.0  # what the expert had lost when it was chosen
        self._limit = self._threshold()

    def _threshold(self) -> float:
        """L plus noise, fresh for every expert."""
        drawn = standard_laplace(self.noise.uniform(THRESHOLD, self.switches + 1))
        return self.plan.threshold + self.plan.noise.threshold_scale * drawn

    def start(self) -> ExpertChoice:
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        plan, mechanism = self.plan, self.plan.noise
        self._release += 1
        self._total += total
        if self.switches < mechanism.switches:
            query = self._total[self._expert] - self._before
            drawn = standard_laplace(self.noise.uniform(QUERY, self._release))
            if query + mechanism.query_scale * drawn > self._limit:
                costs = np.maximum(self._total, plan.floor)
                uniform = self.noise.uniform(CHOICE, self._release)
                self._expert = mechanism.choices.choose(costs, uniform)
                self._before = float(self._total[self._expert])
                self.switches += 1
                self._limit = self._threshold()
        return ExpertChoice(self._release, self._expert)

    @property
    def events(self) -> dict[str, int]:
        return {
            "switches": self.switches,
            "switches_spent": int(self.switches == self.plan.noise.switches),
        }


def start_expert(experts: int, noise: NoiseSource) -> int:
    """A uniformly random expert before the first round."""
    return int(noise.uniform(CHOICE, 0) * experts)
