"""Draw charts as SVG elements of an HTML report, with its colours and fonts and without a library.

Lengths are in units of a drawing that scales with the report. Elements have no ids, so a report can
contain any number of charts.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed.reporting.charts import (
    LINE_HEIGHT,
    NAME_DISTANCE,
    Area,
    Axis,
    Chart,
    Dot,
    Line,
    end_text,
    move_apart,
    texts_fit,
)
from fastfed.reporting.html import VARIABLES, Html, element, join, stroke
from fastfed.reporting.text import wrapped

#: Size of a chart with its texts. The height of a chart with rows depends on their number.
WIDTH, HEIGHT = 346.0, 223.0
#: Font sizes of axes and ticks, and of names at the ends of lines.
FONT_SIZE, NAME_SIZE = 10.0, 8.3
#: Characters in a line of the title of a panel.
TITLE = 44
#: Largest fractions of the width for texts left of the axes, and for names beside lines.
MAX_LEFT, MAX_NAMES = 0.6, 0.5
#: Largest numbers of ticks of an x axis, a y axis and a logarithmic x axis.
MAX_TICKS_X, MAX_TICKS_Y, MAX_TICKS_LOG = 6, 7, 8
#: Coordinates are clipped to this range, so that numbers in the file stay short.
MAX_COORDINATE = 1e5
#: Radius of a dot.
DOT_RADIUS = 2.6


def chart_svg(chart: Chart, label: str) -> Html:
    """Draw a chart as an SVG element; ``label`` is its name for screen readers."""
    height = _height(chart)
    title = wrapped([chart.title], TITLE)
    y_ticks = ticks(chart.y, MAX_TICKS_Y)
    left = 8.0 + max((_width(text, FONT_SIZE) for _, text in y_ticks), default=0.0)
    left = min(left + (1.6 * FONT_SIZE if chart.y.label else 0.0), MAX_LEFT * WIDTH)
    top = 8.0 + 1.3 * FONT_SIZE * len(title)
    bottom = height - 3.2 * FONT_SIZE
    names = [end_text(end) for end in chart.ends] if names_fit(chart) else []
    name_width = max((_width(name, NAME_SIZE) for name in names), default=0.0) + NAME_DISTANCE + 4.0
    # Half of the text of the last tick may extend beyond the axis.
    half_tick = _width(ticks(chart.x, MAX_TICKS_X)[-1][1], FONT_SIZE) / 2.0
    right = WIDTH - max(name_width if names else 0.0, half_tick + 2.0, 14.0)
    x, y = _Scale(chart.x, left, right), _Scale(chart.y, bottom, top)
    inside = element(
        "svg",
        [_area(area, x, y) for area in chart.areas],
        [_line(line, x, y) for line in chart.lines if line.bound],
        [_band(line, x, y) for line in chart.lines],
        [_line(line, x, y) for line in chart.lines if not line.bound],
        x=_length(left), y=_length(top), width=_length(right - left), height=_length(bottom - top),
        viewBox=f"{_length(left)} {_length(top)} {_length(right - left)} {_length(bottom - top)}",
    )  # fmt: skip
    return element(
        "svg",
        _axes(chart, x, y, y_ticks),
        [_text(line, left, 4.0 + FONT_SIZE * (0.6 + 1.2 * i), "start")
         for i, line in enumerate(title)],
        inside,
        [_dot_at(x(line.x)[i], y.inside(line.y)[i], line.style["color"])
         for line in chart.lines for i in _dots(line)],
        [_dot_with_error(dot, x, y) for dot in chart.dots],
        _ends(chart, names, x, y),
        role="img",
        aria_label=label,
        viewBox=f"0 0 {_length(WIDTH)} {_length(height)}",
        font_size=_length(FONT_SIZE),
    )  # fmt: skip


#: Largest number of names of two lines. With more, the thin lines that lead to them would cross.
MAX_WRAPPED = 4


def names_fit(chart: Chart) -> bool:
    """Return True if the names of lines fit beside their ends; else the chart needs a legend."""
    names = [end_text(end) for end in chart.ends]
    if sum("\n" in name for name in names) > MAX_WRAPPED:
        return False
    widest = max((_width(name, NAME_SIZE) for name in names), default=math.inf)
    height = _height(chart) - 5.0 * FONT_SIZE
    return widest <= MAX_NAMES * WIDTH and texts_fit(names, NAME_SIZE, height)


def _height(chart: Chart) -> float:
    """Return the height of a chart with its texts."""
    if not chart.y.rows:
        return HEIGHT
    most_lines = max(name.count("\n") + 1 for name in chart.y.rows)
    return 4.0 * FONT_SIZE + (0.6 * FONT_SIZE + LINE_HEIGHT * FONT_SIZE * most_lines) * len(
        chart.y.rows
    )


# ---- Coordinates ---------------------------------------------------------------------------------


class _Scale:
    """Map from values of an axis to coordinates between ``low`` and ``high`` of the drawing."""

    def __init__(self, axis: Axis, low: float, high: float) -> None:
        """Store the axis, the ends of the axis, and their coordinates ``low`` and ``high``."""
        self.axis, self.low, self.high = axis, low, high
        self.first, self.last = (math.log10(v) if axis.log else v for v in (axis.low, axis.high))

    def __call__(self, values: Any) -> np.ndarray:
        """Return the coordinates of values, clipped to [-MAX_COORDINATE, MAX_COORDINATE].

        NaN stays NaN.
        """
        values = np.asarray(values, np.float64)
        if self.axis.log:
            values = np.log10(np.maximum(values, np.finfo(np.float64).tiny))
        fraction = (values - self.first) / (self.last - self.first)
        return np.asarray(
            np.clip(self.low + fraction * (self.high - self.low), -MAX_COORDINATE, MAX_COORDINATE)
        )

    def inside(self, values: Any) -> np.ndarray:
        """Return the coordinates of values, clipped to the ends of the axis."""
        low, high = min(self.low, self.high), max(self.low, self.high)
        return np.asarray(np.clip(self(values), low, high))


def _length(value: float) -> str:
    """Format a length of the drawing with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _points(x: np.ndarray, y: np.ndarray) -> str:
    """Format coordinates as points of a polyline or polygon."""
    return " ".join(
        f"{_length(a)},{_length(b)}" for a, b in zip(x.tolist(), y.tolist(), strict=True)
    )


#: Narrow and broad characters of DejaVu Sans, a wide font.
_NARROW, _BROAD = frozenset("iljtfrI.,:;'|!()[] \u00a0"), frozenset("mwMW@%&—QOG≤≥±")


def _width(text: str, size: float) -> float:
    """Estimate the width of the longest line of a text, for any font that a browser may use."""

    def character_width(character: str) -> float:
        """Return the approximate width of a character, in units of the font size."""
        if unicodedata.combining(character):
            return 0.0
        if unicodedata.east_asian_width(character) in "WF":
            return 1.1
        if character in _NARROW:
            return 0.4
        return 1.0 if character in _BROAD else 0.74 if character.isupper() else 0.64

    return size * max(sum(map(character_width, line)) for line in text.split("\n"))


# ---- Ticks ---------------------------------------------------------------------------------------


def ticks(axis: Axis, max_count: int) -> list[tuple[float, str]]:
    """Return the ticks of an axis as pairs (value, text): at most ``max_count`` round values.

    An axis with rows has a tick for each row.
    """
    if axis.rows:
        return [(float(row), name) for row, name in enumerate(axis.rows)]
    low, high = axis.low, axis.high
    if axis.log and math.log10(high / low) >= 1.0:
        values = _log_ticks(low, high, max_count)
    else:
        values = _round_values(low, high, max_count, axis.whole)
    return [(value, axis.text(value)) for value in values]


def _round_values(low: float, high: float, max_count: int, only_whole: bool) -> list[float]:
    """Return at most ``max_count`` evenly spaced round values from low to high.

    Their distance is 1, 2, 2.5 or 5 times a power of ten; a whole number if ``only_whole``.
    """
    power = 10.0 ** math.floor(math.log10((high - low) / max_count))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0):
        step = power * factor
        if only_whole and step != round(step):
            continue
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < max_count:
            # Round to twelve digits: 0.3 instead of 0.30000000000000004.
            return [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    return [low, high]


def _log_ticks(low: float, high: float, max_count: int) -> list[float]:
    """Return at most ``max_count`` round values from low to high, for a logarithmic axis.

    They are powers of ten, or every n-th power of ten if there would be too many. On an axis where
    high / low < 1000, 2 and 5 times powers of ten are added if they fit, or else 3 times powers of
    ten.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def inside(factors: Iterable[float], stride: int = 1) -> list[float]:
        """Return the factors times every ``stride``-th power of ten that are on the axis."""
        candidates = (f * 10.0**k for k in decades if k % stride == 0 for f in factors)
        return [value for value in candidates if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]

    for factors in ((1.0, 2.0, 5.0), (1.0, 3.0)):
        if high / low < 1e3 and len(values := inside(factors)) <= max_count:
            return values
    stride = 1
    while len(values := inside((1.0,), stride)) > max_count:
        stride += 1
    return values


def _fitting_ticks(axis: Axis, scale: _Scale) -> list[tuple[float, str]]:
    """Return ticks of an x axis, as many as possible without overlapping texts.

    If even two ticks overlap, return the first and the last, whose texts may overlap.
    """
    chosen: list[tuple[float, str]] = []
    for max_count in range(MAX_TICKS_LOG if axis.log else MAX_TICKS_X, 1, -1):
        chosen = ticks(axis, max_count)
        extents = [
            (float(scale(value)), _width(text, FONT_SIZE) / 2.0 + 0.3 * FONT_SIZE)
            for value, text in chosen
        ]
        if all(a + half_a <= b - half_b for (a, half_a), (b, half_b) in pairwise(extents)):
            return chosen
    return chosen[:1] + chosen[-1:] if len(chosen) > 1 else chosen


# ---- Elements ------------------------------------------------------------------------------------


def _text(
    lines: str, x: float, y: float, anchor: str, size: float = FONT_SIZE, **extra: str
) -> Html:
    """Return a text element whose lines are centred around the height ``y``."""
    split = lines.split("\n")
    first = y + 0.35 * size - LINE_HEIGHT * size * (len(split) - 1) / 2.0
    if len(split) == 1:
        content: list[Html] = [join(lines)]
    else:
        content = [
            element("tspan", line, x=_length(x), y=_length(first + LINE_HEIGHT * size * i))
            for i, line in enumerate(split)
        ]
    style = None if size == FONT_SIZE else f"font-size: {_length(size)}px"
    return element(
        "text", content, x=_length(x), y=_length(first), text_anchor=anchor, style=style, **extra
    )


def _axes(chart: Chart, x: _Scale, y: _Scale, y_ticks: Sequence[tuple[float, str]]) -> Html:
    """Return the grid, the ticks with their texts, and the labels of the axes."""
    left, right, bottom, top = x.low, x.high, y.low, y.high
    grid, marks, texts = [], [], []
    for value, text in _fitting_ticks(chart.x, x):
        tick_x = float(x(value))
        grid.append(f"M{_length(tick_x)},{_length(bottom)}V{_length(top)}")
        marks.append(f"M{_length(tick_x)},{_length(bottom)}v3.5")
        texts.append(_text(text, tick_x, bottom + 1.05 * FONT_SIZE, "middle"))
    for value, text in y_ticks:
        tick_y = float(y(value))
        if not chart.y.rows:
            grid.append(f"M{_length(left)},{_length(tick_y)}H{_length(right)}")
        marks.append(f"M{_length(left)},{_length(tick_y)}h-3.5")
        texts.append(_text(text, left - 6.0, tick_y, "end"))
    frame = f"M{_length(left)},{_length(top)}V{_length(bottom)}H{_length(right)}"
    half_label = _width(chart.x.label, FONT_SIZE) / 2.0
    middle = max(min((left + right) / 2.0, WIDTH - 2.0 - half_label), half_label + 2.0)
    texts.append(_text(chart.x.label, middle, bottom + 2.4 * FONT_SIZE, "middle"))
    if chart.y.label:
        label_x, middle = 0.9 * FONT_SIZE, (bottom + top) / 2.0
        rotation = f"rotate(-90 {_length(label_x)} {_length(middle)})"
        texts.append(_text(chart.y.label, label_x, middle, "middle", transform=rotation))
    return join(
        _path("".join(grid), "var(--grid)", 0.6),
        _path(frame + "".join(marks), "var(--text)", 0.8),
        texts,
    )


def _path(d: str, colour: str, width: float) -> Html:
    """Return a path element that is not filled; ``d`` are its SVG path commands."""
    style = f"fill: none; stroke: {colour}; stroke-width: {width:g}"
    return element("path", d=d, style=style)


def _area(area: Area, x: _Scale, y: _Scale) -> Html:
    """Return an area, whose text appears as a tooltip."""
    elements = _filled(x(area.x), y(area.low), y(area.high), "var(--range)", 0.25)
    return element("g", element("title", area.text), elements)


def _band(line: Line, x: _Scale, y: _Scale) -> Html:
    """Return the band of a line; empty if the spread is unknown, as for a single replicate."""
    if line.spread is None or not len(line.x) or not np.isfinite(line.spread).all():
        return Html("")
    low, high = y(line.y - line.spread), y(line.y + line.spread)
    return _filled(x(line.x), low, high, VARIABLES[line.style["color"]], 0.2)


def _filled(x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, opacity: float) -> Html:
    """Return the filled polygon between the lines ``low`` and ``high``, in coordinates."""
    outline = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return element(
        "polygon", points=_points(*outline), style=f"fill: {colour}; fill-opacity: {opacity}"
    )


def _line(line: Line, x: _Scale, y: _Scale) -> Html:
    """Return the segments of a line between missing values, with its text as a tooltip."""
    segments = [
        element("polyline", points=_points(x(line.x[part]), y(line.y[part])))
        for part in _segments(line)
        if part.stop - part.start > 1
    ]
    if not segments:
        return Html("")
    style = stroke(line.style, 1.0 if line.bound else 1.8)
    return element("g", element("title", line.text), segments, style=style)


def _segments(line: Line) -> list[slice]:
    """Return the runs of consecutive points whose values are finite."""
    finite = np.concatenate([[False], np.isfinite(line.y), [False]])
    edges = np.flatnonzero(np.diff(finite.astype(np.int8))).tolist()
    return [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _dots(line: Line) -> list[int]:
    """Return the positions of points to draw as dots.

    These are single points between missing values, and the last point if the line has a dot.
    """
    single = [part.start for part in _segments(line) if part.stop - part.start == 1]
    last = [len(line.x) - 1] if line.dot and len(line.x) else []
    return sorted({*single, *last})


def _dot_at(x: float, y: float, colour: str) -> Html:
    """Return a filled circle at these coordinates."""
    return element(
        "circle",
        cx=_length(float(x)),
        cy=_length(float(y)),
        r=_length(DOT_RADIUS),
        style=f"fill: {VARIABLES[colour]}",
    )


def _dot_with_error(dot: Dot, x: _Scale, y: _Scale) -> Html:
    """Return the element of a `Dot`: a disc or an open diamond in its row, with an error bar."""
    dot_x, row, colour = float(x.inside(dot.x)), float(y(dot.row)), VARIABLES[dot.colour]
    style = f"stroke: {colour}; stroke-width: 1.4; fill: {colour if dot.filled else 'none'}"
    parts = []
    if math.isfinite(dot.spread):
        low, high = x.inside([dot.x - dot.spread, dot.x + dot.spread]).tolist()
        parts.append(element("path", d=f"M{_length(low)},{_length(row)}H{_length(high)}"))
    if dot.filled:
        parts.append(element("circle", cx=_length(dot_x), cy=_length(row), r=_length(DOT_RADIUS)))
    else:
        parts.append(
            element("path", d=f"M{_length(dot_x - 3.2)},{_length(row)}l3.2,-3.2 3.2,3.2 -3.2,3.2z")
        )
    return element("g", parts, style=style)


def _ends(chart: Chart, names: Sequence[str], x: _Scale, y: _Scale) -> Html:
    """Return the names beside the ends of lines, moved apart if they would overlap.

    A thin line connects each name with the end of its curve.
    """
    if not names:
        return Html("")
    # `move_apart` takes heights from the bottom. A line that leaves the chart has its name at the
    # edge.
    line_heights = [y.low - float(y.inside(end.y)) for end in chart.ends]
    sizes = [LINE_HEIGHT * NAME_SIZE * (name.count("\n") + 1) for name in names]
    heights = move_apart(line_heights, sizes, y.low - y.high)
    parts = []
    for end, name, new_height, old_height in zip(
        chart.ends, names, heights, line_heights, strict=True
    ):
        start, height = float(x(end.x)), y.low - new_height
        line_end = f"{_length(start + 1.0)},{_length(y.low - old_height)}"
        name_start = f"{_length(start + NAME_DISTANCE - 2.0)},{_length(height)}"
        parts.append(_path(f"M{line_end}L{name_start}", VARIABLES[end.colour], 0.9))
        parts.append(_text(name, start + NAME_DISTANCE, height, "start", NAME_SIZE))
    return join(parts)
