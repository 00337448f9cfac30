"""Losses of one law: coins of which one expert's falls badly less often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fastfed._kernels import losses as loss_kernels
from fastfed._validate import choice
from fastfed.environments.base import described
from fastfed.environments.losses import (
    Adversary,
    LossFacts,
    better_expert,
    chances,
    check_countable,
    check_experts,
    check_means,
)

#: A row g in {0, 1}^d stands for <g, x>, or for <g, x>^2 / 2.
SHAPES = ("linear", "quadratic")


@dataclass(kw_only=True)
class StochasticLosses:
    """The stochastic adversary (gao-2024, Section 2.2): independent losses of one law.

    Every client meets in every round g in {0, 1}^d, independent coins of chance ``mean``, but for
    one expert's ``mean - gap``; which one it is differs between replicates. ``loss``: "linear",
    <g, x>, or "quadratic", <g, x>^2 / 2, which is convex, 1-Lipschitz and 1-smooth in the L1 norm.
    Regret is pseudo-regret, against the best point of the simplex in expectation.
    """

    experts: int
    mean: float = 0.5
    gap: float = 0.1
    loss: str = "linear"
    kind = "stochastic-losses"

    def __post_init__(self) -> None:
        check_experts(self.experts)
        check_means(self.mean, self.gap)
        choice("loss", self.loss, SHAPES)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> LossFacts:
        check_countable(silos, horizon, 1.0)
        linear = self.loss == "linear"
        return LossFacts(
            dimension=self.experts,
            smoothness=0.0 if linear else 1.0,
            loss_range=1.0 if linear else 0.5,
            linear=linear,
            iid=True,
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        means = np.full(self.experts, self.mean)
        means[better_expert(seed, replicate, self.experts)] -= self.gap
        coins = chances(means)
        drawn = coins / loss_kernels.CHANCES
        quadratic = self.loss == "quadratic"
        law = square_suboptimality if quadratic else linear_suboptimality
        best = square_minimum(drawn) if quadratic else float(drawn.min())
        losses = loss_kernels.Coins(seed, replicate, silos, coins, quadratic=quadratic)
        return Adversary(losses, partial(law, drawn, best))

    def describe(self) -> dict[str, Any]:
        return described(self)


def linear_suboptimality(means: np.ndarray, best: float, x: np.ndarray) -> float:
    """<mu, x> - min_n mu_n."""
    return max(0.0, float(means @ x) - best)


def square_loss(means: np.ndarray, x: np.ndarray) -> float:
    """E <g, x>^2 / 2 = (<mu, x>^2 + sum x_n^2 mu_n (1 - mu_n)) / 2 of independent coins."""
    return 0.5 * (float(means @ x) ** 2 + float(x * x @ (means * (1.0 - means))))


def square_suboptimality(means: np.ndarray, best: float, x: np.ndarray) -> float:
    """The same, less its minimum over the simplex."""
    return max(0.0, square_loss(means, x) - best)


def square_minimum(means: np.ndarray) -> float:
    """The least value of ``square_loss`` over the simplex.

    At the minimum <mu, x> mu_n + x_n mu_n (1 - mu_n) = lambda where x_n > 0, and is at least lambda
    elsewhere. With s = <mu, x>: x_n = (lambda - s mu_n)_+ / (mu_n (1 - mu_n)), so the experts of
    least mean are the ones in use, and for k of them s and lambda solve two linear equations.
    """
    if means.min() == 0.0:
        return 0.0
    order = np.sort(means)
    found = [square_loss(order, np.eye(1, len(order))[0])]
    spread = order * (1.0 - order)
    # An expert that always loses has no spread of its own: it is never better than the others.
    usable = int((spread > 0.0).sum())
    inverse = 1.0 / spread[:usable]
    ones, firsts, squares = (np.cumsum(order[:usable] ** p * inverse) for p in (0, 1, 2))
    for k in range(1, usable + 1):
        # sum x = lambda A - s B = 1; <mu, x> = lambda B - s C = s.
        a, b, c = ones[k - 1], firsts[k - 1], squares[k - 1]
        lam = (1.0 + c) / (a * (1.0 + c) - b * b)
        s = lam * b / (1.0 + c)
        x = np.zeros(len(order))
        x[:k] = (lam - s * order[:k]) * inverse[:k]
        if x.min() >= 0.0:
            found.append(square_loss(order, x / x.sum()))
    return min(found)
