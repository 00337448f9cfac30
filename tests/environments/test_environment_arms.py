"""Arms without contexts: the means, the rewards and the messages."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fastfed._validate import InputError
from fastfed.environments import Arms, environment_from_spec

RARE = 1e-6


def test_every_silo_is_offered_the_unit_vectors_in_every_round() -> None:
    means = (0.1, 1.0, 0.0)
    opened_environment = Arms(means=means).open(3, 1, 4)
    for silo in range(4):
        for t in (1, 2, 20_000):
            x, mean = opened_environment.round(silo, t)
            np.testing.assert_array_equal(x, np.eye(3))
            np.testing.assert_array_equal(mean, means)


def test_drawn_means_are_uniform_and_differ_between_replicates() -> None:
    """Compute one p-value."""
    environment = Arms(actions=5)
    means = np.array([environment.theta(2, replicate) for replicate in range(600)])
    assert means.shape == (600, 5) and len(np.unique(means)) == 3000
    assert stats.kstest(means.ravel(), stats.uniform.cdf).pvalue > RARE
    np.testing.assert_array_equal(environment.theta(2, 9), means[9])
    np.testing.assert_array_equal(environment.open(2, 9, 3).round(2, 5)[1], means[9])
    assert not np.isin(environment.theta(3, 0), means).any()


def test_rewards_are_bernoulli_with_the_mean_of_the_arm() -> None:
    """Compute one p-value for each arm."""
    means = (0.05, 0.5, 0.9)
    opened_environment = Arms(means=means).open(0, 0, 2)
    for mean in means:
        rewards = [
            opened_environment.reward(silo, t, mean) for silo in range(2) for t in range(1, 3001)
        ]
        assert set(rewards) == {0.0, 1.0}
        assert stats.binomtest(int(sum(rewards)), len(rewards), mean).pvalue > RARE
    certain = Arms(means=(0.0, 1.0)).open(0, 0, 1)
    assert {certain.reward(0, t, 0.0) for t in range(1, 200)} == {0.0}
    assert {certain.reward(0, t, 1.0) for t in range(1, 200)} == {1.0}


def test_facts() -> None:
    facts = Arms(means=[0.9, 0.8, 0.7]).facts(4, 100)
    assert (facts.dimension, facts.actions) == (3, 3)
    assert facts.arms and not facts.linear and not facts.contexts_made
    assert facts.reward.kind == "bernoulli" and facts.reward_range == (0.0, 1.0)
    assert Arms().facts(1, 1).actions == 10
    assert Arms(means=[0.9, 0.8]).describe() == Arms(means=(0.9, 0.8)).describe()
    assert Arms(means=np.array([0.25, 0.5])) == Arms(means=[0.25, 0.5])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"means": [0.5, 1.5]}, r"means\[1\] must be >= 0 and <= 1, got 1.5"),
        ({"means": [0.5, -0.1]}, r"means\[1\] must be >= 0 and <= 1, got -0.1"),
        ({"means": [0.5, float("nan")]}, r"means\[1\] must be"),
        ({"means": ["half", 0.5]}, r"means\[0\] must be"),
        ({"means": [0.5]}, "means must hold from 2 to 1000 numbers"),
        ({"means": "0.5, 0.6"}, "means must be a list of numbers"),
        ({"means": 0.5}, "means must be a list of numbers"),
        ({"actions": 1}, "actions must be an integer >= 2"),
        ({"actions": 1001}, "actions must be an integer >= 2 and <= 1000"),
        ({"means": [0.1, 0.2], "actions": 2}, "give either means or actions"),
        ({"reward": {"kind": "gaussian"}}, 'unknown key "reward" for environment "arms"'),
        ({"dimension": 3}, 'unknown key "dimension" for environment "arms"'),
    ],
)
def test_invalid_keys_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        environment_from_spec({"kind": "arms", **keys})
