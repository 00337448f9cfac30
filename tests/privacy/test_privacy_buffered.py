"""Buffered Toeplitz noise: its numbers, its account, and that both drivers run them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import oracle.dvijotham_2024 as oracle
import pytest
from test_drivers import both, experiment, same

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
def test_factors_are_those_of_dense_matrices(releases):
    t, w, direct = (np.array(part) for part in buffers(releases))
    for found, wanted in zip((t, w, direct), oracle.points(releases), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert float(direct) > 0.0 and (w > 0.0).all() and ((t > 0.0) & (t < 1.0)).all()
    left = oracle.decoder(t, w, float(direct), releases)
    right = oracle.encoder(left)
    np.testing.assert_allclose(buffered_coefficients(releases), left[:, 0], rtol=1e-13)
    np.testing.assert_allclose(buffered_column(releases), right[:, 0], rtol=1e-11)
    np.testing.assert_allclose(
        buffered_prefix_variances(releases), (left**2).sum(axis=1), rtol=1e-12
    )
    most = (right**2).sum(axis=0).max()
    assert most * (1.0 - 1e-12) <= buffered_sensitivity_squared(releases) <= most * (1.0 + 1e-11)


@pytest.mark.parametrize("releases", SIZES)
def test_error_is_that_of_the_square_root_within_half_a_percent(releases):
    t, w, direct = buffers(releases)
    left = oracle.decoder(np.array(t), np.array(w), direct, releases)
    best = oracle.square_root(releases)
    assert oracle.error(left, oracle.encoder(left)) < 1.005 * oracle.error(best, best)


@pytest.mark.parametrize("releases", [10**3, 10**4, 10**5, 10**6])
def test_so_it_is_for_many_releases(releases):
    variance = buffered_prefix_variances(releases)[-1]
    error = math.sqrt(variance * buffered_sensitivity_squared(releases))
    exact = toeplitz_prefix_variances(releases)[-1]
    assert exact == pytest.approx(toeplitz_sensitivity_squared(releases))
    assert 1.0 - 1e-12 < error / exact < 1.003
    assert len(buffers(releases)[0]) <= 8


@pytest.mark.parametrize("releases", [1, 2, 5, 33, 1000, 10**5])
def test_the_column_is_positive_and_falls(releases):
    """What makes the first leaves the worst."""
    column = buffered_column(releases)
    assert (column > 0.0).all() and (np.diff(column) < 0.0).all()


def test_the_column_keeps_its_digits():
    """Against the same sums in extended precision, where there is one."""
    numbers, releases = packed(20_000).astype(np.longdouble), 20_000
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no extended precision here")
    direct, decays, weights = numbers[0], numbers[1::2], numbers[2::2]
    state, first, total = np.zeros_like(decays), direct + weights.sum(), np.longdouble(0)
    wanted = np.empty(releases, np.longdouble)
    for k in range(releases):
        state *= decays
        made = ((k == 0) - (weights * state).sum()) / first
        state += made
        total += made
        wanted[k] = total
    np.testing.assert_allclose(buffered_column(releases), wanted.astype(float), rtol=1e-11)
    squared = float((wanted * wanted).sum())
    assert squared <= buffered_sensitivity_squared(releases) < squared * (1.0 + 2e-12)


@pytest.mark.parametrize("returning", [1, 2, 5, 12, 40])
def test_users_who_come_back(returning):
    """The first leaves, against random sets of others."""
    releases = 12
    t, w, direct = buffers(releases)
    right = oracle.encoder(oracle.decoder(np.array(t), np.array(w), direct, releases))
    found = buffered_sensitivity_squared(releases, returning)
    draw, count = np.random.default_rng(returning), min(returning, releases)
    first = float((right[:, :count].sum(axis=1) ** 2).sum())
    assert found == pytest.approx(first, rel=1e-11)
    for _ in range(300):
        chosen = draw.choice(releases, count, replace=False)
        assert float((right[:, chosen].sum(axis=1) ** 2).sum()) <= found


def test_noise_is_calibrated_to_the_coefficients_that_run():
    release = calibrate_release("buffered", Budget(1.0, 1e-6), 300)
    assert release.exact() == pytest.approx(1.0, rel=1e-9)
    assert "Dvijotham" in release.source
    worse = calibrate_release("toeplitz", Budget(1.0, 1e-6), 300)
    stds = [r.noise_std * math.sqrt(r.variance_factors[-1]) for r in (release, worse)]
    assert stds[1] < stds[0] < stds[1] * 1.005


def plan_of(release="buffered", **keys):
    sizes = {"silos": 2, "horizon": 22, "batch_size": 3, "lazy": False, "protocol": "silo-ldp"}
    e = experiment(Sphere(dimension=3, actions=4), {**sizes, "release": release, **keys})
    return e, e.curves[0].system


def test_prefix_noise_is_a_row_of_the_dense_factor():
    """Also where one is asked for again."""
    plan = plan_of()[1].plan
    made, source = BufferedNoise(plan), SeededNoise(3, 1)
    t, w, direct = buffers(plan.releases)
    left = oracle.decoder(np.array(t), np.array(w), direct, plan.releases)
    z = np.array([source.node(0, k, 3) for k in range(1, plan.releases + 1)])
    for k in range(1, plan.releases + 1):
        once, again = (made.at(k, lambda n: source.node(0, n, 3)) for _ in range(2))
        np.testing.assert_array_equal(once, again)
        np.testing.assert_allclose(once, left[k - 1] @ z, rtol=1e-12, atol=1e-13)
        terms = made.terms(k)
        assert all(
            Fraction(float(left[k - 1, n - 1])) == pytest.approx(c) for n, c in terms.items()
        )


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("lazy", [False, True])
def test_both_drivers_play_it(protocol, lazy):
    e, system = plan_of(protocol=protocol, lazy=lazy, epsilon=20.0)
    (fast,), (readable,) = both(e)
    same(fast, readable)
    assert system.certificate.status == ("proven" if lazy else "unproven")
    if lazy:
        assert system.certificate.exact.epsilon == pytest.approx(20.0, rel=1e-7)
    square_root, square_root_system = plan_of(
        "toeplitz", protocol=protocol, lazy=lazy, epsilon=20.0
    )
    assert system.certificate.status == square_root_system.certificate.status
    (other,), _ = both(square_root)
    assert not np.array_equal(fast.total, other.total)


def test_an_agent_has_it_too():
    keys = {"epsilon": 2.0, "delta": 0.01}
    sizes = {
        "silos": 1,
        "horizon": 30,
        "release": "buffered",
        "protocol": "linucb-jdp",
        "batch_size": 2,
    }
    (fast,), (readable,) = both(experiment(Sphere(dimension=2, actions=3), sizes, **keys))
    same(fast, readable)


def test_a_step_costs_the_same_late():
    """By the number of vectors that are kept: no history."""
    plans = [plan_of(horizon=t, batch_size=1)[1].plan for t in (100, 3000)]
    assert [p.history_numbers for p in plans] == [0, 0]
    assert [p.buffers for p in plans] == [5, 6]
    kept = np.zeros((plans[1].buffers, 4))
    noise = aggregation.buffered(np.ones(4), plans[1].coefficients, kept)
    np.testing.assert_allclose(noise, 1.0, rtol=1e-15)
