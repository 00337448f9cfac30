"""What readers of results should know about an environment: random actions' regret, cautions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._kernels import environments
from fastfed.environments import EnvironmentSpec
from fastfed.protocols.plan import DelayedPlan
from fastfed.results.paired import mean_and_error

if TYPE_CHECKING:
    from fastfed.simulation.experiment import Problem

#: Number of replicates in which rounds are drawn. It does not depend on the replicates of a run, so
#: the estimate is the same in all parts of a run.
REPLICATES = 8
#: Largest and smallest number of rounds drawn in each of these replicates.
ROUNDS, FEWEST = 64, 8
#: Within these limits, the drawn rounds of a replicate have at most this number of features.
FEATURES = 125_000
#: Within these limits, at most this share of a run's agent-rounds is drawn in each of these
#: replicates, so that the estimate takes less time than a small run.
SHARE = 0.01
#: Environments that call a user's Python function in each round, which may be slow.
SLOW = ("python",)
#: Environments with features (u, 1) / sqrt(2), u on a sphere; in dimension 1 all are 1 / sqrt(2).
SPHERES = ("sphere", "fixed-set", "rotated")


def random_regret(problem: Problem, horizon: int, seed: int) -> tuple[float, float] | None:
    """Return an estimate of the group regret of uniformly random actions, from random rounds.

    Parameters
    ----------
    problem : Problem
        Environment and number of silos.
    horizon : int
        T, the number of rounds of each silo.
    seed : int
        Seed of the experiment.

    Returns
    -------
    (float, float) or None
        The estimate and its standard error. None for losses of experts, and for environments that
        call a Python function in every round.
    """
    if not isinstance(problem.facts, EnvironmentSpec) or problem.environment.kind in SLOW:
        return None
    features_of_round = problem.facts.actions * problem.facts.dimension
    agent_rounds = problem.silos * horizon
    count = min(ROUNDS, FEATURES // features_of_round, int(SHARE * agent_rounds))
    count = max(FEWEST, count)  # rounds drawn in each replicate
    means = []
    for replicate in range(REPLICATES):
        environment = problem.open(seed, replicate)
        assert isinstance(environment, environments.Environment)
        generator = np.random.default_rng((seed, replicate))
        silos = generator.integers(problem.silos, size=count)
        rounds = generator.integers(1, horizon, endpoint=True, size=count)
        gaps = []
        for silo, round in zip(silos.tolist(), rounds.tolist(), strict=True):
            _, expected_rewards = environment.round(silo, round)
            gaps.append(expected_rewards.max() - expected_rewards.mean())
        means.append(np.mean(gaps))
    mean, stderr = mean_and_error(np.array(means))
    return mean * agent_rounds, stderr * agent_rounds


def cautions(problem: Problem, plan: Any) -> list[str]:
    """Return sentences that warn readers of results about a curve; most curves have none.

    ``problem`` is the curve's problem, and ``plan`` its plan.
    """
    facts = problem.facts
    sentences = []
    if isinstance(plan, DelayedPlan) and not plan.arrivals.any():
        sentences.append(
            "the delay is so long that no reward arrives before the horizon: nothing is learned"
        )
    if getattr(facts, "actions", 0) == 1:
        sentences.append("there is only one action, so nothing is chosen and no curve has regret")
    elif problem.environment.kind in SPHERES and facts.dimension == 1:
        sentences.append(
            "dimension is 1, so all actions of the sphere are the same and no curve has regret"
        )
    if facts.real_records and problem.silos > 1 and problem.environment.natural_silos() is None:
        sentences.append(
            f"the data have no silos, so fastfed divided the records into {problem.silos} blocks "
            "of about equal size: real silos usually differ more, and sharing then gains less"
        )
    return sentences
