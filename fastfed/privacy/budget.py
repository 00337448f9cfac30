"""What is asked for: epsilon and delta, and between which neighbouring datasets they hold."""

from __future__ import annotations

import msgspec

from fastfed._validate import choice, number

RELATIONS = ("replace", "zero-out")
UNITS = ("user", "item", "silo")

#: Beyond this and below its inverse, squares of noise would leave the range of a float64.
MOST_EPSILON = 1e50


class Budget(msgspec.Struct, frozen=True):
    """A privacy budget, which means nothing without its relation and unit.

    epsilon: from 1e-50 to 1e50. delta: in [0, 1); mechanisms with unbounded noise need delta > 0.
    relation: "replace" (one unit's data becomes any other data, the papers' definition) or
    "zero-out" (its contribution becomes zero, a weaker notion).
    unit: "user" (one context with all its possible rewards), "item" (one realised pair (x, y))
    or "silo" (everything one silo holds).

    Raises InputError for values outside these sets.
    """

    epsilon: float
    delta: float
    relation: str = "replace"
    unit: str = "user"

    def __post_init__(self) -> None:
        epsilon = number("epsilon", self.epsilon, above=0)
        number("epsilon", epsilon, at_least=1.0 / MOST_EPSILON, at_most=MOST_EPSILON)
        delta = number("delta", self.delta, at_least=0, below=1)
        choice("relation", self.relation, RELATIONS)
        choice("unit", self.unit, UNITS)
        # Budget(1, 0) and Budget(1.0, 0.0) must be the same value, also when written out.
        msgspec.structs.force_setattr(self, "epsilon", epsilon)
        msgspec.structs.force_setattr(self, "delta", delta)
