"""SQLite files, read without opening them for writing: nothing is created, changed or locked.

SQLite itself makes files beside a database in WAL mode even where it is asked to read alone. So
what is committed is copied to memory: the database, and over it the pages of its log ("-wal") as
SQLite's file format says (https://sqlite.org/fileformat2.html, section 4).
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
    """What is committed in an SQLite file, as a database in memory.

    Raises
    ------
    InputError
        If it is no SQLite file, or is written all the time.
    """
    for _ in range(_TRIES):
        data = _committed(Path(path))
        if data is not None:
            made = sqlite3.connect(":memory:", isolation_level=None)
            if data:
                # The copy has no log: bytes 18 and 19 say so.
                data[18:20] = b"\1\1"
                made.deserialize(bytes(data))
            return made
        time.sleep(_PAUSE)
    raise InputError(f"{path} is written all the time by another process; try again later")


def _committed(path: Path) -> bytearray | None:
    """Bytes of a database with all that is committed; None if it changed meanwhile."""
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
    """Size and time of each file."""
    found = (file.stat() if file.exists() else None for file in files)
    return [(-1, 0) if s is None else (s.st_size, s.st_mtime_ns) for s in found]


def _transactions(log: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """(bytes of the database, pages by number) of each transaction that a log commits."""
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
    """SQLite's checksum of data after what was summed before."""
    a, b = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for x, y in zip(words[::2], words[1::2], strict=True):
        a = (a + x + b) & _WORD
        b = (b + y + a) & _WORD
    return a, b
