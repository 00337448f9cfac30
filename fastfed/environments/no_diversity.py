"""The instance without diversity: only the first silo ever sees the first coordinate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import instance_normals
from fastfed.environments.base import Facts, RewardLaw, described
from fastfed.environments.hard_instance import signed
from fastfed.environments.pool_environment import SAMPLING


@dataclass(frozen=True)
class NoDiversity:
    """d = 2, two actions, the same in every round: (+-1, 0) in silo 0, (0, +-1) in all others.

    theta* is uniform on {-1/2, 1/2}^2, one for each replicate, so that one action of every silo
    has expected reward 1/2 and the other -1/2: a wrong one costs exactly 1. Bernoulli rewards
    are refused; the paper's are Gaussian of std 1. Clipping rewards to [0, 1] would hide the
    negative ones: curves need ``clip = false``.
    Source: huang-2023, Proposition D.1, whose features are half as long and whose theta*, twice
    as long, has norm sqrt 2: the same rewards, here with ||x|| = 1 and ||theta*|| = sqrt(1/2).
    """

    reward: RewardLaw = field(default_factory=lambda: RewardLaw("gaussian", 1.0))
    kind = "no-diversity"

    def __post_init__(self) -> None:
        signed(self.reward)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> Facts:
        return Facts(
            dimension=2,
            actions=2,
            reward=self.reward,
            reward_range=(-0.5, 0.5) if self.reward.kind == "none" else None,
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (2,)."""
        return np.copysign(0.5, instance_normals(seed, replicate, 2))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        # (silo, action, coordinate)
        x = np.zeros((silos, 2, 2), np.float32)
        x[0, :, 0] = x[1:, :, 1] = 1.0, -1.0
        means = x.astype(np.float64) @ self.theta(seed, replicate)
        return environments.Pool(
            seed,
            replicate,
            x.ravel(),
            2,
            False,
            means.ravel(),
            means.max(axis=1),
            2 * np.arange(silos + 1, dtype=np.int64),
            np.arange(silos + 1, dtype=np.int64),
            SAMPLING["with-replacement"],
            None,
            self.reward.c,
        )

    def describe(self) -> dict[str, Any]:
        return described(self)
