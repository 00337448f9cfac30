"""What a small run loads: its processor time is nearly all imports, so these are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "Cython", "asyncio", "cryptography", "dask", "jinja2", "matplotlib", "narwhals", "numba",
    "pandas", "rich", "rich_click", "scipy", "sklearn", "ssl", "statsmodels", "unittest",
}  # fmt: skip
#: Loaded where the interpreter starts, by whatever is installed beside fastfed.
BEFORE = "import sys; before = set(sys.modules)\n"
PRINT = "\nprint(*sorted(set(sys.modules) - before))"
SIMULATE = """
import fastfed
world = {{"kind": "sphere", "dimension": 5, "actions": 10}}
fastfed.simulate(world, curves=[{curve}], silos=3, horizon=100, replicates=1)
"""
PRIVATE = {"algorithm": "private-fedlinucb", "protocol": "central", "epsilon": 1.0, "delta": 1e-6}
SPEC = """
name = "tiny"
silos = 3
horizon = 100
replicates = 1
[environment]
kind = "sphere"
dimension = 5
actions = 10
[[curve]]
label = "a"
algorithm = "fedlinucb"
"""


def loaded(code: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", BEFORE + code + PRINT], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


def test_a_run_without_privacy_loads_nothing_heavy() -> None:
    found = loaded(SIMULATE.format(curve={"label": "a", "algorithm": "fedlinucb"}))
    assert "fastfed.simulation.compiled" in found
    assert not found & HEAVY


def test_a_private_run_loads_special_functions_and_triangles_alone() -> None:
    found = loaded(SIMULATE.format(curve={"label": "a", **PRIVATE}))
    assert not found & (HEAVY - {"scipy", "unittest", "Cython"})  # SciPy loads these two
    parts = {".".join(name.split(".")[:2]) for name in found if name.startswith("scipy.")}
    assert {name for name in parts if not name.startswith("scipy._")} <= {
        "scipy.linalg", "scipy.special", "scipy.version",
        "scipy.sparse",  # by the linalg of SciPy 1.13
    }  # fmt: skip


def test_a_run_with_its_report_loads_no_matplotlib(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC)

    def run(*options: str) -> set[str]:
        arguments = ["fastfed", "run", str(spec), "-o", str(tmp_path / "out"), *options]
        return loaded(
            "import sys\n"
            "from fastfed.cli import main\n"
            f"sys.argv = {arguments!r}\n"
            "try:\n"
            "    main()\n"
            "except SystemExit as end:\n"
            "    assert not end.code, end.code\n"
        )

    light = HEAVY - {"rich", "rich_click"}
    assert not run() & light
    assert "<polyline" in (tmp_path / "out" / "report.html").read_text()
    pytest.importorskip("matplotlib")
    assert "matplotlib" in run("--format", "png")
    # What is there already is not drawn again.
    assert not run("--format", "png") & light
    assert not run() & light
