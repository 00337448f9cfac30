"""What the gate compares, by itself: every system, the rows of `fastfed bench`, public kernels.

Times of one side; `scripts/gate` compares two.
"""

import pytest
from gate import workloads


@pytest.mark.parametrize("name", workloads.names())
def test_workload(benchmark, name):
    benchmark.group = name.split()[0]
    benchmark(workloads.make(name))
