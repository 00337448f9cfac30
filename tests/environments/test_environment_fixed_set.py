"""The fixed set: one draw of actions for a whole replicate."""

import numpy as np
import pytest
from test_drivers import assert_same_bits

import fastfed
from fastfed._validate import InputError
from fastfed.environments import FixedSet, RewardDistribution, Sphere, environment_from_spec
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

SEED, SILOS = 11, 3


def test_every_round_and_silo_has_the_same_set():
    opened_environment = FixedSet(4, 9).open(SEED, 0, SILOS)
    first, means = opened_environment.round(0, 1)
    assert first.shape == (9, 4) and first.dtype == np.float32
    for silo, round in ((0, 2), (1, 1), (2, 20_000)):
        rows, other_means = opened_environment.round(silo, round)
        np.testing.assert_array_equal(rows, first)
        np.testing.assert_array_equal(other_means, means)


def test_replicates_and_seeds_have_different_sets():
    actual = [
        FixedSet(4, 9).open(seed, replicate, 1).round(0, 1)[0]
        for seed, replicate in ((SEED, 0), (SEED, 1), (SEED + 1, 0))
    ]
    for i in range(3):
        for j in range(i):
            assert (actual[i][:, :-1] != actual[j][:, :-1]).all()


@pytest.mark.parametrize("basis", [False, True])
def test_rows_are_the_spheres_and_rewards_linear(basis):
    environment = FixedSet(5, 30, basis_actions=basis)
    rows, means = environment.open(SEED, 2, 1).round(0, 1)
    theta = environment.theta(SEED, 2)
    norms = np.ones(30)
    norms[4] = np.sqrt(0.5) if basis else 1.0
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), norms, atol=3e-7)
    np.testing.assert_allclose(rows.astype(np.float64) @ theta, means, atol=1e-7)
    assert np.linalg.norm(theta) == pytest.approx(1.0)
    assert (means >= 0.0).all() and (means <= 1.0).all()
    opened = Sphere(5, 30, basis_actions=basis).open(SEED, 2, 1)
    assert not any((opened.round(0, t)[0][-1] == rows[-1]).all() for t in range(1, 200))
    if basis:
        # The published code's e_j with their last entry set to 1, in units of sqrt 2.
        published = np.eye(5)
        published[:, -1] = 1.0
        np.testing.assert_allclose(rows[:5], published / np.sqrt(2), atol=1e-7)


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian", "none"])
def test_both_drivers_agree(reward):
    law = RewardDistribution(reward, 0.5 if reward == "gaussian" else 0.0)
    e = make_experiment(
        name="fixed",
        environment=FixedSet(3, 7, law),
        curves=[{"label": "a", "algorithm": "fedlinucb", "batch_size": 4, "lazy": False}],
        horizon=50,
        silos=SILOS,
    )
    opened_environment = e.environment.open(e.seed, 0, SILOS)
    plans = [c.system.plan for c in e.curves]
    (fast,) = compiled.run(opened_environment, plans, e.checkpoints, record=True)
    (readable,) = server.run_steps(opened_environment, plans, e.checkpoints)
    assert_same_bits(fast, readable)


def test_a_learner_settles_on_the_best_action():
    results = fastfed.simulate(
        FixedSet(3, 10, RewardDistribution("none")),
        "local-linucb",
        silos=1,
        horizon=2000,
        replicates=3,
    )
    (curve,) = results.curves
    late = curve.group_regret[:, -1] - curve.group_regret[:, len(curve.rounds) // 2]
    assert (late <= 0.5 * curve.group_regret[:, len(curve.rounds) // 2]).all()


def test_from_a_spec_and_bad_values():
    environment = environment_from_spec({"kind": "fixed-set", "dimension": 4, "actions": 6})
    assert environment == FixedSet(4, 6)
    assert environment.describe() == {
        "kind": "fixed-set",
        "dimension": 4,
        "actions": 6,
        "reward": {"kind": "bernoulli", "std": 0.0},
        "basis_actions": False,
    }
    facts = environment.facts(1, 100)
    assert facts.multiplicity == 1 and not facts.features_bounded and facts.linear
    for keys, says in (
        ({"dimension": 0}, "dimension must be an integer >= 1 and <= 32768, got 0"),
        ({"actions": 0}, "actions must be an integer >= 1 and "),
        ({"actions": 3, "basis_actions": True}, "basis_actions needs actions >= dimension"),
        ({"contexts": "shared"}, 'unknown key "contexts"'),
    ):
        with pytest.raises(InputError, match=says):
            environment_from_spec({"kind": "fixed-set", **keys})
