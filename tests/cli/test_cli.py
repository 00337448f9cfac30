"""The command line: its output, its exit codes, and that bad input writes no files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fastfed import __version__, experiments
from fastfed.cli import COMMANDS, cli
from fastfed.cli.output import ENGINES, PROGRESS_SECONDS, Lines, duration
from fastfed.cli.run import COMMANDS as RUN_COMMANDS
from fastfed.environments import ENVIRONMENTS, Letor
from fastfed.experiments.specs import quick_horizon
from fastfed.privacy import MECHANISMS
from fastfed.reporting import plot_files
from fastfed.reporting.figure import check_figure
from fastfed.simulation import engines
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.systems import ALGORITHMS

SPEC = """
name = "small"
horizon = 60
silos = 4
replicates = 2
checkpoints = 6

[environment]
kind = "sphere"
dimension = 3
actions = 5

[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 10

[[curve]]
label = "LDP"
algorithm = "private-fedlinucb"
epsilon = [0.5, 1.5]
delta = 1e-5
batch_size = 10
"""

# A spec so long that its run is still going when the test interrupts it.
LONG = SPEC.replace("horizon = 60", "horizon = 2_000_000").replace("silos = 4", "silos = 20")


def fastfed(*args: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(cli, [str(a) for a in args])


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Write a small spec, and return its path."""
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no plots in tests that do not look at them: drawing takes ten times as long as runs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def cells_of_store(folder: Path) -> dict[tuple[int, int], bytes]:
    """Return every cell of a store, as its bytes."""
    with sqlite3.connect(folder / "results.sqlite") as db:
        return {
            (position, replicate): b"".join(blobs)
            for position, replicate, *blobs in db.execute(
                "SELECT position, replicate, group_regret, synchronisations, bits_up, bits_down "
                "FROM cells"
            )
        }


def timings(folder: Path) -> dict[tuple[int, int], float]:
    """Return the stored seconds of every (curve, replicate)."""
    with sqlite3.connect(folder / "results.sqlite") as db:
        return {
            (p, r): s for p, r, s in db.execute("SELECT position, replicate, seconds FROM timings")
        }


# ---- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [["--help"], [], ["--version"], ["run", "--help"], ["calibrate", "-h"]]
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from fastfed.cli import cli\n"
        f"try:\n    cli.main({args!r}, prog_name='fastfed')\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'numpy', 'scipy', 'numba', 'matplotlib', 'sklearn', 'sqlite3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "fastfed" in result.stdout


def test_a_figure_in_the_place_of_a_command_gets_a_hint() -> None:
    result = fastfed("spec", "g24-svt")
    assert result.exit_code == 2
    assert "`fastfed spec show FIGURE` prints the spec of a figure" in result.stderr


def test_a_misspelled_command_of_a_group_is_named() -> None:
    result = fastfed("deploy", "nw")
    assert result.exit_code == 2
    assert 'unknown command "nw"; did you mean "new"?' in result.stderr
    assert "deploy --help` names all" in result.stderr


def test_a_wrong_return_of_a_function_is_reported_with_its_round(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import numpy as np\n"
        "def draw(seed, replicate, silo, round):\n"
        "    return np.zeros((3, 3 if (silo, round) == (1, 5) else 2)), np.zeros(3)\n"
    )
    (tmp_path / "spec.toml").write_text(
        'name = "wrong"\nhorizon = 20\nsilos = 2\nreplicates = 1\n'
        '[environment]\nkind = "python"\nfunction = "wrong:draw"\ndimension = 2\nactions = 3\n'
        '[[curve]]\nlabel = "a"\nalgorithm = "fedlinucb"\n'
    )
    for engine in ("local", "processes"):
        result = subprocess.run(
            [sys.executable, "-m", "fastfed", "run", "spec.toml", "-o", engine, "--engine", engine],
            capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f".{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )  # fmt: skip
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == (
            "error: in the environment's function (replicate 0, silo 1, round 5): "
            "features must have shape (any, 2), got (3, 3)"
        )


def test_a_warning_is_one_plain_sentence(tmp_path: Path) -> None:
    """Check that warnings of the package show no line of code; a user's warnings are unchanged."""
    code = """
import sys, warnings
from fastfed.cli import _show_warnings_plainly
from fastfed.environments import letor_files
_show_warnings_plainly()
letor_files.warnings.warn_explicit("one", UserWarning, letor_files.__file__, 7)
warnings.warn_explicit("other", UserWarning, "plugin.py", 8)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert result.stderr == "warning: one\nplugin.py:8: UserWarning: other\n"


def test_help_of_a_command_has_the_summary_of_the_group() -> None:
    for name, (_, summary) in COMMANDS.items():
        text = fastfed(name, "--help").output
        assert summary in " ".join(text.split()), name


def test_python_m_fastfed() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fastfed", "--version"], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("fastfed ")


# ---- list, calibrate, privacy, doctor ----------------------------------------------------------


def test_list_json_names_everything() -> None:
    result = fastfed("list", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    listed = json.loads(result.stdout)
    assert list(listed) == ["algorithms", "environments", "mechanisms", "scores", "figures"]
    assert [a["id"] for a in listed["algorithms"]] == list(ALGORITHMS)
    assert [e["id"] for e in listed["environments"]] == list(ENVIRONMENTS)
    assert [m["id"] for m in listed["mechanisms"]] == list(MECHANISMS)
    assert [s["id"] for s in listed["scores"]] == ["ucb"]
    assert all(entry["summary"] for kind in list(listed)[:4] for entry in listed[kind])
    assert [f["id"] for f in listed["figures"]] == experiments.figure_ids()
    assert all({"id", "paper", "summary"} <= set(a) for a in listed["algorithms"])
    assert all({"id", "paper", "title"} <= set(f) for f in listed["figures"])


@pytest.mark.parametrize("kind", ["algorithms", "environments", "mechanisms", "scores", "figures"])
def test_list_one_kind(kind: str) -> None:
    assert list(json.loads(fastfed("list", kind, "--json").stdout)) == [kind]
    text = fastfed("list", kind).stdout
    assert text.startswith(f"{kind}\nid ")


def test_calibrate_json_has_the_keys() -> None:
    with_dimension = ("vector-sum", "vector-batches", "secure-sum")
    with_users = (*with_dimension, "shuffled-points")
    for mechanism in MECHANISMS:
        result = fastfed(
            "calibrate", mechanism, "--epsilon", 1, "--delta", 1e-5, "--releases", 400, "--json",
            *(("--users", 2500) if mechanism in with_users else ()),
            *(("--dimension", 10) if mechanism in with_dimension else ()),
        )  # fmt: skip
        document = json.loads(result.stdout)
        assert list(document) == [
            "mechanism", "epsilon", "delta", "relation", "releases", "noise_std", "mu", "source",
        ]  # fmt: skip
        assert document["mechanism"] == mechanism
        assert document["noise_std"] > 0
        assert mechanism in fastfed("calibrate", "--help").output


def test_calibrate_relation_and_text() -> None:
    args = ("calibrate", "gaussian", "--epsilon", 1, "--delta", 1e-5)
    std = {
        relation: json.loads(fastfed(*args, "--relation", relation, "--json").stdout)["noise_std"]
        for relation in ("replace", "zero-out")
    }
    assert std["replace"] > std["zero-out"]
    assert f"noise std   {std['replace']:.6g}" in fastfed(*args).stdout


def test_calibrate_list_says_what_every_mechanism_is() -> None:
    document = json.loads(fastfed("calibrate", "list", "--json").stdout)
    assert [each["name"] for each in document] == list(MECHANISMS)
    assert all(each["unit"] and each["noise_std"] and each["summary"] for each in document)
    scaled = {each["name"] for each in document if each["sensitivity"]}
    assert scaled == {"gaussian", "noisy-argmin", "laplace", "exponential"}
    text = fastfed("calibrate", "list").stdout
    assert text.startswith("mechanism ") and "--users --dimension" in text


def test_calibrate_scales_noise_with_the_sensitivity() -> None:
    for mechanism, default in {
        "gaussian": 2,
        "noisy-argmin": 1,
        "laplace": 1,
        "exponential": 1,
    }.items():
        args = ("calibrate", mechanism, "--epsilon", 1, "--delta", 1e-5, "--json")
        plain, explicit, tripled = (
            json.loads(fastfed(*args, *more).stdout)
            for more in ((), ("--sensitivity", default), ("--sensitivity", 3 * default))
        )
        assert explicit["noise_std"] == plain["noise_std"]
        assert tripled["noise_std"] == pytest.approx(3 * plain["noise_std"], rel=1e-12)
        assert tripled["mu"] == pytest.approx(plain["mu"], rel=1e-12)
        assert f"sensitivity {3 * default}" in tripled["source"]


def test_audit_list_names_every_audit() -> None:
    from fastfed.simulation.audit import AUDITS

    document = json.loads(fastfed("audit", "list", "--json").stdout)
    assert [each["name"] for each in document] == list(AUDITS)
    assert all(each["attacks"] and each["unit"] and each["relation"] for each in document)
    assert {each["name"] for each in document if each["planted"]} == {
        name for name in AUDITS if name.startswith("fault-")
    }
    assert fastfed("audit", "list").stdout.startswith("audit ")


def test_privacy_prints_certificates_and_simulates_nothing(spec: Path) -> None:
    before = sorted(spec.parent.iterdir())
    curves = json.loads(fastfed("privacy", spec, "--json").stdout)["curves"]
    assert [c["label"] for c in curves] == ["open", "LDP, epsilon = 0.5", "LDP, epsilon = 1.5"]
    assert [c["certificate"]["status"] for c in curves] == ["none", "proven", "proven"]
    assert curves[1]["certificate"]["claimed"] == {"epsilon": 0.5, "delta": 1e-5}
    origins = [{c["certificate"][k] for k in ("version", "spec_digest", "date")} for c in curves]
    assert origins[0] == origins[1] == origins[2] and __version__ in origins[0]
    text = fastfed("privacy", spec).stdout
    assert "LDP, epsilon = 1.5\n==================\nPrivacy certificate\n" in text
    assert sorted(spec.parent.iterdir()) == before


def test_privacy_of_a_changed_spec_and_of_a_figure(spec: Path) -> None:
    changed = fastfed("privacy", spec, "--json", "--set", "curve.epsilon=2.0").stdout
    (claim,) = [c["certificate"]["claimed"] for c in json.loads(changed)["curves"][1:]]
    assert claim == {"epsilon": 2.0, "delta": 1e-5}
    figure = json.loads(fastfed("privacy", "zc24-fig3a", "--json").stdout)["curves"]
    assert [c["label"] for c in figure][:2] == ["FedLinUCB", "LDP, epsilon = 0.2"]


def test_doctor_reports_a_flipped_bit_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.txt"
    write_letor(data, queries=6)
    Letor(path=data).pool(2)
    assert fastfed("doctor").exit_code == 0
    arrays = sorted((tmp_path / "cache").rglob("*.npy"))
    assert len(arrays) > 5
    for path in arrays:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        result = fastfed("doctor")
        assert result.exit_code == 1 and f"{path} is not what was written" in result.output
        path.write_bytes(whole)
    assert fastfed("doctor").exit_code == 0


def test_doctor_reports_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rank.txt"
    write_letor(data, queries=3)
    from fastfed.environments.letor_files import read_letor

    read_letor(data)
    result = fastfed("doctor", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [e["path"] for e in document["cache"]["entries"]] == [str(data)]
    assert document["build"]["compiled"] and document["problems"] == []

    data.write_text(data.read_text() + "1 qid:9 1:0.5 2:0.5\n")
    for result in (fastfed("doctor"), fastfed("doctor", "--data", data)):
        assert result.exit_code == 1
        assert "changed since it was cached" in result.stdout
    assert fastfed("doctor", "--data", tmp_path / "none").exit_code == 2


def test_doctor_names_the_instructions_in_use_and_the_reason() -> None:
    from fastfed._kernels import _native

    build = json.loads(fastfed("doctor", "--json").stdout)["build"]
    assert build["level"] == _native.LEVEL and build["compiler"] == _native.COMPILER
    line = f"instructions: {build['level']} ("
    assert line in fastfed("doctor").stdout and build["level_reason"] in fastfed("doctor").stdout
    if _native.HAS_LEVELS and _native.PROCESSOR == "v4":
        limited = {**os.environ, "FASTFED_LEVEL": "v3"}
        code = "from fastfed.cli import main; main()"
        run = subprocess.run(
            [sys.executable, "-c", code, "doctor"], env=limited, capture_output=True, text=True
        )
        assert "v3 (AVX2), FASTFED_LEVEL=v3 limits it; the processor has v4" in run.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_its_shell_accepts(shell: str) -> None:
    script = fastfed("completion", shell).stdout
    assert "_FASTFED_COMPLETE=" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fastfed compl", {"plain,completion"}),
        ("fastfed run --eng", {"plain,--engine"}),
        ("fastfed completion fi", {"plain,fish"}),
        ("fastfed nothing --eng", set()),
    ],
)
def test_commands_options_and_choices_complete(words: str, found: set[str]) -> None:
    env = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(
        cli, [], prog_name="fastfed", env={**env, "_FASTFED_COMPLETE": "bash_complete"}
    )
    assert set(result.stdout.split()) == found


def test_bench_prints_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.simulation import bench

    row = {
        "name": "tiny",
        "microseconds_per_agent_round": 1.234,
        "reference_microseconds_per_agent_round": 50.0,
        "ratio": 40.5,
        "ratio_without_data": 30.1,
        "limit_microseconds": 2.0,
        "bound": "int16",
        "share_of_limit": 0.62,
        "threads": 1,
    }
    monkeypatch.setattr(bench, "run_bench", lambda: [row])
    assert json.loads(fastfed("bench", "--json").stdout) == [row]
    assert "tiny" in (text := fastfed("bench").stdout) and "1.23" in text and "62 %" in text


def test_bench_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.simulation import bench

    def fails() -> None:
        subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)

    monkeypatch.setattr(bench, "run_bench", fails)
    result = fastfed("bench")
    assert result.exit_code == 1 and "ended with status 3" in result.output


# ---- run ---------------------------------------------------------------------------------------


def test_run_writes_the_report_and_prints_the_table(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = fastfed("run", spec, "-o", out)
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in out.iterdir()) == [
        "certificates.txt", "report.html", "results.sqlite", "table.csv", "table.txt",
    ]  # fmt: skip
    assert f"as files: fastfed report {out}" in result.stderr
    table = (out / "table.txt").read_text()
    assert result.stdout.startswith(table)
    assert "group regret" in result.stdout[len(table) :]
    assert "agent-rounds" in result.stderr.splitlines()[0] and "about" in result.stderr

    listed = json.loads(fastfed("results", out, "--json").stdout)
    assert {"experiment", "horizon", "silos", "curves"} <= set(listed)
    assert {
        "label", "algorithm", "protocol", "replicates", "group_regret", "per_silo_regret",
        "time_average_regret", "rounds", "mean_curve", "stderr_curve", "synchronisations",
        "synchronisations_curve", "bits_up", "bits_down", "bytes_up", "bytes_down", "bytes_curve",
        "agent_rounds_per_second", "certificate",
    } <= set(listed["curves"][0])  # fmt: skip
    assert listed["statements"] == []
    assert fastfed("results", out).stdout == (out / "table.txt").read_text()
    assert fastfed("results", out, "--csv").stdout == (out / "table.csv").read_text()


def test_added_replicates_repeat_nothing_and_equal_one_run(spec: Path, tmp_path: Path) -> None:
    grown, at_once = tmp_path / "grown", tmp_path / "straight"
    fastfed("run", spec, "-o", grown, "--replicates", 2)
    first, first_timings = cells_of_store(grown), timings(grown)
    assert len(first) == 6
    assert fastfed("run", spec, "-o", grown, "--replicates", 4, "--threads", 1).exit_code == 0
    fastfed("run", spec, "-o", at_once, "--replicates", 4, "--threads", 2)
    assert cells_of_store(grown) == cells_of_store(at_once)
    # A repeated replicate would have another time.
    assert {k: timings(grown)[k] for k in first_timings} == first_timings

    again = fastfed("run", spec, "-o", grown, "--replicates", 4)
    assert again.exit_code == 0 and "nothing left to run" in again.stderr
    assert "4 replicates" in again.stdout


def test_seed_option_replaces_the_seed_of_the_spec(spec: Path, tmp_path: Path) -> None:
    fastfed("run", spec, "-o", tmp_path / "a", "--seed", 7)
    spec.write_text(SPEC.replace("silos = 4", "silos = 4\nseed = 7"))
    fastfed("run", spec, "-o", tmp_path / "b")
    fastfed("run", spec, "-o", tmp_path / "c", "--seed", 8)
    assert (
        cells_of_store(tmp_path / "a")
        == cells_of_store(tmp_path / "b")
        != cells_of_store(tmp_path / "c")
    )


def test_quick_is_a_shorter_and_different_experiment(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fastfed("run", spec, "-o", out, "--quick").exit_code == 0
    listed = json.loads(fastfed("results", out, "--json").stdout)
    # A tenth of 60 rounds is less than a batch.
    assert listed["horizon"] == 10
    assert {c["replicates"] for c in listed["curves"]} == {2}
    assert {c["synchronisations"] for c in listed["curves"]} == {1}
    whole = fastfed("run", spec, "-o", out)
    assert whole.exit_code == 2 and "different" in whole.stderr


def test_the_options_name_every_engine_and_every_format() -> None:
    assert list(ENGINES) == list(engines.ENGINES)
    for command in ("run", "report"):
        (option,) = (p for p in RUN_COMMANDS[command].params if p.name == "formats")
        assert tuple(option.type.choices) == plot_files.ALL_FORMATS


@pytest.mark.parametrize(
    ("horizon", "batches", "expected"),
    [(1000, [25], 100), (1000, [25, 300], 300), (5, ["theorem"], 1), (40, [100], 40)],
)
def test_quick_horizon(horizon: int, batches: list[Any], expected: int) -> None:
    curves = [{"batch_size": b} for b in batches] + [{"algorithm": "local-linucb"}]
    assert quick_horizon({"horizon": horizon, "curve": curves}) == expected
    assert quick_horizon({"horizon": horizon, "curve": [{"batch_size": batches}]}) == expected


def test_figure_table_is_about_drawing_only(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastfed("run", spec, "-o", out)
    spec.write_text(SPEC + '[figure]\ntitle = "A new title"\ny = "time-average"\n')
    again = fastfed("run", spec, "-o", out)
    assert "nothing left to run" in again.stderr
    assert again.stdout.startswith("A new title\n")
    assert fastfed("results", out).stdout.startswith("A new title\n")


def test_python_function_beside_the_spec(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "mine_for_cli.py").write_text(
        "import numpy as np\n"
        "def rounds(seed, replicate, silo, round):\n"
        "    return np.eye(3), np.array([0.2, 0.5, 0.9])\n"
    )
    table = 'kind = "python"\nfunction = "mine_for_cli:rounds"\ndimension = 3\nactions = 3\n'
    spec.write_text(SPEC.replace('kind = "sphere"\ndimension = 3\nactions = 5\n', table))
    result = fastfed("run", spec, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output


def test_run_writes_plots_that_are_requested_or_already_there(spec: Path, tmp_path: Path) -> None:
    """Check that plots in the folder are drawn again, so that none shows fewer replicates."""
    out = tmp_path / "out"
    requested = fastfed("run", spec, "-o", out, "--format", "svg")
    assert requested.exit_code == 0 and "figure.svg" in requested.stderr
    assert {p.name for p in out.glob("*.*g")} == {"figure.svg", "communication.svg"}
    assert "as files" not in requested.stderr
    before = (out / "figure.svg").read_bytes()
    more = fastfed("run", spec, "-o", out, "--replicates", 3)
    assert more.exit_code == 0 and "communication.svg" in more.stderr
    assert (out / "figure.svg").read_bytes() != before
    assert not list(out.glob("*.png"))


def test_a_run_that_shows_fewer_replicates_than_are_stored_says_so(
    spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    more = fastfed("run", spec, "-o", out, "--replicates", 4)
    assert "stored replicates" not in more.stderr
    fewer = fastfed("run", spec, "-o", out, "--replicates", 2)
    assert "shown: 2 of 4 stored replicates; --replicates 4 shows all" in fewer.stderr
    assert "2 replicates" in fewer.stdout


def test_run_without_matplotlib(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    result = fastfed("run", spec, "-o", out)
    assert result.exit_code == 0 and "pip install" not in result.stderr
    page = (out / "report.html").read_text()
    assert 'role="img"' in page and "<polyline" in page
    result = fastfed("run", spec, "-o", out, "--format", "png")
    assert result.exit_code == 0
    assert 'pip install "fastfed[figures]"' in result.stderr
    assert not list(out.glob("*.png"))


def test_pgf_without_latex_is_refused_before_anything_runs(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    complains(fastfed("run", spec, "-o", tmp_path / "out", "--format", "pgf"), "needs LaTeX")
    assert not (tmp_path / "out").exists()


def test_report_rewrites_the_same_files_from_the_store(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastfed("run", spec, "-o", out, "--format", "png", "--format", "svg")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert {".pictures", "figure.png", "communication.svg"} <= set(before)
    for path in out.iterdir():
        if path.name != "results.sqlite":
            path.unlink()
    assert fastfed("report", out).exit_code == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child on Windows")
def test_an_interrupt_leaves_a_readable_store(tmp_path: Path) -> None:
    spec, out = tmp_path / "long.toml", tmp_path / "out"
    spec.write_text(LONG)
    child = subprocess.Popen(
        [sys.executable, "-m", "fastfed", "run", spec, "-o", out, "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Tests that a shell started in the background ignore SIGINT, and so would the child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert child.stderr is not None
    line = child.stderr.readline()  # the estimate: the simulation starts now
    assert "agent-rounds" in line
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert errors.splitlines()[-1].startswith("interrupted:") and "Traceback" not in errors
    empty = fastfed("results", out)
    assert empty.exit_code == 0 and "no replicate has run" in empty.stdout
    assert json.loads(fastfed("results", out, "--json").stdout)["curves"] == []


def test_closed_pipe_is_quiet() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "fastfed", "list", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    errors = child.stderr.read()
    assert (child.wait(timeout=60), errors) == (1, "")


# ---- progress ----------------------------------------------------------------------------------


def test_progress_lines_come_at_most_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(1000, clock=lambda: now)
    for _ in range(100):
        now += PROGRESS_SECONDS / 10.0
        lines(10)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 10
    assert printed[0] == "10 %, 20 agent-rounds/s, 45 s left"
    assert printed[-1] == "100 %, 20 agent-rounds/s"


def test_duration() -> None:
    spans = [(0.2, "1 s"), (59.4, "59 s"), (125, "2 min 5 s"), (7500, "2 h 5 min")]
    assert [duration(s) for s, _ in spans] == [text for _, text in spans]


# ---- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", experiments.figure_ids())
def test_every_figure_is_well_formed(name: str) -> None:
    figure = experiments.figure(name)
    check_figure(figure.spec["figure"])
    assert figure.spec["figure"]["id"] == figure.spec["name"] == name
    assert all(panel in experiments.figure_ids() for panel in figure.panels)
    if not figure.needs_data:
        assert experiment_from_spec(experiments.figure_spec(figure)).curves


@pytest.mark.usefixtures("no_pictures")
def test_figures_that_need_data_are_simulated_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fastfed.experiments.specs.QUICK_SHARE", 1000)
    name = next(f.id for f in experiments.figures() if f.needs_data and f.panels)
    panels = [f.id for f in experiments.with_panels([name])]
    assert len(panels) > 1
    missing = fastfed("reproduce", name, "-o", tmp_path / "out")
    assert missing.exit_code == 2 and "--data" in missing.stderr
    assert not (tmp_path / "out").exists()

    data = tmp_path / "rank.txt"
    write_letor(data, queries=20, features=136)
    result = fastfed("reproduce", name, "-o", tmp_path / "out", "--data", data, "--quick")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "report.html",
        "statements.json",
        *sorted(panels),
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f">{panel}</a>" in page for panel in panels)


@pytest.mark.usefixtures("no_pictures")
def test_reproduce_all_lists_what_it_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "FOLDER", tmp_path / "figures")
    (tmp_path / "figures").mkdir()
    for name, environment in {
        "free": 'kind = "sphere"\ndimension = 3\nactions = 5',
        "data": 'kind = "letor"\npath = "DATA"',
    }.items():
        text = SPEC.replace('kind = "sphere"\ndimension = 3\nactions = 5', environment)
        (tmp_path / "figures" / f"{name}.toml").write_text(
            text.replace('name = "small"', f'name = "{name}"')
            + f'[figure]\nid = "{name}"\npaper = "p"\ntitle = "t"\nsays = "So it goes."\n'
            + "full = { horizon = 80, replicates = 3 }\n"
        )
    result = fastfed("reproduce", "all", "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert "skipped data" in result.stderr
    assert "So it goes." in result.stdout and "1 not judged, 1 not played" in result.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "free",
        "report.html",
        "statements.json",
    ]

    full = fastfed("reproduce", "free", "-o", tmp_path / "full", "--full")
    assert full.exit_code == 0 and "T = 80 rounds" in full.stdout and "3 replicates" in full.stdout
    both = fastfed("reproduce", "free", "-o", tmp_path / "x", "--full", "--quick")
    assert both.exit_code == 2


# ---- bad input ---------------------------------------------------------------------------------


def write_letor(path: Path, queries: int, features: int = 2) -> None:
    """Write a LETOR file of queries with three rows each."""
    rows = []
    for q in range(queries):
        for row in range(3):
            values = " ".join(
                f"{j}:{(7 * q + 3 * row + 5 * j) % 11 * 40}" for j in range(1, features + 1)
            )
            rows.append(f"{(q + row) % 3} qid:{q + 1} {values}")
    path.write_text("\n".join(rows) + "\n")


def complains(result: Result, *words: str) -> None:
    """Check that a command fails with code 2 and one line on standard error with these words."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    for word in words:
        assert word in result.stderr


BAD_SPECS = {
    "epsilon zero": ("epsilon = [0.5, 1.5]", "epsilon = 0", ["epsilon must be > 0, got 0", "LDP"]),
    "epsilon negative": ("epsilon = [0.5, 1.5]", "epsilon = [1.0, -1]", ["epsilon", "-1", "LDP"]),
    "epsilon NaN": ("epsilon = [0.5, 1.5]", "epsilon = nan", ["epsilon", "nan"]),
    "epsilon text": ("epsilon = [0.5, 1.5]", 'epsilon = "one"', ["epsilon", "LDP"]),
    "delta one": ("delta = 1e-5", "delta = 1.0", ["delta", "1.0"]),
    "delta zero": ("delta = 1e-5", "delta = 0", ["delta", "got 0"]),
    "delta missing": ("delta = 1e-5", "", ["delta is required"]),
    "B > T": ("batch_size = 10\n", "batch_size = 61\n", ["batch_size", "60", "61"]),
    "no silos": ("silos = 4", "silos = 0", ["silos", ">= 1", "got 0"]),
    "half a silo": ("silos = 4", "silos = 0.5", ["silos", "0.5"]),
    "no dimension": ("dimension = 3", "dimension = 0", ["dimension", "got 0"]),
    "giant dimension": ("dimension = 3", "dimension = 1_000_000_000_000", ["dimension"]),
    "horizon": ("horizon = 60", "horizon = -5", ["horizon", "-5"]),
    "top key": ("checkpoints", "chekpoints", ["chekpoints", 'mean "checkpoints"']),
    "environment key": ("actions", "action", ['"action"', 'mean "actions"']),
    "curve key": ("delta", "dleta", ["dleta", 'mean "delta"', "LDP"]),
    "algorithm": ('"fedlinucb"', '"fedlinuc"', ["fedlinuc", 'mean "fedlinucb"', "open"]),
    "environment": ('"sphere"', '"spere"', ["spere", 'mean "sphere"']),
    "figure key": ("[[curve]]", '[figure]\ntitel = "x"\n[[curve]]', ["titel", 'mean "title"']),
    "figure y": ("[[curve]]", '[figure]\ny = "sum"\n[[curve]]', ["figure.y", "time-average"]),
    "figure": ('name = "small"', 'name = "small"\nfigure = 3', ["figure must be a table"]),
    "not TOML": ("horizon = 60", "horizon == 60", ["not TOML", "line 3, column 10"]),
    "same label": ('label = "LDP"\n', 'label = "open"\n', ["open"]),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_spec(case: str, spec: Path, tmp_path: Path) -> None:
    old, new, words = BAD_SPECS[case]
    assert old in SPEC
    text = SPEC.replace(old, new, 1)
    if case == "same label":
        text = text.replace("[0.5, 1.5]", "1.0")
    spec.write_text(text)
    before = sorted(tmp_path.iterdir())
    complains(fastfed("run", spec, "-o", tmp_path / "out"), str(spec), *words)
    complains(fastfed("run", spec, "-o", tmp_path / "out", "--quick"), str(spec), *words)
    complains(fastfed("privacy", spec), str(spec), *words)
    assert sorted(tmp_path.iterdir()) == before


def test_empty_and_missing_specs(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.toml", tmp_path / "binary.toml"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe\x00")
    out = tmp_path / "out"
    complains(fastfed("run", empty, "-o", out), "empty.toml", "name is required")
    complains(fastfed("run", binary, "-o", out), "binary.toml", "UTF-8")
    complains(fastfed("run", tmp_path / "no.toml", "-o", out), "no.toml", "cannot be read")
    complains(fastfed("run", tmp_path, "-o", out), "a folder, where a spec file (TOML) is needed")
    a_figure = experiments.figure_ids()[0]
    complains(fastfed("run", a_figure, "-o", out), f"fastfed reproduce {a_figure}")
    assert not out.exists()


def test_fewer_queries_than_silos(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path / "cache"))
    write_letor(tmp_path / "rank.txt", queries=3)
    table = 'kind = "letor"\npath = "rank.txt"\n'
    spec.write_text(SPEC.replace('kind = "sphere"\ndimension = 3\nactions = 5\n', table))
    complains(fastfed("run", spec, "-o", tmp_path / "out"), "silos", "3 queries", "got 4")
    assert not (tmp_path / "out").exists()


def test_output_folder_of_another_experiment(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fastfed("run", spec, "-o", out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    spec.write_text(SPEC.replace("dimension = 3", "dimension = 4"))
    complains(fastfed("run", spec, "-o", out), "a different experiment", "environment")
    complains(fastfed("run", spec, "-o", out, "--seed", 1), "a different experiment", "seed")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_output_that_cannot_be_written(spec: Path, tmp_path: Path) -> None:
    complains(fastfed("run", spec, "-o", spec / "below"), "cannot write", str(spec / "below"))
    complains(fastfed("run", spec, "-o", spec), "cannot write", str(spec))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "results.sqlite").write_text("no database")
    complains(fastfed("run", spec, "-o", broken), "results.sqlite", "damaged")
    complains(fastfed("results", broken), "results.sqlite")
    complains(fastfed("report", tmp_path), "no results")
    complains(fastfed("results", tmp_path / "nothing"), "not a folder")


def test_write_protected_output(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    fastfed("run", spec, "-o", out)
    # Root may write anywhere, so the system's answer is replaced.
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or Path(path) != out)
    complains(fastfed("run", spec, "-o", out, "--replicates", 3), "permission denied", str(out))
    assert len(cells_of_store(out)) == 6


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["rn"], ['unknown command "rn"', 'mean "run"']),
        (["reproduce", "zc24-fig3aa", "-o", "x"], ['unknown figure "zc24-fig3aa"', "zc24-fig3a"]),
        (["run", "s.toml"], ["--output"]),
        (["run"], ["SPEC.toml"]),
        (["run", "s.toml", "-o", "x", "--replicats", "3"], ["--replicats", "--replicates"]),
        (["run", "s.toml", "-o", "x", "--replicates", "0"], ["--replicates", "0"]),
        (["run", "s.toml", "-o", "x", "--threads", "two"], ["--threads", "two"]),
        (["list", "figure"], ['"figures"']),
        (["results", ".", "--json", "--csv"], ["--json", "--csv"]),
        (["calibrate", "gausian", "--epsilon", "1", "--delta", "0.1"], ['mean "gaussian"']),
        (["calibrate", "gaussian", "--epsilon", "nan", "--delta", "0.1"], ["epsilon", "nan"]),
        (["calibrate", "gaussian", "--delta", "0.1"], ["missing option", "--epsilon"]),
        (
            ["calibrate", "honaker", "--epsilon", "1", "--delta", "0.1", "--sensitivity", "2"],
            ["sensitivity is an option of gaussian", "honaker", "got 2"],
        ),
        (
            ["calibrate", "laplace", "--epsilon", "1", "--delta", "0.1", "--sensitivity", "0"],
            ["sensitivity", "got 0"],
        ),
        (["calibrate", "gaussian", "--epsilon", "-1", "--delta", "0.1"], ["epsilon", "-1"]),
        (["calibrate", "gaussian", "--epsilon", "1", "--delta", "0"], ["delta", "got 0"]),
        (["calibrate", "gaussian", "--epsilon", "1", "--delta", "1"], ["delta", "got 1"]),
        (
            ["calibrate", "gaussian", "--epsilon", "1", "--delta", "0.1", "--relation", "replaced"],
            ["relation", 'mean "replace"'],
        ),
    ],
)
def test_bad_arguments(
    args: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    complains(fastfed(*args), *words)
    assert list(tmp_path.iterdir()) == []


def test_bad_seed_says_its_bounds(spec: Path, tmp_path: Path) -> None:
    complains(fastfed("run", spec, "-o", tmp_path / "out", "--seed", -1), "seed", ">= 0", "-1")
    assert not (tmp_path / "out").exists()


def test_a_core_that_is_not_built_is_one_sentence(tmp_path: Path) -> None:
    """Simulate a fresh checkout without a compiled core; `--help` must still work."""
    package = Path(str(experiments.__file__)).parents[1]
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "src")
    shutil.copytree(package, tmp_path / "fastfed", ignore=ignored)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    for words, code in ((["--help"], 0), (["list"], 1)):
        ran = subprocess.run(
            [sys.executable, "-m", "fastfed", *words], env=env, capture_output=True, text=True
        )
        assert ran.returncode == code
    # If fastfed is also installed, the message says that this folder hides the installation.
    assert re.match(r"error: (\S+fastfed is the source, which is not built, and hides|"
                    r"the compiled core is not built: `pip install .`)", ran.stderr)  # fmt: skip
    assert ran.stderr.count("\n") == 1


def test_a_source_folder_that_hides_an_installed_package_is_reported(
    tmp_path: Path, monkeypatch
) -> None:
    from importlib import metadata

    import fastfed._kernels as kernels

    class Installed:
        """An installed package whose files are in a folder."""

        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def locate_file(self, name: str) -> Path:
            return self.folder / name

    for folder in ("source", "site"):
        (tmp_path / folder / "fastfed").mkdir(parents=True)
    here = tmp_path / "source" / "fastfed"
    actual = [Installed(tmp_path / "gone"), Installed(tmp_path / "source")]
    monkeypatch.setattr(metadata, "distributions", lambda name: actual)
    assert kernels._unbuilt(here).startswith("the compiled core is not built")
    actual.append(Installed(tmp_path / "site"))
    message = kernels._unbuilt(here)
    assert message.startswith(f"{here} is the source") and "run Python in another folder" in message


@pytest.mark.parametrize(
    ("raised", "expected"),
    [("KeyError('no such user')", "KeyError: 'no such user'"), ("SystemExit(0)", "SystemExit: 0")],
)
def test_a_failing_environment_is_one_sentence_with_the_round(
    raised: str, expected: str, tmp_path: Path
) -> None:
    module = f"faulty{len(raised)}"  # modules of one name are imported once
    (tmp_path / f"{module}.py").write_text(
        "def draw(seed, replicate, silo, t):\n"
        "    if t == 3:\n"
        f"        raise {raised}\n"
        "    return [[1.0, 0.0]], [0.5]\n"
    )
    (tmp_path / "s.toml").write_text(
        'name = "f"\nhorizon = 9\nsilos = 2\n[environment]\nkind = "python"\n'
        f'function = "{module}:draw"\ndimension = 2\nactions = 1\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 3\n'
    )
    result = fastfed("run", tmp_path / "s.toml", "-o", tmp_path / "out", "--threads", "1")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    where = "in the environment's function (replicate 0, silo 0, round 3)"
    assert f"{where}: {expected}" in last
