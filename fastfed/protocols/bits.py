"""The randomizer of the vector sum: data points as noisy bits (zhou-chowdhury-2024, Alg. 5-7)."""

from __future__ import annotations

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.protocols.messages import Bits, Counts, dimension_of
from fastfed.protocols.plan import Encoding, Plan

#: Bits that may be held in memory at once when each is made, one byte a bit.
MOST_BITS = 2**29


def encoding_of(plan: Plan) -> Encoding:
    """The plan's encoding; only plans whose data points travel as bits have one."""
    if plan.encoding is None:
        raise InputError(f'protocol "{plan.protocol.id}" needs an encoding')
    return plan.encoding


class BitRandomizer:
    """Encodes every data point anew for each tree node that will hold it (Alg. 5 line 6-7).

    Which nodes those are is known from the round, so a point is encoded as it comes and then
    forgotten. The report counts the silo's ones, for the shuffler to add up over silos:
    ``messages = "aggregate"``.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise
        self.encoding = encoding_of(plan)
        self.release = self.round = 0
        self._drawn = 0, np.zeros(0)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))

    def observe(self, x: np.ndarray, y: float) -> None:
        """Round a data point for all its nodes."""
        plan, round, size = self.plan, self.round + 1, self.plan.statistic_size
        leaf = (round - 1) // plan.batch_size + 1
        if plan.protocol.flat:
            levels = [0] if leaf <= plan.releases else []
        else:
            levels = aggregation.touched_levels(leaf, plan.releases)
        words = self.noise.words(self.silo, round, len(levels) * size).reshape(-1, size)
        point = np.zeros(size)
        linalg.accumulate(point, x, y)
        self._encode(point, levels, words, round)
        self.round = round

    def _encode(self, point: np.ndarray, levels: list[int], words: np.ndarray, round: int) -> None:
        for level, drawn in zip(levels, words, strict=True):
            clamped = self.plan.clip is not None
            round_statistic(point, self.encoding.steps(level), clamped, drawn, self._sums[level])

    def report(self) -> Counts | Bits:
        """The ones of the node released now, less their mean without data: exact in float64."""
        release = self.release + 1
        level = self.plan.level(release)
        trials = self.plan.points(level) * self.encoding.noise_bits[level]
        # Kept until the report is made: one that is made again has the same noise.
        if self._drawn[0] != release:
            size = self.plan.statistic_size
            self._drawn = release, self.noise.binomials(self.silo, release, size, trials)
        message = self._drawn[1].copy()
        aggregation.add(message, self._sums[level])
        report = Counts(release, self.plan.dimension, message, self.silo)
        self._sums[level] = 0.0
        self.release = release
        return report


class MessageRandomizer(BitRandomizer):
    """The same, bit by bit: ``messages = "individual"``. Every bit is made and kept until sent."""

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        super().__init__(plan, silo, noise)
        self._bits: list[list[np.ndarray]] = [[] for _ in range(max(1, plan.levels))]

    def _encode(self, point: np.ndarray, levels: list[int], words: np.ndarray, round: int) -> None:
        size, b = len(point), self.encoding.noise_bits
        # Drawn before any bit is kept: a source that fails leaves everything as it was.
        noises = [self.noise.point_binomials(self.silo, round, j, size, b[j]) for j in levels]
        for level, drawn, noise in zip(levels, words, noises, strict=True):
            count = ones_of(point, self.encoding, level, drawn, noise)
            self._bits[level].append(
                aggregation.encode_bits(count, self.encoding.message_bits(level))
            )

    def report(self) -> Bits:
        """All bits of the node released now."""
        release = self.release + 1
        level = self.plan.level(release)
        bits = np.concatenate(self._bits[level], axis=1)
        report = Bits(release, self.plan.dimension, bits, self.silo)
        self._bits[level] = []
        self.release = release
        return report


def round_statistic(
    point: np.ndarray, steps: tuple[int, int], clamped: bool, words: np.ndarray, sums: np.ndarray
) -> None:
    """sums <- sums + (fixed point of a data point, less its g), each stream with its own g."""
    d = dimension_of(len(point))
    for g, part in zip(steps, (slice(0, d), slice(d, None)), strict=True):
        aggregation.round_point(point[part], float(g), clamped, words[part], sums[part])


def ones_of(
    point: np.ndarray, encoding: Encoding, level: int, words: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """How many bits of each entry's message are one, (s,) int64; ``noise`` is centred."""
    ones = np.zeros(len(point))
    round_statistic(point, encoding.steps(level), True, words, ones)
    g = encoding.each(level, dimension_of(len(point)))
    count: np.ndarray = np.rint(ones + g + noise + encoding.noise_bits[level] / 4.0).astype(
        np.int64
    )
    return count


def counted(
    bits: np.ndarray, points: int, precision: int | np.ndarray, noise_bits: int
) -> np.ndarray:
    """Ones under each label, centred as reports are: (s,) from (s, points (2 g + b))."""
    ones = bits.sum(axis=1, dtype=np.int64).astype(np.float64)
    centred: np.ndarray = ones - points * precision - points * noise_bits / 4.0
    return centred
