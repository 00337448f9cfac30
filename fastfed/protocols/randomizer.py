"""The randomizer R: what a silo makes of its data points before anything leaves it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.protocols.messages import Bits, Report
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import (
    SEND_BATCH,
    SEND_NODE,
    SEND_NOISY_BATCH,
    SEND_NOISY_NODE,
)
from fastfed.protocols.release import make_adder


class Randomizer(Protocol):
    """What every randomizer does: take in data points, and make one report of each batch."""

    release: int

    def observe(self, x: np.ndarray, y: float) -> None:
        """The next data point: features (d,) and reward."""
        ...

    def report(self) -> Report | Bits:
        """The message after the batch that has just ended."""
        ...


class SumRandomizer:
    """Turns one batch statistic after another into reports (zhou-chowdhury-2024, Alg. 2, 4).

    Keeps the raw p-sums of the tree and, for prefix sums, the noisy nodes already released, so
    that each node's noise enters once however often the node is used; or, where a release makes
    the noise of prefixes otherwise, the raw prefix sum. A report that fails leaves all as it was.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo = plan, silo
        self.release = 0
        self._batch = np.zeros(plan.statistic_size)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._nodes = np.zeros_like(self._sums)
        self._total = np.zeros(plan.statistic_size)
        self._adder = make_adder(plan, noise, silo, plan.noise_std.times(plan.noise_scale[silo]))
        self._by_prefix = plan.release != "tree"

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point to the batch."""
        aggregation.add(self._batch, self._adder.point(x, y))

    def report(self) -> Report:
        """The batch since the last report, randomized; the batch is then forgotten."""
        release = self.release + 1
        if release > self.plan.releases:
            raise InputError(f"the plan has {self.plan.releases} releases, got one more report")
        message, total = self._message(release)
        report = Report(release, self.plan.dimension, message, self.silo)
        batch = np.zeros(self.plan.statistic_size)
        # Everything is computed: from here on nothing can fail.
        self.release, self._batch, self._total = release, batch, total
        return report

    def _message(self, release: int) -> tuple[np.ndarray, np.ndarray]:
        """What is sent, and the raw prefix sum once it is.

        Rows of the tree are written at once: a report that is made again writes them again, from
        rows of lower levels, which it leaves alone.
        """
        sends, total = self.plan.protocol.randomizer, self._total
        if sends == SEND_BATCH:
            return self._batch, total
        if sends == SEND_NOISY_BATCH:
            # The sum of what the users of the batch send, each with noise of their own.
            return self._adder.node(self._batch, release), total
        if self._by_prefix:
            total = total.copy()
            aggregation.add(total, self._batch)
            return self._adder.prefix(total, release), total
        level = aggregation.node_level(release)
        aggregation.psum(self._sums, self._batch, level)
        if sends == SEND_NODE:
            return self._sums[level], total
        node = self._adder.node(self._sums[level], release)
        if sends == SEND_NOISY_NODE:
            return node, total
        self._nodes[level] = node
        return aggregation.prefix(self._nodes, release), total
