"""Tests of the privacy oracles: noise, budgets, releases and bits against values by hand."""

from __future__ import annotations

from itertools import product
from math import comb, exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import chowdhury_zhou_2022 as chowdhury
from oracle import dubey_pentland_2020 as dubey
from oracle import huang_2023 as huang
from oracle import vector_sum
from oracle import zhou_chowdhury_2024 as zhou
from pytest import approx
from scipy import stats


def keyed_rng(*key: int) -> np.random.Generator:
    """Return a random generator for this key."""
    return np.random.default_rng([2023, *key])


# Gaussian noise.


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [
        (1.0, 0.5, 0.006829594983114591),
        (0.2, 1.0, 0.322376349989183),
        (5.0, 2.0, 0.032281984750072865),
        (0.0, 0.3, 0.11923538474048499),
    ],
)
def test_gaussian_delta(epsilon: float, mu: float, delta: float) -> None:
    assert chowdhury.gaussian_delta(epsilon, mu) == approx(delta, rel=1e-12)
    assert chowdhury.gaussian_epsilon(delta, mu) == approx(epsilon, abs=1e-9)
    assert chowdhury.gaussian_mu(epsilon, delta) == approx(mu, rel=1e-9)


@pytest.mark.parametrize("layout", chowdhury.LAYOUTS)
def test_sensitivities_are_attained(layout: str) -> None:
    """Compare with the largest change over a grid of angles, for unit x and z and rewards +-1.

    Squares below the diagonal and on it have weights 1, 1 (iid), 2, 1 (goe1) and 1, 1/2 (goe2).
    """
    below_weight, diagonal_weight = {"iid": (1, 1), "goe1": (2, 1), "goe2": (1, 0.5)}[layout]

    def change(x: np.ndarray, y: float, z: np.ndarray, w: float) -> float:
        """Return the squared change of the weighted statistic from (x, y) to (z, w)."""
        dS = np.outer(x, x) - np.outer(z, z)
        matrix = below_weight * np.sum(np.tril(dS, -1) ** 2) + diagonal_weight * np.sum(
            np.diag(dS) ** 2
        )
        return float(np.sum((x * y - z * w) ** 2) + matrix)

    circle = [np.array([np.cos(a), np.sin(a)]) for a in np.arange(32) * np.pi / 16]
    with_constant = [np.append(x, 1.0) for x in circle]
    pairs = [change(x, 1, z, sign) for x, z in product(circle, circle) for sign in (1, -1)]
    assert chowdhury.joint_sensitivity(layout) ** 2 == approx(max(pairs), rel=0.02)
    absent = [change(x, 1, np.zeros(2), 0) for x in circle]
    assert chowdhury.joint_sensitivity(layout, "zero-out") ** 2 == approx(max(absent))
    published_changes = [
        change(x, y, z, w)
        for x, z in product(with_constant, with_constant)
        for y, w in [(1, 1), (1, 0)]
    ]
    assert chowdhury.published_sensitivity(layout) ** 2 == approx(max(published_changes))


@pytest.mark.parametrize(
    ("epsilon", "delta", "true", "tight", "std"),
    [(0.2, 0.1, 0.0, 4.6, 50.7), (1.0, 1e-3, 0.281, 5.15, 15.8), (10.0, 0.1, 4.10, 0.564, 1.015)],
)
def test_local_noise(epsilon: float, delta: float, true: float, tight: float, std: float) -> None:
    s = chowdhury.ldp_noise_std(epsilon, delta)
    assert s == approx(std, rel=2e-3)
    actual = chowdhury.gaussian_epsilon(delta, chowdhury.joint_sensitivity("iid") / s)
    assert actual == approx(true, rel=2e-3)
    assert chowdhury.tight_noise_std(epsilon, delta) == approx(tight, rel=2e-3)
    # On the published instances, the local epsilon is 210 instead of 10, at delta = 0.1.
    s = chowdhury.published("linucb-ldp", T=20_000, d=5, delta=0.1, epsilon=10.0).noise_std
    mu = chowdhury.published_sensitivity("goe1") / s
    assert chowdhury.gaussian_epsilon(0.1, mu) == approx(210.2, rel=1e-3)


def test_central_noise() -> None:
    assert chowdhury.jdp_noise_std(1.0, 1e-3, 1) == chowdhury.ldp_noise_std(1.0, 1e-3)
    assert chowdhury.jdp_noise_std(1.0, 1e-3, 1000) == approx(sqrt(10) * 15.823067728711816)
    # Tight values of the layouts for the 9 nodes of 400 releases.
    assert chowdhury.tight_noise_std(0.2, 0.1, 9) == approx(13.794158072537362)
    assert chowdhury.tight_noise_std(0.2, 0.1, 9, "iid") == approx(14.630914070775487)
    noise_std = chowdhury.tight_noise_std(1.0, 0.01)
    assert chowdhury.tight_noise_std(1.0, 0.01, users=3.0) == approx(3 * noise_std)
    # Leaf 1 of 1000 is below 10 nodes. Eight rounds in one leaf multiply the square by 8^2.
    assert chowdhury.tree_group_sensitivity2([1], 1000) == 10
    assert chowdhury.tree_group_sensitivity2(range(1, 9), 1000) == 476
    assert chowdhury.tree_group_sensitivity2([1] * 8, 1000) == 640
    # The prefix of 39 batches of 4 users has at most 5 nodes.
    counts = {"linucb": 0, "linucb-jdp": 5, "linucb-ldp": 156, "linucb-sdp-amp": 156}
    for system, count in (counts | {"linucb-sdp-vec": 39}).items():
        actual = chowdhury.total_noise_std(system, 3.0, batches=39, B=4)
        assert actual == approx(3 * sqrt(count))
    assert chowdhury.total_noise_std("linucb-jdp", 1.0, batches=7, B=4) == approx(sqrt(3))


def test_noise_of_the_privatizer_by_hand() -> None:
    """Choose alpha or delta so that every logarithm is 4."""
    e4 = exp(4)
    assert dubey.node_noise_std(0.5, 2 / e4, 4, 2.0) == approx(4 * 2 * 5 * 4 / 0.5)
    actual = dubey.kappa_printed(0.5, 3, 2.0, 9, 10, 2, 40 / e4)
    assert actual == approx(sqrt(3 * 5 * (3 + 8) * sqrt(2)))
    actual = dubey.big_lambda(0.5, 4 / e4, 3, 2.0, 9, 10, 2, 40 / e4)
    assert actual == approx(sqrt(32) * 3 * 5 * 4 * (12 + 8) / 0.5)
    assert dubey.lambda_from_noise(1.5, 4, 9, 10, 2, 160 / e4) == approx(3.0 * (6 + 4))
    actual = dubey.kappa_from_noise(1.5, 4, 4.0, 9, 10, 2, 80 / e4)
    assert actual == approx(1.5 * 2 * (3 + sqrt(8)) / 2)
    for layout, shrunk in [("iid", 1.0), ("goe1", sqrt(2)), ("goe2", 1.0)]:
        arguments: dict[str, Any] = {"layout": layout, "d": 4, "releases": 5, "alpha": 0.4}
        norm, vector = chowdhury.noise_bounds(1.5, **arguments)
        assert norm * shrunk == approx(1.5 * (4 + 2 * sqrt(log(100))))
        assert vector == approx(1.5 * (2 + sqrt(2 * log(50))))


# The tree, and releases other than the tree.


def test_tree_by_hand() -> None:
    """Check section 4.2 of Zhou and Chowdhury: at k = 6 the node is [5, 6] and the prefix also has
    [1, 4]."""
    assert zhou.node_interval(6) == (5, 6)
    for k in (1, 6, 8, 39):
        nodes = zhou.tree_nodes(k)
        assert nodes == dubey.tree_nodes(k) and len(nodes) == k.bit_count()
        assert [leaf for node in nodes for leaf in dubey.leaves_under(node)] == [*range(1, k + 1)]
        assert zhou.node_interval(k) == (dubey.leaves_under(k)[0], k)
    for n in (1, 2, 9, 32):
        prefixes = [dubey.tree_nodes(k) for k in range(1, n + 1)]
        used = {node for prefix in prefixes for node in prefix}
        counts = [
            sum(leaf in dubey.leaves_under(node) for node in used) for leaf in range(1, n + 1)
        ]
        assert dubey.charged_nodes(n) == max(counts)
        assert dubey.prefix_nodes(n) == max(map(len, prefixes))
        assert dubey.levels(n) == 1 + int(np.ceil(np.log2(n)))


def test_square_root_of_the_prefix_matrix() -> None:
    root = zhou.square_root(30)
    assert root @ root == approx(np.tri(30), abs=1e-13)
    assert root[3, :] == approx([5 / 16, 3 / 8, 1 / 2, 1, *[0] * 26])


@pytest.mark.parametrize("level", [0, 1, 3])
def test_honaker_estimate_equals_least_squares(level: int) -> None:
    """Compare with least squares for the total of 2^level leaves, from all noisy nodes."""
    leaves = 2**level
    nodes = [(k, 2**j) for k in range(1, leaves + 1) for j in range((k & -k).bit_length())]
    design = np.array(
        [[k - size < leaf <= k for leaf in range(1, leaves + 1)] for k, size in nodes]
    )
    best = np.linalg.pinv(design.astype(float)).T @ np.ones(leaves)
    actual = zhou.honaker_estimate(leaves, level, lambda n: np.eye(len(nodes))[n - 1])
    assert actual == approx(best, abs=1e-13)
    assert zhou.honaker_weight(level) == approx(actual @ actual)


def test_prefix_noises_by_hand() -> None:
    def noise_of(release: str, k: int) -> float:
        """Return the noise of prefix k if draw n is 10^(n - 1), so that digits show the weights."""
        return float(zhou.prefix_noise(release, k, lambda n: np.array([10.0 ** (n - 1)]))[0])

    assert noise_of("toeplitz", 3) == approx(100 + 10 / 2 + 3 / 8)
    # Release 2 draws the numbers 2 and 3, release 3 the number 4, release 4 the numbers 5, 6 and 7.
    pair = 2 / 3 * 100 + (1 + 10) / 3
    assert noise_of("honaker", 3) == approx(pair + 1_000)
    second = 2 / 3 * 100_000 + (1_000 + 10_000) / 3
    assert noise_of("honaker", 4) == approx(4 / 7 * 1_000_000 + 3 / 7 * (pair + second))
    for release, last in (("honaker", 127), ("toeplitz", 64)):
        numbers = [n for k in range(1, 65) for n in zhou.new_numbers(release, k)]
        assert numbers == [*range(1, last + 1)]


# Amplification by shuffling, and users who return.


def test_amplification_by_hand() -> None:
    """Use n = 64, e^eps0 = 4 and inner delta 4 / e^4: tanh is 3/5, the roots are 4 and 8."""
    epsilon, delta = chowdhury.shuffled_budget(log(4), 0.001, 64, 4 * exp(-4))
    assert epsilon == approx(log(1 + 0.6 * (8 * 4 / 8 + 8 * 4 / 64)))
    assert delta == approx(4 * exp(-4) + (exp(epsilon) + 1) * 1.125 * 0.064)
    # For B = 18 and delta = 2 e^-2, eps0 = 3 eps and the noise is that of local privacy at eps0.
    budget_and_users = (0.2, 2 * exp(-2), 18)
    assert chowdhury.amp_local_budget(*budget_and_users) == approx((0.6, exp(-2) / 9))
    std = 4 * sqrt(2 * log(22.5 * exp(2))) / 0.6
    assert chowdhury.amp_noise_std(*budget_and_users) == approx(std)
    assert chowdhury.ldp_noise_std(0.6, exp(-2) / 9) == approx(std)
    actual = chowdhury.amp_true_budget(0.02, 1e-3, 1000)
    assert actual == approx((0.09375097, 0.0034323642), rel=1e-7)
    # Lemma B.4 needs more than 59 users at delta = 0.1; the figures have 20 users.
    for epsilon, theorem in ((0.2, True), (1.0, False)):
        holds = {"theorem": theorem, "lemma": False}
        assert chowdhury.amp_conditions(epsilon, 0.1, 20) == holds
    least = [(epsilon, n) for epsilon in (0.0, 1.0) for n in (59, 60, 160, 161)]
    holds_at = [chowdhury.shuffling_condition(epsilon, n, 0.05) for epsilon, n in least]
    assert holds_at == [False, True, True, True, False, False, False, True]
    assert chowdhury.amp_conditions(0.0, 0.1, 60)["lemma"]
    # With 1000 users the lemma needs more noise than local privacy, with 10 000 half as much.
    assert chowdhury.amp_inverted_noise_std(0.2, 0.1, 20) is None
    with_1000_users, with_10000_users = (
        chowdhury.amp_inverted_noise_std(0.02, 1e-3, B) for B in (1000, 10_000)
    )
    local_std = chowdhury.tight_noise_std(0.02, 1e-3)
    assert with_1000_users is not None and with_10000_users is not None
    assert with_10000_users < 0.5 * local_std < local_std < with_1000_users


def test_returning_users() -> None:
    # M = 8, delta = 2 e^-4: eps_m = eps / (2 sqrt 64).
    assert chowdhury.per_batch_budget(0.8, 2 * exp(-4), 8) == approx((0.05, exp(-4) / 8))
    T, B, epsilon, delta = 20_000, 20, 0.2, 0.1
    M = T // B
    plugged = chowdhury.amp_returning_noise_std(epsilon, delta, B, M)
    closed = 16 * sqrt(T * log(5 * T / delta) * log(4 * M / delta) * log(2 / delta))
    assert plugged == approx(closed / (epsilon * B), rel=1e-12)
    printed = chowdhury.amp_returning_noise_std_printed(epsilon, delta, B, T)
    assert printed == approx(6298.852764919991, rel=1e-12)
    # The condition of one batch in closed form; the printed condition is stricter.
    largest = 2 * sqrt(2 * M * log(2 / delta) * log(4 * M / delta) / B)
    stricter = 2 * log(2 / delta) * sqrt(2 * T) / B
    for factor, holds in [(0.999, True), (1.001, False)]:
        actual = chowdhury.amp_returning_conditions(factor * largest, delta, B, M)
        assert actual["theorem"] == holds and not actual["printed"]
        actual = chowdhury.amp_returning_conditions(factor * stricter, delta, B, M)
        assert actual["printed"] == holds
    plugged = chowdhury.vec_returning_b(0.2, 0.1, B, 5, M, 9)
    assert plugged == approx(chowdhury.vec_b(0.2 / sqrt(8 * M * log(20)), 0.05 / M, B, 5, 9))
    printed = chowdhury.vec_returning_b_printed(0.2, 0.1, B, 5, T, 9)
    assert printed / plugged == approx(1e7 / 1.92e6, rel=1e-12)
    # The budgets per batch of Theorem E.5 compose to at most eps up to eps = 11.54.
    for epsilon, holds in [(1.0, True), (11.53, True), (11.56, False)]:
        batch_epsilon, _ = chowdhury.per_batch_budget(epsilon, 0.1, 1000)
        assert (chowdhury.composed_epsilon(batch_epsilon, 1000, 0.05) <= epsilon) == holds


# Vector sums by bits.


def test_parameters_of_vector_sums() -> None:
    for g_of in (vector_sum.g_of, chowdhury.vec_g):
        assert [g_of(n, 1) for n in (1, 4, 5, 6, 9, 10, 100, 101)] == [4, 4, 5, 5, 6, 7, 20, 21]
        assert g_of(3, 10) == 10
    # d = 5 and epsilon = 0.7: 4 (d^2 + 1) / delta = 104e3, d^2 / delta = 25e3.
    exact = 24e4 * 4 * log(104e3) ** 2 / 0.49
    assert 0 <= vector_sum.b_theorem(20, 100, 5, 0.7, 1e-3) - exact < 1
    assert chowdhury.vec_b(0.7, 1e-3, 100, 5, 20) == approx(exact)
    exact = 2.5 * 4 * log(25e3) ** 2 / 0.49
    assert 0 <= vector_sum.b_published(20, 100, 5, 0.7, 1e-3, 2.5) - exact < 1
    # Corollary C.3 is a batch of one user. The noise of a batch depends on neither g nor B.
    assert chowdhury.vec_local(1.0, 0.1, 5) == (5, chowdhury.vec_b(1.0, 0.1, 1, 5, 5))
    assert chowdhury.vec_local_budget(0.25, 0.1, 16) == (1.0, 0.1)
    for g, B, L in [(9, 20, {}), (64, 1000, {"L": 2.0})]:
        actual = chowdhury.vec_noise_std(g, chowdhury.vec_b(1.0, 0.1, B, 5, g), B, **L)
        assert actual == approx(L.get("L", 1) * sqrt(3 / 16 * 24e4) * log(4 * 26 / 0.1))


def test_privacy_of_few_bits() -> None:
    # One bit and one step: compare (0, 3, 1)/4 with twice (3, 1, 0)/4.
    assert chowdhury.binomial_delta(1, 1, log(2)) == approx((0.5, 0.75))
    # 4000 bits are nearly Gaussian: one user changes 40 steps, and rounding adds sqrt 4 steps.
    exact, mu = max(chowdhury.binomial_delta(4000, 40, 0.5)), chowdhury.vec_mu(20, 4000, 1, 2.0)
    assert mu == approx(40 / sqrt(4000 * 3 / 16))
    assert chowdhury.gaussian_delta(0.5, mu) == approx(exact, rel=0.01)
    assert chowdhury.vec_mu(20, 1000, 4, 2.0, 4) == approx(mu * 42 / 40)


def test_messages_by_hand() -> None:
    """Use g = 4 and L = 1: 0.3 is 5.2 steps and -0.65 is 1.4 steps; the noise of 2 x 8 bits has
    mean 4."""
    points, uniforms = np.array([[0.3], [-0.65]]), np.array([[0.19], [0.41]])
    arguments: dict[str, Any] = {"points": points, "g": 4, "b": 8, "L": 1.0, "uniforms": uniforms}
    arguments["noise"] = np.array([[3], [4]])
    # The rounded points are 6 and 1, so the sum is (6 + 1 + 7 - 4) / 4 - 2.
    for order in (None, [keyed_rng(1).permutation(32)]):
        assert vector_sum.vector_sum(**arguments, permutations=order).tolist() == [0.5]
    assert vector_sum.vector_sum_counts(**arguments).tolist() == [0.5]
    # The largest value with all noise bits fills 2g + b bits; g + b bits would not suffice.
    messages = [vector_sum.message(*sent, 2, 4).tolist() for sent in [(3, 2), (4, 4), (0, 0)]]
    assert messages == [[1] * 5 + [0] * 3, [1] * 8, [0] * 8]
    assert vector_sum.shuffle(np.array([[5, 6], [7, 8]]), [2, 0, 3, 1]).tolist() == [7, 5, 8, 6]
    # 300 ones of type uint8 are counted without overflow.
    assert vector_sum.analyze_scalar(np.ones(300, dtype=np.uint8), 1, 150, 0, 1.0) == 1.0
    mirrored = vector_sum.symmetric(np.arange(1.0, 7.0))
    assert mirrored.tolist() == [[1, 2, 4], [2, 3, 5], [4, 5, 6]]
    assert vector_sum.lower_triangle(mirrored).tolist() == [1, 2, 3, 4, 5, 6]


def test_bits_and_counts_agree_exactly() -> None:
    """Check that points outside the range are clamped and that rounding changes each by less than L
    / g."""
    n, dimension, g, b, L = 17, 3, 9, 40, 2.5
    points = keyed_rng(1).choice([-2 * L, -L, 0.3, L, 2 * L], size=(n, dimension))
    uniforms, noise = (
        keyed_rng(2).random(points.shape),
        keyed_rng(3).binomial(b, 0.25, points.shape),
    )
    counts = vector_sum.vector_sum_counts(points, g, b, L, uniforms, noise)
    size = n * (2 * g + b)
    permutations = [keyed_rng(4, j).permutation(size) for j in range(dimension)]
    actual = vector_sum.vector_sum(points, g, b, L, uniforms, noise, permutations)
    assert np.array_equal(actual, counts)
    draws = (L / g) * (noise.sum(axis=0) - n * b / 4)
    assert (np.abs(counts - np.clip(points, -L, L).sum(axis=0) - draws) < n * L / g).all()


def test_points_outside_the_range_are_clamped() -> None:
    x = np.array([-3.0, -1.0 - 1e-9, 1.0 + 1e-9, 3.0, 0.1])
    low, high = np.zeros(5), np.full(5, 1 - 2**-53)
    assert vector_sum.fixed_point(x, 4, 1.0, low).tolist() == [0, 0, 8, 8, 5]
    assert vector_sum.fixed_point(x, 4, 1.0, high, clamp=False).tolist() == [-8, -1, 8, 16, 4]
    # For points outside [-L, L] only the sum without clamping is unbiased.
    run = (4, 0, 1.0, low[:, None], np.zeros((5, 1), int))
    assert vector_sum.vector_sum_counts(x[:, None], *run, clamp=False) == [22 / 4 - 5]
    assert vector_sum.vector_sum_counts(x[:, None], *run) == [21 / 4 - 5]


def test_exact_mean_and_variance_of_one_user() -> None:
    """Enumerate all b + 1 noises with 64 uniforms: mean x, variance 3b/16 + f(1 - f) steps^2."""
    g, b, x, moments = 5, 6, 0.59375, np.zeros(2)
    for u in (np.arange(64) + 0.5) / 64:
        for ones in range(b + 1):
            mechanism_arguments = np.array([[x]]), g, b, 1.0, np.array([[u]]), np.array([[ones]])
            weight = comb(b, ones) * 3 ** (b - ones) / 4**b / 64
            (value,) = vector_sum.vector_sum(*mechanism_arguments)
            moments += weight * np.array([value, value**2])
    f = (x + 1) * g % 1
    assert moments[0] == approx(x, abs=1e-14)
    assert moments[1] - moments[0] ** 2 == approx((3 * b / 16 + f * (1 - f)) / g**2, rel=1e-12)


# Winsorized means.


def test_draws_invert_their_distribution_functions() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.2, 4.0])
    assert huang.laplace_from_uniform(stats.laplace.cdf(x)) == approx(x, abs=1e-12)
    u = stats.gumbel_r.cdf(x[1:])
    assert huang.gumbel_from_uniform(u) == approx(x[1:], abs=1e-12)
    assert huang.gumbel_from_exponential(-np.log(u)) == approx(x[1:], abs=1e-12)
    assert huang.laplace_from_exponentials(np.array([2.0]), np.array([0.5])).tolist() == [1.5]


def test_rotation_by_hand_and_the_order_of_d() -> None:
    """Use x = (3, 1) and D = diag(1, -1): H D x = (2, 4), and D H' / sqrt d inverts the
    rotation."""
    assert [huang.padded(d) for d in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]
    with pytest.raises(ValueError, match="d must be"):
        huang.padded(0)
    H2 = np.array([[1.0, 1.0], [1.0, -1.0]])
    assert np.array_equal(huang.hadamard(8), np.kron(np.kron(H2, H2), H2))
    y = huang.rotate(np.array([[3.0, 1.0]]), np.array([1.0, -1.0]))[0]
    assert y == approx(np.array([2.0, 4.0]) / sqrt(2))
    assert huang.rotate_back(y, np.array([1.0, -1.0]), 2) == approx([3.0, 1.0])


def test_private_range_by_hand() -> None:
    """Use -1, -.3, .2, .9, .9 in four bins of width 1/2 with eps = 2: the costs are 4, 3, 2, 3."""
    x = np.array([-1.0, -0.3, 0.2, 0.9, 0.9])
    assert huang.midpoints(0.25, 1.0) == approx([-0.75, -0.25, 0.25, 0.75])
    assert huang.range_cost(x, 0.25, 1.0).tolist() == [4, 3, 2, 3]
    w = np.exp([-4.0, -3.0, -2.0, -3.0])
    assert huang.range_probabilities(x, 2.0, 0.25, 1.0) == approx(w / w.sum(), rel=1e-12)
    # At eps 50 the third bin [0, .5) is chosen: the range is four radii wide around .25.
    assert huang.private_range(x, 50.0, 0.25, 1.0, uniform=0.5) == approx((-0.25, 0.75))
    # For neighbouring data sets of four clients, the spread of the log ratio attains eps.
    S, widest = huang.midpoints(0.25, 1.0), 0.0
    for others in product(S, repeat=3):
        distributions = [
            huang.range_probabilities(np.array([*others, s]), 1.0, 0.25, 1.0) for s in S
        ]
        widest = max(
            widest,
            *(float(np.ptp(np.log(p / q))) for p, q in product(distributions, distributions)),
        )
    assert widest == approx(1.0)
    # With 10 bins and share 0.1, M eps' / 8 must exceed log 100 = 4.605.
    assert huang.range_feasible(74, 0.5, 10) and not huang.range_feasible(73, 0.5, 10)


def test_all_selection_methods_have_the_same_distribution() -> None:
    probabilities = np.array([0.125, 0.0, 0.5, 0.375])
    chosen = [huang.select_by_uniform(probabilities, k / 800) for k in range(800)]
    assert np.bincount(chosen, minlength=4).tolist() == [100, 0, 400, 300]
    assert huang.select_by_uniform(np.array([0.3, 0.7 - 1e-15, 0.0]), 1 - 2**-53) == 1
    with pytest.raises(ValueError, match="uniform"):
        huang.select_by_uniform(probabilities, 1.0)
    cost = np.array([5, 3, 4, 3, 9])
    e = keyed_rng(5).exponential(size=(3000, 5))
    chosen = [huang.select_by_exponential(cost, 0.8, row) for row in e]
    assert chosen == [
        huang.select_by_gumbel(cost, 0.8, huang.gumbel_from_exponential(row)) for row in e
    ]
    expected = 3000 * np.exp(-0.4 * cost) / np.exp(-0.4 * cost).sum()
    # Chi-square with 4 degrees of freedom: false alarm 1e-3.
    assert np.sum((np.bincount(chosen, minlength=5) - expected) ** 2 / expected) < 18.5


def test_winsorized_mean_by_hand() -> None:
    """Use the bin [.1, .2) with centre .15 and interval [.05, .25]: one point is clipped to .25."""
    x = np.array([0.1, 0.12, 0.14, 0.9])
    actual = huang.winsorized_mean_1d(x, 400.0, 0.05, 1.0, 2.0, uniform=0.5)
    assert actual == approx((0.1 + 0.12 + 0.14 + 0.25) / 4 + 2 * 8 * 0.05 / (4 * 400))
    # With costs 1 and 3, the first bin has probability 1 / (1 + e^-1) = .731 at eps / 2.
    x = np.array([-0.4, -0.4, -0.4, 0.4])
    for u, mean in ((0.73, (-1.2 + 0.25) / 4), (0.74, (-0.75 + 0.4) / 4)):
        actual = huang.winsorized_mean_1d(x, 2.0, 0.25, 0.5, 0.0, uniform=u)
        assert actual == approx(mean)


def test_winsorized_mean_in_high_dimensions_is_the_mean_plus_rotated_noise() -> None:
    """Check the mean plus D H' L / sqrt d2, where the ranges contain all points."""
    points = 0.3 + 0.01 * keyed_rng(7).standard_normal((40, 5))
    signs, noise = keyed_rng(8).choice([-1.0, 1.0], 8), keyed_rng(9).laplace(size=8)
    actual = huang.winsorized_mean_high_d(
        points, 30.0, 0.2, sqrt(8), signs=signs, laplace=noise, uniforms=np.full(8, 0.5)
    )
    scale = 8 * 0.2 / (40 * 30.0)
    added = scale * (signs * (huang.hadamard(8).T @ noise) / sqrt(8))[:5]
    assert actual - points.mean(axis=0) == approx(added, abs=1e-12)


# Budgets of releases and coordinates.


def test_printed_budget() -> None:
    budget = huang.printed_budget(1.0, 1e-3, 10, 8)
    assert budget.epsilon0 == approx(0.04682651046219294, rel=1e-12)
    assert budget.delta0 == approx(5e-5, rel=1e-12)
    assert budget.epsilon_coordinate == approx(0.0021477172059375183, rel=1e-12)
    # E6: printed budgets that fail advanced composition.
    assert huang.printed_composition(5.0, 0.1, 2, 8)["total"] == approx(5.06, abs=5e-3)
    assert huang.printed_composition(10.0, 0.1, 10, 8)["total"] == approx(14.04, abs=5e-3)
    actual = huang.composition_epsilon(1e-3, budget.epsilon_coordinate, 80)
    assert actual == approx(0.0145, abs=1e-4)


def test_one_coordinate_by_quadrature() -> None:
    """Compute delta for a pair of densities of a bit and a real number, at two epsilons."""
    a = 0.4
    x = np.linspace(-30, 30, 60_001)
    p, q = np.exp(-np.abs(x)) / 2, np.exp(-np.abs(x - a)) / 2
    right, wrong = 1 / (1 + exp(-a)), exp(-a) / (1 + exp(-a))
    for epsilon in (0.0, 0.3):
        excess = [right * p - exp(epsilon) * wrong * q, wrong * p - exp(epsilon) * right * q]
        expected = float(np.sum(np.maximum(excess, 0.0))) * (x[1] - x[0])
        upper_bound, lower_bound = (
            huang.composition_delta(epsilon, 2 * a, 1, up=upper_bound)
            for upper_bound in (True, False)
        )
        assert lower_bound - 1e-6 <= expected <= upper_bound + 1e-6
        assert upper_bound - lower_bound < 2e-4


def test_tight_budget() -> None:
    actual = huang.tight_epsilon(1.0, 1e-3, 80)
    assert actual == approx(0.06175, rel=2e-4)
    assert huang.closed_form_epsilon(1.0, 1e-3, 80) == approx(actual, rel=0.02)
    assert huang.composition_delta(1.0, actual, 80) <= 1e-3
    # With results rounded down, an increase of 0.05 % already exceeds the budget.
    assert huang.composition_delta(1.0, 1.0005 * actual, 80, up=False) > 1e-3
