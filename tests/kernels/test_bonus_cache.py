"""Tests of cached bounds on the bonuses of actions: with them the drivers choose exactly the same
actions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_drivers import assert_same_bits, experiment

from fastfed._kernels import driver, linalg
from fastfed.environments import Sphere
from fastfed.environments.base import RewardDistribution
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks
from fastfed.simulation import compiled, server
from fastfed.simulation.bench import SyntheticPool
from fastfed.simulation.experiment import make_experiment

needs_i16 = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor does without 16-bit products"
)


class Rows(PoolEnvironment):
    """An environment whose queries are given rows; equal rows tie."""

    kind = "rows"

    def __init__(
        self,
        rows: np.ndarray,
        sizes: list[int],
        silos: int,
        sampling: str = "with-replacement",
    ) -> None:
        super().__init__(sampling=sampling, reward=RewardDistribution("bernoulli"))
        theta = np.random.default_rng(5).normal(size=rows.shape[1])
        theta /= np.linalg.norm(theta)
        lengths = np.linalg.norm(rows, axis=1)
        self.means = 0.5 + 0.5 * rows @ theta / np.maximum(lengths, 1.0)
        self.rows, self.starts = rows, np.concatenate([[0], np.cumsum(sizes)])
        self.silo_starts = equal_blocks(len(sizes), silos)

    def load(self, silos: int | None) -> Pool:
        """Return the pool of the rows."""
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict:
        """Return the kind only."""
        return {"kind": self.kind}


def rows_of(rng, sizes: list[int], d: int, kind: str) -> np.ndarray:
    """Return random rows of this kind."""
    rows = rng.normal(size=(sum(sizes), d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "ties":  # every action has an equal twin, also in float32
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2]
    elif kind == "near ties":
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2] * (1.0 - 1e-7)
    elif kind == "lengths":  # some are clipped, tiny or zero
        rows *= 10.0 ** rng.uniform(-3.0, 2.0, (len(rows), 1))
        rows[::7] = 0.0
    elif kind == "few directions":
        rows = rows[rng.integers(0, 3, len(rows))] + 1e-3 * rows
    return rows


def run_both(e):
    """Return the outcomes of both drivers and the compiled driver's cached bounds."""
    environment = e.environment.open(e.seed, 0, e.silos)
    plans = [curve.system.plan for curve in e.curves]
    states = [compiled.state(plan, len(e.checkpoints), True) for plan in plans]
    run = driver.Run(environment, e.silos, e.horizon, e.checkpoints, states, 1)
    run.initialise()
    run.simulate(1, e.horizon)
    outcomes = [compiled.outcome(plan, s) for plan, s in zip(plans, states, strict=True)]
    return outcomes, server.run_steps(environment, plans, e.checkpoints), run.bonus_bounds()


KINDS = ["unit", "ties", "near ties", "lengths", "few directions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "silo-ldp direct", "local"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("d", [3, 6, 23, 41])
def test_both_drivers_choose_the_same_actions(d, lazy, protocol, kind):
    rng = np.random.default_rng([d, lazy, len(kind)])
    sizes = [1, 16, 17, 40, 64, 65, 9, 33]
    if protocol == "local" and lazy:
        pytest.skip("who learns alone is eager")
    batch = {} if protocol == "local" else {"batch_size": 13}
    # The default radius has a second bonus.
    radius = {"radius": "lemma-c2"} if protocol == "silo-ldp" else {}
    run_sizes = {"silos": 2, "horizon": 90, "protocol": protocol.split()[0], "lazy": lazy}
    rows, keys = rows_of(rng, sizes, d, kind), {**run_sizes, **batch, **radius}
    # Bounds decide without a sieve, and with the sieve that some curves have by default.
    for sieve in ({"sieve": 1.0}, {}):
        e = experiment(Rows(rows, sizes, 2), {**keys, **sieve})
        (compiled_outcome,), (step_outcome,), _ = run_both(e)
        assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("kind", ["long tail", "ties", "near ties", "huge"])
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
@pytest.mark.parametrize("lazy", [False, True])
def test_partial_products_never_lose_the_best_action(lazy, radius, kind):
    """Use rows of very different norms, where a few products and lower bounds decide."""
    rng = np.random.default_rng([lazy, len(radius), len(kind)])
    sizes = [90, 120, 33, 150, 65, 17, 48, 100]
    rows = np.exp(1.5 * rng.normal(size=(sum(sizes), 70)))
    rows /= np.linalg.norm(rows, axis=1).max()
    if kind in ("ties", "near ties"):
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2] * (1.0 if kind == "ties" else 1.0 - 1e-7)
    elif kind == "huge":
        rows *= 1e6
    keys = {"silos": 2, "horizon": 120, "protocol": "silo-ldp", "lazy": lazy, "batch_size": 20}
    for sieve in ({"sieve": 1.0}, {}):
        e = experiment(Rows(rows, sizes, 2), {**keys, "radius": radius, **sieve})
        (compiled_outcome,), (step_outcome,), _ = run_both(e)
        assert_same_bits(compiled_outcome, step_outcome)


@needs_i16
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
def test_nearly_all_choices_use_cached_bounds(radius):
    """Use a noisy V, where bounds belong to the release."""
    rng, sizes = np.random.default_rng(0), [40] * 6
    keys = {"silos": 3, "horizon": 300, "protocol": "silo-ldp", "lazy": False, "batch_size": 10}
    e = experiment(Rows(rows_of(rng, sizes, 12, "unit"), sizes, 3), {**keys, "radius": radius})
    (compiled_outcome,), (step_outcome,), [(bound_releases, factors, _)] = run_both(e)
    assert_same_bits(compiled_outcome, step_outcome)
    # Releases are counted from one: the current bounds belong to the last three batches.
    assert bound_releases.min() >= 28
    assert factors.max() <= 1


@needs_i16
@pytest.mark.parametrize("kind", KINDS)
def test_silos_with_a_grown_v_compute_their_own_factors(kind):
    """Check silos that learn alone: their only release has V = lambda I, whose bounds soon become
    too weak."""
    rng, sizes = np.random.default_rng(2), [60] * 8
    keys = {"silos": 2, "horizon": 400, "protocol": "local", "lazy": False, "sieve": 1.0}
    e = experiment(Rows(rows_of(rng, sizes, 34, kind), sizes, 2), keys)
    (compiled_outcome,), (step_outcome,), [(_, factors, _)] = run_both(e)
    assert_same_bits(compiled_outcome, step_outcome)
    assert factors.min() >= 1 and factors.max() < 100


@needs_i16
def test_useless_bounds_are_computed_again_after_twice_the_data():
    """Check the first batch, where V is lambda I plus few points: not every round computes
    bounds."""
    curve = {"label": "first", "algorithm": "private-fedlinucb", "protocol": "silo-ldp"}
    curve |= {"epsilon": 1.0, "delta": 0.1, "lazy": False, "batch_size": 25}
    curve |= {"calibration": "published-code", "radius": "published-code"}
    e = make_experiment(
        name="first", environment=SyntheticPool(300, 135, 60), curves=[curve], horizon=250, silos=4
    )
    state = compiled.state(e.curves[0].system.plan, len(e.checkpoints), True)
    run = driver.Run(e.environment.open(0, 0, 4), 4, 250, e.checkpoints, [state], 1)
    run.initialise()
    run.simulate(1, 24)
    ((bound_releases, factors, _),) = run.bonus_bounds()
    assert factors.min() >= 1 and factors.max() <= 5
    assert 4 <= (bound_releases != 0).sum() <= 4 * 5


@needs_i16
def test_growth_of_the_second_bonus_is_bounded():
    """Check that ||V^-1 x|| grows with V by at most the tracked bound."""
    rng, sizes, d = np.random.default_rng(7), [40] * 6, 8
    keys = {"silos": 2, "horizon": 90, "protocol": "none", "lazy": False, "batch_size": 60}
    e = experiment(Rows(rows_of(rng, sizes, d, "unit"), sizes, 2), keys)
    state = compiled.state(e.curves[0].system.plan, len(e.checkpoints), True)
    run = driver.Run(e.environment.open(7, 0, 2), 2, 90, e.checkpoints, [state], 1)
    run.initialise()
    run.simulate(1, 60)
    w_before, checked = state["w"][0].copy(), 0
    for last in range(61, 91):
        run.simulate(last, last)
        ((_, factors, growth_bounds),) = run.bonus_bounds()
        # Silos without their own factor use the factor of the release.
        for silo in np.flatnonzero(factors == 0):
            checked += 1
            w_now = state["w"][silo]
            old, new = w_before.T @ w_before, w_now.T @ w_now
            x = np.concatenate(
                [np.linalg.eigh(new @ new - old @ old)[1].T, rng.normal(size=(50, d))]
            )
            grown = np.linalg.norm(x @ new, axis=1) - np.linalg.norm(x @ old, axis=1)
            width = np.linalg.norm(x @ w_before.T, axis=1)
            assert (grown <= growth_bounds[silo] * width).all()
            assert (grown > 1e-3 * growth_bounds[silo] * width).any()
    assert checked > 20


@needs_i16
def test_drivers_agree_with_bounds_and_data_dependent_schedules():
    """Check that silos that go back drop bounds computed for a later V."""
    rng, sizes = np.random.default_rng(0), [90] * 12
    curve = {"label": "dp20", "algorithm": "feducb", "epsilon": 1e5, "delta": 1e-5, "lazy": False}
    curve |= {"schedule": "determinant", "communication": 50.0}
    rows = Rows(rows_of(rng, sizes, 20, "unit"), sizes, 3)
    e = make_experiment(name="back", environment=rows, curves=[curve], horizon=400, silos=3)
    (compiled_outcome,), (step_outcome,), [(_, factors, _)] = run_both(e)
    assert_same_bits(compiled_outcome, step_outcome)
    assert 1 < compiled_outcome.synchronisations[-1] < 100 and factors.max() > 0


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
def test_rows_that_occur_once_have_no_cached_bounds(lazy, radius):
    """Check pools that are not stored in 16 bits, and contexts that are new in each round."""
    rng, sizes = np.random.default_rng(4), [33, 64, 17, 90] * 40
    keys = {"silos": 2, "horizon": 70, "protocol": "silo-ldp", "lazy": lazy, "batch_size": 20}
    pool = Rows(rows_of(rng, sizes, 41, "unit"), sizes, 2, "without-replacement")
    for environment in (pool, Sphere(dimension=33, actions=50)):
        (compiled_outcome,), (step_outcome,), _ = run_both(
            experiment(environment, {**keys, "radius": radius})
        )
        assert_same_bits(compiled_outcome, step_outcome)


@needs_i16
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0, 12.0])
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 57, 64, 65, 71, 135])
def test_a_single_factor_bounds_both_bonuses(d, spread):
    """Check ||W x||^2 + c ||W'W x||^2 against the factor's bound, from above and below."""
    rng = np.random.default_rng([d, int(10 * spread)])
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    v = basis * 10.0 ** rng.uniform(0.0, spread, d) @ basis.T
    w = linalg.factor(v[np.tril_indices(d)], d)
    w_long = np.asarray(w, np.longdouble)
    x = np.concatenate([rng.normal(size=(60, d)), basis.T])
    z = x @ w_long.T
    for c in (1e-3, 1.0, 1e4):
        result = driver.bonus_factor(w, c)
        if result is None:  # too close to singular, given rounding errors
            assert spread > 6.0
            continue
        r, error = result
        assert (r == np.tril(r)).all()
        exact = np.sqrt((z * z).sum(axis=1) + c * ((z @ w_long) ** 2).sum(axis=1))
        bound = np.sqrt(((x @ r.astype(np.longdouble).T) ** 2).sum(axis=1))
        length = np.linalg.norm(x, axis=1)
        assert (exact <= bound + error * length).all()
        assert (bound <= exact + error * length).all()
        assert error * length.max() <= 1e-4 * exact.max()


@needs_i16
@pytest.mark.parametrize("gamma", [0.0, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("d", [33, 57, 71, 135])
def test_every_score_is_between_its_bounds(d, spread, gamma):
    rng = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    scales = 10.0 ** rng.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    rows = np.concatenate([rng.normal(size=(60, d)), basis.T, np.exp(2 * rng.normal(size=(20, d)))])
    rows *= 10.0 ** rng.uniform(-4.0, 4.0, (len(rows), 1))
    rows = rows.astype(np.float32)
    columns = np.asfortranarray(rows)
    for size in (0.0, 1.0, 1e3):
        theta = size * rng.normal(size=d)
        result = linalg.bonus_ends(columns, w, theta, 1.5, gamma, np.empty((0, d)))
        assert result is not None
        bounds = result[0]
        score = linalg.scores(columns, w, theta, 1.5, gamma)
        assert (score <= bounds[:3]).all() and (bounds[3:] <= score).all()
        # The bounds are useful. The lower bound is weak where the second bonus is the smaller part.
        if size == 0.0:
            assert np.median(bounds[1] / score) < 1.1 and (bounds[1] <= 1.1 * bounds[0]).all()
            assert np.median(bounds[3] / score) > (0.9 if gamma != 0.1 else 0.1)


@needs_i16
@pytest.mark.parametrize("d", [33, 57, 135])
def test_norms_in_float32_are_lower_bounds(d):
    """Check rows for which the products of W and x nearly cancel, so that rounding dominates."""
    rng = np.random.default_rng(d)
    w = np.tril(rng.normal(size=(d, d)), -1) + np.diag(rng.uniform(0.1, 3.0, d))
    rows = np.linalg.svd(w)[2].astype(np.float32)
    columns, theta = np.asfortranarray(rows), np.zeros(d)
    result = linalg.bonus_ends(columns, w, theta, 1.5, 0.0, np.empty((0, d)))
    assert result is not None
    score = linalg.scores(columns, w, theta, 1.5, 0.0)
    assert (result[0][4] <= score).all()
    assert np.median(result[0][4] / score) > 0.9999
    # Also check magnitudes outside the range of float32.
    for w_scale, x_scale in ((1e-40, 1.0), (1e40, 1e-20), (1e-20, 1e-25), (1e25, 1e20)):
        columns = np.asfortranarray((x_scale * rows.astype(np.float64)).astype(np.float32))
        result = linalg.bonus_ends(columns, w_scale * w, theta, 1.5, 0.0, np.empty((0, d)))
        score = linalg.scores(columns, w_scale * w, theta, 1.5, 0.0)
        assert result is None or (result[0][4] <= score).all()


@needs_i16
@pytest.mark.parametrize("gamma", [0.1, 3.0, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("d", [33, 71, 135])
def test_every_score_stays_between_its_bounds_as_v_grows(d, spread, gamma):
    """Check the release's bounds for the V of an eager silo.

    This includes the points that entered V, whose widths fall most, and rows whose second bonuses
    fall most.
    """
    rng = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    scales = 10.0 ** rng.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    theta, inverse = 1e-3 * rng.normal(size=d), w.T @ w
    for length in (1e-3, 0.03, 0.3, 1.0):
        # Repeating a single direction makes the widths along it fall as far as the bound allows.
        single = np.repeat(rng.normal(size=(1, d)) @ w, 12, axis=0)
        # In the least known direction the second bonus dominates, in the best known direction the
        # first.
        least_known = np.repeat(basis[:, [np.argmin(scales)]].T, 12, axis=0)
        best_known = np.repeat(basis[:, [np.argmax(scales)]].T, 12, axis=0)
        for points in (rng.normal(size=(12, d)), single, least_known, best_known):
            points *= length / np.linalg.norm(points @ w.T, axis=1, keepdims=True)
            rows = np.concatenate([points, points @ inverse, basis.T, rng.normal(size=(40, d))])
            columns = np.asfortranarray(rows.astype(np.float32))
            result = linalg.bonus_ends(columns, w, theta, 1.5, gamma, points)
            assert result is not None
            bounds, w_now = result
            score = linalg.scores(columns, w_now, theta, 1.5, gamma)
            assert (score <= bounds[:3]).all() and (bounds[3:] <= score).all()
            # The lower bound is weak where the second bonus does not dominate.
            if length == 1e-3 and gamma >= 30.0:
                assert np.median(bounds[3] / score) > 0.9


@needs_i16
@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("d", [57, 135])
def test_overflow_of_float32_gives_no_bound(d, gamma):
    """Use partial sums that become infinite in float32 although the score is finite."""
    rng = np.random.default_rng(d)
    basis = np.ascontiguousarray(np.linalg.qr(rng.normal(size=(d, d)))[0][:, :6].T)
    w = linalg.factor((3.0 * np.eye(d) + basis.T @ basis)[np.tril_indices(d)], d)
    rows = rng.normal(size=(40, 6)) @ basis
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for length in 10.0 ** np.arange(13.0, 20.0, 0.5):
        columns = np.asfortranarray((length * rows).astype(np.float32))
        for size in (1e-3, 1e10, 3e38 / length, 1e60 / length):
            theta = -size * basis[0]
            beta = max(1.5, 0.8 * size)
            for directions in (None, basis):
                result = linalg.bonus_ends(
                    columns, w, theta, beta, gamma, np.empty((0, d)), directions
                )
                score = linalg.scores(columns, w, theta, beta, gamma)
                if result is not None:
                    is_finite = (np.abs(score) < 3e38)[None]
                    assert not (is_finite & (result[0][:3] < score)).any()
                    assert not (is_finite & (result[0][3:] > score)).any()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("length", [1e13, 4e14, 1e16, 1e18])
def test_drivers_agree_on_rows_of_any_length(length, lazy):
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(57, 57)))[0][:6]
    rows = rng.normal(size=(33 * 60, 6)) @ basis
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    environment = Rows(rows.astype(np.float32), [60] * 33, 1)
    curve = {"label": "a", "algorithm": "fedlinucb", "lazy": lazy, "batch_size": 50}
    curves = [curve, {**curve, "label": "b", "sieve": 1.0}]
    compiled_outcomes, step_outcomes, _ = run_both(
        make_experiment(
            name="lengths", environment=environment, curves=curves, horizon=100, silos=1, seed=3,
            checkpoints=5,
        )
    )  # fmt: skip
    for compiled_outcome, step_outcome in zip(compiled_outcomes, step_outcomes, strict=True):
        assert_same_bits(compiled_outcome, step_outcome)


def test_curves_over_one_pool_share_no_bounds():
    """Check two curves whose W differ."""
    rng, sizes = np.random.default_rng(1), [30] * 4
    keys = {"silos": 2, "horizon": 120, "protocol": "silo-ldp", "lazy": False, "batch_size": 8}
    keys["radius"] = "lemma-c2"
    environment = Rows(rows_of(rng, sizes, 7, "unit"), sizes, 2)
    first_experiment, second_experiment = (
        experiment(environment, keys),
        experiment(environment, {**keys, "batch_size": 5}),
    )
    opened_environment = environment.open(7, 0, 2)
    plans = [e.curves[0].system.plan for e in (first_experiment, second_experiment)]
    outcomes = compiled.run(opened_environment, plans, first_experiment.checkpoints, record=True)
    for a, b in zip(
        outcomes,
        server.run_steps(opened_environment, plans, first_experiment.checkpoints),
        strict=True,
    ):
        assert_same_bits(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_norms_decide_before_any_data(gamma, dtype):
    """Check V = lambda I: unit actions tie in float32, but the largest score in float64 wins."""
    rng = np.random.default_rng(6)
    sizes = ((1, 9), (2, 30), (10, 100), (57, 123))
    for (d, k), theta_scale, max_norm in itertools.product(
        sizes, (0.0, 1e-9, 0.3), (1.0, 1.2, 9.0)
    ):
        for order in "CFCFCF":
            rows = rng.normal(size=(k, d))
            rows *= rng.uniform(1.0, max_norm, (k, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
            rows[-1] = rows[k // 2]
            x = np.asarray(rows, dtype, order=order)
            w, theta = np.eye(d) * rng.uniform(0.1, 2.0), theta_scale * rng.normal(size=d)
            scores = linalg.scores(x, w, theta, 2.0, gamma)
            assert linalg.select(x, w, theta, 2.0, gamma)[0] == np.argmax(scores)
