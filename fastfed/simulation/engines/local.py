"""Threads of this process: the compiled driver holds no lock while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from fastfed.simulation import dispatch as playing
from fastfed.simulation.dispatch import Interrupted, RunBatch, check_threads
from fastfed.simulation.engines import Engine, Finished, Progress
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots


@contextmanager
def open_engine(
    threads: int | None, scheduler: str | None = None, at_once: int | None = None
) -> Iterator[Engine]:
    """Threads of this process."""
    yield Local(check_threads(threads), at_once)


@dataclass(frozen=True)
class Local:
    """Each batch of runs takes one thread while there are enough; fewer share the threads among
    their silos."""

    threads: int
    at_once: int | None = None

    def play(
        self,
        experiment: Experiment,
        passes: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        stop = threading.Event()
        workers = max(1, min(self.threads, len(passes), self.at_once or self.threads))
        inner = max(1, self.threads // workers)

        def heard(agent_rounds: int) -> None:
            if stop.is_set():
                raise Interrupted
            if progress is not None:
                progress(agent_rounds)

        def job(work: RunBatch) -> Finished:
            start = time.perf_counter()
            outcomes = playing.run_together(experiment, work, inner, heard, snapshots=snapshots)
            return Finished(work, outcomes, time.perf_counter() - start, inner)

        waiting = iter(passes)
        with ThreadPoolExecutor(workers, thread_name_prefix="fastfed") as pool:
            running: set[Future[Finished]] = set()
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
