"""Baselines without privacy: follow the leader, and Hedge.

Follow the leader (Cesa-Bianchi and Lugosi 2006, Section 3.2) is the reference for i.i.d. losses,
on which it learns as fast as possible. An adversary can make it lose in every round. Hedge
(Theorem 2.2 in the same book) is the reference for adversarial losses. Its weights are proportional
to exp(-eta S_n), where S_n is the cumulative loss of expert n, averaged over clients. With
eta = sqrt(8 ln d / (N T)) its regret per client is at most sqrt(N T ln d / 2), because a phase of
N rounds is equivalent to one round with losses up to N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import msgspec
import numpy as np

from fastfed._kernels import experts as kernels
from fastfed._random import NoiseSource
from fastfed._system import account
from fastfed._validate import number
from fastfed.experts.deciders import OneExpert
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    NO_PRIVACY,
    Algorithm,
    CompiledRule,
    Decider,
    ExpertChoice,
    ProblemSpec,
    Rounds,
    Stretches,
    SumsPlan,
    System,
    check_linear,
    check_phase_length,
)
from fastfed.privacy.account import Claim, sealed

# ---- Follow the leader ---------------------------------------------------------------------------


class LeaderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a follow-the-leader curve.

    Parameters
    ----------
    phase_length : int, default 1
        N, the number of rounds between two exchanges.
    """

    phase_length: int = 1


@dataclass(frozen=True, kw_only=True)
class LeaderPlan(SumsPlan):
    """Plan of one follow-the-leader curve."""

    def decider(self, noise: NoiseSource) -> Decider:
        """Return a server in its initial state."""
        return Leader(self, noise)


class Leader(OneExpert):
    """State of the server, which chooses the expert of least cumulative loss.

    If several experts have the least loss, the server chooses the one with the lowest number.
    """

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release", "_expert", "_total", "switches")

    def __init__(self, plan: LeaderPlan, noise: NoiseSource) -> None:
        super().__init__(plan, noise)
        self._total = np.zeros(plan.experts)

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Choose the leader, given the sums (d,) of losses since the last exchange."""
        self._release += 1
        self._total += total
        leader = int(self._total.argmin())
        self.switches += leader != self._expert
        self._expert = leader
        return ExpertChoice(self._release, leader)

    def decide_many(self, stretches: Stretches) -> np.ndarray:
        """Return the chosen experts (n,) of n >= 1 stretches.

        The last stretch must begin with an exchange.
        """
        sums, unit, has_exchange, cumulative = stretches
        chosen, switches = kernels.follow(sums, has_exchange, cumulative, self._expert)
        self._total = unit * cumulative
        self._release += int(has_exchange.sum())
        self.switches += switches
        self._expert = int(chosen[-1])
        return chosen

    def decide_rounds(self, rounds: Rounds, last: int) -> int:
        """Run the next rounds up to ``last``, deciding in each; return the last chosen expert."""
        self._expert, self._release, changes = rounds.run(
            CompiledRule("leader"), self._expert, self._release, last=last
        )
        self.switches += changes
        self._total = (rounds.lost - rounds.latest).astype(np.float64)
        return self._expert


def build_leader(config: LeaderConfig, problem: ProblemSpec) -> System:
    """Return the plan, certificate and bounds of one follow-the-leader curve."""
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


# ---- Hedge ---------------------------------------------------------------------------------------


class HedgeConfig(LeaderConfig, frozen=True, kw_only=True):
    """Keys of a hedge curve, in addition to the key of `LeaderConfig`.

    Parameters
    ----------
    learning_rate : float, optional
        eta > 0, per unit of average loss; by default sqrt(8 ln d / (N T)).
    """

    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0.0)


@dataclass(frozen=True, kw_only=True)
class HedgePlan(SumsPlan):
    """Plan of one hedge curve."""

    learning_rate: float

    def decider(self, noise: NoiseSource) -> Decider:
        """Return a server in its initial state."""
        return Hedge(self)

    def sends_weights(self, release: int) -> bool:
        """Return True: every answer holds weights."""
        return True

    def bits_down(self, exchanges: np.ndarray) -> np.ndarray:
        """Return the bits of d weights in each exchange; the uniform start is not sent."""
        return 64.0 * self.experts * self.silos * exchanges


#: Largest number of exponentials that a server stores.
MAX_EXPONENTIALS = 2**18
#: Rounds that `Rounds.run` computes together.
MAX_ROUNDS = 16


class Exponentials:
    """A table of exp(rate k unit / silos) for k = 0, 1, ..., where the rate -eta is negative.

    These are the weights of experts, up to a common factor.
    Entry k is for an expert that lost k times ``unit`` more than the best expert. The table grows
    on request. Runs with equal arguments share one table (`exponentials`).
    """

    def __init__(self, rate: float, silos: int, unit: float) -> None:
        #: Arguments of `exponentials` in its order.
        self._arguments = unit, silos, rate
        self.table = np.zeros(0)

    def up_to(self, size: int) -> np.ndarray:
        """Return a table of at least ``size`` entries."""
        table = self.table
        if size > len(table):
            fresh = np.empty(size - len(table))
            kernels.hedge_exponents(len(table), fresh, *self._arguments)
            table = self.table = np.concatenate([table, np.exp(fresh, out=fresh)])
        return table


#: The tables of the last curves, for example for the next replicate.
exponentials = lru_cache(maxsize=8)(Exponentials)


class Hedge:
    """State of the server, which computes exponential weights."""

    events: dict[str, int] = {}  # noqa: RUF012

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release", "_total")

    def __init__(self, plan: HedgePlan) -> None:
        self.plan = plan
        self._release = 0
        self._total = np.zeros(plan.experts)
        self._rows = np.zeros((0, plan.experts))  # result of decide_many; the next call reuses it

    def start(self) -> ExpertChoice:
        """Return uniform weights."""
        return ExpertChoice(0, None, np.full(self.plan.experts, 1.0 / self.plan.experts))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Return the weights, given the sums (d,) of losses since the last exchange."""
        self._release += 1
        self._total += total
        excess_loss = (self._total - self._total.min()) / self.plan.silos
        weights = np.exp(-self.plan.learning_rate * excess_loss)
        return ExpertChoice(self._release, None, weights / weights.sum())

    def decide_many(self, stretches: Stretches) -> np.ndarray:
        """Return the weights (k, d) after each of the k exchanges in the stretches.

        The last stretch must begin with an exchange. The next call overwrites the result.
        """
        sums, unit, has_exchange, cumulative = stretches
        count = int(np.count_nonzero(has_exchange))
        if len(self._rows) < count:
            self._rows = np.empty((count, self.plan.experts))
        weights = self._rows[:count]
        rate, silos = -self.plan.learning_rate, self.plan.silos
        units, shared = kernels.hedge_spread(sums, cumulative) + 1, exponentials(rate, silos, unit)
        # If losses differ by few units, a table has fewer exponentials to compute than there are
        # weights.
        if units - len(shared.table) <= weights.size and units <= MAX_EXPONENTIALS:
            kernels.hedge_weights(sums, has_exchange, cumulative, shared.up_to(units), weights)
        else:
            kernels.hedge(sums, has_exchange, cumulative, unit, silos, rate, weights)
            kernels.to_weights(np.exp(weights, out=weights))
        self._total = unit * cumulative
        self._release += count
        return weights

    def decide_rounds(self, rounds: Rounds, last: int) -> np.ndarray:
        """Run the next rounds up to ``last``, deciding in each; return the last weights (d,).

        Stop earlier if the losses of experts differ too much for a table of exponentials.
        """
        plan, lost = self.plan, rounds.lost
        shared = exponentials(-plan.learning_rate, plan.silos, 1.0)
        # The best expert's weight rounds to 1 if all others are at most 2^-55 / d of it. This holds
        # if they have lost `alone` units more.
        exponent = math.log(2.0**55 * plan.experts)
        alone = math.ceil(min(exponent * plan.silos / plan.learning_rate, 2.0**62))
        while rounds.done < last:
            units = int(lost.max() - lost.min()) + MAX_ROUNDS * plan.silos + 1
            if units > MAX_EXPONENTIALS:
                break
            # A local name, because runs in other threads may replace the shared table.
            table = shared.table
            if units > len(table):
                # Losses of experts rarely differ by more than `alone` units.
                more = min(2 * len(table), alone + alone // 8, MAX_EXPONENTIALS)
                table = shared.up_to(max(units, more))
            rule = CompiledRule("hedge", table=table, alone=alone)
            _, self._release, _ = rounds.run(rule, 0, self._release, last=last)
        losses_before = lost - rounds.latest
        self._total = losses_before.astype(np.float64)
        weights = np.empty((1, plan.experts))
        no_losses, has_exchange = np.zeros((1, plan.experts), np.int64), np.ones(1, np.uint8)
        kernels.hedge(
            no_losses, has_exchange, losses_before, 1.0, plan.silos, -plan.learning_rate, weights
        )
        kernels.to_weights(np.exp(weights, out=weights))
        return weights[0]


def build_hedge(config: HedgeConfig, problem: ProblemSpec) -> System:
    """Return the plan, certificate and bounds of one hedge curve."""
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
