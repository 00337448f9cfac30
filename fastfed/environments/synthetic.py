"""Bandit environments with random features and linear rewards.

`Sphere` draws fresh actions on a sphere, `Gap` separates the best action from all others,
`FixedSet` offers the same actions in every round, and `Rotated` gives every silo a different theta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import driver, environments, rng
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
    """x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, u and v uniform unit vectors in R^(d - 1).

    x are the features of an action. Actions are drawn again for every (round, silo), and theta*
    once for each replicate. The expected reward <x, theta*> = (1 + <u, v>)/2 lies in [0, 1].
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
        Fix the first d actions as in the published code: (e_j, 1)/sqrt 2 for j < d, then (0, 1).
    contexts : {"per-replicate", "shared"}
        "shared" gives every replicate the same contexts, as in the published code.
    intercept : float
        kappa >= 1: the constant feature is 1/sqrt(2 kappa) and the last entry of theta* is
        sqrt(kappa/2), so expected rewards do not depend on kappa. The paper has kappa = 1.

    Raises
    ------
    InputError
        For values out of range, for basis_actions with fewer than d actions, and for basis_actions
        with an intercept other than 1.
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
            raise InputError("basis_actions needs intercept = 1")
        if self.basis_actions and self.actions < self.dimension:
            raise InputError(
                f"basis_actions needs actions >= dimension, got actions = {self.actions}, "
                f"dimension = {self.dimension}"
            )

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        bounded = self.reward.kind != "gaussian"
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if bounded else None,
            # Norms are 1 up to rounding to float32, so they can exceed 1 unless they are clipped.
            features_bounded=False,
            intercept=None if self.basis_actions else self.intercept,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return theta* of one replicate, shape (d,)."""
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
            math.sqrt(0.5 / self.intercept),  # the constant feature
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


# ---- One best action above a gap -----------------------------------------------------------------

#: The expected reward of the best action lies in [BEST_MEAN, BEST_MEAN + MEAN_WIDTH].
BEST_MEAN, MEAN_WIDTH = 0.7, 0.1
#: Least expected reward of any action; it is far above rounding errors of float32.
MIN_MEAN = 1e-6


@dataclass(frozen=True)
class Gap:
    """x = m theta* + sqrt(1 - m^2) b, b uniform in the unit ball orthogonal to theta*.

    x are the features of an action, and m is its expected reward <x, theta*>. theta* is uniform on
    the unit sphere and drawn once for each replicate. For the best action, m is uniform in
    [0.7, 0.8]. For the other K - 1 actions, m is uniform in [0.6 - gap, 0.7 - gap]. Actions are
    drawn again for every (round, silo). With d = 1 there is no b.

    Source: dubey-pentland-2020, Section 4.4, with ``gap`` = 0.1 (Figure 2 varies it). The paper
    gives only the two intervals. We chose the distributions inside them, the distribution of b and
    the position of the best action, which is uniform over all K. The paper has K <= d^2; here any
    K >= 1 is allowed.

    Features are rounded to float32, which changes m by at most 1e-6. Expected rewards are computed
    from the rounded features, and no feature vector has a norm above 1.

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
        number("gap", self.gap, above=0.0, at_most=BEST_MEAN - MEAN_WIDTH)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        bounded = self.reward.kind != "gaussian"
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if bounded else None,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return theta* of one replicate, shape (d,)."""
        v = instance_normals(seed, replicate, self.dimension)
        return v / math.sqrt(math.fsum(v * v))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        # Without MIN_MEAN, rounding could make an expected reward negative at the largest gap.
        least_other_mean = max(BEST_MEAN - MEAN_WIDTH - self.gap, MIN_MEAN)
        theta = self.theta(seed, replicate)
        reward = self.reward.c
        return environments.Gap(
            seed, replicate, theta, self.actions, least_other_mean, BEST_MEAN, MEAN_WIDTH, reward
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


# ---- One fixed set of actions --------------------------------------------------------------------


@dataclass(frozen=True)
class FixedSet:
    """K actions of the ``sphere``, drawn once for each replicate and offered in every round.

    Features are x = (u, 1)/sqrt 2 and theta* = (v, 1)/sqrt 2, with u and v uniform unit vectors in
    R^(d - 1). So the expected reward (1 + <u, v>)/2 lies in [0, 1]. All silos of a replicate share
    the set.
    Source: chowdhury-zhou-2022, Section 5. Its code has x = (u, 1) and theta* = (v, 1)/2, which
    gives the same rewards with features that are longer by a factor sqrt 2.

    Parameters
    ----------
    dimension : int
        d.
    actions : int
        K.
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    basis_actions : bool
        Fix the first d actions as in the published code: (e_j, 1)/sqrt 2 for j < d, then
        (0, 1)/sqrt 2. The last of them has norm 1/sqrt 2; in `Sphere` it has norm 1.

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
        """Return the sphere from which the fixed set is drawn."""
        return Sphere(self.dimension, self.actions, self.reward, self.basis_actions)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        sphere_spec = self._sphere().facts(silos, horizon)
        return EnvironmentSpec(
            dimension=sphere_spec.dimension,
            actions=sphere_spec.actions,
            reward=sphere_spec.reward,
            reward_range=sphere_spec.reward_range,
            features_bounded=sphere_spec.features_bounded,
            # The actions are drawn once per replicate, so curves save no time by sharing them.
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return theta* of one replicate, shape (d,)."""
        return self._sphere().theta(seed, replicate)

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return an upper bound on the bytes of a replicate.

        Every silo has a copy of the actions (float32) and of their means (float64). A curve whose
        design matrix V changes in every round also stores a model of all actions in every silo
        (src/ff_fixed.h). This model is counted for all curves.
        """
        model_size = 8 * driver.fixed_size(self.actions, self.dimension)
        return silos * (self.actions * (4 * self.dimension + 8) + 24 + curves * model_size)

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        # Rounds are numbered from 1, so the draws of round 0 are used nowhere else.
        rows, means = self._sphere().open(seed, replicate, silos).round(0, 0)
        if self.basis_actions:
            last = self.dimension - 1
            # Here this action is (0, 1)/sqrt 2, but (0, 1) in `Sphere`.
            rows[last, last] = np.float32(math.sqrt(0.5))
            means[last] = float(rows[last, last]) * self.theta(seed, replicate)[last]
        flat = np.ascontiguousarray(rows.T, dtype=np.float32).ravel()
        return environments.Pool(
            seed,
            replicate,
            np.tile(flat, silos),
            self.dimension,
            True,  # features of a query are stored feature by feature
            np.tile(means, silos),
            np.full(silos, means.max()),
            self.actions * np.arange(silos + 1, dtype=np.int64),
            np.arange(silos + 1, dtype=np.int64),
            SAMPLING["with-replacement"],
            None,  # no order of queries
            self.reward.c,
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


# ---- Silos that differ: theta* rotated by an angle at each silo ----------------------------------

#: Index of the draws of w_i in the random stream of instances; theta* has index 0.
_DIRECTION = 1


@dataclass(frozen=True)
class Rotated:
    """The sphere, with theta* = (v, 1)/sqrt 2 rotated by an angle ``rotation`` at every silo.

    Silo i has theta_i = (v_i, 1)/sqrt 2 with v_i = cos(rotation) v + sin(rotation) w_i, and w_i
    uniform on the unit sphere orthogonal to v, drawn once for each replicate and silo. Actions
    x = (u, 1)/sqrt 2 are drawn as in `Sphere`, so expected rewards (1 + <u, v_i>)/2 stay in [0, 1].
    The distance of every theta_i from theta* is sqrt(2) sin(rotation / 2), in independent
    directions. With ``rotation`` = 0 this environment equals the sphere, bit for bit. Regret at
    silo i compares with the best action under theta_i.

    This instance comes from no paper. In the papers, silos differ only in which actions they see
    (`no-diversity`).

    Parameters
    ----------
    dimension : int
        d; at least 3 if ``rotation`` > 0, since w_i must be orthogonal to v.
    actions : int
        K.
    rotation : float
        Angle between v_i and v at every silo, in radians, in [0, pi].
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    intercept : float
        kappa, as in `Sphere`.

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
        """Return the sphere whose theta* is rotated at each silo."""
        return Sphere(self.dimension, self.actions, self.reward, intercept=self.intercept)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds.

        Rewards are linear at each silo i, with a parameter theta_i of this silo.
        """
        sphere_spec = self._sphere().facts(silos, horizon)
        return EnvironmentSpec(
            dimension=sphere_spec.dimension,
            actions=sphere_spec.actions,
            reward=sphere_spec.reward,
            reward_range=sphere_spec.reward_range,
            linear=self.rotation == 0.0 or silos == 1,
            linear_by_silo=True,
            features_bounded=sphere_spec.features_bounded,
            intercept=sphere_spec.intercept,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return the common theta* of one replicate, shape (d,), as `Sphere` draws it."""
        return self._sphere().theta(seed, replicate)

    def thetas(self, seed: int, replicate: int, silos: int) -> np.ndarray:
        """Return theta_i of every silo, shape (M, d). theta_i does not depend on M."""
        common_theta = self.theta(seed, replicate)
        thetas = np.tile(common_theta, (silos, 1))
        if self.rotation:
            v = common_theta[:-1] / math.sqrt(math.fsum(common_theta[:-1] ** 2))
            for silo in range(silos):
                w = rng.normals_f64(seed, INSTANCE, replicate, silo, _DIRECTION, len(v))
                w -= math.fsum(w * v) * v
                w /= math.sqrt(math.fsum(w * w))
                v_rotated = math.cos(self.rotation) * v + math.sin(self.rotation) * w
                thetas[silo, :-1] = math.sqrt(0.5) * v_rotated
        return thetas

    def memory(self, silos: int, horizon: int, curves: int) -> int:
        """Return the bytes of a replicate, which stores theta_i of every silo."""
        return 8 * self.dimension * silos

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        return environments.Sphere(
            seed,
            replicate,
            self.thetas(seed, replicate, silos),
            self.actions,
            0,  # no basis actions
            False,  # contexts differ between replicates
            self.reward.c,
            math.sqrt(0.5 / self.intercept),  # the constant feature
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)
