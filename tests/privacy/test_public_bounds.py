"""Bad arguments of public objects that reach compiled code: a sentence, never a crash."""

import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

import fastfed.environments as environments
from fastfed import InputError, LinUCB, kernels, off_policy
from fastfed.parties import SeededNoise, VectorSum
from fastfed.privacy import Budget, calibrate


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda n: n.node(0, 0, -6), "dimension must be an integer >= 1"),
        (lambda n: n.node(0, 0, 2**20), "dimension must be an integer >= 1 and <= 32768"),
        (lambda n: n.node(2**32, 0, 3), "silo must be an integer >= 0 and <= 4294967295"),
        (lambda n: n.node(0, 1.5, 3), "node must be an integer, got 1.5"),
        (lambda n: n.action(0, 1, 0), "count must be an integer >= 1"),
        (lambda n: n.action(0, 1, 2**40), "count must be an integer >= 1 and <= 2147483647"),
        (lambda n: n.random_u32(0, 1, -1), "count must be an integer >= 0"),
        (lambda n: n.laplace(0, -1, 2), "release must be an integer >= 0"),
        (lambda n: n.binomials(0, 1, 2, -4), "trials must be an integer >= 0"),
        (lambda n: n.point_binomials(0, 1, 64, 2, 4), "level must be an integer >= 0 and <= 63"),
        (lambda n: n.permutation(1, -2), "count must be an integer >= 0"),
        (lambda n: n.sample(0, 2**32, 2), "phase must be an integer >= 0 and <= 4294967295"),
        (lambda n: n.trigger(0, 1, 0), "dimension must be an integer >= 1"),
        (lambda n: n.uniforms(13, 1, -1), "count must be an integer >= 0"),
        (lambda n: n.shuffle_bits(1, 0, np.zeros(3)), "bits must be a vector of uint8"),
    ],
)
def test_noise_of_a_seed_checks_its_arguments(draw, message):
    with pytest.raises(InputError, match=message):
        draw(SeededNoise(1))


def test_numpy_integers_draw_what_integers_draw():
    noise = SeededNoise(1)
    draw = noise.node(np.int64(2), np.uint32(3), np.int32(4))
    assert draw.tobytes() == noise.node(2, 3, 4).tobytes()


@pytest.mark.parametrize(
    ("world", "silo", "round", "message"),
    [
        (environments.FixedSet(), 700_000_000, 1, "silo must be below 2"),
        (environments.NoDiversity(), 2, 1, "silo must be below 2"),
        (environments.NoDiversity(), -1, 1, "not negative, got -1"),
        (environments.Sphere(3, 4), 0, 2**32, r"round must be in \[0, 2\^32\), got"),
    ],
)
def test_environments_refuse_silos_and_rounds_out_of_range(world, silo, round, message):
    with pytest.raises(IndexError, match=message):
        world.open(1, 0, 2).round(silo, round)


@pytest.mark.parametrize("sampling", ["in-order", "without-replacement"])
def test_rows_sampled_once_end(sampling):
    contexts = np.arange(24.0).reshape(2, 3, 2, 2) / 48.0
    world = environments.Replay.from_arrays(contexts, np.full((2, 3, 2), 0.5), sampling)
    opened_environment = world.open(1, 0, 2)
    first = [opened_environment.round(1, t)[0].tolist() for t in (1, 2, 3)]
    assert len({str(row) for row in first}) == 3
    for round in (0, 4, 10**9):
        with pytest.raises(IndexError, match=r"round must be in \[1, 3\] at silo 1"):
            opened_environment.round(1, round)


@pytest.mark.parametrize(("silo", "round"), [(0, 6), (0, 0), (0, 10**9), (2, 1), (-1, 1)])
def test_losses_refuse_silos_and_rounds_out_of_range(silo, round):
    losses = environments.ObliviousLosses(losses=np.ones((5, 3))).open(1, 0, 2).losses
    assert losses.row(1, 5).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(IndexError, match="must be in"):
        losses.row(silo, round)
    with pytest.raises(TypeError, match="use row"):
        losses.value(0, 1, np.ones(3))


@pytest.mark.parametrize("rows", [[[1.0], [2.0], [1e80]], csr_array([[1.0], [2.0], [1e80]])])
def test_rows_are_learned_all_or_none(rows, monkeypatch):
    monkeypatch.setattr("fastfed.bandits.policy.MAX_BLOCK_ENTRIES", 1)  # a sparse row is a block
    agent = LinUCB(1)
    agent.observe_many([0.5], [[1.0]])
    before = agent.theta.tolist(), agent.round
    with pytest.raises(InputError):
        agent.observe_many(np.ones(3), rows)
    assert (agent.theta.tolist(), agent.round) == before
    agent.observe_many([0.5], [[1.0]])
    assert agent.round == before[1] + 1


def test_failed_calls_keep_no_reference_to_their_arrays():
    actions = np.lib.stride_tricks.as_strided(np.ones(1), (2**40, 1), (0, 0))
    factor = np.eye(1)
    before = sys.getrefcount(factor)
    for _ in range(3):
        with pytest.raises(MemoryError):
            kernels.ucb_scores(actions, factor, np.zeros(1), 1.0)
    assert sys.getrefcount(factor) == before


def test_empty_and_too_large_sizes():
    assert kernels.encode_bits([], 3).shape == (0, 3)
    assert kernels.tree_noise(1, [], 2, 1.0)[1].shape == (0, 2, 2)
    with pytest.raises(InputError, match="dimension must be an integer >= 1 and <= 32768"):
        kernels.tree_noise(1, [], 2**40, 1.0)
    with pytest.raises(InputError, match="a column for each action"):
        off_policy.inverse_propensity([0, 0], [1, 1], [0.5, 0.5], np.empty((2, 0)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"users": "x"}, "users must be an integer"),
        ({"users": -5}, "users must be an integer >= 1"),
        ({"dimension": -4}, "dimension must be an integer >= 1"),
    ],
)
@pytest.mark.parametrize("mechanism", ["gaussian", "noisy-points"])
def test_sizes_of_a_mechanism_are_checked(mechanism, sizes, message):
    with pytest.raises(InputError, match=message):
        calibrate(mechanism, Budget(1.0, 1e-6), 3, **sizes)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "noisy-argmin", "exponential"])
def test_noise_for_silo_privacy_needs_a_sensitivity(mechanism):
    budget = Budget(1.0, 1e-6, unit="silo")
    with pytest.raises(InputError, match="set sensitivity"):
        calibrate(mechanism, budget)
    noise_std = calibrate(mechanism, budget, sensitivity=20.0).noise_std
    assert noise_std == pytest.approx(
        calibrate(mechanism, Budget(1.0, 1e-6), sensitivity=20.0).noise_std, rel=1e-12
    )


@pytest.mark.parametrize(("users", "dimension"), [(3, 1), (1, 2), (3, 2)])
def test_the_shuffler_does_not_change_its_arguments(users, dimension):
    protocol = VectorSum(dimension, users, epsilon=1.0, delta=1e-3, seed=1)
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (users, dimension, protocol.message_bits)).astype(np.uint8)
    before = bits.copy()
    protocol.shuffle(bits)
    assert (bits == before).all()
