"""Principal coordinates of a pool's actions: bounds by them hold, and no choice is lost."""

from __future__ import annotations

import numpy as np
import pytest
from test_bonus_cache import Rows
from test_drivers import experiment, same

from fastfed._kernels import environments, linalg
from fastfed.environments import pool as pools
from fastfed.simulation import compiled, server

#: State of a query's coordinates.
MADE = 5

needs_it = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor does without 16-bit products"
)


def hanging_together(draw, count: int, d: int, spread: float = 0.05) -> np.ndarray:
    """Rows of d features, nearly all of which 12 numbers tell, as documents of real queries."""
    rows = np.abs(draw.normal(size=(count, 12))) @ draw.uniform(size=(12, d))
    rows += spread * draw.normal(size=(count, d))
    return rows / (1.000001 * np.linalg.norm(rows, axis=1).max())


def directions(rows: np.ndarray, rank: int) -> np.ndarray:
    moments = rows.astype(float).T @ rows.astype(float)
    return np.ascontiguousarray(np.linalg.eigh(moments)[1][:, ::-1][:, :rank].T)


@needs_it
@pytest.mark.parametrize("gamma", [0.0, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize(("d", "rank"), [(33, 12), (96, 48), (135, 60), (136, 6)])
def test_every_score_is_between_its_bounds(d, rank, spread, gamma):
    """Of rows that coordinates tell nearly all of, and of others; as V grows, too."""
    draw = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    near = hanging_together(draw, 70, d)
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
            found = linalg.bonus_ends(columns, w, theta, 1.5, gamma, points[:entered], few)
            assert found is not None
            ends, now = found
            score = linalg.scores(columns, now, theta, 1.5, gamma)
            assert (score <= ends[:4]).all() and (ends[4:] <= score).all()


@needs_it
def test_bounds_hold_where_they_are_equalities():
    """Of all rows those that are told worst: the proof leaves next to nothing there."""
    draw, d, above = np.random.default_rng(8), 96, 1.5
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    w = linalg.factor((basis * 10.0 ** draw.uniform(0.0, 1.0, d) @ basis.T)[np.tril_indices(d)], d)
    few = np.ascontiguousarray(np.linalg.qr(draw.normal(size=(d, 24)))[0].T)
    gram, projector = w.T @ w, few.T @ few
    apart = np.eye(d) - projector
    largest = np.linalg.eigvalsh(apart @ gram @ apart)[-1]
    # The kernel's estimate of the largest eigenvalue is a little below.
    for times in (0.99, 0.995, 1.0):
        rest = above * times * largest
        least = np.linalg.solve(rest * np.eye(d) + 99.0 * projector - gram, few.T).T
        rows = np.asfortranarray(
            (least / np.linalg.norm(least, axis=1)[:, None]).astype(np.float32)
        )
        found = linalg.bonus_ends(rows, w, np.zeros(d), 1.5, 0.0, np.empty((0, d)), few, above)
        ratio = found[0][0] / linalg.scores(rows, w, np.zeros(d), 1.5, 0.0)
        assert (ratio >= 1.0).all() and ratio.min() < 1.01


@needs_it
def test_scores_whose_means_hide_their_bonuses_are_above_their_lower_bounds():
    """||W x|| told from a score with a mean so much larger is 0; points have made it as small."""
    d = 12
    w = linalg.factor(np.eye(d)[np.tril_indices(d)], d)
    rows = np.asfortranarray(np.eye(d)[[0, 0]], dtype=np.float32)
    for mean, gamma, length in ((1e13, 1e8, 1e4), (1e10, 1e6, 1e7), (1e6, 1.0, 1e12)):
        theta, points = mean * np.eye(d)[0], length * np.eye(d)[:1]
        few = np.eye(d)[:6].copy()
        ends, now = linalg.bonus_ends(rows, w, theta, 1.0, gamma, points, few)
        score = linalg.scores(rows, now, theta, 1.0, gamma)
        assert (score <= ends[:4]).all() and (ends[4:] <= score).all()


@needs_it
def test_bounds_hold_at_the_ends_of_numbers():
    d, draw = 12, np.random.default_rng(5)
    few = np.linalg.qr(draw.normal(size=(d, 6)))[0].T.copy()
    none = np.empty((0, d))
    cases = [
        (1e-150 * draw.uniform(1.0, 1.2, d), 1e17 * draw.normal(size=(17, d)), 1e-90, 1e-165),
        (np.full(d, 1e161), 1e6 * np.eye(d)[:2], 1e-12 * 1e161**0.5, 1e-12 * 1e161),
        (np.ones(d), np.eye(d)[:2], 1e39, 0.0),
        (np.ones(d), 1e-10 * np.eye(d)[:2], 7.2e-36, 0.0),
    ]
    for v, rows, beta, gamma in cases:
        w = linalg.factor(np.diag(v)[np.tril_indices(d)], d)
        columns = np.asfortranarray(rows, dtype=np.float32)
        found = linalg.bonus_ends(columns, w, np.zeros(d), beta, gamma, none, few)
        if found is not None:
            x = columns.astype(np.longdouble)
            width = x / np.sqrt(v.astype(np.longdouble))
            second = x / v.astype(np.longdouble)
            score = beta * np.sqrt((width**2).sum(1)) + gamma * np.sqrt((second**2).sum(1))
            ends = found[0].astype(np.longdouble)
            assert (score <= ends[:4] * (1 + 1e-12)).all()
            assert (ends[4:] <= score * (1 + 1e-12)).all()


@needs_it
def test_bounds_are_close_where_coordinates_tell_nearly_all():
    draw = np.random.default_rng(3)
    d, rows = 135, hanging_together(draw, 110, 135, spread=0.003)
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    w = linalg.factor((basis * draw.uniform(1.0, 8.0, d) @ basis.T)[np.tril_indices(d)], d)
    columns = np.asfortranarray(rows.astype(np.float32))
    none, theta = np.empty((0, d)), 0.1 * draw.normal(size=d)
    near = linalg.bonus_ends(columns, w, theta, 1.5, 9.0, none, directions(rows, 24), 99.0)[0]
    few = linalg.bonus_ends(columns, w, theta, 1.5, 9.0, none)[0]
    assert np.median(near[0] / near[1]) < 1.05 and np.median(few[0] / near[1]) > 1.2
    # With ||W x|| what a score is at least is closer than by R alone.
    score = linalg.scores(columns, w, theta, 1.5, 9.0)
    assert np.median(near[5] / score) > 0.99 and np.median(near[4] / score) < 0.95


@needs_it
@pytest.mark.parametrize("gamma", [0.0, 30.0])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize(
    ("d", "rank", "along"), [(57, 24, 8), (96, 48, 20), (135, 42, 26), (136, 6, 6)]
)
def test_few_products_are_close_along_a_pool_s_directions(d, rank, along, spread, gamma):
    """Equalities but for rounding to 16 bits, and no less than what they bound; of rows that such
    directions tell as close as all products, and of any closer than coordinates."""
    draw = np.random.default_rng([d, int(10 * spread)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    near = hanging_together(draw, 70, d, spread=0.01)
    few = directions(near, rank)
    rows = np.asfortranarray(np.concatenate([few[:along], near]).astype(np.float32))
    none, theta = np.empty((0, d)), np.zeros(d)
    ends = linalg.bonus_ends(rows, w, theta, 1.5, gamma, none, few)[0]
    ratio = ends / linalg.scores(rows, w, theta, 1.5, gamma)
    # R bounds a sum of both bonuses, and 16 bits of directions that are known best tell least.
    own, like = ratio[:, :along], ratio[:, along:]
    assert (ratio[3] >= 1.0).all() and (own[3] < 1.03 * own[1]).all()
    assert np.median(like[3] / like[1]) < (1.02 if along >= 8 else 1.05)
    assert spread < 1.0 or np.median(like[3]) < np.median(like[0])


def played(environment, keys, monkeypatch, **constants):
    for name, value in constants.items():
        monkeypatch.setattr(pools, name, value)
    e = experiment(environment, keys)
    opened = environment.open(7, 0, keys["silos"])
    plans = [e.curves[0].system.plan]
    return e, opened, plans, compiled.run(opened, plans, e.checkpoints, record=True)


@needs_it
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("radius", ["direct", "published-code"])
@pytest.mark.parametrize("lazy", [True, False])
def test_they_lose_no_choice(monkeypatch, lazy, radius, kept):
    """Both drivers, with and without them, choose the same in every round."""
    draw, d = np.random.default_rng(2), 96
    sizes = draw.integers(1, 150, 40).tolist()
    rows = hanging_together(draw, sum(sizes), d, spread=0.003)
    # Eager silos have them where they meet a query seldom between two releases.
    keys = {"silos": 2, "horizon": 480, "lazy": lazy, "batch_size": 40 if lazy else 8}
    keys["radius"] = radius
    keys |= {"epsilon": 1.0, "delta": 1e-6, "protocol": "silo-ldp"}
    most = pools.MAX_QUANTISED
    environment = Rows(rows, sizes, 2)
    e, opened, plans, fast = played(environment, keys, monkeypatch)
    coordinates = environment.pool(2).principal
    assert coordinates.rank <= 24 and (coordinates.met == MADE).sum() > 20
    plain, _, _, others = played(Rows(rows, sizes, 2), keys, monkeypatch, WIDE=d + 1)
    assert plain.environment.pool(2).principal is None
    same(fast[0], others[0])
    same(fast[0], next(iter(server.run_steps(opened, plans, e.checkpoints))))
    if not kept:
        environment = Rows(rows, sizes, 2)
        pool = environment.pool(2)
        assert pool.principal is None  # WIDE
        monkeypatch.setattr(pools, "WIDE", 96)
        environment = Rows(rows, sizes, 2)
        pool = environment.pool(2)
        assert pool.principal is not None
        vars(pool)["quantised"] = None
        same(fast[0], played(environment, keys, monkeypatch, MAX_QUANTISED=most)[3][0])
        assert (pool.principal.met == MADE).sum() > 20


@needs_it
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("sampling", ["with-replacement", "without-replacement", "in-order"])
def test_directions_alone_lose_no_choice(monkeypatch, sampling, lazy):
    """Of pools with few features, or whose rows come once: there are no coordinates."""
    draw, d = np.random.default_rng(3), 60 if sampling == "with-replacement" else 100
    sizes = draw.integers(1, 150, 600).tolist()
    rows = hanging_together(draw, sum(sizes), d, spread=0.003)
    keys = {"silos": 2, "horizon": 300, "lazy": lazy, "batch_size": 50, "epsilon": 1.0}
    keys |= {"delta": 1e-6, "protocol": "silo-ldp"}
    environment = Rows(rows, sizes, 2, sampling)
    e, opened, plans, fast = played(environment, keys, monkeypatch)
    # What is made is made by its first use.
    used = vars(environment.pool(2))
    assert used["directions"].rank and (sampling == "with-replacement") == ("principal" in used)
    same(fast[0], played(Rows(rows, sizes, 2, sampling), keys, monkeypatch, ALONG=d + 1)[3][0])
    same(fast[0], next(iter(server.run_steps(opened, plans, e.checkpoints))))


@needs_it
def test_a_silos_own_factor_loses_no_choice(monkeypatch):
    """Batches so long that V outgrows the factor of the release: the next has sooner bounds too."""
    draw, d = np.random.default_rng(2), 96
    sizes = draw.integers(20, 60, 900).tolist()
    told_by = draw.uniform(size=(12, d)) + 0.6 * draw.normal(size=(12, d))
    rows = np.abs(draw.normal(size=(sum(sizes), 12))) @ told_by
    rows += 0.02 * draw.normal(size=rows.shape)
    rows /= 1.000001 * np.linalg.norm(rows, axis=1).max()
    keys = {"silos": 1, "horizon": 4800, "lazy": False, "batch_size": 400, "epsilon": 3.0}
    keys |= {"delta": 1e-6, "protocol": "silo-ldp"}
    environment = Rows(rows, sizes, 1)
    e, opened, plans, fast = played(environment, keys, monkeypatch)
    coordinates = environment.pool(1).principal
    assert 4 * (coordinates.met == MADE).sum() > 2 * len(sizes)  # a quarter has to have them
    same(fast[0], played(Rows(rows, sizes, 1), keys, monkeypatch, WIDE=d + 1)[3][0])
    same(fast[0], next(iter(server.run_steps(opened, plans, e.checkpoints))))


@needs_it
def test_queries_are_brought_to_coordinates_when_met_for_the_fourth_time(monkeypatch):
    draw, d = np.random.default_rng(2), 96
    sizes = [40] * 40
    rows = hanging_together(draw, sum(sizes), d, spread=0.003)
    keys = {"silos": 1, "horizon": 200, "batch_size": 25, "epsilon": 1.0, "delta": 1e-6}
    keys["protocol"] = "silo-ldp"
    environment = Rows(rows, sizes, 1)
    _, opened, _, _ = played(environment, keys, monkeypatch)
    # The bounds of a query are begun once in a batch; in the first V is a multiple of I.
    batches = [{opened.query(0, t) for t in range(s, s + 25)} for s in range(26, 200, 25)]
    met = np.bincount([q for batch in batches for q in batch], minlength=40)
    made = environment.pool(1).principal.met
    assert ((made == MADE) == (met >= 4)).all() and (made == MADE).sum() > 3
    assert (made[met < 4] == met[met < 4]).all()


def test_which_pools_have_them():
    draw = np.random.default_rng(4)

    def made(count, d, **keys):
        rows = hanging_together(draw, 4 * count, d, **keys)
        pool = Rows(rows, [4] * count, 1).pool(1)
        return pool.principal, pool.directions

    if not linalg.has_screen_i16():
        assert made(40, 100, spread=0.003) == (None, None)
        return
    found, alone = made(40, 100, spread=0.003)
    assert found.rank % 6 == 0 and found.rank < 50 and found.size > 0
    np.testing.assert_allclose(found.basis @ found.basis.T, np.eye(found.rank), atol=1e-12)
    assert alone.size == 0 and (alone.basis == found.basis).all()
    found, alone = made(40, 60, spread=0.003)
    assert found is None and alone.rank < 30  # coordinates of few features save nothing
    assert made(40, 100, spread=1.0) == (None, None)  # they tell too little
    assert made(10, 100, spread=0.003) == (None, None)  # few queries
    assert made(40, 40, spread=0.003) == (None, None)  # few features


def test_directions_that_are_not_orthonormal_are_refused():
    starts = np.array([0, 4, 8])
    with pytest.raises(ValueError, match="orthonormal"):
        environments.PrincipalCoordinates(starts, 1.01 * np.eye(6, 20), 0.01)
    with pytest.raises(ValueError, match="multiple of 6"):
        environments.PrincipalCoordinates(starts, np.eye(7, 20), 0.01)
