"""What a policy would have earned, estimated from the log of another one.

A log holds rounds that do not depend on each other: an action, its reward, and the probability
(propensity) with which the logging policy took it. Rounds that the evaluated policy was trained on
must not be among them. The estimates are made of raw rewards: no privacy certificate covers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._validate import InputError, array, integer, number

#: Names of the estimators, as tables print them.
IPW, SNIPW, DR = "inverse propensity", "self-normalised", "doubly robust"


@dataclass(frozen=True)
class PolicyValue:
    """An estimate of a policy's expected reward per round.

    value, stderr: in the units of the rewards.
    low, high: the normal interval at ``confidence``, for many rounds. Where few rounds are
    ``rewarded`` the normal law is far off and the interval too short.
    bounded: an interval that holds for any number of rounds, at ``confidence``; None where no bound
    of the rewards was given, or none is known for the estimator.
    rounds: n. effective_rounds: (sum w)^2 / sum w^2, with w the ratio of the two probabilities.
    rewarded: rounds with w > 0 and a reward other than 0, which is what the value rests on.
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
    """A checked log: n rounds, K actions; w is what the policy does more often than the log."""

    actions: np.ndarray
    rewards: np.ndarray
    propensities: np.ndarray
    policy: np.ndarray
    weights: np.ndarray
    confidence: float

    @classmethod
    def of(
        cls, actions: Any, rewards: Any, propensities: Any, policy: Any, confidence: Any
    ) -> _Log:
        policy = array("policy", policy, ndim=2)
        n, k = policy.shape
        if n < 2:
            raise InputError(f"policy must have a row for each of at least 2 rounds, got {n}")
        if policy.min() < 0.0 or abs(policy.sum(axis=1) - 1.0).max() > 1e-6:
            raise InputError("policy must hold probabilities: rows >= 0 that sum to 1")
        actions = _actions(actions, n, k)
        rewards = array("rewards", rewards, shape=(n,))
        propensities = array("propensities", propensities, shape=(n,))
        if propensities.min() <= 0.0 or propensities.max() > 1.0:
            odd = propensities[(propensities <= 0.0) | (propensities > 1.0)][0]
            raise InputError(f"propensities must be > 0 and <= 1, got {odd:g}")
        confidence = number("confidence", confidence, above=0.0, below=1.0)
        weights = policy[np.arange(n), actions] / propensities
        return cls(actions, rewards, propensities, policy, weights, confidence)

    def estimate(
        self,
        method: str,
        value: float,
        stderr: float,
        bounded: tuple[float, float] | None = None,
    ) -> PolicyValue:
        from scipy.special import ndtri

        half = float(ndtri(0.5 + self.confidence / 2.0)) * stderr
        w, squares = self.weights, float((self.weights**2).sum())
        return PolicyValue(
            method=method,
            value=value,
            stderr=stderr,
            low=value - half,
            high=value + half,
            confidence=self.confidence,
            bounded=bounded,
            rounds=len(w),
            effective_rounds=float(w.sum()) ** 2 / squares if squares else 0.0,
            rewarded=int(((w > 0.0) & (self.rewards != 0.0)).sum()),
        )


def inverse_propensity(
    actions: Any,
    rewards: Any,
    propensities: Any,
    policy: Any,
    *,
    confidence: float = 0.95,
    largest_reward: float | None = None,
    largest_weight: float | None = None,
) -> PolicyValue:
    """The mean of w r: unbiased wherever the log may take what the policy does.

    Args:
        actions: (n,), of 0 .. K - 1, as logged.
        rewards: (n,), of these actions.
        propensities: (n,), in (0, 1]: the logging policy's probability of the logged action.
        policy: (n, K): the evaluated policy's probability of each action, rows that sum to 1.
        confidence: of the intervals, two-sided.
        largest_reward: where rewards are known to lie in [0, largest_reward], ``bounded`` is given.
        largest_weight: what w can be at most, known of both policies, for ``bounded``. By default
            max(policy) / min(propensities): no propensity may then be below the least of the log.

    Source: Horvitz and Thompson 1952. ``bounded``: the mean of n independent numbers in [0, 1],
    of mean p, exceeds (falls below) q with probability at most exp(-n kl(q, p)) (Hoeffding 1963,
    Theorem 1).
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    terms = log.weights * log.rewards
    bounded = None
    if largest_reward is not None:
        most = number("largest_reward", largest_reward, above=0.0)
        if log.rewards.min() < 0.0 or log.rewards.max() > most:
            raise InputError(
                f"rewards must lie in [0, largest_reward = {most:g}], "
                f"got {log.rewards.min():g} to {log.rewards.max():g}"
            )
        seen, weight = float(log.weights.max()), float(log.policy.max() / log.propensities.min())
        if largest_weight is not None:
            weight = number("largest_weight", largest_weight, above=0.0)
            if seen > weight * (1.0 + 1e-9):
                raise InputError(
                    f"largest_weight must be at least {seen:g}, met here, got {weight:g}"
                )
        scale = most * weight
        low, high = _chernoff(float(terms.mean()) / scale, len(terms), log.confidence)
        # No policy earns more than the largest reward.
        bounded = (min(low * scale, most), min(high * scale, most))
    return log.estimate(IPW, *_mean(terms), bounded)


def self_normalised(
    actions: Any, rewards: Any, propensities: Any, policy: Any, *, confidence: float = 0.95
) -> PolicyValue:
    """sum w r / sum w: slightly biased, never outside the range of the rewards.

    Arguments as of ``inverse_propensity``; InputError where the policy never does what was logged.
    Source: Swaminathan and Joachims 2015. The standard error is the delta method's.
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    total = float(log.weights.sum())
    if total == 0.0:
        raise InputError("policy must take some logged action with probability > 0, it takes none")
    value = float(log.weights @ log.rewards) / total
    stderr = math.sqrt(float((log.weights**2 * (log.rewards - value) ** 2).sum())) / total
    return log.estimate(SNIPW, value, stderr)


def doubly_robust(
    actions: Any,
    rewards: Any,
    propensities: Any,
    policy: Any,
    predicted: Any,
    *,
    confidence: float = 0.95,
) -> PolicyValue:
    """The mean of <policy, predicted> + w (r - predicted of the logged action).

    ``predicted`` (n, K) is a model of the reward of every action, made without the round's own
    reward (``cross_fitted_ridge``, or any model of yours); it may be wrong, and the better it is
    the less the estimate varies. Other arguments as of ``inverse_propensity``.
    Source: Dudik, Langford and Li 2011; cross-fitting: Chernozhukov et al. 2018.
    """
    log = _Log.of(actions, rewards, propensities, policy, confidence)
    model = array("predicted", predicted, shape=log.policy.shape)
    logged = model[np.arange(len(model)), log.actions]
    terms = (log.policy * model).sum(axis=1) + log.weights * (log.rewards - logged)
    return log.estimate(DR, *_mean(terms))


def cross_fitted_ridge(
    contexts: Any,
    actions: Any,
    rewards: Any,
    *,
    folds: int = 5,
    ridge: float = 1.0,
    seed: int = 0,
) -> np.ndarray:
    """Reward of every action (n, K), by ridge regression on the rounds of the other folds.

    contexts (n, K, d): features of every action in every round (add a constant yourself); actions,
    rewards (n,). Rounds are dealt to folds by chance, keyed by ``seed``; the model of a fold is
    (X'X + ridge I)^-1 X'y over the logged actions of all other folds.
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
    for held in range(folds):
        inside, outside = fold == held, fold != held
        gram = x[outside].T @ x[outside] + ridge * np.eye(d)
        theta = np.linalg.solve(gram, x[outside].T @ rewards[outside])
        predicted[inside] = contexts[inside] @ theta
    return predicted


def _actions(actions: Any, n: int, k: int) -> np.ndarray:
    """int64 (n,), of 0 .. k - 1."""
    given = array("actions", actions, shape=(n,))
    result = given.astype(np.int64)
    if (result != given).any() or result.min() < 0 or result.max() >= k:
        odd = given[(result != given) | (result < 0) | (result >= k)][0]
        raise InputError(f"actions must be integers from 0 to {k - 1}, got {odd:g}")
    return result


def _mean(terms: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(terms.mean()), float(terms.std(ddof=1)) / math.sqrt(len(terms))


def _chernoff(mean: float, n: int, confidence: float) -> tuple[float, float]:
    """Every p in [0, 1] with n kl(mean, p) <= ln(2 / (1 - confidence)): a closed interval."""
    from scipy.optimize import brentq
    from scipy.special import rel_entr

    limit = math.log(2.0 / (1.0 - confidence)) / n

    def excess(p: float) -> float:
        return float(rel_entr(mean, p) + rel_entr(1.0 - mean, 1.0 - p)) - limit

    def edge(end: float) -> float:
        """The solution between the mean and an end, or the end where all between are inside."""
        return end if excess(end) <= 0.0 else float(brentq(excess, mean, end, xtol=1e-15))

    # At the ends themselves kl is infinite, which no root finder takes.
    low = 0.0 if mean <= 1e-300 else edge(1e-300)
    high = 1.0 if mean >= 1.0 - 1e-15 else edge(1.0 - 1e-15)
    return low, high
