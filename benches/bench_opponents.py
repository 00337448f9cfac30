"""Users' settings against what somebody writes in an afternoon, and that both do the same."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

numba_opponents = pytest.importorskip("numba_opponents", reason="needs numba", exc_type=ImportError)

import opponents  # noqa: E402

from fastfed.environments import FixedSet, RewardDistribution  # noqa: E402
from fastfed.simulation import server  # noqa: E402

ROWS = {row.name: row for row in opponents.rows()}


@pytest.mark.parametrize("sieve", [{}, {"sieve": 1.0}], ids=["default", "plain"])
@pytest.mark.parametrize(
    ("dimension", "pairs"), [(10, False), (30, False), (10, True), (150, True)]
)
def test_same_actions(dimension, pairs, sieve):
    """On a fixed set without noise in the rewards, both choose the same action in all rounds."""
    environment = FixedSet(dimension=dimension, reward=RewardDistribution("none"))
    row = opponents.Row("same", lambda: environment, {"algorithm": "linucb", **sieve}, 600)
    rows, means = environment.open(0, 0, 1).round(0, 0)
    (outcome,) = server.run_steps(environment.open(0, 0, 1), [row.plan], row.experiment.checkpoints)
    log = np.empty(600, np.int32)
    numba_opponents.fixed_set(row.plan, rows, means, rewards=False, pairs=pairs, log=log)
    assert np.array_equal(np.asarray(outcome.actions).ravel(), log)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in ROWS
        if n.startswith(("set d=10", "sphere", "letor d=57 q=60", "fed", "fol", "hed"))
    ],
)
def test_same_regret(name):
    """Over replicates, regrets differ by less than three standard errors."""
    row, runs = ROWS[name], ROWS[name].others()
    mine = np.array([row.ours(n)[0] for n in range(12)])
    for other, run in runs.items():
        theirs = np.array([run(n)[0] for n in range(12)])
        if np.isfinite(theirs).all():
            error = np.sqrt((mine.var(ddof=1) + theirs.var(ddof=1)) / len(mine))
            print(f"{name}: {mine.mean():.1f}, {other} {theirs.mean():.1f}, error {error:.1f}")
            assert abs(mine.mean() - theirs.mean()) < 3.0 * error + 1e-4 * abs(mine.mean())


@pytest.mark.parametrize("name", ROWS)
def test_against_opponents(benchmark, name):
    """Processor time of all sides in turn; extra_info holds the ratios and microseconds."""
    row, runs = ROWS[name], ROWS[name].others()
    mine: list[float] = []
    times: dict[str, list[float]] = {other: [] for other in runs}
    row.ours()
    for run in runs.values():
        run(0)

    def play() -> None:
        mine.append(row.ours()[1])

    def play_others() -> None:
        for other, run in runs.items():
            times[other].append(run(0)[1])

    benchmark.pedantic(play, setup=play_others, rounds=5)
    benchmark.extra_info["microseconds_per_agent_round"] = statistics.median(mine)
    for other, each in times.items():
        ratios = [b / a for a, b in zip(mine, each, strict=True)]
        benchmark.extra_info[other] = statistics.median(each)
        benchmark.extra_info[f"ratio {other}"] = statistics.median(ratios)
