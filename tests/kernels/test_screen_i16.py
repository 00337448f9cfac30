"""Check that screening in 16 bits keeps the best action, for any V, actions and scales."""

from __future__ import annotations

import numpy as np
import pytest
from test_bonus_cache import Rows
from test_drivers import experiment

from fastfed._kernels import environments, linalg
from fastfed.environments.pool import Pool
from fastfed.simulation import compiled

needs_screening = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor has no screening in 16 bits"
)


def make_factor(rng, d: int, spread: float) -> np.ndarray:
    """Return W of a V whose eigenvalues cover the given powers of ten."""
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    v = basis * 10.0 ** rng.uniform(0.0, spread, d) @ basis.T
    return linalg.factor(v[np.tril_indices(d)], d)


def count_kept(actions, w, theta, beta) -> int | None:
    """Return the number of kept actions, among them the best; None if screening cannot decide."""
    actions = np.asfortranarray(actions, dtype=np.float32)
    kept_actions = linalg.screen_i16(actions, w, theta, beta)
    if kept_actions is None:
        return None
    assert (
        (np.diff(kept_actions) > 0).all()
        and kept_actions[0] >= 0
        and kept_actions[-1] < len(actions)
    )
    scores = linalg.scores(actions, w, theta, beta, 0.0)
    assert int(np.argmax(scores)) in kept_actions, (scores.max(), scores[kept_actions].max())
    return len(kept_actions)


@needs_screening
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("d", [1, 2, 5, 6, 7, 12, 31, 32, 33, 57, 135])
def test_screening_keeps_the_best_action(d, spread):
    rng = np.random.default_rng([d, int(10 * spread)])
    for _ in range(60):
        k = int(rng.integers(1, 300))
        w, theta = make_factor(rng, d, spread), rng.normal(size=d) * rng.choice([0.0, 0.01, 1.0])
        actions = rng.normal(size=(k, d)) * 10.0 ** rng.uniform(-3, 3, (k, 1))
        count_kept(actions, w, theta, float(rng.choice([0.0, 0.1, 1.0, 30.0])))


@needs_screening
def test_screening_is_correct_at_all_scales():
    """Check scales at which numbers of 16 and 32 bits overflow or underflow."""
    rng, decided = np.random.default_rng(1), 0
    for _ in range(4000):
        d, k = int(rng.integers(1, 20)), int(rng.integers(1, 90))
        scales = 10.0 ** rng.uniform(-44, 44, 4)
        if rng.random() < 0.5:  # all terms of a score matter
            scales[1:] = 10.0 ** rng.uniform(-4, 4, 3) / scales[0] ** np.array([1, 1, 0])
        w = np.tril(rng.normal(size=(d, d))) * scales[1]
        with np.errstate(over="ignore"):
            actions = (rng.normal(size=(k, d)) * scales[0]).astype(np.float32)
        if np.isfinite(actions).all():
            decided += count_kept(actions, w, rng.normal(size=d) * scales[2], scales[3]) is not None
    assert decided > 1000


@needs_screening
def test_screening_keeps_few_actions():
    """Check that one or two of hundreds remain for unit actions and a V near a multiple of I.

    Such problems occur in the papers.
    """
    rng = np.random.default_rng(2)
    for d, k in ((10, 100), (57, 120), (135, 120), (135, 908)):
        rows = rng.normal(size=(3 * d, d)) / np.sqrt(d)
        v = 20.0 * np.eye(d) + rows.T @ rows
        w = linalg.factor(v[np.tril_indices(d)], d)
        counts = []
        for _ in range(20):
            actions = rng.normal(size=(k, d))
            actions /= np.linalg.norm(actions, axis=1, keepdims=True)
            counts.append(count_kept(actions, w, 0.05 * rng.normal(size=d), 8.0))
        assert np.mean(counts) < 4.0, (d, k, counts)


@needs_screening
def test_screening_gives_up_on_ties():
    """Check V = I and unit actions, of which nearly all may be the best."""
    actions = np.random.default_rng(3).normal(size=(300, 20))
    actions /= np.linalg.norm(actions, axis=1, keepdims=True)
    assert count_kept(actions, np.eye(20), np.zeros(20), 1.0) is None


@needs_screening
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_screening_keeps_actions_that_are_not_finite(value):
    rng = np.random.default_rng(4)
    actions = np.asfortranarray(rng.normal(size=(40, 6)), dtype=np.float32)
    w = np.tril(rng.normal(size=(6, 6)))
    actions[7, 3] = value
    kept_actions = linalg.screen_i16(actions, w, np.ones(6), 1.0)
    assert kept_actions is None or 7 in kept_actions
    w[2, 1] = value
    assert linalg.screen_i16(actions, w, np.ones(6), 1.0) is None


@needs_screening
def test_screening_accepts_any_stride_and_address():
    """Check features that are further apart than the number of actions, at any address."""
    rng = np.random.default_rng(5)
    wide = rng.normal(size=(57, 400)).astype(np.float32)
    w, theta = make_factor(rng, 57, 1.0), rng.normal(size=57)
    for first, k in ((0, 1), (1, 15), (3, 16), (5, 17), (7, 130), (9, 391)):
        view = wide[:, first : first + k].T
        from_view = linalg.screen_i16(view, w, theta, 2.0)
        from_copy = linalg.screen_i16(np.asfortranarray(view), w, theta, 2.0)
        assert (from_view is None) == (from_copy is None)
        assert from_view is None or from_view.tolist() == from_copy.tolist()
        count_kept(view, w, theta, 2.0)


def test_replicates_of_a_pool_share_quantised_actions():
    """Check this, and that a pool which is too large has no quantised actions."""
    rng = np.random.default_rng(6)
    rows, starts = rng.normal(size=(60, 4)), np.array([0, 20, 60])
    pool = Pool.from_rows(rows, np.full(60, 0.5), starts, np.array([0, 2]))
    assert pool.quantised is pool.quantised
    assert (pool.quantised is None) == (environments.QuantisedActions(starts, 4).size == 0)


@needs_screening
@pytest.mark.parametrize("threads", [1, 2])
def test_queries_are_quantised_when_they_occur_again(threads):
    """Check that a query which occurs once is not quantised, and that all others are."""
    rng, d = np.random.default_rng(7), 8
    rows, sizes = rng.normal(size=(400, d)), [4] * 100
    environment = Rows((rows / np.linalg.norm(rows, axis=1).max()).astype(np.float32), sizes, 2)
    keys = {"silos": 2, "horizon": 60, "batch_size": 10, "epsilon": 1.0, "delta": 1e-6}
    built_experiment = experiment(environment, keys | {"protocol": "silo-ldp"})
    problem, plans = environment.open(7, 0, 2), [built_experiment.curves[0].system.plan]
    compiled.run(problem, plans, built_experiment.checkpoints, threads=threads)
    occurrences = np.bincount(
        [problem.query(silo, t) for silo in (0, 1) for t in range(1, 61)], minlength=100
    )
    assert ((environment.pool(2).quantised.made == 1) == (occurrences > 1)).all() and (
        occurrences == 1
    ).any()
