"""Zhou and Chowdhury (2024), "On Differentially Private Federated Linear Contextual Bandits".

Algorithm 1 (Private-FedLinUCB) with Algorithm 2 (tree-based p-sums), Algorithm 4 (prefix sums),
Algorithm 5 (vector sums of the data points under a node) and Algorithm 8 (lazy update), by *forced
replay*. The recorded actions and rewards are repeated, and the replay measures how far each
action's score lies below the best one. Comments have the paper's line numbers. Nothing is
incremental if a definition is available: a node is the sum of the leaves, or data points, under it,
and V is built and inverted again in every round.

Two parts are not from the paper. The first are the releases "honaker" (Honaker 2015, the tree with
its right children and online estimates) and "toeplitz" (Fichtenberger-Henzinger-Upadhyay 2023, the
square root of the prefix matrix). The second is the direct radius, which is fastfed's own.

The paper's symbols are W, U covariance and bias statistics; gamma_k the statistics of batch k;
alpha a p-sum (tree node); k the synchronisation; B the batch size; M silos, T rounds, K actions.
Rounds t and synchronisations k count from 1, silos i from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

import numpy as np

from .vector_sum import fixed_point, lower_triangle, symmetric

Noise = tuple[np.ndarray, np.ndarray]  # of the bias stream (d,), of the covariance stream (d, d)
Drawn = dict[int, Noise]  # by number
PROTOCOLS = (
    "none",
    "silo-ldp",
    "silo-ldp-prefix",
    "central",
    "local",
    "shuffle-amplified",
    "shuffle-vector",
)
RELEASES = ("tree", "honaker", "toeplitz")


@dataclass
class Direct:
    """The direct radius: lambda is chosen at each release, and V's own determinant bounds theta.

    `full(k)` is the largest lambda after k synchronisations. `floor(k)` is the value that the
    eigenvalues of V must exceed (0: lambda is full(k)), and `error(k)` is E_k. Further, c is
    `anchor`, R is `scale`, and `base` is the term of beta^2 / R^2 for the failure probability.
    """

    full: Callable[[int], float]
    floor: Callable[[int], float]
    error: Callable[[int], float]
    anchor: float
    base: float
    scale: float
    multiplier: float = 1.0


@dataclass
class Replay:
    """The result of repeating the recorded actions.

    `worst_gap` is the largest shortfall of the chosen action's score from the best score. It is
    relative to the largest |<x, theta_hat>| + bonus of the round, the size of the rounded numbers;
    the best score itself may cancel to 0. `totals` and `local` are pairs (W, U).

    With a direct radius, `regularizers` has the lambda of 0, 1, 2, ... synchronisations.
    `nearest_floor` is the smallest distance, over all candidates of lambda, of the least eigenvalue
    of V from the floor. It is relative to the largest |eigenvalue| of V or the floor. Rounding
    errors of that order may change another program's choice to the next candidate.
    """

    worst_gap: float
    group_regret: np.ndarray  # (T,), cumulative over rounds, summed over silos
    totals: list[tuple[np.ndarray, np.ndarray]]  # (W_syn, U_syn) after each synchronisation
    local: list[tuple[np.ndarray, np.ndarray]]  # (W_i, U_i) of each silo after round T
    regularizers: list[float]
    nearest_floor: float


def first_one(k: int) -> int:
    """Return i_k = min{j : Bin_j(k) = 1} (Algorithm 2, lines 4-5)."""
    return min(j for j in range(k.bit_length()) if (k >> j) & 1)


def node_interval(k: int) -> tuple[int, int]:
    """Return the first and last batch under the node that is released at synchronisation k."""
    return k - 2 ** first_one(k) + 1, k


def tree_nodes(k: int) -> list[int]:
    """Return the nodes of the prefix sum [1, k], each by the synchronisation that released it.

    The level-j node for Bin_j(k) = 1 ends at k without its bits below j. The prefix of k = 6 =
    (110)_2 consists of the node released at 4, sum [1, 4], and the one released at 6, sum [5, 6].
    """
    return [(k >> j) << j for j in reversed(range(k.bit_length())) if (k >> j) & 1]


def added(parts: list[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays of one shape."""
    total: np.ndarray = np.sum(parts, axis=0)
    return total


def p_sum(stream: list[np.ndarray], k: int) -> np.ndarray:
    """Return the raw node released at k: the sum of gamma over its interval (Algorithm 2, line
    6)."""
    first, last = node_interval(k)
    return added(stream[first - 1 : last])


def square_root(size: int) -> np.ndarray:
    """Return C with C C = A, the lower triangle of ones: C_kj = f_{k-j}, f_m = binom(2m, m) /
    4^m."""
    f = [comb(2 * m, m) / 4**m for m in range(size)]
    return np.array([[f[k - j] if j <= k else 0.0 for j in range(size)] for k in range(size)])


def honaker_number(k: int, level: int) -> int:
    """Return the number of the node of 2^level batches that ends at batch k.

    Nodes are numbered by release, then level.
    """
    return 2 * (k - 1) - (k - 1).bit_count() + 1 + level


def honaker_weight(level: int) -> float:
    """Return v_h, the variance of a node's estimate if a node's own noise has variance 1.

    The children's estimates sum to variance 2 v_{h-1}; inverse variances weigh the two sums.
    """
    return 1.0 if level == 0 else 1.0 / (1.0 + 1.0 / (2.0 * honaker_weight(level - 1)))


def honaker_estimate(k: int, level: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the noise of the estimate of the node of 2^level batches that ends at batch k."""
    own_noise = draw(honaker_number(k, level))
    if level == 0:
        return own_noise
    left = honaker_estimate(k - 2 ** (level - 1), level - 1, draw)
    right = honaker_estimate(k, level - 1, draw)
    v = honaker_weight(level)
    return v * own_noise + (1.0 - v) * (left + right)


def prefix_noise(release: str, k: int, draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the noise of the prefix sum [1, k] for a release other than the paper's tree."""
    if release == "toeplitz":
        draws = np.array([draw(j) for j in range(1, k + 1)])
        noises: np.ndarray = np.tensordot(square_root(k), draws, axes=1)[-1]
        return noises
    return added([honaker_estimate(end, first_one(end), draw) for end in tree_nodes(k)])


def new_numbers(release: str, k: int) -> list[int]:
    """Return the numbers of the noise that is first drawn at release k."""
    if release == "honaker":
        return [honaker_number(k, level) for level in range(first_one(k) + 1)]
    return [k]


class Stream:
    """Protocol P for one of the two streams (bias vectors, or covariance matrices)."""

    def __init__(self, protocol: str, silos: int, shape: tuple[int, ...]) -> None:
        self.protocol = protocol
        self.plain = np.zeros(shape)
        self.gamma: list[list[np.ndarray]] = [[] for _ in range(silos)]
        # Noisy nodes by silo and by release; they include the noise, so it is never drawn again.
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
        """Return the total s_k that all silos receive, from every silo's gamma_k."""
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
        """Synchronise once by Algorithm 2, and return the new total."""
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
        """Return the synchronised prefix sum after the node of k (line 14 of Algorithms 2 and
        5)."""
        self.synchronised[k] = node
        return added([self.synchronised[released] for released in tree_nodes(k)])

    def whole_prefixes(
        self, k: int, gammas: list[np.ndarray], part: int, release: str, givers: list[Drawn]
    ) -> np.ndarray:
        """Return the prefix sum of all silos, with the noise of every source added.

        `part` is the stream's position in the pairs (bias, covariance) of the draws.
        """
        for stream, gamma in zip(self.gamma, gammas, strict=True):
            stream.append(gamma)
        raw = [added(stream[:k]) for stream in self.gamma]

        def of(drawn: Drawn) -> Callable[[int], np.ndarray]:
            """Return the stream's part of a draw as a function of its number."""
            return lambda number: drawn[number][part]

        return added(raw + [prefix_noise(release, k, of(drawn)) for drawn in givers])

    def algorithm_4(self, k: int, noises: list[np.ndarray]) -> np.ndarray:
        """Synchronise once by Algorithm 4, and return the new total."""
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
    """Return x and y of the statistics: Assumption 4.1 enforced, or unchanged without clip."""
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
    """Return node k of bias (d,) and covariance (d, d), with L = 1 (Algorithm 5, lines 4-7 and 13).

    `points[i]` has the (x, y) of silo i, round after round, as in the statistics. Both streams are
    encoded alike, so that their coordinates go through P_Vec as one vector.
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
    """Return the score of each action (Algorithm 1, lines 5-6), and the scale of their rounding
    errors.

    gamma ||V^-1 x|| is not from the paper; gamma = 0 is the paper's rule. A V that is not positive
    definite is outside the paper (Assumption C.1) and is refused.
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


def chosen_regularizer(direct: Direct, k: int, total: np.ndarray) -> tuple[float, float]:
    """Return lambda after k synchronisations with covariance total `total`, and `nearest_floor`.

    It is the least of full j/8, j = 0..7, for which all eigenvalues of V exceed the floor, or full.
    """
    full, floor = direct.full(k), direct.floor(k)
    nearest = np.inf
    if floor <= 0.0:
        return full, nearest
    allowed = []
    for j in range(8):
        of_V = np.linalg.eigvalsh(full * j / 8 * np.eye(len(total)) + total)
        nearest = min(nearest, abs(of_V[0] - floor) / max(floor, np.abs(of_V).max()))
        if of_V.min() > floor:
            allowed.append(full * j / 8)
    return min([*allowed, full]), float(nearest)


def direct_bonuses(
    direct: Direct, k: int, lam: float, covariance: np.ndarray, released: np.ndarray | None = None
) -> tuple[float, ...]:
    """Return (beta, gamma) of the direct radius at V = `covariance`, which includes lam I.

    `released` is V after synchronisation k, by default the same; f is computed from it.
    """
    d = len(covariance)
    full, f = direct.full(k), 1.0
    if lam != full:
        values = np.linalg.eigvalsh(covariance if released is None else released)
        # The largest eigenvalue of V^-1 is at most the eighth root of the trace of V^-8.
        inverse = float((values**-8.0).sum()) ** 0.125 * (1.0 + 1e-9)
        f = 1.0 + (full - lam) * min(1.0 / direct.floor(k), inverse)
    sign, log_det = np.linalg.slogdet(covariance)
    if sign <= 0:
        raise ValueError("V is not positive definite: its log determinant is undefined")
    grown = max(0.0, float(log_det) + d * np.log(f / direct.anchor))
    beta = direct.multiplier * direct.scale * np.sqrt(f * (direct.base + grown))
    return float(beta), direct.multiplier * (lam + direct.error(k))


def checked(noise: Noise, dimension: int) -> Noise:
    """Return the noise of one node; refuse it unless its covariance part is symmetric."""
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
    noise: Callable[[int, int], Noise],
    regularizer: Callable[[int], float] | None = None,
    radius: Callable[[int, int], float] | None = None,
    server_noise: Callable[[int], Noise] | None = None,
    clip: tuple[float, float, float] | None = None,
    gamma: float = 0.0,
    release: str = "tree",
    direct: Direct | None = None,
    order: Callable[[int], Sequence[int]] | None = None,
    encoding: Callable[[int], tuple[int, int]] | None = None,
    uniforms: Callable[[int, int, int], np.ndarray] | None = None,
    centred_noise: Callable[[int, int], np.ndarray] | None = None,
) -> Replay:
    """Replay actions and rewards (M, T) by Algorithm 1, or Algorithm 8 if lazy.

    - `contexts(t, i)` returns the features phi_i(c_{t,i}, .) (K, d), `means(t, i)` the K expected
      rewards.
    - `regularizer(k)` returns lambda after k synchronisations, `radius(t, k)` beta in round t.
    - `noise(i, k)` returns the noise of the node that silo i releases at synchronisation k,
      `server_noise(k)` the noise of the server ("central" only). Each is called once per node.
    - `clip` is (max_norm, low, high): clips x and y in the statistics, but not in the scores.
    - `direct` replaces `regularizer`, `radius` and `gamma`, see `Direct`.
    - Protocol "local", or batch_size None, never synchronises; "none" sends sums without noise.

    With `release` "honaker" or "toeplitz" ("silo-ldp" and "central" only) k is the number of a
    draw, not of a synchronisation. "toeplitz" uses draw k at release k. "honaker" uses one draw for
    each node of 1, 2, 4, ... batches that ends at batch k; draws are numbered in the order of
    releases.

    "shuffle-amplified" is "silo-ldp" with the silos' noisy nodes summed in `order(k)`, a
    permutation of the silos. "shuffle-vector" sums the data points under each node by Algorithm 5:

    - `encoding(level)` returns (g, b) of a node of 2^level batches.
    - `uniforms(i, t, k)` in [0, 1) round silo i's point of round t in the node released at k.
    - `centred_noise(i, k)` returns the number of noise ones of silo i's n_i points in that node,
      minus the mean n_i b / 4. Like `uniforms` it has length d + d(d + 1)/2: x y first, then the
      packed lower triangle of x x'.

    Without `clip`, values outside [-1, 1] are encoded beyond 0..2g instead of being clamped.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {PROTOCOLS}, got {protocol!r}")
    if protocol == "central" and server_noise is None:
        raise ValueError("central needs server_noise")
    if release not in RELEASES:
        raise ValueError(f"release must be one of {RELEASES}, got {release!r}")
    if release != "tree" and protocol not in ("silo-ldp", "central"):
        raise ValueError(f"release {release!r} is not of protocol {protocol!r}")
    if direct is None and (regularizer is None or radius is None):
        raise ValueError("without a direct radius, regularizer and radius are needed")
    if direct is not None and (regularizer is not None or radius is not None or gamma != 0.0):
        raise ValueError("a direct radius takes the place of regularizer, radius and gamma")
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
    # The draws of each silo, or of the server, by number, for releases other than the tree.
    givers: list[Drawn] = [{} for _ in range(1 if protocol == "central" else silos)]
    k = 0

    def draw(giver: int, number: int) -> Noise:
        """Return the noise of a draw, of the server or of a silo."""
        if protocol == "central" and server_noise is not None:
            return server_noise(number)
        return noise(giver, number)

    def lambda_of(total: np.ndarray) -> tuple[float, float]:
        """Return lambda for a total, and how near another choice was."""
        if direct is not None:
            return chosen_regularizer(direct, k, total)
        assert regularizer is not None
        return regularizer(k), np.inf

    lam, nearest_floor = lambda_of(W_syn)
    regularizers = [lam]

    worst_gap = 0.0
    regret = np.zeros(horizon)
    totals: list[tuple[np.ndarray, np.ndarray]] = []
    # Line 3.
    for t in range(1, horizon + 1):
        # Line 4.
        for i in range(silos):
            # Line 5 (Algorithm 8, line 5, leaves the silo's own batch out).
            phi = np.asarray(contexts(t, i), dtype=np.float64)
            V = lam * np.eye(d) + W_syn + (0.0 if lazy else W[i])
            bias = U_syn + (0.0 if lazy else U[i])
            # Line 6, with the recorded action and reward in place of the argmax.
            if direct is not None:
                beta, second = direct_bonuses(direct, k, lam, V, lam * np.eye(d) + W_syn)
            else:
                assert radius is not None
                beta, second = radius(t, k), gamma
            score, scale = scores(phi, V, bias, beta, second)
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
            draws: list[Noise] = []
            server: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
            sequence: Sequence[int] = range(silos)
            if release != "tree":
                for i, drawn in enumerate(givers):
                    for number in new_numbers(release, k):
                        drawn[number] = checked(draw(i, number), d)
            elif protocol in ("silo-ldp", "silo-ldp-prefix", "shuffle-amplified"):
                draws = [checked(noise(i, k), d) for i in range(silos)]
            elif protocol == "central" and server_noise is not None:
                server = checked(server_noise(k), d)
            if protocol == "shuffle-amplified" and order is not None:
                sequence = [int(i) for i in order(k)]
                if sorted(sequence) != list(range(silos)):
                    raise ValueError(f"order({k}) is no permutation of the {silos} silos")
            # Lines 11-15: both streams through P; the shuffler's order changes only a sum's last
            # digits.
            if algorithm_5 is not None:
                U_node, W_node = algorithm_5(k, batch_size, points)
                U_syn, W_syn = bias_stream.prefix(k, U_node), cov_stream.prefix(k, W_node)
            elif release != "tree":
                U_syn = bias_stream.whole_prefixes(k, U, 0, release, givers)
                W_syn = cov_stream.whole_prefixes(k, W, 1, release, givers)
            else:
                biases, covariances = [bias for bias, _ in draws], [cov for _, cov in draws]
                U_syn = bias_stream.synchronise(k, U, biases, server[0], sequence)
                W_syn = cov_stream.synchronise(k, W, covariances, server[1], sequence)
            totals.append((W_syn, U_syn))
            lam, distance = lambda_of(W_syn)
            regularizers.append(lam)
            nearest_floor = min(nearest_floor, distance)
            # Line 17.
            W = [np.zeros((d, d)) for _ in range(silos)]
            U = [np.zeros(d) for _ in range(silos)]
    unsent = list(zip(W, U, strict=True))
    return Replay(worst_gap, np.cumsum(regret), totals, unsent, regularizers, nearest_floor)
