"""LinUCB on one flipped bit from each user, in plain NumPy; imports nothing of ours.

Warner (1965), randomised response, and Abbasi-Yadkori, Pal and Szepesvari (2011), LinUCB. The
recorded actions and rewards are repeated (*forced replay*), and the replay measures how far each
action's score lies below the best one. Nothing is incremental: V is a sum over all known rounds,
and is inverted in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, exp, log, sqrt

import numpy as np


def bit(reward: float, rounding: float, flipping: float, q: float) -> int:
    """Return the bit of a reward in [0, 1], from two uniform numbers in [0, 1)."""
    rounded = 1 if rounding < reward else 0
    return 1 - rounded if flipping < q else rounded


def debiased(sent: int, q: float) -> float:
    """Return (bit - (1 - p)) / (2 p - 1) with p = 1 - q."""
    p = 1.0 - q
    return (sent - (1.0 - p)) / (2.0 * p - 1.0)


def channel(q: float, rewards: Sequence[float]) -> np.ndarray:
    """Return the probabilities of bits 0 and 1 given each reward, (n, 2)."""
    ones = np.array([y * (1.0 - q) + (1.0 - y) * q for y in rewards])
    return np.stack([1.0 - ones, ones], axis=1)


def delta_by_enumeration(q: float, count: int, epsilon: float) -> float:
    """Return the delta of ``count`` bits of one user at epsilon, over all 2^count outputs."""
    low, high = channel(q, [0.0, 1.0])
    total = 0.0
    for bits in product((0, 1), repeat=count):
        first = float(np.prod([high[b] for b in bits]))
        second = float(np.prod([low[b] for b in bits]))
        total += max(0.0, first - exp(epsilon) * second)
    return total


def delta_binomial(q: float, count: int, epsilon: float) -> float:
    """Return the same, by the number of bits that are not flipped."""
    total = 0.0
    for unflipped in range(count + 1):
        mass = (1.0 - q) ** unflipped * q ** (count - unflipped)
        other = (1.0 - q) ** (count - unflipped) * q**unflipped
        total += comb(count, unflipped) * max(0.0, mass - exp(epsilon) * other)
    return total


@dataclass
class Replay:
    """The result of repeating the recorded actions.

    `worst_gap` is the largest shortfall of the chosen action's score from the best score, relative
    to the largest score. `v` and `u` hold sums over all rounds that were shared, without lambda.
    `covered` is true if theta was in the confidence set whenever a silo chose. `shared_after` lists
    the rounds after which silos shared their sums.
    """

    worst_gap: float
    v: np.ndarray
    u: np.ndarray
    covered: bool
    shared_after: list[int]


def replay(
    contexts: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    draws: Callable[[int, int], tuple[float, float]],
    q: float,
    ends: Sequence[int],
    lazy: bool,
    alpha: float,
    threshold: float | None = None,
    theta: np.ndarray | None = None,
    regularizer: float = 1.0,
    scale: float | None = None,
) -> Replay:
    """Repeat the actions (M, T) on the bits of the rewards (M, T).

    Parameters
    ----------
    contexts, draws : callable
        The actions (K, d), and the two uniform numbers, of round t (from 1) of silo i (from 0).
    q : float
        The probability of a flip.
    ends : sequence of int
        The rounds after which silos share their sums; without a ``threshold``.
    lazy : bool
        Whether silos wait for the shared sums, or also use their own rounds at once.
    alpha : float
        The confidence sets hold in all rounds with probability 1 - alpha. Silos that use their own
        rounds at once have a union bound over silos.
    threshold : float, optional
        D of Dubey and Pentland (2020), Algorithm 1. A silo's trigger is the number of rounds since
        sums were last shared, times the growth of ln det V by its own rounds since then. All silos
        share their sums after a round in which any trigger exceeds D.
    theta : ndarray, optional
        The true theta.
    scale : float, optional
        Sub-Gaussian scale of the estimates; by default that of debiased bits.
    """
    silos, horizon = actions.shape
    dimension = contexts(1, 0).shape[1]
    points: list[list[tuple[np.ndarray, float]]] = [[] for _ in range(silos)]
    if scale is None:
        scale = 1.0 / (2.0 * (2.0 * (1.0 - q) - 1.0))
    # Silos that share every round never use their own rounds before others do.
    every_round = threshold is None and len(ends) == horizon
    union = 1 if lazy or every_round else silos
    worst, covered, synchronised, shared_after = 0.0, True, 0, list[int]()

    def sums(rows: list[tuple[np.ndarray, float]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums (V, u) of data points."""
        v, u = np.zeros((dimension, dimension)), np.zeros(dimension)
        for x, z in rows:
            v, u = v + np.outer(x, x), u + x * z
        return v, u

    for t in range(1, horizon + 1):
        for i in range(silos):
            shared = [row for silo in points for row in silo[:synchronised]]
            own_points = [] if lazy else points[i][synchronised:]
            v, u = sums(shared + own_points)
            v = v + regularizer * np.eye(dimension)
            theta_hat = np.linalg.solve(v, u)
            # Theorem 2 of the paper, with S = 1; lambda ||V^-1 x|| is at most sqrt(lambda) ||x||.
            beta = scale * sqrt(
                2.0 * log(union / alpha) + np.linalg.slogdet(v)[1] - dimension * log(regularizer)
            )
            x = contexts(t, i)
            solved = np.linalg.solve(v, x.T).T
            width = beta * np.sqrt(np.sum(x * solved, axis=1))
            width = width + regularizer * np.linalg.norm(solved, axis=1)
            assert (
                regularizer * np.linalg.norm(solved, axis=1)
                <= sqrt(regularizer) * np.sqrt(np.sum(x * solved, axis=1)) * (1.0 + 1e-9)
            ).all()
            scores = x @ theta_hat + width
            size = float(np.max(np.abs(x @ theta_hat) + width))
            worst = max(worst, float(scores.max() - scores[actions[i, t - 1]]) / size)
            if theta is not None:
                covered &= bool((np.abs(x @ (theta - theta_hat)) <= width * (1.0 + 1e-9)).all())
        for i in range(silos):
            x = contexts(t, i)[actions[i, t - 1]]
            x = x / max(1.0, float(np.linalg.norm(x)))
            rounding, flipping = draws(t, i)
            z = debiased(bit(float(rewards[i, t - 1]), rounding, flipping, q), q)
            points[i].append((x, z))
        if threshold is None:
            is_shared = t in ends
        else:
            growths = []
            for i in range(silos):
                ridge = regularizer * np.eye(dimension)
                before = sums([row for silo in points for row in silo[:synchronised]])[0] + ridge
                after = before + sums(points[i][synchronised:])[0]
                growths.append(np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1])
            is_shared = (t - synchronised) * max(growths) > threshold
        if is_shared:
            shared_after.append(t)
            synchronised = t
    v, u = sums([row for silo in points for row in silo[:synchronised]])
    return Replay(worst, v, u, covered, shared_after)


def law_of_count(q: float, bits: Sequence[float]) -> np.ndarray:
    """Return the probabilities (n + 1,) of the numbers of ones that n users send.

    ``bits`` are the users' rewards in [0, 1]; each is rounded to a bit at random, then flipped.
    """
    distribution = np.ones(1)
    for probability_of_one in channel(q, bits)[:, 1]:
        distribution = np.convolve(distribution, [1.0 - probability_of_one, probability_of_one])
    return distribution


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """Return the sum of the positive parts of first - e^epsilon second."""
    return float(np.maximum(first - exp(epsilon) * second, 0.0).sum())


def delta_of_count(q: float, users: int, epsilon: float) -> float:
    """Return the delta of the number of ones of a batch, for the worst bits of all users.

    One user's bit is replaced, and any number of the other users have the bit 1.
    """
    worst = 0.0
    for ones in range(users):
        others = [1.0] * ones + [0.0] * (users - 1 - ones)
        distributions = [law_of_count(q, [*others, value]) for value in (0.0, 1.0)]
        worst = max(
            worst,
            hockey_stick(*distributions, epsilon),
            hockey_stick(*distributions[::-1], epsilon),
        )
    return worst
