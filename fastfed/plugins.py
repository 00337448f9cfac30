"""Everything needed to write plugins and custom policies, in one module (docs/extending.md).

==============  ================================================================================
policy          `Policy`, an interface (inheriting it is optional); `LinUCB` as an example
algorithm       `Algorithm`, `Config`, `ProblemSpec`, `System`; `Protocol` with `ADD` and
                `SEND_NOISY_BATCH`; `Noise`, `NoiseStd`, `NoiseDistribution`, `assemble`, `certify`,
                `account`, `released`; `calibrate_tree`
mechanism       `Budget`, `Calibrated`, `Size`, `sum_sensitivity`
environment     `EnvironmentSpec`, `RewardDistribution`, `Python`, `described`,
                `environment_signature`
score           `Score`, `score_signature`
all             `InputError`
randomness      `key_of`, `normal`, `uniform` inside compiled functions, `normals` outside
==============  ================================================================================

Each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastfed._validate import InputError as InputError
    from fastfed.bandits import Algorithm as Algorithm
    from fastfed.bandits import ProblemSpec as ProblemSpec
    from fastfed.bandits import System as System
    from fastfed.bandits import account as account
    from fastfed.bandits.assemble import Noise as Noise
    from fastfed.bandits.assemble import assemble as assemble
    from fastfed.bandits.certify import certify as certify
    from fastfed.bandits.noise_distributions import NoiseDistribution as NoiseDistribution
    from fastfed.bandits.policy import LinUCB as LinUCB
    from fastfed.bandits.system import Config as Config
    from fastfed.counter_rng import key_of as key_of
    from fastfed.counter_rng import normal as normal
    from fastfed.counter_rng import uniform as uniform
    from fastfed.environments import EnvironmentSpec as EnvironmentSpec
    from fastfed.environments import Python as Python
    from fastfed.environments import RewardDistribution as RewardDistribution
    from fastfed.environments import described as described
    from fastfed.environments import environment_signature as environment_signature
    from fastfed.kernels import normals as normals
    from fastfed.privacy import Budget as Budget
    from fastfed.privacy import Calibrated as Calibrated
    from fastfed.privacy.account import released as released
    from fastfed.privacy.mechanisms.catalogue import Size as Size
    from fastfed.privacy.releases.gaussian_release import calibrate_tree as calibrate_tree
    from fastfed.privacy.sensitivity import sum_sensitivity as sum_sensitivity
    from fastfed.protocols.plan import NoiseStd as NoiseStd
    from fastfed.protocols.protocol import ADD as ADD
    from fastfed.protocols.protocol import SEND_NOISY_BATCH as SEND_NOISY_BATCH
    from fastfed.protocols.protocol import Protocol as Protocol
    from fastfed.protocols.score import Score as Score
    from fastfed.protocols.score import score_signature as score_signature
    from fastfed.simulation.policies import Policy as Policy

#: The names that each module defines.
_NAMES_BY_MODULE = {
    "fastfed._validate": ("InputError",),
    "fastfed.bandits": ("Algorithm", "ProblemSpec", "System", "account"),
    "fastfed.bandits.assemble": ("Noise", "assemble"),
    "fastfed.bandits.certify": ("certify",),
    "fastfed.bandits.noise_distributions": ("NoiseDistribution",),
    "fastfed.bandits.policy": ("LinUCB",),
    "fastfed.bandits.system": ("Config",),
    "fastfed.counter_rng": ("key_of", "normal", "uniform"),
    "fastfed.environments": (
        "EnvironmentSpec",
        "Python",
        "RewardDistribution",
        "described",
        "environment_signature",
    ),
    "fastfed.kernels": ("normals",),
    "fastfed.privacy": ("Budget", "Calibrated"),
    "fastfed.privacy.account": ("released",),
    "fastfed.privacy.mechanisms.catalogue": ("Size",),
    "fastfed.privacy.releases.gaussian_release": ("calibrate_tree",),
    "fastfed.privacy.sensitivity": ("sum_sensitivity",),
    "fastfed.protocols.plan": ("NoiseStd",),
    "fastfed.protocols.protocol": ("ADD", "SEND_NOISY_BATCH", "Protocol"),
    "fastfed.protocols.score": ("Score", "score_signature"),
    "fastfed.simulation.policies": ("Policy",),
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULE_OF_NAME)

# Hidden from type checkers, to which any attribute would otherwise exist with type Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name in _MODULE_OF_NAME:
            return getattr(import_module(_MODULE_OF_NAME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
