"""Short numba programs with noisy releases; the interfaces are those of `numpy_releases.py`."""

import functools
import math
import time

import numpy as np
import numpy_releases
from numba import njit

from fastfed.protocols.plan import Plan

D, SPHERE, K = 5, 10, 100  # The dimensions of agent and feducb, and the number of actions.
ZERO, ONE, HALF, UNIT = (np.float32(x) for x in (0.0, 1.0, math.sqrt(0.5), 2.0**20))


@njit(fastmath=True)
def eliminate(v, shift, a, whole):  # type: ignore[no-untyped-def]
    """Return det(v + shift I), or 0 if not positive definite; if whole, a becomes the inverse."""
    det = 1.0
    for i in range(D):
        for j in range(D + 1):
            a[i, j] = v[i, j] + (shift if i == j else 0.0)
    for p in range(D):
        det, pivot, a[p, p] = det * a[p, p], a[p, p], 1.0
        if pivot <= 0.0:
            return 0.0
        for j in range(D + 1):
            a[p, j] /= pivot
        for i in range(0 if whole else p + 1, D):
            if i != p:
                factor, a[i, p] = a[i, p], 0.0
                for j in range(D + 1):
                    a[i, j] -= factor * a[p, j]
    return det


@njit(fastmath=True)
def choose(x, p, beta, gamma, many, rank, limit, mean, bonus):  # type: ignore[no-untyped-def]
    """Return the chosen action; p is V^-1 and theta. Scores are compared as integers."""
    top, key = np.int32(-(2**31)), np.int64(-(2**62))
    for k in range(K):
        dot, width, length = ZERO, ZERO, ZERO
        for i in range(D):
            y = ZERO
            for j in range(D):
                y += p[i, j] * x[j, k]
            dot, width, length = dot + p[i, D] * x[i, k], width + y * x[i, k], length + y * y
        mean[k], bonus[k] = dot, beta * math.sqrt(width) + gamma * math.sqrt(length)
        top = max(top, np.int32((mean[k] + bonus[k]) * UNIT))
    least = min(np.float32(top) / UNIT, limit)
    for k in range(K):
        score = mean[k] + (rank if mean[k] + many * bonus[k] >= least else -UNIT) * bonus[k]
        key = max(key, np.int64(score * UNIT) * 128 + (127 - k))
    return 127 - (key & 127)


@njit(fastmath=True)
def rounds_of_agent(rounds, draw, x, means, stds, packed, lam, floor, error, widths, numbers):  # type: ignore[no-untyped-def]
    """Return the regret of the first rounds; lambda is step / 8 of the full lambda."""
    (a, b, noisy, sums), p = np.zeros((4, D + 1, D + 1)), np.zeros((D, D + 1), np.float32)
    mean, bonus, walk = np.zeros(K, np.float32), np.zeros(K, np.float32), np.zeros((30, D, D + 1))
    step, regret, best, (scale, base, tau, rank, limit) = 7, 0.0, means.max(), numbers
    for t in range(rounds):
        while step < 8 and eliminate(noisy, lam[t] * step / 8 - floor[t], a, False) == 0.0:
            step += 1
        ridge, many, growth = lam[t] * step / 8, ONE, 1.0 + lam[t] * (8 - step) / 8 / floor[t]
        det = eliminate(noisy, ridge, a, True)
        while det == 0.0:
            ridge, det = 2.0 * ridge, eliminate(noisy, 2.0 * ridge, a, True)
        beta = scale * math.sqrt(growth * (base + math.log(det * growth**D)))
        gamma, p[:], step = tau * ridge + error[t], a[:D], max(step - 1, 0)
        if rank < 1.0 and ridge <= lam[t]:
            for _ in range(2):
                trace = 0.0
                for n in range(D * D):
                    dot = 0.0
                    for k in range(D):
                        dot += a[n // D, k] * a[n % D, k]
                    b[n // D, n % D], trace = dot, trace + dot * dot
                a, b = b, a
            bound = math.sqrt(growth) * (beta + gamma * trace**0.0625)
            many = np.float32(2.0 * max(1.0, widths[t] / bound) - 1.0)
        c = choose(x, p, np.float32(beta), np.float32(gamma), many, rank, limit, mean, bonus)
        regret, x[D, c] = regret + best - means[c], draw.random() < means[c]
        for i in range(D):
            for j in range(i, D + 1):
                z = stds[0 if j == D else 2 if i == j else 1] * draw.standard_normal()
                sums[i, j], noise = sums[i, j] + x[i, c] * x[j, c], packed[0] * z
                for n in range(len(packed) // 2):
                    walk[n, i, j] = packed[2 * n + 1] * walk[n, i, j] + z
                    noise += packed[2 * n + 2] * walk[n, i, j]
                noisy[i, j] = noisy[j, i] = sums[i, j] + noise
    return regret


def agent(plan: Plan, rows: np.ndarray, means: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Return regret and microseconds per round of one agent with K fixed actions (K, d)."""
    r, packed = plan.radius, plan.coefficients if plan.buffers else np.array([0.0, 1.0, 1.0])
    numbers = r.multiplier * r.scale, r.base - D * math.log(r.anchor), r.multiplier * r.tau
    numbers += np.float32(plan.ranking), np.float32(plan.reward_limit)
    arrays = plan.regularizer, np.where(r.floor > 0.0, r.floor, 1e12), r.multiplier * r.error_bound
    arguments = plan.noise_std.parts, packed, *arrays, np.array(plan.widths), numbers
    for rounds in (1, plan.horizon):  # The first run compiles.
        start, draw = time.process_time(), np.random.Generator(np.random.SFC64(seed))
        x = np.ascontiguousarray(np.vstack([rows.T, means]).reshape(D + 1, K), np.float32)
        regret = rounds_of_agent(rounds, draw, x, means, *arguments)
    return regret, 1e6 * (time.process_time() - start) / plan.horizon


@njit(fastmath=True)
def rounds_of_silos(draw, true, model, rows, y):  # type: ignore[no-untyped-def]
    """Return the regret of rounds under one model, and write features and rewards y."""
    x, mean, (learned, theta, w) = np.full((SPHERE, K), HALF), np.zeros(K, np.float32), model
    regret, last = 0.0, HALF * true[SPHERE - 1]
    for n in range(len(rows)):
        for j in range(SPHERE - 1):
            for k in range(K):
                x[j, k] = draw.standard_normal()
        most = np.int32(-(2**31))
        for k in range(K):
            square, dot = ZERO, ZERO
            for j in range(SPHERE - 1):
                square, dot = square + x[j, k] * x[j, k], dot + true[j] * x[j, k]
            scale = HALF / math.sqrt(square)
            for j in range(SPHERE - 1):
                x[j, k] *= scale
            mean[k], most = last + scale * dot, max(most, np.int32((last + scale * dot) * UNIT))
        c = np.argmax(theta @ x + np.sqrt(((w @ x) ** 2).sum(0))) if learned else 0
        rows[n], y[n], regret = x[:, c], draw.random() < mean[c], regret + most / UNIT - mean[c]
    return regret


def feducb(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> object:
    """Return regret and microseconds per agent-round of lazy silos; truth (d,) is theta*."""
    assert (plan.dimension, actions) == (SPHERE, K)
    draw, one = np.random.Generator(np.random.SFC64([seed, 1])), np.eye(SPHERE, dtype=np.float32)
    play = functools.partial(rounds_of_silos, draw, truth.astype(np.float32))
    play(numpy_releases.Shared(False, one[0], one), one[:1].copy(), one[0].copy())  # Compiles.
    return numpy_releases.federation(plan, play, seed)
