"""The oracle of Zhou-Chowdhury 2024 against itself: definitions, closed forms, a second player."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle.zhou_chowdhury_2024 import (
    Direct,
    Noise,
    chosen_regularizer,
    direct_bonuses,
    honaker_estimate,
    honaker_number,
    honaker_weight,
    new_numbers,
    node_interval,
    prefix_noise,
    replay,
    square_root,
    tree_nodes,
)

OTHER_RELEASES = ["honaker", "toeplitz"]


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([20240605, *key])


def unit_contexts(dimension: int, actions: int) -> Callable[[int, int], np.ndarray]:
    def contexts(t: int, i: int) -> np.ndarray:
        rows = keyed(1, t, i).standard_normal((actions, dimension))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    return contexts


def one_hot_contexts(dimension: int) -> Callable[[int, int], np.ndarray]:
    return lambda t, i: np.eye(dimension)


def node_noise(dimension: int, std: float) -> Callable[[int, int], Noise]:
    def noise(i: int, k: int) -> Noise:
        rng = keyed(2, i, k)
        square = std * rng.standard_normal((dimension, dimension))
        return std * rng.standard_normal(dimension), (square + square.T) / 2

    return noise


def case(
    silos: int,
    horizon: int,
    dimension: int,
    choices: int,
    batch: int | None,
    /,
    **changes: Any,
) -> dict[str, Any]:
    """Arguments of a replay of arbitrary (not best) actions, with any of them changed."""
    contexts = unit_contexts(dimension, choices)
    theta = keyed(3).standard_normal(dimension) / np.sqrt(dimension)
    rng = keyed(4)
    arguments: dict[str, Any] = {
        "contexts": contexts,
        "means": lambda t, i: contexts(t, i) @ theta,
        "actions": rng.integers(choices, size=(silos, horizon)),
        "rewards": rng.integers(2, size=(silos, horizon)).astype(float),
        "batch_size": batch,
        "protocol": "silo-ldp",
        "lazy": False,
        "regularizer": lambda k: 60.0,
        "radius": lambda t, k: 0.5 + 0.01 * t + 0.1 * k,
        "noise": node_noise(dimension, 1.0),
        "server_noise": lambda k: node_noise(dimension, 1.0)(silos, k),
    }
    return arguments | changes


def plain_sums(arguments: dict[str, Any], until: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariance and bias of all silos over rounds 1..until, straight from the data."""
    silos = len(arguments["actions"])
    x = [
        arguments["contexts"](t, i)[arguments["actions"][i, t - 1]]
        for t in range(1, until + 1)
        for i in range(silos)
    ]
    y = arguments["rewards"].T.ravel()[: until * silos]
    return np.transpose(x) @ x, np.transpose(x) @ y


def test_nodes_of_a_prefix_partition_it() -> None:
    for k in range(1, 130):
        covered: list[int] = []
        for released in tree_nodes(k):
            first, last = node_interval(released)
            assert (last - first + 1).bit_count() == 1
            covered += range(first, last + 1)
        assert covered == list(range(1, k + 1))
        assert len(tree_nodes(k)) == k.bit_count()


def test_example_of_the_paper() -> None:
    """Section 4.2: at k = 6 the new node is [5, 6], and the prefix is [1, 4] and [5, 6]."""
    assert node_interval(6) == (5, 6)
    assert [node_interval(released) for released in tree_nodes(6)] == [(1, 4), (5, 6)]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("silos", [1, 3])
def test_p_sums_and_prefix_sums_give_equal_totals(silos: int, batch_size: int) -> None:
    arguments = case(silos, 19, 3, 4, batch_size)
    p_sums = replay(**arguments)
    prefixes = replay(**arguments | {"protocol": "silo-ldp-prefix"})
    assert len(p_sums.totals) == len(prefixes.totals) == 19 // batch_size
    for (W, U), (W_alt, U_alt) in zip(p_sums.totals, prefixes.totals, strict=True):
        assert np.allclose(W, W_alt, rtol=1e-12, atol=1e-12)
        assert np.allclose(U, U_alt, rtol=1e-12, atol=1e-12)
    assert p_sums.worst_gap == pytest.approx(prefixes.worst_gap, rel=1e-9)


def test_worst_gap_regret_and_clip_by_hand() -> None:
    """One round, V = 4 I, U = 0: scores are beta ||x|| / 2 + gamma ||x|| / 4."""
    phi = np.array([[2.0, 0.0], [0.0, 1.0]])
    arguments = case(
        1,
        1,
        2,
        2,
        None,
        contexts=lambda t, i: phi,
        means=lambda t, i: np.array([0.25, 0.75]),
        regularizer=lambda k: 4.0,
        radius=lambda t, k: 1.0,
        rewards=np.array([[3.0]]),
    )
    worse = replay(**arguments | {"actions": np.array([[1]])})
    assert worse.worst_gap == pytest.approx(0.5)
    assert worse.group_regret.tolist() == [0.0]
    better = replay(**arguments | {"actions": np.array([[0]]), "gamma": 1.0})
    assert better.worst_gap == 0.0
    assert better.group_regret.tolist() == [0.5]
    assert better.totals == []
    ((W, U),) = better.local
    assert np.array_equal(W, [[4.0, 0.0], [0.0, 0.0]])
    assert np.array_equal(U, [6.0, 0.0])
    # Scores keep x as given, so the gap stays; the statistics have norm 1 and reward 1.
    cut = replay(**arguments | {"actions": np.array([[0]]), "clip": (1.0, 0.0, 1.0)})
    ((W, U),) = cut.local
    assert cut.worst_gap == 0.0
    assert np.array_equal(W, [[1.0, 0.0], [0.0, 0.0]])
    assert np.array_equal(U, [1.0, 0.0])


def test_second_bonus_decides() -> None:
    """After x = e_1 was seen three times (V = diag(4, 1)), <x, theta> = 3/4 on e_1."""
    arguments = case(
        1,
        4,
        2,
        2,
        None,
        contexts=one_hot_contexts(2),
        regularizer=lambda k: 1.0,
        radius=lambda t, k: 0.0,
        rewards=np.ones((1, 4)),
    )
    # With gamma = 1/2 round 4 scores 3/4 + 1/8 and 1/2; the rounds before took the best.
    result = replay(**arguments | {"actions": np.array([[0, 0, 0, 1]]), "gamma": 0.5})
    assert result.worst_gap == pytest.approx(3 / 7)
    # With gamma = 2 it scores 3/4 + 1/2 and 2: the unexplored action is the better one.
    result = replay(**arguments | {"actions": np.array([[0, 0, 0, 0]]), "gamma": 2.0})
    assert result.worst_gap == pytest.approx(3 / 8)


def test_one_dimension_by_hand() -> None:
    """d = 1: V and theta_hat are scalars, and a wrong sign in the second batch costs its score."""
    phi = np.array([[1.0], [-1.0]])
    arguments = case(
        2,
        4,
        1,
        2,
        2,
        contexts=lambda t, i: phi,
        means=lambda t, i: phi[:, 0],
        actions=np.zeros((2, 4), dtype=int),
        rewards=np.ones((2, 4)),
        lazy=True,
        regularizer=lambda k: 2.0 + 3.0 * k,
        radius=lambda t, k: t - k,
        noise=lambda i, k: (np.array([0.5]), np.array([[1.0]])),
    )
    result = replay(**arguments)
    assert result.worst_gap == 0.0
    assert [float(W[0, 0]) for W, _ in result.totals] == [4.0 + 2.0, 8.0 + 2.0]
    assert [float(U[0]) for _, U in result.totals] == [4.0 + 1.0, 8.0 + 1.0]
    assert np.array_equal(result.group_regret, np.zeros(4))
    # Round 3: lambda = 5, V = 11, theta_hat = 5/11, beta = 2; scores 2/sqrt(11) +- 5/11.
    wrong = np.zeros((2, 4), dtype=int)
    wrong[1, 2] = 1
    result = replay(**arguments | {"actions": wrong})
    assert result.worst_gap == pytest.approx((10 / 11) / (2 / np.sqrt(11) + 5 / 11))
    assert np.array_equal(result.group_regret, [0.0, 0.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "silo"}, "protocol"),
        ({"protocol": "central", "server_noise": None}, "server_noise"),
        ({"rewards": np.zeros((2, 3))}, "shapes"),
        ({"rewards": np.full((2, 8), np.nan)}, "not finite"),
        ({"actions": np.full((2, 8), -1)}, "action -1"),
        ({"actions": np.full((2, 8), 4)}, "action 4"),
        ({"radius": lambda t, k: np.nan}, "not finite"),
        ({"noise": lambda i, k: (np.zeros(3), -90.0 * np.eye(3))}, "positive definite"),
        ({"noise": lambda i, k: (np.zeros(3), np.triu(np.ones((3, 3))))}, "symmetric"),
        ({"noise": lambda i, k: (np.zeros((3, 1)), np.zeros((3, 3)))}, "shapes"),
        ({"release": "forest"}, "release must be"),
        ({"release": "honaker", "protocol": "silo-ldp-prefix"}, "not of protocol"),
        ({"release": "toeplitz", "protocol": "shuffle-amplified"}, "not of protocol"),
        ({"release": "toeplitz", "noise": lambda i, k: (np.zeros(3), np.zeros(3))}, "shapes"),
        ({"radius": None}, "needed"),
        ({"direct": Direct(lambda k: 1.0, lambda k: 0.0, lambda k: 0.0, 1, 1, 1)}, "the place"),
    ],
)
def test_what_would_hide_an_error_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(**case(2, 8, 3, 4, 2, **changes))


# ---- releases other than the paper's tree -------------------------------------------------------


def unit_draw(numbers: int) -> Callable[[int], np.ndarray]:
    """Draw n is unit vector n, so that a noise is the row of its coefficients."""
    return lambda number: np.eye(numbers)[number - 1]


def test_square_root_of_the_prefix_matrix() -> None:
    root = square_root(60)
    assert np.allclose(root @ root, np.tril(np.ones((60, 60))), rtol=0, atol=1e-13)
    assert np.array_equal(root, np.tril(root))
    for m in range(1, 60):
        assert root[m, 0] == pytest.approx(root[m - 1, 0] * (2 * m - 1) / (2 * m), rel=1e-14)


def test_numbers_count_on_from_one() -> None:
    for release in OTHER_RELEASES:
        numbers = [n for k in range(1, 70) for n in new_numbers(release, k)]
        assert numbers == list(range(1, len(numbers) + 1))
    # All nodes of the complete binary tree: of 64 batches there are 127.
    assert honaker_number(64, 6) == 127


@pytest.mark.parametrize("level", [0, 1, 4])
def test_honaker_estimate_is_the_best_of_its_subtree(level: int) -> None:
    """Least squares for the total of 2^level leaves, from the noisy sums of all nodes under it."""
    leaves = 2**level
    rows = []
    for k in range(1, leaves + 1):
        for j in range((k & -k).bit_length()):
            row = np.zeros(leaves)
            row[k - 2**j : k] = 1.0
            rows.append(row)
    design = np.array(rows)
    best = np.linalg.solve(design.T @ design, np.ones(leaves)) @ design.T
    coefficients = honaker_estimate(leaves, level, unit_draw(len(rows)))
    assert np.allclose(coefficients, best, rtol=0, atol=1e-13)
    assert coefficients @ design == pytest.approx(np.ones(leaves))
    assert coefficients @ coefficients == pytest.approx(honaker_weight(level))


def test_prefix_noises_by_hand() -> None:
    z = [np.array([float(10**n)]) for n in range(8)]

    def noise(release: str, k: int) -> float:
        return float(prefix_noise(release, k, lambda number: z[number - 1])[0])

    assert noise("toeplitz", 1) == noise("honaker", 1) == 1.0
    assert noise("toeplitz", 3) == pytest.approx(100 + 10 / 2 + 3 / 8)
    # Release 2 draws numbers 2 and 3, release 3 number 4, release 4 numbers 5, 6 and 7.
    first_pair = 2 / 3 * 100 + (1 + 10) / 3
    second_pair = 2 / 3 * 100_000 + (1_000 + 10_000) / 3
    assert noise("honaker", 2) == pytest.approx(first_pair)
    assert noise("honaker", 3) == pytest.approx(first_pair + 1_000)
    assert noise("honaker", 4) == pytest.approx(
        4 / 7 * 1_000_000 + 3 / 7 * (first_pair + second_pair)
    )


@pytest.mark.parametrize("release", OTHER_RELEASES)
@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("silos", [1, 3])
def test_totals_are_plain_sums_and_prefix_noises(release: str, protocol: str, silos: int) -> None:
    arguments = case(silos, 19, 3, 4, 2, protocol=protocol, release=release)
    result = replay(**arguments)
    assert len(result.totals) == 9
    for k, (W, U) in enumerate(result.totals, start=1):
        plain_W, plain_U = plain_sums(arguments, 2 * k)
        if protocol == "central":
            givers = [arguments["server_noise"]]
        else:
            givers = [lambda n, i=i: arguments["noise"](i, n) for i in range(silos)]
        noise_U = sum(prefix_noise(release, k, lambda n, g=g: g(n)[0]) for g in givers)
        noise_W = sum(prefix_noise(release, k, lambda n, g=g: g(n)[1]) for g in givers)
        assert np.allclose(W, plain_W + noise_W, rtol=1e-12, atol=1e-12)
        assert np.allclose(U, plain_U + noise_U, rtol=1e-12, atol=1e-12)
    # The first release is one node of one batch in every release; the others differ.
    tree = replay(**arguments | {"release": "tree"})
    assert np.allclose(tree.totals[0][0], result.totals[0][0])
    assert not np.allclose(tree.totals[1][0], result.totals[1][0])
    # With T no multiple of B every silo still holds its last round.
    assert [float(np.trace(W)) for W, _ in result.local] == pytest.approx([1.0] * silos)


# ---- the direct radius --------------------------------------------------------------------------


def direct(**changes: Any) -> Direct:
    arguments: dict[str, Any] = {
        "full": lambda k: 8.0,
        "floor": lambda k: 4.0,
        "error": lambda k: 0.5,
        "anchor": 1.0,
        "base": 2.0,
        "scale": 0.5,
    }
    return Direct(**arguments | changes)


@pytest.mark.parametrize(
    ("eigenvalues", "lam", "nearest"),
    [
        # V's least eigenvalue is the total's plus 0, 1, ..., 7, and must lie above 4.
        ([4.5, 6.0], 0.0, 0.5 / 6.0),
        ([3.5, 6.0], 1.0, 0.5 / 7.0),
        ([-0.75, 9.0], 5.0, 0.25 / 14.0),
        ([4.0, 6.0], 1.0, 0.0),
        ([-2.5, 0.0], 7.0, 0.5 / 7.0),
        ([-4.0, 6.0], 8.0, 1.0 / 13.0),
    ],
)
def test_chosen_regularizer(eigenvalues: list[float], lam: float, nearest: float) -> None:
    turn = np.array([[3.0, -4.0], [4.0, 3.0]]) / 5
    for rotation in (np.eye(2), turn):
        total = rotation @ np.diag(eigenvalues) @ rotation.T
        if nearest == 0.0 and rotation is turn:
            continue
        chosen, seen = chosen_regularizer(direct(), 1, total)
        assert chosen == lam
        assert seen == pytest.approx(nearest, abs=1e-15)
        # Without a floor nothing is chosen, and nothing is near it.
        assert chosen_regularizer(direct(floor=lambda k: 0.0), 1, total) == (8.0, np.inf)


def test_direct_bonuses_by_hand() -> None:
    V = np.array([[5.0, 3.0], [3.0, 5.0]])  # of determinant 16
    beta, gamma = direct_bonuses(direct(), 1, 8.0, V)
    assert (beta, gamma) == (pytest.approx(0.5 * np.sqrt(2 + np.log(16))), 8.5)
    # lambda = 6: f = 1 + 2/4, and the determinant of V at full is at most f^2 times V's.
    beta, gamma = direct_bonuses(direct(anchor=2.0, multiplier=0.1), 1, 6.0, V)
    inside = 1.5 * (2 + np.log(16) + 2 * np.log(1.5 / 2.0))
    assert (beta, gamma) == (pytest.approx(0.05 * np.sqrt(inside)), pytest.approx(0.65))
    # A V smaller than the anchor gains nothing.
    beta, _ = direct_bonuses(direct(anchor=9.0), 1, 8.0, V)
    assert beta == pytest.approx(0.5 * np.sqrt(2.0))
    with pytest.raises(ValueError, match="positive definite"):
        direct_bonuses(direct(), 1, 8.0, np.diag([1.0, -1.0]))


@pytest.mark.parametrize("lazy", [False, True])
def test_direct_radius_in_one_dimension(lazy: bool) -> None:
    """x = +-1: V is counted, so lambda, beta and gamma of every round are known beforehand."""
    phi = np.array([[1.0], [-1.0]])
    noises = [0.25, 0.25, -4.5, 0.25]  # of the one node that k = 1, 2, 3, 4 release
    rule = direct(full=lambda k: 3.0 if k == 0 else 8.0, floor=lambda k: 0.0 if k == 0 else 4.0)
    arguments = case(
        1,
        10,
        1,
        2,
        2,
        contexts=lambda t, i: phi,
        means=lambda t, i: phi[:, 0],
        actions=np.zeros((1, 10), dtype=int),
        rewards=np.ones((1, 10)),
        lazy=lazy,
        noise=lambda i, k: (np.zeros(1), np.array([[noises[min(k, 4) - 1]]])),
    ) | {"radius": None, "regularizer": None}
    result = replay(**arguments, direct=rule)
    # Totals 2.25, 4.25, 1.75, 8.25 and 10.5: V = 4.25, 4.25, 4.75, 8.25, 10.5 above the floor 4.
    assert [float(W[0, 0]) for W, _ in result.totals] == [2.25, 4.25, 1.75, 8.25, 10.5]
    lambdas = [3.0, 2.0, 0.0, 3.0, 0.0, 0.0]
    assert result.regularizers == lambdas
    assert result.nearest_floor == pytest.approx(0.25 / 4.25)
    assert result.worst_gap == 0.0

    # The same as a radius and a second bonus that are given: one bonus, for here all is scalar.
    totals = [0.0, 2.25, 4.25, 1.75, 8.25]

    def given(t: int, k: int) -> float:
        V = lambdas[k] + totals[k] + (0 if lazy else (t - 1) % 2)
        f = 1.0 if k == 0 else 1.0 + (8.0 - lambdas[k]) / 4.0
        beta = 0.5 * np.sqrt(f * (2.0 + np.log(V * f)))
        return float(beta + (lambdas[k] + 0.5) / np.sqrt(V))

    wrong = arguments | {"actions": np.array([[0, 0, 0, 0, 0, 0, 0, 0, 1, 1]])}
    by_rule = replay(**wrong, direct=rule)
    by_hand = replay(**wrong | {"radius": given, "regularizer": lambda k: lambdas[k]})
    assert by_rule.worst_gap == pytest.approx(by_hand.worst_gap, rel=1e-12)
    assert by_rule.worst_gap > 0.1
    assert by_hand.regularizers == lambdas
    assert by_hand.nearest_floor == np.inf
