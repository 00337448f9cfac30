"""Plans of experts: what the parties of a deployment make of them, and what they cost.

A release of `fed-dp-ope-stoch` is a phase that learns: the silos send a mean loss of each of its
trees, and the hub answers with the weights after all of its steps. Losses are linear, so that a
tree has one mean whatever x is, and the hub alone adds noise, to each leaf its own. A release of
`fed-svt` is an exchange of what every expert has lost since the one before.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fastfed._validate import InputError
from fastfed.deployment.phases import of_range, of_responses
from fastfed.experts import ProblemSpec
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.experts.plan import CENTRAL_SCORES, SPARSE_SWITCHING, check_expert_plan
from fastfed.privacy.account import VertexScores, released
from fastfed.privacy.accounting.binomial import TAIL_SHARES
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.sparse_vector import SparseSwitching
from fastfed.privacy.mechanisms.vertex_sets import _ways
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, NoiseStd, Plan, Radius

#: Plans of experts that are deployed.
Experts = FrankWolfePlan | SparseVectorPlan
#: Events of such plans.
Scores = VertexScores | SparseSwitching
#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12

#: What a deployment of experts takes on trust beside what its system does.
OWN = Condition(
    "a loss enters the place of its own decision, in that decision's period, or none: what is "
    "missing counts as a loss of 0, so a loss that comes late, or never, for reasons that are in "
    "it is one that was replaced",
    True,
)
PRESENT = Condition(
    "whether decisions are made, and whether a silo reports, does not depend on losses (taken on "
    "trust); a silo that is missing counts with losses of 0",
    True,
)


# ---- plans ---------------------------------------------------------------------------------------


def outline(plan: Experts) -> Plan:
    """The rounds of a plan of experts as fixed rounds: a release ends what its phase learns from.

    Its dimension is the number of experts, and it has no numbers of a linear bandit.
    """
    ends = tuple(int(round) - 1 for round in plan.asking_rounds(plan.horizon))
    return Plan(
        silos=plan.silos,
        horizon=plan.horizon,
        dimension=plan.experts,
        batch_size=max(b - a for a, b in zip((0, *ends), ends, strict=False)),
        lazy=True,
        protocol=plan.protocol,
        noise_std=NoiseStd(),
        regularizer=np.ones(1),
        radius=Radius(1.0, 0.0, 0.0, np.zeros(1), np.zeros(1)),
        clip=Clip(),
        release_rounds=ends,
    )


def even_start(plan: FrankWolfePlan) -> np.ndarray:
    """The weights (d,) before the first phase: those of all experts are the same."""
    return np.full(plan.experts, 1.0 / plan.experts)


def chosen_start(plan: SparseVectorPlan, digest: bytes) -> np.ndarray:
    """The weights (d,) before the first exchange: all of one expert, whom nobody chose."""
    made = np.zeros(plan.experts)
    made[first_expert(digest, plan.experts)] = 1.0
    return made


def first_expert(digest: bytes, experts: int) -> int:
    """The expert that everybody plays at first: a public function of the plan's SHA-256."""
    return int.from_bytes(digest[:8], "big") * experts >> 64


def tree_numbers(plan: FrankWolfePlan) -> int:
    """Numbers of a message: d for each of the trees of a phase, where it has most."""
    return plan.experts * max(phase.trees for phase in plan.phases)


def check_experts(plan: Experts) -> Experts:
    """Refuse a plan of experts that the parties of this package do not run, or not privately."""
    check_expert_plan(plan)
    claim = plan.privacy
    refused = {
        'other noise than "central"': plan.protocol not in (CENTRAL_SCORES, SPARSE_SWITCHING),
        "losses that are not linear": not plan.linear,
        "no exchange of losses": not plan.exchanges,
        "no budget": claim is None or claim.budget is None,
    }
    if claim is not None and claim.budget is not None and plan.exchanges:
        event = (released(plan) or (None,))[0]
        refused |= {
            "several losses of one record": claim.max_participations != 1,
            "delta = 0, of which a ledger can make no Gaussian mechanism": not claim.budget.delta,
            "a release without noise": not isinstance(event, Scores),
        }
    wrong = [what for what, found in refused.items() if found]
    if wrong:
        raise InputError(f"deployments do not run plans of experts with {', '.join(wrong)}")
    return plan


def problem_of(silos: int, horizon: int, experts: int) -> ProblemSpec:
    """What is known of losses in a deployment: what clipping enforces."""
    return ProblemSpec(
        silos=silos,
        horizon=horizon,
        experts=experts,
        notes=("deployment: losses are the silos' own, and of no law that is known",),
    )


# ---- costs ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def totals(event: Scores) -> tuple[float, float]:
    """(mu^2, told) of a whole plan, for a loss of whichever phase or exchange.

    Parameters
    ----------
    event : VertexScores or SparseSwitching

    Returns
    -------
    tuple of float

    Notes
    -----
    Guarantee: if one loss becomes any other, or none, the experts of all releases are mu-GDP but
    for an event of probability ``told``. One loss is in one set, and the argmins of the leaves
    below it are pure mechanisms, no easier to test than randomised responses
    (`phases.of_responses`). Of sparse switching the comparisons that a loss moves are one pure
    mechanism together, and each switch is an exponential mechanism (`phases.of_range`).
    """
    delta = budget_of(event).delta
    pairs = [(square(event, delta * share), delta * share) for share in TAIL_SHARES]
    return min(pairs, key=lambda pair: _epsilon(pair, delta))


def budget_of(event: Scores) -> Budget:
    """The budget of a plan of experts."""
    return event.budget if isinstance(event, SparseSwitching) else event.noises[0].budget


def charged(plan: Experts) -> tuple[float, float] | None:
    """(epsilon asked for, epsilon charged) of a plan; None of one that is refused later."""
    event = next(iter(released(plan) or ()), None)
    # Of delta = 0 a ledger says no epsilon.
    if not isinstance(event, Scores) or not budget_of(event).delta:
        return None
    return budget_of(event).epsilon, charged_epsilon(event)


def charged_epsilon(event: Scores) -> float:
    """Epsilon that a ledger makes of a plan, at the budget's delta: squared, or added up."""
    return min(_epsilon(totals(event), budget_of(event).delta), event.exact(0.0) * _UP)


def _epsilon(pair: tuple[float, float], delta: float) -> float:
    squared, told = pair
    if not math.isfinite(squared):
        return math.inf
    return gaussian_epsilon(math.sqrt(squared * _UP), delta - told * _UP)


def square(event: Scores, told: float) -> float:
    """mu^2 of the set of losses that costs most, or of all switches, but for ``told``."""
    if isinstance(event, SparseSwitching):
        compared = of_responses(1, event.comparisons.epsilon, told) ** 2
        return (compared + event.switches * of_range(event.eta) ** 2) * _UP
    largest = 0.0
    for noise in event.noises:
        for each in noise.sets:
            change = each.change / noise.scales[each.tree - 1]
            if change:
                ways = _ways(each.leaves, noise.experts, "experts")
                found = min(of_responses(count, f * change, told) for _, f, count in ways)
                largest = max(largest, found)
    return largest * largest * _UP
