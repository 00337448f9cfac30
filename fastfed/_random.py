"""Randomness as a function: keyed streams, and where privacy noise comes from.

Every stream starts from a key (seed, purpose, replicate, silo, round or node), never from a
thread, a call order or a curve. Simulations draw from seeded keys; a deployment draws from the
operating system and remembers which nodes it drew, so that none is drawn twice.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import numpy as np

from fastfed._kernels import native
from fastfed._once import Once, once
from fastfed._sampling import Laplaces, Normals, Uniforms
from fastfed._validate import InputError, integer

#: Purposes of streams; the same numbers stand in src/ff_random.h.
CONTEXT, REWARD, BIAS_NOISE, COV_NOISE, INSTANCE, PERMUTATION = range(1, 7)
ROUNDING, BIT_NOISE, SHUFFLE, POLICY, TRIGGER_NOISE = range(7, 12)
ROTATION, RANGE, LAPLACE = range(12, 15)
SAMPLE, SCORE_NOISE, THRESHOLD, QUERY, CHOICE = range(15, 20)
SCORE_KEY = 20
#: What the server's uniform numbers are for.
PURPOSES = {
    ROTATION: "the rotation",
    RANGE: "the range",
    LAPLACE: "the noise",
    THRESHOLD: "the threshold's noise",
    QUERY: "the query's noise",
    CHOICE: "the choice",
}
#: The largest number below 1.
BELOW_ONE = 1.0 - 2.0**-53
#: Purpose of the noise bits of single data points; the level of their node is added.
POINT_NOISE = 64

#: The silo index under which a server draws noise of its own is the number of silos.


def check_seed(seed: object) -> int:
    """A seed: an integer in [0, 2^63)."""
    return integer("seed", seed, at_least=0, at_most=2**63 - 1)


class NoiseSource(Protocol):
    """Where silos, shuffler and server draw from; never two different draws for one key."""

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """The d + d (d + 1) / 2 standard normals of one node, bias part first."""
        ...

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        """Uniform words of 32 bits (count,) that round the data point of one round."""
        ...

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        """Draws of Bin(trials, 1/4) - trials / 4 for one node, (count,)."""
        ...

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        """The same for one data point at a node of one level."""
        ...

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        """The order in which the shuffler passes on ``count`` messages, or one stream of them."""
        ...

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        """Permute the bits (n,) of one label in place."""
        ...

    def action(self, silo: int, round: int, count: int) -> int:
        """A uniform action out of ``count``."""
        ...

    def score_key(self, silo: int, round: int) -> int:
        """64 uniform bits for the score function of one silo in one round."""
        ...

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        """The d (d + 1) / 2 standard normals that a private schedule adds in one round."""
        ...

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Uniform numbers in (0, 1) of 53 bits (count,), for the mean of one release."""
        ...

    def uniform(self, purpose: int, release: int) -> float:
        """The one of ``uniforms`` with count 1."""
        ...

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        """Standard Laplace draws (count,) that hide the scores of one release."""
        ...

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """The order (count,) in which one silo takes the losses of a phase as samples."""
        ...


class IdealSource(NoiseSource, Protocol):
    """A source with draws that are real numbers, so that releases can be exact: `SystemNoise`."""

    @property
    def exact(self) -> bool:
        """True."""
        ...

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        """The d + d (d + 1) / 2 standard normals of one node, bias part first."""
        ...

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Normals:
        """The d (d + 1) / 2 standard normals that a private schedule adds in one round."""
        ...

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        """Standard Laplace draws (count,) that hide the scores of one release."""
        ...

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        """Uniform numbers (count,) for the mean, or the choice, of one release."""
        ...

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        """Standard Laplace draws (count,) for the mean, or the comparison, of one release."""
        ...


def is_exact(noise: NoiseSource) -> TypeGuard[IdealSource]:
    """Whether a source has ideal draws, so that releases can be exact."""
    return getattr(noise, "exact", False) is True


class SeededNoise:
    """Keyed noise for simulations: reproducible by anyone who knows the seed, so not private."""

    def __init__(self, seed: int, replicate: int = 0) -> None:
        self.seed = check_seed(seed)
        self.replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        return native.node_normals(self.seed, self.replicate, silo, node, dimension)

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        return native.words(self.seed, ROUNDING, self.replicate, silo, round, count)

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        key = self.seed, BIT_NOISE, self.replicate, silo, node
        return native.binomials(*key, trials, count)

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        key = self.seed, POINT_NOISE + level, self.replicate, silo, round
        return native.binomials(*key, trials, count)

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        return native.permutation(self.seed, SHUFFLE, self.replicate, stream, node, count)

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        native.shuffle_bits(self.seed, SHUFFLE, self.replicate, label + 1, node, bits)

    def action(self, silo: int, round: int, count: int) -> int:
        return native.below(self.seed, POLICY, self.replicate, silo, round, count)

    def score_key(self, silo: int, round: int) -> int:
        return native.key(self.seed, SCORE_KEY, self.replicate, silo, round)

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        key = self.seed, TRIGGER_NOISE, self.replicate, silo, round
        return native.normals_f64(*key, dimension * (dimension + 1) // 2)

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        key = self.seed, purpose, self.replicate
        drawn = np.array([native.uniform(*key, label, release) for label in range(count)])
        return np.minimum(drawn, BELOW_ONE)

    def uniform(self, purpose: int, release: int) -> float:
        return min(native.uniform(self.seed, purpose, self.replicate, 0, release), BELOW_ONE)

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        return native.laplace(self.seed, SCORE_NOISE, self.replicate, silo, release, count)

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        return native.permutation(self.seed, SAMPLE, self.replicate, silo, phase, count)


@dataclass(frozen=True)
class InterleavedNoise:
    """The source of one of ``stride`` systems that take turns, number ``phase`` (src/ff_play.h).

    Round u of this system is round t = phase modulo stride of the play; its silo i is silo
    ``names[i]`` there; its tree nodes are numbered so that no two systems ask for one draw.
    """

    source: NoiseSource
    names: tuple[int, ...]
    phase: int
    stride: int

    @property
    def exact(self) -> bool:
        return is_exact(self.source)

    @property
    def _ideal(self) -> IdealSource:
        assert is_exact(self.source)
        return self.source

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        return self._ideal.ideal(self.names[silo], self._key(node), dimension)

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Normals:
        return self._ideal.ideal_trigger(self.names[silo], self._time(round), dimension)

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        return self._ideal.ideal_laplace(self.names[silo], self._key(release), count)

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        return self._ideal.ideal_uniforms(purpose, self._key(release), count)

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        return self._ideal.ideal_draws(purpose, self._key(release), count)

    def _time(self, round: int) -> int:
        return (self.phase or self.stride) + (round - 1) * self.stride

    def _key(self, node: int) -> int:
        return (node - 1) * self.stride + self.phase + 1

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        return self.source.node(self.names[silo], self._key(node), dimension)

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        return self.source.random_u32(self.names[silo], self._time(round), count)

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        return self.source.binomials(self.names[silo], self._key(node), count, trials)

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        time = self._time(round)
        return self.source.point_binomials(self.names[silo], time, level, count, trials)

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        return self.source.permutation(self._key(node), count, stream)

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        self.source.shuffle_bits(self._key(node), label, bits)

    def action(self, silo: int, round: int, count: int) -> int:
        return self.source.action(self.names[silo], self._time(round), count)

    def score_key(self, silo: int, round: int) -> int:
        return self.source.score_key(self.names[silo], self._time(round))

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        return self.source.trigger(self.names[silo], self._time(round), dimension)

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        return self.source.uniforms(purpose, self._key(release), count)

    def uniform(self, purpose: int, release: int) -> float:
        return self.source.uniform(purpose, self._key(release))

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        return self.source.laplace(self.names[silo], self._key(release), count)

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        return self.source.sample(self.names[silo], self._key(phase), count)


class SystemNoise(Once):
    """Noise from the operating system's entropy, for deployments.

    Remembers which nodes it has drawn and refuses to hand one out again: noise that hides two
    statistics hides neither. One object serves one system, and cannot be copied. Its ``ideal``
    draws are real numbers, known as well as is asked for (`fastfed._sampling`).
    """

    exact = True

    def __init__(self) -> None:
        self._drawn: set[tuple[int, int]] = set()
        self._rounds: set[tuple[int, int]] = set()
        self._means: set[tuple[int, int]] = set()

    @once
    def _once(self, silo: int, node: int) -> None:
        if (silo, node) in self._drawn:
            raise InputError(
                f"the noise of node {node} of silo {silo} was drawn already; "
                "use one SystemNoise for each system"
            )
        self._drawn.add((silo, node))

    @once
    def _once_in(self, silo: int, round: int) -> None:
        if (silo, round) in self._rounds:
            raise InputError(
                f"the schedule's noise of round {round} of silo {silo} was drawn already; "
                "use one SystemNoise for each system"
            )
        self._rounds.add((silo, round))

    @once
    def _once_for(self, purpose: int, release: int) -> None:
        if (purpose, release) in self._means:
            raise InputError(
                f"{PURPOSES[purpose]} of release {release} was drawn already; "
                "use one SystemNoise for each system"
            )
        self._means.add((purpose, release))

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        """The d + d (d + 1) / 2 standard normals of one node, bias part first, as real numbers."""
        drawn = Normals(dimension + dimension * (dimension + 1) // 2)
        self._once(silo, node)
        return drawn

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Normals:
        """The d (d + 1) / 2 standard normals that a private schedule adds in one round."""
        drawn = Normals(dimension * (dimension + 1) // 2)
        self._once_in(silo, round)
        return drawn

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        """Standard Laplace draws (count,) that hide the scores of one release."""
        drawn = Laplaces(count)
        self._once(silo, release)
        return drawn

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        """Uniform numbers (count,) for the mean, or the choice, of one release."""
        drawn = Uniforms(count)
        self._once_for(purpose, release)
        return drawn

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        """Standard Laplace draws (count,) for the mean, or the comparison, of one release."""
        drawn = Laplaces(count)
        self._once_for(purpose, release)
        return drawn

    # The same as doubles, for who only looks at them: value + noise in float64 tells too much.

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        return self.ideal(silo, node, dimension).values

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        return system_u32(count)

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        self._once(silo, node)
        return system_binomials(count, trials)

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        return system_binomials(count, trials)

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        return system_permutation(count)

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        bits[:] = bits[self.permutation(node, len(bits))]

    def action(self, silo: int, round: int, count: int) -> int:
        return secrets.randbelow(count)

    def score_key(self, silo: int, round: int) -> int:
        return secrets.randbits(64)

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        return self.ideal_trigger(silo, round, dimension).values

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        drawn = system_uniforms(count)
        self._once_for(purpose, release)
        return drawn

    def uniform(self, purpose: int, release: int) -> float:
        return float(self.uniforms(purpose, release, 1)[0])

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        return self.ideal_laplace(silo, release, count).values

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        return system_permutation(count)


def system_uniforms(count: int) -> np.ndarray:
    """Uniform numbers in (0, 1) of 53 bits (count,) from os.urandom."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, BELOW_ONE)


def system_permutation(count: int) -> np.ndarray:
    """A uniform permutation of 0..count-1 from os.urandom."""
    while True:
        # Sorting uniform words permutes uniformly, unless two are equal.
        keys = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) > 0).all():
            return order


def system_u32(count: int) -> np.ndarray:
    """Uniform words of 32 bits (count,) from os.urandom."""
    return np.frombuffer(os.urandom(4 * count), dtype=np.uint32)


def system_binomials(count: int, trials: int) -> np.ndarray:
    """Draws of Bin(trials, 1/4) - trials / 4 (count,) from os.urandom."""
    drawn = np.full(count, np.nan)
    while (left := np.isnan(drawn)).any():
        words = system_u32(4 * int(left.sum())).reshape(-1, 4)
        drawn[left] = native.binomials_from_words(words, trials)
    return drawn


def instance_normals(seed: int, replicate: int, count: int) -> np.ndarray:
    """Standard normals (count,) that fix an instance, such as its theta*."""
    return native.normals_f64(seed, INSTANCE, replicate, 0, 0, count)


def permutation(seed: int, replicate: int, silo: int, count: int) -> np.ndarray:
    """A uniform random permutation of 0..count-1 for one silo."""
    return native.permutation(seed, PERMUTATION, replicate, silo, 0, count)
