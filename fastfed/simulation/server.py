"""The driver of federations with a server.

The step driver is the readable reference: it runs one silo and one round at a time, and the parties
exchange messages. The compiled driver (`compiled`) runs many rounds without Python, and gives the
same results bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import NoiseSource, SeededNoise, SummedNoise
from fastfed.bandits.silo import Silo
from fastfed.protocols.plan import ClockedPlan, DelayedPlan, Plan, check_plan
from fastfed.protocols.protocol import Bits, Report
from fastfed.protocols.randomizer import Shuffler, User
from fastfed.protocols.secure_sum import masked, simulated_keys
from fastfed.protocols.server import ClockServer, Server
from fastfed.simulation import compiled
from fastfed.simulation.driver import (
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Record,
    Term,
    linear_events,
    message_fields,
    outcome_term,
    run_rounds,
    silo_term,
    spaced,
)
from fastfed.simulation.snapshots import Snapshot


class Users:
    """The users of a single agent. Each gets an action and sends a message about its reward."""

    def __init__(self, agent: Silo, noise: NoiseSource) -> None:
        self.agent, self.noise = agent, noise
        self.clipped_features = self.clipped_rewards = 0
        self._messages: list[Report | Bits] = []

    def select(self, actions: np.ndarray) -> int:
        """Return the action that the agent chooses for the user of this round."""
        action = self.agent.select(actions)
        self._features = actions[action]
        return action

    def observe(self, reward: float) -> None:
        """Make the message of this round's user. Users of an incomplete last batch send none."""
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


class DelayedSilo(Silo):
    """A silo that learns each reward in the round in which the reward arrives (`DelayedPlan`).

    Rewards that arrive in the same round are learned in the order of their actions.
    """

    def __init__(
        self,
        plan: DelayedPlan,
        index: int,
        noise: SeededNoise,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        super().__init__(plan, index, noise, keys)
        # Functions: the random bits of a round's reward, and the delay in rounds that bits give.
        self._draw_bits, self._delay_of_bits = noise.delay, plan.delay
        # Data points on their way, by the round in which they arrive.
        self._late: dict[int, list[tuple[np.ndarray, float]]] = {}

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Draw when this round's data point arrives, and learn the data points that arrive now."""
        round = self.round + 1
        delay = self._delay_of_bits(self._draw_bits(self.index, round))
        if delay is not None:
            self._late.setdefault(round + delay, []).append((x, y))
        for point in self._late.pop(round, ()):
            super()._learn(*point)


class ClockedSilo(Silo):
    """A silo that exchanges messages at its own times (`ClockedPlan`).

    A tick is a round of the common clock. In a tick the silo may have no user. A silo receives only
    the releases of exchanges in which the silo takes part.
    """

    def __init__(
        self,
        plan: ClockedPlan,
        index: int,
        noise: SeededNoise,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        # The exchanges in which the silo reports, numbered from 0, and their ticks. The silo
        # receives the releases of these exchanges; exchange v makes release v + 1.
        exchanges = np.flatnonzero(plan.clocks.sends[:, index])
        self._release_numbers = (exchanges + 1).tolist()
        self._exchange_ticks = plan.clocks.ticks[exchanges].tolist()
        super().__init__(plan, index, noise, keys)

    def _required(self) -> int:
        """Return the number of the release that the silo must have received before the next tick.

        This is the release of the last exchange in which the silo took part, or 0 before the first.
        """
        count = bisect_right(self._exchange_ticks, self.round)
        return self._release_numbers[count - 1] if count else 0

    @property
    def _reports(self) -> int:
        """Number of the release that contains the silo's last report, or 0 before its first."""
        count = self._randomizer.release
        return self._release_numbers[count - 1] if count else 0

    def idle(self) -> None:
        """End a tick in which the silo has no user."""
        self.round += 1


class Federation:
    """The silos, shuffler and server of one plan, which exchange messages in this process.

    Parameters
    ----------
    plan : Plan
        The plan, which defines all messages.
    noise : SeededNoise
        Source of the noise of all parties.

    Attributes
    ----------
    players : sequence
        The objects that choose actions: the silos, or one object for all users of an agent.
    total : ndarray
        Values of the last broadcast, (s,).
    indefinite : int
        Number of broadcasts whose V needed a shift to be positive definite.
    """

    def __init__(self, plan: Plan, noise: SeededNoise) -> None:
        self.plan = plan = check_plan(plan).simulated
        silo_class: Any = DelayedSilo if isinstance(plan, DelayedPlan) else Silo
        server_class: Any = Server
        if isinstance(plan, ClockedPlan):
            silo_class, server_class = ClockedSilo, ClockServer
        self.silos: list[Silo] = [
            silo_class(plan, i, noise, simulated_masks(plan, i, noise)) for i in range(plan.silos)
        ]
        server_noise = SummedNoise(noise.seed, noise.replicate) if plan.drawn_once else noise
        self.shuffler, self.server = Shuffler(plan, noise), server_class(plan, server_noise)
        users = [Users(self.silos[0], noise)] if self.silos[0].acts_only else None
        self.players: Sequence[Silo | Users] = users or self.silos
        self.total = np.zeros(plan.statistic_size)
        self.indefinite = 0

    @property
    def due(self) -> bool:
        """True if a silo must send its message now."""
        return any(silo.due for silo in self.silos)

    def exchange(self) -> list[Any]:
        """Send the messages of all due silos to the server, and its broadcast to these silos.

        All silos are due together, unless they have their own clocks.

        Returns
        -------
        list
            The messages that the server received.
        """
        if self.plan.trigger is not None:
            # The trigger of one silo has fired; it requests reports from all silos.
            for silo in self.silos:
                silo.ask()
        due_silos = [silo for silo in self.silos if silo.due]
        messages: list[Any]
        if isinstance(self.players[0], Users):
            messages = self.players[0].report()
        else:
            messages = [silo.report() for silo in due_silos]
        if self.plan.protocol.shuffled:
            messages = self.shuffler.shuffle(messages)
        broadcast = self.server.combine(messages)
        shifts_before = due_silos[0].indefinite
        for silo in due_silos:
            silo.receive(broadcast)
        # All receivers compute the same V, so either all of them shift it or none. Count one.
        self.indefinite += due_silos[0].indefinite - shifts_before
        self.total = broadcast.values
        return messages


def run_steps(
    environment: environments.Environment, plans: Sequence[Plan], checkpoints: np.ndarray
) -> list[Outcome]:
    """Return the outcomes of all plans from the step driver, with actions and rewards."""
    return [run_one(environment, plan, checkpoints) for plan in plans]


def simulated_masks(plan: Plan, silo: int, noise: SeededNoise) -> dict[int, bytes] | None:
    """Return the keys of the masks that hide a silo's messages, by the index of the other silo.

    The keys are computed from the seed of ``noise``. For plans without masks, return None.
    """
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
    """Run rounds 1..last (default: all) of one plan by the step driver, message by message.

    ``progress(1)`` is called after each round.
    """
    federation = Federation(plan, SeededNoise(environment.seed, environment.replicate))
    plan, players = federation.plan, federation.players
    if compiled.uses_fixed_sets(environment, plan):
        for i, silo in enumerate(federation.silos):
            silo.offer_always(environment.round(i, 1)[0])
    record = Record(plan.silos, plan.horizon, checkpoints)

    def end_round(_: int) -> int:
        """Exchange messages if a silo must send now; return the number of releases so far."""
        if federation.due:
            federation.exchange()
        return federation.server.release

    serves = plan.clocks.serves if isinstance(plan, ClockedPlan) else None
    run_rounds(environment, players, record, last or plan.horizon, end_round, progress, serves)
    return Outcome(
        group_regret=record.group_regret(),
        **message_fields(plan, record.releases),
        events=linear_events(
            federation.indefinite,
            sum(player.clipped_features for player in players),
            sum(player.clipped_rewards for player in players),
        ),
        total=federation.total,
        actions=record.actions,
        rewards=record.rewards,
    )


# ---- Memory of the step driver -------------------------------------------------------------------

#: Memory of a silo in the step driver: the bytes of its objects, the number of its arrays of the
#: size of a statistic, and the number of further such arrays for each tree level.
SILO, SILO_STATISTICS, LEVEL_STATISTICS = 3500, 5, 2


def step_terms(plan: Plan, checkpoints: int) -> list[Term]:
    """Return the memory terms of one curve in the step driver, with ``checkpoints`` checkpoints.

    The step driver makes an object for each silo, and records all actions and rewards.
    """
    m, s = plan.silos, plan.statistic_size
    levels = plan.levels + (plan.trigger.levels(plan.horizon) if plan.trigger else 0)
    bytes_per_silo = SILO + 8 * s * (SILO_STATISTICS + LEVEL_STATISTICS * levels)
    if plan.own is not None:
        # Local rounds need a factor and a mean, or two of each with a sieve. A posterior also needs
        # the raw sums of all rounds, the other silos' released sums, and the sums that the silo has
        # sent. If local rounds come between shared rounds (`mixed`), it also needs the raw sums of
        # the shared rounds.
        sums = 0 if not plan.own.posterior else 4 if plan.own.mixed else 3
        models = 2 if plan.own.sieve_width else 1
        bytes_per_silo += 8 * (models * plan.dimension * (plan.dimension + 1) + sums * s)
    if isinstance(plan, DelayedPlan):
        bytes_per_silo += len(plan.arrivals) * (8 * plan.dimension + 2 * OBJECT)
    # Memory for three arrays: a message, its copy, and the shuffler's copy.
    bytes_per_silo += 3 * (8 * s + OBJECT) if plan.batch_size else 0
    terms = [silo_term("silos as objects", m * bytes_per_silo, plan)]
    if plan.individual and plan.encoding is not None:
        bits = sum(
            plan.points(j) * plan.encoding.message_bits(j) for j in range(max(1, plan.levels))
        )
        # One byte per bit, three times: stored until sent, in the message, and shuffled.
        terms.append(silo_term("bits of all messages", 3 * m * s * bits, plan, "points of a batch"))
    elif plan.individual and plan.secure is not None:
        # 8 bytes for each entry of every silo's batch sums, and 16 bytes for each entry of one
        # silo's batch sums, which are multiplied by a row of the factor.
        size = 8 * m * plan.releases * s + 16 * plan.releases * s
        terms.append(silo_term("batches of every silo", size, plan))
    elif plan.by_users:
        size = m * plan.batch_size * (16 * s + 2 * OBJECT)
        terms.append(silo_term("messages of users", size, plan, "points of a batch"))
    round_text = f"{spaced(m)} silos x {spaced(plan.horizon)} rounds"
    checkpoint_text = f"{spaced(m)} silos x {spaced(checkpoints)} checkpoints"
    return [
        *terms,
        Term("regret of every silo", 8 * m * checkpoints, checkpoint_text, "checkpoints"),
        Term("actions and rewards", 12 * m * plan.horizon, round_text, "rounds"),
    ]


# ---- The driver ----------------------------------------------------------------------------------


def together(plan: Plan) -> bool:
    """Return True if the compiled driver can run the plan together with others.

    A plan with a trigger must run alone, because the driver then goes back and repeats rounds. A
    plan in which each user's message is sent individually runs in the step driver only.
    """
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
    """Run rounds 1..last (default: all) by the compiled driver, or by the step driver if needed.

    Only the step driver can run plans in which each user's message is sent individually.
    """
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
    """Return the memory terms of one curve in one replicate.

    ``checkpoints`` is the number of checkpoints. ``steps`` selects the step driver. ``record`` adds
    memory for actions and rewards, which the step driver always records.
    """
    if steps or plan.individual:
        terms = step_terms(plan, checkpoints)
    else:
        terms = compiled.state_terms(plan, checkpoints, record)
    if isinstance(plan, ClockedPlan):
        ticks = f"{spaced(plan.silos)} silos x {spaced(plan.horizon)} rounds"
        terms = [*terms, Term("clocks", plan.clocks.memory, ticks, "rounds")]
    return [*terms, outcome_term(checkpoints, plan.statistic_size)]


DRIVER = Driver(run, run_one, memory, run_together=compiled.run, together=together, snapshots=True)
