"""What a schedule that data decide costs beside a fixed one, and peers beside a server."""

import pytest

from fastfed.environments import Gap
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment

PRIVATE = {"epsilon": 1.0, "delta": 0.1, "lazy": False}
CURVES = {
    "fixed": {**PRIVATE, "schedule": "fixed", "batch_size": 50},
    # About as often: the clock synchronises by itself where the regularizer outweighs the data.
    "determinant": {**PRIVATE, "communication": 350.0},
    "private-determinant": {**PRIVATE, "schedule": "private-determinant"},
    "not private": {"private": False, "lazy": False},
    "direct radius": {"epsilon": 1.0, "delta": 0.1, "schedule": "fixed", "batch_size": 50,
                      "radius": "direct"},
}  # fmt: skip


def experiment(algorithm, silos, keys):
    return make_experiment(
        name="bench",
        environment=Gap(dimension=10, actions=100),
        curves=[{"label": "a", "algorithm": algorithm, **keys}],
        horizon=400,
        silos=silos,
        checkpoints=10,
    )


def timed(benchmark, e):
    opened = e.environment.open(0, 0, e.silos)
    plans = [c.system.plan for c in e.curves]
    benchmark(dispatch.run, opened, plans, e.checkpoints)
    each = 1e6 * benchmark.stats["median"] / e.agent_rounds([0])
    benchmark.extra_info["microseconds_per_agent_round"] = each


@pytest.mark.parametrize("name", CURVES)
def test_schedules(benchmark, name):
    benchmark.group = "feducb on the gap, K = 100, d = 10, 20 silos"
    timed(benchmark, experiment("feducb", 20, CURVES[name]))


@pytest.mark.parametrize("graph", ["complete", "line"])
def test_peers(benchmark, graph):
    benchmark.group = "feducb-decentralized on the gap, K = 100, d = 10, 10 silos"
    keys = {**CURVES["not private"], "graph": graph}
    timed(benchmark, experiment("feducb-decentralized", 10, keys))
