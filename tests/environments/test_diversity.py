"""lambda_0 and C_0 of environments: the estimates against closed forms.

Statistical tests fail below p = 1e-6 (seeds are fixed); each says how many p-values it looks at.
"""

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import fastfed
from fastfed.environments import FixedSet, Gap, HardInstance, NoDiversity, Replay, Sphere
from fastfed.environments.instances import BATCHES, diversity, margin

RARE = 1e-6


def eigenvalue_p(actual, expected):
    """Return the p-value of an estimated simple eigenvalue, with its error from 20 batches."""
    return 2 * stats.t.sf(abs(actual.lambda_0 - expected) / actual.lambda_0_error, BATCHES - 1)


def bernstein(dimension, largest, rounds):
    """Return a bound on the deviation of all eigenvalues of a mean of x x', ||x|| <= 1.

    It fails with probability at most 1e-6. largest: the largest eigenvalue of the expectation.
    """
    logarithm = math.log(2 * dimension / RARE)
    return math.sqrt(2 * largest * logarithm / rounds) + 2 * logarithm / (3 * rounds)


def hard_constants(dimension, radius):
    """Return (lambda_0, C_0): the best action is not 0 in half of the rounds, by symmetry.

    C_0 is the density at 0 of |<z, theta*_block>|; this density decreases from 0 on.
    """
    inside = -math.expm1(-0.5)
    square = integrate.quad(lambda r: r**3 * math.exp(-(r**2) / 2), 0, 1)[0] / inside / 2
    line = integrate.quad(lambda y: math.exp(-(y**2) / 2), -1, 1)[0] / (2 * math.pi) / inside
    return 2 / dimension * square / 2, 2 * line / radius


def sphere_constants(actions):
    """Return (lambda_0, C_0) of the sphere with d = 4 and K actions.

    By Archimedes, a coordinate of a random point on the sphere is uniform, so the best action has
    the largest of K uniforms.
    """
    mean, mean_square = actions / (actions + 1), actions / (actions + 2)
    second_moment, first_moment = 4 * mean_square - 4 * mean + 1, 2 * mean - 1
    plane = np.linalg.eigvalsh([[second_moment, first_moment], [first_moment, 1]])[0]
    # The gap is the top spacing, P(gap <= e) = 1 - (1 - e)^K.
    return min(plane, (1 - second_moment) / 2) / 2, float(actions)


@pytest.mark.parametrize(("actions", "rounds"), [(1, 10_000), (2, 10_000), (5, 20_000)])
def test_the_spheres_constants(actions, rounds):
    """Compute one p-value a case; six standard errors are rarer than the limit."""
    actual = diversity(Sphere(4, actions), rounds=rounds)
    lambda_0, c_0 = sphere_constants(actions)
    if actions == 1:
        # Three equal eigenvalues, and no gap.
        assert (actual.margin, actual.margin_error) == (0.0, 0.0)
        assert abs(actual.lambda_0 - 1 / 6) < bernstein(4, 0.5, rounds) < 0.05
        return
    assert eigenvalue_p(actual, lambda_0) > RARE
    assert abs(actual.margin - c_0) < 6 * actual.margin_error < 0.8 * c_0


@pytest.mark.parametrize("dimension", [2, 8])
@pytest.mark.parametrize("radius", [0.05, None])
def test_the_hard_instances_constants(dimension, radius):
    """Compare with the closed forms; all eigenvalues are equal."""
    n = 20_000
    actual = diversity(HardInstance(dimension, radius), rounds=n, seed=2)
    lambda_0, c_0 = hard_constants(dimension, radius or 1 / math.sqrt(dimension))
    assert abs(actual.lambda_0 - lambda_0) < bernstein(dimension, lambda_0, n) < 0.5 * lambda_0
    assert abs(actual.margin - c_0) < 6 * actual.margin_error < 0.7 * c_0


def test_the_gaps_constants():
    """Compare two p-values. With two actions the gap is 0.1 + 0.1 (U + V)."""
    actual = diversity(Gap(1, 2), rounds=5000)
    square = 0.75**2 + 0.1**2 / 12
    assert eigenvalue_p(actual, square) > RARE

    def ratio(s):
        return (s * s / 2 if s <= 1 else 1 - (2 - s) ** 2 / 2) / (0.1 + 0.1 * s)

    peak = optimize.minimize_scalar(lambda s: -ratio(s), bounds=(0, 2), method="bounded")
    assert abs(actual.margin + peak.fun) < 6 * actual.margin_error < 0.1 * actual.margin
    wide = diversity(Gap(4, 3), rounds=5000)
    assert 0.5 * (1 - square) / 5 < wide.lambda_0 < (1 - square) / 5 * 1.1


def test_fixed_contexts_have_no_diversity():
    """Check that lambda_0 is 0 (rank one in every silo) and C_0 = 1 / gap = 1 (Proposition D.1)."""
    for silos in (1, 3):
        actual = diversity(NoDiversity(), silos=silos, rounds=200)
        assert (actual.lambda_0, actual.lambda_0_error) == (0.0, 0.0)
        assert (actual.margin, actual.margin_error) == (1.0, 0.0)
    environment = FixedSet(4, 10)
    best, second = np.sort(environment.open(0, 3, 1).round(0, 1)[1])[[-1, -2]]
    actual = diversity(environment, rounds=150, replicate=3)
    assert actual.lambda_0 < 1e-8
    assert (actual.margin, actual.margin_error) == (1 / (best - second), 0.0)


def replay_of_gaps(gaps, features):
    """Return a replay (silos, rounds) of two actions; the best one has these features."""
    gaps, features = np.asarray(gaps, float), np.asarray(features, float)
    contexts = np.stack([np.zeros_like(features), features], axis=2)
    rewards = np.stack([0.9 - gaps, np.full_like(gaps, 0.9)], axis=2)
    return Replay.from_arrays(contexts, rewards, sampling="in-order")


def test_the_worst_silo_decides():
    """Use a first silo that lacks one direction, and a second one with small gaps."""
    draw = np.random.default_rng(4)
    features = draw.choice([-1.0, 1.0], size=(2, 400, 2)) * np.array([[[0.1, 0.5]], [[0.5, 0.5]]])
    gaps = np.array([[0.5], [0.25]]) + np.zeros((2, 400))
    actual = diversity(replay_of_gaps(gaps, features), silos=2, rounds=400)
    first = np.linalg.eigvalsh(features[0].T @ features[0] / 400)[0]
    assert actual.lambda_0 == pytest.approx(first, rel=1e-6) and first < 0.0101
    assert actual.margin == pytest.approx(4.0, rel=1e-6)


def test_one_tie_makes_the_margin_infinite():
    gaps = np.full((1, 200), 0.5)
    features = np.ones((1, 200, 1)) * 0.5
    assert diversity(replay_of_gaps(gaps, features), rounds=200).margin == pytest.approx(2.0)
    gaps[0, 77] = 0.0
    # The best action of that round is the first of the two, whose features are 0.
    actual = diversity(replay_of_gaps(gaps, features), rounds=200)
    assert (actual.margin, actual.margin_error) == (math.inf, 0.0)
    assert actual.lambda_0 == pytest.approx(0.25 * 199 / 200)


def test_the_margin_is_the_largest_ratio():
    """Check the ratio of a rank's share to its gap, from rank 100 on; equal gaps count together."""
    gaps = np.repeat([0.1, 0.2, 1.0], [150, 450, 400])
    expected = max(0.15 / 0.1, 0.6 / 0.2, 1.0)
    value, error = margin(gaps)
    assert value == expected
    assert error == pytest.approx(expected * math.sqrt(0.4 / 0.6 / 1000))
    assert margin(np.repeat([1e-9, 1.0], [99, 901]))[0] == 1.0
    assert margin(np.repeat([1e-9, 1.0], [100, 900]))[0] == pytest.approx(0.1 / 1e-9)
    assert margin(np.full(100, np.inf)) == (0.0, 0.0)
    assert margin(np.repeat([0.5, np.inf], [200, 200]))[0] == 1.0


@pytest.mark.parametrize("world", [Sphere(4, 2), HardInstance(4)], ids=lambda world: world.kind)
def test_the_errors_are_those_that_repetitions_show(world):
    """Compare the variances of 40 seeds with the stated errors by chi-square.

    The margin is the largest of many ratios, so its spread may be only half the stated error.
    """
    actual = [diversity(world, rounds=1000, seed=seed) for seed in range(40)]
    low, high = stats.chi2.ppf([RARE / 2, 1 - RARE / 2], 39) / 39
    values = np.array([(f.lambda_0, f.margin) for f in actual]).var(axis=0, ddof=1)
    errors = np.array([(f.lambda_0_error, f.margin_error) for f in actual])
    eigenvalue, ratio = values / (errors**2).mean(axis=0)
    assert low < eigenvalue < high and low / 4 < ratio < high
    # Both estimates are biased to the safe side, by at most three standard errors.
    lambda_0, c_0 = sphere_constants(2) if world.kind == "sphere" else hard_constants(4, 0.5)
    mean = np.mean([(f.lambda_0, f.margin) for f in actual], axis=0)
    scale = np.sqrt((errors**2).mean(axis=0))
    assert lambda_0 - 3 * scale[0] < mean[0] < lambda_0 + scale[0]
    assert c_0 - scale[1] < mean[1] < c_0 + 3 * scale[1]


def test_diversity_is_a_function_of_its_arguments():
    environment = HardInstance(2)
    first, second = (diversity(environment, rounds=300, seed=1, replicate=2) for _ in range(2))
    assert first == second
    assert diversity(environment, rounds=300, seed=2, replicate=2) != first
    assert diversity(environment, rounds=300, seed=1, replicate=3) != first


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"rounds": 99}, "rounds must be an integer >= 100 .*, got 99"),
        ({"silos": 0}, "silos must be an integer >= 1 .*, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0 .*, got -1"),
        ({"replicate": -1}, "replicate must be an integer >= 0 .*, got -1"),
    ],
)
def test_bad_arguments_are_refused(keys, sentence):
    with pytest.raises(fastfed.InputError, match=sentence):
        diversity(Sphere(), **keys)


def test_what_is_no_environment_or_too_short_is_refused():
    with pytest.raises(fastfed.InputError, match="environment must be an environment"):
        diversity({"kind": "sphere"})
    short = replay_of_gaps(np.full((1, 150), 0.5), np.ones((1, 150, 1)))
    with pytest.raises(fastfed.InputError, match="150"):
        diversity(short, rounds=151)
