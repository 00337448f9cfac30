"""LETOR files to rows, block by block: no more of a file than a block is held at once."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastfed._validate import InputError
from fastfed.environments.letor_parse import Rows, TooWide, parse_block, parse_lines

_BLOCK = 1 << 18  # bytes; the vectorised parser's arrays then stay near the cache
_LONGEST = 1 << 24  # bytes of a line; a file without line ends would fill the memory


@dataclass(frozen=True)
class Parts:
    """What parsed rows are added to, block by block: lists of arrays, or arrays that grow."""

    features: Any
    relevance: Any
    starts: Any
    qids: Any


def parse(sources: Iterable[Path], limit: int, parts: Parts) -> list[str]:
    """Add all rows to ``parts``, and return the SHA-256 of each source.

    ``limit`` is the largest feature index allowed. No more than a block of a file is held at once.
    """
    digests: list[str] = []
    count = 0
    # glibc keeps freed memory up to twice the largest block it ever unmapped. Without this the
    # arrays of every block are given back and faulted in again, which halves the speed.
    np.empty(30 << 20, dtype=np.uint8)
    for source in sources:
        digest = hashlib.sha256()
        before, last = count, 0
        for block, line in _blocks(source, digest):
            for rows in _rows(block, str(source), line, limit):
                if not len(rows.qid):
                    continue
                parts.features.append(rows.values)
                parts.relevance.append(rows.relevance)
                new = np.concatenate([[rows.qid[0] != last], rows.qid[1:] != rows.qid[:-1]])
                new[0] |= count == before  # a query ends with its file
                first = np.flatnonzero(new)
                parts.starts.append(first + count)
                parts.qids.append(rows.qid[first])
                count, last = count + len(rows.qid), int(rows.qid[-1])
        if count == before:
            raise InputError(f"{source} must hold LETOR rows, found none")
        digests.append(digest.hexdigest())
    parts.starts.append(np.array([count], np.int64))
    return digests


def _rows(block: bytes, name: str, line: int, limit: int) -> Iterator[Rows]:
    """Rows of whole lines, in as many parts as it takes to keep each table small."""
    try:
        rows = parse_block(block, limit)
        if rows is None:
            rows = parse_lines(block, name, line, limit)
    except TooWide:
        cut = block.find(b"\n", len(block) // 2) + 1
        if cut in (0, len(block)):
            cut = block.rfind(b"\n", 0, len(block) - 1) + 1
        yield from _rows(block[:cut], name, line, limit)
        yield from _rows(block[cut:], name, line + block.count(b"\n", 0, cut), limit)
    else:
        yield rows


class _HashingFile(io.RawIOBase):
    """A file that feeds every byte read from it to a digest, in a thread beside the parser."""

    def __init__(self, file: BinaryIO, digest: Any, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._digest = digest
        self._thread = thread
        self._last: Future[None] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        if self._last is not None:
            self._last.result()  # one block ahead at most, whatever the size of the file
        self._last = self._thread.submit(self._digest.update, data)
        buffer[: len(data)] = data
        return len(data)


def _blocks(source: Path, digest: Any) -> Iterator[tuple[bytes, int]]:
    """Whole lines of source, about _BLOCK bytes at a time, with the number of the first line.

    When the last block has been taken, digest has seen every byte of the file.
    """
    try:
        # Leaving the outer context waits for the digest.
        with ThreadPoolExecutor(1) as thread, source.open("rb") as file:
            stream: Any = io.BufferedReader(_HashingFile(file, digest, thread), _BLOCK)
            if source.name.endswith(".gz") or stream.peek(2)[:2] == b"\x1f\x8b":
                stream = gzip.GzipFile(fileobj=stream)
            line = 1
            rest: list[bytes] = []
            data = stream.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
            while data:
                cut = data.rfind(b"\n") + 1
                if cut:
                    block = b"".join([*rest, data[:cut]])
                    rest = [data[cut:]]
                    yield block, line
                    line += block.count(b"\n")
                else:
                    rest.append(data)
                    if sum(map(len, rest)) > _LONGEST:
                        raise InputError(
                            f"{source}:{line}: a line must be at most {_LONGEST} bytes"
                        )
                data = stream.read(_BLOCK)
            if any(rest):
                yield b"".join([*rest, b"\n"]), line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{source} must be a whole gzip file, got damage: {error}") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
