"""A second account of a plan's noise, written from the definition and using nothing of the package.

The first account knows the worst pair of records from a proof. This one searches for it. It adds
the statistics of two records, in units of the noise, to every release that contains them. Then it
takes the largest distance over records, rewards and leaves. Its result is a lower bound on the
epsilon of a Gaussian mechanism: a certificate below it is too small.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

#: Largest number of releases for which records that move between leaves are searched, too.
LEAVES = 128
#: Angles of a record in the first search.
ANGLES = 48


class Unknown(Exception):
    """This module has no account of such a plan."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta of a Gaussian mechanism of sensitivity mu.

    This is Theorem 8 of Balle and Wang (2018).
    """
    first = log_ndtr(mu / 2.0 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2.0 - epsilon / mu)
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a Gaussian mechanism of sensitivity mu at this delta."""
    if mu == math.inf:
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    upper_bound = 1.0
    while gaussian_delta(upper_bound, mu) > delta:
        upper_bound *= 2.0
    return brentq(
        lambda epsilon: gaussian_delta(epsilon, mu) - delta,
        0.0,
        upper_bound,
        xtol=1e-13,
        rtol=1e-13,
    )


# ---- Releases that contain a leaf ----------------------------------------------------------------


def tree_rows(releases: int) -> np.ndarray:
    """Return the leaves (columns) of every released node (rows).

    Release k completes a node of k & -k leaves.
    """
    rows = []
    for end in range(1, releases + 1):
        size = end & -end
        rows.append([end - size <= leaf < end for leaf in range(releases)])
    return np.array(rows, float)


def honaker_rows(releases: int) -> np.ndarray:
    """Return C of prefix sums of Honaker's estimates: K sums, whose noise is that of nodes below.

    The estimate of a node is the best mean of its own noisy sum and its children's estimates.
    """
    nodes: dict[tuple[int, int], int] = {}

    def estimate(end: int, size: int) -> tuple[dict[int, float], float]:
        """Return the weights of the nodes' noise in the estimate of a node, and its variance."""
        own_node = nodes.setdefault((end, size), len(nodes))
        if size == 1:
            return {own_node: 1.0}, 1.0
        (left, child_variance), (right, _) = (
            estimate(end - size // 2, size // 2),
            estimate(end, size // 2),
        )
        variance = 1.0 / (1.0 + 1.0 / (2.0 * child_variance))
        weights_below = {node: (1.0 - variance) * weight for node, weight in (left | right).items()}
        return weights_below | {own_node: variance}, variance

    sums = []
    for end in range(1, releases + 1):
        noise: dict[int, float] = {}
        position = end
        while position:
            noise |= estimate(position, position & -position)[0]
            position -= position & -position
        sums.append(noise)
    weights = np.array([[noise.get(node, 0.0) for node in range(len(nodes))] for noise in sums])
    return encoder_of(np.linalg.cholesky(weights @ weights.T))


def toeplitz(first: np.ndarray) -> np.ndarray:
    """Return the lower triangular Toeplitz matrix with this first column."""
    lags = np.subtract.outer(np.arange(len(first)), np.arange(len(first)))
    return np.where(lags >= 0, first[np.abs(lags)], 0.0)


def encoder_of(noise: np.ndarray) -> np.ndarray:
    """Return C of prefix sums whose noise is this lower triangular matrix times independent
    numbers."""
    return np.linalg.solve(noise, np.tril(np.ones(noise.shape)))


def strategy(plan: Any, reports: int | None = None) -> np.ndarray:
    """Return C: how much of each leaf (column) is in each value with independent noise (rows).

    It covers the first ``reports`` releases, or all.
    """
    releases, kind = reports or plan.releases, plan.release
    if kind == "tree":
        return tree_rows(releases)
    if kind == "honaker":
        return honaker_rows(releases)
    if kind == "factorised":
        return encoder_of(np.array(plan.factor.matrix))[:releases, :releases]
    if kind == "toeplitz":
        return toeplitz(np.array(plan.coefficients))[:releases, :releases]
    if kind == "buffered":
        direct, *pairs = np.array(plan.coefficients).tolist()
        lags = np.arange(releases)
        noise = direct * (lags == 0)
        for decay, weight in zip(pairs[::2], pairs[1::2], strict=True):
            noise = noise + weight * decay**lags
        return encoder_of(toeplitz(noise))
    raise Unknown(f"release {kind}")


def pairs_of(rows: np.ndarray) -> tuple[tuple[float, float, float], ...]:
    """Return (|C_i|^2, |C_j|^2, <C_i, C_j>) of the leaves of a record before and after its
    replacement."""
    gram = rows.T @ rows
    squares = np.diag(gram)
    if len(squares) > LEAVES:
        largest_square = float(squares.max())
        return ((largest_square, largest_square, largest_square),)
    i, j = np.triu_indices(len(squares))
    pairs = np.stack([squares[i], squares[j], gram[i, j]], axis=1)
    return tuple(map(tuple, np.unique(pairs, axis=0).tolist()))


# ---- The worst pair of records -------------------------------------------------------------------


def _records(angles: np.ndarray, reward: float, bounds: Any, stds: Any) -> np.ndarray:
    """Return the statistics (n, s) of records at these angles, in units of the noise."""
    feature, constant, centre = bounds[0], bounds[3], bounds[4]
    bias, off_diagonal, diagonal = stds
    x = feature * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if bounds[5] == 1:
        x = feature * np.sign(np.cos(angles))[:, None]
    if constant:
        x = np.hstack([x, np.full((len(x), 1), constant)])
    i, j = np.tril_indices(x.shape[1])
    moment = x[:, i] * x[:, j] / np.where(i == j, diagonal, off_diagonal)
    # Entries that only the code writes are public and have no noise.
    moment = moment[:, :-1] if constant else moment
    return np.hstack([x * (reward - centre) / bias, moment])


@lru_cache(maxsize=4096)
def worst_mu(stds: tuple, bounds: tuple, pairs: tuple, relation: str) -> float:
    """Return the largest distance of all releases over two neighbouring data sets, in units of the
    noise.

    `bounds` has the norm of features, lowest and highest reward, constant feature, centre of
    rewards, and number of free features. For `pairs` see `pairs_of`.
    """
    if min(stds) <= 0.0:
        return math.inf
    low, high = bounds[1], bounds[2]
    grid = np.linspace(0.0, 2.0 * math.pi, ANGLES, endpoint=False)
    table = np.array(pairs)
    best = 0.0
    if relation == "zero-out":
        size = max(
            np.max(np.sum(_records(grid, first_reward, bounds, stds) ** 2, axis=1))
            for first_reward in (low, high)
        )
        return math.sqrt(size * float(table[:, :2].max()))

    def distances(one: np.ndarray, two: np.ndarray, pair: np.ndarray) -> np.ndarray:
        """Return the squared distances (pairs, n, m) of two lists of records."""
        first, second = np.sum(one**2, axis=1), np.sum(two**2, axis=1)
        return (
            pair[:, 0, None, None] * first[:, None]
            + pair[:, 1, None, None] * second
            - 2.0 * pair[:, 2, None, None] * (one @ two.T)
        )

    for first_reward, second_reward in ((low, low), (low, high), (high, low), (high, high)):
        squared_distances = distances(
            _records(grid, first_reward, bounds, stds),
            _records(grid, second_reward, bounds, stds),
            table,
        )
        pair, a, b = np.unravel_index(np.argmax(squared_distances), squared_distances.shape)
        if squared_distances[pair, a, b] < 0.9 * best:
            continue
        angles, width, chosen = [grid[a], grid[b]], grid[1], table[[pair]]
        for _ in range(9):
            lines = [np.linspace(x - width, x + width, 9) for x in angles]
            near = [
                _records(angles_of_line, reward, bounds, stds)
                for angles_of_line, reward in zip(lines, (first_reward, second_reward), strict=True)
            ]
            closer = distances(*near, chosen)[0]
            a, b = np.unravel_index(np.argmax(closer), closer.shape)
            angles, width = [lines[0][a], lines[1][b]], width / 3.0
            best = max(best, float(closer[a, b]))
    return math.sqrt(best)


# ---- Plans ---------------------------------------------------------------------------------------


def _bounds(plan: Any) -> tuple:
    """Return (feature norm, least, largest reward, constant, centre, free features) of a plan."""
    clip = plan.clip
    if clip is None:
        return (1.0, -1.0, 1.0, 0.0, 0.0, plan.dimension)
    free_features = plan.dimension - (clip.constant > 0.0)
    return (clip.feature, clip.low, clip.high, clip.constant, clip.centre, free_features)


def linear_mu(
    plan: Any, relation: str = "replace", honest: int | None = None, reports: int | None = None
) -> float:
    """Return the GDP parameter mu of all that a linear plan's parties release about one user.

    honest: the number of silos whose shares of the noise are counted in a secure sum; by default
    the trusted silos.
    reports: the number of reports of the user's silo, if silos have their own clocks; default all.
    Binomial noise is replaced by Gaussian noise of the same variance, which is not less private at
    any epsilon.

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
        secure_sum = plan.secure
        count = secure_sum.silos - secure_sum.colluders if honest is None else honest
        step = math.ldexp(secure_sum.unit, -secure_sum.factor_bits)
        stds = tuple(math.sqrt(count * n) / 2.0 * step for n in secure_sum.trials)
        rows = np.zeros((len(secure_sum.factor), len(secure_sum.factor)))
        for k, row in enumerate(secure_sum.factor):
            rows[k, : k + 1] = np.array(row, float) / 2.0**secure_sum.factor_bits
        return worst_mu(stds, bounds, pairs_of(rows), relation)
    if protocol.bits:
        return worst_mu((1.0, 1.0, 1.0), bounds, pairs_of(_bit_rows(plan)), relation)
    # Randomizers SEND_NOISY_NODE, SEND_NOISY_PREFIX and SEND_NOISY_SUM; analyzers that add noise.
    noisy = {"silos": protocol.randomizer in (2, 3, 5), "server": protocol.analyzer in (2, 4)}
    if not noisy.get(protocol.noise_by, False):
        return math.inf
    least = min(plan.silo_noise, default=1.0)
    stds = tuple(least * std for std in plan.noise_std.parts)
    return worst_mu(stds, bounds, pairs_of(strategy(plan, reports)), relation)


def _bit_rows(plan: Any) -> np.ndarray:
    """Return the leaves in every released node, in units of its noise bits' standard deviation."""
    encoding, rows, weights = plan.encoding, [], []
    for release in range(1, plan.releases + 1):
        size = release & -release
        if plan.protocol.flat:
            size, level = 1, release - 1 if plan.release_rounds else 0
            points = plan.batch_of(release)
        else:
            level = size.bit_length() - 1
            points = plan.batch_size * size
        # The variance is (3/16) n b, in steps of 1/g of a unit.
        coins = plan.silos * points * encoding.noise_bits[level] * plan.privacy.honest_fraction
        steps = min(encoding.steps(level))
        rows.append([release - size <= leaf < release for leaf in range(plan.releases)])
        weights.append(steps / math.sqrt(3.0 / 16.0 * coins))
    return np.array(rows, float) * np.array(weights)[:, None]
