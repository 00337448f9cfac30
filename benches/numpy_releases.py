"""NumPy programs with noisy releases, as a careful user would write them.

`agent` is one agent with fixed actions and a release in every round (`linucb-jdp`, `linucb-ldp`).
`feducb` is a federation of lazy silos on the sphere, which synchronise when a determinant has
grown; `federation` is its part that does not depend on how actions are chosen. All functions return
regret and microseconds of CPU per agent-round; the time includes drawing contexts and rewards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy_lazy

from fastfed.protocols.plan import Plan

#: Agent-rounds on the sphere that are computed together.
MANY = 20


# ---- One agent, with a release in every round ----------------------------------------------------


class Agent(numpy_lazy.Model):
    """The last release of an agent, with the noise of all releases drawn in advance."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.draw = plan, np.random.default_rng(seed)
        d, std, count = plan.dimension, plan.noise_std, plan.releases
        scale = np.full((d, d), std.off_diagonal)
        np.fill_diagonal(scale, std.diagonal)
        lower, diagonal = np.tril_indices(d), np.arange(d)
        z = np.concatenate(
            [
                std.bias * self.draw.standard_normal((count, d)),
                scale[lower] * self.draw.standard_normal((count, len(lower[0]))),
            ],
            axis=1,
        )
        prefixes = np.empty_like(z)
        # Without buffers users add the noise: it is a random walk.
        packed = plan.coefficients if plan.buffers else np.array([0.0, 1.0, 1.0])
        decays, weights = packed[1::2, None], packed[2::2]
        buffers = np.zeros((len(decays), z.shape[1]))
        for t, drawn in enumerate(z):
            buffers *= decays
            buffers += drawn
            prefixes[t] = packed[0] * drawn + weights @ buffers
        self.bias_noise, self.noise = prefixes[:, :d], np.zeros((count, d, d))
        self.noise[:, lower[0], lower[1]] = prefixes[:, d:]
        self.noise += self.noise.transpose(0, 2, 1)
        self.noise[:, diagonal, diagonal] /= 2.0
        self.gram, self.bias, self.release = np.zeros((d, d)), np.zeros(d), 0
        self.adopt(self.gram, self.bias)


def agent(plan: Plan, rows: np.ndarray, means: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Run one agent with K fixed actions (K, d), and a release with noise in every round."""
    start, model, regret = time.process_time(), Agent(plan, seed), 0.0
    x, first, best = rows.astype(np.float32), np.zeros(1, np.int64), float(means.max())
    coins = model.draw.random(plan.horizon)
    for t in range(plan.horizon):
        mean, bonus = x @ model.theta, model.bonus(x @ model.vectors)
        chosen = int(numpy_lazy.sieved(mean, bonus, first, model.radii)[0])
        regret += best - float(means[chosen])
        row = rows[chosen].astype(np.float64)
        if model.release < plan.releases:
            reward = float(coins[t] < means[chosen])
            model.synchronise(np.outer(row, row), reward * row)
    return regret, 1e6 * (time.process_time() - start) / plan.horizon


# ---- Silos that synchronise when a determinant has grown -----------------------------------------


class Shared(NamedTuple):
    """The model that all silos share: whether there was a release, theta, and beta W."""

    learned: bool
    theta: np.ndarray
    inverse: np.ndarray


#: Simulates agent-rounds under one model: writes the chosen features (n, d) and the rewards (n,),
#: and returns the regret.
Play = Callable[[Shared, np.ndarray, np.ndarray], float]


def federation(plan: Plan, play: Play, seed: int) -> tuple[float, float]:
    """Run lazy silos with a determinant trigger, whose agent-rounds are simulated by ``play``."""
    d, silos, radius, trigger = plan.dimension, plan.silos, plan.radius, plan.trigger
    assert trigger is not None and trigger.std == (0.0, 0.0) and not radius.direct
    assert plan.lazy and plan.ranking == 1.0 and plan.release == "tree"
    start, draw = time.process_time(), np.random.default_rng(seed)
    shape, std = (plan.horizon, silos, d), plan.noise_std.times(math.sqrt(silos))
    x, y = np.empty(shape, np.float32), np.empty(shape[:2], np.float32)
    total, bias, noise, bias_noise = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), np.zeros(d)
    nodes: list[tuple[int, np.ndarray, np.ndarray]] = []
    t, last, releases, regret = 0, 0, 0, 0.0
    while True:
        k = plan.entry(releases)
        v = total + noise + plan.regularizer[k] * np.eye(d)
        values = np.linalg.eigvalsh(v)
        log_det, grown = np.log(values).sum(), values + trigger.extra
        growth = np.log(grown).sum() - log_det
        beta = radius.of(k, 1.0, float(log_det), d)
        theta = np.linalg.solve(v, bias + bias_noise).astype(np.float32)
        inverse = (beta * np.linalg.inv(np.linalg.cholesky(v))).astype(np.float32)
        fired = False
        while not fired and t < plan.horizon:
            # A row adds at most 1 / grown[0] to the growth, so no silo asks before ``until``.
            most = growth + np.arange(1, plan.horizon - t + 1) / grown[0]
            may_ask = most * np.arange(t - last + 1, plan.horizon - last + 1) >= trigger.threshold
            until = t + 1 + int(may_ask.argmax()) if may_ask.any() else plan.horizon
            rows, rewards = x[t:until].reshape(-1, d), y[t:until].reshape(-1)
            regret += play(Shared(releases > 0, theta, inverse), rows, rewards)
            t = until
            if may_ask.any():
                batch = x[last:t].transpose(1, 0, 2).astype(np.float64)
                grams = batch.transpose(0, 2, 1) @ batch
                log_dets = np.linalg.slogdet(v + grams + trigger.extra * np.eye(d))[1]
                growth = log_dets.max() - log_det
                fired = growth * (t - last) >= trigger.threshold
        if not fired:
            return regret, 1e6 * (time.process_time() - start) / (silos * plan.horizon)
        total += grams.sum(axis=0)
        bias += y[last:t].reshape(-1) @ x[last:t].reshape(-1, d)
        last, releases = t, releases + 1
        # The noise of a prefix is that of its tree nodes, drawn once for all silos.
        level = (releases & -releases).bit_length()
        off = np.tril(draw.normal(0.0, std.off_diagonal, (d, d)), -1)
        node = off + off.T + np.diag(draw.normal(0.0, std.diagonal, d))
        nodes = [old for old in nodes if old[0] > level]
        nodes.append((level, node, draw.normal(0.0, std.bias, d)))
        noise, bias_noise = (np.sum([each[i] for each in nodes], axis=0) for i in (1, 2))


def feducb(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> Any:
    """Run lazy silos on the sphere with a determinant trigger; truth (d,) is theta*.

    Before the first release V is a multiple of I and theta is 0, so all bounds are equal, and the
    first action is chosen.
    """
    d, true, draw = plan.dimension, truth.astype(np.float32), np.random.default_rng([seed, 1])
    half = np.float32(math.sqrt(0.5))

    def play(model: Shared, rows: np.ndarray, rewards: np.ndarray) -> float:
        regret = 0.0
        for at in range(0, len(rows), MANY):
            n = min(MANY, len(rows) - at)
            u = draw.standard_normal((n * actions, d - 1), np.float32)
            u *= (half / np.sqrt(np.einsum("kj,kj->k", u, u)))[:, None]
            means = u @ true[:-1]
            means += half * true[-1]
            chosen = np.arange(n) * actions
            if model.learned:
                y = u @ model.inverse[:, :-1].T + half * model.inverse[:, -1]
                score = u @ model.theta[:-1] + np.sqrt(np.einsum("kj,kj->k", y, y))
                chosen += score.reshape(n, actions).argmax(axis=1)
            expected = means[chosen]
            rows[at : at + n, :-1], rows[at : at + n, -1] = u[chosen], half
            rewards[at : at + n] = draw.random(n, np.float32) < expected
            regret += float((means.reshape(n, actions).max(axis=1) - expected).sum())
        return regret

    return federation(plan, play, seed)
