"""Scores of fixed action sets, tracked by O(K d) updates, stay within their error bounds."""

from __future__ import annotations

import numpy as np
import pytest
from test_drivers import both, same

from fastfed._kernels import driver, linalg
from fastfed.environments import FixedSet
from fastfed.simulation.experiment import make_experiment


def random_problem(rng, d: int, k: int, spread: float):
    """Return actions, theta, and W of a V with eigenvalues spread over ``spread`` powers of ten."""
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    v = basis * 10.0 ** rng.uniform(0.0, spread, d) @ basis.T
    w = linalg.factor(v[np.tril_indices(d)], d)
    rows = rng.normal(size=(k, d))
    rows *= 10.0 ** rng.uniform(-1.0, 0.0, (k, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asfortranarray(rows, dtype=np.float32), w, rng.normal(size=d)


def exact_parts(rows, w, theta):
    """Return means, squared widths and squared second bonuses, computed in long double."""
    x, w, theta = (np.asarray(a, np.longdouble) for a in (rows, w, theta))
    z = x @ w.T
    return x @ theta, (z * z).sum(axis=1), ((z @ w) ** 2).sum(axis=1)


@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("d", [1, 2, 13, 40])
def test_tracked_scores_are_within_their_error_bounds(d, spread, gamma):
    rng = np.random.default_rng([d, int(10 * spread)])
    rows, w, theta = random_problem(rng, d, 19, spread)
    tracked = driver.Tracked(rows, w, theta, gamma)
    initial_sizes = [np.abs(part).max() for part in exact_parts(rows, w, theta)]
    for t in range(301):
        if t % 60 == 0:
            tracked_parts, errors = tracked.found()
            checks = list(
                zip(tracked_parts, errors, exact_parts(rows, w, theta), initial_sizes, strict=True)
            )
            for part, error, exact, initial_size in checks[: 2 + (gamma > 0.0)]:
                assert np.abs(part - exact).max() <= error
                assert error < 1e-6 * initial_size
        tracked.observe(rows[rng.integers(19)].astype(float), rng.normal())


@pytest.mark.parametrize("d", [1, 2])
def test_error_bounds_cover_accumulated_rounding(d):
    """Updates with tiny data points are mostly rounding, which exceeds the initial bounds."""
    rng = np.random.default_rng(1)
    rows, w, theta = random_problem(rng, d, 19, 0.1)
    tracked, x = driver.Tracked(rows, w, theta, 3.0), rows[3].astype(float) * 1e-7
    initial_errors = tracked.found()[1]
    for _ in range(4000):
        tracked.observe(x * (1.0 + 0.3 * rng.random()), rng.normal())
    tracked_parts, errors = tracked.found()
    for part, error, exact, initial_error in zip(
        tracked_parts, errors, exact_parts(rows, w, theta), initial_errors, strict=True
    ):
        assert initial_error < np.abs(part - exact).max() <= error


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_action_of_the_largest_score_is_chosen(gamma):
    """Some actions are nearly tied, so that only exact scores distinguish them."""
    rng = np.random.default_rng(3)
    rows, w, theta = random_problem(rng, 15, 40, 1.0)
    rows[1::2] = rows[::2]
    rows[1::4] *= 1.0 + 2.0**-23
    tracked = driver.Tracked(rows, w, theta, gamma)
    for t in range(200):
        beta = 1.0 + 0.01 * t
        chosen = tracked.choose(beta)
        assert chosen == np.argmax(linalg.scores(rows, w, theta, beta, gamma))
        tracked.observe(rows[chosen].astype(float), rng.normal())


def test_tied_or_invalid_scores_give_no_choice():
    rows, w, theta = random_problem(np.random.default_rng(4), 13, 30, 1.0)
    rows[:] = rows[0]
    assert driver.Tracked(rows, w, theta, 1.0).choose(1.0) == -1
    w[:] = np.nan
    assert driver.Tracked(rows, w, theta, 1.0).choose(1.0) == -1


@pytest.mark.parametrize("keys", [{}, {"sieve": 1.0}, {"radius": "lemma-a2"}])
@pytest.mark.parametrize("d, actions", [(11, 30), (12, 1), (12, 100), (33, 7), (40, 61)])
def test_both_drivers_agree_for_an_agent(d, actions, keys):
    experiment = make_experiment(
        name="fixed",
        environment=FixedSet(d, actions, basis_actions=actions > d),
        curves=[{"label": "agent", "algorithm": "linucb", **keys}],
        horizon=250,
        silos=1,
    )
    (compiled_outcome,), (step_outcome,) = both(experiment)
    same(compiled_outcome, step_outcome)


@pytest.mark.parametrize("keys", [{}, {"radius": "lemma-c2"}])
def test_both_drivers_agree_between_releases(keys):
    curve = {"label": "eager", "algorithm": "private-fedlinucb", "epsilon": 5.0, "delta": 1e-5}
    curve |= {"lazy": False, "batch_size": 60, **keys}
    experiment = make_experiment(
        name="fixed", environment=FixedSet(14, 50), curves=[curve], horizon=200, silos=2
    )
    (compiled_outcome,), (step_outcome,) = both(experiment)
    same(compiled_outcome, step_outcome)


def test_both_drivers_agree_where_data_trigger_synchronisation():
    curve = {"label": "dp20", "algorithm": "feducb", "epsilon": 1e5, "delta": 1e-5, "lazy": False}
    curve |= {"schedule": "determinant", "communication": 20.0}
    experiment = make_experiment(
        name="fixed", environment=FixedSet(13, 40), curves=[curve], horizon=400, silos=3
    )
    (compiled_outcome,), (step_outcome,) = both(experiment)
    same(compiled_outcome, step_outcome)
    assert 1 < compiled_outcome.synchronisations[-1] < 100
