"""Audits of own rounds: verdicts, and what their statistics are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import ordinary_cases

from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.bandits.silo import Silo
from fastfed.privacy import epsilon_of
from fastfed.privacy.account import released
from fastfed.simulation.audit import own_rounds as audits
from fastfed.simulation.audit import run_audit

#: The audits of coins and of shared users are slow.
ORDINARY = ("own-rounds", "fault-own-rounds-in-leaf", "fault-own-rounds-peek")
FEW = {"own-rounds": 60, "own-rounds-shared": 1500, "own-rounds-coin": 1500}


@pytest.mark.parametrize("name", ordinary_cases(audits.AUDITS, lambda name: name in ORDINARY))
def test_verdicts(name: str) -> None:
    found = run_audit(name, FEW.get(name))
    assert found.verdict == ("caught" if name in audits.FAULTY else "pass"), found
    assert found.claimed_epsilon == (0.0 if found.delta == 0.0 else 1.0)


def test_an_audit_is_a_function_of_its_seed() -> None:
    bounds = [run_audit("own-rounds-shared", 800, seed).epsilon_lower_bound for seed in (5, 5, 4)]
    assert bounds[0] == bounds[1] != bounds[2]


def test_bad_input_is_one_clear_sentence() -> None:
    for name in ("own-rounds", "own-rounds-coin"):
        with pytest.raises(InputError, match="trials must be an integer >= 2 and"):
            run_audit(name, 1)


# ---- Statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "shown"),
    ordinary_cases(
        [(audits.RULE, False), (audits.COIN, False), (audits.COIN, True)],
        lambda share, shown: share is audits.COIN and not shown,
    ),
)
def test_statistics_are_log_likelihood_ratios(share: dict, shown: bool) -> None:
    """E[ratio] = 1 in the first world, and E[1 / ratio] = 1 in the second."""
    plan = audits._plan(silos=1, horizon=audits.UNTIL + 2, batch_size=1, share=share)
    for world, sign in ((0, 1.0), (1, -1.0)):
        found = np.exp(sign * audits.statistics(plan, 3000, 5, world, shown))
        error = found.std() / math.sqrt(len(found))
        assert abs(found.mean() - 1.0) < 5.0 * error and found.std() > 0.1
        if shown:
            # Of those who were not shared nothing is known.
            assert abs(np.mean(found == 1.0) - 0.9) < 0.04


@pytest.mark.slow
def test_a_public_coin_costs_what_its_account_says() -> None:
    """Far above the claim, and no more than of a user who is shared with probability p."""
    plan = audits._plan(silos=1, horizon=audits.UNTIL + 2, batch_size=1, share=audits.COIN)
    found = run_audit("fault-own-rounds-public-coin")
    (event,) = released(plan)
    assert event.coin == 0.1 and 0.99 < event.exact() <= 1.0
    public = epsilon_of(event.mu(), audits.DELTA / event.coin)
    assert 1.2 < found.epsilon_lower_bound < public and 4.5 < public < 5.5


def test_pairs_differ_in_one_user_of_an_own_round() -> None:
    plan = audits._plan(silos=audits.SILOS, horizon=audits.HORIZON, batch_size=2, share=audits.HALF)
    rounds = set()
    for trial in range(40):
        noise, draw = SeededNoise(1, trial), np.random.default_rng([1, trial])
        users, other = audits.Users.drawn(draw), audits.Users.drawn(draw)
        round = audits.own_round(plan, noise, draw)
        assert not plan.own.shares(round, noise.participation(0, round))
        changed = users.replaced(round, other)
        where = np.argwhere((users.contexts != changed.contexts).any(axis=(2, 3)))
        np.testing.assert_array_equal(where, [[round - 1, 0]])
        rounds.add(round)
    assert len(rounds) > 5


def test_a_user_of_a_shared_round_is_seen() -> None:
    """The comparison itself can fail: a replaced user of a shared round changes what is seen."""
    plan = audits._plan(silos=audits.SILOS, horizon=audits.HORIZON, batch_size=2, share=audits.HALF)
    noise, draw = SeededNoise(1, 0), np.random.default_rng(3)
    users, other = audits.Users.drawn(draw), audits.Users.drawn(draw)
    shared = [t for t in range(1, 11) if plan.own.shares(t, noise.participation(0, t))]
    views = [audits.seen(Silo, plan, noise, u) for u in (users, users.replaced(shared[0], other))]
    assert views[0] != views[1]
