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
    run_rounds,
    silo_term,
)
from fastfed.simulation.snapshots import Snapshot

#: Runs rounds first..last, heard of.
Through = Callable[[driver.Run, int, int, Progress], None]


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

    def end_round(_: int) -> int:
        nonlocal model
        if clients[0].due:
            average = averager.combine([client.estimate() for client in clients])
            for client in clients:
                client.adopt(average)
            model = average.values
        return averager.releases

    run_rounds(environment, clients, record, last or plan.horizon, end_round, progress)
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


#: Stages of a run, where a snapshot may be kept: before the first release, and after it.
ALONE, GREEDY = 0, 1


def run_phases(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    made: dict[str, Any],
    open_pass: Callable[[dict[str, Any]], driver.Run],
    through: Through,
    until: int,
    snapshot: Snapshot | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds 1..until, every phase a call of its own: (releases by checkpoint, last model).

    ``made`` is the fresh state of ``plan.local``; its curve, regret and counts are filled in.
    """
    run = open_pass(made)
    run.initialise()
    greedy = {**made, **greedy_state(plan)}
    stage, done, numbers = _reached(snapshot, made, greedy, until)
    averager = Averager(plan, SeededNoise(environment.seed, environment.replicate))
    model = np.zeros(plan.dimension)
    if stage == ALONE:
        if numbers is not None:
            run.resume(numbers)
        heard = compiled.keeping(run, [made], 0, snapshot, progress, ALONE)
        heard(done)
        through(run, done + 1, min(plan.initial_rounds, until), heard)
        done = min(plan.initial_rounds, until)
    run = open_pass(greedy)
    if stage == GREEDY and numbers is not None:
        run.resume(numbers)
        model = greedy["theta"][0].copy()
        if progress is not None:
            progress(done)
    heard = compiled.keeping(run, [greedy], done, snapshot, progress, GREEDY)
    released = np.zeros(len(checkpoints), np.int64)
    for phase, first, last in rounds_between(plan):
        if first - 1 > until:
            break
        released += checkpoints >= first - 1
        if stage == GREEDY and first <= done:
            averager.releases += 1  # before the snapshot
        else:
            found = linalg.least_squares(made["batch"], plan.dimension)
            model = averager.combine(
                [LocalEstimate(phase, values, i) for i, values in enumerate(found)]
            ).values
            made["batch"][:] = 0.0
            greedy["theta"][0] = model
            run.forget()
        through(run, max(first, done + 1), min(last, until), heard)
    return released, model


def _reached(
    snapshot: Snapshot | None, made: dict[str, Any], greedy: dict[str, Any], until: int
) -> tuple[int, int, np.ndarray | None]:
    """(stage, rounds, numbers) of a snapshot, brought into the state of its stage."""
    kept = snapshot.kept() if snapshot is not None else None
    if snapshot is None or kept is None:
        return ALONE, 0, None
    state = greedy if kept.stage == GREEDY else made
    found = snapshot.read([state], until, kept.stage, kept)
    return (kept.stage, *found) if found is not None else (ALONE, 0, None)


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
    snapshot: Snapshot | None = None,
) -> Outcome:
    """Run rounds 1..last (all by default) by the compiled driver, phase after phase, on from the
    snapshot if it holds an earlier part."""
    check_phase_plan(plan)
    made = compiled.state(plan.local, len(checkpoints), record)

    def open_pass(made: dict[str, Any]) -> driver.Run:
        return driver.Run(environment, plan.silos, plan.horizon, checkpoints, [made], threads)

    def advance(run: driver.Run, first: int, last: int, heard: Progress) -> None:
        compiled.run_rounds(run, first, last, rounds_per_call, heard)

    until = plan.horizon if last is None else last
    released, model = run_phases(
        environment, plan, checkpoints, made, open_pass, advance, until, snapshot, progress
    )
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


DRIVER = Driver(run, run_steps, memory, snapshots=True)
