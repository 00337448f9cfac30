"""NumPy programs for lazy silos, which compute all choices of a batch at once.

Lazy silos choose by the last release only. So a batch of B rounds of M silos has B M independent
choices, and the choice for a query is the same whenever the query occurs in the batch: it is
computed once. Noise is drawn once for the sum over all silos. Each function returns regret and
microseconds of CPU per agent-round; the time includes drawing contexts, queries and rewards.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastfed.protocols.plan import Plan

#: Actions that are scored together; few enough that their features stay in cache.
CHUNK = 2000


class Model:
    """The last release: theta, the eigenvalues and eigenvectors of V, and the radii."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.draw = plan, np.random.default_rng(seed)
        d, silos = plan.dimension, math.sqrt(math.fsum(s * s for s in plan.noise_scale))
        std, shape = plan.noise_std.times(silos), (plan.releases, d, d)
        lower = np.tril(self.draw.normal(0.0, std.off_diagonal, shape), -1)
        diagonal = self.draw.normal(0.0, std.diagonal, (plan.releases, d))
        square = lower + lower.transpose(0, 2, 1) + diagonal[:, :, None] * np.eye(d)
        # One draw for all silos: the noise of a release is a row of the factor times the draws.
        assert plan.release in ("factorised", "toeplitz")
        factor, lags = plan.coefficients, np.subtract.outer(*[np.arange(plan.releases)] * 2)
        if plan.release == "toeplitz":
            factor = np.where(lags >= 0, factor[np.maximum(lags, 0)], 0.0)
        self.noise = np.tensordot(factor, square, 1)
        self.bias_noise = factor @ self.draw.normal(0.0, std.bias, (plan.releases, d))
        self.gram, self.bias, self.release = np.zeros((d, d)), np.zeros(d), 0
        self.adopt(self.gram, self.bias)

    def synchronise(self, gram: np.ndarray, bias: np.ndarray) -> None:
        """Add the sums of a batch, and release the total with noise."""
        self.gram, self.bias, k = self.gram + gram, self.bias + bias, self.release
        self.release += 1
        self.adopt(self.gram + self.noise[k], self.bias + self.bias_noise[k])

    def adopt(self, gram: np.ndarray, bias: np.ndarray) -> None:
        """Compute lambda, the eigenvectors of V, theta, beta, gamma and the sieve's slack."""
        plan, radius, k = self.plan, self.plan.radius, self.release
        values, vectors = np.linalg.eigh(gram)
        full, floor = float(plan.regularizer[k]), float(radius.floor[k])
        steps = [full * n / 8.0 for n in range(8)] if floor > 0.0 else []
        ridge = next((r for r in steps if values[0] + r >= floor), full)
        growth = 1.0 + (full - ridge) / floor if ridge < full else 1.0
        shifted = values[0] + ridge <= 0.0
        while values[0] + ridge <= 0.0:
            ridge *= 2.0
        inverse = 1.0 / (values + ridge)
        log_det = -math.fsum(np.log(inverse))
        self.beta = radius.of(k, growth, log_det, plan.dimension)
        self.gamma = radius.multiplier * (radius.tau * ridge + float(radius.error_bound[k]))
        largest = (inverse**8).sum() ** 0.125
        bound = math.sqrt(growth) * (self.beta + self.gamma * math.sqrt(largest))
        self.slack = max(1.0, plan.widths[k] / bound) if plan.widths and not shifted else 1.0
        self.theta = (vectors @ (inverse * (vectors.T @ bias))).astype(np.float32)
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self.inverse = inverse.astype(np.float32)

    def batches(self) -> list[tuple[int, int]]:
        """Return (start, stop) of each batch; rounds count from 0."""
        ends = sorted({0, *map(int, self.plan.ends), self.plan.horizon})
        return list(itertools.pairwise(ends))

    @property
    def radii(self) -> tuple[np.float32, ...]:
        """What a choice needs beside the mean and both lengths."""
        plan = self.plan
        numbers = self.beta, self.gamma, plan.ranking, 2.0 * self.slack - 1.0, plan.reward_limit
        return tuple(np.float32(number) for number in numbers)

    def bonus(self, dots: np.ndarray) -> np.ndarray:
        """Both bonuses of rows whose products with the eigenvectors are dots (n, d)."""
        dots *= self.inverse
        width, second = (dots * dots) @ (1.0 / self.inverse), np.einsum("kj,kj->k", dots, dots)
        return np.float32(self.beta) * np.sqrt(width) + np.float32(self.gamma) * np.sqrt(second)


def sieved(mean: np.ndarray, bonus: np.ndarray, starts: np.ndarray, radii: Any) -> np.ndarray:
    """Return the chosen row of each segment: by the largest bound, or by the sieve's ranking."""
    _, _, rank, many, limit = radii
    lengths = np.diff(starts, append=len(mean))
    score, top = mean + bonus, np.empty(0)
    if rank < 1.0:
        least = np.minimum(np.maximum.reduceat(score, starts), limit)
        passes = mean + many * bonus >= np.repeat(least, lengths)
        score = np.where(passes, mean + rank * bonus, np.float32(-np.inf))
    top = np.repeat(np.maximum.reduceat(score, starts), lengths)
    rows = np.flatnonzero(score >= top)
    return rows[np.searchsorted(rows, starts)]


def sphere(plan: Plan, truth: np.ndarray, *, actions: int = 100, seed: int = 0) -> Any:
    """Run a federation on the sphere; truth (d,) is theta*."""
    d, regret, draw, start = plan.dimension, 0.0, np.random.default_rng(seed), time.process_time()
    model, true, many = Model(plan, seed), truth.astype(np.float32), max(1, CHUNK // actions)
    for first, last in model.batches():
        gram, bias, rounds = np.zeros((d, d)), np.zeros(d), plan.silos * (last - first)
        weights, radii = np.column_stack([model.vectors, model.theta, true]), model.radii
        for at in range(0, rounds, many):
            n = min(many, rounds - at)
            u = draw.standard_normal((n * actions, d - 1), np.float32)
            u *= (math.sqrt(0.5) / np.sqrt(np.einsum("kj,kj->k", u, u)))[:, None]
            x = np.concatenate([u, np.full((len(u), 1), math.sqrt(0.5), np.float32)], axis=1)
            dots = x @ weights
            mean, means = dots[:, d].copy(), dots[:, d + 1].reshape(n, actions)
            chosen = sieved(mean, model.bonus(dots[:, :d]), np.arange(n) * actions, radii)
            expected = dots[chosen, d + 1]
            y = draw.random(n, np.float32) < expected
            regret += float((means.max(axis=1) - expected).sum())
            rows = x[chosen].astype(np.float64)
            gram += rows.T @ rows
            bias += y @ rows
        if model.release < plan.releases:
            model.synchronise(gram, bias)
    return regret, 1e6 * (time.process_time() - start) / (plan.silos * plan.horizon)


#: Returns the chosen row of each query.
Choose = Callable[[Model, np.ndarray], np.ndarray]


def choose_rows(rows: np.ndarray, starts: np.ndarray) -> Choose:
    """Return a function that chooses a row for each query of a pool, in chunks of queries."""

    def chunks(queries: np.ndarray) -> Iterator[np.ndarray]:
        ends = np.cumsum(starts[queries + 1] - starts[queries])
        return iter(np.split(queries, np.flatnonzero(np.diff(ends // CHUNK)) + 1))

    def choose(model: Model, queries: np.ndarray) -> np.ndarray:
        chosen, weights = [], np.column_stack([model.vectors, model.theta])
        for chunk in chunks(queries):
            lengths = starts[chunk + 1] - starts[chunk]
            firsts = np.cumsum(lengths) - lengths
            index = np.repeat(starts[chunk] - firsts, lengths) + np.arange(lengths.sum())
            dots = rows[index] @ weights
            bonus = model.bonus(dots[:, :-1])
            chosen.append(index[sieved(dots[:, -1].copy(), bonus, firsts, model.radii)])
        return np.concatenate(chosen)

    return choose


def pool(
    plan: Plan, rows: np.ndarray, starts: np.ndarray, silo_starts: np.ndarray, means: np.ndarray,
    *, seed: int = 0, choose: Choose | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Run a federation over a pool; queries are drawn with replacement."""
    choose = choose or choose_rows(rows, starts)
    best = np.maximum.reduceat(means, starts[:-1])
    start, draw, regret, d = time.process_time(), np.random.default_rng(seed), 0.0, plan.dimension
    model, chosen = Model(plan, seed), np.zeros(len(best), np.int64)
    low, high = silo_starts[:-1], silo_starts[1:]
    for first, last in model.batches():
        queries = draw.integers(low, high, (last - first, plan.silos)).ravel()
        times = np.bincount(queries, minlength=len(best))
        distinct = np.flatnonzero(times)
        chosen[distinct] = choose(model, distinct)
        expected = means[chosen]
        rewards = draw.random(len(queries), np.float32) < expected[queries]
        regret += float((times * (best - expected)).sum())
        if model.release < plan.releases:
            x = rows[chosen[distinct]].astype(np.float64)
            totals = np.bincount(queries, weights=rewards, minlength=len(best))[distinct]
            model.synchronise((x * times[distinct, None]).T @ x, totals @ x)
    assert d == rows.shape[1]
    return regret, 1e6 * (time.process_time() - start) / (plan.silos * plan.horizon)
