"""Tests of winsorized means: distributions by brute force, the rotation, and the privacy of all
releases."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import numpy as np
import pytest
from scipy import linalg, stats

from fastfed._validate import InputError
from fastfed.privacy import Budget, ClaimCondition, as_text, mu_of, winsorized_mean
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.mechanisms.laplace import (
    bin_count,
    private_range,
    range_distribution,
    winsorized_mean_1d,
)
from fastfed.privacy.mechanisms.winsorized import (
    WinsorizedMean,
    calibrate_winsorized,
    hadamard,
    printed_composition,
)

FALSE_ALARM = 1e-6  # false-alarm probability of each statistical test, set before the seeds


def range_probabilities(
    values: list[float], epsilon: float, radius: float, bound: float
) -> np.ndarray:
    """Return the probability of each midpoint, written as in Algorithm 2."""
    bins = math.ceil(bound / radius)
    midpoints = [-bound + (2 * k + 1) * radius for k in range(bins)]
    nearest = [
        min(midpoints, key=lambda m: abs(m - (x if math.isfinite(x) else 0.0))) for x in values
    ]
    costs = [max(sum(y < m for y in nearest), sum(y > m for y in nearest)) for m in midpoints]
    weights = np.exp([-epsilon * c / 2.0 for c in costs])
    return weights / weights.sum()


# ---- the range ----------------------------------------------------------------------------------


def test_probabilities_of_the_example_are_correct() -> None:
    values, expected = [-1.0, -0.3, 0.2, 0.9, 0.9], [0.0723294881, 0.1966119332, 0.5344466454]
    midpoints, logs = range_distribution(values, 2.0, 0.25, 1.0)
    assert midpoints.tolist() == [-0.75, -0.25, 0.25, 0.75]
    np.testing.assert_allclose(np.exp(logs), [*expected, expected[1]], rtol=1e-9)


@pytest.mark.parametrize(
    ("radius", "bound"),
    [
        pytest.param(0.25, 1.0, marks=pytest.mark.slow),
        (0.3, 1.0),
        pytest.param(1.0, 1.0, marks=pytest.mark.slow),
        (2.0, 1.0),
        pytest.param(0.05, 1.5, marks=pytest.mark.slow),
    ],
)
def test_range_distribution_equals_brute_force(radius: float, bound: float) -> None:
    """Invert the cdf on a grid of n uniforms.

    A midpoint of probability p then occurs n p times, up to the two ends of its interval.
    """
    rng, n = np.random.default_rng(1), 2000
    for size in (1, 2, 3, 8):
        values = rng.normal(scale=bound, size=size).round(2)
        if size == 8:
            values[:4] = [math.nan, math.inf, -math.inf, 1e9]
        epsilon = float(rng.uniform(0.1, 4.0))
        expected = range_probabilities(values.tolist(), epsilon, radius, bound)
        midpoints, logs = range_distribution(values, epsilon, radius, bound)
        np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-12)
        counts = np.zeros(len(midpoints))
        for i in range(n):
            low, high = private_range(values, epsilon, radius, bound, (i + 0.5) / n)
            assert high - low == pytest.approx(4.0 * radius)
            counts[np.abs(midpoints - (low + high) / 2.0).argmin()] += 1
        assert np.abs(counts - n * expected).max() <= 1.0


def test_midpoints_increase_with_the_uniform() -> None:
    lower_ends = [
        private_range([0.4, 0.5], 1.0, 0.01, 1.0, u)[0] for u in np.linspace(0.001, 0.999, 99)
    ]
    assert lower_ends == sorted(lower_ends)


def test_values_between_two_midpoints_go_to_the_lower() -> None:
    """Check midpoints and edges of 997 bins, where the quotient by the width is rounded."""
    radius, bound = 1.0 / 997.0, 1.0
    midpoints = np.array([-bound + (2 * k + 1) * radius for k in range(997)])
    points = np.concatenate([midpoints, midpoints + radius, np.nextafter(midpoints + radius, 2.0)])
    for x in np.clip(points, -1.0, 1.0)[::7]:
        nearest = midpoints[
            np.abs(midpoints - x).argmin()
        ]  # of two equally near midpoints, the first
        low, high = private_range([x], 1e6, radius, bound, 0.5)
        assert (low, high) == (nearest - 2 * radius, nearest + 2 * radius)
    # Differences from this value to all midpoints are rounded to the same number.
    assert private_range([1e300], 1e6, radius, bound, 0.5)[1] == midpoints[-1] + 2 * radius


@pytest.mark.parametrize(
    ("count", "bins", "largest"), [(4, 2, 0.81), (3, 5, 0.73), (7, 2, 0.95), (1, 8, 0.5)]
)
def test_privacy_of_the_range_under_all_replacements(count: int, bins: int, largest: float) -> None:
    """Check every small data set, with or without a value per bin, and every replacement."""
    midpoints = [2.0 * k + 1.0 - bins for k in range(bins)]
    max_log_ratio = max_spread = 0.0
    for others in itertools.combinations_with_replacement(midpoints, count - 1):
        logs = [range_distribution([x, *others], 1.0, 1.0, bins)[1] for x in midpoints]
        for first, second in itertools.permutations(logs, 2):
            max_log_ratio = max(max_log_ratio, float(np.abs(first - second).max()))
            max_spread = max(max_spread, float(np.ptp(first - second)))
    assert max_log_ratio == pytest.approx(largest, abs=0.006)
    assert max_spread == pytest.approx(1.0, rel=1e-12), "the bound of the range is attained"


def test_range_works_with_millions_of_midpoints() -> None:
    """Check seven million bins: the range nearly always lies next to the values and follows its
    cdf."""
    values = np.random.default_rng(2).normal(0.3, 1e-5, size=400)
    low, high = private_range(values, 1.0, 1e-6 / 7.0, 1.0, 0.5)
    assert abs((low + high) / 2.0 - np.median(values)) < 1e-6
    radius, epsilon = 1.0 / 50_000, 0.05
    midpoints, logs = range_distribution(values[:20], epsilon, radius, 1.0)
    cdf = np.cumsum(np.exp(logs))
    for u in np.linspace(0.0007, 0.9993, 211):
        midpoint = private_range(values[:20], epsilon, radius, 1.0, u)[0] + 2.0 * radius
        index = int(np.searchsorted(cdf, u * cdf[-1]))
        assert (
            abs(midpoint - midpoints[index]) <= 2.01 * radius
        )  # rounding at the end of an interval
    assert bin_count(1e-12, 1.0) == 10**12
    assert -1.0 < private_range([0.1], 60.0, 1e-12, 1.0, 0.4)[0] < 1.0


# ---- the mean in one dimension ------------------------------------------------------------------


def test_mean_is_the_mean_of_clipped_values_plus_laplace_noise() -> None:
    values, median = [0.1, 0.2, 50.0], 0.5
    low, high = private_range(values, 10.0, 0.1, 1.0, 0.6)
    expected = np.clip(values, low, high).mean()
    assert winsorized_mean_1d(values, 20.0, 0.1, 1.0, 0.6, median) == pytest.approx(expected)
    # Half of epsilon is spent on the range; it is so small that the range is often wrong.
    for u in np.linspace(0.01, 0.99, 25):
        expected = np.clip(values, *private_range(values, 0.5, 0.1, 1.0, u)).mean()
        assert winsorized_mean_1d(values, 1.0, 0.1, 1.0, u, median) == pytest.approx(expected)
    low, high = private_range(values, 10.0, 0.1, 1.0, 0.6)
    expected = np.clip(values, low, high).mean()
    shifted = winsorized_mean_1d(values, 20.0, 0.1, 1.0, 0.6, 0.9)
    noise = stats.laplace(scale=8.0 * 0.1 / (3 * 20.0)).ppf(0.9)
    assert shifted - expected == pytest.approx(noise)


def test_noise_of_the_mean_has_its_scale() -> None:
    """Check the scale 0.032 of 50 values at r = 0.1 and epsilon = 0.5."""
    rng, values = np.random.default_rng(3), np.zeros(50)
    noise = [
        winsorized_mean_1d(values, 0.5, 0.1, 0.1, 0.5, float(u)) for u in rng.uniform(size=4000)
    ]
    assert stats.kstest(noise, stats.laplace(scale=0.032).cdf).pvalue > FALSE_ALARM


def test_privacy_of_the_mean_in_one_dimension() -> None:
    """Compare densities for all replacements at 4 points, with the range as a mixture."""
    radius, bound, epsilon = 1.0, 3.0, 1.0
    y, scale = np.linspace(-40, 40, 2001), 8.0 * radius / (3 * epsilon)

    def log_density(values: tuple[float, ...]) -> np.ndarray:
        """Return the log density of the private mean of these values on the grid y."""
        weights = range_probabilities(list(values), epsilon / 2.0, radius, bound)
        density = np.zeros_like(y)
        for k, p in enumerate(weights):
            midpoint = -bound + (2 * k + 1) * radius
            mean = np.clip(values, midpoint - 2 * radius, midpoint + 2 * radius).mean()
            density += p * stats.laplace(mean, scale).pdf(y)
        return np.log(density)

    points = (-1e9, -1.0, 1.0, 1e9)
    logs = {values: log_density(values) for values in itertools.product(points, repeat=3)}
    max_log_ratio = max(
        float(np.abs(logs[v] - logs[(other, *v[1:])]).max()) for v in logs for other in points
    )
    assert 0.5 < max_log_ratio <= epsilon


# ---- the rotation -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64])
def test_hadamard_equals_the_matrix_product(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 9, size=(3, 5, n)).astype(float)
    x_before = x.copy()
    assert np.array_equal(hadamard(x), x @ linalg.hadamard(n))
    assert np.array_equal(x, x_before), "the argument is not changed"
    assert np.array_equal(hadamard(hadamard(x)), n * x)


def make_mean(**changes: object) -> WinsorizedMean:
    """Return a mechanism with these fields changed."""
    fields: dict = {
        "dimension": 5,
        "padded": 8,
        "silos": 300,
        "radius": 0.01,
        "bound": 1.0,
        "concentration_failure": 0.01,
        "epsilon_coordinate": 2.0,
        "releases": 3,
        "calibration": "exact",
        "budget": Budget(1.0, 1e-5, unit="silo"),
        "source": "test",
    }
    return WinsorizedMean(**{**fields, **changes})


def test_apply_without_noise_returns_the_mean() -> None:
    """Use the median of the noise and vectors that are close together, for several signs."""
    rng = np.random.default_rng(4)
    vectors = rng.normal([0.5, -0.2, 0.0, 0.3, 0.1], 0.002, size=(300, 5))
    for signs in itertools.islice(itertools.product([-1.0, 1.0], repeat=8), 0, 256, 19):
        mean = make_mean().apply(vectors, signs, np.full(8, 0.5), np.full(8, 0.5))
        np.testing.assert_allclose(mean, vectors.mean(axis=0), rtol=0, atol=1e-14)


def test_apply_equals_algorithm_4_with_matrices() -> None:
    rng, d2 = np.random.default_rng(5), 8
    mechanism = make_mean(silos=40, radius=0.02, epsilon_coordinate=0.3)
    vectors = rng.normal(size=(40, 5))
    signs, u, v = rng.choice([-1.0, 1.0], d2), rng.uniform(size=d2), rng.uniform(size=d2)
    rotation = linalg.hadamard(d2) @ np.diag(signs) / math.sqrt(d2)
    y = np.pad(vectors, ((0, 0), (0, 3))) @ rotation.T
    radius, bound = mechanism.rotated_radius, math.sqrt(8.0)
    means = [winsorized_mean_1d(y[:, s], 0.3, radius, bound, u[s], v[s]) for s in range(d2)]
    expected = (np.linalg.inv(rotation) @ means)[:5]
    np.testing.assert_allclose(mechanism.apply(vectors, signs, u, v), expected, rtol=1e-9)
    assert mechanism.rotated_radius == pytest.approx(0.2 * math.sqrt(math.log(8 * 40 / 0.01) / 8))
    assert make_mean(radius=5.0).rotated_radius == pytest.approx(math.sqrt(8.0)), "capped"
    assert make_mean(radius=5.0).bins == 1


def test_vectors_that_are_not_finite_count_as_zero() -> None:
    rng = np.random.default_rng(6)
    vectors = rng.normal(0.1, 0.01, size=(300, 5))
    cleaned = vectors.copy()
    for row, bad_value in ((3, math.nan), (9, math.inf), (11, -math.inf)):
        vectors[row, 2], cleaned[row] = bad_value, 0.0
    uniforms = np.ones(8), rng.uniform(size=8), rng.uniform(size=8)
    assert np.array_equal(
        make_mean().apply(vectors, *uniforms), make_mean().apply(cleaned, *uniforms)
    )
    vectors[:] = np.finfo(float).max
    assert np.isfinite(make_mean().apply(vectors, *uniforms)).all()


@pytest.mark.slow
def test_noise_of_every_coordinate_has_its_std() -> None:
    mechanism = make_mean(silos=1, radius=5.0)  # with one bin, only the Laplace noise is random
    rng = np.random.default_rng(7)
    means = np.array(
        [
            mechanism.apply(np.zeros((1, 5)), np.ones(8), np.full(8, 0.5), rng.uniform(size=8))
            for _ in range(1500)
        ]
    )
    std = mechanism.noise_stds["mean"]
    assert std == pytest.approx(math.sqrt(2.0) * 8.0 * math.sqrt(8.0) / 2.0)
    # The fourth moment of a sum of 8 Laplace variables is 3 + 3/8 times the squared variance.
    z = ((means**2).mean(axis=0) / std**2 - 1.0) / math.sqrt((3.0 + 3.0 / 8.0 - 1.0) / 1500)
    assert np.abs(z).max() < stats.norm.isf(FALSE_ALARM / 10)


# ---- privacy account ----------------------------------------------------------------------------


def calibrated_mean(
    epsilon: float, delta: float, releases: int, **changes: object
) -> WinsorizedMean:
    """Return a calibrated mechanism."""
    arguments: dict = {
        "silos": 200,
        "dimension": 8,
        "radius": 0.1,
        "bound": 1.0,
        "concentration_failure": 0.01,
    }
    return calibrate_winsorized(
        Budget(epsilon, delta), releases=releases, **{**arguments, **changes}
    )


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases", "dimension"),
    [
        (1.0, 1e-3, 10, 8),
        (5.0, 1e-3, 10, 6),
        (0.1, 1e-6, 30, 100),
        (5.0, 0.1, 2, 8),
        (8.0, 1e-9, 1, 1),
    ],
)
def test_exact_calibration_uses_the_whole_budget(
    epsilon: float, delta: float, releases: int, dimension: int
) -> None:
    mechanism = calibrated_mean(epsilon, delta, releases, dimension=dimension)
    assert mechanism.exact() <= epsilon
    epsilon_coordinate = mechanism.epsilon_coordinate
    larger_epsilon = msgspec.structs.replace(
        mechanism, epsilon_coordinate=1.01 * epsilon_coordinate
    )
    assert larger_epsilon.exact() > epsilon
    # With many releases, the limit is a Gaussian with the same variance of the privacy loss.
    if releases * mechanism.padded >= 80 and epsilon <= 1.0:
        gaussian_limit = math.sqrt(3.0 / (releases * mechanism.padded)) * mu_of(epsilon, delta)
        assert epsilon_coordinate == pytest.approx(gaussian_limit, rel=0.015)


def test_calibration_of_pure_budgets() -> None:
    mechanism = calibrated_mean(2.0, 0.0, 5)
    assert mechanism.exact() <= 2.0
    assert mechanism.epsilon_coordinate == pytest.approx(2.0 / 40.0, rel=1e-6)
    assert mechanism.exact(1e-3) < 2.0
    assert calibrated_mean(1.0, 1e-3, 0).exact() == 0.0, "what is never released costs nothing"


@pytest.mark.parametrize("dimension", [6, 8])
def test_printed_epsilon_of_a_coordinate_is_reproduced(dimension: int) -> None:
    mechanism = calibrated_mean(1.0, 1e-3, 10, dimension=dimension, calibration="printed")
    assert mechanism.epsilon_coordinate == pytest.approx(0.0021477172059375183, rel=1e-12)
    # All phases count in the printed constant, but the account counts only releases.
    fewer_releases = calibrated_mean(
        1.0, 1e-3, 4, dimension=dimension, calibration="printed", phases=10
    )
    assert fewer_releases.epsilon_coordinate == mechanism.epsilon_coordinate
    assert fewer_releases.exact() < mechanism.exact()


def pure_epsilon(epsilon_coordinate: float, coordinates: int, delta: float) -> float:
    """Compose coordinates when only pure privacy of the range is used."""
    kinds = ("randomized-response", "laplace")
    return composed_epsilon(
        [(kind, epsilon_coordinate / 2.0, coordinates) for kind in kinds], delta
    )


@pytest.mark.parametrize(("epsilon", "truth"), [(1.0, 0.015), (5.0, 0.126)])
def test_printed_constants_are_loose(epsilon: float, truth: float) -> None:
    """Compare with published figures, which were computed on a coarser grid and differ by a few per
    cent."""
    printed = calibrated_mean(epsilon, 1e-3, 10, calibration="printed")
    own_epsilon = pure_epsilon(printed.epsilon_coordinate, 80, 1e-3)
    assert 0.95 * truth < own_epsilon < 1.01 * truth
    assert printed.exact() < own_epsilon, (
        "the bounded range of the exponential mechanism is worth more"
    )


def test_exact_epsilon_of_a_coordinate_is_far_above_the_printed_one() -> None:
    printed = calibrated_mean(1.0, 1e-3, 10, calibration="printed").epsilon_coordinate
    assert 0.98 < pure_epsilon(0.0609, 80, 1e-3) < 1.0
    assert 28.0 < 0.0609 / printed < 29.0
    # With bounded range, only a third of the squared epsilon counts: 1 + 1 becomes 1 + 1/3.
    epsilon_coordinate = calibrated_mean(1.0, 1e-3, 10).epsilon_coordinate
    assert epsilon_coordinate / 0.0609 == pytest.approx(math.sqrt(1.5), rel=0.02)
    for epsilon in (0.5, 1.0, 4.0):
        for releases, dimension in ((2, 5), (10, 8), (14, 16)):
            sizes = {"releases": releases, "dimension": dimension}
            exact_mechanism = calibrated_mean(epsilon, 1e-5, **sizes)
            printed_mechanism = calibrated_mean(epsilon, 1e-5, **sizes, calibration="printed")
            assert (
                25.0
                < exact_mechanism.epsilon_coordinate / printed_mechanism.epsilon_coordinate
                < 45.0
            )


def test_account_agrees_with_dp_accounting() -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    common = pytest.importorskip("dp_accounting.pld.common")
    half = 0.0609 / 2.0
    shared = {"value_discretization_interval": half / 64}
    pair = library.from_laplace_mechanism(1.0 / half, **shared).compose(
        library.from_privacy_parameters(common.DifferentialPrivacyParameters(half, 0.0), **shared)
    )
    library_epsilon = pair.self_compose(80).get_epsilon_for_delta(1e-3)
    assert pure_epsilon(0.0609, 80, 1e-3) == pytest.approx(library_epsilon, rel=1e-3)


@pytest.mark.parametrize(("phases", "epsilon", "total"), [(2, 5.0, 5.06), (10, 10.0, 14.0)])
def test_printed_composition_exceeds_large_budgets(
    phases: int, epsilon: float, total: float
) -> None:
    budget = Budget(epsilon, 0.1)
    eps0 = epsilon / math.sqrt(6.0 * phases * math.log(20.0))
    total_epsilon = printed_composition(budget, eps0, phases)
    assert total_epsilon == pytest.approx(total, abs=0.06)
    expected = eps0 * math.sqrt(2 * phases * math.log(20.0)) + phases * eps0 * math.expm1(eps0)
    assert total_epsilon == pytest.approx(expected, rel=1e-12)
    # The proof fails, but the claim holds: the account is of the mechanism itself.
    mechanism = calibrated_mean(epsilon, 0.1, phases, calibration="printed")
    claim = mechanism.conditions()[-1]
    assert isinstance(claim, ClaimCondition) and claim.holds
    assert "not within the budget" in claim.text
    usual = calibrated_mean(1.0, 1e-5, phases, calibration="printed").conditions()[-1]
    assert ", within the budget" in usual.text


def test_conditions_show_a_claim_that_does_not_hold() -> None:
    conditions = make_mean(epsilon_coordinate=1.0).conditions()
    assert [c.holds for c in conditions] == [True, True, True, False]


def test_feasibility_of_the_range() -> None:
    """Compare M epsilon' / 8 with ln(10 bins)."""
    with_20_silos, with_40_silos = make_mean(silos=20), make_mean(silos=40)
    assert not with_20_silos.feasible and with_40_silos.feasible
    assert math.log(10 * with_20_silos.bins) > 20 * 2.0 / 8.0
    assert math.log(10 * with_40_silos.bins) < 40 * 2.0 / 8.0
    assert (
        with_40_silos.at(0.5).radius == 0.5
        and with_40_silos.at(0.5).exact() == with_40_silos.exact()
    )


# ---- the public function ------------------------------------------------------------------------


def test_winsorized_mean_of_similar_users_is_accurate() -> None:
    rng = np.random.default_rng(8)
    centre = np.array([0.3, -0.2, 0.1])
    x = rng.normal(centre, 0.01, size=(20_000, 3))
    mean, certificate = winsorized_mean(x, epsilon=1.0, delta=1e-6, radius=0.06)
    (std,) = certificate.noise_std.values()
    assert std < 0.003 and np.abs(mean - centre).max() < 25 * std
    assert (certificate.unit, certificate.relation) == ("user", "replace")
    assert certificate.status == "proven" and all(caveat.holds for caveat in certificate.conditions)
    assert certificate.claimed is not None and certificate.exact is not None
    assert 0.999 < certificate.exact.epsilon <= certificate.claimed.epsilon == 1.0
    assert "proven" in as_text(certificate) and json.loads(msgspec.json.encode(certificate))
    assert not any("too few" in caveat or "seed" in caveat for caveat in certificate.caveats)


def test_results_depend_on_the_seed_or_on_system_noise() -> None:
    x = np.random.default_rng(9).normal(0.1, 0.01, size=(50, 6))
    kwargs = {"epsilon": 1.0, "delta": 1e-5, "radius": 0.05}
    first, certificate = winsorized_mean(x, **kwargs, seed=1)
    same_seed, other_seed = (winsorized_mean(x, **kwargs, seed=seed)[0] for seed in (1, 2))
    assert np.array_equal(first, same_seed) and not np.array_equal(first, other_seed)
    with_system_noise = [winsorized_mean(x, **kwargs)[0] for _ in range(2)]
    assert not np.array_equal(*with_system_noise)
    caveats = " ".join(certificate.caveats)
    assert "seed" in caveats and "50 users are too few" in caveats


def test_vectors_are_clipped_and_never_raise_errors() -> None:
    rng = np.random.default_rng(10)
    x = rng.normal(size=(400, 3))
    x *= (10.0 ** rng.uniform(-3, 3, size=400) / np.linalg.norm(x, axis=1))[:, None]
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    kwargs = {"epsilon": 50.0, "delta": 1e-3, "radius": 0.01, "bound": 2.0, "seed": 3}
    mean = winsorized_mean(x, **kwargs)[0]
    mean_of_clipped = winsorized_mean(x * np.minimum(1.0, 2.0 / norms), **kwargs)[0]
    np.testing.assert_allclose(mean, mean_of_clipped, rtol=1e-9)
    x[0], x[1], x[2, 0], x[3] = math.nan, 1e308, -math.inf, 5e-324
    assert np.isfinite(winsorized_mean(x, **kwargs)[0]).all()
    assert winsorized_mean([[math.nan]], epsilon=1.0, delta=0.0, radius=1.0)[0].shape == (1,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: private_range([], 1.0, 1.0, 1.0), "values must hold at least one value"),
        (lambda: private_range([0.0], 0.0, 1.0, 1.0), "epsilon must be > 0, got 0"),
        (lambda: private_range([0.0], 1.0, 0.0, 1.0), "radius must be > 0, got 0"),
        (lambda: private_range([0.0], 1.0, 1e-300, 1.0), "radius must be at least bound / 2"),
        (lambda: private_range([0.0], 1.0, 1.0, 1.0, 1.0), "uniform must be > 0 and < 1"),
        (lambda: winsorized_mean_1d([0.0], 1.0, 1.0, 1.0, 0.5, 0.0), "laplace_uniform must be"),
        (lambda: make_mean(padded=16), "padded must be 8 for dimension 5, got 16"),
        (lambda: make_mean(calibration="theorem"), "calibration must be one of"),
        (lambda: make_mean().apply(np.zeros((2, 5)), *np.ones((3, 8))), "vectors must have shape"),
        (lambda: make_mean().apply(np.zeros((300, 5)), *np.full((3, 8), 0.5)), "signs must be"),
        (lambda: make_mean().apply(np.zeros((300, 5)), *np.ones((3, 8))), "range_uniforms must be"),
        (lambda: calibrated_mean(1.0, 0.0, 1, calibration="printed"), "delta must be > 0"),
        (lambda: calibrated_mean(1.0, 0.1, 5, calibration="printed", phases=4), "phases must be"),
        (lambda: winsorized_mean(np.zeros((0, 3)), epsilon=1, delta=0.1, radius=1), "one row"),
        (lambda: winsorized_mean(np.zeros(3), epsilon=1, delta=0.1, radius=1), "vectors must"),
    ],
)
def test_errors_name_the_bad_argument(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
