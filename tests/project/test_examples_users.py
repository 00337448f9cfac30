"""examples/users: what four newcomers write runs, and says what it should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "users"

pytestmark = pytest.mark.slow  # some ten seconds each


def run(*command: object) -> str:
    """Standard output of a command that succeeds, with this Python first in the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_student(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    text = run("bash", FOLDER / "student.sh", tmp_path / "out")
    assert "not judged Regret falls" in text and 'name = "zc24-fig3a"' in text
    assert "only in B: LDP, epsilon = 0.5; LDP, epsilon = 2.0" in text
    assert re.search(r"LDP, epsilon = 2\.0 .* unproven", text.splitlines()[-1])
    assert (tmp_path / "out" / "mine" / "thesis.png").stat().st_size > 10_000


def test_the_hospital(tmp_path: Path) -> None:
    text = run(sys.executable, FOLDER / "hospital.py", "-o", tmp_path / "out")
    assert "silos hold from 45 to 90 records" in text and "central: " in text
    assert "  status      proven" in text and "epsilon 1, delta 1e-05" in text
    assert "wrong calls per hospital against alone" in text
    assert (tmp_path / "out" / "run" / "report.html").exists()


def test_the_recommender() -> None:
    pytest.importorskip("scipy")
    text = run(sys.executable, FOLDER / "recommender.py", 1000)
    assert "same scores True" in text and "same choice True" in text
    first, last = re.search(r"rate ([0-9.]+), last five ([0-9.]+)", text).groups()  # type: ignore[union-attr]
    assert float(last) > float(first)
    assert re.search(r"today: [0-9.]+ regret per shop, privacy none", text)
    assert re.search(r"together: [0-9.]+ regret per shop, privacy proven", text)


def test_the_privacy_engineer() -> None:
    text = run(sys.executable, FOLDER / "privacy.py")
    assert '"status": "proven"' in text and "FAILS" not in text
    assert text.count("by formula: 1.000e-06") == 1
    for delta in ("1e-04", "1e-05", "1e-06", "1e-08"):
        value = re.escape(f"{float(delta):g}")
        assert re.search(rf"at delta {value}: .* formula 1\.00{delta[1:]}", text)
    assert "equal to 1e-3 True" in text or "dp_accounting is not installed" in text
    assert re.search(r"audit gaussian-tree: .*: pass", text)
    assert re.search(r"audit fault-natural-log: .*: caught", text)
    assert re.search(r"audit ours: .*: caught", text)
