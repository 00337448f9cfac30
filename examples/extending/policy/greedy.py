"""Epsilon-greedy, for comparison: the best estimate or, with a small probability, any action."""

from __future__ import annotations

import numpy as np


class EpsilonGreedy:
    """Ridge regression and the action of the largest estimate, or a random action.

    Parameters
    ----------
    dimension, seed : int
        Given by fastfed, because they are named here.
    explore : float
        Probability of a random action in round 1. In round t it is ``explore`` / sqrt(t).
    """

    def __init__(self, dimension: int, seed: int, explore: float = 1.0) -> None:
        self.draw = np.random.default_rng(seed)
        self.explore, self.rounds = explore, 0
        self.v, self.u = np.eye(dimension), np.zeros(dimension)

    def select(self, actions: np.ndarray) -> int:
        self.rounds += 1
        if self.draw.random() < self.explore / np.sqrt(self.rounds):
            chosen = int(self.draw.integers(len(actions)))
        else:
            chosen = int(np.argmax(actions @ np.linalg.solve(self.v, self.u)))
        self.x = actions[chosen]
        return chosen

    def observe(self, reward: float) -> None:
        self.v += np.outer(self.x, self.x)
        self.u += reward * self.x
