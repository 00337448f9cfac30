"""Charts of an experiment as data: the lines, axes and texts of each plot.

`fastfed.reporting.svg` draws them into a report, `fastfed.reporting.plotting` into files.
`ascii_plot` plots curves as text, for terminals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed.reporting.figure import (
    BOUND_COLOUR,
    BOUND_DASHES,
    Source,
    ceiling,
    divisor,
    regret,
    visible_bounds,
    y_axis,
)
from fastfed.reporting.panels import (
    MAX_DRAWN,
    N_BEST,
    Panel,
    curve_styles,
    least_regret,
    panels,
    symbols,
)
from fastfed.reporting.table import SIZES, sent
from fastfed.reporting.text import privacy_text, spaced, wrapped
from fastfed.results.paired import baseline_of, regrets, shared_replicates
from fastfed.results.results import CurveResult, standard_error

Y_LABELS = {
    "cumulative": "group regret",
    "time-average": "time-averaged group regret",
    "per-silo": "regret per silo",
}


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``.

    If ``rows`` are given, they are names at 0, 1, ... from the top, instead of ticks; ``low`` is
    then larger than ``high``. If ``whole``, the axis has ticks only at whole numbers.
    """

    label: str
    low: float
    high: float
    text: Callable[[float], str]  # formats the value of a tick
    log: bool = False
    whole: bool = False
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless the axis has a finite length and a valid direction."""
        ascending = self.low < self.high and (self.low > 0.0 or not self.log)
        if not (ascending or self.rows) or not math.isfinite(self.high - self.low):
            raise ValueError(f"an axis cannot go from {self.low!r} to {self.high!r}")


@dataclass(frozen=True, eq=False)
class Line:
    """A line through points; NaN interrupts it. A line without points has only a legend entry."""

    text: str  # in the legend
    x: np.ndarray  # (C,)
    y: np.ndarray  # (C,)
    style: dict[str, Any]  # color and linestyle, as in matplotlib
    spread: np.ndarray | None = None  # (C,), half of the width of the band
    dot: bool = False  # draw a dot at the last point
    bound: bool = False  # a bound: draw it thin, behind the curves

    @property
    def top(self) -> np.ndarray:
        """Return the upper edge of the band, (C,), or the line itself if the spread is unknown."""
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
    """A value in a row, with an error bar of ``spread`` on each side if it is finite."""

    x: float
    row: int
    spread: float
    colour: str
    filled: bool


@dataclass(frozen=True)
class End:
    """A name to write beside the right end of a line, which is at (x, y)."""

    name: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True, eq=False)
class Chart:
    """The content of one pair of axes."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    areas: tuple[Area, ...] = ()
    dots: tuple[Dot, ...] = ()
    ends: tuple[End, ...] = ()


@dataclass(frozen=True, eq=False)
class Charts:
    """All charts of an experiment, and the panels and styles that they share."""

    panels: Sequence[Panel]
    styles: Sequence[dict[str, Any]]  # of every curve
    regret: Sequence[Chart]  # regret against rounds, one for each panel
    difference: Sequence[Chart]  # regret minus the baseline's regret; empty without a baseline
    final: Sequence[Chart]  # regret at the last round; empty for too few or too many curves
    sent: Sequence[Chart]  # regret against bytes sent, one for each panel; empty if no curve sends


def charts_of(source: Source) -> Charts:
    """Return the charts of an experiment; there are none if no replicate is finished."""
    shown = panels(source)
    styles = curve_styles(source.results.curves, shown)
    return Charts(
        shown,
        styles,
        _regret_charts(source, shown),
        _difference_charts(source, shown),
        _final_charts(source, styles),
        _sent_charts(source, shown),
    )


def amount_text(value: float) -> str:
    """Return the text of a tick on an axis of regret or counts."""
    return spaced(value) if 1e4 <= value < 1e12 else f"{value:g}"


def sent_text(value: float) -> str:
    """Return a tick's text on an axis of bytes, with all digits: 1.25 kB.

    (`table.sent` would round it to 1.2 kB.)
    """
    for size, unit in SIZES:
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


# ---- Regret against rounds: a line for each curve, and bounds ------------------------------------


def _regret_charts(source: Source, shown: Sequence[Panel]) -> list[Chart]:
    """Return the chart of regret against rounds of each panel, all with the same y axis.

    Lines are means, with bands of two standard errors.
    """
    log = str(source.results.figure.get("log", ""))
    limit = ceiling(source)
    texts = legend_texts(shown)
    return _share_y([_regret_chart(source, panel, log, limit, texts) for panel in shown])


def _regret_chart(
    source: Source, panel: Panel, log: str, limit: float, texts: dict[str, str]
) -> Chart:
    """Return the chart of regret against rounds of one panel.

    ``log`` names the logarithmic axes, ``limit`` is the height up to which bounds are drawn, and
    ``texts`` is the result of `legend_texts`.
    """
    panel_source = replace(source, results=replace(source.results, curves=panel.curves))
    lines = [
        replace(line, text=texts.get(line.text, line.text))
        for line in regret_lines(panel_source, panel.styles, limit)
    ]
    areas = [_range(source, panel.others)] if panel.others else []
    last = source.results.horizon
    first = min(float(curve.rounds[0]) for curve in panel.curves) if "x" in log else 0.0
    if first == last:  # a single checkpoint, which is at the right end
        first = last / 2.0
    x_axis = Axis("round", first, last, spaced, log="x" in log, whole=True)
    bounds = [line for line in lines if line.bound]
    ends = [
        End(name, float(curve.rounds[-1]), float(regret(source, curve)[0][-1]), style["color"])
        for curve, name, style in zip(panel.curves, panel.names, panel.styles, strict=True)
    ]
    ends += [
        End(b.text, float(b.x[-1]), float(np.nan_to_num(b.y[-1], nan=np.inf)), BOUND_COLOUR)
        for b in bounds
    ]
    return Chart(
        panel.title,
        x_axis,
        regret_axis(panel_source, lines, areas, log="y" in log, limit=limit),
        tuple(lines),
        tuple(areas),
        ends=tuple(ends),
    )


def regret_lines(source: Source, styles: Sequence[dict[str, Any]], limit: float) -> list[Line]:
    """Return the regret lines of curves, then the bounds that are somewhere below ``limit``."""
    lines = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        mean, two_errors = regret(source, curve)
        lines.append(Line(legend_entry(curve), curve.rounds, mean, style, two_errors))
    for position, bound in enumerate(visible_bounds(source, limit)):
        values = np.where(np.isfinite(bound.values), bound.values, np.nan)
        style = {"color": BOUND_COLOUR, "linestyle": BOUND_DASHES[position % len(BOUND_DASHES)]}
        lines.append(Line(bound.label, bound.rounds, values, style, bound=True))
    return lines


def regret_axis(
    source: Source, lines: Sequence[Line], areas: Sequence[Area], *, log: bool, limit: float
) -> Axis:
    """Return the y axis of regret.

    It has room for curves and their bands, and for bounds up to ``limit``. A linear axis begins at
    0, or lower if a mean is negative. A logarithmic axis begins below the least positive mean.
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
    """Return the upper end of an axis that begins at ``low``.

    The end is above the largest value, by 5 % of the distance from ``low`` to this value.
    """
    top = max((float(v.max()) for v in values), default=0.0)
    if top <= low:
        return low * 10.0 if log else low + 1.0
    return float(top * (top / low) ** 0.05) if log else top + 0.05 * (top - low)


def _share_y(charts: list[Chart]) -> list[Chart]:
    """Return the charts with one y axis, from the lowest to the highest end of all y axes."""
    low = min((c.y.low for c in charts), default=0.0)
    high = max((c.y.high for c in charts), default=0.0)
    return [replace(chart, y=replace(chart.y, low=low, high=high)) for chart in charts]


def _range(source: Source, curves: Sequence[CurveResult]) -> Area:
    """Return the area between the least and the largest mean regret of curves at each round."""
    means = np.array([regret(source, curve)[0] for curve in curves])
    text = f"all {spaced(len(curves))} curves, from the least to the largest mean"
    return Area(text, curves[0].rounds, means.min(axis=0), means.max(axis=0))


def least(source: Source) -> float:
    """Return the least positive mean regret of any curve at any checkpoint; 1 if there is none."""
    means = np.concatenate([regret(source, curve)[0] for curve in source.results.curves])
    positive = means[means > 0.0]
    return float(positive.min()) if len(positive) else 1.0


def legend_entry(curve: CurveResult) -> str:
    """Return the text of a curve in the legend: label and privacy."""
    return f"{symbols(curve.label)}:  {privacy_text(curve.certificate).short}"


def legend_texts(shown: Sequence[Panel]) -> dict[str, str]:
    """Return a dict from the legend entry of each curve to the text that the legend shows.

    Curves that look the same in different panels share one text. The dict is empty for a single
    panel.
    """
    if len(shown) == 1:
        return {}
    by_look: dict[tuple[str, str], list[tuple[CurveResult, str]]] = {}
    for panel in shown:
        for curve, style, look in zip(panel.curves, panel.styles, panel.looks, strict=True):
            by_look.setdefault((look, str(style)), []).append((curve, panel.title))
    texts = {}
    for (look, _), members in by_look.items():
        titles_by_privacy: dict[str, list[str]] = {}
        for curve, title in members:
            privacy = privacy_text(curve.certificate).short
            titles_by_privacy.setdefault(privacy, []).append(title)
        parts = list(titles_by_privacy)
        if len(parts) > 1:  # privacy differs between panels, so name the panels
            parts = [
                f"{', '.join(titles)} {privacy}" for privacy, titles in titles_by_privacy.items()
            ]
        text = f"{look}:  {' | '.join(parts)}"
        texts.update({legend_entry(curve): text for curve, _ in members})
    return texts


# ---- Regret minus the regret of the baseline -----------------------------------------------------


def _difference_charts(source: Source, shown: Sequence[Panel]) -> list[Chart]:
    """Return a chart of paired differences for each panel with a curve that has a baseline.

    All charts have the same y axis.
    """
    return _share_y([c for panel in shown if (c := _difference_chart(source, panel)) is not None])


def _difference_chart(source: Source, panel: Panel) -> Chart | None:
    """Return one panel's chart of regret minus the baseline's regret; None without a baseline."""
    lines: list[Line] = []
    edges: list[np.ndarray] = []  # of bands
    ends: list[End] = []
    baseline_labels: dict[str, None] = {}
    for curve, name, style in zip(panel.curves, panel.names, panel.styles, strict=True):
        baseline = baseline_of(source.results, curve)
        replicates = shared_replicates((curve, baseline)) if baseline else []
        if baseline is None or not replicates:
            continue
        baseline_labels[baseline.label] = None
        pair = [regrets(c, replicates) / divisor(source, c) for c in (curve, baseline)]
        values = pair[0] - pair[1]
        text = f"{symbols(curve.label)}:  {privacy_text(curve.certificate).short}"
        mean, two_errors = values.mean(axis=0), 2.0 * standard_error(values)
        lines.append(Line(text, curve.rounds, mean, style, two_errors))
        ends.append(End(name, float(curve.rounds[-1]), float(mean[-1]), style["color"]))
        edges += [mean - np.nan_to_num(two_errors), mean + np.nan_to_num(two_errors)]
    if not lines:
        return None
    last, baselines = float(source.results.horizon), ", ".join(map(symbols, baseline_labels))
    style = {"color": BOUND_COLOUR, "linestyle": "-"}
    zero = Line(baselines, np.array([0.0, last]), np.zeros(2), style, bound=True)
    ends.append(End(baselines, last, 0.0, BOUND_COLOUR))
    # The axis contains 0 and all bands.
    low = min(0.0, *(float(edge.min()) for edge in edges))
    high = max(0.0, *(float(edge.max()) for edge in edges))
    margin = 0.05 * (high - low) or 1.0
    y = Axis(f"{Y_LABELS[y_axis(source)]}, difference", low - margin, high + margin, amount_text)
    x = Axis("round", 0.0, last, spaced, whole=True)
    return Chart(panel.title, x, y, (*lines, zero), ends=tuple(ends))


# ---- Regret against the bytes sent so far --------------------------------------------------------


def _sent_charts(source: Source, shown: Sequence[Panel]) -> list[Chart]:
    """Return the chart of regret against bytes sent of each panel; none if no curve sends anything.

    Regret and bytes are means over replicates. A line begins when its curve first sends something
    in any replicate. Curves that send nothing appear only in the legend.
    """
    if not any(curve.bytes_sent > 0 for curve in source.results.curves):
        return []
    log = "y" in str(source.results.figure.get("log", ""))
    return _share_y([_sent_chart(source, panel, log) for panel in shown])


def _sent_chart(source: Source, panel: Panel, log: bool) -> Chart:
    """Return the chart of regret against bytes sent of one panel; ``log`` is for the y axis."""
    panel_source = replace(source, results=replace(source.results, curves=panel.curves))
    lines = []
    for curve, style in zip(panel.curves, panel.styles, strict=True):
        bytes_sent = np.array(curve.bytes_curve, np.float64)
        has_sent = bytes_sent > 0
        mean, two_errors = regret(source, curve)
        amount = sent(curve.bytes_sent) if has_sent.any() else "sends nothing"
        text = f"{symbols(curve.label)}:  {amount}"
        points = bytes_sent[has_sent], mean[has_sent]
        lines.append(Line(text, *points, style, two_errors[has_sent], dot=True))
    all_x = np.concatenate([line.x for line in lines])
    low, high = (float(all_x.min()), float(all_x.max())) if len(all_x) else (1.0, 10.0)
    # If all amounts are almost equal, a wider axis puts them in the middle.
    factor = (high / low) ** 0.05 if high > 1.2 * low else 3.0
    label = "sent so far, up and down, all silos together"
    x_axis = Axis(label, low / factor, high * factor, sent_text, log=True)
    y = regret_axis(panel_source, lines, (), log=log, limit=np.inf)
    return Chart(panel.title, x_axis, y, tuple(lines))


# ---- Regret at the last round: a dot for each curve ----------------------------------------------

#: Least and largest number of curves for which there is a plot of dots.
DOT_CURVES = (6, MAX_DRAWN)
#: Largest number of characters in a line of the name of a row.
ROW_CHARACTERS = 30
#: The axis is logarithmic if the ratio of the largest to the smallest regret is above this.
LOG_RATIO = 20.0


def _final_charts(source: Source, styles: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return a list with the chart of regret at the last round, a dot for each curve.

    The list is empty if the number of curves is outside ``DOT_CURVES``.
    """
    curves = source.results.curves
    if not DOT_CURVES[0] <= len(curves) <= DOT_CURVES[1]:
        return []
    finals = [tuple(float(v[-1]) for v in regret(source, curve)) for curve in curves]
    dots = [
        Dot(mean, row, two_errors, style["color"], style["linestyle"] == "-")
        for row, (style, (mean, two_errors)) in enumerate(zip(styles, finals, strict=True))
    ]
    means = np.array([mean for mean, _ in finals])
    spreads = np.nan_to_num(np.array([two_errors for _, two_errors in finals]))
    log = bool(means.min() > 0.0 and means.max() / means.min() > LOG_RATIO)
    low = 1.05 * min(0.0, float(means.min()))
    if log:
        lows = means - spreads
        low = 0.8 * float(np.where(lows > 0.0, lows, means).min())
    label = f"{Y_LABELS[y_axis(source)]}, last round"
    x_axis = Axis(label, low, _padded(low, [means + spreads], log), amount_text, log)
    names = [symbols(curve.label).replace(" = ", "\u00a0=\u00a0") for curve in curves]
    rows = tuple("\n".join(wrapped([name], ROW_CHARACTERS)) for name in names)
    return [Chart("", x_axis, Axis("", len(curves) - 0.4, -0.6, str, rows=rows), dots=tuple(dots))]


# ---- Names at the ends of lines ------------------------------------------------------------------

#: Points between the end of a line and its name, and characters in a line of a name.
NAME_DISTANCE, NAME_CHARACTERS = 9.0, 20
#: Height of a line of text, as a multiple of the font size.
LINE_HEIGHT = 1.15


def texts_fit(texts: Sequence[str], size: float, height: float) -> bool:
    """Return True if texts of font size ``size`` fit, one below the other, into ``height``.

    Both are in points.
    """
    return LINE_HEIGHT * size * sum(text.count("\n") + 1 for text in texts) <= height


def end_text(end: End) -> str:
    """Return the name at the end of a line, wrapped into lines of text."""
    return "\n".join(wrapped([end.name.replace(" = ", "\u00a0=\u00a0")], NAME_CHARACTERS))


def move_apart(heights: Sequence[float], sizes: Sequence[float], top: float) -> list[float]:
    """Move names vertically so that they do not overlap.

    Parameters
    ----------
    heights : sequence of float
        The middle of each name where it should be.
    sizes : sequence of float
        The height of each name.
    top : float
        No name may reach above this, or above the highest of ``heights`` if that is larger.

    Returns
    -------
    list of float
        The middle of each name, moved no more than necessary.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    # First push names up from the lowest, then down from the highest.
    places = {i: heights[i] for i in order}
    for below, above in pairwise(order):
        places[above] = max(places[above], places[below] + (sizes[below] + sizes[above]) / 2.0)
    ceiling = np.inf
    for rank in reversed(range(len(order))):
        i = order[rank]
        if rank == len(order) - 1:
            ceiling = max(top, heights[i]) - sizes[i] / 2.0
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - (sizes[i] + (sizes[order[rank - 1]] if rank else 0.0)) / 2.0
    return [float(places[i]) for i in range(len(heights))]


# ---- ASCII plot for terminals --------------------------------------------------------------------

MARKS = "abcdefghijklmnopqrstuvwxyz"


def ascii_plot(source: Source, width: int = 60, height: int = 12) -> str:
    """Plot the mean regret of every curve against rounds as text.

    Parameters
    ----------
    source : Source
        The results.
    width, height : int
        Size of the plot in characters.

    Returns
    -------
    str
        The plot, in which each curve is drawn with a letter, and a list of the letters. "" if no
        replicate is finished.
    """
    curves, selection = source.results.curves, ""
    if len(curves) > len(MARKS):
        selection = f", the {N_BEST} curves of least regret among {spaced(len(curves))}"
        curves = least_regret(curves)
    if not curves:
        return ""
    means = [regret(source, curve)[0] for curve in curves]
    top = max(float(mean.max()) for mean in means) or 1.0
    grid = [[" "] * width for _ in range(height)]
    columns = np.linspace(0.0, source.results.horizon, width)
    for mark, curve, mean in zip(MARKS, curves, means, strict=False):
        heights = np.interp(columns, [0, *curve.rounds], [0.0, *mean]) / top
        for column, level in enumerate(heights):
            row = grid[height - 1 - min(height - 1, int(level * height))]
            # If curves overlap, the letter of the first curve stays.
            row[column] = mark if row[column] == " " else row[column]
    axis = f"{top:.4g}"
    lines = [f"{axis if i == 0 else '':>10} |{''.join(row)}" for i, row in enumerate(grid)]
    rounds = f"round {spaced(source.results.horizon)}"
    lines += [f"{'0':>10} +{'-' * width}", f"{rounds:>{12 + width}}"]
    names = "   ".join(f"{mark} {c.label}" for mark, c in zip(MARKS, curves, strict=False))
    lines.append(f"{'':12}{names}")
    title = f"{Y_LABELS[y_axis(source)]}{selection}"
    return "\n".join(line.rstrip() for line in [title, *lines]) + "\n"
