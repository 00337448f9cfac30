"""The binary tree in which every node is released, and each node is estimated from its subtree.

Source: Honaker 2015, "Efficient use of differentially private binary trees", the online (bottom up)
estimator. Leaves and releases are counted from 1. A node is (release, level): the sum of the
2^level leaves ending at `release`, released then; unlike in Algorithm 2 of zhou-chowdhury-2024
right children are released too. With independent noise of variance 1 on every node,
    estimate(node) = v_h own noisy value + (1 - v_h) (sum of its children's estimates),
    v_0 = 1,  v_h = 1 / (1 + 1 / (2 v_{h-1})) = 2^h / (2^{h+1} - 1) -> 1/2,
weighs both by their inverse variances, and has variance v_h itself. Prefix k adds up the
estimates of its maximal blocks, one for each set bit of k, where the plain tree has variance 1
each. Every estimate is unbiased, so a prefix is the exact sum plus a combination of noises.

Later leaves may depend on what was released: each node has noise of its own, so the nodes are
Gaussian mechanisms composed adaptively, and a leaf is in at most kappa of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from fastfed._validate import InputError, integer
from fastfed.privacy.tree import depth, node_level, prefix_nodes

Node = tuple[int, int]


def nodes_at(release: int) -> tuple[Node, ...]:
    """The nodes (release, level) released at this step: those that end here, level 0 first."""
    return tuple((release, level) for level in range(node_level(release) + 1))


def node_count(releases: int) -> int:
    """Nodes released in all: 2 K minus the number of set bits of K."""
    releases = integer("releases", releases, at_least=0)
    return 2 * releases - releases.bit_count()


def node_number(release: int, level: int) -> int:
    """The place of a node in the order of release, from 1: a key for its noise, the same for all K.

    Release 1 has node 1; release 2 has nodes 2 (its leaf) and 3 (leaves 1 and 2).
    """
    top = node_level(release)
    level = integer("level", level, at_least=0, at_most=top)
    return node_count(release - 1) + level + 1


def touches(leaf: int, releases: int) -> tuple[Node, ...]:
    """Nodes that contain the leaf (1 <= leaf <= releases), level 0 first: one for each level whose
    block around the leaf is complete by the last release."""
    releases = integer("releases", releases, at_least=1)
    leaf = integer("leaf", leaf, at_least=1, at_most=releases)
    ends = ((-(-leaf >> level) << level, level) for level in range(depth(releases)))
    return tuple((end, level) for end, level in ends if end <= releases)


def max_touches(releases: int) -> int:
    """Largest number of nodes that any one leaf is in: kappa = depth(releases), as in the tree.

    There is at most one on each level, and leaf 1 is in the complete blocks of 1, 2, 4, ....
    """
    return depth(releases)


def group_sensitivity_squared(leaves: Iterable[int], releases: int) -> int:
    """Squared sensitivity for records in these leaves, per unit of one record's sensitivity.

    sum over nodes of (number of the records in the node)^2; see its namesake of the plain tree.
    """
    releases = integer("releases", releases, at_least=0)
    counts: Counter[Node] = Counter()
    for leaf in leaves:
        if releases == 0:
            raise InputError(f"leaf must be an integer <= 0 (there are no releases), got {leaf}")
        counts.update(touches(leaf, releases))
    return sum(count * count for count in counts.values())


def weight(level: int) -> float:
    """v_h: the weight of a node's own noisy value, and the variance of its estimate."""
    level = integer("level", level, at_least=0)
    return 1.0 / (2.0 - 0.5**level)


def coefficients(release: int) -> dict[Node, float]:
    """c(node) with prefix k = sum of c(node) (raw + noise of the node), k = release.

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
    """Variance of the noise in prefix k = release, in units of one node's: sum of v_h over the set
    bits h of k."""
    release = integer("release", release, at_least=0)
    return sum(weight(h) for h in range(release.bit_length()) if release >> h & 1)


def combine(estimates: np.ndarray, nodes: np.ndarray) -> None:
    """In place: estimates[h] becomes the estimate of the node of level h released now.

    estimates: (levels, s), of the latest block of each level, as the steps before left them.
    nodes: (h + 1, s), noisy values (or noises alone: the sums are not changed by it) of nodes_at
    this step, level 0 first. Prefix k then is the sum of estimates[j] over the set bits j of k, as
    the kernel `prefix` adds them. O(h s) a step, O(levels s) memory.
    """
    estimate = nodes[0]
    for level in range(1, len(nodes)):
        v = weight(level)
        estimate = v * nodes[level] + (1.0 - v) * (estimates[level - 1] + estimate)
    estimates[len(nodes) - 1] = estimate
