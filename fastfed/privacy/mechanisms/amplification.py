"""Amplification by shuffling whole silos' p-sums (zhou-chowdhury-2024, Lemma F.2, Theorem 5.3).

A shuffler between silos and server can only hide more, so the silo-level LDP guarantee of the same
noise always holds too; the reported one is the better of both.
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
# The lemma's inner delta is searched on this many points, then around the best one, and again.
_GRID, _ROUNDS = 32, 3
_PARTS = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)


class Amplified(NamedTuple):
    """Output of Lemma F.2, and if its condition holds: the numbers prove nothing without."""

    epsilon: float
    delta: float
    holds: bool


def amplified(
    epsilon0: float, delta0: float, points: float, silos: int, inner_delta: float
) -> Amplified:
    """Lemma F.2 for `silos` silos of `points` points each and a shuffler.

    The local mechanism is Gaussian and (epsilon0, delta0)-private.
    epsilon = ln(1 + tanh(epsilon0/2) (8 sqrt(e^{n epsilon0} ln(4/inner)/N) + 8 e^{n epsilon0}/N)),
    delta = tanh(epsilon0/2) inner + N (e^epsilon + 1) (1 + e^{-epsilon0}/2) delta0,
    under the condition epsilon0 <= ln(N / (16 ln(2/inner))) / n and epsilon0 < 1. The lemma uses
    the same delta0 between any two datasets of n points, at n epsilon0: classical noise
    D sqrt(2 ln(1.25/delta0)) / epsilon0 gives that for n epsilon0 <= 1, tighter noise does not. n
    >= 1 is the distance of two datasets in units of D, and need not be whole. inner_delta: in (0,
    1], free. A large exponent gives infinite epsilon and delta, not an error.
    """
    epsilon0 = number("epsilon0", epsilon0, above=0)
    delta0 = number("delta0", delta0, at_least=0, below=1)
    n = number("points", points, at_least=1)
    silos = integer("silos", silos, at_least=1)
    inner_delta = number("inner_delta", inner_delta, above=0, at_most=1)
    holds = n * epsilon0 <= _exponent(silos, inner_delta) and epsilon0 < 1.0
    if n * epsilon0 > 700.0:
        return Amplified(math.inf, math.inf, False)
    epsilon = _epsilon_r(epsilon0, n, silos, inner_delta)
    delta = math.tanh(epsilon0 / 2.0) * inner_delta
    delta += silos * (math.exp(epsilon) + 1.0) * (1.0 + math.exp(-epsilon0) / 2.0) * delta0
    return Amplified(epsilon, delta, holds)


def _exponent(silos: int, inner_delta: float) -> float:
    """The lemma's bound on n epsilon0; not positive where the condition cannot be met."""
    return math.log(silos) - math.log(16.0 * (math.log(2.0) - math.log(inner_delta)))


def _epsilon_r(epsilon0: float, n: float, silos: int, inner_delta: float) -> float:
    """The lemma's epsilon."""
    log4 = math.log(4.0) - math.log(inner_delta)
    clones = math.exp(n * epsilon0) / silos
    return math.log1p(math.tanh(epsilon0 / 2.0) * 8.0 * (math.sqrt(clones * log4) + clones))


def amplified_std(
    epsilon: float,
    delta: float,
    points: float,
    silos: int,
    sensitivity: float = 2.0,
) -> float | None:
    """Least noise of one shuffled p-sum that Lemma F.2 proves to be (epsilon, delta)-private.

    points: n >= 1, so that any two datasets of a silo are at most n `sensitivity` apart;
    sensitivity: the most that one record moves the p-sum. The lemma is solved for epsilon0, for
    the best inner delta, then for delta0; noise_std = sensitivity sqrt(2 ln(1.25/delta0)) /
    epsilon0, with n epsilon0 <= 1 enforced (see `amplified`). None when the lemma proves nothing
    for so few silos: its condition needs silos > 16 ln(2/inner delta), hence at least 12.
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    n = number("points", points, at_least=1)
    silos = integer("silos", silos, at_least=1)
    sensitivity = number("sensitivity", sensitivity, above=0)
    if _exponent(silos, 1.0) <= 0.0:
        return None

    def std(log_inner: float) -> float:
        """Noise at this inner delta."""
        return sensitivity * _unit_std(epsilon, delta, n, silos, math.exp(min(log_inner, 0.0)))

    # The condition needs ln(2/inner) < N/16; an inner delta below 1e-300 is of no use to anyone.
    low, high = max(math.log(2.0) - silos / 16.0, -690.0), 0.0
    found = math.inf
    for _ in range(_ROUNDS):
        grid = [low + (high - low) * i / (_GRID - 1) for i in range(_GRID)]
        values = [_unit_std(epsilon, delta, n, silos, math.exp(x)) for x in grid]
        best = min(range(_GRID), key=values.__getitem__)
        found = min(found, values[best])
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    return sensitivity * found if found < math.inf else None


@lru_cache(8192)
def _unit_std(epsilon: float, delta: float, n: float, silos: int, inner: float) -> float:
    """Noise per unit of sensitivity at this inner delta; infinite where it cannot be had."""
    high = min(_exponent(silos, inner), 1.0) / n
    if high <= 0.0:
        return math.inf
    high = min(high, math.nextafter(1.0, 0.0))
    if _epsilon_r(high, n, silos, inner) > epsilon:
        high = float(
            brentq(
                lambda e: _epsilon_r(e, n, silos, inner) - epsilon * (1.0 - 1e-12),
                0.0,
                high,
                xtol=1e-300,
                rtol=1e-14,
                maxiter=2000,
            )
        )
    best = math.inf
    for part in _PARTS:
        # At most this part of delta for the inner one; the rest goes to the local delta0.
        epsilon0 = high
        if math.tanh(high / 2.0) * inner > part * delta:
            epsilon0 = 2.0 * math.atanh(part * delta / inner)
        reached = _epsilon_r(epsilon0, n, silos, inner)
        rest = delta - math.tanh(epsilon0 / 2.0) * inner
        delta0 = rest / (silos * (math.exp(reached) + 1.0) * (1.0 + math.exp(-epsilon0) / 2.0))
        if delta0 > 0.0:
            best = min(best, math.sqrt(2.0 * (math.log(1.25) - math.log(delta0))) / epsilon0)
    return best


def amplified_tree_std(
    budget: Budget,
    releases: int,
    silos: int,
    batch_size: int,
    layout: str = "goe2",
    covariance_ratio: float = 1.0,
) -> float | None:
    """Least noise_std of the shuffled p-sum tree that Lemma F.2 proves to give the budget.

    A message is the noisy p-sum of one node, of at most n = batch_size 2^(kappa - 1) points of its
    silo, with both streams, and is permuted as a whole. So it is one Gaussian mechanism: a record
    moves it by D, the joint sensitivity under the budget's relation, and two datasets of n points
    are at most n joint sensitivities of replacement apart, whatever the relation. A record enters
    kappa messages, and each is shuffled with the others of its release. Under "iid" and "goe1" two
    datasets are farther apart in both streams than in one, so 2 kappa messages of one stream each,
    2 n apart, may need less noise: the better account counts.

    Of q messages each gets (epsilon/q, delta/q), basic composition, or
    epsilon/(2 sqrt(2 q ln(2/delta))) and delta/(2 q), advanced, whichever needs less noise; the top
    level decides, since more points need more noise. 0 when nothing is released; None when the
    lemma proves nothing at this number of silos.
    """
    kappa = depth(releases)
    silos = integer("silos", silos, at_least=1)
    batch_size = integer("batch_size", batch_size, at_least=1)
    choice("layout", layout, LAYOUTS)
    number("delta", budget.delta, above=0, below=1)
    if kappa == 0:
        return 0.0
    points = batch_size << (kappa - 1)
    one = joint_sensitivity(budget.relation, layout, cov_std=covariance_ratio)
    apart = points * joint_sensitivity("replace", layout, cov_std=covariance_ratio)
    found = [_composed_std(budget, kappa, apart, silos, one)]
    # Under goe2 both streams together are no farther apart than 2 n: the first is the better. With
    # less noise than the bias stream's the covariance stream alone might be farther.
    if layout != "goe2" and covariance_ratio >= 1.0:
        alone = sum_sensitivity(budget.relation)
        found.append(_composed_std(budget, 2 * kappa, 2.0 * points, silos, alone))
    return min((s for s in found if s is not None), default=None)


def _composed_std(
    budget: Budget, q: int, apart: float, silos: int, sensitivity: float
) -> float | None:
    """Least noise of q shuffled messages, where two datasets are at most `apart` in each."""
    epsilon, delta = budget.epsilon, budget.delta
    log2 = math.log(2.0) - math.log(delta)
    shares = [(epsilon / q, delta / q)]
    # q e tanh(e/2) + e sqrt(2 q ln(2/delta)) (Kairouz, Oh & Viswanath 2015, Theorem 3.4, with half
    # of delta as slack): the second term is epsilon/2, and the first at most that up to here.
    if epsilon <= 8.0 * log2:
        shares.append((epsilon / (2.0 * math.sqrt(2.0 * q * log2)), delta / (2.0 * q)))
    points = apart / sensitivity
    found = [amplified_std(e, d, points, silos, sensitivity) for e, d in shares]
    return min((s for s in found if s is not None), default=None)


def theorem_5_3_std(budget: Budget, releases: int, silos: int, horizon: int) -> float:
    """Compute s of zhou-chowdhury-2024, Theorem 5.3, with constant 1 for its order.

    s^2 = 2 kappa ln(1/delta) ln(kappa/(delta T)) ln(M kappa/delta) / (epsilon^2 M); horizon: T,
    rounds of a silo. 0 when nothing is released.

    Raises InputError for delta >= kappa / T, where the second logarithm is not positive.
    """
    kappa, silos, horizon, delta = _checked(budget, releases, silos, horizon)
    if kappa == 0:
        return 0.0
    if delta >= kappa / horizon:
        raise InputError(
            f"delta must be < kappa / horizon = {kappa / horizon:.6g} in Theorem 5.3, got {delta:g}"
        )
    product = -math.log(delta) * math.log(kappa / delta / horizon) * math.log(silos * kappa / delta)
    return math.sqrt(2.0 * kappa * product / silos) / budget.epsilon


def published_shuffle_std(budget: Budget, releases: int, silos: int, horizon: int) -> float:
    """Compute s of the published experiment code of zhou-chowdhury-2024.

    s^2 = kappa ln(1/delta) ln(1 + kappa/(T delta)) ln(M kappa/delta) / (epsilon^2 M). 0 when
    nothing is released.
    """
    kappa, silos, horizon, delta = _checked(budget, releases, silos, horizon)
    if kappa == 0:
        return 0.0
    product = -math.log(delta) * math.log1p(kappa / delta / horizon)
    product *= math.log(silos * kappa / delta)
    return math.sqrt(kappa * product / silos) / budget.epsilon


def _checked(
    budget: Budget, releases: int, silos: int, horizon: int
) -> tuple[int, int, int, float]:
    """Check the arguments; kappa, silos, horizon and delta."""
    return (
        depth(releases),
        integer("silos", silos, at_least=1),
        integer("horizon", horizon, at_least=1),
        number("delta", budget.delta, above=0, below=1),
    )


#: What Lemma F.2 takes on trust, beside the shuffler.
HIDING = Condition(
    "all silos send the noisy sums of the plan, and none tells the server which are its own "
    "(taken on trust)",
    True,
)


class AmplifiedTree(GaussianTree, frozen=True, kw_only=True):
    """The p-sum tree with Gaussian noise by every silo, and a shuffler between silos and server.

    Parameters
    ----------
    silos : int
        M.
    batch_size : int
        B, points of a silo in one leaf.
    horizon : int
        T. All other fields as in `GaussianTree`.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: towards everyone who sees shuffled messages, for one record as in GaussianTree, the
    better of silo-level LDP, which holds without the shuffler, and Lemma F.2. With returning > 1
    it is silo-level LDP: the lemma is about one record.
    Source: zhou-chowdhury-2024, Lemma F.2 and Theorem 5.3.
    """

    silos: int
    batch_size: int
    horizon: int

    def __post_init__(self) -> None:
        """Check every field."""
        GaussianTree.__post_init__(self)
        integer("silos", self.silos, at_least=1)
        integer("batch_size", self.batch_size, at_least=1)
        integer("horizon", self.horizon, at_least=1)

    def ldp(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon at silo-level LDP, without counting on the shuffler."""
        return GaussianTree.exact(self, delta, relation)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Smaller of the exact silo-level LDP epsilon and the one that Lemma F.2 proves, at delta.

        With returning > 1 the former.
        """
        relation = named_relation(relation, self.budget)
        delta = named_delta(delta, self.budget)
        best = self.ldp(delta, relation)
        if best == 0.0 or delta == 0.0 or self.returning > 1:
            return best
        # The noise may have been chosen by the lemma for exactly this epsilon.
        asked = min(best, self.budget.epsilon)
        if self._lemma_covers(asked, delta, relation):
            best = asked
        elif not self._lemma_covers(best, delta, relation):
            return best
        # Halved on a logarithmic scale; `best` is always proven, `low` is not.
        low = best / 2.0
        while low > 1e-300 and self._lemma_covers(low, delta, relation):
            best, low = low, low / 2.0
        while best / low > 1.0 + 1e-9:
            middle = math.sqrt(low * best)
            if self._lemma_covers(middle, delta, relation):
                best = middle
            else:
                low = middle
        return best

    def _lemma_covers(self, epsilon: float, delta: float, relation: str) -> bool:
        """Test if the lemma proves epsilon at delta for this noise."""
        budget = Budget(epsilon, delta, relation)
        needed = self._lemma_std(budget)
        return needed is not None and needed <= self.noise_std

    def _lemma_std(self, budget: Budget) -> float | None:
        """Least noise for which the lemma proves a budget."""
        return amplified_tree_std(
            budget,
            self.releases,
            self.silos,
            self.batch_size,
            self.layout,
            self.covariance_ratio,
        )

    def conditions(self) -> list[Condition]:
        """The claim under its relation, computed, never quoted, and what is taken on trust."""
        found = self.exact()
        claim = noise_claim(self.budget, found, note=self._remark(found))
        # Silo-level LDP needs nobody else; the lemma hides a silo's message among the others'.
        others = [HIDING] if found < self.ldp() else []
        return [*others, *participation_conditions(self.returning), claim]

    def _remark(self, found: float) -> str:
        """Say which argument holds, and what is known of the rule that chose the noise."""
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
        if found < self.ldp():
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
    """Calibrate the p-sum tree whose noisy p-sums are shuffled over silos.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    releases : int
        K = T / B.
    silos : int
        M.
    batch_size : int
        B.
    horizon : int
        T, rounds of a silo.
    calibration : {"exact", "theorem", "published-code"}
        "exact": the smaller of the exact silo-level LDP noise and `amplified_tree_std`; "theorem":
        `theorem_5_3_std`; "published-code": `published_shuffle_std`.
    layout : {"iid", "goe1", "goe2"}, optional
        Free for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    returning : int
        The most batches of one user, see `GaussianRelease`; with more than 1 the noise is that of
        exact silo-level LDP, since the lemma is about one record. "exact" only.

    Returns
    -------
    AmplifiedTree

    Raises
    ------
    InputError
        For delta = 0, the unit "silo", a layout or returning that belongs to another calibration,
        and where Theorem 5.3's formula is not defined (delta >= kappa / T).
    """
    releases = integer("releases", releases, at_least=0)
    layout = layout_of(calibration, layout)
    kappa, silos, horizon, _ = _checked(budget, releases, silos, horizon)
    batch_size = integer("batch_size", batch_size, at_least=1)
    choice("unit", budget.unit, ("user", "item"))
    returning = integer("returning", returning, at_least=1)
    if calibration != "exact":
        check_single_participation(calibration, returning)
    if kappa == 0:
        s = 0.0
    elif calibration == "theorem":
        s = theorem_5_3_std(budget, releases, silos, horizon)
    elif calibration == "published-code":
        s = published_shuffle_std(budget, releases, silos, horizon)
    else:
        s = exact_std(budget, "tree", releases, layout, returning=returning)
        if returning == 1:
            lemma = amplified_tree_std(budget, releases, silos, batch_size, layout)
            s = s if lemma is None else min(s, lemma)
    return AmplifiedTree(
        releases,
        layout,
        s,
        calibration,
        budget,
        _SOURCE[calibration] if returning == 1 else _RETURNING,
        returning=returning,
        silos=silos,
        batch_size=batch_size,
        horizon=horizon,
    )
