"""What a deployed silo acts on, and what it keeps of its decisions.

It acts on the last broadcast of its plan, and of a plan that it continues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from fastfed._kernels import environments, linalg
from fastfed.bandits.linucb import Acting, Estimate
from fastfed.protocols.plan import Plan


class Played(NamedTuple):
    """An estimate with its radii, and the regularised sums (s,) that it was made of."""

    sums: np.ndarray
    estimate: Estimate
    radius: float
    second: float


class Model(Acting):
    """Acts on the last broadcast; with a start also on the last one of an earlier plan.

    Parameters
    ----------
    plan : Plan
    start : Played, optional
        What the earlier plan was played by at its end.

    Notes
    -----
    V and u of both plans add up. Let u - V theta* = S + e in each, with ||S||_{V^-1} <= radius and
    ||e|| <= second (docs/radius.md). S' V^-1 S is jointly convex and homogeneous of degree 1, so
    for the sum of both the squares of the radii add up, and so do the second radii; the
    probabilities that a radius is too small add up, too. Before the first release the start alone
    is played.
    """

    def __init__(self, plan: Plan, start: Played | None = None) -> None:
        super().__init__(plan)
        self.start = start
        self._played = self._added(np.zeros(plan.statistic_size), 0)

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Act on the sums of a release from now on."""
        self._played = self._added(values, release)
        self.release = release
        # Plans are lazy, so a radius depends on the release alone.
        self.round = self.plan.end(release)

    def _added(self, values: np.ndarray, release: int) -> Played:
        """What is played from the sums of a release on."""
        shift = self._refresh(values, release)
        own = Played(
            self._regularised(values, release, shift),
            self._estimate,
            self._radius_at(release),
            self._second_bonus,
        )
        if self.start is None or not release:
            return self.start or own
        sums = self.start.sums + own.sums
        estimate, _ = Estimate.of_sums(self.plan.dimension, sums, 0.0)
        if not np.isfinite(estimate.theta).all():
            raise environments.status_error(-2)
        radius = math.hypot(self.start.radius, own.radius)
        return Played(sums, estimate, radius, self.start.second + own.second)

    def _regularised(self, values: np.ndarray, release: int, shift: float) -> np.ndarray:
        """The sums with what `_refresh` adds to the diagonal."""
        plan, k = self.plan, self.plan.entry(release)
        added = float(plan.regularizer[k])
        if plan.radius.direct:
            floor = float(plan.radius.floor[k])
            added = linalg.choose_regularizer(values, added, floor, plan.dimension)
        sums, d = np.array(values), plan.dimension
        sums[d + diagonal(d)] += added + shift
        return sums

    def _radius_at(self, release: int) -> float:
        """beta after a release."""
        before = self.release, self.round
        self.release, self.round = release, self.plan.end(release)
        try:
            return self._radius()
        finally:
            self.release, self.round = before

    def select(self, features: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features of the action to play, of (K, d)."""
        plan, (_, estimate, radius, second) = self.plan, self._played
        if plan.tie_bonus < 1.0 and self._bonus == 1.0:
            return estimate.select_tied(features, radius, second, plan.reward_limit, plan.tie_bonus)
        return estimate.select(features, radius, second)

    @property
    def played(self) -> Played:
        """What is played now."""
        return self._played

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, (d,)."""
        return self._played.estimate.theta.copy()

    @property
    def gram(self) -> np.ndarray:
        """V, (d, d), with its regularizer and shift, to rounding."""
        root = np.linalg.inv(self._played.estimate.w)
        made: np.ndarray = root @ root.T
        return made


def diagonal(dimension: int) -> np.ndarray:
    """Places of the diagonal in a packed lower triangle."""
    return np.cumsum(np.arange(1, dimension + 1)) - 1


# ---- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """An action for one person, durable before the application hears of it.

    Parameters
    ----------
    id : str
        To be named with the reward.
    action : int
        Index of the row to play.
    propensity : float
        The chance that this action had.
    model : int
        The release that chose it.
    learns : bool
        True if its reward will enter a report.
    name : str
        The action's, of a plan with columns of records; ``action`` is then its index there.
    """

    id: str
    action: int
    propensity: float
    model: int
    learns: bool
    name: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a decision. offer: digest of the rows offered; x: the features played."""

    action: int
    propensity: float
    model: int
    learns: bool
    time: float
    x: bytes
    offer: bytes
    subject: bytes


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """How a decision ended: its reward and the leaf it entered, 0 for none."""

    leaf: int
    reward: float | None
    time: float
    why: str = ""
