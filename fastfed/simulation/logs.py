"""Train systems on a log, and estimate the value of the policies that they learn.

Systems are trained message by message on the log's earlier rows: each silo is offered only the
logged action, and observes its reward. The learned policy chooses by the estimate <x, theta_hat>.
The value of a policy is its expected reward per round, estimated from the log's later rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.environments.log import Log
from fastfed.off_policy import PolicyValue, inverse_propensity, self_normalised
from fastfed.simulation.driver import Record, run_rounds
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.server import Federation

__all__ = ["LogValue", "LogValues", "evaluate"]

#: Names of the policies that every table has, besides the curves.
LOGGED, UNIFORM = "the log's own policy", "uniform"


class LogValue(msgspec.Struct, frozen=True):
    """The estimated value of a policy.

    Attributes
    ----------
    label : str
        The curve that learned the policy, or the name of a baseline.
    value : PolicyValue or None
        Estimate by inverse propensity weighting, which is unbiased if propensities are right and
        the logging policy can take every action. With several replicates, it is the value of the
        policy that first draws one of the replicates' policies at random. None if the policy takes
        no logged action.
    normalised : PolicyValue or None
        The self-normalised estimate.
    noise_std : float or None
        Standard deviation of the value over replicates, which differ in the noise for privacy.
    releases : int or None
        Number of releases in training.
    certificate : object or None
        Certificate of the training.
    """

    label: str
    value: PolicyValue | None
    normalised: PolicyValue | None
    noise_std: float | None = None
    releases: int | None = None
    certificate: Any = None


class LogValues(msgspec.Struct, frozen=True):
    """The values of all policies of an experiment.

    Attributes
    ----------
    name : str
        Name of the experiment.
    trained, evaluated : int
        Number of rows of all silos used for training, and number used for the estimates.
    silos, actions, replicates : int
        M, the number of silos; the largest number of actions in a round; the number of trainings of
        each curve.
    rows : list of LogValue
        One row for each policy.
    """

    name: str
    trained: int
    evaluated: int
    silos: int
    actions: int
    replicates: int
    rows: list[LogValue]

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        rows = [
            {
                **{key: getattr(row, key) for key in ("label", "noise_std", "releases")},
                "value": None if row.value is None else asdict(row.value),
                "normalised": None if row.normalised is None else asdict(row.normalised),
                "certificate": None if row.certificate is None else row.certificate.to_builtins(),
            }
            for row in self.rows
        ]
        return {**{key: getattr(self, key) for key in self.__struct_fields__}, "rows": rows}


def evaluate(experiment: Experiment, progress: Callable[[int], None] | None = None) -> LogValues:
    """Train each curve of an experiment on a log, and return estimated values of the policies.

    Parameters
    ----------
    experiment : Experiment
        An experiment whose environment is a `Log`.
    progress : callable, optional
        ``progress(n)`` is called after n further agent-rounds of training.

    Raises
    ------
    InputError
        If the environment is not a log, or a curve has no server, or changes the log or its silos.
    """
    log = experiment.environment
    if not isinstance(log, Log):
        raise InputError(f'environment must be of kind "log", got "{log.kind}"')
    # `parts` holds, for each silo, the rows for training and the rows for evaluation.
    rounds, parts = log.rounds(experiment.silos), log.parts(experiment.silos)
    for curve in experiment.curves:
        plan = curve.system.plan
        if getattr(plan, "driver", None) != "server" or plan.policy == "random":
            raise InputError(
                f'curve "{curve.label}" ({curve.algorithm}) cannot be trained on a log: use an '
                "algorithm of linear bandits with batches, such as private-fedlinucb"
            )
        if curve.problem is not experiment.problem:
            raise InputError(f'curve "{curve.label}" must not change the log or its silos')
    test_parts = [part for _, part in parts]
    test_rows = np.concatenate([np.arange(part.start, part.stop) for part in test_parts])
    counts = np.concatenate([rounds.counts(part, i) for i, part in enumerate(test_parts)])
    rewards, propensities = rounds.rewards[test_rows], rounds.propensities[test_rows]
    least_propensity = float(rounds.propensities.min())
    # The largest reward bounds estimates only if no reward is negative.
    largest_reward = log.reward_range[1] if log.reward_range[0] >= 0.0 else None

    def row_of(label: str, policies: list[np.ndarray], weight: float, **fields: Any) -> LogValue:
        """Return the table row of a policy.

        ``policies`` holds for each replicate the probabilities of the logged actions (n,).
        ``weight`` bounds the policy's probability of an action divided by the log's probability.
        """
        mean = np.mean(policies, axis=0)
        values = [float((p / propensities * rewards).mean()) for p in policies]
        estimates = _estimates(mean, rewards, propensities, largest_reward, weight)
        noise_std = None
        if len(values) > 1:
            noise_std = float(np.std(values, ddof=1)) if len(set(values)) > 1 else 0.0
        return LogValue(label, *estimates, noise_std, **fields)

    rows = [row_of(LOGGED, [propensities], 1.0)]
    rows.append(row_of(UNIFORM, [1.0 / counts], 1.0 / (least_propensity * int(counts.min()))))
    for curve in experiment.curves:
        plan, policies = curve.system.plan, []
        previous_thetas: list[np.ndarray] = []
        trainings_equal = False  # without noise all trainings are equal, so two suffice
        for replicate in experiment.replicate_numbers:
            noise = SeededNoise(experiment.seed, replicate)
            if replicate < 2 or not trainings_equal:
                thetas = _trained_thetas(log, plan, noise, progress)
                trainings_equal = replicate > 0 and all(
                    map(np.array_equal, thetas, previous_thetas)
                )
                previous_thetas = thetas
            elif progress is not None:
                progress(plan.silos * plan.horizon)
            policies.append(
                np.concatenate(
                    [
                        rounds.probabilities(part, i, thetas[i], log.top)
                        for i, part in enumerate(test_parts)
                    ]
                )
            )
        # A policy draws uniformly from its `log.top` best actions, or from all actions if there are
        # fewer.
        largest_weight = 1.0 / min(log.top, int(counts.min()))
        rows.append(
            row_of(
                curve.label,
                policies,
                largest_weight / least_propensity,
                releases=plan.releases,
                certificate=curve.system.certificate,
            )
        )
    return LogValues(
        name=experiment.name,
        trained=experiment.silos * experiment.horizon,
        evaluated=len(test_rows),
        silos=experiment.silos,
        actions=int(counts.max()),
        replicates=len(experiment.replicate_numbers),
        rows=rows,
    )


class _Training:
    """The training rows of a log, as rounds with one action each."""

    def __init__(self, log: Log, silos: int) -> None:
        self._rounds, self._rewards = log.rounds(silos), log.rounds(silos).rewards / log.scale
        self._first = [training.start for training, _ in log.parts(silos)]

    def round(self, silo: int, round: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the features (1, d) and the reward (1,) of the logged action."""
        row = self._first[silo] + round - 1
        return self._rounds.features(row)[None], self._rewards[row : row + 1]

    def reward(self, silo: int, round: int, mean: float) -> float:
        """Return the logged reward, which is not random."""
        return float(mean)


def _trained_thetas(
    log: Log, plan: Any, noise: SeededNoise, progress: Callable[[int], None] | None
) -> list[np.ndarray]:
    """Train a plan on a log, message by message; return the final theta_hat (d,) of each silo.

    ``noise`` is the source of all parties' noise. ``progress`` is called with agent-rounds.
    """
    federation = Federation(plan, noise)

    def end_round(_: int) -> int:
        """Exchange messages if a release is due; return the number of releases so far."""
        if federation.due:
            federation.exchange()
        if progress is not None:
            progress(plan.silos)
        return federation.server.release

    record = Record(plan.silos, plan.horizon, np.array([plan.horizon]))
    run_rounds(
        _Training(log, plan.silos), federation.players, record, plan.horizon, end_round, None
    )
    return [silo.theta for silo in federation.silos]


def _estimates(
    policy: np.ndarray,
    rewards: np.ndarray,
    propensities: np.ndarray,
    largest_reward: float | None,
    largest_weight: float,
) -> tuple[PolicyValue | None, PolicyValue | None]:
    """Return a policy's value as estimated by inverse propensities, and self-normalised.

    ``policy`` (n,) are the policy's probabilities of the logged actions, and ``propensities`` (n,)
    the logging policy's probabilities. ``largest_weight`` bounds the ratio of the two, and
    ``largest_reward`` bounds the rewards (None: no bound). Return (None, None) if the policy never
    takes a logged action.
    """
    if not policy.any():
        return None, None
    # Only the probability of the logged action matters. In `table` it is action 0, and all other
    # actions together are action 1.
    table = np.column_stack([policy, np.maximum(0.0, 1.0 - policy)])
    log = np.zeros(len(policy)), rewards, propensities, table
    limits: dict[str, Any] = {}
    if largest_reward is not None and largest_reward > 0.0:
        limits = {"largest_reward": largest_reward, "largest_weight": largest_weight}
    return inverse_propensity(*log, **limits), self_normalised(*log)
