"""Where DP-FW takes its samples: phases, batches, trees, and one set of losses for every leaf.

gao-2024, Algorithm 3 (after Asi et al. 2021): T1 binary trees of depth 1..T1, visited depth first.
Between two leaves exactly one vertex is new to the right of its parent, so every leaf has one set
of its own: the root's b losses for a tree's first leaf, and b / 2^h for a leaf whose new right
vertex is at depth h. A phase uses b (T1 + T1 (T1 + 1) / 4) losses of each client, none twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastfed._validate import InputError, choice

#: How b is chosen: "paper" as Theorem C.5 has it, rounded so that it exists; "largest" the most
#: losses that a phase has for T1 trees.
BATCHES = ("paper", "largest")


class Leaf(NamedTuple):
    """One exchange of messages: which losses it looks at, and how far x moves after it."""

    tree: int  # j, from 1
    depth: int  # h of the new right vertex; 0: the tree's root
    start: int  # its losses, in the client's order of samples: start..stop - 1
    stop: int
    step: float  # eta = 2 / (k + 1)


@dataclass(frozen=True)
class Phase:
    """One phase that learns, before its rounds 2^(p-1)..2^p - 1, from the rounds of the last."""

    number: int  # p >= 2
    batch: int  # b
    scales: tuple[float, ...]  # lambda_j of each client's scores, by tree; 0: no noise
    offset: int = 0  # exchanges before it

    @property
    def trees(self) -> int:
        """T1."""
        return len(self.scales)

    @property
    def first(self) -> int:
        """The first round that plays what it has learnt."""
        return first_round(self.number)

    @property
    def samples(self) -> range:
        """The rounds whose losses it learns from."""
        return range(first_round(self.number - 1), self.first)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """All leaves in order."""
        found: list[Leaf] = []
        at = 0
        for tree in range(1, self.trees + 1):
            for leaf in range(2**tree):
                # The path to a leaf turns right for the last time at its lowest 1.
                depth = tree - (leaf & -leaf).bit_length() + 1 if leaf else 0
                size = self.batch >> depth
                found.append(Leaf(tree, depth, at, at + size, 2.0 / (len(found) + 2.0)))
                at += size
        return tuple(found)

    @property
    def used(self) -> int:
        """Losses of each client that are looked at."""
        return self.leaves[-1].stop


#: Beyond so many trees the steps of their last leaves are below 10^-6.
MOST_TREES = 20


def first_round(phase: int) -> int:
    """2^(p-1)."""
    return 1 << (phase - 1)


def phases_of(horizon: int) -> int:
    """P: phases that so many rounds begin."""
    return horizon.bit_length()


def needed(batch: int, trees: int) -> float:
    """Losses that T1 trees of batch b take: b (T1 + T1 (T1 + 1) / 4)."""
    return batch * (trees + trees * (trees + 1) / 4.0)


def most_trees(phase: int, batch: int, wanted: float) -> int:
    """The largest T1 <= wanted that fits: 2^T1 divides b, and the last phase has losses enough."""
    have = first_round(phase - 1)
    most = math.floor(min(max(wanted, 0.0), MOST_TREES))
    fits = (t for t in range(most, 0, -1) if batch % 2**t == 0 and needed(batch, t) <= have)
    return next(fits, 0)


def wanted_trees(
    batch: int, gain: float, experts: int, epsilon: float, lipschitz: float, smoothness: float
) -> float:
    """T1 of Theorem C.5: log2(b eps beta gain / (alpha ln d)) / 2; infinite without privacy.

    gain: what m clients divide the noise of the mean scores by, sqrt(m) where it is local.
    """
    if math.isinf(epsilon):
        return math.inf
    worth = batch * epsilon * smoothness * gain / (lipschitz * math.log(experts))
    return 0.5 * math.log2(worth) if worth > 0.0 else -math.inf


def shape(phase: int, rule: str, trees_wanted: Callable[[int], float]) -> tuple[int, int]:
    """(b, T1) of a phase p >= 2; T1 = 0 where it keeps what the last one played.

    ``trees_wanted`` says how many trees a batch of b is worth.
    """
    choice("batch", rule, BATCHES)
    if rule == "paper":
        batch = 1 << max(0, math.floor(math.log2(first_round(phase) / (phase - 1) ** 2)))
        return batch, most_trees(phase, batch, trees_wanted(batch))
    for power in range(phase - 1, 0, -1):
        batch, want = 1 << power, min(float(power), MOST_TREES, trees_wanted(1 << power))
        trees = math.floor(want) if want >= 1.0 else 0
        if trees and needed(batch, trees) <= first_round(phase - 1):
            return batch, trees
    return 1, 0


class Bounds(NamedTuple):
    """What clients clip gradients to, so that noise is enough whatever losses they meet.

    Every coordinate of a gradient to [low, high], and of a difference of two gradients to what
    beta-smooth losses allow. Losses that keep their promises are not touched.
    """

    low: float
    high: float
    smoothness: float  # beta

    @property
    def spread(self) -> float:
        """Length of the interval that all coordinates of gradients are in."""
        return self.high - self.low

    def most(self, x: np.ndarray, parent: np.ndarray) -> float:
        """Of a difference between gradients at x and at parent."""
        return min(self.high - self.low, self.smoothness * float(np.abs(x - parent).sum()))


#: Sums (r, d) of r clients' clipped gradients at x over their losses start..stop - 1, less those at
#: the parent, if there is one, each difference clipped to [-most, most].
Gradients = Callable[[int, int, np.ndarray, np.ndarray | None, float], np.ndarray]


class Walk:
    """Gradient estimates of some clients along the path to the current leaf, depth by depth.

    Of linear losses a right vertex has its parent's estimate, the root's: nothing else is looked
    at, and one row is kept for all depths.
    """

    def __init__(
        self,
        phase: Phase,
        rows: int,
        experts: int,
        gradients: Gradients,
        bounds: Bounds,
        linear: bool,
    ) -> None:
        self.phase, self._gradients = phase, gradients
        self._bounds, self._linear = bounds, linear
        depths = 1 if linear else phase.trees + 1
        self._v = np.zeros((depths, rows, experts))
        self._x = np.zeros((depths, experts))
        self._next = 0

    def leaf(self, x: np.ndarray) -> np.ndarray:
        """v of the next leaf, (r, d), where x is played."""
        if self._next == len(self.phase.leaves):
            raise InputError(f"the phase has {self._next} leaves, asked for one more")
        tree, h, start, stop, _ = self.phase.leaves[self._next]
        if h == 0:
            v = self._gradients(start, stop, x, None, 0.0) / (stop - start)
        elif self._linear:
            v = self._v[0]
        else:
            parent = self._x[h - 1]
            most = self._bounds.most(x, parent)
            v = self._v[h - 1] + self._gradients(start, stop, x, parent, most) / (stop - start)
        # Left children below take over both.
        self._v[h : tree + 1] = v
        self._x[h : tree + 1] = x
        self._next += 1
        return v
