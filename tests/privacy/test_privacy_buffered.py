"""Check buffered Toeplitz noise: its factors, its account, and that both drivers agree on it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import oracle.dvijotham_2024 as oracle
import pytest
from test_drivers import assert_same_bits, experiment, outcomes_of_both_drivers

from fastfed._kernels import aggregation
from fastfed._random import SeededNoise
from fastfed.environments import Sphere
from fastfed.privacy.releases.buffered import (
    buffered_coefficients,
    buffered_column,
    buffered_prefix_variances,
    buffered_sensitivity_squared,
    buffers,
    packed,
)
from fastfed.privacy.releases.gaussian_release import calibrate_release
from fastfed.privacy.releases.prefix_sums import (
    toeplitz_prefix_variances,
    toeplitz_sensitivity_squared,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.release import BufferedNoise

SIZES = [1, 2, 3, 7, 64, 400]


@pytest.mark.parametrize("releases", SIZES)
def test_factors_equal_dense_matrices(releases):
    t, w, direct = (np.array(part) for part in buffers(releases))
    for actual, expected in zip((t, w, direct), oracle.points(releases), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert float(direct) > 0.0 and (w > 0.0).all() and ((t > 0.0) & (t < 1.0)).all()
    decoder = oracle.decoder(t, w, float(direct), releases)
    encoder = oracle.encoder(decoder)
    np.testing.assert_allclose(buffered_coefficients(releases), decoder[:, 0], rtol=1e-13)
    np.testing.assert_allclose(buffered_column(releases), encoder[:, 0], rtol=1e-11)
    np.testing.assert_allclose(
        buffered_prefix_variances(releases), (decoder**2).sum(axis=1), rtol=1e-12
    )
    sensitivity_squared = (encoder**2).sum(axis=0).max()
    assert (
        sensitivity_squared * (1.0 - 1e-12)
        <= buffered_sensitivity_squared(releases)
        <= sensitivity_squared * (1.0 + 1e-11)
    )


@pytest.mark.parametrize("releases", SIZES)
def test_error_exceeds_that_of_the_square_root_by_at_most_half_a_percent(releases):
    t, w, direct = buffers(releases)
    decoder = oracle.decoder(np.array(t), np.array(w), direct, releases)
    square_root = oracle.square_root(releases)
    assert oracle.error(decoder, oracle.encoder(decoder)) < 1.005 * oracle.error(
        square_root, square_root
    )


@pytest.mark.parametrize("releases", [10**3, 10**4, 10**5, 10**6])
def test_error_for_many_releases_is_close_to_the_square_root(releases):
    variance = buffered_prefix_variances(releases)[-1]
    error = math.sqrt(variance * buffered_sensitivity_squared(releases))
    exact = toeplitz_prefix_variances(releases)[-1]
    assert exact == pytest.approx(toeplitz_sensitivity_squared(releases))
    assert 1.0 - 1e-12 < error / exact < 1.003
    assert len(buffers(releases)[0]) <= 8


@pytest.mark.parametrize("releases", [1, 2, 5, 33, 1000, 10**5])
def test_column_is_positive_and_decreases(releases):
    """Such a column makes the first leaves the worst."""
    column = buffered_column(releases)
    assert (column > 0.0).all() and (np.diff(column) < 0.0).all()


def test_column_has_the_precision_of_doubles():
    """Compare with the same sums in extended precision, if the platform has it."""
    parameters, releases = packed(20_000).astype(np.longdouble), 20_000
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no extended precision here")
    direct, decays, weights = parameters[0], parameters[1::2], parameters[2::2]
    state, first, total = np.zeros_like(decays), direct + weights.sum(), np.longdouble(0)
    expected = np.empty(releases, np.longdouble)
    for k in range(releases):
        state *= decays
        entry = ((k == 0) - (weights * state).sum()) / first
        state += entry
        total += entry
        expected[k] = total
    np.testing.assert_allclose(buffered_column(releases), expected.astype(float), rtol=1e-11)
    squared = float((expected * expected).sum())
    assert squared <= buffered_sensitivity_squared(releases) < squared * (1.0 + 2e-12)


@pytest.mark.parametrize("returning", [1, 2, 5, 12, 40])
def test_sensitivity_of_returning_users_is_that_of_the_first_leaves(returning):
    """Compare the first leaves with random sets of leaves."""
    releases = 12
    t, w, direct = buffers(releases)
    encoder = oracle.encoder(oracle.decoder(np.array(t), np.array(w), direct, releases))
    sensitivity_squared = buffered_sensitivity_squared(releases, returning)
    rng, count = np.random.default_rng(returning), min(returning, releases)
    of_first_leaves = float((encoder[:, :count].sum(axis=1) ** 2).sum())
    assert sensitivity_squared == pytest.approx(of_first_leaves, rel=1e-11)
    for _ in range(300):
        chosen = rng.choice(releases, count, replace=False)
        assert float((encoder[:, chosen].sum(axis=1) ** 2).sum()) <= sensitivity_squared


def test_noise_is_calibrated_to_the_buffered_coefficients():
    release = calibrate_release("buffered", Budget(1.0, 1e-6), 300)
    assert release.exact() == pytest.approx(1.0, rel=1e-9)
    assert "Dvijotham" in release.source
    toeplitz = calibrate_release("toeplitz", Budget(1.0, 1e-6), 300)
    stds = [
        each_release.noise_std * math.sqrt(each_release.variance_factors[-1])
        for each_release in (release, toeplitz)
    ]
    assert stds[1] < stds[0] < stds[1] * 1.005


def make_experiment(release="buffered", **keys):
    """Return an experiment with this release, and its system."""
    sizes = {"silos": 2, "horizon": 22, "batch_size": 3, "lazy": False, "protocol": "silo-ldp"}
    built_experiment = experiment(
        Sphere(dimension=3, actions=4), {**sizes, "release": release, **keys}
    )
    return built_experiment, built_experiment.curves[0].system


def test_prefix_noise_is_a_row_of_the_dense_factor_times_normals():
    """Draw a prefix also twice."""
    plan = make_experiment()[1].plan
    noise, source = BufferedNoise(plan), SeededNoise(3, 1)
    t, w, direct = buffers(plan.releases)
    decoder = oracle.decoder(np.array(t), np.array(w), direct, plan.releases)
    normals = np.array([source.node(0, k, 3) for k in range(1, plan.releases + 1)])
    for k in range(1, plan.releases + 1):
        first, second = (noise.at(k, lambda n: source.node(0, n, 3)) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, decoder[k - 1] @ normals, rtol=1e-12, atol=1e-13)
        terms = noise.terms(k)
        assert all(
            Fraction(float(decoder[k - 1, n - 1])) == pytest.approx(c) for n, c in terms.items()
        )


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("lazy", [False, True])
def test_drivers_agree_with_buffered_noise(protocol, lazy):
    built_experiment, system = make_experiment(protocol=protocol, lazy=lazy, epsilon=20.0)
    (compiled,), (readable,) = outcomes_of_both_drivers(built_experiment)
    assert_same_bits(compiled, readable)
    assert system.certificate.status == ("proven" if lazy else "unproven")
    if lazy:
        assert system.certificate.exact.epsilon == pytest.approx(20.0, rel=1e-7)
    square_root, square_root_system = make_experiment(
        "toeplitz", protocol=protocol, lazy=lazy, epsilon=20.0
    )
    assert system.certificate.status == square_root_system.certificate.status
    (toeplitz,), _ = outcomes_of_both_drivers(square_root)
    assert not np.array_equal(compiled.total, toeplitz.total)


def test_drivers_agree_for_a_single_agent():
    keys = {"epsilon": 2.0, "delta": 0.01}
    sizes = {
        "silos": 1,
        "horizon": 30,
        "release": "buffered",
        "protocol": "linucb-jdp",
        "batch_size": 2,
    }
    (compiled,), (readable,) = outcomes_of_both_drivers(
        experiment(Sphere(dimension=2, actions=3), sizes, **keys)
    )
    assert_same_bits(compiled, readable)


def test_late_releases_need_no_more_memory():
    """Check the number of kept vectors: there is no history."""
    plans = [make_experiment(horizon=horizon, batch_size=1)[1].plan for horizon in (100, 3000)]
    assert [plan.history_numbers for plan in plans] == [0, 0]
    assert [plan.buffers for plan in plans] == [5, 6]
    buffers = np.zeros((plans[1].buffers, 4))
    noise = aggregation.buffered(np.ones(4), plans[1].coefficients, buffers)
    np.testing.assert_allclose(noise, 1.0, rtol=1e-15)
