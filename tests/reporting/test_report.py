"""Tables, figure and certificates: their content, and equal bytes from equal results."""

from __future__ import annotations

import csv
import io
import math
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_panels import draw_plot

import fastfed
from fastfed._validate import InputError
from fastfed.environments import Sphere
from fastfed.privacy.certificate import as_text
from fastfed.reporting import table
from fastfed.reporting.charts import Y_LABELS, Chart, ascii_plot, charts_of
from fastfed.reporting.figure import (
    AXIS_KEYS,
    Source,
    bound_curves,
    bounds_above_plot,
    ceiling,
    check_figure,
    missing_bounds,
    read_source,
    regret,
    synchronisation_bounds,
)
from fastfed.reporting.page import write_report
from fastfed.reporting.panels import COLOURS, NOT_PRIVATE_COLOUR, line_styles
from fastfed.reporting.plot_files import FORMATS
from fastfed.reporting.plotting import draw_chart
from fastfed.reporting.sections import certificates_text
from fastfed.reporting.table import plus_minus, rate, sent, times
from fastfed.reporting.text import privacy_text, spaced, spec_text
from fastfed.simulation.experiment import Experiment, make_experiment


def an_experiment(**figure: Any) -> Experiment:
    """Return a small experiment with five curves."""
    private = {"algorithm": "private-fedlinucb", "delta": 1e-5, "batch_size": 10}
    return make_experiment(
        name="small",
        environment=Sphere(dimension=3, actions=5),
        curves=[
            {"label": "open", "algorithm": "fedlinucb", "batch_size": 20},
            {"label": "lazy", "epsilon": [0.5, 1.5], **private},
            {"label": "eager", "epsilon": 1.0, "lazy": False, **private},
            {"label": "alone", "algorithm": "local-linucb", "radius_multiplier": 0.5},
        ],
        horizon=60,
        silos=4,
        replicates=3,
        checkpoints=6,
        figure=figure,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the experiment, and return the folder of its results."""
    path = tmp_path_factory.mktemp("report") / "out"
    fastfed.run(an_experiment(title="Small, and $quare", note="one note", y="time-average"), path)
    return path


@pytest.fixture
def source(folder: Path) -> Source:
    """Return the results as the source of a report."""
    return read_source(folder)


def test_source_names_the_setting(source: Source) -> None:
    assert source.title == "Small, and $quare"
    assert source.setting == (
        "M = 4 silos, T = 60 rounds, d = 3, B = 20 | 10, radius multiplier 1 | 0.5"
    )
    assert source.replicates == "3 replicates"
    assert source.notes == ("one note",)
    assert len(source.results.curves[0].replicates) == 3


def test_source_can_be_limited_to_the_first_replicates(folder: Path, source: Source) -> None:
    two = read_source(folder, 2)
    assert two.replicates == "2 replicates"
    for a, b in zip(two.results.curves, source.results.curves, strict=True):
        np.testing.assert_array_equal(a.group_regret, b.group_regret[:2])


def test_text_table_has_the_numbers_of_the_results(source: Source) -> None:
    lines = table.as_text(source).splitlines()
    assert lines[0] == source.title
    for curve, line in zip(source.results.curves, lines[7:], strict=False):
        assert line.startswith(curve.label)
        assert plus_minus(curve.mean[-1], curve.stderr[-1]) in line
        assert plus_minus(curve.mean[-1] / 4, curve.stderr[-1] / 4) in line
        assert curve.certificate["status"] in line


def test_csv_has_full_numbers(source: Source) -> None:
    rows = list(csv.DictReader(io.StringIO(table.as_csv(source))))
    assert [r["label"] for r in rows] == [c.label for c in source.results.curves]
    for row, curve in zip(rows, source.results.curves, strict=True):
        assert float(row["group_regret_mean"]) == curve.mean[-1]
        assert float(row["per_silo_regret_stderr"]) == curve.stderr[-1] / 4
    by_label = {r["label"]: r for r in rows}
    assert (by_label["open"]["claimed_epsilon"], by_label["open"]["exact_epsilon"]) == ("", "")
    assert by_label["lazy, epsilon = 1.5"]["claimed_epsilon"] == "1.5"
    assert (by_label["eager"]["exact_epsilon"], by_label["eager"]["privacy_status"]) == (
        "",
        "unproven",
    )


def test_table_notes_events_and_missing_replicates(source: Source) -> None:
    curve = replace(
        source.results.curves[1],
        events={"indefinite": 3, "clipped_features": 0, "clipped_rewards": 0},
        replicates=(0, 1),
    )
    changed = replace(
        source, results=replace(source.results, curves=(source.results.curves[0], curve))
    )
    text = table.as_text(changed)
    assert (
        "lazy, epsilon = 0.5: V was not positive definite and was shifted until it was, 3 times"
        in text
    )
    assert "lazy, epsilon = 0.5: 2 replicates so far" in text
    assert "2 to 3 replicates" in text
    assert "clipped" not in text


@pytest.mark.parametrize(
    ("mean", "stderr", "expected"),
    [
        (12345.678, 67.891, "12346 ± 68"),
        (12345.678, 678.91, "12346 ± 679"),
        (1.23456, 0.0123, "1.235 ± 0.012"),
        (99.96, 9.96, "100.0 ± 10.0"),
        (0.0, 0.0, "0.0000"),
        (12345.678, None, "12346"),
        (-3.0, 1.5, "-3.0 ± 1.5"),
        (123.456, math.nan, "123.46"),
    ],
)
def test_plus_minus(mean: float, stderr: float | None, expected: str) -> None:
    assert plus_minus(mean, stderr) == expected


def test_rate_and_spaced() -> None:
    rates = [(12.3e6, "12.3 M"), (412_000, "412 k"), (2.5e9, "2.50 G"), (87, "87"), (None, "-")]
    assert [rate(value) for value, _ in rates] == [text for _, text in rates]
    assert (spaced(999), spaced(10_000), spaced(1_234_567)) == ("999", "10 000", "1 234 567")


def certificate(claimed: Any, exact: Any, status: str, also: Any = ()) -> dict[str, Any]:
    """Return the certificate with these pairs of (epsilon, delta)."""
    pair = ("epsilon", "delta")
    return {
        "unit": "user",
        "claimed": claimed and dict(zip(pair, claimed, strict=True)),
        "exact": exact and dict(zip(pair, exact, strict=True)),
        "status": status,
        "also": [{"unit": u, "exact": dict(zip(pair, e, strict=True))} for u, e in also],
    }


@pytest.mark.parametrize(
    ("stored", "short"),
    [
        (certificate(None, None, "none"), "not private"),
        (certificate(None, (0.0, 0.0), "proven"), "sends nothing: epsilon 0"),
        (certificate((1, 1e-5), (1.0 - 1e-12, 1e-5), "proven"), "(1, 1e-05)"),
        (certificate((1, 0.1), (0.15001, 0.1), "proven"), "claimed (1, 0.1), exact (0.1501, 0.1)"),
        (certificate((1, 0.1), None, "unproven"), "claimed (1, 0.1), unproven"),
        (
            certificate((1, 0.1), None, "unproven", [("item", (2.0, 0.1))]),
            "claimed (1, 0.1), unproven, only per item (2, 0.1)",
        ),
        (
            certificate((1, 0.1), None, "unproven", [("user", (1.0, 0.1))]),
            "claimed (1, 0.1), unproven, only conditional (1, 0.1)",
        ),
    ],
)
def test_short_texts_of_privacy(stored: dict[str, Any], short: str) -> None:
    assert privacy_text(stored).short == short


def test_certificates_are_those_of_the_experiment(source: Source) -> None:
    curves = source.results.curves
    text = certificates_text((c.label, c.certificate) for c in curves)
    for curve in an_experiment().curves:
        heading = f"{curve.label}\n{'=' * len(curve.label)}\n"
        assert heading + as_text(curve.system.certificate) in text


def test_figure_is_a_png_and_an_svg_and_deterministic(source: Source) -> None:
    first, second = draw_plot(source), draw_plot(source)
    assert first == second
    assert set(first) == {"png", "svg"}
    assert first["png"].startswith(b"\x89PNG")
    assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")
    assert b"<dc:date>" not in first["svg"]


def sent_lines(source: Source) -> list[tuple[Any, Any]]:
    """Return (bytes, regret) of each line of the plot of regret against bytes, if it has points."""
    (chart,) = charts_of(source).sent
    return [(line.x, line.y) for line in chart.lines if len(line.x)]


def test_communication_begins_at_the_first_message_and_ends_at_the_total(source: Source) -> None:
    """Compare lines with bytes from the schedule and regret from the store."""
    seen = sent_lines(source)
    pictures = draw_plot(source, plot="sent")
    assert pictures == draw_plot(source, plot="sent")
    assert pictures["png"].startswith(b"\x89PNG")
    curves = source.results.curves
    # Silos without communication send nothing, and have no line.
    assert len(seen) == len(curves) - 1 and curves[-1].bytes_sent == 0
    plans = [c.system.plan for c in an_experiment().curves]
    for curve, plan, (x, mean) in zip(curves[:-1], plans, seen, strict=False):
        begun = curve.rounds >= plan.batch_size
        each = 2 * 8 * 4 * (3 + 6)  # both ways, float64, silos, entries of u and V
        np.testing.assert_array_equal(x, each * (curve.rounds[begun] // plan.batch_size))
        np.testing.assert_array_equal(mean, curve.mean[begun] / curve.rounds[begun])
        assert x[-1] == curve.bytes_up + curve.bytes_down == curve.bytes_sent


def test_no_communication_plot_if_nothing_is_sent(source: Source, tmp_path: Path) -> None:
    alone = replace(source, results=replace(source.results, curves=source.results.curves[-1:]))
    assert charts_of(source).sent and not charts_of(alone).sent
    written = {p.name for p in write_report(alone, tmp_path, FORMATS)}
    assert "figure.png" in written and "communication.png" not in written
    assert "No curve sends anything." in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "nothing"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (2_640_000_000, "2.6 GB"),
        (99_400, "99 kB"),
        (99_600, "100 kB"),
        (3.2e20, "320 EB"),
    ],
)
def test_sent(count: float, expected: str) -> None:
    assert sent(count) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0"), (12, "12"), (10_000, "10000"), (12.4, "12.4"), (13.0, "13.0"), (1 / 23, "0.043"),
     (1234.56, "1234.6"), (0.0, "0.0")],
)  # fmt: skip
def test_times(count: float, expected: str) -> None:
    assert times(count) == expected


def test_replicates_that_synchronise_differently_are_averaged(source: Source) -> None:
    """Compare with means by hand: 12, 12 and 13 synchronisations of 100 bits each way."""
    counts = np.array([[0, 1, 2, 3, 4, 12], [0, 0, 5, 6, 7, 12], [0, 3, 4, 5, 6, 13]])
    adaptive = replace(
        source.results.curves[0],
        synchronisation_counts=counts,
        bits_up_counts=100.0 * counts,
        bits_down_counts=100.0 * counts,
    )
    changed = replace(source, results=replace(source.results, curves=(adaptive,)))
    lines = table.as_text(changed).splitlines()
    assert lines[3].split()[-3:] == ["synchronised", "sent", "agent-rounds/s"]
    assert " 12.3  309 B " in lines[5]
    (row,) = csv.DictReader(io.StringIO(table.as_csv(changed)))
    assert float(row["synchronisations"]) == pytest.approx(37 / 3)
    assert float(row["bits_up"]) == pytest.approx(3700 / 3)
    # Each replicate's 1200 or 1300 bits fill 150 or 163 bytes.
    assert float(row["bytes_down"]) == pytest.approx((150 + 150 + 163) / 3)
    x = sent_lines(changed)[0][0]
    # By the second checkpoint one replicate has sent nothing yet.
    whole = 2 * np.ceil(100 * counts[:, 1:] / 8)
    np.testing.assert_allclose(x, whole.mean(axis=0))


def test_table_and_csv_have_what_was_sent(source: Source) -> None:
    rows = list(csv.DictReader(io.StringIO(table.as_csv(source))))
    assert [row["synchronisations"] for row in rows] == ["3", "6", "6", "6", "0"]
    for row, curve in zip(rows, source.results.curves, strict=True):
        assert int(row["bits_up"]) == 8 * int(row["bytes_up"]) == curve.bits_up
        assert int(row["bytes_down"]) == curve.bytes_down
        assert curve.bytes_curve[-1] == curve.bytes_sent
        assert len(curve.bytes_curve) == len(curve.rounds)
    lines = table.as_text(source).splitlines()[7:]
    # 60 / 20 releases of 9 entries of 8 bytes, 4 silos, both ways.
    assert " 3   1.7 kB" in lines[0] and 3 * 9 * 8 * 4 * 2 == 1728
    assert " 0  nothing" in lines[4]


def test_drawing_does_not_change_the_style(source: Source) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_plot(source)
    draw_plot(source, plot="sent")
    assert dict(matplotlib.rcParams) == before


def test_figure_follows_the_keys_of_the_spec(source: Source) -> None:
    figure = {**source.results.figure, "y": "cumulative"}
    cumulative = replace(source, results=replace(source.results, figure=figure))
    assert draw_plot(cumulative)["png"] != draw_plot(source)["png"]
    without = replace(source, results=replace(source.results, figure={**figure, "note": []}))
    assert draw_plot(without)["png"] != draw_plot(cumulative)["png"]


def with_figure(source: Source, **keys: Any) -> Source:
    """Return the source with some keys of its figure changed."""
    figure = {**source.results.figure, **keys}
    return replace(source, results=replace(source.results, figure=figure))


def with_curves(source: Source, **changes: Any) -> Source:
    """Return the source with its first curve changed."""
    first, *others = source.results.curves
    curves = (replace(first, **changes), *others)
    return replace(source, results=replace(source.results, curves=curves))


def chart_of(source: Source) -> Chart:
    """Return the one chart of regret against rounds."""
    (chart,) = charts_of(source).regret
    return chart


def axes_of(source: Source) -> Any:
    """Return Matplotlib axes with the chart of regret against rounds."""
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    draw_chart(axes, chart_of(source))
    return axes


def test_every_axis_has_a_name() -> None:
    assert set(AXIS_KEYS) == set(Y_LABELS)


def test_per_silo_divides_by_the_silos_of_each_curve(source: Source) -> None:
    """Give the first curve forty silos; the other curves and the experiment have four."""
    sized = with_curves(with_figure(source, y="per-silo"), silos=40)
    axes = axes_of(sized)
    assert axes.get_ylabel() == "regret per silo"
    drawn_lines = axes.get_lines()
    assert len(drawn_lines) == len(sized.results.curves)
    for curve, line, silos in zip(sized.results.curves, drawn_lines, [40, 4, 4, 4, 4], strict=True):
        np.testing.assert_array_equal(line.get_ydata(), curve.mean / silos)
        np.testing.assert_array_equal(regret(sized, curve)[1], 2.0 * curve.stderr / silos)
    seen = sent_lines(sized)
    # The plot of regret against bytes has the same y axis.
    first, second = (mean for _, mean in seen[:2])
    assert first[-1] == sized.results.curves[0].mean[-1] / 40
    assert second[-1] == sized.results.curves[1].mean[-1] / 4


def tallest(source: Source) -> float:
    """Return the largest mean plus its band, computed from the results."""
    return max(float((regret(source, c)[0] + regret(source, c)[1]).max())
               for c in source.results.curves)  # fmt: skip


def line_of(bound: str, label: str = "Theorem 1", curve: str = "open") -> dict[str, str]:
    """Return the keys that draw a bound of a curve."""
    return {"label": label, "curve": curve, "bound": bound}


def bounded(source: Source, values: Any, **keys: Any) -> Source:
    """Return the source; its first curve has one bound of regret, which the figure draws."""
    with_line = with_figure(source, line=[line_of("b")], **keys)
    return with_curves(with_line, bounds={"b": list(map(float, values))})


@pytest.mark.parametrize(
    ("y", "divisor"),
    [
        pytest.param("cumulative", [1.0] * 6, marks=pytest.mark.slow),
        ("time-average", [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        pytest.param("per-silo", [4.0] * 6, marks=pytest.mark.slow),
    ],
)
def test_a_bound_is_drawn_in_the_unit_of_the_axis(
    source: Source, y: str, divisor: list[float]
) -> None:
    plain = with_figure(source, y=y)
    values = 1.5 * tallest(plain) * np.array(divisor)
    with_bound = bounded(plain, values)
    before, axes = axes_of(plain), axes_of(with_bound)
    *curves, line = axes.get_lines()
    assert len(curves) == len(source.results.curves)
    np.testing.assert_allclose(line.get_ydata(), values / divisor, rtol=1e-12)
    np.testing.assert_array_equal(line.get_xdata(), [10, 20, 30, 40, 50, 60])
    assert line.get_linestyle() == "--" and line.get_color() == "#777777"
    assert line.get_linewidth() < curves[0].get_linewidth()
    assert line.get_zorder() < curves[0].get_zorder()
    # The axis makes room for the bound, so no note is needed.
    assert axes.get_ylim()[1] > 1.5 * tallest(plain) > before.get_ylim()[1]
    assert bounds_above_plot(with_bound) == missing_bounds(with_bound) == []
    assert draw_plot(with_bound)["png"] == draw_plot(with_bound)["png"] != draw_plot(plain)["png"]
    assert b">Theorem 1</text>" in draw_plot(with_bound)["svg"]


def test_a_bound_below_the_curves_does_not_change_the_axis(source: Source) -> None:
    low = bounded(source, [1e-9] * 6, y="cumulative")
    assert axes_of(low).get_ylim() == axes_of(with_figure(source, y="cumulative")).get_ylim()


@pytest.mark.slow
def test_a_bound_far_above_the_curves_does_not_flatten_them(source: Source) -> None:
    plain = with_figure(source, y="cumulative")
    top = tallest(plain)
    assert ceiling(plain) == 3.0 * top
    # A bound that is always above three times the tallest curve has no line, entry or room.
    far = bounded(plain, np.linspace(3.01, 5000.0, 6) * top)
    assert axes_of(far).get_ylim() == axes_of(plain).get_ylim()
    assert len(axes_of(far).get_lines()) == len(plain.results.curves)
    assert b">Theorem 1</text>" not in draw_plot(far)["svg"]
    # A bound that leaves the plot is drawn up to the upper edge.
    leaving = bounded(plain, np.array([0.5, 1.0, 2.0, 2.9, 50.0, 5000.0]) * top)
    axes = axes_of(leaving)
    assert axes.get_ylim() == (0.0, 3.0 * top)
    assert axes.get_lines()[-1].get_clip_on()
    for source_ in (far, leaving):
        (note,) = bounds_above_plot(source_)
        value = 5000.0 * top
        assert note == f"above the plot: Theorem 1 = {spaced(value)} at the last round"
        assert b"above the plot: Theorem 1" in draw_plot(source_)["svg"]
    # A bound that enters the plot has no note: only its end counts.
    coming = bounded(plain, np.array([5000.0, 50.0, 4.0, 2.0, 1.5, 1.4]) * top)
    assert bounds_above_plot(coming) == [] and axes_of(coming).get_ylim() == (0.0, 3.0 * top)


def test_a_bound_is_drawn_where_it_is_finite(source: Source) -> None:
    plain = with_figure(source, y="cumulative")
    top = tallest(plain)
    late = bounded(plain, [math.inf, math.inf, top, 2 * top, 2 * top, 2 * top])
    np.testing.assert_array_equal(
        axes_of(late).get_lines()[-1].get_ydata(), [math.nan, math.nan, top, *[2 * top] * 3]
    )
    assert bounds_above_plot(late) == []
    never = bounded(plain, [math.inf] * 6)
    assert bounds_above_plot(never) == ["above the plot: Theorem 1 = infinite at the last round"]
    assert axes_of(never).get_ylim() == axes_of(plain).get_ylim()


def test_with_one_replicate_the_ceiling_has_no_band(folder: Path) -> None:
    one = with_figure(read_source(folder, 1), y="cumulative")
    assert ceiling(one) == 3.0 * max(c.mean.max() for c in one.results.curves)


def test_bounds_that_are_not_stored_are_not_drawn(source: Source) -> None:
    with_lines = with_figure(
        with_curves(source, bounds={"b": [1.0] * 6, "synchronisations": [9.0] * 6}),
        line=[
            line_of("b", "here"),
            line_of("c", "nameless"),
            line_of("b", "of another", "alone"),
            line_of("b", "of nobody", "nobody"),
            line_of("synchronisations", "of counts"),
        ],
    )
    assert [line.label for line in bound_curves(with_lines)] == ["here"]
    notes = missing_bounds(with_lines)
    assert len(notes) == 4
    assert notes[0] == (
        'not drawn: nameless, since there is no bound "c" of curve "open" in the store'
    )
    assert len(axes_of(with_lines).get_lines()) == len(source.results.curves) + 1


def test_bounds_in_one_plot_have_different_dashes(source: Source) -> None:
    bounds = {str(i): [float(i)] * 6 for i in range(4)}
    with_lines = with_figure(
        with_curves(source, bounds=bounds), y="cumulative", line=[line_of(b, b) for b in bounds]
    )
    actual = axes_of(with_lines).get_lines()[-4:]
    assert len({str(line._unscaled_dash_pattern) for line in actual}) == 4


def test_synchronisations_are_listed_with_their_bounds(source: Source) -> None:
    named = with_curves(
        source,
        bounds={
            "theorem-1": [1.0] * 6,
            "synchronisations-proposition-1": [1.0, 2.0, 3.0, 4.0, 5.0, 6.5],
            "synchronisations": [7.0] * 6,
        },
    )
    assert synchronisation_bounds(named.results) == [
        ("open", 3, "Proposition 1", 6.5),
        ("open", 3, "", 7.0),
    ]
    assert synchronisation_bounds(source.results) == []


def test_the_spec_in_the_page_has_the_lines(source: Source) -> None:
    figure = {"y": "per-silo", "line": [line_of("b"), line_of("c", 'a "b"')]}
    text = spec_text(source.identity, 3, figure)
    assert tomllib.loads(text.split("[environment]")[0])["figure"] == figure


def test_figure_of_one_replicate_and_odd_labels(folder: Path) -> None:
    one = read_source(folder, 1)
    curves = tuple(
        replace(c, label=label)
        for c, label in zip(
            one.results.curves, ["_x", "$a", "\\frac", "[b]", "é" * 200], strict=True
        )
    )
    odd = replace(one, results=replace(one.results, curves=curves))
    assert draw_plot(odd)["png"].startswith(b"\x89PNG")


def test_lines_have_different_styles(source: Source) -> None:
    private = source.results.curves[1]
    styles = line_styles((source.results.curves[0], *[private] * 20))
    assert len({(s["color"], str(s["linestyle"])) for s in styles}) == 21
    assert styles[0]["color"] == NOT_PRIVATE_COLOUR
    assert {s["color"] for s in styles[1:]} == set(COLOURS)


def test_write_report_before_the_first_replicate(source: Source, tmp_path: Path) -> None:
    empty = replace(source, results=replace(source.results, curves=()))
    written = {p.name for p in write_report(empty, tmp_path)}
    assert written == {"table.txt", "table.csv", "certificates.txt", "report.html"}
    assert "no replicate has run" in (tmp_path / "table.txt").read_text()


def test_write_report_where_nothing_can_be_written(source: Source, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_report(source, file)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "figure",
    [
        3,
        {"title": 3},
        {"y": "log"},
        {"note": [1]},
        {"titel": "x"},
        {"full": 1},
        {"y": ["cumulative"]},
        {"y": "per_silo"},
        {"line": "x"},
        {"line": line_of("b")},
        {"line": [3]},
    ],
)
def test_bad_figure_tables(figure: Any) -> None:
    with pytest.raises(InputError, match="figure"):
        check_figure(figure)


def test_good_figure_tables() -> None:
    check_figure({})
    check_figure({"title": "t", "y": "cumulative", "note": ["a", "b"], "panels": [], "full": {}})
    check_figure({"y": "per-silo", "line": [line_of("b")]})
    check_figure({"line": [line_of("b")]}, ["open"], {"open": ["a", "b"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lable": "x"}, 'unknown key "lable" in figure.line; did you mean "label"'),
        ({"label": ""}, "figure.line.label must be a text, got ''"),
        ({"curve": None}, "figure.line.curve must be a text, got None"),
        ({"bound": 3}, "figure.line.bound must be a text, got 3"),
        ({"curve": "opne"}, 'unknown curve "opne" in figure.line; did you mean "open"'),
        (
            {"bound": "theorem-2"},
            'unknown bound "theorem-2" of curve "open" in figure.line; did you mean "theorem-1"',
        ),
        (
            {"curve": "alone"},
            'unknown bound "theorem-1" of curve "alone" in figure.line; as it is set up it has no '
            "bounds",
        ),
        ({"bound": "zzz"}, 'in figure.line; it has "theorem-1"'),
        ({"bound": "synchronisations-x"}, "must be a bound of regret"),
    ],
)
def test_bad_lines(changes: dict[str, Any], words: str) -> None:
    bounds = {"open": ["theorem-1"]}
    good = line_of("theorem-1")
    with pytest.raises(InputError) as error:
        check_figure({"line": [good, {**good, **changes}]}, ["open", "alone"], bounds)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_names_are_checked_only_against_known_curves_and_bounds() -> None:
    unknown = {"line": [line_of("theorem-9", curve="nobody")]}
    check_figure(unknown)
    with pytest.raises(InputError, match="unknown curve"):
        check_figure(unknown, ["open"])
    check_figure({"line": [line_of("theorem-9")]}, ["open"])


def test_the_sketch_shows_every_curve_and_ends_at_the_largest_regret(source: Source) -> None:
    text = ascii_plot(source)
    for mark, curve in zip("abcdef", source.results.curves, strict=False):
        assert f"{mark} {curve.label}" in text
    # The regret is the one on the figure's y axis.
    top = max(regret(source, c)[0].max() for c in source.results.curves)
    lines = text.splitlines()
    assert lines[1].split("|")[0].strip() == f"{top:.4g}"
    assert lines[1].rstrip()[-1] in "abcdef"  # the worst curve ends in the upper right corner
    assert all(len(line) <= 88 for line in lines)
