"""Sparse switching: the one expert of all clients is changed when it has lost too much, and seldom.

The mechanism (gao-2024, Algorithm 5, corrected). Losses are in [0, 1]. At fixed times the query,
the sum of all clients' losses of the played experts since the last switch, plus Lap(b) is compared
with L + Lap(a), whose noise was drawn at the last switch. If it is strictly above, the next expert
is chosen by the exponential mechanism of range eta from the scores s(x) = max(sum of all clients'
losses of x so far, m L*), and the threshold gets fresh noise. After kappa switches all stays as it
is.

Let one loss function, of one client in round t0, be replaced.
1. Until the first comparison after t0 all outputs have the same law. Let the switch before it be
   given. Up to the next switch, or the end, the comparisons are an AboveThreshold whose queries up
   to t0 are the same and whose later ones all move by one constant, l'(x) - l(x) in [-1, 1] for the
   expert x of round t0, which the outputs so far have fixed. It costs max(1/a, 1/b)
   (`sparse_vector.AboveThreshold`, common_shift).
2. After that switch the threshold's noise is a new one, and queries start after t0: given the
   outputs so far, the later comparisons have one law. So comparisons cost max(1/a, 1/b) once,
   however many switches there are. (Were the old noise kept, the law of the later comparisons,
   given the outputs, would still depend on the loss: it depends on what they tell of the noise.)
3. Each later choice of an expert, at most kappa, sees the loss in its scores. A maximum with a
   constant is 1-Lipschitz, so each score moves by at most 1, up or down: eta each, of bounded
   range.
One after the other these are adaptive, so they compose as in `fastfed.privacy.losses`; fewer than
kappa choices are kappa of which some tell nothing. For many choices the pair of distributions that
stands for one of them there is worse than what they are together, kappa eta^2/8-zCDP
(`composition`). So two accounts hold, and the lesser one is taken: all parts by their privacy
losses, or epsilon of the comparisons plus epsilon of the choices by zCDP.
"""

from __future__ import annotations

import math

import msgspec

from fastfed._validate import choice, integer, number
from fastfed.privacy.budget import Budget
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.composition import epsilon_of_rho, rho_of_bounded_range, rho_of_epsilon
from fastfed.privacy.exponential import Exponential
from fastfed.privacy.losses import Part, composed_epsilon
from fastfed.privacy.shares import largest_share
from fastfed.privacy.sparse_vector import AboveThreshold, minimal_scales

CALIBRATIONS = ("exact", "printed", "zcdp")

_SOURCE = {
    "exact": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and the "
    "largest eta whose proven composition (bounded-range privacy losses or zCDP) gives the budget",
    "printed": "gao-2024, Algorithm 5 (corrected) with the noise of Theorem D.1 as printed",
    "zcdp": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and eta by "
    "concentrated privacy of bounded-range mechanisms (Cesar & Rogers 2021)",
}


class SparseSwitching(msgspec.Struct, frozen=True, kw_only=True):
    """The noise of sparse switching.

    budget: what was asked for. switches: kappa >= 0, how often the expert may be changed.
    threshold_scale, query_scale: a and b of the Laplace noises, in losses. eta: of the exponential
    mechanism. calibration: which rule chose them. source: where it is from.

    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    experts is (exact(), budget.delta)-private. Clients send sums of raw losses: the server is
    trusted. The proof stands at the top of this module.
    """

    budget: Budget
    switches: int
    threshold_scale: float
    query_scale: float
    eta: float
    calibration: str
    source: str

    def __post_init__(self) -> None:
        integer("switches", self.switches, at_least=0)
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("eta", self.eta, above=0)
        choice("calibration", self.calibration, CALIBRATIONS)

    @property
    def comparisons(self) -> AboveThreshold:
        """The comparisons between one switch and the next."""
        return AboveThreshold(self.threshold_scale, self.query_scale, common_shift=True)

    @property
    def choices(self) -> Exponential:
        """The choice of an expert at a switch."""
        return Exponential(self.eta)

    def parts(self) -> list[Part]:
        """What one loss pays for, for composed_epsilon."""
        if self.switches == 0:  # nothing is compared either
            return []
        return [
            ("randomized-response", self.comparisons.epsilon, 1),
            ("bounded-range", self.eta, self.switches),
        ]

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for the sequence of experts at delta (default: the budget's)."""
        at = self.budget.delta if delta is None else number("delta", delta, at_least=0, below=1)
        found = composed_epsilon(self.parts(), at)
        if at == 0.0 or self.switches == 0:
            return found
        rho = self.switches * rho_of_bounded_range(self.eta)
        return min(found, self.comparisons.epsilon + epsilon_of_rho(rho, at))

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations of the Laplace noises, in losses."""
        root = math.sqrt(2.0)
        return {"threshold": root * self.threshold_scale, "query": root * self.query_scale}

    def conditions(self) -> list[Condition]:
        """Whether this noise gives the budget, computed, and what is taken on trust."""
        budget, found = self.budget, self.exact()
        return [
            Condition("losses are in [0, 1]", True),
            Condition(f"the expert is changed at most {self.switches} times", True),
            Condition("the threshold's noise is used, and drawn again at every switch", True),
            Condition("times of comparison, threshold and L* do not depend on losses", True),
            ClaimCondition(
                f"the proven epsilon of the experts, {rounded_up(found)} at delta "
                f"{budget.delta:g} under replacement of one loss, is at most {budget.epsilon:g} "
                "(computed)",
                found <= budget.epsilon,
            ),
        ]


def calibrate_switching(
    budget: Budget, *, switches: int, calibration: str = "exact"
) -> SparseSwitching:
    """The noise of sparse switching for a budget and kappa = switches.

    "exact": a = b = 2/epsilon, so that comparisons cost epsilon/2, and the largest eta for which
    they and kappa choices are proven (epsilon, delta); at delta = 0 that is epsilon/(2 kappa).
    "printed" (gao-2024, Theorem D.1): a = 4/epsilon, b = 8/epsilon, and eta = epsilon/(2 kappa) at
    delta = 0, otherwise epsilon / sqrt(kappa ln(1/delta)), which may be above the budget: exact()
    says by how much. "zcdp": a = b = 2/epsilon and eta = sqrt(8 rho/kappa), sqrt(rho) =
    sqrt(ln(1/delta) + epsilon/2) - sqrt(ln(1/delta)).

    Unit: one loss function of one client in one round ("user"), for replacement, which covers
    "zero-out". Raises InputError for another unit, for switches < 0, and for "zcdp" with delta = 0.
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("unit", budget.unit, ("user",))
    kappa = integer("switches", switches, at_least=0)
    epsilon, delta = budget.epsilon, budget.delta
    each = max(kappa, 1)  # none costs nothing; the rules are then those of one
    a, b = minimal_scales(epsilon / 2.0, common_shift=True)
    if calibration == "exact":
        paid = AboveThreshold(a, b, common_shift=True).epsilon
        given: tuple[Part, ...] = (("randomized-response", paid, 1),)
        eta = largest_share(epsilon, delta, "bounded-range", each, given)
        if delta > 0.0:
            eta = max(eta, math.sqrt(8.0 * _largest_rho(epsilon - paid, delta) / each))
    elif calibration == "zcdp":
        number("delta", delta, above=0, below=1)
        eta = math.sqrt(8.0 * rho_of_epsilon(epsilon / 2.0, delta) / each)
    else:
        a, b = 4.0 / epsilon, 8.0 / epsilon
        log = -math.log(delta) if delta > 0.0 else math.inf
        eta = epsilon / (2.0 * each) if delta == 0.0 else epsilon / math.sqrt(each * log)
    return SparseSwitching(
        budget=budget,
        switches=kappa,
        threshold_scale=a,
        query_scale=b,
        eta=eta,
        calibration=calibration,
        source=_SOURCE[calibration],
    )


def _largest_rho(epsilon: float, delta: float) -> float:
    """The largest rho for which rho-zCDP is proven (epsilon, delta), to a relative 1e-9 or so."""
    from scipy.optimize import brentq

    low = rho_of_epsilon(epsilon, delta)  # by the classic formula, which is never better
    high = 2.0 * low
    while epsilon_of_rho(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    found = float(
        brentq(lambda rho: epsilon_of_rho(rho, delta) - epsilon, low, high, xtol=1e-300, rtol=1e-10)
    )
    return found * (1.0 - 1e-8)
