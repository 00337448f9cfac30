"""What pairs of timings prove: the median ratio, its confidence interval, and the verdict.

Times on a shared machine have no distribution that could be relied on: they have a least value, a
long tail, and levels that last for seconds. So nothing is assumed but this: head and base, timed
in turn within a hundredth of a second, meet the same machine. Then each block of base, head, head,
base tells one ratio, ratios above and below their median are equally likely whatever the noise,
and the order statistics of the ratios are a confidence interval of that median (the sign test
turned round), for any distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: A median ratio above this is slower. Half way, in logarithms, between 1 and 1.3.
LIMIT = 1.15
#: How often an interval may miss the median, both sides together.
ALPHA = 0.001

SLOWER, FASTER, EQUAL, OPEN = "slower", "faster", "as fast", "open"


@dataclass(frozen=True)
class Block:
    """Times of one block, base, head, head, base, for the same work: processor and wall time."""

    base: tuple[float, float]
    head: tuple[float, float]
    base_wall: tuple[float, float]
    head_wall: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Processor time of head by that of base; the lesser of two was disturbed less."""
        return min(self.head) / min(self.base)


@dataclass(frozen=True)
class Comparison:
    """The median ratio of some blocks, and an interval that holds it with 1 - ALPHA."""

    ratio: float
    low: float
    high: float
    blocks: int
    #: The medians of each pair of processes.
    pairs: tuple[float, ...]
    limit: float = LIMIT

    @property
    def verdict(self) -> str:
        """What is proven; OPEN where more blocks are needed.

        Where a process has its memory changes times too, for as long as it lives, and blocks of
        one pair have that in common. So slower is only what is in each pair of processes.
        """
        if self.low > self.limit and min(self.pairs) > self.limit:
            return SLOWER
        if self.high < 1.0 / self.limit and max(self.pairs) < 1.0 / self.limit:
            return FASTER
        return EQUAL if self.high < self.limit else OPEN

    @property
    def last_verdict(self) -> str:
        """The verdict when there will be no more blocks: the median decides what is open."""
        if self.verdict != OPEN:
            return self.verdict
        return SLOWER if self.ratio > self.limit else EQUAL


def misses(n: int, alpha: float = ALPHA) -> int:
    """The largest k where fewer than k of n fair coins show heads with probability <= alpha / 2.

    Then the k-th least and the k-th largest of n values hold their median between them with
    probability 1 - alpha at least. 0: so few values hold it with no such certainty.
    """
    below, k = 0, 0
    while k < n // 2:
        below += math.comb(n, k)
        if below > alpha / 2 * 2**n:
            break
        k += 1
    return k


def interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """A confidence interval of the median of what the values are drawn from."""
    ordered, k = sorted(values), misses(len(values), alpha)
    return (ordered[k - 1], ordered[-k]) if k else (0.0, math.inf)


def compare(pairs: Sequence[Sequence[Block]], limit: float = LIMIT) -> Comparison:
    """What the blocks of some pairs of processes say."""
    each = [[block.ratio for block in blocks] for blocks in pairs if blocks]
    ratios = [ratio for blocks in each for ratio in blocks]
    low, high = interval(ratios)
    medians = tuple(statistics.median(blocks) for blocks in each)
    return Comparison(statistics.median(ratios), low, high, len(ratios), medians, limit)


def waits(pairs: Sequence[Sequence[Block]], limit: float = LIMIT) -> bool:
    """Whether head waits where base does not: wall time that processor time does not show.

    On a busy machine many runs wait for the processor. Head waits by itself only if none of its
    runs went through at once, and base's did so often that chance would not leave them all to base
    (a hypergeometric probability) but once in a hundred of ALPHA.
    """
    blocks = [block for one in pairs for block in one]
    at_once = [
        sum(
            wall <= limit * taken
            for b in blocks
            for wall, taken in zip(getattr(b, side + "_wall"), getattr(b, side), strict=True)
        )
        for side in ("base", "head")
    ]
    n, seen = 2 * len(blocks), at_once[0]
    return not at_once[1] and math.comb(n, seen) / math.comb(2 * n, seen) < ALPHA / 100
