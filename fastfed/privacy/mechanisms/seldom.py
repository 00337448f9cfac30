"""Choices that change seldom: the shrinking dartboard, and one choice for each stretch of losses.

Both give one expert for all clients, drawn by the exponential mechanism from what experts have
lost. The dartboard keeps the last one by a coin, so that few draws are paid for; a choice from the
losses since the last one pays for each loss once. Sources: Geulen, Vöcking & Winkler 2010
(shrinking dartboard); Asi, Feldman, Koren & Talwar 2022 (its private form, and limited updates).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from fastfed._roots import brentq
from fastfed._validate import choice, integer, number
from fastfed.privacy.accounting.gdp import (
    classic_epsilon_of_rho,
    rho_of_bounded_range,
)
from fastfed.privacy.accounting.privacy_loss import Part, composed_epsilon, largest_share
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.laplace import Exponential
from fastfed.privacy.mechanisms.sparse_vector import claim_of_experts, epsilon_of_choices
from fastfed.privacy.sensitivity import Budget

# ---- the dartboard -------------------------------------------------------------------------------
# The mechanism (asi-2022). Losses are in [0, 1]; r is the rate, p the chance of a new draw, K the
# most new draws. At fixed times, s(x) is what expert x has lost at all clients since the last one,
# and S(x) what it has lost in all. If fewer than K experts have been drawn, the expert x that is
# played is kept with probability (1 - p) exp(-r s(x)); otherwise the next one is drawn with
# probability proportional to exp(-r S). After K draws nothing changes any more.
#
# With r = -ln(1 - eta) the two coins of the paper, one of 1 - p and one of w_t(x) / w_(t-1)(x) =
# (1 - eta)^(loss of x), are this one: all that matters is that both fall for the old expert.
#
# Let one loss function, of one client in a round before time t0 and not before an earlier one, be
# replaced. We account for the sequence of coins and drawn experts, which tells what is played.
# 1. Before t0 nothing depends on it. The coin at t0 does, by s(x) of the expert x that the outputs
# so far have fixed: it is s on one dataset and s' on the other, |s - s'| <= 1, both >= 0. "Keep"
# has the ratio exp(r (s' - s)) <= e^r. "Draw" has (1 - (1 - p) e^(-r s)) / (1 - (1 - p) e^(-r s')),
# largest for s = s' + 1, and then for s' = 0: (1 - (1 - p) e^-r) / p. So this coin costs
#     g = max(r, ln((1 - (1 - p) e^-r) / p)),
# and nothing for p = 1, where no coin is thrown. Other coins look at other losses: nothing.
# 2. Each draw from t0 on, at most K, sees the loss in S: each score moves by at most 1, up or down,
# so it is of range 2 r. When it happens is told by coins whose chances, given the outputs so far,
# are the same on both datasets; a mixture over such times is dominated as each of its parts is.
# 3. One after the other these are adaptive: g once and 2 r at most K times. They compose as in
# `privacy_loss`, the coin as any (g, 0)-private mechanism; and, which is less for many draws, as
# epsilon of the coin plus epsilon of K r^2/2-zCDP for the draws. For delta = 0: g + 2 r K.
# Neither the number of clients nor the time between two coins enters.

#: Chances of a new draw, and rates, that are meant to be used.
LEAST_CHANCE, LEAST_RATE = 1e-9, 1e-12
_CLOSE = 1e-7


class Dartboard(msgspec.Struct, frozen=True, kw_only=True):
    """The private shrinking dartboard: an expert that is kept by a coin, and few new draws.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for.
    switches : int
        K >= 0, how many experts may be drawn after the first.
    chance : float
        p in [1e-9, 1]: the least probability of a new draw.
    rate : float
        r > 0, per unit of loss.
    source : str
        Author-year of the rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    experts is (exact(), budget.delta)-private. Clients send sums of raw losses: the server is
    trusted. The proof stands above this class.
    Source: asi-2022, the private shrinking dartboard, with constants of our own.
    """

    budget: Budget
    switches: int
    chance: float
    rate: float
    source: str

    def __post_init__(self) -> None:
        """Check every field."""
        integer("switches", self.switches, at_least=0)
        number("chance", self.chance, at_least=LEAST_CHANCE, at_most=1.0)
        number("rate", self.rate, above=0)

    @property
    def coin(self) -> float:
        """Epsilon of the one coin that sees a loss."""
        return coin_epsilon(self.rate, self.chance)

    @property
    def choices(self) -> Exponential:
        """The draw of an expert."""
        return Exponential(2.0 * self.rate)

    def keeps(self, lost: float) -> float:
        """Probability that the expert is kept, when it has lost so much since the last coin."""
        return (1.0 - self.chance) * math.exp(-self.rate * lost)

    def parts(self) -> list[Part]:
        """List the mechanisms that one loss pays for, for composed_epsilon."""
        if self.switches == 0:  # no coin is thrown either
            return []
        return [
            ("randomized-response", self.coin, 1),
            ("bounded-range", 2.0 * self.rate, self.switches),
        ]

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for the sequence of experts at delta (default: the budget's)."""
        at = self.budget.delta if delta is None else number("delta", delta, at_least=0, below=1)
        return epsilon_of_choices(self.parts(), at)

    @property
    def noise_stds(self) -> dict[str, float]:
        """None are listed: chances, and no noise."""
        return {}

    def conditions(self) -> list[Condition]:
        """The claim, computed, and the assumptions that are taken on trust."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition(f"at most {self.switches} experts are drawn after the first", True),
            Condition("when coins are thrown, p and r do not depend on losses", True),
            claim_of_experts(self.budget, self.exact()),
        ]


def coin_epsilon(rate: float, chance: float) -> float:
    """g: epsilon of the coin that sees a loss."""
    if chance == 1.0:
        return 0.0
    return max(rate, math.log1p((1.0 - chance) * -math.expm1(-rate) / chance))


def simple_epsilon(rate: float, chance: float, switches: int, delta: float) -> float:
    """Compute an epsilon that is proven for a dartboard, in closed form; not the least one."""
    draws = 2.0 * rate * switches
    if delta > 0.0 and switches > 0:
        rho = switches * rho_of_bounded_range(2.0 * rate)
        draws = min(draws, classic_epsilon_of_rho(rho, delta))
    return coin_epsilon(rate, chance) + draws


def calibrate_dartboard(
    budget: Budget, *, switches: int, chance: float, at_most: float = math.inf
) -> Dartboard:
    """Find the largest rate of a dartboard that a budget allows.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round, for replacement, which covers
        "zero-out".
    switches : int
        K >= 0.
    chance : float
        p in [1e-9, 1].
    at_most : float
        No larger rate is asked for; finite for K = 0.

    Returns
    -------
    Dartboard

    Raises
    ------
    InputError
        For another unit or relation, and for values out of range.
    """
    choice("unit", budget.unit, ("user",))
    choice("relation", budget.relation, ("replace", "zero-out"))
    start = 1.0 if at_most == math.inf else number("at_most", at_most, above=0)
    made = Dartboard(
        budget=budget,
        switches=switches,
        chance=chance,
        rate=start,
        source="asi-2022, private shrinking dartboard, with the largest rate whose proven account "
        "(one coin, and draws of bounded range, composed) gives the budget",
    )

    def cost(rate: float) -> float:
        """Epsilon at a rate."""
        return msgspec.structs.replace(made, rate=rate).exact()

    if switches == 0 or (at_most < math.inf and cost(at_most) <= budget.epsilon):
        return made
    rate = _largest_rate(cost, made)
    return msgspec.structs.replace(made, rate=max(min(rate, at_most), LEAST_RATE))


def _largest_rate(cost: Callable[[float], float], made: Dartboard) -> float:
    """Find the largest rate within the budget, to a relative 1e-7 from below."""
    epsilon, delta = made.budget.epsilon, made.budget.delta

    def quick(rate: float) -> float:
        """Epsilon at a rate, in closed form, beyond the budget."""
        return simple_epsilon(rate, made.chance, made.switches, delta) - epsilon

    # 2 r <= the sum of all parts, and the coin costs at most r / p.
    high = epsilon / 2.0
    low = epsilon / (1.0 / made.chance + 2.0 * made.switches) / 2.0
    if delta > 0.0:
        while quick(high) <= 0.0:
            high *= 2.0
    low = float(brentq(quick, low, high, xtol=1e-300, rtol=1e-13)) * (1.0 - 1e-12)
    if delta > 0.0:
        high = 1.25 * low
        while cost(high) <= epsilon:
            low, high = high, 1.25 * high
        if cost(low) < epsilon:
            low = float(brentq(lambda r: cost(r) - epsilon, low, high, xtol=1e-300, rtol=_CLOSE))
        low *= 1.0 - _CLOSE
    while cost(low) > epsilon:  # what rounding has put above the budget
        low *= 1.0 - (_CLOSE if delta > 0.0 else 2.0**-52)
    return low


# ---- one choice for each stretch of losses -------------------------------------------------------
# Each loss is in the scores of one choice, made by the exponential mechanism: a replaced loss moves
# each score by at most 1, up or down, which is a range of eta. Other choices are made from other
# losses, and, given what was chosen, do not depend on it: all choices together cost what one does.


class FreshChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Choices by the exponential mechanism, each from losses that no other one looks at.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for.
    choices : int
        How many there are, >= 0.
    eta : float
        > 0: an expert of cost c is chosen with probability proportional to exp(-eta c / 2).
    source : str
        Author-year of the rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    choices is (exact(), budget.delta)-private. The proof stands above this class.
    Source: asi-2022, limited updates; McSherry & Talwar 2007.
    """

    budget: Budget
    choices: int
    eta: float
    source: str

    def __post_init__(self) -> None:
        """Check every field."""
        integer("choices", self.choices, at_least=0)
        number("eta", self.eta, above=0)

    @property
    def mechanism(self) -> Exponential:
        """The mechanism of one choice."""
        return Exponential(self.eta)

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for all choices at delta (default: the budget's)."""
        at = self.budget.delta if delta is None else number("delta", delta, at_least=0, below=1)
        return composed_epsilon([("bounded-range", self.eta, min(self.choices, 1))], at)

    @property
    def noise_stds(self) -> dict[str, float]:
        """None are listed: chances, and no noise."""
        return {}

    def conditions(self) -> list[Condition]:
        """The claim, computed, and the assumptions that are taken on trust."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition("each loss is in the scores of one choice at most", True),
            claim_of_experts(self.budget, self.exact()),
        ]


def calibrate_choices(budget: Budget, *, choices: int) -> FreshChoices:
    """Find the largest eta of so many choices, each from losses of its own, for a budget.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round, for replacement, which covers
        "zero-out".
    choices : int
        >= 0.

    Returns
    -------
    FreshChoices
        With eta = epsilon at delta = 0, and more otherwise.
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
