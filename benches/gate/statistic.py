"""Compute a verdict from pairs of timings: the median ratio and its confidence interval.

No model fits times on a shared machine: they have a least value, a long tail, and levels that last
for seconds. So the only assumption is that head and base run under the same conditions if they are
timed alternately within a hundredth of a second. Each block of timings (base, head, head, base)
gives one ratio. For any distribution, a ratio is above or below the median with equal
probabilities. So order statistics of the ratios bound the median with known probability (the sign
test, inverted).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Head is slower if the median ratio is above this: about sqrt(1.3), the middle of 1 and 1.3.
LIMIT = 1.15
#: Probability that an interval misses the median, above or below.
ALPHA = 0.001

SLOWER, FASTER, EQUAL, OPEN = "slower", "faster", "as fast", "open"


@dataclass(frozen=True)
class Block:
    """Processor and wall times of one block: base, head, head, base, each for the same work."""

    base: tuple[float, float]
    head: tuple[float, float]
    base_wall: tuple[float, float]
    head_wall: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Head's processor time over base's; of two timings the smaller was disturbed less."""
        return min(self.head) / min(self.base)


@dataclass(frozen=True)
class Comparison:
    """The median ratio of all blocks, and its confidence interval of level 1 - ALPHA."""

    ratio: float
    low: float
    high: float
    blocks: int
    #: The median ratio of each pair of processes.
    pairs: tuple[float, ...]
    limit: float = LIMIT

    @property
    def verdict(self) -> str:
        """The verdict that the blocks prove; OPEN if more blocks are needed.

        The memory layout of a process changes its times while it runs, so blocks of one pair of
        processes are not independent. So head is slower only if it is slower in every pair.
        """
        if self.low > self.limit and min(self.pairs) > self.limit:
            return SLOWER
        if self.high < 1.0 / self.limit and max(self.pairs) < 1.0 / self.limit:
            return FASTER
        return EQUAL if self.high < self.limit else OPEN

    @property
    def last_verdict(self) -> str:
        """The verdict if no more blocks follow: if it is open, the median decides."""
        if self.verdict != OPEN:
            return self.verdict
        return SLOWER if self.ratio > self.limit else EQUAL


def misses(n: int, alpha: float = ALPHA) -> int:
    """Return the largest k such that P(fewer than k heads in n fair coins) <= alpha / 2.

    The median then lies between the k-th smallest and the k-th largest of n values with
    probability at least 1 - alpha. If k is 0, n values are too few for any such interval.
    """
    below, k = 0, 0
    while k < n // 2:
        below += math.comb(n, k)
        if below > alpha / 2 * 2**n:
            break
        k += 1
    return k


def interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """Return a confidence interval of the median of the distribution of the values."""
    ordered, k = sorted(values), misses(len(values), alpha)
    return (ordered[k - 1], ordered[-k]) if k else (0.0, math.inf)


def compare(pairs: Sequence[Sequence[Block]], limit: float = LIMIT) -> Comparison:
    """Compare head with base by the blocks of some pairs of processes."""
    ratios_by_pair = [[block.ratio for block in blocks] for blocks in pairs if blocks]
    ratios = [ratio for blocks in ratios_by_pair for ratio in blocks]
    low, high = interval(ratios)
    medians = tuple(statistics.median(blocks) for blocks in ratios_by_pair)
    return Comparison(statistics.median(ratios), low, high, len(ratios), medians, limit)


def waits(pairs: Sequence[Sequence[Block]], limit: float = LIMIT) -> bool:
    """Return True if head waits (for a lock, a file, ...) and base does not.

    A run that waits has more wall time than processor time. On a busy machine many runs wait for
    the processor. So the result is True only if every run of head waited, and chance explains the
    number of runs of base that did not wait with probability below ALPHA / 100 (hypergeometric
    distribution).
    """
    blocks = [block for pair in pairs for block in pair]
    runs_without_wait = [
        sum(
            wall <= limit * taken
            for b in blocks
            for wall, taken in zip(getattr(b, side + "_wall"), getattr(b, side), strict=True)
        )
        for side in ("base", "head")
    ]
    n, base_without_wait = 2 * len(blocks), runs_without_wait[0]
    return (
        not runs_without_wait[1]
        and math.comb(n, base_without_wait) / math.comb(2 * n, base_without_wait) < ALPHA / 100
    )
