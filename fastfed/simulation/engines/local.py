"""The engine "local": threads of this process. The compiled driver releases the GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from fastfed import _signals
from fastfed.simulation import dispatch
from fastfed.simulation import snapshots as snapshot_files
from fastfed.simulation.dispatch import Interrupted, RunBatch, check_threads
from fastfed.simulation.engines import Engine, Finished, Progress
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

#: Seconds that threads get to stop. A thread in a user's function that takes longer is left
#: running, because a thread cannot be killed.
GRACE_SECONDS = 1.0

#: Threads of earlier runs that may still be running.
_old_threads: list[threading.Thread] = []


def left_behind() -> bool:
    """Return whether a thread of a stopped run is still running; only exiting can end it."""
    _old_threads[:] = [thread for thread in _old_threads if thread.is_alive()]
    return bool(_old_threads)


@contextmanager
def open_engine(
    threads: int | None, scheduler: str | None = None, at_once: int | None = None
) -> Iterator[Engine]:
    """Yield the engine with this number of threads; None: one for each processor.

    At most ``at_once`` batches of runs run at once. ``scheduler`` is ignored here: it is for the
    engine "dask".
    """
    yield Local(check_threads(threads), at_once)


@dataclass(frozen=True)
class Local:
    """Runs each batch in one thread; if there are fewer batches than threads, silos share them."""

    threads: int
    at_once: int | None = None

    def play(
        self,
        experiment: Experiment,
        batches: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        """Run the batches in threads, see `Engine.play`."""
        stop = threading.Event()
        workers = max(1, min(self.threads, len(batches), self.at_once or self.threads))
        batch_threads = max(1, self.threads // workers)
        tasks: SimpleQueue[RunBatch | None] = SimpleQueue()
        results: SimpleQueue[Finished | BaseException] = SimpleQueue()

        def on_progress(agent_rounds: int) -> None:
            """Report progress; raise Interrupted if the engine is stopping."""
            if stop.is_set():
                raise Interrupted
            if progress is not None:
                progress(agent_rounds)

        def job(batch: RunBatch) -> Finished:
            """Run one batch and return its outcomes with the time taken."""
            timed = dispatch.run_together(
                experiment, batch, batch_threads, on_progress, snapshots=snapshots
            )
            return Finished(batch, timed.outcomes, timed.seconds, batch_threads)

        def serve() -> None:
            """Run batches from the queue until the queue ends or the engine is stopped."""
            while (batch := tasks.get()) is not None and not stop.is_set():
                try:
                    results.put(job(batch))
                except BaseException as error:
                    results.put(error)

        # Not a pool of the standard library, which would wait for its threads without limit.
        pool = [
            threading.Thread(target=serve, name=f"fastfed_{i}", daemon=True)
            for i in range(workers if batches else 0)
        ]
        for thread in pool:
            thread.start()
        waiting, running = iter(batches), 0
        try:
            while True:
                while running < workers and (batch := next(waiting, None)) is not None:
                    tasks.put(batch)
                    running += 1
                if not running:
                    return
                result = results.get()
                running -= 1
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            stop.set()
            for _ in pool:
                tasks.put(None)
            _signals.announce_end()
            _join(pool)


def _join(pool: list[threading.Thread]) -> None:
    """Wait until the threads of a stopped engine have ended, for at most `GRACE_SECONDS` seconds.

    Threads that are writing a snapshot are waited for without limit.
    """
    _old_threads.extend(pool)
    until = time.monotonic() + GRACE_SECONDS
    for thread in pool:
        while thread.is_alive():
            thread.join(0.05)
            if time.monotonic() > until and thread.ident not in snapshot_files.writers():
                break
    left_behind()  # removes the threads that have ended from `_old_threads`
