"""From a private curve's keys to its noise: the accounted mechanism, its law, and its bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastfed.bandits.setting import Setting
from fastfed.bandits.theory import NoiseLaw
from fastfed.privacy.amplification import calibrate_shuffled_tree
from fastfed.privacy.binomial import BinomialTree, calibrate_vector_sum
from fastfed.privacy.budget import Budget
from fastfed.privacy.calibration import GaussianTree, calibrate_tree
from fastfed.privacy.certificate import Condition
from fastfed.privacy.sensitivity import layout_stds
from fastfed.privacy.tree import max_prefix_nodes
from fastfed.protocols.plan import Encoding, NoiseStd
from fastfed.protocols.protocol import PROTOCOLS

#: Sub-Gaussian scale of one centred bit of mean 1/4, squared (Kearns and Saul 1998).
BIT_SCALE_SQUARED = 0.5 / (2.0 * math.log(3.0))


class Mechanism(Protocol):
    """What a certificate asks of a mechanism, whatever its noise."""

    @property
    def budget(self) -> Budget: ...

    @property
    def noise_stds(self) -> dict[str, float]: ...

    @property
    def source(self) -> str: ...

    def exact(self) -> float: ...

    def conditions(self) -> list[Condition]: ...


@dataclass(frozen=True)
class Noise:
    """A mechanism, and what drivers and theory need to know of its noise."""

    mechanism: Mechanism
    law: NoiseLaw
    std: NoiseStd = field(default_factory=NoiseStd)  # of the Gaussian noise that a node gets
    encoding: Encoding | None = None


def make_noise(keys: Any, setting: Setting, batch_size: int) -> Noise:
    """The noise of a private curve; InputError where the calibration has none for the protocol."""
    budget = Budget(keys.epsilon, keys.delta, keys.relation)
    return _MAKERS[keys.protocol](keys, setting, batch_size, budget)


def _gaussian(tree: GaussianTree, protocol: str, setting: Setting) -> Noise:
    std = NoiseStd(tree.noise_std, *layout_stds(tree.layout, tree.noise_std))
    law = NoiseLaw(
        node=std,
        noises=setting.silos if PROTOCOLS[protocol].noise_by == "silos" else 1,
        prefix_nodes=max_prefix_nodes(tree.releases),
        releases=tree.releases,
    )
    return Noise(tree, law, std)


def _tree(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
    releases = setting.horizon // batch_size
    tree = calibrate_tree(budget, releases, keys.calibration, keys.layout)
    return _gaussian(tree, keys.protocol, setting)


def _amplified(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
    tree = calibrate_shuffled_tree(
        budget,
        setting.horizon // batch_size,
        setting.silos,
        batch_size,
        setting.horizon,
        keys.calibration,
        keys.layout,
    )
    return _gaussian(tree, keys.protocol, setting)


def _vector(keys: Any, setting: Setting, batch_size: int, budget: Budget) -> Noise:
    tree = calibrate_vector_sum(
        budget,
        setting.horizon // batch_size,
        setting.silos * batch_size,
        setting.dimension,
        keys.calibration,
        keys.vector_scale,
        keys.honest_fraction,
    )
    scale = _bit_scale(tree)
    law = NoiseLaw(
        node=NoiseStd(scale, scale, scale),
        noises=1,
        prefix_nodes=max_prefix_nodes(tree.releases),
        releases=tree.releases,
        gaussian=False,
        published_std=tree.published_std,
    )
    return Noise(tree, law, encoding=Encoding(tree.g, tree.b))


def _bit_scale(tree: BinomialTree) -> float:
    """Sub-Gaussian scale of one entry of one node, the largest over levels.

    n b noise bits and n roundings, each a centred variable on an interval of length 1, in steps
    of 1 / g.
    """
    scales = [
        math.sqrt(tree.users(level) * (b * BIT_SCALE_SQUARED + 0.25)) / g
        for level, (g, b) in enumerate(zip(tree.g, tree.b, strict=True))
    ]
    return max(scales, default=0.0)


_MAKERS: dict[str, Callable[[Any, Setting, int, Budget], Noise]] = {
    "silo-ldp": _tree,
    "silo-ldp-prefix": _tree,
    "central": _tree,
    "shuffle-amplified": _amplified,
    "shuffle-vector": _vector,
}
