"""Clicks whose chance is logistic, learned from one flipped bit of each user (docs/user-bit.md).

A user's device sends the click, flipped with probability q = flips / 2^53. So a bit is 1 with
probability g(u) = q + (1 - 2 q) / (1 + exp(-u)), where u = <x, theta>. Contexts are public and the
link g is known, so maximum likelihood applies to the bits as they are. It is post-processing, and
costs no privacy.
"""

from __future__ import annotations

import math

import numpy as np

from fastfed.privacy.mechanisms.user_bit import flips_of


class GlmBits:
    """UCB with a logistic model fitted to flipped bits, by Fisher scoring after every batch.

    Parameters
    ----------
    dimension, seed : int
        Given by fastfed, because they are named here.
    epsilon : float
        Pure epsilon of each user's click.
    batch : int
        Number of users between two fits.
    explore : float
        Factor on the confidence radius.
    """

    def __init__(
        self, dimension: int, seed: int, epsilon: float, batch: int = 20, explore: float = 0.3
    ) -> None:
        self.draw = np.random.default_rng(seed)
        self.q = flips_of(epsilon) / 2.0**53
        self.batch, self.explore = batch, explore
        self.theta, self.root = np.zeros(dimension), np.eye(dimension)
        self.radius = 1.0
        self.x: list[np.ndarray] = []
        self.bits: list[int] = []

    def select(self, actions: np.ndarray) -> int:
        widths = np.linalg.norm(actions @ self.root, axis=1)
        chosen = int(np.argmax(actions @ self.theta + self.explore * self.radius * widths))
        self.x.append(actions[chosen])
        return chosen

    def observe(self, reward: float) -> None:
        # What the user's device does. Only the bit is kept.
        bit = int(self.draw.random() < reward)
        self.bits.append(bit ^ int(self.draw.random() < self.q))
        if len(self.bits) % self.batch == 0:
            self.fit()

    def fit(self) -> None:
        """Maximise the likelihood of the bits minus |theta|^2 / 2."""
        x, bits, d = np.array(self.x), np.array(self.bits), len(self.theta)
        for _ in range(50):
            mean = 1.0 / (1.0 + np.exp(-(x @ self.theta)))
            g, slope = (
                self.q + (1.0 - 2.0 * self.q) * mean,
                (1.0 - 2.0 * self.q) * mean * (1 - mean),
            )
            weight = slope / (g * (1.0 - g))
            information = (x * (weight * slope)[:, None]).T @ x + np.eye(d)
            gradient = x.T @ (weight * (bits - g)) - self.theta
            step = np.linalg.solve(information, gradient)
            self.theta = self.theta + step / max(1.0, np.linalg.norm(step))
            if np.linalg.norm(step) < 1e-9:
                break
        self.root = np.linalg.cholesky(np.linalg.inv(information))
        # The usual radius of a linear model in the inner product of the information.
        log_det = np.linalg.slogdet(information)[1]
        self.radius = math.sqrt(2.0 * math.log(10.0) + log_det) + np.linalg.norm(self.theta)
