"""From a budget to a noise standard deviation, and from the noise back to what really holds.

A mechanism and its accounting are one object: whatever formula chose the noise, its privacy is
computed from the noise itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.gaussian import epsilon_of, mu_of
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds, sum_sensitivity, user_sensitivity
from fastfed.privacy.tree import depth, max_touches

CALIBRATIONS = ("exact", "theorem", "published-code")

_DEFAULT_LAYOUT = {"exact": "goe2", "theorem": "iid", "published-code": "goe1"}
_SOURCE = {
    "exact": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the p-sum tree "
    "(zhou-chowdhury-2024, Algorithm 2)",
    "theorem": "zhou-chowdhury-2024, Theorem 5.1, logarithm read as log2",
    "published-code": "constants of the published experiment code of zhou-chowdhury-2024",
}


class GaussianTree(msgspec.Struct, frozen=True):
    """The p-sum tree over two streams, x y and x x^T, with Gaussian noise on every released node.

    releases: number of released nodes (T / B of them); 0 releases nothing and costs nothing.
    layout: of the symmetric noise matrix. noise_std: of each bias entry, and the layout's parameter
    for the covariance stream, in the units of the sums. calibration: which rule chose noise_std.
    budget: what was asked for. source: where the rule is from.

    Guarantee: for one record (x, y), ||x||_2 <= 1 and |y| <= 1, entering one leaf, all released
    nodes of both streams together are one Gaussian mechanism of ratio mu(relation). Prefix sums
    made from the nodes are post-processing.
    """

    releases: int
    layout: str
    noise_std: float
    calibration: str
    budget: Budget
    source: str

    def __post_init__(self) -> None:
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
    def depth(self) -> int:
        """kappa, the largest number of nodes that one record enters."""
        return depth(self.releases)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream, as a certificate lists them."""
        off, on = layout_stds(self.layout, self.noise_std)
        return {"bias": self.noise_std, "covariance": off, "covariance_diagonal": on}

    def mu(self, relation: str | None = None) -> float:
        """Ratio of the whole release for one record: sqrt(kappa) joint sensitivity / noise_std."""
        relation = choice("relation", relation or self.relation, RELATIONS)
        if self.releases == 0:
            return 0.0
        joint = user_sensitivity(
            relation, self.layout, bias_std=self.noise_std, cov_std=self.noise_std
        )
        return math.sqrt(max_touches(self.releases)) * joint

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon of everything released, at delta (default: the budget's)."""
        return epsilon_of(self.mu(relation), self.budget.delta if delta is None else delta)

    def conditions(self) -> list[Condition]:
        """Whether this noise gives the budget under the budget's relation, by exact accounting.

        One computed condition for every calibration. The proof of Theorem 5.1 covers zero-out
        neighbours only; under replacement its noise suffices by slack for all but extreme budgets,
        so it is checked rather than quoted, and the text says so.
        """
        budget = self.budget
        found = self.exact()
        text = (
            f"the exact epsilon of this noise, {rounded_up(found)} at delta {budget.delta:g} under "
            f"{budget.relation}, is at most {budget.epsilon:g}"
        )
        if self.calibration == "theorem" and budget.relation == "replace":
            text += " (computed; the proof of Theorem 5.1 is for zero-out)"
        if self.calibration == "published-code":
            text += " (computed; no theorem states these constants)"
        return [ClaimCondition(text, found <= budget.epsilon)]


def calibrate_tree(
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
) -> GaussianTree:
    """The tree mechanism for a budget, with kappa = floor(log2(releases)) + 1.

    calibration "exact": s = sqrt(kappa) D / mu_of(epsilon, delta), the least noise that truly gives
    the budget (D the joint sensitivity of one record under the budget's relation and the layout).
    "theorem": s^2 = 8 kappa (ln(2/delta) + epsilon) / epsilon^2 (zhou-chowdhury-2024, Theorem 5.1).
    "published-code": s = sqrt(kappa (ln(1/delta) + epsilon)) / epsilon, the constants with which
    the paper's figures were drawn; it often does not give the budget, see conditions().
    layout: free for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".

    Raises InputError for delta = 0, for the unit "silo" (this accounts for one record), and for a
    layout that belongs to another calibration.
    """
    releases = integer("releases", releases, at_least=0)
    choice("calibration", calibration, CALIBRATIONS)
    usual = _DEFAULT_LAYOUT[calibration]
    layout = choice("layout", layout or usual, LAYOUTS)
    if calibration != "exact" and layout != usual:
        raise InputError(
            f'layout must be "{usual}" when calibration is "{calibration}", got "{layout}"'
        )
    epsilon = budget.epsilon
    delta = number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))
    kappa = depth(releases)
    if kappa == 0:
        s = 0.0
    elif calibration == "exact":
        joint = user_sensitivity(budget.relation, layout)
        s = math.sqrt(kappa) * joint / mu_of(epsilon, delta)
    elif calibration == "theorem":
        s = math.sqrt(8.0 * kappa * (math.log(2.0) - math.log(delta) + epsilon)) / epsilon
    else:
        s = math.sqrt(kappa * (epsilon - math.log(delta))) / epsilon
    return GaussianTree(releases, layout, s, calibration, budget, _SOURCE[calibration])


class Calibrated(msgspec.Struct, frozen=True):
    """The answer of a calibration: the budget, the noise, and the ratio mu it amounts to."""

    mechanism: str
    epsilon: float
    delta: float
    relation: str
    releases: int
    noise_std: float
    mu: float
    source: str


def _gaussian(budget: Budget, releases: int) -> Calibrated:
    """Sums of vectors of norm at most 1, a record entering each of the releases."""
    releases = integer("releases", releases, at_least=0)
    delta = number("delta", budget.delta, above=0, below=1)
    size = math.sqrt(releases) * sum_sensitivity(budget.relation)
    s = size / mu_of(budget.epsilon, delta)
    return Calibrated(
        "gaussian",
        budget.epsilon,
        delta,
        budget.relation,
        releases,
        s,
        size / s if releases else 0.0,
        "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of sums of unit-norm vectors",
    )


def _tree(mechanism: str, calibration: str) -> Callable[[Budget, int], Calibrated]:
    def calibrated(budget: Budget, releases: int) -> Calibrated:
        tree = calibrate_tree(budget, releases, calibration)
        return Calibrated(
            mechanism,
            budget.epsilon,
            budget.delta,
            budget.relation,
            tree.releases,
            tree.noise_std,
            tree.mu(),
            tree.source
            if calibration == "exact"
            else f"{tree.source}; exact epsilon {rounded_up(tree.exact())}",
        )

    calibrated.__doc__ = f"The p-sum tree over both streams; source: {_SOURCE[calibration]}."
    return calibrated


MECHANISMS: dict[str, Callable[[Budget, int], Calibrated]] = {
    "gaussian": _gaussian,
    "gaussian-tree": _tree("gaussian-tree", "exact"),
    "gaussian-tree-theorem": _tree("gaussian-tree-theorem", "theorem"),
    "gaussian-tree-published-code": _tree("gaussian-tree-published-code", "published-code"),
}


def calibrate(mechanism: str, budget: Budget, releases: int = 1) -> Calibrated:
    """Noise of the named mechanism (a key of MECHANISMS) for a budget and number of releases."""
    return MECHANISMS[choice("mechanism", mechanism, tuple(MECHANISMS))](budget, releases)
