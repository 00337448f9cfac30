"""The vector sum by shuffled bits: rounding, centred binomials, messages."""

from __future__ import annotations

import math

import numpy as np

from twins.random import Array, _bits53, _unit_f64, log, philox


def touched_levels(leaf: int, releases: int) -> list[int]:
    """Return the levels of the tree nodes that hold a leaf, lowest first."""
    levels, node = [], leaf
    while node <= releases:
        levels.append((node & -node).bit_length() - 1)
        node += node & -node
    return levels


def round_point(point: Array, g: float, clamped: bool, random: Array, sums: Array) -> None:
    """Add the point's entries in fixed point, rounded at random, minus g, to sums in place."""
    v = (point + 1.0) * g
    v = np.clip(v, 0.0, 2.0 * g) if clamped else np.clip(v, -(2.0**50), 2.0**50)
    floor = np.floor(v)
    increment = random * 2.0**-32 < v - floor
    sums += floor + increment - g


def round_points(points: Array, g: float, clamped: bool, random: Array, sums: Array) -> None:
    """Apply ``round_point`` to each row."""
    for point, row in zip(points, random, strict=True):
        round_point(point, g, clamped, row, sums)


#: ln k! minus Stirling's formula, k = 1..15 (Loader 2000).
_STIRLING = [
    0.0,
    *(
        math.lgamma(k + 1.0) - ((k + 0.5) * math.log(k) - k + 0.5 * math.log(2.0 * math.pi))
        for k in range(1, 16)
    ),
]


def _stirling(k: int) -> float:
    """Return the error of Stirling's formula for ln k!."""
    if k < 16:
        return _STIRLING[k]
    x = 1.0 / k
    z = x * x
    return x * (1 / 12 - z * (1 / 360 - z * (1 / 1260 - z * (1 / 1680 - z / 1188))))


def _deviance(x: float, mean: float, excess: float) -> float:
    """Return x ln(x / mean) + mean - x, where excess = x - mean is known exactly."""
    if abs(excess) >= 0.1 * (x + mean):
        return x * log(x / mean) - excess
    v = excess / (x + mean)
    total, term = excess * v, 2.0 * x * v
    for j in range(1, 200):
        term *= v * v
        if total + term / (2 * j + 1) == total:
            break
        total += term / (2 * j + 1)
    return total


def _log_pmf(k: int, n: int, excess: float) -> float:
    """Return ln of the probability of k = n / 4 + excess, minus a function of n."""
    if k in (0, n):
        chance = 0.75 if k == 0 else 0.25
        return n * log(chance) + 0.5 * log(2.0 * math.pi) - _stirling(n)
    spread = -_deviance(k, 0.25 * n, excess) - _deviance(n - k, 0.75 * n, -excess)
    return -_stirling(k) - _stirling(n - k) + spread - 0.5 * log(k * ((n - k) / n))


def _binomial_by_inversion(u: float, n: int) -> float:
    """Return Bin(n, 1/4) - n / 4 for a uniform u, by inversion of the distribution function."""
    probability = 1.0
    for _ in range(n):
        probability *= 0.75
    k = 0
    while k < n and u > probability:
        u -= probability
        probability *= (n - k) / (3 * (k + 1))
        k += 1
    return k - 0.25 * n


def _try(words: Array, n: int) -> float:
    """Return Bin(n, 1/4) - n / 4 from four words, NaN when rejected (Hoermann 1993, BTRS)."""
    first, v = _unit_f64(_bits53(words[0::2], words[1::2]))
    if n < 40:
        return _binomial_by_inversion(float(first), n)
    quarter, remainder = divmod(n, 4)
    spread = math.sqrt(n * 0.1875)
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * 0.25
    u = first - 0.5
    us, fraction = 0.5 - abs(u), 0.25 * remainder
    offset = math.floor((2.0 * a / us + b) * u + fraction + 0.5)
    if us >= 0.07 and v <= 0.92 - 4.2 / b:
        return offset - fraction
    k = quarter + offset
    if not 0 <= k <= n:
        return math.nan
    step = int(remainder == 3)  # the mode is quarter + step
    v = v * ((2.83 + 5.1 / b) * spread) / (a / (us * us) + b)
    log_ratio = _log_pmf(k, n, offset - fraction) - _log_pmf(quarter + step, n, step - fraction)
    return math.nan if log(float(v)) > log_ratio else offset - fraction


def binomials_from_words(random: Array, n: int) -> Array:
    """Try once per row of four words to draw Bin(n, 1/4) - n / 4; NaN if rejected."""
    return np.array([_try(row, n) for row in random])


def binomials(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int, count: int
) -> Array:
    """Return draws of Bin(n, 1/4) - n / 4, (count,)."""
    draws = np.full(count, math.nan)
    for j in range(count):
        block = j
        while math.isnan(draws[j]):
            draws[j] = _try(philox(seed, purpose, replicate, silo, index, block), n)
            block += count
    return draws


def encode_bits(ones: Array, length: int) -> Array:
    """Return messages of `length` bits, `ones` of them 1: (entries, length) of uint8."""
    return (np.arange(length) < ones[:, None]).astype(np.uint8)


def shuffle_bits(
    seed: int, purpose: int, replicate: int, silo: int, index: int, bits: Array
) -> None:
    """Permute bits uniformly at random in place (Fisher-Yates, from the end)."""
    stream = seed, purpose, replicate, silo, index
    words = (int(w) for block in range(2**32) for w in philox(*stream, block))
    for i in range(len(bits) - 1, 0, -1):
        # Lemire's multiply-and-reject.
        threshold = (2**32 - (i + 1)) % (i + 1)
        product = next(words) * (i + 1)
        while product & 0xFFFFFFFF < threshold:
            product = next(words) * (i + 1)
        j = product >> 32
        bits[i], bits[j] = bits[j], bits[i]
