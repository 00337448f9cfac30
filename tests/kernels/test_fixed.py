"""The model of a fixed set of actions: its numbers, its choices, and that both drivers use it."""

from __future__ import annotations

import numpy as np
import pytest
from test_drivers import assert_same_bits, outcomes_of_both_drivers

from fastfed._kernels import linalg
from fastfed.environments import FixedSet, RewardDistribution
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment


def random_rows(rng, d: int, k: int):
    """Return features (k, d) in the layout of the model, with norms from .1 to 1."""
    rows = rng.normal(size=(k, d))
    rows *= 10.0 ** rng.uniform(-1.0, 0.0, (k, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asfortranarray(rows, dtype=np.float32)


def random_start(rng, d: int, spread: float):
    """Return V with eigenvalues spread over ``spread`` powers of ten, W and theta."""
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    v = basis * 10.0 ** rng.uniform(0.0, spread, d) @ basis.T if spread else 2.5 * np.eye(d)
    return v, linalg.factor(v[np.tril_indices(d)], d), rng.normal(size=d)


def exact_parts(rows, v, u):
    """Return <x, V^-1 u>, ||x||^2_{V^-1} and ||V^-1 x||^2 of all rows x."""
    x = rows.astype(float)
    solved = np.linalg.solve(v, x.T).T
    return x @ np.linalg.solve(v, u), (solved * x).sum(axis=1), (solved * solved).sum(axis=1)


#: d and K with V^-1 and with products of pairs of actions, more and fewer actions than features.
SIZES = [(1, 1), (1, 19), (2, 3), (2, 100), (13, 27), (13, 26), (40, 7), (40, 41), (9, 300)]


@pytest.mark.parametrize("bound", [np.inf, 0.3])
@pytest.mark.parametrize("spread", [0.0, 3.0])
@pytest.mark.parametrize("d, k", SIZES)
def test_means_and_widths_equal_those_computed_from_the_data(d, k, spread, bound):
    rng = np.random.default_rng([d, k])
    rows, (v, w, theta) = random_rows(rng, d, k), random_start(rng, d, spread)
    model, u = linalg.FixedModel(rows, w, theta, bound), v @ theta
    log_det = np.linalg.slogdet(v)[1]
    for t in range(200):
        if t % 33 == 0:
            for part, exact in zip(model.parts()[:3], exact_parts(rows, v, u), strict=True):
                np.testing.assert_allclose(
                    part, exact, rtol=1e-10, atol=1e-13 * np.abs(exact).max()
                )
        a, y = model.select(1.0 + 0.01 * t, 0.5), rng.normal()
        x = rows[a].astype(float)
        x *= min(1.0, bound / np.linalg.norm(x))
        log_det += np.log(model.observe(y))
        v, u = v + np.outer(x, x), u + y * x
    assert np.isclose(log_det, np.linalg.slogdet(v)[1], rtol=1e-10)


@pytest.mark.parametrize("d, k", [(10, 40), (30, 40)])
def test_rounding_does_not_grow_with_the_rounds(d, k):
    """Use 300 000 data points, of which most actions have only a few."""
    rng = np.random.default_rng(5)
    rows = random_rows(rng, d, k)
    model = linalg.FixedModel(rows, np.eye(d), np.zeros(d), np.inf)
    counts, sums, means = np.zeros(k), np.zeros(k), rows @ rng.normal(size=d) / d
    for _ in range(300_000):
        a = model.select(0.5, 0.2)
        y = means[a] + (rng.random() - 0.5)
        model.observe(y)
        counts[a], sums[a] = counts[a] + 1, sums[a] + y
    assert counts.max() > 1000 * np.median(counts)
    x = rows.astype(float)
    for part, exact in zip(
        model.parts()[:3],
        exact_parts(rows, np.eye(d) + (x.T * counts) @ x, x.T @ sums),
        strict=True,
    ):
        np.testing.assert_allclose(part, exact, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("d, k", SIZES)
def test_the_first_action_of_the_largest_score_is_chosen(d, k, gamma):
    """Use equal rows, which tie exactly. Bounds on square roots must not change a choice.

    If K > 2 d, the model leaves out every row that repeats an earlier one.
    """
    rng = np.random.default_rng([d, k, 3])
    rows = random_rows(rng, d, k)
    rows[1::2] = rows[: k - 1 : 2]
    model = linalg.FixedModel(rows, np.eye(d), np.zeros(d), np.inf)
    for t in range(400):
        mean, width, second, offered = model.parts()
        beta = 0.3 + 0.001 * t
        bonus = beta * np.sqrt(width) + gamma * np.sqrt(second)
        if t % 3 == 0:
            limit, slack, ranking = rng.uniform(-0.5, 1.5), 1.0 + 3.0 * rng.random(), rng.random()
            value = mean + (2.0 * slack - 1.0) * bonus
            passes = value >= min(limit, (mean + bonus).max())
            expected = np.where(passes, mean + ranking * bonus, -np.inf).argmax()
            chosen = model.select(beta, gamma, (limit, slack, ranking))
        else:
            expected, chosen = (mean + bonus).argmax(), model.select(beta, gamma)
        assert len(offered) == (k if k <= 2 * d else (k + 1) // 2)
        assert chosen == offered[expected]
        model.observe(float(rows[chosen, 0]) + 0.3 * rng.normal())


def test_a_row_of_zeros_is_an_action():
    rows = np.asfortranarray([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]], np.float32)
    model = linalg.FixedModel(rows, np.eye(2), np.zeros(2), np.inf)
    for _ in range(300):
        model.select(1.0, 1.0)
        model.observe(-10.0)
    assert model.select(1.0, 1.0) == 0 and np.array_equal(model.parts()[:3, 0], [0.0, 0.0, 0.0])


@pytest.mark.parametrize("d, k", [(5, 60), (5, 8), (5, 5)])
def test_the_bound_on_eigenvalues_is_that_of_the_data(d, k):
    rng = np.random.default_rng(6)
    rows, counts = random_rows(rng, d, k), np.zeros(k)
    model = linalg.FixedModel(rows, np.eye(d) / np.sqrt(2.0), np.zeros(d), np.inf)
    for _ in range(300):
        a = model.select(1.0, 0.0)
        model.observe(rng.normal())
        counts[a] += 1
    x = rows.astype(float)
    v = 2.0 * np.eye(d) + (x.T * counts) @ x
    w = linalg.factor(v[np.tril_indices(d)], d)
    assert np.isclose(model.inverse_norm(), linalg.inverse_norm(w), rtol=1e-12)


def test_there_is_no_bound_on_eigenvalues_outside_the_span_of_the_actions():
    rows = random_rows(np.random.default_rng(7), 5, 4)
    assert linalg.FixedModel(rows, np.eye(5), np.zeros(5), np.inf).inverse_norm() == np.inf


@pytest.mark.parametrize("keys", [{}, {"sieve": 1.0}])
@pytest.mark.parametrize("d, actions", [(3, 50), (30, 50)])
def test_a_fixed_set_gives_the_choices_of_an_estimate_without_a_set(d, actions, keys, monkeypatch):
    """Scores differ by rounding only, so the choices are the same unless two scores tie."""
    experiment = make_experiment(
        name="fixed",
        environment=FixedSet(d, actions, reward=RewardDistribution("none")),
        curves=[{"label": "agent", "algorithm": "linucb", **keys}],
        horizon=400,
        silos=1,
    )
    (with_model,), _ = outcomes_of_both_drivers(experiment)
    monkeypatch.setattr(compiled, "uses_fixed_sets", lambda environment, plan: False)
    opened_environment = experiment.environment.open(experiment.seed, 0, 1)
    plans = [curve.system.plan for curve in experiment.curves]
    (without_model,) = server.run_steps(opened_environment, plans, experiment.checkpoints)
    assert np.array_equal(with_model.actions, without_model.actions)


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
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment)
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("keys", [{}, {"radius": "lemma-c2"}])
def test_both_drivers_agree_between_releases(keys):
    curve = {"label": "eager", "algorithm": "private-fedlinucb", "epsilon": 5.0, "delta": 1e-5}
    curve |= {"lazy": False, "batch_size": 60, **keys}
    experiment = make_experiment(
        name="fixed", environment=FixedSet(14, 50), curves=[curve], horizon=200, silos=2
    )
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment)
    assert_same_bits(compiled_outcome, step_outcome)


def test_both_drivers_agree_where_data_trigger_synchronisation():
    curve = {"label": "dp20", "algorithm": "feducb", "epsilon": 1e5, "delta": 1e-5, "lazy": False}
    curve |= {"schedule": "determinant", "communication": 20.0}
    experiment = make_experiment(
        name="fixed", environment=FixedSet(13, 40), curves=[curve], horizon=400, silos=3
    )
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment)
    assert_same_bits(compiled_outcome, step_outcome)
    assert 1 < compiled_outcome.synchronisations[-1] < 100
