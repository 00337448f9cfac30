"""The single-agent synthetic instance: one set of actions, the same in every round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed.environments.base import Facts, RewardLaw, described
from fastfed.environments.pool_environment import SAMPLING
from fastfed.environments.sphere import Sphere


@dataclass(frozen=True)
class FixedSet:
    """K actions of the ``sphere``, drawn once for each replicate and offered in every round.

    x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, u and v uniform on the (d - 1)-sphere, so that
    the expected reward (1 + <u, v>)/2 lies in [0, 1]. All silos of a replicate share the set.
    Source: chowdhury-zhou-2022, Section 5, whose code has (u, 1) and (v, 1)/2: the same rewards,
    features longer by sqrt 2. ``basis_actions`` fixes the first d actions as that code does:
    (e_j, 1)/sqrt 2, then (0, 1)/sqrt 2, which unlike the sphere's is not brought to norm 1.
    """

    dimension: int = 5
    actions: int = 100
    reward: RewardLaw = field(default_factory=RewardLaw)
    basis_actions: bool = False
    kind = "fixed-set"

    def __post_init__(self) -> None:
        self._sphere()

    def _sphere(self) -> Sphere:
        return Sphere(self.dimension, self.actions, self.reward, self.basis_actions)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> Facts:
        made = self._sphere().facts(silos, horizon)
        return Facts(
            dimension=made.dimension,
            actions=made.actions,
            reward=made.reward,
            reward_range=made.reward_range,
            features_bounded=made.features_bounded,
            # What is offered is public and the same for everyone: there is nothing to share.
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        return self._sphere().theta(seed, replicate)

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Bytes of a replicate: every silo has a copy of the actions and of their means."""
        return silos * (self.actions * (4 * self.dimension + 8) + 24)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        # Round 0 of the sphere: no other round has its draws.
        rows, means = self._sphere().open(seed, replicate, silos).round(0, 0)
        if self.basis_actions:
            last = self.dimension - 1
            rows[last, last] = np.float32(math.sqrt(0.5))
            means[last] = float(rows[last, last]) * self.theta(seed, replicate)[last]
        flat = np.ascontiguousarray(rows.T, dtype=np.float32).ravel()
        return environments.Pool(
            seed,
            replicate,
            np.tile(flat, silos),
            self.dimension,
            True,
            np.tile(means, silos),
            np.full(silos, means.max()),
            self.actions * np.arange(silos + 1, dtype=np.int64),
            np.arange(silos + 1, dtype=np.int64),
            SAMPLING["with-replacement"],
            None,
            self.reward.c,
        )

    def describe(self) -> dict[str, Any]:
        return described(self)
