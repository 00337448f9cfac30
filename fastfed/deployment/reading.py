"""Read SQLite files without creating, changing or locking any file.

Even a read-only connection of SQLite creates files next to a database in WAL mode. So the committed
content is copied to memory: the pages of the database, overwritten by those of its write-ahead log
("-wal"), in SQLite's file format (https://sqlite.org/fileformat2.html, section 4).
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fastfed._validate import InputError

_MAGIC = b"SQLite format 3\0"
#: First word of a log, by the byte order of its checksums.
_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
_HEADER, _FRAME, _WORD = 32, 24, 0xFFFFFFFF
#: How often a file that is being written is read again, and the seconds between.
_TRIES, _PAUSE = 20, 0.05


def copied(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Copy the committed content of an SQLite file to a database in memory.

    Raises
    ------
    InputError
        If it is no SQLite file, or another process writes it at every attempt.
    """
    for _ in range(_TRIES):
        data = _committed(Path(path))
        if data is not None:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            if data:
                # The copy has no log: bytes 18 and 19 say so.
                data[18:20] = b"\1\1"
                copy.deserialize(bytes(data))
            return copy
        time.sleep(_PAUSE)
    raise InputError(f"{path} changes at every attempt to read it; try again later")


def _committed(path: Path) -> bytearray | None:
    """Bytes of a database with every committed transaction; None if a file changed meanwhile."""
    log = path.with_name(path.name + "-wal")
    before, frames = _stamp(path, log), log.read_bytes() if log.exists() else b""
    if not path.stat().st_size:
        return bytearray()
    try:
        # Through SQLite: closing a file of our own would drop its locks in this process.
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            data = bytearray(db.serialize())
    except sqlite3.Error:
        data = bytearray()
    if data[:16] != _MAGIC:
        raise InputError(f"{path} is no SQLite file, or it may not be read")
    for size, pages in _transactions(frames):
        for number, page in pages.items():
            end = number * len(page)
            data += bytes(max(0, end - len(data)))
            data[end - len(page) : end] = page
        del data[size:]
    return data if _stamp(path, log) == before else None


def _stamp(*files: Path) -> list[tuple[int, int]]:
    """Size and modification time of each file."""
    stats = (file.stat() if file.exists() else None for file in files)
    return [(-1, 0) if s is None else (s.st_size, s.st_mtime_ns) for s in stats]


def _transactions(log: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield (size of the database in bytes, pages by number) for each committed transaction."""
    if len(log) < _HEADER:
        return
    magic, _, size, _, *salts = struct.unpack(">6I", log[:24])
    order = _ORDERS.get(magic)
    if order is None:
        return
    sums = _summed(order, log[:24], (0, 0))
    if sums != struct.unpack(">2I", log[24:32]):
        return
    pages: dict[int, bytes] = {}
    for at in range(_HEADER, len(log) - _FRAME - size + 1, _FRAME + size):
        number, count, *rest = struct.unpack(">6I", log[at : at + _FRAME])
        page = log[at + _FRAME : at + _FRAME + size]
        sums = _summed(order, log[at : at + 8] + page, sums)
        # The first frame of an earlier use of the file, or one that was not written whole.
        if rest != [*salts, *sums]:
            return
        pages[number] = page
        if count:
            yield count * size, pages
            pages = {}


def _summed(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Continue SQLite's checksum over more data."""
    a, b = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for x, y in zip(words[::2], words[1::2], strict=True):
        a = (a + x + b) & _WORD
        b = (b + y + a) & _WORD
    return a, b
