"""Read SQLite files without creating, changing or locking any file.

Even a read-only SQLite connection creates files next to a database in WAL mode. So the committed
content is copied to memory: the pages of the database, then the newer pages of its write-ahead log
("-wal"), as defined by SQLite's file format (https://sqlite.org/fileformat2.html, section 4).
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

#: First bytes of every SQLite file.
MAGIC = b"SQLite format 3\0"
#: First word of a log -> byte order of its checksums.
_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
_HEADER, _FRAME, _WORD = 32, 24, 0xFFFFFFFF
#: Number of attempts to read a file that is being written, and seconds between two attempts.
_TRIES, _PAUSE = 20, 0.05


def copied(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Copy the committed content of an SQLite file to a database in memory.

    Raises
    ------
    InputError
        If it is not an SQLite file, or it changes during every attempt.
    """
    for _ in range(_TRIES):
        data = _committed(Path(path))
        if data is not None:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            if data:
                # Bytes 18 and 19 of the header switch WAL mode off: the copy has no log.
                data[18:20] = b"\1\1"
                copy.deserialize(bytes(data))
            return copy
        time.sleep(_PAUSE)
    raise InputError(f"{path} changes at every attempt to read it; try again later")


def _committed(path: Path) -> bytearray | None:
    """Read a database with all committed transactions; None if a file changed meanwhile."""
    log = path.with_name(path.name + "-wal")
    stamp, frames = _stamp(path, log), log.read_bytes() if log.exists() else b""
    if not path.stat().st_size:
        return bytearray()
    try:
        # Read through SQLite: closing a separately opened file would drop this process's locks.
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            data = bytearray(db.serialize())
    except sqlite3.Error:
        data = bytearray()
    if data[:16] != MAGIC:
        raise InputError(f"{path} is no SQLite file, or it may not be read")
    for size, pages in _transactions(frames):
        for number, page in pages.items():
            end = number * len(page)
            data += bytes(max(0, end - len(data)))
            data[end - len(page) : end] = page
        del data[size:]
    return data if _stamp(path, log) == stamp else None


def _stamp(*files: Path) -> list[tuple[int, int]]:
    """Return size and modification time of each file, (-1, 0) for a missing one."""
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
    checksum = _summed(order, log[:24], (0, 0))
    if checksum != struct.unpack(">2I", log[24:32]):
        return
    pages: dict[int, bytes] = {}
    for start in range(_HEADER, len(log) - _FRAME - size + 1, _FRAME + size):
        number, count, *rest = struct.unpack(">6I", log[start : start + _FRAME])
        page = log[start + _FRAME : start + _FRAME + size]
        checksum = _summed(order, log[start : start + 8] + page, checksum)
        # This frame is left over from an earlier log, or was not written completely.
        if rest != [*salts, *checksum]:
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
