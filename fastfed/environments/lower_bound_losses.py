"""The adversaries behind the lower bounds: clients that all meet the same losses learn no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._kernels import losses
from fastfed._validate import InputError, choice, integer
from fastfed.environments.base import described
from fastfed.environments.losses import (
    COMMON,
    Adversary,
    LossFacts,
    better_expert,
    chances,
    check_countable,
    check_experts,
)

THEOREMS = ("2.4", "2.7")


@dataclass(kw_only=True)
class LowerBoundLosses:
    """``theorem``: "2.4" or "2.7" of gao-2024.

    "2.4": every expert's loss is a fair coin in each round, the same at all clients (Theorem C.1,
    after Cesa-Bianchi and Lugosi 2006, Theorem 3.7). Whatever is played loses T/2 in expectation,
    and the best expert in hindsight less: regret per client does not fall with the clients.

    "2.7": in the first ``burst`` rounds all experts but a hidden one lose 1 at every client; from
    then on nobody loses. Nothing is lost by who finds the hidden one at once, which privacy
    forbids.
    """

    experts: int
    theorem: str = "2.4"
    burst: int | None = None
    kind = "lower-bound-losses"

    def __post_init__(self) -> None:
        check_experts(self.experts)
        choice("theorem", self.theorem, THEOREMS)
        if (self.theorem == "2.7") != (self.burst is not None):
            raise InputError('burst, a number of rounds, goes with theorem = "2.7"')
        if self.burst is not None:
            integer("burst", self.burst, at_least=1, at_most=2**32)

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> LossFacts:
        check_countable(silos, horizon, 1.0)
        return LossFacts(
            dimension=self.experts,
            optimal_loss=0.0 if self.theorem == "2.7" else None,
            multiplicity=silos,
            notes=(COMMON,) if silos > 1 else (),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        means = np.full(self.experts, 0.5 if self.theorem == "2.4" else 1.0)
        if self.theorem == "2.7":
            means[better_expert(seed, replicate, self.experts)] = 0.0
        return Adversary(
            losses.Coins(seed, replicate, silos, chances(means), common=True, last=self.burst)
        )

    def describe(self) -> dict[str, Any]:
        return described(self)
