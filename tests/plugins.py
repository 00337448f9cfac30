"""Install packages that extend fastfed for a child process, as pip would install them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "extending"


def write(folder: Path, name: str, entry_points: str, version: str = "0.1.0") -> None:
    """Write the metadata of an installed distribution; pip would need the network for this."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def install(example: str, folder: Path, version: str | None = None) -> None:
    """Install a package of examples/extending into a folder, as its pyproject.toml says."""
    source = EXAMPLES / example
    with (source / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    project = pyproject["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    for module in pyproject["tool"]["setuptools"]["py-modules"]:
        shutil.copy(source / f"{module}.py", folder)
    write(folder, project["name"], "\n".join(lines) + "\n", version or project["version"])


def python(
    folder: Path, *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess:
    """Run Python in a child process that finds the packages of the folder first."""
    path = os.pathsep.join(filter(None, [str(folder), *map(_absolute, _python_path())]))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=cwd or folder,
    )


def fastfed(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run the command line in a child process."""
    return python(folder, "-m", "fastfed", *arguments)


def _python_path() -> list[str]:
    """Return the entries of PYTHONPATH."""
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _absolute(path: str) -> str:
    """Return an absolute path; an empty path stays empty."""
    return os.path.abspath(path) if path else ""


def module(example: str, name: str):
    """Import an example's module into this process and return it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / example / f"{name}.py")
    example_module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up in sys.modules.
    sys.modules.setdefault(name, example_module)
    spec.loader.exec_module(example_module)
    return example_module
