"""Gaussian noise for continual releases of running sums, calibrated to a budget.

A continual release publishes, after every batch, the sum of all batches so far. Its noise comes
from a binary tree, Honaker's estimator, or a Toeplitz or other matrix factor. A `GaussianRelease`
computes its privacy from its noise, whatever formula chose this noise.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu
from fastfed.privacy.certificate import Condition, noise_claim
from fastfed.privacy.releases.buffered import buffered_prefix_variances
from fastfed.privacy.releases.participation import participation_conditions, squared_sensitivity
from fastfed.privacy.releases.prefix_sums import (
    Factor,
    honaker_prefix_variance,
    optimal_factor,
    toeplitz_prefix_variances,
    tree_levels,
)
from fastfed.privacy.sensitivity import (
    DIAGONAL,
    LAYOUTS,
    STREAMS,
    Budget,
    Centred,
    check_gaussian_budget,
    joint_sensitivity,
    named_delta,
    named_relation,
    stds_of_layout,
)

CALIBRATIONS = ("exact", "theorem", "published-code")
_USUAL_LAYOUT = {"exact": "goe2", "theorem": "iid", "published-code": "goe1"}
#: Release types: the mechanisms that add noise to prefix sums. src/ff_run.h lists them in the same
#: order.
RELEASES = ("tree", "honaker", "toeplitz", "factorised", "buffered")


class LayoutNoise:
    """Common properties of mechanisms whose noise is given by one standard deviation and a layout.

    The layout says how the noise of a symmetric matrix depends on the entry.
    """

    __slots__ = ()
    budget: Budget
    layout: str
    noise_std: float
    covariance_ratio: float

    @property
    def relation(self) -> str:
        """Return the budget's relation, which is the default ``relation`` of all methods."""
        return self.budget.relation

    @property
    def stds(self) -> tuple[float, float, float]:
        """Return three stds of one noise vector: in x y, and in x x^T off and on the diagonal."""
        covariance_std = self.covariance_ratio * self.noise_std
        return self.noise_std, *stds_of_layout(self.layout, covariance_std)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the standard deviations of one noise vector, as the certificate lists them."""
        return dict(zip(STREAMS, self.stds, strict=True))


class GaussianRelease(LayoutNoise, msgspec.Struct, frozen=True):
    """A continual release of two streams, x y and x x^T, with Gaussian noise.

    Parameters
    ----------
    releases : int
        Number of releases, K = T / B. With 0, nothing is released and epsilon is 0.
    layout : {"iid", "goe1", "goe2", "diagonal"}
        Layout of each symmetric noise matrix. "diagonal" is for records whose x is a unit vector
        e_a: the sum of x x^T is then diagonal, and only its diagonal gets noise.
    noise_std : float
        Standard deviation of each bias entry of one noise vector, in the units of the sums.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose the noise.
    budget : Budget
        The requested budget.
    source : str
        Authors and year of the paper that states the noise rule.
    covariance_ratio : float
        r > 0: the layout's parameter for the covariance stream is r noise_std.
    release : {"tree", "honaker", "toeplitz", "factorised", "buffered"}
        How prefix sums get their noise. "tree" draws one noise vector for each p-sum (a left child
        or maximal block of the binary tree), and releases the noisy p-sums. The other types release
        only the noisy prefix sums. "honaker" draws one noise vector for each node of the tree, the
        remaining types one for each release.
    returning : int
        M0, the largest number of batches that one user takes part in, at most once in each batch
        and at times that do not depend on earlier releases.
    factor : Factor, optional
        The matrix factor, for release "factorised" only.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: consider one user's records (x, y) with ||x||_2 <= 1 and |y| <= 1, in at most
    ``returning`` leaves and at most one record per leaf. All releases of both streams together are
    one Gaussian mechanism of GDP parameter mu(relation). Later leaves may depend on earlier
    releases. For "tree" and "honaker" this is adaptive composition of the releases (for "honaker",
    each given all earlier ones). For "toeplitz", "factorised" and "buffered" it holds because the
    factor is lower triangular (Denisov et al. 2022, Theorem 2.1).
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
    factor: Factor | None = None
    centred: Centred | None = None

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        check_factor(self.release, self.releases, self.factor)
        choice("release", self.release, RELEASES)
        integer("releases", self.releases, at_least=0)
        choice("layout", self.layout, (*LAYOUTS, DIAGONAL))
        choice("calibration", self.calibration, CALIBRATIONS)
        number("covariance_ratio", self.covariance_ratio, above=0)
        integer("returning", self.returning, at_least=1)
        if self.releases:
            number("noise_std", self.noise_std, above=0)
        else:
            number("noise_std", self.noise_std, at_least=0)

    @property
    def sensitivity_squared(self) -> float:
        """Return the squared sensitivity, to one user's records, of all releases together.

        The unit is the squared sensitivity of one batch to one record.
        """
        return squared_of(self.release, self.releases, self.returning, self.factor)

    @property
    def variance_factors(self) -> np.ndarray:
        """Return the noise variances of prefix sums k = 0..K, (K + 1,).

        The unit is the variance of one noise vector in the same entry. The factors are the same for
        all entries of the sums of x y and x x^T. They increase in k for "toeplitz" and "buffered".
        """
        if self.release == "toeplitz":
            return np.concatenate([np.zeros(1), toeplitz_prefix_variances(self.releases)])
        if self.release == "buffered":
            return np.concatenate([np.zeros(1), buffered_prefix_variances(self.releases)])
        if self.factor is not None:
            return np.concatenate([np.zeros(1), self.factor.variances])
        variance_of = honaker_prefix_variance if self.release == "honaker" else int.bit_count
        return np.array([variance_of(k) for k in range(self.releases + 1)], dtype=np.float64)

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of all releases together, for one user.

        It is sqrt(sensitivity_squared) times the mu of one record in one noise vector.
        """
        relation = named_relation(relation, self.budget)
        if self.releases == 0:
            return 0.0
        stds = self.noise_std, self.covariance_ratio * self.noise_std
        record_mu = record_sensitivity(relation, self.layout, *stds, self.centred)
        return math.sqrt(self.sensitivity_squared) * record_mu

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the exact epsilon of all releases, at delta (default: the budget's)."""
        return gaussian_epsilon(self.mu(relation), named_delta(delta, self.budget))

    @property
    def remark(self) -> str:
        """Return a remark for the certificate on what the theorem of the noise rule does not prove.

        Calibration "theorem" is Theorem 5.1 of zhou-chowdhury-2024. Its proof covers zero-out
        neighbours only. Its noise is also large enough for replacement, except for extreme budgets.
        `conditions` computes whether it is large enough for this budget. The theorem also assumes
        that each user takes part in one batch. The factor for several batches is that of
        chowdhury-zhou-2022, Proposition E.7.
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
        """Return the assumptions of the account, and the condition that the claim holds."""
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, self.exact(), note=note)
        return [*participation_conditions(self.returning), claim]


def check_factor(release: str, releases: int, factor: Factor | None) -> None:
    """Raise InputError for a factor that does not fit the release type or number of releases.

    Release "factorised" needs a factor, and other types must have none.
    """
    if (release == "factorised") != (factor is not None):
        raise InputError(
            f'factor belongs to release "factorised" only, got release "{release}" '
            f"{'with' if factor is not None else 'without'} one"
        )
    if factor is not None and len(factor) != releases:
        raise InputError(f"factor must be of {releases} releases, got {len(factor)}")


def record_sensitivity(
    relation: str, layout: str, bias_std: float, covariance_std: float, centred: Centred | None
) -> float:
    """Return the joint sensitivity of the sums of x y and x x^T to one record, in units of noise.

    It is the GDP parameter mu of both sums, if entries of x y get noise of std ``bias_std``, and
    x x^T gets noise of this layout with parameter ``covariance_std``. ``centred`` holds the bounds
    of centred records, if rewards are centred. Arguments are not checked.
    """
    if centred is not None:
        return centred.joint(relation, layout, bias_std, covariance_std)
    return joint_sensitivity(relation, layout, bias_std=bias_std, cov_std=covariance_std)


def squared_of(release: str, releases: int, returning: int, factor: Factor | None = None) -> float:
    """Return the squared sensitivity, to one user's records, of all releases together.

    The unit is the squared sensitivity of one batch to one record. ``release`` is the release type,
    ``releases`` the number of releases, ``returning`` the largest number of batches of one user,
    and ``factor`` the matrix factor of type "factorised". Arguments are not checked.
    """
    if factor is not None:
        return factor.squared_sensitivity(returning)
    return squared_sensitivity(release, releases, returning)


def exact_std(
    budget: Budget,
    release: str,
    releases: int,
    layout: str,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    factor: Factor | None = None,
    centred: Centred | None = None,
) -> float:
    """Return the least noise_std that meets the budget: sqrt(q) D / mu_of(epsilon, delta).

    q is the squared sensitivity of the release (`participation.max_squared_sensitivity`). D is the
    joint sensitivity of the sums of x y and x x^T to one record, if the noise in x x^T has
    covariance_ratio times the std of the noise in x y. The arguments are those of
    `GaussianRelease`, and are not checked.
    """
    joint = record_sensitivity(budget.relation, layout, 1.0, covariance_ratio, centred)
    squared_release_sensitivity = squared_of(release, releases, returning, factor)
    return (
        math.sqrt(squared_release_sensitivity) * joint / gaussian_mu(budget.epsilon, budget.delta)
    )


def layout_of(calibration: str, layout: str | None) -> str:
    """Return ``layout`` after a check, or the default layout of the calibration if it is None.

    "exact" allows any layout. Each other calibration has one fixed layout, and InputError is raised
    for a different one.
    """
    choice("calibration", calibration, CALIBRATIONS)
    return fitting_layout(calibration, choice("layout", layout, LAYOUTS) if layout else None)


def fitting_layout(calibration: str, layout: str | None) -> str:
    """Return the result of `layout_of`, without checking that the names exist."""
    required_layout = _USUAL_LAYOUT[calibration]
    layout = layout or required_layout
    if calibration != "exact" and layout != required_layout:
        raise InputError(
            f'layout must be "{required_layout}" when calibration is "{calibration}", '
            f'got "{layout}"'
        )
    return layout


def check_single_participation(calibration: str, returning: int) -> None:
    """Raise InputError unless ``returning`` is 1, for a calibration that needs this."""
    if returning != 1:
        raise InputError(
            f'returning must be 1 when calibration is "{calibration}", got {returning}'
        )


def check_exact_ratio(calibration: str, covariance_ratio: float) -> None:
    """Raise InputError for a covariance ratio other than 1, unless the calibration is "exact"."""
    if calibration != "exact" and covariance_ratio != 1.0:
        raise InputError(
            f'covariance_ratio must be 1 when calibration is "{calibration}", '
            f"got {covariance_ratio:g}"
        )


# ---- the p-sum tree ------------------------------------------------------------------------------

_SOURCE = {
    "exact": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the p-sum tree "
    "(zhou-chowdhury-2024, Algorithm 2)",
    "theorem": "zhou-chowdhury-2024, Theorem 5.1, logarithm read as log2",
    "published-code": "constants of the published experiment code of zhou-chowdhury-2024",
}
_RETURNING = "; returning users: the variance times M0^2, chowdhury-zhou-2022, Proposition E.7"


class GaussianTree(GaussianRelease, frozen=True):
    """The p-sum tree over two streams, with Gaussian noise on every released node.

    Parameters
    ----------
    releases, layout, noise_std, calibration, budget, source, covariance_ratio, returning, centred
        See `GaussianRelease`. ``noise_std`` is the standard deviation of the noise of one node in
        an entry of x y.
    release, factor
        Must be "tree" and None.

    Notes
    -----
    Guarantee: that of `GaussianRelease`, for all released nodes together, against everybody who
    sees them. A record enters at most kappa nodes. Computing prefix sums from the nodes is
    post-processing. Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2.
    """

    @property
    def depth(self) -> int:
        """Return kappa, the largest number of nodes that one record enters."""
        return tree_levels(self.releases)


def calibrate_tree(
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    centred: Centred | None = None,
) -> GaussianTree:
    """Calibrate the tree mechanism to a budget.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        K >= 0. The tree has kappa = floor(log2(K)) + 1 levels.
    calibration : {"exact", "theorem", "published-code"}
        The rule for the noise std s:

        - "exact": s = sqrt(kappa) D / mu_of(epsilon, delta), the least noise that meets the budget.
          D is the joint sensitivity of one record under the budget's relation and the layout. For
          returning = M0 > 1, kappa is replaced by the largest squared sensitivity to M0 leaves
          (`fastfed.privacy.releases.participation.max_squared_sensitivity`).
        - "theorem": s^2 = 8 kappa (ln(2/delta) + epsilon) / epsilon^2 (zhou-chowdhury-2024, Theorem
          5.1), times min(M0, K)^2 (chowdhury-zhou-2022, Proposition E.7).
        - "published-code": s = sqrt(kappa (ln(1/delta) + epsilon)) / epsilon, as in the code that
          made the paper's figures. It often does not meet the budget; see ``conditions()``.
    layout : {"iid", "goe1", "goe2"}, optional
        Any for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    covariance_ratio : float
        Any > 0 for "exact", else 1; see `GaussianRelease`.
    returning : int
        M0, the largest number of batches of one user; 1 for "published-code".
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes. Used by "exact"
        only.

    Returns
    -------
    GaussianTree
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo" (the account is for one user's records), and for a
        layout, ratio or returning that the calibration does not allow.
    """
    releases = integer("releases", releases, at_least=0)
    layout = layout_of(calibration, layout)
    covariance_ratio = number("covariance_ratio", covariance_ratio, above=0)
    returning = integer("returning", returning, at_least=1)
    check_gaussian_budget(budget)
    return tree_for(budget, releases, calibration, layout, covariance_ratio, returning, centred)


def tree_for(
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    centred: Centred | None = None,
) -> GaussianTree:
    """Return the result of `calibrate_tree`, without checking the types and ranges of arguments.

    Raises InputError for a layout, ratio or returning that the calibration does not allow.
    """
    layout = fitting_layout(calibration, layout)
    check_exact_ratio(calibration, covariance_ratio)
    if calibration == "published-code":
        check_single_participation(calibration, returning)
    epsilon, delta = budget.epsilon, budget.delta
    kappa = tree_levels(releases)
    if kappa == 0:
        noise_std = 0.0
    elif calibration == "exact":
        noise_std = exact_std(
            budget, "tree", releases, layout, covariance_ratio, returning, centred=centred
        )
    elif calibration == "theorem":
        noise_std = math.sqrt(8.0 * kappa * (math.log(2.0) - math.log(delta) + epsilon)) / epsilon
        noise_std *= min(returning, releases)
    else:
        noise_std = math.sqrt(kappa * (epsilon - math.log(delta))) / epsilon
    source = _SOURCE[calibration]
    if calibration == "theorem" and returning > 1:
        source += _RETURNING
    return GaussianTree(
        releases,
        layout,
        noise_std,
        calibration,
        budget,
        source,
        covariance_ratio,
        returning=returning,
        centred=centred,
    )


# ---- less noise than the tree: Honaker's estimator and square-root Toeplitz noise ----------------
# These release types use the noise of one release again in later releases. So they are not for
# shuffled protocols, where each user adds a part of a node's noise once and stores nothing.


#: Release types other than "tree", in which later prefix sums use the noise of earlier ones again.
SHARED = RELEASES[1:]

_RELEASE_SOURCE = {
    "honaker": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the prefixes alone of "
    "the binary tree (Honaker 2015, online estimator), whitened",
    "toeplitz": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the square-root "
    "Toeplitz factor (Fichtenberger, Henzinger & Upadhyay 2023); adaptive inputs: Denisov et al. "
    "2022, Theorem 2.1",
    "buffered": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of a buffered linear "
    "Toeplitz factor (Dvijotham et al. 2024), of the coefficients that run; adaptive inputs: "
    "Denisov et al. 2022, Theorem 2.1",
    "factorised": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of an optimal lower "
    "triangular factor of prefix sums (Denisov et al. 2022, Theorem 2.1)",
}


def calibrate_release(
    release: str,
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    factor: Factor | None = None,
    centred: Centred | None = None,
) -> GaussianRelease:
    """Return a continual release with the least noise that meets a budget.

    Parameters
    ----------
    release : {"honaker", "toeplitz", "factorised", "buffered"}
        The release type; see `GaussianRelease`.
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    releases : int
        K >= 0, the number of releases.
    calibration : {"exact"}
        The only choice, since no paper states other constants for these release types. noise_std =
        sqrt(q) D / mu_of(epsilon, delta). D is the joint sensitivity of the sums of x y and x x^T
        to one record, and q the squared sensitivity of the release. For "honaker" q =
        `honaker_sensitivity_squared` (0.84 to 1 times floor(log2(releases)) + 1). For "toeplitz"
        q = S_K = sum_{k<K} f_k^2 with the `toeplitz_coefficients` f_k. For "factorised" q is the
        largest squared norm of a column of C = `Factor.encoder`.
    layout : {"iid", "goe1", "goe2"}, optional
        Layout of the noise in the sum of x x^T. Default "goe2".
    covariance_ratio : float
        The parameter of the layout of the noise in x x^T, divided by the noise std in x y.
    returning : int
        The largest number of batches of one user. If it is above 1, q is the largest squared
        sensitivity to that number of leaves, or for "honaker" and "factorised" an upper bound
        (`participation.max_squared_sensitivity`, `Factor.squared_sensitivity`).
    factor : Factor, optional
        The matrix factor for "factorised". Default: the optimal factor of equal batches.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes.

    Returns
    -------
    GaussianRelease
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a calibration other than "exact", for delta = 0, and for the unit "silo" (the account
        is for one user's records).
    """
    choice("release", release, SHARED)
    releases = integer("releases", releases, at_least=0)
    choice("calibration", calibration, CALIBRATIONS)
    if layout:
        choice("layout", layout, LAYOUTS)
    covariance_ratio = number("covariance_ratio", covariance_ratio, above=0)
    check_gaussian_budget(budget)
    returning = integer("returning", returning, at_least=1)
    if release == "factorised" and factor is None:
        factor = optimal_factor(tuple(range(1, releases + 1)), max(releases, 1))
    check_factor(release, releases, factor)
    return release_for(
        release, budget, releases, calibration, layout, covariance_ratio, returning, factor, centred
    )


def release_for(
    release: str,
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    returning: int = 1,
    factor: Factor | None = None,
    centred: Centred | None = None,
) -> GaussianRelease:
    """Return the result of `calibrate_release` or, for release "tree", of `calibrate_tree`.

    Types and ranges of the arguments are not checked. Raises InputError for a release other than
    "tree" with a calibration other than "exact".
    """
    if release == "tree":
        return tree_for(budget, releases, calibration, layout, covariance_ratio, returning, centred)
    if calibration != "exact":
        raise InputError(
            f'calibration must be "exact" when release is "{release}", got "{calibration}"'
        )
    layout = layout or "goe2"
    noise_std = exact_std(
        budget, release, releases, layout, covariance_ratio, returning, factor, centred
    )
    source = _RELEASE_SOURCE[release]
    return GaussianRelease(
        releases,
        layout,
        noise_std,
        calibration,
        budget,
        source,
        covariance_ratio,
        release,
        returning,
        factor,
        centred,
    )


# ---- the privatizer of FedUCB --------------------------------------------------------------------

PRIVATIZER_CALIBRATIONS = ("exact", "theorem")
_LAYOUT = "goe2"
_PRIVATIZER_SOURCE = {
    "exact": "exact Gaussian accounting (Balle & Wang 2018, Theorem 8) of the privatizer "
    "(dubey-pentland-2020, Algorithm 2)",
    "theorem": "dubey-pentland-2020, Algorithm 2 and Proposition 3, logarithm read as log2",
}


class Privatizer(GaussianTree, frozen=True):
    """The privatizer of FedUCB (dubey-pentland-2020, Algorithm 2).

    It releases prefix sums of [x; y][x; y]^T from a tree, as (d + 1) x (d + 1) matrices with noise
    of layout goe2. The last entry, sum y^2, is never released, so the released entries are those of
    a `GaussianTree` with covariance_ratio 1. Parameters and guarantee are those of
    `GaussianRelease`, if the schedule of synchronisations does not depend on raw data.

    If ``schedule_rounds`` > 0, the schedule depends on data through noisy prefix sums of x x^T from
    a second tree. Its leaves are single rounds, a new tree starts after each synchronisation, and
    nodes have noise of layout goe2 with parameter ``schedule_std`` (zhou-chowdhury-2024, Appendix
    D.2). A record then also enters at most depth(schedule_rounds) nodes of the second tree,
    whatever the times of synchronisation. All of these nodes are released before the record's nodes
    of the first tree. Empty releases fill both trees to a fixed number of nodes. By adaptive
    composition both trees together are one Gaussian mechanism, although the leaves of the first
    tree depend on data.

    ``silos_met`` is the largest number of silos that one user visits, once each
    (dubey-pentland-2020, footnote 4).
    """

    schedule_std: float = 0.0
    schedule_rounds: int = 0
    silos_met: int = 1

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of all releases about one user.

        A private schedule's noisy sums, with ``schedule_rounds`` > 0, are included. The result is
        the mu of one silo times sqrt(silos_met), since silos add independent noise (Dong,
        Roth and Su 2022, Corollary 3.3). This also holds if actions of later silos depend on
        releases of earlier silos.
        """
        mu = GaussianTree.mu(self, relation)
        if self.schedule_rounds:
            covariance_sensitivity = _covariance_sensitivity(named_relation(relation, self.budget))
            nodes_per_record = tree_levels(self.schedule_rounds)
            mu = math.hypot(
                mu, math.sqrt(nodes_per_record) * covariance_sensitivity / self.schedule_std
            )
        return math.sqrt(self.silos_met) * mu

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the standard deviation of each stream, as the certificate lists it."""
        stds = dict(super().noise_stds)
        if self.schedule_rounds:
            stds["schedule"] = self.schedule_std
        return stds

    @property
    def remark(self) -> str:
        """Return "": there is no remark, because both calibrations are accounted for exactly."""
        return ""


def privatizer_levels(releases: int) -> int:
    """Return m = 1 + ceil(log2 n), the paper's number of tree levels for n = ``releases`` leaves.

    Source: dubey-pentland-2020, Algorithm 2, line 2; the paper's log is log2 (Section 4.3). One
    leaf enters at most `depth` = floor(log2 n) + 1 nodes of the tree. m is at least this number, so
    noise calibrated to m is enough.
    """
    return 1 + (integer("releases", releases, at_least=1) - 1).bit_length()


def node_noise_std(
    epsilon: float, delta: float, releases: int, *, feature_bound: float = 1.0
) -> float:
    """Return the noise std s of a tree node in dubey-pentland-2020, Algorithm 2, line 5.

    s = 4 sqrt(m) (L^2 + 1) ln(2/delta) / epsilon, with m = `privatizer_levels` and L the
    ``feature_bound``. It is the std off the diagonal; on the diagonal the std is sqrt(2) s
    (layout "goe2").

    Guarantee: all messages of one silo together are (epsilon, delta)-DP for replacement of one
    realised (x, y) with ||x|| <= L and |y| <= 1. This holds under two conditions: the schedule
    reads no raw data, and epsilon <= 8 l (4 l - sqrt(2 l)), where l = ln(2/delta).

    Proof: with noise of std s, the GDP parameter of one record in one node is at most
    (L^2 + 1) / s. A record enters at most m nodes, so all nodes together have mu <=
    sqrt(m) (L^2 + 1) / s = epsilon / (4 l). The privacy loss exceeds epsilon with probability at
    most exp(-(epsilon / mu - mu / 2)^2 / 2), which is at most e^-l = delta / 2 under the condition
    on epsilon.

    The paper's derivation, with delta / 2m per node, would need ln(2.5 m/delta) instead of l.
    Although l is smaller, s is many times the least noise that meets the budget.
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    bound = number("feature_bound", feature_bound, above=0)
    m = privatizer_levels(releases)
    log_delta = math.log(2.0) - math.log(delta)
    return 4.0 * math.sqrt(m) * (bound * bound + 1.0) * log_delta / epsilon


def calibrate_privatizer(
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    *,
    schedule_rounds: int = 0,
    silos_met: int = 1,
) -> Privatizer:
    """Calibrate the privatizer, the noise of one FedUCB silo, to a budget.

    Parameters
    ----------
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    releases : int
        n, the number of releases. If the data decide when a silo synchronises, pass T, the number
        of rounds.
    calibration : {"exact", "theorem"}
        "theorem" takes the noise of `node_noise_std`, and "exact" the least noise that meets the
        budget.
    schedule_rounds : int
        Number of rounds, if noisy sums of a second tree decide the schedule (`Privatizer`), else 0.
        A number above 0 needs calibration "exact", since no paper says how to share the budget.
        Here schedule and released sums share it evenly: each gets half of mu^2, where mu is the GDP
        parameter of the budget.
    silos_met : int
        The largest number of silos that one user visits, once each. Above 1 it needs calibration
        "exact".

    Returns
    -------
    Privatizer
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", and for a calibration that is not allowed here.
    """
    choice(
        "calibration",
        calibration,
        ("exact",) if schedule_rounds or silos_met > 1 else PRIVATIZER_CALIBRATIONS,
    )
    releases = integer("releases", releases, at_least=0)
    check_gaussian_budget(budget)
    schedule_std = 0.0
    if not releases:
        std = 0.0
    elif calibration == "theorem":
        std = node_noise_std(budget.epsilon, budget.delta, releases)
    else:
        std = exact_std(budget, "tree", releases, _LAYOUT)
        if schedule_rounds:
            # Half of mu^2 is for the schedule, so both noises grow by sqrt(2).
            std *= math.sqrt(2.0)
            covariance_sensitivity = _covariance_sensitivity(budget.relation)
            nodes_per_record = tree_levels(schedule_rounds)
            schedule_std = (
                math.sqrt(2.0 * nodes_per_record)
                * covariance_sensitivity
                / gaussian_mu(budget.epsilon, budget.delta)
            )
    # The silos' mechanisms compose, so each may have the budget's mu divided by sqrt(silos_met).
    sqrt_silos = math.sqrt(integer("silos_met", silos_met, at_least=1))
    std, schedule_std = sqrt_silos * std, sqrt_silos * schedule_std
    return Privatizer(
        releases,
        _LAYOUT,
        std,
        calibration,
        budget,
        _PRIVATIZER_SOURCE[calibration],
        schedule_std=schedule_std,
        schedule_rounds=schedule_rounds,
        silos_met=silos_met,
    )


def _covariance_sensitivity(relation: str) -> float:
    """Return the sensitivity of the sum of x x^T to one record, in units of its noise.

    It is the GDP parameter mu of the sum with noise of layout goe2 and parameter 1: 1 for
    "replace", and 1/sqrt 2 for "zero-out".
    """
    return joint_sensitivity(relation, _LAYOUT, bias_std=math.inf)
