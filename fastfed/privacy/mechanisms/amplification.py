"""Amplification by shuffling silos' messages (zhou-chowdhury-2024, Lemma F.2, Theorem 5.3).

Each message is a noisy p-sum: the sum of a silo's records below one node of the tree. A shuffler
between silos and server can only improve privacy. So two guarantees hold: that of Lemma F.2, and
that of silo-level local DP (LDP) with the same noise. The reported epsilon is the smaller of the
two.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from fastfed._roots import brentq
from fastfed._validate import InputError, choice, integer, number
from fastfed.privacy.certificate import Condition, noise_claim
from fastfed.privacy.releases.gaussian_release import (
    GaussianTree,
    check_single_participation,
    exact_std,
    layout_of,
)
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.releases.prefix_sums import depth
from fastfed.privacy.sensitivity import (
    LAYOUTS,
    Budget,
    joint_sensitivity,
    named_delta,
    named_relation,
    sum_sensitivity,
)

_SOURCE = {
    "exact": "the less noise of exact silo-level LDP accounting (Balle & Wang 2018, Theorem 8) and "
    "zhou-chowdhury-2024, Lemma F.2, solved for the noise",
    "theorem": "zhou-chowdhury-2024, Theorem 5.3, its unnamed constants taken as 1, logarithm read "
    "as log2",
    "published-code": "constants of the published experiment code of zhou-chowdhury-2024",
}
_RETURNING = (
    "exact silo-level LDP accounting (Balle & Wang 2018, Theorem 8) of all records of a user"
)
# The inner delta, a free parameter of Lemma F.2, is chosen on grids of 32 points. The first grid
# covers all useful values, and each of the next two grids is around the best point of the grid
# before it.
_GRID_POINTS, _REFINEMENTS = 32, 3
# The inner delta may use at most one of these shares of delta. All shares are tried.
_INNER_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)


class Amplified(NamedTuple):
    """The (epsilon, delta) of Lemma F.2, and whether the lemma's condition holds.

    If ``holds`` is false, nothing is proven.
    """

    epsilon: float
    delta: float
    holds: bool


def amplified(
    epsilon0: float, delta0: float, points: float, silos: int, inner_delta: float
) -> Amplified:
    """Return the guarantee of Lemma F.2 for the shuffled messages of silos.

    Each silo has n = ``points`` points. The local mechanism, which makes a silo's message, is
    Gaussian and (epsilon0, delta0)-private. With N = ``silos``,
    epsilon = ln(1 + tanh(epsilon0/2) (8 sqrt(e^{n epsilon0} ln(4/inner)/N) + 8 e^{n epsilon0}/N)),
    delta = tanh(epsilon0/2) inner + N (e^epsilon + 1) (1 + e^{-epsilon0}/2) delta0,
    under the conditions epsilon0 <= ln(N / (16 ln(2/inner))) / n and epsilon0 < 1. Here inner is
    ``inner_delta``, a free parameter in (0, 1].

    The lemma needs a local mechanism that is (n epsilon0, delta0)-private, with the same delta0,
    between any two datasets of n points. Let one record change the sum by at most D. Noise of the
    classical std D sqrt(2 ln(1.25/delta0)) / epsilon0 meets this need for n epsilon0 <= 1; noise of
    exact calibration does not. n >= 1 is the distance of two datasets in units of D, and need not
    be an integer. Where e^{n epsilon0} would overflow, epsilon and delta are infinite.
    """
    epsilon0 = number("epsilon0", epsilon0, above=0)
    delta0 = number("delta0", delta0, at_least=0, below=1)
    n = number("points", points, at_least=1)
    silos = integer("silos", silos, at_least=1)
    inner_delta = number("inner_delta", inner_delta, above=0, at_most=1)
    condition_holds = n * epsilon0 <= _epsilon0_limit(silos, inner_delta) and epsilon0 < 1.0
    if n * epsilon0 > 700.0:
        return Amplified(math.inf, math.inf, False)
    epsilon = _amplified_epsilon(epsilon0, n, silos, inner_delta)
    delta = math.tanh(epsilon0 / 2.0) * inner_delta
    delta += silos * (math.exp(epsilon) + 1.0) * (1.0 + math.exp(-epsilon0) / 2.0) * delta0
    return Amplified(epsilon, delta, condition_holds)


def _epsilon0_limit(silos: int, inner_delta: float) -> float:
    """Return the largest n epsilon0 that Lemma F.2 allows. It is at most 0 if none is allowed.

    Here n is the number of points of a silo, see `amplified`.
    """
    return math.log(silos) - math.log(16.0 * (math.log(2.0) - math.log(inner_delta)))


def _amplified_epsilon(epsilon0: float, n: float, silos: int, inner_delta: float) -> float:
    """Return the epsilon of Lemma F.2 for silos of n points each, see `amplified`."""
    log_term = math.log(4.0) - math.log(inner_delta)
    ratio = math.exp(n * epsilon0) / silos
    return math.log1p(math.tanh(epsilon0 / 2.0) * 8.0 * (math.sqrt(ratio * log_term) + ratio))


def amplified_std(
    epsilon: float, delta: float, points: float, silos: int, sensitivity: float = 2.0
) -> float | None:
    """Return the least noise std with which Lemma F.2 proves (epsilon, delta) for a shuffled p-sum.

    ``sensitivity`` is the largest change of the p-sum by one record. The p-sums of any two datasets
    of a silo differ by at most n ``sensitivity``, with n = ``points`` >= 1. For each value of the
    inner delta, the lemma is solved for epsilon0 and then for delta0, and the value with the least
    noise is used. The result is noise_std = sensitivity sqrt(2 ln(1.25/delta0)) / epsilon0, subject
    to n epsilon0 <= 1 (see `amplified`). It is None if there are too few silos: the lemma needs
    silos > 16 ln(2/inner delta), so at least 12.
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    n = number("points", points, at_least=1)
    silos = integer("silos", silos, at_least=1)
    sensitivity = number("sensitivity", sensitivity, above=0)
    if _epsilon0_limit(silos, 1.0) <= 0.0:
        return None

    # The lemma's condition needs ln(2/inner) < silos/16. An inner delta below 1e-300 is not useful.
    low, high = max(math.log(2.0) - silos / 16.0, -690.0), 0.0
    least_std = math.inf
    for _ in range(_REFINEMENTS):
        grid = [low + (high - low) * i / (_GRID_POINTS - 1) for i in range(_GRID_POINTS)]
        values = [_unit_std(epsilon, delta, n, silos, math.exp(x)) for x in grid]
        best_index = min(range(_GRID_POINTS), key=values.__getitem__)
        least_std = min(least_std, values[best_index])
        low, high = grid[max(best_index - 1, 0)], grid[min(best_index + 1, _GRID_POINTS - 1)]
    return sensitivity * least_std if least_std < math.inf else None


@lru_cache(8192)
def _unit_std(epsilon: float, delta: float, n: float, silos: int, inner: float) -> float:
    """Return noise_std / sensitivity of `amplified_std` for one value of the inner delta.

    ``n`` is the argument ``points`` there, and ``inner`` the inner delta. The result is infinite if
    Lemma F.2 proves nothing.
    """
    # Find the largest epsilon0 whose amplified epsilon is within the budget.
    high = min(_epsilon0_limit(silos, inner), 1.0) / n
    if high <= 0.0:
        return math.inf
    high = min(high, math.nextafter(1.0, 0.0))
    if _amplified_epsilon(high, n, silos, inner) > epsilon:
        high = float(
            brentq(
                lambda e: _amplified_epsilon(e, n, silos, inner) - epsilon * (1.0 - 1e-12),
                0.0,
                high,
                xtol=1e-300,
                rtol=1e-14,
                maxiter=2000,
            )
        )
    least_std = math.inf
    for share in _INNER_SHARES:
        # The inner delta may use at most this share of delta; the rest is for delta0.
        epsilon0 = high
        if math.tanh(high / 2.0) * inner > share * delta:
            epsilon0 = 2.0 * math.atanh(share * delta / inner)
        reached_epsilon = _amplified_epsilon(epsilon0, n, silos, inner)
        remaining_delta = delta - math.tanh(epsilon0 / 2.0) * inner
        delta0 = remaining_delta / (
            silos * (math.exp(reached_epsilon) + 1.0) * (1.0 + math.exp(-epsilon0) / 2.0)
        )
        if delta0 > 0.0:
            least_std = min(
                least_std, math.sqrt(2.0 * (math.log(1.25) - math.log(delta0))) / epsilon0
            )
    return least_std


def amplified_tree_std(
    budget: Budget,
    releases: int,
    silos: int,
    batch_size: int,
    layout: str = "goe2",
    covariance_ratio: float = 1.0,
) -> float | None:
    """Return the least noise_std of the shuffled p-sum tree for which Lemma F.2 proves the budget.

    A message is the noisy p-sum of one node, with the sums of x y and of x x^T, and is shuffled as
    a whole. So it is one Gaussian mechanism on at most n = batch_size 2^(kappa - 1) records of a
    silo. One record changes the p-sum by at most D, the joint sensitivity under the budget's
    relation. The p-sums of two datasets of n records differ by at most n times the joint
    sensitivity under "replace". A record enters kappa messages, each shuffled with the other silos'
    messages of its release.

    A second account treats each message as two messages, one for each sum. There are then 2 kappa
    messages, and the sums of two datasets differ by at most 2 n. In layouts "iid" and "goe1" this
    account may need less noise. The smaller noise is returned.

    Each of q messages gets (epsilon/q, delta/q) by basic composition, or
    epsilon/(2 sqrt(2 q ln(2/delta))) and delta/(2 q) by advanced composition, whichever needs less
    noise. The noise of the top level is used for all levels, since more records need more noise.
    The result is 0 if nothing is released, and None if the lemma proves nothing for this number of
    silos.
    """
    kappa = depth(releases)
    silos = integer("silos", silos, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    choice("layout", layout, LAYOUTS)
    number("delta", budget.delta, above=0, below=1)
    if kappa == 0:
        return 0.0
    points = batch_size << (kappa - 1)
    record_sensitivity = joint_sensitivity(budget.relation, layout, cov_std=covariance_ratio)
    dataset_distance = points * joint_sensitivity("replace", layout, cov_std=covariance_ratio)
    candidates = [_composed_std(budget, kappa, dataset_distance, silos, record_sensitivity)]
    # In layout goe2, whole messages of two datasets differ by at most 2 n, too, so the first
    # account is better. With covariance_ratio < 1, the sums of x x^T alone might differ by more
    # than 2 n, in units of their noise.
    if layout != "goe2" and covariance_ratio >= 1.0:
        single_stream_sensitivity = sum_sensitivity(budget.relation)
        candidates.append(
            _composed_std(budget, 2 * kappa, 2.0 * points, silos, single_stream_sensitivity)
        )
    return min((s for s in candidates if s is not None), default=None)


def _composed_std(
    budget: Budget, message_count: int, dataset_distance: float, silos: int, sensitivity: float
) -> float | None:
    """Return the least noise_std with which Lemma F.2 proves a budget for several messages.

    A record enters ``message_count`` messages. ``dataset_distance`` is the largest difference of
    one message between two datasets, and ``sensitivity`` the largest change of one message by one
    record. Return None if the lemma proves nothing.
    """
    epsilon, delta = budget.epsilon, budget.delta
    log_term = math.log(2.0) - math.log(delta)
    # The (epsilon, delta) of one message: by basic composition, and by advanced composition.
    shares = [(epsilon / message_count, delta / message_count)]
    # Advanced composition of q messages of epsilon e gives q e tanh(e/2) + e sqrt(2 q ln(2/delta))
    # (Kairouz, Oh & Viswanath 2015, Theorem 3.4, with slack delta / 2). With the e below, the
    # second term is epsilon/2, and the first is at most epsilon/2 under this condition.
    if epsilon <= 8.0 * log_term:
        e = epsilon / (2.0 * math.sqrt(2.0 * message_count * log_term))
        shares.append((e, delta / (2.0 * message_count)))
    points = dataset_distance / sensitivity
    candidates = [amplified_std(e, d, points, silos, sensitivity) for e, d in shares]
    return min((s for s in candidates if s is not None), default=None)


def theorem_5_3_std(budget: Budget, releases: int, silos: int, horizon: int) -> float:
    """Return the noise std s of zhou-chowdhury-2024, Theorem 5.3, with constant 1 for its order.

    s^2 = 2 kappa ln(1/delta) ln(kappa/(delta T)) ln(M kappa/delta) / (epsilon^2 M), where kappa
    is the depth of the tree of ``releases`` releases, T = ``horizon`` the number of rounds of a
    silo, and M the number of ``silos``. s is 0 if nothing is released.

    Raises InputError for delta >= kappa / T, where the second logarithm is not positive.
    """
    kappa, silos, horizon, delta = _check_sizes(budget, releases, silos, horizon)
    if kappa == 0:
        return 0.0
    if delta >= kappa / horizon:
        raise InputError(
            f"delta must be < kappa / horizon = {kappa / horizon:.6g} in Theorem 5.3, got {delta:g}"
        )
    product = -math.log(delta) * math.log(kappa / delta / horizon) * math.log(silos * kappa / delta)
    return math.sqrt(2.0 * kappa * product / silos) / budget.epsilon


def published_shuffle_std(budget: Budget, releases: int, silos: int, horizon: int) -> float:
    """Return the noise std s of the published experiment code of zhou-chowdhury-2024.

    s^2 = kappa ln(1/delta) ln(1 + kappa/(T delta)) ln(M kappa/delta) / (epsilon^2 M), with the
    names of `theorem_5_3_std`. s is 0 if nothing is released.
    """
    kappa, silos, horizon, delta = _check_sizes(budget, releases, silos, horizon)
    if kappa == 0:
        return 0.0
    product = -math.log(delta) * math.log1p(kappa / delta / horizon)
    product *= math.log(silos * kappa / delta)
    return math.sqrt(kappa * product / silos) / budget.epsilon


def _check_sizes(
    budget: Budget, releases: int, silos: int, horizon: int
) -> tuple[int, int, int, float]:
    """Return (depth kappa of the tree, silos, horizon, delta), after a check of the arguments."""
    return (
        depth(releases),
        integer("silos", silos, at_least=1),
        integer("horizon", horizon, at_least=1),
        number("delta", budget.delta, above=0, below=1),
    )


#: The condition of Lemma F.2 about the other silos, besides the trusted shuffler.
HIDING = Condition(
    "all silos send the noisy sums of the plan, and none tells the server which sums are theirs "
    "(taken on trust)",
    True,
)


class AmplifiedTree(GaussianTree, frozen=True, kw_only=True):
    """The p-sum tree with Gaussian noise of every silo, and a shuffler between silos and server.

    Parameters
    ----------
    silos : int
        M, the number of silos.
    batch_size : int
        B, the number of points of a silo in one leaf.
    horizon : int
        T, the number of rounds of a silo. The other fields are those of `GaussianTree`.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for every observer of the shuffled messages, and for one record as in `GaussianTree`,
    the smaller epsilon of two accounts. One is silo-level LDP, which holds without the shuffler,
    and the other is Lemma F.2. With returning > 1 only silo-level LDP applies, because the lemma is
    about one record. Source: zhou-chowdhury-2024, Lemma F.2 and Theorem 5.3.
    """

    silos: int
    batch_size: int
    horizon: int

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        GaussianTree.__post_init__(self)
        integer("silos", self.silos, at_least=1)
        integer("batch_size", self.batch_size, at_least=1)
        integer("horizon", self.horizon, at_least=1)

    def ldp(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the exact epsilon of silo-level LDP, which holds without the shuffler."""
        return GaussianTree.exact(self, delta, relation)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon: the smaller of those of silo-level LDP and of Lemma F.2.

        The defaults of ``delta`` and ``relation`` are those of the budget. With returning > 1 the
        lemma does not apply, and the result is the epsilon of silo-level LDP.
        """
        relation = named_relation(relation, self.budget)
        delta = named_delta(delta, self.budget)
        proven = self.ldp(delta, relation)
        if proven == 0.0 or delta == 0.0 or self.returning > 1:
            return proven
        # If the lemma chose the noise, it proves exactly the budget's epsilon. Try this first.
        requested = min(proven, self.budget.epsilon)
        if self._lemma_covers(requested, delta, relation):
            proven = requested
        elif not self._lemma_covers(proven, delta, relation):
            return proven
        # Bisect on a logarithmic scale. In every step the lemma proves `proven`, but not `low`.
        low = proven / 2.0
        while low > 1e-300 and self._lemma_covers(low, delta, relation):
            proven, low = low, low / 2.0
        while proven / low > 1.0 + 1e-9:
            middle = math.sqrt(low * proven)
            if self._lemma_covers(middle, delta, relation):
                proven = middle
            else:
                low = middle
        return proven

    def _lemma_covers(self, epsilon: float, delta: float, relation: str) -> bool:
        """Return True if Lemma F.2 proves epsilon at delta for the noise of this tree."""
        budget = Budget(epsilon, delta, relation)
        lemma_std = self._lemma_std(budget)
        return lemma_std is not None and lemma_std <= self.noise_std

    def _lemma_std(self, budget: Budget) -> float | None:
        """Return the least noise_std with which Lemma F.2 proves ``budget`` for this tree.

        Return None if no noise_std does.
        """
        return amplified_tree_std(
            budget, self.releases, self.silos, self.batch_size, self.layout, self.covariance_ratio
        )

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the proof, and the condition that the claim holds."""
        proven_epsilon = self.exact()
        claim = noise_claim(self.budget, proven_epsilon, note=self._remark(proven_epsilon))
        # Lemma F.2 assumes that the messages of other silos hide a silo's message. Silo-level LDP
        # does not need this.
        hiding = [HIDING] if proven_epsilon < self.ldp() else []
        return [*hiding, *participation_conditions(self.returning), claim]

    def _remark(self, proven_epsilon: float) -> str:
        """Return a remark for the certificate on the proof of ``proven_epsilon``.

        It says which account proves this epsilon, or what cannot be checked.
        """
        if self.calibration == "published-code":
            return "computed; no theorem states these constants"
        if self.calibration == "theorem":
            kappa = self.depth
            epsilon = math.sqrt(kappa / self.silos) / self.horizon
            return (
                "computed; Theorem 5.3's unnamed constants are taken as 1, and its conditions "
                f"epsilon <= sqrt(kappa)/(C1 T sqrt M) = {epsilon:.3g}/C1 and delta <= kappa/(C2 T)"
                f" = {kappa / self.horizon:.3g}/C2 cannot be checked, since C1 and C2 are not given"
            )
        if self.returning > 1:
            return (
                f"by silo-level LDP of all records of a user of {self.returning} batches; Lemma "
                "F.2, which is about one record, is not used"
            )
        if proven_epsilon < self.ldp():
            return "by Lemma F.2, solved for the noise"
        lemma = self._lemma_std(self.budget)
        if lemma is None:
            return f"by silo-level LDP; Lemma F.2 proves nothing for {self.silos} silos"
        return f"by silo-level LDP; Lemma F.2 would need a noise_std of {lemma:.4g}"


def calibrate_shuffled_tree(
    budget: Budget,
    releases: int,
    silos: int,
    batch_size: int,
    horizon: int,
    calibration: str = "exact",
    layout: str | None = None,
    returning: int = 1,
) -> AmplifiedTree:
    """Calibrate the p-sum tree of every silo, whose noisy p-sums are shuffled over silos.

    Parameters
    ----------
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    releases : int
        K = T / B, the number of releases.
    silos : int
        M, the number of silos.
    batch_size : int
        B, the number of points of a silo in one leaf.
    horizon : int
        T, the number of rounds of a silo.
    calibration : {"exact", "theorem", "published-code"}
        "exact": the smaller of the exact silo-level LDP noise and `amplified_tree_std`. "theorem":
        `theorem_5_3_std`. "published-code": `published_shuffle_std`.
    layout : {"iid", "goe1", "goe2"}, optional
        Any for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    returning : int
        The largest number of batches of one user, see `GaussianRelease`. Above 1 for "exact" only;
        the noise is then calibrated for silo-level LDP, because the lemma is about one record.

    Returns
    -------
    AmplifiedTree
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", for a layout or returning that the calibration does not
        allow, and for delta >= kappa / T with "theorem".
    """
    releases = integer("releases", releases, at_least=0)
    layout = layout_of(calibration, layout)
    kappa, silos, horizon, _ = _check_sizes(budget, releases, silos, horizon)
    batch_size = integer("batch_size", batch_size, at_least=1)
    choice("unit", budget.unit, ("user", "item"))
    returning = integer("returning", returning, at_least=1)
    if calibration != "exact":
        check_single_participation(calibration, returning)
    if kappa == 0:
        noise_std = 0.0
    elif calibration == "theorem":
        noise_std = theorem_5_3_std(budget, releases, silos, horizon)
    elif calibration == "published-code":
        noise_std = published_shuffle_std(budget, releases, silos, horizon)
    else:
        noise_std = exact_std(budget, "tree", releases, layout, returning=returning)
        if returning == 1:
            lemma = amplified_tree_std(budget, releases, silos, batch_size, layout)
            noise_std = noise_std if lemma is None else min(noise_std, lemma)
    return AmplifiedTree(
        releases,
        layout,
        noise_std,
        calibration,
        budget,
        _SOURCE[calibration] if returning == 1 else _RETURNING,
        returning=returning,
        silos=silos,
        batch_size=batch_size,
        horizon=horizon,
    )
