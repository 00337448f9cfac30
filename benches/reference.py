"""Private-FedLinUCB in the style of the papers' research code: the reference of `fastfed bench`.

This is Algorithm 1 (eager) of Zhou and Chowdhury (2024) with Algorithm 2 or 5, as a Python loop
over rounds and silos. Each round of a silo draws contexts from a NumPy generator, calls
`np.linalg.inv` once, scores all actions in one vectorised step and updates by `np.outer`. Noise is
Gaussian on a tree, or a vector sum with one scalar binomial per coordinate of a data point. The
code does no unneeded work beyond this style. Times are meaningful only if BLAS uses one thread
(OPENBLAS_NUM_THREADS=1 in the environment, before NumPy is imported).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypedDict

import numpy as np

Draw = Callable[[int], tuple[np.ndarray, np.ndarray]]
Statistics = list[np.ndarray]  # one sum for each silo, over the current batch
# Maps k and the batch statistics (W, U) to the synchronised covariance (d, d) and bias (d,).
Release = Callable[[int, Statistics, Statistics], tuple[np.ndarray, np.ndarray]]
Record = Callable[[np.ndarray, float], None]

REWARD_SCALE = 0.5  # R: sub-Gaussian constant of the rewards in the radius


class Result(TypedDict):
    """Cumulative group regret (T,) and seconds; data_seconds is a part of total_seconds."""

    group_regret: np.ndarray
    data_seconds: float
    total_seconds: float


def private_fedlinucb_sphere(
    *,
    silos: int,
    horizon: int,
    dimension: int = 10,
    actions: int = 100,
    batch_size: int = 25,
    noise_std: float,
    regularizer: float,
    radius_multiplier: float = 1.0,
    failure_probability: float = 0.01,
    reward_std: float = 0.5,
    seed: int,
) -> Result:
    """Run the synthetic instance of Zhou-Chowdhury 2024, Section 6, with new contexts each round.

    Actions are (u, 1) / sqrt 2 with u uniform on the unit sphere of R^(dimension - 1). theta* has
    the same form. Rewards are Gaussian with mean <x, theta*>. The parameters are those of
    `private_fedlinucb_pool`.
    """
    environment, mechanism = np.random.default_rng(seed).spawn(2)
    tree = _SiloTree(silos, _levels(horizon, batch_size), dimension, noise_std, mechanism)
    return _private_fedlinucb(
        _sphere(environment, dimension, actions),
        tree.release,
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        batch_size=batch_size,
        regularizer=regularizer,
        radius_multiplier=radius_multiplier,
        failure_probability=failure_probability,
        reward_std=reward_std,
        environment=environment,
    )


def vector_fedlinucb_sphere(
    *,
    silos: int,
    horizon: int,
    dimension: int = 10,
    actions: int = 100,
    batch_size: int = 25,
    epsilon: float = 0.2,
    delta: float = 0.1,
    vector_scale: float = 1.0,
    regularizer: float,
    radius_multiplier: float = 1.0,
    failure_probability: float = 0.01,
    reward_std: float = 0.5,
    seed: int,
) -> Result:
    """Run the instance of `private_fedlinucb_sphere` with vector sums (Algorithms 5 to 7).

    A node sums its n data points with g = max(ceil(2 sqrt n), d, 4) and
    b = ceil(vector_scale g^2 ln(d^2 / delta)^2 / (epsilon^2 n)), the published code's constants.
    These constants ignore the composition over nodes, so the whole run is not (epsilon,
    delta)-private. Rewards are not clipped to the range that the protocol assumes.

    Most of the time is spent on encoding. A data point is encoded once for every released node that
    contains it: with K = horizon / batch_size releases, sum_{k <= K} lowbit(k) / K times on
    average, for every batch size. This is 3 at K = 16 and 4.76 at K = 400.
    """
    environment, mechanism = np.random.default_rng(seed).spawn(2)
    tree = _VectorTree(
        silos * batch_size,
        _levels(horizon, batch_size),
        dimension,
        epsilon,
        delta,
        vector_scale,
        mechanism,
    )
    return _private_fedlinucb(
        _sphere(environment, dimension, actions),
        tree.release,
        tree.record,
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        batch_size=batch_size,
        regularizer=regularizer,
        radius_multiplier=radius_multiplier,
        failure_probability=failure_probability,
        reward_std=reward_std,
        environment=environment,
    )


def private_fedlinucb_pool(
    *,
    rows: np.ndarray,
    starts: np.ndarray,
    silo_starts: np.ndarray,
    means: np.ndarray,
    horizon: int,
    batch_size: int = 25,
    noise_std: float,
    regularizer: float,
    radius_multiplier: float = 1.0,
    failure_probability: float = 0.01,
    reward_std: float = 0.0,
    seed: int,
) -> Result:
    """Run on a finite pool: in each round a silo gets a uniformly drawn query of its block.

    Query q has the actions rows[starts[q]:starts[q + 1]] of the (n, d) array and their expected
    rewards in means (n,); silo i owns the queries silo_starts[i]:silo_starts[i + 1].

    `noise_std` is the standard deviation of each bias entry and of each entry of the square matrix
    A whose (A + A') / 2 is added to a covariance node; `regularizer` is lambda. The radius is
    the published code's radius times `radius_multiplier`. With `reward_std` 0, rewards equal their
    means, as in the published code on real data. Raises FloatingPointError if noise makes a squared
    width negative.
    """
    environment, mechanism = np.random.default_rng(seed).spawn(2)

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        query = environment.integers(silo_starts[silo], silo_starts[silo + 1])
        documents = slice(starts[query], starts[query + 1])
        return rows[documents], means[documents]

    silos, dimension = len(silo_starts) - 1, rows.shape[1]
    tree = _SiloTree(silos, _levels(horizon, batch_size), dimension, noise_std, mechanism)
    return _private_fedlinucb(
        draw,
        tree.release,
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        batch_size=batch_size,
        regularizer=regularizer,
        radius_multiplier=radius_multiplier,
        failure_probability=failure_probability,
        reward_std=reward_std,
        environment=environment,
    )


def _sphere(environment: np.random.Generator, dimension: int, actions: int) -> Draw:
    """Draw theta*; return a function that draws contexts and expected rewards."""
    v = environment.normal(size=dimension - 1)
    theta = np.append(v / np.linalg.norm(v), 1.0) / math.sqrt(2)

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        u = environment.normal(size=(actions, dimension - 1))
        contexts = np.empty((actions, dimension))
        contexts[:, :-1] = u / (math.sqrt(2) * np.linalg.norm(u, axis=1, keepdims=True))
        contexts[:, -1] = 1 / math.sqrt(2)
        return contexts, contexts @ theta

    return draw


def _levels(horizon: int, batch_size: int) -> int:
    """Return the number of levels of the tree."""
    return max(horizon // batch_size, 1).bit_length()


def _level(k: int) -> int:
    """Return the level of the node released at synchronisation k; it covers 2^level batches."""
    return (k & -k).bit_length() - 1


class _SiloTree:
    """Algorithm 2: the raw partial sums of each silo, and the noisy sums over silos."""

    def __init__(
        self,
        silos: int,
        levels: int,
        dimension: int,
        noise_std: float,
        mechanism: np.random.Generator,
    ) -> None:
        d = dimension
        self.raw_cov = np.zeros((silos, levels, d, d))
        self.raw_bias = np.zeros((silos, levels, d))
        self.noisy_cov = np.zeros((levels, d, d))
        self.noisy_bias = np.zeros((levels, d))
        self.noise_std = noise_std
        self.mechanism = mechanism

    def release(self, k: int, W: Statistics, U: Statistics) -> tuple[np.ndarray, np.ndarray]:
        level = _level(k)
        levels, d = self.noisy_bias.shape
        self.noisy_cov[level] = 0.0
        self.noisy_bias[level] = 0.0
        for i in range(len(W)):
            self.raw_cov[i, level] = self.raw_cov[i, :level].sum(axis=0) + W[i]
            self.raw_bias[i, level] = self.raw_bias[i, :level].sum(axis=0) + U[i]
            square = self.mechanism.normal(0.0, self.noise_std, size=(d, d))
            self.noisy_cov[level] += self.raw_cov[i, level] + (square + square.T) / 2
            self.noisy_bias[level] += self.raw_bias[i, level]
            self.noisy_bias[level] += self.mechanism.normal(0.0, self.noise_std, size=d)
        prefix = [j for j in range(levels) if (k >> j) & 1]
        return self.noisy_cov[prefix].sum(axis=0), self.noisy_bias[prefix].sum(axis=0)


class _VectorTree:
    """Algorithm 5: each node is a vector sum (Algorithm 6, L = 1) of the data points below it.

    A data point has the d coordinates of y x and the d (d + 1) / 2 of x x' with i <= j.
    """

    def __init__(
        self,
        points_per_batch: int,
        levels: int,
        dimension: int,
        epsilon: float,
        delta: float,
        scale: float,
        mechanism: np.random.Generator,
    ) -> None:
        self.points_per_batch = points_per_batch
        self.dimension = dimension
        self.epsilon = epsilon
        self.delta = delta
        self.scale = scale
        self.mechanism = mechanism
        self.upper = np.triu_indices(dimension)
        self.noisy = np.zeros((levels, dimension + len(self.upper[0])))
        # All data points are stored, since a node at a higher level may need them again.
        self.points: list[np.ndarray] = []

    def record(self, x: np.ndarray, reward: float) -> None:
        rows, columns = self.upper
        self.points.append(np.concatenate((reward * x, x[rows] * x[columns])))

    def release(self, k: int, W: Statistics, U: Statistics) -> tuple[np.ndarray, np.ndarray]:
        """Encode the data points of the new node; the batch statistics W and U are not used."""
        level = _level(k)
        first = (k - 2**level) * self.points_per_batch
        self.noisy[level] = self.vector_sum(self.points[first:])
        prefix = [j for j in range(len(self.noisy)) if (k >> j) & 1]
        total = self.noisy[prefix].sum(axis=0)
        d = self.dimension
        cov = np.empty((d, d))
        cov[self.upper] = total[d:]
        cov.T[self.upper] = total[d:]
        return cov, total[:d]

    def vector_sum(self, points: list[np.ndarray]) -> np.ndarray:
        """Return the unbiased noisy sum (Algorithms 6 and 7), from counts of bits."""
        n = len(points)
        g, b = self.parameters(n)
        ones = np.zeros(self.noisy.shape[1])
        for point in points:
            ones += self.encode(point, g, b)
        return (ones - n * b / 4) / g - n

    def encode(self, point: np.ndarray, g: int, b: int) -> list[int]:
        """Return the number of ones for each coordinate of a data point (Algorithm 6)."""
        return [self.randomize(x + 1.0, g, b) for x in point]

    def randomize(self, w: float, g: int, b: int) -> int:
        """Return the number of ones for w in [0, 2] (Algorithm 7, the scalar randomizer)."""
        scaled = w * g
        down = math.floor(scaled)
        up = self.mechanism.random() < scaled - down
        return int(down + up + self.mechanism.binomial(b, 0.25))

    def parameters(self, n: int) -> tuple[int, int]:
        """Return grid g and number b of noise bits per coordinate, for n data points."""
        d = self.dimension
        g = max(math.ceil(2 * math.sqrt(n)), d, 4)
        log = math.log(d * d / self.delta)
        return g, math.ceil(self.scale * (g * log / self.epsilon) ** 2 / n)


def _private_fedlinucb(
    draw: Draw,
    release: Release,
    record: Record | None = None,
    *,
    silos: int,
    horizon: int,
    dimension: int,
    batch_size: int,
    regularizer: float,
    radius_multiplier: float,
    failure_probability: float,
    reward_std: float,
    environment: np.random.Generator,
) -> Result:
    """Run Algorithm 1. `draw(i)` returns contexts and expected rewards of one round of silo i.

    `release` turns the statistics of a batch into synchronised totals. `record`, if it is given, is
    called with each chosen action and its reward, in order of rounds and then silos.
    """
    d = dimension
    ridge = regularizer * np.eye(d)
    W_syn, U_syn = np.zeros((d, d)), np.zeros(d)
    W = [np.zeros((d, d)) for _ in range(silos)]
    U = [np.zeros(d) for _ in range(silos)]
    regret = np.zeros(horizon)
    data_seconds = 0.0
    start = time.process_time()
    with np.errstate(invalid="raise"):
        for t in range(1, horizon + 1):
            beta = radius_multiplier * _radius(t, silos, d, regularizer, failure_probability)
            for i in range(silos):
                draw_start = time.process_time()
                contexts, means = draw(i)
                data_seconds += time.process_time() - draw_start

                inverse = np.linalg.inv(ridge + W_syn + W[i])
                estimate = inverse @ (U_syn + U[i])
                widths = np.sqrt(np.einsum("kd,kd->k", contexts @ inverse, contexts))
                action = (contexts @ estimate + beta * widths).argmax()

                x = contexts[action]
                reward = means[action] + reward_std * environment.normal()
                U[i] += reward * x
                W[i] += np.outer(x, x)
                if record is not None:
                    record(x, reward)
                regret[t - 1] += means.max() - means[action]

            if t % batch_size == 0:
                W_syn, U_syn = release(t // batch_size, W, U)
                W = [np.zeros((d, d)) for _ in range(silos)]
                U = [np.zeros(d) for _ in range(silos)]
    return {
        "group_regret": np.cumsum(regret),
        "data_seconds": data_seconds,
        "total_seconds": time.process_time() - start,
    }


def _radius(
    t: int, silos: int, dimension: int, regularizer: float, failure_probability: float
) -> float:
    """Return the radius of the published code, which differs from the radius of Lemma C.4."""
    growth = dimension * math.log(1 + t * silos / (dimension * regularizer))
    return math.sqrt(regularizer * dimension) + REWARD_SCALE * math.sqrt(
        growth - math.log(failure_probability)
    )
