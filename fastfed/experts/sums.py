"""Plans whose clients send, every N rounds, what every expert has lost since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource, is_exact
from fastfed._system import account
from fastfed._validate import InputError
from fastfed.experts.plan import Collector, ExpertPlan, Gradient
from fastfed.experts.setting import Setting
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, Described, RawData, released
from fastfed.privacy.certificate import Certificate, no_privacy


@dataclass(frozen=True, kw_only=True)
class SumsPlan(ExpertPlan):
    """Exchanges before rounds N, 2 N, ..., on losses of the rounds before (gao-2024, Algorithm 4).

    For N = 1 the first is before round 2: before round 1 nothing is known.
    """

    phase_length: int  # N

    @property
    def exchanges(self) -> int:
        return self.exchanges_before(self.horizon)

    def exchanges_before(self, round: int) -> int:
        last = min(round, self.horizon)
        return last // self.phase_length - (self.phase_length == 1)

    def asking_rounds(self, last: int) -> np.ndarray:
        return np.arange(max(self.phase_length, 2), last + 1, self.phase_length)

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        points = self.silos * self.horizon
        return SumCollector(self.experts, exact.quantum(points) if is_exact(noise) else None)


@released.register
def _(plan: SumsPlan) -> tuple[Described, ...] | None:
    # What another package's server makes of the sums is not known here.
    return (RawData(),) if plan.protocol.noise_by == "none" else None


@account.register
def _certificate(plan: SumsPlan, setting: Setting) -> Certificate:
    """Of sums that are sent as they are."""
    if released(plan) is None:
        raise InputError(f"plan must be one that fastfed accounts for, got {type(plan).__name__}")
    claim = plan.privacy or Claim(source=plan.protocol.source)
    return no_privacy(claim.source, caveats=claim.caveats)


class SumCollector:
    """The losses of one client since its last report; it draws no noise.

    unit: what losses are rounded to multiples of, so that sums are exact; None in simulations.
    """

    def __init__(self, experts: int, unit: float | None = None) -> None:
        self._sum, self._unit = np.zeros(experts), unit

    def observe(self, round: int, loss: np.ndarray | Gradient) -> None:
        assert isinstance(loss, np.ndarray)
        aggregation.add(self._sum, loss if self._unit is None else exact.quantise(loss, self._unit))

    def values(self, release: int, x: np.ndarray) -> np.ndarray:
        sent, self._sum = self._sum, np.zeros_like(self._sum)
        return sent


def check_linear(algorithm: str, setting: Setting) -> None:
    """InputError unless every expert has a loss of its own."""
    if not setting.linear:
        raise InputError(
            f"{algorithm} needs linear losses, one number for each expert; these are not"
        )


def check_phase_length(length: int, setting: Setting) -> int:
    """N, if a phase ends within the horizon."""
    if length > setting.horizon:
        raise InputError(f"phase_length must be <= horizon ({setting.horizon}), got {length}")
    return length
