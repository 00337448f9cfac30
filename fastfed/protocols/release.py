"""Noise of tree nodes and prefix sums, and its addition to statistics.

A continual release publishes the sums of batches 1..k for each k ("prefix k"). `PrefixNoise` makes
the noise of prefix k from independent draws. An `Adder` adds noise to statistics: `FloatAdder` in
float64 from a seed, as the compiled driver does, or `ExactAdder` exactly, with noise from the
operating system (`fastfed.privacy.exact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import IdealSource, NoiseSource, is_exact
from fastfed._sampling import ERROR, Normals
from fastfed._validate import array
from fastfed.privacy import exact
from fastfed.privacy.releases.buffered import buffered_coefficients
from fastfed.privacy.releases.gaussian_release import RELEASES as ACCOUNTED
from fastfed.privacy.releases.prefix_sums import node_number, prefix_nodes
from fastfed.protocols.account import bounds
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.protocols.protocol import statistic_size

#: Names of the continual releases, in the order of src/ff_run.h. "nested" reproduces published
#: experiment code; the others have a privacy account.
RELEASES = (*ACCOUNTED, "nested")

#: Draws the standard normals (s,) of a numbered node. Equal numbers give equal draws.
Draw = Callable[[int], np.ndarray]


class PrefixNoise(Protocol):
    """Noise of prefixes 1, 2, ..., which must be requested in this order.

    The latest prefix may be requested again. It then gets the same noise, because that noise is
    computed from the numbered draws and from values stored for earlier prefixes.
    """

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k, in units of the standard deviation of one draw."""
        ...

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the exact coefficients of the draws in the noise of prefix k, by draw number."""
        ...

    def size(self, k: int) -> tuple[int, float]:
        """Return upper bounds on the number of `terms` of prefix k and on their absolute sum.

        The absolute sum is the sum of the absolute coefficients. `ExactAdder.prefix` needs both
        bounds for its bound on rounding errors.
        """
        ...

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k, divided by that of one draw, correctly rounded.

        It is the sum of the squares of all `terms`. Most classes compute it without listing them.
        """
        ...


def _square_sums(values: np.ndarray) -> list[float]:
    """Return the sum of the squares of the first n values for n = 1..N, correctly rounded.

    ``values`` (N,) are below 2^52 in absolute value.
    """
    mantissas, exponents = np.frexp(values)
    lowest = int(exponents.min())
    # Each value is an integer times 2^(lowest - 53).
    integers = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    shifts = (exponents - lowest).tolist()
    squares = ((n << shift) ** 2 for n, shift in zip(integers, shifts, strict=True))
    return [total / (1 << 2 * (53 - lowest)) for total in accumulate(squares)]


@lru_cache(maxsize=16)
def _buffered_variances(releases: int) -> list[float]:
    """Return `BufferedNoise.variance` of each prefix of a plan with this number of releases."""
    return _square_sums(buffered_coefficients(releases))


class HonakerNoise:
    """Noise of release type "honaker": Honaker's estimates (privacy/releases/prefix_sums)."""

    def __init__(self, levels: int, size: int) -> None:
        """Start without draws; the tree has ``levels`` levels, and a draw has ``size`` entries."""
        self._estimates = np.zeros((max(1, levels), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k: the sum of the noise estimates of its blocks.

        The estimate of the block that ends at k is stored, for later prefixes.
        """
        level, number = aggregation.node_level(k), aggregation.honaker_number(k)
        estimate, *nodes = (np.array(draw(number + j)) for j in range(level + 1))
        for j, node in enumerate(nodes, start=1):
            aggregation.honaker(estimate, node, self._estimates[j - 1], j)
        self._estimates[level] = estimate
        return aggregation.prefix(self._estimates, k)

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the exact coefficients of the nodes' draws in the noise of prefix k."""
        # A node of level g below a block of level h has coefficient v_h 2^(g - h), with
        # v_h = 2^h / (2^(h+1) - 1). In the code h is `top`.
        coefficients = {}
        for end in prefix_nodes(k):
            top = aggregation.node_level(end)
            for g in range(top + 1):
                coefficient = Fraction(1 << g, (2 << top) - 1)
                first_leaf = end - (1 << top) + (1 << g)
                for last_leaf in range(first_leaf, end + 1, 1 << g):
                    coefficients[node_number(last_leaf, g)] = coefficient
        return coefficients

    def size(self, k: int) -> tuple[int, float]:
        """Return upper bounds on the number of `terms` of prefix k and on their absolute sum."""
        # The coefficients in a block of level h (here `top`) add up to (h + 1) v_h, with
        # v_h = 2^h / (2^(h+1) - 1).
        total = 0.0
        for top in range(k.bit_length()):
            if k >> top & 1:
                total += (top + 1) * 2.0**top / (2.0 ** (top + 1) - 1.0)
        return 2 * k, total * (1.0 + 2.0**-40)

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k divided by that of one draw, correctly rounded."""
        # The squared coefficients in a block of level h (here `top`) add up to
        # v_h = 2^h / (2^(h+1) - 1).
        tops = (top for top in range(k.bit_length()) if k >> top & 1)
        return float(sum(Fraction(1 << top, (2 << top) - 1) for top in tops))


class ToeplitzNoise:
    """Noise of release type "toeplitz": rows of C z with a Toeplitz matrix C and stored draws z."""

    def __init__(self, coefficients: np.ndarray, size: int) -> None:
        """Start without draws; a draw has ``size`` entries.

        ``coefficients`` (K,) are the first column of the Toeplitz matrix C, for K releases.
        """
        self._coefficients, self._sums = coefficients, np.cumsum(coefficients)
        self._history = np.zeros((max(1, len(coefficients)), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k, in units of the std of one draw; store draw k."""
        self._history[k - 1] = draw(k)
        return aggregation.toeplitz(self._history, self._coefficients, k)

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the coefficient of each numbered draw in the noise of prefix k."""
        return {k - j: Fraction(math.comb(2 * j, j), 1 << (2 * j)) for j in range(k)}

    def size(self, k: int) -> tuple[int, float]:
        """Return the number of terms of prefix k, and the sum of their absolute coefficients."""
        return k, float(self._sums[k - 1]) * (1.0 + (k + 2) * 2.0**-40)

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k divided by that of one draw, correctly rounded."""
        # The numerators of `terms` are binomials b_j; the variance is the sum of b_j^2 / 16^j.
        binomial, total = 1, 1
        for j in range(1, k):
            binomial = binomial * 2 * (2 * j - 1) // j
            total = 16 * total + binomial * binomial
        return total / (1 << 4 * (k - 1))


class BufferedNoise:
    """Noise of release type "buffered": rows of B z from decaying sums of the draws z.

    The sums are kept in buffers, see privacy/releases/buffered.
    """

    def __init__(self, plan: Plan) -> None:
        """Start with empty buffers."""
        self._packed, self._releases = plan.coefficients, plan.releases
        self._after = np.zeros((plan.buffers, plan.statistic_size))
        self._before, self._k = self._after, 0

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k, in units of the std of one draw; update buffers."""
        z = np.array(draw(k))
        # A repeated request for prefix k starts from the buffers before prefix k.
        buffers = self._after if k > self._k else self._before
        next_buffers = buffers.copy()
        noise = aggregation.buffered(z, self._packed, next_buffers)
        self._before, self._after, self._k = buffers, next_buffers, k
        return noise

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the coefficient of each numbered draw in the noise of prefix k."""
        coefficients = buffered_coefficients(self._releases)
        return {k - j: Fraction(float(coefficients[j])) for j in range(k)}

    def size(self, k: int) -> tuple[int, float]:
        """Return the number of terms of prefix k, and the sum of their absolute coefficients."""
        coefficients = buffered_coefficients(self._releases)
        return k, float(coefficients[:k].sum()) * (1.0 + (k + 2) * 2.0**-40)

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k divided by that of one draw, correctly rounded."""
        return _buffered_variances(self._releases)[k - 1]


class FactorisedNoise:
    """Noise of release type "factorised": rows of B z, B lower triangular, with stored draws z."""

    def __init__(self, matrix: np.ndarray, size: int) -> None:
        """Start without draws; a draw has ``size`` entries, and ``matrix`` (K, K) is B."""
        self._matrix = matrix
        self._history = np.zeros((max(1, len(matrix)), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k, in units of the std of one draw; store draw k."""
        self._history[k - 1] = draw(k)
        return aggregation.weighted_sum(self._history, self._matrix[k - 1, :k])

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the coefficient of each numbered draw in the noise of prefix k."""
        return {n: Fraction(float(c)) for n, c in enumerate(self._matrix[k - 1, :k], start=1)}

    def size(self, k: int) -> tuple[int, float]:
        """Return the number of terms of prefix k, and the sum of their absolute coefficients."""
        return k, float(np.abs(self._matrix[k - 1, :k]).sum()) * (1.0 + (k + 2) * 2.0**-40)

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k divided by that of one draw, correctly rounded."""
        return _square_sums(self._matrix[k - 1, :k])[-1]


class NestedNoise:
    """Noise of release type "nested": the sum of the first 1 + floor(ln(k + 1)) draws.

    This reproduces the experiment code of chowdhury-zhou-2022. Consecutive prefixes often have the
    same noise; their difference then reveals a batch without noise.
    """

    def __init__(self, size: int) -> None:
        """Start without draws; a draw has ``size`` entries."""
        self._draws: list[np.ndarray] = []
        self._size = size

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """Return the noise (s,) of prefix k: the sum of the first draws, which are stored."""
        stored, noise = self._draws, np.zeros(self._size)
        self._draws = stored + [np.array(draw(n + 1)) for n in range(len(stored), self._count(k))]
        for normals in self._draws:
            aggregation.add(noise, normals)
        return noise

    @staticmethod
    def _count(k: int) -> int:
        """Return 1 + floor(ln(k + 1)), the number of draws in the noise of prefix k."""
        return 1 + int(linalg.log(k + 1))

    def terms(self, k: int) -> dict[int, Fraction]:
        """Return the coefficient of each numbered draw in the noise of prefix k."""
        return dict.fromkeys(range(1, self._count(k) + 1), Fraction(1))

    def size(self, k: int) -> tuple[int, float]:
        """Return the number of terms of prefix k, and the sum of their absolute coefficients."""
        return self._count(k), float(self._count(k))

    def variance(self, k: int) -> float:
        """Return the noise variance of prefix k divided by that of one draw."""
        return float(self._count(k))


def prefix_noise(plan: Plan) -> PrefixNoise | None:
    """Return the object that makes the noise of the plan's prefix sums.

    The result is None for release type "tree", which adds noise to each tree node instead.
    """
    if plan.release == "honaker":
        return HonakerNoise(plan.levels, plan.statistic_size)
    if plan.release == "toeplitz":
        return ToeplitzNoise(plan.coefficients, plan.statistic_size)
    if plan.release == "buffered":
        return BufferedNoise(plan)
    if plan.release == "factorised":
        return FactorisedNoise(plan.coefficients, plan.statistic_size)
    if plan.release == "nested":
        return NestedNoise(plan.statistic_size)
    return None


# ---- Addition of noise, in float64 or exactly ----------------------------------------------------


class Adder(Protocol):
    """Adds the noise of one party to its statistics, one release after the other.

    If a release fails before it is sent, a second request for this release gets the same noise.
    """

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the statistic (s,) of a data point."""
        ...

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        """Return ``values`` (s,) plus ``scale`` times the noise of the node with this number."""
        ...

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        """Return ``values`` (s,), the sum of batches 1..k, plus the noise of prefix k."""
        ...


def make_adder(
    plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd, points: int | None = None
) -> Adder:
    """Return the object that adds one party's noise: exactly, or in float64 for seeded noise.

    ``drawer`` is the index of the silo that draws the noise, or M (the number of silos) for the
    server. ``std`` holds the standard deviations of one draw. ``points`` is the largest number of
    records in a statistic; by default all records of the plan.
    """
    if is_exact(noise):
        return ExactAdder(plan, noise, drawer, std, points)
    return FloatAdder(plan, noise, drawer, std)


def noisy(
    values: np.ndarray,
    normals: np.ndarray,
    dimension: int,
    std: NoiseStd,
    public_constant: bool = False,
) -> np.ndarray:
    """Return the statistic ``values`` (s,) plus ``normals`` (s,) scaled by ``std``, in float64.

    With ``public_constant`` the last entry gets no noise. Raises InputError if ``normals`` is not a
    finite array of shape (s,).
    """
    normals = array("noise", normals, shape=(statistic_size(dimension),))
    released = aggregation.add_noise(values, normals, dimension, *std.parts)
    if public_constant:
        released[-1] = values[-1]
    return released


class FloatAdder:
    """Adder in float64, with the same results bit for bit as the compiled driver."""

    def __init__(self, plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd) -> None:
        """Store the arguments of `make_adder`, and start before the first release."""
        self.plan, self.noise, self.drawer, self.std = plan, noise, drawer, std
        self._prefixes = prefix_noise(plan)
        self._draw_cache: dict[int, np.ndarray] = {}
        self._release = 0

    def _draw(self, number: int) -> np.ndarray:
        """Return the standard normals (s,) of a numbered node, cached within a release."""
        if number not in self._draw_cache:
            node_noise = self.noise.node(self.drawer, number, self.plan.dimension)
            size = self.plan.statistic_size
            self._draw_cache[number] = array("noise", node_noise, shape=(size,))
        return self._draw_cache[number]

    def _begin(self, release: int) -> None:
        """Delete the cached draws if ``release`` is a new release."""
        if release != self._release:
            self._draw_cache, self._release = {}, release

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the statistic (s,) of one record: the entries of x y and of x x'."""
        statistic = np.zeros(self.plan.statistic_size)
        linalg.accumulate(statistic, x, y)
        return statistic

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        """Return the sum ``values`` (s,) of a tree node plus ``scale`` times the node's noise."""
        self._begin(number)
        return self._noisy(values, self._draw(number), self.std.times(scale))

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        """Return ``values`` (s,), the sum of batches 1..k, plus the noise of prefix k."""
        assert self._prefixes is not None
        self._begin(k)
        return self._noisy(values, self._prefixes.at(k, self._draw), self.std)

    def _noisy(self, values: np.ndarray, noise: np.ndarray, std: NoiseStd) -> np.ndarray:
        """Return ``values`` plus ``noise`` in units of ``std``; a public last entry gets none."""
        return noisy(values, noise, self.plan.dimension, std, self.plan.public_constant)


class ExactAdder:
    """Adder of exact Gaussian noise to fixed-point sums, rounded to a grid (privacy/exact.py)."""

    def __init__(
        self, plan: Plan, noise: IdealSource, drawer: int, std: NoiseStd, points: int | None
    ) -> None:
        """Store the arguments of `make_adder`; compute the fixed-point unit and the noise stds."""
        self.plan, self.noise, self.drawer = plan, noise, drawer
        self.unit, noise_factor = fixed_point(plan, points)
        self._std = spread(std, plan.dimension) * noise_factor
        # Public entries get no noise: `_keep_public` restores their values. Their std is set to 1
        # because exact.noisy needs std > 0.
        self._public_entries = self._std == 0.0
        if plan.public_constant:
            self._public_entries[-1] = True
        self._std[self._public_entries] = 1.0
        self._prefixes = prefix_noise(plan)
        self._draw_cache: dict[int, Normals] = {}
        self._largest = 0.0

    def _draw(self, number: int) -> Normals:
        """Return the exact standard normals (s,) of a numbered node, cached."""
        if number not in self._draw_cache:
            self._draw_cache[number] = self.noise.ideal(self.drawer, number, self.plan.dimension)
        return self._draw_cache[number]

    def _float_draws(self, number: int) -> np.ndarray:
        """Return the draws (s,) of a numbered node in float64.

        Also update the largest absolute draw so far, which the error bound in `prefix` needs.
        """
        values = self._draw(number).values
        self._largest = max(self._largest, float(values.max()), -float(values.min()))
        return values

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the statistic (s,) of one record (x, y), rounded to the fixed-point unit."""
        statistic = np.zeros(self.plan.statistic_size)
        linalg.accumulate(statistic, x, y)
        return exact.quantise(statistic, self.unit)

    def check(self, values: np.ndarray, label: str) -> None:
        """Raise InputError unless ``values`` (s,) are multiples of the fixed-point unit.

        Sums of results of `point` are such multiples. ``label`` names the values in the message.
        """
        exact.check_fixed(values, self.unit, label)

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        """Return the sum ``values`` (s,) of a tree node plus ``scale`` times the node's noise.

        The noise is sampled exactly, and the noisy sum is rounded.
        """
        # A new node means that the previous release was sent. So its draws are not needed again.
        if number not in self._draw_cache:
            self._draw_cache = {}
        released = exact.add_normals(values, self._std * scale, self._draw(number))
        return self._keep_public(released, values)

    def _keep_public(self, released: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return ``released`` (s,) with the public entries set to those of ``values``."""
        released[self._public_entries] = values[self._public_entries]
        return released

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        """Return ``values`` (s,), the sum of batches 1..k, plus the noise of prefix k.

        The noise is sampled exactly, and the noisy sum is rounded.
        """
        prefixes = self._prefixes
        assert prefixes is not None
        noise = prefixes.at(k, self._float_draws)
        count, coefficient_sum = prefixes.size(k)
        # Bound on the error of the float64 noise: the error of the draws, plus the error from
        # rounding `count` products and sums, whose coefficients were rounded at most `count` times.
        error = coefficient_sum * (ERROR + 4.0 * (count + 4) * 2.0**-53 * self._largest)

        def refine(entry: int, bits: int) -> exact.Interval:
            """Return an interval of width 2^-bits that contains the real noise of this entry."""
            parts = [(self._draw(n).interval, c) for n, c in prefixes.terms(k).items()]
            return exact.combined(parts)(entry, bits)

        return self._keep_public(exact.noisy(values, self._std, noise, error, refine), values)


def fixed_point(plan: Plan, points: int | None = None) -> tuple[float, float]:
    """Return the fixed-point unit of records, and the noise factor that covers their rounding.

    Rounding records to multiples of the unit slightly raises their sensitivity; the noise is
    multiplied by the factor to keep the guarantee. ``points`` is the largest number of records in a
    statistic; by default all records of the plan.
    """
    feature, reward = bounds(plan)
    # Bounds on the norms of x y and x x'. A bound of 0 is left out: such entries are exactly 0.
    norms = [norm for norm in (feature * reward, feature * feature) if norm > 0.0] or [1.0]
    unit = exact.quantum(max(1, points or plan.silos * plan.horizon * plan.room), max(norms))
    smallest_norm, clip = min(norms), plan.clip
    if clip is not None and clip.constant:
        # With a public constant the sensitivity is smaller (docs/centred.md, "Fixed point").
        norms_with_constant = math.sqrt(2.0) * clip.feature * reward, clip.feature**2
        smallest_norm = min(smallest_norm, *norms_with_constant) or smallest_norm
    sizes = plan.statistic_size, plan.dimension
    return unit, exact.inflation(unit, *sizes, smallest_norm, max(norms))


def spread(std: NoiseStd, dimension: int) -> np.ndarray:
    """Return the noise standard deviation of each entry of a statistic, (s,)."""
    rows, columns = np.tril_indices(dimension)
    covariance = np.where(rows == columns, std.diagonal, std.off_diagonal)
    return np.concatenate([np.full(dimension, std.bias), covariance])
