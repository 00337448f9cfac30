"""Competent vectorised NumPy loops over losses of experts: what a careful user would write.

Losses do not depend on decisions, so all that only adds up is vectorised over rounds, a block at a
time: losses of all clients by one call, leaders and weights of a whole block from cumulative sums.
Fed-SVT draws the noise of a block ahead and looks for the first crossing in it; Fed-DP-OPE-Stoch
adds up the gradients of a leaf by one call. Losses are coins; regret is what the plan's run counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from fastfed.experts.baselines import HedgePlan, LeaderPlan
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import ExpertPlan

#: Coins of a block, so that it stays in a cache.
BLOCK = 2**17


def microseconds(plan: ExpertPlan, mean: float, seed: int = 0) -> float:
    """Microseconds of CPU per client-round of a plan over coins of this mean."""
    plays: dict[type, Callable[..., float]] = {
        LeaderPlan: leader,
        HedgePlan: hedge,
        SparseVectorPlan: sparse_vector,
        FrankWolfePlan: frank_wolfe,
    }
    draw = np.random.default_rng(seed)
    start = time.process_time()
    plays[type(plan)](plan, mean, draw)
    return 1e6 * (time.process_time() - start) / (plan.silos * plan.horizon)


def coins(draw: np.random.Generator, mean: float, shape: tuple[int, ...]) -> np.ndarray:
    """Losses 0 or 1."""
    return draw.random(shape, np.float32) < np.float32(mean)


def blocks(plan: ExpertPlan, mean: float, draw: np.random.Generator) -> Iterator[np.ndarray]:
    """What every expert loses at all clients in each round, (n, d), a block of rounds at a time."""
    m, d = plan.silos, plan.experts
    rounds = max(1, BLOCK // (m * d))
    for first in range(0, plan.horizon, rounds):
        n = min(rounds, plan.horizon - first)
        rows = coins(draw, mean, (n, m, d))
        yield rows[:, 0].astype(np.float64) if m == 1 else rows.sum(axis=1, dtype=np.float64)


def before(lost: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """What every expert has lost before each round (n, d), and after the last (1, d)."""
    total = np.empty((len(sums) + 1, len(lost)))
    total[0] = lost
    np.cumsum(sums, axis=0, out=total[1:])
    total[1:] += lost
    return total


def leader(plan: LeaderPlan, mean: float, draw: np.random.Generator) -> float:
    """Follow the leader, an exchange a round: the regret."""
    lost, regret = np.zeros(plan.experts), 0.0
    for sums in blocks(plan, mean, draw):
        total = before(lost, sums)
        leaders = total[:-1].argmin(axis=1)
        regret += sums[np.arange(len(sums)), leaders].sum()
        lost = total[-1]
    return regret - lost.min()


def hedge(plan: HedgePlan, mean: float, draw: np.random.Generator) -> float:
    """Hedge, an exchange a round: the regret."""
    lost, regret, rate = np.zeros(plan.experts), 0.0, -plan.learning_rate / plan.silos
    for sums in blocks(plan, mean, draw):
        total = before(lost, sums)
        behind = total[:-1] - total[:-1].min(axis=1, keepdims=True)
        behind *= rate
        weights = np.exp(behind, out=behind)
        losses = np.einsum("nd,nd->n", weights, sums)
        regret += (losses / weights.sum(axis=1)).sum()
        lost = total[-1]
    return regret - lost.min()


def sparse_vector(plan: SparseVectorPlan, mean: float, draw: np.random.Generator) -> float:
    """Fed-SVT, an exchange a round: the regret."""
    noise = plan.noise
    lost, regret, switches = np.zeros(plan.experts), 0.0, 0
    expert, chosen_at = int(draw.integers(plan.experts)), 0.0
    limit = plan.threshold + draw.laplace(scale=noise.threshold_scale)
    for sums in blocks(plan, mean, draw):
        total = before(lost, sums)
        queries, at = draw.laplace(scale=noise.query_scale, size=len(sums)), 0
        while at < len(sums):
            after = total[at + 1 :, expert]
            above = after - chosen_at + queries[at:] > limit
            step = int(above.argmax())
            crossed = switches < noise.switches and above[step]
            end = at + step + 1 if crossed else len(sums)
            regret += sums[at:end, expert].sum()
            if crossed:
                costs = np.maximum(total[end], plan.floor)
                weights = np.exp((costs.min() - costs) * noise.eta / 2.0)
                expert = int(draw.choice(plan.experts, p=weights / weights.sum()))
                chosen_at, switches = total[end, expert], switches + 1
                limit = plan.threshold + draw.laplace(scale=noise.threshold_scale)
            at = end
        lost = total[-1]
    return regret - lost.min()


def frank_wolfe(plan: FrankWolfePlan, mean: float, draw: np.random.Generator) -> float:
    """Fed-DP-OPE-Stoch over linear losses, noise at clients or server: pseudo-regret."""
    m, d = plan.silos, plan.experts
    means = np.full(d, mean)
    x, regret, played = np.full(d, 1.0 / d), 0.0, 0
    best = means.min()
    for phase in plan.phases:
        regret += (phase.first - 1 - played) * (means @ x - best)
        played = phase.first - 1
        # Coins are alike in all rounds: no order of them has to be drawn, as the plan does.
        losses = coins(draw, mean, (m, phase.used, d))
        root = np.zeros((m, d))
        for leaf in phase.leaves:
            if leaf.depth == 0:
                root = losses[:, leaf.start : leaf.stop].mean(axis=1)
            scale = phase.scales[leaf.tree - 1]
            if plan.protocol.noise_by == "silos":
                scores = (root + draw.laplace(scale=scale, size=(m, d))).mean(axis=0)
            else:
                scores = root.mean(axis=0) + draw.laplace(scale=scale / m, size=d)
            x = (1.0 - leaf.step) * x
            x[scores.argmin()] += leaf.step
    return m * (regret + (plan.horizon - played) * (means @ x - best))
