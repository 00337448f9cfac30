"""LinUCB, the policy of every silo: choose the action with the largest estimated reward plus bonus.

`Estimate` is the ridge regression model. `Acting` chooses the actions of a silo from synchronised
sums. The standalone agent for other tools is `fastfed.bandits.policy.LinUCB`.
"""

from __future__ import annotations

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, array
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import Clock
from fastfed.protocols.score import Score

#: The largest absolute value of a feature. Squares of larger values may overflow a float64.
MAX_FEATURE = 1e150


def check_actions(actions: object, dimension: int) -> np.ndarray:
    """Check and convert the features of the actions of one round.

    Parameters
    ----------
    actions : array_like, shape (K, d)
        Finite features, K >= 1.
    dimension : int
        d.

    Returns
    -------
    ndarray, shape (K, d)
        float32 if ``actions`` is a float32 array, else float64.

    Raises
    ------
    InputError
        If the shape is wrong, there is no action, or a value is not finite or too large.
    """
    if isinstance(actions, np.ndarray) and actions.dtype == np.float32:
        checked = array("actions", actions, shape=(None, dimension), dtype=np.float32)
    else:
        checked = array("actions", actions, shape=(None, dimension))
    if not len(checked):
        raise InputError(f"actions must hold at least one action, got shape {checked.shape}")
    if checked.dtype == np.float64 and (largest := float(np.abs(checked).max())) > MAX_FEATURE:
        raise InputError(
            f"actions must be at most {MAX_FEATURE:g} in absolute value, got {largest:g}: scale "
            "all features down, or their scores overflow"
        )
    return checked


class Estimate:
    """The ridge regression estimate theta_hat = V^{-1} u, where V is stored as a factor of V^{-1}.

    Inputs are not checked, because drivers call this code in every round.

    Parameters
    ----------
    dimension : int
        d.
    regularizer : float
        lambda of V = lambda I, before any data.
    arms : bool, default False
        True if all features are unit vectors, so that V is diagonal.

    Attributes
    ----------
    w : ndarray, shape (d, d)
        Lower triangular with V^{-1} = w' w.
    theta : ndarray, shape (d,)
        theta_hat.
    """

    _log_det: float | None  # None if it must be recomputed from w

    def __init__(self, dimension: int, regularizer: float, arms: bool = False) -> None:
        self.dimension, self.arms = dimension, arms
        self.w = np.zeros((dimension, dimension))
        self.theta = np.zeros(dimension)
        self.refresh(np.zeros(dimension + dimension * (dimension + 1) // 2), regularizer)

    @classmethod
    def of_sums(
        cls, dimension: int, statistic: np.ndarray, regularizer: float, arms: bool = False
    ) -> tuple[Estimate, float]:
        """Return a new estimate computed from synchronised sums, and the shift of `refresh`.

        ``statistic`` and ``regularizer`` are the arguments of `refresh`. The shift is the multiple
        of the identity that `refresh` added to make V positive definite.
        """
        estimate = cls.__new__(cls)
        estimate.dimension, estimate.arms = dimension, arms
        estimate.w, estimate.theta = np.zeros((dimension, dimension)), np.zeros(dimension)
        return estimate, estimate.refresh(statistic, regularizer)

    @property
    def log_det(self) -> float:
        """ln det V, updated incrementally since the last refresh.

        If ``arms`` is true, V is diagonal, and the value is the logarithm of the largest entry.
        """
        if self._log_det is None:
            self._log_det = linalg.log_volume(self.w, self.arms)
        return self._log_det

    def refresh(self, statistic: np.ndarray, regularizer: float) -> float:
        """Recompute the estimate with V = lambda I + sum x x' and u = sum x y.

        Parameters
        ----------
        statistic : ndarray, shape (d + d (d + 1) / 2,)
            The sums of x y, followed by the entries i <= j of the sum of x x'. Both may have noise.
        regularizer : float
            lambda.

        Returns
        -------
        float
            The multiple >= 0 of the identity that was added to make V positive definite.
        """
        shift = linalg.refresh(statistic, regularizer, self.w, self.theta)
        self._log_det = None
        if shift < 0.0:
            raise environments.status_error(-2)
        return shift

    def select(
        self, actions: np.ndarray, radius: float, second: float = 0.0
    ) -> tuple[int, np.ndarray]:
        """Return index and features (d,) of the action with the largest score.

        The score of an action x is <x, theta> + ``radius`` ||x||_{V^-1} + ``second`` ||V^-1 x||.
        ``actions`` has shape (K, d).
        """
        return linalg.select(actions, self.w, self.theta, radius, second)

    def select_sieved(
        self,
        actions: np.ndarray,
        radius: float,
        second: float,
        limit: float,
        slack: float,
        ranking: float,
    ) -> tuple[int, np.ndarray]:
        """Return index and features (d,) of the best action among those that pass a sieve.

        Let b(x) = ``radius`` ||x||_{V^-1} + ``second`` ||V^-1 x|| be the bonus in the score of
        `select`, and ``limit`` the largest possible mean reward. The sieve passes an action x if
        <x, theta> + (2 ``slack`` - 1) b(x) is at least the smaller of ``limit`` and the largest
        score. Of the actions that pass, the one with the largest <x, theta> + ``ranking`` b(x) is
        chosen (docs/radius.md).
        """
        w, theta = self.w, self.theta
        return linalg.select_sieved(actions, w, theta, radius, second, limit, slack, ranking)

    def select_scored(
        self,
        score: Score,
        key: int,
        round: int,
        actions: np.ndarray,
        radius: float,
        second: float,
        sieve: tuple[float, float, float] | None = None,
    ) -> tuple[int, np.ndarray]:
        """Return index and features (d,) of the action with the largest value of a score function.

        The score function receives ``radius`` and ``second``, the factors of the two bonuses in
        `select`, and ``key`` as a source of random bits. ``sieve`` holds (limit, slack, ranking) of
        `select_sieved`. With a sieve only the actions that pass it are scored, and both factors are
        multiplied by ``ranking``.
        """
        w, theta = self.w, self.theta
        return linalg.scored(score, key, round, actions, w, theta, radius, second, sieve)

    def inverse_norm(self) -> float:
        """Return an upper bound on the largest eigenvalue of V^-1."""
        return linalg.inverse_norm(self.w)

    def observe(self, x: np.ndarray, reward: float) -> None:
        """Update V <- V + x x' and u <- u + x y, with y = ``reward``."""
        log_det_before = self.log_det
        if self.arms:
            linalg.arms_observe(self.w, self.theta, x, reward)
            self._log_det = max(log_det_before, linalg.log_volume(self.w, True))
        else:
            ratio = linalg.observe(self.w, self.theta, x, reward)
            self._log_det = log_det_before + linalg.log(ratio)


class FixedEstimate(Estimate):
    """An estimate for one fixed set of actions, which is faster than `Estimate`.

    The compiled `FixedModel` updates the scores of these actions in each round. It scores no other
    actions, and does not update `w` and `theta`.

    Parameters
    ----------
    estimate : Estimate
        The estimate before any data point.
    rows : ndarray of float32, shape (K, d), in Fortran order
        The actions of all rounds.
    bound : float
        Features of larger norm are clipped to it when they are learned.
    """

    def __init__(self, estimate: Estimate, rows: np.ndarray, bound: float) -> None:
        self.dimension, self.arms = estimate.dimension, estimate.arms
        self.w, self.theta = estimate.w, estimate.theta
        self._log_det, self._rows = estimate.log_det, rows
        self._model = linalg.FixedModel(rows, self.w, self.theta, bound)

    def select(
        self, actions: np.ndarray, radius: float, second: float = 0.0
    ) -> tuple[int, np.ndarray]:
        """Return index and features (d,) of the action with the largest score.

        See `Estimate.select`. The ``actions`` are those of the constructor, so they are not read.
        """
        return self._with_features(self._model.select(radius, second))

    def select_sieved(
        self,
        actions: np.ndarray,
        radius: float,
        second: float,
        limit: float,
        slack: float,
        ranking: float,
    ) -> tuple[int, np.ndarray]:
        """Return index and features (d,) of the best action among those that pass a sieve.

        See `Estimate.select_sieved`. The ``actions`` are those of the constructor, so they are not
        read.
        """
        return self._with_features(self._model.select(radius, second, (limit, slack, ranking)))

    def _with_features(self, index: int) -> tuple[int, np.ndarray]:
        """Return the tuple (``index``, features (d,) of the action with this index)."""
        return index, self._rows[index].astype(np.float64)

    def observe(self, x: np.ndarray, reward: float) -> None:
        """Learn the reward of the last selected action, whose features the model knows.

        ``x`` is not read.
        """
        log_det_before, ratio = self.log_det, self._model.observe(reward)
        if self.arms:
            self._log_det = max(log_det_before, self._model.log_entry())
        else:
            self._log_det = log_det_before + linalg.log(ratio)

    def inverse_norm(self) -> float:
        """Return an upper bound on the largest eigenvalue of V^-1, or inf if no bound is known."""
        return self._model.inverse_norm()


class Acting:
    """Base class of silos: chooses actions from the synchronised statistics of a plan.

    Inputs are not checked.

    Attributes
    ----------
    plan : Plan
        The numbers and settings that the silo executes.
    round : int
        Number of completed rounds.
    release : int
        Number of the release from which the current estimate is computed.
    """

    _estimate: Estimate

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.round = 0
        self.release = 0
        # Factor of ||V^-1 x|| in scores, and the inflation f of the direct radius (`Radius.of`).
        self._second_bonus, self._inflation = 0.0, 1.0
        # Slack of the sieve (docs/radius.md), and a bound on the largest eigenvalue of V^-1. Only a
        # silo that never synchronises uses this bound, to compute the slack of each round.
        self._slack, self._inverse = 1.0, 0.0
        self.trigger: Clock | None = None
        # The actions of all rounds, if they never change.
        self._fixed_rows: np.ndarray | None = None

    def offer_always(self, rows: np.ndarray) -> None:
        """Set the actions (K, d) that are offered in all rounds, before the first round."""
        self._fixed_rows = np.asfortranarray(rows, np.float32)
        self._estimate = self._for_fixed_set(self._estimate)

    def _for_fixed_set(self, estimate: Estimate) -> Estimate:
        """Return a `FixedEstimate` that starts from ``estimate`` if the actions never change.

        If the actions may change, return ``estimate``.
        """
        if self._fixed_rows is None:
            return estimate
        clip = self.plan.clip
        return FixedEstimate(estimate, self._fixed_rows, clip.feature if clip else np.inf)

    def _best(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """Return the index and the features (d,) of the action with the largest score."""
        plan, radii = self.plan, (self._radius(), self._second_bonus)
        sieve = None
        if plan.ranking < 1.0:
            if plan.slack_by_round:
                self._slack = self._slack_of_round(radii[0])
            sieve = plan.reward_limit, self._slack, plan.ranking
        if plan.score is not None:
            key = self._score_key()
            return self._estimate.select_scored(
                plan.score, key, self.round + 1, actions, *radii, sieve
            )
        if sieve is not None:
            return self._estimate.select_sieved(actions, *radii, *sieve)
        return self._estimate.select(actions, *radii)

    def _slack_of_round(self, beta: float) -> float:
        """Return the slack of the sieve in the next round, for a silo that never synchronises.

        A larger slack lets more actions pass (`Estimate.select_sieved`). ``beta`` is the confidence
        radius of the next round.
        """
        # gamma is the factor of ||V^-1 x|| in scores, and V has one row for each past round.
        plan, gamma, rows = self.plan, self._second_bonus, self.round
        radius = plan.radius
        if rows < 15:
            self._inverse = 1.0 / radius.anchor  # V is at least anchor I.
        elif rows & (rows + 1) == 0 and rows.bit_length() % 2 == 0:
            # V only grows, so an earlier bound on V^-1 stays valid. It is computed again before
            # rounds 16, 64, 256, ...
            self._inverse = self._estimate.inverse_norm()
            if self._inverse == np.inf:
                self._inverse = 1.0 / radius.anchor
        width = linalg.row_width(
            radius.multiplier,
            radius.scale,
            radius.base,
            radius.anchor,
            gamma,
            float(rows),
            plan.coordinates,
        )
        return plan.sieve_growth * linalg.slack(width, beta, gamma, 1.0, self._inverse)

    def _score_key(self) -> int:
        """Return 64 uniform random bits for the score function in this round.

        This base class has no source of randomness and raises InputError. `Silo` has one.
        """
        raise InputError("score functions need a silo that draws random bits for them")

    def _radius(self) -> float:
        """Return beta, the confidence radius of the next round."""
        plan, entry = self.plan, self.plan.entry(self.release)
        radius = plan.radius
        if radius.determinant:
            log_det = self._estimate.log_det
            return radius.of(entry, self._inflation, log_det, plan.coordinates)
        return radius.at(entry, plan.rows(self.release, self.round + 1), plan.dimension)

    def _refresh(self, statistic: np.ndarray, release: int) -> float:
        """Compute the estimate from synchronised sums (s,), and use it from the next round on.

        ``release`` is the number of the release that the sums come from. Return the multiple of the
        identity that was added to make V positive definite, or 0 if V is positive definite without
        it. If an exception is raised, the silo is unchanged.
        """
        plan, k = self.plan, self.plan.entry(release)
        regularizer = full_regularizer = float(plan.regularizer[k])
        inflation, gamma = self._inflation, self._second_bonus
        if plan.radius.direct:
            floor = float(plan.radius.floor[k])
            regularizer = linalg.choose_regularizer(
                statistic, full_regularizer, floor, plan.dimension
            )
        estimate, shift = Estimate.of_sums(plan.dimension, statistic, regularizer, plan.arms)
        # `inverse` is an upper bound on the eigenvalues of V^-1. It is needed for the slack of the
        # sieve. If the direct radius lowers lambda, it is also needed for the inflation factor.
        needs_inverse = plan.widths or regularizer < full_regularizer
        inverse = linalg.inverse_norm(estimate.w) if needs_inverse else 0.0
        if plan.radius.direct:
            inflation = linalg.inflation(full_regularizer - regularizer, floor, inverse)
            # gamma is the factor of ||V^-1 x|| in scores, see `Radius`.
            unscaled = plan.radius.tau * (regularizer + shift) + float(plan.radius.error_bound[k])
            gamma = plan.radius.multiplier * unscaled
        if not np.isfinite(estimate.theta).all():
            raise environments.status_error(-2)
        slack = self._slack
        if plan.widths:
            beta = plan.radius.of(k, inflation, estimate.log_det, plan.coordinates)
            slack = linalg.slack(plan.widths[k], beta, gamma, inflation, inverse)
            # The proof that actions may pass with a slack above 1 assumes that V has no shift.
            # With a shift the slack is 1, the smallest possible slack, which needs no such proof.
            slack = plan.sieve_growth * slack if shift == 0.0 else 1.0
        if self.trigger is not None:
            self.trigger.restart(estimate.w, statistic, regularizer + shift)
        self._estimate = self._for_fixed_set(estimate)
        self._second_bonus, self._inflation = gamma, inflation
        self._slack = slack
        return shift
