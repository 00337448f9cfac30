"""The registry of all systems, and checks that systems fit their environments and keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastfed import _system, bandits, experts
from fastfed._registry import Registry, must_be
from fastfed._validate import InputError, integer, with_example
from fastfed.bandits.clocks import refuse_clock
from fastfed.bandits.delays import refuse_delay
from fastfed.environments import (
    ADVERSARIES,
    BANDIT_ENVIRONMENTS,
    ENVIRONMENTS,
    EnvironmentSpec,
    LossSpec,
)
from fastfed.privacy import MECHANISMS
from fastfed.privacy.certificate import Condition
from fastfed.protocols.score import SCORES
from fastfed.simulation import policies


def check_algorithm(name: str, entry: Any) -> _system.Algorithm:
    """Return the object of an entry point if it is an Algorithm, for bandits or for experts.

    Raises InputError otherwise, or if the id of the Algorithm is not ``name``.
    """
    if not isinstance(entry, bandits.Algorithm | experts.Algorithm):
        raise must_be("an Algorithm of fastfed.bandits or of fastfed.experts", entry)
    if entry.id != name:
        raise must_be(f'an Algorithm whose id is "{name}"', entry.id)
    return entry


#: All systems by name: bandits, systems of experts, and plain policies.
ALGORITHMS: Registry[_system.Algorithm] = Registry(
    "fastfed.algorithms",
    "algorithm",
    {**bandits.ALGORITHMS, **experts.ALGORITHMS, policies.ALGORITHM.id: policies.ALGORITHM},
    check_algorithm,
)


def registries() -> dict[str, Registry[Any]]:
    """Return the registries that packages can extend, by their names in `fastfed list`."""
    return {
        "algorithms": ALGORITHMS,
        "environments": ENVIRONMENTS,
        "mechanisms": MECHANISMS,
        "scores": SCORES,
    }


def algorithm(name: object) -> _system.Algorithm:
    """Return the registry entry of this name; raise InputError if there is none."""
    return ALGORITHMS.choose(name)


def of_experts(entry: _system.Algorithm) -> bool:
    """Return True if a system predicts from experts; all other systems are bandits."""
    return isinstance(entry, experts.Algorithm)


def problem_spec(
    facts: EnvironmentSpec | LossSpec, silos: int, horizon: int
) -> bandits.ProblemSpec | experts.ProblemSpec:
    """Return the problem specification that systems need, made from an environment's facts."""
    if isinstance(facts, LossSpec):
        return experts.ProblemSpec(
            silos=silos,
            horizon=horizon,
            experts=facts.dimension,
            lipschitz=facts.lipschitz,
            spread=facts.spread,
            smoothness=facts.smoothness,
            loss_range=facts.loss_range,
            linear=facts.linear,
            iid=facts.iid,
            optimal_loss=facts.optimal_loss,
            multiplicity=facts.multiplicity,
            notes=facts.notes,
        )
    low, high = facts.reward_range or (0.0, 1.0)
    return bandits.ProblemSpec(
        silos=silos,
        horizon=horizon,
        dimension=facts.dimension,
        # A variable in an interval is sub-Gaussian; its scale is half the interval's length
        # (Hoeffding).
        reward_scale=facts.reward.std if facts.reward.kind == "gaussian" else (high - low) / 2.0,
        noise_free=facts.reward.kind == "none",
        reward_range=facts.reward_range,
        linear=facts.linear,
        features_bounded=facts.features_bounded,
        intercept=facts.intercept,
        linear_by_silo=facts.linear_by_silo,
        arms=facts.arms,
        multiplicity=facts.multiplicity,
        notes=facts.notes,
        conditions=tuple(Condition(text, holds) for text, holds in facts.conditions),
    )


def check_kind(entry: _system.Algorithm, kind: str, facts: EnvironmentSpec | LossSpec) -> None:
    """Raise InputError if a system does not fit an environment.

    Bandits need contexts, and systems with experts need losses of experts. ``facts`` are the
    properties of the environment, and ``kind`` is the environment's name.
    """
    losses = isinstance(facts, LossSpec)
    if of_experts(entry) == losses:
        return
    fitting = BANDIT_ENVIRONMENTS if losses else ADVERSARIES
    raise InputError(
        f"{entry.id} {'needs losses of experts' if not losses else 'needs contexts'}"
        f', which "{kind}" does not have (use one of: {", ".join(fitting)})'
    )


def check_keys(entry: _system.Algorithm, keys: Iterable[str]) -> None:
    """Raise InputError for a key that the system lacks but other systems have; name the others."""
    for key in keys:
        if key in entry.config.__struct_fields__:
            continue
        systems_with_key = [
            e.id for e in ALGORITHMS.builtin.values() if key in e.config.__struct_fields__
        ]
        if systems_with_key:
            system_names = ", ".join(systems_with_key[:3]) + (
                ", ..." if systems_with_key[3:] else ""
            )
            raise InputError(f'unknown key "{key}" for {entry.id}; it is one of {system_names}')


@with_example(
    'fastfed.make_system("private-fedlinucb", silos=2, horizon=100, dimension=3, epsilon=1.0, '
    "delta=1e-6)"
)
def make_system(
    algorithm: str,
    *,
    silos: int = 1,
    horizon: int,
    dimension: int,
    losses: LossSpec | None = None,
    **keys: object,
) -> _system.System:
    """Return one system, with its plan and its certificate, for a deployment.

    The parties in `fastfed.parties` execute the plan: Silo and Server for bandits, ExpertClient and
    ExpertServer for experts. By default rewards and losses are clipped to [0, 1] and features to
    norm 1, so that the privacy guarantee needs no assumption about the values of the data.

    Parameters
    ----------
    algorithm : str
        Id of a system, as listed by `fastfed list algorithms`.
    silos : int
        M, the number of silos; 1 for systems with a single agent.
    horizon : int
        T, the number of rounds of each silo.
    dimension : int
        d, the number of features, or of experts.
    losses : LossSpec, optional
        Properties of the experts' losses, if the losses are not vectors in [0, 1]; for example
        LossSpec(dimension, linear=False, lipschitz=1.0, spread=2.0, smoothness=1.0).
    **keys
        Keys of the algorithm, as in a spec: epsilon, delta, batch_size, ...

    Returns
    -------
    System
        The system, with its ``plan`` and its ``deployed_certificate``. Publish this certificate:
        ``certificate`` is about simulations, whose noise comes from a seed; in deployments the
        noise comes from the operating system.

    Raises
    ------
    InputError
        If the algorithm or a key is unknown, or a value is out of range.

    Examples
    --------
    >>> system = make_system("private-fedlinucb", silos=3, horizon=1000, dimension=4,
    ...                      batch_size=25, epsilon=1.0, delta=1e-6)
    >>> system.certificate.status
    'proven'
    """
    entry = ALGORITHMS.choose(algorithm)
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    horizon = integer("horizon", horizon, at_least=1, at_most=2**32 - 2)
    refuse_delay(keys.get("delay"))
    refuse_clock(keys.get("clock"))
    for key, value in entry.deployed:
        if keys.setdefault(key, value) != value:
            raise InputError(
                f'{key} must be "{value}" in a deployment of {algorithm}, got "{keys[key]}": '
                "the simulation's shortcut uses data that only users may see"
            )
    if of_experts(entry):
        d = integer("dimension", dimension, at_least=2, at_most=2**24)
        loss_spec = losses if losses is not None else LossSpec(d)
        if not isinstance(loss_spec, LossSpec):
            raise InputError(f"losses must be LossSpec, got {type(loss_spec).__name__}")
        if loss_spec.dimension != d:
            raise InputError(f"losses must be of {d} experts, got {loss_spec.dimension}")
        setting = problem_spec(loss_spec, silos, horizon)
        return entry.make(keys, replace(setting, notes=(*setting.notes, LOSSES_ON_TRUST)))
    if losses is not None:
        raise InputError(f"losses are for systems of experts, not for {algorithm}")
    linear = bandits.ProblemSpec(
        silos=silos,
        horizon=horizon,
        dimension=integer("dimension", dimension, at_least=1, at_most=2**15),
        # Nothing is known about the data of a deployment, except what clipping enforces.
        reward_range=None,
        features_bounded=False,
        notes=(ON_TRUST,),
    )
    return entry.make(keys, linear)


#: Notes in certificates: assumptions that a deployment cannot check.
LOSSES_ON_TRUST = "deployment: that every loss is another user's is taken on trust"
ON_TRUST = "deployment: who is served how often, and at which silo, is taken on trust"
