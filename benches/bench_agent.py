"""Time the systems of a single agent on a fixed set, and variants of messages, noise and radius."""

import pytest

from fastfed.environments import FixedSet
from fastfed.simulation import bench, dispatch
from fastfed.simulation.experiment import make_experiment

SYSTEMS = {
    case.protocol: case.batch_size for case in bench.CASES if case.environment().kind == "fixed-set"
}
EXACT = {"epsilon": 1.0, "delta": 0.1, "batch_size": 20}
VARIANTS = {
    "exact noise, direct radius": ("linucb-sdp-vec", {}),
    "messages of users": ("linucb-sdp-amp", {"messages": "individual"}),
    "Toeplitz noise": ("linucb-jdp", {"release": "toeplitz"}),
}


def time_curve(benchmark, curve):
    """Time 4000 rounds of a curve on a fixed set of actions."""
    e = make_experiment(
        name="bench",
        environment=FixedSet(basis_actions=True),
        curves=[{"label": "a", **curve}],
        horizon=4000,
        silos=1,
        checkpoints=10,
    )
    environment_run = e.environment.open(0, 0, e.silos)
    plans = [c.system.plan for c in e.curves]
    benchmark(dispatch.run, environment_run, plans, e.checkpoints)
    microseconds = 1e6 * benchmark.stats["median"] / e.agent_rounds([0])
    benchmark.extra_info["microseconds_per_agent_round"] = microseconds


@pytest.mark.parametrize("system", SYSTEMS)
def test_systems(benchmark, system):
    benchmark.group = "one agent on a fixed set, K = 100, d = 5"
    time_curve(benchmark, {**bench.CURVES[system], "batch_size": SYSTEMS[system]})


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(benchmark, name):
    benchmark.group = "one agent on a fixed set, B = 20, exact"
    algorithm, keys = VARIANTS[name]
    time_curve(benchmark, {"algorithm": algorithm, **EXACT, **keys})
