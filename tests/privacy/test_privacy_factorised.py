"""The optimal factor: its sensitivity, its optimality, and what it refuses."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from oracle import factorised as oracle
from scipy.optimize import minimize

from fastfed._validate import InputError
from fastfed.privacy import Budget
from fastfed.privacy.releases.gaussian_release import calibrate_release
from fastfed.privacy.releases.prefix_sums import (
    GAP,
    GRID,
    MOST_RELEASES,
    SLACK,
    Factor,
    factor_for,
    optimal_factor,
    toeplitz_coefficients,
)
from fastfed.protocols.schedule import Schedule


def weights_of(rounds: tuple[int, ...], horizon: int) -> np.ndarray:
    """(Rounds that prefix k serves) / n_k^2, at least one round, adding up to 1."""
    n = np.array(rounds, dtype=float)
    served = np.maximum(np.append(n[1:], horizon) - n, 1.0)
    weights: np.ndarray = served / n**2
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
def test_the_encoder_is_what_fractions_say(name: str) -> None:
    factor = optimal_factor(*SCHEDULES[name])
    c = np.array([[float(v) for v in row] for row in oracle.encoder(factor.matrix)])
    np.testing.assert_allclose(factor.encoder, c, atol=1e-12)
    # A = B C, lower triangular, columns of norm 1 but for the grid.
    np.testing.assert_allclose(factor.matrix @ c, np.tri(len(c)), atol=1e-12)
    assert not np.triu(factor.encoder, 1).any()
    assert (factor.matrix / GRID == np.rint(factor.matrix / GRID)).all()
    assert factor.squared_sensitivity() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("returning", [1, 2, 3, 9])
@pytest.mark.parametrize("which", [*SCHEDULES, *range(len(RANDOM))])
def test_sensitivity_against_every_set_of_leaves(which: str | int, returning: int) -> None:
    """One leaf to the last digits; of several a bound, which returning users of a factor reach."""
    given = isinstance(which, str)
    factor = optimal_factor(*SCHEDULES[which]) if given else Factor(RANDOM[which])
    brute = oracle.squared_sensitivity(factor.matrix, returning)
    found = factor.squared_sensitivity(returning)
    if returning == 1 or len(factor) == 1:
        assert brute < found <= brute * (1.0 + 3.0 * SLACK)
    else:
        assert brute * (1.0 - 1e-12) <= found
        # |S| times the largest row: at most the square of single leaves.
        assert found <= min(returning, len(factor)) ** 2 * factor.squared_sensitivity() * (1 + 1e-8)
        if given:
            assert found <= 1.35 * brute


@pytest.mark.parametrize("which", [*SCHEDULES, *range(len(RANDOM))])
def test_what_is_released_is_a_mechanism_of_that_sensitivity(which: str | int) -> None:
    """From prefixes and their covariance alone, which know nothing of C."""
    given = isinstance(which, str)
    factor = optimal_factor(*SCHEDULES[which]) if given else Factor(RANDOM[which])
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
def test_no_search_finds_less_noise(name: str) -> None:
    weights = weights_of(*SCHEDULES[name])
    factor = optimal_factor(*SCHEDULES[name])
    least = oracle.least_cost(weights, starts=3, seed=1)
    mine = oracle.cost(factor.matrix, weights)
    assert mine <= least * (1.0 + 2.0 * GAP)
    assert mine >= least * (1.0 - 1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_random_weights_and_their_dual(seed: int) -> None:
    """The best multipliers of an independent search bound the cost from below, GAP away."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=4) ** 2
    weights /= weights.sum()
    mine = oracle.cost(factor_for(weights).matrix, weights)
    dual = minimize(
        lambda free: -oracle.dual_bound(weights, np.exp(free)), np.zeros(4), method="BFGS"
    )
    assert -dual.fun <= mine * (1.0 + 1e-9)
    assert mine <= -dual.fun * (1.0 + 2.0 * GAP)


@pytest.mark.parametrize(
    ("rounds", "horizon"),
    [
        (tuple(range(25, 5001, 25)), 5000),
        (Schedule.growing(10**4, 1, 1.1).rounds, 10**4),
        (Schedule.growing(10**6, 1, 1.05).rounds, 10**6),
        (Schedule.growing(10**9, 1, 1.3).rounds, 10**9),
    ],
)
def test_the_iteration_arrives(rounds: tuple[int, ...], horizon: int) -> None:
    """Also where weights differ by many orders of magnitude; and it beats Toeplitz."""
    weights = weights_of(rounds, horizon)
    factor = optimal_factor(rounds, horizon)
    k = len(factor)
    cost = float(weights @ factor.variances) * factor.squared_sensitivity()
    # At the optimum the multipliers are those of X^-1 W X^-1 on the diagonal.
    c = factor.encoder
    inverse = np.linalg.inv(c.T @ c)
    gram = np.tri(k).T @ (weights[:, None] * np.tri(k))
    multipliers = np.maximum(np.diag(inverse @ gram @ inverse), 1e-300)
    assert oracle.dual_bound(weights, multipliers) <= cost
    assert cost <= oracle.dual_bound(weights, multipliers) * (1.0 + 1e-2)
    f = toeplitz_coefficients(k)
    squares = float((f**2).sum())
    assert cost < squares * float(weights @ np.cumsum(f**2))


def test_the_noise_of_a_budget() -> None:
    factor = optimal_factor(tuple(range(1, 9)), 8)
    one = calibrate_release("factorised", Budget(1.0, 1e-3), 8)
    assert one.factor == factor
    many = calibrate_release("factorised", Budget(1.0, 1e-3), 8, returning=3)
    ratio = factor.squared_sensitivity(3) / factor.squared_sensitivity()
    assert many.noise_std == pytest.approx(one.noise_std * math.sqrt(ratio), rel=1e-12)
    for made in (one, many):
        assert made.exact() == pytest.approx(1.0, rel=1e-9) and made.exact() <= 1.0 + 1e-9
        assert made.conditions()[-1].holds or made.exact() > 1.0
    np.testing.assert_array_equal(one.variance_factors, [0.0, *factor.variances])


def test_factors_compare_by_content() -> None:
    one, other = Factor(np.tri(3)), Factor(np.tri(3))
    assert one == other and hash(one) == hash(other) and repr(one) == "Factor(3 releases)"
    assert one != Factor(np.eye(3)) and one != "a factor"
    with pytest.raises(ValueError, match="read-only"):
        one.matrix[0, 0] = 2.0


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.ones((2, 3)), r"factor must be a square matrix, got shape \(2, 3\)"),
        (np.ones((2, 2)), "lower triangular with a positive diagonal"),
        (-np.eye(2), "lower triangular with a positive diagonal"),
        (np.diag([1.0, 0.0]), "lower triangular with a positive diagonal"),
        (np.full((2, 2), np.nan), "factor"),
    ],
)
def test_bad_factors_are_refused(matrix: np.ndarray, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Factor(matrix)


def test_a_factor_whose_sensitivity_is_lost_to_rounding_is_refused() -> None:
    """Columns of its encoder lose more to cancellation than the account pays for."""
    c = np.tril(np.random.default_rng(0).normal(size=(60, 60)), -1)
    c[np.diag_indices(60)] = 0.05
    b = np.linalg.solve(c.T, np.tri(60).T).T
    assert np.abs(np.linalg.solve(b, np.tri(60)) - c).max() > SLACK
    with pytest.raises(InputError, match="too ill-conditioned"):
        Factor(np.tril(b)).squared_sensitivity()


@pytest.mark.parametrize(
    ("rounds", "says"),
    [((3, 3), "must increase"), ((0, 2), "must increase"), ((2, 11), "at most"),
     (tuple(range(1, MOST_RELEASES + 2)), f"at most {MOST_RELEASES} releases")],
)  # fmt: skip
def test_bad_rounds_are_refused(rounds: tuple[int, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        optimal_factor(rounds, 10)
