"""Sources of reports: results of an output folder, and the problem that they hold for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed.results.results import CurveResult, Results
from fastfed.results.store import Effort

#: Environments of real records, whose older stores have no notes on them.
REAL_KINDS = ("letor", "classification", "replay")
OLDER = (
    "Made of real records: regret, curves, tables and counts here are computed from the raw "
    "records, without noise. No certificate covers them: do not publish them as protected. These "
    "results are of an earlier version: what its certificates took from the records is not listed."
)


@dataclass(frozen=True)
class Source:
    """Results, and what figure and table say about the problem behind them."""

    results: Results
    batch_sizes: tuple[int | str, ...]  # those of curves that synchronise, each once
    radius_multipliers: tuple[float, ...]  # each once; not 1 must be seen by whoever looks
    identity: dict[str, Any]  # all that decides the results, every key with its value
    effort: Effort

    @property
    def title(self) -> str:
        """The figure's title, or the experiment's name."""
        return str(self.results.figure.get("title", self.results.experiment))

    @property
    def setting(self) -> str:
        """M, T, d and B in one line."""
        curves = self.results.curves
        parts = [
            f"M = {_either(c.silos for c in curves) or spaced(self.results.silos)} silos",
            f"T = {spaced(self.results.horizon)} rounds",
            f"d = {_either(c.dimension for c in curves)}",
        ]
        if self.batch_sizes:
            parts.append(f"B = {' | '.join(str(b) for b in self.batch_sizes)}")
        if self.radius_multipliers not in ((), (1.0,)):
            shown = " | ".join(f"{m:g}" for m in self.radius_multipliers)
            parts.append(f"radius multiplier {shown}")
        return ", ".join(parts)

    @property
    def replicates(self) -> str:
        """Replicates of the curves: "25 replicates", or "3 to 5 replicates" while it runs."""
        counts = sorted({len(c.replicates) for c in self.results.curves}) or [0]
        few, many = counts[0], counts[-1]
        span = str(few) if few == many else f"{few} to {many}"
        return f"{span} replicate{'s' if many != 1 else ''}"

    @property
    def size(self) -> str:
        """Replicates and rounds that a verdict rests on."""
        return f"{self.replicates}, {spaced(self.results.horizon)} rounds"

    @property
    def about_records(self) -> tuple[str, ...]:
        """Notes on what no certificate covers, where some curve is simulated on real records."""
        noted = dict.fromkeys(note for c in self.results.curves for note in c.about_records)
        if not noted and self.identity.get("environment", {}).get("kind") in REAL_KINDS:
            return (OLDER,)
        return tuple(noted)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the spec, to stand under the title."""
        note = self.results.figure.get("note", ())
        return (note,) if isinstance(note, str) else tuple(note)


def in_memory(results: Results) -> Source:
    """The source of results without a folder: of the problem it has what they know."""
    return Source(results, (), (), {}, Effort(0.0, 0, ()))


def _either(values: Iterable[int]) -> str:
    """The values, each once: "10 | 50 | 100"."""
    return " | ".join(spaced(v) for v in dict.fromkeys(values))


def spaced(value: float) -> str:
    """Format a whole number with its thousands apart: 10 000."""
    return f"{value:,.0f}".replace(",", " ")


def y_axis(source: Source) -> str:
    """Scale of the y axis that [figure] asks for: a key of ``Y_LABELS``."""
    return str(source.results.figure.get("y", "cumulative"))


def divisor(source: Source, curve: CurveResult) -> np.ndarray:
    """Divisor of group regret at the checkpoints, (C,), by the scale of the y axis."""
    if y_axis(source) == "time-average":
        return curve.rounds
    return np.full(len(curve.rounds), curve.silos if y_axis(source) == "per-silo" else 1)


def regret(source: Source, curve: CurveResult) -> tuple[np.ndarray, np.ndarray]:
    """Mean and two standard errors at the checkpoints, each (C,), on the scale of the y axis."""
    by = divisor(source, curve)
    return curve.mean / by, 2.0 * curve.stderr / by
