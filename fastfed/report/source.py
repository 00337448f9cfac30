"""What every report is made of: the results of an output folder and the setting they hold for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError
from fastfed.results.results import Results
from fastfed.results.store import FILE, Effort, Store

#: Environments of real records, whose older stores have no notes on them.
REAL_KINDS = ("letor", "classification", "replay")
OLDER = (
    "Made of real records: regret, curves, tables and counts here are computed from the raw "
    "records, without noise. No certificate covers them: do not publish them as protected. These "
    "results are of an earlier version: what its certificates took from the records is not listed."
)


@dataclass(frozen=True)
class Source:
    """Results, and the parts of the setting that stand on the figure and above the table."""

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
        """How often curves were played: "25 replicates", "3 to 5 replicates" while it runs."""
        counts = sorted({len(c.replicates) for c in self.results.curves}) or [0]
        few, many = counts[0], counts[-1]
        span = str(few) if few == many else f"{few} to {many}"
        return f"{span} replicate{'s' if many != 1 else ''}"

    @property
    def size(self) -> str:
        """How large the run is that a verdict rests on."""
        return f"{self.replicates}, {spaced(self.results.horizon)} rounds"

    @property
    def about_records(self) -> tuple[str, ...]:
        """What no certificate covers, where some curve is played on real records."""
        noted = dict.fromkeys(note for c in self.results.curves for note in c.about_records)
        if not noted and self.identity.get("environment", {}).get("kind") in REAL_KINDS:
            return (OLDER,)
        return tuple(noted)

    @property
    def notes(self) -> tuple[str, ...]:
        """The spec's own words under the title."""
        note = self.results.figure.get("note", ())
        return (note,) if isinstance(note, str) else tuple(note)


def in_memory(results: Results) -> Source:
    """The source of results that no folder need hold: of their setting, what they know."""
    return Source(results, (), (), {}, Effort(0.0, 0, ()))


def read_source(folder: str | Path, replicates: int | None = None) -> Source:
    """The source in an output folder, over its first ``replicates`` replicates (default: all)."""
    from fastfed.report.keys import check_figure  # lines are drawn of sources

    path = Path(folder)
    if not os.path.isdir(path):
        raise InputError(f"{path} is not a folder")
    with Store.open_existing(path) as store:
        meta, results, effort = store.meta(), store.results(replicates), store.effort()
    try:
        check_figure(results.figure, [curve.label for curve in results.curves])
    except InputError as error:  # played from a spec, it was checked: somebody changed it since
        raise InputError(f"{path / FILE} is damaged: {error}") from None
    curves = meta["identity"]["curves"]
    return Source(
        results=results,
        batch_sizes=_distinct(c.get("batch_size") for c in curves),
        radius_multipliers=_distinct(c.get("radius_multiplier") for c in curves),
        identity=meta["identity"],
        effort=effort,
    )


def experiment_folders(folder: str | Path) -> list[Path]:
    """The folder itself if it holds results, else its subfolders that do, sorted by name."""
    path = Path(folder)
    if not os.path.isdir(path):
        raise InputError(f"{path} is not a folder")
    if os.path.isfile(path / FILE):
        return [path]
    found = sorted(p.parent for p in path.glob(f"*/{FILE}") if p.is_file())
    if not found:
        raise InputError(f"{path} holds no results ({FILE} is missing, in its subfolders too)")
    return found


def read_all(folder: str | Path) -> tuple[dict[Path, Source], list[str]]:
    """The sources of a folder's experiments by their folders, and why some cannot be read.

    InputError when none can.
    """
    path = Path(folder)
    folders = experiment_folders(path)
    if folders == [path]:
        return {path: read_source(path)}, []
    sources: dict[Path, Source] = {}
    left_out: list[str] = []
    for each in folders:
        try:
            sources[each] = read_source(each)
        except InputError as error:
            left_out.append(str(error))
    if not sources:
        raise InputError(f"{path} holds no results that can be read: {left_out[0]}")
    return sources, left_out


def _either(values: Iterable[int]) -> str:
    """The values, each once: "10 | 50 | 100"."""
    return " | ".join(spaced(v) for v in dict.fromkeys(values))


def _distinct(values: Any) -> tuple[Any, ...]:
    """The values in their order, each once, without None."""
    return tuple(dict.fromkeys(v for v in values if v is not None))


def spaced(value: float) -> str:
    """A whole number with its thousands apart: 10 000."""
    return f"{value:,.0f}".replace(",", " ")
