"""The synthetic instance: fresh actions on a sphere in every round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import instance_normals
from fastfed._validate import InputError, boolean, choice, integer
from fastfed.environments.base import MAX_ACTIONS, MAX_DIMENSION, Facts, RewardLaw, described


@dataclass(frozen=True)
class Sphere:
    """x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, u and v uniform on the (d - 1)-sphere.

    Actions are fresh for every (round, silo); the expected reward (1 + <u, v>)/2 lies in [0, 1].
    Source: zhou-chowdhury-2024, Section 6. ``basis_actions`` fixes the first d actions as the
    published code does ((e_j, 1)/sqrt 2, then (0, 1)); ``contexts = "shared"`` gives every
    replicate the same contexts, as that code does too.
    """

    dimension: int = 10
    actions: int = 100
    reward: RewardLaw = field(default_factory=RewardLaw)
    basis_actions: bool = False
    contexts: str = "per-replicate"
    kind = "sphere"

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("actions", self.actions, at_least=1, at_most=MAX_ACTIONS)
        boolean("basis_actions", self.basis_actions)
        choice("contexts", self.contexts, ["per-replicate", "shared"])
        if self.basis_actions and self.actions < self.dimension:
            raise InputError(
                f"basis_actions needs actions >= dimension, got actions = {self.actions}, "
                f"dimension = {self.dimension}"
            )

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> Facts:
        bounded = self.reward.kind != "gaussian"
        return Facts(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if bounded else None,
            # Norms are 1 but for the rounding of float32, which only clipping takes away.
            features_bounded=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        d = self.dimension
        theta = np.full(d, math.sqrt(0.5))
        if d > 1:
            v = instance_normals(seed, replicate, d - 1)
            theta[:-1] = v * (math.sqrt(0.5) / math.sqrt(math.fsum(v * v)))
        return theta

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        return environments.Sphere(
            seed,
            replicate,
            self.theta(seed, replicate),
            self.actions,
            self.dimension if self.basis_actions else 0,
            self.contexts == "shared",
            self.reward.c,
        )

    def describe(self) -> dict[str, Any]:
        return described(self)
