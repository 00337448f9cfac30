"""Gaussian noise on both streams of a linear bandit: what one record's change amounts to."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy import honaker, toeplitz
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.gaussian import epsilon_of, mu_of
from fastfed.privacy.returning import most_squared, returning_conditions
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds, user_sensitivity

CALIBRATIONS = ("exact", "theorem", "published-code")
_USUAL_LAYOUT = {"exact": "goe2", "theorem": "iid", "published-code": "goe1"}
#: How the noise of prefix sums is made; the same order stands in src/ff_run.h.
RELEASES = ("tree", "honaker", "toeplitz")


class GaussianRelease(msgspec.Struct, frozen=True):
    """A continual release of two streams, x y and x x^T, with Gaussian noise.

    release: how the noise of prefix sums is made: "tree" (a noise vector for each released p-sum),
    "honaker" (one for each node of the binary tree) or "toeplitz" (one for each step). Released are
    the noisy p-sums in "tree", the noisy prefix sums alone in the others.
    releases: number of releases (T / B of them); 0 releases nothing and costs nothing.
    layout: of each symmetric noise matrix. noise_std: of each bias entry of each independent noise
    vector, in the units of the sums. calibration: which rule chose it. budget: what was asked for.
    source: where the rule is from. covariance_ratio: r, the layout's parameter for the covariance
    stream is r noise_std. returning: M0, the most batches that one user takes part in, at most once
    in each and at times that do not depend on what was released.

    Guarantee: for one user's records (x, y), ||x||_2 <= 1 and |y| <= 1, entering one leaf each,
    `returning` leaves at most, everything released of both streams together is one Gaussian
    mechanism of ratio mu(relation), also when later leaves are chosen in view of earlier releases
    (by adaptive composition of the releases, "honaker": each given all before it; "toeplitz": since
    its factor is lower triangular, Denisov et al. 2022, Theorem 2.1).
    """

    releases: int
    layout: str
    noise_std: float
    calibration: str
    budget: Budget
    source: str
    covariance_ratio: float = 1.0
    release: str = "tree"
    returning: int = 1

    def __post_init__(self) -> None:
        choice("release", self.release, RELEASES)
        integer("releases", self.releases, at_least=0)
        choice("layout", self.layout, LAYOUTS)
        choice("calibration", self.calibration, CALIBRATIONS)
        number("covariance_ratio", self.covariance_ratio, above=0)
        integer("returning", self.returning, at_least=1)
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
        """Squared sensitivity of everything released to one user, per unit of one record's."""
        return leaf_squared(self.release, self.releases, self.returning)

    @property
    def variance_factors(self) -> np.ndarray:
        """Variance of the noise in prefix k = 0..K, in units of one noise entry's, (K + 1,).

        The same for every entry of both streams. Increasing in k for "toeplitz" only.
        """
        if self.release == "toeplitz":
            return np.concatenate([np.zeros(1), toeplitz.prefix_variances(self.releases)])
        factor = honaker.prefix_variance if self.release == "honaker" else int.bit_count
        return np.array([factor(k) for k in range(self.releases + 1)], dtype=np.float64)

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of bias, off-diagonal and diagonal entries of one noise vector."""
        return (
            self.noise_std,
            *layout_stds(self.layout, self.covariance_ratio * self.noise_std),
        )

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one noise vector, as a certificate lists them."""
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, self.stds, strict=True))

    def mu(self, relation: str | None = None) -> float:
        """Ratio of everything released for one user: sqrt(sensitivity_squared) joint / std."""
        relation = choice("relation", relation or self.relation, RELATIONS)
        if self.releases == 0:
            return 0.0
        joint = user_sensitivity(
            relation,
            self.layout,
            bias_std=self.noise_std,
            cov_std=self.covariance_ratio * self.noise_std,
        )
        return math.sqrt(self.sensitivity_squared) * joint

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon of everything released, at delta (default: the budget's)."""
        return epsilon_of(self.mu(relation), self.budget.delta if delta is None else delta)

    @property
    def remark(self) -> str:
        """What the rule that chose the noise does not say itself, if anything.

        The proof of Theorem 5.1 covers zero-out neighbours only; under replacement its noise
        suffices by slack for all but extreme budgets, so it is checked rather than quoted. It knows
        no returning users; their factor is that of chowdhury-zhou-2022, Proposition E.7.
        """
        if self.calibration == "theorem":
            remarks = []
            if self.relation == "replace":
                remarks.append("the proof of Theorem 5.1 is for zero-out")
            if self.returning > 1:
                remarks.append("the factor for returning users is that of Proposition E.7")
            return "; ".join(remarks)
        if self.calibration == "published-code":
            return "no theorem states these constants"
        return ""

    def conditions(self) -> list[Condition]:
        """Whether this noise gives the budget under the budget's relation, by exact accounting.

        One computed condition for every calibration, and what returning users take on trust.
        """
        budget = self.budget
        found = self.exact()
        text = (
            f"the exact epsilon of this noise, {rounded_up(found)} at delta {budget.delta:g} under "
            f"{budget.relation}, is at most {budget.epsilon:g}"
        )
        if self.remark:
            text += f" (computed; {self.remark})"
        claim = ClaimCondition(text, found <= budget.epsilon)
        return [*returning_conditions(self.returning), claim]


def leaf_squared(release: str, releases: int, returning: int = 1) -> float:
    """Squared sensitivity of a whole release to one leaf.

    kappa nodes for "tree", `honaker.sensitivity_squared`, or S_K for "toeplitz". With returning > 1
    the largest to that many leaves, for "honaker" a bound on it, see `fastfed.privacy.returning`.
    """
    return most_squared(release, releases, returning)


def exact_std(
    budget: Budget,
    release: str,
    releases: int,
    layout: str,
    covariance_ratio: float = 1.0,
    returning: int = 1,
) -> float:
    """The least noise_std that truly gives the budget: sqrt(leaf_squared) D / mu_of(budget).

    release, releases, layout, returning: as in `GaussianRelease`. D: the joint sensitivity of one
    record in both streams, the covariance stream's noise being covariance_ratio times the bias
    stream's. Raises InputError for delta = 0 and for the unit "silo" (this accounts for one user's
    records).
    """
    ratio = number("covariance_ratio", covariance_ratio, above=0)
    delta = number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))
    joint = user_sensitivity(budget.relation, layout, cov_std=ratio)
    leaf = leaf_squared(release, releases, returning)
    return math.sqrt(leaf) * joint / mu_of(budget.epsilon, delta)


def layout_of(calibration: str, layout: str | None) -> str:
    """The layout of the noise matrix: free for "exact", each other calibration's own."""
    usual = _USUAL_LAYOUT[choice("calibration", calibration, CALIBRATIONS)]
    layout = choice("layout", layout or usual, LAYOUTS)
    if calibration != "exact" and layout != usual:
        raise InputError(
            f'layout must be "{usual}" when calibration is "{calibration}", got "{layout}"'
        )
    return layout


def only_once(calibration: str, returning: int) -> None:
    """InputError for returning users where the calibration knows none."""
    if returning != 1:
        raise InputError(
            f'returning must be 1 when calibration is "{calibration}", got {returning}'
        )


def only_exact(calibration: str, covariance_ratio: float) -> None:
    """InputError for a ratio that no paper's constants are made for."""
    if calibration != "exact" and covariance_ratio != 1.0:
        raise InputError(
            f'covariance_ratio must be 1 when calibration is "{calibration}", '
            f"got {covariance_ratio:g}"
        )
