"""Continual release of sums of x y where only the rewards y are private: contexts are public.

Most of the noise of a private linear bandit stands in sum x x^T. Where features are catalogue data
and outcomes are personal, such as clicks, that sum is public, and sum x y alone needs noise.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._validate import InputError, array, choice, integer, number
from fastfed.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu
from fastfed.privacy.certificate import Condition, noise_claim
from fastfed.privacy.releases.gaussian_release import (
    RELEASES,
    GaussianRelease,
    check_factor,
    squared_of,
)
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import Budget

_SOURCE = (
    "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the sums of x y alone: contexts "
    "are public"
)
#: What the unit "reward" takes for granted.
PUBLIC_CONTEXTS = Condition(
    "contexts, and so the features of actions, are public; rewards alone are private (taken on "
    "trust)",
    True,
)


def reward_sensitivity(
    relation: str, feature_bound: float, reward_range: tuple[float, float]
) -> float:
    """L2 sensitivity of sum x y to one reward: ||x|| |y - y'| at most, or ||x|| |y|.

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        The reward becomes any other, or its contribution zero.
    feature_bound : float
        L with ||x||_2 <= L.
    reward_range : (float, float)
        Interval of the reward that enters the sum.

    Returns
    -------
    float
    """
    low, high = reward_range
    moved = high - low if relation == "replace" else max(abs(low), abs(high))
    return feature_bound * moved


class RewardRelease(msgspec.Struct, frozen=True):
    """Continual release of sum x y with Gaussian noise, beside sum x x^T as it is.

    Parameters
    ----------
    releases : int
        K.
    noise_std : float
        Standard deviation of each entry of one noise vector, in the units of the sum.
    budget : Budget
        The budget that was asked for, unit "reward".
    release : {"tree", "honaker", "toeplitz", "factorised"}
        The noise of prefix sums, see `GaussianRelease`.
    returning : int
        M0, the most batches with rewards of one user, once in each.
    factor : Factor, optional
        Of release "factorised".
    feature_bound : float
        L with ||x||_2 <= L.
    reward_range : (float, float)
        Interval of the reward that enters the sum.

    Notes
    -----
    Guarantee: replacing (or zeroing) the rewards of one user, one in each of `returning` batches,
    with all contexts fixed and actions chosen from released sums alone, changes what is released by
    one Gaussian mechanism of GDP parameter mu(): features are then functions of contexts and of
    earlier releases (adaptive composition as for `GaussianRelease`).
    """

    releases: int
    noise_std: float
    budget: Budget
    release: str
    returning: int = 1
    factor: Factor | None = None
    feature_bound: float = 1.0
    reward_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        """Refuse numbers that no account is about."""
        check_factor(self.release, self.releases, self.factor)
        choice("release", self.release, RELEASES)
        integer("releases", self.releases, at_least=0)
        integer("returning", self.returning, at_least=1)
        number("noise_std", self.noise_std, at_least=0)
        number("feature_bound", self.feature_bound, above=0)
        low, high = array("reward_range", self.reward_range, shape=(2,)).tolist()
        if not low < high:
            raise InputError(
                f"reward_range must be (low, high) with low < high, got {self.reward_range}"
            )

    @property
    def calibration(self) -> str:
        """The rule that chose the noise: "exact"."""
        return "exact"

    @property
    def source(self) -> str:
        """Author-year of the rule."""
        return _SOURCE

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of bias, off-diagonal and diagonal entries of one noise vector."""
        return self.noise_std, 0.0, 0.0

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream, as a certificate lists them."""
        return {"bias": self.noise_std, "covariance": 0.0, "covariance_diagonal": 0.0}

    @property
    def variance_factors(self) -> np.ndarray:
        """Variance of the noise in prefix k = 0..K, in units of one noise entry's, (K + 1,)."""
        plain = GaussianRelease(
            self.releases, "goe2", max(self.noise_std, 1.0), "exact", self.budget, "",
            release=self.release, factor=self.factor,
        )  # fmt: skip
        return plain.variance_factors

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of everything released to one user's rewards."""
        if not self.releases:
            return 0.0
        if self.noise_std == 0.0:
            return math.inf
        moved = reward_sensitivity(
            relation or self.budget.relation, self.feature_bound, self.reward_range
        )
        squares = squared_of(self.release, self.releases, self.returning, self.factor)
        return math.sqrt(squares) * moved / self.noise_std

    def exact(self, delta: float | None = None) -> float:
        """True epsilon of everything released, at delta (default: the budget's)."""
        mu = self.mu()
        at = self.budget.delta if delta is None else delta
        return gaussian_epsilon(mu, at) if math.isfinite(mu) else math.inf

    def conditions(self) -> list[Condition]:
        """The claim, computed, and what is taken on trust."""
        found = self.exact()
        claim = noise_claim(self.budget, found, note="computed" if math.isfinite(found) else "")
        return [PUBLIC_CONTEXTS, *participation_conditions(self.returning), claim]


def calibrate_rewards(
    budget: Budget,
    releases: int,
    release: str = "factorised",
    *,
    returning: int = 1,
    factor: Factor | None = None,
    feature_bound: float = 1.0,
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> RewardRelease:
    """Calibrate the noise of sum x y alone: the least that truly gives the budget.

    Parameters
    ----------
    budget : Budget
        Unit "reward", delta > 0.
    releases, release, returning, factor, feature_bound, reward_range
        As in `RewardRelease`.

    Returns
    -------
    RewardRelease

    Raises
    ------
    InputError
        For another unit, delta = 0, an unknown release, and an empty range of rewards.
    """
    choice("unit", budget.unit, ("reward",))
    number("delta", budget.delta, above=0, below=1)
    choice("release", release, RELEASES)
    made = RewardRelease(
        releases, 0.0, budget, release, returning, factor, feature_bound, reward_range
    )
    if not releases:
        return made
    squares = squared_of(release, releases, returning, factor)
    moved = reward_sensitivity(budget.relation, feature_bound, reward_range)
    std = math.sqrt(squares) * moved / gaussian_mu(budget.epsilon, budget.delta)
    return msgspec.structs.replace(made, noise_std=std)
