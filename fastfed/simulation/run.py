"""Running an experiment: which cells are missing, who plays them, and committing each one."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, array, integer
from fastfed.results.results import Results
from fastfed.results.store import Cell, CurveRow, Store
from fastfed.simulation import drive
from fastfed.simulation.experiment import Experiment, World
from fastfed.simulation.outcome import Outcome

#: The compiled driver's own limit of curves in a pass.
MOST_TOGETHER = 64


@dataclass(frozen=True)
class Pass:
    """Curves of one replicate that are played together, over the same contexts."""

    replicate: int
    positions: tuple[int, ...]


class Interrupted(Exception):
    """A pass was told to stop between two calls."""


def missing_passes(experiment: Experiment, done: set[tuple[int, int]]) -> list[Pass]:
    """What is left to play. Curves of one world share contexts where making them is work."""
    worlds: list[tuple[World, list[int]]] = []
    for position, curve in enumerate(experiment.curves):
        for world, positions in worlds:
            if world == curve.world:
                positions.append(position)
                break
        else:
            worlds.append((curve.world, [position]))
    passes: list[Pass] = []
    for replicate in range(experiment.replicates):
        for world, positions in worlds:
            left = [i for i in positions if (i, replicate) not in done]
            together = [i for i in left if drive.shared(experiment.curves[i].system.plan)]
            size = MOST_TOGETHER if world.facts.contexts_made else 1
            passes.extend(
                Pass(replicate, tuple(together[i : i + size]))
                for i in range(0, len(together), size)
            )
            passes.extend(Pass(replicate, (i,)) for i in left if i not in together)
    return passes


def default_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """Threads to play with; None takes every processor."""
    if threads is None:
        return default_threads()
    return integer("threads", threads, at_least=1, at_most=1024)


def play_pass(
    experiment: Experiment,
    work: Pass,
    threads: int,
    progress: Callable[[int], None] | None = None,
    record: bool = False,
) -> list[Outcome]:
    """Play one pass; ``progress`` hears agent-rounds."""
    world = experiment.curves[work.positions[0]].world

    def heard(rounds: int) -> None:
        if progress is not None:
            progress(rounds * world.silos)

    return drive.play(
        world.open(experiment.seed, work.replicate),
        [experiment.curves[i].system.plan for i in work.positions],
        experiment.checkpoints,
        threads=threads,
        record=record,
        progress=heard,
    )


#: A prediction times every kind of pass for at least so long, unless it is over before.
TIMED_SECONDS = 0.02


def predict_seconds(experiment: Experiment, passes: list[Pass], threads: int) -> float:
    """Seconds the passes will take, from playing a few rounds of each kind."""
    if not passes:
        return 0.0
    kinds = Counter(work.positions for work in passes)
    alone = sum(_seconds_of(experiment, kind) * times for kind, times in kinds.items())
    silos = experiment.curves[passes[0].positions[0]].world.silos
    return alone / min(threads, max(len(passes), silos))


def _seconds_of(experiment: Experiment, positions: tuple[int, ...]) -> float:
    """Seconds that one pass over these curves takes on one thread."""
    environment = experiment.curves[positions[0]].world.open(experiment.seed, 0)
    plans = [experiment.curves[i].system.plan for i in positions]
    rounds, horizon = min(experiment.horizon, 25), experiment.horizon
    while True:
        start = time.perf_counter()
        drive.play(environment, plans, experiment.checkpoints, last=rounds)
        seconds = time.perf_counter() - start
        if seconds >= TIMED_SECONDS or rounds == horizon:
            return seconds * horizon / rounds
        rounds = min(8 * rounds, horizon)


def play_all(
    experiment: Experiment,
    passes: list[Pass],
    threads: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Pass, list[Outcome], float, int]]:
    """Play passes, several at a time; yields (pass, outcomes, seconds, threads) as they end.

    While there are passes enough each takes one thread; fewer passes share the threads among
    their silos. Neither changes a bit of the results.
    """
    stop = threading.Event()
    workers = max(1, min(threads, len(passes)))
    inner = max(1, threads // workers)

    def heard(agent_rounds: int) -> None:
        if stop.is_set():
            raise Interrupted
        if progress is not None:
            progress(agent_rounds)

    def job(work: Pass) -> tuple[Pass, list[Outcome], float, int]:
        start = time.perf_counter()
        outcomes = play_pass(experiment, work, inner, heard)
        return work, outcomes, time.perf_counter() - start, inner

    waiting = iter(passes)
    with ThreadPoolExecutor(workers, thread_name_prefix="fastfed") as pool:
        running: set[Future[tuple[Pass, list[Outcome], float, int]]] = set()
        try:
            while True:
                while len(running) < workers and (work := next(waiting, None)) is not None:
                    running.add(pool.submit(job, work))
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
        finally:
            stop.set()


def curve_rows(experiment: Experiment) -> list[CurveRow]:
    """What the store keeps of each curve."""
    rows = []
    rounds = experiment.checkpoints
    for curve in experiment.curves:
        facts: dict[str, Any] = {
            "silos": curve.world.silos,
            "dimension": curve.world.facts.dimension,
        }
        if curve.packages:
            facts["packages"] = curve.packages
        if curve.system.bounds_at is not None:
            facts["bounds"] = {
                name: array(f"bound {name}", values, shape=(len(rounds),), finite=False).tolist()
                for name, values in curve.system.bounds_at(rounds).items()
            }
        rows.append(
            CurveRow(
                label=curve.label,
                algorithm=curve.algorithm,
                protocol=curve.system.plan.protocol.id,
                facts=facts,
                certificate=curve.system.certificate.to_builtins(),
            )
        )
    return rows


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    threads: int | None = None,
    on_start: Callable[[list[Pass], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Play what is missing of an experiment in an output folder, and read its results.

    Every replicate of every curve is committed once it is played, so the same call again repeats
    nothing. ``on_start`` hears what is left and with how many threads.
    """
    threads = check_threads(threads)
    meta: dict[str, Any] = {
        "identity": experiment.identity(),
        "rounds": experiment.checkpoints.tolist(),
        "figure": experiment.figure,
    }
    with Store.create_or_resume(Path(folder), meta, curve_rows(experiment), threads) as store:
        passes = missing_passes(experiment, store.done())
        if on_start is not None:
            on_start(passes, threads)
        for work, outcomes, seconds, used in play_all(experiment, passes, threads, progress):
            share = experiment.agent_rounds(work.positions) // len(outcomes)
            store.commit(cells(work, outcomes), seconds / len(outcomes), share, used)
        return store.results(experiment.replicates)


def cells(work: Pass, outcomes: Iterable[Outcome]) -> list[Cell]:
    """The rows of one pass."""
    return [
        Cell(
            position,
            work.replicate,
            outcome.group_regret,
            outcome.synchronisations,
            outcome.bits_up,
            outcome.bits_down,
            outcome.events,
        )
        for position, outcome in zip(work.positions, outcomes, strict=True)
    ]


def load(folder: str | Path) -> Results:
    """The results of an output folder."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder")
    with Store.open_existing(path) as store:
        return store.results()
