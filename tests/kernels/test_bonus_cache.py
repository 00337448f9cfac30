"""Bounds on the bonuses of actions: the drivers still choose the same, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_drivers import experiment, same

from fastfed._kernels import driver, linalg
from fastfed.environments import Sphere
from fastfed.environments.base import RewardDistribution
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks
from fastfed.simulation import compiled, server
from fastfed.simulation.bench import SyntheticPool
from fastfed.simulation.experiment import make_experiment

needs_it = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor does without 16-bit products"
)


class Rows(PoolEnvironment):
    """Queries of given rows; equal rows in them tie."""

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
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict:
        return {"kind": self.kind}


def rows_of(draw, sizes: list[int], d: int, kind: str) -> np.ndarray:
    rows = draw.normal(size=(sum(sizes), d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "ties":  # every action has a twin, in float32 too
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2]
    elif kind == "near ties":
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2] * (1.0 - 1e-7)
    elif kind == "lengths":  # clipped, tiny and zero ones
        rows *= 10.0 ** draw.uniform(-3.0, 2.0, (len(rows), 1))
        rows[::7] = 0.0
    elif kind == "few directions":
        rows = rows[draw.integers(0, 3, len(rows))] + 1e-3 * rows
    return rows


def played(e):
    """Outcomes of both drivers, and what the compiled one kept of its bounds."""
    opened = e.environment.open(e.seed, 0, e.silos)
    plans = [c.system.plan for c in e.curves]
    states = [compiled.state(plan, len(e.checkpoints), True) for plan in plans]
    run = driver.Run(opened, e.silos, e.horizon, e.checkpoints, states, 1)
    run.initialise()
    run.simulate(1, e.horizon)
    made = [compiled.outcome(plan, s) for plan, s in zip(plans, states, strict=True)]
    return made, server.run_steps(opened, plans, e.checkpoints), run.bonus_bounds()


KINDS = ["unit", "ties", "near ties", "lengths", "few directions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "silo-ldp direct", "local"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("d", [3, 6, 23, 41])
def test_both_drivers_choose_the_same(d, lazy, protocol, kind):
    draw = np.random.default_rng([d, lazy, len(kind)])
    sizes = [1, 16, 17, 40, 64, 65, 9, 33]
    if protocol == "local" and lazy:
        pytest.skip("who learns alone is eager")
    batch = {} if protocol == "local" else {"batch_size": 13}
    # The default radius has a second bonus.
    radius = {"radius": "lemma-c2"} if protocol == "silo-ldp" else {}
    sizes_of = {"silos": 2, "horizon": 90, "protocol": protocol.split()[0], "lazy": lazy}
    rows, keys = rows_of(draw, sizes, d, kind), {**sizes_of, **batch, **radius}
    # Without a sieve bounds decide. The default of some curves has a sieve.
    for sieve in ({"sieve": 1.0}, {}):
        (fast,), (readable,), _ = played(experiment(Rows(rows, sizes, 2), {**keys, **sieve}))
        same(fast, readable)


@pytest.mark.parametrize("kind", ["long tail", "ties", "near ties", "huge"])
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
@pytest.mark.parametrize("lazy", [False, True])
def test_few_products_lose_no_choice(lazy, radius, kind):
    """Of rows of all lengths few products and lower bounds decide; none is lost by them."""
    draw = np.random.default_rng([lazy, len(radius), len(kind)])
    sizes = [90, 120, 33, 150, 65, 17, 48, 100]
    rows = np.exp(1.5 * draw.normal(size=(sum(sizes), 70)))
    rows /= np.linalg.norm(rows, axis=1).max()
    if kind in ("ties", "near ties"):
        rows[1::2] = rows[: 2 * (len(rows) // 2) : 2] * (1.0 if kind == "ties" else 1.0 - 1e-7)
    elif kind == "huge":
        rows *= 1e6
    keys = {"silos": 2, "horizon": 120, "protocol": "silo-ldp", "lazy": lazy, "batch_size": 20}
    for sieve in ({"sieve": 1.0}, {}):
        e = experiment(Rows(rows, sizes, 2), {**keys, "radius": radius, **sieve})
        (fast,), (readable,), _ = played(e)
        same(fast, readable)


@needs_it
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
def test_they_are_used(radius):
    """Nearly all choices of a noisy V are by bounds, of the release alone."""
    draw, sizes = np.random.default_rng(0), [40] * 6
    keys = {"silos": 3, "horizon": 300, "protocol": "silo-ldp", "lazy": False, "batch_size": 10}
    e = experiment(Rows(rows_of(draw, sizes, 12, "unit"), sizes, 3), {**keys, "radius": radius})
    (fast,), (readable,), [(made, factors, _)] = played(e)
    same(fast, readable)
    # Releases count from one here: the bounds of the last three batches are those that hold.
    assert made.min() >= 28
    assert factors.max() <= 1


@needs_it
@pytest.mark.parametrize("kind", KINDS)
def test_silos_whose_v_has_grown_make_factors_of_their_own(kind):
    """Who learns alone has no release but the first, of V = lambda I, which soon tells nothing."""
    draw, sizes = np.random.default_rng(2), [60] * 8
    keys = {"silos": 2, "horizon": 400, "protocol": "local", "lazy": False, "sieve": 1.0}
    e = experiment(Rows(rows_of(draw, sizes, 34, kind), sizes, 2), keys)
    (fast,), (readable,), [(_, factors, _)] = played(e)
    same(fast, readable)
    assert factors.min() >= 1 and factors.max() < 100


@needs_it
def test_new_bounds_that_tell_nothing_are_tried_again_when_there_are_twice_the_data():
    """In the first batch V is lambda I and few points: not every round has bounds."""
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
    ((made, factors, _),) = run.bonus_bounds()
    assert factors.min() >= 1 and factors.max() <= 5
    assert 4 <= (made != 0).sum() <= 4 * 5


@needs_it
def test_how_far_the_second_bonus_has_grown_is_known():
    """Of some actions ||V^-1 x|| grows as V does, by at most what is followed."""
    draw, sizes, d = np.random.default_rng(7), [40] * 6, 8
    keys = {"silos": 2, "horizon": 90, "protocol": "none", "lazy": False, "batch_size": 60}
    e = experiment(Rows(rows_of(draw, sizes, d, "unit"), sizes, 2), keys)
    state = compiled.state(e.curves[0].system.plan, len(e.checkpoints), True)
    run = driver.Run(e.environment.open(7, 0, 2), 2, 90, e.checkpoints, [state], 1)
    run.initialise()
    run.simulate(1, 60)
    before, checked = state["w"][0].copy(), 0
    for last in range(61, 91):
        run.simulate(last, last)
        ((_, factors, moved),) = run.bonus_bounds()
        # Of the release's factor, as long as a silo has none of its own.
        for silo in np.flatnonzero(factors == 0):
            checked += 1
            now = state["w"][silo]
            old, new = before.T @ before, now.T @ now
            x = np.concatenate(
                [np.linalg.eigh(new @ new - old @ old)[1].T, draw.normal(size=(50, d))]
            )
            grown = np.linalg.norm(x @ new, axis=1) - np.linalg.norm(x @ old, axis=1)
            width = np.linalg.norm(x @ before.T, axis=1)
            assert (grown <= moved[silo] * width).all()
            assert (grown > 1e-3 * moved[silo] * width).any()
    assert checked > 20


@needs_it
def test_choices_go_on_where_data_decide_when_to_synchronise():
    """Silos go back, and what they had bounded of a later V is of no use."""
    draw, sizes = np.random.default_rng(0), [90] * 12
    curve = {"label": "dp20", "algorithm": "feducb", "epsilon": 1e5, "delta": 1e-5, "lazy": False}
    curve |= {"schedule": "determinant", "communication": 50.0}
    rows = Rows(rows_of(draw, sizes, 20, "unit"), sizes, 3)
    e = make_experiment(name="back", environment=rows, curves=[curve], horizon=400, silos=3)
    (fast,), (readable,), [(_, factors, _)] = played(e)
    same(fast, readable)
    assert 1 < fast.synchronisations[-1] < 100 and factors.max() > 0


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
def test_rows_that_come_once(lazy, radius):
    """Neither a pool's that are not stored in 16 bits nor contexts made anew have cached bounds."""
    draw, sizes = np.random.default_rng(4), [33, 64, 17, 90] * 40
    keys = {"silos": 2, "horizon": 70, "protocol": "silo-ldp", "lazy": lazy, "batch_size": 20}
    pool = Rows(rows_of(draw, sizes, 41, "unit"), sizes, 2, "without-replacement")
    for environment in (pool, Sphere(dimension=33, actions=50)):
        (fast,), (readable,), _ = played(experiment(environment, {**keys, "radius": radius}))
        same(fast, readable)


@needs_it
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0, 12.0])
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 57, 64, 65, 71, 135])
def test_one_factor_bounds_both_bonuses(d, spread):
    """||W x||^2 + c ||W'W x||^2 is not above, and with an honest factor hardly below."""
    draw = np.random.default_rng([d, int(10 * spread)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    v = basis * 10.0 ** draw.uniform(0.0, spread, d) @ basis.T
    w = linalg.factor(v[np.tril_indices(d)], d)
    long = np.asarray(w, np.longdouble)
    x = np.concatenate([draw.normal(size=(60, d)), basis.T])
    z = x @ long.T
    for c in (1e-3, 1.0, 1e4):
        found = driver.bonus_factor(w, c)
        if found is None:  # too near a singular matrix for rounding
            assert spread > 6.0
            continue
        r, lost = found
        assert (r == np.tril(r)).all()
        both = np.sqrt((z * z).sum(axis=1) + c * ((z @ long) ** 2).sum(axis=1))
        bound = np.sqrt(((x @ r.astype(np.longdouble).T) ** 2).sum(axis=1))
        length = np.linalg.norm(x, axis=1)
        assert (both <= bound + lost * length).all()
        assert (bound <= both + lost * length).all()
        assert lost * length.max() <= 1e-4 * both.max()


@needs_it
@pytest.mark.parametrize("gamma", [0.0, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("d", [33, 57, 71, 135])
def test_every_score_is_between_its_bounds(d, spread, gamma):
    draw = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    rows = np.concatenate(
        [draw.normal(size=(60, d)), basis.T, np.exp(2 * draw.normal(size=(20, d)))]
    )
    rows *= 10.0 ** draw.uniform(-4.0, 4.0, (len(rows), 1))
    rows = rows.astype(np.float32)
    columns = np.asfortranarray(rows)
    for size in (0.0, 1.0, 1e3):
        theta = size * draw.normal(size=d)
        found = linalg.bonus_ends(columns, w, theta, 1.5, gamma, np.empty((0, d)))
        assert found is not None
        ends = found[0]
        score = linalg.scores(columns, w, theta, 1.5, gamma)
        assert (score <= ends[:3]).all() and (ends[3:] <= score).all()
        # They say something. The lower one is weak where the second bonus is the smaller part.
        if size == 0.0:
            assert np.median(ends[1] / score) < 1.1 and (ends[1] <= 1.1 * ends[0]).all()
            assert np.median(ends[3] / score) > (0.9 if gamma != 0.1 else 0.1)
            # Float32 takes little of what ||W x|| says.
            assert ((ends[4] - ends[5]) / score).max() < 0.01


@needs_it
@pytest.mark.parametrize("d", [33, 57, 135])
def test_norms_in_float32_stay_below(d):
    """Also where the products of W and x nearly cancel, so rounding is most of what is left."""
    draw = np.random.default_rng(d)
    w = np.tril(draw.normal(size=(d, d)), -1) + np.diag(draw.uniform(0.1, 3.0, d))
    rows = np.linalg.svd(w)[2].astype(np.float32)
    columns, theta = np.asfortranarray(rows), np.zeros(d)
    found = linalg.bonus_ends(columns, w, theta, 1.5, 0.0, np.empty((0, d)))
    assert found is not None
    score = linalg.scores(columns, w, theta, 1.5, 0.0)
    assert (found[0][5] <= score).all()
    assert np.median(found[0][5] / score) > 0.9999
    # Also where float32 has no such numbers.
    for of_w, of_x in ((1e-40, 1.0), (1e40, 1e-20), (1e-20, 1e-25), (1e25, 1e20)):
        columns = np.asfortranarray((of_x * rows.astype(np.float64)).astype(np.float32))
        found = linalg.bonus_ends(columns, of_w * w, theta, 1.5, 0.0, np.empty((0, d)))
        score = linalg.scores(columns, of_w * w, theta, 1.5, 0.0)
        assert found is None or (found[0][5] <= score).all()


@needs_it
@pytest.mark.parametrize("gamma", [0.1, 3.0, 30.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 2.0, 5.0])
@pytest.mark.parametrize("d", [33, 71, 135])
def test_every_score_stays_between_its_bounds_as_v_grows(d, spread, gamma):
    """Those of the release hold for an eager silo's own V: also of the very points that entered it,
    whose widths fall most, and of those whose second bonuses fall most."""
    draw = np.random.default_rng([d, int(10 * spread), int(gamma)])
    basis = np.linalg.qr(draw.normal(size=(d, d)))[0]
    scales = 10.0 ** draw.uniform(0.0, spread, d)
    w = linalg.factor((basis * scales @ basis.T)[np.tril_indices(d)], d)
    theta, inverse = 1e-3 * draw.normal(size=d), w.T @ w
    for length in (1e-3, 0.03, 0.3, 1.0):
        # A single direction again and again is what makes the widths along it fall as far as said.
        single = np.repeat(draw.normal(size=(1, d)) @ w, 12, axis=0)
        # Along the least known one second bonuses decide, and along the best known the first.
        least = np.repeat(basis[:, [np.argmin(scales)]].T, 12, axis=0)
        best = np.repeat(basis[:, [np.argmax(scales)]].T, 12, axis=0)
        for points in (draw.normal(size=(12, d)), single, least, best):
            points *= length / np.linalg.norm(points @ w.T, axis=1, keepdims=True)
            rows = np.concatenate([points, points @ inverse, basis.T, draw.normal(size=(40, d))])
            columns = np.asfortranarray(rows.astype(np.float32))
            found = linalg.bonus_ends(columns, w, theta, 1.5, gamma, points)
            assert found is not None
            ends, now = found
            score = linalg.scores(columns, now, theta, 1.5, gamma)
            assert (score <= ends[:3]).all() and (ends[3:] <= score).all()
            # Weak where the second bonus is not the larger part.
            if length == 1e-3 and gamma >= 30.0:
                assert np.median(ends[3] / score) > 0.9


@needs_it
@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("d", [57, 135])
def test_what_leaves_float32_is_no_bound(d, gamma):
    """Sums of either sign that are infinite on their way, while the score is not."""
    draw = np.random.default_rng(d)
    basis = np.ascontiguousarray(np.linalg.qr(draw.normal(size=(d, d)))[0][:, :6].T)
    w = linalg.factor((3.0 * np.eye(d) + basis.T @ basis)[np.tril_indices(d)], d)
    rows = draw.normal(size=(40, 6)) @ basis
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for length in 10.0 ** np.arange(13.0, 20.0, 0.5):
        columns = np.asfortranarray((length * rows).astype(np.float32))
        for size in (1e-3, 1e10, 3e38 / length, 1e60 / length):
            theta = -size * basis[0]
            beta = max(1.5, 0.8 * size)
            for directions in (None, basis):
                found = linalg.bonus_ends(
                    columns, w, theta, beta, gamma, np.empty((0, d)), directions
                )
                score = linalg.scores(columns, w, theta, beta, gamma)
                if found is not None:
                    inside = (np.abs(score) < 3e38)[None]
                    assert not (inside & (found[0][:3] < score)).any()
                    assert not (inside & (found[0][3:] > score)).any()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("length", [1e13, 4e14, 1e16, 1e18])
def test_drivers_agree_on_rows_of_any_length(length, lazy):
    draw = np.random.default_rng(3)
    basis = np.linalg.qr(draw.normal(size=(57, 57)))[0][:6]
    rows = draw.normal(size=(33 * 60, 6)) @ basis
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    environment = Rows(rows.astype(np.float32), [60] * 33, 1)
    curve = {"label": "a", "algorithm": "fedlinucb", "lazy": lazy, "batch_size": 50}
    curves = [curve, {**curve, "label": "b", "sieve": 1.0}]
    made, stepped, _ = played(
        make_experiment(
            name="lengths", environment=environment, curves=curves, horizon=100, silos=1, seed=3,
            checkpoints=5,
        )
    )  # fmt: skip
    for one, other in zip(made, stepped, strict=True):
        same(one, other)


def test_columns_that_differ_share_no_bounds():
    """Two curves over one pool: each has a W, and so bounds, of its own."""
    draw, sizes = np.random.default_rng(1), [30] * 4
    keys = {"silos": 2, "horizon": 120, "protocol": "silo-ldp", "lazy": False, "batch_size": 8}
    keys["radius"] = "lemma-c2"
    environment = Rows(rows_of(draw, sizes, 7, "unit"), sizes, 2)
    one, other = experiment(environment, keys), experiment(environment, {**keys, "batch_size": 5})
    opened = environment.open(7, 0, 2)
    plans = [e.curves[0].system.plan for e in (one, other)]
    fast = compiled.run(opened, plans, one.checkpoints, record=True)
    for a, b in zip(fast, server.run_steps(opened, plans, one.checkpoints), strict=True):
        same(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_before_any_data_lengths_decide(gamma, dtype):
    """V = lambda I: unit actions tie in float32, and the largest score in float64 is chosen."""
    draw = np.random.default_rng(6)
    sizes = ((1, 9), (2, 30), (10, 100), (57, 123))
    for (d, k), moved, most in itertools.product(sizes, (0.0, 1e-9, 0.3), (1.0, 1.2, 9.0)):
        for order in "CFCFCF":
            rows = draw.normal(size=(k, d))
            rows *= draw.uniform(1.0, most, (k, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
            rows[-1] = rows[k // 2]
            x = np.asarray(rows, dtype, order=order)
            w, theta = np.eye(d) * draw.uniform(0.1, 2.0), moved * draw.normal(size=d)
            scores = linalg.scores(x, w, theta, 2.0, gamma)
            assert linalg.select(x, w, theta, 2.0, gamma)[0] == np.argmax(scores)
