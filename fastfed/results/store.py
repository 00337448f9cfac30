"""The store: one SQLite file in an output folder, with one row per curve and replicate.

The tables ``meta``, ``curves`` and ``cells`` hold results: the experiment, its curves, and the
values of each curve and replicate. They do not depend on how the work was divided between runs and
processes. ``timings`` and ``runs`` hold times and versions. ``certified`` holds, for each
certificate, its date and the version of fastfed. ``digests`` holds a digest of every row.
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
from fastfed.results.identity import difference, positions_in
from fastfed.results.results import CurveResult, Results, total_events

FILE = "results.sqlite"

#: What `fastfed run` writes for a log of decisions in place of a store.
VALUES_FILE = "values.json"

#: Lock file of the process that writes into the folder; it removes the file when it ends.
LOCK = f".{FILE}.lock"

#: SQLite's error codes for a full or failing disk.
FAILING_CODES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
#: SQLite's error codes if another process has locked the file for too long.
WAITING_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: Seconds to wait for locks of other processes.
LOCK_SECONDS = 30.0
#: Version of the format of stores.
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

#: Table with version and date of each certificate in ``curves``; stores of old versions lack it.
CERTIFIED = """
CREATE TABLE IF NOT EXISTS certified (
    position INTEGER PRIMARY KEY, version TEXT NOT NULL, spec_digest TEXT NOT NULL,
    date TEXT NOT NULL)
"""


@dataclass(frozen=True)
class CurveRow:
    """One row of the table ``curves``: the data of a curve that are the same for all replicates."""

    label: str
    algorithm: str
    protocol: str
    facts: dict[str, Any]  # silos, dimension, and bounds if the system has any
    certificate: dict[str, Any]


@dataclass(frozen=True)
class ReplicateRow:
    """One row of the table ``cells``: one replicate of one curve.

    Arrays have shape (C,), where C is the number of checkpoints.
    """

    position: int
    replicate: int
    group_regret: np.ndarray
    synchronisations: np.ndarray
    bits_up: np.ndarray
    bits_down: np.ndarray
    events: dict[str, int]


@dataclass(frozen=True)
class RunRow:
    """One row of the table ``runs``: a call that simulated replicates, with its time and versions.

    ``seconds`` is the wall-clock time from the opening of the store to the last commit.
    """

    seconds: float
    threads: int
    fastfed: str
    python: str
    numpy: str
    platform: str


@dataclass(frozen=True)
class Effort:
    """Cost of all stored replicates: thread-seconds, agent-rounds, and the runs that made them."""

    thread_seconds: float
    agent_rounds: int
    runs: tuple[RunRow, ...]


def made_now(identity: dict[str, Any]) -> dict[str, str]:
    """Return the version of fastfed, the spec digest and the date for a certificate computed now.

    Parameters
    ----------
    identity : dict
        The identity of the experiment: all keys of a spec that determine its results.

    Returns
    -------
    dict
        "version", "spec_digest" (the SHA-256 of the identity) and "date" (in UTC).
    """
    return {
        "version": fastfed.__version__,
        "spec_digest": hashlib.sha256(_json(identity).encode()).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _json(value: Any) -> str:
    """Encode a value as JSON with sorted keys, so that equal values have equal text."""
    return msgspec.json.encode(value, order="sorted").decode()


class StoreLocked(sqlite3.OperationalError):
    """Raised if another program has locked a store for more than ``LOCK_SECONDS`` seconds."""


@contextmanager
def _name_holder(path: Path) -> Iterator[None]:
    """Run a block that writes a store; an error for a locked file becomes a `StoreLocked`.

    Its message names the program that has locked the file.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) not in WAITING_CODES:
            raise
        holders = files.holders(path)
        holder_text = f"by {' and '.join(holders)}" if holders else "by another program"
        raise StoreLocked(
            f"{path} has been locked {holder_text} for more than {LOCK_SECONDS:g} s: close it "
            "there and run again, which continues from the stored results"
        ) from None


@contextmanager
def name_damaged(path: Path) -> Iterator[None]:
    """Run a block that reads a store; an error of a damaged file becomes an InputError.

    The InputError names the store.
    """
    try:
        yield
    except InputError:
        raise
    except (sqlite3.DatabaseError, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) in (*WAITING_CODES, *FAILING_CODES):
            raise
        reason = " ".join(str(error).split())
        # Messages of TypeError and AttributeError are about Python objects, not about the store.
        if not reason or isinstance(error, (TypeError, AttributeError)):
            reason = "a row cannot be read"
        raise InputError(f"{path} is damaged, or no store of fastfed ({reason})") from None


def remedy(folder: Path) -> str:
    """Return a text that says why a folder has no store, or which command writes stores."""
    if os.path.isfile(folder / VALUES_FILE):
        return f"a log of decisions has no regret, and its values are in {VALUES_FILE}"
    return "fastfed run writes them"


class Store:
    """An open store of results, created by ``create_or_resume`` or ``open_existing``."""

    def __init__(self, connection: sqlite3.Connection, path: Path, threads: int = 1) -> None:
        """Store the open connection; ``threads`` is written with the run's time."""
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

        If the experiment has curves that an existing store lacks, they are added. Results of the
        other curves stay.

        Parameters
        ----------
        folder : Path
            The output folder. It is created if it does not exist. Only one process at a time can
            write into it.
        meta : dict
            Content of the table ``meta``; must have the key ``identity``.
        curves : sequence of CurveRow
            All curves of the experiment, in order.
        threads : int
            Number of threads, stored with the time of the run.

        Raises
        ------
        InputError
            If the folder holds a different experiment, another process writes into it, or it cannot
            be written. Nothing is written then.
        StoreLocked
            If another program has locked the store for too long.
        """
        path = folder / FILE
        _check_identity(folder, path, meta)
        folder_existed = folder.exists()
        with ExitStack() as stack:
            stack.enter_context(_name_holder(path))
            # Results of real records are not protected by noise, so only this user may read them.
            private = any("about_records" in curve.facts for curve in curves)
            stack.enter_context(held_for_writing(folder, private))
            # Check again: another process may have created the store before the lock was held.
            positions = _check_identity(folder, path, meta)
            is_new = positions is None
            if positions is None:
                _create(folder, path, meta, curves, private)
            elif len(positions) < len(curves):
                with name_damaged(path):
                    _add_curves(path, positions, meta, curves)
            try:
                with _open(path, threads, curves, meta) as store:
                    yield store
            except MemoryError:
                # The run did not fit into memory: if the store is new and empty, remove it.
                if is_new and not _count_rows(path):
                    with suppress(OSError):
                        path.unlink()
                        stack.close()
                        if not folder_existed:
                            folder.rmdir()
                raise

    @classmethod
    @contextmanager
    def open_existing(cls, folder: Path) -> Iterator[Store]:
        """Open the store of a folder for reading.

        Parameters
        ----------
        folder : Path
            The output folder.

        Raises
        ------
        InputError
            If there is no store, or it is damaged.
        """
        path = folder / FILE
        if not os.path.isfile(path):
            subfolders = sorted(each.parent for each in folder.glob(f"*/{FILE}"))
            hint = f"its subfolder {subfolders[0]} does" if subfolders else remedy(folder)
            raise InputError(f"{folder} holds no results ({FILE} is missing): {hint}")
        read_meta(path)
        connection = sqlite3.connect(f"{uri_of(path)}?mode=ro", uri=True, timeout=LOCK_SECONDS)
        try:
            with name_damaged(path):
                # Read all tables in one transaction, since another process may be writing.
                connection.execute("BEGIN")
                digests.check(connection)
                connection.rollback()
            yield cls(connection, path)
        finally:
            connection.close()

    @classmethod
    def done_in(cls, folder: Path, identity: dict[str, Any]) -> set[tuple[int, int]]:
        """Return the replicates of each curve that a folder already has, without writing.

        Parameters
        ----------
        folder : Path
            The output folder.
        identity : dict
            Identity of an experiment, which may have more curves than the store.

        Returns
        -------
        set of (int, int)
            (position of the curve in this identity, replicate). Empty if there is no store.

        Raises
        ------
        InputError
            If the store holds a different experiment.
        """
        positions = _check_identity(folder, folder / FILE, {"identity": identity})
        if positions is None:
            return set()
        with cls.open_existing(folder) as store:
            return {(positions[position], replicate) for position, replicate in store.done()}

    def done(self) -> set[tuple[int, int]]:
        """Return (position of the curve, replicate) of every stored replicate."""
        with name_damaged(self.path):
            rows = self._db.execute("SELECT position, replicate FROM cells")
            return {
                (files.check_whole(position), files.check_whole(replicate))
                for position, replicate in rows
            }

    def commit(
        self, rows: Iterable[ReplicateRow], seconds: float, agent_rounds: int, threads: int
    ) -> None:
        """Store the results of one batch of replicates, in one transaction.

        Parameters
        ----------
        rows : iterable of ReplicateRow
            Results, one row per curve and replicate.
        seconds, agent_rounds : float, int
            Time and number of agent-rounds per row: those of the batch divided by its number of
            rows.
        threads : int
            Number of threads of the batch.
        """
        with self._db:
            for row in rows:
                self._db.execute(
                    "INSERT OR IGNORE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        row.position,
                        row.replicate,
                        np.asarray(row.group_regret, "<f8").tobytes(),
                        np.asarray(row.synchronisations, "<i8").tobytes(),
                        np.asarray(row.bits_up, "<f8").tobytes(),
                        np.asarray(row.bits_down, "<f8").tobytes(),
                        _json(row.events),
                    ),
                )
                self._db.execute(
                    "INSERT OR IGNORE INTO timings VALUES (?, ?, ?, ?, ?)",
                    (row.position, row.replicate, seconds, agent_rounds, threads),
                )
                # The digests are in the same transaction as the rows.
                for table in ("cells", "timings"):
                    digests.seal_row(self._db, table, row.position, row.replicate)
            self._note_run()

    def _note_run(self) -> None:
        """Write or update the row of this run in the table ``runs``, with the time until now."""
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
        """Return the cost of all stored replicates."""
        with name_damaged(self.path):
            seconds, agent_rounds = self._db.execute(
                "SELECT total(seconds * threads), coalesce(sum(agent_rounds), 0) FROM timings"
            ).fetchone()
            runs = self._db.execute(
                "SELECT seconds, threads, fastfed, python, numpy, platform FROM runs ORDER BY run"
            )
            return Effort(
                files.check_finite(seconds),
                files.check_whole(agent_rounds),
                tuple(_run_row(row) for row in runs),
            )

    def meta(self) -> dict[str, Any]:
        """Return the content of the table ``meta``, decoded and checked."""
        with name_damaged(self.path):
            rows = self._db.execute("SELECT key, value FROM meta")
            return files.check_meta({k: msgspec.json.decode(v) for k, v in rows})

    def results(self, replicates: int | None = None) -> Results:
        """Return the results of all stored replicates, or of the first ``replicates`` of them."""
        with name_damaged(self.path):
            return self._results(replicates)

    def _certified(self) -> dict[int, dict[str, str]]:
        """Return version, spec digest and date of each certificate, by the position of its curve.

        Return an empty dict for a store of an earlier version, which does not have them.
        """
        query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'certified'"
        if not self._db.execute(query).fetchone()[0]:
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
        """Read the results as `results` does, but do not convert errors of a damaged store."""
        meta = self.meta()
        identity = meta["identity"]
        rounds = np.array(meta["rounds"], np.int64)
        # Only replicates below this number are read; by default all.
        limit = replicates if replicates is not None else 2**62
        provenance = self._certified()
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
                    provenance=provenance.get(position, {}),
                    parameters=parameters_of(identity, position),
                    events=total_events([msgspec.json.decode(r[5]) for r in rows]),
                    agent_rounds_per_second=agent_rounds / files.check_finite(seconds)
                    if seconds
                    else None,
                )
            )
        return Results(
            identity["name"], identity["horizon"], identity["silos"], tuple(curves), meta["figure"]
        )


def parameters_of(identity: dict[str, Any], position: int) -> dict[str, Any]:
    """Return the keys of a curve in an experiment's identity, except label and algorithm."""
    return {
        name: value
        for name, value in identity["curves"][position].items()
        if name not in ("label", "algorithm")
    }


def _count_rows(path: Path) -> int:
    """Return the number of stored replicates of all curves in the store at a path."""
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS)
    try:
        return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])
    finally:
        connection.close()


@contextmanager
def _open(
    path: Path, threads: int, curves: Sequence[CurveRow], meta: dict[str, Any]
) -> Iterator[Store]:
    """Open a store for writing, and update the figure settings, facts and certificates in it.

    ``curves`` and ``meta`` are those of the experiment; ``threads`` is stored with the run's time.
    """
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS)
    try:
        # Figure settings and certificates are not part of the identity, so they may have changed
        # since the store was created.
        with name_damaged(path), connection:
            digests.check(connection)
            unsealed = not digests.sealed(connection)
            connection.execute(CERTIFIED)
            provenance = tuple(made_now(meta["identity"]).values())
            for position, curve in enumerate(curves):
                certificate = _json(curve.certificate)
                # A certificate that has not changed keeps its date.
                connection.execute(
                    "DELETE FROM certified WHERE position = ? AND (version != ? OR EXISTS ("
                    "SELECT 1 FROM curves WHERE position = ? AND certificate != ?))",
                    (position, provenance[0], position, certificate),
                )
                connection.execute(
                    "INSERT OR IGNORE INTO certified VALUES (?, ?, ?, ?)", (position, *provenance)
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
            digests.seal(connection, digests.KEYS if unsealed else ("meta", "curves", "certified"))
        yield Store(connection, path, threads)
    finally:
        connection.close()


@contextmanager
def held_for_writing(folder: Path, private: bool) -> Iterator[None]:
    """Lock an output folder during a block, so that no other process writes into it.

    The folder is created if it does not exist. If ``private``, only its owner can read it.
    """
    lock = folder / LOCK
    with ExitStack() as stack:
        try:
            if folder.is_file():
                raise InputError(f"cannot write to {folder}: it is a file, a folder is needed")
            folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
            stack.enter_context(exclusive(lock))
        except LockHeld as held:
            owner_text = f" by process {held.owner}" if held.owner else ""
            raise InputError(
                f"{folder} is being written{owner_text}: wait for it, or choose another output "
                "folder"
            ) from None
        except OSError as error:
            raise write_error(folder, error) from None
        yield


def _check_identity(folder: Path, path: Path, meta: dict[str, Any]) -> list[int] | None:
    """Check the store at ``path``, and return where its curves are in an experiment.

    ``meta["identity"]`` is the identity of the experiment. The result has one entry for each curve
    of the store: the curve's position in the experiment. Return None if there is no store.

    Raises
    ------
    InputError
        If the store has a different experiment, or curves that the experiment lacks. The message
        names ``folder``.
    """
    if not os.path.exists(path):
        return None
    existing = read_meta(path)
    with name_damaged(path):
        before = msgspec.json.decode(existing["identity"])
        now = msgspec.json.decode(_json(meta["identity"]))
        if before == now:
            return list(range(len(now.get("curves", ()))))
        positions = positions_in(before, now)
        if positions is not None:
            return positions
        name, keys = before.get("name"), difference(before, now)
    raise InputError(
        f'{folder} holds a different experiment ("{name}", different {keys}); '
        "choose another output folder"
    )


def _add_curves(
    path: Path, positions: Sequence[int], meta: dict[str, Any], curves: Sequence[CurveRow]
) -> None:
    """Add missing curves to a store, and move its curves to their positions in the experiment.

    ``positions`` has the new position of every curve that the store has.
    """
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS)
    try:
        with name_damaged(path), connection:
            digests.check(connection)
            if list(positions) != list(range(len(positions))):
                for table in ("curves", "cells", "timings"):
                    # Positions are keys: first move all curves to negative ones, which are unused.
                    connection.execute(f"UPDATE {table} SET position = -1 - position")
                    connection.executemany(
                        f"UPDATE {table} SET position = ? WHERE position = ?",
                        [(new, -1 - old) for old, new in enumerate(positions)],
                    )
            existing = set(positions)
            connection.executemany(
                "INSERT INTO curves VALUES (?, ?, ?, ?, ?, ?)",
                [_curve_values(i, c) for i, c in enumerate(curves) if i not in existing],
            )
            # New curves change the spec digest that is stored with every certificate. `_open` makes
            # the table with the new digest.
            connection.execute("DROP TABLE IF EXISTS certified")
            connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'identity'", (_json(meta["identity"]),)
            )
            if digests.sealed(connection):
                digests.seal(connection)
    finally:
        connection.close()


def _curve_values(position: int, curve: CurveRow) -> tuple[Any, ...]:
    """Return the values of one row of the table ``curves``."""
    facts, certificate = _json(curve.facts), _json(curve.certificate)
    return position, curve.label, curve.algorithm, curve.protocol, facts, certificate


def _create(
    folder: Path, path: Path, meta: dict[str, Any], curves: Sequence[CurveRow], private: bool
) -> None:
    """Create a store at ``path`` with the tables of an experiment and no replicates.

    It is written under a temporary name and then renamed. If ``private``, only its owner can read
    it.
    """
    temporary = folder / f".{FILE}.new"
    try:
        temporary.unlink(missing_ok=True)
        # Create the file before SQLite does, to set its mode; SQLite's journals get the same mode.
        open(temporary, "xb", opener=files.opener(private)).close()
        connection = sqlite3.connect(temporary)
        try:
            # Keep the journal in memory: after a failure, a journal on disk would remain.
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
        temporary.replace(path)
    except OSError as error:
        raise write_error(folder, error) from None
    except sqlite3.Error as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if getattr(error, "sqlite_errorcode", None) in FAILING_CODES:
            raise
        raise InputError(f"cannot write to {folder}: {error}") from None


def read_meta(path: Path) -> dict[str, str]:
    """Return the table ``meta`` of a store as JSON texts by key, not decoded.

    Raises InputError if the file is not a store of this format.
    """
    try:
        meta = _select_meta(path, "ro")
    except (sqlite3.Error, *files.BROKEN) as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise InputError(
                f"{path} is not a store of fastfed, or it is damaged: restore a copy of the "
                "folder, or run the spec into a new folder"
            ) from None
        # A process was killed during a commit. Opening the file for writing undoes that commit.
        try:
            meta = _select_meta(path, "rw")
        except sqlite3.Error as second_error:
            raise InputError(
                f"{path} was being written when its process died, and cannot be repaired here "
                f"({second_error}): open it once where it can be written"
            ) from None
    if meta.get("format") != _json(FORMAT) or "identity" not in meta:
        raise InputError(f"{path} was written by another version of fastfed, or is damaged")
    return meta


def uri_of(path: Path) -> str:
    """Return the URI of a file for SQLite.

    It replaces `Path.as_uri`, which imports HTTP and TLS modules on Python 3.14.
    """
    text = quote_from_bytes(os.fsencode(path.resolve().as_posix()), safe="/:")
    return f"file://{'' if text.startswith('/') else '/'}{text}"


def _select_meta(path: Path, mode: str) -> dict[str, str]:
    """Return the table ``meta`` of the store at ``path``, not decoded.

    ``mode`` is SQLite's "ro" (read only) or "rw" (read and write).
    """
    connection = sqlite3.connect(f"{uri_of(path)}?mode={mode}", uri=True, timeout=LOCK_SECONDS)
    try:
        return dict(connection.execute("SELECT key, value FROM meta"))
    finally:
        connection.close()


def _run_row(row: Sequence[Any]) -> RunRow:
    """Check the types of a row of the table ``runs``, and return it as a RunRow."""
    seconds, threads, *versions = row
    texts = map(files.check_text, versions)
    return RunRow(files.check_finite(seconds), files.check_whole(threads), *texts)
