"""UCB of silos that learn alone on arms, in NumPy: one array of all silos and arms per quantity."""

from __future__ import annotations

import math
import time

import numpy as np

from fastfed.protocols.plan import Plan

#: Rounds whose uniform numbers are drawn together.
CHUNK = 1000


def arms_microseconds(plan: Plan, means: np.ndarray, *, rounds: int, seed: int = 0) -> float:
    """Return the microseconds per round of one silo, among the plan's silos.

    V is an array (M, K) of the entries of its diagonal. As in fastfed, the arm with the largest
    ranking is chosen if it passes the sieve because of the limit, which is nearly always so.
    """
    silos, arms, radius = plan.silos, plan.dimension, plan.radius
    ridge = float(plan.regularizer[0])
    v, total = np.full((silos, arms), ridge), np.zeros((silos, arms))
    mean, root = np.zeros_like(total), np.full_like(v, ridge**-0.5)
    gamma = radius.multiplier * (radius.tau * ridge + float(radius.error_bound[0]))
    draw, index, best = np.random.default_rng(seed), np.arange(silos), means.max()
    regret, least, largest = np.zeros(silos), 1.0 / radius.anchor, np.full(silos, ridge)
    limit = plan.reward_limit
    start = time.process_time()
    for t in range(rounds):
        if t % CHUNK == 0:
            uniform = draw.random((CHUNK, silos))
        if t >= 15 and t & (t + 1) == 0:
            least = float((1.0 / v.min(axis=1)).max())
        growth = radius.base + np.log(largest / radius.anchor)
        beta = radius.multiplier * radius.scale * np.sqrt(growth)
        bonus = beta[:, None] * root + gamma * root * root
        arm = (mean + plan.ranking * bonus).argmax(axis=1)
        width = radius.scale * math.sqrt(radius.base + math.log1p(t / radius.anchor))
        width += gamma / math.sqrt(radius.anchor)
        slack = np.maximum(1.0, width / (beta + gamma * math.sqrt(least)))
        passes = mean[index, arm] + (2.0 * slack - 1.0) * bonus[index, arm] >= limit
        if not passes.all():
            upper = mean + bonus
            threshold = np.minimum(limit, upper.max(axis=1))[:, None]
            reached = mean + (2.0 * slack - 1.0)[:, None] * bonus >= threshold
            arm = np.where(reached, mean + plan.ranking * bonus, -np.inf).argmax(axis=1)
        reward = uniform[t % CHUNK] < means[arm]
        regret += best - means[arm]
        total[index, arm] += reward
        v[index, arm] += 1.0
        entry = v[index, arm]
        mean[index, arm] = total[index, arm] / entry
        root[index, arm] = 1.0 / np.sqrt(entry)
        np.maximum(largest, entry, out=largest)
    assert np.isfinite(regret).all()
    return 1e6 * (time.process_time() - start) / rounds / silos
