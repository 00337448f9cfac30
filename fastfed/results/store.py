"""The store: one SQLite file in an output folder, one committed row per curve and replicate.

What a run decided stands in ``meta``, ``curves`` and ``cells`` and is the same however the run
was divided; how long it took, and with which versions, stands apart, in ``timings`` and ``runs``,
and when and by what a certificate was made in ``certified``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import fastfed
from fastfed._validate import InputError
from fastfed.results import files
from fastfed.results.files import LockHeld, exclusive, write_error
from fastfed.results.results import CurveResult, Results, total_events

FILE = "results.sqlite"

#: Held by the process that writes; it goes when that ends.
LOCK = f".{FILE}.lock"

#: What SQLite says when the disk does not take what it writes.
FAILING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)
#: What SQLite says when others hold its file for long.
WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
FORMAT = "4"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE curves (
    position INTEGER PRIMARY KEY, label TEXT NOT NULL, algorithm TEXT NOT NULL,
    protocol TEXT NOT NULL, facts TEXT NOT NULL, certificate TEXT NOT NULL);
CREATE TABLE cells (
    position INTEGER NOT NULL, replicate INTEGER NOT NULL, group_regret BLOB NOT NULL,
    synchronisations BLOB NOT NULL, bits_up BLOB NOT NULL, bits_down BLOB NOT NULL,
    events TEXT NOT NULL, PRIMARY KEY (position, replicate)) WITHOUT ROWID;
CREATE TABLE timings (
    position INTEGER NOT NULL, replicate INTEGER NOT NULL, seconds REAL NOT NULL,
    agent_rounds INTEGER NOT NULL, threads INTEGER NOT NULL,
    PRIMARY KEY (position, replicate)) WITHOUT ROWID;
CREATE TABLE runs (
    run INTEGER PRIMARY KEY, seconds REAL NOT NULL, threads INTEGER NOT NULL,
    fastfed TEXT NOT NULL, python TEXT NOT NULL, numpy TEXT NOT NULL, platform TEXT NOT NULL);
"""

#: Of the certificates in ``curves``: which version made them, and when. Older stores have none.
CERTIFIED = """
CREATE TABLE IF NOT EXISTS certified (
    position INTEGER PRIMARY KEY, version TEXT NOT NULL, spec_digest TEXT NOT NULL,
    date TEXT NOT NULL)
"""


@dataclass(frozen=True)
class CurveRow:
    """What the store keeps of a curve beside its cells."""

    label: str
    algorithm: str
    protocol: str
    facts: dict[str, Any]  # silos, dimension, and bounds where the system has some
    certificate: dict[str, Any]


@dataclass(frozen=True)
class ReplicateRow:
    """One curve, one replicate; arrays are by checkpoint, as an Outcome has them."""

    position: int
    replicate: int
    group_regret: np.ndarray
    synchronisations: np.ndarray
    bits_up: np.ndarray
    bits_down: np.ndarray
    events: dict[str, int]


@dataclass(frozen=True)
class RunRow:
    """One call that played something: how long until its last commit, and on what."""

    seconds: float
    threads: int
    fastfed: str
    python: str
    numpy: str
    platform: str


@dataclass(frozen=True)
class Effort:
    """What the committed cells cost."""

    thread_seconds: float
    agent_rounds: int
    runs: tuple[RunRow, ...]


def made_now(identity: dict[str, Any]) -> dict[str, str]:
    """Which version makes certificates now, for which spec, and on which day (UTC).

    The digest is the SHA-256 of the identity, all keys of a spec that decide its results.
    """
    return {
        "version": fastfed.__version__,
        "spec_digest": hashlib.sha256(_json(identity).encode()).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """While a store is read: whatever is damaged in it is said in a sentence."""
    try:
        yield
    except InputError:
        raise
    except (sqlite3.DatabaseError, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) in WAITING:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged, or no store of fastfed ({reason})") from None


class Store:
    """An open store. Use ``create_or_resume`` to write, ``open_existing`` to read."""

    def __init__(self, connection: sqlite3.Connection, path: Path, threads: int = 1) -> None:
        self._db = connection
        self.path = path
        self._threads = threads
        self._opened = time.perf_counter()
        self._run: int | None = None

    @classmethod
    @contextmanager
    def create_or_resume(
        cls, folder: Path, meta: dict[str, Any], curves: Sequence[CurveRow], threads: int = 1
    ) -> Iterator[Store]:
        """The store of an experiment in a folder, made if there is none; nobody else writes to it.

        ``meta`` must hold ``identity``; a folder whose store has another one is refused, and so
        is one that another process has open here: nothing is written then. ``threads`` is noted
        beside the time.
        """
        path = folder / FILE
        _check_identity(folder, path, meta)
        there = folder.exists()
        with ExitStack() as stack:
            stack.enter_context(_owned(folder))
            made = not _check_identity(folder, path, meta)
            if made:
                _make(folder, path, meta, curves)
            try:
                with _opened(path, threads, curves, meta) as store:
                    yield store
            except MemoryError:
                # What never fitted leaves nothing that looks like results.
                if made and not _cells_in(path):
                    with suppress(OSError):
                        path.unlink()
                        stack.close()
                        if not there:
                            folder.rmdir()
                raise

    @classmethod
    @contextmanager
    def open_existing(cls, folder: Path) -> Iterator[Store]:
        """The store of a folder, for reading."""
        path = folder / FILE
        if not os.path.isfile(path):
            raise InputError(f"{folder} holds no results ({FILE} is missing)")
        _read_meta(path)
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30.0)
        try:
            yield cls(connection, path)
        finally:
            connection.close()

    @classmethod
    def done_in(cls, folder: Path, identity: dict[str, Any]) -> set[tuple[int, int]]:
        """(position, replicate) of every cell committed in a folder, none where there is no store.

        Nothing is written; a store of another experiment is refused.
        """
        if not _check_identity(folder, folder / FILE, {"identity": identity}):
            return set()
        with cls.open_existing(folder) as store:
            return store.done()

    def done(self) -> set[tuple[int, int]]:
        """(position, replicate) of every committed cell."""
        with _whole(self.path):
            rows = self._db.execute("SELECT position, replicate FROM cells")
            return {(files.whole(position), files.whole(replicate)) for position, replicate in rows}

    def commit(
        self, cells: Iterable[ReplicateRow], seconds: float, agent_rounds: int, threads: int
    ) -> None:
        """Commit cells played in one pass, all or none; ``seconds`` is each cell's share."""
        with self._db:
            for c in cells:
                self._db.execute(
                    "INSERT OR IGNORE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        c.position,
                        c.replicate,
                        np.asarray(c.group_regret, "<f8").tobytes(),
                        np.asarray(c.synchronisations, "<i8").tobytes(),
                        np.asarray(c.bits_up, "<f8").tobytes(),
                        np.asarray(c.bits_down, "<f8").tobytes(),
                        _json(c.events),
                    ),
                )
                self._db.execute(
                    "INSERT OR IGNORE INTO timings VALUES (?, ?, ?, ?, ?)",
                    (c.position, c.replicate, seconds, agent_rounds, threads),
                )
            self._note_run()

    def _note_run(self) -> None:
        """The row of this run, whose time is that of its last commit."""
        seconds = time.perf_counter() - self._opened
        if self._run is None:
            versions = (fastfed.__version__, platform.python_version(), np.__version__)
            machine = f"{platform.system()} {platform.machine()}"
            self._run = self._db.execute(
                "INSERT INTO runs VALUES (NULL, ?, ?, ?, ?, ?, ?)",
                (seconds, self._threads, *versions, machine),
            ).lastrowid
        else:
            self._db.execute("UPDATE runs SET seconds = ? WHERE run = ?", (seconds, self._run))

    def effort(self) -> Effort:
        """What all committed cells cost."""
        with _whole(self.path):
            seconds, played = self._db.execute(
                "SELECT total(seconds * threads), coalesce(sum(agent_rounds), 0) FROM timings"
            ).fetchone()
            runs = self._db.execute(
                "SELECT seconds, threads, fastfed, python, numpy, platform FROM runs ORDER BY run"
            )
            return Effort(
                files.finite(seconds), files.whole(played), tuple(_run_of(row) for row in runs)
            )

    def meta(self) -> dict[str, Any]:
        """Everything under ``meta``, decoded."""
        with _whole(self.path):
            rows = self._db.execute("SELECT key, value FROM meta")
            return files.checked_meta({k: msgspec.json.decode(v) for k, v in rows})

    def results(self, replicates: int | None = None) -> Results:
        """Results over the committed cells (of the first ``replicates`` replicates)."""
        with _whole(self.path):
            return self._results(replicates)

    def _certified(self) -> dict[int, dict[str, str]]:
        """How the certificates were made, by position; nothing of older stores."""
        there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'certified'"
        if not self._db.execute(there).fetchone()[0]:
            return {}
        rows = self._db.execute("SELECT position, version, spec_digest, date FROM certified")
        return {
            files.whole(position): {
                "version": files.text(version),
                "spec_digest": files.text(digest),
                "date": files.text(date),
            }
            for position, version, digest, date in rows
        }

    def _results(self, replicates: int | None) -> Results:
        meta = self.meta()
        identity = meta["identity"]
        rounds = np.array(meta["rounds"], np.int64)
        limit = replicates if replicates is not None else 2**62
        made = self._certified()
        curves = []
        for position, label, algorithm, protocol, facts, certificate in self._db.execute(
            "SELECT * FROM curves ORDER BY position"
        ):
            rows = list(
                self._db.execute(
                    "SELECT replicate, group_regret, synchronisations, bits_up, bits_down, "
                    "events FROM cells "
                    "WHERE position = ? AND replicate < ? ORDER BY replicate",
                    (position, limit),
                )
            )
            if not rows:
                continue
            seconds, played = self._db.execute(
                "SELECT sum(seconds * threads), sum(agent_rounds) FROM timings "
                "WHERE position = ? AND replicate < ?",
                (position, limit),
            ).fetchone()
            curves.append(
                CurveResult(
                    label=files.text(label),
                    algorithm=files.text(algorithm),
                    protocol=files.text(protocol),
                    horizon=identity["horizon"],
                    rounds=rounds,
                    group_regret=files.counted([r[1] for r in rows], "<f8", len(rounds)),
                    replicates=tuple(files.whole(r[0]) for r in rows),
                    synchronisation_counts=files.counted([r[2] for r in rows], "<i8", len(rounds)),
                    bits_up_counts=files.counted([r[3] for r in rows], "<f8", len(rounds)),
                    bits_down_counts=files.counted([r[4] for r in rows], "<f8", len(rounds)),
                    **files.facts(facts, len(rounds)),
                    certificate=files.certificate(certificate),
                    made=made.get(position, {}),
                    events=total_events([msgspec.json.decode(r[5]) for r in rows]),
                    agent_rounds_per_second=played / files.finite(seconds) if seconds else None,
                )
            )
        return Results(
            identity["name"], identity["horizon"], identity["silos"], tuple(curves), meta["figure"]
        )


def _cells_in(path: Path) -> int:
    """How many cells a store that nobody has open holds."""
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])
    finally:
        connection.close()


@contextmanager
def _opened(
    path: Path, threads: int, curves: Sequence[CurveRow], meta: dict[str, Any]
) -> Iterator[Store]:
    """A store for writing, its labels up to date."""
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        # How it is drawn and what is known of its privacy are no part of what was played:
        # the newest wins.
        with connection:
            connection.execute(CERTIFIED)
            made = tuple(made_now(meta["identity"]).values())
            for position, curve in enumerate(curves):
                certificate = _json(curve.certificate)
                # One that stays the same keeps its day.
                connection.execute(
                    "DELETE FROM certified WHERE position = ?1 AND (version != ?2 OR EXISTS ("
                    "SELECT 1 FROM curves WHERE position = ?1 AND certificate != ?3))",
                    (position, made[0], certificate),
                )
                connection.execute(
                    "INSERT OR IGNORE INTO certified VALUES (?, ?, ?, ?)", (position, *made)
                )
                connection.execute(
                    "UPDATE curves SET facts = ?1, certificate = ?2 WHERE position = ?3 "
                    "AND (facts != ?1 OR certificate != ?2)",
                    (_json(curve.facts), certificate, position),
                )
            connection.execute(
                "UPDATE meta SET value = ?1 WHERE key = 'figure' AND value != ?1",
                (_json(meta.get("figure", {})),),
            )
        yield Store(connection, path, threads)
    finally:
        connection.close()


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """The folder, made if need be, with nobody else who writes results into it."""
    lock = folder / LOCK
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(lock))
        except LockHeld as taken:
            by = f" by process {taken.owner}" if taken.owner else ""
            raise InputError(
                f"{folder} is being played{by}: wait for it, or choose another output folder"
            ) from None
        except OSError as error:
            raise write_error(folder, error) from None
        yield


def _check_identity(folder: Path, path: Path, meta: dict[str, Any]) -> bool:
    """Whether there is a store; InputError where it is another experiment's."""
    if not os.path.exists(path):
        return False
    existing = _read_meta(path)
    if existing["identity"] != _json(meta["identity"]):
        with _whole(path):
            before = msgspec.json.decode(existing["identity"])
            name = before.get("name")
            what = _difference(before, meta["identity"])
        raise InputError(
            f'{folder} holds another experiment ("{name}", different {what}); '
            "choose another output folder"
        )
    return True


def _make(folder: Path, path: Path, meta: dict[str, Any], curves: Sequence[CurveRow]) -> None:
    """A new store, complete under another name before it gets its own."""
    fresh = folder / f".{FILE}.new"
    try:
        fresh.unlink(missing_ok=True)
        connection = sqlite3.connect(fresh)
        try:
            # A journal beside a file that is thrown away when this fails would outlive it.
            connection.execute("PRAGMA journal_mode = MEMORY")
            with connection:
                connection.executescript(SCHEMA)
                rows = {"format": FORMAT, **meta}
                connection.executemany(
                    "INSERT INTO meta VALUES (?, ?)", [(k, _json(v)) for k, v in rows.items()]
                )
                connection.executemany(
                    "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (i, c.label, c.algorithm, c.protocol, _json(c.facts), _json(c.certificate))
                        for i, c in enumerate(curves)
                    ],
                )
        finally:
            connection.close()
        fresh.replace(path)
    except OSError as error:
        raise write_error(folder, error) from None
    except sqlite3.Error as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        if getattr(error, "sqlite_errorcode", None) in FAILING:
            raise
        raise InputError(f"cannot write to {folder}: {error}") from None


def _read_meta(path: Path) -> dict[str, str]:
    try:
        meta = _meta_of(path, "ro")
    except (sqlite3.Error, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise InputError(f"{path} is not a store of fastfed, or it is damaged") from None
        # A process died while it was committing: whoever may write takes that commit back.
        try:
            meta = _meta_of(path, "rw")
        except sqlite3.Error as other:
            raise InputError(
                f"{path} was being written when its process died, and cannot be put in order "
                f"here ({other}): open it once where it can be written"
            ) from None
    if meta.get("format") != _json(FORMAT) or "identity" not in meta:
        raise InputError(f"{path} was written by another version of fastfed")
    return meta


def _meta_of(path: Path, mode: str) -> dict[str, str]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=30.0)
    try:
        return dict(connection.execute("SELECT key, value FROM meta"))
    finally:
        connection.close()


def _run_of(row: Sequence[Any]) -> RunRow:
    seconds, threads, *words = row
    return RunRow(files.finite(seconds), files.whole(threads), *map(files.text, words))


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first keys in which two identities differ."""
    plain = msgspec.json.decode(msgspec.json.encode(now))
    both = {**before, **plain}
    return ", ".join(k for k in both if before.get(k) != plain.get(k)) or "keys"
