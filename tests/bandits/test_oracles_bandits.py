"""Check the bandit oracles against second players written from the definitions and against
calculation by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import chowdhury_zhou_2022 as chowdhury
from oracle import dubey_pentland_2020 as dubey
from oracle import huang_2023 as huang
from oracle import vector_sum
from oracle import zhou_chowdhury_2024 as zhou
from pytest import approx

Pair = tuple[np.ndarray, np.ndarray]  # of x x' (d, d), of x y (d,)
# Seven whole batches and two rounds that are never sent.
M, T, B, D, K = 3, 23, 3, 3, 4
CLIP = (1.0, -1.0, 1.0)


def keyed_rng(*key: int) -> np.random.Generator:
    """Return the generator of a key."""
    return np.random.default_rng([2024, *key])


@cache
def contexts(t: int, i: int = 0) -> np.ndarray:
    """Return rows of norms around 1, so that the clip shortens some of them."""
    rows = keyed_rng(1, t, i).standard_normal((K, D))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * keyed_rng(2, t, i).uniform(0.6, 1.2)


def means(t: int, i: int = 0) -> np.ndarray:
    """Return the expected rewards of the actions of silo i in round t."""
    return contexts(t, i) @ np.arange(1.0, D + 1)


ACTIONS = keyed_rng(3).integers(K, size=(M, T))
REWARDS = keyed_rng(4).uniform(-1.4, 1.4, size=(M, T))
GAME: dict[str, Any] = {"contexts": contexts, "means": means, "clip": CLIP}
ALL_SILOS: dict[str, Any] = GAME | {"actions": ACTIONS, "rewards": REWARDS}
ONE_SILO: dict[str, Any] = GAME | {"actions": ACTIONS[0], "rewards": REWARDS[0]}


def width(t: int, k: int) -> float:
    """Return a radius that depends on the round t and the release k."""
    return 0.5 + 0.05 * t + 0.2 * k


@cache
def noise(*key: int) -> np.ndarray:
    """Return symmetric noise (d + 1, d + 1) for [x; y] [x; y]'."""
    square = keyed_rng(5, *key).standard_normal((D + 1, D + 1))
    return (square + square.T) / sqrt(2)


def bias_and_covariance(z: np.ndarray) -> Pair:
    """Return the pair (bias, covariance) that two of the oracles take."""
    return z[:D, D], z[:D, :D]


@cache
def point(t: int, i: int) -> tuple[np.ndarray, float]:
    """Return the clipped data point (x, y) of silo i in round t."""
    x, y = contexts(t, i)[ACTIONS[i, t - 1]], REWARDS[i, t - 1]
    return x / max(1.0, float(np.linalg.norm(x))), float(np.clip(y, -1, 1))


def sum_of_points(silos: int, rounds: range) -> np.ndarray:
    """Return the sum of [x; y] [x; y]' over the silos and rounds."""
    points = [np.append(*point(t, i)) for i in range(silos) for t in rounds]
    return sum((np.outer(v, v) for v in points), np.zeros((D + 1, D + 1)))


@cache
def packed_point(t: int, i: int) -> np.ndarray:
    """Return x y, then the lower triangle of x x' row by row."""
    x, y = point(t, i)
    return np.array([*(x * y), *(x[a] * x[b] for a in range(D) for b in range(a + 1))])


def to_matrix(v: np.ndarray) -> np.ndarray:
    """Return the (d + 1, d + 1) matrix of such a vector; its last entry is not used."""
    u0, u1, u2, a, b, c, d, e, f = v
    return np.array([[a, b, d, u0], [b, c, e, u1], [d, e, f, u2], [u0, u1, u2, 0]])


def gap(
    rows: np.ndarray, V: np.ndarray, u: np.ndarray, t: int, i: int, k: int = 0, second: float = 0.0
) -> float:
    """Return how far the action's score lies below the best one, in units of the largest score."""
    inverse = np.linalg.inv(V)
    mean = rows @ inverse @ u
    bonus = np.array([width(t, k) * sqrt(x @ inverse @ x) for x in rows])
    bonus += [second * float(np.linalg.norm(inverse @ x)) for x in rows]
    score = mean + bonus
    return float((score.max() - score[ACTIONS[i, t - 1]]) / max(np.abs(mean) + bonus))


def check_replay(
    replay: Any,
    total: Callable[[int], np.ndarray],
    *,
    silos: int = M,
    lam: Callable[[int], float] = lambda k: 40.0 + k,
    lazy: bool = False,
    second: float = 0.0,
    batch: int = B,
    start: np.ndarray | float = 0.0,
) -> None:
    """Compare a replay with an agent of `total(k)`, the statistics after k batches."""
    expected = [np.zeros((D + 1, D + 1)) + start, *(total(k) for k in range(1, T // batch + 1))]
    assert len(replay.totals) == len(expected) - 1
    for (W, U), expected_total in zip(replay.totals, expected[1:], strict=True):
        assert approx(expected_total[:D, :D], abs=1e-10) == W
        assert approx(expected_total[:D, D], abs=1e-10) == U
    largest_gap, regrets = 0.0, np.zeros(T)
    for t in range(1, T + 1):
        k = (t - 1) // batch
        for i in range(silos):
            expected_total = expected[k]
            if not lazy:
                expected_total = (
                    expected_total
                    + sum_of_points(i + 1, range(k * batch + 1, t))
                    - sum_of_points(i, range(k * batch + 1, t))
                )
            V = expected_total[:D, :D] + lam(k) * np.eye(D)
            largest_gap = max(
                largest_gap, gap(contexts(t, i), V, expected_total[:D, D], t, i, k, second)
            )
            regrets[t - 1] += means(t, i).max() - means(t, i)[ACTIONS[i, t - 1]]
    assert largest_gap > 0.01
    assert replay.worst_gap == approx(largest_gap, rel=1e-9)
    regret = replay.regret if hasattr(replay, "regret") else replay.group_regret
    assert regret == approx(np.cumsum(regrets))


# Zhou and Chowdhury (2024).


def zhou_replay(protocol: str, **changes: Any) -> zhou.Replay:
    """Replay the recorded choices by the oracle, with these arguments changed."""
    arguments: dict[str, Any] = {"lazy": False, "batch_size": B, "protocol": protocol, "gamma": 0.4}
    arguments |= {
        "noise": lambda i, k: bias_and_covariance(noise(i, k)),
        "regularizer": lambda k: 40.0 + k,
    }
    arguments |= {"server_noise": lambda k: bias_and_covariance(noise(9, k)), "radius": width}
    return zhou.replay(**ALL_SILOS | arguments | changes)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("protocol", "release", "noise_silos"),
    [
        ("none", "tree", []),
        ("silo-ldp", "tree", range(M)),
        ("silo-ldp-prefix", "tree", range(M)),
        ("shuffle-amplified", "tree", range(M)),
        ("central", "tree", [9]),
        ("silo-ldp", "honaker", range(M)),
        ("central", "toeplitz", [9]),
    ],
)
def test_zhou_replays_equal_the_second_player(
    protocol: str, release: str, noise_silos: Any, lazy: bool
) -> None:
    def total(k: int) -> np.ndarray:
        """Return the released total after k batches."""
        if release == "tree":
            noises = [noise(i, node) for i in noise_silos for node in dubey.tree_nodes(k)]
        else:
            noises = [
                zhou.prefix_noise(release, k, lambda n, i=i: noise(i, n)) for i in noise_silos
            ]
        return sum(noises, sum_of_points(M, range(1, k * B + 1)))

    replayed = zhou_replay(protocol, release=release, lazy=lazy)
    check_replay(replayed, total, lazy=lazy, second=0.4)
    unsent = [
        sum_of_points(i + 1, range(22, 24)) - sum_of_points(i, range(22, 24)) for i in range(M)
    ]
    for (W, U), expected in zip(replayed.local, unsent, strict=True):
        assert approx(expected[:D, :D]) == W
        assert approx(expected[:D, D]) == U


def test_zhou_replays_without_synchronisation_equal_the_second_player() -> None:
    for replay in (zhou_replay("local"), zhou_replay("silo-ldp", batch_size=None)):
        check_replay(replay, lambda k: np.zeros(()), second=0.4, lam=lambda k: 40.0, batch=T + 1)


def test_zhou_vector_sums_equal_sums_of_single_bits() -> None:
    """Build every bit of every node, while the replay draws only their counts."""
    # (g, b) by level, and the rounds of each node.
    encodings = [(7, 6), (9, 8), (11, 10)]
    encoding_of_node = {k: encodings[(k & -k).bit_length() - 1] for k in range(1, T // B + 1)}
    rounds_of = {
        k: range((dubey.leaves_under(k)[0] - 1) * B + 1, k * B + 1) for k in encoding_of_node
    }

    def noise_bits(i: int, k: int) -> np.ndarray:
        """Return the numbers of noise ones of silo i in node k, by round and entry."""
        return keyed_rng(7, i, k).binomial(encoding_of_node[k][1], 0.25, (len(rounds_of[k]), 9))

    def centred_noise_bits(i: int, k: int) -> np.ndarray:
        """Return the sums of these numbers over the rounds of a node, minus their mean."""
        return np.sum(noise_bits(i, k) - encoding_of_node[k][1] / 4, axis=0)

    def node_matrix(k: int) -> np.ndarray:
        """Return the released sum of node k as a matrix."""
        (g, b), rounds = encoding_of_node[k], rounds_of[k]
        points = np.array([packed_point(t, i) for i in range(M) for t in rounds])
        uniforms = np.array([keyed_rng(8, i, t, k).random(9) for i in range(M) for t in rounds])
        bits = np.concatenate([noise_bits(i, k) for i in range(M)])
        return to_matrix(vector_sum.vector_sum(points, g, b, 1.0, uniforms, bits))

    replayed = zhou_replay(
        "shuffle-vector",
        regularizer=lambda k: 80.0,
        encoding=lambda level: encodings[level],
        uniforms=lambda i, t, k: keyed_rng(8, i, t, k).random(9),
        centred_noise=centred_noise_bits,
    )
    check_replay(
        replayed,
        lambda k: sum(map(node_matrix, dubey.tree_nodes(k))),
        second=0.4,
        lam=lambda k: 80.0,
    )


@pytest.mark.parametrize(
    ("protocol", "changes", "message"),
    [
        ("silo", {}, "protocol"),
        ("central", {"server_noise": None}, "server_noise"),
        ("none", {"rewards": np.zeros((2, 3))}, "shapes"),
        ("none", {"rewards": np.full((M, T), np.nan)}, "not finite"),
        ("none", {"actions": np.full((M, T), -1)}, "action -1"),
        ("none", {"actions": np.full((M, T), 4)}, "action 4"),
        ("none", {"radius": lambda t, k: np.nan}, "not finite"),
        ("none", {"radius": None}, "needed"),
        ("none", {"direct": zhou.Direct(width, width, width, 1, 1, 1)}, "the place"),  # type: ignore[arg-type]
        ("silo-ldp", {"noise": lambda i, k: (np.zeros(3), -90.0 * np.eye(3))}, "positive definite"),
        ("silo-ldp", {"noise": lambda i, k: (np.zeros(3), np.tri(3))}, "symmetric"),
        ("silo-ldp", {"noise": lambda i, k: (np.zeros((3, 1)), np.zeros((3, 3)))}, "shapes"),
        ("silo-ldp", {"noise": lambda i, k: (np.zeros(3), np.zeros(3))}, "shapes"),
        ("silo-ldp", {"release": "forest"}, "release must be"),
        ("silo-ldp-prefix", {"release": "honaker"}, "not of protocol"),
        ("shuffle-amplified", {"release": "toeplitz"}, "not of protocol"),
    ],
)
def test_zhou_errors_name_the_bad_argument(
    protocol: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        zhou_replay(protocol, **changes)


# Dubey and Pentland (2020).


def complete_graph(size: int) -> np.ndarray:
    """Return the adjacency matrix of a graph in which all are neighbours."""
    return np.ones((size, size), dtype=int) - np.eye(size, dtype=int)


def line_graph(size: int) -> np.ndarray:
    """Return the adjacency matrix of a path."""
    return np.eye(size, k=1, dtype=int) + np.eye(size, k=-1, dtype=int)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_dubey_replays_with_fixed_batches_equal_the_second_player(lazy: bool, noisy: bool) -> None:
    """Check that lambda is M rho_min before the first synchronisation and M shifts after it."""
    arguments: dict[str, Any] = {"rho_min": 8.0, "rho_max": 24.0, "lazy": lazy, "batch_size": B}
    arguments |= {"schedule": "fixed", "radius": lambda t, i, V: width(t, (t - 1) // B)}

    def total(k: int) -> np.ndarray:
        """Return the released total after k batches."""
        noises = [noise(i, n) for i in range(M) for n in dubey.tree_nodes(k)] if noisy else []
        return sum(noises, sum_of_points(M, range(1, k * B + 1))) + 48.0 * np.diag([1, 1, 1, 0])

    replayed = dubey.replay(**ALL_SILOS | arguments, noise=noise if noisy else None)
    check_replay(replayed, total, lazy=lazy, lam=lambda k: 0.0 if k else 24.0)
    assert replayed.synchronisations == [*range(B, T + 1, B)]
    assert replayed.bytes_up == replayed.bytes_down == 7 * M * 8 * (3 + 6)
    # A complete graph equals a server: each message crosses the edges of its sender and ends there.
    decentralised = dubey.replay_decentralised(
        **ALL_SILOS | arguments,
        adjacency=complete_graph(M),
        gamma=1,
        cliques=[range(M)],
        L=1.0,
        noise=(lambda i, g, n: noise(i, n)) if noisy else None,
    )
    assert decentralised.worst_gap == approx(replayed.worst_gap, rel=1e-10)
    assert decentralised.group_regret == approx(replayed.group_regret)
    for i in range(M):
        for actual, expected in zip(decentralised.totals[i, 0], replayed.totals[-1], strict=True):
            assert actual == approx(expected, abs=1e-10)
        assert decentralised.local[i, 0][0] == approx(replayed.local[i][0])
    assert decentralised.bytes_sent == 7 * M * (M - 1) * 72


def one_dimensional(
    rounds: int, feature: Callable[[int, int], Any], silos: int, **changes: Any
) -> dict[str, Any]:
    """Return arguments with one action of one dimension per round and zero rewards."""
    arguments: dict[str, Any] = {"rho_min": 1.0, "rho_max": 1.0, "radius": lambda t, i, V: 1.0}
    arguments |= {"contexts": lambda t, i: np.array([[float(feature(t, i))]])}
    arguments |= {
        "means": lambda t, i: np.zeros(1),
        "actions": np.zeros((silos, rounds), dtype=int),
    }
    return arguments | {"rewards": np.zeros((silos, rounds))} | changes


def first_round(holds: Callable[[int], bool]) -> int:
    """Return the first number from 1 on for which a condition holds."""
    return next(n for n in range(1, 200) if holds(n))


def test_dubey_trigger_counts_rounds_since_the_last_synchronisation() -> None:
    """Check the smallest n >= 1 with log((S + n + M spread) / S) n >= D for d = 1 and x = 1.

    Here n is the number of rounds since the last synchronisation.
    """
    arguments = one_dimensional(60, lambda t, i: 1, 2, rho_min=3.0, rho_max=5.0)
    replayed = dubey.replay(**arguments, threshold=4.0)
    expected, last = [], 0
    for t in range(1, 61):
        S = 8 + 2 * last if last else 6
        if (t - last) * log((S + t - last + 4) / S) >= 4:
            expected.append(last := t)
    assert replayed.synchronisations == expected
    assert len(expected) > 3
    # Of two silos, one has a feature of 1 in one round only: floor(5 / log 2) + 1 = 8.
    once = dubey.replay(
        **one_dimensional(12, lambda t, i: t == 1 and i == 0, 2, rho_min=0.5, rho_max=0.5),
        threshold=5.0,
    )
    assert (once.synchronisations, once.triggers) == ([8], [(8, 0)])


def test_dubey_private_determinant_tests_the_noisy_batch() -> None:
    """Check log(1 + c popcount(dt) / lambda) > D / dt for x = 0 and node noise c.

    Every synchronisation begins a new tree.
    """
    drawn_nodes: list[tuple[int, int]] = []

    def local_noise(i: int, k: int, n: int) -> np.ndarray:
        """Return constant noise, and note the node."""
        drawn_nodes.append((k, n))
        return np.full((1, 1), 1.5)

    arguments = one_dimensional(40, lambda t, i: 0, 1, rho_min=2.0, rho_max=2.0, threshold=6.0)
    arguments["schedule"] = "private-determinant"
    replayed = dubey.replay(**arguments, local_noise=local_noise)
    dt = first_round(lambda n: n * log(1 + 1.5 * n.bit_count() / 2) > 6)
    assert replayed.synchronisations == [*range(dt, 41, dt)]
    assert drawn_nodes[: dt + 1] == [*((0, n) for n in range(1, dt + 1)), (1, 1)]
    # With noise that makes the determinant negative the trigger never holds.
    without_trigger = dubey.replay(**arguments, local_noise=lambda i, k, n: np.full((1, 1), -9.0))
    assert without_trigger.synchronisations == []


def test_dubey_graphs_and_clique_covers() -> None:
    ring = line_graph(6)
    ring[0, 5] = ring[5, 0] = 1
    hops = [[min(abs(i - j), 6 - abs(i - j)) for j in range(6)] for i in range(6)]
    assert dubey.distances(ring).tolist() == hops
    assert dubey.graph_power(ring, 3).tolist() == complete_graph(6).tolist()
    assert dubey.distances(np.zeros((2, 2), dtype=int))[0, 1] == -1
    assert dubey.clique_of(line_graph(4), 2, [[2, 1, 0], [3]]) == [[0, 1, 2]] * 3 + [[3]]
    for gamma, clique_cover, message in [
        (1, [[0, 1, 2], [3]], "further than 1 hops"),
        (2, [[0, 1], [2]], "exactly once"),
        (2, [[0, 1], [1, 2], [3]], "exactly once"),
    ]:
        with pytest.raises(ValueError, match=message):
            dubey.clique_of(line_graph(4), gamma, clique_cover)


@pytest.mark.parametrize(("count", "weight"), [("silos", 5), ("clique", 2)])
def test_dubey_requests_come_at_the_calculated_rounds(count: str, weight: int) -> None:
    """Check n log((w rho_max + n) / (w rho_min)) >= D / 2 for d = 1, x = 1 and L = 1.

    Here w is the weight of the initial statistics.
    """
    replayed = dubey.replay_decentralised(
        **one_dimensional(40, lambda t, i: 1, 5, rho_min=2.0, rho_max=6.0, threshold=24.0),
        adjacency=line_graph(5),
        gamma=1,
        cliques=[[0, 1], [2, 3], [4]],
        L=1.0,
        count=count,
    )
    first = first_round(lambda n: n * log((weight * 6 + n) / (weight * 2)) >= 12)
    requests_of_pair = [(t, i) for t, i, _ in replayed.requests if i in (0, 1)]
    assert requests_of_pair[:2] == [(first, 0), (first, 1)]
    # After the broadcast of first + 1 rounds, counting begins again from 2 shifted prefixes.
    S = 2 * 4 + 2 * (first + 1)
    second = first_round(lambda n: n * log((S + weight * 4 + n) / S) >= 12)
    assert requests_of_pair[2] == (first + 1 + second, 0)


def test_dubey_requests_send_the_calculated_bytes() -> None:
    """Check a line of 3 silos with gamma = 2.

    A message of an end crosses 1 + 2 edges, a message of the middle 2 + 1 + 1.
    """
    replayed = dubey.replay_decentralised(
        **one_dimensional(8, lambda t, i: i == 0 and t % 2, 3, threshold=2.0),
        adjacency=line_graph(3),
        gamma=2,
        cliques=[[0, 1, 2]],
        L=1.0,
    )
    kinds = [type(message) for _, _, message in replayed.arrivals]
    ((requested_round, *requesting_silo),) = replayed.requests
    assert requesting_silo == [0, 1]
    assert replayed.broadcasts == [(requested_round + 2, i, 1) for i in range(3)]
    assert (kinds.count(dubey.Request), kinds.count(dubey.Statistics)) == (2, 6)
    assert replayed.bytes_sent == 24 * 3 + 8 * 2 * (3 + 4 + 3)


# Chowdhury and Zhou (2022).


def users_of_batch(m: int) -> range:
    """Return the rounds of batch m."""
    return range((m - 1) * B + 1, m * B + 1)


@pytest.mark.parametrize(
    ("system", "noise_arguments", "noise_indices"),
    [
        ("linucb", {}, lambda m: []),
        ("linucb-jdp", {"node_noise": noise}, dubey.tree_nodes),
        ("linucb-jdp", {"prefix_noise": noise}, lambda m: [m]),
        ("linucb-ldp", {"user_noise": noise}, lambda m: range(1, m * B + 1)),
        ("linucb-sdp-amp", {"batch_noise": noise}, lambda m: range(1, m + 1)),
        ("linucb-sdp-amp", {"user_noise": noise, "order": None}, lambda m: range(1, m * B + 1)),
    ],
)
def test_chowdhury_replays_equal_the_second_player(
    system: str, noise_arguments: dict[str, Any], noise_indices: Any
) -> None:
    arguments = {name: (lambda n: bias_and_covariance(noise(n))) for name in noise_arguments}
    if "order" in noise_arguments:
        arguments["order"] = lambda m: ([2, 0, 1], [1, 2, 0])  # type: ignore[assignment, return-value]
    rule: dict[str, Any] = {"regularizer": lambda m: 40.0 + m, "radius": width, "batch_size": B}
    replayed = chowdhury.replay(
        **ONE_SILO, **arguments, **rule, system=system, best_rewards=REWARDS[1]
    )
    check_replay(
        replayed,
        lambda m: sum((noise(n) for n in noise_indices(m)), sum_of_points(1, range(1, m * B + 1))),
        silos=1,
        lazy=True,
        start=noise(0) if "prefix_noise" in noise_arguments else 0.0,
    )
    assert replayed.batches == [*range(B, T + 1, B)]
    # If the best action was not chosen, the difference to its reward is added to the regret.
    not_best = [means(t).max() > means(t)[ACTIONS[0, t - 1]] for t in range(1, T + 1)]
    assert replayed.realised_regret == approx(np.cumsum((REWARDS[1] - REWARDS[0]) * not_best))


def test_chowdhury_replays_with_batches_of_one_round_equal_the_second_player() -> None:
    rule: dict[str, Any] = {"regularizer": lambda m: 40.0 + m, "radius": width, "batch_size": 1}
    replayed = chowdhury.replay(**ONE_SILO, **rule, system="linucb")
    check_replay(replayed, lambda m: sum_of_points(1, range(1, m + 1)), silos=1, lazy=True, batch=1)


@pytest.mark.parametrize("noise_source", ["users", "batches", "bits"])
def test_chowdhury_vector_sums_equal_sums_of_single_bits(noise_source: str) -> None:
    # Some entries exceed L.
    g, b, L, n = 7, 8, 0.8, 9
    noise_bits = {t: keyed_rng(9, t).binomial(b, 0.25, n) for t in range(1, T + 1)}
    arguments: dict[str, Any] = {"uniforms": lambda t: keyed_rng(10, t).random(n)}
    arguments |= {"encoding": chowdhury.Encoding(g, b, L), "user_ones": lambda t: noise_bits[t]}
    if noise_source == "batches":
        del arguments["user_ones"]
        arguments["batch_ones"] = lambda m: sum(noise_bits[t] for t in users_of_batch(m))
    if noise_source == "bits":
        size = B * (2 * g + b)
        arguments["permutations"] = lambda m: [
            keyed_rng(11, m, j).permutation(size) for j in range(n)
        ]

    def total(m: int) -> np.ndarray:
        """Return the released total after m batches."""
        batches = []
        for batch in range(1, m + 1):
            points = np.array([packed_point(t, 0) for t in users_of_batch(batch)])
            uniforms = np.array([arguments["uniforms"](t) for t in users_of_batch(batch)])
            batch_bits = np.array([noise_bits[t] for t in users_of_batch(batch)])
            batches.append(vector_sum.vector_sum(points, g, b, L, uniforms, batch_bits))
        return to_matrix(np.sum(batches, axis=0))

    arguments |= {"regularizer": lambda m: 80.0, "radius": width, "batch_size": B}
    replayed = chowdhury.replay(**ONE_SILO, **arguments, system="linucb-sdp-vec")
    check_replay(replayed, total, silos=1, lazy=True, lam=lambda m: 80.0)


# Huang et al. (2023).


def mechanism(d: int) -> huang.Mechanism:
    """Return the private mean of the oracle, with draws of fixed keys."""
    size = huang.padded(d)
    return huang.Mechanism(
        epsilon_coordinate=0.8,
        radius=lambda p: min(0.8 * 2 ** (-p / 2), 2.0),
        bound=2.0,
        signs=lambda p: keyed_rng(21, p).choice([-1.0, 1.0], size),
        laplace=lambda p: keyed_rng(22, p).laplace(size=size),
        uniforms=lambda p: keyed_rng(23, p).random(size),
    )


@pytest.mark.parametrize(
    ("U", "private", "first"),
    [(1, True, "phase"), (2, False, "initial"), (2, False, "phase"), (None, False, "initial")],
)
def test_robin_replays_equal_the_second_player(U: int | None, private: bool, first: str) -> None:
    """Check phases of 2, 4 and 8 complete rounds and an incomplete one of 9 rounds."""
    rule = mechanism(D) if private else None
    arguments: dict[str, Any] = {"mechanism": rule, "first_estimate": first, "initial_phases": U}
    arguments |= {"actions": ACTIONS, "rewards": REWARDS, "contexts": contexts, "means": means}
    replayed = huang.replay(**arguments, radius=lambda t, i, V: width(t, 0))
    x = np.array([[contexts(t, i)[ACTIONS[i, t - 1]] for t in range(1, T + 1)] for i in range(M)])
    shared, released, largest_gap, regrets = None, [], 0.0, np.zeros((M, T))
    for t in range(1, T + 1):
        for i in range(M):
            rows, earlier = contexts(t, i), slice(0, t - 1)
            if shared is None:
                V = np.eye(D) + x[i, earlier].T @ x[i, earlier]
                largest_gap = max(
                    largest_gap, gap(rows, V, x[i, earlier].T @ REWARDS[i, earlier], t, i)
                )
            else:
                score = rows @ shared
                scale = max(np.abs(rows) @ np.abs(shared))
                largest_gap = max(largest_gap, (score.max() - score[ACTIONS[i, t - 1]]) / scale)
            regrets[i, t - 1] = means(t, i).max() - means(t, i)[ACTIONS[i, t - 1]]
        p = {2: 1, 6: 2, 14: 3}.get(t)
        if U is not None and p is not None and p >= U:
            rounds_of_estimate = slice(0 if p == U and first == "initial" else t - 2**p, t)
            local = [
                np.linalg.lstsq(x[i, rounds_of_estimate], REWARDS[i, rounds_of_estimate])[0]
                for i in range(M)
            ]
            shared = rule.release(np.array(local), p) if rule else np.mean(local, axis=0)
            released.append(p)
    assert replayed.worst_gap == approx(largest_gap) and largest_gap > 0.01
    assert replayed.client_regret == approx(np.cumsum(regrets, axis=1))
    assert replayed.group_regret == approx(np.cumsum(regrets.sum(axis=0)))
    assert replayed.released == released
    assert replayed.nearest_rank > 2
    assert replayed.bytes_up == replayed.bytes_down == len(released) * M * 3 * 8


def test_robin_phases_and_scores() -> None:
    assert [huang.phase_of(t) for t in (1, 2, 3, 6, 7, 14, 15)] == [1, 1, 2, 2, 3, 3, 4]
    assert [huang.last_round(p) for p in (1, 2, 3)] == [2, 6, 14]
    assert [huang.phase_length(p) for p in (1, 2, 3)] == [2, 4, 8]
    for rounds, U, last, phases in [
        (13, 1, False, [1, 2]),
        (14, 1, False, [1, 2]),
        (14, 1, True, [1, 2, 3]),
        (15, 1, False, [1, 2, 3]),
        (15, 3, False, [3]),
        (15, 4, True, []),
    ]:
        assert huang.releasing_phases(rounds, U, last) == phases
    assert [huang.greedy_shortfall(np.eye(2), np.array([0.5, 0.25]), a) for a in (0, 1)] == [0, 0.5]
    assert huang.greedy_shortfall(np.eye(2), np.zeros(2), 1) == 0.0
    with pytest.raises(ValueError, match="action"):
        huang.greedy_shortfall(np.eye(2), np.zeros(2), 2)


@pytest.mark.parametrize(("n", "d", "rank"), [(7, 3, 3), (6, 4, 1), (1, 1, 1)])
def test_least_squares_solution_has_the_smallest_norm(n: int, d: int, rank: int) -> None:
    X = keyed_rng(12, n).standard_normal((n, rank)) @ keyed_rng(13, d).standard_normal((rank, d))
    y = keyed_rng(14, n).standard_normal(n)
    solution, rank_margin = huang.least_squares(X, y)
    assert solution == approx(np.linalg.lstsq(X, y, rcond=None)[0], abs=1e-8)
    assert rank_margin > 2
