"""Lower bounds on the time of an agent-round: its least work, and the peak rates of one core.

The least work is computed from the problem's sizes: any program that chooses the same actions by
the same method needs these operations and memory reads. `benches/peaks.py` measures the peak rates
in the run that uses them, because clock rates differ between machines and change over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Kinds of arithmetic. "roots" are square roots in float32, "normals" are standard normals from
#: fastfed's generator.
ARITHMETIC = ("int16", "float32", "float64", "roots", "normals")
#: Levels of memory, nearest first.
MEMORY = ("L1", "L2", "L3", "DRAM")


@dataclass(frozen=True)
class Peaks:
    """Peak rates of one core, per second: operations of each kind, bytes read from each level."""

    rates: Mapping[str, float]
    #: Sizes of L1, L2 and L3 in bytes.
    sizes: Mapping[str, int]

    def level(self, footprint: float) -> str:
        """Return the nearest level of memory that has room for ``footprint`` bytes."""
        return next((name for name in MEMORY[:-1] if footprint <= self.sizes[name]), MEMORY[-1])


def best_of(*measured: Peaks) -> Peaks:
    """Return the highest peak rates of several measurements."""
    rates = {name: max(peaks.rates[name] for peaks in measured) for name in measured[0].rates}
    return Peaks(rates, measured[0].sizes)


@dataclass(frozen=True)
class Work:
    """The least work of an agent-round: operations of each kind, and memory reads.

    A multiplication and the addition after it count as two operations.
    """

    int16: float = 0.0
    float32: float = 0.0
    float64: float = 0.0
    roots: float = 0.0
    normals: float = 0.0
    #: Pairs (bytes read, footprint). The footprint is the number of bytes read between two reads of
    #: the same byte; it determines the level of memory.
    reads: tuple[tuple[float, float], ...] = field(default=())

    @property
    def operations(self) -> float:
        """Number of multiplications, additions and square roots of all kinds."""
        return self.int16 + self.float32 + self.float64 + self.roots

    @property
    def bytes(self) -> float:
        """Number of bytes read."""
        return sum(count for count, _ in self.reads)


@dataclass(frozen=True)
class Bound:
    """The least time of some work in microseconds, and the kind or level that takes the most."""

    microseconds: float
    by: str


def bound(work: Work, peaks: Peaks) -> Bound:
    """Return the least time of some work in microseconds at these peak rates, as a `Bound`.

    All kinds of arithmetic share the same execution units, so their times add up. The times of
    memory reads add up too. Arithmetic and reads can overlap, so the bound is the larger of the two
    sums. A kind of arithmetic without a measured rate counts as operations in float32.
    """
    operations = {name: getattr(work, name) for name in ARITHMETIC}
    for name in operations.keys() - peaks.rates.keys():
        operations["float32"] += operations.pop(name)
    arithmetic = {n: 1e6 * count / peaks.rates[n] for n, count in operations.items() if count}
    memory: dict[str, float] = {}
    for count, footprint in work.reads:
        level = peaks.level(footprint)
        memory[level] = memory.get(level, 0.0) + 1e6 * count / peaks.rates[level]
    longer_times = max(arithmetic, memory, key=lambda parts: sum(parts.values()))
    if not longer_times:
        return Bound(0.0, "nothing")
    return Bound(sum(longer_times.values()), max(longer_times, key=longer_times.__getitem__))
