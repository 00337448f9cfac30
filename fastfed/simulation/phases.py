"""The driver of federations in phases: message by message, or phase by phase in compiled code."""

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

#: Called with (run, first, last, progress): runs rounds first..last and reports progress.
RunRange = Callable[[driver.Run, int, int, Progress], None]


def run_steps(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    *,
    last: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run rounds 1..last (default: all) with clients and a server, message by message."""
    clients = [Client(plan, i) for i in range(plan.silos)]
    averager = Averager(plan, SeededNoise(environment.seed, environment.replicate))
    record = Record(plan.silos, plan.horizon, checkpoints)
    model = np.zeros(plan.dimension)

    def end_round(_: int) -> int:
        """Average the estimates if a phase ends; return the number of releases so far."""
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
        **phase_message_fields(plan, record.releases),
        events=linear_events(
            0,
            sum(c.clipped_features for c in clients),
            sum(c.clipped_rewards for c in clients),
        ),
        total=model,
        actions=record.actions,
        rewards=record.rewards,
    )


def phase_message_fields(plan: PhasePlan, released: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fields of an Outcome that count messages.

    ``released`` (C,) is the number of releases up to each checkpoint.
    """
    bits = np.array([plan.bits(int(k)) for k in released], np.float64)
    return {"synchronisations": released, "bits_up": bits, "bits_down": bits.copy()}


#: Stages of a run in its snapshots: before the first release, and after it.
INITIAL, GREEDY = 0, 1


def run_phases(
    environment: environments.Environment,
    plan: PhasePlan,
    checkpoints: np.ndarray,
    state: dict[str, Any],
    open_run: Callable[[dict[str, Any]], driver.Run],
    run_range: RunRange,
    last: int,
    snapshot: Snapshot | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run rounds 1..last, phase by phase.

    Parameters
    ----------
    state : dict
        Fresh state of a curve (`compiled.state`) with ``plan.local``, the plan of the rounds before
        the first release. The run writes the regret and the counts into this state.
    open_run : callable
        ``open_run(state)`` returns a run of the compiled driver with the state.
    run_range : callable
        ``run_range(run, first, last, progress)`` runs rounds first..last.

    Returns
    -------
    (ndarray, ndarray)
        The number of releases up to each of the C checkpoints (C,), and the last released model
        (d,).
    """
    run = open_run(state)
    run.initialise()
    greedy = {**state, **greedy_state(plan)}
    stage, rounds_done, saved_numbers = _resume(snapshot, state, greedy, last)
    averager = Averager(plan, SeededNoise(environment.seed, environment.replicate))
    model = np.zeros(plan.dimension)
    if stage == INITIAL:
        if saved_numbers is not None:
            run.resume(saved_numbers)
        on_progress = compiled.progress_with_snapshots(run, [state], 0, snapshot, progress, INITIAL)
        on_progress(rounds_done)
        run_range(run, rounds_done + 1, min(plan.initial_rounds, last), on_progress)
        rounds_done = min(plan.initial_rounds, last)
    run = open_run(greedy)
    if stage == GREEDY and saved_numbers is not None:
        run.resume(saved_numbers)
        model = greedy["theta"][0].copy()
        if progress is not None:
            progress(rounds_done)
    on_progress = compiled.progress_with_snapshots(
        run, [greedy], rounds_done, snapshot, progress, GREEDY
    )
    released = np.zeros(len(checkpoints), np.int64)
    for phase, first_round, last_round in rounds_between(plan):
        if first_round - 1 > last:
            break
        released += checkpoints >= first_round - 1
        if stage == GREEDY and first_round <= rounds_done:
            averager.releases += 1  # this release was made before the snapshot
        else:
            estimates = linalg.least_squares(state["batch"], plan.dimension)
            model = averager.combine(
                [LocalEstimate(phase, values, i) for i, values in enumerate(estimates)]
            ).values
            state["batch"][:] = 0.0
            greedy["theta"][0] = model
            run.forget()
        run_range(run, max(first_round, rounds_done + 1), min(last_round, last), on_progress)
    return released, model


def _resume(
    snapshot: Snapshot | None, initial: dict[str, Any], greedy: dict[str, Any], last: int
) -> tuple[int, int, np.ndarray | None]:
    """Copy the snapshot into the state of its stage, and return where the run continues.

    ``initial`` and ``greedy`` are the fresh states of the two stages. The result is the stage of
    the snapshot, the number of completed rounds and the numbers for `Run.resume`. Without a usable
    snapshot it is (INITIAL, 0, None), and the states are unchanged.
    """
    stored = snapshot.kept() if snapshot is not None else None
    if snapshot is None or stored is None:
        return INITIAL, 0, None
    state = greedy if stored.stage == GREEDY else initial
    position = snapshot.read([state], last, stored.stage, stored)
    return (stored.stage, *position) if position is not None else (INITIAL, 0, None)


def greedy_state(plan: PhasePlan) -> dict[str, Any]:
    """Return the fields of a curve's state that change at the first release.

    After the first release silos choose greedily by the server's model, without an exploration
    bonus: the multiplier of the radius, the first number of "radius", is 0, and so is the inverse
    factor "w".
    """
    d, radius = plan.dimension, plan.local.radius
    return {
        "lazy": True,
        "radius": (0.0, radius.scale, radius.base),
        "radius.determinant": False,
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
    """Run rounds 1..last (default: all) by the compiled driver, phase by phase.

    The run resumes from ``snapshot`` if it has a file.
    """
    check_phase_plan(plan)
    state = compiled.state(plan.local, len(checkpoints), record)

    def open_run(state: dict[str, Any]) -> driver.Run:
        """Return a run of the compiled driver with this state."""
        return driver.Run(environment, plan.silos, plan.horizon, checkpoints, [state], threads)

    def run_range(run: driver.Run, first: int, last: int, on_progress: Progress) -> None:
        """Run rounds first..last."""
        compiled.run_rounds(run, first, last, rounds_per_call, on_progress)

    last_round = plan.horizon if last is None else last
    released, model = run_phases(
        environment, plan, checkpoints, state, open_run, run_range, last_round, snapshot, progress
    )
    changes: dict[str, Any] = {**phase_message_fields(plan, released), "total": model}
    return replace(compiled.outcome(plan.local, state), **changes)


def memory(
    plan: PhasePlan, checkpoints: int, *, steps: bool = False, record: bool = False
) -> list[Term]:
    """Return the memory terms of one curve: the state of its clients, and their estimates."""
    # The estimates as objects and in rotated coordinates, and the noise that is drawn for them.
    padded = padded_dimension(plan.dimension)
    bytes_per_silo = 8 * (2 * plan.dimension + 4 * padded) + 2 * OBJECT
    *terms, outcome = server.memory(plan.local, checkpoints, steps=steps, record=record)
    return [
        *terms,
        silo_term("estimates of all silos", plan.silos * bytes_per_silo, plan.local),
        outcome,
    ]


DRIVER = Driver(run, run_steps, memory, snapshots=True)
