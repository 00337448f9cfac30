"""Randomness as a function: keyed streams, and where privacy noise comes from.

Every stream starts from a key (seed, purpose, replicate, silo, round or node), never from a
thread, a call order or a curve. Simulations draw from seeded keys; a deployment draws from the
operating system and remembers which nodes it drew, so that none is drawn twice.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from fastfed._kernels import native
from fastfed._validate import InputError, integer

#: Purposes of streams; the same numbers stand in src/ff_random.h.
CONTEXT, REWARD, BIAS_NOISE, COV_NOISE, INSTANCE, PERMUTATION = range(1, 7)

#: The silo index under which a server draws noise of its own is the number of silos.


def check_seed(seed: object) -> int:
    """A seed: an integer in [0, 2^63)."""
    return integer("seed", seed, at_least=0, at_most=2**63 - 1)


class NoiseSource(Protocol):
    """Standard normals for the node a silo releases; never two different draws for one node."""

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """The d + d (d + 1) / 2 standard normals of one node, bias part first."""
        ...


class SeededNoise:
    """Keyed noise for simulations: reproducible by anyone who knows the seed, so not private."""

    def __init__(self, seed: int, replicate: int = 0) -> None:
        self.seed = check_seed(seed)
        self.replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        return native.node_normals(self.seed, self.replicate, silo, node, dimension)


class SystemNoise:
    """Noise from the operating system's entropy, for deployments.

    Remembers which nodes it has drawn and refuses to hand one out again: noise that hides two
    statistics hides neither. One object serves one system.
    """

    def __init__(self) -> None:
        self._drawn: set[tuple[int, int]] = set()

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        if (silo, node) in self._drawn:
            raise InputError(
                f"the noise of node {node} of silo {silo} was drawn already; "
                "use one SystemNoise for each system"
            )
        self._drawn.add((silo, node))
        return system_normals(dimension + dimension * (dimension + 1) // 2)


def system_normals(count: int) -> np.ndarray:
    """Standard normals (count,) from os.urandom, 53 bits a uniform."""
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64) >> np.uint64(11)
    return native.normals_from_bits(bits[:half], bits[half:])[:count]


def instance_normals(seed: int, replicate: int, count: int) -> np.ndarray:
    """Standard normals (count,) that fix an instance, such as its theta*."""
    return native.normals_f64(seed, INSTANCE, replicate, 0, 0, count)


def permutation(seed: int, replicate: int, silo: int, count: int) -> np.ndarray:
    """A uniform random permutation of 0..count-1 for one silo."""
    return native.permutation(seed, PERMUTATION, replicate, silo, 0, count)
