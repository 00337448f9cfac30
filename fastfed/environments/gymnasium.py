"""Environments as Gymnasium environments, so that agents of other libraries can use them.

A contextual bandit has one step per episode: `reset` shows the features of the next round, and
`step` takes an action and ends the episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import check_seed
from fastfed._validate import InputError, integer, show
from fastfed.environments.base import Environment, EnvironmentSpec

if TYPE_CHECKING:
    import gymnasium

MISSING = 'gymnasium is not installed: pip install "fastfed[gymnasium]"'


def to_gymnasium(
    environment: Environment,
    *,
    horizon: int,
    silos: int | None = None,
    silo: int = 0,
    seed: int = 0,
) -> gymnasium.Env[np.ndarray, np.int64]:
    """Return one silo of an environment as a Gymnasium environment.

    Contexts and expected rewards are the same as in simulations with the same seed and sizes.
    Rewards of a round do not depend on the actions of earlier rounds. There is no privacy: the
    agent sees raw features and rewards, and no certificate covers the agent.

    Parameters
    ----------
    environment : Environment
        An environment of bandits, from `fastfed.environments`.
    horizon : int
        T, the number of rounds. After them, the rounds of the next replicate follow.
    silos : int, optional
        M. It may be omitted if the data determine it; otherwise it is 1 by default.
    silo : int
        The silo that is simulated, in 0..M - 1.
    seed : int
        Seed of the simulation, until ``reset`` gets a seed.

    Returns
    -------
    gymnasium.Env
        Observations are the features of the actions, float32 (K, d), and actions are integers below
        K. ``reset()`` goes to the next round, and ``reset(seed=...)`` to the first round of
        replicate 0 of that seed. ``step`` ends the episode; its info has "regret", the expected
        reward of the best action minus that of the chosen one. If a round offers fewer than K
        actions, the other rows are 0. The key "action_mask" of the info of ``reset`` says which
        actions are offered, int8 (K,).

    Raises
    ------
    InputError
        If gymnasium is not installed, the environment produces losses of experts, or a value is out
        of range.
    """
    try:
        import gymnasium
    except ImportError:
        raise InputError(MISSING) from None
    if not hasattr(environment, "facts"):
        raise InputError(
            "environment must be an environment, such as fastfed.environments.Sphere(dimension=5, "
            f"actions=20), got {show(environment)}"
        )
    horizon = integer("horizon", horizon, at_least=1)
    if silos is None:
        silos = environment.natural_silos() or 1
    n_silos = integer("silos", silos, at_least=1)
    silo = integer("silo", silo, at_least=0, at_most=n_silos - 1)
    first_seed = check_seed(seed)
    facts = environment.facts(n_silos, horizon)
    if not isinstance(facts, EnvironmentSpec) or environment.kind == "log":
        raise InputError(
            f'environment "{environment.kind}" has no rewards of chosen actions: give an '
            "environment of bandits"
        )
    n_actions = facts.actions
    shape = (n_actions, facts.dimension)
    bound = 1.0 if facts.features_bounded else np.inf

    class Bandit(gymnasium.Env[np.ndarray, np.int64]):
        """One silo of an environment: one step per episode."""

        def __init__(self) -> None:
            # Coordinates of a unit vector may round to the next float32 above 1.
            high = np.nextafter(np.float32(bound), np.float32(np.inf))
            self.observation_space = gymnasium.spaces.Box(-high, high, shape, np.float32)
            self.action_space = gymnasium.spaces.Discrete(n_actions)
            self._start(first_seed)

        def _start(self, seed: int) -> None:
            """Set the state to before the first round of replicate 0 of this seed."""
            self._seed, self._replicate, self._round = seed, 0, 0
            self._means: np.ndarray | None = None
            self._open()

        def _open(self) -> None:
            """Open the environment of the replicate."""
            opened_environment = environment.open(self._seed, self._replicate, n_silos)
            assert isinstance(opened_environment, environments.Environment)
            self._opened = opened_environment

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[np.ndarray, dict[str, Any]]:
            """Go to the next round, or with ``seed`` to the first round of that seed.

            Return the features of the round's actions (K, d), and a dict with the numbers of
            replicate and round and the mask of offered actions.
            """
            super().reset(seed=seed)
            if seed is not None:
                self._start(check_seed(seed))
            if self._round == horizon:
                self._replicate, self._round = self._replicate + 1, 0
                self._open()
            self._round += 1
            rows, self._means = self._opened.round(silo, self._round)
            self._features = np.zeros(shape, np.float32)
            self._features[: len(rows)] = rows
            mask = (np.arange(n_actions) < len(rows)).astype(np.int8)
            place = {"replicate": self._replicate, "round": self._round}
            return self._features.copy(), {**place, "action_mask": mask}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            """Take an action in the current round, which ends the episode.

            Return the features, the reward, terminated = True, truncated = False, and a dict with
            the regret.
            """
            if self._means is None:
                raise InputError("the episode has ended: call reset, which shows the next round")
            means = self._means
            chosen = integer("action", action, at_least=0, at_most=len(means) - 1)
            self._means = None
            reward = self._opened.reward(silo, self._round, float(means[chosen]))
            regret = float(means.max() - means[chosen])
            return self._features.copy(), reward, True, False, {"regret": regret}

    return Bandit()
