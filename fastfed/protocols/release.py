"""What is added to statistics before they are released: one node's noise, or a prefix's.

A release says how the noise of prefix sums comes from independent noises (`PrefixNoise`). Who adds
it (`Adder`) depends on where noise is drawn: in float64 from seeds, as simulations do and the
compiled driver too; or exactly from the operating system (`fastfed.privacy.exact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastfed._kernels import native
from fastfed._random import IdealSource, NoiseSource, is_exact
from fastfed._sampling import ERROR, Normals
from fastfed._validate import InputError, array
from fastfed.privacy import exact, honaker
from fastfed.privacy.two_streams import RELEASES as ACCOUNTED
from fastfed.protocols.messages import statistic_size
from fastfed.protocols.plan import NoiseStd, Plan

#: The releases by name, in the order of src/ff_play.h: those accounted for, and a published code's.
RELEASES = (*ACCOUNTED, "nested")

#: Draws the standard normals (s,) of a numbered node; a number asked for again gives the same.
Draw = Callable[[int], np.ndarray]


class Prefix(NamedTuple):
    """The noise of one prefix in units of one node's, and the state once it is released."""

    noise: np.ndarray
    state: Any


class PrefixNoise(Protocol):
    """Noise of one prefix after another. ``next`` changes nothing: hand its state to ``adopt``."""

    def next(self, draw: Draw) -> Prefix:
        """Of the next prefix, (s,)."""
        ...

    def adopt(self, state: Any) -> None:
        """The prefix was released."""
        ...

    def terms(self) -> dict[int, Fraction]:
        """What the noise of the next prefix is a sum of: coefficients by node, as real numbers."""
        ...

    def size(self) -> tuple[int, float]:
        """How many terms these are, and the sum of their coefficients, or a little more."""
        ...


class HonakerNoise:
    """Honaker's estimates, fed with noise alone (fastfed.privacy.honaker)."""

    def __init__(self, levels: int, size: int) -> None:
        self._k = 0
        self._estimates = np.zeros((max(1, levels), size))

    def next(self, draw: Draw) -> Prefix:
        k = self._k + 1
        level, number = native.node_level(k), native.honaker_number(k)
        estimate, *nodes = (np.array(draw(number + j)) for j in range(level + 1))
        for j, node in enumerate(nodes, start=1):
            native.honaker(estimate, node, self._estimates[j - 1], j)
        # Made of lower rows alone: a prefix that is not adopted writes it again.
        self._estimates[level] = estimate
        return Prefix(native.prefix(self._estimates, k), k)

    def adopt(self, state: Any) -> None:
        self._k = state

    def size(self) -> tuple[int, float]:
        k, total = self._k + 1, 0.0
        for top in range(k.bit_length()):
            if k >> top & 1:
                total += (top + 1) * 2.0**top / (2.0 ** (top + 1) - 1.0)
        return 2 * k, total * (1.0 + 2.0**-40)

    def terms(self) -> dict[int, Fraction]:
        # v_h 2^(g - h) of a node of level g under a block of level h, v_h = 2^h / (2^(h+1) - 1).
        found = {}
        for end in honaker.prefix_nodes(self._k + 1):
            top = native.node_level(end)
            for g in range(top + 1):
                c = Fraction(1 << g, (2 << top) - 1)
                first = end - (1 << top) + (1 << g)
                for last in range(first, end + 1, 1 << g):
                    found[honaker.node_number(last, g)] = c
        return found


class ToeplitzNoise:
    """Rows of C z, every z drawn once and kept (fastfed.privacy.toeplitz)."""

    def __init__(self, coefficients: np.ndarray, size: int) -> None:
        self._k = 0
        self._coefficients, self._sum = coefficients, 1.0
        self._history = np.zeros((max(1, len(coefficients)), size))

    def next(self, draw: Draw) -> Prefix:
        # A row that is not adopted is written again.
        self._history[self._k] = draw(self._k + 1)
        k = self._k + 1
        return Prefix(native.toeplitz(self._history, self._coefficients, k), k)

    def adopt(self, state: Any) -> None:
        self._k = state
        self._sum += float(self._coefficients[state]) if state < len(self._coefficients) else 0.0

    def size(self) -> tuple[int, float]:
        return self._k + 1, self._sum * (1.0 + (self._k + 2) * 2.0**-40)

    def terms(self) -> dict[int, Fraction]:
        k = self._k + 1
        return {k - j: Fraction(math.comb(2 * j, j), 1 << (2 * j)) for j in range(k)}


class NestedNoise:
    """The sum of the first 1 + floor(ln(k + 1)) draws, as in the experiment code of
    chowdhury-zhou-2022; prefixes between two draws have one noise, which hides nothing there."""

    def __init__(self, size: int) -> None:
        self._k = self._drawn = 0
        self._sum = np.zeros(size)

    def next(self, draw: Draw) -> Prefix:
        k, wanted = self._k + 1, self._wanted
        noise = self._sum.copy()
        for number in range(self._drawn + 1, wanted + 1):
            native.add(noise, np.array(draw(number)))
        return Prefix(noise, (k, wanted, noise))

    @property
    def _wanted(self) -> int:
        return 1 + int(native.log(self._k + 2))

    def adopt(self, state: Any) -> None:
        self._k, self._drawn, self._sum = state

    def size(self) -> tuple[int, float]:
        return self._wanted, float(self._wanted)

    def terms(self) -> dict[int, Fraction]:
        return dict.fromkeys(range(1, self._wanted + 1), Fraction(1))


def prefix_noise(plan: Plan) -> PrefixNoise | None:
    """The plan's, or None for the p-sum tree, whose nodes are noised one by one."""
    if plan.release == "honaker":
        return HonakerNoise(plan.levels, plan.statistic_size)
    if plan.release == "toeplitz":
        return ToeplitzNoise(plan.coefficients, plan.statistic_size)
    if plan.release == "nested":
        return NestedNoise(plan.statistic_size)
    return None


# ---- who adds it ---------------------------------------------------------------------------------


class Adder(Protocol):
    """Adds one party's noise to what it releases; nothing counts as released before ``done``."""

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point, (s,)."""
        ...

    def node(self, values: np.ndarray, number: int) -> np.ndarray:
        """values (s,) with the noise of a numbered node."""
        ...

    def prefix(self, values: np.ndarray) -> np.ndarray:
        """values (s,) with the noise of the next prefix."""
        ...

    def done(self) -> None:
        """What was asked for since the last call is released."""
        ...


def make_adder(
    plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd, points: int | None = None
) -> Adder:
    """The adder of one party: the silo of index ``drawer``, or the server, one past the last.

    points: how many records a statistic may be the sum of; by default all of the plan's.
    """
    if is_exact(noise):
        return ExactAdder(plan, noise, drawer, std, points or plan.silos * plan.horizon)
    return FloatAdder(plan, noise, drawer, std)


def noisy(values: np.ndarray, normals: np.ndarray, dimension: int, std: NoiseStd) -> np.ndarray:
    """Statistic plus its node's noise, in float64; a source that gives too little is refused."""
    normals = array("noise", normals, shape=(statistic_size(dimension),))
    return native.add_noise(values, normals, dimension, *std.parts)


class FloatAdder:
    """float64 sums and noise, the same bits as the compiled driver's."""

    def __init__(self, plan: Plan, noise: NoiseSource, drawer: int, std: NoiseStd) -> None:
        self.plan, self.noise, self.drawer, self.std = plan, noise, drawer, std
        self._prefixes = prefix_noise(plan)
        self._kept: dict[int, np.ndarray] = {}
        self._next: Any = None

    def _draw(self, number: int) -> np.ndarray:
        # Kept until it is released: who asks again after a failure gets the same noise.
        if number not in self._kept:
            drawn = self.noise.node(self.drawer, number, self.plan.dimension)
            size = self.plan.statistic_size
            self._kept[number] = array("noise", drawn, shape=(size,))
        return self._kept[number]

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        made = np.zeros(self.plan.statistic_size)
        native.accumulate(made, x, y)
        return made

    def node(self, values: np.ndarray, number: int) -> np.ndarray:
        return noisy(values, self._draw(number), self.plan.dimension, self.std)

    def prefix(self, values: np.ndarray) -> np.ndarray:
        assert self._prefixes is not None
        made = self._prefixes.next(self._draw)
        released = noisy(values, made.noise, self.plan.dimension, self.std)
        self._next = made
        return released

    def done(self) -> None:
        if self._next is not None and self._prefixes is not None:
            self._prefixes.adopt(self._next.state)
        self._kept, self._next = {}, None


class ExactAdder:
    """Fixed-point sums and ideal noise, rounded to a grid (fastfed.privacy.exact)."""

    def __init__(
        self, plan: Plan, noise: IdealSource, drawer: int, std: NoiseStd, points: int
    ) -> None:
        self.plan, self.noise, self.drawer = plan, noise, drawer
        d, size = plan.dimension, plan.statistic_size
        self.unit = exact.quantum(max(1, points))
        self._std = spread(std, d) * exact.inflation(self.unit, size, d)
        self._prefixes = prefix_noise(plan)
        self._kept: dict[int, Normals] = {}
        self._largest = 0.0
        self._next: Any = None

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
        native.accumulate(made, x, y)
        return exact.quantise(made, self.unit)

    def check(self, values: np.ndarray, who: str) -> None:
        """InputError for a sum that is not one of fixed-point records."""
        if not np.array_equal(values, exact.quantise(values, self.unit)):
            raise InputError(
                f"{who} must be in fixed point, multiples of 2^{round(math.log2(self.unit))}: a "
                "party whose noise is the system's needs reports of silos without a seed"
            )

    def node(self, values: np.ndarray, number: int) -> np.ndarray:
        return exact.add_normals(values, self._std, self._draw(number))

    def prefix(self, values: np.ndarray) -> np.ndarray:
        prefixes = self._prefixes
        assert prefixes is not None
        made = prefixes.next(self._values)
        count, sizes = prefixes.size()
        # Of the draws, and of adding them up: n products and sums, each coefficient with n
        # roundings of its own at most.
        error = sizes * (ERROR + 4.0 * (count + 4) * 2.0**-53 * self._largest)

        def refine(entry: int, bits: int) -> exact.Interval:
            parts = [(self._draw(number).interval, c) for number, c in prefixes.terms().items()]
            return exact.combined(parts)(entry, bits)

        released = exact.noisy(values, self._std, made.noise, error, refine)
        self._next = made
        return released

    def done(self) -> None:
        if self._next is None:
            self._kept = {}
        elif self._prefixes is not None:
            self._prefixes.adopt(self._next.state)
        self._next = None


def spread(std: NoiseStd, dimension: int) -> np.ndarray:
    """Standard deviations of the entries of a statistic, (s,)."""
    rows, columns = np.tril_indices(dimension)
    covariance = np.where(rows == columns, std.diagonal, std.off_diagonal)
    return np.concatenate([np.full(dimension, std.bias), covariance])
