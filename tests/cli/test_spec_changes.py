"""Specs that change: keys set from outside, stores that grow, checkpoints spaced by a factor."""

from __future__ import annotations

import csv
import io
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from outputs import content

import fastfed
from fastfed import experiments
from fastfed._validate import InputError
from fastfed.cli import cli
from fastfed.experiments.specs import (
    apply_changes,
    experiment_from_spec,
    load_spec,
    parse_changes,
    sized_experiment,
)
from fastfed.reporting.claims import judge
from fastfed.reporting.figure import read_source
from fastfed.results import digests
from fastfed.simulation.driver import checkpoint_rounds

HEAD = """
name = "small"
horizon = 40
silos = 3
replicates = 2
[environment]
kind = "sphere"
dimension = 3
actions = 4
"""
OPEN = '[[curve]]\nlabel = "open"\nalgorithm = "fedlinucb"\nbatch_size = 10\n'
LDP = (
    '[[curve]]\nlabel = "LDP"\nalgorithm = "private-fedlinucb"\nepsilon = {epsilon}\n'
    "delta = 1e-5\nbatch_size = 10\n"
)


def spec_of(folder: Path, *curves: str, head: str = HEAD) -> Path:
    """Write a spec with these curves, and return its path."""
    path = folder / "spec.toml"
    path.write_text(head + "".join(curves))
    return path


def run(*args: object) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(cli, [str(a) for a in args])


# ---- Keys set from outside -----------------------------------------------------------------------


def test_values_are_toml_or_text() -> None:
    texts = ["a=1", "b = 2.5", "c=[1.0, 2.0]", "d=direct", 'e="x=y"', "f=true", "g=1\nh=2"]
    assert parse_changes(texts) == {
        "a": 1, "b": 2.5, "c": [1.0, 2.0], "d": "direct", "e": "x=y", "f": True, "g": "1\nh=2",
    }  # fmt: skip
    for wrong in ("a", "=1"):
        with pytest.raises(InputError, match="KEY=VALUE"):
            parse_changes([wrong])


def test_a_change_applies_to_its_table_or_curves(tmp_path: Path) -> None:
    path = spec_of(tmp_path, OPEN, LDP.format(epsilon="[1.0, 2.0]"))
    changes = {
        "horizon": 20, "environment.dimension": 2, "curve.batch_size": 5, "curve.LDP.epsilon": 3.0,
    }  # fmt: skip
    e = load_spec(path, changes=changes)
    assert (e.horizon, e.facts.dimension) == (20, 2)
    assert [(c.label, c.keys["batch_size"]) for c in e.curves] == [("open", 5), ("LDP", 5)]
    assert e.curves[1].keys["epsilon"] == 3.0


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("horizn", 'unknown key "horizn" in --set; did you mean "horizon"'),
        ("horizon.x", "horizon is no table"),
        ("epsilon", '"epsilon" is a key of curves: curve.epsilon=3 changes it'),
        ("environment", "must name a key of the table"),
        ("environment.dim", 'unknown key "dim"'),
        ("environment.kind.x", "no such table"),
        ("curve", "curve.KEY or curve.LABEL.KEY"),
        ("curve.epsilonn", 'no curve has a key "epsilonn"; did you mean "epsilon"'),
        ("curve.LPD.epsilon", 'unknown curve "LPD"; did you mean "LDP"'),
        ("LDP.epsilon", '"LDP" is the label of a curve: curve.LDP.epsilon=3 changes it'),
        ("LDP", '"LDP" is the label of a curve: curve.LDP.KEY=3 changes it'),
        # The label of one curve of a sweep: only in Python, as a command cuts it at its first "=".
        ("curve.LDP, epsilon = 1.0.delta", 'one curve of the sweep "LDP", whose curves share'),
        ("curve.LDP, epsilon", "curve.LDP.KEY=VALUE changes all of them"),
    ],
)
def test_an_unknown_key_is_named(tmp_path: Path, key: str, words: str) -> None:
    path = spec_of(tmp_path, OPEN, LDP.format(epsilon=1.0))
    with pytest.raises(InputError) as error:
        load_spec(path, changes={key: 3})
    assert words in str(error.value) and str(error.value).startswith(str(path))


@pytest.mark.parametrize("curve", [5, "x", {"epsilon": 1.0}, [3]])
def test_a_change_of_a_spec_without_tables_of_curves_is_refused(curve) -> None:
    with pytest.raises(InputError, match='unknown key "epsilon"'):
        apply_changes({"curve": curve}, {"epsilon": 2.0})


def test_a_changed_figure_drops_claims_about_removed_curves() -> None:
    figure = experiments.figure("zc24-fig3a")
    changed = sized_experiment(figure, size="quick", changes={"curve.epsilon": [1.0, 5.0]})
    # The claim was about a curve that the change removed.
    assert changed.figure["statement"] == []
    assert changed.figure["changed"] == ["curve.epsilon=[1.0, 5.0]"]
    reason = "omitted, because their curves were renamed or removed: 1 statement"
    assert changed.figure["note"][-1] == reason
    resized = sized_experiment(figure, changes={"silos": 5, "figure.log": "x"})
    assert resized.figure["changed"] == ["silos=5"] and len(resized.figure["statement"]) == 1
    assert "left out" not in str(resized.figure.get("note"))
    reseeded = sized_experiment(figure, changes={"seed": 5, "checkpoints": 10})
    assert "changed" not in reseeded.figure and reseeded.seed == 5
    table: dict[str, Any] = {"curve": [{"label": "a", "algorithm": "random"}]}
    apply_changes(table, {"silos": 3})
    assert table["silos"] == 3  # without a [figure] there is nothing to note


def test_the_command_line_sets_and_shows(tmp_path: Path) -> None:
    shown = run("spec", "show", "h23-hard")
    assert shown.exit_code == 0 and 'name = "h23-hard"' in shown.stdout
    assert run("spec", "show", "h23-hart").exit_code == 2
    path = tmp_path / "mine.toml"
    path.write_text(run("spec", "show", "zc24-fig3a").stdout)
    out = tmp_path / "out"
    result = run("run", path, "-o", out, "--set", "horizon=30", "--set", "silos=2",
               "--set", "replicates=2", "--set", "curve.batch_size=10")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "--set horizon=30, silos=2, curve.batch_size=10: not the experiment" in result.stdout
    printed = run("results", out, "--curves").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    results = fastfed.load(out)
    assert len(rows) == 4 * 30
    assert [float(r["group_regret_mean"]) for r in rows[:30]] == results.curves[0].mean.tolist()
    assert run("results", out, "--curves", "--csv").exit_code == 2


# ---- Stores that grow ----------------------------------------------------------------------------


def test_a_spec_with_more_curves_goes_on_in_its_folder(tmp_path: Path) -> None:
    """Add curves around the old ones; check that only new cells are simulated."""
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    fastfed.run(spec_of(tmp_path, LDP.format(epsilon=2.0), OPEN), grown)
    before = {c.label: c.group_regret for c in fastfed.load(grown).curves}
    more = spec_of(
        tmp_path, OPEN, LDP.format(epsilon="[1.0, 4.0]").replace("LDP", "swept"),
        LDP.format(epsilon=2.0), head=HEAD.replace("replicates = 2", "replicates = 3"),
    )  # fmt: skip
    seen: list[Any] = []
    results = fastfed.run(more, grown, on_start=lambda batches, _: seen.extend(batches))
    assert sum(len(batch.positions) for batch in seen) == 4 * 3 - 2 * 2
    assert [c.label for c in results.curves] == [
        "open", "swept, epsilon = 1.0", "swept, epsilon = 4.0", "LDP",
    ]  # fmt: skip
    for label, regret in before.items():
        np.testing.assert_array_equal(results[label].group_regret[:2], regret)
    fastfed.run(more, fresh)
    for one, other in zip(results.curves, fastfed.load(fresh).curves, strict=True):
        np.testing.assert_array_equal(one.group_regret, other.group_regret)
        assert one.dated_certificate == other.dated_certificate
        assert one.events == other.events and one.bits_up == other.bits_up
    assert content(grown / "results.sqlite") == content(fresh / "results.sqlite")
    # A third run has nothing left to simulate.
    seen.clear()
    fastfed.run(more, grown, on_start=lambda batches, _: seen.extend(batches))
    assert seen == []


@pytest.mark.parametrize(
    ("curves", "words"),
    [
        ((OPEN,), 'curves: "LDP" is not among these'),
        ((OPEN, LDP.format(epsilon=3.0)), 'curves: "LDP" in epsilon'),
        (
            (OPEN, LDP.format(epsilon=2.0).replace("delta = 1e-5", "delta = 1e-6")),
            'curves: "LDP" in delta',
        ),
    ],
)
def test_a_removed_or_changed_curve_needs_another_folder(
    tmp_path: Path, curves: tuple[str, ...], words: str
) -> None:
    out = tmp_path / "out"
    fastfed.run(spec_of(tmp_path, OPEN, LDP.format(epsilon=2.0)), out)
    stored = (out / "results.sqlite").read_bytes()
    with pytest.raises(InputError) as error:
        fastfed.run(spec_of(tmp_path, *curves), out)
    assert f"different {words}" in str(error.value)
    assert (out / "results.sqlite").read_bytes() == stored


def test_more_curves_and_another_horizon_are_another_experiment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastfed.run(spec_of(tmp_path, OPEN), out)
    longer = spec_of(tmp_path, OPEN, LDP.format(epsilon=2.0), head=HEAD.replace("40", "50"))
    with pytest.raises(InputError, match="different checkpoints, curves, horizon"):
        fastfed.run(longer, out)


# ---- Checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("horizon", "count"), [(1, 5), (2, 200), (10_000, 200), (10**9, 50)])
def test_rounds_by_a_factor_begin_at_one_and_end_at_the_horizon(horizon: int, count: int) -> None:
    rounds = checkpoint_rounds(horizon, count, "log")
    assert rounds[-1] == horizon and (np.diff(rounds) > 0).all() and len(rounds) <= count
    assert rounds[0] == 1
    late = rounds[len(rounds) // 2 :]
    if len(rounds) > 20:
        np.testing.assert_allclose(late[1:] / late[:-1], horizon ** (1.0 / (count - 1)), rtol=0.05)


@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_spacing_changes_the_checkpoints_but_not_the_run(driver: str) -> None:
    keys: dict[str, Any] = {"horizon": 60, "silos": 2, "batch_size": 10, "driver": driver}
    sphere = {"kind": "sphere", "dimension": 3, "actions": 5}
    even = fastfed.simulate(sphere, "fedlinucb", checkpoints=60, **keys).curves[0]
    by_factor = fastfed.simulate(
        sphere, "fedlinucb", checkpoints=12, checkpoint_spacing="log", **keys
    ).curves[0]
    np.testing.assert_array_equal(
        by_factor.group_regret, even.group_regret[:, by_factor.rounds - 1]
    )
    with pytest.raises(InputError, match='checkpoint_spacing must be one of "even", "log"'):
        fastfed.simulate(sphere, "fedlinucb", checkpoint_spacing="lg", **keys)


def test_even_spacing_is_not_part_of_the_identity(tmp_path: Path) -> None:
    """Check that stores from before this key was added stay valid."""
    plain = load_spec(spec_of(tmp_path, OPEN)).identity()
    assert "checkpoint_spacing" not in plain
    spaced = spec_of(tmp_path, OPEN, head='checkpoint_spacing = "log"' + HEAD)
    assert load_spec(spaced).identity()["checkpoint_spacing"] == "log"


def test_a_curve_without_a_finished_replicate_is_not_damage(tmp_path: Path) -> None:
    """Use a run that was stopped between two curves."""
    head = HEAD + '[figure]\n[[figure.statement]]\nsays = "s"\nbelow = ["open", "LDP"]\n'
    out = tmp_path / "out"
    fastfed.run(spec_of(tmp_path, OPEN, LDP.format(epsilon=2.0), head=head), out)
    with sqlite3.connect(out / "results.sqlite") as db:
        db.execute("DELETE FROM cells WHERE position = 1")
        digests.seal(db)
    (claim,) = judge(read_source(out).results)
    assert claim.verdict == "undecided" and math.isnan(claim.differences[0].mean)


def test_a_misspelt_algorithm_is_named() -> None:
    with pytest.raises(InputError, match=r'algorithm is required.*; is "algoritm" meant\?$'):
        experiment_from_spec(
            {
                "name": "x", "horizon": 9, "silos": 2, "replicates": 1,
                "environment": {"kind": "sphere", "dimension": 3, "actions": 4},
                "curve": [{"algoritm": "fedlinucb"}],
            }
        )  # fmt: skip
