"""From a budget to a noise standard deviation, and from the noise back to what really holds.

A mechanism and its accounting are one object: whatever formula chose the noise, its privacy is
computed from the noise itself.
"""

from __future__ import annotations

import math

from fastfed._validate import choice, integer, number
from fastfed.privacy.budget import Budget
from fastfed.privacy.tree import depth
from fastfed.privacy.two_streams import (
    GaussianRelease,
    exact_std,
    layout_of,
    only_exact,
    only_once,
)

_SOURCE = {
    "exact": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the p-sum tree "
    "(zhou-chowdhury-2024, Algorithm 2)",
    "theorem": "zhou-chowdhury-2024, Theorem 5.1, logarithm read as log2",
    "published-code": "constants of the published experiment code of zhou-chowdhury-2024",
}
_RETURNING = "; returning users: the variance times M0^2, chowdhury-zhou-2022, Proposition E.7"


class GaussianTree(GaussianRelease, frozen=True):
    """The p-sum tree over two streams, x y and x x^T, with Gaussian noise on every released node.

    Fields and guarantee as in `GaussianRelease`; a record enters kappa nodes at most. Prefix sums
    made from the nodes are post-processing.
    """

    @property
    def depth(self) -> int:
        """kappa, the largest number of nodes that one record enters."""
        return depth(self.releases)


def calibrate_tree(
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
) -> GaussianTree:
    """The tree mechanism for a budget, with kappa = floor(log2(releases)) + 1.

    calibration "exact": s = sqrt(kappa) D / mu_of(epsilon, delta), the least noise that truly gives
    the budget (D the joint sensitivity of one record under the budget's relation and the layout);
    with returning = M0 > 1 the largest sum of squares of M0 leaves stands for kappa, see
    `fastfed.privacy.returning.most_squared`.
    "theorem": s^2 = 8 kappa (ln(2/delta) + epsilon) / epsilon^2 (zhou-chowdhury-2024, Theorem 5.1),
    times M0^2 (chowdhury-zhou-2022, Proposition E.7), M0 <= releases.
    "published-code": s = sqrt(kappa (ln(1/delta) + epsilon)) / epsilon, the constants with which
    the paper's figures were drawn; it often does not give the budget, see conditions().
    layout: free for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    covariance_ratio: free for "exact"; returning: 1 for "published-code"; see `GaussianRelease`.

    Raises InputError for delta = 0, for the unit "silo" (this accounts for one user's records), and
    for a layout, ratio or returning that belongs to another calibration.
    """
    releases = integer("releases", releases, at_least=0)
    layout = layout_of(calibration, layout)
    only_exact(calibration, covariance_ratio)
    returning = integer("returning", returning, at_least=1)
    if calibration == "published-code":
        only_once(calibration, returning)
    epsilon = budget.epsilon
    delta = number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))
    kappa = depth(releases)
    if kappa == 0:
        s = 0.0
    elif calibration == "exact":
        s = exact_std(budget, "tree", releases, layout, covariance_ratio, returning)
    elif calibration == "theorem":
        s = math.sqrt(8.0 * kappa * (math.log(2.0) - math.log(delta) + epsilon)) / epsilon
        s *= min(returning, releases)
    else:
        s = math.sqrt(kappa * (epsilon - math.log(delta))) / epsilon
    source = _SOURCE[calibration]
    if calibration == "theorem" and returning > 1:
        source += _RETURNING
    return GaussianTree(
        releases,
        layout,
        s,
        calibration,
        budget,
        source,
        covariance_ratio,
        returning=returning,
    )
