"""The oracle of Huang et al. 2023 against itself: definitions, closed forms, a second player."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle.huang_2023 import (
    Mechanism,
    call_beta,
    closed_form_epsilon,
    composition_delta,
    composition_epsilon,
    concentration_c1,
    concentration_c1_mended,
    concentration_radius,
    corollary_5_5,
    corollary_b5,
    corollary_e2,
    diversity,
    error_4_5,
    error_5_3,
    estimation_c2,
    greedy_shortfall,
    gumbel_from_exponential,
    gumbel_from_uniform,
    hadamard,
    hard_constants,
    hard_features,
    hard_parameter,
    initial_phases,
    initial_phases_mended,
    laplace_from_exponentials,
    laplace_from_uniform,
    laplace_scale,
    last_round,
    least_squares,
    lemma_c2_condition,
    linucb_alpha,
    linucb_alpha_mended,
    margin_constant,
    margins,
    midpoints,
    number_of_phases,
    padded,
    phase_length,
    phase_of,
    printed_budget,
    printed_composition,
    private_range,
    proposition_c3,
    proposition_d1,
    proposition_d1_features,
    proposition_d1_mended,
    proposition_d1_parameters,
    range_cost,
    range_feasible,
    range_probabilities,
    releasing_phases,
    replay,
    rotate,
    rotate_back,
    rotated_radius,
    select_by_exponential,
    select_by_gumbel,
    select_by_uniform,
    shares,
    theorem_3_3,
    theorem_4_2,
    theorem_4_5,
    theorem_5_3,
    theorem_c6_explicit,
    theorem_c6_mended,
    tight_epsilon,
    truncated_normal,
    winsorized_mean_1d,
    winsorized_mean_high_d,
)


def keyed(*key: int) -> np.random.Generator:
    return np.random.default_rng([2023, *key])


def random_signs(size: int, *key: int) -> np.ndarray:
    return keyed(*key).choice([-1.0, 1.0], size)


# Draws.


def test_laplace_is_the_inverse_of_its_law() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.2, 4.0])
    law = np.where(x < 0, np.exp(x) / 2, 1 - np.exp(-x) / 2)
    assert laplace_from_uniform(law) == pytest.approx(x, abs=1e-12)


def test_gumbel_is_the_inverse_of_its_law() -> None:
    x = np.array([-1.5, 0.0, 3.0])
    u = np.exp(-np.exp(-x))
    assert gumbel_from_uniform(u) == pytest.approx(x, abs=1e-12)
    assert gumbel_from_exponential(-np.log(u)) == pytest.approx(x, abs=1e-12)


# Rotation.


def test_padding() -> None:
    assert [padded(d) for d in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]
    with pytest.raises(ValueError, match="d must be"):
        padded(0)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_hadamard_is_the_kronecker_power(size: int) -> None:
    power = np.ones((1, 1))
    while len(power) < size:
        power = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), power)
    assert np.array_equal(hadamard(size), power)
    assert np.array_equal(hadamard(size) @ hadamard(size).T, size * np.eye(size))


def test_rotation_by_hand_and_the_order_of_d() -> None:
    """x = (3, 1), D = diag(1, -1): H D x = (2, 4); D H' / sqrt d undoes it, H' D / sqrt d not."""
    y = rotate(np.array([[3.0, 1.0]]), np.array([1.0, -1.0]))[0]
    assert y == pytest.approx(np.array([2.0, 4.0]) / sqrt(2))
    assert rotate_back(y, np.array([1.0, -1.0]), 2) == pytest.approx([3.0, 1.0])
    wrong = hadamard(2).T @ (np.array([1.0, -1.0]) * y) / sqrt(2)
    assert wrong == pytest.approx([-1.0, 3.0])


# PrivateRange.


def test_private_range_vector() -> None:
    """-1, -.3, .2, .9, .9 in four bins of width 1/2, eps = 2."""
    x = np.array([-1.0, -0.3, 0.2, 0.9, 0.9])
    assert midpoints(0.25, 1.0) == pytest.approx([-0.75, -0.25, 0.25, 0.75])
    assert range_cost(x, 0.25, 1.0).tolist() == [4, 3, 2, 3]
    w = np.exp([-4.0, -3.0, -2.0, -3.0])
    expected = [0.07232948812851327, 0.19661193324148185, 0.5344466453885229, 0.19661193324148185]
    assert w / w.sum() == pytest.approx(expected)
    assert range_probabilities(x, 2.0, 0.25, 1.0) == pytest.approx(expected, rel=1e-12)


def test_private_range_is_private() -> None:
    """All neighbours of four clients and four bins: |log ratio| <= eps, its spread <= eps too."""
    epsilon, S = 1.0, midpoints(0.25, 1.0)
    worst, widest = 0.0, 0.0
    for others in product(S, repeat=3):
        laws = [range_probabilities(np.array([*others, s]), epsilon, 0.25, 1.0) for s in S]
        for p, q in product(laws, laws):
            ratio = np.log(p / q)
            worst = max(worst, float(np.max(np.abs(ratio))))
            widest = max(widest, float(np.ptp(ratio)))
    assert 0.7 * epsilon < worst <= epsilon
    assert widest == pytest.approx(epsilon)


def test_selection_by_uniform_has_the_probabilities() -> None:
    law = np.array([0.125, 0.0, 0.5, 0.375])
    chosen = [select_by_uniform(law, k / 800) for k in range(800)]
    assert np.bincount(chosen, minlength=4).tolist() == [100, 0, 400, 300]
    assert select_by_uniform(np.array([0.3, 0.7 - 1e-15, 0.0]), 1 - 2**-53) == 1
    with pytest.raises(ValueError, match="uniform"):
        select_by_uniform(law, 1.0)


def test_selection_by_gumbel_is_the_race() -> None:
    cost = np.array([5, 3, 4, 3, 9])
    e = keyed(5).exponential(size=(6000, 5))
    chosen = [select_by_exponential(cost, 0.8, row) for row in e]
    assert chosen == [select_by_gumbel(cost, 0.8, gumbel_from_exponential(row)) for row in e]
    weights = np.exp(-0.4 * cost)
    expected = 6000 * weights / weights.sum()
    # Chi-square with 4 degrees of freedom: false alarm 1e-3.
    assert np.sum((np.bincount(chosen, minlength=5) - expected) ** 2 / expected) < 18.5


# Winsorized means.


def test_winsorized_mean_within_and_beyond() -> None:
    x = np.array([0.1, 0.12, 0.14, 0.9])
    # Bin [.1, .2): centre .15, interval [.05, .25]; three points stay, one is cut to .25.
    found = winsorized_mean_1d(x, 400.0, 0.05, 1.0, 2.0, uniform=0.5)
    assert found == pytest.approx((0.1 + 0.12 + 0.14 + 0.25) / 4 + 2 * 8 * 0.05 / (4 * 400))


def test_winsorized_range_takes_half_of_the_budget() -> None:
    """Costs 1 and 3: the first bin has chance 1 / (1 + e^-1) at eps / 2, 1 / (1 + e^-2) at eps."""
    x = np.array([-0.4, -0.4, -0.4, 0.4])
    for u, mean in ((0.73, (-1.2 + 0.25) / 4), (0.74, (-0.75 + 0.4) / 4)):
        assert winsorized_mean_1d(x, 2.0, 0.25, 0.5, 0.0, uniform=u) == pytest.approx(mean)


@pytest.mark.parametrize("d", [1, 3, 4, 5])
def test_high_d_is_the_mean_and_rotated_noise(d: int) -> None:
    """Where the ranges hold all points, the release is their mean plus D H' L / sqrt d2."""
    M, size, r = 40, padded(d), 0.2
    points = 0.3 + 0.01 * keyed(7, d).standard_normal((M, d))
    signs, noise = random_signs(size, 8, d), keyed(9, d).laplace(size=size)
    found = winsorized_mean_high_d(
        points, 30.0, r, sqrt(size), signs=signs, laplace=noise, uniforms=np.full(size, 0.5)
    )
    scale = 8 * r / (M * 30.0)
    assert found - points.mean(axis=0) == pytest.approx(
        scale * (signs * (hadamard(size).T @ noise) / sqrt(size))[:d], abs=1e-12
    )


# Local estimates.


@pytest.mark.parametrize(("n", "d", "rank"), [(7, 3, 3), (2, 4, 2), (6, 4, 1), (1, 1, 1)])
def test_least_squares_has_the_least_norm(n: int, d: int, rank: int) -> None:
    rng = keyed(12, n, d)
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    y = rng.standard_normal(n)
    found, near = least_squares(X, y)
    assert found == pytest.approx(np.linalg.lstsq(X, y, rcond=None)[0], abs=1e-8)
    assert near > 2


# Schedule.


def test_phases_partition_the_rounds() -> None:
    lengths: dict[int, int] = {}
    for t in range(1, 127):
        lengths[phase_of(t)] = lengths.get(phase_of(t), 0) + 1
    assert lengths == {p: phase_length(p) for p in range(1, 7)}
    assert [last_round(p) for p in (1, 2, 3)] == [2, 6, 14]
    assert [phase_of(t) for t in (1, 2, 3, 6, 7, 14, 15)] == [1, 1, 2, 2, 3, 3, 4]
    assert number_of_phases(2**14) == 14


@pytest.mark.parametrize(
    ("T", "U", "last", "phases"),
    [
        (13, 1, False, [1, 2]),
        (14, 1, False, [1, 2]),
        (14, 1, True, [1, 2, 3]),
        (15, 1, False, [1, 2, 3]),
        (15, 3, False, [3]),
        (15, 4, True, []),
        (2**14, 8, False, [8, 9, 10, 11, 12, 13]),
    ],
)
def test_releases(T: int, U: int, last: bool, phases: list[int]) -> None:
    assert releasing_phases(T, U, last) == phases


# Constants.


def test_c1_by_hand() -> None:
    # 16 d (M+1) P / beta = 16 * 2 * 4 * 5 / .5 = 1280.
    assert concentration_c1(3, 5, 2, 0.5, 0.1) == pytest.approx(80 * sqrt(log(1280)))
    assert concentration_c1_mended(3, 5, 2, 0.5, 0.04) == pytest.approx(20 * sqrt(log(2560)))
    assert concentration_radius(80.0, 4, 0.5) == pytest.approx(10.0)


def test_rotated_radius() -> None:
    assert rotated_radius(0.01, 8, 50, 0.02) == pytest.approx(0.1 * sqrt(log(2e4) / 8))
    assert rotated_radius(5.0, 8, 50, 0.02) == pytest.approx(sqrt(8))
    assert call_beta(0.8, 10) == pytest.approx(0.005)


def test_printed_initial_phases_exceed_any_run() -> None:
    """Sphere, d = 5, 20 arms; horizons run to 14 phases."""
    assert initial_phases(50, 14, 5, 0.05, 0.0994, 6.67) == 43
    assert initial_phases_mended(50, 14, 5, 0.05, 0.0994, 6.67) == 48


def test_c2_is_corollary_b5_and_the_mean() -> None:
    M, P, d, beta, lambda_0, eps0, delta0, p = 400, 9, 5, 0.1, 0.08, 0.05, 1e-6, 7
    c1 = concentration_c1(M, P, d, beta, lambda_0)
    r = concentration_radius(c1, p)
    far, _ = corollary_b5(r, M, d, call_beta(beta, P), eps0, delta0)
    c2 = estimation_c2(M, P, d, beta, lambda_0, eps0, delta0)
    assert c2 / sqrt(M * phase_length(p)) == pytest.approx(far + r / sqrt(M))


def test_clients_of_proposition_c3_make_corollary_b5_small() -> None:
    """At the first bound on M, four beta_1 and the missed range make beta / (2P) together."""
    M, T, d, beta = 500, 1000, 5, 0.1
    found = proposition_c3(
        M=M, T=T, d=d, beta=beta, epsilon=1.0, delta=1e-5, lambda_0=0.1, C_0=1e-9
    )
    P, budget = found.P, found.budget
    beta_1 = call_beta(beta, P)
    r = concentration_radius(found.c1, P)
    # M inside the logarithm stays; the exponent takes the M asked for.
    _, chance = corollary_b5(r, M, d, beta_1, budget.epsilon0 * found.clients / M, budget.delta0)
    assert chance + beta_1 == pytest.approx(beta / (2 * P))
    assert found.error(P, M) == pytest.approx(found.c2 / sqrt(M * phase_length(P - 1)))


# Budgets.


@pytest.mark.parametrize("d", [6, 8])
def test_budget_vector(d: int) -> None:
    budget = printed_budget(1.0, 1e-3, 10, padded(d))
    assert budget.epsilon0 == pytest.approx(0.04682651046219294, rel=1e-12)
    assert budget.delta0 == pytest.approx(5e-5, rel=1e-12)
    assert budget.epsilon_coordinate == pytest.approx(0.0021477172059375183, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta", "P", "total"), [(5.0, 0.1, 2, 5.06), (10.0, 0.1, 10, 14.04)]
)
def test_printed_budgets_that_fail_advanced_composition(
    epsilon: float, delta: float, P: int, total: float
) -> None:
    """E6."""
    assert printed_composition(epsilon, delta, P, 8)["total"] == pytest.approx(total, abs=5e-3)


def test_one_coordinate_by_quadrature() -> None:
    """delta of the pair of densities, bit and real number, at three epsilons."""
    a = 0.4
    x = np.linspace(-30, 30, 600_001)
    p, q = np.exp(-np.abs(x)) / 2, np.exp(-np.abs(x - a)) / 2
    right, wrong = 1 / (1 + exp(-a)), exp(-a) / (1 + exp(-a))
    for epsilon in (0.0, 0.3, 0.7):
        excess = [right * p - exp(epsilon) * wrong * q, wrong * p - exp(epsilon) * right * q]
        expected = float(np.sum(np.maximum(excess, 0.0))) * (x[1] - x[0])
        up = composition_delta(epsilon, 2 * a, 1)
        down = composition_delta(epsilon, 2 * a, 1, up=False)
        assert down <= expected + 1e-6
        assert expected <= up + 1e-6
        assert up - down < 2e-4


@pytest.mark.parametrize(
    ("epsilon", "delta", "coordinates", "tight", "specified", "factor"),
    [
        (1.0, 1e-3, 80, 0.06175, 0.0609, 28.75),
        (5.0, 1e-3, 80, 0.23270, None, 21.67),
        (1.0, 1e-5, 80, 0.04273, None, 30.52),
    ],
)
def test_tight_budget(
    epsilon: float,
    delta: float,
    coordinates: int,
    tight: float,
    specified: float | None,
    factor: float,
) -> None:
    """P = 10, d = 8. The value of a coarser grid, where there is one, lies below by 1.4 %."""
    found = tight_epsilon(epsilon, delta, coordinates)
    assert found == pytest.approx(tight, rel=2e-4)
    assert specified is None or 0.98 * found < specified < found
    printed = printed_budget(epsilon, delta, 10, 8).epsilon_coordinate
    assert found / printed == pytest.approx(factor, rel=1e-3)
    assert closed_form_epsilon(epsilon, delta, coordinates) == pytest.approx(found, rel=0.02)
    assert composition_delta(epsilon, found, coordinates) <= delta
    # Rounded down, half a permille more already breaks it.
    assert composition_delta(epsilon, 1.0005 * found, coordinates, up=False) > delta


@pytest.mark.parametrize(
    ("epsilon", "true", "specified"), [(1.0, 0.0145, 0.015), (5.0, 0.1229, 0.126)]
)
def test_true_epsilon_of_the_printed_budget(epsilon: float, true: float, specified: float) -> None:
    printed = printed_budget(epsilon, 1e-3, 10, 8).epsilon_coordinate
    found = composition_epsilon(1e-3, printed, 80)
    assert found == pytest.approx(true, abs=1e-4)
    assert found == pytest.approx(specified, rel=0.04)


# Bounds.


def test_lower_bounds_by_hand() -> None:
    L = log(1000)
    assert theorem_4_5(50, 1000, 4, 0.01, 3.0) == pytest.approx(50 * 12 * L)
    assert theorem_4_5(50, 1000, 4, 0.1, 3.0) == pytest.approx(2 * 12 * L)
    assert theorem_4_5(50, 1000, 4, 0.05, None) == pytest.approx(20 * sqrt(4000))
    assert theorem_5_3(50, 1000, 4, 0.1, 3.0) == pytest.approx(10 * 12 * L)
    assert theorem_5_3(50, 1000, 4, 0.5, None) == pytest.approx(10 * sqrt(4000))
    assert theorem_4_2(50, 1000, 4, 0.1, 3.0) == pytest.approx(24 * L + exp(-5) * 150_000)


def test_theorem_3_3_by_hand() -> None:
    given = {"M": 10, "T": 1000, "d": 2, "beta": exp(-1), "delta": exp(-2), "lambda_0": 0.5}
    common = 3.0 * 2 * log(1000) / 0.25
    assert theorem_3_3(epsilon=100.0, C_0=3.0, **given) == pytest.approx(common)
    assert theorem_3_3(epsilon=0.5, C_0=3.0, **given) == pytest.approx(
        common * 2 * log(1000) * 2 / 2.5
    )


def test_explicit_upper_bounds() -> None:
    assert theorem_c6_explicit(10, 6, 3, 2.0, 5.0) == 8 * 2 * 25 * 6 + 80
    assert theorem_c6_mended(10, 6, 3, 2.0, 5.0) == 8 * 2 * 25 * 3 + 20 * 14
    assert theorem_c6_mended(10, 3, 5, 2.0, 5.0) == 20 * 62


def test_error_4_5_follows_from_its_inequality() -> None:
    """r^2 <= e + 2 r^2 A sqrt(2 (t-1) e / d): the least such e is not below the closed form."""
    for t, r, M, memory in product((1, 5, 400), (0.05, 0.4), (1, 60), (True, False)):
        d, epsilon = 4, 0.3
        bound = error_4_5(t, M=M, d=d, epsilon=epsilon, r=r, memory=memory)
        A = epsilon * (M - 1) + 1 if memory else epsilon * M
        half = r**2 * A * sqrt(2 * (t - 1) / d)
        least = (sqrt(half**2 + r**2) - half) ** 2
        assert 0.2 * least < bound <= least + 1e-15
        assert error_4_5(t, M=M, d=d, epsilon=epsilon, r=r, memory=memory, mended=True) <= bound


def test_error_5_3_case_by_hand() -> None:
    """M eps' < 1 < r^2 (t-1) / d: at least (2 - sqrt(M eps')) d / (12 (t-1)), 12 lost."""
    M, d, t, delta = 2, 4, 401, 0.0
    epsilon = -log(1 - 0.2)  # eps' = 0.2
    found = error_5_3(t, M=M, d=d, epsilon=epsilon, delta=delta, r=0.3)
    assert found >= (2 - sqrt(0.4)) * d / (12 * (t - 1))
    assert found < 2 * d / (t - 1)
    assert error_5_3(1, M=M, d=d, epsilon=epsilon, delta=delta, r=0.3) == pytest.approx(0.045)


def test_corollary_e2_grows_like_the_logarithm() -> None:
    """Memoryless, T to T^2 of rounds: twice the regret, nearly, and d / eps^2 M r in front."""
    M, d, epsilon, r = 40, 4, 0.5, 0.5
    total = [
        corollary_e2([error_4_5(t, M=M, d=d, epsilon=epsilon, r=r) for t in range(1, T + 1)], M, r)
        for T in (100, 10_000)
    ]
    A = epsilon * (M - 1) + 1
    assert total[1] - total[0] == pytest.approx(M * d * log(100) / (16 * r * A**2), rel=0.05)


def test_proposition_d1() -> None:
    """E16: printed, it beats a coin; the exact bound is reached by randomised response."""
    assert proposition_d1(100, 0.1, 0.001) > 50
    assert proposition_d1_mended(100, 0.1, 0.001) == pytest.approx(47.4, abs=0.1)
    epsilon, delta, least = 0.4, 0.01, 1.0
    grid = np.linspace(0, 1, 401)
    for p, q in product(grid, grid):
        pairs = ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p))
        if all(a <= exp(epsilon) * b + delta for a, b in pairs):
            least = min(least, (1 - p + q) / 2)
    assert least == pytest.approx(proposition_d1_mended(1, epsilon, delta), abs=3e-3)
    assert least >= proposition_d1_mended(1, epsilon, delta) - 1e-12


def test_shares_before_any_data() -> None:
    edge = sqrt(5) * log(1000) ** 1.5 / 200
    assert shares(edge, 200, 5, 1000)
    assert not shares(0.999 * edge, 200, 5, 1000)
    assert shares(0.999 * edge, 200, 5, 1000, constant=0.5)


# Instances and their constants.


def hard_draws(n: int, d: int, seed: int) -> np.ndarray:
    rng = keyed(18, seed)
    z = truncated_normal(rng.random(n), rng.random(n))
    blocks = rng.integers(d // 2, size=n)
    return np.array([hard_features(int(s), v, d) for s, v in zip(blocks, z, strict=True)])


def test_hard_instance() -> None:
    d, r, n = 4, 0.4, 20_000
    theta = hard_parameter(np.array([0.3, 4.0]), r)
    assert np.linalg.norm(theta.reshape(-1, 2), axis=1) == pytest.approx(r)
    assert np.linalg.norm(theta) <= 1
    contexts = hard_draws(n, d, 1)
    assert np.max(np.linalg.norm(contexts, axis=2)) <= 1
    assert not contexts[:, 1].any()
    lambda_0, C_0 = hard_constants(d, r)
    # Standard deviations of the estimates are below 2 %.
    assert diversity(contexts, theta) == pytest.approx(lambda_0, rel=0.08)
    assert margin_constant(margins(contexts, theta), 1000) == pytest.approx(C_0, rel=0.15)


def test_truncated_normal_ends() -> None:
    z = truncated_normal(np.array([0.0, 1.0, 0.5]), np.array([0.3, 0.25, 0.0]))
    assert np.linalg.norm(z, axis=1) == pytest.approx(
        [0.0, 1.0, sqrt(-2 * log((1 + exp(-0.5)) / 2))], abs=1e-9
    )
    assert z[1] == pytest.approx([0.0, 1.0], abs=1e-9)


def test_proposition_d1_instance() -> None:
    """Every gap is 1, so C_0 = 1; no client alone has a positive lambda_0."""
    for theta in proposition_d1_parameters():
        for client in (0, 1, 5):
            phi = np.array([proposition_d1_features(client)])
            assert margins(phi, theta).tolist() == [1.0]
            assert margin_constant(margins(phi, theta)) == 1.0
            assert diversity(phi, theta) == pytest.approx(0.0)
    assert np.array_equal(proposition_d1_features(0) @ [1.0, -1.0], [0.5, -0.5])
    assert np.array_equal(proposition_d1_features(3) @ [1.0, -1.0], [-0.5, 0.5])


def test_constants_by_hand() -> None:
    """Two contexts of three arms; the best ones are e1 and .6 e2."""
    contexts = np.array([[[1, 0], [0, 0.5], [0.2, 0]], [[0.1, 0], [0, 0.6], [0, 0.5]]])
    theta = np.array([1.0, 1.0])
    assert diversity(contexts, theta) == pytest.approx(0.36 / 2)
    assert margins(contexts, theta) == pytest.approx([0.5, 0.1])
    assert margins(contexts, theta, every=True) == pytest.approx([0.8, 0.5])
    assert margin_constant(margins(contexts, theta)) == pytest.approx(0.5 / 0.1)
    assert margin_constant(margins(contexts, theta), 2) == pytest.approx(1 / 0.5)


# Algorithm 1.

ALPHA = 0.7


def unit_contexts(d: int, K: int) -> Callable[[int, int], np.ndarray]:
    def contexts(t: int, i: int) -> np.ndarray:
        x = keyed(20, t, i).standard_normal((K, d))
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return contexts


def mechanism_of(d: int, *, bound: float, epsilon: float = 0.8, r: float = 0.4) -> Mechanism:
    size = padded(d)
    return Mechanism(
        epsilon_coordinate=epsilon,
        radius=lambda p: min(r * 2 ** (-p / 2) * 2, bound),
        bound=bound,
        signs=lambda p: random_signs(size, 21, p),
        laplace=lambda p: keyed(22, p).laplace(size=size),
        uniforms=lambda p: keyed(23, p).random(size),
    )


def play(
    T: int,
    M: int,
    d: int,
    K: int,
    U: int | None,
    *,
    mechanism: Mechanism | None = None,
    first: str = "initial",
    theta: np.ndarray | None = None,
    altered: int | None = None,
) -> dict[str, Any]:
    """A second player, with running sums and one inverse kept up to date per client."""
    contexts = unit_contexts(d, K)
    truth = np.full(d, 1 / sqrt(d)) if theta is None else theta
    actions, rewards = np.zeros((M, T), dtype=int), np.zeros((M, T))
    inverse = np.array([np.eye(d)] * M)
    V, Y = np.zeros((M, d, d)), np.zeros((M, d))
    in_phase_V, in_phase_Y = np.zeros((M, d, d)), np.zeros((M, d))
    shared: np.ndarray | None = None
    p, left, greedy = 1, 2, False
    for t in range(1, T + 1):
        for i in range(M):
            x = contexts(t, i)
            if greedy:
                assert shared is not None
                a = int(np.argmax(x @ shared))
            else:
                bonus = np.sqrt(np.einsum("ka,ab,kb->k", x, inverse[i], x))
                a = int(np.argmax(x @ (inverse[i] @ Y[i]) + ALPHA * bonus))
            noise = keyed(24, t, i).standard_normal() * (3.0 if altered == i else 0.3)
            y = float(x[a] @ truth) + noise
            actions[i, t - 1], rewards[i, t - 1] = a, y
            z = inverse[i] @ x[a]
            inverse[i] -= np.outer(z, z) / (1 + x[a] @ z)
            V[i] += np.outer(x[a], x[a])
            Y[i] += x[a] * y
            in_phase_V[i] += np.outer(x[a], x[a])
            in_phase_Y[i] += x[a] * y
        left -= 1
        if left:
            continue
        if U is not None and p >= U:
            whole = p == U and first == "initial"
            pair = (V, Y) if whole else (in_phase_V, in_phase_Y)
            local = np.array(
                [
                    np.linalg.pinv(v, rcond=1e-10, hermitian=True) @ w
                    for v, w in zip(*pair, strict=True)
                ]
            )
            shared = local.mean(axis=0) if mechanism is None else mechanism.release(local, p)
            greedy = True
        in_phase_V[:], in_phase_Y[:] = 0.0, 0.0
        p += 1
        left = 2**p
    return {
        "contexts": contexts,
        "means": lambda t, i: contexts(t, i) @ truth,
        "actions": actions,
        "rewards": rewards,
        "radius": lambda t, i, V: ALPHA,
        "initial_phases": U,
        "mechanism": mechanism,
        "first_estimate": first,
    }


@pytest.mark.parametrize("U", [1, 2, None])
@pytest.mark.parametrize("first", ["initial", "phase"])
@pytest.mark.parametrize("private", [False, True])
def test_second_player(U: int | None, first: str, private: bool) -> None:
    mechanism = mechanism_of(3, bound=2.0) if private else None
    T, M = 45, 4
    game = play(T, M, 3, 5, U, mechanism=mechanism, first=first)
    out = replay(**game)
    assert out.worst_gap < 1e-12
    gaps = np.array(
        [
            [
                np.max(game["means"](t, i)) - game["means"](t, i)[game["actions"][i, t - 1]]
                for t in range(1, T + 1)
            ]
            for i in range(M)
        ]
    )
    assert out.client_regret == pytest.approx(np.cumsum(gaps, axis=1))
    assert out.group_regret == pytest.approx(np.cumsum(gaps.sum(axis=0)))
    assert out.released == ([] if U is None else [p for p in (1, 2, 3, 4) if p >= U])
    assert out.bytes_up == out.bytes_down == len(out.released) * M * 3 * 8
    assert out.nearest_rank > 2


def test_a_worse_action_is_noticed() -> None:
    for t in (3, 40):
        game = play(45, 2, 3, 5, 2)
        score = np.argsort(game["contexts"](t, 1) @ np.ones(3))[0]
        game["actions"][1, t - 1] = score
        assert replay(**game).worst_gap > 1e-3


def test_greedy_score() -> None:
    phi = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert greedy_shortfall(phi, np.array([0.5, 0.25]), 1) == pytest.approx(0.5)
    assert greedy_shortfall(phi, np.array([0.5, 0.25]), 0) == 0.0
    assert greedy_shortfall(phi, np.zeros(2), 1) == 0.0
    with pytest.raises(ValueError, match="action"):
        greedy_shortfall(phi, np.zeros(2), 2)


def test_small_formulas_by_hand() -> None:
    assert laplace_from_exponentials(np.array([2.0]), np.array([0.5])).tolist() == [1.5]
    assert laplace_scale(0.1, 50, 0.5) == pytest.approx(0.032)
    # 10 bins, share 0.1: M eps' / 8 must exceed log 100 = 4.605.
    assert range_feasible(74, 0.5, 10) and not range_feasible(73, 0.5, 10)
    root = sqrt(2 * log(50) + 3 * log(4))
    assert linucb_alpha(5, 3, 0.1, 4) == pytest.approx(1 + root)
    assert linucb_alpha_mended(5, 3, 0.1, 9) == pytest.approx(1 + root)
    # Lemma C.2 wants five phases more than Proposition C.3's printed U (E8).
    assert not lemma_c2_condition(47, 50, 5, 0.05, 0.0994, 6.67)
    assert lemma_c2_condition(48, 50, 5, 0.05, 0.0994, 6.67)
    # Costs 3, 3, 2, 3 at eps 50: the third bin [0, .5), four radii wide around .25.
    x = np.array([-0.9, -0.4, 0.1, 0.2, 0.9])
    assert private_range(x, 50.0, 0.25, 1.0, uniform=0.5) == pytest.approx((-0.25, 0.75))
    # Footnote 1: the local bound is the central one at eps / sqrt M.
    assert corollary_5_5(49, 500, 4, 0.2, 4.0) == theorem_4_5(49, 500, 4, 0.2 / 7, 4.0)
