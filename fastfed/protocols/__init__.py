"""Messages, protocols P = (randomizer, shuffler, analyzer), and the plans drivers execute."""

from __future__ import annotations

from fastfed._random import NoiseSource
from fastfed.protocols import account  # noqa: F401 (says what plans release)
from fastfed.protocols.plan import Plan
from fastfed.protocols.randomizer import Randomizer, SumRandomizer
from fastfed.protocols.vector_sum import BitRandomizer, MessageRandomizer


def make_randomizer(plan: Plan, silo: int, noise: NoiseSource) -> Randomizer:
    """The randomizer R of one silo under a plan."""
    if not plan.protocol.bits:
        return SumRandomizer(plan, silo, noise)
    return (MessageRandomizer if plan.individual else BitRandomizer)(plan, silo, noise)
