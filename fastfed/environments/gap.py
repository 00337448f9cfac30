"""The synthetic instance with a gap: one best action in every round, all others well below it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import instance_normals
from fastfed._validate import integer, number
from fastfed.environments.base import MAX_ACTIONS, MAX_DIMENSION, Facts, RewardLaw, described

#: The best action's expected reward lies in [BEST, BEST + WIDTH].
BEST, WIDTH = 0.7, 0.1
#: No m is below this, well above what rounding to float32 does to it.
LEAST = 1e-6


@dataclass(frozen=True)
class Gap:
    """x = m theta* + sqrt(1 - m^2) b, b uniform in the unit ball orthogonal to theta*.

    theta* is uniform on the unit sphere, one for each replicate. The expected reward m of one
    action, the best, is uniform in [0.7, 0.8]; m of each of the other K - 1 is uniform in
    [0.6 - gap, 0.7 - gap]. Fresh for every (round, silo). With d = 1 there is no b.
    Source: dubey-pentland-2020, Section 4.4, with ``gap`` = 0.1 (Figure 2 varies it). The paper
    gives the two intervals only: the laws inside them, b and the position of the best action,
    here uniform over all K, are ours. The paper has K <= d^2; any K >= 1 will do.

    Features are float32, so that m is met within 1e-6; the expected rewards handed out are those
    of the rounded features, and no feature has a norm above 1.
    """

    dimension: int = 10
    actions: int = 100
    gap: float = 0.1
    reward: RewardLaw = field(default_factory=RewardLaw)
    kind = "gap"

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("actions", self.actions, at_least=1, at_most=MAX_ACTIONS)
        number("gap", self.gap, above=0.0, at_most=BEST - WIDTH)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> Facts:
        bounded = self.reward.kind != "gaussian"
        return Facts(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if bounded else None,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        v = instance_normals(seed, replicate, self.dimension)
        return v / math.sqrt(math.fsum(v * v))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        # At the largest gap, rounding must not carry an expected reward below zero.
        inferior = max(BEST - WIDTH - self.gap, LEAST)
        theta = self.theta(seed, replicate)
        reward = self.reward.c
        return environments.Gap(seed, replicate, theta, self.actions, inferior, BEST, WIDTH, reward)

    def describe(self) -> dict[str, Any]:
        return described(self)
