"""A plan: everything a driver needs to play one curve, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastfed._kernels import native
from fastfed._validate import InputError
from fastfed.protocols.messages import statistic_size
from fastfed.protocols.protocol import Protocol


@dataclass(frozen=True)
class NoiseStd:
    """Standard deviations of one node's noise, in the units of the statistics."""

    bias: float = 0.0
    off_diagonal: float = 0.0
    diagonal: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        return self.bias, self.off_diagonal, self.diagonal


@dataclass(frozen=True)
class Radius:
    """beta_t = multiplier (offset_k + scale sqrt(base + d ln(1 + rows_t / (d lambda_k)))).

    k counts the releases so far; rows_t the rows of V by round t. ``offset`` and ``log_lambda``
    have one entry per k = 0..releases.
    """

    multiplier: float
    scale: float
    base: float
    offset: np.ndarray
    log_lambda: np.ndarray

    def at(self, release: int, rows: float, dimension: int) -> float:
        """beta after ``release`` releases with ``rows`` rows in V."""
        return native.radius_at(
            self.multiplier,
            self.scale,
            self.base,
            self.offset[release],
            self.log_lambda[release],
            rows,
            dimension,
        )


@dataclass(frozen=True)
class Clip:
    """Bounds the statistics are held to: ||x|| <= feature, reward in [low, high]."""

    feature: float = 1.0
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Plan:
    """One curve as data: schedule, protocol, noise, regularizer, radius.

    The step driver interprets it; the compiled driver executes it across synchronisations.
    """

    silos: int
    horizon: int
    dimension: int
    batch_size: int  # 0: never synchronise
    lazy: bool
    protocol: Protocol
    noise_std: NoiseStd
    regularizer: np.ndarray  # lambda after k releases, k = 0..releases
    radius: Radius
    clip: Clip | None
    second_bonus: float = 0.0

    @property
    def releases(self) -> int:
        """Synchronisations in T rounds; a short last batch is never sent (Alg. 1 line 9)."""
        return self.horizon // self.batch_size if self.batch_size else 0

    @property
    def levels(self) -> int:
        """Nodes a leaf can be part of: bit_length of the releases."""
        return self.releases.bit_length() if self.protocol.tree else 0

    @cached_property
    def statistic_size(self) -> int:
        return statistic_size(self.dimension)

    @property
    def rows_per_round(self) -> int:
        """Rows of V a round adds: every silo's if they share, the silo's own otherwise."""
        return self.silos if self.batch_size else 1

    def rows(self, release: int, round: int) -> float:
        """Rows that enter the radius in a round: what was released if lazy, else all M t."""
        counted = release * self.batch_size if self.lazy else round
        return float(self.rows_per_round * counted)

    @property
    def bytes_up(self) -> int:
        """Bytes all silos send in a whole run."""
        return 8 * self.statistic_size * self.silos * self.releases

    @property
    def bytes_down(self) -> int:
        """Bytes the server sends to all silos in a whole run."""
        return self.bytes_up


def check_plan(plan: object) -> Plan:
    """Plan if it is one: a system is the likely mistake."""
    if isinstance(plan, Plan):
        return plan
    raise InputError(f"plan must be a Plan, such as system.plan, got {type(plan).__name__}")
