"""What `import fastfed` offers: loaded lazily, and with real types."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastfed

FOLDER = Path(fastfed.__file__).parent

SCRIPT = """
import numpy as np
import fastfed


def play() -> float:
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 5, "actions": 20},
        "private-fedlinucb",
        protocol="central", epsilon=[1.0, 5.0], delta=1e-6,
        silos=20, horizon=200, batch_size=25, replicates=2,
    )
    best = min(curve.final()[0] for curve in results.curves)
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=100, dimension=3, batch_size=10,
        epsilon=1.0, delta=1e-6,
    )
    silos = [fastfed.Silo(system.plan, i) for i in range(2)]
    server = fastfed.Server(system.plan)
    action: int = silos[0].select(np.eye(3))
    silos[0].observe(reward=float(action == 1))
    broadcast = server.combine([silo.report() for silo in silos])
    silos[0].receive(broadcast)
    status: str = system.deployed_certificate.status
    agent = fastfed.LinUCB(dimension=3)
    agent.observe(float(agent.select(np.eye(3)) > 0))
    total = fastfed.TreeRelease(dimension=3, releases=10, epsilon=1.0, delta=1e-6)
    return best + total.add([0.1, 0.2, 0.3]).sum() + len(status)
"""


def stub_names() -> set[str]:
    tree = ast.parse((FOLDER / "__init__.pyi").read_text())
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_stub_types_every_public_name():
    assert stub_names() - {"_notebook"} == set(fastfed.__all__) - {"__version__"}


@pytest.mark.slow
def test_a_users_script_passes_strict_type_checks_and_misspellings_fail(tmp_path):
    def errors(text: str) -> list[str]:
        script = tmp_path / "script.py"
        script.write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
        run = subprocess.run([*command, str(script)], capture_output=True, text=True, cwd=tmp_path)
        return [line for line in run.stdout.splitlines() if "script.py" in line and "error" in line]

    found = errors(SCRIPT.replace("fastfed.simulate(", "fastfed.simulat("))
    assert any('no attribute "simulat"' in line for line in found)
    found = errors(SCRIPT.replace("action: int", "action: str"))
    assert any('expression has type "int"' in line for line in found)
