"""All systems by name, and which environments they can be put to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastfed import _system, bandits, experts
from fastfed._registry import Registry, must_be
from fastfed._validate import InputError, integer
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


def check_algorithm(name: str, found: Any) -> _system.Algorithm:
    """Check that an entry point names a system of either kind."""
    if not isinstance(found, bandits.Algorithm | experts.Algorithm):
        raise must_be("an Algorithm of fastfed.bandits or of fastfed.experts", found)
    if found.id != name:
        raise must_be(f'an Algorithm whose id is "{name}"', found.id)
    return found


#: Bandits, systems of experts, and plain policies.
ALGORITHMS: Registry[_system.Algorithm] = Registry(
    "fastfed.algorithms",
    "algorithm",
    {**bandits.ALGORITHMS, **experts.ALGORITHMS, policies.ALGORITHM.id: policies.ALGORITHM},
    check_algorithm,
)


def registries() -> dict[str, Registry[Any]]:
    """All that packages can add to, by what `fastfed list` calls it."""
    return {
        "algorithms": ALGORITHMS,
        "environments": ENVIRONMENTS,
        "mechanisms": MECHANISMS,
        "scores": SCORES,
    }


def algorithm(name: object) -> _system.Algorithm:
    """The registry's entry."""
    return ALGORITHMS.choose(name)


def of_experts(entry: _system.Algorithm) -> bool:
    """True if a system predicts from experts and is no bandit."""
    return isinstance(entry, experts.Algorithm)


def problem_spec(
    facts: EnvironmentSpec | LossSpec, silos: int, horizon: int
) -> bandits.ProblemSpec | experts.ProblemSpec:
    """The environment's facts as a system wants them."""
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
        # Whatever lies in an interval is sub-Gaussian of half its length (Hoeffding).
        reward_scale=facts.reward.std if facts.reward.kind == "gaussian" else (high - low) / 2.0,
        noise_free=facts.reward.kind == "none",
        reward_range=facts.reward_range,
        linear=facts.linear,
        features_bounded=facts.features_bounded,
        intercept=facts.intercept,
        linear_by_silo=facts.linear_by_silo,
        multiplicity=facts.multiplicity,
        notes=facts.notes,
        conditions=tuple(Condition(text, holds) for text, holds in facts.conditions),
    )


def check_kind(entry: _system.Algorithm, kind: str, facts: EnvironmentSpec | LossSpec) -> None:
    """InputError where a bandit is put to losses, or experts to contexts."""
    losses = isinstance(facts, LossSpec)
    if of_experts(entry) == losses:
        return
    fitting = BANDIT_ENVIRONMENTS if losses else ADVERSARIES
    raise InputError(
        f"{entry.id} {'plays against losses of experts' if not losses else 'needs contexts'}"
        f', which "{kind}" has not (those that fit: {", ".join(fitting)})'
    )


def check_keys(entry: _system.Algorithm, keys: Iterable[str]) -> None:
    """Refuse a key that belongs to other systems, which are named."""
    for key in keys:
        if key in entry.config.__struct_fields__:
            continue
        takes = [e.id for e in ALGORITHMS.builtin.values() if key in e.config.__struct_fields__]
        if takes:
            others = ", ".join(takes[:3]) + (", ..." if takes[3:] else "")
            raise InputError(f'unknown key "{key}" for {entry.id}; it is one of {others}')


def make_system(
    algorithm: str,
    *,
    silos: int = 1,
    horizon: int,
    dimension: int,
    losses: LossSpec | None = None,
    **keys: object,
) -> _system.System:
    """Make the plan and the certificate of one system, to deploy it step by step.

    The parties in `fastfed.parties` take the plan: Silo and Server for bandits, ExpertClient and
    ExpertServer for experts. Rewards and losses are clipped to [0, 1] and features to norm 1 by
    default, so privacy needs no promise about the data.

    Parameters
    ----------
    algorithm : str
        Id of a system, as `fastfed list algorithms` prints them.
    silos : int
        M; 1 for the systems of a single agent.
    horizon : int
        T, rounds of each silo.
    dimension : int
        d, of the features; for experts their number.
    losses : LossSpec, optional
        Guarantees about experts' losses that are no vectors in [0, 1], such as
        LossSpec(dimension, linear=False, lipschitz=1.0, spread=2.0, smoothness=1.0).
    **keys
        Of the algorithm, as in a spec: epsilon, delta, batch_size, ...

    Returns
    -------
    System
        ``plan``, and ``deployed_certificate``: the certificate to hand out, since a deployment
        draws its noise from the operating system.

    Raises
    ------
    InputError
        For an unknown algorithm or key, and values out of range.

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
    for key, value in entry.deployed:
        if keys.setdefault(key, value) != value:
            raise InputError(
                f'{key} must be "{value}" in a deployment of {algorithm}, got "{keys[key]}": '
                "the shortcut of the simulation sees what only users may"
            )
    if of_experts(entry):
        d = integer("dimension", dimension, at_least=2, at_most=2**24)
        promised = losses if losses is not None else LossSpec(d)
        if not isinstance(promised, LossSpec):
            raise InputError(f"losses must be LossSpec, got {type(promised).__name__}")
        if promised.dimension != d:
            raise InputError(f"losses must be of {d} experts, got {promised.dimension}")
        setting = problem_spec(promised, silos, horizon)
        return entry.make(keys, replace(setting, notes=(*setting.notes, LOSSES_ON_TRUST)))
    if losses is not None:
        raise InputError(f"losses go with systems of experts, not with {algorithm}")
    linear = bandits.ProblemSpec(
        silos=silos,
        horizon=horizon,
        dimension=integer("dimension", dimension, at_least=1, at_most=2**15),
        # Nothing is known of what a deployment will feed in, but for what clipping enforces.
        reward_range=None,
        features_bounded=False,
        notes=(ON_TRUST,),
    )
    return entry.make(keys, linear)


#: What no deployment can see for itself.
LOSSES_ON_TRUST = "deployment: that every loss is another user's is taken on trust"
ON_TRUST = "deployment: who is served how often, and at which silo, is taken on trust"
