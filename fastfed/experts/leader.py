"""Follow the leader: the expert that has lost least so far, without privacy.

A reference for what privacy costs (Cesa-Bianchi and Lugosi 2006, Section 3.2): against losses of
one law it learns as fast as can be; an adversary that knows it makes it lose in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from fastfed._random import NoiseSource
from fastfed._system import account
from fastfed._validate import integer
from fastfed.experts.lower_lines import lower_lines
from fastfed.experts.messages import ExpertChoice
from fastfed.experts.plan import NO_PRIVACY, Decider, start_expert
from fastfed.experts.setting import Setting
from fastfed.experts.sums import SumsPlan, check_linear, check_phase_length
from fastfed.experts.system import Algorithm, System
from fastfed.privacy.account import Claim, sealed


class LeaderKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a follow-the-leader curve."""

    phase_length: int = 1  # N

    def __post_init__(self) -> None:
        integer("phase_length", self.phase_length, at_least=1)


@dataclass(frozen=True, kw_only=True)
class LeaderPlan(SumsPlan):
    """One curve of follow-the-leader."""

    def decider(self, noise: NoiseSource) -> Decider:
        return Leader(self, noise)


class Leader:
    """The expert of least loss of all clients, the first one of equals."""

    def __init__(self, plan: LeaderPlan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self._release = 0
        self._expert = 0
        self._total = np.zeros(plan.experts)
        self.switches = 0

    def start(self) -> ExpertChoice:
        self._expert = start_expert(self.plan.experts, self.noise)
        return ExpertChoice(0, self._expert)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        self._release += 1
        self._total += total
        leader = int(self._total.argmin())
        self.switches += leader != self._expert
        self._expert = leader
        return ExpertChoice(self._release, leader)

    @property
    def events(self) -> dict[str, int]:
        return {"switches": self.switches}


def build(keys: LeaderKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    check_linear("follow-the-leader", setting)
    plan = LeaderPlan(
        silos=setting.silos,
        horizon=setting.horizon,
        experts=setting.experts,
        protocol=NO_PRIVACY,
        privacy=Claim(source=NO_PRIVACY.source),
        phase_length=check_phase_length(keys.phase_length, setting),
    )
    plan = sealed(plan)
    return System(
        "follow-the-leader",
        plan,
        account(plan, setting),
        partial(lower_lines, plan, setting),
    )


ALGORITHM = Algorithm(
    id="follow-the-leader",
    paper="cesa-bianchi-lugosi-2006",
    summary="the expert that has lost least at all clients, not private",
    keys=LeaderKeys,
    build=build,
)
