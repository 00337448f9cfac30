"""Snapshots of long batches of runs, from which an interrupted run resumes.

A snapshot contains everything that later rounds depend on. Between two calls of the compiled driver
this is the arrays of its curves and a few numbers. Between two exchanges of experts it is the
states of the server, the clients and the regret. So a resumed run gives the same results, bit for
bit, as an uninterrupted run. A snapshot is a file in the output folder. The file is written at
intervals, atomically, and deleted once the results of its batch of runs are committed. A snapshot
that is damaged, or from a different experiment or version, is ignored; its batch then starts again.

A snapshot contains the data of the simulated silos, including raw sums of real records, so only its
owner may read the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import fastfed

#: Name of the folder of snapshots in an output folder.
FOLDER = ".snapshots"

#: Format of the arrays. Increase it if an array changes its meaning within one version of fastfed.
FORMAT = 5

#: Least time between two snapshots: in seconds, and in multiples of the time to write a snapshot.
SNAPSHOT_SECONDS = 20.0
TIMES_OF_WRITING = 20.0

#: Suffix of a snapshot that is being written.
DRAFT = ".new"

#: Prefix of the files by which workers of a cluster check that they have access to the folder.
MARK = "seen-"

#: Arrays that are caches; results do not depend on them, so snapshots leave them out.
CACHES = frozenset({"choice"})

_writers: set[int] = set()


def writers() -> set[int]:
    """Return the threads that are writing a snapshot; the process must not exit until they end."""
    return set(_writers)


@contextmanager
def _writing() -> Iterator[None]:
    """Register this thread as a writer during the block."""
    _writers.add(threading.get_ident())
    try:
        yield
    finally:
        _writers.discard(threading.get_ident())


@dataclass(frozen=True)
class Kept:
    """The content of a snapshot."""

    round: int
    stage: int
    arrays: dict[str, np.ndarray]

    def into(self, states: Sequence[dict[str, Any]]) -> bool:
        """Copy the snapshot into the arrays of fresh states (see `arrays_of`), and return True.

        If an array is missing or differs in shape or type, change nothing and return False.
        """
        state_arrays = arrays_of(states)
        for name, array in state_arrays.items():
            stored = self.arrays.get(name)
            if stored is None or stored.shape != array.shape or stored.dtype != array.dtype:
                return False
        for name, array in state_arrays.items():
            array[...] = self.arrays[name]
        return True


@dataclass
class Snapshot:
    """The snapshot of one batch of runs: its file, and when to write it again."""

    path: Path
    of: str  # the experiment, the batch of runs and the version, as text
    begun: float = field(default_factory=time.monotonic)  # time of the last snapshot
    #: Seconds from the last snapshot until the next one is due.
    wait: float = field(default_factory=lambda: SNAPSHOT_SECONDS)
    started: float = field(default_factory=time.monotonic)  # time at which this run started
    earlier: float = 0.0  # seconds of simulation before this run started
    at: tuple[int, int] = (0, 0)  # stage and round of the snapshot in the file

    def due(self) -> bool:
        """Return True if it is time to write a snapshot."""
        return time.monotonic() - self.begun >= self.wait

    def worth_writing_at_stop(self) -> bool:
        """Return True if a run that is stopped now should first write a snapshot."""
        return time.monotonic() - self.begun >= self.wait / 10.0

    def write(
        self, round: int, numbers: np.ndarray, states: Sequence[dict[str, Any]], stage: int = 0
    ) -> None:
        """Write a snapshot of the compiled driver's state after a round, as `keep` does.

        ``numbers`` is the result of `Run.numbers`. ``states`` holds the state of each curve, as
        made by `compiled.state`.
        """
        self.keep(round, {"numbers": numbers, **arrays_of(states)}, stage)

    def keep(self, round: int, arrays: Mapping[str, np.ndarray], stage: int = 0) -> None:
        """Write a snapshot of these arrays, which hold the state of a run after a round.

        ``stage`` is the number of the stage, for runs with several stages. If the file cannot be
        written, for example on a full disk, there is no new snapshot and no error.
        """
        if not round or (stage, round) == self.at:
            return  # no progress since the start or the last snapshot
        with _writing():
            start = time.monotonic()
            seconds = self.earlier + start - self.started
            header = {"of": self.of, "round": round, "stage": stage, "seconds": seconds}
            header["digest"] = _digest(header, arrays)
            header_bytes = json.dumps(header).encode()
            with suppress(OSError):
                self._put({"about": np.frombuffer(header_bytes, np.uint8), **arrays})
                self.at = stage, round
            self.begun = time.monotonic()
            self.wait = max(SNAPSHOT_SECONDS, TIMES_OF_WRITING * (self.begun - start))

    def _put(self, arrays: dict[str, Any]) -> None:
        """Write the arrays to the snapshot's file; a subclass may write them elsewhere."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self.path, lambda file: np.savez(file, **arrays))

    def _open(self) -> Any:
        """Return the path or open file from which `kept` reads the snapshot by `numpy.load`."""
        return self.path

    def kept(self) -> Kept | None:
        """Return the snapshot's content, or None if it is missing, damaged or of another batch.

        Also set `earlier` and `at` to the values in the file.
        """
        try:
            with np.load(self._open(), allow_pickle=False) as archive:
                header = json.loads(archive["about"].tobytes())
                arrays = {name: archive[name] for name in archive.files if name != "about"}
            # The archive's checksums do not cover bytes that NumPy skips if a header is damaged.
            if header.pop("digest") != _digest(header, arrays):
                return None
            if header["of"] != self.of or header["round"] <= 0:
                return None
            self.earlier = float(header.get("seconds", 0.0))
            self.at = header["stage"], header["round"]
            return Kept(header["round"], header["stage"], arrays)
        except Exception:  # a damaged archive can raise almost anything
            return None

    def read(
        self, states: Sequence[dict[str, Any]], last: int, stage: int = 0, kept: Kept | None = None
    ) -> tuple[int, np.ndarray] | None:
        """Set fresh states to those of the snapshot, and return its round and numbers.

        Parameters
        ----------
        states : sequence of dict
            Fresh states of the curves (`compiled.state`), whose arrays are overwritten.
        last : int
            The last round of this stage.
        stage : int
            The stage of the run to which the states belong.
        kept : Kept, optional
            The content of the snapshot, if the caller has already read it.

        Returns
        -------
        (int, ndarray) or None
            The round, and the numbers for `Run.resume`. None, with unchanged states, if there is no
            snapshot that fits.
        """
        kept = kept or self.kept()
        if kept is None or kept.stage != stage or kept.round > last:
            return None
        numbers = kept.arrays.get("numbers")
        if numbers is None or numbers.ndim != 2 or numbers.dtype != np.float64:
            return None
        return (kept.round, numbers) if kept.into(states) else None

    def drop(self) -> None:
        """Delete the file; called if the batch of runs is committed or the snapshot is useless."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of a snapshot's header and arrays, in hexadecimal."""
    hasher = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically, readable by its owner only; raise OSError on failure.

    The draft has a random name, because a worker that seems to have ended may still be writing.
    """
    handle, draft = tempfile.mkstemp(prefix=f"{path.name}.", suffix=DRAFT, dir=path.parent)
    try:
        with open(handle, "wb") as file:  # mode 0600
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def report_progress(
    snapshot: Snapshot | None,
    keep_snapshot: Callable[[Snapshot], None],
    rounds: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Call ``progress(rounds)``, and write a snapshot by ``keep_snapshot`` if one is due.

    ``rounds`` is the number of rounds since the last call. If ``progress`` raises an exception to
    stop the run, first a snapshot is written if `Snapshot.worth_writing_at_stop` is true.
    """
    if snapshot is not None and snapshot.due():
        keep_snapshot(snapshot)
    try:
        if progress is not None:
            progress(rounds)
    except BaseException:
        # The run is stopped. With a snapshot it need not simulate these rounds again.
        if snapshot is not None and snapshot.worth_writing_at_stop():
            keep_snapshot(snapshot)
        raise


def arrays_of(states: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return all writable arrays of the states of curves, except caches.

    ``states`` holds a dict of `compiled.state` for each curve. The arrays have the name
    "curve.field", or "curve.trigger.field". The result also has a few arrays that belong to the
    plan and never change.
    """
    arrays = {}
    for i, state in enumerate(states):
        parts = {"": state, "trigger.": state.get("trigger") or {}}
        for prefix, part in parts.items():
            for name, value in part.items():
                if isinstance(value, np.ndarray) and value.flags.writeable and name not in CACHES:
                    arrays[f"{i}.{prefix}{name}"] = value
    return arrays


def fields_of(objects: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """Return the attributes of objects that their classes list in ``KEPT``.

    ``objects`` maps names to objects; the result maps "name.attribute" to an array. Return None if
    a class does not define ``KEPT`` itself, because a subclass that only inherits ``KEPT`` may have
    further state.
    """
    arrays = {}
    for prefix, value in objects.items():
        names = vars(type(value)).get("KEPT")
        if names is None:
            return None
        for name in names:
            arrays[f"{prefix}.{name}"] = np.asarray(getattr(value, name))
    return arrays


def into_fields(objects: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Set the attributes of fresh objects to the arrays that `fields_of` returned."""
    for prefix, value in objects.items():
        for name in vars(type(value))["KEPT"]:
            array = arrays[f"{prefix}.{name}"]
            setattr(value, name, array if array.ndim else array.item())


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of an experiment's batches of runs, in its output folder."""

    folder: Path
    digest: str  # digest of the experiment's identity

    @classmethod
    def in_output(cls, folder: str | Path, digest: str) -> Snapshots:
        """Return the snapshots in an output folder of the experiment with this digest."""
        return cls(Path(folder) / FOLDER, digest)

    def of(self, replicate: int, positions: Sequence[int]) -> Snapshot:
        """Return the snapshot of one batch of runs: the curves at ``positions`` of a replicate.

        The snapshot's file need not exist.
        """
        parts = [FORMAT, fastfed.__version__, self.digest, replicate, list(positions)]
        identity = json.dumps(parts)
        # The file name contains only the first curve and the number of curves. The identity inside
        # the file contains all curves.
        name = f"replicate-{replicate}-curves-{positions[0]}-{len(positions)}.npz"
        return Snapshot(self.folder / name, identity)

    def tidy(self) -> None:
        """Delete temporary files of killed processes. No other run may be using the folder."""
        for pattern in (f"*{DRAFT}", f"{MARK}*"):
            for path in self.folder.glob(pattern):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all snapshots of a complete run, and their folder."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob("replicate-*"):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()
