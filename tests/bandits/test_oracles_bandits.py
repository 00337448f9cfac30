"""The bandit oracles against themselves: second players by definition, small cases by hand."""

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


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([2024, *key])


@cache
def contexts(t: int, i: int = 0) -> np.ndarray:
    """Rows of norms around 1, so that the clip cuts some of them."""
    rows = keyed(1, t, i).standard_normal((K, D))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * keyed(2, t, i).uniform(0.6, 1.2)


def means(t: int, i: int = 0) -> np.ndarray:
    return contexts(t, i) @ np.arange(1.0, D + 1)


ACTIONS = keyed(3).integers(K, size=(M, T))
REWARDS = keyed(4).uniform(-1.4, 1.4, size=(M, T))
GAME: dict[str, Any] = {"contexts": contexts, "means": means, "clip": CLIP}
OF_ALL: dict[str, Any] = GAME | {"actions": ACTIONS, "rewards": REWARDS}
OF_ONE: dict[str, Any] = GAME | {"actions": ACTIONS[0], "rewards": REWARDS[0]}


def width(t: int, k: int) -> float:
    return 0.5 + 0.05 * t + 0.2 * k


@cache
def noise(*key: int) -> np.ndarray:
    """Symmetric noise (d + 1, d + 1) of [x; y] [x; y]'."""
    square = keyed(5, *key).standard_normal((D + 1, D + 1))
    return (square + square.T) / sqrt(2)


def flipped(z: np.ndarray) -> Pair:
    """The pair (bias, covariance) as two of the oracles take it."""
    return z[:D, D], z[:D, :D]


@cache
def point(t: int, i: int) -> tuple[np.ndarray, float]:
    x, y = contexts(t, i)[ACTIONS[i, t - 1]], REWARDS[i, t - 1]
    return x / max(1.0, float(np.linalg.norm(x))), float(np.clip(y, -1, 1))


def data(silos: int, rounds: range) -> np.ndarray:
    """Sum of [x; y] [x; y]'."""
    z = [np.append(*point(t, i)) for i in range(silos) for t in rounds]
    return sum((np.outer(v, v) for v in z), np.zeros((D + 1, D + 1)))


@cache
def triangle(t: int, i: int) -> np.ndarray:
    """x y, then the lower triangle of x x' row by row."""
    x, y = point(t, i)
    return np.array([*(x * y), *(x[a] * x[b] for a in range(D) for b in range(a + 1))])


def unpacked(v: np.ndarray) -> np.ndarray:
    """The (d + 1, d + 1) matrix of such a vector; its last entry does not count."""
    u0, u1, u2, a, b, c, d, e, f = v
    return np.array([[a, b, d, u0], [b, c, e, u1], [d, e, f, u2], [u0, u1, u2, 0]])


def gap(
    rows: np.ndarray, V: np.ndarray, u: np.ndarray, t: int, i: int, k: int = 0, second: float = 0.0
) -> float:
    """How far the action's score lies below the best one, in units of the largest."""
    inverse = np.linalg.inv(V)
    mean = rows @ inverse @ u
    bonus = np.array([width(t, k) * sqrt(x @ inverse @ x) for x in rows])
    bonus += [second * float(np.linalg.norm(inverse @ x)) for x in rows]
    score = mean + bonus
    return float((score.max() - score[ACTIONS[i, t - 1]]) / max(np.abs(mean) + bonus))


def agrees(
    out: Any,
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
    known = [np.zeros((D + 1, D + 1)) + start, *(total(k) for k in range(1, T // batch + 1))]
    assert len(out.totals) == len(known) - 1
    for (W, U), z in zip(out.totals, known[1:], strict=True):
        assert approx(z[:D, :D], abs=1e-10) == W
        assert approx(z[:D, D], abs=1e-10) == U
    worst, lost = 0.0, np.zeros(T)
    for t in range(1, T + 1):
        k = (t - 1) // batch
        for i in range(silos):
            z = known[k]
            if not lazy:
                z = z + data(i + 1, range(k * batch + 1, t)) - data(i, range(k * batch + 1, t))
            V = z[:D, :D] + lam(k) * np.eye(D)
            worst = max(worst, gap(contexts(t, i), V, z[:D, D], t, i, k, second))
            lost[t - 1] += means(t, i).max() - means(t, i)[ACTIONS[i, t - 1]]
    assert worst > 0.01
    assert out.worst_gap == approx(worst, rel=1e-9)
    regret = out.regret if hasattr(out, "regret") else out.group_regret
    assert regret == approx(np.cumsum(lost))


# Zhou and Chowdhury (2024).


def zhou_replay(protocol: str, **changes: Any) -> zhou.Replay:
    given: dict[str, Any] = {"lazy": False, "batch_size": B, "protocol": protocol, "gamma": 0.4}
    given |= {"noise": lambda i, k: flipped(noise(i, k)), "regularizer": lambda k: 40.0 + k}
    given |= {"server_noise": lambda k: flipped(noise(9, k)), "radius": width}
    return zhou.replay(**OF_ALL | given | changes)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("protocol", "release", "givers"),
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
def test_zhou_by_definition(protocol: str, release: str, givers: Any, lazy: bool) -> None:
    def total(k: int) -> np.ndarray:
        if release == "tree":
            added = [noise(i, node) for i in givers for node in dubey.tree_nodes(k)]
        else:
            added = [zhou.prefix_noise(release, k, lambda n, i=i: noise(i, n)) for i in givers]
        return sum(added, data(M, range(1, k * B + 1)))

    out = zhou_replay(protocol, release=release, lazy=lazy)
    agrees(out, total, lazy=lazy, second=0.4)
    left = [data(i + 1, range(22, 24)) - data(i, range(22, 24)) for i in range(M)]
    for (W, U), z in zip(out.local, left, strict=True):
        assert approx(z[:D, :D]) == W
        assert approx(z[:D, D]) == U


def test_zhou_never_synchronises_locally() -> None:
    for out in (zhou_replay("local"), zhou_replay("silo-ldp", batch_size=None)):
        agrees(out, lambda k: np.zeros(()), second=0.4, lam=lambda k: 40.0, batch=T + 1)


def test_zhou_vector_sums_by_their_bits() -> None:
    """Every bit of every node is built; the replay knows their counts alone."""
    # (g, b) by level, and the rounds of each node.
    encodings = [(7, 6), (9, 8), (11, 10)]
    of_node = {k: encodings[(k & -k).bit_length() - 1] for k in range(1, T // B + 1)}
    rounds_of = {k: range((dubey.leaves_under(k)[0] - 1) * B + 1, k * B + 1) for k in of_node}

    def ones(i: int, k: int) -> np.ndarray:
        return keyed(7, i, k).binomial(of_node[k][1], 0.25, (len(rounds_of[k]), 9))

    def centred(i: int, k: int) -> np.ndarray:
        return np.sum(ones(i, k) - of_node[k][1] / 4, axis=0)

    def node(k: int) -> np.ndarray:
        (g, b), rounds = of_node[k], rounds_of[k]
        points = np.array([triangle(t, i) for i in range(M) for t in rounds])
        uniforms = np.array([keyed(8, i, t, k).random(9) for i in range(M) for t in rounds])
        bits = np.concatenate([ones(i, k) for i in range(M)])
        return unpacked(vector_sum.vector_sum(points, g, b, 1.0, uniforms, bits))

    out = zhou_replay(
        "shuffle-vector",
        regularizer=lambda k: 80.0,
        encoding=lambda level: encodings[level],
        uniforms=lambda i, t, k: keyed(8, i, t, k).random(9),
        centred_noise=centred,
    )
    agrees(out, lambda k: sum(map(node, dubey.tree_nodes(k))), second=0.4, lam=lambda k: 80.0)


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
def test_zhou_refuses_errors(protocol: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zhou_replay(protocol, **changes)


# Dubey and Pentland (2020).


def complete(size: int) -> np.ndarray:
    return np.ones((size, size), dtype=int) - np.eye(size, dtype=int)


def line(size: int) -> np.ndarray:
    return np.eye(size, k=1, dtype=int) + np.eye(size, k=-1, dtype=int)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_dubey_fixed_batches_by_definition(lazy: bool, noisy: bool) -> None:
    """lambda is M rho_min before, and M shifts after, the first synchronisation."""
    given: dict[str, Any] = {"rho_min": 8.0, "rho_max": 24.0, "lazy": lazy, "batch_size": B}
    given |= {"schedule": "fixed", "radius": lambda t, i, V: width(t, (t - 1) // B)}

    def total(k: int) -> np.ndarray:
        drawn = [noise(i, n) for i in range(M) for n in dubey.tree_nodes(k)] if noisy else []
        return sum(drawn, data(M, range(1, k * B + 1))) + 48.0 * np.diag([1, 1, 1, 0])

    out = dubey.replay(**OF_ALL | given, noise=noise if noisy else None)
    agrees(out, total, lazy=lazy, lam=lambda k: 0.0 if k else 24.0)
    assert out.synchronisations == [*range(B, T + 1, B)]
    assert out.bytes_up == out.bytes_down == 7 * M * 8 * (3 + 6)
    # A complete graph is the server; each message crosses the edges of its sender and ends there.
    spread = dubey.replay_decentralised(
        **OF_ALL | given,
        adjacency=complete(M),
        gamma=1,
        cliques=[range(M)],
        L=1.0,
        noise=(lambda i, g, n: noise(i, n)) if noisy else None,
    )
    assert spread.worst_gap == approx(out.worst_gap, rel=1e-10)
    assert spread.group_regret == approx(out.group_regret)
    for i in range(M):
        for found, known in zip(spread.totals[i, 0], out.totals[-1], strict=True):
            assert found == approx(known, abs=1e-10)
        assert spread.local[i, 0][0] == approx(out.local[i][0])
    assert spread.bytes_sent == 7 * M * (M - 1) * 72


def single(
    rounds: int, moves: Callable[[int, int], Any], silos: int, **more: Any
) -> dict[str, Any]:
    """Arguments with one action of one dimension a round, and no reward."""
    given: dict[str, Any] = {"rho_min": 1.0, "rho_max": 1.0, "radius": lambda t, i, V: 1.0}
    given |= {"contexts": lambda t, i: np.array([[float(moves(t, i))]])}
    given |= {"means": lambda t, i: np.zeros(1), "actions": np.zeros((silos, rounds), dtype=int)}
    return given | {"rewards": np.zeros((silos, rounds))} | more


def first_time(holds: Callable[[int], bool]) -> int:
    return next(n for n in range(1, 200) if holds(n))


def test_trigger_counts_rounds_since_the_last_synchronisation() -> None:
    """d = 1, x = 1: log((S + n + M spread) / S) n >= D, n rounds after the last one."""
    arguments = single(60, lambda t, i: 1, 2, rho_min=3.0, rho_max=5.0)
    out = dubey.replay(**arguments, threshold=4.0)
    expected, last = [], 0
    for t in range(1, 61):
        S = 8 + 2 * last if last else 6
        if (t - last) * log((S + t - last + 4) / S) >= 4:
            expected.append(last := t)
    assert out.synchronisations == expected
    assert len(expected) > 3
    # Two silos, one moves once: floor(5 / log 2) + 1 = 8.
    once = dubey.replay(
        **single(12, lambda t, i: t == 1 and i == 0, 2, rho_min=0.5, rho_max=0.5), threshold=5.0
    )
    assert (once.synchronisations, once.triggers) == ([8], [(8, 0)])


def test_private_determinant_tests_the_noisy_batch() -> None:
    """x = 0, node noise c: log(1 + c popcount(dt) / lambda) > D / dt, every time a new tree."""
    asked: list[tuple[int, int]] = []

    def local_noise(i: int, k: int, n: int) -> np.ndarray:
        asked.append((k, n))
        return np.full((1, 1), 1.5)

    given = single(40, lambda t, i: 0, 1, rho_min=2.0, rho_max=2.0, threshold=6.0)
    given["schedule"] = "private-determinant"
    out = dubey.replay(**given, local_noise=local_noise)
    dt = first_time(lambda n: n * log(1 + 1.5 * n.bit_count() / 2) > 6)
    assert out.synchronisations == [*range(dt, 41, dt)]
    assert asked[: dt + 1] == [*((0, n) for n in range(1, dt + 1)), (1, 1)]
    # Noise that leaves no determinant leaves no trigger.
    still = dubey.replay(**given, local_noise=lambda i, k, n: np.full((1, 1), -9.0))
    assert still.synchronisations == []


def test_graphs_and_covers() -> None:
    ring = line(6)
    ring[0, 5] = ring[5, 0] = 1
    hops = [[min(abs(i - j), 6 - abs(i - j)) for j in range(6)] for i in range(6)]
    assert dubey.distances(ring).tolist() == hops
    assert dubey.graph_power(ring, 3).tolist() == complete(6).tolist()
    assert dubey.distances(np.zeros((2, 2), dtype=int))[0, 1] == -1
    assert dubey.clique_of(line(4), 2, [[2, 1, 0], [3]]) == [[0, 1, 2]] * 3 + [[3]]
    for gamma, cover, message in [
        (1, [[0, 1, 2], [3]], "further than 1 hops"),
        (2, [[0, 1], [2]], "exactly once"),
        (2, [[0, 1], [1, 2], [3]], "exactly once"),
    ]:
        with pytest.raises(ValueError, match=message):
            dubey.clique_of(line(4), gamma, cover)


@pytest.mark.parametrize(("count", "weight"), [("silos", 5), ("clique", 2)])
def test_request_by_hand(count: str, weight: int) -> None:
    """d = 1, x = 1, L = 1: n log((w rho_max + n) / (w rho_min)) >= D / 2, w the start's weight."""
    out = dubey.replay_decentralised(
        **single(40, lambda t, i: 1, 5, rho_min=2.0, rho_max=6.0, threshold=24.0),
        adjacency=line(5),
        gamma=1,
        cliques=[[0, 1], [2, 3], [4]],
        L=1.0,
        count=count,
    )
    first = first_time(lambda n: n * log((weight * 6 + n) / (weight * 2)) >= 12)
    of_pair = [(t, i) for t, i, _ in out.requests if i in (0, 1)]
    assert of_pair[:2] == [(first, 0), (first, 1)]
    # After the broadcast of first + 1 rounds the count starts again from 2 shifted prefixes.
    S = 2 * 4 + 2 * (first + 1)
    then = first_time(lambda n: n * log((S + weight * 4 + n) / S) >= 12)
    assert of_pair[2] == (first + 1 + then, 0)


def test_bytes_of_requests() -> None:
    """A line of 3, gamma 2: a message of an end crosses 1 + 2 edges, of the middle 2 + 1 + 1."""
    out = dubey.replay_decentralised(
        **single(8, lambda t, i: i == 0 and t % 2, 3, threshold=2.0),
        adjacency=line(3),
        gamma=2,
        cliques=[[0, 1, 2]],
        L=1.0,
    )
    kinds = [type(message) for _, _, message in out.arrivals]
    ((asked, *who),) = out.requests
    assert who == [0, 1]
    assert out.broadcasts == [(asked + 2, i, 1) for i in range(3)]
    assert (kinds.count(dubey.Request), kinds.count(dubey.Statistics)) == (2, 6)
    assert out.bytes_sent == 24 * 3 + 8 * 2 * (3 + 4 + 3)


# Chowdhury and Zhou (2022).


def users(m: int) -> range:
    return range((m - 1) * B + 1, m * B + 1)


@pytest.mark.parametrize(
    ("system", "source", "added"),
    [
        ("linucb", {}, lambda m: []),
        ("linucb-jdp", {"node_noise": noise}, dubey.tree_nodes),
        ("linucb-jdp", {"prefix_noise": noise}, lambda m: [m]),
        ("linucb-ldp", {"user_noise": noise}, lambda m: range(1, m * B + 1)),
        ("linucb-sdp-amp", {"batch_noise": noise}, lambda m: range(1, m + 1)),
        ("linucb-sdp-amp", {"user_noise": noise, "order": None}, lambda m: range(1, m * B + 1)),
    ],
)
def test_chowdhury_by_definition(system: str, source: dict[str, Any], added: Any) -> None:
    given = {name: (lambda n: flipped(noise(n))) for name in source}
    if "order" in source:
        given["order"] = lambda m: ([2, 0, 1], [1, 2, 0])  # type: ignore[assignment, return-value]
    rule: dict[str, Any] = {"regularizer": lambda m: 40.0 + m, "radius": width, "batch_size": B}
    out = chowdhury.replay(**OF_ONE, **given, **rule, system=system, best_rewards=REWARDS[1])
    agrees(
        out,
        lambda m: sum((noise(n) for n in added(m)), data(1, range(1, m * B + 1))),
        silos=1,
        lazy=True,
        start=noise(0) if "prefix_noise" in source else 0.0,
    )
    assert out.batches == [*range(B, T + 1, B)]
    # Where the best action was not taken, the difference to its reward is lost.
    missed = [means(t).max() > means(t)[ACTIONS[0, t - 1]] for t in range(1, T + 1)]
    assert out.realised_regret == approx(np.cumsum((REWARDS[1] - REWARDS[0]) * missed))


def test_chowdhury_every_round() -> None:
    rule: dict[str, Any] = {"regularizer": lambda m: 40.0 + m, "radius": width, "batch_size": 1}
    out = chowdhury.replay(**OF_ONE, **rule, system="linucb")
    agrees(out, lambda m: data(1, range(1, m + 1)), silos=1, lazy=True, batch=1)


@pytest.mark.parametrize("ones_of", ["users", "batches", "bits"])
def test_chowdhury_vector_sums_by_their_bits(ones_of: str) -> None:
    # Some entries are beyond L.
    g, b, L, n = 7, 8, 0.8, 9
    ones = {t: keyed(9, t).binomial(b, 0.25, n) for t in range(1, T + 1)}
    given: dict[str, Any] = {"uniforms": lambda t: keyed(10, t).random(n)}
    given |= {"encoding": chowdhury.Encoding(g, b, L), "user_ones": lambda t: ones[t]}
    if ones_of == "batches":
        del given["user_ones"]
        given["batch_ones"] = lambda m: sum(ones[t] for t in users(m))
    if ones_of == "bits":
        size = B * (2 * g + b)
        given["permutations"] = lambda m: [keyed(11, m, j).permutation(size) for j in range(n)]

    def total(m: int) -> np.ndarray:
        batches = []
        for batch in range(1, m + 1):
            points = np.array([triangle(t, 0) for t in users(batch)])
            uniforms = np.array([given["uniforms"](t) for t in users(batch)])
            drawn = np.array([ones[t] for t in users(batch)])
            batches.append(vector_sum.vector_sum(points, g, b, L, uniforms, drawn))
        return unpacked(np.sum(batches, axis=0))

    given |= {"regularizer": lambda m: 80.0, "radius": width, "batch_size": B}
    out = chowdhury.replay(**OF_ONE, **given, system="linucb-sdp-vec")
    agrees(out, total, silos=1, lazy=True, lam=lambda m: 80.0)


# Huang et al. (2023).


def mechanism(d: int) -> huang.Mechanism:
    size = huang.padded(d)
    return huang.Mechanism(
        epsilon_coordinate=0.8,
        radius=lambda p: min(0.8 * 2 ** (-p / 2), 2.0),
        bound=2.0,
        signs=lambda p: keyed(21, p).choice([-1.0, 1.0], size),
        laplace=lambda p: keyed(22, p).laplace(size=size),
        uniforms=lambda p: keyed(23, p).random(size),
    )


@pytest.mark.parametrize(
    ("U", "private", "first"),
    [(1, True, "phase"), (2, False, "initial"), (2, False, "phase"), (None, False, "initial")],
)
def test_robin_by_definition(U: int | None, private: bool, first: str) -> None:
    """Phases of 2, 4 and 8 whole rounds, and of 9."""
    rule = mechanism(D) if private else None
    given: dict[str, Any] = {"mechanism": rule, "first_estimate": first, "initial_phases": U}
    given |= {"actions": ACTIONS, "rewards": REWARDS, "contexts": contexts, "means": means}
    out = huang.replay(**given, radius=lambda t, i, V: width(t, 0))
    x = np.array([[contexts(t, i)[ACTIONS[i, t - 1]] for t in range(1, T + 1)] for i in range(M)])
    shared, released, worst, lost = None, [], 0.0, np.zeros((M, T))
    for t in range(1, T + 1):
        for i in range(M):
            rows, past = contexts(t, i), slice(0, t - 1)
            if shared is None:
                V = np.eye(D) + x[i, past].T @ x[i, past]
                worst = max(worst, gap(rows, V, x[i, past].T @ REWARDS[i, past], t, i))
            else:
                score = rows @ shared
                scale = max(np.abs(rows) @ np.abs(shared))
                worst = max(worst, (score.max() - score[ACTIONS[i, t - 1]]) / scale)
            lost[i, t - 1] = means(t, i).max() - means(t, i)[ACTIONS[i, t - 1]]
        p = {2: 1, 6: 2, 14: 3}.get(t)
        if U is not None and p is not None and p >= U:
            now = slice(0 if p == U and first == "initial" else t - 2**p, t)
            local = [np.linalg.lstsq(x[i, now], REWARDS[i, now])[0] for i in range(M)]
            shared = rule.release(np.array(local), p) if rule else np.mean(local, axis=0)
            released.append(p)
    assert out.worst_gap == approx(worst) and worst > 0.01
    assert out.client_regret == approx(np.cumsum(lost, axis=1))
    assert out.group_regret == approx(np.cumsum(lost.sum(axis=0)))
    assert out.released == released
    assert out.nearest_rank > 2
    assert out.bytes_up == out.bytes_down == len(released) * M * 3 * 8


def test_robin_schedule_and_scores() -> None:
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
def test_least_squares_has_the_least_norm(n: int, d: int, rank: int) -> None:
    X = keyed(12, n).standard_normal((n, rank)) @ keyed(13, d).standard_normal((rank, d))
    y = keyed(14, n).standard_normal(n)
    found, near = huang.least_squares(X, y)
    assert found == approx(np.linalg.lstsq(X, y, rcond=None)[0], abs=1e-8)
    assert near > 2
