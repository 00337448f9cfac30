"""What a silo plays from synchronised sums: its estimate, its radii, and the action they choose."""

from __future__ import annotations

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError
from fastfed.bandits.linucb import Estimate
from fastfed.protocols.plan import Plan
from fastfed.protocols.trigger import Clock


class Acting:
    """Acts on the synchronised statistics of a plan, as `Silo` and deployed silos do.

    No input is checked here.

    Attributes
    ----------
    plan : Plan
    round : int
        Rounds completed.
    release : int
        The last release that it acts on.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.round = 0
        self.release = 0
        self._second_bonus, self._inflation = 0.0, 1.0
        self._bonus = 1.0
        # By release: what the ledger held before its batch was charged, so that a release that is
        # received again is charged once.
        self._charged = {0: 0.0}
        self.trigger: Clock | None = None

    def _best(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features (d,) of the action of the largest score."""
        plan, radii = self.plan, (self._radius(), self._second_bonus)
        if plan.tie_bonus < 1.0 and self._bonus == 1.0:
            return self._estimate.select_tied(actions, *radii, plan.reward_limit, plan.tie_bonus)
        if plan.score is None:
            return self._estimate.select(actions, *radii)
        key = self._score_key()
        return self._estimate.select_scored(plan.score, key, self.round + 1, actions, *radii)

    def _score_key(self) -> int:
        """64 uniform bits for the score function of this round."""
        raise InputError("score functions need a silo that draws their keys")

    def _radius(self) -> float:
        """beta of the next round."""
        plan, entry = self.plan, self.plan.entry(self.release)
        radius, d = plan.radius, plan.dimension
        if radius.determinant:
            return self._bonus * radius.of(entry, self._inflation, self._estimate.log_det, d)
        return radius.at(entry, plan.rows(self.release, self.round + 1), d)

    def _refresh(self, statistic: np.ndarray, release: int) -> float:
        """Update V and theta_hat from synchronised sums; returns the shift that V needed.

        Nothing changes before all is computed.
        """
        plan, k = self.plan, self.plan.entry(release)
        regularizer = full = float(plan.regularizer[k])
        inflation, second = self._inflation, self._second_bonus
        if plan.radius.direct:
            floor = float(plan.radius.floor[k])
            regularizer = linalg.choose_regularizer(statistic, full, floor, plan.dimension)
            inflation = 1.0 + (full - regularizer) / floor if regularizer < full else 1.0
        estimate, shift = Estimate.of_sums(plan.dimension, statistic, regularizer)
        if plan.radius.direct:
            bound = plan.radius.tau * (regularizer + shift) + float(plan.radius.error_bound[k])
            second = plan.radius.multiplier * bound
        if not np.isfinite(estimate.theta).all():
            raise environments.status_error(-2)
        bonus, charges = self._bonus, self._charged
        if plan.bonus < 1.0:
            # What is charged is a bound on the regret that the smaller bonus may add in the batch.
            beta = plan.radius.of(k, inflation, estimate.log_det, plan.dimension)
            end = plan.end(release + 1) if release < plan.releases else plan.horizon
            added = linalg.missing_bonus(estimate.w, beta, second, plan.bonus)
            before = charges[release]
            charged = before + float(plan.rows_per_round) * (end - plan.end(release)) * added
            bonus = plan.bonus if charged <= plan.allowance[release] else 1.0
            charges = {release: before, release + 1: charged if bonus < 1.0 else before}
            second *= bonus
        if self.trigger is not None:
            self.trigger.restart(estimate.w, statistic, regularizer + shift)
        self._estimate, self._second_bonus, self._inflation = estimate, second, inflation
        self._bonus, self._charged = bonus, charges
        return shift
