"""NumPy programs for prediction from experts, vectorised as a careful user would write them.

Losses do not depend on decisions, so the programs are vectorised over blocks of rounds. One call
draws the losses of all clients in a block; leaders and weights follow from cumulative sums. Fed-SVT
draws the noise of a block in advance and searches the block for the first crossing of the
threshold. Fed-DP-OPE-Stoch adds up the gradients of a leaf in one call. Losses are 0 or 1. Regret
is defined as in fastfed's runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from fastfed.experts.baselines import HedgePlan, LeaderPlan
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import ExpertPlan

#: Losses per block: few enough that a block stays in cache.
BLOCK = 2**17


def microseconds(plan: ExpertPlan, mean: float, seed: int = 0) -> float:
    """Return the microseconds of CPU per client-round of a plan, for losses with this mean."""
    programs: dict[type, Callable[..., float]] = {
        LeaderPlan: leader,
        HedgePlan: hedge,
        SparseVectorPlan: sparse_vector,
        FrankWolfePlan: frank_wolfe,
    }
    rng = np.random.default_rng(seed)
    start = time.process_time()
    programs[type(plan)](plan, mean, rng)
    return 1e6 * (time.process_time() - start) / (plan.silos * plan.horizon)


def coins(rng: np.random.Generator, mean: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draw losses 0 or 1 with this mean."""
    return rng.random(shape, np.float32) < np.float32(mean)


def blocks(plan: ExpertPlan, mean: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks (n rounds, d experts) of losses, each summed over all clients."""
    m, d = plan.silos, plan.experts
    rounds = max(1, BLOCK // (m * d))
    for first in range(0, plan.horizon, rounds):
        n = min(rounds, plan.horizon - first)
        rows = coins(rng, mean, (n, m, d))
        yield rows[:, 0].astype(np.float64) if m == 1 else rows.sum(axis=1, dtype=np.float64)


def cumulative_losses(loss_so_far: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return each expert's cumulative loss before each round and after the last, (n + 1, d)."""
    total = np.empty((len(sums) + 1, len(loss_so_far)))
    total[0] = loss_so_far
    np.cumsum(sums, axis=0, out=total[1:])
    total[1:] += loss_so_far
    return total


def leader(plan: LeaderPlan, mean: float, rng: np.random.Generator) -> float:
    """Run follow-the-leader with an exchange in every round; return the regret."""
    loss_so_far, regret = np.zeros(plan.experts), 0.0
    for sums in blocks(plan, mean, rng):
        total = cumulative_losses(loss_so_far, sums)
        leaders = total[:-1].argmin(axis=1)
        regret += sums[np.arange(len(sums)), leaders].sum()
        loss_so_far = total[-1]
    return regret - loss_so_far.min()


def hedge(plan: HedgePlan, mean: float, rng: np.random.Generator) -> float:
    """Run hedge with an exchange in every round; return the regret."""
    loss_so_far, regret, rate = np.zeros(plan.experts), 0.0, -plan.learning_rate / plan.silos
    for sums in blocks(plan, mean, rng):
        total = cumulative_losses(loss_so_far, sums)
        behind = total[:-1] - total[:-1].min(axis=1, keepdims=True)
        behind *= rate
        weights = np.exp(behind, out=behind)
        losses = np.einsum("nd,nd->n", weights, sums)
        regret += (losses / weights.sum(axis=1)).sum()
        loss_so_far = total[-1]
    return regret - loss_so_far.min()


def sparse_vector(plan: SparseVectorPlan, mean: float, rng: np.random.Generator) -> float:
    """Run Fed-SVT with an exchange in every round; return the regret."""
    noise = plan.noise
    loss_so_far, regret, switches = np.zeros(plan.experts), 0.0, 0
    expert, chosen_at = int(rng.integers(plan.experts)), 0.0
    limit = plan.threshold + rng.laplace(scale=noise.threshold_scale)
    for sums in blocks(plan, mean, rng):
        total = cumulative_losses(loss_so_far, sums)
        queries, at = rng.laplace(scale=noise.query_scale, size=len(sums)), 0
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
                expert = int(rng.choice(plan.experts, p=weights / weights.sum()))
                chosen_at, switches = total[end, expert], switches + 1
                limit = plan.threshold + rng.laplace(scale=noise.threshold_scale)
            at = end
        loss_so_far = total[-1]
    return regret - loss_so_far.min()


def frank_wolfe(plan: FrankWolfePlan, mean: float, rng: np.random.Generator) -> float:
    """Run Fed-DP-OPE-Stoch with linear losses, noise at clients or server; return pseudo-regret."""
    m, d = plan.silos, plan.experts
    means = np.full(d, mean)
    x, regret, played = np.full(d, 1.0 / d), 0.0, 0
    best = means.min()
    for phase in plan.phases:
        regret += (phase.first - 1 - played) * (means @ x - best)
        played = phase.first - 1
        # All rounds have the same distribution, so the random order of the plan is not needed.
        losses = coins(rng, mean, (m, phase.used, d))
        root = np.zeros((m, d))
        for leaf in phase.leaves:
            if leaf.depth == 0:
                root = losses[:, leaf.start : leaf.stop].mean(axis=1)
            scale = phase.scales[leaf.tree - 1]
            if plan.protocol.noise_by == "silos":
                scores = (root + rng.laplace(scale=scale, size=(m, d))).mean(axis=0)
            else:
                scores = root.mean(axis=0) + rng.laplace(scale=scale / m, size=d)
            x = (1.0 - leaf.step) * x
            x[scores.argmin()] += leaf.step
    return m * (regret + (plan.horizon - played) * (means @ x - best))
