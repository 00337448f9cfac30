"""Environments over a pool of queries: what letor, classification and replay share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments
from fastfed._random import permutation
from fastfed._validate import InputError, choice
from fastfed.environments.base import Facts, RewardLaw
from fastfed.environments.pool import Pool, is_mapped

#: How a silo meets its queries; the same numbers stand in src/ff_environment.h.
SAMPLING = {"with-replacement": 0, "without-replacement": 1, "in-order": 2}

#: What no accounting of the messages covers, wherever records are real.
ABOUT_RECORDS = (
    "that every record is another person's is taken on trust",
    "that the numbers of records, silos and actions are known to all is taken on trust",
    "regret, figures and clip counts of a run are computed from the raw records: they are not "
    "covered",
)

#: What arrays cannot say of themselves.
MADE_BEFORE = (
    "features were made before they came here: that scales and categories in them are known "
    "without the data is taken on trust"
)


@dataclass(kw_only=True)
class PoolEnvironment(ABC):
    """Each round a silo meets one query of its own block and plays one of the query's rows.

    ``sampling``: "with-replacement" draws a uniform query each round; "without-replacement" a
    fresh random order per replicate; "in-order" the file's own. The last two serve no query
    twice, so a horizon beyond the smallest silo is refused.
    """

    sampling: str
    reward: RewardLaw = field(default_factory=lambda: RewardLaw("none"))
    _pools: dict[int | None, Pool] = field(default_factory=dict, init=False, repr=False)

    kind = ""
    #: What the data call one round's choice.
    records = "queries"

    def __post_init__(self) -> None:
        choice("sampling", self.sampling, list(SAMPLING))

    @abstractmethod
    def load(self, silos: int | None) -> Pool:
        """The pool, its queries divided among that many silos (None: as the data say)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain data that identifies the environment."""

    def pool(self, silos: int | None) -> Pool:
        """The pool, loaded once for each number of silos."""
        if silos not in self._pools:
            self._pools[silos] = self.load(silos)
        return self._pools[silos]

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it loads its own pools, where the same files lie."""
        return {**self.__dict__, "_pools": {}}

    def natural_silos(self) -> int | None:
        """The number of silos the data themselves say, or None when any number will do."""
        return None

    def declared_rewards(self) -> tuple[float, float] | None:
        """The interval of the expected rewards, known without the data; None if there is none."""
        return None

    def record_multiplicity(self) -> int:
        """How many queries of the pool may be one record."""
        return 1

    def facts(self, silos: int, horizon: int) -> Facts:
        pool = self.pool(silos)
        blocks = np.diff(pool.silo_starts)
        if self.sampling != "with-replacement" and horizon > blocks.min():
            raise InputError(
                f"horizon must be <= {blocks.min()}, the {self.records} of the smallest silo "
                f'(sampling = "{self.sampling}"), got {horizon}'
            )
        low, high = float(pool.means.min()), float(pool.means.max())
        # The least and largest reward of these data are no bound: another record may exceed them.
        bounds = {"none": self.declared_rewards(), "bernoulli": (0.0, 1.0), "gaussian": None}
        if self.reward.kind == "bernoulli" and not (low >= 0.0 and high <= 1.0):
            raise InputError(
                'reward.kind = "bernoulli" needs expected rewards in [0, 1], '
                f"these lie in [{low:g}, {high:g}]"
            )
        small = pool.theta is None or float(np.linalg.norm(pool.theta)) <= 1.0
        return Facts(
            dimension=pool.dimension,
            actions=pool.max_actions,
            reward=self.reward,
            reward_range=bounds[self.reward.kind],
            linear=pool.linear and small,
            multiplicity=self.record_multiplicity()
            * (horizon if self.sampling == "with-replacement" else 1),
            contexts_made=False,
            notes=(*pool.notes, *ABOUT_RECORDS),
            conditions=pool.conditions,
            real_records=True,
        )

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Bytes that a replicate takes beside the pool: the order of its queries, widths of the
        actions that are met, and what silos remember of their best actions."""
        pool = self.pool(silos)
        if self.sampling != "with-replacement":
            return 16 * pool.queries * (self.sampling == "without-replacement")
        widths = int(4 * len(pool.means) * self._met(pool, silos, horizon)) + 8 * pool.queries
        return curves * (widths + silos * driver.CANDIDATES_SIZE)

    def shared_memory(self, silos: int, horizon: int) -> int:
        """Bytes that all replicates of a process share: features in 16 bits, as they are met."""
        pool = self.pool(silos)
        kept = pool.shorts if self.sampling == "with-replacement" else None
        return 0 if kept is None else int(kept.size * self._met(pool, silos, horizon))

    def own_memory(self, silos: int) -> int:
        """Bytes of the pool itself, but for what is mapped from a file."""
        pool = self.pool(silos)
        arrays = (pool.values, pool.means, pool.starts, pool.best)
        return sum(a.nbytes for a in arrays if not is_mapped(a))

    @staticmethod
    def _met(pool: Pool, silos: int, horizon: int) -> float:
        """The share of queries that so many draws meet."""
        return -math.expm1(-silos * horizon / pool.queries)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        pool = self.pool(silos)
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
            True,
            pool.means,
            pool.best,
            pool.starts,
            pool.silo_starts,
            SAMPLING[self.sampling],
            order,
            self.reward.c,
            # Rows that come only once are not worth the keeping.
            pool.shorts if self.sampling == "with-replacement" else None,
        )
