"""The random policy: a uniformly random action each round, the line nobody should be above.

Of no paper, but behind every figure: where privacy leaves nothing to learn from, regret is this
policy's. Nothing is learned and nothing is sent, so no key has a meaning here.
"""

from __future__ import annotations

from dataclasses import replace

from fastfed._validate import InputError
from fastfed.bandits.assemble import assemble
from fastfed.bandits.certify import certify
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.protocols.protocol import PROTOCOLS


class RandomKeys(Keys, frozen=True, kw_only=True):
    """Keys of a random curve: none that could be changed."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        unchanged = Keys(lazy=False)
        for key in Keys.__struct_fields__:
            if getattr(self, key) != getattr(unchanged, key):
                raise InputError(f"{key} has no meaning for random: it learns nothing")


def build(keys: RandomKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], 0, None)
    plan = replace(plan, policy="random", lazy=True)
    plan, certificate = certify(plan, setting, theory, None, "uniformly random actions")
    return System("random", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="random",
    paper="none",
    summary="a uniformly random action each round: what chance gives",
    keys=RandomKeys,
    build=build,
)
