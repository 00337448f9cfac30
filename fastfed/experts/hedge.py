"""Hedge: exponential weights of all experts, without privacy.

The reference of adversarial losses (Cesa-Bianchi and Lugosi 2006, Theorem 2.2): weights in
proportion to exp(-eta S_n), where S_n is what expert n has lost on average over clients. With eta =
sqrt(8 ln d / (N T)) its regret per client is at most sqrt(N T ln d / 2): a phase of N rounds is one
round of losses up to N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from fastfed._random import NoiseSource
from fastfed._system import account
from fastfed._validate import integer, number
from fastfed.experts.lower_lines import lower_lines
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import NO_PRIVACY, Decider
from fastfed.experts.setting import Setting
from fastfed.experts.sums import SumsPlan, check_linear, check_phase_length
from fastfed.experts.system import Algorithm, System
from fastfed.privacy.account import Claim, sealed


class HedgeKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a hedge curve."""

    phase_length: int = 1  # N
    #: eta, per unit of average loss; by default sqrt(8 ln d / (N T)).
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        integer("phase_length", self.phase_length, at_least=1)
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0.0)


@dataclass(frozen=True, kw_only=True)
class HedgePlan(SumsPlan):
    """One curve of hedge."""

    learning_rate: float

    def decider(self, noise: NoiseSource) -> Decider:
        return Hedge(self)

    def sends_weights(self, release: int) -> bool:
        return True

    def bits_down(self, exchanges: int) -> float:
        """Weights of all experts each time; at the start all are equal."""
        return 64.0 * self.experts * self.silos * exchanges


class Hedge:
    """Exponential weights."""

    events: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, plan: HedgePlan) -> None:
        self.plan = plan
        self._release = 0
        self._total = np.zeros(plan.experts)

    def start(self) -> ExpertChoice:
        return ExpertChoice(0, None, np.full(self.plan.experts, 1.0 / self.plan.experts))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        self._release += 1
        self._total += total
        behind = (self._total - self._total.min()) / self.plan.silos
        weights = np.exp(-self.plan.learning_rate * behind)
        return ExpertChoice(self._release, None, weights / weights.sum())


def build(keys: HedgeKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_linear("hedge", setting)
    length = check_phase_length(keys.phase_length, setting)
    rate = keys.learning_rate
    if rate is None:
        rate = math.sqrt(8.0 * math.log(max(setting.experts, 2)) / (length * setting.horizon))
    plan = HedgePlan(
        silos=setting.silos,
        horizon=setting.horizon,
        experts=setting.experts,
        protocol=NO_PRIVACY,
        privacy=Claim(source=NO_PRIVACY.source),
        phase_length=length,
        learning_rate=rate,
    )
    plan = sealed(plan)
    return System("hedge", plan, account(plan, setting), partial(lower_lines, plan, setting))


ALGORITHM = Algorithm(
    id="hedge",
    paper="cesa-bianchi-lugosi-2006",
    summary="exponential weights of all experts, not private",
    keys=HedgeKeys,
    build=build,
)
