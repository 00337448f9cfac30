"""Sources of randomness: counter-based streams for simulations, system entropy for deployments.

In a simulation, every stream is determined by a key (seed, purpose, replicate, silo, and round or
node). It does not depend on threads, on the order of calls or on the curve. A deployment draws from
the operating system and records each draw, so that no noise is drawn twice.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isfunction, signature
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from fastfed._kernels import rng
from fastfed._sampling import Laplaces, Normals, Uniforms, fair_binomials
from fastfed._validate import InputError, Once, integer, once, show

T = TypeVar("T")
#: Key of a stream: seed, purpose, replicate, silo, and round, node or release.
Key = tuple[int, int, int, int, int]

#: Purposes of streams. The same numbers are in src/ff_random.h; they never change.
CONTEXT, REWARD, BIAS_NOISE, COV_NOISE, INSTANCE, PERMUTATION = range(1, 7)
ROUNDING, BIT_NOISE, SHUFFLE, POLICY, TRIGGER_NOISE = range(7, 12)
ROTATION, RANGE, LAPLACE = range(12, 15)
SAMPLE, SCORE_NOISE, THRESHOLD, QUERY, CHOICE = range(15, 20)
SCORE_KEY, PARTICIPATION = 20, 21
SUM_BIAS_NOISE, SUM_COV_NOISE = 22, 23
DELAY = 24
#: Names of the purposes of a server's draws, for messages.
PURPOSES = {
    ROTATION: "the rotation",
    RANGE: "the range",
    LAPLACE: "the noise",
    THRESHOLD: "the threshold's noise",
    QUERY: "the query's noise",
    CHOICE: "the choice",
}
#: The largest number of features d; a statistic then has half a billion numbers.
MAX_DIMENSION = 2**15
#: The largest number below 1.
BELOW_ONE = 1.0 - 2.0**-53
#: Purpose of the noise bits of a single data point; the level of the tree node is added to it.
POINT_NOISE = 64

# The server's noise has silo index M, the number of silos.


def check_seed(seed: object) -> int:
    """Return a seed if it is an integer in [0, 2^63); raise InputError if not."""
    return integer("seed", seed, at_least=0, at_most=2**63 - 1)


def _whole(name: str, value: int, least: int = 0, largest: int = 2**31 - 1) -> int:
    """Return ``value``, the argument ``name`` of a draw; raise InputError unless it is valid.

    It must be an integer from ``least`` to ``largest``.
    """
    if type(value) is int and least <= value <= largest:
        return value
    return integer(name, value, at_least=least, at_most=largest)


def _place(silo: int, name: str, index: int) -> tuple[int, int]:
    """Return the last two numbers of a stream's key: the silo, and a round, node or release.

    ``name`` says which one ``index`` is. Raises InputError for numbers out of range.
    """
    return _whole("silo", silo, largest=2**32 - 1), _whole(name, index, largest=2**32 - 1)


class NoiseSource(Protocol):
    """Interface of noise for silos, shuffler and server.

    Each call with the same arguments returns the same draw, or raises InputError at the second call
    (`SystemNoise`).
    """

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the d + d (d + 1) / 2 standard normals of one node, bias part first."""
        ...

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        """Draw uniform 32-bit integers (count,) that round the data point of one round."""
        ...

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for one node, (count,)."""
        ...

    def coins(
        self, silo: int, node: int, dimension: int, trials: tuple[int, int, int]
    ) -> np.ndarray:
        """Draw Bin(n, 1/2) - n/2 for each of the d + d (d + 1) / 2 entries of one tree node.

        ``trials`` has three values of n, all even: for bias entries, for off-diagonal covariance
        entries, and for diagonal covariance entries. The result is modulo 2^64, as uint64.
        """
        ...

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for a data point at a node of one level, (count,)."""
        ...

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        """Draw the order in which the shuffler forwards ``count`` messages of one stream."""
        ...

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        """Permute in place the bits (n,) of one label, the index of an entry of the statistic."""
        ...

    def action(self, silo: int, round: int, count: int) -> int:
        """Draw a uniform action out of ``count``."""
        ...

    def score_key(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits for the score function of one silo in one round."""
        ...

    def participation(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits that decide if the user of one round is shared."""
        ...

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        """Draw the d (d + 1) / 2 standard normals that a private trigger adds in one round."""
        ...

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1) of 53 bits (count,), for the mean of one release."""
        ...

    def uniform(self, purpose: int, release: int) -> float:
        """Draw one uniform number in (0, 1), as ``uniforms`` does with ``count`` 1."""
        ...

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        """Draw standard Laplace noise (count,) for the scores of one release."""
        ...

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """Draw the order (count,) in which one silo takes the losses of a phase as samples."""
        ...


class IdealSource(NoiseSource, Protocol):
    """A source of exactly sampled real numbers, so that releases can be exact (`SystemNoise`)."""

    @property
    def exact(self) -> bool:
        """Return True: the source samples real numbers exactly."""
        ...

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        """Draw the d + d (d + 1) / 2 standard normals of one node, bias part first."""
        ...

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Normals:
        """Draw the d (d + 1) / 2 standard normals that a private trigger adds in one round."""
        ...

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        """Draw standard Laplace noise (count,) for the scores of one release."""
        ...

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        """Draw uniform numbers (count,) for the mean, or the choice, of one release."""
        ...

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        """Draw standard Laplace noise (count,) for the mean, or the comparison, of one release."""
        ...


def is_exact(noise: NoiseSource) -> TypeGuard[IdealSource]:
    """Return True if a source samples real numbers exactly, so that releases can be exact."""
    return getattr(noise, "exact", False) is True


class SeededNoise:
    """Counter-based noise for simulations. It gives no privacy to anybody who knows the seed.

    Every draw is a function of the seed, the replicate and the method's arguments.

    Parameters
    ----------
    seed : int
        Seed in [0, 2^63).
    replicate : int
        Number of the replicate, in [0, 2^32).

    Raises
    ------
    InputError
        If a value is out of range, here and in every method. Silos, nodes, rounds, releases and
        phases are integers in [0, 2^32), counts and labels in [0, 2^31), dimensions in [1, 2^15].
    """

    def __init__(self, seed: int, replicate: int = 0) -> None:
        """Check the seed and the replicate."""
        self.seed = check_seed(seed)
        self.replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)

    def _key(self, purpose: int, silo: int, name: str, index: int) -> Key:
        """Return the key of the stream of one purpose, silo and round, node or release."""
        return self.seed, _whole("purpose", purpose), self.replicate, *_place(silo, name, index)

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the d + d (d + 1) / 2 standard normals of one node, bias part first."""
        d = _whole("dimension", dimension, 1, MAX_DIMENSION)
        return self._normals(*_place(silo, "node", node), d)

    def _normals(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the standard normals of `node` for checked arguments."""
        return rng.node_normals(self.seed, self.replicate, silo, node, dimension)

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        """Draw uniform 32-bit integers (count,) that round the data point of one round."""
        return rng.random_u32(*self._key(ROUNDING, silo, "round", round), _whole("count", count))

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for one node, (count,)."""
        return self._binomials(self._key(BIT_NOISE, silo, "node", node), count, trials)

    @staticmethod
    def _binomials(key: Key, count: int, trials: int) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 of the stream with this key, (count,)."""
        trials = _whole("trials", trials, largest=2**62)
        return rng.binomials(*key, trials, _whole("count", count))

    def coins(
        self, silo: int, node: int, dimension: int, trials: tuple[int, int, int]
    ) -> np.ndarray:
        """Draw approximately Bin(n, 1/2) - n/2, modulo 2^64, for each entry of one node, uint64.

        ``trials`` has the n of each kind of entry, see `NoiseSource.coins`. A draw is not binomial:
        it is the entry's standard normal (`node`) times sqrt(n) / 2, rounded to an integer. For
        large n, its distribution differs from the binomial by O(1/n) and by float64 rounding.
        """
        normals = self.node(silo, node, dimension)
        stds = [math.sqrt(n) / 2.0 for n in entries(dimension, trials)]
        return np.rint(stds * normals).astype(np.int64).view(np.uint64)

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for a data point at a node of one level, (count,)."""
        purpose = POINT_NOISE + _whole("level", level, largest=63)
        return self._binomials(self._key(purpose, silo, "round", round), count, trials)

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        """Draw the order in which the shuffler forwards ``count`` messages of one stream."""
        key = self._key(SHUFFLE, _whole("stream", stream), "node", node)
        return rng.permutation(*key, _whole("count", count))

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        """Permute in place the bits that users sent for one entry of the statistic.

        ``label`` is the index of the entry. ``bits`` (n,) must be contiguous and of uint8.
        """
        if (
            getattr(bits, "dtype", None) != np.uint8
            or bits.ndim != 1
            or not bits.flags.c_contiguous
        ):
            raise InputError(f"bits must be a vector of uint8 without gaps, got {show(bits)}")
        rng.shuffle_bits(*self._key(SHUFFLE, _whole("label", label) + 1, "node", node), bits)

    def action(self, silo: int, round: int, count: int) -> int:
        """Draw a uniform action out of ``count``, at least 1."""
        return rng.uniform_int(
            *self._key(POLICY, silo, "round", round), _whole("count", count, least=1)
        )

    def score_key(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits for the score function of one silo in one round."""
        return rng.key(*self._key(SCORE_KEY, silo, "round", round))

    def participation(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits that decide if the user of one round is shared."""
        return rng.key(*self._key(PARTICIPATION, silo, "round", round))

    def delay(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits that decide when the reward of one round arrives."""
        return rng.key(*self._key(DELAY, silo, "round", round))

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        """Draw the d (d + 1) / 2 standard normals that a private trigger adds in one round."""
        d = _whole("dimension", dimension, 1, MAX_DIMENSION)
        return rng.normals_f64(*self._key(TRIGGER_NOISE, silo, "round", round), d * (d + 1) // 2)

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1) of 53 bits (count,), for the mean of one release."""
        count = _whole("count", count)
        seed, purpose, replicate, _, release = self._key(purpose, 0, "release", release)
        draws = np.array(
            [rng.uniform(seed, purpose, replicate, label, release) for label in range(count)]
        )
        return np.minimum(draws, BELOW_ONE)

    def uniform(self, purpose: int, release: int) -> float:
        """Draw one uniform number in (0, 1), as ``uniforms`` does with ``count`` 1."""
        return min(rng.uniform(*self._key(purpose, 0, "release", release)), BELOW_ONE)

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        """Draw standard Laplace noise (count,) for the scores of one release."""
        key = self._key(SCORE_NOISE, silo, "release", release)
        return rng.laplace(*key, _whole("count", count))

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """Draw the order (count,) in which one silo takes the losses of a phase as samples."""
        return rng.permutation(*self._key(SAMPLE, silo, "phase", phase), _whole("count", count))


class SummedNoise(SeededNoise):
    """Noise of the sum over silos, which a simulation draws once.

    It uses separate purposes, so it is independent of the noise of silos and of a trusted server.
    The argument ``silo`` of its methods is the number of silos.
    """

    def _normals(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the standard normals of a node's noise in the sum over ``silo`` silos."""
        return rng.sum_normals(self.seed, self.replicate, silo, node, dimension)


@dataclass(frozen=True)
class InterleavedNoise:
    """The noise source of one of several systems that take turns in the rounds of one run.

    This is system number ``phase`` of ``stride`` systems. ``source`` is the noise source of the
    run.

    Round u of the system is the u-th round t of the run with t = phase modulo stride. Silo i of the
    system is silo ``names[i]`` of the run. Tree nodes are numbered so that no two systems share a
    draw. See src/ff_run.h.
    """

    source: NoiseSource
    names: tuple[int, ...]
    phase: int
    stride: int

    @property
    def exact(self) -> bool:
        """Return True if the source samples real numbers exactly."""
        return is_exact(self.source)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of `IdealSource` that translates this system's keys to the run's keys."""
        if name not in _PARAMETERS:
            raise AttributeError(name)

        def draw(*args: Any, **keys: Any) -> Any:
            """Call the source's method with the run's silo, round and node."""
            arguments = dict(zip(_PARAMETERS[name][: len(args)], args, strict=True)) | keys
            for key, value in arguments.items():
                if key == "silo":
                    arguments[key] = self.names[value]
                elif key == "round":
                    arguments[key] = self._time(value)
                elif key in ("node", "release", "phase"):
                    arguments[key] = self._key(value)
            return getattr(self.source, name)(**arguments)

        return draw

    def _time(self, round: int) -> int:
        """Return the round of the run in which this system simulates its ``round``."""
        return (self.phase or self.stride) + (round - 1) * self.stride

    def _key(self, node: int) -> int:
        """Return the number that a tree node of this system has in the run's noise source."""
        return (node - 1) * self.stride + self.phase + 1


#: The parameter names of each method that draws.
_PARAMETERS = {
    name: tuple(signature(draw).parameters)[1:]
    for name, draw in {**vars(NoiseSource), **vars(IdealSource)}.items()
    if isfunction(draw) and not name.startswith("_")
}


class SystemNoise(Once):
    """Noise from the entropy of the operating system, for deployments.

    It records each draw and refuses to repeat one, because the same noise added to two statistics
    protects neither. One object serves one system and cannot be copied. Its ``ideal`` draws are
    exactly sampled real numbers, computed to any precision needed (`fastfed._sampling`).

    Raises
    ------
    InputError
        If the noise of a node would be drawn a second time.
    """

    exact = True

    def __init__(self) -> None:
        """Start without draws."""
        self._drawn: set[str] = set()

    @once
    def _once(self, draw: str) -> None:
        """Record a draw, given as text; raise InputError if the same draw was recorded before."""
        if draw in self._drawn:
            raise InputError(f"{draw} was drawn already; use one SystemNoise for each system")
        self._drawn.add(draw)

    def _once_at(self, silo: int, node: int) -> None:
        """Record the draw of a node's noise; raise InputError at a second one."""
        self._once(f"the noise of node {node} of silo {silo}")

    def _once_for(self, purpose: int, release: int) -> None:
        """Record the draw for a purpose and release; raise InputError at a second one."""
        self._once(f"{PURPOSES.get(purpose, f'draw {purpose}')} of release {release}")

    def ideal(self, silo: int, node: int, dimension: int) -> Normals:
        """Draw the d + d (d + 1) / 2 standard normals of one node, bias part first."""
        draws = Normals(dimension + dimension * (dimension + 1) // 2)
        self._once_at(silo, node)
        return draws

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Normals:
        """Draw the d (d + 1) / 2 standard normals that a private trigger adds in one round."""
        draws = Normals(dimension * (dimension + 1) // 2)
        self._once(f"the schedule's noise of round {round} of silo {silo}")
        return draws

    def ideal_laplace(self, silo: int, release: int, count: int) -> Laplaces:
        """Draw standard Laplace noise (count,) for the scores of one release."""
        draws = Laplaces(count)
        self._once_at(silo, release)
        return draws

    def ideal_uniforms(self, purpose: int, release: int, count: int) -> Uniforms:
        """Draw uniform numbers (count,) for the mean, or the choice, of one release."""
        draws = Uniforms(count)
        self._once_for(purpose, release)
        return draws

    def ideal_draws(self, purpose: int, release: int, count: int) -> Laplaces:
        """Draw standard Laplace noise (count,) for the mean, or the comparison, of one release."""
        draws = Laplaces(count)
        self._once_for(purpose, release)
        return draws

    # The same draws in float64, for display only: float64 noise does not protect (Mironov 2012).

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Draw the d + d (d + 1) / 2 standard normals of one node, bias part first."""
        return self.ideal(silo, node, dimension).values

    def random_u32(self, silo: int, round: int, count: int) -> np.ndarray:
        """Draw uniform 32-bit integers (count,) that round the data point of one round."""
        return system_u32(count)

    def binomials(self, silo: int, node: int, count: int, trials: int) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for one node, (count,)."""
        self._once_at(silo, node)
        return system_binomials(count, trials)

    def coins(
        self, silo: int, node: int, dimension: int, trials: tuple[int, int, int]
    ) -> np.ndarray:
        """Draw the centred number of heads in n coin flips for each entry of one node, exactly.

        The result is Bin(n, 1/2) - n/2 modulo 2^64, as uint64. ``trials`` has the number n for each
        of the three kinds of entries, see `NoiseSource.coins`.
        """
        centred = fair_binomials(entries(dimension, trials))
        self._once_at(silo, node)
        return np.array([k % 2**64 for k in centred], dtype=np.uint64)

    def point_binomials(
        self, silo: int, round: int, level: int, count: int, trials: int
    ) -> np.ndarray:
        """Draw Bin(trials, 1/4) - trials / 4 for a data point at a node of one level, (count,)."""
        return system_binomials(count, trials)

    def permutation(self, node: int, count: int, stream: int = 0) -> np.ndarray:
        """Draw the order in which the shuffler forwards ``count`` messages of one stream."""
        return system_permutation(count)

    def shuffle_bits(self, node: int, label: int, bits: np.ndarray) -> None:
        """Permute the bits (n,) of one label in place."""
        bits[:] = bits[self.permutation(node, len(bits))]

    def action(self, silo: int, round: int, count: int) -> int:
        """Draw a uniform action out of ``count``."""
        return secrets.randbelow(count)

    def score_key(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits for the score function of one silo in one round."""
        return secrets.randbits(64)

    def participation(self, silo: int, round: int) -> int:
        """Draw 64 uniform bits that decide if the user of one round is shared."""
        return secrets.randbits(64)

    def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
        """Draw the d (d + 1) / 2 standard normals that a private trigger adds in one round."""
        return self.ideal_trigger(silo, round, dimension).values

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1) of 53 bits (count,), for the mean of one release."""
        draws = system_uniforms(count)
        self._once_for(purpose, release)
        return draws

    def uniform(self, purpose: int, release: int) -> float:
        """Draw one uniform number in (0, 1), as ``uniforms`` does with ``count`` 1."""
        return float(self.uniforms(purpose, release, 1)[0])

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        """Draw standard Laplace noise (count,) for the scores of one release."""
        return self.ideal_laplace(silo, release, count).values

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """Draw the order (count,) in which one silo takes the losses of a phase as samples."""
        return system_permutation(count)


def entries(dimension: int, values: tuple[T, T, T]) -> list[T]:
    """List a value for each of the d + d (d + 1) / 2 entries of a packed statistic.

    ``values`` has three values: one for all bias entries, one for all off-diagonal entries and one
    for all diagonal entries.
    """
    bias, off_diagonal, diagonal = values
    rows = [[off_diagonal] * i + [diagonal] for i in range(dimension)]
    return [bias] * dimension + [value for row in rows for value in row]


def system_uniforms(count: int) -> np.ndarray:
    """Draw uniform numbers in (0, 1) of 53 bits (count,) from os.urandom."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, BELOW_ONE)


def system_permutation(count: int) -> np.ndarray:
    """Draw a uniform permutation of 0..count-1 from os.urandom."""
    while True:
        # Sorting uniform integers gives a uniform permutation, unless two integers are equal.
        keys = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) > 0).all():
            return order


def system_u32(count: int) -> np.ndarray:
    """Draw uniform 32-bit integers (count,) from os.urandom."""
    return np.frombuffer(os.urandom(4 * count), dtype=np.uint32)


def system_binomials(count: int, trials: int) -> np.ndarray:
    """Draw Bin(trials, 1/4) - trials / 4 (count,) from os.urandom."""
    counts = np.full(count, np.nan)
    while (missing := np.isnan(counts)).any():
        words = system_u32(4 * int(missing.sum())).reshape(-1, 4)
        counts[missing] = rng.binomials_from_words(words, trials)
    return counts


def instance_normals(seed: int, replicate: int, count: int) -> np.ndarray:
    """Draw standard normals (count,) that determine an instance, such as its theta*."""
    return rng.normals_f64(seed, INSTANCE, replicate, 0, 0, count)


def permutation(seed: int, replicate: int, silo: int, count: int) -> np.ndarray:
    """Draw a uniform permutation of 0..count-1 for one silo."""
    return rng.permutation(seed, PERMUTATION, replicate, silo, 0, count)
