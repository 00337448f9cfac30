"""The oracle of Dubey-Pentland 2020 against itself: definitions, closed forms, a second player."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import zhou_chowdhury_2024
from oracle.dubey_pentland_2020 import (
    DecentralisedReplay,
    Request,
    Statistics,
    beta,
    beta_bar,
    big_lambda,
    charged_nodes,
    clique_of,
    decentralised_threshold,
    distances,
    graph_power,
    kappa_from_noise,
    kappa_printed,
    lambda_from_noise,
    leaves_under,
    levels,
    log_growth,
    message_bytes,
    node_noise_std,
    prefix_nodes,
    proposition_1,
    replay,
    replay_decentralised,
    theorem_1,
    theorem_1_explicit,
    theorem_1_two_terms,
    theorem_2,
    theorem_2_two_terms,
    threshold,
    tree_nodes,
)

# dp20-fig1 at full size with printed constants.
FULL = {"T": 10**7, "M": 100, "d": 10, "L": 1.0}


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([20200601, *key])


def unit_contexts(d: int, K: int) -> Callable[[int, int], np.ndarray]:
    def contexts(t: int, i: int) -> np.ndarray:
        rows = keyed(1, t, i).standard_normal((K, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    return contexts


def node_noise(d: int, std: float) -> Callable[..., np.ndarray]:
    """Noise (N + N')/sqrt 2 of a node, (d + 1, d + 1), by any number of indices."""

    def noise(*index: int) -> np.ndarray:
        square = std * keyed(2, *index).standard_normal((d + 1, d + 1))
        return (square + square.T) / sqrt(2)

    return noise


def case(M: int, T: int, d: int, K: int, /, **changes: Any) -> dict[str, Any]:
    """Arguments of a replay of arbitrary (not best) actions, with any of them changed."""
    contexts = unit_contexts(d, K)
    theta = keyed(3).standard_normal(d) / sqrt(d)
    rng = keyed(4)
    arguments: dict[str, Any] = {
        "contexts": contexts,
        "means": lambda t, i: contexts(t, i) @ theta,
        "actions": rng.integers(K, size=(M, T)),
        "rewards": rng.integers(2, size=(M, T)).astype(float),
        "rho_min": 1.0,
        "rho_max": 1.0,
        "radius": lambda t, i, V: 0.5,
    }
    return arguments | changes


def points_of(arguments: dict[str, Any]) -> list[list[np.ndarray]]:
    """[x; y] of each silo and round, unclipped."""
    actions, rewards = arguments["actions"], arguments["rewards"]
    M, T = actions.shape
    return [
        [
            np.append(arguments["contexts"](t, i)[actions[i, t - 1]], rewards[i, t - 1])
            for t in range(1, T + 1)
        ]
        for i in range(M)
    ]


def single(
    T: int, /, *, moves: Callable[[int, int], np.ndarray], M: int = 1, **changes: Any
) -> dict[str, Any]:
    """Arguments with one action per round, `moves(t, i)`, and no reward."""
    arguments: dict[str, Any] = {
        "contexts": lambda t, i: np.atleast_2d(moves(t, i)).astype(float),
        "means": lambda t, i: np.zeros(1),
        "actions": np.zeros((M, T), dtype=int),
        "rewards": np.zeros((M, T)),
        "rho_min": 1.0,
        "rho_max": 1.0,
        "radius": lambda t, i, V: 1.0,
    }
    return arguments | changes


# The tree and its constants.


@pytest.mark.parametrize("k", [1, 6, 8, 39])
def test_a_prefix_is_made_of_its_nodes(k: int) -> None:
    nodes = tree_nodes(k)
    assert [leaf for node in nodes for leaf in leaves_under(node)] == list(range(1, k + 1))
    assert len(nodes) == k.bit_count()


@pytest.mark.parametrize("n", [1, 2, 9, 32])
def test_levels_cover_what_is_used(n: int) -> None:
    used = {node for k in range(1, n + 1) for node in tree_nodes(k)}
    over = max(sum(leaf in leaves_under(node) for node in used) for leaf in range(1, n + 1))
    assert over == charged_nodes(n) <= levels(n)
    assert max(len(tree_nodes(k)) for k in range(1, n + 1)) == prefix_nodes(n) <= levels(n)
    assert levels(n) == 1 + int(np.ceil(np.log2(n)))


def test_full_size_constants() -> None:
    """EXPERIMENTS: M Lambda 6.7e6, beta about 4 950, first trigger near 4.7e6, width 0.48."""
    T, M, d, L = FULL["T"], FULL["M"], FULL["d"], FULL["L"]
    m = levels(int(T))
    assert m == 25
    big = big_lambda(1.0, 0.1, m, L, int(d), int(T), int(M), 0.01)
    assert M * big == pytest.approx(6.7e6, rel=0.01)
    kappa = kappa_printed(1.0, m, L, int(d), int(T), int(M), 0.01)
    at_start = beta(
        M * big * np.eye(int(d)),
        sigma=0.5,
        alpha=0.01,
        norm=1.0,
        M=int(M),
        rho_min=big,
        rho_max=3 * big,
        kappa=kappa,
    )
    assert at_start == pytest.approx(4950, rel=0.005)
    D = threshold("log-T", T=int(T), M=int(M), d=int(d), L=L, rho_min=big, rho_max=3 * big)
    # While ||x||^2 is small beside M rho_min, the trigger's left side is d log 3.
    assert D / (d * log(3)) == pytest.approx(4.7e6, rel=0.01)


def test_beta_by_hand() -> None:
    V = np.diag([4.0, 9.0])
    value = beta(V, sigma=2.0, alpha=0.02, norm=3.0, M=5, rho_min=0.4, rho_max=1.2, kappa=0.7)
    by_hand = 2 * sqrt(2 * log(100) + log(36) - 2 * log(2.0)) + 3 * sqrt(6.0) + 0.7 * sqrt(5)
    assert value == pytest.approx(by_hand, rel=1e-14)
    lower = beta(
        V, sigma=2.0, alpha=0.02, norm=3.0, M=5, rho_min=0.4, rho_max=1.2, kappa=0.7, anchor=2
    )
    assert (lower - value) > 0
    bar = beta_bar(
        sigma=2.0, alpha=0.02, norm=3.0, M=5, T=1, d=2, L=1.0, rho_min=0.4, rho_max=1.2, kappa=0.7
    )
    grown = 2 * log(3 + 1 / 0.8)
    assert bar == pytest.approx(2 * sqrt(2 * log(100) + grown) + 3 * sqrt(6.0) + 0.7 * sqrt(5))


def test_printed_lambda_holds_and_printed_kappa_does_not_at_small_delta() -> None:
    d, n, M, alpha = 10, 10**5, 100, 0.01
    m = levels(n)
    for delta, kappa_holds in [(0.1, True), (1e-5, False)]:
        std = node_noise_std(1.0, delta, m, 1.0)
        big = big_lambda(1.0, delta, m, 1.0, d, n, M, alpha)
        assert big > lambda_from_noise(std, m, d, n, M, alpha)
        needed = kappa_from_noise(std, m, big, d, n, M, alpha)
        assert (kappa_printed(1.0, m, 1.0, d, n, M, alpha) > needed) == kappa_holds


# Algorithm 1.


@pytest.mark.parametrize("noisy", [False, True])
def test_totals_by_definition(noisy: bool) -> None:
    d, shift = 3, 20.0
    noise = node_noise(d, 0.5) if noisy else None
    arguments = case(4, 26, d, 3, rho_min=10.0, rho_max=30.0, schedule="fixed", batch_size=2)
    out = replay(**arguments, noise=noise)
    assert out.synchronisations == list(range(2, 27, 2))
    points = points_of(arguments)
    for k, (S, s) in enumerate(out.totals, start=1):
        whole = np.zeros((d + 1, d + 1))
        for i in range(4):
            for z in points[i][: 2 * k]:
                whole += np.outer(z, z)
            if noise is not None:
                whole += sum(noise(i, node) for node in tree_nodes(k))
        np.testing.assert_allclose(S, whole[:d, :d] + 4 * shift * np.eye(d), rtol=1e-12)
        np.testing.assert_allclose(s, whole[:d, d], rtol=1e-12, atol=1e-12)
    assert out.bytes_up == out.bytes_down == 13 * 4 * 8 * (3 + 6)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_fixed_batches_are_the_other_papers_algorithm_4(noisy: bool, lazy: bool) -> None:
    """Zhou-Chowdhury: lambda is M rho_min before, and M shifts after the first synchronisation."""
    M, d, rho_min, rho_max = 3, 3, 8.0, 24.0
    noise = node_noise(d, 0.4) if noisy else lambda i, n: np.zeros((d + 1, d + 1))
    ours = case(M, 23, d, 4, rho_min=rho_min, rho_max=rho_max, radius=lambda t, i, V: 1.25)
    out = replay(**ours, schedule="fixed", batch_size=3, noise=noise, lazy=lazy)
    shared = {key: ours[key] for key in ("contexts", "means", "actions", "rewards")}
    other = zhou_chowdhury_2024.replay(
        **shared,
        batch_size=3,
        protocol="silo-ldp-prefix",
        lazy=lazy,
        noise=lambda i, k: (noise(i, k)[:d, d], noise(i, k)[:d, :d]),
        regularizer=lambda k: M * rho_min if k == 0 else M * (rho_min + rho_max) / 2,
        radius=lambda t, k: 1.25,
    )
    assert out.worst_gap == pytest.approx(other.worst_gap, rel=1e-10)
    np.testing.assert_allclose(out.group_regret, other.group_regret, rtol=1e-14)
    for (S, s), (W, U) in zip(out.totals, other.totals, strict=True):
        np.testing.assert_allclose(S - M * 16.0 * np.eye(d), W, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(s, U, rtol=1e-10, atol=1e-12)
    for (W_i, u_i), (W, U) in zip(out.local, other.local, strict=True):
        np.testing.assert_allclose(W_i, W, rtol=1e-14)
        np.testing.assert_allclose(u_i, U, rtol=1e-14)


@pytest.mark.parametrize(
    ("lam", "length", "first"), [(1.0, 1.0, 8), (20.0, 1.0, 103), (1.0, 0.05, None)]
)
def test_trigger_of_one_move(lam: float, length: float, first: int | None) -> None:
    """Two silos, one moves once: floor(D / log(1 + length^2 / lambda)) + 1 at D = 5."""
    move = lambda t, i: np.array([length if t == 1 and i == 0 else 0.0, 0.0])  # noqa: E731
    T = 110 if lam > 1 else 12
    out = replay(**single(T, M=2, moves=move, rho_min=lam / 2, rho_max=lam / 2, threshold=5.0))
    assert out.synchronisations == ([] if first is None else [first])
    assert out.triggers == ([] if first is None else [(first, 0)])


def test_trigger_counts_rounds_since_the_last_synchronisation() -> None:
    """d = 1, x = 1: log(1 + n / S) n >= D, n rounds after the last synchronisation."""
    M, lam, D = 2, 3.0, 4.0
    arguments = single(60, M=M, moves=lambda t, i: np.ones(1), rho_min=lam, rho_max=lam)
    out = replay(**arguments, threshold=D)
    expected, last = [], 0
    for t in range(1, 61):
        if (t - last) * log(1 + (t - last) / (M * lam + M * last)) >= D:
            expected.append(t)
            last = t
    assert out.synchronisations == expected
    assert len(expected) == 4


def test_private_determinant_tests_the_noisy_batch() -> None:
    """x = 0, node noise c I: log(1 + c popcount(dt) / lambda) > D / dt, every time a new tree."""
    lam, D, c = 2.0, 6.0, 1.5
    asked: list[tuple[int, int]] = []

    def local_noise(i: int, k: int, n: int) -> np.ndarray:
        asked.append((k, n))
        return np.full((1, 1), c)

    out = replay(
        **single(40, moves=lambda t, i: np.zeros(1), rho_min=lam, rho_max=lam, threshold=D),
        schedule="private-determinant",
        local_noise=local_noise,
    )
    dt = next(n for n in range(1, 99) if n * log(1 + c * n.bit_count() / lam) > D)
    assert out.synchronisations == list(range(dt, 41, dt))
    assert len(set(asked)) == len(asked)
    assert asked[:dt] == [(0, n) for n in range(1, dt + 1)]
    assert asked[dt] == (1, 1)
    # Noise that leaves no determinant leaves no trigger.
    still = replay(
        **single(40, moves=lambda t, i: np.zeros(1), rho_min=lam, rho_max=lam, threshold=D),
        schedule="private-determinant",
        local_noise=lambda i, k, n: np.full((1, 1), -9.0),
    )
    assert still.synchronisations == []


# Algorithm 3.

LINE_3 = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def line(M: int) -> np.ndarray:
    return np.eye(M, k=1, dtype=int) + np.eye(M, k=-1, dtype=int)


def complete(M: int) -> np.ndarray:
    return np.ones((M, M), dtype=int) - np.eye(M, dtype=int)


def test_distances_and_powers() -> None:
    ring = line(6)
    ring[0, 5] = ring[5, 0] = 1
    expected = [[min(abs(i - j), 6 - abs(i - j)) for j in range(6)] for i in range(6)]
    np.testing.assert_array_equal(distances(ring), expected)
    np.testing.assert_array_equal(graph_power(ring, 3), complete(6))
    apart = np.zeros((4, 4), dtype=int)
    apart[0, 1] = apart[1, 0] = 1
    assert distances(apart)[0, 2] == -1
    np.testing.assert_array_equal(graph_power(apart, 3), apart)


def test_covers() -> None:
    assert clique_of(line(4), 2, [[2, 1, 0], [3]]) == [[0, 1, 2]] * 3 + [[3]]
    with pytest.raises(ValueError, match="further than 1 hops"):
        clique_of(line(4), 1, [[0, 1, 2], [3]])
    for cover in ([[0, 1], [2]], [[0, 1], [1, 2], [3]]):
        with pytest.raises(ValueError, match="exactly once"):
            clique_of(line(4), 2, cover)


def asked(M: int, T: int, gamma: int, **changes: Any) -> DecentralisedReplay:
    return replay_decentralised(
        **case(M, T, 3, 3), adjacency=line(M), gamma=gamma, L=1.0, **changes
    )


@pytest.mark.parametrize("noisy", [False, True])
def test_complete_graph_with_fixed_batches_is_the_central_algorithm(noisy: bool) -> None:
    M, d = 4, 3
    noise = node_noise(d, 0.3)
    arguments = case(M, 22, d, 3, rho_min=6.0, rho_max=18.0)
    arguments |= {"schedule": "fixed", "batch_size": 3}
    central = replay(**arguments, noise=noise if noisy else None)
    spread = replay_decentralised(
        **arguments,
        adjacency=complete(M),
        gamma=1,
        cliques=[range(M)],
        L=1.0,
        noise=(lambda i, g, n: noise(i, n)) if noisy else None,
    )
    assert spread.worst_gap == pytest.approx(central.worst_gap, rel=1e-10)
    np.testing.assert_allclose(spread.group_regret, central.group_regret)
    for i in range(M):
        np.testing.assert_allclose(spread.totals[i, 0][0], central.totals[-1][0], rtol=1e-12)
        np.testing.assert_allclose(spread.totals[i, 0][1], central.totals[-1][1], atol=1e-12)
        np.testing.assert_allclose(spread.local[i, 0][0], central.local[i][0], atol=1e-14)
    # Each message crosses the three edges of its sender, and dies there.
    assert spread.bytes_sent == 7 * M * (M - 1) * message_bytes(d)


@pytest.mark.parametrize(("count", "weight"), [("silos", 5), ("clique", 2)])
def test_request_by_hand(count: str, weight: int) -> None:
    """d = 1, x = 1, L = 1: n log((w rho_max + n) / (w rho_min)) >= D / 2, w the start's weight."""
    D, rho_min, rho_max = 24.0, 2.0, 6.0
    out = replay_decentralised(
        **single(
            60, M=5, moves=lambda t, i: np.ones(1), rho_min=rho_min, rho_max=rho_max, threshold=D
        ),
        adjacency=line(5),
        gamma=1,
        cliques=[[0, 1], [2, 3], [4]],
        L=1.0,
        count=count,
    )
    first = next(
        n for n in range(1, 99) if n * log((weight * rho_max + n) / (weight * rho_min)) >= D / 2
    )
    of_pair = [(t, i) for t, i, _ in out.requests if i in (0, 1)]
    assert of_pair[:2] == [(first, 0), (first, 1)]
    # After the broadcast of first + 1 rounds the count starts again from 2 shifted prefixes.
    S = 2 * 4.0 + 2 * (first + 1)
    spread = weight * (rho_max - rho_min)
    then = next(n for n in range(1, 99) if n * log((S + spread + n) / S) >= D / 2)
    assert of_pair[2] == (first + 1 + then, 0)


def test_bytes_of_requests() -> None:
    """A line of 3, gamma 2: a message of an end crosses 1 + 2 edges, of the middle 2 + 1 + 1."""
    move = lambda t, i: np.ones(1) if i == 0 and t % 2 else np.zeros(1)  # noqa: E731
    out = replay_decentralised(
        **single(8, M=3, moves=move, threshold=2.0),
        adjacency=LINE_3,
        gamma=2,
        cliques=[[0, 1, 2]],
        L=1.0,
    )
    kinds = [type(message) for _, _, message in out.arrivals]
    requests = len(out.requests)
    assert requests == 1
    assert out.requests[0][1:] == (0, 1)
    assert out.broadcasts == [(out.requests[0][0] + 2, i, 1) for i in range(3)]
    assert kinds.count(Request) == 2
    assert kinds.count(Statistics) == 6
    assert out.bytes_sent == 24 * 3 + message_bytes(1) * (3 + 4 + 3)


# Bounds.


def test_thresholds() -> None:
    sizes = {"T": 1000, "d": 5, "L": 2.0, "rho_min": 2.0, "rho_max": 6.0}
    grown = log(3 + 4000 / 10)
    assert threshold("log-T", M=7, **sizes) == pytest.approx(10000 / (grown + 1))  # type: ignore[arg-type]
    assert threshold("M1.5", M=7, **sizes) == pytest.approx(1000 * log(7000) / 35)  # type: ignore[arg-type]
    assert threshold("MT", M=7, **sizes) == 0.0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="communication"):
        threshold("MlogT", M=7, **sizes)  # type: ignore[arg-type]
    spread = decentralised_threshold(gamma=4, **sizes)  # type: ignore[arg-type]
    assert spread == pytest.approx(2500 / (log(3 + 4000 / 40) + 1))


def test_bounds_by_hand() -> None:
    sizes = {"T": 100, "d": 2, "L": 1.0, "rho_min": 1.0, "rho_max": 3.0}
    grown = log(53)
    assert log_growth(**sizes) == pytest.approx(grown)  # type: ignore[arg-type]
    bounds = proposition_1(8.0, **sizes)  # type: ignore[arg-type]
    assert bounds["main-text"] == pytest.approx(10 * grown + 4)
    assert bounds["appendix"] == pytest.approx(10 * sqrt(grown) + 4)
    assert bounds["derived"] == pytest.approx(10 * sqrt(grown) + grown / 4 + 2)
    law = {"sigma": 0.5, "alpha": 0.01, "norm": 1.0, "M": 4, "kappa": 0.25}
    rest = sqrt(log(200)) + sqrt(12) + 0.5
    value = theorem_1(**law, **sizes)  # type: ignore[arg-type]
    assert value == pytest.approx(0.5 * sqrt(800) * (grown + rest))
    value = theorem_2(**law, **sizes, cliques=3, gamma=2)  # type: ignore[arg-type]
    assert value == pytest.approx(0.5 * sqrt(4800) * (log(28) + rest))
    # One clique of all silos and gamma = 1 is the central bound.
    central = theorem_1_two_terms(8.0, 5.0, M=4, T=100, d=2, grown=grown)
    spread = theorem_2_two_terms(8.0, 5.0, sizes=[4], gamma=1, T=100, d=2, grown=grown)
    assert spread == pytest.approx(central)
    by_hand = 10 * np.e * (sqrt(1600 * grown) + 4 * sqrt(8) * (2 * grown + 1))
    assert central == pytest.approx(by_hand)
    # The slip of the last step: with its own D the sum is larger than the printed line.
    D = threshold("log-T", M=4, **sizes)  # type: ignore[arg-type]
    printed = theorem_1_explicit(5.0, M=4, T=100, d=2, grown=grown)
    assert theorem_1_two_terms(D, 5.0, M=4, T=100, d=2, grown=grown) > printed


def test_noise_and_its_bounds_by_hand() -> None:
    # alpha makes 2 n M / alpha = e^4, so that the tails are plain numbers.
    e4 = float(np.exp(4.0))
    assert node_noise_std(0.5, 2 / e4, 4, 1.0) == pytest.approx(4 * 2 * 2 * 4 / 0.5)
    assert kappa_printed(0.5, 3, 1.0, 9, 10, 2, 40 / e4) == pytest.approx(
        sqrt(3 * 2 * (3 + 8) * sqrt(2))
    )
    found = lambda_from_noise(1.5, 4, 9, 10, 2, 160 / e4)
    assert found == pytest.approx(3.0 * (6 + 4))
    found = kappa_from_noise(1.5, 4, 9.0, 9, 10, 2, 80 / e4)
    assert found == pytest.approx(1.5 * 2 * (3 + sqrt(8)) / 3)
    explicit = theorem_1_explicit(5.0, M=4, T=100, d=2, grown=3.5)
    assert explicit == pytest.approx(4 * np.e * 5 * 60 * sqrt(2))
