"""Asi, Feldman, Koren and Talwar (2022), "Private Online Prediction from Experts: Separations and
Faster Rates".

The private shrinking dartboard, and limited updates for stochastic adversaries. Every random number
is an argument. The paper has one client. Here a loss is the sum of the losses of m clients in the
rounds since the last decision. Decisions are at t = N, 2 N, ... but not at 1, as in Algorithm 4 of
Gao et al. (2024). With m = N = 1 it is the paper's algorithm.

The paper's symbols: T rounds, d experts, eta the step size, p the switching probability, K the
switching budget, w_t the weights, P_t their distribution, z_t the coin (1: the expert stays).
Rounds count from 1, experts from 0. Weights are multiplied as printed, round by round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf, log

import numpy as np

from .gao_2024 import checked_table, decisions
from .huang_2023 import select_by_uniform


@dataclass
class Run:
    """The experts of all rounds of a run, with its coins and draws."""

    x: np.ndarray  # (T,), the experts
    coins: list[int] = field(default_factory=list)  # rounds in which a coin was thrown
    draws: list[int] = field(default_factory=list)  # rounds with a new draw, also of the same x
    laws: list[np.ndarray] = field(default_factory=list)  # (d,) of every draw
    # Least distance of a uniform number from a decision boundary. If it is as small as rounding
    # errors, the run is not determined.
    margin: float = inf


def since(losses: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return (d,), the loss of each expert at all clients in rounds start .. stop - 1."""
    return np.sum(losses[:, start - 1 : stop - 1], axis=(0, 1))


def drawn(run: Run, probabilities: np.ndarray, u: float, t: int) -> int:
    """Return the expert that u selects by these probabilities, and record the draw."""
    run.draws.append(t)
    run.laws.append(probabilities)
    run.margin = min([run.margin, *np.abs(np.cumsum(probabilities)[:-1] - u).tolist()])
    return select_by_uniform(probabilities, u)


def dartboard(
    losses: np.ndarray,
    *,
    eta: float,
    p: float,
    K: int,
    N: int,
    coin: Callable[[int], float],
    uniform: Callable[[int], float],
) -> Run:
    """Run the private shrinking dartboard on losses (m, T, d) in [0, 1].

    `coin(t)` and `uniform(t)`, in [0, 1), are for the coins and the draw of round t; t = 1 for x_1.
    The two coins, of 1 - p and of w_t / w_(t-1), use one uniform: if it is below 1 - p, its
    quotient by 1 - p is uniform again.
    """
    losses = checked_table(losses)
    _, T, d = losses.shape
    run = Run(np.zeros(T, dtype=int))
    w = np.ones(d)
    x = select_by_uniform(w / d, uniform(1))
    k, before = 0, 1
    deciding = set(decisions(T, N))
    for t in range(1, T + 1):
        if t in deciding:
            old_w, w = w, w * (1 - eta) ** since(losses, before, t)
            before = t
            if k < K:
                u = coin(t)
                run.coins.append(t)
                keep_probability = (1 - p) * w[x] / old_w[x]
                run.margin = min(run.margin, abs(u - keep_probability))
                z = u < 1 - p
                if z:
                    z = u / (1 - p) < w[x] / old_w[x]
                if not z:
                    k += 1
                    x = drawn(run, w / np.sum(w), uniform(t), t)
        run.x[t - 1] = x
    return run


def limited_updates(losses: np.ndarray, *, epsilon: float, uniform: Callable[[int], float]) -> Run:
    """Choose an expert at t = 2, 4, 8, ... from the losses of rounds t/2 .. t - 1.

    The exponential mechanism chooses it: P(x) ~ exp(-epsilon loss / 2).
    """
    losses = checked_table(losses)
    _, T, d = losses.shape
    run = Run(np.zeros(T, dtype=int))
    x = select_by_uniform(np.full(d, 1 / d), uniform(1))
    for t in range(1, T + 1):
        if t > 1 and t & (t - 1) == 0:
            cost = since(losses, t // 2, t)
            weights = np.exp(-epsilon * (cost - np.min(cost)) / 2)
            x = drawn(run, weights / np.sum(weights), uniform(t), t)
        run.x[t - 1] = x
    return run


#: Probability of each outcome: x_1, then for each decision the expert drawn, or -1 if x stays.
Law = dict[tuple[int, ...], float]


def dartboard_law(losses: np.ndarray, *, eta: float, p: float, K: int, N: int) -> Law:
    """Return the exact distribution of coins and draws, by enumeration."""
    losses = checked_table(losses)
    _, T, d = losses.shape
    decision_rounds = decisions(T, N)
    distribution: Law = {}

    def go(n: int, draws: tuple[int, ...], x: int, k: int, chance: float) -> None:
        """Add the probabilities of all continuations of these draws to the distribution."""
        if n == len(decision_rounds):
            distribution[draws] = distribution.get(draws, 0.0) + chance
            return
        t, before = decision_rounds[n], decision_rounds[n - 1] if n else 1
        if k == K:
            go(n + 1, (*draws, -1), x, k, chance)
            return
        keep_probability = (1 - p) * (1 - eta) ** since(losses, before, t)[x]
        if keep_probability:
            go(n + 1, (*draws, -1), x, k, chance * keep_probability)
        w = (1 - eta) ** since(losses, 1, t)
        for y in range(d):
            go(n + 1, (*draws, y), y, k + 1, chance * (1 - keep_probability) * w[y] / np.sum(w))

    for x in range(d):
        go(0, (x,), x, 0, 1 / d)
    return distribution


def experts_of(law: Law) -> Law:
    """Return the distribution of the chosen experts; a draw of the same expert is not visible."""
    distribution: Law = {}
    for draws, chance in law.items():
        x = [draws[0]]
        for y in draws[1:]:
            x.append(x[-1] if y < 0 else y)
        distribution[tuple(x)] = distribution.get(tuple(x), 0.0) + chance
    return distribution


def hockey_stick(here: Law, there: Law, epsilon: float) -> float:
    """Return sup_S P(S) - e^epsilon Q(S), the larger of both directions."""

    def one(a: Law, b: Law) -> float:
        """Return the sum of the positive parts of a - e^epsilon b over all outcomes."""
        return sum(max(0.0, a.get(o, 0.0) - exp(epsilon) * b.get(o, 0.0)) for o in a)

    return max(one(here, there), one(there, here))


def proven_epsilon(*, eta: float, p: float, K: int) -> float:
    """Return fastfed's bound at delta = 0: one coin and K draws, with r = -log(1 - eta)."""
    r = -log(1 - eta)
    coin = max(r, log((1 - (1 - p) * (1 - eta)) / p)) if p < 1 else 0.0
    return coin + 2 * r * K
