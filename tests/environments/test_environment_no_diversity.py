"""The instance without diversity: what each silo sees, and what that costs.

Statistical tests fail below p = 1e-6 (seeds are fixed); each says how many p-values it looks at.
"""

import numpy as np
import pytest
from scipy import stats
from test_drivers import assert_same_bits, outcomes_of_both_drivers

import fastfed
from fastfed.environments import NoDiversity, RewardDistribution, environment_from_spec
from fastfed.simulation.experiment import make_experiment

RARE = 1e-6


def test_only_the_first_silo_sees_the_first_coordinate():
    opened, theta = NoDiversity().open(3, 1, 4), NoDiversity().theta(3, 1)
    for silo in range(4):
        for t in (1, 2, 20_000):
            x, mean = opened.round(silo, t)
            direction = np.eye(2)[min(silo, 1)]
            np.testing.assert_array_equal(x, [direction, -direction])
            np.testing.assert_array_equal(mean, x @ theta)
            assert sorted(mean) == [-0.5, 0.5]


def test_the_expected_rewards_are_the_papers():
    """Check that features are +-1/2 along a coordinate and theta* is in {-1, 1}^2."""
    for replicate in range(8):
        opened, signs = (
            NoDiversity().open(0, replicate, 2),
            np.sign(NoDiversity().theta(0, replicate)),
        )
        for silo, published in enumerate(([[0.5, 0], [-0.5, 0]], [[0, 0.5], [0, -0.5]])):
            np.testing.assert_array_equal(opened.round(silo, 1)[1], published @ signs)


def test_theta_is_one_of_four_equally_likely_vectors():
    """Compute one p-value over replicates."""
    theta = np.array([NoDiversity().theta(5, replicate) for replicate in range(2000)])
    assert (np.abs(theta) == 0.5).all()
    pattern = (theta > 0) @ [1, 2]
    assert stats.chisquare(np.bincount(pattern, minlength=4)).pvalue > RARE
    np.testing.assert_array_equal(NoDiversity().theta(5, 7), theta[7])
    other = np.array([NoDiversity().theta(6, replicate) for replicate in range(2000)])
    assert 0 < (theta != other).sum() < theta.size


def test_rewards_have_the_mean_of_the_law():
    """Compute one p-value; the environment's reward std is 1."""
    opened_environment = NoDiversity().open(0, 0, 1)
    draws = [opened_environment.reward(0, t, -0.5) for t in range(1, 5001)]
    assert stats.kstest(draws, stats.norm(-0.5, 1.0).cdf).pvalue > RARE


@pytest.mark.parametrize(
    "reward", [RewardDistribution("gaussian", 1.0), RewardDistribution("none")]
)
@pytest.mark.parametrize("silos", [1, 3])
def test_both_drivers_agree(silos, reward):
    e = make_experiment(
        name="no-diversity",
        environment=NoDiversity(reward),
        curves=[
            {"label": "a", "algorithm": "fedlinucb", "batch_size": 5, "lazy": False},
            {"label": "b", "algorithm": "local-linucb"},
            {"label": "c", "algorithm": "random"},
        ],
        horizon=60,
        silos=silos,
        checkpoints=5,
    )
    fast, readable = outcomes_of_both_drivers(e)
    for one, other in zip(fast, readable, strict=True):
        assert_same_bits(one, other)


def test_a_wrong_action_costs_one():
    """Check that regret counts wrong actions; without noise a silo plays at most one."""
    keys = {"silos": 3, "horizon": 400, "replicates": 4}
    (chance,) = fastfed.simulate(NoDiversity(), "random", **keys).curves
    assert (chance.group_regret == np.round(chance.group_regret)).all()
    # Five standard deviations of 1200 coins, in 4 replicates.
    assert np.abs(chance.group_regret[:, -1] - 600).max() < 5 * np.sqrt(300)
    quiet = NoDiversity(RewardDistribution("none"))
    (learnt,) = fastfed.simulate(quiet, "local-linucb", clip=False, **keys).curves
    assert (learnt.group_regret[:, -1] <= 3).all() and learnt.group_regret[:, -1].any()
    # Clipping to [0, 1] turns -1/2 into 0, from which nothing can be learnt.
    (clipped,) = fastfed.simulate(quiet, "local-linucb", **keys).curves
    np.testing.assert_array_equal(
        clipped.group_regret[:, -1],
        [400 * int((quiet.theta(0, r)[[0, 1, 1]] < 0).sum()) for r in range(4)],
    )


def test_facts_description_and_spec():
    facts = NoDiversity().facts(3, 100)
    assert (facts.dimension, facts.actions, facts.reward_range) == (2, 2, None)
    assert facts.linear and facts.features_bounded and not facts.contexts_made
    assert NoDiversity(RewardDistribution("none")).facts(3, 100).reward_range == (-0.5, 0.5)
    assert NoDiversity().natural_silos() is None
    environment = environment_from_spec({"kind": "no-diversity", "reward": {"kind": "gaussian"}})
    assert environment == fastfed.environments.NoDiversity()
    assert environment.describe() == {
        "kind": "no-diversity",
        "reward": {"kind": "gaussian", "std": 1.0},
    }


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"dimension": 4}, 'unknown key "dimension" for environment "no-diversity"'),
        ({"reward": {"kind": "bernoulli"}}, "expected rewards may be negative"),
        ({"reward": {"std": -1.0}}, r"reward.std must be > 0, got -1\.0"),
    ],
)
def test_bad_keys_are_refused(keys, sentence):
    with pytest.raises(fastfed.InputError, match=sentence):
        environment_from_spec({"kind": "no-diversity", **keys})
