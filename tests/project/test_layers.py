"""Modules import only modules of the layers in ALLOWED; every source file is checked."""

import ast
import re
from pathlib import Path

import pytest

import fastfed
from fastfed import _display

ROOT = Path(fastfed.__file__).parent
SHARED = {"_validate", "_random", "_kernels", "kernels", "__init__"}
#: For each layer, the other layers that it may import. The CLI may import all layers.
ALLOWED = {
    "_kernels": set(),
    "_validate": set(),
    "_memory": {"_validate"},
    "_signals": {"_kernels"},
    "_registry": {"_validate"},
    "_roots": set(),
    "_files": {"_validate"},
    "_cache": {"_validate"},
    "_threads": set(),
    "_cells": {"_validate"},
    "_containers": {"_validate"},
    "_sqlite": {"_validate"},
    "_sheets": {"_validate", "_sqlite", "_containers"},
    "counter_rng": set(),
    "_display": set(),
    "_sampling": {"_kernels"},
    "_random": {"_kernels", "_validate", "_sampling"},
    "kernels": {"_kernels", "_validate", "_random", "privacy", "protocols"},
    "privacy": {
        "_kernels", "_registry", "_validate", "_random", "_sampling", "_display", "_roots",
        "_cache", "_threads",
    },
    "protocols": {
        "_kernels", "_registry", "_validate", "_random", "_sampling", "privacy",
    },
    "_system": {"_validate", "_display", "privacy"},
    "bandits": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "off_policy", "_roots", "_files", "_cache", "counter_rng", "_memory", "_display",
    },
    "experts": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "_roots",
    },
    "deployment": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "bandits", "experts", "_files", "_cells", "_containers", "_sqlite", "_sheets",
    },
    "environments": {
        "_kernels", "_registry", "_validate", "_random", "_memory", "_cells", "_containers",
        "_sheets", "_cache", "_threads",
    },
    "results": {"_validate", "_display"},
    "off_policy": {"_validate", "_roots"},
    "simulation": {
        "_kernels", "_registry", "_validate", "_random", "_memory", "_signals", "_system",
        "privacy", "protocols", "bandits", "experts", "environments", "results", "off_policy",
    },
    "reporting": {"_validate", "_system", "results", "privacy"},
    "experiments": {"_validate", "simulation", "results", "reporting"},
    "advice": {
        "_kernels", "_validate", "_random", "privacy", "protocols", "bandits", "environments",
        "simulation", "results", "reporting", "experiments",
    },
    "plugins": {
        "_validate", "kernels", "counter_rng", "privacy", "protocols", "bandits", "environments",
        "simulation",
    },
    "parties": {"_random", "protocols", "bandits", "experts"},
    "api": {
        "_validate", "privacy", "bandits", "results", "simulation", "reporting", "experiments",
        "advice",
    },
}  # fmt: skip


def modules():
    """Yield (layer, relative path, path) of every module of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        yield relative.parts[0].removesuffix(".py"), relative, path


def imports(path: Path, package: list[str]):
    """Yield the layers that a module of this package imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{member.name}" for member in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            module = [node.module] if node.module else []
            names = [".".join([*base, *module, member.name]) for member in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "fastfed" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


@pytest.mark.parametrize(
    ("layer", "relative", "path"), list(modules()), ids=lambda value: str(value)[-40:]
)
def test_lower_layers_never_import_higher_ones(layer, relative, path):
    if layer not in ALLOWED:
        assert layer in {"cli", "__init__", "__main__"}, f"{relative} belongs to no layer"
        return
    package = ["fastfed", *relative.parts[:-1]]
    imported = set(imports(path, package)) - {layer}
    assert imported <= ALLOWED[layer], f"{relative} imports {sorted(imported - ALLOWED[layer])}"


def layers_named(path: Path):
    """Yield the layers that a module names in a string, or reads as attributes of fastfed."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "fastfed":
                yield node.attr
        elif isinstance(node, ast.Constant) and re.fullmatch(r"fastfed(\.\w+)+", str(node.value)):
            yield node.value.split(".")[1]


def test_no_layer_reaches_a_higher_one_by_name():
    """Modules name higher layers neither as strings nor as attributes of fastfed."""
    for layer, relative, path in modules():
        if layer in ALLOWED:
            entry_points = {"algorithms", "environments", "mechanisms", "scores"}
            named = set(layers_named(path)) - {layer, "__version__"} - entry_points
            assert named <= ALLOWED[layer], f"{relative} names {sorted(named - ALLOWED[layer])}"


def test_display_imports_nothing_and_reporting_registers_the_renderer():
    assert (
        set(layers_named(ROOT / "_display.py")) == set(imports(ROOT / "_display.py", [])) == set()
    )
    assert _display.renderer().__name__ == "fastfed.reporting.notebook"


def test_imports_finds_the_imports_of_a_module():
    imported = set(imports(ROOT / "simulation" / "server.py", ["fastfed", "simulation"]))
    assert {"bandits", "protocols", "_random"} <= imported
