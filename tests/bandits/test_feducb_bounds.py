"""FedUCB's constants and bounds: against the oracle, by hand, and what is proven of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracle import dubey_pentland_2020 as oracle

from fastfed._validate import InputError
from fastfed.bandits import feducb_bounds as bounds
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
# The oracle's log(1 + a few 1e-7) keeps 9 digits.
LOST = 1e-9
# sigma, alpha, S, kappa
LAW = [(0.5, 0.01, 1.0, 0.0), (2.0, 1.0, 3.0, 31.0)]
# dp20-fig1 at full size.
FULL = {"T": 10**7, "M": 100, "d": 10}


def agree(ours: float, theirs: float, rel: float = 1e-12) -> None:
    assert math.isclose(ours, theirs, rel_tol=rel), (ours, theirs)


# -- Constants -------------------------------------------------------------------------------------


def test_privatizer_is_the_oracles() -> None:
    for n, epsilon, delta, L, d, M, alpha in PRIVACY:
        m = oracle.levels(n)
        assert gaussian_release.privatizer_levels(n) == m
        std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=L)
        agree(std, oracle.node_noise_std(epsilon, delta, m, L))
        big = bounds.noise_bound(d, M, epsilon, delta, n, alpha, feature_bound=L)
        agree(big, oracle.big_lambda(epsilon, delta, m, L, d, n, M, alpha))
        kappa = bounds.bias_bound(d, M, epsilon, n, alpha, feature_bound=L)
        agree(kappa, oracle.kappa_printed(epsilon, m, L, d, n, M, alpha))
        nodes = oracle.prefix_nodes(n)
        agree(
            bounds.noise_bound_from_std(d, M, std, n, alpha),
            oracle.lambda_from_noise(std, nodes, d, n, M, alpha),
        )
        agree(
            bounds.bias_bound_from_std(d, M, std, big, n, alpha),
            oracle.kappa_from_noise(std, nodes, big, d, n, M, alpha),
        )


def test_gamma_trees_are_more_releases_of_the_same_tree() -> None:
    n, gamma = 250, 4
    m, nodes = oracle.levels(n), oracle.prefix_nodes(n)
    common = {"gamma": gamma}
    agree(
        bounds.noise_bound(5, 7, 1.0, 0.1, n, 0.01, **common),
        oracle.big_lambda(1.0, 0.1, m, 1.0, 5, gamma * n, 7, 0.01),
    )
    agree(
        bounds.bias_bound(5, 7, 1.0, n, 0.01, **common),
        oracle.kappa_printed(1.0, m, 1.0, 5, gamma * n, 7, 0.01),
    )
    agree(
        bounds.noise_bound_from_std(5, 7, 3.0, n, 0.01, **common),
        oracle.lambda_from_noise(3.0, nodes, 5, gamma * n, 7, 0.01),
    )
    agree(
        bounds.bias_bound_from_std(5, 7, 3.0, 2.0, n, 0.01, **common),
        oracle.kappa_from_noise(3.0, nodes, 2.0, 5, gamma * n, 7, 0.01),
    )


def test_levels_pay_for_all_that_a_leaf_touches() -> None:
    for n in range(1, 300):
        assert depth(n) <= gaussian_release.privatizer_levels(n) == 1 + math.ceil(math.log2(n))


@pytest.mark.parametrize("delta", [0.9, 0.1, 1e-3, 1e-9, 1e-300])
def test_noise_of_algorithm_2_gives_its_budget(delta: float) -> None:
    """By exact accounting, up to the epsilon of the docstring; every node costs L^2 + 1."""
    log_delta = math.log(2.0) - math.log(delta)
    largest = 8.0 * log_delta * (4.0 * log_delta - math.sqrt(2.0 * log_delta))
    for epsilon in (1e-3, 1.0, largest / 3, largest):
        for n in (1, 3, 400):
            std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=2.0)
            assert delta_of(epsilon, math.sqrt(depth(n)) * 5.0 / std) <= delta


def test_delta_below_the_reach_of_a_quotient() -> None:
    tiny = 1e-310  # 2 / tiny is infinite
    assert gaussian_release.node_noise_std(1.0, tiny, 1) == pytest.approx(
        8.0 * (math.log(2.0) + 310.0 * math.log(10.0))
    )
    assert math.isfinite(bounds.noise_bound(3, 4, 1.0, tiny, 9, tiny))


def test_printed_lambda_is_never_below_the_proven_one() -> None:
    for n, epsilon, delta, L, d, M, alpha in PRIVACY:
        std = gaussian_release.node_noise_std(epsilon, delta, n, feature_bound=L)
        printed = bounds.noise_bound(d, M, epsilon, delta, n, alpha, feature_bound=L)
        assert printed > bounds.noise_bound_from_std(d, M, std, n, alpha)


def test_printed_kappa_is_no_bound_at_small_delta() -> None:
    n, d, M, alpha = 10**5, 10, 100, 0.01
    printed = bounds.bias_bound(d, M, 1.0, n, alpha)
    assert printed == pytest.approx(34.2, rel=2e-3)
    for delta, needed in [(0.1, 20.7), (1e-3, 35.1), (1e-5, 45.2)]:
        std = gaussian_release.node_noise_std(1.0, delta, n)
        big = bounds.noise_bound(d, M, 1.0, delta, n, alpha)
        proven = bounds.bias_bound_from_std(d, M, std, big, n, alpha)
        # The figures quoted take m nodes in a prefix; there are fewer.
        share = max_prefix_nodes(n) / gaussian_release.privatizer_levels(n)
        assert proven == pytest.approx(needed * math.sqrt(share), rel=3e-3)
        assert (proven > printed) is (delta < 6.1e-4)


@pytest.mark.parametrize("dimension", [1, 3, 20])
def test_lambda_from_std_covers_the_largest_eigenvalue(dimension: int) -> None:
    """Against the law of eigenvalues (Mehta), n M trees and both signs: alpha/4 in all."""
    n, M, alpha, std = 50, 10, 0.02, 1.7
    spread = std * math.sqrt(max_prefix_nodes(n))
    exact = spread * largest_eigenvalue(dimension, alpha / (8 * n * M))
    bound = bounds.noise_bound_from_std(dimension, M, std, n, alpha)
    assert exact <= bound < 1.8 * exact


def test_noise_stays_in_its_bounds() -> None:
    """One release of n M: each bound may fail in alpha / (4 n M) = 1.25 % of draws.

    5 binomial standard deviations above that: a false alarm in fewer than 1e-5 of seeds.
    """
    d, n, M, std, alpha, draws = 3, 7, 1, 1.5, 0.35, 20_000
    rho_min = 4.0
    rng = np.random.default_rng(20200711)
    wide = bounds.noise_bound_from_std(d, M, std, n, alpha)
    far = bounds.bias_bound_from_std(d, M, std, rho_min, n, alpha) * math.sqrt(rho_min)
    squares = (
        std * math.sqrt(3) * rng.standard_normal((draws, d + 1, d + 1))
    )  # leaves 1..7: 3 nodes
    noise = (squares + squares.transpose(0, 2, 1)) / math.sqrt(2)
    most = draws * alpha / (4 * n * M)
    limit = most + 5 * math.sqrt(most)
    assert np.sum(np.abs(np.linalg.eigvalsh(noise[:, :d, :d])).max(axis=1) > wide) <= limit
    lengths = np.linalg.norm(noise[:, :d, d], axis=1)
    assert np.sum(lengths > far) <= limit
    # The test can fail: the largest draws come within a fifth of the bound.
    assert lengths.max() > 0.8 * far


def test_growth_and_thresholds_are_the_oracles() -> None:
    for T, M, d, L, low, ratio in SIZES:
        sizes = {"T": T, "d": d, "L": L, "rho_min": low, "rho_max": ratio * low}
        at = (T, d, low, ratio * low)
        for gamma in (1, 3):
            agree(
                bounds.log_growth(*at, feature_bound=L, gamma=gamma),
                oracle.log_growth(**sizes, gamma=gamma),
                rel=LOST,
            )
            agree(
                bounds.decentralised_threshold(T, d, gamma, low, ratio * low, feature_bound=L),
                oracle.decentralised_threshold(**sizes, gamma=gamma),
            )
        for communication in bounds.THRESHOLDS:
            agree(
                bounds.threshold(communication, T, M, d, low, ratio * low, feature_bound=L),
                oracle.threshold(communication, M=M, **sizes),
            )


def test_growth_below_rounding() -> None:
    agree(bounds.log_growth(1, 1, 1e20, 1e20), 1e-20, rel=1e-14)


# -- Proposition 1 ---------------------------------------------------------------------------------


def test_proposition_1_is_the_oracles() -> None:
    for T, _, d, L, low, ratio in SIZES:
        for D in (0.3, 50.0):
            at = (T, d, D, low, ratio * low)
            expected = oracle.proposition_1(D, T=T, d=d, L=L, rho_min=low, rho_max=ratio * low)
            for form, bound in [
                ("main-text", bounds.proposition_1_main_text),
                ("appendix", bounds.proposition_1_appendix),
                ("derived", bounds.proposition_1_derived),
            ]:
                agree(bound(*at, feature_bound=L), expected[form], rel=LOST)


def synchronisations(horizon: int, threshold: float, regularizer: float) -> int:
    """Of one silo without noise, d = 1 and x = 1 in every round."""
    count, since, total = 0, 0, regularizer
    for _ in range(horizon):
        since += 1
        if math.log1p(since / total) * since >= threshold:
            count, total, since = count + 1, total + since, 0
    return count


@pytest.mark.parametrize(
    ("horizon", "threshold", "regularizer"),
    [
        (2000, 0.01, 1.0),
        (2000, 0.5, 0.1),  # d G > 2 D: beyond the proof given
        (2000, 3.0, 10.0),
        (2000, 40.0, 1.0),
        (5000, 5e-4, 5e6),
    ],
)
def test_proposition_1_holds_without_privacy(
    horizon: int, threshold: float, regularizer: float
) -> None:
    """Even without the 2 and the 4, as the docstring says."""
    at = (horizon, 1, threshold, regularizer, regularizer)
    count = synchronisations(horizon, threshold, regularizer)
    appendix = bounds.proposition_1_appendix(*at)
    assert 0 < count <= (appendix - 4.0) / 2.0
    assert count <= bounds.proposition_1_derived(*at)


def test_main_text_of_proposition_1_is_no_bound() -> None:
    count = synchronisations(5000, 5e-4, 5e6)
    assert count > 90
    assert bounds.proposition_1_main_text(5000, 1, 5e-4, 5e6, 5e6) < 11


def test_batch_size_of_proposition_1() -> None:
    for T, M, d, L, low, ratio in SIZES:
        sizes = {"T": T, "d": d, "L": L, "rho_min": low, "rho_max": ratio * low}
        D = oracle.threshold("log-T", M=M, **sizes)
        B = bounds.batch_size_proposition_1(T, d, D, low, ratio * low, feature_bound=L)
        most = math.ceil(oracle.proposition_1(D, **sizes)["appendix"])
        assert math.ceil(T / most) == B
        assert 1 <= B <= T
        assert most >= T // B
    # T = 1e5 with printed Lambda: G is hardly more than ln 3, and 2 sqrt(G (G + 1) / 2) + 4 = 6.1.
    big = bounds.noise_bound(10, 100, 1.0, 0.1, 10**5, 0.01)
    limit = bounds.threshold("log-T", 10**5, 100, 10, big, 3 * big)
    found = bounds.batch_size_proposition_1(10**5, 10, limit, big, 3 * big)
    assert found == math.ceil(10**5 / 7)
    assert bounds.batch_size_proposition_1(1, 1, 1.0, 1.0, 1.0) == 1


# -- Radius and theorems ---------------------------------------------------------------------------


def test_theorems_are_the_oracles() -> None:
    for (T, M, d, L, low, ratio), (sigma, alpha, S, kappa) in product(SIZES, LAW):
        high = ratio * low
        sizes = {"T": T, "d": d, "L": L, "rho_min": low, "rho_max": high}
        law = {"sigma": sigma, "alpha": alpha, "norm": S, "M": M, "kappa": kappa}
        at = (T, M, d, low, high, kappa, sigma, alpha)
        named = {"parameter_bound": S, "feature_bound": L}
        bar, grown = oracle.beta_bar(**law, **sizes), oracle.log_growth(**sizes)
        agree(bounds.beta_bar(*at, **named), bar)
        agree(bounds.theorem_1(*at, **named), oracle.theorem_1(**law, **sizes))
        parts = {"T": T, "d": d, "grown": grown}
        agree(bounds.theorem_1_explicit(*at, **named), oracle.theorem_1_explicit(bar, M=M, **parts))
        rest = (low, high, kappa, sigma, alpha)
        for D in (0.3, 50.0):
            agree(
                bounds.theorem_1_two_terms(T, M, d, D, *rest, **named),
                oracle.theorem_1_two_terms(D, bar, M=M, **parts),
                rel=LOST,
            )
        agree(
            bounds.theorem_2(*at, 1 + M // 3, 4, **named),
            oracle.theorem_2(**law, **sizes, cliques=1 + M // 3, gamma=4),
        )


def test_theorem_2_before_its_threshold_is_chosen() -> None:
    sizes, gamma, D = [4, 1, 3], 2, 6.0
    at = (8.0, 24.0, 0.7, 0.5, 0.01)  # rho_min, rho_max, kappa, sigma, alpha
    grown = math.log(3.0 + 900 / (2 * 5 * 8.0))
    bar = 0.5 * math.sqrt(2 * math.log(200) + 5 * grown) + math.sqrt(8 * 24.0) + 0.7 * math.sqrt(8)
    assert bounds.beta_bar(900, 8, 5, *at, gamma=gamma) == pytest.approx(bar)
    value = bounds.theorem_2_two_terms(900, sizes, 5, D, *at, gamma)
    assert value == pytest.approx(
        oracle.theorem_2_two_terms(D, bar, sizes=sizes, gamma=gamma, T=900, d=5, grown=grown)
    )
    # One clique of all silos, one estimator: Theorem 1.
    one = bounds.theorem_2_two_terms(900, (8,), 5, D, *at, 1)
    assert one == pytest.approx(bounds.theorem_1_two_terms(900, 8, 5, D, *at))


def test_beta_bar_bounds_beta() -> None:
    """For regularizers anywhere between rho_min and rho_max."""
    rng = np.random.default_rng(20200712)
    for _ in range(40):
        x = rng.standard_normal((3 * 20, 4))
        x *= 2.0 / np.linalg.norm(x, axis=1, keepdims=True)
        V = 3 * np.diag(rng.uniform(0.5, 2.0, 4)) + x.T @ x
        beta = oracle.beta(
            V, sigma=1.0, alpha=0.1, norm=1.5, M=3, rho_min=0.5, rho_max=2.0, kappa=0.2
        )
        bar = bounds.beta_bar(
            20, 3, 4, 0.5, 2.0, 0.2, 1.0, 0.1, parameter_bound=1.5, feature_bound=2.0
        )
        assert beta <= bar < 1.1 * beta


def test_full_size() -> None:
    """T = 1e7, M = 100, d = 10, epsilon 1, delta .1, alpha .01, sigma 1/2, L = S = 1."""
    T, M, d = FULL["T"], FULL["M"], FULL["d"]
    assert gaussian_release.privatizer_levels(T) == 25
    big = bounds.noise_bound(d, M, 1.0, 0.1, T, 0.01)
    assert M * big == pytest.approx(6.75e6, rel=2e-3)
    kappa = bounds.bias_bound(d, M, 1.0, T, 0.01)
    assert bounds.beta_bar(T, M, d, big, 3 * big, kappa, 0.5, 0.01) == pytest.approx(4950, rel=2e-3)
    # x adds little to M rho_min: the trigger's left side is d ln 3.
    D = bounds.threshold("log-T", T, M, d, big, 3 * big)
    assert D / (d * math.log(3)) == pytest.approx(4.7e6, rel=0.01)


def test_the_last_step_of_theorem_1_drops_a_factor() -> None:
    at = (1.0, 1.0, 0.0, 0.5, 0.01)
    D = bounds.threshold("log-T", 10**6, 100, 10, 1.0, 1.0)
    whole = bounds.theorem_1_two_terms(10**6, 100, 10, D, *at)
    explicit = bounds.theorem_1_explicit(10**6, 100, 10, *at)
    assert whole / explicit == pytest.approx(0.5 * math.sqrt(100) * 10, rel=0.1)
    # And Theorem 1 itself another sqrt(d), so that it grows more slowly in d.
    assert bounds.theorem_1(10**6, 100, 10, *at) < explicit / 4


CENTRAL: list[Callable[..., float]] = [
    bounds.beta_bar,
    bounds.theorem_1,
    bounds.theorem_1_explicit,
    lambda T, M, d, *rest, **named: bounds.theorem_1_two_terms(T, M, d, 9.0, *rest, **named),
    lambda *at, **named: bounds.theorem_2(*at, 1, 2, **named),
    lambda T, M, d, *rest, **named: bounds.theorem_2_two_terms(T, [M], d, 9.0, *rest, 2, **named),
]


@pytest.mark.parametrize("bound", CENTRAL)
def test_theorems_move_as_they_should(bound: Callable[..., float]) -> None:
    # horizon, silos, dimension, rho_min, rho_max, kappa, reward_scale, failure_probability
    at: list[Any] = [1000, 8, 5, 2.0, 6.0, 0.5, 0.5, 0.1]
    value = bound(*at)
    for place, more in [(0, 2000), (1, 9), (2, 6), (4, 7.0), (5, 0.6), (6, 0.6)]:
        assert bound(*at[:place], more, *at[place + 1 :]) > value
    assert bound(*at[:7], 0.2) < value
    assert bound(*at, parameter_bound=1.1) > value
    assert bound(*at, feature_bound=1.1) > value


def test_orders_take_a_constant() -> None:
    at = (1000, 8, 5, 2.0, 6.0, 0.5, 0.5, 0.1)
    assert bounds.theorem_1(*at, constant=3.0) == pytest.approx(3 * bounds.theorem_1(*at))
    more = bounds.theorem_2(*at, 2, 3, constant=3.0)
    assert more == pytest.approx(3 * bounds.theorem_2(*at, 2, 3))


def test_constants_move_as_they_should() -> None:
    def lower(function: Callable[..., float], at: tuple[Any, ...], place: int, more: Any) -> bool:
        return function(*at[:place], more, *at[place + 1 :]) < function(*at)

    noise = (10, 100, 1.0, 0.1, 1000, 0.01)  # d, M, epsilon, delta, n, alpha
    for place, more, falls in [
        (0, 11, False), (1, 101, False), (2, 2.0, True), (3, 0.2, True), (4, 2000, False),
        (5, 0.02, True),
    ]:  # fmt: skip
        assert lower(bounds.noise_bound, noise, place, more) is falls
    bias = (10, 100, 1.0, 1000, 0.01)
    for place, more, falls in [
        (0, 11, False), (1, 101, False), (2, 2.0, True), (3, 2000, False), (4, 0.02, True),
    ]:  # fmt: skip
        assert lower(bounds.bias_bound, bias, place, more) is falls
    # Twice the threshold: fewer synchronisations.
    for bound in (
        bounds.proposition_1_main_text,
        bounds.proposition_1_appendix,
        bounds.proposition_1_derived,
    ):
        assert lower(bound, (1000, 5, 3.0, 1.0, 3.0), 2, 6.0)
        assert not lower(bound, (1000, 5, 3.0, 1.0, 3.0), 0, 2000)


def test_numpy_integers_do_not_overflow() -> None:
    T, M, d = np.int32(10**7), np.int32(100), np.int32(10)
    at: tuple[Any, ...] = (2.0, 6.0, 0.5, 0.5, 0.1)
    for ours, theirs in [
        (bounds.theorem_1(T, M, d, *at), bounds.theorem_1(10**7, 100, 10, *at)),
        (bounds.theorem_2(T, M, d, *at, np.int32(50), T),
         bounds.theorem_2(10**7, 100, 10, *at, 50, 10**7)),
        (bounds.theorem_1_two_terms(T, M, d, 3.0, *at),
         bounds.theorem_1_two_terms(10**7, 100, 10, 3.0, *at)),
        (bounds.threshold("M1.5", T, M, d, 2.0, 6.0),
         bounds.threshold("M1.5", 10**7, 100, 10, 2.0, 6.0)),
        (bounds.noise_bound(d, M, 1.0, 0.1, T, 0.1),
         bounds.noise_bound(10, 100, 1.0, 0.1, 10**7, 0.1)),
    ]:  # fmt: skip
        assert ours == theirs


# -- What is refused -------------------------------------------------------------------------------

# By argument: a good value, bad ones just outside, and the sentence up to the value.
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
    "clique_sizes": ((4, 4), ([],), "clique_sizes must hold at least one clique"),
}
PUBLIC: list[Callable[..., Any]] = [
    gaussian_release.privatizer_levels,
    gaussian_release.node_noise_std,
]
PUBLIC += [
    function
    for name, function in inspect.getmembers(bounds, inspect.isfunction)
    if function.__module__ == bounds.__name__
    and not name.startswith("_")
    # Formulas; those that read a Config get checked values.
    and "config" not in inspect.signature(function).parameters
]


def test_every_argument_is_checked() -> None:
    assert len(PUBLIC) == 19
    for function in PUBLIC:
        good = {name: ARGUMENTS[name][0] for name in inspect.signature(function).parameters}
        function(**good)
        for name in good:
            for bad in ARGUMENTS[name][1]:
                with pytest.raises(InputError) as refused:
                    function(**good | {name: bad})
                expected = f"{ARGUMENTS[name][2]}, got {bad!r}"
                assert str(refused.value).startswith(expected), function.__name__


def test_types_are_checked() -> None:
    with pytest.raises(InputError, match=r"silos must be an integer, got 8\.0"):
        bounds.noise_bound(5, 8.0, 1.0, 0.1, 9, 0.1)  # type: ignore[arg-type]
    sizes: Any
    for sizes, sentence in [
        (8, "clique_sizes must be a list of integers, got 8"),
        ([8, 0], r"clique_sizes\[1\] must be an integer >= 1, got 0"),
        ([8, 1.5], r"clique_sizes\[1\] must be an integer, got 1\.5"),
    ]:
        with pytest.raises(InputError, match=sentence):
            bounds.theorem_2_two_terms(1000, sizes, 5, 1.0, 2.0, 6.0, 0.5, 0.5, 0.1, 1)
