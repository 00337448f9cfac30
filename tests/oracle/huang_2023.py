"""Huang, Zhang, Melis, Shen, Hejazinia and Yang (2023), "Federated Linear Contextual Bandits with
User-level Differential Privacy" (ROBIN).

Algorithms 1-4 with every random number as an argument, and Algorithm 1 by *forced replay*. The
recorded actions and rewards are repeated, and the replay measures how far each action's score lies
below the best one. Comments have the paper's line numbers, "4.5" for line 5 of Algorithm 4. Nothing
is incremental if a definition is available: V and Y are sums over a client's rounds, made again in
every round.

The paper's symbols are M clients, T rounds, P phases, phase p of 2^p rounds (its set of rounds is
T_p), and U initial phases. The diversity and margin constants are lambda_0 and C_0. The
concentration radius is r, and the one after rotation r'. The failure probability is beta; eps0 and
delta0 are the budget of one release, eps' is that of one coordinate, and B is the bound on an
estimate. d2 is d padded to a power of two. Rounds and phases count from 1, clients and arms from 0.
Logarithms are natural, log2 where written. E# is a correction, numbered as in section 8 of the text
beside this file.

Not from the paper: the privacy-loss accounting, the largest eps' that it allows, and everything
named "corrected".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, cos, exp, expm1, isfinite, log, log2, pi, sin, sqrt

import numpy as np

from .chowdhury_zhou_2022 import composed_epsilon, gaussian_mu, normal_cdf
from .dubey_pentland_2020 import recorded, shortfall

# An eigenvalue of a Gram matrix below this share of the largest one is rounding error.
RANK_TOLERANCE = 1e-10
FIRST_ESTIMATES = ("initial", "phase")


# Draws from uniforms in (0, 1) and from standard exponentials.


def laplace_from_uniform(u: np.ndarray) -> np.ndarray:
    """Return a standard Laplace draw by the inverse distribution function."""
    u = np.asarray(u, dtype=np.float64)
    return np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))


def laplace_from_exponentials(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return a standard Laplace draw as a difference of two standard exponentials."""
    return np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)


def gumbel_from_uniform(u: np.ndarray) -> np.ndarray:
    """Return Gumbel draws from uniform draws."""
    return -np.log(-np.log(np.asarray(u, dtype=np.float64)))


def gumbel_from_exponential(e: np.ndarray) -> np.ndarray:
    """Return Gumbel draws from exponential draws."""
    return -np.log(np.asarray(e, dtype=np.float64))


# Rotation (4.2-4.4 and 4.7).


def padded(d: int) -> int:
    """Return d2, the next power of two, since the paper needs a d-dimensional Hadamard matrix."""
    if d < 1:
        raise ValueError(f"d must be >= 1, got {d}")
    return 1 << (d - 1).bit_length()


def hadamard(size: int) -> np.ndarray:
    """Return Sylvester's matrix of +-1.

    The sign of (i, j) is the parity of the common bits 1 of i and j.
    """
    if size != padded(size):
        raise ValueError(f"size must be a power of two, got {size}")
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)])


def checked_signs(signs: np.ndarray, size: int) -> np.ndarray:
    """Return signs after a check that each is +1 or -1."""
    signs = np.asarray(signs, dtype=np.float64)
    if signs.shape != (size,) or not np.all(np.abs(signs) == 1):
        raise ValueError(f"signs must be {size} numbers +1 or -1")
    return signs


def rotate(points: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return rows y_i = H D x_i / sqrt(d2) of the rows x_i, padded with zeros (4.2-4.4)."""
    points = np.asarray(points, dtype=np.float64)
    size = padded(points.shape[1])
    D = np.diag(checked_signs(signs, size))
    padded_points = np.hstack([points, np.zeros((len(points), size - points.shape[1]))])
    return padded_points @ (hadamard(size) @ D / sqrt(size)).T


def rotate_back(y: np.ndarray, signs: np.ndarray, d: int) -> np.ndarray:
    """Return U^-1 y = D H' y / sqrt(d2), with D applied last, without the padding (4.7; E3)."""
    size = len(y)
    D = np.diag(checked_signs(signs, size))
    return (D @ hadamard(size).T @ np.asarray(y, dtype=np.float64) / sqrt(size))[:d]


# PrivateRange (Algorithm 2).


def midpoints(r: float, B: float) -> np.ndarray:
    """Return S of 2.2: ceil(B / r) bins of length 2 r from -B on, for any data."""
    if not (0 < r <= B and isfinite(B)):
        raise ValueError(f"0 < r <= B must hold, got {r} and {B}")
    return -B + (2 * np.arange(ceil(B / r)) + 1) * r


def nearest(x: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Return x'_i of 2.3, the lower one if two are equally near.

    Points out of range go to the outermost bins.
    """
    return S[np.argmin(np.abs(np.asarray(x, dtype=np.float64)[:, None] - S), axis=1)]


def range_cost(x: np.ndarray, r: float, B: float) -> np.ndarray:
    """Return c of 2.4 at every midpoint; a point of the same bin counts on neither side."""
    S = midpoints(r, B)
    of_client = nearest(x, S)
    below = np.array([np.sum(of_client < s) for s in S])
    above = np.array([np.sum(of_client > s) for s in S])
    return np.maximum(below, above)


def range_probabilities(x: np.ndarray, epsilon: float, r: float, B: float) -> np.ndarray:
    """Return the probabilities of 2.5; the smallest cost is subtracted before exp."""
    cost = range_cost(x, r, B)
    weights = np.exp(-epsilon * (cost - cost.min()) / 2)
    return weights / weights.sum()


def select_by_uniform(probabilities: np.ndarray, u: float) -> int:
    """Return the first index whose cumulative probability exceeds u in [0, 1)."""
    if not 0 <= u < 1:
        raise ValueError(f"the uniform must be in [0, 1), got {u}")
    exceeding = np.flatnonzero(np.cumsum(probabilities) > u)
    # The total may be rounded below u.
    return int(exceeding[0]) if len(exceeding) else int(np.flatnonzero(probabilities)[-1])


def select_by_gumbel(cost: np.ndarray, epsilon: float, gumbel: np.ndarray) -> int:
    """Return argmax of -eps c / 2 + standard Gumbel noise, which has the same distribution."""
    if np.shape(gumbel) != np.shape(cost):
        raise ValueError(f"{np.shape(gumbel)} draws for {np.shape(cost)} bins")
    return int(np.argmax(-epsilon * np.asarray(cost) / 2 + gumbel))


def select_by_exponential(cost: np.ndarray, epsilon: float, draws: np.ndarray) -> int:
    """Return the index of the smallest exponential with rates exp(-eps c / 2), with the same
    distribution."""
    if np.shape(draws) != np.shape(cost):
        raise ValueError(f"{np.shape(draws)} draws for {np.shape(cost)} bins")
    # In log space, since a rate may be 0 in floating point.
    return int(np.argmin(np.log(draws) + epsilon * np.asarray(cost) / 2))


def private_range(
    x: np.ndarray,
    epsilon: float,
    r: float,
    B: float,
    *,
    uniform: float | None = None,
    gumbel: np.ndarray | None = None,
) -> tuple[float, float]:
    """Return [a, b] of Algorithm 2, 4 r long, by one uniform or by one Gumbel draw per bin."""
    if (uniform is None) == (gumbel is None):
        raise ValueError("give either uniform or gumbel")
    if uniform is not None:
        k = select_by_uniform(range_probabilities(x, epsilon, r, B), uniform)
    else:
        assert gumbel is not None
        k = select_by_gumbel(range_cost(x, r, B), epsilon, gumbel)
    centre = midpoints(r, B)[k]
    return float(centre - 2 * r), float(centre + 2 * r)


def range_feasible(M: int, epsilon_coordinate: float, bins: int, share: float = 0.1) -> bool:
    """Return whether a midpoint beyond all clients' has a probability below `share`.

    Its cost is M and a median's at most M / 2, so that bins exp(-M eps' / 8) bounds it (at eps' /
    2).
    """
    return M * epsilon_coordinate / 8 > log(bins / share)


# WinsorizedMean1D and WinsorizedMeanHighD (Algorithms 3 and 4).


def laplace_scale(r: float, M: int, epsilon: float) -> float:
    """Return the scale of 3.3: sensitivity 4 r / M at budget eps / 2."""
    return 8 * r / (M * epsilon)


def winsorized_mean_1d(
    x: np.ndarray,
    epsilon: float,
    r: float,
    B: float,
    laplace: float,
    *,
    uniform: float | None = None,
    gumbel: np.ndarray | None = None,
) -> float:
    """Run Algorithm 3 with a standard draw `laplace`; `uniform` or `gumbel` draws the range."""
    x = np.asarray(x, dtype=np.float64)
    a, b = private_range(x, epsilon / 2, r, B, uniform=uniform, gumbel=gumbel)
    mean = float(np.mean(np.maximum(a, np.minimum(b, x))))
    return mean + laplace_scale(r, len(x), epsilon) * float(laplace)


def cleaned(points: np.ndarray) -> np.ndarray:
    """Replace an estimate that is not finite in every coordinate by 0, since refusing it would
    leak."""
    points = np.asarray(points, dtype=np.float64)
    return np.where(np.isfinite(points).all(axis=1, keepdims=True), points, 0.0)


def winsorized_mean_high_d(
    points: np.ndarray,
    epsilon_coordinate: float,
    r_rotated: float,
    bound: float,
    *,
    signs: np.ndarray,
    laplace: np.ndarray,
    uniforms: np.ndarray | None = None,
    gumbels: np.ndarray | None = None,
) -> np.ndarray:
    """Run Algorithm 4 from step 4.4 on: (M, d) to (d,), for given eps', r' and B sqrt(d2).

    `signs`, `laplace` and `uniforms` are (d2,), `gumbels` (d2, bins).
    """
    points = cleaned(points)
    y = rotate(points, signs)
    size = y.shape[1]
    if np.shape(laplace) != (size,):
        raise ValueError(f"{np.shape(laplace)} Laplace draws for {size} coordinates")
    Y = [
        winsorized_mean_1d(
            y[:, s],
            epsilon_coordinate,
            r_rotated,
            bound,
            laplace[s],
            uniform=None if uniforms is None else float(uniforms[s]),
            gumbel=None if gumbels is None else gumbels[s],
        )
        for s in range(size)
    ]
    return rotate_back(np.array(Y), signs, points.shape[1])


# Local estimates (line 26).


def least_squares(
    X: np.ndarray, y: np.ndarray, tolerance: float = RANK_TOLERANCE
) -> tuple[np.ndarray, float]:
    """Return V^+ Y of the rows of X, and how far the rank was from another value.

    The second is the least |log10| between an eigenvalue's share and the tolerance.
    """
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    V, Y = X.T @ X, X.T @ y
    values, vectors = np.linalg.eigh(V)
    if values[-1] <= 0:
        return np.zeros(X.shape[1]), np.inf
    share = np.maximum(values / values[-1], np.finfo(np.float64).tiny)
    inverse = np.array(
        [1 / v if s > tolerance else 0.0 for v, s in zip(values, share, strict=True)]
    )
    estimate = vectors @ (inverse * (vectors.T @ Y))
    return estimate, float(np.min(np.abs(np.log10(share / tolerance))))


# Schedule.


def phase_length(p: int) -> int:
    """Return |T_p|; phase 1 is the first."""
    if p < 1:
        raise ValueError(f"phases count from 1, got {p}")
    return 2**p


def last_round(p: int) -> int:
    """Return the last round of phase p: 2 + 4 + ... + 2^p."""
    return 2 ** (p + 1) - 2


def number_of_phases(T: int) -> int:
    """Return P, the number of phases begun within T rounds; the last one may be incomplete."""
    if T < 1:
        raise ValueError(f"T must be >= 1, got {T}")
    P = 1
    while last_round(P) < T:
        P += 1
    return P


def phase_of(t: int) -> int:
    """Return the phase of round t."""
    return number_of_phases(t)


def releasing_phases(T: int, U: int, last: bool = False) -> list[int]:
    """Return the phases p >= U at whose end an estimate is sent.

    They are complete, and a round remains to use the estimate. With `last`, as in line 24, the
    phase may also end with round T.
    """
    if U < 1:
        raise ValueError(f"U must be >= 1, got {U}")
    ends = {p: last_round(p) for p in range(U, number_of_phases(T) + 1)}
    return [p for p, end in ends.items() if end < T or (last and end == T)]


# Constants.


def linucb_alpha(M: int, d: int, beta: float, rounds: float) -> float:
    """Return alpha of equation (1), from Lemma C.1, where `rounds` is |T_U| = 2^U.

    It has d log(rounds) in place of d log(1 + n / d), which bounds log det(I + V) after n rounds.
    At n = 2^(U+1) - 2 it is a bound for d >= 2 only (E9).
    """
    return 1 + sqrt(2 * log(M / beta) + d * log(rounds))


def linucb_alpha_corrected(M: int, d: int, beta: float, rounds: float) -> float:
    """Return the same for this number of rounds, in any dimension."""
    return 1 + sqrt(2 * log(M / beta) + d * log(1 + rounds / d))


def concentration_c1(M: int, P: int, d: int, beta: float, lambda_0: float) -> float:
    """Return c_1 of Theorem 3.3."""
    return 4 * sqrt(2 * d * log(16 * d * (M + 1) * P / beta)) / lambda_0


def concentration_c1_corrected(M: int, P: int, d: int, beta: float, lambda_0: float) -> float:
    """Return Claim C.4 with the missing factor 2 and the covariance V^-1 <= 4 / (lambda_0 |T_p|)
    (E10)."""
    return 2 * sqrt(2 * d * log(32 * d * (M + 1) * P / beta) / lambda_0)


def concentration_radius(c1: float, p: int, multiplier: float = 1.0) -> float:
    """Return r of phase p (line 31)."""
    return multiplier * c1 / sqrt(phase_length(p))


def rotated_radius(r: float, d2: int, M: int, beta: float, B: float = 1.0) -> float:
    """Return r' of 4.5, at most B sqrt(d2), for which one bin contains everything."""
    return min(10 * r * sqrt(log(d2 * M / beta) / d2), B * sqrt(d2))


def call_beta(beta: float, P: int) -> float:
    """Return the failure probability with which line 31 calls WinsorizedMeanHighD."""
    return beta / (16 * P)


def estimation_c2(
    M: int, P: int, d: int, beta: float, lambda_0: float, epsilon0: float, delta0: float
) -> float:
    """Return c_2 of Proposition C.3 (the proof of Claim C.5 once prints twice this value)."""
    c1 = concentration_c1(M, P, d, beta, lambda_0)
    root = sqrt(6 * d * log(16 * d * M * P / beta) * log(1 / delta0))
    return c1 * (80 * log(16 * d * P / beta) * root / (sqrt(M) * epsilon0) + 1)


def least_phase(holds: Callable[[int], bool]) -> int:
    """Return the first phase for which a condition holds."""
    U = 1
    while not holds(U):
        U += 1
    return U


def initial_phases(M: int, P: int, d: int, beta: float, lambda_0: float, C_0: float) -> int:
    """Return U of Proposition C.3, whose definition contains U: the smallest solution."""
    grown = log(2 * d * M * P / beta)
    first = 64 * grown / lambda_0**2
    second = 144 * d * (C_0 + lambda_0) ** 2 * grown * log(2) / lambda_0**4
    return least_phase(lambda U: max(log2(first), log2(second * U**2)) <= U)


def lemma_c2_condition(U: int, M: int, d: int, beta: float, lambda_0: float, C_0: float) -> bool:
    """Return whether U fulfils the condition of Lemma C.2."""
    rounds = phase_length(U)
    left_side = 12 * (d * C_0 + lambda_0) * sqrt(rounds * log(2 * d * M / beta)) * log(rounds)
    return left_side / lambda_0 <= lambda_0 / 4 * rounds


def initial_phases_corrected(
    M: int, P: int, d: int, beta: float, lambda_0: float, C_0: float
) -> int:
    """Return the smallest U that fulfils Lemma C.2's condition and Proposition C.3's first one
    (E8)."""
    first = 64 * log(2 * d * M * P / beta) / lambda_0**2
    return least_phase(
        lambda U: phase_length(U) >= first and lemma_c2_condition(U, M, d, beta, lambda_0, C_0)
    )


# Budgets.


@dataclass(frozen=True)
class Budget:
    """eps0 and delta0 of one release (line 1), eps' of one coordinate (4.5)."""

    epsilon0: float
    delta0: float
    epsilon_coordinate: float


def printed_budget(epsilon: float, delta: float, P: int, d2: int) -> Budget:
    """Return the budget of each phase and coordinate as the paper prints it."""
    epsilon0 = epsilon / sqrt(6 * P * log(2 / delta))
    delta0 = delta / (2 * P)
    return Budget(epsilon0, delta0, epsilon0 / sqrt(6 * d2 * log(1 / delta0)))


def printed_composition(epsilon: float, delta: float, P: int, d2: int) -> dict[str, float]:
    """Return the complete advanced composition (Lemma G.1) at the printed budgets."""
    budget = printed_budget(epsilon, delta, P, d2)
    return {
        "release": composed_epsilon(budget.epsilon_coordinate, d2, budget.delta0),
        "total": composed_epsilon(budget.epsilon0, P, delta / 2),
    }


def coordinate_loss(epsilon_coordinate: float, steps: int, up: bool = True) -> np.ndarray:
    """Return the distribution of the privacy loss of one coordinate's release, on multiples of eps'
    / (2 steps).

    It combines randomised response at eps' / 2, for the exponential mechanism, and Laplace noise at
    eps' / 2. Entry j is the probability of j - 2 steps. The atoms are on the grid; the losses of
    the continuous part of the Laplace noise are rounded up if `up`, otherwise down.
    """
    a = epsilon_coordinate / 2
    response = np.zeros(2 * steps + 1)
    response[-1] = 1 / (1 + exp(-a))
    response[0] = exp(-a) / (1 + exp(-a))
    # Loss a - 2x for x in [0, a] under the density exp(-|x|) / 2, and its ends beyond.
    losses = np.arange(-steps, steps + 1) * (a / steps)
    at_least = 1 - np.exp(-(a - losses) / 2) / 2
    between = at_least[:-1] - at_least[1:]
    noise = np.zeros(2 * steps + 1)
    noise[-1], noise[0] = 0.5, exp(-a) / 2
    if up:
        noise[1:] += between
    else:
        noise[:-1] += between
    return np.convolve(response, noise)


def grid_steps(coordinates: int) -> int:
    """Return the number of steps of a grid, fewer for many coordinates."""
    return max(20, min(1000, 60_000 // coordinates))


def composition_delta(
    epsilon: float,
    epsilon_coordinate: float,
    coordinates: int,
    *,
    steps: int | None = None,
    up: bool = True,
) -> float:
    """Return delta at epsilon of `coordinates` = releases times d2 coordinates, an upper bound if
    `up`.

    The convolution uses a Fourier transform: values below about 1e-12 are rounding.
    """
    steps = grid_steps(coordinates) if steps is None else steps
    of_one = coordinate_loss(epsilon_coordinate, steps, up)
    size = coordinates * (len(of_one) - 1) + 1
    padded_size = padded(size)
    probabilities = np.fft.irfft(np.fft.rfft(of_one, padded_size) ** coordinates, padded_size)[
        :size
    ]
    loss = (np.arange(size) - 2 * steps * coordinates) * (epsilon_coordinate / (2 * steps))
    exceeds = loss > epsilon
    return float(
        np.sum(np.maximum(probabilities[exceeds], 0.0) * -np.expm1(epsilon - loss[exceeds]))
    )


def bisect(holds: Callable[[float], bool], low: float, high: float, times: int = 30) -> float:
    """Return the largest argument for which a decreasing condition still holds (it does at low)."""
    for _ in range(times):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def composition_epsilon(delta: float, epsilon_coordinate: float, coordinates: int) -> float:
    """Return the true epsilon of the composition at delta."""
    total = coordinates * epsilon_coordinate
    return bisect(
        lambda epsilon: composition_delta(epsilon, epsilon_coordinate, coordinates) > delta,
        0.0,
        total,
    )


def tight_epsilon(epsilon: float, delta: float, coordinates: int) -> float:
    """Return the largest eps' whose composition over `coordinates` is (epsilon, delta)-DP."""

    def holds(value: float) -> bool:
        """Return whether the composition at this eps' is (epsilon, delta)-DP."""
        return composition_delta(epsilon, value, coordinates) <= delta

    low = epsilon / coordinates  # Basic composition.
    high = 2 * low
    while holds(high):
        low, high = high, 2 * high
    return bisect(holds, low, high)


def closed_form_epsilon(epsilon: float, delta: float, coordinates: int) -> float:
    """Return eps' by the central limit theorem: each half of a coordinate adds (eps' / 2)^2 to
    mu^2."""
    return sqrt(2) * gaussian_mu(epsilon, delta) / sqrt(coordinates)


# Remark 4.6.


def shares(epsilon: float, M: int, d: int, T: int, constant: float = 1.0) -> bool:
    """Return whether the variant with memory follows Algorithm 1; its Omega has a hidden
    constant."""
    return epsilon >= constant * sqrt(d) * log(T) ** 1.5 / M


# Bounds. Those without "explicit" or "error" are orders: the constant is set to 1.


def corollary_b5(
    r: float, M: int, d: int, beta: float, epsilon: float, delta: float, B: float = 1.0
) -> tuple[float, float]:
    """Return (distance, probability).

    The release is farther from the clients' mean than this distance with at most this probability.
    """
    root = sqrt(6 * d * log(d * M / beta) * log(1 / delta))
    range_failure = d**2 * B / (10 * r * sqrt(log(d * M / beta)))
    range_failure *= exp(-M * epsilon / (8 * sqrt(6 * d * log(1 / delta))))
    return 80 * r * log(d / beta) * root / (M * epsilon), 3 * beta + range_failure


@dataclass(frozen=True)
class Parameters:
    """The parameters of Proposition C.3; `clients` is the M that it needs."""

    P: int
    U: int
    budget: Budget
    c1: float
    c2: float
    clients: float

    def error(self, p: int, M: int) -> float:
        """Return the bound on ||hat theta^p - theta*||, p > U, with |T_(p-1)| (E12)."""
        return self.c2 / sqrt(M * phase_length(p - 1))


def proposition_c3(
    *,
    M: int,
    T: int,
    d: int,
    beta: float,
    epsilon: float,
    delta: float,
    lambda_0: float,
    C_0: float,
) -> Parameters:
    """Return the parameters of Proposition C.3."""
    P = number_of_phases(T)
    budget = printed_budget(epsilon, delta, P, d)
    c1 = concentration_c1(M, P, d, beta, lambda_0)
    c2 = estimation_c2(M, P, d, beta, lambda_0, budget.epsilon0, budget.delta0)
    U = initial_phases(M, P, d, beta, lambda_0, C_0)
    argument = 4 * d**2 * P * sqrt(phase_length(P))
    argument /= 10 * beta * c1 * sqrt(log(16 * d * M * P / beta))
    range_works = 8 / budget.epsilon_coordinate * log(argument)
    greedy_works = 32 * C_0**2 * c2**2 / (lambda_0**2 * phase_length(U))
    return Parameters(P, U, budget, c1, c2, max(range_works, greedy_works))


def theorem_3_3(
    *,
    M: int,
    T: int,
    d: int,
    beta: float,
    epsilon: float,
    delta: float,
    lambda_0: float,
    C_0: float,
) -> float:
    """Return ROBIN's regret, soft-O."""
    private = d * log(T) * log(1 / delta) * log(1 / beta) ** 3 / (M * epsilon**2)
    return max(1.0, private) * C_0 * d * log(1 / beta) * log(T) / lambda_0**2


def theorem_c6_explicit(M: int, P: int, U: int, C_0: float, c2: float) -> float:
    """Return the last line of the proof before it becomes an order."""
    return 8 * C_0 * c2**2 * P + M * phase_length(U)


def theorem_c6_corrected(M: int, P: int, U: int, C_0: float, c2: float) -> float:
    """Return the corrected line: initial rounds have regret up to 2, and P - U phases are greedy
    (E13)."""
    return 8 * C_0 * c2**2 * max(P - U, 0) + 2 * M * last_round(U)


def theorem_4_2(
    M: int, T: int, d: int, epsilon: float, C_0: float, corrected: bool = False
) -> float:
    """Return the bound for almost-memoryless algorithms, user-level CDP; Omega.

    Corrected: M T / C_0 (E14).
    """
    without_sharing = exp(-M * epsilon) * M * T * (1 / C_0 if corrected else C_0)
    return max(1.0, 1 / (M * epsilon**2)) * C_0 * d * log(T) + without_sharing


def without_margin(factor: float, d: int, T: int) -> float:
    """Return the bound for instances without a margin: factor sqrt(d T)."""
    return factor * sqrt(d * T)


def theorem_4_5(M: int, T: int, d: int, epsilon: float, C_0: float | None) -> float:
    """Return the bound for any algorithm, user-level CDP; Omega.

    C_0 = None means without the margin condition.
    """
    if C_0 is None:
        return without_margin(min(M, max(sqrt(M), 1 / epsilon)), d, T)
    return min(M, max(1.0, 1 / (M * epsilon**2))) * C_0 * d * log(T)


def theorem_5_3(M: int, T: int, d: int, epsilon: float, C_0: float | None) -> float:
    """Return the bound for non-interactive user-level (eps, delta)-LDP; Omega."""
    if C_0 is None:
        return without_margin(min(sqrt(M / epsilon), M), d, T)
    return min(1 / epsilon, M) * C_0 * d * log(T)


def corollary_5_5(M: int, T: int, d: int, epsilon: float, C_0: float | None) -> float:
    """Return the bound for user-level pure eps-LDP; Omega."""
    if C_0 is None:
        return without_margin(min(M, sqrt(M) / epsilon), d, T)
    return min(M, 1 / epsilon**2) * C_0 * d * log(T)


def error_4_5(
    t: int,
    *,
    M: int,
    d: int,
    epsilon: float,
    r: float,
    memory: bool = True,
    corrected: bool = False,
) -> float:
    """Return the least E ||theta_1* - estimate||^2 in round t (proofs of Theorems 4.5 and 4.2),
    explicit.

    It holds on the hard instance for delta <= sqrt(pi) / (12 r M sqrt(2T) log(1/delta)). The paper
    has eps in place of e^eps - 1 (E15).
    """
    growth = expm1(epsilon) if corrected else epsilon
    clients = growth * (M - 1) + 1 if memory else growth * M
    return r**2 / (8 * r**2 * clients**2 * (t - 1) / d + 4)


def error_5_3(t: int, *, M: int, d: int, epsilon: float, delta: float, r: float) -> float:
    """Return the same under LDP: the proof's integral, by the trapezoidal rule in sqrt(q)."""
    inner = 1 - exp(-epsilon) * (1 - delta)
    v = np.linspace(0.0, r, 20_001)
    alone = 1 - np.sqrt(-np.expm1(-(v**2) * (t - 1) / d))
    revealed = 1 - np.sqrt(-np.expm1(-(v**2) * inner * M * (t - 1) / d))
    f = alone * revealed * 2 * v
    return float(np.sum(f[1:] + f[:-1]) / 2 * (v[1] - v[0])) / 2


def corollary_e2(errors: Sequence[float], M: int, r: float) -> float:
    """Return the regret from the errors of rounds 1..T; the constant of Omega is 1."""
    return M * float(np.sum(errors)) / (2 * r)


def proposition_d1(T: int, epsilon: float, delta: float) -> float:
    """Return the error as the proof prints it.

    A value above T / 2, which a coin reaches, cannot hold (E16).
    """
    return T * (0.9 * exp(-epsilon) - 10 * delta)


def proposition_d1_corrected(T: int, epsilon: float, delta: float) -> float:
    """Return the exact least mean error of a test between two data sets that differ in one
    client."""
    return T * (1 - delta) / (1 + exp(epsilon))


# Instances.


def truncated_normal(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return (..., 2) draws of N(0, I_2) in the unit disc from two uniforms each (Appendix E.1)."""
    radius = np.sqrt(-2 * np.log1p(np.asarray(u) * expm1(-0.5)))
    angle = 2 * pi * np.asarray(v)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def hard_parameter(angles: np.ndarray, r: float) -> np.ndarray:
    """Return theta* (d,) of Appendix E.1 from d/2 angles; 0 <= r <= 1 / sqrt(d)."""
    d = 2 * len(angles)
    if not 0 <= r <= 1 / sqrt(d):
        raise ValueError(f"r must be in [0, 1 / sqrt(d)], got {r}")
    return r * np.array([f(float(angle)) for angle in angles for f in (cos, sin)])


def hard_features(block: int, z: np.ndarray, d: int) -> np.ndarray:
    """Return (2, d) features: arm 0 has z (2,) in block 0 .. d/2 - 1, and arm 1 is 0."""
    if d % 2 or not 0 <= block < d // 2:
        raise ValueError(f"d must be even and block in 0..d/2 - 1, got {d} and {block}")
    phi = np.zeros((2, d))
    phi[0, 2 * block : 2 * block + 2] = z
    return phi


def hard_constants(d: int, r: float) -> tuple[float, float]:
    """Return (lambda_0, C_0) of the hard instance, exactly."""
    within = -expm1(-0.5)
    square = (2 - 3 * exp(-0.5)) / within / 2  # E z_1^2
    density = (2 * normal_cdf(1.0) - 1) / sqrt(2 * pi) / within  # of z_1 at 0
    return square / d, 2 * density / r


def proposition_d1_features(client: int) -> np.ndarray:
    """Return (2, 2) features: only the first client observes the first coordinate."""
    side = np.array([0.5, 0.0]) if client == 0 else np.array([0.0, 0.5])
    return np.array([side, -side])


def proposition_d1_parameters() -> np.ndarray:
    """Return the four theta*, of norm sqrt 2 (E16)."""
    return np.array([[a, b] for a in (1.0, -1.0) for b in (1.0, -1.0)])


# The constants of a distribution of contexts (Assumptions 3.1 and 3.2).


def diversity(contexts: np.ndarray, theta: np.ndarray) -> float:
    """Return lambda_0 of draws (n, K, d): the least eigenvalue of the mean of phi phi' at the best
    arm."""
    contexts = np.asarray(contexts, dtype=np.float64)
    best = np.argmax(contexts @ theta, axis=1)
    x = contexts[np.arange(len(contexts)), best]
    return float(np.linalg.eigvalsh(x.T @ x / len(x))[0])


def margins(contexts: np.ndarray, theta: np.ndarray, every: bool = False) -> np.ndarray:
    """Return the gap (n,) between the best arm and the second, or the worst with `every`.

    Assumption 3.2 prints "for all arms" and is used with "there is an arm" (E11).
    """
    ordered = np.sort(np.asarray(contexts, dtype=np.float64) @ theta, axis=1)
    return ordered[:, -1] - ordered[:, 0 if every else -2]


def margin_constant(gaps: np.ndarray, least: int = 1) -> float:
    """Return C_0 = sup over e of P(gap <= e) / e, over the e that at least `least` draws reach.

    With least = 1 it is the definition, which the smallest gap alone can make large.
    """
    ordered = np.sort(np.asarray(gaps, dtype=np.float64))
    counts = np.arange(1, len(ordered) + 1)
    with np.errstate(divide="ignore"):
        ratio = counts / len(ordered) / ordered
    return float(np.max(ratio[least - 1 :]))


# Algorithm 1.


@dataclass(frozen=True)
class Mechanism:
    """R_0 at the server: eps', r'(p), B sqrt(d2), and the draws of the release after phase p.

    `signs(p)`, `laplace(p)` and `uniforms(p)` are (d2,). `gumbels(p)` (d2, bins) replaces
    uniforms(p) or is None.
    """

    epsilon_coordinate: float
    radius: Callable[[int], float]
    bound: float
    signs: Callable[[int], np.ndarray]
    laplace: Callable[[int], np.ndarray]
    uniforms: Callable[[int], np.ndarray] | None = None
    gumbels: Callable[[int], np.ndarray] | None = None

    def release(self, points: np.ndarray, p: int) -> np.ndarray:
        """Return the private mean of the points of phase p."""
        return winsorized_mean_high_d(
            points,
            self.epsilon_coordinate,
            self.radius(p),
            self.bound,
            signs=self.signs(p),
            laplace=self.laplace(p),
            uniforms=None if self.uniforms is None else self.uniforms(p),
            gumbels=None if self.gumbels is None else self.gumbels(p),
        )


@dataclass
class Replay:
    """The result of repeating the recorded actions."""

    worst_gap: float  # largest relative `shortfall` or `greedy_shortfall`
    group_regret: np.ndarray  # (T,), cumulative, over all clients
    client_regret: np.ndarray  # (M, T), cumulative
    released: list[int] = field(default_factory=list)  # the phases
    estimates: list[np.ndarray] = field(default_factory=list)  # (M, d) sent after each of them
    globals: list[np.ndarray] = field(default_factory=list)  # (d,) broadcast after each of them
    nearest_rank: float = np.inf  # see least_squares
    bytes_up: int = 0
    bytes_down: int = 0


def greedy_shortfall(phi: np.ndarray, theta: np.ndarray, action: int) -> float:
    """Return how far the action's score lies below the best (line 18), relative to the largest sum
    of the |terms| of a score."""
    if not 0 <= action < len(phi):
        raise ValueError(f"action {action} is not in 0..{len(phi) - 1}")
    score = phi @ theta
    scale = float(np.max(np.abs(phi) @ np.abs(theta)))
    return float(score.max() - score[action]) / scale if scale > 0 else 0.0


def replay(
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    radius: Callable[[int, int, np.ndarray], float],
    initial_phases: int | None,
    mechanism: Mechanism | None = None,
    first_estimate: str = "initial",
    last: bool = False,
) -> Replay:
    """Repeat actions and rewards (M, T) in Algorithm 1.

    `contexts(t, i)` gives the arms (K, d), `means(t, i)` their K expected rewards, `radius(t, i, I
    + V)` alpha. `initial_phases` is U; None never shares (local LinUCB, the other branch of Remark
    4.6). Without `mechanism` the server averages without noise. `first_estimate` says which
    rounds enter the estimate that is sent after phase U. "initial": all rounds up to then, since no
    line resets V before line 15. "phase": those of phase U only, as in Appendix C. `last` is as in
    `releasing_phases`.
    """
    if first_estimate not in FIRST_ESTIMATES:
        raise ValueError(f"first_estimate must be in {FIRST_ESTIMATES}, got {first_estimate!r}")
    actions, rewards = recorded(actions, rewards)
    M, T = actions.shape
    d = np.shape(contexts(1, 0))[1]
    P = number_of_phases(T)
    U = P + 1 if initial_phases is None else initial_phases
    sending = releasing_phases(T, U, last)

    points: list[list[np.ndarray]] = [[] for _ in range(M)]
    result = Replay(0.0, np.zeros(T), np.zeros((M, T)))
    theta: np.ndarray | None = None
    # Line 2.
    for t in range(1, T + 1):
        p = phase_of(t)
        for i in range(M):
            phi = np.asarray(contexts(t, i), dtype=np.float64)
            a = int(actions[i, t - 1])
            # Lines 7-8 and 17-19, with the recorded action and reward.
            if p <= U:
                X = np.array(points[i]).reshape(-1, d)
                regular = np.eye(d) + X.T @ X
                Y = X.T @ rewards[i, : t - 1]
                gap = shortfall(phi, regular, Y, float(radius(t, i, regular)), a)
            else:
                assert theta is not None
                gap = greedy_shortfall(phi, theta, a)
            result.worst_gap = max(result.worst_gap, gap)
            expected = np.asarray(means(t, i), dtype=np.float64)
            result.client_regret[i, t - 1] = expected.max() - expected[a]
            # Lines 9 and 20.
            points[i].append(phi[a])
        # Lines 24-32, at the end of a phase; lines 14-15 ask for this phase's rounds only.
        if t != last_round(p) or p not in sending:
            continue
        start = 0 if p == U and first_estimate == "initial" else t - phase_length(p)
        sent = []
        for i in range(M):
            estimate, rank_margin = least_squares(np.array(points[i][start:t]), rewards[i, start:t])
            result.nearest_rank = min(result.nearest_rank, rank_margin)
            sent.append(estimate)
        estimates = cleaned(np.array(sent))
        plain = np.mean(estimates, axis=0)
        theta = plain if mechanism is None else mechanism.release(estimates, p)
        result.released.append(p)
        result.estimates.append(estimates)
        result.globals.append(theta)
        result.bytes_up += M * 8 * d
        result.bytes_down += M * 8 * d
    result.client_regret = np.cumsum(result.client_regret, axis=1)
    result.group_regret = np.sum(result.client_regret, axis=0)
    return result
