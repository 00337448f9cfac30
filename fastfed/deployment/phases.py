"""Plans in phases (`robin`): what the parties of a deployment make of them, and what they cost.

A ledger adds up squared GDP parameters, and the means of a plan are exponential mechanisms and
Laplace noise. `totals` finds the parameter of a Gaussian mechanism that they are together, but for
an event of some probability. Let e be half of epsilon', the share of a range and of a noise, and n
the coordinates of all means so far.

1. The Laplace noises are (e, 0)-private each, so no easier to test than n randomised responses
   (Kairouz, Oh & Viswanath 2015). Both trade-off functions are convex, that of the responses is
   linear between n + 2 vertices, so a Gaussian one that is below it there is below it everywhere.
   The event of probability ``told`` takes the vertices away that no Gaussian one is below of.
2. Each range is an exponential mechanism of range e: on two neighbours no easier to test than a
   coin of chances p and q with logit p - logit q = e. That is mu-GDP with
   mu = Phi^-1(p) - Phi^-1(q), largest where p = 1 - q: logit(Phi(z)) is convex for z >= 0, since
   its slope phi / (Phi (1 - Phi)) grows as the hazard h of a normal has h(z) - h(-z) >= z.
3. Squares add up, also where later means are chosen in view of earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist

from fastfed._validate import InputError
from fastfed.privacy.account import WinsorizedMeans, released
from fastfed.privacy.accounting.binomial import TAIL_SHARES
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Plan
from fastfed.protocols.serverless import PRIVATE_MEAN, PhasePlan, check_phase_plan, last_round

#: Parameters are rounded up by this, and probabilities away from where they help.
_UP, _PART = 1.0 + 1e-12, 1e-9
_NORMAL = NormalDist()

#: What a deployment of a plan in phases takes on trust beside what its system does.
ATTENDED = Condition(
    "whether and when a silo reports, is away or leaves does not depend on its records (taken on "
    "trust); the estimate of a silo that is missing counts as 0",
    True,
)
LATE = Condition(
    "a record may come late, or never, for reasons that are in it: all that a silo holds is "
    "protected at once",
    True,
)


# ---- plans ---------------------------------------------------------------------------------------


def outline(plan: PhasePlan) -> Plan:
    """The rounds of a plan in phases as fixed rounds: a release ends a phase, the first one U.

    Its numbers are those of the initial phases, and it has no noise: `PhasePlan.means` has.
    """
    ends = tuple(last_round(phase) for phase in plan.releasing)
    longest = max(b - a for a, b in zip((0, *ends), ends, strict=False))
    return replace(
        plan.local, protocol=PRIVATE_MEAN, batch_size=longest, release_rounds=ends, lazy=True
    )


def check_phases(plan: PhasePlan) -> PhasePlan:
    """Refuse a plan in phases that the parties of this package do not run."""
    check_phase_plan(plan)
    local = plan.local
    refused = {
        "plain means": plan.protocol != PRIVATE_MEAN,
        "no phase whose estimates are sent": not plan.releasing,
        "no clipping": local.clip is None,
        "a public intercept": local.clip is not None and local.clip.constant > 0.0,
        "a score function": local.score is not None,
        "another policy than ucb": local.policy != "ucb",
        "a trigger, own rounds or batches": local.trigger is not None
        or local.own is not None
        or local.releases > 0,
        "means of different epsilon": len({m.epsilon_coordinate for m in plan.means}) > 1,
    }
    wrong = [what for what, found in refused.items() if found]
    if wrong:
        raise InputError(f"deployments do not run plans in phases with {', '.join(wrong)}")
    return plan


# ---- costs ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def totals(event: WinsorizedMeans) -> tuple[tuple[float, float], ...]:
    """(mu^2, told) of the first k means together, k = 0..K.

    Of the shares of delta that an event may have, the one that gives all of them the least epsilon.

    Parameters
    ----------
    event : WinsorizedMeans

    Returns
    -------
    tuple of (float, float)

    Notes
    -----
    Guarantee: if all that one silo holds becomes anything else, the means 1..k are mu-GDP but for
    an event of probability ``told``. The proof stands at the top of this module.
    """
    mean, count = event.means[0], len(event.means)
    half, delta = mean.epsilon_coordinate / 2.0, mean.budget.delta
    told = delta * min(
        TAIL_SHARES,
        key=lambda share: _epsilon(squared(count * mean.padded, half, delta * share), delta, share),
    )
    made = [(0.0, 0.0)]
    for k in range(1, count + 1):
        made.append((max(squared(k * mean.padded, half, told), made[-1][0]), told))
    return tuple(made)


def charged(plan: PhasePlan) -> tuple[float, float] | None:
    """(epsilon asked for, epsilon charged) of a plan."""
    event = next(iter(released(plan) or ()), None)
    if not isinstance(event, WinsorizedMeans):
        return None
    return plan.means[0].budget.epsilon, charged_epsilon(event)


def charged_epsilon(event: WinsorizedMeans) -> float:
    """Epsilon that a ledger makes of all means, at the budget's delta."""
    square, told = totals(event)[-1]
    delta = event.means[0].budget.delta
    return _epsilon(square, delta, told / delta)


def _epsilon(square: float, delta: float, share: float) -> float:
    if not math.isfinite(square):
        return math.inf
    return gaussian_epsilon(math.sqrt(square * _UP), delta * (1.0 - share * _UP))


def squared(coordinates: int, half: float, told: float) -> float:
    """mu^2 of so many ranges and Laplace noises of epsilon ``half`` each, but for ``told``."""
    ranges = coordinates * of_range(half) ** 2
    return (of_responses(coordinates, half, told) ** 2 + ranges) * _UP


def of_range(epsilon: float) -> float:
    """mu of one exponential mechanism of this range."""
    return -2.0 * _NORMAL.inv_cdf(1.0 / (1.0 + math.exp(epsilon / 2.0)))


def of_responses(count: int, epsilon: float, told: float) -> float:
    """mu of so many randomised responses together, but for an event of probability ``told``.

    By symmetry vertices (alpha, 1 - gamma) with alpha <= 1 - gamma are enough.
    """
    found = 0.0
    for alpha, gamma in _vertices(count, epsilon):
        if alpha + gamma > 1.0 + 4.0 * _PART:
            break
        low, high = alpha / (1.0 - told), (gamma - told) / (1.0 - told)
        if high > 0.0:
            if not (low > 0.0 and high < 1.0):
                return math.inf
            found = max(found, _NORMAL.inv_cdf(high) - _NORMAL.inv_cdf(low))
    return found


@lru_cache(maxsize=64)
def _vertices(count: int, epsilon: float) -> tuple[tuple[float, float], ...]:
    """(alpha, gamma) of tests by the number of true responses: both kinds' lower tails."""
    log_true, log_false = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    alpha, gamma, made = 0.0, 0.0, []
    for j in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
        alpha += math.exp(ways + j * log_true + (count - j) * log_false)
        gamma += math.exp(ways + j * log_false + (count - j) * log_true)
        made.append((alpha * (1.0 - _PART), min(gamma * (1.0 + _PART), 1.0)))
    return tuple(made)
