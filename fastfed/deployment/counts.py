"""Sums of noisy bits: what stands for the bits of a silo's records, and for a shuffler of them.

Permuted bits tell how many are ones, so a secure sum of every silo's counts is what the shuffler of
a vector sum passes on (zhou-chowdhury-2024, Algorithms 5-7). Counts travel as words modulo 2^64.

What they cost is computed for a person whose record comes late, too. A late record leaves one leaf
for another: under nodes that hold both it is replaced at most; of the others it leaves one and
enters one, a zero-out in each. `cases` lists every way in which that can happen, for the account of
`fastfed.privacy.accounting.binomial`; so what docs/deployment.md proves of Gaussian noise is
computed here, for the noise bits of one plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource
from fastfed.deployment._crypto import digest
from fastfed.deployment.seal import SealedNoise
from fastfed.privacy.accounting.binomial import TAIL_SHARES, Node, VectorSumAccount
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.mechanisms.binomial_tree import VARIANCE, BinomialTree
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.sensitivity import joint_sensitivity
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Shuffled
from fastfed.protocols.vector_sum import encoding_of, round_statistic

#: Counts are multiples of 1 / PARTS: the mean of a noise bit is 1/4.
PARTS = 4

#: Events of vector sums.
Counted = BinomialTree | VectorBatches | UnequalBatches
#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12


# ---- counts --------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A record of one silo: its number from 1, the leaf that it entered, its statistic (s,)."""

    number: int
    leaf: int
    point: np.ndarray


def hidden_of(plan: Plan, release: int, records: Sequence[Record]) -> bytes:
    """What the noise of a release hides: all records of its node, whichever leaf they are in.

    Not their sum: two sets of records of one sum are rounded otherwise.
    """
    held = sorted((r.number, (r.point + 0.0).tobytes()) for r in _of_node(plan, release, records))
    return digest(b"".join(n.to_bytes(8, "big") + digest(data) for n, data in held))


def _of_node(plan: Plan, release: int, records: Sequence[Record]) -> list[Record]:
    """The records of the node that a release completes."""
    first = release - (1 << plan.level(release))
    return [record for record in records if first < record.leaf <= release]


class Counter:
    """One silo's counts: the ones among its bits, less their mean without data.

    Parameters
    ----------
    plan : Plan
        A plan whose data points travel as bits.
    silo : int
        The own index.
    noise : NoiseSource
        Where roundings and noise bits come from.

    Notes
    -----
    Guarantee: that of the plan's certificate, once the rows of as many silos are added up as it
    counts on. A row by itself has the noise of one silo, and is sent as shares or under masks.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point, (s,)."""
        made = np.zeros(self.plan.statistic_size)
        linalg.accumulate(made, x, y)
        return made

    def row(self, release: int, records: Sequence[Record]) -> np.ndarray:
        """The counts of a release as words, (s,) of uint64.

        Each record is rounded anew for each node. The noise is that of as many records as the node
        may hold, however many it holds.
        """
        plan, encoding = self.plan, encoding_of(self.plan)
        which, size = plan.encoding_at(release), plan.statistic_size
        counts = np.zeros(size)
        for record in _of_node(plan, release, records):
            words = self._rounding(release, record)
            round_statistic(record.point, encoding.steps(which), True, words, counts)
        trials = plan.points_of(release) * encoding.noise_bits[which]
        aggregation.add(counts, self.noise.binomials(self.silo, release, size, trials))
        return np.rint(PARTS * counts).astype(np.int64).view(np.uint64)

    def _rounding(self, release: int, record: Record) -> np.ndarray:
        """The words that round a record for the node of a release, (s,) of uint32."""
        plan, size = self.plan, self.plan.statistic_size
        if isinstance(self.noise, SealedNoise):
            return self.noise.rounding(self.silo, release, record.number, size)
        levels = [0]
        if not plan.protocol.flat:
            levels = aggregation.touched_levels(record.leaf, plan.releases)
        drawn = self.noise.random_u32(self.silo, record.number, len(levels) * size)
        return drawn.reshape(-1, size)[levels.index(plan.level(release))]


def shuffled(plan: Plan, release: int, total: np.ndarray) -> Shuffled:
    """What a shuffler of all bits would pass on, from the sum of all rows modulo 2^64."""
    return Shuffled(release, plan.dimension, total.view(np.int64) / float(PARTS))


def count_std(plan: Plan, release: int) -> np.ndarray:
    """Standard deviations of the noise bits in the prefix sums of a release, (s,)."""
    encoding, squares = encoding_of(plan), np.zeros(plan.statistic_size)
    nodes = list(range(1, release + 1))
    if not plan.protocol.flat:
        nodes, end = [], release
        while end:
            nodes.append(end)
            end &= end - 1
    for node in nodes:
        which = plan.encoding_at(node)
        trials = plan.silos * plan.points_of(node) * encoding.noise_bits[which]
        squares += VARIANCE * trials * plan.units[which] ** 2
    made: np.ndarray = np.sqrt(squares)
    return made


# ---- costs ---------------------------------------------------------------------------------------


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
