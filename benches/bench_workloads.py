"""Time the workloads of the speed gate in this checkout only; `scripts/gate` compares two trees."""

import pytest
from gate import workloads


@pytest.mark.parametrize("name", workloads.names())
def test_workload(benchmark, name):
    benchmark.group = name.split()[0]
    benchmark(workloads.make(name))
