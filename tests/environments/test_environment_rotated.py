"""The rotated sphere: each silo's own theta, and the sphere itself at rotation 0.

Statistical tests fail below p = 1e-6 (seeds are fixed); each says how many p-values it looks at.
"""

import math

import numpy as np
import pytest
from scipy import stats
from test_drivers import assert_same_bits

import fastfed
from fastfed._kernels import rng
from fastfed._random import CONTEXT
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import reward_conditions
from fastfed.environments import RewardDistribution, Rotated, Sphere, environment_from_spec
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

RARE = 1e-6
SEED, SILOS = 5, 4


@pytest.mark.parametrize(("dimension", "actions"), [(3, 1), (3, 70), (4, 33), (10, 100), (41, 7)])
@pytest.mark.parametrize("rotation", [0.3, math.pi])
def test_a_round_is_the_formula_of_its_keyed_draws(dimension, actions, rotation):
    """Compare in float64 with the formula; float32 is accurate to about 1e-7."""
    environment = Rotated(dimension, actions, rotation)
    opened, thetas = environment.open(7, 3, SILOS), environment.thetas(7, 3, SILOS)
    free_dimension = dimension - 1
    for silo in (0, SILOS - 1):
        x, mean = opened.round(silo, 9)
        assert x.dtype == np.float32 and x.shape == (actions, dimension)
        g = rng.normals_f32(7, CONTEXT, 3, silo, 9, actions * free_dimension).astype(float)
        g = g.reshape(free_dimension, actions).T
        u = g / np.linalg.norm(g, axis=1, keepdims=True)
        expected = np.column_stack([u, np.ones(actions)]) / np.sqrt(2)
        np.testing.assert_allclose(x, expected, atol=3e-7)
        # Regret is exact: the means are those of the rounded features and of this silo's theta.
        np.testing.assert_allclose(mean, x.astype(float) @ thetas[silo], rtol=0, atol=1e-15)
        assert (mean > -1e-6).all() and (mean < 1 + 1e-6).all()


def test_every_silo_is_turned_by_the_angle():
    for rotation in (0.2, 1.0, math.pi):
        environment = Rotated(6, 5, rotation)
        common, own = environment.theta(1, 2), environment.thetas(1, 2, 50)
        assert (own[:, -1] == common[-1]).all()
        cosine = 2.0 * own[:, :-1] @ common[:-1]
        np.testing.assert_allclose(cosine, math.cos(rotation), atol=1e-14)
        np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1.0, atol=1e-14)
        apart = np.linalg.norm(own - common, axis=1)
        np.testing.assert_allclose(apart, math.sqrt(2) * math.sin(rotation / 2), atol=1e-14)


@pytest.mark.parametrize("dimension", [3, 4, 10])
def test_directions_are_uniform_and_independent(dimension):
    """Compute p-values over the silos of a replicate and over replicates."""
    world, n = Rotated(dimension, 2, math.pi / 2), dimension - 2

    def directions(replicate, silos):
        """Return each silo's direction of rotation, orthogonal to the common theta."""
        v = math.sqrt(2) * world.theta(SEED, replicate)[:-1]
        q, _ = np.linalg.qr(np.column_stack([v, np.eye(len(v))[:, : len(v) - 1]]))
        return math.sqrt(2) * world.thetas(SEED, replicate, silos)[:, :-1] @ q[:, 1:]

    over_silos = directions(0, 2000)
    over_replicates = np.array([directions(r, 1)[0] for r in range(1000)])
    for points in (over_silos, over_replicates):
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-12)
        for j in range(n):
            positive = int((points[:, j] > 0).sum())
            assert stats.binomtest(positive, len(points)).pvalue > RARE
            if n > 1:
                law = stats.beta(0.5, (n - 1) / 2)
                assert stats.kstest(points[:, j] ** 2, law.cdf).pvalue > RARE
    assert stats.spearmanr(over_silos[1:, 0], over_silos[:-1, 0]).pvalue > RARE


def test_first_silos_do_not_depend_on_the_number_of_silos():
    environment = Rotated(5, 6, 0.4)
    assert (environment.thetas(1, 0, 3) == environment.thetas(1, 0, 9)[:3]).all()
    assert not (environment.thetas(1, 0, 3) == environment.thetas(1, 1, 3)).any(axis=0)[:-1].any()
    few, many = environment.open(1, 0, 3), environment.open(1, 0, 9)
    for one, other in zip(few.round(2, 4), many.round(2, 4), strict=True):
        assert one.tobytes() == other.tobytes()
    assert few.round(2, 4)[1].tobytes() != Rotated(5, 6, 0.0).open(1, 0, 3).round(2, 4)[1].tobytes()
    with pytest.raises(IndexError, match="silo must be below 3"):
        few.round(3, 1)


@pytest.mark.parametrize("dimension", [1, 2, 10])
def test_without_rotation_it_is_the_sphere_bit_for_bit(dimension):
    turned, sphere = Rotated(dimension, 21, 0.0), Sphere(dimension, 21)
    one, other = turned.open(3, 1, SILOS), sphere.open(3, 1, SILOS)
    for silo in range(SILOS):
        for t in (1, 8):
            for expected, actual in zip(one.round(silo, t), other.round(silo, t), strict=True):
                assert expected.tobytes() == actual.tobytes()
    curves = [
        {"label": "alone", "algorithm": "local-linucb"},
        {"label": "together", "algorithm": "fedlinucb", "batch_size": 5},
    ]
    keys = {"curves": curves, "silos": SILOS, "horizon": 60, "replicates": 2}
    for expected, actual in zip(
        fastfed.simulate(turned, **keys).curves,
        fastfed.simulate(sphere, **keys).curves,
        strict=True,
    ):
        assert expected.group_regret.tobytes() == actual.group_regret.tobytes()


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian", "none"])
def test_both_drivers_agree(reward):
    law = RewardDistribution(reward, 0.5 if reward == "gaussian" else 0.0)
    e = make_experiment(
        name="rotated",
        environment=Rotated(4, 19, 0.7, law),
        curves=[
            {"label": "a", "algorithm": "fedlinucb", "batch_size": 4, "lazy": False},
            {"label": "b", "algorithm": "local-linucb"},
        ],
        horizon=50,
        silos=SILOS,
    )
    opened_environment = e.environment.open(e.seed, 0, SILOS)
    plans = [c.system.plan for c in e.curves]
    fast = compiled.run(opened_environment, plans, e.checkpoints, record=True)
    readable = server.run_steps(opened_environment, plans, e.checkpoints)
    for one, other in zip(fast, readable, strict=True):
        assert_same_bits(one, other)


def test_regret_is_against_the_silos_own_best():
    """Check that local agents learn their silo's theta, and that one common model does not."""
    curves = [
        {"label": "alone", "algorithm": "local-linucb"},
        {"label": "together", "algorithm": "fedlinucb", "batch_size": 10},
    ]
    late_regret = {}
    for rotation in (0.0, 0.8):
        environment = Rotated(4, 30, rotation, RewardDistribution("none"))
        result = fastfed.simulate(environment, curves=curves, silos=10, horizon=1500, replicates=2)
        for curve in result.curves:
            half = curve.group_regret[:, len(curve.rounds) // 2 - 1]
            late_regret[rotation, curve.label] = float((curve.group_regret[:, -1] - half).mean())
    assert late_regret[0.8, "alone"] < 2.0 * late_regret[0.0, "alone"]
    assert late_regret[0.8, "together"] > 20.0 * late_regret[0.0, "together"]


def test_facts():
    for rotation, silos, linear in ((0.0, 5, True), (0.2, 5, False), (0.2, 1, True)):
        facts = Rotated(4, 6, rotation).facts(silos, 100)
        assert (facts.linear, facts.linear_by_silo) == (linear, True)
        assert facts.multiplicity == 1 and not facts.features_bounded
        assert facts.reward_range == (0.0, 1.0)


def test_a_silo_alone_needs_no_common_theta():
    """Check that the proofs' condition fails for a federation and holds for a silo alone."""

    def holds(silos, **keys):
        problem = ProblemSpec(silos=silos, horizon=10, dimension=4, **keys)
        return reward_conditions(problem, None)[0].holds

    assert holds(7) and holds(1)
    assert holds(1, linear=False, linear_by_silo=True)
    assert not holds(2, linear=False, linear_by_silo=True)
    assert not holds(1, linear=False)


def test_from_a_spec_and_bad_values():
    environment = environment_from_spec({"kind": "rotated", "dimension": 4, "rotation": 0.4})
    assert environment == Rotated(4, 100, 0.4)
    assert environment.describe() == {
        "kind": "rotated",
        "dimension": 4,
        "actions": 100,
        "rotation": 0.4,
        "reward": {"kind": "bernoulli", "std": 0.0},
    }
    assert environment.memory(10, 100, 2) == 320
    for keys, says in (
        ({"dimension": 0}, "dimension must be an integer >= 1 and <= 32768, got 0"),
        ({"rotation": -0.1}, "rotation must be >= 0 and <= 3.14159, got"),
        ({"rotation": 3.2}, "rotation must be >= 0 and <= 3.14159, got"),
        ({"dimension": 2}, "rotation > 0 needs dimension >= 3, got 2"),
        ({"basis_actions": True}, 'unknown key "basis_actions"'),
    ):
        with pytest.raises(InputError, match=says):
            environment_from_spec({"kind": "rotated", **keys})
