# Types of the compiled module; each function returns None if its arguments need conversion.
from typing import Any

import numpy as np

__pyx_capi__: dict[str, Any]

def rank_one(gram: object, bias: object, x: object, y: object, trusted: bool) -> bool | None: ...
def sherman(inverse: object, x: object, trusted: bool) -> bool | None: ...
def update(factor: object, theta: object, x: object, y: object, trusted: bool) -> bool | None: ...
def factors(V: object, trusted: bool) -> np.ndarray | None: ...
def solves(factor: object, u: object, trusted: bool) -> np.ndarray | None: ...
def scores(
    actions: object, factor: object, theta: object, radius: object, second: object, trusted: bool
) -> np.ndarray | None: ...
def argmax(
    actions: object, factor: object, theta: object, radius: object, second: object, trusted: bool
) -> Any: ...
def choose(
    actions: object, factor: np.ndarray, theta: np.ndarray, beta: float, chosen: np.ndarray
) -> int | None: ...
def gaussians(
    seed: object,
    count: object,
    purpose: object,
    replicate: object,
    silo: object,
    index: object,
    single: bool,
) -> np.ndarray | None: ...
def tree(
    seed: int,
    releases: np.ndarray,
    d: int,
    std: float,
    off_diagonal: float,
    diagonal: float,
    prefixes: bool,
    replicate: int,
    silo: int,
) -> tuple[np.ndarray, np.ndarray]: ...
