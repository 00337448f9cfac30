"""Audits of protocol "user-bit": what a silo sends about one user, for two rewards.

The two data sets differ in the reward of one user, which is the least or the largest one. With
``batch_size = 1`` the silo's report is the user's features times the value of the user's bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fastfed._random import SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.bandits.silo import Silo
from fastfed.privacy.audit.bounds import AuditResult, audit
from fastfed.privacy.audit.mechanisms import Audit
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Report
from fastfed.simulation.systems import make_system

EPSILON = 1.0


def _plan(fault: int) -> Plan:
    """Return the plan to run. Its flip probability is divided by ``fault``; 1 is no fault."""
    system = make_system(
        "private-fedlinucb",
        silos=1,
        horizon=1,
        dimension=1,
        batch_size=1,
        protocol="user-bit",
        protects="reward",
        epsilon=EPSILON,
    )
    plan = system.plan
    # A faulty plan that claims its budget would be refused.
    return plan if fault == 1 else replace(plan, flips=plan.flips // fault, privacy=None)


def run(name: str, fault: int, trials: int, seed: int) -> AuditResult:
    """Audit the report about one user, with ``trials`` runs for each of two rewards.

    ``fault`` divides the flip probability of the user's bit; 1 is no fault.
    """
    trials, plan = integer("trials", trials, at_least=2, at_most=2**31 - 1), _plan(fault)
    check_seed(seed)

    def reports(reward: float) -> np.ndarray:
        """Return the value that the silo reports in each run, if the user has this reward."""
        values = np.empty(trials)
        for i in range(trials):
            silo = Silo(plan, 0, SeededNoise(seed, 2 * i + int(reward)))
            silo.select(np.ones((1, 1)))
            silo.observe(reward)
            report = silo.report()
            assert isinstance(report, Report)
            values[i] = report.values[0]
        return values

    return audit(name, reports(0.0), reports(1.0), claimed_epsilon=EPSILON, delta=0.0)


FAULT = "fault-user-bit-half-of-the-flips"
AUDITS: dict[str, Audit] = {"user-bit": partial(run, "user-bit", 1), FAULT: partial(run, FAULT, 2)}
FAULTY = {FAULT}
TRIALS = dict.fromkeys(AUDITS, 20_000)
_REWARD = ("reward", "replace")
#: Name -> (what it attacks, (unit, relation)).
ABOUT = {
    "user-bit": ("what a silo sends about one user, who sends it one bit", _REWARD),
    FAULT: ("the same if only half as many bits are flipped", _REWARD),
}
