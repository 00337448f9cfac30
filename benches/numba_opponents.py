"""Programs that a competent user writes with numba in an afternoon, from the papers' pseudocode.

The loops run on one thread. They execute a plan with its numbers (budget, radius, release rounds),
but use shortcuts that fastfed must not use: a weak random generator, fast-math, float32 scores, one
noise draw for all silos, and sums in no fixed order. Each program returns regret and microseconds
of CPU per agent-round; the time includes drawing contexts and rewards.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy_lazy
from numba import njit
from numpy_lazy import Model

from fastfed.experts.baselines import HedgePlan, LeaderPlan
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.plan import Plan

fast = functools.partial(njit, fastmath=True, boundscheck=False, error_model="numpy")


@fast(inline="always")
def mix(x):
    """Return 32 pseudorandom bits, computed from a counter."""
    x = np.uint32(x)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@fast(inline="always")
def choose(mean, bonus, score, rank, many, limit):
    """Return the index of the chosen action.

    Without a sieve (rank >= 1) it has the largest mean + bonus. With a sieve it has the largest
    mean + rank * bonus among the actions that pass. An action passes if mean + many * bonus is at
    least the smaller of ``limit`` and the largest mean + bonus.
    """
    n, low = len(score), mean.dtype.type(-1e30)
    top = low
    if rank < 1.0:
        least = low
        for k in range(n):
            least = max(least, mean[k] + bonus[k])
        least = min(least, limit)
        for k in range(n):
            passes = mean[k] + many * bonus[k] >= least
            score[k] = mean[k] + rank * bonus[k] if passes else low
    else:
        for k in range(n):
            score[k] = mean[k] + bonus[k]
    for k in range(n):
        top = max(top, score[k])
    for k in range(n):
        if score[k] >= top:
            return k
    return 0


# ---- One agent and a fixed set of actions --------------------------------------------------------


@fast
def set_by_rows(first, last, x, y, mean, width, second, truth, state, pulls, numbers, rewards, log):
    """Run rounds first..last with Y = X V^-1 (K, d), in O(K d) per round; return the regret."""
    (base, scale, anchor, gamma, rank, limit, inverse, seed), (n, d) = numbers, x.shape
    along, bonus, score = np.empty(n), np.empty(n), np.empty(n)
    best, regret = truth.max(), 0.0
    for t in range(first, last):
        beta = scale * math.sqrt(base + max(0.0, state[0] - d * math.log(anchor)))
        widest = scale * math.sqrt(base + d * math.log(1.0 + t / (d * anchor)))
        slack = (widest + gamma / math.sqrt(anchor)) / (beta + gamma * math.sqrt(inverse))
        for k in range(n):
            bonus[k] = beta * math.sqrt(width[k]) + gamma * math.sqrt(second[k])
        a = choose(mean, bonus, score, rank, 2.0 * max(1.0, slack) - 1.0, limit)
        coin = mix(np.uint32(t) ^ np.uint32(seed)) * 2.0**-32 < truth[a]
        reward = (1.0 if coin else 0.0) if rewards else truth[a]
        regret += best - truth[a]
        pulls[a] += 1
        log[t] = a
        v = y[a].copy()
        grown = 1.0 + width[a]
        error = (reward - mean[a]) / grown
        for k in range(n):
            dot = x.dtype.type(0.0)
            for j in range(d):
                dot += x[k, j] * v[j]
            along[k] = dot
            share, length = x.dtype.type(dot / grown), x.dtype.type(0.0)
            for j in range(d):
                y[k, j] -= share * v[j]
                length += y[k, j] * y[k, j]
            mean[k] += error * dot
            width[k] -= dot * dot / grown
            second[k] = length
        state[0] += math.log(grown)
    return regret


@fast
def set_by_pairs(
    first, last, g, h, mean, width, second, truth, state, pulls, numbers, rewards, log
):
    """Run rounds first..last with g = X V^-1 X' and h = X V^-2 X' (K, K), in O(K^2) per round."""
    (base, scale, anchor, gamma, rank, limit, inverse, seed), n = numbers, len(g)
    a_row, b_row = np.empty(n, g.dtype), np.empty(n, g.dtype)
    bonus, score = np.empty(n), np.empty(n)
    best, regret, d = truth.max(), 0.0, state[1]
    for t in range(first, last):
        beta = scale * math.sqrt(base + max(0.0, state[0] - d * math.log(anchor)))
        widest = scale * math.sqrt(base + d * math.log(1.0 + t / (d * anchor)))
        slack = (widest + gamma / math.sqrt(anchor)) / (beta + gamma * math.sqrt(inverse))
        for k in range(n):
            bonus[k] = beta * math.sqrt(width[k]) + gamma * math.sqrt(second[k])
        a = choose(mean, bonus, score, rank, 2.0 * max(1.0, slack) - 1.0, limit)
        coin = mix(np.uint32(t) ^ np.uint32(seed)) * 2.0**-32 < truth[a]
        reward = (1.0 if coin else 0.0) if rewards else truth[a]
        regret += best - truth[a]
        pulls[a] += 1
        log[t] = a
        grown = 1.0 + width[a]
        error, half = (reward - mean[a]) / grown, 0.5 * second[a] / grown
        for k in range(n):
            a_row[k] = g[a, k]
            b_row[k] = (h[a, k] - half * g[a, k]) / grown
            mean[k] += error * g[a, k]
        for k in range(n):
            share, other = a_row[k] / g.dtype.type(grown), b_row[k]
            whole = a_row[k]
            for j in range(n):
                g[k, j] -= share * a_row[j]
                h[k, j] -= whole * b_row[j] + other * a_row[j]
            width[k] -= whole * share
            second[k] -= 2.0 * whole * other
        state[0] += math.log(grown)
    return regret


def fixed_set(
    plan: Plan, rows: np.ndarray, means: np.ndarray, *, seed: int = 0, rewards: bool = True,
    dtype: Any = np.float64, pairs: bool | None = None, log: np.ndarray | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Run one agent with K fixed actions (K, d), without inverting V."""
    radius, ridge, rounds = plan.radius, float(plan.regularizer[0]), plan.horizon
    log = np.empty(rounds, np.int32) if log is None else log
    start = time.process_time()
    n, d = rows.shape
    x = np.ascontiguousarray(rows, np.float64)
    pairs = 2 * d > 3 * n if pairs is None else pairs
    gram = x @ x.T if pairs else None
    left = (gram / ridge).astype(dtype) if pairs else x.astype(dtype)
    right = (gram / ridge**2).astype(dtype) if pairs else (x / ridge).astype(dtype)
    width = np.einsum("kj,kj->k", x, x) / ridge
    second, mean, state = width / ridge, np.zeros(n), np.array([d * math.log(ridge), d])
    pulls, regret, inverse = np.zeros(n), 0.0, 1.0 / radius.anchor
    gamma = radius.multiplier * (radius.tau * ridge + float(radius.error_bound[0]))
    ends = [r for r in (15, 63, 255, 1023, 4095, 16383, 65535) if r < rounds] + [rounds]
    loop, first = (set_by_pairs if pairs else set_by_rows), 0
    for last in ends:
        if first and plan.ranking < 1.0:  # the sieve's bound on the eigenvalues of V^-1
            scaled = np.sqrt(pulls)[:, None] * x
            small = scaled @ scaled.T if n < d else scaled.T @ scaled
            values = ridge + np.maximum(0.0, np.linalg.eigvalsh(small))
            inverse = ((values**-8.0).sum() + max(0, d - n) * ridge**-8.0) ** 0.125
        numbers = (
            radius.base, radius.scale * radius.multiplier, radius.anchor, gamma, plan.ranking,
            plan.reward_limit, inverse, int(mix(seed + 1)),
        )  # fmt: skip
        regret += loop(
            first, last, left, right, mean, width, second, means, state, pulls, numbers, rewards,
            log,
        )  # fmt: skip
        first = last
    return regret, 1e6 * (time.process_time() - start) / rounds


# ---- New contexts in every round -----------------------------------------------------------------

LN2, SQRT2 = np.float32(math.log(2.0)), np.float32(math.sqrt(2.0))
ONE, HALF, TWO = np.float32(1.0), np.float32(0.5), np.float32(2.0)
S3, S5, S7 = (np.float32(s / math.factorial(n)) for s, n in ((-1, 3), (1, 5), (-1, 7)))
C2, C4, C6, C8 = (np.float32(s / math.factorial(n)) for s, n in ((-1, 2), (1, 4), (-1, 6), (1, 8)))
L3, L5, L7 = np.float32(2 / 3), np.float32(2 / 5), np.float32(2 / 7)
QUARTER = np.float32(math.pi / 2.0 * 2.0**-30)


@fast
def normals(counter, z, bits):
    """Fill z (2, n) with standard normals (Box-Muller); bits (n,) is scratch space."""
    n, real = z.shape[1], bits.view(np.float32)
    for i in range(n):
        u = np.float32(mix(counter + np.uint32(i)) >> np.uint32(8)) + HALF
        real[i] = u
    for i in range(n):
        exponent = np.int32(bits[i] >> np.uint32(23)) - np.int32(151)
        z[0, i] = np.float32(exponent)
        bits[i] = (bits[i] & np.uint32(0x007FFFFF)) | np.uint32(0x3F800000)
    for i in range(n):
        s = (real[i] - SQRT2) / (real[i] + SQRT2)
        q = s * s
        log = s * (TWO + q * (L3 + q * (L5 + q * L7))) + (z[0, i] + HALF) * LN2
        r = np.sqrt(max(np.float32(0.0), -TWO * log))
        w = mix(counter + np.uint32(n + i))
        angle = np.float32(np.int32(w & np.uint32(0x3FFFFFFF)) - np.int32(0x20000000)) * QUARTER
        q = angle * angle
        sin = angle * (ONE + q * (S3 + q * (S5 + q * S7)))
        cos = ONE + q * (C2 + q * (C4 + q * (C6 + q * C8)))
        swap, minus = w >> np.uint32(31), (w >> np.uint32(30)) & np.uint32(1)
        first, other = (cos, sin) if swap else (sin, cos)
        z[0, i] = r * (-first if minus else first)
        z[1, i] = r * (-other if minus else other)


#: Source of a function that scores all actions. Loops over d are unrolled, so that LLVM can
#: vectorise the loop over actions.
SCORES = """
def scores(z, scale, mean, true, bonus, theta, vectors, inverse, truth, beta, gamma):
    c = np.float32(0.70710678)
    {loads}
    for k in range({padded}):
        {reads}
        s = c / np.sqrt({length} + np.float32(1e-30))
        scale[k] = s
        mean[k] = h{last} * c + s * ({estimate})
        true[k] = g{last} * c + s * ({expected})
        width = second = np.float32(0.0)
        {parts}
        bonus[k] = beta * np.sqrt(width) + gamma * np.sqrt(second)
"""


def len_padded(n: int) -> int:
    """Return n rounded up to a multiple of 16. Values read beyond a row are not used."""
    return -(-n // 16) * 16


def make_scores(d: int, n: int) -> Callable[..., None]:
    """Compile `SCORES` for n actions and d features, the last of which is 1/sqrt 2."""
    m, whole = range(d - 1), range(d)
    loads = [f"h{j} = theta[{j}]; g{j} = truth[{j}]; e{j} = inverse[{j}]" for j in whole]
    loads += [f"v{i}_{j} = vectors[{i}, {j}]" for i in whole for j in whole]
    parts = [
        f"q = v{d - 1}_{j} * c + s * ({' + '.join(f'v{i}_{j} * z{i}' for i in m)});"
        f"p = e{j} * q; width += p * q; second += p * p"
        for j in whole
    ]
    text = SCORES.format(
        padded=len_padded(n),
        last=d - 1,
        loads="\n    ".join(loads),
        reads="\n        ".join(f"z{j} = z[{j * n} + k]" for j in m),
        length=" + ".join(f"z{j} * z{j}" for j in m),
        estimate=" + ".join(f"h{j} * z{j}" for j in m),
        expected=" + ".join(f"g{j} * z{j}" for j in m),
        parts="\n        ".join(parts),
    )
    names: dict[str, Any] = {"np": np}
    exec(text, names)
    return fast(names["scores"])


def make_sphere_loop(d: int, n: int) -> Callable[..., float]:
    """Compile the loop over the rounds of a batch for d features and n actions."""
    pairs, padded, scores = d // 2, len_padded(n), make_scores(d, n)

    def batch(counter, rounds, theta, vectors, inverse, truth, radii, gram, bias):
        beta, gamma, rank, many, limit = radii
        z, bits = np.empty((2, pairs * n), np.float32), np.empty(pairs * n, np.uint32)
        mean, bonus = np.empty(padded, np.float32), np.empty(padded, np.float32)
        true, scale = np.empty(padded, np.float32), np.empty(padded, np.float32)
        score = np.empty(n, np.float32)
        x, regret, flat = np.empty(d), 0.0, z.reshape(-1)
        x[d - 1] = math.sqrt(0.5)
        for _ in range(rounds):
            normals(counter, z, bits)
            scores(flat, scale, mean, true, bonus, theta, vectors, inverse, truth, beta, gamma)
            a = choose(mean, bonus, score, rank, many, limit)
            top = true[0]
            for k in range(n):
                top = max(top, true[k])
            counter += np.uint32(2 * pairs * n + 1)
            y = mix(counter - np.uint32(1)) * 2.0**-32 < true[a]
            regret += top - true[a]
            for j in range(d - 1):
                x[j] = flat[j * n + a] * scale[a]
            for j in range(d):
                share = x[j]
                bias[j] += y * share
                for m in range(d):
                    gram[j, m] += share * x[m]
        return regret

    return fast(batch)


sphere_loop = functools.cache(make_sphere_loop)


def sphere(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> Any:
    """Run a federation of lazy silos on the sphere, with all rounds of a batch in one loop."""
    loop, d, regret = sphere_loop(plan.dimension, actions), plan.dimension, 0.0
    start, counter = time.process_time(), int(mix(seed + 1))
    model, true = Model(plan, seed), truth.astype(np.float32)
    for first, last in model.batches():
        gram, bias, rounds = np.zeros((d, d)), np.zeros(d), plan.silos * (last - first)
        regret += loop(
            np.uint32(counter), rounds, model.theta, model.vectors, model.inverse, true,
            model.radii, gram, bias,
        )  # fmt: skip
        counter = (counter + rounds * (2 * (d // 2) * actions + 1)) % 2**32
        if model.release < plan.releases:
            model.synchronise(gram, bias)
    return regret, 1e6 * (time.process_time() - start) / (plan.silos * plan.horizon)


# ---- Pools ---------------------------------------------------------------------------------------


@fast
def choose_queries(rows, starts, queries, theta, vectors, inverse, radii):
    """Return the chosen row of each query."""
    beta, gamma, rank, many, limit = radii
    most, d, chosen = np.diff(starts).max(), rows.shape[1], np.empty(len(queries), np.int64)
    dots, mean = np.empty((most, d), np.float32), np.empty(most, np.float32)
    bonus, score = np.empty(most, np.float32), np.empty(most, np.float32)
    for n in range(len(queries)):
        first, last = starts[queries[n]], starts[queries[n] + 1]
        np.dot(rows[first:last], vectors, dots[: last - first])
        for k in range(last - first):
            width, second, estimate = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for j in range(d):
                part = inverse[j] * dots[k, j]
                width += part * dots[k, j]
                second += part * part
                estimate += theta[j] * rows[first + k, j]
            mean[k], bonus[k] = estimate, beta * np.sqrt(width) + gamma * np.sqrt(second)
        chosen[n] = first + choose(mean, bonus, score[: last - first], rank, many, limit)
    return chosen


def pool(
    plan: Plan, rows: np.ndarray, starts: np.ndarray, silo_starts: np.ndarray, means: np.ndarray,
    *, seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Run a federation over a pool; each distinct query of a batch is computed once."""

    def choose(model: Model, queries: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = choose_queries(
            rows, starts, queries, model.theta, model.vectors, model.inverse, model.radii
        )
        return chosen

    return numpy_lazy.pool(plan, rows, starts, silo_starts, means, seed=seed, choose=choose)


# ---- Experts, with an exchange in every round ----------------------------------------------------


@fast
def draw_losses(counter, sums, ladder, best):
    """Draw each expert's losses, summed over m clients, by inverting the binomial distribution."""
    n, d = sums.shape
    flat, m = sums.reshape(-1), len(ladder)
    for i in range(n * d):
        u = mix(counter + np.uint32(i))
        total = np.int32(0)
        for c in range(m):
            total += np.int32(u < ladder[c])
        flat[i] = total
    if best >= 0:
        for t in range(n):
            sums[t, best] = 0


@fast
def follow(sums, lost, expert):
    """Run rounds of follow-the-leader; return the loss and the next expert."""
    (n, d), total = sums.shape, 0
    for t in range(n):
        total += sums[t, expert]
        for j in range(d):
            lost[j] += sums[t, j]
        expert = lost.argmin()
    return total, expert


@fast
def hedge(sums, lost, weights, shrink):
    """Run rounds of hedge; return the loss. ``shrink[n]`` is the factor of a weight for loss n."""
    (n, d), total = sums.shape, 0.0
    for t in range(n):
        mixed, whole = 0.0, 0.0
        for j in range(d):
            mixed += weights[j] * sums[t, j]
            whole += weights[j]
            weights[j] *= shrink[sums[t, j]]
            lost[j] += sums[t, j]
        total += mixed / whole
        if whole < 1e-100:
            weights /= whole
    return total


@fast
def sparse(counter, sums, lost, state, numbers):
    """Run Fed-SVT until the next switch of experts; return the number of rounds and the loss."""
    scale, limit, may_switch, (n, d) = numbers[0], numbers[1], numbers[2], sums.shape
    expert, behind, total = int(state[0]), state[1], 0.0
    for t in range(n):
        total += sums[t, expert]
        behind += sums[t, expert]
        for j in range(d):
            lost[j] += sums[t, j]
        if may_switch > 0.0:
            w = mix(counter + np.uint32(t))
            noise = -scale * math.log(((w >> np.uint32(1)) + 0.5) * 2.0**-31)
            if behind + (noise if w & np.uint32(1) else -noise) > limit:
                state[1], state[2] = behind, 1.0
                return t + 1, total
    state[1] = behind
    return n, total


def experts(plan: ExpertPlan, mean: float, *, realizable: bool = True, seed: int = 0) -> Any:
    """Run a plan with experts whose losses have equal means; return regret and microseconds.

    If ``realizable``, one expert never has a loss.
    """
    start, rng = time.process_time(), np.random.default_rng(seed)
    m, d, rounds, block = plan.silos, plan.experts, plan.horizon, 2048
    # ladder[c]: a sum of m losses is at least c + 1 if a uniform 32-bit number is below it.
    masses = [math.comb(m, c) * mean**c * (1.0 - mean) ** (m - c) for c in range(m + 1)]
    tails = np.cumsum(masses[::-1])[:-1][::-1]
    ladder = np.minimum(tails * 2.0**32, 2.0**32 - 1).astype(np.uint32)
    best = int(rng.integers(d)) if realizable else -1
    sums, loss_so_far, regret = np.empty((block, d), np.int32), np.zeros(d, np.int64), 0.0
    expert, weights = int(rng.integers(d)), np.ones(d)
    if isinstance(plan, HedgePlan):
        shrink = np.exp(-plan.learning_rate * np.arange(m + 1) / m)
    if isinstance(plan, SparseVectorPlan):
        noise, switches, state = plan.noise, 0, np.array([expert, 0.0, 0.0])
        limit = plan.threshold + rng.laplace(scale=noise.threshold_scale)
    counter = int(mix(seed + 1))
    for first in range(0, rounds, block):
        block_sums = sums[: min(block, rounds - first)]
        draw_losses(np.uint32(counter), block_sums, ladder, best)
        counter = (counter + block * d) % 2**32
        if isinstance(plan, LeaderPlan):
            loss, expert = follow(block_sums, loss_so_far, expert)
            regret += loss
        elif isinstance(plan, HedgePlan):
            regret += hedge(block_sums, loss_so_far, weights, shrink)
        else:
            at = 0
            while at < len(block_sums):
                numbers = noise.query_scale, limit, float(switches < noise.switches)
                key = np.uint32((counter + 2**31 + at) % 2**32)
                steps, loss = sparse(key, block_sums[at:], loss_so_far, state, numbers)
                at, regret = at + steps, regret + loss
                if state[2]:
                    costs = np.maximum(loss_so_far, plan.floor)
                    chances = np.exp((costs.min() - costs) * noise.eta / 2.0)
                    state[:] = rng.choice(d, p=chances / chances.sum()), 0.0, 0.0
                    limit = plan.threshold + rng.laplace(scale=noise.threshold_scale)
                    switches += 1
    return regret - loss_so_far.min(), 1e6 * (time.process_time() - start) / (m * rounds)
