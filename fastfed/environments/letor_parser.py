"""Parse LETOR text, block by block. A line is ``relevance qid:N 1:v 2:v ... [# comment]``.

A compiled parser (`ff_letor.c`) reads plain lines, a whole block of bytes at a time. A block with
anything unusual (unordered features, signs of whole numbers, an error) goes to a line-by-line
parser in Python, which reads it or raises an error that names file and line. Both parsers round
values as Python's float does. The compiled parser calls that conversion for values whose product
or quotient could be rounded twice.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastfed._cells import MISSING
from fastfed._containers import columnar, compression, is_utf_16, other_kind
from fastfed._kernels import environments
from fastfed._validate import InputError, show

MAX_FEATURES = 65_536  # a larger index is a typing error, and would fill the memory

#: Largest number of entries in the table of a block of several lines. A few wide lines among many
#: short lines would otherwise make the table huge.
MAX_ENTRIES = 2**24

_WHOLE = re.compile(rb"[+-]?[0-9]+(\.0*)?")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_LINE_END = np.uint8(ord("\n"))


def is_value(text: str) -> bool:
    """Return True if a text is a number, which may be infinite, or means a missing value."""
    data = text.encode("utf-8", "replace")
    return text in MISSING - {""} or bool(_DECIMAL.fullmatch(data) or _NOT_FINITE.fullmatch(data))


# ---- Parsing one block ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one block: relevance (n,), query number (n,), float32 values (n, largest index)."""

    relevance: np.ndarray
    qid: np.ndarray
    values: np.ndarray


class TooWide(Exception):
    """Raised for a block whose table would be too large. The caller then splits the block."""


def parse_block(block: bytes, limit: int = MAX_FEATURES) -> Rows | None:
    """Return the rows of a block of whole lines; None if a line is not plain LETOR text.

    In plain text every line is digits, a blank, ``qid:`` and digits, then pairs ``index:decimal``
    with increasing indices, and optionally a comment. ``limit`` is the largest index allowed.
    Raises `TooWide` if the table of the block would be too large.
    """
    lines = count_lines(block)
    width = _first_width(block, limit)
    while True:
        if lines > 1 and lines * width > MAX_ENTRIES:
            raise TooWide
        values = np.zeros((lines, width), np.float32)
        relevance, qid = np.empty(lines, np.int32), np.empty(lines, np.int64)
        result = environments.parse_letor(block, limit, values, relevance, qid)
        if result is None:
            return None
        rows, largest = result  # the number of rows read, and the largest index in the block
        if rows is not None:
            table = np.ascontiguousarray(values[:rows, : max(largest, 1)])
            return Rows(relevance[:rows], qid[:rows], table)
        width = largest  # nothing was read: an index is larger than the width


def count_lines(block: bytes) -> int:
    """Return the number of line ends, about ten times as fast as ``bytes.count``."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LINE_END))


def _first_width(block: bytes, limit: int) -> int:
    """Return the largest feature index of the first line, a guess for the whole block."""
    line = block[: block.find(b"\n") + 1].partition(b"#")[0]
    index = line.rpartition(b":")[0].rpartition(b" ")[2]
    return min(int(index), limit) if index.isdigit() and 0 < len(index) < 6 and int(index) else 1


def parse_lines(block: bytes, name: str, line: int = 1, limit: int = MAX_FEATURES) -> Rows:
    """Return the rows of a block of whole lines, parsed one by one.

    ``name`` is the file, ``line`` the number of the first line, and ``limit`` the largest index
    allowed. Raises InputError with file, line and the fault.
    """
    relevance: list[int] = []
    qids: list[int] = []
    pairs: list[dict[int, float]] = []
    for number, text in enumerate(block.split(b"\n"), start=line):
        tokens = text.split(b"#", 1)[0].split()
        if not tokens:
            continue
        where = f"{name}:{number}"
        relevance.append(_parse_integer(tokens[0], where, "relevance", 31))
        if len(tokens) < 2 or not tokens[1].startswith(b"qid:"):
            token = _shown(tokens[1]) if len(tokens) > 1 else "the end of the line"
            raise InputError(f"{where}: qid:N must follow the relevance, got {token}")
        qids.append(_parse_integer(tokens[1][4:], where, "qid", 63))
        pairs.append(_pairs(tokens[2:], where, limit))
    width = max((max(row, default=0) for row in pairs), default=0)
    if len(pairs) > 1 and len(pairs) * width > MAX_ENTRIES:
        raise TooWide
    values = np.zeros((len(pairs), max(width, 1)), dtype=np.float32)
    for row, row_pairs in enumerate(pairs):
        for index, value in row_pairs.items():
            values[row, index - 1] = value
    return Rows(np.array(relevance, dtype=np.int32), np.array(qids, dtype=np.int64), values)


def _pairs(tokens: list[bytes], where: str, limit: int) -> dict[int, float]:
    """Return index -> value from the pairs index:value of one line.

    ``where`` names file and line, for error messages, and ``limit`` is the largest index allowed.
    """
    result: dict[int, float] = {}
    for token in tokens:
        left, colon, right = token.partition(b":")
        if not (colon and left.isdigit()):
            raise InputError(f"{where}: expected a pair index:value, got {_shown(token)}")
        index = int(left.lstrip(b"0")[:20] or b"0")
        if not 1 <= index <= limit:
            advice = (
                ""
                if index
                else (
                    ": number features from 1 (with zero_based=False of scikit-learn's "
                    "dump_svmlight_file)"
                )
            )
            raise InputError(
                f"{where}: feature index must be 1 to {limit}, got {_shown(left)}{advice}"
            )
        if index in result:
            raise InputError(f"{where}: feature {index} must come once in a line, got it twice")
        if _NOT_FINITE.fullmatch(right):
            raise InputError(
                f"{where}: feature {index} must be finite, got {_shown(right)}"
                f"{_advice_on_missing(right)}"
            )
        if not _DECIMAL.fullmatch(right):
            advice = (
                _advice_on_missing(right)
                if right.decode("utf-8", "replace") in MISSING - {""}
                else ""
            )
            raise InputError(f"{where}: expected a pair index:value, got {_shown(token)}{advice}")
        value = float(right)
        if abs(value) > _LARGEST:
            raise InputError(
                f"{where}: feature {index} must fit a float32 (at most {_LARGEST:.3g}), "
                f"got {_shown(right)}{_advice_on_missing(right)}"
            )
        result[index] = value
    return result


def _advice_on_missing(token: bytes) -> str:
    """Return advice for an error message about a text that no feature can have as its value."""
    return f': if the file writes missing values so, set missing = "{token.decode()}"'


def _parse_integer(token: bytes, where: str, name: str, bits: int) -> int:
    """Return a whole number, written as an integer (2) or with an empty fraction (2.0).

    ``name`` is the quantity, for error messages. The number must be in [-2^bits, 2^bits).
    """
    if _WHOLE.fullmatch(token) and len(token) <= 40:
        value = int(token.split(b".")[0])
        if -(2**bits) <= value < 2**bits:
            return value
        raise InputError(
            f"{where}: {name} must be a whole number of at most {2**bits - 1}, got {_shown(token)}"
        )
    raise InputError(f"{where}: {name} must be a whole number, got {_shown(token)}")


def _shown(token: bytes) -> str:
    """Return bytes of a file as text for an error message."""
    return show(token.decode("utf-8", errors="replace"), 40)


# ---- Parsing files, block by block ---------------------------------------------------------------

#: Compressions besides gzip that are read block by block.
_OPENERS: dict[str | None, Any] = {"bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}


def _kind_of_other_file(start: bytes, kind: str | None) -> str | None:
    """Return a phrase that names the kind of a file that is not text, and what to do with it.

    ``start`` are its first bytes, and ``kind`` its compression. Return None for text.
    """
    if kind is not None:
        return f"a file compressed by {kind}: unpack it"
    if is_utf_16(start):
        return "text in UTF-16: save it in UTF-8"
    name = columnar(start)
    return None if name is None else f"a {name.capitalize()} file: write its rows as text"


_BLOCK = 1 << 18  # bytes of a block; its text and its table fit the processor's cache
_LONGEST = 1 << 24  # largest length of a line, as a file without line ends would fill the memory


@dataclass(frozen=True)
class Parts:
    """Destinations of parsed rows, which are appended block by block: lists or growable arrays."""

    features: Any
    relevance: Any
    starts: Any
    qids: Any


@dataclass(frozen=True)
class Parsed:
    """What `parse` found besides the rows.

    Parameters
    ----------
    digests : list of str
        SHA-256 of each file.
    unjudged : int
        Number of rows of negative relevance, which are left out.
    """

    digests: list[str]
    unjudged: int


def parse(
    sources: Iterable[Path], limit: int, parts: Parts, missing: bytes | None = None
) -> Parsed:
    """Append the judged rows, those of relevance >= 0, of all source files to ``parts``.

    ``limit`` is the largest feature index allowed. A value with the text ``missing`` is read as 0,
    like an absent feature. Memory holds one block of a file at a time. Raises InputError if the
    judged rows of a qid are not together in a file: they may be of one query, or of two.
    """
    digests: list[str] = []
    count = unjudged = 0
    missing_pattern = (
        None if missing is None else re.compile(b":" + re.escape(missing) + rb"(?=[\s#]|$)")
    )
    # glibc keeps freed memory for reuse, at most twice the size of the largest allocation that was
    # ever freed. So allocate and free 30 MB once. Otherwise glibc returns the arrays of every block
    # to the system and requests them again, which halves the speed.
    np.empty(30 << 20, dtype=np.uint8)
    for source in sources:
        digest = hashlib.sha256()
        first_row, last_qid, seen_qids = count, 0, set[int]()
        for raw_block, line in _blocks(source, digest):
            block = raw_block if missing_pattern is None else missing_pattern.sub(b":0", raw_block)
            for all_rows in _rows(block, str(source), line, limit):
                rows = _judged(all_rows)
                unjudged += len(all_rows.qid) - len(rows.qid)
                if not len(rows.qid):
                    continue
                starts_query = np.concatenate(
                    [[rows.qid[0] != last_qid], rows.qid[1:] != rows.qid[:-1]]
                )
                starts_query[0] |= count == first_row  # a query ends with its file
                first_rows = np.flatnonzero(starts_query)
                for qid in rows.qid[first_rows].tolist():
                    if qid in seen_qids:
                        raise _error_of_separated_query(source, qid)
                    seen_qids.add(qid)
                parts.features.append(rows.values)
                parts.relevance.append(rows.relevance)
                parts.starts.append(first_rows + count)
                parts.qids.append(rows.qid[first_rows])
                count, last_qid = count + len(rows.qid), int(rows.qid[-1])
        if count == first_row:
            judged = f" judged by somebody, found {unjudged} others" if unjudged else ", found none"
            raise InputError(f"{source} must hold LETOR rows{judged}")
        digests.append(digest.hexdigest())
    parts.starts.append(np.array([count], np.int64))
    return Parsed(digests, unjudged)


def _error_of_separated_query(source: Path, qid: int) -> InputError:
    """Return the InputError for a qid that comes back in a file after other queries.

    The file is read again to find the line.
    """
    row_pattern = re.compile(rb"\s*\+?[0-9.]+\s+qid:([+-]?[0-9]+)")
    last: int | None = None
    ended = False  # True after the first rows of the qid, once another qid has followed
    where = f"{source}"
    for block, first in _blocks(source, hashlib.sha256()):
        for number, line in enumerate(block.split(b"\n"), first):
            row = row_pattern.match(line)
            if row is None:
                continue
            ended |= last == qid != int(row[1])
            last = int(row[1])
            if ended and last == qid:
                where = f"{source}:{number}"
                break
        else:
            continue
        break
    return InputError(
        f"{where}: rows of one query must be together, but qid {qid} comes back after other "
        "queries: sort the rows by qid, or if they are of another query, give it another qid"
    )


def _judged(rows: Rows) -> Rows:
    """Return the rows with a relevance of at least 0; a negative one means that nobody judged."""
    judged = rows.relevance >= 0
    if judged.all():
        return rows
    return Rows(rows.relevance[judged], rows.qid[judged], rows.values[judged])


def _rows(block: bytes, name: str, line: int, limit: int) -> Iterator[Rows]:
    """Yield the rows of a block of whole lines of the file ``name``.

    ``line`` is the number of the first line, and ``limit`` the largest feature index allowed. The
    block is split as long as its table would be too large.
    """
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
    """A file that adds all bytes that are read to a digest, in a second thread."""

    def __init__(self, file: BinaryIO, digest: Any, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._digest = digest
        self._thread = thread
        self._last: Future[None] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, while the thread hashes the previous block."""
        data = self._file.read(len(buffer))
        if self._last is not None:
            self._last.result()  # at most one block waits to be hashed, so memory is bounded
        self._last = self._thread.submit(self._digest.update, data)
        buffer[: len(data)] = data
        return len(data)


def _blocks(source: Path, digest: Any) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, of about _BLOCK bytes, and the number of their first line.

    After the last block, ``digest`` has hashed all bytes of the file.
    """
    try:
        # Leaving the context of the thread waits for the digest.
        with ThreadPoolExecutor(1) as thread, source.open("rb") as file:
            stream: Any = io.BufferedReader(_HashingFile(file, digest, thread), _BLOCK)
            start = stream.peek(16)
            kind = compression(start)
            if kind == "gzip" or source.name.endswith(".gz"):
                stream = gzip.GzipFile(fileobj=stream)
            elif kind in _OPENERS:
                stream = _OPENERS[kind](stream)
            elif other_kind_text := other_kind(start, source.name) or _kind_of_other_file(
                start, kind
            ):
                raise InputError(f"{source} must be LETOR text, got {other_kind_text}")
            line = 1
            unparsed: list[bytes] = []
            data = stream.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
            while data:
                cut = data.rfind(b"\n") + 1
                if cut:
                    block = b"".join([*unparsed, data[:cut]])
                    unparsed = [data[cut:]]
                    yield block, line
                    line += count_lines(block)
                else:
                    unparsed.append(data)
                    if sum(map(len, unparsed)) > _LONGEST:
                        raise InputError(
                            f"{source}:{line}: a line must be at most {_LONGEST} bytes"
                        )
                data = stream.read(_BLOCK)
            if any(unparsed):
                yield b"".join([*unparsed, b"\n"]), line
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"{source} must be a whole {kind or 'gzip'} file, got damage ({error}): copy it again"
        ) from None
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
