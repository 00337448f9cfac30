"""Coins of experts' losses, one coin at a time, as `fastfed/_kernels/src/ff_coins.h` defines them.

The random words are an argument: ``words(group, round, number)`` returns the four 32-bit words of
one Philox block of the replicate's stream.

Symbols: d experts; G silos in a group; S the step from one plane to the next, in Philox blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: Bits of a uniform integer, and bits of a block.
BITS, BLOCK = 31, 128


def group_size(d: int) -> int:
    """Return G, the number of silos whose coins share blocks."""
    return max(1, BLOCK // d)


def stride(d: int) -> int:
    """Return S: the blocks of d experts, rounded up to a power of two, or to a multiple of 16."""
    blocks = -(-group_size(d) * d // BLOCK)
    return next((2**k for k in range(5) if blocks <= 2**k), -(-blocks // 16) * 16)


def uniform(
    expert: int, d: int, silo: int, round: int, words: Callable[[int, int, int], Sequence[int]]
) -> int:
    """Return the uniform integer in [0, 2^31) that decides one coin; plane 0 is its top bit."""
    size = group_size(d)
    block, bit = divmod(silo % size * d + expert, BLOCK)
    value = 0
    for plane in range(BITS):
        draws = words(silo // size, round, stride(d) * plane + block)
        value = 2 * value + (int(draws[bit // 32]) >> bit % 32 & 1)
    return value


def coins(
    chances: Sequence[int], silo: int, round: int, words: Callable[[int, int, int], Sequence[int]]
) -> list[int]:
    """Return the coins of one silo and round; coin n is 1 with probability chances[n] / 2^31."""
    d = len(chances)
    return [int(uniform(n, d, silo, round, words) < chances[n]) for n in range(d)]
