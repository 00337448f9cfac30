"""Check FedUCB's constants and bounds against the oracle and by hand, and check what is proven."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracle import dubey_pentland_2020 as oracle

from fastfed._validate import InputError
from fastfed.bandits import feducb_bounds as bounds
from fastfed.bandits.feducb_bounds import Sizes, Trees
from fastfed.bandits.noise_distributions import largest_eigenvalue
from fastfed.privacy.accounting.gdp import delta_of
from fastfed.privacy.releases import gaussian_release
from fastfed.privacy.releases.prefix_sums import depth, max_prefix_nodes

RELEASES = (1, 2, 3, 4, 7, 8, 9, 400, 10**5, 10**7)
# releases, epsilon, delta, L, d, M, alpha
PRIVACY = list(
    product(RELEASES, (0.1, 5.0), (1e-8, 0.1), (1.0, 2.5), (1, 10), (1, 100), (0.01, 1.0))
)
# T, M, d, L, rho_min, rho_max / rho_min
SIZES = list(product((1, 1000, 10**7), (1, 100), (1, 10), (1.0, 2.5), (1e-3, 7e4), (1.0, 3.0)))
# The oracle's log(1 + a few 1e-7) has 9 correct digits.
LOG_TOLERANCE = 1e-9
# sigma, alpha, S, kappa
NOISE_AND_BOUNDS = [(0.5, 0.01, 1.0, 0.0), (2.0, 1.0, 3.0, 31.0)]
# dp20-fig1 at full size.
FULL_SIZE = {"T": 10**7, "M": 100, "d": 10}


def trees(d: int, M: int, n: int, alpha: float, L: float = 1.0, gamma: int = 1) -> Trees:
    """Return trees of d features, M silos and n releases."""
    return Trees(
        dimension=d, silos=M, releases=n, failure_probability=alpha, feature_bound=L, gamma=gamma
    )


def sizes_of(
    T: int, M: int, d: int, rho_min: float, rho_max: float, L: float = 1.0, gamma: int = 1
) -> Sizes:
    """Return the sizes of a problem."""
    return Sizes(
        horizon=T, silos=M, dimension=d, rho_min=rho_min, rho_max=rho_max, feature_bound=L,
        gamma=gamma,
    )  # fmt: skip


def check_equal(actual: float, expected: float, rel: float = 1e-12) -> None:
    """Check that two numbers are equal up to rounding."""
    assert math.isclose(actual, expected, rel_tol=rel), (actual, expected)


# -- Constants -------------------------------------------------------------------------------------


def test_noise_constants_equal_the_oracles_constants() -> None:
    for n, epsilon, delta, L, d, M, alpha in PRIVACY:
        levels = oracle.levels(n)
        assert gaussian_release.privatizer_levels(n) == levels
        std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=L)
        check_equal(std, oracle.node_noise_std(epsilon, delta, levels, L))
        of_noise = trees(d, M, n, alpha, L)
        lambda_max = bounds.noise_bound(of_noise, epsilon, delta)
        check_equal(lambda_max, oracle.big_lambda(epsilon, delta, levels, L, d, n, M, alpha))
        kappa = bounds.bias_bound(of_noise, epsilon)
        check_equal(kappa, oracle.kappa_printed(epsilon, levels, L, d, n, M, alpha))
        nodes = oracle.prefix_nodes(n)
        check_equal(
            bounds.noise_bound_from_std(of_noise, std),
            oracle.lambda_from_noise(std, nodes, d, n, M, alpha),
        )
        check_equal(
            bounds.bias_bound_from_std(of_noise, std, lambda_max),
            oracle.kappa_from_noise(std, nodes, lambda_max, d, n, M, alpha),
        )


def test_gamma_trees_count_as_more_releases_of_the_same_tree() -> None:
    n, gamma = 250, 4
    m, nodes = oracle.levels(n), oracle.prefix_nodes(n)
    of_noise = trees(5, 7, n, 0.01, gamma=gamma)
    check_equal(
        bounds.noise_bound(of_noise, 1.0, 0.1),
        oracle.big_lambda(1.0, 0.1, m, 1.0, 5, gamma * n, 7, 0.01),
    )
    check_equal(
        bounds.bias_bound(of_noise, 1.0),
        oracle.kappa_printed(1.0, m, 1.0, 5, gamma * n, 7, 0.01),
    )
    check_equal(
        bounds.noise_bound_from_std(of_noise, 3.0),
        oracle.lambda_from_noise(3.0, nodes, 5, gamma * n, 7, 0.01),
    )
    check_equal(
        bounds.bias_bound_from_std(of_noise, 3.0, 2.0),
        oracle.kappa_from_noise(3.0, nodes, 2.0, 5, gamma * n, 7, 0.01),
    )


def test_levels_cover_all_nodes_of_a_leaf() -> None:
    for n in range(1, 300):
        assert depth(n) <= gaussian_release.privatizer_levels(n) == 1 + math.ceil(math.log2(n))


@pytest.mark.parametrize("delta", [0.9, 0.1, 1e-3, 1e-9, 1e-300])
def test_noise_of_algorithm_2_has_its_budget(delta: float) -> None:
    """Compare with exact accounting, up to the epsilon of the docstring.

    Every node has sensitivity L^2 + 1.
    """
    log_delta = math.log(2.0) - math.log(delta)
    largest = 8.0 * log_delta * (4.0 * log_delta - math.sqrt(2.0 * log_delta))
    for epsilon in (1e-3, 1.0, largest / 3, largest):
        for n in (1, 3, 400):
            std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=2.0)
            assert delta_of(epsilon, math.sqrt(depth(n)) * 5.0 / std) <= delta


def test_tiny_delta_gives_finite_noise() -> None:
    tiny = 1e-310  # 2 / tiny is infinite
    assert gaussian_release.node_noise_std(1.0, tiny, 1) == pytest.approx(
        8.0 * (math.log(2.0) + 310.0 * math.log(10.0))
    )
    assert math.isfinite(bounds.noise_bound(trees(3, 4, 9, tiny), 1.0, tiny))


def test_printed_lambda_exceeds_the_proven_one() -> None:
    for n, epsilon, delta, L, d, M, alpha in PRIVACY:
        std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=L)
        of_noise = trees(d, M, n, alpha, L)
        printed = bounds.noise_bound(of_noise, epsilon, delta)
        assert printed > bounds.noise_bound_from_std(of_noise, std)


def test_printed_kappa_is_no_bound_for_small_delta() -> None:
    n = 10**5
    of_noise = trees(10, 100, n, 0.01)
    printed = bounds.bias_bound(of_noise, 1.0)
    assert printed == pytest.approx(34.2, rel=2e-3)
    for delta, needed in [(0.1, 20.7), (1e-3, 35.1), (1e-5, 45.2)]:
        std = gaussian_release.node_noise_std(1.0, delta, n)
        lambda_max = bounds.noise_bound(of_noise, 1.0, delta)
        proven = bounds.bias_bound_from_std(of_noise, std, lambda_max)
        # The expected values assume m nodes in a prefix; there are fewer.
        node_share = max_prefix_nodes(n) / gaussian_release.privatizer_levels(n)
        assert proven == pytest.approx(needed * math.sqrt(node_share), rel=3e-3)
        assert (proven > printed) is (delta < 6.1e-4)


@pytest.mark.parametrize("dimension", [1, 3, 20])
def test_lambda_from_std_covers_the_largest_eigenvalue(dimension: int) -> None:
    """Compare with the distribution of eigenvalues (Mehta).

    The total for n M trees and both signs is alpha/4.
    """
    n, M, alpha, std = 50, 10, 0.02, 1.7
    prefix_std = std * math.sqrt(max_prefix_nodes(n))
    exact = prefix_std * largest_eigenvalue(dimension, alpha / (8 * n * M))
    bound = bounds.noise_bound_from_std(trees(dimension, M, n, alpha), std)
    assert exact <= bound < 1.8 * exact


def test_noise_exceeds_its_bounds_rarely() -> None:
    """Check one release of n M: each bound may fail in alpha / (4 n M) = 1.25 % of draws.

    The limit is 5 binomial standard deviations above that: a false alarm for fewer than 1e-5 of
    seeds.
    """
    d, n, M, std, alpha, draws = 3, 7, 1, 1.5, 0.35, 20_000
    rho_min = 4.0
    rng = np.random.default_rng(20200711)
    of_noise = trees(d, M, n, alpha)
    eigenvalue_bound = bounds.noise_bound_from_std(of_noise, std)
    length_bound = bounds.bias_bound_from_std(of_noise, std, rho_min) * math.sqrt(rho_min)
    squares = (
        std * math.sqrt(3) * rng.standard_normal((draws, d + 1, d + 1))
    )  # leaves 1..7 have 3 nodes
    noise = (squares + squares.transpose(0, 2, 1)) / math.sqrt(2)
    expected_failures = draws * alpha / (4 * n * M)
    limit = expected_failures + 5 * math.sqrt(expected_failures)
    assert (
        np.sum(np.abs(np.linalg.eigvalsh(noise[:, :d, :d])).max(axis=1) > eigenvalue_bound) <= limit
    )
    lengths = np.linalg.norm(noise[:, :d, d], axis=1)
    assert np.sum(lengths > length_bound) <= limit
    # The test can fail: the largest draws come within a fifth of the bound.
    assert lengths.max() > 0.8 * length_bound


def test_growth_and_thresholds_equal_the_oracles_values() -> None:
    for T, M, d, L, rho_min, ratio in SIZES:
        sizes = {"T": T, "d": d, "L": L, "rho_min": rho_min, "rho_max": ratio * rho_min}
        for gamma in (1, 3):
            of_gamma = sizes_of(**sizes, M=M, gamma=gamma)
            check_equal(
                of_gamma.log_growth, oracle.log_growth(**sizes, gamma=gamma), rel=LOG_TOLERANCE
            )
            check_equal(
                bounds.threshold("log-T", of_gamma),
                oracle.decentralised_threshold(**sizes, gamma=gamma),
            )
        for communication in bounds.THRESHOLDS:
            check_equal(
                bounds.threshold(communication, sizes_of(**sizes, M=M)),
                oracle.threshold(communication, M=M, **sizes),
            )


def test_growth_below_rounding_is_precise() -> None:
    check_equal(sizes_of(1, 1, 1, 1e20, 1e20).log_growth, 1e-20, rel=1e-14)


# -- Proposition 1 ---------------------------------------------------------------------------------


def test_proposition_1_equals_the_oracles_proposition() -> None:
    for T, M, d, L, rho_min, ratio in SIZES:
        sizes = {"T": T, "d": d, "L": L, "rho_min": rho_min, "rho_max": ratio * rho_min}
        for D in (0.3, 50.0):
            expected = oracle.proposition_1(D, **sizes)["appendix"]
            actual = bounds.proposition_1_appendix(sizes_of(**sizes, M=M), D)
            check_equal(actual, expected, rel=LOG_TOLERANCE)


def count_synchronisations(horizon: int, threshold: float, regularizer: float) -> int:
    """Count synchronisations of one silo without noise, with d = 1 and x = 1 in every round."""
    count, rounds_since, total = 0, 0, regularizer
    for _ in range(horizon):
        rounds_since += 1
        if math.log1p(rounds_since / total) * rounds_since >= threshold:
            count, total, rounds_since = count + 1, total + rounds_since, 0
    return count


@pytest.mark.parametrize(
    ("horizon", "threshold", "regularizer"),
    [
        (2000, 0.01, 1.0),
        (2000, 0.5, 0.1),  # d G > 2 D: outside the given proof
        (2000, 3.0, 10.0),
        (2000, 40.0, 1.0),
        (5000, 5e-4, 5e6),
    ],
)
def test_proposition_1_holds_without_privacy(
    horizon: int, threshold: float, regularizer: float
) -> None:
    """The bound holds even without the factors 2 and 4, as its docstring says."""
    sizes = sizes_of(horizon, 1, 1, regularizer, regularizer)
    count = count_synchronisations(horizon, threshold, regularizer)
    assert 0 < count <= (bounds.proposition_1_appendix(sizes, threshold) - 4.0) / 2.0


def test_main_text_of_proposition_1_is_no_bound() -> None:
    count = count_synchronisations(5000, 5e-4, 5e6)
    assert count > 90
    printed = oracle.proposition_1(5e-4, T=5000, d=1, L=1.0, rho_min=5e6, rho_max=5e6)
    assert printed["main-text"] < 11


def test_batch_size_follows_proposition_1() -> None:
    for T, M, d, L, rho_min, ratio in SIZES:
        sizes = {"T": T, "d": d, "L": L, "rho_min": rho_min, "rho_max": ratio * rho_min}
        D = oracle.threshold("log-T", M=M, **sizes)
        B = bounds.batch_size_proposition_1(sizes_of(**sizes, M=M), D)
        largest_count = math.ceil(oracle.proposition_1(D, **sizes)["appendix"])
        assert math.ceil(T / largest_count) == B
        assert 1 <= B <= T
        assert largest_count >= T // B
    # For T = 1e5 with printed Lambda, G is just above ln 3, and 2 sqrt(G (G + 1) / 2) + 4 = 6.1.
    lambda_max = bounds.noise_bound(trees(10, 100, 10**5, 0.01), 1.0, 0.1)
    long = sizes_of(10**5, 100, 10, lambda_max, 3 * lambda_max)
    batch_size = bounds.batch_size_proposition_1(long, bounds.threshold("log-T", long))
    assert batch_size == math.ceil(10**5 / 7)
    assert bounds.batch_size_proposition_1(sizes_of(1, 1, 1, 1.0, 1.0), 1.0) == 1


# -- Radius and theorems ---------------------------------------------------------------------------


def test_theorems_equal_the_oracles_theorems() -> None:
    for (T, M, d, L, rho_min, ratio), (sigma, alpha, S, kappa) in product(SIZES, NOISE_AND_BOUNDS):
        rho_max = ratio * rho_min
        sizes = {"T": T, "d": d, "L": L, "rho_min": rho_min, "rho_max": rho_max}
        noise_arguments = {"sigma": sigma, "alpha": alpha, "norm": S, "M": M, "kappa": kappa}
        arguments, norm = (kappa, sigma, alpha), {"parameter_bound": S}
        own_sizes = sizes_of(**sizes, M=M)
        beta_bar, growth = oracle.beta_bar(**noise_arguments, **sizes), oracle.log_growth(**sizes)
        radius = bounds.beta_bar(own_sizes, *arguments, **norm)
        check_equal(radius, beta_bar)
        check_equal(
            bounds.theorem_1(own_sizes, *arguments, **norm),
            oracle.theorem_1(**noise_arguments, **sizes),
        )
        parts = {"T": T, "d": d, "grown": growth}
        check_equal(
            bounds.theorem_1_explicit(own_sizes, radius),
            oracle.theorem_1_explicit(beta_bar, M=M, **parts),
        )
        for D in (0.3, 50.0):
            check_equal(
                bounds.theorem_1_two_terms(own_sizes, D, radius),
                oracle.theorem_1_two_terms(D, beta_bar, M=M, **parts),
                rel=LOG_TOLERANCE,
            )
        check_equal(
            bounds.theorem_2(sizes_of(**sizes, M=M, gamma=4), 1 + M // 3, *arguments, **norm),
            oracle.theorem_2(**noise_arguments, **sizes, cliques=1 + M // 3, gamma=4),
        )


def test_theorem_2_with_a_given_threshold() -> None:
    cliques, gamma, D = [4, 1, 3], 2, 6.0
    sizes = sizes_of(900, 8, 5, 8.0, 24.0, gamma=gamma)
    growth = math.log(3.0 + 900 / (2 * 5 * 8.0))
    beta_bar = (
        0.5 * math.sqrt(2 * math.log(200) + 5 * growth) + math.sqrt(8 * 24.0) + 0.7 * math.sqrt(8)
    )
    assert bounds.beta_bar(sizes, 0.7, 0.5, 0.01) == pytest.approx(beta_bar)
    value = bounds.theorem_2_two_terms(sizes, cliques, D, beta_bar)
    assert value == pytest.approx(
        oracle.theorem_2_two_terms(
            D, beta_bar, sizes=cliques, gamma=gamma, T=900, d=5, grown=growth
        )
    )
    # One clique of all silos with one estimator gives Theorem 1.
    server = sizes_of(900, 8, 5, 8.0, 24.0)
    assert bounds.theorem_2_two_terms(server, (8,), D, 2.0) == bounds.theorem_1_two_terms(
        server, D, 2.0
    )


def test_beta_bar_bounds_beta() -> None:
    """Use regularizers anywhere between rho_min and rho_max."""
    rng = np.random.default_rng(20200712)
    for _ in range(40):
        x = rng.standard_normal((3 * 20, 4))
        x *= 2.0 / np.linalg.norm(x, axis=1, keepdims=True)
        V = 3 * np.diag(rng.uniform(0.5, 2.0, 4)) + x.T @ x
        beta = oracle.beta(
            V, sigma=1.0, alpha=0.1, norm=1.5, M=3, rho_min=0.5, rho_max=2.0, kappa=0.2
        )
        sizes = sizes_of(20, 3, 4, 0.5, 2.0, L=2.0)
        beta_bar = bounds.beta_bar(sizes, 0.2, 1.0, 0.1, parameter_bound=1.5)
        assert beta <= beta_bar < 1.1 * beta


def test_constants_of_the_full_size_have_their_known_values() -> None:
    """Use T = 1e7, M = 100, d = 10, epsilon 1, delta 0.1, alpha 0.01, sigma 1/2 and L = S = 1."""
    T, M, d = FULL_SIZE["T"], FULL_SIZE["M"], FULL_SIZE["d"]
    assert gaussian_release.privatizer_levels(T) == 25
    of_noise = trees(d, M, T, 0.01)
    lambda_max = bounds.noise_bound(of_noise, 1.0, 0.1)
    assert M * lambda_max == pytest.approx(6.75e6, rel=2e-3)
    sizes, kappa = sizes_of(T, M, d, lambda_max, 3 * lambda_max), bounds.bias_bound(of_noise, 1.0)
    assert bounds.beta_bar(sizes, kappa, 0.5, 0.01) == pytest.approx(4950, rel=2e-3)
    # x adds little to M rho_min, so the trigger's left side is d ln 3.
    D = bounds.threshold("log-T", sizes)
    assert D / (d * math.log(3)) == pytest.approx(4.7e6, rel=0.01)


def test_last_step_of_theorem_1_omits_a_factor() -> None:
    sizes, arguments = sizes_of(10**6, 100, 10, 1.0, 1.0), (0.0, 0.5, 0.01)
    radius = bounds.beta_bar(sizes, *arguments)
    two_terms = bounds.theorem_1_two_terms(sizes, bounds.threshold("log-T", sizes), radius)
    explicit = bounds.theorem_1_explicit(sizes, radius)
    assert two_terms / explicit == pytest.approx(0.5 * math.sqrt(100) * 10, rel=0.1)
    # Theorem 1 itself omits another sqrt(d), so that it grows more slowly in d.
    assert bounds.theorem_1(sizes, *arguments) < explicit / 4


@dataclass(frozen=True)
class Setting:
    """Arguments of a bound on the regret."""

    sizes: dict[str, Any]
    kappa: float = 0.5
    reward_scale: float = 0.5
    failure_probability: float = 0.1
    parameter_bound: float = 1.0

    def value(self, bound: Callable[..., float], gamma: int) -> float:
        """Return ``bound`` (sizes, radius, the radius' arguments) of this setting."""
        sizes = Sizes(**self.sizes, gamma=gamma)
        arguments = (self.kappa, self.reward_scale, self.failure_probability)
        norm = {"parameter_bound": self.parameter_bound}
        return bound(sizes, bounds.beta_bar(sizes, *arguments, **norm), arguments, norm)


SETTING = Setting({"horizon": 1000, "silos": 8, "dimension": 5, "rho_min": 2.0, "rho_max": 6.0})
CENTRAL_BOUNDS: list[tuple[Callable[..., float], int]] = [
    (lambda sizes, radius, *rest: radius, 1),
    (lambda sizes, radius, arguments, norm: bounds.theorem_1(sizes, *arguments, **norm), 1),
    (lambda sizes, radius, *rest: bounds.theorem_1_explicit(sizes, radius), 1),
    (lambda sizes, radius, *rest: bounds.theorem_1_two_terms(sizes, 9.0, radius), 1),
    (lambda sizes, radius, arguments, norm: bounds.theorem_2(sizes, 1, *arguments, **norm), 2),
    (lambda sizes, radius, *rest: bounds.theorem_2_two_terms(sizes, [sizes.silos], 9.0, radius), 2),
]


@pytest.mark.parametrize(("bound", "gamma"), CENTRAL_BOUNDS)
def test_theorems_are_monotone(bound: Callable[..., float], gamma: int) -> None:
    value = SETTING.value(bound, gamma)
    for name, larger in [
        ("horizon", 2000), ("silos", 9), ("dimension", 6), ("rho_max", 7.0), ("feature_bound", 1.1),
    ]:  # fmt: skip
        assert replace(SETTING, sizes=SETTING.sizes | {name: larger}).value(bound, gamma) > value
    for name, larger in [("kappa", 0.6), ("reward_scale", 0.6), ("parameter_bound", 1.1)]:
        assert replace(SETTING, **{name: larger}).value(bound, gamma) > value
    assert replace(SETTING, failure_probability=0.2).value(bound, gamma) < value


def test_orders_are_multiplied_by_the_constant() -> None:
    sizes, arguments = sizes_of(1000, 8, 5, 2.0, 6.0, gamma=3), (0.5, 0.5, 0.1)
    assert bounds.theorem_1(sizes, *arguments, constant=3.0) == pytest.approx(
        3 * bounds.theorem_1(sizes, *arguments)
    )
    multiplied = bounds.theorem_2(sizes, 2, *arguments, constant=3.0)
    assert multiplied == pytest.approx(3 * bounds.theorem_2(sizes, 2, *arguments))


def test_constants_are_monotone() -> None:
    noise = (10, 100, 1000, 0.01)  # d, M, n, alpha
    for bound in (
        lambda of_noise: bounds.noise_bound(of_noise, 1.0, 0.1),
        lambda of_noise: bounds.bias_bound(of_noise, 1.0),
    ):
        for index, larger_value, falls in [(0, 11, 0), (1, 101, 0), (2, 2000, 0), (3, 0.02, 1)]:
            larger = trees(*noise[:index], larger_value, *noise[index + 1 :])
            assert (bound(larger) < bound(trees(*noise))) is bool(falls)
    of_noise = trees(*noise)
    assert bounds.noise_bound(of_noise, 2.0, 0.1) < bounds.noise_bound(of_noise, 1.0, 0.1)
    assert bounds.noise_bound(of_noise, 1.0, 0.2) < bounds.noise_bound(of_noise, 1.0, 0.1)
    assert bounds.bias_bound(of_noise, 2.0) < bounds.bias_bound(of_noise, 1.0)
    # A threshold twice as large means fewer synchronisations.
    short, long = (sizes_of(T, 1, 5, 1.0, 3.0) for T in (1000, 2000))
    value = bounds.proposition_1_appendix(short, 3.0)
    assert bounds.proposition_1_appendix(short, 6.0) < value
    assert bounds.proposition_1_appendix(long, 3.0) > value


def test_numpy_integers_do_not_overflow() -> None:
    of_numpy = sizes_of(np.int32(10**7), np.int32(100), np.int32(10), 2.0, 6.0)
    sizes = sizes_of(10**7, 100, 10, 2.0, 6.0)
    assert of_numpy == sizes
    assert type(of_numpy.horizon) is type(of_numpy.silos) is type(of_numpy.dimension) is int
    arguments = (0.5, 0.5, 0.1)
    for actual, expected in [
        (bounds.theorem_2(of_numpy, np.int32(50), *arguments),
         bounds.theorem_2(sizes, 50, *arguments)),
        (bounds.theorem_2_two_terms(of_numpy, [np.int32(50)] * 2, 3.0, 2.0),
         bounds.theorem_2_two_terms(sizes, [50, 50], 3.0, 2.0)),
        (bounds.noise_bound(trees(np.int32(10), np.int32(100), np.int32(10**7), 0.1), 1.0, 0.1),
         bounds.noise_bound(trees(10, 100, 10**7, 0.1), 1.0, 0.1)),
    ]:  # fmt: skip
        assert actual == expected


# -- Invalid arguments -----------------------------------------------------------------------------

# By argument: a valid value, invalid ones just outside the range, and the message up to the value.
ARGUMENTS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "horizon": (1000, (0,), "horizon must be an integer >= 1"),
    "silos": (8, (0,), "silos must be an integer >= 1"),
    "dimension": (5, (0,), "dimension must be an integer >= 1"),
    "releases": (9, (0,), "releases must be an integer >= 1"),
    "gamma": (2, (0,), "gamma must be an integer >= 1"),
    "cliques": (3, (0, 9), "cliques must be an integer >= 1 and <= 8"),
    "epsilon": (1.0, (0, -1, math.nan), "epsilon must be > 0"),
    "delta": (0.1, (0, 1), "delta must be > 0 and < 1"),
    "failure_probability": (0.1, (0, 1.5), "failure_probability must be > 0 and <= 1"),
    "noise_std": (3.0, (-1,), "noise_std must be >= 0"),
    "rho_min": (2.0, (0, math.nan), "rho_min must be > 0"),
    "rho_max": (6.0, (1, math.inf), "rho_max must be >= 2"),
    "kappa": (0.5, (-1,), "kappa must be >= 0"),
    "reward_scale": (0.5, (0,), "reward_scale must be > 0"),
    "threshold": (9.0, (0, math.inf), "threshold must be > 0"),
    "parameter_bound": (1.0, (0,), "parameter_bound must be > 0"),
    "feature_bound": (1.0, (0,), "feature_bound must be > 0"),
    "constant": (1.0, (0, -1), "constant must be > 0"),
    "communication": ("M1.5", ("log T",), 'communication must be one of "log-T", "M1.5"'),
    "radius": (3.0, (0, math.inf), "radius must be > 0"),
    "clique_sizes": ((4, 4), ([], [4, 5]), "clique_sizes must add up to 8 silos"),
}
OF_TREES = {name: ARGUMENTS[name][0] for name in Trees.__struct_fields__}
OF_SIZES = {name: ARGUMENTS[name][0] for name in Sizes.__struct_fields__}
OBJECTS = {"trees": Trees(**OF_TREES), "sizes": Sizes(**{**OF_SIZES, "gamma": 1})}
PUBLIC_FUNCTIONS: list[Callable[..., Any]] = [
    gaussian_release.privatizer_levels,
    gaussian_release.node_noise_std,
    Trees,
    Sizes,
]
PUBLIC_FUNCTIONS += [
    function
    for name, function in inspect.getmembers(bounds, inspect.isfunction)
    if function.__module__ == bounds.__name__
    and not name.startswith("_")
    # Use only formulas: functions with a config get checked values.
    and "config" not in inspect.signature(function).parameters
]


def test_every_argument_is_checked() -> None:
    assert len(PUBLIC_FUNCTIONS) == 17
    for function in PUBLIC_FUNCTIONS:
        names = inspect.signature(function).parameters
        valid = {name: OBJECTS.get(name) or ARGUMENTS[name][0] for name in names}
        function(**valid)
        for name in valid.keys() - OBJECTS.keys():
            for invalid in ARGUMENTS[name][1]:
                with pytest.raises(InputError) as error:
                    function(**valid | {name: invalid})
                expected = f"{ARGUMENTS[name][2]}, got {invalid!r}"
                assert str(error.value).startswith(expected), function.__name__


def test_types_are_checked() -> None:
    with pytest.raises(InputError, match=r"silos must be an integer, got 8\.0"):
        trees(5, 8.0, 9, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="gamma must be an integer >= 1 and <= 1, got 2"):
        bounds.threshold("M1.5", sizes_of(1000, 8, 5, 2.0, 6.0, gamma=2))
    cliques: Any
    for cliques, message in [
        (8, "clique_sizes must be a list of integers, got 8"),
        ([8, 0], r"clique_sizes\[1\] must be an integer >= 1, got 0"),
        ([8, 1.5], r"clique_sizes\[1\] must be an integer, got 1\.5"),
    ]:
        with pytest.raises(InputError, match=message):
            bounds.theorem_2_two_terms(sizes_of(1000, 8, 5, 2.0, 6.0), cliques, 1.0, 2.0)
