"""Federated LinUCB with rewards that arrive late (docs/delays.md), in plain NumPy.

Nothing is incremental: before each round every silo lists the rounds whose rewards it may use, sums
their data points and inverts V. There is no noise and no clipping, and the action with the largest
upper confidence bound of the direct radius is chosen. Rounds count from 1, silos from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


def delay_of(
    bits: int,
    kind: str,
    *,
    rounds: int = 0,
    low: int = 0,
    high: int = 0,
    mean: float = 0.0,
    deadline: int | None = None,
) -> int | None:
    """Return the delay for 64 uniform bits, by inverting the distribution; None if lost."""
    u = (bits >> 11) / 2.0**53
    if kind == "constant":
        delay = rounds
    elif kind == "uniform":
        delay = low + math.floor(u * (high - low + 1))
    elif mean == 0.0:
        delay = 0
    else:
        # P(delay > k) = (mean / (1 + mean))^(k + 1).
        delay = math.floor(math.log1p(-u) / math.log(mean / (1.0 + mean)))
    return None if deadline is not None and delay > deadline else delay


@dataclass
class Run:
    """The result of a simulation; arrivals[i][t] is the round in which the reward arrives."""

    actions: np.ndarray  # (M, T)
    rewards: np.ndarray  # (M, T)
    regret: np.ndarray  # (T,): cumulative, summed over silos
    totals: list[np.ndarray] = field(default_factory=list)  # (s,) after each release
    least_gap: float = math.inf  # smallest lead of a chosen action's score over the others


def statistic(points: list[tuple[np.ndarray, float]], d: int) -> np.ndarray:
    """Return the sum of x y, followed by the entries i >= j of the sum of x x', row by row."""
    u, g = np.zeros(d), np.zeros((d, d))
    for x, y in points:
        u += x * y
        g += np.outer(x, x)
    return np.concatenate([u, g[np.tril_indices(d)]])


def simulate(
    offer: Callable[[int, int], tuple[np.ndarray, np.ndarray]],
    reward: Callable[[int, int, float], float],
    arrivals: list[list[int | None]],
    ends: list[int],
    *,
    lazy: bool,
    alone: bool = False,
    scale: float = 0.5,
    alpha: float = 0.01,
    c: float = 1.0,
) -> Run:
    """Simulate all rounds of all silos.

    Parameters
    ----------
    offer : callable
        ``offer(silo, round)`` returns the features (K, d) and the mean rewards (K,).
    reward : callable
        ``reward(silo, round, mean)`` returns the observed reward.
    arrivals : list of list
        arrivals[i][t - 1] is the round at whose end the reward of round t is known; None: never.
    ends : list of int
        Last round of each batch; not used if silos learn alone.
    lazy : bool
        True if actions depend on releases only.
    alone : bool
        True if silos never exchange anything.
    scale, alpha, c : float
        R, the failure probability, and c of the direct radius without noise (lambda = c).

    Returns
    -------
    Run
    """
    silos, horizon = len(arrivals), len(arrivals[0])
    # Without noise, event 3 gets all of alpha; silos that learn alone share it equally.
    base = 2.0 * math.log((1.0 if lazy else float(silos)) / alpha)
    points: list[list[tuple[np.ndarray, float]]] = [[] for _ in range(silos)]
    run = Run(np.zeros((silos, horizon), int), np.zeros((silos, horizon)), np.zeros(horizon))

    def arrived(i: int, after: int, last: int) -> list[tuple[np.ndarray, float]]:
        """Return the data points of silo i that arrived in rounds after + 1 .. last."""
        arrival_rounds = arrivals[i][: len(points[i])]
        return [
            p
            for p, a in zip(points[i], arrival_rounds, strict=True)
            if a is not None and after < a <= last
        ]

    for t in range(1, horizon + 1):
        released = max((end for end in ends if end < t), default=0)
        chosen = []
        for i in range(silos):
            x, means = offer(i, t)
            known = [] if alone else [p for j in range(silos) for p in arrived(j, 0, released)]
            if alone:
                known = arrived(i, 0, t - 1)
            elif not lazy:
                known = known + arrived(i, released, t - 1)
            d = x.shape[1]
            v, u = c * np.eye(d), np.zeros(d)
            for row, y in known:
                v += np.outer(row, row)
                u += row * y
            inverse = np.linalg.inv(v)
            beta = scale * math.sqrt(base + np.linalg.slogdet(v)[1] - d * math.log(c))
            xs = x.astype(float)
            scores = (
                xs @ inverse @ u
                + beta * np.sqrt(np.einsum("ad,de,ae->a", xs, inverse, xs))
                + c * np.linalg.norm(xs @ inverse, axis=1)
            )
            action = int(scores.argmax())
            other_scores = np.delete(scores, action)
            if len(other_scores):
                run.least_gap = min(run.least_gap, float(scores[action] - other_scores.max()))
            y = reward(i, t, float(means[action]))
            run.actions[i, t - 1], run.rewards[i, t - 1] = action, y
            run.regret[t - 1] += means.max() - means[action]
            chosen.append((xs[action], y))
        for i, point in enumerate(chosen):
            points[i].append(point)
        if t in ends and not alone:
            everything = [p for i in range(silos) for p in arrived(i, 0, t)]
            run.totals.append(statistic(everything, d))
    run.regret = run.regret.cumsum()
    return run
