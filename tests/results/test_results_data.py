"""Results as data: tables with the keys of the spec, selection of curves, iteration."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

import fastfed
from fastfed._validate import InputError
from fastfed.cli import cli

SPEC = """
name = "sweep"
horizon = 40
silos = 3
replicates = 2
[environment]
kind = "sphere"
dimension = 3
actions = 5
[[curve]]
label = "private"
algorithm = "private-fedlinucb"
epsilon = [0.5, 2]
delta = 1e-5
batch_size = [4, 8]
[[curve]]
label = "late"
algorithm = "local-linucb"
delay = { kind = "geometric", mean = 2.0, deadline = 6 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run the spec, and return the folder of its results."""
    path = tmp_path_factory.mktemp("results")
    (path / "sweep.toml").write_text(SPEC)
    result = CliRunner().invoke(cli, ["run", str(path / "sweep.toml"), "-o", str(path / "out")])
    assert result.exit_code == 0, result.output
    return path / "out"


@pytest.fixture(scope="module")
def results(folder):
    """Return the results of the run."""
    return fastfed.load(folder)


def test_curves_have_the_keys_of_the_spec(results):
    actual = [(c.parameters.get("epsilon"), c.parameters.get("batch_size")) for c in results]
    assert actual == [(0.5, 4), (0.5, 8), (2.0, 4), (2.0, 8), (None, None)]
    assert len(results) == 5
    assert results.curves[-1].parameters["delay"]["mean"] == 2.0


def test_simulated_curves_have_the_same_keys(results):
    curve = {"label": "a", "algorithm": "private-fedlinucb", "epsilon": [0.5, 2], "delta": 1e-5}
    simulated = fastfed.simulate(
        {"kind": "sphere", "dimension": 3, "actions": 5}, curves=[curve], silos=3, horizon=20
    )
    assert [c.parameters["epsilon"] for c in simulated] == [0.5, 2.0]
    assert [c.parameters["delta"] for c in simulated] == [1e-5, 1e-5]


def test_curves_are_selected_by_keys_and_names(results):
    def labels(**keys):
        return [c.label for c in results.select(**keys)]

    first = [c.label for c in results]
    assert labels(epsilon=2) == labels(epsilon=2.0) == first[2:4]
    assert labels(epsilon=[0.5, 2.0], batch_size=8) == [first[1], first[3]]
    assert labels(algorithm="local-linucb") == ["late"]
    assert labels() == first
    assert results.select(epsilon=2).horizon == 40
    with pytest.raises(InputError, match=r'no curve has the key "epsilom".*"epsilon"'):
        results.select(epsilom=1.0)
    # If nothing is selected, the message lists the values that exist.
    for keys, message in (
        ({"epsilon": 7.0}, r"no curve has epsilon = 7\.0; there are 0\.5, 2"),
        ({"epsilon": [7, 8]}, "no curve has epsilon = 7 or 8; there are"),
        ({"epsilon": []}, r"no curve has epsilon = \(an empty list\); there are"),
        ({"epsilon": 2, "batch_size": 9}, "no curve has batch_size = 9; there are 4, 8"),
        ({"epsilon": 2, "label": "late"}, "no curve has all of epsilon = 2, label = 'late'"),
    ):
        with pytest.raises(InputError, match=message):
            results.select(**keys)
    with pytest.raises(InputError, match="no replicate has run"):
        replace(results, curves=()).select()


@pytest.mark.parametrize("level", ["summary", "curves", "replicates"])
def test_every_table_has_the_keys(results, level):
    rows = results.to_records(level)
    assert {row["epsilon"] for row in rows} == {0.5, 2, None}
    assert {row["batch_size"] for row in rows} == {4, 8, None}
    delays = {row["delay"] for row in rows} - {None}
    assert [json.loads(text)["deadline"] for text in delays] == [6]
    names = list(rows[0])
    assert names.index("epsilon") > names.index("protocol")
    assert len(names) == len(set(names))


def test_frames_have_numbers_in_columns_of_numbers(results):
    frame = results.to_frame()
    assert frame.epsilon.dtype == float and math.isnan(frame.epsilon.iloc[-1])
    assert list(frame.query("epsilon == 2").batch_size) == [4.0, 8.0]


def test_csv_and_json_have_the_keys(results, folder):
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    assert [row["epsilon"] for row in rows] == ["0.5", "0.5", "2.0", "2.0", ""]
    answer = CliRunner().invoke(cli, ["results", str(folder), "--json"])
    curves = json.loads(answer.output)["curves"]
    assert [curve["parameters"].get("batch_size") for curve in curves] == [4, 8, 4, 8, None]
