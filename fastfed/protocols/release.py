"""Noise of prefix sums from independent noises: how a release makes the one from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from fastfed._kernels import native
from fastfed.privacy.two_streams import RELEASES as ACCOUNTED
from fastfed.protocols.plan import Plan

#: The releases by name, in the order of src/ff_play.h: those accounted for, and a published code's.
RELEASES = (*ACCOUNTED, "nested")

#: Draws the standard normals (s,) of a numbered node; each number is asked for once.
Draw = Callable[[int], np.ndarray]


class PrefixNoise(Protocol):
    """Standard normals of the noise in one prefix after another."""

    def next(self, draw: Draw) -> np.ndarray:
        """Of the next prefix, (s,), in units of one node's standard deviation."""
        ...


class HonakerNoise:
    """Honaker's estimates, fed with noise alone (fastfed.privacy.honaker)."""

    def __init__(self, levels: int, size: int) -> None:
        self._k = 0
        self._estimates = np.zeros((max(1, levels), size))

    def next(self, draw: Draw) -> np.ndarray:
        k = self._k + 1
        level, number = native.node_level(k), native.honaker_number(k)
        # All draws come first: a source that fails leaves everything as it was.
        estimate, *nodes = (np.array(draw(number + j)) for j in range(level + 1))
        for j, node in enumerate(nodes, start=1):
            native.honaker(estimate, node, self._estimates[j - 1], j)
        self._estimates[level] = estimate
        self._k = k
        return native.prefix(self._estimates, k)


class ToeplitzNoise:
    """Rows of C z, every z drawn once and kept (fastfed.privacy.toeplitz)."""

    def __init__(self, coefficients: np.ndarray, size: int) -> None:
        self._k = 0
        self._coefficients = coefficients
        self._history = np.zeros((max(1, len(coefficients)), size))

    def next(self, draw: Draw) -> np.ndarray:
        self._history[self._k] = draw(self._k + 1)
        self._k += 1
        return native.toeplitz(self._history, self._coefficients, self._k)


class NestedNoise:
    """The sum of the first 1 + floor(ln(k + 1)) draws, as in the experiment code of
    chowdhury-zhou-2022; prefixes between two draws have one noise, which hides nothing there."""

    def __init__(self, size: int) -> None:
        self._k = self._drawn = 0
        self._sum = np.zeros(size)

    def next(self, draw: Draw) -> np.ndarray:
        k = self._k + 1
        wanted = 1 + int(native.log(k + 1))
        noise = self._sum.copy()
        for number in range(self._drawn + 1, wanted + 1):
            native.add(noise, np.array(draw(number)))
        self._k, self._drawn, self._sum = k, wanted, noise
        return noise


def prefix_noise(plan: Plan) -> PrefixNoise | None:
    """The plan's, or None for the p-sum tree, whose nodes are noised one by one."""
    if plan.release == "honaker":
        return HonakerNoise(plan.levels, plan.statistic_size)
    if plan.release == "toeplitz":
        return ToeplitzNoise(plan.coefficients, plan.statistic_size)
    if plan.release == "nested":
        return NestedNoise(plan.statistic_size)
    return None
