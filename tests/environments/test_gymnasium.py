"""Environments as Gymnasium environments: the protocol, and the numbers of simulations."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from fastfed import InputError, simulate
from fastfed.environments import Replay, StochasticLosses, environment_from_spec, to_gymnasium

gymnasium = pytest.importorskip("gymnasium")

SPHERE = environment_from_spec({"kind": "sphere", "dimension": 3, "actions": 5})
WORLDS = {
    "sphere": SPHERE,
    "gap": environment_from_spec({"kind": "gap", "dimension": 3, "actions": 4, "gap": 0.2}),
    "classification": environment_from_spec(
        {"kind": "classification", "data": "digits", "dimension": 4}
    ),
}


def unequal():
    """Return recorded rounds of two silos, some of which offer two of three actions."""
    draw = np.random.default_rng(3)
    mask = np.ones((2, 6, 3), bool)
    mask[:, ::2, 2] = False
    contexts = draw.normal(size=(2, 6, 3, 2)) / 4
    return Replay(contexts=contexts, rewards=draw.random((2, 6, 3)), mask=mask, sampling="in-order")


@pytest.mark.parametrize("name", WORLDS)
def test_gymnasium_s_own_check_passes(name):
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Neither a render mode nor an id of Gymnasium's registry is offered.
        warnings.filterwarnings("ignore", ".*not able to test alternative render modes.*")
        # Features of the sphere without an intercept have no bound.
        if not WORLDS[name].facts(2, 10).features_bounded:
            warnings.filterwarnings("ignore", ".*mum value is -?infinity.*")
        check_env(to_gymnasium(WORLDS[name], horizon=10, silos=2), skip_render_check=True)


@pytest.mark.parametrize("silo", [0, 2])
def test_random_agents_see_the_rounds_and_the_regret_of_simulations(silo):
    env = to_gymnasium(SPHERE, horizon=200, silos=3, silo=silo, seed=7)
    opened_environment = [SPHERE.open(7, replicate, 3) for replicate in range(2)]
    rewards, regrets = [], []
    for number in range(400):
        features, info = env.reset()
        replicate, round = divmod(number, 200)
        assert (info["replicate"], info["round"]) == (replicate, round + 1)
        rows, means = opened_environment[replicate].round(silo, round + 1)
        assert (features == rows.astype(np.float32)).all() and info["action_mask"].all()
        action = number % 5
        _, reward, terminated, truncated, result = env.step(action)
        assert terminated and not truncated
        assert result["regret"] == means.max() - means[action]
        assert reward == opened_environment[replicate].reward(silo, round + 1, float(means[action]))
        rewards.append(reward)
        regrets.append(result["regret"])
    assert set(rewards) == {0.0, 1.0}
    # The regret of random actions at one of three silos in 200 rounds, as fastfed estimates it.
    expected, error = simulate(SPHERE, "random", silos=3, horizon=200).curves[0].random_regret
    assert abs(sum(regrets) / 2 - expected / 3) < 0.1 * expected / 3 + 5.0 * error


def test_a_seed_restarts_the_rounds_and_seeds_differ():
    env = to_gymnasium(SPHERE, horizon=20)
    first, _ = env.reset(seed=5)
    second, _ = env.reset()
    assert (first != second).any()
    assert (env.reset(seed=5)[0] == first).all() and (env.reset()[0] == second).all()
    assert (env.reset(seed=6)[0] != first).any()
    assert (to_gymnasium(SPHERE, horizon=20, seed=5).reset()[0] == first).all()


def test_rounds_with_fewer_actions_have_a_mask():
    env = to_gymnasium(unequal(), horizon=6, silo=1)
    features, info = env.reset()
    assert info["action_mask"].tolist() == [1, 1, 0] and (features[2] == 0.0).all()
    with pytest.raises(InputError, match="action must be an integer >= 0 and <= 1, got 2"):
        env.step(2)
    env.step(np.int64(1))
    assert env.reset()[1]["action_mask"].tolist() == [1, 1, 1]
    env.step(2)
    with pytest.raises(InputError, match="the episode has ended: call reset"):
        env.step(0)


def test_what_is_no_bandit_is_refused(monkeypatch):
    for wrong, message in (
        (StochasticLosses(experts=4), "has no rewards of chosen actions"),
        ("sphere", "environment must be an environment, such as"),
    ):
        with pytest.raises(InputError, match=message):
            to_gymnasium(wrong, horizon=10)
    with pytest.raises(InputError, match="silo must be an integer >= 0 and <= 1, got 2"):
        to_gymnasium(unequal(), horizon=6, silo=2)
    with pytest.raises(InputError, match="horizon must be <= 6"):
        to_gymnasium(unequal(), horizon=7)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match=r"pip install \"fastfed\[gymnasium\]\""):
        to_gymnasium(SPHERE, horizon=10)
