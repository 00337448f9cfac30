# Types of the compiled module; the comments in src/*.h explain the functions.
from collections.abc import Callable
from typing import Any

import numpy as np

IN_FUNCTION: str

class SimulationError(RuntimeError): ...

def status_error(status: int) -> SimulationError: ...

class Environment:
    seed: int
    replicate: int
    fixed: bool
    @property
    def dimension(self) -> int: ...
    @property
    def actions(self) -> int: ...
    def error(self) -> BaseException | None: ...
    def round(self, silo: int, round: int) -> tuple[np.ndarray, np.ndarray]: ...
    def reward(self, silo: int, round: int, mean: float) -> float: ...

class Sphere(Environment):
    def __init__(
        self,
        seed: int,
        replicate: int,
        theta: np.ndarray,  # (1, d), or (M, d)
        actions: int,
        basis_actions: int,
        shared: bool,
        reward: tuple[int, float],
        constant: float = ...,
    ) -> None: ...

class Gap(Environment):
    def __init__(
        self,
        seed: int,
        replicate: int,
        theta: np.ndarray,
        actions: int,
        inferior: float,
        best: float,
        width: float,
        reward: tuple[int, float],
    ) -> None: ...

class HardInstance(Environment):
    def __init__(
        self, seed: int, replicate: int, theta: np.ndarray, reward: tuple[int, float]
    ) -> None: ...

class QuantisedActions:
    buffer: np.ndarray | None
    starts: np.ndarray
    made: np.ndarray
    size: int
    def __init__(self, starts: np.ndarray, dimension: int) -> None: ...

class Directions:
    rows: np.ndarray
    def __init__(self, rows: np.ndarray) -> None: ...

class Pool(Environment):
    def __init__(
        self,
        seed: int,
        replicate: int,
        values: np.ndarray,
        dimension: int,
        feature_major: bool,
        means: np.ndarray,
        best: np.ndarray,
        starts: np.ndarray,
        silo_starts: np.ndarray,
        sampling: int,
        order: np.ndarray | None,
        reward: tuple[int, float],
        quantised: QuantisedActions | None = None,
        directions: Directions | None = None,
    ) -> None: ...
    def query(self, silo: int, round: int) -> int: ...

class Compiled(Environment):
    def __init__(
        self,
        seed: int,
        replicate: int,
        callback: Any,
        state: np.ndarray | None,
        dimension: int,
        actions: int,
        reward: tuple[int, float],
    ) -> None: ...

class Called(Environment):
    def __init__(
        self,
        seed: int,
        replicate: int,
        function: Callable[[int, int, int, int], Any],
        check: Callable[[Any], tuple[np.ndarray, np.ndarray]],
        dimension: int,
        actions: int,
        reward: tuple[int, float],
    ) -> None: ...

def parse_letor(
    text: bytes, limit: int, values: np.ndarray, relevance: np.ndarray, qid: np.ndarray
) -> tuple[int | None, int] | None: ...
