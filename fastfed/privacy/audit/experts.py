"""Audits of mechanisms that choose experts, and of planted faults.

Each audit simulates a mechanism on two neighbouring datasets, which are called world 0 and world 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import msgspec
import numpy as np

from fastfed._random import check_seed
from fastfed.privacy.audit.bounds import AuditResult, audit, open_uniforms
from fastfed.privacy.mechanisms.laplace import laplace_quantile
from fastfed.privacy.mechanisms.sparse_vector import (
    NoisyArgmin,
    SparseSwitching,
    calibrate_switching,
)
from fastfed.privacy.sensitivity import Budget

#: The claim that every audit of this module tests.
BUDGET = Budget(1.0, 0.0)

Audit = Callable[[int, int], AuditResult]

# ---- noisy argmin -------------------------------------------------------------------------------


def _noisy_argmin(name: str, scale: float, gap: float, trials: int, seed: int) -> AuditResult:
    """Audit `NoisyArgmin`, with Laplace noise of scale ``scale``, on two candidates.

    In world 0 the candidates' scores are ``gap`` and 0. In world 1 they are ``gap`` - 1 and 1.
    """
    mechanism = NoisyArgmin(scale)
    draw = np.random.default_rng(check_seed(seed))
    scores_by_world = [np.array([gap, 0.0]), np.array([gap - 1.0, 1.0])]
    logs = [mechanism.log_probabilities(scores) for scores in scores_by_world]

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios, world 1 against world 0, of n choices in ``world``."""
        noise = laplace_quantile(open_uniforms(draw, (n, 2)))
        chosen = [mechanism.choose(scores_by_world[world], row) for row in noise]
        result: np.ndarray = (logs[1] - logs[0])[chosen]
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        trials=trials,
    )


# ---- sparse switching ---------------------------------------------------------------------------

# Two experts, compared after every round. The first expert's loss stays below the threshold until
# the last two rounds, in which both experts have loss 1 at all clients. Each of these rounds causes
# a switch.
_QUIET_ROUNDS, _CLIENTS, _LEVEL = 10, 100, 1.5
# Losses of the two experts in round 0, for the client whose loss is replaced; others have loss 0.
_FIRST_LOSSES = ((0.0, 1.0), (1.0, 0.0))


def _losses(world: int) -> np.ndarray:
    """Return the losses (rounds, 2) of two experts, summed over all clients, on dataset ``world``.

    ``world`` is 0 or 1. The two datasets differ in one client's losses in round 0.
    """
    sums = np.zeros((_QUIET_ROUNDS + 2, 2))
    sums[_QUIET_ROUNDS:] = _CLIENTS
    sums[0] = _FIRST_LOSSES[world]
    return sums


def switches_of(
    mechanism: SparseSwitching, losses: np.ndarray, level: float, uniforms: np.ndarray
) -> tuple[tuple[int, int], ...]:
    """Return the switches of one simulated run, as a tuple of (round, new expert).

    The run starts with expert 0. The loss of the current expert is summed from the last switch on.
    When this sum plus noise exceeds the threshold ``level`` plus noise, a switch follows: the new
    expert, perhaps the same one, plays from the next round on, and (round, new expert) has the
    number of this next round, counted from 0.

    ``losses`` (rounds, 2) are the losses summed over all clients. ``uniforms``
    (switches, rounds + 2) in (0, 1) has a row for each switch: one number for the threshold, one
    for each query, and one for the choice.
    """
    comparisons, choices = mechanism.comparisons, mechanism.choices
    start, expert = 0, 0
    switches: list[tuple[int, int]] = []
    for row in uniforms[: mechanism.switches]:
        queries = np.cumsum(losses[start:, expert])
        crossing = comparisons.first_above(queries, level, row[: len(queries) + 1])
        if crossing is None:
            break
        start += crossing + 1
        expert = choices.choose(losses[:start].sum(axis=0), row[-1])
        switches.append((start, expert))
    return tuple(switches)


def log_probability(
    mechanism: SparseSwitching,
    losses: np.ndarray,
    switches: tuple[tuple[int, int], ...],
    crossings: Callable[[int, int], np.ndarray],
) -> float:
    """Return the logarithm of the probability that `switches_of` returns ``switches``.

    ``crossings(start, expert)`` (from `crossing_distributions`) returns log probabilities, for the
    noisy loss of ``expert`` summed from round ``start`` on. Entry i is for the event that this loss
    first exceeds the noisy threshold in round ``start`` + i, and the last entry for the event that
    it never does.
    """
    start, expert, total = 0, 0, 0.0
    for switch_round, chosen in switches:
        total += crossings(start, expert)[switch_round - start - 1]
        scores = losses[:switch_round].sum(axis=0)
        total += mechanism.choices.log_probabilities(scores)[chosen]
        start, expert = switch_round, chosen
    if len(switches) < mechanism.switches:
        total += crossings(start, expert)[-1]
    return float(total)


def crossing_distributions(
    mechanism: SparseSwitching, losses: np.ndarray, level: float
) -> Callable[[int, int], np.ndarray]:
    """Return the argument ``crossings`` of `log_probability`, which caches each distribution.

    ``losses`` (rounds, experts) are the losses summed over all clients, and ``level`` is the
    threshold.
    """

    @cache
    def crossing(start: int, expert: int) -> np.ndarray:
        """Return the log probabilities of the first crossing, see ``crossings``.

        Entry i is for the event that it is in round ``start`` + i, the last entry for the event
        that there is none.
        """
        queries = np.cumsum(losses[start:, expert])
        return mechanism.comparisons.log_crossing_probabilities(queries, level)

    return crossing


def _sparse_switching(name: str, threshold_noise: bool, trials: int, seed: int) -> AuditResult:
    """Audit `SparseSwitching` on datasets that differ in one client's losses in round 0.

    The statistic of a run is the log-likelihood ratio of all its switches. With
    ``threshold_noise`` False, a fault is planted: the threshold has practically no noise, as in
    line 9 of gao-2024's Algorithm 5 as printed. Then each comparison below the threshold reveals
    more about the loss.
    """
    claimed_mechanism = calibrate_switching(BUDGET, switches=2)
    mechanism = claimed_mechanism
    if not threshold_noise:
        mechanism = msgspec.structs.replace(claimed_mechanism, threshold_scale=1e-9)
    draw = np.random.default_rng(check_seed(seed))
    losses_by_world = [_losses(world) for world in (0, 1)]
    crossings = [crossing_distributions(mechanism, losses, _LEVEL) for losses in losses_by_world]

    @cache
    def ratio(switches: tuple[tuple[int, int], ...]) -> float:
        """Return the log-likelihood ratio of a run's switches, world 1 against world 0."""
        first, second = (
            log_probability(mechanism, losses, switches, crossing)
            for losses, crossing in zip(losses_by_world, crossings, strict=True)
        )
        return second - first

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of n runs in ``world`` (0 or 1)."""
        uniforms = open_uniforms(draw, (n, claimed_mechanism.switches, len(losses_by_world[0]) + 2))
        return np.array(
            [ratio(switches_of(mechanism, losses_by_world[world], _LEVEL, u)) for u in uniforms]
        )

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=claimed_mechanism.exact(),
        delta=BUDGET.delta,
        trials=trials,
    )


#: Name -> audit(trials, seed), with `trials` independent runs on each of two neighbouring datasets.
AUDITS: dict[str, Audit] = {
    # The gap of the scores is three times the scale of the noise. The worse candidate is then rare
    # enough for a large likelihood ratio, and frequent enough to be counted.
    "noisy-argmin": partial(_noisy_argmin, "noisy-argmin", 2.0, 6.0),
    "sparse-switching": partial(_sparse_switching, "sparse-switching", True),
    # Lemma C.6 treats an argmin with sensitivity 1 and noise of scale 1 as (1, 0)-private.
    "fault-noisy-argmin-printed": partial(_noisy_argmin, "fault-noisy-argmin-printed", 1.0, 3.0),
    "fault-sparse-switching-printed-threshold": partial(
        _sparse_switching, "fault-sparse-switching-printed-threshold", False
    ),
}

#: The audits that must end with "caught".
FAULTY = frozenset({"fault-noisy-argmin-printed", "fault-sparse-switching-printed-threshold"})

#: Number of runs on each dataset for which every verdict is nearly certain, within seconds.
TRIALS: dict[str, int] = {
    **dict.fromkeys(AUDITS, 20_000),
    **dict.fromkeys(("sparse-switching", "fault-sparse-switching-printed-threshold"), 8000),
}
