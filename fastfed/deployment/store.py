"""What a party keeps: insert-only tables in an SQLite file, each write durable before the next.

A party's state is a fold of its writes, in order, so a restart is the same fold again. Nothing is
ever changed: a write that is there already does nothing, and another one under its key is refused.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fastfed._validate import InputError

SCHEMA = """
CREATE TABLE IF NOT EXISTS writes (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    chain BLOB NOT NULL, UNIQUE (kind, key));
"""


class Write(NamedTuple):
    """One fact: of a kind, under a key that has one value for ever."""

    kind: str
    key: str
    value: bytes


class Conflict(InputError):
    """Another value under a key that has one; nothing was written."""


class Store(Protocol):
    """Interface of what keeps writes."""

    def write(self, write: Write) -> bool:
        """Keep a write durably; False if it was there. Raises Conflict for another value."""
        ...

    def writes(self) -> Iterator[Write]:
        """All writes, in order."""
        ...


def opened(path: str, schema: str, alone: bool = False) -> sqlite3.Connection:
    """An SQLite file of one party: its own, durable, and readable by nobody else.

    alone: no other process may open it while this one has it.
    """
    if path != ":memory:":
        # SQLite makes its files with the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
    # Threads take turns by the lock of whoever owns the connection.
    db = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=0.5 if alone else 30.0
    )
    if alone:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(schema)
    return db


def chained(before: bytes, write: Write) -> bytes:
    """Hash of a write and of all before it."""
    made = hashlib.sha256(before)
    for part in (write.kind.encode(), write.key.encode(), write.value):
        made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()


class SqliteStore:
    """Writes in an SQLite file (WAL, synchronous = FULL, mode 0600), chained by SHA-256.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        try:
            self._db = opened(path, SCHEMA, alone=True)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                raise
            raise InputError(f"{path} is in use by another process") from None
        self.path = path
        row = self._db.execute("SELECT chain FROM writes ORDER BY number DESC LIMIT 1").fetchone()
        self.head: bytes = row[0] if row else bytes(32)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, write: Write) -> bool:
        """Keep a write durably; False if it was there. Raises Conflict for another value."""
        row = self._db.execute(
            "SELECT value FROM writes WHERE kind = ? AND key = ?", (write.kind, write.key)
        ).fetchone()
        if row is not None:
            if row[0] != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        head = chained(self.head, write)
        # One statement is one transaction, which SQLite syncs before it returns.
        self._db.execute(
            "INSERT INTO writes (kind, key, value, chain) VALUES (?, ?, ?, ?)", (*write, head)
        )
        self.head = head
        return True

    def writes(self) -> Iterator[Write]:
        """All writes, in order.

        Raises
        ------
        InputError
            If the chain of hashes is broken: something was changed or taken out.
        """
        head, number = bytes(32), 0
        for number, kind, key, value, chain in self._db.execute(
            "SELECT number, kind, key, value, chain FROM writes ORDER BY number"
        ):
            head = chained(head, write := Write(kind, key, value))
            if head != chain:
                raise InputError(f"the log of {self.path} is broken at entry {number}")
            yield write


class MemoryStore:
    """Writes in memory, for tests and demonstrations."""

    def __init__(self, writes: list[Write] | None = None) -> None:
        self._writes = list(writes or [])
        self._values = {write[:2]: write.value for write in self._writes}

    def write(self, write: Write) -> bool:
        """Keep a write; False if it was there. Raises Conflict for another value."""
        known = self._values.get(write[:2])
        if known is not None:
            if known != write.value:
                raise Conflict(f"{write.kind} {write.key} is there with another content")
            return False
        self._values[write[:2]] = write.value
        self._writes.append(write)
        return True

    def writes(self) -> Iterator[Write]:
        """All writes, in order."""
        return iter(list(self._writes))
