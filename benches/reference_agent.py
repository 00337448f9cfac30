"""LinUCB of a single agent, private and not private, in the style of the papers' research code.

This is Algorithm 1 of Chowdhury and Zhou (2022) on one fixed set of actions: a Python loop over
rounds, one `np.linalg.inv` per release, scores vectorised over the actions, and one `np.outer` for
each user. Noise is Gaussian per user or per tree node, or noise bits per user, drawn for all
coordinates of a data point in one call. The code does no unneeded work: it omits the shuffler's
permutation, which does not change sums, and the rewards of actions that are not chosen. Times are
meaningful only if BLAS uses one thread, as in `reference.py`.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from reference import Result

Released = tuple[np.ndarray, np.ndarray]  # the covariance (d, d) and the bias (d,)


class Sums(Protocol):
    """Adds up users' data, with the noise of one protocol."""

    def add(self, x: np.ndarray, reward: float) -> None:
        """Add one user's data point."""

    def release(self) -> Released:
        """Return the sums over all users so far, at the end of a batch."""


class PlainSums:
    """Sums without noise."""

    def __init__(self, dimension: int) -> None:
        self.cov = np.zeros((dimension, dimension))
        self.bias = np.zeros(dimension)

    def add(self, x: np.ndarray, reward: float) -> None:
        self.cov += np.outer(x, x)
        self.bias += reward * x

    def release(self) -> Released:
        return self.cov, self.bias


class _Noise:
    """Gaussian noise of a matrix and a vector.

    `bias_std` is the standard deviation of each bias entry, `cov_std` that of each entry of the
    square matrix A whose (A + A') / 2 is added to the covariance.
    """

    def __init__(
        self, dimension: int, bias_std: float, cov_std: float, mechanism: np.random.Generator
    ) -> None:
        self.dimension = dimension
        self.bias_std = bias_std
        self.cov_std = cov_std
        self.mechanism = mechanism

    def draw(self) -> Released:
        d = self.dimension
        square = self.mechanism.normal(0.0, self.cov_std, size=(d, d))
        return (square + square.T) / 2, self.mechanism.normal(0.0, self.bias_std, size=d)


class NoisySums(PlainSums):
    """Sums to which every user adds noise: local privacy or shuffling (Algorithms 2-4)."""

    def __init__(
        self, dimension: int, bias_std: float, cov_std: float, mechanism: np.random.Generator
    ) -> None:
        super().__init__(dimension)
        self.noise = _Noise(dimension, bias_std, cov_std, mechanism)

    def add(self, x: np.ndarray, reward: float) -> None:
        cov_noise, bias_noise = self.noise.draw()
        self.cov += np.outer(x, x) + cov_noise
        self.bias += reward * x + bias_noise


class TreeSums(PlainSums):
    """Sums of a trusted agent (Appendix F): noise is drawn when a tree node is complete."""

    def __init__(
        self,
        dimension: int,
        levels: int,
        bias_std: float,
        cov_std: float,
        mechanism: np.random.Generator,
    ) -> None:
        super().__init__(dimension)
        self.noise = _Noise(dimension, bias_std, cov_std, mechanism)
        self.node_cov = np.zeros((levels, dimension, dimension))
        self.node_bias = np.zeros((levels, dimension))
        self.releases = 0

    def release(self) -> Released:
        self.releases += 1
        level = (self.releases & -self.releases).bit_length() - 1
        # The new node replaces all nodes below it in the prefix sum.
        self.node_cov[:level] = 0.0
        self.node_bias[:level] = 0.0
        self.node_cov[level], self.node_bias[level] = self.noise.draw()
        return self.cov + self.node_cov.sum(axis=0), self.bias + self.node_bias.sum(axis=0)


class BitSums:
    """Vector sums (Algorithms 5-7): every user rounds at random and adds noise bits.

    A data point has d coordinates of y x, with `g[0]` levels per unit, and d (d + 1) / 2
    coordinates of x x' with i >= j, with `g[1]` levels per unit. Each coordinate gets Bin(b, 1/4)
    additional ones. The code counts bits instead of storing them.
    """

    def __init__(
        self, dimension: int, g: tuple[int, int], b: int, mechanism: np.random.Generator
    ) -> None:
        self.dimension = dimension
        self.rows, self.columns = np.tril_indices(dimension)
        self.g = np.repeat(np.array(g, dtype=float), (dimension, len(self.rows)))
        self.b = b
        self.mechanism = mechanism
        self.ones = np.zeros(len(self.g))
        self.users = 0

    def add(self, x: np.ndarray, reward: float) -> None:
        point = np.concatenate((reward * x, x[self.rows] * x[self.columns]))
        scaled = (point + 1.0) * self.g
        down = np.floor(scaled)
        up = self.mechanism.random(len(point)) < scaled - down
        self.ones += down + up + self.mechanism.binomial(self.b, 0.25, size=len(point))
        self.users += 1

    def release(self) -> Released:
        d = self.dimension
        total = (self.ones - self.users * self.b / 4) / self.g - self.users
        cov = np.empty((d, d))
        cov[self.rows, self.columns] = total[d:]
        cov[self.columns, self.rows] = total[d:]
        return cov, total[:d]


def linucb_fixed_set(
    contexts: np.ndarray,
    means: np.ndarray,
    sums: Sums,
    *,
    horizon: int,
    batch_size: int = 1,
    regularizer: float,
    width: float,
    seed: int,
) -> Result:
    """Algorithm 1 over the rows of `contexts` (K, d), with Bernoulli rewards about `means` (K,).

    V is regularizer I plus the released covariance; u is the released bias. The score is
    <x, V^-1 u> + width ||x||_{V^-1}. The inverse is computed once per release, the scores once per
    round. A last batch that the horizon cuts short is simulated, but not released.
    Raises FloatingPointError if noise makes a squared width negative.
    """
    d = contexts.shape[1]
    environment = np.random.default_rng(seed)
    ridge = regularizer * np.eye(d)
    best = means.max()
    regret = np.zeros(horizon)
    start = time.process_time()
    inverse: np.ndarray = np.linalg.inv(ridge)
    estimate: np.ndarray = np.zeros(d)
    with np.errstate(invalid="raise"):
        for t in range(1, horizon + 1):
            widths = np.sqrt(np.einsum("kd,kd->k", contexts @ inverse, contexts))
            action = (contexts @ estimate + width * widths).argmax()

            reward = float(environment.random() < means[action])
            sums.add(contexts[action], reward)
            regret[t - 1] = best - means[action]

            if t % batch_size == 0:
                cov, bias = sums.release()
                inverse = np.linalg.inv(ridge + cov)
                estimate = inverse @ bias
    return {
        "group_regret": np.cumsum(regret),
        "data_seconds": 0.0,  # contexts are known before the first round
        "total_seconds": time.process_time() - start,
    }
