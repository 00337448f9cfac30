"""Check kernels over many rows, sets and models: the bits of single calls, and refused
arguments."""

from __future__ import annotations

import numpy as np
import pytest
import twins

from fastfed import kernels
from fastfed._kernels import checked
from fastfed._validate import InputError

BOTH_IMPLEMENTATIONS = pytest.mark.parametrize(
    "implementation", ["compiled", "numpy"], indirect=True
)
SIZES = pytest.mark.parametrize(("d", "n"), [(1, 3), (2, 70), (7, 9), (33, 130), (57, 5)])
TRUSTED = pytest.mark.parametrize("trusted", [False, True])


@pytest.fixture
def implementation(request, monkeypatch):
    """Use the compiled functions, or replace them by their NumPy twins."""
    if request.param == "numpy":
        twins.stand_in(monkeypatch)
    return request.param


def make_rows(d, n):
    """Return rows (n, d), rewards (n) and V = I + X'X of these rows."""
    rng = np.random.default_rng(d * 1000 + n)
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    return x, rng.uniform(size=n), np.eye(d) + x.T @ x


def check_equal(actual, expected):
    """Check that two arrays have the same type, shape and bits."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


# ---- Rows ---------------------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@TRUSTED
@SIZES
def test_many_rows_have_the_bits_of_single_calls(d, n, trusted, implementation):
    x, y, v = make_rows(d, n)
    inverse = np.linalg.inv(v)
    inverse = (inverse + inverse.T) / 2
    factor = kernels.inverse_factor(v)
    asymmetric = v + np.arange(d * d).reshape(d, d)  # a Gram matrix need not be symmetric
    for start in (v, asymmetric):
        from_many, from_single = (start.copy(), np.zeros(d)), (start.copy(), np.zeros(d))
        assert kernels.rank_one_update(*from_many, x, y, trusted=trusted)[0] is from_many[0]
        for row, reward in zip(x, y, strict=True):
            kernels.rank_one_update(*from_single, row, reward)
        check_equal(from_many[0], from_single[0])
        check_equal(from_many[1], from_single[1])
    from_many, from_single = inverse.copy(), inverse.copy()
    kernels.sherman_morrison(from_many, x, trusted=trusted)
    for row in x:
        kernels.sherman_morrison(from_single, row)
    check_equal(from_many, from_single)
    from_many, from_single = (factor.copy(), np.zeros(d)), (factor.copy(), np.zeros(d))
    kernels.factor_update(*from_many, x, y, trusted=trusted)
    for row, reward in zip(x, y, strict=True):
        kernels.factor_update(*from_single, row, reward)
    check_equal(from_many[0], from_single[0])
    check_equal(from_many[1], from_single[1])
    solutions = kernels.solve(factor, x, trusted=trusted)
    check_equal(solutions, [kernels.solve(factor, row) for row in x])
    np.testing.assert_allclose(solutions, np.linalg.solve(v, x.T).T, rtol=1e-8, atol=1e-10)


@BOTH_IMPLEMENTATIONS
@TRUSTED
def test_factors_of_a_stack_equal_those_of_each_matrix(trusted, implementation):
    stack = np.stack([make_rows(6, 9)[2] * multiple for multiple in (1, 2, 7)])
    factors = kernels.inverse_factor(stack, trusted=trusted)
    check_equal(factors, [kernels.inverse_factor(v) for v in stack])
    assert kernels.inverse_factor(stack[:0]).shape == (0, 6, 6)
    stack[2, 0, 1] += 1.0
    if trusted:
        check_equal(
            kernels.inverse_factor(stack, trusted=True), factors
        )  # the lower triangle is used
    else:
        with pytest.raises(InputError, match="V must be symmetric"):
            kernels.inverse_factor(stack)
    stack[2] = -1.0
    with pytest.raises(InputError, match="V must be positive definite"):
        kernels.inverse_factor(stack, trusted=trusted)
    with pytest.raises(InputError, match=r"V must have shape \(m, d, d\)"):
        kernels.inverse_factor(np.ones((2, 3, 4)), trusted=trusted)


@BOTH_IMPLEMENTATIONS
def test_no_rows_change_nothing(implementation):
    gram, bias, none = np.eye(3), np.ones(3), np.empty((0, 3))
    kernels.rank_one_update(gram, bias, none, np.empty(0))
    kernels.sherman_morrison(gram, none)
    kernels.factor_update(gram, bias, none, np.empty(0))
    assert np.array_equal(gram, np.eye(3)) and np.array_equal(bias, np.ones(3))
    assert kernels.solve(gram, none).shape == (0, 3)


@BOTH_IMPLEMENTATIONS
def test_rows_may_have_other_types_and_be_part_of_the_target(implementation):
    gram, bias = np.eye(3), np.zeros(3)
    kernels.rank_one_update(gram, bias, [[1, 2, 0], [0, 1, 0]], [1, 2])
    assert gram.tolist() == [[2, 2, 0], [2, 6, 0], [0, 0, 1]] and bias.tolist() == [1, 4, 0]
    expected = gram + gram.T @ gram, bias + gram.T @ bias
    kernels.rank_one_update(gram, bias, gram, bias)
    np.testing.assert_allclose(gram, expected[0])
    np.testing.assert_allclose(bias, expected[1])
    factor, theta = np.eye(3), np.zeros(3)
    of_copies = kernels.factor_update(np.eye(3), np.zeros(3), np.eye(3), np.ones(3))
    kernels.factor_update(factor, theta, factor, np.ones(3, np.float32))
    check_equal(factor, of_copies[0])
    check_equal(theta, of_copies[1])


@TRUSTED
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((2, 3)), [1.0, 1.0], r"x must have shape \(any, 2\), got \(2, 3\)"),
        (np.ones((2, 2)), [1.0], r"y must have shape \(2,\), got \(1,\)"),
        (np.ones((2, 2)), 1.0, r"y must have shape \(2,\), got \(\)"),
        (np.ones(2), [1.0], r"y must be a number, got \[1.0\]"),
        (np.ones((1, 2, 2)), [1.0], r"x must have shape \(2,\), got \(1, 2, 2\)"),
        ([[1.0, 1.0], [1.0, np.nan]], [1.0, 1.0], r"x must be finite, got nan at index \(1, 1\)"),
        (np.array([[1, 1], [np.inf, 1]]), np.ones(2), r"x must be finite, got inf at index"),
        (np.ones((2, 2)), np.array([1.0, np.nan]), r"y must be finite, got nan at index \(1,\)"),
    ],
)
def test_refused_rows_change_nothing(x, y, message, trusted):
    for function, vector in (
        (kernels.rank_one_update, np.zeros(2)),
        (kernels.factor_update, np.zeros(2)),
    ):
        matrix = np.eye(2)
        with pytest.raises(InputError, match=f"^{message}"):
            function(matrix, vector, x, y, trusted=trusted)
        assert np.array_equal(matrix, np.eye(2)) and not vector.any()
    if message.startswith("x"):
        inverse = np.eye(2)
        with pytest.raises(InputError, match=f"^{message}"):
            kernels.sherman_morrison(inverse, x, trusted=trusted)
        assert np.array_equal(inverse, np.eye(2))


@TRUSTED
def test_all_rows_are_checked_before_the_first_is_added(trusted):
    factor, theta = np.eye(3), np.zeros(3)
    x = np.ones((20, 3))
    x[-1] = 1e80
    with pytest.raises(InputError, match=r"x must have a width .* of at most 1e75, got 1.7320"):
        kernels.factor_update(factor, theta, x, np.ones(20), trusted=trusted)
    x[-1] = 1e60  # the norms do not decide, the widths do
    kernels.factor_update(np.eye(3), np.zeros(3), x, np.ones(20), trusted=trusted)
    kernels.factor_update(np.eye(3) * 1e-80, np.zeros(3), x * 1e90, np.ones(20), trusted=trusted)
    assert np.array_equal(factor, np.eye(3)) and not theta.any()
    if not trusted:
        inverse = np.diag([1.0, 1.0, -1.0])
        with pytest.raises(InputError, match=r"inverse must be positive definite .* = -1.0"):
            kernels.sherman_morrison(inverse, np.eye(3))
        assert np.array_equal(inverse, np.diag([1.0, 1.0, -1.0]))


def test_trusted_arguments_are_not_checked():
    asymmetric = np.array([[1.0, 0.5], [0.0, 1.0]])
    kernels.sherman_morrison(asymmetric, [1.0, 1.0], trusted=True)
    kernels.rank_one_update(np.full((2, 2), np.nan), np.zeros(2), [1.0, 1.0], 1.0, trusted=True)
    kernels.solve(np.ones((2, 2)), [1.0, 1.0], trusted=True)
    kernels.inverse_factor(np.array([[1.0, 5.0], [0.0, 1.0]]), trusted=True)
    with pytest.raises(InputError, match=r"u must be finite, got inf at index \(1,\)"):
        kernels.solve(np.eye(2), [1.0, np.inf], trusted=True)
    with pytest.raises(InputError, match="factor must be lower triangular"):
        kernels.solve(np.ones((2, 2)), [1.0, 1.0])
    with pytest.raises(InputError, match=r"u must have shape \(2,\), got \(3,\)"):
        kernels.solve(np.eye(2), np.ones(3))


# ---- Sets of actions ----------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@TRUSTED
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_many_sets_equal_those_of_each_set(dtype, trusted, implementation):
    rng, d, n, k = np.random.default_rng(3), 9, 5, 40
    sets = rng.normal(size=(n, k, d)).astype(dtype)
    factors = np.stack([kernels.inverse_factor(make_rows(d, 4 + i)[2]) for i in range(n)])
    thetas = rng.normal(size=(n, d))
    keywords = {"second_radius": 0.3, "trusted": trusted}
    expected = [kernels.ucb_scores(x, factors[0], thetas[0], 0.7, **keywords) for x in sets]
    paired = [
        kernels.ucb_scores(x, w, t, 0.7, **keywords)
        for x, w, t in zip(sets, factors, thetas, strict=True)
    ]
    transposed = np.ascontiguousarray(sets.transpose(2, 0, 1)).transpose(1, 2, 0)
    strided = np.repeat(sets, 2, axis=2)[:, :, ::2]
    for x in (sets, transposed, strided, np.ascontiguousarray(sets[::-1])[::-1]):
        scores = kernels.ucb_scores(x, factors[0], thetas[0], 0.7, **keywords)
        scores_of_models = kernels.ucb_scores(x, factors, thetas, 0.7, **keywords)
        if implementation == "compiled":
            check_equal(scores, expected)
            check_equal(scores_of_models, paired)
        else:  # NumPy's sums depend on strides
            np.testing.assert_allclose(scores, expected, rtol=1e-12)
            np.testing.assert_allclose(scores_of_models, paired, rtol=1e-12)
        index = kernels.ucb_argmax(x, factors[0], thetas[0], 0.7, **keywords)
        assert index.dtype == np.int64
        assert np.array_equal(index, np.argmax(expected, axis=1))
        index = kernels.ucb_argmax(x, factors, thetas, 0.7, **keywords)
        assert np.array_equal(index, np.argmax(paired, axis=1))
    # One set of the stack, and one model of the stack.
    assert kernels.ucb_scores(sets[:1], factors[0], thetas[0], 0.7).shape == (1, k)
    assert kernels.ucb_scores(sets[:1], factors[:1], thetas[:1], 0.7).shape == (1, k)
    assert kernels.ucb_argmax(sets[:1], factors[0], thetas[0], 0.7).shape == (1,)


@TRUSTED
def test_bad_sets_are_refused(trusted):
    sets, factors, thetas = np.ones((3, 4, 2)), np.stack([np.eye(2)] * 3), np.zeros((3, 2))
    for function in (kernels.ucb_scores, kernels.ucb_argmax):
        for arguments, message in (
            ((sets[:2], factors, thetas), r"actions of 3 models must be one set.*got shape \(2, 4"),
            ((sets, factors, thetas[:2]), r"theta must have shape \(3, 2\), got \(2, 2\)"),
            ((sets, factors[0], thetas), r"theta must have shape \(2,\), got \(3, 2\)"),
            ((sets[:0], factors[0], thetas[0]), "actions must hold at least one set"),
            ((sets[:, :0], factors[0], thetas[0]), "actions must hold at least one action"),
            ((sets[..., :1], factors[0], thetas[0]), r"actions must have shape \(any, any, 2\)"),
            ((sets * np.nan, factors[0], thetas[0]), r"actions must be finite, got nan at index"),
        ):
            with pytest.raises(InputError, match=message):
                function(*arguments, 1.0, trusted=trusted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_that_are_not_finite_are_found_anywhere(dtype):
    factor, theta = np.eye(5), np.zeros(5)
    for position in ((0, 0, 0), (1, 6, 4), (2, 3, 1)):
        for value in (np.nan, np.inf, -np.inf):
            sets = np.ones((3, 7, 5), dtype)
            sets[position] = value
            strided = np.repeat(sets, 2, axis=2)[:, :, ::2]
            for x in (sets, strided):
                with pytest.raises(InputError, match="actions must be finite"):
                    kernels.ucb_argmax(x, factor, theta, 1.0, trusted=True)


@pytest.mark.parametrize("d", [1, 3, 8, 9, 24, 31])
def test_every_entry_of_a_matrix_is_checked(d):
    """Check that the C code refuses what the NumPy code refuses, entry by entry."""
    x, u = np.ones(d) / d, np.zeros(d)
    symmetric = np.eye(d) + 0.1
    for i in range(d):
        for j in range(d):
            for value in (np.nan, np.inf):
                changed_matrix = symmetric.copy()
                changed_matrix[i, j] = value
                assert checked.sherman(changed_matrix, x, False) is None
                assert checked.rank_one(changed_matrix, u, x, 1.0, False) is None
                assert checked.factors(changed_matrix, False) is None
                changed_matrix = np.eye(d)
                changed_matrix[i, j] = value
                assert checked.update(changed_matrix, u, x, 1.0, False) is None
            changed_matrix = np.eye(d)
            changed_matrix[i, j] -= 1.0 if i == j else 1e-300
            if i <= j:
                assert checked.update(changed_matrix, u, x, 1.0, False) is None
            else:
                assert checked.update(changed_matrix, u, x, 1.0, False)
            changed_matrix = symmetric.copy()
            changed_matrix[i, j] += 1e-6
            assert (checked.sherman(changed_matrix, x, False) is None) == (i != j)
            changed_matrix = symmetric.copy()
            changed_matrix[i, j] *= 1.0 + 1e-9
            assert checked.sherman(changed_matrix, x, False)


# ---- Releases -----------------------------------------------------------------------------------


@BOTH_IMPLEMENTATIONS
@pytest.mark.parametrize("of", ["node", "prefix"])
def test_noise_of_many_releases_equals_that_of_each_release(of, implementation):
    ks = [1, 2, 3, 12, 2**32 - 1, 7]
    bias, covariance = kernels.tree_noise(9, ks, 4, 0.5, of=of, silo=2)
    assert bias.shape == (6, 4) and covariance.shape == (6, 4, 4)
    for k, u, v in zip(ks, bias, covariance, strict=True):
        single = kernels.tree_noise(9, k, 4, 0.5, of=of, silo=2)
        check_equal(u, single[0])
        check_equal(v, single[1])
    assert kernels.tree_noise(9, [], 4, 0.5)[0].shape == (0, 4)
    for bad_releases, message in (
        ([1, 0], r"release must lie in \[1, 4294967295\], got 0 to 1"),
        ([1.0], "release must hold integers"),
    ):
        with pytest.raises(InputError, match=message):
            kernels.tree_noise(9, bad_releases, 4, 0.5)


# ---- Arguments that need no conversion ----------------------------------------------------------


def test_arguments_that_need_no_conversion_use_the_checks_in_c():
    """If arrays were converted, every call would be correct but slow."""
    x, u, w, f = np.ones(3), np.zeros(3), np.eye(3), np.ones((2, 3), np.float32)
    for y in (1.0, 1, np.float64(1)):
        assert checked.rank_one(np.eye(3), np.zeros(3), x, y, False)
        assert checked.update(np.eye(3), np.zeros(3), x, y, False)
    assert checked.sherman(np.eye(3), x, False)
    assert checked.scores(f, w, u, 1.0, 0.0, False) is not None
    assert checked.argmax(f.T.copy().T, w, u, 1, 0.0, False) == 0
    assert checked.factors(w, False) is not None and checked.solves(w, x, False) is not None
    assert checked.gaussians(1, 3, 0, 0, 0, 0, False) is not None


@pytest.mark.parametrize(
    "y", [True, "1", None, 2**70, np.nan, np.inf, np.float32(np.nan), [1.0], 1j]
)
def test_checks_in_c_refuse_arguments_that_need_conversion(y):
    gram, bias = np.eye(3), np.zeros(3)
    assert checked.rank_one(gram, bias, np.ones(3), y, False) is None
    assert np.array_equal(gram, np.eye(3)) and not bias.any()


def test_rewards_may_be_numbers_of_other_types():
    for y in (np.float32(0.5), np.int64(2), np.float16(0.5)):
        _, bias = kernels.rank_one_update(np.eye(2), np.zeros(2), [1.0, 0.0], y)
        assert bias[0] == y


@pytest.mark.parametrize("u", [[1.0, 1.0], [[0.0, 0.0], [1.0, 1.0]]])
def test_solve_refuses_a_solution_that_overflows(u):
    with pytest.raises(InputError, match="the solution overflows"):
        kernels.solve(np.eye(2) * 1e200, np.array(u))
