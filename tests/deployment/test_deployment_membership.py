"""Tests that the leaf of a person depends only on this person and on the calendar.

One person is moved to every different period, removed or inserted, while far more people come than
a batch has rounds. All other persons must stay in their leaves, and the released sums must cost no
more than the certificate states.
"""

import math

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation

from fastfed._kernels import aggregation
from fastfed.deployment import kinds
from fastfed.deployment.kinds import silo_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.store import MemoryStore
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.protocols.release import spread

PERIODS, PEOPLE = 8, 12
KINDS = {
    "silo-ldp": {},
    "silo-ldp toeplitz": {"release": "toeplitz"},
    "silo-ldp buffered": {"release": "buffered"},
    "silo-ldp factorised": {"release": "factorised"},
    "silo-ldp-prefix": {},
    "central": {},
    "central factorised": {"release": "factorised"},
    "secure-sum": {},
    federation.MASKS: {},
    "shuffle-vector": {},
    "feducb": {},
    "silo-ldp clocks": {"clock": {"rates": [1.0, 0.5]}},
}


def plan_of(kind):
    """Return a plan of two silos of which silo 0 reports in every period."""
    protocol = kind if kind == federation.MASKS else kind.split()[0]
    batches = {"batches": PERIODS, "batch": 3, "system": {"batch_size": 3, **KINDS[kind]}}
    if kind == "silo-ldp clocks":
        # silo0 reports at every moment.
        calendar = {"start": federation.START, "round": 100, "reward_deadline": 300}
        batches |= {"federation": {"name": "tests"}, "calendar": calendar}
    return federation.deployed(protocol, silos=2, **batches)


def record(person):
    """Return a person's row and reward, the same in whichever period they come."""
    rng = np.random.default_rng(person)
    x = rng.normal(size=2)
    return x / np.linalg.norm(x), float(rng.uniform())


def attendance(extra):
    """Return sorted pairs (period, person); person 0 comes in period ``extra``, if it is not 0."""
    people = [(k, PEOPLE * k + i) for k in range(1, PERIODS + 1) for i in range(PEOPLE)]
    # Person 0 comes first in the period: a limit on counts would then displace the most people.
    return sorted([*people, *(((extra, 0),) if extra else ())])


def store_writes(silo, store, step):
    """Store and apply the writes of a step."""
    for write in step.writes:
        store.write(write)
        silo.fold(write)


def sums_and_leaves(plan, people):
    """Return the silo's leaf sums (K, s), and the leaf of every person but person 0."""
    ledger = Ledger(":memory:")
    silo = silo_of(plan, "silo0", federation.secret("silo0"), ledger)
    store, leaves = MemoryStore(), {}
    silo.attach(store)
    for period, person in people:
        now = float(plan.document.calendar.closes[period - 1] - 50)
        x, y = record(person)
        step, decision = silo.decide([x], now, subject=f"p{person}")
        store_writes(silo, store, step)
        store_writes(silo, store, silo.reward(decision.id, y, now))
        leaves[person] = silo.ended[decision.id].leaf
    return silo._leaf_sums.copy(), {p: leaf for p, leaf in leaves.items() if p}


def mu_of(plan, change):
    """Return the GDP parameter of what leaves the silo, for a change (K, s) of the leaf sums."""
    executed = plan.plan
    std = spread(executed.noise_std, executed.dimension)
    if executed.secure is not None or executed.release == "factorised":
        encoder = executed.factor.encoder
    elif executed.release in ("toeplitz", "buffered"):
        lags = np.arange(PERIODS)
        if executed.release == "toeplitz":
            column = executed.coefficients
        else:
            column = aggregation.buffered_column(executed.coefficients, PERIODS)
        encoder = np.array([[column[k - j] if k >= j else 0.0 for j in lags] for k in lags])
    else:
        ends = np.arange(1, PERIODS + 1)[:, None]
        leaves = np.arange(1, PERIODS + 1)
        encoder = ((leaves <= ends) & (leaves > ends - (ends & -ends))).astype(float)
    return math.sqrt((((encoder @ change) / std) ** 2).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_one_person_moves_nobody_else_between_releases(kind):
    plan = plan_of(kind)
    actual = {extra: sums_and_leaves(plan, attendance(extra)) for extra in range(PERIODS + 1)}
    claimed = plan.certificate.exact
    worst = 0.0
    for before, (sums, other_leaves) in actual.items():
        # Everybody else is learned from in the period in which they come.
        assert all(leaf == p // PEOPLE for p, leaf in other_leaves.items() if p >= PEOPLE)
        for after in range(before):
            assert actual[after][1] == other_leaves, (before, after)
            if plan.plan.encoding is None:
                worst = max(worst, mu_of(plan, sums - actual[after][0]))
    if plan.plan.encoding is None:
        epsilon = gaussian_epsilon(worst, claimed.delta)
        assert 0.3 * claimed.epsilon < epsilon <= claimed.epsilon * (1 + 1e-9)


def test_a_silo_stops_learning_where_its_sums_would_stop_being_exact():
    """This is the only limit on a count; the certificate states the limit as a condition."""
    plan = federation.deployed(batches=1, batch=1, system={"batch_size": 1})
    assert (
        plan.plan.room == kinds.PEOPLE_PER_ROUND
        and kinds.PEOPLE_CONDITION in plan.certificate.conditions
    )
    silo = silo_of(plan, "silo0", federation.secret("silo0"), Ledger(":memory:"))
    learned = []
    for _ in range(kinds.PEOPLE_PER_ROUND + 1):
        step, decision = silo.decide([[0.5, 0.1]], federation.START + 1.0)
        silo.fold(step.writes[0])
        learned.append(decision.learns)
    assert learned == [True] * kinds.PEOPLE_PER_ROUND + [False]
