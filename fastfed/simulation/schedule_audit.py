"""The audit of schedules: whether the rounds of synchronisation give a user away.

Two silos; the first user of one of them has a feature vector of norm 1 or of norm 1/20, everybody
else the zero vector. The threshold lies between the values that the system's own rule takes in the
two worlds after the first round, and what the audit looks at is whether the silos synchronise then:
an event that was fixed before it was counted, so all runs count. No message is read.
Source: zhou-chowdhury-2024, Example 3.1 and Appendix B.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fastfed._random import SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.bandits.silo import Silo
from fastfed.privacy.audit import AuditResult, epsilon_lower_bound, judged
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.trigger import DETERMINANT
from fastfed.simulation.systems import make_system

SCHEDULE_AUDITS: dict[str, dict[str, Any]] = {
    "feducb-schedule": {"schedule": "determinant"},
    "feducb-schedule-fixed": {"schedule": "fixed", "batch_size": 1},
    "feducb-schedule-private": {"schedule": "private-determinant"},
}
CLAIM = (1.0, 0.01)
SILOS, HORIZON, DIMENSION = 2, 8, 2
#: The victim's features in the two worlds.
VICTIM = (np.array([1.0, 0.0]), np.array([0.05, 0.0]))


def plan_of(keys: dict[str, Any]) -> Plan:
    """The system under audit."""
    epsilon, delta = CLAIM
    sizes: dict[str, Any] = {"silos": SILOS, "horizon": HORIZON, "dimension": DIMENSION}
    system = make_system("feducb", **sizes, epsilon=epsilon, delta=delta, **keys)
    return check_plan(system.plan)


def trigger_value(plan: Plan, x: np.ndarray) -> float:
    """What the silo's own rule compares with D after a first round with these features.

    Without noise: a private rule's value is a draw about this one.
    """
    assert plan.trigger is not None
    quiet = replace(plan, trigger=replace(plan.trigger, kind=DETERMINANT), privacy=None)
    silo = Silo(quiet, 0, SeededNoise(0))
    silo.select(x[None])
    silo.observe(1.0)
    assert silo.clock is not None
    return silo.clock.value


def synchronised(plan: Plan, noise: SeededNoise, x: np.ndarray) -> bool:
    """Whether the silos synchronise after the first round."""
    silos = [Silo(plan, i, noise) for i in range(SILOS)]
    for i, silo in enumerate(silos):
        silo.select(x[None] if i == 0 else np.zeros((1, DIMENSION)))
        silo.observe(1.0)
    return any(silo.due for silo in silos)


def audit_schedule(name: str, trials: int, seed: int) -> AuditResult:
    """Audit one schedule with ``trials`` runs of either world."""
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    keys = SCHEDULE_AUDITS[name]
    plan = plan_of(keys)
    if plan.trigger is not None:
        values = [trigger_value(plan, x) for x in VICTIM]
        plan = plan_of({**keys, "communication": float(np.mean(values))})
    hits = [
        sum(synchronised(plan, SeededNoise(seed, 2 * run + world), x) for run in range(trials))
        for world, x in enumerate(VICTIM)
    ]
    epsilon, delta = CLAIM
    bound = epsilon_lower_bound(hits[0], hits[1], trials, delta)
    return judged(name, bound, trials, claimed_epsilon=epsilon, delta=delta)
