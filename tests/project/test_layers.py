"""Who may import whom: the layers of the package, walked over the source of every module."""

import ast
import re
from pathlib import Path

import pytest

import fastfed
from fastfed import _display

ROOT = Path(fastfed.__file__).parent
SHARED = {"_validate", "_random", "_kernels", "kernels", "__init__"}
# What each layer may import beside itself; kernels know nothing, the CLI may know all.
ALLOWED = {
    "_kernels": set(),
    "_validate": set(),
    "_memory": {"_validate"},
    "_signals": {"_kernels"},
    "_registry": {"_validate"},
    "_roots": set(),
    "_files": {"_validate"},
    "counter_rng": set(),
    "_display": set(),
    "_sampling": {"_kernels"},
    "_random": {"_kernels", "_validate", "_sampling"},
    "kernels": {"_kernels", "_validate", "_random", "privacy", "protocols"},
    "privacy": {
        "_kernels", "_registry", "_validate", "_random", "_sampling", "_display", "_roots",
    },
    "protocols": {
        "_kernels", "_registry", "_validate", "_random", "_sampling", "privacy",
    },
    "_system": {"_validate", "_display", "privacy"},
    "bandits": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "off_policy", "_roots", "_files",
    },
    "experts": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "_roots",
    },
    "deployment": {
        "_kernels", "_validate", "_random", "_sampling", "_system", "privacy", "protocols",
        "bandits", "experts", "_files",
    },
    "environments": {"_kernels", "_registry", "_validate", "_random", "_memory"},
    "results": {"_validate", "_display"},
    "off_policy": {"_validate", "_roots"},
    "simulation": {
        "_kernels", "_registry", "_validate", "_random", "_memory", "_signals", "_system",
        "privacy", "protocols", "bandits", "experts", "environments", "results",
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
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        yield relative.parts[0].removesuffix(".py"), relative, path


def imports(path: Path, package: list[str]):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            module = [node.module] if node.module else []
            names = [".".join([*base, *module, a.name]) for a in node.names]
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
    found = set(imports(path, package)) - {layer}
    assert found <= ALLOWED[layer], f"{relative} imports {sorted(found - ALLOWED[layer])}"


def by_name(path: Path):
    """Modules of the package that a module names in a text, or takes from the package."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "fastfed":
                yield node.attr
        elif isinstance(node, ast.Constant) and re.fullmatch(r"fastfed(\.\w+)+", str(node.value)):
            yield node.value.split(".")[1]


def test_no_layer_reaches_a_higher_one_by_name():
    """Neither by a text for `import_module` nor through the lazy names of the package."""
    for layer, relative, path in modules():
        if layer in ALLOWED:
            groups = {"algorithms", "environments", "mechanisms", "scores"}  # entry points
            found = set(by_name(path)) - {layer, "__version__"} - groups
            assert found <= ALLOWED[layer], f"{relative} names {sorted(found - ALLOWED[layer])}"


def test_what_displays_values_is_registered_from_above():
    assert set(by_name(ROOT / "_display.py")) == set(imports(ROOT / "_display.py", [])) == set()
    assert _display.renderer().__name__ == "fastfed.reporting.notebook"


def test_the_walk_sees_imports():
    seen = set(imports(ROOT / "simulation" / "server.py", ["fastfed", "simulation"]))
    assert {"bandits", "protocols", "_random"} <= seen
