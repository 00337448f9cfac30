# Types of the compiled module; the reasons behind each routine stand in src/*.h.
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._kernels.environments import Environment

CANDIDATES_SIZE: int
SKIP_BOUND_SIZE: int
RECOMPUTE_MAX: int

def share_from(seconds: float) -> float: ...
def snapshot_size(d: int) -> int: ...

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
    def numbers(self) -> np.ndarray: ...
    def resume(self, numbers: np.ndarray) -> None: ...
    def bonus_bounds(self) -> list[tuple[np.ndarray, np.ndarray]]: ...
