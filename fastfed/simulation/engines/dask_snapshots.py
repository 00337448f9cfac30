"""Snapshots of batches of runs at workers of a dask cluster.

A worker that sees the output folder writes there. One that does not holds its newest snapshot in
memory and says so; the client takes it, one at a time, and writes it. A worker that begins a batch
of which the client has a snapshot, since it was stopped or its worker died, asks for it. All goes
over the connections that there are: a client need not be reachable, nor have the scheduler fastfed.
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
from fastfed.simulation.snapshots import MARK, Snapshot, Snapshots, store

#: Bytes of a snapshot that goes over the network, at most: a larger one is not kept.
MOST_SENT = 256 * 2**20

#: Seconds that a worker waits for a snapshot, and that the client waits for a worker.
PATIENCE = 30.0

#: What workers say: that they hold a snapshot; that they want those of some batches.
HOLDS, WANTS = "holds", "wants"


def key_of(work: RunBatch) -> str:
    """Name of a batch of runs, between client and workers."""
    return json.dumps([work.replicate, list(work.positions)])


def batch_of(key: str) -> RunBatch:
    """The batch of that name."""
    replicate, positions = json.loads(key)
    return RunBatch(replicate, tuple(positions))


# ---- at a worker ---------------------------------------------------------------------------------


@dataclass
class Desk:
    """What a worker holds for the client, and what it was given."""

    held: dict[str, bytes] = field(default_factory=dict)
    given: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, threading.Event] = field(default_factory=dict)


@dataclass
class Carried(Snapshot):
    """A snapshot whose file is the client's."""

    desk: Desk = field(default_factory=Desk)
    key: str = ""
    worker: Any = None
    topic: str = ""
    too_large: bool = False

    def due(self) -> bool:
        """Whether it is time for another."""
        return not self.too_large and super().due()

    def worth(self) -> bool:
        """No: where a batch is stopped its client has gone, or wants it no more."""
        return False

    def _put(self, arrays: dict[str, Any]) -> None:
        if sum(np.asarray(array).nbytes for array in arrays.values()) > MOST_SENT:
            self.too_large = True
            return
        file = io.BytesIO()
        np.savez(file, **arrays)
        self.desk.held[self.key] = file.getvalue()
        self.worker.log_event(self.topic, (HOLDS, self.worker.address, self.key))

    def _open(self) -> Any:
        return io.BytesIO(self.desk.given.pop(self.key))  # a KeyError where there is none

    def drop(self) -> None:
        """Forget it: its batch of runs is over."""
        self.desk.held.pop(self.key, None)
        self.desk.given.pop(self.key, None)


@dataclass(frozen=True)
class Place:
    """Where the snapshots of a run are kept, as its workers are told."""

    snapshots: Snapshots
    mark: str  # a file of the folder, by which a worker knows that it sees it
    topic: str

    def seen(self) -> bool:
        """Whether this process sees the folder."""
        try:
            return (self.snapshots.folder / self.mark).exists()
        except OSError:
            return False


@dataclass(frozen=True)
class AtWorker:
    """Snapshots of the batches of a task, for `dispatch.run_together`."""

    place: Place
    desk: Desk
    worker: Any

    def of(self, replicate: int, positions: Sequence[int]) -> Carried:
        """The snapshot of one batch of runs."""
        one = self.place.snapshots.of(replicate, positions)
        key = key_of(RunBatch(replicate, tuple(positions)))
        return Carried(
            one.path, one.of, desk=self.desk, key=key, worker=self.worker, topic=self.place.topic
        )


def for_task(
    place: Place | None, desk: Desk, worker: Any, name: str, block: Sequence[RunBatch]
) -> Snapshots | AtWorker | None:
    """Where a task keeps snapshots of its batches; what the client has of them is fetched."""
    if place is None:
        return None
    if place.seen():
        return place.snapshots
    with suppress(Exception):  # without an answer they begin again
        there = sync(
            worker.loop, worker.scheduler.get_metadata, keys=[name], default={},
            callback_timeout=PATIENCE,
        )  # fmt: skip
        wanted = [key for key in map(key_of, block) if key in there]
        if wanted:
            token = uuid.uuid4().hex
            answered = desk.asked[token] = threading.Event()
            worker.log_event(place.topic, (WANTS, worker.address, token, wanted))
            answered.wait(PATIENCE)
            desk.asked.pop(token, None)
    return AtWorker(place, desk, worker)


def take(name: str, key: str, dask_worker: Any = None) -> bytes | None:
    """At a worker: the snapshot that it holds of a batch, which it then forgets."""
    found: bytes | None = dask_worker.plugins[name].desk.held.pop(key, None)
    return found


def give(name: str, token: str, found: dict[str, bytes], dask_worker: Any = None) -> None:
    """At a worker: what it asked for, if it still waits."""
    desk: Desk = dask_worker.plugins[name].desk
    if (answered := desk.asked.get(token)) is not None:
        desk.given.update(found)
        answered.set()


# ---- at the client -------------------------------------------------------------------------------


@contextmanager
def open_place(snapshots: Snapshots | None, name: str) -> Iterator[Place | None]:
    """Where a run keeps snapshots, marked for workers that see it."""
    if snapshots is None:
        yield None
        return
    snapshots = replace(snapshots, folder=snapshots.folder.resolve())
    mark = snapshots.folder / f"{MARK}{uuid.uuid4().hex}"
    with suppress(OSError):
        snapshots.folder.mkdir(mode=0o700, exist_ok=True)
        store(mark, lambda file: None)
    try:
        yield Place(snapshots, mark.name, f"{name}-snapshots")
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)


@contextmanager
def carrier(
    client: Client, name: str, place: Place | None, passes: Sequence[RunBatch]
) -> Iterator[None]:
    """A thread that takes what workers hold, and gives them what they want."""
    if place is None:
        yield
        return
    said: SimpleQueue[Any] = SimpleQueue()
    snapshots, known = place.snapshots, set[str]()

    def tell(key: str) -> None:
        """Workers may ask for it from now on."""
        if key not in known:
            known.add(key)
            client.set_metadata([name, key], True)

    def call(function: Any, address: str, *given: Any) -> Any:
        # `Client.run`, with an end to waiting for a worker that never answers.
        found = client.sync(
            client._run, function, name, *given, workers=[address], callback_timeout=PATIENCE
        )
        return found.get(address)

    def answer(kind: str, address: str, *more: Any) -> None:
        if kind == HOLDS:
            (key,) = more
            data = call(take, address, key)
            one = snapshots.of(batch_of(key).replicate, batch_of(key).positions)
            # One that is damaged on its way does not replace a good one.
            if data and Carried(one.path, one.of, desk=Desk(given={key: data}), key=key).kept():
                one.path.parent.mkdir(mode=0o700, exist_ok=True)
                store(one.path, lambda file: file.write(data))
                tell(key)
        elif kind == WANTS:
            token, keys = more
            found = {}
            for key in keys:
                with suppress(OSError):  # it has been run meanwhile
                    one = snapshots.of(batch_of(key).replicate, batch_of(key).positions)
                    found[key] = one.path.read_bytes()
            call(give, address, token, found)

    def serve() -> None:
        while (what := said.get()) is not None:
            with suppress(Exception):  # of a worker that dies, or of a full disk
                answer(*what)

    for work in passes:
        if snapshots.of(work.replicate, work.positions).path.exists():
            tell(key_of(work))
    thread = threading.Thread(target=serve, name="fastfed_snapshots", daemon=True)
    thread.start()
    client.subscribe_topic(place.topic, lambda event: said.put(event[1]))
    try:
        yield
    finally:
        said.put(None)

        def forget(dask_scheduler: Any) -> None:  # nested: a scheduler may lack this module
            dask_scheduler.task_metadata.pop(name, None)

        with suppress(Exception):
            client.unsubscribe_topic(place.topic)
        if known:
            with suppress(Exception):
                client.run_on_scheduler(forget)
        thread.join(1.0)
