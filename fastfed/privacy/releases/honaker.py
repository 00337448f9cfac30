"""The binary tree in which each node is estimated from its subtree, and prefixes are released.

Source: Honaker 2015, "Efficient use of differentially private binary trees", the online (bottom up)
estimator. Leaves and releases are counted from 1. A node is (release, level): the sum of the
2^level leaves ending at `release`, complete then; unlike in Algorithm 2 of zhou-chowdhury-2024
right children have noise too. With independent noise of variance 1 on every node,
    estimate(node) = v_h own noisy value + (1 - v_h) (sum of its children's estimates),
    v_0 = 1,  v_h = 1 / (1 + 1 / (2 v_{h-1})) = 2^h / (2^{h+1} - 1) -> 1/2,
weighs both by their inverse variances, and has variance v_h itself. Prefix k adds up the
estimates of its maximal blocks, one for each set bit of k, where the plain tree has variance 1
each. Every estimate is unbiased, so a prefix is the exact sum plus a combination of noises.

Privacy. Prefixes are all that is seen; the nodes' noises stay with whoever drew them. Prefix k less
an earlier one is the estimate of the largest block that ends at k, so seen are, in this order, the
estimates of just those blocks that the p-sum tree releases: all left children, and the maximal
blocks of prefix K. Take such a block of level h. Noises of disjoint blocks are independent, and
what is seen inside the block is seen earlier, so of all that was seen before only that bears on its
estimate. Given that, let u_h be the estimate's variance and s_h(j) its shift by one unit in leaf j,
of any block, seen or not; u_0 = s_0 = 1. The left child's estimate is seen, the right child's is
not, but what is seen inside of it is:
    u_h = v_h^2 + (1 - v_h)^2 u_{h-1},
    s_h(j) = v_h + (1 - v_h) s_{h-1}(j) for j in the right child, and v_h for j in the left one.
With 1 - v_h = (2^h - 1)/(2^{h+1} - 1) the first gives (2^{h+1} - 1)^2 u_h = 1 + 4 + ... + 4^h, and
1 - s_h = (1 - v_h)(1 - s_{h-1}) telescopes over a run of right children. Write G = h + 1, and G'
for the same of the next smaller seen block around leaf j, 0 if there is none:
    u = (4^G - 1) / (3 (2^G - 1)^2),   s = (2^G - 2^{G'}) / (2^G - 1).
So everything seen is a sequence of Gaussian mechanisms, one for each seen block, and the squared
sensitivity to leaf j, exactly, is the sum of
    s^2 / u = 3 (2^G - 2^{G'})^2 / (4^G - 1)
over the seen blocks around j. Later leaves may depend on what was seen: each step is given all
earlier ones (in matrices: Denisov et al. 2022, Theorem 2.1, with the Cholesky factor of the
prefixes' covariance). Records in several leaves add up their s/sqrt(u), none of which is negative:
they do the most if all of them change alike.

The worst leaf. Inside a block of level h any set of levels below h occurs as those of the seen
blocks around a leaf. So W(G) = max over G' < G of W(G') + 3 (2^G - 2^{G'})^2/(4^G - 1), W(0) = 0,
is the most for a leaf whose largest seen block has level G - 1. It increases in G (see G' = G - 1),
and the largest block of all has level kappa - 1: the worst leaf has W(kappa), kappa = depth(K).
Were all nodes seen, it would be kappa; W(kappa)/kappa is 0.864 at K = 400 and tends to 27/32, since
G - G' = 2 adds the most for each level: every other block around the worst leaf is a left child.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import numpy as np

from fastfed._validate import InputError, integer
from fastfed.privacy.releases.tree import depth, node_level, prefix_nodes, touches

Node = tuple[int, int]


def nodes_at(release: int) -> tuple[Node, ...]:
    """List the nodes (release, level) complete at this step: those that end here, level 0 first."""
    return tuple((release, level) for level in range(node_level(release) + 1))


def node_count(releases: int) -> int:
    """Count the nodes complete after K releases: 2 K minus the number of set bits of K."""
    releases = integer("releases", releases, at_least=0)
    return 2 * releases - releases.bit_count()


def node_number(release: int, level: int) -> int:
    """Number of a node in the order of completion, from 1: its noise's key, the same for all K.

    Release 1 has node 1; release 2 has nodes 2 (its leaf) and 3 (leaves 1 and 2).
    """
    top = node_level(release)
    level = integer("level", level, at_least=0, at_most=top)
    return node_count(release - 1) + level + 1


def _squared_shift(size: int, inner: int) -> float:
    """Compute s^2 / u of a seen block with G = size and G' = inner."""
    return 3 * ((1 << size) - (1 << inner)) ** 2 / ((1 << 2 * size) - 1)


@cache
def _worst(size: int) -> tuple[float, int]:
    """Compute W(size), and the G' at which it is attained."""
    if size == 0:
        return 0.0, 0
    found = ((_worst(inner)[0] + _squared_shift(size, inner), inner) for inner in range(size))
    return max(found)


def max_by_depth(size: int) -> float:
    """Compute W(size), the most that a leaf moves a complete block of level size - 1, squared."""
    return _worst(integer("size", size, at_least=0))[0]


def sensitivity_squared(releases: int) -> float:
    """Squared sensitivity of all prefixes to the worst leaf, W(kappa); 0 if nothing is released.

    Exact; proof: top of this module. O(kappa^2).
    """
    return max_by_depth(depth(releases))


def worst_leaf(releases: int) -> int:
    """Find a leaf at which `sensitivity_squared` is attained, 1 <= leaf <= releases."""
    releases = integer("releases", releases, at_least=1)
    size, leaf = depth(releases), 1
    while size:
        inner = _worst(size)[1]
        # Right children from level inner to level size - 2.
        leaf += ((1 << size - 1) - (1 << inner)) if inner < size - 1 else 0
        size = inner
    return leaf


def group_sensitivity_squared(leaves: Iterable[int], releases: int) -> float:
    """Squared sensitivity for records in these leaves, per unit of one record's sensitivity.

    Sum over seen blocks of the square of the records' s/sqrt(u), exactly.
    """
    releases = integer("releases", releases, at_least=0)
    shifts: defaultdict[int, float] = defaultdict(float)
    for leaf in leaves:
        if releases == 0:
            raise InputError(f"leaf must be an integer <= 0 (there are no releases), got {leaf}")
        inner = 0
        for end in touches(leaf, releases):
            size = node_level(end) + 1
            shifts[end] += math.sqrt(_squared_shift(size, inner))
            inner = size
    return sum(shift * shift for shift in shifts.values())


def weight(level: int) -> float:
    """Weight v_h of a node's own noisy value, and the variance of its estimate."""
    level = integer("level", level, at_least=0)
    return 1.0 / (2.0 - 0.5**level)


def coefficients(release: int) -> dict[Node, float]:
    """Coefficients c(node) with prefix k = sum of c(node) (raw + noise of the node), k = release.

    A node of level g under a block of level h has c = v_g prod_{g<j<=h} (1 - v_j) = v_h 2^{g-h},
    since 1 - v_j = v_j / (2 v_{j-1}).
    """
    found: dict[Node, float] = {}
    for end in prefix_nodes(release):
        top = node_level(end)
        for level in range(top + 1):
            c = weight(top) * 0.5 ** (top - level)
            first = end - (1 << top) + (1 << level)
            found.update(((last, level), c) for last in range(first, end + 1, 1 << level))
    return found


def prefix_variance(release: int) -> float:
    """Variance of the noise in prefix k = release, in units of one node's.

    Sum of v_h over the set bits h of k.
    """
    release = integer("release", release, at_least=0)
    return sum(weight(h) for h in range(release.bit_length()) if release >> h & 1)


def combine(estimates: np.ndarray, nodes: np.ndarray) -> None:
    """Update estimates in place: estimates[h] becomes that of the node of level h released now.

    estimates: (levels, s), of the latest block of each level, as the steps before left them. nodes:
    (h + 1, s), noisy values (or noises alone: the sums are not changed by it) of nodes_at this
    step, level 0 first. Prefix k then is the sum of estimates[j] over the set bits j of k, as the
    kernel `prefix` adds them. O(h s) a step, O(levels s) memory.
    """
    estimate = nodes[0]
    for level in range(1, len(nodes)):
        v = weight(level)
        estimate = v * nodes[level] + (1.0 - v) * (estimates[level - 1] + estimate)
    estimates[len(nodes) - 1] = estimate
