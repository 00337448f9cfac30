# Types of the compiled module; the reasons behind each routine stand in src/*.h.
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._kernels.environments import Environment

CANDIDATES_SIZE: int
SKIP_BOUND_SIZE: int
RECOMPUTE_MAX: int

def snapshot_size(d: int) -> int: ...
def bonus_cache_size(d: int) -> int: ...

class Run:
    def __init__(
        self,
        environment: Environment,
        silos: int,
        horizon: int,
        checkpoints: np.ndarray,
        curves: Sequence[dict[str, Any]],
        threads: int,
        names: np.ndarray | None = None,
        phase: int = 0,
        stride: int = 1,
    ) -> None: ...
    def initialise(self) -> None: ...
    def simulate(self, first: int, last: int) -> None: ...
    def bonus_bounds(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]: ...

def bonus_factor(w: np.ndarray, c: float) -> tuple[np.ndarray, float] | None: ...

class Tracked:
    def __init__(
        self, rows: np.ndarray, w: np.ndarray, theta: np.ndarray, gamma: float
    ) -> None: ...
    def found(self) -> tuple[np.ndarray, tuple[float, float, float]]: ...
    def choose(self, beta: float) -> int: ...
    def observe(self, x: np.ndarray, y: float) -> None: ...
