"""The law of binomial noise as a Gaussian and a remainder that is bounded by computation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fastfed.bandits.noise_law import NoiseLaw, Remainder
from fastfed.privacy.binomial import BinomialTree
from fastfed.privacy.vector_batches import VectorBatches
from fastfed.protocols.plan import NoiseStd

#: Sub-Gaussian scale of one centred bit of mean 1/4, squared (Kearns and Saul 1998).
BIT_SCALE_SQUARED = 0.5 / (2.0 * math.log(3.0))
#: Variance of one bit of mean 1/4.
VARIANCE = 0.1875
#: Beyond this many bits the incomplete beta function is not trusted to the last digits.
MOST_COUPLED = 10**12
#: Spacing of the points at which the two distributions are compared, in standard deviations.
SPACING = 0.005


def bit_law(tree: BinomialTree, probability: float) -> NoiseLaw:
    """The noise of a vector-sum tree at each release; the coupling may fail with ``probability``.

    A prefix adds up its nodes, at most one of each level.
    """
    levels = range(tree.depth)
    held = [[k >> j & 1 for j in levels] for k in range(tree.releases + 1)]
    nodes = [Node(tree.users(j), tree.trials(j), (tree.g[j], tree.g[j])) for j in levels]
    law = _law(np.array(held, np.float64), nodes, tree.coordinates, probability)
    return replace(law, published_std=tree.published_std)


def batch_law(batches: VectorBatches, releases: int, probability: float) -> NoiseLaw:
    """The same for vector sums of single batches, which are added up."""
    node = Node(batches.batch_size, batches.trials, batches.g)
    held = np.arange(releases + 1.0)[:, None]
    return _law(held, [node], batches.coordinates, probability)


@dataclass(frozen=True)
class Node:
    """One vector sum: how many data points and noise bits an entry has, and g of both streams."""

    users: int
    trials: int
    g: tuple[int, int]


def _law(held: np.ndarray, nodes: list[Node], coordinates: int, probability: float) -> NoiseLaw:
    """The law of sums of nodes, ``held[k, j]`` of the j-th kind in release k.

    A node's entry is (Bin(N, 1/4) - N / 4 + rounding) / g. The binomial is a monotone function of
    a standard normal Z, and then differs from sigma Z by at most `coupling`; Z is independent of
    the data, as the bits are. The roundings of n points, each on an interval of length 1 and
    centred given all that came before, have sub-Gaussian scale sqrt(n) / 2: the points may depend
    on earlier noise, but which of them are in a release, and in which node, does not. Gaussian
    variances and squared scales add up, and so do the largest differences. Where the streams differ
    in g, the coarser one speaks for both, but for the Gaussian part.
    """
    releases = len(held) - 1
    held = held.reshape(releases + 1, len(nodes))
    draws = max(releases * coordinates, 1)
    coarse = [min(node.g) for node in nodes]
    rounding = [node.users / (4.0 * g**2) for node, g in zip(nodes, coarse, strict=True)]
    if nodes and nodes[-1].trials > MOST_COUPLED:
        # Too many bits to compare: the noise as sub-Gaussian as a whole.
        rounding = [
            r + BIT_SCALE_SQUARED * node.trials / g**2
            for node, g, r in zip(nodes, coarse, rounding, strict=True)
        ]
        spread, apart, probability = [0.0 for _ in nodes], [0.0 for _ in nodes], 0.0
    else:
        spread = [math.sqrt(VARIANCE * node.trials) for node in nodes]
        apart = [
            coupling(node.trials, probability / draws) / g
            for node, g in zip(nodes, coarse, strict=True)
        ]
    # Rounding compares with a number of 32 bits, which moves its mean by less than one of them.
    apart = [c + node.users * 2.0**-32 / g for node, g, c in zip(nodes, coarse, apart, strict=True)]
    bias = [s / node.g[0] for node, s in zip(nodes, spread, strict=True)]
    covariance = [s / node.g[1] for node, s in zip(nodes, spread, strict=True)]
    # Nodes differ by how their bits are rounded up; the law is in units of the largest.
    std, other = max(bias, default=0.0), max(covariance, default=0.0)
    variances = np.zeros(len(nodes))
    if std > 0.0:
        variances = np.square(np.maximum(np.array(bias) / std, np.array(covariance) / other))
    return NoiseLaw(
        NoiseStd(std, other, other),
        1,
        held @ variances,
        None,
        Remainder(held @ np.array(apart), np.sqrt(held @ np.array(rounding)), probability),
    )


def coupling(trials: int, probability: float) -> float:
    """Largest |X - N/4 - sigma Z|, but for an event of this probability; X ~ Bin(N, 1/4).

    X = F^-1(Phi(Z)) for a standard normal Z (and X and a uniform number make such a Z). Between
    two points a < b of a grid, with x(k) = Phi^-1(F(k)) and x(a) < Z <= x(b), X is in a + 1..b, so
    the difference lies between a + 1 - N/4 - sigma x(b) and b - N/4 - sigma x(a). Z beyond the
    grid or beyond its reach has at most this probability; the incomplete beta function is good to
    nine digits where it is used, so its error is less than 1e-4 of a bit.
    """
    from scipy.special import betainc, ndtri

    if trials == 0:
        return 0.0
    sigma, mean = math.sqrt(0.1875 * trials), 0.25 * trials
    reach = -float(ndtri(0.5 * probability)) + 1.0
    step = max(1, math.floor(SPACING * sigma))
    # The right tail of a binomial is heavier than its Gaussian's: reach further there.
    first = max(-1, math.floor(mean - (reach + 1.0) * sigma))
    last = min(trials, math.ceil(mean + (reach + 0.2 * reach * reach / sigma + 4.0) * sigma))
    k = np.unique(np.append(np.arange(first, last, step), last)).astype(np.float64)
    inside = (k >= 0) & (k < trials)
    below, above = np.where(k < 0, 0.0, 1.0), np.where(k < 0, 1.0, 0.0)
    below[inside] = betainc(trials - k[inside], k[inside] + 1.0, 0.75)
    above[inside] = betainc(k[inside] + 1.0, trials - k[inside], 0.25)
    x = np.where(below < 0.5, ndtri(below), -ndtri(above))
    kept = (x[1:] > -reach) & (x[:-1] < reach)
    if not (below[0] <= 0.5 * probability and above[-1] <= 0.5 * probability):
        return math.inf
    a, b = k[:-1][kept], k[1:][kept]
    left, right = np.maximum(x[:-1][kept], -reach), np.minimum(x[1:][kept], reach)
    low, high = a + 1.0 - mean - sigma * right, b - mean - sigma * left
    return float(np.maximum(np.abs(low), np.abs(high)).max())
