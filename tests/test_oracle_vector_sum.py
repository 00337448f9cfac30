"""The oracle of the shuffle protocols against itself: bits and counts, exact moments, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from oracle import vector_sum as vs
from oracle.zhou_chowdhury_2024 import replay
from scipy import stats


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([20240613, *key])


def draws(n: int, dimension: int, b: int, L: float) -> dict[str, Any]:
    """Points in [-L, L] with some at the ends, and the randomness of one run."""
    rng = keyed(1, n, dimension, b)
    points = rng.uniform(-L, L, (n, dimension))
    points[rng.random(points.shape) < 0.1] = L
    points[rng.random(points.shape) < 0.1] = -L
    uniforms, noise = rng.random(points.shape), rng.binomial(b, 0.25, points.shape)
    return {"points": points, "b": b, "L": L, "uniforms": uniforms, "noise": noise}


SIZES = [(1, 1, 4, 0, 1.0), (1, 3, 5, 7, 1.0), (6, 5, 4, 3, 1.0), (17, 2, 9, 40, 2.5)]


@pytest.mark.parametrize(("n", "dimension", "g", "b", "L"), SIZES)
def test_bits_and_counts_agree_exactly(n: int, dimension: int, g: int, b: int, L: float) -> None:
    run = draws(n, dimension, b, L)
    counts = vs.vector_sum_counts(g=g, **run)
    assert np.array_equal(vs.vector_sum(g=g, **run), counts)
    size = n * (2 * g + b)
    permutations = [keyed(2, n, j).permutation(size) for j in range(dimension)]
    assert np.array_equal(vs.vector_sum(g=g, permutations=permutations, **run), counts)
    # The definition: rounding misses each of n values by less than L/g, the rest is noise.
    noise = (L / g) * (run["noise"].sum(axis=0) - n * b / 4)
    assert (np.abs(counts - run["points"].sum(axis=0) - noise) < n * L / g).all()


def test_message_by_hand() -> None:
    assert vs.message(3, 2, 2, 4).tolist() == [1] * 5 + [0] * 3
    # The largest value with all its noise fills 2g + b bits; g + b bits would be too few.
    assert vs.message(4, 4, 2, 4).tolist() == [1] * 8
    assert vs.message(0, 0, 2, 4).tolist() == [0] * 8
    # 300 ones of type uint8 are counted, not wrapped around.
    assert vs.analyze_scalar(np.ones(300, dtype=np.uint8), 1, 150, 0, 1.0) == 1.0


def test_shuffle_by_hand() -> None:
    assert vs.shuffle(np.array([[5, 6], [7, 8]]), [2, 0, 3, 1]).tolist() == [7, 5, 8, 6]


def test_sum_by_hand() -> None:
    """g = 4, L = 1: 0.3 is 5.2 steps, -0.65 is 1.4; the noise of 2 x 8 bits has mean 4."""
    points, uniforms = np.array([[0.3], [-0.65]]), np.array([[0.19], [0.41]])
    noise = np.array([[3], [4]])
    arguments = {"points": points, "g": 4, "b": 8, "L": 1.0, "uniforms": uniforms, "noise": noise}
    # hat x = 6 and 1, so (6 + 1 + 7 - 4) / 4 - 2.
    assert vs.vector_sum(**arguments).tolist() == [0.5]
    assert vs.vector_sum_counts(**arguments).tolist() == [0.5]


def test_clamp() -> None:
    x = np.array([-3.0, -1.0 - 1e-9, 1.0 + 1e-9, 3.0, 0.1])
    low, high = np.zeros(5), np.full(5, 1 - 2**-53)
    assert vs.fixed_point(x, 4, 1.0, low).tolist() == [0, 0, 8, 8, 5]
    assert vs.fixed_point(x, 4, 1.0, high).tolist() == [0, 0, 8, 8, 4]
    assert vs.fixed_point(x, 4, 1.0, low, clamp=False).tolist() == [-8, 0, 9, 16, 5]
    assert vs.fixed_point(x, 4, 1.0, high, clamp=False).tolist() == [-8, -1, 8, 16, 4]
    # Outside [-L, L] only the unclamped sum is unbiased.
    run = {"g": 4, "b": 0, "L": 1.0, "uniforms": low[:, None], "noise": np.zeros((5, 1), int)}
    assert vs.vector_sum_counts(x[:, None], clamp=False, **run) == [(-8 + 0 + 9 + 16 + 5) / 4 - 5]
    assert vs.vector_sum_counts(x[:, None], **run) == [(0 + 0 + 8 + 8 + 5) / 4 - 5]


@pytest.mark.parametrize("x", [-1.0, -0.28125, 0.0, 0.59375, 1.0])
def test_exact_mean_and_variance_of_one_user(x: float) -> None:
    """All b + 1 noises, weighted, by 64 uniforms: mean x, variance 3b/16 + f(1 - f) steps^2."""
    g, b, L = 5, 6, 1.0
    first = second = 0.0
    for u in (np.arange(64) + 0.5) / 64:
        for ones in range(b + 1):
            weight = math.comb(b, ones) * 3 ** (b - ones) / 4**b / 64
            noise = np.array([[ones]])
            (value,) = vs.vector_sum(np.array([[x]]), g, b, L, np.array([[u]]), noise)
            first += weight * value
            second += weight * value**2
    f = (x + L) * g % 1
    assert first == pytest.approx(x, abs=1e-14)
    assert second - first**2 == pytest.approx((3 * b / 16 + f * (1 - f)) * (L / g) ** 2, rel=1e-12)


def chi_square(ones: np.ndarray, trials: int, p: float) -> tuple[float, int]:
    """Pearson's statistic of counts against Bin(trials, p), cells of at least 20, and its df."""
    expected = len(ones) * stats.binom.pmf(np.arange(trials + 1), trials, p)
    observed = np.bincount(ones, minlength=trials + 1)
    edges = [0]
    for cell in range(1, trials + 1):
        if expected[edges[-1] : cell].sum() >= 20 and expected[cell:].sum() >= 20:
            edges.append(cell)
    groups = np.add.reduceat(observed, edges), np.add.reduceat(expected, edges)
    return float(np.sum((groups[0] - groups[1]) ** 2 / groups[1])), len(edges) - 1


def test_total_noise_is_binomial() -> None:
    """n users' Bin(b, 1/4), read back from the estimate, is Bin(n b, 1/4); false alarms 1e-6."""
    n, g, b, runs = 3, 4, 5, 4000
    noise = keyed(5).binomial(b, 0.25, (n, runs))
    # x = 0 is exactly g steps: the estimate is noise alone. One coordinate per run.
    estimate = vs.vector_sum_counts(np.zeros((n, runs)), g, b, 1.0, np.zeros((n, runs)), noise)
    ones = estimate * g + n * b / 4
    assert np.array_equal(ones, np.round(ones))
    statistic, df = chi_square(ones.astype(int), n * b, 1 / 4)
    assert statistic < stats.chi2.isf(1e-6, df)
    # The same counts are not taken for those of another p, nor of one user's bit more.
    for trials, p in [(n * b, 0.28), (n * b, 0.22), (n * b + 1, 0.25)]:
        statistic, df = chi_square(ones.astype(int), trials, p)
        assert statistic > stats.chi2.isf(1e-6, df)


def test_mirrored_triangle() -> None:
    assert np.array_equal(
        vs.symmetric(np.arange(1.0, 7.0)), [[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]]
    )
    for d in range(1, 6):
        square = keyed(6, d).standard_normal((d, d))
        triangle = vs.lower_triangle(square + square.T)
        assert triangle.shape == (d * (d + 1) // 2,)
        assert np.array_equal(vs.symmetric(triangle), square + square.T)
        for i in range(d):
            for j in range(i + 1):
                assert triangle[i * (i + 1) // 2 + j] == (square + square.T)[i, j]


def test_parameters() -> None:
    assert [vs.g_of(n, 1) for n in (1, 4, 5, 6, 9, 10, 100, 101)] == [4, 4, 5, 5, 6, 7, 20, 21]
    assert vs.g_of(3, 10) == 10
    # An integer square root: no rounding turns ceil(2 sqrt(n)) = 2r into 2r + 1.
    assert vs.g_of((3 * 10**9) ** 2, 1) == 6 * 10**9
    # n = g^2/4, so g^2/n = 4 in both; delta makes the logarithm 2, up to its last digit.
    assert vs.b_theorem(20, 100, 1, 2.0, 8 * math.exp(-2)) in (960_000, 960_001)
    assert vs.b_published(20, 100, 1, 2.0, math.exp(-2), 3.0) in (12, 13)
    # d = 5 and epsilon = 0.7: 4 (d^2 + 1) / delta = 104e3, d^2 / delta = 25e3.
    exact = 24e4 * 4 * math.log(104e3) ** 2 / 0.49
    assert 0 <= vs.b_theorem(20, 100, 5, 0.7, 1e-3) - exact < 1
    exact = 2.5 * 4 * math.log(25e3) ** 2 / 0.49
    assert 0 <= vs.b_published(20, 100, 5, 0.7, 1e-3, 2.5) - exact < 1


# Below: the replay of the two shuffle protocols.


def problem(silos: int, horizon: int, d: int, batch: int, **changes: Any) -> dict[str, Any]:
    """Arguments of a replay of arbitrary actions, with randomness for every protocol."""
    entries = d + d * (d + 1) // 2

    def contexts(t: int, i: int) -> np.ndarray:
        rows = keyed(10, t, i).standard_normal((3, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def encoding(level: int) -> tuple[int, int]:
        return vs.g_of(silos * batch * 2**level, d), 6 + level

    def silo_noise(i: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        rng = keyed(13, i, k)
        square = rng.standard_normal((d, d))
        return rng.standard_normal(d), square + square.T

    rng = keyed(14)
    arguments: dict[str, Any] = {
        "contexts": contexts,
        "means": lambda t, i: contexts(t, i)[:, 0],
        "actions": rng.integers(3, size=(silos, horizon)),
        "rewards": rng.uniform(-1, 1, size=(silos, horizon)),
        "batch_size": batch,
        "protocol": "shuffle-vector",
        "lazy": False,
        "regularizer": lambda k: 80.0,
        "radius": lambda t, k: 0.5 + 0.01 * t + 0.1 * k,
        "noise": silo_noise,
        "clip": (1.0, -1.0, 1.0),
        "encoding": encoding,
        "uniforms": lambda i, t, k: keyed(11, i, t, k).random(entries),
        "centred_noise": lambda i, k: np.zeros(entries),
    }
    return arguments | changes


@pytest.mark.parametrize("lazy", [False, True])
def test_tiny_problem_by_hand(lazy: bool) -> None:
    """M = 2, T = 6, B = 2, d = 2: three nodes through bits, three prefixes, every score."""
    silos, d = 2, 2
    encodings = {1: (5, 6), 2: (7, 9), 3: (5, 6)}
    rounds_of = {1: [1, 2], 2: [1, 2, 3, 4], 3: [5, 6]}
    prefix_of = {1: [1], 2: [2], 3: [2, 3]}
    synchronisations_before = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
    noise = {
        (i, k): keyed(20, i, k).binomial(encodings[k][1], 0.25, (len(rounds_of[k]), 5))
        for i in range(silos)
        for k in (1, 2, 3)
    }
    arguments = problem(
        silos,
        6,
        d,
        2,
        lazy=lazy,
        encoding=lambda level: [(5, 6), (7, 9)][level],
        centred_noise=lambda i, k: (
            noise[i, k].sum(axis=0) - len(rounds_of[k]) * encodings[k][1] / 4
        ),
    )
    result = replay(**arguments)

    def xy(t: int, i: int) -> tuple[np.ndarray, float]:
        row = arguments["contexts"](t, i)[arguments["actions"][i, t - 1]]
        return row, arguments["rewards"][i, t - 1]

    nodes = {}
    for k, rounds in rounds_of.items():
        points, uniforms, ones = [], [], []
        for i in range(silos):
            for r, t in enumerate(rounds):
                (x0, x1), y = xy(t, i)
                points.append([x0 * y, x1 * y, x0 * x0, x1 * x0, x1 * x1])
                uniforms.append(arguments["uniforms"](i, t, k))
                ones.append(noise[i, k][r])
        g, b = encodings[k]
        nodes[k] = vs.vector_sum(np.array(points), g, b, 1.0, np.array(uniforms), np.array(ones))
    totals = {0: np.zeros(5)} | {
        k: np.sum([nodes[m] for m in prefix_of[k]], axis=0) for k in (1, 2, 3)
    }
    assert len(result.totals) == 3
    for k, (W, U) in enumerate(result.totals, start=1):
        u0, u1, w00, w10, w11 = totals[k]
        assert np.allclose(U, [u0, u1], rtol=1e-13, atol=1e-13)
        assert np.allclose(W, [[w00, w10], [w10, w11]], rtol=1e-13, atol=1e-13)
        assert np.array_equal(W, W.T)

    # The scores, by the recorded order of play: own batch exact, everything else encoded.
    worst = 0.0
    for t, k in synchronisations_before.items():
        for i in range(silos):
            u0, u1, w00, w10, w11 = totals[k]
            V = np.array([[80 + w00, w10], [w10, 80 + w11]])
            bias = np.array([u0, u1])
            for s in range(2 * k + 1, t) if not lazy else []:
                x, y = xy(s, i)
                V, bias = V + np.outer(x, x), bias + x * y
            phi = arguments["contexts"](t, i)
            inverse = np.linalg.inv(V)
            mean = phi @ inverse @ bias
            bonus = (0.5 + 0.01 * t + 0.1 * k) * np.sqrt([x @ inverse @ x for x in phi])
            a = arguments["actions"][i, t - 1]
            shortfall = (mean + bonus).max() - (mean + bonus)[a]
            worst = max(worst, shortfall / np.max(np.abs(mean) + bonus))
    assert worst > 1e-4
    assert result.worst_gap == pytest.approx(worst, rel=1e-10)
    ((W, U), _) = result.local
    assert np.array_equal(W, np.zeros((2, 2)))
    assert np.array_equal(U, np.zeros(2))
