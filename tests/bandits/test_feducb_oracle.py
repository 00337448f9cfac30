"""Tests of FedUCB: both drivers agree bit for bit and follow the paper's pseudocode, which the
oracle replays with the recorded actions."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracle.dubey_pentland_2020 import leaves_under, outer_sum, replay, tree_nodes
from test_oracle_match import oracle_replay

import fastfed
from fastfed._random import SeededNoise
from fastfed.environments import Python, Replay, RewardDistribution, Sphere
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import DETERMINANT, Clock
from fastfed.simulation import compiled, server
from fastfed.simulation.driver import Outcome
from fastfed.simulation.experiment import Experiment, make_experiment

# -- Problems --------------------------------------------------------------------------------------

SIZES = ("silos", "horizon", "dimension", "actions")
SMALL = {"silos": 3, "horizon": 30, "dimension": 4, "actions": 6}
OPEN = {"private": False}
NOISY = {"epsilon": 5.0, "delta": 0.01}  # noise dominates V
SHARP = {"epsilon": 2e4, "delta": 0.01}  # data dominate V
FIXED = {"schedule": "fixed"}
QUIET = {"schedule": "private-determinant"}  # the trigger adds noise

#: Cases for both drivers. The oracle replays those whose radius it knows.
CASES: dict[str, dict[str, Any]] = {
    # The paper's schedule, without privacy.
    "log-T": {**SMALL, **OPEN},
    "log-T, eager": {**SMALL, **OPEN, "lazy": False},
    "M1.5": {**SMALL, **OPEN, "communication": "M1.5", "lazy": False},
    "MT": {**SMALL, **OPEN, "communication": "MT"},
    "many": {**SMALL, **OPEN, "communication": 1.0},
    "many, eager": {**SMALL, **OPEN, "communication": 1.0, "lazy": False},
    "every round": {**SMALL, **OPEN, "communication": 1e-9, "horizon": 17},
    "first round": {**SMALL, **OPEN, "communication": 0.25, "horizon": 9, "lazy": False},
    "last round": {**SMALL, **OPEN, "communication": 2.0, "horizon": 12},
    "never": {**SMALL, **OPEN, "communication": 1e6, "lazy": False},
    "lambda": {**SMALL, **OPEN, "communication": 2.0, "rho_min": 0.05},
    "half a radius": {**SMALL, **OPEN, "communication": 2.0, "radius_multiplier": 0.5},
    "one silo": {**SMALL, **OPEN, "silos": 1, "communication": 1.0, "lazy": False},
    "one action": {**SMALL, **OPEN, "actions": 1, "communication": 2.0},
    "one round": {**SMALL, **OPEN, "horizon": 1, "communication": 0.1},
    "one round, M1.5": {**SMALL, **OPEN, "silos": 1, "horizon": 1, "communication": "M1.5"},
    "one of everything": {
        **OPEN, "silos": 1, "horizon": 6, "dimension": 1, "actions": 1, "communication": 0.5,
    },
    "more features than a vector": {
        **OPEN, "silos": 2, "horizon": 14, "dimension": 19, "actions": 37, "communication": 6.0,
        "lazy": False,
    },
    "more features than are examined again": {
        **OPEN, "silos": 2, "horizon": 14, "dimension": 27, "actions": 5, "communication": 6.0,
    },
    # The same schedules with noise in the sums; the trigger uses no noise.
    "noisy": {**SMALL, **NOISY, "communication": 20.0},
    "noisy, eager": {**SMALL, **NOISY, "communication": 20.0, "lazy": False},
    "noisy, log-T": {**SMALL, **NOISY, "silos": 1, "lazy": False},
    "noisy, theorem": {**SMALL, **NOISY, "communication": 9.0, "calibration": "theorem"},
    "sharp": {**SMALL, **SHARP, "communication": 20.0, "lazy": False},
    "sharp, theorem": {**SMALL, **SHARP, "calibration": "theorem", "lazy": False},
    "sharp, zero-out": {**SMALL, **SHARP, "communication": 8.0, "relation": "zero-out"},
    "sharp, every round": {**SMALL, **SHARP, "communication": 1e-9, "horizon": 17},
    "sharp, one of everything": {
        **SHARP, "silos": 1, "horizon": 7, "dimension": 1, "actions": 1, "communication": 1.0,
    },
    # Synchronisation rounds are known in advance.
    "fixed": {**SMALL, **NOISY, **FIXED, "batch_size": 7},
    "fixed, eager": {**SMALL, **SHARP, **FIXED, "batch_size": 7, "lazy": False},
    "fixed, open": {**SMALL, **OPEN, **FIXED, "batch_size": 30, "lazy": False},
    "fixed, MT": {**SMALL, **SHARP, "horizon": 16, "communication": "MT", "lazy": False},
    "fixed, theorem": {**SMALL, **NOISY, **FIXED, "batch_size": "theorem"},
    "fixed, printed": {
        **SMALL, **SHARP, **FIXED, "batch_size": "theorem", "calibration": "theorem",
        "lazy": False,
    },
    "fixed, direct": {**SMALL, **NOISY, **FIXED, "batch_size": 7, "radius": "direct", "sieve": 1.0},
    "fixed, direct, eager": {
        **SMALL, **SHARP, **FIXED, "batch_size": 4, "radius": "direct", "lazy": False,
    },
    # Noise in the sums and in the trigger.
    "quiet, noisy": {**SMALL, **NOISY, **QUIET, "communication": 0.05},
    "quiet, noisy, eager": {**SMALL, **NOISY, **QUIET, "communication": 0.05, "lazy": False},
    "quiet": {**SMALL, **SHARP, **QUIET, "communication": 5.0},
    "quiet, eager": {**SMALL, **SHARP, **QUIET, "communication": 1.0, "lazy": False},
    "quiet, log-T": {**SMALL, **SHARP, **QUIET},
    "quiet, M1.5": {**SMALL, **SHARP, **QUIET, "communication": "M1.5", "lazy": False},
    "quiet, zero-out": {
        **SMALL, **SHARP, **QUIET, "communication": 1.0, "relation": "zero-out", "silos": 1,
    },
    "quiet, one of everything": {
        **SHARP, **QUIET, "silos": 1, "horizon": 7, "dimension": 1, "actions": 1,
        "communication": 0.5,
    },
    "quiet, one round": {**SMALL, **SHARP, **QUIET, "horizon": 1, "communication": 0.1},
    "quiet, never": {**SMALL, **NOISY, **QUIET},
    "quiet, direct": {**SMALL, **NOISY, **QUIET, "communication": 1.0, "radius": "direct"},
    "quiet, direct, eager": {
        **SMALL, **SHARP, **QUIET, "communication": 2.0, "radius": "direct", "lazy": False,
    },
}  # fmt: skip
#: Cases that the oracle of dubey-pentland-2020 covers: shift and radius do not depend on data.
PAPER_CASES = [name for name, case in CASES.items() if case.get("radius") != "direct"]


def experiment(environment: Any = None, seed: int = 7, **case: Any) -> Experiment:
    """Return an experiment with one feducb curve."""
    sizes = {key: case.pop(key) for key in SIZES if key in case}
    if environment is None:
        environment = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    return make_experiment(
        name="feducb", environment=environment, horizon=sizes["horizon"], silos=sizes["silos"],
        curves=[{"label": "feducb", "algorithm": "feducb", **case}], seed=seed,
        checkpoints=sizes["horizon"],
    )  # fmt: skip


def plan_of(e: Experiment) -> Plan:
    """Return the plan of the experiment's only curve."""
    return e.curves[0].system.plan


def run_compiled(e: Experiment, checkpoints: Any = None, **keys: Any) -> Outcome:
    """Run replicate 0 with the compiled driver and record actions and rewards."""
    environment = e.environment.open(e.seed, 0, e.silos)
    checkpoints = e.checkpoints if checkpoints is None else np.array(checkpoints)
    (outcome,) = compiled.run(environment, [plan_of(e)], checkpoints, record=True, **keys)
    return outcome


def run_readable(e: Experiment, plan: Plan | None = None, **keys: Any) -> Outcome:
    """Run replicate 0 with the step driver, which is written in Python."""
    environment = e.environment.open(e.seed, 0, e.silos)
    return server.run_one(environment, plan or plan_of(e), e.checkpoints, **keys)


def uneven_environment() -> Python:
    """Return an environment whose silos differ in the norms of features.

    Norms of the last silos are above 1, and the number of actions varies by round.
    """

    def function(seed: int, replicate: int, silo: int, round: int) -> tuple[Any, Any]:
        """Return features of 2 to 4 actions, whose norm grows with the silo, and their means."""
        rng = np.random.default_rng([seed, replicate, silo, round])
        features = rng.normal(size=(2 + round % 3, 3))
        features *= (0.3 + 0.4 * silo) / np.linalg.norm(features, axis=1, keepdims=True)
        return features, rng.uniform(size=len(features))

    return Python(
        function=function, dimension=3, actions=4, reward=RewardDistribution("gaussian", 0.5)
    )


#: Keys for the uneven environment, one entry per schedule; its silos request in different rounds.
UNEVEN_KEYS: dict[str, dict[str, Any]] = {
    "determinant": {**OPEN, "communication": 6.0, "rho_min": 0.5},
    "determinant, eager": {**OPEN, "communication": 6.0, "rho_min": 0.5, "lazy": False},
    "noisy": {**SHARP, "communication": 30.0},
    "private-determinant": {**SHARP, **QUIET, "communication": 1.5},
    "private-determinant, eager": {**SHARP, **QUIET, "communication": 1.5, "lazy": False},
}


def uneven_experiment(name: str) -> Experiment:
    """Return an experiment of four silos whose last batch is shorter."""
    return experiment(uneven_environment(), silos=4, horizon=34, **UNEVEN_KEYS[name])


@cache
def run_case(name: str) -> tuple[Experiment, Outcome]:
    """Return the experiment of this case and the outcome of its compiled run."""
    e = experiment(**CASES[name])
    return e, run_compiled(e)


def synchronisation_rounds(outcome: Outcome) -> list[int]:
    """Return the rounds that ended with a synchronisation; every round must be a checkpoint."""
    return (np.flatnonzero(np.diff(outcome.synchronisations, prepend=0)) + 1).tolist()


def same(a: Outcome, b: Outcome) -> None:
    """Check that two outcomes are equal in every bit."""
    for field in dataclasses.fields(Outcome):
        value_a, value_b = getattr(a, field.name), getattr(b, field.name)
        np.testing.assert_array_equal(value_a, value_b, err_msg=field.name, strict=True)


# -- The two drivers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_both_drivers_agree_bit_for_bit(name):
    e, outcome = run_case(name)
    same(outcome, run_readable(e))


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("budget", [SHARP, NOISY], ids=["sharp", "noisy"])
@pytest.mark.parametrize("dimension", [1, 2, 9, 30])
def test_drivers_agree_on_thresholds_next_to_the_compared_value(
    monkeypatch, dimension, budget, lazy
):
    """Use thresholds that equal a compared value or its neighbours in float64.

    The compiled driver computes a determinant only if bounds do not decide the comparison. In one
    dimension the arithmetic and geometric means are equal, so the bounds differ only by rounding.
    """
    sizes = {"silos": 2, "horizon": 24, "dimension": dimension, "actions": 3}
    keys = {**sizes, **budget, **QUIET, "lazy": lazy}
    values, observe = [], Clock.observe

    def record_value(clock: Clock, x: np.ndarray, round: int) -> bool:
        """Call the original method, and record the value that is compared."""
        requests = observe(clock, x, round)
        values.append(clock.value)
        return requests

    with monkeypatch.context() as context:
        context.setattr(Clock, "observe", record_value)
        assert not run_readable(experiment(**keys, communication=1e9)).synchronisations[-1]
    positive_values = sorted(value for value in values if 0.0 < value < math.inf)
    assert len(positive_values) > 8
    all_rounds = set()
    for value in positive_values[:: max(1, len(positive_values) // 4)]:
        for threshold in (math.nextafter(value, 0.0), value, math.nextafter(value, math.inf)):
            e = experiment(**keys, communication=threshold)
            outcome = run_compiled(e)
            same(outcome, run_readable(e))
            all_rounds.add(tuple(synchronisation_rounds(outcome)))
    assert len(all_rounds) > 1


def test_each_case_shows_what_its_name_says():
    def rounds(name):
        """Return the case's rounds that ended with a synchronisation."""
        return synchronisation_rounds(run_case(name)[1])

    for name in ("every round", "sharp, every round"):
        assert rounds(name) == list(range(1, 18))
    assert rounds("MT") == list(range(1, 31))
    assert rounds("fixed, MT") == list(range(1, 17))
    assert rounds("first round")[0] == 1 and len(rounds("first round")) > 1
    assert rounds("last round")[-1] == 12
    for name in ("one round", "one round, M1.5", "quiet, one round"):
        assert rounds(name) == [1]
    assert rounds("never") == rounds("quiet, never") == []
    assert rounds("fixed") == [7, 14, 21, 28]
    assert rounds("fixed, open") == [30]
    assert rounds("fixed, theorem")[0] > 1
    # Several synchronisations in one chunk of 16 rounds of the compiled driver.
    for name in ("many", "many, eager", "noisy, theorem", "quiet, eager", "quiet, direct"):
        assert len([t for t in rounds(name) if t <= 16]) >= 2, name
    cases_with_trigger = [name for name in CASES if plan_of(run_case(name)[0]).trigger is not None]
    assert len({plan_of(run_case(name)[0]).trigger.kind for name in cases_with_trigger}) == 2


@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", ["many, eager", "noisy", "quiet, direct, eager"])
def test_results_do_not_depend_on_threads_or_call_lengths(name, threads, rounds_per_call):
    e, outcome = run_case(name)
    same(outcome, run_compiled(e, threads=threads, rounds_per_call=rounds_per_call))


@pytest.mark.parametrize("rule", [OPEN, {**SHARP, **QUIET}], ids=["determinant", "quiet"])
def test_results_of_long_chunks_do_not_depend_on_call_lengths(rule):
    """Let a trigger fire late in a chunk of more than 16 rounds that starts after 129 rounds."""
    sizes = {"silos": 2, "horizon": 200, "dimension": 2, "actions": 3}
    e = experiment(**sizes, **rule, communication=1100.0, lazy=False)
    outcome = run_compiled(e)
    assert synchronisation_rounds(outcome)[0] > 145
    same(outcome, run_readable(e))
    for threads, rounds_per_call in ((1, 1), (2, 70), (2, None), (1, 200)):
        same(outcome, run_compiled(e, threads=threads, rounds_per_call=rounds_per_call))


@pytest.mark.parametrize("name", ["many, eager", "sharp", "quiet, noisy"])
def test_sparse_checkpoints_show_the_same_values_as_dense_checkpoints(name):
    """Place checkpoints before a chunk that is repeated, inside it, and in the round of a
    request."""
    e, dense = run_case(name)
    checkpoints = sorted({2, 3, 11, *synchronisation_rounds(dense)[:2], e.horizon - 1})
    sparse = run_compiled(e, checkpoints)
    indices = np.array(checkpoints) - 1
    for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(getattr(sparse, field), getattr(dense, field)[indices])
    np.testing.assert_array_equal(sparse.actions, dense.actions)


@pytest.mark.parametrize("last", [1, 10, 16, 23])
def test_both_drivers_agree_on_a_run_that_ends_early(last):
    e, full_run = run_case("quiet, eager")
    compiled_run, span = run_compiled(e, last=last), slice(0, last)
    step_run = run_readable(e, last=last)
    for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(
            getattr(compiled_run, field)[span], getattr(step_run, field)[span]
        )
    np.testing.assert_array_equal(compiled_run.total, step_run.total)
    np.testing.assert_array_equal(compiled_run.actions, step_run.actions)
    np.testing.assert_array_equal(compiled_run.actions[:, :last], full_run.actions[:, :last])
    assert not compiled_run.actions[:, last:].any()


def first_trigger_alone(e: Experiment, silo: int) -> int | None:
    """Return the first round up to 16 in which the silo would request a synchronisation alone.

    Return None if there is no such round.
    """
    plan, environment = plan_of(e), e.environment.open(e.seed, 0, e.silos)
    party = fastfed.parties.Silo(plan, silo, SeededNoise(e.seed, 0))
    for t in range(1, 17):
        features, means = environment.round(silo, t)
        a = party.select(features)
        party.observe(environment.reward(silo, t, means[a]))
        if party.due:
            return t
    return None


@pytest.mark.parametrize("name", UNEVEN_KEYS)
def test_drivers_agree_when_silos_request_in_different_rounds_of_a_chunk(name):
    """Check that silos beyond the earliest request repeat their rounds and count nothing twice."""
    e = uneven_experiment(name)
    first_rounds = [first_trigger_alone(e, i) for i in range(e.silos)]
    request_rounds = {t for t in first_rounds if t is not None}
    assert len(request_rounds) >= 2 and min(request_rounds) < 16
    outcome = run_compiled(e)
    assert synchronisation_rounds(outcome)[0] == min(request_rounds)
    assert len(synchronisation_rounds(outcome)) >= 2
    same(outcome, run_readable(e))
    for threads, rounds_per_call in ((1, 1), (2, 7), (3, None)):
        same(outcome, run_compiled(e, threads=threads, rounds_per_call=rounds_per_call))
    # Compare with direct counts of rewards outside [0, 1] and of features longer than 1.
    outside = (outcome.rewards < 0.0) | (outcome.rewards > 1.0)
    assert outcome.events["clipped_rewards"] == outside.sum() > 20
    # Features of silo 2 have norm 1.1, features of silo 3 have norm 1.5.
    assert outcome.events["clipped_features"] == 2 * e.horizon


def test_gaussian_rewards_on_a_sphere_are_clipped_once():
    sphere = Sphere(dimension=3, actions=4, reward=RewardDistribution("gaussian", 0.5))
    e = experiment(sphere, silos=3, horizon=33, **SHARP, **QUIET, communication=1.0)
    outcome = run_compiled(e)
    assert len(synchronisation_rounds(outcome)) >= 3
    same(outcome, run_readable(e))
    assert (
        outcome.events["clipped_rewards"]
        == ((outcome.rewards < 0) | (outcome.rewards > 1)).sum()
        > 0
    )


@pytest.mark.parametrize("clip", [True, False])
def test_drivers_agree_with_and_without_clipping(clip):
    e = experiment(uneven_environment(), silos=4, horizon=30, **OPEN, communication=6.0, clip=clip)
    outcome = run_compiled(e)
    assert len(synchronisation_rounds(outcome)) >= 1
    assert (outcome.events["clipped_features"] > 0) is clip
    same(outcome, run_readable(e))


@pytest.mark.parametrize("rule", [OPEN, {**SHARP, **QUIET}], ids=["determinant", "quiet"])
@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_drivers_agree_on_a_replayed_pool(recorded, sampling, rule):
    pool = Replay.from_arrays(*recorded, sampling=sampling)
    e = experiment(pool, silos=3, horizon=24, **rule, communication=2.0)
    outcome = run_compiled(e)
    assert len(synchronisation_rounds(outcome)) >= 2
    same(outcome, run_readable(e))


@pytest.mark.parametrize(("rule", "fires"), [(OPEN, True), ({**SHARP, **QUIET}, False)])
def test_growth_equal_to_the_threshold_fires_as_in_the_papers(rule, fires):
    """Check ">=" in dubey-pentland-2020 and ">" in equation (10) of zhou-chowdhury-2024."""
    sizes = {**SMALL, "silos": 1, "horizon": 5}
    e = experiment(**sizes, **rule, communication=1e6)
    features, _ = e.environment.open(e.seed, 0, 1).round(0, 1)
    silo = fastfed.parties.Silo(plan_of(e), 0, SeededNoise(e.seed, 0))
    silo.select(features)
    silo.observe(0.0)
    assert silo.trigger.value > 0.0
    for factor, expected in ((1.0, fires), (1.0 - 1e-15, True), (1.0 + 1e-15, False)):
        e = experiment(**sizes, **rule, communication=float(silo.trigger.value) * factor)
        outcome = run_compiled(e)
        assert (outcome.synchronisations[0] == 1) == expected
        same(outcome, run_readable(e))


@pytest.mark.parametrize("schedule", ["determinant", "private-determinant", "fixed"])
def test_drivers_agree_when_the_noisy_v_is_indefinite(schedule):
    """Use a rho_min far below the noise: V is shifted, but the trigger uses V before the shift."""
    schedule_keys = {"batch_size": 5} if schedule == "fixed" else {"communication": 1e-3}
    e = experiment(**SMALL, **NOISY, schedule=schedule, rho_min=0.1, **schedule_keys)
    outcome = run_compiled(e)
    assert 0 < outcome.events["indefinite"] <= outcome.synchronisations[-1]
    assert np.isfinite(outcome.total).all()
    same(outcome, run_readable(e))


def test_replicates_differ_in_noise_contexts_and_rounds():
    e = experiment(**SMALL, **SHARP, **QUIET, communication=1.0)
    environments = [e.environment.open(e.seed, replicate, e.silos) for replicate in range(2)]
    outcomes = [
        compiled.run(opened, [plan_of(e)], e.checkpoints, record=True)[0] for opened in environments
    ]  # fmt: skip
    for outcome, environment in zip(outcomes, environments, strict=True):
        same(outcome, server.run_one(environment, plan_of(e), e.checkpoints))
    assert synchronisation_rounds(outcomes[0]) != synchronisation_rounds(outcomes[1])


# -- The oracle ------------------------------------------------------------------------------------


def symmetric_matrix(z: np.ndarray, off_diagonal: float, diagonal: float) -> np.ndarray:
    """Return the symmetric matrix whose packed lower triangle holds scaled normals."""
    d = int(np.sqrt(2 * len(z)))
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = z * off_diagonal
    np.fill_diagonal(matrix, z[np.cumsum(np.arange(1, d + 1)) - 1] * diagonal)
    return matrix + np.tril(matrix, -1).T


def node_noise(plan: Plan, seed: int):
    """Return a function of (silo, node) that draws the node's noise as in Algorithm 2.

    The noise has shape (d + 1, d + 1); its last entry is never used.
    """
    source, d, std = SeededNoise(seed, 0), plan.dimension, plan.noise_std

    def noise(silo: int, node: int) -> np.ndarray:
        """Return the noise matrix of a node at a silo."""
        z = source.node(silo, node, d)
        matrix = np.zeros((d + 1, d + 1))
        matrix[:d, :d] = symmetric_matrix(z[d:], std.off_diagonal, std.diagonal)
        matrix[:d, d] = matrix[d, :d] = std.bias * z[:d]
        return matrix

    return noise


def replay_run(e: Experiment, outcome: Outcome, **changes: Any):
    """Replay the plan with the recorded actions and rewards.

    ``changes`` replace arguments of the oracle's ``replay``.
    """
    plan, seed = plan_of(e), e.seed
    environment = e.environment.open(seed, 0, e.silos)
    source, d, m, plan_radius = SeededNoise(seed, 0), plan.dimension, plan.silos, plan.radius
    current_round, first_round_of_span = [0], {}

    def contexts(t: int, i: int) -> np.ndarray:
        """Return the actions of silo i in round t, and note the round."""
        current_round[0] = t
        return environment.round(i, t)[0].astype(float)

    def local_noise(i: int, k: int, node: int) -> np.ndarray:
        """Return the noise of a node in the trigger's tree, k-th span."""
        # The replay first queries the tree of a span in the span's first round.
        first_round_of_span.setdefault(k, current_round[0] - 1)
        return symmetric_matrix(
            source.trigger(i, first_round_of_span[k] + node, d), *plan.trigger.std
        )

    def radius(t: int, i: int, v: np.ndarray) -> float:
        """Return the radius for the matrix v."""
        growth = np.linalg.slogdet(v)[1] - d * np.log(plan_radius.anchor)
        assert (plan_radius.offset == plan_radius.offset[0]).all() and not plan_radius.direct
        return plan_radius.multiplier * (
            plan_radius.offset[0] + plan_radius.scale * np.sqrt(plan_radius.base + max(growth, 0.0))
        )

    rho, shift = plan.regularizer[0] / m, plan.regularizer[1] / m
    if plan.trigger is None:
        schedule_arguments: dict[str, Any] = {"schedule": "fixed", "batch_size": plan.batch_size}
    elif plan.trigger.kind == DETERMINANT:
        schedule_arguments = {"schedule": "determinant", "threshold": plan.trigger.threshold}
    else:
        schedule_arguments = {
            "schedule": "private-determinant", "threshold": plan.trigger.threshold,
            "local_noise": local_noise,
        }  # fmt: skip
    clip = plan.clip
    arguments: dict[str, Any] = {
        "contexts": contexts,
        "means": lambda t, i: environment.round(i, t)[1],
        "actions": outcome.actions,
        "rewards": outcome.rewards,
        "rho_min": rho,
        "rho_max": 2.0 * shift - rho,
        "shift": shift,
        "radius": radius,
        "noise": node_noise(plan, seed) if plan.noise_std.bias else None,
        "clip": None if clip is None else (clip.feature, clip.low, clip.high),
        "lazy": plan.lazy,
    }
    return replay(**arguments | schedule_arguments | changes)


def check_against_paper(e: Experiment, outcome: Outcome):
    """Compare the outcome with the oracle's replay of the pseudocode."""
    plan, d = plan_of(e), plan_of(e).dimension
    assert outcome.events["indefinite"] == 0
    replayed = replay_run(e, outcome)
    # Closer than this, rounding could move a synchronisation; choose another seed then.
    assert replayed.nearest_trigger > 1e-9
    assert replayed.synchronisations == synchronisation_rounds(outcome)
    assert replayed.worst_gap < 1e-9
    np.testing.assert_allclose(outcome.group_regret, replayed.group_regret, rtol=1e-8, atol=1e-8)
    assert outcome.bits_up[-1] == 8 * replayed.bytes_up
    assert outcome.bits_down[-1] == 8 * replayed.bytes_down
    if replayed.totals:
        # The package adds the regularizer to V and does not store it in its sums.
        w, u = replayed.totals[-1][0] - plan.regularizer[1] * np.eye(d), replayed.totals[-1][1]
        scale = 1e-8 * max(1.0, np.abs(replayed.totals[-1][0]).max())
        np.testing.assert_allclose(outcome.total[:d], u, rtol=0, atol=scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], rtol=0, atol=scale)
    return replayed


@pytest.mark.parametrize("name", PAPER_CASES)
def test_runs_follow_the_papers_pseudocode(name):
    e, outcome = run_case(name)
    check_against_paper(e, outcome)
    # The replay computes rho_max from the plan's shift. It must be 3 rho_min, or rho_min without
    # noise.
    rho, shift = plan_of(e).regularizer[:2]
    assert (2 * shift - rho) / rho == pytest.approx(3.0 if CASES[name].get("private", True) else 1)


@pytest.mark.parametrize("name", UNEVEN_KEYS)
def test_runs_of_uneven_silos_follow_the_papers_pseudocode(name):
    e = uneven_experiment(name)
    replayed = check_against_paper(e, run_compiled(e))
    # Different silos request, but not all of them.
    assert len({i for _, i in replayed.triggers}) < e.silos


@pytest.mark.parametrize("name", ["fixed, direct", "fixed, direct, eager"])
def test_fixed_schedule_with_direct_radius_follows_zhou_chowdhury(name):
    """Compare with Algorithm 4 of zhou-chowdhury-2024: fixed batches, one prefix tree per silo."""
    e, outcome = run_case(name)
    assert outcome.events["indefinite"] == 0
    replayed = oracle_replay(e, outcome)
    assert replayed.nearest_floor > 1e-12
    assert replayed.worst_gap < 1e-9
    w, u = replayed.totals[-1]
    np.testing.assert_allclose(outcome.total[:4], u, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(outcome.total[4:], w[np.tril_indices(4)], rtol=1e-8, atol=1e-8)


@dataclasses.dataclass
class DirectReplay:
    """The result of replaying a private schedule with the direct radius."""

    worst_gap: float
    synchronisations: list[int]
    eighths: list[int]  # lambda in each span, in eighths of its full value


def replay_direct(e: Experiment, outcome: Outcome) -> DirectReplay:
    """Replay a private schedule with the direct radius from the definitions.

    No oracle has this combination. The definitions are equation (10) and D.2 of zhou-chowdhury-2024
    and docs/radius.md. V = lambda I + total (+ local batch). lambda is the smallest multiple of 1/8
    of its full value that keeps V above the floor. The score is <x, theta> + beta ||x||_{V^-1} +
    multiplier (lambda + E) ||V^-1 x||.
    """
    plan, environment = plan_of(e), e.environment.open(e.seed, 0, e.silos)
    source, noise = SeededNoise(e.seed, 0), node_noise(plan, e.seed)
    d, radius, size = plan.dimension, plan.radius, plan.dimension + 1
    leaves: list[list[np.ndarray]] = [[] for _ in range(e.silos)]
    points: list[list[np.ndarray]] = [[] for _ in range(e.silos)]
    total, full_lambda, last = np.zeros((size, size)), plan.regularizer[0], 0
    lambda_, inflation, error = full_lambda, 1.0, radius.error_bound[0]
    replayed = DirectReplay(0.0, [], [])
    for t in range(1, e.horizon + 1):
        fired = False
        for i in range(e.silos):
            phi, _ = environment.round(i, t)
            sums = total + outer_sum([] if plan.lazy else points[i], size)
            v, u = sums[:d, :d] + lambda_ * np.eye(d), sums[:d, d]
            inverse = np.linalg.inv(v)
            log_ratio = np.linalg.slogdet(v)[1] + d * np.log(inflation / radius.anchor)
            beta = radius.scale * np.sqrt(inflation * (radius.base + max(log_ratio, 0.0)))
            score = phi @ inverse @ u + beta * np.sqrt(np.sum((phi @ inverse) * phi, axis=1))
            score = score + (lambda_ + error) * np.linalg.norm(phi @ inverse, axis=1)
            a = outcome.actions[i, t - 1]
            gap = (score.max() - score[a]) / np.abs(score).max()
            replayed.worst_gap = max(replayed.worst_gap, gap)
            x = phi[a].astype(float) / max(1.0, float(np.linalg.norm(phi[a].astype(float))))
            points[i].append(np.append(x, np.clip(outcome.rewards[i, t - 1], 0.0, 1.0)))
            s = total[:d, :d] + lambda_ * np.eye(d)
            noisy = s + outer_sum(points[i], size)[:d, :d]
            for node in tree_nodes(t - last):
                noisy = noisy + symmetric_matrix(
                    source.trigger(i, last + node, d), *plan.trigger.std
                )
            if np.linalg.eigvalsh(noisy)[0] > 0.0:
                growth = np.linalg.slogdet(noisy)[1] - np.linalg.slogdet(s)[1]
                fired = fired or growth > plan.trigger.threshold / (t - last)
        if not fired:
            continue
        replayed.synchronisations.append(t)
        k, last = len(replayed.synchronisations), t
        total = np.zeros((size, size))
        for i in range(e.silos):
            leaves[i].append(outer_sum(points[i], size))
            points[i] = []
            for node in tree_nodes(k):
                total = total + sum(leaves[i][leaf - 1] for leaf in leaves_under(node))
                total = total + noise(i, node)
        full_lambda, floor, error = plan.regularizer[1], radius.floor[1], radius.error_bound[1]
        least = np.linalg.eigvalsh(total[:d, :d])[0]
        eighth = min([j for j in range(8) if least + full_lambda * j / 8.0 > floor], default=8)
        lambda_ = full_lambda * eighth / 8.0
        values = np.linalg.eigvalsh(total[:d, :d]) + lambda_
        share = min(1.0 / floor, float((values**-8.0).sum()) ** 0.125 * (1.0 + 1e-9))
        inflation = 1.0 + (full_lambda - lambda_) * share if eighth < 8 else 1.0
        replayed.eighths.append(eighth)
    return replayed


@pytest.mark.parametrize("lazy", [True, False])
def test_private_schedule_with_direct_radius_follows_its_definition(lazy):
    eighths = set()
    for sizes in (
        {**SMALL, **NOISY, "communication": 1.0},
        {**SMALL, **SHARP, "communication": 2.0},
        {"silos": 2, "horizon": 60, "dimension": 2, "actions": 4, "epsilon": 400.0, "delta": 0.01,
         "communication": 0.5},
    ):  # fmt: skip
        e = experiment(**sizes, **QUIET, radius="direct", lazy=lazy)
        outcome = run_compiled(e)
        replayed = replay_direct(e, outcome)
        assert replayed.worst_gap < 1e-9
        assert replayed.synchronisations == synchronisation_rounds(outcome)
        assert len(replayed.synchronisations) >= 2
        eighths |= set(replayed.eighths)
    assert {0, 8} <= eighths


def test_an_indefinite_noisy_matrix_never_fires_the_trigger(monkeypatch):
    """Use a rho_min below the noise of the schedule; drivers and oracle continue without a
    request."""
    is_indefinite = []
    original = Clock.observe

    def record(self, *arguments):
        """Ask the trigger, and note whether its matrix is indefinite."""
        fired = original(self, *arguments)
        is_indefinite.append(self.value == -np.inf)
        return fired

    monkeypatch.setattr(Clock, "observe", record)
    case = {"silos": 2, "horizon": 30, "dimension": 3, "actions": 4, "communication": 1.0}
    e = experiment(**case, **NOISY, **QUIET, rho_min=3.0)
    outcome = run_compiled(e)
    same(outcome, run_readable(e))
    assert 0 < sum(is_indefinite) < len(is_indefinite)
    assert len(synchronisation_rounds(outcome)) >= 2
    check_against_paper(e, outcome)


# -- The comparisons detect planted faults ---------------------------------------------------------


def test_replay_detects_a_wrong_action():
    for name in ("many", "noisy, eager", "quiet"):
        e, outcome = run_case(name)
        wrong_actions = outcome.actions.copy()
        wrong_actions[1, 20] = (wrong_actions[1, 20] + 1) % 6
        assert replay_run(e, dataclasses.replace(outcome, actions=wrong_actions)).worst_gap > 1e-6


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("many", {"threshold": 1.05}),
        ("sharp", {"threshold": 1.05}),
        ("quiet", {"threshold": 1.2}),
        ("noisy", {"extra": 0.0}),
        ("sharp, zero-out", {"extra": 0.8}),
        ("quiet, noisy", {"std": (0.0, 0.0)}),
        ("quiet, noisy", {"kind": DETERMINANT}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_replay_detects_a_wrong_trigger(name, changes):
    """Multiply numbers of the trigger by a factor, or replace other values."""
    e, _ = run_case(name)
    plan, trigger = plan_of(e), plan_of(e).trigger
    new_values = {
        key: getattr(trigger, key) * value if isinstance(value, float) else value
        for key, value in changes.items()
    }
    # Remove the privacy claim: with it, drivers would refuse the changed plan.
    wrong_trigger = dataclasses.replace(trigger, **new_values)
    outcome = run_readable(e, dataclasses.replace(plan, trigger=wrong_trigger, privacy=None))
    assert replay_run(e, outcome).synchronisations != synchronisation_rounds(outcome)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("many", "_rounds"),  # the time since the last synchronisation
        ("noisy", "_rounds"),
        ("quiet", "_rounds"),
        ("many", "_batch"),
        ("many", "_synced_log_det"),
        ("quiet", "_batch"),
        ("quiet", "_synced_log_det"),
    ],
)
def test_replay_detects_state_that_is_not_reset(name, attribute, monkeypatch):
    original = Clock.restart

    def restart(self, w, total, ridge):
        """Restart all but one attribute, a planted fault."""
        first = not hasattr(self, "_rounds")
        old_value = None if first else np.copy(getattr(self, attribute))
        original(self, w, total, ridge)
        if not first:
            setattr(self, attribute, old_value if old_value.ndim else old_value.item())

    monkeypatch.setattr(Clock, "restart", restart)
    e, _ = run_case(name)
    outcome = run_readable(e)
    assert replay_run(e, outcome).synchronisations != synchronisation_rounds(outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"regularizer": lambda p: p.regularizer * np.array([1.0, 1.2])},
        {"regularizer": lambda p: p.regularizer * np.array([1.2, 1.0])},
        {"noise_std": lambda p: p.noise_std.times(1.01)},
        {"radius": lambda p: dataclasses.replace(p.radius, anchor=2.0 * p.radius.anchor)},
        {"radius": lambda p: dataclasses.replace(p.radius, base=2.0 * p.radius.base)},
        {"radius": lambda p: dataclasses.replace(p.radius, offset=0.9 * p.radius.offset)},
    ],
    ids=["shift", "start", "noise", "anchor", "base", "offset"],
)
def test_replay_detects_a_wrong_plan(changes):
    """Check sums and choices of several cases; a single case may not show the fault."""
    is_detected = []
    for name in ("sharp", "quiet, eager", "fixed, eager"):
        e, _ = run_case(name)
        outcome = run_readable(
            e,
            dataclasses.replace(
                plan_of(e),
                privacy=None,
                **{field: change(plan_of(e)) for field, change in changes.items()},
            ),
        )
        replayed, d = replay_run(e, outcome), e.facts.dimension
        is_detected.append(
            replayed.worst_gap > 1e-6
            or replayed.synchronisations != synchronisation_rounds(outcome)
            or (
                bool(replayed.totals)
                and np.abs(replayed.totals[-1][1] - outcome.total[:d]).max() > 1e-6
            )
        )
    assert any(is_detected)
