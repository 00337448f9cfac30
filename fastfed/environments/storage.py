"""Arrays on disk: growable files, and cache folders that appear whole or not at all."""

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# Arrays on disk that grow block by block, and are read block by block: no memory holds them whole.
# What is finished is a plain .npy file, byte for byte what numpy.save writes of the same array.


#: Bytes that are held at a time where a file is copied or read.
PIECE = 1 << 23


class GrowableArray:
    """A .npy file under construction: rows of a table whose width may still grow, or a flat array.

    ``width`` None: a flat array. Otherwise blocks (rows, columns), and zeros are added to those
    that turn out to be narrower than the widest. Nobody should read the file before ``finish``.
    Raises OSError where it cannot be written; it is written, not mapped, so that a full disk is an
    error and no signal.
    """

    def __init__(self, path: Path, dtype: Any, *, table: bool = False) -> None:
        self.path, self.dtype, self.table = path, np.dtype(dtype).newbyteorder("<"), table
        self.rows = 0
        #: (rows, width) of each run of blocks of one width, in order.
        self._runs: list[tuple[int, int]] = []
        self._room = 0  # bytes that are kept for the header
        self._file = path.open("wb")

    @property
    def width(self) -> int:
        """The widest block so far; 1 of a flat array."""
        return max((width for _, width in self._runs), default=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array as it is now."""
        return (self.rows, self.width) if self.table else (self.rows,)

    def append(self, block: np.ndarray) -> None:
        """Add rows of a table, or values."""
        width = block.shape[1] if self.table else 1
        if not self._runs:
            # A header has room for more rows than these, so that this is mostly its length.
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
        """Make it the .npy file of all that was added."""
        header = _header(self.dtype, self.shape)
        if self._runs and len(header) == self._room and len({w for _, w in self._runs}) == 1:
            self._file.seek(0)
            self._file.write(header)
            self._file.close()
            return
        self._file.close()
        wide = self.path.with_suffix(".wide")
        with wide.open("wb") as file:
            file.write(header)
            for block in self._blocks():
                file.write(_widened(block, self.width).data)
        wide.replace(self.path)

    def _blocks(self) -> Iterator[np.ndarray]:
        """What was added, a bounded number of rows at a time, (rows, width)."""
        with self.path.open("rb") as file:
            file.seek(self._room)
            for rows, width in self._runs:
                most = max(1, PIECE // (self.dtype.itemsize * self.width))
                for first in range(0, rows, most):
                    count = min(most, rows - first)
                    yield np.fromfile(file, self.dtype, count * width).reshape(count, width)

    def close(self) -> None:
        self._file.close()


class StoredArray:
    """A .npy file that is read part by part, into memory of the reader's own.

    Pages of a memory map count as the process's own as long as the system has no better use for
    them; what is read this way is gone with the array.
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
        """Rows first .. last - 1."""
        each = int(np.prod(self.shape[1:], dtype=np.int64))
        self._file.seek(self._start + first * each * self.dtype.itemsize)
        flat = np.fromfile(self._file, self.dtype, (last - first) * each)
        return flat.reshape(last - first, *self.shape[1:])

    def close(self) -> None:
        self._file.close()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The bytes before the values of a .npy file."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text,
        {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape},
    )
    return text.getvalue()


def _widened(block: np.ndarray, width: int) -> np.ndarray:
    """Rows with zero columns added up to width."""
    if block.shape[1] == width:
        return block
    return np.pad(block, ((0, 0), (0, width - block.shape[1])))


# ---- Where what was parsed is kept: folders of arrays that appear whole or not at all ------------


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # another number, and nothing old is found again


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


# Where the values and mean rewards of a pool are kept while it is made: on disk, or in memory.


Change = Callable[[np.ndarray], np.ndarray]


class PoolStorage(ABC):
    """Values and means in the order of the rows, chunk by chunk."""

    def __init__(self) -> None:
        self.least, self.most = math.inf, -math.inf  # of the means

    def add(self, values: np.ndarray, means: np.ndarray) -> None:
        """A chunk of rows: flat float32 values, float64 means."""
        self.least = min(self.least, float(means.min()))
        self.most = max(self.most, float(means.max()))
        self._keep(values, means)

    @abstractmethod
    def _keep(self, values: np.ndarray, means: np.ndarray) -> None: ...

    @abstractmethod
    def change_means(self, change: Change) -> None:
        """Every mean by an elementwise map, once all chunks are there."""


class ArrayStorage(PoolStorage):
    """Two arrays."""

    def __init__(self, rows: int, dimension: int) -> None:
        super().__init__()
        self.values, self.means = np.empty(rows * dimension, np.float32), np.empty(rows)
        self._values = self._rows = 0

    def _keep(self, values: np.ndarray, means: np.ndarray) -> None:
        self.values[self._values : self._values + len(values)] = values
        self.means[self._rows : self._rows + len(means)] = means
        self._values, self._rows = self._values + len(values), self._rows + len(means)

    def change_means(self, change: Change) -> None:
        self.means = change(self.means)


class FileStorage(PoolStorage):
    """values.npy and means.npy in a folder; OSError where they cannot be written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._values = GrowableArray(folder / "values.npy", np.float32)
        try:
            self._means = GrowableArray(folder / "means.npy", np.float64)
        except BaseException:
            self._values.close()
            raise

    def _keep(self, values: np.ndarray, means: np.ndarray) -> None:
        self._values.append(values)
        self._means.append(means)

    def change_means(self, change: Change) -> None:
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
        """Both files as they should be read."""
        self._values.finish()
        self._means.finish()

    def close(self) -> None:
        self._values.close()
        self._means.close()
