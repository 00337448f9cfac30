"""Silos that differ: the sphere, its theta* turned by an angle at each silo."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments, rng
from fastfed._random import INSTANCE
from fastfed._validate import InputError, number
from fastfed.environments.base import EnvironmentSpec, RewardDistribution, described
from fastfed.environments.synthetic import Sphere

#: Index of a silo's draws in the stream of instances, where that of theta* is 0.
_DIRECTION = 1


@dataclass(frozen=True)
class Rotated:
    """The sphere, theta* = (v, 1)/sqrt 2 turned by ``rotation`` at every silo.

    Silo i has theta_i = (cos(rotation) v + sin(rotation) w_i, 1)/sqrt 2 with w_i uniform on the
    unit sphere orthogonal to v, drawn once for each replicate and silo. Actions are the sphere's,
    x = (u, 1)/sqrt 2, so that expected rewards (1 + <u, v_i>)/2 stay in [0, 1]. Every silo is as
    far from the common theta*, sqrt(2) sin(rotation / 2), and two silos stand on different sides of
    it. With ``rotation`` = 0 this is the sphere, bit for bit. Regret is against the best action of
    the silo's own theta_i.

    The instance is ours: in the papers silos differ only by which actions they see
    (`no-diversity`).

    Parameters
    ----------
    dimension : int
        d; at least 3 if ``rotation`` > 0, for v to have directions orthogonal to it.
    actions : int
        K.
    rotation : float
        Angle between each silo's v_i and v, in radians, in [0, pi].
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    intercept : float
        kappa, as of `Sphere`.

    Raises
    ------
    InputError
        For values out of range.
    """

    dimension: int = 10
    actions: int = 100
    rotation: float = 0.2
    reward: RewardDistribution = field(default_factory=RewardDistribution)
    intercept: float = 1.0
    kind = "rotated"

    def __post_init__(self) -> None:
        self._sphere()
        angle = number("rotation", self.rotation, at_least=0.0, at_most=math.pi)
        if angle and self.dimension < 3:
            raise InputError(f"rotation > 0 needs dimension >= 3, got {self.dimension}")

    def _sphere(self) -> Sphere:
        return Sphere(self.dimension, self.actions, self.reward, intercept=self.intercept)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds: linear at each silo, not in common."""
        made = self._sphere().facts(silos, horizon)
        return EnvironmentSpec(
            dimension=made.dimension,
            actions=made.actions,
            reward=made.reward,
            reward_range=made.reward_range,
            linear=self.rotation == 0.0 or silos == 1,
            linear_by_silo=True,
            features_bounded=made.features_bounded,
            intercept=made.intercept,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """The common theta* of one replicate, (d,), which is the sphere's."""
        return self._sphere().theta(seed, replicate)

    def thetas(self, seed: int, replicate: int, silos: int) -> np.ndarray:
        """theta_i of every silo, (M, d); those of the first silos do not depend on M."""
        common = self.theta(seed, replicate)
        found = np.tile(common, (silos, 1))
        if self.rotation:
            v = common[:-1] / math.sqrt(math.fsum(common[:-1] ** 2))
            for silo in range(silos):
                w = rng.normals_f64(seed, INSTANCE, replicate, silo, _DIRECTION, len(v))
                w -= math.fsum(w * v) * v
                w /= math.sqrt(math.fsum(w * w))
                turned = math.cos(self.rotation) * v + math.sin(self.rotation) * w
                found[silo, :-1] = math.sqrt(0.5) * turned
        return found

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return the bytes of a replicate: theta_i of every silo."""
        return 8 * self.dimension * silos

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        return environments.Sphere(
            seed,
            replicate,
            self.thetas(seed, replicate, silos),
            self.actions,
            0,
            False,
            self.reward.c,
            math.sqrt(0.5 / self.intercept),
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        return described(self)
