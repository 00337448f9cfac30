"""One way from a curve's keys and its noise to a plan: shared by every linear system."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastfed.bandits.noise import Noise
from fastfed.bandits.noise_law import NoiseLaw
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Keys
from fastfed.bandits.theory import Theory, make_theory
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import Protocol
from fastfed.protocols.score import score_named


def released_only(keys: Keys, batch_size: int) -> bool:
    """Whether actions depend on synchronised statistics alone.

    With B = 1 the local batch is empty whenever an action is chosen, lazy or not.
    """
    return batch_size == 1 or (keys.lazy and batch_size > 0)


def assemble(
    keys: Keys,
    setting: Setting,
    protocol: Protocol,
    batch_size: int,
    clip: Clip | None,
    noise: Noise | None = None,
    individual: bool = False,
    release: str = "tree",
    *,
    only_released: bool | None = None,
    ordered: bool = True,
) -> tuple[Plan, Theory]:
    """Plan and theory of one curve; batch_size 0 never synchronises, noise None adds none.

    ``only_released``: as `released_only` says by default. ``ordered``: whether the rounds of
    synchronisation are known in advance.
    """
    releases = setting.horizon // batch_size if batch_size else 0
    law = noise.law if noise else NoiseLaw(variances=np.zeros(releases + 1))
    if only_released is None:
        only_released = released_only(keys, batch_size)
    theory = make_theory(
        # A silo that never synchronises is its own federation of one.
        setting if batch_size else replace(setting, silos=1),
        law,
        radius=keys.radius,
        radius_multiplier=keys.radius_multiplier,
        regularizer=keys.regularizer_rule,
        failure_probability=keys.failure_probability,
        clip=clip,
        released_only=only_released,
        union=setting.silos,
        ordered=ordered,
    )
    made = plan_of(keys, setting, protocol, batch_size, clip, theory, noise)
    return replace(made, individual=individual, release=release), theory


def plan_of(
    keys: Keys,
    setting: Setting,
    protocol: Protocol,
    batch_size: int,
    clip: Clip | None,
    theory: Theory,
    noise: Noise | None,
) -> Plan:
    """The plan of a theory and its noise."""
    return Plan(
        silos=setting.silos,
        horizon=setting.horizon,
        dimension=setting.dimension,
        batch_size=batch_size,
        # Alone there is nothing to wait for: a silo uses what it has seen.
        lazy=keys.lazy and batch_size > 0,
        protocol=protocol,
        noise_std=noise.std if noise else NoiseStd(),
        regularizer=theory.regularizer,
        radius=theory.radius,
        clip=clip,
        encoding=noise.encoding if noise else None,
        silo_noise=noise.silo_noise if noise else (),
        score=score_named(keys.score),
    )
