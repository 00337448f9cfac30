"""Time schedules that depend on data against fixed schedules, and peers against a server."""

import pytest

from fastfed.environments import Gap
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment

PRIVATE = {"epsilon": 1.0, "delta": 0.1, "lazy": False}
CURVES = {
    "fixed": {**PRIVATE, "schedule": "fixed", "batch_size": 50},
    # Synchronises about as often as "fixed": while the regularizer outweighs the data, the
    # determinant triggers at regular times.
    "determinant": {**PRIVATE, "communication": 350.0},
    "private-determinant": {**PRIVATE, "schedule": "private-determinant"},
    "not private": {"private": False, "lazy": False},
    "direct radius": {"epsilon": 1.0, "delta": 0.1, "schedule": "fixed", "batch_size": 50,
                      "radius": "direct"},
}  # fmt: skip


def experiment(algorithm, silos, keys, dimension=10, actions=100, horizon=400):
    return make_experiment(
        name="bench",
        environment=Gap(dimension=dimension, actions=actions),
        curves=[{"label": "a", "algorithm": algorithm, **keys}],
        horizon=horizon,
        silos=silos,
        checkpoints=10,
    )


def time_experiment(benchmark, e):
    """Time a run; extra_info holds microseconds per agent-round."""
    environment_run = e.environment.open(0, 0, e.silos)
    plans = [c.system.plan for c in e.curves]
    benchmark(dispatch.run, environment_run, plans, e.checkpoints)
    microseconds = 1e6 * benchmark.stats["median"] / e.agent_rounds([0])
    benchmark.extra_info["microseconds_per_agent_round"] = microseconds


@pytest.mark.parametrize("name", CURVES)
def test_schedules(benchmark, name):
    benchmark.group = "feducb on the gap, K = 100, d = 10, 20 silos"
    time_experiment(benchmark, experiment("feducb", 20, CURVES[name]))


@pytest.mark.parametrize("silos", [100, 300, 1000])
def test_rings(benchmark, silos):
    """Time silos in a ring; the time includes making the graph from the spec."""
    benchmark.group = "feducb-decentralized in a ring, K = 100, d = 10, as many rounds as silos"
    keys = {**CURVES["not private"], "graph": "ring"}

    def simulate():
        e = experiment("feducb-decentralized", silos, keys, horizon=silos)
        dispatch.run(e.environment.open(0, 0, silos), [e.curves[0].system.plan], e.checkpoints)

    benchmark.pedantic(simulate, rounds=3)
    microseconds = 1e6 * benchmark.stats["median"] / silos**2
    benchmark.extra_info["microseconds_per_agent_round"] = microseconds


@pytest.mark.parametrize("schedule", ["fixed", "private-determinant"])
@pytest.mark.parametrize("dimension", [10, 30, 100])
def test_wide_schedules(benchmark, dimension, schedule):
    benchmark.group = f"feducb on the gap, K = 20, d = {dimension}, 4 silos"
    time_experiment(benchmark, experiment("feducb", 4, CURVES[schedule], dimension, actions=20))


@pytest.mark.parametrize("graph", ["complete", "line"])
def test_peers(benchmark, graph):
    benchmark.group = "feducb-decentralized on the gap, K = 100, d = 10, 10 silos"
    keys = {**CURVES["not private"], "graph": graph}
    time_experiment(benchmark, experiment("feducb-decentralized", 10, keys))
