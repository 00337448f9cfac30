"""Decisions of many rounds at once: however rounds are cut into blocks, all bits are the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from test_experts_drivers import FIELDS, PROBLEMS, experiment, run_compiled, run_readable

from fastfed._kernels import experts as kernels
from fastfed._kernels import rng
from fastfed.environments import NearRealizableLosses, RealizableLosses, losses
from fastfed.experts import baselines
from fastfed.privacy.mechanisms.laplace import standard_laplace
from fastfed.simulation import experts
from fastfed.simulation.experiment import make_experiment


def equal(actual: Any, expected: Any) -> None:
    """Check that two outcomes have the same bits."""
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    np.testing.assert_array_equal(actual.total, expected.total)
    assert actual.events == expected.events


@pytest.mark.parametrize(("sums", "rounds"), [(1, 2**27), (40, 2**27), (2**16, 30), (2**16, 200)])
@pytest.mark.parametrize(
    "name", [n for n in ("svt", "hedge", "hedge, N = 7", "linear", "hindsight") if n in PROBLEMS]
)
def test_the_size_of_blocks_does_not_change_results(name, sums, rounds, monkeypatch):
    """Use blocks of one round, of a few rounds, and blocks that end between two exchanges."""
    e = experiment(name, checkpoints=9)
    for last in (None, 61):
        monkeypatch.undo()
        expected = run_readable(e, last=last)
        equal(run_compiled(e, last=last), expected)
        monkeypatch.setattr(experts, "MAX_SUMS_TOGETHER", sums)
        monkeypatch.setattr(experts, "MAX_LOSSES", rounds)
        equal(run_compiled(e, last=last), expected)


COIN_RUNS = {
    "leader": (RealizableLosses, {"algorithm": "follow-the-leader"}),
    "hedge": (RealizableLosses, {"algorithm": "hedge"}),
    "hedge, slow": (RealizableLosses, {"algorithm": "hedge", "learning_rate": 0.01}),
    "hedge, uniform": (RealizableLosses, {"algorithm": "hedge", "learning_rate": 1e-150}),
    "hedge, fast": (RealizableLosses, {"algorithm": "hedge", "learning_rate": 3.0}),
    "svt": (
        RealizableLosses,
        {"algorithm": "fed-svt", "epsilon": 1.0, "threshold": 40.0, "switches": 9},
    ),
    "planned": (
        partial(NearRealizableLosses, optimal_loss=40),
        {"algorithm": "fed-svt", "epsilon": 2.0, "threshold": 15.0, "switches": 9},
    ),
    "planned, hedge": (partial(NearRealizableLosses, optimal_loss=90), {"algorithm": "hedge"}),
    "no exchange twice": (RealizableLosses, {"algorithm": "hedge", "phase_length": 2}),
}


def by_coins_and_by_sums(environment, curve, silos, checkpoints, last=None):
    """Return the outcomes of runs in coins and from sums, and whether coins were possible."""
    e = make_experiment(
        name="coins", environment=environment, curves=[{"label": "a", **curve}], horizon=500,
        silos=silos, checkpoints=checkpoints,
    )  # fmt: skip
    plan, outcomes, original, answers = e.curves[0].system.plan, [], experts.in_coins, []

    def recorded_answer(*arguments):
        """Return whether runs in coins are possible, as the original does; record the answer."""
        answers.append(original(*arguments))
        return answers[-1]

    for in_coins in (recorded_answer, lambda *arguments: False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(experts, "in_coins", in_coins)
            adversary = e.environment.open(2, 1, silos)
            outcomes.append(experts.run(adversary, plan, e.checkpoints, last=last))
    return *outcomes, answers[0]


@pytest.mark.parametrize("d", [2, 7, 8, 9, 64, 65, 128])
@pytest.mark.parametrize("name", COIN_RUNS)
def test_runs_in_coins_have_the_bits_of_runs_from_sums(name, d):
    """Use rows in one word, in several words, and several groups of silos; cut runs anywhere."""
    environment, curve = COIN_RUNS[name]
    for silos, checkpoints, last in ((1, 500, None), (3, 7, None), (30, 500, 333)):
        coins, sums, in_coins = by_coins_and_by_sums(
            environment(experts=d), curve, silos, checkpoints, last
        )
        equal(coins, sums)
        assert in_coins == (name != "no exchange twice")


def test_losses_too_different_for_a_table_are_run_from_sums(monkeypatch):
    for table_size in (1, 200, 700):
        monkeypatch.setattr(baselines, "MAX_EXPONENTIALS", table_size)
        coins, sums, in_coins = by_coins_and_by_sums(
            RealizableLosses(experts=9), {"algorithm": "hedge", "learning_rate": 0.01}, 3, 9
        )
        equal(coins, sums)
        assert in_coins


def test_a_fault_of_runs_in_coins_is_detected(monkeypatch):
    run = experts.CoinRounds.run

    def without_first(self, *arguments, **keys):
        """Run as the original does, but zero the losses of the first expert, a planted fault."""
        decision = run(self, *arguments, **keys)
        self.lost[0] = 0
        return decision

    monkeypatch.setattr(experts.CoinRounds, "run", without_first)
    coins, sums, in_coins = by_coins_and_by_sums(
        RealizableLosses(experts=9), COIN_RUNS["svt"][1], 3, 9
    )
    assert in_coins
    with pytest.raises(AssertionError):
        equal(coins, sums)


def test_stretches_are_the_same_by_marks_and_by_sorting(monkeypatch):
    for name in ("svt", "hedge, N = 7", "linear"):
        e = experiment(name)
        plan = e.curves[0].system.plan
        collected = []
        for is_dense in (True, False):
            monkeypatch.setattr(experts, "dense", lambda asking, last, is_dense=is_dense: is_dense)
            edges = experts.stretches_of(plan, e.checkpoints, e.horizon, 50)
            collected.append((edges, experts.exchange_flags_of(plan, edges)))
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
    expected = np.array([row / row.sum() for row in rows])
    kernels.to_weights(rows)
    np.testing.assert_array_equal(rows, expected)


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
    draws = [standard_laplace(rng.uniform(5, 18, 2, 0, k)) for k in range(1, n + 1)]
    for limit in (scale * max(draws[70:]) * (1.0 - 1e-12), scale * sorted(draws)[100]):
        exceeding = [i for i in range(n) if scale * draws[i] > limit]
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
        assert collected == exceeding and release == n


def test_suboptimality_of_rows_has_the_bits_of_single_points():
    draw = np.random.default_rng(1)
    for d in (2, 9, 10, 33, 200):
        means = draw.random(d)
        suboptimality = losses.LinearSuboptimality(means, float(means.min()))
        rows = draw.dirichlet(np.ones(d), 50)
        np.testing.assert_array_equal(
            suboptimality.of_rows(rows), [suboptimality(row) for row in rows]
        )
