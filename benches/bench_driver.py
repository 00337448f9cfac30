"""Compare the compiled driver with `reference.py` and with the step driver."""

from dataclasses import replace

import pytest
from reference_cases import reference_microseconds

from fastfed.environments import Sphere
from fastfed.simulation import bench, compiled, server


@pytest.fixture(params=bench.CASES, ids=lambda case: case.name)
def case(request):
    """Return a case of `fastfed bench` with few rounds."""
    few = 4 if request.param.protocol == "shuffle-vector" else 25
    return replace(request.param, rounds=25, reference_rounds=few)


def open_environment(experiment):
    return experiment.environment.open(0, 0, experiment.silos)


def test_compiled_driver(benchmark, case):
    """Time one thread; extra_info holds microseconds per agent-round."""
    experiment, _ = bench.experiments_of(case)
    benchmark.group = case.name
    plans = [c.system.plan for c in experiment.curves]
    benchmark(compiled.run, open_environment(experiment), plans, experiment.checkpoints)
    benchmark.extra_info["microseconds_per_agent_round"] = (
        1e6 * benchmark.stats["median"] / experiment.agent_rounds([0])
    )


def test_reference(benchmark, case):
    _, experiment = bench.experiments_of(case)
    benchmark.group = case.name
    benchmark.pedantic(reference_microseconds, args=(experiment,), rounds=2)


@pytest.mark.parametrize("protocol", ["silo-ldp", "shuffle-vector"])
@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_drivers(benchmark, driver, protocol):
    """Time the step driver and the compiled driver on the same experiment."""
    sphere = Sphere(dimension=10, actions=100)
    experiment = bench.bench_experiment(sphere, 25, protocol, bench.SILOS, bench.BATCH)
    benchmark.group = f"drivers on the sphere, {protocol}"
    plans = [c.system.plan for c in experiment.curves]
    run_driver = compiled.run if driver == "compiled" else server.run_steps
    benchmark.pedantic(
        run_driver, args=(open_environment(experiment), plans, experiment.checkpoints), rounds=2
    )
