"""Check the reference in the style of the papers: it learns, repeats, and agrees with the
oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from oracle import chowdhury_zhou_2022
from oracle.zhou_chowdhury_2024 import Noise, replay
from reference import (
    private_fedlinucb_pool,
    private_fedlinucb_sphere,
    vector_fedlinucb_sphere,
)
from reference_agent import BitSums, NoisySums, PlainSums, TreeSums, linucb_fixed_set


def small_sphere(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a small run on the sphere."""
    arguments: dict[str, Any] = {
        "silos": 3,
        "horizon": 60,
        "dimension": 4,
        "actions": 10,
        "batch_size": 5,
        "noise_std": 1.0,
        "regularizer": 60.0,
        "seed": 11,
    }
    return arguments | changes


def small_vector(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a small run with shuffled bits."""
    arguments = small_sphere(epsilon=1.0, delta=0.1, **changes)
    del arguments["noise_std"]
    return arguments


def small_pool(**changes: Any) -> dict[str, Any]:
    """Return five queries of 1 to 7 documents.

    Silos have queries 1-2 and 3-4, and no silo has query 0.
    """
    rng = np.random.default_rng(3)
    starts = np.cumsum([0, 4, 7, 1, 5, 3])
    rows = rng.standard_normal((starts[-1], 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    arguments: dict[str, Any] = {
        "rows": rows,
        "starts": starts,
        "silo_starts": np.array([1, 3, 5]),
        "means": (1 + rows @ np.array([0.6, -0.5, 0.3])) / 2,
        "horizon": 50,
        "batch_size": 5,
        "noise_std": 1.0,
        "regularizer": 60.0,
        "seed": 11,
    }
    return arguments | changes


def check_regret(result: reference.Result, horizon: int) -> None:
    """Check the shape and the order of the regret and of the times."""
    regret = result["group_regret"]
    assert regret.shape == (horizon,)
    assert np.isfinite(regret).all()
    assert (np.diff(regret, prepend=0.0) >= 0).all()
    assert regret[-1] > 0
    assert 0 < result["data_seconds"] < result["total_seconds"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"silos": 1}, {"batch_size": 1}, {"batch_size": 7}, {"batch_size": 100}, {"dimension": 2}],
)
def test_regret_on_the_sphere_is_positive_and_finite(changes: dict[str, Any]) -> None:
    check_regret(private_fedlinucb_sphere(**small_sphere(**changes)), 60)


@pytest.mark.parametrize(
    "changes",
    [{}, {"silos": 1}, {"batch_size": 1}, {"batch_size": 7}, {"batch_size": 100}, {"dimension": 2}],
)
def test_regret_of_vector_sums_is_positive_and_finite(changes: dict[str, Any]) -> None:
    """Check 60 rounds: a batch size of 7 leaves 4 of them unsynchronised, and one of 100 leaves
    all."""
    check_regret(vector_fedlinucb_sphere(**small_vector(**changes)), 60)


def test_regret_on_a_pool_is_positive_and_finite() -> None:
    check_regret(private_fedlinucb_pool(**small_pool()), 50)


def test_one_action_has_no_regret() -> None:
    result = private_fedlinucb_sphere(**small_sphere(actions=1))
    assert np.array_equal(result["group_regret"], np.zeros(60))


def test_results_depend_only_on_the_seed() -> None:
    first, repeated = (private_fedlinucb_sphere(**small_sphere())["group_regret"] for _ in range(2))
    assert np.array_equal(first, repeated)
    of_other_seed = private_fedlinucb_sphere(**small_sphere(seed=12))["group_regret"]
    assert not np.array_equal(first, of_other_seed)
    first, repeated = (vector_fedlinucb_sphere(**small_vector())["group_regret"] for _ in range(2))
    assert np.array_equal(first, repeated)
    of_other_seed = vector_fedlinucb_sphere(**small_vector(seed=12))["group_regret"]
    assert not np.array_equal(first, of_other_seed)
    first, repeated = (private_fedlinucb_pool(**small_pool())["group_regret"] for _ in range(2))
    assert np.array_equal(first, repeated)
    assert not np.array_equal(first, private_fedlinucb_pool(**small_pool(seed=12))["group_regret"])


def test_privacy_noise_does_not_change_the_environment() -> None:
    """Check that choices agree for two noise levels before the first synchronisation, and differ
    later."""
    without_noise, with_noise = (
        private_fedlinucb_sphere(**small_sphere(noise_std=std))["group_regret"] for std in (0, 3)
    )
    assert np.array_equal(without_noise[:5], with_noise[:5])
    assert not np.array_equal(without_noise, with_noise)
    of_vector_sums = vector_fedlinucb_sphere(**small_vector())["group_regret"]
    assert np.array_equal(without_noise[:5], of_vector_sums[:5])
    assert not np.array_equal(without_noise, of_vector_sums)


def test_silos_receive_only_their_own_queries() -> None:
    """Check that action 0, chosen since all scores are equal, costs 1 in silo 1's block and 0 in
    silo 0's."""
    result = private_fedlinucb_pool(
        rows=np.zeros((10, 3)),
        starts=np.arange(0, 11, 2),
        silo_starts=np.array([1, 3, 5]),
        means=np.array([0, 9, 0, 0, 0, 0, 0, 1, 0, 1], dtype=float),
        horizon=40,
        noise_std=0.0,
        regularizer=1.0,
        seed=11,
    )
    assert np.array_equal(result["group_regret"], np.arange(1, 41))


def test_radius_follows_the_published_code() -> None:
    """Check sqrt(2) sqrt(5) + 0.5 sqrt(5 ln(1 + 100 * 10 / (5 * 2)) + ln 100), calculated by
    hand."""
    assert reference._radius(100, 10, 5, 2.0, 0.01) == pytest.approx(5.79290, abs=1e-5)


def test_learning_is_better_than_random_choices() -> None:
    result = private_fedlinucb_sphere(
        **small_sphere(silos=5, horizon=400, noise_std=0.0, regularizer=1.0, radius_multiplier=0.2)
    )
    per_round = np.diff(result["group_regret"], prepend=0.0).reshape(4, 100).mean(axis=1) / 5
    # The regret of random choices is E[max - mean] of <u, v> / 2 over ten actions, with u on the
    # 2-sphere. There <u, v> is uniform on [-1, 1], so the maximum of ten has mean 9/11, and the
    # regret is 9/22.
    assert per_round[0] < 9 / 22
    assert per_round[-1] < per_round[0]
    assert per_round[-1] < 0.05


def test_noise_too_large_for_the_regularizer_raises_an_error() -> None:
    with pytest.raises(FloatingPointError):
        private_fedlinucb_sphere(**small_sphere(noise_std=50.0, regularizer=0.1))


def make_vector_tree(points_per_batch: int, d: int, levels: int = 1, **changes: Any) -> Any:
    """Return a tree of sums of bits."""
    arguments: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 0.1,
        "scale": 1.0,
        "mechanism": np.random.default_rng(7),
    }
    return reference._VectorTree(points_per_batch, levels, d, **arguments | changes)


def make_points(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n actions in the unit ball and rewards in [0, 1]."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((n, d))
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), rng.random(n)


def test_parameters_of_the_vector_sum_follow_their_formulas() -> None:
    """Compare with values calculated by hand from ln(100 / 0.1)^2 = 47.7171 and epsilon^2 =
    0.04."""
    tree = make_vector_tree(1, 10, epsilon=0.2)
    assert tree.parameters(2500) == (100, 4772)
    assert tree.parameters(2501) == (101, 4866)  # 2 sqrt n = 100.02 rounds up
    assert tree.parameters(2) == (10, 59647)
    assert make_vector_tree(1, 3, epsilon=20.0).parameters(1) == (4, 1)
    assert make_vector_tree(1, 10, epsilon=0.2, scale=0.5).parameters(2500) == (100, 2386)


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_vector_sum_is_unbiased_with_the_stated_noise(epsilon: float) -> None:
    """Check also epsilon = 20, where there is one noise bit and rounding makes about half of the
    variance."""
    n, d, repeats = 6, 3, 2000
    tree = make_vector_tree(n, d, epsilon=epsilon)
    x, rewards = make_points(n, d)
    for point in zip(x, rewards, strict=True):
        tree.record(*point)
    sums = np.array([tree.vector_sum(tree.points) for _ in range(repeats)])

    upper = np.triu_indices(d)
    exact = np.array(
        [
            np.append(reward * row, np.outer(row, row)[upper])
            for row, reward in zip(x, rewards, strict=True)
        ]
    )
    g, b = tree.parameters(n)
    fraction = exact * g - np.floor(exact * g)
    variance = (n * b * 3 / 16 + (fraction * (1 - fraction)).sum(axis=0)) / g**2
    # For nine coordinates at 5 standard errors a false alarm occurs for 1 of 2e5 seeds. The pooled
    # variance has relative error sqrt(2 / (9 * 2000)) = 1.05 %, since kurtosis is below the
    # Gaussian one; allow 5 times that.
    z = (sums.mean(axis=0) - exact.sum(axis=0)) / np.sqrt(variance / repeats)
    assert np.abs(z).max() < 5
    assert (sums.var(axis=0, ddof=1) / variance).mean() == pytest.approx(1, abs=0.053)
    # Each coordinate has independent noise: 36 correlations at 5 / sqrt(2000).
    correlation = np.corrcoef(sums.T) - np.eye(len(variance))
    assert np.abs(correlation).max() < 0.112


def test_vector_noise_std_of_the_published_setting() -> None:
    """Check about 15 per coordinate and node, for any number of points (d = 10, epsilon = 0.2)."""
    for n in (1, 60):
        tree = make_vector_tree(n, 10, epsilon=0.2)
        x, rewards = make_points(n, 10)
        for point in zip(x, rewards, strict=True):
            tree.record(*point)
        exact = np.concatenate((rewards @ x, (x.T @ x)[tree.upper]))
        noise = np.concatenate([tree.vector_sum(tree.points) - exact for _ in range(20)])
        # 1300 draws have a relative standard error of 2 %, so a limit of 10 % is a false alarm for
        # 1 of 2e6 seeds.
        assert np.sqrt(np.mean(noise**2)) == pytest.approx(14.96, rel=0.1)


def test_vector_nodes_contain_the_points_of_their_batches() -> None:
    per_batch, d, batches = 3, 4, 22
    tree = make_vector_tree(per_batch, d, levels=5)
    counts: list[int] = []

    def exact_sum(points: list[np.ndarray]) -> np.ndarray:
        """Return the exact sum of the points, and record their number."""
        counts.append(len(points))
        return np.sum(points, axis=0)

    tree.vector_sum = exact_sum
    x, rewards = make_points(per_batch * batches, d)
    for k in range(1, batches + 1):
        point_count = per_batch * k
        for j in range(point_count - per_batch, point_count):
            tree.record(x[j], rewards[j])
        W, U = tree.release(k, [], [])
        assert np.allclose(W, x[:point_count].T @ x[:point_count], atol=1e-12)
        assert np.allclose(U, rewards[:point_count] @ x[:point_count], atol=1e-12)
        assert np.array_equal(W, W.T)
    assert counts == [per_batch * (k & -k) for k in range(1, batches + 1)]


@pytest.mark.parametrize(("batch_size", "encodings"), [(1, 68), (5, 40), (7, 28), (35, 0)])
def test_number_of_encodings_in_a_run(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, encodings: int
) -> None:
    """Check the batch size times the sum of lowbit(k) over the releases, for 24 rounds and one
    silo."""
    calls = []
    encode = reference._VectorTree.encode

    def counted(*arguments: Any) -> np.ndarray:
        """Encode, and note the call."""
        calls.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(reference._VectorTree, "encode", counted)
    vector_fedlinucb_sphere(**small_vector(silos=1, horizon=24, batch_size=batch_size))
    assert len(calls) == encodings


@pytest.mark.parametrize("protocol", ["silo-ldp", "shuffle-vector"])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_oracle_agrees_with_every_action(batch_size: int, protocol: str) -> None:
    """Replay choices with the oracle, decoded from regret written in base 16.

    The vector sum has one noise for both silos, which the oracle takes as that of silo 0.
    """
    silos, horizon, d, actions, unit = 2, 34, 3, 16, 2.0**-12
    tables = np.random.default_rng(5).standard_normal((horizon, silos, actions, d))
    tables /= np.linalg.norm(tables, axis=-1, keepdims=True)
    means = [-np.arange(actions) * unit * 16**i for i in range(silos)]
    rounds = [0] * silos

    def draw(silo: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions and means of the next round of a silo."""
        rounds[silo] += 1
        return tables[rounds[silo] - 1, silo], means[silo]

    noise_std, regularizer, multiplier, alpha = 1.0, 40.0, 0.3, 0.01
    levels = reference._levels(horizon, batch_size)
    nodes: dict[tuple[int, int], Noise] = {}
    tree: Any
    if protocol == "silo-ldp":
        tree = reference._SiloTree(silos, levels, d, noise_std, np.random.default_rng(7))
        # Repeat the draws: for each synchronisation and silo the square matrix, then the vector.
        mechanism = np.random.default_rng(7)
        for k in range(1, horizon // batch_size + 1):
            for i in range(silos):
                square = mechanism.normal(0.0, noise_std, size=(d, d))
                nodes[i, k] = mechanism.normal(0.0, noise_std, size=d), (square + square.T) / 2
    else:
        tree = make_vector_tree(silos * batch_size, d, levels)
        vector_sum = tree.vector_sum

        def recording_sum(points: list[np.ndarray]) -> np.ndarray:
            """Return the noisy sum of the points, and record its noise for the oracle."""
            noisy: np.ndarray = vector_sum(points)
            noise = noisy - np.sum(points, axis=0)
            square = np.zeros((d, d))
            square[tree.upper] = noise[d:]
            k = len(nodes) // silos + 1
            nodes[0, k] = noise[:d], np.triu(square) + np.triu(square, 1).T
            nodes[1, k] = np.zeros(d), np.zeros((d, d))
            return noisy

        tree.vector_sum = recording_sum
    result = reference._private_fedlinucb(
        draw,
        tree.release,
        tree.record if protocol == "shuffle-vector" else None,
        silos=silos,
        horizon=horizon,
        dimension=d,
        batch_size=batch_size,
        regularizer=regularizer,
        radius_multiplier=multiplier,
        failure_probability=alpha,
        reward_std=0.0,
        environment=np.random.default_rng(6),
    )
    digits = np.rint(np.diff(result["group_regret"], prepend=0.0) / unit).astype(int)
    actions_of_silos = np.array([(digits >> (4 * i)) & 15 for i in range(silos)])
    assert len(np.unique(actions_of_silos)) > 10

    def radius(t: int, k: int) -> float:
        """Return the radius in round t."""
        growth = d * np.log(1 + t * silos / (d * regularizer)) + np.log(1 / alpha)
        return multiplier * float(np.sqrt(regularizer) * np.sqrt(d) + 0.5 * np.sqrt(growth))

    arguments: dict[str, Any] = {
        "contexts": lambda t, i: tables[t - 1, i],
        "means": lambda t, i: means[i],
        "actions": actions_of_silos,
        "rewards": np.array([means[i][actions_of_silos[i]] for i in range(silos)]),
        "batch_size": batch_size,
        "protocol": "silo-ldp",
        "lazy": False,
        "regularizer": lambda k: regularizer,
        "radius": radius,
        "noise": lambda i, k: nodes[i, k],
    }
    replayed = replay(**arguments)
    assert replayed.worst_gap < 1e-9
    assert np.allclose(replayed.group_regret, result["group_regret"], rtol=1e-12)
    # The check can fail: without the privacy noise, other actions would have been best.
    assert replay(**arguments | {"protocol": "none"}).worst_gap > 1e-4


# Systems of a single agent.


def make_fixed_set(actions: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return actions (u, 1) / sqrt 2 and expected rewards (1 + <u, v>) / 2.

    Here u and v have norm 1.
    """
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((actions, d - 1)), rng.standard_normal(d - 1)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    v /= np.linalg.norm(v)
    return np.column_stack((u, np.ones(actions))) / np.sqrt(2), (1 + u @ v) / 2


def make_agent_sums(system: str, d: int, releases: int, mechanism: np.random.Generator) -> Any:
    """Return the sums that an agent of this system keeps."""
    if system == "linucb":
        return PlainSums(d)
    if system == "linucb-jdp":
        return TreeSums(d, releases.bit_length(), 1.0, 0.8, mechanism)
    if system == "linucb-sdp-vec":
        return BitSums(d, (5, 5), 20, mechanism)
    return NoisySums(d, 1.0, 0.8, mechanism)


def make_agent_noise(system: str, d: int, T: int, B: int, mechanism: np.random.Generator) -> Any:
    """Return the same draws again, in the form that the oracle needs."""

    def gaussian(count: int) -> list[Noise]:
        """Return `count` pairs of noise (bias, symmetric covariance)."""
        pairs = []
        for _ in range(count):
            square = mechanism.normal(0.0, 0.8, size=(d, d))
            pairs.append((mechanism.normal(0.0, 1.0, size=d), (square + square.T) / 2))
        return pairs

    if system == "linucb":
        return {}
    if system == "linucb-jdp":
        nodes = gaussian(T // B)
        return {"node_noise": lambda n: nodes[n - 1]}
    if system == "linucb-sdp-vec":
        size = d + d * (d + 1) // 2
        points = [(mechanism.random(size), mechanism.binomial(20, 0.25, size)) for _ in range(T)]
        return {
            "encoding": chowdhury_zhou_2022.Encoding(5, 20),
            "uniforms": lambda t: points[t - 1][0],
            "user_ones": lambda t: points[t - 1][1],
        }
    users = gaussian(T)
    return {"user_noise": lambda t: users[t - 1]}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("system", chowdhury_zhou_2022.SYSTEMS)
def test_oracle_agrees_with_every_action_of_an_agent(system: str, batch_size: int) -> None:
    """Check choices decoded from the regret, since each action has a different one.

    The rewards are drawn again.
    """
    horizon, d, ridge, width = 66, 3, 1.0 if system == "linucb" else 30.0, 2.0
    contexts, means = make_fixed_set(16, d, 5)
    sums = make_agent_sums(system, d, horizon // batch_size, np.random.default_rng(7))
    result = linucb_fixed_set(
        contexts, means, sums, horizon=horizon, batch_size=batch_size, regularizer=ridge,
        width=width, seed=6,
    )  # fmt: skip
    regrets = np.diff(result["group_regret"], prepend=0.0)
    actions = np.abs(regrets[:, None] - (means.max() - means)).argmin(axis=1)
    assert len(set(actions)) > 3
    arguments: dict[str, Any] = {
        "contexts": lambda t: contexts,
        "means": lambda t: means,
        "actions": actions,
        "rewards": (np.random.default_rng(6).random(horizon) < means[actions]).astype(float),
        "batch_size": batch_size,
        "regularizer": lambda m: ridge,
        "radius": lambda t, m: width,
    }
    noise = make_agent_noise(system, d, horizon, batch_size, np.random.default_rng(7))
    replayed = chowdhury_zhou_2022.replay(system=system, **arguments, **noise)
    assert replayed.worst_gap < 1e-9
    assert np.allclose(replayed.regret, result["group_regret"], rtol=1e-12)
    # The check can fail: with other rewards or without the noise, other actions would have been
    # best.
    if system == "linucb":
        arguments["rewards"] = 1.0 - arguments["rewards"]
    assert chowdhury_zhou_2022.replay(system="linucb", **arguments).worst_gap > 1e-3


def test_an_agent_learns_without_huge_noise() -> None:
    """Compare the final regret with that of random choices, in the mean of twelve instances."""
    shares = []
    for seed in range(12):
        contexts, means = make_fixed_set(20, 3, seed)
        keys: dict[str, Any] = {"horizon": 300, "regularizer": 1.0, "width": 0.3, "seed": seed}
        noisy_sums = NoisySums(3, 1e4, 0.0, np.random.default_rng((seed, 1)))
        shares.append(
            [
                linucb_fixed_set(contexts, means, sums, **keys)["group_regret"][-1]
                / (300 * (means.max() - means.mean()))
                for sums in (PlainSums(3), noisy_sums)
            ]
        )
    share_without_noise, share_with_noise = np.mean(shares, axis=0)
    assert share_without_noise < 0.15
    assert share_with_noise > 0.6


def test_noise_too_large_for_an_agents_regularizer_raises_an_error() -> None:
    contexts, means = make_fixed_set(20, 3, 0)
    sums = NoisySums(3, 1.0, 50.0, np.random.default_rng(1))
    with pytest.raises(FloatingPointError):
        linucb_fixed_set(contexts, means, sums, horizon=50, regularizer=1.0, width=1.0, seed=1)


@pytest.mark.parametrize("system", chowdhury_zhou_2022.SYSTEMS)
def test_results_of_an_agent_depend_only_on_the_seed(system: str) -> None:
    contexts, means = make_fixed_set(20, 3, 0)
    keys: dict[str, Any] = {"horizon": 64, "batch_size": 3, "width": 2.0}
    keys["regularizer"] = 1.0 if system == "linucb" else 30.0
    runs = []
    for seed in (1, 1, 2):
        sums = make_agent_sums(system, 3, 21, np.random.default_rng((seed, 1)))
        runs.append(linucb_fixed_set(contexts, means, sums, seed=seed, **keys))
    first, repeated, of_other_seed = (run["group_regret"] for run in runs)
    assert np.array_equal(first, repeated) and not np.array_equal(first, of_other_seed)
    assert all(0.0 == run["data_seconds"] < run["total_seconds"] for run in runs)
