"""FedUCB's bounds along a run: what a figure may draw beside a curve, by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed.bandits.feducb_bounds import (
    proposition_1_appendix,
    theorem_1_two_terms,
    theorem_2_two_terms,
)
from fastfed.bandits.feducb_theory import Constants
from fastfed.bandits.setting import Setting


def centralised(
    keys: Any, setting: Setting, found: Constants, threshold: float, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Theorem 1 (its proof's two terms) and Proposition 1 (as the appendix has it), by round."""
    d, pair = setting.dimension, (found.rho_min, found.rho_max)
    law = found.kappa, setting.reward_scale, keys.failure_probability
    at = [int(t) for t in rounds]
    # The trigger's own M (rho_max - rho_min) I fires, too, and no proof counts that.
    proven = "" if pair[0] == pair[1] else ", proven without noise"
    regret = [theorem_1_two_terms(t, setting.silos, d, threshold, *pair, *law) for t in at]
    return {
        # Theorem 1 counts on each silo's own batch: it says nothing of lazy play.
        **({} if keys.lazy else {"theorem-1": regret}),
        f"synchronisations-proposition-1{proven}": [
            proposition_1_appendix(t, d, threshold, *pair) for t in at
        ],
    }


def decentralised(
    keys: Any,
    setting: Setting,
    found: Constants,
    threshold: float,
    sizes: Sequence[int],
    gamma: int,
    rounds: np.ndarray,
) -> dict[str, list[float]]:
    """Theorem 2 (its proof's sum over cliques of ``sizes`` and estimators), by round."""
    if keys.lazy:
        return {}
    pair = found.rho_min, found.rho_max
    law = found.kappa, setting.reward_scale, keys.failure_probability
    return {
        "theorem-2": [
            theorem_2_two_terms(int(t), sizes, setting.dimension, threshold, *pair, *law, gamma)
            for t in rounds
        ]
    }
