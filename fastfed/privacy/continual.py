"""Continual releases with less noise than the p-sum tree: Honaker's estimator and square-root
Toeplitz noise, each with its exact privacy.

Not for shuffled protocols: there a node's noise is added in parts, by users who share none of it,
while here the noise of one step reappears in later ones.
"""

from __future__ import annotations

import math

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy import honaker, toeplitz
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.calibration import CALIBRATIONS
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.gaussian import epsilon_of, mu_of
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds, user_sensitivity

RELEASES = ("honaker", "toeplitz")

_SOURCE = {
    "honaker": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the binary tree with "
    "all nodes released (Honaker 2015, online estimator)",
    "toeplitz": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the square-root "
    "Toeplitz factor (Fichtenberger, Henzinger & Upadhyay 2023); adaptive inputs: Denisov et al. "
    "2022, Theorem 2.1",
}


class GaussianRelease(msgspec.Struct, frozen=True):
    """All prefix sums of two streams, x y and x x^T, with Gaussian noise shared between prefixes.

    release: "honaker" (a noise vector for each node of the tree) or "toeplitz" (one for each
    step). releases: number of prefixes, T / B of them; 0 releases nothing and costs nothing.
    layout: of each symmetric noise matrix. noise_std: of each bias entry of each independent noise
    vector, and the layout's parameter for its covariance part, in the units of the sums; the noise
    of prefix k has variance variance_factor(k) times that. calibration, budget, source: as in
    GaussianTree.

    Guarantee: for one record (x, y), ||x||_2 <= 1 and |y| <= 1, entering one leaf, all releases of
    both streams together are one Gaussian mechanism of ratio mu(relation), also when later leaves
    are chosen in view of earlier releases ("toeplitz": since its factor is lower triangular,
    Denisov et al. 2022, Theorem 2.1; "honaker": by adaptive composition of its nodes).
    """

    release: str
    releases: int
    layout: str
    noise_std: float
    calibration: str
    budget: Budget
    source: str

    def __post_init__(self) -> None:
        choice("release", self.release, RELEASES)
        integer("releases", self.releases, at_least=0)
        choice("layout", self.layout, LAYOUTS)
        choice("calibration", self.calibration, CALIBRATIONS)
        if self.releases:
            number("noise_std", self.noise_std, above=0)
        else:
            number("noise_std", self.noise_std, at_least=0)

    @property
    def relation(self) -> str:
        """The relation of the budget, used wherever none is named."""
        return self.budget.relation

    @property
    def sensitivity_squared(self) -> float:
        """Squared sensitivity to one leaf, per unit of one record's: kappa nodes, or S_K."""
        return _leaf_squared(self.release, self.releases)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one noise vector, as a certificate lists them."""
        off, on = layout_stds(self.layout, self.noise_std)
        return {"bias": self.noise_std, "covariance": off, "covariance_diagonal": on}

    def variance_factor(self, k: int) -> float:
        """Variance of prefix k's noise, 0 <= k <= releases, in units of one noise entry's.

        The same for every entry of both streams. Increasing in k for "toeplitz", not for
        "honaker".
        """
        k = integer("k", k, at_least=0, at_most=self.releases)
        if self.release == "honaker":
            return honaker.prefix_variance(k)
        return toeplitz.sensitivity_squared(k)  # row k and column K - k of C hold the same numbers

    def mu(self, relation: str | None = None) -> float:
        """Ratio of everything released for one record: sqrt(sensitivity_squared) joint / std."""
        relation = choice("relation", relation or self.relation, RELATIONS)
        if self.releases == 0:
            return 0.0
        joint = user_sensitivity(
            relation, self.layout, bias_std=self.noise_std, cov_std=self.noise_std
        )
        return math.sqrt(self.sensitivity_squared) * joint

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon of everything released, at delta (default: the budget's)."""
        return epsilon_of(self.mu(relation), self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """Whether this noise gives the budget under the budget's relation, by exact accounting."""
        budget = self.budget
        found = self.exact()
        text = (
            f"the exact epsilon of this noise, {rounded_up(found)} at delta {budget.delta:g} under "
            f"{budget.relation}, is at most {budget.epsilon:g}"
        )
        return [ClaimCondition(text, found <= budget.epsilon)]


def calibrate_release(
    release: str,
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
) -> GaussianRelease:
    """The least noise with which a continual release truly gives the budget.

    noise_std = sqrt(q) D / mu_of(epsilon, delta), with q = kappa = floor(log2(releases)) + 1 for
    "honaker" and S_K = sum_{k<K} f_k^2 for "toeplitz", and D the joint sensitivity of one record
    in both streams under the budget's relation and the layout (default "goe2").
    calibration: "exact" only; no paper states other constants for these releases.

    Raises InputError for another calibration, for delta = 0, and for the unit "silo" (this
    accounts for one record).
    """
    choice("release", release, RELEASES)
    releases = integer("releases", releases, at_least=0)
    choice("calibration", calibration, CALIBRATIONS)
    if calibration != "exact":
        raise InputError(
            f'calibration must be "exact" when release is "{release}", got "{calibration}"'
        )
    layout = choice("layout", layout or "goe2", LAYOUTS)
    delta = number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))
    s = 0.0
    if releases:
        joint = user_sensitivity(budget.relation, layout)
        s = math.sqrt(_leaf_squared(release, releases)) * joint / mu_of(budget.epsilon, delta)
    return GaussianRelease(release, releases, layout, s, calibration, budget, _SOURCE[release])


def _leaf_squared(release: str, releases: int) -> float:
    if release == "honaker":
        return float(honaker.max_touches(releases))
    return toeplitz.sensitivity_squared(releases)
