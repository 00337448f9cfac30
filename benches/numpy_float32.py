"""A competent NumPy float32 loop over pools and fixed sets: what a careful user would write.

Unlike `reference.py`, which follows the papers' code, this one inverts no matrix in a round and
scores all actions of a query by one product: with Y = X V^{-1} the mean is X theta, the width the
root of the row sums of X * Y, and the direct radius' second bonus the length of the rows of Y.
Queries and noise are drawn ahead. Times mean something only with BLAS at one thread.
"""

from __future__ import annotations

import math
import time

import numpy as np

from fastfed.protocols.plan import Plan


class Shared:
    """V^{-1} and theta of a release, in float32, which all silos play by (lazy)."""

    def __init__(self, dimension: int) -> None:
        self.inverse = np.zeros((dimension, dimension), np.float32)
        self.theta = np.zeros(dimension, np.float32)

    def observe(self, x: np.ndarray, reward: float) -> None:
        """Nothing: the data point counts from the next release on."""


class Own(Shared):
    """The same of one silo, which learns at once by Sherman-Morrison (eager)."""

    def observe(self, x: np.ndarray, reward: float) -> None:
        moved = self.inverse @ x
        grown = np.float32(1.0) + x @ moved
        self.theta += moved * ((reward - x @ self.theta) / grown)
        self.inverse -= np.outer(moved, moved / grown)


def scores(rows: np.ndarray, state: Shared, beta: float, gamma: float) -> np.ndarray:
    """Upper confidence bounds of the rows (K, d), all float32."""
    moved = rows @ state.inverse
    score = rows @ state.theta
    score += np.float32(beta) * np.sqrt(np.einsum("kj,kj->k", moved, rows))
    if gamma:
        score += np.float32(gamma) * np.sqrt(np.einsum("kj,kj->k", moved, moved))
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
    """Microseconds per agent-round of a federation over a pool, by the plan's numbers.

    Queries are drawn with replacement, or come once and in order. rows (n, d) are float32 and
    C-contiguous; the noise of a release is that of its node in a tree.
    """
    silos, d, batch = plan.silos, plan.dimension, plan.batch_size or rounds
    draw = np.random.default_rng(seed)
    queries = np.stack(
        [
            silo_starts[i] + np.arange(rounds)
            if once
            else draw.integers(silo_starts[i], silo_starts[i + 1], rounds)
            for i in range(silos)
        ]
    )
    uniform = draw.random((rounds, silos))
    regularizer, radius = plan.regularizer, plan.radius
    states = [Shared(d)] * silos if plan.lazy else [Own(d) for _ in range(silos)]
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
            noise = draw.normal(0.0, plan.noise_std.off_diagonal, (d, d))
            noisy = covariance + np.tril(noise) + np.tril(noise, -1).T
            bias_noise = draw.normal(0.0, plan.noise_std.bias, d)
            beta, gamma = _release(plan, states, noisy, bias + bias_noise, entry)
    assert math.isfinite(regret) and radius is not None
    return 1e6 * (time.process_time() - start) / (rounds * silos)


def _release(
    plan: Plan, states: list[Shared], covariance: np.ndarray, bias: np.ndarray, entry: int
) -> tuple[float, float]:
    """Adopt the synchronised sums; (beta, gamma) until the next release."""
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
    """Microseconds per round of one agent over K fixed actions (K, d), eager, by O(K d) updates.

    X V^{-1}, the means and the squared widths follow each data point; nothing is made anew.
    """
    d, radius = plan.dimension, plan.radius
    x = rows.astype(np.float64)
    ridge = float(plan.regularizer[0])
    inverse, theta = np.eye(d) / ridge, np.zeros(d)
    moved = x / ridge
    width, score = np.einsum("kj,kj->k", moved, x), np.zeros(len(x))
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
            bound += gamma * np.sqrt(np.einsum("kj,kj->k", moved, moved))
        a = int(bound.argmax())
        reward = float(uniform[t] < means[a])
        regret += means.max() - means[a]
        v = inverse @ x[a]
        grown = 1.0 + x[a] @ v
        error = (reward - x[a] @ theta) / grown
        along = x @ v
        theta += error * v
        score += error * along
        width -= along * along / grown
        share = v / grown
        if gamma:
            moved -= np.outer(along, share)
        inverse -= np.outer(v, share)
        log_det += math.log(grown)
    assert math.isfinite(regret)
    return 1e6 * (time.process_time() - start) / rounds
