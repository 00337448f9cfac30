"""fastfed.run, reproduce, report, compare, audit and plan do the same as the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fastfed
from fastfed import InputError, experiments
from fastfed.cli import cli
from fastfed.privacy import AuditResult
from fastfed.simulation import load_experiment

SPEC = """
name = "small"
horizon = 40
silos = 3
replicates = 3

[figure]
title = "Small"
all = { replicates = 2 }

[environment]
kind = "sphere"
dimension = 3
actions = 4

[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 5
"""


@pytest.fixture(autouse=True)
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Return the path of a small spec file."""
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the package's figures by "small" and "files", which needs data; return a folder."""
    folder = tmp_path / "figures"
    folder.mkdir()
    monkeypatch.setattr(experiments, "FOLDER", folder)
    text = SPEC.replace('title = "Small"', 'title = "Small"\npaper = "a-2020"')
    (folder / "small.toml").write_text(text)
    data = text.replace(
        'kind = "sphere"\ndimension = 3\nactions = 4', 'kind = "letor"\npath = "DATA"'
    )
    (folder / "files.toml").write_text(data.replace('name = "small"', 'name = "files"'))
    return tmp_path / "out"


def command(*words: object) -> str:
    """Run a command that succeeds and return what it prints to stdout."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def regrets(results: fastfed.Results) -> list[np.ndarray]:
    """Return the regret of every curve."""
    return [curve.group_regret for curve in results.curves]


def test_run_takes_a_spec_file_or_an_experiment(spec: Path, tmp_path: Path) -> None:
    from_path = fastfed.run(str(spec), tmp_path / "a", replicates=2, seed=5)
    from_experiment = fastfed.run(load_experiment(spec, replicates=2, seed=5), tmp_path / "b")
    np.testing.assert_array_equal(regrets(from_path), regrets(from_experiment))
    assert from_path.curves[0].replicates == (0, 1)
    command("run", spec, "-o", tmp_path / "c", "--quick")
    quick = fastfed.run(spec, tmp_path / "d", quick=True)
    assert quick.curves[0].horizon == 5  # one batch
    np.testing.assert_array_equal(regrets(quick), regrets(fastfed.load(tmp_path / "c")))
    with pytest.raises(InputError, match="are for a spec file"):
        fastfed.run(load_experiment(spec), tmp_path / "e", quick=True)


def test_a_spec_may_name_modules_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine_for_api.py").write_text(
        "def draw(seed, replicate, silo, t):\n    return [[1.0, 0.0]], [0.5]\n"
    )
    path = tmp_path / "s.toml"
    table = 'kind = "python"\nfunction = "mine_for_api:draw"\ndimension = 2\nactions = 1'
    path.write_text(SPEC.replace('kind = "sphere"\ndimension = 3\nactions = 4', table))
    assert len(fastfed.run(path, tmp_path / "out").curves) == 1


def test_reproduce_writes_the_same_results_as_the_command(figures: Path) -> None:
    figures_started: list[str] = []
    results = fastfed.reproduce("small", figures, quick=True, on_figure=figures_started.append)
    assert list(results) == figures_started == ["small"]
    command_folder = figures.with_name("other")
    command("reproduce", "small", "-o", command_folder, "--quick")
    np.testing.assert_array_equal(
        regrets(results["small"]), regrets(fastfed.load(command_folder / "small"))
    )
    assert sorted(path.name for path in figures.iterdir()) == sorted(
        path.name for path in command_folder.iterdir()
    )
    assert (figures / "statements.json").read_text() == (
        command_folder / "statements.json"
    ).read_text()


def test_reproducing_all_figures_skips_figures_that_need_data(figures: Path) -> None:
    agent_rounds: list[int] = []
    results = fastfed.reproduce("all", figures, progress=agent_rounds.append)
    assert list(results) == ["small"] and sum(agent_rounds) == 40 * 3 * 2
    rows = json.loads((figures / "statements.json").read_text())["statements"]
    assert {(row["figure"], row["verdict"]) for row in rows} == {
        ("small", "not judged"), ("files", "not played"),
    }  # fmt: skip
    # Repeating the call simulates nothing.
    assert list(fastfed.reproduce("all", figures, progress=agent_rounds.append)) == ["small"]
    assert sum(agent_rounds) == 40 * 3 * 2


def test_reproduce_refuses_before_anything_is_simulated(figures: Path) -> None:
    for names, options, message in (
        ("smal", {}, 'unknown figure "smal"'),
        (["small", "files"], {}, "--data PATH"),
        ("small", {"quick": True, "full": True}, "quick and full"),
        ("small", {"replicates": 0}, "replicates"),
    ):
        with pytest.raises(InputError, match=message):
            fastfed.reproduce(names, figures, **options)
    assert not figures.exists()


def test_report_and_compare_read_output_folders(figures: Path) -> None:
    fastfed.reproduce("small", figures)
    (figures / "report.html").unlink()
    written = fastfed.report(figures)
    assert written[-1] == figures / "report.html" and all(path.is_file() for path in written)
    (figures / "bad").mkdir()
    (figures / "bad" / "results.sqlite").write_text("no store")
    left_out: list[str] = []
    fastfed.report(figures, on_left_out=left_out.append)
    assert len(left_out) == 1 and "bad" in left_out[0]
    assert (
        fastfed.compare(figures / "small", figures / "small").comparisons[0].curves[0].mean == 0.0
    )


def test_audit_takes_a_name_or_a_function() -> None:
    result = fastfed.audit("laplace", trials=200, seed=3)
    assert isinstance(result, AuditResult) and result.trials == 200
    command_result = json.loads(command("audit", "laplace", "--trials", 200, "--seed", 3, "--json"))
    assert command_result["epsilon_lower_bound"] == result.epsilon_lower_bound

    def noisy(data: float, rng: np.random.Generator) -> float:
        return data + rng.laplace(scale=0.5)

    assert fastfed.audit(noisy, 0.0, 1.0, epsilon=1.0, delta=0.0).verdict == "caught"
    with pytest.raises(InputError, match='audit "laplace" has built-in datasets'):
        fastfed.audit("laplace", 0.0, 1.0)  # type: ignore[call-overload]
    with pytest.raises(InputError, match='mean "laplace"'):
        fastfed.audit("laplac")
    with pytest.raises(InputError, match="mechanism must be a function of the data"):
        fastfed.audit(3, 0.0, 1.0, epsilon=1.0, delta=0.0)  # type: ignore[call-overload]


def test_plan_takes_the_environment_of_a_spec_file(spec: Path) -> None:
    requirements = {"silos": 4, "horizon": 60, "epsilon": 4.0, "delta": 1e-5, "trust": "central"}
    plan_from_spec = fastfed.plan(environment=spec, seconds=0.01, **requirements)
    plan_from_table = fastfed.plan(
        environment={"kind": "sphere", "dimension": 3, "actions": 4}, seconds=0.01, **requirements
    )
    assert plan_from_spec.to_builtins() == plan_from_table.to_builtins()
