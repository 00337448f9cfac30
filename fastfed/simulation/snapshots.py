"""Snapshots of long batches of runs: what was simulated before a run stopped is not lost.

Between two calls of the compiled driver the arrays of its curves and a few numbers are all that
later rounds depend on. So a run that goes on from a snapshot has the bits of one that was never
stopped. A snapshot is a file in the output folder, written now and then, whole or not at all, and
deleted once the results of its batch of runs are committed. One that is damaged, or of another
experiment or version, is not read: its batch begins again.

It holds what the simulated silos hold, raw sums of real records too, so only its owner may read it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fastfed

#: The folder of snapshots, in an output folder.
FOLDER = ".snapshots"

#: Seconds of simulation between two snapshots, at least, and how many times the seconds that
#: writing one took.
EVERY = 20.0
TIMES_OF_WRITING = 20.0

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


@dataclass
class Snapshot:
    """The snapshot of one batch of runs: its file, and when the next one is due."""

    path: Path
    of: str  # the experiment, the batch of runs and the version, as text
    begun: float = field(default_factory=time.monotonic)
    wait: float = field(default_factory=lambda: EVERY)

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() - self.begun >= self.wait

    def worth(self) -> bool:
        """Whether one is worth its while where the run is stopped."""
        return time.monotonic() - self.begun >= self.wait / 10.0

    def write(self, round: int, numbers: np.ndarray, states: Sequence[dict[str, Any]]) -> None:
        """Keep what holds after a round. A disk that has no room is no failure of the run."""
        with _writing():
            self._write(round, numbers, states)

    def _write(self, round: int, numbers: np.ndarray, states: Sequence[dict[str, Any]]) -> None:
        start = time.monotonic()
        about = np.frombuffer(json.dumps({"of": self.of, "round": round}).encode(), np.uint8)
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                arrays: dict[str, Any] = {"about": about, "numbers": numbers, **_arrays(states)}
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
        self.begun = time.monotonic()
        self.wait = max(EVERY, TIMES_OF_WRITING * (self.begun - start))

    def read(self, states: Sequence[dict[str, Any]], last: int) -> tuple[int, np.ndarray] | None:
        """Bring fresh states to the round of the snapshot.

        Parameters
        ----------
        states : sequence of dict
            Fresh states of the curves (`compiled.state`), whose arrays are overwritten.
        last : int
            Rounds there are in all.

        Returns
        -------
        (int, ndarray) or None
            That round, and the numbers beside the arrays; None where there is no snapshot that
            fits, and then nothing is overwritten.
        """
        try:
            with np.load(self.path, allow_pickle=False) as kept:
                about = json.loads(kept["about"].tobytes())
                numbers = kept["numbers"]
                # All of them, before any is used: the archive checks each as it is read.
                found = {name: kept[name] for name in _arrays(states)}
            round = about["round"] if about["of"] == self.of else 0
            if not 0 < round <= last or numbers.ndim != 2 or numbers.dtype != np.float64:
                return None
        except Exception:  # whatever a damaged archive makes its reader raise
            return None
        into = _arrays(states)
        if any(
            found[name].shape != a.shape or found[name].dtype != a.dtype for name, a in into.items()
        ):
            return None
        for name, array in into.items():
            array[...] = found[name]
        return round, numbers

    def drop(self) -> None:
        """Delete it: its batch of runs is committed, or is of no use."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _arrays(states: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """All arrays that rounds change, by name. Plans' own are among them, and stay as they are."""
    found = {}
    for i, state in enumerate(states):
        parts = {"": state, "trigger.": state["trigger"] or {}}
        for prefix, part in parts.items():
            for name, value in part.items():
                if isinstance(value, np.ndarray) and value.flags.writeable and name not in CACHES:
                    found[f"{i}.{prefix}{name}"] = value
    return found


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
        of = json.dumps([fastfed.__version__, self.digest, replicate, list(positions)])
        # A name for each batch that has these curves first; the text inside has them all.
        name = f"replicate-{replicate}-curves-{positions[0]}-{len(positions)}.npz"
        return Snapshot(self.folder / name, of)

    def clear(self) -> None:
        """Delete what is left of a run that is complete."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob("replicate-*"):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()
