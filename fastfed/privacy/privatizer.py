"""The privatizer of FedUCB: prefix sums of [x; y][x; y]^T from a tree, and what a schedule costs.

Its matrices are (d + 1) x (d + 1), with noise of layout goe2. The last entry, sum y^2, is never
released, so what remains is the tree of two streams (calibration.py) with one noise for both.
"""

from __future__ import annotations

import math

from fastfed._validate import choice, integer, number
from fastfed.privacy.budget import Budget
from fastfed.privacy.calibration import GaussianTree
from fastfed.privacy.gaussian import mu_of
from fastfed.privacy.sensitivity import user_sensitivity
from fastfed.privacy.tree import depth
from fastfed.privacy.two_streams import exact_std

CALIBRATIONS = ("exact", "theorem")
_LAYOUT = "goe2"
_SOURCE = {
    "exact": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the privatizer "
    "(dubey-pentland-2020, Algorithm 2)",
    "theorem": "dubey-pentland-2020, Algorithm 2 and Proposition 3, logarithm read as log2",
}


class Privatizer(GaussianTree, frozen=True):
    """Algorithm 2 of dubey-pentland-2020, over a schedule that reads no raw data.

    Fields and guarantee as in `GaussianRelease`. Where ``schedule_rounds`` > 0 the schedule reads
    the data through noisy prefix sums of its own: of x x^T alone, one leaf a round, a new tree
    after each synchronisation, node noise goe2 of ``schedule_std`` (zhou-chowdhury-2024, Appendix
    D.2). A record then enters depth(schedule_rounds) of those nodes at most as well, however the
    rounds fall, all of them before its nodes of the sums. Filled up with empty releases both
    numbers are fixed, so both are one Gaussian mechanism by adaptive composition, although the
    data choose the leaves.
    """

    schedule_std: float = 0.0
    schedule_rounds: int = 0

    def mu(self, relation: str | None = None) -> float:
        """Ratio of all that is released for one record, the schedule's sums included."""
        own = GaussianTree.mu(self, relation)
        if not self.schedule_rounds:
            return own
        moved = _covariance_sensitivity(relation or self.relation)
        nodes = depth(self.schedule_rounds)
        return math.hypot(own, math.sqrt(nodes) * moved / self.schedule_std)

    @property
    def noise_stds(self) -> dict[str, float]:
        stds = dict(super().noise_stds)
        if self.schedule_rounds:
            stds["schedule"] = self.schedule_std
        return stds

    @property
    def remark(self) -> str:
        return ""


def privatizer_levels(releases: int) -> int:
    """m = 1 + ceil(log2 n), dubey-pentland-2020, Algorithm 2, line 2; log is log2 (Section 4.3).

    Never below the floor(log2 n) + 1 releases that one leaf touches (`tree.depth`), so noise
    calibrated to m is enough.
    """
    return 1 + (integer("releases", releases, at_least=1) - 1).bit_length()


def node_noise_std(
    epsilon: float, delta: float, releases: int, *, feature_bound: float = 1.0
) -> float:
    """s_N of dubey-pentland-2020, Algorithm 2, line 5: 4 sqrt(m) (L^2 + 1) ln(2/delta) / epsilon.

    The std off the diagonal of a node's (N + N')/sqrt 2 (layout goe2); on it sqrt 2 s_N.

    Guarantee: all messages of one silo together are (epsilon, delta)-DP for replacement of one
    realised (x, y), ||x|| <= L and |y| <= 1, as long as the schedule looks at no raw data and, with
    l = ln(2/delta), epsilon <= 8 l (4 l - sqrt(2 l)): a node's sensitivity is L^2 + 1, so that
    mu <= epsilon / (4 l). The paper's own derivation (delta / 2m per node) would ask for ln(2.5
    m/delta); the noise is many times the exact one all the same.
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    length = number("feature_bound", feature_bound, above=0)
    m = privatizer_levels(releases)
    log_delta = math.log(2.0) - math.log(delta)
    return 4.0 * math.sqrt(m) * (length * length + 1.0) * log_delta / epsilon


def calibrate_privatizer(
    budget: Budget, releases: int, calibration: str = "exact", *, schedule_rounds: int = 0
) -> Privatizer:
    """The privatizer for a budget and n = ``releases``: T where the data decide the schedule.

    calibration "theorem": `node_noise_std`. "exact": the least noise that truly gives the budget.
    schedule_rounds: rounds of a private schedule, 0 for none; it and the sums then share the budget
    evenly (mu^2 / 2 each), which no paper settles, so "exact" only.
    Raises InputError for delta = 0 and for the unit "silo".
    """
    choice("calibration", calibration, CALIBRATIONS if not schedule_rounds else ("exact",))
    releases = integer("releases", releases, at_least=0)
    delta = number("delta", budget.delta, above=0, below=1)
    schedule_std = 0.0
    if not releases:
        std = 0.0
    elif calibration == "theorem":
        choice("unit", budget.unit, ("user", "item"))
        std = node_noise_std(budget.epsilon, delta, releases)
    else:
        std = exact_std(budget, "tree", releases, _LAYOUT)
        if schedule_rounds:
            std *= math.sqrt(2.0)
            moved = _covariance_sensitivity(budget.relation)
            nodes = depth(schedule_rounds)
            schedule_std = math.sqrt(2.0 * nodes) * moved / mu_of(budget.epsilon, delta)
    return Privatizer(
        releases,
        _LAYOUT,
        std,
        calibration,
        budget,
        _SOURCE[calibration],
        schedule_std=schedule_std,
        schedule_rounds=schedule_rounds,
    )


def _covariance_sensitivity(relation: str) -> float:
    """Of one record in sum x x^T alone, in units of goe2 noise: 1, or 1/sqrt 2 for zero-out."""
    return user_sensitivity(relation, _LAYOUT, bias_std=math.inf)
