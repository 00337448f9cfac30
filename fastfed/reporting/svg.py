"""Charts as SVG elements of a page, in its colours and its type; no library draws them.

Lengths are points of a drawing that scales with the page. Nothing has an id, so a page can hold as
many charts as it likes.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed.reporting.charts import (
    BESIDE,
    LEADING,
    Area,
    Axis,
    Chart,
    Dot,
    Line,
    apart,
    end_text,
    fit,
)
from fastfed.reporting.html import VARIABLES, Html, element, join, stroke
from fastfed.reporting.text import wrapped

#: Of a chart with its texts; one of rows has a height of its own.
WIDTH, HEIGHT = 346.0, 223.0
#: Type of axes and ticks, and of names at the ends of lines.
TYPE, NAMES = 10.0, 8.3
#: Characters in a line of a panel's title.
TITLE = 44
#: Parts of the width that texts left of the axes may take, and names of lines beside them.
MOST_LEFT, MOST_NAMES = 0.6, 0.5
#: Most ticks of an axis, and of a logarithmic one.
MOST_X, MOST_Y, MOST_LOG = 6, 7, 8
#: Places are cut off this far outside: lines go on straight, and no number is too long.
FAR = 1e5
#: Radius of a dot.
DOT = 2.6


def chart_svg(chart: Chart, label: str) -> Html:
    """Draw a chart; screen readers call it ``label``."""
    whole = _height(chart)
    title = wrapped([chart.title], TITLE)
    y_ticks = ticks(chart.y, MOST_Y)
    left = 8.0 + max((_width(text, TYPE) for _, text in y_ticks), default=0.0)
    left = min(left + (1.6 * TYPE if chart.y.label else 0.0), MOST_LEFT * WIDTH)
    top = 8.0 + 1.3 * TYPE * len(title)
    bottom = whole - 3.2 * TYPE
    names = [end_text(end) for end in chart.ends] if names_fit(chart) else []
    beside = max((_width(name, NAMES) for name in names), default=0.0) + BESIDE + 4.0
    # Half of the last tick may stand beside the axis.
    last = _width(ticks(chart.x, MOST_X)[-1][1], TYPE) / 2.0
    right = WIDTH - max(beside if names else 0.0, last + 2.0, 14.0)
    x, y = _Scale(chart.x, left, right), _Scale(chart.y, bottom, top)
    inside = element(
        "svg",
        [_area(area, x, y) for area in chart.areas],
        [_line(line, x, y) for line in chart.lines if line.bound],
        [_band(line, x, y) for line in chart.lines],
        [_line(line, x, y) for line in chart.lines if not line.bound],
        x=_n(left), y=_n(top), width=_n(right - left), height=_n(bottom - top),
        viewBox=f"{_n(left)} {_n(top)} {_n(right - left)} {_n(bottom - top)}",
    )  # fmt: skip
    return element(
        "svg",
        _axes(chart, x, y, y_ticks),
        [_text(line, left, 4.0 + TYPE * (0.6 + 1.2 * i), "start") for i, line in enumerate(title)],
        inside,
        [_dot_at(x(line.x)[i], y.inside(line.y)[i], line.style["color"])
         for line in chart.lines for i in _dots(line)],
        [_final(dot, x, y) for dot in chart.dots],
        _ends(chart, names, x, y),
        role="img",
        aria_label=label,
        viewBox=f"0 0 {_n(WIDTH)} {_n(whole)}",
        font_size=_n(TYPE),
    )  # fmt: skip


def names_fit(chart: Chart) -> bool:
    """Return True if the ends of lines have names that fit beside them; else it needs a legend."""
    names = [end_text(end) for end in chart.ends]
    room = max((_width(name, NAMES) for name in names), default=math.inf) <= MOST_NAMES * WIDTH
    return room and fit(names, NAMES, _height(chart) - 5.0 * TYPE)


def _height(chart: Chart) -> float:
    if not chart.y.rows:
        return HEIGHT
    most = max(name.count("\n") + 1 for name in chart.y.rows)
    return 4.0 * TYPE + (0.6 * TYPE + LEADING * TYPE * most) * len(chart.y.rows)


# ---- Places --------------------------------------------------------------------------------------


class _Scale:
    """Places of an axis's values between two ends of the drawing."""

    def __init__(self, axis: Axis, low: float, high: float) -> None:
        self.axis, self.low, self.high = axis, low, high
        self.first, self.last = (math.log10(v) if axis.log else v for v in (axis.low, axis.high))

    def __call__(self, values: Any) -> np.ndarray:
        """Place values; NaN stays NaN, and what is far outside comes nearer."""
        values = np.asarray(values, np.float64)
        if self.axis.log:
            values = np.log10(np.maximum(values, np.finfo(np.float64).tiny))
        share = (values - self.first) / (self.last - self.first)
        return np.asarray(np.clip(self.low + share * (self.high - self.low), -FAR, FAR))

    def inside(self, values: Any) -> np.ndarray:
        """Place values; what is outside stands at the end of the axis."""
        low, high = min(self.low, self.high), max(self.low, self.high)
        return np.asarray(np.clip(self(values), low, high))


def _n(value: float) -> str:
    """A length with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{_n(a)},{_n(b)}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


#: Widths of characters in their type: those of DejaVu Sans, a wide one.
_NARROW, _BROAD = frozenset("iljtfrI.,:;'|!()[] \u00a0"), frozenset("mwMW@%&—QOG≤≥±")


def _width(text: str, size: float) -> float:
    """About the width of the longest line of a text, whatever the page's type is."""

    def of(character: str) -> float:
        if unicodedata.combining(character):
            return 0.0
        if unicodedata.east_asian_width(character) in "WF":
            return 1.1
        if character in _NARROW:
            return 0.4
        return 1.0 if character in _BROAD else 0.74 if character.isupper() else 0.64

    return size * max(sum(map(of, line)) for line in text.split("\n"))


# ---- Ticks ---------------------------------------------------------------------------------------


def ticks(axis: Axis, most: int) -> list[tuple[float, str]]:
    """Round values of an axis with their texts, at most ``most``, from the least; or its rows."""
    if axis.rows:
        return [(float(row), name) for row, name in enumerate(axis.rows)]
    low, high = axis.low, axis.high
    if axis.log and math.log10(high / low) >= 1.0:
        found = _log_ticks(low, high, most)
    else:
        found = _round_values(low, high, most, axis.whole)
    return [(value, axis.text(value)) for value in found]


def _round_values(low: float, high: float, most: int, whole: bool) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for of in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0):
        step = power * of
        if whole and step != round(step):
            continue
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            # Twelve digits: 0.3 in place of 0.30000000000000004.
            return [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    return [low, high]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, of many every few; on a short axis 2 and 5, or 3, times these too."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def inside(factors: Iterable[float], stride: int = 1) -> list[float]:
        every = (of * 10.0**k for k in decades if k % stride == 0 for of in factors)
        return [value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]

    for factors in ((1.0, 2.0, 5.0), (1.0, 3.0)):
        if high / low < 1e3 and len(found := inside(factors)) <= most:
            return found
    stride = 1
    while len(found := inside((1.0,), stride)) > most:
        stride += 1
    return found


def _fitting_ticks(axis: Axis, scale: _Scale) -> list[tuple[float, str]]:
    """Ticks whose texts stand apart below the axis."""
    found: list[tuple[float, str]] = []
    for most in range(MOST_LOG if axis.log else MOST_X, 1, -1):
        found = ticks(axis, most)
        sides = [
            (float(scale(value)), _width(text, TYPE) / 2.0 + 0.3 * TYPE) for value, text in found
        ]
        if all(a + half <= b - other for (a, half), (b, other) in pairwise(sides)):
            return found
    return found[:1] + found[-1:] if len(found) > 1 else found


# ---- Elements ------------------------------------------------------------------------------------


def _text(lines: str, x: float, y: float, anchor: str, size: float = TYPE, **more: str) -> Html:
    """A text whose lines stand around the middle height ``y``."""
    each = lines.split("\n")
    first = y + 0.35 * size - LEADING * size * (len(each) - 1) / 2.0
    if len(each) == 1:
        content: list[Html] = [join(lines)]
    else:
        content = [
            element("tspan", line, x=_n(x), y=_n(first + LEADING * size * i))
            for i, line in enumerate(each)
        ]
    style = None if size == TYPE else f"font-size: {_n(size)}px"
    return element("text", content, x=_n(x), y=_n(first), text_anchor=anchor, style=style, **more)


def _axes(chart: Chart, x: _Scale, y: _Scale, y_ticks: Sequence[tuple[float, str]]) -> Html:
    """Grid, ticks with their texts, and names of the axes."""
    left, right, bottom, top = x.low, x.high, y.low, y.high
    grid, marks, texts = [], [], []
    for value, text in _fitting_ticks(chart.x, x):
        at = float(x(value))
        grid.append(f"M{_n(at)},{_n(bottom)}V{_n(top)}")
        marks.append(f"M{_n(at)},{_n(bottom)}v3.5")
        texts.append(_text(text, at, bottom + 1.05 * TYPE, "middle"))
    for value, text in y_ticks:
        at = float(y(value))
        if not chart.y.rows:
            grid.append(f"M{_n(left)},{_n(at)}H{_n(right)}")
        marks.append(f"M{_n(left)},{_n(at)}h-3.5")
        texts.append(_text(text, left - 6.0, at, "end"))
    frame = f"M{_n(left)},{_n(top)}V{_n(bottom)}H{_n(right)}"
    half = _width(chart.x.label, TYPE) / 2.0
    middle = max(min((left + right) / 2.0, WIDTH - 2.0 - half), half + 2.0)
    texts.append(_text(chart.x.label, middle, bottom + 2.4 * TYPE, "middle"))
    if chart.y.label:
        at, middle = 0.9 * TYPE, (bottom + top) / 2.0
        turned = f"rotate(-90 {_n(at)} {_n(middle)})"
        texts.append(_text(chart.y.label, at, middle, "middle", transform=turned))
    return join(
        _path("".join(grid), "var(--grid)", 0.6),
        _path(frame + "".join(marks), "var(--text)", 0.8),
        texts,
    )


def _path(places: str, colour: str, width: float) -> Html:
    style = f"fill: none; stroke: {colour}; stroke-width: {width:g}"
    return element("path", d=places, style=style)


def _area(area: Area, x: _Scale, y: _Scale) -> Html:
    drawn = _filled(x(area.x), y(area.low), y(area.high), "var(--range)", 0.25)
    return element("g", element("title", area.text), drawn)


def _band(line: Line, x: _Scale, y: _Scale) -> Html:
    """The band of a line; none where the spread is unknown, as with one replicate."""
    if line.spread is None or not len(line.x) or not np.isfinite(line.spread).all():
        return Html("")
    low, high = y(line.y - line.spread), y(line.y + line.spread)
    return _filled(x(line.x), low, high, VARIABLES[line.style["color"]], 0.2)


def _filled(x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, share: float) -> Html:
    there_and_back = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return element(
        "polygon", points=_points(*there_and_back), style=f"fill: {colour}; fill-opacity: {share}"
    )


def _line(line: Line, x: _Scale, y: _Scale) -> Html:
    """Every stretch of a line between places where it is not; its text where a mouse rests."""
    stretches = [
        element("polyline", points=_points(x(line.x[of]), y(line.y[of])))
        for of in _stretches(line)
        if of.stop - of.start > 1
    ]
    if not stretches:
        return Html("")
    style = stroke(line.style, 1.0 if line.bound else 1.8)
    return element("g", element("title", line.text), stretches, style=style)


def _stretches(line: Line) -> list[slice]:
    """The runs of points where a line is."""
    there = np.concatenate([[False], np.isfinite(line.y), [False]])
    edges = np.flatnonzero(np.diff(there.astype(np.int8))).tolist()
    return [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _dots(line: Line) -> list[int]:
    """Positions of points to draw as dots: those without a line, and the last where it is asked."""
    alone = [of.start for of in _stretches(line) if of.stop - of.start == 1]
    last = [len(line.x) - 1] if line.dot and len(line.x) else []
    return sorted({*alone, *last})


def _dot_at(x: float, y: float, colour: str) -> Html:
    return element(
        "circle", cx=_n(float(x)), cy=_n(float(y)), r=_n(DOT), style=f"fill: {VARIABLES[colour]}"
    )


def _final(dot: Dot, x: _Scale, y: _Scale) -> Html:
    """A value in its row: a disc, or a diamond, with its spread to either side."""
    at, row, colour = float(x.inside(dot.x)), float(y(dot.row)), VARIABLES[dot.colour]
    style = f"stroke: {colour}; stroke-width: 1.4; fill: {colour if dot.filled else 'none'}"
    parts = []
    if math.isfinite(dot.spread):
        low, high = x.inside([dot.x - dot.spread, dot.x + dot.spread]).tolist()
        parts.append(element("path", d=f"M{_n(low)},{_n(row)}H{_n(high)}"))
    if dot.filled:
        parts.append(element("circle", cx=_n(at), cy=_n(row), r=_n(DOT)))
    else:
        parts.append(element("path", d=f"M{_n(at - 3.2)},{_n(row)}l3.2,-3.2 3.2,3.2 -3.2,3.2z"))
    return element("g", parts, style=style)


def _ends(chart: Chart, names: Sequence[str], x: _Scale, y: _Scale) -> Html:
    """Names beside the ends of lines, moved apart where they would overlap."""
    if not names:
        return Html("")
    # From below, as `apart` has them; a line that leaves the chart ends at its edge.
    wanted = [y.low - float(y.inside(end.y)) for end in chart.ends]
    sizes = [LEADING * NAMES * (name.count("\n") + 1) for name in names]
    heights = apart(wanted, sizes, y.low - y.high)
    parts = []
    for end, name, now, at in zip(chart.ends, names, heights, wanted, strict=True):
        start, height = float(x(end.x)), y.low - now
        places = f"M{_n(start + 1.0)},{_n(y.low - at)}L{_n(start + BESIDE - 2.0)},{_n(height)}"
        parts.append(_path(places, VARIABLES[end.colour], 0.9))
        parts.append(_text(name, start + BESIDE, height, "start", NAMES))
    return join(parts)
