"""The step driver: the readable truth, message by message, bit for bit the compiled driver's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fastfed._kernels import native
from fastfed._random import SeededNoise
from fastfed.bandits.silo import Silo
from fastfed.protocols.plan import Plan
from fastfed.protocols.server import Server
from fastfed.protocols.shuffler import Shuffler
from fastfed.simulation.outcome import Outcome, sent


def play(
    environment: native.Environment, plans: Sequence[Plan], checkpoints: np.ndarray
) -> list[Outcome]:
    """Play all rounds of all plans, one silo and round at a time; records everything."""
    return [play_one(environment, plan, checkpoints) for plan in plans]


def play_one(
    environment: native.Environment,
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
    for round in range(1, (last or plan.horizon) + 1):
        for i, silo in enumerate(silos):
            features, means = environment.round(i, round)
            a = silo.select(features)
            y = environment.reward(i, round, means[a])
            silo.observe(y)
            actions[i, round - 1], rewards[i, round - 1] = a, y
            regret[i] += means.max() - means[a]
        curve[:, checkpoints == round] = regret[:, None]
        if any(silo.due for silo in silos):
            if plan.trigger is not None:
                for silo in silos:
                    silo.ask()
            reports = [silo.report() for silo in silos]
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
        clipped_features=sum(s.clipped_features for s in silos),
        clipped_rewards=sum(s.clipped_rewards for s in silos),
        # Every silo refreshes the same V; it is one event per synchronisation.
        indefinite=silos[0].indefinite,
        total=total,
        actions=actions,
        rewards=rewards,
    )
