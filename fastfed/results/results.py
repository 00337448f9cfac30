"""The results of an experiment in memory: curves over replicates, with their certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: float64 counts exactly up to here.
COUNTED = 2.0**53


@dataclass(frozen=True, repr=False)
class CurveResult:
    """One curve: every replicate's regret and messages at the checkpoints, and its guarantee.

    What was sent is a mean over replicates: an int where all of them counted the same, a float
    otherwise and beyond 2^53.
    """

    label: str
    algorithm: str
    protocol: str
    silos: int
    dimension: int
    horizon: int
    rounds: np.ndarray  # (C,) int64
    group_regret: np.ndarray  # (R, C): cumulative, summed over silos
    replicates: tuple[int, ...]
    synchronisation_counts: np.ndarray  # (R, C) int64: so far
    bits_up_counts: np.ndarray  # (R, C): sent so far by all silos
    bits_down_counts: np.ndarray  # (R, C): sent so far to all silos
    certificate: dict[str, Any]
    #: Totals over replicates, by name: indefinite V, clipped features, switches of expert, ...
    events: dict[str, int]
    #: Of one thread; None where nothing was timed.
    agent_rounds_per_second: float | None = None
    #: By name, at the checkpoints (C,): of group regret, and where the name begins with
    #: "synchronisations" of how often a replicate synchronises. Infinite where nothing is promised.
    bounds: dict[str, list[float]] = field(default_factory=dict)
    #: Packages, with their versions, that algorithm, environment or score are from, by part: those
    #: that are not fastfed's own.
    packages: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        end = self.final()
        return (
            f"<{self.label}: group regret {end['mean']:.6g} ± {end['stderr']:.2g} after "
            f"{self.horizon} rounds, {len(self.replicates)} replicates, "
            f"privacy {self.certificate['status']}>"
        )

    @property
    def synchronisations(self) -> float:
        """Synchronisations of a replicate."""
        return _means(self.synchronisation_counts)[-1]

    @property
    def synchronisations_curve(self) -> list[float]:
        """Synchronisations by each checkpoint, (C,)."""
        return _means(self.synchronisation_counts)

    @property
    def bits_up(self) -> float:
        """Bits all silos send in a replicate."""
        return _means(self.bits_up_counts)[-1]

    @property
    def bits_down(self) -> float:
        """Bits sent to all silos in a replicate."""
        return _means(self.bits_down_counts)[-1]

    @property
    def bytes_up(self) -> float:
        """``bits_up`` in bytes, whole ones in every replicate."""
        return _means(_bytes(self.bits_up_counts))[-1]

    @property
    def bytes_down(self) -> float:
        """``bits_down`` in bytes, whole ones in every replicate."""
        return _means(_bytes(self.bits_down_counts))[-1]

    @property
    def bytes_curve(self) -> list[float]:
        """Bytes sent up and down by each checkpoint, all silos together, (C,)."""
        return _means(_bytes(self.bits_up_counts) + _bytes(self.bits_down_counts))

    @property
    def bytes_sent(self) -> float:
        """Bytes up and down in a replicate, all silos together."""
        return self.bytes_curve[-1]

    @property
    def mean(self) -> np.ndarray:
        """Mean group regret at the checkpoints, (C,)."""
        return self.group_regret.mean(axis=0)

    @property
    def stderr(self) -> np.ndarray:
        """Standard error of the mean, (C,); NaN for a single replicate, which tells nothing."""
        n = len(self.group_regret)
        if n < 2:
            return np.full(self.group_regret.shape[1], math.nan)
        return self.group_regret.std(axis=0, ddof=1) / math.sqrt(n)

    def final(self, divisor: float = 1.0) -> dict[str, float]:
        """Mean and standard error at the last round, divided."""
        return {
            "mean": float(self.mean[-1]) / divisor,
            "stderr": float(self.stderr[-1]) / divisor,
        }

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of one curve."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "silos": self.silos,
            "dimension": self.dimension,
            "replicates": len(self.replicates),
            "group_regret": self.final(),
            "per_silo_regret": self.final(self.silos),
            "time_average_regret": self.final(self.horizon),
            "rounds": self.rounds.tolist(),
            "mean_curve": self.mean.tolist(),
            "stderr_curve": self.stderr.tolist(),
            "synchronisations": self.synchronisations,
            "synchronisations_curve": self.synchronisations_curve,
            "bits_up": self.bits_up,
            "bits_down": self.bits_down,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_curve": self.bytes_curve,
            "bounds": self.bounds,
            "packages": self.packages,
            "events": self.events,
            "agent_rounds_per_second": self.agent_rounds_per_second,
            "certificate": self.certificate,
        }


def total_events(replicates: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counts of events, added up over replicates."""
    names = list(dict.fromkeys(name for events in replicates for name in events))
    return {name: sum(events.get(name, 0) for events in replicates) for name in names}


def _bytes(bits: np.ndarray) -> np.ndarray:
    """Whole bytes that hold so many bits."""
    return np.ceil(bits / 8.0)


def _means(counts: np.ndarray) -> list[float]:
    """Mean over replicates of counts (R, C), (C,)."""
    first, means = counts[0], counts.mean(axis=0)
    agree = (counts == first).all(axis=0)
    # The mean of equal counts may round.
    return [
        (int(count) if count <= COUNTED else float(count)) if same else float(mean)
        for count, mean, same in zip(first, means, agree, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Results:
    """All curves of one experiment; what ``simulate`` returns and ``load`` reads."""

    experiment: str
    horizon: int
    silos: int
    curves: tuple[CurveResult, ...]
    figure: dict[str, Any]

    def __repr__(self) -> str:
        lines = [f"<Results of {self.experiment}: {self.silos} silos, {self.horizon} rounds>"]
        return "\n  ".join([*lines, *map(repr, self.curves)])

    def __getitem__(self, label: str) -> CurveResult:
        for curve in self.curves:
            if curve.label == label:
                return curve
        raise KeyError(f"no curve {label!r}; there are {[c.label for c in self.curves]}")

    def paired_difference(
        self, first: str, second: str, *, per_silo: bool = False
    ) -> tuple[float, float]:
        """Mean and standard error of first - second in final group regret, replicate by replicate.

        ``per_silo`` divides each curve's regret by its own number of silos first. Curves of one
        experiment see the same contexts and reward noise, so the difference is much less noisy
        than the curves.
        """
        a, b = self[first], self[second]
        shared = sorted(set(a.replicates) & set(b.replicates))
        finals = [
            np.array([c.group_regret[c.replicates.index(r), -1] for r in shared])
            / (c.silos if per_silo else 1)
            for c in (a, b)
        ]
        difference = finals[0] - finals[1]
        spread = difference.std(ddof=1) / math.sqrt(len(shared)) if len(shared) > 1 else math.nan
        return float(difference.mean()), float(spread)

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of ``fastfed results``."""
        return {
            "experiment": self.experiment,
            "horizon": self.horizon,
            "silos": self.silos,
            "curves": [c.to_builtins() for c in self.curves],
        }
