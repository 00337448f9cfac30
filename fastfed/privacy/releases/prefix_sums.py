"""Prefix sums with noise: the tree of p-sums, Honaker's estimator, and matrix factorisations.

A leaf is one batch. A p-sum (partial sum) is the sum of the 2^j leaves that end at a release, and a
node of the binary tree. A prefix sum is the sum of all leaves so far. This module computes which
leaves each release covers, which releases a leaf enters, how the noise of nodes adds up to the
noise of a prefix sum, and the sensitivity of all releases to one record.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache, cached_property, lru_cache
from typing import ClassVar

import numpy as np

from fastfed._cache import cached
from fastfed._threads import one_blas_thread
from fastfed._validate import InputError, array, frozen, integer, number
from fastfed.privacy.releases.optimal_gram import optimal_gram

# ---- The tree of p-sums --------------------------------------------------------------------------
#
# Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2. Leaves and releases are
# numbered from 1. Release k is the sum of the 2^j leaves that end at k; j is the index of
# the lowest set bit of k.


def node_level(release: int) -> int:
    """Return the level of the node of release k: the index of the lowest set bit of k.

    k is ``release``. The level is i_k in line 5 of Algorithm 2 of zhou-chowdhury-2024.
    """
    k = integer("release", release, at_least=1)
    return (k & -k).bit_length() - 1


def prefix_nodes(release: int) -> tuple[int, ...]:
    """Return the releases whose nodes add up to the prefix 1..release, in increasing order.

    The nodes are disjoint. There is one for each set bit of ``release``, and none for 0.
    """
    k = integer("release", release, at_least=0)
    nodes = []
    while k:
        nodes.append(k)
        k &= k - 1  # clear the lowest set bit
    return tuple(reversed(nodes))


def depth(releases: int) -> int:
    """Return kappa = floor(log2(releases)) + 1, the number of levels of the tree.

    It is 0 without releases. In zhou-chowdhury-2024 it is 1 + log(T/B), with log to base 2.
    """
    return tree_levels(integer("releases", releases, at_least=0))


def tree_levels(releases: int) -> int:
    """Return the result of `depth`, without checking the argument."""
    return releases.bit_length()


def touches(leaf: int, releases: int) -> tuple[int, ...]:
    """Return the releases whose node contains a leaf, in increasing order.

    ``leaf`` is the leaf's number, from 1 to ``releases``.
    """
    releases = integer("releases", releases, at_least=1)
    release = integer("leaf", leaf, at_least=1, at_most=releases)
    releases_with_leaf = []
    while release <= releases:
        releases_with_leaf.append(release)
        # The next release whose node contains this node: add the lowest set bit.
        release += release & -release
    return tuple(releases_with_leaf)


def max_touches(releases: int) -> int:
    """Return the largest number of releases that one leaf enters: depth(releases).

    The levels of touches(leaf) strictly increase, so no leaf enters more releases than there are
    levels. Leaf 1 enters releases 1, 2, 4, ... and attains this number.
    """
    return depth(releases)


def max_prefix_nodes(releases: int) -> int:
    """Return the largest number of nodes that add up to a prefix 1..k with k <= releases.

    It is the largest number of set bits among 1..releases: the number of levels if
    releases = 2^j - 1, else one less.
    """
    levels = depth(releases)
    return levels if releases == (1 << levels) - 1 else levels - 1


def group_sensitivity_squared(leaves: Iterable[int], releases: int) -> int:
    """Return the squared sensitivity of the tree's releases to a group of records.

    The unit is the squared sensitivity of one leaf to one record. The result is the sum over
    released nodes of (number of the group's records in the node)^2, by the triangle inequality in
    each node. It is at most len(leaves)^2 depth(releases). ``leaves`` has the leaf of each record.
    """
    releases = integer("releases", releases, at_least=0)
    counts: Counter[int] = Counter()
    for leaf in leaves:
        if releases == 0:
            raise InputError(f"leaf must be an integer <= 0 (there are no releases), got {leaf}")
        counts.update(touches(leaf, releases))
    return sum(count * count for count in counts.values())


# ---- Honaker's estimator: each node is estimated from its subtree --------------------------------
#
# Source: Honaker 2015, "Efficient use of differentially private binary trees", the online (bottom
# up) estimator. Leaves and releases are numbered from 1. A node is (release, level): the sum of the
# 2^level leaves that end at `release`. It is complete at that release. Unlike in Algorithm 2 of
# zhou-chowdhury-2024, right children have noise too. With independent noise of variance 1 on every
# node, the estimate
#     estimate(node) = v_h (noisy value of the node) + (1 - v_h) (sum of its children's estimates),
#     v_0 = 1,  v_h = 1 / (1 + 1 / (2 v_{h-1})) = 2^h / (2^{h+1} - 1) -> 1/2,
# weights the noisy value and the children's estimates by their inverse variances, and has variance
# v_h. Here h is the level of the node. Prefix k is the sum of the estimates of its maximal blocks,
# one for each set bit of k. In the plain tree, each of these blocks has variance 1. Every estimate
# is unbiased, so a prefix is the exact sum plus a linear combination of noises.
#
# Privacy. Only prefixes are released; whoever drew the nodes' noise keeps it. Prefix k minus an
# earlier prefix is the estimate of the largest block that ends at k. So the releases are equivalent
# to the estimates, in this order, of the blocks that the p-sum tree releases: all left children,
# and the maximal blocks of prefix K. Call these blocks released.
#
# Take a released block of level h. Noises of disjoint blocks are independent, and released blocks
# inside the block are released earlier. So among the earlier releases, only those inside the block
# tell anything about its estimate. Given these, let u_h be the variance of the estimate, and s_h(j)
# the shift of its mean per unit in leaf j. Define u_h and s_h for all blocks, released or not, with
# u_0 = s_0 = 1. The left child's estimate is released. The right child's is not, but estimates
# inside the right child are. Hence
#     u_h = v_h^2 + (1 - v_h)^2 u_{h-1},
#     s_h(j) = v_h + (1 - v_h) s_{h-1}(j) for j in the right child, and v_h for j in the left child.
# With 1 - v_h = (2^h - 1)/(2^{h+1} - 1) the first gives (2^{h+1} - 1)^2 u_h = 1 + 4 + ... + 4^h,
# and 1 - s_h = (1 - v_h)(1 - s_{h-1}) telescopes over a run of right children. Write G = h + 1, and
# let G' be the same number for the next smaller released block around leaf j, or 0 without one:
#     u = (4^G - 1) / (3 (2^G - 1)^2),   s = (2^G - 2^{G'}) / (2^G - 1).
# The releases are thus a sequence of Gaussian mechanisms, one for each released block. The squared
# sensitivity to leaf j is exactly the sum of
#     s^2 / u = 3 (2^G - 2^{G'})^2 / (4^G - 1)
# over the released blocks around j. Later leaves may depend on earlier releases, because each step
# is conditioned on all earlier ones (in matrices: Denisov et al. 2022, Theorem 2.1, with the
# Cholesky factor of the prefixes' covariance). For records in several leaves, add up s/sqrt(u) in
# each block: no term is negative, so the worst case is that all records change alike.
#
# The worst leaf. Inside a block of level h, any set of levels below h occurs as the levels of the
# released blocks around some leaf. Define W(0) = 0 and
#     W(G) = max over G' < G of W(G') + 3 (2^G - 2^{G'})^2/(4^G - 1).
# W(G) is the largest squared sensitivity to a leaf whose largest released block has level G - 1. It
# increases in G (take G' = G - 1), and the largest block has level kappa - 1, so the worst leaf has
# W(kappa), kappa = depth(K). If all nodes were released, it would have kappa. W(kappa)/kappa is
# 0.864 at K = 400 and tends to 27/32, since G - G' = 2 adds the most per level: every other block
# around the worst leaf is a left child.

Node = tuple[int, int]


def nodes_at(release: int) -> tuple[Node, ...]:
    """Return the nodes (release, level) that are complete after leaf ``release``, level 0 first.

    Nodes that were complete before are not included.
    """
    return tuple((release, level) for level in range(node_level(release) + 1))


def node_count(releases: int) -> int:
    """Return the number of complete nodes after K = ``releases`` releases.

    It is 2 K minus the number of set bits of K.
    """
    releases = integer("releases", releases, at_least=0)
    return 2 * releases - releases.bit_count()


def node_number(release: int, level: int) -> int:
    """Return the number of a node in the order of completion, from 1.

    This number is the key of the node's noise. It does not depend on K. Release 1 completes node 1;
    release 2 completes nodes 2 (its leaf) and 3 (leaves 1 and 2).
    """
    top = node_level(release)
    level = integer("level", level, at_least=0, at_most=top)
    return node_count(release - 1) + level + 1


def _squared_leaf_effect(size: int, inner: int) -> float:
    """Return the squared sensitivity s^2 / u of a released block to one leaf in it.

    Given the earlier releases, s is the shift of the block's mean per unit in the leaf, and u is
    the block's variance. ``size`` is G, the block's level plus 1. ``inner`` is G', the level plus 1
    of the next smaller released block around the leaf, or 0 without one. See "Honaker's estimator"
    above.
    """
    return 3 * ((1 << size) - (1 << inner)) ** 2 / ((1 << 2 * size) - 1)


@cache
def _worst_nesting(size: int) -> tuple[float, int]:
    """Return (W(size), G'): the largest squared sensitivity to one leaf, and G' that attains it.

    ``size`` is the level plus 1 of the largest released block around the leaf. G' is the level plus
    1 of the next smaller one, or 0 without one. See "Honaker's estimator" above.
    """
    if size == 0:
        return 0.0, 0
    candidates = (
        (_worst_nesting(inner)[0] + _squared_leaf_effect(size, inner), inner)
        for inner in range(size)
    )
    return max(candidates)


def honaker_max_by_depth(size: int) -> float:
    """Return W(size), the largest squared sensitivity of Honaker's prefix sums to one leaf.

    The largest released block around the leaf has level size - 1. W is defined in the proof of
    "Honaker's estimator" above.
    """
    return _worst_nesting(integer("size", size, at_least=0))[0]


def honaker_sensitivity_squared(releases: int) -> float:
    """Return the squared sensitivity W(kappa) of all of Honaker's prefix sums to the worst leaf.

    The value is exact. kappa is the number of levels of the tree. The result is 0 without releases.
    The proof is at "Honaker's estimator" above. The time is O(kappa^2).
    """
    return honaker_max_by_depth(depth(releases))


def honaker_worst_leaf(releases: int) -> int:
    """Return the number of a leaf to which the prefix sums have the largest sensitivity.

    Leaves are numbered from 1. The squared sensitivity to this leaf is
    `honaker_sensitivity_squared`.
    """
    releases = integer("releases", releases, at_least=1)
    # Start with the largest block, of level size - 1, and its first leaf.
    size, leaf = depth(releases), 1
    while size:
        inner = _worst_nesting(size)[1]
        # A released block around the leaf has level size - 1, and the next smaller one level
        # inner - 1. The blocks in between must not be released, so they are right children.
        leaf += ((1 << size - 1) - (1 << inner)) if inner < size - 1 else 0
        size = inner
    return leaf


def honaker_group_sensitivity_squared(leaves: Iterable[int], releases: int) -> float:
    """Return the squared sensitivity of all of Honaker's prefix sums to a group of records.

    The unit is the squared sensitivity of one leaf to one record. ``leaves`` has the leaf of each
    record. The result is exact. In each released block, s/sqrt(u) is added up over the records,
    where s^2/u is `_squared_leaf_effect`. The result is the sum of the squares of these totals; see
    "Honaker's estimator" above.
    """
    releases = integer("releases", releases, at_least=0)
    shifts: defaultdict[int, float] = defaultdict(float)
    for leaf in leaves:
        if releases == 0:
            raise InputError(f"leaf must be an integer <= 0 (there are no releases), got {leaf}")
        inner = 0
        for end in touches(leaf, releases):
            size = node_level(end) + 1
            shifts[end] += math.sqrt(_squared_leaf_effect(size, inner))
            inner = size
    return sum(shift * shift for shift in shifts.values())


def honaker_weight(level: int) -> float:
    """Return v_h for level h: the weight of a node's noisy value in the estimate of its sum.

    It is also the variance of this estimate if every node has noise of variance 1.
    """
    level = integer("level", level, at_least=0)
    return 1.0 / (2.0 - 0.5**level)


def honaker_coefficients(release: int) -> dict[Node, float]:
    """Return the coefficient of each node's noisy value in the prefix sum k = release.

    A node of level g in a maximal block of level h has the coefficient
    v_g prod_{g<j<=h} (1 - v_j) = v_h 2^{g-h}, since 1 - v_j = v_j / (2 v_{j-1}). Here v is
    `honaker_weight`.
    """
    coefficients: dict[Node, float] = {}
    for end in prefix_nodes(release):
        top = node_level(end)
        for level in range(top + 1):
            c = honaker_weight(top) * 0.5 ** (top - level)
            first = end - (1 << top) + (1 << level)
            coefficients.update(((last, level), c) for last in range(first, end + 1, 1 << level))
    return coefficients


def honaker_prefix_variance(release: int) -> float:
    """Return the noise variance of Honaker's prefix sum k = ``release``, in units of one node's.

    The prefix is the sum of one estimate for each set bit h of k, of variance `honaker_weight`.
    """
    release = integer("release", release, at_least=0)
    return sum(honaker_weight(h) for h in range(release.bit_length()) if release >> h & 1)


def honaker_combine(estimates: np.ndarray, nodes: np.ndarray) -> None:
    """Compute Honaker's estimate of a release's largest node, and store it in ``estimates``.

    It is the largest of the nodes that end at the release.

    Parameters
    ----------
    estimates : ndarray (levels, s)
        The estimate of the latest block of each level, from earlier releases. The new estimate
        overwrites entry h, where h is the level of the largest node.
    nodes : ndarray (h + 1, s)
        Noisy values of the nodes that `nodes_at` returns for this release, level 0 first. Or only
        the noises of these nodes; the caller then adds the exact prefix sums to the results.

    Notes
    -----
    Afterwards prefix k is the sum of estimates[j] over the set bits j of k, which the kernel
    `prefix` adds up. Time O(h s) per step.
    """
    estimate = nodes[0]
    for level in range(1, len(nodes)):
        v = honaker_weight(level)
        estimate = v * nodes[level] + (1.0 - v) * (estimates[level - 1] + estimate)
    estimates[len(nodes) - 1] = estimate


# ---- The square-root Toeplitz factor -------------------------------------------------------------
#
# Source: Fichtenberger, Henzinger & Upadhyay 2023, "Constant matters". Let gamma be the (K, s)
# leaves and A the lower triangular matrix of ones. Then A = C C for the Toeplitz matrix
# C_ij = f_{i-j}, i >= j, where sum_k f_k x^k = (1 - x)^{-1/2}. The release is
#     A gamma + C z = C (C gamma + z),  where z has independent N(0, noise_std^2) rows.
# One leaf costs as much as a Gaussian mechanism of squared sensitivity S_K = sum_{k<K} f_k^2, the
# squared norm of C's first column. Prefix k has noise variance S_k noise_std^2.
#
# Later leaves may depend on earlier releases: C is invertible, so the first k prefixes are
# equivalent to the first k rows of C gamma + z. C is lower triangular, so row k is a Gaussian
# mechanism of leaves 1..k with independent noise. These mechanisms compose adaptively, and their
# mu^2 add up to the column's squared norm (in general: Denisov et al. 2022, Theorem 2.1).


def toeplitz_coefficients(releases: int) -> np.ndarray:
    """Return the coefficients f_0, ..., f_{K-1} (K,) of (1 - x)^{-1/2}.

    f_0 = 1, f_k = f_{k-1} (2 k - 1) / (2 k) = binom(2k, k) / 4^k.
    """
    releases = integer("releases", releases, at_least=0, at_most=2**27)
    k = np.arange(1.0, max(releases, 1))
    return np.concatenate([np.ones(1), np.cumprod((2.0 * k - 1.0) / (2.0 * k))])[:releases]


def toeplitz_factor(releases: int) -> np.ndarray:
    """Return the lower triangular matrix C (K, K) with C C = A, for small K.

    A is the lower triangular matrix of ones, which maps leaves to prefix sums.
    """
    f = toeplitz_coefficients(releases)
    i = np.arange(len(f))
    lag = i[:, None] - i
    return np.where(lag >= 0, f[lag], 0.0)


def toeplitz_prefix_variances(releases: int) -> np.ndarray:
    """Return the noise variances S_1, ..., S_K (K,) of the prefix sums, in units of noise_std^2."""
    result: np.ndarray = np.cumsum(toeplitz_coefficients(releases) ** 2)
    return result


def toeplitz_sensitivity_squared(releases: int) -> float:
    """Return the squared sensitivity S_K = sum_{k<K} f_k^2 of all releases to one record.

    It is about (ln K + 0.577 + ln 16) / pi, and 0 without releases. Here f are the
    `toeplitz_coefficients`. S_K is the squared norm of the first column of C (`toeplitz_factor`),
    the column with the largest norm.
    """
    f = toeplitz_coefficients(releases)
    return float(f @ f)


def toeplitz_prefix_noise(normals: object) -> np.ndarray:
    """Return the noise (s,) of prefix k, in units of noise_std.

    ``normals`` (k, s) has rows z_1, ..., z_k of standard normals. The noise is sum_j f_{k-j} z_j,
    where f are the `toeplitz_coefficients`. All later prefixes use the same rows. So draw each row
    once and store it, or draw it again from its key.
    """
    z = array("normals", normals, ndim=2)
    result: np.ndarray = toeplitz_coefficients(len(z))[::-1] @ z
    return result


# ---- The optimal factor, for leaves of any lengths -----------------------------------------------
#
# Let gamma be the (K, s) leaves and A the lower triangular matrix of ones, with A = B C for
# lower triangular B and C. The release is A gamma + B z = B (C gamma + z), where z has
# independent N(0, noise_std^2) rows. Leaf j costs as much as one Gaussian mechanism of
# sensitivity ||C_j||, the norm of C's j-th column. Prefix k has noise variance ||B_k||^2
# noise_std^2, B_k being the k-th row.
#
# Later leaves may depend on earlier releases: C is lower triangular, so row k of C
# gamma + z is a Gaussian mechanism of leaves 1..k, and these compose adaptively
# (Denisov et al. 2022, Theorem 2.1).
#
# Among all C whose columns have norm at most 1, `optimal_factor` computes the one with the smallest
# weighted sum of these variances (the module `optimal_gram`).

#: Largest number of releases of a factorised plan, whose matrix has K^2 numbers. Its factor and
#: encoder take half a second for 1024 releases and 15 seconds for 4096.
MAX_RELEASES = 4096
#: Factors of more releases than this are large in memory, so only two of them are cached.
LARGE = 1024
#: Entries of B are rounded to multiples of this number, so that all machines compute the same B.
GRID = 2.0**-24
#: Bound on the relative error of a computed sensitivity. Results are increased to cover it.
SLACK = 1e-9


class Factor:
    """The lower triangular matrix B (K, K) of a factorised release, hashable by its content.

    Parameters
    ----------
    matrix : array_like, shape (K, K)
        Lower triangular, with positive diagonal.

    Raises
    ------
    InputError
        For a shape that is not square, an entry above the diagonal, or a diagonal that is not
        positive. `encoder` raises it for a matrix that is too ill-conditioned.
    """

    #: A factor never changes (`fastfed.privacy.numbers.is_immutable`).
    IMMUTABLE: ClassVar = True

    matrix: np.ndarray

    def __init__(self, matrix: object) -> None:
        """Check the matrix, and store a read-only copy."""
        square = array("factor", matrix, ndim=2)
        if square.shape[0] != square.shape[1]:
            raise InputError(f"factor must be a square matrix, got shape {square.shape}")
        if np.triu(square, 1).any() or not (np.diag(square) > 0.0).all():
            raise InputError("factor must be lower triangular with a positive diagonal")
        object.__setattr__(self, "matrix", frozen(square))

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse every change."""
        raise AttributeError(f"{name} of a Factor cannot change: make a new Factor")

    def __reduce__(self) -> tuple[type[Factor], tuple[np.ndarray]]:
        """Pickle only the matrix, which is checked and frozen again when it is loaded."""
        return Factor, (self.matrix,)

    def __len__(self) -> int:
        """Return K, the number of releases."""
        return len(self.matrix)

    def first(self, releases: int) -> Factor:
        """Return the factor of the first ``releases`` releases, whose noise is the same."""
        return Factor(self.matrix[:releases, :releases])

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Factor) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        """Return the hash of the content, computed once."""
        return self._hash

    def __repr__(self) -> str:
        """Show the number of releases."""
        return f"Factor({len(self)} releases)"

    @cached_property
    def _hash(self) -> int:
        """Return the hash of the matrix's bytes."""
        return hash(self.matrix.tobytes())

    @cached_property
    def encoder(self) -> np.ndarray:
        """The encoder C = B^-1 A, (K, K), lower triangular.

        B is `matrix`, and A is the lower triangular matrix of ones. Noise is added to the K sums
        C gamma of the leaves gamma; row k of C has the weights of the leaves in the k-th sum.

        The float64 error of each column is at most SLACK / 10 times the largest column norm.

        Raises
        ------
        InputError
            If B is too ill-conditioned for this accuracy.
        """
        size = len(self)
        if not size:
            return np.zeros((0, 0))
        with one_blas_thread():
            return self._compute_encoder()

    def _compute_encoder(self) -> np.ndarray:
        """Return `encoder`. Raise InputError if its rounding error may be too large."""
        from scipy.linalg import solve_triangular

        size = len(self)
        a = np.tri(size)
        encoder = np.tril(solve_triangular(self.matrix, a, lower=True, check_finite=False))
        inverse = solve_triangular(self.matrix, np.eye(size), lower=True, check_finite=False)
        # Let C be the computed encoder and C + E the exact one. Then B (C + E) = A gives
        # E = B^-1 (A - B C). The computed residual A - B C has an error of at most K + 2 roundings
        # of the sum of absolute products. B^-1 is needed only roughly.
        residual = np.abs(a - self.matrix @ encoder)
        residual += (size + 2) * 2.0**-53 * (np.abs(self.matrix) @ np.abs(encoder))
        error = np.abs(inverse) @ residual
        norms = np.sqrt((encoder**2).sum(axis=0))
        if not np.sqrt((error**2).sum(axis=0).max()) <= 0.1 * SLACK * norms.max():
            raise InputError("factor is too ill-conditioned for an account of its sensitivity")
        return frozen(encoder)

    @cached_property
    def _products(self) -> np.ndarray:
        """Return |C'C| (K, K) for the encoder C, with each row sorted in decreasing order."""
        encoder = self.encoder
        with one_blas_thread():
            products = np.abs(encoder.T @ encoder)
        products.sort(axis=1)
        return products[:, ::-1]

    def squared_sensitivity(self, returning: int = 1) -> float:
        """Return a bound on the squared sensitivity of all releases to one user.

        The unit is the squared sensitivity of one leaf to one record. The user takes part in up to
        ``returning`` leaves. Let C_j be column j of the `encoder` C. For a user of one leaf the
        squared sensitivity is the largest ||C_j||^2. For a user of the leaves S it is at most
        sum_{i, j in S} |C_i' C_j|. That sum is at most |S| times the largest sum of |S| entries of
        a row of |C'C|. The result is increased slightly to cover rounding.
        """
        if not len(self):
            return 0.0
        leaves = min(returning, len(self))
        largest_norm_squared = float((self.encoder**2).sum(axis=0).max())
        if leaves == 1:
            return largest_norm_squared * (1.0 + 2.0 * SLACK)
        # Rounding: each computed C_i' C_j has an error of at most 0.3 SLACK times the largest
        # ||C_j||^2.
        largest_row_sum = float(self._products[:, :leaves].sum(axis=1).max())
        return leaves * (largest_row_sum + leaves * SLACK * largest_norm_squared)

    @cached_property
    def variances(self) -> np.ndarray:
        """The noise variances of prefix sums k = 1..K, (K,), in units of noise_std^2."""
        return frozen((self.matrix**2).sum(axis=1))


def optimal_factor(
    release_rounds: tuple[int, ...], horizon: int, saturation: float = 0.0
) -> Factor:
    """Return the factor whose noise costs a linear bandit the least regret.

    Releases are after the given rounds. A prefix sum of n rounds is used in all rounds until the
    next release, and its error is its noise divided by n. So the noise variance of prefix k has
    weight (rounds in which the prefix is used) / (n_k^2 + n0^2). The term n0^2 reduces the weight
    of prefixes of fewer than n0 rounds, because the regret of a round is bounded, however large the
    noise is.

    Parameters
    ----------
    release_rounds : tuple of int, length K
        n_1 < ... < n_K, the rounds after which there is a release; K <= `MAX_RELEASES`.
    horizon : int
        T >= n_K, the last round.
    saturation : float, default 0
        n0 >= 0, in rounds.

    Returns
    -------
    Factor
        The matrix B, with entries that are multiples of ``GRID``. The columns of its `encoder` have
        norm 1 up to rounding.

    Raises
    ------
    InputError
        For too many releases, and for rounds that do not increase.
    """
    horizon = integer("horizon", horizon, at_least=1)
    if len(release_rounds) > MAX_RELEASES:
        raise InputError(
            f'release "factorised" is for at most {MAX_RELEASES} releases, got '
            f'{len(release_rounds)}: batch_size = "growing" has fewer'
        )
    ends = np.array(release_rounds, dtype=np.int64)
    if len(ends) and not (ends[0] >= 1 and (np.diff(ends) > 0).all() and ends[-1] <= horizon):
        raise InputError("release_rounds must increase from 1 to the horizon at most")
    saturation = number("saturation", saturation, at_least=0.0)
    cached_factor = _cached_optimal_factor if len(ends) <= LARGE else _cached_large_factor
    return cached_factor(tuple(int(n) for n in ends), horizon, saturation)


@lru_cache(maxsize=64)
def _cached_optimal_factor(ends: tuple[int, ...], horizon: int, saturation: float) -> Factor:
    """Return the result of `optimal_factor`, cached, without checking the arguments."""
    if not ends:
        return Factor(np.zeros((0, 0)))
    matrix, encoder = _factor_and_encoder(ends, horizon, saturation)
    factor = Factor(matrix)
    factor.__dict__["encoder"] = encoder  # a cached property
    return factor


#: The same function for large factors, which may have 130 MB: only the last two stay in memory.
_cached_large_factor = lru_cache(maxsize=2)(_cached_optimal_factor.__wrapped__)


@cached
def _factor_and_encoder(
    ends: tuple[int, ...], horizon: int, saturation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (B, C): the noise matrix and the encoder (`Factor.encoder`) of `optimal_factor`.

    ``ends`` are the rounds after which there is a release.
    """
    rounds = np.array(ends, dtype=np.float64)
    rounds_served = np.maximum(np.append(rounds[1:], horizon) - rounds, 1.0)
    factor = factor_for(rounds_served / (rounds**2 + saturation**2))
    return factor.matrix, factor.encoder


def factor_for(weights: np.ndarray) -> Factor:
    """Return the factor B with the least weighted noise, for weights (K,) > 0 of the prefix sums.

    B minimises sum_k weights_k ||B_k||^2, where B_k is row k, among factors whose encoder
    B^-1 A has columns of norm at most 1 (A: the lower triangular matrix of ones). The columns of
    the result's encoder have norm 1.
    """
    with one_blas_thread():
        return _compute_factor(weights)


def _compute_factor(weights: np.ndarray) -> Factor:
    """Return the factor B = A C^-1 of `factor_for`, without its limit on threads.

    C is computed from its optimal Gram matrix C'C. A is the lower triangular matrix of ones. The
    entries of B are rounded to multiples of ``GRID``.
    """
    from scipy.linalg import cholesky, solve_triangular

    a = np.tri(len(weights))
    # X = C'C with C lower triangular: a Cholesky decomposition that starts at the last column.
    flipped = optimal_gram(weights)[::-1, ::-1]
    c = cholesky(flipped, check_finite=False)[::-1, ::-1]
    c = c / np.sqrt((c**2).sum(axis=0).max())
    b = solve_triangular(c.T, a.T, lower=False, check_finite=False).T
    return Factor(np.tril(np.round(b / GRID) * GRID))
