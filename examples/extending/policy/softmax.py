"""A policy of one's own: actions drawn with probabilities that grow with their estimated reward."""

from __future__ import annotations

import numpy as np


class Softmax:
    """Ridge regression, and an action a with probability proportional to exp(<x_a, theta> / tau).

    Parameters
    ----------
    dimension, seed : int
        Given by fastfed, because they are named here.
    tau : float
        Temperature, from the spec's ``parameters``.
    """

    def __init__(self, dimension: int, seed: int, tau: float = 0.05) -> None:
        self.draw = np.random.default_rng(seed)
        self.tau = tau
        self.v, self.u = np.eye(dimension), np.zeros(dimension)

    def select(self, actions: np.ndarray) -> int:
        scores = actions @ np.linalg.solve(self.v, self.u) / self.tau
        chances = np.exp(scores - scores.max())
        chosen = int(self.draw.choice(len(actions), p=chances / chances.sum()))
        self.x = actions[chosen]
        return chosen

    def observe(self, reward: float) -> None:
        self.v += np.outer(self.x, self.x)
        self.u += reward * self.x
