"""fastfed: differentially private federated bandits at compiled speed.

Everything public is here and loads when first used; see the README for the ten lines to start.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "simulate": "fastfed.simulation.run",
    "advise": "fastfed.advice",
    "load": "fastfed.simulation.run",
    "run": "fastfed.simulation.run",
    "load_experiment": "fastfed.simulation.experiment",
    "make_system": "fastfed.simulation.systems",
    "LinUCB": "fastfed.bandits.linucb",
    "Silo": "fastfed.bandits.silo",
    "Peer": "fastfed.bandits.silo",
    "Graph": "fastfed.protocols.network",
    "Server": "fastfed.protocols.server",
    "Shuffler": "fastfed.protocols.shuffler",
    "User": "fastfed.protocols.randomizer",
    "Client": "fastfed.bandits.silo",
    "Averager": "fastfed.protocols.server",
    "ExpertClient": "fastfed.experts.parties",
    "ExpertServer": "fastfed.experts.parties",
    "VectorSum": "fastfed.protocols.vector_sum",
    "Report": "fastfed.protocols.messages",
    "LocalEstimate": "fastfed.protocols.phases",
    "Model": "fastfed.protocols.phases",
    "Broadcast": "fastfed.protocols.messages",
    "TreeRelease": "fastfed.privacy.releases.tree_release",
    "audit": "fastfed.privacy.audit.function",
    "SeededNoise": "fastfed._random",
    "SystemNoise": "fastfed._random",
    "InputError": "fastfed._validate",
    "inverse_propensity": "fastfed.off_policy",
    "self_normalised": "fastfed.off_policy",
    "doubly_robust": "fastfed.off_policy",
    "cross_fitted_ridge": "fastfed.off_policy",
    "Sphere": "fastfed.environments",
    "Gap": "fastfed.environments",
    "FixedSet": "fastfed.environments",
    "HardInstance": "fastfed.environments",
    "NoDiversity": "fastfed.environments",
    "Letor": "fastfed.environments",
    "Classification": "fastfed.environments",
    "Replay": "fastfed.environments",
    "Python": "fastfed.environments",
    "environment_signature": "fastfed.environments",
    "StochasticLosses": "fastfed.environments",
    "ObliviousLosses": "fastfed.environments",
    "RealizableLosses": "fastfed.environments",
    "NearRealizableLosses": "fastfed.environments",
    "LowerBoundLosses": "fastfed.environments",
    "GradientLosses": "fastfed.environments",
    "LossSpec": "fastfed.environments",
    "Score": "fastfed.protocols.score",
    "score_signature": "fastfed.protocols.score",
    "losses_signature": "fastfed.environments",
    "gradient_signature": "fastfed.environments",
}
_MODULES = ("counter_rng", "kernels", "privacy")
#: Names of 0.1, each with its new one; they warn, and go in 0.3.
_RENAMED = {"LossFacts": "LossSpec", "keyed": "counter_rng"}
#: Doors from lower layers to higher ones, for which these need not be imported; not public.
_DOORS = {"_notebook": "fastfed.report.notebook"}

__all__ = ["__version__", *_PUBLIC, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"fastfed.{name}")
    if name in _DOORS:
        return importlib.import_module(_DOORS[name])
    if name in _RENAMED:
        return _renamed(name)
    raise AttributeError(f"module 'fastfed' has no attribute {name!r}")


def _renamed(name: str) -> Any:
    """Return what a deprecated name stands for, with a warning that says the new one."""
    import warnings

    new = _RENAMED[name]
    warnings.warn(
        f"fastfed.{name} is deprecated: use fastfed.{new}", DeprecationWarning, stacklevel=3
    )
    return __getattr__(new)


def __dir__() -> list[str]:
    return sorted(__all__)
