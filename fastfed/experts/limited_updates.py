"""Limited updates (asi-2022) for i.i.d. losses: draw a new expert at each power of two.

Before round 2^i the server draws an expert from the losses of rounds 2^(i-1) .. 2^i - 1 only, and
all clients use it until round 2^(i+1). Each loss is used for one draw, so every draw can use the
whole privacy budget. Gao et al. (2024), Table 1, compare Fed-DP-OPE-Stoch with this algorithm.
Deviations from the paper, and why:

- The paper has one client and allows any private learner in a phase. Here losses are linear, the
  learner is the exponential mechanism, and it uses the losses of all m clients. ``silos = 1`` gives
  the paper's algorithm.
- eta is epsilon for delta = 0, and otherwise the largest that one exponential mechanism allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fastfed._random import NoiseSource, is_exact
from fastfed._system import account
from fastfed._validate import InputError
from fastfed.experts.certify import certificate_of_choices
from fastfed.experts.deciders import Chooser, ExactChooser
from fastfed.experts.lower_bounds import lower_bound_curves
from fastfed.experts.plan import (
    Algorithm,
    BudgetConfig,
    Collector,
    Decider,
    ExpertChoice,
    ExpertPlan,
    ProblemSpec,
    SumCollector,
    System,
    check_linear,
    choices_of,
)
from fastfed.privacy import exact
from fastfed.privacy.account import Claim, PrivacyEvent, released, sealed
from fastfed.privacy.certificate import REAL_CHANCES_CAVEAT, Certificate
from fastfed.privacy.mechanisms.laplace import Exponential
from fastfed.privacy.mechanisms.seldom import FreshChoices, calibrate_choices
from fastfed.protocols.protocol import ADD, SEND_BATCH, Protocol

LIMITED_UPDATES = Protocol(
    "limited-updates",
    "a trusted server draws the expert of all from the last losses, at powers of two",
    "central: the server is trusted; whoever sees the experts that are played is not",
    SEND_BATCH,
    ADD,
    "server",
    "asi-2022, limited updates for stochastic adversaries",
)

# ---- Plan and server -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LimitedPlan(ExpertPlan):
    """Plan of one limited-updates curve: exchanges before rounds 2, 4, 8, ...

    Parameters
    ----------
    noise : FreshChoices
        The calibrated mechanism.
    """

    noise: FreshChoices

    @property
    def exchanges(self) -> int:
        """Return the total number of exchanges."""
        return self.exchanges_before(self.horizon)

    def exchanges_before(self, round: int) -> int:
        """Return the number of exchanges that must be completed before a round."""
        return max(min(round, self.horizon).bit_length() - 1, 0)

    def asking_rounds(self, last: int) -> np.ndarray:
        """Return the rounds up to ``last`` that begin with an exchange, ascending."""
        return 2 ** np.arange(1, int(last).bit_length(), dtype=np.int64)

    def collector(self, index: int, noise: NoiseSource) -> Collector:
        """Return the initial state of client ``index``."""
        points = self.silos * self.horizon
        return SumCollector(self.experts, exact.quantum(points) if is_exact(noise) else None)

    def decider(self, noise: NoiseSource) -> Decider:
        """Return the server's state, with exact decisions if the noise source is exact."""
        return ExactLast(self, noise) if is_exact(noise) else Last(self, noise)


@released.register
def _(plan: LimitedPlan) -> tuple[PrivacyEvent, ...]:
    """Return the released events: the choices of experts."""
    if plan.noise.choices != plan.exchanges:
        raise InputError(
            f"noise must be of {plan.exchanges} choices, one for each exchange, got "
            f"{plan.noise.choices}"
        )
    return choices_of(plan, plan.noise, LIMITED_UPDATES)


class Last(Chooser):
    """State of a server that draws an expert by the losses since the last exchange only."""

    #: Attributes that an exchange changes; snapshots of simulations store them.
    KEPT = ("_release", "_expert", "switches")

    plan: LimitedPlan

    @property
    def _choices(self) -> Exponential:
        """The mechanism that draws an expert."""
        return self.plan.noise.mechanism

    def decide(self, total: np.ndarray) -> ExpertChoice:
        """Draw an expert, given the sums (d,) of all clients' losses since the last exchange."""
        release = self._release + 1
        expert = self._draw_expert(total, release)
        choice_message = ExpertChoice(release, expert)
        # State changes only after the last step that can fail: a failed call can be repeated.
        self.switches += expert != self._expert
        self._release, self._expert, self._draws = release, expert, {}
        return choice_message


class ExactLast(ExactChooser, Last):
    """State of the server of `Last`, with decisions that equal those of real arithmetic."""


# ---- Bound ---------------------------------------------------------------------------------------
# Suppose that the losses of all clients and rounds are independent, of one distribution with means
# mu(x). Before round 2^i the server uses n = m 2^(i-1) losses. Let S be their sums and P the
# distribution of the chosen x. P minimises E_P S(x) + (2/eta) KL(P, uniform), so
# E_P S(x) <= min S + 2 ln d / eta. And n mu(x) - S(x) <= max_x (n mu(x) - S(x)), whose mean is at
# most sqrt(n ln d / 2), since summands are in [0, 1] (Hoeffding's lemma, and the maximum of d
# sub-Gaussian numbers of variance n/4).
# Together n (E mu(x) - min mu) <= 2 ln d / eta + sqrt(n ln d / 2). The m clients use the expert for
# 2^i rounds, that is for 2 n losses.


def limited_regret(rounds: int, clients: int, experts: int, eta: float) -> float:
    """Return the bound on expected group pseudo-regret of limited updates, for i.i.d. losses.

    Round 1 contributes at most m. Each phase of rounds 2^i to 2^(i+1) - 1 contributes its number of
    losses times the bound for one loss, which the comment above proves.

    Parameters
    ----------
    rounds, clients, experts : int
        T, m and d.
    eta : float
        eta of the exponential mechanism: weights are exp(-eta loss / 2).
    """
    log_d = math.log(experts)
    group_regret = float(clients)  # of round 1
    first = 2  # the first round of a phase
    while first <= rounds:
        losses_in_phase = clients * (min(rounds, 2 * first - 1) - first + 1)
        # The expert was drawn from the losses of the (first / 2) rounds before this phase.
        losses_used = clients * first // 2
        bound_per_loss = (2.0 * log_d / eta + math.sqrt(losses_used * log_d / 2.0)) / losses_used
        group_regret += losses_in_phase * min(bound_per_loss, 1.0)
        first *= 2
    return group_regret


# ---- System --------------------------------------------------------------------------------------


def build(config: BudgetConfig, problem: ProblemSpec) -> System:
    """Return the plan, certificate and bounds of one limited-updates curve."""
    check_linear("limited-updates", problem)
    noise = calibrate_choices(config.budget, choices=problem.horizon.bit_length() - 1)
    plan = LimitedPlan(
        silos=problem.silos,
        horizon=problem.horizon,
        experts=problem.experts,
        protocol=LIMITED_UPDATES,
        noise=noise,
    )
    claim = Claim(
        budget=config.budget,
        source=noise.source,
        max_participations=problem.multiplicity,
        caveats=tuple(_regret_caveats(problem)),
    )
    plan = sealed(replace(plan, privacy=claim))
    return System(
        "limited-updates", plan, account(plan, problem), bound_curves(config, problem, plan)
    )


def bound_curves(
    config: BudgetConfig, problem: ProblemSpec, plan: LimitedPlan
) -> Callable[[np.ndarray], dict[str, list[float]]]:
    """Return a function from rounds (C,) to bounds on group regret, as lists by name.

    The bounds are the proven upper bound, if losses are i.i.d., and the lower bounds.
    """

    def at(rounds: np.ndarray) -> dict[str, list[float]]:
        """Return the bounds at rounds (C,), by name."""
        curves = {}
        if problem.iid:
            curves["proven"] = [
                limited_regret(int(t), plan.silos, plan.experts, plan.noise.eta) for t in rounds
            ]
        return {**curves, **lower_bound_curves(plan, problem, rounds, config.epsilon, config.delta)}

    return at


def _regret_caveats(problem: ProblemSpec) -> list[str]:
    """Return the caveats about the regret bound of a curve, none for i.i.d. losses."""
    if problem.iid:
        return []
    return [
        "there is no bound on the regret: these losses are not of one distribution, and losses "
        "before the last exchange are not used"
    ]


@account.register
def _certificate(plan: LimitedPlan, problem: ProblemSpec) -> Certificate:
    """Return the certificate for one record."""
    return certificate_of_choices(plan, problem, plan.noise, REAL_CHANCES_CAVEAT)


ALGORITHM = Algorithm(
    id="limited-updates",
    paper="asi-2022",
    summary="at each power of two the expert that lost least since the last one, by chance",
    config=BudgetConfig,
    build=build,
)
