"""The lower bounds' instance: whatever is learnt in one block tells nothing of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import instance_normals
from fastfed._validate import InputError, integer, number
from fastfed.environments.base import MAX_DIMENSION, Facts, RewardLaw, described


@dataclass(frozen=True)
class HardInstance:
    """Two actions: the second is 0, the first has z in one block of two coordinates, else 0.

    The block is uniform over d/2, and z ~ N(0, I_2) truncated to the unit disc, fresh for every
    (round, silo). theta* has in every block an independent uniform point of the circle of
    ``radius``, which is at most 1/sqrt d and 1/sqrt d where it is not given: its norm is
    radius sqrt(d/2), at most sqrt(1/2). The expected reward <z, theta*_block> lies in
    [-radius, radius], so that Bernoulli rewards are refused; the paper's are Gaussian of std 1.
    Clipping rewards to [0, 1] would hide the negative ones: curves need ``clip = false``.
    Source: huang-2023, Appendix E.1.

    Features are float32 and their norm is below 1: z is shorter than drawn by 1.2e-7 of itself.
    """

    dimension: int = 8
    radius: float | None = None
    reward: RewardLaw = field(default_factory=lambda: RewardLaw("gaussian", 1.0))
    kind = "hard-instance"

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=2, at_most=MAX_DIMENSION)
        if self.dimension % 2:
            raise InputError(f"dimension must be even, got {self.dimension}")
        if self.radius is not None:
            number("radius", self.radius, above=0.0, at_most=1.0 / math.sqrt(self.dimension))
        signed(self.reward)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> Facts:
        largest = self._radius()
        return Facts(
            dimension=self.dimension,
            actions=2,
            reward=self.reward,
            reward_range=(-largest, largest) if self.reward.kind == "none" else None,
        )

    def _radius(self) -> float:
        return 1.0 / math.sqrt(self.dimension) if self.radius is None else self.radius

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        blocks = instance_normals(seed, replicate, self.dimension).reshape(-1, 2)
        norms = np.sqrt(blocks[:, :1] * blocks[:, :1] + blocks[:, 1:] * blocks[:, 1:])
        return np.ravel(blocks * (self._radius() / norms))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        theta = self.theta(seed, replicate)
        return environments.HardInstance(seed, replicate, theta, self.reward.c)

    def describe(self) -> dict[str, Any]:
        return described(self)


def signed(reward: RewardLaw) -> RewardLaw:
    """The law if it serves expected rewards below zero."""
    if reward.kind == "bernoulli":
        raise InputError(
            'reward.kind must be "gaussian" or "none" where expected rewards may be negative, '
            'got "bernoulli"'
        )
    return reward
