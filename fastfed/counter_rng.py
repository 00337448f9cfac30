"""Randomness inside a user's compiled function: uniforms and normals as functions of a key.

For ``numba.cfunc`` environments and score functions, which must draw all they draw from what they
are given, so that results depend neither on threads nor on order. Draw i of a key is splitmix64
(Steele, Lea and Flood 2014) of the key and i; no two draws of one key share an i. These are for
contexts, instances and exploration, never for privacy noise.
"""

from __future__ import annotations

import math

import numba
import numpy as np

__all__ = ["key_of", "normal", "uniform"]

# Of uint64, for numba makes a float of a product with a signed integer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31 = (np.uint64(n) for n in (11, 27, 30, 31))
_ONE, _TWO = np.uint64(1), np.uint64(2)


@numba.njit
def _mixed(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@numba.njit
def key_of(seed, replicate, silo, round):  # type: ignore[no-untyped-def]
    """A key (uint64) for each (seed, replicate, silo, round); 0 where one has no say."""
    key = np.uint64(seed)
    for part in (replicate, silo, round):
        key = _mixed(key + _GOLDEN) ^ np.uint64(part)
    return _mixed(key + _GOLDEN)


@numba.njit
def uniform(key, i):  # type: ignore[no-untyped-def]
    """A number in (0, 1], 53 bits: draw i = 0, 1, ... of a key."""
    bits = _mixed(np.uint64(key) + (np.uint64(i) + _ONE) * _GOLDEN)
    return (np.float64(bits >> _11) + 0.5) * 2.0**-53


@numba.njit
def normal(key, i):  # type: ignore[no-untyped-def]
    """A standard normal: it takes what would be the uniform draws 2 i and 2 i + 1 of the key."""
    first = np.uint64(i) * _TWO
    radius = math.sqrt(-2.0 * math.log(uniform(key, first)))
    return radius * math.cos(2.0 * math.pi * uniform(key, first + _ONE))
