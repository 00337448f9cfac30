"""Differences to a baseline (whether sharing pays): by hand, and in every output that has them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import fastfed
from fastfed import InputError
from fastfed.cli import cli
from fastfed.reporting.charts import charts_of
from fastfed.reporting.figure import in_memory
from fastfed.reporting.sharing import notes_on_curves, sharing_sentence
from fastfed.reporting.table import HEADINGS, as_csv, as_text, table_rows, used_columns

CURVES = [
    {"label": "open", "algorithm": "fedlinucb", "batch_size": 10},
    {
        "label": "server",
        "algorithm": "private-fedlinucb",
        "protocol": "central",
        "epsilon": [1.0, 50.0],
        "delta": 1e-6,
        "batch_size": 10,
    },
    {"label": "alone", "algorithm": "local-linucb"},
    {"label": "dice", "algorithm": "random"},
]
WORLD = {"kind": "sphere", "dimension": 3, "actions": 5}


@pytest.fixture(scope="module")
def played():
    """Return the results of the curves with three replicates."""
    return fastfed.simulate(WORLD, curves=CURVES, silos=4, horizon=80, replicates=3)


def with_finals(results, **finals):
    """Replace the final regrets of curves by the given ones, one for each replicate."""
    curves = []
    for curve in results.curves:
        if curve.label in finals:
            regret = curve.group_regret.copy()
            regret[:, -1] = finals[curve.label]
            curves.append(replace(curve, group_regret=regret))
    return replace(results, curves=tuple(curves))


def test_the_sentence_by_hand(played):
    # Differences to 10, 20, 30 are -4, -5, -6 (mean -5, standard error 1 / sqrt 3 = 0.577; with 3
    # replicates the limit is 4.53 of these, 2.61) and +1, +9, -4 (mean 2, standard error 3.79).
    finals = {"open": [6, 15, 24], "server, epsilon = 1.0": [11, 29, 26], "alone": [10, 20, 30]}
    # The sentence leaves out "dice", because random actions share nothing.
    result = with_finals(played, **finals, dice=[50, 60, 70])
    assert sharing_sentence(result) == (
        "Against alone (20), sharing pays for open (-5.00 ± 0.58); it is undecided for "
        "server, epsilon = 1.0 (+2.0 ± 3.8)."
    )
    result = with_finals(played, open=[15, 25, 35], alone=[10, 20, 30])
    # Equal differences have no error.
    assert sharing_sentence(result).startswith(
        "Against alone (20), sharing does not pay for open (+5"
    )
    assert (
        result.paired_difference("open") == result.paired_difference("open", "alone") == (5.0, 0.0)
    )


def test_the_figure_may_name_another_baseline(played):
    result = with_finals(played, open=[6, 15, 24], dice=[11, 29, 26], alone=[10, 20, 30])
    named = replace(result, figure={"baseline": "dice"})
    assert sharing_sentence(named).startswith("Against dice (22), regret is undecided for open")
    assert named.paired_difference("alone")[0] == pytest.approx(-2.0)
    with pytest.raises(InputError, match="no baseline for 'dice'"):
        named.paired_difference("dice")


def test_without_a_baseline_nothing_is_compared(played):
    result = with_finals(played, open=[6, 15, 24], dice=[11, 29, 26])
    assert sharing_sentence(result) == "" and not charts_of(in_memory(result)).difference
    assert "difference" not in as_text(in_memory(result)) and "difference" not in as_csv(
        in_memory(result)
    )
    assert "baseline" not in result.to_records()[0]
    assert result.to_builtins()["curves"][0]["difference"] is None
    with pytest.raises(InputError, match="local-linucb"):
        result.paired_difference("open")


def test_one_replicate_decides_nothing():
    one = fastfed.simulate(WORLD, curves=CURVES[::2], silos=4, horizon=40, replicates=1)
    sentence = sharing_sentence(one)
    assert "sharing is undecided for open" in sentence and "no standard error" in sentence


def test_silos_are_compared_with_as_many_silos(played):
    sized = [
        replace(curve, label=f"{curve.label} {silos}", silos=silos)
        for silos in (4, 9)
        for curve in played.curves
    ]
    results = replace(played, curves=tuple(sized))
    found = {c["label"]: c["difference"] for c in results.to_builtins()["curves"]}
    assert found["open 4"]["baseline"] == "alone 4" and found["open 9"]["baseline"] == "alone 9"
    assert found["alone 9"] is None


def test_table_json_records_and_picture_have_the_same_difference(played):
    source = in_memory(played)
    mean, stderr = played.paired_difference("open", "alone")
    rows = table_rows(source)
    place = HEADINGS.index("difference")
    assert used_columns(rows) == list(range(len(HEADINGS)))
    assert float(rows[0][place].split(" ± ")[0]) == pytest.approx(mean, abs=stderr)
    (record,) = [r for r in played.to_records() if r["label"] == "open"]
    assert (record["baseline"], record["difference_mean"]) == ("alone", pytest.approx(mean))
    (chart,) = charts_of(source).difference
    assert [line.text.split(":")[0] for line in chart.lines] == [
        "open", "server, ε = 1", "server, ε = 50", "dice", "alone",
    ]  # fmt: skip
    assert chart.lines[0].y[-1] == pytest.approx(mean)
    assert chart.lines[0].spread[-1] == pytest.approx(2.0 * stderr)
    assert (chart.lines[-1].y == 0.0).all() and chart.y.low < 0.0 < chart.y.high
    at = played["open"].rounds.tolist().index(40) if 40 in played["open"].rounds else 2
    by_hand = played["open"].group_regret[:, at] - played["alone"].group_regret[:, at]
    assert chart.lines[0].y[at] == pytest.approx(by_hand.mean())


def test_the_sentence_counts_many_curves(played):
    many = [replace(played["open"], label=f"open {i}") for i in range(20)]
    results = replace(played, curves=(*many, played["alone"]))
    assert "of 20 curves (from " in sharing_sentence(results)


def test_notes_on_curves_without_protection_or_learning(played):
    notes = notes_on_curves(with_finals(played, open=[50, 52, 51], dice=[10, 12, 11]))
    assert notes == ["not shown to be better than random actions: open"]
    notes = notes_on_curves(played)
    assert "an epsilon above 10 protects hardly anybody: server, epsilon = 50.0" in notes


def test_a_note_says_that_an_epsilon_is_tiny():
    tiny = [{**CURVES[1], "epsilon": epsilon, "delta": 1e-9} for epsilon in (1e-9, 0.02)]
    curves = [{**curve, "label": f"{curve['epsilon']:g}"} for curve in tiny]
    results = fastfed.simulate(WORLD, curves=curves, silos=4, horizon=40)
    (note,) = [note for note in notes_on_curves(results) if "epsilon" in note]
    assert "below 0.01" in note and note.endswith(": 1e-09")


def test_a_note_says_that_a_delta_allows_to_disclose_some_users():
    large = {**CURVES[1], "epsilon": 1.0, "delta": 1 / 160}
    curves = [large, {**large, "label": "small", "delta": 1 / 161}]
    results = fastfed.simulate(WORLD, curves=curves, silos=4, horizon=40)
    (note,) = [note for note in notes_on_curves(results) if "delta" in note]
    assert note.startswith("server: delta = 0.00625 is not small against 1 / 160 users")


def test_a_note_says_why_a_claim_is_not_proven():
    eager = {**CURVES[1], "epsilon": 1.0, "lazy": False, "calibration": "published-code"}
    curves = [eager, {**eager, "label": "twin"}, {**CURVES[1], "label": "fine", "epsilon": 2.0}]
    results = fastfed.simulate(WORLD, curves=curves, silos=4, horizon=40, replicates=1)
    (note,) = notes_on_curves(results)
    assert note.startswith(
        "server, twin: claims (1, 1e-06), which is unproven; condition that fails"
    )
    assert note in as_text(in_memory(results))


def test_the_command_prints_the_sentence_before_the_table(tmp_path):
    spec = tmp_path / "small.toml"
    spec.write_text(
        'name = "small"\nhorizon = 60\nsilos = 4\nreplicates = 3\n[figure]\nbaseline = "open"\n'
        '[environment]\nkind = "sphere"\ndimension = 3\nactions = 5\n'
        '[[curve]]\nlabel = "open"\nalgorithm = "fedlinucb"\n'
        '[[curve]]\nlabel = "alone"\nalgorithm = "local-linucb"\n'
    )
    run = CliRunner().invoke(cli, ["run", str(spec), "-o", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    before_table = run.output.split("\ncurve ")[0]
    assert "\nAgainst open (" in before_table
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Against open (" in page and "minus that of the baseline" in page
    shown = CliRunner().invoke(cli, ["results", str(tmp_path / "out"), "--json"])
    one, other = json.loads(shown.output)["curves"]
    assert one["difference"] is None and other["difference"]["baseline"] == "open"
    assert math.isfinite(other["difference"]["mean"])
    spec.write_text(spec.read_text().replace('baseline = "open"', 'baseline = "opn"'))
    refused = CliRunner().invoke(cli, ["run", str(spec), "-o", str(tmp_path / "other")])
    assert refused.exit_code != 0 and 'did you mean "open"' in refused.output


def test_differences_pair_replicates_by_number_not_by_row(played):
    curve = replace(
        played["open"], replicates=(2, 0, 1), group_regret=played["open"].group_regret[[2, 0, 1]]
    )
    shuffled = replace(played, curves=(curve, played["alone"]))
    assert np.allclose(shuffled.paired_difference("open"), played.paired_difference("open"))


# ---- Notes on results that do not show what a reader expects -------------------------------------


def without_random(results):
    """Return the results without the curve of random actions."""
    return replace(results, curves=tuple(c for c in results.curves if c.algorithm != "random"))


@pytest.mark.parametrize(
    "world",
    [
        WORLD,
        {"kind": "gap", "dimension": 3, "actions": 4, "gap": 0.2},
        {"kind": "fixed-set", "dimension": 3, "actions": 5},
        {"kind": "rotated", "dimension": 3, "actions": 5, "rotation": 0.5},
        {"kind": "classification", "data": "digits", "dimension": 4},
    ],
    ids=lambda world: world["kind"],
)
def test_the_regret_of_random_actions_is_estimated_without_a_curve_of_them(world):
    actual = fastfed.simulate(world, "random", silos=4, horizon=100, replicates=30).curves[0]
    mean, stderr = actual.random_regret
    played, error = actual.final().values()
    assert 0.0 <= stderr < 0.2 * mean
    # Both numbers are sampled: allow five standard errors of their difference, and rounding.
    assert abs(mean - played) < 5.0 * math.hypot(error, stderr) + 1e-9 * mean


def test_a_curve_is_compared_with_the_estimate_if_there_is_no_curve_of_random_actions(played):
    curve = played["open"]
    mean, _ = curve.random_regret
    assert curve.to_builtins()["random_regret"]["mean"] == mean

    def useless_notes(*finals):
        """Return the notes that a curve with these final regrets is useless."""
        result = with_finals(without_random(played), open=finals)
        return [
            n
            for n in notes_on_curves(result)
            if n.startswith("not shown to be better than random actions")
        ]

    (note,) = useless_notes(mean, 1.01 * mean, 0.99 * mean)
    assert note == (
        "not shown to be better than random actions (whose regret is estimated from a few rounds): "
        "open"
    )
    assert useless_notes(0.5 * mean, 0.51 * mean, 0.49 * mean) == []
    # Means just beyond the margin for three replicates, and just within it.
    without_error = replace(curve, random_regret=(mean, 0.0), parameters={})
    for scale, expected in ((1.02, 0), (0.98, 1)):
        margin = 4.5265 * scale * 0.1 * mean / math.sqrt(3)
        low = with_finals(
            replace(played, curves=(without_error,)),
            open=[mean - margin + shift * 0.1 * mean for shift in (-1, 0, 1)],
        )
        assert len(notes_on_curves(low)) == expected
    # With clocks some rounds are left out, so the estimate does not apply.
    late = replace(without_error, parameters={"clock": {"rates": [0.5]}})
    result = with_finals(replace(played, curves=(late,)), open=[2 * mean] * 3)
    assert notes_on_curves(result) == []


def test_one_replicate_is_compared_without_an_error():
    curves = [{"label": "open", "algorithm": "fedlinucb"}, {"label": "dice", "algorithm": "random"}]
    one = fastfed.simulate(WORLD, curves=curves, silos=4, horizon=400)
    assert one["open"].final()["mean"] < one["dice"].final()["mean"]
    assert notes_on_curves(one) == notes_on_curves(without_random(one)) == []


def test_notes_on_a_single_action_and_on_silos_made_by_division(tmp_path):
    single = fastfed.simulate({**WORLD, "actions": 1}, "fedlinucb", silos=4, horizon=20)
    (note,) = notes_on_curves(single)
    assert note.startswith("there is only one action") and single.curves[0].final()["mean"] == 0.0
    rows = [f"{i % 7},{i % 2},{'ab'[i % 2]}" for i in range(60)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["size,label,place", *rows]) + "\n")
    world = {"kind": "classification", "data": str(table), "label": "label"}
    curves = [{"label": "open", "algorithm": "fedlinucb"}]
    result = fastfed.simulate(world, curves=curves, silos=3, horizon=20)
    assert any("divided the records into 3 blocks" in note for note in notes_on_curves(result))
    named = fastfed.simulate({**world, "silo": "place"}, curves=curves, horizon=20)
    assert not any("divided" in note for note in notes_on_curves(named))
    alone = fastfed.simulate(world, curves=curves, silos=1, horizon=20)
    assert not any("divided" in note for note in notes_on_curves(alone))


def test_notes_are_on_the_page_in_the_table_in_json_and_in_notebooks(tmp_path):
    spec = tmp_path / "one.toml"
    spec.write_text(
        'name = "one"\nhorizon = 20\nsilos = 4\nreplicates = 2\n'
        '[environment]\nkind = "sphere"\ndimension = 3\nactions = 1\n'
        '[[curve]]\nlabel = "open"\nalgorithm = "fedlinucb"\n'
    )
    folder = tmp_path / "out"
    results = fastfed.run(spec, folder)
    fastfed.report(folder)
    text = "here is only one action, so nothing is chosen and no curve has regret"
    for shown in (
        (folder / "report.html").read_text(),
        (folder / "table.txt").read_text(),
        results._repr_html_(),
    ):
        assert shown.count(text) == 1
    printed = CliRunner().invoke(cli, ["results", str(folder), "--json"]).stdout
    (note,) = json.loads(printed)["notes"]
    assert text in note and fastfed.load(folder).curves[0].random_regret == (0.0, 0.0)
