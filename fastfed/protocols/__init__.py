"""Messages, protocols P = (randomizer, shuffler, analyzer), and the plans drivers execute."""

from __future__ import annotations

from collections.abc import Mapping

from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.protocols import account  # noqa: F401 (says what plans release)
from fastfed.protocols.plan import Plan
from fastfed.protocols.randomizer import Randomizer, SumRandomizer
from fastfed.protocols.secure_sum import SecureRandomizer, masked
from fastfed.protocols.vector_sum import BitRandomizer, MessageRandomizer


def make_randomizer(
    plan: Plan, silo: int, noise: NoiseSource, keys: Mapping[int, bytes] | None = None
) -> Randomizer:
    """The randomizer R of one silo under a plan; ``keys`` are those of its masks, where it has any.

    Raises InputError for keys that are missing, or of no use.
    """
    if masked(plan, noise):
        if keys is None and plan.silos > 1:
            raise InputError(
                f'keys must be given with protocol "{plan.protocol.id}": silo {silo} needs one '
                "shared with each other silo, 32 random bytes that nobody else knows"
            )
        return SecureRandomizer(plan, silo, noise, keys or {})
    if keys is not None:
        raise InputError(f'keys belong to masked messages, got some for "{plan.protocol.id}"')
    if not plan.protocol.bits:
        return SumRandomizer(plan, silo, noise)
    return (MessageRandomizer if plan.individual else BitRandomizer)(plan, silo, noise)
