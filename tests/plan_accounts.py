"""A second account of a plan's noise, written from the definition and from nothing of the package.

The first account knows the worst pair of records by a proof. This one searches for it: it adds the
statistics of two records, in units of the noise, to every release that holds them, and takes the
largest distance over records, rewards and leaves. What it returns is a lower bound on the epsilon
of a Gaussian mechanism: a certificate below it is too small.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

#: Releases up to which records that move between leaves are searched, too.
LEAVES = 128
#: Angles of a record in the first search.
ANGLES = 48


class Unknown(Exception):
    """This module has no account of such a plan."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta of a Gaussian mechanism of sensitivity mu (Balle and Wang 2018, Theorem 8)."""
    first = log_ndtr(mu / 2.0 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2.0 - epsilon / mu)
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of a Gaussian mechanism of sensitivity mu at this delta."""
    if mu == math.inf:
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = 1.0
    while gaussian_delta(most, mu) > delta:
        most *= 2.0
    return brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, most, xtol=1e-13, rtol=1e-13)


# ---- what holds a leaf ---------------------------------------------------------------------------


def tree_rows(releases: int) -> np.ndarray:
    """Leaves (columns) of every released node (rows): release k completes one of k & -k leaves."""
    rows = []
    for end in range(1, releases + 1):
        size = end & -end
        rows.append([end - size <= leaf < end for leaf in range(releases)])
    return np.array(rows, float)


def honaker_rows(releases: int) -> np.ndarray:
    """C of prefix sums of Honaker's estimates: K sums, whose noise is that of nodes below them.

    The estimate of a node is the best mean of its own noisy sum and of its children's estimates.
    """
    nodes: dict[tuple[int, int], int] = {}

    def estimate(end: int, size: int) -> tuple[dict[int, float], float]:
        """Weights of the nodes' noises in the estimate of a node, and its variance."""
        own = nodes.setdefault((end, size), len(nodes))
        if size == 1:
            return {own: 1.0}, 1.0
        (left, half), (right, _) = estimate(end - size // 2, size // 2), estimate(end, size // 2)
        variance = 1.0 / (1.0 + 1.0 / (2.0 * half))
        below = {node: (1.0 - variance) * w for node, w in (left | right).items()}
        return below | {own: variance}, variance

    sums = []
    for end in range(1, releases + 1):
        noise: dict[int, float] = {}
        at = end
        while at:
            noise |= estimate(at, at & -at)[0]
            at -= at & -at
        sums.append(noise)
    weights = np.array([[noise.get(node, 0.0) for node in range(len(nodes))] for noise in sums])
    return undone(np.linalg.cholesky(weights @ weights.T))


def toeplitz(first: np.ndarray) -> np.ndarray:
    """Lower triangular Toeplitz matrix of this first column."""
    lags = np.subtract.outer(np.arange(len(first)), np.arange(len(first)))
    return np.where(lags >= 0, first[np.abs(lags)], 0.0)


def undone(noise: np.ndarray) -> np.ndarray:
    """C of prefix sums whose noise is this lower triangular matrix times independent numbers."""
    return np.linalg.solve(noise, np.tril(np.ones(noise.shape)))


def strategy(plan: Any) -> np.ndarray:
    """C: how much of each leaf (column) is in what gets independent noise (rows)."""
    releases, kind = plan.releases, plan.release
    if kind == "tree":
        return tree_rows(releases)
    if kind == "honaker":
        return honaker_rows(releases)
    if kind == "factorised":
        return undone(np.array(plan.factor.matrix))
    if kind == "toeplitz":
        return toeplitz(np.array(plan.coefficients))
    if kind == "buffered":
        direct, *pairs = np.array(plan.coefficients).tolist()
        lags = np.arange(releases)
        noise = direct * (lags == 0)
        for decay, weight in zip(pairs[::2], pairs[1::2], strict=True):
            noise = noise + weight * decay**lags
        return undone(toeplitz(noise))
    raise Unknown(f"release {kind}")


def pairs_of(rows: np.ndarray) -> tuple[tuple[float, float, float], ...]:
    """(|C_i|^2, |C_j|^2, <C_i, C_j>) of the leaves of a record before and after it is replaced."""
    gram = rows.T @ rows
    own = np.diag(gram)
    if len(own) > LEAVES:
        most = float(own.max())
        return ((most, most, most),)
    i, j = np.triu_indices(len(own))
    found = np.stack([own[i], own[j], gram[i, j]], axis=1)
    return tuple(map(tuple, np.unique(found, axis=0).tolist()))


# ---- the worst pair of records -------------------------------------------------------------------


def _records(angles: np.ndarray, reward: float, bounds: Any, stds: Any) -> np.ndarray:
    """Statistics (n, s) of records at these angles, in units of the noise."""
    feature, constant, centre = bounds[0], bounds[3], bounds[4]
    bias, off, on = stds
    x = feature * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if bounds[5] == 1:
        x = feature * np.sign(np.cos(angles))[:, None]
    if constant:
        x = np.hstack([x, np.full((len(x), 1), constant)])
    i, j = np.tril_indices(x.shape[1])
    moment = x[:, i] * x[:, j] / np.where(i == j, on, off)
    # What only the code writes is public, and has no noise.
    moment = moment[:, :-1] if constant else moment
    return np.hstack([x * (reward - centre) / bias, moment])


@lru_cache(maxsize=4096)
def worst_mu(stds: tuple, bounds: tuple, pairs: tuple, relation: str) -> float:
    """Largest distance of all releases, in units of the noise, over two neighbouring datasets.

    bounds: norm of features, lowest and highest reward, constant feature, centre of rewards, and
    how many features are free. pairs: see `pairs_of`.
    """
    if min(stds) <= 0.0:
        return math.inf
    low, high = bounds[1], bounds[2]
    grid = np.linspace(0.0, 2.0 * math.pi, ANGLES, endpoint=False)
    table = np.array(pairs)
    best = 0.0
    if relation == "zero-out":
        size = max(
            np.max(np.sum(_records(grid, y, bounds, stds) ** 2, axis=1)) for y in (low, high)
        )
        return math.sqrt(size * float(table[:, :2].max()))

    def distances(one: np.ndarray, two: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Squared distances (pairs, n, m) of two lists of records."""
        first, second = np.sum(one**2, axis=1), np.sum(two**2, axis=1)
        return (
            which[:, 0, None, None] * first[:, None]
            + which[:, 1, None, None] * second
            - 2.0 * which[:, 2, None, None] * (one @ two.T)
        )

    for y, z in ((low, low), (low, high), (high, low), (high, high)):
        found = distances(_records(grid, y, bounds, stds), _records(grid, z, bounds, stds), table)
        which, a, b = np.unravel_index(np.argmax(found), found.shape)
        if found[which, a, b] < 0.9 * best:
            continue
        at, width, chosen = [grid[a], grid[b]], grid[1], table[[which]]
        for _ in range(9):
            lines = [np.linspace(x - width, x + width, 9) for x in at]
            near = [_records(line, r, bounds, stds) for line, r in zip(lines, (y, z), strict=True)]
            closer = distances(*near, chosen)[0]
            a, b = np.unravel_index(np.argmax(closer), closer.shape)
            at, width = [lines[0][a], lines[1][b]], width / 3.0
            best = max(best, float(closer[a, b]))
    return math.sqrt(best)


# ---- plans ---------------------------------------------------------------------------------------


def _bounds(plan: Any) -> tuple:
    clip = plan.clip
    if clip is None:
        return (1.0, -1.0, 1.0, 0.0, 0.0, plan.dimension)
    free = plan.dimension - (clip.constant > 0.0)
    return (clip.feature, clip.low, clip.high, clip.constant, clip.centre, free)


def linear_mu(plan: Any, relation: str = "replace", honest: int | None = None) -> float:
    """GDP parameter of all that a linear plan's parties release about one user.

    honest: how many silos' shares of a secure sum are counted; default those that are trusted.
    Binomial noise is taken for Gaussian noise of its variance, which is a little less private than
    it at no epsilon.

    Raises
    ------
    Unknown
        For plans that this module has no account of.
    """
    protocol = plan.protocol
    if plan.own is not None or plan.trigger is not None or protocol.senders != "silos":
        raise Unknown("coins, triggers and users' own messages")
    if (plan.privacy.max_participations, plan.privacy.budget.unit) != (1, "user"):
        raise Unknown("returning users, and rewards alone")
    bounds = _bounds(plan)
    if protocol.masked:
        made = plan.secure
        count = made.silos - made.colluders if honest is None else honest
        step = math.ldexp(made.unit, -made.factor_bits)
        stds = tuple(math.sqrt(count * n) / 2.0 * step for n in made.trials)
        rows = np.zeros((len(made.factor), len(made.factor)))
        for k, row in enumerate(made.factor):
            rows[k, : k + 1] = np.array(row, float) / 2.0**made.factor_bits
        return worst_mu(stds, bounds, pairs_of(rows), relation)
    if protocol.bits:
        return worst_mu((1.0, 1.0, 1.0), bounds, pairs_of(_bit_rows(plan)), relation)
    noisy = {"silos": protocol.randomizer in (2, 3, 5), "server": protocol.analyzer in (2, 4)}
    if not noisy.get(protocol.noise_by, False):
        return math.inf
    least = min(plan.silo_noise, default=1.0)
    stds = tuple(least * std for std in plan.noise_std.parts)
    return worst_mu(stds, bounds, pairs_of(strategy(plan)), relation)


def _bit_rows(plan: Any) -> np.ndarray:
    """Leaves in every released node, in units of its noise bits' standard deviation."""
    encoding, rows, weights = plan.encoding, [], []
    for release in range(1, plan.releases + 1):
        size = release & -release
        if plan.protocol.flat:
            size, level = 1, release - 1 if plan.release_rounds else 0
            points = plan.batch_of(release)
        else:
            level = size.bit_length() - 1
            points = plan.batch_size * size
        # (3/16) n b ones of variance, and 1/g of a unit each.
        coins = plan.silos * points * encoding.noise_bits[level] * plan.privacy.honest_fraction
        steps = min(encoding.steps(level))
        rows.append([release - size <= leaf < release for leaf in range(plan.releases)])
        weights.append(steps / math.sqrt(3.0 / 16.0 * coins))
    return np.array(rows, float) * np.array(weights)[:, None]
