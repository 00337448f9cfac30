"""`import fastfed` offers few public names, which are loaded lazily and have types."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastfed
from fastfed import api

FOLDER = Path(fastfed.__file__).parent

SCRIPT = """
import numpy as np
import fastfed
from fastfed.parties import Server, Silo


def estimate() -> float:
    results: fastfed.Results = fastfed.simulate(
        {"kind": "sphere", "dimension": 5, "actions": 20},
        "private-fedlinucb",
        protocol="central", epsilon=[1.0, 5.0], delta=1e-6,
        silos=20, horizon=200, batch_size=25, replicates=2,
    )
    best = min(curve.final()["mean"] for curve in results.curves)
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=100, dimension=3, batch_size=10,
        epsilon=1.0, delta=1e-6,
    )
    silos = [Silo(system.plan, i) for i in range(2)]
    server = Server(system.plan)
    action: int = silos[0].select(np.eye(3))
    silos[0].observe(reward=float(action == 1))
    broadcast = server.combine([silo.report() for silo in silos])
    silos[0].receive(broadcast)
    status: str = system.deployed_certificate.status
    agent = fastfed.LinUCB(dimension=3)
    agent.observe(float(agent.select(np.eye(3)) > 0))
    total = fastfed.privacy.TreeRelease(dimension=3, releases=10, epsilon=1.0, delta=1e-6)
    return best + float(total.add([0.1, 0.2, 0.3]).sum()) + len(status)


def commands(spec: str, folder: str) -> None:
    curves: int = len(fastfed.run(spec, folder, quick=True).curves)
    first: str = str(fastfed.report(folder)[0])
    paired: bool = fastfed.compare(folder, folder).comparisons[0].paired
    sentence: str = fastfed.plan(
        silos=10, horizon=100, dimension=3, epsilon=1.0, delta=1e-6
    ).verdicts[0].sentence
    verdict: str = fastfed.audit("laplace", trials=100).verdict
    std: float = fastfed.calibrate("laplace", fastfed.Budget(1.0, 1e-6)).noise_std
    names: list[str] = list(fastfed.reproduce("h23-hard", folder, quick=True))
    world = fastfed.environments.Sphere(dimension=3, actions=5)
    print(curves, first, paired, sentence, verdict, std, names, world.kind)
"""

#: A text of the script, a wrong replacement, and a word of the type checker's error about it.
WRONG = (
    ("fastfed.simulate(", "fastfed.simulat(", "simulat"),
    ("action: int", "action: str", "int"),
    ("status: str", "status: int", "str"),
    ("sentence: str", "sentence: int", "str"),
    ("paired: bool", "paired: list[int]", "bool"),
    ("first: str = str(", "first: str = abs(", "Path"),
    ('fastfed.audit("laplace", trials=100)', 'fastfed.audit("laplace", runs=100)', "audit"),
    ("fastfed.Budget(1.0, 1e-6)", '"much"', "Budget"),
    ("fastfed.environments.Sphere", "fastfed.environments.Spher", "Spher"),
)


def test_public_names_are_few_and_documented() -> None:
    names = [name for name in fastfed.__all__ if name != "__version__"]
    assert names == api.__all__ == sorted(names) and len(names) <= 18
    for name in names:
        assert getattr(fastfed, name) is getattr(api, name)
        assert getattr(fastfed, name).__doc__, name


def test_no_public_name_is_also_a_module() -> None:
    """Importing a submodule of the same name would replace the public name."""
    modules = {module.name for module in pkgutil.iter_modules([str(FOLDER)])}
    assert modules.isdisjoint(fastfed.__all__)
    assert modules.issuperset(fastfed._SUBMODULES)


@pytest.mark.parametrize("name", fastfed._SUBMODULES)
def test_public_submodules_have_all_names_that_they_list(name: str) -> None:
    module = getattr(fastfed, name)
    assert module is importlib.import_module(f"fastfed.{name}")
    assert module.__doc__
    for public_name in getattr(module, "__all__", ()):
        assert getattr(module, public_name) is not None


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="simulat"):
        fastfed.simulat  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, fastfed\ndir(fastfed)\n"
        "print([m for m in ('numpy', 'scipy', 'numba', 'fastfed.api') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"


def type_errors(command: list[str], folder: Path, text: str) -> list[str]:
    """Return the errors that a type checker's command finds in a script with this text."""
    script = folder / "script.py"
    script.write_text(text)
    # Type checkers do not follow the import hooks of an editable install: pass its folder.
    checkout = [] if "site-packages" in FOLDER.parts else [str(FOLDER.parent)]
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": checkout}))
    child = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "MYPYPATH": os.pathsep.join(checkout)},
    )  # fmt: skip
    return [line for line in child.stdout.splitlines() if "script.py" in line and "error" in line]


def check_types(command: list[str], folder: Path) -> None:
    """Check that a type checker accepts the script and finds each planted mistake."""
    assert type_errors(command, folder, SCRIPT) == []
    for right, wrong, word in WRONG:
        assert right in SCRIPT
        errors = type_errors(command, folder, SCRIPT.replace(right, wrong, 1))
        assert any(word in line for line in errors), (wrong, errors)


@pytest.mark.slow
def test_mypy_knows_the_types_of_public_names(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    check_types([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_knows_the_types_of_public_names(tmp_path: Path) -> None:
    check_types(["pyright", "--project", str(tmp_path), "--pythonpath", sys.executable], tmp_path)
