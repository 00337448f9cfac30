"""Dubey and Pentland (2020), "Differentially-Private Federated Linear Bandits" (FedUCB).

Algorithm 1 (centralised), Algorithm 2 (PRIVATIZER) and Algorithm 3 (decentralised) by *forced
replay*. The recorded actions and rewards are repeated, and the replay measures how far each
action's score lies below the best one. Comments have the paper's line numbers, "3.12" for line 12
of Algorithm 3. Nothing is incremental if a definition is available. V is built again from the
points in every round; a prefix is the sum of its tree nodes, and a node the sum of its leaves.

The algorithms are the corrected ones, since the determinant schedule cannot run as printed. The
trigger's matrix is inside the determinant, and the reset belongs to the synchronisation. A leaf is
the batch since the last synchronisation, and totals are replaced, never added to. The schedule
"private-determinant" is condition (10) of Zhou and Chowdhury (2024), Appendix D.2. They give the
condition and no algorithm; their Algorithm 3 restates Algorithm 1.

The paper's symbols are M silos, T rounds, S and s totals after a synchronisation, and V and u those
with the silo's own batch. Delta t is the number of rounds since the last synchronisation, and D the
threshold. Further, rho_min and rho_max bound the eigenvalues of a silo's regularizer H, and kappa
bounds ||h|| in H^-1. L, S and sigma bound ||x||, ||theta*|| and the reward noise (`norm` is S
here). An estimator is g, and gamma is the time to live. Rounds, synchronisations and tree nodes
count from 1, silos and estimators from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import e, log, sqrt

import numpy as np

Total = tuple[np.ndarray, np.ndarray]  # S (d, d), s (d,)
SCHEDULES = ("determinant", "fixed", "private-determinant")
COMMUNICATION = ("log-T", "M1.5", "MT")


# Constants of the privatizer and of the confidence set.


def levels(releases: int) -> int:
    """Return m of Algorithm 2, line 2.

    `releases` is n if fixed in advance and T if not; log is log2.
    """
    if releases < 1:
        raise ValueError(f"releases must be >= 1, got {releases}")
    return 1 + (releases - 1).bit_length()


def charged_nodes(releases: int) -> int:
    """Return the largest number of used nodes over one leaf (leaf 1), at most m."""
    return releases.bit_length()


def prefix_nodes(releases: int) -> int:
    """Return the largest number of nodes in one prefix, at most m."""
    return (releases + 1).bit_length() - 1


def node_noise_std(epsilon: float, delta: float, m: int, L: float) -> float:
    """Return s_N of Algorithm 2, line 5.

    N is a matrix of independent normals. (N + N^T) / sqrt 2 has the std s_N off the diagonal, and
    sqrt 2 s_N on the diagonal.
    """
    return 4 * sqrt(m) * (L**2 + 1) * log(2 / delta) / epsilon


def big_lambda(
    epsilon: float, delta: float, m: int, L: float, d: int, releases: int, M: int, alpha: float
) -> float:
    """Return Lambda of Section 4.3, above ||noise of a prefix||; n is `releases`, T if not
    fixed."""
    tail = 4 * sqrt(d) + 2 * log(2 * releases * M / alpha)
    return sqrt(32) * m * (L**2 + 1) * log(4 / delta) * tail / epsilon


def kappa_printed(
    epsilon: float, m: int, L: float, d: int, releases: int, M: int, alpha: float
) -> float:
    """Return kappa of Proposition 4. It omits delta, and is no bound for small delta."""
    tail = sqrt(d) + 2 * log(2 * releases * M / alpha)
    return sqrt(m * (L**2 + 1) * tail / (sqrt(2) * epsilon))


def lambda_from_noise(
    noise_std: float, nodes: int, d: int, releases: int, M: int, alpha: float
) -> float:
    """Return a bound on ||noise of a prefix|| of every release with probability 1 - alpha/4; not
    the paper's.

    The largest eigenvalue of (N + N')/sqrt 2 has mean at most 2 s sqrt d, and is sqrt 2 s Lipschitz
    in N. The union is over both signs and n M prefixes.
    """
    return (
        noise_std * sqrt(nodes) * (2 * sqrt(d) + sqrt(2) * sqrt(2 * log(8 * releases * M / alpha)))
    )


def kappa_from_noise(
    noise_std: float, nodes: int, rho_min: float, d: int, releases: int, M: int, alpha: float
) -> float:
    """Return a bound on ||h|| / sqrt rho_min of every release with probability 1 - alpha/4; not the
    paper's."""
    tail = sqrt(d) + sqrt(2 * log(4 * releases * M / alpha))
    return noise_std * sqrt(nodes) * tail / sqrt(rho_min)


def beta(
    V: np.ndarray,
    *,
    sigma: float,
    alpha: float,
    norm: float,
    M: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    anchor: float | None = None,
) -> float:
    """Return Proposition 2 with log det V - d log(M rho_min), as in its proof; `norm` is S.

    `anchor` replaces M in M rho_min: |C| for a clique, whose V has only |C| silos.
    """
    sign, log_det = np.linalg.slogdet(V)
    if sign <= 0:
        raise ValueError("V is not positive definite: its log determinant is undefined")
    floor = (M if anchor is None else anchor) * rho_min
    grown = float(log_det) - len(V) * log(floor)
    if 2 * log(2 / alpha) + grown < 0:
        raise ValueError("V is below its anchor: Proposition 2 is undefined")
    width = sigma * sqrt(2 * log(2 / alpha) + grown)
    return width + norm * sqrt(M * rho_max) + kappa * sqrt(M)


def log_growth(T: float, d: int, L: float, rho_min: float, rho_max: float, gamma: int = 1) -> float:
    """Return log(rho_max / rho_min + T L^2 / (gamma d rho_min)), the logarithm of every bound."""
    return log(rho_max / rho_min + T * L**2 / (gamma * d * rho_min))


def threshold(
    communication: str, *, T: int, M: int, d: int, L: float, rho_min: float, rho_max: float
) -> float:
    """Return D for O(M log T), O(M^1.5 d^3) and O(MT) communication; 0 means every round."""
    if communication == "log-T":
        return 2 * T * d / (log_growth(T, d, L, rho_min, rho_max) + 1)
    if communication == "M1.5":
        return T * log(M * T) / (d * M)
    if communication == "MT":
        return 0.0
    raise ValueError(f"communication must be one of {COMMUNICATION}, got {communication!r}")


def decentralised_threshold(
    *, T: int, gamma: int, d: int, L: float, rho_min: float, rho_max: float
) -> float:
    """Return D of one estimator, which is used in T / gamma rounds.

    Algorithm 3 divides it by 1 + L^2.
    """
    return 2 * T * d / (gamma * (log_growth(T, d, L, rho_min, rho_max, gamma) + 1))


# Bounds.


def proposition_1(
    D: float, *, T: int, d: int, L: float, rho_min: float, rho_max: float
) -> dict[str, float]:
    """Return bounds on the number of synchronisations.

    "main-text" and "appendix" are the two printed forms. "derived" is the bound of the proof before
    it drops d log / D, and does not need d log <= 2 D. None holds with privacy noise.
    """
    grown = log_growth(T, d, L, rho_min, rho_max)
    return {
        "main-text": 2 * sqrt(d * T / D) * grown + 4,
        "appendix": 2 * sqrt(d * T / D * grown) + 4,
        "derived": 2 * sqrt(d * T / D * grown) + d * grown / D + 2,
    }


def beta_bar(
    *,
    sigma: float,
    alpha: float,
    norm: float,
    M: int,
    T: int,
    d: int,
    L: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
) -> float:
    """Return bar beta_T, the bound on all beta_{i,t} (proof of Proposition 6)."""
    grown = d * log_growth(T, d, L, rho_min, rho_max)
    width = sigma * sqrt(2 * log(2 / alpha) + grown)
    return width + norm * sqrt(M * rho_max) + kappa * sqrt(M)


def theorem_1(
    *,
    sigma: float,
    alpha: float,
    norm: float,
    M: int,
    T: int,
    d: int,
    L: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    constant: float = 1.0,
) -> float:
    """Return Theorem 1 as printed, with a constant for its O."""
    grown = log_growth(T, d, L, rho_min, rho_max)
    bracket = grown + sqrt(log(2 / alpha)) + norm * sqrt(M * rho_max) + kappa * sqrt(M)
    return constant * sigma * sqrt(M * T * d) * bracket


def theorem_1_two_terms(D: float, bar: float, *, M: int, T: int, d: int, grown: float) -> float:
    """Return the proof's bound before D is chosen, nu = e.

    `bar` is beta_bar and `grown` log_growth.
    """
    return 2 * e * bar * (sqrt(2 * M * T * d * grown) + M * sqrt(D) * (d * grown + 1))


def theorem_1_explicit(bar: float, *, M: int, T: int, d: int, grown: float) -> float:
    """Return the proof's last line before O, nu = e.

    This counts both terms alike. With the paper's D, the term of the bad periods is about sqrt M d
    times as large.
    """
    return 4 * e * bar * sqrt(2 * M * T * d * (grown + 1))


def theorem_2(
    *,
    sigma: float,
    alpha: float,
    norm: float,
    M: int,
    T: int,
    d: int,
    L: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    cliques: int,
    gamma: int,
    constant: float = 1.0,
) -> float:
    """Return Theorem 2 as printed, with a constant for its O; `cliques` is the cover's size."""
    grown = log_growth(T, d, L, rho_min, rho_max, gamma)
    bracket = grown + sqrt(log(2 / alpha)) + norm * sqrt(M * rho_max) + kappa * sqrt(M)
    return constant * sigma * sqrt(M * cliques * gamma * T * d) * bracket


def theorem_2_two_terms(
    D: float, bar: float, *, sizes: Sequence[int], gamma: int, T: int, d: int, grown: float
) -> float:
    """Return the proof's sum over cliques of `sizes` and over gamma estimators, before D is
    chosen."""
    of_cliques = (
        sqrt(2 * size * (T / gamma) * d * grown) + size * sqrt(D) * (d * grown + 1)
        for size in sizes
    )
    return 2 * e * bar * gamma * sum(of_cliques)


# Parts common to both algorithms.


def tree_nodes(k: int) -> list[int]:
    """Return the nodes of the prefix [1, k], one for each bit 1 of k, named by their last leaf."""
    return [(k >> j) << j for j in reversed(range(k.bit_length())) if (k >> j) & 1]


def leaves_under(node: int) -> range:
    """Return the leaves under node n: as many as the value of its lowest bit 1, the last of them
    n."""
    return range(node - (node & -node) + 1, node + 1)


def outer_sum(points: list[np.ndarray], size: int) -> np.ndarray:
    """Return the sum of z z' over the points z = [x; y], (d + 1, d + 1)."""
    total = np.zeros((size, size))
    for z in points:
        total = total + np.outer(z, z)
    return total


def log_det(matrix: np.ndarray, name: str) -> float:
    """Return the log determinant of a positive definite matrix."""
    sign, value = np.linalg.slogdet(matrix)
    if sign <= 0 or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ValueError(f"{name} is not positive definite: its log determinant is undefined")
    return float(value)


def symmetric_noise(noise: np.ndarray, size: int) -> np.ndarray:
    """Return the noise of one node; refuse it unless it is (size, size) and symmetric."""
    noise = np.asarray(noise, dtype=np.float64)
    if noise.shape != (size, size) or not np.array_equal(noise, noise.T):
        raise ValueError(f"noise must be a symmetric ({size}, {size}) matrix, got {noise.shape}")
    return noise


class Privatizer:
    """Algorithm 2 for one silo (and one estimator): leaves are batches between synchronisations."""

    def __init__(self, size: int, noise: Callable[[int], np.ndarray] | None, shift: float) -> None:
        self.size, self.noise, self.shift = size, noise, shift
        self.leaves: list[np.ndarray] = []
        self.drawn: dict[int, np.ndarray] = {}

    def release(self, Q: np.ndarray) -> Total:
        """Return the noisy prefix after Q, shifted once (lines 10-14)."""
        self.leaves.append(Q)
        k = len(self.leaves)
        M_hat = np.zeros((self.size, self.size))
        for node in tree_nodes(k):
            for leaf in leaves_under(node):
                M_hat = M_hat + self.leaves[leaf - 1]
            if self.noise is not None:
                if node not in self.drawn:
                    self.drawn[node] = symmetric_noise(self.noise(node), self.size)
                M_hat = M_hat + self.drawn[node]
        # Section 4.3: the shift that makes H positive definite, then lines 12-13.
        d = self.size - 1
        return M_hat[:d, :d] + self.shift * np.eye(d), M_hat[:d, d]


def clipped(x: np.ndarray, y: float, clip: tuple[float, float, float] | None) -> np.ndarray:
    """Return [x; y] of the statistics, clipped to clip = (max_norm, low, high)."""
    if clip is not None:
        max_norm, low, high = clip
        length = float(np.linalg.norm(x))
        x = x * (max_norm / length) if length > max_norm else x
        y = min(max(y, low), high)
    return np.append(x, y)


def shortfall(phi: np.ndarray, V: np.ndarray, u: np.ndarray, width: float, action: int) -> float:
    """Return how far the action's score lies below the best (lines 6-8), relative to the largest
    |mean| + |bonus|."""
    log_det(V, "V")
    if not np.isfinite(width):
        raise ValueError(f"the radius must be finite, got {width}")
    means = phi @ np.linalg.solve(V, u)
    bonus = width * np.sqrt(np.sum((phi @ np.linalg.inv(V)) * phi, axis=1))
    score = means + bonus
    if not 0 <= action < len(phi):
        raise ValueError(f"action {action} is not in 0..{len(phi) - 1}")
    scale = float(np.max(np.abs(means) + np.abs(bonus)))
    return float(score.max() - score[action]) / scale if scale > 0 else 0.0


def recorded(actions: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return recorded actions and rewards after a check of their shapes."""
    actions, rewards = np.asarray(actions), np.asarray(rewards, dtype=np.float64)
    if actions.ndim != 2 or actions.shape != rewards.shape:
        raise ValueError(f"actions and rewards have shapes {actions.shape} and {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    return actions, rewards


def middle(rho_min: float, rho_max: float, shift: float | None) -> float:
    """Return ``shift``, or if it is None the paper's: 2 Lambda = (rho_min + rho_max) / 2, which is
    lambda = rho_min = rho_max without privacy."""
    if not 0 < rho_min <= rho_max:
        raise ValueError(f"0 < rho_min <= rho_max must hold, got {rho_min} and {rho_max}")
    return (rho_min + rho_max) / 2 if shift is None else shift


def margin(value: float, threshold: float, *sizes: float) -> float:
    """Return the distance of a trigger from its threshold, relative to the largest number
    involved."""
    return abs(value - threshold) / max(1.0, abs(threshold), *(abs(size) for size in sizes))


def message_bytes(d: int) -> int:
    """Return the size of a pair (U, u) or (S, s) as float64.

    Only the lower triangle of a symmetric matrix is sent.
    """
    return 8 * (d + d * (d + 1) // 2)


# Algorithm 1.


@dataclass
class Replay:
    """The result of repeating the recorded actions.

    `nearest_trigger` is the smallest relative distance of a trigger from its threshold. Rounding
    errors of that order may change another program's synchronisation.
    """

    worst_gap: float
    group_regret: np.ndarray  # (T,), cumulative over rounds, summed over silos
    synchronisations: list[int]  # rounds at whose end all synchronised
    triggers: list[tuple[int, int]]  # (round, silo)
    totals: list[Total]  # (S, s) after each synchronisation
    local: list[Total]  # own batch of each silo after round T: sums of x x' and x y
    bytes_up: int
    bytes_down: int
    nearest_trigger: float


def replay(
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    rho_min: float,
    rho_max: float,
    radius: Callable[[int, int, np.ndarray], float],
    schedule: str = "determinant",
    threshold: float | None = None,
    batch_size: int | None = None,
    noise: Callable[[int, int], np.ndarray] | None = None,
    local_noise: Callable[[int, int, int], np.ndarray] | None = None,
    shift: float | None = None,
    clip: tuple[float, float, float] | None = None,
    lazy: bool = False,
) -> Replay:
    """Repeat actions and rewards (M, T) in Algorithm 1.

    `contexts(t, i)` gives the actions (K, d), `means(t, i)` their K expected rewards, `radius(t, i,
    V)` beta. `noise(i, n)` is the symmetric (d + 1, d + 1) noise of node n of silo i's tree. It is
    used once, and is None without privacy (then rho_min = rho_max = lambda). "fixed" synchronises
    after every `batch_size` rounds, the others by `threshold`. `local_noise(i, k, n)`
    ("private-determinant" only) is the symmetric (d, d) noise of node n of a silo's second tree.
    Silo i builds this tree from its rounds after synchronisation k. With `lazy` actions are chosen
    by S and s only.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {SCHEDULES}, got {schedule!r}")
    if (batch_size is None) != (schedule != "fixed") or (threshold is None) == (
        schedule != "fixed"
    ):
        raise ValueError("schedule fixed takes batch_size, the others take threshold")
    if (local_noise is not None) != (schedule == "private-determinant"):
        raise ValueError("local_noise belongs to private-determinant")
    actions, rewards = recorded(actions, rewards)
    M, T = actions.shape
    d = np.shape(contexts(1, 0))[1]
    shift = middle(rho_min, rho_max, shift)

    def of(i: int) -> Callable[[int], np.ndarray] | None:
        """Return the noise of silo i's tree as a function of the node; None without noise."""
        return None if noise is None else (lambda node: noise(i, node))

    # Line 1: the initial matrix is exactly M rho_min I.
    S, s = M * rho_min * np.eye(d), np.zeros(d)
    points: list[list[np.ndarray]] = [[] for _ in range(M)]
    privatizers = [Privatizer(d + 1, of(i), shift) for i in range(M)]
    local: dict[tuple[int, int, int], np.ndarray] = {}
    last = 0

    def private_growth(i: int, k: int) -> np.ndarray:
        """Return the noisy matrix of the batch of silo i that condition (10) tests.

        The noise is that of a prefix in a tree of single rounds.
        """
        assert local_noise is not None
        total = outer_sum(points[i], d + 1)[:d, :d]
        for node in tree_nodes(len(points[i])):
            if (i, k, node) not in local:
                local[i, k, node] = symmetric_noise(local_noise(i, k, node), d)
            total = total + local[i, k, node]
        return total

    result = Replay(0.0, np.zeros(T), [], [], [], [], 0, 0, np.inf)
    for t in range(1, T + 1):
        synchronise = False
        for i in range(M):
            # Lines 4-9, with the recorded action and reward.
            phi = np.asarray(contexts(t, i), dtype=np.float64)
            own_sums = outer_sum([] if lazy else points[i], d + 1)
            V, u = S + own_sums[:d, :d], s + own_sums[:d, d]
            a = int(actions[i, t - 1])
            width = float(radius(t, i, V))
            result.worst_gap = max(result.worst_gap, shortfall(phi, V, u, width, a))
            expected = np.asarray(means(t, i), dtype=np.float64)
            result.group_regret[t - 1] += expected.max() - expected[a]
            # Lines 10-11.
            points[i].append(clipped(phi[a], float(rewards[i, t - 1]), clip))
            # Lines 12-14; Delta t counts this round.
            if threshold is None:
                continue
            before = log_det(S, "S")
            if schedule == "determinant":
                grown = S + outer_sum(points[i], d + 1)[:d, :d]
                after = log_det(grown + M * (rho_max - rho_min) * np.eye(d), "the grown V")
                triggered = after - before >= threshold / (t - last)
            else:
                grown = S + private_growth(i, len(result.totals))
                # Without a positive determinant there is no growth to report.
                definite = np.linalg.eigvalsh(grown)[0] > 0
                after = log_det(grown, "the grown V") if definite else -np.inf
                triggered = after - before > threshold / (t - last)
            if np.isfinite(after):
                distance = margin(after - before, threshold / (t - last), after, before)
                result.nearest_trigger = min(result.nearest_trigger, distance)
            if triggered:
                result.triggers.append((t, i))
                synchronise = True
        if batch_size is not None and t % batch_size == 0:
            synchronise = True
        # Lines 15-21, once, after the last silo's round.
        if synchronise:
            sent = [privatizers[i].release(outer_sum(points[i], d + 1)) for i in range(M)]
            # Line 18: the total is replaced, since each message is a whole prefix.
            S = np.sum([U_hat for U_hat, _ in sent], axis=0)
            s = np.sum([u_hat for _, u_hat in sent], axis=0)
            result.totals.append((S, s))
            result.synchronisations.append(t)
            result.bytes_up += M * message_bytes(d)
            result.bytes_down += M * message_bytes(d)
            # Line 24, which belongs here.
            points = [[] for _ in range(M)]
            last = t
    result.group_regret = np.cumsum(result.group_regret)
    unsent = [outer_sum(of_silo, d + 1) for of_silo in points]
    result.local = [(Q[:d, :d], Q[:d, d]) for Q in unsent]
    return result


# Algorithm 3.


def distances(adjacency: np.ndarray) -> np.ndarray:
    """Return the hops between all silos, -1 if there is no path."""
    adjacency = np.asarray(adjacency)
    M = len(adjacency)
    if adjacency.shape != (M, M) or not np.isin(adjacency, (0, 1)).all():
        raise ValueError("adjacency must be a square matrix of 0 and 1")
    if (adjacency != adjacency.T).any() or np.diag(adjacency).any():
        raise ValueError("adjacency must be symmetric with an empty diagonal")
    hops = np.where(np.eye(M, dtype=int) == 1, 0, -1)
    walks = np.eye(M, dtype=int)
    for length in range(1, M):
        walks = np.minimum(walks @ adjacency.astype(int), 1)
        hops[(walks > 0) & (hops < 0)] = length
    return hops


def graph_power(adjacency: np.ndarray, gamma: int) -> np.ndarray:
    """Return the adjacency of the gamma-th power: 1 if 1 <= distance <= gamma."""
    hops = distances(adjacency)
    return ((hops >= 1) & (hops <= gamma)).astype(int)


def clique_of(
    adjacency: np.ndarray, gamma: int, cliques: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return each silo's clique; refuse cliques that do not partition the silos of the gamma-th
    power."""
    power = graph_power(adjacency, gamma)
    listed = [i for clique in cliques for i in clique]
    if sorted(listed) != list(range(len(power))):
        raise ValueError("the cliques must hold every silo exactly once")
    for clique in cliques:
        for i in clique:
            for j in clique:
                if i != j and not power[i, j]:
                    raise ValueError(f"silos {i} and {j} are further than {gamma} hops apart")
    member = {i: sorted(clique) for clique in cliques for i in clique}
    return [member[i] for i in range(len(power))]


@dataclass(frozen=True)
class Request:
    """SYNCHRONIZE(i, g, t) of line 3.10."""

    silo: int
    estimator: int
    round: int


@dataclass(frozen=True, eq=False)
class Statistics:
    """The privatized pair of line 3.16, sent at the end of `round`."""

    silo: int
    estimator: int
    round: int
    total: Total


Message = Request | Statistics


@dataclass
class Network:
    """Messages that every silo forwards to all its neighbours, one hop per round, gamma hops.

    A message sent at the end of round t reaches a silo h hops away at the start of round t + h, for
    h <= gamma, by the shortest path. The sender does not receive its own message.
    """

    adjacency: np.ndarray
    gamma: int
    arriving: list[tuple[int, Message, int]] = field(default_factory=list)  # to, what, hops left
    seen: set[tuple[int, int]] = field(default_factory=set)  # (silo, message)
    kept: list[Message] = field(
        default_factory=list
    )  # kept, so that no other message gets the same id()
    bytes_sent: int = 0

    def hand_on(self, silo: int, message: Message, hops_left: int) -> None:
        """Send a message to all neighbours of a silo."""
        size = 24 if isinstance(message, Request) else message_bytes(len(message.total[1]))
        for neighbour in np.flatnonzero(self.adjacency[silo]):
            self.bytes_sent += size
            self.arriving.append((int(neighbour), message, hops_left - 1))

    def broadcast(self, silo: int, message: Message) -> None:
        """Send a silo's own message on its way."""
        self.kept.append(message)
        self.seen.add((silo, id(message)))
        self.hand_on(silo, message, self.gamma)

    def deliver(self) -> list[tuple[int, Message]]:
        """Return what each silo receives at the start of this round; it is forwarded at the round's
        end."""
        arrived, self.arriving = self.arriving, []
        delivered = []
        for silo, message, hops_left in arrived:
            if (silo, id(message)) in self.seen:
                continue
            self.seen.add((silo, id(message)))
            delivered.append((silo, message))
            if hops_left > 0:
                self.hand_on(silo, message, hops_left)
        return delivered


@dataclass
class Estimator:
    """One of the gamma parameter sets of one silo."""

    privatizer: Privatizer
    held: dict[int, Total]  # by sender
    points: list[np.ndarray] = field(default_factory=list)
    uses: int = 0  # Delta t_{i,g}: since the last broadcast, in its own rounds
    due: int | None = None  # round of the requested broadcast

    def total(self) -> Total:
        """Return the sum of the totals that are held."""
        S = np.sum([S for S, _ in self.held.values()], axis=0)
        s = np.sum([s for _, s in self.held.values()], axis=0)
        return S, s


@dataclass
class DecentralisedReplay:
    """The result of repeating the recorded actions; `nearest_trigger` as in `Replay`."""

    worst_gap: float
    group_regret: np.ndarray  # (T,), cumulative over rounds, summed over silos
    requests: list[tuple[int, int, int]]  # (round, silo, estimator)
    broadcasts: list[tuple[int, int, int]]  # (round, silo, estimator), at the round's end
    arrivals: list[tuple[int, int, Message]]  # (round, silo), at the round's start
    totals: dict[tuple[int, int], Total]  # (S, s) by silo and estimator, after round T
    history: list[tuple[int, int, Total]]  # (round, silo) and the (S, s) it was played with
    local: dict[tuple[int, int], Total]  # own batch by silo and estimator, after round T
    bytes_sent: int  # over all edges, forwarding included
    nearest_trigger: float


def replay_decentralised(
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    adjacency: np.ndarray,
    gamma: int,
    cliques: Sequence[Sequence[int]],
    rho_min: float,
    rho_max: float,
    radius: Callable[[int, int, np.ndarray], float],
    L: float,
    schedule: str = "determinant",
    threshold: float | None = None,
    batch_size: int | None = None,
    noise: Callable[[int, int, int], np.ndarray] | None = None,
    shift: float | None = None,
    clip: tuple[float, float, float] | None = None,
    lazy: bool = False,
    count: str = "silos",
) -> DecentralisedReplay:
    """Repeat actions and rewards (M, T) in Algorithm 3.

    `noise(i, g, n)` is the noise of node n of the tree of silo i's estimator g; the other arguments
    are as in `replay`. "fixed" (not the paper's) broadcasts estimator g after every `batch_size`
    uses of it. `count` "silos" starts from M rho_min I and triggers with M (rho_max - rho_min) I.
    "clique", as in the proof, uses |C| in place of M.
    """
    if schedule not in ("determinant", "fixed"):
        raise ValueError(f"schedule must be determinant or fixed, got {schedule!r}")
    if (batch_size is None) != (schedule != "fixed") or (threshold is None) == (
        schedule != "fixed"
    ):
        raise ValueError("schedule fixed takes batch_size, determinant takes threshold")
    if gamma < 1:
        raise ValueError(f"gamma must be >= 1, got {gamma}")
    if count not in ("silos", "clique"):
        raise ValueError(f"count must be silos or clique, got {count!r}")
    actions, rewards = recorded(actions, rewards)
    M, T = actions.shape
    d = np.shape(contexts(1, 0))[1]
    shift = middle(rho_min, rho_max, shift)
    clique = clique_of(adjacency, gamma, cliques)
    if len(clique) != M:
        raise ValueError(f"the graph has {len(clique)} silos, the actions {M}")
    weight = [M if count == "silos" else len(clique[i]) for i in range(M)]

    def of(i: int, g: int) -> Callable[[int], np.ndarray] | None:
        """Return the noise of a silo's estimator g by node; None without noise."""
        return None if noise is None else (lambda node: noise(i, g, node))

    # Line 3.1; the entries of all senders sum to the initial statistics, and each is replaced
    # later.
    def start(i: int) -> Total:
        """Return a sender's initial entry; those of a clique sum to the initial statistics."""
        return weight[i] * rho_min / len(clique[i]) * np.eye(d), np.zeros(d)

    sets = [
        [
            Estimator(Privatizer(d + 1, of(i, g), shift), {j: start(i) for j in clique[i]})
            for g in range(gamma)
        ]
        for i in range(M)
    ]
    network = Network(np.asarray(adjacency), gamma)
    result = DecentralisedReplay(0.0, np.zeros(T), [], [], [], {}, [], {}, 0, np.inf)
    for t in range(1, T + 1):
        # Lines 3.12-3.24, at the start of the round: the proof includes all of it by t + 2 gamma.
        for silo, message in network.deliver():
            result.arrivals.append((t, silo, message))
            if message.silo not in clique[silo]:
                continue
            receiver = sets[silo][message.estimator]
            if isinstance(message, Request):
                # This is the proof's time: by then the whole clique has received the message.
                receiver.due = message.round + gamma
            else:
                receiver.held[message.silo] = message.total
        # Line 3.4.
        g = t % gamma
        for i in range(M):
            # Line 3.5, which is lines 4-11 with set g.
            estimator = sets[i][g]
            S, s = estimator.total()
            result.history.append((t, i, (S, s)))
            phi = np.asarray(contexts(t, i), dtype=np.float64)
            own_sums = outer_sum([] if lazy else estimator.points, d + 1)
            V, u = S + own_sums[:d, :d], s + own_sums[:d, d]
            a = int(actions[i, t - 1])
            width = float(radius(t, i, V))
            result.worst_gap = max(result.worst_gap, shortfall(phi, V, u, width, a))
            expected = np.asarray(means(t, i), dtype=np.float64)
            result.group_regret[t - 1] += expected.max() - expected[a]
            estimator.points.append(clipped(phi[a], float(rewards[i, t - 1]), clip))
            estimator.uses += 1
            if batch_size is not None and estimator.uses == batch_size:
                estimator.due = t
            # Lines 3.6-3.11; there are no requests while a broadcast is pending. `uses` is Delta t
            # + 1 here.
            if threshold is not None and estimator.due is None:
                grown = S + outer_sum(estimator.points, d + 1)[:d, :d]
                triggering = grown + weight[i] * (rho_max - rho_min) * np.eye(d)
                before, after = log_det(S, "S"), log_det(triggering, "the grown V")
                limit = threshold / (estimator.uses * (1 + L**2))
                distance = margin(after - before, limit, after, before)
                result.nearest_trigger = min(result.nearest_trigger, distance)
                if after - before >= limit:
                    estimator.due = t + gamma
                    result.requests.append((t, i, g))
                    network.broadcast(i, Request(i, g, t))
        for i in range(M):
            # Lines 3.13-3.17.
            estimator = sets[i][g]
            if estimator.due == t:
                total = estimator.privatizer.release(outer_sum(estimator.points, d + 1))
                estimator.held[i] = total
                estimator.points, estimator.uses, estimator.due = [], 0, None
                result.broadcasts.append((t, i, g))
                network.broadcast(i, Statistics(i, g, t, total))
    for i in range(M):
        for g in range(gamma):
            Q = outer_sum(sets[i][g].points, d + 1)
            result.totals[i, g] = sets[i][g].total()
            result.local[i, g] = (Q[:d, :d], Q[:d, d])
    result.group_regret = np.cumsum(result.group_regret)
    result.bytes_sent = network.bytes_sent
    return result
