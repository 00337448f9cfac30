"""Compiled leaf functions against their NumPy twins: same names, same signatures, same answers.

Random streams must agree bit for bit. Linear algebra is compared with tolerances of the condition
of the instance, stated beside each test. The argmax is compared with the exact float64 scores.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import compiled

LEAVES = [
    *("philox", "normals_f32", "normals_f64", "normals_from_bits", "uniform", "uniform_int"),
    *("permutation", "log", "factor", "solve", "log_det", "observe", "accumulate", "rank_one"),
    *("sherman_morrison", "clip_norm", "scores", "select", "node_level", "psum", "prefix", "add"),
    *("add_noise", "node_normals", "refresh", "radius_at", "random_u32", "scale", "touched_levels"),
    *("round_point", "round_points", "binomials", "binomials_from_words"),
    *("encode_bits", "shuffle_bits", "choose_regularizer", "determinant_radius"),
    *("honaker", "honaker_number", "toeplitz", "weighted_sum"),
    *("inverse_norm", "row_width", "slack"),
    *("ideal_normals", "ideal_laplace", "round_noisy", "sum_normals"),
]
WORD = st.integers(0, 2**32 - 1)
KEY = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 6), WORD, WORD, WORD)
# Shapes where vectors of eight and sixteen lanes begin, end and overhang, and the largest papers'.
DIMENSION = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 57, 64, 65, 135, 140]))
ACTIONS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 120, 200]))
SEED = st.integers(0, 2**32 - 1)


def repeat(examples=100):
    """The same examples in every run, however slow the machine is."""
    return settings(max_examples=examples, deadline=None, derandomize=True)


def packed(v):
    return np.ascontiguousarray(v[np.tril_indices(len(v))])


def spread(draw, d, rows=None):
    """A well-conditioned V: I plus some rank-one terms."""
    x = draw.normal(size=(draw.integers(0, 2 * d + 1) if rows is None else rows, d)) / np.sqrt(d)
    return np.eye(d) * draw.uniform(0.1, 3.0) + x.T @ x


def instance(seed, d, k):
    """(actions (K, d) of float64, W, theta) from one seed."""
    draw = np.random.default_rng(seed)
    w = compiled.factor(packed(spread(draw, d)), d)
    return draw, draw.normal(size=(k, d)) / np.sqrt(d), w, draw.normal(size=d) / np.sqrt(d)


def read_only(*arrays):
    for array in arrays:
        array.flags.writeable = False


def same_bits(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def test_every_leaf_has_a_twin_of_the_same_signature():
    for name in LEAVES:
        ours = list(inspect.signature(getattr(twins, name)).parameters)
        theirs = list(inspect.signature(getattr(compiled, name)).parameters)
        assert ours == theirs, name


# ---- random streams: equal bits -----------------------------------------------------------------


@repeat()
@given(KEY, WORD)
def test_philox(key, block):
    assert same_bits(compiled.philox(*key, block), twins.philox(*key, block))


@repeat(60)
@given(KEY, st.integers(0, 300))
def test_normals(key, n):
    assert same_bits(compiled.normals_f32(*key, n), twins.normals_f32(*key, n))
    assert same_bits(compiled.normals_f64(*key, n), twins.normals_f64(*key, n))


BITS = st.one_of(
    st.integers(0, 2**53 - 1),
    # Around the quadrants' ends, the cut of the logarithm, and both ends.
    st.builds(
        lambda eighth, step: (eighth * 2**50 + step) % 2**53, st.integers(0, 8), st.integers(-2, 2)
    ),
    st.integers(-3, 3).map(lambda step: int(2**53 * np.sqrt(0.5)) + step),
)


@repeat(200)
@given(st.lists(st.tuples(BITS, BITS), max_size=40))
def test_normals_from_bits(pairs):
    a, b = np.array(pairs, np.uint64).reshape(-1, 2).T.copy()
    read_only(a, b)
    assert same_bits(compiled.normals_from_bits(a, b), twins.normals_from_bits(a, b))


@repeat()
@given(KEY, st.integers(1, 2**31 - 1))
def test_uniform_and_uniform_int(key, n):
    assert compiled.uniform(*key) == twins.uniform(*key)
    assert compiled.uniform_int(*key, n) == twins.uniform_int(*key, n) < n


def test_uniform_int_rejects_alike():
    """n just above 2^30: a quarter of all words is rejected, so blocks run on."""
    n = 2**30 + 1
    drawn = [compiled.uniform_int(7, 1, 0, 0, i, n) for i in range(300)]
    assert drawn == [twins.uniform_int(7, 1, 0, 0, i, n) for i in range(300)]
    assert min(drawn) >= 0 and max(drawn) < n


@repeat(30)
@given(KEY, st.integers(0, 70))
def test_permutation(key, n):
    assert same_bits(compiled.permutation(*key, n), twins.permutation(*key, n))


@repeat(300)
@given(st.floats(5e-308, 1e308))
def test_log(x):
    assert compiled.log(x) == twins.log(x)
    assert compiled.log(x) == pytest.approx(float(np.log(x)), rel=4e-16, abs=1e-16)


@repeat()
@given(SEED, st.integers(0, 50), st.integers(0, 1000), st.integers(1, 2**31), st.integers(1, 12))
def test_node_normals(seed, replicate, silo, node, d):
    one = compiled.node_normals(seed, replicate, silo, node, d)
    assert same_bits(one, twins.node_normals(seed, replicate, silo, node, d))
    assert len(one) == d + d * (d + 1) // 2
    summed = compiled.sum_normals(seed, replicate, silo, node, d)
    assert same_bits(summed, twins.sum_normals(seed, replicate, silo, node, d))
    assert not np.isin(summed, one).any()


# ---- linear algebra: relative 1e-10 at condition numbers up to 1e3 ------------------------------

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@repeat(60)
@given(SEED, DIMENSION)
def test_factor_solve_and_determinant(seed, d):
    draw = np.random.default_rng(seed)
    v, u = spread(draw, d), draw.normal(size=d)
    p = packed(v)
    read_only(p, u)
    one, other = compiled.factor(p, d), twins.factor(p, d)
    np.testing.assert_allclose(one, other, **CLOSE)
    assert not np.triu(one, 1).any()
    np.testing.assert_allclose(one.T @ one @ v, np.eye(d), atol=1e-10)
    read_only(one)
    np.testing.assert_allclose(compiled.solve(one, u), np.linalg.solve(v, u), **CLOSE)
    np.testing.assert_allclose(twins.solve(one, u), compiled.solve(one, u), **CLOSE)
    determinant = np.linalg.slogdet(v)[1]
    assert compiled.log_det(one) == pytest.approx(determinant, rel=1e-11, abs=1e-10)
    assert twins.log_det(one) == pytest.approx(determinant, rel=1e-11, abs=1e-10)


@pytest.mark.parametrize("run", [compiled, twins])
@pytest.mark.parametrize(
    "v",
    [
        [[0.0]],
        [[-1.0]],
        [[np.nan]],
        [[np.inf]],
        [[1.0, 2.0], [2.0, 1.0]],
        [[1.0, np.nan], [np.nan, 1.0]],
        [[1.0, np.inf], [np.inf, 1.0]],
        [[1.0, 1.0], [1.0, 1.0]],
        np.diag([1.0] * 9 + [-1e-3]).tolist(),
    ],
)
def test_what_is_not_positive_definite_has_no_factor(run, v):
    assert run.factor(packed(np.array(v)), len(v)) is None


@repeat(60)
@given(SEED, DIMENSION, st.booleans())
def test_observe(seed, d, with_theta):
    draw = np.random.default_rng(seed)
    v, x, y = spread(draw, d), draw.normal(size=d) / np.sqrt(d), draw.normal()
    u = draw.normal(size=d)
    read_only(x)
    start = compiled.factor(packed(v), d)
    ratio = 1.0 + x @ np.linalg.solve(v, x)
    for run in (compiled, twins):
        w = start.copy()
        theta = np.linalg.solve(v, u) if with_theta else None
        assert run.observe(w, theta, x, y) == pytest.approx(ratio, rel=1e-11)
        np.testing.assert_allclose(w, compiled.factor(packed(v + np.outer(x, x)), d), **CLOSE)
        if with_theta:
            np.testing.assert_allclose(
                theta, np.linalg.solve(v + np.outer(x, x), u + x * y), **CLOSE
            )


@repeat(60)
@given(SEED, DIMENSION)
def test_accumulate_and_rank_one(seed, d):
    """Single products and sums, so equal bits."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=d), draw.normal()
    read_only(x)
    start = draw.normal(size=d + d * (d + 1) // 2)
    one, other = start.copy(), start.copy()
    compiled.accumulate(one, x, y)
    twins.accumulate(other, x, y)
    assert same_bits(one, other)
    np.testing.assert_allclose(one[d:] - start[d:], packed(np.outer(x, x)), atol=1e-14)
    gram, bias = draw.normal(size=(d, d)), draw.normal(size=d)
    grams, biases = [gram.copy(), gram.copy()], [bias.copy(), bias.copy()]
    compiled.rank_one(grams[0], biases[0], x, y)
    twins.rank_one(grams[1], biases[1], x, y)
    assert same_bits(*grams) and same_bits(*biases)
    np.testing.assert_allclose(grams[0], gram + np.outer(x, x), rtol=1e-15)


@repeat(60)
@given(SEED, DIMENSION)
def test_sherman_morrison(seed, d):
    draw = np.random.default_rng(seed)
    v, x = spread(draw, d), draw.normal(size=d) / np.sqrt(d)
    read_only(x)
    w = compiled.factor(packed(v), d)
    start = w.T @ w
    start = np.tril(start) + np.tril(start, -1).T
    one, other = start.copy(), start.copy()
    compiled.sherman_morrison(one, x)
    twins.sherman_morrison(other, x)
    np.testing.assert_allclose(one, other, **CLOSE)
    np.testing.assert_allclose(one @ (v + np.outer(x, x)), np.eye(d), atol=1e-10)
    assert np.array_equal(one, one.T)


@repeat(100)
@given(SEED, DIMENSION, st.floats(-300, 307), st.floats(0.1, 10.0))
def test_clip_norm(seed, d, exponent, bound):
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, size=d) * 10.0**exponent
    one, other = x.copy(), x.copy()
    above = compiled.clip_norm(one, bound)
    assert twins.clip_norm(other, bound) == above
    np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-300)
    # In units of the largest entry: the plain sum of squares would overflow or vanish.
    largest = np.abs(x).max()
    norm = largest * np.linalg.norm(x / largest)
    if norm > bound * (1.0 + 1e-6):
        assert above
        assert np.linalg.norm(one) == pytest.approx(bound, rel=1e-14)
        np.testing.assert_allclose(one / bound, x / largest / (norm / largest), rtol=1e-13)
    elif norm < bound * (1.0 - 1e-12):
        assert not above and same_bits(one, x)


def test_a_norm_above_the_bound_by_rounding_is_scaled_and_not_counted():
    x = np.full(4, 0.5 * (1.0 + 1e-7))
    assert not compiled.clip_norm(x, 1.0)
    assert np.linalg.norm(x) <= 1.0 + 1e-15


# ---- scores and the argmax ----------------------------------------------------------------------


def layouts(actions):
    """The same actions in other places, strides and precisions of memory, all read-only."""
    k, d = actions.shape
    single = actions.astype(np.float32)
    wide = np.zeros((2 * k, 3 * d))
    wide[::2, ::3] = actions
    views = [
        actions.copy(),
        np.asfortranarray(actions),
        wide[::2, ::3],
        np.ascontiguousarray(actions[::-1])[::-1],
        np.ascontiguousarray(actions[:, ::-1])[:, ::-1],
        single,
        np.asfortranarray(single),
    ]
    read_only(*views)
    return views


@repeat(60)
@given(SEED, DIMENSION, ACTIONS, st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.4]))
def test_scores(seed, d, k, beta, gamma):
    """Relative 1e-12 of the terms of a score, whatever the layout; bits do not depend on it."""
    _, actions, w, theta = instance(seed, d, k)
    read_only(w, theta)
    exact = compiled.scores(actions, w, theta, beta, gamma)
    for view in layouts(actions):
        one = compiled.scores(view, w, theta, beta, gamma)
        np.testing.assert_allclose(
            one, twins.scores(view, w, theta, beta, gamma), rtol=1e-11, atol=1e-12
        )
        if view.dtype == np.float64:
            assert same_bits(one, exact)
    for a in {0, k // 2, k - 1}:
        assert compiled.scores(actions[a : a + 1], w, theta, beta, gamma)[0] == exact[a]


def check_select(actions, w, theta, beta, gamma=0.0):
    """The choice after screening is that of the exact scores; returns it."""
    scores = compiled.scores(actions, w, theta, beta, gamma)
    chosen, features = compiled.select(actions, w, theta, beta, gamma)
    want = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
    assert chosen == want, (scores[chosen], scores[want])
    assert same_bits(features, actions[chosen].astype(np.float64))
    return chosen


@repeat(100)
@given(SEED, DIMENSION, ACTIONS, st.sampled_from([0.0, 0.1, 3.0]), st.sampled_from([0.0, 0.4]))
def test_select(seed, d, k, beta, gamma):
    """The argmax of the exact scores, and the twins' unless the scores are near a tie."""
    _, actions, w, theta = instance(seed, d, k)
    read_only(w, theta)
    for view in layouts(actions):
        chosen = check_select(view, w, theta, beta, gamma)
        other, features = twins.select(view, w, theta, beta, gamma)
        assert same_bits(features, view[other].astype(np.float64))
        if other != chosen:
            scores = compiled.scores(view, w, theta, beta, gamma)
            assert scores[other] == pytest.approx(scores[chosen], rel=1e-12, abs=1e-13)


def test_select_least_is_the_largest_of_the_lesser_scores():
    """Of exact scores, bit for bit; of equal ones the first."""
    draw = np.random.default_rng(8)
    for case in range(400):
        d, k = int(draw.integers(1, 30)), int(draw.integers(1, 150))
        one, other = (np.tril(draw.normal(size=(d, d))) / np.sqrt(d) for _ in range(2))
        theta, second = draw.normal(size=(2, d))
        actions = draw.normal(size=(k, d)).astype([np.float32, np.float64][case % 2])
        if case % 5 == 0:
            actions = np.repeat(actions, 2, axis=0)
        beta, gamma, width = map(float, draw.choice([0.0, 0.3, 2.0], 3))
        for view in layouts(actions):
            least = np.minimum(
                compiled.scores(view, one, theta, beta, gamma),
                compiled.scores(view, other, second, width, 0.0),
            )
            chosen, x = compiled.select_least(view, one, theta, beta, gamma, other, second, width)
            assert chosen == least.argmax()
            assert same_bits(x, view[chosen].astype(np.float64))


def test_select_over_many_ordinary_instances():
    draw = np.random.default_rng(1)
    for _ in range(3000):
        d, k = int(draw.integers(1, 30)), int(draw.integers(1, 150))
        w = np.tril(draw.normal(size=(d, d))) / np.sqrt(d)
        theta = draw.normal(size=d) * draw.choice([0.0, 1e-3, 1.0])
        actions = draw.normal(size=(k, d))
        if draw.random() < 0.5:
            actions /= np.linalg.norm(actions, axis=1, keepdims=True)
        if draw.random() < 0.5:
            actions = actions.astype(np.float32)
        check_select(actions, w, theta, *map(float, draw.choice([0.0, 0.3, 20.0], 2)))


@pytest.mark.parametrize("d", [1, 2, 10, 57, 135])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_select_when_all_tie(d, dtype):
    """The first batch: V = lambda I, theta = 0, ||x|| = 1, so scores tie to the last bits."""
    draw = np.random.default_rng(d)
    for regularizer in (1.0, 0.3, 17.0):
        w = compiled.factor(packed(regularizer * np.eye(d)), d)
        for k in (1, 2, 16, 17, 100):
            actions = draw.normal(size=(k, d))
            actions = (actions / np.linalg.norm(actions, axis=1, keepdims=True)).astype(dtype)
            for gamma in (0.0, 4.0):
                check_select(actions, w, np.zeros(d), 2.5, gamma)


def test_select_in_near_ties():
    """Actions 1e-9 to 1e-6 apart: float32 cannot tell them apart, the exact scores can."""
    draw = np.random.default_rng(2)
    for _ in range(2000):
        d, k = int(draw.integers(1, 20)), int(draw.integers(2, 60))
        w = np.tril(draw.normal(size=(d, d))) / np.sqrt(d)
        theta = draw.normal(size=d) * draw.choice([0.0, 1.0])
        near = draw.normal(size=d) * (1.0 + draw.normal(size=(k, d)) * 10.0 ** draw.uniform(-9, -6))
        check_select(near, w, theta, *map(float, draw.choice([0.0, 1.0], 2)))


def test_of_equal_best_actions_the_first_is_chosen():
    draw = np.random.default_rng(3)
    for d in (1, 5, 40):
        w = compiled.factor(packed(spread(draw, d)), d)
        theta = draw.normal(size=d)
        for k in (2, 16, 17, 50, 90):
            actions = draw.normal(size=(k, d))
            best = int(np.argmax(compiled.scores(actions, w, theta, 1.0, 0.0)))
            copies = draw.choice(k, size=min(k, 5), replace=False)
            actions[copies] = actions[best]
            first = min([best, *copies])
            for dtype in (np.float32, np.float64):
                view = actions.astype(dtype)
                same = np.flatnonzero((view == view[first]).all(axis=1))
                chosen = check_select(view, w, theta, 1.0)
                assert chosen not in same[1:]
            for run in (compiled, twins):
                assert run.select(actions, w, theta, 1.0, 0.0)[0] == first
    zeros = np.zeros((70, 3))
    assert check_select(zeros, np.eye(3), np.ones(3), 1.0) == 0


@pytest.mark.parametrize("near", [False, True])
def test_select_at_all_scales(near):
    """Features, W, theta and radius from 1e-45 to 1e45, where float32 overflows and underflows."""
    draw = np.random.default_rng(4)
    for _ in range(8000):
        d, k = int(draw.integers(1, 12)), int(draw.integers(1, 40))
        scale = 10.0 ** draw.uniform(-45, 45)
        # Half of the time the scales cancel, so that all terms of a score matter.
        cancel = draw.random() < 0.5
        rest = (
            10.0 ** draw.uniform(-4, 4, 2) / scale if cancel else 10.0 ** draw.uniform(-45, 45, 2)
        )
        beta = float(draw.choice([0.0, 1.0, 10.0 ** draw.uniform(-45, 45)]))
        gamma = float(draw.choice([0.0, 1.0, 10.0 ** draw.uniform(-45, 45)]))
        w = np.tril(draw.normal(size=(d, d))) * rest[0] / (beta if cancel and beta else 1.0)
        theta = draw.normal(size=d) * rest[1] * draw.choice([0.0, 1.0, 1.0])
        actions = draw.normal(size=(k, d))
        if near:
            actions = actions[:1] * (1.0 + draw.normal(size=(k, d)) * 10.0 ** draw.uniform(-9, -6))
        check_select(actions * scale, w, theta, beta, gamma)


@pytest.mark.parametrize("tiny", ["factor", "theta", "radius", "second radius", "actions"])
def test_select_where_an_operand_is_subnormal_as_float32(tiny):
    """Different directions of nearly the same score, so that no error is common to all."""
    draw = np.random.default_rng(6)
    for _ in range(2000):
        d = int(draw.integers(1, 8))
        scale = 10.0 ** -draw.uniform(36, 44)
        w = np.abs(np.tril(draw.normal(size=(d, d)))) * (scale if tiny == "factor" else 1.0)
        theta = np.zeros(d) if tiny not in ("theta", "actions") else draw.normal(size=d)
        beta = {"theta": 0.0, "radius": scale, "second radius": 0.0}.get(tiny, 1.0)
        gamma = {"theta": 0.0, "radius": 0.0, "second radius": scale}.get(tiny, 1.0)
        theta *= scale if tiny == "theta" else 1.0
        x = draw.normal(size=(30, d)) * (scale if tiny == "actions" else 1e17)
        scores = compiled.scores(x, w, theta, beta, gamma)
        x, scores = x[scores > 0.0], scores[scores > 0.0]
        near = 1.0 + draw.normal(size=len(x)) * 10.0 ** draw.uniform(-8, -5)
        if len(x):
            check_select(x * (near * scores.mean() / scores)[:, None], w, theta, beta, gamma)


def test_select_between_a_tiny_second_radius_and_a_huge_width():
    """gamma vanishes as a float, gamma ||V^-1 x|| does not."""
    draw = np.random.default_rng(8)
    for _ in range(2000):
        d = int(draw.integers(1, 8))
        w = np.tril(draw.normal(size=(d, d))) * 1e12
        theta = draw.normal(size=d) * 1e-23
        check_select(draw.normal(size=(30, d)) * 1e3, w, theta, 0.0, 1e-46)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_select_survives_what_is_not_finite(bad):
    """An index in range, and the best finite score where it is the largest."""
    draw, actions, w, theta = instance(5, 6, 40)
    for rows in ([0], [39], [3, 4, 5], range(40)):
        spoiled = actions.copy()
        spoiled[list(rows), draw.integers(6)] = bad
        with np.errstate(all="ignore"):
            assert check_select(spoiled, w, theta, 1.0) in range(40)
            assert twins.select(spoiled, w, theta, 1.0, 0.0)[0] in range(40)
    with np.errstate(all="ignore"):
        for matrix, vector in ((w * bad, theta), (w, theta * bad)):
            assert check_select(actions, matrix, vector, 1.0) in range(40)


# ---- protocol arithmetic: equal bits ------------------------------------------------------------


@repeat()
@given(SEED, st.integers(1, 200), st.integers(1, 9))
def test_tree_arithmetic(seed, k, s):
    draw = np.random.default_rng(seed)
    assert compiled.node_level(k) == twins.node_level(k)
    levels = k.bit_length()
    one = draw.normal(size=(levels, s))
    other, leaf = one.copy(), draw.normal(size=s)
    read_only(leaf)
    compiled.psum(one, leaf, compiled.node_level(k))
    twins.psum(other, leaf, compiled.node_level(k))
    assert same_bits(one, other)
    read_only(one)
    assert same_bits(compiled.prefix(one, k), twins.prefix(one, k))
    into, again = leaf.copy(), leaf.copy()
    compiled.add(into, one[0])
    twins.add(again, one[0])
    assert same_bits(into, again)


#: 64-bit words, and those near 0, near 2^64 and near the bounds of what 64 bits settle.
WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 64),
    st.integers(0, 64).map(lambda step: 2**64 - 1 - step),
    st.integers(-3, 3).map(lambda step: 2**44 + step),
    st.integers(-3, 3).map(lambda step: 2**64 - 2**44 + step),
    st.integers(-3, 3).map(lambda step: 2**63 + step),
)


@repeat(200)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=40))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_ideal_draws(pairs):
    words = np.array(pairs, np.uint64).T.reshape(-1).copy()
    read_only(words)
    settled = words[: len(pairs)] >= 2**44
    for name, known in (("ideal_normals", np.tile(settled, 2)), ("ideal_laplace", ...)):
        one, again = getattr(compiled, name)(words), getattr(twins, name)(words)
        if known is ...:
            known = words << np.uint64(1) >= 2**44
        assert one[1] == again[1]
        assert same_bits(one[0][known], again[0][known])


@repeat(200)
@given(SEED, st.integers(1, 200), st.integers(-40, 30), st.sampled_from([0.0, 2.0**-40, 1e-5]))
def test_round_noisy(seed, size, power, error):
    draw = np.random.default_rng(seed)
    values, noise = draw.normal(size=(2, size)) * [[2.0**power * 100], [1.0]]
    std = 2.0**power * (1.0 + draw.uniform(size=size))
    grid = np.full(size, 2.0 ** (power - 14))
    # Some exactly between two points of the grid, with no noise.
    values[::3], noise[::3] = (np.rint(values[::3] / grid[::3]) + 0.5) * grid[::3], 0.0
    read_only(values, noise, std, grid)
    one = compiled.round_noisy(values, noise, std, grid, error)
    again = twins.round_noisy(values, noise, std, grid, error)
    assert same_bits(one[0], again[0]) and one[1] == again[1]
    assert set(range(0, size, 3)) <= set(one[1])


@repeat()
@given(SEED, st.integers(1, 30), st.tuples(*[st.floats(0, 10)] * 3))
def test_add_noise(seed, d, std):
    draw = np.random.default_rng(seed)
    statistic, normals = draw.normal(size=(2, d + d * (d + 1) // 2))
    read_only(statistic, normals)
    one = compiled.add_noise(statistic, normals, d, *std)
    assert same_bits(one, twins.add_noise(statistic, normals, d, *std))


@repeat(60)
@given(SEED, DIMENSION, st.floats(0.1, 5.0), st.floats(0.0, 3.0))
def test_refresh(seed, d, regularizer, noise):
    """The same shifts; W and theta to 1e-8, for a shifted V may be ill-conditioned."""
    draw = np.random.default_rng(seed)
    statistic = draw.normal(size=d + d * (d + 1) // 2) * noise
    v = np.zeros((d, d))
    v[np.tril_indices(d)] = statistic[d:]
    v += np.tril(v, -1).T
    read_only(statistic)
    results = []
    for run in (compiled, twins):
        w, theta = np.empty((d, d)), np.empty(d)
        shift = run.refresh(statistic, regularizer, w, theta)
        results.append((shift, w, theta))
    (shift, w, theta), (other_shift, other_w, other_theta) = results
    smallest = np.linalg.eigvalsh(v + regularizer * np.eye(d))[0]
    assert (shift == 0.0) == (smallest > 0.0) or abs(smallest) < 1e-10
    if abs(smallest + shift) < 1e-3:
        return
    assert shift == other_shift
    np.testing.assert_allclose(w, other_w, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(theta, other_theta, rtol=1e-8, atol=1e-8)
    whole = v + (regularizer + shift) * np.eye(d)
    np.testing.assert_allclose(whole @ theta, statistic[:d], atol=1e-8)


@pytest.mark.parametrize("run", [compiled, twins])
def test_refresh_of_a_statistic_that_is_not_finite_is_hopeless(run):
    statistic = np.array([1.0, np.nan])
    assert run.refresh(statistic, 1.0, np.empty((1, 1)), np.empty(1)) == -1.0


@repeat()
@given(
    *[st.floats(0.0, 10.0)] * 4, st.floats(1e-3, 10.0), st.integers(0, 10**9), st.integers(1, 200)
)
def test_radius(multiplier, scale, base, offset, lam, count, d):
    args = multiplier, scale, base, offset, lam, count, d
    assert compiled.radius_at(*args) == twins.radius_at(*args)
    plain = multiplier * (offset + scale * np.sqrt(base + d * np.log1p(count / (d * lam))))
    assert compiled.radius_at(*args) == pytest.approx(float(plain), rel=1e-9, abs=1e-9)


# ---- other releases, and the direct radius ------------------------------------------------------


@repeat()
@given(st.integers(1, 2**31 - 1))
def test_honaker_number(k):
    assert compiled.honaker_number(k) == twins.honaker_number(k) == 2 * k - 1 - (k - 1).bit_count()


def test_honaker_numbers_leave_room_for_the_nodes_of_each_release():
    for run in (compiled, twins):
        number = 1
        for k in range(1, 300):
            assert run.honaker_number(k) == number
            number += run.node_level(k) + 1


@repeat()
@given(SEED, st.integers(1, 40), st.integers(1, 30))
def test_honaker(seed, size, level):
    """Equal bits; the weight by its recursion to 1e-14."""
    draw = np.random.default_rng(seed)
    one, node, sibling = draw.normal(size=(3, size))
    start, other = one.copy(), one.copy()
    read_only(node, sibling)
    compiled.honaker(one, node, sibling, level)
    twins.honaker(other, node, sibling, level)
    assert same_bits(one, other)
    v = 1.0
    for _ in range(level):
        v = 1.0 / (1.0 + 1.0 / (2.0 * v))
    np.testing.assert_allclose(
        one, v * node + (1.0 - v) * (sibling + start), rtol=1e-14, atol=1e-14
    )


@repeat()
@given(SEED, st.integers(1, 60), st.integers(1, 60), st.integers(1, 30))
def test_toeplitz(seed, k, more, size):
    """Equal bits; rows and coefficients beyond release k are not read."""
    draw = np.random.default_rng(seed)
    history, f = draw.normal(size=(k + more, size)), draw.normal(size=k + more)
    history[k:], f[k:] = np.nan, np.nan
    read_only(history, f)
    one = compiled.toeplitz(history, f, k)
    assert same_bits(one, twins.toeplitz(history, f, k))
    np.testing.assert_allclose(one, f[:k][::-1] @ history[:k], rtol=1e-12, atol=1e-12)


@repeat()
@given(
    *[st.floats(0.0, 10.0)] * 4,
    st.floats(1e-3, 10.0),
    st.floats(1.0, 3.0),
    st.floats(-50.0, 1000.0),
    st.integers(1, 200),
)
def test_determinant_radius(multiplier, scale, base, offset, anchor, inflation, log_det, d):
    args = multiplier, scale, base, offset, anchor, inflation, log_det, d
    one = compiled.determinant_radius(*args)
    assert one == twins.determinant_radius(*args)
    grown = max(0.0, log_det + d * np.log(inflation / anchor))
    plain = multiplier * (offset + scale * np.sqrt(inflation * (base + grown)))
    assert one == pytest.approx(float(plain), rel=1e-9, abs=1e-6)


@repeat(150)
@given(SEED, DIMENSION, st.floats(-3.0, 3.0), st.floats(0.0, 1.5))
def test_choose_regularizer(seed, d, exponent, share):
    """The rule itself, by eigenvalues, unless one lies within 1e-10 of the floor."""
    draw = np.random.default_rng(seed)
    full = 10.0**exponent
    floor = full * share
    square = draw.normal(size=(d, d)) * full / np.sqrt(d)
    v = (square + square.T) / 2.0
    # The least eigenvalue anywhere from where no eighth is enough to where 0 is.
    v += (draw.uniform(-0.2, 1.2) * full - np.linalg.eigvalsh(v)[0] - full + floor) * np.eye(d)
    statistic = np.concatenate([draw.normal(size=d), packed(v)])
    read_only(statistic)
    one = compiled.choose_regularizer(statistic, full, floor, d)
    other = twins.choose_regularizer(statistic, full, floor, d)
    if floor == 0.0:
        assert one == other == full
        return
    least = np.array([np.linalg.eigvalsh(v + full * j / 8.0 * np.eye(d))[0] for j in range(8)])
    if np.abs(least - floor).min() < 1e-10 * max(np.abs(v).max() * d, full):
        return
    enough = np.flatnonzero(least > floor)
    want = full * enough[0] / 8.0 if len(enough) else full
    assert one == other == want


@pytest.mark.parametrize("run", [compiled, twins])
@pytest.mark.parametrize(
    ("least", "lam"), [(4.5, 0.0), (4.0, 1.0), (3.5, 1.0), (0.5, 4.0), (-2.5, 7.0), (-3.5, 8.0)]
)
def test_choose_regularizer_by_hand(run, least, lam):
    """Full 8 and floor 4: an eigenvalue must lie above the floor, not at it."""
    statistic = np.concatenate([np.zeros(2), packed(np.diag([least, 9.0]))])
    assert run.choose_regularizer(statistic, 8.0, 4.0, 2) == lam
    assert run.choose_regularizer(statistic, 8.0, 0.0, 2) == 8.0


@pytest.mark.parametrize("run", [compiled, twins])
def test_choose_regularizer_of_what_is_not_finite_is_full(run):
    for bad in (np.nan, np.inf, -np.inf):
        statistic = np.concatenate([np.zeros(2), [bad, 0.0, 9.0]])
        assert run.choose_regularizer(statistic, 8.0, 4.0, 2) == 8.0
