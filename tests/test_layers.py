"""Who may import whom: the layers of the package, walked over the source of every module."""

import ast
from pathlib import Path

import pytest

import fastfed

ROOT = Path(fastfed.__file__).parent
SHARED = {"_validate", "_random", "_kernels", "kernels", "__init__"}
# What each layer may import beside itself; kernels know nothing, the CLI may know all.
ALLOWED = {
    "_kernels": set(),
    "_validate": set(),
    "_memory": {"_validate"},
    "_registry": {"_validate"},
    "counter_rng": set(),
    "keyed": {"counter_rng"},
    "_face": set(),
    "_once": {"_validate"},
    "_sampling": {"_kernels"},
    "_random": {"_kernels", "_validate", "_once", "_sampling"},
    "kernels": {"_kernels", "_validate", "_random", "privacy", "protocols"},
    "privacy": {"_kernels", "_registry", "_validate", "_random", "_once", "_sampling", "_face"},
    "protocols": {
        "_kernels", "_registry", "_validate", "_random", "_once", "_sampling", "privacy",
    },
    "_system": {"_validate", "_face", "privacy"},
    "bandits": {
        "_kernels", "_validate", "_random", "_once", "_sampling", "_system", "privacy", "protocols",
    },
    "experts": {
        "_kernels", "_validate", "_random", "_once", "_sampling", "_system", "privacy", "protocols",
    },
    "environments": {"_kernels", "_registry", "_validate", "_random", "_memory"},
    "results": {"_validate", "_face"},
    "off_policy": {"_validate"},
    "simulation": {
        "_kernels", "_registry", "_validate", "_random", "_memory", "_system",
        "privacy", "protocols", "bandits", "experts", "environments", "results",
    },
    "experiments": {"_validate", "simulation"},
    "report": {"_validate", "_system", "results", "privacy"},
    "advice": {
        "_kernels", "_validate", "_random", "privacy", "protocols", "bandits", "environments",
        "simulation", "results", "report",
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


def doors(path: Path):
    """What a module takes from the package itself, whose lazy names lie above all layers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "fastfed":
                yield node.attr
        elif isinstance(node, ast.Constant) and node.value in fastfed._DOORS:
            yield node.value


def test_only_the_face_goes_through_the_door_to_a_higher_layer():
    found = {str(relative): set(doors(path)) for layer, relative, path in modules()
             if layer in ALLOWED}  # fmt: skip
    assert found.pop("_face.py") == set(fastfed._DOORS)
    assert set.union(*found.values()) == {"__version__"}


def test_the_walk_sees_imports():
    seen = set(imports(ROOT / "simulation" / "server.py", ["fastfed", "simulation"]))
    assert {"bandits", "protocols", "_random"} <= seen
