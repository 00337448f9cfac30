"""Tests of the compiled leaf functions against their NumPy twins of the same names and signatures.

Random streams must agree bit for bit. For linear algebra, each test states a tolerance that follows
from the conditioning of its instances. The selected action is compared with the exact float64
scores.
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
# Sizes around multiples of eight and sixteen lanes, and the largest sizes of the papers.
DIMENSION = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 57, 64, 65, 135, 140]))
ACTIONS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 120, 200]))
SEED = st.integers(0, 2**32 - 1)


def fixed_examples(examples=100):
    """Return settings that use the same examples in every run, without a deadline."""
    return settings(max_examples=examples, deadline=None, derandomize=True)


def packed(v):
    """Return the lower triangle of a matrix as a vector."""
    return np.ascontiguousarray(v[np.tril_indices(len(v))])


def well_conditioned_matrix(rng, d, rows=None):
    """Return a well-conditioned V: a multiple of I plus some rank-one terms."""
    x = rng.normal(size=(rng.integers(0, 2 * d + 1) if rows is None else rows, d)) / np.sqrt(d)
    return np.eye(d) * rng.uniform(0.1, 3.0) + x.T @ x


def instance(seed, d, k):
    """Return the generator, actions (K, d) in float64, W and theta for one seed."""
    rng = np.random.default_rng(seed)
    w = compiled.factor(packed(well_conditioned_matrix(rng, d)), d)
    return rng, rng.normal(size=(k, d)) / np.sqrt(d), w, rng.normal(size=d) / np.sqrt(d)


def read_only(*arrays):
    """Make the arrays read-only."""
    for array in arrays:
        array.flags.writeable = False


def same_bits(array, other):
    """Return whether the arrays have the same type, shape and bits."""
    return (
        array.dtype == other.dtype
        and array.shape == other.shape
        and array.tobytes() == other.tobytes()
    )


def test_every_leaf_function_has_a_twin_of_the_same_signature():
    for name in LEAVES:
        twin_parameters = list(inspect.signature(getattr(twins, name)).parameters)
        compiled_parameters = list(inspect.signature(getattr(compiled, name)).parameters)
        assert twin_parameters == compiled_parameters, name


# ---- random streams: equal bits -----------------------------------------------------------------


@fixed_examples()
@given(KEY, WORD)
def test_philox(key, block):
    assert same_bits(compiled.philox(*key, block), twins.philox(*key, block))


@fixed_examples(60)
@given(KEY, st.integers(0, 300))
def test_normals(key, n):
    assert same_bits(compiled.normals_f32(*key, n), twins.normals_f32(*key, n))
    assert same_bits(compiled.normals_f64(*key, n), twins.normals_f64(*key, n))


BITS = st.one_of(
    st.integers(0, 2**53 - 1),
    # Values around the ends of the quadrants, the cut of the logarithm, and both ends.
    st.builds(
        lambda eighth, step: (eighth * 2**50 + step) % 2**53, st.integers(0, 8), st.integers(-2, 2)
    ),
    st.integers(-3, 3).map(lambda step: int(2**53 * np.sqrt(0.5)) + step),
)


@fixed_examples(200)
@given(st.lists(st.tuples(BITS, BITS), max_size=40))
def test_normals_from_bits(pairs):
    a, b = np.array(pairs, np.uint64).reshape(-1, 2).T.copy()
    read_only(a, b)
    assert same_bits(compiled.normals_from_bits(a, b), twins.normals_from_bits(a, b))


@fixed_examples()
@given(KEY, st.integers(1, 2**31 - 1))
def test_uniform_and_uniform_int(key, n):
    assert compiled.uniform(*key) == twins.uniform(*key)
    assert compiled.uniform_int(*key, n) == twins.uniform_int(*key, n) < n


def test_uniform_int_rejects_the_same_words():
    """Use n just above 2^30, where a quarter of all words is rejected and more blocks are drawn."""
    n = 2**30 + 1
    draws = [compiled.uniform_int(7, 1, 0, 0, i, n) for i in range(300)]
    assert draws == [twins.uniform_int(7, 1, 0, 0, i, n) for i in range(300)]
    assert min(draws) >= 0 and max(draws) < n


@fixed_examples(30)
@given(KEY, st.integers(0, 70))
def test_permutation(key, n):
    assert same_bits(compiled.permutation(*key, n), twins.permutation(*key, n))


@fixed_examples(300)
@given(st.floats(5e-308, 1e308))
def test_log(x):
    assert compiled.log(x) == twins.log(x)
    assert compiled.log(x) == pytest.approx(float(np.log(x)), rel=4e-16, abs=1e-16)


@fixed_examples()
@given(SEED, st.integers(0, 50), st.integers(0, 1000), st.integers(1, 2**31), st.integers(1, 12))
def test_node_normals(seed, replicate, silo, node, d):
    compiled_normals = compiled.node_normals(seed, replicate, silo, node, d)
    assert same_bits(compiled_normals, twins.node_normals(seed, replicate, silo, node, d))
    assert len(compiled_normals) == d + d * (d + 1) // 2
    summed = compiled.sum_normals(seed, replicate, silo, node, d)
    assert same_bits(summed, twins.sum_normals(seed, replicate, silo, node, d))
    assert not np.isin(summed, compiled_normals).any()


# ---- linear algebra: relative 1e-10 at condition numbers up to 1e3 ------------------------------

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@fixed_examples(60)
@given(SEED, DIMENSION)
def test_factor_solve_and_determinant(seed, d):
    rng = np.random.default_rng(seed)
    v, u = well_conditioned_matrix(rng, d), rng.normal(size=d)
    packed_v = packed(v)
    read_only(packed_v, u)
    compiled_factor, twin_factor = compiled.factor(packed_v, d), twins.factor(packed_v, d)
    np.testing.assert_allclose(compiled_factor, twin_factor, **CLOSE)
    assert not np.triu(compiled_factor, 1).any()
    np.testing.assert_allclose(compiled_factor.T @ compiled_factor @ v, np.eye(d), atol=1e-10)
    read_only(compiled_factor)
    np.testing.assert_allclose(compiled.solve(compiled_factor, u), np.linalg.solve(v, u), **CLOSE)
    np.testing.assert_allclose(
        twins.solve(compiled_factor, u), compiled.solve(compiled_factor, u), **CLOSE
    )
    determinant = np.linalg.slogdet(v)[1]
    assert compiled.log_det(compiled_factor) == pytest.approx(determinant, rel=1e-11, abs=1e-10)
    assert twins.log_det(compiled_factor) == pytest.approx(determinant, rel=1e-11, abs=1e-10)


@pytest.mark.parametrize("module", [compiled, twins])
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
def test_matrices_that_are_not_positive_definite_have_no_factor(module, v):
    assert module.factor(packed(np.array(v)), len(v)) is None


@fixed_examples(60)
@given(SEED, DIMENSION, st.booleans())
def test_observe(seed, d, with_theta):
    rng = np.random.default_rng(seed)
    v, x, y = well_conditioned_matrix(rng, d), rng.normal(size=d) / np.sqrt(d), rng.normal()
    u = rng.normal(size=d)
    read_only(x)
    start = compiled.factor(packed(v), d)
    ratio = 1.0 + x @ np.linalg.solve(v, x)
    for module in (compiled, twins):
        w = start.copy()
        theta = np.linalg.solve(v, u) if with_theta else None
        assert module.observe(w, theta, x, y) == pytest.approx(ratio, rel=1e-11)
        np.testing.assert_allclose(w, compiled.factor(packed(v + np.outer(x, x)), d), **CLOSE)
        if with_theta:
            np.testing.assert_allclose(
                theta, np.linalg.solve(v + np.outer(x, x), u + x * y), **CLOSE
            )


@fixed_examples(60)
@given(SEED, DIMENSION)
def test_accumulate_and_rank_one(seed, d):
    """Compare bits, since the functions compute single products and sums."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=d), rng.normal()
    read_only(x)
    start = rng.normal(size=d + d * (d + 1) // 2)
    compiled_sums, twin_sums = start.copy(), start.copy()
    compiled.accumulate(compiled_sums, x, y)
    twins.accumulate(twin_sums, x, y)
    assert same_bits(compiled_sums, twin_sums)
    np.testing.assert_allclose(compiled_sums[d:] - start[d:], packed(np.outer(x, x)), atol=1e-14)
    gram, bias = rng.normal(size=(d, d)), rng.normal(size=d)
    grams, biases = [gram.copy(), gram.copy()], [bias.copy(), bias.copy()]
    compiled.rank_one(grams[0], biases[0], x, y)
    twins.rank_one(grams[1], biases[1], x, y)
    assert same_bits(*grams) and same_bits(*biases)
    np.testing.assert_allclose(grams[0], gram + np.outer(x, x), rtol=1e-15)


@fixed_examples(60)
@given(SEED, DIMENSION)
def test_sherman_morrison(seed, d):
    rng = np.random.default_rng(seed)
    v, x = well_conditioned_matrix(rng, d), rng.normal(size=d) / np.sqrt(d)
    read_only(x)
    w = compiled.factor(packed(v), d)
    start = w.T @ w
    start = np.tril(start) + np.tril(start, -1).T
    compiled_inverse, twin_inverse = start.copy(), start.copy()
    compiled.sherman_morrison(compiled_inverse, x)
    twins.sherman_morrison(twin_inverse, x)
    np.testing.assert_allclose(compiled_inverse, twin_inverse, **CLOSE)
    np.testing.assert_allclose(compiled_inverse @ (v + np.outer(x, x)), np.eye(d), atol=1e-10)
    assert np.array_equal(compiled_inverse, compiled_inverse.T)


@fixed_examples(100)
@given(SEED, DIMENSION, st.floats(-300, 307), st.floats(0.1, 10.0))
def test_clip_norm(seed, d, exponent, bound):
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, size=d) * 10.0**exponent
    compiled_x, twin_x = x.copy(), x.copy()
    is_clipped = compiled.clip_norm(compiled_x, bound)
    assert twins.clip_norm(twin_x, bound) == is_clipped
    np.testing.assert_allclose(compiled_x, twin_x, rtol=1e-14, atol=1e-300)
    # Divide by the largest entry: a plain sum of squares would overflow or vanish.
    largest = np.abs(x).max()
    norm = largest * np.linalg.norm(x / largest)
    if norm > bound * (1.0 + 1e-6):
        assert is_clipped
        assert np.linalg.norm(compiled_x) == pytest.approx(bound, rel=1e-14)
        np.testing.assert_allclose(compiled_x / bound, x / largest / (norm / largest), rtol=1e-13)
    elif norm < bound * (1.0 - 1e-12):
        assert not is_clipped and same_bits(compiled_x, x)


def test_a_norm_slightly_above_the_bound_is_scaled_but_not_counted():
    x = np.full(4, 0.5 * (1.0 + 1e-7))
    assert not compiled.clip_norm(x, 1.0)
    assert np.linalg.norm(x) <= 1.0 + 1e-15


# ---- scores and the argmax ----------------------------------------------------------------------


def layouts(actions):
    """Return the actions, read-only, in several memory layouts and precisions."""
    k, d = actions.shape
    single = actions.astype(np.float32)
    strided = np.zeros((2 * k, 3 * d))
    strided[::2, ::3] = actions
    views = [
        actions.copy(),
        np.asfortranarray(actions),
        strided[::2, ::3],
        np.ascontiguousarray(actions[::-1])[::-1],
        np.ascontiguousarray(actions[:, ::-1])[:, ::-1],
        single,
        np.asfortranarray(single),
    ]
    read_only(*views)
    return views


@fixed_examples(60)
@given(SEED, DIMENSION, ACTIONS, st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.4]))
def test_scores(seed, d, k, beta, gamma):
    """Compare scores for all layouts with relative tolerance 1e-12 of their terms.

    Bits do not depend on the layout.
    """
    _, actions, w, theta = instance(seed, d, k)
    read_only(w, theta)
    exact = compiled.scores(actions, w, theta, beta, gamma)
    for view in layouts(actions):
        scores = compiled.scores(view, w, theta, beta, gamma)
        np.testing.assert_allclose(
            scores, twins.scores(view, w, theta, beta, gamma), rtol=1e-11, atol=1e-12
        )
        if view.dtype == np.float64:
            assert same_bits(scores, exact)
    for a in {0, k // 2, k - 1}:
        assert compiled.scores(actions[a : a + 1], w, theta, beta, gamma)[0] == exact[a]


def check_select(actions, w, theta, beta, gamma=0.0):
    """Check that the selected action has the largest exact score; return its index."""
    scores = compiled.scores(actions, w, theta, beta, gamma)
    index, features = compiled.select(actions, w, theta, beta, gamma)
    expected = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
    assert index == expected, (scores[index], scores[expected])
    assert same_bits(features, actions[index].astype(np.float64))
    return index


@fixed_examples(100)
@given(SEED, DIMENSION, ACTIONS, st.sampled_from([0.0, 0.1, 3.0]), st.sampled_from([0.0, 0.4]))
def test_select(seed, d, k, beta, gamma):
    """Compare with the exact scores, and with the twin unless scores nearly tie."""
    _, actions, w, theta = instance(seed, d, k)
    read_only(w, theta)
    for view in layouts(actions):
        index = check_select(view, w, theta, beta, gamma)
        twin_index, features = twins.select(view, w, theta, beta, gamma)
        assert same_bits(features, view[twin_index].astype(np.float64))
        if twin_index != index:
            scores = compiled.scores(view, w, theta, beta, gamma)
            assert scores[twin_index] == pytest.approx(scores[index], rel=1e-12, abs=1e-13)


def test_select_max_min_maximises_the_minimum_of_two_scores():
    """Compare with exact scores bit for bit; of equal scores the first wins."""
    rng = np.random.default_rng(8)
    for case in range(400):
        d, k = int(rng.integers(1, 30)), int(rng.integers(1, 150))
        first_w, second_w = (np.tril(rng.normal(size=(d, d))) / np.sqrt(d) for _ in range(2))
        theta, second_theta = rng.normal(size=(2, d))
        actions = rng.normal(size=(k, d)).astype([np.float32, np.float64][case % 2])
        if case % 5 == 0:
            actions = np.repeat(actions, 2, axis=0)
        beta, gamma, second_beta = map(float, rng.choice([0.0, 0.3, 2.0], 3))
        for view in layouts(actions):
            min_scores = np.minimum(
                compiled.scores(view, first_w, theta, beta, gamma),
                compiled.scores(view, second_w, second_theta, second_beta, 0.0),
            )
            chosen, x = compiled.select_max_min(
                view, first_w, theta, beta, gamma, second_w, second_theta, second_beta
            )
            assert chosen == min_scores.argmax()
            assert same_bits(x, view[chosen].astype(np.float64))


def test_select_over_many_ordinary_instances():
    rng = np.random.default_rng(1)
    for _ in range(3000):
        d, k = int(rng.integers(1, 30)), int(rng.integers(1, 150))
        w = np.tril(rng.normal(size=(d, d))) / np.sqrt(d)
        theta = rng.normal(size=d) * rng.choice([0.0, 1e-3, 1.0])
        actions = rng.normal(size=(k, d))
        if rng.random() < 0.5:
            actions /= np.linalg.norm(actions, axis=1, keepdims=True)
        if rng.random() < 0.5:
            actions = actions.astype(np.float32)
        check_select(actions, w, theta, *map(float, rng.choice([0.0, 0.3, 20.0], 2)))


@pytest.mark.parametrize("d", [1, 2, 10, 57, 135])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_select_when_all_tie(d, dtype):
    """Check the first batch: V = lambda I, theta = 0 and ||x|| = 1, so that scores nearly tie."""
    rng = np.random.default_rng(d)
    for regularizer in (1.0, 0.3, 17.0):
        w = compiled.factor(packed(regularizer * np.eye(d)), d)
        for k in (1, 2, 16, 17, 100):
            actions = rng.normal(size=(k, d))
            actions = (actions / np.linalg.norm(actions, axis=1, keepdims=True)).astype(dtype)
            for gamma in (0.0, 4.0):
                check_select(actions, w, np.zeros(d), 2.5, gamma)


def test_select_in_near_ties():
    """Use actions that differ by 1e-9 to 1e-6: float32 cannot distinguish them, exact scores
    can."""
    rng = np.random.default_rng(2)
    for _ in range(2000):
        d, k = int(rng.integers(1, 20)), int(rng.integers(2, 60))
        w = np.tril(rng.normal(size=(d, d))) / np.sqrt(d)
        theta = rng.normal(size=d) * rng.choice([0.0, 1.0])
        actions = rng.normal(size=d) * (1.0 + rng.normal(size=(k, d)) * 10.0 ** rng.uniform(-9, -6))
        check_select(actions, w, theta, *map(float, rng.choice([0.0, 1.0], 2)))


def test_of_equal_best_actions_the_first_is_chosen():
    rng = np.random.default_rng(3)
    for d in (1, 5, 40):
        w = compiled.factor(packed(well_conditioned_matrix(rng, d)), d)
        theta = rng.normal(size=d)
        for k in (2, 16, 17, 50, 90):
            actions = rng.normal(size=(k, d))
            best = int(np.argmax(compiled.scores(actions, w, theta, 1.0, 0.0)))
            copies = rng.choice(k, size=min(k, 5), replace=False)
            actions[copies] = actions[best]
            first = min([best, *copies])
            for dtype in (np.float32, np.float64):
                view = actions.astype(dtype)
                equal_rows = np.flatnonzero((view == view[first]).all(axis=1))
                chosen = check_select(view, w, theta, 1.0)
                assert chosen not in equal_rows[1:]
            for module in (compiled, twins):
                assert module.select(actions, w, theta, 1.0, 0.0)[0] == first
    zeros = np.zeros((70, 3))
    assert check_select(zeros, np.eye(3), np.ones(3), 1.0) == 0


@pytest.mark.parametrize("near", [False, True])
def test_select_at_all_scales(near):
    """Use features, W, theta and radius from 1e-45 to 1e45, where float32 overflows and
    underflows."""
    rng = np.random.default_rng(4)
    for _ in range(8000):
        d, k = int(rng.integers(1, 12)), int(rng.integers(1, 40))
        scale = 10.0 ** rng.uniform(-45, 45)
        # In half of the cases the scales cancel, so that all terms of a score matter.
        cancel = rng.random() < 0.5
        scales = (
            10.0 ** rng.uniform(-4, 4, 2) / scale if cancel else 10.0 ** rng.uniform(-45, 45, 2)
        )
        beta = float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-45, 45)]))
        gamma = float(rng.choice([0.0, 1.0, 10.0 ** rng.uniform(-45, 45)]))
        w = np.tril(rng.normal(size=(d, d))) * scales[0] / (beta if cancel and beta else 1.0)
        theta = rng.normal(size=d) * scales[1] * rng.choice([0.0, 1.0, 1.0])
        actions = rng.normal(size=(k, d))
        if near:
            actions = actions[:1] * (1.0 + rng.normal(size=(k, d)) * 10.0 ** rng.uniform(-9, -6))
        check_select(actions * scale, w, theta, beta, gamma)


@pytest.mark.parametrize("tiny", ["factor", "theta", "radius", "second radius", "actions"])
def test_select_where_an_operand_is_subnormal_as_float32(tiny):
    """Use different directions with nearly equal scores, so that they have no common error."""
    rng = np.random.default_rng(6)
    for _ in range(2000):
        d = int(rng.integers(1, 8))
        scale = 10.0 ** -rng.uniform(36, 44)
        w = np.abs(np.tril(rng.normal(size=(d, d)))) * (scale if tiny == "factor" else 1.0)
        theta = np.zeros(d) if tiny not in ("theta", "actions") else rng.normal(size=d)
        beta = {"theta": 0.0, "radius": scale, "second radius": 0.0}.get(tiny, 1.0)
        gamma = {"theta": 0.0, "radius": 0.0, "second radius": scale}.get(tiny, 1.0)
        theta *= scale if tiny == "theta" else 1.0
        x = rng.normal(size=(30, d)) * (scale if tiny == "actions" else 1e17)
        scores = compiled.scores(x, w, theta, beta, gamma)
        x, scores = x[scores > 0.0], scores[scores > 0.0]
        factors = 1.0 + rng.normal(size=len(x)) * 10.0 ** rng.uniform(-8, -5)
        if len(x):
            check_select(x * (factors * scores.mean() / scores)[:, None], w, theta, beta, gamma)


def test_select_between_a_tiny_second_radius_and_a_huge_width():
    """Check a gamma that is 0 as float32 while gamma ||V^-1 x|| is not small."""
    rng = np.random.default_rng(8)
    for _ in range(2000):
        d = int(rng.integers(1, 8))
        w = np.tril(rng.normal(size=(d, d))) * 1e12
        theta = rng.normal(size=d) * 1e-23
        check_select(rng.normal(size=(30, d)) * 1e3, w, theta, 0.0, 1e-46)


@pytest.mark.parametrize("bad_value", [np.nan, np.inf, -np.inf, 1e300])
def test_select_returns_a_valid_index_for_nan_and_infinity(bad_value):
    """Check that the index is in range, and is the best finite score where that is largest."""
    rng, actions, w, theta = instance(5, 6, 40)
    for rows in ([0], [39], [3, 4, 5], range(40)):
        spoiled = actions.copy()
        spoiled[list(rows), rng.integers(6)] = bad_value
        with np.errstate(all="ignore"):
            assert check_select(spoiled, w, theta, 1.0) in range(40)
            assert twins.select(spoiled, w, theta, 1.0, 0.0)[0] in range(40)
    with np.errstate(all="ignore"):
        for matrix, vector in ((w * bad_value, theta), (w, theta * bad_value)):
            assert check_select(actions, matrix, vector, 1.0) in range(40)


# ---- protocol arithmetic: equal bits ------------------------------------------------------------


@fixed_examples()
@given(SEED, st.integers(1, 200), st.integers(1, 9))
def test_tree_arithmetic(seed, k, s):
    rng = np.random.default_rng(seed)
    assert compiled.node_level(k) == twins.node_level(k)
    levels = k.bit_length()
    compiled_sums = rng.normal(size=(levels, s))
    twin_sums, leaf = compiled_sums.copy(), rng.normal(size=s)
    read_only(leaf)
    compiled.psum(compiled_sums, leaf, compiled.node_level(k))
    twins.psum(twin_sums, leaf, compiled.node_level(k))
    assert same_bits(compiled_sums, twin_sums)
    read_only(compiled_sums)
    assert same_bits(compiled.prefix(compiled_sums, k), twins.prefix(compiled_sums, k))
    compiled_total, twin_total = leaf.copy(), leaf.copy()
    compiled.add(compiled_total, compiled_sums[0])
    twins.add(twin_total, compiled_sums[0])
    assert same_bits(compiled_total, twin_total)


#: Random 64-bit words, and words near 0, near 2^64 and near the limits of what 64 bits decide.
WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 64),
    st.integers(0, 64).map(lambda step: 2**64 - 1 - step),
    st.integers(-3, 3).map(lambda step: 2**44 + step),
    st.integers(-3, 3).map(lambda step: 2**64 - 2**44 + step),
    st.integers(-3, 3).map(lambda step: 2**63 + step),
)


@fixed_examples(200)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=40))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_ideal_draws(pairs):
    words = np.array(pairs, np.uint64).T.reshape(-1).copy()
    read_only(words)
    is_decided = words[: len(pairs)] >= 2**44
    for name, is_known in (("ideal_normals", np.tile(is_decided, 2)), ("ideal_laplace", ...)):
        compiled_draws, twin_draws = getattr(compiled, name)(words), getattr(twins, name)(words)
        if is_known is ...:
            is_known = words << np.uint64(1) >= 2**44
        assert compiled_draws[1] == twin_draws[1]
        assert same_bits(compiled_draws[0][is_known], twin_draws[0][is_known])


@fixed_examples(200)
@given(SEED, st.integers(1, 200), st.integers(-40, 30), st.sampled_from([0.0, 2.0**-40, 1e-5]))
def test_round_noisy(seed, size, power, error):
    rng = np.random.default_rng(seed)
    values, noise = rng.normal(size=(2, size)) * [[2.0**power * 100], [1.0]]
    std = 2.0**power * (1.0 + rng.uniform(size=size))
    grid = np.full(size, 2.0 ** (power - 14))
    # Put some values exactly between two grid points, without noise.
    values[::3], noise[::3] = (np.rint(values[::3] / grid[::3]) + 0.5) * grid[::3], 0.0
    read_only(values, noise, std, grid)
    compiled_result = compiled.round_noisy(values, noise, std, grid, error)
    twin_result = twins.round_noisy(values, noise, std, grid, error)
    assert same_bits(compiled_result[0], twin_result[0]) and compiled_result[1] == twin_result[1]
    assert set(range(0, size, 3)) <= set(compiled_result[1])


@fixed_examples()
@given(SEED, st.integers(1, 30), st.tuples(*[st.floats(0, 10)] * 3))
def test_add_noise(seed, d, std):
    rng = np.random.default_rng(seed)
    statistic, normals = rng.normal(size=(2, d + d * (d + 1) // 2))
    read_only(statistic, normals)
    noisy = compiled.add_noise(statistic, normals, d, *std)
    assert same_bits(noisy, twins.add_noise(statistic, normals, d, *std))


@fixed_examples(60)
@given(SEED, DIMENSION, st.floats(0.1, 5.0), st.floats(0.0, 3.0))
def test_refresh(seed, d, regularizer, noise):
    """Compare shifts exactly, and W and theta to 1e-8, since a shifted V may be ill-conditioned."""
    rng = np.random.default_rng(seed)
    statistic = rng.normal(size=d + d * (d + 1) // 2) * noise
    v = np.zeros((d, d))
    v[np.tril_indices(d)] = statistic[d:]
    v += np.tril(v, -1).T
    read_only(statistic)
    results = []
    for module in (compiled, twins):
        w, theta = np.empty((d, d)), np.empty(d)
        shift = module.refresh(statistic, regularizer, w, theta)
        results.append((shift, w, theta))
    (shift, w, theta), (other_shift, other_w, other_theta) = results
    smallest = np.linalg.eigvalsh(v + regularizer * np.eye(d))[0]
    assert (shift == 0.0) == (smallest > 0.0) or abs(smallest) < 1e-10
    if abs(smallest + shift) < 1e-3:
        return
    assert shift == other_shift
    np.testing.assert_allclose(w, other_w, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(theta, other_theta, rtol=1e-8, atol=1e-8)
    shifted_v = v + (regularizer + shift) * np.eye(d)
    np.testing.assert_allclose(shifted_v @ theta, statistic[:d], atol=1e-8)


@pytest.mark.parametrize("module", [compiled, twins])
def test_refresh_returns_minus_one_for_nan(module):
    statistic = np.array([1.0, np.nan])
    assert module.refresh(statistic, 1.0, np.empty((1, 1)), np.empty(1)) == -1.0


@fixed_examples()
@given(
    *[st.floats(0.0, 10.0)] * 4, st.floats(1e-3, 10.0), st.integers(0, 10**9), st.integers(1, 200)
)
def test_radius(multiplier, scale, base, offset, lam, count, d):
    arguments = multiplier, scale, base, offset, lam, count, d
    assert compiled.radius_at(*arguments) == twins.radius_at(*arguments)
    expected = multiplier * (offset + scale * np.sqrt(base + d * np.log1p(count / (d * lam))))
    assert compiled.radius_at(*arguments) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


# ---- other releases, and the direct radius ------------------------------------------------------


@fixed_examples()
@given(st.integers(1, 2**31 - 1))
def test_honaker_number(k):
    assert compiled.honaker_number(k) == twins.honaker_number(k) == 2 * k - 1 - (k - 1).bit_count()


def test_honaker_numbers_leave_room_for_the_nodes_of_each_release():
    for module in (compiled, twins):
        number = 1
        for k in range(1, 300):
            assert module.honaker_number(k) == number
            number += module.node_level(k) + 1


@fixed_examples()
@given(SEED, st.integers(1, 40), st.integers(1, 30))
def test_honaker(seed, size, level):
    """Compare bits, and compare the weight with its recursion to 1e-14."""
    rng = np.random.default_rng(seed)
    compiled_value, node, sibling = rng.normal(size=(3, size))
    start, twin_value = compiled_value.copy(), compiled_value.copy()
    read_only(node, sibling)
    compiled.honaker(compiled_value, node, sibling, level)
    twins.honaker(twin_value, node, sibling, level)
    assert same_bits(compiled_value, twin_value)
    weight = 1.0
    for _ in range(level):
        weight = 1.0 / (1.0 + 1.0 / (2.0 * weight))
    np.testing.assert_allclose(
        compiled_value, weight * node + (1.0 - weight) * (sibling + start), rtol=1e-14, atol=1e-14
    )


@fixed_examples()
@given(SEED, st.integers(1, 60), st.integers(1, 60), st.integers(1, 30))
def test_toeplitz(seed, k, unused_rows, size):
    """Compare bits; rows and coefficients beyond release k must not be read."""
    rng = np.random.default_rng(seed)
    history, f = rng.normal(size=(k + unused_rows, size)), rng.normal(size=k + unused_rows)
    history[k:], f[k:] = np.nan, np.nan
    read_only(history, f)
    compiled_value = compiled.toeplitz(history, f, k)
    assert same_bits(compiled_value, twins.toeplitz(history, f, k))
    np.testing.assert_allclose(compiled_value, f[:k][::-1] @ history[:k], rtol=1e-12, atol=1e-12)


@fixed_examples()
@given(
    *[st.floats(0.0, 10.0)] * 4,
    st.floats(1e-3, 10.0),
    st.floats(1.0, 3.0),
    st.floats(-50.0, 1000.0),
    st.integers(1, 200),
)
def test_determinant_radius(multiplier, scale, base, offset, anchor, inflation, log_det, d):
    arguments = multiplier, scale, base, offset, anchor, inflation, log_det, d
    radius = compiled.determinant_radius(*arguments)
    assert radius == twins.determinant_radius(*arguments)
    growth = max(0.0, log_det + d * np.log(inflation / anchor))
    expected = multiplier * (offset + scale * np.sqrt(inflation * (base + growth)))
    assert radius == pytest.approx(float(expected), rel=1e-9, abs=1e-6)


@fixed_examples(150)
@given(SEED, DIMENSION, st.floats(-3.0, 3.0), st.floats(0.0, 1.5))
def test_choose_regularizer(seed, d, exponent, share):
    """Compare with the rule by eigenvalues, unless an eigenvalue lies within 1e-10 of the floor."""
    rng = np.random.default_rng(seed)
    full = 10.0**exponent
    floor = full * share
    square = rng.normal(size=(d, d)) * full / np.sqrt(d)
    v = (square + square.T) / 2.0
    # Draw the smallest eigenvalue from a range in which the choice is anything from 0 to `full`.
    v += (rng.uniform(-0.2, 1.2) * full - np.linalg.eigvalsh(v)[0] - full + floor) * np.eye(d)
    statistic = np.concatenate([rng.normal(size=d), packed(v)])
    read_only(statistic)
    chosen = compiled.choose_regularizer(statistic, full, floor, d)
    twin_choice = twins.choose_regularizer(statistic, full, floor, d)
    if floor == 0.0:
        assert chosen == twin_choice == full
        return
    smallest_eigenvalues = np.array(
        [np.linalg.eigvalsh(v + full * j / 8.0 * np.eye(d))[0] for j in range(8)]
    )
    if np.abs(smallest_eigenvalues - floor).min() < 1e-10 * max(np.abs(v).max() * d, full):
        return
    sufficient = np.flatnonzero(smallest_eigenvalues > floor)
    expected = full * sufficient[0] / 8.0 if len(sufficient) else full
    assert chosen == twin_choice == expected


@pytest.mark.parametrize("module", [compiled, twins])
@pytest.mark.parametrize(
    ("least", "expected"),
    [(4.5, 0.0), (4.0, 1.0), (3.5, 1.0), (0.5, 4.0), (-2.5, 7.0), (-3.5, 8.0)],
)
def test_choose_regularizer_by_hand(module, least, expected):
    """Use full 8 and floor 4: an eigenvalue must be above the floor, not equal to it."""
    statistic = np.concatenate([np.zeros(2), packed(np.diag([least, 9.0]))])
    assert module.choose_regularizer(statistic, 8.0, 4.0, 2) == expected
    assert module.choose_regularizer(statistic, 8.0, 0.0, 2) == 8.0


@pytest.mark.parametrize("module", [compiled, twins])
def test_choose_regularizer_returns_the_full_value_for_nan_and_infinity(module):
    for bad_value in (np.nan, np.inf, -np.inf):
        statistic = np.concatenate([np.zeros(2), [bad_value, 0.0, 9.0]])
        assert module.choose_regularizer(statistic, 8.0, 4.0, 2) == 8.0
