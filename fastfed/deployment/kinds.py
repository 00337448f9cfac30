"""Kinds of plans that are deployed: all that tells them apart, and silo and hub of each.

A new kind is one file with what its plans need and one with its parties, and one entry of `KINDS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fastfed._system import Algorithm, System, account
from fastfed._validate import InputError
from fastfed.bandits import ProblemSpec
from fastfed.deployment import expert_plans, phases, supported
from fastfed.experts import ProblemSpec as ExpertProblem
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.privacy.certificate import Certificate, Condition, deployed
from fastfed.protocols.plan import Plan
from fastfed.protocols.serverless import PhasePlan

if TYPE_CHECKING:
    from fastfed.deployment.hub import Hub
    from fastfed.deployment.ledger import Ledger
    from fastfed.deployment.plans import DeployedPlan
    from fastfed.deployment.silo import SiloParty

#: Plans that are deployed.
Executed = Plan | PhasePlan | FrankWolfePlan | SparseVectorPlan


@dataclass(frozen=True)
class Kind:
    """What a deployment asks of plans of one type.

    Parameters
    ----------
    problem : type
        Of its problem: what is known of silos, horizon and dimension.
    dimension : callable
        The dimension of a problem.
    rounds : callable
        Its fixed rounds, as a `Plan`; InputError for one that is not deployed, or not private.
    message_size : callable
        The numbers that a message holds.
    conditions : callable
        What its deployment takes on trust, beside what its system does: of the plan, and whether it
        has a helper.
    charged : callable
        (epsilon asked for, epsilon charged), where a charge is not the certificate's; or None.
    silo, hub : str
        Module and class of its parties.
    linear : bool
        True for the rounds of a linear bandit: records are a person's, a plan may have columns of
        records, explore, and continue another.
    experts : bool
        True if what comes back are losses of all experts.
    """

    problem: type[Any]
    dimension: Callable[[Any], int]
    rounds: Callable[[Any], Plan]
    message_size: Callable[[Any], int]
    conditions: Callable[[Any, bool], tuple[Condition, ...]]
    charged: Callable[[Any], tuple[float, float] | None]
    silo: str
    hub: str
    linear: bool = False
    experts: bool = False


def _of_experts(message_size: Callable[[Any], int], silo: str, hub: str) -> Kind:
    return Kind(
        problem=ExpertProblem,
        dimension=lambda problem: int(problem.experts),
        rounds=lambda plan: expert_plans.outline(expert_plans.check_experts(plan)),
        message_size=message_size,
        conditions=lambda plan, helper: (expert_plans.OWN, expert_plans.PRESENT),
        charged=expert_plans.charged,
        silo=silo,
        hub=hub,
        experts=True,
    )


LINEAR = Kind(
    problem=ProblemSpec,
    dimension=lambda problem: int(problem.dimension),
    rounds=supported.rounds,
    message_size=lambda plan: int(plan.statistic_size),
    conditions=supported.conditions,
    charged=supported.charged,
    silo="silo.SiloParty",
    hub="hub.Hub",
    linear=True,
)
#: All kinds, by the type of the plan.
KINDS: dict[type, Kind] = {
    Plan: LINEAR,
    PhasePlan: Kind(
        problem=ProblemSpec,
        dimension=lambda problem: int(problem.dimension),
        rounds=lambda plan: phases.outline(phases.check_phases(plan)),
        # A message is an estimate, or a model.
        message_size=lambda plan: int(plan.local.dimension),
        conditions=lambda plan, helper: (phases.LATE, phases.ATTENDED),
        charged=phases.charged,
        silo="phase_parties.PhaseSilo",
        hub="phase_parties.PhaseHub",
    ),
    FrankWolfePlan: _of_experts(
        expert_plans.tree_numbers, "expert_parties.ExpertSilo", "expert_parties.ExpertHub"
    ),
    SparseVectorPlan: _of_experts(
        lambda plan: int(plan.experts), "expert_parties.SparseSilo", "expert_parties.SparseHub"
    ),
}


def kind_of(plan: object) -> Kind:
    """Return the kind of a plan; InputError for an object that is no plan of a deployment."""
    found = KINDS.get(type(plan))
    if found is None:
        raise InputError("the plan file must hold a plan that is deployed, and its problem")
    return found


def silo_of(
    deployed: DeployedPlan,
    name: str,
    secret: bytes,
    ledger: Ledger,
    dataset: str = "records",
    **more: Any,
) -> SiloParty:
    """Make the silo of any plan, see `SiloParty`."""
    made: SiloParty = _party(deployed.kind.silo)(deployed, name, secret, ledger, dataset, **more)
    return made


def hub_of(deployed: DeployedPlan, secret: bytes, **more: Any) -> Hub:
    """Make the hub of any plan, see `Hub`."""
    made: Hub = _party(deployed.kind.hub)(deployed, secret, **more)
    return made


def _party(path: str) -> Any:
    module, name = path.split(".")
    return getattr(importlib.import_module(f"fastfed.deployment.{module}"), name)


# ---- certificates and charges --------------------------------------------------------------------


def certified(
    plan: Executed, problem: ProblemSpec | ExpertProblem, helper: bool = False
) -> Certificate:
    """Return the certificate of a deployed plan, from its numbers.

    helper: sums are hidden by shares for hub and helper, and else by masks.
    """
    kind, found = kind_of(plan), deployed(account(plan, problem))
    own = (supported.KEPT, *kind.conditions(plan, helper))
    if not kind.linear:
        return msgspec.structs.replace(found, conditions=(*found.conditions, *own))
    return supported.with_conditions(found, own)


def affordable(
    algorithm: Algorithm, keys: dict[str, Any], problem: ProblemSpec | ExpertProblem
) -> System:
    """The system of a spec, with a charge that is within the epsilon that was asked for.

    A ledger keeps one pair (mu^2, told) of a plan, for users of whichever batch. Of noise bits in
    batches that differ it may say a little more than the certificate, which takes another pair for
    each batch: some 10^-4 of epsilon, by which the system is then asked for less. Of private means
    it says some hundredths more, as a Gaussian mechanism stands for them.
    """
    system = algorithm.make(keys, problem)
    asked = None
    for _ in range(6):
        made = kind_of(system.plan).charged(system.plan)
        if made is None:
            break
        budget, found = made
        asked = budget if asked is None else asked
        if found <= asked or not math.isfinite(found):
            break
        keys = keys | {"epsilon": budget * asked / found * (1.0 - 1e-6)}
        system = algorithm.make(keys, problem)
    return system
