"""Off-policy evaluation: estimate a policy's expected reward from the log of a different policy.

A log holds independent rounds: an action, its reward, and the probability (propensity) with which
the logging policy took it. It must not hold rounds that the evaluated policy was trained on. The
estimates are computed from raw rewards: no privacy certificate covers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fastfed._roots import brentq
from fastfed._validate import InputError, array, integer, number, show

__all__ = [
    "PolicyValue",
    "cross_fitted_ridge",
    "doubly_robust",
    "inverse_propensity",
    "self_normalised",
]

#: Largest difference from 1 of a sum of rounded probabilities.
_LARGEST_ROUNDING = 1e-3
#: Names of the estimators, as tables print them.
IPW, SNIPW, DR = "inverse propensity", "self-normalised", "doubly robust"


@dataclass(frozen=True)
class PolicyValue:
    """An estimate of a policy's expected reward per round.

    Attributes
    ----------
    method : str
        Name of the estimator.
    value, stderr : float
        Estimate and standard error, in the units of the rewards.
    low, high : float
        Normal confidence interval at ``confidence``, for many rounds. If few rounds are
        ``rewarded``, the normal approximation is poor and the interval is too short. NaN if none
        is rewarded: then only ``bounded`` is an interval.
    confidence : float
        Two-sided confidence level of the intervals.
    bounded : (float, float) or None
        Confidence interval that is valid for any number of rounds. None if no bound on rewards was
        given, or if the estimator has no such interval.
    rounds : int
        n, the number of logged rounds.
    effective_rounds : float
        (sum w)^2 / sum w^2, with w the importance weights.
    rewarded : int
        Number of rounds with w > 0 and nonzero reward, which determine the estimate.
    """

    method: str
    value: float
    stderr: float
    low: float
    high: float
    confidence: float
    bounded: tuple[float, float] | None
    rounds: int
    effective_rounds: float
    rewarded: int


@dataclass(frozen=True)
class _Log:
    """A checked log: n rounds, K actions, and the importance weights policy / propensity."""

    actions: np.ndarray
    rewards: np.ndarray
    propensities: np.ndarray
    policy: np.ndarray
    weights: np.ndarray
    confidence: float

    @classmethod
    def of(
        cls,
        actions: ArrayLike,
        rewards: ArrayLike,
        propensities: ArrayLike,
        policy: ArrayLike,
        confidence: float,
    ) -> _Log:
        """Return the checked log with its importance weights; see `inverse_propensity`."""
        policy = array("policy", policy)
        if policy.ndim != 2:
            raise InputError(
                "policy must have shape (n, K), the probability of each action in each round, got "
                f"shape {policy.shape}: chosen actions are numpy.eye(K)[actions]"
            )
        n, k = policy.shape
        if n < 2:
            raise InputError(f"policy must have a row for each of at least 2 rounds, got {n}")
        if k < 1:
            raise InputError(f"policy must have a column for each action, got shape ({n}, 0)")
        sums = policy.sum(axis=1)
        # A probability that is written with four decimals may be off by half of the last decimal.
        tolerance = min(5e-5 * k, _LARGEST_ROUNDING) + 1e-9
        if policy.min() < 0.0 or abs(sums - 1.0).max() > tolerance:
            invalid = policy.min() if policy.min() < 0.0 else sums[abs(sums - 1.0).argmax()]
            what = "one of" if policy.min() < 0.0 else "a sum of"
            raise InputError(
                f"policy must hold probabilities: rows >= 0 that sum to 1, got {what} {invalid:g}"
            )
        rounded = abs(sums - 1.0) > 1e-6
        if rounded.any():
            policy = policy.copy()
            policy[rounded] /= sums[rounded, None]
        actions = _actions(actions, n, k)
        rewards = array("rewards", rewards, shape=(n,))
        propensities = array("propensities", propensities, shape=(n,))
        if propensities.min() <= 0.0 or propensities.max() > 1.0:
            invalid = propensities[(propensities <= 0.0) | (propensities > 1.0)][0]
            raise InputError(f"propensities must be > 0 and <= 1, got {invalid:g}")
        confidence = number("confidence", confidence, above=0.0, below=1.0)
        weights = policy[np.arange(n), actions] / propensities
        return cls(actions, rewards, propensities, policy, weights, confidence)

    def check_overlap(self) -> None:
        """Raise InputError if the policy never takes a logged action: no estimate is possible."""
        if not self.weights.any():
            raise InputError(
                "policy must take some logged action with probability > 0, it takes none"
            )

    def estimate(
        self, method: str, value: float, stderr: float, bounded: tuple[float, float] | None = None
    ) -> PolicyValue:
        """Return a `PolicyValue`: the estimate ``value``, its normal interval and counts.

        ``bounded`` is an interval that also holds for few rounds, if the method has one.
        """
        from scipy.special import ndtri

        if not (math.isfinite(value) and math.isfinite(stderr)):
            raise InputError(
                "rewards must be smaller: the estimate or its standard error overflows a float64"
            )
        w, squares = self.weights, float((self.weights**2).sum())
        rewarded = int(((w > 0.0) & (self.rewards != 0.0)).sum())
        half_width = float(ndtri(0.5 + self.confidence / 2.0)) * stderr if rewarded else math.nan
        return PolicyValue(
            method=method,
            value=value,
            stderr=stderr,
            low=value - half_width,
            high=value + half_width,
            confidence=self.confidence,
            bounded=bounded,
            rounds=len(w),
            effective_rounds=float(w.sum()) ** 2 / squares if squares else 0.0,
            rewarded=rewarded,
        )


def inverse_propensity(
    actions: ArrayLike,
    rewards: ArrayLike,
    propensities: ArrayLike,
    policy: ArrayLike,
    *,
    confidence: float = 0.95,
    largest_reward: float | None = None,
    largest_weight: float | None = None,
) -> PolicyValue:
    """Estimate by inverse propensity weighting: the mean of w r, with w = policy / propensity.

    r is the reward of a round, and w its weight. The estimate is unbiased if the logging
    policy can take every action that the evaluated policy takes.

    Parameters
    ----------
    actions : array_like of int, shape (n,)
        Logged actions, 0 to K - 1.
    rewards : array_like, shape (n,)
        Rewards of the logged actions.
    propensities : array_like, shape (n,)
        The logging policy's probability of the logged action, in (0, 1].
    policy : array_like, shape (n, K)
        The evaluated policy's probability of each action; rows sum to 1. Probabilities may be
        rounded to four decimals. A row whose sum then differs from 1 by more than 1e-6 is divided
        by its sum.
    confidence : float
        Two-sided confidence level of the intervals.
    largest_reward : float, optional
        If given, rewards lie in [0, largest_reward] and the result has the interval ``bounded``.
    largest_weight : float, optional
        Upper bound on w for the pair of policies, used for ``bounded``. Default: max(policy) /
        min(propensities), which assumes that no propensity is below the least in the log.

    Returns
    -------
    PolicyValue
        The estimate.

    Raises
    ------
    InputError
        If shapes do not agree, a value is out of range, or the policy never takes a logged action.

    Notes
    -----
    Source: Horvitz and Thompson 1952. ``bounded``: the mean of n independent numbers in [0, 1] with
    expectation p exceeds q > p (or falls below q < p) with probability at most exp(-n kl(q, p))
    (Hoeffding 1963, Theorem 1).
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    log.check_overlap()
    with np.errstate(over="ignore"):
        terms = log.weights * log.rewards
    bounded = None
    if largest_weight is not None and largest_reward is None:
        raise InputError(
            "largest_weight needs largest_reward: bounded follows from both, got "
            f"largest_weight = {show(largest_weight)} alone"
        )
    if largest_reward is not None:
        reward_limit = number("largest_reward", largest_reward, above=0.0)
        if log.rewards.min() < 0.0 or log.rewards.max() > reward_limit:
            raise InputError(
                f"rewards must lie in [0, largest_reward = {reward_limit:g}], "
                f"got {log.rewards.min():g} to {log.rewards.max():g}"
            )
        seen_weight, weight = (
            float(log.weights.max()),
            float(log.policy.max() / log.propensities.min()),
        )
        if largest_weight is not None:
            weight = number("largest_weight", largest_weight, above=0.0)
            if seen_weight > weight * (1.0 + 1e-9):
                raise InputError(
                    f"largest_weight must be at least {seen_weight:g}, as in the log, "
                    f"got {weight:g}"
                )
        scale = reward_limit * weight
        low, high = _chernoff(float(terms.mean()) / scale, len(terms), log.confidence)
        # No policy has an expected reward above the largest reward.
        bounded = (min(low * scale, reward_limit), min(high * scale, reward_limit))
    return log.estimate(IPW, *_mean(terms), bounded)


def self_normalised(
    actions: ArrayLike,
    rewards: ArrayLike,
    propensities: ArrayLike,
    policy: ArrayLike,
    *,
    confidence: float = 0.95,
) -> PolicyValue:
    """Estimate by self-normalised weighting: sum w r / sum w, with w = policy / propensity.

    r is the reward of a round, and w its weight. The estimate is slightly biased and always
    within the range of the rewards.

    Parameters
    ----------
    actions, rewards, propensities, policy, confidence
        See ``inverse_propensity``.

    Returns
    -------
    PolicyValue
        The estimate, with the standard error of the delta method.

    Raises
    ------
    InputError
        If input is invalid, or the policy never takes a logged action.

    Notes
    -----
    Source: Swaminathan and Joachims 2015.
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    log.check_overlap()
    total = float(log.weights.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(log.weights @ log.rewards) / total
        stderr = math.sqrt(float((log.weights**2 * (log.rewards - value) ** 2).sum())) / total
    return log.estimate(SNIPW, value, stderr)


def doubly_robust(
    actions: ArrayLike,
    rewards: ArrayLike,
    propensities: ArrayLike,
    policy: ArrayLike,
    predicted: ArrayLike,
    *,
    confidence: float = 0.95,
) -> PolicyValue:
    """Estimate by doubly robust weighting.

    The estimate is the mean of <policy, predicted> + w (r - predicted reward of the logged action).

    Parameters
    ----------
    actions, rewards, propensities, policy, confidence
        See ``inverse_propensity``.
    predicted : array_like, shape (n, K)
        Predicted reward of every action, from a model fitted without the reward of the same round,
        such as ``cross_fitted_ridge``. The model may be wrong; a better model reduces variance.

    Returns
    -------
    PolicyValue
        The estimate.

    Raises
    ------
    InputError
        If shapes do not agree, a value is out of range, or the policy never takes a logged action.

    Notes
    -----
    Source: Dudik, Langford and Li 2011; cross-fitting: Chernozhukov et al. 2018.
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    log.check_overlap()
    model = array("predicted", predicted, shape=log.policy.shape)
    logged = model[np.arange(len(model)), log.actions]
    with np.errstate(over="ignore", invalid="ignore"):
        terms = (log.policy * model).sum(axis=1) + log.weights * (log.rewards - logged)
    return log.estimate(DR, *_mean(terms))


def cross_fitted_ridge(
    contexts: ArrayLike,
    actions: ArrayLike,
    rewards: ArrayLike,
    *,
    folds: int = 5,
    ridge: float = 1.0,
    seed: int = 0,
) -> np.ndarray:
    """Predict the reward of every action in every round by cross-fitted ridge regression.

    Rounds are split into folds. The rounds of a fold are predicted by (X'X + ridge I)^-1 X'y, where
    X holds the features of the logged actions, and y the rewards, of the rounds in all other folds.

    Parameters
    ----------
    contexts : array_like, shape (n, K, d)
        Features of every action in every round; add a constant column if you want an intercept.
    actions, rewards : array_like, shape (n,)
        Logged actions, 0 to K - 1, and their rewards.
    folds : int
        Number of folds, 2 to n.
    ridge : float
        Regularizer, > 0.
    seed : int
        Seed of the random assignment of rounds to folds.

    Returns
    -------
    ndarray, shape (n, K)
        Predicted rewards, for ``doubly_robust``.

    Raises
    ------
    InputError
        If shapes do not agree or a value is out of range.
    """
    contexts = array("contexts", contexts, ndim=3)
    n, k, d = contexts.shape
    folds = integer("folds", folds, at_least=2, at_most=n)
    ridge = number("ridge", ridge, above=0.0)
    seed = integer("seed", seed, at_least=0)
    actions, rewards = _actions(actions, n, k), array("rewards", rewards, shape=(n,))
    x = contexts[np.arange(n), actions]
    fold = np.random.default_rng(seed).permutation(n) % folds
    predicted = np.empty((n, k))
    for held_out in range(folds):
        in_fold, not_in_fold = fold == held_out, fold != held_out
        with np.errstate(over="ignore", invalid="ignore"):
            gram = x[not_in_fold].T @ x[not_in_fold] + ridge * np.eye(d)
            bias = x[not_in_fold].T @ rewards[not_in_fold]
        if not (np.isfinite(gram).all() and np.isfinite(bias).all()):
            raise InputError(
                "contexts and rewards must be smaller: the sums of the regression overflow a "
                "float64"
            )
        theta = np.linalg.solve(gram, bias)
        predicted[in_fold] = contexts[in_fold] @ theta
    return predicted


def _actions(actions: ArrayLike, n: int, k: int) -> np.ndarray:
    """Return actions as int64 (n,), after checking that each is in 0 .. k - 1."""
    float_actions = array("actions", actions, shape=(n,))
    result = float_actions.astype(np.int64)
    if (result != float_actions).any() or result.min() < 0 or result.max() >= k:
        bad_value = float_actions[(result != float_actions) | (result < 0) | (result >= k)][0]
        raise InputError(f"actions must be integers from 0 to {k - 1}, got {bad_value:g}")
    return result


def _mean(terms: np.ndarray) -> tuple[float, float]:
    """Return the mean of terms (n,) and its standard error, infinite or NaN if they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(terms.mean()), float(terms.std(ddof=1)) / math.sqrt(len(terms))


def _chernoff(mean: float, n: int, confidence: float) -> tuple[float, float]:
    """Return (low, high), a confidence interval of an expectation p by Chernoff's bound.

    ``mean`` is the mean of ``n`` independent numbers in [0, 1] with expectation p. The interval
    holds all p with n kl(mean, p) <= ln(2 / (1 - confidence)), where kl is the relative entropy of
    two Bernoulli distributions.
    """
    from scipy.special import rel_entr

    limit = math.log(2.0 / (1.0 - confidence)) / n

    def excess(p: float) -> float:
        """Return kl(mean, p) minus the largest kl of the interval."""
        return float(rel_entr(mean, p) + rel_entr(1.0 - mean, 1.0 - p)) - limit

    def edge(end: float) -> float:
        """Return p between the mean and ``end`` with excess 0, or ``end`` if there is none."""
        return end if excess(end) <= 0.0 else float(brentq(excess, mean, end, xtol=1e-15))

    # At 0 and 1 kl may be infinite, which root finding does not accept.
    low = 0.0 if mean <= 1e-300 else edge(1e-300)
    high = 1.0 if mean >= 1.0 - 1e-15 else edge(1.0 - 1e-15)
    return low, high
