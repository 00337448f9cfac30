"""Gao, Huang and Yang (2024), "Federated Online Prediction from Experts with Differential Privacy"
(Fed-DP-OPE-Stoch and Fed-SVT).

Algorithms 1-5 with every random number as an argument. Comments have the paper's line numbers,
"3.11" for line 11 of Algorithm 3. Nothing is incremental if a definition is available: a query is
the sum of its losses, and a vertex's estimate the sum of its set's gradients.

The paper's symbols are m clients, T rounds, d experts, P phases, and phase p of the rounds 2^(p-1)
.. 2^p - 1. A phase has batch b and T1 trees, tree j of depth j; s is a vertex and |s| its depth.
The leaves of a phase are k in the order visited, v is a gradient estimate, and w the vertex of the
simplex that the server names. Further, alpha and beta are the Lipschitz and smoothness constants in
||.||_1, and lambda_j and mu_j the scales of the clients' and of the server's noise. For Fed-SVT, N
is the number of rounds between two messages, kappa the switching budget, L the threshold, and L*
the best expert's loss per client. Rounds, phases, trees and leaves count from 1, clients and
experts from 0. Logarithms are natural, log2 where written. E# is a correction, numbered as in
section 6 of the text beside this file.

Not from the paper: the rule "largest", the exact distributions, and everything named
"corrected".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, product
from math import ceil, comb, exp, expm1, floor, inf, log, log2, sqrt
from typing import Protocol

import numpy as np

from .chowdhury_zhou_2022 import largest
from .huang_2023 import select_by_uniform

SERVER = -1  # number of the server, which draws the noise of the central variant
RULES = ("paper", "largest")


# Phases, batches and trees of Fed-DP-OPE-Stoch.


def first_round(p: int) -> int:
    """Return the first round of phase p."""
    if p < 1:
        raise ValueError(f"phases count from 1, got {p}")
    return 2 ** (p - 1)


def number_of_phases(T: int) -> int:
    """Return the number of phases begun within T rounds; the last one may be incomplete."""
    if T < 1:
        raise ValueError(f"T must be >= 1, got {T}")
    return T.bit_length()


def sample_rounds(p: int) -> range:
    """Return the rounds whose losses are B_(i,p) (1.3): the 2^(p-2) rounds of the phase before."""
    return range(first_round(p - 1), first_round(p))


def samples_needed(b: int, T1: int) -> float:
    """Return the number of samples: b for each root, b 2^-h for each of the 2^(h-1) right children
    at depth h."""
    return b * (T1 + T1 * (T1 + 1) / 4)


def number_of_leaves(T1: int) -> int:
    """Return 2 + 4 + ... + 2^T1; the paper's K = 2^T1 is that of the last tree (E5)."""
    return 2 ** (T1 + 1) - 2


def trees_wanted(
    b: int, *, m: int, d: int, epsilon: float, alpha: float, beta: float, central: bool = False
) -> float:
    """Return T1 of Theorem C.5, not rounded: 2^-T1 beta balances alpha 2^T1 ln d / (b eps sqrt m).

    `central` is the same balance for mu, with m in place of sqrt m; not from the paper.
    """
    if beta == 0:
        return -inf
    if d == 1:
        return inf
    speed_up = m if central else sqrt(m)
    return 0.5 * log2(b * epsilon * beta * speed_up / (alpha * log(d)))


def feasible(p: int, b: int, T1: int) -> bool:
    """Return whether every set is complete and no sample of the phase is needed twice."""
    return b % 2**T1 == 0 and samples_needed(b, T1) <= len(sample_rounds(p))


def batch_paper(p: int) -> int:
    """Return 2^floor(log2(2^(p-1) / (p-1)^2)) for p >= 2, or 0 if that is below 1."""
    power = -1
    while 2 ** (power + 1) * (p - 1) ** 2 <= 2 ** (p - 1):
        power += 1
    return 2**power if power >= 0 else 0


def trees_capped(b: int, wanted: float) -> int:
    """Return the largest integer T1 <= ``wanted`` with 2^T1 <= b, or 0, for b a power of two."""
    return floor(max(0.0, min(wanted, log2(b))))


def design(
    rule: str,
    p: int,
    *,
    m: int,
    d: int,
    epsilon: float,
    alpha: float,
    beta: float,
    central: bool = False,
) -> tuple[int, int]:
    """Return (b, T1) of phase p; T1 = 0 keeps x. `central` is as in `trees_wanted`.

    "paper" is b of Theorem C.5 rounded down to a power of two, with the largest feasible T1 up to
    the theorem's. "largest" is the largest power of two b for which T1 trees fit. There T1 is the
    theorem's, as far as 2^T1 divides b.
    """
    if rule not in RULES:
        raise ValueError(f"rule must be in {RULES}, got {rule!r}")

    def wanted(b: int) -> float:
        """Return the number of trees of Theorem C.5 for batch b, not rounded."""
        return trees_wanted(b, m=m, d=d, epsilon=epsilon, alpha=alpha, beta=beta, central=central)

    if p == 1:
        return 0, 0
    if rule == "paper":
        b = batch_paper(p)
        T1 = trees_capped(b, wanted(b)) if b else 0
        while T1 and not feasible(p, b, T1):
            T1 -= 1
        return b, T1
    best = (0, 0)
    b = 2
    while b <= len(sample_rounds(p)):
        T1 = trees_capped(b, wanted(b))
        if T1 and feasible(p, b, T1):
            best = (b, T1)
        b *= 2
    return best


# Scales.


def lambda_printed(alpha: float, j: int, b: int, epsilon: float) -> float:
    """Return the scale of a client's noise as the paper prints it."""
    return 4 * alpha * 2**j / (b * epsilon)


def lambda_corrected(alpha: float, j: int, b: int, epsilon: float) -> float:
    """Return twice the printed scale, since an argmin of scores that move up and down costs twice
    (E2)."""
    return 2 * lambda_printed(alpha, j, b, epsilon)


def mu_printed(alpha: float, j: int, b: int, epsilon: float, m: int) -> float:
    """Return the scale of the server's noise as the paper prints it."""
    return lambda_printed(alpha, j, b, epsilon) / m


def mu_corrected(alpha: float, j: int, b: int, epsilon: float, m: int) -> float:
    """Return the corrected scale of the server's noise."""
    return lambda_corrected(alpha, j, b, epsilon) / m


def leaf_change(alpha: float, b: int, depth: int, nonnegative: bool = False) -> float:
    """Return the most that one replaced loss changes an entry of v_i at a leaf.

    The loss is in the set of an ancestor of the leaf at `depth`. Gradients are in [-alpha, alpha],
    or in [0, alpha] if `nonnegative`. At the root the loss enters as one gradient, elsewhere as a
    difference of two.
    """
    change = 2 * alpha / b if depth == 0 else 4 * alpha * 2**depth / b
    return change / 2 if nonnegative else change


def leaves_below(j: int, depth: int) -> int:
    """Return the number of leaves below a vertex of this depth in tree j."""
    return 2 ** (j - depth)


# Algorithms 1-3.


class Losses(Protocol):
    """The losses of all clients and rounds, by their gradients."""

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        """Return the gradient (d,) of client's loss of round t at x."""


@dataclass(frozen=True)
class LinearLosses:
    """Losses <a, x> for the rows a of a table."""

    table: np.ndarray  # (m, T, d)

    def gradient(self, client: int, t: int, x: np.ndarray) -> np.ndarray:
        """Return the gradient (d,), which does not depend on x."""
        return np.asarray(self.table[client, t - 1], dtype=np.float64)


@dataclass(frozen=True)
class Vertex:
    """A visited vertex of a tree, with its gradient estimates."""

    phase: int
    tree: int
    path: str  # of 0 (left) and 1 (right); "" is the root
    x: np.ndarray  # (d,)
    v: np.ndarray  # (m, d), one row per client
    rounds: np.ndarray  # (m, |B|), whose losses are B_(i,j,s); (m, 0) at left children


@dataclass(frozen=True)
class Leaf:
    """A visited leaf of a tree, with the choice that follows from its scores."""

    phase: int
    tree: int
    path: str
    k: int
    scale: float  # lambda_j, or mu_j if central
    messages: np.ndarray  # (m, d), what the clients send
    scores: np.ndarray  # (d,), what the server takes the argmin of
    w: int
    gap: float  # scores[w] - min, not 0 only if w was forced
    margin: float  # between the two lowest scores: below rounding, w is not determined
    x: np.ndarray  # (d,), after the update


@dataclass(frozen=True)
class Phase:
    """A phase: its rounds, its trees and the weights that are played."""

    p: int
    rounds: range
    batch: int
    trees: int
    x: np.ndarray  # (d,), played in all of its rounds


@dataclass
class OpeRun:
    """The weights of all rounds of a run, with its phases, vertices and leaves."""

    x: np.ndarray  # (T, d), the same at all clients
    phases: list[Phase] = field(default_factory=list)
    vertices: list[Vertex] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)

    @property
    def released(self) -> list[int]:
        """Return every w, in order."""
        return [leaf.w for leaf in self.leaves]


def depth_first(depth: int, path: str = "") -> list[str]:
    """Return the vertices of a tree, root first, left before right."""
    if len(path) == depth:
        return [path]
    return [path, *depth_first(depth, path + "0"), *depth_first(depth, path + "1")]


def gradient_sums(losses: Losses, rounds: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return (m, d): each client's gradients at x, summed over its rounds (m, n)."""
    return np.array(
        [
            sum(losses.gradient(i, int(t), x) for t in of_client)
            for i, of_client in enumerate(rounds)
        ],
        dtype=np.float64,
    )


def ope_stoch(
    losses: Losses,
    *,
    T: int,
    m: int,
    d: int,
    designs: Callable[[int], tuple[int, int]],
    permutation: Callable[[int, int], np.ndarray],
    scale: Callable[[int, int, int], float] | None = None,
    noise: Callable[[int, int, int], np.ndarray] | None = None,
    central: bool = False,
    forced: Callable[[int, int], int] | None = None,
) -> OpeRun:
    """Run Algorithms 1-3 from x_1 = (1/d, ..., 1/d).

    `designs(p)` is (b, T1). `permutation(client, p)` orders the 2^(p-2) samples of phase p,
    numbered from 0; sets are taken from its start. `scale(p, j, b)` is lambda_j, or mu_j if
    `central`. `noise(client, p, k)` is standard Laplace (d,), of client SERVER if `central`. Both
    are None without privacy. `forced(p, k)` gives w in place of the argmin.
    """
    if (scale is None) != (noise is None):
        raise ValueError("give both scale and noise, or none")
    result = OpeRun(np.zeros((T, d)))
    x = np.full(d, 1 / d)
    for p in range(1, number_of_phases(T) + 1):
        b, T1 = designs(p)
        if T1 >= 1:
            x = _phase(
                result, losses, p, b, T1, x, m, d, permutation, scale, noise, central, forced
            )
        # 1.14-1.16; the last phase ends with round T.
        rounds = range(first_round(p), min(first_round(p + 1), T + 1))
        result.phases.append(Phase(p, rounds, b, T1, x))
        result.x[rounds.start - 1 : rounds.stop - 1] = x
    return result


def _phase(
    result: OpeRun,
    losses: Losses,
    p: int,
    b: int,
    T1: int,
    x: np.ndarray,
    m: int,
    d: int,
    permutation: Callable[[int, int], np.ndarray],
    scale: Callable[[int, int, int], float] | None,
    noise: Callable[[int, int, int], np.ndarray] | None,
    central: bool,
    forced: Callable[[int, int], int] | None,
) -> np.ndarray:
    """Run phase p (Algorithms 1 and 3) from x, and return the new x."""
    if not feasible(p, b, T1):
        raise ValueError(f"{T1} trees of batch {b} do not fit phase {p}")
    samples = np.array(sample_rounds(p))
    order = np.array([permutation(i, p) for i in range(m)])
    if order.shape != (m, len(samples)) or np.any(np.sort(order) != np.arange(len(samples))):
        raise ValueError(f"not permutations of the {len(samples)} samples of phase {p}")
    used_samples = 0
    k = 1
    for j in range(1, T1 + 1):
        vertex_at: dict[str, Vertex] = {}
        # 3.5; x is the x after all leaves so far, at 3.3 and wherever a right child is entered.
        for path in depth_first(j):
            if path.endswith("0"):
                # 3.9.
                parent = vertex_at[path[:-1]]
                vertex = Vertex(p, j, path, parent.x, parent.v, np.zeros((m, 0), dtype=int))
            else:
                # 3.4 and 3.11: the next b 2^-|s| samples of every client.
                size = b >> len(path)
                rounds = samples[order[:, used_samples : used_samples + size]]
                used_samples += size
                v = gradient_sums(losses, rounds, x) / size
                if path:
                    # Equation (3).
                    parent = vertex_at[path[:-1]]
                    v = parent.v + v - gradient_sums(losses, rounds, parent.x) / size
                vertex = Vertex(p, j, path, x, v, rounds)
            vertex_at[path] = vertex
            result.vertices.append(vertex)
            if len(path) < j:
                continue
            # 1.8: <c_n, v> is the n-th entry of v.
            width = 0.0 if scale is None else float(scale(p, j, b))
            messages = vertex.v
            if noise is not None and not central:
                messages = messages + width * np.array([noise(i, p, k) for i in range(m)])
            # Equation (1).
            scores = np.mean(messages, axis=0)
            if noise is not None and central:
                scores = scores + width * np.asarray(noise(SERVER, p, k))
            w = int(np.argmin(scores)) if forced is None else int(forced(p, k))
            ordered = np.sort(scores)
            margin = float(ordered[1] - ordered[0]) if d > 1 else inf
            # Equation (2).
            eta = 2 / (k + 1)
            x = (1 - eta) * x + eta * np.eye(d)[w]
            gap = float(scores[w] - ordered[0])
            result.leaves.append(Leaf(p, j, path, k, width, messages, scores, w, gap, margin, x))
            k += 1
    return x


# Fed-SVT: constants (Theorem D.1).


def switching_budget(d: int, rho: float, printed: bool = False) -> int:
    """Return kappa >= 3 ceil(log d) + 24 ln(1/rho).

    The proof halves a potential, so log is log2 (E10).
    """
    return ceil(3 * ceil((log if printed else log2)(d)) + 24 * log(1 / rho))


def eta_pure(epsilon: float, kappa: int) -> float:
    """Return eta such that kappa mechanisms of range eta together have epsilon / 2, by pure DP."""
    return epsilon / (2 * kappa)


def eta_printed(epsilon: float, delta: float, kappa: int) -> float:
    """Return eta of the (eps, delta) setting of Theorem D.1, which does not give eps (E9)."""
    return epsilon / sqrt(kappa * log(1 / delta))


def eta_advanced(epsilon: float, delta: float, kappa: int) -> float:
    """Return eta such that `advanced_epsilon` (advanced composition) is at most eps / 2 (E9)."""
    return epsilon / (4 * sqrt(kappa * log(1 / delta)))


def eta_zcdp(epsilon: float, delta: float, kappa: int) -> float:
    """Return eta such that kappa exponential mechanisms together have epsilon / 2.

    An exponential mechanism of range eta is eta^2/8-zCDP."""
    rho = (sqrt(log(1 / delta) + epsilon / 2) - sqrt(log(1 / delta))) ** 2
    return sqrt(8 * rho / kappa)


def threshold_scale_printed(epsilon: float) -> float:
    """Return the scale of the noise of a threshold as the paper prints it."""
    return 4 / epsilon


def query_scale_printed(epsilon: float) -> float:
    """Return the scale of the noise of a query as the paper prints it."""
    return 8 / epsilon


def scale_least(epsilon: float) -> float:
    """Return the scale of threshold and query noise for a sparse-vector part of eps / 2, by
    `svt_cost`."""
    return 2 / epsilon


def svt_cost(threshold_scale: float, query_scale: float) -> float:
    """Return the exact epsilon: a replaced loss moves all later queries of its segment by one
    constant in [-1, 1]."""
    return max(1 / threshold_scale, 1 / query_scale)


def svt_cost_standard(threshold_scale: float, query_scale: float) -> float:
    """Return the epsilon of AboveThreshold for queries that move freely: 1/a + 2/b."""
    return 1 / threshold_scale + 2 / query_scale


def advanced_epsilon(eta: float, kappa: int, delta: float) -> float:
    """Return the epsilon of kappa mechanisms of eta each, as in the proof of Theorem D.1."""
    return sqrt(2 * kappa * log(1 / delta)) * eta + kappa * eta * expm1(eta)


def zcdp_epsilon(eta: float, kappa: int, delta: float) -> float:
    """Return the epsilon of kappa mechanisms of parameter eta by zCDP."""
    rho = kappa * eta**2 / 8
    return rho + 2 * sqrt(rho * log(1 / delta))


def response_delta(epsilon: float, eta: float, kappa: int) -> float:
    """Return delta at epsilon of kappa randomised responses of eta each: the worst of all eta-DP
    mechanisms."""
    p = 1 / (1 + exp(-eta))
    total = 0.0
    for flips in range(kappa + 1):
        loss = (kappa - 2 * flips) * eta
        if loss > epsilon:
            mass = comb(kappa, flips) * p ** (kappa - flips) * (1 - p) ** flips
            total += mass * -expm1(epsilon - loss)
    return total


def response_epsilon(eta: float, kappa: int, delta: float) -> float:
    """Return the epsilon of kappa randomised responses of parameter eta, exactly."""
    return largest(lambda e: response_delta(e, eta, kappa) > delta, 0.0, kappa * eta)


def threshold(
    *, m: int, T: int, N: int, rho: float, epsilon: float, eta: float, optimal_loss: float
) -> float:
    """Return L of Theorem D.1."""
    return m * optimal_loss + 8 * log(2 * T**2 / (N**2 * rho)) / epsilon + 4 / eta


def noise_gap_tail(x: float, threshold_scale: float, query_scale: float) -> float:
    """Return P(query noise - threshold noise > x), x >= 0, for different scales."""
    a, b = threshold_scale, query_scale
    return (b**2 * exp(-x / b) - a**2 * exp(-x / a)) / (2 * (b**2 - a**2))


# Algorithms 4 and 5, and two that are not private.


@dataclass(frozen=True)
class SvtNoise:
    """The draws of a run of `fed_svt`."""

    threshold: Callable[[int], float]  # standard Laplace, of the threshold after k switches
    query: Callable[[int], float]  # standard Laplace, of the query of round t
    uniform: Callable[[int], float]  # in [0, 1), of the resampling of round t; t = 1 for x_1


@dataclass
class SvtRun:
    """The experts of all rounds of a run of `fed_svt`, with its switches and queries."""

    x: np.ndarray  # (T,), the experts
    switches: list[int] = field(default_factory=list)  # rounds of a resampling, also to the same x
    queries: list[tuple[int, float]] = field(default_factory=list)  # round and q
    laws: list[np.ndarray] = field(default_factory=list)  # (d,) of every resampling
    # Least |q + noise - threshold|, and least distance of a uniform number from where the drawn
    # expert changes. If one is as small as rounding errors, the run is not determined.
    margin: float = inf
    draw_margin: float = inf


def checked_table(losses: np.ndarray) -> np.ndarray:
    """Return losses (m, T, d) after a check that they are in [0, 1]."""
    losses = np.asarray(losses, dtype=np.float64)
    if losses.ndim != 3 or not np.all((losses >= 0) & (losses <= 1)):
        raise ValueError("losses must be (m, T, d) in [0, 1]")
    return losses


def decisions(T: int, N: int) -> list[int]:
    """Return the rounds t = n N > 1, in which a decision is made from earlier losses."""
    if N < 1:
        raise ValueError(f"N must be >= 1, got {N}")
    return [t for t in range(2, T + 1) if t % N == 0]


def uniform_expert(d: int, u: float) -> int:
    """Return a uniformly random expert."""
    return select_by_uniform(np.full(d, 1 / d), u)


def exponential_law(cost: np.ndarray, eta: float) -> np.ndarray:
    """Return P(x) ~ exp(-eta cost / 2); the smallest cost is subtracted before exp."""
    weights = np.exp(-eta * (cost - np.min(cost)) / 2)
    return weights / np.sum(weights)


def paid(losses: np.ndarray, x: np.ndarray, tau: int, t: int) -> float:
    """Return the loss of all clients in the rounds tau .. t - 1."""
    rounds = np.arange(tau - 1, t - 1)
    return float(np.sum(losses[:, rounds, x[rounds]]))


def resampling_cost(
    losses: np.ndarray, x: np.ndarray, t: int, optimal_loss: float, printed: bool
) -> np.ndarray:
    """Return s_t (5.12).

    The printed one is the loss since the last decision, the same for every expert (E8).
    """
    m, _, d = losses.shape
    sums = np.sum(losses[:, : t - 1], axis=(0, 1))
    if printed:
        sums = np.full(d, paid(losses, x, 1, t))
    return np.maximum(sums, m * optimal_loss)


def fed_svt(
    losses: np.ndarray,
    *,
    N: int,
    L: float,
    kappa: int,
    eta: float,
    noise: SvtNoise,
    threshold_scale: float,
    query_scale: float,
    optimal_loss: float = 0.0,
    printed: bool = False,
) -> SvtRun:
    """Run Algorithms 4 and 5, corrected or as printed, on losses (m, T, d) in [0, 1].

    Draws are multiplied by the scales. With `printed` it compares with L, not with the noisy
    threshold (E7), and resamples by `resampling_cost`'s printed scores.
    """
    losses = checked_table(losses)
    _, T, d = losses.shape
    # 4.2.
    result = SvtRun(np.zeros(T, dtype=int))
    x = uniform_expert(d, noise.uniform(1))
    k, tau = 0, 1
    level = L + threshold_scale * noise.threshold(0)
    deciding = set(decisions(T, N))
    for t in range(1, T + 1):
        # 5.6; afterwards 5.17.
        if t in deciding and k < kappa:
            # 5.7-5.8.
            q = paid(losses, result.x, tau, t)
            result.queries.append((t, q))
            noisy_query = q + query_scale * noise.query(t)
            noisy_threshold = L if printed else level
            result.margin = min(result.margin, abs(noisy_query - noisy_threshold))
            if noisy_query > noisy_threshold:
                # 5.12-5.14.
                probabilities = exponential_law(
                    resampling_cost(losses, result.x, t, optimal_loss, printed), eta
                )
                x = select_by_uniform(probabilities, noise.uniform(t))
                distances = np.abs(np.cumsum(probabilities)[:-1] - noise.uniform(t))
                result.draw_margin = min([result.draw_margin, *distances.tolist()])
                result.laws.append(probabilities)
                result.switches.append(t)
                k, tau = k + 1, t
                level = L + threshold_scale * noise.threshold(k)
        result.x[t - 1] = x
    return result


def follow_the_leader(losses: np.ndarray, *, N: int, first: int) -> np.ndarray:
    """Return (T,): from each decision on, the expert with the smallest loss so far, first index on
    ties."""
    losses = checked_table(losses)
    T = losses.shape[1]
    x = np.zeros(T, dtype=int)
    deciding = set(decisions(T, N))
    leader = first
    for t in range(1, T + 1):
        if t in deciding:
            leader = int(np.argmin(np.sum(losses[:, : t - 1], axis=(0, 1))))
        x[t - 1] = leader
    return x


def hedge(
    losses: np.ndarray, *, N: int, eta: float, uniform: Callable[[int], float] | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the distribution (T, d) of every round, ~ exp(-eta S/m), and experts (T,) drawn from
    it.

    S is the sum of all losses before the last decision. `uniform(t)` is the uniform number that
    draws the expert of round t. If it is constant between decisions, so is the expert.
    """
    losses = checked_table(losses)
    m, T, d = losses.shape
    distributions = np.zeros((T, d))
    deciding = set(decisions(T, N))
    current = np.full(d, 1 / d)
    for t in range(1, T + 1):
        if t in deciding:
            current = exponential_law(np.sum(losses[:, : t - 1], axis=(0, 1)), 2 * eta / m)
        distributions[t - 1] = current
    if uniform is None:
        return distributions, None
    return distributions, np.array(
        [select_by_uniform(distributions[t - 1], uniform(t)) for t in range(1, T + 1)]
    )


def regret(losses: np.ndarray, x: np.ndarray) -> float:
    """Return the regret per client, after T rounds, of experts x (T,) or of points or distributions
    x (T, d)."""
    losses = checked_table(losses)
    m, _, d = losses.shape
    points = np.eye(d)[x] if np.ndim(x) == 1 else np.asarray(x, dtype=np.float64)
    total = float(np.sum(losses * points[None]))
    return (total - float(np.min(np.sum(losses, axis=(0, 1))))) / m


# Bounds; O and Omega: constant 1.


def theorem_2_2(T: int, m: int, d: int, *, epsilon: float, alpha: float, beta: float) -> float:
    """Return the regret bound of Theorem 2.2, up to a constant."""
    private = sqrt(alpha * beta * T / epsilon) * log(T) * log(d) / m**0.25
    return (alpha + beta) * log(T) * sqrt(T * log(d) / m) + private


def corollary_2_3(T: int, m: int, d: int, *, epsilon: float, alpha: float) -> float:
    """Return the regret bound of Corollary 2.3, up to a constant."""
    private = sqrt(alpha) * log(T) * log(d) / (m**0.25 * epsilon)
    return alpha * log(T) * sqrt(T * log(d) / m) + private


def theorem_2_4(T: int, d: int, epsilon: float | None) -> float:
    """Return the lower bound for oblivious adversaries; epsilon = None means without privacy."""
    return sqrt(T * log(d)) if epsilon is None else min(log(d) / epsilon, T)


def theorem_2_6(
    T: int,
    m: int,
    d: int,
    *,
    epsilon: float,
    N: int,
    rho: float,
    optimal_loss: float = 0.0,
    delta: float | None = None,
) -> float:
    """Return the regret bound of Theorem 2.6, up to a constant."""
    first = log(d) ** 2 if delta is None else log(d) ** 1.5 * sqrt(log(1 / delta))
    private = first + log(T**2 / (N**2 * rho)) * log(d / rho)
    return private / (m * epsilon) + (N + optimal_loss) * log(d / rho)


def theorem_2_7(m: int, d: int, epsilon: float) -> float:
    """Return the lower bound of Theorem 2.7, up to a constant."""
    return log(d) / (m * epsilon)


# Exact laws.


def laplace_density(z: np.ndarray, scale: float) -> np.ndarray:
    """Return the density of the Laplace distribution."""
    return np.exp(-np.abs(z) / scale) / (2 * scale)


def laplace_above(z: np.ndarray, scale: float) -> np.ndarray:
    """Return P(noise > z)."""
    tail = np.exp(-np.abs(z) / scale) / 2
    return np.where(z < 0, 1 - tail, tail)


def quadrature(
    breaks: Sequence[float], step: float, tail_length: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on the line, for functions that are smooth between
    the breaks."""
    points = sorted({float(c) for c in breaks})
    points = [points[0] - tail_length, *points, points[-1] + tail_length]
    nodes, weights = np.polynomial.legendre.leggauss(16)
    z, h = [], []
    for left, right in pairwise(points):
        edges = np.linspace(left, right, max(1, ceil((right - left) / step)) + 1)
        for low, high in pairwise(edges):
            z.append((low + high) / 2 + (high - low) / 2 * nodes)
            h.append((high - low) / 2 * weights)
    return np.concatenate(z), np.concatenate(h)


def argmin_law(scores: np.ndarray, scale: float) -> np.ndarray:
    """Return the distribution (d,) of the argmin of scores + Laplace(scale)."""
    c = np.asarray(scores, dtype=np.float64)
    z, h = quadrature(c.tolist(), scale, 50 * scale)
    density = np.array([laplace_density(z - s, scale) for s in c])
    tails = np.array([laplace_above(z - s, scale) for s in c])
    return np.array(
        [
            float(np.sum(h * density[n] * np.prod(np.delete(tails, n, axis=0), axis=0)))
            for n in range(len(c))
        ]
    )


def argmin_cost(scores: np.ndarray, scale: float, change: float, one_sided: bool = False) -> float:
    """Return the largest |log ratio| of the argmin's distribution at `scores` and at any neighbour.

    Every score may move by +-change, or all in one direction by up to `change` if `one_sided`. For
    expert n the worst is to move its score against all others; only the difference matters.
    """
    c = np.asarray(scores, dtype=np.float64)
    shift = change if one_sided else 2 * change
    probabilities = argmin_law(c, scale)
    worst = 0.0
    for n, e in enumerate(np.eye(len(c))):
        raised = argmin_law(c - shift * e, scale)[n]
        lowered = argmin_law(c + shift * e, scale)[n]
        worst = max(worst, log(raised / probabilities[n]), log(probabilities[n] / lowered))
    return worst


def ope_law(
    losses: Losses,
    *,
    T: int,
    m: int,
    d: int,
    designs: Callable[[int], tuple[int, int]],
    permutation: Callable[[int, int], np.ndarray],
    scale: Callable[[int, int, int], float],
) -> dict[tuple[int, ...], float]:
    """Return the exact distribution of the experts w that the central variant releases.

    It is computed by one run for each sequence of experts, with these experts forced.

    One client with local noise has the same distribution.
    """
    leaves = [
        (p, k)
        for p in range(1, number_of_phases(T) + 1)
        for k in range(1, number_of_leaves(designs(p)[1]) + 1)
    ]
    distribution = {}
    for sequence in product(range(d), repeat=len(leaves)):
        forced_experts = dict(zip(leaves, sequence, strict=True))
        run = ope_stoch(
            losses,
            T=T,
            m=m,
            d=d,
            designs=designs,
            permutation=permutation,
            forced=lambda p, k, forced_experts=forced_experts: forced_experts[p, k],
        )
        distribution[sequence] = 1.0
        for leaf in run.leaves:
            width = scale(leaf.phase, leaf.tree, designs(leaf.phase)[0])
            distribution[sequence] *= float(argmin_law(leaf.scores, width)[leaf.w])
    return distribution


@cache
def segment_probability(
    queries: tuple[float, ...], crosses: bool, L: float, threshold_scale: float, query_scale: float
) -> float:
    """Return P(no query exceeds the noisy threshold), or P(only the last one does) if `crosses`.

    threshold_scale = 0 means that the threshold is L.
    """
    if not queries:
        return 1.0
    levels = np.array(queries) - L
    if threshold_scale == 0:
        r, h = np.zeros(1), np.ones(1)
    else:
        step = min(threshold_scale, query_scale)
        r, h = quadrature([0.0, *levels], step, 50 * max(threshold_scale, query_scale))
        h = h * laplace_density(r, threshold_scale)
    for index, level in enumerate(levels):
        # Below: noise <= r - level; by symmetry P(noise > level - r).
        last = crosses and index == len(levels) - 1
        h = h * laplace_above(r - level if last else level - r, query_scale)
    return float(np.sum(h))


SvtLaw = dict[tuple[tuple[int, ...], tuple[int, ...]], float]


def svt_law(
    losses: np.ndarray,
    *,
    N: int,
    L: float,
    kappa: int,
    eta: float,
    threshold_scale: float,
    query_scale: float,
    optimal_loss: float = 0.0,
    printed: bool = False,
) -> SvtLaw:
    """Return the exact distribution of (experts by round, rounds of resampling) of `fed_svt`."""
    losses = checked_table(losses)
    _, T, d = losses.shape
    deciding = set(decisions(T, N))
    a = 0.0 if printed else threshold_scale
    distribution: SvtLaw = {}

    def go(
        t: int, x: tuple[int, ...], switches: tuple[int, ...], qs: tuple[float, ...], p: float
    ) -> None:
        """Continue after the rounds before t; `qs` are the queries since the last switch."""
        if t > T:
            open_segment = len(switches) < kappa
            no_crossing = segment_probability(qs, False, L, a, query_scale) if open_segment else 1.0
            distribution[x, switches] = p * no_crossing
            return
        if t not in deciding or len(switches) >= kappa:
            go(t + 1, (*x, x[-1]), switches, qs, p)
            return
        tau = switches[-1] if switches else 1
        q = paid(losses, np.array(x), tau, t)
        go(t + 1, (*x, x[-1]), switches, (*qs, q), p)
        crossing = p * segment_probability((*qs, q), True, L, a, query_scale)
        cost = resampling_cost(losses, np.array(x), t, optimal_loss, printed)
        for chosen, share in enumerate(exponential_law(cost, eta)):
            go(t + 1, (*x, chosen), (*switches, t), (), crossing * float(share))

    for first in range(d):
        go(2, (first,), (), (), 1 / d)
    return distribution


def expert_law(law: SvtLaw) -> dict[tuple[int, ...], float]:
    """Return the distribution of the experts: resampling the same expert is not observed."""
    of_experts: dict[tuple[int, ...], float] = {}
    for (x, _), p in law.items():
        of_experts[x] = of_experts.get(x, 0.0) + p
    return of_experts


def log_ratio(first: dict, second: dict) -> float:
    """Return the largest |log ratio| of two distributions on one support."""
    if first.keys() != second.keys():
        raise ValueError("the laws have different supports")
    return max(abs(log(first[o] / second[o])) for o in first)
