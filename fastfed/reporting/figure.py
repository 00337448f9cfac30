"""The [figure] table of a spec, its bounds, and the sources of reports.

A source is what a report is written from: the results and settings that an output folder holds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, integer, nearest, nearest_label, show
from fastfed._validate import folder as path_of
from fastfed.reporting.claims import Claim, check_claims, judge
from fastfed.reporting.text import number_with_noun, spaced
from fastfed.results.results import CurveResult, Results
from fastfed.results.store import FILE, Effort, Store, remedy

# ---- The keys of a spec's [figure] table ---------------------------------------------------------

#: Values of ``y``: group regret, or group regret divided by the round or by the number of silos.
AXIS_KEYS = ("cumulative", "time-average", "per-silo")

#: Values of ``log``: the axes that are logarithmic.
LOG_KEYS = ("", "x", "y", "xy")

#: Names of tables that set the size of the experiment, and values of ``size``.
SIZES = ("quick", "all", "full")

KEYS = (
    "id", "paper", "title", "says", "y", "colour", "dash", "facet", "log", "panels", "note", "long",
    *SIZES, "size", "judged_from", "changed", "statement", "line", "baseline",
)  # fmt: skip
_LISTS = ("panels", "note", "colour", "dash", "facet", "changed")
#: Keys that a table of sizes may change.
_SIZE_KEYS = ("horizon", "replicates")


def check_figure(
    figure: Any,
    labels: Sequence[str] | None = None,
    bounds: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Check the [figure] table of a spec.

    Parameters
    ----------
    figure : Any
        The table.
    labels : sequence of str, optional
        Labels of the curves, which claims and bounds may name; None if they are not known yet.
    bounds : mapping, optional
        Names of the bounds of each curve, by label; None if they are not known yet.

    Raises
    ------
    InputError
        For unknown keys and invalid values.
    """
    if not isinstance(figure, dict):
        raise InputError(f"figure must be a table, got {show(figure)}")
    for key, value in figure.items():
        if key not in KEYS:
            raise InputError(f'unknown key "{key}" in figure{nearest(key, KEYS)}')
        if key in SIZES:
            _check_size(key, value)
            continue
        if key == "statement":
            check_claims(value, labels)
            continue
        if key == "line":
            check_bound_lines(value, labels, bounds)
            continue
        if key == "judged_from":
            integer("figure.judged_from", value, at_least=1)
            continue
        is_list = key in _LISTS and isinstance(value, list)
        if not all(isinstance(v, str) for v in (value if is_list else [value])):
            expected = "a text or a list of texts" if key in _LISTS else "a text"
            raise InputError(f"figure.{key} must be {expected}, got {show(value)}")
    choice("figure.y", figure.get("y", AXIS_KEYS[0]), AXIS_KEYS)
    if labels is not None and "baseline" in figure and figure["baseline"] not in labels:
        raise InputError(
            f"unknown curve {show(figure['baseline'])} in figure.baseline"
            f"{nearest_label(figure['baseline'], labels)}"
        )
    choice("figure.size", figure.get("size", SIZES[0]), SIZES)
    choice("figure.log", figure.get("log", LOG_KEYS[0]), LOG_KEYS)


def _check_size(key: str, value: Any) -> None:
    """Raise InputError unless ``value`` is a valid table figure.quick, figure.all or figure.full.

    ``key`` is "quick", "all" or "full".
    """
    if not isinstance(value, dict):
        raise InputError(f"figure.{key} must be a table, got {show(value)}")
    for name in value:
        if name not in _SIZE_KEYS:
            raise InputError(f'unknown key "{name}" in figure.{key}{nearest(name, _SIZE_KEYS)}')
        integer(f"figure.{key}.{name}", value[name], at_least=1)


# ---- Bound curves: the tables [[figure.line]], and bounds on how often silos synchronise ---------
# Bounds are stored with the curve of the system that they hold for, at the checkpoints. Bounds of
# group regret are drawn, with the same divisor as the curve. Bounds of synchronisations are listed.


LINE_KEYS = ("label", "curve", "bound")
#: Prefix of the names of bounds on the number of synchronisations.
SYNCHRONISATIONS = "synchronisations"
#: Bounds are drawn up to this multiple of the largest value of any curve with its band.
BOUND_HEIGHT = 3.0

BOUND_COLOUR = "#777777"
#: Dashes that distinguish several bounds in one plot.
BOUND_DASHES = ((0, (5, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (8, 5)))


def check_bound_lines(
    value: Any,
    labels: Sequence[str] | None = None,
    bounds: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Raise InputError unless ``value`` is a valid [[figure.line]].

    Curves must be in ``labels``, and bounds in ``bounds[curve]``. If ``labels`` or ``bounds`` is
    None, it is not known yet, and its rule is not checked.
    """
    if not isinstance(value, list):
        raise InputError(
            f"figure.line must be a list of tables: write [[figure.line]], got {show(value)}"
        )
    for table in value:
        if not isinstance(table, dict):
            raise InputError(f"figure.line must hold tables, got {show(table)}")
        for key in table:
            if key not in LINE_KEYS:
                raise InputError(f'unknown key "{key}" in figure.line{nearest(key, LINE_KEYS)}')
        for key in LINE_KEYS:
            text = table.get(key)
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"figure.line.{key} must be a text, got {show(text)}")
        curve, bound = table["curve"], table["bound"]
        if bound.startswith(SYNCHRONISATIONS):
            raise InputError(
                f'figure.line.bound must be a bound of regret, got "{bound}", which is listed '
                "under the results"
            )
        if labels is not None and curve not in labels:
            raise InputError(
                f'unknown curve "{curve}" in figure.line{nearest_label(curve, labels)}'
            )
        if bounds is not None and bound not in (known_bounds := bounds.get(curve, ())):
            names = ", ".join(f'"{name}"' for name in known_bounds)
            bounds_text = f"it has {names}" if names else "as it is set up it has no bounds"
            raise InputError(
                f'unknown bound "{bound}" of curve "{curve}" in figure.line'
                f"{nearest(bound, known_bounds) or f'; {bounds_text}'}"
            )


@dataclass(frozen=True)
class BoundCurve:
    """A bound at the checkpoints, in the units of the y axis; infinite without a finite bound."""

    label: str
    rounds: np.ndarray  # (C,)
    values: np.ndarray  # (C,)


def bound_curves(source: Source) -> list[BoundCurve]:
    """Return the stored bounds that the figure draws ([[figure.line]]), in units of the y axis."""
    lines = []
    for table in source.results.figure.get("line", ()):
        values = _stored(source.results, table)
        if values is not None:
            curve = source.results[table["curve"]]
            scale = divisor(source, curve)
            lines.append(
                BoundCurve(table["label"], curve.rounds, np.array(values, np.float64) / scale)
            )
    return lines


def missing_bounds(source: Source) -> list[str]:
    """Return a sentence for each bound of the figure ([[figure.line]]) that is not stored."""
    return [
        f'not drawn: {table["label"]}, since there is no bound "{table["bound"]}" of curve '
        f'"{table["curve"]}" in the store'
        for table in source.results.figure.get("line", ())
        if _stored(source.results, table) is None
    ]


def _stored(results: Results, table: dict[str, str]) -> list[float] | None:
    """Return the values of the bound that a [[figure.line]] names; None if it is not stored."""
    for curve in results.curves:
        if curve.label == table["curve"] and not table["bound"].startswith(SYNCHRONISATIONS):
            return curve.bounds.get(table["bound"])
    return None


def ceiling(source: Source) -> float:
    """Return the height up to which bounds are drawn, in the units of the y axis.

    It is a multiple of the largest value of any curve (`BOUND_HEIGHT`).
    """
    tallest = 0.0
    for curve in source.results.curves:
        mean, two_errors = regret(source, curve)
        tallest = max(tallest, float((mean + np.nan_to_num(two_errors)).max()))
    return BOUND_HEIGHT * tallest


def visible_bounds(source: Source, top: float) -> list[BoundCurve]:
    """Return the bounds that are below ``top`` at some checkpoint."""
    return [line for line in bound_curves(source) if (line.values <= top).any()]


def bounds_above_plot(source: Source) -> list[str]:
    """Return a sentence for each bound that is above the plot at the last round, with its value."""
    top = ceiling(source)
    return [
        f"above the plot: {line.label} = {amount(line.values[-1])} at the last round"
        for line in bound_curves(source)
        if not line.values[-1] <= top
    ]


def synchronisation_bounds(results: Results) -> list[tuple[str, float, str, float]]:
    """Return all bounds on the number of synchronisations, with their values at the last round.

    Each is (label of the curve, mean number of synchronisations of a replicate, source of the
    bound, bound).
    """
    return [
        (curve.label, curve.synchronisations, _source_of(name), values[-1])
        for curve in results.curves
        for name, values in curve.bounds.items()
        if name.startswith(SYNCHRONISATIONS)
    ]


def _source_of(name: str) -> str:
    """Return the source of a bound from its name.

    For example "synchronisations-proposition-1" has the source "Proposition 1".
    """
    text = name.removeprefix(SYNCHRONISATIONS).replace("-", " ").strip()
    return text[:1].upper() + text[1:]


def amount(value: float) -> str:
    """Return the value of a bound as text."""
    if not math.isfinite(value):
        return "infinite"
    return spaced(value) if value >= 1e4 else f"{value:.4g}"


# ---- Sources of reports: results of an output folder, and their problem --------------------------

#: Environments of real records. Stores of earlier versions have no notes on records.
REAL_KINDS = ("letor", "classification", "replay")
OLDER = (
    "Made of real records: regret, curves, tables and counts here are computed from the raw "
    "records, without noise. No certificate covers them: do not publish them as protected. These "
    "results are of an earlier version: what its certificates took from the records is not listed."
)


@dataclass(frozen=True)
class Source:
    """Results, and the settings of their problem, from which a report is written."""

    results: Results
    batch_sizes: tuple[int | str, ...]  # distinct batch sizes of the curves that have one
    radius_multipliers: tuple[float, ...]  # distinct; the report shows them unless all are 1
    identity: dict[str, Any]  # all keys that determine the results, with their values
    effort: Effort

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Return the claims of the figure with their verdicts."""
        return judge(self.results)

    @property
    def title(self) -> str:
        """Return the title of the figure, or else the name of the experiment."""
        return str(self.results.figure.get("title", self.results.experiment))

    @property
    def setting(self) -> str:
        """Return one line with the sizes of the problem: silos, rounds, dimension, batch size."""
        curves = self.results.curves
        silos = _distinct_text(c.silos for c in curves)
        parts = [
            f"M = {number_with_noun(silos or spaced(self.results.silos), 'silo')}",
            f"T = {number_with_noun(spaced(self.results.horizon), 'round')}",
        ]
        if curves:
            parts.append(f"d = {_distinct_text(c.dimension for c in curves)}")
        if self.batch_sizes:
            parts.append(f"B = {' | '.join(str(b) for b in self.batch_sizes)}")
        if self.radius_multipliers not in ((), (1.0,)):
            shown = " | ".join(f"{m:g}" for m in self.radius_multipliers)
            parts.append(f"radius multiplier {shown}")
        return ", ".join(parts)

    @property
    def replicates(self) -> str:
        """Return the number of replicates as text: "25 replicates".

        In an unfinished run it may be a range: "3 to 5 replicates".
        """
        counts = sorted({len(c.replicates) for c in self.results.curves}) or [0]
        fewest, most = counts[0], counts[-1]
        span = str(fewest) if fewest == most else f"{fewest} to {most}"
        return f"{span} replicate{'s' if most != 1 else ''}"

    @property
    def size(self) -> str:
        """Return the numbers of replicates and rounds from which verdicts are computed, as text."""
        return f"{self.replicates}, {spaced(self.results.horizon)} rounds"

    @property
    def about_records(self) -> tuple[str, ...]:
        """Return notes on what no certificate covers; empty unless records are real."""
        noted = dict.fromkeys(note for c in self.results.curves for note in c.about_records)
        if not noted and self.identity.get("environment", {}).get("kind") in REAL_KINDS:
            return (OLDER,)
        return tuple(noted)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the spec, which reports print below the title."""
        note = self.results.figure.get("note", ())
        return (note,) if isinstance(note, str) else tuple(note)


def in_memory(results: Results) -> Source:
    """Return a source for results without an output folder, whose settings are not known."""
    return Source(results, (), (), {}, Effort(0.0, 0, ()))


def _distinct_text(values: Iterable[int]) -> str:
    """Return the distinct values as text: "10 | 50 | 100"."""
    return " | ".join(spaced(v) for v in dict.fromkeys(values))


def y_axis(source: Source) -> str:
    """Return the scale of the y axis in the figure settings, one of `AXIS_KEYS`."""
    return str(source.results.figure.get("y", "cumulative"))


def divisor(source: Source, curve: CurveResult) -> np.ndarray:
    """Return the divisor of group regret at each checkpoint, (C,), for the scale of the y axis.

    It is 1, the number of silos, or the round.
    """
    if y_axis(source) == "time-average":
        return curve.rounds
    return np.full(len(curve.rounds), curve.silos if y_axis(source) == "per-silo" else 1)


def regret(source: Source, curve: CurveResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean regret and two standard errors, each (C,), on the scale of the y axis."""
    scale = divisor(source, curve)
    return curve.mean / scale, 2.0 * curve.stderr / scale


# ---- Sources of output folders -------------------------------------------------------------------


def read_source(folder: str | Path, replicates: int | None = None) -> Source:
    """Read the results of an output folder, and the settings of their problem, as a `Source`.

    Parameters
    ----------
    folder : str or Path
        The output folder.
    replicates : int, optional
        Number of replicates to use, beginning with the first; all by default.

    Returns
    -------
    Source
        The results and settings, from which reports are written.

    Raises
    ------
    InputError
        If the folder holds no results, or they are damaged.
    """
    path = _output(folder)
    with Store.open_existing(path) as store:
        meta, results, effort = store.meta(), store.results(replicates), store.effort()
    try:
        # Use the labels of the spec, as some curves may have no finished replicate yet.
        check_figure(results.figure, [str(c["label"]) for c in meta["identity"]["curves"]])
    except InputError as error:  # the run checked the table, so it was changed since then
        raise InputError(f"{path / FILE} is damaged: {error}") from None
    curves = meta["identity"]["curves"]
    return Source(
        results=results,
        batch_sizes=_distinct(c.get("batch_size") for c in curves),
        radius_multipliers=_distinct(c.get("radius_multiplier") for c in curves),
        identity=meta["identity"],
        effort=effort,
    )


def _output(folder: str | Path) -> Path:
    """Return the path of an output folder; raise InputError if it is no folder."""
    path = path_of(folder)
    if not os.path.isdir(path):
        hint = f": its folder is {path.parent}" if path.name == "results.sqlite" else ""
        raise InputError(f"{path} is not a folder, such as fastfed run writes{hint}")
    return path


def experiment_folders(folder: str | Path) -> list[Path]:
    """Return the folders with results: ``folder``, or else its subfolders, sorted by name."""
    path = _output(folder)
    if os.path.isfile(path / FILE):
        return [path]
    folders = sorted(p.parent for p in path.glob(f"*/{FILE}") if p.is_file())
    if not folders:
        raise InputError(
            f"{path} holds no results ({FILE} is missing, also in its subfolders): {remedy(path)}"
        )
    return folders


def read_all(folder: str | Path) -> tuple[dict[Path, Source], list[str]]:
    """Read the sources of all experiments of a folder.

    Returns
    -------
    sources : dict of Path to Source
        The source of each folder with results.
    left_out : list of str
        A reason for each folder that cannot be read.

    Raises
    ------
    InputError
        If no folder can be read.
    """
    path = path_of(folder)
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


def _distinct(values: Any) -> tuple[Any, ...]:
    """Return the distinct values other than None, in order."""
    return tuple(dict.fromkeys(v for v in values if v is not None))
