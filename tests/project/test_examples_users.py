"""The scripts of examples/users, for four kinds of users, run and print results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "users"

pytestmark = pytest.mark.slow  # each takes about ten seconds


def run(*command: object) -> str:
    """Run a command that succeeds, with this Python first in PATH, and return its stdout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr and "Warning" not in result.stderr, result.stderr
    return result.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_student_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    output = run("bash", FOLDER / "student.sh", tmp_path / "out")
    assert "not judged Regret falls" in output and 'name = "zc24-fig3a"' in output
    assert "only in B: LDP, epsilon = 0.5; LDP, epsilon = 2.0" in output
    assert re.search(r"LDP, epsilon = 2\.0 .* unproven", output.splitlines()[-1])
    assert (tmp_path / "out" / "mine" / "thesis.png").stat().st_size > 10_000


def test_the_hospital_example_runs(tmp_path: Path) -> None:
    output = run(sys.executable, FOLDER / "hospital.py", "-o", tmp_path / "out")
    assert "silos hold from 45 to 90 records" in output and "central: " in output
    assert "  status      proven" in output and "epsilon 1, delta 1e-05" in output
    assert "wrong calls per hospital against alone" in output
    assert (tmp_path / "out" / "run" / "report.html").exists()


def test_the_recommender_example_runs() -> None:
    pytest.importorskip("scipy")
    output = run(sys.executable, FOLDER / "recommender.py", 1000)
    assert "same scores True" in output and "same choice True" in output
    first_rate, last_rate = re.search(r"rate ([0-9.]+), last five ([0-9.]+)", output).groups()  # type: ignore[union-attr]
    assert float(last_rate) > float(first_rate)
    assert re.search(r"today: [0-9.]+ regret per shop, privacy none", output)
    assert re.search(r"together: [0-9.]+ regret per shop, privacy proven", output)


def test_the_privacy_engineer_example_runs() -> None:
    output = run(sys.executable, FOLDER / "privacy.py")
    assert '"status": "proven"' in output and "FAILS" not in output
    assert output.count("by formula: 1.000e-06") == 1
    for delta in ("1e-04", "1e-05", "1e-06", "1e-08"):
        value = re.escape(f"{float(delta):g}")
        assert re.search(rf"at delta {value}: .* formula 1\.00{delta[1:]}", output)
    assert "equal to 1e-3 True" in output or "dp_accounting is not installed" in output
    assert re.search(r"audit gaussian-tree: .*: pass", output)
    assert re.search(r"audit fault-natural-log: .*: caught", output)
    assert re.search(r"audit ours: .*: caught", output)
