"""The oracle of the shuffle protocols against itself: bits and counts, exact moments, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import vector_sum as vs
from oracle.zhou_chowdhury_2024 import node_interval, replay, tree_nodes
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


@pytest.mark.parametrize(("n", "dimension", "g", "b", "L"), SIZES)
def test_number_of_bits_is_public(n: int, dimension: int, g: int, b: int, L: float) -> None:
    run = draws(n, dimension, b, L)
    hat_x = vs.fixed_point(run["points"], g, L, run["uniforms"])
    for j in range(dimension):
        sent = [vs.message(int(hat_x[u, j]), int(run["noise"][u, j]), g, b) for u in range(n)]
        bits = vs.shuffle(np.array(sent), keyed(3, n, j).permutation(n * (2 * g + b)))
        assert bits.dtype == np.uint8
        assert bits.shape == (n * (2 * g + b),)
        assert set(bits.tolist()) <= {0, 1}
        assert bits.sum() == hat_x[:, j].sum() + run["noise"][:, j].sum()
        with pytest.raises(ValueError, match="bits"):
            vs.analyze_scalar(bits[1:], n, g, b, L)


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


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize(("g", "L"), [(4, 1.0), (5, 1.0), (7, 0.5), (1, 2.0)])
def test_rounding_is_unbiased(g: int, L: float, clamp: bool) -> None:
    """64 midpoints as uniforms give the exact mean where 64 w g / L is an integer."""
    x = L * np.arange(-64, 65) / 64
    grid = (np.arange(64) + 0.5) / 64
    values = np.array([vs.fixed_point(x, g, L, np.full(x.shape, u), clamp) for u in grid])
    assert values.min() == 0
    assert values.max() == 2 * g
    assert np.array_equal(values.mean(axis=0), (x + L) * g / L)
    # Never more than the two neighbours, so the variance is the least possible.
    steps = (x + L) * g / L
    assert (values >= np.floor(steps)).all()
    assert (values <= np.ceil(steps)).all()
    # Any other point: the mean is off by at most half a grid cell.
    y = keyed(4).uniform(-L, L, 50)
    mean = np.mean([vs.fixed_point(y, g, L, np.full(y.shape, u), clamp) for u in grid], axis=0)
    assert np.abs(mean - (y + L) * g / L).max() <= 0.5 / 64 + 1e-12


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


ONE = {"points": [[0.0]], "g": 4, "b": 2, "L": 1.0, "uniforms": [[0.5]], "noise": [[1]]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vs.message(9, 0, 4, 2), "hat_x"),
        (lambda: vs.message(-1, 0, 4, 2), "hat_x"),
        (lambda: vs.message(8, 3, 4, 2), "noise_ones"),
        (lambda: vs.shuffle(np.zeros(3), [0, 0, 1]), "permutation"),
        (lambda: vs.shuffle(np.zeros(3), [0, 1]), "permutation"),
        (lambda: vs.fixed_point(np.zeros(2), 4, 1.0, np.zeros(1)), "shapes"),
        (lambda: vs.fixed_point(np.zeros(1), 4, 1.0, np.ones(1)), "uniform"),
        (lambda: vs.fixed_point(np.array([np.nan]), 4, 1.0, np.zeros(1)), "finite"),
        (lambda: vs.vector_sum(**ONE | {"noise": [[3]]}), "integers"),
        (lambda: vs.vector_sum_counts(**ONE | {"noise": [[-0.5]]}), "integers"),
        (lambda: vs.vector_sum_counts(**ONE | {"noise": [[1], [1]]}), "shapes"),
        (lambda: vs.symmetric(np.zeros(4)), "triangle"),
        (lambda: vs.g_of(0, 3), "n must be"),
    ],
)
def test_impossible_values_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


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


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("silos", "horizon", "d", "batch"), [(2, 17, 3, 1), (3, 15, 2, 2)])
def test_without_noise_only_rounding_is_left(
    lazy: bool, silos: int, horizon: int, d: int, batch: int
) -> None:
    vector = problem(silos, horizon, d, batch, lazy=lazy, encoding=lambda level: (5 + level, 0))
    encoded = replay(**vector)
    plain = replay(**vector | {"protocol": "none"})
    assert len(encoded.totals) == len(plain.totals) == horizon // batch
    for k, (rounded, exact) in enumerate(zip(encoded.totals, plain.totals, strict=True), start=1):
        bound = 0.0
        for m in tree_nodes(k):
            first, last = node_interval(m)
            width = last - first + 1
            bound += silos * batch * width / (5 + width.bit_length() - 1)
        for part, part_exact in zip(rounded, exact, strict=True):
            assert 0 < np.abs(part - part_exact).max() < bound
    for (W, U), (W_exact, U_exact) in zip(encoded.local, plain.local, strict=True):
        assert np.array_equal(W, W_exact)
        assert np.array_equal(U, U_exact)
    # A fine grid leaves nothing of the difference, so no point is missed or met twice.
    fine = replay(**vector | {"encoding": lambda level: (10**12, 0)})
    for part, part_exact in zip(fine.totals, plain.totals, strict=True):
        assert np.allclose(part[0], part_exact[0], rtol=0, atol=1e-9)
        assert np.allclose(part[1], part_exact[1], rtol=0, atol=1e-9)
    assert fine.worst_gap == pytest.approx(plain.worst_gap, abs=1e-9)


def test_without_clip_nothing_is_clamped() -> None:
    large = problem(2, 8, 2, 2, encoding=lambda level: (10**9, 0))
    large["rewards"] = 5 * large["rewards"]
    plain = replay(**large | {"protocol": "none", "clip": None})
    free = replay(**large | {"clip": None})
    assert np.allclose(free.totals[-1][1], plain.totals[-1][1], rtol=0, atol=1e-6)
    # A clip wider than [-1, 1] leaves the encoding to clamp, entry by entry.
    clamped = replay(**large | {"clip": (1.0, -5.0, 5.0)})
    expected = np.zeros(2)
    for i in range(2):
        for t in range(1, 9):
            x = large["contexts"](t, i)[large["actions"][i, t - 1]]
            expected += np.clip(x * large["rewards"][i, t - 1], -1, 1)
    assert np.allclose(clamped.totals[-1][1], expected, rtol=0, atol=1e-6)
    assert np.abs(expected - plain.totals[-1][1]).max() > 0.1


def test_clip_comes_before_the_encoding() -> None:
    """x is cut to norm 1/2 and y to 1/4: every x x' has trace 1/4, which 8 steps hold exactly."""
    arguments = problem(
        1,
        4,
        2,
        2,
        contexts=lambda t, i: np.array([[2.0, 0.0]]),
        actions=np.zeros((1, 4), dtype=int),
        rewards=np.ones((1, 4)),
        means=lambda t, i: np.zeros(1),
        clip=(0.5, -0.25, 0.25),
        encoding=lambda level: (8, 0),
    )
    for k, (W, U) in enumerate(replay(**arguments).totals, start=1):
        assert np.array_equal(W, [[k / 2, 0.0], [0.0, 0.0]])
        assert np.array_equal(U, [k / 4, 0.0])


def test_each_rounding_and_noise_is_asked_for_once() -> None:
    """A point is rounded anew in every node above it, with uniforms of its own."""
    rounded: list[tuple[int, int, int]] = []
    noised: list[tuple[int, int]] = []
    arguments = problem(2, 13, 2, 3)
    uniforms, centred_noise = arguments["uniforms"], arguments["centred_noise"]

    def asked_uniforms(i: int, t: int, k: int) -> np.ndarray:
        rounded.append((i, t, k))
        return uniforms(i, t, k)

    def asked_noise(i: int, k: int) -> np.ndarray:
        noised.append((i, k))
        return centred_noise(i, k)

    changes = {"encoding": lambda level: (4, 0)}
    replay(**arguments | changes | {"uniforms": asked_uniforms, "centred_noise": asked_noise})
    batches = {1: [1], 2: [1, 2], 3: [3], 4: [1, 2, 3, 4]}
    assert sorted(rounded) == sorted(
        (i, 3 * (batch - 1) + r, k)
        for k in batches
        for batch in batches[k]
        for i in range(2)
        for r in (1, 2, 3)
    )
    assert noised == [(i, k) for k in (1, 2, 3, 4) for i in range(2)]


@pytest.mark.parametrize("lazy", [False, True])
def test_any_order_of_the_silos_gives_silo_ldp(lazy: bool) -> None:
    arguments = problem(5, 21, 3, 2, lazy=lazy, protocol="silo-ldp")
    at_silos = replay(**arguments)
    arguments["protocol"] = "shuffle-amplified"
    straight = replay(**arguments)
    for (W, U), (W_straight, U_straight) in zip(at_silos.totals, straight.totals, strict=True):
        assert np.array_equal(W, W_straight)
        assert np.array_equal(U, U_straight)
    differs = False
    for seed in range(3):
        shuffled = replay(**arguments, order=lambda k, seed=seed: keyed(30, seed, k).permutation(5))
        for (W, U), (W_shuffled, U_shuffled) in zip(at_silos.totals, shuffled.totals, strict=True):
            assert np.allclose(W, W_shuffled, rtol=1e-12, atol=1e-12)
            assert np.allclose(U, U_shuffled, rtol=1e-12, atol=1e-12)
            differs = differs or not np.array_equal(W, W_shuffled)
        assert shuffled.worst_gap == pytest.approx(at_silos.worst_gap, rel=1e-9)
    # The order was used: it shows in the last digits.
    assert differs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": None}, "shuffle-vector needs"),
        ({"uniforms": None}, "shuffle-vector needs"),
        ({"centred_noise": None}, "shuffle-vector needs"),
        ({"encoding": lambda level: (0, 4)}, "encoding"),
        ({"uniforms": lambda i, t, k: np.zeros(4)}, "shapes"),
        ({"uniforms": lambda i, t, k: np.ones(5)}, "uniform"),
        ({"centred_noise": lambda i, k: np.zeros(4)}, "centred noise has shape"),
        # 2 points of 6 bits: mean 3, so -3..9 in whole steps.
        ({"centred_noise": lambda i, k: np.full(5, -4.0)}, "no count"),
        ({"centred_noise": lambda i, k: np.full(5, 10.0)}, "no count"),
        ({"centred_noise": lambda i, k: np.full(5, 0.5)}, "no count"),
        ({"centred_noise": lambda i, k: np.full(5, np.nan)}, "no count"),
        ({"protocol": "shuffle-amplified", "order": lambda k: [0, 0]}, "permutation"),
        ({"protocol": "shuffle-amplified", "order": lambda k: [1]}, "permutation"),
    ],
)
def test_what_would_hide_an_error_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(**problem(2, 2, 2, 2, **changes))
