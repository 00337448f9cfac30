"""Audits of mechanisms that choose experts, and of faults planted in them."""

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

BUDGET = Budget(1.0, 0.0)

Audit = Callable[[int, int], AuditResult]

# ---- noisy argmin -------------------------------------------------------------------------------


def _noisy_argmin(name: str, scale: float, gap: float, trials: int, seed: int) -> AuditResult:
    """Audit two candidates, `gap` apart, that move towards each other by 1 each."""
    mechanism = NoisyArgmin(scale)
    draw = np.random.default_rng(check_seed(seed))
    worlds = [np.array([gap, 0.0]), np.array([gap - 1.0, 1.0])]
    logs = [mechanism.log_probabilities(scores) for scores in worlds]

    def simulate(world: int, n: int) -> np.ndarray:
        noise = laplace_quantile(open_uniforms(draw, (n, 2)))
        chosen = [mechanism.choose(worlds[world], row) for row in noise]
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

# Two experts, compared after every round. The first expert loses less than the threshold
# until a round in which all clients lose with both experts, then another one: each brings a switch.
_QUIET, _CLIENTS, _LEVEL = 10, 100, 1.5
# Losses of the two experts in round 0 for the client whose loss is replaced; others lose nothing.
_FIRST = ((0.0, 1.0), (1.0, 0.0))


def _losses(world: int) -> np.ndarray:
    """Sums of all clients' losses (rounds, 2)."""
    sums = np.zeros((_QUIET + 2, 2))
    sums[_QUIET:] = _CLIENTS
    sums[0] = _FIRST[world]
    return sums


def switches_of(
    mechanism: SparseSwitching, losses: np.ndarray, level: float, uniforms: np.ndarray
) -> tuple[tuple[int, int], ...]:
    """Simulate the switches (round, expert) of a run from expert 0 on sums of losses (rounds, 2).

    uniforms: (switches, rounds + 2) in (0, 1), a row for each switch: the threshold's, the
    queries', the choice's.
    """
    comparisons, choices = mechanism.comparisons, mechanism.choices
    start, expert = 0, 0
    found: list[tuple[int, int]] = []
    for row in uniforms[: mechanism.switches]:
        queries = np.cumsum(losses[start:, expert])
        crossing = comparisons.first_above(queries, level, row[: len(queries) + 1])
        if crossing is None:
            break
        start += crossing + 1
        expert = choices.choose(losses[:start].sum(axis=0), row[-1])
        found.append((start, expert))
    return tuple(found)


def log_probability(
    mechanism: SparseSwitching,
    losses: np.ndarray,
    switches: tuple[tuple[int, int], ...],
    crossings: Callable[[int, int], np.ndarray],
) -> float:
    """Compute ln of the probability that `switches_of` ends with these switches.

    crossings(start, expert): log_crossing_probabilities of the comparisons from round `start` on.
    """
    start, expert, total = 0, 0, 0.0
    for after, chosen in switches:
        total += crossings(start, expert)[after - start - 1]
        scores = losses[:after].sum(axis=0)
        total += mechanism.choices.log_probabilities(scores)[chosen]
        start, expert = after, chosen
    if len(switches) < mechanism.switches:
        total += crossings(start, expert)[-1]
    return float(total)


def crossing_distributions(
    mechanism: SparseSwitching, losses: np.ndarray, level: float
) -> Callable[[int, int], np.ndarray]:
    """Return the crossing distributions that `log_probability` needs, each computed once."""

    @cache
    def crossing(start: int, expert: int) -> np.ndarray:
        queries = np.cumsum(losses[start:, expert])
        return mechanism.comparisons.log_crossing_probabilities(queries, level)

    return crossing


def _sparse_switching(name: str, threshold_noise: bool, trials: int, seed: int) -> AuditResult:
    """Audit one replaced loss of the first segment, by the likelihood ratio of all switches.

    Without noise on the threshold, as gao-2024's Algorithm 5 prints the comparison (line 9), each
    comparison below the threshold tells of the loss anew.
    """
    claimed = calibrate_switching(BUDGET, switches=2)
    mechanism = claimed
    if not threshold_noise:
        mechanism = msgspec.structs.replace(claimed, threshold_scale=1e-9)
    draw = np.random.default_rng(check_seed(seed))
    worlds = [_losses(world) for world in (0, 1)]
    crossings = [crossing_distributions(mechanism, losses, _LEVEL) for losses in worlds]

    @cache
    def ratio(switches: tuple[tuple[int, int], ...]) -> float:
        first, second = (
            log_probability(mechanism, losses, switches, crossing)
            for losses, crossing in zip(worlds, crossings, strict=True)
        )
        return second - first

    def simulate(world: int, n: int) -> np.ndarray:
        uniforms = open_uniforms(draw, (n, claimed.switches, len(worlds[0]) + 2))
        return np.array([ratio(switches_of(mechanism, worlds[world], _LEVEL, u)) for u in uniforms])

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=claimed.exact(),
        delta=BUDGET.delta,
        trials=trials,
    )


#: Name -> audit(trials, seed), with `trials` independent runs on each of two neighbouring datasets.
AUDITS: dict[str, Audit] = {
    # Gaps of three times the scale: the worse candidate is rare enough to tell much and frequent
    # enough to be counted.
    "noisy-argmin": partial(_noisy_argmin, "noisy-argmin", 2.0, 6.0),
    "sparse-switching": partial(_sparse_switching, "sparse-switching", True),
    # Lemma C.6 takes an argmin of scores of sensitivity 1 and noise of scale 1 for (1, 0)-private.
    "fault-noisy-argmin-printed": partial(_noisy_argmin, "fault-noisy-argmin-printed", 1.0, 3.0),
    "fault-sparse-switching-printed-threshold": partial(
        _sparse_switching, "fault-sparse-switching-printed-threshold", False
    ),
}

#: The audits that must end with "caught".
FAULTY = frozenset({"fault-noisy-argmin-printed", "fault-sparse-switching-printed-threshold"})

#: Runs on each dataset that make every verdict all but certain, within seconds.
TRIALS: dict[str, int] = {
    **dict.fromkeys(AUDITS, 20_000),
    **dict.fromkeys(("sparse-switching", "fault-sparse-switching-printed-threshold"), 8000),
}
