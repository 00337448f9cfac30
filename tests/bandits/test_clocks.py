"""Silos on their own clocks: an event loop in NumPy, two drivers, privacy, radius."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import one_curve
import pytest
from one_curve import HORIZON, SEED, SILOS, assert_same_bits, fast, step
from oracle import clocks as oracle
from oracle.zhou_chowdhury_2024 import Direct
from scipy import stats

from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.bandits.radius import direct_regret_bound
from fastfed.environments import FixedSet, Replay, RewardDistribution, Sphere
from fastfed.privacy.account import released
from fastfed.protocols.clocks import Clocks
from fastfed.protocols.plan import ClockedPlan, Plan
from fastfed.protocols.protocol import Broadcast
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import make_system

#: Keys of clocks of three silos.
CLOCKS = {
    "equal": {},
    "one is slow": {"rates": [0.05]},
    "all differ": {"rates": [0.31, 0.07, 0.9]},
    "one leaves": {"asleep": [[1, 20]]},
    "one comes late": {"asleep": [[0, 1, 33]]},
    "outages": {"rates": [0.5], "asleep": [[0, 5, 12], [1, 30, 41], [1, 8, 8]]},
    "one never serves": {"asleep": [[2, 1]]},
    "all leave": {"asleep": [[0, 31], [1, 31], [2, 31]]},
    "one leaves after the end": {"asleep": [[1, HORIZON + 1]], "rates": [0.5]},
    "nobody serves": {"asleep": [[0, 1], [1, 1], [2, 1]]},
    "calendar": {"rates": [0.1, 0.4], "by": "ticks"},
    "calendar with outages": {"asleep": [[0, 5, 12], [1, 1, 30], [2, 50]], "by": "ticks"},
    "a silo waits": {"rates": [0.2], "wait": True},
    "they wait for a leaver": {"rates": [0.5], "asleep": [[1, 20]], "wait": True},
    "they wait for a sleeper": {"asleep": [[1, 4, 25]], "wait": True},
}
PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 20.0, "delta": 0.01}
CURVES = {
    "none": {"algorithm": "fedlinucb"},
    "silo-ldp": {**PRIVATE, "protocol": "silo-ldp"},
    "equal batches": {**PRIVATE, "protocol": "silo-ldp", "batch_size": 7, "sieve": 1.0},
    "toeplitz": {**PRIVATE, "protocol": "silo-ldp", "release": "toeplitz"},
    "honaker": {**PRIVATE, "protocol": "silo-ldp", "release": "honaker"},
    "buffered": {**PRIVATE, "protocol": "silo-ldp", "release": "buffered"},
    "prefix": {**PRIVATE, "protocol": "silo-ldp-prefix", "release_rounds": [3, 4, 9, 30, 60]},
    "two budgets": {
        **{"algorithm": "private-fedlinucb", "delta": 0.01, "protocol": "silo-ldp"},
        "silo_epsilon": [5.0, 20.0, 20.0],
    },
}


def experiment(keys, clock=None, environment=None, **sizes):
    """Return an experiment of one curve with this clock."""
    clock_keys = {"clock": clock} if clock is not None else {}
    return one_curve.experiment({**keys, **clock_keys}, environment, **sizes)


# ---- Clocks --------------------------------------------------------------------------------------


def random_clock(rng, silos, horizon):
    """Return the keys of a clock: any rates, intervals and rule, sometimes extreme."""
    asleep = []
    for silo in range(silos):
        for _ in range(rng.integers(0, 3)):
            first = int(rng.integers(1, horizon + 1))
            last = int(rng.integers(first, horizon + 20))
            asleep.append([silo, first] if rng.random() < 0.3 else [silo, first, last])
    rates = np.round(rng.uniform(0.01, 1.0, size=rng.integers(0, silos + 1)) ** 2, 2)
    rule = {"by": "ticks"} if rng.random() < 0.3 else {"wait": bool(rng.random() < 0.4)}
    return {"rates": np.maximum(rates, 0.01).tolist(), "asleep": asleep, **rule}


def oracle_clocks(clock, ends, silos=SILOS, horizon=HORIZON):
    """Return the oracle's clocks for the keys of a clock."""
    return oracle.Clocks(silos, horizon, ends, **clock)


def check_clocks(clocks, expected):
    """Compare clocks with those of the oracle."""
    ticks, silos = range(1, clocks.horizon + 1), range(clocks.silos)
    np.testing.assert_array_equal(
        clocks.serves, [[expected.serves(i, t) for t in ticks] for i in silos]
    )
    events = expected.exchanges()
    assert clocks.ticks.tolist() == [t for t, _ in events]
    assert [np.flatnonzero(row).tolist() for row in clocks.sends] == [i for _, i in events]
    counts, reported = np.zeros(clocks.silos, int), np.zeros(clocks.silos, int)
    reports, rows = [counts.tolist()], [0]
    for t, senders in events:
        for i in senders:
            counts[i] += 1
            reported[i] = sum(expected.serves(i, u) for u in range(1, t + 1))
        reports.append(counts.tolist())
        rows.append(int(reported.sum()))
    assert clocks.reports.tolist() == reports and clocks.rows.tolist() == rows


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_clocks_equal_the_event_loop(clock):
    clocks = experiment(CURVES["silo-ldp"], clock).curves[0].system.plan.clocks
    plain = experiment(CURVES["silo-ldp"]).curves[0].system.plan
    assert clocks.ends == tuple(plain.ends)
    check_clocks(clocks, oracle_clocks(clock, plain.ends.tolist()))


def test_random_clocks_equal_the_event_loop():
    rng = np.random.default_rng(1)
    for _ in range(200):
        silos, horizon = int(rng.integers(1, 5)), int(rng.integers(1, 50))
        ends = np.unique(rng.integers(1, horizon + 1, size=rng.integers(0, 8))).tolist()
        clock = random_clock(rng, silos, horizon)
        asleep = [(i, first, *(last or [horizon])) for i, first, *last in clock["asleep"]]
        keys = {"by": clock.get("by", "users"), "wait": clock.get("wait", False)}
        clocks = Clocks(silos, horizon, tuple(ends), tuple(clock["rates"]), tuple(asleep), **keys)
        check_clocks(clocks, oracle_clocks(clock, ends, silos, horizon))


def test_a_pickle_holds_the_keys_only():
    clocks = (
        experiment(CURVES["none"], CLOCKS["outages"], horizon=5000).curves[0].system.plan.clocks
    )
    assert clocks.rows[-1] > 0
    data = pickle.dumps(clocks)
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data).sends, clocks.sends)


# ---- Drivers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", CURVES.values(), ids=CURVES)
def test_equal_clocks_give_the_results_without_clocks(keys):
    plain, equal = experiment(keys), experiment(keys, {})
    plan, clocked = plain.curves[0].system.plan, equal.curves[0].system.plan
    assert type(plan) is Plan and type(clocked) is ClockedPlan
    np.testing.assert_array_equal(plan.regularizer, clocked.regularizer)
    np.testing.assert_array_equal(plan.radius.error_bound, clocked.radius.error_bound)
    expected = step(plain)
    assert_same_bits(step(equal), expected)
    assert_same_bits(fast(equal), expected)
    # So are a calendar, and silos that need not wait.
    for clock in ({"by": "ticks"}, {"wait": True}, {"rates": [1.0]}):
        assert_same_bits(fast(experiment(keys, clock)), expected)


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("keys", CURVES.values(), ids=CURVES)
def test_both_drivers_have_the_same_bits(keys, clock):
    e = experiment(keys, clock)
    outcome = fast(e, threads=2, rounds_per_call=7)
    assert_same_bits(outcome, step(e))
    assert_same_bits(outcome, fast(e))


@pytest.mark.parametrize("world", ["fixed", "fixed, large", "sphere, large", "pool"])
def test_drivers_agree_where_scores_are_cached(world):
    """Caches of the compiled driver must not assume that all silos choose from one view."""
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
    for name in ("none", "silo-ldp"):
        for sieve in (1.0, 0.3):
            keys = CURVES[name] | {"sieve": sieve}
            e = experiment(keys, CLOCKS["all differ"], environment, horizon=120)
            assert_same_bits(fast(e), step(e))


def test_drivers_agree_with_centred_rewards():
    environment = Sphere(dimension=3, actions=5, intercept=2.0)
    keys = CURVES["silo-ldp"] | {"reward_centre": 0.5}
    for clock in ({}, CLOCKS["outages"]):
        e = experiment(keys, clock, environment)
        assert_same_bits(fast(e), step(e))
    assert_same_bits(
        fast(experiment(keys, {}, environment)), fast(experiment(keys, None, environment))
    )


@pytest.mark.parametrize("keys", CURVES.values(), ids=CURVES)
def test_a_silo_that_never_serves_changes_no_result(keys):
    # The defaults of these keys depend on the number of silos.
    if "release" not in keys and keys.get("protocol") == "silo-ldp":
        keys = keys | {"release": "factorised", "saturation": 0.0}
    budgets = {"silo_epsilon": [5.0, 20.0]} if "silo_epsilon" in keys else {}
    absent = experiment(keys | budgets, {"rates": [0.5]}, silos=2)
    frozen = experiment(keys, {"rates": [0.5], "asleep": [[2, 1]]})
    a, b = fast(absent), fast(frozen)
    np.testing.assert_array_equal(a.actions, b.actions[:2])
    assert_same_bits(a, b, ("group_regret", "total", "synchronisations", "bits_up"))


def test_the_last_report_of_a_silo_that_leaves_stays_in_the_sum():
    e = experiment(CURVES["silo-ldp"], {"asleep": [[1, 20]]})
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)
    federation = server.Federation(plan, SeededNoise(e.seed, 0))
    latest, views = {}, []
    for t in range(1, HORIZON + 1):
        for i, silo in enumerate(federation.silos):
            if not plan.clocks.serves[i, t - 1]:
                silo.idle()
                continue
            features, means = environment.round(i, t)
            silo.observe(environment.reward(i, t, means[silo.select(features)]))
        if federation.due:
            for message in federation.exchange():
                latest[message.silo] = (t, message.values)
            views.append(federation.total)
            expected = sum(latest[i][1] for i in sorted(latest))
            np.testing.assert_allclose(federation.total, expected, rtol=1e-12)
    assert latest[1][0] < 20 < latest[0][0] == latest[2][0] and len(views) > 5


def test_curves_with_and_without_clocks_run_together():
    """Curves of one run share contexts; one curve's clock does not change another curve."""
    clocks = [CLOCKS["one is slow"], CLOCKS["calendar with outages"], None]
    curves = [
        {"algorithm": "fedlinucb", "label": str(i), **({"clock": c} if c else {})}
        for i, c in enumerate(clocks)
    ]
    together = make_experiment(
        name="clocks", environment=Sphere(dimension=4, actions=6), curves=curves,
        horizon=HORIZON, silos=SILOS, seed=SEED, checkpoints=HORIZON,
    )  # fmt: skip
    environment = together.environment.open(SEED, 0, SILOS)
    plans = [curve.system.plan for curve in together.curves]
    outcomes = compiled.run(environment, plans, together.checkpoints, record=True)
    for outcome, clock in zip(outcomes, clocks, strict=True):
        assert_same_bits(outcome, fast(experiment({"algorithm": "fedlinucb"}, clock)))
    # A key at its default leaves the identities of old stores unchanged.
    identities = together.identity()["curves"]
    assert "clock" not in identities[-1] and identities[0]["clock"]["rates"] == (0.05,)


# ---- The oracle ----------------------------------------------------------------------------------


def report_noise(plan, seed):
    """Return a function for the noise (U, W) of a silo's k-th report, from the plan's numbers."""
    source, d = SeededNoise(seed, 0), plan.dimension

    def node(silo, number):
        """Return the noise (bias, covariance) of a draw."""
        z = source.node(silo, number, d)
        covariance = np.zeros((d, d))
        covariance[np.tril_indices(d)] = z[d:] * plan.noise_std.off_diagonal
        np.fill_diagonal(
            covariance, z[d:][np.cumsum(np.arange(1, d + 1)) - 1] * plan.noise_std.diagonal
        )
        return z[:d] * plan.noise_std.bias, covariance + np.tril(covariance, -1).T

    def noise(silo, k):
        """Return the noise of a silo's k-th report."""
        if plan.protocol.noise_by == "none":
            return np.zeros(d), np.zeros((d, d))
        if plan.release == "factorised":
            weights = dict(enumerate(plan.factor.matrix[k - 1, :k], start=1))
        elif plan.release == "toeplitz":
            weights = {k - j: math.comb(2 * j, j) / 4**j for j in range(k)}
        else:
            weights = {k >> j << j: 1.0 for j in range(k.bit_length()) if k >> j & 1}
        parts = [(weight, node(silo, number)) for number, weight in weights.items()]
        scale = plan.noise_scale[silo]
        return tuple(scale * sum(w * part[i] for w, part in parts) for i in range(2))

    return noise


def rows_of_different_length():
    """Return recorded rounds with rewards of 0 and 1. Rows of one length would tie while V = I."""
    rng = np.random.default_rng(4)
    contexts = rng.uniform(-0.5, 0.5, size=(SILOS, HORIZON, 5, 4))
    means = 0.5 + contexts @ np.array([0.6, -0.3, 0.2, 0.4]) * 0.5
    bernoulli = RewardDistribution("bernoulli")
    return Replay(contexts=contexts, rewards=means, sampling="in-order", reward=bernoulli)


def direct_of(plan):
    """Return the plan's direct radius in the form that the oracle needs."""
    radius = plan.radius
    return Direct(
        full=lambda v: plan.regularizer[v],
        floor=lambda v: radius.floor[v],
        error=lambda v: radius.error_bound[v],
        anchor=radius.anchor,
        base=radius.base,
        scale=radius.scale,
        multiplier=radius.multiplier,
    )


def oracle_replay(e, clock, outcome, change=lambda expected: None):
    """Return the oracle's replay of an outcome; ``change`` may plant a fault in its clocks."""
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)
    expected = oracle_clocks(clock, list(plan.clocks.ends))
    change(expected)
    return oracle.replay(
        expected,
        contexts=lambda t, i: environment.round(i, t)[0].astype(float),
        means=lambda t, i: environment.round(i, t)[1],
        actions=outcome.actions,
        rewards=outcome.rewards,
        noise=report_noise(plan, e.seed),
        direct=direct_of(plan),
        clip=(1.0, 0.0, 1.0),
    )


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("name", ["none", "silo-ldp", "toeplitz", "prefix", "two budgets"])
def test_runs_equal_the_oracle(name, clock):
    keys = CURVES[name] | {"sieve": 1.0}
    e = experiment(keys, clock, rows_of_different_length())
    outcome = fast(e)
    assert outcome.events["indefinite"] == 0
    replayed = oracle_replay(e, clock, outcome)
    assert replayed.nearest_floor > 1e-9
    assert replayed.worst_gap < 1e-9
    np.testing.assert_allclose(outcome.group_regret, replayed.group_regret, rtol=1e-12, atol=1e-12)
    assert outcome.synchronisations[-1] == len(replayed.views)
    if replayed.views:
        covariance, bias = replayed.views[-1]
        total = np.concatenate([bias, covariance[np.tril_indices(4)]])
        np.testing.assert_allclose(outcome.total, total, rtol=1e-9, atol=1e-9)


def test_the_oracle_detects_wrong_clocks():
    """A rate that differs a little, or a leaver who stays, makes the replay differ."""
    clock = {"rates": [0.31], "asleep": [[1, 40]]}
    e = experiment(CURVES["none"] | {"sieve": 1.0}, clock, rows_of_different_length())
    outcome = fast(e)
    assert oracle_replay(e, clock, outcome).worst_gap < 1e-9
    for faults in ({"rates": [0.35]}, {"asleep": [[1, 45]]}, {"by": "ticks"}):

        def change(expected, faults=faults):
            """Plant the faults in the expected clocks."""
            for name, value in faults.items():
                setattr(expected, name, value)

        assert oracle_replay(e, clock, outcome, change).worst_gap > 1e-6


@pytest.mark.parametrize("name", ["silo-ldp", "prefix", "two budgets"])
def test_the_error_bound_is_that_of_the_sum_of_the_silos_noise(name):
    """Check the variance sum_i f_i^2 v(k_i) of each view, and bounds for all V views together."""
    clock, alpha = CLOCKS["all differ"], 0.5
    keys = CURVES[name] | {"failure_probability": alpha}
    plan = experiment(keys, clock).curves[0].system.plan
    views, d, bound = len(plan.clocks.ticks), plan.dimension, plan.radius.error_bound
    assert len(plan.regularizer) == len(bound) == len(plan.widths) == views + 1
    assert views > plan.releases

    def variance(k):
        """Return v(k), from the weights of the draws in a report."""
        if plan.release == "factorised":
            return float((plan.factor.matrix[k - 1] ** 2).sum()) if k else 0.0
        return float(k.bit_count())

    # For ||theta|| = 1, N theta - h has variance b^2 + o^2, and b^2 + 2 o^2 along theta.
    b, o = plan.noise_std.bias, plan.noise_std.off_diagonal
    draws = np.random.default_rng(0).normal(size=(400_000, d)) * math.hypot(b, o)
    draws[:, 0] *= math.sqrt((b**2 + 2.0 * o**2) / (b**2 + o**2))
    norms = np.linalg.norm(draws, axis=1)
    for v, reports in enumerate(oracle_reports(clock, plan)):
        parts = zip(plan.noise_scale, reports, strict=True)
        std = math.sqrt(sum(f**2 * variance(k) for f, k in parts))
        if not v:
            assert std == bound[v] == 0.0
            continue
        # About 50 000 / V of the draws exceed the bound, so that 15 % are several standard errors.
        tail = float((norms * std > bound[v]).mean())
        assert tail == pytest.approx(alpha / 4.0 / views, rel=0.15)


def oracle_reports(clock, plan):
    """Return the number of reports of each silo in each view, by the oracle."""
    counts = [0] * plan.silos
    reports = [list(counts)]
    for _, senders in oracle_clocks(clock, list(plan.clocks.ends)).exchanges():
        for i in senders:
            counts[i] += 1
        reports.append(list(counts))
    return reports


# ---- Privacy -------------------------------------------------------------------------------------


def test_one_record_enters_one_report_of_one_silo():
    """A changed reward changes the batch that holds it, whose prefix is in all later reports."""
    clock = {"rates": [1.0, 0.37], "asleep": [[1, 20, 29]]}
    keys = {"algorithm": "fedlinucb", "batch_size": 4}
    # With one action nothing that a silo does depends on rewards.
    e = experiment(keys, clock, Sphere(2, actions=1))
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)
    serves = plan.clocks.serves[1]

    def reports(changed):
        """Return the reports of a silo whose reward is 1 in round `changed` only."""
        silo = server.ClockedSilo(plan, 1, SeededNoise(e.seed, 0))
        sent = []
        for t in range(1, HORIZON + 1):
            if serves[t - 1]:
                silo.select(environment.round(1, t)[0])
                silo.observe(1.0 if t == changed else 0.0)
            else:
                silo.idle()
            if silo.due:
                sent.append(silo.report().values)
                silo.receive(Broadcast(silo._reports, 2, sent[-1]))
        return np.array(sent)

    before, served = reports(None), serves.cumsum().tolist()
    assert len(before) == served[-1] // 4 > 3
    for t in range(1, HORIZON + 1):
        differing = np.flatnonzero((reports(t) != before).any(axis=1)).tolist()
        batch = (served[t - 1] - 1) // 4
        assert differing == ([batch] if serves[t - 1] and batch < len(before) else [])


@pytest.mark.parametrize("name", [n for n in CURVES if n != "none"])
def test_certificates_are_those_of_the_largest_number_of_reports(name):
    clock = CLOCKS["one leaves"]
    plain, clocked = (experiment(CURVES[name], c).curves[0].system for c in (None, clock))
    before, after = plain.certificate, clocked.certificate
    assert (before.status, after.status) == ("proven", "proven")
    assert before.exact == after.exact and before.noise_std == after.noise_std
    added = [c.text for c in after.conditions if c not in before.conditions]
    assert added == [
        "when a silo reports does not depend on contexts or rewards (its clock is public)"
    ]
    assert released(clocked.plan)[0] == released(plain.plan)[0]
    silos_with_fewer = [c for c in after.also if "reports" in c.model]
    if name in ("buffered", "two budgets"):
        assert not silos_with_fewer
        return
    (side,) = silos_with_fewer
    reports = clocked.plan.clocks.reports_of_silos
    assert reports[1] < reports[0] == reports[2] == plain.plan.releases
    assert f"users of silo 1, with {reports[1]} reports" in side.model
    assert 0.0 < side.exact.epsilon <= after.exact.epsilon
    if name in ("toeplitz", "honaker", "prefix"):
        # The same noise with K_i releases at all silos.
        ends = plain.plan.ends.tolist()[: reports[1]]
        keys = {k: v for k, v in CURVES[name].items() if k != "batch_size"}
        short = experiment(keys | {"release_rounds": ends}).curves[0].system
        ratio = short.plan.noise_std.bias / plain.plan.noise_std.bias
        event = released(replace(short.plan, noise_std=plain.plan.noise_std))[0]
        assert ratio <= 1.0 and side.exact.epsilon == pytest.approx(event.exact(), rel=1e-9)


def test_noise_is_calibrated_to_the_largest_number_of_reports():
    """Noise is calibrated for K, the largest number of reports of a silo."""
    slow = {"rates": [0.1, 0.1, 0.1]}
    plain, clocked = (experiment(CURVES["silo-ldp"], c).curves[0].system.plan for c in (None, slow))
    assert clocked.releases < plain.releases
    assert clocked.noise_std.bias < plain.noise_std.bias
    assert max(clocked.clocks.reports_of_silos) == clocked.releases


REFUSED = {
    'clock needs protocol silo-ldp or silo-ldp-prefix, .* got "shuffle-vector"': {
        "protocol": "shuffle-vector"
    },
    'clock needs protocol silo-ldp .* got "secure-sum"': {"protocol": "secure-sum"},
    'clock needs protocol silo-ldp .* got "central"': {"protocol": "central"},
    'clock needs protocol silo-ldp .* got "user-bit"': {
        "protocol": "user-bit", "protects": "reward",
    },
    'clock needs radius "direct" and lazy = true': {"lazy": False},
    'clock needs radius "direct" and lazy = true: .* "lemma-c2"': {"radius": "lemma-c2"},
    "clock needs returning = 1: batches of different silos": {"returning": 2},
    'clock needs protects = "user"': {"protects": "reward"},
    'clock needs noise_draws = "silo"': {"noise_draws": "sum"},
    "clock needs a curve without share": {"share": {"until": 20}},
    "clock needs a curve without delay": {"delay": {"kind": "constant", "rounds": 2}},
    "clock needs reports of prefix sums: use protocol": {"release": "tree"},
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_keys_that_no_proof_covers_are_refused(sentence):
    with pytest.raises(InputError, match=sentence):
        experiment(PRIVATE | REFUSED[sentence], {})


INVALID = {
    "clock.rates must be .*0": {"rates": [0.0]},
    "clock.rates must be .*1.5": {"rates": [1.5]},
    "clock.rates must hold at most one number for each of 3 silos, got 4": {"rates": [1.0] * 4},
    r"clock.asleep must hold \[silo, first tick, last tick\]": {"asleep": [[1]]},
    "silo in clock.asleep must be .*2.*3": {"asleep": [[3, 1]]},
    "first tick in clock.asleep must be .*0": {"asleep": [[0, 0, 4]]},
    "last tick in clock.asleep must be .*5.*4": {"asleep": [[0, 5, 4]]},
    "clock.by must be": {"by": "days"},
    'clock.wait needs clock.by "users"': {"by": "ticks", "wait": True},
    'unknown key "speed"|speed': {"speed": 1.0},
}


@pytest.mark.parametrize("sentence", INVALID)
def test_invalid_clocks_are_refused(sentence):
    with pytest.raises(InputError, match=sentence):
        experiment(CURVES["silo-ldp"], INVALID[sentence])


def test_other_systems_refuse_the_key():
    for keys in ({"algorithm": "local-linucb"}, {"algorithm": "random"}):
        with pytest.raises(InputError, match=r'unknown key "clock" for .*it is one of .*fedlinucb'):
            experiment(keys, {})


def test_step_objects_refuse_the_key():
    with pytest.raises(InputError, match="clock is a key of simulations and of plan files"):
        make_system(
            "private-fedlinucb", silos=3, horizon=60, dimension=4,
            epsilon=1.0, delta=1e-3, clock={},
        )  # fmt: skip


def test_plans_with_other_clocks_have_no_account():
    """The account refuses plans whose keys would be refused, and plans with more reports than K."""
    system = experiment(CURVES["silo-ldp"], {"rates": [0.1, 0.1, 0.1]}).curves[0].system
    plan = system.plan
    released(plan)
    faster_silo = replace(plan.clocks, rates=(0.1, 0.1, 0.9))
    for changes in (
        {"clocks": faster_silo},
        {"clocks": replace(plan.clocks, silos=2)},
        {"clocks": replace(plan.clocks, by="days")},
        {"clocks": replace(plan.clocks, rates=(0.1, 0.1, 2.0))},
        {"clocks": replace(plan.clocks, asleep=((3, 1, 2),))},
        {"clocks": replace(plan.clocks, ends=plan.clocks.ends[::-1])},
        {"lazy": False},
        {"drawn_once": True},
    ):
        with pytest.raises(InputError, match="no clocks of silos, or one of the protocols"):
            released(replace(plan, **changes))
    for keys in ({"protocol": "central"}, {"release": "tree"}, {"returning": 2}):
        other = experiment(PRIVATE | keys).curves[0].system.plan
        with pytest.raises(InputError, match="no clocks of silos, or one of the protocols"):
            released(ClockedPlan.of(other, replace(plan.clocks, rates=())))


def test_the_server_refuses_reports_of_other_silos_and_of_other_numbers():
    e = experiment(CURVES["silo-ldp"], {"rates": [0.5]})
    plan, environment = e.curves[0].system.plan, e.environment.open(e.seed, 0, e.silos)
    federation = server.Federation(plan, SeededNoise(e.seed, 0))
    while not federation.due:
        for i, silo in enumerate(federation.silos):
            if plan.clocks.serves[i, silo.round]:
                features, means = environment.round(i, silo.round + 1)
                silo.observe(environment.reward(i, silo.round + 1, means[silo.select(features)]))
            else:
                silo.idle()
    assert [silo.due for silo in federation.silos] == [False, True, True]
    with pytest.raises(InputError, match="silo 0 has no report due"):
        federation.silos[0].report()
    reports = [silo.report() for silo in federation.silos[1:]]
    for wrong, message in (
        (reports[:1], "one report of each of the 2 silos"),
        ([replace(reports[0], release=2), reports[1]], "must be of release 1, got release 2"),
    ):
        with pytest.raises(InputError, match=message):
            federation.server.combine(wrong)
    with pytest.raises(InputError, match="silos must be None"):
        federation.server.combine(reports, [1, 2])
    assert federation.server.combine(reports).release == 1


# ---- Theory --------------------------------------------------------------------------------------

ALPHA = 0.2
#: Curves of the coverage test: much and little noise, equal and growing batches, no noise.
COVERED = {
    "little noise": {**PRIVATE, "protocol": "silo-ldp", "epsilon": 60.0},
    "much noise": {**PRIVATE, "protocol": "silo-ldp-prefix", "epsilon": 0.5, "batch_size": 5},
    "toeplitz": {**PRIVATE, "protocol": "silo-ldp", "release": "toeplitz", "epsilon": 20.0},
    "none": {"algorithm": "fedlinucb", "batch_size": 3},
}


@dataclass
class Seen:
    """The observations of one run: whether events 1, 2 and 3 hold, and violations of the bound."""

    noise: bool = True
    error: bool = True
    rewards: bool = True
    broken: int = 0
    checked: int = 0
    most_silent: int = 0  # largest number of exchanges between two reports of one silo

    @property
    def events(self):
        """Return whether all three events of the direct radius hold."""
        return self.noise and self.error and self.rewards


def observed(curve, replicate, factor=1.0):
    """Simulate a run with random clocks, and compare it with docs/radius.md from definitions.

    ``factor`` multiplies E, the bound of event 2, to plant a fault.
    """
    rng = np.random.default_rng(replicate)
    silos = int(rng.integers(2, 5))
    clock = random_clock(rng, silos, HORIZON)
    world = Sphere(dimension=3, actions=5)
    keys = COVERED[curve] | {"failure_probability": ALPHA, "sieve": 1.0}
    e = experiment(keys, clock, world, silos=silos, seed=12)
    system = e.curves[0].system
    plan, seen = system.plan, Seen()
    bounds = system.theory.lambda_max - system.theory.regularizer
    environment, theta = world.open(12, replicate, silos), world.theta(12, replicate)
    federation = server.Federation(plan, SeededNoise(12, replicate))
    d = plan.dimension
    # Raw sums (G, u) of each silo now, and of its latest report.
    raw = [(np.zeros((d, d)), np.zeros(d)) for _ in range(silos)]
    reported = list(raw)
    last = np.zeros(silos, int)
    for t in range(1, HORIZON + 1):
        for i, silo in enumerate(federation.silos):
            if not plan.clocks.serves[i, t - 1]:
                silo.idle()
                continue
            features, means = environment.round(i, t)
            estimate, beta, gamma = silo._estimate, silo._radius(), silo._second_bonus
            error = theta - estimate.theta
            w, root = estimate.w, np.linalg.inv(estimate.w)
            # The actions that occur, and the two directions in which the inequality is tight.
            for x in (*features.astype(float), root @ root.T @ error, error):
                z = w @ x
                bonus = beta * np.linalg.norm(z) + gamma * np.linalg.norm(w.T @ z)
                seen.broken += abs(x @ error) > bonus * (1.0 + 1e-9)
                seen.checked += 1
            action = silo.select(features)
            y = environment.reward(i, t, means[action])
            silo.observe(y)
            # Features are float32, so a norm may exceed 1 before clipping.
            x = features[action].astype(float)
            x /= max(1.0, np.linalg.norm(x))
            raw[i] = raw[i][0] + np.outer(x, x), raw[i][1] + x * y
        if not federation.due:
            continue
        senders = [silo.index for silo in federation.silos if silo.due]
        federation.exchange()
        v = federation.server.release
        for i in senders:
            reported[i] = raw[i]
            seen.most_silent, last[i] = max(seen.most_silent, v - last[i]), v
        g, u = (sum(part[n] for part in reported) for n in range(2))
        total = np.zeros((d, d))
        total[np.tril_indices(d)] = federation.total[d:]
        total = total + np.tril(total, -1).T
        noise, h = total - g, federation.total[:d] - u
        seen.noise &= bool(np.linalg.eigvalsh(noise)[0] >= -bounds[v] - 1e-9)
        norm = np.linalg.norm(noise @ theta - h)
        seen.error &= bool(norm <= factor * plan.radius.error_bound[v] + 1e-9)
        anchored, s = g + plan.radius.anchor * np.eye(d), u - g @ theta
        grown = np.linalg.slogdet(anchored)[1] - d * math.log(plan.radius.anchor)
        square = s @ np.linalg.solve(anchored, s)
        seen.rewards &= bool(square <= plan.radius.scale**2 * (plan.radius.base + grown))
    return seen


def check_coverage(runs):
    """Check that events fail in at most ALPHA of the runs, and the inequality in no other run."""
    silent = 0
    for number, curve in enumerate(COVERED):
        results = [observed(curve, 1000 * number + i) for i in range(runs)]
        failures = sum(not r.events for r in results)
        assert failures <= int(stats.binom.isf(1e-6, runs, ALPHA))
        assert not any(r.broken for r in results if r.events)
        assert sum(r.checked for r in results) > 100 * runs
        silent = max(silent, *(r.most_silent for r in results))
    # Clocks differ much: a silo was silent while the others had many exchanges.
    assert silent > 5


def test_confidence_sets_hold_under_adversarial_clocks():
    check_coverage(10)


@pytest.mark.slow
def test_confidence_sets_hold_under_many_adversarial_clocks():
    check_coverage(250)


def test_coverage_detects_an_error_bound_that_is_too_small():
    results = [observed("little noise", i, factor=1.0 / 3.0) for i in range(20)]
    failures = sum(not r.error for r in results)
    assert failures > int(stats.binom.isf(1e-6, 20, ALPHA))


@pytest.mark.parametrize("clock", ["all differ", "outages", "calendar with outages"])
@pytest.mark.parametrize("name", ["silo-ldp", "none", "prefix"])
def test_the_regret_bound_counts_the_batches_of_each_silo(name, clock):
    """Compute the bound from the widths of all rows of the event loop, added row by row."""
    e = experiment(CURVES[name], CLOCKS[clock])
    plan, theory = e.curves[0].system.plan, e.curves[0].system.theory
    assert theory.proven
    events = oracle_clocks(CLOCKS[clock], plan.clocks.ends).exchanges()
    exchange_of = {tick: v for v, (tick, _) in enumerate(events, 1)}
    total, squares, bad = 0, 0.0, 0
    widths = np.array(plan.widths) / plan.radius.multiplier
    batches = {i: [0] for i in range(SILOS)}
    view = dict.fromkeys(range(SILOS), 0)
    model = oracle_clocks(CLOCKS[clock], plan.clocks.ends)
    for tick in range(1, HORIZON + 1):
        for i in range(SILOS):
            if model.serves(i, tick):
                total += 1
                squares += widths[view[i]] ** 2
                batches[i][-1] += 1
        v = exchange_of.get(tick)
        for i in events[v - 1][1] if v else ():
            view[i] = v
            batches[i].append(0)
    growth = plan.dimension * math.log(1.0 + total / (plan.dimension * plan.radius.anchor))
    for lengths in batches.values():
        bad += sum(sorted(lengths)[::-1][: int(growth / math.log(2.0))])
    expected = bad + 2.0 * math.sqrt(2.0 * growth * squares)
    assert direct_regret_bound(plan, theory) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_silos_with_clocks_add_up_as_in_the_proof_of_the_regret_bound(seed):
    """Check step 4 of `direct_regret_bound` for batches of single silos, on skewed rows."""
    rng = np.random.default_rng(seed)
    silos, horizon, d, c = 4, 80, 3, 0.1
    clock = random_clock(rng, silos, horizon)
    clocks = oracle_clocks(clock, range(3, horizon, 5), silos, horizon)
    # After the last tick, the rows that no silo has reported are added.
    due_at = {**dict(clocks.exchanges()), horizon: range(silos)}
    view, waiting = dict.fromkeys(range(silos), 0), {i: [] for i in range(silos)}
    matrices, reported = [c * np.eye(d)], []
    for tick in range(1, horizon + 1):
        for i in range(silos):
            if clocks.serves(i, tick):
                x = rng.normal(size=d) * (1.0, 0.3, 0.1)
                waiting[i].append(x / max(1.0, np.linalg.norm(x)))
        if senders := due_at.get(tick):
            rows = [x for i in senders for x in waiting[i]]
            matrices.append(matrices[-1] + sum((np.outer(x, x) for x in rows), np.zeros((d, d))))
            for i in senders:
                reported.append((i, view[i], len(matrices) - 1, waiting[i]))
                view[i], waiting[i] = len(matrices) - 1, []
    total = sum(len(rows) for *_, rows in reported)
    growth = d * math.log(1.0 + total / (d * c))
    bad_batches, good_sum = dict.fromkeys(range(silos), 0), 0.0
    for i, v, w, rows in reported:
        before, after = matrices[v], matrices[w]
        if np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1] > math.log(2.0):
            bad_batches[i] += 1
        else:
            good_sum += sum(float(x @ np.linalg.solve(before, x)) for x in rows)
    assert total and good_sum <= 2.0 * growth
    assert max(bad_batches.values()) <= growth / math.log(2.0)


def test_the_regret_bound_of_equal_clocks_is_that_without_clocks():
    keys = {**CURVES["silo-ldp"], "batch_size": "growing"}
    systems = [experiment(keys, clock).curves[0].system for clock in ({}, None)]
    with_clocks, plain = (direct_regret_bound(s.plan, s.theory) for s in systems)
    assert with_clocks == pytest.approx(plain, rel=1e-9)


def test_the_slack_of_the_sieve_counts_the_rows_of_the_view():
    """Compute C of docs/radius.md after step 2, with the rows of each view by the event loop."""
    clock = CLOCKS["outages"]
    system = experiment(CURVES["silo-ldp"], clock).curves[0].system
    plan, radius, d = system.plan, system.plan.radius, system.plan.dimension
    expected = oracle_clocks(clock, list(plan.clocks.ends))
    served, latest, rows = [0] * SILOS, [0] * SILOS, [0]
    events = dict(expected.exchanges())
    for t in range(1, HORIZON + 1):
        served = [n + expected.serves(i, t) for i, n in enumerate(served)]
        if t in events:
            latest = [served[i] if i in events[t] else n for i, n in enumerate(latest)]
            rows.append(sum(latest))
    for v, count in enumerate(rows):
        n, c = plan.regularizer[v] - radius.anchor, radius.anchor
        gamma = n + c + radius.error_bound[v]
        candidates = []
        for f, least in ((1.0, c), (2.0, n + c)):
            log_det = d * math.log(f * (2.0 * n + c + count / d) / c)
            beta = radius.scale * math.sqrt(f * (radius.base + log_det))
            candidates.append(math.sqrt(f) * (beta + gamma / math.sqrt(least)))
        width = max(candidates) if radius.floor[v] > 0.0 else candidates[0]
        assert plan.widths[v] == pytest.approx(width, rel=1e-12)
