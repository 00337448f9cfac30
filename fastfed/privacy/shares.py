"""How much of a budget each of many equal mechanisms may cost."""

from __future__ import annotations

import math
from functools import lru_cache

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.losses import KINDS, Part, composed_epsilon

_CLOSE = 1e-8  # how near to the largest epsilon the search ends, relatively


def largest_share(
    epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...] = ()
) -> float:
    """The largest epsilon of each of `count` mechanisms that together with `given` ones are proven
    (epsilon, delta) by `composed_epsilon`, to a relative 1e-7 from below.

    epsilon: > 0. delta: in [0, 1). kind: as in `composed_epsilon`. count: >= 1. given: parts that
    are paid for first. Raises InputError if they alone exceed the budget.

    >>> largest_share(1.0, 0.0, "bounded-range", 10, (("randomized-response", 0.5, 1),))
    0.05
    """
    budget = number("epsilon", epsilon, above=0), number("delta", delta, at_least=0, below=1)
    kind, count = choice("kind", kind, KINDS), integer("count", count, at_least=1)
    return _largest(*budget, kind, count, tuple(given))


@lru_cache(maxsize=4096)
def _largest(epsilon: float, delta: float, kind: str, count: int, given: tuple[Part, ...]) -> float:
    from scipy.optimize import brentq

    def total(each: float) -> float:
        return composed_epsilon([*given, (kind, each, count)], delta)

    if composed_epsilon(given, delta) >= epsilon:
        raise InputError(f"given must cost less than epsilon {epsilon:g}, got {given!r}")
    # Basic composition is within the budget.
    each = (epsilon - sum(n * e for _, e, n in given)) / count
    if delta > 0.0:
        # Many of them add up like the root of their number.
        low = max(each, epsilon / math.sqrt(count * (2.0 * epsilon - 8.0 * math.log(delta))))
        while total(low) > epsilon:  # the given parts may cost less together than one by one
            low /= 2.0
        high = 1.5 * low
        while total(high) <= epsilon:
            low, high = high, 1.5 * high
        if total(low) < epsilon:
            low = float(brentq(lambda e: total(e) - epsilon, low, high, xtol=1e-300, rtol=_CLOSE))
        # Room for an account that is not quite smooth, where the caller rounds.
        each = low * (1.0 - _CLOSE)
    # One that rounding has put above the budget.
    while total(each) > epsilon:
        each *= 1.0 - (_CLOSE if delta > 0.0 else 2.0**-52)
    return each
