"""LETOR files to arrays, parsed once: sources, and the cache of what was parsed.

What was parsed is kept as memory-mapped arrays in a cache folder ($FASTFED_CACHE, or fastfed/ in
the user's cache folder of the platform), found again by path, size and time stamp of the sources.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastfed._memory import available
from fastfed._validate import InputError, integer
from fastfed.environments.growing import GrowingArray
from fastfed.environments.letor_parse import (
    MAX_FEATURES,
    Rows,
    TooWide,
    parse_block,
    parse_lines,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # of the cache; another number and nothing old is found again
_BLOCK = 1 << 18  # bytes; the vectorised parser's arrays then stay near the cache
_LONGEST = 1 << 24  # bytes of a line; a file without line ends would fill the memory
_SPLITS = ("train", "vali", "test")
_ENDINGS = (".txt", ".txt.gz")


@dataclass(frozen=True, eq=False)
class LetorRows:
    """Parsed LETOR rows; queries are contiguous runs of one qid inside one file.

    Attributes:
        features: float32 (n, features), column j holding feature j + 1; absent features are 0.
        relevance: int32 (n,).
        starts: int64 (queries + 1,), the first row of each query, and n.
        qids: int64 (queries,).
        sources: the files, in the order of their rows.
        checksums: the SHA-256 of each of them, in hexadecimal.
        folder: where the arrays are cached, or None when they are only in memory.
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
    """What tells one version of a source from another without reading it."""

    name: str
    size: int
    mtime_ns: int


def read_letor(path: str | os.PathLike[str], features: int | None = None) -> LetorRows:
    """Rows of a LETOR file (.txt, .gz) or of a folder of them, from the cache when it has them.

    A folder is read as its train, vali and test files (.txt or .txt.gz), or when it has none of
    them as all its .txt and .txt.gz files, sorted by name. features, if given, is the largest
    feature index allowed. Raises InputError naming file and line for what is not LETOR text.
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
    warnings.warn(f"{why}: {path} is parsed in memory, and again at the next start", stacklevel=2)
    return _in_memory(sources, stamps, limit, f"{path} is larger than memory, and {why}")


def _cache(folder: Path, path: str, sources: list[Path], stamps: list[_Stamp], limit: int) -> None:
    """Parse sources into a cache folder, block by block; OSError where it cannot be written."""
    with fresh_folder(folder) as temporary, ExitStack() as stack:

        def growing(name: str, dtype: Any, table: bool = False) -> GrowingArray:
            path = temporary / f"{name}.npy"
            return stack.enter_context(GrowingArray(path, dtype, table=table))

        parts = Parts(
            features=growing("features", np.float32, table=True),
            relevance=growing("relevance", np.int32),
            starts=growing("starts", np.int64),
            qids=growing("qids", np.int64),
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
    """The same without a cache; InputError ``too_large`` where memory does not hold them."""
    most = available()
    blocks = _Held(most, too_large)
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


class _Held(list[np.ndarray]):
    """Blocks in memory, as many as it has room for."""

    def __init__(self, most: int | None, too_large: str) -> None:
        super().__init__()
        self._most, self._too_large, self._bytes = most, too_large, 0

    def append(self, block: np.ndarray) -> None:
        super().append(block)
        self._bytes += block.nbytes
        if self._most is not None and self._bytes > self._most:
            raise InputError(self._too_large)


def _check_unchanged(sources: list[Path], stamps: list[_Stamp]) -> None:
    for source, stamp in zip(sources, stamps, strict=True):
        if _stamp(source) != stamp:
            raise InputError(f"{source} changed while it was being read: start again")


def source_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files read_letor would read for path, in order; InputError when there is none."""
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


# ---- parsing ---------------------------------------------------------------------------------


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


# ---- cache -----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where parsed files are kept: $FASTFED_CACHE, or fastfed/ in the user's cache folder."""
    chosen = os.environ.get("FASTFED_CACHE")
    if chosen:
        return Path(chosen)
    home = Path("~").expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "fastfed"


def cached_sources() -> list[CachedEntry]:
    """What the cache holds, sorted by path; damaged entries are left out."""
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
    """(source, ok, message) for each source of path, by reading it and comparing checksums.

    ok is False when the bytes of a source are not those the cache was made from, whether its time
    stamp tells so or not, or when the source is gone. A source that was never cached is ok: there
    is nothing to compare it with.
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
    """(ok, message) for one source against its cached checksums."""
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


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` at the end, so that no reader sees half of it.

    Whatever is raised inside, or kills the process, leaves no ``folder``; what a killed process
    leaves behind goes with the next one that writes here. Raises OSError when the folder cannot be
    written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(folder.parent)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        with _held(temporary):
            yield temporary
            if folder.exists() and load_meta(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
            # Another process may have been first; its folder holds the same.
            with contextlib.suppress(FileExistsError):
                _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write meta.json."""
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def load_meta(folder: Path) -> dict[str, Any] | None:
    """meta.json of a cache folder, or None when it is absent, damaged or of another format."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def load_array(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read-only memory map of one array of a cache folder, or None unless it has that shape."""
    try:
        values = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return np.asarray(values) if values.shape == shape else None


def _rename(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        if folder.exists():
            raise FileExistsError(folder) from None
        raise


def _load(folder: Path) -> LetorRows | None:
    """The parsed rows in a cache folder, or None when it does not hold all of them."""
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
    """Cache folder of these versions of these sources."""
    text = json.dumps([FORMAT, [[s.name, s.size, s.mtime_ns] for s in stamps]])
    return cache_folder() / "letor" / hashlib.sha256(text.encode()).hexdigest()[:32]


def _entries() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every readable entry of the cache."""
    root = cache_folder() / "letor"
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            meta = None if folder.name.startswith(".") else load_meta(folder)
            if meta is not None:
                yield folder, meta


def _drop_older(folder: Path, names: list[str]) -> None:
    """Remove entries made from earlier versions of the same sources: nothing finds them again."""
    for other, meta in _entries():
        if other != folder and [source["name"] for source in meta["sources"]] == names:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Mark a temporary folder as in use, by a lock that ends with the process."""
    lock = None
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            lock = os.open(temporary, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _sweep(parent: Path, age: float = 60.0) -> None:
    """Remove what killed processes left half-written: what nobody holds, and is a minute old."""
    for part in parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age and not _in_use(part):
                shutil.rmtree(part, ignore_errors=True)


def _in_use(part: Path) -> bool:
    """Whether a process holds a temporary folder; one of the last day, where there are no locks."""
    if fcntl is None:
        return time.time() - part.stat().st_mtime < 86_400.0
    lock = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return time.time() - part.stat().st_mtime < 86_400.0
    finally:
        os.close(lock)
    return False


def _stamp(source: Path) -> _Stamp:
    try:
        found = source.stat()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
    return _Stamp(str(source.resolve()), found.st_size, found.st_mtime_ns)
