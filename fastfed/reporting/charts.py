"""Charts of an experiment as data: what each picture shows, whoever draws it.

`fastfed.reporting.svg` draws them into a page, `fastfed.reporting.plotting` into files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed.reporting.figure import (
    COLOUR,
    DASHES,
    Source,
    ceiling,
    regret,
    spaced,
    visible_bounds,
    y_axis,
)
from fastfed.reporting.panels import (
    MOST_DRAWN,
    Panel,
    curve_styles,
    panels,
    symbols,
)
from fastfed.reporting.table import SIZES, sent
from fastfed.reporting.text import privacy_text, wrapped
from fastfed.results.results import CurveResult

Y_LABELS = {
    "cumulative": "group regret",
    "time-average": "time-averaged group regret",
    "per-silo": "regret per silo",
}


@dataclass(frozen=True)
class Axis:
    """An axis between two ends.

    ``rows`` are names at 0, 1, ... from above, in place of ticks; the lower end is then the larger
    number. ``whole``: between whole numbers there is nothing.
    """

    label: str
    low: float
    high: float
    text: Callable[[float], str]  # of a tick
    log: bool = False
    whole: bool = False
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ascending = self.low < self.high and (self.low > 0.0 or not self.log)
        if not (ascending or self.rows) or not math.isfinite(self.high - self.low):
            raise ValueError(f"no axis goes from {self.low!r} to {self.high!r}")


@dataclass(frozen=True, eq=False)
class Line:
    """A line through points, NaN where there is none; without points it has a legend alone."""

    text: str  # in a legend
    x: np.ndarray  # (C,)
    y: np.ndarray  # (C,)
    style: dict[str, Any]  # color and linestyle, as matplotlib has them
    spread: np.ndarray | None = None  # (C,), of the band to either side
    dot: bool = False  # at the last point
    bound: bool = False  # thin, behind the curves

    @property
    def top(self) -> np.ndarray:
        """The upper edge of the band, or the line where the spread is unknown, (C,)."""
        return self.y if self.spread is None else self.y + np.nan_to_num(self.spread)


@dataclass(frozen=True, eq=False)
class Area:
    """The area between two lines."""

    text: str
    x: np.ndarray  # (C,)
    low: np.ndarray  # (C,)
    high: np.ndarray  # (C,)


@dataclass(frozen=True)
class Dot:
    """A value in a row of its own, with ``spread`` to either side if that is finite."""

    x: float
    row: int
    spread: float
    colour: str
    filled: bool


@dataclass(frozen=True)
class End:
    """A name to write at the right end of a line."""

    name: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True, eq=False)
class Chart:
    """What one pair of axes shows."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    areas: tuple[Area, ...] = ()
    dots: tuple[Dot, ...] = ()
    ends: tuple[End, ...] = ()


def amount_text(value: float) -> str:
    """Text of a tick on an axis of amounts."""
    return spaced(value) if 1e4 <= value < 1e12 else f"{value:g}"


def sent_text(value: float) -> str:
    """Text of a tick on an axis of bytes: 1.25 kB, where `sent` rounds to 1.2 kB."""
    for size, unit in SIZES:
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


# ---- Regret against rounds: a line for each curve, bounds beside them ----------------------------


def regret_charts(source: Source) -> list[Chart]:
    """Regret against rounds, a chart for each panel; lines are means, bands two standard errors."""
    shown = panels(source)
    log = str(source.results.figure.get("log", ""))
    limit = ceiling(source)
    texts = legend_texts(shown)
    return _with_one_y([_regret_chart(source, panel, log, limit, texts) for panel in shown])


def _regret_chart(
    source: Source, panel: Panel, log: str, limit: float, texts: dict[str, str]
) -> Chart:
    own = replace(source, results=replace(source.results, curves=panel.curves))
    lines = [
        replace(line, text=texts.get(line.text, line.text))
        for line in regret_lines(own, panel.styles, limit)
    ]
    areas = [_range(source, panel.others)] if panel.others else []
    last = source.results.horizon
    first = min(float(curve.rounds[0]) for curve in panel.curves) if "x" in log else 0.0
    if first == last:  # one checkpoint, which stands at the right
        first = last / 2.0
    x_axis = Axis("round", first, last, spaced, log="x" in log, whole=True)
    bounds = [line for line in lines if line.bound]
    ends = [
        End(name, float(curve.rounds[-1]), float(regret(source, curve)[0][-1]), style["color"])
        for curve, name, style in zip(panel.curves, panel.names, panel.styles, strict=True)
    ]
    ends += [
        End(b.text, float(b.x[-1]), float(np.nan_to_num(b.y[-1], nan=np.inf)), COLOUR)
        for b in bounds
    ]
    return Chart(
        panel.title,
        x_axis,
        regret_axis(own, lines, areas, log="y" in log, limit=limit),
        tuple(lines),
        tuple(areas),
        ends=tuple(ends),
    )


def regret_lines(source: Source, styles: Sequence[dict[str, Any]], limit: float) -> list[Line]:
    """Curves and then bounds that come below ``limit``, against rounds."""
    lines = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        mean, spread = regret(source, curve)
        lines.append(Line(legend_entry(curve), curve.rounds, mean, style, spread))
    for position, bound in enumerate(visible_bounds(source, limit)):
        values = np.where(np.isfinite(bound.values), bound.values, np.nan)
        style = {"color": COLOUR, "linestyle": DASHES[position % len(DASHES)]}
        lines.append(Line(bound.label, bound.rounds, values, style, bound=True))
    return lines


def regret_axis(
    source: Source, lines: Sequence[Line], areas: Sequence[Area], *, log: bool, limit: float
) -> Axis:
    """The y axis of regret, with room for curves and their bands, and for bounds up to ``limit``.

    It begins at 0, below that only for means that do; where it is logarithmic, below the least mean
    above 0.
    """
    curves = [line for line in lines if not line.bound and len(line.y)]
    tops = [line.top for line in curves]
    if log:
        low = 0.8 * least(source)
    else:
        low = 1.05 * min([0.0, *(float(line.y.min()) for line in curves)])
    high = _padded(low, [*tops, *(area.high for area in areas)], log)
    for line in lines:
        if line.bound:
            high = max(high, min(limit, 1.05 * float(np.nanmax(line.y))))
    return Axis(Y_LABELS[y_axis(source)], low, high, amount_text, log)


def _padded(low: float, values: Iterable[np.ndarray], log: bool) -> float:
    """The upper end of an axis from ``low``, a twentieth of its length above the values."""
    top = max((float(v.max()) for v in values), default=0.0)
    if top <= low:
        return low * 10.0 if log else low + 1.0
    return float(top * (top / low) ** 0.05) if log else top + 0.05 * (top - low)


def _with_one_y(charts: list[Chart]) -> list[Chart]:
    """Charts with one y axis, which has room for all."""
    low, high = min(c.y.low for c in charts), max(c.y.high for c in charts)
    return [replace(chart, y=replace(chart.y, low=low, high=high)) for chart in charts]


def _range(source: Source, curves: Sequence[CurveResult]) -> Area:
    """The range from the least to the largest mean of curves."""
    means = np.array([regret(source, curve)[0] for curve in curves])
    text = f"all {spaced(len(curves))} curves, from the least to the largest mean"
    return Area(text, curves[0].rounds, means.min(axis=0), means.max(axis=0))


def least(source: Source) -> float:
    """Least mean above 0 at any checkpoint: a band may reach below it, and to 0."""
    means = np.concatenate([regret(source, curve)[0] for curve in source.results.curves])
    above = means[means > 0.0]
    return float(above.min()) if len(above) else 1.0


def legend_entry(curve: CurveResult) -> str:
    """Text of a curve in the legend: label and privacy."""
    return f"{symbols(curve.label)}:  {privacy_text(curve.certificate).short}"


def legend_texts(shown: Sequence[Panel]) -> dict[str, str]:
    """Entries of a legend over several panels, by those of the curves: what looks alike is one."""
    if len(shown) == 1:
        return {}
    alike: dict[tuple[str, str], list[tuple[CurveResult, str]]] = {}
    for panel in shown:
        for curve, style, look in zip(panel.curves, panel.styles, panel.looks, strict=True):
            alike.setdefault((look, str(style)), []).append((curve, panel.title))
    texts = {}
    for (look, _), members in alike.items():
        titles: dict[str, list[str]] = {}
        for curve, title in members:
            titles.setdefault(privacy_text(curve.certificate).short, []).append(title)
        parts = list(titles)
        if len(parts) > 1:  # which panel has which
            parts = [f"{', '.join(of)} {short}" for short, of in titles.items()]
        text = f"{look}:  {' | '.join(parts)}"
        texts.update({legend_entry(curve): text for curve, _ in members})
    return texts


# ---- Regret against the bytes sent so far --------------------------------------------------------


def sends(source: Source) -> bool:
    """Return True if any curve sends anything."""
    return any(curve.bytes_sent > 0 for curve in source.results.curves)


def sent_charts(source: Source) -> list[Chart]:
    """Regret against bytes sent, a chart for each panel; none where no curve sends anything.

    A line begins with its curve's first synchronisation in any replicate; between two of them
    regret grows while nothing is sent. Both are means over replicates. Curves that send nothing
    stand in the legend only.
    """
    if not sends(source):
        return []
    log = "y" in str(source.results.figure.get("log", ""))
    return _with_one_y([_sent_chart(source, panel, log) for panel in panels(source)])


def _sent_chart(source: Source, panel: Panel, log: bool) -> Chart:
    own = replace(source, results=replace(source.results, curves=panel.curves))
    lines = []
    for curve, style in zip(panel.curves, panel.styles, strict=True):
        by = np.array(curve.bytes_curve, np.float64)
        begun = by > 0
        mean, spread = regret(source, curve)
        amount = sent(curve.bytes_sent) if begun.any() else "sends nothing"
        text = f"{symbols(curve.label)}:  {amount}"
        lines.append(Line(text, by[begun], mean[begun], style, spread[begun], dot=True))
    every = np.concatenate([line.x for line in lines])
    low, high = (float(every.min()), float(every.max())) if len(every) else (1.0, 10.0)
    # Amounts that hardly differ stand in the middle.
    room = (high / low) ** 0.05 if high > 1.2 * low else 3.0
    x_axis = Axis(
        "sent so far, up and down, all silos together",
        low / room,
        high * room,
        sent_text,
        log=True,
    )
    y = regret_axis(own, lines, (), log=log, limit=np.inf)
    return Chart(panel.title, x_axis, y, tuple(lines))


# ---- Regret at the last round: a dot for each curve ----------------------------------------------

#: Curves from which on a picture of dots says more than the ends of lines, and most that it holds.
DOTS = (6, MOST_DRAWN)
#: Characters in a line beside a dot.
ROW = 30
#: Largest over smallest regret from which on its axis is logarithmic.
WIDE = 20.0


def final_charts(source: Source) -> list[Chart]:
    """Regret at the last round, with two standard errors; none where curves are few or many."""
    curves = source.results.curves
    if not DOTS[0] <= len(curves) <= DOTS[1]:
        return []
    finals = [tuple(float(v[-1]) for v in regret(source, curve)) for curve in curves]
    dots = [
        Dot(mean, row, spread, style["color"], style["linestyle"] == "-")
        for row, (style, (mean, spread)) in enumerate(
            zip(curve_styles(source), finals, strict=True)
        )
    ]
    means = np.array([mean for mean, _ in finals])
    spreads = np.nan_to_num(np.array([spread for _, spread in finals]))
    log = bool(means.min() > 0.0 and means.max() / means.min() > WIDE)
    low = 1.05 * min(0.0, float(means.min()))
    if log:
        lows = means - spreads
        low = 0.8 * float(np.where(lows > 0.0, lows, means).min())
    label = f"{Y_LABELS[y_axis(source)]}, last round"
    x_axis = Axis(label, low, _padded(low, [means + spreads], log), amount_text, log)
    names = [symbols(curve.label).replace(" = ", "\u00a0=\u00a0") for curve in curves]
    rows = tuple("\n".join(wrapped([name], ROW)) for name in names)
    return [Chart("", x_axis, Axis("", len(curves) - 0.4, -0.6, str, rows=rows), dots=tuple(dots))]


# ---- Names at the ends of lines ------------------------------------------------------------------

#: Points between the end of a line and its name, and characters in a line of a name.
BESIDE, NAME = 9.0, 20
#: Height of a line of text, in its type.
LEADING = 1.15


def fit(texts: Sequence[str], size: float, height: float) -> bool:
    """Return True if names of this type have room above each other."""
    return LEADING * size * sum(text.count("\n") + 1 for text in texts) <= height


def end_text(end: End) -> str:
    """A name at the end of a line, in lines."""
    return "\n".join(wrapped([end.name.replace(" = ", "\u00a0=\u00a0")], NAME))


def apart(heights: Sequence[float], sizes: Sequence[float], top: float) -> list[float]:
    """Heights of names that would overlap, each moved as little as the others allow.

    ``heights`` are their middles, ``sizes`` their own heights; none reaches above ``top``, or above
    the highest of them.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    places = {i: heights[i] for i in order}
    for below, above in pairwise(order):
        places[above] = max(places[above], places[below] + (sizes[below] + sizes[above]) / 2.0)
    ceiling = np.inf
    for at in reversed(range(len(order))):
        i = order[at]
        if at == len(order) - 1:
            ceiling = max(top, heights[i]) - sizes[i] / 2.0
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - (sizes[i] + (sizes[order[at - 1]] if at else 0.0)) / 2.0
    return [float(places[i]) for i in range(len(heights))]
