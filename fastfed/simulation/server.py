"""Federations with a server in both drivers.

The step driver is the readable truth: parties that exchange messages, one silo and round at a time.
The compiled driver (`compiled`) runs batches of rounds without Python, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import NoiseSource, SeededNoise, SummedNoise
from fastfed.bandits.silo import Silo
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import Bits, Report
from fastfed.protocols.randomizer import Shuffler, User
from fastfed.protocols.secure_sum import masked, simulated_keys
from fastfed.protocols.server import Server
from fastfed.simulation import compiled
from fastfed.simulation.driver import (
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Record,
    Term,
    linear_events,
    outcome_term,
    sent,
    silo_term,
    spaced,
)
from fastfed.simulation.snapshots import Snapshot


class Users:
    """The users of a single agent's batch, where they send for themselves."""

    def __init__(self, plan: Plan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self.clipped_features = self.clipped_rewards = 0
        self._sent: list[Report | Bits] = []

    def send(self, round: int, x: np.ndarray, reward: float) -> None:
        """The message of this round's user; those of an unfinished last batch send none."""
        if round > self.plan.end(self.plan.releases):
            return
        user = User(self.plan, round, self.noise)
        self._sent.append(user.message(x, reward))
        self.clipped_features += user.clipped_feature
        self.clipped_rewards += user.clipped_reward

    def messages(self) -> list[Any]:
        """Messages sent since the last call; none where silos send."""
        sent, self._sent = self._sent, []
        return sent


def run_steps(
    environment: environments.Environment, plans: Sequence[Plan], checkpoints: np.ndarray
) -> list[Outcome]:
    """Run all rounds of all plans, one silo and round at a time; records everything."""
    return [run_one(environment, plan, checkpoints) for plan in plans]


def simulated_masks(plan: Plan, silo: int, noise: SeededNoise) -> dict[int, bytes] | None:
    """Keys of a silo's masks where its messages have any; who knows the seed knows them all."""
    if not masked(plan, noise):
        return None
    return simulated_keys(noise.seed, silo, plan.silos, noise.replicate)


def run_one(
    environment: environments.Environment,
    plan: Plan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) of one plan; ``progress(1)`` hears of each round."""
    plan = check_plan(plan).simulated
    noise = SeededNoise(environment.seed, environment.replicate)
    silos = [Silo(plan, i, noise, simulated_masks(plan, i, noise)) for i in range(plan.silos)]
    of_sums = SummedNoise(noise.seed, noise.replicate) if plan.drawn_once else noise
    shuffler, server = Shuffler(plan, noise), Server(plan, of_sums)
    record = Record(plan.silos, plan.horizon, checkpoints)
    total = np.zeros(plan.statistic_size)
    users = Users(plan, noise)
    for round in range(1, (last or plan.horizon) + 1):
        for i, silo in enumerate(silos):
            features, means = environment.round(i, round)
            a = silo.select(features)
            y = environment.reward(i, round, means[a])
            if silo.acts_only:
                users.send(round, features[a], y)
                silo.served()
            else:
                silo.observe(y)
            record.note(i, round, a, y, means)
        if any(silo.due for silo in silos):
            if plan.trigger is not None:
                for silo in silos:
                    silo.ask()
            reports = users.messages() or [silo.report() for silo in silos]
            broadcast = server.combine(
                shuffler.shuffle(reports) if plan.protocol.shuffled else reports
            )
            for silo in silos:
                silo.receive(broadcast)
            total = broadcast.values
        record.close(round, server.release)
        if progress is not None:
            progress(1)
    return Outcome(
        group_regret=record.group_regret(),
        **sent(plan, record.releases),
        events=linear_events(
            # Every silo refreshes the same V; it is one event per synchronisation.
            silos[0].indefinite,
            sum(s.clipped_features for s in silos) + users.clipped_features,
            sum(s.clipped_rewards for s in silos) + users.clipped_rewards,
        ),
        total=total,
        actions=record.actions,
        rewards=record.rewards,
    )


# ---- Memory of the step driver -------------------------------------------------------------------

#: Of a silo of the step driver: its objects, and how many statistics its arrays are.
SILO, SILO_STATISTICS, LEVEL_STATISTICS = 3500, 5, 2


def step_terms(plan: Plan, checkpoints: int) -> list[Term]:
    """Of the step driver, whose silos are objects, and which records what it runs."""
    m, s = plan.silos, plan.statistic_size
    levels = plan.levels + (plan.trigger.levels(plan.horizon) if plan.trigger else 0)
    each = SILO + 8 * s * (SILO_STATISTICS + LEVEL_STATISTICS * levels)
    if plan.own is not None:
        # A factor and a mean; of a belief raw sums, what others released and what was sent.
        sums = 0 if plan.own.bound is not None else 4 if plan.own.mixed else 3
        each += 8 * (plan.dimension * (plan.dimension + 1) + sums * s)
    # A message, its copy, and the shuffler's.
    each += 3 * (8 * s + OBJECT) if plan.batch_size else 0
    terms = [silo_term("silos as objects", m * each, plan)]
    if plan.individual and plan.encoding is not None:
        bits = sum(
            plan.points(j) * plan.encoding.message_bits(j) for j in range(max(1, plan.levels))
        )
        # A byte each, kept until sent, sent, and shuffled.
        terms.append(silo_term("bits of all messages", 3 * m * s * bits, plan, "points of a batch"))
    elif plan.individual and plan.secure is not None:
        # Leaf sums of every silo, and their product with a row of the factor.
        size = 8 * m * plan.releases * s + 16 * plan.releases * s
        terms.append(silo_term("batches of every silo", size, plan))
    elif plan.by_users:
        size = m * plan.batch_size * (16 * s + 2 * OBJECT)
        terms.append(silo_term("messages of users", size, plan, "points of a batch"))
    rounds = f"{spaced(m)} silos x {spaced(plan.horizon)} rounds"
    marks = f"{spaced(m)} silos x {spaced(checkpoints)} checkpoints"
    return [
        *terms,
        Term("regret of every silo", 8 * m * checkpoints, marks, "checkpoints"),
        Term("actions and rewards", 12 * m * plan.horizon, rounds, "rounds"),
    ]


# ---- The driver ----------------------------------------------------------------------------------


def together(plan: Plan) -> bool:
    """Without a trigger, which goes back and runs rounds again; and without single bits, which lie
    outside of what the compiled driver executes."""
    return plan.trigger is None and not plan.individual


def run(
    environment: environments.Environment,
    plan: Plan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
    snapshot: Snapshot | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) by the compiled driver, where it executes such plans."""
    if plan.individual:
        return run_one(environment, plan, checkpoints, last=last, progress=progress)
    (outcome,) = compiled.run(
        environment, [plan], checkpoints,
        threads=threads, record=record, last=last, progress=progress, snapshot=snapshot,
    )  # fmt: skip
    return outcome


def memory(
    plan: Plan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Terms of one curve of one replicate."""
    if steps or plan.individual:
        terms = step_terms(plan, checkpoints)
    else:
        terms = compiled.state_terms(plan, checkpoints, record)
    return [*terms, outcome_term(checkpoints, plan.statistic_size)]


DRIVER = Driver(run, run_one, memory, run_together=compiled.run, together=together, snapshots=True)
