"""Finite action sets read from data: the arrays every pool environment plays.

A query is one decision: it offers a few rows of features, and each row has a known mean reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastfed._kernels import environments
from fastfed._validate import InputError, array, integer

#: A pool whose features take more bytes in 16 bits is played without keeping them.
LARGEST_SHORTS = 2**29


@dataclass(frozen=True, eq=False)
class Pool:
    """Finite action sets: query q offers the rows starts[q] .. starts[q + 1].

    Attributes:
        values: float32, flat, length n * dimension, possibly a read-only memory map. The block of
            query q is feature-major: ``values[starts[q] * d : starts[q + 1] * d]`` reshaped to
            (d, n_q), so that a kernel runs across actions with unit stride.
        dimension: d, the number of features of a row.
        means: float64 (n,), the expected reward of each row.
        starts: int64 (queries + 1,), the first row of each query, and n.
        silo_starts: int64 (silos + 1,); silo i owns the queries silo_starts[i] .. silo_starts[i+1].
        notes: caveats for the certificate, one sentence each.
        theta: float64 (d,), the linear model behind the means, or None when there is none.
        linear: whether means equals rows @ theta up to rounding.
        conditions: what a guarantee rests on, by how the pool was made: sentences, and whether
            each holds.
    """

    values: np.ndarray
    dimension: int
    means: np.ndarray
    starts: np.ndarray
    silo_starts: np.ndarray
    notes: tuple[str, ...]
    theta: np.ndarray | None
    linear: bool
    conditions: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def from_rows(
        cls,
        rows: np.ndarray,
        means: np.ndarray,
        starts: np.ndarray,
        silo_starts: np.ndarray,
        *,
        notes: tuple[str, ...] = (),
        theta: np.ndarray | None = None,
        linear: bool = False,
        conditions: tuple[tuple[str, bool], ...] = (),
    ) -> Pool:
        """Checked pool from row-major features.

        rows is (n, d), means (n,), starts (queries + 1,), silo_starts (silos + 1,). Raises
        InputError when a value is not finite, a shape does not fit or an offset is out of order.
        """
        rows = array("rows", rows, ndim=2, dtype=np.float32)
        count, dimension = rows.shape
        offsets = _offsets("starts", starts, count)
        pool = cls(
            values=np.concatenate(list(feature_major(rows, offsets))),
            dimension=dimension,
            means=array("means", means, shape=(count,)),
            starts=offsets,
            silo_starts=_offsets("silo_starts", silo_starts, len(offsets) - 1),
            notes=tuple(notes),
            theta=None if theta is None else array("theta", theta, shape=(dimension,)),
            linear=linear,
            conditions=tuple(conditions),
        )
        pool.check()
        return pool

    @property
    def queries(self) -> int:
        """Number of queries over all silos."""
        return len(self.starts) - 1

    @property
    def silos(self) -> int:
        """Number of silos (M)."""
        return len(self.silo_starts) - 1

    @cached_property
    def max_actions(self) -> int:
        """Largest number of rows any query offers (K)."""
        return int(np.diff(self.starts).max())

    @cached_property
    def best(self) -> np.ndarray:
        """float64 (queries,): the largest mean reward of each query."""
        return np.maximum.reduceat(self.means, self.starts[:-1])

    @cached_property
    def shorts(self) -> environments.QuantisedActions | None:
        """Features in 16 bits, for screening; None where they take too much memory."""
        shorts = environments.QuantisedActions(self.starts, self.dimension)
        return shorts if 0 < shorts.size <= LARGEST_SHORTS else None

    def rows(self, query: int) -> np.ndarray:
        """(n_q, d) view of the rows query offers; nothing is copied."""
        query = integer("query", query, at_least=0, at_most=self.queries - 1)
        first, last = int(self.starts[query]), int(self.starts[query + 1])
        d = self.dimension
        return self.values[first * d : last * d].reshape(d, last - first).T

    def check(self) -> None:
        """Raise InputError unless shapes, dtypes and offsets fit together.

        The feature values themselves are not read: they may be gigabytes on disk.
        """
        integer("dimension", self.dimension, at_least=1)
        for name, want in (("values", np.float32), ("means", np.float64)):
            have = getattr(self, name)
            if have.dtype != want or have.ndim != 1:
                raise InputError(
                    f"{name} must be a flat {np.dtype(want).name} array, "
                    f"got {have.dtype} of shape {have.shape}"
                )
        _offsets("starts", self.starts, len(self.means))
        _offsets("silo_starts", self.silo_starts, len(self.starts) - 1)
        if len(self.values) != len(self.means) * self.dimension:
            raise InputError(
                f"values must hold rows times dimension = {len(self.means)} x {self.dimension} "
                f"numbers, got {len(self.values)}"
            )
        if not np.isfinite(self.means).all():
            raise InputError("means must be finite, got NaN or infinity")
        if self.theta is not None and self.theta.shape != (self.dimension,):
            raise InputError(f"theta must have shape ({self.dimension},), got {self.theta.shape}")
        if self.linear and self.theta is None:
            raise InputError("linear must be False for a pool without theta, got True")


def is_mapped(values: np.ndarray) -> bool:
    """Whether an array lies in a file, whose pages the system takes back when it needs memory."""
    base: object = values
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def equal_blocks(count: int, blocks: int) -> np.ndarray:
    """int64 (blocks + 1,): offsets of contiguous blocks whose sizes differ by at most one.

    The first count % blocks blocks are the larger ones, as numpy.array_split has it.
    """
    small, larger = divmod(count, blocks)
    sizes = np.full(blocks, small, dtype=np.int64)
    sizes[:larger] += 1
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def feature_major(rows: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
    """Flat feature-major blocks of row-major rows (n, d), in the order of the queries."""
    sizes = np.diff(starts)
    if (sizes == sizes[0]).all():
        stacked = rows.reshape(len(sizes), int(sizes[0]), rows.shape[1])
        yield np.ascontiguousarray(stacked.transpose(0, 2, 1)).ravel()
        return
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield rows[first:last].T.ravel()


def _offsets(name: str, value: np.ndarray, last: int) -> np.ndarray:
    """Value as int64 offsets that start at 0, end at last and strictly grow."""
    result = np.ascontiguousarray(value)
    if result.dtype.kind not in "iu" or result.ndim != 1 or len(result) < 2:
        raise InputError(
            f"{name} must be a flat array of at least two integers, "
            f"got {result.dtype} of shape {result.shape}"
        )
    result = result.astype(np.int64, copy=False)
    if result[0] != 0 or result[-1] != last:
        raise InputError(f"{name} must run from 0 to {last}, got {result[0]} to {result[-1]}")
    empty = np.flatnonzero(np.diff(result) < 1)
    if len(empty):
        raise InputError(f"{name} must grow at every step, got an empty part at {int(empty[0])}")
    return result
