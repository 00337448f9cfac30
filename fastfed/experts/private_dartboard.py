"""The private shrinking dartboard (asi-2022): hedge that changes its expert rarely, at random.

In every exchange a coin decides whether the server keeps its expert or draws a new one; the coin
depends on the expert's loss, and there are at most K draws. As long as draws remain, the expert of
a round has the distribution of hedge's weights (Geulen, Vöcking & Winkler 2010). Gao et al. (2024),
Table 1, compare their systems with this algorithm. Deviations from the paper, and why:

- The paper has one client. Here the loss of an exchange is the sum over all m clients since the
  previous exchange. ``silos = 1`` and ``phase_length = 1`` give the paper's algorithm. The privacy
  of one loss of one client depends on neither m nor N (`fastfed.privacy.mechanisms.seldom`).
- The paper's two coins of a round are replaced by one coin with the product of their probabilities.
- eta = 1 - exp(-r) is the largest that the exact account allows, but at most hedge's eta. By
  default, p = ``switch_probability`` and K = ``switches`` minimise the proven regret. The paper's
  constants are not used: privacy and regret are computed for any p and K.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastfed._random import QUERY, NoiseSource, is_exact
from fastfed._system import account
from fastfed._validate import choice, integer, number
from fastfed.experts.certify import certificate_of_choices
from fastfed.experts.deciders import ExactChooser, SeldomChooser
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    Algorithm,
    BudgetConfig,
    Decider,
    ExpertChoice,
    ProblemSpec,
    SumsPlan,
    System,
    check_linear,
    check_phase_length,
    choices_of,
)
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, PrivacyEvent, released, sealed
from fastfed.privacy.certificate import REAL_CHANCES_CAVEAT, Certificate
from fastfed.privacy.mechanisms.seldom import (
    MIN_CHANCE,
    Dartboard,
    calibrate_dartboard,
    simple_epsilon,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol

DARTBOARD = Protocol(
    "dartboard",
    "a trusted server keeps the expert of all by a coin, and draws another seldom",
    "central: the server is trusted; whoever sees the experts that are played is not",
    SEND_BATCH,
    ADD,
    "server",
    "asi-2022, private shrinking dartboard",
)

# ---- Plan and server -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DartboardPlan(SumsPlan):
    """Plan of one private-dartboard curve.

    Parameters
    ----------
    noise : Dartboard
        The calibrated mechanism: number of draws K, probability p and rate r.
    """

    noise: Dartboard

    def decider(self, noise: NoiseSource) -> Decider:
        """Return the server's state, with exact decisions if the noise source is exact."""
        return ExactDart(self, noise) if is_exact(noise) else Dart(self, noise)


@released.register
def _(plan: DartboardPlan) -> tuple[PrivacyEvent, ...]:
    """Return the released events: coins and draws."""
    return choices_of(plan, plan.noise, DARTBOARD)


class Dart(SeldomChooser):
    """State of the dartboard server."""

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release", "_expert", "_total", "switches")

    plan: DartboardPlan

    def _keeps(self, expert_loss: float, release: int) -> bool:
        """Toss the coin of exchange ``release``; return True if it keeps the current expert.

        ``expert_loss`` is the loss of the expert since the last coin.
        """
        return bool(self._draw(QUERY, release) < self.plan.noise.keeps(expert_loss))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Keep the expert or draw a new one, given the sums (d,) of all clients' new losses."""
        release, cumulative = self._release + 1, self._total + total
        expert, switches = self._expert, self.switches
        draws_remain = switches < self.plan.noise.switches
        if draws_remain and not self._keeps(float(total[expert]), release):
            expert, switches = self._draw_expert(cumulative, release), switches + 1
        choice_message = ExpertChoice(release, expert)
        # State changes only after the last step that can fail: a failed call can be repeated.
        self._total, self._release, self._draws = cumulative, release, {}
        self._expert, self.switches = expert, switches
        return choice_message


class ExactDart(ExactChooser, Dart):
    """State of the dartboard server whose decisions equal the decisions of real arithmetic."""

    def _keeps(self, expert_loss: float, release: int) -> bool:
        """Toss the coin of exchange ``release``; return True if it keeps the current expert.

        The probability of True, (1 - p) exp(-r ``expert_loss``), is computed exactly.
        ``expert_loss`` is the loss of the expert since the last coin.
        """
        return exact.kept(
            self.plan.noise.chance, expert_loss, self._rate, self._draw(QUERY, release)
        )


# ---- Regret bound, and the p and K that minimise it ----------------------------------------------
# Suppose that losses are fixed in advance and that draws never run out. Then the expert of block n
# (the rounds between two exchanges) has hedge's distribution P_n(x), proportional to
# exp(-r S_n(x)), where S_n(x) is the loss of x before the block. Proof by induction: let s be the
# losses of block n, and w = sum_y P_n(y) e^(-r s(y)). The expert of block n + 1 is x with
# probability
#     (1 - p) P_n(x) e^(-r s(x)) + P_(n+1)(x) (1 - (1 - p) w) = P_(n+1)(x),
# because P_n(x) e^(-r s(x)) = w P_(n+1)(x). So the expected loss of all clients equals hedge's: at
# most the best expert's loss plus ln d / r + r sum_n R_n^2 / 8, where R_n, the range of the losses
# of block n, is at most m times its rounds (Cesa-Bianchi & Lugosi 2006, Theorem 2.2). Given the
# past, a coin causes a draw with probability
# at most q = 1 - (1 - p) e^(-r m N). So the probability that more than K of E coins cause draws is
# at most P(Bin(E, q) > K). Until draws run out, the run equals one without a limit on draws;
# afterwards it loses at most m in each round.


def best_hedge_rate(problem: ProblemSpec, blocks: int, length: int) -> float:
    """Return the rate r of hedge with the least regret bound without privacy.

    It is sqrt(8 ln d / (blocks (m N)^2)) for d experts and m silos. N = ``length`` is the number of
    rounds of a block, the time between two exchanges.
    """
    log_d = math.log(max(problem.experts, 2))
    return math.sqrt(8.0 * log_d / blocks) / (problem.silos * length)


def draw_probability(chance: Any, rate: Any, largest_loss: float) -> Any:
    """Return q = 1 - (1 - p) exp(-r l), the largest probability that a coin causes a draw.

    The coin of an exchange decides whether a new expert is drawn. p is ``chance``, r is ``rate``,
    and l, ``largest_loss``, bounds the loss of the current expert between two coins.
    """
    return 1.0 - (1.0 - chance) * np.exp(-rate * largest_loss)


def probability_of_more_draws(switches: Any, coins: int, chance: Any) -> Any:
    """Return the probability that more than ``switches`` of ``coins`` coins cause a draw.

    Coins are independent, and each causes a draw with probability ``chance``.
    """
    from scipy.special import bdtrc

    return np.where(switches >= coins, 0.0, bdtrc(np.minimum(switches, coins - 1), coins, chance))


def regret_bound(
    rounds: float, blocks: float, plan: DartboardPlan, problem: ProblemSpec, exceeding: float
) -> float:
    """Return the bound on expected group regret in ``rounds`` rounds, for losses fixed in advance.

    ``blocks`` is the number of exchanges plus 1, and ``exceeding`` bounds the probability that
    draws run out.
    """
    m, rate, length = plan.silos, plan.noise.rate, plan.phase_length
    hedge_bound = math.log(problem.experts) / rate + rate * blocks * (m * length) ** 2 / 8.0
    return min(m * rounds, hedge_bound + m * rounds * exceeding)


def _least_draw_limit(chance: np.ndarray, coins: int, max_probability: float) -> np.ndarray:
    """Return the least limit K on draws that is seldom too small, for each ``chance``, (n,).

    Each of ``coins`` coins causes a draw of a new expert with probability ``chance`` (n,). They
    cause more than K draws with a probability of at most ``max_probability``.
    """
    low, high = np.zeros(len(chance)), np.full(len(chance), float(coins))
    while (high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        fits = probability_of_more_draws(middle, coins, chance) <= max_probability
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


@lru_cache(maxsize=1024)
def least_bound(
    budget: Budget,
    problem: ProblemSpec,
    length: int,
    coins: int,
    chance: float | None,
    switches: int | None,
) -> tuple[float, int]:
    """Return (p, K) with the least regret bound: probability of a draw, and limit on draws.

    p is the probability of a draw if the expert has no loss, and K limits the number of draws. A
    given ``chance`` fixes p, and given ``switches`` fix K. Otherwise p is searched on a grid.

    For each p, bisection finds the largest rate whose closed-form epsilon is within the budget. K
    is the least for which running out of draws costs at most one loss of one client. Of all p whose
    bound is within one loss of the minimum, the p with the least epsilon is returned.
    """
    grid = 2.0 ** np.arange(-80.0, 0.25, 0.25) if chance is None else np.array([chance])
    grid = grid[grid >= MIN_CHANCE]
    m, largest_loss = problem.silos, float(problem.silos * length)
    # With this probability of running out of draws, the expected cost is one loss of one client.
    max_probability = min(1.0, 1.0 / (m * problem.horizon))
    largest_rate = best_hedge_rate(problem, coins + 1, length)
    low, high = np.full(len(grid), 1e-12), np.full(len(grid), largest_rate)

    def draw_limits(rate: np.ndarray) -> np.ndarray:
        """Return K for each rate and p of the grid."""
        if switches is not None:
            return np.full(len(rate), float(switches))
        return np.maximum(
            _least_draw_limit(draw_probability(grid, rate, largest_loss), coins, max_probability),
            1.0,
        )

    def epsilons(rate: np.ndarray) -> np.ndarray:
        """Return the closed-form epsilon for each rate and p of the grid."""
        return np.array(
            [
                simple_epsilon(float(r), float(p), int(k), budget.delta)
                for r, p, k in zip(rate, grid, draw_limits(rate), strict=True)
            ]
        )

    # Bisect the logarithm of the rate, for all p at the same time.
    largest_rate_fits = epsilons(high) <= budget.epsilon
    for _ in range(30):
        middle = np.sqrt(low * high)
        within_budget = epsilons(middle) <= budget.epsilon
        low, high = np.where(within_budget, middle, low), np.where(within_budget, high, middle)
    rate = np.where(largest_rate_fits, largest_rate, low)
    limits = draw_limits(rate)
    group_regret = np.log(problem.experts) / rate + rate * (coins + 1) * largest_loss**2 / 8.0
    group_regret += (
        m
        * problem.horizon
        * probability_of_more_draws(limits, coins, draw_probability(grid, rate, largest_loss))
    )
    best = int(np.where(group_regret <= group_regret.min() + 1.0, epsilons(rate), np.inf).argmin())
    return float(grid[best]), int(limits[best])


# ---- Config and system ---------------------------------------------------------------------------

PROVEN = "proven"


class DartboardConfig(BudgetConfig, frozen=True, kw_only=True):
    """Keys of a private-dartboard curve, in addition to the keys of `BudgetConfig`.

    Parameters
    ----------
    phase_length : int, default 1
        N, the number of rounds between two exchanges.
    switch_probability : float or "proven"
        p in [1e-9, 1]: the least probability of a new draw in an exchange.
    switches : int or "proven"
        K, the largest number of draws after the first expert.
    """

    phase_length: int = 1
    switch_probability: float | str = PROVEN
    switches: int | str = PROVEN

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.switch_probability, str):
            choice("switch_probability", self.switch_probability, (PROVEN,))
        else:
            number("switch_probability", self.switch_probability, at_least=MIN_CHANCE, at_most=1.0)
        if isinstance(self.switches, str):
            choice("switches", self.switches, (PROVEN,))
        else:
            integer("switches", self.switches, at_least=1, at_most=2**30)


def build(config: DartboardConfig, problem: ProblemSpec) -> System:
    """Return the plan, certificate and bounds of one private-dartboard curve."""
    check_linear("private-dartboard", problem)
    length = check_phase_length(config.phase_length, problem)
    # An exchange follows every block of rounds. If blocks have one round, none follows the last.
    coins = problem.horizon // length - (length == 1)
    chance, switches = (
        None if isinstance(value, str) else value
        for value in (config.switch_probability, config.switches)
    )
    if coins == 0:
        # There is no draw, so p does not matter.
        chance, switches = chance or 1.0, 0
    elif chance is None or switches is None:
        sizes = replace(problem, notes=(), multiplicity=1)
        chance, switches = least_bound(config.budget, sizes, length, coins, chance, switches)
    noise = calibrate_dartboard(
        config.budget,
        switches=min(int(switches), coins),
        chance=float(chance),
        at_most=best_hedge_rate(problem, coins + 1, length),
    )
    plan = DartboardPlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=DARTBOARD,
        phase_length=length,
        noise=noise,
    )
    claim = Claim(
        budget=config.budget,
        source=noise.source,
        max_participations=problem.multiplicity,
        caveats=tuple(_regret_caveats(plan, problem)),
    )
    plan = sealed(replace(plan, privacy=claim))
    return System(
        "private-dartboard", plan, account(plan, problem), bound_curves(config, problem, plan)
    )


def bound_curves(
    config: DartboardConfig, problem: ProblemSpec, plan: DartboardPlan
) -> Callable[[np.ndarray], dict[str, list[float]]]:
    """Return a function from rounds (C,) to bounds on group regret, as lists by name.

    The bounds are the proven upper bound and the lower bounds.
    """

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Return the bounds at rounds (C,), by name."""
        run_out_probability = _run_out_probability(plan)
        curves = {
            "proven": [
                regret_bound(t, plan.exchanges_before(t) + 1, plan, problem, run_out_probability)
                for t in (int(r) for r in rounds)
            ]
        }
        return {**curves, **lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta)}

    return at


def _run_out_probability(plan: DartboardPlan) -> float:
    """Return an upper bound on the probability that draws run out within the horizon."""
    if plan.exchanges == 0:
        return 0.0
    largest_loss = float(plan.silos * plan.phase_length)
    chance = draw_probability(plan.noise.chance, plan.noise.rate, largest_loss)
    return float(probability_of_more_draws(plan.noise.switches, plan.exchanges, chance))


def _regret_caveats(plan: DartboardPlan, problem: ProblemSpec) -> list[str]:
    """Return the caveats about the regret bound, if draws may run out or the bound is vacuous."""
    regret_caveats = []
    chance = _run_out_probability(plan)
    if chance > 0.01:
        regret_caveats.append(
            f"draws may run out, with probability {chance:.2g} at most: the last expert is then "
            "used to the end"
        )
    if plan.exchanges:
        bound = regret_bound(plan.horizon, plan.exchanges + 1, plan, problem, chance)
        if bound >= plan.silos * plan.horizon:
            regret_caveats.append(
                "the proven bound says nothing at this horizon: every expert satisfies it"
            )
    return regret_caveats


@account.register
def _certificate(plan: DartboardPlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate for one record."""
    return certificate_of_choices(plan, problem, plan.noise, REAL_CHANCES_CAVEAT)


ALGORITHM = Algorithm(
    id="private-dartboard",
    paper="asi-2022",
    summary="private hedge with one expert for all, kept by a coin and rarely drawn again",
    config=DartboardConfig,
    build=build,
)
