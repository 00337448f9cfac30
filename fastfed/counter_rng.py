"""Counter-based random numbers for a user's compiled functions.

``numba.cfunc`` environments and score functions must draw all randomness from their arguments, so
that results depend neither on threads nor on order. Draw i of a key is splitmix64 (Steele, Lea and
Flood 2014) of the key and i: a pure function, without state. Use each i of a key once. Use these
numbers for contexts, instances and exploration, never for privacy noise.
"""

from __future__ import annotations

import math

import numba
import numpy as np

__all__ = ["key_of", "normal", "uniform"]

# All constants are uint64: numba turns a product of uint64 with a signed integer into a float.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31 = (np.uint64(n) for n in (11, 27, 30, 31))
_ONE, _TWO = np.uint64(1), np.uint64(2)


@numba.njit
def _mixed(z):  # type: ignore[no-untyped-def]
    """Return the output of splitmix64 for a state z (uint64): z with its bits mixed."""
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@numba.njit
def key_of(seed, replicate, silo, round):  # type: ignore[no-untyped-def]
    """Return the key of a stream.

    Parameters
    ----------
    seed : int
        Seed of the experiment, in [0, 2^63).
    replicate, silo, round : int
        Coordinates of the stream; 0 for a coordinate on which the stream should not depend.

    Returns
    -------
    numpy.uint64
        The key, for ``uniform`` and ``normal``.
    """
    key = np.uint64(seed)
    for part in (replicate, silo, round):
        key = _mixed(key + _GOLDEN) ^ np.uint64(part)
    return _mixed(key + _GOLDEN)


@numba.njit
def uniform(key, i):  # type: ignore[no-untyped-def]
    """Return a uniform number in (0, 1], of 53 bits.

    Parameters
    ----------
    key : numpy.uint64
        A key, from ``key_of`` or the argument of a score function.
    i : int
        Number of the draw, 0, 1, ...
    """
    bits = _mixed(np.uint64(key) + (np.uint64(i) + _ONE) * _GOLDEN)
    return (np.float64(bits >> _11) + 0.5) * 2.0**-53


@numba.njit
def normal(key, i):  # type: ignore[no-untyped-def]
    """Return a standard normal (Box-Muller), from the uniform draws 2 i and 2 i + 1 of the key.

    Parameters
    ----------
    key : numpy.uint64
        A key, from ``key_of`` or the argument of a score function.
    i : int
        Number of the draw, 0, 1, ...
    """
    first = np.uint64(i) * _TWO
    radius = math.sqrt(-2.0 * math.log(uniform(key, first)))
    return radius * math.cos(2.0 * math.pi * uniform(key, first + _ONE))
