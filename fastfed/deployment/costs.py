"""What sums of noisy bits cost a person, also one whose record comes late.

A late record leaves one leaf for another. Under nodes that hold both it is replaced at most; of the
others it leaves one and enters one, a zero-out in each. `cases` lists, for the account of
`fastfed.privacy.accounting.binomial`, every way in which that can happen; so what
docs/deployment.md proves of Gaussian noise is computed here, for the noise bits of one plan.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fastfed.privacy.accounting.binomial import TAIL_SHARES, Node, VectorSumAccount
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.sensitivity import joint_sensitivity

#: Events of vector sums.
Counted = BinomialTree | VectorBatches | UnequalBatches
#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12


def cases(event: Counted, late: bool) -> list[VectorSumAccount]:
    """Accounts of everything that one record may change: replaced in its leaf, or late.

    A late record of a tree is in different nodes below some level, and in one node from there on.
    Of batches without a tree it leaves one for another, and costs no more than twice the dearer.
    """
    if isinstance(event, BinomialTree):
        replace, zero = (
            joint_sensitivity(relation, "iid", event.dimension)
            for relation in ("replace", "zero-out")
        )
        found = []
        for split in range(1, event.depth + 1) if late else [0]:
            nodes = [
                Node(event.counted(j), zero * g, 2.0, 2)
                if j < split
                else Node(event.counted(j), replace * g)
                for j, g in enumerate(event.g)
            ]
            found.append(VectorSumAccount(nodes, event.coordinates))
        return found
    batches = event.batches if isinstance(event, UnequalBatches) else (event,)
    return [
        VectorSumAccount(
            [Node(b.counted, b.norm("zero-out"), 2.0, 2) if late else Node(b.counted, b.norm())],
            b.coordinates,
        )
        for b in batches
    ]


def least(accounts: list[VectorSumAccount], delta: float) -> tuple[float, float, float]:
    """(epsilon, mu, told) at delta, whichever of the accounts holds.

    Everything is mu-GDP but for an event of probability ``told``; of the shares of delta that the
    event may have, the one that gives the least epsilon.
    """
    found = (math.inf, math.inf, delta)
    for share in TAIL_SHARES:
        told = delta * share
        mu = max((account.mu(told) for account in accounts), default=0.0)
        if math.isfinite(mu):
            epsilon = gaussian_epsilon(mu * math.sqrt(_UP), delta - told * _UP)
            found = min(found, (epsilon, mu, told))
    return found


@lru_cache(maxsize=64)
def late_epsilon(event: Counted) -> float:
    """Epsilon of a record that comes late, at the budget's delta."""
    return least(cases(event, True), event.budget.delta)[0]


@lru_cache(maxsize=64)
def charge(event: Counted) -> tuple[float, float, float]:
    """(epsilon, mu^2, told) of a whole plan, for a record that may come late."""
    epsilon, mu, told = least(cases(event, False) + cases(event, True), event.budget.delta)
    return epsilon, mu * mu * _UP, told
