"""Ridge and width of the experiment code of chowdhury-zhou-2022, in features of norm 1.

The code's features are (u, 1), of norm sqrt 2. Half its Gram matrix, with half its ridge and half
its covariance noise, and its bias sum over sqrt 2 are the same bandit in unit features: scores,
widths and actions are equal. What follows is that bandit's; Gamma and the width are the code's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastfed.bandits.noise import Noise
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Keys
from fastfed.bandits.theory import Theory, about_rewards
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, Radius

#: The code's bound on squared feature norms, and its sub-Gaussian scale of rewards.
SQUARED_NORM, REWARD_SCALE = 2.0, 0.5


@dataclass(frozen=True)
class PublishedCode:
    """Gamma, and the ridge lambda where it is not the code's 2 Gamma (Gamma in unit features)."""

    gamma: float
    ridge: float | None = None

    @property
    def regularizer(self) -> float:
        return self.gamma if self.ridge is None else self.ridge

    def width(self, horizon: int, dimension: int) -> float:
        """beta = sqrt(Gamma d) + R sqrt(d ln((1 + T L^2 / Gamma) T)), the same in every round."""
        grown = math.log1p(horizon * SQUARED_NORM / self.gamma) + math.log(horizon)
        return math.sqrt(self.gamma * dimension) + REWARD_SCALE * math.sqrt(dimension * grown)


#: Of "linucb": Gamma = 1 in the width, and a ridge of 1e-4.
NOT_PRIVATE = PublishedCode(1.0, 0.5e-4)


def of_users(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma where each user adds noise: s sqrt(T d), s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt B).

    ``users`` B is 1 for local privacy.
    """
    std = math.sqrt((math.log(2.5 * users) - math.log(delta)) / users) / epsilon
    return std * math.sqrt(horizon * dimension)


def of_agent(epsilon: float, delta: float, horizon: int, dimension: int) -> float:
    """Gamma of a trusted agent: s sqrt(d ln T), s = sqrt(ln T) ln(2.5/delta) / epsilon."""
    log = math.log(horizon)
    return math.sqrt(log) * math.log(2.5 / delta) / epsilon * math.sqrt(dimension * log)


def of_vector(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma of the vector sum: ln(d/delta) / (4 epsilon sqrt B) sqrt(T d)."""
    log = math.log(dimension) - math.log(delta)
    return log / (4.0 * epsilon * math.sqrt(users)) * math.sqrt(horizon * dimension)


def published_theory(
    code: PublishedCode, keys: Keys, setting: Setting, noise: Noise | None, clip: Clip | None
) -> Theory:
    """Ridge and width of the code, with what is known of them: nothing is proven."""
    d, regularizer = setting.dimension, keys.regularizer
    ridge = code.regularizer if isinstance(regularizer, (str, type(None))) else regularizer
    largest = 0.0
    if noise is not None:
        largest = float(noise.law.operator_norms(d, keys.failure_probability / 4.0).max())
    lam = np.array([ridge])
    # Rows of V play no part: the logarithm's argument is 1.
    width = code.width(setting.horizon, d) - math.sqrt(code.gamma * d)
    base = (width / REWARD_SCALE) ** 2
    radius = Radius(
        keys.radius_multiplier,
        REWARD_SCALE,
        base,
        np.array([math.sqrt(code.gamma * d)]),
        np.array([math.inf]),
    )
    return Theory(
        regularizer=lam,
        lambda_min=lam,
        lambda_max=lam + largest,
        nu=np.zeros(1),
        radius=radius,
        conditions=(
            *about_rewards(setting, clip),
            Condition(
                "the regularizer exceeds the noise's operator norm with high probability",
                ridge > largest,
            ),
            Condition("the radius is a proven one (that of the experiment code is not)", False),
        ),
    )
