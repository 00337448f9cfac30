"""Compare Honaker's tree and square-root Toeplitz noise with brute force and stated values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from oracle import dvijotham_2024
from oracle import factorised as oracle
from problems import ordinary_cases

from fastfed._kernels import aggregation
from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate_tree, delta_of, mu_of
from fastfed.privacy.releases.buffered import buffers
from fastfed.privacy.releases.gaussian_release import SHARED, GaussianRelease, calibrate_release
from fastfed.privacy.releases.prefix_sums import (
    honaker_coefficients,
    honaker_combine,
    honaker_group_sensitivity_squared,
    honaker_prefix_variance,
    honaker_sensitivity_squared,
    honaker_weight,
    honaker_worst_leaf,
    max_prefix_nodes,
    node_count,
    node_number,
    nodes_at,
    optimal_factor,
    toeplitz_coefficients,
    toeplitz_factor,
    toeplitz_prefix_noise,
    toeplitz_prefix_variances,
    toeplitz_sensitivity_squared,
)

# K, S_K; largest variance of Toeplitz, tree, Honaker; mean of each; unit mu* = D = 1. Honaker's
# variances are those if all nodes were seen.
REFERENCE = [
    (
        40,
        2.238498512625106,
        (5.010875591024811, 30, 19.725345622119814),
        (4.334096704981394, 15.299999999999999, 9.998709677419356),
    ),
    (
        400,
        2.973219359518991,
        (8.840033359818518, 72, 43.21252713429796),
        (7.899744582977738, 37.50750000000001, 22.356101811192914),
    ),
]
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16]


def gram(releases: int) -> np.ndarray:
    """Return A' Sigma^-1 A of Honaker's prefixes, (leaves, leaves), from the definition.

    Sigma is the covariance of the prefixes' noise. Column j of A has ones from prefix j on.
    """
    rows = np.zeros((releases, node_count(releases)))
    for k in range(1, releases + 1):
        for node, coefficient in honaker_coefficients(k).items():
            rows[k - 1, node_number(*node) - 1] = coefficient
    prefixes = np.tri(releases)
    return prefixes.T @ np.linalg.solve(rows @ rows.T, prefixes)


def complete_nodes(releases: int) -> dict[tuple[int, int], range]:
    """Return (last leaf, level) -> leaves for every dyadic block that is complete after
    `releases`."""
    return {
        ((b + 1) << h, h): range((b << h) + 1, ((b + 1) << h) + 1)
        for h in range(releases.bit_length())
        for b in range(releases >> h)
    }


# ---- The square-root Toeplitz factor ------------------------------------------------------------


def test_toeplitz_coefficients_are_exact() -> None:
    assert toeplitz_coefficients(5).tolist() == [1.0, 0.5, 0.375, 0.3125, 0.2734375]
    exact = [float(Fraction(math.comb(2 * k, k), 4**k)) for k in range(400)]
    np.testing.assert_allclose(toeplitz_coefficients(400), exact, rtol=1e-13)
    assert toeplitz_coefficients(0).shape == (0,) and toeplitz_coefficients(1).tolist() == [1.0]


@pytest.mark.parametrize("releases", [1, 2, 3, 40, 257])
def test_toeplitz_factor_is_a_square_root_of_prefix_sums(releases: int) -> None:
    factor = toeplitz_factor(releases)
    assert not np.triu(factor, 1).any()
    np.testing.assert_allclose(factor @ factor, np.tri(releases), atol=1e-13)
    columns = (factor**2).sum(axis=0)
    assert toeplitz_sensitivity_squared(releases) == pytest.approx(columns.max(), rel=1e-13)
    assert columns.argmax() == 0
    np.testing.assert_allclose(
        toeplitz_prefix_variances(releases), (factor**2).sum(axis=1), rtol=1e-13
    )


def test_toeplitz_noise_is_a_row_of_the_factor() -> None:
    z = np.random.default_rng(4).normal(size=(30, 3))
    noise = toeplitz_factor(30) @ z
    for k in range(1, 31):
        np.testing.assert_allclose(toeplitz_prefix_noise(z[:k]), noise[k - 1], atol=1e-13)


def test_toeplitz_sensitivity_grows_like_the_logarithm() -> None:
    for k in (1000, 100_000):
        expected = (math.log(k) + np.euler_gamma + math.log(16)) / math.pi
        assert toeplitz_sensitivity_squared(k) == pytest.approx(expected, abs=1 / k)


# ---- Honaker's tree -----------------------------------------------------------------------------


@pytest.mark.parametrize("releases", SIZES)
def test_honaker_releases_every_complete_node_once(releases: int) -> None:
    nodes = complete_nodes(releases)
    released = [node for k in range(1, releases + 1) for node in nodes_at(k)]
    assert sorted(released) == sorted(nodes)
    assert node_count(releases) == len(nodes)
    assert [node_number(*node) for node in released] == list(range(1, len(nodes) + 1))


@pytest.mark.parametrize("releases", SIZES)
def test_honaker_coefficients_are_unbiased_and_give_the_variance(releases: int) -> None:
    nodes = complete_nodes(releases)
    for k in range(1, releases + 1):
        coefficients = honaker_coefficients(k)
        assert set(coefficients) <= set(nodes) and all(end <= k for end, _ in coefficients)
        weights_of_leaves = np.zeros(releases)
        for node, weight in coefficients.items():
            weights_of_leaves[[leaf - 1 for leaf in nodes[node]]] += weight
        np.testing.assert_allclose(weights_of_leaves, np.arange(1, releases + 1) <= k, atol=1e-15)
        squares = sum(weight**2 for weight in coefficients.values())
        assert honaker_prefix_variance(k) == pytest.approx(squares, rel=1e-14)


@pytest.mark.parametrize("k", SIZES)
def test_honaker_variance_equals_that_of_least_squares(k: int) -> None:
    """Use all nodes inside the prefix that are released by step k."""
    nodes = complete_nodes(k)
    design = np.array([[leaf in leaves for leaf in range(1, k + 1)] for leaves in nodes.values()])
    inverse = np.linalg.inv(design.T.astype(float) @ design)
    assert honaker_prefix_variance(k) == pytest.approx(np.ones(k) @ inverse @ np.ones(k))


@pytest.mark.parametrize("releases", [*SIZES, 33])
def test_honaker_online_estimates_equal_the_combination(releases: int) -> None:
    rng = np.random.default_rng(releases)
    leaves = rng.normal(size=(releases, 2))
    values = {
        node: leaves[np.array(block) - 1].sum(axis=0) + rng.normal(size=2)
        for node, block in complete_nodes(releases).items()
    }
    estimates = np.zeros((releases.bit_length(), 2))
    for k in range(1, releases + 1):
        honaker_combine(estimates, np.array([values[node] for node in nodes_at(k)]))
        expected = sum(
            coefficient * values[node] for node, coefficient in honaker_coefficients(k).items()
        )
        np.testing.assert_allclose(aggregation.prefix(estimates, k), expected, atol=1e-12)


def test_honaker_weights_follow_their_recursion() -> None:
    v = 1.0
    for level in range(40):
        assert honaker_weight(level) == pytest.approx(v, rel=1e-15)
        v = 1.0 / (1.0 + 1.0 / (2.0 * v))


@pytest.mark.parametrize("leaves", [[1], [5], [1, 1, 1], [2, 3, 17], [20, 20, 1], []])
def test_honaker_sensitivity_of_groups_equals_linear_algebra(leaves: list[int]) -> None:
    counts = np.bincount(leaves, minlength=21)[1:] if leaves else np.zeros(20)
    expected = counts @ gram(20) @ counts
    assert honaker_group_sensitivity_squared(leaves, 20) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "releases",
    ordinary_cases(
        [*range(1, 65), 127, 128, 400, 1000],
        lambda releases: releases <= 9 or releases in (15, 16, 17, 31, 63, 64, 127, 400),
    ),
)
def test_honaker_sensitivity_equals_that_of_whitened_prefixes(releases: int) -> None:
    """Compare every leaf with dense linear algebra.

    The changes by any two leaves have a product of at least 0.
    """
    dense = gram(releases)
    leaves = dense.diagonal()
    sensitivities = [
        honaker_group_sensitivity_squared([j], releases) for j in range(1, releases + 1)
    ]
    np.testing.assert_allclose(sensitivities, leaves, rtol=1e-11)
    assert honaker_sensitivity_squared(releases) == pytest.approx(leaves.max(), rel=1e-11)
    worst_leaf = honaker_worst_leaf(releases)
    assert leaves[worst_leaf - 1] == pytest.approx(leaves.max(), rel=1e-11)
    # From two releases on, this is less than if all nodes were seen.
    assert leaves.max() <= releases.bit_length() * (0.91 if releases > 1 else 1.0)
    assert dense.min() > -1e-10


def test_honaker_sensitivity_of_many_releases() -> None:
    """Calculate all leaves of growing blocks by conditional variances and shifts, level by level.

    First what is seen inside the left child, then its own estimate. Then what is seen inside the
    right child, whose own estimate is not seen. Last the block's estimate, given all this.
    """
    seen_below, shift, variance, v = np.zeros(1), np.ones(1), 1.0, 1.0
    for level in range(18):
        total = seen_below + shift**2 / variance
        for releases in (1 << level, (1 << level) + 1, (2 << level) - 1):
            if releases.bit_length() == level + 1:
                largest = pytest.approx(total.max(), rel=1e-12)
                assert honaker_sensitivity_squared(releases) == largest
                assert total[honaker_worst_leaf(releases) - 1] == largest
        v = 1.0 / (1.0 + 1.0 / (2.0 * v))
        seen_below = np.concatenate([total, seen_below])
        shift = np.concatenate([np.full_like(shift, v), v + (1.0 - v) * shift])
        variance = v**2 + (1.0 - v) ** 2 * variance
    assert honaker_sensitivity_squared(0) == 0.0
    # If all blocks around it are left children, a leaf adds about 0.75 for each level.
    for releases in (2**40, 2**63 - 1):
        kappa = releases.bit_length()
        assert 27 / 32 < honaker_sensitivity_squared(releases) / kappa < 27 / 32 + 0.2 / kappa


# ---- Calibration --------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "squared", "worst", "mean"), REFERENCE, ids=["40", "400"])
def test_releases_have_their_reference_variances(
    k: int, squared: float, worst: tuple[float, ...], mean: tuple[float, ...]
) -> None:
    """Compare all three releases in units of D^2 / mu*^2."""
    budget = Budget(1.0, 0.01)
    unit = (mu_of(1.0, 0.01) / 2.0) ** 2
    assert toeplitz_sensitivity_squared(k) == pytest.approx(squared, rel=1e-12)
    variances_by_release = []
    for name in ("toeplitz", "honaker"):
        release = calibrate_release(name, budget, k)
        factors = release.variance_factors[1 : k + 1]
        variances_by_release.append(np.array(factors) * release.noise_std**2 * unit)
    tree = calibrate_tree(budget, k)
    blocks = np.array([j.bit_count() for j in range(1, k + 1)])
    assert np.array_equal(tree.variance_factors[1:], blocks)
    variances_by_release[1] *= k.bit_length() / gram(k).diagonal().max()
    variances_by_release.insert(1, blocks * tree.noise_std**2 * unit)
    assert blocks.max() == max_prefix_nodes(k)
    for variances, largest, expected_mean in zip(variances_by_release, worst, mean, strict=True):
        assert variances.max() == pytest.approx(largest, rel=1e-6)
        assert variances.mean() == pytest.approx(expected_mean, rel=1e-6)
    if k == 400:
        assert variances_by_release[1].max() / variances_by_release[0].max() == pytest.approx(
            8.1, rel=0.03
        )


def test_toeplitz_noise_has_its_reference_std() -> None:
    release = calibrate_release("toeplitz", Budget(1.0, 0.01), 400)
    assert (release.layout, release.calibration) == ("goe2", "exact")
    assert release.noise_std == pytest.approx(6.476051318824725, rel=1e-6)
    worst = release.noise_std * math.sqrt(release.variance_factors[400])
    assert worst == pytest.approx(11.166671944914844, rel=1e-6)


#: Releases with a formula; each "factorised" release has its own factor.
FORMULAS = [name for name in SHARED if name != "factorised"]


@pytest.mark.parametrize("name", FORMULAS)
def test_noise_uses_the_whole_budget(name: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(60):
        budget = Budget(
            float(10 ** rng.uniform(-4, 2)),
            float(10 ** rng.uniform(-30, -0.1)),
            str(rng.choice(["replace", "zero-out"])),
        )
        layout = str(rng.choice(["iid", "goe1", "goe2"]))
        # The time for an optimal factor grows with the cube of its releases.
        releases = int(rng.integers(1, 60 if name == "factorised" else 2000))
        release = calibrate_release(name, budget, releases, layout=layout)
        assert all(condition.holds for condition in release.conditions())
        assert delta_of(budget.epsilon, release.mu()) <= budget.delta
        assert release.exact() == pytest.approx(budget.epsilon, rel=1e-7)
        with_less_noise = msgspec.structs.replace(release, noise_std=release.noise_std * (1 - 1e-6))
        assert not all(condition.holds for condition in with_less_noise.conditions())


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("layout", "joint"), [("goe2", 2.0), ("iid", math.sqrt(4.5))])
def test_mu_is_that_of_the_worst_leaf(name: str, layout: str, joint: float) -> None:
    """Compare mu with the norm of the change that each leaf makes in all released values."""
    releases = 13
    if name == "toeplitz":
        columns = (toeplitz_factor(releases) ** 2).sum(axis=0)
    elif name == "buffered":
        t, w, direct = buffers(releases)
        decoder = dvijotham_2024.decoder(np.array(t), np.array(w), direct, releases)
        columns = (dvijotham_2024.encoder(decoder) ** 2).sum(axis=0)
    elif name == "factorised":
        columns = np.array(oracle.encoder(optimal_factor(tuple(range(1, 14)), 13).matrix), float)
        columns = (columns**2).sum(axis=0)
    else:
        columns = gram(releases).diagonal()
    release = calibrate_release(name, Budget(1.0, 1e-3), releases, layout=layout)
    assert release.mu() == pytest.approx(math.sqrt(columns.max()) * joint / release.noise_std)
    assert release.sensitivity_squared == pytest.approx(columns.max())
    assert release.mu("zero-out") < release.mu("replace")


def test_noise_stds_and_text() -> None:
    release = calibrate_release("honaker", Budget(1.0, 0.01), 400)
    assert release.noise_stds == {
        "bias": release.noise_std,
        "covariance": release.noise_std,
        "covariance_diagonal": pytest.approx(math.sqrt(2) * release.noise_std),
    }
    (condition,) = release.conditions()
    assert condition.holds and "at most 1" in condition.text
    # The plain tree's p-sums are seen, while Honaker's prefixes reveal less: kappa = 9.
    ratio = release.noise_std / calibrate_tree(Budget(1.0, 0.01), 400).noise_std
    assert ratio**2 == pytest.approx(gram(400).diagonal().max() / 9, rel=1e-11)
    assert "Denisov" in calibrate_release("toeplitz", Budget(1.0, 0.01), 4).source


@pytest.mark.parametrize("name", SHARED)
def test_epsilon_without_releases_is_zero(name: str) -> None:
    release = calibrate_release(name, Budget(1.0, 0.01), 0)
    assert (release.noise_std, release.mu(), release.exact()) == (0.0, 0.0, 0.0)
    assert release.variance_factors.tolist() == [0.0]
    assert all(condition.holds for condition in release.conditions())


BUDGET = Budget(1.0, 0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_release("tree", BUDGET, 4), 'release must be one of "honaker"'),
        (
            lambda: calibrate_release("toeplitz", BUDGET, 4, "theorem"),
            'calibration must be "exact" when release is "toeplitz", got "theorem"',
        ),
        (lambda: calibrate_release("toeplitz", BUDGET, 4, "exactly"), "calibration must be one of"),
        (lambda: calibrate_release("honaker", Budget(1, 0), 4), "delta must be > 0"),
        (
            lambda: calibrate_release("honaker", Budget(1, 0.1, unit="silo"), 4),
            'unit must be one of "user", "item"',
        ),
        (lambda: calibrate_release("honaker", BUDGET, -1), "releases must be an integer >= 0"),
        (
            lambda: GaussianRelease(4, "goe2", 0.0, "exact", BUDGET, "x", release="toeplitz"),
            "noise_std must be > 0",
        ),
        (
            lambda: honaker_group_sensitivity_squared([9], 8),
            "leaf must be an integer >= 1 and <= 8, got 9",
        ),
        (lambda: honaker_worst_leaf(0), "releases must be an integer >= 1, got 0"),
        (lambda: node_number(4, 3), "level must be an integer >= 0 and <= 2, got 3"),
        (lambda: honaker_group_sensitivity_squared([1], 0), "there are no releases"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
