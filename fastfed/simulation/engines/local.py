"""Threads of this process: the compiled driver holds no lock while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from fastfed import _signals
from fastfed.simulation import dispatch as playing
from fastfed.simulation import snapshots as keeping
from fastfed.simulation.dispatch import Interrupted, RunBatch, check_threads
from fastfed.simulation.engines import Engine, Finished, Progress
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

#: Seconds that threads have to stop, once the run is stopped. One that a function of the user's
#: keeps longer is left behind: nothing can end a thread.
GRACE = 1.0

#: Threads of runs that are over, of which some may have been left behind.
_left: list[threading.Thread] = []


def left_behind() -> bool:
    """Whether a thread of a stopped run is still at work: only its process can end it."""
    _left[:] = [thread for thread in _left if thread.is_alive()]
    return bool(_left)


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
        asked: SimpleQueue[RunBatch | None] = SimpleQueue()
        ended: SimpleQueue[Finished | BaseException] = SimpleQueue()

        def heard(agent_rounds: int) -> None:
            if stop.is_set():
                raise Interrupted
            if progress is not None:
                progress(agent_rounds)

        def job(work: RunBatch) -> Finished:
            ran = playing.run_together(experiment, work, inner, heard, snapshots=snapshots)
            return Finished(work, ran.outcomes, ran.seconds, inner)

        def serve() -> None:
            while (work := asked.get()) is not None and not stop.is_set():
                try:
                    ended.put(job(work))
                except BaseException as error:
                    ended.put(error)

        # Not a pool of the standard library, whose threads are waited for, however long they take.
        pool = [
            threading.Thread(target=serve, name=f"fastfed_{i}", daemon=True)
            for i in range(workers if passes else 0)
        ]
        for thread in pool:
            thread.start()
        waiting, running = iter(passes), 0
        try:
            while True:
                while running < workers and (work := next(waiting, None)) is not None:
                    asked.put(work)
                    running += 1
                if not running:
                    return
                found = ended.get()
                running -= 1
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            stop.set()
            for _ in pool:
                asked.put(None)
            _signals.heard()
            _dismiss(pool)


def _dismiss(pool: list[threading.Thread]) -> None:
    """Wait for threads that were told to stop, but not for ever."""
    _left.extend(pool)
    until = time.monotonic() + GRACE
    for thread in pool:
        while thread.is_alive():
            thread.join(0.05)
            if time.monotonic() > until and thread.ident not in keeping.writers():
                break
    left_behind()
