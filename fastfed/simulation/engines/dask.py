"""The engine "dask": an existing dask cluster, or one that is started on this machine.

Batches of runs are sent in blocks. Each block is a task without dependencies; the key of the task
contains the name of the block. The scheduler reassigns the tasks of a dead worker automatically. A
task that has killed too many workers ends with a KilledWorker. The curves of its batches are then
tried again one by one (`run_all_rounds`).
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
    Place,
    SnapshotExchange,
    carrier,
    for_task,
    open_place,
)
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

#: Target seconds of a task. A task costs some milliseconds, so short batches of runs share one.
BLOCK_SECONDS = 2.0

#: Seconds to wait for an answer of a scheduler.
CONNECT_SECONDS = 5.0

#: Seconds between two progress messages of a task.
PROGRESS_SECONDS = 1.0

#: Configuration of a cluster on this machine. dask's default profiling and health checks take 15 %
#: of a processor even when the cluster is idle.
LOCAL_CLUSTER_CONFIG = {
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
    """Yield the engine for the cluster with this scheduler's address, or for a new local cluster.

    A local cluster starts with the first batch, has ``threads`` threads, and runs at most
    ``at_once`` batches of runs at once.
    """
    if scheduler is None:
        yield Dask(check_threads(threads), at_once=at_once)
        return
    with _connected(scheduler) as client:
        yield Dask(_checked_threads(client, scheduler), client)


@dataclass(frozen=True)
class Dask:
    """Runs batches on the cluster of a client, or on a cluster that it starts."""

    threads: int
    client: Client | None = None
    at_once: int | None = None  # most batches at once, for a cluster that it starts

    def play(
        self,
        experiment: Experiment,
        batches: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        """Run the batches on the cluster, see `Engine.play`."""
        packed = pack(experiment)
        if not batches:
            return
        threads = max(1, self.threads)
        workers = min(threads, len(batches), self.at_once or threads)
        with (
            _local_cluster(workers) if self.client is None else nullcontext(self.client) as client,
            _at_workers(client, experiment.digest(), packed, snapshots) as (name, place),
            _progress_received(client, name, Tally(experiment, progress)) as tally,
            carrier(client, name, place, batches),
        ):

            def run_round(batches: list[RunBatch], alone: bool) -> Generator[Finished, None, Left]:
                """Run batches on all workers; yield those that finish, and return the others.

                This is a round of tries (`run_all_rounds`), not a round of the bandit. With
                ``alone``, there is one batch, which runs with all threads.
                """
                # About four tasks per worker, so that the last tasks end at similar times.
                threads_per_batch = threads if alone else max(1, threads // workers)
                size = 1 if alone else -(-len(batches) // (4 * workers))
                tasks = {
                    f"{name}-{_block_name(block)}{'-alone' if alone else ''}": block
                    for block in blocks(experiment, batches, size)
                }
                return (yield from _play_tasks(client, name, tasks, threads_per_batch, tally))

            try:
                yield from run_all_rounds(experiment, batches, run_round)
            except KeyboardInterrupt:
                _signals.announce_end()  # closing a cluster takes some seconds
                raise


def blocks(experiment: Experiment, batches: list[RunBatch], most: int) -> Iterator[Block]:
    """Yield blocks of consecutive batches, each of which becomes a task.

    A block has at most ``most`` batches, and ends when its batches take about `BLOCK_SECONDS`.
    """
    seconds: dict[tuple[int, ...], float] = {}
    block: list[RunBatch] = []
    block_seconds = 0.0
    for batch in batches:
        if most > 1 and batch.positions not in seconds:
            seconds[batch.positions] = seconds_of(experiment, batch.positions)
        block.append(batch)
        block_seconds += seconds.get(batch.positions, 0.0)
        if len(block) == most or block_seconds >= BLOCK_SECONDS:
            yield tuple(block)
            block, block_seconds = [], 0.0
    if block:
        yield tuple(block)


def _block_name(block: Block) -> str:
    """Return the name of a block: replicate and first curve of its first batch, and its size.

    Names are unique among the blocks that run together, because no two have the same first batch.
    """
    return f"{block[0].replicate}-{block[0].positions[0]}-{len(block)}"


def _play_tasks(
    client: Client, name: str, tasks: dict[str, Block], threads: int, tally: Tally
) -> Generator[Finished, None, Left]:
    """Run tasks on the cluster, and yield their batches as tasks finish.

    ``tasks`` maps the key of each task to its block of batches. Return the batches that were not
    finished.
    """
    unfinished, finished = Left(), 0
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
                for batch, (batch_outcomes, seconds, task_threads) in zip(
                    block, outcomes, strict=True
                ):
                    finished += 1
                    tally.ended(batch)
                    yield Finished(batch, batch_outcomes, seconds, task_threads)
                continue
            for batch in block:
                tally.record(batch, 0)
            if isinstance(error, KilledWorker):
                worker_end = f"the last one was {error.last_worker.address}"
            elif isinstance(error, MemoryError):
                worker_end = "out of memory"
            else:
                raise error
            unfinished.poisoned += [PoisonBatch(batch, worker_end) for batch in block]
            # If many batches have failed and none was finished, the batches are not the reason.
            if len(unfinished.poisoned) >= HOPELESS and not finished:
                unfinished.untried.extend(batch for key in waiting for batch in tasks[key])
                break
    except KeyboardInterrupt:
        _end_workers(client)
        raise
    finally:
        # Running tasks notice that they are cancelled, and stop.
        with suppress(Exception):
            client.cancel(list(waiting.values()), force=True)
    return unfinished


def _result(future: Any) -> tuple[Any, Exception | None]:
    """Return (result, None) of a finished task, or (None, exception) of a failed task.

    Raises EngineError if the scheduler has ended, so that the result is lost.
    """
    try:
        if future.status == "error":
            return None, future.exception()
        return future.result(), None
    except (CancelledError, OSError, TimeoutError):
        raise EngineError("the scheduler of the dask cluster has ended") from None


# ---- at the worker ------------------------------------------------------------------------------


class ExperimentPlugin(WorkerPlugin):
    """Plugin that sends an experiment to every worker, including workers that join later."""

    def __init__(self, packed_experiment: bytes, place: Place | None) -> None:
        self.packed_experiment, self.place = packed_experiment, place
        self.exchange = SnapshotExchange()
        self._unpacked: Experiment | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ExperimentPlugin, (self.packed_experiment, self.place)

    def experiment(self) -> Experiment:
        """Return the experiment; it is unpickled at the first call."""
        self._unpacked = self._unpacked or unpack(self.packed_experiment)
        return self._unpacked


def play_block(
    name: str, key: str, block: Block, threads: int
) -> list[tuple[list[Outcome], float, int]]:
    """Run a task at a worker; return (outcomes, seconds, threads) of each batch in its block.

    ``name`` is the name of the `ExperimentPlugin` at the worker, and ``key`` the key of the task.
    """
    worker = get_worker()
    plugin = worker.plugins[name]
    assert isinstance(plugin, ExperimentPlugin)
    experiment = plugin.experiment()
    threads = min(threads, worker.state.nthreads)
    snapshots = for_task(plugin.place, plugin.exchange, worker, name, block)
    results = []
    for batch in block:
        timed = run_together(
            experiment,
            batch,
            threads,
            _progress_sender(worker, name, key, batch),
            snapshots=snapshots,
        )
        if isinstance(snapshots, AtWorker):
            snapshots.of(batch.replicate, batch.positions).drop()
        results.append((timed.outcomes, timed.seconds, threads))
    return results


def _progress_sender(worker: Any, topic: str, key: str, batch: RunBatch) -> Callable[[int], None]:
    """Return a progress function that reports to the client every ``PROGRESS_SECONDS`` seconds.

    It raises Interrupted if the task was cancelled.
    """
    last_report, agent_rounds_done = time.perf_counter(), 0

    def on_progress(agent_rounds: int) -> None:
        """If a report is due, report progress, or raise Interrupted if the task was cancelled."""
        nonlocal last_report, agent_rounds_done
        agent_rounds_done += agent_rounds
        if (seconds := time.perf_counter()) - last_report >= PROGRESS_SECONDS:
            last_report = seconds
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                raise Interrupted
            worker.log_event(topic, (batch.replicate, batch.positions, agent_rounds_done))

    return on_progress


# ---- the cluster --------------------------------------------------------------------------------


def _with_loop(make: Callable[[], T]) -> T:
    """Return ``make()``, called up to three times until dask's event loop starts in time.

    ``distributed`` raises AssertionError if the thread of its event loop does not start within ten
    seconds.
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
    """Return a client of the scheduler at an address.

    A client that cannot connect is closed at once. Otherwise its destructor would later wait for a
    lock. Every client holds this lock while it starts. If the garbage collector runs the destructor
    in the thread of a client that is starting, the thread waits for itself: a deadlock.
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
    """Yield a client of the scheduler at an address; raise InputError if none answers."""
    try:
        with no_interrupts():
            client = _with_loop(partial(_client, address))
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        # dask raises TypeError if its configuration lacks certificates.
        reason = " ".join(str(error).split())
        raise InputError(f"no dask scheduler answers at {address} ({reason})") from None
    with client:
        yield client


@contextmanager
def _local_cluster(workers: int) -> Iterator[Client]:
    """Yield the client of a new cluster on this machine, with one thread per worker.

    The cluster ends with the caller's ``with`` statement.
    """
    with dask.config.set(LOCAL_CLUSTER_CONFIG):
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
    """Kill the workers of a cluster on this machine, so that closing does not wait for them."""
    for nanny in getattr(client.cluster, "workers", {}).values():
        nanny.auto_restart = False
        if nanny.pid is not None:
            with suppress(OSError):
                os.kill(nanny.pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _checked_threads(client: Client, address: str) -> int:
    """Return the number of threads of all workers; raise InputError if fastfed versions differ."""

    def version() -> str:  # nested, so that its code is sent: a worker may lack this module
        """Return the version of fastfed at a worker."""
        import fastfed

        return str(fastfed.__version__)

    versions = client.run(version, on_error="return")
    for worker, worker_version in versions.items():
        if worker_version != fastfed.__version__:
            versions_text = (
                f"fastfed {worker_version}"
                if isinstance(worker_version, str)
                else f"no fastfed ({worker_version})"
            )
            raise InputError(
                f"worker {worker} of {address} has {versions_text}, this process fastfed "
                f"{fastfed.__version__}: both must be the same"
            )
    return sum(client.nthreads().values())


@contextmanager
def _at_workers(
    client: Client, digest: str, packed: bytes, snapshots: Snapshots | None
) -> Iterator[tuple[str, Place | None]]:
    """Send a packed experiment to all workers, until the caller's ``with`` statement ends.

    Yield the name of the plugin that holds the experiment at the workers, and the place of the
    experiment's snapshots.
    """
    # The name is random, because another run of the experiment may use the same cluster.
    name = f"fastfed-{digest}-{uuid.uuid4().hex[:8]}"
    with open_place(snapshots, name) as place:
        client.register_plugin(ExperimentPlugin(packed, place), name=name)
        try:
            yield name, place
        finally:
            # A cluster on this machine ends now anyway, and messages to workers that have already
            # ended would print tracebacks.
            if client.cluster is None:
                with suppress(Exception):
                    client.unregister_worker_plugin(name)


@contextmanager
def _progress_received(client: Client, topic: str, tally: Tally) -> Iterator[Tally]:
    """Add the workers' progress messages to a tally until the caller's ``with`` statement ends."""

    def on_event(event: tuple[float, Any]) -> None:
        """Record the progress message of a worker."""
        replicate, positions, agent_rounds = event[1]
        tally.record(RunBatch(replicate, tuple(positions)), agent_rounds)

    client.subscribe_topic(topic, on_event)
    try:
        yield tally
    finally:
        with suppress(Exception):
            client.unsubscribe_topic(topic)
