"""Fixed sets: scores tracked by O(K d) updates stay within their bounds, and choose the same."""

from __future__ import annotations

import numpy as np
import pytest
from test_drivers import both, same

from fastfed._kernels import driver, linalg
from fastfed.environments import FixedSet
from fastfed.simulation.experiment import make_experiment


def start(draw, d: int, k: int, spread: float):
    """Rows, W of a V whose eigenvalues run over so many powers of ten, and theta."""
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    v = basis * 10.0 ** draw.uniform(0.0, spread, d) @ basis.T
    w = linalg.factor(v[np.tril_indices(d)], d)
    rows = draw.normal(size=(k, d))
    rows *= 10.0 ** draw.uniform(-1.0, 0.0, (k, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asfortranarray(rows, dtype=np.float32), w, draw.normal(size=d)


def told(rows, w, theta):
    """Means, squared widths and squared second bonuses in longer floats."""
    x, w, theta = (np.asarray(a, np.longdouble) for a in (rows, w, theta))
    z = x @ w.T
    return x @ theta, (z * z).sum(axis=1), ((z @ w) ** 2).sum(axis=1)


@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("d", [1, 2, 13, 40])
def test_what_is_tracked_is_within_its_bounds(d, spread, gamma):
    draw = np.random.default_rng([d, int(10 * spread)])
    rows, w, theta = start(draw, d, 19, spread)
    tracked = driver.Tracked(rows, w, theta, gamma)
    at_first = [np.abs(one).max() for one in told(rows, w, theta)]
    for t in range(301):
        if t % 60 == 0:
            kept, errors = tracked.found()
            parts = list(zip(kept, errors, told(rows, w, theta), at_first, strict=True))
            for one, error, exact, most in parts[: 2 + (gamma > 0.0)]:
                assert np.abs(one - exact).max() <= error
                assert error < 1e-6 * most
        tracked.observe(rows[draw.integers(19)].astype(float), draw.normal())


@pytest.mark.parametrize("d", [1, 2])
def test_rounding_adds_up_and_is_followed(d):
    """Of tiny data points rounding is most of what they change: it leaves the first bounds."""
    draw = np.random.default_rng(1)
    rows, w, theta = start(draw, d, 19, 0.1)
    tracked, x = driver.Tracked(rows, w, theta, 3.0), rows[3].astype(float) * 1e-7
    at_first = tracked.found()[1]
    for _ in range(4000):
        tracked.observe(x * (1.0 + 0.3 * draw.random()), draw.normal())
    kept, errors = tracked.found()
    for one, error, exact, before in zip(kept, errors, told(rows, w, theta), at_first, strict=True):
        assert before < np.abs(one - exact).max() <= error


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_best_is_chosen(gamma):
    """Near ties among them, told apart by exact scores alone."""
    draw = np.random.default_rng(3)
    rows, w, theta = start(draw, 15, 40, 1.0)
    rows[1::2] = rows[::2]
    rows[1::4] *= 1.0 + 2.0**-23
    tracked = driver.Tracked(rows, w, theta, gamma)
    for t in range(200):
        beta = 1.0 + 0.01 * t
        chosen = tracked.choose(beta)
        assert chosen == np.argmax(linalg.scores(rows, w, theta, beta, gamma))
        tracked.observe(rows[chosen].astype(float), draw.normal())


def test_where_nothing_is_told_apart_it_does_not_tell():
    rows, w, theta = start(np.random.default_rng(4), 13, 30, 1.0)
    rows[:] = rows[0]
    assert driver.Tracked(rows, w, theta, 1.0).choose(1.0) == -1
    w[:] = np.nan
    assert driver.Tracked(rows, w, theta, 1.0).choose(1.0) == -1


@pytest.mark.parametrize("keys", [{}, {"radius": "lemma-a2"}])
@pytest.mark.parametrize("d, actions", [(11, 30), (12, 1), (12, 100), (33, 7), (40, 61)])
def test_both_drivers_choose_the_same_for_an_agent(d, actions, keys):
    e = make_experiment(
        name="fixed",
        environment=FixedSet(d, actions, basis_actions=actions > d),
        curves=[{"label": "agent", "algorithm": "linucb", **keys}],
        horizon=250,
        silos=1,
    )
    (fast,), (readable,) = both(e)
    same(fast, readable)


@pytest.mark.parametrize("keys", [{}, {"radius": "lemma-c2"}])
def test_both_drivers_choose_the_same_between_releases(keys):
    curve = {"label": "eager", "algorithm": "private-fedlinucb", "epsilon": 5.0, "delta": 1e-5}
    curve |= {"lazy": False, "batch_size": 60, **keys}
    e = make_experiment(
        name="fixed", environment=FixedSet(14, 50), curves=[curve], horizon=200, silos=2
    )
    (fast,), (readable,) = both(e)
    same(fast, readable)


def test_silos_go_back_where_data_decide_when_to_synchronise():
    curve = {"label": "dp20", "algorithm": "feducb", "epsilon": 1e5, "delta": 1e-5, "lazy": False}
    curve |= {"schedule": "determinant", "communication": 20.0}
    e = make_experiment(
        name="fixed", environment=FixedSet(13, 40), curves=[curve], horizon=400, silos=3
    )
    (fast,), (readable,) = both(e)
    same(fast, readable)
    assert 1 < fast.synchronisations[-1] < 100
