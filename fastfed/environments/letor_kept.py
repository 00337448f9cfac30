"""Where the values and mean rewards of a pool are kept while it is made: on disk, or in memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastfed.environments.growing import PIECE, GrowingArray, Stored

Change = Callable[[np.ndarray], np.ndarray]


class Kept(ABC):
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


class InMemory(Kept):
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


class OnDisk(Kept):
    """values.npy and means.npy in a folder; OSError where they cannot be written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._values = GrowingArray(folder / "values.npy", np.float32)
        try:
            self._means = GrowingArray(folder / "means.npy", np.float64)
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
        self._means = GrowingArray(path, np.float64)
        stored, most = Stored(before), PIECE // 8
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
