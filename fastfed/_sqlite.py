"""Read SQLite files without creating, changing or locking any file.

Even a read-only SQLite connection creates files next to a database in WAL mode. So this module
copies the committed content to memory: first the pages of the database file, then the newer pages
in its write-ahead log (the file "-wal"). The format of the log is defined in
https://sqlite.org/fileformat2.html, section 4.
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
#: First word of a write-ahead log -> byte order of its checksums.
_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
#: Bytes of a log's header and of a frame's header; mask of a 32-bit word.
_HEADER, _FRAME, _WORD = 32, 24, 0xFFFFFFFF
#: Number of attempts to read a file that is being written, and seconds between two attempts.
_TRIES, _PAUSE = 20, 0.05


def copied(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Return a connection to a copy in memory of an SQLite file's committed content.

    Raises
    ------
    InputError
        If it is not an SQLite file, or it changes during every attempt to read it.
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
    """Return the bytes of a database with all committed transactions.

    Return None if the database or its log changed while it was read.
    """
    log = path.with_name(path.name + "-wal")
    stamp, frames = _stamp(path, log), log.read_bytes() if log.exists() else b""
    if not path.stat().st_size:
        return bytearray()
    try:
        # Read the file through SQLite: if this process closed a plain file handle of a database
        # that it also has open in SQLite, the system would drop SQLite's locks.
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
    """Return size and modification time of each file; (-1, 0) for a file that does not exist."""
    stats = (file.stat() if file.exists() else None for file in files)
    return [(-1, 0) if s is None else (s.st_size, s.st_mtime_ns) for s in stats]


def _transactions(log: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield the committed transactions of a write-ahead log.

    Each is a pair: the size of the database in bytes, and the changed pages by number.
    """
    if len(log) < _HEADER:
        return
    # The header has the page size, and two random words ("salts") that each frame repeats.
    magic, _, size, _, *salts = struct.unpack(">6I", log[:24])
    order = _ORDERS.get(magic)
    if order is None:
        return
    checksum = _summed(order, log[:24], (0, 0))
    if checksum != struct.unpack(">2I", log[24:32]):
        return
    pages: dict[int, bytes] = {}
    for start in range(_HEADER, len(log) - _FRAME - size + 1, _FRAME + size):
        number, count, *frame_fields = struct.unpack(">6I", log[start : start + _FRAME])
        page = log[start + _FRAME : start + _FRAME + size]
        checksum = _summed(order, log[start : start + 8] + page, checksum)
        # Stop at a frame that belongs to an earlier log, or that was not written completely.
        if frame_fields != [*salts, *checksum]:
            return
        pages[number] = page
        if count:  # the last frame of a transaction has the number of pages of the database
            yield count * size, pages
            pages = {}


def _summed(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum, two words, of ``data``, continued from the checksum ``sums``.

    ``order`` is the byte order of the words in ``data``, as in `struct`.
    """
    a, b = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for x, y in zip(words[::2], words[1::2], strict=True):
        a = (a + x + b) & _WORD
        b = (b + y + a) & _WORD
    return a, b
