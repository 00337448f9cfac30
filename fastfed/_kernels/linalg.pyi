# Types of the compiled module; the comments in src/*.h explain the functions.
from typing import Any

import numpy as np

def log(x: float) -> float: ...
def factor(packed: np.ndarray, d: int) -> np.ndarray | None: ...
def solve(w: np.ndarray, u: np.ndarray) -> np.ndarray: ...
def least_squares(statistics: np.ndarray, d: int) -> np.ndarray: ...
def hadamard(values: np.ndarray) -> np.ndarray: ...
def log_det(w: np.ndarray) -> float: ...
def arms_observe(w: np.ndarray, theta: np.ndarray, x: np.ndarray, y: float) -> float: ...
def log_volume(w: np.ndarray, arms: bool) -> float: ...
def observe(w: np.ndarray, theta: np.ndarray | None, x: np.ndarray, y: float) -> float: ...
def accumulate(statistic: np.ndarray, x: np.ndarray, y: float) -> None: ...
def rank_one(gram: np.ndarray, bias: np.ndarray, x: np.ndarray, y: float) -> None: ...
def sherman_morrison(inverse: np.ndarray, x: np.ndarray) -> None: ...
def clip_norm(x: np.ndarray, bound: float) -> bool: ...
def scores(
    actions: np.ndarray, w: np.ndarray, theta: np.ndarray, beta: float, gamma: float
) -> np.ndarray: ...
def bonus_ends(
    actions: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
    beta: float,
    gamma: float,
    points: np.ndarray,
    basis: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray] | None: ...
def select(
    actions: np.ndarray, w: np.ndarray, theta: np.ndarray, beta: float, gamma: float
) -> tuple[int, np.ndarray]: ...
def select_sieved(
    actions: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
    beta: float,
    gamma: float,
    limit: float,
    slack: float,
    ranking: float,
) -> tuple[int, np.ndarray]: ...
def select_max_min(
    actions: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
    beta: float,
    gamma: float,
    other_w: np.ndarray,
    other_theta: np.ndarray,
    other_beta: float,
) -> tuple[int, np.ndarray]: ...
def select_passing(
    actions: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
    beta: float,
    local_w: np.ndarray,
    local_theta: np.ndarray,
    local_beta: float,
    limit: float,
    slack: float,
) -> tuple[int, np.ndarray]: ...
def scored(
    score: Any,
    key: int,
    round: int,
    actions: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
    beta: float,
    gamma: float,
    sieve: tuple[float, float, float] | None = None,
) -> tuple[int, np.ndarray]: ...

CORE_SCORES: dict[str, int]

def has_screen_i16() -> bool: ...

MAX_GRID: int

def belief(
    model: tuple[float, float, tuple[float, ...], tuple[float, ...]],
    rest: np.ndarray,
    own: np.ndarray,
    w: np.ndarray,
    theta: np.ndarray,
) -> np.ndarray | None: ...
def refresh(
    statistic: np.ndarray, regularizer: float, w: np.ndarray, theta: np.ndarray
) -> float: ...
def choose_regularizer(statistic: np.ndarray, full: float, floor: float, d: int) -> float: ...
def inverse_norm(w: np.ndarray) -> float: ...

class FixedModel:
    def __init__(
        self, rows: np.ndarray, w: np.ndarray, theta: np.ndarray, bound: float
    ) -> None: ...
    def select(
        self, beta: float, gamma: float, sieve: tuple[float, float, float] | None = None
    ) -> int: ...
    def observe(self, y: float) -> float: ...
    def log_entry(self) -> float: ...
    def inverse_norm(self) -> float: ...
    def parts(self) -> np.ndarray: ...

def row_width(
    multiplier: float,
    scale: float,
    base: float,
    anchor: float,
    gamma: float,
    rows: float,
    d: int,
) -> float: ...
def inflation(lowered: float, floor: float, inverse: float) -> float: ...
def slack(width: float, beta: float, gamma: float, inflation: float, inverse: float) -> float: ...
def radius_at(
    multiplier: float,
    scale: float,
    base: float,
    offset: float,
    lam: float,
    count: float,
    d: int,
) -> float: ...
def determinant_radius(
    multiplier: float,
    scale: float,
    base: float,
    offset: float,
    anchor: float,
    inflation: float,
    log_det: float,
    d: int,
) -> float: ...
