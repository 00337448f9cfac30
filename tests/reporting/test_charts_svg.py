"""Charts in a page: positions read from the SVG are those of the results."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_panels import curve, source

from fastfed.reporting.charts import (
    Axis,
    Chart,
    End,
    Line,
    charts_of,
)
from fastfed.reporting.sections import legend
from fastfed.reporting.svg import chart_svg, names_fit, ticks
from fastfed.results.results import CurveResult

SOLID = {"color": "#4477AA", "linestyle": "-"}
#: Half of the last decimal: lengths are written with one decimal.
HALF = 0.05


def read(chart: Chart) -> ElementTree.Element:
    """Return the root of the parsed SVG, after a check of its role and label."""
    root = ElementTree.fromstring(chart_svg(chart, 'a <"label">'))
    assert root.get("role") == "img" and root.get("aria-label") == 'a <"label">'
    return root


def line_chart(y, *, x=None, spread=None, log="", low=0.0, high=100.0, ends=()) -> Chart:
    """Return a chart with one line."""
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
    """Return left, right, bottom and top of the axes, at which lines are cut off."""
    (inside,) = root.findall("svg")
    x, y, width, height = (float(inside.get(k)) for k in ("x", "y", "width", "height"))
    assert inside.get("viewBox") == " ".join(inside.get(k) for k in ("x", "y", "width", "height"))
    return x, x + width, y + height, y


def points(element: ElementTree.Element) -> np.ndarray:
    """Return the points (n, 2) of an SVG element."""
    return np.array([[float(v) for v in p.split(",")] for p in element.get("points").split()])


def shares(places: np.ndarray, root: ElementTree.Element) -> np.ndarray:
    """Return places as shares of the axes, (C, 2), from left and from below."""
    left, right, bottom, top = frame(root)
    return (places - [left, bottom]) / [right - left, top - bottom]


def test_a_line_goes_through_its_values() -> None:
    y = [0.0, 12.5, 100.0, 50.0]
    root = read(line_chart(y))
    (line,) = root.iter("polyline")
    actual = shares(points(line), root)
    np.testing.assert_allclose(actual[:, 0], [0.0, 1 / 3, 2 / 3, 1.0], atol=HALF / 100)
    np.testing.assert_allclose(actual[:, 1], np.array(y) / 100.0, atol=HALF / 100)


def test_a_band_is_two_spreads_high() -> None:
    root = read(line_chart([20.0, 40.0], spread=[5.0, 10.0]))
    (band,) = root.iter("polygon")
    actual = shares(points(band), root)
    np.testing.assert_allclose(actual[:, 1], [0.15, 0.30, 0.50, 0.25], atol=HALF / 100)
    assert not list(read(line_chart([20.0, 40.0], spread=[5.0, np.nan])).iter("polygon"))


def test_logarithmic_axes() -> None:
    y, x = [1.0, 10.0, 1000.0, 0.0], [1.0, 2.0, 4.0, 4.0]
    root = read(line_chart(y, x=x, log="xy", low=1.0, high=1000.0))
    (line,) = root.iter("polyline")
    actual = shares(points(line), root)
    np.testing.assert_allclose(actual[:3, 0], [0.0, 0.5, 1.0], atol=HALF / 100)
    np.testing.assert_allclose(actual[:3, 1], [0.0, 1 / 3, 1.0], atol=HALF / 100)
    # 0 has no logarithm: the line goes down, out of the axes.
    assert actual[3, 1] < -1.0


def test_a_line_has_gaps_at_nan_and_is_cut_off_at_the_axes() -> None:
    root = read(line_chart([np.nan, 10.0, 20.0, np.nan, 30.0, 1e300]))
    first, second = root.iter("polyline")
    assert len(points(first)) == len(points(second)) == 2
    assert np.abs(points(second)).max() <= 1e5
    # Both lines are inside the element that is cut off at the axes.
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
        middle = texts[str(value)][1] - 3.5  # half the height of a digit
        assert middle == pytest.approx(bottom + value / 100 * (top - bottom), abs=2 * HALF)


# Spans so wide that twelve digits distinguish their ticks.
SPANS = [
    (low, span)
    for low in (0.0, 1.0, 13.7, 1e-9, 4e6)
    for span in (1e-12, 0.3, 7.0, 1000.0, 2.5e11)
    if span > 1e-9 * low
]


@pytest.mark.parametrize(("low", "span"), SPANS)
@pytest.mark.parametrize("most", [2, 3, 6])
def test_ticks_are_round_numbers_few_and_inside(low: float, span: float, most: int) -> None:
    actual = [value for value, _ in ticks(Axis("", low, low + span, str), most)]
    assert 1 <= len(actual) <= most
    assert all(low - 1e-9 * span <= v <= low + span * (1 + 1e-9) for v in actual)
    steps = {float(f"{b - a:.6g}") for a, b in pairwise(actual)}
    assert len(steps) <= 1
    for step in steps:
        assert re.match(r"(1|2|2\.5|5)e", f"{step:.12e}".replace("0" * 11, "").replace(".0e", "e")
                        .replace("2.50e", "2.5e").replace(".e", "e"))  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 90.0, [1, 2, 5, 10, 20, 50]),
        (0.5, 45.0, [0.5, 1, 2, 5, 10, 20]),
        (30.0, 2e4, [30, 100, 300, 1e3, 3e3, 1e4]),
        (1.0, 1e4, [1, 10, 100, 1e3, 1e4]),
        (3.0, 2e9, [1e2, 1e4, 1e6, 1e8]),
        (20.0, 70.0, [20, 30, 40, 50, 60, 70]),
    ],
)
def test_ticks_of_logarithmic_axes(low: float, high: float, expected: list[float]) -> None:
    actual = [value for value, _ in ticks(Axis("", low, high, str, log=True), 6)]
    assert actual == pytest.approx(expected)


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
    (chart,) = charts_of(source(*six)).final
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
    (chart,) = charts_of(source(curve("<script>&\"'"), curve("b", 5.0))).regret
    svg = chart_svg(chart, "<&")
    assert "<script" not in svg
    assert any(t.text == "<script>&\"':  (1, 1e-05)" for t in read(chart).iter("title"))


def test_regret_that_is_always_zero_has_axes() -> None:
    still = [replace(c, group_regret=0.0 * c.group_regret) for c in (curve("a"), curve("b"))]
    for log in ("", "y", "xy"):
        (chart,) = charts_of(source(*still, log=log)).regret
        assert chart.y.low < chart.y.high
        root = read(chart)
        assert len(list(root.iter("polyline"))) == 2
        texts_are_inside(root)


def with_regret(curve: CurveResult, values) -> CurveResult:
    """Return a curve with this regret at its last checkpoints, in both replicates."""
    regret = np.tile(np.array(values, np.float64), (2, 1))
    few = len(values)
    counts = {
        name: getattr(curve, name)[:, -few:]
        for name in ("synchronisation_counts", "bits_up_counts", "bits_down_counts")
    }
    return replace(curve, rounds=curve.rounds[-few:], group_regret=regret, **counts)


def sending(curve: CurveResult, bits) -> CurveResult:
    """Return the curve with these bits sent, in both replicates."""
    return replace(curve, bits_up_counts=np.tile(np.array(bits, np.float64), (2, 1)))


@cache
def dejavu():
    """Return the font DejaVu Sans, a broad font, at size 100."""
    fonts = Path(pytest.importorskip("matplotlib").get_data_path()) / "fonts" / "ttf"
    from PIL import ImageFont  # matplotlib needs it

    return ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), 100)


def texts_are_inside(root: ElementTree.Element) -> None:
    """Check that all texts fit inside the picture in the broadest font that a page may have."""
    _, _, width, height = map(float, root.get("viewBox").split())
    for text in root.iter("text"):
        if text.get("transform"):
            continue
        x, y = float(text.get("x")), float(text.get("y"))
        size = 8.3 if text.get("style") else 10.0
        lines = [line.text for line in (text if len(text) else [text])]
        long = size / 100.0 * max(map(dejavu().getlength, lines))
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor")] * long
        assert 0.0 < y < height and left > -1.0 and left + long < width + 1.0, text.text


def tick_texts(root: ElementTree.Element) -> list[str]:
    """Return the texts of the ticks below the axes, from left to right."""
    _, _, bottom, _ = frame(root)
    below = [t for t in root.iter("text") if abs(float(t.get("y")) - bottom - 14.0) < 1.0]
    return [t.text for t in sorted(below, key=lambda t: float(t.get("x")))]


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_one_checkpoint_is_a_dot(log: str) -> None:
    (chart,) = charts_of(source(with_regret(curve("a"), [7.0]), log=log)).regret
    root = read(chart)
    assert not list(root.iter("polyline"))
    (dot,) = root.iter("circle")
    _, right, bottom, top = frame(root)
    assert float(dot.get("cx")) == pytest.approx(right, abs=0.1)
    assert top < float(dot.get("cy")) < bottom


def test_a_bound_with_only_a_last_value_is_a_dot() -> None:
    root = read(line_chart([np.nan, np.nan, 30.0]))
    assert len(list(root.iter("circle"))) == 1


def test_negative_regret_is_inside_the_axes() -> None:
    six = [with_regret(curve(f"c{i}"), [-2.0, 1.0, i - 3.0]) for i in range(6)]
    figure = source(*six)
    for chart in (*charts_of(figure).regret, *charts_of(figure).final):
        root = read(chart)
        texts_are_inside(root)
        left, right, bottom, top = frame(root)
        for line in root.iter("polyline"):
            assert points(line)[:, 1].max() < bottom and points(line)[:, 1].min() > top
        for dot in root.iter("circle"):
            assert left < float(dot.get("cx")) < right
    (chart,) = charts_of(figure).regret
    assert chart.y.low == pytest.approx(1.05 * -3.0)


def test_a_curve_that_ends_below_a_logarithmic_axis_is_named_at_its_edge() -> None:
    figure = source(
        with_regret(curve("a"), [5.0, 0.0]), with_regret(curve("b"), [5.0, 9.0]), log="y"
    )
    (chart,) = charts_of(figure).regret
    texts_are_inside(read(chart))


@pytest.mark.parametrize("horizon", [1, 2, 3, 7, 100, 99_999, 10**7, 10**9])
@pytest.mark.parametrize("log", ["", "x"])
def test_ticks_of_rounds_are_whole_and_differ(horizon: int, log: str) -> None:
    changed_curve = with_regret(curve("a"), [1.0, 2.0])
    rounds = np.array([max(1, horizon - 1), horizon])
    figure = source(replace(changed_curve, rounds=rounds), log=log)
    figure = replace(figure, results=replace(figure.results, horizon=horizon))
    (chart,) = charts_of(figure).regret
    root = read(chart)
    texts = tick_texts(root)
    assert texts and len(set(texts)) == len(texts)
    assert all(text.replace(" ", "").isdigit() for text in texts)
    texts_are_inside(root)


@pytest.mark.parametrize(
    "bits",
    [[800] * 5, [1600, 3200, 4000, 6400, 14400], [0, 0, 0, 0, 8e6],
     [8e6, 8e6 + 8, 8e6 + 16, 1e7, 2e7], [1.6e4, 1.65e4, 1.7e4, 1.75e4, 1.8e4]],
)  # fmt: skip
def test_ticks_of_bytes_differ_and_have_the_right_values(bits) -> None:
    (chart,) = charts_of(source(sending(curve("a"), bits))).sent
    root = read(chart)
    texts = tick_texts(root)
    assert len(texts) >= 2 and len(set(texts)) == len(texts)
    texts_are_inside(root)
    units = {"B": 1.0, "kB": 1e3, "MB": 1e6}
    left, right, _, _ = frame(root)
    for text in texts:
        number, unit = text.split()
        value = float(number) * units[unit]
        (at,) = (float(t.get("x")) for t in root.iter("text") if t.text == text)
        share = math.log(value / chart.x.low) / math.log(chart.x.high / chart.x.low)
        assert at == pytest.approx(left + share * (right - left), abs=0.1)


def test_names_without_room_are_in_a_legend() -> None:
    long = "a very long label that goes on and on, with many words, number"
    (chart,) = charts_of(source(*(curve(f"{long} {i}", 10.0 + i) for i in range(8)))).regret
    (few,) = charts_of(source(curve(f"{long} 1"), curve(f"{long} 2", 5.0))).regret
    assert not names_fit(chart) and names_fit(few)
    root = read(chart)
    assert not [t for t in root.iter("text") if t.get("style")]
    assert legend(few) == "" and legend(chart).count("<li>") == 8
    assert f"{long} 7:  (1, 1e-05)</span>" in legend(chart)
    assert names_fit(charts_of(source(curve("w" * 19))).regret[0])


def test_long_names_of_rows_are_wrapped() -> None:
    words = "averaged gradients of clients and"
    six = [curve(f"{words} {i}", 10.0 + i) for i in range(6)]
    (chart,) = charts_of(source(*six)).final
    assert any("\n" in row for row in chart.y.rows)
    texts_are_inside(read(chart))


def test_long_titles_of_panels_are_wrapped() -> None:
    chart = replace(line_chart([1.0, 2.0]), title="words " * 20)
    root = read(chart)
    texts_are_inside(root)
    assert len([t for t in root.iter("text") if t.text and t.text.startswith("words")]) == 3


def test_control_characters_are_replaced() -> None:
    (chart,) = charts_of(source(curve("a\x01b\ufffe"), curve("c", 5.0))).regret
    assert any("a\ufffdb\ufffd" in (t.text or "") for t in read(chart).iter("title"))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_an_axis_has_a_length(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="an axis cannot go from"):
        Axis("", low, high, str)
