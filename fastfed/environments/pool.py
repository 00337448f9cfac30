"""Pools, which are finite action sets read from data, and the environments that draw from them.

A query is one decision to make, for example a search with its documents. It offers a few actions.
Each action is a row of features with a known mean reward.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._random import permutation
from fastfed._validate import InputError, array, choice, integer, number
from fastfed.environments.base import EnvironmentSpec, RewardDistribution, check_reward

# ---- The pool ------------------------------------------------------------------------------------

#: Largest number of bytes of int16 features for a pool; a larger pool stores none.
MAX_QUANTISED = 2**30
#: Least dimension in which principal directions save more time than they cost.
MIN_DIRECTIONS_DIMENSION = 50
#: Number of queries from whose rows the principal directions of a pool are computed.
DIRECTION_QUERIES = 32
#: Largest share of the sum of squared features that the principal directions may leave out.
MAX_SHARE_LEFT_OUT = 0.0025


@dataclass(frozen=True, eq=False)
class Pool:
    """Finite action sets: query q offers the rows starts[q] .. starts[q + 1] - 1.

    Parameters
    ----------
    values : ndarray of float32, shape (n * d,)
        Features, possibly a read-only memory map. The block of query q is feature-major:
        ``values[starts[q] * d : starts[q + 1] * d]`` reshaped to (d, n_q), so that a kernel runs
        across actions with unit stride.
    dimension : int
        d, the number of features of a row.
    means : ndarray, shape (n,)
        Expected reward of each row.
    starts : ndarray of int64, shape (queries + 1,)
        First row of each query, and n.
    silo_starts : ndarray of int64, shape (silos + 1,)
        Silo i owns the queries silo_starts[i] .. silo_starts[i + 1] - 1.
    notes : tuple of str
        Caveats for the certificate, one sentence each.
    theta : ndarray, shape (d,), or None
        Parameter of the linear model from which means were computed, if there is one.
    linear : bool
        True if means equals rows @ theta up to rounding.
    conditions : tuple of (str, bool)
        Conditions of a guarantee that depend on how the pool was computed: pairs of a sentence and
        whether it holds.
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
        """Return a pool with these features, after checking all arguments.

        Parameters
        ----------
        rows : array_like, shape (n, d)
            Features of all rows.
        means, starts, silo_starts, notes, theta, linear, conditions
            As in `Pool`.

        Returns
        -------
        Pool
            The pool.

        Raises
        ------
        InputError
            If a value is not finite, shapes do not agree, or offsets do not increase.
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
        """Largest number of actions that any query offers (K)."""
        return int(np.diff(self.starts).max())

    @cached_property
    def best(self) -> np.ndarray:
        """Largest mean reward of each query, (queries,)."""
        return np.maximum.reduceat(self.means, self.starts[:-1])

    @cached_property
    def quantised(self) -> environments.QuantisedActions | None:
        """Buffer for a copy of the features in int16; None if it would be too large.

        Compiled code fills the buffer. From int16 features it computes cheap upper bounds on
        scores, so that it can skip actions that cannot be best.
        """
        buffer = environments.QuantisedActions(self.starts, self.dimension)
        return buffer if 0 < buffer.size <= MAX_QUANTISED else None

    @cached_property
    def directions(self) -> environments.Directions | None:
        """Principal directions of the rows, or None. Compiled code uses them to bound scores.

        They are the top eigenvectors of the sum of x x' over the rows x of DIRECTION_QUERIES
        queries, as many (a multiple of 6) as capture almost all of this sum. The property is None
        if more than 60 or at least d / 2 eigenvectors are needed, if the pool or the dimension is
        small, or if the processor has no screening in 16 bits.
        """
        if (
            self.queries < DIRECTION_QUERIES
            or self.dimension < MIN_DIRECTIONS_DIMENSION
            or not linalg.has_screen_i16()
        ):
            return None
        moments = np.zeros((self.dimension, self.dimension))
        for query in np.linspace(0, self.queries - 1, DIRECTION_QUERIES).astype(int).tolist():
            rows = self.rows(query).astype(np.float64)
            moments += rows.T @ rows
        if not np.isfinite(moments).all():
            return None
        sizes, directions = np.linalg.eigh(moments)
        # Entry r - 1: the share of the sum of squared features that r directions leave out.
        share_left = 1.0 - np.cumsum(sizes[::-1]) / max(sizes.sum(), np.finfo(float).tiny)
        # Numbers of directions that suffice; src/ff_directions.h requires a multiple of 6.
        direction_counts = [
            r
            for r in range(6, min(61, self.dimension // 2), 6)
            if share_left[r - 1] <= MAX_SHARE_LEFT_OUT
        ]
        if not direction_counts:
            return None
        return environments.Directions(directions[:, ::-1][:, : direction_counts[0]].T)

    def rows(self, query: int) -> np.ndarray:
        """Return the rows of a query, a view (n_q, d)."""
        query = integer("query", query, at_least=0, at_most=self.queries - 1)
        first, last = int(self.starts[query]), int(self.starts[query + 1])
        d = self.dimension
        return self.values[first * d : last * d].reshape(d, last - first).T

    def with_intercept(self, kappa: float) -> Pool:
        """Return the pool with a constant as last feature.

        The features x of a row become (x / sqrt 2, 1 / sqrt(2 kappa)), of dimension d + 1. A larger
        ``kappa`` >= 1 gives a smaller constant. Mean rewards do not change. ``linear`` becomes
        False, since theta* for the new features could have a norm above 1.
        """
        d, count = self.dimension, len(self.means)
        values = np.empty(count * (d + 1), dtype=np.float32)
        constant = np.float32(math.sqrt(0.5 / kappa))
        root_half = np.float32(math.sqrt(0.5))
        for first, last in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            block = values[first * (d + 1) : last * (d + 1)].reshape(d + 1, last - first)
            np.multiply(
                self.values[first * d : last * d].reshape(d, last - first), root_half, out=block[:d]
            )
            block[d] = constant
        return replace(self, values=values, dimension=d + 1, theta=None, linear=False)

    def check(self) -> None:
        """Raise InputError unless shapes, dtypes and offsets fit together.

        The feature values are not read, since they may be gigabytes on disk.
        """
        integer("dimension", self.dimension, at_least=1)
        for name, dtype in (("values", np.float32), ("means", np.float64)):
            flat = getattr(self, name)
            if flat.dtype != dtype or flat.ndim != 1:
                raise InputError(
                    f"{name} must be a flat {np.dtype(dtype).name} array, "
                    f"got {flat.dtype} of shape {flat.shape}"
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
    """Return True for a memory-mapped array, whose memory the system can reclaim at any time."""
    base: object = values
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def equal_blocks(count: int, blocks: int) -> np.ndarray:
    """Return the offsets, int64 (blocks + 1,), of contiguous blocks of nearly equal sizes.

    Sizes differ by at most one. The first ``count % blocks`` blocks have one element more, as in
    numpy.array_split.
    """
    small, larger = divmod(count, blocks)
    sizes = np.full(blocks, small, dtype=np.int64)
    sizes[:larger] += 1
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def feature_major(rows: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the features of rows (n, d) as flat blocks for a pool, in the order of the queries.

    Concatenate the blocks to get `Pool.values`: for each query, the values of one feature are
    adjacent. ``starts`` holds the first row of each query, followed by n.
    """
    sizes = np.diff(starts)
    if (sizes == sizes[0]).all():
        stacked = rows.reshape(len(sizes), int(sizes[0]), rows.shape[1])
        yield np.ascontiguousarray(stacked.transpose(0, 2, 1)).ravel()
        return
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield rows[first:last].T.ravel()


def _offsets(name: str, value: np.ndarray, last: int) -> np.ndarray:
    """Return offsets as int64, after checking that they increase from 0 to ``last``.

    ``name`` is the name of the argument, for error messages.
    """
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


# ---- Environments over a pool --------------------------------------------------------------------

#: Orders in which a silo receives its queries; the same numbers are in src/ff_environment.h.
SAMPLING = {"with-replacement": 0, "without-replacement": 1, "in-order": 2}

#: Caveats for all real records, which no accounting of messages covers.
RECORDS_CAVEATS = (
    "that every record belongs to a different person is taken on trust",
    "that the numbers of records, silos and actions are public is taken on trust",
    "regret, figures and clip counts of a run are computed from the raw records: they are not "
    "covered",
)

#: Caveat for data that are given as arrays.
ARRAYS_CAVEAT = (
    "features were computed outside of fastfed: that their scales and categories are known "
    "without the data is taken on trust"
)


@dataclass(kw_only=True)
class PoolEnvironment(ABC):
    """Base class of environments over a pool.

    In each round every silo receives one query from its block of the pool.

    Parameters
    ----------
    sampling : {"with-replacement", "without-replacement", "in-order"}
        A uniformly drawn query in each round; a random order, drawn for each replicate; or the
        order of the file. With the last two no query appears twice, so the horizon is at most the
        number of queries of the smallest silo.
    reward : RewardDistribution
        Noise of the rewards; none by default.
    intercept : float, optional
        kappa >= 1: features are divided by sqrt 2, and a constant feature 1/sqrt(2 kappa) is added,
        which `reward_centre` of a curve needs (docs/centred.md).
    """

    sampling: str
    reward: RewardDistribution = field(default_factory=lambda: RewardDistribution("none"))
    intercept: float | None = None
    _pools: dict[int | None, Pool] = field(default_factory=dict, init=False, repr=False)

    kind = ""
    #: What error messages call the data of one round.
    records = "queries"

    def __post_init__(self) -> None:
        choice("sampling", self.sampling, list(SAMPLING))
        check_reward(self.reward)
        if self.intercept is not None:
            number("intercept", self.intercept, at_least=1.0, at_most=1e6)

    @abstractmethod
    def load(self, silos: int | None) -> Pool:
        """Read the data and return the pool, with queries divided among M silos.

        If ``silos`` is None, the data define the silos.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""

    def pool(self, silos: int | None) -> Pool:
        """Return the pool for M silos, which is loaded at the first call."""
        if silos not in self._pools:
            pool = self.load(silos)
            self._pools[silos] = (
                pool if self.intercept is None else pool.with_intercept(self.intercept)
            )
        return self._pools[silos]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the pools: other processes load them from the same files."""
        return {**self.__dict__, "_pools": {}}

    @property
    def later_keys(self) -> dict[str, Any]:
        """Entries of `describe` for fields that the first versions of fastfed did not have.

        A field with its default is left out, so that stores of earlier versions stay valid.
        """
        return {} if self.intercept is None else {"intercept": self.intercept}

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data define, or None if any number is allowed."""
        return None

    def declared_rewards(self) -> tuple[float, float] | None:
        """Return the interval of expected rewards if it is known without the data, else None."""
        return None

    def record_multiplicity(self) -> int:
        """Return the largest number of queries of the pool that may belong to one record."""
        return 1

    def silo_name(self, silo: int) -> str:
        """Return a comma and the name of a silo, for messages; "" if silos have no names."""
        return ""

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        pool = self.pool(silos)
        blocks = np.diff(pool.silo_starts)
        if self.sampling != "with-replacement" and horizon > blocks.min():
            raise InputError(
                f"horizon must be <= {blocks.min()}, the {self.records} of the smallest silo"
                f'{self.silo_name(int(blocks.argmin()))} (sampling = "{self.sampling}"), got '
                f"{horizon}"
            )
        low, high = float(pool.means.min()), float(pool.means.max())
        # The least and largest reward of these data are no bounds for other data.
        bounds = {"none": self.declared_rewards(), "bernoulli": (0.0, 1.0), "gaussian": None}
        if self.reward.kind == "bernoulli" and not (low >= 0.0 and high <= 1.0):
            raise InputError(
                'reward.kind = "bernoulli" needs expected rewards in [0, 1], '
                f"these lie in [{low:g}, {high:g}]"
            )
        norm_at_most_1 = pool.theta is None or float(np.linalg.norm(pool.theta)) <= 1.0
        return EnvironmentSpec(
            dimension=pool.dimension,
            actions=pool.max_actions,
            reward=self.reward,
            reward_range=bounds[self.reward.kind],
            linear=pool.linear and norm_at_most_1,
            multiplicity=self.record_multiplicity()
            * (horizon if self.sampling == "with-replacement" else 1),
            contexts_made=False,
            notes=(*pool.notes, *RECORDS_CAVEATS),
            conditions=pool.conditions,
            real_records=True,
            intercept=self.intercept,
        )

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return the bytes of memory that a replicate needs in addition to the pool.

        If queries come in a random order without repetition, the replicate stores this order. If
        queries can repeat, every curve stores bounds on the bonuses of the actions that are
        expected to appear. It also stores two numbers for each query: which model the bounds are
        for, and the last choice.
        """
        pool = self.pool(silos)
        if self.sampling != "with-replacement":
            return 16 * pool.queries * (self.sampling == "without-replacement")
        bounds = (
            int(4 * len(pool.means) * self._fraction_drawn(pool, silos, horizon))
            + 16 * pool.queries
        )
        return curves * bounds

    def shared_memory(self, silos: int, horizon: int) -> int:
        """Return the bytes of memory that all replicates of one process share.

        This memory holds the int16 features of the queries that are expected to appear.
        """
        pool = self.pool(silos)
        if self.sampling != "with-replacement" or pool.quantised is None:
            return 0
        return int(pool.quantised.size * self._fraction_drawn(pool, silos, horizon))

    def own_memory(self, silos: int) -> int:
        """Return the bytes of the pool's arrays in memory, without memory-mapped files."""
        pool = self.pool(silos)
        arrays = (pool.values, pool.means, pool.starts, pool.best)
        return sum(a.nbytes for a in arrays if not is_mapped(a))

    @staticmethod
    def _fraction_drawn(pool: Pool, silos: int, horizon: int) -> float:
        """Return the expected fraction of queries that M T uniform draws hit at least once."""
        return -math.expm1(-silos * horizon / pool.queries)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        pool = self.pool(silos)
        # Storing the int16 features of a query (`Pool.quantised`) pays off only if the query can
        # appear again.
        queries_repeat = self.sampling == "with-replacement"
        order = None
        if self.sampling == "without-replacement":
            starts = pool.silo_starts
            order = np.concatenate(
                [
                    starts[i] + permutation(seed, replicate, i, int(starts[i + 1] - starts[i]))
                    for i in range(len(starts) - 1)
                ]
            )
        return environments.Pool(
            seed,
            replicate,
            pool.values,
            pool.dimension,
            True,  # features of a query are stored feature by feature
            pool.means,
            pool.best,
            pool.starts,
            pool.silo_starts,
            SAMPLING[self.sampling],
            order,
            self.reward.c,
            pool.quantised if queries_repeat else None,
            pool.directions,
        )
