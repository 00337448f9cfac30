"""The log of a party: its writes, in an SQLite file, and a snapshot of the state they lead to.

A write is a row of a table; a call that stores writes returns when they are synced to disk. A party
computes its state by applying all writes in order, also after a restart. No write is ever changed:
repeating a write does nothing, and a different value under the same key is refused.

Two things keep a restart short and old records off the disk. A *snapshot* is the state that the
first writes lead to, so a restart applies only the writes after it. The values of records that a
snapshot covers may be *erased*: they are replaced by empty ones.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from fastfed._sqlite import copied
from fastfed._validate import InputError

LOG = """
CREATE TABLE IF NOT EXISTS writes (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    chain BLOB NOT NULL, UNIQUE (kind, key));
"""


class Write(NamedTuple):
    """One entry of a party's log. The value of a (kind, key) never changes."""

    kind: str
    key: str
    value: bytes


class Conflict(InputError):
    """Raised for a write whose key exists with a different value; nothing was written."""


class Store(Protocol):
    """Interface of a store of writes."""

    def write(self, write: Write) -> bool:
        """Store a write; return False if it was stored before.

        Raises
        ------
        Conflict
            If a different value is stored under the same key.
        """
        ...

    def writes(self) -> Iterator[Write]:
        """Iterate over all writes in order."""
        ...

    def close(self) -> None:
        """Close the files of this store."""
        ...


def opened(path: str, schema: str, tables: set[str], alone: bool = False) -> sqlite3.Connection:
    """Open or create a party's SQLite file: synced at each commit, and for its owner only.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    schema : str
        SQL that creates missing tables.
    tables : set of str
        Tables that an existing file must have.
    alone : bool
        True to lock the file, so that no other process can open it.
    """
    if path != ":memory:":
        # SQLite gives its other files the mode of the database file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    # Several threads may use the connection: a `Process` has a lock around each use.
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=0.5 if alone else 30.0
    )
    if alone:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
    try:
        with damage_named(path):
            check_tables(db, path, tables)
            if path != ":memory:":
                os.chmod(path, 0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Convert SQLite's errors for a damaged file or a full disk to errors that name the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise OSError(errno.ENOSPC, f"{error}: make room on the disk", str(path)) from None
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise InputError(f"{path} is damaged ({error}); restore the newest backup") from None


def check_tables(db: sqlite3.Connection, path: str, tables: set[str]) -> None:
    """Raise InputError if a file has other tables than a party's log (or than a ledger)."""
    try:
        table_names = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    except sqlite3.OperationalError:
        raise  # the file is in use, or the disk is full
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{path} is no SQLite file, or it is damaged ({error}); restore the newest backup"
        ) from None
    if table_names and (
        not tables <= table_names or ("charges" in table_names) != ("charges" in tables)
    ):
        file_kind = "ledger" if "charges" in tables else "log of a party"
        raise InputError(
            f"{path} is no {file_kind} of fastfed: it has other tables; check the path"
        )


def chained(before: bytes, write: Write) -> bytes:
    """Return the SHA-256 of a write and of ``before``, the hash of all earlier writes."""
    hasher = hashlib.sha256(before)
    for part in (write.kind.encode(), write.key.encode(), write.value):
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()


class Chain:
    """Access to the table `LOG`: each write is stored with the hash of all writes up to it."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db, self._name = db, name

    @property
    def head(self) -> bytes:
        """Hash of all writes; zeros before the first."""
        row = self._db.execute("SELECT chain FROM writes ORDER BY number DESC LIMIT 1").fetchone()
        return row[0] if row else bytes(32)

    def add(self, write: Write) -> None:
        """Add a write under a new key."""
        # One statement is one transaction, which SQLite syncs before it returns.
        self._db.execute(
            "INSERT INTO writes (kind, key, value, chain) VALUES (?, ?, ?, ?)",
            (*write, chained(self.head, write)),
        )

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the value stored under a (kind, key); None if there is none."""
        row = self._db.execute(
            "SELECT value FROM writes WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return None if row is None else row[0]

    def writes(self) -> Iterator[Write]:
        """Iterate over all writes in order; raise InputError where the chain of hashes breaks."""
        head, entry = bytes(32), 0
        rows = self._db.execute("SELECT kind, key, value, chain FROM writes ORDER BY number")
        try:
            for entry, (kind, key, value, chain) in enumerate(rows, 1):
                head = chained(head, write := Write(kind, key, value))
                if head != chain:
                    raise InputError(f"the log of {self._name} is broken at entry {entry}")
                yield write
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"the log of {self._name} is damaged after entry {entry} ({error})"
            ) from None


class SqliteStore:
    """Store writes in an SQLite file, with a chain of SHA-256 hashes that shows changes.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        try:
            self._db = opened(path, LOG, {"writes"}, alone=True)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                raise
            raise InputError(f"{path} is in use by another process") from None
        self.path, self._chain = path, Chain(self._db, path)

    @property
    def head(self) -> bytes:
        """Hash of all writes."""
        return self._chain.head

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, write: Write) -> bool:
        """Store a write; return False if it was stored before; see `Store.write`."""
        stored = self._chain.value(write.kind, write.key)
        if stored is not None:
            if stored != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        self._chain.add(write)
        return True

    def writes(self) -> Iterator[Write]:
        """Iterate over all writes in order.

        Raises
        ------
        InputError
            If the chain of hashes is broken, because a write was changed or removed.
        """
        return self._chain.writes()


def read_writes(path: str | Path) -> list[Write]:
    """Read all writes of a party's log, without locking the file; empty if there is no file.

    Raises
    ------
    InputError
        If it is not the log of a party, or its chain of hashes is broken.
    """
    if not Path(path).exists():
        return []
    with closing(copied(path)) as db:
        check_tables(db, str(path), {"writes"})
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return []
        return list(Chain(db, str(path)).writes())


class MemoryStore:
    """Store writes in memory, for tests and demonstrations."""

    def __init__(self, writes: list[Write] | None = None) -> None:
        self._writes = list(writes or [])
        self._values = {write[:2]: write.value for write in self._writes}

    def write(self, write: Write) -> bool:
        """Store a write; return False if it was stored before; see `Store.write`."""
        stored = self._values.get(write[:2])
        if stored is not None:
            if stored != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        self._values[write[:2]] = write.value
        self._writes.append(write)
        return True

    def writes(self) -> Iterator[Write]:
        """Iterate over all writes in order."""
        return iter(list(self._writes))

    def close(self) -> None:
        """Do nothing: no file is open."""
