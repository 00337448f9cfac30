"""Noise that is added to statistics before they are released: of one node, or of a prefix.

A release says how the noise of prefix sums comes from independent noises (`PrefixNoise`). Who adds
it (`Adder`) depends on where noise is drawn: in float64 from seeds, as simulations do and the
compiled driver too; or exactly from the operating system (`fastfed.privacy.exact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
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

#: The releases by name, in the order of src/ff_run.h: those accounted for, and a published code's.
RELEASES = (*ACCOUNTED, "nested")

#: Draws the standard normals (s,) of a numbered node; asked for again it gives the same.
Draw = Callable[[int], np.ndarray]


class PrefixNoise(Protocol):
    """Noise of prefix 1, 2, ..., one after the other.

    Asking for a prefix again gives the same: whatever is written is made of earlier prefixes' rows.
    """

    def at(self, k: int, draw: Draw) -> np.ndarray:
        """The noise of prefix k, (s,), in units of one node's; those before it were asked for."""
        ...

    def terms(self, k: int) -> dict[int, Fraction]:
        """Terms of the sum: coefficients by node, as real numbers."""
        ...

    def size(self, k: int) -> tuple[int, float]:
        """Most terms of the sum, and the sum of their coefficients, or a little more."""
        ...


class HonakerNoise:
    """Honaker's estimates, fed with noise alone (fastfed.privacy.releases.prefix_sums)."""

    def __init__(self, levels: int, size: int) -> None:
        self._estimates = np.zeros((max(1, levels), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        level, number = aggregation.node_level(k), aggregation.honaker_number(k)
        estimate, *nodes = (np.array(draw(number + j)) for j in range(level + 1))
        for j, node in enumerate(nodes, start=1):
            aggregation.honaker(estimate, node, self._estimates[j - 1], j)
        self._estimates[level] = estimate
        return aggregation.prefix(self._estimates, k)

    def terms(self, k: int) -> dict[int, Fraction]:
        # v_h 2^(g - h) of a node of level g under a block of level h, v_h = 2^h / (2^(h+1) - 1).
        found = {}
        for end in prefix_nodes(k):
            top = aggregation.node_level(end)
            for g in range(top + 1):
                c = Fraction(1 << g, (2 << top) - 1)
                first = end - (1 << top) + (1 << g)
                for last in range(first, end + 1, 1 << g):
                    found[node_number(last, g)] = c
        return found

    def size(self, k: int) -> tuple[int, float]:
        total = 0.0
        for top in range(k.bit_length()):
            if k >> top & 1:
                total += (top + 1) * 2.0**top / (2.0 ** (top + 1) - 1.0)
        return 2 * k, total * (1.0 + 2.0**-40)


class ToeplitzNoise:
    """Rows of C z, every z drawn once and kept (fastfed.privacy.releases.prefix_sums)."""

    def __init__(self, coefficients: np.ndarray, size: int) -> None:
        self._coefficients, self._sums = coefficients, np.cumsum(coefficients)
        self._history = np.zeros((max(1, len(coefficients)), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        self._history[k - 1] = draw(k)
        return aggregation.toeplitz(self._history, self._coefficients, k)

    def terms(self, k: int) -> dict[int, Fraction]:
        return {k - j: Fraction(math.comb(2 * j, j), 1 << (2 * j)) for j in range(k)}

    def size(self, k: int) -> tuple[int, float]:
        return k, float(self._sums[k - 1]) * (1.0 + (k + 2) * 2.0**-40)


class BufferedNoise:
    """Rows of B z from a few sums that decay (fastfed.privacy.releases.buffered)."""

    def __init__(self, plan: Plan) -> None:
        self._packed, self._releases = plan.coefficients, plan.releases
        self._after = np.zeros((plan.buffers, plan.statistic_size))
        self._before, self._k = self._after, 0

    def at(self, k: int, draw: Draw) -> np.ndarray:
        z = np.array(draw(k))
        # Asked for again, it starts from the same buffers.
        before = self._after if k > self._k else self._before
        after = before.copy()
        noise = aggregation.buffered(z, self._packed, after)
        self._before, self._after, self._k = before, after, k
        return noise

    def terms(self, k: int) -> dict[int, Fraction]:
        row = buffered_coefficients(self._releases)
        return {k - j: Fraction(float(row[j])) for j in range(k)}

    def size(self, k: int) -> tuple[int, float]:
        row = buffered_coefficients(self._releases)
        return k, float(row[:k].sum()) * (1.0 + (k + 2) * 2.0**-40)


class FactorisedNoise:
    """Rows of B z, every z drawn once and kept (fastfed.privacy.releases.prefix_sums)."""

    def __init__(self, matrix: np.ndarray, size: int) -> None:
        self._matrix = matrix
        self._history = np.zeros((max(1, len(matrix)), size))

    def at(self, k: int, draw: Draw) -> np.ndarray:
        self._history[k - 1] = draw(k)
        return aggregation.weighted_sum(self._history, self._matrix[k - 1, :k])

    def terms(self, k: int) -> dict[int, Fraction]:
        return {n: Fraction(float(c)) for n, c in enumerate(self._matrix[k - 1, :k], start=1)}

    def size(self, k: int) -> tuple[int, float]:
        return k, float(np.abs(self._matrix[k - 1, :k]).sum()) * (1.0 + (k + 2) * 2.0**-40)


class NestedNoise:
    """The sum of the first 1 + floor(ln(k + 1)) draws, as in the experiment code of
    chowdhury-zhou-2022; prefixes between two draws have one noise, which hides nothing there."""

    def __init__(self, size: int) -> None:
        self._draws: list[np.ndarray] = []
        self._size = size

    def at(self, k: int, draw: Draw) -> np.ndarray:
        drawn, noise = self._draws, np.zeros(self._size)
        self._draws = drawn + [np.array(draw(n + 1)) for n in range(len(drawn), self._wanted(k))]
        for each in self._draws:
            aggregation.add(noise, each)
        return noise

    @staticmethod
    def _wanted(k: int) -> int:
        return 1 + int(linalg.log(k + 1))

    def terms(self, k: int) -> dict[int, Fraction]:
        return dict.fromkeys(range(1, self._wanted(k) + 1), Fraction(1))

    def size(self, k: int) -> tuple[int, float]:
        return self._wanted(k), float(self._wanted(k))


def prefix_noise(plan: Plan) -> PrefixNoise | None:
    """The plan's, or None for the p-sum tree, whose nodes are noised one by one."""
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


# ---- who adds it ---------------------------------------------------------------------------------


class Adder(Protocol):
    """Adds one party's noise to what it releases, one release after the other.

    A release that is asked for again, because something failed before it was sent, gets the same
    noise.
    """

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point, (s,)."""
        ...

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        """values (s,) with the noise of a numbered node, ``scale`` times as strong."""
        ...

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        """values (s,) with the noise of prefix k."""
        ...


def make_adder(
    plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd, points: int | None = None
) -> Adder:
    """The adder of one party: the silo of index ``drawer``, or the server, one past the last.

    points: how many records a statistic may be the sum of; by default all of the plan's.
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
    """Statistic plus its node's noise, in float64; a source that gives too little is refused."""
    normals = array("noise", normals, shape=(statistic_size(dimension),))
    made = aggregation.add_noise(values, normals, dimension, *std.parts)
    if public_constant:
        made[-1] = values[-1]
    return made


class FloatAdder:
    """float64 sums and noise, the same bits as the compiled driver's."""

    def __init__(self, plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd) -> None:
        self.plan, self.noise, self.drawer, self.std = plan, noise, drawer, std
        self._prefixes = prefix_noise(plan)
        self._kept: dict[int, np.ndarray] = {}
        self._at = 0

    def _draw(self, number: int) -> np.ndarray:
        if number not in self._kept:
            drawn = self.noise.node(self.drawer, number, self.plan.dimension)
            size = self.plan.statistic_size
            self._kept[number] = array("noise", drawn, shape=(size,))
        return self._kept[number]

    def _begin(self, release: int) -> None:
        """Draws of the release before are not asked for again."""
        if release != self._at:
            self._kept, self._at = {}, release

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        made = np.zeros(self.plan.statistic_size)
        linalg.accumulate(made, x, y)
        return made

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        self._begin(number)
        return self._noisy(values, self._draw(number), self.std.times(scale))

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        assert self._prefixes is not None
        self._begin(k)
        return self._noisy(values, self._prefixes.at(k, self._draw), self.std)

    def _noisy(self, values: np.ndarray, noise: np.ndarray, std: NoiseStd) -> np.ndarray:
        return noisy(values, noise, self.plan.dimension, std, self.plan.public_constant)


class ExactAdder:
    """Fixed-point sums and ideal noise, rounded to a grid (fastfed.privacy.exact)."""

    def __init__(
        self, plan: Plan, noise: IdealSource, drawer: int, std: NoiseStd, points: int | None
    ) -> None:
        self.plan, self.noise, self.drawer = plan, noise, drawer
        self.unit, larger = fixed_point(plan, points)
        self._std = spread(std, plan.dimension) * larger
        # Entries that are public get no noise.
        self._bare = self._std == 0.0
        if plan.public_constant:
            self._bare[-1] = True
        self._std[self._bare] = 1.0
        self._prefixes = prefix_noise(plan)
        self._kept: dict[int, Normals] = {}
        self._largest = 0.0

    def _draw(self, number: int) -> Normals:
        if number not in self._kept:
            self._kept[number] = self.noise.ideal(self.drawer, number, self.plan.dimension)
        return self._kept[number]

    def _values(self, number: int) -> np.ndarray:
        values = self._draw(number).values
        self._largest = max(self._largest, float(values.max()), -float(values.min()))
        return values

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        made = np.zeros(self.plan.statistic_size)
        linalg.accumulate(made, x, y)
        return exact.quantise(made, self.unit)

    def check(self, values: np.ndarray, who: str) -> None:
        """InputError for a sum that is not one of fixed-point records."""
        exact.check_fixed(values, self.unit, who)

    def node(self, values: np.ndarray, number: int, scale: float = 1.0) -> np.ndarray:
        if number not in self._kept:
            self._kept = {}
        made = exact.add_normals(values, self._std * scale, self._draw(number))
        return self._public(made, values)

    def _public(self, made: np.ndarray, values: np.ndarray) -> np.ndarray:
        """What is released, public entries as they are."""
        made[self._bare] = values[self._bare]
        return made

    def prefix(self, values: np.ndarray, k: int) -> np.ndarray:
        prefixes = self._prefixes
        assert prefixes is not None
        noise = prefixes.at(k, self._values)
        count, sizes = prefixes.size(k)
        # Of the draws, and of adding them up: n products and sums, each coefficient with n
        # roundings of its own at most.
        error = sizes * (ERROR + 4.0 * (count + 4) * 2.0**-53 * self._largest)

        def refine(entry: int, bits: int) -> exact.Interval:
            parts = [(self._draw(n).interval, c) for n, c in prefixes.terms(k).items()]
            return exact.combined(parts)(entry, bits)

        return self._public(exact.noisy(values, self._std, noise, error, refine), values)


def fixed_point(plan: Plan, points: int | None = None) -> tuple[float, float]:
    """The unit of records, and the factor on the noise that pays for it.

    points: how many records a statistic may be the sum of; by default all of the plan's.
    """
    feature, reward = bounds(plan)
    # Of x y and x x', of all features; what is bounded by 0 is 0, and rounded to it.
    norms = [norm for norm in (feature * reward, feature * feature) if norm > 0.0] or [1.0]
    unit = exact.quantum(max(1, points or plan.silos * plan.horizon * plan.room), max(norms))
    least, clip = min(norms), plan.clip
    if clip is not None and clip.constant:
        # Beside a public constant a record moves less (docs/centred.md, "Fixed point").
        least = min(least, math.sqrt(2.0) * clip.feature * reward, clip.feature**2) or least
    sizes = plan.statistic_size, plan.dimension
    return unit, exact.inflation(unit, *sizes, least, max(norms))


def spread(std: NoiseStd, dimension: int) -> np.ndarray:
    """Standard deviations of the entries of a statistic, (s,)."""
    rows, columns = np.tril_indices(dimension)
    covariance = np.where(rows == columns, std.diagonal, std.off_diagonal)
    return np.concatenate([np.full(dimension, std.bias), covariance])
