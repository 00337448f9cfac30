"""What a played replicate of one curve leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed.protocols.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """One curve, one replicate."""

    group_regret: np.ndarray  # (checkpoints,): cumulative, summed over silos
    # Counted as they happen, those at the end of the checkpoint's round included.
    synchronisations: np.ndarray  # (checkpoints,) int64: by each checkpoint
    bits_up: np.ndarray  # (checkpoints,) float64: sent by all silos by then
    bits_down: np.ndarray  # (checkpoints,) float64: sent to all silos by then
    total: np.ndarray  # (s,): what all know at the end, such as the synchronised statistics
    #: How often what a reader of the results should hear of has happened, by name.
    events: dict[str, int]
    actions: np.ndarray | None = None  # (M, T) int32, when recorded
    rewards: np.ndarray | None = None  # (M, T), before clipping, when recorded


def linear_events(indefinite: int, clipped_features: int, clipped_rewards: int) -> dict[str, int]:
    """The events of a bandit: noisy V that had to be shifted, clipped features and rewards."""
    return {
        "indefinite": indefinite,
        "clipped_features": clipped_features,
        "clipped_rewards": clipped_rewards,
    }


def sent(plan: Plan, synchronised: np.ndarray) -> dict[str, np.ndarray]:
    """What had been synchronised and sent by each checkpoint, as an Outcome keeps it."""
    return {
        "synchronisations": synchronised,
        "bits_up": np.array([plan.bits_up_of(int(k)) for k in synchronised], np.float64),
        "bits_down": np.array([plan.bits_down_of(int(k)) for k in synchronised], np.float64),
    }


def checkpoint_rounds(horizon: int, count: int) -> np.ndarray:
    """About ``count`` evenly spaced rounds, the last one always among them, (C,) int64."""
    count = min(count, horizon)
    # Whole-number ceilings: floating ones can land on a round past the last.
    return -(-np.arange(1, count + 1, dtype=np.int64) * horizon // count)
