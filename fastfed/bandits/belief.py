"""What a silo keeps to itself where some rounds are its own (docs/own-rounds.md)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed.bandits.linucb import Estimate
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import REPLACE
from fastfed.protocols.schedule import OwnRounds


class Memory(Protocol):
    """Interface of what a silo keeps: raw data of all its rounds, which own rounds choose by."""

    @property
    def theta(self) -> np.ndarray:
        """theta_hat of own rounds, (d,)."""
        ...

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the action of an own round; the radii are the public ones."""
        ...

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> Memory:
        """The memory after the (x, y) of a round, shared or own."""
        ...

    def sends(self, message: np.ndarray) -> None:
        """Remember what the silo itself puts into a release."""
        ...

    def released(self, total: np.ndarray, release: int) -> Memory:
        """The memory after a release."""
        ...


def make_memory(plan: Plan) -> Memory | None:
    """What a silo of this plan keeps to itself; None where every round is shared."""
    if plan.own is None:
        return None
    return OwnBelief(plan.own, plan) if plan.own.bound is None else OwnBound(plan.own, plan)


class OwnBelief:
    """Raw sums of all of a silo's rounds, and its belief in own rounds: rule "gls".

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
        self._releases = plan.releases
        self._release = 0
        #: Raw sums of all rounds, and of shared ones where others come between them.
        self._sums = np.zeros(plan.statistic_size)
        self._shared = np.zeros(plan.statistic_size if own.mixed else 0)
        self._rest = np.zeros(plan.statistic_size)
        self._sent = np.zeros(plan.statistic_size)
        self.w, self.theta = np.zeros((d, d)), np.zeros(d)
        self.weights = np.zeros(len(own.spreads))
        if own.mixed:
            self._believe()

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the largest <x, theta> + bonus ||x||_{V^-1}."""
        return linalg.select(actions, self.w, self.theta, self.own.bonus, 0.0)

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBelief:
        """The memory after the (x, y) of a round, which the belief has learned where it exists."""
        made = self._copy()
        made._sums = self._sums.copy()
        linalg.accumulate(made._sums, x, y)
        if self.own.mixed and not own:
            made._shared = self._shared.copy()
            linalg.accumulate(made._shared, x, y)
        if not (own or self.own.mixed):
            return made
        if round & (round - 1) == 0:
            # Evidence weighs the deviations again.
            made._believe()
        else:
            made.w, made.theta = self.w.copy(), self.theta.copy()
            linalg.observe(made.w, made.theta, x, y)
        return made

    def sends(self, message: np.ndarray) -> None:
        """Remember what the silo itself puts into a release."""
        self._sent = message

    def released(self, total: np.ndarray, release: int) -> OwnBelief:
        """The memory after a release: one that own rounds follow is believed anew, less what the
        silo knows of its own part."""
        if release < self._releases and not self.own.mixed:
            return self
        made = self._copy()
        raw = self._shared if self.own.mixed else self._sums
        made._rest = total - (self._sent if self._replaces else raw)
        made._release = release
        made._believe()
        return made

    def _copy(self) -> OwnBelief:
        """Another memory of the same arrays, of which none is written to."""
        made = object.__new__(OwnBelief)
        made.__dict__.update(self.__dict__)
        return made

    def _believe(self) -> None:
        """Make the belief anew; nothing changes where it cannot be made."""
        w, theta = np.zeros_like(self.w), np.zeros_like(self.theta)
        model = self.own.model(self._release)
        weights = linalg.belief(model, self._rest, self._sums, w, theta)
        if weights is None:
            raise environments.status_error(-2)
        self.w, self.theta, self.weights = w, theta, weights


class OwnBound:
    """LinUCB of all of a silo's rounds, beside the public bound: rule "min-of-bounds".

    V = I + G and V^-1 u of raw sums. An own round's action is that of the largest min of two upper
    bounds, the public one and this: both hold with high probability, and so does the lesser
    (docs/own-rounds.md).

    Parameters
    ----------
    own : OwnRounds
        Of the plan.
    plan : Plan
        For its sizes.

    Attributes
    ----------
    w, theta : ndarray, shapes (d, d) and (d,)
        Inverse Cholesky factor of V, and V^-1 u.
    """

    def __init__(self, own: OwnRounds, plan: Plan) -> None:
        assert own.bound is not None
        self.own, self._bound = own, own.bound
        self.w, self.theta = np.eye(plan.dimension), np.zeros(plan.dimension)

    @property
    def radius(self) -> float:
        """R sqrt(2 ln(M / alpha) + ln det V) + S, times the multiplier."""
        multiplier, scale, base, offset = self._bound
        log_det, d = linalg.log_det(self.w), len(self.theta)
        return linalg.determinant_radius(multiplier, scale, base, offset, 1.0, 1.0, log_det, d)

    def select(
        self, actions: np.ndarray, public: Estimate, beta: float, gamma: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the action whose lesser bound is the largest."""
        return linalg.select_least(
            actions, public.w, public.theta, beta, gamma, self.w, self.theta, self.radius
        )

    def after(self, x: np.ndarray, y: float, round: int, own: bool) -> OwnBound:
        """The memory after the (x, y) of a round of either kind."""
        made = object.__new__(OwnBound)
        made.__dict__.update(self.__dict__)
        made.w, made.theta = self.w.copy(), self.theta.copy()
        linalg.observe(made.w, made.theta, x, y)
        return made

    def sends(self, message: np.ndarray) -> None:
        """Nothing: the public bound is that of the whole release."""

    def released(self, total: np.ndarray, release: int) -> OwnBound:
        """The same: the public estimate is the silo's own affair."""
        return self
