"""Joint differential privacy: a trusted agent adds noise to its sums.

One user's data are hidden from all other users. Other users see only the agent's actions, which are
computed from the noisy sums and so are post-processing (chowdhury-zhou-2022, Appendix F; Shariff
and Sheffet 2018). `NestedNoise` is the noise of the published code, which does not hide the sums.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._kernels import linalg
from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.certificate import ClaimCondition, Condition
from fastfed.privacy.releases.gaussian_release import (
    CALIBRATIONS,
    GaussianRelease,
    GaussianTree,
    LayoutNoise,
    calibrate_release,
    calibrate_tree,
    check_exact_ratio,
    layout_of,
)
from fastfed.privacy.releases.participation import proposition_e_7_squared
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import Budget, Centred

_SOURCE = {
    "theorem": "chowdhury-zhou-2022, Proposition F.3, which prints no constant: the noise of "
    "Proposition F.1 for each of the tree nodes that hold one user",
    "published-code": "constants of the published experiment code of chowdhury-zhou-2022, in "
    "features of norm 1",
}


class JointDpTree(GaussianTree, frozen=True):
    """The tree of noisy p-sums of a single agent, with fields and guarantee of `GaussianTree`."""

    @property
    def remark(self) -> str:
        """Return a remark on the rule that chose the noise."""
        return "Proposition F.3 prints no constant" if self.calibration == "theorem" else ""


class NestedNoise(LayoutNoise, msgspec.Struct, frozen=True, kw_only=True):
    """The noise of the experiment code of chowdhury-zhou-2022, which uses no tree.

    The noise of prefix sum k is the sum of the first 1 + floor(ln(k + 1)) of a sequence of draws.
    Most consecutive releases have the same noise, so their difference is the sum of a batch without
    noise. The sums have no finite epsilon at any delta < 1, and nothing is proven for the actions.

    Parameters
    ----------
    budget : Budget
        The requested budget.
    releases : int
        K, the number of releases.
    noise_std : float
        Standard deviation of one draw in each entry of the sum of x y, for features of norm 1. The
        published code has features (u, 1) of norm sqrt 2, and adds noise of std
        s = sqrt(ln T) ln(2.5/delta) / epsilon. For features of norm 1 this is s / sqrt 2, and the
        sum of x x' has noise of layout "goe1" with parameter s / 2.
    """

    budget: Budget
    releases: int
    noise_std: float
    source: str = _SOURCE["published-code"]
    layout: str = "goe1"
    covariance_ratio: float = math.sqrt(0.5)

    @property
    def variance_factors(self) -> np.ndarray:
        """Return the number of noise draws in each prefix sum k = 0..K, (K + 1,)."""
        draws = [1 + int(linalg.log(k + 1)) if k else 0 for k in range(self.releases + 1)]
        return np.array(draws, dtype=np.float64)

    def exact(self) -> float:
        """Return epsilon = infinity, because nothing is proven."""
        return math.inf

    def conditions(self) -> list[Condition]:
        """Return the condition that the noise meets the budget, which fails."""
        text = (
            f"an epsilon at most {self.budget.epsilon:g} is proven for this noise (none can be for "
            "the sums: between two draws releases carry the same noise, so that their difference "
            "is a user's x y and x x' as they are)"
        )
        return [ClaimCondition(text, False)]


def calibrate_joint_dp(
    budget: Budget,
    releases: int,
    horizon: int,
    *,
    release: str = "tree",
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    factor: Factor | None = None,
    centred: Centred | None = None,
) -> GaussianRelease | NestedNoise:
    """Calibrate the noise of a trusted agent to a budget.

    Parameters
    ----------
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    releases, horizon : int
        The number of releases T / B, and the number of rounds T.
    release : {"tree", "honaker", "toeplitz", "factorised"}
        The release type: how prefix sums get their noise.
    calibration : {"exact", "theorem", "published-code"}
        "exact": the least noise that meets the budget for a user in at most ``returning`` batches.
        "theorem": for "tree" only; every node has noise of standard deviation
        4 sqrt(2 ln(2.5/delta)) / epsilon (Proposition F.1), times sqrt(kappa), where kappa is the
        number of nodes that contain one leaf, times ``returning`` (Proposition E.7).
        "published-code": `NestedNoise`.
    layout, covariance_ratio : str, float
        As in `GaussianRelease`.
    returning : int
        The largest number of batches of one user.
    factor : Factor, optional
        The matrix factor for "factorised". Default: the optimal factor of equal batches.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes. Used by "exact"
        only.

    Returns
    -------
    GaussianRelease or NestedNoise
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", and for arguments that the calibration does not allow.
    """
    choice("calibration", calibration, CALIBRATIONS)
    releases = integer("releases", releases, at_least=0)
    epsilon, delta = budget.epsilon, number("delta", budget.delta, above=0, below=1)
    if calibration == "exact":
        if release != "tree":
            return calibrate_release(
                release,
                budget,
                releases,
                layout=layout,
                covariance_ratio=covariance_ratio,
                returning=returning,
                factor=factor,
                centred=centred,
            )
        return calibrate_tree(
            budget,
            releases,
            layout=layout,
            covariance_ratio=covariance_ratio,
            returning=returning,
            centred=centred,
        )
    choice("unit", budget.unit, ("user", "item"))
    if release != "tree":
        raise InputError(
            f'release must be "tree" when calibration is "{calibration}", got "{release}"'
        )
    # The other rules are formulas for the tree, with a fixed layout.
    layout = layout_of(calibration, layout)
    check_exact_ratio(calibration, covariance_ratio)
    log_term = math.log(2.5) - math.log(delta)
    if calibration == "published-code":
        if returning > 1:
            raise InputError(
                f'returning must be 1 when calibration is "published-code", got {returning}'
            )
        std = math.sqrt(math.log(horizon)) * log_term / epsilon
        return NestedNoise(budget=budget, releases=releases, noise_std=std * math.sqrt(0.5))
    squared_node_count = proposition_e_7_squared(releases, returning)
    std = 4.0 * math.sqrt(2.0 * log_term * squared_node_count) / epsilon
    return JointDpTree(
        releases, layout, std, calibration, budget, _SOURCE["theorem"], returning=returning
    )
