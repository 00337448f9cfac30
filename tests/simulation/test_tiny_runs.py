"""Small runs import no heavy packages: imports take nearly all of a small run's CPU time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "Cython", "asyncio", "cryptography", "dask", "jinja2", "matplotlib", "narwhals", "numba",
    "pandas", "rich", "rich_click", "scipy", "sklearn", "ssl", "statsmodels", "unittest",
}  # fmt: skip
#: Remembers the modules that the interpreter loads at its start; they do not count.
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
    """Run code in a child process and return the names of the modules that it imports."""
    result = subprocess.run(
        [sys.executable, "-c", BEFORE + code + PRINT], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


def test_a_run_without_privacy_loads_nothing_heavy() -> None:
    modules = loaded(SIMULATE.format(curve={"label": "a", "algorithm": "fedlinucb"}))
    assert "fastfed.simulation.compiled" in modules
    assert not modules & HEAVY


def test_a_private_run_loads_only_special_functions_and_linalg_of_scipy() -> None:
    modules = loaded(SIMULATE.format(curve={"label": "a", **PRIVATE}))
    assert not modules & (HEAVY - {"scipy", "unittest", "Cython"})  # SciPy imports the other two
    scipy_packages = {
        ".".join(name.split(".")[:2]) for name in modules if name.startswith("scipy.")
    }
    assert {name for name in scipy_packages if not name.startswith("scipy._")} <= {
        "scipy.linalg", "scipy.special", "scipy.version",
        "scipy.sparse",  # imported by scipy.linalg of SciPy 1.13
    }  # fmt: skip


def test_a_run_with_its_report_loads_no_matplotlib(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC)

    def run(*options: str) -> set[str]:
        """Run the spec in a new process; return the modules that it loads."""
        command = ["fastfed", "run", str(spec), "-o", str(tmp_path / "out"), *options]
        return loaded(
            "import sys\n"
            "from fastfed.cli import main\n"
            f"sys.argv = {command!r}\n"
            "try:\n"
            "    main()\n"
            "except SystemExit as end:\n"
            "    assert not end.code, end.code\n"
        )

    heavy_packages = HEAVY - {"rich", "rich_click"}
    assert not run() & heavy_packages
    assert "<polyline" in (tmp_path / "out" / "report.html").read_text()
    pytest.importorskip("matplotlib")
    assert "matplotlib" in run("--format", "png")
    # Figures that exist already are not drawn again.
    assert not run("--format", "png") & heavy_packages
    assert not run() & heavy_packages
