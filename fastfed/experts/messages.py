"""What travels between clients and server of a federation that predicts from experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastfed._validate import InputError, array, integer
from fastfed.protocols.messages import frozen


@dataclass(frozen=True)
class ExpertReport:
    """What one client sends in one exchange, a number for each expert, (d,)."""

    release: int
    values: np.ndarray
    silo: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "silo", integer("silo", self.silo, at_least=0))
        object.__setattr__(self, "release", integer("release", self.release, at_least=1))
        object.__setattr__(self, "values", frozen(array("values", self.values, ndim=1)))

    @property
    def bits(self) -> int:
        """Bits on a wire: float64."""
        return 64 * len(self.values)


@dataclass(frozen=True)
class ExpertChoice:
    """What the server sends to all clients: an expert, or weights of all of them, (d,).

    Release 0 comes before the first round.
    """

    release: int
    expert: int | None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "release", integer("release", self.release, at_least=0))
        if (self.expert is None) == (self.weights is None):
            raise InputError("a choice has either an expert or weights")
        if self.expert is not None:
            object.__setattr__(self, "expert", integer("expert", self.expert, at_least=0))
            return
        weights = array("weights", self.weights, ndim=1)
        if not (weights >= 0.0).all() or abs(weights.sum() - 1.0) > 1e-9:
            raise InputError(f"weights must be >= 0 and add up to 1, got sum {weights.sum():g}")
        object.__setattr__(self, "weights", frozen(weights))
