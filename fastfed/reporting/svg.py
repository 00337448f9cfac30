"""Charts as SVG elements of a page, in its colours and its type; no library draws them.

Lengths are points of a drawing that scales with the page. Nothing has an id, so a page can hold as
many charts as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastfed.reporting.charts import BESIDE, SHORT, Area, Axis, Chart, Dot, Line, apart, end_text
from fastfed.reporting.html import VARIABLES, Html, element, join

#: Of a chart with its texts; one of rows has a height of its own.
WIDTH, HEIGHT = 346.0, 223.0
#: Type of axes and ticks, and of names at the ends of lines.
TYPE, NAMES = 10.0, 8.3
#: Height of a line of text, in its type.
LEADING = 1.15
#: Most ticks of an axis, and of a logarithmic one.
MOST_X, MOST_Y, MOST_LOG = 6, 7, 8
#: Places are cut off this far outside: lines go on straight, and no number is too long.
FAR = 1e5


def chart_svg(chart: Chart, label: str) -> Html:
    """Draw a chart; screen readers call it ``label``."""
    whole = HEIGHT if chart.height is None else 72.0 * chart.height
    names = [end_text(end) for end in chart.ends]
    y_ticks = _row_ticks(chart.y) if chart.y.rows else ticks(chart.y, MOST_Y)
    left = 8.0 + max((_width(text, TYPE) for _, text in y_ticks), default=0.0)
    left += 1.6 * TYPE if chart.y.label else 0.0
    right = WIDTH - (max(_width(n, NAMES) for n in names) + BESIDE + 4.0 if names else 14.0)
    top = 8.0 + (1.4 * TYPE * (chart.title.count("\n") + 1) if chart.title else 0.0)
    bottom = whole - 3.2 * TYPE
    x = _Scale(chart.x, left, right)
    y = _Scale(chart.y, bottom, top)
    x_ticks = _fitting_ticks(chart.x, right - left)
    inside = element(
        "svg",
        [_area(area, x, y) for area in chart.areas],
        [_bound(line, x, y) for line in chart.lines if line.bound],
        [_band(line, x, y) for line in chart.lines],
        [_line(line, x, y) for line in chart.lines if not line.bound],
        x=_n(left), y=_n(top), width=_n(right - left), height=_n(bottom - top),
        viewBox=f"{_n(left)} {_n(top)} {_n(right - left)} {_n(bottom - top)}",
    )  # fmt: skip
    return element(
        "svg",
        _axes(chart, x, y, x_ticks, y_ticks),
        inside,
        [_last(line, x, y) for line in chart.lines if line.dot and len(line.x)],
        [_dot(dot, x, y) for dot in chart.dots],
        _ends(chart, names, x, y),
        role="img",
        aria_label=label,
        viewBox=f"0 0 {_n(WIDTH)} {_n(whole)}",
        # Where there is no style sheet of the page, such as in a file of its own.
        font_size=_n(TYPE),
    )


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


def _n(value: float) -> str:
    """A length with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{_n(a)},{_n(b)}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


#: Widths of characters, in their type; of all others .56, and a little more so that nothing is cut.
_NARROW, _BROAD = frozenset("iljtfrI.,:;'|!()[] \u00a0"), frozenset("mwMW@%—")
ROOM = 1.06


def _width(text: str, size: float) -> float:
    """About the width of the longest line of a text, whatever the page's type is."""

    def of(character: str) -> float:
        if character in _NARROW:
            return 0.33
        return 0.88 if character in _BROAD else 0.68 if character.isupper() else 0.56

    return ROOM * size * max(sum(map(of, line)) for line in text.split("\n"))


# ---- Ticks ---------------------------------------------------------------------------------------


def ticks(axis: Axis, most: int) -> list[tuple[float, str]]:
    """Round values of an axis with their texts, at most ``most``, from the least."""
    low, high = axis.low, axis.high
    if axis.log and math.log10(high / low) >= 1.0:
        found = _log_ticks(low, high, most)
    else:
        found = _round_values(low, high, most)
    return [(value, axis.text(value)) for value in found]


def _round_values(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power * of for of in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            # Twelve digits: 0.3 in place of 0.30000000000000004.
            return [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    return [low, high]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, on a short axis 2 and 5 times these too; of many powers each second, third..."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside: list[float] = []
    for within in ((1.0, 2.0, 5.0), (1.0,)) if math.log10(high / low) < SHORT else ((1.0,),):
        every = (of * 10.0**k for k in decades for of in within)
        inside = [value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside
    return inside[:: math.ceil(len(inside) / most)]


def _fitting_ticks(axis: Axis, length: float) -> list[tuple[float, str]]:
    """Ticks whose texts do not touch along ``length``."""
    for most in range(MOST_LOG if axis.log else MOST_X, 2, -1):
        found = ticks(axis, most)
        if sum(_width(text, TYPE) + TYPE for _, text in found) <= length:
            return found
    return ticks(axis, 2)


def _row_ticks(axis: Axis) -> list[tuple[float, str]]:
    return [(float(row), name) for row, name in enumerate(axis.rows)]


# ---- Elements ------------------------------------------------------------------------------------


def _colour(colour: str) -> str:
    return VARIABLES.get(colour.lower(), colour)


def _stroke(colour: str, width: float) -> str:
    return f"fill: none; stroke: {colour}; stroke-width: {width:g}"


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


def _axes(
    chart: Chart,
    x: _Scale,
    y: _Scale,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
) -> Html:
    """Grid, ticks with their texts, names of the axes, and the title."""
    left, right, bottom, top = x.low, x.high, y.low, y.high
    grid, marks, texts = [], [], []
    for value, text in x_ticks:
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
    texts.append(_text(chart.x.label, (left + right) / 2.0, bottom + 2.4 * TYPE, "middle"))
    if chart.y.label:
        at, middle = 0.9 * TYPE, (bottom + top) / 2.0
        turned = f"rotate(-90 {_n(at)} {_n(middle)})"
        texts.append(_text(chart.y.label, at, middle, "middle", transform=turned))
    if chart.title:
        lines = chart.title.count("\n") + 1
        texts.append(_text(chart.title, left, 4.0 + 0.6 * TYPE * lines, "start"))
    return join(
        element(
            "path", d="".join(grid), style="fill: none; stroke: var(--grid); stroke-width: 0.6"
        ),
        element(
            "path",
            d=frame + "".join(marks),
            style="fill: none; stroke: var(--text); stroke-width: 0.8",
        ),
        texts,
    )


def _area(area: Area, x: _Scale, y: _Scale) -> Html:
    return _filled(x(area.x), y(area.low), y(area.high), "var(--range)", 0.25)


def _band(line: Line, x: _Scale, y: _Scale) -> Html:
    """The band of a line; none where the spread is unknown, as with one replicate."""
    if line.spread is None or not len(line.x) or not np.isfinite(line.spread).all():
        return Html("")
    low, high = y(line.y - line.spread), y(line.y + line.spread)
    return _filled(x(line.x), low, high, _colour(line.style["color"]), 0.2)


def _filled(x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, share: float) -> Html:
    there_and_back = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return element(
        "polygon", points=_points(*there_and_back), style=f"fill: {colour}; fill-opacity: {share}"
    )


def _line(line: Line, x: _Scale, y: _Scale) -> Html:
    return _drawn(line, x, y, 1.8)


def _bound(line: Line, x: _Scale, y: _Scale) -> Html:
    return _drawn(line, x, y, 1.0)


def _drawn(line: Line, x: _Scale, y: _Scale, width: float) -> Html:
    """Every stretch of a line between places where it is not; its text where a mouse rests."""
    style = _stroke(_colour(line.style["color"]), width)
    dashes = line.style["linestyle"]
    if dashes != "-":
        style += f"; stroke-dasharray: {' '.join(f'{width * d:g}' for d in dashes[1])}"
    stretches = [
        element("polyline", points=_points(x(line.x[of]), y(line.y[of])))
        for of in _stretches(np.isfinite(line.y))
    ]
    if not stretches:
        return Html("")
    return element("g", element("title", line.text), stretches, style=style)


def _stretches(there: np.ndarray) -> Iterable[slice]:
    """The runs of True, as slices."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _last(line: Line, x: _Scale, y: _Scale) -> Html:
    return element(
        "circle",
        cx=_n(float(x(line.x[-1]))),
        cy=_n(float(y(line.y[-1]))),
        r="2.6",
        style=f"fill: {_colour(line.style['color'])}",
    )


def _dot(dot: Dot, x: _Scale, y: _Scale) -> Html:
    at, row, colour = float(x(dot.x)), float(y(dot.row)), _colour(dot.colour)
    style = f"stroke: {colour}; stroke-width: 1.4; fill: {colour if dot.filled else 'none'}"
    parts = []
    if math.isfinite(dot.spread):
        low, high = (
            min(max(float(x(v)), x.low), x.high) for v in (dot.x - dot.spread, dot.x + dot.spread)
        )
        parts.append(element("path", d=f"M{_n(low)},{_n(row)}H{_n(high)}"))
    if dot.filled:
        parts.append(element("circle", cx=_n(at), cy=_n(row), r="2.6"))
    else:
        parts.append(element("path", d=f"M{_n(at - 3.2)},{_n(row)}l3.2,-3.2 3.2,3.2 -3.2,3.2z"))
    return element("g", parts, style=style)


def _ends(chart: Chart, names: Sequence[str], x: _Scale, y: _Scale) -> Html:
    """Names beside the ends of lines, moved apart where they would overlap."""
    if not names:
        return Html("")
    # From below, as `apart` has them; a line that leaves the chart ends at its upper edge.
    inside = [min(end.y, chart.y.high) for end in chart.ends]
    wanted = [y.low - float(y(value)) for value in inside]
    sizes = [LEADING * NAMES * (name.count("\n") + 1) for name in names]
    heights = apart(wanted, sizes, y.low - y.high)
    parts = []
    for end, name, now, at in zip(chart.ends, names, heights, wanted, strict=True):
        start, height = float(x(end.x)), y.low - now
        parts.append(
            element(
                "path",
                d=f"M{_n(start + 1.0)},{_n(y.low - at)}L{_n(start + BESIDE - 2.0)},{_n(height)}",
                style=_stroke(_colour(end.colour), 0.9),
            )
        )
        parts.append(_text(name, start + BESIDE, height, "start", NAMES))
    return join(parts)
