"""Store arrays on disk: growable .npy files, cache folders, and pools under construction.

A cache folder appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
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

from fastfed._cache import cache_folder

# ---- Growable arrays -----------------------------------------------------------------------------
# Arrays are written and read block by block, so that memory never holds a whole array. A finished
# file equals, byte for byte, what numpy.save writes for the same array.

#: Number of bytes of a file that are copied or read at a time.
PIECE_BYTES = 1 << 23


class GrowableArray:
    """A .npy file under construction: a flat array, or a table whose width may still grow.

    Narrow blocks of a table are padded with zeros to the width of the widest block. The file must
    not be read before ``finish``. It is written, not memory-mapped, so that a full disk raises
    OSError instead of a signal.

    Parameters
    ----------
    path : Path
        The file.
    dtype : dtype
        Type of the values, which are stored in little-endian order.
    table : bool
        True if blocks have shape (rows, columns), False if they are flat.

    Raises
    ------
    OSError
        If the file cannot be written.
    """

    def __init__(self, path: Path, dtype: Any, *, table: bool = False) -> None:
        self.path, self.dtype, self.table = path, np.dtype(dtype).newbyteorder("<"), table
        self.rows = 0
        #: (rows, width) for each run of consecutive blocks with the same width.
        self._runs: list[tuple[int, int]] = []
        self._header_bytes = 0  # bytes reserved for the header
        self._file = open(path, "wb", opener=_open_private)  # noqa: SIM115

    @property
    def width(self) -> int:
        """Number of columns of the widest block so far; 1 for a flat array."""
        return max((width for _, width in self._runs), default=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array so far."""
        return (self.rows, self.width) if self.table else (self.rows,)

    def append(self, block: np.ndarray) -> None:
        """Add rows of a table, or values of a flat array."""
        width = block.shape[1] if self.table else 1
        if not self._runs:
            # Reserve as many bytes as the header of the first block alone needs. NumPy pads
            # headers, so the header of the finished array usually has the same length.
            self._header_bytes = len(_header(self.dtype, (len(block), width)[: 1 + self.table]))
            self._file.write(bytes(self._header_bytes))
        rows, last_width = self._runs[-1] if self._runs else (0, width)
        if last_width == width:
            self._runs[-1:] = [(rows + len(block), width)]
        else:
            self._runs.append((len(block), width))
        self.rows += len(block)
        self._file.write(np.ascontiguousarray(block, dtype=self.dtype).data)

    def finish(self) -> None:
        """Complete the .npy file: write its header, and pad blocks if their widths differ."""
        header = _header(self.dtype, self.shape)
        if (
            self._runs
            and len(header) == self._header_bytes
            and len({w for _, w in self._runs}) == 1
        ):
            # The header fits into the reserved bytes, and no block needs padding.
            self._file.seek(0)
            self._file.write(header)
            self._file.close()
            return
        # Otherwise copy all blocks, padded to the same width, behind a header of the right length.
        self._file.close()
        wide_path = self.path.with_suffix(".wide")
        with open(wide_path, "wb", opener=_open_private) as file:
            file.write(header)
            for block in self._blocks():
                file.write(_pad_columns(block, self.width).data)
        wide_path.replace(self.path)

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in blocks (rows, width) of at most PIECE_BYTES, or of one row."""
        with self.path.open("rb") as file:
            file.seek(self._header_bytes)
            for rows, width in self._runs:
                max_rows = max(1, PIECE_BYTES // (self.dtype.itemsize * self.width))
                for first in range(0, rows, max_rows):
                    count = min(max_rows, rows - first)
                    yield np.fromfile(file, self.dtype, count * width).reshape(count, width)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StoredArray:
    """A .npy file that is read part by part, without a memory map.

    Pages of a memory map count as memory of the process until the system reclaims them. Parts that
    are read are freed together with their arrays.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        version = np.lib.format.read_magic(self._file)
        read_header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read_header = np.lib.format.read_array_header_2_0
        self.shape, _, self.dtype = read_header(self._file)
        self._start = self._file.tell()

    def part(self, first: int, last: int) -> np.ndarray:
        """Read rows first .. last - 1."""
        row_size = int(np.prod(self.shape[1:], dtype=np.int64))
        self._file.seek(self._start + first * row_size * self.dtype.itemsize)
        flat = np.fromfile(self._file, self.dtype, (last - first) * row_size)
        return flat.reshape(last - first, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, since it may hold real records."""
    return os.open(path, flags, 0o600)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file for an array of this type and shape."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return text.getvalue()


def _pad_columns(block: np.ndarray, width: int) -> np.ndarray:
    """Return a block padded with zero columns to ``width`` columns."""
    if block.shape[1] == width:
        return block
    return np.pad(block, ((0, 0), (0, width - block.shape[1])))


# ---- Cache folders -------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # format of cache folders; a new number invalidates all existing folders


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` at the end of the `with` block.

    Readers see the complete folder or none: after an exception inside the block, or if the process
    is killed, there is no ``folder``. The next writer removes temporary folders of killed
    processes. Raises OSError if the folder cannot be written.
    """
    parents = [parent for parent in (folder.parent, *folder.parent.parents) if not parent.exists()]
    try:
        # `parents=True` would apply the mode only to the last folder.
        for parent in reversed(parents):
            parent.mkdir(exist_ok=True, mode=0o700)
        _sweep(folder.parent)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError:
        _remove_empty(parents)
        raise
    try:
        with _locked(temporary):
            yield temporary
            _write_sums(temporary)
            if folder.exists() and load_meta(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
            # If another process was faster, its folder has the same content.
            with contextlib.suppress(FileExistsError):
                _rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty(parents)


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, up to the first one that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write ``meta`` to the file meta.json in a cache folder."""
    with open(folder / "meta.json", "w", encoding="utf-8", opener=_open_private) as file:
        json.dump(meta, file, indent=1)


#: File with the checksums of all arrays of a cache folder.
CHECKSUM_FILE = "sums.json"


def _checksum(path: Path) -> int:
    """Return the CRC-32 of the bytes of a file."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _write_sums(folder: Path) -> None:
    """Write the checksums of all arrays in a folder."""
    sums = {path.name: _checksum(path) for path in sorted(folder.glob("*.npy"))}
    with open(folder / CHECKSUM_FILE, "w", encoding="utf-8", opener=_open_private) as file:
        json.dump(sums, file, indent=1)


def _damaged(folder: Path, names: Collection[str] | None = None) -> list[Path]:
    """Return the arrays of a folder whose bytes differ from the bytes that were written.

    Check only the arrays ``names``, or all arrays if ``names`` is None.
    """
    sums_path = folder / CHECKSUM_FILE
    try:
        sums = json.loads(sums_path.read_bytes())
    except FileNotFoundError:  # an earlier version wrote this folder
        return []
    except (OSError, ValueError):
        return [sums_path]
    if not isinstance(sums, dict):
        return [sums_path]
    damaged = []
    for name in sums if names is None else [f"{name}.npy" for name in names]:
        try:
            intact = _checksum(folder / name) == sums.get(name)
        except OSError:
            intact = False
        if not intact:
            damaged.append(folder / name)
    return damaged


def damaged_arrays() -> list[Path]:
    """Return the arrays of the cache whose bytes differ from the bytes that were written.

    All arrays are read. Folders of earlier versions have no checksums, and are not checked.
    """
    folders = sorted(sums_path.parent for sums_path in cache_folder().rglob(CHECKSUM_FILE))
    return [path for folder in folders for path in _damaged(folder)]


#: Arrays that this process has already checked: path, size and time stamp.
_checked_arrays: set[tuple[str, int, int]] = set()


def keep_if_whole(folder: Path, *names: str) -> bool:
    """Return False if an array of a cache folder is damaged, after removing the folder and warning.

    Otherwise return True, also if an array is missing. Each array is read once per process. The
    caller computes the content of a removed folder again.
    """
    try:
        stats = {name: (folder / f"{name}.npy").stat() for name in names}
        stamps = {(str(folder / n), s.st_size, s.st_mtime_ns) for n, s in stats.items()}
    except OSError:
        return True  # the caller notices missing arrays when it loads them
    damaged = [] if stamps <= _checked_arrays else _damaged(folder, names)
    if not damaged:
        _checked_arrays.update(stamps)
        return True
    shutil.rmtree(folder, ignore_errors=True)
    warnings.warn(
        f"{damaged[0]} of the cache has changed since it was written, and is computed again: "
        "the disk may be failing",
        stacklevel=2,
    )
    return False


def save_array(path: Path, values: np.ndarray) -> None:
    """Write a small .npy file that only its owner may read."""
    with open(path, "wb", opener=_open_private) as file:
        np.save(file, values)


def load_meta(folder: Path) -> dict[str, Any] | None:
    """Return meta.json of a cache folder, or None if it is absent, damaged or of another format."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def load_array(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a read-only memory map of an array in a cache folder.

    Return None if the array cannot be read or has a different shape.
    """
    try:
        values = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return np.asarray(values) if values.shape == shape else None


def _rename(temporary: Path, folder: Path) -> None:
    """Rename a folder; raise FileExistsError, on every platform, if the target exists."""
    try:
        os.rename(temporary, folder)
    except OSError:
        if folder.exists():
            raise FileExistsError(folder) from None
        raise


@contextmanager
def _locked(temporary: Path) -> Iterator[None]:
    """Mark a temporary folder as in use during the block.

    The mark is a file lock, which the system releases if the process is killed.
    """
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
    """Remove temporary folders older than ``age`` seconds that no process uses."""
    for part in parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age and not _in_use(part):
                shutil.rmtree(part, ignore_errors=True)


def _in_use(part: Path) -> bool:
    """Return True if a process uses a temporary folder.

    Without file locks, a folder that changed during the last day counts as in use.
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


# ---- Storage of a pool under construction --------------------------------------------------------

Change = Callable[[np.ndarray], np.ndarray]


class PoolStorage(ABC):
    """Features and mean rewards of a pool under construction, to which chunks of rows are added.

    ``min_mean`` and ``max_mean`` are the least and largest mean reward so far.
    """

    def __init__(self) -> None:
        self.min_mean, self.max_mean = math.inf, -math.inf

    def add(self, values: np.ndarray, means: np.ndarray) -> None:
        """Add a chunk of rows: flat float32 values, float64 means."""
        self.min_mean = min(self.min_mean, float(means.min()))
        self.max_mean = max(self.max_mean, float(means.max()))
        self._store(values, means)

    @abstractmethod
    def _store(self, values: np.ndarray, means: np.ndarray) -> None:
        """Store a chunk of rows: flat float32 values, float64 means."""

    @abstractmethod
    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all mean rewards, after all chunks were added."""


class ArrayStorage(PoolStorage):
    """Storage in two arrays in memory."""

    def __init__(self, rows: int, dimension: int) -> None:
        super().__init__()
        self.values, self.means = np.empty(rows * dimension, np.float32), np.empty(rows)
        self._values = self._rows = 0

    def _store(self, values: np.ndarray, means: np.ndarray) -> None:
        """Copy a chunk of rows behind the rows that were stored before."""
        self.values[self._values : self._values + len(values)] = values
        self.means[self._rows : self._rows + len(means)] = means
        self._values, self._rows = self._values + len(values), self._rows + len(means)

    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all mean rewards."""
        self.means = change(self.means)


class FileStorage(PoolStorage):
    """Storage in the files values.npy and means.npy of a folder.

    Methods raise OSError if the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._values = GrowableArray(folder / "values.npy", np.float32)
        try:
            self._means = GrowableArray(folder / "means.npy", np.float64)
        except BaseException:
            self._values.close()
            raise

    def _store(self, values: np.ndarray, means: np.ndarray) -> None:
        """Append a chunk of rows to both files."""
        self._values.append(values)
        self._means.append(means)

    def change_means(self, change: Change) -> None:
        """Apply an elementwise map to all mean rewards, reading a part of the file at a time."""
        self._means.finish()
        path = self._means.path
        old_path = path.rename(path.with_suffix(".raw"))
        self._means = GrowableArray(path, np.float64)
        old_array, max_rows = StoredArray(old_path), PIECE_BYTES // 8
        try:
            for first in range(0, old_array.shape[0], max_rows):
                self._means.append(
                    change(old_array.part(first, min(first + max_rows, old_array.shape[0])))
                )
        finally:
            old_array.close()
        old_path.unlink()

    def finish(self) -> None:
        """Complete both files."""
        self._values.finish()
        self._means.finish()

    def close(self) -> None:
        """Close both files."""
        self._values.close()
        self._means.close()
