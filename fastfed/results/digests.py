"""Digests of all rows of a store, which detect values that the disk has damaged.

SQLite checks the structure of its file, but not the values. The table ``digests`` has a digest of
each row of all other tables; it is written in the same transaction as the row. Stores of earlier
versions of fastfed have no such table. They are read without this check, and the next run that
writes into them adds the table.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

#: Table -> the columns that form its key.
KEYS = {
    "meta": ("key",),
    "curves": ("position",),
    "cells": ("position", "replicate"),
    "timings": ("position", "replicate"),
    "runs": ("run",),
    "certified": ("position",),
}

TABLE = """
CREATE TABLE IF NOT EXISTS digests (
    name TEXT NOT NULL, row TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (name, row)
) WITHOUT ROWID
"""


def _tables(db: sqlite3.Connection) -> set[str]:
    """Return the names of all tables of a store."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


def _rows(db: sqlite3.Connection, name: str, key: tuple[Any, ...] = ()) -> dict[str, bytes]:
    """Return {key of a row as text: digest of the row}, for table ``name``.

    With ``key``, return the entry of the row with this key only.
    """
    names = KEYS[name]
    where = f" WHERE {' AND '.join(f'{n} = ?' for n in names)}" if key else ""
    digests = {}
    for row in db.execute(f"SELECT {', '.join(names)}, * FROM {name}{where}", key):
        row_key, values = row[: len(names)], row[len(names) :]
        body = msgspec.msgpack.encode((name, values))
        digests["/".join(map(str, row_key))] = hashlib.blake2b(body, digest_size=16).digest()
    return digests


def seal(db: sqlite3.Connection, names: Iterable[str] = KEYS) -> None:
    """Compute and write the digests of all rows of the named tables."""
    db.execute(TABLE)
    existing = _tables(db)
    for name in names:
        db.execute("DELETE FROM digests WHERE name = ?", (name,))
        if name in existing:
            rows = [(name, row, digest) for row, digest in _rows(db, name).items()]
            db.executemany("INSERT INTO digests VALUES (?, ?, ?)", rows)


def seal_row(db: sqlite3.Connection, name: str, *key: Any) -> None:
    """Compute and write the digest of one row, given its table and key."""
    for row, digest in _rows(db, name, key).items():
        db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (name, row, digest))


def sealed(db: sqlite3.Connection) -> bool:
    """Return True if a store has the table of digests."""
    return "digests" in _tables(db)


def check(db: sqlite3.Connection) -> None:
    """Compare all rows with their stored digests; do nothing if the store has none.

    Raises
    ------
    ValueError
        If a row has changed, is missing, or has no digest. The message names the first such row.
    """
    existing = _tables(db)
    if "digests" not in existing:
        return
    stored: dict[str, dict[str, bytes]] = {}
    for name, row, digest in db.execute("SELECT name, row, digest FROM digests"):
        stored.setdefault(name, {})[row] = digest
    for name in sorted(KEYS.keys() | stored.keys()):
        computed = _rows(db, name) if name in KEYS and name in existing else {}
        for row in sorted(computed.keys() | stored.get(name, {}).keys()):
            if computed.get(row) != stored.get(name, {}).get(row):
                raise ValueError(f"row {row} of {name} is not what was written")
