"""Constructed instances: for lower bounds, without diversity, and estimates of diversity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import MAX_DIMENSION, check_seed, instance_normals
from fastfed._validate import InputError, integer, number, show
from fastfed.environments.base import (
    Adversary,
    Environment,
    EnvironmentSpec,
    RewardDistribution,
    check_reward,
    described,
)
from fastfed.environments.pool import SAMPLING

# ---- The instance of the lower bounds ------------------------------------------------------------
# Rewards of one block say nothing about the others.


@dataclass(frozen=True)
class HardInstance:
    """Two actions: the second is 0, the first has z in one block of two coordinates, else 0.

    The block is uniform over d/2, and z ~ N(0, I_2) truncated to the unit disc, fresh for every
    (round, silo). theta* has in every block an independent uniform point of the circle of
    ``radius``, so its norm is radius sqrt(d/2), at most sqrt(1/2). The expected reward
    <z, theta*_block> lies in [-radius, radius], so Bernoulli rewards are refused. Clipping rewards
    to [0, 1] would hide the negative ones: curves need ``clip = false``.
    Source: huang-2023, Appendix E.1.

    Features are float32 with norms below 1: z is shortened by 1.2e-7 of its length.

    Parameters
    ----------
    dimension : int
        d, even.
    radius : float, optional
        Radius of the circles, at most 1/sqrt d, the default.
    reward : RewardDistribution
        Gaussian or none; the paper's, the default, is Gaussian of std 1.

    Raises
    ------
    InputError
        For values out of range, and for Bernoulli rewards.
    """

    dimension: int = 8
    radius: float | None = None
    reward: RewardDistribution = field(default_factory=lambda: RewardDistribution("gaussian", 1.0))
    kind = "hard-instance"

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, at_least=2, at_most=MAX_DIMENSION)
        if self.dimension % 2:
            raise InputError(f"dimension must be even, got {self.dimension}")
        if self.radius is not None:
            number("radius", self.radius, above=0.0, at_most=1.0 / math.sqrt(self.dimension))
        check_signed_rewards(self.reward)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        largest = self._radius()
        return EnvironmentSpec(
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
        """Return the compiled environment of one replicate."""
        theta = self.theta(seed, replicate)
        return environments.HardInstance(seed, replicate, theta, self.reward.c)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        return described(self)


def check_signed_rewards(reward: RewardDistribution) -> None:
    """Raise InputError for a distribution that cannot have negative means."""
    check_reward(reward)
    if reward.kind == "bernoulli":
        raise InputError(
            'reward.kind must be "gaussian" or "none" where expected rewards may be negative, '
            'got "bernoulli"'
        )


# ---- Estimates of diversity and margin -----------------------------------------------------------
# Learning without exploration (huang-2023) needs diverse contexts, and a margin.

#: Batches of rounds for the standard error of lambda_0.
BATCHES = 20
#: Rounds that must have at most a gap before the ratio of the margin is computed there.
LEAST = 100
#: Number of gaps at which the ratio of the margin is computed.
LEVELS = 60


@dataclass(frozen=True)
class Diversity:
    """Estimates of lambda_0 and C_0 for one replicate's theta*, each with a standard error.

    Both err on the safe side: see ``diversity``.

    Attributes
    ----------
    lambda_0, lambda_0_error : float
        Least eigenvalue of E[x x'], with x the best action's features, in the silo where it is
        least.
    margin, margin_error : float
        C_0, the least C with P(gap <= e) <= C e for all e > 0, in the silo where it is largest.
    """

    lambda_0: float
    lambda_0_error: float
    margin: float
    margin_error: float


def diversity(
    environment: Environment,
    *,
    silos: int = 1,
    rounds: int = 10_000,
    seed: int = 0,
    replicate: int = 0,
) -> Diversity:
    """Estimate lambda_0 and C_0 of an environment from its contexts.

    Parameters
    ----------
    environment : Environment
        A bandit environment.
    silos : int
        Number of silos (M).
    rounds : int
        Rounds 1 to ``rounds`` of every silo are used, at least 100. They count as draws of one
        distribution: where a silo's context is fixed, all are the same.
    seed, replicate : int
        These fix theta*, on which both constants depend.

    Returns
    -------
    Diversity
        The estimates.

    Raises
    ------
    InputError
        If the environment has no contexts, or cannot serve so many rounds.

    Notes
    -----
    Source: huang-2023, Assumptions 3.1 and 3.2. The best action is the one of largest expected
    reward, the first if there are several; the gap is to the second best (the paper prints "for
    all" other actions and uses "for one").

    lambda_0 is the least eigenvalue of the mean over all rounds. Its standard error is that of
    20 batches of rounds, each with an eigenvalue of its own. By concavity the estimate is low on
    average: by 1/rounds where the eigenvalue is simple, by some standard errors where many are
    equal.

    C_0 = sup of P(gap <= e)/e is the largest such ratio at 60 of the observed gaps: those of
    ranks 100 to ``rounds``, in geometric steps. Choosing the largest overestimates by about its
    standard error, the binomial one of that ratio; a peak held by fewer than 100 rounds is not
    seen. C_0 is infinite as soon as two best actions are equal in one round, as then
    P(gap <= 0) > 0, and 0 with a single action.
    """
    if not hasattr(environment, "facts"):
        raise InputError(
            f"environment must be an environment such as Sphere(), got {show(environment)}"
        )
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    rounds = integer("rounds", rounds, at_least=LEAST, at_most=2**31)
    replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)
    dimension = environment.facts(silos, rounds).dimension
    opened = environment.open(check_seed(seed), replicate, silos)
    if isinstance(opened, Adversary):
        raise InputError(f'environment "{environment.kind}" has losses, and no contexts')
    eigenvalues, margins = [], []
    for silo in range(silos):
        best, gaps = np.empty((rounds, dimension)), np.full(rounds, math.inf)
        for t in range(rounds):
            x, mean = opened.round(silo, t + 1)
            best[t] = x[mean.argmax()]
            if len(mean) > 1:
                second, first = np.partition(mean, -2)[-2:]
                gaps[t] = first - second
        eigenvalues.append(least_eigenvalue(best))
        margins.append(margin(gaps))
    return Diversity(*min(eigenvalues), *max(margins))


def least_eigenvalue(rows: np.ndarray) -> tuple[float, float]:
    """Return the least eigenvalue of the mean of x x' over rows (n, d), and its standard error."""

    def least(part: np.ndarray) -> float:
        # The mean of x x' is positive semidefinite: a negative value is rounding.
        return max(float(np.linalg.eigvalsh(part.T @ part / len(part))[0]), 0.0)

    batches = [least(part) for part in np.array_split(rows, BATCHES)]
    return least(rows), float(np.std(batches, ddof=1)) / math.sqrt(BATCHES)


def margin(gaps: np.ndarray) -> tuple[float, float]:
    """Return the largest P(gap <= e)/e over gaps (n,), n >= 100, and its standard error."""
    ordered = np.sort(gaps)
    n = len(ordered)
    if ordered[0] <= 0.0:
        return math.inf, 0.0
    ranks = np.unique(np.geomspace(LEAST, n, LEVELS).astype(np.int64))
    at = ordered[ranks - 1]
    # All equal gaps count, not only those up to the rank.
    share = np.searchsorted(ordered, at, side="right") / n
    ratio = share / at
    k = int(ratio.argmax())
    return float(ratio[k]), float(ratio[k] * math.sqrt((1.0 - share[k]) / (share[k] * n)))


# ---- The instance without diversity --------------------------------------------------------------
# Only the first silo ever sees the first coordinate.


@dataclass(frozen=True)
class NoDiversity:
    """d = 2, two actions, the same in every round: (+-1, 0) in silo 0, (0, +-1) in all others.

    theta* is uniform on {-1/2, 1/2}^2, one for each replicate, so that one action of every silo
    has expected reward 1/2 and the other -1/2: a wrong one costs exactly 1. Clipping rewards to
    [0, 1] would hide the negative ones: curves need ``clip = false``.
    Source: huang-2023, Proposition D.1, whose features are half as long and whose theta*, twice
    as long, has norm sqrt 2: the same rewards, here with ||x|| = 1 and ||theta*|| = sqrt(1/2).

    Parameters
    ----------
    reward : RewardDistribution
        Gaussian or none; the paper's, the default, is Gaussian of std 1.

    Raises
    ------
    InputError
        For Bernoulli rewards.
    """

    reward: RewardDistribution = field(default_factory=lambda: RewardDistribution("gaussian", 1.0))
    kind = "no-diversity"

    def __post_init__(self) -> None:
        check_signed_rewards(self.reward)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        return EnvironmentSpec(
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
        """Return the compiled environment of one replicate."""
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
        """Return plain data that identify the environment."""
        return described(self)
