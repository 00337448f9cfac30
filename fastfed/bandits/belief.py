"""What a silo keeps to itself where later rounds are its own (docs/own-rounds.md)."""

from __future__ import annotations

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed.protocols.plan import OwnRounds, Plan
from fastfed.protocols.protocol import REPLACE


class OwnMemory:
    """What a silo keeps to itself: raw sums of all its rounds, and its belief in own rounds.

    The belief is of theta at this silo: others' released sums as a prior, which deviates by what
    the silo's own rewards say, and its raw sums (docs/own-rounds.md).

    Parameters
    ----------
    own : OwnRounds
        Of the plan.
    plan : Plan
        For its sizes and protocol.

    Attributes
    ----------
    w, theta : ndarray, shapes (d, d) and (d,)
        Inverse Cholesky factor of V, in units of R^2, and the mean.
    weights : ndarray
        Of the deviations on the grid.
    """

    def __init__(self, own: OwnRounds, plan: Plan) -> None:
        d = plan.dimension
        self.own = own
        self._replaces = plan.protocol.analyzer == REPLACE
        self._sums = np.zeros(plan.statistic_size)
        self._rest = np.zeros(plan.statistic_size)
        self._sent = np.zeros(plan.statistic_size)
        self.w, self.theta = np.zeros((d, d)), np.zeros(d)
        self.weights = np.zeros(len(own.spreads))

    def select(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features of the largest <x, theta> + bonus ||x||_{V^-1}."""
        return linalg.select(actions, self.w, self.theta, self.own.bonus, 0.0)

    def observe(self, x: np.ndarray, y: float, round: int) -> None:
        """Add the (x, y) of a round; in an own one the belief learns it."""
        sums = self._sums.copy()
        linalg.accumulate(sums, x, y)
        if round > self.own.until:
            if round & (round - 1) == 0:
                # Evidence weighs the deviations again.
                self._believe(self._rest, sums)
            else:
                linalg.observe(self.w, self.theta, x, y)
        self._sums = sums

    def sends(self, message: np.ndarray) -> None:
        """Remember what the silo itself puts into the last release."""
        self._sent = message

    def begin(self, total: np.ndarray) -> None:
        """Believe the last release, less what the silo knows of its own part."""
        known = self._sent if self._replaces else self._sums
        rest = total - known
        self._believe(rest, self._sums)
        self._rest = rest

    def _believe(self, rest: np.ndarray, sums: np.ndarray) -> None:
        """Make the belief anew; nothing changes where it cannot be made."""
        w, theta = np.zeros_like(self.w), np.zeros_like(self.theta)
        weights = linalg.belief(self.own.model, rest, sums, w, theta)
        if weights is None:
            raise environments.status_error(-2)
        self.w, self.theta, self.weights = w, theta, weights
