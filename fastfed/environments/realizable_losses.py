"""Losses among which one expert loses nothing, or little (gao-2024, Definition 2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fastfed._kernels import losses as loss_kernels
from fastfed._validate import integer, number
from fastfed.environments.base import described
from fastfed.environments.losses import (
    Adversary,
    LossFacts,
    better_expert,
    chances,
    check_countable,
    check_experts,
)


@dataclass(kw_only=True)
class RealizableLosses:
    """One expert never loses; all others lose 1 with chance ``mean`` in each round at each client.

    The coins are thrown in advance: an oblivious adversary. Which expert is the best one differs
    between replicates. Regret is what was lost less what the best expert lost.
    """

    experts: int
    mean: float = 0.5
    kind: ClassVar[str] = "realizable-losses"
    #: L*: in rounds 2, 4, ..., 2 L* the best expert loses 1 at every client.
    lost: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_experts(self.experts)
        number("mean", self.mean, at_least=0.0, at_most=1.0)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> LossFacts:
        check_countable(silos, horizon, 1.0)
        return LossFacts(dimension=self.experts, optimal_loss=float(self.lost))

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        best = better_expert(seed, replicate, self.experts)
        coins = chances(np.full(self.experts, self.mean))
        losses = loss_kernels.Coins(seed, replicate, silos, coins, planned=best, lost=self.lost)
        return Adversary(losses)

    def describe(self) -> dict[str, Any]:
        return described(self)


@dataclass(kw_only=True)
class NearRealizableLosses(RealizableLosses):
    """The same with a best expert that loses 1 at every client in ``optimal_loss`` = L* rounds: the
    second, the fourth, ..., when little is known yet."""

    optimal_loss: int
    kind: ClassVar[str] = "near-realizable-losses"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("optimal_loss", self.optimal_loss, at_least=0, at_most=2**32)

    @property
    def lost(self) -> int:  # type: ignore[override]
        return self.optimal_loss
