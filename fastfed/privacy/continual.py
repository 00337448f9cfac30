"""Continual releases with less noise than the p-sum tree: Honaker's estimator and square-root
Toeplitz noise, each with its exact privacy.

Not for shuffled protocols: there a node's noise is added in parts, by users who share none of it,
while here the noise of one step reappears in later ones.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice, integer
from fastfed.privacy import honaker, toeplitz
from fastfed.privacy.budget import Budget
from fastfed.privacy.sensitivity import LAYOUTS
from fastfed.privacy.two_streams import CALIBRATIONS, TwoStreams, exact_std

RELEASES = ("honaker", "toeplitz")

_SOURCE = {
    "honaker": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the binary tree with "
    "all nodes released (Honaker 2015, online estimator)",
    "toeplitz": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the square-root "
    "Toeplitz factor (Fichtenberger, Henzinger & Upadhyay 2023); adaptive inputs: Denisov et al. "
    "2022, Theorem 2.1",
}


class GaussianRelease(TwoStreams, frozen=True, kw_only=True):
    """All prefix sums of two streams, with Gaussian noise shared between prefixes.

    release: "honaker" (a noise vector for each node of the tree) or "toeplitz" (one for each
    step). Other fields and the guarantee as in `TwoStreams`; it holds also when later leaves are
    chosen in view of earlier releases ("toeplitz": since its factor is lower triangular, Denisov
    et al. 2022, Theorem 2.1; "honaker": by adaptive composition of its nodes). The noise of prefix
    k has variance variance_factor(k) times that of one noise vector.
    """

    release: str

    def __post_init__(self) -> None:
        choice("release", self.release, RELEASES)
        TwoStreams.__post_init__(self)

    @property
    def sensitivity_squared(self) -> float:
        """kappa nodes, or S_K."""
        return _leaf_squared(self.release, self.releases)

    def variance_factor(self, k: int) -> float:
        """Variance of prefix k's noise, 0 <= k <= releases, in units of one noise entry's.

        The same for every entry of both streams. Increasing in k for "toeplitz", not for
        "honaker".
        """
        k = integer("k", k, at_least=0, at_most=self.releases)
        if self.release == "honaker":
            return honaker.prefix_variance(k)
        return toeplitz.sensitivity_squared(k)  # row k and column K - k of C hold the same numbers


def calibrate_release(
    release: str,
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
) -> GaussianRelease:
    """The least noise with which a continual release truly gives the budget.

    noise_std = sqrt(q) D / mu_of(epsilon, delta), with q = kappa = floor(log2(releases)) + 1 for
    "honaker" and S_K = sum_{k<K} f_k^2 for "toeplitz", and D the joint sensitivity of one record
    in both streams under the budget's relation, the layout (default "goe2") and covariance_ratio.
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
    leaf = _leaf_squared(release, releases)
    # Also checks the budget, where nothing is released.
    s = exact_std(budget, leaf, layout, covariance_ratio)
    return GaussianRelease(
        releases,
        layout,
        s,
        calibration,
        budget,
        _SOURCE[release],
        covariance_ratio,
        release=release,
    )


def _leaf_squared(release: str, releases: int) -> float:
    if release == "honaker":
        return float(honaker.max_touches(releases))
    return toeplitz.sensitivity_squared(releases)
