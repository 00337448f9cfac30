"""Check the optimal factor: its sensitivity, its optimality, and refused arguments."""

from __future__ import annotations

import math
from itertools import combinations

import mpmath
import numpy as np
import pytest
from oracle import factorised as oracle
from scipy.optimize import minimize
from threadpoolctl import threadpool_info, threadpool_limits

from fastfed import _cache
from fastfed._validate import InputError
from fastfed.privacy import Budget
from fastfed.privacy.releases import prefix_sums
from fastfed.privacy.releases.gaussian_release import calibrate_release
from fastfed.privacy.releases.optimal_gram import GAP, inverse_root_poles, optimal_gram
from fastfed.privacy.releases.prefix_sums import (
    GRID,
    MAX_RELEASES,
    SLACK,
    Factor,
    factor_for,
    optimal_factor,
    toeplitz_coefficients,
)
from fastfed.protocols.schedule import Schedule


def weights_of(rounds: tuple[int, ...], horizon: int) -> np.ndarray:
    """Return (number of rounds between prefix k and the next) / n_k^2, normalised.

    Every prefix counts for at least one round.
    """
    rounds_array = np.array(rounds, dtype=float)
    rounds_per_prefix = np.maximum(np.append(rounds_array[1:], horizon) - rounds_array, 1.0)
    weights: np.ndarray = rounds_per_prefix / rounds_array**2
    return weights / weights.sum()


SCHEDULES = {
    "one": ((5,), 9),
    "one at the horizon": ((9,), 9),
    "equal": ((3, 6, 9, 12, 15), 16),
    "growing": (Schedule.growing(100, 1, 2.0).rounds, 100),
    "far apart": ((1, 10**6, 10**9), 10**9),
    "late": ((90, 91, 95), 1000),
}
RANDOM = [
    np.tril(np.random.default_rng(seed).normal(size=(k, k)), -1)
    + np.diag(np.random.default_rng(seed + 50).uniform(0.3, 2.0, size=k))
    for seed, k in enumerate((1, 2, 3, 4, 5, 6))
]


@pytest.mark.parametrize("name", SCHEDULES)
def test_encoder_equals_exact_fractions(name: str) -> None:
    factor = optimal_factor(*SCHEDULES[name])
    expected = np.array([[float(value) for value in row] for row in oracle.encoder(factor.matrix)])
    np.testing.assert_allclose(factor.encoder, expected, atol=1e-12)
    # A = B C is lower triangular, and its columns have norm 1 up to the grid.
    np.testing.assert_allclose(factor.matrix @ expected, np.tri(len(expected)), atol=1e-12)
    assert not np.triu(factor.encoder, 1).any()
    assert (factor.matrix / GRID == np.rint(factor.matrix / GRID)).all()
    assert factor.squared_sensitivity() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("returning", [1, 2, 3, 9])
@pytest.mark.parametrize("which", [*SCHEDULES, *range(len(RANDOM))])
def test_sensitivity_bounds_every_set_of_leaves(which: str | int, returning: int) -> None:
    """The sensitivity is exact for one leaf, and an upper bound for several.

    Optimal factors nearly attain the bound.
    """
    is_schedule = isinstance(which, str)
    factor = optimal_factor(*SCHEDULES[which]) if is_schedule else Factor(RANDOM[which])
    exact = oracle.squared_sensitivity(factor.matrix, returning)
    squared_sensitivity = factor.squared_sensitivity(returning)
    if returning == 1 or len(factor) == 1:
        assert exact < squared_sensitivity <= exact * (1.0 + 3.0 * SLACK)
    else:
        assert exact * (1.0 - 1e-12) <= squared_sensitivity
        # |S| times the largest row is at most the square of |S| times that of a single leaf.
        assert squared_sensitivity <= min(
            returning, len(factor)
        ) ** 2 * factor.squared_sensitivity() * (1 + 1e-8)
        if is_schedule:
            assert squared_sensitivity <= 1.35 * exact


@pytest.mark.parametrize("which", [*SCHEDULES, *range(len(RANDOM))])
def test_released_prefixes_have_the_sensitivity(which: str | int) -> None:
    """Calculate the sensitivity from prefixes and their covariance only, without C."""
    is_schedule = isinstance(which, str)
    factor = optimal_factor(*SCHEDULES[which]) if is_schedule else Factor(RANDOM[which])
    k = len(factor)
    for count in (1, 2, 3):
        squares = [
            oracle.released_squares(factor.matrix, leaves)
            for leaves in combinations(range(k), min(count, k))
        ]
        assert max(squares) <= factor.squared_sensitivity(count) * (1.0 + 1e-9)
        if count == 1:
            assert max(squares) == pytest.approx(factor.squared_sensitivity(), rel=1e-8)


@pytest.mark.parametrize("name", SCHEDULES)
def test_searches_find_no_factor_with_less_noise(name: str) -> None:
    weights = weights_of(*SCHEDULES[name])
    factor = optimal_factor(*SCHEDULES[name])
    smallest_found = oracle.least_cost(weights, starts=3, seed=1)
    cost = oracle.cost(factor.matrix, weights)
    assert cost <= smallest_found * (1.0 + 2.0 * GAP)
    assert cost >= smallest_found * (1.0 - 1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_cost_for_random_weights_is_near_its_dual_bound(seed: int) -> None:
    """Check that the best multipliers of an independent search bound the cost from below within
    GAP."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=4) ** 2
    weights /= weights.sum()
    cost = oracle.cost(factor_for(weights).matrix, weights)
    dual = minimize(
        lambda log_multipliers: -oracle.dual_bound(weights, np.exp(log_multipliers)),
        np.zeros(4),
        method="BFGS",
    )
    assert -dual.fun <= cost * (1.0 + 1e-9)
    assert cost <= -dual.fun * (1.0 + 2.0 * GAP)


@pytest.mark.parametrize(
    ("rounds", "horizon"),
    [
        (tuple(range(25, 5001, 25)), 5000),
        (Schedule.growing(10**4, 1, 1.1).rounds, 10**4),
        (Schedule.growing(10**6, 1, 1.05).rounds, 10**6),
        (Schedule.growing(10**9, 1, 1.3).rounds, 10**9),
    ],
)
def test_iteration_converges_for_many_releases(rounds: tuple[int, ...], horizon: int) -> None:
    """Use also weights that differ by many orders of magnitude.

    The cost is also below that of Toeplitz noise.
    """
    weights = weights_of(rounds, horizon)
    factor = optimal_factor(rounds, horizon)
    k = len(factor)
    cost = float(weights @ factor.variances) * factor.squared_sensitivity()
    # At the optimum the multipliers are the diagonal of X^-1 W X^-1.
    encoder = factor.encoder
    inverse = np.linalg.inv(encoder.T @ encoder)
    gram = np.tri(k).T @ (weights[:, None] * np.tri(k))
    multipliers = np.maximum(np.diag(inverse @ gram @ inverse), 1e-300)
    assert oracle.dual_bound(weights, multipliers) <= cost
    assert cost <= oracle.dual_bound(weights, multipliers) * (1.0 + 1e-2)
    coefficients = toeplitz_coefficients(k)
    squares = float((coefficients**2).sum())
    assert cost < squares * float(weights @ np.cumsum(coefficients**2))


def test_noise_grows_with_the_sensitivity_of_returning_users() -> None:
    factor = optimal_factor(tuple(range(1, 9)), 8)
    of_one_batch = calibrate_release("factorised", Budget(1.0, 1e-3), 8)
    assert of_one_batch.factor == factor
    of_three_batches = calibrate_release("factorised", Budget(1.0, 1e-3), 8, returning=3)
    ratio = factor.squared_sensitivity(3) / factor.squared_sensitivity()
    assert of_three_batches.noise_std == pytest.approx(
        of_one_batch.noise_std * math.sqrt(ratio), rel=1e-12
    )
    for release in (of_one_batch, of_three_batches):
        assert release.exact() == pytest.approx(1.0, rel=1e-9) and release.exact() <= 1.0 + 1e-9
        assert release.conditions()[-1].holds or release.exact() > 1.0
    np.testing.assert_array_equal(of_one_batch.variance_factors, [0.0, *factor.variances])


def test_factors_compare_by_content() -> None:
    first, second = Factor(np.tri(3)), Factor(np.tri(3))
    assert first == second and hash(first) == hash(second) and repr(first) == "Factor(3 releases)"
    assert first != Factor(np.eye(3)) and first != "a factor"
    with pytest.raises(ValueError, match="read-only"):
        first.matrix[0, 0] = 2.0


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), r"factor must be a square matrix, got shape \(2, 3\)"),
        (np.ones((2, 2)), "lower triangular with a positive diagonal"),
        (-np.eye(2), "lower triangular with a positive diagonal"),
        (np.diag([1.0, 0.0]), "lower triangular with a positive diagonal"),
        (np.full((2, 2), np.nan), "factor"),
    ],
)
def test_bad_factors_are_refused(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Factor(matrix)


def test_ill_conditioned_factors_are_refused() -> None:
    """Check a factor whose encoder loses more to cancellation than the account covers."""
    encoder = np.tril(np.random.default_rng(0).normal(size=(60, 60)), -1)
    encoder[np.diag_indices(60)] = 0.05
    decoder = np.linalg.solve(encoder.T, np.tri(60).T).T
    assert np.abs(np.linalg.solve(decoder, np.tri(60)) - encoder).max() > SLACK
    with pytest.raises(InputError, match="too ill-conditioned"):
        Factor(np.tril(decoder)).squared_sensitivity()


@pytest.mark.parametrize(
    ("rounds", "message"),
    [((3, 3), "must increase"), ((0, 2), "must increase"), ((2, 11), "at most"),
     (tuple(range(1, MAX_RELEASES + 2)), f"at most {MAX_RELEASES} releases")],
)  # fmt: skip
def test_bad_rounds_are_refused(rounds: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimal_factor(rounds, 10)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (1e-3, 1e8), (1e-30, 1e30)])
def test_poles_give_the_inverse_root(low: float, high: float) -> None:
    poles, shares = inverse_root_poles(low, high)
    x = np.geomspace(low, high, 500)
    roots = (shares / (x[:, None] + poles)).sum(axis=1)
    np.testing.assert_allclose(roots, 1.0 / np.sqrt(x), rtol=3e-15)


@pytest.mark.parametrize("releases", [1, 2, 30, 150])
def test_gram_matrix_equals_the_one_of_singular_values(releases: int) -> None:
    """Repeat the iteration with a singular value decomposition in each step."""
    ends = np.arange(1.0, releases + 1.0) ** 2
    weights = np.append(np.diff(ends), 5.0) / (ends**2 + 40.0)
    gram = optimal_gram(weights)
    lower_ones = np.tri(releases)
    root = lower_ones.T * np.sqrt(weights / weights.sum())
    v = (root**2).sum(axis=1)
    for _ in range(2000):
        vectors, values, _ = np.linalg.svd(np.sqrt(v)[:, None] * root)
        diagonal = (vectors**2 @ values) / v
        lower = 2.0 * values.sum() - v.sum()
        if diagonal.max() * values.sum() - lower <= GAP * lower:
            break
        v *= diagonal
    expected = (vectors * values) @ vectors.T / np.sqrt(v[:, None] * v)
    np.testing.assert_allclose(gram, np.tril(expected), atol=1e-12)


@pytest.mark.parametrize("ratio", [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_weights_that_differ_greatly_keep_their_precision(ratio: float) -> None:
    """Repeat the iteration for two leaves with 60 digits: the root of a 2 x 2 matrix is known."""
    gram = optimal_gram(np.array([1.0, ratio]))
    with mpmath.workdps(60):
        second = mpmath.mpf(ratio) / (1 + mpmath.mpf(ratio))
        v = [mpmath.mpf(1), second]
        for _ in range(2000):
            off_diagonal = mpmath.sqrt(v[0] * v[1]) * second
            det = mpmath.sqrt(v[0] * v[1] * second * (1 - second))
            trace = mpmath.sqrt(v[0] + v[1] * second + 2 * det)
            diagonal = [(v[0] + det) / trace / v[0], (v[1] * second + det) / trace / v[1]]
            lower = 2 * trace - sum(v)
            if max(diagonal) * trace - lower <= GAP * lower:
                break
            v = [v[i] * diagonal[i] for i in range(2)]
        corner = off_diagonal / trace / mpmath.sqrt(v[0] * v[1])
    expected = [float(diagonal[0]), float(corner), float(diagonal[1])]
    np.testing.assert_allclose(gram[np.tril_indices(2)], expected, rtol=1e-14)


def test_factors_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the bits with several BLAS threads, and that one is used where they are computed."""
    ends = tuple(range(1, 301))
    threads: set[int] = set()
    compute = prefix_sums._compute_factor

    def noted(weights: np.ndarray) -> Factor:
        """Record the numbers of threads, then call the original function."""
        threads.update(blas_threads())
        return compute(weights)

    monkeypatch.setattr(prefix_sums, "_compute_factor", noted)
    bits = []
    for limit in (1, 2):
        prefix_sums._cached_optimal_factor.cache_clear()
        _cache.forget()
        with threadpool_limits(limit, "blas"):
            factor = optimal_factor(ends, 300)
            bits.append((factor.matrix.tobytes(), factor.encoder.tobytes()))
            bits[-1] += (Factor(factor.matrix).squared_sensitivity(3).hex(),)
            assert blas_threads() <= {limit}
    assert bits[0] == bits[1]
    assert threads == {1}


def blas_threads() -> set[int]:
    """Return the numbers of threads of all loaded BLAS libraries."""
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }
