"""Tests of ROBIN: both drivers, the paper's pseudocode on the same draws, clients stepped one by
one."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracle import huang_2023 as oracle
from problems import ordinary_cases
from test_drivers import assert_same_bits

import fastfed
from fastfed import InputError
from fastfed._kernels import linalg
from fastfed._random import LAPLACE, RANGE, ROTATION, SeededNoise
from fastfed.environments import FixedSet, HardInstance, NoDiversity, RewardDistribution, Sphere
from fastfed.privacy.certificate import SIMULATION_CAVEAT
from fastfed.protocols.protocol import Broadcast, Report
from fastfed.protocols.serverless import LocalEstimate, Model, PhasePlan
from fastfed.simulation import dispatch, phases
from fastfed.simulation.experiment import Experiment, make_experiment

SEED = 11
BETA = 0.01
BUDGET = {"epsilon": 300.0, "delta": 0.01, "diversity": 0.2}
ENVIRONMENTS: dict[str, Any] = {
    "sphere": Sphere(dimension=3, actions=6),
    "hard instance": HardInstance(dimension=6),
    "no diversity": NoDiversity(),
    "fixed set": FixedSet(dimension=5, actions=9),
}
# Name -> horizon and keys. Phases end after rounds 2, 6, 14, 30 and 62.
PROBLEMS: dict[str, dict[str, Any]] = {
    "ends with a phase": {"horizon": 30},
    "ends inside a phase": {"horizon": 21},
    "one round after a phase": {"horizon": 31},
    "one round before its end": {"horizon": 29},
    "ends with the initial phases": {"horizon": 6},
    "one greedy round": {"horizon": 7},
    "one round": {"horizon": 1, "initial_phases": 1},
    "U = 1": {"horizon": 31, "initial_phases": 1},
    "U = 3": {"horizon": 31, "initial_phases": 3},
    "U beyond T": {"horizon": 31, "initial_phases": 9},
    "printed budget": {"horizon": 31, "calibration": "printed"},
    "little noise": {"horizon": 31, "epsilon": 1e6},
    "radius as printed": {"horizon": 31, "concentration_multiplier": 1.0},
    "many bins": {"horizon": 31, "concentration_multiplier": 1e-6},
    "not private": {"horizon": 31, "private": False},
    "memory, sharing": {"horizon": 31, "memory": True},
    "memory, alone": {"horizon": 31, "memory": True, "epsilon": 1.0},
    "clipped": {"horizon": 31, "clip": True},
    "one silo": {"horizon": 31, "silos": 1},
    "another radius": {"horizon": 31, "radius": "lemma-c4", "radius_multiplier": 0.2},
}
# Every problem on the sphere; two of the problems in every environment.
EVERY_PROBLEM = pytest.mark.parametrize(
    ("name", "environment"),
    ordinary_cases(
        [(name, environment) for name in PROBLEMS for environment in ENVIRONMENTS],
        lambda name, environment: environment == "sphere" or name in ("U = 3", "many bins"),
    ),
)


def experiment(environment: Any, **keys: Any) -> Experiment:
    """Return an experiment with one robin curve and a checkpoint in every round.

    It has four silos unless ``keys`` says otherwise.
    """
    make_ = (
        cached_experiment if isinstance(environment, Hashable) else cached_experiment.__wrapped__
    )
    return make_(environment, tuple(sorted(keys.items())))


@cache
def cached_experiment(environment: Any, key_items: tuple[tuple[str, Any], ...]) -> Experiment:
    """Return the experiment with these keys; build it only once."""
    keys = {"initial_phases": 2, "concentration_multiplier": 3e-4, "failure_probability": BETA}
    keys |= dict(key_items)
    sizes = {"horizon": keys.pop("horizon"), "silos": keys.pop("silos", 4)}
    if keys.get("private", True):
        keys = BUDGET | keys
    curve = {"label": "robin", "algorithm": "robin", **keys}
    return make_experiment(
        name="robin", environment=environment, curves=[curve], seed=SEED,
        checkpoints=sizes["horizon"], **sizes,
    )  # fmt: skip


def plan_of(e: Experiment) -> PhasePlan:
    """Return the plan in phases of the only curve."""
    plan = e.curves[0].system.plan
    assert isinstance(plan, PhasePlan)
    return plan


def run_compiled(e: Experiment, **keys: Any) -> Any:
    """Run replicate 0 with the compiled driver and record actions and rewards."""
    environment = e.environment.open(e.seed, 0, e.silos)
    return phases.run(environment, plan_of(e), e.checkpoints, record=True, **keys)


def run_readable(e: Experiment, **keys: Any) -> Any:
    """Run replicate 0 with the step driver, which is written in Python."""
    environment = e.environment.open(e.seed, 0, e.silos)
    return phases.run_steps(environment, plan_of(e), e.checkpoints, **keys)


def run_local_linucb(e: Experiment) -> Any:
    """Run ``local-linucb`` with the keys that it shares with the experiment."""
    keys = e.curves[0].keys
    shared_keys = ("clip", "radius", "radius_multiplier", "failure_probability", "regularizer")
    curve = {
        "label": "local",
        "algorithm": "local-linucb",
        "sieve": 1.0,  # ROBIN's clients choose the largest bound
        **{key: keys[key] for key in shared_keys},
    }
    local_experiment = make_experiment(
        name="local", environment=e.environment, curves=[curve], seed=e.seed,
        checkpoints=e.horizon, horizon=e.horizon, silos=e.silos,
    )  # fmt: skip
    environment = e.environment.open(e.seed, 0, e.silos)
    plan = local_experiment.curves[0].system.plan
    (outcome,) = dispatch.run(environment, [plan], local_experiment.checkpoints, record=True)
    return outcome


# -- Both drivers ----------------------------------------------------------------------------------


@EVERY_PROBLEM
def test_both_drivers_agree_bit_for_bit(name, environment):
    e = experiment(ENVIRONMENTS[environment], **PROBLEMS[name])
    plan, outcome = plan_of(e), run_compiled(e)
    assert_same_bits(outcome, run_readable(e))
    # Compare synchronisations and bits with counts from the phase schedule.
    has_releases = name not in ("U beyond T", "memory, alone")
    initial_phases = PROBLEMS[name].get("initial_phases", 2)
    released_phases = oracle.releasing_phases(e.horizon, initial_phases) if has_releases else []
    last_rounds = np.array([oracle.last_round(p) for p in released_phases])
    counts = [np.sum(last_rounds <= t) for t in range(1, e.horizon + 1)]
    np.testing.assert_array_equal(outcome.synchronisations, counts)
    bits = 64 * e.facts.dimension * e.silos
    np.testing.assert_array_equal(outcome.bits_up, np.multiply(counts, bits))
    np.testing.assert_array_equal(outcome.bits_down, outcome.bits_up)
    assert plan.releasing == tuple(released_phases)
    assert outcome.total.shape == (e.facts.dimension,)
    assert outcome.total.any() == bool(released_phases)
    # Until the first model arrives, each silo runs LinUCB on its own data.
    local_outcome, rounds_without_model = run_local_linucb(e), min([e.horizon, *last_rounds])
    np.testing.assert_array_equal(
        outcome.actions[:, :rounds_without_model], local_outcome.actions[:, :rounds_without_model]
    )
    np.testing.assert_array_equal(
        outcome.rewards[:, :rounds_without_model], local_outcome.rewards[:, :rounds_without_model]
    )


def test_each_problem_shows_what_its_name_says():
    name_and_bins, differing_count = set(), 0
    for name, keys in PROBLEMS.items():
        e = experiment(ENVIRONMENTS["sphere"], **keys)
        outcome, local_outcome = run_compiled(e), run_local_linucb(e)
        name_and_bins |= {(name, mean.bins) for mean in plan_of(e).means}
        differing_count += not np.array_equal(outcome.actions, local_outcome.actions)
    assert {b for n, b in name_and_bins if n == "radius as printed"} == {1}
    assert min(b for n, b in name_and_bins if n == "many bins") > 100
    assert len({b for n, b in name_and_bins if n == "one round after a phase"}) > 1
    # Four problems have no greedy round; all others differ from local LinUCB.
    assert differing_count == len(PROBLEMS) - 4


@pytest.mark.parametrize("keys", [{}, {"private": False}, {"epsilon": 1e6}])
@pytest.mark.parametrize("dimension", [1, 2, 7, 8, 9])
def test_both_drivers_agree_in_every_dimension(dimension, keys):
    """Check dimensions around powers of two, since vectors are padded to a power of two."""
    e = experiment(Sphere(dimension=dimension, actions=5), horizon=31, **keys)
    assert all(m.padded == oracle.padded(dimension) for m in plan_of(e).means)
    assert_same_bits(run_compiled(e), run_readable(e))


@pytest.mark.parametrize("clip", [True, False])
def test_rewards_are_clipped_if_clip_is_set(clip):
    reward_distribution = RewardDistribution("gaussian", 0.5)
    e = experiment(
        Sphere(dimension=3, actions=5, reward=reward_distribution), horizon=31, clip=clip
    )
    outcome = run_compiled(e)
    outside_count = np.sum((outcome.rewards < 0.0) | (outcome.rewards > 1.0))
    assert outside_count > 10
    # Rewards leave [0, 1] in greedy phases, too.
    assert np.sum(outcome.rewards[:, 6:] > 1.0) > 0
    assert outcome.events["clipped_rewards"] == (outside_count if clip else 0)
    assert_same_bits(outcome, run_readable(e))


def test_features_are_clipped_if_clip_is_set():
    def features_and_means(seed: int, replicate: int, silo: int, round: int) -> Any:
        """Return features with norms above 1, and means, for a silo and round."""
        rng = np.random.default_rng((seed, silo, round))
        return 3.0 + rng.normal(size=(4, 3)), rng.uniform(size=4)

    environment = fastfed.environments.Python(function=features_and_means, dimension=3, actions=4)
    clipped_counts = []
    for clip in (True, False):
        e = experiment(environment, horizon=24, silos=3, clip=clip)
        outcome = run_compiled(e)
        assert_same_bits(outcome, run_readable(e))
        clipped_counts.append(outcome.events["clipped_features"])
    assert clipped_counts == [3 * 24, 0]


@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_both_drivers_agree_on_a_replayed_pool(recorded, sampling):
    environment = fastfed.environments.Replay.from_arrays(*recorded, sampling=sampling)
    e = experiment(environment, horizon=24, silos=3)
    assert_same_bits(run_compiled(e), run_readable(e))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize(
    ("threads", "rounds_per_call"), [(1, 1), (1, 7), (2, None), (2, 7), (3, 5)]
)
def test_results_do_not_depend_on_threads_or_call_lengths(environment, threads, rounds_per_call):
    for name in ("one round after a phase", "U = 1", "not private", "U beyond T"):
        e = experiment(ENVIRONMENTS[environment], **PROBLEMS[name])
        assert_same_bits(
            run_compiled(e), run_compiled(e, threads=threads, rounds_per_call=rounds_per_call)
        )


@pytest.mark.parametrize("environment", ["sphere", "fixed set"])
@pytest.mark.parametrize("last", [1, 5, 6, 7, 14, 20, 30, 31])
def test_a_run_that_stops_early_equals_the_start_of_the_full_run(environment, last):
    e = experiment(ENVIRONMENTS[environment], horizon=31)
    full_run = run_compiled(e)
    for short_run in (
        run_compiled(e, last=last),
        run_readable(e, last=last),
        run_compiled(e, last=last, threads=2),
    ):
        np.testing.assert_array_equal(short_run.actions[:, :last], full_run.actions[:, :last])
        np.testing.assert_array_equal(short_run.rewards[:, :last], full_run.rewards[:, :last])
        assert not short_run.actions[:, last:].any() and not short_run.rewards[:, last:].any()
        for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
            values = getattr(short_run, field), getattr(full_run, field)
            np.testing.assert_array_equal(values[0][:last], values[1][:last])
    assert np.array_equal(run_compiled(e, last=last).total, run_readable(e, last=last).total)


def test_progress_counts_each_round_once():
    e = experiment(ENVIRONMENTS["sphere"], horizon=31)
    for last, driver in (
        (31, run_compiled),
        (31, run_readable),
        (9, run_compiled),
        (9, run_readable),
    ):
        reported_rounds: list[int] = []
        driver(e, last=last, progress=reported_rounds.append)
        assert sum(reported_rounds) == last
    environment = e.environment.open(e.seed, 0, e.silos)
    reported_rounds = []
    dispatch.run(environment, [plan_of(e)] * 2, e.checkpoints, progress=reported_rounds.append)
    assert sum(reported_rounds) == 2 * 31


def test_sparse_checkpoints_show_the_same_values_as_dense_checkpoints():
    e = experiment(ENVIRONMENTS["sphere"], horizon=31)
    environment, dense = e.environment.open(e.seed, 0, e.silos), run_compiled(e)
    for at in ([31], [14, 31], [5, 6, 13, 30, 31]):
        checkpoints = np.array(at)
        for driver in (phases.run, phases.run_steps):
            sparse = driver(environment, plan_of(e), checkpoints)
            for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
                np.testing.assert_array_equal(
                    getattr(sparse, field), getattr(dense, field)[checkpoints - 1]
                )
        assert not dispatch.runs_together(plan_of(e))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"radius": "lemma-c2", "radius_multiplier": 0.3, "failure_probability": 0.2},
        {"radius": "lemma-c4"},
        {"radius": "published-code"},
        {"regularizer": 3.0},
    ],
)
def test_robin_without_a_model_equals_local_linucb(environment, clip, keys):
    """Set initial phases beyond T, by number and by Proposition C.3."""
    all_keys = {"horizon": 45, "clip": clip, **keys}
    for initial_keys in ({"initial_phases": 6}, {"initial_phases": "printed", "margin": 7.0}):
        e = experiment(ENVIRONMENTS[environment], **all_keys, **initial_keys)
        robin_outcome, local_outcome = run_compiled(e), run_local_linucb(e)
        for field in (
            *("actions", "rewards", "group_regret", "synchronisations", "bits_up", "bits_down"),
            "events",
        ):
            np.testing.assert_array_equal(
                getattr(robin_outcome, field), getattr(local_outcome, field)
            )
    assert not robin_outcome.bits_up.any()
    assert not isinstance(e.environment, Sphere) or len(np.unique(robin_outcome.actions)) > 1


@pytest.mark.parametrize("driver", [run_compiled, run_readable])
def test_a_phase_on_a_fixed_set_has_one_action(driver):
    """Check that all silos choose the model's best action for the whole phase."""
    e = experiment(ENVIRONMENTS["fixed set"], horizon=500, epsilon=30.0, silos=3)
    outcome = driver(e)
    features, _ = e.environment.open(e.seed, 0, e.silos).round(0, 1)
    chosen_actions = []
    for phase in range(3, 9):
        start, last = oracle.last_round(phase - 1), min(oracle.last_round(phase), 500)
        phase_actions = outcome.actions[:, start:last]
        assert (phase_actions == phase_actions[0, 0]).all()
        chosen_actions.append(phase_actions[0, 0])
        model = run_compiled(e, last=start).total
        assert np.argmax(features @ model) == chosen_actions[-1]
    assert len(set(chosen_actions)) > 2


def test_silos_with_one_coordinate_estimate_zero_for_the_other():
    """Check that such a silo sends the mean of its coordinate and 0 for the other coordinate."""
    e = experiment(NoDiversity(), horizon=31, private=False, silos=3)
    outcome = run_compiled(e)
    x = np.array([1.0, -1.0])[outcome.actions[:, 14:30]]
    estimates = np.mean(x * outcome.rewards[:, 14:30], axis=1)
    np.testing.assert_allclose(
        outcome.total, [estimates[0] / 3, (estimates[1] + estimates[2]) / 3], rtol=1e-12
    )


# -- The paper's pseudocode ------------------------------------------------------------------------


def oracle_mechanism(e: Experiment, **changes: Any) -> oracle.Mechanism | None:
    """Return the paper's R_0 with the package's draws, or None if the curve is not private.

    The oracle computes everything except an exact eps'. ``changes`` replace fields.
    """
    plan, keys = plan_of(e), e.curves[0].keys
    if not keys["private"]:
        return None
    M, d, P = plan.silos, plan.dimension, oracle.number_of_phases(e.horizon)
    d2, beta, source = oracle.padded(d), keys["failure_probability"], SeededNoise(e.seed, 0)
    c1 = oracle.concentration_c1(M, P, d, beta, keys["diversity"])

    def uniforms_for(purpose: int):
        """Return a function of the phase that draws the uniforms for a purpose."""
        return lambda p: source.uniforms(purpose, p - plan.initial + 1, d2)

    if keys["calibration"] == "printed":
        budget = oracle.printed_budget(keys["epsilon"], keys["delta"], P, d2)
        epsilon_coordinate = budget.epsilon_coordinate
    else:
        epsilon_coordinate = plan.means[0].epsilon_coordinate if plan.means else 1.0
    mechanism = oracle.Mechanism(
        epsilon_coordinate=epsilon_coordinate,
        radius=lambda p: oracle.rotated_radius(
            oracle.concentration_radius(c1, p, keys["concentration_multiplier"]),
            d2, M, oracle.call_beta(beta, P),
        ),
        bound=np.sqrt(d2),
        signs=lambda p: np.where(uniforms_for(ROTATION)(p) < 0.5, -1.0, 1.0),
        laplace=lambda p: oracle.laplace_from_uniform(uniforms_for(LAPLACE)(p)),
        uniforms=uniforms_for(RANGE),
    )  # fmt: skip
    return replace(mechanism, **changes)


def replay(e: Experiment, outcome: Any, **changes: Any) -> oracle.Replay:
    """Replay the pseudocode with the recorded actions and rewards.

    ``changes`` replace arguments of ``oracle.replay``.
    """
    plan, clip = plan_of(e), plan_of(e).local.clip
    environment, r = e.environment.open(e.seed, 0, e.silos), plan.local.radius
    # The paper's lambda is 1. It belongs to one silo, so that each round adds one row.
    assert set(plan.local.regularizer) == {1.0} and plan.local.rows_per_round == 1

    def radius(t: int, i: int, v: np.ndarray) -> float:
        """Return the radius in round t."""
        growth = 1.0 + t / (plan.dimension * r.log_lambda[0])
        width = r.scale * np.sqrt(r.base + plan.dimension * np.log(growth))
        return r.multiplier * (r.offset[0] + width)

    def contexts(t: int, i: int) -> np.ndarray:
        """Return the actions of silo i in round t, clipped."""
        x = environment.round(i, t)[0].astype(float)
        # Rounding to float32 can raise a norm slightly above 1.
        return x if clip is None else x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]

    rewards = outcome.rewards if clip is None else np.clip(outcome.rewards, clip.low, clip.high)
    arguments: dict[str, Any] = {
        "initial_phases": plan.initial if plan.releasing else None,
        "mechanism": oracle_mechanism(e),
    }
    return oracle.replay(
        contexts=contexts,
        means=lambda t, i: environment.round(i, t)[1],
        actions=outcome.actions,
        rewards=rewards,
        radius=radius,
        **(arguments | changes),
    )


def fixed_radius_experiment(environment: str, keys: dict[str, Any]) -> Experiment:
    """Return an experiment whose radius is fixed in advance, as in the oracle's LinUCB."""
    all_keys = {"radius": "lemma-c2", "radius_multiplier": 0.5, **keys}
    return experiment(ENVIRONMENTS[environment], **all_keys)


@EVERY_PROBLEM
def test_runs_follow_the_papers_pseudocode(name, environment):
    e = fixed_radius_experiment(environment, PROBLEMS[name])
    outcome = run_compiled(e)
    replayed = replay(e, outcome)
    # The drivers choose actions by features before clipping.
    assert replayed.worst_gap < (1e-9 if plan_of(e).local.clip is None else 1e-6)
    # Closer than this, rounding could change the rank; choose another seed then.
    assert replayed.nearest_rank > 2.0
    np.testing.assert_allclose(outcome.group_regret, replayed.group_regret, rtol=1e-9, atol=1e-9)
    assert replayed.released == list(plan_of(e).releasing)
    assert 8 * replayed.bytes_up == outcome.bits_up[-1]
    assert 8 * replayed.bytes_down == outcome.bits_down[-1]
    for phase, model in zip(replayed.released, replayed.globals, strict=True):
        model_values = run_compiled(e, last=oracle.last_round(phase)).total
        np.testing.assert_allclose(model_values, model, rtol=1e-9, atol=1e-9 * np.abs(model).max())
        np.testing.assert_array_equal(
            model_values, run_readable(e, last=oracle.last_round(phase)).total
        )
    assert replayed.released == [] or np.array_equal(model_values, outcome.total)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("dimension", [1, 2, 7, 9])
def test_runs_follow_the_pseudocode_in_every_dimension(dimension, private):
    keys = {"radius": "lemma-c2", "private": private}
    e = experiment(Sphere(dimension=dimension, actions=5), horizon=31, **keys)
    outcome = run_compiled(e)
    replayed = replay(e, outcome)
    assert replayed.worst_gap < 1e-9 and replayed.nearest_rank > 2.0
    np.testing.assert_allclose(outcome.total, replayed.globals[-1], rtol=1e-9, atol=1e-9)


def test_replay_detects_planted_faults():
    e = fixed_radius_experiment("sphere", {"horizon": 31})
    outcome = run_compiled(e)
    models = np.array(replay(e, outcome).globals)
    mechanism = oracle_mechanism(e)
    assert mechanism is not None and mechanism.uniforms is not None
    uniforms = mechanism.uniforms
    all_changes: list[dict[str, Any]] = [
        {"first_estimate": "phase"},
        {"initial_phases": 1},
        {"mechanism": None},
        {"mechanism": oracle_mechanism(e, epsilon_coordinate=1.001 * mechanism.epsilon_coordinate)},
        {"mechanism": oracle_mechanism(e, radius=lambda p: 1.001 * mechanism.radius(p))},
        {"mechanism": oracle_mechanism(e, signs=lambda p: -mechanism.signs(p))},
        {"mechanism": oracle_mechanism(e, uniforms=lambda p: uniforms(p)[::-1])},
        {"mechanism": oracle_mechanism(e, laplace=lambda p: mechanism.laplace(p)[::-1])},
    ]  # fmt: skip
    for changes in all_changes:
        wrong_models = np.array(replay(e, outcome, **changes).globals)
        assert wrong_models.shape != models.shape or np.abs(wrong_models - models).max() > 1e-6
    for i, t in ((1, 2), (0, 8), (3, 30)):
        wrong_actions = outcome.actions.copy()
        wrong_actions[i, t] = (wrong_actions[i, t] + 1) % 6
        assert replay(e, replace(outcome, actions=wrong_actions)).worst_gap > 1e-6


def test_estimates_are_least_squares_of_the_smallest_norm():
    """Use statistics of every rank from 0 to d."""
    rng = np.random.default_rng(20)
    for d in (1, 2, 3, 6):
        statistics, expected = [], []
        for rank in range(d + 1):
            x = rng.normal(size=(40, rank)) @ rng.normal(size=(rank, d))
            y = rng.normal(size=40)
            estimate, rank_margin = oracle.least_squares(x, y)
            assert rank_margin > 3.0
            expected.append(estimate)
            statistics.append(np.concatenate([x.T @ y, (x.T @ x)[np.tril_indices(d)]]))
            # The estimate fits the projection of y and has no part outside the row space.
            np.testing.assert_allclose(x @ estimate, x @ np.linalg.pinv(x) @ y, atol=1e-9)
        estimates = linalg.least_squares(np.array(statistics), d)
        np.testing.assert_allclose(estimates, expected, rtol=1e-8, atol=1e-9)
        assert not estimates[0].any()


# -- Deployment ------------------------------------------------------------------------------------


def deployed_system(**changes: Any) -> Any:
    """Make a system with two silos and two dimensions that releases after phases 1, 2 and 3."""
    keys = {"silos": 2, "horizon": 17, "dimension": 2, "initial_phases": 1}
    keys |= {"concentration_multiplier": 0.01} | changes
    if keys.get("private", True):
        keys = BUDGET | keys
    return fastfed.make_system("robin", **keys)


def play_rounds(clients: list[Any], count: int) -> None:
    """Let each client play ``count`` rounds with made-up features and rewards."""
    for _ in range(count):
        for client in clients:
            t = 10 * client.index + client.round
            a = client.select(np.array([[np.cos(t), np.sin(t)], [0.6, 0.6]]))
            client.observe((t + a) % 3 / 2)


def estimates_of(phase: int, values: Any = ((0.3, 0.1), (0.2, 0.4))) -> list[LocalEstimate]:
    """Return one estimate per silo for this phase."""
    return [
        LocalEstimate(phase, np.array(silo_values, float), i)
        for i, silo_values in enumerate(values)
    ]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["one round after a phase", "not private", "clipped", "one silo"])
def test_clients_with_seeded_noise_equal_the_step_driver(name, environment):
    e = fixed_radius_experiment(environment, PROBLEMS[name])
    plan, outcome, replayed = plan_of(e), run_compiled(e), replay(e, run_compiled(e))
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    clients = [fastfed.parties.Client(plan, i) for i in range(e.silos)]
    server, models, sent = fastfed.parties.Averager(plan, SeededNoise(SEED)), [], []
    for t in range(1, e.horizon + 1):
        for i, client in enumerate(clients):
            features, means = opened_environment.round(i, t)
            a = client.select(features)
            assert a == outcome.actions[i, t - 1]
            client.observe(opened_environment.reward(i, t, means[a]))
            assert client.greedy == (t > 6)
        if clients[0].due:
            assert all(client.due for client in clients)
            estimates = [client.estimate() for client in clients]
            assert all(client.reported and not client.due for client in clients)
            sent.append(np.array([estimate.values for estimate in estimates]))
            # Estimates may arrive in any order.
            model = server.combine(estimates[::-1])
            assert model.phase == plan.phase_of(t) + 1 == estimates[0].phase + 1
            for client in clients:
                client.adopt(model)
                np.testing.assert_array_equal(client.theta, model.values)
                assert not client.reported
            models.append(model.values)
        assert server.releases == outcome.synchronisations[t - 1]
    np.testing.assert_array_equal(models[-1], outcome.total)
    for client_estimates, oracle_estimates in zip(sent, replayed.estimates, strict=True):
        np.testing.assert_allclose(client_estimates, oracle_estimates, rtol=1e-8, atol=1e-9)
    assert sum(client.clipped_rewards for client in clients) == outcome.events["clipped_rewards"]
    assert estimates[0].nbytes * 8 * e.silos * len(sent) == outcome.bits_up[-1]


@pytest.mark.parametrize("keys", [{}, {"calibration": "printed"}, {"silos": 1}])
def test_deployed_noise_has_the_plans_size(keys):
    """Check that a model is the mean of the estimates plus noise of the plan's size.

    The range is the whole ball, so that nothing is clipped. Laplace noise exceeds 40 times its
    scale with probability 10^-17.
    """
    system = deployed_system(concentration_multiplier=1.0, **keys)
    plan, noise_per_run = system.plan, []
    assert [mean.bins for mean in plan.means] == [1, 1, 1]
    for _ in range(2):
        server = fastfed.parties.Averager(plan)
        clients = [fastfed.parties.Client(plan, i) for i in range(plan.silos)]
        noise_per_release = []
        for count in (2, 4, 8, 3):
            play_rounds(clients, count)
            if not clients[0].due:
                break
            estimates = [client.estimate() for client in clients]
            assert max(np.linalg.norm(estimate.values) for estimate in estimates) < 2.0
            model = server.combine(estimates)
            noise_per_release.append(
                model.values - np.mean([estimate.values for estimate in estimates], axis=0)
            )
            for client in clients:
                client.adopt(model)
        assert clients[0].round == 17 and server.releases == len(noise_per_release) == 3
        noise_per_run.append(np.array(noise_per_release))
    scale = plan.means[0].noise_stds["mean"] / np.sqrt(2.0)
    assert (np.abs(noise_per_run) <= 40.0 * np.sqrt(2.0) * scale).all()
    assert (np.abs(noise_per_run).max(axis=2) > 1e-6 * scale).all()
    assert (noise_per_run[0] != noise_per_run[1]).all()


def test_noise_has_the_plans_variance():
    """Check the variance of 1500 releases; a correct plan fails for one seed in 10^4.

    A squared Laplace variable has mean 2 and variance 20, in units of the squared scale.
    """
    plan = deployed_system(concentration_multiplier=1.0).plan
    plan = replace(plan, means=(plan.means[0],) * len(plan.means))
    models = []
    for seed in range(1500):
        server = fastfed.parties.Averager(plan, SeededNoise(seed))
        models.append(server.combine(estimates_of(1, np.zeros((2, 2)))).values)
    squares = np.square(np.array(models) / plan.means[0].noise_stds["mean"])
    # Both coordinates are the sum and the difference of the same two draws, so only 1500 of the
    # 3000 squares are independent.
    assert abs(squares.mean() - 1.0) < 4.0 * np.sqrt(5.0 / 1500)
    # The correlation has a standard error of 0.04; the limit is five of these.
    assert abs(np.corrcoef(np.array(models).T)[0, 1]) < 0.2


def test_deployed_certificate_has_no_caveats_about_simulation():
    for system in (
        deployed_system(),
        deployed_system(calibration="printed"),
        deployed_system(initial_phases=9),
    ):
        deployed, simulated = system.deployed_certificate, system.certificate
        assert SIMULATION_CAVEAT in simulated.caveats and SIMULATION_CAVEAT not in deployed.caveats
        assert not any("simulation" in caveat for caveat in deployed.caveats)
        assert (deployed.status, deployed.exact) == (simulated.status, simulated.exact)
        assert any(caveat.startswith("deployment: ") for caveat in deployed.caveats)


# -- Errors ----------------------------------------------------------------------------------------


def test_a_client_refuses_steps_out_of_order():
    """Call every method at every wrong moment of the first phases."""
    clients = [fastfed.parties.Client(deployed_system().plan, i) for i in range(2)]
    client = clients[0]
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 0"):
        client.estimate()
    with pytest.raises(InputError, match="silo 0 waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))
    play_rounds(clients, 1)
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 1"):
        client.estimate()
    play_rounds(clients, 1)
    assert client.due and not client.greedy
    with pytest.raises(InputError, match="before round 3"):
        client.select(np.eye(2))
    with pytest.raises(InputError, match="waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))
    estimate, theta = client.estimate(), client.theta
    assert estimate.phase == 1 and estimate.silo == 0 and not client.due
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 2"):
        client.estimate()
    with pytest.raises(InputError, match="before round 3"):
        client.select(np.eye(2))
    for wrong_model, message in (
        (Model(1, np.zeros(2)), "silo 0 waits for the model of phase 2, got the model of phase 1"),
        (Model(3, np.zeros(2)), "silo 0 waits for the model of phase 2, got the model of phase 3"),
        (Model(2, np.zeros(3)), "model must hold 2 finite numbers"),
        (Model(2, np.zeros((1, 2))), "model must hold 2 finite numbers"),
        (Model(2, np.array([0.0, np.nan])), "model must hold 2 finite numbers"),
        (Model(2, np.array([np.inf, 0.0])), "model must hold 2 finite numbers"),
        (Broadcast(1, 2, np.zeros(5)), "model must be a Model, got Broadcast"),
        (estimate, "model must be a Model, got LocalEstimate"),
        (None, "model must be a Model, got NoneType"),
        (np.zeros(2), "model must be a Model, got ndarray"),
    ):
        with pytest.raises(InputError, match=message) as error:
            client.adopt(wrong_model)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert client.reported and not client.greedy
        np.testing.assert_array_equal(client.theta, theta)
    client.adopt(Model(2, np.array([0.0, 1.0])))
    assert client.greedy and not client.reported
    assert client.select(np.eye(2)) == 1
    with pytest.raises(InputError, match="waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))


def test_a_client_refuses_the_methods_of_a_silo():
    client = fastfed.parties.Client(deployed_system().plan, 0)
    with pytest.raises(InputError, match=r"sends estimates: use estimate\(\)"):
        client.report()
    with pytest.raises(InputError, match=r"adopts models: use adopt\(model\)"):
        client.receive(Broadcast(1, 2, np.zeros(5)))
    with pytest.raises(InputError, match="ask is for plans with a trigger"):
        client.ask()
    with pytest.raises(InputError, match="served is for plans whose users send"):
        client.served()
    with pytest.raises(InputError, match="observe needs a select before it"):
        client.observe(1.0)
    client.select(np.eye(2))
    with pytest.raises(InputError, match="reward must be finite, got nan"):
        client.observe(np.nan)
    assert client.round == 0
    with pytest.raises(InputError, match="index must be an integer >= 0 and <= 1, got 2"):
        fastfed.parties.Client(deployed_system().plan, 2)


def test_parties_refuse_steps_after_the_end_of_the_plan():
    plan = deployed_system(horizon=14).plan
    clients, server = (
        [fastfed.parties.Client(plan, i) for i in range(2)],
        fastfed.parties.Averager(plan),
    )
    for count in (2, 4):
        play_rounds(clients, count)
        model = server.combine([client.estimate() for client in clients])
        for client in clients:
            client.adopt(model)
    play_rounds(clients, 8)
    # Phase 3 ends with T: no round is left for its model.
    assert not clients[0].due
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 14"):
        clients[0].estimate()
    with pytest.raises(InputError, match="the plan ends after round 14"):
        clients[0].select(np.eye(2))
    with pytest.raises(InputError, match="the plan has 2 releases, got estimates for one more"):
        server.combine(estimates_of(3))
    assert server.releases == 2


@pytest.mark.parametrize("private", [True, False])
def test_the_server_needs_one_estimate_from_every_silo(private):
    plan = deployed_system(private=private).plan
    server, estimates = fastfed.parties.Averager(plan), estimates_of(1)
    wide_estimate = LocalEstimate(1, np.zeros(3), 1)
    for wrong_estimates, message in (
        ([], r"one of each of the 2 silos, got silos \[\]"),
        (estimates[:1], r"one of each of the 2 silos, got silos \[0\]"),
        ([estimates[1], estimates[1]], r"one of each of the 2 silos, got silos \[1, 1\]"),
        ([*estimates, estimates[0]], r"one of each of the 2 silos, got silos \[0, 0, 1\]"),
        ([estimates[0], LocalEstimate(1, np.zeros(2), 2)], r"got silos \[0, 2\]"),
        ([estimates[0], LocalEstimate(1, np.zeros(2), -1)], r"got silos \[-1, 0\]"),
        (estimates_of(2), "estimate of silo 0 must be of phase 1, got phase 2"),
        ([estimates[0], estimates_of(0)[1]], "estimate of silo 1 must be of phase 1, got phase 0"),
        ([estimates[0], wide_estimate], r"estimate of silo 1 must have shape \(2,\), got \(3,\)"),
        ([estimates[0], LocalEstimate(1, np.zeros((1, 2)), 1)], r"shape \(2,\), got \(1, 2\)"),
        ([estimates[0], LocalEstimate(1, np.float64(0), 1)], r"shape \(2,\), got \(\)"),
    ):
        with pytest.raises(InputError, match=message) as error:
            server.combine(wrong_estimates)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert server.releases == 0
    # The failures used no draw of the first release: the noise source would now refuse that draw.
    assert server.combine(estimates).phase == 2
    with pytest.raises(InputError, match="must be of phase 2, got phase 1"):
        server.combine(estimates)
    assert server.releases == 1


@pytest.mark.parametrize("private", [True, False])
def test_the_server_refuses_messages_of_other_types(private):
    server, estimates = (
        fastfed.parties.Averager(deployed_system(private=private).plan),
        estimates_of(1),
    )
    for messages in (
        [Broadcast(1, 2, np.zeros(5))] * 2,
        [Report(1, 2, np.zeros(5), i) for i in range(2)],
        [estimates[0], Report(1, 2, np.zeros(5), 1)],
        [estimates[0], Model(1, np.zeros(2))],
        [estimates[0], None],
        [np.zeros(2), np.zeros(2)],
    ):
        with pytest.raises(InputError, match="estimate") as error:
            server.combine(messages)  # type: ignore[arg-type]
        assert type(messages[-1]).__name__ in str(error.value) and "\n" not in str(error.value)
    assert server.releases == 0


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    "values", [(np.nan, 1.0), (0.5, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)]
)
def test_estimates_that_are_not_finite_count_as_zero(values, private):
    plan, models = deployed_system(private=private).plan, []
    for estimate in (values, (0.0, 0.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server = fastfed.parties.Averager(plan, SeededNoise(2))
            models.append(server.combine(estimates_of(1, (estimate, (0.2, 0.4)))).values)
            second_model = server.combine(estimates_of(2, (estimate, estimate))).values
        assert np.isfinite(second_model).all() and second_model.any() == private
        assert server.releases == 2
    np.testing.assert_array_equal(*models)
    assert private or np.array_equal(models[0], [0.1, 0.2])


@pytest.mark.parametrize("huge", [1e300, 1.7e308])
def test_huge_estimates_are_clipped(huge):
    """Check that a huge estimate moves the model no more than any other estimate and never
    overflows."""
    plan = deployed_system(silos=3, concentration_multiplier=1.0).plan
    for signs in ((1, 1), (1, -1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server = fastfed.parties.Averager(plan, SeededNoise(2))
            model_with_huge = server.combine(
                estimates_of(1, (np.multiply(signs, huge), (0.2, 0.4), (0.2, 0.4)))
            ).values
        other_server = fastfed.parties.Averager(plan, SeededNoise(2))
        model_with_zero = other_server.combine(
            estimates_of(1, ((0, 0), (0.2, 0.4), (0.2, 0.4)))
        ).values
        # Each of the two rotated coordinates is within 2 r' = 2 sqrt 2 of the centre.
        assert np.linalg.norm(model_with_huge - model_with_zero) <= 2 * np.sqrt(2) * np.sqrt(
            2
        ) / 3 * (1 + 1e-12)


def test_messages_are_immutable():
    values = np.array([0.3, 0.1])
    estimate, model = LocalEstimate(1, values, 0), Model(2, values)
    values[0] = 9.0
    assert estimate.values[0] == model.values[0] == 0.3
    for message in (estimate, model):
        with pytest.raises(ValueError, match="read-only"):
            message.values[0] = 1.0


class FailsOnce(SeededNoise):
    """A noise source in which the first request for each draw fails."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.requested: set[tuple[int, int]] = set()

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Draw uniform numbers; fail at the first request of each purpose and release."""
        if (purpose, release) not in self.requested:
            self.requested.add((purpose, release))
            raise OSError("no entropy")
        return super().uniforms(purpose, release, count)


def test_releases_are_equal_after_a_noise_source_fails():
    plan, models = deployed_system().plan, []
    for noise in (SeededNoise(4), FailsOnce(4)):
        server = fastfed.parties.Averager(plan, noise)
        for phase in (1, 2, 3):
            for _ in range(4):
                try:
                    models.append(server.combine(estimates_of(phase)).values)
                    break
                except OSError:
                    assert server.releases == phase - 1
    np.testing.assert_array_equal(models[:3], models[3:])


def test_one_noise_source_serves_only_one_server():
    noise, plan = fastfed.parties.SystemNoise(), deployed_system().plan
    fastfed.parties.Averager(plan, noise).combine(estimates_of(1))
    other_server = fastfed.parties.Averager(plan, noise)
    with pytest.raises(InputError, match="drawn already; use one SystemNoise for each system"):
        other_server.combine(estimates_of(1))
    assert other_server.releases == 0


def test_parties_refuse_plans_of_other_kinds():
    system = deployed_system()
    for make_party in (
        fastfed.parties.Silo,
        fastfed.parties.Server,
        fastfed.parties.Shuffler,
        lambda p: fastfed.parties.User(p, 1),
    ):
        with pytest.raises(
            InputError, match=r"got PhasePlan: it is in phases, for Client\(plan, index\)"
        ):
            make_party(system.plan)
    local_system = fastfed.make_system("local-linucb", horizon=9, dimension=2)
    for make_party in (fastfed.parties.Client, fastfed.parties.Averager):
        for wrong_plan, name in (
            (local_system.plan, "Plan"),
            (system, "System"),
            (None, "NoneType"),
        ):
            with pytest.raises(InputError, match=f"plan must be a PhasePlan, .*got {name}"):
                make_party(wrong_plan)


def test_parties_refuse_plans_without_all_private_means():
    """Check plans whose means do not fit the protocol; a model would be released without noise."""
    plan = deployed_system().plan
    local_plan = deployed_system(initial_phases=99).plan
    plan_with_fewer_means = replace(plan, means=plan.means[:-1])
    for broken_plan in (
        replace(plan, means=()),
        plan_with_fewer_means,
        replace(local_plan, initial=1),
    ):
        for make_party in (fastfed.parties.Averager, fastfed.parties.Client):
            with pytest.raises(InputError, match="private means"):
                make_party(broken_plan)
