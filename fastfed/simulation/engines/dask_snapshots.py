"""Snapshots of batches of runs at the workers of a dask cluster.

A worker that sees the output folder writes its snapshots there. A worker that does not see it keeps
the newest snapshot in memory and notifies the client, which fetches and writes it. When a worker
starts a batch for which the client has a snapshot (the run was stopped, or a worker died), it
requests the snapshot. All messages use dask's existing connections: workers need not be able to
reach the client, and the scheduler need not have fastfed.
"""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from distributed import Client
from distributed.utils import sync

from fastfed.simulation.dispatch import RunBatch
from fastfed.simulation.snapshots import MARK, Snapshot, Snapshots, write_atomically

#: Largest snapshot that is sent over the network, in bytes; larger ones are dropped.
MAX_SENT_BYTES = 256 * 2**20

#: Seconds that a worker waits for a snapshot, and that the client waits for a worker.
PATIENCE = 30.0

#: Messages of workers: "I have a snapshot", and "send me the snapshots of these batches".
HOLDS, WANTS = "holds", "wants"


def key_of(batch: RunBatch) -> str:
    """Return the text that names a batch of runs in messages between client and workers."""
    return json.dumps([batch.replicate, list(batch.positions)])


def batch_of(key: str) -> RunBatch:
    """Return the batch of runs that `key_of` has given this name."""
    replicate, positions = json.loads(key)
    return RunBatch(replicate, tuple(positions))


# ---- at a worker ---------------------------------------------------------------------------------


@dataclass
class SnapshotExchange:
    """Snapshots in a worker's memory: for the client to fetch, or received from the client.

    The first two dicts map the name of a batch (`key_of`) to its snapshot. ``pending`` maps the
    token of a request for snapshots to the event that its answer sets.
    """

    for_client: dict[str, bytes] = field(default_factory=dict)
    from_client: dict[str, bytes] = field(default_factory=dict)
    pending: dict[str, threading.Event] = field(default_factory=dict)


@dataclass
class ClientSnapshot(Snapshot):
    """A snapshot at a worker that does not see the output folder; the client writes the file."""

    exchange: SnapshotExchange = field(default_factory=SnapshotExchange)
    key: str = ""
    worker: Any = None
    topic: str = ""
    too_large: bool = False

    def due(self) -> bool:
        """Return whether it is time to write a snapshot."""
        return not self.too_large and super().due()

    def worth_writing_at_stop(self) -> bool:
        """Return False, since nobody would receive the snapshot.

        A batch at a worker is stopped only if its client has ended or has cancelled the batch.
        """
        return False

    def _put(self, arrays: dict[str, Any]) -> None:
        """Keep the arrays in memory, and notify the client."""
        if sum(np.asarray(array).nbytes for array in arrays.values()) > MAX_SENT_BYTES:
            self.too_large = True
            return
        file = io.BytesIO()
        np.savez(file, **arrays)
        self.exchange.for_client[self.key] = file.getvalue()
        self.worker.log_event(self.topic, (HOLDS, self.worker.address, self.key))

    def _open(self) -> Any:
        """Return the snapshot that the client sent, as an open file; KeyError if there is none."""
        return io.BytesIO(self.exchange.from_client.pop(self.key))

    def drop(self) -> None:
        """Delete the snapshot, because its batch of runs is finished."""
        self.exchange.for_client.pop(self.key, None)
        self.exchange.from_client.pop(self.key, None)


@dataclass(frozen=True)
class Place:
    """The folder of a run's snapshots, and the dask topic of messages about them.

    It is sent to workers, so that workers that see the folder can write there.
    """

    snapshots: Snapshots
    mark: str  # name of a file in the folder; a worker that finds it sees the folder
    topic: str

    def seen(self) -> bool:
        """Return whether this process sees the folder: whether it finds the marker file there."""
        try:
            return (self.snapshots.folder / self.mark).exists()
        except OSError:
            return False


@dataclass(frozen=True)
class AtWorker:
    """The snapshots of a task's batches at a worker, for `dispatch.run_together`."""

    place: Place
    exchange: SnapshotExchange
    worker: Any

    def of(self, replicate: int, positions: Sequence[int]) -> ClientSnapshot:
        """Return the snapshot of one batch of runs, which the client keeps for this worker."""
        snapshot = self.place.snapshots.of(replicate, positions)
        key = key_of(RunBatch(replicate, tuple(positions)))
        return ClientSnapshot(
            snapshot.path,
            snapshot.of,
            exchange=self.exchange,
            key=key,
            worker=self.worker,
            topic=self.place.topic,
        )


def for_task(
    place: Place | None,
    exchange: SnapshotExchange,
    worker: Any,
    name: str,
    block: Sequence[RunBatch],
) -> Snapshots | AtWorker | None:
    """Return where a task at a worker keeps its snapshots; None if the run has no snapshots.

    If the worker sees the output folder, the task keeps them in this folder. Otherwise it keeps
    them in the worker's memory (`AtWorker`). This function then first fetches the snapshots that
    the client already has of the batches in ``block``.

    Parameters
    ----------
    place : Place or None
        The folder of the run's snapshots; None if the run has no snapshots.
    exchange : SnapshotExchange
        The snapshots in this worker's memory.
    worker : distributed.Worker
        This worker.
    name : str
        The name of the run's plugin at the workers.
    block : sequence of RunBatch
        The task's batches of runs.
    """
    if place is None:
        return None
    if place.seen():
        return place.snapshots
    with suppress(Exception):  # a batch whose snapshot is not fetched starts from its first round
        client_keys = sync(
            worker.loop, worker.scheduler.get_metadata, keys=[name], default={},
            callback_timeout=PATIENCE,
        )  # fmt: skip
        keys_to_fetch = [key for key in map(key_of, block) if key in client_keys]
        if keys_to_fetch:
            token = uuid.uuid4().hex
            answer_event = exchange.pending[token] = threading.Event()
            worker.log_event(place.topic, (WANTS, worker.address, token, keys_to_fetch))
            answer_event.wait(PATIENCE)
            exchange.pending.pop(token, None)
    return AtWorker(place, exchange, worker)


def take(name: str, key: str, dask_worker: Any = None) -> bytes | None:
    """Remove the snapshot of batch ``key`` from this worker's memory, and return it.

    The client calls this function at a worker; ``name`` is the name of the run's plugin there.
    """
    data: bytes | None = dask_worker.plugins[name].exchange.for_client.pop(key, None)
    return data


def give(name: str, token: str, snapshots: dict[str, bytes], dask_worker: Any = None) -> None:
    """Store the snapshots that this worker requested with ``token``, if it is still waiting.

    The client calls this function at a worker; ``name`` is the name of the run's plugin there.
    """
    exchange: SnapshotExchange = dask_worker.plugins[name].exchange
    if (answer_event := exchange.pending.get(token)) is not None:
        exchange.from_client.update(snapshots)
        answer_event.set()


# ---- at the client -------------------------------------------------------------------------------


@contextmanager
def open_place(snapshots: Snapshots | None, name: str) -> Iterator[Place | None]:
    """Yield the `Place` of a run's snapshots; None if the run has no snapshots.

    During the block of the context manager, a marker file is in the folder of snapshots. A worker
    that finds the marker file knows that it sees this folder, and writes its snapshots there.
    """
    if snapshots is None:
        yield None
        return
    snapshots = replace(snapshots, folder=snapshots.folder.resolve())
    mark_file = snapshots.folder / f"{MARK}{uuid.uuid4().hex}"
    with suppress(OSError):
        snapshots.folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(mark_file, lambda file: None)
    try:
        yield Place(snapshots, mark_file.name, f"{name}-snapshots")
    finally:
        with suppress(OSError):
            mark_file.unlink(missing_ok=True)


@contextmanager
def carrier(
    client: Client, name: str, place: Place | None, batches: Sequence[RunBatch]
) -> Iterator[None]:
    """Exchange snapshots with the workers in a thread of the client, during the block.

    The thread fetches new snapshots from workers into the folder of ``place``, and sends workers
    the snapshots that they request. ``name`` is the name of the run's plugin at the workers, and
    ``batches`` are the batches that will be run.
    """
    if place is None:
        yield
        return
    messages: SimpleQueue[Any] = SimpleQueue()
    snapshots, announced = place.snapshots, set[str]()

    def announce(key: str) -> None:
        """Let workers know that they can request this snapshot."""
        if key not in announced:
            announced.add(key)
            client.set_metadata([name, key], True)

    def call(function: Any, address: str, *arguments: Any) -> Any:
        """Call a function on one worker and return its answer; None if the worker is gone."""
        # Like `Client.run`, with a timeout for a worker that never answers.
        answers = client.sync(
            client._run, function, name, *arguments, workers=[address], callback_timeout=PATIENCE
        )
        return answers.get(address)

    def answer(kind: str, address: str, *more: Any) -> None:
        """Handle a message from the worker at an address.

        The message (HOLDS, address, key) offers a new snapshot: fetch and store the snapshot. The
        message (WANTS, address, token, keys) requests snapshots: send the ones that exist.
        """
        if kind == HOLDS:
            (key,) = more
            data = call(take, address, key)
            snapshot = snapshots.of(batch_of(key).replicate, batch_of(key).positions)
            # `kept` returns None for a snapshot that was damaged on its way. Such a snapshot must
            # not replace a good one.
            if (
                data
                and ClientSnapshot(
                    snapshot.path,
                    snapshot.of,
                    exchange=SnapshotExchange(from_client={key: data}),
                    key=key,
                ).kept()
            ):
                snapshot.path.parent.mkdir(mode=0o700, exist_ok=True)
                write_atomically(snapshot.path, lambda file: file.write(data))
                announce(key)
        elif kind == WANTS:
            token, keys = more
            content_by_key = {}
            for key in keys:
                with suppress(OSError):  # the file is deleted once the batch is finished
                    snapshot = snapshots.of(batch_of(key).replicate, batch_of(key).positions)
                    content_by_key[key] = snapshot.path.read_bytes()
            call(give, address, token, content_by_key)

    def serve() -> None:
        """Handle the messages of workers, until the message None."""
        while (message := messages.get()) is not None:
            with suppress(Exception):  # a worker may die, or the disk may be full
                answer(*message)

    for batch in batches:
        if snapshots.of(batch.replicate, batch.positions).path.exists():
            announce(key_of(batch))
    thread = threading.Thread(target=serve, name="fastfed_snapshots", daemon=True)
    thread.start()
    client.subscribe_topic(place.topic, lambda event: messages.put(event[1]))
    try:
        yield
    finally:
        messages.put(None)

        def forget(dask_scheduler: Any) -> None:  # nested: a scheduler may lack this module
            """Remove the names of announced snapshots from the scheduler."""
            dask_scheduler.task_metadata.pop(name, None)

        with suppress(Exception):
            client.unsubscribe_topic(place.topic)
        if announced:
            with suppress(Exception):
                client.run_on_scheduler(forget)
        thread.join(1.0)
