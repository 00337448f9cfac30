"""From a private curve's keys to its noise: the accounted mechanism, its law, and its bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from fastfed._validate import InputError
from fastfed.bandits.bit_law import bit_law
from fastfed.bandits.noise_law import NoiseLaw
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import batches_of_user
from fastfed.privacy.amplification import calibrate_shuffled_tree
from fastfed.privacy.binomial import calibrate_vector_sum
from fastfed.privacy.budget import Budget
from fastfed.privacy.calibration import calibrate_tree
from fastfed.privacy.certificate import Condition
from fastfed.privacy.continual import calibrate_release
from fastfed.privacy.two_streams import GaussianRelease
from fastfed.protocols.plan import Encoding, NoiseStd
from fastfed.protocols.protocol import PROTOCOLS

#: Protocols whose noise may be shared between prefixes.
RELEASABLE = ("silo-ldp", "central")
#: Share of the failure probability that the coupling of bits to normals may take.
WINDOW = 0.01


class Mechanism(Protocol):
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
    law: NoiseLaw
    std: NoiseStd = field(default_factory=NoiseStd)  # of the Gaussian noise that a node gets
    encoding: Encoding | None = None
    #: Where silos have budgets of their own: each one's noise in units of ``std``, and epsilon.
    silo_noise: tuple[float, ...] = ()
    silo_epsilon: tuple[float, ...] = ()


def make_noise(keys: Any, setting: Setting, batch_size: int) -> Noise:
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


def _by_silo(keys: Any, setting: Setting, batch_size: int) -> Noise:
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


def _gaussian(mechanism: GaussianRelease, keys: Any, setting: Setting) -> Noise:
    std = NoiseStd(*mechanism.stds)
    silos = setting.silos if PROTOCOLS[keys.protocol].noise_by == "silos" else 1
    return Noise(mechanism, NoiseLaw(std, silos, mechanism.variance_factors), std)


def _tree(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    returning = batches_of_user(keys.returning, releases)
    tree = calibrate_tree(
        budget, releases, keys.calibration, keys.layout, keys.ratio, returning=returning
    )
    return _gaussian(tree, keys, setting)


def _released(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    returning = batches_of_user(keys.returning, releases)
    made = calibrate_release(
        keys.release,
        budget,
        releases,
        keys.calibration,
        keys.layout,
        keys.ratio,
        returning=returning,
    )
    return _gaussian(made, keys, setting)


def _amplified(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
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


def _vector(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
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


_MAKERS: dict[str, Callable[[Any, Setting, int, Budget], Noise]] = {
    "silo-ldp": _tree,
    "silo-ldp-prefix": _tree,
    "central": _tree,
    "shuffle-amplified": _amplified,
    "shuffle-vector": _vector,
}
