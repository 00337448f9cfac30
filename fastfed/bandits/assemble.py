"""From the keys of a curve to its noise, and from the noise to a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from typing import Protocol as TypingProtocol

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import NoiseDistribution, bit_law
from fastfed.bandits.radius import Theory, make_theory
from fastfed.bandits.setting import ProblemSpec
from fastfed.bandits.system import Config, batches_of_user
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.amplification import calibrate_shuffled_tree
from fastfed.privacy.mechanisms.binomial_tree import calibrate_vector_sum
from fastfed.privacy.releases.gaussian_release import (
    GaussianRelease,
    release_for,
    tree_for,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS, Protocol
from fastfed.protocols.score import score_named

# From a private curve's keys to its noise: the accounted mechanism, its law, and its bits.


#: Protocols whose noise may be shared between prefixes.
RELEASABLE = ("silo-ldp", "central")
#: Share of the failure probability that the coupling of bits to normals may take.
WINDOW = 0.01


class Mechanism(TypingProtocol):
    """What is declared of a plan by a mechanism; its account is of the plan's own numbers."""

    @property
    def budget(self) -> Budget: ...

    @property
    def source(self) -> str: ...

    def conditions(self) -> list[Condition]: ...


@dataclass(frozen=True)
class Noise:
    """A mechanism, and what drivers and theory need to know of its noise."""

    mechanism: Mechanism
    law: NoiseDistribution
    std: NoiseStd = field(default_factory=NoiseStd)  # of the Gaussian noise that a node gets
    encoding: Encoding | None = None
    #: Where silos have budgets of their own: each one's noise in units of ``std``, and epsilon.
    silo_noise: tuple[float, ...] = ()
    silo_epsilon: tuple[float, ...] = ()


def make_noise(keys: Any, setting: ProblemSpec, batch_size: int) -> Noise:
    """The noise of a private curve; InputError where the calibration has none for the protocol."""
    if keys.silo_epsilon is not None:
        return _by_silo(keys, setting, batch_size)
    budget = Budget(keys.epsilon, keys.delta, keys.relation)
    if keys.release != "tree":
        if keys.protocol not in RELEASABLE:
            raise InputError(
                f'release "{keys.release}" needs protocol '
                f"{' or '.join(RELEASABLE)}: elsewhere a node's noise belongs to the node, got "
                f'"{keys.protocol}"'
            )
        return _released(keys, setting, batch_size, budget)
    return _MAKERS[keys.protocol](keys, setting, batch_size, budget)


def _by_silo(keys: Any, setting: ProblemSpec, batch_size: int) -> Noise:
    """Every silo's own budget (zhou-chowdhury-2024, Definition 2.1): noise of its own strength."""
    budgets = keys.silo_epsilon
    if keys.returning != 1:
        raise InputError(
            "returning must be 1 with silo_epsilon: a user of several silos has no budget of "
            f"their own, got {keys.returning}"
        )
    if len(budgets) != setting.silos:
        raise InputError(
            f"silo_epsilon must hold one number for each of {setting.silos} silos, "
            f"got {len(budgets)}"
        )
    each = {
        epsilon: make_noise(
            msgspec.structs.replace(keys, epsilon=epsilon, silo_epsilon=None), setting, batch_size
        )
        for epsilon in dict.fromkeys(budgets)
    }
    weakest = each[max(budgets)]
    scales = tuple(each[e].std.bias / weakest.std.bias for e in budgets)
    return replace(
        weakest,
        law=replace(weakest.law, noises=sum(f * f for f in scales)),
        silo_noise=scales,
        silo_epsilon=tuple(float(epsilon) for epsilon in budgets),
    )


def _gaussian(mechanism: GaussianRelease, keys: Any, setting: ProblemSpec) -> Noise:
    std = NoiseStd(*mechanism.stds)
    silos = setting.silos if PROTOCOLS[keys.protocol].noise_by == "silos" else 1
    return Noise(mechanism, NoiseDistribution(std, silos, mechanism.variance_factors), std)


def _tree(keys: Any, setting: ProblemSpec, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    returning = batches_of_user(keys.returning, releases)
    tree = tree_for(
        budget, releases, keys.calibration, keys.layout, keys.ratio, returning=returning
    )
    return _gaussian(tree, keys, setting)


def _released(keys: Any, setting: ProblemSpec, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    returning = batches_of_user(keys.returning, releases)
    made = release_for(
        keys.release,
        budget,
        releases,
        keys.calibration,
        keys.layout,
        keys.ratio,
        returning=returning,
    )
    return _gaussian(made, keys, setting)


def _amplified(keys: Any, setting: ProblemSpec, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    tree = calibrate_shuffled_tree(
        budget,
        releases,
        setting.silos,
        batch_size,
        setting.horizon,
        keys.calibration,
        keys.layout,
        returning=batches_of_user(keys.returning, releases),
    )
    return _gaussian(tree, keys, setting)


def _vector(keys: Any, setting: ProblemSpec, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    tree = calibrate_vector_sum(
        budget,
        releases,
        setting.silos * batch_size,
        setting.dimension,
        keys.calibration,
        keys.vector_scale,
        keys.honest_fraction,
        returning=batches_of_user(keys.returning, releases),
    )
    law = bit_law(tree, WINDOW * keys.failure_probability)
    return Noise(tree, law, encoding=Encoding(tree.g, tree.b))


_MAKERS: dict[str, Callable[[Any, ProblemSpec, int, Budget], Noise]] = {
    "silo-ldp": _tree,
    "silo-ldp-prefix": _tree,
    "central": _tree,
    "shuffle-amplified": _amplified,
    "shuffle-vector": _vector,
}


# ---- One way from a curve's keys and its noise to a plan: shared by every linear system ----------


def released_only(keys: Config, batch_size: int) -> bool:
    """Whether actions depend on synchronised statistics alone.

    With B = 1 the local batch is empty whenever an action is chosen, lazy or not.
    """
    return batch_size == 1 or (keys.lazy and batch_size > 0)


def assemble(
    keys: Config,
    setting: ProblemSpec,
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
    law = noise.law if noise else NoiseDistribution(variances=np.zeros(releases + 1))
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
    keys: Config,
    setting: ProblemSpec,
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
