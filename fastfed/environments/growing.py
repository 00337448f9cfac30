"""Arrays on disk that grow block by block, and are read block by block: no memory holds them whole.

What is finished is a plain .npy file, byte for byte what numpy.save writes of the same array.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Bytes that are held at a time where a file is copied or read.
PIECE = 1 << 23


class GrowingArray:
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


class Stored:
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
