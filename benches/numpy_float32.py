"""NumPy float32 programs for pools and fixed sets, as a careful user would write them.

`reference.py` follows the papers' code; this program is faster. It inverts no matrix in a round,
and scores all actions of a query with one product: with Y = X V^{-1}, the means are X theta, the
squared widths are the row sums of X * Y, and the second bonus of the direct radius is the length of
the rows of Y. Queries and noise are drawn in advance. Times are meaningful only if BLAS uses one
thread.
"""

from __future__ import annotations

import math
import time

import numpy as np

from fastfed.protocols.plan import Plan


class Shared:
    """V^{-1} and theta of the last release, in float32, which all lazy silos share."""

    def __init__(self, dimension: int) -> None:
        self.inverse = np.zeros((dimension, dimension), np.float32)
        self.theta = np.zeros(dimension, np.float32)

    def observe(self, x: np.ndarray, reward: float) -> None:
        """Do nothing: lazy silos use the data point only after the next release."""


class Eager(Shared):
    """V^{-1} and theta of one eager silo, updated after each round by Sherman-Morrison."""

    def observe(self, x: np.ndarray, reward: float) -> None:
        """Add one data point to V and update theta."""
        inverse_x = self.inverse @ x
        divisor = np.float32(1.0) + x @ inverse_x
        self.theta += inverse_x * ((reward - x @ self.theta) / divisor)
        self.inverse -= np.outer(inverse_x, inverse_x / divisor)


def scores(rows: np.ndarray, state: Shared, beta: float, gamma: float) -> np.ndarray:
    """Return the upper confidence bounds (K,) of the rows (K, d), all in float32."""
    inverse_x = rows @ state.inverse
    score = rows @ state.theta
    score += np.float32(beta) * np.sqrt(np.einsum("kj,kj->k", inverse_x, rows))
    if gamma:
        score += np.float32(gamma) * np.sqrt(np.einsum("kj,kj->k", inverse_x, inverse_x))
    return score


def pool_microseconds(
    plan: Plan,
    rows: np.ndarray,
    starts: np.ndarray,
    silo_starts: np.ndarray,
    means: np.ndarray,
    *,
    rounds: int,
    once: bool = False,
    seed: int = 0,
) -> float:
    """Return the microseconds per agent-round of a federation over a pool, with the plan's numbers.

    Queries are drawn with replacement; with ``once`` each query comes once, in order. rows (n, d)
    are float32 and C-contiguous. A release has the noise of one node of a tree.
    """
    silos, d, batch = plan.silos, plan.dimension, plan.batch_size or rounds
    rng = np.random.default_rng(seed)
    queries = np.stack(
        [
            silo_starts[i] + np.arange(rounds)
            if once
            else rng.integers(silo_starts[i], silo_starts[i + 1], rounds)
            for i in range(silos)
        ]
    )
    uniform = rng.random((rounds, silos))
    regularizer, radius = plan.regularizer, plan.radius
    states = [Shared(d)] * silos if plan.lazy else [Eager(d) for _ in range(silos)]
    covariance, bias = np.zeros((d, d)), np.zeros(d)
    chosen = np.empty((silos, batch, d), np.float32)
    rewards = np.empty((silos, batch), np.float32)
    regret, released = 0.0, 0
    start = time.process_time()
    beta, gamma = _release(plan, states, covariance, bias, released)
    for t in range(rounds):
        for i in range(silos):
            q = queries[i, t]
            first, last = starts[q], starts[q + 1]
            block, state = rows[first:last], states[i]
            a = int(scores(block, state, beta, gamma).argmax())
            mean = means[first + a]
            reward = float(uniform[t, i] < mean)
            regret += means[first:last].max() - mean
            x = block[a]
            chosen[i, t % batch], rewards[i, t % batch] = x, reward
            state.observe(x, reward)
        if (t + 1) % batch == 0:
            for i in range(silos):
                covariance += chosen[i].T @ chosen[i]
                bias += rewards[i] @ chosen[i]
            released += 1
            entry = min(released, len(regularizer) - 1)
            noise = rng.normal(0.0, plan.noise_std.off_diagonal, (d, d))
            noisy = covariance + np.tril(noise) + np.tril(noise, -1).T
            bias_noise = rng.normal(0.0, plan.noise_std.bias, d)
            beta, gamma = _release(plan, states, noisy, bias + bias_noise, entry)
    assert math.isfinite(regret) and radius is not None
    return 1e6 * (time.process_time() - start) / (rounds * silos)


def _release(
    plan: Plan, states: list[Shared], covariance: np.ndarray, bias: np.ndarray, entry: int
) -> tuple[float, float]:
    """Set the states from the synchronised sums; return beta and gamma until the next release."""
    d, radius = plan.dimension, plan.radius
    ridge = float(plan.regularizer[entry])
    v = covariance + ridge * np.eye(d)
    least = float(np.linalg.eigvalsh(v)[0])
    if least <= 0.0:
        v += 2.0 * (ridge - least) * np.eye(d)
    inverse = np.linalg.inv(v)
    theta = inverse @ bias
    for state in states if not plan.lazy else states[:1]:
        state.inverse[...], state.theta[...] = inverse, theta
    gamma = 0.0
    if radius.direct:
        gamma = radius.multiplier * (radius.tau * ridge + float(radius.error_bound[entry]))
    width = radius.base
    if radius.determinant:
        width += max(0.0, float(np.linalg.slogdet(v)[1]) - d * math.log(radius.anchor))
    else:
        width += d * math.log1p(plan.rows_per_round * plan.horizon / (d * ridge))
    beta = radius.multiplier * (float(radius.offset[entry]) + radius.scale * math.sqrt(width))
    return beta, gamma


def fixed_set_microseconds(
    plan: Plan, rows: np.ndarray, means: np.ndarray, *, rounds: int, seed: int = 0
) -> float:
    """Return the microseconds per round of one eager agent with K fixed actions (K, d).

    Each data point updates X V^{-1}, the means and the squared widths in O(K d).
    """
    d, radius = plan.dimension, plan.radius
    x = rows.astype(np.float64)
    ridge = float(plan.regularizer[0])
    inverse, theta = np.eye(d) / ridge, np.zeros(d)
    x_inverse = x / ridge
    width, score = np.einsum("kj,kj->k", x_inverse, x), np.zeros(len(x))
    gamma = 0.0
    if radius.direct:
        gamma = radius.multiplier * (radius.tau * ridge + float(radius.error_bound[0]))
    uniform = np.random.default_rng(seed).random(rounds)
    log_det, regret = d * math.log(ridge), 0.0
    start = time.process_time()
    for t in range(rounds):
        if radius.determinant:
            growth = radius.base + max(0.0, log_det - d * math.log(radius.anchor))
        else:
            growth = radius.base + d * math.log1p((t + 1) / (d * ridge))
        beta = radius.multiplier * (float(radius.offset[0]) + radius.scale * math.sqrt(growth))
        bound = score + beta * np.sqrt(width)
        if gamma:
            bound += gamma * np.sqrt(np.einsum("kj,kj->k", x_inverse, x_inverse))
        a = int(bound.argmax())
        reward = float(uniform[t] < means[a])
        regret += means.max() - means[a]
        v = inverse @ x[a]
        divisor = 1.0 + x[a] @ v
        error = (reward - x[a] @ theta) / divisor
        x_inverse_a = x @ v
        theta += error * v
        score += error * x_inverse_a
        width -= x_inverse_a * x_inverse_a / divisor
        share = v / divisor
        if gamma:
            x_inverse -= np.outer(x_inverse_a, share)
        inverse -= np.outer(v, share)
        log_det += math.log(divisor)
    assert math.isfinite(regret)
    return 1e6 * (time.process_time() - start) / rounds
