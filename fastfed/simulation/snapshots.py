"""Snapshots of long batches of runs: what was simulated before a run stopped is not lost.

Between two calls of the compiled driver the arrays of its curves and a few numbers are all that
later rounds depend on; between two exchanges of experts it is what the server, the ledger of regret
and all clients together have reached. So a run that goes on from a snapshot has the bits of one
that was never stopped. A snapshot is a file in the output folder, written now and then, whole or
not at all, and deleted once the results of its batch of runs are committed. One that is damaged, or
of another experiment or version, is not read: its batch begins again.

It holds what the simulated silos hold, raw sums of real records too, so only its owner may read it.
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

#: The folder of snapshots, in an output folder.
FOLDER = ".snapshots"

#: What arrays hold: one more when the same array means something else in the same version.
FORMAT = 4

#: Seconds of simulation between two snapshots, at least, and how many times the seconds that
#: writing one took.
EVERY = 20.0
TIMES_OF_WRITING = 20.0

#: How the name of a snapshot that is being written ends.
DRAFT = ".new"

#: How the name of a file begins by which workers of a cluster know that they see the folder.
MARK = "seen-"

#: Caches, which say nothing of the results.
CACHES = frozenset({"choice", "candidates"})

_writers: set[int] = set()


def writers() -> set[int]:
    """Threads of this process that are writing a snapshot: to leave them would lose it."""
    return set(_writers)


@contextmanager
def _writing() -> Iterator[None]:
    _writers.add(threading.get_ident())
    try:
        yield
    finally:
        _writers.discard(threading.get_ident())


@dataclass(frozen=True)
class Kept:
    """All that a snapshot holds."""

    round: int
    stage: int
    arrays: dict[str, np.ndarray]

    def into(self, states: Sequence[dict[str, Any]]) -> bool:
        """Overwrite the arrays of fresh states (`arrays_of`), or none where one does not fit."""
        into = arrays_of(states)
        for name, array in into.items():
            found = self.arrays.get(name)
            if found is None or found.shape != array.shape or found.dtype != array.dtype:
                return False
        for name, array in into.items():
            array[...] = self.arrays[name]
        return True


@dataclass
class Snapshot:
    """The snapshot of one batch of runs: its file, and when the next one is due."""

    path: Path
    of: str  # the experiment, the batch of runs and the version, as text
    begun: float = field(default_factory=time.monotonic)
    wait: float = field(default_factory=lambda: EVERY)
    started: float = field(default_factory=time.monotonic)
    earlier: float = 0.0  # seconds that the part took that was kept
    at: tuple[int, int] = (0, 0)  # stage and round of what is kept

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() - self.begun >= self.wait

    def worth(self) -> bool:
        """Whether one is worth its while where the run is stopped."""
        return time.monotonic() - self.begun >= self.wait / 10.0

    def write(
        self, round: int, numbers: np.ndarray, states: Sequence[dict[str, Any]], stage: int = 0
    ) -> None:
        """Keep what holds after a round of compiled runs, as `keep` does.

        ``numbers``: those of `Run.numbers`; ``states``: of the curves (`compiled.state`).
        """
        self.keep(round, {"numbers": numbers, **arrays_of(states)}, stage)

    def keep(self, round: int, arrays: Mapping[str, np.ndarray], stage: int = 0) -> None:
        """Keep what holds after a round. A disk that has no room is no failure of the run.

        ``stage``: the part of the run that the round is of, where a run has several.
        """
        if not round or (stage, round) == self.at:
            return  # nothing to lose before the first round, nor just after one was read
        with _writing():
            start = time.monotonic()
            seconds = self.earlier + start - self.started
            said = {"of": self.of, "round": round, "stage": stage, "seconds": seconds}
            said["digest"] = _digest(said, arrays)
            about = json.dumps(said).encode()
            with suppress(OSError):
                self._put({"about": np.frombuffer(about, np.uint8), **arrays})
                self.at = stage, round
            self.begun = time.monotonic()
            self.wait = max(EVERY, TIMES_OF_WRITING * (self.begun - start))

    def _put(self, arrays: dict[str, Any]) -> None:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        store(self.path, lambda file: np.savez(file, **arrays))

    def _open(self) -> Any:
        """What `numpy.load` reads."""
        return self.path

    def kept(self) -> Kept | None:
        """All that was kept; None where there is nothing, or it is damaged or of something else."""
        try:
            with np.load(self._open(), allow_pickle=False) as archive:
                about = json.loads(archive["about"].tobytes())
                arrays = {name: archive[name] for name in archive.files if name != "about"}
            # The archive's own sums miss what a damaged header makes NumPy skip.
            if about.pop("digest") != _digest(about, arrays):
                return None
            if about["of"] != self.of or about["round"] <= 0:
                return None
            self.earlier = float(about.get("seconds", 0.0))
            self.at = about["stage"], about["round"]
            return Kept(about["round"], about["stage"], arrays)
        except Exception:  # whatever a damaged archive makes its reader raise
            return None

    def read(
        self, states: Sequence[dict[str, Any]], last: int, stage: int = 0, kept: Kept | None = None
    ) -> tuple[int, np.ndarray] | None:
        """Bring fresh states to the round of the snapshot.

        Parameters
        ----------
        states : sequence of dict
            Fresh states of the curves (`compiled.state`), whose arrays are overwritten.
        last : int
            Rounds there are in all, of this stage.
        stage : int
            The part of the run that the states are of.
        kept : Kept, optional
            What was kept, if it has been read.

        Returns
        -------
        (int, ndarray) or None
            That round, and the numbers beside the arrays; None where there is no snapshot that
            fits, and then nothing is overwritten.
        """
        kept = kept or self.kept()
        if kept is None or kept.stage != stage or kept.round > last:
            return None
        numbers = kept.arrays.get("numbers")
        if numbers is None or numbers.ndim != 2 or numbers.dtype != np.float64:
            return None
        return (kept.round, numbers) if kept.into(states) else None

    def drop(self) -> None:
        """Delete it: its batch of runs is committed, or is of no use."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _digest(said: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Digest of what a snapshot says and holds."""
    made = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        made.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        made.update(array.reshape(-1).view(np.uint8).data)
    return made.hexdigest()


def store(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there whole or not at all, for its owner alone; OSError if it cannot.

    Its draft has a name of its own: a worker that is taken for dead may still write too.
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


def tell(
    snapshot: Snapshot | None,
    keep: Callable[[Snapshot], None],
    rounds: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Tell of rounds that were run, and ``keep`` what holds after them: where a snapshot is due,
    and where ``progress`` stops the run."""
    if snapshot is not None and snapshot.due():
        keep(snapshot)
    try:
        if progress is not None:
            progress(rounds)
    except BaseException:
        # Stopped: what there is so far need not be simulated again.
        if snapshot is not None and snapshot.worth():
            keep(snapshot)
        raise


def arrays_of(states: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """All arrays that rounds change, by name. Plans' own are among them, and stay as they are."""
    found = {}
    for i, state in enumerate(states):
        parts = {"": state, "trigger.": state.get("trigger") or {}}
        for prefix, part in parts.items():
            for name, value in part.items():
                if isinstance(value, np.ndarray) and value.flags.writeable and name not in CACHES:
                    found[f"{i}.{prefix}{name}"] = value
    return found


def fields_of(objects: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """What the classes of objects name as ``KEPT``, numbers and arrays, by name; None where a class
    has no such names of its own: one that inherits may have more to keep."""
    found = {}
    for prefix, value in objects.items():
        names = vars(type(value)).get("KEPT")
        if names is None:
            return None
        for name in names:
            found[f"{prefix}.{name}"] = np.asarray(getattr(value, name))
    return found


def into_fields(objects: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Give fresh objects what `fields_of` found."""
    for prefix, value in objects.items():
        for name in vars(type(value))["KEPT"]:
            array = arrays[f"{prefix}.{name}"]
            setattr(value, name, array if array.ndim else array.item())


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of an experiment's batches of runs, in its output folder."""

    folder: Path
    digest: str  # of the experiment: all that its results depend on

    @classmethod
    def in_output(cls, folder: str | Path, digest: str) -> Snapshots:
        """Those of an output folder."""
        return cls(Path(folder) / FOLDER, digest)

    def of(self, replicate: int, positions: Sequence[int]) -> Snapshot:
        """The snapshot of one batch of runs."""
        parts = [FORMAT, fastfed.__version__, self.digest, replicate, list(positions)]
        of = json.dumps(parts)
        # A name for each batch that has these curves first; the text inside has them all.
        name = f"replicate-{replicate}-curves-{positions[0]}-{len(positions)}.npz"
        return Snapshot(self.folder / name, of)

    def tidy(self) -> None:
        """Delete what processes that were killed have left beside snapshots. Only while no other
        run writes here."""
        for pattern in (f"*{DRAFT}", f"{MARK}*"):
            for path in self.folder.glob(pattern):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete what is left of a run that is complete."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob("replicate-*"):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()
