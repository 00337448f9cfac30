"""Audits of protocol "user-bit": the messages that depend on one user, for two rewards.

The two data sets differ in the reward of one user: 0 in one, 1 in the other. With
``batch_size = 1`` the silo's report is the user's features times the value of the user's bit. If a
shuffler counts the bits of a batch, the audit sees the shuffler's message, and all other users have
the reward 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fastfed._random import SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.silo import Silo
from fastfed.privacy.audit.bounds import AuditResult, audit
from fastfed.privacy.audit.mechanisms import Audit
from fastfed.protocols.plan import Plan
from fastfed.protocols.randomizer import Shuffler
from fastfed.simulation.systems import ALGORITHMS

EPSILON = 1.0
#: Users of a batch whose bits are counted, and the delta of their count.
USERS, DELTA = 10, 1e-2


def _plan(users: int, fault: int) -> Plan:
    """Return the plan to run. Its flip probability is divided by ``fault``; 1 is no fault."""
    keys = {"protocol": "user-bit", "protects": "reward", "epsilon": EPSILON, "batch_size": users}
    problem = ProblemSpec(silos=1, horizon=users, dimension=1)
    if users > 1:
        keys |= {"shuffled": True, "delta": DELTA}
        problem = replace(problem, dimension=2, arms=True)
    plan: Plan = ALGORITHMS.choose("private-fedlinucb").make(keys, problem).plan
    # A faulty plan that claims its budget would be refused.
    return plan if fault == 1 else replace(plan, flips=plan.flips // fault, privacy=None)


def run(name: str, users: int, fault: int, trials: int, seed: int) -> AuditResult:
    """Audit the message that depends on the first user, with ``trials`` runs for each reward.

    The two rewards of the first user are 0 and 1.
    ``users`` is the number of users whose bits a shuffler counts; with 1, the message is the report
    of a single bit. ``fault`` divides the flip probability of the users' bits; 1 is no fault.
    """
    trials, plan = integer("trials", trials, at_least=2, at_most=2**31 - 1), _plan(users, fault)
    check_seed(seed)
    actions = np.eye(plan.dimension)

    def audited_numbers(reward: float) -> np.ndarray:
        """Return the first number of each run's message, (trials,).

        The first user has the reward ``reward``, 0 or 1. All other users have the reward 1.
        """
        values = np.empty(trials)
        for i in range(trials):
            # Every run has a different stream of noise: even for reward 0, odd for reward 1.
            noise = SeededNoise(seed, 2 * i + int(reward))
            silo = Silo(plan, 0, noise)
            for user in range(users):
                silo.select(actions)
                silo.observe(1.0 if user else reward)
            message = silo.report()
            audited_message = Shuffler(plan, noise).shuffle([message])[0] if users > 1 else message
            values[i] = audited_message.values[0]  # type: ignore[union-attr]
        return values

    delta = DELTA if users > 1 else 0.0
    return audit(
        name, audited_numbers(0.0), audited_numbers(1.0), claimed_epsilon=EPSILON, delta=delta
    )


FAULT, COUNTS_FAULT = "fault-user-bit-half-of-the-flips", "fault-user-bit-counts-half-of-the-flips"
AUDITS: dict[str, Audit] = {
    "user-bit": partial(run, "user-bit", 1, 1),
    FAULT: partial(run, FAULT, 1, 2),
    "user-bit-counts": partial(run, "user-bit-counts", USERS, 1),
    COUNTS_FAULT: partial(run, COUNTS_FAULT, USERS, 2),
}
FAULTY = {FAULT, COUNTS_FAULT}
TRIALS = {name: 5_000 if "counts" in name else 20_000 for name in AUDITS}
_REWARD = ("reward", "replace")
#: Name -> (what it attacks, (unit, relation)).
ABOUT = {
    "user-bit": ("what a silo sends about one user, who sends it one bit", _REWARD),
    FAULT: ("the same if only half as many bits are flipped", _REWARD),
    "user-bit-counts": ("the number of ones of a batch of users, which a shuffler sends", _REWARD),
    COUNTS_FAULT: ("the same if only half as many bits are flipped", _REWARD),
}
