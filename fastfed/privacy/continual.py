"""Continual releases with less noise than the p-sum tree: Honaker's estimator and square-root
Toeplitz noise, each with its exact privacy.

Not for shuffled protocols: there a node's noise is added in parts, by users who share none of it,
while here the noise of one step reappears in later ones.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice, integer
from fastfed.privacy.budget import Budget
from fastfed.privacy.sensitivity import LAYOUTS
from fastfed.privacy.two_streams import CALIBRATIONS, RELEASES, GaussianRelease, exact_std

#: Releases whose noise is shared between prefixes in another way than the tree's.
SHARED = RELEASES[1:]

_SOURCE = {
    "honaker": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the prefixes alone of "
    "the binary tree (Honaker 2015, online estimator), whitened",
    "toeplitz": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the square-root "
    "Toeplitz factor (Fichtenberger, Henzinger & Upadhyay 2023); adaptive inputs: Denisov et al. "
    "2022, Theorem 2.1",
}


def calibrate_release(
    release: str,
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
) -> GaussianRelease:
    """The least noise with which a continual release truly gives the budget.

    noise_std = sqrt(q) D / mu_of(epsilon, delta), with q = `honaker.sensitivity_squared` for
    "honaker" (0.84 to 1 times floor(log2(releases)) + 1) and S_K = sum_{k<K} f_k^2 for "toeplitz",
    and D the joint sensitivity of one record in both streams under the budget's relation, the
    layout (default "goe2") and covariance_ratio.
    returning: the most batches of one user; if more than 1, q is the largest squared sensitivity to
    that many leaves, or for "honaker" a bound on it (`fastfed.privacy.returning.most_squared`).
    calibration: "exact" only; no paper states other constants for these releases.

    Raises InputError for another calibration, for delta = 0, and for the unit "silo" (this
    accounts for one user's records).
    """
    choice("release", release, SHARED)
    releases = integer("releases", releases, at_least=0)
    choice("calibration", calibration, CALIBRATIONS)
    if calibration != "exact":
        raise InputError(
            f'calibration must be "exact" when release is "{release}", got "{calibration}"'
        )
    layout = choice("layout", layout or "goe2", LAYOUTS)
    # Also checks the budget, where nothing is released.
    s = exact_std(budget, release, releases, layout, covariance_ratio, returning)
    source = _SOURCE[release]
    return GaussianRelease(
        releases, layout, s, calibration, budget, source, covariance_ratio, release, returning
    )
