"""An environment from another package: rewards whose chance is logistic in the features.

Actions are uniform on the unit sphere, fresh in every round; the reward is 1 with probability
1 / (1 + exp(-slope <x, theta*>)), theta* uniform on the sphere too, another one in every replicate.
A linear model is wrong here, and the certificate says so of the regret bound, not of the privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from fastfed.plugins import (
    EnvironmentSpec,
    Python,
    RewardDistribution,
    described,
    environment_signature,
    key_of,
    normal,
    normals,
)


@numba.cfunc(environment_signature())
def fill(state, seed, replicate, silo, round, x, mean):
    """The actions of one round; the state is (actions, dimension, slope, theta*)."""
    k, d, slope = int(state[0]), int(state[1]), state[2]
    features, means = numba.carray(x, (k, d)), numba.carray(mean, (k,))
    key = key_of(seed, replicate, silo, round)
    for a in range(k):
        square = product = 0.0
        for j in range(d):
            features[a, j] = normal(key, a * d + j)
            square += features[a, j] ** 2
            product += features[a, j] * state[3 + j]
        norm = math.sqrt(square)
        for j in range(d):
            features[a, j] /= norm
        means[a] = 1.0 / (1.0 + math.exp(-slope * product / norm))
    return k


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Fresh actions on a sphere every round, rewards logistic in their features."""

    dimension: int = 5
    actions: int = 20
    slope: float = 4.0
    kind = "logistic"

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        return EnvironmentSpec(
            self.dimension, self.actions, RewardDistribution(), linear=False, features_bounded=False
        )

    def open(self, seed: int, replicate: int, silos: int) -> Any:
        theta = normals(seed, self.dimension, replicate=replicate)
        sizes = [self.actions, self.dimension, self.slope]
        state = np.array([*sizes, *theta / np.linalg.norm(theta)])
        made = Python(function=fill, dimension=self.dimension, actions=self.actions, state=state)
        return made.open(seed, replicate, silos)

    def describe(self) -> dict[str, Any]:
        return described(self)
