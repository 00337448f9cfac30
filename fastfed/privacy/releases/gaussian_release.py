"""Gaussian noise on running sums, calibrated: tree, Honaker's estimator, Toeplitz, other factors.

A mechanism and its accounting are one object: whatever formula chose the noise, its privacy is
computed from the noise itself.
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
    LAYOUTS,
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
#: How the noise of prefix sums is made; the same order stands in src/ff_run.h.
RELEASES = ("tree", "honaker", "toeplitz", "factorised", "buffered")


class GaussianRelease(msgspec.Struct, frozen=True):
    """Continual release of two streams, x y and x x^T, with Gaussian noise.

    Parameters
    ----------
    releases : int
        Number of releases, K = T / B; 0 releases nothing and costs nothing.
    layout : {"iid", "goe1", "goe2"}
        Layout of each symmetric noise matrix.
    noise_std : float
        Standard deviation of each bias entry of each independent noise vector, in the units of the
        sums.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose the noise.
    budget : Budget
        The budget that was asked for.
    source : str
        Author-year of the rule.
    covariance_ratio : float
        r > 0: the layout's parameter for the covariance stream is r noise_std.
    release : {"tree", "honaker", "toeplitz", "factorised", "buffered"}
        The noise of prefix sums: a noise vector for each released p-sum, for each node of the
        binary tree, or for each step. "tree" releases the noisy p-sums, the others the noisy
        prefix sums alone.
    returning : int
        M0, the most batches that one user takes part in, at most once in each and at times that do
        not depend on what was released.
    factor : Factor, optional
        Of release "factorised".
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user's records (x, y), ||x||_2 <= 1 and |y| <= 1, entering one leaf each,
    `returning` leaves at most, everything released of both streams together is one Gaussian
    mechanism of GDP parameter mu(relation), also when later leaves are chosen in view of earlier
    releases (by adaptive composition of the releases, "honaker": each given all before it;
    "toeplitz", "factorised", "buffered": since the factor is lower triangular, Denisov et al. 2022,
    Theorem 2.1).
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
        """Check every field."""
        check_factor(self.release, self.releases, self.factor)
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
        return squared_of(self.release, self.releases, self.returning, self.factor)

    @property
    def variance_factors(self) -> np.ndarray:
        """Variance of the noise in prefix k = 0..K, in units of one noise entry's, (K + 1,).

        The same for every entry of both streams. It increases in k for "toeplitz" and "buffered".
        """
        if self.release == "toeplitz":
            return np.concatenate([np.zeros(1), toeplitz_prefix_variances(self.releases)])
        if self.release == "buffered":
            return np.concatenate([np.zeros(1), buffered_prefix_variances(self.releases)])
        if self.factor is not None:
            return np.concatenate([np.zeros(1), self.factor.variances])
        factor = honaker_prefix_variance if self.release == "honaker" else int.bit_count
        return np.array([factor(k) for k in range(self.releases + 1)], dtype=np.float64)

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of bias, off-diagonal and diagonal entries of one noise vector."""
        return (
            self.noise_std,
            *stds_of_layout(self.layout, self.covariance_ratio * self.noise_std),
        )

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one noise vector, as a certificate lists them."""
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, self.stds, strict=True))

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of everything released: sqrt(sensitivity_squared) joint / std."""
        relation = named_relation(relation, self.budget)
        if self.releases == 0:
            return 0.0
        stds = self.noise_std, self.covariance_ratio * self.noise_std
        joint = record_sensitivity(relation, self.layout, *stds, self.centred)
        return math.sqrt(self.sensitivity_squared) * joint

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon of everything released, at delta (default: the budget's)."""
        return gaussian_epsilon(self.mu(relation), named_delta(delta, self.budget))

    @property
    def remark(self) -> str:
        """A remark on the rule that chose the noise, if it says less than the account.

        The proof of Theorem 5.1 covers zero-out neighbours only; under replacement its noise
        suffices by slack for all but extreme budgets, so it is checked rather than quoted. It
        covers one batch of a user; the factor for more is that of chowdhury-zhou-2022, Proposition
        E.7.
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
        """The claim under the budget's relation, by exact accounting.

        One computed condition for every calibration, and what users of several batches take on
        trust.
        """
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, self.exact(), note=note)
        return [*participation_conditions(self.returning), claim]


def check_factor(release: str, releases: int, factor: Factor | None) -> None:
    """Refuse a factor of another release, or of another number of them. Raises InputError."""
    if (release == "factorised") != (factor is not None):
        raise InputError(
            f'factor belongs to release "factorised" alone, got release "{release}" '
            f"{'with' if factor is not None else 'without'} one"
        )
    if factor is not None and len(factor) != releases:
        raise InputError(f"factor must be of {releases} releases, got {len(factor)}")


def record_sensitivity(
    relation: str, layout: str, bias_std: float, covariance_std: float, centred: Centred | None
) -> float:
    """Joint sensitivity of one record in units of the noise, for arguments checked before."""
    if centred is not None:
        return centred.joint(relation, layout, bias_std, covariance_std)
    return joint_sensitivity(relation, layout, bias_std=bias_std, cov_std=covariance_std)


def squared_of(release: str, releases: int, returning: int, factor: Factor | None = None) -> float:
    """Squared sensitivity of a whole release to one user, for arguments checked before."""
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
    """Compute the least noise_std that truly gives the budget: sqrt(q) D / mu_of(budget).

    q: the squared sensitivity of the release (`participation.max_squared_sensitivity`). D: the
    joint sensitivity of one record in both streams, the covariance stream's noise being
    covariance_ratio times the bias stream's. Other arguments as in `GaussianRelease`; all must
    have been checked.
    """
    joint = record_sensitivity(budget.relation, layout, 1.0, covariance_ratio, centred)
    leaf = squared_of(release, releases, returning, factor)
    return math.sqrt(leaf) * joint / gaussian_mu(budget.epsilon, budget.delta)


def layout_of(calibration: str, layout: str | None) -> str:
    """Layout of the noise matrix: free for "exact", each other calibration's own."""
    choice("calibration", calibration, CALIBRATIONS)
    return fitting_layout(calibration, choice("layout", layout, LAYOUTS) if layout else None)


def fitting_layout(calibration: str, layout: str | None) -> str:
    """Compute `layout_of` for arguments that were checked before, each for itself."""
    usual = _USUAL_LAYOUT[calibration]
    layout = layout or usual
    if calibration != "exact" and layout != usual:
        raise InputError(
            f'layout must be "{usual}" when calibration is "{calibration}", got "{layout}"'
        )
    return layout


def check_single_participation(calibration: str, returning: int) -> None:
    """Refuse several batches of a user where the calibration knows none."""
    if returning != 1:
        raise InputError(
            f'returning must be 1 when calibration is "{calibration}", got {returning}'
        )


def check_exact_ratio(calibration: str, covariance_ratio: float) -> None:
    """Refuse a ratio that no paper's constants are made for. Raises InputError."""
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
    """The p-sum tree over two streams with Gaussian noise on every released node.

    Parameters
    ----------
    releases, layout, noise_std, calibration, budget, source, covariance_ratio, returning, centred
        See `GaussianRelease`, also for errors; ``noise_std`` is that of a bias entry of one node.
    release, factor
        Left at "tree" and None.

    Notes
    -----
    Guarantee: that of `GaussianRelease`, for all released nodes together, against everybody who
    sees them; a record enters kappa nodes at most. Prefix sums made from the nodes are
    post-processing. Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2.
    """

    @property
    def depth(self) -> int:
        """kappa, the largest number of nodes that one record enters."""
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
    """Calibrate the tree mechanism to a budget, with kappa = floor(log2(releases)) + 1.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        K >= 0.
    calibration : {"exact", "theorem", "published-code"}
        "exact": s = sqrt(kappa) D / mu_of(epsilon, delta), the least noise that truly gives the
        budget (D the joint sensitivity of one record under the budget's relation and the layout);
        with returning = M0 > 1 the largest sum of squares of M0 leaves stands for kappa, see
        `fastfed.privacy.releases.participation.max_squared_sensitivity`.
        "theorem": s^2 = 8 kappa (ln(2/delta) + epsilon) / epsilon^2 (zhou-chowdhury-2024, Theorem
        5.1), times M0^2 (chowdhury-zhou-2022, Proposition E.7), M0 <= releases.
        "published-code": s = sqrt(kappa (ln(1/delta) + epsilon)) / epsilon, the constants with
        which the paper's figures were drawn; it often does not give the budget, see conditions().
    layout : {"iid", "goe1", "goe2"}, optional
        Free for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    covariance_ratio : float
        Free for "exact", else 1; see `GaussianRelease`.
    returning : int
        M0, the most batches of one user; 1 for "published-code".
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code; only "exact" uses them.

    Returns
    -------
    GaussianTree

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo" (this accounts for one user's records), and for a layout,
        ratio or returning that belongs to another calibration.
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
    """Compute `calibrate_tree` for arguments that were checked before, each for itself.

    Raises InputError where a layout, ratio or returning belongs to another calibration.
    """
    layout = fitting_layout(calibration, layout)
    check_exact_ratio(calibration, covariance_ratio)
    if calibration == "published-code":
        check_single_participation(calibration, returning)
    epsilon, delta = budget.epsilon, budget.delta
    kappa = tree_levels(releases)
    if kappa == 0:
        s = 0.0
    elif calibration == "exact":
        s = exact_std(
            budget, "tree", releases, layout, covariance_ratio, returning, centred=centred
        )
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
        centred=centred,
    )


# ---- less noise than the tree: Honaker's estimator and square-root Toeplitz noise ----------------
# Not for shuffled protocols: there a node's noise is added in parts, by users who share none of it,
# while here the noise of one step reappears in later ones.


#: Releases whose noise is shared between prefixes in another way than the tree's.
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
    """Calibrate a continual release to a budget: the least noise that truly gives it.

    Parameters
    ----------
    release : {"honaker", "toeplitz", "factorised", "buffered"}
        How noise is shared between prefixes.
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        K >= 0.
    calibration : {"exact"}
        No paper states other constants for these releases. noise_std = sqrt(q) D / mu_of(epsilon,
        delta), with q = `honaker_sensitivity_squared` for "honaker" (0.84 to 1 times
        floor(log2(releases)) + 1) and S_K = sum_{k<K} f_k^2 for "toeplitz", and D the joint
        sensitivity of one record in both streams; for "factorised" q is the largest squared norm
        of a column of the factor's C.
    layout : {"iid", "goe1", "goe2"}, optional
        Default "goe2".
    covariance_ratio : float
        Noise of the covariance stream over that of the bias stream.
    returning : int
        The most batches of one user; if more than 1, q is the largest squared sensitivity to that
        many leaves, or for "honaker" and "factorised" a bound on it
        (`participation.max_squared_sensitivity`, `Factor.squared_sensitivity`).
    factor : Factor, optional
        Of "factorised"; by default the optimal one of equal batches.
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code.

    Returns
    -------
    GaussianRelease

    Raises
    ------
    InputError
        For another calibration, for delta = 0, and for the unit "silo" (this accounts for one
        user's records).
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
    """Compute `calibrate_release` for arguments that were checked before, each for itself.

    Raises InputError for another calibration than "exact".
    """
    if calibration != "exact":
        raise InputError(
            f'calibration must be "exact" when release is "{release}", got "{calibration}"'
        )
    layout = layout or "goe2"
    s = exact_std(budget, release, releases, layout, covariance_ratio, returning, factor, centred)
    source = _RELEASE_SOURCE[release]
    return GaussianRelease(
        releases,
        layout,
        s,
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

    It releases prefix sums of [x; y][x; y]^T from a tree. Its matrices are (d + 1) x (d + 1), with
    noise of layout goe2. The last entry, sum y^2, is never released, so the rest is the tree of two
    streams with one noise for both. Parameters and guarantee are those of `GaussianRelease`, over a
    schedule that reads no raw data.

    Where ``schedule_rounds`` > 0 the schedule reads the data through noisy prefix sums of its own:
    of x x^T alone, one leaf a round, a new tree after each synchronisation, node noise goe2 of
    ``schedule_std`` (zhou-chowdhury-2024, Appendix D.2). A record then enters
    depth(schedule_rounds) of those nodes at most as well, however the rounds fall, all of them
    before its nodes of the sums. Filled up with empty releases both numbers are fixed, so both are
    one Gaussian mechanism by adaptive composition, although the data choose the leaves.

    ``silos_met`` silos meet one user, once each (dubey-pentland-2020, footnote 4).
    """

    schedule_std: float = 0.0
    schedule_rounds: int = 0
    silos_met: int = 1

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of all releases for one user, the schedule's sums included.

        One silo's mu times sqrt(silos_met): silos have noise of their own (Dong, Roth and Su 2022,
        Corollary 3.3; also where later silos act on what earlier ones released).
        """
        own = GaussianTree.mu(self, relation)
        if self.schedule_rounds:
            moved = _covariance_sensitivity(named_relation(relation, self.budget))
            nodes = tree_levels(self.schedule_rounds)
            own = math.hypot(own, math.sqrt(nodes) * moved / self.schedule_std)
        return math.sqrt(self.silos_met) * own

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream, as a certificate lists them."""
        stds = dict(super().noise_stds)
        if self.schedule_rounds:
            stds["schedule"] = self.schedule_std
        return stds

    @property
    def remark(self) -> str:
        """No remark: both calibrations are accounted for as they are."""
        return ""


def privatizer_levels(releases: int) -> int:
    """Compute m = 1 + ceil(log2 n), dubey-pentland-2020, Algorithm 2, line 2.

    Its log is log2 (Section 4.3). Never below the floor(log2 n) + 1 releases that one leaf touches
    (`depth`), so noise calibrated to m is enough.
    """
    return 1 + (integer("releases", releases, at_least=1) - 1).bit_length()


def node_noise_std(
    epsilon: float, delta: float, releases: int, *, feature_bound: float = 1.0
) -> float:
    """Compute s_N of dubey-pentland-2020, Algorithm 2, line 5.

    4 sqrt(m) (L^2 + 1) ln(2/delta) / epsilon: the std off the diagonal of a node's (N + N')/sqrt 2
    (layout goe2); on it sqrt 2 s_N.

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
    budget: Budget,
    releases: int,
    calibration: str = "exact",
    *,
    schedule_rounds: int = 0,
    silos_met: int = 1,
) -> Privatizer:
    """Calibrate the privatizer to a budget and n = ``releases``.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        n: T where the data decide the schedule.
    calibration : {"exact", "theorem"}
        "theorem": `node_noise_std`. "exact": the least noise that truly gives the budget.
    schedule_rounds : int
        Rounds of a private schedule, 0 for none; it and the sums then share the budget evenly
        (mu^2 / 2 each), which no paper settles, so "exact" only.
    silos_met : int
        The most silos that meet one user, once each; above 1 "exact" only.

    Returns
    -------
    Privatizer

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", and for another calibration.
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
            std *= math.sqrt(2.0)
            moved = _covariance_sensitivity(budget.relation)
            nodes = tree_levels(schedule_rounds)
            schedule_std = (
                math.sqrt(2.0 * nodes) * moved / gaussian_mu(budget.epsilon, budget.delta)
            )
    # Each silo's mu is the budget's over sqrt(silos_met).
    met = math.sqrt(integer("silos_met", silos_met, at_least=1))
    std, schedule_std = met * std, met * schedule_std
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
    """Sensitivity of sum x x^T alone in goe2 noise: 1, or 1/sqrt 2 for zero-out."""
    return joint_sensitivity(relation, _LAYOUT, bias_std=math.inf)
