"""Read LETOR files as arrays, and cache the parsed arrays.

`letor_parser` parses each file once. The arrays are stored in a cache folder ($FASTFED_CACHE, or
fastfed/ in the user's cache folder of the platform) and memory-mapped. The key of a cache entry is
the path, size and time stamp of its source files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._memory import available
from fastfed._validate import InputError, integer, show
from fastfed.environments.letor_parser import MAX_FEATURES, Parts, is_value, parse
from fastfed.environments.storage import (
    FORMAT,
    GrowableArray,
    cache_folder,
    fresh_folder,
    keep_if_whole,
    load_array,
    load_meta,
    write_meta,
)

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
    unjudged : int
        Number of rows of negative relevance, which are left out: nobody has judged them.
    """

    features: np.ndarray
    relevance: np.ndarray
    starts: np.ndarray
    qids: np.ndarray
    sources: tuple[str, ...]
    checksums: tuple[str, ...]
    folder: Path | None
    unjudged: int = 0


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
    """Name, size and time stamp of a source file, which identify its version without reading it."""

    name: str
    size: int
    mtime_ns: int


def read_letor(
    path: str | os.PathLike[str], features: int | None = None, missing: str | None = None
) -> LetorRows:
    """Read a LETOR file (.txt, .gz) or a folder of such files, from the cache if possible.

    Parameters
    ----------
    path : path-like
        A file or a folder. In a folder, the train, vali and test files (.txt or .txt.gz) are read.
        If there are none, all its .txt and .txt.gz files are read, sorted by name.
    features : int, optional
        Largest feature index allowed.
    missing : str, optional
        Value of a feature that is missing, as the file writes it, such as "1.79769313486e+308".
        Such features are absent: their value is 0.

    Returns
    -------
    LetorRows
        The rows. A warning says if rows have a negative relevance, since nobody has judged them and
        they are left out.

    Raises
    ------
    InputError
        For missing files, for text that is not LETOR, and for a qid that comes back in a file after
        other queries; the message names file and line.
    """
    if features is not None:
        features = integer("features", features, at_least=1, at_most=MAX_FEATURES)
    rows = _read_rows(path, features, missing_value(missing))
    if rows.unjudged:
        _warn(
            f"{path}: {rows.unjudged} rows have relevance -1 or less, which means that nobody has "
            "judged them, and are left out"
        )
    return rows


def missing_value(value: object) -> bytes | None:
    """Return the checked option ``missing`` as the bytes of a file."""
    if value is None:
        return None
    if not isinstance(value, str) or not is_value(value):
        raise InputError(
            "missing must be a missing value as the file writes it, in quotes, such as "
            f'"1.79769313486e+308", got {show(value)}'
        )
    return value.encode()


def _read_rows(
    path: str | os.PathLike[str], features: int | None, missing: bytes | None
) -> LetorRows:
    """Return the LETOR rows of a file or folder, from the cache if possible.

    ``features`` is the largest feature index allowed, and ``missing`` the text of a missing value.
    """
    sources = source_files(path)
    stamps = [_stamp(source) for source in sources]
    folder = _entry_folder(stamps, missing)
    cached = _load_rows(folder)
    if cached is not None and (features is None or cached.features.shape[1] <= features):
        return cached
    limit = MAX_FEATURES if features is None else features
    try:
        _parse_into_cache(folder, str(Path(path).resolve()), sources, stamps, limit, missing)
    except OSError as error:
        reason = f"the cache folder {cache_folder()} cannot be written ({error.strerror or error})"
    else:
        _drop_older(folder, stamps)
        stored = _load_rows(folder)
        if stored is not None:
            return stored
        reason = f"what was written to the cache folder {cache_folder()} cannot be read"
    _warn(f"{reason}: {path} is parsed in memory, and again at the next start")
    too_large = f"{path} is larger than memory, and {reason}"
    return _parse_in_memory(sources, stamps, limit, missing, too_large)


@cache
def _warn(text: str) -> None:
    """Warn once for each text, since an environment reads its files more than once."""
    warnings.warn(text, stacklevel=3)


def _parse_into_cache(
    folder: Path,
    path: str,
    sources: list[Path],
    stamps: list[_Stamp],
    limit: int,
    missing: bytes | None,
) -> None:
    """Parse source files into a cache folder, block by block.

    ``path`` is the path that a user gave, and ``limit`` the largest feature index allowed. Raises
    OSError if the folder cannot be written, and InputError if a file changes meanwhile.
    """
    with fresh_folder(folder) as temporary, ExitStack() as stack:

        def growable(name: str, dtype: Any, table: bool = False) -> GrowableArray:
            """Open a new array in the temporary folder, which is closed when the block ends."""
            path = temporary / f"{name}.npy"
            return stack.enter_context(closing(GrowableArray(path, dtype, table=table)))

        parts = Parts(
            features=growable("features", np.float32, table=True),
            relevance=growable("relevance", np.int32),
            starts=growable("starts", np.int64),
            qids=growable("qids", np.int64),
        )
        parsed = parse(sources, limit, parts, missing)
        _check_unchanged(sources, stamps)
        for part in (parts.features, parts.relevance, parts.starts, parts.qids):
            part.finish()
        meta = {
            "format": FORMAT,
            "path": path,
            "sources": [
                {"name": s.name, "size": s.size, "mtime_ns": s.mtime_ns, "sha256": digest}
                for s, digest in zip(stamps, parsed.digests, strict=True)
            ],
            "rows": parts.features.rows,
            "features": parts.features.width,
            "queries": parts.qids.rows,
            "unjudged": parsed.unjudged,
            "returning": 0,  # earlier versions of fastfed also read this file, and need this key
        }
        write_meta(temporary, meta)


def _parse_in_memory(
    sources: list[Path], stamps: list[_Stamp], limit: int, missing: bytes | None, too_large: str
) -> LetorRows:
    """Parse source files into memory, and return their rows.

    ``limit`` is the largest feature index allowed. Raises InputError with the text ``too_large`` if
    there is not enough memory.
    """
    free_bytes = available()
    blocks = _BoundedBlocks(free_bytes, too_large)
    parts = Parts(blocks, [], [], [])
    parsed = parse(sources, limit, parts, missing)
    _check_unchanged(sources, stamps)
    relevance, starts, qids = map(np.concatenate, (parts.relevance, parts.starts, parts.qids))
    width = max(block.shape[1] for block in blocks)
    if free_bytes is not None and 4 * len(relevance) * width > free_bytes:
        raise InputError(too_large)
    table = np.zeros((len(relevance), width), dtype=np.float32)
    filled = 0
    while blocks:  # free each block once it is copied, so that memory never holds two copies
        block = blocks.pop(0)
        table[filled : filled + len(block), : block.shape[1]] = block
        filled += len(block)
    names = tuple(str(s) for s in sources)
    digests = tuple(parsed.digests)
    return LetorRows(table, relevance, starts, qids, names, digests, None, parsed.unjudged)


class _BoundedBlocks(list[np.ndarray]):
    """A list of arrays that raises InputError if its arrays have more than ``max_bytes`` in all."""

    def __init__(self, max_bytes: int | None, too_large: str) -> None:
        super().__init__()
        self._max_bytes, self._too_large, self._bytes = max_bytes, too_large, 0

    def append(self, block: np.ndarray) -> None:
        """Append a block; raise InputError if all blocks together take too much memory."""
        super().append(block)
        self._bytes += block.nbytes
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise InputError(self._too_large)


def _check_unchanged(sources: list[Path], stamps: list[_Stamp]) -> None:
    """Raise InputError if a source file changed while it was read."""
    for source, stamp in zip(sources, stamps, strict=True):
        if _stamp(source) != stamp:
            raise InputError(f"{source} changed while it was being read: start again")


def source_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files that ``read_letor`` reads for a path, in order; raise InputError if none."""
    root = Path(path)
    if os.path.isfile(root):
        return [root]
    if not os.path.isdir(root):
        raise InputError(f"{root} must be a LETOR file (.txt, .gz) or a folder of them: not found")
    files = sorted(
        p
        for p in root.iterdir()
        if p.name.endswith(_ENDINGS) and not p.name.startswith(".") and p.is_file()
    )
    if not files:
        folders = sorted(p.name for p in root.iterdir() if p.is_dir())
        hint = f"; it holds the folders {', '.join(folders[:5])}: name one" if folders else ""
        raise InputError(f"{root} must hold .txt or .txt.gz files, found none{hint}")
    splits = {stem + ending for stem in _SPLITS for ending in _ENDINGS}
    chosen = [p for p in files if p.name in splits] or files
    for file in chosen:
        if file.with_name(file.name + ".gz") in chosen:
            raise InputError(f"{root} holds both {file.name} and {file.name}.gz: keep one of them")
    return chosen


# ---- The cache -----------------------------------------------------------------------------------


def cached_sources() -> list[CachedEntry]:
    """Return the entries of the cache, sorted by path; damaged entries are left out."""
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
    """Read the source files of a path, and compare them with the checksums in the cache.

    Parameters
    ----------
    path : path-like
        A file or folder, as for ``read_letor``.

    Returns
    -------
    list of (str, bool, str)
        The name of each source file, ok, and a message. ok is False if the bytes of the file differ
        from the bytes that were cached, even if its time stamp is the same, or if the file is
        missing. A file that was never cached is ok, since there is nothing to compare it with.
    """
    resolved = str(Path(path).resolve())
    cached: dict[str, list[dict[str, Any]]] = {}
    for folder, meta in _entries():
        for source in meta["sources"]:
            entry = {**source, "path": meta["path"], "folder": str(folder)}
            cached.setdefault(source["name"], []).append(entry)
    names = {n for n, entries in cached.items() if any(s["path"] == resolved for s in entries)}
    if os.path.exists(path):
        names |= {str(source.resolve()) for source in source_files(path)}
    if not names:
        return [(str(path), False, "no such file or folder")]
    return [(name, *_verify_source(name, cached.get(name, []))) for name in sorted(names)]


def _verify_source(name: str, cached: list[dict[str, Any]]) -> tuple[bool, str]:
    """Compare one source file with its cached checksums; return (ok, message)."""
    try:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stamp = _stamp(Path(name))
    except FileNotFoundError:
        folders = " and ".join(sorted({entry["folder"] for entry in cached}))
        return False, f"the file is gone: restore it, or delete its cache, {folders}"
    except OSError as error:
        return False, f"cannot be read: {error.strerror or error}"
    except InputError as error:
        return False, str(error)
    if not cached:
        return True, "not in the cache: nothing to compare with"
    same_stamp = [s for s in cached if (s["size"], s["mtime_ns"]) == (stamp.size, stamp.mtime_ns)]
    if any(s["sha256"] != digest for s in same_stamp):
        return False, (
            "the bytes differ from those in the cache although size and time stamp agree: "
            "restore the file, or touch it to have it parsed again"
        )
    if same_stamp:
        return True, "matches its checksum"
    if any(s["sha256"] == digest for s in cached):
        return True, "matches its checksum under a new time stamp: the next start parses it again"
    return False, "changed since it was cached: the next start parses it again"


def _load_rows(folder: Path) -> LetorRows | None:
    """Return the parsed rows in a cache folder, or None if it is incomplete or damaged.

    A folder that is damaged or of an earlier version is deleted.
    """
    meta = load_meta(folder)
    if meta is not None and meta.get("returning") != 0:
        # Earlier versions did not write `returning` = 0. They kept unjudged rows, or divided a qid
        # whose rows were not adjacent into two queries.
        shutil.rmtree(folder, ignore_errors=True)
        return None
    if meta is None or not keep_if_whole(folder, "relevance", "starts", "qids"):
        return None
    rows, width, queries = meta["rows"], meta["features"], meta["queries"]
    features = load_array(folder, "features", (rows, width))
    relevance = load_array(folder, "relevance", (rows,))
    starts = load_array(folder, "starts", (queries + 1,))
    qids = load_array(folder, "qids", (queries,))
    if features is None or relevance is None or starts is None or qids is None:
        shutil.rmtree(folder, ignore_errors=True)  # damaged; the caller parses the files again
        return None
    names = tuple(source["name"] for source in meta["sources"])
    checksums = tuple(source["sha256"] for source in meta["sources"])
    unjudged = meta["unjudged"]
    return LetorRows(features, relevance, starts, qids, names, checksums, folder, unjudged)


def _entry_folder(stamps: list[_Stamp], missing: bytes | None) -> Path:
    """Return the cache folder of the source files with these stamps, read with this ``missing``."""
    key: list[Any] = [FORMAT, [[s.name, s.size, s.mtime_ns] for s in stamps]]
    text = json.dumps(key if missing is None else [*key, missing.decode()])
    return cache_folder() / "letor" / hashlib.sha256(text.encode()).hexdigest()[:32]


def _entries() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield folder and meta.json of every readable entry of the cache."""
    root = cache_folder() / "letor"
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            meta = None if folder.name.startswith(".") else load_meta(folder)
            if meta is not None:
                yield folder, meta


def _drop_older(folder: Path, stamps: list[_Stamp]) -> None:
    """Remove entries of earlier versions of the same source files, which are never read again."""
    names, versions = [s.name for s in stamps], [(s.size, s.mtime_ns) for s in stamps]
    for entry_folder, meta in _entries():
        sources = meta["sources"]
        is_older = [(s["size"], s["mtime_ns"]) for s in sources] != versions
        if entry_folder != folder and is_older and [s["name"] for s in sources] == names:
            shutil.rmtree(entry_folder, ignore_errors=True)


def _stamp(source: Path) -> _Stamp:
    """Return name, size and time stamp of a source file; raise InputError if it cannot be read."""
    try:
        status = source.stat()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
    return _Stamp(str(source.resolve()), status.st_size, status.st_mtime_ns)
