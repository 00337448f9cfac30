"""Expert choices that change seldom: the shrinking dartboard, and limited updates.

Both mechanisms choose one expert for all clients by the exponential mechanism, from the experts'
past losses. The dartboard throws a coin to decide whether to keep the current expert, so that a new
expert is drawn seldom, and the account has few draws. Limited updates use only the losses since the
last choice, so that each loss affects one choice. Sources: Geulen, Vöcking & Winkler 2010
(shrinking dartboard); Asi, Feldman, Koren & Talwar 2022 (its private form, and limited updates).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from fastfed._roots import brentq
from fastfed._validate import choice, integer, number
from fastfed.privacy.accounting.gdp import classic_epsilon_of_rho, rho_of_bounded_range
from fastfed.privacy.accounting.privacy_loss import Part, composed_epsilon, largest_share
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.laplace import Exponential
from fastfed.privacy.mechanisms.sparse_vector import epsilon_of_choices, loss_claim
from fastfed.privacy.sensitivity import Budget, named_delta

# ---- the shrinking dartboard ---------------------------------------------------------------------
# The mechanism (asi-2022). Losses are in [0, 1]. r is the rate, p the probability of a new draw, K
# the largest number of new draws. At fixed times, let s(x) be the loss of expert x summed over all
# clients since the last such time, and S(x) its total loss. If fewer than K experts have been drawn
# so far, the current expert x is kept with probability (1 - p) exp(-r s(x)). Otherwise the next
# expert is drawn with probability proportional to exp(-r S). After K draws nothing changes.
#
# With r = -ln(1 - eta), the paper throws two coins, of 1 - p and of w_t(x) / w_(t-1)(x) =
# (1 - eta)^(loss of x). They are combined here, since the expert is kept only if both say so.
#
# Replace one loss function of one client, in a round after one fixed time and before the next one,
# t0. We account for the sequence of coins and drawn experts, which determines the chosen actions.
# 1. Nothing before t0 depends on this loss. The coin at t0 does, by s(x) of the current expert x,
# which earlier outputs fix: it is s on one dataset and s' on the other, |s - s'| <= 1, both >= 0.
# "Keep" has the probability ratio exp(r (s' - s)) <= e^r. "Draw" has
# (1 - (1 - p) e^(-r s)) / (1 - (1 - p) e^(-r s')), which is largest for s = s' + 1 and s' = 0:
# (1 - (1 - p) e^-r) / p. So the epsilon of this coin is
#     g = max(r, ln((1 - (1 - p) e^-r) / p)),
# or 0 for p = 1, where no coin is thrown. Later coins depend on other losses and cost nothing.
# 2. Each of the at most K draws from t0 on depends on the loss by S. Each score changes by at most
# 1, up or down, so the draw has bounded range 2 r. When a draw happens is decided by coins whose
# probabilities, given the outputs so far, are equal on both datasets. A mixture over such times is
# dominated because each of its parts is.
# 3. In sequence these are adaptive mechanisms: g once, and range 2 r at most K times. They compose
# as in `privacy_loss`, the coin as any (g, 0)-private mechanism. A second bound, smaller for many
# draws, is the epsilon of the coin plus the epsilon of K r^2/2-zCDP for the draws. For delta = 0
# epsilon is g + 2 r K. Neither the number of clients nor the time between coins matters.

#: Smallest supported probability of a new draw, and smallest rate.
MIN_CHANCE, MIN_RATE = 1e-9, 1e-12
_TOLERANCE = 1e-7


class Dartboard(msgspec.Struct, frozen=True, kw_only=True):
    """The private shrinking dartboard: a coin decides whether the current expert is kept.

    Parameters
    ----------
    budget : Budget
        The requested budget.
    switches : int
        K >= 0, the largest number of draws of an expert after the first draw.
    chance : float
        p in [1e-9, 1]: the smallest probability of a new draw.
    rate : float
        r > 0: an expert of total loss S is drawn with probability proportional to exp(-r S).
    source : str
        Authors and year of the paper that states the noise rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    experts is (exact(), budget.delta)-private. Clients send sums of raw losses, so the server must
    be trusted. The proof is above this class. Source: asi-2022, the private shrinking dartboard;
    the constants are derived here.
    """

    budget: Budget
    switches: int
    chance: float
    rate: float
    source: str

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        integer("switches", self.switches, at_least=0)
        number("chance", self.chance, at_least=MIN_CHANCE, at_most=1.0)
        number("rate", self.rate, above=0)

    @property
    def coin(self) -> float:
        """Return the epsilon of all coins: the epsilon of a single coin.

        A coin decides whether the current expert is kept. Each loss changes the probability of one
        coin only.
        """
        return coin_epsilon(self.rate, self.chance)

    @property
    def choices(self) -> Exponential:
        """Return the exponential mechanism that draws a new expert."""
        return Exponential(2.0 * self.rate)

    def keeps(self, expert_loss: float) -> float:
        """Return the probability of keeping the current expert.

        ``expert_loss`` is the expert's loss since the last coin, summed over all clients.
        """
        return (1.0 - self.chance) * math.exp(-self.rate * expert_loss)

    def parts(self) -> list[Part]:
        """Return the mechanisms that depend on one loss, as arguments of `composed_epsilon`.

        Each is (kind, epsilon or range, number of such mechanisms).
        """
        if self.switches == 0:  # then no coin is thrown
            return []
        return [
            ("randomized-response", self.coin, 1),
            ("bounded-range", 2.0 * self.rate, self.switches),
        ]

    def exact(self, delta: float | None = None) -> float:
        """Compute the proven epsilon of the sequence of experts, at delta (default: budget's)."""
        return epsilon_of_choices(self.parts(), named_delta(delta, self.budget))

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: decisions are random, but no number has noise."""
        return {}

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition(f"at most {self.switches} experts are drawn after the first", True),
            Condition("when coins are thrown, p and r do not depend on losses", True),
            loss_claim(self.budget, self.exact()),
        ]


def coin_epsilon(rate: float, chance: float) -> float:
    """Return the epsilon of a coin, which decides whether the current expert is kept.

    Each loss changes the probability of one coin only. ``rate`` is r of the dartboard, and
    ``chance`` is p, the smallest probability of a new draw. The formula is g in step 1 of the proof
    above `Dartboard`.
    """
    if chance == 1.0:
        return 0.0
    return max(rate, math.log1p((1.0 - chance) * -math.expm1(-rate) / chance))


def simple_epsilon(rate: float, chance: float, switches: int, delta: float) -> float:
    """Return an upper bound of a dartboard's epsilon at delta, in closed form.

    ``rate``, ``chance`` and ``switches`` are those of `Dartboard`.
    """
    draws_epsilon = 2.0 * rate * switches
    if delta > 0.0 and switches > 0:
        rho = switches * rho_of_bounded_range(2.0 * rate)
        draws_epsilon = min(draws_epsilon, classic_epsilon_of_rho(rho, delta))
    return coin_epsilon(rate, chance) + draws_epsilon


def calibrate_dartboard(
    budget: Budget, *, switches: int, chance: float, at_most: float = math.inf
) -> Dartboard:
    """Return the dartboard with the largest rate that a budget allows.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round. The account is for replacement,
        which covers "zero-out".
    switches : int
        K >= 0, the largest number of draws of an expert after the first draw.
    chance : float
        p in [1e-9, 1], the smallest probability of a new draw.
    at_most : float
        Upper limit of the rate. For K = 0 the budget sets no limit: the rate is ``at_most``, or 1
        if ``at_most`` is infinite.

    Returns
    -------
    Dartboard
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a different unit, an unknown relation, and values out of range.
    """
    choice("unit", budget.unit, ("user",))
    choice("relation", budget.relation, ("replace", "zero-out"))
    first_rate = 1.0 if at_most == math.inf else number("at_most", at_most, above=0)
    dartboard = Dartboard(
        budget=budget,
        switches=switches,
        chance=chance,
        rate=first_rate,
        source="asi-2022, private shrinking dartboard, with the largest rate whose proven account "
        "(one coin, and draws of bounded range, composed) gives the budget",
    )

    def epsilon_at(rate: float) -> float:
        """Return the proven epsilon of the dartboard with this rate."""
        return msgspec.structs.replace(dartboard, rate=rate).exact()

    if switches == 0 or (at_most < math.inf and epsilon_at(at_most) <= budget.epsilon):
        return dartboard
    rate = _largest_rate(epsilon_at, dartboard)
    return msgspec.structs.replace(dartboard, rate=max(min(rate, at_most), MIN_RATE))


def _largest_rate(epsilon_at: Callable[[float], float], dartboard: Dartboard) -> float:
    """Return the largest rate whose proven epsilon is within the dartboard's budget.

    ``epsilon_at`` maps a rate to its proven epsilon. The result is at most the exact largest rate,
    and smaller than it by a relative 2e-7 at most.
    """
    epsilon, delta = dartboard.budget.epsilon, dartboard.budget.delta

    def excess(rate: float) -> float:
        """Return the closed-form bound of epsilon at a rate, minus the budget's epsilon."""
        return simple_epsilon(rate, dartboard.chance, dartboard.switches, delta) - epsilon

    # Find the rate at which the closed-form bound is epsilon, then refine by the proven epsilon.
    # For delta = 0 the bound is between 2 * rate and (1 / chance + 2 * switches) * rate.
    high = epsilon / 2.0
    low = epsilon / (1.0 / dartboard.chance + 2.0 * dartboard.switches) / 2.0
    if delta > 0.0:
        while excess(high) <= 0.0:
            high *= 2.0
    low = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-13)) * (1.0 - 1e-12)
    if delta > 0.0:
        high = 1.25 * low
        while epsilon_at(high) <= epsilon:
            low, high = high, 1.25 * high
        if epsilon_at(low) < epsilon:
            low = float(
                brentq(lambda r: epsilon_at(r) - epsilon, low, high, xtol=1e-300, rtol=_TOLERANCE)
            )
        low *= 1.0 - _TOLERANCE
    while epsilon_at(low) > epsilon:  # because of rounding, it may be slightly above the budget
        low *= 1.0 - (_TOLERANCE if delta > 0.0 else 2.0**-52)
    return low


# ---- limited updates: one choice for each stretch of losses --------------------------------------
# Each loss enters the scores of one choice by the exponential mechanism. A replaced loss
# changes each score by at most 1, up or down, which gives a range of eta. Other choices use
# other losses and, given earlier choices, do not depend on this one. So all choices
# together cost as much as one.


class FreshChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Choices by the exponential mechanism, each from different losses.

    Parameters
    ----------
    budget : Budget
        The requested budget.
    choices : int
        Number of choices, >= 0.
    eta : float
        > 0: an expert of cost c is chosen with probability proportional to exp(-eta c / 2).
    source : str
        Authors and year of the paper that states the noise rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    choices is (exact(), budget.delta)-private. The proof is above this class. Source: asi-2022,
    limited updates; McSherry & Talwar 2007.
    """

    budget: Budget
    choices: int
    eta: float
    source: str

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        integer("choices", self.choices, at_least=0)
        number("eta", self.eta, above=0)

    @property
    def mechanism(self) -> Exponential:
        """Return the exponential mechanism that makes one choice."""
        return Exponential(self.eta)

    def exact(self, delta: float | None = None) -> float:
        """Compute the proven epsilon of all choices, at delta (default: the budget's)."""
        # Choices use disjoint losses, so all choices together have the epsilon of one choice.
        parts: list[Part] = [("bounded-range", self.eta, min(self.choices, 1))]
        return composed_epsilon(parts, named_delta(delta, self.budget))

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: decisions are random, but no number has noise."""
        return {}

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition("each loss is in the scores of one choice at most", True),
            loss_claim(self.budget, self.exact()),
        ]


def calibrate_choices(budget: Budget, *, choices: int) -> FreshChoices:
    """Return the choices with the largest eta within a budget; each choice uses different losses.

    A choice takes an expert of cost c with probability proportional to exp(-eta c / 2).

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round. The account is for replacement,
        which covers "zero-out".
    choices : int
        Number of choices, >= 0.

    Returns
    -------
    FreshChoices
        The calibrated mechanism. Its eta is epsilon if delta = 0, and larger otherwise.
    """
    choice("unit", budget.unit, ("user",))
    choice("relation", budget.relation, ("replace", "zero-out"))
    return FreshChoices(
        budget=budget,
        choices=choices,
        eta=largest_share(budget.epsilon, budget.delta, "bounded-range", 1),
        source="asi-2022, limited updates, each by the exponential mechanism with the largest eta "
        "that is proven to give the budget",
    )
