"""Base classes of servers that choose one expert for all clients: start, draws and event counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from fastfed._random import CHOICE, IdealSource, NoiseSource
from fastfed.experts.plan import ExpertChoice, ExpertPlan, start_expert
from fastfed.privacy import exact
from fastfed.privacy.mechanisms.laplace import Exponential


class OneExpert(ABC):
    """State of a server that begins with a uniformly random expert and counts switches."""

    def __init__(self, plan: ExpertPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self.switches = 0
        self._release = 0
        self._expert = 0

    def start(self) -> ExpertChoice:
        """Choose a uniformly random expert."""
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    @abstractmethod
    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Choose an expert, given the sums (d,) of all clients' losses since the last exchange."""

    @property
    def events(self) -> dict[str, int]:
        """Return the number of switches so far."""
        return {"switches": self.switches}


class Chooser(OneExpert):
    """State of a server that draws experts at random, in float64, from uniforms of 53 bits.

    Each random draw of an exchange is cached until `decide` succeeds, so that a call repeated after
    a failure makes the same decision.
    """

    def __init__(self, plan: ExpertPlan, noise: NoiseSource) -> None:
        super().__init__(plan, noise)
        self._draws: dict[tuple[int, int], Any] = {}

    @property
    @abstractmethod
    def _choices(self) -> Exponential:
        """The exponential mechanism that draws an expert."""

    def _draw(self, purpose: int, number: int) -> Any:
        """Return the random draw for a purpose (a key of the noise source) and a number.

        It is drawn at the first call, and cached until `decide` succeeds.
        """
        key = purpose, number
        if key not in self._draws:
            self._draws[key] = self._draw_from_source(purpose, number)
        return self._draws[key]

    def _draw_from_source(self, purpose: int, number: int) -> Any:
        """Draw from the noise source; `_draw` caches the result."""
        return self.noise.uniform(purpose, number)

    def _draw_expert(self, costs: np.ndarray, release: int) -> int:
        """Draw the next expert by the exponential mechanism, given the costs (d,) of experts."""
        return self._choices.choose(costs, self._draw(CHOICE, release))


class SeldomChooser(Chooser):
    """State of a server that draws experts ``plan.noise.switches`` times at most, by cumulative
    loss.

    ``switches`` counts draws, including draws of the current expert.
    """

    plan: Any

    def __init__(self, plan: ExpertPlan, noise: NoiseSource) -> None:
        super().__init__(plan, noise)
        self._total = np.zeros(plan.experts)

    @property
    def _choices(self) -> Exponential:
        """The mechanism that draws an expert."""
        choices: Exponential = self.plan.noise.choices
        return choices

    @property
    def events(self) -> dict[str, int]:
        """Return the number of draws so far, and 1 if no draw remains, else 0."""
        spent = self.switches == self.plan.noise.switches
        return {**super().events, "switches_spent": int(spent)}


class ExactChooser(Chooser):
    """Mixin for servers in deployments: decisions have no rounding error (fastfed.privacy.exact).

    Losses are rounded to multiples of a unit u, so that replacing a loss changes a sum by at most
    1 + u instead of 1. Rates are decreased and noise scales increased by more than this factor, so
    that the plan's account stays valid.
    """

    noise: IdealSource

    def __init__(self, plan: ExpertPlan, noise: IdealSource) -> None:
        # The unit u, and a bound on the change of a sum if one loss is replaced. 2^-48 covers the
        # rounding of rates and scales.
        self._unit = exact.quantum(plan.silos * plan.horizon)
        self._sensitivity = 1.0 + 2.0 * self._unit + 2.0**-48
        super().__init__(plan, noise)

    @property
    def _rate(self) -> float:
        """The rate r: experts of cost c are drawn with probability proportional to exp(-r c)."""
        choices = self._choices
        return choices.eta / (2.0 * choices.sensitivity * self._sensitivity)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Choose an expert, given the sums (d,) of losses, which must be multiples of the unit."""
        exact.check_fixed(total, self._unit, "the sum of the reports")
        return super().decide(total)  # type: ignore[safe-super]

    def _draw_from_source(self, purpose: int, number: int) -> Any:
        """Return a uniform real number whose digits are drawn as decisions need them."""
        return self.noise.ideal_uniforms(purpose, number, 1)

    def _draw_expert(self, costs: np.ndarray, release: int) -> int:
        """Draw the next expert exactly, given the costs (d,) of experts."""
        equal_weights = np.ones(len(costs), dtype=np.int64)
        expert, _ = exact.choose(costs, self._rate, equal_weights, self._draw(CHOICE, release))
        return expert
