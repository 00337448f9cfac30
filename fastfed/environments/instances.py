"""Instances that proofs of lower bounds use, and estimates of the diversity of contexts."""

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
# A reward depends on one block of theta*, so it carries no information about other blocks.


@dataclass(frozen=True)
class HardInstance:
    """Two actions per round: one is zero outside a block of two coordinates, the other is zero.

    The first action has z in one block of two coordinates and 0 elsewhere. For every (round, silo)
    the block is drawn uniformly from the d/2 blocks, and z from N(0, I_2) truncated to the unit
    disc. Every block of theta* is an independent uniform point on the circle of ``radius``, so the
    norm of theta* is radius sqrt(d/2), at most sqrt(1/2). The expected reward <z, theta*_block>
    lies in [-radius, radius], so Bernoulli rewards are refused. Clipping rewards to [0, 1] would
    hide negative rewards, so curves need ``clip = false``.
    Source: huang-2023, Appendix E.1.

    Features are float32. z is shortened by 1.2e-7 of its length, so that norms stay below 1.

    Parameters
    ----------
    dimension : int
        d, even.
    radius : float, optional
        Radius of the circles; by default 1/sqrt d, the largest value allowed.
    reward : RewardDistribution
        Gaussian or none. The default, as in the paper, is Gaussian with std 1.

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
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        largest_mean = self._radius()
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=2,
            reward=self.reward,
            reward_range=(-largest_mean, largest_mean) if self.reward.kind == "none" else None,
        )

    def _radius(self) -> float:
        """Return the radius of the circles, with its default."""
        return 1.0 / math.sqrt(self.dimension) if self.radius is None else self.radius

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return theta* of one replicate, shape (d,)."""
        blocks = instance_normals(seed, replicate, self.dimension).reshape(-1, 2)
        norms = np.sqrt(blocks[:, :1] * blocks[:, :1] + blocks[:, 1:] * blocks[:, 1:])
        return np.ravel(blocks * (self._radius() / norms))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        theta = self.theta(seed, replicate)
        return environments.HardInstance(seed, replicate, theta, self.reward.c)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


def check_signed_rewards(reward: RewardDistribution) -> None:
    """Raise InputError if rewards of this distribution cannot have negative means."""
    check_reward(reward)
    if reward.kind == "bernoulli":
        raise InputError(
            'reward.kind must be "gaussian" or "none" where expected rewards may be negative, '
            'got "bernoulli"'
        )


# ---- Estimates of diversity and margin -----------------------------------------------------------
# Learning without exploration (huang-2023) assumes that contexts are diverse (lambda_0 > 0) and
# that small gaps between the two best actions are rare (the margin condition, C_0).

#: Number of batches of rounds, from which the standard error of lambda_0 is computed.
BATCHES = 20
#: P(gap <= e)/e is computed only for e such that at least this number of rounds have gap <= e.
MIN_ROUNDS = 100
#: Number of values of e at which P(gap <= e)/e is computed.
GAP_LEVELS = 60


@dataclass(frozen=True)
class Diversity:
    """Estimates of lambda_0 and C_0 for theta* of one replicate, with standard errors.

    lambda_0 measures the diversity of contexts, C_0 how frequent small gaps between the two best
    actions are. On average lambda_0 is underestimated and C_0 overestimated; see ``diversity``.

    Attributes
    ----------
    lambda_0, lambda_0_error : float
        Least eigenvalue of E[x x'], where x are the features of the best action, and its standard
        error, in the silo with the least estimate.
    margin, margin_error : float
        C_0, the least C with P(gap <= e) <= C e for all e > 0, and its standard error, in the silo
        with the largest estimate.
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
    """Estimate the constants lambda_0 and C_0 of an environment from its contexts.

    `Diversity` defines both.

    Parameters
    ----------
    environment : Environment
        A bandit environment.
    silos : int
        Number of silos (M).
    rounds : int
        Rounds 1 to ``rounds`` of every silo are used, at least 100. The estimates treat them as
        independent draws from one distribution.
    seed, replicate : int
        Seed and number of the replicate. They determine theta*, on which lambda_0 and C_0 depend.

    Returns
    -------
    Diversity
        The estimates.

    Raises
    ------
    InputError
        If the environment has no contexts, or has fewer than ``rounds`` rounds.

    Notes
    -----
    Source: huang-2023, Assumptions 3.1 and 3.2. The best action is the action with the largest
    expected reward, the first if there are several. The gap is the difference between the expected
    rewards of the best and the second best action. So the gap is at most e if one other action is
    within e of the best. For this event the paper prints "for all" other actions, but uses "for
    one".

    lambda_0 is estimated by the least eigenvalue of the mean of x x' over all rounds. Its standard
    error is computed from the least eigenvalues of 20 batches of rounds. The least eigenvalue is
    concave, so the estimate is too low on average: by about 1/rounds if the eigenvalue is simple,
    by a few standard errors if many eigenvalues are equal.

    C_0 = sup of P(gap <= e)/e is estimated by the largest of these ratios at 60 of the observed
    gaps, with ranks from 100 to ``rounds`` in geometric steps. Taking the maximum overestimates C_0
    by about one standard error, which is the binomial standard error of the largest ratio. A peak
    that fewer than 100 rounds cause is not seen. C_0 is infinite if the two best actions are equal
    in some round, since then P(gap <= 0) > 0. It is 0 if there is a single action.
    """
    if not hasattr(environment, "facts"):
        raise InputError(
            f"environment must be an environment such as Sphere(), got {show(environment)}"
        )
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    rounds = integer("rounds", rounds, at_least=MIN_ROUNDS, at_most=2**31)
    replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)
    dimension = environment.facts(silos, rounds).dimension
    instance = environment.open(check_seed(seed), replicate, silos)
    if isinstance(instance, Adversary):
        raise InputError(f'environment "{environment.kind}" has losses but no contexts')
    eigenvalues, margins = [], []
    for silo in range(silos):
        x_best, gaps = np.empty((rounds, dimension)), np.full(rounds, math.inf)
        for t in range(rounds):
            x, mean = instance.round(silo, t + 1)
            x_best[t] = x[mean.argmax()]
            if len(mean) > 1:
                second, first = np.partition(mean, -2)[-2:]
                gaps[t] = first - second
        eigenvalues.append(least_eigenvalue(x_best))
        margins.append(margin(gaps))
    return Diversity(*min(eigenvalues), *max(margins))


def least_eigenvalue(rows: np.ndarray) -> tuple[float, float]:
    """Return the least eigenvalue of the mean of x x' over rows (n, d), and its standard error."""

    def least(part: np.ndarray) -> float:
        """Return the least eigenvalue of the mean of x x' over some of the rows."""
        # The mean of x x' is positive semidefinite: a negative eigenvalue is a rounding error.
        return max(float(np.linalg.eigvalsh(part.T @ part / len(part))[0]), 0.0)

    batches = [least(part) for part in np.array_split(rows, BATCHES)]
    return least(rows), float(np.std(batches, ddof=1)) / math.sqrt(BATCHES)


def margin(gaps: np.ndarray) -> tuple[float, float]:
    """Return an estimate of C_0 = sup of P(gap <= e)/e, and the estimate's standard error.

    A gap is the difference of the expected rewards of the two best actions in a round, and ``gaps``
    (n,) are the gaps of n >= 100 rounds. The estimate is the largest ratio over a grid of levels e.
    It is infinite, with standard error 0, if a gap is 0.
    """
    ordered = np.sort(gaps)
    n = len(ordered)
    if ordered[0] <= 0.0:
        return math.inf, 0.0
    ranks = np.unique(np.geomspace(MIN_ROUNDS, n, GAP_LEVELS).astype(np.int64))
    levels = ordered[ranks - 1]
    # side="right" counts all gaps equal to the level, also those of higher rank.
    share = np.searchsorted(ordered, levels, side="right") / n
    ratio = share / levels
    k = int(ratio.argmax())
    return float(ratio[k]), float(ratio[k] * math.sqrt((1.0 - share[k]) / (share[k] * n)))


# ---- The instance without diversity --------------------------------------------------------------
# Only the first silo sees actions in the first coordinate.


@dataclass(frozen=True)
class NoDiversity:
    """d = 2, two actions, the same in every round: (+-1, 0) in silo 0, (0, +-1) in all others.

    theta* is uniform on {-1/2, 1/2}^2 and drawn once for each replicate. At every silo one action
    has expected reward 1/2 and the other -1/2, so a wrong choice costs a regret of 1. Clipping
    rewards to [0, 1] would hide negative rewards, so curves need ``clip = false``.
    Source: huang-2023, Proposition D.1. There features are half as long and theta* is twice as
    long, with norm sqrt 2. Here ||x|| = 1 and ||theta*|| = sqrt(1/2), with the same rewards.

    Parameters
    ----------
    reward : RewardDistribution
        Gaussian or none. The default, as in the paper, is Gaussian with std 1.

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
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        return EnvironmentSpec(
            dimension=2,
            actions=2,
            reward=self.reward,
            reward_range=(-0.5, 0.5) if self.reward.kind == "none" else None,
            contexts_made=False,
        )

    def theta(self, seed: int, replicate: int) -> np.ndarray:
        """Return theta* of one replicate, shape (2,)."""
        return np.copysign(0.5, instance_normals(seed, replicate, 2))

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        # The axes of x are silo, action and coordinate.
        x = np.zeros((silos, 2, 2), np.float32)
        x[0, :, 0] = x[1:, :, 1] = 1.0, -1.0
        means = x.astype(np.float64) @ self.theta(seed, replicate)
        return environments.Pool(
            seed,
            replicate,
            x.ravel(),
            2,
            False,  # features of a query are stored action by action
            means.ravel(),
            means.max(axis=1),
            2 * np.arange(silos + 1, dtype=np.int64),
            np.arange(silos + 1, dtype=np.int64),
            SAMPLING["with-replacement"],
            None,  # no order of queries
            self.reward.c,
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)
