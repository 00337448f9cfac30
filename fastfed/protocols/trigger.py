"""Triggers, which let the data decide when to synchronise: the determinant rule, and a private
one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fastfed._kernels import aggregation, driver, linalg
from fastfed._random import IdealSource, NoiseSource, is_exact
from fastfed._sampling import ERROR, Normals
from fastfed._validate import array
from fastfed.privacy import exact
from fastfed.protocols.protocol import statistic_size

# The same numbers stand in src/ff_trigger.h.
DETERMINANT, PRIVATE_DETERMINANT = 1, 2


@dataclass(frozen=True)
class Trigger:
    """A silo asks for a synchronisation when the determinant of what it knows has grown enough.

    In a round, n rounds after the last synchronisation and this one counted:
    kind DETERMINANT: ln det(S + Q + extra I) - ln det S >= threshold / n (dubey-pentland-2020,
    Algorithm 1, line 12, the matrix inside the determinant). PRIVATE_DETERMINANT: ln det(S + Q + N)
    - ln det S > threshold / n (zhou-chowdhury-2024, equation (10)), N the noise of prefix n in a
    tree whose leaves are single rounds and which begins anew after every synchronisation.
    S: V of what is synchronised; Q: sum of x x' of the silo's batch; ``std``: of N's nodes, off
    and on the diagonal. ``delay``: rounds still played after the one in which it fires.
    """

    kind: int
    threshold: float
    extra: float = 0.0
    std: tuple[float, float] = (0.0, 0.0)
    delay: int = 0

    def updates(self, dimension: int) -> bool:
        """True if data points update a factor, instead of a determinant anew in every round.

        The same number but for rounding, and less work in high dimensions.
        """
        return self.kind == DETERMINANT and dimension > driver.RECOMPUTE_MAX

    def levels(self, horizon: int) -> int:
        """Nodes of N that a round can be part of."""
        return horizon.bit_length() if self.kind == PRIVATE_DETERMINANT else 0


class Clock:
    """One silo's view of a trigger, round by round."""

    def __init__(
        self,
        trigger: Trigger,
        dimension: int,
        horizon: int,
        silo: int,
        noise: NoiseSource,
        fixed_point: tuple[float, float],
    ) -> None:
        """fixed_point: the unit of records, and the factor on exact noise that pays for it."""
        self.trigger, self.dimension, self.silo, self.noise = trigger, dimension, silo, noise
        #: What the rule compares with the threshold, after the last round that was observed.
        self.value = 0.0
        self._size = statistic_size(dimension)
        self._nodes = np.zeros((trigger.levels(horizon), self._size))
        self._ideal: IdealSource | None = None
        if trigger.kind == PRIVATE_DETERMINANT and is_exact(noise):
            self._ideal = noise
            self._unit, larger = fixed_point
            off_diagonal, diagonal = trigger.std
            rows, columns = np.tril_indices(dimension)
            std = np.where(rows == columns, diagonal, off_diagonal)
            self._std = std * larger
            self._drawn_nodes: list[Normals | None] = [None] * trigger.levels(horizon)
        self._wide = np.zeros((dimension, dimension)) if trigger.updates(dimension) else None

    def restart(self, w: np.ndarray, total: np.ndarray, ridge: float) -> None:
        """A synchronisation has just made S = total + ridge I, of factor ``w``."""
        self._total, self._ridge, self._rounds = total, ridge + self.trigger.extra, 0
        self._batch = np.zeros(self._size)
        self._before = linalg.log_det(w)
        if self._wide is not None:
            self._growth, factor = self._grown(total.copy())
            if factor is not None:
                self._wide[:] = factor

    def observe(self, x: np.ndarray, round: int) -> bool:
        """Take in the features of a round; whether the silo asks for a synchronisation."""
        private = self.trigger.kind == PRIVATE_DETERMINANT
        # Whatever can fail, a noise source, comes before anything has changed.
        drawn = self._drawn(round) if private else None
        self._rounds += 1
        if self._wide is not None:
            self._growth += linalg.log(linalg.observe(self._wide, None, x, 0.0))
        else:
            aggregation.add(self._batch, self._point(x))
            self._growth, _ = self._grown(self._seen(drawn))
        self.value = self._growth * self._rounds
        bar = self.trigger.threshold / self._rounds
        return self._growth > bar if private else self._growth >= bar

    def _grown(self, v: np.ndarray) -> tuple[float, np.ndarray | None]:
        """Growth of ln det of v + ridge I, and its factor."""
        d = self.dimension
        v[d:][np.cumsum(np.arange(1, d + 1)) - 1] += self._ridge
        w = linalg.factor(v[d:], d)
        # A matrix that is not positive definite has not grown.
        return (-np.inf, None) if w is None else (linalg.log_det(w) - self._before, w)

    def _point(self, x: np.ndarray) -> np.ndarray:
        """x x' as a statistic."""
        point = np.zeros(self._size)
        linalg.accumulate(point, x, 0.0)
        return exact.quantise(point, self._unit) if self._ideal is not None else point

    def _drawn(self, round: int) -> np.ndarray | Normals:
        if self._ideal is not None:
            return self._ideal.ideal_trigger(self.silo, round, self.dimension)
        drawn = self.noise.trigger(self.silo, round, self.dimension)
        return array("noise", drawn, shape=(self._size - self.dimension,))

    def _seen(self, drawn: np.ndarray | Normals | None) -> np.ndarray:
        """S + Q, with the noise of this round's prefix where the rule is private."""
        v = self._total.copy()
        if drawn is None:
            aggregation.add(v, self._batch)
            return v
        d, level = self.dimension, aggregation.node_level(self._rounds)
        values = drawn.values if isinstance(drawn, Normals) else drawn
        self._nodes[level, d:] = values
        prefix = aggregation.prefix(self._nodes, self._rounds)
        if not isinstance(drawn, Normals):
            aggregation.add(v, self._batch)
            return aggregation.add_noise(v, prefix, d, 0.0, *self.trigger.std)
        self._drawn_nodes[level] = drawn
        parts = [
            (node.interval, Fraction(1))
            for j, node in enumerate(self._drawn_nodes)
            if node is not None and self._rounds >> j & 1
        ]
        # Sums of as many draws, each below 64 unless its uniform begins with 2^11 zeros.
        error = len(parts) * (ERROR + len(parts) * 2.0**-46)
        batch, noise = self._batch[d:].copy(), prefix[d:].copy()
        v[d:] += exact.noisy(batch, self._std, noise, error, exact.combined(parts))
        return v
