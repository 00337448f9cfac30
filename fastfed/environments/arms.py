"""Arms without contexts: every user is offered the same K actions, each with one mean reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._kernels import environments, rng
from fastfed._random import INSTANCE
from fastfed._validate import InputError, integer, number, show
from fastfed.environments.base import EnvironmentSpec, RewardDistribution, described
from fastfed.environments.pool import SAMPLING

#: The default number of arms, and the largest number of arms K: every silo stores K^2 numbers.
ACTIONS, MAX_ARMS = 10, 1000


@dataclass(frozen=True)
class Arms:
    """K arms with Bernoulli rewards: the A/B test of K variants at M silos.

    Action a is the unit vector e_a in every round and at every silo, so d = K and theta* is the
    vector of the means. The rewards of an arm are Bernoulli with this mean at every silo.

    Parameters
    ----------
    means : list of float, optional
        The mean of each arm, in [0, 1]. At least two.
    actions : int, optional
        K >= 2, 10 by default. The means are then independent and uniform in [0, 1], drawn once for
        each replicate. Give either ``means`` or ``actions``.

    Raises
    ------
    InputError
        For values out of range, and if both ``means`` and ``actions`` are given.
    """

    means: Sequence[float] | None = None
    actions: int | None = None
    kind = "arms"

    def __post_init__(self) -> None:
        if self.means is None:
            actions = ACTIONS if self.actions is None else self.actions
            integer("actions", actions, at_least=2, at_most=MAX_ARMS)
            object.__setattr__(self, "actions", actions)
            return
        if self.actions is not None:
            raise InputError("give either means or actions: the number of means is that of arms")
        if isinstance(self.means, str) or not isinstance(self.means, Sequence | np.ndarray):
            raise InputError(f"means must be a list of numbers, got {show(self.means)}")
        means = tuple(
            number(f"means[{a}]", mean, at_least=0.0, at_most=1.0)
            for a, mean in enumerate(self.means)
        )
        if not 2 <= len(means) <= MAX_ARMS:
            raise InputError(
                f"means must hold from 2 to {MAX_ARMS} numbers, one for each arm, got {len(means)}"
            )
        object.__setattr__(self, "means", means)

    @property
    def _arms(self) -> int:
        """Number of arms (K)."""
        return len(self.means) if self.means is not None else int(self.actions or ACTIONS)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        return EnvironmentSpec(
            dimension=self._arms,
            actions=self._arms,
            reward=RewardDistribution(),
            # `linear` would promise ||theta*|| <= 1, but the vector of means may be longer.
            linear=False,
            arms=True,
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return the mean rewards of the arms in one replicate, shape (K,)."""
        if self.means is not None:
            return np.array(self.means)
        arms = range(self._arms)
        return np.array([rng.uniform(seed, INSTANCE, replicate, 0, a) for a in arms])

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return the bytes of memory of a replicate that serves this number of curves.

        Every silo stores the unit vectors and the means.
        """
        # An eager silo, whose model changes in every round, also uses 14 float64 for each arm.
        return silos * self._arms * (4 * self._arms + 8 + 112 * curves)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        means, arms = self.theta(seed, replicate), self._arms
        return environments.Pool(
            seed,
            replicate,
            np.tile(np.eye(arms, dtype=np.float32).ravel(), silos),
            arms,
            True,  # features of a query are stored feature by feature
            np.tile(means, silos),
            np.full(silos, means.max()),
            arms * np.arange(silos + 1, dtype=np.int64),
            np.arange(silos + 1, dtype=np.int64),
            SAMPLING["with-replacement"],
            None,  # no order of queries
            RewardDistribution().c,
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)
