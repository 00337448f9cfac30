"""Linear rewards on random features: spheres (alike or turned at each silo), gap, one fixed set."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments, rng
from fastfed._random import INSTANCE, MAX_DIMENSION, instance_normals
from fastfed._validate import InputError, boolean, choice, integer, number
from fastfed.environments.base import (
    MAX_ACTIONS,
    EnvironmentSpec,
    RewardDistribution,
    check_reward,
    described,
)
from fastfed.environments.pool import SAMPLING

# ---- Fresh actions on a sphere -------------------------------------------------------------------


@dataclass(frozen=True)
class Sphere:
    """x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, u and v uniform on the (d - 1)-sphere.

    Actions are fresh for every (round, silo); the expected reward (1 + <u, v>)/2 lies in [0, 1].
    Source: zhou-chowdhury-2024, Section 6.

    Parameters
    ----------
    dimension : int
        d.
    actions : int
        K.
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    basis_actions : bool
        Fix the first d actions as the published code does: (e_j, 1)/sqrt 2, then (0, 1).
    contexts : {"per-replicate", "shared"}
        "shared" gives every replicate the same contexts, as that code does too.
    intercept : float
        kappa >= 1: the constant feature is 1/sqrt(2 kappa), and theta*'s entry sqrt(kappa/2), so
        that the rewards are the same. The paper has 1.

    Raises
    ------
    InputError
        For values out of range, for basis_actions with fewer than d actions, and for basis_actions
        with another intercept than 1.
    """

    dimension: int = 10
    actions: int = 100
    reward: RewardDistribution = field(default_factory=RewardDistribution)
    basis_actions: bool = False
    contexts: str = "per-replicate"
    intercept: float = 1.0
    kind = "sphere"

    def __post_init__(self) -> None:
        check_reward(self.reward)
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("actions", self.actions, at_least=1, at_most=MAX_ACTIONS)
        boolean("basis_actions", self.basis_actions)
        choice("contexts", self.contexts, ["per-replicate", "shared"])
        number("intercept", self.intercept, at_least=1.0, at_most=1e6)
        if self.basis_actions and self.intercept != 1.0:
            raise InputError("basis_actions are those of intercept 1")
        if self.basis_actions and self.actions < self.dimension:
            raise InputError(
                f"basis_actions needs actions >= dimension, got actions = {self.actions}, "
                f"dimension = {self.dimension}"
            )

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        bounded = self.reward.kind != "gaussian"
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if bounded else None,
            # Norms are 1 up to the rounding of float32, which only clipping removes.
            features_bounded=False,
            intercept=None if self.basis_actions else self.intercept,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        d = self.dimension
        theta = np.full(d, math.sqrt(0.5 * self.intercept))
        if d > 1:
            v = instance_normals(seed, replicate, d - 1)
            theta[:-1] = v * (math.sqrt(0.5) / math.sqrt(math.fsum(v * v)))
        return theta

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        return environments.Sphere(
            seed,
            replicate,
            self.theta(seed, replicate)[None],
            self.actions,
            self.dimension if self.basis_actions else 0,
            self.contexts == "shared",
            self.reward.c,
            math.sqrt(0.5 / self.intercept),
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        return described(self)


# ---- One best action above a gap -----------------------------------------------------------------

#: The best action's expected reward lies in [BEST, BEST + WIDTH].
BEST, WIDTH = 0.7, 0.1
#: No m is below this, which is far above the rounding of float32.
LEAST = 1e-6


@dataclass(frozen=True)
class Gap:
    """x = m theta* + sqrt(1 - m^2) b, b uniform in the unit ball orthogonal to theta*.

    theta* is uniform on the unit sphere, one for each replicate. The expected reward m of one
    action, the best, is uniform in [0.7, 0.8]; m of each of the other K - 1 is uniform in
    [0.6 - gap, 0.7 - gap]. Fresh for every (round, silo). With d = 1 there is no b.

    Source: dubey-pentland-2020, Section 4.4, with ``gap`` = 0.1 (Figure 2 varies it). The paper
    gives the two intervals only: the distributions inside them, b and the position of the best
    action, here uniform over all K, are ours. The paper has K <= d^2; any K >= 1 will do.

    Features are float32, so m is exact within 1e-6; expected rewards are those of the rounded
    features, and no feature has a norm above 1.

    Parameters
    ----------
    dimension : int
        d.
    actions : int
        K.
    gap : float
        Gap between the best action and all others, in (0, 0.6].
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.

    Raises
    ------
    InputError
        For values out of range.
    """

    dimension: int = 10
    actions: int = 100
    gap: float = 0.1
    reward: RewardDistribution = field(default_factory=RewardDistribution)
    kind = "gap"

    def __post_init__(self) -> None:
        check_reward(self.reward)
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("actions", self.actions, at_least=1, at_most=MAX_ACTIONS)
        number("gap", self.gap, above=0.0, at_most=BEST - WIDTH)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        bounded = self.reward.kind != "gaussian"
        return EnvironmentSpec(
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
        """Return the compiled environment of one replicate."""
        # At the largest gap, rounding must not make an expected reward negative.
        inferior = max(BEST - WIDTH - self.gap, LEAST)
        theta = self.theta(seed, replicate)
        reward = self.reward.c
        return environments.Gap(seed, replicate, theta, self.actions, inferior, BEST, WIDTH, reward)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        return described(self)


# ---- One fixed set of actions --------------------------------------------------------------------


@dataclass(frozen=True)
class FixedSet:
    """K actions of the ``sphere``, drawn once for each replicate and offered in every round.

    x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, u and v uniform on the (d - 1)-sphere, so that
    the expected reward (1 + <u, v>)/2 lies in [0, 1]. All silos of a replicate share the set.
    Source: chowdhury-zhou-2022, Section 5, whose code has (u, 1) and (v, 1)/2: the same rewards,
    features longer by sqrt 2.

    Parameters
    ----------
    dimension : int
        d.
    actions : int
        K.
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    basis_actions : bool
        Fix the first d actions as that code does: (e_j, 1)/sqrt 2, then (0, 1)/sqrt 2, which
        unlike the sphere's is not scaled to norm 1.

    Raises
    ------
    InputError
        For values out of range, and for basis_actions with fewer than d actions.
    """

    dimension: int = 5
    actions: int = 100
    reward: RewardDistribution = field(default_factory=RewardDistribution)
    basis_actions: bool = False
    kind = "fixed-set"

    def __post_init__(self) -> None:
        check_reward(self.reward)
        self._sphere()

    def _sphere(self) -> Sphere:
        return Sphere(self.dimension, self.actions, self.reward, self.basis_actions)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        made = self._sphere().facts(silos, horizon)
        return EnvironmentSpec(
            dimension=made.dimension,
            actions=made.actions,
            reward=made.reward,
            reward_range=made.reward_range,
            features_bounded=made.features_bounded,
            # The set is fixed for all rounds, so curves save nothing by sharing its making.
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """theta* of one replicate, (d,)."""
        return self._sphere().theta(seed, replicate)

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return the bytes of a replicate.

        Every silo has a copy of the actions and their means; where its V changes with every data
        point a curve tracks five numbers of each action.
        """
        return silos * (self.actions * (4 * self.dimension + 8 + 40 * curves) + 24)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
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
        """Return plain data that identify the environment."""
        return described(self)


# ---- Silos that differ: theta* turned by an angle at each silo -----------------------------------

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
        check_reward(self.reward)
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
