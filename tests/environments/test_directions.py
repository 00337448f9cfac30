"""Principal directions of a pool's actions: bounds hold, and choices do not change."""

from __future__ import annotations

import numpy as np
import pytest
from test_bonus_cache import Rows
from test_drivers import assert_same_bits, experiment

from fastfed._kernels import environments, linalg
from fastfed.environments import pool as pools
from fastfed.simulation import compiled, server

needs_screen_i16 = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor has no 16-bit products"
)


def low_rank_rows(draw, count: int, d: int, spread: float = 0.05) -> np.ndarray:
    """Return rows of d features, nearly all of them functions of 12 numbers, like real queries."""
    rows = np.abs(draw.normal(size=(count, 12))) @ draw.uniform(size=(12, d))
    rows += spread * draw.normal(size=(count, d))
    return rows / (1.000001 * np.linalg.norm(rows, axis=1).max())


def directions(rows: np.ndarray, rank: int) -> np.ndarray:
    """Return the first `rank` principal directions of rows, as rows."""
    moments = rows.astype(float).T @ rows.astype(float)
    return np.ascontiguousarray(np.linalg.eigh(moments)[1][:, ::-1][:, :rank].T)


@needs_screen_i16
@pytest.mark.parametrize("gamma", [0.0, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize(("d", "rank"), [(33, 12), (96, 48), (135, 60), (136, 6)])
def test_every_score_is_between_its_bounds(d, rank, spread, gamma):
    """Use rows that few directions describe well, and other rows, while V grows."""
    draw = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    near = low_rank_rows(draw, 70, d)
    few = directions(near, rank)
    rows = np.concatenate([near, draw.normal(size=(40, d)), few, np.zeros((1, d))])
    rows *= 10.0 ** draw.uniform(-4.0, 4.0, (len(rows), 1))
    rows = rows.astype(np.float32)
    points = draw.normal(size=(12, d))
    points *= 0.1 / np.linalg.norm(points @ w.T, axis=1, keepdims=True)
    for size in (0.0, 1.0, 1e3):
        theta = size * draw.normal(size=d)
        for count, entered in ((len(rows), 0), (len(rows), 12), (33, 0), (2, 12)):
            columns = np.asfortranarray(rows[:count])
            actual = linalg.bonus_ends(columns, w, theta, 1.5, gamma, points[:entered], few)
            assert actual is not None
            ends, now = actual
            score = linalg.scores(columns, now, theta, 1.5, gamma)
            assert (score <= ends[:3]).all() and (ends[3:] <= score).all()


@needs_screen_i16
def test_scores_whose_means_hide_their_bonuses_are_above_their_lower_bounds():
    """Use means so far above the bonus that rounding the score loses the bonus.

    The points are so long that the remaining bonus is as small as its lower bound.
    """
    d = 18
    w = linalg.factor(np.eye(d)[np.tril_indices(d)], d)
    rows = np.asfortranarray(np.eye(d)[[0, 0]], dtype=np.float32)
    for mean, gamma, length in ((1e13, 1e8, 1e4), (1e10, 1e6, 1e7), (1e6, 1.0, 1e12)):
        theta, points = mean * np.eye(d)[0], length * np.eye(d)[:1]
        few = np.eye(d)[:6].copy()
        ends, now = linalg.bonus_ends(rows, w, theta, 1.0, gamma, points, few)
        score = linalg.scores(rows, now, theta, 1.0, gamma)
        assert (score <= ends[:3]).all() and (ends[3:] <= score).all()


@needs_screen_i16
def test_bounds_hold_for_extreme_magnitudes():
    d, draw = 18, np.random.default_rng(5)
    few = np.linalg.qr(draw.normal(size=(d, 6)))[0].T.copy()
    none = np.empty((0, d))
    cases = [
        (1e-150 * draw.uniform(1.0, 1.2, d), 1e17 * draw.normal(size=(17, d)), 1e-90, 1e-165),
        (np.full(d, 1e161), 1e6 * np.eye(d)[:2], 1e-12 * 1e161**0.5, 1e-12 * 1e161),
        (np.ones(d), np.eye(d)[:2], 1e39, 0.0),
        (np.ones(d), 1e-10 * np.eye(d)[:2], 7.2e-36, 0.0),
    ]
    compared = 0
    for v, rows, beta, gamma in cases:
        w = linalg.factor(np.diag(v)[np.tril_indices(d)], d)
        columns = np.asfortranarray(rows, dtype=np.float32)
        actual = linalg.bonus_ends(columns, w, np.zeros(d), beta, gamma, none, few)
        compared += actual is not None
        if actual is not None:
            x = columns.astype(np.longdouble)
            width = x / np.sqrt(v.astype(np.longdouble))
            second = x / v.astype(np.longdouble)
            score = beta * np.sqrt((width**2).sum(1)) + gamma * np.sqrt((second**2).sum(1))
            ends = actual[0].astype(np.longdouble)
            assert (score <= ends[:3] * (1 + 1e-12)).all()
            assert (ends[3:] <= score * (1 + 1e-12)).all()
    assert compared


@needs_screen_i16
def test_bounds_are_close_where_directions_explain_nearly_all():
    draw = np.random.default_rng(3)
    d, rows = 135, low_rank_rows(draw, 110, 135, spread=0.003)
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    w = linalg.factor((basis * draw.uniform(1.0, 8.0, d) @ basis.T)[np.tril_indices(d)], d)
    columns = np.asfortranarray(rows.astype(np.float32))
    none, theta = np.empty((0, d)), 0.1 * draw.normal(size=d)
    near = linalg.bonus_ends(columns, w, theta, 1.5, 9.0, none, directions(rows, 24))[0]
    few = linalg.bonus_ends(columns, w, theta, 1.5, 9.0, none)[0]
    assert np.median(near[0] / near[1]) < 1.05 and np.median(few[0] / near[1]) > 1.2
    # With ||W x|| the lower bound of a score is closer than with R alone.
    score = linalg.scores(columns, w, theta, 1.5, 9.0)
    assert np.median(near[4] / score) > 0.99 and np.median(near[3] / score) < 0.95


@needs_screen_i16
@pytest.mark.parametrize("gamma", [0.0, 30.0])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize(
    ("d", "rank", "along"), [(57, 24, 8), (96, 48, 20), (135, 42, 26), (136, 6, 6)]
)
def test_few_products_are_close_along_a_pool_s_directions(d, rank, along, spread, gamma):
    """Check bounds along the directions: equalities, up to rounding to 16 bits.

    Rows near these directions have bounds as close as those of all products.
    """
    draw = np.random.default_rng([d, int(10 * spread)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    near = low_rank_rows(draw, 70, d, spread=0.01)
    few = directions(near, rank)
    rows = np.asfortranarray(np.concatenate([few[:along], near]).astype(np.float32))
    none, theta = np.empty((0, d)), np.zeros(d)
    ends = linalg.bonus_ends(rows, w, theta, 1.5, gamma, none, few)[0]
    ratio = ends / linalg.scores(rows, w, theta, 1.5, gamma)
    # R bounds a sum of both bonuses, and 16 bits are coarsest along directions that are known best.
    on_directions, near_directions = ratio[:, :along], ratio[:, along:]
    assert (ratio[0] >= 1.0).all() and (on_directions[0] < 1.03 * on_directions[1]).all()
    assert np.median(near_directions[0] / near_directions[1]) < (1.02 if along >= 8 else 1.05)


def run_with_constants(environment, keys, monkeypatch, **constants):
    """Run a curve with constants of `pools` replaced.

    Return (experiment, opened environment, plans, outcomes of the plans).
    """
    for name, value in constants.items():
        monkeypatch.setattr(pools, name, value)
    e = experiment(environment, keys)
    opened_environment = environment.open(7, 0, keys["silos"])
    plans = [e.curves[0].system.plan]
    return (
        e,
        opened_environment,
        plans,
        compiled.run(opened_environment, plans, e.checkpoints, record=True),
    )


@needs_screen_i16
@pytest.mark.parametrize("radius", ["direct", "published-code"])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    "sampling", ["with-replacement", "not kept", "without-replacement", "in-order"]
)
def test_directions_change_no_choice(monkeypatch, sampling, lazy, radius):
    """Check that both drivers choose the same actions, with and without directions."""
    draw, d = np.random.default_rng(3), 60 if sampling == "in-order" else 100
    queries_repeat = sampling in ("with-replacement", "not kept")
    sizes = draw.integers(1, 150, 40 if queries_repeat else 600).tolist()
    rows = low_rank_rows(draw, sum(sizes), d, spread=0.003)
    keys = {"silos": 2, "horizon": 300, "lazy": lazy, "batch_size": 50, "epsilon": 1.0}
    keys |= {"delta": 1e-6, "protocol": "silo-ldp", "radius": radius}
    if sampling == "not kept":
        sampling = "with-replacement"
        monkeypatch.setattr(pools, "MAX_QUANTISED", 0)
    environment = Rows(rows, sizes, 2, sampling)
    e, opened, plans, fast = run_with_constants(environment, keys, monkeypatch)
    # The directions are made when they are first used.
    assert len(vars(environment.pool(2))["directions"].rows)
    plain, _, _, others = run_with_constants(
        Rows(rows, sizes, 2, sampling), keys, monkeypatch, MIN_DIRECTIONS_DIMENSION=d + 1
    )
    assert plain.environment.pool(2).directions is None
    assert_same_bits(fast[0], others[0])
    assert_same_bits(fast[0], next(iter(server.run_steps(opened, plans, e.checkpoints))))


@needs_screen_i16
def test_a_silos_own_factor_changes_no_choice(monkeypatch):
    """Use batches so long that V outgrows the factor of the release."""
    draw, d = np.random.default_rng(2), 96
    sizes = draw.integers(20, 60, 900).tolist()
    mixing = draw.uniform(size=(12, d)) + 0.6 * draw.normal(size=(12, d))
    rows = np.abs(draw.normal(size=(sum(sizes), 12))) @ mixing
    rows += 0.02 * draw.normal(size=rows.shape)
    rows /= 1.000001 * np.linalg.norm(rows, axis=1).max()
    keys = {"silos": 1, "horizon": 4800, "lazy": False, "batch_size": 400, "epsilon": 3.0}
    keys |= {"delta": 1e-6, "protocol": "silo-ldp"}
    environment = Rows(rows, sizes, 1)
    e, opened, plans, fast = run_with_constants(environment, keys, monkeypatch)
    assert environment.pool(1).directions is not None
    assert_same_bits(
        fast[0],
        run_with_constants(Rows(rows, sizes, 1), keys, monkeypatch, MIN_DIRECTIONS_DIMENSION=d + 1)[
            3
        ][0],
    )
    assert_same_bits(fast[0], next(iter(server.run_steps(opened, plans, e.checkpoints))))


def test_which_pools_have_directions():
    draw = np.random.default_rng(4)

    def directions_of(count, d, **keys):
        """Return the directions of a pool of `count` queries of d features, or None."""
        rows = low_rank_rows(draw, 4 * count, d, **keys)
        return Rows(rows, [4] * count, 1).pool(1).directions

    if not linalg.has_screen_i16():
        assert directions_of(40, 100, spread=0.003) is None
        return
    rows = directions_of(40, 100, spread=0.003).rows
    assert len(rows) % 6 == 0 and len(rows) < 50
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-12)
    assert len(directions_of(40, 60, spread=0.003).rows) < 30
    assert directions_of(40, 100, spread=1.0) is None  # they explain too little
    assert directions_of(10, 100, spread=0.003) is None  # few queries
    assert directions_of(40, 40, spread=0.003) is None  # few features


def test_directions_that_are_not_orthonormal_are_refused():
    with pytest.raises(ValueError, match="orthonormal"):
        environments.Directions(1.01 * np.eye(6, 20))
    with pytest.raises(ValueError, match="multiple of 6"):
        environments.Directions(np.eye(7, 20))
