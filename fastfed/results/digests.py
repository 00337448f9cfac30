"""A digest of every row of a store, so that no bit that a disk loses is taken for a result.

SQLite checks how its pages hang together, not what they hold. The table ``digests`` has a digest of
each row of the others, written in the same commit. Stores of earlier versions have no such table:
they are read as they are, and get it when a run writes into them again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

#: The keys of each table, in this order.
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
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


def _rows(db: sqlite3.Connection, name: str, key: tuple[Any, ...] = ()) -> dict[str, bytes]:
    """Digests of the rows of a table, or of the one with this key, by their keys."""
    names = KEYS[name]
    where = f" WHERE {' AND '.join(f'{n} = ?' for n in names)}" if key else ""
    found = {}
    for row in db.execute(f"SELECT {', '.join(names)}, * FROM {name}{where}", key):
        own, values = row[: len(names)], row[len(names) :]
        body = msgspec.msgpack.encode((name, values))
        found["/".join(map(str, own))] = hashlib.blake2b(body, digest_size=16).digest()
    return found


def seal(db: sqlite3.Connection, names: Iterable[str] = KEYS) -> None:
    """Write the digests of all rows of these tables anew."""
    db.execute(TABLE)
    there = _tables(db)
    for name in names:
        db.execute("DELETE FROM digests WHERE name = ?", (name,))
        if name in there:
            made = [(name, row, digest) for row, digest in _rows(db, name).items()]
            db.executemany("INSERT INTO digests VALUES (?, ?, ?)", made)


def seal_row(db: sqlite3.Connection, name: str, *key: Any) -> None:
    """Write the digest of one row anew."""
    for row, digest in _rows(db, name, key).items():
        db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (name, row, digest))


def sealed(db: sqlite3.Connection) -> bool:
    """Whether a store has digests."""
    return "digests" in _tables(db)


def check(db: sqlite3.Connection) -> None:
    """Compare all rows with their digests; nothing to compare in stores without them.

    Raises
    ------
    ValueError
        Names the first row that is not what was written, is missing, or was never written.
    """
    there = _tables(db)
    if "digests" not in there:
        return
    kept: dict[str, dict[str, bytes]] = {}
    for name, row, digest in db.execute("SELECT name, row, digest FROM digests"):
        kept.setdefault(name, {})[row] = digest
    for name in sorted(KEYS.keys() | kept.keys()):
        found = _rows(db, name) if name in KEYS and name in there else {}
        for row in sorted(found.keys() | kept.get(name, {}).keys()):
            if found.get(row) != kept.get(name, {}).get(row):
                raise ValueError(f"row {row} of {name} is not what was written")
