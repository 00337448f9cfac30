"""Curves in phases in both drivers: message by message, and phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments, linalg
from fastfed._random import SeededNoise
from fastfed.bandits.silo import Client, rounds_between
from fastfed.privacy.mechanisms.winsorized import padded_dimension
from fastfed.protocols.server import Averager
from fastfed.protocols.serverless import LocalEstimate, PhasePlan, check_phase_plan
from fastfed.simulation import compiled, server
from fastfed.simulation.driver import (
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Record,
    Term,
    linear_events,
    silo_term,
)

#: Runs rounds first..last.
Through = Callable[[driver.Run, int, int], None]


def run_steps(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default), one client and round at a time."""
    clients = [Client(plan, i) for i in range(plan.silos)]
    averager = Averager(plan, SeededNoise(environment.seed, environment.replicate))
    record = Record(plan.silos, plan.horizon, checkpoints)
    model = np.zeros(plan.dimension)
    for round in range(1, (last or plan.horizon) + 1):
        for i, client in enumerate(clients):
            features, means = environment.round(i, round)
            a = client.select(features)
            y = environment.reward(i, round, means[a])
            client.observe(y)
            record.note(i, round, a, y, means)
        if clients[0].due:
            made = averager.combine([client.estimate() for client in clients])
            for client in clients:
                client.adopt(made)
            model = made.values
        record.close(round, averager.releases)
        if progress is not None:
            progress(1)
    return Outcome(
        group_regret=record.group_regret(),
        **sent(plan, record.releases),
        events=linear_events(
            0,
            sum(c.clipped_features for c in clients),
            sum(c.clipped_rewards for c in clients),
        ),
        total=model,
        actions=record.actions,
        rewards=record.rewards,
    )


def sent(plan: PhasePlan, released: np.ndarray) -> dict[str, np.ndarray]:
    """Releases and bits sent by each checkpoint, as an Outcome keeps them."""
    bits = np.array([plan.bits(int(k)) for k in released], np.float64)
    return {"synchronisations": released, "bits_up": bits, "bits_down": bits.copy()}


def run_phases(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    made: dict[str, Any],
    open_pass: Callable[[dict[str, Any]], driver.Run],
    through: Through,
    until: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds 1..until, every phase a call of its own: (releases by checkpoint, last model).

    ``made`` is the fresh state of ``plan.local``; its curve, regret and counts are filled in.
    """
    run = open_pass(made)
    run.initialise()
    through(run, 1, min(plan.initial_rounds, until))
    averager = Averager(plan, SeededNoise(environment.seed, environment.replicate))
    model = np.zeros(plan.dimension)
    greedy = {**made, **greedy_state(plan)}
    run = open_pass(greedy)
    released = np.zeros(len(checkpoints), np.int64)
    for phase, first, last in rounds_between(plan):
        if first - 1 > until:
            break
        found = linalg.least_squares(made["batch"], plan.dimension)
        model = averager.combine(
            [LocalEstimate(phase, values, i) for i, values in enumerate(found)]
        ).values
        released += checkpoints >= first - 1
        made["batch"][:] = 0.0
        greedy["theta"][0] = model
        # What was chosen with the model before is forgotten.
        greedy["choice"][:] = 0
        through(run, first, min(last, until))
    return released, model


def greedy_state(plan: PhasePlan) -> dict[str, Any]:
    """Changes of a curve's state once all silos use one model: no bonus, no V of their own."""
    d, radius = plan.dimension, plan.local.radius
    return {
        "lazy": True,
        "radius": (0.0, radius.scale, radius.base),
        "determinant": False,
        "direct": False,
        "radius_lambda": np.full(len(radius.log_lambda), np.inf),
        "w": np.zeros((1, d, d)),
        "theta": np.zeros((1, d)),
    }


def run(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    rounds_per_call: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) by the compiled driver, phase after phase."""
    check_phase_plan(plan)
    made = compiled.state(plan.local, len(checkpoints), record)

    def open_pass(made: dict[str, Any]) -> driver.Run:
        return driver.Run(environment, plan.silos, plan.horizon, checkpoints, [made], threads)

    def advance(run: driver.Run, first: int, last: int) -> None:
        compiled.run_rounds(run, first, last, rounds_per_call, progress)

    until = plan.horizon if last is None else last
    released, model = run_phases(environment, plan, checkpoints, made, open_pass, advance, until)
    changed: dict[str, Any] = {**sent(plan, released), "total": model}
    return replace(compiled.outcome(plan.local, made), **changed)


def memory(
    plan: PhasePlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Terms of one curve: its clients before the phases, and their estimates."""
    # Estimates as objects; in rotated coordinates, and what is drawn beside them.
    wide = padded_dimension(plan.dimension)
    each = 8 * (2 * plan.dimension + 4 * wide) + 2 * OBJECT
    *terms, left = server.memory(plan.local, checkpoints, steps=steps, record=record)
    return [*terms, silo_term("estimates of all silos", plan.silos * each, plan.local), left]


DRIVER = Driver(run, run_steps, memory)
