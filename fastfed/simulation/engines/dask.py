"""A dask cluster: one that is there already, or processes of this machine.

Batches of runs go out in blocks, each a task without dependencies whose key says what it runs. The
scheduler gives a dead worker's tasks to others by itself; what has cost it too many workers comes
back as a KilledWorker, and is then played alone (``poisoned``).
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dask
from distributed import (
    CancelledError,
    Client,
    KilledWorker,
    LocalCluster,
    WorkerPlugin,
    as_completed,
    get_worker,
)

import fastfed
from fastfed import _signals
from fastfed._validate import InputError
from fastfed.simulation.dispatch import (
    Interrupted,
    RunBatch,
    check_threads,
    run_together,
    seconds_of,
)
from fastfed.simulation.driver import Outcome
from fastfed.simulation.engines import (
    GUARD,
    HOPELESS,
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
from fastfed.simulation.engines.dask_snapshots import (
    AtWorker,
    Desk,
    Place,
    carrier,
    for_task,
    open_place,
)
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

#: Short batches of runs share a task, which then takes about so long: a task costs some
#: milliseconds.
BLOCK_SECONDS = 2.0

#: A scheduler that does not answer for so long is not there.
CONNECT_SECONDS = 5.0

#: Seconds between two words of a task on how far it has come.
EVERY = 1.0

#: A cluster of this machine: profiles and health checks of dask's took 15 % of a processor, idle.
LOCAL = {
    "logging.distributed": "critical",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    "distributed.admin.system-monitor.interval": "10s",
}

Block = tuple[RunBatch, ...]

T = TypeVar("T")


@contextmanager
def open_engine(
    threads: int | None, scheduler: str | None = None, at_once: int | None = None
) -> Iterator[Engine]:
    """The cluster at an address, or one of this machine that begins with the first pass."""
    if scheduler is None:
        yield Dask(check_threads(threads), at_once=at_once)
        return
    with _connected(scheduler) as client:
        yield Dask(_check_workers(client, scheduler), client)


@dataclass(frozen=True)
class Dask:
    """Runs on a client's cluster, or on one that it starts."""

    threads: int
    client: Client | None = None
    at_once: int | None = None  # of a cluster that it starts

    def play(
        self,
        experiment: Experiment,
        passes: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        packed = pack(experiment)
        if not passes:
            return
        threads = max(1, self.threads)
        workers = min(threads, len(passes), self.at_once or threads)
        with (
            _local_cluster(workers) if self.client is None else nullcontext(self.client) as client,
            _sent(client, experiment.digest(), packed, snapshots) as (name, place),
            _heard(client, name, Tally(experiment, progress)) as tally,
            carrier(client, name, place, passes),
        ):

            def run_round(passes: list[RunBatch], alone: bool) -> Generator[Finished, None, Left]:
                inner = threads if alone else max(1, threads // workers)
                size = 1 if alone else -(-len(passes) // (4 * workers))
                tasks = {
                    f"{name}-{_named(block)}{'-alone' if alone else ''}": block
                    for block in blocks(experiment, passes, size)
                }
                return (yield from _play_tasks(client, name, tasks, inner, tally))

            try:
                yield from run_all_rounds(experiment, passes, run_round)
            except KeyboardInterrupt:
                _signals.heard()  # to close a cluster takes some seconds
                raise


def blocks(experiment: Experiment, passes: list[RunBatch], most: int) -> Iterator[Block]:
    """Batches of runs in their order, short ones together, at most so many."""
    seconds: dict[tuple[int, ...], float] = {}
    block: list[RunBatch] = []
    filled = 0.0
    for work in passes:
        if most > 1 and work.positions not in seconds:
            seconds[work.positions] = seconds_of(experiment, work.positions)
        block.append(work)
        filled += seconds.get(work.positions, 0.0)
        if len(block) == most or filled >= BLOCK_SECONDS:
            yield tuple(block)
            block, filled = [], 0.0
    if block:
        yield tuple(block)


def _named(block: Block) -> str:
    """No other block of a round begins with the same pass."""
    return f"{block[0].replicate}-{block[0].positions[0]}-{len(block)}"


def _play_tasks(
    client: Client, name: str, tasks: dict[str, Block], threads: int, tally: Tally
) -> Generator[Finished, None, Left]:
    """One round: every task as it ends."""
    left, played = Left(), 0
    futures = client.map(
        play_block, [name] * len(tasks), list(tasks), list(tasks.values()),
        threads=threads, key=list(tasks), pure=True,
    )  # fmt: skip
    waiting = {str(future.key): future for future in futures}
    del futures
    try:
        for future in as_completed(list(waiting.values()), loop=client.loop):
            key = str(future.key)
            block = tasks[key]
            outcomes, error = _result(future)
            del waiting[key]
            if error is None:
                for work, (found, seconds, used) in zip(block, outcomes, strict=True):
                    played += 1
                    tally.ended(work)
                    yield Finished(work, found, seconds, used)
                continue
            for work in block:
                tally.heard(work, 0)
            if isinstance(error, KilledWorker):
                end = f"the last one was {error.last_worker.address}"
            elif isinstance(error, MemoryError):
                end = "out of memory"
            else:
                raise error
            left.poisoned += [PoisonBatch(work, end) for work in block]
            if len(left.poisoned) >= HOPELESS and not played:
                left.untried.extend(work for key in waiting for work in tasks[key])
                break
    except KeyboardInterrupt:
        _end_workers(client)
        raise
    finally:
        # Tasks that are running see it, and stop.
        with suppress(Exception):
            client.cancel(list(waiting.values()), force=True)
    return left


def _result(future: Any) -> tuple[Any, Exception | None]:
    """Result of a task, or what it raised; EngineError where that is lost."""
    try:
        if future.status == "error":
            return None, future.exception()
        return future.result(), None
    except (CancelledError, OSError, TimeoutError):
        raise EngineError("the scheduler of the dask cluster has gone") from None


# ---- at the worker ------------------------------------------------------------------------------


class Sent(WorkerPlugin):
    """An experiment at every worker, those that come later too."""

    def __init__(self, packed: bytes, place: Place | None) -> None:
        self.packed, self.place = packed, place
        self.desk = Desk()
        self._unpacked: Experiment | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sent, (self.packed, self.place)

    def experiment(self) -> Experiment:
        """Experiment that was packed."""
        self._unpacked = self._unpacked or unpack(self.packed)
        return self._unpacked


def play_block(
    name: str, key: str, block: Block, threads: int
) -> list[tuple[list[Outcome], float, int]]:
    """Outcomes, seconds and threads of each batch of runs of a task."""
    worker = get_worker()
    plugin = worker.plugins[name]
    assert isinstance(plugin, Sent)
    experiment = plugin.experiment()
    threads = min(threads, worker.state.nthreads)
    snapshots = for_task(plugin.place, plugin.desk, worker, name, block)
    played = []
    for work in block:
        ran = run_together(
            experiment, work, threads, _telling(worker, name, key, work), snapshots=snapshots
        )
        if isinstance(snapshots, AtWorker):
            snapshots.of(work.replicate, work.positions).drop()
        played.append((ran.outcomes, ran.seconds, threads))
    return played


def _telling(worker: Any, topic: str, key: str, work: RunBatch) -> Callable[[int], None]:
    """Reports progress now and then; raises Interrupted if the batch of runs is not wanted any
    more."""
    told, played = time.perf_counter(), 0

    def heard(agent_rounds: int) -> None:
        nonlocal told, played
        played += agent_rounds
        if (now := time.perf_counter()) - told >= EVERY:
            told = now
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                raise Interrupted
            worker.log_event(topic, (work.replicate, work.positions, played))

    return heard


# ---- the cluster --------------------------------------------------------------------------------


def _with_loop(make: Callable[[], T]) -> T:
    """What ``make`` makes of dask, tried three times while its event loop does not start.

    ``distributed`` gives the thread of its event loop ten seconds, and asserts that they suffice.
    """
    for _ in range(2):
        with suppress(AssertionError):
            return make()
    try:
        return make()
    except AssertionError:
        raise EngineError(
            "the event loop of dask does not start within ten seconds; this machine is too busy"
        ) from None


def _client(address: str) -> Client:
    """A client of the scheduler at an address.

    One that fails is closed at once. Left to the garbage collector, its destructor waits for the
    lock under which another client starts, for ever if that one's thread collects the garbage.
    """
    client = Client.__new__(Client)
    try:
        client.__init__(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[misc]
    except BaseException:
        with suppress(Exception):
            client.close()
        raise
    return client


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    """A client of the scheduler at an address; InputError where none answers."""
    try:
        with no_interrupts():
            client = _with_loop(partial(_client, address))
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        # A TypeError is dask's word for certificates that its configuration lacks.
        reason = " ".join(str(error).split())
        raise InputError(f"no dask scheduler answers at {address} ({reason})") from None
    with client:
        yield client


@contextmanager
def _local_cluster(workers: int) -> Iterator[Client]:
    """A cluster of this machine, one thread to each worker."""
    with dask.config.set(LOCAL):
        try:
            with no_interrupts():
                cluster = _with_loop(
                    partial(
                        LocalCluster,
                        n_workers=workers,
                        threads_per_worker=1,
                        processes=True,
                        memory_limit=0,
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                    )
                )
        except (RuntimeError, OSError) as error:
            raise EngineError(f"no dask worker can be started ({error}); {GUARD}") from None
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client


def _end_workers(client: Client) -> None:
    """Kill the workers of a cluster of this machine: they would be waited for, and one that a
    function of the user's keeps for long."""
    for nanny in getattr(client.cluster, "workers", {}).values():
        nanny.auto_restart = False
        if nanny.pid is not None:
            with suppress(OSError):
                os.kill(nanny.pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _check_workers(client: Client, address: str) -> int:
    """Threads of all workers; InputError where one has another fastfed, or none."""

    def version() -> str:  # nested, so that it is sent as it is: theirs may lack this module
        import fastfed

        return str(fastfed.__version__)

    found = client.run(version, on_error="return")
    for worker, there in found.items():
        if there != fastfed.__version__:
            has = f"fastfed {there}" if isinstance(there, str) else f"no fastfed ({there})"
            raise InputError(
                f"worker {worker} of {address} has {has}, this process fastfed "
                f"{fastfed.__version__}: both must be the same"
            )
    return sum(client.nthreads().values())


@contextmanager
def _sent(
    client: Client, digest: str, packed: bytes, snapshots: Snapshots | None
) -> Iterator[tuple[str, Place | None]]:
    """The name under which an experiment is at every worker, and where it keeps snapshots."""
    # Another run of the same experiment may use the same cluster.
    name = f"fastfed-{digest}-{uuid.uuid4().hex[:8]}"
    with open_place(snapshots, name) as place:
        client.register_plugin(Sent(packed, place), name=name)
        try:
            yield name, place
        finally:
            # A cluster of this machine ends now, its workers perhaps already; to tell those that
            # have gone prints tracebacks.
            if client.cluster is None:
                with suppress(Exception):
                    client.unregister_worker_plugin(name)


@contextmanager
def _heard(client: Client, topic: str, tally: Tally) -> Iterator[Tally]:
    """A tally that hears the workers too."""

    def hear(event: tuple[float, Any]) -> None:
        replicate, positions, agent_rounds = event[1]
        tally.heard(RunBatch(replicate, tuple(positions)), agent_rounds)

    client.subscribe_topic(topic, hear)
    try:
        yield tally
    finally:
        with suppress(Exception):
            client.unsubscribe_topic(topic)
