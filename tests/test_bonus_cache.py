"""Cached bounds on the bonuses of a pool's actions: the drivers still choose the same, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from test_drivers import experiment, same

from fastfed._kernels import driver, linalg
from fastfed.environments.base import RewardDistribution
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks
from fastfed.simulation import compiled, server

needs_it = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor does without 16-bit products"
)


class Rows(PoolEnvironment):
    """Queries of given rows; equal rows in them tie."""

    kind = "rows"

    def __init__(self, rows: np.ndarray, sizes: list[int], silos: int) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("bernoulli"))
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


@pytest.mark.parametrize("kind", ["unit", "ties", "near ties", "lengths", "few directions"])
@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "local"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("d", [3, 6, 23, 41])
def test_both_drivers_choose_the_same(d, lazy, protocol, kind):
    draw = np.random.default_rng([d, lazy, len(kind)])
    sizes = [1, 16, 17, 40, 64, 65, 9, 33]
    if protocol == "local" and lazy:
        pytest.skip("who learns alone is eager")
    batch = {} if protocol == "local" else {"batch_size": 13}
    # The default radius has a second bonus, and no bounds are cached for it.
    radius = {"radius": "lemma-c2"} if protocol == "silo-ldp" else {}
    e = experiment(
        Rows(rows_of(draw, sizes, d, kind), sizes, 2),
        {"silos": 2, "horizon": 90, "protocol": protocol, "lazy": lazy, **batch, **radius},
    )
    (fast,), (readable,), _ = played(e)
    same(fast, readable)


@needs_it
def test_they_are_used():
    """Nearly all choices of a noisy V are by bounds; of V = lambda I they tell nothing."""
    draw, sizes = np.random.default_rng(0), [40] * 6
    keys = {"silos": 3, "horizon": 300, "protocol": "silo-ldp", "lazy": False, "batch_size": 10}
    keys["radius"] = "lemma-c2"
    e = experiment(Rows(rows_of(draw, sizes, 12, "unit"), sizes, 3), keys)
    (fast,), (readable,), [(made, useless)] = played(e)
    same(fast, readable)
    # Releases count from one here: the bounds of the last three batches are those that hold.
    assert made.min() >= 28
    assert useless.max() < 20


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
