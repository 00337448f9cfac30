"""Sensitivity of a continual release to all records of one user, who takes part several times.

A user takes part in at most M0 = `returning` batches, once in each: in at most M0 leaves, all
distinct. By the triangle inequality a node with c of these records moves by at most c times what
one record moves it, so per unit of one record's sensitivity the square of everything released is
at most the sum of c^2 over the released nodes ("toeplitz": ||C n||^2, n one in the user's leaves,
else zero). It is attained when all records change alike. If the batches are at different silos with
noise of their own, it is not more: c^2 is split into squares of the parts.

Claim: in "tree" and "toeplitz", of K >= M0 leaves, the first M0 leaves are the worst. They would be
in "honaker" too if all its nodes were seen; what is seen is less, and bounded below.

"toeplitz". ||C n||^2 sums (C'C)_ij over all pairs of chosen leaves. For i <= j that entry is
sum_{l=0}^{K-j} f_l f_{l+j-i}, f positive and decreasing ("buffered": c): it decreases in the gap
j - i and in j. The a-th smallest chosen leaf is at least a, and the gap of the a-th and b-th at
least |b - a|.

"honaker", all nodes. Level j has floor(K / 2^j) nodes, in each c <= 2^j, and all c add up to at
most M0. Sums of squares are convex: the largest has as many full nodes as there can be and the rest
in one. The first M0 leaves do this on every level at once, with N_j(M0) on level j.

"honaker" itself: prefixes only (see `prefix_sums`, also for W, u, s). There the sum of
s/sqrt(u) over the user's leaves has the part of c. For each l = 0, ..., kappa it comes to at most
    N_0(M0) + ... + N_{l-1}(M0) + M0^2 W(kappa - l),
as if all nodes of the levels below l were seen too, which can only raise it. They cost the first
part. Given them, the estimates on level l - 1 are known, so u = s = 0 there in the recursions of u
and s, which gives 3 (2^G - 2^{G'})^2 / (4^G - 4^l), l <= G' < G, for a seen block above: that of
G - l and G' - l. One leaf moves these by W(kappa - l) at most, squared, and M0 leaves by M0^2 as
much. The least over l is taken. l = 0 is exact for M0 = 1; l = kappa is all nodes.

"tree". Released are the left children and the maximal blocks of the prefix K, one for each set bit
of K. Here the first leaves are not the worst on each level, only in the sum. Let T_h(n) be
the sum of c^2 strictly inside a complete block of N = 2^h leaves whose first n are chosen:
    T_0 = 0;  T_{h+1}(n) = T_h(n) + n^2 for n <= N,  T_h(N) + N^2 + T_h(n - N) for n >= N.
For all 0 <= a, b <= N
    (A)  T_h(a + b) + 2 a b + min(a, b)^2  >=  T_h(a) + T_h(b)               if a + b <= N,
    (B)  T_h(N) + N^2 + T_h(a + b - N)     >=  T_h(a) + max(a, b)^2 + T_h(b)   if a + b >= N.
Both say that (*) T_h(a) + a^2 + T_h(b) <= T_{h+1}(a + b): it is best to fill the left child first,
hence, by induction, T_h(n) is the most for any n leaves of the block. Both hold for h = 0. If they
do for h, then for h + 1, with a >= b since they are symmetric, and a' = a - N, b' = b - N:
(A) a + b <= N: (A) for h, and (a + b)^2 >= a^2 + b^2.
    a <= N < a + b: (B) for h, as T_{h+1}(b) = T_h(b) + b^2.
    a > N: (A) for a' and b leaves 2 a b >= 2 a' b + b^2, which is 2 N >= b.
(B) a >= N, since a + b >= 2 N.
    b >= N: (*) for a' and b' leaves 3 N^2 + a'^2 >= (N + a')^2, which is N >= a'.
    b < N: (B) for a' and b, s = a' + b - N, leaves 3 N^2 + a'^2 + s^2 >= (N + a')^2 + b^2; the
    difference is 2 (N - a') (N - b) + (N - a')^2 >= 0.
Last, two maximal blocks of levels h > g with c and d leaves, together T_h(c) + c^2 + T_g(d) + d^2:
filling the larger first does not lessen it, as T_h(x) = T_g(x) + (h - g) x^2 for x <= 2^g. If
c + d <= N, then T_g(d) + d^2 <= T_h(d), and (*). If not, e = c + d - N <= d stay, and (B) gives
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
    """Largest squared sensitivity of a whole release to one user, per unit of one record's.

    Parameters
    ----------
    release : {"tree", "honaker", "toeplitz", "buffered"}
        How the noise of prefix sums is made.
    releases : int
        K >= 0.
    returning : int
        The most batches that one user takes part in, once in each; more than K counts as K.

    Returns
    -------
    float
        Exact, but for "honaker" with 1 < returning < K, where it is an upper bound (proofs: top of
        this module). 1 gives kappa = floor(log2 K) + 1 for "tree", W(kappa) for "honaker" and S_K
        for "toeplitz"; for "buffered" it is as much above as rounding could take away.

    Raises
    ------
    InputError
        For values out of range.
    """
    choice("release", release, tuple(_MOST))
    return squared_sensitivity(release, *_checked(releases, returning))


def squared_sensitivity(release: str, releases: int, returning: int) -> float:
    """Compute `max_squared_sensitivity` for arguments that were checked before."""
    return _MOST[release](releases, min(returning, releases))


def proposition_e_7_squared(releases: int, returning: int) -> int:
    """Bound M0^2 kappa of chowdhury-zhou-2022, Proposition E.7, for both trees.

    As if all of the user's records were in one leaf. returning counts as K if it is more.
    """
    releases, returning = _checked(releases, returning)
    return returning * returning * depth(releases)


def level_squares(releases: int, returning: int, level: int) -> tuple[int, int, int]:
    """Bound (squares, nodes, most): one user's effect on the released p-sums of one level.

    squares: the sum of c^2 over the nodes of this level, c the user's records in a node; nodes: the
    number of nodes with c > 0; most: the largest c. 0 <= level < kappa. Each is exact for its
    level, but one set of leaves need not attain all, so squares add up to more than
    max_squared_sensitivity("tree", ...).
    """
    releases, returning = _checked(releases, returning)
    level = integer("level", level, at_least=0, at_most=depth(releases) - 1)
    size = 1 << level
    released = (releases + size) // (2 * size)  # every other block
    full = min(returning // size, released)
    rest = returning % size if full < released else 0
    return full * size**2 + rest**2, min(returning, released), min(returning, size)


def participation_conditions(returning: int, silos_met: int = 1) -> list[Condition]:
    """List what several batches, or silos, of a user take on trust; nothing for one of them."""
    if silos_met > 1:
        text = f"at most {silos_met} silos meet one user, once each (taken on trust)"
        return [Condition(text, True)]
    if returning == 1:
        return []
    text = (
        f"a user takes part in at most {returning} batches, once in each, and when does not depend "
        "on what was released (taken on trust)"
    )
    return [Condition(text, True)]


def budget_per_batch(budget: Budget, returning: int) -> tuple[float, float]:
    """Split a budget: (epsilon, delta) of each of `returning` batches that hold the same user.

    All for one batch, else epsilon/(2 sqrt(2 M0 ln(2/delta))) and delta/(2 M0):
    chowdhury-zhou-2022, Theorem E.2 and the proof of Theorem E.3, with M0 batches for all M.
    """
    count = integer("returning", returning, at_least=1)
    epsilon, delta = budget.epsilon, number("delta", budget.delta, above=0, below=1)
    if count == 1:
        return epsilon, delta
    return epsilon / (2.0 * math.sqrt(2.0 * count * math.log(2.0 / delta))), delta / (2.0 * count)


# ---- one formula for each release ----------------------------------------------------------------


def _checked(releases: int, returning: int) -> tuple[int, int]:
    """Check both numbers; more participations than releases count as as many."""
    releases = integer("releases", releases, at_least=0)
    return releases, min(integer("returning", returning, at_least=1), releases)


def _tree(releases: int, returning: int) -> float:
    """Sum of c^2 over the released p-sums, for the first leaves."""
    total = 0
    for level in range(tree_levels(releases)):
        size = 1 << level
        pairs, rest = divmod(returning, 2 * size)
        total += pairs * size**2
        if 2 * size * pairs + size <= releases:  # else the block around the rest is never released
            total += min(rest, size) ** 2
    return float(total)


def _honaker(releases: int, returning: int) -> float:
    """Least of the bounds over l, for all leaves."""
    levels = tree_levels(releases)
    seen, least = 0, math.inf
    for level in range(levels + 1):
        above = returning**2 * honaker_max_by_depth(levels - level)
        least = min(least, seen + above)
        size = 1 << level
        full, rest = divmod(returning, size)
        seen += full * size**2
        if full < releases // size:
            seen += rest**2
    return least


def _toeplitz(releases: int, returning: int) -> float:
    """Squared norm of C n, for the first leaves."""
    if returning <= 1:
        return toeplitz_sensitivity_squared(releases)
    # Row k of C adds up f_{k-1}, ..., f_{k-M0}: a difference of two partial sums.
    rows = np.cumsum(toeplitz_coefficients(releases))
    rows[returning:] -= rows[:-returning].copy()
    return float(rows @ rows)


_MOST = {
    "tree": _tree,
    "honaker": _honaker,
    "toeplitz": _toeplitz,
    "buffered": buffered_sensitivity_squared,
}
