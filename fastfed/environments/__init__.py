"""Environments of bandits, which produce contexts and rewards, and adversaries of experts.

An adversary produces the losses of experts. Compiled code calls all environments and adversaries
through one C interface. To add one, write a class with a ``kind``, and add a line to
``BANDIT_ENVIRONMENTS`` or ``ADVERSARIES``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError, listed, misplaced, show
from fastfed.environments.arms import Arms
from fastfed.environments.base import (
    Adversary,
    Environment,
    EnvironmentSpec,
    LossSpec,
    RewardDistribution,
    described,
)
from fastfed.environments.classification import Classification
from fastfed.environments.gymnasium import to_gymnasium
from fastfed.environments.instances import HardInstance, NoDiversity
from fastfed.environments.letor import Letor
from fastfed.environments.log import Log
from fastfed.environments.losses import (
    GradientLosses,
    LowerBoundLosses,
    NearRealizableLosses,
    ObliviousLosses,
    RealizableLosses,
    StochasticLosses,
    gradient_signature,
    losses_signature,
)
from fastfed.environments.python import Python, environment_signature
from fastfed.environments.replay import Replay
from fastfed.environments.synthetic import FixedSet, Gap, Rotated, Sphere

#: Maps the kind of each bandit environment to its class and a summary.
BANDIT_ENVIRONMENTS: dict[str, tuple[type, str]] = {
    "sphere": (Sphere, "fresh actions on a sphere every round, linear rewards in [0, 1]"),
    "gap": (Gap, "one best action every round, a gap above all others, linear rewards"),
    "fixed-set": (FixedSet, "one set of actions in all rounds of a replicate, linear rewards"),
    "hard-instance": (HardInstance, "blocks of two coordinates, one a round: for lower bounds"),
    "no-diversity": (NoDiversity, "two fixed actions, a coordinate that only the first silo sees"),
    "arms": (Arms, "arms without contexts: K Bernoulli means, the same at every silo"),
    "rotated": (Rotated, "the sphere, with theta* rotated by an angle at each silo"),
    "letor": (Letor, "learning-to-rank files (MSLR-WEB10K, WEB30K, LETOR): queries and documents"),
    "classification": (Classification, "records and classes: scikit-learn's digits, or a CSV"),
    "log": (Log, "a log of decisions with propensities: tables, Open Bandit or Vowpal Wabbit"),
    "replay": (Replay, "recorded rounds from NumPy arrays"),
    "python": (Python, "an environment that you write: a numba.cfunc or a Python function"),
}

#: Maps the kind of each adversary of experts to its class and a summary.
ADVERSARIES: dict[str, tuple[type, str]] = {
    "stochastic-losses": (StochasticLosses, "experts' losses, iid, linear or quadratic"),
    "oblivious-losses": (ObliviousLosses, "experts' losses that you supply: array or function"),
    "realizable-losses": (RealizableLosses, "experts' losses where one expert never loses"),
    "near-realizable-losses": (NearRealizableLosses, "experts' losses, the best loses L* times"),
    "lower-bound-losses": (LowerBoundLosses, "experts' losses that prove the lower bounds"),
    "gradient-losses": (GradientLosses, "any convex smooth loss of the weights, by its gradient"),
}

#: Methods that an environment must have; `fastfed.environments.base.Environment` describes them.
REQUIRED_METHODS = ("natural_silos", "facts", "open", "describe")


def check_environment(kind: str, entry: Any) -> tuple[type, str]:
    """Return (class, summary) of an environment that another package adds by an entry point.

    ``entry`` is the object that the entry point names. Raises InputError if it is no class of an
    environment of this kind.
    """
    if not (isinstance(entry, type) and dataclasses.is_dataclass(entry)):
        raise must_be("a dataclass", entry)
    if getattr(entry, "kind", None) != kind:
        raise must_be(f'a class whose kind is "{kind}"', getattr(entry, "kind", None))
    missing = [part for part in REQUIRED_METHODS if not callable(getattr(entry, part, None))]
    if missing:
        raise InputError(f"must have the method {missing[0]}")
    return entry, first_line(entry)


#: Maps the kind of every environment, including plug-ins, to its class and a summary.
ENVIRONMENTS: Registry[tuple[type, str]] = Registry(
    "fastfed.environments", "environment", {**BANDIT_ENVIRONMENTS, **ADVERSARIES}, check_environment
)


def environment_from_spec(spec: Any) -> Environment:
    """Return the environment that a table of a spec describes.

    Parameters
    ----------
    spec : dict
        A table with ``kind`` and fields of the class of that kind.

    Returns
    -------
    Environment
        The environment.

    Raises
    ------
    InputError
        For an unknown kind, an unknown or missing key, and values out of range.
    """
    if not isinstance(spec, dict):
        raise InputError(f"environment must be a table with a kind, got {show(spec)}")
    if "kind" not in spec:
        raise InputError(f"environment.kind is required: one of {', '.join(ENVIRONMENTS)}")
    kind = spec["kind"]
    cls = ENVIRONMENTS.choose(kind)[0]
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    keys = {key: value for key, value in spec.items() if key != "kind"}
    for key in keys:
        if key not in fields:
            hint = misplaced(key) or listed(key, fields, "it takes")
            raise InputError(f'unknown key "{key}" for environment "{kind}"{hint}')
        is_number = fields[key].type in ("int", "float", int, float)
        if is_number and isinstance(keys[key], list):
            raise InputError(
                f"{key} must be one number, got {show(keys[key])}: a list of values belongs in a "
                "[[curve]] table, which then is one curve for each value"
            )
    for name, field in fields.items():
        missing = dataclasses.MISSING
        if field.default is missing and field.default_factory is missing and name not in keys:
            raise InputError(f'environment.{name} is required for kind = "{kind}"')
    factory: Any = fields["reward"].default_factory if "reward" in keys else dataclasses.MISSING
    # Only a reward distribution has a default factory. The `reward` of a log is a column's name.
    if factory is not dataclasses.MISSING:
        default, reward = factory(), keys["reward"]
        # If the environment's default distribution is Gaussian, its std is the default std.
        same_kind = isinstance(reward, dict) and reward.get("kind", default.kind) == default.kind
        if same_kind and default.kind == "gaussian":
            reward = {"std": default.std, **reward}
        keys["reward"] = RewardDistribution.from_spec(reward, default.kind)
    with ENVIRONMENTS.guard(kind):
        environment: Environment = cls(**keys)
    return environment


__all__ = [
    "ADVERSARIES",
    "BANDIT_ENVIRONMENTS",
    "ENVIRONMENTS",
    "Adversary",
    "Arms",
    "Classification",
    "Environment",
    "EnvironmentSpec",
    "FixedSet",
    "Gap",
    "GradientLosses",
    "HardInstance",
    "Letor",
    "Log",
    "LossSpec",
    "LowerBoundLosses",
    "NearRealizableLosses",
    "NoDiversity",
    "ObliviousLosses",
    "Python",
    "RealizableLosses",
    "Replay",
    "RewardDistribution",
    "Rotated",
    "Sphere",
    "StochasticLosses",
    "described",
    "environment_from_spec",
    "environment_signature",
    "gradient_signature",
    "losses_signature",
    "to_gymnasium",
]
