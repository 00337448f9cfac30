"""The binary tree of p-sums, against counting by brute force."""

from __future__ import annotations

import math

import pytest

from fastfed._validate import InputError
from fastfed.privacy.releases.prefix_sums import (
    depth,
    group_sensitivity_squared,
    max_prefix_nodes,
    max_touches,
    node_level,
    prefix_nodes,
    touches,
)

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100]
REFERENCE = [  # releases, levels, largest prefix, touches of leaves 1..8, largest, mean
    (1, 1, 1, [1, 0, 0, 0, 0, 0, 0, 0], 1, 1.0),
    (7, 3, 3, [3, 2, 2, 1, 2, 1, 1, 0], 3, 1.7142857142857142),
    (8, 4, 3, [4, 3, 3, 2, 3, 2, 2, 1], 4, 2.5),
    (40, 6, 5, [6, 5, 5, 4, 5, 4, 4, 3], 6, 3.3),
    (400, 9, 8, [9, 8, 8, 7, 8, 7, 7, 6], 9, 4.76),
    (1000, 10, 9, [10, 9, 9, 8, 9, 8, 8, 7], 10, 5.06),
]
GROUPS = [  # releases, leaves 1..n, squared sensitivity, the bound n^2 kappa
    (400, 2, 33, 36),
    (400, 8, 412, 576),
    (400, 32, 4592, 9216),
    (1000, 2, 37, 40),
    (1000, 8, 476, 640),
    (1000, 32, 5616, 10240),
]


def released_sums(releases: int) -> list[set[int]]:
    """Return the set of leaves in each released node, by the recursion of Algorithm 2 on sets."""
    alphas: dict[int, set[int]] = {}
    released = []
    for k in range(1, releases + 1):
        level = next(j for j in range(64) if k >> j & 1)  # line 5
        node = set().union({k}, *(alphas.get(j, set()) for j in range(level)))  # line 6
        alphas[level] = node
        for j in range(level):
            alphas[j] = set()
        released.append(node)
    return released


@pytest.mark.parametrize("releases", SIZES)
def test_nodes_and_prefixes_equal_those_of_the_algorithm_on_sets(releases: int) -> None:
    nodes = released_sums(releases)
    for k, node in enumerate(nodes, 1):
        assert node == set(range(k + 1 - 2 ** node_level(k), k + 1))
        prefix = [nodes[j - 1] for j in prefix_nodes(k)]
        assert set().union(*prefix) == set(range(1, k + 1))
        assert sum(len(p) for p in prefix) == k, "the nodes of a prefix are disjoint"
        assert list(prefix_nodes(k)) == sorted(prefix_nodes(k))
    counts = []
    for leaf in range(1, releases + 1):
        holding = tuple(k for k, node in enumerate(nodes, 1) if leaf in node)
        assert touches(leaf, releases) == holding
        counts.append(len(holding))
    assert max_touches(releases) == max(counts) == counts[0]
    assert max_prefix_nodes(releases) == max(len(prefix_nodes(k)) for k in range(1, releases + 1))


@pytest.mark.parametrize(
    ("releases", "levels", "prefix", "first", "most", "mean"),
    REFERENCE,
    ids=[str(row[0]) for row in REFERENCE],
)
def test_reference_counts(
    releases: int, levels: int, prefix: int, first: list[int], most: int, mean: float
) -> None:
    counts = [len(touches(leaf, releases)) for leaf in range(1, releases + 1)]
    assert depth(releases) == levels
    assert max_prefix_nodes(releases) == prefix
    assert (counts + [0] * 8)[:8] == first
    assert max(counts) == max_touches(releases) == most
    assert sum(counts) / releases == pytest.approx(mean, rel=1e-12)


def test_depth_is_the_binary_logarithm() -> None:
    for power in range(1, 20):
        assert depth(2**power - 1) == power
        assert depth(2**power) == power + 1
        assert depth(2**power + 1) == power + 1
    # The natural logarithm would count too few nodes.
    assert 1 + math.log(400) < 7 < max_touches(400) == 9


def test_trees_without_releases_have_no_nodes() -> None:
    assert depth(0) == max_touches(0) == max_prefix_nodes(0) == 0
    assert prefix_nodes(0) == ()
    assert group_sensitivity_squared([], 0) == 0


@pytest.mark.parametrize(("releases", "n", "squared", "bound"), GROUPS)
def test_group_sensitivity(releases: int, n: int, squared: int, bound: int) -> None:
    leaves = range(1, n + 1)
    assert group_sensitivity_squared(leaves, releases) == squared
    assert bound == n * n * depth(releases)
    assert squared <= bound


def test_group_sensitivity_against_counting() -> None:
    nodes = released_sums(100)
    for leaves in ([5], [1, 1, 1], [3, 4, 50, 51, 99, 100], [64, 64, 2], list(range(20, 60))):
        expected = sum(sum(leaf in node for leaf in leaves) ** 2 for node in nodes)
        assert group_sensitivity_squared(leaves, 100) == expected
    # Twice the same record in one leaf is twice its change in every node.
    assert group_sensitivity_squared([1, 1], 400) == 4 * 9
    # Leaves far apart share few nodes and cost little.
    assert group_sensitivity_squared([1, 101, 201, 301], 400) < group_sensitivity_squared(
        [1, 2, 3, 4], 400
    )


def test_errors_name_the_bad_argument() -> None:
    with pytest.raises(InputError, match="leaf must be an integer >= 1 and <= 8, got 9"):
        touches(9, 8)
    with pytest.raises(InputError, match="release must be an integer >= 1, got 0"):
        node_level(0)
    with pytest.raises(InputError, match="releases must be an integer >= 0, got -1"):
        depth(-1)
    with pytest.raises(InputError, match="no releases"):
        group_sensitivity_squared([1], 0)
