"""Tables, figure and certificates: what they say, and that the same results give the same bytes."""

from __future__ import annotations

import csv
import io
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.environments import Sphere
from fastfed.privacy.certificate import as_text
from fastfed.report import table
from fastfed.report.canvas import COLOURS, NOT_PRIVATE, line_styles
from fastfed.report.certificates import certificates_text
from fastfed.report.communication import draw_communication, sends
from fastfed.report.figure import draw
from fastfed.report.keys import check_figure
from fastfed.report.privacy_words import privacy_words
from fastfed.report.sketch import sketch
from fastfed.report.source import Source, read_source, spaced
from fastfed.report.table import plus_minus, rate, sent, times
from fastfed.report.write import write_report
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.run import run


def an_experiment(**figure: Any) -> Experiment:
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
    path = tmp_path_factory.mktemp("report") / "out"
    run(an_experiment(title="Small, and $quare", note="one note", y="time-average"), path)
    return path


@pytest.fixture
def source(folder: Path) -> Source:
    return read_source(folder)


def test_source_names_the_setting(source: Source) -> None:
    assert source.title == "Small, and $quare"
    assert source.setting == (
        "M = 4 silos, T = 60 rounds, d = 3, B = 20 | 10, radius multiplier 1 | 0.5"
    )
    assert source.replicates == "3 replicates"
    assert source.notes == ("one note",)
    assert len(source.results.curves[0].replicates) == 3


def test_source_takes_the_first_replicates(folder: Path, source: Source) -> None:
    two = read_source(folder, 2)
    assert two.replicates == "2 replicates"
    for a, b in zip(two.results.curves, source.results.curves, strict=True):
        np.testing.assert_array_equal(a.group_regret, b.group_regret[:2])


def test_text_table_has_the_numbers_of_the_results(source: Source) -> None:
    lines = table.as_text(source).splitlines()
    assert lines[0] == source.title
    for curve, line in zip(source.results.curves, lines[5:], strict=False):
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
    by = {r["label"]: r for r in rows}
    assert (by["open"]["claimed_epsilon"], by["open"]["exact_epsilon"]) == ("", "")
    assert by["lazy, epsilon = 1.5"]["claimed_epsilon"] == "1.5"
    assert (by["eager"]["exact_epsilon"], by["eager"]["privacy_status"]) == ("", "unproven")


def test_table_says_what_happened(source: Source) -> None:
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
def test_privacy_in_a_few_words(stored: dict[str, Any], short: str) -> None:
    assert privacy_words(stored).short == short


def test_certificates_are_those_of_the_experiment(source: Source) -> None:
    curves = source.results.curves
    text = certificates_text((c.label, c.certificate) for c in curves)
    for curve in an_experiment().curves:
        heading = f"{curve.label}\n{'=' * len(curve.label)}\n"
        assert heading + as_text(curve.system.certificate) in text


def test_figure_is_a_png_and_an_svg_and_deterministic(source: Source) -> None:
    first, second = draw(source), draw(source)
    assert first == second
    assert set(first) == {"png", "svg", "page.svg"}
    assert first["png"].startswith(b"\x89PNG")
    assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")
    assert b"<dc:date>" not in first["svg"]


def drawn(patch: pytest.MonkeyPatch, source: Source) -> list[tuple[Any, Any]]:
    """Bytes and regret of every line in the picture of communication."""
    from fastfed.report import canvas, communication

    seen: list[tuple[Any, Any]] = []

    def recorded(axes: Any, x: Any, mean: Any, spread: Any, style: Any) -> Any:
        seen.append((x, mean))
        return original(axes, x, mean, spread, style)

    original = canvas.draw_line
    patch.setattr(communication.canvas, "draw_line", recorded)
    draw_communication(source, ["svg"])
    return seen


def test_communication_begins_at_the_first_message_and_ends_at_the_total(source: Source) -> None:
    """What is drawn, read back from the axes: bytes of the schedule against the store's regret."""
    with pytest.MonkeyPatch.context() as patch:
        seen = drawn(patch, source)
    pictures = draw_communication(source)
    assert pictures == draw_communication(source)
    assert pictures["png"].startswith(b"\x89PNG")
    curves = source.results.curves
    # The lonely silos send nothing, and have no line.
    assert len(seen) == len(curves) - 1 and curves[-1].bytes_sent == 0
    plans = [c.system.plan for c in an_experiment().curves]
    for curve, plan, (x, mean) in zip(curves[:-1], plans, seen, strict=False):
        begun = curve.rounds >= plan.batch_size
        each = 2 * 8 * 4 * (3 + 6)  # both ways, float64, silos, entries of u and V
        np.testing.assert_array_equal(x, each * (curve.rounds[begun] // plan.batch_size))
        np.testing.assert_array_equal(mean, curve.mean[begun] / curve.rounds[begun])
        assert x[-1] == curve.bytes_up + curve.bytes_down == curve.bytes_sent


def test_no_picture_of_communication_where_nobody_sends(source: Source, tmp_path: Path) -> None:
    alone = replace(source, results=replace(source.results, curves=source.results.curves[-1:]))
    assert sends(source) and not sends(alone)
    written = {p.name for p in write_report(alone, tmp_path)}
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
    """By hand: 12, 12 and 13 synchronisations of 100 bits from and to all silos."""
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
    with pytest.MonkeyPatch.context() as patch:
        x = drawn(patch, changed)[0][0]
    # One replicate has sent by the second checkpoint, and another not.
    whole = 2 * np.ceil(100 * counts[:, 1:] / 8)
    np.testing.assert_allclose(x, whole.mean(axis=0))


def test_what_was_sent_stands_in_table_and_csv(source: Source) -> None:
    rows = list(csv.DictReader(io.StringIO(table.as_csv(source))))
    assert [row["synchronisations"] for row in rows] == ["3", "6", "6", "6", "0"]
    for row, curve in zip(rows, source.results.curves, strict=True):
        assert int(row["bits_up"]) == 8 * int(row["bytes_up"]) == curve.bits_up
        assert int(row["bytes_down"]) == curve.bytes_down
        assert curve.bytes_curve[-1] == curve.bytes_sent
        assert len(curve.bytes_curve) == len(curve.rounds)
    lines = table.as_text(source).splitlines()[5:]
    # 60 / 20 releases of 9 entries of 8 bytes, 4 silos, both ways.
    assert " 3   1.7 kB" in lines[0] and 3 * 9 * 8 * 4 * 2 == 1728
    assert " 0  nothing" in lines[4]


def test_drawing_leaves_no_trace(source: Source) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(source)
    draw_communication(source)
    assert dict(matplotlib.rcParams) == before


def test_figure_shows_what_the_spec_asks_for(source: Source) -> None:
    figure = {**source.results.figure, "y": "cumulative"}
    cumulative = replace(source, results=replace(source.results, figure=figure))
    assert draw(cumulative)["png"] != draw(source)["png"]
    without = replace(source, results=replace(source.results, figure={**figure, "note": []}))
    assert draw(without)["png"] != draw(cumulative)["png"]


def test_figure_of_one_replicate_and_odd_labels(folder: Path) -> None:
    one = read_source(folder, 1)
    curves = tuple(
        replace(c, label=label)
        for c, label in zip(
            one.results.curves, ["_x", "$a", "\\frac", "[b]", "é" * 200], strict=True
        )
    )
    odd = replace(one, results=replace(one.results, curves=curves))
    assert draw(odd)["png"].startswith(b"\x89PNG")


def test_lines_can_be_told_apart(source: Source) -> None:
    private = source.results.curves[1]
    styles = line_styles((source.results.curves[0], *[private] * 20))
    assert len({(s["color"], str(s["linestyle"])) for s in styles}) == 21
    assert styles[0]["color"] == NOT_PRIVATE
    assert {s["color"] for s in styles[1:]} == set(COLOURS)


def test_write_report_before_the_first_replicate(source: Source, tmp_path: Path) -> None:
    empty = replace(source, results=replace(source.results, curves=()))
    written = {p.name for p in write_report(empty, tmp_path)}
    assert written == {"table.txt", "table.csv", "certificates.txt", "report.html"}
    assert "no replicate is played" in (tmp_path / "table.txt").read_text()


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
    ],
)
def test_bad_figure_tables(figure: Any) -> None:
    with pytest.raises(InputError, match="figure"):
        check_figure(figure)


def test_good_figure_tables() -> None:
    check_figure({})
    check_figure({"title": "t", "y": "cumulative", "note": ["a", "b"], "panels": [], "full": {}})


def test_the_sketch_shows_every_curve_and_ends_at_the_largest_regret(source: Source) -> None:
    text = sketch(source)
    for mark, curve in zip("abcdef", source.results.curves, strict=False):
        assert f"{mark} {curve.label}" in text
    top = max(c.mean.max() for c in source.results.curves)
    lines = text.splitlines()
    assert lines[1].split("|")[0].strip() == f"{top:.4g}"
    assert lines[1].rstrip()[-1] in "abcdef"  # the worst curve ends in the upper right corner
    assert all(len(line) <= 88 for line in lines)
