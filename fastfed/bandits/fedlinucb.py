"""FedLinUCB: federated LinUCB in fixed batches without privacy, the curve all others aim at.

zhou-chowdhury-2024, Algorithm 1 with exact sums. Deviation: the same clipping, radius and
last-batch rules as private-fedlinucb, so that two curves differ in nothing but privacy.
"""

from __future__ import annotations

from fastfed.bandits.assemble import assemble
from fastfed.bandits.certify import certify
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.protocols.protocol import PROTOCOLS


def build(keys: Keys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    clip = keys.bounds(published=keys.radius == "published-code")
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], keys.rounds_per_batch(setting), clip)
    plan, certificate = certify(plan, setting, theory, None, "zhou-chowdhury-2024, Section 6")
    return System("fedlinucb", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches, not private",
    keys=Keys,
    build=build,
)
