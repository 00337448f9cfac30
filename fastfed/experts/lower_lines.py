"""What no algorithm does better than, to be drawn beside curves of linear losses."""

from __future__ import annotations

import numpy as np

from fastfed.experts.plan import ExpertPlan
from fastfed.experts.setting import Setting


def lower_lines(
    plan: ExpertPlan,
    setting: Setting,
    rounds: np.ndarray,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> dict[str, list[float]]:
    """Lower bounds of expected group regret at rounds (C,), each for the worst of its adversaries.

    "theorem-2-4": fair coins, the same at all clients, whatever is played; of regret in hindsight,
    for in expectation no coin is better than another. "hidden-expert": what privacy costs where all
    experts but one lose in every round.
    """
    from fastfed.experts import bounds

    m, d = plan.silos, plan.experts
    found = {}
    if not setting.iid:
        found["theorem-2-4"] = [m * bounds.theorem_2_4(int(t), d) for t in rounds]
    if epsilon is not None:
        found["hidden-expert"] = [
            m * bounds.hidden_expert(int(t), m, d, epsilon, delta=delta).regret for t in rounds
        ]
    return found
