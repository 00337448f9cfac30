"""Worker processes of this machine, one batch of runs each."""

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
    MOST_TRIES,
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

# What a worker process does: it runs the batches of runs that come through its pipe, until that
# closes.


#: Kinds of messages to the owner.
HELLO, HEARD, ENDED, FAILED, EXHAUSTED = "hello", "heard", "ended", "failed", "exhausted"
TIMED = "timed"

#: Seconds between two words on how far a batch of runs has come.
EVERY = 0.5


@dataclass(frozen=True)
class Timing:
    """Asks a worker how long a batch of runs over these curves takes."""

    positions: tuple[int, ...]


def serve(connection: Connection, threads: int, snapshots: Snapshots | None) -> None:
    """Run with that many threads. The first message that comes is the packed experiment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (owner := multiprocessing.parent_process()) is not None:
        # A function that never comes back would outlive the owner.
        _signals.end_with(owner.sentinel)
    try:
        connection.send((HELLO, None))
        packed, experiment = connection.recv(), None
        while True:
            work = connection.recv()
            try:
                experiment = experiment or unpack(packed)
                if isinstance(work, Timing):
                    connection.send((TIMED, seconds_of(experiment, work.positions)))
                    continue
                ran = run_together(
                    experiment, work, threads, _heard(connection), snapshots=snapshots
                )
                connection.send((ENDED, (ran.outcomes, ran.seconds)))
            except Interrupted:
                return
            except MemoryError:
                connection.send((EXHAUSTED, "out of memory"))
            except Exception as error:
                connection.send((FAILED, portable(error)))
    except (EOFError, OSError):
        return  # the owner has gone, and with it whoever wanted this


def _heard(connection: Connection) -> Callable[[int], None]:
    """Reports progress to the owner now and then; raises Interrupted if there is no owner."""
    spoken, played = time.perf_counter(), 0

    def heard(agent_rounds: int) -> None:
        nonlocal spoken, played
        played += agent_rounds
        if (now := time.perf_counter()) - spoken >= EVERY:
            spoken = now
            try:
                connection.send((HEARD, played))
            except OSError:
                raise Interrupted from None

    return heard


def portable(error: Exception) -> Exception:
    """An error that can be sent, its traceback in a note; another of its words if it cannot."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = error.__notes__
        return other
    return error


# Processes of this machine, one batch of runs each: a worker that dies takes one batch of runs with
# it, not the run.
# The pools of the standard library give up all their workers when one of them dies, and cannot say
# what it was running; here every worker has a pipe of its own, so that both are known.


#: A batch of runs shorter than this is followed by one that waits at the worker already.
SHORT_SECONDS = 1.0


@contextmanager
def open_engine(
    threads: int | None, scheduler: str | None = None, at_once: int | None = None
) -> Iterator[Engine]:
    """Processes of this machine."""
    yield Processes(check_threads(threads), at_once)


@dataclass(frozen=True)
class Processes:
    """One worker for each batch of runs, up to the threads; further threads are shared among
    them."""

    threads: int
    at_once: int | None = None

    def play(
        self,
        experiment: Experiment,
        passes: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        packed, tally = pack(experiment), Tally(experiment, progress)

        def run_round(passes: list[RunBatch], alone: bool) -> Generator[Finished, None, Left]:
            count = 1 if alone else min(self.threads, len(passes), self.at_once or self.threads)
            threads = max(1, self.threads // max(1, count))
            pool = WorkerPool(packed, count, threads, tally, snapshots)
            try:
                return (yield from pool.play(passes, 1 if alone else MOST_TRIES))
            finally:
                pool.dismiss()

        return run_all_rounds(experiment, passes, run_round)


class Worker:
    """A process, the pipe to it, and what it has been asked to run, the running pass first."""

    def __init__(self, threads: int, snapshots: Snapshots | None) -> None:
        # Not a fork: threads of ours may hold locks that a copy would wait for.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, threads, snapshots)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        with no_interrupts():
            self.process.start()
        theirs.close()
        self.queue: deque[RunBatch] = deque()
        self.ready = False

    def send(self, value: Any) -> None:
        # When it has died its end of the pipe says so to whoever listens.
        with suppress(OSError):
            self.connection.send(value)

    def end(self) -> str:
        """Sentence that says how the process ended."""
        self.connection.close()
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def kill(self) -> None:
        """End it: it owns nothing that could be left half-written."""
        self.process.kill()
        self.end()


@dataclass
class WorkerPool:
    """The workers of one round."""

    packed: bytes
    count: int
    threads: int
    tally: Tally
    snapshots: Snapshots | None = None
    workers: list[Worker] = field(default_factory=list)
    depth: int = 1
    played: int = 0
    never_ready: int = 0

    def play(self, passes: list[RunBatch], tries: int) -> Generator[Finished, None, Left]:
        """Run batches of runs; one that has lost ``tries`` workers is a poison batch."""
        waiting, lost, left = deque(passes), Counter[RunBatch](), Left()
        while waiting or any(w.queue for w in self.workers):
            self._spawn(waiting)
            by_connection = {w.connection: w for w in self.workers}
            for connection in wait(list(by_connection)):
                assert isinstance(connection, Connection)
                worker = by_connection[connection]
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    self._reap(worker, worker.end(), tries, waiting, lost, left)
                    continue
                if kind == HELLO:
                    worker.ready, self.never_ready = True, 0
                    for message in (self.packed, *worker.queue):
                        worker.send(message)
                elif kind == HEARD:
                    self.tally.heard(worker.queue[0], value)
                elif kind == FAILED:
                    raise value
                elif kind == EXHAUSTED:
                    worker.kill()
                    self._reap(worker, value, tries, waiting, lost, left)
                elif kind == ENDED:
                    work = worker.queue.popleft()
                    outcomes, seconds = value
                    self.depth = 2 if seconds < SHORT_SECONDS else 1
                    self.played += 1
                    self.tally.ended(work)
                    # Before the owner keeps what was run: nobody waits for its disk.
                    self._give(worker, waiting)
                    yield Finished(work, outcomes, seconds, self.threads)
        return left

    def dismiss(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _spawn(self, waiting: deque[RunBatch]) -> None:
        """Work for whoever has none, and workers for what is left."""
        for worker in self.workers:
            self._give(worker, waiting)
        while waiting and len(self.workers) < self.count:
            self.workers.append(Worker(self.threads, self.snapshots))
            self.workers[-1].queue.append(waiting.popleft())

    def _give(self, worker: Worker, waiting: deque[RunBatch]) -> None:
        while worker.ready and waiting and len(worker.queue) < self.depth:
            worker.queue.append(waiting.popleft())
            worker.send(worker.queue[-1])

    def _reap(
        self,
        worker: Worker,
        end: str,
        tries: int,
        waiting: deque[RunBatch],
        lost: Counter[RunBatch],
        left: Left,
    ) -> None:
        """Take a dead worker's batches back: the first was running, the others only waited."""
        self.workers.remove(worker)
        queue = worker.queue
        if not worker.ready:
            waiting.extendleft(reversed(queue))
            self.never_ready += 1
            if self.never_ready > MOST_TRIES:
                raise EngineError(f"no worker process can be started ({end}); {GUARD}")
            return
        if not queue:
            return
        running = queue.popleft()
        waiting.extendleft(reversed(queue))
        self.tally.heard(running, 0)
        lost[running] += 1
        if lost[running] < tries:
            waiting.append(running)
            return
        left.poisoned.append(PoisonBatch(running, end))
        if len(left.poisoned) >= HOPELESS and not self.played:
            left.untried.extend(waiting)
            waiting.clear()


# How long batches of runs take, asked of a worker: a function of the user's that ends its process
# must not end the one that owns the results.


#: Seconds that timing may take in all.
TIMING_SECONDS = 15.0


def time_kinds(
    experiment: Experiment, kinds: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Seconds of one batch of runs of each kind on one thread, as `seconds_of` has them.

    What ends its worker, raises or takes too long is left out.
    """
    packed, found = pack(experiment), {}
    until = time.monotonic() + TIMING_SECONDS
    waiting = deque(kinds)
    while waiting and time.monotonic() < until:
        worker = Worker(1, None)
        try:
            for value in (packed, *map(Timing, waiting)):
                worker.send(value)
            asked = 0
            while waiting and worker.connection.poll(max(0.0, until - time.monotonic())):
                kind, value = worker.connection.recv()
                if kind == HELLO:
                    asked = 1
                    continue
                positions = waiting.popleft()
                if kind == TIMED:
                    found[positions] = value
                elif kind == EXHAUSTED:
                    break
        except (EOFError, OSError):
            if not asked:  # it has not even started
                break
            waiting.popleft()
        finally:
            worker.kill()
    return found
