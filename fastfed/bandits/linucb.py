"""LinUCB, the policy of every silo: ridge estimate, bonus, and the action of the largest sum."""

from __future__ import annotations

import math

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, array, integer, number
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
        raise InputError("actions must hold at least one action, got shape (0, ...)")
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
        """ln det V."""
        return linalg.log_det(self.w)

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
        linalg.observe(self.w, self.theta, x, reward)


class LinUCB:
    """Linear UCB (Abbasi-Yadkori et al. 2011) for one agent, to be used in other tools.

    Parameters
    ----------
    dimension : int
        d, the length of a feature vector.
    regularizer : float, default 1
        lambda > 0.
    failure_probability : float, default 0.01
        alpha, in (0, 1).
    reward_scale : float, default 0.5
        R, the sub-Gaussian scale of the reward noise; 1/2 for rewards in [0, 1].
    radius_multiplier : float, default 1
        Factor on the confidence radius. At 1 it is the proven one, for ||theta*|| <= 1 and
        ||x|| <= 1.

    Raises
    ------
    InputError
        For a bad value, which it names.

    Examples
    --------
    >>> agent = LinUCB(dimension=2)
    >>> a = agent.select([[1.0, 0.0], [0.0, 1.0]])
    >>> agent.observe(reward=1.0)
    """

    def __init__(
        self,
        dimension: int,
        *,
        regularizer: float = 1.0,
        failure_probability: float = 0.01,
        reward_scale: float = 0.5,
        radius_multiplier: float = 1.0,
    ) -> None:
        self.dimension = integer("dimension", dimension, at_least=1)
        self.regularizer = number("regularizer", regularizer, above=0.0)
        self.failure_probability = number(
            "failure_probability", failure_probability, above=0.0, below=1.0
        )
        self.reward_scale = number("reward_scale", reward_scale, at_least=0.0)
        self.radius_multiplier = number("radius_multiplier", radius_multiplier, at_least=0.0)
        self.round = 0
        self._estimate = Estimate(self.dimension, self.regularizer)
        self._chosen: np.ndarray | None = None

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, shape (d,)."""
        return self._estimate.theta.copy()

    @property
    def confidence_radius(self) -> float:
        """beta of the next round: Abbasi-Yadkori et al. (2011), Theorem 2, trace form."""
        return linalg.radius_at(
            self.radius_multiplier,
            self.reward_scale,
            2.0 * math.log(1.0 / self.failure_probability),
            math.sqrt(self.regularizer),
            self.regularizer,
            float(self.round),
            self.dimension,
        )

    def scores(self, actions: object) -> np.ndarray:
        """Upper confidence bound of each action, shape (K,); ``actions`` has shape (K, d)."""
        checked = check_actions(actions, self.dimension)
        e = self._estimate
        return linalg.scores(checked, e.w, e.theta, self.confidence_radius, 0.0)

    def select(self, actions: object) -> int:
        """Index of the action to play, for ``actions`` (K, d); ties go to the lowest index."""
        checked = check_actions(actions, self.dimension)
        index, self._chosen = self._estimate.select(checked, self.confidence_radius)
        return index

    def observe(self, reward: float, action: object = None) -> None:
        """Learn a reward.

        Parameters
        ----------
        reward : float
            The reward.
        action : array_like, shape (d,), optional
            Features of the action played; by default those of the action last selected.

        Raises
        ------
        InputError
            If no action was selected or given.
        """
        y = number("reward", reward)
        if action is not None:
            x = array("action", action, shape=(self.dimension,))
        elif self._chosen is not None:
            x = self._chosen
        else:
            raise InputError("observe needs a select before it, or the action's features")
        self._estimate.observe(x, y)
        self._chosen = None
        self.round += 1
