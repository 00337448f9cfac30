"""`fastfed compare`: differences against ones worked out here, paired or not, and kind errors."""

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
    return {
        "label": label, "algorithm": "private-fedlinucb", "delta": 1e-4, "batch_size": 10, **keys,
    }  # fmt: skip


def play(folder: Path, **changes: Any) -> Path:
    fastfed.run(experiment_from_spec(spec(**changes)), folder)
    return folder


def compare(*args: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, args)])


def as_json(*args: object) -> Any:
    result = compare(*args, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("compare") / "a")


def finals(folder: Path, label: str) -> np.ndarray:
    return fastfed.load(folder)[label].group_regret[:, -1]


def test_same_rounds_are_compared_replicate_by_replicate(base: Path, tmp_path: Path) -> None:
    curve = spec()["curve"]
    other = play(tmp_path / "b", curve=[curve[0], private(epsilon=4.0)], replicates=4)
    (found,) = as_json(base, other)["experiments"]
    assert found["paired"] is True and found["unequal"] == []
    same, changed = found["curves"]
    assert same["difference"] == {"mean": 0.0, "stderr": 0.0}
    assert same["verdict"] == "no difference beyond two standard errors"
    assert same["same_privacy"] is True

    difference = finals(other, "LDP") - finals(base, "LDP")[:4]
    assert changed["difference"]["mean"] == pytest.approx(difference.mean())
    assert changed["difference"]["stderr"] == pytest.approx(difference.std(ddof=1) / 2.0)
    assert (changed["a"]["replicates"], changed["b"]["replicates"]) == (5, 4)
    assert changed["same_privacy"] is False
    assert changed["a"]["claimed"]["epsilon"] == 1.0 and changed["b"]["status"] == "proven"
    assert found["spec"] == [{"key": 'curve "LDP".epsilon', "a": 1.0, "b": 4.0}]

    text = compare(base, other).stdout
    assert "paired, replicate by replicate" in text
    assert "(1, 0.0001)  (4, 0.0001)" in text and 'curve "LDP".epsilon  1.0  4.0' in text


def test_other_rounds_are_compared_unpaired(base: Path, tmp_path: Path) -> None:
    other = play(tmp_path / "b", seed=4, horizon=50)
    (found,) = as_json(base, other)["experiments"]
    assert found["paired"] is False and found["unequal"] == ["seed", "horizon"]
    for curve in found["curves"]:
        a, b = finals(base, curve["label"]), finals(other, curve["label"])
        assert curve["difference"]["mean"] == pytest.approx(b.mean() - a.mean())
        welch = math.sqrt(a.var(ddof=1) / 5 + b.var(ddof=1) / 5)
        assert curve["difference"]["stderr"] == pytest.approx(welch)
    assert {d["key"] for d in found["spec"]} >= {"seed", "horizon"}
    assert "not paired, for they differ in seed, horizon" in compare(base, other).stdout


def test_verdicts_follow_the_sign_and_turn_with_the_order(base: Path, tmp_path: Path) -> None:
    """Each silo alone in place of silos that share through very strong noise."""
    curve = spec()["curve"]
    other = play(tmp_path / "b", curve=[curve[0], private(epsilon=0.01)])
    there = as_json(base, other)["experiments"][0]["curves"][1]
    back = as_json(other, base)["experiments"][0]["curves"][1]
    assert there["difference"]["mean"] == -back["difference"]["mean"]
    size, spread = abs(there["difference"]["mean"]), there["difference"]["stderr"]
    assert size > 2 * spread > 0
    assert (there["verdict"], back["verdict"]) == ("higher", "lower")


def test_one_replicate_decides_nothing(base: Path, tmp_path: Path) -> None:
    other = play(tmp_path / "b", replicates=1)
    curve = as_json(base, other)["experiments"][0]["curves"][0]
    assert curve["verdict"] == "fewer than two replicates"
    assert curve["difference"]["stderr"] is None


def test_curves_that_only_one_has(base: Path, tmp_path: Path) -> None:
    other = play(tmp_path / "b", curve=[spec()["curve"][0], private("new", epsilon=1.0)])
    (found,) = as_json(base, other)["experiments"]
    assert [c["label"] for c in found["curves"]] == ["open"]
    assert (found["only_in_a"], found["only_in_b"]) == (["LDP"], ["new"])
    assert found["spec"] == []
    text = compare(base, other).stdout
    assert "only in A: LDP" in text and "only in B: new" in text


def test_synchronisations_and_bytes_where_they_differ(base: Path, tmp_path: Path) -> None:
    curve = {**spec()["curve"][0], "batch_size": 20}
    other = play(tmp_path / "b", curve=[curve, spec()["curve"][1]])
    first, second = as_json(base, other)["experiments"][0]["curves"]
    assert first["a"]["bytes_up"] == 2 * first["b"]["bytes_up"] == 6 * 9 * 8 * 4
    assert (first["a"]["synchronisations"], first["b"]["synchronisations"]) == (6, 3)
    assert second["a"]["bytes_up"] == second["b"]["bytes_up"]
    lines = compare(base, other).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("synchronised"))
    assert lines[at + 1].split() == ["open", "6", "3"] and lines[at + 2] == ""
    at = next(i for i, line in enumerate(lines) if line.startswith("sent"))
    assert lines[at + 1].split() == ["open", "3.5", "kB", "1.7", "kB"] and lines[at + 2] == ""


def test_folders_of_several_are_compared_by_name(base: Path, tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    shutil.copytree(base, left / "x")
    play(left / "y", name="other")
    shutil.copytree(base, right / "under another folder's name")
    play(right / "z", name="third")
    found = as_json(left, right)
    assert [e["name"] for e in found["experiments"]] == ["small"]
    assert (found["only_in_a"], found["only_in_b"]) == (["other"], ["third"])
    assert "only in B: third" in compare(left, right).stdout
    # One experiment against a folder of several finds its namesake.
    assert [e["name"] for e in as_json(base, right)["experiments"]] == ["small"]


def complains(result: Result, *words: str) -> None:
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr


def test_kind_errors(base: Path, tmp_path: Path) -> None:
    complains(compare(base, tmp_path / "no"), "no is not a folder")
    complains(compare(tmp_path, base), "holds no results")
    complains(compare(base), "DIR_B")
    twice = tmp_path / "twice"
    shutil.copytree(base, twice / "x")
    shutil.copytree(base, twice / "y")
    complains(compare(base, twice), '"small" twice')
    others = tmp_path / "others"
    play(others / "x", name="x")
    play(others / "y", name="y")
    complains(compare(base, others), "no experiment of the same name", '"small"', '"x", "y"')
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "results.sqlite").write_text("nothing of the kind")
    complains(compare(base, tmp_path / "bad"), "damaged")


def test_an_unplayed_folder_has_nothing_in_common(base: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(_: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        fastfed.run(experiment_from_spec(spec()), tmp_path / "b", progress=stop)
    (found,) = as_json(base, tmp_path / "b")["experiments"]
    assert found["curves"] == [] and found["only_in_a"] == ["open", "LDP"]
    assert compare(base, tmp_path / "b").exit_code == 0


def test_another_relation_is_another_guarantee(base: Path, tmp_path: Path) -> None:
    curve = [spec()["curve"][0], private(epsilon=1.0, relation="zero-out")]
    (found,) = as_json(base, play(tmp_path / "b", curve=curve))["experiments"]
    assert [c["same_privacy"] for c in found["curves"]] == [True, False]


def test_curves_of_other_sizes_are_not_paired(base: Path, tmp_path: Path) -> None:
    """Six silos meet other users than four, so the difference has the noise of both."""
    curve = [spec()["curve"][0], private(epsilon=1.0, silos=6)]
    other = play(tmp_path / "b", curve=curve)
    (found,) = as_json(base, other)["experiments"]
    before, now = finals(base, "LDP"), finals(other, "LDP")
    spread = math.hypot(*(x.std(ddof=1) / math.sqrt(len(x)) for x in (before, now)))
    assert found["curves"][1]["difference"]["mean"] == pytest.approx(now.mean() - before.mean())
    assert found["curves"][1]["difference"]["stderr"] == pytest.approx(spread)
    assert found["curves"][0]["difference"]["stderr"] == 0.0
