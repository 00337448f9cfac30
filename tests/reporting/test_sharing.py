"""Whether sharing pays: differences to a baseline, by hand and in all places that show them."""

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
    return fastfed.simulate(WORLD, curves=CURVES, silos=4, horizon=80, replicates=3)


def with_finals(results, **finals):
    """Replace the final regrets of curves by the given ones, one a replicate."""
    curves = []
    for curve in results.curves:
        if curve.label in finals:
            regret = curve.group_regret.copy()
            regret[:, -1] = finals[curve.label]
            curves.append(replace(curve, group_regret=regret))
    return replace(results, curves=tuple(curves))


def test_the_sentence_by_hand(played):
    # Differences to 10, 20, 30: -4, -5, -6 (mean -5, standard error 1 / sqrt 3 = .577, and three
    # replicates need 4.53 of these: 2.61) and +1, +9, -4 (mean 2, standard error 3.79).
    finals = {"open": [6, 15, 24], "server, epsilon = 1.0": [11, 29, 26], "alone": [10, 20, 30]}
    # Random actions share nothing.
    made = with_finals(played, **finals, dice=[50, 60, 70])
    assert sharing_sentence(made) == (
        "Against alone (20), sharing pays for open (-5.00 ± 0.58); it is undecided for "
        "server, epsilon = 1.0 (+2.0 ± 3.8)."
    )
    made = with_finals(played, open=[15, 25, 35], alone=[10, 20, 30])
    # Equal differences have no error.
    assert sharing_sentence(made).startswith(
        "Against alone (20), sharing does not pay for open (+5"
    )
    assert made.paired_difference("open") == made.paired_difference("open", "alone") == (5.0, 0.0)


def test_a_curve_of_the_figure_is_the_baseline(played):
    made = with_finals(played, open=[6, 15, 24], dice=[11, 29, 26], alone=[10, 20, 30])
    named = replace(made, figure={"baseline": "dice"})
    assert sharing_sentence(named).startswith("Against dice (22), regret is undecided for open")
    assert named.paired_difference("alone")[0] == pytest.approx(-2.0)
    with pytest.raises(InputError, match="no baseline for 'dice'"):
        named.paired_difference("dice")


def test_without_a_baseline_nothing_is_compared(played):
    made = with_finals(played, open=[6, 15, 24], dice=[11, 29, 26])
    assert sharing_sentence(made) == "" and not charts_of(in_memory(made)).difference
    assert "difference" not in as_text(in_memory(made)) and "difference" not in as_csv(
        in_memory(made)
    )
    assert "baseline" not in made.to_records()[0]
    assert made.to_builtins()["curves"][0]["difference"] is None
    with pytest.raises(InputError, match="local-linucb"):
        made.paired_difference("open")


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


def test_many_curves_are_counted(played):
    many = [replace(played["open"], label=f"open {i}") for i in range(20)]
    results = replace(played, curves=(*many, played["alone"]))
    assert "of 20 curves (from " in sharing_sentence(results)


def test_notes_on_curves_that_protect_nobody_or_learn_nothing(played):
    notes = notes_on_curves(with_finals(played, open=[50, 52, 51], dice=[10, 12, 11]))
    assert notes == ["not better than random actions: open"]
    notes = notes_on_curves(played)
    assert "an epsilon above 10 protects hardly anybody: server, epsilon = 50.0" in notes


def test_a_note_says_why_a_claim_is_not_proven():
    eager = {**CURVES[1], "epsilon": 1.0, "lazy": False, "calibration": "published-code"}
    curves = [eager, {**eager, "label": "twin"}, {**CURVES[1], "label": "fine", "epsilon": 2.0}]
    results = fastfed.simulate(WORLD, curves=curves, silos=4, horizon=40, replicates=1)
    (note,) = notes_on_curves(results)
    assert note.startswith(
        "server, twin: claims (1, 1e-06), which is unproven; condition that fails"
    )
    assert note in as_text(in_memory(results))


def test_the_command_says_it_first(tmp_path):
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


def test_finals_by_replicate_pair_replicates_and_not_rows(played):
    curve = replace(
        played["open"], replicates=(2, 0, 1), group_regret=played["open"].group_regret[[2, 0, 1]]
    )
    shuffled = replace(played, curves=(curve, played["alone"]))
    assert np.allclose(shuffled.paired_difference("open"), played.paired_difference("open"))
