"""The step driver: the readable truth, message by message, bit for bit the compiled driver's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fastfed._kernels import environments
from fastfed._random import NoiseSource, SeededNoise
from fastfed.bandits.silo import Silo
from fastfed.protocols.messages import Bits, Report
from fastfed.protocols.plan import Plan
from fastfed.protocols.randomizer import User
from fastfed.protocols.server import Server
from fastfed.protocols.shuffler import Shuffler
from fastfed.simulation.outcome import Outcome, linear_events, sent


class Users:
    """The users of a single agent's batch, where they send for themselves."""

    def __init__(self, plan: Plan, noise: NoiseSource) -> None:
        self.plan, self.noise = plan, noise
        self.clipped_features = self.clipped_rewards = 0
        self._sent: list[Report | Bits] = []

    def send(self, round: int, x: np.ndarray, reward: float) -> None:
        """The message of this round's user; those of an unfinished last batch send none."""
        if round > self.plan.releases * self.plan.batch_size:
            return
        user = User(self.plan, round, self.noise)
        self._sent.append(user.message(x, reward))
        self.clipped_features += user.clipped_feature
        self.clipped_rewards += user.clipped_reward

    def messages(self) -> list[Report | Bits]:
        """What was sent since the last call; nothing where silos send."""
        sent, self._sent = self._sent, []
        return sent


def play(
    environment: environments.Environment, plans: Sequence[Plan], checkpoints: np.ndarray
) -> list[Outcome]:
    """Play all rounds of all plans, one silo and round at a time; records everything."""
    return [play_one(environment, plan, checkpoints) for plan in plans]


def play_one(
    environment: environments.Environment,
    plan: Plan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Play rounds 1..last (all by default) of one plan; ``progress(1)`` hears of each round."""
    noise = SeededNoise(environment.seed, environment.replicate)
    silos = [Silo(plan, i, noise) for i in range(plan.silos)]
    shuffler, server = Shuffler(plan, noise), Server(plan, noise)
    regret = np.zeros(plan.silos)
    curve = np.zeros((plan.silos, len(checkpoints)))
    actions = np.zeros((plan.silos, plan.horizon), np.int32)
    rewards = np.zeros((plan.silos, plan.horizon))
    synchronised = np.zeros(len(checkpoints), np.int64)
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
            actions[i, round - 1], rewards[i, round - 1] = a, y
            regret[i] += means.max() - means[a]
        curve[:, checkpoints == round] = regret[:, None]
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
        synchronised[checkpoints == round] = server.release
        if progress is not None:
            progress(1)
    group = np.zeros(len(checkpoints))
    for row in curve:
        group += row
    return Outcome(
        group_regret=group,
        **sent(plan, synchronised),
        events=linear_events(
            # Every silo refreshes the same V; it is one event per synchronisation.
            silos[0].indefinite,
            sum(s.clipped_features for s in silos) + users.clipped_features,
            sum(s.clipped_rewards for s in silos) + users.clipped_rewards,
        ),
        total=total,
        actions=actions,
        rewards=rewards,
    )
