"""The store: one SQLite file in an output folder, one committed row per curve and replicate.

The tables ``meta``, ``curves`` and ``cells`` (one row per curve and replicate) hold results, which
are the same however a run was divided. Times and versions are apart, in ``timings`` and ``runs``;
``certified`` says when, and by which version, each certificate was made; ``digests`` has a digest
of every row.
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
from urllib.parse import quote_from_bytes

import msgspec
import numpy as np

import fastfed
from fastfed._validate import InputError
from fastfed.results import digests, files
from fastfed.results.files import LockHeld, exclusive, write_error
from fastfed.results.identity import difference, moves_of
from fastfed.results.results import CurveResult, Results, total_events

FILE = "results.sqlite"

#: Lock file of the writing process; removed when that ends.
LOCK = f".{FILE}.lock"

#: SQLite's error codes of a full or failing disk.
FAILING = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
#: SQLite's error codes where other processes hold its file for long.
WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: Seconds to wait for them.
PATIENCE = 30.0
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

#: Version and date of each certificate in ``curves``. Older stores do not have this table.
CERTIFIED = """
CREATE TABLE IF NOT EXISTS certified (
    position INTEGER PRIMARY KEY, version TEXT NOT NULL, spec_digest TEXT NOT NULL,
    date TEXT NOT NULL)
"""


@dataclass(frozen=True)
class CurveRow:
    """One row of ``curves``: what is stored of a curve beside its replicates."""

    label: str
    algorithm: str
    protocol: str
    facts: dict[str, Any]  # silos, dimension, and bounds where the system has some
    certificate: dict[str, Any]


@dataclass(frozen=True)
class ReplicateRow:
    """One row of ``cells``: one replicate of one curve; arrays are by checkpoint, (C,)."""

    position: int
    replicate: int
    group_regret: np.ndarray
    synchronisations: np.ndarray
    bits_up: np.ndarray
    bits_down: np.ndarray
    events: dict[str, int]


@dataclass(frozen=True)
class RunRow:
    """One row of ``runs``: a call that simulated something, with its time and versions.

    ``seconds`` is the wall-clock time until the last commit.
    """

    seconds: float
    threads: int
    fastfed: str
    python: str
    numpy: str
    platform: str


@dataclass(frozen=True)
class Effort:
    """Cost of all committed replicates: thread-seconds, agent-rounds, and the runs."""

    thread_seconds: float
    agent_rounds: int
    runs: tuple[RunRow, ...]


def made_now(identity: dict[str, Any]) -> dict[str, str]:
    """Return version, spec digest and date (UTC) for certificates that are made now.

    The digest is the SHA-256 of the identity: all keys of a spec that decide its results.
    """
    return {
        "version": fastfed.__version__,
        "spec_digest": hashlib.sha256(_json(identity).encode()).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


class StoreLocked(sqlite3.OperationalError):
    """Another program has held a store for longer than is waited for it."""


@contextmanager
def _holder_named(path: Path) -> Iterator[None]:
    """Turn SQLite's errors of a locked store into a sentence that names who holds it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) not in WAITING:
            raise
        holders = files.holders(path)
        who = f"by {' and '.join(holders)}" if holders else "by another program"
        raise StoreLocked(
            f"{path} has been held {who} for more than {PATIENCE:g} s: close it there and run "
            "again, which continues from the results that are stored"
        ) from None


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn errors of a damaged store into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except (sqlite3.DatabaseError, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) in (*WAITING, *FAILING):
            raise
        reason = " ".join(str(error).split())
        # What Python says of two values that do not go together tells nobody anything.
        if not reason or isinstance(error, (TypeError, AttributeError)):
            reason = "a row cannot be read"
        raise InputError(f"{path} is damaged, or no store of fastfed ({reason})") from None


class Store:
    """An open store: ``create_or_resume`` opens one to write, ``open_existing`` to read."""

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
        """Open the store of an experiment for writing, and create it if there is none.

        One that lacks some of the curves gets them, and keeps all that was simulated.

        Parameters
        ----------
        folder : Path
            The output folder, created if need be. Only one process at a time writes there.
        meta : dict
            The table ``meta``; must hold ``identity``.
        curves : sequence of CurveRow
            All curves of the experiment, in order.
        threads : int
            Noted beside the time of the run.

        Raises
        ------
        InputError
            If the folder holds another experiment, another process writes there, or it cannot be
            written. Nothing is written then.
        """
        path = folder / FILE
        _check_identity(folder, path, meta)
        there = folder.exists()
        with ExitStack() as stack:
            stack.enter_context(_holder_named(path))
            # Made of real records, without noise: for whoever ran it.
            private = any("about_records" in curve.facts for curve in curves)
            stack.enter_context(_owned(folder, private))
            moves = _check_identity(folder, path, meta)
            made = moves is None
            if moves is None:
                _make(folder, path, meta, curves, private)
            elif len(moves) < len(curves):
                with _damage_named(path):
                    _grow(path, moves, meta, curves)
            try:
                with _opened(path, threads, curves, meta) as store:
                    yield store
            except MemoryError:
                # A run that never fitted into memory leaves nothing that looks like results.
                if made and not _count_rows(path):
                    with suppress(OSError):
                        path.unlink()
                        stack.close()
                        if not there:
                            folder.rmdir()
                raise

    @classmethod
    @contextmanager
    def open_existing(cls, folder: Path) -> Iterator[Store]:
        """Open the store of a folder for reading; InputError where there is none."""
        path = folder / FILE
        if not os.path.isfile(path):
            inside = sorted(each.parent for each in folder.glob(f"*/{FILE}"))
            what = f"its subfolder {inside[0]} does" if inside else "fastfed run writes them"
            raise InputError(f"{folder} holds no results ({FILE} is missing): {what}")
        _read_meta(path)
        connection = sqlite3.connect(f"{_uri(path)}?mode=ro", uri=True, timeout=PATIENCE)
        try:
            with _damage_named(path):
                # One transaction: another process may be writing.
                connection.execute("BEGIN")
                digests.check(connection)
                connection.rollback()
            yield cls(connection, path)
        finally:
            connection.close()

    @classmethod
    def done_in(cls, folder: Path, identity: dict[str, Any]) -> set[tuple[int, int]]:
        """Return (position, replicate) of all that is committed in a folder.

        Positions are those of ``identity``, which may have more curves than the store. Empty where
        there is no store. Writes nothing; InputError for another experiment's store.
        """
        moves = _check_identity(folder, folder / FILE, {"identity": identity})
        if moves is None:
            return set()
        with cls.open_existing(folder) as store:
            return {(moves[position], replicate) for position, replicate in store.done()}

    def done(self) -> set[tuple[int, int]]:
        """Return (curve position, replicate) of every committed row."""
        with _damage_named(self.path):
            rows = self._db.execute("SELECT position, replicate FROM cells")
            return {
                (files.check_whole(position), files.check_whole(replicate))
                for position, replicate in rows
            }

    def commit(
        self, rows: Iterable[ReplicateRow], seconds: float, agent_rounds: int, threads: int
    ) -> None:
        """Commit the rows of one batch of runs, all or none.

        Parameters
        ----------
        rows : iterable of ReplicateRow
            Results, one row per curve and replicate.
        seconds, agent_rounds : float, int
            Share of each row in the batch's time and work.
        threads : int
            Threads that the batch ran on.
        """
        with self._db:
            for c in rows:
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
                for table in ("cells", "timings"):
                    digests.seal_row(self._db, table, c.position, c.replicate)
            self._note_run()

    def _note_run(self) -> None:
        """Write the row of this run, whose time is that of its last commit."""
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
        digests.seal_row(self._db, "runs", self._run)

    def effort(self) -> Effort:
        """Return the cost of all committed rows."""
        with _damage_named(self.path):
            seconds, agent_rounds = self._db.execute(
                "SELECT total(seconds * threads), coalesce(sum(agent_rounds), 0) FROM timings"
            ).fetchone()
            runs = self._db.execute(
                "SELECT seconds, threads, fastfed, python, numpy, platform FROM runs ORDER BY run"
            )
            return Effort(
                files.check_finite(seconds),
                files.check_whole(agent_rounds),
                tuple(_run_of(row) for row in runs),
            )

    def meta(self) -> dict[str, Any]:
        """Return the table ``meta``, decoded and checked."""
        with _damage_named(self.path):
            rows = self._db.execute("SELECT key, value FROM meta")
            return files.check_meta({k: msgspec.json.decode(v) for k, v in rows})

    def results(self, replicates: int | None = None) -> Results:
        """Return results over all committed rows, or over the first ``replicates`` replicates."""
        with _damage_named(self.path):
            return self._results(replicates)

    def _certified(self) -> dict[int, dict[str, str]]:
        """Return version, digest and date of each certificate, by position; none of old stores."""
        there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'certified'"
        if not self._db.execute(there).fetchone()[0]:
            return {}
        rows = self._db.execute("SELECT position, version, spec_digest, date FROM certified")
        return {
            files.check_whole(position): {
                "version": files.check_text(version),
                "spec_digest": files.check_text(digest),
                "date": files.check_text(date),
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
            seconds, agent_rounds = self._db.execute(
                "SELECT sum(seconds * threads), sum(agent_rounds) FROM timings "
                "WHERE position = ? AND replicate < ?",
                (position, limit),
            ).fetchone()
            curves.append(
                CurveResult(
                    label=files.check_text(label),
                    algorithm=files.check_text(algorithm),
                    protocol=files.check_text(protocol),
                    horizon=identity["horizon"],
                    rounds=rounds,
                    group_regret=files.decode_replicates([r[1] for r in rows], "<f8", len(rounds)),
                    replicates=tuple(files.check_whole(r[0]) for r in rows),
                    synchronisation_counts=files.decode_replicates(
                        [r[2] for r in rows], "<i8", len(rounds)
                    ),
                    bits_up_counts=files.decode_replicates(
                        [r[3] for r in rows], "<f8", len(rounds)
                    ),
                    bits_down_counts=files.decode_replicates(
                        [r[4] for r in rows], "<f8", len(rounds)
                    ),
                    **files.decode_facts(facts, len(rounds)),
                    certificate=files.decode_certificate(certificate),
                    made=made.get(position, {}),
                    events=total_events([msgspec.json.decode(r[5]) for r in rows]),
                    agent_rounds_per_second=agent_rounds / files.check_finite(seconds)
                    if seconds
                    else None,
                )
            )
        return Results(
            identity["name"], identity["horizon"], identity["silos"], tuple(curves), meta["figure"]
        )


def _count_rows(path: Path) -> int:
    """Return the number of committed rows of a store that is not open."""
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])
    finally:
        connection.close()


@contextmanager
def _opened(
    path: Path, threads: int, curves: Sequence[CurveRow], meta: dict[str, Any]
) -> Iterator[Store]:
    """Open a store for writing, and bring figure, facts and certificates up to date."""
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        # The figure and what is known of privacy are no part of the results: the newest wins.
        with _damage_named(path), connection:
            digests.check(connection)
            whole = not digests.sealed(connection)
            connection.execute(CERTIFIED)
            made = tuple(made_now(meta["identity"]).values())
            for position, curve in enumerate(curves):
                certificate = _json(curve.certificate)
                # A certificate that stays the same keeps its date.
                connection.execute(
                    "DELETE FROM certified WHERE position = ? AND (version != ? OR EXISTS ("
                    "SELECT 1 FROM curves WHERE position = ? AND certificate != ?))",
                    (position, made[0], position, certificate),
                )
                connection.execute(
                    "INSERT OR IGNORE INTO certified VALUES (?, ?, ?, ?)", (position, *made)
                )
                facts_and_certificate = _json(curve.facts), certificate
                connection.execute(
                    "UPDATE curves SET facts = ?, certificate = ? WHERE position = ? "
                    "AND (facts != ? OR certificate != ?)",
                    (*facts_and_certificate, position, *facts_and_certificate),
                )
            connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'figure' AND value != ?",
                (_json(meta.get("figure", {})),) * 2,
            )
            digests.seal(connection, digests.KEYS if whole else ("meta", "curves", "certified"))
        yield Store(connection, path, threads)
    finally:
        connection.close()


@contextmanager
def _owned(folder: Path, private: bool) -> Iterator[None]:
    """Hold the output folder, created if need be, so that no other process writes into it.

    ``private``: one that is created is for its owner alone.
    """
    lock = folder / LOCK
    with ExitStack() as stack:
        try:
            if folder.is_file():
                raise InputError(f"cannot write to {folder}: it is a file, a folder is needed")
            folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
            stack.enter_context(exclusive(lock))
        except LockHeld as held:
            by = f" by process {held.owner}" if held.owner else ""
            raise InputError(
                f"{folder} is being written{by}: wait for it, or choose another output folder"
            ) from None
        except OSError as error:
            raise write_error(folder, error) from None
        yield


def _check_identity(folder: Path, path: Path, meta: dict[str, Any]) -> list[int] | None:
    """Return the position in this experiment of every curve of a store; None without a store.

    InputError where the store is another experiment's, and where it has curves that this one lacks.
    """
    if not os.path.exists(path):
        return None
    existing = _read_meta(path)
    with _damage_named(path):
        before = msgspec.json.decode(existing["identity"])
        now = msgspec.json.decode(_json(meta["identity"]))
        if before == now:
            return list(range(len(now.get("curves", ()))))
        moves = moves_of(before, now)
        if moves is not None:
            return moves
        name, what = before.get("name"), difference(before, now)
    raise InputError(
        f'{folder} holds another experiment ("{name}", different {what}); '
        "choose another output folder"
    )


def _grow(
    path: Path, moves: Sequence[int], meta: dict[str, Any], curves: Sequence[CurveRow]
) -> None:
    """Give a store the curves that it lacks; those that it has move to their new positions."""
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        with _damage_named(path), connection:
            digests.check(connection)
            if list(moves) != list(range(len(moves))):
                for table in ("curves", "cells", "timings"):
                    # First out of the way: positions are keys.
                    connection.execute(f"UPDATE {table} SET position = -1 - position")
                    connection.executemany(
                        f"UPDATE {table} SET position = ? WHERE position = ?",
                        [(place, -1 - old) for old, place in enumerate(moves)],
                    )
            there = set(moves)
            connection.executemany(
                "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
                [_curve_values(i, c) for i, c in enumerate(curves) if i not in there],
            )
            # Certificates are then of the spec with all curves.
            connection.execute("DROP TABLE IF EXISTS certified")
            connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'identity'", (_json(meta["identity"]),)
            )
            if digests.sealed(connection):
                digests.seal(connection)
    finally:
        connection.close()


def _curve_values(position: int, curve: CurveRow) -> tuple[Any, ...]:
    facts, certificate = _json(curve.facts), _json(curve.certificate)
    return position, curve.label, curve.algorithm, curve.protocol, facts, certificate


def _make(
    folder: Path, path: Path, meta: dict[str, Any], curves: Sequence[CurveRow], private: bool
) -> None:
    """Create a new store, complete under another name before it gets its own."""
    fresh = folder / f".{FILE}.new"
    try:
        fresh.unlink(missing_ok=True)
        # SQLite gives its journals the mode of the file.
        open(fresh, "xb", opener=files.opener(private)).close()
        connection = sqlite3.connect(fresh)
        try:
            # A journal on disk would outlive the file, which is deleted if this fails.
            connection.execute("PRAGMA journal_mode = MEMORY")
            with connection:
                connection.executescript(SCHEMA)
                rows = {"format": FORMAT, **meta}
                connection.executemany(
                    "INSERT INTO meta VALUES (?, ?)", [(k, _json(v)) for k, v in rows.items()]
                )
                connection.executemany(
                    "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
                    [_curve_values(i, c) for i, c in enumerate(curves)],
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
    """Return the raw table ``meta``; InputError for a file that is no store of this format."""
    try:
        meta = _meta_of(path, "ro")
    except (sqlite3.Error, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise InputError(f"{path} is not a store of fastfed, or it is damaged") from None
        # A process died while it was committing: a writer rolls that commit back.
        try:
            meta = _meta_of(path, "rw")
        except sqlite3.Error as other:
            raise InputError(
                f"{path} was being written when its process died, and cannot be put in order "
                f"here ({other}): open it once where it can be written"
            ) from None
    if meta.get("format") != _json(FORMAT) or "identity" not in meta:
        raise InputError(f"{path} was written by another version of fastfed, or is damaged")
    return meta


def _uri(path: Path) -> str:
    """What SQLite takes for a file; `as_uri` would load HTTP and TLS on Python 3.14."""
    text = quote_from_bytes(os.fsencode(path.resolve().as_posix()), safe="/:")
    return f"file://{'' if text.startswith('/') else '/'}{text}"


def _meta_of(path: Path, mode: str) -> dict[str, str]:
    connection = sqlite3.connect(f"{_uri(path)}?mode={mode}", uri=True, timeout=PATIENCE)
    try:
        return dict(connection.execute("SELECT key, value FROM meta"))
    finally:
        connection.close()


def _run_of(row: Sequence[Any]) -> RunRow:
    seconds, threads, *versions = row
    texts = map(files.check_text, versions)
    return RunRow(files.check_finite(seconds), files.check_whole(threads), *texts)
