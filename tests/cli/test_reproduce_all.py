"""`fastfed reproduce all`: its forecast, how it continues after a stop, and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fastfed import experiments
from fastfed.cli import RunFailed, cli, execution
from fastfed.cli.execution import elapsed_and_left
from fastfed.experiments.reproduction import PlannedFigure
from fastfed.reporting.figure import SIZES

FIGURE = """
name = "{name}"
horizon = {horizon}
silos = 4
replicates = 4
checkpoints = 4

[figure]
id = "{name}"
paper = "{paper}"
title = "Title of {name}"
says = "In one sentence."
{keys}

[environment]
kind = "sphere"
dimension = 3
actions = 5

[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 10
sieve = 1.0

[[curve]]
label = "LDP"
algorithm = "private-fedlinucb"
epsilon = 0.5
delta = 1e-5
batch_size = 10
sieve = 1.0
lazy = {lazy}
"""

COSTS = '[[figure.statement]]\nsays = "Privacy costs."\nbelow = ["open", "LDP"]\n'
FREE = '[[figure.statement]]\nsays = "Privacy is free."\nnear = ["LDP", "open"]\nwithin = 0.01\n'


def text(name: str, keys: str, paper: str = "a-2020", lazy: str = "true", horizon: int = 80) -> str:
    """Return the spec of a figure."""
    return FIGURE.format(name=name, keys=keys, paper=paper, lazy=lazy, horizon=horizon)


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the package's figures by a few small ones, and draw no plots."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = tmp_path / "figures"
    folder.mkdir()
    monkeypatch.setattr(experiments, "FOLDER", folder)
    why = 'why = { fails = "Noise is noise." }\n'
    sizes = "quick = { horizon = 20 }\nall = { replicates = 3 }\nfull = { horizon = 100 }\n"
    written = {
        "exact": text("exact", sizes + COSTS + FREE + why, paper="b-2021"),
        "printed": text("printed", COSTS, lazy="false"),
        "files": text("files", COSTS).replace('kind = "sphere"', 'kind = "letor"\npath = "DATA"')
        .replace("dimension = 3\nactions = 5\n", ""),
        "trial": text("trial", 'long = "It takes a day."\n'),
    }  # fmt: skip
    for name, content in written.items():
        (folder / f"{name}.toml").write_text(content)
    return tmp_path / "out"


def fastfed(*args: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(cli, [str(a) for a in args])


def rows(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the stored statements by figure and sentence."""
    stored = json.loads((out / "statements.json").read_text())
    actual = {(s["figure"], s["says"]): s for s in stored["statements"]}
    assert len(actual) == len(stored["statements"])
    assert sum(stored["counts"].values()) == len(actual)
    return actual


def test_all_prints_a_forecast_first_and_verdicts_last(figures: Path) -> None:
    result = fastfed("reproduce", "all", "-o", figures, "--threads", 1)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == [
        "figure",
        "rounds",
        "replicates",
        "left",
        "agent-rounds",
        "predicted",
        "memory",
    ]
    # 2 curves, 4 silos: 3 replicates of 80 rounds ("all"), and 4 of 80.
    assert lines[1][:5] == ["exact", "80", "3", "6", "1"] and lines[1][5] == "920"
    assert lines[2][:6] == ["printed", "80", "4", "8", "2", "560"]
    assert lines[3][:4] == ["all", "14", "4", "480"]
    assert "skipped files: it needs learning-to-rank files, --data PATH" in result.stderr
    assert "skipped trial: It takes a day." in result.stderr
    assert "1 of 2 figures in " in result.stderr and "ran in " in result.stderr

    statements = rows(figures)
    assert {key: row["verdict"] for key, row in statements.items()} == {
        ("exact", "Privacy costs."): "holds",
        ("exact", "Privacy is free."): "fails",
        ("printed", "Privacy costs."): "unproven",
        ("files", "Privacy costs."): "not played",
        ("trial", "In one sentence."): "not played",
    }
    costs, free = statements["exact", "Privacy costs."], statements["exact", "Privacy is free."]
    assert costs["why"] == "" and free["why"] == "Noise is noise."
    assert costs["judged_on"] == "3 replicates, 80 rounds" and costs["paper"] == "b-2021"
    (difference,) = costs["differences"]
    assert difference["mean"] + 2 * difference["stderr"] < 0
    assert difference["mean"] == pytest.approx(
        difference["first_regret"] - difference["second_regret"]
    )
    unproven = statements["printed", "Privacy costs."]
    assert unproven["order"] == "holds"
    assert unproven["why"].startswith("LDP claims (0.5, 1e-05), which is unproven; condition")
    assert "learning-to-rank" in statements["files", "Privacy costs."]["why"]
    assert statements["trial", "In one sentence."]["why"] == "It takes a day."

    # The terminal (ordered by paper) and the page show the same statements.
    table = result.stdout[result.stdout.index("\na-2020\n") :]
    assert table.index("files: ") < table.index("printed: ") < table.index("\nb-2021\n")
    assert "  fails       Privacy is free.\n" in table and "why: Noise is noise.\n" in table
    words = f"{difference['first']} - {difference['second']}: -"
    assert words in table
    last = "claims: 1 hold, 1 fail, 1 unproven, 2 not played"
    assert result.stdout.endswith(f"\n{last}\n")
    page = (figures / "report.html").read_text()
    assert f"2 experiments; {last}." in page and "Why: Noise is noise." in page
    assert 'class="mark not-played"' in page and 'href="#e-exact"' in page
    assert 'href="#e-trial"' not in page


def test_a_second_call_simulates_nothing_and_keeps_the_table(figures: Path) -> None:
    assert fastfed("reproduce", "all", "-o", figures).exit_code == 0
    before = (figures / "statements.json").read_bytes()
    written = (figures / "exact" / "report.html").stat().st_mtime_ns
    again = fastfed("reproduce", "all", "-o", figures)
    assert again.exit_code == 0 and "exact: nothing left to run" in again.stderr
    assert [line.split()[-1] for line in again.stdout.splitlines()[1:4]] == ["-"] * 3
    assert (figures / "exact" / "report.html").stat().st_mtime_ns == written
    assert (figures / "statements.json").read_bytes() == before
    # Figures that were not run stay in the table of `report`, too.
    assert fastfed("report", figures).exit_code == 0
    assert (figures / "statements.json").read_bytes() == before


def test_the_texts_of_a_figure_may_change_without_a_new_run(figures: Path) -> None:
    assert fastfed("reproduce", "all", "-o", figures).exit_code == 0
    path = experiments.FOLDER / "exact.toml"
    path.write_text(path.read_text().replace("Noise is noise.", "Nothing is free."))
    again = fastfed("reproduce", "all", "-o", figures)
    assert "exact: nothing left to run" in again.stderr
    assert rows(figures)["exact", "Privacy is free."]["why"] == "Nothing is free."
    assert "Nothing is free." in (figures / "exact" / "report.html").read_text()


def test_dry_run_simulates_nothing(figures: Path) -> None:
    result = fastfed("reproduce", "all", "-o", figures, "--dry-run", "--full")
    assert result.exit_code == 0 and not figures.exists()
    lines = [line.split() for line in result.stdout.splitlines()]
    # --full uses the paper's sizes, and then no figure counts as too long.
    assert lines[1][:4] == ["exact", "100", "4", "8"]
    assert [line[0] for line in lines] == ["figure", "exact", "printed", "trial", "all"]
    one = fastfed("reproduce", "exact", "-o", figures, "--dry-run")
    assert one.stdout.splitlines()[1].split()[:4] == ["exact", "80", "4", "8"]
    assert not figures.exists()


def test_quick_judges_nothing(figures: Path) -> None:
    result = fastfed("reproduce", "all", "-o", figures, "--quick")
    assert result.exit_code == 0, result.output
    statements = rows(figures)
    played = [row for row in statements.values() if row["verdict"] != "not played"]
    assert {row["verdict"] for row in played} == {"not judged"} and len(played) == 4
    exact = statements["exact", "Privacy costs."]
    # "exact" has its own quick size; the others run a tenth of their rounds, but at least a batch.
    assert exact["judged_on"] == "2 replicates, 20 rounds" and "--quick" in exact["why"]
    assert statements["printed", "Privacy costs."]["judged_on"] == "2 replicates, 10 rounds"
    for path in (figures / "exact" / "report.html", figures / "exact" / "table.txt"):
        words = path.read_text()
        assert "not judged" in words and "hy: Noise is noise." not in words
        assert 'class="mark holds">holds' not in words and "\nfails " not in words
    # A report that is drawn again later is still marked as a quick run.
    assert fastfed("report", figures).exit_code == 0
    assert rows(figures) == statements
    alone = fastfed("reproduce", "exact", "-o", figures / "alone", "--quick", "--replicates", 3)
    assert "b-2021: Privacy costs. (not judged)" in alone.stdout
    assert "3 replicates, 20 rounds" in alone.stdout


@pytest.mark.parametrize("while_writing", [False, True])
def test_a_stop_keeps_finished_figures(
    figures: Path, monkeypatch: pytest.MonkeyPatch, while_writing: bool
) -> None:
    name = "write_report" if while_writing else "simulate_silently"
    real = getattr(execution, name)
    calls = []

    def stopped(*args: Any) -> Any:
        """Call the real function; the second call interrupts the run."""
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(execution, name, stopped)
    result = fastfed("reproduce", "all", "-o", figures)
    assert result.exit_code == 130 and "the same command continues" in result.stderr
    statements = rows(figures)
    assert statements["exact", "Privacy costs."]["verdict"] == "holds"
    second = statements["printed", "Privacy costs."]
    if while_writing:
        assert second["verdict"] == "unproven"
    else:
        assert second["verdict"] == "not played" and "stopped" in second["why"]
    monkeypatch.setattr(execution, name, real)
    again = fastfed("reproduce", "all", "-o", figures)
    assert again.exit_code == 0 and "exact: nothing left to run" in again.stderr
    assert again.stdout.splitlines()[1].split()[3] == "0"
    assert rows(figures)["printed", "Privacy costs."]["verdict"] == "unproven"
    assert (figures / "printed" / "report.html").exists()


def test_a_figure_that_fails_does_not_stop_the_others(
    figures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = execution.simulate_silently

    def failing(experiment: Any, *args: Any) -> Any:
        """Run as before; the figure "exact" fails."""
        if experiment.name == "exact":
            raise RunFailed("out of memory")
        return real(experiment, *args)

    monkeypatch.setattr(execution, "simulate_silently", failing)
    result = fastfed("reproduce", "all", "-o", figures)
    assert result.exit_code == 1 and "1 of 2 figures failed: exact" in result.stderr
    statements = rows(figures)
    assert statements["exact", "Privacy costs."]["verdict"] == "not played"
    assert statements["exact", "Privacy costs."]["why"] == "out of memory"
    assert statements["printed", "Privacy costs."]["verdict"] == "unproven"


def test_a_folder_of_another_experiment_is_refused_before_any_run(figures: Path) -> None:
    assert fastfed("reproduce", "printed", "-o", figures, "--quick").exit_code == 0
    result = fastfed("reproduce", "all", "-o", figures)
    assert result.exit_code == 2 and "holds a different experiment" in result.stderr
    assert not (figures / "exact").exists()


def test_stored_replicates_are_used(figures: Path) -> None:
    """Check that `all` simulates only replicates that the figure's own run has not simulated."""
    assert fastfed("reproduce", "exact", "-o", figures).exit_code == 0
    result = fastfed("reproduce", "all", "-o", figures)
    assert result.stdout.splitlines()[1].split()[:4] == ["exact", "80", "3", "0"]
    assert rows(figures)["exact", "Privacy costs."]["judged_on"] == "4 replicates, 80 rounds"
    more = fastfed("reproduce", "all", "-o", figures, "--replicates", 5)
    assert more.stdout.splitlines()[1].split()[:4] == ["exact", "80", "5", "2"]


def test_several_figures_may_be_named(figures: Path) -> None:
    result = fastfed("reproduce", "exact", "printed", "-o", figures)
    assert result.exit_code == 0, result.output
    # Named figures have their own sizes, and their tables are printed.
    assert "b-2021: Privacy costs. (holds)" in result.stdout
    assert "a-2020: Privacy costs. (unproven)" in result.stdout
    assert rows(figures)["exact", "Privacy costs."]["judged_on"] == "4 replicates, 80 rounds"
    assert ("trial", "In one sentence.") not in rows(figures)


def plan(*seconds: float) -> list[PlannedFigure]:
    """Return figures whose runs are expected to take these seconds."""
    return [PlannedFigure(None, None, 1, 1, s) for s in seconds]  # type: ignore[arg-type]


def test_the_remaining_time_learns_from_finished_figures() -> None:
    # Two figures took 4 s more than the predicted 6: 2 s for each, also for the one that is left.
    assert (
        elapsed_and_left(plan(1.0, 5.0, 30.0), 2, 10.0) == "2 of 3 figures in 10 s, about 32 s left"
    )
    # The first figure ran twice as fast as predicted.
    assert elapsed_and_left(plan(10.0, 30.0), 1, 5.0) == "1 of 2 figures in 5 s, about 15 s left"
    assert elapsed_and_left(plan(0.0, 3.0), 1, 1.0) == "1 of 2 figures in 1 s, about 4 s left"


@pytest.mark.parametrize("name", experiments.figure_ids())
def test_sizes_of_the_figures(name: str) -> None:
    """Check that "quick" and "all" are at most a figure's size, and "full" is at least its size."""
    spec = experiments.figure(name).spec
    for size in SIZES:
        for key, value in spec["figure"].get(size, {}).items():
            assert value <= spec[key] if size in ("quick", "all") else value >= spec[key]
            # Two replicates are the least that has a standard error.
            assert key != "replicates" or value >= 2
    # A size changes horizon, silos and replicates, but no key of a curve.
    chosen = experiments.figure(name)
    if not chosen.needs_data:
        whole, quick = (experiments.figure_spec(chosen, None, size) for size in (None, "quick"))
        assert whole["curve"] == quick["curve"] and quick["figure"]["size"] == "quick"
        assert "size" not in whole["figure"]


def test_every_figure_of_the_papers_is_included() -> None:
    papers = {
        "zc24": ["fig2a", "fig2b", "fig2c", "fig3a", "fig3b", "fig3c", "fig3d", "d135"],
        "cz22": ["fig1a", "fig1b", "fig1c", "fig2a", "fig2b"],
        "dp20": ["fig1a", "fig1b", "fig1c", "fig2"],
    }
    wanted = {
        f"{p}-{f}{end}" for p, names in papers.items() for f in names for end in ("", "-exact")
    }
    wanted |= {"dp20-decentralized", "dp20-trial", "g24-stoch", "g24-svt", "g24-oblivious"}
    wanted |= {"h23-regret", "h23-scaling", "h23-hard", "h23-diversity", "truth", "truth-5"}
    assert wanted <= set(experiments.figure_ids())
