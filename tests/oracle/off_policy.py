"""Off-policy estimators, one round at a time, from their papers alone.

Inverse propensity: Horvitz and Thompson (1952); self-normalised: Swaminathan and Joachims (2015),
equation (6); doubly robust: Dudik, Langford and Li (2011), equation (1), for randomised policies.
"""

from __future__ import annotations

import math

import numpy as np


def inverse_propensity(actions, rewards, propensities, policy):
    """Return (value, standard error)."""
    return _mean(
        [policy[t][a] / propensities[t] * rewards[t] for t, a in enumerate(actions)],
    )


def self_normalised(actions, rewards, propensities, policy):
    """Return (value, standard error): the ratio of two means, and the error of its
    linearisation."""
    weights = [policy[t][a] / propensities[t] for t, a in enumerate(actions)]
    top = sum(w * r for w, r in zip(weights, rewards, strict=True))
    value = top / sum(weights)
    n, mean = len(weights), sum(weights) / len(weights)
    influence = [w * (r - value) / mean for w, r in zip(weights, rewards, strict=True)]
    return value, math.sqrt(sum(i * i for i in influence) / n / n)


def doubly_robust(actions, rewards, propensities, policy, predicted):
    """Return (value, standard error)."""
    terms = []
    for t, a in enumerate(actions):
        term = sum(policy[t][b] * predicted[t][b] for b in range(len(policy[t])))
        terms.append(term + policy[t][a] / propensities[t] * (rewards[t] - predicted[t][a]))
    return _mean(terms)


def ridge_prediction(contexts, actions, rewards, train, ridge, t, b):
    """Return the prediction for action b in round t of the ridge regression on rounds ``train``."""
    d = contexts.shape[2]
    gram, target = ridge * np.eye(d), np.zeros(d)
    for s in train:
        x = contexts[s, actions[s]]
        gram += np.outer(x, x)
        target += rewards[s] * x
    return float(contexts[t, b] @ np.linalg.inv(gram) @ target)


def binomial_interval(successes, n, level):
    """Return Chernoff's interval of a probability by a fine grid: p with n kl(k/n, p) <=
    ln(2/level)."""
    q = successes / n
    grid = np.linspace(1e-7, 1 - 1e-7, 2_000_001)
    kl = np.zeros_like(grid)
    if q > 0:
        kl += q * np.log(q / grid)
    if q < 1:
        kl += (1 - q) * np.log((1 - q) / (1 - grid))
    inside = grid[n * kl <= math.log(2 / level)]
    return float(inside[0]), float(inside[-1])


def _mean(terms):
    """Return the mean of the terms and its standard error."""
    n = len(terms)
    mean = sum(terms) / n
    return mean, math.sqrt(sum((x - mean) ** 2 for x in terms) / (n - 1) / n)
