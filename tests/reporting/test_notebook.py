"""Plots, records, frames and HTML for notebooks: their numbers are those of the results."""

from __future__ import annotations

import builtins
import html.parser
import io
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate
from fastfed.privacy.audit.bounds import AuditResult
from fastfed.privacy.certificate import as_text, rounded_down, rounded_up
from fastfed.reporting.axes import METRICS
from fastfed.reporting.table import EVENTS, plus_minus, table_rows
from fastfed.results import results as columns
from fastfed.results.results import CurveResult, Results

HOSTILE = '<script>alert("x")</script> & $x_y$'
LEVELS = ("summary", "curves", "replicates")


@pytest.fixture(scope="module")
def results() -> Results:
    """Return results with private curves, an unproven one, one without privacy, and one alone."""
    private = {"algorithm": "private-fedlinucb", "delta": 1e-5, "batch_size": 10}
    return fastfed.simulate(
        {"kind": "sphere", "dimension": 3, "actions": 5},
        curves=[
            {"label": "open", "algorithm": "fedlinucb", "batch_size": 20},
            {"label": "lazy", "epsilon": [0.5, 1.5], **private},
            {"label": HOSTILE, "epsilon": 1.0, "lazy": False, **private},
            {"label": "_alone", "algorithm": "local-linucb"},
        ],
        horizon=60,
        silos=4,
        replicates=3,
        checkpoints=6,
    )


@pytest.fixture
def pyplot() -> Any:
    """Return pyplot without a display, and close all figures afterwards."""
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def bounded(results: Results, height: float = 1.5, **figure: Any) -> Results:
    """Return the results; their first curve has one bound of regret, one of synchronisations."""
    top = max(float((c.mean + 2 * c.stderr).max()) for c in results.curves)
    first, *others = results.curves
    bounds = {"b": [height * top] * 6, "synchronisations-b": [9.0] * 6}
    return replace(results, curves=(replace(first, bounds=bounds), *others), figure=figure)


def one_replicate(curve: CurveResult) -> CurveResult:
    """Return the curve with its first replicate only."""
    names = ("synchronisation_counts", "bits_up_counts", "bits_down_counts", "group_regret")
    return replace(curve, replicates=(0,), **{name: getattr(curve, name)[:1] for name in names})


def hide_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Hide a package, as if it were not installed."""
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        """Import as usual, but fail for the hidden package."""
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)


class TestPlot:
    @pytest.mark.parametrize(
        ("metric", "divisor", "label"),
        [
            (None, 1.0, "group regret"),
            ("group_regret", 1.0, "group regret"),
            ("per_silo_regret", 4.0, "regret per silo"),
            ("time_average_regret", np.arange(10, 61, 10), "time-averaged group regret"),
        ],
    )
    def test_lines_and_bands_are_the_results(self, results, pyplot, metric, divisor, label):
        axes = results.plot(metric=metric)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", label)
        assert axes.get_xlim() == (0, 60) and axes.get_ylim()[0] == 0
        lines, bands = axes.get_lines(), axes.collections
        for curve, line, band in zip(results.curves, lines, bands, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), curve.rounds)
            np.testing.assert_array_equal(line.get_ydata(), curve.mean / divisor)
            corners = band.get_paths()[0].vertices
            for sign in (-1, 1):
                edge = curve.mean / divisor + sign * 2 * curve.stderr / divisor
                for point in zip(curve.rounds, edge, strict=True):
                    assert np.isclose(corners, point, rtol=1e-12).all(axis=1).any()

    @pytest.mark.parametrize(
        ("metric", "values"),
        [
            ("synchronisations", lambda c: c.synchronisation_counts),
            ("bits", lambda c: c.bits_up_counts + c.bits_down_counts),
            ("bits_up", lambda c: c.bits_up_counts),
            ("bits_down", lambda c: c.bits_down_counts),
            ("bytes", lambda c: c.bits_up_counts / 8 + c.bits_down_counts / 8),
            ("bytes_up", lambda c: c.bits_up_counts / 8),
            ("bytes_down", lambda c: c.bits_down_counts / 8),
        ],
    )
    def test_counts_are_those_of_the_results(self, results, pyplot, metric, values):
        axes = results.plot(metric=metric)
        for curve, line in zip(results.curves, axes.get_lines(), strict=True):
            np.testing.assert_array_equal(line.get_ydata(), values(curve).mean(axis=0))
        assert axes.get_lines()[0].get_ydata()[-1] > 0

    def test_counts_that_differ_have_a_band(self, results, pyplot):
        counts = np.array([[1, 2, 3, 4, 5, 6], [1, 3, 5, 7, 9, 11], [1, 4, 7, 10, 13, 16]])
        curve = replace(results.curves[1], synchronisation_counts=counts)
        axes = curve.plot(metric="synchronisations")
        corners = axes.collections[0].get_paths()[0].vertices
        # At the last round 6, 11 and 16: mean 11, standard deviation 5, error 5 / sqrt(3).
        assert corners[:, 1].max() == pytest.approx(11 + 10 / math.sqrt(3))
        assert axes.get_lines()[0].get_ydata()[-1] == 11

    def test_lines_equal_those_of_the_report(self, results, pyplot):
        """Compare colours, dashes, widths and data with the plot that `fastfed report` writes."""
        from matplotlib.figure import Figure

        from fastfed.reporting.charts import charts_of
        from fastfed.reporting.figure import in_memory
        from fastfed.reporting.plotting import draw_chart

        axes = Figure().add_subplot()
        draw_chart(axes, charts_of(in_memory(results)).regret[0])
        for ours, theirs in zip(results.plot().get_lines(), axes.get_lines(), strict=True):
            for name in ("xydata", "color", "linewidth"):
                np.testing.assert_array_equal(
                    getattr(ours, f"get_{name}")(), getattr(theirs, f"get_{name}")()
                )
            assert ours._unscaled_dash_pattern == theirs._unscaled_dash_pattern

    def test_the_legend_names_curves_and_privacy(self, results, pyplot):
        texts = [t.get_text() for t in results.plot().get_legend().get_texts()]
        assert texts[0] == "open:  not private"
        assert texts[1] == "lazy, ε = 0.5:  (0.5, 1e-05)"
        assert texts[3].startswith('<script>alert("x")</script> & \\$x_y\\$:')
        assert "unproven" in texts[3]
        # A space comes first, because Matplotlib omits labels that begin with an underscore.
        assert texts[4] == " _alone:  sends nothing: epsilon 0"

    def test_chosen_curves_keep_their_colours(self, results, pyplot):
        whole = results.plot().get_lines()
        some = results.plot(curves=["_alone", "lazy, epsilon = 1.5"]).get_lines()
        assert [line.get_color() for line in some] == [whole[2].get_color(), whole[4].get_color()]
        np.testing.assert_array_equal(some[0].get_ydata(), results.curves[2].mean)

    def test_curves_plotted_one_by_one_get_different_colours(self, results, pyplot):
        _, axes = pyplot.subplots()
        for label in ("lazy, epsilon = 0.5", "lazy, epsilon = 1.5", HOSTILE):
            assert results[label].plot(axes) is axes
        lines = axes.get_lines()
        whole = results.plot().get_lines()[1:4]
        assert [x.get_color() for x in lines] == [x.get_color() for x in whole]
        assert len(axes.get_legend().get_texts()) == 3

    def test_given_axes_keep_what_they_have(self, results, pyplot):
        _, axes = pyplot.subplots()
        axes.plot([0, 300], [0, 1e6], label="mine")
        results.plot(axes)
        assert axes.get_xlim()[1] >= 300 and axes.get_ylim()[1] >= 1e6
        assert axes.get_legend().get_texts()[0].get_text() == "mine"
        assert axes.get_title() == axes.get_title(loc="left") == ""

    def test_axes_grow_for_a_second_result(self, results, pyplot):
        tall = replace(
            results.curves[1], label="tall", group_regret=results.curves[1].group_regret * 9
        )
        axes = results.plot()
        tall.plot(axes)
        assert axes.get_ylim()[1] > float(tall.mean.max()) > float(results.curves[1].mean.max())

    def test_one_replicate_has_no_band(self, results, pyplot):
        axes = one_replicate(results.curves[0]).plot()
        assert len(axes.get_lines()) == 1 and not axes.collections

    def test_the_figure_of_the_spec_sets_axis_and_title(self, results, pyplot):
        with_figure = replace(results, figure={"y": "per-silo", "title": "A title"})
        axes = with_figure.plot()
        assert axes.get_ylabel() == "regret per silo" and axes.get_title(loc="left") == "A title"
        assert with_figure.plot(metric="group_regret").get_ylabel() == "group regret"

    def test_bounds_are_drawn_on_request(self, results, pyplot):
        stored = bounded(results)
        assert len(stored.plot().get_lines()) == 5
        *_, line = stored.plot(bounds=True, metric="per_silo_regret").get_lines()
        np.testing.assert_array_equal(line.get_ydata(), np.array(stored.curves[0].bounds["b"]) / 4)
        assert line.get_label() == "open: b"
        asked = {"label": "Theorem 1", "curve": "open", "bound": "b"}
        named = bounded(results, line=[asked])
        assert len(named.plot().get_lines()) == 5
        assert named.plot(bounds=True).get_lines()[-1].get_label() == "Theorem 1"
        assert len(named.plot(bounds=True, curves=["_alone"]).get_lines()) == 1

    def test_a_bound_off_the_picture_is_named(self, results, pyplot):
        axes = bounded(results, height=1000.0).plot(bounds=True)
        assert len(axes.get_lines()) == 5
        assert axes.get_legend().get_texts()[-1].get_text().startswith("above the plot: open: b =")

    @pytest.mark.parametrize(
        "log", [*(pytest.param(axes, marks=pytest.mark.slow) for axes in ("", "x", "y")), "xy"]
    )
    @pytest.mark.parametrize("metric", METRICS)
    def test_logarithmic_axes(self, results, pyplot, log, metric):
        axes = results.plot(metric=metric, log=log)
        assert axes.get_xscale() == ("log" if "x" in log else "linear")
        assert axes.get_yscale() == ("log" if "y" in log else "linear")
        axes.figure.savefig(io.BytesIO())

    def test_drawing_leaves_the_style_alone(self, results, pyplot):
        import matplotlib

        before = dict(matplotlib.rcParams)
        results.plot()
        assert dict(matplotlib.rcParams) == before

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"metric": "group_regert"}, 'did you mean "group_regret"?'),
            ({"log": "both"}, "log must be one of"),
            ({"log": True}, "log must be one of"),
            ({"bounds": "yes"}, "bounds must be true or false, got 'yes'"),
            ({"curves": ["opne"]}, "unknown curve 'opne' in curves; did you mean \"open\"?"),
            ({"curves": "open"}, "curves must be a list of labels, got 'open'"),
            ({"curves": []}, "curves must have at least one label"),
            ({"bounds": True, "metric": "bits"}, 'need a metric of regret, got metric "bits"'),
        ],
    )
    def test_bad_input_is_one_sentence(self, results, arguments, words):
        with pytest.raises(InputError) as error:
            results.plot(**arguments)
        assert words in str(error.value)

    def test_results_without_curves_cannot_be_drawn(self, results):
        with pytest.raises(InputError, match="must have a curve"):
            replace(results, curves=()).plot()

    def test_without_matplotlib(self, results, monkeypatch):
        hide_package(monkeypatch, "matplotlib")
        with pytest.raises(InputError) as error:
            results.curves[0].plot()
        assert str(error.value) == (
            'plot needs matplotlib, which is not installed: pip install "fastfed[figures]"'
        )


class TestRecords:
    def test_summary_is_the_json(self, results):
        rows = results.to_records()
        for row, curve, stored in zip(
            rows, results.curves, results.to_builtins()["curves"], strict=True
        ):
            assert (row["experiment"], row["horizon"]) == ("simulation", 60)
            sizes = ("label", "algorithm", "protocol", "silos", "dimension", "replicates")
            sent = ("synchronisations", "bits_up", "bits_down", "bytes_up", "bytes_down")
            for name in (*sizes, *sent):
                assert row[name] == stored[name], name
            for name in ("group_regret", "per_silo_regret", "time_average_regret"):
                assert row[f"{name}_mean"] == stored[name]["mean"]
                assert row[f"{name}_stderr"] == stored[name]["stderr"]
            assert row["privacy_status"] == curve.certificate["status"]
        by_label = {row["label"]: row for row in rows}
        assert (
            by_label["open"]["claimed_epsilon"] is None
            and by_label["open"]["exact_epsilon"] is None
        )
        assert by_label["lazy, epsilon = 1.5"]["claimed_epsilon"] == 1.5
        exact = results["lazy, epsilon = 1.5"].certificate["exact"]
        assert by_label["lazy, epsilon = 1.5"]["exact_epsilon"] == exact["epsilon"]
        assert (
            by_label[HOSTILE]["claimed_epsilon"] == 1.0
            and by_label[HOSTILE]["exact_epsilon"] is None
        )

    def test_level_curves_has_one_row_per_checkpoint(self, results):
        rows = results.to_records("curves")
        assert len(rows) == 5 * 6
        for i, curve in enumerate(results.curves):
            curve_rows = rows[6 * i : 6 * (i + 1)]
            assert {row["label"] for row in curve_rows} == {curve.label}
            assert [row["round"] for row in curve_rows] == [10, 20, 30, 40, 50, 60]
            for name, divisor in (("group_regret", 1), ("per_silo_regret", 4),
                                  ("time_average_regret", curve.rounds)):  # fmt: skip
                assert [r[f"{name}_mean"] for r in curve_rows] == list(curve.mean / divisor)
                assert [r[f"{name}_stderr"] for r in curve_rows] == list(curve.stderr / divisor)
            assert [row["synchronisations"] for row in curve_rows] == curve.synchronisations_curve
            assert [row["bytes_up"] + row["bytes_down"] for row in curve_rows] == curve.bytes_curve
            assert curve_rows[-1]["bits_up"] == curve.bits_up

    def test_level_replicates_has_every_number(self, results):
        rows = results.to_records("replicates")
        assert len(rows) == 5 * 3 * 6
        for i, curve in enumerate(results.curves):
            for r in range(3):
                curve_rows = rows[18 * i + 6 * r : 18 * i + 6 * (r + 1)]
                assert {(row["label"], row["replicate"]) for row in curve_rows} == {
                    (curve.label, r)
                }
                assert [row["round"] for row in curve_rows] == [10, 20, 30, 40, 50, 60]
                assert [row["group_regret"] for row in curve_rows] == list(curve.group_regret[r])
                assert [row["per_silo_regret"] for row in curve_rows] == list(
                    curve.group_regret[r] / 4
                )
                for name, counts in curve.counts.items():
                    assert [row[name] for row in curve_rows] == list(counts[r])

    def test_replicates_keep_their_numbers(self, results):
        """Use a store that holds some replicates only."""
        curve = replace(results.curves[0], replicates=(0, 4, 7))
        numbers = [row["replicate"] for row in curve.to_records("replicates")]
        assert numbers == [0] * 6 + [4] * 6 + [7] * 6

    def test_bounds_are_columns_of_the_curves_that_have_them(self, results):
        rows = bounded(results).to_records("curves")
        assert [row["bound_b"] for row in rows[:6]] == bounded(results).curves[0].bounds["b"]
        assert {row["bound_b"] for row in rows[6:]} == {None}

    @pytest.mark.parametrize("level", LEVELS)
    def test_rows_are_plain_and_alike(self, results, level):
        rows = results.to_records(level)
        assert json.loads(json.dumps(rows)) == rows
        assert {tuple(row) for row in rows} == {tuple(rows[0])}
        of_one_curve = results.curves[1].to_records(level)
        curve_rows = [row for row in rows if row["label"] == results.curves[1].label]
        names = set(of_one_curve[0])
        assert [{k: v for k, v in row.items() if k in names} for row in curve_rows] == of_one_curve
        # A curve without the others has no baseline.
        comparison_keys = {"baseline", "difference_mean", "difference_stderr"}
        assert set(curve_rows[0]) - names - comparison_keys == {"experiment", "horizon"}
        assert comparison_keys <= set(curve_rows[0]) or level != "summary"

    def test_one_replicate_has_no_standard_error(self, results):
        curve = one_replicate(results.curves[0])
        assert curve.to_records()[0]["group_regret_stderr"] is None
        assert {row["group_regret_stderr"] for row in curve.to_records("curves")} == {None}

    def test_no_curves_no_rows(self, results):
        assert [replace(results, curves=()).to_records(level) for level in LEVELS] == [[], [], []]

    def test_an_unknown_level_is_refused(self, results):
        for call in (results.to_records, results.to_frame, results.curves[0].to_records):
            with pytest.raises(InputError, match=r'level must be one of .*did you mean "curves"'):
                call("curve")

    def test_events_are_those_the_table_explains(self):
        assert tuple(EVENTS) == columns.EVENTS


class TestFrame:
    @pytest.mark.parametrize(
        ("level", "rows"), [("summary", 5), ("curves", 30), ("replicates", 90)]
    )
    def test_values_are_those_of_the_records(self, results, level, rows):
        pandas = pytest.importorskip("pandas")
        frame, records = results.to_frame(level), results.to_records(level)
        assert isinstance(frame, pandas.DataFrame)
        assert frame.shape == (rows, len(records[0])) and list(frame.columns) == list(records[0])
        for name in frame.columns:
            wanted = [row[name] for row in records]
            if any(isinstance(value, str) for value in wanted):
                known = frame[name].astype(object).where(frame[name].notna(), None)
                assert known.tolist() == wanted
            else:
                assert frame[name].dtype.kind in "ifb"
                numbers = [math.nan if v is None else v for v in wanted]
                np.testing.assert_array_equal(frame[name].to_numpy(np.float64), numbers)

    def test_grouped_means_are_those_of_the_curves(self, results):
        pytest.importorskip("pandas")
        frame = results.to_frame("replicates")
        table = frame.pivot_table(index="round", columns="label", values="group_regret")
        for curve in results.curves:
            np.testing.assert_allclose(table[curve.label], curve.mean, rtol=1e-13)

    def test_without_pandas(self, results, monkeypatch):
        hide_package(monkeypatch, "pandas")
        for shown in (results, results.curves[0]):
            with pytest.raises(InputError) as error:
                shown.to_frame()
            assert str(error.value) == (
                'to_frame needs pandas, which is not installed: pip install "fastfed[export]" '
                "(to_records needs nothing)"
            )


class Reader(html.parser.HTMLParser):
    """Read tags and text of a page, and check that tags are closed in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read(value: Any) -> Reader:
    """Return the parsed and checked HTML of a value."""
    page = Reader(value._repr_html_())
    assert not page.open
    return page


def printed(value: Any, width: int = 200) -> str:
    """Return the text that rich prints for a value."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    console.print(value)
    return console.file.getvalue()


class TestLooks:
    def test_results_show_the_table_of_the_report(self, results):
        from fastfed.reporting.figure import in_memory

        page, text = read(results), printed(results)
        for row in table_rows(in_memory(results)):
            for cell in row[:8]:
                assert cell in page.texts
            for cell in row[:6]:
                assert cell in text
        assert plus_minus(results.curves[0].mean[-1], results.curves[0].stderr[-1]) in text

    def test_labels_are_escaped(self, results):
        for shown in (results, results[HOSTILE]):
            assert "<script" not in shown._repr_html_()
            assert HOSTILE in read(shown).texts
        titled = replace(results, figure={"title": HOSTILE})
        assert "<script" not in titled._repr_html_() and HOSTILE in read(titled).texts

    def test_certificates_are_escaped(self, results):
        stored = {**results.curves[1].certificate, "caveats": [HOSTILE]}
        curve = replace(results.curves[1], certificate=stored)
        for shown in (curve, curve.certificate):
            assert "<script" not in shown._repr_html_()
            assert f"Caveat: {HOSTILE}." in read(shown).text

    def test_labels_are_no_markup(self, results):
        curve = replace(results.curves[0], label="[red]a[/red] [b]")
        assert "[red]a[/red] [b]" in printed(replace(results, curves=(curve,)))
        assert "[red]a[/red] [b]" in printed(curve)

    def test_html_is_small(self, results):
        assert len(results._repr_html_()) < 4000 + 600 * len(results.curves)
        assert len(results.curves[1]._repr_html_()) < 10_000

    def test_the_text_repr_is_short(self, results):
        assert repr(results).startswith("<Results of simulation: 4 silos, 60 rounds>\n  <open: ")
        assert repr(results.curves[0]).startswith("<open: group regret ")

    def test_results_without_curves(self, results):
        empty = replace(results, curves=())
        assert "No replicate has run to its end yet." in read(empty).texts
        assert "simulation" in printed(empty)

    def test_a_stored_certificate_stays_plain_data(self, results):
        stored = results.curves[1].certificate
        plain = dict(stored)
        assert isinstance(stored, dict) and stored == plain
        assert json.dumps(stored) == json.dumps(plain)
        assert msgspec.json.encode(stored) == msgspec.json.encode(plain)
        unpickled = pickle.loads(pickle.dumps(results.curves[1]))
        assert unpickled.certificate == plain and unpickled.certificate._repr_html_()

    def test_a_stored_certificate_prints_as_the_certificate_does(self, results):
        stored = results["lazy, epsilon = 0.5"].certificate
        assert str(stored) == as_text(stored) and "status      proven" in f"{stored}"
        assert repr(stored) == repr(dict(stored))

    def test_a_proven_certificate_in_sentences(self, results):
        stored = results["lazy, epsilon = 0.5"].certificate
        exact = f"epsilon {rounded_up(stored['exact']['epsilon'])}, delta 1e-05"
        for text in (read(stored).text, " ".join(printed(stored).split())):
            assert f"Proven: {exact}, for everything that is released." in text
            assert "Claimed: epsilon 0.5, delta 1e-05." in text
            assert "Protected: one user, replaced by any other. Trust: silo-level local" in text
            assert f"All {len(stored['conditions'])} conditions hold." in text
            assert "Caveat: simulation:" in text

    def test_an_unproven_certificate_has_no_number_but_the_claim(self, results):
        stored = results[HOSTILE].certificate
        for text in (read(stored).text, printed(stored)):
            assert "Unproven: no proof covers this run" in text
            assert "Fails: actions depend on released statistics only" in text
            assert "Proven:" not in text and "conditions hold" not in text
            assert "Also, proven: epsilon 1, delta 1e-05, for one item" in text

    def test_what_holds_only_under_broken_assumptions_is_not_called_proven(self):
        """Check FedUCB, whose schedule breaks the assumptions of its guarantees."""
        system = fastfed.make_system(
            "feducb", silos=2, horizon=50, dimension=3, epsilon=1.0, delta=1e-6
        )
        assert {side.status for side in system.certificate.also} == {"conditional"}
        for text in (" ".join(printed(system).split()), read(system).text):
            assert "None: no finite epsilon holds." in text
            assert text.count("Also, conditional: epsilon 1, delta 1e-06") == 2
            assert "fails here: synchronisation rounds do not depend on data" in text
            assert "Also, proven" not in text
        assert repr(system) == "<feducb, silo-ldp-prefix: 2 silos, 50 rounds, privacy none>"

    def test_a_certificate_without_privacy_says_so(self, results):
        for text in (read(results["open"]).text, printed(results["open"])):
            assert "Nothing is claimed, and no privacy holds." in text
            assert "Proven:" not in text and "Claimed:" not in text

    @pytest.mark.parametrize("label", ["open", "lazy, epsilon = 0.5", HOSTILE])
    def test_nothing_of_a_certificate_is_left_out(self, results, label):
        stored = results[label].certificate
        page = read(stored)
        for each in (stored, *stored["also"]):
            texts = [each["model"], each["source"], each["unit"], each["relation"]]
            for text in (*texts, *each["caveats"], *(c["text"] for c in each["conditions"])):
                assert text in page.text

    def test_a_certificate_is_the_same_stored_or_not(self):
        system = fastfed.make_system(
            "private-fedlinucb", silos=2, horizon=100, dimension=3, batch_size=10, epsilon=1.0,
            delta=1e-6,
        )  # fmt: skip
        curve = fastfed.simulate(
            {"kind": "sphere", "dimension": 3, "actions": 4}, "private-fedlinucb", silos=2,
            horizon=100, batch_size=10, epsilon=1.0, delta=1e-6,
        ).curves[0]  # fmt: skip
        assert "Proven: epsilon 1, delta 1e-06" in read(system.certificate).text
        assert read(system.deployed_certificate).texts[-1] == read(system).texts[-1]
        assert "M = 2 silos, T = 100 rounds" in read(system).text
        # The certificate shown with parties is for their noise, not for simulated noise.
        assert "Caveat: simulation" not in read(system).text
        assert "Caveat: simulation" in read(curve.certificate).text
        for side in system.certificate.also:
            assert "Proven:" in read(side).text
            assert "Proven:" in printed(side)

    def test_ipython_prints_certificates_as_text(self, results):
        pretty = pytest.importorskip("IPython.lib.pretty")
        system = fastfed.make_system("fedlinucb", silos=2, horizon=20, dimension=3, batch_size=10)
        stored = results.curves[1].certificate
        for certificate in (stored, system.certificate):
            assert pretty.pretty(certificate) == as_text(certificate)
        assert pretty.pretty(results) == repr(results)

    @pytest.mark.parametrize(
        ("bound", "verdict", "words"),
        [
            (0.98765, "pass", "Pass: these runs did not refute"),
            (2.0, "caught", "Caught: the claim"),
        ],
    )
    def test_an_audit_in_sentences(self, bound, verdict, words):
        audit = AuditResult("<b>", 0.01, 1.0, bound, 0.95, 4000, verdict)
        for text in (read(audit).text, printed(audit)):
            assert words in text and "4000 runs on each of two neighbouring datasets" in text
            assert f"epsilon is at least {'0.9876' if bound < 1 else 2} at delta 0.01" in text
            assert "with 95 % confidence; claimed is 1." in text
            assert ("does not prove privacy" in text) == (verdict == "pass")
        assert "Audit of <b>" in read(audit).texts

    def test_a_calibration_in_sentences(self):
        actual = calibrate("gaussian-tree", Budget(1.0, 1e-6), 40)
        for text in (read(actual).text, printed(actual, 400)):
            assert f"Noise of standard deviation {actual.noise_std:.6g} for epsilon 1" in text
            assert "relation replace, 40 releases." in text and actual.source in text

    @pytest.mark.parametrize(
        ("value", "down"), [(0.0, "0"), (0.1, "0.1"), (1.23459, "1.234"), (12345.6, "12340")]
    )
    def test_a_lower_bound_is_rounded_down(self, value, down):
        assert rounded_down(value) == down


def test_loaded_results_look_the_same(tmp_path: Path) -> None:
    spec = {
        "name": "stored", "horizon": 40, "silos": 2, "replicates": 2, "checkpoints": 4,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 4},
        "curve": [{"label": "a", "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5,
                   "batch_size": 10}],
    }  # fmt: skip
    from fastfed.simulation.experiment import experiment_from_spec

    played = fastfed.run(experiment_from_spec(spec), tmp_path / "out")
    loaded = fastfed.load(tmp_path / "out")
    for level in LEVELS:
        assert loaded.to_records(level) == played.to_records(level)
    assert loaded._repr_html_() == played._repr_html_()
    assert loaded.to_records()[0]["agent_rounds_per_second"] > 0
    assert loaded.curves[0].certificate._repr_html_()


def test_importing_fastfed_loads_neither_pandas_nor_matplotlib_nor_the_report():
    import subprocess
    import sys

    code = (
        "import sys, fastfed, fastfed.results.results, fastfed.privacy.certificate\n"
        "names = ('pandas', 'matplotlib', 'rich', 'fastfed.reporting')\n"
        "print([m for m in names if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
