"""The binary tree of p-sums: which leaves each release covers, and which releases a leaf touches.

Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2. Leaves and releases are counted from 1.
Release k is the sum of the 2^j leaves ending at k, where j is the index of k's lowest set bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fastfed._validate import InputError, integer


def node_level(release: int) -> int:
    """Level of the node released at this step: the index of the lowest set bit (i_k, line 5)."""
    k = integer("release", release, at_least=1)
    return (k & -k).bit_length() - 1


def node_span(release: int) -> tuple[int, int]:
    """First and last leaf summed in this release."""
    k = integer("release", release, at_least=1)
    return k - (k & -k) + 1, k


def prefix_nodes(release: int) -> tuple[int, ...]:
    """List the releases, in increasing order, whose nodes add up to prefix 1..release (line 14).

    They are disjoint and there is one for each set bit of release; 0 gives the empty prefix.
    """
    k = integer("release", release, at_least=0)
    nodes = []
    while k:
        nodes.append(k)
        k &= k - 1
    return tuple(reversed(nodes))


def depth(releases: int) -> int:
    """Number of levels kappa = floor(log2(releases)) + 1; 0 when nothing is released.

    The paper's 1 + log(T/B) has to be read with base 2.
    """
    return tree_levels(integer("releases", releases, at_least=0))


def tree_levels(releases: int) -> int:
    """Compute `depth` for a number that was checked before."""
    return releases.bit_length()


def touches(leaf: int, releases: int) -> tuple[int, ...]:
    """List the releases, in increasing order, whose node contains the leaf (1 to releases)."""
    releases = integer("releases", releases, at_least=1)
    k = integer("leaf", leaf, at_least=1, at_most=releases)
    found = []
    while k <= releases:
        found.append(k)
        k += k & -k  # the next larger node that ends a block holding this one
    return tuple(found)


def max_touches(releases: int) -> int:
    """Largest number of releases that any one leaf touches: depth(releases), attained by leaf 1.

    Levels along touches(leaf) strictly increase, so no leaf exceeds the depth, and leaf 1 touches
    1, 2, 4, ....
    """
    return depth(releases)


def max_prefix_nodes(releases: int) -> int:
    """Largest number of nodes that any prefix 1..k, k <= releases, is made of.

    The most set bits among 1..releases: all levels only if releases = 2^j - 1, else one fewer.
    """
    levels = depth(releases)
    return levels if releases == (1 << levels) - 1 else levels - 1


def group_sensitivity_squared(leaves: Iterable[int], releases: int) -> int:
    """Squared tree sensitivity for records in these leaves, per unit of one record's sensitivity.

    Sum over released nodes of (number of the records in the node)^2, by the triangle inequality in
    each node. Name a leaf as often as it holds a record of the group. At most len(leaves)^2
    depth(releases).
    """
    releases = integer("releases", releases, at_least=0)
    counts: Counter[int] = Counter()
    for leaf in leaves:
        if releases == 0:
            raise InputError(f"leaf must be an integer <= 0 (there are no releases), got {leaf}")
        counts.update(touches(leaf, releases))
    return sum(count * count for count in counts.values())
