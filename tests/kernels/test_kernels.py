"""Public functions of fastfed.kernels agree with NumPy, update in place and check arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import twins

from fastfed import kernels
from fastfed._kernels import linalg, rng
from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.privacy.releases.prefix_sums import prefix_nodes
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds

BOTH_IMPLEMENTATIONS = pytest.mark.parametrize(
    "implementation", ["compiled", "numpy"], indirect=True
)
SIZES = pytest.mark.parametrize("d", [1, 2, 7, 33, 140])


@pytest.fixture
def implementation(request, monkeypatch):
    """Use the compiled functions, or replace them by their NumPy twins."""
    if request.param == "numpy":
        twins.stand_in(monkeypatch)


def problem(d, k=20):
    """Return a positive definite V (d, d), actions (k, d) and theta (d,)."""
    rng = np.random.default_rng(d)
    x = rng.normal(size=(3 * d, d)) / np.sqrt(d)
    return np.eye(d) + x.T @ x, rng.normal(size=(k, d)), rng.normal(size=d)


# ---- updates in place ---------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@SIZES
def test_rank_one_update_adds_the_outer_product_in_place(d, implementation):
    gram, actions, bias = problem(d)
    expected = gram + np.outer(actions[0], actions[0]), bias + actions[0] * 0.5
    result = kernels.rank_one_update(gram, bias, actions[0], 0.5)
    assert result[0] is gram and result[1] is bias
    np.testing.assert_allclose(gram, expected[0], rtol=1e-14)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-14)
    assert np.array_equal(gram, gram.T)


@BOTH_IMPLEMENTATIONS
@SIZES
def test_sherman_morrison_updates_the_inverse_in_place(d, implementation):
    v, actions, _ = problem(d)
    inverse = np.ascontiguousarray(np.linalg.inv(v))
    result = kernels.sherman_morrison(inverse, actions[0])
    assert result is inverse
    expected = np.linalg.inv(v + np.outer(actions[0], actions[0]))
    np.testing.assert_allclose(inverse, expected, rtol=1e-9, atol=1e-11)


@BOTH_IMPLEMENTATIONS
def test_vectors_may_be_lists_integers_views_and_parts_of_the_target(implementation):
    gram, bias = np.eye(2), np.zeros(2)
    kernels.rank_one_update(gram, bias, [1, 2], 3)
    assert gram.tolist() == [[2.0, 2.0], [2.0, 5.0]] and bias.tolist() == [3.0, 6.0]
    x = np.arange(6.0)[::-3]
    x.flags.writeable = False
    kernels.rank_one_update(gram, bias, x, 1.0)
    assert gram.tolist() == [[27.0, 12.0], [12.0, 9.0]] and bias.tolist() == [8.0, 8.0]
    gram = np.array([[1.0, 2.0], [2.0, 5.0]])
    kernels.rank_one_update(gram, np.zeros(2), gram[0], 0.0)
    assert gram.tolist() == [[2.0, 4.0], [4.0, 9.0]]


def frozen(array):
    """Return the array, which may not be written any more."""
    array.flags.writeable = False
    return array


BAD_TARGETS = [
    (
        np.eye(3, dtype=np.float32),
        "must be a float64 array, because it is updated in place, got float",
    ),
    (np.eye(3, dtype=int), "must be a float64 array, because it is updated in place, got int"),
    (np.eye(3).tolist(), "must be a float64 array, because it is updated in place, got list"),
    (np.eye(3).astype(">f8"), "must be a float64 array, because it is updated in place, got >f8"),
    (frozen(np.eye(3)), "must be writable and C-contiguous, .* got writeable False"),
    (np.eye(6)[::2, ::2], r"must be writable and C-contiguous, .* got writeable True, strides"),
    (np.asfortranarray(np.ones((3, 3))), "must be writable and C-contiguous"),
    (np.eye(3)[:2].copy(), r"must have shape \(d, d\) with d >= 1, got \(2, 3\)"),
    (np.empty((0, 0)), r"must have shape \(d, d\) with d >= 1, got \(0, 0\)"),
    (np.ones(3), r"must have shape \(any, any\), got \(3,\)"),
    (np.diag([1.0, np.nan, 1.0]), r"must be finite, got nan at index \(1, 1\)"),
]


@pytest.mark.parametrize(("target", "message"), BAD_TARGETS)
def test_bad_targets_are_refused(target, message):
    with pytest.raises(InputError, match=f"^gram {message}"):
        kernels.rank_one_update(target, np.zeros(3), np.ones(3), 1.0)
    with pytest.raises(InputError, match=f"^inverse {message}"):
        kernels.sherman_morrison(target, np.ones(3))


def test_refused_updates_change_nothing():
    gram, bias = np.eye(2), np.zeros(2)
    for x, y, message in (
        ([1.0, np.nan], 1.0, r"x must be finite, got nan at index \(1,\)"),
        ([1.0], 1.0, r"x must have shape \(2,\), got \(1,\)"),
        ("abc", 1.0, "x must be an array of numbers, got 'abc'"),
        ([1.0, 1.0], math.inf, "y must be finite, got inf"),
        ([1.0, 1.0], "1", "y must be a number, got '1'"),
    ):
        with pytest.raises(InputError, match=message):
            kernels.rank_one_update(gram, bias, x, y)
    with pytest.raises(InputError, match="bias must be writable"):
        kernels.rank_one_update(gram, np.zeros(4)[::2], [1.0, 1.0], 1.0)
    with pytest.raises(InputError, match=r"bias must have shape \(2,\), got \(3,\)"):
        kernels.rank_one_update(gram, np.zeros(3), [1.0, 1.0], 1.0)
    with pytest.raises(InputError, match="gram and bias must not share memory"):
        kernels.rank_one_update(gram, gram[0], [1.0, 1.0], 1.0)
    assert np.array_equal(gram, np.eye(2)) and not bias.any()

    for inverse, message in (
        ([[1.0, 0.5], [0.0, 1.0]], r"symmetric, got 0.5 at \(0, 1\) and 0.0 at \(1, 0\)"),
        ([[-1.0, 0.0], [0.0, -1.0]], "positive definite and of finite scale, .* = -2.0"),
        ([[1e308, 0.0], [0.0, 1e308]], "positive definite and of finite scale, .* = inf"),
    ):
        target = np.array(inverse)
        with pytest.raises(InputError, match=f"inverse must be {message}"):
            kernels.sherman_morrison(target, [1.0, 1.0])
        assert np.array_equal(target, inverse)


# ---- scores -------------------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@SIZES
def test_inverse_factor_whitens_v(d, implementation):
    v, _, _ = problem(d)
    factor = kernels.inverse_factor(v)
    np.testing.assert_allclose(factor @ v @ factor.T, np.eye(d), atol=1e-10)
    assert not np.triu(factor, 1).any()
    # Rounding errors in V's upper triangle are accepted and ignored.
    assert np.array_equal(kernels.inverse_factor(v + np.triu(v, 1) * 1e-15), factor)


@BOTH_IMPLEMENTATIONS
@SIZES
def test_scores_and_argmax_agree_with_the_formula(d, implementation):
    v, actions, theta = problem(d)
    factor, inverse = kernels.inverse_factor(v), np.linalg.inv(v)
    width = np.sqrt(np.einsum("ki,ij,kj->k", actions, inverse, actions))
    for second in (0.0, 0.6):
        expected = actions @ theta + 1.3 * width
        expected += second * np.linalg.norm(actions @ inverse, axis=1)
        keywords = {"second_radius": second}
        for x in (actions, frozen(np.asfortranarray(actions)), np.repeat(actions, 2, 1)[:, ::2]):
            scores = kernels.ucb_scores(x, factor, theta, 1.3, **keywords)
            np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10)
            chosen = kernels.ucb_argmax(x, factor, theta, 1.3, **keywords)
            assert chosen == int(np.argmax(expected)) and type(chosen) is int
        single = kernels.ucb_scores(actions.astype(np.float32), factor, theta, 1.3, **keywords)
        np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)


def test_before_any_data_norms_decide_only_if_theta_is_exactly_zero():
    """With V = I the longest action wins; an estimate whose square underflows still counts."""
    actions = np.array([[1e100, 0.0], [0.0, 1.0001e100]])
    for theta, chosen in ((0.0, 1), (1e-170, 0)):
        model = np.eye(2), np.array([theta, 0.0]), 1e-190
        assert kernels.ucb_argmax(actions, *model) == chosen
        assert kernels.ucb_scores(actions, *model).argmax() == chosen


def row_by_row(v):
    """Compute W of V row by row, with sums in the kernel's order; None if V is not definite."""
    a, d = np.tril(v), len(v)
    for j in range(d):
        if not 0.0 < a[j, j] < math.inf:
            return None
        a[j, j] = math.sqrt(a[j, j])
        a[j + 1 :, j] *= 1.0 / a[j, j]
        a[j + 1 :, j + 1 :] += -a[j + 1 :, j, None] * a[None, j + 1 :, j]
    w = np.zeros((d, d))
    for i in range(d):
        for k in range(i):
            w[i, : k + 1] += -a[i, k] * w[k, : k + 1]
        w[i, :i] *= 1.0 / a[i, i]
        w[i, i] = 1.0 / a[i, i]
    return w


@pytest.mark.parametrize("d", [1, 2, 7, *range(15, 34), 57, 135])
def test_the_blocked_factor_equals_the_factor_row_by_row_in_every_bit(d):
    rng = np.random.default_rng(d)
    x = rng.normal(size=(d + 3, d)) * np.exp(3.0 * rng.normal(size=d))
    v = x.T @ x + 0.01 * np.eye(d)
    v = (v + v.T) / 2.0
    packed = v[np.tril_indices(d)]
    np.testing.assert_array_equal(linalg.factor(packed, d), row_by_row(v))
    for last in {0, d // 2, d - 1}:  # a pivot is negative, early or late
        indefinite_v = v.copy()
        indefinite_v[last, last] = 1e-9 * v[last, last] if d > 1 else -1.0
        assert row_by_row(indefinite_v) is None
        assert linalg.factor(indefinite_v[np.tril_indices(d)], d) is None


@pytest.mark.parametrize("d", [5, 8, 10, 31, 40, 96])
@pytest.mark.parametrize("second", [0.0, 0.5])
def test_partial_sums_of_a_mean_may_exceed_the_range_of_float32(d, second):
    """The best score is 9e37, but a partial sum of it is -6e38. Other scores are about 1."""
    theta, x = np.zeros(d), np.zeros((16, d), np.float32)
    theta[:4] = 1e30
    x[1, :4] = np.array([-3e8, -3e8, 3e8, 3.9e8])
    x[2:, 4] = 1.0
    factor = np.tril(np.random.default_rng(0).normal(size=(d, d))) / d + 2.0 * np.eye(d)
    for actions in (x, np.asfortranarray(x)):
        assert kernels.ucb_argmax(actions, factor, theta, 1.0, second_radius=second) == 1


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("trusted", [False, True])
def test_a_stack_of_models_gives_the_scores_of_each_model(implementation, trusted):
    rng, d = np.random.default_rng(3), 9
    actions = rng.normal(size=(4, d)).astype(np.float32)
    factors = np.stack([kernels.inverse_factor(problem(d)[0] * c) for c in (1, 2, 5)])
    thetas = rng.normal(size=(3, d))
    keywords = {"second_radius": 0.3, "trusted": trusted}
    expected = [
        kernels.ucb_scores(actions, w, theta, 0.7, **keywords)
        for w, theta in zip(factors, thetas, strict=True)
    ]
    for stack in (factors, factors.tolist(), np.asfortranarray(factors)):
        scores = kernels.ucb_scores(actions, stack, thetas, 0.7, **keywords)
        assert scores.shape == (3, 4) and np.array_equal(scores, expected)
    # The last model of a stack is checked too.
    factors[2, 0, 1] = 1.0
    if not trusted:
        with pytest.raises(InputError, match="factor must be lower triangular"):
            kernels.ucb_scores(actions, factors, thetas, 0.7, **keywords)
    factors[2, 0, 1] = 0.0
    for bad_factors, theta, message in (
        (factors, thetas[:2], r"theta must have shape \(3, 9\), got \(2, 9\)"),
        (factors, thetas[0], r"theta must have shape \(3, 9\), got \(9,\)"),
        (factors[:, :8], thetas, r"factor must have shape \(d, d\) with d >= 1, got \(8, 9\)"),
        (factors[:0], thetas[:0], "factor must hold at least one model"),
        (factors[None], thetas, r"factor must have shape \(any, any\), got \(1, 3, 9, 9\)"),
    ):
        with pytest.raises(InputError, match=message):
            kernels.ucb_scores(actions, bad_factors, theta, 0.7, **keywords)
    with pytest.raises(InputError, match=r"a set for each of 3 models, .* got shape \(4, 9\)"):
        kernels.ucb_argmax(actions, factors, thetas, 0.7, **keywords)


@BOTH_IMPLEMENTATIONS
def test_actions_of_other_types_are_converted(implementation):
    factor = np.eye(2)
    rows = [[1, 0], [0, 3], [0, 3]]
    for actions in (rows, np.array(rows), np.array(rows, ">f8"), np.array(rows, np.float16)):
        scores = kernels.ucb_scores(actions, factor, [0, 1], 2)
        assert scores.tolist() == [2.0, 9.0, 9.0]
        assert kernels.ucb_argmax(actions, factor, [0, 1], 2) == 1
    packed = np.zeros(3, np.dtype([("tag", "u1"), ("x", "f8", 2)]))
    packed["x"] = rows
    assert not packed["x"].flags.aligned
    assert kernels.ucb_scores(packed["x"], factor, [0, 1], 2).tolist() == [2, 9, 9]
    assert kernels.ucb_argmax([[0.0, 0.0]], factor, [0, 1], 0.0) == 0


@pytest.mark.parametrize("function", [kernels.ucb_scores, kernels.ucb_argmax])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"actions": np.ones((3, 5))}, r"actions must have shape \(any, 2\), got \(3, 5\)"),
        ({"actions": np.ones((0, 2))}, r"actions must hold at least one action, got shape \(0, 2"),
        ({"actions": [[1.0, np.inf]]}, r"actions must be finite, got inf at index \(0, 1\)"),
        ({"actions": np.full((1, 2), np.nan, np.float32)}, "actions must be finite, got nan"),
        ({"actions": [1.0, 2.0]}, r"actions must have shape \(any, 2\), got \(2,\)"),
        ({"factor": np.ones((2, 3))}, r"factor must have shape \(d, d\) with d >= 1"),
        ({"factor": [[1.0, 0.5], [0.5, 1.0]]}, r"factor must be lower triangular .*inverse_factor"),
        ({"factor": [[1.0, 0.0], [0.5, 0.0]]}, "factor must be lower triangular with a positive"),
        ({"theta": [1.0]}, r"theta must have shape \(2,\), got \(1,\)"),
        ({"radius": -1.0}, "radius must be >= 0, got -1.0"),
        ({"radius": math.nan}, "radius must be >= 0, got nan"),
        ({"second_radius": -0.5}, "second_radius must be >= 0, got -0.5"),
    ],
)
def test_bad_arguments_of_scores_are_refused(function, changed, message):
    arguments = {
        "actions": np.ones((3, 2)),
        "factor": np.eye(2),
        "theta": np.ones(2),
        "radius": 1.0,
    }
    with pytest.raises(InputError, match=message):
        function(**(arguments | changed))


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("v", "message"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "V must be positive definite, .* smallest eigenvalue -1"),
        ([[1.0, 2.0], [3.0, 10.0]], r"V must be symmetric, got 2.0 at \(0, 1\) and 3.0"),
        ([[1.0, 2.0]], r"V must have shape \(d, d\) with d >= 1, got \(1, 2\)"),
        ([1.0], r"V must have 2 axes, got shape \(1,\)"),
        ([[np.inf]], r"V must be finite, got inf at index \(0, 0\)"),
        ([[0.0]], "V must be positive definite"),
    ],
)
def test_bad_matrices_are_refused(v, message, implementation):
    with pytest.raises(InputError, match=message):
        kernels.inverse_factor(v)


# ---- the factor, row by row ---------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@SIZES
@pytest.mark.parametrize("trusted", [False, True])
def test_factor_update_is_the_ridge_estimate_with_one_more_row(d, implementation, trusted):
    v, actions, _ = problem(d)
    u = np.cos(np.arange(d))
    factor, theta = kernels.inverse_factor(v), np.linalg.solve(v, u)
    for x, y in zip(actions, np.linspace(-2, 1, len(actions)), strict=True):
        result = kernels.factor_update(factor, theta, x, y, trusted=trusted)
        assert result[0] is factor and result[1] is theta
        v, u = v + np.outer(x, x), u + x * y
    np.testing.assert_allclose(theta, np.linalg.solve(v, u), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(factor, kernels.inverse_factor(v), rtol=1e-9, atol=1e-11)
    assert not np.triu(factor, 1).any()


def test_trusted_calls_return_the_bits_of_checked_calls():
    v, actions, theta = problem(57, 120)
    factor = kernels.inverse_factor(v)
    strided = np.asfortranarray(factor)  # any layout is allowed, trusted or not
    for x in (actions, actions.astype(np.float32), actions.tolist()):
        for w in (factor, strided, factor.tolist()):
            expected = kernels.ucb_scores(x, factor, theta, 1.3, second_radius=0.2)
            scores = kernels.ucb_scores(x, w, list(theta), 1.3, second_radius=0.2, trusted=True)
            assert np.array_equal(scores, expected)
            assert kernels.ucb_argmax(x, w, theta, 1, trusted=True) == kernels.ucb_argmax(
                x, factor, theta, 1
            )
    checked_pair, trusted_pair = (factor.copy(), theta.copy()), (factor.copy(), theta.copy())
    kernels.factor_update(*checked_pair, actions[3], 0.7)
    kernels.factor_update(*trusted_pair, actions[3], 0.7, trusted=True)
    assert all(np.array_equal(a, b) for a, b in zip(checked_pair, trusted_pair, strict=True))


def test_x_may_be_a_row_of_the_factor():
    factor, theta = np.array([[1.0, 0.0], [0.5, 2.0]]), np.zeros(2)
    expected = kernels.factor_update(factor.copy(), theta.copy(), factor[1].copy(), 1.0)
    kernels.factor_update(factor, theta, factor[1], 1.0)
    assert np.array_equal(factor, expected[0]) and np.array_equal(theta, expected[1])


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": [1.0, np.nan]}, r"x must be finite, got nan at index \(1,\)"),
        ({"x": np.array([np.inf, 0.0])}, r"x must be finite, got inf at index \(0,\)"),
        ({"x": [1.0]}, r"x must have shape \(2,\), got \(1,\)"),
        ({"x": [1e200, 0.0]}, r"x must have a width .* of at most 1e75, got inf"),
        ({"x": np.array([0.0, 1e80])}, r"x must have a width .* of at most 1e75, got 1e\+80"),
        ({"y": math.nan}, "y must be finite, got nan"),
        ({"theta": np.zeros(3)}, r"theta must have shape \(2,\), got \(3,\)"),
        ({"theta": np.zeros(4)[::2]}, "theta must be writable and C-contiguous"),
        ({"theta": [0.0, 0.0]}, "theta must be a float64 array, because it is updated in place"),
        ({"factor": np.eye(2, dtype=np.float32)}, "factor must be a float64 array"),
        ({"factor": frozen(np.eye(2))}, "factor must be writable and C-contiguous"),
        ({"factor": np.ones((2, 3))}, r"factor must have shape \(d, d\) with d >= 1"),
        ({"factor": np.ones(2)}, r"factor must have shape \(any, any\), got \(2,\)"),
    ],
)
def test_refused_rows_change_no_factor(changed, message, trusted):
    good_arguments = {"factor": np.eye(2), "theta": np.zeros(2), "x": [1.0, 1.0], "y": 1.0}
    with pytest.raises(InputError, match=f"^{message}"):
        kernels.factor_update(**(good_arguments | changed), trusted=trusted)
    assert np.array_equal(good_arguments["factor"], np.eye(2)) and not good_arguments["theta"].any()


def test_a_factor_is_checked_unless_it_is_trusted():
    row = {"x": [1.0, 1.0], "y": 1.0}
    with pytest.raises(InputError, match=r"factor must be lower triangular .*inverse_factor"):
        kernels.factor_update(np.ones((2, 2)), np.zeros(2), **row)
    with pytest.raises(InputError, match=r"factor must be finite, got nan at index \(0, 0\)"):
        kernels.factor_update(np.diag([np.nan, 1.0]), np.zeros(2), **row)
    with pytest.raises(InputError, match="theta must be finite, got inf"):
        kernels.factor_update(np.eye(2), np.full(2, np.inf), **row)
    buffer = np.zeros(6)
    with pytest.raises(InputError, match="factor and theta must not share memory"):
        kernels.factor_update(buffer[:4].reshape(2, 2), buffer[2:4], **row, trusted=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("entry", [np.nan, np.inf, 1e300])
def test_a_bad_trusted_factor_gives_bad_scores_but_no_crash(dtype, entry):
    actions = problem(40, 120)[1].astype(dtype)
    factor = np.full((40, 40), entry)
    assert 0 <= kernels.ucb_argmax(actions, factor, np.zeros(40), 1.0, trusted=True) < 120
    assert kernels.ucb_scores(actions, factor, np.zeros(40), 1.0, trusted=True).shape == (120,)
    with pytest.raises(InputError, match=r"factor must have shape \(d, d\)"):
        kernels.ucb_scores(actions, factor[:3], np.zeros(40), 1.0, trusted=True)
    with pytest.raises(InputError, match=r"actions must have shape \(any, 39\)"):
        kernels.ucb_scores(actions, factor[:39, :39], np.zeros(39), 1.0, trusted=True)
    with pytest.raises(InputError, match=r"theta must have shape \(40,\), got \(39,\)"):
        kernels.ucb_argmax(actions, factor, np.zeros(39), 1.0, trusted=True)


# ---- noise --------------------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tree_noise_of_a_node_equals_the_noise_of_a_simulation(layout, implementation):
    """Compute the noise from the normals of a simulation, scaled by the layout."""
    d, std = 6, 1.7
    key = {"replicate": 2, "silo": 5, "layout": layout}
    bias, covariance = kernels.tree_noise(9, 12, d, std, of="node", **key)
    normals = SeededNoise(9, 2).node(5, 12, d)
    off_diagonal, diagonal = layout_stds(layout, std)
    scale = np.where(np.eye(d, dtype=bool), diagonal, off_diagonal)
    assert np.array_equal(bias, std * normals[:d])
    assert np.array_equal(covariance, covariance.T)
    expected = (scale[np.tril_indices(d)] * normals[d:]).tolist()
    assert covariance[np.tril_indices(d)].tolist() == expected


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("release", [1, 2, 3, 7, 8, 9, 22, 2**20 + 5, 2**32 - 1])
def test_tree_noise_of_a_prefix_is_the_sum_of_its_nodes(release, implementation):
    bias, covariance = kernels.tree_noise(3, release, 4, 0.5)
    nodes = [kernels.tree_noise(3, k, 4, 0.5, of="node") for k in prefix_nodes(release)]
    np.testing.assert_allclose(bias, sum(b for b, _ in nodes), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(covariance, sum(c for _, c in nodes), rtol=1e-12, atol=1e-12)


def test_tree_noise_without_noise_is_zero():
    bias, covariance = kernels.tree_noise(1, 7, 3, 0.0)
    assert not bias.any() and not covariance.any()


@BOTH_IMPLEMENTATIONS
def test_normals_differ_in_every_part_of_the_key(implementation):
    base_normals = kernels.normals(1, 33)
    assert base_normals.dtype == np.float64 and base_normals.shape == (33,)
    assert np.array_equal(base_normals, kernels.normals(1, 33))
    assert np.array_equal(base_normals, rng.normals_f64(1, 0, 0, 0, 0, 33))
    for part in ("purpose", "replicate", "silo", "index"):
        assert not np.isin(kernels.normals(1, 33, **{part: 1}), base_normals).any()
    assert not np.isin(kernels.normals(2, 33), base_normals).any()
    single = kernels.normals(1, 5, dtype="float32")
    assert single.dtype == np.float32 and len(single) == 5
    assert kernels.normals(1, 0).shape == (0,)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (kernels.normals, {"seed": -1, "count": 3}, "seed must be an integer >= 0 and <= "),
        (kernels.normals, {"seed": 2**63, "count": 3}, "seed must be an integer >= 0 and <= "),
        (kernels.normals, {"seed": 1.0, "count": 3}, "seed must be an integer, got 1.0"),
        (kernels.normals, {"seed": 1, "count": -1}, "count must be an integer >= 0"),
        (kernels.normals, {"seed": 1, "count": 1, "silo": 2**32}, "silo must be an integer >= 0"),
        (kernels.normals, {"seed": 1, "count": 1, "purpose": -1}, "purpose must be an integer"),
        (kernels.normals, {"seed": 1, "count": 1, "dtype": "int8"}, 'must be one of "float32"'),
        (kernels.tree_noise, {"release": 0}, "release must be an integer >= 1 and <= 4294967295"),
        (kernels.tree_noise, {"release": 2**32}, "release must be an integer >= 1 and <= "),
        (kernels.tree_noise, {"dimension": 0}, "dimension must be an integer >= 1 and .*, got 0"),
        (kernels.tree_noise, {"noise_std": -1.0}, "noise_std must be >= 0, got -1.0"),
        (kernels.tree_noise, {"of": "nodes"}, 'of must be one of .*did you mean "node"'),
        (kernels.tree_noise, {"layout": "goe"}, 'layout must be one of "iid", "goe1", "goe2"'),
        (kernels.tree_noise, {"silo": -1}, "silo must be an integer >= 0"),
    ],
)
def test_bad_keys_are_refused(function, arguments, message):
    if function is kernels.tree_noise:
        arguments = {"seed": 1, "release": 3, "dimension": 2, "noise_std": 1.0} | arguments
    with pytest.raises(InputError, match=message):
        function(**arguments)


def test_all_public_names_have_docstrings():
    for name in kernels.__all__:
        assert getattr(kernels, name).__doc__


@BOTH_IMPLEMENTATIONS
def test_bits_are_encoded_and_shuffled(implementation):
    bits = kernels.encode_bits([0, 3, 5], 5)
    assert bits.tolist() == [[0] * 5, [1, 1, 1, 0, 0], [1] * 5]
    messages = np.repeat(bits, 200, axis=1)
    unshuffled = messages.copy()
    assert kernels.shuffle_bits(messages, 3) is messages
    assert np.array_equal(messages.sum(axis=1), unshuffled.sum(axis=1))
    assert not np.array_equal(messages[1], unshuffled[1])
    # A simulation's shuffler does the same to the first release.
    shuffled_by_simulation = unshuffled.copy()
    for label, row in enumerate(shuffled_by_simulation):
        SeededNoise(3).shuffle_bits(1, label, row)
    assert np.array_equal(messages, shuffled_by_simulation)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.encode_bits([6], 5), r"ones must lie in \[0, 5\], got 6 to 6"),
        (lambda: kernels.encode_bits([0.5], 5), "ones must be a vector of integers"),
        (lambda: kernels.shuffle_bits(np.zeros(3), 1), "bits must be a uint8 array"),
        (lambda: kernels.shuffle_bits(np.full(3, 7, np.uint8), 1), "bits must be 0 or 1, got 7"),
        (
            lambda: kernels.shuffle_bits(np.zeros((4, 4), np.uint8)[:, ::2], 1),
            "bits must be writable and C-contiguous",
        ),
    ],
)
def test_bad_bits_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
