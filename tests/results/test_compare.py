"""`fastfed compare`: paired and unpaired differences are correct, and errors are clear."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fastfed
from fastfed.cli import cli
from fastfed.simulation.experiment import experiment_from_spec


def spec(**changes: Any) -> dict[str, Any]:
    """Return the spec of a small experiment; keywords replace its keys."""
    return {
        "name": "small",
        "horizon": 60,
        "silos": 4,
        "replicates": 5,
        "seed": 3,
        "checkpoints": 6,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
        "curve": [
            {"label": "open", "algorithm": "fedlinucb", "batch_size": 10},
            private(epsilon=1.0),
        ],
        **changes,
    }


def private(label: str = "LDP", **keys: Any) -> dict[str, Any]:
    """Return the table of a private curve."""
    return {
        "label": label, "algorithm": "private-fedlinucb", "delta": 1e-4, "batch_size": 10,
        "saturation": 0.0,  # the default depends on epsilon
        **keys,
    }  # fmt: skip


def run(folder: Path, **changes: Any) -> Path:
    """Run the spec with these changes into a folder and return the folder."""
    fastfed.run(experiment_from_spec(spec(**changes)), folder)
    return folder


def compare(*args: object) -> Result:
    """Run `compare` with these arguments."""
    return CliRunner().invoke(cli, ["compare", *map(str, args)])


def as_json(*args: object) -> Any:
    """Return the parsed output of `fastfed compare --json`, which must succeed."""
    result = compare(*args, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that others are compared with."""
    return run(tmp_path_factory.mktemp("compare") / "a")


def finals(folder: Path, label: str) -> np.ndarray:
    """Return the final regret of a stored curve in each replicate."""
    return fastfed.load(folder)[label].group_regret[:, -1]


def test_experiments_with_equal_rounds_are_compared_by_replicate(
    base: Path, tmp_path: Path
) -> None:
    curve_tables = spec()["curve"]
    other_folder = run(tmp_path / "b", curve=[curve_tables[0], private(epsilon=4.0)], replicates=4)
    (comparison,) = as_json(base, other_folder)["experiments"]
    assert comparison["paired"] is True and comparison["unequal"] == []
    unchanged, changed = comparison["curves"]
    assert unchanged["difference"] == {"mean": 0.0, "stderr": 0.0}
    assert unchanged["verdict"] == "no difference beyond two standard errors"
    assert unchanged["same_privacy"] is True

    difference = finals(other_folder, "LDP") - finals(base, "LDP")[:4]
    assert changed["difference"]["mean"] == pytest.approx(difference.mean())
    assert changed["difference"]["stderr"] == pytest.approx(difference.std(ddof=1) / 2.0)
    assert (changed["a"]["replicates"], changed["b"]["replicates"]) == (5, 4)
    assert changed["same_privacy"] is False
    assert changed["a"]["claimed"]["epsilon"] == 1.0 and changed["b"]["status"] == "proven"
    assert comparison["spec"] == [{"key": 'curve "LDP".epsilon', "a": 1.0, "b": 4.0}]

    table = compare(base, other_folder).stdout
    assert "paired, replicate by replicate" in table
    assert "(1, 0.0001)  (4, 0.0001)" in table and 'curve "LDP".epsilon  1.0  4.0' in table


def test_experiments_with_different_rounds_are_compared_unpaired(
    base: Path, tmp_path: Path
) -> None:
    other_folder = run(tmp_path / "b", seed=4, horizon=50)
    (comparison,) = as_json(base, other_folder)["experiments"]
    assert comparison["paired"] is False and comparison["unequal"] == ["seed", "horizon"]
    for curve in comparison["curves"]:
        finals_a, finals_b = finals(base, curve["label"]), finals(other_folder, curve["label"])
        assert curve["difference"]["mean"] == pytest.approx(finals_b.mean() - finals_a.mean())
        welch_stderr = math.sqrt(finals_a.var(ddof=1) / 5 + finals_b.var(ddof=1) / 5)
        assert curve["difference"]["stderr"] == pytest.approx(welch_stderr)
    assert {change["key"] for change in comparison["spec"]} >= {"seed", "horizon"}
    printed = compare(base, other_folder).stdout
    assert "not paired, because A and B differ in seed, horizon" in printed


def test_verdicts_follow_the_sign_of_the_difference(base: Path, tmp_path: Path) -> None:
    """Swapping the folders flips the sign; very strong noise makes regret clearly higher."""
    curve_tables = spec()["curve"]
    other_folder = run(tmp_path / "b", curve=[curve_tables[0], private(epsilon=0.01)])
    base_first = as_json(base, other_folder)["experiments"][0]["curves"][1]
    base_second = as_json(other_folder, base)["experiments"][0]["curves"][1]
    assert base_first["difference"]["mean"] == -base_second["difference"]["mean"]
    size, stderr = abs(base_first["difference"]["mean"]), base_first["difference"]["stderr"]
    assert size > 2 * stderr > 0
    assert (base_first["verdict"], base_second["verdict"]) == ("higher", "lower")


def test_one_replicate_gives_no_verdict(base: Path, tmp_path: Path) -> None:
    other_folder = run(tmp_path / "b", replicates=1)
    curve = as_json(base, other_folder)["experiments"][0]["curves"][0]
    assert curve["verdict"] == "fewer than two replicates"
    assert curve["difference"]["stderr"] is None


def test_curves_of_only_one_experiment_are_listed(base: Path, tmp_path: Path) -> None:
    other_folder = run(tmp_path / "b", curve=[spec()["curve"][0], private("new", epsilon=1.0)])
    (comparison,) = as_json(base, other_folder)["experiments"]
    assert [curve["label"] for curve in comparison["curves"]] == ["open"]
    assert (comparison["only_in_a"], comparison["only_in_b"]) == (["LDP"], ["new"])
    assert comparison["spec"] == []
    table = compare(base, other_folder).stdout
    assert "only in A: LDP" in table and "only in B: new" in table


def test_synchronisations_and_bytes_are_shown_where_they_differ(base: Path, tmp_path: Path) -> None:
    larger_batches = {**spec()["curve"][0], "batch_size": 20}
    other_folder = run(tmp_path / "b", curve=[larger_batches, spec()["curve"][1]])
    open_curve, private_curve = as_json(base, other_folder)["experiments"][0]["curves"]
    assert open_curve["a"]["bytes_up"] == 2 * open_curve["b"]["bytes_up"] == 6 * 9 * 8 * 4
    assert (open_curve["a"]["synchronisations"], open_curve["b"]["synchronisations"]) == (6, 3)
    assert private_curve["a"]["bytes_up"] == private_curve["b"]["bytes_up"]
    lines = compare(base, other_folder).stdout.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("synchronised"))
    assert lines[heading + 1].split() == ["open", "6", "3"] and lines[heading + 2] == ""
    heading = next(i for i, line in enumerate(lines) if line.startswith("sent"))
    assert (
        lines[heading + 1].split() == ["open", "3.5", "kB", "1.7", "kB"]
        and lines[heading + 2] == ""
    )


def test_folders_of_several_experiments_are_compared_by_name(base: Path, tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    shutil.copytree(base, left / "x")
    run(left / "y", name="other")
    shutil.copytree(base, right / "under another folder's name")
    run(right / "z", name="third")
    comparison = as_json(left, right)
    assert [experiment["name"] for experiment in comparison["experiments"]] == ["small"]
    assert (comparison["only_in_a"], comparison["only_in_b"]) == (["other"], ["third"])
    assert "only in B: third" in compare(left, right).stdout
    # A single experiment is compared with the experiment of the same name in a folder.
    assert [experiment["name"] for experiment in as_json(base, right)["experiments"]] == ["small"]


def complains(result: Result, *words: str) -> None:
    """Check that a command failed with one line that contains these words."""
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr


def test_wrong_folders_give_one_clear_sentence(base: Path, tmp_path: Path) -> None:
    complains(compare(base, tmp_path / "no"), "no is not a folder")
    complains(compare(tmp_path, base), "holds no results")
    complains(compare(base), "DIR_B")
    twice = tmp_path / "twice"
    shutil.copytree(base, twice / "x")
    shutil.copytree(base, twice / "y")
    complains(compare(base, twice), '"small" twice')
    other_names = tmp_path / "others"
    run(other_names / "x", name="x")
    run(other_names / "y", name="y")
    complains(compare(base, other_names), "no experiment of the same name", '"small"', '"x", "y"')
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "results.sqlite").write_text("nothing of the kind")
    complains(compare(base, tmp_path / "bad"), "damaged")


def test_an_interrupted_run_without_results_has_no_curve_in_common(
    base: Path, tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    def stop(_: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        fastfed.run(experiment_from_spec(spec()), tmp_path / "b", progress=stop)
    (comparison,) = as_json(base, tmp_path / "b")["experiments"]
    assert comparison["curves"] == [] and comparison["only_in_a"] == ["open", "LDP"]
    assert compare(base, tmp_path / "b").exit_code == 0


def test_a_different_relation_is_a_different_guarantee(base: Path, tmp_path: Path) -> None:
    curve_tables = [spec()["curve"][0], private(epsilon=1.0, relation="zero-out")]
    (comparison,) = as_json(base, run(tmp_path / "b", curve=curve_tables))["experiments"]
    assert [curve["same_privacy"] for curve in comparison["curves"]] == [True, False]


def test_curves_of_different_sizes_are_not_paired(base: Path, tmp_path: Path) -> None:
    """Six silos see other users than four silos do, so the variances of both curves add."""
    curve_tables = [spec()["curve"][0], private(epsilon=1.0, silos=6)]
    other_folder = run(tmp_path / "b", curve=curve_tables)
    (comparison,) = as_json(base, other_folder)["experiments"]
    finals_base, finals_other = finals(base, "LDP"), finals(other_folder, "LDP")
    stderr = math.hypot(
        *(
            finals_of_one.std(ddof=1) / math.sqrt(len(finals_of_one))
            for finals_of_one in (finals_base, finals_other)
        )
    )
    assert comparison["curves"][1]["difference"]["mean"] == pytest.approx(
        finals_other.mean() - finals_base.mean()
    )
    assert comparison["curves"][1]["difference"]["stderr"] == pytest.approx(stderr)
    assert comparison["curves"][0]["difference"]["stderr"] == 0.0
