"""Protocols P = (randomizer, shuffler, analyzer), their messages, and the plans to execute."""

from __future__ import annotations

from collections.abc import Mapping

from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.protocols import account  # noqa: F401 (registers what plans release)
from fastfed.protocols.plan import Plan
from fastfed.protocols.randomizer import Randomizer, SumRandomizer
from fastfed.protocols.secure_sum import SecureRandomizer, masked
from fastfed.protocols.vector_sum import BitRandomizer, MessageRandomizer


def make_randomizer(
    plan: Plan, silo: int, noise: NoiseSource, keys: Mapping[int, bytes] | None = None
) -> Randomizer:
    """Return the randomizer R of one silo: the object that makes its messages under a plan.

    ``silo`` is the silo's index. ``keys`` maps each other silo's index to the key of the masks that
    both silos share; only a secure sum needs keys. Raises InputError if keys are missing, or given
    to a protocol without masks.
    """
    if masked(plan, noise):
        if keys is None and plan.silos > 1:
            raise InputError(
                f'keys must be given with protocol "{plan.protocol.id}": silo {silo} needs one '
                "shared with each other silo, 32 random bytes that nobody else knows"
            )
        return SecureRandomizer(plan, silo, noise, keys or {})
    if keys is not None:
        raise InputError(f'keys are for masked messages only, got keys for "{plan.protocol.id}"')
    if not plan.protocol.bits:
        return SumRandomizer(plan, silo, noise)
    return (MessageRandomizer if plan.individual else BitRandomizer)(plan, silo, noise)
