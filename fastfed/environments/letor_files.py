"""LETOR files as arrays, parsed once: text, sources and their cache.

Text is ``relevance qid:N 1:v 2:v ... [# comment]``, one row a line. Parsed files are stored as
memory-mapped arrays in a cache folder ($FASTFED_CACHE, or fastfed/ in the user's cache folder of
the platform), under path, size and time stamp of the sources.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastfed._kernels import environments
from fastfed._memory import available
from fastfed._validate import InputError, integer, show
from fastfed.environments.storage import (
    FORMAT,
    GrowableArray,
    cache_folder,
    fresh_folder,
    load_array,
    load_meta,
    write_meta,
)

# ---- Parsing text --------------------------------------------------------------------------------
#
# A compiled parser (`ff_letor.c`) reads plain lines, a whole block of bytes at a time. A block with
# anything unusual (unordered features, signs of whole numbers, an error) goes to an exact
# line-by-line parser, which reads it or names file and line. Both give the numbers of Python's
# float: the compiled one leaves values to it whose product or quotient could be rounded twice.

MAX_FEATURES = 65_536  # a larger index is a typing error, and would fill the memory

#: Entries that the table of one block may have, unless it is a single line: a few wide lines among
#: many short ones would make it huge.
MAX_ENTRIES = 2**24

_WHOLE = re.compile(rb"[+-]?[0-9]+(\.0*)?")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_LINE_END = np.uint8(ord("\n"))


# ---- Parsing one block ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one block: relevance (n,), qid (n,), values float32 (n, largest index)."""

    relevance: np.ndarray
    qid: np.ndarray
    values: np.ndarray


class TooWide(Exception):
    """Raised for a block whose table would be too large: parse fewer of its lines at once."""


def parse_block(block: bytes, limit: int = MAX_FEATURES) -> Rows | None:
    """Parse whole lines at once; None if a line is anything but plain LETOR text.

    In plain text every line is digits, a blank, ``qid:`` and digits, then pairs ``index:decimal``
    with growing indices, and perhaps a comment.
    """
    lines = count_lines(block)
    width = _first_width(block, limit)
    while True:
        if lines > 1 and lines * width > MAX_ENTRIES:
            raise TooWide
        values = np.zeros((lines, width), np.float32)
        relevance, qid = np.empty(lines, np.int32), np.empty(lines, np.int64)
        found = environments.parse_letor(block, limit, values, relevance, qid)
        if found is None:
            return None
        rows, largest = found
        if rows is not None:
            table = np.ascontiguousarray(values[:rows, : max(largest, 1)])
            return Rows(relevance[:rows], qid[:rows], table)
        width = largest


def count_lines(block: bytes) -> int:
    """Return the number of line ends, some ten times as fast as ``bytes.count``."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LINE_END))


def _first_width(block: bytes, limit: int) -> int:
    """Largest index of the first line, as that of the others mostly is."""
    line = block[: block.find(b"\n") + 1].partition(b"#")[0]
    index = line.rpartition(b":")[0].rpartition(b" ")[2]
    return min(int(index), limit) if index.isdigit() and 0 < len(index) < 6 and int(index) else 1


def parse_lines(block: bytes, name: str, line: int = 1, limit: int = MAX_FEATURES) -> Rows:
    """Parse whole lines one by one, exactly; InputError says ``name:line`` and the fault."""
    relevance: list[int] = []
    qids: list[int] = []
    pairs: list[dict[int, float]] = []
    for number, text in enumerate(block.split(b"\n"), start=line):
        tokens = text.split(b"#", 1)[0].split()
        if not tokens:
            continue
        where = f"{name}:{number}"
        relevance.append(_whole(tokens[0], where, "relevance", 31))
        if len(tokens) < 2 or not tokens[1].startswith(b"qid:"):
            found = _text(tokens[1]) if len(tokens) > 1 else "the end of the line"
            raise InputError(f"{where}: qid:N must follow the relevance, got {found}")
        qids.append(_whole(tokens[1][4:], where, "qid", 63))
        pairs.append(_pairs(tokens[2:], where, limit))
    width = max((max(row, default=0) for row in pairs), default=0)
    if len(pairs) > 1 and len(pairs) * width > MAX_ENTRIES:
        raise TooWide
    values = np.zeros((len(pairs), max(width, 1)), dtype=np.float32)
    for row, found_pairs in enumerate(pairs):
        for index, value in found_pairs.items():
            values[row, index - 1] = value
    return Rows(np.array(relevance, dtype=np.int32), np.array(qids, dtype=np.int64), values)


def _pairs(tokens: list[bytes], where: str, limit: int) -> dict[int, float]:
    """Return the pairs index:value of one line."""
    result: dict[int, float] = {}
    for token in tokens:
        left, colon, right = token.partition(b":")
        if not (colon and left.isdigit()):
            raise InputError(f"{where}: expected a pair index:value, got {_text(token)}")
        index = int(left.lstrip(b"0")[:20] or b"0")
        if not 1 <= index <= limit:
            raise InputError(f"{where}: feature index must be 1 to {limit}, got {_text(left)}")
        if index in result:
            raise InputError(f"{where}: feature {index} must come once in a line, got it twice")
        if _NOT_FINITE.fullmatch(right):
            raise InputError(f"{where}: feature {index} must be finite, got {_text(right)}")
        if not _DECIMAL.fullmatch(right):
            raise InputError(f"{where}: expected a pair index:value, got {_text(token)}")
        value = float(right)
        if abs(value) > _LARGEST:
            raise InputError(
                f"{where}: feature {index} must fit a float32 (at most {_LARGEST:.3g}), "
                f"got {_text(right)}"
            )
        result[index] = value
    return result


def _whole(token: bytes, where: str, name: str, bits: int) -> int:
    """Parse a whole number, written as an integer (2) or with an empty fraction (2.0)."""
    if _WHOLE.fullmatch(token) and len(token) <= 40:
        value = int(token.split(b".")[0])
        if -(2**bits) <= value < 2**bits:
            return value
    raise InputError(f"{where}: {name} must be a whole number, got {_text(token)}")


def _text(token: bytes) -> str:
    """Return bytes of a file as text for a message."""
    return show(token.decode("utf-8", errors="replace"), 40)


# ---- Parsing files, block by block ---------------------------------------------------------------

_BLOCK = 1 << 18  # bytes; text and table of a block then fit the cache
_LONGEST = 1 << 24  # bytes of a line; a file without line ends would fill the memory


@dataclass(frozen=True)
class Parts:
    """Destinations of parsed rows, which are appended block by block: lists or growable arrays."""

    features: Any
    relevance: Any
    starts: Any
    qids: Any


def parse(sources: Iterable[Path], limit: int, parts: Parts) -> list[str]:
    """Append the rows of all sources to ``parts``, and return the SHA-256 of each source.

    ``limit`` is the largest feature index allowed. Memory holds one block of a file at a time.
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
    """Yield the rows of whole lines, in as many parts as keep each table small."""
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
    """A file that feeds every byte read from it to a digest, in a second thread."""

    def __init__(self, file: BinaryIO, digest: Any, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._digest = digest
        self._thread = thread
        self._last: Future[None] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, while the thread hashes the block before."""
        data = self._file.read(len(buffer))
        if self._last is not None:
            self._last.result()  # one block ahead at most, whatever the size of the file
        self._last = self._thread.submit(self._digest.update, data)
        buffer[: len(data)] = data
        return len(data)


def _blocks(source: Path, digest: Any) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, about _BLOCK bytes at a time, with the number of their first line.

    After the last block, digest has seen every byte of the file.
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
                    line += count_lines(block)
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


# ---- Files as arrays -----------------------------------------------------------------------------

_SPLITS = ("train", "vali", "test")
_ENDINGS = (".txt", ".txt.gz")

# ---- Reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LetorRows:
    """Parsed LETOR rows; a query is a contiguous run of one qid inside one file.

    Parameters
    ----------
    features : ndarray of float32, shape (n, features)
        Column j holds feature j + 1; absent features are 0.
    relevance : ndarray of int32, shape (n,)
        Relevance labels.
    starts : ndarray of int64, shape (queries + 1,)
        First row of each query, and n.
    qids : ndarray of int64, shape (queries,)
        Query identifiers.
    sources : tuple of str
        The files, in the order of their rows.
    checksums : tuple of str
        SHA-256 of each file, in hexadecimal.
    folder : Path or None
        Cache folder of the arrays, or None if they are only in memory.
    """

    features: np.ndarray
    relevance: np.ndarray
    starts: np.ndarray
    qids: np.ndarray
    sources: tuple[str, ...]
    checksums: tuple[str, ...]
    folder: Path | None


@dataclass(frozen=True)
class CachedEntry:
    """One parsed file or folder in the cache."""

    path: str
    sources: tuple[str, ...]
    rows: int
    queries: int
    features: int
    bytes: int
    folder: Path


@dataclass(frozen=True)
class _Stamp:
    """Name, size and time stamp of a source, which tell its versions apart without reading it."""

    name: str
    size: int
    mtime_ns: int


def read_letor(path: str | os.PathLike[str], features: int | None = None) -> LetorRows:
    """Read a LETOR file (.txt, .gz) or a folder of them, from the cache if it has them.

    Parameters
    ----------
    path : path-like
        A file, or a folder: its train, vali and test files (.txt or .txt.gz), or if it has none of
        these all its .txt and .txt.gz files, sorted by name.
    features : int, optional
        Largest feature index allowed.

    Returns
    -------
    LetorRows
        The rows.

    Raises
    ------
    InputError
        Naming file and line for what is not LETOR text, and for missing files.
    """
    if features is not None:
        features = integer("features", features, at_least=1, at_most=MAX_FEATURES)
    sources = source_files(path)
    stamps = [_stamp(source) for source in sources]
    folder = _entry_folder(stamps)
    cached = _load(folder)
    if cached is not None and (features is None or cached.features.shape[1] <= features):
        return cached
    limit = MAX_FEATURES if features is None else features
    try:
        _cache(folder, str(Path(path).resolve()), sources, stamps, limit)
    except OSError as error:
        why = f"the cache folder {cache_folder()} cannot be written ({error.strerror or error})"
    else:
        _drop_older(folder, [s.name for s in stamps])
        stored = _load(folder)
        if stored is not None:
            return stored
        why = f"what was written to the cache folder {cache_folder()} cannot be read"
    _warn(f"{why}: {path} is parsed in memory, and again at the next start")
    return _in_memory(sources, stamps, limit, f"{path} is larger than memory, and {why}")


@cache
def _warn(text: str) -> None:
    """Warn, once of each text: an environment reads its files more than once."""
    warnings.warn(text, stacklevel=3)


def _cache(folder: Path, path: str, sources: list[Path], stamps: list[_Stamp], limit: int) -> None:
    """Parse sources into a cache folder, block by block; OSError where it cannot be written."""
    with fresh_folder(folder) as temporary, ExitStack() as stack:

        def growable(name: str, dtype: Any, table: bool = False) -> GrowableArray:
            path = temporary / f"{name}.npy"
            return stack.enter_context(closing(GrowableArray(path, dtype, table=table)))

        parts = Parts(
            features=growable("features", np.float32, table=True),
            relevance=growable("relevance", np.int32),
            starts=growable("starts", np.int64),
            qids=growable("qids", np.int64),
        )
        digests = parse(sources, limit, parts)
        _check_unchanged(sources, stamps)
        for part in (parts.features, parts.relevance, parts.starts, parts.qids):
            part.finish()
        meta = {
            "format": FORMAT,
            "path": path,
            "sources": [
                {"name": s.name, "size": s.size, "mtime_ns": s.mtime_ns, "sha256": digest}
                for s, digest in zip(stamps, digests, strict=True)
            ],
            "rows": parts.features.rows,
            "features": parts.features.width,
            "queries": parts.qids.rows,
        }
        write_meta(temporary, meta)


def _in_memory(sources: list[Path], stamps: list[_Stamp], limit: int, too_large: str) -> LetorRows:
    """Parse sources in memory; InputError with the text ``too_large`` where it is too small."""
    most = available()
    blocks = _BoundedBlocks(most, too_large)
    parts = Parts(blocks, [], [], [])
    digests = parse(sources, limit, parts)
    _check_unchanged(sources, stamps)
    relevance, starts, qids = map(np.concatenate, (parts.relevance, parts.starts, parts.qids))
    width = max(block.shape[1] for block in blocks)
    if most is not None and 4 * len(relevance) * width > most:
        raise InputError(too_large)
    table = np.zeros((len(relevance), width), dtype=np.float32)
    filled = 0
    while blocks:  # freed one by one: the peak is one copy, not two
        block = blocks.pop(0)
        table[filled : filled + len(block), : block.shape[1]] = block
        filled += len(block)
    names = tuple(str(s) for s in sources)
    return LetorRows(table, relevance, starts, qids, names, tuple(digests), None)


class _BoundedBlocks(list[np.ndarray]):
    """A list of arrays that raises InputError beyond a number of bytes."""

    def __init__(self, most: int | None, too_large: str) -> None:
        super().__init__()
        self._most, self._too_large, self._bytes = most, too_large, 0

    def append(self, block: np.ndarray) -> None:
        """Append a block; InputError if all together take more memory than there is."""
        super().append(block)
        self._bytes += block.nbytes
        if self._most is not None and self._bytes > self._most:
            raise InputError(self._too_large)


def _check_unchanged(sources: list[Path], stamps: list[_Stamp]) -> None:
    """Raise InputError if a source changed while it was read."""
    for source, stamp in zip(sources, stamps, strict=True):
        if _stamp(source) != stamp:
            raise InputError(f"{source} changed while it was being read: start again")


def source_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files that ``read_letor`` reads for path, in order; InputError if none."""
    root = Path(path)
    if os.path.isfile(root):
        return [root]
    if not os.path.isdir(root):
        raise InputError(f"{root} must be a LETOR file (.txt, .gz) or a folder of them: not found")
    found = sorted(
        p
        for p in root.iterdir()
        if p.name.endswith(_ENDINGS) and not p.name.startswith(".") and p.is_file()
    )
    if not found:
        folders = sorted(p.name for p in root.iterdir() if p.is_dir())
        hint = f"; it holds the folders {', '.join(folders[:5])}: name one" if folders else ""
        raise InputError(f"{root} must hold .txt or .txt.gz files, found none{hint}")
    splits = {stem + ending for stem in _SPLITS for ending in _ENDINGS}
    chosen = [p for p in found if p.name in splits] or found
    for one in chosen:
        if one.with_name(one.name + ".gz") in chosen:
            raise InputError(f"{root} holds both {one.name} and {one.name}.gz: keep one of them")
    return chosen


# ---- The cache -----------------------------------------------------------------------------------


def cached_sources() -> list[CachedEntry]:
    """Return the entries of the cache, sorted by path; damaged ones are left out."""
    entries = []
    for folder, meta in _entries():
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        entries.append(
            CachedEntry(
                path=meta["path"],
                sources=tuple(s["name"] for s in meta["sources"]),
                rows=meta["rows"],
                queries=meta["queries"],
                features=meta["features"],
                bytes=size,
                folder=folder,
            )
        )
    return sorted(entries, key=lambda entry: entry.path)


def verify(path: str | os.PathLike[str]) -> list[tuple[str, bool, str]]:
    """Compare the sources of a path with the checksums in the cache, by reading them.

    Returns
    -------
    list of (str, bool, str)
        For each source its name, ok and a message. ok is False if its bytes are not those that the
        cache was made from, even where its time stamp is the same, or if the source is missing. A
        source that was never cached is ok, as there is nothing to compare it with.
    """
    resolved = str(Path(path).resolve())
    known: dict[str, list[dict[str, Any]]] = {}
    for _, meta in _entries():
        for source in meta["sources"]:
            known.setdefault(source["name"], []).append({**source, "path": meta["path"]})
    names = {n for n, all_of in known.items() if any(s["path"] == resolved for s in all_of)}
    if os.path.exists(path):
        names |= {str(source.resolve()) for source in source_files(path)}
    if not names:
        return [(str(path), False, "no such file or folder")]
    return [(name, *_verify_source(name, known.get(name, []))) for name in sorted(names)]


def _verify_source(name: str, cached: list[dict[str, Any]]) -> tuple[bool, str]:
    """Return (ok, message) for one source against its cached checksums."""
    try:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stamp = _stamp(Path(name))
    except OSError as error:
        return False, f"cannot be read: {error.strerror or error}"
    except InputError as error:
        return False, str(error)
    if not cached:
        return True, "not in the cache: nothing to compare with"
    same = [s for s in cached if (s["size"], s["mtime_ns"]) == (stamp.size, stamp.mtime_ns)]
    if any(s["sha256"] != digest for s in same):
        return False, (
            "the bytes differ from those in the cache although size and time stamp agree: "
            "restore the file, or touch it to have it parsed again"
        )
    if same:
        return True, "matches its checksum"
    if any(s["sha256"] == digest for s in cached):
        return True, "matches its checksum under a new time stamp: the next start parses it again"
    return False, "changed since it was cached: the next start parses it again"


def _load(folder: Path) -> LetorRows | None:
    """Return the parsed rows in a cache folder, or None if it does not hold all of them."""
    meta = load_meta(folder)
    if meta is None:
        return None
    rows, width, queries = meta["rows"], meta["features"], meta["queries"]
    features = load_array(folder, "features", (rows, width))
    relevance = load_array(folder, "relevance", (rows,))
    starts = load_array(folder, "starts", (queries + 1,))
    qids = load_array(folder, "qids", (queries,))
    if features is None or relevance is None or starts is None or qids is None:
        shutil.rmtree(folder, ignore_errors=True)  # damaged: parsed anew by the caller
        return None
    names = tuple(source["name"] for source in meta["sources"])
    checksums = tuple(source["sha256"] for source in meta["sources"])
    return LetorRows(features, relevance, starts, qids, names, checksums, folder)


def _entry_folder(stamps: list[_Stamp]) -> Path:
    """Return the cache folder of these versions of these sources."""
    text = json.dumps([FORMAT, [[s.name, s.size, s.mtime_ns] for s in stamps]])
    return cache_folder() / "letor" / hashlib.sha256(text.encode()).hexdigest()[:32]


def _entries() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield folder and meta.json of every readable entry of the cache."""
    root = cache_folder() / "letor"
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            meta = None if folder.name.startswith(".") else load_meta(folder)
            if meta is not None:
                yield folder, meta


def _drop_older(folder: Path, names: list[str]) -> None:
    """Remove entries of earlier versions of the same sources, which are never found again."""
    for other, meta in _entries():
        if other != folder and [source["name"] for source in meta["sources"]] == names:
            shutil.rmtree(other, ignore_errors=True)


def _stamp(source: Path) -> _Stamp:
    """Return the stamp of a source; InputError if it cannot be read."""
    try:
        found = source.stat()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
    return _Stamp(str(source.resolve()), found.st_size, found.st_mtime_ns)
