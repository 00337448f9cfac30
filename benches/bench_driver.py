"""The compiled driver against `fastfed/_reference.py` and against the step driver."""

import pytest

from fastfed.environments import Sphere
from fastfed.simulation import bench, compiled, step


@pytest.fixture(params=bench.CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def opened(experiment):
    return experiment.environment.open(0, 0, experiment.silos)


def test_compiled_driver(benchmark, case):
    """One thread; extra_info holds microseconds per agent-round."""
    experiment = bench.bench_experiment(case.environment(), 25)
    benchmark.group = case.name
    plans = [c.system.plan for c in experiment.curves]
    benchmark(compiled.play, opened(experiment), plans, experiment.checkpoints)
    benchmark.extra_info["microseconds_per_agent_round"] = (
        1e6 * benchmark.stats["median"] / experiment.agent_rounds
    )


def test_reference(benchmark, case):
    experiment = bench.bench_experiment(case.environment(), 25)
    benchmark.group = case.name
    benchmark.pedantic(bench.reference_microseconds, args=(experiment,), rounds=2)


@pytest.mark.parametrize("driver", ["compiled", "step"])
def test_drivers(benchmark, driver):
    """What the readable driver costs beside the compiled one."""
    experiment = bench.bench_experiment(Sphere(dimension=10, actions=100), 25)
    benchmark.group = "drivers on the sphere"
    plans = [c.system.plan for c in experiment.curves]
    play = compiled.play if driver == "compiled" else step.play
    benchmark.pedantic(play, args=(opened(experiment), plans, experiment.checkpoints), rounds=2)
