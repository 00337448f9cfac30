"""Baselines without privacy: follow the leader, and Hedge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from fastfed._random import NoiseSource
from fastfed._system import account
from fastfed._validate import integer, number
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.parties import SumsPlan, check_linear, check_phase_length
from fastfed.experts.plan import (
    NO_PRIVACY,
    Algorithm,
    Decider,
    ExpertChoice,
    ProblemSpec,
    System,
    start_expert,
)
from fastfed.privacy.account import Claim, sealed

# ---- Follow the leader: the expert that has lost least so far, without privacy -------------------
# A reference for what privacy costs (Cesa-Bianchi and Lugosi 2006, Section 3.2): against losses of
# one law it learns as fast as can be; an adversary that knows it makes it lose in every round.


class LeaderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of a follow-the-leader curve."""

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


def build_leader(config: LeaderConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one curve."""
    check_linear("follow-the-leader", problem)
    plan = LeaderPlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=NO_PRIVACY,
        privacy=Claim(source=NO_PRIVACY.source),
        phase_length=check_phase_length(config.phase_length, problem),
    )
    plan = sealed(plan)
    return System(
        "follow-the-leader",
        plan,
        account(plan, problem),
        partial(lower_bound_curves, plan, problem),
    )


LEADER = Algorithm(
    id="follow-the-leader",
    paper="cesa-bianchi-lugosi-2006",
    summary="the expert that has lost least at all clients, not private",
    config=LeaderConfig,
    build=build_leader,
)


# ---- Hedge: exponential weights of all experts, without privacy ----------------------------------
# The reference of adversarial losses (Cesa-Bianchi and Lugosi 2006, Theorem 2.2): weights in
# proportion to exp(-eta S_n), where S_n is what expert n has lost on average over clients. With eta
# = sqrt(8 ln d / (N T)) its regret per client is at most sqrt(N T ln d / 2): a phase of N rounds is
# one round of losses up to N.


class HedgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of a hedge curve."""

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


def build_hedge(config: HedgeConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one curve."""
    check_linear("hedge", problem)
    length = check_phase_length(config.phase_length, problem)
    rate = config.learning_rate
    if rate is None:
        rate = math.sqrt(8.0 * math.log(max(problem.experts, 2)) / (length * problem.horizon))
    plan = HedgePlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=NO_PRIVACY,
        privacy=Claim(source=NO_PRIVACY.source),
        phase_length=length,
        learning_rate=rate,
    )
    plan = sealed(plan)
    return System("hedge", plan, account(plan, problem), partial(lower_bound_curves, plan, problem))


HEDGE = Algorithm(
    id="hedge",
    paper="cesa-bianchi-lugosi-2006",
    summary="exponential weights of all experts, not private",
    config=HedgeConfig,
    build=build_hedge,
)
