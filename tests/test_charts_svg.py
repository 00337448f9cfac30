"""Charts in a page: places read back from the SVG are those of the results."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from fastfed.reporting.charts import Axis, Chart, End, Line, final_charts, regret_charts
from fastfed.reporting.svg import chart_svg, ticks
from tests.test_panels import curve, source

SOLID = {"color": "#4477AA", "linestyle": "-"}
#: A length has one decimal.
HALF = 0.05


def read(chart: Chart) -> ElementTree.Element:
    """The picture, whose root has role and label."""
    root = ElementTree.fromstring(chart_svg(chart, 'a <"label">'))
    assert root.get("role") == "img" and root.get("aria-label") == 'a <"label">'
    return root


def line_chart(y, *, x=None, spread=None, log="", low=0.0, high=100.0, ends=()) -> Chart:
    y = np.array(y, np.float64)
    x = np.arange(1.0, len(y) + 1.0) if x is None else np.array(x, np.float64)
    return Chart(
        "",
        Axis("round", 1.0, float(len(y)), lambda v: f"{v:g}", "x" in log),
        Axis("regret", low, high, lambda v: f"{v:g}", "y" in log),
        (Line("a", x, y, SOLID, None if spread is None else np.array(spread, np.float64)),),
        ends=tuple(ends),
    )


def frame(root: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the axes: the drawing inside is cut off there."""
    (inside,) = root.findall("svg")
    x, y, width, height = (float(inside.get(k)) for k in ("x", "y", "width", "height"))
    assert inside.get("viewBox") == " ".join(inside.get(k) for k in ("x", "y", "width", "height"))
    return x, x + width, y + height, y


def points(element: ElementTree.Element) -> np.ndarray:
    return np.array([[float(v) for v in p.split(",")] for p in element.get("points").split()])


def shares(places: np.ndarray, root: ElementTree.Element) -> np.ndarray:
    """Places as shares of the axes, (C, 2), from left and from below."""
    left, right, bottom, top = frame(root)
    return (places - [left, bottom]) / [right - left, top - bottom]


def test_a_line_is_where_its_values_are() -> None:
    y = [0.0, 12.5, 100.0, 50.0]
    root = read(line_chart(y))
    (line,) = root.iter("polyline")
    found = shares(points(line), root)
    np.testing.assert_allclose(found[:, 0], [0.0, 1 / 3, 2 / 3, 1.0], atol=HALF / 100)
    np.testing.assert_allclose(found[:, 1], np.array(y) / 100.0, atol=HALF / 100)


def test_a_band_is_two_spreads_high() -> None:
    root = read(line_chart([20.0, 40.0], spread=[5.0, 10.0]))
    (band,) = root.iter("polygon")
    found = shares(points(band), root)
    np.testing.assert_allclose(found[:, 1], [0.15, 0.30, 0.50, 0.25], atol=HALF / 100)
    assert not list(read(line_chart([20.0, 40.0], spread=[5.0, np.nan])).iter("polygon"))


def test_logarithmic_axes() -> None:
    y, x = [1.0, 10.0, 1000.0, 0.0], [1.0, 2.0, 4.0, 4.0]
    root = read(line_chart(y, x=x, log="xy", low=1.0, high=1000.0))
    (line,) = root.iter("polyline")
    found = shares(points(line), root)
    np.testing.assert_allclose(found[:3, 0], [0.0, 0.5, 1.0], atol=HALF / 100)
    np.testing.assert_allclose(found[:3, 1], [0.0, 1 / 3, 1.0], atol=HALF / 100)
    # 0 has no logarithm: the line goes down, out of the axes.
    assert found[3, 1] < -1.0


def test_a_line_has_gaps_where_it_is_not_and_ends_are_cut_off() -> None:
    root = read(line_chart([np.nan, 10.0, 20.0, np.nan, 30.0, 1e300]))
    first, second = root.iter("polyline")
    assert len(points(first)) == len(points(second)) == 2
    assert np.abs(points(second)).max() <= 1e5
    # Both are inside of what is cut off at the axes.
    (inside,) = root.findall("svg")
    assert {first, second} <= set(inside.iter("polyline"))


def test_ticks_are_at_their_values() -> None:
    root = read(line_chart([0.0, 80.0, 40.0, 60.0]))
    left, right, bottom, top = frame(root)
    texts = {t.text: (float(t.get("x")), float(t.get("y"))) for t in root.iter("text")}
    assert {"1", "2", "3", "4", "0", "20", "40", "60", "80", "100"} <= set(texts)
    for value in (1, 2, 3):
        at = left + (value - 1) / 3 * (right - left)
        assert texts[str(value)][0] == pytest.approx(at, abs=2 * HALF)
    for value in (20, 60, 100):
        middle = texts[str(value)][1] - 3.5  # of a digit
        assert middle == pytest.approx(bottom + value / 100 * (top - bottom), abs=2 * HALF)


@pytest.mark.parametrize("low", [0.0, 1.0, 13.7, 1e-9, 4e6])
@pytest.mark.parametrize("span", [1e-12, 0.3, 7.0, 1000.0, 2.5e11])
@pytest.mark.parametrize("most", [2, 3, 6])
def test_ticks_are_round_few_and_inside(low: float, span: float, most: int) -> None:
    if span < 1e-9 * low:
        pytest.skip("twelve digits do not tell them apart")
    found = [value for value, _ in ticks(Axis("", low, low + span, str), most)]
    assert 1 <= len(found) <= most
    assert all(low - 1e-9 * span <= v <= low + span * (1 + 1e-9) for v in found)
    steps = {float(f"{b - a:.6g}") for a, b in pairwise(found)}
    assert len(steps) <= 1
    for step in steps:
        assert re.match(r"(1|2|2\.5|5)e", f"{step:.12e}".replace("0" * 11, "").replace(".0e", "e")
                        .replace("2.50e", "2.5e").replace(".e", "e"))  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 90.0, [1, 2, 5, 10, 20, 50]),
        (0.5, 45.0, [0.5, 1, 2, 5, 10, 20]),
        (1.0, 1e4, [1, 10, 100, 1e3, 1e4]),
        (3.0, 2e9, [10, 1e3, 1e5, 1e7, 1e9]),
        (20.0, 70.0, [20, 30, 40, 50, 60, 70]),
    ],
)
def test_ticks_of_logarithmic_axes(low: float, high: float, expected: list[float]) -> None:
    found = [value for value, _ in ticks(Axis("", low, high, str, log=True), 6)]
    assert found == pytest.approx(expected)


def test_names_at_the_ends_do_not_overlap_and_stay_inside() -> None:
    ends = [End(f"curve {i}", 4.0, 50.0, "#4477AA") for i in range(6)]
    ends.append(End("a bound that leaves the picture far above", 4.0, np.inf, "#777777"))
    root = read(line_chart([1.0, 2.0, 3.0, 50.0], ends=ends))
    names = [t for t in root.iter("text") if t.get("style")]
    assert len(names) == len(ends)
    heights = sorted(float(t.get("y")) for t in names)
    assert all(b - a >= 8.3 for a, b in pairwise(heights))
    assert all(0.0 < h < 223.0 for h in heights)
    (long,) = (t for t in names if len(t))
    assert [line.text for line in long] == ["a bound that leaves", "the picture far", "above"]


def test_a_row_for_each_final_regret() -> None:
    six = [curve(f"c, epsilon = {i}.0", 10.0 * 3**i) for i in range(1, 7)]
    (chart,) = final_charts(source(*six))
    root = read(chart)
    left, right, _, _ = frame(root)
    dots = [float(c.get("cx")) for c in root.iter("circle")]
    finals = np.array([10.5 * 3**i for i in range(1, 7)])
    expected = np.log(finals / chart.x.low) / np.log(chart.x.high / chart.x.low)
    np.testing.assert_allclose((np.array(dots) - left) / (right - left), expected, atol=0.001)
    rows = [t.text for t in root.iter("text") if t.get("text-anchor") == "end"]
    assert rows == [f"c, ε\u00a0=\u00a0{i}" for i in range(1, 7)]
    assert np.all(np.diff([float(c.get("cy")) for c in root.iter("circle")]) > 0)


def test_hostile_names_are_text() -> None:
    (chart,) = regret_charts(source(curve("<script>&\"'"), curve("b", 5.0)))
    svg = chart_svg(chart, "<&")
    assert "<script" not in svg
    assert any(t.text == "<script>&\"':  (1, 1e-05)" for t in read(chart).iter("title"))


def test_regret_that_never_grows_has_axes_all_the_same() -> None:
    still = [replace(c, group_regret=0.0 * c.group_regret) for c in (curve("a"), curve("b"))]
    for log in ("", "y", "xy"):
        (chart,) = regret_charts(source(*still, log=log))
        assert chart.y.low < chart.y.high
        assert len(list(read(chart).iter("polyline"))) == 2
