"""Joint differential privacy: a trusted agent that adds noise to its own sums.

Users other than the changed one, all together, see the actions that the noisy sums led to, which is
post-processing (chowdhury-zhou-2022, Appendix F; Shariff and Sheffet 2018). Beside it stands the
noise of the published code, which does not hide the sums.
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
    calibrate_release,
    calibrate_tree,
    check_exact_ratio,
    layout_of,
)
from fastfed.privacy.releases.participation import proposition_e_7_squared
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import Budget, Centred, stds_of_layout

_SOURCE = {
    "theorem": "chowdhury-zhou-2022, Proposition F.3, which prints no constant: the noise of "
    "Proposition F.1 for each of the tree nodes that hold one user",
    "published-code": "constants of the published experiment code of chowdhury-zhou-2022, in "
    "features of norm 1",
}


class JointDpTree(GaussianTree, frozen=True):
    """The p-sum tree of a single agent; fields and guarantee as in `GaussianTree`."""

    @property
    def remark(self) -> str:
        """A remark on the rule that chose the noise."""
        return "Proposition F.3 prints no constant" if self.calibration == "theorem" else ""


class NestedNoise(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix sums whose noise is the sum of the first 1 + floor(ln(k + 1)) of a few draws.

    The experiment code of chowdhury-zhou-2022 adds it in place of a tree. Between two draws
    consecutive releases carry the same noise, so their difference is a batch as it is: of the sums
    no finite epsilon holds at any delta < 1, and of the actions alone nothing is proven.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for.
    releases : int
        K.
    noise_std : float
        Standard deviation of each bias entry of one draw, in the units of the sums of unit-norm
        features, where the code's (u, 1) has norm sqrt 2: s / sqrt 2 of its
        s = sqrt(ln T) ln(2.5/delta) / epsilon. The covariance stream has the layout "goe1" of
        parameter s / 2.
    """

    budget: Budget
    releases: int
    noise_std: float
    source: str = _SOURCE["published-code"]
    layout: str = "goe1"
    covariance_ratio: float = math.sqrt(0.5)

    @property
    def variance_factors(self) -> np.ndarray:
        """Draws in prefix k = 0..K, (K + 1,)."""
        draws = [1 + int(linalg.log(k + 1)) if k else 0 for k in range(self.releases + 1)]
        return np.array(draws, dtype=np.float64)

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of bias, off-diagonal and diagonal entries of one draw."""
        return self.noise_std, *stds_of_layout(self.layout, self.covariance_ratio * self.noise_std)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one draw, as a certificate lists them."""
        return dict(zip(("bias", "covariance", "covariance_diagonal"), self.stds, strict=True))

    def exact(self) -> float:
        """Epsilon is infinite: nothing is proven."""
        return math.inf

    def conditions(self) -> list[Condition]:
        """The claim, which fails."""
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
        delta > 0; unit "user" or "item".
    releases, horizon : int
        T / B and T.
    release : {"tree", "honaker", "toeplitz", "factorised"}
        The noise of prefix sums.
    calibration : {"exact", "theorem", "published-code"}
        "exact": the least noise of the release that truly gives the budget to a user of at most
        ``returning`` batches. "theorem": Proposition F.1's 4 sqrt(2 ln(2.5/delta)) / epsilon times
        sqrt(kappa), kappa the nodes over one leaf, and times ``returning`` for such users
        (Proposition E.7); tree only. "published-code": `NestedNoise`.
    layout, covariance_ratio : str, float
        As in `GaussianRelease`.
    returning : int
        The most batches of one user.
    factor : Factor, optional
        Of "factorised"; by default the optimal one of equal batches.
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code; only "exact" uses them.

    Returns
    -------
    GaussianRelease or NestedNoise

    Raises
    ------
    InputError
        For delta = 0, the unit "silo", and for keys that belong to another calibration.
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
    layout = layout_of(calibration, layout)
    check_exact_ratio(calibration, covariance_ratio)
    log = math.log(2.5) - math.log(delta)
    if calibration == "published-code":
        if returning > 1:
            raise InputError(
                f'returning must be 1 when calibration is "published-code", got {returning}'
            )
        std = math.sqrt(math.log(horizon)) * log / epsilon
        return NestedNoise(budget=budget, releases=releases, noise_std=std * math.sqrt(0.5))
    touched = proposition_e_7_squared(releases, returning)
    std = 4.0 * math.sqrt(2.0 * log * touched) / epsilon
    return JointDpTree(
        releases, layout, std, calibration, budget, _SOURCE["theorem"], returning=returning
    )
