"""Bits that a shuffler counts: the account, the plan, what the server gets, both drivers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle import user_bit as oracle

from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.silo import Silo
from fastfed.environments import Arms, Sphere
from fastfed.parties import Server, Shuffler
from fastfed.privacy.mechanisms.bit_counts import (
    BitCounts,
    calibrate_counts,
    epsilon_of_count,
    users_for,
)
from fastfed.privacy.mechanisms.user_bit import FLIP_UNITS, bit_scale, epsilon_of, flips_of
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.score import CoreScore, Score
from fastfed.simulation import compiled, server
from fastfed.simulation.audit import run_audit
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import ALGORITHMS

SPEC = ProblemSpec(silos=3, horizon=60, dimension=4, arms=True)
COUNTED: dict[str, Any] = {
    "protocol": "user-bit", "protects": "reward", "shuffled": True, "epsilon": 1.0, "delta": 1e-3,
}  # fmt: skip
MEANS = (0.3, 0.7, 0.5, 0.65)


def reward_budget(epsilon: float, delta: float) -> Budget:
    """Return a budget for one user's reward."""
    return Budget(epsilon, delta, "replace", unit="reward")


def system(spec: ProblemSpec = SPEC, **keys: Any) -> Any:
    """Return a system whose users' bits are counted."""
    return ALGORITHMS.choose("private-fedlinucb").make({"batch_size": 5, **COUNTED, **keys}, spec)


# ---- the account ---------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.01, 0.1, 0.3, 0.45])
@pytest.mark.parametrize("users", [1, 2, 3, 12, 40])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1])
def test_epsilon_is_that_of_the_worst_bits_of_all_users(q: float, users: int, delta: float) -> None:
    """Every number of ones among the other users is enumerated, in both directions."""
    flips = int(q * FLIP_UNITS)
    epsilon = epsilon_of_count(flips, users, delta)
    assert oracle.delta_of_count(flips / FLIP_UNITS, users, epsilon) <= delta
    if epsilon > 1e-6:
        assert oracle.delta_of_count(flips / FLIP_UNITS, users, epsilon * (1.0 - 1e-6)) > delta
    assert epsilon <= epsilon_of(flips)


@pytest.mark.parametrize("users", [130, 300])
def test_epsilon_of_large_batches_is_that_of_one_percent_fewer_users(users: int) -> None:
    q, delta = 0.1, 1e-4
    epsilon = epsilon_of_count(int(q * FLIP_UNITS), users, delta)
    assert oracle.delta_of_count(q, users, epsilon) <= delta
    fewer = users - users // 100 - 1
    assert oracle.delta_of_count(q, fewer, epsilon * (1.0 - 1e-6)) > delta


@pytest.mark.parametrize("seed", range(20))
def test_rewards_between_0_and_1_have_no_larger_delta(seed: int) -> None:
    """All rewards are rounded to bits at random before the flips."""
    rng = np.random.default_rng(seed)
    users, q = int(rng.integers(2, 9)), rng.uniform(0.05, 0.4)
    epsilon = rng.uniform(0.0, math.log((1.0 - q) / q))
    others, own_value = rng.uniform(size=users - 1), rng.uniform(size=2)
    distributions = [oracle.law_of_count(q, [*others, y]) for y in own_value]
    worst = oracle.delta_of_count(q, users, epsilon)
    assert oracle.hockey_stick(*distributions, epsilon) <= worst * (1.0 + 1e-12)
    assert oracle.hockey_stick(*distributions[::-1], epsilon) <= worst * (1.0 + 1e-12)


def test_no_number_of_ones_is_the_worst_one_for_all_epsilons() -> None:
    """Use the example at the top of the module: three users, q = 0.1."""

    def worst(epsilon: float) -> int:
        """Return the number of ones among the others' means for which delta is the largest."""
        deltas = []
        for ones in range(3):
            others = [1.0] * ones + [0.0] * (2 - ones)
            pair = [oracle.law_of_count(0.1, [*others, own_value]) for own_value in (1.0, 0.0)]
            deltas.append(oracle.hockey_stick(*pair, epsilon))
        return int(np.argmax(deltas))

    assert (worst(0.0), worst(1.0)) == (1, 2)


def test_more_users_and_more_flips_are_not_worse() -> None:
    epsilons = [
        epsilon_of_count(FLIP_UNITS // 20, users, 1e-4) for users in (1, 2, 5, 50, 500, 2**40)
    ]
    assert all(a >= b for a, b in itertools.pairwise(epsilons))
    assert epsilons[-1] == epsilon_of_count(FLIP_UNITS // 20, 2**15, 1e-4)
    epsilons = [epsilon_of_count(FLIP_UNITS // n, 30, 1e-4) for n in (1000, 100, 10, 5, 3)]
    assert all(a > b for a, b in itertools.pairwise(epsilons))


@pytest.mark.parametrize(("users", "scale"), [(20, 1.077), (100, 0.713), (1000, 0.526),
                                              (5000, 0.505)])  # fmt: skip
def test_scales_of_calibrated_bits(users: int, scale: float) -> None:
    """Compare with scales that were computed from one grid of bits, without bounds on rounding."""
    mechanism = calibrate_counts(reward_budget(1.0, 1e-5), users)
    assert bit_scale(mechanism.flips, 0.0, 1.0) == pytest.approx(scale, abs=6e-4)
    assert 1.0 - 1e-5 <= mechanism.exact() <= 1.0
    assert all(condition.holds for condition in mechanism.conditions())
    fewer_flips = msgspec.structs.replace(mechanism, flips=int(mechanism.flips * (1.0 - 1e-5)))
    assert fewer_flips.exact() > 1.0


@pytest.mark.parametrize(("epsilon", "delta", "users"), [(0.2, 1e-6, 40), (3.0, 1e-3, 7)])
def test_a_calibrated_count_meets_its_budget_by_enumeration(
    epsilon: float, delta: float, users: int
) -> None:
    mechanism = calibrate_counts(reward_budget(epsilon, delta), users)
    assert oracle.delta_of_count(mechanism.flips / FLIP_UNITS, users, epsilon) <= delta
    assert mechanism.flips < flips_of(epsilon)


def test_the_least_number_of_users_for_a_flip_probability() -> None:
    budget = reward_budget(0.8, 1e-4)
    users = users_for(budget, FLIP_UNITS // 7)
    assert epsilon_of_count(FLIP_UNITS // 7, users, 1e-4) <= 0.8
    assert epsilon_of_count(FLIP_UNITS // 7, users - 1, 1e-4) > 0.8
    assert users_for(reward_budget(2.0, 1e-4), FLIP_UNITS // 7) == 1
    assert users_for(reward_budget(1e-6, 1e-9), FLIP_UNITS // 7) == 2**15


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("users", [1, 2, 300])
def test_extreme_budgets_are_not_exceeded(epsilon: float, delta: float, users: int) -> None:
    assert calibrate_counts(reward_budget(epsilon, delta), users).exact() <= epsilon


def test_what_has_no_account_is_refused() -> None:
    budget = reward_budget(1.0, 1e-5)
    with pytest.raises(InputError, match="returning must be an integer"):
        BitCounts(5, budget, 2, users=9)
    with pytest.raises(InputError, match="users must be an integer >= 1"):
        BitCounts(5, budget, users=0)
    with pytest.raises(InputError, match="delta"):
        calibrate_counts(reward_budget(1.0, 0.0), 9)
    with pytest.raises(InputError, match="unit"):
        calibrate_counts(Budget(1.0, 1e-5), 9)


# ---- plan and certificate ------------------------------------------------------------------------


def test_the_certificate_states_the_count_and_the_fallback() -> None:
    deployment = system()
    certificate, flips = deployment.certificate, deployment.plan.flips
    assert (certificate.status, certificate.unit) == ("proven", "reward")
    assert certificate.model.startswith("shuffle: the shuffler is trusted")
    assert 1.0 - 1e-5 < certificate.exact.epsilon <= 1.0 and certificate.exact.delta == 1e-3
    assert certificate.exact.epsilon == epsilon_of_count(flips, 15, 1e-3)
    texts = [condition.text for condition in certificate.conditions]
    assert any(text.startswith("at least 15 users of each batch") for text in texts)
    (fallback,) = certificate.also
    assert fallback.model == "local: nobody is trusted, not even the shuffler"
    assert fallback.exact.epsilon == epsilon_of(flips) > 1.0
    assert deployment.theory.proven and deployment.plan.radius.scale == bit_scale(flips, 0.0, 1.0)
    assert flips < flips_of(1.0)


def test_the_smallest_batch_counts_and_an_incomplete_one_does_not() -> None:
    unequal = system(batch_size=None, release_rounds=[10, 14, 60])
    assert unequal.certificate.exact.epsilon == epsilon_of_count(unequal.plan.flips, 12, 1e-3)
    incomplete = system(replace(SPEC, horizon=61))
    assert incomplete.plan.flips == system().plan.flips
    no_batch = system(batch_size=60, spec=replace(SPEC, horizon=60))
    assert no_batch.certificate.exact.epsilon == epsilon_of_count(no_batch.plan.flips, 180, 1e-3)


def test_the_default_batches_are_equal_and_as_long_as_flips_of_one_in_seven_need() -> None:
    spec = replace(SPEC, horizon=20_000)
    for epsilon, delta in ((0.5, 1e-6), (1.0, 1e-3)):
        keys = COUNTED | {"epsilon": epsilon, "delta": delta}
        plan = ALGORITHMS.choose("private-fedlinucb").make(keys, spec).plan
        users = users_for(reward_budget(epsilon, delta), FLIP_UNITS // 7)
        assert plan.batch_size == max(math.ceil(users / 3), 40) and not plan.release_rounds
    short = ALGORITHMS.choose("private-fedlinucb").make(COUNTED, replace(SPEC, horizon=100)).plan
    assert short.batch_size == math.ceil(100 / (20 * 4))
    growing = system(batch_size="growing", batch_first=8).plan
    assert growing.ends[0] == 8 and growing.release_rounds


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"protocol": "central"}, 'shuffled belongs to protocol "user-bit"'),
        ({"delta": None}, "delta"),
        ({"lazy": False}, "shuffled = true needs lazy = true"),
        ({"returning": 2}, "shuffled = true needs returning = 1"),
        ({"sieve": 0.3}, "shuffled = true needs sieve = 1.0"),
        ({"bonus": 0.3}, "shuffled = true needs bonus = 1.0"),
        ({"score": "ts"}, "score"),
        ({"protects": "user"}, 'needs protects = "reward"'),
    ],
)
def test_keys_without_an_account_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        system(**keys)


def test_contexts_are_refused() -> None:
    with pytest.raises(InputError, match="where contexts differ, the features of an action"):
        system(replace(SPEC, arms=False))
    with pytest.raises(InputError, match="arms"):
        make_experiment(
            name="x", environment=Sphere(dimension=3, actions=4), horizon=20, silos=2,
            curves=[{"label": "x", "algorithm": "private-fedlinucb", **COUNTED}],
        )  # fmt: skip


@pytest.mark.parametrize("change", [
    {"flips": 5}, {"lazy": False}, {"arms": False}, {"batch_size": 1}, {"silos": 1},
    {"policy": "random"}, {"protocol": PROTOCOLS["user-bit"]},
    {"score": Score(CoreScore("normal_draws"), diagonal=True)},
    {"protocol": replace(PROTOCOLS["user-bit"], shuffled=True)},
])  # fmt: skip
def test_a_changed_plan_is_refused(change: dict[str, Any]) -> None:
    """Every field that the account relies on is checked where a plan enters."""
    check_plan(system().plan)
    with pytest.raises(InputError):
        check_plan(replace(system().plan, **change))


def test_a_claim_of_returning_users_is_refused() -> None:
    plan = system().plan
    claim = msgspec.structs.replace(plan.privacy, max_participations=2)
    with pytest.raises(InputError, match="users of one batch if bits are counted"):
        check_plan(replace(plan, privacy=claim))


# ---- what the server gets ------------------------------------------------------------------------


def reports_and_messages(
    rewards: np.ndarray, plan: Plan, seed: int = 3
) -> tuple[list[Any], list[Any]]:
    """Return the silos' reports of the first batch, and the shuffler's messages.

    Entry (t, i) of ``rewards`` is the reward of the user of round t at silo i.
    """
    noise = SeededNoise(seed, 0)
    silos = [Silo(plan, i, noise) for i in range(plan.silos)]
    for row in rewards:
        for silo, reward in zip(silos, row, strict=True):
            silo.select(np.eye(plan.dimension))
            silo.observe(reward)
    reports = [silo.report() for silo in silos]
    return reports, Shuffler(plan, noise).shuffle(reports)


def test_the_server_gets_one_message_with_the_number_of_ones() -> None:
    plan = system().plan
    rewards = np.random.default_rng(4).integers(0, 2, (5, 3)).astype(float)
    reports, (message,) = reports_and_messages(rewards, plan)
    words = SeededNoise(3, 0)
    ones = 0
    for t in range(5):
        for i in range(3):
            flip = int(words.random_u32(i, t + 1, 4).view(np.uint64)[1] >> np.uint64(11))
            ones += int(rewards[t, i]) ^ int(flip < plan.flips)
    sent = np.zeros(plan.statistic_size)
    sent[0], sent[plan.dimension] = ones, 15
    np.testing.assert_array_equal(message.values, sent)
    zero, one = plan.bit_values
    hub = Server(plan)
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        hub.combine(reports)
    broadcast = hub.combine([message])
    assert broadcast.values[0] == zero * 15.0 + (one - zero) * ones
    assert broadcast.values[plan.dimension] == 15.0


def test_the_order_of_users_does_not_matter() -> None:
    """If all users flip alike, users may exchange their rewards, and no bit of a message changes.

    With sums of the bits' values in floating point, the last bits would change.
    """
    plan = replace(system().plan, flips=1, privacy=None)
    rng = np.random.default_rng(5)
    rewards = rng.integers(0, 2, (5, 3)).astype(float)
    totals = set()
    for _ in range(20):
        totals.add(reports_and_messages(rewards, plan)[1][0].values.tobytes())
        rewards = rng.permuted(rewards.ravel()).reshape(5, 3)
    assert len(totals) == 1


# ---- simulations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"batch_size": 7}, {"batch_size": 1}])
@pytest.mark.parametrize(("silos", "horizon"), [(1, 30), (3, 90), (5, 41)])
def test_all_users_of_a_batch_get_the_same_arm_in_both_drivers(
    keys: dict[str, Any], silos: int, horizon: int
) -> None:
    e = make_experiment(
        name="counts", environment=Arms(means=MEANS), horizon=horizon, silos=silos, seed=7,
        curves=[{"label": "x", "algorithm": "private-fedlinucb", **COUNTED, **keys}],
        checkpoints=5,
    )  # fmt: skip
    plan = e.curves[0].system.plan
    world = e.environment.open(e.seed, 0, silos)
    (fast,) = compiled.run(world, [plan], e.checkpoints, record=True)
    (steps,) = server.run_steps(world, [plan], e.checkpoints)
    for name in ("actions", "rewards", "total", "group_regret"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(steps, name))
    edges = [0, *(int(end) for end in plan.ends), horizon]
    arms = [np.unique(fast.actions[:, a:b]) for a, b in itertools.pairwise(edges)]
    assert all(len(values) <= 1 for values in arms)
    assert len(np.unique(fast.actions)) > 1


def test_counts_of_bits_have_less_regret_than_single_bits_and_noise_of_silos() -> None:
    curves = [
        {"label": "bits", "protocol": "user-bit", "lazy": False},
        {"label": "silos", "protocol": "silo-ldp", "delta": 1e-6},
        {"label": "counts", "protocol": "user-bit", "delta": 1e-6, "shuffled": True},
    ]
    common_keys = {"algorithm": "private-fedlinucb", "protects": "reward", "epsilon": 0.5}
    e = make_experiment(
        name="counts", environment=Arms(means=MEANS), horizon=2_000, silos=20, seed=1,
        curves=[common_keys | curve for curve in curves],
    )  # fmt: skip
    plans = [curve.system.plan for curve in e.curves]
    regrets = np.zeros(3)
    for replicate in range(5):
        outcomes = compiled.run(e.environment.open(1, replicate, 20), plans, e.checkpoints)
        regrets += [outcome.group_regret[-1] for outcome in outcomes]
    # Counted bits have at most 2/3 of the smaller regret of the other two curves.
    assert 1.5 * regrets[2] < regrets.min(initial=np.inf, where=[True, True, False])


def test_an_audit_of_the_count_finds_a_part_of_epsilon_and_a_planted_fault() -> None:
    result = run_audit("user-bit-counts")
    assert result.verdict == "pass" and 0.4 < result.epsilon_lower_bound <= 1.0
    assert run_audit("fault-user-bit-counts-half-of-the-flips").verdict == "caught"
