"""Private-FedLinUCB as the field's research code writes it: the slow side of `fastfed bench`.

Zhou-Chowdhury 2024, Algorithm 1 (eager) with Algorithm 2, in a Python loop over rounds and silos:
contexts from a NumPy generator per silo and round, one `np.linalg.inv` per silo and round, scores
vectorised over the actions, a rank-one `np.outer` update, Gaussian tree noise. Nothing here is
slower than that style makes it. Times mean something only with BLAS at one thread
(OPENBLAS_NUM_THREADS=1 in the environment, before NumPy is imported).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypedDict

import numpy as np

Draw = Callable[[int], tuple[np.ndarray, np.ndarray]]

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
    """Synthetic instance of Zhou-Chowdhury 2024, Section 6, with fresh contexts in every round.

    Actions are (u, 1) / sqrt 2 with u uniform on the (dimension - 1)-sphere, theta* is of the same
    form, rewards are Gaussian about <x, theta*>. Parameters as in `private_fedlinucb_pool`.
    """
    environment, mechanism = np.random.default_rng(seed).spawn(2)
    v = environment.normal(size=dimension - 1)
    theta = np.append(v / np.linalg.norm(v), 1.0) / math.sqrt(2)

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        u = environment.normal(size=(actions, dimension - 1))
        contexts = np.empty((actions, dimension))
        contexts[:, :-1] = u / (math.sqrt(2) * np.linalg.norm(u, axis=1, keepdims=True))
        contexts[:, -1] = 1 / math.sqrt(2)
        return contexts, contexts @ theta

    return _private_fedlinucb(
        draw,
        silos=silos,
        horizon=horizon,
        dimension=dimension,
        batch_size=batch_size,
        noise_std=noise_std,
        regularizer=regularizer,
        radius_multiplier=radius_multiplier,
        failure_probability=failure_probability,
        reward_std=reward_std,
        environment=environment,
        mechanism=mechanism,
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
    """Finite query pools: in each round a silo meets a uniform query of its own block.

    Query q has the actions rows[starts[q]:starts[q + 1]] of the (n, d) array and their expected
    rewards in means (n,); silo i owns the queries silo_starts[i]:silo_starts[i + 1].

    `noise_std` is the standard deviation of each bias entry and of each entry of the square matrix
    A whose (A + A') / 2 is added to a covariance node; `regularizer` is lambda, and the radius is
    the published code's, times `radius_multiplier`. `reward_std` 0 gives the expected rewards
    themselves, as that code does on real data. Raises FloatingPointError if noise makes a squared
    width negative.
    """
    environment, mechanism = np.random.default_rng(seed).spawn(2)

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        query = environment.integers(silo_starts[silo], silo_starts[silo + 1])
        documents = slice(starts[query], starts[query + 1])
        return rows[documents], means[documents]

    return _private_fedlinucb(
        draw,
        silos=len(silo_starts) - 1,
        horizon=horizon,
        dimension=rows.shape[1],
        batch_size=batch_size,
        noise_std=noise_std,
        regularizer=regularizer,
        radius_multiplier=radius_multiplier,
        failure_probability=failure_probability,
        reward_std=reward_std,
        environment=environment,
        mechanism=mechanism,
    )


def _private_fedlinucb(
    draw: Draw,
    *,
    silos: int,
    horizon: int,
    dimension: int,
    batch_size: int,
    noise_std: float,
    regularizer: float,
    radius_multiplier: float,
    failure_probability: float,
    reward_std: float,
    environment: np.random.Generator,
    mechanism: np.random.Generator,
) -> Result:
    """Algorithm 1 with Algorithm 2; `draw(i)` makes a round's contexts and expected rewards."""
    d = dimension
    # The levels of the tree: raw p-sums of each silo, and the noisy sums over silos.
    levels = max(horizon // batch_size, 1).bit_length()
    raw_cov = np.zeros((silos, levels, d, d))
    raw_bias = np.zeros((silos, levels, d))
    noisy_cov = np.zeros((levels, d, d))
    noisy_bias = np.zeros((levels, d))

    ridge = regularizer * np.eye(d)
    W_syn, U_syn = np.zeros((d, d)), np.zeros(d)
    W = [np.zeros((d, d)) for _ in range(silos)]
    U = [np.zeros(d) for _ in range(silos)]
    regret = np.zeros(horizon)
    data_seconds = 0.0
    began = time.perf_counter()
    with np.errstate(invalid="raise"):
        for t in range(1, horizon + 1):
            beta = radius_multiplier * _radius(t, silos, d, regularizer, failure_probability)
            for i in range(silos):
                before = time.perf_counter()
                contexts, means = draw(i)
                data_seconds += time.perf_counter() - before

                inverse = np.linalg.inv(ridge + W_syn + W[i])
                estimate = inverse @ (U_syn + U[i])
                widths = np.sqrt(np.einsum("kd,kd->k", contexts @ inverse, contexts))
                action = (contexts @ estimate + beta * widths).argmax()

                x = contexts[action]
                reward = means[action] + reward_std * environment.normal()
                U[i] += reward * x
                W[i] += np.outer(x, x)
                regret[t - 1] += means.max() - means[action]

            if t % batch_size == 0:
                k = t // batch_size
                level = (k & -k).bit_length() - 1
                noisy_cov[level] = 0.0
                noisy_bias[level] = 0.0
                for i in range(silos):
                    raw_cov[i, level] = raw_cov[i, :level].sum(axis=0) + W[i]
                    raw_bias[i, level] = raw_bias[i, :level].sum(axis=0) + U[i]
                    square = mechanism.normal(0.0, noise_std, size=(d, d))
                    noisy_cov[level] += raw_cov[i, level] + (square + square.T) / 2
                    noisy_bias[level] += raw_bias[i, level]
                    noisy_bias[level] += mechanism.normal(0.0, noise_std, size=d)
                prefix = [j for j in range(levels) if (k >> j) & 1]
                W_syn = noisy_cov[prefix].sum(axis=0)
                U_syn = noisy_bias[prefix].sum(axis=0)
                W = [np.zeros((d, d)) for _ in range(silos)]
                U = [np.zeros(d) for _ in range(silos)]
    return {
        "group_regret": np.cumsum(regret),
        "data_seconds": data_seconds,
        "total_seconds": time.perf_counter() - began,
    }


def _radius(
    t: int, silos: int, dimension: int, regularizer: float, failure_probability: float
) -> float:
    """The radius of the published code, which is not that of Lemma C.4."""
    growth = dimension * math.log(1 + t * silos / (dimension * regularizer))
    return math.sqrt(regularizer * dimension) + REWARD_SCALE * math.sqrt(
        growth - math.log(failure_probability)
    )
