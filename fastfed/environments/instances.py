"""Constructed instances: hard for lower bounds, and with or without diversity among silos."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import check_seed, instance_normals
from fastfed._validate import InputError, integer, number, show
from fastfed.environments.base import (
    MAX_DIMENSION,
    Adversary,
    Environment,
    EnvironmentSpec,
    RewardDistribution,
    described,
)
from fastfed.environments.pool import SAMPLING

# ---- The lower bounds' instance: whatever is learnt in one block tells nothing of the others -----


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
    reward: RewardDistribution = field(default_factory=lambda: RewardDistribution("gaussian", 1.0))
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

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
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
        theta = self.theta(seed, replicate)
        return environments.HardInstance(seed, replicate, theta, self.reward.c)

    def describe(self) -> dict[str, Any]:
        return described(self)


def signed(reward: RewardDistribution) -> RewardDistribution:
    """The law if it serves expected rewards below zero."""
    if reward.kind == "bernoulli":
        raise InputError(
            'reward.kind must be "gaussian" or "none" where expected rewards may be negative, '
            'got "bernoulli"'
        )
    return reward


# What learning without exploration asks of an environment: diverse contexts, and a margin.


#: Batches of rounds that the standard error of lambda_0 comes from.
BATCHES = 20
#: Rounds that must lie at or below a gap before the ratio of the margin is taken there.
LEAST = 100
#: Gaps at which the margin is looked for, from that one to the largest.
LEVELS = 60


@dataclass(frozen=True)
class Diversity:
    """Estimates of lambda_0 and C_0 for one replicate's theta*, each with a standard error.

    ``lambda_0`` is the least eigenvalue of E[x x'], x the best action's features, in the silo
    where it is least; ``margin`` is C_0, the least C with P(gap <= e) <= C e for all e > 0, in
    the silo where it is largest. Both lean to the safe side: see ``diversity``.
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
    """lambda_0 and C_0 of an environment, from its contexts of rounds 1, ..., ``rounds``.

    Source: huang-2023, Assumptions 3.1 and 3.2. The best action is the one of largest expected
    reward, the first if there are several; the gap is to the second best (the paper prints "for
    all" other actions and uses "for one"). One ``seed`` and ``replicate`` fix theta*, which
    both constants depend on. Rounds count as draws of one law: where a silo's context is fixed,
    all are the same. Raises InputError where the environment cannot serve so many rounds.

    lambda_0 is the least eigenvalue of the mean over all rounds. Its standard error is that of
    20 batches of rounds, each with an eigenvalue of its own. By concavity the estimate lies below
    on average: by 1/rounds where the eigenvalue is simple, by some standard errors where many
    are equal.

    C_0 = sup of P(gap <= e)/e is the largest such ratio at 60 of the observed gaps: those of
    ranks 100 to ``rounds``, in geometric steps. Choosing the largest overestimates by about its
    standard error, the binomial one of that ratio; a peak held by fewer than 100 rounds is not
    seen. Infinite as soon as two best actions are equal in one round, as then P(gap <= 0) > 0;
    0 with a single action.
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
    """Of the mean of x x' over rows (n, d), and its standard error from batches."""

    def of(part: np.ndarray) -> float:
        # No rounding makes the mean of x x' indefinite.
        return max(float(np.linalg.eigvalsh(part.T @ part / len(part))[0]), 0.0)

    batches = [of(part) for part in np.array_split(rows, BATCHES)]
    return of(rows), float(np.std(batches, ddof=1)) / math.sqrt(BATCHES)


def margin(gaps: np.ndarray) -> tuple[float, float]:
    """sup of P(gap <= e)/e over gaps (n,), n >= 100, at the ranks looked at; its error."""
    ordered = np.sort(gaps)
    n = len(ordered)
    if ordered[0] <= 0.0:
        return math.inf, 0.0
    ranks = np.unique(np.geomspace(LEAST, n, LEVELS).astype(np.int64))
    at = ordered[ranks - 1]
    # Of equal gaps all count, not only those up to the rank.
    share = np.searchsorted(ordered, at, side="right") / n
    ratio = share / at
    k = int(ratio.argmax())
    return float(ratio[k]), float(ratio[k] * math.sqrt((1.0 - share[k]) / (share[k] * n)))


# ---- The instance without diversity: only the first silo ever sees the first coordinate ----------


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

    reward: RewardDistribution = field(default_factory=lambda: RewardDistribution("gaussian", 1.0))
    kind = "no-diversity"

    def __post_init__(self) -> None:
        signed(self.reward)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
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
