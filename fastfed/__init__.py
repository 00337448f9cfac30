"""fastfed: differentially private federated bandits at compiled speed.

The names here are those of `fastfed.api`; they and the public submodules load when they are first
used. The README has ten lines to start with.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastfed import _display

if TYPE_CHECKING:
    from fastfed import advice as advice
    from fastfed import counter_rng as counter_rng
    from fastfed import environments as environments
    from fastfed import experiments as experiments
    from fastfed import kernels as kernels
    from fastfed import off_policy as off_policy
    from fastfed import parties as parties
    from fastfed import plugins as plugins
    from fastfed import privacy as privacy
    from fastfed import protocols as protocols
    from fastfed import reporting as reporting
    from fastfed import results as results
    from fastfed import simulation as simulation
    from fastfed.api import Budget as Budget
    from fastfed.api import Certificate as Certificate
    from fastfed.api import InputError as InputError
    from fastfed.api import LinUCB as LinUCB
    from fastfed.api import Results as Results
    from fastfed.api import audit as audit
    from fastfed.api import calibrate as calibrate
    from fastfed.api import compare as compare
    from fastfed.api import load as load
    from fastfed.api import make_system as make_system
    from fastfed.api import merge as merge
    from fastfed.api import plan as plan
    from fastfed.api import report as report
    from fastfed.api import reproduce as reproduce
    from fastfed.api import run as run
    from fastfed.api import simulate as simulate

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Certificate",
    "InputError",
    "LinUCB",
    "Results",
    "__version__",
    "audit",
    "calibrate",
    "compare",
    "load",
    "make_system",
    "merge",
    "plan",
    "report",
    "reproduce",
    "run",
    "simulate",
]

#: Public submodules, which load as attributes too.
_SUBMODULES = (
    "advice",
    "counter_rng",
    "environments",
    "experiments",
    "kernels",
    "off_policy",
    "parties",
    "plugins",
    "privacy",
    "protocols",
    "reporting",
    "results",
    "simulation",
)

# Type checkers must not see this function, or they would accept every name, with type Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name, or a submodule, when it is first used."""
        if name in __all__:
            return getattr(importlib.import_module("fastfed.api"), name)
        if name in _SUBMODULES:
            return importlib.import_module(f"fastfed.{name}")
        raise AttributeError(f"module 'fastfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names and submodules."""
    return sorted([*__all__, *_SUBMODULES])


def _load_renderer() -> Any:
    """Import the module that displays values in notebooks."""
    return importlib.import_module("fastfed.reporting.notebook")


_display.register_renderer(_load_renderer)
