"""Dispatch: which driver runs a plan, and batches of runs: what is run at once."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._validate import InputError, integer
from fastfed.environments import Adversary
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.plan import Plan
from fastfed.protocols.serverless import PeerPlan, PhasePlan
from fastfed.simulation import experts, peers, phases, policies, server
from fastfed.simulation.driver import Driver, Outcome, Progress
from fastfed.simulation.experiment import Experiment, Problem

# ---- Dispatch: every plan to the driver that it names --------------------------------------------
# A new kind of plan is one file with a `driver.Driver`, and one line in ``DRIVERS``.


AnyPlan = Plan | PeerPlan | PhasePlan | ExpertPlan | policies.PolicyPlan
OpenEnvironment = environments.Environment | Adversary

#: By the name that a kind of plan has as ``driver``.
DRIVERS: dict[str, Driver] = {
    "server": server.DRIVER,
    "peers": peers.DRIVER,
    "phases": phases.DRIVER,
    "experts": experts.DRIVER,
    "policies": policies.DRIVER,
}


def driver_of(plan: Any) -> Driver:
    """Driver of a plan; InputError where fastfed has none."""
    name = getattr(plan, "driver", None)
    if name not in DRIVERS:
        raise InputError(
            f"plan must name its driver, one of {', '.join(DRIVERS)}: got {type(plan).__name__}"
        )
    return DRIVERS[name]


def together(plan: AnyPlan) -> bool:
    """Curves of such plans are run at once, over contexts made once."""
    return driver_of(plan).together(plan)


def run(
    environment: OpenEnvironment,
    plans: Sequence[AnyPlan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run rounds 1..last (all by default) of every plan, each by its fast driver.

    ``progress`` hears of rounds, each once for every plan.
    """
    shared = [i for i, plan in enumerate(plans) if together(plan)]
    groups = [shared] if shared else []
    groups += [[i] for i in range(len(plans)) if i not in shared]
    outcomes: dict[int, Outcome] = {}
    for group in groups:

        def heard(rounds: int, curves: int = len(group)) -> None:
            if progress is not None:
                progress(rounds * curves)

        made = driver_of(plans[group[0]]).run(
            environment,
            [plans[i] for i in group],
            checkpoints,
            threads=threads,
            record=record,
            last=last,
            progress=heard,
        )
        outcomes.update(zip(group, made, strict=True))
    return [outcomes[i] for i in range(len(plans))]


def run_steps(environment: OpenEnvironment, plan: AnyPlan, checkpoints: np.ndarray) -> Outcome:
    """Run a plan by the step driver, message by message."""
    return driver_of(plan).run_steps(environment, plan, checkpoints)


# ---- Batches of runs: what is run at once, on how many threads, and how long it will take --------


# ---- What a run may use of a machine, and who runs it. No result depends on it ------------------


@dataclass(frozen=True)
class Resources:
    """Threads, engine and memory of a run; `memory.fit` divides the work so that they are
    enough."""

    threads: int | None = None  # in all; None: every processor
    engine: str = "local"
    scheduler: str | None = None  # address of a dask cluster that is there already
    memory_limit: int | str | None = None  # bytes, or "40GB"; None: what is available


# ---- Batches of runs: which are missing, and how long they will take -----------------------------


#: The compiled driver's own limit of curves in a batch of runs.
MOST_TOGETHER = 64


@dataclass(frozen=True)
class RunBatch:
    """Curves of one replicate that are run together, over the same contexts."""

    replicate: int
    positions: tuple[int, ...]


class Interrupted(Exception):
    """A batch of runs was told to stop between two calls."""


def missing_batches(
    experiment: Experiment, done: set[tuple[int, int]], most: int = MOST_TOGETHER
) -> list[RunBatch]:
    """Batches of runs that are left, of at most ``most`` curves each.

    Curves of one problem share contexts where making them is work.
    """
    problems: list[tuple[Problem, list[int]]] = []
    for position, curve in enumerate(experiment.curves):
        for problem, positions in problems:
            if problem == curve.problem:
                positions.append(position)
                break
        else:
            problems.append((curve.problem, [position]))
    passes: list[RunBatch] = []
    for replicate in range(experiment.replicates):
        for problem, positions in problems:
            left = [i for i in positions if (i, replicate) not in done]
            shared = [i for i in left if together(experiment.curves[i].system.plan)]
            size = min(most, MOST_TOGETHER) if problem.facts.contexts_made else 1
            passes.extend(
                RunBatch(replicate, tuple(shared[i : i + size]))
                for i in range(0, len(shared), size)
            )
            passes.extend(RunBatch(replicate, (i,)) for i in left if i not in shared)
    return passes


def default_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """Threads to run with; None takes every processor."""
    if threads is None:
        return default_threads()
    return integer("threads", threads, at_least=1, at_most=1024)


def run_together(
    experiment: Experiment,
    work: RunBatch,
    threads: int,
    progress: Callable[[int], None] | None = None,
    record: bool = False,
) -> list[Outcome]:
    """Run one batch of runs; ``progress`` hears agent-rounds."""
    problem = experiment.curves[work.positions[0]].problem

    def heard(rounds: int) -> None:
        if progress is not None:
            progress(rounds * problem.silos)

    return run(
        problem.open(experiment.seed, work.replicate),
        [experiment.curves[i].system.plan for i in work.positions],
        experiment.checkpoints,
        threads=threads,
        record=record,
        progress=heard,
    )


#: A prediction times every kind of pass for at least so long, unless it is over before.
TIMED_SECONDS = 0.02


def predict_seconds(experiment: Experiment, passes: list[RunBatch], threads: int) -> float:
    """Seconds the batches of runs will take, from running a few rounds of each kind."""
    if not passes:
        return 0.0
    kinds = Counter(work.positions for work in passes)
    alone = sum(seconds_of(experiment, kind) * times for kind, times in kinds.items())
    silos = experiment.curves[passes[0].positions[0]].problem.silos
    return alone / min(threads, max(len(passes), silos))


def seconds_of(experiment: Experiment, positions: tuple[int, ...]) -> float:
    """Seconds that one batch of runs over these curves takes on one thread."""
    environment = experiment.curves[positions[0]].problem.open(experiment.seed, 0)
    plans = [experiment.curves[i].system.plan for i in positions]
    rounds, horizon = min(experiment.horizon, 25), experiment.horizon

    def timed(rounds: int) -> float:
        best = math.inf
        # The better of two, where they are short: whatever else the machine does in the meantime
        # counts for hours when it is multiplied.
        for _ in range(2):
            start = time.perf_counter()
            run(environment, plans, experiment.checkpoints, last=rounds)
            best = min(best, time.perf_counter() - start)
            if best > 5.0 * TIMED_SECONDS:
                break
        return best

    while timed(rounds) < TIMED_SECONDS and rounds < horizon:
        rounds = min(8 * rounds, horizon)
    # The first batch is dearer than later ones, for all its actions tie: it must not be all.
    rounds = min(3 * rounds, horizon)
    return timed(rounds) * horizon / rounds
