"""Prefix sums under noise: the tree of p-sums, Honaker's estimator, and factors of the prefix sums.

Which leaves each release covers, which releases a leaf touches, how noises of nodes or rows add up
to that of a prefix, and how far one record moves everything that is released.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache, cached_property, lru_cache

import numpy as np

from fastfed._validate import InputError, array, frozen, integer

# ---- The tree of p-sums --------------------------------------------------------------------------
#
# Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2. Leaves and releases are counted from
# 1. Release k is the sum of the 2^j leaves ending at k, where j is the index of k's lowest set bit.


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


# ---- Honaker: each node is estimated from its subtree --------------------------------------------
#
# Source: Honaker 2015, "Efficient use of differentially private binary trees", the online (bottom
# up) estimator. Leaves and releases are counted from 1. A node is (release, level): the sum of the
# 2^level leaves ending at `release`, complete then; unlike in Algorithm 2 of zhou-chowdhury-2024
# right children have noise too. With independent noise of variance 1 on every node,
#     estimate(node) = v_h own noisy value + (1 - v_h) (sum of its children's estimates),
#     v_0 = 1,  v_h = 1 / (1 + 1 / (2 v_{h-1})) = 2^h / (2^{h+1} - 1) -> 1/2,
# weighs both by their inverse variances, and has variance v_h itself. Prefix k adds up the
# estimates of its maximal blocks, one for each set bit of k, where the plain tree has variance 1
# each. Every estimate is unbiased, so a prefix is the exact sum plus a combination of noises.
#
# Privacy. Prefixes are all that is seen; the nodes' noises stay with whoever drew them. Prefix k
# less an earlier one is the estimate of the largest block that ends at k, so seen are, in this
# order, the estimates of just those blocks that the p-sum tree releases: all left children, and the
# maximal blocks of prefix K. Take such a block of level h. Noises of disjoint blocks are
# independent, and what is seen inside the block is seen earlier, so of all that was seen before
# only that bears on its estimate. Given that, let u_h be the estimate's variance and s_h(j) its
# shift by one unit in leaf j, of any block, seen or not; u_0 = s_0 = 1. The left child's estimate
# is seen, the right child's is not, but what is seen inside of it is:
#     u_h = v_h^2 + (1 - v_h)^2 u_{h-1},
#     s_h(j) = v_h + (1 - v_h) s_{h-1}(j) for j in the right child, and v_h for j in the left one.
# With 1 - v_h = (2^h - 1)/(2^{h+1} - 1) the first gives (2^{h+1} - 1)^2 u_h = 1 + 4 + ... + 4^h,
# and 1 - s_h = (1 - v_h)(1 - s_{h-1}) telescopes over a run of right children. Write G = h + 1, and
# G' for the same of the next smaller seen block around leaf j, 0 if there is none:
#     u = (4^G - 1) / (3 (2^G - 1)^2),   s = (2^G - 2^{G'}) / (2^G - 1).
# So everything seen is a sequence of Gaussian mechanisms, one for each seen block, and the squared
# sensitivity to leaf j, exactly, is the sum of
#     s^2 / u = 3 (2^G - 2^{G'})^2 / (4^G - 1)
# over the seen blocks around j. Later leaves may depend on what was seen: each step is given all
# earlier ones (in matrices: Denisov et al. 2022, Theorem 2.1, with the Cholesky factor of the
# prefixes' covariance). Records in several leaves add up their s/sqrt(u), none of which is
# negative: they do the most if all of them change alike.
#
# The worst leaf. Inside a block of level h any set of levels below h occurs as those of the seen
# blocks around a leaf. So W(G) = max over G' < G of W(G') + 3 (2^G - 2^{G'})^2/(4^G - 1), W(0) = 0,
# is the most for a leaf whose largest seen block has level G - 1. It increases in G (see G' = G -
# 1), and the largest block of all has level kappa - 1: the worst leaf has W(kappa), kappa =
# depth(K). Were all nodes seen, it would be kappa; W(kappa)/kappa is 0.864 at K = 400 and tends to
# 27/32, since G - G' = 2 adds the most for each level: every other block around the worst leaf is a
# left child.

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


def honaker_max_by_depth(size: int) -> float:
    """Compute W(size), the most that a leaf moves a complete block of level size - 1, squared."""
    return _worst(integer("size", size, at_least=0))[0]


def honaker_sensitivity_squared(releases: int) -> float:
    """Squared sensitivity of all prefixes to the worst leaf, W(kappa); 0 if nothing is released.

    Exact; proof: top of this module. O(kappa^2).
    """
    return honaker_max_by_depth(depth(releases))


def honaker_worst_leaf(releases: int) -> int:
    """Find a leaf at which `sensitivity_squared` is attained, 1 <= leaf <= releases."""
    releases = integer("releases", releases, at_least=1)
    size, leaf = depth(releases), 1
    while size:
        inner = _worst(size)[1]
        # Right children from level inner to level size - 2.
        leaf += ((1 << size - 1) - (1 << inner)) if inner < size - 1 else 0
        size = inner
    return leaf


def honaker_group_sensitivity_squared(leaves: Iterable[int], releases: int) -> float:
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


def honaker_weight(level: int) -> float:
    """Weight v_h of a node's own noisy value, and the variance of its estimate."""
    level = integer("level", level, at_least=0)
    return 1.0 / (2.0 - 0.5**level)


def honaker_coefficients(release: int) -> dict[Node, float]:
    """Coefficients c(node) with prefix k = sum of c(node) (raw + noise of the node), k = release.

    A node of level g under a block of level h has c = v_g prod_{g<j<=h} (1 - v_j) = v_h 2^{g-h},
    since 1 - v_j = v_j / (2 v_{j-1}).
    """
    found: dict[Node, float] = {}
    for end in prefix_nodes(release):
        top = node_level(end)
        for level in range(top + 1):
            c = honaker_weight(top) * 0.5 ** (top - level)
            first = end - (1 << top) + (1 << level)
            found.update(((last, level), c) for last in range(first, end + 1, 1 << level))
    return found


def honaker_prefix_variance(release: int) -> float:
    """Variance of the noise in prefix k = release, in units of one node's.

    Sum of v_h over the set bits h of k.
    """
    release = integer("release", release, at_least=0)
    return sum(honaker_weight(h) for h in range(release.bit_length()) if release >> h & 1)


def honaker_combine(estimates: np.ndarray, nodes: np.ndarray) -> None:
    """Update estimates in place: estimates[h] becomes that of the node of level h released now.

    estimates: (levels, s), of the latest block of each level, as the steps before left them. nodes:
    (h + 1, s), noisy values (or noises alone: the sums are not changed by it) of nodes_at this
    step, level 0 first. Prefix k then is the sum of estimates[j] over the set bits j of k, as the
    kernel `prefix` adds them. O(h s) a step, O(levels s) memory.
    """
    estimate = nodes[0]
    for level in range(1, len(nodes)):
        v = honaker_weight(level)
        estimate = v * nodes[level] + (1.0 - v) * (estimates[level - 1] + estimate)
    estimates[len(nodes) - 1] = estimate


# ---- The square-root Toeplitz factor -------------------------------------------------------------
#
# Source: Fichtenberger, Henzinger & Upadhyay 2023, "Constant matters". With gamma the (K, s)
# leaves and A the lower triangular matrix of ones, A = C C for the Toeplitz matrix
# C_ij = f_{i-j}, i >= j, where sum_k f_k x^k = (1 - x)^{-1/2}. Released is
#     A gamma + C z = C (C gamma + z),  z of independent N(0, noise_std^2) rows,
# so one leaf costs as much as a Gaussian mechanism of squared sensitivity S_K = sum_{k<K} f_k^2,
# the squared norm of C's first column, and prefix k has variance S_k noise_std^2.
#
# Later leaves may depend on what was released: C is invertible, so seeing k prefixes is seeing the
# first k rows of C gamma + z, and C is lower triangular, so row k is a Gaussian mechanism of leaves
# 1..k with noise of its own. These compose adaptively, mu^2 adding up to the column's norm (the
# general statement: Denisov et al. 2022, Theorem 2.1).


def toeplitz_coefficients(releases: int) -> np.ndarray:
    """Coefficients f_0, ..., f_{K-1} (K,) of (1 - x)^{-1/2}.

    f_0 = 1, f_k = f_{k-1} (2 k - 1) / (2 k) = binom(2k, k) / 4^k.
    """
    releases = integer("releases", releases, at_least=0, at_most=2**27)
    k = np.arange(1.0, max(releases, 1))
    return np.concatenate([np.ones(1), np.cumprod((2.0 * k - 1.0) / (2.0 * k))])[:releases]


def toeplitz_factor(releases: int) -> np.ndarray:
    """Matrix C (K, K), lower triangular, C C = the lower triangular matrix of ones; for small K."""
    f = toeplitz_coefficients(releases)
    i = np.arange(len(f))
    lag = i[:, None] - i
    return np.where(lag >= 0, f[lag], 0.0)


def toeplitz_prefix_variances(releases: int) -> np.ndarray:
    """Variances S_1, ..., S_K (K,) of the noise in each prefix, in units of noise_std^2."""
    result: np.ndarray = np.cumsum(toeplitz_coefficients(releases) ** 2)
    return result


def toeplitz_sensitivity_squared(releases: int) -> float:
    """Squared sensitivity S_K = sum_{k<K} f_k^2, about (ln K + 0.577 + ln 16) / pi.

    0 when nothing is released. The squared norm of C's longest column, which is that of the first
    leaf.
    """
    f = toeplitz_coefficients(releases)
    return float(f @ f)


def toeplitz_group_sensitivity_squared(leaves: Iterable[int], releases: int) -> float:
    """Squared sensitivity for records in these leaves, per unit of one record's sensitivity.

    ||C n||^2 with n the number of the group's records in each leaf: the bound by the triangle
    inequality in each row of C, attained when all records change by the same amount. Name a leaf
    as often as it holds a record of the group.
    """
    releases = integer("releases", releases, at_least=0)
    counts = np.zeros(releases)
    for leaf in leaves:
        counts[integer("leaf", leaf, at_least=1, at_most=releases) - 1] += 1.0
    if not counts.any():
        return 0.0
    rows = np.convolve(toeplitz_coefficients(releases), counts)[:releases]
    return float(rows @ rows)


def toeplitz_prefix_noise(normals: object) -> np.ndarray:
    """Noise of prefix k, (s,), from z_1, ..., z_k (k, s): row k of C z, sum_j f_{k-j} z_j.

    Rows must be drawn once and kept (or drawn again from their keys): every later prefix uses them.
    """
    z = array("normals", normals, ndim=2)
    result: np.ndarray = toeplitz_coefficients(len(z))[::-1] @ z
    return result


# ---- The optimal factor, over leaves of any lengths ----------------------------------------------
#
# With gamma the (K, s) leaves and A the lower triangular matrix of ones, A = B C for lower
# triangular B and C. Released is A gamma + B z = B (C gamma + z), z of independent N(0,
# noise_std^2) rows, so leaf j costs as much as one Gaussian mechanism of sensitivity ||C_j||, the
# norm of C's j-th column, and prefix k has variance ||B_k||^2 noise_std^2, B_k the k-th row.
#
# Later leaves may depend on what was released: C is lower triangular, so row k of C gamma + z is a
# Gaussian mechanism of leaves 1..k, and these compose adaptively (Denisov et al. 2022, Theorem
# 2.1).
#
# Of all C with columns of norm at most 1, `optimal_factor` takes the one with the least
#     sum_k weight_k ||B_k||^2 = tr(W X^-1),   X = C'C, W = A' diag(weight) A, diag X <= 1,
# which is convex in X. Where multipliers v > 0 of the diagonal satisfy X^-1 W X^-1 = diag(v),
#     X = v^(-1/2) (v^(1/2) W v^(1/2))^(1/2) v^(-1/2),
# and v <- v diag(X) leads there; any v bounds the least value from below by 2 tr((v^(1/2) W
# v^(1/2))^(1/2)) - sum(v), so the iteration knows when it is done. Whatever it returns is a
# factorisation, and the account is of its own numbers.

#: The most releases of a factorised plan: its matrix has that many squared numbers.
MOST_RELEASES = 1024
#: Relative distance from the least value at which the iteration stops, and its most steps.
GAP, STEPS = 1e-5, 2000
#: Entries of B are multiples of this: machines that round otherwise then agree on them.
GRID = 2.0**-24
#: Relative error of a computed sensitivity that is paid for, and the most that may be.
SLACK = 1e-9


class Factor:
    """Lower triangular B (K, K) of a factorised release, hashable by its content.

    Parameters
    ----------
    matrix : array_like, shape (K, K)
        Lower triangular, with positive diagonal.

    Raises
    ------
    InputError
        For another shape, an entry above the diagonal, a diagonal that is not positive, or a matrix
        so ill-conditioned that no sensitivity can be computed.
    """

    def __init__(self, matrix: object) -> None:
        checked = array("factor", matrix, ndim=2)
        if checked.shape[0] != checked.shape[1]:
            raise InputError(f"factor must be a square matrix, got shape {checked.shape}")
        if np.triu(checked, 1).any() or not (np.diag(checked) > 0.0).all():
            raise InputError("factor must be lower triangular with a positive diagonal")
        self.matrix = frozen(checked)

    def __reduce__(self) -> tuple[type[Factor], tuple[np.ndarray]]:
        """Pickle as the matrix alone, which is checked and frozen again where it is loaded."""
        return Factor, (self.matrix,)

    def __len__(self) -> int:
        """K, the number of releases."""
        return len(self.matrix)

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Factor) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        """Hash of the content, computed once."""
        return self._hash

    def __repr__(self) -> str:
        """Show the size."""
        return f"Factor({len(self)} releases)"

    @cached_property
    def _hash(self) -> int:
        return hash(self.matrix.tobytes())

    @cached_property
    def encoder(self) -> np.ndarray:
        """C = B^-1 A, (K, K), lower triangular: row k says how the leaves enter what is released.

        Computed in float64; no column is off by more than a tenth of ``SLACK`` of the largest norm.

        Raises
        ------
        InputError
            If it cannot be computed so precisely.
        """
        size = len(self)
        if not size:
            return np.zeros((0, 0))
        from scipy.linalg import solve_triangular

        ones = np.tri(size)
        made = np.tril(solve_triangular(self.matrix, ones, lower=True, check_finite=False))
        inverse = solve_triangular(self.matrix, np.eye(size), lower=True, check_finite=False)
        # B (C + E) = A makes E = B^-1 (A - B C). A residual is computed with an error of its own
        # size, at most K + 2 roundings of the sum of absolute products; B^-1 is needed roughly.
        left = np.abs(ones - self.matrix @ made)
        left += (size + 2) * 2.0**-53 * (np.abs(self.matrix) @ np.abs(made))
        error = np.abs(inverse) @ left
        norms = np.sqrt((made**2).sum(axis=0))
        if not np.sqrt((error**2).sum(axis=0).max()) <= 0.1 * SLACK * norms.max():
            raise InputError("factor is too ill-conditioned for an account of its sensitivity")
        return frozen(made)

    @cached_property
    def _products(self) -> np.ndarray:
        """Absolute inner products of the columns of C, each row in decreasing order, (K, K)."""
        found = np.abs(self.encoder.T @ self.encoder)
        found.sort(axis=1)
        return found[:, ::-1]

    def squared_sensitivity(self, returning: int = 1) -> float:
        """Squared sensitivity of the release to one user, per unit of one record's.

        The largest ||C_j||^2 for a user of one leaf. A user of the leaves S moves it by at most
        sum_{i, j in S} |C_i' C_j|, which is at most |S| times the largest sum of |S| entries of a
        row of |C'C|.
        """
        if not len(self):
            return 0.0
        most = min(returning, len(self))
        largest = float((self.encoder**2).sum(axis=0).max())
        if most == 1:
            return largest * (1.0 + 2.0 * SLACK)
        # An inner product is off by 0.3 SLACK times the largest at most, and so are all of them.
        row = float(self._products[:, :most].sum(axis=1).max())
        return most * (row + most * SLACK * largest)

    @cached_property
    def variances(self) -> np.ndarray:
        """Variances ||B_k||^2 of the noise in prefix k = 1..K, in units of noise_std^2, (K,)."""
        return frozen((self.matrix**2).sum(axis=1))


def optimal_factor(release_rounds: tuple[int, ...], horizon: int) -> Factor:
    """Factor whose noise costs a linear bandit least, for releases after these rounds.

    A prefix of n rounds serves the rounds until the next release with an error of its noise over n,
    so prefix k has weight (rounds that it serves) / n_k^2.

    Parameters
    ----------
    release_rounds : tuple of int, length K
        n_1 < ... < n_K, the rounds after which there is a release, at most `MOST_RELEASES`.
    horizon : int
        T >= n_K.

    Returns
    -------
    Factor
        B, its entries multiples of ``GRID``, with columns of C of norm 1 but for rounding.

    Raises
    ------
    InputError
        For too many releases, or rounds that do not increase.
    """
    horizon = integer("horizon", horizon, at_least=1)
    if len(release_rounds) > MOST_RELEASES:
        raise InputError(
            f'release "factorised" is for at most {MOST_RELEASES} releases, got '
            f'{len(release_rounds)}: batch_size = "growing" has fewer'
        )
    ends = np.array(release_rounds, dtype=np.int64)
    if len(ends) and not (ends[0] >= 1 and (np.diff(ends) > 0).all() and ends[-1] <= horizon):
        raise InputError("release_rounds must increase from 1 to the horizon at most")
    return _optimal(tuple(int(n) for n in ends), horizon)


@lru_cache(maxsize=64)
def _optimal(ends: tuple[int, ...], horizon: int) -> Factor:
    """Compute `optimal_factor` for arguments that were checked before."""
    if not ends:
        return Factor(np.zeros((0, 0)))
    rounds = np.array(ends, dtype=np.float64)
    served = np.maximum(np.append(rounds[1:], horizon) - rounds, 1.0)
    return factor_for(served / rounds**2)


def factor_for(weights: np.ndarray) -> Factor:
    """Factor with the least sum_k weights_k ||B_k||^2, for weights (K,) > 0."""
    from threadpoolctl import threadpool_limits

    # Several threads gain nothing at these sizes, and take many times as long on a busy machine.
    with threadpool_limits(1, "blas"):
        return _factor_for(weights)


def _factor_for(weights: np.ndarray) -> Factor:
    from scipy.linalg import solve_triangular

    size = len(weights)
    weights = weights / weights.sum()
    ones = np.tri(size)
    # W = root root'. Of v^(1/2) root the singular values are wanted: as roots of eigenvalues of its
    # square, which lie far apart where weights do, the small ones would be lost to rounding.
    root = ones.T * np.sqrt(weights)
    # A good start: X = I has v = diag(W).
    v = (root**2).sum(axis=1)
    for _ in range(STEPS):
        scale = np.sqrt(v)
        vectors, values, _ = np.linalg.svd(scale[:, None] * root)
        diagonal = (vectors**2 @ values) / v
        # X / max diag X is feasible, and costs max diag X times tr(W X^-1) = sum of ``values``.
        lower = 2.0 * values.sum() - v.sum()
        if diagonal.max() * values.sum() - lower <= GAP * lower:
            break
        v *= diagonal
    # X = Y'Y = C'C with C lower triangular: a QR decomposition from the last column on.
    y = np.sqrt(values)[:, None] * vectors.T / scale
    _, r = np.linalg.qr(y[:, ::-1])
    c = r[::-1, ::-1]
    c = np.tril(c * np.where(np.diag(c) < 0.0, -1.0, 1.0)[:, None])
    c /= np.sqrt((c**2).sum(axis=0).max())
    b = solve_triangular(c.T, ones.T, lower=False).T
    rounded = np.tril(np.round(b / GRID) * GRID)
    return Factor(rounded)
