"""Local LinUCB: each silo alone, the "no federation" baseline (huang-2023, Algorithm 2).

Deviation: clipping and radius rules as in the federated systems. ``batch_size`` and ``lazy`` have
no meaning here and are refused.
"""

from __future__ import annotations

from fastfed._validate import InputError
from fastfed.bandits.assemble import assemble
from fastfed.bandits.certify import certify
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.protocols.protocol import PROTOCOLS


class LocalKeys(Keys, frozen=True, kw_only=True):
    """Keys of a local-linucb curve."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise InputError("batch_size has no meaning for local-linucb: silos never synchronise")
        if self.lazy:
            raise InputError("lazy has no meaning for local-linucb: silos never synchronise")


def build(keys: LocalKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    clip = keys.bounds(published=keys.radius == "published-code")
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], 0, clip)
    source = "huang-2023, Algorithm 2; nothing leaves a silo"
    plan, certificate = certify(plan, setting, theory, None, source)
    return System("local-linucb", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="local-linucb",
    paper="huang-2023",
    summary="each silo alone: LinUCB without federation",
    keys=LocalKeys,
    build=build,
)
