"""Federated LinUCB in batches of any lengths, by forced replay of recorded actions and rewards.

After release k of the rounds n_1 < ... < n_K all silos hold the raw sums of all their rounds up to
n_k plus the noise of this prefix, which has one of four forms:

- `factorised`: sum_{j <= k} B_kj z_j for any lower triangular B, added over all parties that add
  noise (*givers*);
- `tree`: the draws of the nodes of the p-sum tree that make up the prefix;
- `batches`: one draw for each batch, with a separate strength;
- `bits`: each batch's points in fixed point, with noise bits, shuffled once and added up.

The direct radius with a bound tau on the norm and the sieve follow docs/radius.md; centred rewards
with a constant feature follow docs/centred.md. Everything is recomputed in every round.
Silos and actions count from 0; rounds, releases and draws count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from . import sieve as sieves
from .vector_sum import fixed_point, lower_triangle, symmetric

Pair = tuple[np.ndarray, np.ndarray]  # of the bias stream (d,), of the covariance stream (d, d)
Points = dict[tuple[int, int], tuple[np.ndarray, float]]  # (x, y) by silo and round
Draw = Callable[[int, int], Pair]  # (giver, number of the draw)


def _added(pairs: Sequence[tuple[float, Pair]]) -> Pair:
    """Return the weighted sum of (bias, covariance) pairs."""
    biases, covariances = zip(*((w * u, w * c) for w, (u, c) in pairs), strict=True)
    return np.sum(biases, axis=0), np.sum(covariances, axis=0)


def factorised(matrix: np.ndarray, givers: Sequence[int], draw: Draw, k: int) -> Pair:
    """Return the noise of prefix k: row k of B times the draws, added over all givers."""
    return _added(
        [(float(matrix[k - 1, j - 1]), draw(i, j)) for i in givers for j in range(1, k + 1)]
    )


def tree(givers: Sequence[int], draw: Draw, k: int) -> Pair:
    """Return the noise of prefix k: one draw per node; a node has the number of its release."""
    nodes = [(k >> j) << j for j in range(k.bit_length()) if k >> j & 1]
    return _added([(1.0, draw(i, node)) for i in givers for node in nodes])


def batches(scales: Sequence[float], givers: Sequence[int], draw: Draw, k: int) -> Pair:
    """Return the noise of k batches; each batch may have a different standard deviation."""
    return _added([(scales[j - 1], draw(i, j)) for i in givers for j in range(1, k + 1)])


@dataclass
class Bits:
    """One shuffle for each batch: P_Vec with noise bits, and with g steps per unit in each stream.

    `steps(k)` is (g of x y, g of x x') of batch k, `uniforms(i, t)` rounds silo i's point of round
    t, `centred(i, k)` its number of noise ones in batch k less their mean; all of length
    d + d (d + 1) / 2.
    """

    steps: Callable[[int], tuple[int, int]]
    uniforms: Callable[[int, int], np.ndarray]
    centred: Callable[[int, int], np.ndarray]

    def batch(
        self, k: int, d: int, points: dict[tuple[int, int], tuple[np.ndarray, float]]
    ) -> Pair:
        """Return the estimated sums of a batch from its points, by (silo, round)."""
        size = d + d * (d + 1) // 2
        g = np.repeat(self.steps(k), (d, size - d))
        counted = np.zeros(size)
        for (i, t), (x, y) in points.items():
            point = np.append(x * y, lower_triangle(np.outer(x, x)))
            draws = self.uniforms(i, t)
            for j in range(size):
                encoded = fixed_point(point[j : j + 1], int(g[j]), 1.0, draws[j : j + 1])
                counted[j] += int(encoded[0]) - g[j]
        for i in {silo for silo, _ in points}:
            counted += self.centred(i, k)
        sums = counted / g
        return sums[:d], symmetric(sums[d:])


@dataclass
class Direct:
    """Numbers of the direct radius after k releases; c is `anchor`, R is `scale`.

    `full(k)` is the largest lambda, and `error(k)` is E_k. Lambda is lowered as long as all
    eigenvalues of V exceed `floor(k)`, but never if that is 0. `base` is the term of beta^2 / R^2
    for the failure probability.
    """

    full: Callable[[int], float]
    floor: Callable[[int], float]
    error: Callable[[int], float]
    anchor: float
    base: float
    scale: float
    tau: float = 1.0
    multiplier: float = 1.0

    def regularizer(self, k: int, total: np.ndarray) -> tuple[float, float]:
        """Return lambda, and how close the decision about it was (relative to V or the floor)."""
        full, floor = self.full(k), self.floor(k)
        if floor <= 0.0:
            return full, math.inf
        lowered, nearest = full, math.inf
        for j in reversed(range(8)):
            values = np.linalg.eigvalsh(full * j / 8 * np.eye(len(total)) + total)
            size = max(floor, float(np.abs(values).max()))
            nearest = min(nearest, abs(float(values[0]) - floor) / size)
            if values[0] > floor:
                lowered = full * j / 8
        return lowered, nearest

    def inflation(self, k: int, lam: float, released: np.ndarray) -> float:
        """Return f at V of release k, whose eigenvalues are at least floor and tr(V^-8)^-1/8."""
        if lam == self.full(k):
            return 1.0
        inverse = float((np.linalg.eigvalsh(released) ** -8.0).sum()) ** 0.125 * (1.0 + 1e-9)
        return 1.0 + (self.full(k) - lam) * min(1.0 / self.floor(k), inverse)

    def bonuses(
        self, k: int, lam: float, v: np.ndarray, released: np.ndarray
    ) -> tuple[float, float]:
        """Return (beta, gamma) at V, which holds lam I; `released` is V at release k."""
        d, f = len(v), self.inflation(k, lam, released)
        log_det = float(np.log(np.linalg.eigvalsh(v)).sum())
        grown = max(0.0, log_det + d * math.log(f / self.anchor))
        beta = self.multiplier * self.scale * math.sqrt(f * (self.base + grown))
        return beta, self.multiplier * (self.tau * lam + self.error(k))

    def width(self, k: int, rows: float, d: int) -> float:
        """Return C after k releases of `rows` rows: w(x) <= C ||x||_{A^-1} for every lambda."""
        c, n = self.anchor, max(self.full(k) - self.anchor, 0.0)
        gamma = self.tau * (n + c) + self.error(k)

        def beta(f: float) -> float:
            """Return the radius for a matrix that is inflated by f."""
            grown = d * math.log(f * (2.0 * n + c + rows / d) / c)
            return self.scale * math.sqrt(f * (self.base + grown))

        worst = beta(1.0) + gamma / math.sqrt(c)
        if self.floor(k) > 0.0:
            worst = max(worst, math.sqrt(2.0) * (beta(2.0) + gamma / math.sqrt(n + c)))
        return self.multiplier * worst


@dataclass
class Sieve:
    """The sieve: choose the largest <x, theta_hat> + ranking w(x) among the actions that pass.

    The slack is `growth` max(1, C / g), or 1 if `growth` is 0. `times` multiplies it, to see that a
    wrong slack is found.
    """

    ranking: float
    limit: float
    growth: float
    times: float = 1.0

    def slack(self, direct: Direct, k: int, lam: float, v: np.ndarray, rows: float) -> float:
        """Return the slack s after k releases, with V = v of `rows` rows."""
        if self.growth == 0.0:
            return self.times
        beta, gamma = direct.bonuses(k, lam, v, v)
        f = direct.inflation(k, lam, v)
        width = direct.width(k, rows, len(v))
        return self.times * sieves.slack(v, beta, gamma, f, width, self.growth - 1.0)


@dataclass
class Replay:
    """The result of a replay; gaps are relative, as in zhou_chowdhury_2024.

    `slacks` holds s by batch. `counted` is the largest regret of a round as a multiple of
    2 C ||a||_{A^-1}, by batch, with A = G + c I of the raw sums before the batch.
    """

    worst_gap: float
    regret: np.ndarray
    totals: list[Pair]
    regularizers: list[float]
    nearest_floor: float
    slacks: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    sieved: int = 0  # rounds in which the chosen action does not have the largest score
    nearest_width: float = math.inf  # least (w(x) - |<x, theta_hat> - mean|) over all actions


def replay(
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    ends: Sequence[int],
    lazy: bool,
    direct: Direct,
    noise: Callable[[int], Pair] | None = None,
    bits: Bits | None = None,
    feature: float = 1.0,
    rewards_in: tuple[float, float] = (0.0, 1.0),
    constant: float = 0.0,
    centre: float = 0.0,
    public: bool = False,
    sieve: Sieve | None = None,
) -> Replay:
    """Follow actions and rewards (M, T) in batches that end after the rounds `ends`.

    `noise(k)` is the noise of prefix k, None for exact sums. If `constant` > 0, rows in the sums
    have this value as last feature, and `feature` bounds the norm of the other features. If
    `public`, the sum of the squared constant has no noise. Rewards are clipped, and `centre` is
    subtracted.
    """
    silos, horizon = actions.shape
    d = np.shape(contexts(1, 0))[1]
    points: Points = {}
    added = np.zeros(d), np.zeros((d, d))  # by bits
    total: Pair = np.zeros(d), np.zeros((d, d))
    boundaries = [0, *ends, *([horizon] if not ends or ends[-1] < horizon else [])]
    lam, distance = direct.regularizer(0, total[1])
    out = Replay(0.0, np.zeros(horizon), [], [lam], distance)

    def raw(first: int, last: int, of: Sequence[int]) -> Pair:
        """Return the raw sums of rounds first..last of these silos."""
        rows = [points[i, t] for i in of for t in range(first, last + 1)]
        if not rows:
            return np.zeros(d), np.zeros((d, d))
        return (
            np.sum([x * y for x, y in rows], axis=0),
            np.sum([np.outer(x, x) for x, _ in rows], axis=0),
        )

    def entered(x: np.ndarray, y: float) -> tuple[np.ndarray, float]:
        """Return a data point as it enters the sums: clipped, with its constant, centred."""
        z = np.array(x, dtype=float)
        features = z[:-1] if constant else z
        norm = float(np.linalg.norm(features))
        if norm > feature:
            features *= feature / norm
        if constant:
            z[-1] = constant
        return z, min(max(y, rewards_in[0]), rewards_in[1]) - centre

    for k, (start, stop) in enumerate(pairwise(boundaries)):
        v = lam * np.eye(d) + total[1]
        rows = silos * start
        slack = 1.0 if sieve is None else sieve.slack(direct, k, lam, v, rows)
        out.slacks.append(slack)
        out.widths.append(direct.width(k, rows, d))
        inverse_gram = np.linalg.inv(raw(1, start, range(silos))[1] + direct.anchor * np.eye(d))
        allowed_cost = 2.0 * max(1.0, sieve.growth if sieve else 0.0) * out.widths[-1]
        counted = 0.0
        for t in range(start + 1, stop + 1):
            for i in range(silos):
                phi = np.asarray(contexts(t, i), dtype=float)
                own_sums = (np.zeros(d), np.zeros((d, d))) if lazy else raw(start + 1, t - 1, [i])
                v = lam * np.eye(d) + total[1] + own_sums[1]
                inverse = np.linalg.inv(v)
                theta = inverse @ (total[0] + own_sums[0])
                beta, gamma = direct.bonuses(k, lam, v, lam * np.eye(d) + total[1])
                width = beta * np.sqrt(np.einsum("ij,jk,ik->i", phi, inverse, phi))
                width = width + gamma * np.linalg.norm(phi @ inverse, axis=1)
                mean, limit = phi @ theta, math.inf if sieve is None else sieve.limit
                score, a = mean + width, int(actions[i, t - 1])
                expected = np.asarray(means(t, i), dtype=float)
                scale = float(np.max(np.abs(mean) + width))
                if scale > 0.0:
                    # By how much the action fails to pass, or is below the largest ranking value of
                    # the actions that surely pass.
                    excess = mean + (2.0 * slack - 1.0) * width - min(limit, float(score.max()))
                    ranked = score if sieve is None else mean + sieve.ranking * width
                    surely_passes = (excess > 1e-9 * scale * slack) | (
                        np.arange(len(phi)) == score.argmax()
                    )
                    shortfall = max(
                        -float(excess[a]), float(ranked[surely_passes].max() - ranked[a])
                    )
                    out.worst_gap = max(out.worst_gap, shortfall / scale)
                    out.sieved += bool(score.max() - score[a] > 1e-9 * scale)
                best = int(expected.argmax())
                out.regret[t - 1] += expected[best] - expected[a]
                errors = np.abs(mean + centre - expected)
                out.nearest_width = min(out.nearest_width, float((width - errors).min()))
                norm = math.sqrt(max(0.0, float(phi[a] @ inverse_gram @ phi[a])))
                counted = max(counted, (expected[best] - expected[a]) / (allowed_cost * norm))
                points[i, t] = entered(phi[a], float(rewards[i, t - 1]))
        out.counted.append(counted)
        if k < len(ends):
            if bits is not None:
                batch_points = {key: p for key, p in points.items() if start < key[1] <= stop}
                u, c = bits.batch(k + 1, d, batch_points)
                added = added[0] + u, added[1] + c
                total = added
            else:
                u, c = raw(1, stop, range(silos))
                if noise is not None:
                    prefix_noise = noise(k + 1)
                    cov = prefix_noise[1].copy()
                    if public:
                        cov[-1, -1] = 0.0
                    u, c = u + prefix_noise[0], c + cov
                total = u, c
            out.totals.append(total)
            lam, distance = direct.regularizer(k + 1, total[1])
            out.regularizers.append(lam)
            out.nearest_floor = min(out.nearest_floor, distance)
    out.regret = np.cumsum(out.regret)
    return out


def regret_bound(
    *,
    ends: Sequence[int],
    horizon: int,
    silos: int,
    d: int,
    direct: Direct,
    until: int | None = None,
    unequal: bool = True,
) -> float:
    """Bound the regret of lazy updates up to round `until` (docs/radius.md), without a sieve.

    There are at most Lambda / ln 2 bad batches; the bound assumes that the longest are bad.
    """
    until = horizon if until is None else until
    starts = [0, *(n for n in ends if n < horizon)]
    stops = [*starts[1:], horizon]
    c = direct.anchor
    rows, squares, lengths = 0.0, 0.0, []
    for k, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        if start >= until:
            break
        worst = direct.width(k, silos * start, d) / direct.multiplier
        batch_rows = silos * (stop - start)
        rows += batch_rows
        lengths.append(batch_rows)
        squares += batch_rows * worst**2
    growth = d * math.log1p(rows / (d * c))
    bad_batches = growth / math.log(2.0)
    bad = max(lengths) * bad_batches
    if unequal:
        bad = float(sum(sorted(lengths, reverse=True)[: math.floor(bad_batches)]))
    return bad + direct.multiplier * 2.0 * math.sqrt(2.0 * growth * squares)
