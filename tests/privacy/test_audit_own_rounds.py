"""Check audits of own rounds: their verdicts and their statistics."""

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
FAST_AUDITS = ("own-rounds", "fault-own-rounds-in-leaf", "fault-own-rounds-peek")
FEW_TRIALS = {"own-rounds": 60, "own-rounds-shared": 1500, "own-rounds-coin": 1500}


@pytest.mark.parametrize("name", ordinary_cases(audits.AUDITS, lambda name: name in FAST_AUDITS))
def test_audits_give_their_verdicts(name: str) -> None:
    result = run_audit(name, FEW_TRIALS.get(name))
    assert result.verdict == ("caught" if name in audits.FAULTY else "pass"), result
    assert result.claimed_epsilon == (0.0 if result.delta == 0.0 else 1.0)


def test_results_of_an_audit_depend_only_on_its_seed() -> None:
    bounds = [run_audit("own-rounds-shared", 800, seed).epsilon_lower_bound for seed in (5, 5, 4)]
    assert bounds[0] == bounds[1] != bounds[2]


def test_errors_name_the_bad_argument() -> None:
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
    """Check E[ratio] = 1 in the first world and E[1 / ratio] = 1 in the second."""
    plan = audits._plan(silos=1, horizon=audits.UNTIL + 2, batch_size=1, share=share)
    for world, sign in ((0, 1.0), (1, -1.0)):
        ratios = np.exp(sign * audits.log_ratios_of_runs(plan, 3000, 5, world, shown))
        error = ratios.std() / math.sqrt(len(ratios))
        assert abs(ratios.mean() - 1.0) < 5.0 * error and ratios.std() > 0.1
        if shown:
            # Users whose round was not shared have ratio 1.
            assert abs(np.mean(ratios == 1.0) - 0.9) < 0.04


@pytest.mark.slow
def test_audit_of_a_public_coin_agrees_with_the_account() -> None:
    """Check that epsilon is far above the claim.

    It is at most that of a user whose round is shared with probability p.
    """
    plan = audits._plan(silos=1, horizon=audits.UNTIL + 2, batch_size=1, share=audits.COIN)
    result = run_audit("fault-own-rounds-public-coin")
    (event,) = released(plan)
    assert event.coin == 0.1 and 0.99 < event.exact() <= 1.0
    public_epsilon = epsilon_of(event.mu(), audits.DELTA / event.coin)
    assert 1.2 < result.epsilon_lower_bound < public_epsilon and 4.5 < public_epsilon < 5.5


def test_pairs_differ_in_one_user_of_an_own_round() -> None:
    plan = audits._plan(silos=audits.SILOS, horizon=audits.HORIZON, batch_size=2, share=audits.HALF)
    rounds = set()
    for trial in range(40):
        noise, rng = SeededNoise(1, trial), np.random.default_rng([1, trial])
        users, other = audits.Users.drawn(rng), audits.Users.drawn(rng)
        round = audits.random_local_round(plan, noise, rng)
        assert not plan.own.shares(round, noise.participation(0, round))
        changed = users.replaced(round, other)
        changed_users = np.argwhere((users.contexts != changed.contexts).any(axis=(2, 3)))
        np.testing.assert_array_equal(changed_users, [[round - 1, 0]])
        rounds.add(round)
    assert len(rounds) > 5


def test_users_of_shared_rounds_change_the_view() -> None:
    """Check that the comparison can fail: a replaced user of a shared round changes the view."""
    plan = audits._plan(silos=audits.SILOS, horizon=audits.HORIZON, batch_size=2, share=audits.HALF)
    noise, draw = SeededNoise(1, 0), np.random.default_rng(3)
    users, other = audits.Users.drawn(draw), audits.Users.drawn(draw)
    shared = [t for t in range(1, 11) if plan.own.shares(t, noise.participation(0, t))]
    views = [
        audits.outsider_view(Silo, plan, noise, viewed_users)
        for viewed_users in (users, users.replaced(shared[0], other))
    ]
    assert views[0] != views[1]
