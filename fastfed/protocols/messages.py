"""Messages between silo, shuffler and server: immutable values with named arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastfed._validate import InputError


def statistic_size(dimension: int) -> int:
    """Numbers in one statistic: d of the bias sum, d (d + 1) / 2 of the packed covariance."""
    return dimension + dimension * (dimension + 1) // 2


def dimension_of(size: int) -> int:
    """d of a statistic of so many numbers."""
    return (math.isqrt(9 + 8 * size) - 3) // 2


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
        if not isinstance(self.values, np.ndarray):
            raise InputError(f"values must be an array, got {type(self.values).__name__}")
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
    """Message of one silo at one synchronisation."""

    silo: int = 0


@dataclass(frozen=True)
class Counts(Report):
    """The ones among a silo's bits, by label and less their mean without data.

    What a silo sends in place of its bits where the shuffler may add up: its noise hides the data
    only once the counts of all silos are summed, so a server must never see it.
    """


@dataclass(frozen=True)
class Shuffled(Statistic):
    """Message that leaves the shuffler: a report that no longer says who sent it, or the sum of all
    silos' counts, which is what permuted bits tell."""


@dataclass(frozen=True)
class Bits:
    """The bits of one silo at one synchronisation, one row for each entry of the statistic.

    ``bits`` (s, n (2 g + b)) of uint8 holds the messages of the silo's n data points, 2 g + b
    bits each (zhou-chowdhury-2024, Algorithm 7). The row is the label a bit travels under.
    """

    release: int
    dimension: int
    bits: np.ndarray
    silo: int = 0

    def __post_init__(self) -> None:
        rows = statistic_size(self.dimension)
        if not isinstance(self.bits, np.ndarray):
            raise InputError(f"bits must be a uint8 array, got {type(self.bits).__name__}")
        if self.bits.ndim != 2 or self.bits.shape[0] != rows or self.bits.dtype != np.uint8:
            raise InputError(
                f"bits must be a uint8 array of {rows} rows, "
                f"got {self.bits.dtype} of shape {self.bits.shape}"
            )
        if self.bits.size and self.bits.max() > 1:
            raise InputError(f"bits must be 0 or 1, got {self.bits.max()}")
        copy = self.bits.copy()
        copy.flags.writeable = False
        object.__setattr__(self, "bits", copy)


@dataclass(frozen=True)
class ShuffledBits(Bits):
    """The bits of all silos, permuted under each label; ``silo`` says nothing here."""


@dataclass(frozen=True)
class Broadcast(Statistic):
    """Message of the server to every silo: the synchronised statistics."""
