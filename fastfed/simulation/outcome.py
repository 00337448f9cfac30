"""What a played replicate of one curve leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """One curve, one replicate."""

    group_regret: np.ndarray  # (checkpoints,): cumulative, summed over silos
    clipped_features: int
    clipped_rewards: int
    indefinite: int
    total: np.ndarray  # (s,): the synchronised statistics at the end
    actions: np.ndarray | None = None  # (M, T) int32, when recorded
    rewards: np.ndarray | None = None  # (M, T), before clipping, when recorded


def checkpoint_rounds(horizon: int, count: int) -> np.ndarray:
    """About ``count`` evenly spaced rounds, the last one always among them, (C,) int64."""
    count = min(count, horizon)
    # Whole-number ceilings: floating ones can land on a round past the last.
    return -(-np.arange(1, count + 1, dtype=np.int64) * horizon // count)
