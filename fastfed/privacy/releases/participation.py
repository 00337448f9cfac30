"""Sensitivity of a continual release to all records of one user, who may take part several times.

A user takes part in at most M0 = `returning` batches, at most once in each: in at most M0 distinct
leaves. Consider a node that contains c of these records. By the triangle inequality it changes by
at most c times the change that one record causes. So the squared sensitivity of all releases, per
unit of one record's, is at most the sum of c^2 over the released nodes (for "toeplitz": ||C n||^2,
where n is one in the user's leaves and zero elsewhere). It is attained if all records change alike.
If the batches are at different silos with independent noise, the value is not larger, because c^2
is replaced by the sum of squares of the parts of c.

Claim: for "tree" and "toeplitz" with K >= M0 leaves, the first M0 leaves are the worst case. This
would also hold for "honaker" if all its nodes were released. Fewer are released, and a bound for
them is proven below.

"toeplitz". ||C n||^2 is the sum of (C'C)_ij over all pairs of chosen leaves. For i <= j this entry
is sum_{l=0}^{K-j} f_l f_{l+j-i}, f positive and decreasing ("buffered": c in place of f). It
decreases in the gap j - i and in j. The a-th smallest chosen leaf is at least a, and the gap of the
a-th and b-th is at least |b - a|, with equality for the first leaves.

"honaker", all nodes. Level j has floor(K / 2^j) nodes, each with c <= 2^j, and all c of a level sum
to at most M0. A sum of squares is convex, so it is largest with as many full nodes as possible and
the rest in one node. The first M0 leaves do this on every level at once. Let N_j(M0) be the
resulting sum of c^2 on level j.

"honaker", as released: prefixes only (see `prefix_sums`, also for W, u, s). Here the sum of
s/sqrt(u) over the user's leaves takes the place of c. For each l = 0, ..., kappa, the squared
sensitivity is at most
    N_0(M0) + ... + N_{l-1}(M0) + M0^2 W(kappa - l).
Proof. Suppose that all nodes of the levels below l were released too. This can only increase the
sensitivity. These nodes contribute N_0(M0) + ... + N_{l-1}(M0). Given these nodes, the estimates on
level l - 1 are known, so u = s = 0 there in the recursions of u and s. This gives 3 (2^G -
2^{G'})^2 / (4^G - 4^l), l <= G' < G, for a released block above: the value for G - l and G' - l.
One leaf thus adds at most W(kappa - l), and M0 leaves at most M0^2 as much. The code takes the
smallest bound over l. l = 0 is exact for M0 = 1; l = kappa is the bound of all nodes.

"tree". The releases are the left children and the maximal blocks of prefix K, one for each set bit
of K. Here the first leaves are not the worst case on each level, but their sum over levels is. Let
T_h(n) be the sum of c^2 over the released nodes strictly inside a complete block of N = 2^h leaves,
if its first n leaves are chosen:
    T_0 = 0;  T_{h+1}(n) = T_h(n) + n^2 for n <= N,  T_h(N) + N^2 + T_h(n - N) for n >= N.
Claim: for all 0 <= a, b <= N
    (A)  T_h(a + b) + 2 a b + min(a, b)^2  >=  T_h(a) + T_h(b)               if a + b <= N,
    (B)  T_h(N) + N^2 + T_h(a + b - N)     >=  T_h(a) + max(a, b)^2 + T_h(b)   if a + b >= N.
Each of them says that (*) T_h(a) + a^2 + T_h(b) <= T_{h+1}(a + b): filling the left child
first is best. By induction, T_h(n) is then the largest value for any n leaves of the block.
Both hold for h = 0. Assume them for h. To prove them for h + 1, let a >= b, by symmetry, and
write a' = a - N, b' = b - N.
(A) a + b <= N: by (A) for h, and (a + b)^2 >= a^2 + b^2.
    a <= N < a + b: by (B) for h, as T_{h+1}(b) = T_h(b) + b^2.
    a > N: (A) for a' and b reduces it to 2 a b >= 2 a' b + b^2, which is 2 N >= b.
(B) Here a >= N, since a + b >= 2 N.
    b >= N: (*) for a' and b' reduces it to 3 N^2 + a'^2 >= (N + a')^2, which is N >= a'.
    b < N: (B) for a' and b, with s = a' + b - N, reduces it to
    3 N^2 + a'^2 + s^2 >= (N + a')^2 + b^2; the difference is 2 (N - a') (N - b) + (N - a')^2 >= 0.
Last, take two maximal blocks of levels h > g with c and d chosen leaves, together
T_h(c) + c^2 + T_g(d) + d^2. Filling the larger block first does not decrease this: note that
T_h(x) = T_g(x) + (h - g) x^2 for x <= 2^g. If c + d <= N, use T_g(d) + d^2 <= T_h(d) and (*). If
not, e = c + d - N <= d leaves remain in the smaller block, and (B) gives
T_h(N) + N^2 + T_g(e) + (h - g) e^2 >= T_h(c) + c^2 + T_g(d) + (h - g) d^2, where h - g may be
replaced by 1.                                                                                 QED
"""

from __future__ import annotations

import math

import numpy as np

from fastfed._validate import choice, integer, number
from fastfed.privacy.certificate import Condition
from fastfed.privacy.releases.buffered import buffered_sensitivity_squared
from fastfed.privacy.releases.prefix_sums import (
    depth,
    honaker_max_by_depth,
    toeplitz_coefficients,
    toeplitz_sensitivity_squared,
    tree_levels,
)
from fastfed.privacy.sensitivity import Budget


def max_squared_sensitivity(release: str, releases: int, returning: int = 1) -> float:
    """Return the largest squared sensitivity of all releases together to one user.

    The unit is the squared sensitivity of one batch to one record.

    Parameters
    ----------
    release : {"tree", "honaker", "toeplitz", "buffered"}
        The mechanism that adds noise to prefix sums.
    releases : int
        K >= 0, the number of releases.
    returning : int
        The largest number of batches in which one user takes part, once in each. A value above K
        counts as K.

    Returns
    -------
    float
        The exact value, except for "honaker" with 1 < returning < K, where it is an upper bound
        (proofs: top of this module). For returning = 1 it is kappa = floor(log2 K) + 1 for "tree",
        W(kappa) for "honaker" (`honaker_max_by_depth`) and S_K for "toeplitz"
        (`toeplitz_sensitivity_squared`). For "buffered" it is increased to cover rounding.

    Raises
    ------
    InputError
        For values out of range.
    """
    choice("release", release, tuple(_SQUARED_SENSITIVITY))
    return squared_sensitivity(release, *_check_counts(releases, returning))


def squared_sensitivity(release: str, releases: int, returning: int) -> float:
    """Return the result of `max_squared_sensitivity`, without checking the arguments."""
    return _SQUARED_SENSITIVITY[release](releases, min(returning, releases))


def proposition_e_7_squared(releases: int, returning: int) -> int:
    """Return M0^2 kappa, the bound of Proposition E.7 on a tree's squared sensitivity to one user.

    The proposition is in chowdhury-zhou-2022. M0 is ``returning``, at most ``releases``, and kappa
    is the depth of the tree. The bound treats all records of the user as if they were in one leaf.
    """
    releases, returning = _check_counts(releases, returning)
    return returning * returning * depth(releases)


def level_squares(releases: int, returning: int, level: int) -> tuple[int, int, int]:
    """Return bounds (squares, nodes, most) on one user's effect on the released nodes of a level.

    A level of the tree is 0 <= level < `depth(releases)`, and its nodes are sums of 2^level leaves.
    A user takes part in at most ``returning`` leaves, once in each. Let c be the number of the
    user's records in a node. ``squares`` is the largest sum of c^2 over the nodes of this level,
    ``nodes`` the largest number of nodes with c > 0, and ``most`` the largest c. Each number is
    exact for its level. But no set of leaves need attain it on all levels at once, so the squares
    of all levels may add up to more than max_squared_sensitivity("tree", ...).
    """
    releases, returning = _check_counts(releases, returning)
    level = integer("level", level, at_least=0, at_most=depth(releases) - 1)
    size = 1 << level
    released = (releases + size) // (2 * size)  # only every other block of a level is released
    full_nodes = min(returning // size, released)
    remainder = returning % size if full_nodes < released else 0
    return full_nodes * size**2 + remainder**2, min(returning, released), min(returning, size)


def participation_conditions(returning: int, silos_met: int = 1) -> list[Condition]:
    """Return the assumption on users who take part in several batches, or at several silos.

    With ``silos_met`` > 1 it is the assumption on silos, and ``returning`` is not used. The list is
    empty if each user takes part in one batch at one silo.
    """
    if silos_met > 1:
        text = f"at most {silos_met} silos meet one user, once each (taken on trust)"
        return [Condition(text, True)]
    if returning == 1:
        return []
    text = (
        f"a user takes part in at most {returning} batches, once in each, at times that do not "
        "depend on earlier releases (taken on trust)"
    )
    return [Condition(text, True)]


def budget_per_batch(budget: Budget, returning: int) -> tuple[float, float]:
    """Return (epsilon, delta) of one batch, if a budget is split among the batches of one user.

    With M0 = ``returning`` = 1, the batch gets the whole budget. With more batches, each gets
    epsilon/(2 sqrt(2 M0 ln(2/delta))) and delta/(2 M0). Source: chowdhury-zhou-2022, Theorem E.2
    and the proof of Theorem E.3, with M0 batches instead of M.
    """
    count = integer("returning", returning, at_least=1)
    epsilon, delta = budget.epsilon, number("delta", budget.delta, above=0, below=1)
    if count == 1:
        return epsilon, delta
    return epsilon / (2.0 * math.sqrt(2.0 * count * math.log(2.0 / delta))), delta / (2.0 * count)


# ---- the squared sensitivity of each release -----------------------------------------------------


def _check_counts(releases: int, returning: int) -> tuple[int, int]:
    """Return ``releases``, and ``returning`` limited to ``releases``, after checks of both."""
    releases = integer("releases", releases, at_least=0)
    return releases, min(integer("returning", returning, at_least=1), releases)


def _tree_squares(releases: int, returning: int) -> float:
    """Return the squared sensitivity of the tree's released nodes to a user of the first leaves.

    The user takes part in the first ``returning`` leaves, which is the worst case. If a released
    node contains c of these leaves, it adds c^2. On each level, the left node of each pair of
    siblings is released, as soon as it is complete.
    """
    total = 0
    for level in range(tree_levels(releases)):
        size = 1 << level
        # The user's leaves fill `pairs` pairs of siblings, and `remainder` leaves of the next pair.
        pairs, remainder = divmod(returning, 2 * size)
        total += pairs * size**2
        # The left node of the next pair is released only if its last leaf is among all leaves.
        if 2 * size * pairs + size <= releases:
            total += min(remainder, size) ** 2
    return float(total)


def _honaker_squares(releases: int, returning: int) -> float:
    """Return an upper bound of the squared sensitivity of Honaker's prefixes to one user.

    It is the smallest of the bounds for l = 0, ..., kappa at the top of this module.
    """
    levels = tree_levels(releases)
    squares_below, least = 0, math.inf
    for level in range(levels + 1):
        bound_above = returning**2 * honaker_max_by_depth(levels - level)
        least = min(least, squares_below + bound_above)
        size = 1 << level
        full_batches, remainder = divmod(returning, size)
        squares_below += full_batches * size**2
        if full_batches < releases // size:
            squares_below += remainder**2
    return least


def _toeplitz_squares(releases: int, returning: int) -> float:
    """Return the squared sensitivity of the Toeplitz release to a user of the first M0 leaves.

    M0 is ``returning``. The result is the squared norm of C n. Here C is the lower triangular
    Toeplitz matrix with the coefficients f_0, f_1, ... of `toeplitz_coefficients` in its first
    column, and the vector n is 1 in the user's leaves and 0 in the others.
    """
    if returning <= 1:
        return toeplitz_sensitivity_squared(releases)
    # Entry k of C n is f_{k-1} + ... + f_{k-M0}: a difference of two partial sums.
    entries = np.cumsum(toeplitz_coefficients(releases))
    entries[returning:] -= entries[:-returning].copy()
    return float(entries @ entries)


_SQUARED_SENSITIVITY = {
    "tree": _tree_squares,
    "honaker": _honaker_squares,
    "toeplitz": _toeplitz_squares,
    "buffered": buffered_sensitivity_squared,
}
