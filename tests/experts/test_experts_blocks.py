"""Decisions of many rounds at once: however rounds are cut into blocks, all bits are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_experts_drivers import FIELDS, PROBLEMS, experiment, run_compiled, run_readable

from fastfed._kernels import experts as kernels
from fastfed._kernels import rng
from fastfed.environments import losses
from fastfed.privacy.mechanisms.laplace import standard_laplace
from fastfed.simulation import experts


def equal(one: Any, other: Any) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.total, other.total)
    assert one.events == other.events


@pytest.mark.parametrize(("sums", "rounds"), [(1, 2**27), (40, 2**27), (2**16, 30), (2**16, 200)])
@pytest.mark.parametrize(
    "name", [n for n in ("svt", "hedge", "hedge, N = 7", "linear", "hindsight") if n in PROBLEMS]
)
def test_blocks_change_nothing(name, sums, rounds, monkeypatch):
    """Use blocks of one round, of a few rounds, and blocks that end between two exchanges."""
    e = experiment(name, checkpoints=9)
    for last in (None, 61):
        monkeypatch.undo()
        wanted = run_readable(e, last=last)
        equal(run_compiled(e, last=last), wanted)
        monkeypatch.setattr(experts, "MOST_SUMS_TOGETHER", sums)
        monkeypatch.setattr(experts, "MOST_LOSSES", rounds)
        equal(run_compiled(e, last=last), wanted)


def test_stretches_are_the_same_by_marks_and_by_sorting(monkeypatch):
    for name in ("svt", "hedge, N = 7", "linear"):
        e = experiment(name)
        plan = e.curves[0].system.plan
        collected = []
        for answer in (True, False):
            monkeypatch.setattr(experts, "dense", lambda asking, last, answer=answer: answer)
            edges = experts.stretches_of(plan, e.checkpoints, e.horizon, 50)
            collected.append((edges, experts.asks_of(plan, edges)))
        np.testing.assert_array_equal(collected[0][0], collected[1][0])
        np.testing.assert_array_equal(collected[0][1], collected[1][1])
        edges, asks = collected[0]
        after = edges[asks == 1] + 1
        assert set(after) == {r for r in plan.asking_rounds(e.horizon) if r > 1}


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 16, 100, 127, 128, 129, 256, 1000])
def test_sums_and_weights_have_the_bits_of_numpy(d):
    draw = np.random.default_rng(d)
    rows = draw.random((9, d)) * 2.0 ** draw.integers(-30, 30, (9, d))
    assert [kernels.total(row) for row in rows] == [row.sum() for row in rows]
    wanted = np.array([row / row.sum() for row in rows])
    kernels.to_weights(rows)
    np.testing.assert_array_equal(rows, wanted)


def test_of_equal_leaders_the_first_is_followed():
    sums = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 3], [2, 0, 0]])
    asks = np.array([0, 1, 1, 1], np.uint8)
    lost = np.zeros(3, np.int64)
    chosen, switches = kernels.follow(sums, asks, lost, 2)
    assert chosen.tolist() == [2, 1, 2, 0] and switches == 3
    assert lost.tolist() == [1, 1, 3]


def test_comparisons_have_the_draws_of_the_step_driver():
    """Use two hundred exchanges, more than the draws that are made together."""
    n, scale = 200, 3.0
    sums, asks = np.zeros((n, 2), np.int64), np.ones(n, np.uint8)
    drawn = [standard_laplace(rng.uniform(5, 18, 2, 0, k)) for k in range(1, n + 1)]
    for limit in (scale * max(drawn[70:]) * (1.0 - 1e-12), scale * sorted(drawn)[100]):
        above = [i for i in range(n) if scale * drawn[i] > limit]
        collected, start, decided, release = [], 0, False, 0
        lost, chosen = np.zeros(2, np.int64), np.empty(n, np.int64)
        while start < n:
            start, release = kernels.sparse(
                5, 2, 1, release, False, 1.0, 0.0, limit, scale, sums, asks, start, decided, lost,
                chosen,
            )  # fmt: skip
            if decided := start < n:
                collected.append(start)
                release += 1
        assert collected == above and release == n


def test_rows_of_points_have_the_bits_of_one():
    draw = np.random.default_rng(1)
    for d in (2, 9, 10, 33, 200):
        means = draw.random(d)
        law = losses.LinearSuboptimality(means, float(means.min()))
        rows = draw.dirichlet(np.ones(d), 50)
        np.testing.assert_array_equal(law.of_rows(rows), [law(row) for row in rows])
