"""Bounds beside the curves: the tables [[figure.line]], and bounds on how often silos synchronise.

Bounds are those that were stored with a curve, of its own system, at the checkpoints. Those of
group regret are drawn, divided as the y axis divides the curve; the others are listed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError, nearest, show
from fastfed.report import canvas
from fastfed.report.source import Source, spaced
from fastfed.results.results import Results

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

KEYS = ("label", "curve", "bound")
#: Names that begin so bound how often silos synchronise.
SYNCHRONISATIONS = "synchronisations"
#: Bounds are drawn up to so many times the height of the tallest curve with its band.
ROOM = 3.0

COLOUR = "#777777"
#: All of them dashed: several bounds in one picture are told apart by how.
DASHES = ((0, (5, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (8, 5)))


def check_lines(
    value: Any,
    labels: Sequence[str] | None = None,
    bounds: Mapping[str, Collection[str]] | None = None,
) -> None:
    """InputError unless ``value`` is what [[figure.line]] may hold.

    Its curves must be among ``labels``, and its bounds among those that ``bounds`` has for the
    curve (None: not known yet).
    """
    if not isinstance(value, list):
        raise InputError(
            f"figure.line must be a list of tables: write [[figure.line]], got {show(value)}"
        )
    for table in value:
        if not isinstance(table, dict):
            raise InputError(f"figure.line must hold tables, got {show(table)}")
        for key in table:
            if key not in KEYS:
                raise InputError(f'unknown key "{key}" in figure.line{nearest(key, KEYS)}')
        for key in KEYS:
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
            raise InputError(f'unknown curve "{curve}" in figure.line{nearest(curve, labels)}')
        if bounds is not None and bound not in (known := bounds.get(curve, ())):
            raise InputError(
                f'unknown bound "{bound}" of curve "{curve}" in figure.line{nearest(bound, known)}'
            )


@dataclass(frozen=True)
class Line:
    """A bound at the checkpoints in the units of the y axis; infinite where there is none."""

    label: str
    rounds: np.ndarray  # (C,)
    values: np.ndarray  # (C,)


def lines(source: Source) -> list[Line]:
    """The bounds that the figure asks for, but for those that are not stored."""
    found = []
    for table in source.results.figure.get("line", ()):
        values = _stored(source.results, table)
        if values is not None:
            curve = source.results[table["curve"]]
            by = canvas.divisor(source, curve)
            found.append(Line(table["label"], curve.rounds, np.array(values, np.float64) / by))
    return found


def not_stored(source: Source) -> list[str]:
    """What the figure asks for and is not drawn, because the store does not have it."""
    return [
        f'not drawn: {table["label"]}, for there is no bound "{table["bound"]}" of curve '
        f'"{table["curve"]}" in the store'
        for table in source.results.figure.get("line", ())
        if _stored(source.results, table) is None
    ]


def _stored(results: Results, table: dict[str, str]) -> list[float] | None:
    for curve in results.curves:
        if curve.label == table["curve"] and not table["bound"].startswith(SYNCHRONISATIONS):
            return curve.bounds.get(table["bound"])
    return None


def ceiling(source: Source) -> float:
    """How high bounds are drawn, in the units of the y axis."""
    tallest = 0.0
    for curve in source.results.curves:
        mean, spread = canvas.regret(source, curve)
        tallest = max(tallest, float((mean + np.nan_to_num(spread)).max()))
    return ROOM * tallest


def visible(source: Source) -> list[Line]:
    """Lines with a part below the ceiling."""
    top = ceiling(source)
    return [line for line in lines(source) if (line.values <= top).any()]


def off_picture(source: Source) -> list[str]:
    """Where the bounds end that leave the picture, or never enter it."""
    top = ceiling(source)
    return [
        f"off the picture: {line.label} = {amount(line.values[-1])} at the last round"
        for line in lines(source)
        if not line.values[-1] <= top
    ]


def draw_lines(axes: Axes, source: Source) -> list[tuple[Artist, str]]:
    """Draw what is visible into axes that have the curves; one legend entry each.

    The axis grows for bounds no further than the ceiling, where they are cut off.
    """
    top = axes.get_ylim()[1]
    limit = ceiling(source)
    entries: list[tuple[Artist, str]] = []
    for position, line in enumerate(visible(source)):
        finite = np.where(np.isfinite(line.values), line.values, math.nan)
        (drawn,) = axes.plot(
            line.rounds,
            finite,
            color=COLOUR,
            linewidth=1.0,
            linestyle=DASHES[position % len(DASHES)],
            zorder=1.5,  # below every curve
        )
        entries.append((drawn, line.label))
        top = max(top, min(limit, 1.05 * float(np.nanmax(finite))))
    axes.set_ylim(top=top)
    return entries


def synchronisation_bounds(results: Results) -> list[tuple[str, float, str, float]]:
    """(curve, mean synchronisations of a replicate, whose bound, that bound) at the last round."""
    return [
        (curve.label, curve.synchronisations, _whose(name), values[-1])
        for curve in results.curves
        for name, values in curve.bounds.items()
        if name.startswith(SYNCHRONISATIONS)
    ]


def _whose(name: str) -> str:
    """What a name says beyond its first word: "Proposition 1" of synchronisations-proposition-1."""
    words = name.removeprefix(SYNCHRONISATIONS).replace("-", " ").strip()
    return words[:1].upper() + words[1:]


def amount(value: float) -> str:
    """A bound's value in small print."""
    if not math.isfinite(value):
        return "infinite"
    return spaced(value) if value >= 1e4 else f"{value:.4g}"
