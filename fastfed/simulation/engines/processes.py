"""The engine "processes": worker processes of this machine, one batch of runs each."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from fastfed import _signals
from fastfed.simulation.dispatch import (
    Interrupted,
    RunBatch,
    check_threads,
    run_together,
    seconds_of,
)
from fastfed.simulation.engines import (
    GUARD,
    HOPELESS,
    MAX_TRIES,
    Engine,
    EngineError,
    Finished,
    Left,
    PoisonBatch,
    Progress,
    Tally,
    no_interrupts,
    pack,
    run_all_rounds,
    unpack,
)
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

# ---- In the worker process: run the batches that arrive through a pipe, until it closes ----------


#: Kinds of messages to the main process.
HELLO, ADVANCED, ENDED, FAILED, EXHAUSTED = "hello", "advanced", "ended", "failed", "exhausted"
TIMED = "timed"

#: Seconds between two reports of progress.
PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Timing:
    """Request to a worker: predict the time of a batch of runs over these curves."""

    positions: tuple[int, ...]


def serve(connection: Connection, threads: int, snapshots: Snapshots | None) -> None:
    """Run a worker process: receive batches through ``connection``, and send back their outcomes.

    The first message from the main process is the packed experiment (`pack`). Each batch runs on
    ``threads`` threads.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (owner := multiprocessing.parent_process()) is not None:
        # A user's function that never returns must not outlive the main process.
        _signals.end_with(owner.sentinel)
    try:
        connection.send((HELLO, None))
        packed, experiment = connection.recv(), None
        while True:
            request = connection.recv()
            try:
                experiment = experiment or unpack(packed)
                if isinstance(request, Timing):
                    connection.send((TIMED, seconds_of(experiment, request.positions)))
                    continue
                timed = run_together(
                    experiment, request, threads, _progress_sender(connection), snapshots=snapshots
                )
                connection.send((ENDED, (timed.outcomes, timed.seconds)))
            except Interrupted:
                return
            except MemoryError:
                connection.send((EXHAUSTED, "out of memory"))
            except Exception as error:
                connection.send((FAILED, portable(error)))
    except (EOFError, OSError):
        return  # the main process has ended


def _progress_sender(connection: Connection) -> Callable[[int], None]:
    """Return a progress function that reports to the main process every ``PROGRESS_SECONDS``.

    It raises Interrupted if the main process has ended.
    """
    last_report, agent_rounds_done = time.perf_counter(), 0

    def on_progress(agent_rounds: int) -> None:
        """Report progress if a report is due; raise Interrupted if the main process has ended."""
        nonlocal last_report, agent_rounds_done
        agent_rounds_done += agent_rounds
        if (now := time.perf_counter()) - last_report >= PROGRESS_SECONDS:
            last_report = now
            try:
                connection.send((ADVANCED, agent_rounds_done))
            except OSError:
                raise Interrupted from None

    return on_progress


def portable(error: Exception) -> Exception:
    """Return an error with its traceback as a note, as a RuntimeError if it cannot be pickled."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.__notes__ = error.__notes__
        return substitute
    return error


# ---- In the main process -------------------------------------------------------------------------
# The pools of the standard library lose all workers if one dies, and do not report which task it
# ran. Here every worker has a separate pipe, so a dead worker costs only the batch that it ran.


#: After a batch of runs shorter than this, a worker gets two batches, so that it need not wait.
SHORT_SECONDS = 1.0


@contextmanager
def open_engine(
    threads: int | None, scheduler: str | None = None, at_once: int | None = None
) -> Iterator[Engine]:
    """Yield the engine with this number of threads; None: one for each processor.

    At most ``at_once`` batches of runs run at once. ``scheduler`` is for the engine "dask".
    """
    yield Processes(check_threads(threads), at_once)


@dataclass(frozen=True)
class Processes:
    """Runs each batch in one worker; if batches are few, each worker has several threads."""

    threads: int
    at_once: int | None = None

    def play(
        self,
        experiment: Experiment,
        batches: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        """Run the batches in worker processes, see `Engine.play`."""
        packed, tally = pack(experiment), Tally(experiment, progress)

        def run_round(batches: list[RunBatch], alone: bool) -> Generator[Finished, None, Left]:
            """Run batches in a pool of processes, and yield what finishes."""
            count = 1 if alone else min(self.threads, len(batches), self.at_once or self.threads)
            threads = max(1, self.threads // max(1, count))
            pool = WorkerPool(packed, count, threads, tally, snapshots)
            try:
                return (yield from pool.play(batches, 1 if alone else MAX_TRIES))
            finally:
                pool.dismiss()

        return run_all_rounds(experiment, batches, run_round)


class Worker:
    """A worker process, the pipe to it, and its batches of runs, the running one first."""

    def __init__(self, threads: int, snapshots: Snapshots | None) -> None:
        # Spawn the worker. A forked copy of this process could wait for ever for locks that other
        # threads of this process hold.
        context = multiprocessing.get_context("spawn")
        self.connection, worker_end = context.Pipe()
        arguments = (worker_end, threads, snapshots)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        with no_interrupts():
            self.process.start()
        worker_end.close()
        self.queue: deque[RunBatch] = deque()
        self.ready = False

    def send(self, value: Any) -> None:
        """Send a message. A dead worker is ignored here, because reading its pipe reports it."""
        with suppress(OSError):
            self.connection.send(value)

    def end(self) -> str:
        """Wait for the end of the process, and return a text that states how it ended."""
        self.connection.close()
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def kill(self) -> None:
        """Kill the process. It writes no file that could be left incomplete."""
        self.process.kill()
        self.end()


@dataclass
class WorkerPool:
    """The worker processes of one round of tries, and the batches that they run."""

    packed: bytes  # the experiment
    count: int  # most workers
    threads: int  # threads of each worker
    tally: Tally
    snapshots: Snapshots | None = None
    workers: list[Worker] = field(default_factory=list)
    depth: int = 1  # batches that a worker gets at once
    played: int = 0  # batches finished
    never_ready: int = 0  # workers in a row that died before they were ready

    def play(self, batches: list[RunBatch], tries: int) -> Generator[Finished, None, Left]:
        """Run batches, and yield each one as it finishes; return the batches that did not finish.

        A batch counts as poisoned when ``tries`` workers have died while they ran it.
        """
        waiting, lost_workers, unfinished = deque(batches), Counter[RunBatch](), Left()
        while waiting or any(w.queue for w in self.workers):
            self._spawn(waiting)
            by_connection = {w.connection: w for w in self.workers}
            for connection in wait(list(by_connection)):
                assert isinstance(connection, Connection)
                worker = by_connection[connection]
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    self._reap(worker, worker.end(), tries, waiting, lost_workers, unfinished)
                    continue
                if kind == HELLO:
                    worker.ready, self.never_ready = True, 0
                    for message in (self.packed, *worker.queue):
                        worker.send(message)
                elif kind == ADVANCED:
                    self.tally.record(worker.queue[0], value)
                elif kind == FAILED:
                    raise value
                elif kind == EXHAUSTED:
                    worker.kill()
                    self._reap(worker, value, tries, waiting, lost_workers, unfinished)
                elif kind == ENDED:
                    batch = worker.queue.popleft()
                    outcomes, seconds = value
                    self.depth = 2 if seconds < SHORT_SECONDS else 1
                    self.played += 1
                    self.tally.ended(batch)
                    # Give new work before the yield, so that the worker does not wait for the disk.
                    self._give(worker, waiting)
                    yield Finished(batch, outcomes, seconds, self.threads)
        return unfinished

    def dismiss(self) -> None:
        """Kill all workers."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _spawn(self, waiting: deque[RunBatch]) -> None:
        """Give waiting batches to idle workers, and start workers for the others."""
        for worker in self.workers:
            self._give(worker, waiting)
        while waiting and len(self.workers) < self.count:
            self.workers.append(Worker(self.threads, self.snapshots))
            self.workers[-1].queue.append(waiting.popleft())

    def _give(self, worker: Worker, waiting: deque[RunBatch]) -> None:
        """Send waiting batches to a worker, until it has ``self.depth`` of them in its queue."""
        while worker.ready and waiting and len(worker.queue) < self.depth:
            worker.queue.append(waiting.popleft())
            worker.send(worker.queue[-1])

    def _reap(
        self,
        worker: Worker,
        end: str,
        tries: int,
        waiting: deque[RunBatch],
        lost_workers: Counter[RunBatch],
        unfinished: Left,
    ) -> None:
        """Remove a dead worker, and reassign its batches.

        The first batch in the worker's queue was running. If ``tries`` workers have died while they
        ran this batch, it is added to ``unfinished``. Otherwise it is added to ``waiting`` again,
        like the worker's other batches. If `HOPELESS` batches have failed in this way and none has
        finished, all batches in ``waiting`` move to ``unfinished`` too. ``end`` is a text that
        states how the worker ended. Raises EngineError if worker processes cannot be started.
        """
        self.workers.remove(worker)
        queue = worker.queue
        if not worker.ready:
            waiting.extendleft(reversed(queue))
            self.never_ready += 1
            if self.never_ready > MAX_TRIES:
                raise EngineError(f"no worker process can be started ({end}); {GUARD}")
            return
        if not queue:
            return
        running = queue.popleft()
        waiting.extendleft(reversed(queue))
        self.tally.record(running, 0)
        lost_workers[running] += 1
        if lost_workers[running] < tries:
            waiting.append(running)
            return
        unfinished.poisoned.append(PoisonBatch(running, end))
        if len(unfinished.poisoned) >= HOPELESS and not self.played:
            unfinished.untried.extend(waiting)
            waiting.clear()


# ---- Predicted times of batches of runs ----------------------------------------------------------
# Times are measured in a worker, so that a user's function that ends its process does not end the
# main process.


#: Seconds that all measurements together may take.
TIMING_SECONDS = 15.0


def time_kinds(
    experiment: Experiment, kinds: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Predict the seconds that one batch of runs of each kind takes on one thread.

    A kind is the positions of a batch's curves in the experiment. `seconds_of` measures each kind
    in a worker process. The result maps kind -> seconds. Kinds that kill their worker, raise an
    error or take too long are missing in it.
    """
    packed, seconds_by_kind = pack(experiment), {}
    until = time.monotonic() + TIMING_SECONDS
    waiting = deque(kinds)
    while waiting and time.monotonic() < until:
        worker = Worker(1, None)
        try:
            for value in (packed, *map(Timing, waiting)):
                worker.send(value)
            started = 0
            while waiting and worker.connection.poll(max(0.0, until - time.monotonic())):
                message_kind, value = worker.connection.recv()
                if message_kind == HELLO:
                    started = 1
                    continue
                positions = waiting.popleft()
                if message_kind == TIMED:
                    seconds_by_kind[positions] = value
                elif message_kind == EXHAUSTED:
                    break
        except (EOFError, OSError):
            if not started:  # workers cannot be started here
                break
            waiting.popleft()
        finally:
            worker.kill()
    return seconds_by_kind
