# Types of the compiled module; the reasons behind each routine stand in src/*.h.
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HAS_TARGET_CLONES: bool
HAS_OPENMP: bool

def philox(
    seed: int, purpose: int, replicate: int, silo: int, index: int, block: int
) -> np.ndarray: ...
def key(seed: int, purpose: int, replicate: int, silo: int, index: int) -> int: ...
def normals_f32(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int
) -> np.ndarray: ...
def normals_f64(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int
) -> np.ndarray: ...
def normals_from_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray: ...
def uniform(seed: int, purpose: int, replicate: int, silo: int, index: int) -> float: ...
def below(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> int: ...
def permutation(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int
) -> np.ndarray: ...
def words(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> np.ndarray: ...
def laplace(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int
) -> np.ndarray: ...
def laplace_rows(
    seed: int, purpose: int, replicate: int, silos: int, index: int, n: int
) -> np.ndarray: ...
def laplace_from_bits(bits: np.ndarray) -> np.ndarray: ...
def ideal_normals(words: np.ndarray) -> tuple[np.ndarray, int]: ...
def ideal_laplace(words: np.ndarray) -> tuple[np.ndarray, int]: ...
def log(x: float) -> float: ...
def factor(packed: np.ndarray, d: int) -> np.ndarray | None: ...
def solve(w: np.ndarray, u: np.ndarray) -> np.ndarray: ...
def least_squares(statistics: np.ndarray, d: int) -> np.ndarray: ...
def hadamard(values: np.ndarray) -> np.ndarray: ...
def log_det(w: np.ndarray) -> float: ...
def observe(w: np.ndarray, theta: np.ndarray | None, x: np.ndarray, y: float) -> float: ...
def accumulate(statistic: np.ndarray, x: np.ndarray, y: float) -> None: ...
def rank_one(gram: np.ndarray, bias: np.ndarray, x: np.ndarray, y: float) -> None: ...
def sherman_morrison(inverse: np.ndarray, x: np.ndarray) -> None: ...
def clip_norm(x: np.ndarray, bound: float) -> bool: ...
def scores(
    actions: np.ndarray, w: np.ndarray, theta: np.ndarray, beta: float, gamma: float
) -> np.ndarray: ...
def select(
    actions: np.ndarray, w: np.ndarray, theta: np.ndarray, beta: float, gamma: float
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
) -> tuple[int, np.ndarray]: ...
def has_short_sieve() -> bool: ...
def short_candidates(
    actions: np.ndarray, w: np.ndarray, theta: np.ndarray, beta: float
) -> np.ndarray | None: ...
def node_level(k: int) -> int: ...
def psum(sums: np.ndarray, leaf: np.ndarray, level: int) -> None: ...
def prefix(nodes: np.ndarray, k: int) -> np.ndarray: ...
def add(into: np.ndarray, other: np.ndarray) -> None: ...
def scale(statistic: np.ndarray, factor: float) -> np.ndarray: ...
def touched_levels(leaf: int, releases: int) -> list[int]: ...
def round_point(
    point: np.ndarray, g: float, clamped: bool, random: np.ndarray, sums: np.ndarray
) -> None: ...
def round_points(
    points: np.ndarray, g: float, clamped: bool, random: np.ndarray, sums: np.ndarray
) -> None: ...
def binomials(
    seed: int, purpose: int, replicate: int, silo: int, index: int, n: int, count: int
) -> np.ndarray: ...
def binomials_from_words(random: np.ndarray, n: int) -> np.ndarray: ...
def encode_bits(ones: np.ndarray, length: int) -> np.ndarray: ...
def shuffle_bits(
    seed: int, purpose: int, replicate: int, silo: int, index: int, bits: np.ndarray
) -> None: ...
def round_noisy(
    values: np.ndarray, noise: np.ndarray, std: np.ndarray, grid: np.ndarray, error: float
) -> tuple[np.ndarray, list[int]]: ...
def add_noise(
    statistic: np.ndarray,
    normals: np.ndarray,
    d: int,
    bias: float,
    off_diagonal: float,
    diagonal: float,
) -> np.ndarray: ...
def node_normals(seed: int, replicate: int, silo: int, node: int, d: int) -> np.ndarray: ...
def refresh(
    statistic: np.ndarray, regularizer: float, w: np.ndarray, theta: np.ndarray
) -> float: ...
def choose_regularizer(statistic: np.ndarray, full: float, floor: float, d: int) -> float: ...
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
def honaker(estimate: np.ndarray, node: np.ndarray, sibling: np.ndarray, level: int) -> None: ...
def honaker_number(k: int) -> int: ...
def toeplitz(history: np.ndarray, f: np.ndarray, k: int) -> np.ndarray: ...
def radius_at(
    multiplier: float,
    scale: float,
    base: float,
    offset: float,
    lam: float,
    count: float,
    d: int,
) -> float: ...

IN_FUNCTION: str

class PlayError(RuntimeError): ...

def status_error(status: int) -> PlayError: ...

class Environment:
    seed: int
    replicate: int
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
        theta: np.ndarray,
        actions: int,
        basis_actions: int,
        shared: bool,
        reward: tuple[int, float],
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

class Shorts:
    room: np.ndarray | None
    starts: np.ndarray
    made: np.ndarray
    size: int
    def __init__(self, starts: np.ndarray, dimension: int) -> None: ...

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
        shorts: Shorts | None = None,
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

CONTENDERS_SIZE: int
REST_SIZE: int
ANEW: int

def saved_size(d: int) -> int: ...

class Pass:
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
    def begin(self) -> None: ...
    def play(self, first: int, last: int) -> None: ...
    def kept_widths(self) -> list[tuple[np.ndarray, np.ndarray]]: ...
