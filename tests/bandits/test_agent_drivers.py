"""Tests of systems with a single agent: the step driver and the compiled driver agree."""

from __future__ import annotations

import numpy as np
import problems
import pytest
from test_drivers import assert_same_bits, experiment, outcomes_of_both_drivers

import fastfed
from fastfed._kernels import linalg
from fastfed.environments import FixedSet, Replay, RewardDistribution, Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

AGENTS = dict(problems.agents())
PUBLISHED = {"calibration": "published-code", "radius": "published-code"}


def sphere(sizes: dict, **keys) -> Sphere:
    """Return a sphere of the problem's sizes."""
    return Sphere(dimension=sizes["dimension"], actions=sizes["actions"], **keys)


def fixed_set(sizes: dict, **keys) -> FixedSet:
    """Return a fixed set of actions of the problem's sizes."""
    return FixedSet(dimension=sizes["dimension"], actions=sizes["actions"], **keys)


def recorded_pool(sampling: str) -> Replay:
    """Return recorded rounds of five actions in three dimensions.

    With replacement there are only six rounds, so that they recur.
    """
    rng = np.random.default_rng(5)
    rounds = 6 if sampling == "with-replacement" else 40
    contexts = rng.normal(size=(1, rounds, 5, 3))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
    return Replay.from_arrays(contexts, rng.uniform(size=(1, rounds, 5)), sampling=sampling)


@pytest.mark.parametrize("make_environment", [sphere, fixed_set])
@pytest.mark.parametrize("name", AGENTS)
def test_both_drivers_agree_bit_for_bit(name, make_environment):
    sizes = AGENTS[name]
    e = experiment(make_environment(sizes), sizes)
    plan = e.curves[0].system.plan
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)
    releases = sizes["horizon"] // sizes["batch_size"]
    if plan.batch_size:
        assert compiled_outcome.synchronisations[-1] == releases == plan.releases
        assert compiled_outcome.total.any()
    else:
        assert sizes["protocol"] == "linucb" and sizes["batch_size"] == 1


def test_each_case_shows_what_its_name_says():
    """Check that lambda falls in the cases with low noise and that all protocols occur."""
    lambda_falls = []
    for name, sizes in AGENTS.items():
        if name.startswith("low noise"):
            e = experiment(sphere(sizes), sizes)
            plan = e.curves[0].system.plan
            (outcome,), _ = outcomes_of_both_drivers(e)
            v = np.zeros((plan.dimension, plan.dimension))
            v[np.tril_indices(plan.dimension)] = outcome.total[plan.dimension :]
            full, floor = plan.regularizer[-1], plan.radius.floor[-1]
            lambda_falls.append(np.linalg.eigvalsh(v)[0] + full * 7 / 8 > floor > 0.0)
    assert len(lambda_falls) == 5 and sum(lambda_falls) >= 3
    assert {sizes_["protocol"] for sizes_ in AGENTS.values()} == set(problems.AGENTS)


@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
@pytest.mark.parametrize("radius", ["direct", "lemma-a2"])
def test_drivers_agree_when_the_noisy_v_is_indefinite(radius, release):
    sizes = {"silos": 1, "horizon": 60, "batch_size": 4, "protocol": "linucb-jdp"}
    keys = {"regularizer": 1e-3, "epsilon": 0.1, "radius": radius, "release": release}
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        experiment(Sphere(dimension=6, actions=8), sizes, **keys)
    )
    assert compiled_outcome.events["indefinite"] > 0
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("linucb-ldp", {}),
        ("linucb-ldp", {"mechanism": "vector-sum"}),
        ("linucb-sdp-amp", {}),
        ("linucb-sdp-vec", {}),
    ],
)
def test_drivers_agree_when_noise_of_users_makes_v_indefinite(protocol, keys):
    sizes = {"silos": 1, "horizon": 30, "batch_size": 3, "protocol": protocol, **keys}
    e = experiment(FixedSet(dimension=4, actions=8), sizes, regularizer=1e-3, epsilon=0.5)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert compiled_outcome.events["indefinite"] > 0
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
@pytest.mark.parametrize(
    "name",
    [
        "every round, linucb",
        "short last batch, linucb",
        "short last batch, linucb-jdp",
        "short last batch, linucb-ldp",
        "short last batch, linucb-sdp-amp",
        "short last batch, linucb-sdp-vec",
        "one batch, linucb-ldp",
    ],
)
def test_drivers_agree_on_a_replayed_pool(name, sampling):
    """Check that a cached choice is dropped when the action set or the release changes."""
    sizes = AGENTS[name]
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        experiment(recorded_pool(sampling), sizes, radius_multiplier=0.01)
    )
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_each_batch_on_a_fixed_set_has_one_action(driver):
    """Check that all users of a batch get the same action and that releases change it."""
    sizes = AGENTS["short last batch, linucb"] | {"horizon": 300, "batch_size": 10}
    e = experiment(fixed_set(sizes), sizes)
    compiled_outcomes, step_outcomes = outcomes_of_both_drivers(e)
    (actions,) = (compiled_outcomes if driver == "compiled" else step_outcomes)[0].actions
    batches = actions.reshape(-1, 10)
    assert (batches == batches[:, :1]).all()
    assert len(set(batches[:, 0])) > 2


def test_drivers_agree_when_rewards_are_clipped():
    for protocol in ("linucb", "linucb-jdp", "linucb-ldp", "linucb-sdp-vec"):
        sizes = {"silos": 1, "horizon": 30, "batch_size": 5, "protocol": protocol}
        reward = RewardDistribution("gaussian", 0.5)
        (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
            experiment(Sphere(dimension=3, actions=4, reward=reward), sizes)
        )
        assert compiled_outcome.events["clipped_rewards"] > 0
        assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("protocol", problems.AGENTS)
def test_drivers_agree_without_clipping(protocol):
    """Check rewards for which bits count beyond the range 0 to 2 g."""
    sizes = {"silos": 1, "horizon": 30, "batch_size": 5, "protocol": protocol}
    environment = Sphere(dimension=3, actions=4, reward=RewardDistribution("gaussian", 2.0))
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        experiment(environment, sizes, clip=False)
    )
    assert (
        np.abs(compiled_outcome.rewards).max() > 2.0
        and compiled_outcome.events["clipped_rewards"] == 0
    )
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
def test_results_do_not_depend_on_threads_or_call_lengths(threads, rounds_per_call):
    for name in (
        "every round, linucb",
        "2^k + 1 releases, linucb-jdp",
        "short last batch, linucb-ldp",
        "short last batch, linucb-sdp-amp",
        "short last batch, linucb-sdp-vec",
        "every round, linucb-jdp, calibration published-code, radius published-code",
    ):
        sizes = AGENTS[name]
        for make_environment in (sphere, fixed_set):
            e = experiment(make_environment(sizes), sizes)
            environment = e.environment.open(e.seed, 0, e.silos)
            plans = [curve.system.plan for curve in e.curves]
            (outcome,) = compiled.run(environment, plans, e.checkpoints, record=True)
            (threaded_outcome,) = compiled.run(
                environment,
                plans,
                e.checkpoints,
                record=True,
                threads=threads,
                rounds_per_call=rounds_per_call,
            )
            assert_same_bits(outcome, threaded_outcome)


@pytest.mark.parametrize("radius", ["direct", "lemma-a2", "published-code"])
@pytest.mark.parametrize("make_environment", [sphere, fixed_set])
def test_batches_of_one_user_equal_individual_messages(make_environment, radius):
    """Check that for B = 1 the user's Gaussian noise equals the noise of the batch."""
    sizes = AGENTS["every round, linucb-ldp"]
    outcomes = []
    for messages in ("aggregate", "individual"):
        e = experiment(make_environment(sizes), sizes, messages=messages, radius=radius)
        environment, plan = e.environment.open(e.seed, 0, 1), e.curves[0].system.plan
        assert plan.individual == (messages == "individual")
        outcomes.append(server.run_one(environment, plan, e.checkpoints))
        if messages == "aggregate":
            outcomes += compiled.run(environment, [plan], e.checkpoints, record=True)
    for outcome in outcomes[1:]:
        assert_same_bits(outcomes[0], outcome)


@pytest.mark.parametrize(
    "algorithm_keys",
    [
        {"algorithm": "linucb-ldp"},
        {"algorithm": "linucb-ldp", "mechanism": "vector-sum"},
        {"algorithm": "linucb-sdp-amp"},
        {"algorithm": "linucb-sdp-vec"},
    ],
)
def test_individual_and_aggregate_messages_differ_only_in_noise(algorithm_keys):
    keys = {
        "horizon": 30, "silos": 1, "seed": 3, "replicates": 2, "checkpoints": 30, "batch_size": 5,
        "radius_multiplier": 0.01, "epsilon": 200.0, "delta": 0.05,
    }  # fmt: skip
    curve_keys = {key: value for key, value in algorithm_keys.items() if key != "algorithm"}
    curves = [
        fastfed.simulate(
            {"kind": "sphere", "dimension": 3, "actions": 12},
            algorithm_keys["algorithm"],
            messages=messages,
            driver=driver,
            **keys,
            **curve_keys,
        ).curves[0]
        for messages, driver in (
            ("individual", "compiled"),
            ("individual", "step"),
            ("aggregate", "compiled"),
        )
    ]
    individual, individual_steps, aggregate = (curve.group_regret for curve in curves)
    np.testing.assert_array_equal(individual, individual_steps)
    assert (individual != aggregate).any()
    np.testing.assert_array_equal(individual[:, :5], aggregate[:, :5])  # before the first release
    # The counted bits are those of the users' messages in both cases.
    np.testing.assert_array_equal(curves[0].bits_up_counts, curves[2].bits_up_counts)


@pytest.mark.parametrize(
    "environment", [Sphere(dimension=3, actions=6), FixedSet(dimension=3, actions=6)]
)
def test_curves_simulated_together_equal_curves_simulated_alone(environment):
    budget = {"epsilon": 5.0, "delta": 0.01}
    curve_keys = [
        {"algorithm": "linucb"},
        {"algorithm": "linucb", "batch_size": 7},
        {"algorithm": "linucb-jdp", **budget},
        {"algorithm": "linucb-jdp", **budget, "batch_size": 4, "release": "toeplitz"},
        {"algorithm": "linucb-jdp", **budget, **PUBLISHED},
        {"algorithm": "linucb-ldp", **budget},
        {"algorithm": "linucb-ldp", **budget, "batch_size": 5, "mechanism": "vector-sum"},
        {"algorithm": "linucb-ldp", **budget, "batch_size": 5, "messages": "individual"},
        {"algorithm": "linucb-sdp-amp", **budget, "batch_size": 6},
        {"algorithm": "linucb-sdp-vec", **budget, "batch_size": 6},
        {"algorithm": "fedlinucb", "batch_size": 6},
        {"algorithm": "random"},
    ]
    curves = [{"label": f"curve {i}", **keys_} for i, keys_ in enumerate(curve_keys)]
    keys = {"horizon": 31, "silos": 1, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(environment, curves=curves, threads=2, **keys)
    for curve in curves:
        alone = fastfed.simulate(environment, curves=[curve], threads=1, **keys).curves[0]
        np.testing.assert_array_equal(
            alone.group_regret, together[curve["label"]].group_regret, err_msg=str(curve)
        )


def test_batched_linucb_equals_fedlinucb_without_noise():
    """Compare with a federation of one silo, lazy updates and the same radius."""
    sizes = {"silos": 1, "horizon": 40, "batch_size": 6}
    environment = Sphere(dimension=3, actions=6)
    (linucb,), (fedlinucb,) = (
        outcomes_of_both_drivers(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb", "none")
    )
    np.testing.assert_array_equal(linucb.actions, fedlinucb.actions)
    np.testing.assert_array_equal(linucb.total, fedlinucb.total)


def test_linucb_with_batches_of_one_equals_local_linucb():
    sizes = {"silos": 1, "horizon": 40, "batch_size": 1}
    environment = Sphere(dimension=3, actions=6)
    (linucb,), (local_linucb,) = (
        outcomes_of_both_drivers(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb", "local")
    )
    np.testing.assert_array_equal(linucb.actions, local_linucb.actions)
    np.testing.assert_array_equal(linucb.group_regret, local_linucb.group_regret)


@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
def test_a_trusted_agent_equals_the_central_protocol_with_one_silo(release):
    """Check that equal budgets and draws give the same noise and rounds."""
    sizes = {"silos": 1, "horizon": 40, "batch_size": 3, "release": release}
    environment = Sphere(dimension=3, actions=6)
    (agent,), (central,) = (
        outcomes_of_both_drivers(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb-jdp", "central")
    )
    np.testing.assert_array_equal(agent.actions, central.actions)
    np.testing.assert_array_equal(agent.total, central.total)
    assert agent.bits_up[-1] == agent.bits_down[-1] == 0 < central.bits_up[-1]


def test_bits_equal_the_users_messages():
    """Compare the plan's counts with bits of the users' messages added by hand."""
    sizes = {"silos": 1, "horizon": 20, "batch_size": 6, "dimension": 3, "actions": 4}
    entries = 3 + 6
    for protocol, bits_per_user in (
        ("linucb", lambda plan: 0),
        ("linucb-jdp", lambda plan: 0),
        ("linucb-ldp", lambda plan: 64 * entries),
        ("linucb-sdp-amp", lambda plan: 64 * entries),
        # Each bit is sent with the label of its entry; 9 labels need 4 bits.
        ("linucb-sdp-vec", lambda plan: entries * plan.encoding.message_bits(0) * (1 + 4)),
    ):
        e = experiment(sphere(sizes), sizes | {"protocol": protocol})
        plan = e.curves[0].system.plan
        (outcome,), _ = outcomes_of_both_drivers(e)
        assert outcome.bits_up[-1] == 3 * 6 * bits_per_user(plan), protocol
        assert outcome.bits_down[-1] == 0


@pytest.mark.parametrize("reward", ["bernoulli", pytest.param("gaussian", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("linucb", {}),
        ("linucb", {"regularizer": 1e-3}),
        ("linucb", {"radius": "published-code"}),
        ("linucb", {"radius": "lemma-a2", "radius_multiplier": 0.05}),
        ("local-linucb", {"radius": "lemma-c2"}),
        ("fedlinucb", {"batch_size": 300, "lazy": False}),
        ("feducb", {"private": False, "lazy": False}),
    ],
)
def test_cached_candidates_contain_the_best_action(algorithm, keys, reward):
    """Check eager play on recurring rows, where only a few candidates are scored until bounds
    fail."""
    is_single_agent = algorithm == "linucb"
    e = make_experiment(
        name="contenders",
        environment=FixedSet(
            4, 60, RewardDistribution(reward, 0.5 if reward == "gaussian" else 0.0)
        ),
        curves=[{"label": "a", "algorithm": algorithm, **keys}],
        horizon=2500,
        silos=1 if is_single_agent else 2,
        seed=4,
        checkpoints=7,
    )
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)
    assert len(np.unique(compiled_outcome.actions)) > 5


@pytest.mark.parametrize("count", [1, 2, 5, 31, 33, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_padding_of_a_panel_is_never_selected(count, dtype):
    """Use actions whose scores are far below 0, the score of a padding vector."""
    rng = np.random.default_rng(count)
    actions = rng.normal(size=(count, 3)).astype(dtype)
    actions[:, 0] = -np.abs(actions[:, 0]) - 1
    theta = np.array([5.0, 0.1, -0.2])
    w = 0.01 * np.eye(3)
    scores = linalg.scores(actions, w, theta, 1.0, 0.5)
    assert scores.max() < -1
    for layout in (actions, np.asfortranarray(actions)):
        assert linalg.select(layout, w, theta, 1.0, 0.5)[0] == scores.argmax()
