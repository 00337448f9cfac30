"""Compare fastfed with numba and NumPy programs at users' settings.

The tests check first that the programs choose the same actions, or have the same mean regret.
"""

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
    """On a fixed set without noise in the rewards, fastfed and numba choose the same actions."""
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
        if n.startswith(("set d=10", "sphere", "letor d=57 q=60", "lin", "fed", "fol", "hed"))
    ],
)
def test_same_regret(name):
    """The mean regrets of twelve replicates differ by less than three standard errors."""
    row, runs = ROWS[name], ROWS[name].others()
    fastfed_values = np.array([row.ours(n)[0] for n in range(12)])
    for program, run in runs.items():
        program_values = np.array([run(n)[0] for n in range(12)])
        if np.isfinite(program_values).all():
            error = np.sqrt(
                (fastfed_values.var(ddof=1) + program_values.var(ddof=1)) / len(fastfed_values)
            )
            print(
                f"{name}: {fastfed_values.mean():.1f}, "
                f"{program} {program_values.mean():.1f}, error {error:.1f}"
            )
            assert abs(fastfed_values.mean() - program_values.mean()) < 3.0 * error + 1e-4 * abs(
                fastfed_values.mean()
            )


@pytest.mark.parametrize("name", ROWS)
def test_against_opponents(benchmark, name):
    """Measure processor time of all programs in turn; extra_info holds ratios and microseconds."""
    row, runs = ROWS[name], ROWS[name].others()
    fastfed_values: list[float] = []
    times: dict[str, list[float]] = {program: [] for program in runs}
    row.ours()
    for run in runs.values():
        run(0)

    def time_fastfed() -> None:
        fastfed_values.append(row.ours()[1])

    def time_programs() -> None:
        for program, run in runs.items():
            times[program].append(run(0)[1])

    benchmark.pedantic(time_fastfed, setup=time_programs, rounds=5)
    benchmark.extra_info["microseconds_per_agent_round"] = statistics.median(fastfed_values)
    for program, program_times in times.items():
        ratios = [b / a for a, b in zip(fastfed_values, program_times, strict=True)]
        benchmark.extra_info[program] = statistics.median(program_times)
        benchmark.extra_info[f"ratio {program}"] = statistics.median(ratios)
