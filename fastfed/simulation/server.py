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
    run_rounds,
    sent,
    silo_term,
    spaced,
)
from fastfed.simulation.snapshots import Snapshot


class Users:
    """The users of a single agent: each is shown an action and sends a message about its reward."""

    def __init__(self, agent: Silo, noise: NoiseSource) -> None:
        self.agent, self.noise = agent, noise
        self.clipped_features = self.clipped_rewards = 0
        self._messages: list[Report | Bits] = []

    def select(self, actions: np.ndarray) -> int:
        """Let the agent choose an action for the user of this round."""
        action = self.agent.select(actions)
        self._features = actions[action]
        return action

    def observe(self, reward: float) -> None:
        """Send the message of this round's user. Users of an unfinished last batch send none."""
        plan, round = self.agent.plan, self.agent.round + 1
        if round <= plan.end(plan.releases):
            user = User(plan, round, self.noise)
            self._messages.append(user.message(self._features, reward))
            self.clipped_features += user.clipped_feature
            self.clipped_rewards += user.clipped_reward
        self.agent.served()

    def report(self) -> list[Report | Bits]:
        """Return the messages that were sent since the last call."""
        messages, self._messages = self._messages, []
        return messages


class Federation:
    """The silos, shuffler and server of one plan, which exchange messages in this process.

    Parameters
    ----------
    plan : Plan
        Defines all messages.
    noise : SeededNoise
        Source of the noise of all parties.

    Attributes
    ----------
    players : sequence
        Choose the actions, one for each silo.
    total : ndarray
        Values of the last broadcast.
    """

    def __init__(self, plan: Plan, noise: SeededNoise) -> None:
        self.plan = plan = check_plan(plan).simulated
        self.silos = [
            Silo(plan, i, noise, simulated_masks(plan, i, noise)) for i in range(plan.silos)
        ]
        of_sums = SummedNoise(noise.seed, noise.replicate) if plan.drawn_once else noise
        self.shuffler, self.server = Shuffler(plan, noise), Server(plan, of_sums)
        users = [Users(self.silos[0], noise)] if self.silos[0].acts_only else None
        self.players: Sequence[Silo | Users] = users or self.silos
        self.total = np.zeros(plan.statistic_size)

    @property
    def due(self) -> bool:
        """True if messages are due."""
        return any(silo.due for silo in self.silos)

    def exchange(self) -> list[Any]:
        """Send the messages of all players to the server, and its answer to all silos.

        Returns
        -------
        list
            The messages as the server saw them.
        """
        if self.plan.trigger is not None:
            for silo in self.silos:
                silo.ask()
        messages: list[Any]
        if isinstance(self.players[0], Users):
            messages = self.players[0].report()
        else:
            messages = [silo.report() for silo in self.silos]
        if self.plan.protocol.shuffled:
            messages = self.shuffler.shuffle(messages)
        broadcast = self.server.combine(messages)
        for silo in self.silos:
            silo.receive(broadcast)
        self.total = broadcast.values
        return messages


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
    """Run rounds 1..last (all by default) of one plan; ``progress(1)`` is called after each."""
    federation = Federation(plan, SeededNoise(environment.seed, environment.replicate))
    plan, players = federation.plan, federation.players
    record = Record(plan.silos, plan.horizon, checkpoints)

    def end_round(_: int) -> int:
        if federation.due:
            federation.exchange()
        return federation.server.release

    run_rounds(environment, players, record, last or plan.horizon, end_round, progress)
    return Outcome(
        group_regret=record.group_regret(),
        **sent(plan, record.releases),
        events=linear_events(
            # Every silo refreshes the same V; it is one event per synchronisation.
            federation.silos[0].indefinite,
            sum(player.clipped_features for player in players),
            sum(player.clipped_rewards for player in players),
        ),
        total=federation.total,
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
