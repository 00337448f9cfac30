from collections.abc import Callable
from typing import Any

import numpy as np

CHANCES: int
PARTS: int
MOST_THREADS: int
COURSE_EXPERTS: int
COURSE_SILOS: int
IN_FUNCTION: str

class LossError(RuntimeError): ...

def square_gradient(g: np.ndarray, x: np.ndarray) -> np.ndarray: ...

class Losses:
    seed: int
    replicate: int
    @property
    def silos(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def quadratic(self) -> bool: ...
    @property
    def unit(self) -> float: ...
    @property
    def has_rows(self) -> bool: ...
    def row(self, silo: int, round: int) -> np.ndarray: ...
    def sums(
        self, edges: np.ndarray, threads: int = 1, buffer: np.ndarray | None = None
    ) -> np.ndarray: ...
    def gradients(
        self,
        rounds: np.ndarray,
        x: np.ndarray,
        threads: int = 1,
        parent: np.ndarray | None = None,
        bounds: tuple[float, float, float] = ...,
    ) -> np.ndarray: ...
    def walk(
        self,
        rounds: np.ndarray,
        leaves: np.ndarray,
        release: int,
        x: np.ndarray,
        v: np.ndarray,
        points: np.ndarray,
        bounds: tuple[float, float, float],
        *,
        linear: bool,
        noise_by: str,
        threads: int = 1,
    ) -> np.ndarray: ...
    def excess(
        self, first: int, last: int, x: np.ndarray, optimum: np.ndarray, lost: float
    ) -> float: ...
    def value(self, silo: int, round: int, x: np.ndarray) -> tuple[float, np.ndarray]: ...

class Coins(Losses):
    def __init__(
        self,
        seed: int,
        replicate: int,
        silos: int,
        chance: np.ndarray,
        *,
        common: bool = False,
        quadratic: bool = False,
        last: int | None = None,
        planned: int = -1,
        lost: int = 0,
    ) -> None: ...
    def course(
        self,
        decides: str,
        first: int,
        last: int,
        asks: bool,
        lost: np.ndarray,
        latest: np.ndarray,
        decided: tuple[int, int, int, bool, float, float, float],
        table: np.ndarray,
        alone: int,
        regret: np.ndarray,
        sum: float,
        at: int,
        checkpoints: np.ndarray,
    ) -> tuple[int, int, int, int, float, int]: ...

class Table(Losses):
    def __init__(
        self, seed: int, replicate: int, silos: int, table: np.ndarray, *, quadratic: bool = False
    ) -> None: ...

class Compiled(Losses):
    def __init__(
        self,
        seed: int,
        replicate: int,
        silos: int,
        experts: int,
        function: Any,
        state: np.ndarray | None,
        *,
        common: bool = False,
        gradient: bool = False,
    ) -> None: ...

class Called(Losses):
    def __init__(
        self,
        seed: int,
        replicate: int,
        silos: int,
        experts: int,
        function: Callable[..., Any],
        check: Callable[[Any], Any],
        *,
        common: bool = False,
        gradient: bool = False,
    ) -> None: ...
