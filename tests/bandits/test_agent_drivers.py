"""The systems of a single agent: step driver and compiled driver play the same rounds."""

from __future__ import annotations

import numpy as np
import problems
import pytest
from test_drivers import both, experiment, same

import fastfed
from fastfed._kernels import linalg
from fastfed.environments import FixedSet, Replay, RewardDistribution, Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

AGENTS = dict(problems.agents())
PUBLISHED = {"calibration": "published-code", "radius": "published-code"}


def sphere(sizes: dict, **more) -> Sphere:
    return Sphere(dimension=sizes["dimension"], actions=sizes["actions"], **more)


def fixed(sizes: dict, **more) -> FixedSet:
    return FixedSet(dimension=sizes["dimension"], actions=sizes["actions"], **more)


def replay(sampling: str) -> Replay:
    """Recorded rounds of five actions in three dimensions; six of them where they come back."""
    draw = np.random.default_rng(5)
    rounds = 6 if sampling == "with-replacement" else 40
    contexts = draw.normal(size=(1, rounds, 5, 3))
    contexts /= np.linalg.norm(contexts, axis=-1, keepdims=True) * 1.0001
    return Replay.from_arrays(contexts, draw.uniform(size=(1, rounds, 5)), sampling=sampling)


@pytest.mark.parametrize("made", [sphere, fixed])
@pytest.mark.parametrize("name", AGENTS)
def test_the_two_drivers_agree_bit_for_bit(name, made):
    sizes = AGENTS[name]
    e = experiment(made(sizes), sizes)
    plan = e.curves[0].system.plan
    (fast,), (readable,) = both(e)
    same(fast, readable)
    releases = sizes["horizon"] // sizes["batch_size"]
    if plan.batch_size:
        assert fast.synchronisations[-1] == releases == plan.releases
        assert fast.total.any()
    else:
        assert sizes["protocol"] == "linucb" and sizes["batch_size"] == 1


def test_the_corners_are_what_they_are_called():
    """Lambda falls where the noise is low, and V is shifted under the noise of published codes."""
    fallen = []
    for name, sizes in AGENTS.items():
        if name.startswith("low noise"):
            e = experiment(sphere(sizes), sizes)
            plan = e.curves[0].system.plan
            (played,), _ = both(e)
            v = np.zeros((plan.dimension, plan.dimension))
            v[np.tril_indices(plan.dimension)] = played.total[plan.dimension :]
            full, floor = plan.regularizer[-1], plan.radius.floor[-1]
            fallen.append(np.linalg.eigvalsh(v)[0] + full * 7 / 8 > floor > 0.0)
    assert len(fallen) == 5 and sum(fallen) >= 3
    assert {s["protocol"] for s in AGENTS.values()} == set(problems.AGENTS)


@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
@pytest.mark.parametrize("radius", ["direct", "lemma-a2"])
def test_they_agree_where_the_noisy_v_is_indefinite(radius, release):
    sizes = {"silos": 1, "horizon": 60, "batch_size": 4, "protocol": "linucb-jdp"}
    keys = {"regularizer": 1e-3, "epsilon": 0.1, "radius": radius, "release": release}
    (fast,), (readable,) = both(experiment(Sphere(dimension=6, actions=8), sizes, **keys))
    assert fast.events["indefinite"] > 0
    same(fast, readable)


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("linucb-ldp", {}),
        ("linucb-ldp", {"mechanism": "vector-sum"}),
        ("linucb-sdp-amp", {}),
        ("linucb-sdp-vec", {}),
    ],
)
def test_they_agree_where_users_noise_makes_v_indefinite(protocol, keys):
    sizes = {"silos": 1, "horizon": 30, "batch_size": 3, "protocol": protocol, **keys}
    e = experiment(FixedSet(dimension=4, actions=8), sizes, regularizer=1e-3, epsilon=0.5)
    (fast,), (readable,) = both(e)
    assert fast.events["indefinite"] > 0
    same(fast, readable)


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
def test_they_agree_on_a_pool(name, sampling):
    """A choice is remembered for what was offered and for the release it rested on: both change."""
    sizes = AGENTS[name]
    (fast,), (readable,) = both(experiment(replay(sampling), sizes, radius_multiplier=0.01))
    same(fast, readable)


@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_a_batch_on_a_fixed_set_is_one_choice(driver):
    """All users of a batch get one action, and news change it."""
    sizes = AGENTS["short last batch, linucb"] | {"horizon": 300, "batch_size": 10}
    e = experiment(fixed(sizes), sizes)
    fast, readable = both(e)
    (actions,) = (fast if driver == "compiled" else readable)[0].actions
    batches = actions.reshape(-1, 10)
    assert (batches == batches[:, :1]).all()
    assert len(set(batches[:, 0])) > 2


def test_they_agree_on_rewards_and_features_that_are_clipped():
    for protocol in ("linucb", "linucb-jdp", "linucb-ldp", "linucb-sdp-vec"):
        sizes = {"silos": 1, "horizon": 30, "batch_size": 5, "protocol": protocol}
        law = RewardDistribution("gaussian", 0.5)
        (fast,), (readable,) = both(experiment(Sphere(dimension=3, actions=4, reward=law), sizes))
        assert fast.events["clipped_rewards"] > 0
        same(fast, readable)


@pytest.mark.parametrize("protocol", problems.AGENTS)
def test_they_agree_where_nothing_is_clipped(protocol):
    """Bits then count beyond 0..2 g."""
    sizes = {"silos": 1, "horizon": 30, "batch_size": 5, "protocol": protocol}
    environment = Sphere(dimension=3, actions=4, reward=RewardDistribution("gaussian", 2.0))
    (fast,), (readable,) = both(experiment(environment, sizes, clip=False))
    assert np.abs(fast.rewards).max() > 2.0 and fast.events["clipped_rewards"] == 0
    same(fast, readable)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
def test_threads_and_calls_change_nothing(threads, rounds_per_call):
    for name in (
        "every round, linucb",
        "2^k + 1 releases, linucb-jdp",
        "short last batch, linucb-ldp",
        "short last batch, linucb-sdp-amp",
        "short last batch, linucb-sdp-vec",
        "every round, linucb-jdp, calibration published-code, radius published-code",
    ):
        sizes = AGENTS[name]
        for made in (sphere, fixed):
            e = experiment(made(sizes), sizes)
            opened = e.environment.open(e.seed, 0, e.silos)
            plans = [c.system.plan for c in e.curves]
            (one,) = compiled.run(opened, plans, e.checkpoints, record=True)
            (many,) = compiled.run(
                opened,
                plans,
                e.checkpoints,
                record=True,
                threads=threads,
                rounds_per_call=rounds_per_call,
            )
            same(one, many)


@pytest.mark.parametrize("radius", ["direct", "lemma-a2", "published-code"])
@pytest.mark.parametrize("made", [sphere, fixed])
def test_every_round_messages_of_users_are_their_sums(made, radius):
    """B = 1: the one user's Gaussian noise is the batch's."""
    sizes = AGENTS["every round, linucb-ldp"]
    outcomes = []
    for messages in ("aggregate", "individual"):
        e = experiment(made(sizes), sizes, messages=messages, radius=radius)
        opened, plan = e.environment.open(e.seed, 0, 1), e.curves[0].system.plan
        assert plan.individual == (messages == "individual")
        outcomes.append(server.run_one(opened, plan, e.checkpoints))
        if messages == "aggregate":
            outcomes += compiled.run(opened, [plan], e.checkpoints, record=True)
    for other in outcomes[1:]:
        same(outcomes[0], other)


@pytest.mark.parametrize(
    "table",
    [
        {"algorithm": "linucb-ldp"},
        {"algorithm": "linucb-ldp", "mechanism": "vector-sum"},
        {"algorithm": "linucb-sdp-amp"},
        {"algorithm": "linucb-sdp-vec"},
    ],
)
def test_messages_of_users_play_through_and_differ_in_their_noise_alone(table):
    keys = {
        "horizon": 30, "silos": 1, "seed": 3, "replicates": 2, "checkpoints": 30, "batch_size": 5,
        "radius_multiplier": 0.01, "epsilon": 200.0, "delta": 0.05,
    }  # fmt: skip
    given = {k: v for k, v in table.items() if k != "algorithm"}
    drawn = [
        fastfed.simulate(
            {"kind": "sphere", "dimension": 3, "actions": 12},
            table["algorithm"],
            messages=messages,
            driver=driver,
            **keys,
            **given,
        ).curves[0]
        for messages, driver in (
            ("individual", "compiled"),
            ("individual", "step"),
            ("aggregate", "compiled"),
        )
    ]
    own, readable, summed = (curve.group_regret for curve in drawn)
    np.testing.assert_array_equal(own, readable)
    assert (own != summed).any()
    np.testing.assert_array_equal(own[:, :5], summed[:, :5])  # before the first release
    # What travels is the users' messages either way.
    np.testing.assert_array_equal(drawn[0].bits_up_counts, drawn[2].bits_up_counts)


@pytest.mark.parametrize(
    "environment", [Sphere(dimension=3, actions=6), FixedSet(dimension=3, actions=6)]
)
def test_curves_played_together_equal_curves_played_alone(environment):
    budget = {"epsilon": 5.0, "delta": 0.01}
    tables = [
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
    curves = [{"label": f"curve {i}", **table} for i, table in enumerate(tables)]
    keys = {"horizon": 31, "silos": 1, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(environment, curves=curves, threads=2, **keys)
    for curve in curves:
        alone = fastfed.simulate(environment, curves=[curve], threads=1, **keys).curves[0]
        np.testing.assert_array_equal(
            alone.group_regret, together[curve["label"]].group_regret, err_msg=str(curve)
        )


def test_without_noise_batches_of_linucb_are_those_of_fedlinucb():
    """One silo of the federation, lazily, under the same radius."""
    sizes = {"silos": 1, "horizon": 40, "batch_size": 6}
    environment = Sphere(dimension=3, actions=6)
    (one,), (other,) = (
        both(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb", "none")
    )
    np.testing.assert_array_equal(one.actions, other.actions)
    np.testing.assert_array_equal(one.total, other.total)


def test_every_round_without_noise_is_a_silo_alone():
    sizes = {"silos": 1, "horizon": 40, "batch_size": 1}
    environment = Sphere(dimension=3, actions=6)
    (one,), (other,) = (
        both(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb", "local")
    )
    np.testing.assert_array_equal(one.actions, other.actions)
    np.testing.assert_array_equal(one.group_regret, other.group_regret)


@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
def test_a_trusted_agent_is_the_central_protocol_of_one_silo(release):
    """Equal noise from equal budgets, and equal draws: the same rounds."""
    sizes = {"silos": 1, "horizon": 40, "batch_size": 3, "release": release}
    environment = Sphere(dimension=3, actions=6)
    (one,), (other,) = (
        both(experiment(environment, sizes | {"protocol": protocol}))[0]
        for protocol in ("linucb-jdp", "central")
    )
    np.testing.assert_array_equal(one.actions, other.actions)
    np.testing.assert_array_equal(one.total, other.total)
    assert one.bits_up[-1] == one.bits_down[-1] == 0 < other.bits_up[-1]


def test_what_travels():
    """Counted by the plan, against the messages of the users added up by hand."""
    sizes = {"silos": 1, "horizon": 20, "batch_size": 6, "dimension": 3, "actions": 4}
    entries = 3 + 6
    for protocol, each in (
        ("linucb", lambda plan: 0),
        ("linucb-jdp", lambda plan: 0),
        ("linucb-ldp", lambda plan: 64 * entries),
        ("linucb-sdp-amp", lambda plan: 64 * entries),
        # A bit travels with the label of its entry: 9 labels, 4 bits.
        ("linucb-sdp-vec", lambda plan: entries * plan.encoding.message_bits(0) * (1 + 4)),
    ):
        e = experiment(sphere(sizes), sizes | {"protocol": protocol})
        plan = e.curves[0].system.plan
        (fast,), _ = both(e)
        assert fast.bits_up[-1] == 3 * 6 * each(plan), protocol
        assert fast.bits_down[-1] == 0


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
def test_contenders_are_the_best_over_many_rounds(algorithm, keys, reward):
    """Eager play over rows that come again scores a few actions only, until it must look at all."""
    alone = algorithm == "linucb"
    e = make_experiment(
        name="contenders",
        environment=FixedSet(
            4, 60, RewardDistribution(reward, 0.5 if reward == "gaussian" else 0.0)
        ),
        curves=[{"label": "a", "algorithm": algorithm, **keys}],
        horizon=2500,
        silos=1 if alone else 2,
        seed=4,
        checkpoints=7,
    )
    (fast,), (readable,) = both(e)
    same(fast, readable)
    assert len(np.unique(fast.actions)) > 5


@pytest.mark.parametrize("count", [1, 2, 5, 31, 33, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_short_panel_of_bad_actions_is_not_beaten_by_its_padding(count, dtype):
    """All scores are far below 0, that of a zero vector: padding must not raise the bar."""
    rng = np.random.default_rng(count)
    actions = rng.normal(size=(count, 3)).astype(dtype)
    actions[:, 0] = -np.abs(actions[:, 0]) - 1
    theta = np.array([5.0, 0.1, -0.2])
    w = 0.01 * np.eye(3)
    scores = linalg.scores(actions, w, theta, 1.0, 0.5)
    assert scores.max() < -1
    for layout in (actions, np.asfortranarray(actions)):
        assert linalg.select(layout, w, theta, 1.0, 0.5)[0] == scores.argmax()
