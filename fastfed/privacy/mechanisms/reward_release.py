"""Continual release of the sums of x y if rewards y are private and contexts are public.

Most of the noise of a private linear bandit is in the sum of x x^T. If features x are public (such
as catalogue data) and only outcomes are personal (such as clicks), then only the sum of x y needs
noise.
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
from fastfed.privacy.sensitivity import STREAMS, Budget

_SOURCE = (
    "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the sums of x y alone: contexts "
    "are public"
)
#: The assumption of the unit "reward".
PUBLIC_CONTEXTS = Condition(
    "contexts, and thus the features of actions, are public; only rewards are private (taken on "
    "trust)",
    True,
)


def reward_sensitivity(
    relation: str, feature_bound: float, reward_range: tuple[float, float]
) -> float:
    """Return the L2 sensitivity of the sum of x y to one reward y.

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one reward becomes any other reward, or its contribution becomes
        zero.
    feature_bound : float
        L with ||x||_2 <= L.
    reward_range : (float, float)
        Interval of the rewards in the sum.

    Returns
    -------
    float
        The maximum of L |y - y'| for "replace", and of L |y| for "zero-out".
    """
    low, high = reward_range
    largest_change = high - low if relation == "replace" else max(abs(low), abs(high))
    return feature_bound * largest_change


class RewardRelease(msgspec.Struct, frozen=True):
    """Continual release of sum x y with Gaussian noise, and of sum x x^T without noise.

    Parameters
    ----------
    releases : int
        K, the number of releases.
    noise_std : float
        Standard deviation of each entry of one noise vector, in the units of the sum.
    budget : Budget
        The requested budget, unit "reward".
    release : {"tree", "honaker", "toeplitz", "factorised"}
        How prefix sums get their noise; see `GaussianRelease`.
    returning : int
        M0, the largest number of batches with rewards of one user, once in each batch.
    factor : Factor, optional
        The matrix factor, for release "factorised" only.
    feature_bound : float
        L with ||x||_2 <= L.
    reward_range : (float, float)
        Interval of the rewards in the sum.

    Notes
    -----
    Guarantee: consider replacing (or zeroing) the rewards of one user, one in each of `returning`
    batches. Contexts are fixed, and actions depend on released sums only, so features are functions
    of contexts and of earlier releases. By adaptive composition as in `GaussianRelease`, all
    releases are one Gaussian mechanism of GDP parameter mu().
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
        """Refuse values out of range."""
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
        """Return the rule that chose the noise: "exact"."""
        return "exact"

    @property
    def source(self) -> str:
        """Return the source of the rule that chose the noise, with authors and year."""
        return _SOURCE

    @property
    def stds(self) -> tuple[float, float, float]:
        """Return the std of one noise vector in three kinds of entries.

        These are the entries of x y, and those of x x^T off and on the diagonal. The last two
        numbers are 0, because x x^T has no noise.
        """
        return self.noise_std, 0.0, 0.0

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the standard deviation of each stream, as the certificate lists it."""
        return dict(zip(STREAMS, self.stds, strict=True))

    @property
    def variance_factors(self) -> np.ndarray:
        """Return the noise variance of each prefix sum k = 0..K, (K + 1,).

        The unit is the variance of an entry of one noise vector, and K = ``releases``.
        """
        # The relative variances do not depend on the noise std and the layout.
        gaussian_release = GaussianRelease(
            self.releases, "goe2", max(self.noise_std, 1.0), "exact", self.budget, "",
            release=self.release, factor=self.factor,
        )  # fmt: skip
        return gaussian_release.variance_factors

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of all releases, for the rewards of one user."""
        if not self.releases:
            return 0.0
        if self.noise_std == 0.0:
            return math.inf
        sensitivity = reward_sensitivity(
            relation or self.budget.relation, self.feature_bound, self.reward_range
        )
        squares = squared_of(self.release, self.releases, self.returning, self.factor)
        return math.sqrt(squares) * sensitivity / self.noise_std

    def exact(self, delta: float | None = None) -> float:
        """Return the exact epsilon of all releases, at delta (default: the budget's)."""
        mu = self.mu()
        target_delta = self.budget.delta if delta is None else delta
        return gaussian_epsilon(mu, target_delta) if math.isfinite(mu) else math.inf

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        epsilon = self.exact()
        claim = noise_claim(self.budget, epsilon, note="computed" if math.isfinite(epsilon) else "")
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
    """Calibrate the noise of sum x y: the least noise that meets the budget.

    Parameters
    ----------
    budget : Budget
        Unit "reward", delta > 0.
    releases, release, returning, factor, feature_bound, reward_range
        See `RewardRelease`.

    Returns
    -------
    RewardRelease
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a different unit, delta = 0, an unknown release, and an empty range of rewards.
    """
    choice("unit", budget.unit, ("reward",))
    number("delta", budget.delta, above=0, below=1)
    choice("release", release, RELEASES)
    noiseless = RewardRelease(
        releases, 0.0, budget, release, returning, factor, feature_bound, reward_range
    )
    if not releases:
        return noiseless
    squares = squared_of(release, releases, returning, factor)
    sensitivity = reward_sensitivity(budget.relation, feature_bound, reward_range)
    std = math.sqrt(squares) * sensitivity / gaussian_mu(budget.epsilon, budget.delta)
    return msgspec.structs.replace(noiseless, noise_std=std)
