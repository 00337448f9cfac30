"""Rewards that arrive late: two drivers, a NumPy oracle, what is refused, and what is proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_curve
import pytest
from one_curve import HORIZON, SEED, SILOS, assert_same_bits, fast, step
from oracle import delays as oracle

import fastfed
from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.bandits.delays import Delay
from fastfed.bandits.radius import direct_regret_bound
from fastfed.environments import FixedSet, Replay, RewardDistribution, Sphere
from fastfed.privacy.account import released
from fastfed.protocols.plan import DelayedPlan, Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.systems import make_system

DELAYS = {
    "constant": {"kind": "constant", "rounds": 7},
    "uniform": {"kind": "uniform", "low": 2, "high": 9},
    "beyond the horizon": {"kind": "uniform", "low": 0, "high": 200},
    "geometric": {"kind": "geometric", "mean": 6.0},
    "deadline": {"kind": "geometric", "mean": 6.0, "deadline": 5},
    "half lost": {"kind": "uniform", "low": 6, "high": 7, "deadline": 6},
    "all after the horizon": {"kind": "constant", "rounds": HORIZON},
}
PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 20.0, "delta": 0.01}
CURVES = {
    "alone": {"algorithm": "local-linucb"},
    "lazy": {"algorithm": "fedlinucb"},
    "eager": {"algorithm": "fedlinucb", "lazy": False, "batch_size": 8},
    "each round": {"algorithm": "fedlinucb", "lazy": False, "batch_size": 1},
    "silo-ldp": {**PRIVATE, "protocol": "silo-ldp"},
    "silo-ldp-prefix": {**PRIVATE, "protocol": "silo-ldp-prefix"},
    "central": {**PRIVATE, "protocol": "central", "release": "tree", "batch_size": 7},
    "central, toeplitz": {**PRIVATE, "protocol": "central", "release": "toeplitz"},
    "secure-sum": {**PRIVATE, "protocol": "secure-sum"},
    "two budgets": {
        **{"algorithm": "private-fedlinucb", "delta": 0.01, "protocol": "silo-ldp"},
        "silo_epsilon": [5.0, 20.0, 20.0],
    },
    "drawn once": {**PRIVATE, "protocol": "silo-ldp", "noise_draws": "sum"},
}


def experiment(keys, delay=None, environment=None, **sizes):
    """Return an experiment of one curve with this delay."""
    delay_keys = {"delay": delay} if delay else {}
    return one_curve.experiment({**keys, **delay_keys}, environment, **sizes)


def arrivals_of(e, delay, silos=SILOS, horizon=HORIZON):
    """Return the round in which each reward arrives, by the oracle's distribution."""
    noise = SeededNoise(e.seed, 0)
    rounds = []
    for i in range(silos):
        draws = [oracle.delay_of(noise.delay(i, t), **delay) for t in range(1, horizon + 1)]
        rounds.append([None if k is None else t + k for t, k in enumerate(draws, 1)])
    return rounds


# ---- The oracle ----------------------------------------------------------------------------------


def rows_of_different_length():
    """Return recorded rounds with rewards of 0 and 1. Rows of one length would tie while V = I."""
    rng = np.random.default_rng(4)
    contexts = rng.uniform(-0.5, 0.5, size=(SILOS, HORIZON, 5, 4))
    means = 0.5 + contexts @ np.array([0.6, -0.3, 0.2, 0.4]) * 0.5
    bernoulli = RewardDistribution("bernoulli")
    return Replay(contexts=contexts, rewards=means, sampling="in-order", reward=bernoulli)


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
@pytest.mark.parametrize("name", ["alone", "lazy", "eager", "each round"])
def test_runs_equal_the_oracle(name, delay):
    keys = CURVES[name] | {"sieve": 1.0}
    e = experiment(keys, delay, rows_of_different_length())
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    expected = oracle.simulate(
        environment.round,
        environment.reward,
        arrivals_of(e, delay),
        plan.ends.tolist() if plan.batch_size else [],
        lazy=name == "lazy",
        alone=name == "alone",
        # With releases in every round, actions depend on releases only, as with lazy updates.
        alpha=0.01 * (SILOS if name == "each round" else 1),
    )
    assert expected.least_gap > 1e-9
    outcome = fast(e)
    np.testing.assert_array_equal(outcome.actions, expected.actions)
    np.testing.assert_array_equal(outcome.rewards, expected.rewards)
    np.testing.assert_allclose(outcome.group_regret, expected.regret, rtol=1e-12)
    if expected.totals:
        np.testing.assert_allclose(outcome.total, expected.totals[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
@pytest.mark.parametrize("name", [n for n in CURVES if CURVES[n].get("delta")])
def test_a_release_holds_the_arrived_rewards_and_the_noise_without_delays(name, delay):
    """Noise does not depend on delays, and sums contain exactly the rewards that had arrived."""
    noises = []
    for delay_of_run in (delay, None):
        e = experiment(CURVES[name], delay_of_run)
        plan, outcome = e.curves[0].system.plan, step(e)
        last = plan.end(plan.releases)
        arrivals = arrivals_of(e, delay_of_run or {"kind": "constant"})
        environment = e.environment.open(e.seed, 0, e.silos)
        points = []
        for i in range(SILOS):
            for t in range(1, HORIZON + 1):
                x = environment.round(i, t)[0][outcome.actions[i, t - 1]].astype(float)
                x /= max(1.0, np.linalg.norm(x))
                if (arrival := arrivals[i][t - 1]) is not None and arrival <= last:
                    points.append((x, outcome.rewards[i, t - 1]))
        noises.append(outcome.total - oracle.statistic(points, 4))
    # A secure sum is rounded to its grid.
    np.testing.assert_allclose(noises[0], noises[1], atol=1e-4 if name == "secure-sum" else 1e-9)
    assert np.abs(noises[0]).max() > 1e-3


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
def test_draws_have_the_distribution_of_the_oracle(delay):
    plan = DelayedPlan.of(experiment(CURVES["lazy"]).curves[0].system.plan, np.ones(1))
    horizon = 400
    plan = replace(plan, arrivals=Delay(**delay).arrivals(horizon))
    rng = np.random.default_rng(0)
    words = [0, 2**63, 2**64 - 2**30, *rng.integers(0, 2**64, 4000, dtype=np.uint64).tolist()]
    for bits in words:
        expected = oracle.delay_of(bits, **delay)
        if expected is not None and expected >= horizon:
            expected = None  # it would arrive after the last round
        assert plan.delay(bits) == expected


def test_delays_have_the_mean_that_the_key_states():
    noise = SeededNoise(1, 0)
    for delay, mean in (
        ({"kind": "geometric", "mean": 6.0}, 6.0),
        ({"kind": "uniform", "low": 2, "high": 9}, 5.5),
    ):
        draws = [oracle.delay_of(noise.delay(0, t), **delay) for t in range(1, 20001)]
        # The means have standard errors of at most 0.05; the limit is four of these.
        assert np.mean(draws) == pytest.approx(mean, abs=0.2)
    # Draws of different silos and rounds are different.
    assert len({noise.delay(i, t) for i in range(20) for t in range(50)}) == 1000


# ---- Drivers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
@pytest.mark.parametrize("keys", CURVES.values(), ids=CURVES)
def test_both_drivers_have_the_same_bits(keys, delay):
    e = experiment(keys, delay)
    outcome = fast(e, threads=2, rounds_per_call=7)
    assert_same_bits(outcome, step(e))
    assert_same_bits(outcome, fast(e))


@pytest.mark.parametrize("name", ["alone", "lazy", "eager", "each round", "central"])
@pytest.mark.parametrize("world", ["fixed", "fixed, large", "sphere, large", "pool"])
def test_drivers_agree_where_scores_are_cached(name, world):
    """Caches of the compiled driver must not assume that each round adds its data point."""
    environment: object = FixedSet(dimension=3, actions=6)
    if world == "fixed, large":
        environment = FixedSet(dimension=40, actions=20)
    if world == "sphere, large":
        environment = Sphere(dimension=36, actions=40)
    if world == "pool":
        rng = np.random.default_rng(3)
        contexts = rng.normal(size=(SILOS, 9, 30, 36))
        contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
        environment = Replay.from_arrays(
            contexts, rng.uniform(size=(SILOS, 9, 30)), "with-replacement"
        )
    for delay in (DELAYS["geometric"], DELAYS["uniform"]):
        for sieve in (1.0, 0.3):
            if sieve < 1.0 and not CURVES[name].get("lazy", True):
                continue
            e = experiment(CURVES[name] | {"sieve": sieve}, delay, environment, horizon=150)
            assert_same_bits(fast(e), step(e))


@pytest.mark.parametrize("keys", CURVES.values(), ids=CURVES)
def test_a_delay_of_0_gives_the_results_without_delays(keys):
    plain = step(experiment(keys))
    for delay in (
        {"kind": "constant", "rounds": 0},
        {"kind": "uniform", "low": 0, "high": 0, "deadline": 0},
        {"kind": "geometric", "mean": 0},
    ):
        e = experiment(keys, delay)
        assert isinstance(e.curves[0].system.plan, DelayedPlan)
        assert_same_bits(step(e), plain)
        assert_same_bits(fast(e), plain)


def test_rewards_after_the_deadline_are_lost():
    delay = {"kind": "uniform", "low": 6, "high": 7}
    all_arrive, half_arrive = (
        fast(experiment(CURVES["lazy"], {**delay, "deadline": deadline})) for deadline in (7, 6)
    )
    assert_same_bits(all_arrive, fast(experiment(CURVES["lazy"], delay)))
    # Features have norm 1, so the trace of the sum of x x' is the number of data points.
    diagonal = np.cumsum(range(1, 5)) - 1 + 4
    arrived, remaining = (o.total[diagonal].sum() for o in (all_arrive, half_arrive))
    last = experiment(CURVES["lazy"]).curves[0].system.plan.ends[-1]
    assert SILOS * (last - 7) <= arrived <= SILOS * (last - 6)
    assert 0.3 * arrived < remaining < 0.7 * arrived
    never = fast(experiment(CURVES["lazy"], DELAYS["all after the horizon"]))
    assert not never.total.any()


def test_curves_with_and_without_delays_run_together():
    """Curves of one batch share contexts; one curve's delays do not change another curve."""
    spec = {
        "name": "sweep",
        "horizon": 60,
        "silos": 3,
        "seed": SEED,
        "environment": {"kind": "sphere", "dimension": 4, "actions": 6},
        "curve": [
            {"algorithm": "fedlinucb", "label": "late", "delay": [d for d in DELAYS.values()]},
            {"algorithm": "fedlinucb", "label": "at once"},
        ],
    }
    together = experiment_from_spec(spec)
    environment = together.environment.open(SEED, 0, 3)
    plans = [curve.system.plan for curve in together.curves]
    outcomes = compiled.run(environment, plans, together.checkpoints, record=True)
    assert len(outcomes) == len(DELAYS) + 1
    for outcome, delay in zip(outcomes, [*DELAYS.values(), None], strict=True):
        alone = fast(experiment({"algorithm": "fedlinucb"}, delay))
        np.testing.assert_array_equal(outcome.actions, alone.actions)
    assert len({outcome.actions.tobytes() for outcome in outcomes}) == len(outcomes)
    # A key at its default leaves the identities of old stores unchanged.
    assert "delay" not in together.identity()["curves"][-1]
    assert together.identity()["curves"][0]["delay"]["rounds"] == 7


# ---- Privacy -------------------------------------------------------------------------------------


def test_one_record_enters_one_batch():
    """A changed reward changes exactly one report: that of the batch in which it arrives."""
    delay = DELAYS["geometric"]
    # With one action nothing that a silo does depends on rewards.
    e = experiment({"algorithm": "fedlinucb", "batch_size": 6}, delay, Sphere(2, actions=1))
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)

    def reports(changed):
        """Return the reports of a silo whose reward is 1 in round `changed` only."""
        silo = server.DelayedSilo(plan, 1, SeededNoise(e.seed, 0))
        sent = []
        for t in range(1, HORIZON + 1):
            features, _ = environment.round(1, t)
            silo.select(features)
            silo.observe(1.0 if t == changed else 0.0)
            if silo.due:
                sent.append(silo.report().values)
                silo.receive(fastfed.protocols.protocol.Broadcast(len(sent), 2, sent[-1]))
        return np.array(sent)

    before, arrivals = reports(None), arrivals_of(e, delay)[1]
    never = 0
    for t in range(1, HORIZON + 1):
        differing = np.flatnonzero((reports(t) != before).any(axis=1)).tolist()
        arrival = arrivals[t - 1]
        if arrival is None or arrival > plan.end(plan.releases):
            never += 1
            assert differing == []
        else:
            assert differing == [(arrival - 1) // 6]
    assert 0 < never < HORIZON


@pytest.mark.parametrize("name", [n for n in CURVES if CURVES[n].get("delta")])
def test_certificates_are_those_without_delays_and_name_the_condition(name):
    plain, delayed = (
        experiment(CURVES[name], d).curves[0].system for d in (None, DELAYS["deadline"])
    )
    before, after = plain.certificate, delayed.certificate
    assert (before.status, after.status) == ("proven", "proven")
    assert before.exact == after.exact and before.noise_std == after.noise_std
    added = [c for c in after.conditions if c not in before.conditions]
    assert [c.text for c in added] == [
        "when a reward arrives does not depend on data (each delay is drawn)"
    ]
    assert released(delayed.plan) == released(plain.plan)


REFUSED = {
    'no privacy account covers delays under "shuffle-vector"': {"protocol": "shuffle-vector"},
    'no privacy account covers delays under "shuffle-amplified"': {"protocol": "shuffle-amplified"},
    "delay needs lazy = true: actions must not": {"lazy": False},
    "delay needs returning = 1: several rewards": {"returning": 2},
    'delay needs protects = "user": contexts': {"protects": "reward"},
    "share needs a curve without delay": {"share": {"until": 20}},
    "delay needs a curve without reward_centre": {"reward_centre": 0.5},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_keys_that_no_proof_covers_are_refused(sentence):
    environment = Sphere(dimension=3, actions=5, intercept=2.0)
    with pytest.raises(InputError, match=sentence):
        experiment(PRIVATE | REFUSED[sentence], DELAYS["geometric"], environment)


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "feducb", "epsilon": 1.0, "delta": 0.01},
        {"algorithm": "robin", "epsilon": 1.0, "delta": 0.01},
        {"algorithm": "random"},
    ],
    ids=lambda keys: keys["algorithm"],
)
def test_other_systems_refuse_the_key(keys):
    with pytest.raises(InputError, match=r'unknown key "delay" for .*it is one of .*fedlinucb'):
        experiment(keys, DELAYS["geometric"])


def test_a_plan_with_delays_has_no_account_in_other_protocols():
    """The account refuses plans whose keys would be refused."""
    arrivals = Delay(**DELAYS["geometric"]).arrivals(HORIZON)
    for changes in (
        {"protocol": "shuffle-vector"},
        {"protocol": "shuffle-amplified"},
        {"protocol": "silo-ldp", "returning": 3},
        {"protocol": "central", "protects": "reward"},
        {"protocol": "central", "share": {"until": 20}},
    ):
        plan = experiment(PRIVATE | changes).curves[0].system.plan
        released(plan)
        with pytest.raises(InputError, match="no delayed rewards, or one of the protocols"):
            released(DelayedPlan.of(plan, arrivals))
    sphere = Sphere(dimension=3, actions=5, intercept=2.0)
    keys = PRIVATE | {"protocol": "central", "reward_centre": 0.5}
    plan = experiment(keys, environment=sphere).curves[0].system.plan
    with pytest.raises(InputError, match="no delayed rewards, or one of the protocols"):
        released(DelayedPlan.of(plan, arrivals))
    assert "shuffle-vector" in PROTOCOLS


def test_deployments_refuse_the_key():
    with pytest.raises(InputError, match="delay is a key of simulations"):
        make_system(
            "private-fedlinucb", silos=3, horizon=60, dimension=4,
            epsilon=1.0, delta=1e-3, delay=DELAYS["geometric"],
        )  # fmt: skip


# ---- Theory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", ["direct", "lemma-c2", "lemma-c4"])
def test_only_the_direct_radius_is_proven_and_no_regret_bound(radius):
    keys = PRIVATE | {"protocol": "central", "radius": radius}
    plain, delayed = (experiment(keys, d).curves[0].system for d in (None, DELAYS["geometric"]))
    assert delayed.theory.proven == (radius == "direct")
    assert ("rewards that arrive late" in " ".join(delayed.theory.caveats)) == (radius != "direct")
    assert direct_regret_bound(delayed.plan, delayed.theory) is None
    assert (direct_regret_bound(plain.plan, plain.theory) is None) == (radius != "direct")
    assert type(plain.plan) is Plan


@pytest.mark.parametrize("name", ["alone", "lazy", "eager", "central"])
def test_confidence_sets_hold(name):
    """In whole runs |<x, theta* - theta_hat>| never exceeds the radius, for all actions."""
    e = experiment(CURVES[name] | {"sieve": 1.0}, DELAYS["geometric"], horizon=200)
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)
    federation = server.Federation(plan, SeededNoise(e.seed, 0))
    waiting = checked = 0
    for t in range(1, 201):
        for i, silo in enumerate(federation.silos):
            features, means = environment.round(i, t)
            estimate, beta, gamma = silo._estimate, silo._radius(), silo._second_bonus
            for x, mean in zip(features.astype(float), means, strict=True):
                z = estimate.w @ x
                bonus = beta * np.linalg.norm(z) + gamma * np.linalg.norm(estimate.w.T @ z)
                assert abs(x @ estimate.theta - mean) <= bonus + 1e-9
                checked += 1
            action = silo.select(features)
            silo.observe(environment.reward(i, t, means[action]))
            waiting = max(waiting, sum(len(late) for late in silo._late.values()))
        if federation.due:
            federation.exchange()
    assert checked == 200 * 3 * 6 and waiting > 3


# ---- Keys ----------------------------------------------------------------------------------------


WRONG = {
    "delay.kind must be one of": {"kind": "weibull"},
    'delay of kind "constant" needs key rounds': {"kind": "constant"},
    'delay of kind "constant" has no key mean': {"kind": "constant", "rounds": 1, "mean": 2.0},
    'delay of kind "uniform" needs key high': {"kind": "uniform", "low": 1},
    "delay.high must be >= delay.low = 5, got 2": {"kind": "uniform", "low": 5, "high": 2},
    "delay.rounds must be an integer >= 0": {"kind": "constant", "rounds": -1},
    "delay.mean must be .*nan": {"kind": "geometric", "mean": float("nan")},
    "delay.mean must be >= 0": {"kind": "geometric", "mean": -1.0},
    "delay.deadline must be an integer >= 0": {"kind": "geometric", "mean": 1, "deadline": -2},
    "delay.deadline must be at least the least delay, 9 rounds": {
        **{"kind": "uniform", "low": 9, "high": 12},
        "deadline": 8,
    },
    "std": {"kind": "geometric", "mean": 1.0, "std": 2.0},
    "delay": {"rounds": 3},
    "rounds": {"kind": "constant", "rounds": 2.5},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_keys_are_checked(sentence):
    with pytest.raises(InputError, match=sentence):
        experiment(CURVES["lazy"], WRONG[sentence])


def test_arrivals_are_probabilities():
    for delay in DELAYS.values():
        for horizon in (1, 2, 50, 5000):
            arrivals = Delay(**delay).arrivals(horizon)
            assert 1 <= len(arrivals) <= horizon
            assert (np.diff(arrivals) >= 0.0).all() and arrivals[-1] <= 2.0**53
            assert (arrivals == np.rint(arrivals)).all()
    # The queue of a geometric delay is short: its tail below 2^-54 is left out.
    tail = Delay(kind="geometric", mean=20.0).arrivals(10**6)
    assert len(tail) < 1000 and tail[-1] == 2.0**53
