"""A small federation of each kind of plan that is deployed."""

from functools import cache

import exchanges
import federation

from fastfed.deployment import plans
from fastfed.deployment.folder import extended

KINDS = (
    "silo-ldp", "silo-ldp factorised", "silo-ldp-prefix", "central", "secure-sum", federation.MASKS,
    "shuffle-vector", federation.MASKED_BITS, "feducb", "records", "extended",
    "robin", "fed-svt", "fed-dp-ope-stoch", "silo-ldp clocks",
)  # fmt: skip
EXPERTS = {
    "fed-svt": {"horizon": 40, "phase_length": 10, "optimal_loss": 0.0, "switches": 3},
    "fed-dp-ope-stoch": {"horizon": 63, "batch": "largest", "smoothness": 60.0},
}
ROBIN = {"horizon": 40, "initial_phases": 2, "diversity": 0.05, "concentration_multiplier": 1e-3}
RECORDS = {
    "columns": [
        {"name": "age", "kind": "number", "low": 20, "high": 80},
        {"name": "sex", "kind": "category", "codes": ["f", "m"], "fill": "f"},
        {"name": "smoker", "kind": "flag", "missing_flag": True},
    ],
    "actions": {"names": ["ill", "well"], "constant": 0.5},
    "reward": {"column": "num", "codes": {"0": 0.0, "1": 1.0}},
}
LATER = {"start": federation.START + 1000, "period": 100, "grace": 50, "reward_deadline": 250}


@cache
def plan(kind):
    """Return the compiled plan of one of `KINDS`; compile it once."""
    budget = {"epsilon": 1.0, "delta": 1e-6}
    if kind in EXPERTS:
        keys = {"algorithm": kind, **EXPERTS[kind]} | ({"threshold": 4.0} if "svt" in kind else {})
        return plans.compile_plan(exchanges.spec_of_experts(keys))
    if kind == "robin":
        return plans.compile_plan(
            federation.spec() | {"system": {"algorithm": kind} | ROBIN | budget}
        )
    if kind == "records":
        spec = federation.spec() | RECORDS
        del spec["norm"]
        return plans.compile_plan(spec)
    if kind == "extended":
        system = {"horizon": 10, "batch_size": 5, **budget}
        return extended({"system": system, "calendar": LATER}, plan("silo-ldp"))
    if kind == "silo-ldp factorised":
        return federation.deployed(system={"batch_size": 5, "release": "factorised"})
    if kind == "silo-ldp clocks":
        return federation.clocked({"rates": [0.5]})
    return federation.deployed(kind)


def federation_of(kind):
    """Return the parties of a plan in memory, with room in their ledgers."""
    deployment = federation.Federation(plan(kind))
    for ledger in deployment.ledgers.values():
        ledger.set_ceiling("records", 100.0, 1e-5)
    deployment.now = float(deployment.plan.document.calendar.start)
    deployment.settle()
    return deployment


def period(deployment, release):
    """Serve one record, or one row of losses, at each silo in a period, and close the release."""
    deployment.now = deployment.plan.document.calendar.closes[release - 1] - 1.0
    for name in deployment.plan.silos:
        process, document = deployment.processes[name], deployment.plan.document
        if document.algorithm in EXPERTS:
            process.losses(process.decide().id, [0.5] * len(document.schema.columns))
        elif document.schema.records is not None:
            decision = process.decide(record={"age": 63, "sex": "m", "smoker": "yes"})
            process.outcome(decision.id, "1")
        else:
            process.reward(process.decide(federation.ROWS).id, 0.5)
    deployment.now += 1.0
    deployment.settle()
