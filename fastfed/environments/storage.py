"""Arrays on disk: growable .npy files, atomic cache folders, and the storage of a pool."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# ---- Growable arrays -----------------------------------------------------------------------------
# They are written and read block by block, so that memory never holds them whole. A finished file
# is byte for byte what numpy.save writes of the same array.

#: Bytes held at a time where a file is copied or read.
PIECE = 1 << 23


class GrowableArray:
    """A .npy file under construction: a flat array, or a table whose width may still grow.

    Narrower blocks of a table are padded with zeros to the widest. The file must not be read before
    ``finish``. It is written, not mapped, so that a full disk raises OSError instead of a signal.

    Parameters
    ----------
    path : Path
        The file.
    dtype : dtype
        Type of the values, stored in little-endian order.
    table : bool
        Blocks are (rows, columns); otherwise they are flat.

    Raises
    ------
    OSError
        If the file cannot be written.
    """

    def __init__(self, path: Path, dtype: Any, *, table: bool = False) -> None:
        self.path, self.dtype, self.table = path, np.dtype(dtype).newbyteorder("<"), table
        self.rows = 0
        #: (rows, width) of each run of blocks of one width, in order.
        self._runs: list[tuple[int, int]] = []
        self._room = 0  # bytes reserved for the header
        self._file = open(path, "wb", opener=_private)  # noqa: SIM115

    @property
    def width(self) -> int:
        """Columns of the widest block so far; 1 of a flat array."""
        return max((width for _, width in self._runs), default=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array so far."""
        return (self.rows, self.width) if self.table else (self.rows,)

    def append(self, block: np.ndarray) -> None:
        """Add rows of a table, or values of a flat array."""
        width = block.shape[1] if self.table else 1
        if not self._runs:
            # Headers are padded, so that one of more rows mostly has the same length.
            self._room = len(_header(self.dtype, (len(block), width)[: 1 + self.table]))
            self._file.write(bytes(self._room))
        rows, last = self._runs[-1] if self._runs else (0, width)
        if last == width:
            self._runs[-1:] = [(rows + len(block), width)]
        else:
            self._runs.append((len(block), width))
        self.rows += len(block)
        self._file.write(np.ascontiguousarray(block, dtype=self.dtype).data)

    def finish(self) -> None:
        """Complete the .npy file."""
        header = _header(self.dtype, self.shape)
        if self._runs and len(header) == self._room and len({w for _, w in self._runs}) == 1:
            self._file.seek(0)
            self._file.write(header)
            self._file.close()
            return
        self._file.close()
        wide = self.path.with_suffix(".wide")
        with open(wide, "wb", opener=_private) as file:
            file.write(header)
            for block in self._blocks():
                file.write(_widened(block, self.width).data)
        wide.replace(self.path)

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yield what was added as (rows, width), a bounded number of rows at a time."""
        with self.path.open("rb") as file:
            file.seek(self._room)
            for rows, width in self._runs:
                most = max(1, PIECE // (self.dtype.itemsize * self.width))
                for first in range(0, rows, most):
                    count = min(most, rows - first)
                    yield np.fromfile(file, self.dtype, count * width).reshape(count, width)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StoredArray:
    """A .npy file that is read part by part into memory of its own.

    Pages of a memory map count as memory of the process until the system reclaims them; parts that
    are read are freed with their arrays.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        self.shape, _, self.dtype = read(self._file)
        self._start = self._file.tell()

    def part(self, first: int, last: int) -> np.ndarray:
        """Read rows first .. last - 1."""
        each = int(np.prod(self.shape[1:], dtype=np.int64))
        self._file.seek(self._start + first * each * self.dtype.itemsize)
        flat = np.fromfile(self._file, self.dtype, (last - first) * each)
        return flat.reshape(last - first, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _private(path: str, flags: int) -> int:
    """Opener of files that hold real records: only their owner may read them."""
    return os.open(path, flags, 0o600)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes before the values of a .npy file."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text,
        {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape},
    )
    return text.getvalue()


def _widened(block: np.ndarray, width: int) -> np.ndarray:
    """Return rows padded with zero columns up to width."""
    if block.shape[1] == width:
        return block
    return np.pad(block, ((0, 0), (0, width - block.shape[1])))


# ---- Cache folders -------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # of cache folders; a new number invalidates all old ones


def cache_folder() -> Path:
    """Return the folder of parsed files: $FASTFED_CACHE, or fastfed/ in the user's cache folder."""
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


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that is renamed to ``folder`` at the end.

    Readers see all of it or nothing: an exception inside, or a killed process, leaves no
    ``folder``. The next writer removes what a killed process left. Raises OSError when the folder
    cannot be written.
    """
    made = [each for each in (folder.parent, *folder.parent.parents) if not each.exists()]
    try:
        for each in reversed(made):  # `parents=True` would give all but the last the usual mode
            each.mkdir(exist_ok=True, mode=0o700)
        _sweep(folder.parent)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError:
        _unmake(made)
        raise
    try:
        with _locked(temporary):
            yield temporary
            _write_sums(temporary)
            if folder.exists() and load_meta(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
            # Another process may have been first; its folder has the same content.
            with contextlib.suppress(FileExistsError):
                _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _unmake(made)


def _unmake(made: list[Path]) -> None:
    """Remove the folders that are empty, innermost first: what is refused leaves nothing."""
    with contextlib.suppress(OSError):
        for each in made:
            each.rmdir()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write meta.json."""
    with open(folder / "meta.json", "w", encoding="utf-8", opener=_private) as file:
        json.dump(meta, file, indent=1)


#: File of the sums of a cache folder's arrays.
SUMS = "sums.json"


def _sum_of(path: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found = zlib.crc32(piece, found)
    return found


def _write_sums(folder: Path) -> None:
    """Write the sums of all arrays in a folder."""
    sums = {path.name: _sum_of(path) for path in sorted(folder.glob("*.npy"))}
    with open(folder / SUMS, "w", encoding="utf-8", opener=_private) as file:
        json.dump(sums, file, indent=1)


def _damaged(folder: Path, names: Collection[str] | None = None) -> list[Path]:
    """Return the arrays of a folder, all or those of these names, that are not what was written."""
    found = folder / SUMS
    try:
        sums = json.loads(found.read_bytes())
    except FileNotFoundError:  # of an earlier version
        return []
    except (OSError, ValueError):
        return [found]
    if not isinstance(sums, dict):
        return [found]
    damaged = []
    for name in sums if names is None else [f"{name}.npy" for name in names]:
        try:
            same = _sum_of(folder / name) == sums.get(name)
        except OSError:
            same = False
        if not same:
            damaged.append(folder / name)
    return damaged


def damaged_arrays() -> list[Path]:
    """Return the arrays of the cache whose bytes are not those that were written.

    All are read. Folders that an earlier version made have no sums, and are not looked at.
    """
    folders = sorted(found.parent for found in cache_folder().rglob(SUMS))
    return [path for folder in folders for path in _damaged(folder)]


#: Arrays whose bytes this process has compared: path, size and time stamp.
_compared: set[tuple[str, int, int]] = set()


def keep_if_whole(folder: Path, *names: str) -> bool:
    """Return True if arrays of a cache folder are what was written; else remove the folder.

    They are read once in a process. A folder that is removed is warned of, and made anew by who
    asked.
    """
    try:
        stats = {name: (folder / f"{name}.npy").stat() for name in names}
        seen = {(str(folder / n), s.st_size, s.st_mtime_ns) for n, s in stats.items()}
    except OSError:
        return True  # what is not there is found missing when it is loaded
    damaged = [] if seen <= _compared else _damaged(folder, names)
    if not damaged:
        _compared.update(seen)
        return True
    shutil.rmtree(folder, ignore_errors=True)
    warnings.warn(
        f"{damaged[0]} of the cache was not what had been written, and is made anew: "
        "the disk may be failing",
        stacklevel=2,
    )
    return False


def save_array(path: Path, values: np.ndarray) -> None:
    """Write a small .npy file, for its owner alone."""
    with open(path, "wb", opener=_private) as file:
        np.save(file, values)


def load_meta(folder: Path) -> dict[str, Any] | None:
    """Return meta.json of a cache folder, or None if absent, damaged or of another format."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def load_array(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a read-only memory map of an array in a cache folder, or None unless of that shape."""
    try:
        values = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return np.asarray(values) if values.shape == shape else None


def _rename(temporary: Path, folder: Path) -> None:
    """Rename a folder; FileExistsError on every platform where the target is there."""
    try:
        os.rename(temporary, folder)
    except OSError:
        if folder.exists():
            raise FileExistsError(folder) from None
        raise


@contextmanager
def _locked(temporary: Path) -> Iterator[None]:
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
    """Remove temporary folders that no process holds and that are older than a minute."""
    for part in parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age and not _in_use(part):
                shutil.rmtree(part, ignore_errors=True)


def _in_use(part: Path) -> bool:
    """Return True if a process holds a temporary folder.

    Where there are no locks, a folder of the last day counts as held.
    """
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


# ---- Storage of a pool while it is made ----------------------------------------------------------

Change = Callable[[np.ndarray], np.ndarray]


class PoolStorage(ABC):
    """Values and mean rewards of a pool under construction, added chunk by chunk of its rows."""

    def __init__(self) -> None:
        self.min_mean, self.max_mean = math.inf, -math.inf

    def add(self, values: np.ndarray, means: np.ndarray) -> None:
        """Add a chunk of rows: flat float32 values, float64 means."""
        self.min_mean = min(self.min_mean, float(means.min()))
        self.max_mean = max(self.max_mean, float(means.max()))
        self._store(values, means)

    @abstractmethod
    def _store(self, values: np.ndarray, means: np.ndarray) -> None: ...

    @abstractmethod
    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all means, once all chunks are there."""


class ArrayStorage(PoolStorage):
    """Storage in two arrays in memory."""

    def __init__(self, rows: int, dimension: int) -> None:
        super().__init__()
        self.values, self.means = np.empty(rows * dimension, np.float32), np.empty(rows)
        self._values = self._rows = 0

    def _store(self, values: np.ndarray, means: np.ndarray) -> None:
        self.values[self._values : self._values + len(values)] = values
        self.means[self._rows : self._rows + len(means)] = means
        self._values, self._rows = self._values + len(values), self._rows + len(means)

    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all means."""
        self.means = change(self.means)


class FileStorage(PoolStorage):
    """Storage in values.npy and means.npy of a folder; OSError where they cannot be written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._values = GrowableArray(folder / "values.npy", np.float32)
        try:
            self._means = GrowableArray(folder / "means.npy", np.float64)
        except BaseException:
            self._values.close()
            raise

    def _store(self, values: np.ndarray, means: np.ndarray) -> None:
        self._values.append(values)
        self._means.append(means)

    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all means, a part of the file at a time."""
        self._means.finish()
        path = self._means.path
        before = path.rename(path.with_suffix(".raw"))
        self._means = GrowableArray(path, np.float64)
        stored, most = StoredArray(before), PIECE // 8
        try:
            for first in range(0, stored.shape[0], most):
                self._means.append(change(stored.part(first, min(first + most, stored.shape[0]))))
        finally:
            stored.close()
        before.unlink()

    def finish(self) -> None:
        """Complete both files."""
        self._values.finish()
        self._means.finish()

    def close(self) -> None:
        """Close both files."""
        self._values.close()
        self._means.close()
