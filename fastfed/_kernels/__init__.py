"""Compiled kernels. They import no other part of fastfed and do not check their arguments;
``fastfed.kernels`` does.

===============  ==============================================================================
``rng``          keyed random streams
``linalg``       ridge regression: factors, rank-one updates, upper confidence bounds
``aggregation``  sums of statistics: tree nodes, prefix sums, noise, fixed-point bits
``checked``      the kernels of ``fastfed.kernels``, with their own checks of arguments
``environments`` contexts and rewards, one replicate each
``losses``       losses of experts, one replicate each
``experts``      decisions of experts' servers, and regret, many rounds at once
``driver``       simulates the rounds of a run
===============  ==============================================================================

All eight are in one shared object, ``_native``, so that they share one copy of the C code. PEP 489
("Multiple modules in one library") leaves it to the package to find them.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

__all__ = ["aggregation", "checked", "driver", "environments", "experts", "linalg", "losses", "rng"]


def _shared_object() -> str:
    """Return the path of the compiled core; ImportError if it has not been built."""
    name = f"{__name__}._native"
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(_unbuilt(Path(__file__).parents[1]), name=name)
    return spec.origin


def _unbuilt(source_folder: Path) -> str:
    """Return a message that says why there is no shared object here, and what to do."""
    from importlib.metadata import distributions  # takes longer than all else here

    for distribution in distributions(name="fastfed"):
        installed_folder = Path(str(distribution.locate_file("fastfed")))
        if installed_folder.is_dir() and not installed_folder.samefile(source_folder):
            return (
                f"{source_folder} is the source, which is not built, and hides the fastfed that is "
                "installed: run Python in another folder, or `pip install -e .` in the checkout"
            )
    return "the compiled core is not built: `pip install .` in the checkout"


def _load(name: str, file: str) -> None:
    """Load one module of the shared object."""
    module_name = f"{__name__}.{name}"
    loader = ExtensionFileLoader(module_name, file)
    spec = spec_from_file_location(module_name, file, loader=loader)
    assert spec is not None
    module = sys.modules[module_name] = module_from_spec(spec)
    loader.exec_module(module)
    globals()[name] = module


_file = _shared_object()
# Modules come after those that they import, and _native before modules that ask for the level.
for _name in (
    *("_views", "_native", "environments", "rng", "linalg", "aggregation", "checked"),
    *("losses", "experts", "driver"),
):  # fmt: skip
    _load(_name, _file)
