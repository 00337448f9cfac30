"""The randomizer R: what a silo makes of its data points before anything leaves it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastfed._kernels import native
from fastfed._random import NoiseSource
from fastfed._validate import InputError, array
from fastfed.protocols.messages import Bits, Report, statistic_size
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.protocols.protocol import (
    SEND_BATCH,
    SEND_NODE,
    SEND_NOISY_BATCH,
    SEND_NOISY_NODE,
)
from fastfed.protocols.release import prefix_noise


class Randomizer(Protocol):
    """What every randomizer does: take in data points, and make one report of each batch."""

    release: int

    def observe(self, x: np.ndarray, y: float) -> None:
        """The next data point: features (d,) and reward."""
        ...

    def report(self) -> Report | Bits:
        """The message after the batch that has just ended."""
        ...


def noisy(values: np.ndarray, normals: np.ndarray, dimension: int, std: NoiseStd) -> np.ndarray:
    """Statistic plus its node's noise; a source that gives too little or NaN is refused."""
    normals = array("noise", normals, shape=(statistic_size(dimension),))
    return native.add_noise(values, normals, dimension, *std.parts)


class SumRandomizer:
    """Turns one batch statistic after another into reports (zhou-chowdhury-2024, Alg. 2, 4).

    Keeps the raw p-sums of the tree and, for prefix sums, the noisy nodes already released, so
    that each node's noise enters once however often the node is used; or, where a release makes
    the noise of prefixes otherwise, the raw prefix sum and the noises already drawn.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise
        self.release = 0
        self._batch = np.zeros(plan.statistic_size)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._nodes = np.zeros_like(self._sums)
        self._prefix_noise = prefix_noise(plan)
        self._std = plan.noise_std.times(plan.noise_scale[silo])

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point to the batch."""
        native.accumulate(self._batch, x, y)

    def report(self) -> Report:
        """The batch since the last report, randomized; the batch is then forgotten."""
        release = self.release + 1
        if release > self.plan.releases:
            raise InputError(f"the plan has {self.plan.releases} releases, got one more report")
        report = Report(release, self.plan.dimension, self._message(release), self.silo)
        self.release = release
        self._batch = np.zeros(self.plan.statistic_size)
        return report

    def _draw(self, node: int) -> np.ndarray:
        size = self.plan.statistic_size
        return array("noise", self.noise.node(self.silo, node, self.plan.dimension), shape=(size,))

    def _message(self, release: int) -> np.ndarray:
        sends, d = self.plan.protocol.randomizer, self.plan.dimension
        if sends == SEND_BATCH:
            return self._batch
        if sends == SEND_NOISY_BATCH:
            # The sum of what the users of the batch send, each with noise of their own.
            return noisy(self._batch, self.noise.node(self.silo, release, d), d, self._std)
        if self._prefix_noise is not None:
            normals = self._prefix_noise.next(self._draw)
            native.add(self._sums[0], self._batch)
            return noisy(self._sums[0], normals, d, self._std)
        level = native.node_level(release)
        native.psum(self._sums, self._batch, level)
        if sends == SEND_NODE:
            return self._sums[level]
        normals = self.noise.node(self.silo, release, d)
        node = noisy(self._sums[level], normals, d, self._std)
        if sends == SEND_NOISY_NODE:
            return node
        self._nodes[level] = node
        return native.prefix(self._nodes, release)
