"""What travels between silo, shuffler and server: immutable values with named arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed._validate import InputError


def statistic_size(dimension: int) -> int:
    """Numbers in one statistic: d of the bias sum, d (d + 1) / 2 of the packed covariance."""
    return dimension + dimension * (dimension + 1) // 2


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only copy."""
    copy = np.array(array, dtype=np.float64)
    copy.flags.writeable = False
    return copy


@dataclass(frozen=True)
class Statistic:
    """Bias and covariance sums, raw or noisy, of one sender at one synchronisation.

    ``values`` holds the bias sum (d,) and then the packed lower triangle of the covariance sum,
    row by row: entry (i, j <= i) at d + i (i + 1) / 2 + j.
    """

    release: int
    dimension: int
    values: np.ndarray

    def __post_init__(self) -> None:
        size = statistic_size(self.dimension)
        if self.values.shape != (size,):
            raise InputError(f"values must have shape ({size},), got {self.values.shape}")
        object.__setattr__(self, "values", frozen(self.values))

    @property
    def bias(self) -> np.ndarray:
        """Sum of x y, (d,)."""
        return self.values[: self.dimension]

    @property
    def covariance(self) -> np.ndarray:
        """Sum of x x', (d, d), symmetric."""
        d = self.dimension
        full = np.zeros((d, d))
        full[np.tril_indices(d)] = self.values[d:]
        return full + np.tril(full, -1).T

    @property
    def nbytes(self) -> int:
        """Bytes on a wire: float64, packed."""
        return self.values.nbytes


@dataclass(frozen=True)
class Report(Statistic):
    """What one silo sends at one synchronisation."""

    silo: int = 0


@dataclass(frozen=True)
class Broadcast(Statistic):
    """What the server sends back to every silo: the synchronised statistics."""
