"""The private shrinking dartboard (asi-2022): an expert that is kept by chance, and few draws.

It is hedge for whoever sees one round alone: the expert of a round has the distribution of
hedge's weights, as long as draws are left (Geulen, Vöcking & Winkler 2010). Gao et al. (2024),
Table 1, compare their systems with it. Deviations from the paper, and why:

- The paper has one client. Here a loss is what all m clients have lost since the last exchange;
  with ``silos = 1`` and ``phase_length = 1`` it is the paper's algorithm. The privacy of one loss
  of one client depends on neither m nor N (`fastfed.privacy.mechanisms.seldom`).
- The two coins of a round are one, of the product of their chances.
- eta = 1 - exp(-r) is the largest that the exact account allows, and at most what hedge would
  choose; p = ``switch_probability`` and K = ``switches`` are by default those of the least proven
  regret. The paper's constants are not here: what holds is computed for any p and K.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from fastfed._random import QUERY, NoiseSource, is_exact
from fastfed._system import account
from fastfed._validate import choice, integer, number
from fastfed.experts.certify import certificate_of_choices
from fastfed.experts.deciders import ExactChooser, SeldomChooser
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    Algorithm,
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
from fastfed.privacy.certificate import REAL_CHANCES, Certificate
from fastfed.privacy.mechanisms.seldom import (
    LEAST_CHANCE,
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
        The calibrated mechanism: draws, chance and rate.
    """

    noise: Dartboard

    def decider(self, noise: NoiseSource) -> Decider:
        """Make the server: with exact decisions where the noise source is exact."""
        return ExactDart(self, noise) if is_exact(noise) else Dart(self, noise)


@released.register
def _(plan: DartboardPlan) -> tuple[PrivacyEvent, ...]:
    """Everything released: coins and draws."""
    return choices_of(plan, plan.noise, DARTBOARD)


class Dart(SeldomChooser):
    """Server of the dartboard."""

    #: What exchanges change, for snapshots of simulations.
    KEPT = ("_release", "_expert", "_total", "switches")

    plan: DartboardPlan

    def _keeps(self, lost: float, release: int) -> bool:
        """True if the expert stays, when it has lost so much since the last coin."""
        return bool(self._draw(QUERY, release) < self.plan.noise.keeps(lost))

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Keep the expert or draw one, from the sums (d,) of all clients' losses."""
        release, lost = self._release + 1, self._total + total
        expert, switches = self._expert, self.switches
        left = switches < self.plan.noise.switches
        if left and not self._keeps(float(total[expert]), release):
            expert, switches = self._choose(lost, release), switches + 1
        made = ExpertChoice(release, expert)
        # Everything is computed: from here on nothing can fail.
        self._total, self._release, self._drawn = lost, release, {}
        self._expert, self.switches = expert, switches
        return made


class ExactDart(ExactChooser, Dart):
    """Server of the dartboard with decisions as for real numbers."""

    def _keeps(self, lost: float, release: int) -> bool:
        """True if the expert stays, when it has lost so much since the last coin."""
        return exact.kept(self.plan.noise.chance, lost, self._rate, self._draw(QUERY, release))


# ---- Bound, and the p and K of the least one -----------------------------------------------------
# Let losses be fixed in advance, and draws never run out. Then the expert of a block (the rounds
# between two exchanges) has the distribution P_n of hedge, P_n(x) ~ exp(-r S_n(x)). By induction,
# with the coin of s, P(x at n + 1) = (1 - p) P_n(x) e^(-r s(x)) + P_(n+1)(x) (1 - (1 - p) w) with w
# = sum_y P_n(y) e^(-r s(y)), and P_n(x) e^(-r s(x)) = w P_(n+1)(x). So the expected loss of all
# clients is hedge's: at most the best expert's plus ln d / r + r sum_n R_n^2 / 8, where R_n, the
# range of the losses of block n, is at most m times its rounds (Cesa-Bianchi & Lugosi 2006, Theorem
# 2.2).
# A coin falls for a draw with probability q = 1 - (1 - p) e^(-r m N) at most, whatever came before.
# So more than K of E coins do with probability P(Bin(E, q) > K) at most; until then the run with K
# draws is the one without a limit, and after that it loses m a round at most.


def hedge_rate(problem: ProblemSpec, blocks: int, length: int) -> float:
    """r of the least bound without privacy: sqrt(8 ln d / (blocks (m N)^2))."""
    log_d = math.log(max(problem.experts, 2))
    return math.sqrt(8.0 * log_d / blocks) / (problem.silos * length)


def draw_chance(chance: Any, rate: Any, most: float) -> Any:
    """q: the most that a coin falls for a draw with, if a block loses at most so much."""
    return 1.0 - (1.0 - chance) * np.exp(-rate * most)


def exceeded(switches: Any, coins: int, chance: Any) -> Any:
    """P(Bin(coins, chance) > switches)."""
    from scipy.special import bdtrc

    return np.where(switches >= coins, 0.0, bdtrc(np.minimum(switches, coins - 1), coins, chance))


def regret_bound(
    rounds: float, blocks: float, plan: DartboardPlan, problem: ProblemSpec, exceeding: float
) -> float:
    """Expected group regret after so many rounds, of losses that are fixed in advance."""
    m, rate, length = plan.silos, plan.noise.rate, plan.phase_length
    own = math.log(problem.experts) / rate + rate * blocks * (m * length) ** 2 / 8.0
    return min(m * rounds, own + m * rounds * exceeding)


def _least_switches(chance: np.ndarray, coins: int, most: float) -> np.ndarray:
    """Least K, by chance, for which `exceeded` is at most ``most``."""
    low, high = np.zeros(len(chance)), np.full(len(chance), float(coins))
    while (high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        fits = exceeded(middle, coins, chance) <= most
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
    """Return (p, K) of the least bound on a grid of p, each as given where it is given.

    For each p the largest rate is sought whose closed-form account is within the budget; K is the
    least for which running out of draws costs one loss of one client at most. Of all p whose bound
    is the least but for one loss, that of the least epsilon is taken.
    """
    grid = 2.0 ** np.arange(-80.0, 0.25, 0.25) if chance is None else np.array([chance])
    grid = grid[grid >= LEAST_CHANCE]
    m, most = problem.silos, float(problem.silos * length)
    tail = min(1.0, 1.0 / (m * problem.horizon))
    largest = hedge_rate(problem, coins + 1, length)
    low, high = np.full(len(grid), 1e-12), np.full(len(grid), largest)

    def draws(rate: np.ndarray) -> np.ndarray:
        """K, by rate and p."""
        if switches is not None:
            return np.full(len(rate), float(switches))
        return np.maximum(_least_switches(draw_chance(grid, rate, most), coins, tail), 1.0)

    def costs(rate: np.ndarray) -> np.ndarray:
        """Epsilon in closed form, by rate and p."""
        return np.array(
            [
                simple_epsilon(float(r), float(p), int(k), budget.delta)
                for r, p, k in zip(rate, grid, draws(rate), strict=True)
            ]
        )

    whole = costs(high) <= budget.epsilon
    for _ in range(30):
        middle = np.sqrt(low * high)
        good = costs(middle) <= budget.epsilon
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    rate = np.where(whole, largest, low)
    count = draws(rate)
    lost = np.log(problem.experts) / rate + rate * (coins + 1) * most**2 / 8.0
    lost += m * problem.horizon * exceeded(count, coins, draw_chance(grid, rate, most))
    best = int(np.where(lost <= lost.min() + 1.0, costs(rate), np.inf).argmin())
    return float(grid[best]), int(count[best])


# ---- Config and system ---------------------------------------------------------------------------

PROVEN = "proven"


class DartboardConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a private-dartboard curve.

    Parameters
    ----------
    epsilon : float
        Budget of one record, in [1e-9, 1e6].
    delta : float, default 0
        Budget of one record, in [0, 1).
    phase_length : int, default 1
        N, rounds between two exchanges.
    switch_probability : float or "proven"
        p in [1e-9, 1]: the least probability of a new draw in an exchange.
    switches : int or "proven"
        K, the most draws of an expert after the first.
    """

    epsilon: float
    delta: float = 0.0
    phase_length: int = 1
    switch_probability: float | str = PROVEN
    switches: int | str = PROVEN

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, at_least=1e-9, at_most=1e6)
        number("delta", self.delta, at_least=0.0, below=1.0)
        integer("phase_length", self.phase_length, at_least=1)
        if isinstance(self.switch_probability, str):
            choice("switch_probability", self.switch_probability, (PROVEN,))
        else:
            number(
                "switch_probability", self.switch_probability, at_least=LEAST_CHANCE, at_most=1.0
            )
        if isinstance(self.switches, str):
            choice("switches", self.switches, (PROVEN,))
        else:
            integer("switches", self.switches, at_least=1, at_most=2**30)


def build(config: DartboardConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one private-dartboard curve."""
    check_linear("private-dartboard", problem)
    length = check_phase_length(config.phase_length, problem)
    budget = Budget(config.epsilon, config.delta, "replace", "user")
    coins = problem.horizon // length - (length == 1)
    chance, switches = (
        None if isinstance(value, str) else value
        for value in (config.switch_probability, config.switches)
    )
    if coins == 0:
        chance, switches = chance or 1.0, 0
    elif chance is None or switches is None:
        sizes = replace(problem, notes=(), multiplicity=1)
        chance, switches = least_bound(budget, sizes, length, coins, chance, switches)
    noise = calibrate_dartboard(
        budget,
        switches=min(int(switches), coins),
        chance=float(chance),
        at_most=hedge_rate(problem, coins + 1, length),
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
        budget=budget,
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
    """Bounds of expected group regret at rounds (C,): the proven one, and lower ones."""

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Bounds at rounds (C,), by name."""
        beyond = _exceeding(plan)
        found = {
            "proven": [
                regret_bound(t, plan.exchanges_before(t) + 1, plan, problem, beyond)
                for t in (int(r) for r in rounds)
            ]
        }
        return {**found, **lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta)}

    return at


def _exceeding(plan: DartboardPlan) -> float:
    """Probability, at most, that draws run out within the horizon."""
    if plan.exchanges == 0:
        return 0.0
    most = float(plan.silos * plan.phase_length)
    chance = draw_chance(plan.noise.chance, plan.noise.rate, most)
    return float(exceeded(plan.noise.switches, plan.exchanges, chance))


def _regret_caveats(plan: DartboardPlan, problem: ProblemSpec) -> list[str]:
    """Caveats about the regret."""
    found = []
    chance = _exceeding(plan)
    if chance > 0.01:
        found.append(
            f"draws may run out, with probability {chance:.2g} at most: the last expert is then "
            "played to the end"
        )
    if plan.exchanges:
        most = regret_bound(plan.horizon, plan.exchanges + 1, plan, problem, chance)
        if most >= plan.silos * plan.horizon:
            found.append("the proven bound says nothing at this horizon: every expert satisfies it")
    return found


@account.register
def _certificate(plan: DartboardPlan, problem: ProblemSpec) -> Certificate:
    """The certificate for one record: a loss of one client in one round, or all it is behind."""
    return certificate_of_choices(plan, problem, plan.noise, REAL_CHANCES)


ALGORITHM = Algorithm(
    id="private-dartboard",
    paper="asi-2022",
    summary="private hedge with one expert for all, kept by a coin and drawn anew seldom",
    config=DartboardConfig,
    build=build,
)
