"""LinUCB, the policy of every silo: ridge estimate, bonus, and the action of the largest sum.

`Estimate` is the model, `Acting` what a silo plays from synchronised sums; the agent for other
tools is `fastfed.bandits.policy.LinUCB`.
"""

from __future__ import annotations

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, array
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import Clock
from fastfed.protocols.score import Score


def check_actions(actions: object, dimension: int) -> np.ndarray:
    """Check the features of a round's actions.

    Parameters
    ----------
    actions : array_like, shape (K, d)
        Finite features, K >= 1.
    dimension : int
        d.

    Returns
    -------
    ndarray, shape (K, d)
        float32 if it was float32, else float64.

    Raises
    ------
    InputError
        For another shape, no action, or values that are not finite.
    """
    if isinstance(actions, np.ndarray) and actions.dtype == np.float32:
        checked = array("actions", actions, shape=(None, dimension), dtype=np.float32)
    else:
        checked = array("actions", actions, shape=(None, dimension))
    if not len(checked):
        raise InputError(f"actions must hold at least one action, got shape {checked.shape}")
    return checked


class Estimate:
    """V and theta_hat = V^{-1} u of ridge regression, V stored as its inverse Cholesky factor.

    No input is checked here: drivers run this code.

    Attributes
    ----------
    w : ndarray, shape (d, d)
        Lower triangular with V^{-1} = w' w.
    theta : ndarray, shape (d,)
        theta_hat.
    """

    _log_det: float | None  # None: to be taken from w

    def __init__(self, dimension: int, regularizer: float) -> None:
        self.dimension = dimension
        self.w = np.zeros((dimension, dimension))
        self.theta = np.zeros(dimension)
        self.refresh(np.zeros(dimension + dimension * (dimension + 1) // 2), regularizer)

    @classmethod
    def of_sums(
        cls, dimension: int, statistic: np.ndarray, regularizer: float
    ) -> tuple[Estimate, float]:
        """A new estimate from synchronised sums, and the shift that V needed."""
        made = cls.__new__(cls)
        made.dimension = dimension
        made.w, made.theta = np.zeros((dimension, dimension)), np.zeros(dimension)
        return made, made.refresh(statistic, regularizer)

    @property
    def log_det(self) -> float:
        """ln det V: that of the last refresh, and what each observed point has added since."""
        if self._log_det is None:
            self._log_det = linalg.log_det(self.w)
        return self._log_det

    def refresh(self, statistic: np.ndarray, regularizer: float) -> float:
        """Set V = lambda I + covariance and u = bias.

        Parameters
        ----------
        statistic : ndarray, shape (d + d (d + 1) / 2,)
            Bias, and the covariance's entries i <= j.
        regularizer : float
            lambda.

        Returns
        -------
        float
            The shift that V needed to be positive definite, >= 0.
        """
        shift = linalg.refresh(statistic, regularizer, self.w, self.theta)
        self._log_det = None
        if shift < 0.0:
            raise environments.status_error(-2)
        return shift

    def select(
        self, actions: np.ndarray, radius: float, second: float = 0.0
    ) -> tuple[int, np.ndarray]:
        """Index and x of the largest <x, theta> + radius ||x||_{V^-1} + second ||V^-1 x||."""
        return linalg.select(actions, self.w, self.theta, radius, second)

    def select_tied(
        self, actions: np.ndarray, radius: float, second: float, limit: float, tie: float
    ) -> tuple[int, np.ndarray]:
        """As `select`, but scores from ``limit`` on tie, and ``tie`` times the bonus decides."""
        return linalg.select_tied(actions, self.w, self.theta, radius, second, limit, tie)

    def select_scored(
        self, score: Score, key: int, round: int, actions: np.ndarray, radius: float, second: float
    ) -> tuple[int, np.ndarray]:
        """Index and features of the largest score by a score function, which gets both radii."""
        return linalg.scored(score, key, round, actions, self.w, self.theta, radius, second)

    def observe(self, x: np.ndarray, reward: float) -> None:
        """V <- V + x x', u <- u + x y."""
        before = self.log_det
        self._log_det = before + linalg.log(linalg.observe(self.w, self.theta, x, reward))


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
