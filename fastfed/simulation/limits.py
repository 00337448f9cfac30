"""Limits of a bench: the work that an agent-round asks for, and what one core can do at most.

The work is counted from the sizes: what any program that chooses the same actions in the same way
has to compute and to read. The peaks are measured by `benches/peaks.py` in the run that uses them,
for the clock of a machine is not that of another, nor of an hour ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Kinds of arithmetic, by the unit that does it. Normals are those of our generator.
ARITHMETIC = ("int16", "float32", "float64", "normals")
#: Levels of memory, nearest first.
MEMORY = ("L1", "L2", "L3", "DRAM")


@dataclass(frozen=True)
class Peaks:
    """What one core does in a second: operations by kind, bytes by level of memory."""

    rates: Mapping[str, float]
    #: Bytes that L1, L2 and L3 hold.
    sizes: Mapping[str, int]

    def level(self, footprint: float) -> str:
        """The nearest level that holds so many bytes."""
        return next((name for name in MEMORY[:-1] if footprint <= self.sizes[name]), MEMORY[-1])


def best_of(*measured: Peaks) -> Peaks:
    """The higher of each peak: what was reached once can be reached."""
    rates = {name: max(each.rates[name] for each in measured) for name in measured[0].rates}
    return Peaks(rates, measured[0].sizes)


@dataclass(frozen=True)
class Work:
    """What an agent-round asks for at least.

    A multiplication and the addition after it are two operations.
    """

    int16: float = 0.0
    float32: float = 0.0
    float64: float = 0.0
    normals: float = 0.0
    #: Bytes that are read, each with how many bytes lie between two uses of the same.
    reads: tuple[tuple[float, float], ...] = field(default=())

    @property
    def operations(self) -> float:
        """All multiplications and additions."""
        return self.int16 + self.float32 + self.float64

    @property
    def bytes(self) -> float:
        """All bytes that are read."""
        return sum(count for count, _ in self.reads)


@dataclass(frozen=True)
class Bound:
    """The least time of some work, in microseconds, and what takes most of it."""

    microseconds: float
    by: str


def bound(work: Work, peaks: Peaks) -> Bound:
    """What the work takes at least.

    All arithmetic is done by the same units, one kind after the other, so their times add up;
    so do those of the levels of memory. Both may go on at once: the longer one is the limit. On a
    processor without 16-bit products float32 does them.
    """
    operations = {name: getattr(work, name) for name in ARITHMETIC}
    if "int16" not in peaks.rates:
        operations["float32"] += operations.pop("int16")
    arithmetic = {n: 1e6 * count / peaks.rates[n] for n, count in operations.items() if count}
    memory: dict[str, float] = {}
    for count, footprint in work.reads:
        level = peaks.level(footprint)
        memory[level] = memory.get(level, 0.0) + 1e6 * count / peaks.rates[level]
    longer = max(arithmetic, memory, key=lambda parts: sum(parts.values()))
    if not longer:
        return Bound(0.0, "nothing")
    return Bound(sum(longer.values()), max(longer, key=longer.__getitem__))
