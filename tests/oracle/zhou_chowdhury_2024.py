"""Zhou and Chowdhury (2024), "On Differentially Private Federated Linear Contextual Bandits".

Algorithm 1 (Private-FedLinUCB) with Algorithm 2 (tree-based p-sums), Algorithm 4 (prefix sums),
Algorithm 5 (vector sums of the data points under a node) and Algorithm 8 (lazy update), by
*forced replay*: the recorded actions and rewards are followed, and how far each action's score
lies below the best one is measured. Comments carry the paper's line numbers. Nothing is
incremental where a definition is available: a node is the sum of the leaves, or data points,
under it, and V is built and inverted anew in every round.

The paper's symbols: W, U covariance and bias statistics; gamma_k the statistics of batch k;
alpha a p-sum (tree node); k the synchronisation; B the batch size; M silos, T rounds, K actions.
Rounds t and synchronisations k count from 1, silos i from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .vector_sum import fixed_point, lower_triangle, symmetric

Noise = tuple[np.ndarray, np.ndarray]  # of the bias stream (d,), of the covariance stream (d, d)
PROTOCOLS = (
    "none",
    "silo-ldp",
    "silo-ldp-prefix",
    "central",
    "local",
    "shuffle-amplified",
    "shuffle-vector",
)


@dataclass
class Replay:
    """What following the recorded actions gives.

    `worst_gap` is the largest shortfall of the followed action's score from the best score,
    relative to the largest |<x, theta_hat>| + bonus of the round (the size of what was rounded:
    the best score itself may cancel to 0). `totals` and `local` hold pairs (W, U).
    """

    worst_gap: float
    group_regret: np.ndarray  # (T,), cumulative over rounds, summed over silos
    totals: list[tuple[np.ndarray, np.ndarray]]  # (W_syn, U_syn) after each synchronisation
    local: list[tuple[np.ndarray, np.ndarray]]  # (W_i, U_i) of each silo after round T


def first_one(k: int) -> int:
    """i_k = min{j : Bin_j(k) = 1} (Algorithm 2, lines 4-5)."""
    return min(j for j in range(k.bit_length()) if (k >> j) & 1)


def node_interval(k: int) -> tuple[int, int]:
    """First and last batch under the node that is released at synchronisation k."""
    return k - 2 ** first_one(k) + 1, k


def tree_nodes(k: int) -> list[int]:
    """The nodes that make up the prefix sum [1, k], each by the synchronisation that released it.

    The level-j node for Bin_j(k) = 1 ends at k with its bits below j cleared: the prefix of
    k = 6 = (110)_2 is the node released at 4, sum [1, 4], and the one released at 6, sum [5, 6].
    """
    return [(k >> j) << j for j in reversed(range(k.bit_length())) if (k >> j) & 1]


def added(parts: list[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape."""
    total: np.ndarray = np.sum(parts, axis=0)
    return total


def p_sum(stream: list[np.ndarray], k: int) -> np.ndarray:
    """Raw node released at k: the sum of gamma over its interval (Algorithm 2, line 6)."""
    first, last = node_interval(k)
    return added(stream[first - 1 : last])


class Stream:
    """Protocol P for one of the two streams (bias vectors, or covariance matrices)."""

    def __init__(self, protocol: str, silos: int, shape: tuple[int, ...]) -> None:
        self.protocol = protocol
        self.plain = np.zeros(shape)
        self.gamma: list[list[np.ndarray]] = [[] for _ in range(silos)]
        # Noisy nodes by silo and by release; the noise is inside, so it is never drawn again.
        self.noisy: list[dict[int, np.ndarray]] = [{} for _ in range(silos)]
        self.synchronised: dict[int, np.ndarray] = {}

    def synchronise(
        self,
        k: int,
        gammas: list[np.ndarray],
        noises: list[np.ndarray],
        server: np.ndarray | None,
        order: Sequence[int],
    ) -> np.ndarray:
        """Takes every silo's gamma_k; gives the total s_k that all silos receive."""
        if self.protocol == "none":
            self.plain = self.plain + added(gammas)
            return self.plain
        for stream, gamma in zip(self.gamma, gammas, strict=True):
            stream.append(gamma)
        if self.protocol == "silo-ldp-prefix":
            return self.algorithm_4(k, noises)
        return self.algorithm_2(k, noises, server, order)

    def algorithm_2(
        self, k: int, noises: list[np.ndarray], server: np.ndarray | None, order: Sequence[int]
    ) -> np.ndarray:
        # Lines 4-7, local randomizer; "central" sends the raw p-sum instead.
        messages = [p_sum(stream, k) for stream in self.gamma]
        if self.protocol in ("silo-ldp", "shuffle-amplified"):
            messages = [alpha + noise for alpha, noise in zip(messages, noises, strict=True)]
        # Line 13: the synchronised node, the sum over silos in the order of the shuffler.
        node = added([messages[i] for i in order])
        if self.protocol == "central":
            node = node + server
        return self.prefix(k, node)

    def prefix(self, k: int, node: np.ndarray) -> np.ndarray:
        """The synchronised prefix sum after the node of k (line 14 of Algorithms 2 and 5)."""
        self.synchronised[k] = node
        return added([self.synchronised[released] for released in tree_nodes(k)])

    def algorithm_4(self, k: int, noises: list[np.ndarray]) -> np.ndarray:
        prefixes = []
        for stream, noisy, noise in zip(self.gamma, self.noisy, noises, strict=True):
            # Lines 4-7: the node of this synchronisation, and its noise.
            noisy[k] = p_sum(stream, k) + noise
            # Line 8: the silo's own noisy prefix sum, older nodes as they were released.
            prefixes.append(added([noisy[released] for released in tree_nodes(k)]))
        # Line 13: aggregate; the total is replaced, not added to.
        return added(prefixes)


def clipped(
    x: np.ndarray, y: float, clip: tuple[float, float, float] | None
) -> tuple[np.ndarray, float]:
    """x and y as they enter the statistics: Assumption 4.1 enforced, or as given without clip."""
    if clip is None:
        return x, y
    max_norm, low, high = clip
    norm = float(np.linalg.norm(x))
    return (x * (max_norm / norm) if norm > max_norm else x), min(max(y, low), high)


def vector_node(
    k: int,
    batch_size: int,
    points: list[list[tuple[np.ndarray, float]]],
    encoding: Callable[[int], tuple[int, int]],
    uniforms: Callable[[int, int, int], np.ndarray],
    centred_noise: Callable[[int, int], np.ndarray],
    clamp: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 5, lines 4-7 and 13: node k of bias (d,) and covariance (d, d), with L = 1.

    `points[i]` holds the (x, y) of silo i, round after round, as they enter the statistics. Both
    streams are encoded alike, so their coordinates go through P_Vec as one vector.
    """
    d = len(points[0][0][0])
    g, b = encoding(first_one(k))
    if g < 1 or b < 0:
        raise ValueError(f"the encoding at synchronisation {k} is g = {g}, b = {b}")
    # Line 6: D_k, the rounds of the batches under the node.
    first, last = node_interval(k)
    rounds = range((first - 1) * batch_size + 1, last * batch_size + 1)
    steps = np.zeros(d + d * (d + 1) // 2)
    for i, of_silo in enumerate(points):
        for t in rounds:
            x, y = of_silo[t - 1]
            # Line 7; of a symmetric matrix only the lower triangle is sent.
            point = np.concatenate([x * y, lower_triangle(np.outer(x, x))])
            # Each point was shifted by L, which is g steps (Algorithm 6, lines 4 and 12).
            steps += fixed_point(point, g, 1.0, uniforms(i, t, k), clamp) - g
        noise = np.asarray(centred_noise(i, k), dtype=np.float64)
        if noise.shape != steps.shape:
            raise ValueError(f"centred noise has shape {noise.shape}")
        ones = noise + len(rounds) * b / 4
        if not ((ones >= 0) & (ones <= len(rounds) * b) & (ones == np.floor(ones))).all():
            raise ValueError(f"centred noise of silo {i} at {k} is no count of bits minus its mean")
        steps += noise
    # Line 13, by the analyzer of Algorithm 7, line 10.
    node = steps / g
    return node[:d], symmetric(node[d:])


def scores(
    phi: np.ndarray, covariance: np.ndarray, bias: np.ndarray, beta: float, gamma: float
) -> tuple[np.ndarray, float]:
    """Score of each action (Algorithm 1, lines 5-6), and the scale of their rounding errors.

    gamma ||V^-1 x|| is not the paper's; gamma = 0 leaves the paper's rule. A V that is not
    positive definite is outside the paper (Assumption C.1) and is refused.
    """
    try:
        np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError("V is not positive definite: the paper's rule is undefined") from None
    theta = np.linalg.solve(covariance, bias)
    whitened = phi @ np.linalg.inv(covariance)
    means = phi @ theta
    bonus = beta * np.sqrt(np.sum(whitened * phi, axis=1))
    bonus = bonus + gamma * np.linalg.norm(whitened, axis=1)
    if not np.isfinite(means + bonus).all():
        raise ValueError("a score is not finite")
    return means + bonus, float(np.max(np.abs(means) + np.abs(bonus)))


def checked(noise: Noise, dimension: int) -> Noise:
    """The noise of one node, refused unless its covariance part is symmetric."""
    bias, covariance = (np.asarray(part, dtype=np.float64) for part in noise)
    if bias.shape != (dimension,) or covariance.shape != (dimension, dimension):
        raise ValueError(f"noise has shapes {bias.shape} and {covariance.shape}")
    if not np.array_equal(covariance, covariance.T):
        raise ValueError("covariance noise is not symmetric")
    return bias, covariance


def replay(
    *,
    contexts: Callable[[int, int], np.ndarray],
    means: Callable[[int, int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    batch_size: int | None,
    protocol: str,
    lazy: bool,
    regularizer: Callable[[int], float],
    radius: Callable[[int, int], float],
    noise: Callable[[int, int], Noise],
    server_noise: Callable[[int], Noise] | None = None,
    clip: tuple[float, float, float] | None = None,
    gamma: float = 0.0,
    order: Callable[[int], Sequence[int]] | None = None,
    encoding: Callable[[int], tuple[int, int]] | None = None,
    uniforms: Callable[[int, int, int], np.ndarray] | None = None,
    centred_noise: Callable[[int, int], np.ndarray] | None = None,
) -> Replay:
    """Follow actions and rewards (M, T) through Algorithm 1, or Algorithm 8 if lazy.

    `contexts(t, i)` gives phi_i(c_{t,i}, .) as (K, d), `means(t, i)` the K expected rewards.
    `regularizer(k)` is lambda after k synchronisations, `radius(t, k)` is beta in round t after k
    synchronisations. `noise(i, k)` is the noise of the node that silo i releases at
    synchronisation k, `server_noise(k)` that of the server ("central" only); each is asked for
    once. `clip` is (max_norm, low, high): x and y of the statistics, not of the scores, are cut.
    Protocol "local", or batch_size None, never synchronises; "none" sends plain sums.

    "shuffle-amplified" is "silo-ldp" with the silos' noisy nodes summed in `order(k)`, a
    permutation of the silos (None: as they are). "shuffle-vector" sums the data points under each
    node by Algorithm 5: `encoding(level)` is (g, b) of a node of 2^level batches;
    `uniforms(i, t, k)` in [0, 1) round silo i's point of round t in the node released at k, and
    `centred_noise(i, k)` is the number of noise ones of silo i's n_i points in that node minus its
    mean n_i b / 4, both of length d + d(d + 1)/2: x y first, then the packed lower triangle of
    x x'. Without `clip`, values outside [-1, 1] are encoded beyond 0..2g instead of being clamped.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {PROTOCOLS}, got {protocol!r}")
    if protocol == "central" and server_noise is None:
        raise ValueError("central needs server_noise")
    algorithm_5 = None
    if protocol == "shuffle-vector":
        if encoding is None or uniforms is None or centred_noise is None:
            raise ValueError("shuffle-vector needs encoding, uniforms and centred_noise")
        algorithm_5 = partial(
            vector_node,
            encoding=encoding,
            uniforms=uniforms,
            centred_noise=centred_noise,
            clamp=clip is not None,
        )
    actions = np.asarray(actions)
    rewards = np.asarray(rewards, dtype=np.float64)
    if actions.ndim != 2 or actions.shape != rewards.shape:
        raise ValueError(f"actions and rewards have shapes {actions.shape} and {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    silos, horizon = actions.shape
    d = np.shape(contexts(1, 0))[1]

    # Line 2.
    W = [np.zeros((d, d)) for _ in range(silos)]
    U = [np.zeros(d) for _ in range(silos)]
    points: list[list[tuple[np.ndarray, float]]] = [[] for _ in range(silos)]
    W_syn, U_syn = np.zeros((d, d)), np.zeros(d)
    bias_stream = Stream(protocol, silos, (d,))
    cov_stream = Stream(protocol, silos, (d, d))
    k = 0

    worst_gap = 0.0
    regret = np.zeros(horizon)
    totals: list[tuple[np.ndarray, np.ndarray]] = []
    # Line 3.
    for t in range(1, horizon + 1):
        # Line 4.
        for i in range(silos):
            # Line 5 (Algorithm 8, line 5, leaves the silo's own batch out).
            phi = np.asarray(contexts(t, i), dtype=np.float64)
            V = regularizer(k) * np.eye(d) + W_syn + (0.0 if lazy else W[i])
            bias = U_syn + (0.0 if lazy else U[i])
            # Line 6, with the recorded action and reward in place of the argmax.
            score, scale = scores(phi, V, bias, radius(t, k), gamma)
            a, y = int(actions[i, t - 1]), float(rewards[i, t - 1])
            if not 0 <= a < len(phi):
                raise ValueError(f"action {a} of silo {i} in round {t} is not in 0..{len(phi) - 1}")
            if scale > 0:
                worst_gap = max(worst_gap, float(score.max() - score[a]) / scale)
            expected = np.asarray(means(t, i), dtype=np.float64)
            regret[t - 1] += expected.max() - expected[a]
            # Line 7 (Algorithm 8, line 8).
            x, y = clipped(phi[a], y, clip)
            U[i] = U[i] + x * y
            W[i] = W[i] + np.outer(x, x)
            points[i].append((x, y))
        # Line 9 (Algorithm 8, line 10): an unfinished last batch is never sent.
        if protocol != "local" and batch_size is not None and t % batch_size == 0:
            k += 1
            drawn: list[Noise] = []
            server: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
            sequence: Sequence[int] = range(silos)
            if protocol in ("silo-ldp", "silo-ldp-prefix", "shuffle-amplified"):
                drawn = [checked(noise(i, k), d) for i in range(silos)]
            elif protocol == "central" and server_noise is not None:
                server = checked(server_noise(k), d)
            if protocol == "shuffle-amplified" and order is not None:
                sequence = [int(i) for i in order(k)]
                if sorted(sequence) != list(range(silos)):
                    raise ValueError(f"order({k}) is no permutation of the {silos} silos")
            # Lines 11-15: both streams through P; a sum sees the shuffler only in its last digits.
            if algorithm_5 is not None:
                U_node, W_node = algorithm_5(k, batch_size, points)
                U_syn, W_syn = bias_stream.prefix(k, U_node), cov_stream.prefix(k, W_node)
            else:
                biases, covariances = [bias for bias, _ in drawn], [cov for _, cov in drawn]
                U_syn = bias_stream.synchronise(k, U, biases, server[0], sequence)
                W_syn = cov_stream.synchronise(k, W, covariances, server[1], sequence)
            totals.append((W_syn, U_syn))
            # Line 17.
            W = [np.zeros((d, d)) for _ in range(silos)]
            U = [np.zeros(d) for _ in range(silos)]
    return Replay(worst_gap, np.cumsum(regret), totals, list(zip(W, U, strict=True)))
