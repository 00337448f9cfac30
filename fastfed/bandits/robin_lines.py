"""ROBIN's bounds along a run: what a figure may draw beside a curve, by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfed.bandits.robin_bounds import proposition_d_1, theorem_4_5, theorem_5_3
from fastfed.bandits.setting import Setting


def lower(keys: Any, setting: Setting, rounds: np.ndarray) -> dict[str, list[float]]:
    """Lower bounds with epsilon of the curve, hidden constants taken as 1.

    Theorem 4.5 for a trusted server, Theorem 5.3 for none, where the margin constant is known; and
    Proposition D.1 for the one silo whose context nobody shares, without diversity.
    """
    sizes = setting.silos, setting.dimension, keys.epsilon, keys.margin
    alone = [proposition_d_1(int(t), keys.epsilon, keys.delta) for t in rounds]
    if keys.margin is None:
        return {"proposition-d-1": alone}
    return {
        "theorem-4-5": [theorem_4_5(int(t), *sizes) for t in rounds],
        "theorem-5-3": [theorem_5_3(int(t), *sizes) for t in rounds],
        "proposition-d-1": alone,
    }
