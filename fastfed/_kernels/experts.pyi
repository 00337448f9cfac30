import numpy as np

def total(values: np.ndarray) -> float: ...
def follow(
    sums: np.ndarray, asks: np.ndarray, lost: np.ndarray, expert: int
) -> tuple[np.ndarray, int]: ...
def hedge(
    sums: np.ndarray,
    asks: np.ndarray,
    lost: np.ndarray,
    unit: float,
    silos: float,
    rate: float,
    rows: np.ndarray,
) -> None: ...
def hedge_exponents(
    first: int, exponents: np.ndarray, unit: float, silos: float, rate: float
) -> None: ...
def hedge_spread(sums: np.ndarray, lost: np.ndarray) -> int: ...
def hedge_weights(
    sums: np.ndarray, asks: np.ndarray, lost: np.ndarray, table: np.ndarray, rows: np.ndarray
) -> None: ...
def to_weights(rows: np.ndarray) -> None: ...
def sparse(
    seed: int,
    replicate: int,
    expert: int,
    release: int,
    spent: bool,
    unit: float,
    before: float,
    limit: float,
    query_scale: float,
    sums: np.ndarray,
    asks: np.ndarray,
    start: int,
    decided: bool,
    lost: np.ndarray,
    chosen: np.ndarray,
) -> tuple[int, int]: ...
def regret(
    lost: float,
    total: np.ndarray,
    open: np.ndarray,
    rounds: int,
    at: int,
    checkpoints: np.ndarray,
    found: np.ndarray,
    sums: np.ndarray | None,
    edges: np.ndarray,
    settles: np.ndarray,
    which: np.ndarray,
    weights: np.ndarray | None,
    gaps: np.ndarray | None,
    silos: int,
    unit: float,
) -> tuple[float, int, int]: ...
