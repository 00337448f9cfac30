"""Screening in 16 bits keeps the best action, whatever V, actions and scales."""

from __future__ import annotations

import numpy as np
import pytest
from test_bonus_cache import Rows
from test_drivers import experiment

from fastfed._kernels import environments, linalg
from fastfed.environments.pool import Pool
from fastfed.simulation import compiled

needs_it = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor has no screening in 16 bits"
)


def factor(draw, d: int, spread: float) -> np.ndarray:
    """W of a V whose eigenvalues run over so many powers of ten."""
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    v = basis * 10.0 ** draw.uniform(0.0, spread, d) @ basis.T
    return linalg.factor(v[np.tril_indices(d)], d)


def kept(actions, w, theta, beta) -> int | None:
    """How many are kept, the best among them; None where screening cannot tell."""
    actions = np.asfortranarray(actions, dtype=np.float32)
    found = linalg.screen_i16(actions, w, theta, beta)
    if found is None:
        return None
    assert (np.diff(found) > 0).all() and found[0] >= 0 and found[-1] < len(actions)
    scores = linalg.scores(actions, w, theta, beta, 0.0)
    assert int(np.argmax(scores)) in found, (scores.max(), scores[found].max())
    return len(found)


@needs_it
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("d", [1, 2, 5, 6, 7, 12, 31, 32, 33, 57, 135])
def test_the_best_action_is_kept(d, spread):
    draw = np.random.default_rng([d, int(10 * spread)])
    for _ in range(60):
        k = int(draw.integers(1, 300))
        w, theta = factor(draw, d, spread), draw.normal(size=d) * draw.choice([0.0, 0.01, 1.0])
        actions = draw.normal(size=(k, d)) * 10.0 ** draw.uniform(-3, 3, (k, 1))
        kept(actions, w, theta, float(draw.choice([0.0, 0.1, 1.0, 30.0])))


@needs_it
def test_at_all_scales():
    """Where numbers of 16 and 32 bits over- and underflow."""
    draw, told = np.random.default_rng(1), 0
    for _ in range(4000):
        d, k = int(draw.integers(1, 20)), int(draw.integers(1, 90))
        scales = 10.0 ** draw.uniform(-44, 44, 4)
        if draw.random() < 0.5:  # all terms of a score matter
            scales[1:] = 10.0 ** draw.uniform(-4, 4, 3) / scales[0] ** np.array([1, 1, 0])
        w = np.tril(draw.normal(size=(d, d))) * scales[1]
        with np.errstate(over="ignore"):
            actions = (draw.normal(size=(k, d)) * scales[0]).astype(np.float32)
        if np.isfinite(actions).all():
            told += kept(actions, w, draw.normal(size=d) * scales[2], scales[3]) is not None
    assert told > 1000


@needs_it
def test_it_keeps_few():
    """Unit actions and a V near a multiple of I, as in the papers: one or two of hundreds."""
    draw = np.random.default_rng(2)
    for d, k in ((10, 100), (57, 120), (135, 120), (135, 908)):
        rows = draw.normal(size=(3 * d, d)) / np.sqrt(d)
        v = 20.0 * np.eye(d) + rows.T @ rows
        w = linalg.factor(v[np.tril_indices(d)], d)
        counts = []
        for _ in range(20):
            actions = draw.normal(size=(k, d))
            actions /= np.linalg.norm(actions, axis=1, keepdims=True)
            counts.append(kept(actions, w, 0.05 * draw.normal(size=d), 8.0))
        assert np.mean(counts) < 4.0, (d, k, counts)


@needs_it
def test_ties_are_not_told_apart():
    """V = I and unit actions: next to all may be the best, so it gives up after a few."""
    actions = np.random.default_rng(3).normal(size=(300, 20))
    actions /= np.linalg.norm(actions, axis=1, keepdims=True)
    assert kept(actions, np.eye(20), np.zeros(20), 1.0) is None


@needs_it
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_kept(value):
    draw = np.random.default_rng(4)
    actions = np.asfortranarray(draw.normal(size=(40, 6)), dtype=np.float32)
    w = np.tril(draw.normal(size=(6, 6)))
    actions[7, 3] = value
    found = linalg.screen_i16(actions, w, np.ones(6), 1.0)
    assert found is None or 7 in found
    w[2, 1] = value
    assert linalg.screen_i16(actions, w, np.ones(6), 1.0) is None


@needs_it
def test_actions_of_any_stride_and_place():
    """Features may lie further apart than there are actions, at any address."""
    draw = np.random.default_rng(5)
    wide = draw.normal(size=(57, 400)).astype(np.float32)
    w, theta = factor(draw, 57, 1.0), draw.normal(size=57)
    for first, k in ((0, 1), (1, 15), (3, 16), (5, 17), (7, 130), (9, 391)):
        view = wide[:, first : first + k].T
        one = linalg.screen_i16(view, w, theta, 2.0)
        same = linalg.screen_i16(np.asfortranarray(view), w, theta, 2.0)
        assert (one is None) == (same is None)
        assert one is None or one.tolist() == same.tolist()
        kept(view, w, theta, 2.0)


def test_a_pool_takes_room_once():
    """All replicates of a pool share the room; a pool too large for it has none."""
    draw = np.random.default_rng(6)
    rows, starts = draw.normal(size=(60, 4)), np.array([0, 20, 60])
    pool = Pool.from_rows(rows, np.full(60, 0.5), starts, np.array([0, 2]))
    assert pool.quantised is pool.quantised
    assert (pool.quantised is None) == (environments.QuantisedActions(starts, 4).size == 0)


@needs_it
@pytest.mark.parametrize("threads", [1, 2])
def test_queries_are_kept_when_met_again(threads):
    """A query that one silo meets once is not written; all of those met more often are."""
    draw, d = np.random.default_rng(7), 8
    rows, sizes = draw.normal(size=(400, d)), [4] * 100
    environment = Rows((rows / np.linalg.norm(rows, axis=1).max()).astype(np.float32), sizes, 2)
    keys = {"silos": 2, "horizon": 60, "batch_size": 10, "epsilon": 1.0, "delta": 1e-6}
    e = experiment(environment, keys | {"protocol": "silo-ldp"})
    opened, plans = environment.open(7, 0, 2), [e.curves[0].system.plan]
    compiled.run(opened, plans, e.checkpoints, threads=threads)
    met = np.bincount(
        [opened.query(silo, t) for silo in (0, 1) for t in range(1, 61)], minlength=100
    )
    assert ((environment.pool(2).quantised.made == 1) == (met > 1)).all() and (met == 1).any()
